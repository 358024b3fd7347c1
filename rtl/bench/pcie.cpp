// The engine as a PCIe endpoint: registers, packets, descriptors and rings by TLPs only. The host answers reads in any order
// and in pieces, some with errors, and checks every TLP by the rules of the specification.
#include "Vnpe_endpoint.h"
#include "common.h"
#include "map.h"

namespace {

constexpr unsigned T = CFG_T, WB = CFG_W / 8, UNIT = 2048, OFFSET = 256, UNITS = CFG_UNITS, BLOCKS = CFG_BLOCKS;
constexpr uint64_t BASE = uint64_t(0x9) << 32, POOL = uint64_t(BLOCKS) * UNITS * UNIT, RING = T * POOL, SIZE = RING + 4096;
constexpr uint64_t BAR = 0xf0000000;
constexpr unsigned PAYLOAD = 256, REQUEST = 512, LOG = 5;

struct Tlp {
    uint32_t word[4];
    std::vector<uint8_t> data;
};

struct Read {
    uint64_t at;
    unsigned left;
};

struct Sent {
    std::vector<uint8_t> bytes;
    uint8_t port;
};

struct Bench {
    Vnpe_endpoint top;
    Random random{6};
    std::vector<uint8_t> memory = std::vector<uint8_t>(SIZE);
    std::deque<Tlp> down;            // to the engine, in order
    Tlp up{}, going{};
    size_t gone = 0;
    bool is_going = false;
    Read reads[256] = {};
    std::deque<uint64_t> answers;    // to register reads
    std::deque<unsigned> outcomes;
    uint8_t tag = 0;
    std::deque<uint8_t> tags;
    uint64_t clocks = 0, writes = 0, read_tlps = 0, completions = 0, errors = 0, refused = 0;
    unsigned slow = 240;
    std::deque<Sent> waiting;        // to be received by the ports
    size_t rx_at = 0;
    std::vector<uint8_t> tx;
    std::deque<Sent> left;

    uint8_t *at(uint64_t address, size_t n) {
        CHECK(address >= BASE && address + n <= BASE + SIZE, "address %#lx", address);
        return &memory[address - BASE];
    }

    void take(const Tlp &t) {
        unsigned format = t.word[0] >> 29, type = t.word[0] >> 24 & 31, words = t.word[0] & 1023 ? t.word[0] & 1023 : 1024;
        unsigned first = t.word[1] & 15, last = t.word[1] >> 4 & 15;
        bool data = format & 2;
        CHECK(format < 4 && (t.word[0] & 0xfffc00) == 0, "word 0: %#x", t.word[0]);
        CHECK(data ? t.data.size() == (words * 4 + WB - 1) / WB * WB : t.data.size() == WB, "%u words, %zu bytes", words, t.data.size());
        if (type == 10) {  // the answer to a register read
            CHECK(!tags.empty() && t.word[2] >> 8 == (0x0100u << 8 | tags.front()), "an answer to nothing: %#x", t.word[2]);
            CHECK(t.word[1] >> 16 == 0x1234 && (t.word[1] & 0xfff) == 8, "its completer and bytes: %#x", t.word[1]);
            unsigned status = t.word[1] >> 13 & 7;
            CHECK(data == (status == 0) && (!data || words == 2), "its status: %u", status);
            uint64_t value;
            std::memcpy(&value, t.data.data(), 8);
            tags.pop_front(), outcomes.push_back(status), answers.push_back(value);
            return;
        }
        CHECK(type == 0 && t.word[1] >> 16 == 0x1234, "type %u", type);
        bool four = format & 1;
        uint64_t address = four ? uint64_t(t.word[2]) << 32 | t.word[3] : t.word[2];
        CHECK(!four || t.word[2], "four words for a low address");
        CHECK(address % 4 == 0 && address / 4096 == (address + words * 4 - 1) / 4096, "%u words at %#lx", words, address);
        if (data) {
            CHECK(words * 4 <= PAYLOAD, "a payload of %u words", words);
            CHECK(words == 1 ? first && !last : first == 15 && last, "enables %x, %x of %u words", first, last, words);
            for (unsigned i = 0; i < words * 4; i++) {
                unsigned enables = i < 4 ? first : i / 4 == words - 1 ? last : 15;
                if (enables >> i % 4 & 1) *at(address + i, 1) = t.data[i];
            }
            writes++;
        } else {
            uint8_t id = t.word[1] >> 8;
            CHECK(words * 4 <= REQUEST && reads[id].left == 0, "a read of %u words by tag %u", words, id);
            at(address, words * 4);
            reads[id] = {address, words * 4}, read_tlps++;
        }
    }

    // A piece of the answer to any read; pieces end at multiples of 64 bytes.
    bool answer() {
        unsigned n = 0, id = 0;
        for (auto &r : reads) n += r.left != 0;
        if (n == 0) return false;
        for (n = unsigned(random.below(n)); !reads[id].left || n-- > 0;) id++;
        Read &r = reads[id];
        unsigned most = unsigned(64 - r.at % 64 + 64 * random.below(4)), bytes = r.left < most ? r.left : most;
        bool fails = random.below(300) == 0;
        going = {{0x4a000000u | bytes / 4, (fails ? 1u << 13 : 0) | (r.left & 4095), 0x12340000u | id << 8 | uint32_t(r.at & 127), 0}, {}};
        going.data.assign(memory.begin() + long(r.at - BASE), memory.begin() + long(r.at - BASE + bytes));
        if (fails) {
            going.word[0] = 0x0a000000, going.data.clear();
            r.left = 0, errors++;
        } else {
            if (random.below(300) == 0) going.word[0] |= 1 << 14, errors++;  // poisoned
            r.at += bytes, r.left -= bytes;
        }
        completions++;
        return true;
    }

    void step() {
        clocks++;
        if (!is_going && random.chance(slow)) {
            if (!down.empty() && random.below(2)) {
                going = down.front(), down.pop_front(), is_going = true;
            } else {
                is_going = answer();
            }
            gone = 0;
        }
        top.pcie_rx_valid = is_going && (top.pcie_rx_valid || random.chance(slow));
        uint8_t beat[WB] = {};
        if (is_going) {
            size_t n = going.data.size() - gone < WB ? going.data.size() - gone : WB;
            if (n) std::memcpy(beat, &going.data[gone], n);
            put(top.pcie_rx_data, beat, WB);
            uint32_t header[4] = {going.word[3], going.word[2], going.word[1], going.word[0]};
            top.pcie_rx_first = gone == 0, top.pcie_rx_last = gone + WB >= going.data.size();
            if (gone) for (auto &word : header) word = uint32_t(random.next());  // valid with the first beat only
            put(top.pcie_rx_header, header, 16);
        }
        top.pcie_tx_ready = random.chance(slow);
        if (!top.rx_tvalid && !waiting.empty() && random.chance(slow)) {
            const Sent &p = waiting.front();
            size_t n = p.bytes.size() - rx_at < WB ? p.bytes.size() - rx_at : WB;
            std::memcpy(beat, &p.bytes[rx_at], n), put(top.rx_tdata, beat, WB);
            uint64_t keep = ones(n);
            put(top.rx_tkeep, &keep, sizeof top.rx_tkeep);
            top.rx_tlast = rx_at + WB >= p.bytes.size(), top.rx_tid = p.port, top.rx_tvalid = 1;
        }
        top.tx_tready = random.chance(slow);
        top.eval();
        bool rx = top.rx_tvalid && top.rx_tready;
        if (top.pcie_rx_valid && top.pcie_rx_ready) {
            gone += WB;
            if (gone >= going.data.size()) is_going = false;
        }
        refused += top.refused;
        if (top.pcie_tx_valid && top.pcie_tx_ready) {
            if (top.pcie_tx_first) {
                CHECK(up.data.empty(), "a TLP within a TLP");
                uint32_t header[4];
                get(top.pcie_tx_header, header, 16);
                for (int i = 0; i < 4; i++) up.word[i] = header[3 - i];
            }
            get(top.pcie_tx_data, beat, WB);
            up.data.insert(up.data.end(), beat, beat + WB);
            if (top.pcie_tx_last) take(up), up.data.clear();
        }
        if (top.tx_tvalid && top.tx_tready) {
            uint64_t keep = 0;
            std::memcpy(&keep, &top.tx_tkeep, sizeof top.tx_tkeep);
            get(top.tx_tdata, beat, WB);
            tx.insert(tx.end(), beat, beat + (64 - __builtin_clzll(keep | 1)));
            if (top.tx_tlast) left.push_back({tx, top.tx_tdest}), tx.clear();
        }
        bool ended = !is_going;
        top.clk = 1, top.eval();
        if (ended) top.pcie_rx_valid = 0;
        if (rx) {
            top.rx_tvalid = 0, rx_at += WB;
            if (rx_at >= waiting.front().bytes.size()) waiting.pop_front(), rx_at = 0;
        }
        top.clk = 0, top.eval();
    }

    static Tlp request(bool write, uint32_t at, unsigned words, uint8_t tag) {
        return {{(write ? 1u << 30 : 0) | words, 0x01000000u | uint32_t(tag) << 8 | (words == 1 ? 0x0fu : 0xffu), uint32_t(BAR) + at, 0}, {}};
    }
    void write(uint32_t at, uint64_t value) {
        Tlp t = request(true, at, 2, 0);
        t.data.resize(8), std::memcpy(t.data.data(), &value, 8);
        down.push_back(t);
    }
    uint64_t read(uint32_t at, unsigned words = 2, unsigned expected = 0) {
        down.push_back(request(false, at, words, ++tag)), tags.push_back(tag);
        for (int i = 0; answers.empty(); i++, step()) CHECK(i < 100000, "register %#x is not answered", at);
        CHECK(outcomes.front() == expected, "register %#x: status %u", at, outcomes.front());
        uint64_t value = answers.front();
        answers.pop_front(), outcomes.pop_front();
        return value;
    }
};

}  // namespace

int main() {
    static Bench bench;
    Bench &b = bench;
    b.top.id = 0x1234;
    b.top.rst = 1, b.top.clk = 0, b.top.eval(), b.top.clk = 1, b.top.eval();
    b.top.clk = 0, b.top.rst = 0, b.top.eval();

    CHECK(b.read(map::ID) >> 32 == 0x4259574e, "the magic number");
    // Not of a whole register: the read is refused, the writes change nothing.
    b.read(map::ID, 1, 1);
    b.down.push_back(Bench::request(true, map::CTRL, 1, 0)), b.down.back().data.assign(4, 0xff);
    b.down.push_back(Bench::request(true, map::CTRL, 16, 0)), b.down.back().data.assign(64, 0xff);
    CHECK(b.read(map::CTRL) == 0 && b.refused == 3, "%lu requests refused", b.refused);
    b.read(0x7f8, 2, 1);  // no register
    uint64_t next[T];
    for (unsigned t = 0; t < T; t++) {
        b.write(map::BASE + 8 * t, BASE + t * POOL);
        for (unsigned n = 0; n < BLOCKS; n++) b.write(map::POST, n | uint64_t(t) << map::POST_POOL);
        // Every other thread has a ring.
        if (t % 2 == 0) b.write(map::RING + 8 * t, (BASE + RING + t * (8u << LOG)) | LOG);
    }
    const uint64_t control = uint64_t(T) << map::CTRL_CHANNELS | 1 << map::CTRL_HOLD;
    b.write(map::CTRL, control);
    for (unsigned t = 0; t < T; t++) {
        while (!((next[t] = b.read(map::NEXT + 8 * t)) >> 63)) {}
        next[t] = (next[t] & 0xffffffff) * UNIT + BASE + t * POOL;
    }
    b.write(map::CTRL, control | 1 << map::CTRL_ENABLE);

    uint32_t seq[T] = {}, commands[T] = {};
    uint64_t packets = 0, dropped = 0, sent = 0, turn = 0, checked = 0;
    std::deque<Sent> expected[T];      // by thread, received
    std::deque<Sent> leaving[T];       // by thread, to be sent
    auto look = [&](unsigned t) -> bool {
        Descriptor d;
        std::memcpy(&d, b.at(next[t] + OFFSET - 64, sizeof d), sizeof d);
        if (d.seq != seq[t] + 1 || d.thread != t) return false;
        const Sent &e = expected[t].front();
        CHECK(d.self == next[t] && d.len == e.bytes.size() && d.port == e.port, "packet %u of thread %u", d.seq, t);
        CHECK(std::memcmp(b.at(next[t] + OFFSET, d.len), e.bytes.data(), d.len) == 0, "packet %u of thread %u: its bytes", d.seq, t);
        uint64_t command = next[t] + OFFSET - BASE - t * POOL;
        if (b.random.below(4) == 0) {
            command |= uint64_t(1) << map::COMMAND_DROP, dropped++;
        } else {
            command |= uint64_t(d.len) << map::COMMAND_LENGTH | uint64_t(d.port) << map::COMMAND_PORT;
            leaving[t].push_back(e);
        }
        if (t % 2 == 0) {
            std::memcpy(b.at(BASE + RING + t * (8u << LOG) + 8 * (commands[t] % (1u << LOG)), 8), &command, 8);
            b.write(map::DOORBELL + 8 * t, (commands[t] + 1) & 0xffff);
        } else {
            b.write(map::COMMAND + 8 * t, command);
        }
        commands[t]++, seq[t]++, next[t] = d.next, expected[t].pop_front();
        return true;
    };
    for (int phase = 0; phase < 1500; phase++) {
        b.slow = phase % 16 == 0 ? 40 : 240;
        unsigned n = 1 + unsigned(b.random.below(8));
        for (unsigned i = 0; i < n; i++) {
            Sent p{std::vector<uint8_t>(1 + b.random.below(b.random.below(3) ? 300 : UNIT - OFFSET)), uint8_t(b.random.below(16))};
            for (auto &byte : p.bytes) byte = uint8_t(b.random.next());
            expected[turn++ % T].push_back(p), b.waiting.push_back(p), packets++;
        }
        if (phase % 2) {
            // An answer does not overtake writes: if the engine is idle, all packets are in memory.
            while (!b.waiting.empty()) b.step();
            while (b.read(map::STATUS) & 1) {}
            for (unsigned t = 0; t < T; t++) {
                for (; !expected[t].empty(); checked++) CHECK(look(t), "thread %u: idle, and a packet is missing", t);
            }
        }
        // The host catches up; what left is what was to leave.
        for (int i = 0; ; i++) {
            CHECK(i < 200000, "packets do not come");
            bool all = b.waiting.empty();
            for (unsigned t = 0; t < T; t++) look(t), all = all && expected[t].empty();
            if (all) break;
            b.step();
        }
        if (phase % 4 == 0) continue;
        while (b.read(map::RELEASED) != packets) {}
        for (; !b.left.empty(); b.left.pop_front(), sent++) {
            bool found = false;
            for (auto &queue : leaving) {
                // Packets that could not be read are missing in their thread's order.
                for (size_t skip = 0; !found && skip < queue.size(); skip++) {
                    if (queue[skip].port != b.left.front().port || queue[skip].bytes != b.left.front().bytes) continue;
                    queue.erase(queue.begin(), queue.begin() + long(skip) + 1), found = true;
                }
            }
            CHECK(found, "a packet of %zu bytes that was not to leave", b.left.front().bytes.size());
        }
        for (auto &queue : leaving) queue.clear();
    }
    while (b.read(map::STATUS) & 1) {}
    uint64_t lost = b.read(map::TX_ERROR);
    CHECK(b.read(map::TX_SENT) + lost + dropped == packets && lost <= b.errors && b.errors > 10, "%lu lost, %lu errors", lost, b.errors);
    CHECK((b.read(map::STATUS) & ~(1ull << map::STATUS_READ_ERROR)) == 0, "status");
    std::printf("pcie: T=%u W=%u: %lu packets, %lu sent, %lu dropped, %lu not read; %lu writes, %lu reads in %lu completions, %lu failed; "
                "%lu packets in memory before an answer, none later\n", T, WB * 8, packets, sent, dropped, lost, b.writes, b.read_tlps,
                b.completions, b.errors, checked);
}
