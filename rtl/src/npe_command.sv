// Commands: packets that threads hand back, in a queue for each thread, served round robin. A register write to a queue
// never waits: a command written to a full queue is lost and reported. If such writes waited for the device's own reads
// of memory, it could deadlock: on PCIe, read completions do not pass writes. Commands from rings wait for room.
module npe_command #(
    parameter int T        = 8,
    parameter int DEPTH    = 64,                      // a power of two
    parameter int UW       = 14,                      // bits of a unit's number
    parameter int UNIT_LOG = 11,
    parameter int PORTS    = 16,
    localparam int TW      = (T == 1) ? 1 : $clog2(T)
) (
    input  logic            clk,
    input  logic            rst,
    input  logic            write,
    input  logic [TW-1:0]   write_thread,
    input  logic [56:0]     write_command,   // in the format of COMMAND
    output logic            lost,
    // Commands from rings, which can wait.
    input  logic            offer_valid,
    output logic            offer_ready,
    input  logic [TW-1:0]   offer_thread,
    input  logic [56:0]     offer_command,
    output logic [T*32-1:0] taken,
    // Units to release, not sent.
    output logic            release_valid,
    input  logic            release_ready,
    output logic            no_port,         // one clock each, when taken
    output logic            bad,
    output logic            bad_send,
    // Packets to send.
    output logic            send_valid,
    input  logic            send_ready,
    output logic [TW-1:0]   thread,
    output logic [UW-1:0]   unit,
    output logic [31:0]     offset,
    output logic [15:0]     len,
    output logic [7:0]      port,
    output logic            busy
);
    localparam int DW = $clog2(DEPTH);
    localparam int FROM = UNIT_LOG + UW;
    localparam int AW = $clog2(T * DEPTH);

    logic [56:0]         mem[T*DEPTH];
    logic [T*(DW+1)-1:0] in;              // commands put in; `taken` counts those taken out
    logic [T-1:0]        has;
    logic                any, next, valid, done;
    logic [TW-1:0]       pick, put_thread;
    logic [56:0]         command;
    logic                drop, beyond, crosses, full, put;
    logic [DW:0]         in_here, used;
    logic [31:0]         taken_here;

    for (genvar t = 0; t < T; t++) begin : g_thread
        assign has[t] = in[t*(DW+1)+:DW+1] != taken[t*32+:DW+1];
    end
    assign put_thread  = write ? write_thread : offer_thread;
    assign in_here     = in[put_thread*(DW+1)+:DW+1];
    assign used        = in_here - taken[put_thread*32+:DW+1];
    assign full        = used == (DW + 1)'(DEPTH);
    assign lost        = write && full;
    assign offer_ready = !write && !full;
    assign put         = (write || offer_valid) && !full;

    npe_pick #(
        .N(T)
    ) turn (
        .clk,
        .rst,
        .ready(has),
        .taken(next),
        .any,
        .pick
    );
    assign next       = any && (!valid || done);
    assign taken_here = taken[pick*32+:32];

    always_ff @(posedge clk) begin
        if (put) mem[AW'({put_thread, in_here[DW-1:0]})] <= write ? write_command : offer_command;
        if (next) command <= mem[AW'({pick, taken_here[DW-1:0]})];
        if (next) thread <= pick;
        if (rst) begin
            in    <= '0;
            valid <= 1'b0;
            taken <= '0;
        end else begin
            for (int t = 0; t < T; t++) begin
                if (put && put_thread == TW'(t)) in[t*(DW+1)+:DW+1] <= in_here + 1'b1;
                if (next && pick == TW'(t)) taken[t*32+:32] <= taken_here + 1'b1;
            end
            if (next || done) valid <= next;
        end
    end

    assign {drop, port, len, offset} = command;
    assign unit    = offset[FROM-1:UNIT_LOG];
    generate
        if (FROM < 32) begin : g_narrow
            assign beyond = |offset[31:FROM];
        end else begin : g_wide
            assign beyond = 1'b0;
        end
    endgenerate
    assign crosses = len == 0 || 17'(offset[UNIT_LOG-1:0]) + 17'(len) > 17'(1 << UNIT_LOG);

    always_comb begin
        release_valid = 1'b0;
        send_valid    = 1'b0;
        done          = 1'b0;
        {no_port, bad, bad_send} = '0;
        if (valid) begin
            if (beyond) begin
                done = 1'b1;
                bad  = 1'b1;
            end else if (drop || 32'(port) >= 32'(PORTS) || crosses) begin
                release_valid = 1'b1;
                done          = release_ready;
                no_port       = done && !drop && 32'(port) >= 32'(PORTS);
                bad_send      = done && !drop && !no_port;
                bad           = bad_send;
            end else begin
                send_valid = 1'b1;
                done       = send_ready;
            end
        end
    end
    assign busy = valid || any;
endmodule
