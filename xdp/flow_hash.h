/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Flow hash that selects the next hop in a group, and the CPU. Must match crates/fib/src/hash.rs, and for the fields that
 * are hashed, crates/router/src/flow.rs. */
#ifndef BYWASH_FLOW_HASH_H
#define BYWASH_FLOW_HASH_H

#include <linux/bpf.h>
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

static __always_inline __u32 be32_at(const __u8 *p)
{
	return bpf_ntohl(*(const __u32 *)p);
}

static __always_inline __u64 be64_at(const __u8 *p)
{
	return bpf_be64_to_cpu(*(const __u64 *)p);
}

/* Returns source and destination port for protocols whose header begins with them, else 0. */
static __always_inline __u32 flow_ports(__u8 proto, const __u8 *l4, const void *end)
{
	switch (proto) {
	case 6: case 17: case 33: case 132: case 136:
		return (void *)l4 + 4 <= end ? be32_at(l4) : 0;
	default:
		return 0;
	}
}

static __always_inline __u32 flow_hash4(const __u8 *ip, const void *end)
{
	int whole = !(*(const __u16 *)(ip + 6) & bpf_htons(0x3fff));
	__u32 ports = whole ? flow_ports(ip[9], ip + 20, end) : 0;

	return flow_mix(be64_at(ip + 12), (__u64)ports << 8 | ip[9]) * K2 >> 32;
}

static __always_inline __u32 flow_hash6(const __u8 *ip, const void *end)
{
	__u64 src = flow_mix(be64_at(ip + 8), be64_at(ip + 16)), dst = flow_mix(be64_at(ip + 24), be64_at(ip + 32));
	__u64 ends = flow_mix(src, dst);

	return flow_mix(ends, (__u64)flow_ports(ip[6], ip + 40, end) << 8 | ip[6]) * K2 >> 32;
}

/* Hashes the addresses only. An ICMP error takes the path of the flow that it is about, as in Linux (ip_multipath_l3_keys): the
 * quoted packet, which went in the opposite direction, has the addresses swapped. */
static __always_inline __u32 flow_l3_hash4(const __u8 *ip, const void *end)
{
	__u64 ends = be64_at(ip + 12);
	const __u8 *icmp = ip + 20, *in = icmp + 8;

	if (ip[9] == 1 && !(*(const __u16 *)(ip + 6) & bpf_htons(0x1fff)) && (void *)in + 20 <= end &&
	    icmp[0] < 13 && 1 << icmp[0] & (1 << 3 | 1 << 4 | 1 << 5 | 1 << 11 | 1 << 12))
		ends = (__u64)be32_at(in + 16) << 32 | be32_at(in + 12);
	return flow_mix(ends, 0) * K2 >> 32;
}

/* The same for IPv6, with flow label and next header (ip6_multipath_l3_keys). */
static __always_inline __u32 flow_l3_hash6(const __u8 *ip, const void *end)
{
	const __u8 *icmp = ip + 40, *in = icmp + 8, *key = ip;
	__u64 src, dst;

	if (ip[6] == 58 && (void *)in + 40 <= end && icmp[0] - 1u < 4)
		key = in;
	src = flow_mix(be64_at(key + 8), be64_at(key + 16));
	dst = flow_mix(be64_at(key + 24), be64_at(key + 32));
	__u64 ends = key == ip ? flow_mix(src, dst) : flow_mix(dst, src);
	return flow_mix(ends, (__u64)(be32_at(key) & 0xfffff) << 8 | key[6]) * K2 >> 32;
}

#endif
