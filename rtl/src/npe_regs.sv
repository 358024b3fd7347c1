// Registers on AXI4-Lite, 64 bits wide; npe_map.sv defines them. Writes are of whole registers.
module npe_regs #(
    parameter int T            = 8,
    parameter int PORTS        = 16,
    parameter bit SHARED       = 1'b0,
    parameter int BLOCKS_LOG   = 4,
    parameter int UNITS_LOG    = 10,
    parameter int UNIT_LOG     = 11,
    parameter int COMMANDS_LOG = 6,
    parameter int OFFSET       = 256,
    parameter int UW           = 14,
    parameter int POOLS        = 8,
    parameter int BW           = 4,
    localparam int PW          = (POOLS == 1) ? 1 : $clog2(POOLS),
    localparam int TW          = (T == 1) ? 1 : $clog2(T)
) (
    input  logic                clk,
    input  logic                rst,
    input  logic [11:0]         awaddr,
    input  logic                awvalid,
    output logic                awready,
    input  logic [63:0]         wdata,
    input  logic [7:0]          wstrb,
    input  logic                wvalid,
    output logic                wready,
    output logic [1:0]          bresp,
    output logic                bvalid,
    input  logic                bready,
    input  logic [11:0]         araddr,
    input  logic                arvalid,
    output logic                arready,
    output logic [63:0]         rdata,
    output logic [1:0]          rresp,
    output logic                rvalid,
    input  logic                rready,
    // To the engine.
    output logic                clear,
    output logic                enable,
    output logic                by_port,
    output logic                hold,
    output logic [4:0]          channels,
    // BASE of the threads of a packet to write and of one to send.
    input  logic [TW-1:0]       grant_thread,
    output logic [63:0]         grant_base,
    input  logic [TW-1:0]       thread,
    output logic [63:0]         send_base,
    output logic [PORTS*TW-1:0] port_map,
    output logic                post_valid,
    input  logic                post_ready,
    output logic [PW-1:0]       post_pool,
    output logic [BW-1:0]       post_block,
    output logic                command,
    output logic [TW-1:0]       command_thread,
    output logic [56:0]         command_data,
    output logic                ring_set,        // of that thread, to the value written; as the doorbell
    output logic                bell,
    output logic [63:0]         written,
    // From the engine: each event for one clock.
    input  logic                busy,
    input  logic                write_failed,
    input  logic                read_failed,
    input  logic                bad_command,
    input  logic                command_lost,
    input  logic                bad_post,
    input  logic                bad_release,
    input  logic                too_long,
    input  logic                damaged,
    input  logic                dropped,
    input  logic [TW-1:0]       dropped_thread,
    input  logic                sent,
    input  logic                no_port,
    input  logic                send_failed,
    input  logic                bad_send,
    input  logic                released,
    input  logic                returned,
    input  logic [T-1:0]        next_valid,
    input  logic [T*UW-1:0]     next,
    input  logic [T*32-1:0]     seq,
    input  logic [T*32-1:0]     taken
);
    // A write is done when its address and its data are there, and its destination has room: only POST can have none,
    // for one clock at a time.
    logic          write, at_post, at_clear;
    logic          beyond_post;
    logic [4:0]    w_pool;
    logic [15:0]   w_block;
    logic [4:0]    w_channels;
    logic [3:0]    w_index, r_index;
    logic          w_here, r_here;
    logic [51:0]   base[T];

    assign grant_base = {base[grant_thread], 12'd0};
    assign send_base  = {base[thread], 12'd0};

    assign at_post  = awaddr == npe_map::POST;
    assign write    = awvalid && wvalid && (!bvalid || bready) && !(at_post && post_valid);
    assign awready  = write;
    assign wready   = write;
    assign w_index  = awaddr[6:3];
    assign w_here   = 32'(w_index) < 32'(T);
    assign at_clear = write && awaddr == npe_map::CTRL && wdata[npe_map::CTRL_CLEAR];
    assign clear    = at_clear && !busy && !enable;
    assign w_channels  = wdata[npe_map::CTRL_CHANNELS+:npe_map::CTRL_CHANNELS_BITS];
    assign w_pool      = wdata[npe_map::POST_POOL+:npe_map::POST_POOL_BITS];
    assign w_block     = wdata[npe_map::POST_BLOCK+:npe_map::POST_BLOCK_BITS];
    assign beyond_post = 32'(w_pool) >= 32'(POOLS) || (w_block >> BW) != '0;

    assign command        = write && awaddr[11:7] == npe_map::COMMAND[11:7] && w_here;
    assign command_thread = w_index[TW-1:0];
    assign command_data   = wdata[56:0];
    assign ring_set       = write && awaddr[11:7] == npe_map::RING[11:7] && w_here;
    assign bell           = write && awaddr[11:7] == npe_map::DOORBELL[11:7] && w_here;
    assign written        = wdata;

    logic known;
    always_comb begin
        case (awaddr[11:7])
            npe_map::BASE[11:7], npe_map::COMMAND[11:7], npe_map::RING[11:7], npe_map::DOORBELL[11:7]: known = w_here;
            npe_map::PORT_MAP[11:7]:            known = 32'(w_index) < 32'(PORTS);
            default:                   known = awaddr == npe_map::CTRL || awaddr == npe_map::STATUS || at_post;
        endcase
    end

    always_ff @(posedge clk) begin
        if (rst) begin
            bvalid <= 1'b0;
            bresp  <= 2'b00;
        end else if (write) begin
            bvalid <= 1'b1;
            bresp  <= (known && wstrb == 8'hff) ? 2'b00 : 2'b10;
        end else if (bready) begin
            bvalid <= 1'b0;
        end
    end

    always_ff @(posedge clk) begin
        if (rst) begin
            {enable, by_port, hold} <= '0;
            channels                <= '0;
            post_valid              <= 1'b0;
        end else begin
            if (write && awaddr == npe_map::CTRL) begin
                enable   <= wdata[npe_map::CTRL_ENABLE];
                by_port  <= wdata[npe_map::CTRL_BY_PORT];
                hold     <= wdata[npe_map::CTRL_HOLD];
                channels <= (w_channels > 5'(T)) ? 5'(T) : w_channels;
            end
            if (write && at_post && !beyond_post) post_valid <= 1'b1;
            else if (post_ready) post_valid <= 1'b0;
        end
        if (write && at_post) begin
            post_pool  <= w_pool[PW-1:0];
            post_block <= w_block[BW-1:0];
        end
        if (write && awaddr[11:7] == npe_map::BASE[11:7] && w_here) base[w_index[TW-1:0]] <= wdata[63:12];
        for (int p = 0; p < PORTS; p++)
            if (write && awaddr[11:7] == npe_map::PORT_MAP[11:7] && 32'(w_index) == p) port_map[p*TW+:TW] <= wdata[TW-1:0];
    end

    // Errors and counters.
    logic [6:0]      errors;
    logic [63:0]     n_too_long, n_damaged, n_sent, n_no_port, n_tx_error, n_released, n_returned;
    logic [T*32-1:0] n_dropped;
    logic [31:0]     dropped_here;
    assign dropped_here = n_dropped[dropped_thread*32+:32];
    always_ff @(posedge clk) begin
        if (rst || clear) begin
            errors <= '0;
        end else begin
            errors <= (errors & ~((write && awaddr == npe_map::STATUS) ? wdata[npe_map::STATUS_WRITE_ERROR+:7] : 7'd0))
                | {at_clear && !clear, bad_release, bad_post || (write && at_post && beyond_post), command_lost,
                    bad_command, read_failed, write_failed};
        end
        if (rst || clear) begin
            {n_too_long, n_damaged, n_sent, n_no_port, n_tx_error, n_released, n_returned} <= '0;
            n_dropped <= '0;
        end else begin
            n_too_long <= n_too_long + 64'(too_long);
            n_damaged  <= n_damaged + 64'(damaged);
            n_sent     <= n_sent + 64'(sent);
            n_no_port  <= n_no_port + 64'(no_port);
            n_tx_error <= n_tx_error + 64'(send_failed) + 64'(bad_send);
            n_released <= n_released + 64'(released);
            n_returned <= n_returned + 64'(returned);
            for (int t = 0; t < T; t++) if (dropped && dropped_thread == TW'(t)) n_dropped[t*32+:32] <= dropped_here + 1'b1;
        end
    end

    // Reads.
    logic [63:0] value, params;
    logic [UW-1:0] next_here;
    logic        read, r_known;

    assign read    = arvalid && arready;
    assign arready = !rvalid || rready;
    assign r_index = araddr[6:3];
    assign r_here  = 32'(r_index) < 32'(T);
    always_comb begin
        params = '0;
        params[npe_map::PARAMS_THREADS+:npe_map::PARAMS_THREADS_BITS]           = (npe_map::PARAMS_THREADS_BITS)'(T);
        params[npe_map::PARAMS_SHARED]                                 = SHARED;
        params[npe_map::PARAMS_PORTS+:npe_map::PARAMS_PORTS_BITS]               = (npe_map::PARAMS_PORTS_BITS)'(PORTS);
        params[npe_map::PARAMS_BLOCKS_LOG+:npe_map::PARAMS_BLOCKS_LOG_BITS]     = (npe_map::PARAMS_BLOCKS_LOG_BITS)'(BLOCKS_LOG);
        params[npe_map::PARAMS_UNITS_LOG+:npe_map::PARAMS_UNITS_LOG_BITS]       = (npe_map::PARAMS_UNITS_LOG_BITS)'(UNITS_LOG);
        params[npe_map::PARAMS_UNIT_LOG+:npe_map::PARAMS_UNIT_LOG_BITS]         = (npe_map::PARAMS_UNIT_LOG_BITS)'(UNIT_LOG);
        params[npe_map::PARAMS_COMMANDS_LOG+:npe_map::PARAMS_COMMANDS_LOG_BITS] = (npe_map::PARAMS_COMMANDS_LOG_BITS)'(COMMANDS_LOG);
        params[npe_map::PARAMS_DATA_OFFSET+:npe_map::PARAMS_DATA_OFFSET_BITS]   = (npe_map::PARAMS_DATA_OFFSET_BITS)'(OFFSET);
    end
    npe_select #(
        .N    (T),
        .WIDTH(UW)
    ) next_of (
        .all(next),
        .at (r_index[TW-1:0]),
        .one(next_here)
    );
    always_comb begin
        value   = '0;
        r_known = 1'b1;
        case (araddr[11:7])
            npe_map::BASE[11:7]:       if (r_here) value = {base[r_index[TW-1:0]], 12'd0};
            npe_map::PORT_MAP[11:7]:   if (32'(r_index) < 32'(PORTS)) value = 64'(port_map[r_index*TW+:TW]);
            npe_map::NEXT[11:7]:       if (r_here) value = {next_valid[r_index[TW-1:0]], 63'(next_here)};
            npe_map::DISPATCHED[11:7]: if (r_here) value = 64'(seq[r_index*32+:32]);
            npe_map::DROPPED[11:7]:    if (r_here) value = 64'(n_dropped[r_index*32+:32]);
            npe_map::TAKEN[11:7]:      if (r_here) value = 64'(taken[r_index*32+:32]);
            default:
            case (araddr)
                npe_map::ID:          value = {32'h4259574e, npe_map::VERSION};
                npe_map::PARAMS:      value = params;
                npe_map::CTRL:        value = 64'({channels, 5'd0, hold, by_port, enable});
                npe_map::STATUS:      value = 64'({errors, 7'd0, busy});
                npe_map::RX_TOO_LONG: value = n_too_long;
                npe_map::RX_ERROR:    value = n_damaged;
                npe_map::TX_SENT:     value = n_sent;
                npe_map::TX_NO_PORT:  value = n_no_port;
                npe_map::TX_ERROR:    value = n_tx_error;
                npe_map::RELEASED:    value = n_released;
                npe_map::RETURNED:    value = n_returned;
                default:     r_known = 1'b0;
            endcase
        endcase
    end
    always_ff @(posedge clk) begin
        if (rst) rvalid <= 1'b0;
        else if (read) rvalid <= 1'b1;
        else if (rready) rvalid <= 1'b0;
        if (read) begin
            rdata <= value;
            rresp <= r_known ? 2'b00 : 2'b10;
        end
    end

    logic unused;
    assign unused = &{1'b0, awaddr[2:0]};
endmodule
