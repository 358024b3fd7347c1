/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Maps and helpers, in place of libbpf's header of this name, for the program's sources on the host. harness.c has the
 * functions. */
#ifndef BYWASH_FUZZ_BPF_HELPERS_H
#define BYWASH_FUZZ_BPF_HELPERS_H

#include <linux/bpf.h>
#include <stddef.h>

#define SEC(name)
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define barrier_var(var) asm volatile("" : "+r"(var))

/* A map's definition is an object of pointers, whose types say what the map is like. Here the first pointer is that to the
 * map's memory. */
#define __uint(name, number) int (*name)[number]
#define __type(name, of) typeof(of) *name
#define __array(name, of) typeof(of) *name[]

/* Memory of a map. */
struct backing {
	enum { VALUES, MAPS, PROGRAMS_OF, NUMBERS } kind;
	__u32 entries, size; /* number and size of the values */
	void *memory;
};

static void *number_at(const struct backing *b, const void *key);

/* Returns a value of an array, a map in one, or the number of a VLAN; NULL if there is none. */
static __always_inline void *bpf_map_lookup_elem(const void *map, const void *key)
{
	const struct backing *b = *(const struct backing *const *)map;
	__u32 at = *(const __u32 *)key;

	if (b && b->kind == NUMBERS)
		return number_at(b, key);
	if (!b || at >= b->entries)
		return NULL;
	return b->kind == MAPS ? ((void **)b->memory)[at] : (char *)b->memory + (size_t)at * b->size;
}

/* A tail call, which returns where there is no program: the caller has to return the verdict of the program. */
#define bpf_tail_call(ctx, programs, which) do { \
	int (*to)(void *) = program_at(programs, which); \
	if (to) \
		return to(ctx); \
} while (0)

static int (*program_at(const void *programs, __u32 which))(void *);
static long bpf_redirect_map(const void *map, __u64 key, __u64 otherwise);
static long bpf_redirect(__u32 ifindex, __u64 flags);
static long bpf_xdp_adjust_head(struct xdp_md *ctx, int delta);
static long bpf_l4_csum_replace(struct __sk_buff *skb, __u32 at, __u64 from, __u64 to, __u64 flags);

static inline __u32 bpf_get_smp_processor_id(void)
{
	return 0;
}

static inline __u64 bpf_xdp_get_buff_len(const struct xdp_md *ctx)
{
	return ctx->data_end - ctx->data;
}

static inline long bpf_skb_load_bytes(const struct __sk_buff *skb, __u32 at, void *to, __u32 length)
{
	if (skb->data + at + length > skb->data_end)
		return -1;
	__builtin_memcpy(to, (void *)(long)(skb->data + at), length);
	return 0;
}

/* An skb here has no sum by a NIC. */
static inline long bpf_csum_update(struct __sk_buff *skb, __u32 sum)
{
	(void)skb, (void)sum;
	return -1;
}

/* The tag that the skb came with, which is beside its data. */
static inline long bpf_skb_vlan_pop(struct __sk_buff *skb)
{
	return skb->vlan_present ? 0 : -1;
}

/* All data of an skb are linear. */
static inline long bpf_skb_pull_data(struct __sk_buff *skb, __u32 len)
{
	if (skb->data + len > skb->data_end)
		__builtin_trap();
	return 0;
}

/* Helpers that nothing here may call: there are no segments to come, no other CPUs, no rules, and no tags to leave with. */
#define NEVER(name, ...) static inline long name(__VA_ARGS__) { __builtin_trap(); }
NEVER(bpf_check_mtu, void *ctx, __u32 ifindex, __u32 *mtu, int difference, __u64 flags)
NEVER(bpf_fib_lookup, void *ctx, struct bpf_fib_lookup *to, int size, __u32 flags)
NEVER(bpf_skb_vlan_push, struct __sk_buff *skb, __be16 protocol, __u16 tci)
NEVER(bpf_xdp_adjust_meta, struct xdp_md *ctx, int delta)

#endif
