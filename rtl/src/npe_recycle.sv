// Recycling: a queue of free blocks for each pool, and a counter of released units for each block. The release that
// raises it to M puts the block back into the queue of its own pool.
//
// A block is posted once, directly into its queue, with its counter at zero. It is in use from when it is taken until it
// has counted M releases; a release to a block that is not in use is refused, so that no counter passes M.
module npe_recycle #(
    parameter int POOLS  = 8,
    parameter int BLOCKS = 16,               // a pool's; a power of two, at least 2
    parameter int UNITS  = 1024,             // a block's; a power of two, at least 2
    localparam int PW    = (POOLS == 1) ? 1 : $clog2(POOLS),
    localparam int BW    = $clog2(BLOCKS),
    localparam int CW    = $clog2(UNITS)
) (
    input  logic                clk,
    input  logic                rst,
    // The host posts a block.
    input  logic                post_valid,
    output logic                post_ready,
    input  logic [PW-1:0]       post_pool,
    input  logic [BW-1:0]       post_block,
    output logic                bad_post,
    // Releases of units: at most one each clock, never delayed.
    input  logic                release_valid,
    input  logic [PW-1:0]       release_pool,
    input  logic [BW-1:0]       release_block,
    output logic                bad_release,
    output logic                counted,
    output logic                returned,
    // Free blocks, of each pool.
    output logic [POOLS-1:0]    block_valid,
    input  logic [POOLS-1:0]    block_ready,
    output logic [POOLS*BW-1:0] block
);
    // By {pool, block}.
    localparam int N = POOLS * BLOCKS;
    localparam int AW = $clog2(N);
    localparam int SIZE = 1 << AW;

    logic [N-1:0]     posted, out;
    logic [CW-1:0]    count[SIZE];
    logic [AW-1:0]    at_post, at_release, at_count;
    logic             known_post, known_release, last;
    logic             post, put;
    logic [PW-1:0]    put_pool;
    logic [BW-1:0]    put_block;
    logic [POOLS-1:0] put_ready, put_here;

    assign at_post    = AW'({post_pool, post_block});
    assign at_release = AW'({release_pool, release_block});
    generate
        if (N == SIZE) begin : g_all
            assign known_post    = 1'b1;
            assign known_release = 1'b1;
        end else begin : g_some
            assign known_post    = at_post < AW'(N);
            assign known_release = at_release < AW'(N);
        end
    endgenerate

    // Compared before incrementing: if the count so far is M - 1, this release is the M-th.
    assign last        = count[at_release] == CW'(UNITS - 1);
    assign counted     = release_valid && known_release && out[at_release];
    assign bad_release = release_valid && !counted;
    assign returned    = counted && last;

    // Both write the counters. Releases cannot wait, posts can.
    assign post_ready = !counted;
    assign bad_post   = post_valid && post_ready && !(known_post && !posted[at_post]);
    assign post       = post_valid && post_ready && !bad_post;
    assign put        = returned || post;
    assign put_pool   = returned ? release_pool : post_pool;
    assign put_block  = returned ? release_block : post_block;

    assign at_count = counted ? at_release : at_post;
    always_ff @(posedge clk) begin
        if (counted || post) count[at_count] <= (post || last) ? '0 : count[at_release] + 1'b1;
    end

    always_ff @(posedge clk) begin
        if (rst) begin
            posted <= '0;
        end else if (post) begin
            posted[at_post] <= 1'b1;
        end
    end

    always_ff @(posedge clk) begin
        if (rst) begin
            out <= '0;
        end else begin
            for (int n = 0; n < N; n++) begin
                if (block_valid[n/BLOCKS] && block_ready[n/BLOCKS] && block[n/BLOCKS*BW+:BW] == BW'(n % BLOCKS))
                    out[n] <= 1'b1;
                if (returned && at_release == AW'(n)) out[n] <= 1'b0;
            end
        end
    end

    for (genvar p = 0; p < POOLS; p++) begin : g_pool
        assign put_here[p] = put && put_pool == PW'(p);
        npe_fifo #(
            .WIDTH(BW),
            .DEPTH(BLOCKS)
        ) free (
            .clk,
            .rst,
            .in_valid (put_here[p]),
            .in_ready (put_ready[p]),
            .in_data  (put_block),
            .out_valid(block_valid[p]),
            .out_ready(block_ready[p]),
            .out_data (block[p*BW+:BW])
        );
    end

    // Each block is in its queue at most once, so there is always room.
    logic unused;
    assign unused = &put_ready;
endmodule
