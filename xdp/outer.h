/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Packets that came through a tunnel to this host. crates/router/src/tunnel.rs decapsulates them; here only the headers
 * that lead to the packet within are read. */
#ifndef BYWASH_OUTER_H
#define BYWASH_OUTER_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "forward.h"

/* Tunnels whose packets user space forwards, by the ends of these packets: the kernel has all others. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, BYWASH_VLANS);
	__type(key, struct bywash_end);
	__type(value, struct bywash_through);
} ends SEC(".maps");

/* A packet within another. */
struct enclosed {
	void *ip;
	__u64 takes; /* of its tunnel, as in `ends` */
	__u32 added; /* length of the headers around it, from the IPv4 header on */
	int v6;
};

/* Returns whether a packet in a tunnel may be forwarded, as far as its destination tells: it is no group, as that of
 * routing protocols is, and not link-local. */
static __always_inline int may_leave(const void *ip, const void *end, const int v6)
{
	const struct ipv6hdr *ip6 = ip;
	const struct iphdr *ip4 = ip;

	if (v6)
		return (void *)(ip6 + 1) <= end && plain6(&ip6->daddr);
	return (void *)(ip4 + 1) <= end && plain4(ip4->daddr);
}

/* Finds the packet within an IPv4 packet that interface `number` has received. Returns 0 if there is none, if its tunnel
 * is the kernel's, or if it is certainly not to be forwarded. */
static __always_inline int enclosed_in(struct enclosed *in, struct iphdr *ip, const void *end, __u32 number)
{
	struct bywash_end at = { .remote = ip->saddr, .local = ip->daddr, .protocol = ip->protocol };
	const __be16 *words = (const void *)(ip + 1);
	void *inner = ip + 1;
	int v6 = 0;

	if (ip->ihl != 5 || ip->ttl < 2 || ip->tos & 1 || ip->frag_off & bpf_htons(0x3fff))
		return 0;
	switch (ip->protocol) {
	case IPPROTO_IPIP:
		break;
	case IPPROTO_IPV6:
		v6 = 1;
		break;
	case IPPROTO_GRE:
		/* Flags and version, then the EtherType (RFC 2784); with a key (RFC 2890). */
		if ((void *)(words + 4) > end || (words[0] && words[0] != bpf_htons(0x2000)))
			return 0;
		if (words[1] != bpf_htons(ETH_P_IP) && words[1] != bpf_htons(ETH_P_IPV6))
			return 0;
		v6 = words[1] == bpf_htons(ETH_P_IPV6);
		inner += 4;
		if (words[0]) {
			at.keyed = 1;
			at.key = *(const __be32 *)inner;
			inner += 4;
		}
		break;
	case IPPROTO_UDP:
		/* UDP and VXLAN (RFC 7348 5), then Ethernet. */
		inner += 8 + 8 + ETH_HLEN;
		if (inner > end || *(const __be32 *)(words + 4) != bpf_htonl(0x08000000))
			return 0;
		at.remote = 0;
		at.port = words[1];
		at.keyed = 1;
		at.key = *(const __be32 *)(words + 6);
		words = inner - 2;
		if (words[0] != bpf_htons(ETH_P_IP) && words[0] != bpf_htons(ETH_P_IPV6))
			return 0;
		v6 = words[0] == bpf_htons(ETH_P_IPV6);
		break;
	default:
		return 0;
	}
	const struct bywash_through *through = bpf_map_lookup_elem(&ends, &at);
	if (!through || (through->link && through->link - 1 != number))
		return 0;
	in->takes = through->takes;
	/* Frames to other addresses are forwarded by a bridge. */
	if (ip->protocol == IPPROTO_UDP && (*(const __u64 *)(inner - ETH_HLEN) ^ in->takes) << 16)
		return 0;
	in->ip = inner;
	in->added = inner - (void *)ip;
	in->v6 = v6;
	return v6 ? may_leave(inner, end, 1) : may_leave(inner, end, 0);
}

#endif
