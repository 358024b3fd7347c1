// npe_convert: outputs each unit of a block once, in order and without a gap.
module f_convert (
    input logic clk, reset, block_valid, unit_ready,
    input logic [1:0] block
);
    localparam int UNITS = 4;
    logic first = 1'b1;
    always_ff @(posedge clk) first <= 1'b0;
    logic rst;
    assign rst = first || reset;

    logic block_ready, unit_valid;
    logic [3:0] unit;
    npe_convert #(.BLOCKS(4), .UNITS(UNITS)) dut (.*);

    logic [1:0] mine = 0;
    logic [2:0] given = UNITS;   // units of it that were given
    always_ff @(posedge clk) begin
        if (unit_valid && unit_ready) given <= given + 1'b1;
        if (block_valid && block_ready) begin
            mine  <= block;
            given <= 0;
        end
        if (rst) given <= UNITS;
    end

    convert_order: assert property (first || !unit_valid || unit == {mine, given[1:0]});
    convert_exact: assert property (first || unit_valid == (given != UNITS));
    convert_whole: assert property (first || !(block_valid && block_ready) || given == UNITS
        || (given == UNITS - 1 && unit_valid && unit_ready));
    convert_no_gap: assert property (first || block_ready == (given == UNITS || (given == UNITS - 1 && unit_ready)));
endmodule
