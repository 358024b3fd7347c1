// Conversion of blocks to units: takes the number of a block and outputs the numbers of its units, one each clock,
// without a gap between blocks. A unit's number is {block, unit in the block}; multiplied by the unit's size it is the
// offset in the pool.
module npe_convert #(
    parameter int BLOCKS = 16,
    parameter int UNITS  = 1024,            // a block's; a power of two, at least 2
    localparam int BW    = $clog2(BLOCKS),
    localparam int UW    = BW + $clog2(UNITS)
) (
    input  logic          clk,
    input  logic          rst,
    input  logic          block_valid,
    output logic          block_ready,
    input  logic [BW-1:0] block,
    output logic          unit_valid,
    input  logic          unit_ready,
    output logic [UW-1:0] unit
);
    logic          open;
    logic [UW-1:0] next;
    logic          last;

    // All of the lower bits set: this is unit M - 1.
    assign last        = open && unit_ready && (&next[UW-BW-1:0]);
    assign block_ready = !open || last;
    assign unit_valid  = open;
    assign unit        = next;

    always_ff @(posedge clk) begin
        if (rst) begin
            open <= 1'b0;
        end else if (block_valid && block_ready) begin
            open <= 1'b1;
        end else if (last) begin
            open <= 1'b0;
        end
        if (block_valid && block_ready) next <= {block, {(UW - BW) {1'b0}}};
        else if (open && unit_ready) next <= next + 1'b1;
    end
endmodule
