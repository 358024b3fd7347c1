/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Ports with policy routing rules, or in a VRF: the kernel itself is asked for each packet's next hop, because it knows
 * all rules and tables. Separate programs ask it, which are loaded for the first such port. A packet that is not
 * plainly forwarded is left to the kernel; to user space if the kernel has not been asked, if the next hop's driver does
 * not accept redirected frames, or if the packet is longer than the MTU. */
#ifndef BYWASH_RULES_H
#define BYWASH_RULES_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "router.h"

/* Cached answer of the kernel for packets between two addresses, valid under the version in which it was given, which
 * ends with any change of routes, next hops or rules. Entries share the slots of `dst_cache6`; the seal tells them from
 * others there. */
struct rule_entry {
	__u64 k[4]; /* source and destination; for IPv4, both in the first word */
	__u64 in;   /* lower half: ingress and family; upper half: the egress port's interface index */
	__u64 macs; /* as in struct adjacency */
	__u64 rest;
	__u64 seal;
};

_Static_assert(sizeof(struct rule_entry) == sizeof(struct dst_entry6), "they share a map");

static __always_inline __u64 seal_rule(const __u64 *k, __u64 in, __u64 macs, __u64 rest, __u64 version)
{
	return sealed(sealed(k[0], k[1], k[2]) ^ k[3], in ^ macs * K2, rest) ^ ~version;
}

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
		lookup6(version, dst6[0], dst6[1], &slot, &f->adj);
	} else {
		struct dst_slot4 slot = read_slot4(ip4->daddr);
		if (!slot.k)
			return 1;
		lookup4(version, ip4->daddr, &slot, &f->adj);
	}
	if (adj_mtu(&f->adj))
		return 0;
	hop = hop_at(f->adj.macs);
	return !hop || hop->kind == HOP_POLICY;
}

/* Asks the kernel for the next hop of a packet, and caches the answer if it is the same for all packets between its
 * addresses. Returns NEXT if the adjacency is set, otherwise the verdict. */
static __always_inline int ask_kernel(struct frame *f, void *ip, const int v6, volatile struct rule_entry *entry,
				      const __u64 *k, __u64 in, __u64 version)
{
	struct iphdr *ip4 = ip;
	struct ipv6hdr *ip6 = ip;
	const void *l4 = ip + (v6 ? sizeof(*ip6) : sizeof(*ip4));
	__u8 proto = v6 ? ip6->nexthdr : ip4->protocol;
	const struct bywash_port *out;
	/* AF_INET6, AF_INET. With a length, whatever it is, the answer has the MTU. */
	struct bpf_fib_lookup to = { .family = v6 ? 10 : 2, .tot_len = 1, .l4_protocol = proto };

	if (is_excepted(f, ip, v6))
		return PASS_POLICY;
	/* Among equal-cost next hops, an ICMP error takes that of the flow that it is about. */
	if (proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6) {
		const __u8 *type = l4;
		if ((void *)(type + 1) > f->end || (v6 ? *type < 128 : *type != 0 && *type != 8))
			return TO_USER;
	}
	if ((proto == IPPROTO_TCP || proto == IPPROTO_UDP) && (v6 || !is_fragment4(ip4)) && l4 + 4 <= f->end) {
		to.sport = ((const __be16 *)l4)[0];
		to.dport = ((const __be16 *)l4)[1];
	}
	to.ifindex = f->port->ifindex;
	if (v6) {
		to.flowinfo = *(const __be32 *)ip6 & bpf_htonl(0x0fffffff);
		__builtin_memcpy(to.ipv6_src, &ip6->saddr, 16);
		__builtin_memcpy(to.ipv6_dst, &ip6->daddr, 16);
	} else {
		to.tos = ip4->tos;
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
	if (f->flags & BYWASH_NATIVE && !(out->sending & BYWASH_TAKES_FRAMES))
		return TO_USER;
	__u32 low, high;
	__builtin_memcpy(&f->adj.macs, to.dmac, ETH_ALEN);
	__builtin_memcpy((void *)&f->adj.macs + ETH_ALEN, to.smac, 2);
	__builtin_memcpy(&low, to.smac + 2, 4);
	high = to.mtu_result | (__u32)out->id << 16;
	f->adj.rest = low | (__u64)high << 32;
	f->adj.index = to.ifindex;
	if (entry && f->port->sending & BYWASH_KEEPS) {
		__u64 in_out = in | f->adj.index << 32;
		for (int i = 0; i < 4; i++)
			entry->k[i] = k[i];
		entry->in = in_out;
		entry->macs = f->adj.macs;
		entry->rest = f->adj.rest;
		entry->seal = seal_rule(k, in_out, f->adj.macs, f->adj.rest, version);
	}
	return NEXT;
}

/* Forwards a packet by the kernel's rules and returns the verdict; on NEXT it has been rewritten for its next hop. */
static __always_inline int by_rules_of(struct frame *f, const int v6)
{
	void *ip = f->data + ETH_HLEN;
	struct iphdr *ip4 = ip;
	struct ipv6hdr *ip6 = ip;
	const int head = v6 ? sizeof(*ip6) : sizeof(*ip4);
	const void *l4 = ip + head;
	int reason;

	if (l4 > f->end)
		return TO_USER;
	__u32 room = f->bytes - ETH_HLEN;
	__u8 proto = v6 ? ip6->nexthdr : ip4->protocol;
	if (unlikely(!(v6 ? valid6(ip6, room) : valid4(ip4, room)))) {
		reason = v6 ? exception6(ip6) : exception4(ip4);
		return reason == NEXT ? TO_USER : reason;
	}
	if (unlikely(f->flags & kernel_flag(v6)))
		return PASS_POLICY;
	/* With rules, the route that validates a source need not be that of packets to it. */
	if (!v6 && unlikely(f->flags & (BYWASH_RPF_LOOSE | BYWASH_RPF_STRICT) || own_bit(f->port->own, &ip4->saddr)))
		return TO_USER;
	__u32 longest = f->gso_size ? segment(f, proto, l4) + head : room;
	reason = payload_exception(f, ip, v6, proto, longest);
	if (unlikely(reason != NEXT))
		return reason;

	__u64 version = current_version(f->port), k[4] = {}, mixed, in = f->port->route_id | v6 << 16;
	if (v6) {
		__builtin_memcpy(k, &ip6->saddr, 32);
		mixed = mix6(mix6(k[0], k[1]) ^ k[2], k[3]);
	} else {
		k[0] = (__u64)ip4->saddr << 32 | ip4->daddr;
		mixed = k[0] * K1;
	}
	volatile struct rule_entry *e = (void *)dst_entry6_at(dst_cache_cpu() * BYWASH_DST_CACHE6 + (mixed >> 50));
	int known = 0;
	if (e && e->k[0] == k[0] && e->k[1] == k[1] && e->k[2] == k[2] && e->k[3] == k[3]) {
		__u64 in_out = e->in, macs = e->macs, rest = e->rest;
		if ((__u32)in_out == in && seal_rule(k, in_out, macs, rest, version) == e->seal) {
			f->adj.macs = macs;
			f->adj.rest = rest;
			f->adj.index = in_out >> 32;
			known = 1;
		}
	}
	if (unlikely(!known)) {
		reason = ask_kernel(f, ip, v6, e, k, in, version);
		if (reason != NEXT)
			return reason;
	}
	/* Padding counts too: a frame too long for the device would be lost uncounted. */
	if (unlikely(longest > adj_mtu(&f->adj) || (f->flags & BYWASH_REDIRECTS && adj_port(&f->adj) == f->port->id)))
		return TO_USER;
	*(__u64 *)f->data = f->adj.macs;
	*(__u32 *)(f->data + 8) = f->adj.rest;
	if (v6) {
		ip6->hop_limit--;
	} else {
		lower_ttl(ip4, 1);
	}
	return NEXT;
}

static __always_inline int judge_by_rules(struct frame *f, __u64 mine)
{
	int reason = parse(f, mine);

	if (reason != NEXT)
		return reason;
	switch (ether_type(f)) {
	case bpf_htons(ETH_P_IP):
		return by_rules_of(f, 0);
	case bpf_htons(ETH_P_IPV6):
		return by_rules_of(f, 1);
	case bpf_htons(ETH_P_8021Q):
	case bpf_htons(ETH_P_8021AD):
		return PASS_VLAN;
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
	struct frame f = frame_of_xdp(ctx, port, mine >> 48);
	return conclude(ctx, &f, judge_by_rules(&f, mine), &vlan_xdp, 0, 0);
}

#endif
