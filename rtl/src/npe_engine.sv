// The engine: writes packets from the ports to memory, those of each thread at consecutive addresses; sends or drops
// packets that threads hand back, and releases their units; reuses blocks whose units are all released.
//
// The host checks the parameters, which it reads from the register PARAMS.
module npe_engine #(
    parameter int T        = 8,        // threads, 1 to 16
    parameter int UNITS    = 1024,     // units a block (M), a power of two, at least 2
    parameter int BLOCKS   = 16,       // blocks a thread (B), a power of two, at least 2
    parameter int W        = 512,      // bits of data: 64, 128, 256 or 512
    parameter int UNIT_LOG = 11,       // log2 of a unit's bytes, 11 to 14
    parameter int SHARED   = 0,        // 1: one pool for all threads (SDB); 0: one for each (TABM)
    parameter int PORTS    = 16,       // 2 to 16
    parameter int OFFSET   = 256,      // of a packet in its unit, a multiple of 64
    parameter int QUEUE    = 1 << (UNIT_LOG + 1),  // bytes of packets waiting for each thread
    parameter int PACKETS  = 32,       // packets waiting for each thread
    parameter int COMMANDS = 64,       // commands waiting for each thread
    parameter int SLOTS    = 8,        // packets being read from memory
    parameter int REQUEST  = 4096,     // bytes of a burst that reads a packet, at most
    // Not to be set.
    localparam int POOLS   = (SHARED != 0) ? 1 : T,
    localparam int PB      = (SHARED != 0) ? 1 << $clog2(T * BLOCKS) : BLOCKS,
    localparam int TW      = (T == 1) ? 1 : $clog2(T),
    localparam int PW      = (POOLS == 1) ? 1 : $clog2(POOLS),
    localparam int BW      = $clog2(PB),
    localparam int MW      = $clog2(UNITS),
    localparam int UW      = BW + MW,
    localparam int SW      = $clog2(SLOTS),
    localparam int WB      = W / 8
) (
    input  logic          clk,
    input  logic          rst,
    // Registers, AXI4-Lite.
    input  logic [11:0]   s_axi_awaddr,
    input  logic          s_axi_awvalid,
    output logic          s_axi_awready,
    input  logic [63:0]   s_axi_wdata,
    input  logic [7:0]    s_axi_wstrb,
    input  logic          s_axi_wvalid,
    output logic          s_axi_wready,
    output logic [1:0]    s_axi_bresp,
    output logic          s_axi_bvalid,
    input  logic          s_axi_bready,
    input  logic [11:0]   s_axi_araddr,
    input  logic          s_axi_arvalid,
    output logic          s_axi_arready,
    output logic [63:0]   s_axi_rdata,
    output logic [1:0]    s_axi_rresp,
    output logic          s_axi_rvalid,
    input  logic          s_axi_rready,
    // Memory, AXI4; writes have one ID.
    output logic [63:0]   m_axi_awaddr,
    output logic [7:0]    m_axi_awlen,
    output logic [2:0]    m_axi_awsize,
    output logic [1:0]    m_axi_awburst,
    output logic          m_axi_awvalid,
    input  logic          m_axi_awready,
    output logic [W-1:0]  m_axi_wdata,
    output logic [WB-1:0] m_axi_wstrb,
    output logic          m_axi_wlast,
    output logic          m_axi_wvalid,
    input  logic          m_axi_wready,
    input  logic [1:0]    m_axi_bresp,
    input  logic          m_axi_bvalid,
    output logic          m_axi_bready,
    output logic [SW:0]   m_axi_arid,    // a packet's slot; 1 << SW: a ring
    output logic [63:0]   m_axi_araddr,
    output logic [7:0]    m_axi_arlen,
    output logic [2:0]    m_axi_arsize,
    output logic [1:0]    m_axi_arburst,
    output logic          m_axi_arvalid,
    input  logic          m_axi_arready,
    input  logic [SW:0]   m_axi_rid,
    input  logic [W-1:0]  m_axi_rdata,
    input  logic [1:0]    m_axi_rresp,
    input  logic          m_axi_rlast,
    input  logic          m_axi_rvalid,
    output logic          m_axi_rready,
    // From the ports.
    input  logic [W-1:0]  rx_tdata,
    input  logic [WB-1:0] rx_tkeep,
    input  logic          rx_tlast,
    input  logic          rx_tuser,      // with the last beat: damaged
    input  logic [7:0]    rx_tid,        // the port
    input  logic          rx_tvalid,
    output logic          rx_tready,
    // To the ports.
    output logic [W-1:0]  tx_tdata,
    output logic [WB-1:0] tx_tkeep,
    output logic          tx_tlast,
    output logic [7:0]    tx_tdest,      // the port
    output logic          tx_tvalid,
    input  logic          tx_tready,
    // Internal events, for benches.
    output logic          trace_ended,   // a packet's last beat was taken
    output logic          trace_kept,
    output logic          trace_dropped,
    output logic [3:0]    trace_thread,
    output logic          trace_released,
    output logic          trace_returned,
    output logic [3:0]    trace_pool,
    output logic [31:0]   trace_unit
);
    logic                clear, core_rst, enable, by_port, hold, busy;
    logic [4:0]          channels;
    logic [63:0]         grant_base, send_base;
    logic [PORTS*TW-1:0] port_map;
    logic [63:0]         now;

    assign core_rst = rst || clear;
    always_ff @(posedge clk) begin
        if (rst) now <= '0;
        else now <= now + 1'b1;
    end

    // Blocks and units.
    logic                post_valid, post_ready, bad_post;
    logic [PW-1:0]       post_pool;
    logic [BW-1:0]       post_block;
    logic                release_valid, bad_release, released, returned;
    logic [PW-1:0]       release_pool;
    logic [UW-1:0]       release_unit;
    logic [POOLS-1:0]    block_valid, block_ready, unit_valid, unit_ready;
    logic [POOLS*BW-1:0] block;
    logic [POOLS*UW-1:0] unit;

    npe_recycle #(
        .POOLS (POOLS),
        .BLOCKS(PB),
        .UNITS (UNITS)
    ) recycle (
        .clk,
        .rst          (core_rst),
        .post_valid,
        .post_ready,
        .post_pool,
        .post_block,
        .bad_post,
        .release_valid,
        .release_pool,
        .release_block(release_unit[UW-1:MW]),
        .bad_release,
        .counted      (released),
        .returned,
        .block_valid,
        .block_ready,
        .block
    );

    for (genvar p = 0; p < POOLS; p++) begin : g_pool
        logic          from_valid, from_ready;
        logic [UW-1:0] from;
        npe_convert #(
            .BLOCKS(PB),
            .UNITS (UNITS)
        ) convert (
            .clk,
            .rst        (core_rst),
            .block_valid(block_valid[p]),
            .block_ready(block_ready[p]),
            .block      (block[p*BW+:BW]),
            .unit_valid (from_valid),
            .unit_ready (from_ready),
            .unit       (from)
        );
        npe_fifo #(
            .WIDTH(UW),
            .DEPTH(2)
        ) units (
            .clk,
            .rst      (core_rst),
            .in_valid (from_valid),
            .in_ready (from_ready),
            .in_data  (from),
            .out_valid(unit_valid[p]),
            .out_ready(unit_ready[p]),
            .out_data (unit[p*UW+:UW])
        );
    end

    // Receive.
    logic          ended, kept, too_long, damaged, dropped;
    logic [TW-1:0] ended_thread;
    logic [T-1:0]  want, next_valid;
    logic          take, grant_valid, grant_ready, read, rx_busy, write_busy, write_failed;
    logic [TW-1:0] take_thread, grant_thread, read_thread;
    logic [UW-1:0] grant_this, grant_next;
    logic [31:0]   grant_seq;
    logic [63:0]   time_;
    logic [7:0]    port;
    logic [15:0]   len;
    logic [W-1:0]  data;
    logic [T*UW-1:0] next;
    logic [T*32-1:0] seq;

    npe_dispatch #(
        .T      (T),
        .W      (W),
        .PORTS  (PORTS),
        .BEATS  (QUEUE / WB),
        .COUNT  (PACKETS),
        .LONGEST((1 << UNIT_LOG) - OFFSET)
    ) dispatch (
        .clk,
        .rst    (core_rst),
        .enable,
        .by_port,
        .hold,
        .channels,
        .port_map,
        .now,
        .s_valid(rx_tvalid),
        .s_ready(rx_tready),
        .s_data (rx_tdata),
        .s_keep (rx_tkeep),
        .s_last (rx_tlast),
        .s_bad  (rx_tuser),
        .s_port (rx_tid),
        .ended,
        .kept,
        .too_long,
        .damaged,
        .dropped,
        .ended_thread,
        .want,
        .take,
        .take_thread,
        .time_,
        .port,
        .len,
        .read,
        .read_thread,
        .data,
        .busy   (rx_busy)
    );

    npe_alloc #(
        .T    (T),
        .POOLS(POOLS),
        .UW   (UW)
    ) alloc (
        .clk,
        .rst(core_rst),
        .channels,
        .unit_valid,
        .unit_ready,
        .unit,
        .want,
        .take,
        .take_thread,
        .grant_valid,
        .grant_ready,
        .grant_thread,
        .grant_this,
        .grant_next,
        .grant_seq,
        .next_valid,
        .next,
        .seq
    );

    npe_write #(
        .T       (T),
        .W       (W),
        .UW      (UW),
        .UNIT_LOG(UNIT_LOG),
        .OFFSET  (OFFSET)
    ) write (
        .clk,
        .rst    (core_rst),
        .base   (grant_base),
        .grant_valid,
        .grant_ready,
        .grant_thread,
        .grant_this,
        .grant_next,
        .grant_seq,
        .time_,
        .port,
        .len,
        .read,
        .read_thread,
        .data,
        .awaddr (m_axi_awaddr),
        .awlen  (m_axi_awlen),
        .awvalid(m_axi_awvalid),
        .awready(m_axi_awready),
        .wdata  (m_axi_wdata),
        .wstrb  (m_axi_wstrb),
        .wlast  (m_axi_wlast),
        .wvalid (m_axi_wvalid),
        .wready (m_axi_wready),
        .bresp  (m_axi_bresp),
        .bvalid (m_axi_bvalid),
        .bready (m_axi_bready),
        .failed (write_failed),
        .busy   (write_busy)
    );
    assign m_axi_awsize  = 3'($clog2(WB));
    assign m_axi_awburst = 2'b01;

    // Commands and transmit.
    logic             command, command_lost, command_busy, drop_valid, drop_ready, no_port, bad_command, bad_send;
    logic             send_valid, send_ready, sent_valid, sent, send_failed, send_busy;
    logic [TW-1:0]    command_thread, thread;
    logic [56:0]      command_data;
    logic [T*32-1:0]  taken;
    logic [UW-1:0]    drop_unit, sent_unit;
    logic [31:0]      send_offset;
    logic [15:0]      send_len;
    logic [7:0]       send_port;
    logic [PW-1:0]    drop_pool, sent_pool;

    logic             ring_set, bell, bad_bell, offer_valid, offer_ready, ring_failed, ring_busy;
    logic [TW-1:0]    offer_thread;
    logic [56:0]      offer_command;
    logic [63:0]      written;
    logic             send_arvalid, send_arready, ring_arvalid, ring_arready, ring_answer;
    logic [SW-1:0]    send_arid;
    logic [63:0]      send_araddr, ring_araddr;
    logic [7:0]       send_arlen, ring_arlen;

    npe_ring #(
        .T(T),
        .W(W)
    ) ring (
        .clk,
        .rst        (core_rst),
        .start      (ring_set),
        .bell,
        .bell_thread(command_thread),
        .value      (written),
        .bad_bell,
        .araddr     (ring_araddr),
        .arlen      (ring_arlen),
        .arvalid    (ring_arvalid),
        .arready    (ring_arready),
        .rdata      (m_axi_rdata),
        .rresp      (m_axi_rresp),
        .rlast      (m_axi_rlast),
        .rvalid     (m_axi_rvalid && ring_answer),
        .offer_valid,
        .offer_ready,
        .thread     (offer_thread),
        .command    (offer_command),
        .failed     (ring_failed),
        .busy       (ring_busy)
    );
    assign ring_answer = m_axi_rid[SW];

    // Requests of rings go first, but a request that waits is not replaced.
    logic waits, waits_ring, asks_ring;
    assign asks_ring     = waits ? waits_ring : ring_arvalid;
    assign m_axi_arvalid = asks_ring ? ring_arvalid : send_arvalid;
    assign m_axi_arid    = asks_ring ? {1'b1, {SW{1'b0}}} : {1'b0, send_arid};
    assign m_axi_araddr  = asks_ring ? ring_araddr : send_araddr;
    assign m_axi_arlen   = asks_ring ? ring_arlen : send_arlen;
    assign ring_arready  = asks_ring && m_axi_arready;
    assign send_arready  = !asks_ring && m_axi_arready;
    always_ff @(posedge clk) begin
        if (core_rst) waits <= 1'b0;
        else waits <= m_axi_arvalid && !m_axi_arready;
        waits_ring <= asks_ring;
    end

    npe_command #(
        .T       (T),
        .DEPTH   (COMMANDS),
        .UW      (UW),
        .UNIT_LOG(UNIT_LOG),
        .PORTS   (PORTS)
    ) commands (
        .clk,
        .rst          (core_rst),
        .write        (command),
        .write_thread (command_thread),
        .write_command(command_data),
        .lost         (command_lost),
        .offer_valid,
        .offer_ready,
        .offer_thread,
        .offer_command,
        .taken,
        .release_valid(drop_valid),
        .release_ready(drop_ready),
        .no_port,
        .bad          (bad_command),
        .bad_send,
        .send_valid,
        .send_ready,
        .thread,
        .unit         (drop_unit),
        .offset       (send_offset),
        .len          (send_len),
        .port         (send_port),
        .busy         (command_busy)
    );
    assign drop_pool = (POOLS == 1) ? '0 : PW'(thread);

    npe_transmit #(
        .W       (W),
        .SLOTS   (SLOTS),
        .UNIT_LOG(UNIT_LOG),
        .REQUEST (REQUEST),
        .TAG     (PW + UW)
    ) transmit (
        .clk,
        .rst          (core_rst),
        .send_valid,
        .send_ready,
        .address      (send_base + 64'(send_offset)),
        .len          (send_len),
        .port         (send_port),
        .tag          ({drop_pool, drop_unit}),
        .arid         (send_arid),
        .araddr       (send_araddr),
        .arlen        (send_arlen),
        .arvalid      (send_arvalid),
        .arready      (send_arready),
        .rid          (m_axi_rid[SW-1:0]),
        .rdata        (m_axi_rdata),
        .rresp        (m_axi_rresp),
        .rvalid       (m_axi_rvalid && !ring_answer),
        .rready       (m_axi_rready),
        .m_data       (tx_tdata),
        .m_keep       (tx_tkeep),
        .m_last       (tx_tlast),
        .m_port       (tx_tdest),
        .m_valid      (tx_tvalid),
        .m_ready      (tx_tready),
        .release_valid(sent_valid),
        .release_tag  ({sent_pool, sent_unit}),
        .sent,
        .failed       (send_failed),
        .busy         (send_busy)
    );
    assign m_axi_arsize  = 3'($clog2(WB));
    assign m_axi_arburst = 2'b01;

    // Releases of sent packets go first: they cannot wait.
    assign drop_ready    = !sent_valid;
    assign release_valid = sent_valid || drop_valid;
    assign release_pool  = sent_valid ? sent_pool : drop_pool;
    assign release_unit  = sent_valid ? sent_unit : drop_unit;

    assign busy = rx_busy || grant_valid || write_busy || ring_busy || command_busy || send_busy
        || post_valid;

    npe_regs #(
        .T           (T),
        .PORTS       (PORTS),
        .SHARED      (SHARED != 0),
        .BLOCKS_LOG  (BW),
        .UNITS_LOG   (MW),
        .UNIT_LOG    (UNIT_LOG),
        .COMMANDS_LOG($clog2(COMMANDS)),
        .OFFSET      (OFFSET),
        .UW          (UW),
        .POOLS       (POOLS),
        .BW          (BW)
    ) regs (
        .clk,
        .rst,
        .awaddr        (s_axi_awaddr),
        .awvalid       (s_axi_awvalid),
        .awready       (s_axi_awready),
        .wdata         (s_axi_wdata),
        .wstrb         (s_axi_wstrb),
        .wvalid        (s_axi_wvalid),
        .wready        (s_axi_wready),
        .bresp         (s_axi_bresp),
        .bvalid        (s_axi_bvalid),
        .bready        (s_axi_bready),
        .araddr        (s_axi_araddr),
        .arvalid       (s_axi_arvalid),
        .arready       (s_axi_arready),
        .rdata         (s_axi_rdata),
        .rresp         (s_axi_rresp),
        .rvalid        (s_axi_rvalid),
        .rready        (s_axi_rready),
        .clear,
        .enable,
        .by_port,
        .hold,
        .channels,
        .grant_thread,
        .grant_base,
        .thread,
        .send_base,
        .port_map,
        .post_valid,
        .post_ready,
        .post_pool,
        .post_block,
        .command,
        .command_thread,
        .command_data,
        .ring_set,
        .bell,
        .written,
        .busy,
        .write_failed,
        .read_failed   (send_failed || ring_failed),
        .bad_command   (bad_command || bad_bell),
        .command_lost,
        .bad_post,
        .bad_release,
        .too_long,
        .damaged,
        .dropped,
        .dropped_thread(ended_thread),
        .sent,
        .no_port,
        .send_failed,
        .bad_send,
        .released,
        .returned,
        .next_valid,
        .next,
        .seq,
        .taken
    );

    assign trace_ended    = ended;
    assign trace_kept     = kept;
    assign trace_dropped  = dropped;
    assign trace_thread   = 4'(ended_thread);
    assign trace_released = released;
    assign trace_returned = returned;
    assign trace_pool     = 4'(release_pool);
    assign trace_unit     = 32'(release_unit);
endmodule
