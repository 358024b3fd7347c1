// FIFO. An entry put in at one clock edge can be taken at the next.
module npe_fifo #(
    parameter int WIDTH = 8,
    parameter int DEPTH = 4  // a power of two, at least 2
) (
    input  logic             clk,
    input  logic             rst,
    input  logic             in_valid,
    output logic             in_ready,
    input  logic [WIDTH-1:0] in_data,
    output logic             out_valid,
    input  logic             out_ready,
    output logic [WIDTH-1:0] out_data
);
    localparam int A = $clog2(DEPTH);

    logic [WIDTH-1:0] mem[DEPTH];
    // One bit more than an index, which distinguishes full from empty.
    logic [A:0] head, tail;

    assign in_ready  = (tail - head) != (A + 1)'(DEPTH);
    assign out_valid = tail != head;
    assign out_data  = mem[head[A-1:0]];

    always_ff @(posedge clk) begin
        if (in_valid && in_ready) mem[tail[A-1:0]] <= in_data;
        if (rst) begin
            head <= '0;
            tail <= '0;
        end else begin
            if (in_valid && in_ready) tail <= tail + 1'b1;
            if (out_valid && out_ready) head <= head + 1'b1;
        end
    end
endmodule
