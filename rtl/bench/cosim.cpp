// Runs the simulated engine as a process for the host driver: registers and packets of the ports by messages on
// standard input and output, packets by the memory that both have mapped.
// usage: cosim FILE SIZE BIAS     (the memory, its size in bytes, the engine's address of the first byte)
//
// A message has 16 bytes, little endian: type (1), port (1), 0 (2), length or register (4), value (8); then its packet.
//   1 write a register                                -> 1
//   2 read a register                                 -> 2, value
//   3 receive a packet by a port
//   4 run until idle, at most `value` clocks          -> 3 for each packet sent, then 4, packets that still wait
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine.h"

namespace {

struct Message {
    uint8_t what, port;
    uint16_t zero;
    uint32_t length;
    uint64_t value;
};
static_assert(sizeof(Message) == 16, "as on the wire");

void say(const Message &m, const uint8_t *bytes = nullptr) {
    std::fwrite(&m, sizeof m, 1, stdout);
    if (bytes) std::fwrite(bytes, 1, m.length, stdout);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 4) {
        std::fprintf(stderr, "usage: cosim FILE SIZE BIAS\n");
        return 2;
    }
    int fd = open(argv[1], O_RDWR);
    size_t size = std::strtoull(argv[2], nullptr, 0);
    void *memory = fd < 0 ? MAP_FAILED : mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        std::perror(argv[1]);
        return 1;
    }
    Engine engine(static_cast<uint8_t *>(memory), size, std::strtoull(argv[3], nullptr, 0), 1);
    // Memory that stalls.
    engine.stalls = {32, 32, 32, 32, 32, 0, 32};

    std::deque<Packet> waiting;
    uint64_t line = 0;  // the line is busy until this clock: it is half as fast as the engine's path to memory
    engine.source = [&](Packet &packet) {
        if (waiting.empty() || engine.clocks < line) return false;
        packet = std::move(waiting.front());
        waiting.pop_front();
        line = engine.clocks + 3 * (packet.bytes.size() / Engine::WB) + 16;
        return true;
    };
    // Reported at the next run, because a packet may also leave while a register is accessed.
    std::deque<Packet> left;
    engine.sink = [&](const std::vector<uint8_t> &bytes, uint8_t port) { left.push_back({bytes, port, false}); };

    Message m;
    while (std::fread(&m, sizeof m, 1, stdin) == 1) {
        switch (m.what) {
        case 1:
            engine.write(m.length, m.value);
            say({1, 0, 0, m.length, 0});
            break;
        case 2: say({2, 0, 0, m.length, engine.read(m.length)}); break;
        case 3: {
            Packet packet{std::vector<uint8_t>(m.length), m.port, false};
            if (std::fread(packet.bytes.data(), 1, m.length, stdin) != m.length) return 1;
            waiting.push_back(std::move(packet));
            break;
        }
        case 4:
            for (uint64_t i = 0; i < m.value; i++) {
                engine.step();
                if (i % 64 == 63 && waiting.empty() && engine.quiet() && !(engine.read(map::STATUS) & 1)) break;
            }
            for (const Packet &p : left) say({3, p.port, 0, uint32_t(p.bytes.size()), 0}, p.bytes.data());
            left.clear();
            say({4, 0, 0, 0, waiting.size()});
            break;
        default: std::fprintf(stderr, "cosim: message %u\n", m.what); return 1;
        }
        if (m.what != 3) std::fflush(stdout);
    }
}
