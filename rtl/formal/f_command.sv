// npe_command: a host that respects `taken` loses no command; each command comes out once, and each thread's in order.
module f_command (
    input logic clk, reset, write, offer_valid, release_ready, send_ready, mark,
    input logic [0:0] write_thread, offer_thread,
    input logic [56:0] write_command, offer_command
);
    localparam int DEPTH = 2;
    logic first = 1'b1;
    always_ff @(posedge clk) first <= 1'b0;
    logic rst;
    assign rst = first || reset;

    logic lost, offer_ready, release_valid, no_port, bad, bad_send, send_valid, busy;
    logic [63:0] taken;
    logic [0:0] thread;
    logic [3:0] unit;
    logic [31:0] offset;
    logic [15:0] len;
    logic [7:0] port;
    npe_command #(.T(2), .DEPTH(DEPTH), .UW(4), .UNIT_LOG(8), .PORTS(4)) dut (.*);

    // Commands that the host has written and the engine has not taken; and those that came out.
    (* anyconst *) logic who;
    logic [2:0] sent = 0, out = 0;
    logic over, enters, leaves;
    assign over = write && write_thread == who && 3'(sent - taken[who*32+:3]) == DEPTH;
    assign enters = (write && write_thread == who && !lost) || (offer_valid && offer_ready && offer_thread == who);
    assign leaves = (release_valid && release_ready) || (send_valid && send_ready) || bad && !bad_send;
    always_ff @(posedge clk) begin
        if (enters) sent <= sent + 1'b1;
        if (leaves && thread == who) out <= out + 1'b1;
        if (rst) {sent, out} <= '0;
    end

    // One command, picked at any time, and the number of commands of its thread before it.
    logic marked = 0;
    logic [2:0] ahead = 0;
    logic [31:0] mine = 0;
    always_ff @(posedge clk) begin
        if (!marked && mark && enters) begin
            marked <= 1'b1;
            mine   <= write ? write_command[31:0] : offer_command[31:0];
            ahead  <= 3'(sent - out) - 3'(leaves && thread == who);
        end else if (marked && leaves && thread == who) begin
            ahead <= ahead - 1'b1;
            if (ahead == 0) marked <= 1'b0;
        end
        if (rst) marked <= 1'b0;
    end

    command_credit: assert property (first || !(lost && write_thread == who) || over);
    command_told: assert property (first || !over || lost);
    command_none_lost: assert property (first || busy || sent == out);
    command_order: assert property (first || !(marked && ahead == 0 && leaves && thread == who) || offset == mine);
    command_offer_waits: assert property (first || !(offer_valid && offer_ready) || !write);
    command_offer_kept: assert property (first || 3'(sent - taken[who*32+:3]) <= DEPTH);
    command_one: assert property (first || !(release_valid && send_valid));
    command_in_reach: assert property (first || !send_valid
        || (offset[31:12] == 0 && len != 0 && offset[7:0] + 17'(len) <= 256 && port < 4));
endmodule
