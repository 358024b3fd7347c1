/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the tables last said of a destination: one load in place of a walk through them. An answer holds as long as the
 * version under which it was found, which every change of routes and next hops ends (crates/port/src/af_xdp/driver.rs).
 *
 * Each CPU has slots of its own, one for each destination by its hash; a collision costs a walk, and so does a stream of
 * destinations that never come again. An entry's words are written one by one: `seal` is all of them and the version
 * together, so that one which was written by two at a time does not match (Hyatt's lockless hashing). */
#ifndef BYWASH_KNOWN_H
#define BYWASH_KNOWN_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "fib.h"
#include "forward.h"

struct known4 {
	__u64 said; /* destination, key of the next hop */
	__u64 seal;
};

struct known6 {
	__u64 high, low;
	__u64 hop;
	__u64 seal;
};

/* Those of one CPU; the loader makes as many as there are CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BYWASH_KNOWN4);
	__type(key, __u32);
	__type(value, struct known4);
} known4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, BYWASH_KNOWN6);
	__type(key, __u32);
	__type(value, struct known6);
} known6 SEC(".maps");

static __always_inline __u32 known_cpu(void)
{
	return bpf_get_smp_processor_id() % BYWASH_KNOWN_CPUS;
}

/* The key in `hops` of what the tables say of a destination, whose address is given as it stands in the packet; one that
 * is in no map where the program does not know the next hop. Nothing is known at first: an entry of zeros is that of
 * address 0, which is nobody's to look up. */
static __always_inline __u32 lookup4(__u64 version, __u32 dst)
{
	__u32 key = known_cpu() * BYWASH_KNOWN4 + ((dst * 0x9e3779b1u) >> 17);
	volatile struct known4 *k = bpf_map_lookup_elem(&known4, &key);

	_Static_assert(BYWASH_KNOWN4 == 1 << (32 - 17), "the hash's highest bits");
	if (likely(k)) {
		__u64 said = k->said;
		if (likely(said >> 32 == dst && (said ^ k->seal) == version))
			return said;
	}
	__u32 hop = hop_key(version, fib_lookup4(bpf_ntohl(dst)));
	if (k) {
		__u64 said = (__u64)dst << 32 | hop;
		k->said = said;
		k->seal = said ^ version;
	}
	return hop;
}

static __always_inline __u32 lookup6(__u64 version, __u64 high, __u64 low)
{
	__u64 mixed = (high ^ low * 0xd6e8feb86659fd93ull) * 0x9e3779b97f4a7c15ull;
	__u32 key = known_cpu() * BYWASH_KNOWN6 + (mixed >> 50);
	volatile struct known6 *k = bpf_map_lookup_elem(&known6, &key);

	_Static_assert(BYWASH_KNOWN6 == 1 << (64 - 50), "the hash's highest bits");
	if (likely(k && k->high == high && k->low == low)) {
		__u64 hop = k->hop;
		if (likely((mixed ^ hop ^ k->seal) == version))
			return hop;
	}
	__u32 hop = hop_key(version, fib_lookup6(bpf_be64_to_cpu(high), bpf_be64_to_cpu(low)));
	if (k) {
		k->high = high;
		k->low = low;
		k->hop = hop;
		k->seal = mixed ^ hop ^ version;
	}
	return hop;
}

#endif
