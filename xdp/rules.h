/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Ports with policy routing rules, or in a VRF: the kernel itself is asked for each packet's way, because it knows all rules
 * and tables. Programs of their own do so, after a tail call from where the others leave such a packet to user space. They are
 * loaded for the first such port. Whatever is not plainly forwarded is the kernel's, or user space's where the kernel has not
 * been asked. */
#ifndef BYWASH_RULES_H
#define BYWASH_RULES_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "router.h"

PROGRAMS(rules_xdp, 1);
PROGRAMS(rules_tc, 1);

/* Returns whether packets to this destination are left to the kernel whatever their routes are. */
static __always_inline int is_excepted(struct frame *f, const void *ip, const int v6)
{
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;
	const __u64 *dst6 = (const void *)&ip6->daddr;
	__u64 version = current_version(f->port);
	const struct bywash_hop *hop;

	if (v6) {
		struct dst_slot6 slot = read_slot6(dst6[0], dst6[1]);
		if (!slot.k)
			return 1;
		lookup6(version, dst6[0], dst6[1], &slot, &f->way);
	} else {
		struct dst_slot4 slot = read_slot4(ip4->daddr);
		if (!slot.k)
			return 1;
		lookup4(version, ip4->daddr, &slot, &f->way);
	}
	if (way_mtu(&f->way))
		return 0;
	hop = hop_at(f->way.macs);
	return !hop || hop->kind == HOP_POLICY;
}

/* Asks for the way of a packet and returns the verdict; on NEXT the packet has been rewritten for its next hop. */
static __always_inline int ask_kernel(struct frame *f, const int v6)
{
	void *ip = f->data + ETH_HLEN;
	struct iphdr *ip4 = ip;
	struct ipv6hdr *ip6 = ip;
	const int head = v6 ? sizeof(*ip6) : sizeof(*ip4);
	const void *l4 = ip + head;
	const struct bywash_port *out;
	struct bpf_fib_lookup to = { .family = v6 ? 10 : 2 /* AF_INET6, AF_INET */ };
	int reason;

	if (l4 > f->end)
		return TO_USER;
	__u32 room = f->bytes - ETH_HLEN;
	__u8 proto = v6 ? ip6->nexthdr : ip4->protocol;
	if (!(v6 ? valid6(ip6, room) : valid4(ip4, room))) {
		reason = v6 ? exception6(ip6) : exception4(ip4);
		return reason == NEXT ? TO_USER : reason;
	}
	if (f->flags & kernel_flag(v6) || is_excepted(f, ip, v6))
		return PASS_POLICY;
	/* The way back to a source has rules of its own. */
	if (!v6 && (f->flags & (BYWASH_RPF_LOOSE | BYWASH_RPF_STRICT) || own_bit(f->port->own, &ip4->saddr)))
		return TO_USER;
	__u32 longest = f->gso_size ? segment(f, proto, l4) + head : room;
	reason = unlike_others(f, ip, v6, proto, longest);
	if (reason != NEXT)
		return reason;
	/* An ICMP error takes the way of the flow that it is about, among equal ones. */
	if (proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6) {
		const __u8 *type = l4;
		if ((void *)(type + 1) > f->end || (v6 ? *type < 128 : *type != 0 && *type != 8))
			return TO_USER;
	}
	to.ifindex = f->port->ifindex;
	to.l4_protocol = proto;
	if ((proto == IPPROTO_TCP || proto == IPPROTO_UDP) && (v6 || !is_fragment4(ip4)) && l4 + 4 <= f->end) {
		to.sport = ((const __be16 *)l4)[0];
		to.dport = ((const __be16 *)l4)[1];
	}
	if (v6) {
		to.flowinfo = *(const __be32 *)ip6 & bpf_htonl(0x0fffffff);
		to.tot_len = f->gso_size ? 1 : bpf_ntohs(ip6->payload_len) + head;
		__builtin_memcpy(to.ipv6_src, &ip6->saddr, 16);
		__builtin_memcpy(to.ipv6_dst, &ip6->daddr, 16);
	} else {
		to.tos = ip4->tos;
		to.tot_len = f->gso_size ? 1 : bpf_ntohs(ip4->tot_len);
		to.ipv4_src = ip4->saddr;
		to.ipv4_dst = ip4->daddr;
	}
	if (bpf_fib_lookup(f->ctx, &to, sizeof(to), 0) != BPF_FIB_LKUP_RET_SUCCESS)
		return PASS_ROUTE;
	out = port_of(to.ifindex);
	if (!out || !(out->sending & BYWASH_TARGET))
		return PASS_ROUTE;
	if (out->sending & (v6 ? BYWASH_KEPT6 : BYWASH_KEPT4))
		return PASS_POLICY;
	/* Padding counts too: the device would refuse too long a frame, uncounted. */
	if (longest > to.mtu_result || (f->flags & BYWASH_REDIRECTS && out == f->port) ||
	    (f->flags & BYWASH_NATIVE && !(out->sending & BYWASH_TAKES_FRAMES)))
		return TO_USER;
	__builtin_memcpy(f->data, to.dmac, ETH_ALEN);
	__builtin_memcpy(f->data + ETH_ALEN, to.smac, ETH_ALEN);
	if (v6) {
		ip6->hop_limit--;
	} else {
		lower_ttl(ip4, 1);
	}
	f->way.rest = (__u64)out->id << 48;
	f->way.index = to.ifindex;
	return NEXT;
}

static __always_inline int judge_by_rules(struct frame *f, __u64 mine)
{
	int reason = parse(f, mine);

	if (reason != NEXT)
		return reason;
	switch (ether_type(f)) {
	case bpf_htons(ETH_P_IP):
		return ask_kernel(f, 0);
	case bpf_htons(ETH_P_IPV6):
		return ask_kernel(f, 1);
	default:
		return PASS_ETHERTYPE;
	}
}

SEC("xdp.frags")
int bywash_rules(struct xdp_md *ctx)
{
	const struct bywash_port *port = port_of(ctx->ingress_ifindex);

	if (!port)
		return XDP_PASS;
	__u64 mine = mac_and_flags(port);
	struct frame f = {
		.ctx = ctx,
		.port = port,
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
		.bytes = ctx->data_end - ctx->data,
		.flags = mine >> 48,
	};
	int reason = judge_by_rules(&f, mine);
	switch (reason) {
	case NEXT:
		return to_port(&f);
	case TO_USER:
		return to_user(&f, ctx);
	default:
		return count(port->id, reason, XDP_PASS);
	}
}

/* Goes on with a program for rules, if the port's packets are forwarded in the driver. */
static __always_inline void by_rules(void *ctx, void *programs, const struct bywash_port *port, __u32 flags)
{
	if (flags & BYWASH_RULES && port->sending & BYWASH_BY_RULES)
		bpf_tail_call(ctx, programs, 0);
}

#endif
