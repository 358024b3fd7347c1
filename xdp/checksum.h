/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Checksums: updates that of the IPv4 header, and detects TCP and UDP checksums that were left to a device to finish. A
 * frame that native XDP redirects loses the mark that says so. */
#ifndef BYWASH_CHECKSUM_H
#define BYWASH_CHECKSUM_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Returns whether a nonzero one's complement sum folds to 0xffff, that is, whether 65535 divides it. Multiplied by the
 * inverse of 65535 modulo 2^64, a multiple gives its quotient, and any other number more than the largest quotient. */
static __always_inline int sums_up(__u64 sum)
{
	const __u64 most = 0x0001000100010001ull; /* (2^64 - 1) / 65535, and 0 less the inverse */

	return 0 - sum * most <= most;
}

static __always_inline __u64 sum_words(const void *p, int words)
{
	__u64 sum = 0;

	for (int i = 0; i < words; i++)
		sum += *(const __u32 *)(p + 4 * i);
	return sum;
}

/* Returns whether a TCP or UDP checksum field has only the pseudo-header's sum (crates/wire/src/partial.rs). Both
 * addresses together have `words` 32-bit words. */
static __always_inline int unfinished(__u8 proto, const void *l4, const void *end, __u32 len, const void *addresses,
				      int words)
{
	const __u16 *at;
	__u16 field;

	/* The barriers keep clang from adding a field's offset that it holds in a register: without CAP_PERFMON the
	 * verifier allows only constants. */
	if (proto == IPPROTO_UDP) {
		const struct udphdr *udp = l4;

		if ((void *)(udp + 1) > end)
			return 0;
		at = &udp->check;
		barrier_var(at);
	} else if (proto == IPPROTO_TCP) {
		const struct tcphdr *tcp = l4;

		if ((void *)&tcp->urg_ptr > end)
			return 0;
		at = &tcp->check;
		barrier_var(at);
	} else {
		return 0;
	}
	field = *at;
	/* Keeps the compiler from computing the sum earlier, for protocols that need none. */
	barrier_var(field);
	return field && sums_up(sum_words(addresses, words) + bpf_htons(proto) + bpf_htons(len) + (__u16)~field);
}

/* Lowers the TTL, which must be larger than `n`, and updates the header checksum (RFC 1624). The TTL is the high byte
 * of its 16-bit word; the checksum, in the same 32 bits, gains what that word loses, with end-around carry. */
static __always_inline void lower_ttl(struct iphdr *ip, __u32 n)
{
	__u32 *ttl = (void *)&ip->ttl, word = *ttl;

	*ttl = word - n + ((word < (0xffff - n) << 16 ? n : n + 1) << 16);
}

static __always_inline int is_fragment4(const struct iphdr *ip)
{
	return ip->frag_off & bpf_htons(0x3fff);
}

/* Returns whether the IP packet behind VXLAN's or Geneve's headers, if there are any, has an unfinished checksum. `udp`
 * is the UDP header before them. */
static __always_inline int unfinished_within(const __u8 *udp, const void *end)
{
	const __u8 *tunnel = udp + sizeof(struct udphdr), *ip = tunnel + 8 + ETH_HLEN;

	if (tunnel + 8 > (const __u8 *)end)
		return 0;
	/* Geneve, which may have options, has the type of the frame here (RFC 8926 3.4), VXLAN 0. */
	if (*(const __be16 *)(tunnel + 2) == bpf_htons(ETH_P_TEB) && *tunnel & 0x3f) {
#ifdef BYWASH_PLAIN
		/* Without CAP_PERFMON the verifier allows only constant offsets. */
		return 1;
#else
		ip += (*tunnel & 0x3f) * 4;
#endif
	}
	if (ip + sizeof(struct iphdr) > (const __u8 *)end)
		return 0;
	const struct iphdr *ip4 = (const void *)ip;
	const struct ipv6hdr *ip6 = (const void *)ip;
	const void *l4;
	/* As in unfinished(), the barriers keep offsets constant. */
	switch (*(const __be16 *)(ip - 2)) {
	case bpf_htons(ETH_P_IP):
		l4 = ip4 + 1;
		barrier_var(l4);
		return ip4->ihl == 5 && !is_fragment4(ip4) &&
		       unfinished(ip4->protocol, l4, end, bpf_ntohs(ip4->tot_len) - sizeof(*ip4), &ip4->saddr, 2);
	case bpf_htons(ETH_P_IPV6):
		l4 = ip6 + 1;
		barrier_var(l4);
		return l4 <= end && unfinished(ip6->nexthdr, l4, end, bpf_ntohs(ip6->payload_len), &ip6->saddr, 8);
	default:
		return 0;
	}
}

#endif
