// npe_dispatch alone: the outcome of every packet, beat by beat, and what comes out of the queues, against queues that
// count as the module's text says.
#include "Vnpe_dispatch.h"
#include "common.h"

constexpr unsigned T = 3, WB = 8, PORTS = 4, BEATS = 32, COUNT = 4, LONGEST = 200;

struct Packet {
    std::vector<uint8_t> bytes;
    uint8_t port;
    bool bad;
    uint64_t time;
};

int main() {
    Vnpe_dispatch top;
    Random random(1);
    std::deque<Packet> queue[T], reading;  // waiting; taken and not read to the end
    std::deque<unsigned> reading_thread;
    unsigned used[T] = {};                 // beats of both
    unsigned map[PORTS] = {0, 1, 2, 1};
    Packet now{};
    bool offered = false, midway = false, lost = false, too_long = false;
    unsigned thread = 0, turn = 0, had = 0, read_at = 0;
    size_t at = 0;
    uint64_t seen[5] = {};

    top.rst = 1, top.clk = 0, top.eval(), top.clk = 1, top.eval();
    top.clk = 0, top.rst = 0, top.enable = 1, top.channels = T;
    top.port_map = map[0] | map[1] << 2 | map[2] << 4 | map[3] << 6;
    uint64_t begun = 0;
    for (uint64_t clock = 0; clock < 400000; clock++) {
        if (!midway && random.chance(8)) {
            top.enable = random.below(8) != 0, top.channels = random.below(T + 1), top.by_port = random.below(2);
            top.hold = random.below(2);
        }
        if (!offered && random.chance(200)) {
            now = {std::vector<uint8_t>(1 + random.below(random.below(4) ? 60 : 260)), uint8_t(random.below(PORTS)),
                   random.below(50) == 0, 0};
            for (auto &b : now.bytes) b = uint8_t(random.next());
            offered = true, at = 0;
        }
        top.now = clock;
        top.s_valid = offered && random.chance(220);
        unsigned n = 0;
        if (offered) {
            n = unsigned(now.bytes.size() - at < WB ? now.bytes.size() - at : WB);
            uint64_t beat = random.next();
            std::memcpy(&beat, &now.bytes[at], n);
            top.s_data = beat, top.s_keep = uint8_t(ones(n)), top.s_last = at + n == now.bytes.size();
            top.s_bad = top.s_last && now.bad, top.s_port = now.port;
        }
        unsigned from = unsigned(random.below(T));
        top.take = !queue[from].empty() && reading.size() < 2 && random.chance(90), top.take_thread = from;
        top.read = !reading.empty() && random.chance(clock & 4096 ? 250 : 60);
        if (top.read) top.read_thread = reading_thread.front();
        top.eval();

        // What must be, before the clock edge.
        if (!midway) thread = top.by_port ? map[now.port] : turn;
        bool room = used[thread] + had != BEATS && queue[thread].size() != COUNT;
        bool ready = (midway || (top.enable && top.channels)) && (!top.hold || room || (midway && (lost || too_long)));
        if (offered) CHECK(bool(top.s_ready) == ready, "clock %lu", clock);
        for (unsigned t = 0; t < T; t++) CHECK((top.want >> t & 1) == !queue[t].empty(), "thread %u", t);
        bool busy = midway || used[0] + used[1] + used[2] != 0;
        CHECK(bool(top.busy) == busy, "clock %lu", clock);
        bool taken = top.take, read = top.read, beat = top.s_valid && top.s_ready;
        Packet *kept = nullptr;
        if (beat) {
            if (!midway) begun = clock, lost = too_long = false, had = 0, turn = turn + 1 >= top.channels ? 0 : turn + 1;
            lost = lost || !room, too_long = too_long || at + n > LONGEST;
            bool last = top.s_last;
            unsigned outcome = now.bad ? 0 : too_long ? 1 : lost ? 2 : 3;
            CHECK(bool(top.ended) == last, "the last beat");
            if (last) {
                CHECK(top.ended_thread == thread, "thread %u, not %u", top.ended_thread, thread);
                CHECK((top.damaged | top.too_long << 1 | top.dropped << 2 | top.kept << 3) == 1 << outcome, "outcome %u", outcome);
                seen[outcome]++;
                if (outcome == 3) now.time = begun, kept = &now;
            }
            if (!lost && !too_long) had++;
            at += n, midway = !last;
        } else {
            CHECK(!top.ended && !top.kept && !top.dropped && !top.too_long && !top.damaged, "no packet ended");
        }
        top.clk = 1, top.eval();

        if (taken) {
            Packet &p = queue[from].front();
            CHECK(top.time_ == p.time && top.port == p.port && top.len == p.bytes.size(), "a packet of %zu", p.bytes.size());
            reading.push_back(p), reading_thread.push_back(from), queue[from].pop_front(), seen[4]++;
        }
        if (read) {
            Packet &p = reading.front();
            size_t left = p.bytes.size() - read_at;
            uint64_t beats = top.data;
            CHECK(std::memcmp(&beats, &p.bytes[read_at], left < WB ? left : WB) == 0, "its bytes from %u", read_at);
            used[reading_thread.front()]--, read_at += WB;
            if (read_at >= p.bytes.size()) reading.pop_front(), reading_thread.pop_front(), read_at = 0;
        }
        if (kept) queue[thread].push_back(*kept), used[thread] += had;
        if (beat && !midway) offered = false, had = 0;
        top.clk = 0;
    }
    for (uint64_t n : seen) CHECK(n > 100, "an outcome came %lu times only", n);
    std::printf("dispatch: %lu packets kept, %lu dropped, %lu too long, %lu damaged\n", seen[3], seen[2], seen[1], seen[0]);
}
