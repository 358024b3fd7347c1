// Transmit: reads packets from memory in several concurrent AXI4 bursts, whose answers may come in any order,
// reassembles them, and sends them in the order of their commands. A packet's unit is released only when its last beat
// has left, because its bytes are needed until then.
//
// Each packet has a slot, with room for a unit, and its bursts have the slot's number as their ID: answers of one ID
// come in order, those of different IDs need not.
module npe_transmit #(
    parameter int W        = 512,
    parameter int SLOTS    = 8,              // a power of two, at least 2
    parameter int UNIT_LOG = 11,
    parameter int REQUEST  = 4096,           // bytes a burst has at most, a power of two, 64 to 4096
    parameter int TAG      = 18,             // bits of the tag passed on at the release
    localparam int WB      = W / 8,
    localparam int SW      = $clog2(SLOTS)
) (
    input  logic           clk,
    input  logic           rst,
    input  logic           send_valid,
    output logic           send_ready,
    input  logic [63:0]    address,
    input  logic [15:0]    len,             // 1 to what is left of the unit
    input  logic [7:0]     port,
    input  logic [TAG-1:0] tag,
    output logic [SW-1:0]  arid,
    output logic [63:0]    araddr,
    output logic [7:0]     arlen,
    output logic           arvalid,
    input  logic           arready,
    input  logic [SW-1:0]  rid,
    input  logic [W-1:0]   rdata,
    input  logic [1:0]     rresp,
    input  logic           rvalid,
    output logic           rready,
    output logic [W-1:0]   m_data,
    output logic [WB-1:0]  m_keep,
    output logic           m_last,
    output logic [7:0]     m_port,
    output logic           m_valid,
    input  logic           m_ready,
    output logic           release_valid,
    output logic [TAG-1:0] release_tag,
    output logic           sent,
    output logic           failed,          // not sent: it could not be read
    output logic           busy
);
    localparam int BEAT_LOG = $clog2(WB);
    localparam int CW = UNIT_LOG - BEAT_LOG;  // bits of a beat's number in a unit
    localparam int INFO = 16 + 8 + BEAT_LOG + (CW + 1) + TAG;

    // Slots, from the oldest on: `head` is sent, `tail` is free.
    logic [SW:0]         head, tail;
    logic [INFO-1:0]     info[SLOTS];
    logic [SLOTS*(CW+1)-1:0] want, have;      // beats
    logic [SLOTS-1:0]    broken;
    logic [W-1:0]        mem[SLOTS<<CW];

    // Requests: one burst a clock.
    logic                asking;
    logic [63:0]         ask_at;
    logic [CW:0]         ask_left, beats, burst;
    logic [SW-1:0]       ask_slot;
    logic [12:0]         to_page;
    logic                accept, free;

    assign free       = (tail - head) != (SW + 1)'(SLOTS);
    assign send_ready = free && !asking;
    assign accept     = send_valid && send_ready;
    assign beats      = (CW + 1)'((17'(address[BEAT_LOG-1:0]) + 17'(len) + 17'(WB - 1)) >> BEAT_LOG);

    assign to_page = (13'(REQUEST) - {1'b0, ask_at[11:0] & 12'(REQUEST - 1)}) >> BEAT_LOG;
    always_comb begin
        burst = ask_left;
        if (16'(burst) > 16'd256) burst = (CW + 1)'(256);
        if (to_page < 13'(burst)) burst = (CW + 1)'(to_page);
    end
    assign arvalid = asking;
    assign arid    = ask_slot;
    assign araddr  = ask_at;
    assign arlen   = 8'(16'(burst) - 16'd1);

    always_ff @(posedge clk) begin
        if (rst) begin
            asking <= 1'b0;
            tail   <= '0;
        end else begin
            if (accept) begin
                asking <= 1'b1;
                tail   <= tail + 1'b1;
            end else if (arvalid && arready && burst == ask_left) begin
                asking <= 1'b0;
            end
        end
        if (accept) begin
            ask_at   <= {address[63:BEAT_LOG], {BEAT_LOG{1'b0}}};
            ask_left <= beats;
            ask_slot <= tail[SW-1:0];
            info[tail[SW-1:0]] <= {len, port, address[BEAT_LOG-1:0], beats, tag};
        end else if (arvalid && arready) begin
            ask_at   <= ask_at + (64'(burst) << BEAT_LOG);
            ask_left <= ask_left - burst;
        end
    end

    // Answers: there is room for all requested beats.
    logic [CW:0] have_here;
    assign rready    = 1'b1;
    assign have_here = have[rid*(CW+1)+:CW+1];
    always_ff @(posedge clk) begin
        if (rvalid) mem[{rid, have_here[CW-1:0]}] <= rdata;
        for (int s = 0; s < SLOTS; s++) begin
            if (rvalid && rid == SW'(s)) begin
                have[s*(CW+1)+:CW+1] <= have_here + 1'b1;
                if (rresp[1]) broken[s] <= 1'b1;
            end
            if (accept && tail[SW-1:0] == SW'(s)) begin
                have[s*(CW+1)+:CW+1] <= '0;
                want[s*(CW+1)+:CW+1] <= beats;
                broken[s]            <= 1'b0;
            end
        end
    end

    // Reads complete slots in order. An unused slot may look complete; the head is in use.
    logic [SW:0]     from;                     // next slot to read, at or after the head
    logic [CW:0]     reading;                  // its next beat
    logic [2:0]      room;
    logic            whole, read, got, about_room, starts, ends, is_broken;
    logic [INFO-1:0] from_info;
    logic [CW:0]     f_beats;
    logic [TAG-1:0]  f_tag;
    logic [W-1:0]    data;

    assign from_info = info[from[SW-1:0]];
    assign {f_beats, f_tag} = from_info[CW+TAG:0];
    assign is_broken = broken[from[SW-1:0]];
    assign whole     = from != tail
        && have[from[SW-1:0]*(CW+1)+:CW+1] == want[from[SW-1:0]*(CW+1)+:CW+1];
    assign starts    = reading == 0;
    assign read      = whole && !is_broken && room != 0 && (!starts || about_room);
    assign ends      = read && reading == f_beats - 1'b1;
    // A packet that could not be read is removed when those before it have left.
    logic skip;
    assign skip = whole && is_broken && from == head;

    logic raw_valid, raw_take, raw_room;
    logic [W-1:0] raw;
    always_ff @(posedge clk) begin
        if (rst) begin
            from    <= '0;
            reading <= '0;
            room    <= 3'd4;
            got     <= 1'b0;
        end else begin
            if (ends || skip) from <= from + 1'b1;
            if (ends) reading <= '0;
            else if (read) reading <= reading + 1'b1;
            room <= room - 3'(read) + 3'(raw_take);
            got  <= read;
        end
        if (read) data <= mem[{from[SW-1:0], reading[CW-1:0]}];
    end
    npe_fifo #(
        .WIDTH(W),
        .DEPTH(4)
    ) raw_queue (
        .clk,
        .rst,
        .in_valid (got),
        .in_ready (raw_room),
        .in_data  (data),
        .out_valid(raw_valid),
        .out_ready(raw_take),
        .out_data (raw)
    );
    logic            about_valid, about_done;
    logic [INFO-1:0] about;
    npe_fifo #(
        .WIDTH(INFO),
        .DEPTH(4)
    ) about_queue (
        .clk,
        .rst,
        .in_valid (read && starts),
        .in_ready (about_room),
        .in_data  (from_info),
        .out_valid(about_valid),
        .out_ready(about_done),
        .out_data (about)
    );

    // Sending: a beat consists of the rest of the beat read before and the beginning of the next one.
    logic [15:0]         o_len, o_left;
    logic [7:0]          o_port;
    logic [BEAT_LOG-1:0] o_shift;
    logic [CW:0]         o_beats;
    logic [TAG-1:0]      o_tag;
    logic                begun;               // `rest` has this packet's last beat that was read
    logic [W-1:0]        rest;
    logic [CW:0]         taken;               // beats read of it
    logic [15:0]         given;               // bytes sent of it
    logic                needs, can, go, more;

    assign {o_len, o_port, o_shift, o_beats, o_tag} = about;
    assign more   = taken != o_beats;
    assign o_left = o_len - given;
    assign m_last = o_left <= 16'(WB);
    // The next beat is needed unless the rest of this one completes the packet.
    assign needs  = 16'(WB) - 16'(o_shift) < o_left && more;
    assign can    = begun && about_valid && (!needs || raw_valid);
    assign m_valid = can;
    assign go      = can && m_ready;
    assign m_data  = W'({raw, rest} >> {o_shift, 3'b000});
    assign m_port  = o_port;
    always_comb for (int i = 0; i < WB; i++) m_keep[i] = 16'(i) < o_left;

    // A packet's first beat goes to `rest`, if that is empty, or with the last beat of the previous packet.
    logic first, follows;
    assign first      = !begun && raw_valid && about_valid;
    assign about_done = go && m_last;
    assign follows    = about_done && !needs && raw_valid;
    assign raw_take   = first || (go && needs) || follows;

    always_ff @(posedge clk) begin
        if (rst) begin
            begun <= 1'b0;
            taken <= '0;
            given <= '0;
        end else begin
            if (first || follows) begin
                begun <= 1'b1;
                taken <= (CW + 1)'(1);
                given <= '0;
            end else if (about_done) begin
                begun <= 1'b0;
            end else if (go) begin
                given <= given + 16'(WB);
                taken <= taken + 1'b1;
            end
        end
        if (raw_take) rest <= raw;
    end

    always_ff @(posedge clk) begin
        if (rst) head <= '0;
        else if (about_done || skip) head <= head + 1'b1;
    end
    assign sent          = about_done;
    assign failed        = skip;
    assign release_valid = sent || failed;
    assign release_tag   = sent ? o_tag : f_tag;
    assign busy          = head != tail;

    logic unused;
    assign unused = &{1'b0, raw_room, rresp[0]};
endmodule
