// The simulated engine with models of its surroundings: memory on AXI4, the host's register accesses, the ports.
// Each model stalls at random, and memory answers reads of different IDs in any order, beat by beat.
#pragma once

#include <functional>
#include <string>

#include "Vnpe_engine.h"
#include "axi.h"
#include "map.h"
#include "verilated.h"

struct Packet {
    std::vector<uint8_t> bytes;
    uint8_t port = 0;
    bool damaged = false;
};

class Engine {
public:
    static constexpr int WB = CFG_W / 8;
    static constexpr uint64_t OFFSET = 256, UNIT = uint64_t(1) << CFG_UNIT_LOG, LONGEST = UNIT - OFFSET;
    static constexpr int POOLS = CFG_SHARED ? 1 : CFG_T;
    static constexpr int BLOCKS = CFG_SHARED ? CFG_T * CFG_BLOCKS : CFG_BLOCKS;  // a pool's
    static constexpr uint64_t POOL = uint64_t(BLOCKS) * CFG_UNITS * UNIT;

    Vnpe_engine top;
    uint8_t *memory;
    uint64_t size, bias;  // memory's first byte has the address `bias`
    Random random;
    // Clocks out of 256 in which each interface stalls.
    struct Stalls {
        unsigned aw = 0, w = 0, b = 0, ar = 0, r = 0, rx = 0, tx = 0;
    } stalls;
    bool shuffle = true;      // answers to reads come in any order
    unsigned read_errors = 0; // of 65,536 beats

    uint64_t clocks = 0, write_bursts = 0, write_bytes = 0, read_bursts = 0, read_bytes = 0;

    // The next packet to receive; false: none now.
    std::function<bool(Packet &)> source = [](Packet &) { return false; };
    // A packet was sent by a port.
    std::function<void(const std::vector<uint8_t> &, uint8_t)> sink = [](const std::vector<uint8_t> &, uint8_t) {};
    // A received packet was taken or lost; `packet` is the one the source gave.
    std::function<void(const Packet &)> ended = [](const Packet &) {};
    // A unit was released; called before its packet goes to the sink.
    std::function<void()> released = [] {};
    // A descriptor was written, at this address.
    std::function<void(uint64_t)> described = [](uint64_t) {};
    // A read beat with an error is on its way to this address.
    std::function<void(uint64_t)> spoilt = [](uint64_t) {};

    Engine(uint8_t *memory, uint64_t size, uint64_t bias, uint64_t seed)
        : memory(memory), size(size), bias(bias), random(seed) {
        reset();
    }

    void reset() {
        writes.clear(), answers = 0, data_due = false, write_at = 0;
        reads.clear(), rx_busy = false, tx_bytes.clear();
        top.rst = 1;
        top.s_axi_awvalid = top.s_axi_wvalid = top.s_axi_arvalid = 0;
        top.s_axi_bready = top.s_axi_rready = 1;
        top.s_axi_wstrb = 0xff;
        top.rx_tvalid = top.m_axi_bvalid = top.m_axi_rvalid = 0;
        top.m_axi_bresp = top.m_axi_rresp = 0;
        top.m_axi_awready = top.m_axi_wready = top.m_axi_arready = top.tx_tready = 0;
        for (int i = 0; i < 4; i++) {
            top.clk = 0, top.eval(), top.clk = 1, top.eval();
        }
        top.rst = 0, top.clk = 0, top.eval();
    }

    // One clock.
    void step() {
        clocks++;
        // Transfers at this clock edge.
        bool aw = top.m_axi_awvalid && top.m_axi_awready, w = top.m_axi_wvalid && top.m_axi_wready;
        bool b = top.m_axi_bvalid && top.m_axi_bready, ar = top.m_axi_arvalid && top.m_axi_arready;
        bool r = top.m_axi_rvalid && top.m_axi_rready, rx = top.rx_tvalid && top.rx_tready;
        bool tx = top.tx_tvalid && top.tx_tready;
        if (aw) take_address();
        if (w) take_data();
        if (ar) take_request();
        if (top.trace_released) released();
        if (tx) take_sent();
        if (rx) {
            bool last = top.rx_tlast;
            CHECK(last == bool(top.trace_ended), "a packet's last beat");
            if (last) ended(rx_packet);
        }
        top.clk = 1, top.eval();

        if (b) answers--, top.m_axi_bvalid = 0;
        if (!top.m_axi_bvalid && answers > 0 && !stalled(stalls.b)) top.m_axi_bvalid = 1;
        top.m_axi_awready = writes.size() < 8 && !stalled(stalls.aw);
        top.m_axi_wready = (data_due || !writes.empty()) && !stalled(stalls.w);
        if (!data_due && !writes.empty()) {
            burst = writes.front(), writes.pop_front();
            data_due = true, write_at = 0;
        }
        top.m_axi_wready = data_due && !stalled(stalls.w);
        top.m_axi_arready = !stalled(stalls.ar);
        if (r) top.m_axi_rvalid = 0;
        if (!top.m_axi_rvalid && !stalled(stalls.r)) answer();
        if (rx) rx_advance();
        if (!top.rx_tvalid && !stalled(stalls.rx)) rx_offer();
        top.tx_tready = !stalled(stalls.tx);

        top.clk = 0, top.eval();
    }

    // Register accesses; each takes as many clocks as it needs.
    void write(uint32_t at, uint64_t value) { CHECK(try_write(at, value) == 0, "register %#x", at); }
    unsigned try_write(uint32_t at, uint64_t value, uint8_t strobe = 0xff) {
        top.s_axi_awaddr = at, top.s_axi_awvalid = 1, top.s_axi_wdata = value, top.s_axi_wvalid = 1;
        top.s_axi_wstrb = strobe;
        top.eval();
        for (int i = 0; !(top.s_axi_awready && top.s_axi_wready); i++, step()) CHECK(i < 10000, "register %#x", at);
        step();
        top.s_axi_awvalid = top.s_axi_wvalid = 0, top.eval();
        CHECK(top.s_axi_bvalid, "register %#x is answered", at);
        unsigned response = top.s_axi_bresp;
        step();
        return response;
    }
    uint64_t read(uint32_t at) {
        uint64_t value;
        CHECK(try_read(at, value) == 0, "register %#x", at);
        return value;
    }
    unsigned try_read(uint32_t at, uint64_t &value) {
        top.s_axi_araddr = at, top.s_axi_arvalid = 1, top.eval();
        for (int i = 0; !top.s_axi_arready; i++, step()) CHECK(i < 10000, "register %#x", at);
        step();
        top.s_axi_arvalid = 0, top.eval();
        CHECK(top.s_axi_rvalid, "register %#x is answered", at);
        value = top.s_axi_rdata;
        unsigned response = top.s_axi_rresp;
        step();
        return response;
    }

    // Address of a thread's unit.
    uint64_t base(unsigned thread) const { return bias + (CFG_SHARED ? 0 : thread) * POOL; }
    uint8_t *at(uint64_t address, uint64_t bytes) {
        CHECK(address >= bias && address + bytes <= bias + size, "address %#lx", address);
        return memory + (address - bias);
    }
    bool quiet() const { return !rx_busy && !(top.rx_tvalid); }

private:
    std::deque<Burst> writes;
    Burst burst{};
    bool data_due = false;
    unsigned write_at = 0;
    uint64_t answers = 0;
    Reads reads{2 * CFG_SLOTS, WB};
    bool rx_busy = false;
    Packet rx_packet;
    size_t rx_at = 0;
    std::vector<uint8_t> tx_bytes;

    bool stalled(unsigned of256) { return of256 && random.chance(of256); }

    void take_address() {
        check_burst(top.m_axi_awaddr, top.m_axi_awlen + 1u, WB);
        at(top.m_axi_awaddr, (top.m_axi_awlen + 1u) * WB);
        writes.push_back({top.m_axi_awaddr, top.m_axi_awlen + 1u});
        write_bursts++;
    }
    void take_data() {
        uint8_t data[WB];
        get(top.m_axi_wdata, data, WB);
        uint64_t strobe = top.m_axi_wstrb, address = burst.at + uint64_t(write_at) * WB;
        uint8_t *to = at(address, WB);
        if (strobe == ones(WB)) {
            std::memcpy(to, data, WB), write_bytes += WB;
        } else {
            for (int i = 0; i < WB; i++)
                if (strobe >> i & 1) to[i] = data[i], write_bytes++;
        }
        write_at++;
        CHECK(bool(top.m_axi_wlast) == (write_at == burst.beats), "beat %u of %u", write_at, burst.beats);
        if (write_at == burst.beats) {
            data_due = false, answers++;
            uint64_t first = burst.at;
            if ((first - bias) % UNIT == OFFSET - 64) described(first);
        }
    }
    void take_request() {
        reads.ask(top.m_axi_arid, top.m_axi_araddr, top.m_axi_arlen + 1u);
        read_bursts++, read_bytes += (top.m_axi_arlen + 1u) * WB;
    }
    void answer() {
        Reads::Beat beat;
        if (!reads.next(random, shuffle, beat)) return;
        put(top.m_axi_rdata, at(beat.at, WB), WB);
        top.m_axi_rid = beat.id;
        top.m_axi_rlast = beat.last;
        top.m_axi_rresp = 0;
        if (read_errors && random.below(65536) < read_errors) top.m_axi_rresp = 2, spoilt(beat.at);
        top.m_axi_rvalid = 1;
    }
    void rx_offer() {
        if (!rx_busy) {
            if (!source(rx_packet)) return;
            rx_busy = true, rx_at = 0;
        }
        size_t left = rx_packet.bytes.size() - rx_at, n = left < WB ? left : WB;
        uint8_t data[WB] = {};
        std::memcpy(data, rx_packet.bytes.data() + rx_at, n);
        if (n < WB) std::memset(data + n, 0xee, WB - n);  // must not get into memory
        put(top.rx_tdata, data, WB);
        uint64_t keep = ones(n);
        put(top.rx_tkeep, &keep, sizeof top.rx_tkeep);
        top.rx_tlast = left <= WB;
        top.rx_tuser = top.rx_tlast && rx_packet.damaged;
        top.rx_tid = rx_packet.port;
        top.rx_tvalid = 1;
    }
    void rx_advance() {
        top.rx_tvalid = 0;
        rx_at += WB;
        if (rx_at >= rx_packet.bytes.size()) rx_busy = false;
    }
    void take_sent() {
        uint8_t data[WB];
        get(top.tx_tdata, data, WB);
        uint64_t keep = 0;
        std::memcpy(&keep, &top.tx_tkeep, sizeof top.tx_tkeep);
        size_t n = 64 - __builtin_clzll(keep | 1);
        CHECK(keep == ones(n) && n <= WB, "bytes kept: %#lx", keep);
        CHECK(top.tx_tlast || n == WB, "a short beat in the middle");
        tx_bytes.insert(tx_bytes.end(), data, data + n);
        if (top.tx_tlast) {
            sink(tx_bytes, top.tx_tdest);
            tx_bytes.clear();
        }
    }
};
