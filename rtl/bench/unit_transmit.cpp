// npe_transmit alone: packets at any address, read in any order and with errors, leave whole, in order and once, and are
// released with their last beat.
#include "Vnpe_transmit.h"
#include "axi.h"

constexpr unsigned WB = 16, SLOTS = 4, UNIT = 2048, REQUEST = 512;
constexpr uint64_t BASE = 0x3ffff0000, SIZE = 1 << 20;

struct Packet {
    uint64_t at;
    unsigned len;
    uint8_t port, tag;
    bool broken;
};

int main() {
    Vnpe_transmit top;
    Random random(3);
    std::vector<uint8_t> memory(SIZE);
    for (auto &b : memory) b = uint8_t(random.next());
    std::deque<Packet> packets;
    Packet offered{};
    bool offering = false, m_waits = false, ar_waits = false, has_beat = false, m_last = false;
    uint64_t given = 0, sent = 0, failed = 0, first = 0, m_before = 0, araddr = 0;
    std::vector<uint8_t> got;
    Reads reads(SLOTS, WB);
    Reads::Beat beat{};

    top.rst = 1, top.clk = 0, top.eval(), top.clk = 1, top.eval();
    top.clk = 0, top.rst = 0;
    for (uint64_t clock = 0; given < 20000 || !packets.empty(); clock++) {
        CHECK(clock < 20000000, "it does not come to an end");
        unsigned slow = clock & 65536 ? 40 : 240;
        if (!offering && given < 20000 && random.chance(200)) {
            uint64_t unit = BASE + random.below(SIZE / UNIT) * UNIT, offset = random.below(random.below(4) ? 512 : UNIT);
            uint64_t most = random.below(4) && UNIT - offset > 100 ? 100 : UNIT - offset;
            offered = {unit + offset, unsigned(1 + random.below(most)), uint8_t(random.next()), uint8_t(random.next()), false};
            offering = true;
        }
        top.send_valid = offering;
        top.address = offered.at, top.len = uint16_t(offered.len), top.port = offered.port, top.tag = offered.tag;
        top.arready = random.chance(slow), top.m_ready = random.chance(clock & 32768 ? slow : 256);
        if (!has_beat && random.chance(slow)) has_beat = reads.next(random, true, beat);
        top.rvalid = has_beat;
        if (has_beat) {
            top.rid = beat.id, put(top.rdata, &memory[beat.at - BASE], WB), top.rresp = 0;
            if (clock & 131072 && random.below(1000) == 0) {
                // The oldest packet of the slot is the only one there.
                top.rresp = 2, packets[(beat.id + SLOTS - first % SLOTS) % SLOTS].broken = true;
            }
        }
        top.eval();
        CHECK(top.rready, "answers are always taken");
        CHECK(!ar_waits || (top.arvalid && top.araddr == araddr), "a request was withdrawn");
        ar_waits = top.arvalid && !top.arready, araddr = top.araddr;
        uint8_t data[WB];
        get(top.m_data, data, WB);
        uint64_t low;
        std::memcpy(&low, data, 8);
        unsigned n = 64 - unsigned(__builtin_clzll(top.m_keep | 1));
        CHECK(!top.m_valid || (top.m_keep == ones(n) && (top.m_last || n == WB)), "bytes kept: %#x", top.m_keep);
        if (n >= 8) CHECK(!m_waits || (top.m_valid && low == m_before && bool(top.m_last) == m_last), "a beat was withdrawn");
        m_waits = top.m_valid && !top.m_ready, m_before = low, m_last = top.m_last;
        CHECK(bool(top.release_valid) == (top.sent || top.failed) && !(top.sent && top.failed), "released once");
        CHECK(bool(top.busy) == !packets.empty(), "%zu packets", packets.size());
        bool left = top.m_valid && top.m_ready && top.m_last;
        CHECK(bool(top.sent) == left, "sent with the last beat");

        if (top.m_valid && top.m_ready) got.insert(got.end(), data, data + n);
        if (top.release_valid) {
            CHECK(!packets.empty(), "a packet that was not handed over");
            Packet p = packets.front();
            packets.pop_front(), first++;
            CHECK(top.release_tag == p.tag && bool(top.failed) == p.broken, "packet %lu", first);
            if (left) {
                CHECK(top.m_port == p.port && got.size() == p.len, "packet %lu: %zu bytes, not %u", first, got.size(), p.len);
                CHECK(std::memcmp(got.data(), &memory[p.at - BASE], p.len) == 0, "packet %lu: its bytes", first);
                got.clear(), sent++;
            } else {
                failed++;
            }
        }
        if (top.rvalid) has_beat = false;
        if (top.arvalid && top.arready) {
            uint64_t bytes = (top.arlen + 1u) * WB;
            CHECK(top.araddr / REQUEST == (top.araddr + bytes - 1) / REQUEST, "a read of %lu at %#lx", bytes, top.araddr);
            const Packet &p = packets.back();
            CHECK(top.araddr >= p.at - p.at % WB && top.araddr + bytes < p.at + p.len + WB, "a read beside the packet");
            reads.ask(top.arid, top.araddr, top.arlen + 1u);
        }
        if (top.send_valid && top.send_ready) packets.push_back(offered), offering = false, given++;
        top.clk = 1, top.eval(), top.clk = 0;
    }
    CHECK(sent > 10000 && failed > 10, "%lu sent, %lu failed", sent, failed);
    std::printf("transmit: %lu packets sent, %lu not read and released\n", sent, failed);
}
