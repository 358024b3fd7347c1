// Measures clocks and memory bus traffic a packet, without stalls. Prints tables for docs/rtl.md.
#include "engine.h"

namespace {

struct Measured {
    double clocks, written, read, bursts;
};

void begin(Engine &engine) {
    for (unsigned t = 0; t < CFG_T; t++) engine.write(map::BASE + 8 * t, engine.base(t));
    for (unsigned pool = 0; pool < Engine::POOLS; pool++)
        for (unsigned block = 0; block < Engine::BLOCKS; block++) engine.write(map::POST, block | pool << map::POST_POOL);
    engine.write(map::CTRL, uint64_t(CFG_T) << map::CTRL_CHANNELS | 1 << map::CTRL_ENABLE | 1 << map::CTRL_HOLD);
}

// `send`: the host sends each packet as soon as it has arrived; else it drops it.
Measured measure(unsigned length, bool send, unsigned packets) {
    static std::vector<uint8_t> memory(Engine::POOL * Engine::POOLS);
    std::memset(memory.data(), 0, memory.size());
    Engine engine(memory.data(), memory.size(), 0x100000000, 1);
    engine.shuffle = false;
    unsigned left = packets, over = 0;
    engine.source = [&](Packet &packet) {
        if (left == 0) return false;
        left--;
        packet.bytes.resize(length);
        return true;
    };
    std::deque<std::pair<unsigned, uint64_t>> found;
    engine.described = [&](uint64_t at) {
        Descriptor d;
        std::memcpy(&d, engine.at(at, sizeof d), sizeof d);
        found.push_back({d.thread, d.self + Engine::OFFSET - engine.base(d.thread)});
    };
    engine.released = [&] { over++; };
    begin(engine);
    uint64_t begin = engine.clocks, first = 0, middle = 0;
    auto &top = engine.top;
    while (over < packets) {
        top.s_axi_awvalid = top.s_axi_wvalid = !found.empty();
        if (!found.empty()) {
            auto [thread, offset] = found.front();
            found.pop_front();
            top.s_axi_awaddr = map::COMMAND + 8 * thread;
            top.s_axi_wdata = send ? offset | uint64_t(length) << map::COMMAND_LENGTH : offset | uint64_t(1) << map::COMMAND_DROP;
        }
        top.eval();
        engine.step();
        if (over == packets / 4 && !first) first = engine.clocks;
        if (over == packets * 3 / 4 && !middle) middle = engine.clocks;
        CHECK(engine.clocks - begin < 1000 + uint64_t(packets) * 4000, "%u of %u packets", over, packets);
    }
    top.s_axi_awvalid = top.s_axi_wvalid = 0, top.eval(), engine.step();
    CHECK(engine.read(map::STATUS) == 0, "status");
    return {double(middle - first) / (packets / 2), double(engine.write_bytes) / packets, double(engine.read_bytes) / packets,
            double(engine.write_bursts + engine.read_bursts) / packets};
}

enum Way { SEND, DROP, RING };

// One direction alone: packets are received and kept, then all handed back. Returns the clocks a packet of both.
struct Alone {
    double in, back;
};

Alone alone(unsigned length, Way way, unsigned packets) {
    constexpr unsigned LOG = 12;
    constexpr uint64_t RINGS = Engine::POOL * Engine::POOLS, RING_BYTES = uint64_t(8) << LOG;
    static std::vector<uint8_t> memory(RINGS + CFG_T * RING_BYTES);
    std::memset(memory.data(), 0, memory.size());
    Engine engine(memory.data(), memory.size(), 0x100000000, 1);
    engine.shuffle = false;
    unsigned left = packets, in = 0, back = 0;
    uint64_t at[4] = {};
    auto note = [&](unsigned n, uint64_t *from) {
        if (n == packets / 4) from[0] = engine.clocks;
        if (n == packets * 3 / 4) from[1] = engine.clocks;
    };
    engine.source = [&](Packet &packet) {
        if (left == 0) return false;
        left--;
        packet.bytes.resize(length);
        return true;
    };
    std::deque<std::pair<unsigned, uint64_t>> found;
    engine.described = [&](uint64_t where) {
        Descriptor d;
        std::memcpy(&d, engine.at(where, sizeof d), sizeof d);
        uint64_t command = d.self + Engine::OFFSET - engine.base(d.thread);
        command |= way == SEND ? uint64_t(length) << map::COMMAND_LENGTH : uint64_t(1) << map::COMMAND_DROP;
        found.push_back({d.thread, command});
        note(++in, at);
    };
    engine.released = [&] { note(++back, at + 2); };
    for (unsigned t = 0; t < CFG_T; t++) engine.write(map::RING + 8 * t, (engine.bias + RINGS + t * RING_BYTES) | LOG);
    begin(engine);
    while (in < packets) engine.step();
    auto &top = engine.top;
    unsigned written[CFG_T] = {};
    for (auto [thread, command] : found) {
        if (way != RING) break;
        std::memcpy(&memory[RINGS + thread * RING_BYTES + 8 * written[thread]++], &command, sizeof command);
    }
    for (unsigned t = 0; way == RING && t < CFG_T; t++) engine.write(map::DOORBELL + 8 * t, written[t]);
    // No more commands than wait for a thread at most.
    for (uint64_t begin = engine.clocks, given = 0; back < packets; ) {
        top.s_axi_awvalid = top.s_axi_wvalid = way != RING && given < packets && given < back + CFG_COMMANDS;
        if (top.s_axi_awvalid) {
            auto [thread, command] = found[given++];
            top.s_axi_awaddr = map::COMMAND + 8 * thread, top.s_axi_wdata = command;
        }
        top.eval();
        CHECK(!top.s_axi_awvalid || (top.s_axi_awready && top.s_axi_wready), "a write each clock");
        engine.step();
        CHECK(engine.clocks - begin < 1000 + uint64_t(packets) * 4000, "%u of %u packets", back, packets);
    }
    top.s_axi_awvalid = top.s_axi_wvalid = 0, top.eval(), engine.step();
    CHECK((engine.read(map::STATUS) & ~uint64_t(1)) == 0, "status");
    return {double(at[1] - at[0]) / (packets / 2), double(at[3] - at[2]) / (packets / 2)};
}

}  // namespace

int main() {
    std::printf("%s, T=%d, %d bit\n\n", CFG_SHARED ? "SDB" : "TABM", CFG_T, CFG_W);
    std::printf("| bytes | clocks a packet, received and let go of | received and sent | MHz for 10 | 25 | 100 Gbit/s | bytes written | read | bursts |\n");
    std::printf("|---|---|---|---|---|---|---|---|---|\n");
    // The size of a frame includes its check sequence of 4 bytes, which is not in memory. On the line, preamble and gap
    // take 20 bytes more.
    for (unsigned size : {64u, 128u, 256u, 512u, 1024u, 1500u}) {
        unsigned packets = 4096;
        Measured in = measure(size - 4, false, packets), both = measure(size - 4, true, packets);
        std::printf("| %u | %.2f | %.2f |", size, in.clocks, both.clocks);
        for (double rate : {10e9, 25e9, 100e9}) std::printf(" %.0f |", rate / ((size + 20) * 8) * both.clocks / 1e6);
        std::printf(" %.0f | %.0f | %.1f |\n", both.written, both.read, both.bursts);
    }
    std::printf("\n| bytes, alone | received | sent | let go of by register | by ring |\n|---|---|---|---|---|\n");
    for (unsigned size : {64u, 1500u}) {
        unsigned length = size - 4;
        Alone sent = alone(length, SEND, 4096), dropped = alone(length, DROP, 4096), ring = alone(length, RING, 4096);
        std::printf("| %u | %.2f | %.2f | %.2f | %.2f |\n", size, sent.in, sent.back, dropped.back, ring.back);
    }
}
