// One thread: packets are received, found by following their descriptors, and released; blocks come back.
#include "engine.h"

int main() {
    std::vector<uint8_t> memory(Engine::POOL * CFG_T);
    Engine engine(memory.data(), memory.size(), 0x100000000, 1);
    uint64_t at;
    CHECK(engine.read(map::ID) >> 32 == 0x4259574e, "the magic number");
    uint64_t params = engine.read(map::PARAMS);
    CHECK((params & 31) == CFG_T && (params >> 40) == Engine::OFFSET, "parameters: %#lx", params);
    CHECK(engine.read(map::NEXT) >> 63 == 0, "no block, no unit");
    engine.write(map::BASE, engine.base(0));
    for (unsigned block = 0; block < CFG_BLOCKS; block++) engine.write(map::POST, block);
    engine.write(map::CTRL, uint64_t(1) << map::CTRL_CHANNELS);
    for (int i = 0; i < 20; i++) engine.step();
    at = engine.read(map::NEXT);
    CHECK(at == uint64_t(1) << 63, "the first unit of the first block: %#lx", at);

    const unsigned packets = 3 * CFG_BLOCKS * CFG_UNITS;
    unsigned given = 0;
    auto content = [](unsigned n) { return std::vector<uint8_t>(64 + n % 200, uint8_t(n)); };
    engine.source = [&](Packet &packet) {
        if (given == packets) return false;
        packet = {content(given++), 3, false};
        return true;
    };
    engine.write(map::CTRL, uint64_t(1) << map::CTRL_CHANNELS | 1 << map::CTRL_ENABLE | 1 << map::CTRL_HOLD);
    uint64_t unit = engine.base(0);
    for (unsigned n = 0; n < packets; n++) {
        Descriptor found;
        const uint8_t *from = engine.at(unit + Engine::OFFSET - 64, sizeof found);
        for (unsigned i = 0;; i++, engine.step()) {
            std::memcpy(&found, from, sizeof found);
            if (found.seq == n + 1) break;
            CHECK(i < 1000, "packet %u does not come", n);
        }
        auto expected = content(n);
        CHECK(found.self == unit && found.len == expected.size() && found.port == 3 && found.thread == 0, "packet %u", n);
        CHECK(std::memcmp(engine.at(unit + Engine::OFFSET, found.len), expected.data(), found.len) == 0, "packet %u", n);
        CHECK(found.next % Engine::UNIT == 0, "packet %u", n);
        if (n % CFG_UNITS != CFG_UNITS - 1) CHECK(found.next == unit + Engine::UNIT, "packet %u: consecutive", n);
        engine.write(map::COMMAND, (unit - engine.base(0)) | uint64_t(1) << map::COMMAND_DROP);
        unit = found.next;
    }
    for (int i = 0; i < 20; i++) engine.step();
    CHECK(engine.read(map::RELEASED) == packets && engine.read(map::RETURNED) == packets / CFG_UNITS, "all came back");
    CHECK(engine.read(map::STATUS) == 0, "no error, nothing under way");
    std::printf("first: %u packets received and released, %u blocks returned\n", packets, packets / CFG_UNITS);
}
