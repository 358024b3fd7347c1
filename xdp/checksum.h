/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Checksums: IPv4's, of a header that changes, and whether TCP's or UDP's was left to a device that never sees the packet: a
 * frame that native XDP redirects loses the mark that says so. */
#ifndef BYWASH_CHECKSUM_H
#define BYWASH_CHECKSUM_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Whether the words of a one's complement sum, which is not 0, add up to 0xffff: if 65535 divides it. A number times the
 * inverse of 65535 modulo 2^64 is its quotient then, and greater than any quotient otherwise. */
static __always_inline int sums_up(__u64 sum)
{
	const __u64 most = 0x0001000100010001ull; /* (2^64 - 1) / 65535, and 0 less the inverse */

	return 0 - sum * most <= most;
}

static __always_inline __u64 sum_words(const __u8 *p, int words)
{
	__u64 sum = 0;

	for (int i = 0; i < words; i++)
		sum += *(const __u32 *)(p + 4 * i);
	return sum;
}

/* Whether a TCP or UDP checksum holds no more than the pseudo-header's sum (crates/wire/src/partial.rs), with addresses of
 * so many words. */
static __always_inline int unfinished(__u8 proto, const __u8 *l4, const void *end, __u32 len, const __u8 *addresses,
				      int words)
{
	__u16 field;

	if (proto == 17) {
		if ((void *)l4 + 8 > end)
			return 0;
		field = *(const __u16 *)(l4 + 6);
	} else if (proto == 6) {
		if ((void *)l4 + 18 > end)
			return 0;
		field = *(const __u16 *)(l4 + 16);
	} else {
		return 0;
	}
	/* Not earlier: a sum for each protocol that has none. */
	barrier_var(field);
	return field && sums_up(sum_words(addresses, words) + bpf_htons(proto) + bpf_htons(len) + (__u16)~field);
}

/* RFC 1624: the TTL, which is larger than `n`, is the high byte of its word. Its checksum, in the same 32 bits, gets what it
 * loses, and the carry around its end. */
static __always_inline void lower_ttl(__u8 *ip, __u32 n)
{
	__u32 *ttl = (void *)(ip + 8), word = *ttl;

	*ttl = word - n + ((word < (0xffff - n) << 16 ? n : n + 1) << 16);
}

#endif
