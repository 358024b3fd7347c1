/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Packets that came through a tunnel to this host. crates/router/src/tunnel.rs decapsulates them; here only the headers
 * up to the inner packet are read. */
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
#include "stations.h"

/* Tunnels whose packets user space forwards, by header fields of the outer packets: all others are left to the
 * kernel. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, BYWASH_ENDS);
	__type(key, struct bywash_end);
	__type(value, struct bywash_through);
} ends SEC(".maps");

/* The inner packet of a tunnel. */
struct inner {
	__u64 takes; /* of its tunnel, as in `ends`; for a frame that a bridge forwards, only flags */
	__u32 added; /* length of the outer headers, from the IP header on */
	int v6;
};

/* Returns whether the destination of an inner packet allows forwarding: it is neither a group, such as those of routing
 * protocols, nor link-local. */
static __always_inline int may_leave(const void *ip, const void *end, const int v6)
{
	const struct ipv6hdr *ip6 = ip;
	const struct iphdr *ip4 = ip;

	if (v6)
		return (void *)(ip6 + 1) <= end && plain6(&ip6->daddr);
	return (void *)(ip4 + 1) <= end && plain4(ip4->daddr);
}

/* Returns whether the bridge of a tunnel forwards a frame from it by its addresses alone, and the kernel does not learn
 * from it. `packet` is behind the frame's Ethernet header. */
static __always_inline int is_inner_bridged(const void *packet, const void *end, const struct bywash_through *through,
					     const int v6)
{
	const __u64 *frame = packet - ETH_HLEN;
	volatile __u8 *due;

	if (packet + (v6 ? sizeof(struct ipv6hdr) + 1 : sizeof(struct iphdr)) > end || !is_plainly_bridged(frame, end))
		return 0;
	__u64 bridge = ((through->takes >> END_NUMBER & END_NUMBERS) - BYWASH_PORTS) << 48;
	__u32 to = leads_to(*frame << 16 >> 16 | bridge);
	if (to >= BYWASH_PORTS || !(through->members >> to & 1))
		return 0;
	if (!(through->link & END_LEARNS))
		return 1;
	__u64 from = *(const __u64 *)((const void *)frame + 4) >> 16;
	return find_station(from | bridge | (BYWASH_PORTS | 128ull) << 56, 0, &due) != 0;
}

/* Destination options of IPv6 with an encapsulation limit and nothing else (RFC 2473 4.1.1). */
struct limit_options {
	__u8 nexthdr;
	__u8 octets[7]; /* 0, 4, 1, the limit, 1, 1, 0 */
};

/* Reads the addresses and the protocol of an outer packet. Returns its payload; NULL if its IP header, or the headers
 * behind that, are unusual. */
static __always_inline void *outer_payload(struct bywash_end *at, void *ip, const void *end, const int v6)
{
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;

	if (ip + (v6 ? sizeof(*ip6) : sizeof(*ip4)) > end)
		return NULL;
	if (!v6) {
		if (ip4->ihl != 5 || ip4->ttl < 2 || ip4->tos & 1 || ip4->frag_off & bpf_htons(0x3fff))
			return NULL;
		at->remote[0] = ip4->saddr;
		at->local[0] = ip4->daddr;
		at->protocol = ip4->protocol;
		return ip + sizeof(*ip4);
	}
	/* The lowest bit of the traffic class. */
	if (ip6->version != 6 || ip6->hop_limit < 2 || ip6->flow_lbl[0] & 0x10)
		return NULL;
	__builtin_memcpy(at->remote, &ip6->saddr, 16);
	__builtin_memcpy(at->local, &ip6->daddr, 16);
	at->flags = END_V6;
	at->protocol = ip6->nexthdr;
	if (ip6->nexthdr != IPPROTO_DSTOPTS)
		return ip + sizeof(*ip6);
	const struct limit_options *limit = ip + sizeof(*ip6);
	if ((void *)(limit + 1) > end || limit->octets[0] || limit->octets[1] != 4 || limit->octets[2] != 1 ||
	    limit->octets[4] != 1 || limit->octets[5] != 1 || limit->octets[6] || limit->nexthdr == IPPROTO_UDP)
		return NULL;
	at->protocol = limit->nexthdr;
	return ip + sizeof(*ip6) + sizeof(*limit);
}

/* Finds the inner packet of a packet that interface `number` has received, with an IPv4 or, if `v6` is set, IPv6 header
 * at `ip`. Returns 0 if there is none, if its tunnel is left to the kernel, or if it is certainly not to be forwarded.
 * Not inlined, so that the verifier forgets how the result was found. */
static __attribute__((noinline)) int find_inner(struct inner *in, void *ip, const void *end, __u32 number, int v6)
{
	struct bywash_end at = {};
	void *inner = v6 ? outer_payload(&at, ip, end, 1) : outer_payload(&at, ip, end, 0);
	const __be16 *words = inner;
	int inner6 = 0;

	if (!inner)
		return 0;
	switch (at.protocol) {
	case IPPROTO_IPIP:
		break;
	case IPPROTO_IPV6:
		inner6 = 1;
		break;
	case IPPROTO_GRE:
		/* Flags and version, then the EtherType (RFC 2784); with a checksum, with a key (RFC 2890). */
		if ((void *)(words + 8) > end || words[0] & ~bpf_htons(0xa000))
			return 0;
		inner += 4;
		if (words[0] & bpf_htons(0x8000)) {
			at.flags |= END_SUMMED;
			inner += 4;
		}
		if (words[0] & bpf_htons(0x2000)) {
			at.flags |= END_KEYED;
			at.key = *(const __be32 *)inner;
			inner += 4;
		}
		if (words[1] == bpf_htons(ETH_P_TEB)) {
			at.flags |= END_ETHERNET;
			inner += ETH_HLEN;
			if (inner > end)
				return 0;
			words = inner - 4;
		}
		if (words[1] != bpf_htons(ETH_P_IP) && words[1] != bpf_htons(ETH_P_IPV6))
			return 0;
		inner6 = words[1] == bpf_htons(ETH_P_IPV6);
		break;
	case IPPROTO_UDP:
		/* UDP and VXLAN (RFC 7348 5), then Ethernet. */
		inner += 8 + 8 + ETH_HLEN;
		if (inner > end || *(const __be32 *)(words + 4) != bpf_htonl(0x08000000))
			return 0;
		__builtin_memset(at.remote, 0, sizeof(at.remote));
		at.port = words[1];
		at.flags |= END_KEYED;
		at.key = *(const __be32 *)(words + 6);
		words = inner - 2;
		if (words[0] != bpf_htons(ETH_P_IP) && words[0] != bpf_htons(ETH_P_IPV6))
			return 0;
		inner6 = words[0] == bpf_htons(ETH_P_IPV6);
		break;
	default:
		return 0;
	}
	int ethernet = at.port || at.flags & END_ETHERNET;
	const struct bywash_through *through = bpf_map_lookup_elem(&ends, &at);
	__u16 link = through ? through->link : 0;
	if (!through || (link && link - 1 != number))
		return 0;
	in->added = inner - ip;
	in->v6 = inner6;
	in->takes = through->takes;
	if (inner > end)
		return 0;
	if (ethernet && (*(const __u64 *)(inner - ETH_HLEN) ^ in->takes) << 16) {
		/* To another address: the bridge that the tunnel is a member of forwards it, and gates do not apply. */
		in->takes = through->link & END_FLAGS;
		return in->takes && (inner6 ? is_inner_bridged(inner, end, through, 1) :
					       is_inner_bridged(inner, end, through, 0));
	}
	return inner6 ? may_leave(inner, end, 1) : may_leave(inner, end, 0);
}

#endif
