// The engine as a PCIe endpoint: without the PCIe core of a chip, whose packets it takes and gives.
module npe_endpoint #(
    parameter int T        = 8,
    parameter int UNITS    = 1024,
    parameter int BLOCKS   = 16,
    parameter int W        = 512,
    parameter int UNIT_LOG = 11,
    parameter int SHARED   = 0,
    parameter int SLOTS    = 8,
    parameter int COMMANDS = 64,
    parameter int PAYLOAD  = 256,          // bytes a write has at most
    parameter int REQUEST  = 512,          // bytes a read asks for at most
    localparam int SW      = $clog2(SLOTS),
    localparam int WB      = W / 8
) (
    input  logic          clk,
    input  logic          rst,
    input  logic [15:0]   id,
    output logic          pcie_tx_valid,
    input  logic          pcie_tx_ready,
    output logic          pcie_tx_first,
    output logic          pcie_tx_last,
    output logic [127:0]  pcie_tx_header,
    output logic [W-1:0]  pcie_tx_data,
    input  logic          pcie_rx_valid,
    output logic          pcie_rx_ready,
    input  logic          pcie_rx_first,
    input  logic          pcie_rx_last,
    input  logic [127:0]  pcie_rx_header,
    input  logic [W-1:0]  pcie_rx_data,
    output logic          refused,
    input  logic [W-1:0]  rx_tdata,
    input  logic [WB-1:0] rx_tkeep,
    input  logic          rx_tlast,
    input  logic          rx_tuser,
    input  logic [7:0]    rx_tid,
    input  logic          rx_tvalid,
    output logic          rx_tready,
    output logic [W-1:0]  tx_tdata,
    output logic [WB-1:0] tx_tkeep,
    output logic          tx_tlast,
    output logic [7:0]    tx_tdest,
    output logic          tx_tvalid,
    input  logic          tx_tready
);
    logic [11:0]   s_axi_awaddr, s_axi_araddr;
    logic          s_axi_awvalid, s_axi_awready, s_axi_wready, s_axi_bvalid, s_axi_arvalid, s_axi_arready, s_axi_rvalid;
    logic [63:0]   s_axi_wdata, s_axi_rdata;
    logic [1:0]    s_axi_bresp, s_axi_rresp;
    logic [63:0]   m_axi_awaddr, m_axi_araddr;
    logic [7:0]    m_axi_awlen, m_axi_arlen;
    logic [2:0]    m_axi_awsize, m_axi_arsize;
    logic [1:0]    m_axi_awburst, m_axi_arburst, m_axi_rresp;
    logic          m_axi_awvalid, m_axi_awready, m_axi_wlast, m_axi_wvalid, m_axi_wready, m_axi_bvalid, m_axi_bready;
    logic          m_axi_arvalid, m_axi_arready, m_axi_rlast, m_axi_rvalid, m_axi_rready;
    logic [W-1:0]  m_axi_wdata, m_axi_rdata;
    logic [WB-1:0] m_axi_wstrb;
    logic [SW:0]   m_axi_arid, m_axi_rid;
    logic          trace_ended, trace_kept, trace_dropped, trace_released, trace_returned;
    logic [3:0]    trace_thread, trace_pool;
    logic [31:0]   trace_unit;

    npe_engine #(
        .T       (T),
        .UNITS   (UNITS),
        .BLOCKS  (BLOCKS),
        .W       (W),
        .UNIT_LOG(UNIT_LOG),
        .SHARED  (SHARED),
        .SLOTS   (SLOTS),
        .COMMANDS(COMMANDS),
        .REQUEST (REQUEST)
    ) engine (
        .s_axi_wstrb (8'hff),
        .s_axi_wvalid(s_axi_awvalid),
        .s_axi_bready(1'b1),
        .s_axi_rready(1'b1),
        .m_axi_bresp (2'b00),
        .*
    );

    npe_pcie #(
        .W      (W),
        .IDW    (SW + 1),
        .PAYLOAD(PAYLOAD)
    ) pcie (
        .clk,
        .rst,
        .id,
        .tx_valid   (pcie_tx_valid),
        .tx_ready   (pcie_tx_ready),
        .tx_first   (pcie_tx_first),
        .tx_last    (pcie_tx_last),
        .tx_header  (pcie_tx_header),
        .tx_data    (pcie_tx_data),
        .rx_valid   (pcie_rx_valid),
        .rx_ready   (pcie_rx_ready),
        .rx_first   (pcie_rx_first),
        .rx_last    (pcie_rx_last),
        .rx_header  (pcie_rx_header),
        .rx_data    (pcie_rx_data),
        .awaddr     (m_axi_awaddr),
        .awvalid    (m_axi_awvalid),
        .awready    (m_axi_awready),
        .wdata      (m_axi_wdata),
        .wstrb      (m_axi_wstrb),
        .wlast      (m_axi_wlast),
        .wvalid     (m_axi_wvalid),
        .wready     (m_axi_wready),
        .bvalid     (m_axi_bvalid),
        .bready     (m_axi_bready),
        .arid       (m_axi_arid),
        .araddr     (m_axi_araddr),
        .arlen      (m_axi_arlen),
        .arvalid    (m_axi_arvalid),
        .arready    (m_axi_arready),
        .rid        (m_axi_rid),
        .rdata      (m_axi_rdata),
        .rresp      (m_axi_rresp),
        .rlast      (m_axi_rlast),
        .rvalid     (m_axi_rvalid),
        .rready     (m_axi_rready),
        .reg_awaddr (s_axi_awaddr),
        .reg_awvalid(s_axi_awvalid),
        .reg_awready(s_axi_awready),
        .reg_wdata  (s_axi_wdata),
        .reg_araddr (s_axi_araddr),
        .reg_arvalid(s_axi_arvalid),
        .reg_arready(s_axi_arready),
        .reg_rdata  (s_axi_rdata),
        .reg_rresp  (s_axi_rresp),
        .reg_rvalid (s_axi_rvalid),
        .refused
    );

    // Bursts are of whole beats at increasing addresses, and are counted by `last`.
    logic unused;
    assign unused = &{1'b0, m_axi_awlen, m_axi_awsize, m_axi_awburst, m_axi_arsize, m_axi_arburst, s_axi_wready,
        s_axi_bresp, s_axi_bvalid, trace_ended, trace_kept, trace_dropped, trace_thread, trace_released, trace_returned,
        trace_pool, trace_unit};
endmodule
