// Commands by rings in host memory: a thread writes commands to its ring, and then the number of all it has written to
// DOORBELL. The engine reads the new ones in batches and puts them into the thread's command queue as that has room.
//
// A batch is one AXI4 burst within 256 bytes. One batch at a time is under way, of any thread. A batch that could not be
// read is read again: nothing else knows these commands.
module npe_ring #(
    parameter int T    = 8,
    parameter int W    = 512,                     // bits of a beat
    localparam int TW  = (T == 1) ? 1 : $clog2(T)
) (
    input  logic          clk,
    input  logic          rst,
    // RING and DOORBELL are written.
    input  logic          start,
    input  logic          bell,
    input  logic [TW-1:0] bell_thread,
    input  logic [63:0]   value,
    output logic          bad_bell,     // there is no ring, or it is not that large
    output logic [63:0]   araddr,
    output logic [7:0]    arlen,
    output logic          arvalid,
    input  logic          arready,
    input  logic [W-1:0]  rdata,
    input  logic [1:0]    rresp,
    input  logic          rlast,
    input  logic          rvalid,
    // To the command queues.
    output logic          offer_valid,
    input  logic          offer_ready,
    output logic [TW-1:0] thread,
    output logic [56:0]   command,
    output logic          failed,
    output logic          busy
);
    localparam int BATCH = 32;          // commands
    localparam int PER   = W / 64;      // commands in a beat
    localparam int PERW  = $clog2(PER);
    localparam int BEATS = BATCH / PER;
    localparam int BW    = $clog2(BEATS);

    // Commands written and taken from the ring, by thread, modulo 2^16. A ring has at most 2^15.
    logic [T-1:0]    on, ready;
    logic [T*16-1:0] told, done;
    logic [59:0]     where[T];          // address / 256, log2 of its entries
    logic [15:0]     bell_count, bell_ahead;
    logic [59:0]     bell_where;

    assign bell_count = value[15:0];
    assign bell_ahead = bell_count - done[bell_thread*16+:16];
    assign bell_where = where[bell_thread];
    assign bad_bell   = bell && (!on[bell_thread] || 17'(bell_ahead) > (17'd1 << bell_where[3:0]));
    for (genvar t = 0; t < T; t++) begin : g_thread
        assign ready[t] = on[t] && told[t*16+:16] != done[t*16+:16];
    end

    typedef enum logic [2:0] {
        IDLE,
        LOOK,
        ASK,
        READ,
        PUT
    } state_t;
    state_t        state;
    logic          any, take, last;
    logic [TW-1:0] pick;
    npe_pick #(
        .N(T)
    ) turn (
        .clk,
        .rst,
        .ready,
        .taken(take),
        .any,
        .pick
    );
    assign take = state == IDLE;

    // The batch: from entry `place` of its 256 bytes on.
    logic [59:0]   here;
    logic [15:0]   from, ahead;
    logic [14:0]   index;
    logic [5:0]    to_end, count, left;
    logic [4:0]    place, final_place;
    logic [55:0]   line;
    logic          spoilt;
    logic [BW-1:0] beat, beats_less;
    logic [W-1:0]  mem[BEATS];

    assign here   = where[thread];
    assign from   = done[thread*16+:16];
    assign ahead  = told[thread*16+:16] - from;
    assign index  = 15'(from & ~(16'hffff << here[3:0]));
    assign to_end = 6'd32 - 6'(from[4:0]);
    assign count  = (ahead < 16'(to_end)) ? ahead[5:0] : to_end;

    assign final_place = place + 5'(left) - 5'd1;
    assign beats_less  = final_place[4:PERW] - place[4:PERW];
    assign araddr      = {line, place[4:PERW], {(3 + PERW) {1'b0}}};
    assign arlen       = 8'(beats_less);
    assign arvalid     = state == ASK;
    assign failed      = state == READ && rvalid && rlast && (spoilt || rresp[1]);

    assign offer_valid = state == PUT;
    assign last        = left == 6'd1;
    generate
        if (PER == 1) begin : g_one
            assign command = 57'(mem[place]);
        end else begin : g_some
            assign command = mem[place[4:PERW]][place[PERW-1:0]*64+:57];
        end
    endgenerate

    always_ff @(posedge clk) begin
        if (rst) begin
            state <= IDLE;
        end else begin
            case (state)
                IDLE:    if (any) state <= LOOK;
                LOOK:    state <= ASK;
                ASK:     if (arready) state <= READ;
                READ:    if (rvalid && rlast) state <= failed ? ASK : PUT;
                default: if (offer_ready && last) state <= IDLE;
            endcase
        end
        if (state == IDLE) thread <= pick;
        if (state == LOOK) begin
            line  <= here[59:4] + 56'(index[14:5]);
            place <= from[4:0];
            left  <= count;
        end else if (offer_valid && offer_ready) begin
            place <= place + 1'b1;
            left  <= left - 1'b1;
        end
        if (state == ASK) {beat, spoilt} <= {place[4:PERW], 1'b0};
        else if (rvalid) {beat, spoilt} <= {beat + 1'b1, spoilt || rresp[1]};
        if (rvalid) mem[beat] <= rdata;
    end

    always_ff @(posedge clk) begin
        if (rst) begin
            on   <= '0;
            told <= '0;
            done <= '0;
        end else begin
            for (int t = 0; t < T; t++) begin
                if (bell && !bad_bell && bell_thread == TW'(t)) told[t*16+:16] <= bell_count;
                if (offer_valid && offer_ready && thread == TW'(t)) done[t*16+:16] <= from + 1'b1;
                if (start && bell_thread == TW'(t)) begin
                    on[t]           <= value[3:0] >= 4'd5;
                    told[t*16+:16]  <= '0;
                    done[t*16+:16]  <= '0;
                end
            end
        end
        if (start) where[bell_thread] <= {value[63:8], value[3:0]};
    end
    assign busy = state != IDLE || any;

    logic unused;
    assign unused = &{1'b0, rresp[0], value[7:4], bell_where, index, final_place};
endmodule
