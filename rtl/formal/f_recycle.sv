// npe_recycle: follows an arbitrary block through all possible releases, including invalid ones.
module f_recycle (
    input logic clk, reset, post_valid, release_valid,
    input logic [0:0] post_pool, release_pool,
    input logic [0:0] post_block, release_block,
    input logic [1:0] block_ready
);
    localparam int POOLS = 2, BLOCKS = 2, UNITS = 4;
    logic first = 1'b1;
    always_ff @(posedge clk) first <= 1'b0;
    logic rst;
    assign rst = first || reset;

    logic post_ready, bad_post, bad_release, counted, returned;
    logic [1:0] block_valid;
    logic [1:0] block;
    npe_recycle #(.POOLS(POOLS), .BLOCKS(BLOCKS), .UNITS(UNITS)) dut (.*);

    (* anyconst *) logic pool, number;
    logic posted = 0, queued = 0, out = 0;
    logic [2:0] released = 0;
    logic post_me, release_me, take_me, both_valid;
    assign post_me    = post_valid && post_ready && post_pool == pool && post_block == number;
    assign release_me = release_valid && release_pool == pool && release_block == number;
    assign take_me    = block_valid[pool] && block_ready[pool] && block[pool] == number;
    // Number of free blocks of the pool: posted or returned, and not taken.
    logic [1:0] free = 0;
    logic put;
    assign put = (post_valid && post_ready && !bad_post && post_pool == pool) || (returned && release_pool == pool);
    always_ff @(posedge clk) begin
        if (post_me && !posted) begin
            posted <= 1'b1;
            queued <= 1'b1;
            released <= 0;
        end
        if (take_me) begin
            queued <= 1'b0;
            out    <= 1'b1;
        end
        if (release_me && out) begin
            released <= released + 1'b1;
            if (released == UNITS - 1) begin
                released <= 0;
                out      <= 1'b0;
                queued   <= 1'b1;
            end
        end
        free <= free + 2'(put) - 2'(block_valid[pool] && block_ready[pool]);
        if (rst) {posted, queued, out, released, free} <= '0;
    end

    // The block returns exactly at its M-th release.
    recycle_exact: assert property (first || !release_me || returned == (out && released == UNITS - 1));
    recycle_counted: assert property (first || !release_me || counted == out);
    // Invalid releases are refused and not counted.
    recycle_refused: assert property (first || !release_me || bad_release == !out);
    recycle_below: assert property (first || released < UNITS);
    // Only a block that is free is handed out, and by its own pool only: block[] has numbers of that pool.
    recycle_free_only: assert property (first || !(block_valid[pool] && block[pool] == number) || queued);
    recycle_not_both: assert property (first || !(queued && out));
    // No block is lost: the queue has as many as are free, and there is always room.
    recycle_none_lost: assert property (first || block_valid[pool] == (free != 0));
    recycle_room: assert property (first || free <= BLOCKS);
    recycle_queued_is_free: assert property (first || !queued || free != 0);
    // A block is posted only once.
    recycle_post_once: assert property (first || !post_me || bad_post == posted);
    recycle_post_waits: assert property (first || post_ready || counted);
endmodule
