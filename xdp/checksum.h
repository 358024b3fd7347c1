/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Checksums: updates that of the IPv4 header, and detects TCP and UDP checksums that were left to a device to finish. A
 * frame that native XDP redirects loses the mark that says so. */
#ifndef BYWASH_CHECKSUM_H
#define BYWASH_CHECKSUM_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
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

#endif
