// Checks and random numbers, for all benches.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

#define CHECK(condition, ...)                                                     \
    do {                                                                          \
        if (!(condition)) {                                                       \
            std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);  \
            std::fprintf(stderr, __VA_ARGS__);                                    \
            std::fputc('\n', stderr);                                             \
            std::_Exit(1);                                                        \
        }                                                                         \
    } while (0)

// splitmix64
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed) {}
    uint64_t next() {
        uint64_t z = state += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }
    uint64_t below(uint64_t n) { return (unsigned __int128)next() * n >> 64; }
    bool chance(unsigned of256) { return (next() & 255) < of256; }
};

// A signal of any width, as bytes.
template <class S> void put(S &signal, const void *from, size_t n) { std::memcpy(&signal, from, n); }
template <class S> void get(const S &signal, void *to, size_t n) { std::memcpy(to, &signal, n); }

// The lowest `n` bits set, of 64 or fewer.
inline uint64_t ones(size_t n) { return n >= 64 ? ~uint64_t(0) : (uint64_t(1) << n) - 1; }

// A descriptor, as the engine writes it.
struct Descriptor {
    uint64_t self, next, time;
    uint16_t len;
    uint8_t port, thread;
    uint32_t seq;
};
static_assert(sizeof(Descriptor) == 32, "as in memory");
