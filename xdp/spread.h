/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* One queue's frames sent by several CPUs, a flow's always by the same one. The CPU that received a frame has judged and
 * rewritten it; what is left, and costs more, is the way through the other device. A queue to a CPU that is full loses what is
 * put into it: counted, by the port it came from. */
#ifndef BYWASH_SPREAD_H
#define BYWASH_SPREAD_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "flow_hash.h"

/* By CPU's number: the queue to it. The loader makes as many as there are CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} cpus SEC(".maps");

/* By port: the CPUs that send for it, as many as its `spread` says. */
MAPPED(spread, BYWASH_PORTS * BYWASH_SPREAD, __u64);

/* The port whose frame a CPU last put into a queue. Drivers have what was put aside emptied before a poll ends (xdp_do_flush): what is lost then is
 * this port's, or, where one poll serves several devices, may be another one's. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} handed SEC(".maps");

/* The kernel's number of `cpus`. */
MAPPED(cpus_id, 1, __u64);

/* What goes with a frame, before its first byte. */
struct onward {
	__u16 from, to;
	__u32 bytes; /* as it was received */
};

/* Of the frame as it is: tagged or not. Global, so that it takes no registers of the way on which nothing is spread. */
__attribute__((noinline)) int frame_hash(struct xdp_md *ctx)
{
	const __u8 *eth = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end, *at = eth + 12;
	__u16 type = 0;

	if (eth + ETH_HLEN > end)
		return 0;
#pragma unroll
	for (int tags = 0; tags < 3; tags++) {
		if (at + 2 > end)
			return 0;
		type = *(const __u16 *)at;
		at += 2;
		if (type != bpf_htons(ETH_P_8021Q) && type != bpf_htons(ETH_P_8021AD))
			break;
		at += 2;
	}
	if (type == bpf_htons(ETH_P_IP) && at + 20 <= end)
		return flow_hash4(at, end);
	if (type == bpf_htons(ETH_P_IPV6) && at + 40 <= end)
		return flow_hash6(at, end);
	return flow_mix(*(const __u64 *)eth, *(const __u32 *)(eth + 8)) >> 32;
}

/* To the CPU of the frame's flow; false where it cannot be: then its bytes are as they were. */
static __always_inline int hand_over(struct xdp_md *ctx, const struct bywash_port *port, __u32 to, __u32 bytes)
{
	/* Not by the bits that a group before us may have chosen by: then all of them would be the same. */
	__u32 hash = (__u32)frame_hash(ctx) * (__u32)K1, zero = 0;
	__u32 key = port->id * BYWASH_SPREAD + (((__u64)hash * port->spread) >> 32);
	const __u64 *cpu = bpf_map_lookup_elem(&spread, &key);

	/* In place of what may be there: the kernel's generator of frames takes none off those that come back to it. A driver may have
	 * no room. */
	int had = (long)ctx->data - (long)ctx->data_meta;
	if (!cpu || bpf_xdp_adjust_meta(ctx, had - (int)sizeof(struct onward)))
		return 0;
	struct onward *on = (void *)(long)ctx->data_meta;
	__u32 *last = bpf_map_lookup_elem(&handed, &zero);
	if ((void *)(on + 1) <= (void *)(long)ctx->data && last && bpf_redirect_map(&cpus, *cpu, 0) == XDP_REDIRECT) {
		on->from = port->id;
		on->to = to;
		on->bytes = bytes;
		*last = port->id;
		return 1;
	}
	bpf_xdp_adjust_meta(ctx, sizeof(struct onward));
	return 0;
}

/* What a CPU put aside for another was put into the queue (trace/events/xdp.h): the queue's map, how many, how many were lost. */
SEC("raw_tp/xdp_cpumap_enqueue")
int bywash_overrun(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0;
	__u64 *id = bpf_map_lookup_elem(&cpus_id, &zero);
	__u32 *last = bpf_map_lookup_elem(&handed, &zero);

	if (!id || !last || (__u32)ctx->args[0] != *id)
		return 0;
	struct bywash_counters *c = counters_of(*last);
	if (c)
		c->frames[DROP_CPU_BUSY] += (__u32)ctx->args[2];
	return 0;
}

#endif
