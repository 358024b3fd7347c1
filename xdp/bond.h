/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Selects the member of a bond that a packet leaves by, as Linux does (bond_xmit_hash,
 * drivers/net/bonding/bond_main.c). crates/router/src/bond.rs does the same. */
#ifndef BYWASH_BOND_H
#define BYWASH_BOND_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "forward.h"

/* Interface index of each port, by its id; 0: none. Traffic control cannot use `devices`, a map for XDP programs. */
MAPPED(interfaces, BYWASH_PORTS, __u64);

/* BOND_XMIT_POLICY_*, linux/if_bonding.h */
#define XMIT_LAYER2 0
#define XMIT_LAYER34 1

#define ICMP_HLEN 8

/* Fields of a packet that a hash uses, as they lie in memory. */
struct bond_fields {
	__u32 addresses; /* source and destination, combined */
	__u32 ends;      /* ports, or type, code and identifier of an ICMP query; 0 if there are none */
};

static __always_inline __u32 folded(__u64 word)
{
	return word ^ word >> 32;
}

static __always_inline __u32 addresses6(const __u64 *a)
{
	return folded(a[0] ^ a[1] ^ a[2] ^ a[3]);
}

/* Reads the fields of a packet that a hash needs. Returns 0 for ICMP errors, which are hashed by the packet that they
 * quote, and for rare protocols with ports. */
static __always_inline int bond_fields_of(struct bond_fields *fields, __u32 policy, const void *ip, const void *end,
					  const int v6)
{
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;
	const __u8 *l4 = ip + (v6 ? sizeof(*ip6) : sizeof(*ip4));
	__u8 proto = v6 ? ip6->nexthdr : ip4->protocol;

	if (policy == XMIT_LAYER2)
		return 1;
	fields->addresses = v6 ? addresses6((const void *)&ip6->saddr) : ip4->saddr ^ ip4->daddr;
	if (!v6 && ip4->frag_off & bpf_htons(0x3fff))
		return 1;
	switch (proto) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		break;
	case IPPROTO_DCCP:
	case IPPROTO_ESP:
	case IPPROTO_AH:
	case IPPROTO_SCTP:
	case IPPROTO_UDPLITE:
		return policy != XMIT_LAYER34;
	default:
		return 1;
	}
	__u32 len = v6 ? bpf_ntohs(ip6->payload_len) : bpf_ntohs(ip4->tot_len) - sizeof(*ip4);
	if ((const void *)(l4 + ICMP_HLEN) > end || len < ICMP_HLEN)
		return 0;
	if (proto == IPPROTO_TCP || proto == IPPROTO_UDP) {
		fields->ends = *(const __u32 *)l4;
		return 1;
	}
	/* The identifier of an ICMP or ICMPv6 query, in host order; 0 counts as 1. All other types go to user space. */
	if (l4[0] != 0 && l4[0] != 8 && l4[0] != 128 && l4[0] != 129)
		return 0;
	__u16 id = bpf_ntohs(*(const __u16 *)(l4 + 4));
	fields->ends = *(const __u16 *)l4 | (__u32)(id ? id : 1) << 16;
	return 1;
}

static __always_inline __u32 bond_policy(const struct bywash_hop *hop)
{
	return hop->ifindex >> 16;
}

static __always_inline __u32 bond_hash(const struct bywash_hop *hop, const struct bond_fields *fields, const int v6)
{
	__u32 policy = bond_policy(hop), hash = hop->macs[5] ^ hop->macs[11] ^ (v6 ? ETH_P_IPV6 : ETH_P_IP);

	if (policy == XMIT_LAYER2)
		return hash;
	if (policy == XMIT_LAYER34)
		hash = fields->ends;
	hash ^= fields->addresses;
	hash ^= hash >> 16;
	hash ^= hash >> 8;
	return policy == XMIT_LAYER34 ? hash >> 1 : hash;
}

/* Returns the port that a packet leaves a bond by, and its interface index; a negative number if there is none. */
static __always_inline int bond_port(__u64 version, const struct bywash_hop *hop, const struct bond_fields *fields,
				     __u32 *ifindex, const int v6)
{
	__u32 many = hop->ifindex & 0xffff;

	if (!many)
		return -1;
	__u32 at = hop->first + bond_hash(hop, fields, v6) % many, key = (version & 1) * BYWASH_BUCKETS + at;
	const __u64 *port = at < BYWASH_BUCKETS ? bpf_map_lookup_elem(&buckets, &key) : NULL;
	if (!port)
		return -1;
	key = *port;
	const __u64 *index = bpf_map_lookup_elem(&interfaces, &key);
	if (!index || !*index)
		return -1;
	*ifindex = *index;
	return key;
}

#endif
