// Selects one of N values. Each is padded to a power of two, so that its place is its number shifted: a synthesizer that
// finds a product there may use a multiplier.
module npe_select #(
    parameter int N     = 8,
    parameter int WIDTH = 8,
    localparam int W    = (N == 1) ? 1 : $clog2(N)
) (
    input  logic [N*WIDTH-1:0] all,
    input  logic [W-1:0]       at,
    output logic [WIDTH-1:0]   one
);
    localparam int STEP = 1 << $clog2(WIDTH);

    logic [N*STEP-1:0] padded;
    for (genvar n = 0; n < N; n++) begin : g_pad
        assign padded[n*STEP+:STEP] = STEP'(all[n*WIDTH+:WIDTH]);
    end
    assign one = padded[at*STEP+:WIDTH];
endmodule
