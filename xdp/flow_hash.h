/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Flow hash that selects the next hop in a group, and the CPU. Must match crates/fib/src/hash.rs and, in the fields
 * that are hashed, crates/router/src/flow.rs. */
#ifndef BYWASH_FLOW_HASH_H
#define BYWASH_FLOW_HASH_H

#include <linux/bpf.h>
#include <linux/icmpv6.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define K1 0x9e3779b97f4a7c15ull
#define K2 0xd6e8feb86659fd93ull

static __always_inline __u64 flow_mix(__u64 a, __u64 b)
{
	__u64 x = (a ^ K1) * K2 ^ b;

	x = (x ^ (x >> 32)) * K1;
	return x ^ (x >> 29);
}

static __always_inline __u32 be32_at(const void *p)
{
	return bpf_ntohl(*(const __u32 *)p);
}

static __always_inline __u64 be64_at(const void *p)
{
	return bpf_be64_to_cpu(*(const __u64 *)p);
}

static __always_inline __u64 flow_mix6(const struct in6_addr *address)
{
	return flow_mix(be64_at(address), be64_at(&address->s6_addr32[2]));
}

/* Returns source and destination port for protocols whose header begins with them, else 0. */
static __always_inline __u32 flow_ports(__u8 proto, const void *l4, const void *end)
{
	switch (proto) {
	case IPPROTO_TCP: case IPPROTO_UDP: case IPPROTO_DCCP: case IPPROTO_SCTP: case IPPROTO_UDPLITE:
		return l4 + 4 <= end ? be32_at(l4) : 0;
	default:
		return 0;
	}
}

static __always_inline __u32 flow_hash4(const struct iphdr *ip, const void *end)
{
	int whole = !(ip->frag_off & bpf_htons(0x3fff));
	__u32 ports = whole ? flow_ports(ip->protocol, ip + 1, end) : 0;

	/* Both addresses. */
	return flow_mix(be64_at(&ip->saddr), (__u64)ports << 8 | ip->protocol) * K2 >> 32;
}

static __always_inline __u32 flow_hash6(const struct ipv6hdr *ip, const void *end)
{
	__u64 ends = flow_mix(flow_mix6(&ip->saddr), flow_mix6(&ip->daddr));

	return flow_mix(ends, (__u64)flow_ports(ip->nexthdr, ip + 1, end) << 8 | ip->nexthdr) * K2 >> 32;
}

/* Hashes the addresses only. An ICMP error takes the path of the flow that it is about, as in Linux
 * (ip_multipath_l3_keys): the quoted packet, which went in the opposite direction, has the addresses swapped. */
static __always_inline __u32 flow_l3_hash4(const struct iphdr *ip, const void *end)
{
	/* linux/icmp.h includes headers of the C library. */
	const __u8 *type = (const void *)(ip + 1);
	const struct iphdr *in = (const void *)(type + 8);
	__u64 ends = be64_at(&ip->saddr);

	if (ip->protocol == IPPROTO_ICMP && !(ip->frag_off & bpf_htons(0x1fff)) && (void *)(in + 1) <= end &&
	    *type < 13 && 1 << *type & (1 << 3 | 1 << 4 | 1 << 5 | 1 << 11 | 1 << 12))
		ends = (__u64)bpf_ntohl(in->daddr) << 32 | bpf_ntohl(in->saddr);
	return flow_mix(ends, 0) * K2 >> 32;
}

/* The same for IPv6, with flow label and next header (ip6_multipath_l3_keys). */
static __always_inline __u32 flow_l3_hash6(const struct ipv6hdr *ip, const void *end)
{
	const struct icmp6hdr *icmp = (const void *)(ip + 1);
	const struct ipv6hdr *in = (const void *)(icmp + 1), *key = ip;
	__u64 src, dst;

	if (ip->nexthdr == IPPROTO_ICMPV6 && (void *)(in + 1) <= end &&
	    icmp->icmp6_type - 1u < ICMPV6_PARAMPROB)
		key = in;
	src = flow_mix6(&key->saddr);
	dst = flow_mix6(&key->daddr);
	__u64 ends = key == ip ? flow_mix(src, dst) : flow_mix(dst, src);
	return flow_mix(ends, (__u64)(be32_at(key) & 0xfffff) << 8 | key->nexthdr) * K2 >> 32;
}

#endif
