// Memory's side of AXI4: the rules for bursts, and reads that are answered in any order, beat by beat.
#pragma once

#include "common.h"

struct Burst {
    uint64_t at;
    unsigned beats;
};

inline void check_burst(uint64_t address, unsigned beats, unsigned beat_bytes) {
    CHECK(address % beat_bytes == 0 && beats <= 256, "a burst of %u at %#lx", beats, address);
    CHECK(address / 4096 == (address + beats * beat_bytes - 1) / 4096, "a burst of %u at %#lx crosses 4 KiB", beats, address);
}

// Requests of reads by ID. Answers of one ID come in order.
class Reads {
public:
    struct Beat {
        unsigned id;
        uint64_t at;
        bool last;
    };

    Reads(unsigned ids, unsigned beat_bytes) : queues(ids), beat_bytes(beat_bytes) {}

    void ask(unsigned id, uint64_t at, unsigned beats) {
        check_burst(at, beats, beat_bytes);
        CHECK(id < queues.size(), "a read of ID %u", id);
        queues[id].push_back({at, beats});
    }
    // The next beat, if there is one: of any ID with `shuffle`, else of the ID that began.
    bool next(Random &random, bool shuffle, Beat &beat) {
        unsigned n = 0;
        for (auto &queue : queues) n += !queue.empty();
        if (n == 0) return false;
        if (shuffle || queues[now].empty()) {
            unsigned skip = shuffle ? unsigned(random.below(n)) : 0;
            for (now = 0; queues[now].empty() || skip-- > 0;) now++;
        }
        Burst &from = queues[now].front();
        beat = {now, from.at, from.beats == 1};
        from.at += beat_bytes;
        if (--from.beats == 0) queues[now].pop_front();
        return true;
    }
    void clear() {
        for (auto &queue : queues) queue.clear();
    }

private:
    std::vector<std::deque<Burst>> queues;
    unsigned beat_bytes, now = 0;
};
