// npe_fifo: no entry is lost, duplicated or reordered.
module f_fifo (
    input logic clk, reset, in_valid, out_ready, mark,
    input logic [2:0] in_data
);
    localparam int DEPTH = 4;
    logic first = 1'b1;
    always_ff @(posedge clk) first <= 1'b0;
    logic rst;
    assign rst = first || reset;

    logic in_ready, out_valid;
    logic [2:0] out_data;
    npe_fifo #(.WIDTH(3), .DEPTH(DEPTH)) dut (.*);

    // The number of entries, and one entry, picked at any time: its value and the number of entries before it.
    logic [2:0] held = 0, before = 0, value = 0;
    logic marked = 0;
    logic push, pop;
    assign push = in_valid && in_ready;
    assign pop  = out_valid && out_ready;
    always_ff @(posedge clk) begin
        held <= held + 3'(push) - 3'(pop);
        if (push && mark && !marked) begin
            marked <= 1'b1;
            value  <= in_data;
            before <= held - 3'(pop);
        end else if (marked && pop) begin
            before <= before - 1'b1;
            if (before == 0) marked <= 1'b0;
        end
        if (rst) {held, marked} <= '0;
    end

    fifo_room: assert property (first || in_ready == (held != DEPTH));
    fifo_has: assert property (first || out_valid == (held != 0));
    fifo_order: assert property (first || !(marked && before == 0) || (out_valid && out_data == value));
endmodule
