/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Longest-prefix match in the memory of the process's own tables; crates/fib/src/fib.rs describes the structure and its
 * invariants. The writer changes it concurrently, word by word; a node is reused only after an RCU grace period, and
 * this program runs within one RCU read section. */
#ifndef BYWASH_FIB_H
#define BYWASH_FIB_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"

#define FIB_NODE (1u << 31)
#define FIB_SKIP (1u << 30)
#define FIB_INDEX (FIB_SKIP - 1)
#define FIB_ROOT 18
#define FIB_STRIDE 6

struct segment {
	__u64 words[BYWASH_SEGMENT];
};

struct segment_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct segment));
};

/* The tables grow one segment at a time. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, BYWASH_SEGMENTS);
	__type(key, __u32);
	__array(values, struct segment_map);
} fib4 SEC(".maps"), fib6 SEC(".maps");

/* Returns the segment of word `at`, or NULL if there is none. */
static __always_inline struct segment *fib_segment(void *fib, __u32 at)
{
	__u32 n = at / BYWASH_SEGMENT, zero = 0;
	void *segment = bpf_map_lookup_elem(fib, &n);

	return segment ? bpf_map_lookup_elem(segment, &zero) : NULL;
}

/* Returns word `at`, or 0, which means no route or an empty bitmap, if its segment does not exist. */
static __always_inline __u64 fib_word(void *fib, __u32 at)
{
	struct segment *s = fib_segment(fib, at);

	return s ? s->words[at % BYWASH_SEGMENT] : 0;
}

static __always_inline __u32 fib_half(void *fib, __u32 at)
{
	return fib_word(fib, at >> 1) >> ((at & 1) * 32);
}

/* Returns a slot's reference, which is that of the slot's run. */
static __always_inline __u32 fib_step(void *fib, __u32 at, __u32 slot)
{
	struct segment *s = fib_segment(fib, at);
	__u32 in = at % BYWASH_SEGMENT;

	if (!s)
		return 0;
	__u32 rank = __builtin_popcountll(s->words[in] << (63 - slot)), half = at * 2 + 2 + rank;
	/* A node may cross the end of its segment. */
	__u64 word = in < BYWASH_SEGMENT - 33 ? s->words[(half >> 1) % BYWASH_SEGMENT] : fib_word(fib, half >> 1);
	return word >> ((half & 1) * 32);
}

/* The remaining bits of the address are kept shifted to the top. With a depth instead, the verifier would know its
 * value and examine every path to it separately. */

/* A global function, so that the verifier examines its many paths once, not once for each path to the call; and so that
 * callers keep no registers and stack for it where nothing is looked up. */
__attribute__((noinline)) __u32 fib_lookup4(__u32 dst)
{
	__u32 r = fib_half(&fib4, dst >> (32 - FIB_ROOT));
	__u64 bits = (__u64)dst << (32 + FIB_ROOT);

	/* Three levels, each of which may be preceded by a skip. */
	for (int i = 0; i < 6 && r & FIB_NODE; i++) {
		__u32 at = r & FIB_INDEX;
		if (r & FIB_SKIP) {
			__u64 key = fib_word(&fib4, at), refs = fib_word(&fib4, at + 1);
			__u32 len = key & 63, differ = dst ^ (__u32)(key >> 32);
			r = differ & ~(0xffffffffull >> len) ? refs >> 32 : refs;
			bits = (__u64)dst << 32 << len;
		} else {
			r = fib_step(&fib4, at, bits >> (64 - FIB_STRIDE));
			bits <<= FIB_STRIDE;
		}
	}
	return r;
}

/* Global, for the same reasons. */
__attribute__((noinline)) __u32 fib_lookup6(__u64 high, __u64 low)
{
	__u32 r = fib_half(&fib6, high >> (64 - FIB_ROOT));
	__u64 bits = high << FIB_ROOT | low >> (64 - FIB_ROOT), more = low << FIB_ROOT;

	/* A skip covers at least as many bits as a level. */
	for (int i = 0; i < 24 && r & FIB_NODE; i++) {
		__u32 at = r & FIB_INDEX;
		if (r & FIB_SKIP) {
			__u64 h = fib_word(&fib6, at) ^ high, l = fib_word(&fib6, at + 1) ^ low;
			__u64 refs = fib_word(&fib6, at + 3);
			/* At least 48. */
			__u32 len = fib_word(&fib6, at + 2) & 255;
			if (len < 64) {
				r = h >> (64 - len) ? refs >> 32 : refs;
				bits = high << len | low >> (64 - len);
				more = low << len;
			} else {
				__u32 rest = len - 64;
				__u64 differ = h | (rest >= 64 ? l : l & ~(~0ull >> rest));
				r = differ ? refs >> 32 : refs;
				bits = low << (rest & 63);
				more = 0;
			}
		} else {
			r = fib_step(&fib6, at, bits >> (64 - FIB_STRIDE));
			bits = bits << FIB_STRIDE | more >> (64 - FIB_STRIDE);
			more <<= FIB_STRIDE;
		}
	}
	return r;
}

#endif
