// npe_regs alone: every register by random accesses, with events in any clock, against a model of the map.
#include <map>

#include "Vnpe_regs.h"
#include "common.h"
#include "map.h"

constexpr unsigned T = 3, PORTS = 4, POOLS = 3, BW = 2, UW = 6;

struct Model {
    bool enable = false, by_port = false, hold = false;
    unsigned channels = 0, errors = 0;
    uint64_t base[T] = {}, port_map[PORTS] = {}, too_long = 0, damaged = 0, sent = 0, no_port = 0, tx_error = 0, released = 0,
             returned = 0;
    uint32_t dropped[T] = {};
};

Vnpe_regs top;
Random random_(4);
Model model;
bool posting = false;
unsigned post_pool = 0, post_block = 0;
uint64_t commands = 0, posts = 0, clears = 0, refusals = 0;

bool in(uint32_t at, uint32_t first, unsigned n) { return at >> 7 == first >> 7 && (at & 127) / 8 < n; }

// One clock, with random events; what a write that is accepted in it does.
void step() {
    auto some = [&] { return random_.chance(40); };
    if (random_.chance(16)) top.busy = random_.below(2);
    top.post_ready = random_.chance(100);
    top.write_failed = random_.chance(2), top.read_failed = random_.chance(2), top.bad_command = random_.chance(2);
    top.command_lost = random_.chance(2), top.bad_post = random_.chance(2), top.bad_release = random_.chance(2);
    top.too_long = some(), top.damaged = some(), top.dropped = some(), top.dropped_thread = random_.below(T);
    top.sent = some(), top.no_port = some(), top.send_failed = some(), top.bad_send = some(), top.released = some();
    top.returned = some();
    top.eval();

    Model &m = model;
    bool write = top.awvalid && top.awready;
    CHECK(bool(top.wvalid && top.wready) == write, "address and data together");
    uint32_t at = top.awaddr;
    uint64_t value = top.wdata;
    unsigned index = (at & 127) / 8;
    bool clear = false, bad = false, clear_refused = false, posts_now = false;
    CHECK(top.enable == m.enable && top.by_port == m.by_port && top.hold == m.hold && top.channels == m.channels, "CTRL");
    CHECK(bool(top.post_valid) == posting, "POST");
    if (posting) CHECK(top.post_pool == post_pool && top.post_block == post_block, "block %u of %u", post_block, post_pool);
    bool command = write && in(at, map::COMMAND, T), ring = write && in(at, map::RING, T), bell = write && in(at, map::DOORBELL, T);
    CHECK(bool(top.command) == command && bool(top.ring_set) == ring && bool(top.bell) == bell, "a write to %#x", at);
    if (command) CHECK(top.command_data == (value & ones(57)), "a command");
    if (command || ring || bell) CHECK(top.command_thread == index && top.written == value, "its thread and value");
    commands += command;
    if (write && at == map::CTRL) {
        clear = (value >> map::CTRL_CLEAR & 1) && !top.busy && !m.enable;
        clear_refused = (value >> map::CTRL_CLEAR & 1) && !clear;
        m.enable = value >> map::CTRL_ENABLE & 1, m.by_port = value >> map::CTRL_BY_PORT & 1, m.hold = value >> map::CTRL_HOLD & 1;
        m.channels = value >> map::CTRL_CHANNELS & 31;
        if (m.channels > T) m.channels = T;
    }
    CHECK(bool(top.clear) == clear, "CLEAR");
    if (write && in(at, map::BASE, T)) m.base[index] = value & ~uint64_t(4095);
    if (write && in(at, map::PORT_MAP, PORTS)) m.port_map[index] = value & 3;
    if (write && at == map::POST) {
        unsigned block = value & 0xffff, pool = value >> map::POST_POOL & 31;
        bad = pool >= POOLS || block >> BW != 0;
        if (!bad) posts_now = true, post_pool = pool, post_block = block;
    }
    unsigned w1c = write && at == map::STATUS ? value >> 8 & 127 : 0;
    m.errors = (m.errors & ~w1c) | top.write_failed | top.read_failed << 1 | top.bad_command << 2 | top.command_lost << 3 |
               (top.bad_post || bad) << 4 | top.bad_release << 5 | clear_refused << 6;
    m.too_long += top.too_long, m.damaged += top.damaged, m.sent += top.sent, m.no_port += top.no_port;
    m.tx_error += top.send_failed + top.bad_send, m.released += top.released, m.returned += top.returned;
    if (top.dropped) m.dropped[top.dropped_thread]++;
    if (clear) {
        m.errors = 0, m.too_long = m.damaged = m.sent = m.no_port = m.tx_error = m.released = m.returned = 0;
        for (auto &n : m.dropped) n = 0;
        clears++;
    }
    refusals += clear_refused;
    if (posting && top.post_ready) posting = false, posts++;
    if (posts_now) posting = true;
    top.clk = 1, top.eval(), top.clk = 0, top.eval();
}

// Returns whether the map has a register at `at`, and its value before the next clock.
bool value_of(uint32_t at, uint64_t &value) {
    const Model &m = model;
    unsigned n = (at & 127) / 8;
    auto word = [&](const auto &of) { uint32_t w[T]; get(of, w, sizeof w); return w[n]; };
    value = 0;
    switch (at >> 7) {
    case map::BASE >> 7: value = n < T ? m.base[n] : 0; return true;
    case map::PORT_MAP >> 7: value = n < PORTS ? m.port_map[n] : 0; return true;
    case map::NEXT >> 7: value = n < T ? uint64_t(top.next_valid >> n & 1) << 63 | (top.next >> n * UW & 63) : 0; return true;
    case map::DISPATCHED >> 7: value = n < T ? word(top.seq) : 0; return true;
    case map::DROPPED >> 7: value = n < T ? m.dropped[n] : 0; return true;
    case map::TAKEN >> 7: value = n < T ? word(top.taken) : 0; return true;
    }
    const std::map<uint32_t, uint64_t> others = {
        {map::ID, 0x4259574eull << 32 | map::VERSION},
        {map::PARAMS, T | PORTS << 8 | 2 << 16 | 4 << 21 | 11ull << 26 | 6ull << 32 | 256ull << 40},
        {map::CTRL, uint64_t(m.channels) << 8 | m.hold << 2 | m.by_port << 1 | uint64_t(m.enable)},
        {map::STATUS, uint64_t(m.errors) << 8 | top.busy}, {map::RX_TOO_LONG, m.too_long}, {map::RX_ERROR, m.damaged},
        {map::TX_SENT, m.sent}, {map::TX_NO_PORT, m.no_port}, {map::TX_ERROR, m.tx_error}, {map::RELEASED, m.released},
        {map::RETURNED, m.returned}};
    auto found = others.find(at);
    if (found != others.end()) value = found->second;
    return found != others.end();
}

int main() {
    top.rst = 1, top.clk = 0, top.eval(), top.clk = 1, top.eval();
    top.clk = 0, top.rst = 0, top.eval();
    for (unsigned n = 0; n < T; n++) {  // what a reset leaves undefined
        top.awaddr = map::BASE + 8 * n, top.awvalid = top.wvalid = 1, top.wdata = 0, top.wstrb = 0xff, top.bready = 1;
        step();
    }
    for (unsigned n = 0; n < PORTS; n++) top.awaddr = map::PORT_MAP + 8 * n, step();
    top.awvalid = top.wvalid = 0, step();
    const uint32_t tables[] = {map::BASE, map::PORT_MAP, map::COMMAND, map::NEXT, map::DISPATCHED, map::DROPPED, map::TAKEN,
                               map::RING, map::DOORBELL};
    uint64_t unknown = 0, answered = 0;
    for (int i = 0; i < 40000; i++) {
        uint32_t at = random_.below(3) ? uint32_t(random_.below(16)) * 8 : tables[random_.below(9)] + uint32_t(random_.below(6)) * 8;
        if (random_.below(50) == 0) at = uint32_t(random_.below(512)) * 8;
        uint32_t all[T];
        for (auto &n : all) n = uint32_t(random_.next());
        if (random_.chance(64)) {
            top.next_valid = random_.below(8), top.next = random_.below(1 << T * UW);
            put(top.seq, all, sizeof all), put(top.taken, all, sizeof all);
        }
        if (random_.below(2)) {
            top.awaddr = at, top.wdata = random_.next(), top.wstrb = random_.below(20) ? 0xff : 0x0f;
            if (at == map::CTRL && random_.below(2)) top.wdata = 1 << map::CTRL_CLEAR;
            if (at == map::POST) top.wdata = random_.below(5) | random_.below(4) << map::POST_POOL;
            bool done = false;
            top.awvalid = top.wvalid = 0, top.bready = random_.below(2);
            while (!done) {
                if (!top.awvalid) top.awvalid = random_.below(2);
                if (!top.wvalid) top.wvalid = random_.below(2);
                top.eval();
                done = top.awvalid && top.awready;
                CHECK(!done || top.wvalid, "data that is not there");
                step();
            }
            top.awvalid = top.wvalid = 0, top.eval();
            bool known = at == map::CTRL || at == map::STATUS || at == map::POST || in(at, map::BASE, T) || in(at, map::COMMAND, T) ||
                         in(at, map::PORT_MAP, PORTS) || in(at, map::RING, T) || in(at, map::DOORBELL, T);
            CHECK(top.bvalid && top.bresp == (known && top.wstrb == 0xff ? 0 : 2), "a write to %#x", at);
            while (!top.bready) step(), top.bready = random_.below(2);
            step();
            CHECK(!top.bvalid, "one answer");
        } else {
            uint64_t value;
            top.araddr = at, top.arvalid = 1, top.rready = random_.below(2), top.eval();
            CHECK(top.arready, "nothing waits");
            bool known = value_of(at, value);
            bool busy = top.busy;
            step();
            top.arvalid = 0;
            if (at == map::STATUS) value = (value & ~1ull) | (top.rdata & 1), (void)busy;
            CHECK(top.rvalid && top.rresp == (known ? 0 : 2) && (!known || top.rdata == value), "register %#x: %#lx, not %#lx", at,
                  uint64_t(top.rdata), value);
            uint64_t data = top.rdata;
            while (!top.rready) {
                step();
                CHECK(top.rvalid && top.rdata == data, "an answer was withdrawn");
                top.rready = random_.below(2);
            }
            step();
            CHECK(!top.rvalid, "one answer");
            unknown += !known, answered += known;
        }
    }
    CHECK(commands > 100 && posts > 100 && clears > 100 && refusals > 100 && unknown > 100, "something never came");
    std::printf("regs: %lu reads, %lu of no register, %lu commands, %lu posts, %lu clears, %lu refused\n", answered, unknown, commands,
                posts, clears, refusals);
}
