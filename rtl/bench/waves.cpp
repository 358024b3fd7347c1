// Prints a receive, a release and a recycle as waveforms, for docs/rtl.md.
#include "engine.h"

namespace {

struct Wave {
    std::string name;
    std::function<bool()> is;
    std::string line = {};
};

void show(const char *title, Engine &engine, std::vector<Wave> waves, int clocks) {
    for (int i = 0; i < clocks; i++) {
        for (auto &w : waves) w.line += w.is() ? '#' : '_';
        engine.step();
    }
    std::printf("%s\n", title);
    for (auto &w : waves) std::printf("  %-18s %s\n", w.name.c_str(), w.line.c_str());
}

}  // namespace

int main() {
    std::vector<uint8_t> memory(Engine::POOL * CFG_T);
    Engine engine(memory.data(), memory.size(), 0x100000000, 1);
    auto &top = engine.top;
    unsigned packets = 0;
    engine.source = [&](Packet &packet) {
        if (packets == 0) return false;
        packets--;
        packet = {std::vector<uint8_t>(64), 0, false};
        return true;
    };
    engine.write(map::BASE, engine.base(0));
    for (unsigned block = 0; block < CFG_BLOCKS; block++) engine.write(map::POST, block);
    engine.write(map::CTRL, uint64_t(1) << map::CTRL_CHANNELS | 1 << map::CTRL_ENABLE);
    for (int i = 0; i < 20; i++) engine.step();

    packets = 1;
    show("A packet of 64 bytes is received (64 bit: 8 beats, then 4 of its descriptor)", engine,
         {{"rx_tvalid", [&] { return top.rx_tvalid; }},
          {"rx_tlast", [&] { return top.rx_tvalid && top.rx_tlast; }},
          {"m_axi_awvalid", [&] { return top.m_axi_awvalid; }},
          {"m_axi_wvalid", [&] { return top.m_axi_wvalid; }},
          {"m_axi_wlast", [&] { return top.m_axi_wvalid && top.m_axi_wlast; }},
          {"m_axi_bvalid", [&] { return top.m_axi_bvalid; }}},
         36);
    auto command = [&](uint64_t value) {
        top.s_axi_awaddr = map::COMMAND, top.s_axi_awvalid = 1, top.s_axi_wdata = value, top.s_axi_wvalid = 1;
        top.eval();
    };
    auto done = [&] {
        bool is = top.s_axi_awvalid;
        if (is) engine.step(), top.s_axi_awvalid = top.s_axi_wvalid = 0, top.eval();
    };
    command(Engine::OFFSET | uint64_t(64) << map::COMMAND_LENGTH);
    done();
    show("It is sent: its unit is released with its last beat", engine,
         {{"m_axi_arvalid", [&] { return top.m_axi_arvalid; }},
          {"m_axi_rvalid", [&] { return top.m_axi_rvalid; }},
          {"tx_tvalid", [&] { return top.tx_tvalid; }},
          {"tx_tlast", [&] { return top.tx_tvalid && top.tx_tlast; }},
          {"released", [&] { return top.trace_released; }}},
         36);
    packets = CFG_UNITS - 1;
    for (int i = 0; i < 2000; i++) engine.step();
    std::vector<Wave> waves = {{"released", [&] { return top.trace_released; }}, {"returned", [&] { return top.trace_returned; }}};
    unsigned unit = 1;
    waves.insert(waves.begin(), {"s_axi_awvalid", [&] {
                                     if (unit < CFG_UNITS && !top.s_axi_awvalid)
                                         command(unit++ * Engine::UNIT | uint64_t(1) << map::COMMAND_DROP);
                                     else if (top.s_axi_awvalid && unit < CFG_UNITS)
                                         command(unit++ * Engine::UNIT | uint64_t(1) << map::COMMAND_DROP);
                                     else
                                         top.s_axi_awvalid = top.s_axi_wvalid = 0, top.eval();
                                     return bool(top.s_axi_awvalid);
                                 }});
    show("The others of its block are let go of: with the sixteenth the block returns", engine, waves, 36);
}
