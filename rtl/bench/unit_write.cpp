// npe_write alone: packets and descriptors in memory, the rules for bursts, and that a descriptor comes after its packet.
#include "Vnpe_write.h"
#include "axi.h"

constexpr unsigned T = 2, WB = 16, UNITS = 16, UNIT = 2048, OFFSET = 256;
constexpr uint64_t BASE[T] = {0x700000000, 0x123450000};

struct Packet {
    std::vector<uint8_t> bytes;
    unsigned thread, unit, next;
    uint32_t seq;
    uint64_t time;
    uint8_t port;
};

int main() {
    Vnpe_write top;
    Random random(2);
    std::vector<uint8_t> memory(T * UNITS * UNIT);
    auto at = [&](uint64_t address) -> uint8_t * {
        unsigned t = address >= BASE[0];
        CHECK(address - BASE[!t] < UNITS * UNIT, "address %#lx", address);
        return &memory[(!t * UNITS * UNIT) + (address - BASE[!t])];
    };
    std::deque<Packet> granted, in_memory;  // to be read; and to be seen in memory
    std::deque<Burst> bursts;
    bool used[T][UNITS] = {};
    Packet offered{};
    bool offering = false;
    size_t read_at = 0, answers = 0;
    unsigned write_at = 0;
    uint64_t packets = 0, bytes = 0, wrong = 0, failed = 0, awaddr = 0;
    bool aw_waits = false, w_waits = false;
    uint8_t w_before[WB], w_now[WB];

    top.rst = 1, top.clk = 0, top.eval(), top.clk = 1, top.eval();
    top.clk = 0, top.rst = 0;
    for (uint64_t clock = 0; packets < 20000 || !in_memory.empty() || answers; clock++) {
        CHECK(clock < 20000000, "it does not come to an end");
        unsigned slow = clock & 65536 ? 40 : 240;
        if (!offering && packets < 20000) {
            unsigned t = unsigned(random.below(T)), unit = unsigned(random.below(UNITS));
            if (!used[t][unit]) {
                offered = {std::vector<uint8_t>(1 + random.below(random.below(4) ? 100 : UNIT - OFFSET)), t, unit,
                           unsigned(random.below(UNITS)), uint32_t(random.next()), random.next(), uint8_t(random.next())};
                for (auto &b : offered.bytes) b = uint8_t(random.next());
                offering = used[t][unit] = true;
                std::memset(at(BASE[t] + unit * UNIT), 0xaa, UNIT);
                top.base = BASE[t], top.grant_thread = t, top.grant_this = unit, top.grant_next = offered.next, top.grant_seq = offered.seq;
                top.time_ = offered.time, top.port = offered.port, top.len = uint16_t(offered.bytes.size());
            }
        }
        top.grant_valid = offering;
        top.awready = random.chance(slow), top.wready = !bursts.empty() && random.chance(slow);
        top.bvalid = answers && random.chance(slow), top.bresp = top.bvalid && random.below(100) == 0 ? 2 : 0;
        top.eval();
        CHECK(!aw_waits || (top.awvalid && top.awaddr == awaddr), "an address was withdrawn");
        get(top.wdata, w_now, WB);
        CHECK(!w_waits || (top.wvalid && std::memcmp(w_now, w_before, WB) == 0), "data was withdrawn");
        aw_waits = top.awvalid && !top.awready, awaddr = top.awaddr;
        w_waits = top.wvalid && !top.wready, std::memcpy(w_before, w_now, WB);
        CHECK(!in_memory.size() || top.busy, "busy with %zu packets", in_memory.size());

        bool taken = top.grant_valid && top.grant_ready, read = top.read;
        if (top.bvalid) answers--, wrong += top.bresp == 2;
        failed += top.failed;
        if (top.wvalid && top.wready) {
            Burst &burst = bursts.front();
            uint64_t address = burst.at + write_at * WB;
            for (unsigned i = 0; i < WB; i++)
                if (top.wstrb >> i & 1) *at(address + i) = w_now[i];
            CHECK(bool(top.wlast) == (++write_at == burst.beats), "beat %u of %u", write_at, burst.beats);
            CHECK(!in_memory.empty(), "a write for nothing");
            Packet &p = in_memory.front();
            uint64_t unit = BASE[p.thread] + p.unit * UNIT;
            bool describes = burst.at == unit + OFFSET - 64;
            CHECK(describes || (burst.at >= unit + OFFSET && burst.at < unit + OFFSET + p.bytes.size()), "%#lx", burst.at);
            if (top.wlast && describes) {
                Descriptor d;
                std::memcpy(&d, at(burst.at), sizeof d);
                CHECK(d.self == unit && d.next == BASE[p.thread] + p.next * UNIT && d.time == p.time && d.seq == p.seq &&
                          d.len == p.bytes.size() && d.port == p.port && d.thread == p.thread, "its descriptor");
                CHECK(std::memcmp(at(unit + OFFSET), p.bytes.data(), p.bytes.size()) == 0, "a packet of %zu", p.bytes.size());
                for (size_t i = OFFSET + p.bytes.size(); i < UNIT; i++) CHECK(*at(unit + i) == 0xaa, "byte %zu", i);
                for (size_t i = OFFSET - 32; i < OFFSET; i++) CHECK(*at(unit + i) == 0xaa, "byte %zu", i);
                used[p.thread][p.unit] = false, bytes += p.bytes.size();
                in_memory.pop_front();
            }
            if (top.wlast) bursts.pop_front(), write_at = 0, answers++;
        }
        if (top.awvalid && top.awready) {
            check_burst(top.awaddr, top.awlen + 1u, WB);
            bursts.push_back({top.awaddr, top.awlen + 1u});
        }
        uint8_t beat[WB];
        if (read) {
            CHECK(!granted.empty() && top.read_thread == granted.front().thread, "a beat of nothing");
            Packet &p = granted.front();
            size_t left = p.bytes.size() - read_at;
            for (auto &b : beat) b = uint8_t(random.next());
            std::memcpy(beat, &p.bytes[read_at], left < WB ? left : WB);
            read_at += WB;
            if (read_at >= p.bytes.size()) granted.pop_front(), read_at = 0;
        }
        if (taken) granted.push_back(offered), in_memory.push_back(offered), offering = false, packets++;
        top.clk = 1, top.eval();
        if (read) put(top.data, beat, WB);
        top.clk = 0;
    }
    top.bvalid = 0;
    for (int i = 0; i < 2; i++) top.clk = 1, top.eval(), top.clk = 0, top.eval();
    CHECK(!top.busy, "busy with nothing");
    CHECK(failed == wrong && wrong > 0, "%lu errors, %lu reported", wrong, failed);
    std::printf("write: %lu packets of %lu bytes, %lu errors reported\n", packets, bytes, failed);
}
