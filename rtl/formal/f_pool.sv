// Recycling, conversion and allocation together, with a host that releases its units once each, in any order.
module f_pool #(
    parameter int T     = 1,  // threads, 1 or 2
    parameter int POOLS = 1   // T: TABM; 1: SDB
) (
    input logic clk, reset, grant_ready, release_valid,
    input logic [T-1:0] want,
    input logic [0:0] release_pool,
    input logic [((T > POOLS) ? 2 : 1):0] release_unit
);
    // With one pool for all, each thread's next unit may keep a block from coming back, so one more block is needed.
    localparam int BLOCKS = (T > POOLS) ? 4 : 2, UNITS = 2;
    localparam int BW = $clog2(BLOCKS), UW = BW + 1, ALL = BLOCKS * UNITS;
    localparam int PATIENCE = 6;
    logic first = 1'b1;
    always_ff @(posedge clk) first <= 1'b0;
    logic rst;
    assign rst = first || reset;

    // The host posts all blocks, one after the other.
    logic [2:0] to_post = 0;
    logic post_valid, post_ready, bad_post, bad_release, counted, returned;
    logic [0:0] post_pool;
    logic [BW-1:0] post_block;
    assign post_valid = to_post != POOLS * BLOCKS;
    assign post_pool  = (POOLS == 1) ? 1'b0 : to_post[1];
    assign post_block = to_post[BW-1:0];
    always_ff @(posedge clk) begin
        if (post_valid && post_ready) to_post <= to_post + 1'b1;
        if (rst) to_post <= 0;
    end

    logic [POOLS-1:0] block_valid, block_ready, from_valid, from_ready, unit_valid, unit_ready;
    logic [POOLS*BW-1:0] block;
    logic [POOLS*UW-1:0] from, unit;
    logic take, grant_valid;
    logic [0:0] take_thread, grant_thread;
    logic [UW-1:0] grant_this, grant_next;
    logic [31:0] grant_seq;
    logic [T-1:0] next_valid;
    logic [T*UW-1:0] next;
    logic [T*32-1:0] seq;
    logic [4:0] channels;
    assign channels = T;

    npe_recycle #(.POOLS(POOLS), .BLOCKS(BLOCKS), .UNITS(UNITS)) recycle (
        .clk, .rst, .post_valid, .post_ready, .post_pool, .post_block, .bad_post,
        .release_valid(release_now), .release_pool, .release_block(release_unit[UW-1:1]), .bad_release, .counted, .returned,
        .block_valid, .block_ready, .block);
    for (genvar p = 0; p < POOLS; p++) begin : g_pool
        npe_convert #(.BLOCKS(BLOCKS), .UNITS(UNITS)) convert (
            .clk, .rst, .block_valid(block_valid[p]), .block_ready(block_ready[p]), .block(block[p*BW+:BW]),
            .unit_valid(from_valid[p]), .unit_ready(from_ready[p]), .unit(from[p*UW+:UW]));
        npe_fifo #(.WIDTH(UW), .DEPTH(2)) units (
            .clk, .rst, .in_valid(from_valid[p]), .in_ready(from_ready[p]), .in_data(from[p*UW+:UW]),
            .out_valid(unit_valid[p]), .out_ready(unit_ready[p]), .out_data(unit[p*UW+:UW]));
    end
    npe_alloc #(.T(T), .POOLS(POOLS), .UW(UW)) alloc (.*);

    // Units that the host has: granted and not released.
    logic [POOLS*ALL-1:0] live = '0;
    logic granted, release_now;
    logic [0:0] grant_pool;
    logic [31:0] at_grant, at_release;
    assign grant_pool  = (POOLS == 1) ? 1'b0 : grant_thread;
    assign granted     = grant_valid && grant_ready;
    assign at_grant    = grant_pool * ALL + grant_this;
    assign at_release  = ((POOLS == 1) ? 0 : release_pool * ALL) + release_unit;
    assign release_now = release_valid && live[at_release] && (POOLS != 1 || !release_pool);
    always_ff @(posedge clk) begin
        if (granted) live[at_grant] <= 1'b1;
        if (release_now) live[at_release] <= 1'b0;
        if (rst) live <= '0;
    end

    // The next unit announced to each thread.
    logic [T-1:0] told = 0;
    logic [T*UW-1:0] told_unit = 0;
    always_ff @(posedge clk) begin
        if (granted) begin
            told[grant_thread] <= 1'b1;
            told_unit[grant_thread*UW+:UW] <= grant_next;
        end
        if (rst) told <= '0;
    end

    // If the host holds no unit of a pool, a thread that wants one gets it within a bounded time.
    logic [3:0] waited = 0;
    (* anyconst *) logic any;
    logic who;
    assign who = (T == 2) && any;
    logic nothing_out;
    assign nothing_out = ((POOLS == 1) ? live : (who ? live[POOLS*ALL-1-:ALL] : live[ALL-1:0])) == '0;
    always_ff @(posedge clk) begin
        if (rst || post_valid || !want[who] || !nothing_out || !grant_ready || grant_valid) waited <= 0;
        else waited <= waited + 1'b1;
    end

    pool_not_twice: assert property (first || !grant_valid || !live[at_grant]);
    pool_next_not_live: assert property (first || !grant_valid || !live[grant_pool * ALL + grant_next]);
    pool_next_differs: assert property (first || !grant_valid || grant_this != grant_next);
    pool_threads_differ: assert property (first || POOLS != 1 || !(&next_valid) || T == 1 || next[UW-1:0] != next[T*UW-1-:UW]);
    pool_chain: assert property (first || !grant_valid || !told[grant_thread]
        || grant_this == told_unit[grant_thread*UW+:UW]);
    pool_no_refusal: assert property (first || !bad_release && !bad_post);
    pool_no_deadlock: assert property (first || waited < PATIENCE);
endmodule
