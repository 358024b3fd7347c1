/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Lookup of established connections in the memory of the process's own table; crates/fib/src/flows describes its layout
 * and the order in which the writer changes it. Records are used again only after an RCU grace period, and this program
 * runs within one RCU read section. */
#ifndef BYWASH_FLOWS_H
#define BYWASH_FLOWS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "fib.h"

#define FLOW_RECORDS 32          /* the first segment with records; the index is in those before it */
#define FLOW_SLOTS 16            /* slots of a bucket, which is a cache line */
#define FLOW_END ((1u << 23) - 1) /* bits of a slot that name a direction of a record */
#define FLOW_HEADER 16           /* words of the header that are used */
#define FLOW_STATE 7             /* word of a record with its generation and its checksum changes */
/* Words from the header on, in front of the first record: number of reported candidates, weights of tuples, reports. */
#define FLOW_REPORTED 16
#define FLOW_WEIGHTS 64
#define FLOW_MANY_WEIGHTS (1u << 16)
#define FLOW_REPORTS (FLOW_WEIGHTS + FLOW_MANY_WEIGHTS)
#define FLOW_MANY_REPORTS (1u << 11)
#define FLOW_REPORT 8
#define FLOW_PACKET 8            /* weight of a packet */
#define FLOW_FIRST (8 * FLOW_PACKET)
#define FLOW_MOST (512 * FLOW_PACKET)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, BYWASH_SEGMENTS);
	__type(key, __u32);
	__array(values, struct segment_map);
} flows4 SEC(".maps"), flows6 SEC(".maps");

/* Returns the words from `at` on, a multiple of `words`; NULL if their segment does not exist. */
static __always_inline volatile __u64 *flow_words(void *flows, __u32 at, const __u32 words)
{
	struct segment *s = fib_segment(flows, at);

	if (!s)
		return NULL;
	/* The compiler would add the offset first, which the verifier of Linux 6.1 refuses. */
	barrier_var(s);
	return &s->words[at & (BYWASH_SEGMENT - words)];
}

static __always_inline __u32 flow_record_words(const int v6)
{
	return v6 ? 14 : 8;
}

/* Returns the header: the words in front of the first record. */
static __always_inline volatile __u64 *flow_header(const int v6)
{
	return flow_words(v6 ? (void *)&flows6 : (void *)&flows4, FLOW_RECORDS * BYWASH_SEGMENT, FLOW_HEADER);
}

/* Returns the record at word `at` behind the header, whose segment is `front`; NULL if its segment does not exist. */
static __always_inline volatile __u64 *flow_record(void *flows, struct segment *front, __u32 at, const int v6)
{
	const __u32 words = flow_record_words(v6);

	if (!v6)
		return at < BYWASH_SEGMENT ? &front->words[at & (BYWASH_SEGMENT - words)] :
					     flow_words(flows, FLOW_RECORDS * BYWASH_SEGMENT + at, words);
	if (at >= BYWASH_SEGMENT) {
		front = fib_segment(flows, FLOW_RECORDS * BYWASH_SEGMENT + at);
		if (!front)
			return NULL;
		at &= BYWASH_SEGMENT - 1;
	}
	/* As in flow_words(). None crosses the end of its segment, but the verifier does not know. */
	barrier_var(front);
	barrier_var(at);
	return at <= BYWASH_SEGMENT - words ? &front->words[at] : NULL;
}

/* Returns the first two slots of the bucket of a hash. */
static __always_inline volatile __u64 *flow_bucket(void *flows, __u64 size, __u32 hash)
{
	__u32 mask = size >> 32, at = hash & mask;

	if (at >= (__u32)size)
		at &= mask >> 1;
	return flow_words(flows, at * (FLOW_SLOTS / 2), FLOW_SLOTS / 2);
}

static __always_inline __u32 flow_second(__u32 hash)
{
	return (hash ^ hash >> 15) * 0x9e3779b1u >> 12;
}

/* Returns the sum of two products: a word's lower half times the first key, and its upper half times the second. */
static __always_inline __u64 flow_product(volatile __u64 *keys, __u64 word)
{
	return keys[0] * (__u32)word + keys[1] * (word >> 32);
}

static __always_inline __u32 flow_hash_of4(volatile __u64 *header, __u64 addresses, __u64 rest)
{
	return (header[1] + flow_product(header + 2, addresses) +
		flow_product(header + 4, rest & 0xffffffffffull)) >> 32;
}

static __always_inline __u32 flow_hash_of6(volatile __u64 *header, __u64 source, __u64 source_low, __u64 destination,
					   __u64 destination_low, __u64 rest)
{
	__u64 sum = header[1] + flow_product(header + 2, source) + flow_product(header + 4, source_low) +
		    flow_product(header + 6, destination) + flow_product(header + 8, destination_low) +
		    flow_product(header + 10, rest & 0xffffffffffull);

	return sum >> 32;
}

/* Returns the words in front of the first record, from an offset on. */
static __always_inline volatile __u64 *flow_front(void *flows, __u32 at, const __u32 words)
{
	return flow_words(flows, FLOW_RECORDS * BYWASH_SEGMENT + at, words);
}

/* Returns the weight of the tuples with this hash: see crates/fib/src/flows/candidates.rs. */
static __always_inline volatile __u64 *flow_weight(void *flows, __u32 hash)
{
	return flow_front(flows, FLOW_WEIGHTS + hash % FLOW_MANY_WEIGHTS, 1);
}

/* Resets the weight of a tuple with this hash. */
static __always_inline void flow_forget(void *flows, __u32 hash)
{
	volatile __u64 *weight = flow_weight(flows, hash);

	if (weight && *weight >> 32 == hash)
		*weight = 0;
}

/* Weighs a packet of no flow, whose tuple has this hash. Returns where to write a report of it; NULL if none is due. */
static __always_inline volatile __u64 *flow_candidate(void *flows, __u32 hash, volatile __u64 *reported)
{
	volatile __u64 *weight = flow_weight(flows, hash);

	if (!weight)
		return NULL;
	__u64 was = *weight, holder = (__u64)hash << 32;
	__u32 before = was, after = before + FLOW_PACKET;
	if ((was ^ holder) >> 32) {
		*weight = before ? was - 1 : holder | FLOW_PACKET;
		return NULL;
	}
	*weight = holder | (after >= FLOW_MOST ? FLOW_MOST / 2 : after);
	if (after < FLOW_FIRST || (after ^ before) <= before)
		return NULL;
	return flow_front(flows, FLOW_REPORTS + *reported % FLOW_MANY_REPORTS * FLOW_REPORT, FLOW_REPORT);
}

/* Returns the record of the flow that a packet belongs to, and its direction; NULL if there is none. `rest` has the
 * ports in packet order, from bit 32 on the protocol, and from bit 48 on the port that received the packet. */
static __always_inline volatile __u64 *flow_find(void *flows, const __u64 *addresses, __u64 rest, __u32 *direction,
						 const int v6)
{
	const __u32 words = flow_record_words(v6);
	struct segment *front = fib_segment(flows, FLOW_RECORDS * BYWASH_SEGMENT);

	if (!front)
		return NULL;
	volatile __u64 *header = front->words;
	__u64 size = header[0];
	__u32 generation = header[words - 1];
	if (!generation)
		return NULL;
	__u32 hash = v6 ? flow_hash_of6(header, addresses[0], addresses[1], addresses[2], addresses[3], rest) :
			  flow_hash_of4(header, addresses[0], rest);
	__u32 tag = hash & ~FLOW_END;
#pragma clang loop unroll(disable)
	for (int n = 0; n < 2; n++) {
		volatile __u64 *pairs = flow_bucket(flows, size, hash);
		if (!pairs)
			return NULL;
#pragma clang loop unroll(full)
		for (__u32 i = 0; i < FLOW_SLOTS / 2; i++) {
			__u64 pair = pairs[i];
			/* Most are empty while there are few flows. */
			if (!pair)
				continue;
#pragma clang loop unroll(full)
			for (__u32 half = 0; half < 2; half++) {
				__u32 end = (__u32)(pair >> 32 * half) ^ tag;
				/* True for another hash, and for an empty slot. */
				if (likely(end - 1 >= FLOW_END))
					continue;
				volatile __u64 *record = flow_record(flows, front, (end >> 1) * words, v6);
				if (!record)
					continue;
				volatile __u64 *key = record + (end & 1) * (v6 ? 8 : 2);
				if (key[0] != addresses[0] || record[v6 ? 4 + (end & 1) : 1 + 2 * (end & 1)] != rest)
					continue;
				if (v6 && (key[1] != addresses[1] || key[2] != addresses[2] || key[3] != addresses[3]))
					continue;
				*direction = end & 1;
				return (__u32)record[FLOW_STATE] == generation ? record : NULL;
			}
		}
		hash = flow_second(hash);
	}
	return NULL;
}

/* Static, not global like the lookup in the forwarding tables (fib.h): they return a pointer. */
static __attribute__((noinline)) volatile __u64 *flow_find4(const __u64 *addresses, __u64 rest, __u32 *direction)
{
	return flow_find(&flows4, addresses, rest, direction, 0);
}

static __attribute__((noinline)) volatile __u64 *flow_find6(const __u64 *addresses, __u64 rest, __u32 *direction)
{
	return flow_find(&flows6, addresses, rest, direction, 1);
}

/* Weighs a TCP or UDP packet in the middle of a connection that belongs to no flow, and reports its tuple when that is
 * due. `rest` is that of flow_find4(). Global, like fib_lookup4(). */
__attribute__((noinline)) int flow_miss4(__u64 addresses, __u64 rest)
{
	volatile __u64 *header = flow_header(0), *reported = flow_front(&flows4, FLOW_REPORTED, 1);

	if (!header || !reported || !header[0])
		return 0;
	volatile __u64 *report = flow_candidate(&flows4, flow_hash_of4(header, addresses, rest), reported);
	if (report) {
		report[0] = addresses;
		report[4] = rest;
		*reported += 1;
	}
	return 0;
}

__attribute__((noinline)) int flow_miss6(__u64 source, __u64 source_low, __u64 destination, __u64 destination_low,
					 __u64 rest)
{
	volatile __u64 *header = flow_header(1), *reported = flow_front(&flows6, FLOW_REPORTED, 1);

	if (!header || !reported || !header[0])
		return 0;
	__u32 hash = flow_hash_of6(header, source, source_low, destination, destination_low, rest);
	volatile __u64 *report = flow_candidate(&flows6, hash, reported);
	if (report) {
		report[0] = source;
		report[1] = source_low;
		report[2] = destination;
		report[3] = destination_low;
		report[4] = rest;
		*reported += 1;
	}
	return 0;
}

/* Resets the weight of the tuple of a TCP packet that opens or closes a connection and belongs to no flow. */
__attribute__((noinline)) int flow_forget4(__u64 addresses, __u64 rest)
{
	volatile __u64 *header = flow_header(0);

	if (header && header[0])
		flow_forget(&flows4, flow_hash_of4(header, addresses, rest));
	return 0;
}

__attribute__((noinline)) int flow_forget6(__u64 source, __u64 source_low, __u64 destination, __u64 destination_low,
					   __u64 rest)
{
	volatile __u64 *header = flow_header(1);

	if (header && header[0])
		flow_forget(&flows6, flow_hash_of6(header, source, source_low, destination, destination_low, rest));
	return 0;
}

#endif
