// npe_ring alone: each command of each ring is offered once and in order, whatever the ring's size, its place, the memory's
// pace and its errors.
#include "Vnpe_ring.h"
#include "axi.h"

constexpr unsigned T = 3, WB = 16;
constexpr uint64_t AT = 0x5fffff000, SPACE = 8 * 1024;

int main() {
    Vnpe_ring top;
    Random random(5);
    std::vector<uint64_t> memory(T * SPACE / 8);
    unsigned log[T] = {}, written[T] = {}, told[T] = {}, done[T] = {};
    uint64_t base[T] = {}, number[T] = {}, put_out[T] = {};
    uint64_t batches = 0, bad = 0, bells = 0, failed = 0, spoilt = 0, all = 0;
    bool has_beat = false, ar_waits = false, spoilt_now = false;
    uint64_t araddr = 0;
    Reads reads(1, WB);
    Reads::Beat beat{};
    auto command = [](unsigned t, uint64_t n) { return (n * 0x9e3779b97f4a7c15 ^ uint64_t(t) << 50) & ones(57); };

    top.rst = 1, top.clk = 0, top.eval(), top.clk = 1, top.eval();
    top.clk = 0, top.rst = 0;
    for (uint64_t clock = 0; all < 200000; clock++) {
        CHECK(clock < 5000000, "%lu commands", all);
        unsigned slow = clock & 65536 ? 40 : 240, t = unsigned(random.below(T));
        top.start = top.bell = 0;
        top.bell_thread = t;
        bool expect_bad = false;
        if (done[t] == written[t] && random.below(5000) == 0) {
            // Another ring, of another size, at another place; or none.
            log[t] = random.below(8) ? 5 + unsigned(random.below(5)) : 0;
            base[t] = AT + t * SPACE + random.below((SPACE - (8ull << (log[t] ? log[t] : 5))) / 256 + 1) * 256;
            top.start = 1, top.value = base[t] | (log[t] ? log[t] : random.below(5));
            written[t] = told[t] = done[t] = 0;
        } else if (random.chance(60)) {
            unsigned most = log[t] ? 1u << log[t] : 0, n = unsigned(random.below(random.below(8) ? 4 : 64));
            // An entry may be used again once its command was put out.
            for (; n > 0 && ((written[t] - done[t]) & 0xffff) < most; n--) {
                memory[(base[t] - AT) / 8 + (written[t] & (most - 1))] = command(t, number[t]++);
                written[t] = (written[t] + 1) & 0xffff;
            }
            top.bell = random.below(4) == 0;
            top.value = written[t];
            if (top.bell && random.below(20) == 0) top.value = (done[t] + most + 1 + random.below(1000)) & 0xffff;
            expect_bad = top.bell && (!log[t] || ((top.value - done[t]) & 0xffff) > most);
            if (top.bell && !expect_bad) told[t] = written[t];
        }
        top.arready = random.chance(slow), top.offer_ready = random.chance(slow);
        if (!has_beat && random.chance(slow)) {
            has_beat = reads.next(random, true, beat);
            if (has_beat) top.rresp = random.below(500) == 0 ? 2 : 0, spoilt_now |= top.rresp == 2;
        }
        top.rvalid = has_beat;
        if (has_beat) put(top.rdata, &memory[(beat.at - AT) / 8], WB), top.rlast = beat.last;
        if (has_beat && top.rresp) std::memset(&top.rdata, 0x5a, WB);  // what came with the error is no command
        top.eval();
        CHECK(bool(top.bad_bell) == expect_bad, "a doorbell of %lu", uint64_t(top.value));
        CHECK(!ar_waits || (top.arvalid && top.araddr == araddr), "a request was withdrawn");
        ar_waits = top.arvalid && !top.arready, araddr = top.araddr;
        bells += top.bell, bad += top.bad_bell, failed += top.failed;
        if (top.rvalid && top.rlast) {
            CHECK(bool(top.failed) == spoilt_now, "an error is reported");
            spoilt += spoilt_now, spoilt_now = false;
        }
        if (top.offer_valid && top.offer_ready) {
            unsigned who = top.thread;
            CHECK(who < T && done[who] != told[who], "a command of thread %u too many", who);
            CHECK(top.command == command(who, put_out[who]), "command %lu of thread %u", put_out[who], who);
            put_out[who]++, done[who] = (done[who] + 1) & 0xffff, all++;
        }
        if (top.rvalid) has_beat = false;
        if (top.arvalid && top.arready) {
            uint64_t bytes = (top.arlen + 1u) * WB;
            CHECK(top.araddr / 256 == (top.araddr + bytes - 1) / 256, "a batch of %lu at %#lx", bytes, top.araddr);
            reads.ask(0, top.araddr, top.arlen + 1u), batches++;
        }
        bool pending = false;
        for (unsigned i = 0; i < T; i++) pending |= told[i] != done[i];
        top.clk = 1, top.eval(), top.clk = 0, top.eval();
        CHECK(!pending || top.busy, "busy with commands");
    }
    CHECK(failed == spoilt && failed > 10 && bad > 10 && batches < all, "%lu read again, %lu bad", failed, bad);
    std::printf("ring: %lu commands in %lu batches, %lu of them read again; %lu doorbells, %lu refused\n", all, batches, failed, bells, bad);
}
