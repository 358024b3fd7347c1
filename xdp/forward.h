/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Forwarding in the driver: handles valid packets, and only those, as the stages of crates/router do. All packets that
 * are not certainly valid go to user space, which names the reason. */
#ifndef BYWASH_FORWARD_H
#define BYWASH_FORWARD_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "checksum.h"
#include "flow_hash.h"

/* Two versions of each; the lowest bit of a port's `version` selects the current one. The other is written only when no
 * program can still be reading it. */
MAPPED(hops, 2 * BYWASH_HOPS, struct bywash_hop);

MAPPED(buckets, 2 * BYWASH_BUCKETS, __u64);

/* Returns the key in `hops` of a version's next hop, or a key outside of the map if there is no such next hop. */
static __always_inline __u32 hop_key(__u64 v, __u32 id)
{
	return id < BYWASH_HOPS ? (v & 1) * BYWASH_HOPS + id : ~0u;
}

static __always_inline const struct bywash_hop *hop_at(__u32 key)
{
	return bpf_map_lookup_elem(&hops, &key);
}

/* Selects the member of a group for a flow hash. */
static __always_inline const struct bywash_hop *member(__u64 v, const struct bywash_hop *group, __u32 hash)
{
	__u32 at = group->first + (((__u64)hash * group->count) >> 32);
	__u32 key = (v & 1) * BYWASH_BUCKETS + at;
	__u64 *id = at < BYWASH_BUCKETS ? bpf_map_lookup_elem(&buckets, &key) : NULL;

	return id ? hop_at(hop_key(v, *id)) : NULL;
}

/* Returns whether an address, in network order, is a host's address that may be forwarded to and from. */
static __always_inline int plain4(__u32 address)
{
	return (__u8)address - 1u < 223 && (__u8)address != 127 && (__u16)address != bpf_htons(0xa9fe);
}

/* Returns whether an IPv4 address may be one of the host's own, and has to be looked up: whether bit 63 - n % 64 is set
 * in `own`, for its last octet n. BPF shifts by the lowest six bits of a register alone, which C does not promise. */
static __always_inline int own_bit(__u64 own, const __be32 *address)
{
	__u64 last = ((const __u8 *)address)[3];

	asm("%0 <<= %1" : "+r"(own) : "r"(last));
	return (__s64)own < 0;
}

/* Validates an IPv4 header (RFC 1812 5.2.2, by step; (1) has been checked) with TTL above 1 and no options. Packet and
 * padding have `room` bytes. */
static __always_inline int valid4(const struct iphdr *ip, __u32 room)
{
	__u32 total = bpf_ntohs(ip->tot_len);

	return *(const __u8 *)ip == 0x45 /* (3), (4) */ && total >= sizeof(*ip) /* (5) */ && total <= room &&
	       ip->ttl > 1 /* 5.3.1 */ && sums_up(sum_words(ip, 5)) /* (2) */ &&
	       plain4(ip->saddr) && plain4(ip->daddr) /* 5.3.7 */;
}

static __always_inline int link_local6(const struct in6_addr *address)
{
	return (address->s6_addr16[0] & bpf_htons(0xffc0)) == bpf_htons(0xfe80);
}

/* :: or ::1 */
static __always_inline int reserved6(const struct in6_addr *address)
{
	const __u64 *words = (const void *)address;

	return !words[0] && !(words[1] & ~bpf_cpu_to_be64(1));
}

/* Returns whether a source is in ::/64. Linux drops some of these on arrival (::1 and the IPv4-mapped ::ffff:0:0/96,
 * ip6_rcv_core) and does not forward ::; no host's address is among them. */
static __always_inline int dubious6(const struct in6_addr *source)
{
	return !*(const __u64 *)source;
}

static __always_inline int plain6(const struct in6_addr *address)
{
	return address->s6_addr[0] != 0xff && !link_local6(address);
}

/* Validates an IPv6 header (RFC 8200 3; addresses by RFC 4291 2.5 and 2.7) with hop limit above 1. */
static __always_inline int valid6(const struct ipv6hdr *ip, __u32 room)
{
	__u32 payload = bpf_ntohs(ip->payload_len);

	return ip->version == 6 && ip->nexthdr && payload + (__u32)sizeof(*ip) <= room && ip->hop_limit > 1 &&
	       plain6(&ip->saddr) && !dubious6(&ip->saddr) && plain6(&ip->daddr) && !reserved6(&ip->daddr);
}

#endif
