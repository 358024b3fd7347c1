// Measures clocks and memory bus traffic a packet, without stalls. Prints tables for docs/rtl.md.
#include "engine.h"

namespace {

struct Measured {
    double clocks, written, read, bursts;
};

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
    for (unsigned t = 0; t < CFG_T; t++) engine.write(map::BASE + 8 * t, engine.base(t));
    for (unsigned pool = 0; pool < Engine::POOLS; pool++)
        for (unsigned block = 0; block < Engine::BLOCKS; block++) engine.write(map::POST, block | pool << map::POST_POOL);
    engine.write(map::CTRL, uint64_t(CFG_T) << map::CTRL_CHANNELS | 1 << map::CTRL_ENABLE | 1 << map::CTRL_HOLD);
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

}  // namespace

int main() {
    std::printf("%s, T=%d, %d bit\n\n", CFG_SHARED ? "SDB" : "TABM", CFG_T, CFG_W);
    std::printf("| bytes | clocks a packet, received and let go of | received and sent | MHz for 10 | 25 | 100 Gbit/s | bytes written | read | bursts |\n");
    std::printf("|---|---|---|---|---|---|---|---|---|\n");
    for (unsigned length : {64u, 128u, 256u, 512u, 1024u, 1500u}) {
        unsigned packets = 4096;
        Measured in = measure(length, false, packets), both = measure(length, true, packets);
        std::printf("| %u | %.2f | %.2f |", length, in.clocks, both.clocks);
        for (double rate : {10e9, 25e9, 100e9}) std::printf(" %.0f |", rate / ((length + 24) * 8) * both.clocks / 1e6);
        std::printf(" %.0f | %.0f | %.1f |\n", both.written, both.read, both.bursts);
    }
}
