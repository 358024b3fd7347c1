// npe_ring with 64 bits a beat: commands are offered in the order of their entries, as many as the host has told of. Each
// entry contains its own place.
module f_ring (
    input logic clk, reset, start, bell, arready, answer, offer_ready,
    input logic [0:0] bell_thread,
    input logic [55:0] line,
    input logic [15:0] count,
    input logic [1:0] rresp
);
    logic first = 1'b1;
    always_ff @(posedge clk) first <= 1'b0;
    logic rst;
    assign rst = first || reset;

    logic start_now, bad_bell, arvalid, rlast, rvalid, offer_valid, failed, busy;
    logic [63:0] value, araddr, rdata;
    logic [7:0] arlen;
    logic [0:0] thread;
    logic [56:0] command;
    npe_ring #(.T(2), .W(64)) dut (.start(start_now), .bell(bell_now), .*);

    // A ring of 32 entries begins only while none has a command.
    logic [31:0] told = 0, done = 0;
    logic [1:0] on = 0;
    assign start_now = start && told[bell_thread*16+:16] == done[bell_thread*16+:16];
    // The count never goes back.
    logic bell_now;
    logic [15:0] ahead, told_here, done_here;
    assign ahead    = count - done[bell_thread*16+:16];
    assign bell_now = bell && !start_now && ahead >= 16'(told[bell_thread*16+:16] - done[bell_thread*16+:16]);
    assign value = start_now ? {line, 4'd0, 4'd5} : 64'(count);
    always_ff @(posedge clk) begin
        for (int t = 0; t < 2; t++) begin
            if (bell_now && !bad_bell && bell_thread == 1'(t)) told[t*16+:16] <= count;
            if (offer_valid && offer_ready && thread == 1'(t)) done[t*16+:16] <= done[t*16+:16] + 1'b1;
            if (start_now && bell_thread == 1'(t)) {on[t], told[t*16+:16], done[t*16+:16]} <= {1'b1, 32'd0};
        end
        if (rst) {on, told, done} <= '0;
    end

    // Memory: one burst at a time.
    logic [8:0] left = 0;
    logic [4:0] place = 0;
    assign rvalid = answer && left != 0;
    assign rlast  = left == 1;
    assign rdata  = 64'(place);
    always_ff @(posedge clk) begin
        if (arvalid && arready) {left, place} <= {9'(arlen) + 9'd1, araddr[7:3]};
        else if (rvalid) {left, place} <= {left - 1'b1, place + 1'b1};
        if (rst) left <= '0;
    end

    assign told_here = told[thread*16+:16];
    assign done_here = done[thread*16+:16];
    ring_order: assert property (first || !offer_valid || command[4:0] == done_here[4:0]);
    ring_not_more: assert property (first || !offer_valid || told_here != done_here);
    ring_none_lost: assert property (first || busy || told == done);
    ring_bell: assert property (first || !bell_now || bad_bell == (!on[bell_thread] || ahead > 32));
    ring_one_burst: assert property (first || !arvalid || left == 0);
    ring_within: assert property (first || !arvalid || 9'(arlen) + 9'(araddr[7:3]) < 32);
endmodule
