// PCIe shim: turns AXI4 bursts into PCIe's packets (TLPs) and back, and requests of the host into AXI4-Lite accesses.
//
// A TLP is its header, beside the first beat, and its payload, whose first byte is the lowest of the first beat; the
// PCIe core of a chip adds the rest. Header: the four words of the specification, the first one highest.
//
// Writes are stored until a TLP is whole, since its length comes first. Reads: one at a time of each AXI ID, which is
// the tag; bursts must not exceed the link's read request size. Of the registers only whole ones can be accessed, 8
// bytes at a time. Completions do not pass writes; a read that is never completed is never answered.
module npe_pcie #(
    parameter int W       = 512,
    parameter int IDW     = 4,             // bits of an AXI ID
    parameter int PAYLOAD = 256,           // bytes a write has at most: the link's maximum, a power of two
    localparam int WB     = W / 8
) (
    input  logic           clk,
    input  logic           rst,
    input  logic [15:0]    id,             // bus, device, function
    // To the PCIe core and from it.
    output logic           tx_valid,
    input  logic           tx_ready,
    output logic           tx_first,
    output logic           tx_last,
    output logic [127:0]   tx_header,
    output logic [W-1:0]   tx_data,
    input  logic           rx_valid,
    output logic           rx_ready,
    input  logic           rx_first,
    input  logic           rx_last,
    input  logic [127:0]   rx_header,
    input  logic [W-1:0]   rx_data,
    // The engine's memory interface.
    input  logic [63:0]    awaddr,
    input  logic           awvalid,
    output logic           awready,
    input  logic [W-1:0]   wdata,
    input  logic [WB-1:0]  wstrb,          // no gaps; none before the last beat is partial
    input  logic           wlast,
    input  logic           wvalid,
    output logic           wready,
    output logic           bvalid,
    input  logic           bready,
    input  logic [IDW-1:0] arid,
    input  logic [63:0]    araddr,
    input  logic [7:0]     arlen,
    input  logic           arvalid,
    output logic           arready,
    output logic [IDW-1:0] rid,
    output logic [W-1:0]   rdata,
    output logic [1:0]     rresp,
    output logic           rlast,
    output logic           rvalid,
    input  logic           rready,
    // The engine's registers, which take address and data of a write together.
    output logic [11:0]    reg_awaddr,
    output logic           reg_awvalid,
    input  logic           reg_awready,
    output logic [63:0]    reg_wdata,
    output logic [11:0]    reg_araddr,
    output logic           reg_arvalid,
    input  logic           reg_arready,
    input  logic [63:0]    reg_rdata,
    input  logic [1:0]     reg_rresp,
    input  logic           reg_rvalid,
    output logic           refused        // a request of the host was not for a whole register
);
    localparam int BEAT_LOG = $clog2(WB);
    localparam int DWS      = WB / 4;               // words a beat
    localparam int BEATS    = PAYLOAD / WB;
    localparam logic [4:0] MEMORY = 5'b00000, COMPLETION = 5'b01010;

    // Words 0 to 3 of a request: those of addresses below 4 GiB have three.
    function automatic logic [127:0] request(input logic write, input logic [63:0] at, input logic [9:0] words,
            input logic [7:0] tag, input logic [7:0] enables);
        logic high;
        high    = at[63:32] != '0;
        request = {1'b0, write, high, MEMORY, 14'd0, words, id, tag, enables, high ? at[63:32] : at[31:0],
            high ? at[31:0] : 32'd0};
    endfunction

    // Writes: beats are stored, and their header when the TLP is whole.
    logic           open, store, whole, data_room, head_room, head_valid, head_done, data_valid, data_done;
    logic [63:0]    at, begins;
    logic [9:0]     words, so_far;
    logic [BEAT_LOG:0] bytes;
    logic [3:0]     final_enables;
    logic [7:0]     enables;
    logic [W-1:0]   w_data;
    logic [127:0]   w_header;
    logic [9:0]     w_beats;

    assign awready = !open && (!bvalid || bready);
    assign wready  = open && data_room && head_room;
    assign store   = wvalid && wready;
    assign whole   = wlast || 32'(at[$clog2(PAYLOAD)-1:0]) == PAYLOAD - WB;
    always_comb begin
        bytes = '0;
        for (int i = 0; i < WB; i++) if (wstrb[i]) bytes = (BEAT_LOG + 1)'(i + 1);
    end
    assign words = so_far + 10'((32'(bytes) + 32'd3) >> 2);
    assign final_enables = 4'hf >> (2'd0 - bytes[1:0]);
    assign enables = (words == 10'd1) ? {4'h0, final_enables} : {final_enables, 4'hf};

    always_ff @(posedge clk) begin
        if (rst) begin
            open   <= 1'b0;
            so_far <= '0;
            bvalid <= 1'b0;
        end else begin
            if (awvalid && awready) open <= 1'b1;
            else if (store && wlast) open <= 1'b0;
            if (store) so_far <= whole ? '0 : words;
            if (store && wlast) bvalid <= 1'b1;
            else if (bready) bvalid <= 1'b0;
        end
        if (awvalid && awready) {at, begins} <= {awaddr, awaddr};
        else if (store) begin
            at <= at + 64'(WB);
            if (whole) begins <= at + 64'(WB);
        end
    end
    npe_fifo #(
        .WIDTH(W),
        .DEPTH(2 * BEATS)
    ) data_queue (
        .clk,
        .rst,
        .in_valid (store),
        .in_ready (data_room),
        .in_data  (wdata),
        .out_valid(data_valid),
        .out_ready(data_done),
        .out_data (w_data)
    );
    npe_fifo #(
        .WIDTH(128),
        .DEPTH(4)
    ) head_queue (
        .clk,
        .rst,
        .in_valid (store && whole),
        .in_ready (head_room),
        .in_data  (request(1'b1, begins, words, 8'd0, enables)),
        .out_valid(head_valid),
        .out_ready(head_done),
        .out_data (w_header)
    );
    // A header's beats, from its number of words.
    assign w_beats = 10'((32'(w_header[105:96]) + 32'(DWS - 1)) / 32'(DWS));

    // Reads under way, and the beats of each that are still to come.
    localparam int IDS = 1 << IDW;
    logic [IDS-1:0]   out;
    logic [IDS*9-1:0] left;
    logic             ask_valid, ask_done;
    logic [127:0]     ask_header;

    assign arready    = !out[arid] && (!ask_valid || ask_done);
    always_ff @(posedge clk) begin
        if (rst) begin
            out       <= '0;
            ask_valid <= 1'b0;
        end else begin
            if (arvalid && arready) out[arid] <= 1'b1;
            if (arvalid && arready) ask_valid <= 1'b1;
            else if (ask_done) ask_valid <= 1'b0;
            if (rvalid && rready && rlast) out[rid] <= 1'b0;
        end
        for (int i = 0; i < IDS; i++) begin
            if (arvalid && arready && arid == IDW'(i)) left[i*9+:9] <= 9'(arlen) + 9'd1;
            if (rvalid && rready && rid == IDW'(i)) left[i*9+:9] <= left[i*9+:9] - 9'd1;
        end
        if (arvalid && arready) begin
            ask_header      <= request(1'b0, araddr, 10'((32'(arlen) + 32'd1) << (BEAT_LOG - 2)), 8'(arid), 8'hff);
        end
    end

    // From the host. A TLP's kind is known at its first beat, and kept for the others.
    typedef enum logic [1:0] {
        SKIP,
        ANSWER,
        FAILED
    } kind_t;
    kind_t          kind, was;
    logic [IDW-1:0] tag, tag_was;
    logic           for_memory, with_data, is_answer, four, whole_register, poisoned, poisoned_was;
    logic           write_here, read_here, wrong_read, is_write, is_read;

    assign with_data      = rx_header[126];
    assign four           = rx_header[125];
    assign for_memory     = rx_header[124:120] == MEMORY;
    assign is_answer      = rx_header[124:120] == COMPLETION;
    assign whole_register = rx_header[105:96] == 10'd2 && rx_header[71:64] == 8'hff
        && !(four ? rx_header[2] : rx_header[34]);
    always_comb begin
        kind     = was;
        tag      = tag_was;
        poisoned = poisoned_was;
        if (rx_first) begin
            tag      = rx_header[40+:IDW];
            poisoned = rx_header[110];
            kind     = SKIP;
            if (is_answer && out[tag]) kind = (with_data && rx_header[79:77] == 3'd0) ? ANSWER : FAILED;
        end
    end

    logic said_valid, said_bad, said_done, wait_register;
    assign is_write    = rx_valid && rx_first && for_memory && with_data;
    assign is_read     = rx_valid && rx_first && for_memory && !with_data;
    assign write_here  = is_write && whole_register;
    assign read_here   = is_read && whole_register;
    assign wrong_read  = is_read && !whole_register;
    assign reg_awaddr  = {four ? rx_header[11:3] : rx_header[43:35], 3'd0};
    assign reg_awvalid = write_here;
    assign reg_araddr  = reg_awaddr;
    assign reg_arvalid = read_here && !said_valid && !wait_register;
    assign refused     = rx_valid && rx_ready && ((is_write && !whole_register) || wrong_read);

    // The answers to a read that failed are made here, and its TLP waits until they are.
    assign rvalid = rx_valid && (kind == ANSWER || kind == FAILED);
    assign rid    = tag;
    assign rdata  = rx_data;
    assign rresp  = (kind == FAILED || poisoned) ? 2'b10 : 2'b00;
    assign rlast  = left[rid*9+:9] == 9'd1;
    always_comb begin
        rx_ready = 1'b1;
        if (write_here) rx_ready = reg_awready;
        else if (read_here) rx_ready = reg_arvalid && reg_arready;
        else if (wrong_read) rx_ready = !said_valid && !wait_register;
        else if (kind == ANSWER) rx_ready = rready;
        else if (kind == FAILED) rx_ready = rready && rlast;
    end
    generate
        if (W == 64) begin : g_one
            assign reg_wdata = rx_data;
        end else begin : g_more
            assign reg_wdata = rx_data[63:0];
        end
    endgenerate

    // Answers to the host: one at a time, which waits for the writes before it.
    logic [63:0]  said_data;
    logic [31:0]  said_to;
    logic [3:0]   queued, behind;
    logic         write_sent;
    logic [127:0] said_header;

    assign said_header = {1'b0, !said_bad, 1'b0, COMPLETION, 14'd0, said_bad ? 10'd0 : 10'd2, id,
        said_bad ? 3'd1 : 3'd0, 1'b0, 12'd8, said_to, 32'd0};
    always_ff @(posedge clk) begin
        if (rst) begin
            was           <= SKIP;
            said_valid    <= 1'b0;
            wait_register <= 1'b0;
            queued        <= '0;
        end else begin
            if (rx_valid) was <= (rx_ready && rx_last) ? SKIP : kind;
            if (rx_valid && rx_ready && read_here) wait_register <= 1'b1;
            else if (reg_rvalid) wait_register <= 1'b0;
            if (reg_rvalid || (wrong_read && rx_ready)) said_valid <= 1'b1;
            else if (said_done) said_valid <= 1'b0;
            queued <= queued + 4'(store && whole) - 4'(write_sent);
        end
        {tag_was, poisoned_was} <= {tag, poisoned};
        if (read_here || wrong_read) begin
            if (rx_ready) said_to <= {rx_header[95:72], 1'b0, reg_araddr[6:0]};
        end
        if (reg_rvalid) {said_data, said_bad} <= {reg_rdata, reg_rresp[1]};
        else if (wrong_read && rx_ready) said_bad <= 1'b1;
        if (!said_valid) behind <= queued + 4'(store && whole) - 4'(write_sent);
        else behind <= behind - 4'(write_sent && behind != 0);
    end

    // To the host: whole TLPs, reads and writes in turn.
    logic       load, writing, writes, asks, says, asked, ends;
    logic [9:0] sent;
    assign load   = !tx_valid || tx_ready;
    assign says   = !writing && said_valid && behind == 0;
    assign asks   = !writing && !says && ask_valid && !(asked && head_valid);
    assign writes = writing || (!says && !asks && head_valid);
    assign ends   = sent + 10'd1 == w_beats;
    assign said_done  = load && says;
    assign ask_done   = load && asks;
    assign data_done  = load && writes;
    assign head_done  = data_done && ends;
    assign write_sent = head_done;
    always_ff @(posedge clk) begin
        if (rst) begin
            tx_valid <= 1'b0;
            writing  <= 1'b0;
            sent     <= '0;
            asked    <= 1'b0;
        end else begin
            if (load) tx_valid <= says || asks || writes;
            if (data_done) begin
                writing <= !ends;
                sent    <= ends ? '0 : sent + 10'd1;
            end
            if (ask_done) asked <= 1'b1;
            else if (head_done) asked <= 1'b0;
        end
        if (load) begin
            tx_first  <= !writing;
            tx_last   <= !writes || ends;
            tx_header <= says ? said_header : asks ? ask_header : w_header;
            tx_data   <= says ? W'(said_data) : w_data;
        end
    end

    logic unused;
    assign unused = &{1'b0, data_valid, rx_header, reg_rresp[0], awaddr, at};
endmodule
