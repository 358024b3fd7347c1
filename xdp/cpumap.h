/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Distributes one queue's frames to several CPUs that send them, each flow to one CPU. The receiving CPU judges and
 * rewrites a frame; the sending CPU does the larger part, the transmit path of the egress device. Frames put into a
 * full queue to a CPU are lost, and counted for their ingress port. */
#ifndef BYWASH_CPUMAP_H
#define BYWASH_CPUMAP_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "flow_hash.h"

/* Queues to CPUs, by CPU number. The loader sizes the map for all CPUs. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} cpumap SEC(".maps");

/* CPUs that send for each port; the port's `cpus` is their number. */
MAPPED(port_cpus, BYWASH_PORTS * BYWASH_PORT_CPUS, __u64);

/* Ingress port of the frame that a CPU last put into a queue. Drivers flush queues before a poll ends (xdp_do_flush),
 * so frames lost then are this port's; where one poll serves several devices, they may be another port's. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} cpumap_ingress SEC(".maps");

/* The kernel's ID of the map `cpumap`. */
MAPPED(cpumap_id, 1, __u64);

/* Metadata in front of a frame that is handed over. */
struct cpumap_meta {
	__u16 from, to;
	__u32 bytes; /* length as received */
};

/* Hashes a frame, tagged or not. Global, so that it costs no registers on the path on which the receiving CPU sends. */
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
	if (type == bpf_htons(ETH_P_IP) && at + sizeof(struct iphdr) <= end)
		return flow_hash4((const void *)at, end);
	if (type == bpf_htons(ETH_P_IPV6) && at + sizeof(struct ipv6hdr) <= end)
		return flow_hash6((const void *)at, end);
	return flow_mix(*(const __u64 *)eth, *(const __u32 *)(eth + 8)) >> 32;
}

/* Hands a frame to the CPU of its flow. Returns 0, with the frame's bytes unchanged, if that is not possible. */
static __always_inline int cpumap_redirect(struct xdp_md *ctx, const struct bywash_port *port, __u32 to, __u32 bytes)
{
	/* Mixed again: an upstream router's group may have selected by the same bits, which would then all be equal
	 * here. */
	__u32 hash = (__u32)frame_hash(ctx) * (__u32)K1, zero = 0;
	__u32 key = port->id * BYWASH_PORT_CPUS + (((__u64)hash * port->cpus) >> 32);
	const __u64 *cpu = bpf_map_lookup_elem(&port_cpus, &key);

	/* Replaces metadata that is there already: the kernel's frame generator does not remove it from recycled
	 * frames. A driver may have no room for metadata. */
	int had = (long)ctx->data - (long)ctx->data_meta;
	if (!cpu || bpf_xdp_adjust_meta(ctx, had - (int)sizeof(struct cpumap_meta)))
		return 0;
	struct cpumap_meta *on = (void *)(long)ctx->data_meta;
	__u32 *last = bpf_map_lookup_elem(&cpumap_ingress, &zero);
	if ((void *)(on + 1) <= (void *)(long)ctx->data && last && bpf_redirect_map(&cpumap, *cpu, 0) == XDP_REDIRECT) {
		on->from = port->id;
		on->to = to;
		on->bytes = bytes;
		*last = port->id;
		return 1;
	}
	bpf_xdp_adjust_meta(ctx, sizeof(struct cpumap_meta));
	return 0;
}

/* Runs after a CPU has put frames into another CPU's queue (trace/events/xdp.h: map ID, frames queued, frames
 * dropped). */
SEC("raw_tp/xdp_cpumap_enqueue")
int bywash_cpumap_enqueue(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 zero = 0;
	__u64 *id = bpf_map_lookup_elem(&cpumap_id, &zero);
	__u32 *last = bpf_map_lookup_elem(&cpumap_ingress, &zero);

	if (!id || !last || (__u32)ctx->args[0] != *id)
		return 0;
	struct bywash_counters *c = counters_of(*last);
	if (c)
		c->frames[DROP_CPU_BUSY] += (__u32)ctx->args[2];
	return 0;
}

#endif
