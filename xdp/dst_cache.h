/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Cache of lookup results by destination: one load replaces the walk through the tables, and an entry contains what is
 * written into the frame, which replaces the read of the next hop. An entry is valid while the version under which it
 * was found is current; every change of routes or next hops begins a new one (crates/port/src/af_xdp/datapath.rs).
 *
 * Each CPU has entries of its own. The hash gives a destination's slot; if another destination of the same version is
 * there, one of the neighbouring slots is used, and if all are taken, the first slot is overwritten. An entry's words
 * are written one by one: `seal` combines all of them with the version, so that an entry written by two writers at a
 * time does not match (Hyatt's lockless hashing). */
#ifndef BYWASH_DST_CACHE_H
#define BYWASH_DST_CACHE_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "fib.h"
#include "forward.h"

/* Lookup result for a destination, in three words. */
struct adjacency {
	__u64 macs;  /* first eight bytes of `macs` in struct bywash_hop; if mtu is 0, the next hop's key in `hops` */
	__u64 rest;  /* last four bytes of `macs`; mtu, 16 bits, 0 if not plainly forwarded; port; flags */
	__u64 index; /* the port's interface index */
};

struct dst_entry4 {
	__u64 first; /* lower half: destination; upper half: index of struct adjacency */
	__u64 macs;
	__u64 rest;
	__u64 seal;
};

struct dst_entry6 {
	__u64 high, low;
	__u64 macs;
	__u64 rest;
	__u64 index;
	__u64 seal;
	__u64 pad[2];
};

/* Entries of one CPU; the loader multiplies the size by the number of CPUs. A mappable map begins on a page, so no
 * entry crosses a cache line. */
MAPPED(dst_cache4, BYWASH_DST_CACHE4, struct dst_entry4);

MAPPED(dst_cache6, BYWASH_DST_CACHE6, struct dst_entry6);

#define SLOTS 4

static __always_inline __u32 dst_cache_cpu(void)
{
	return bpf_get_smp_processor_id() % BYWASH_DST_CACHE_CPUS;
}

static __always_inline volatile struct dst_entry4 *dst_entry4_at(__u32 place)
{
	return bpf_map_lookup_elem(&dst_cache4, &place);
}

static __always_inline volatile struct dst_entry6 *dst_entry6_at(__u32 place)
{
	return bpf_map_lookup_elem(&dst_cache6, &place);
}

/* Combines the words so that differences in two of them do not cancel out. */
static __always_inline __u64 sealed(__u64 a, __u64 b, __u64 c)
{
	return (a * K1 ^ b) * K1 ^ c;
}

static __always_inline __u64 mix6(__u64 high, __u64 low)
{
	return (high ^ low * K2) * K1;
}

static __always_inline __u32 adj_mtu(const struct adjacency *adj)
{
	return adj->rest >> 32 & 0xffff;
}

static __always_inline __u32 adj_port(const struct adjacency *adj)
{
	return adj->rest >> 48 & 0xff;
}

/* Returns the flags of an ingress port that exclude this adjacency; BYWASH_FORWARD excludes it when it is not set. */
static __always_inline __u32 adj_excluding(const struct adjacency *adj)
{
	return adj->rest >> 56;
}

static __always_inline void set_adj_by(struct adjacency *adj, const struct bywash_hop *hop, __u8 port, const int v6)
{
	__u32 mtu = hop->mtu < 0xffff ? hop->mtu : 0xffff;
	__u64 unless = hop->flags & HOP_TAKES_FRAMES ? BYWASH_FORWARD : BYWASH_FORWARD | BYWASH_NATIVE;

	unless |= v6 ? BYWASH_KERNEL6 : BYWASH_KERNEL4;

	adj->macs = *(const __u64 *)hop->macs;
	adj->rest = *(const __u32 *)(hop->macs + 8) | (__u64)mtu << 32 | (__u64)port << 48 | unless << 56;
	adj->index = hop->ifindex;
}

static __always_inline void set_adj(struct adjacency *adj, const struct bywash_hop *hop, __u32 key, const int v6)
{
	if (hop && hop->kind == HOP_FORWARD && hop->mtu) {
		set_adj_by(adj, hop, hop->port, v6);
	} else {
		adj->macs = key;
		adj->rest = 0;
		adj->index = 0;
	}
}

/* Finds a destination that is not in its own slot: in one of the neighbouring slots, or by a lookup in the tables,
 * whose result goes into the first invalid slot. A global function, for the same reasons as the table lookup
 * (fib.h). */
__attribute__((noinline)) int find4(__u64 version, __u32 dst, __u32 place, struct adjacency *adj)
{
	volatile struct dst_entry4 *write = dst_entry4_at(place), *k;
	int taken = 1;

	/* The verifier requires this check in a global function. */
	if (!adj)
		return 0;
	if (write)
		taken = (sealed(write->first, write->macs, write->rest) ^ write->seal) == version;
#pragma unroll
	for (int n = 1; n < SLOTS; n++) {
		k = dst_entry4_at(place ^ n);
		if (!k)
			continue;
		__u64 first = k->first, macs = k->macs, rest = k->rest;
		if ((sealed(first, macs, rest) ^ k->seal) != version) {
			if (taken)
				write = k;
			taken = 0;
		} else if ((__u32)first == dst) {
			adj->macs = macs;
			adj->rest = rest;
			adj->index = first >> 32;
			return 0;
		}
	}
	__u32 key = hop_key(version, fib_lookup4(bpf_ntohl(dst)));
	set_adj(adj, hop_at(key), key, 0);
	if (write) {
		__u64 first = adj->index << 32 | dst;
		write->first = first;
		write->macs = adj->macs;
		write->rest = adj->rest;
		write->seal = sealed(first, adj->macs, adj->rest) ^ version;
	}
	return 0;
}

__attribute__((noinline)) int find6(__u64 version, __u64 high, __u64 low, __u32 place, struct adjacency *adj)
{
	volatile struct dst_entry6 *write = dst_entry6_at(place), *k;
	int taken = 1;

	if (!adj)
		return 0;
	if (write)
		taken = (sealed(mix6(write->high, write->low) ^ write->index, write->macs, write->rest) ^
			 write->seal) == version;
#pragma unroll
	for (int n = 1; n < SLOTS; n++) {
		k = dst_entry6_at(place ^ n);
		if (!k)
			continue;
		__u64 h = k->high, l = k->low, macs = k->macs, rest = k->rest, index = k->index;
		if ((sealed(mix6(h, l) ^ index, macs, rest) ^ k->seal) != version) {
			if (taken)
				write = k;
			taken = 0;
		} else if (h == high && l == low) {
			adj->macs = macs;
			adj->rest = rest;
			adj->index = index;
			return 0;
		}
	}
	__u32 key = hop_key(version, fib_lookup6(bpf_be64_to_cpu(high), bpf_be64_to_cpu(low)));
	set_adj(adj, hop_at(key), key, 1);
	if (write) {
		write->high = high;
		write->low = low;
		write->macs = adj->macs;
		write->rest = adj->rest;
		write->index = adj->index;
		write->seal = sealed(mix6(high, low) ^ adj->index, adj->macs, adj->rest) ^ version;
	}
	return 0;
}

/* A destination's own slot. Its first word is read before the packet's headers are checked, to hide the memory
 * latency. */
struct dst_slot4 {
	volatile struct dst_entry4 *k;
	__u32 place;
	__u64 first;
};

struct dst_slot6 {
	volatile struct dst_entry6 *k;
	__u32 place;
	__u64 high, mixed;
};

static __always_inline struct dst_slot4 read_slot4(__u32 dst)
{
	struct dst_slot4 slot = { .place = dst_cache_cpu() * BYWASH_DST_CACHE4 + ((dst * 0x9e3779b1u) >> 17) };

	_Static_assert(BYWASH_DST_CACHE4 == 1 << (32 - 17), "the hash's highest bits");
	slot.k = dst_entry4_at(slot.place);
	if (slot.k)
		slot.first = slot.k->first;
	return slot;
}

static __always_inline struct dst_slot6 read_slot6(__u64 high, __u64 low)
{
	__u64 mixed = mix6(high, low);
	struct dst_slot6 slot = { .place = dst_cache_cpu() * BYWASH_DST_CACHE6 + (mixed >> 50), .mixed = mixed };

	_Static_assert(BYWASH_DST_CACHE6 == 1 << (64 - 50), "the hash's highest bits");
	slot.k = dst_entry6_at(slot.place);
	if (slot.k)
		slot.high = slot.k->high;
	return slot;
}

/* Looks up a destination, given in network order. Initial entries of zeros are harmless: they are entries of address 0,
 * which is never looked up. */
static __always_inline void lookup4(__u64 version, __u32 dst, const struct dst_slot4 *slot, struct adjacency *adj)
{
	volatile struct dst_entry4 *k = slot->k;

	if (likely((__u32)slot->first == dst)) {
		__u64 macs = k->macs, rest = k->rest;
		if (likely((sealed(slot->first, macs, rest) ^ k->seal) == version)) {
			adj->macs = macs;
			adj->rest = rest;
			adj->index = slot->first >> 32;
			return;
		}
	}
	/* Initialised, because before Linux 6.3 the verifier does not allow passing on uninitialised stack. */
	struct adjacency found = {};
	find4(version, dst, slot->place, &found);
	*adj = found;
}

static __always_inline void lookup6(__u64 version, __u64 high, __u64 low, const struct dst_slot6 *slot,
				    struct adjacency *adj)
{
	volatile struct dst_entry6 *k = slot->k;

	if (likely(slot->high == high && k->low == low)) {
		__u64 macs = k->macs, rest = k->rest, index = k->index;
		if (likely((sealed(slot->mixed ^ index, macs, rest) ^ k->seal) == version)) {
			adj->macs = macs;
			adj->rest = rest;
			adj->index = index;
			return;
		}
	}
	struct adjacency found = {};
	find6(version, high, low, slot->place, &found);
	*adj = found;
}

#endif
