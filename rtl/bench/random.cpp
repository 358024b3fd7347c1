// Compares the engine under random traffic with an oracle that mirrors the software engine unit by unit: the unit of
// each packet, its contents, and when each block returns. usage: random PACKETS [SEED] [MODE]
//
// The oracle has no clock. From the engine's trace it gets which packets were kept and in which order units were
// released, and derives from that alone where every packet must be.
#include "engine.h"

#include <memory>

namespace {

constexpr int T = CFG_T, POOLS = Engine::POOLS, BLOCKS = Engine::BLOCKS, UNITS = CFG_UNITS;
constexpr unsigned OFFSET = Engine::OFFSET, LONGEST = Engine::LONGEST, PORTS = 16;
// The rings lie behind the pools.
constexpr unsigned RING_LOG = 8;
constexpr uint64_t RINGS = Engine::POOL * POOLS, RING = uint64_t(8) << RING_LOG;

// Source of all packets' bytes: a packet's number gives the offset at which its bytes begin.
struct Bytes {
    std::vector<uint8_t> pool = std::vector<uint8_t>(1 << 16);
    Bytes() {
        Random random(7);
        for (auto &b : pool) b = uint8_t(random.next());
    }
    const uint8_t *at(uint64_t serial) const { return pool.data() + (serial * 0x9e3779b97f4a7c15 >> 49); }
    void fill(uint64_t serial, uint8_t *to, size_t n) const {
        std::memcpy(to, &serial, 8);
        std::memcpy(to + 8, at(serial), n - 8);
    }
    bool same(uint64_t serial, const uint8_t *from, size_t n) const {
        return std::memcmp(from, &serial, 8) == 0 && std::memcmp(from + 8, at(serial), n - 8) == 0;
    }
} const bytes;

// The software engine's pools: blocks in a queue, cells of the open one in order, releases counted by block.
struct Pool {
    std::deque<unsigned> free;
    unsigned open = 0, next = UNITS;
    std::vector<unsigned> released = std::vector<unsigned>(BLOCKS);
    enum State : uint8_t { FREE, HAND, HOST, BACK };  // with the engine; next of a thread; with the host; handed back
    std::vector<State> state = std::vector<State>(size_t(BLOCKS) * UNITS);
    uint64_t live = 0, returned = 0;

    bool take(unsigned &unit) {
        if (next == UNITS) {
            if (free.empty()) return false;
            open = free.front(), free.pop_front(), next = 0;
        }
        unit = open * UNITS + next++;
        CHECK(state[unit] == FREE, "unit %u is live twice", unit);
        state[unit] = HAND;
        return true;
    }
    // Releases a unit; returns whether it was the last of its block.
    bool release(unsigned unit) {
        CHECK(state[unit] == BACK, "unit %u is released and was not handed back", unit);
        state[unit] = FREE, live--;
        if (++released[unit / UNITS] < UNITS) return false;
        released[unit / UNITS] = 0, free.push_back(unit / UNITS), returned++;
        return true;
    }
};

struct Sent {
    uint64_t serial;
    uint32_t len;
    int shift;  // bytes put before the packet, or taken off its front
    uint8_t port;
    uint8_t thread;
    bool wanted;  // it must come out
};

struct Expected {
    uint64_t serial;
    uint32_t len;
    uint8_t port;
};

struct Thread {
    std::deque<Expected> kept, written;  // in the engine; in memory and not yet read by the host
    std::deque<unsigned> order;          // units handed back to be sent
    bool has = false;
    unsigned next = 0, reading = 0;      // the unit of the next packet: the oracle's, and where the host looks
    bool follows = false;
    uint32_t seq = 0, seen = 0, commands = 0, taken = 0, dropped = 0;
    std::deque<Expected> held;           // received by the host and kept for a while
    std::deque<unsigned> held_units;
    unsigned ring = 0;                   // log2 of its entries; 0: commands are register writes
    uint32_t told = 0;                   // commands by the doorbell
    unsigned speed = 256;                // turns out of 256 in which the thread works
    uint64_t received = 0;
};

struct Bench {
    std::vector<uint8_t> memory = std::vector<uint8_t>(RINGS + T * RING);
    Random random;
    Engine engine;
    std::vector<Pool> pools;
    std::vector<Thread> threads;
    std::vector<Sent> sent = std::vector<Sent>(size_t(POOLS) * BLOCKS * UNITS);
    unsigned channels = T;
    bool by_port = false, hold = false, running = false;
    unsigned turn = 0;
    uint64_t bytes_before = 0;
    uint8_t map_of[PORTS] = {};
    uint64_t serial = 0, wanted;
    uint64_t given = 0, kept = 0, dropped = 0, too_long = 0, damaged = 0, forwarded = 0, let_go = 0, no_port = 0, bad = 0,
             unread = 0, lost = 0, resets = 0, clears = 0, returned = 0;
    uint64_t now_too_long = 0, now_damaged = 0, now_sent = 0, now_no_port = 0, now_error = 0, now_released = 0, now_dropped = 0;
    bool mixed;   // errors of memory too

    Bench(uint64_t packets, uint64_t seed, bool mixed)
        : random(seed), engine(memory.data(), memory.size(), uint64_t(0x7) << 32, seed + 1), wanted(packets), mixed(mixed) {
        engine.source = [this](Packet &p) { return make(p); };
        engine.ended = [this](const Packet &p) { end(p); };
        engine.described = [this](uint64_t at) { describe(at); };
        engine.released = [this] { release(); };
        engine.sink = [this](const std::vector<uint8_t> &b, uint8_t port) { leave(b, port); };
        engine.spoilt = [this](uint64_t at) {
            uint64_t from = at - engine.bias;
            if (from < RINGS) sent[from / Engine::UNIT].wanted = false;
        };
    }

    unsigned pool_of(unsigned thread) const { return CFG_SHARED ? 0 : thread; }

    uint32_t length() {
        uint64_t what = random.below(1000);
        if (what < 600) return 64 + uint32_t(random.below(64));
        if (what < 988) return 64 + uint32_t(random.below(1455));
        if (what < 994) return LONGEST - uint32_t(random.below(3)) + uint32_t(random.below(2));
        return 64 + uint32_t(random.below(8937));
    }

    bool make(Packet &packet) {
        if (!running || given == wanted) return false;
        packet.bytes.resize(length());
        bytes.fill(serial++, packet.bytes.data(), packet.bytes.size());
        packet.port = uint8_t(random.below(PORTS));
        packet.damaged = random.below(1000) == 0;
        given++;
        return true;
    }

    void end(const Packet &packet) {
        unsigned thread = by_port ? map_of[packet.port] : turn;
        turn = turn + 1 >= channels ? 0 : turn + 1;
        CHECK(engine.top.trace_thread == thread, "thread %u, not %u", engine.top.trace_thread, thread);
        bool is_kept = engine.top.trace_kept, is_dropped = engine.top.trace_dropped;
        if (packet.damaged) {
            CHECK(!is_kept && !is_dropped, "a damaged packet");
            damaged++, now_damaged++;
        } else if (packet.bytes.size() > LONGEST) {
            CHECK(!is_kept && !is_dropped, "a packet of %zu", packet.bytes.size());
            too_long++, now_too_long++;
        } else {
            CHECK(is_kept != is_dropped && (is_kept || !hold), "a packet is kept or dropped");
            if (is_kept) {
                uint64_t number;
                std::memcpy(&number, packet.bytes.data(), 8);
                threads[thread].kept.push_back({number, uint32_t(packet.bytes.size()), packet.port});
                kept++;
            } else {
                threads[thread].dropped++, dropped++, now_dropped++;
            }
        }
    }

    // Threads without a unit take one in order of their numbers.
    void fill() {
        for (unsigned t = 0; t < channels; t++)
            if (!threads[t].has) threads[t].has = pools[pool_of(t)].take(threads[t].next);
    }

    void describe(uint64_t address) {
        Descriptor d;
        std::memcpy(&d, engine.at(address, sizeof d), sizeof d);
        uint64_t unit_at = address + 64 - OFFSET;
        CHECK(d.self == unit_at, "a descriptor of another unit");
        unsigned pool = unsigned((unit_at - engine.bias) / Engine::POOL);
        unsigned unit = unsigned((unit_at - engine.bias) % Engine::POOL / Engine::UNIT);
        unsigned t = 0;
        while (t < channels && !(threads[t].has && pool_of(t) == pool && threads[t].next == unit)) t++;
        CHECK(t < channels, "unit %u of pool %u is nobody's next", unit, pool);
        Thread &thread = threads[t];
        CHECK(!thread.kept.empty(), "a packet that never came");
        Expected e = thread.kept.front();
        thread.kept.pop_front();
        CHECK(d.len == e.len && d.port == e.port && d.thread == t && d.seq == ++thread.seq, "packet %lu", e.serial);
        CHECK(engine.write_bytes - bytes_before == e.len + sizeof d, "packet %lu: bytes beyond its end", e.serial);
        bytes_before = engine.write_bytes;
        pools[pool].state[unit] = Pool::HOST, pools[pool].live++;
        CHECK(pools[pool].take(thread.next), "thread %u: no unit was free for the next one", t);
        CHECK(d.next == engine.base(t) + thread.next * Engine::UNIT, "thread %u: unit %lu is next, not %u", t,
              (d.next - engine.base(t)) / Engine::UNIT, thread.next);
        thread.written.push_back(e);
    }

    void release() {
        unsigned pool = engine.top.trace_pool, unit = engine.top.trace_unit;
        bool last = pools[pool].release(unit);
        CHECK(bool(engine.top.trace_returned) == last, "pool %u, unit %u: %u of %u released", pool, unit,
              pools[pool].released[unit / UNITS], UNITS);
        returned += last, now_released++;
        Sent &s = sent[size_t(pool) * BLOCKS * UNITS + unit];
        if (!(engine.top.tx_tvalid && engine.top.tx_tready && engine.top.tx_tlast) && s.port < PORTS && s.shift != INT32_MAX) {
            // It should have been sent and was not, which is correct only if reading it failed.
            CHECK(!s.wanted, "packet %lu was not sent", s.serial);
            Thread &t = threads[s.thread];
            CHECK(!t.order.empty() && t.order.front() == unit, "thread %u: another packet was next", s.thread);
            t.order.pop_front();
            unread++, now_error++;
        }
    }

    void leave(const std::vector<uint8_t> &b, uint8_t port) {
        CHECK(engine.top.trace_released, "sent and not released");
        unsigned pool = engine.top.trace_pool, unit = engine.top.trace_unit;
        const Sent &s = sent[size_t(pool) * BLOCKS * UNITS + unit];
        CHECK(s.wanted, "packet %lu should not have been sent", s.serial);
        CHECK(port == s.port && b.size() == size_t(int(s.len) + s.shift), "packet %lu", s.serial);
        Thread &t = threads[s.thread];
        CHECK(!t.order.empty() && t.order.front() == unit, "thread %u: another packet was next", s.thread);
        t.order.pop_front();
        if (s.shift >= 0) {
            for (int i = 0; i < s.shift; i++) CHECK(b[i] == uint8_t(s.serial + i), "packet %lu: byte %d", s.serial, i);
            CHECK(bytes.same(s.serial, b.data() + s.shift, s.len), "packet %lu: its bytes", s.serial);
        } else {
            CHECK(std::memcmp(b.data(), bytes.at(s.serial) - s.shift - 8, b.size()) == 0, "packet %lu: its bytes", s.serial);
        }
        forwarded++, now_sent++;
    }

    // A thread looks for a packet, or hands one back.
    void host(unsigned t) {
        Thread &thread = threads[t];
        if (!random.chance(thread.speed)) return;
        uint64_t base = engine.base(t);
        unsigned pool = pool_of(t);
        if (thread.held.size() < 64) {
            Descriptor d;
            std::memcpy(&d, engine.at(base + thread.reading * Engine::UNIT + OFFSET - 64, sizeof d), sizeof d);
            if (d.thread == t && d.seq == thread.seen + 1) {
                CHECK(!thread.written.empty(), "thread %u finds a packet that is not there", t);
                Expected e = thread.written.front();
                thread.written.pop_front();
                CHECK(bytes.same(e.serial, engine.at(base + thread.reading * Engine::UNIT + OFFSET, e.len), e.len),
                      "packet %lu: its bytes in memory", e.serial);
                thread.held.push_back(e), thread.held_units.push_back(thread.reading);
                thread.reading = unsigned((d.next - base) / Engine::UNIT), thread.seen++, thread.received++;
            }
        }
        if (thread.ring && thread.told != thread.commands && (thread.held.empty() || random.chance(64))) {
            thread.told = thread.commands;
            engine.write(map::DOORBELL + 8 * t, thread.told & 0xffff);
        }
        if (thread.held.empty() || (thread.speed < 256 && random.chance(64))) return;
        uint32_t most = thread.ring ? 1u << thread.ring : CFG_COMMANDS;
        if (thread.commands - thread.taken == most) {
            thread.taken = uint32_t(engine.read(map::TAKEN + 8 * t));
            if (thread.commands - thread.taken == most) return;
        }
        // Not always the oldest.
        size_t which = random.below(4) ? 0 : random.below(thread.held.size());
        Expected e = thread.held[which];
        unsigned unit = thread.held_units[which];
        thread.held.erase(thread.held.begin() + which), thread.held_units.erase(thread.held_units.begin() + which);
        Sent &s = sent[size_t(pool) * BLOCKS * UNITS + unit];
        pools[pool].state[unit] = Pool::BACK;
        uint64_t what = random.below(1000), offset = uint64_t(unit) * Engine::UNIT + OFFSET;
        s = {e.serial, e.len, 0, uint8_t(random.below(PORTS)), uint8_t(t), true};
        uint64_t command;
        if (what < 100) {  // released
            s.shift = INT32_MAX, let_go++;
            command = offset | uint64_t(1) << map::COMMAND_DROP;
        } else if (what < 110) {
            s.port = uint8_t(PORTS + random.below(256 - PORTS)), no_port++, now_no_port++;
            command = offset | uint64_t(e.len) << map::COMMAND_LENGTH | uint64_t(s.port) << map::COMMAND_PORT;
        } else if (what < 112) {  // beyond its unit, or nothing
            uint64_t wrong = random.below(2) ? 0 : LONGEST + 1 + random.below(1000);
            s.shift = INT32_MAX, bad++, now_error++;
            command = offset | wrong << map::COMMAND_LENGTH | uint64_t(s.port) << map::COMMAND_PORT;
        } else {
            if (what < 400) {  // a header more, or less
                s.shift = what < 250 ? int(random.below(33)) : -int(8 + random.below(33));
                if (s.shift > 0 && e.len + s.shift > LONGEST) s.shift = 0;
                for (int i = 0; i < s.shift; i++) *engine.at(base + offset - s.shift + i, 1) = uint8_t(e.serial + i);
            }
            thread.order.push_back(unit);
            command = (offset - s.shift) | uint64_t(e.len + s.shift) << map::COMMAND_LENGTH | uint64_t(s.port) << map::COMMAND_PORT;
        }
        if (thread.ring) {
            uint32_t entry = thread.commands & ((1u << thread.ring) - 1);
            std::memcpy(engine.at(ring_of(t) + 8 * entry, 8), &command, 8);
        } else {
            engine.write(map::COMMAND + 8 * t, command);
        }
        thread.commands++;
    }
    uint64_t ring_of(unsigned t) const { return engine.bias + RINGS + t * RING; }

    // Stalls and speeds change all the time.
    void weather() {
        auto some = [&]() -> unsigned {
            uint64_t what = random.below(8);
            return what < 4 ? 0 : what < 7 ? unsigned(random.below(128)) : 128 + unsigned(random.below(120));
        };
        auto &s = engine.stalls;
        s.aw = some(), s.w = some(), s.b = some(), s.ar = some(), s.r = some(), s.rx = some(), s.tx = some();
        for (auto &thread : threads) {
            uint64_t what = random.below(16);
            thread.speed = what == 0 ? 0 : what < 4 ? unsigned(random.below(64)) : 256;
        }
        engine.read_errors = mixed && random.below(8) == 0 ? 20 : 0;
    }

    void control() {
        engine.write(map::CTRL, uint64_t(channels) << map::CTRL_CHANNELS | uint64_t(running) << map::CTRL_ENABLE |
                                    uint64_t(by_port) << map::CTRL_BY_PORT | uint64_t(hold) << map::CTRL_HOLD);
    }

    void start() {
        pools.assign(POOLS, {});
        threads.assign(T, {});
        now_too_long = now_damaged = now_sent = now_no_port = now_error = now_released = now_dropped = 0;
        turn = 0;
        channels = random.below(2) ? T : 1 + unsigned(random.below(T));
        by_port = random.below(4) == 0, hold = random.below(4) == 0;
        for (unsigned p = 0; p < PORTS; p++) {
            map_of[p] = uint8_t(random.below(channels));
            engine.write(map::PORT_MAP + 8 * p, map_of[p]);
        }
        for (unsigned t = 0; t < T; t++) {
            engine.write(map::BASE + 8 * t, engine.base(t));
            threads[t].ring = random.below(2) ? 0 : 5 + unsigned(random.below(RING_LOG - 4));
            if (threads[t].ring) engine.write(map::RING + 8 * t, ring_of(t) | threads[t].ring);
        }
        control();
        // Old descriptors must not be taken for new ones.
        for (uint64_t at = 0; at < RINGS; at += Engine::UNIT) std::memset(&memory[at + OFFSET - 64], 0, 64);
        bytes_before = engine.write_bytes;
        // Posted in any order; the engine hands them out in the same order.
        for (unsigned pool = 0; pool < (CFG_SHARED ? 1 : channels); pool++) {
            std::vector<unsigned> order(BLOCKS);
            for (unsigned i = 0; i < order.size(); i++) order[i] = i;
            for (unsigned i = 1; i < order.size(); i++) std::swap(order[i], order[random.below(i + 1)]);
            for (unsigned block : order) {
                engine.write(map::POST, block | uint64_t(pool) << map::POST_POOL);
                pools[pool].free.push_back(block);
                fill();
            }
        }
        for (int i = 0; i < 64; i++) engine.step();
        for (unsigned t = 0; t < channels; t++) {
            CHECK(engine.read(map::NEXT + 8 * t) == (threads[t].next | uint64_t(1) << 63), "thread %u begins elsewhere", t);
            threads[t].reading = threads[t].next;
        }
        running = true;
        control();
        weather();
    }

    // All units return, and the counters equal the oracle's.
    void finish() {
        running = false;
        for (auto &thread : threads) thread.speed = 256;
        engine.read_errors = 0;
        for (uint64_t i = 0; !done(); i++) {
            CHECK(i < 20000000, "it does not come to an end");
            host(unsigned(i % channels));
            engine.step();
        }
        // Checked only now, because a packet that is offered to a disabled engine waits.
        control();
        uint64_t live = 0;
        for (unsigned p = 0; p < POOLS; p++) {
            Pool &pool = pools[p];
            live += pool.live;
            uint64_t hand = 0;
            for (unsigned t = 0; t < channels; t++) hand += threads[t].has && pool_of(t) == p;
            // Free blocks, and the released and unassigned units of the others.
            uint64_t parked = 0;
            for (unsigned r : pool.released) parked += r;
            uint64_t all = pool.free.size() * UNITS + parked + hand + (UNITS - pool.next);
            if (p < (CFG_SHARED ? 1 : channels)) CHECK(all == uint64_t(BLOCKS) * UNITS, "pool %u: %lu units", p, all);
        }
        CHECK(live == 0, "%lu units did not come back", live);
        uint64_t pools_returned = 0;
        for (auto &pool : pools) pools_returned += pool.returned;
        same(map::RETURNED, pools_returned), same(map::RELEASED, now_released), same(map::TX_SENT, now_sent);
        same(map::TX_NO_PORT, now_no_port), same(map::TX_ERROR, now_error), same(map::RX_TOO_LONG, now_too_long);
        same(map::RX_ERROR, now_damaged);
        for (unsigned t = 0; t < channels; t++) {
            same(map::DISPATCHED + 8 * t, threads[t].seq), same(map::DROPPED + 8 * t, threads[t].dropped);
            same(map::TAKEN + 8 * t, threads[t].commands);
        }
        uint64_t errors = engine.read(map::STATUS) & ~(uint64_t(1) << map::STATUS_BAD_COMMAND | uint64_t(1) << map::STATUS_READ_ERROR);
        CHECK(errors == 0, "status %#lx", errors);
    }
    void same(uint32_t at, uint64_t expected) {
        uint64_t is = engine.read(at);
        CHECK(is == expected, "register %#x: %lu, not %lu", at, is, expected);
    }
    bool done() {
        if (!engine.quiet()) return false;
        for (auto &t : threads)
            if (!t.kept.empty() || !t.written.empty() || !t.held.empty() || !t.order.empty() || (t.ring && t.told != t.commands))
                return false;
        static unsigned calls;
        return ++calls % 64 == 0 && !(engine.read(map::STATUS) & 1);
    }

    void reset() {
        for (auto &t : threads) lost += t.kept.size() + t.written.size() + t.held.size();
        engine.reset();
        running = false, resets++;
        start();
    }
    void clear() {
        finish();
        engine.write(map::CTRL, 1 << map::CTRL_CLEAR);
        for (unsigned t = 0; t < T; t++) same(map::DISPATCHED + 8 * t, 0);
        same(map::STATUS, 0);
        clears++;
        start();
    }

    void run() {
        start();
        const uint64_t pause = 1000000;
        uint64_t next_reset = random.below(2 * pause), next_weather = 0, i = 0;
        while (given < wanted || !engine.quiet()) {
            if (++next_weather % 4096 == 0) weather();
            if (i++ > next_reset && given < wanted) {
                if (random.below(2)) reset(); else clear();
                next_reset = i + random.below(2 * pause) / 4;
            }
            host(unsigned(i % channels));
            engine.step();
        }
        finish();
        std::printf("random: T=%d M=%d B=%d W=%d unit=%lu %s: %lu packets in %lu clocks: %lu kept, %lu dropped, %lu too long, "
                    "%lu damaged; %lu sent, %lu let go of, %lu without a port, %lu bad, %lu unread; %lu resets (%lu packets lost), "
                    "%lu clears; %lu blocks returned, none missing\n",
                    T, UNITS, CFG_BLOCKS, CFG_W, Engine::UNIT, CFG_SHARED ? "SDB" : "TABM", given, engine.clocks, kept, dropped,
                    too_long, damaged, forwarded, let_go, no_port, bad, unread, resets, lost, clears, returned);
    }
};

}  // namespace

int main(int argc, char **argv) {
    uint64_t packets = argc > 1 ? std::strtoull(argv[1], nullptr, 0) : 10000;
    uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 1;
    auto bench = std::make_unique<Bench>(packets, seed, true);
    bench->run();
}
