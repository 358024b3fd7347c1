// Dispatch: selects a packet's thread, and keeps the packet in that thread's queue until its units are known.
//
// A packet counts as queued once its last beat is in the queue: a packet that is damaged, too long for a unit, or finds
// the queue full is removed again. With `hold`, a packet that finds the queue full waits, and with it all packets
// behind it.
module npe_dispatch #(
    parameter int T      = 8,
    parameter int W      = 512,                     // bits of a beat
    parameter int PORTS  = 16,
    parameter int BEATS  = 64,                      // a queue's; a power of two, and room for the longest packet
    parameter int COUNT  = 16,                      // packets in a queue at most; a power of two
    parameter int LONGEST = 1792,                   // bytes
    localparam int TW    = (T == 1) ? 1 : $clog2(T),
    localparam int WB    = W / 8
) (
    input  logic                clk,
    input  logic                rst,
    input  logic                enable,
    input  logic                by_port,
    input  logic                hold,
    input  logic [4:0]          channels,
    input  logic [PORTS*TW-1:0] port_map,
    input  logic [63:0]         now,
    // From the ports.
    input  logic                s_valid,
    output logic                s_ready,
    input  logic [W-1:0]        s_data,
    input  logic [WB-1:0]       s_keep,
    input  logic                s_last,
    input  logic                s_bad,       // with the last beat: the packet is damaged
    input  logic [7:0]          s_port,
    // Outcome of a packet, for one clock, with its last beat.
    output logic                ended,
    output logic                kept,
    output logic                too_long,
    output logic                damaged,
    output logic                dropped,
    output logic [TW-1:0]       ended_thread,
    // Packets that wait.
    output logic [T-1:0]        want,
    input  logic                take,
    input  logic [TW-1:0]       take_thread,
    output logic [63:0]         time_,       // of the packet taken last
    output logic [7:0]          port,
    output logic [15:0]         len,
    // Beats of the packets taken, in order, at the clock after `read`.
    input  logic                read,
    input  logic [TW-1:0]       read_thread,
    output logic [W-1:0]        data,
    output logic                busy
);
    localparam int BW = $clog2(BEATS);
    localparam int NW = $clog2(COUNT);
    localparam int MAW = $clog2(T * BEATS);
    localparam int AAW = $clog2(T * COUNT);
    localparam int PIW = (PORTS == 1) ? 1 : $clog2(PORTS);

    logic [W-1:0] mem[T*BEATS];
    logic [87:0]  about[T*COUNT];

    // Beats and packets put in and taken out, by thread.
    logic [T*(BW+1)-1:0] beats_in, beats_out;
    logic [T*(NW+1)-1:0] packets_in, packets_out;

    logic                midway, lost, long;      // within a packet, and its state so far
    logic [TW-1:0]       mine, chosen, thread, turn;
    logic [BW:0]         had, in_here, out_here;  // beats of this packet so far
    logic [15:0]         so_far, length;
    logic [63:0]         began;
    logic                room, beat, lost_now, long_now;
    logic [NW:0]         packets_here, kept_here, gone_here, taken_here;
    logic [BW:0]         kept_beats, read_here;
    logic [15:0]         in_beat;

    assign chosen   = by_port ? port_map[s_port[PIW-1:0]*TW+:TW] : turn;
    assign thread   = midway ? mine : chosen;
    assign in_here  = kept_beats + had;
    assign packets_here = kept_here - gone_here;
    npe_select #(
        .N    (T),
        .WIDTH(BW + 1)
    ) beats_kept (
        .all(beats_in),
        .at (thread),
        .one(kept_beats)
    );
    npe_select #(
        .N    (T),
        .WIDTH(BW + 1)
    ) beats_gone (
        .all(beats_out),
        .at (thread),
        .one(out_here)
    );
    npe_select #(
        .N    (T),
        .WIDTH(BW + 1)
    ) beats_read (
        .all(beats_out),
        .at (read_thread),
        .one(read_here)
    );
    npe_select #(
        .N    (T),
        .WIDTH(NW + 1)
    ) packets_kept (
        .all(packets_in),
        .at (thread),
        .one(kept_here)
    );
    npe_select #(
        .N    (T),
        .WIDTH(NW + 1)
    ) packets_gone (
        .all(packets_out),
        .at (thread),
        .one(gone_here)
    );
    npe_select #(
        .N    (T),
        .WIDTH(NW + 1)
    ) packets_taken (
        .all(packets_out),
        .at (take_thread),
        .one(taken_here)
    );
    assign room     = (in_here - out_here) != (BW + 1)'(BEATS) && packets_here != (NW + 1)'(COUNT);

    assign s_ready = (midway || (enable && channels != 0)) && (!hold || room || (midway && (lost || long)));
    assign beat    = s_valid && s_ready;

    // Valid bytes start at the lowest, so their number is also their end.
    always_comb begin
        in_beat = 16'(WB);
        if (s_last) for (int i = WB - 1; i >= 0; i--) if (!s_keep[i]) in_beat = 16'(i);
    end
    assign length   = (midway ? so_far : 16'd0) + in_beat;
    assign lost_now = (midway && lost) || !room;
    assign long_now = (midway && long) || length > 16'(LONGEST);

    assign ended        = beat && s_last;
    assign damaged      = ended && s_bad;
    assign too_long     = ended && !s_bad && long_now;
    assign dropped      = ended && !s_bad && !long_now && lost_now;
    assign kept         = ended && !s_bad && !long_now && !lost_now;
    assign ended_thread = thread;

    always_ff @(posedge clk) begin
        if (beat && !lost_now && !long_now) mem[MAW'({thread, in_here[BW-1:0]})] <= s_data;
        if (kept) about[AAW'({thread, kept_here[NW-1:0]})] <= {midway ? began : now, s_port, length};
        if (read) data <= mem[MAW'({read_thread, read_here[BW-1:0]})];
        if (take) {time_, port, len} <= about[AAW'({take_thread, taken_here[NW-1:0]})];
    end

    always_ff @(posedge clk) begin
        if (rst) begin
            midway <= 1'b0;
            turn   <= '0;
        end else if (beat) begin
            midway <= !s_last;
            if (!midway) turn <= (5'(turn) + 5'd1 >= channels) ? '0 : turn + 1'b1;
        end
        if (beat) begin
            if (!midway) {mine, began} <= {chosen, now};
            lost   <= lost_now;
            long   <= long_now;
            // A packet too long for its unit may be too long for sixteen bits.
            so_far <= long_now ? 16'(LONGEST + 1) : length;
        end
        if (rst || ended) had <= '0;
        else if (beat && !lost_now && !long_now) had <= had + 1'b1;
    end

    always_ff @(posedge clk) begin
        if (rst) begin
            beats_in    <= '0;
            beats_out   <= '0;
            packets_in  <= '0;
            packets_out <= '0;
        end else begin
            for (int t = 0; t < T; t++) begin
                if (kept && thread == TW'(t)) begin
                    beats_in[t*(BW+1)+:BW+1]   <= in_here + 1'b1;
                    packets_in[t*(NW+1)+:NW+1] <= kept_here + 1'b1;
                end
                if (read && read_thread == TW'(t)) beats_out[t*(BW+1)+:BW+1] <= read_here + 1'b1;
                if (take && take_thread == TW'(t)) packets_out[t*(NW+1)+:NW+1] <= taken_here + 1'b1;
            end
        end
    end

    for (genvar t = 0; t < T; t++) begin : g_thread
        assign want[t] = packets_in[t*(NW+1)+:NW+1] != packets_out[t*(NW+1)+:NW+1];
    end
    // Not `want`: a packet taken is read beat by beat.
    assign busy = midway || beats_in != beats_out || packets_in != packets_out;

    logic unused;
    assign unused = &{1'b0, s_port};
endmodule
