// Round robin: picks the next ready requester after the one taken last.
module npe_pick #(
    parameter int N  = 8,
    localparam int W = (N == 1) ? 1 : $clog2(N)
) (
    input  logic         clk,
    input  logic         rst,
    input  logic [N-1:0] ready,
    input  logic         taken,   // the picked requester is taken, so the turn moves on
    output logic         any,
    output logic [W-1:0] pick
);
    logic [W-1:0] last;

    assign any = |ready;
    always_comb begin
        pick = '0;
        for (int i = N - 1; i >= 0; i--) if (ready[i]) pick = W'(i);
        for (int i = N - 1; i >= 0; i--) if (ready[i] && W'(i) > last) pick = W'(i);
    end

    always_ff @(posedge clk) begin
        if (rst) last <= W'(N - 1);
        else if (taken && any) last <= pick;
    end
endmodule
