// Writes packets to memory: a packet's beats, then its descriptor, as AXI4 bursts that cross no 4 KiB boundary.
//
// The descriptor is in the line before the packet and is written after it, so that a thread that finds the sequence
// number it waits for finds the whole packet. This relies on writes of one master and one ID becoming visible in order,
// as PCIe's posted writes do.
//
// Descriptor, little endian: 0 this unit's address, 8 the next one's, 16 clock at which the packet's first beat came,
// 24 length, 26 port, 27 thread, 28 sequence number of the thread's packets, from 1. Thread and number are in the last
// eight bytes, so the whole descriptor is visible with them, however many beats it took. The number alone would not
// suffice if threads share a pool: the unit may hold the descriptor of another thread's packet with that number.
module npe_write #(
    parameter int T        = 8,
    parameter int W        = 512,
    parameter int UW       = 14,
    parameter int UNIT_LOG = 11,
    parameter int OFFSET   = 256,                     // of the packet in its unit
    localparam int TW      = (T == 1) ? 1 : $clog2(T),
    localparam int WB      = W / 8
) (
    input  logic            clk,
    input  logic            rst,
    input  logic [63:0]     base,            // of the packet's thread
    // The packet and its units.
    input  logic            grant_valid,
    output logic            grant_ready,
    input  logic [TW-1:0]   grant_thread,
    input  logic [UW-1:0]   grant_this,
    input  logic [UW-1:0]   grant_next,
    input  logic [31:0]     grant_seq,
    input  logic [63:0]     time_,
    input  logic [7:0]      port,
    input  logic [15:0]     len,
    // Its beats, at the clock after `read`.
    output logic            read,
    output logic [TW-1:0]   read_thread,
    input  logic [W-1:0]    data,
    output logic [63:0]     awaddr,
    output logic [7:0]      awlen,
    output logic            awvalid,
    input  logic            awready,
    output logic [W-1:0]    wdata,
    output logic [WB-1:0]   wstrb,
    output logic            wlast,
    output logic            wvalid,
    input  logic            wready,
    input  logic [1:0]      bresp,
    input  logic            bvalid,
    output logic            bready,
    output logic            failed,
    output logic            busy
);
    localparam int BEAT_LOG = $clog2(WB);
    localparam int CW = 16 - BEAT_LOG;  // bits of a number of beats
    localparam int DESC_BEATS = (WB >= 32) ? 1 : 32 / WB;
    localparam int BEFORE = OFFSET - 64;

    // Reading: beats are requested while there is room for them.
    logic            reading;
    logic [CW-1:0]   to_read;
    logic [2:0]      room;
    logic            about_ready, got;
    logic [63:0]     this_at, next_at;
    logic [CW-1:0]   beats;

    assign this_at     = base + 64'({grant_this, {UNIT_LOG{1'b0}}});
    assign next_at     = base + 64'({grant_next, {UNIT_LOG{1'b0}}});
    assign beats       = CW'((17'(len) + 17'(WB - 1)) >> BEAT_LOG);
    assign read        = reading && room != 0;
    assign grant_ready = about_ready && (!reading || (read && to_read == CW'(1)));

    logic take_beat, beat_valid, beat_room;
    logic [W-1:0] beat;

    always_ff @(posedge clk) begin
        if (rst) begin
            reading <= 1'b0;
            room    <= 3'd4;
            got     <= 1'b0;
        end else begin
            if (grant_valid && grant_ready) reading <= 1'b1;
            else if (read && to_read == CW'(1)) reading <= 1'b0;
            room <= room - 3'(read) + 3'(take_beat);
            got  <= read;
        end
        if (grant_valid && grant_ready) begin
            to_read     <= beats;
            read_thread <= grant_thread;
        end else if (read) begin
            to_read <= to_read - 1'b1;
        end
    end

    npe_fifo #(
        .WIDTH(W),
        .DEPTH(4)
    ) beat_queue (
        .clk,
        .rst,
        .in_valid (got),
        .in_ready (beat_room),
        .in_data  (data),
        .out_valid(beat_valid),
        .out_ready(take_beat),
        .out_data (beat)
    );

    // Packets whose beats are in that queue, or will be.
    localparam int ABOUT = 64 + 64 + 32 + 64 + TW + 8 + 16;
    logic             about_valid, about_done;
    logic [ABOUT-1:0] about;
    npe_fifo #(
        .WIDTH(ABOUT),
        .DEPTH(4)
    ) about_queue (
        .clk,
        .rst,
        .in_valid (grant_valid && grant_ready),
        .in_ready (about_ready),
        .in_data  ({this_at, next_at, grant_seq, time_, grant_thread, port, len}),
        .out_valid(about_valid),
        .out_ready(about_done),
        .out_data (about)
    );

    // Writing.
    logic [63:0]   w_this, w_next, w_time;
    logic [31:0]   w_seq;
    logic [7:0]    w_port;
    logic [15:0]   w_len;
    logic [TW-1:0] w_thread;
    assign {w_this, w_next, w_seq, w_time, w_thread, w_port, w_len} = about;

    typedef enum logic {
        PACKET,
        DESCRIPTOR
    } state_t;
    state_t        state;
    logic [CW-1:0] done;                  // beats of the packet written
    logic [8:0]    in_burst;              // beats that the burst still has
    logic [63:0]   at;
    logic [CW-1:0] w_beats, left;
    logic [12:0]   to_page;               // beats to the end of this 4 KiB
    logic [8:0]    burst, burst_less;
    logic          starts, has, put, put_ready, address_ready, ends;
    logic [255:0]  descriptor;
    logic [W-1:0]  put_data, piece;
    logic [WB-1:0] put_strobe;
    logic [15:0]   tail;

    assign w_beats = CW'((17'(w_len) + 17'(WB - 1)) >> BEAT_LOG);
    assign left    = w_beats - done;
    assign at      = w_this + ((state == PACKET) ? 64'(OFFSET) + (64'(done) << BEAT_LOG) : 64'(BEFORE));
    assign to_page = (13'h1000 - {1'b0, at[11:0]}) >> BEAT_LOG;
    always_comb begin
        burst = 9'd256;
        if (state == DESCRIPTOR) burst = 9'(DESC_BEATS);
        else begin
            if (16'(left) < 16'(burst)) burst = 9'(left);
            if (to_page < 13'(burst)) burst = 9'(to_page);
        end
    end

    assign burst_less = burst - 9'd1;
    assign starts     = in_burst == 0;
    assign has        = about_valid && (state == DESCRIPTOR || beat_valid);
    assign put        = has && put_ready && (!starts || address_ready);
    assign ends       = starts ? burst == 9'd1 : in_burst == 9'd1;
    assign take_beat  = put && state == PACKET;
    assign about_done = put && state == DESCRIPTOR && ends;

    assign descriptor = {w_seq, 8'(w_thread), w_port, w_len, w_time, w_next, w_this};
    generate
        if (WB >= 32) begin : g_one
            assign piece = W'(descriptor);
        end else begin : g_some
            logic [4:0] step;
            assign step  = 5'(DESC_BEATS) - (starts ? 5'(DESC_BEATS) : in_burst[4:0]);
            assign piece = descriptor[step*W+:W];
        end
    endgenerate
    // Bytes of the packet's last beat.
    assign tail = w_len - ((16'(w_beats) - 16'd1) << BEAT_LOG);
    always_comb begin
        put_data   = (state == PACKET) ? beat : piece;
        put_strobe = '1;
        for (int i = 0; i < WB; i++)
            if (state == PACKET ? (left == CW'(1) && 16'(i) >= tail) : i >= 32) put_strobe[i] = 1'b0;
    end

    always_ff @(posedge clk) begin
        if (rst) begin
            state    <= PACKET;
            done     <= '0;
            in_burst <= '0;
        end else if (put) begin
            in_burst <= (starts ? burst : in_burst) - 1'b1;
            if (state == PACKET) begin
                if (left == CW'(1)) state <= DESCRIPTOR;
                else done <= done + 1'b1;
            end else if (ends) begin
                state <= PACKET;
                done  <= '0;
            end
        end
    end

    npe_fifo #(
        .WIDTH(72),
        .DEPTH(4)
    ) address_queue (
        .clk,
        .rst,
        .in_valid (put && starts),
        .in_ready (address_ready),
        .in_data  ({at, burst_less[7:0]}),
        .out_valid(awvalid),
        .out_ready(awready),
        .out_data ({awaddr, awlen})
    );
    npe_fifo #(
        .WIDTH(W + WB + 1),
        .DEPTH(4)
    ) data_queue (
        .clk,
        .rst,
        .in_valid (put),
        .in_ready (put_ready),
        .in_data  ({ends, put_strobe, put_data}),
        .out_valid(wvalid),
        .out_ready(wready),
        .out_data ({wlast, wstrb, wdata})
    );

    // Bursts that have not been answered yet.
    logic [15:0] open;
    assign bready = 1'b1;
    assign failed = bvalid && bresp[1];
    always_ff @(posedge clk) begin
        if (rst) open <= '0;
        else open <= open + 16'(put && starts) - 16'(bvalid);
    end
    assign busy = reading || got || about_valid || open != 0;

    logic unused;
    assign unused = &{1'b0, beat_room, bresp[0], burst_less[8]};
endmodule
