// Address allocation: holds the unit of each thread's next packet, and assigns that unit and the one after it to a
// thread that has a packet.
//
// A packet gets its unit only when the unit after it is known, so that its descriptor can name that unit and the chain
// never breaks. The last unit of a pool is therefore kept until another block is free. A thread without a unit delays
// no other.
module npe_alloc #(
    parameter int T     = 8,
    parameter int POOLS = 8,                      // T, or 1 for all
    parameter int UW    = 14,                     // bits of a unit's number
    localparam int TW   = (T == 1) ? 1 : $clog2(T)
) (
    input  logic                clk,
    input  logic                rst,
    input  logic [4:0]          channels,    // threads in use
    input  logic [POOLS-1:0]    unit_valid,
    output logic [POOLS-1:0]    unit_ready,
    input  logic [POOLS*UW-1:0] unit,
    input  logic [T-1:0]        want,        // the thread has a packet
    output logic                take,        // that packet is given units now
    output logic [TW-1:0]       take_thread,
    output logic                grant_valid,
    input  logic                grant_ready,
    output logic [TW-1:0]       grant_thread,
    output logic [UW-1:0]       grant_this,
    output logic [UW-1:0]       grant_next,
    output logic [31:0]         grant_seq,
    output logic [T-1:0]        next_valid,
    output logic [T*UW-1:0]     next,
    output logic [T*32-1:0]     seq          // packets given to each thread
);
    localparam int PW = (POOLS == 1) ? 1 : $clog2(POOLS);

    logic [T-1:0]  has_unit, can, lacks;
    logic          fill;
    logic [TW-1:0] fill_thread, pop_thread;
    logic [PW-1:0] pop_pool;
    logic [UW-1:0] popped, this_unit;
    logic [31:0]   taken_seq;
    logic          any;

    for (genvar t = 0; t < T; t++) begin : g_thread
        assign has_unit[t] = unit_valid[(POOLS==1)?0 : t] && 5'(t) < channels;
    end

    // A thread has no unit only at the start: later, each unit taken is replaced by the next one.
    assign lacks = ~next_valid & has_unit;
    assign fill  = |lacks;
    always_comb begin
        fill_thread = '0;
        for (int i = T - 1; i >= 0; i--) if (lacks[i]) fill_thread = TW'(i);
    end

    assign can = want & next_valid & has_unit;
    npe_pick #(
        .N(T)
    ) turn (
        .clk,
        .rst,
        .ready(can),
        .taken(take),
        .any,
        .pick (take_thread)
    );
    assign take = any && !fill && (!grant_valid || grant_ready);

    assign taken_seq  = seq[take_thread*32+:32] + 1'b1;
    assign pop_thread = fill ? fill_thread : take_thread;
    assign pop_pool   = (POOLS == 1) ? '0 : PW'(pop_thread);
    npe_select #(
        .N    (POOLS),
        .WIDTH(UW)
    ) unit_popped (
        .all(unit),
        .at (pop_pool),
        .one(popped)
    );
    npe_select #(
        .N    (T),
        .WIDTH(UW)
    ) unit_this (
        .all(next),
        .at (take_thread),
        .one(this_unit)
    );
    for (genvar p = 0; p < POOLS; p++) begin : g_pool
        assign unit_ready[p] = (fill || take) && pop_pool == PW'(p);
    end

    always_ff @(posedge clk) begin
        if (rst) begin
            next_valid <= '0;
            seq        <= '0;
        end else begin
            if (fill) next_valid[fill_thread] <= 1'b1;
            for (int t = 0; t < T; t++) if (take && take_thread == TW'(t)) seq[t*32+:32] <= taken_seq;
        end
        for (int t = 0; t < T; t++) if ((fill || take) && pop_thread == TW'(t)) next[t*UW+:UW] <= popped;
    end

    always_ff @(posedge clk) begin
        if (rst) grant_valid <= 1'b0;
        else if (take) grant_valid <= 1'b1;
        else if (grant_ready) grant_valid <= 1'b0;
        if (take) begin
            grant_thread <= take_thread;
            grant_this   <= this_unit;
            grant_next   <= popped;
            grant_seq    <= taken_seq;
        end
    end
endmodule
