/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Stations of bridges: the process's copy of their forwarding databases. */
#ifndef BYWASH_STATIONS_H
#define BYWASH_STATIONS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "flow_hash.h"

#define STATIONS_AT_A_PLACE 7

/* Stations of bridges. An entry is a MAC address, from bit 48 on the bridge's number less BYWASH_PORTS, and from bit
 * 56 on the port that leads to the station, or BYWASH_PORTS for a VXLAN, plus 128; 0: none. The process sets `due` when
 * the kernel has to receive a frame of the station again. */
struct stations {
	__u64 entries[STATIONS_AT_A_PLACE];
	__u8 due[8];
};

MAPPED(stations, BYWASH_STATIONS, struct stations);

/* Returns the entry of a station, and where its `due` is; 0 if it has none. A station may be in either of two places.
 * The comparison ignores the upper `ignored` bits. */
static __always_inline __u64 find_station(__u64 station, const int ignored, volatile __u8 **due)
{
	__u64 hash = (station & ~(0xffull << 56)) * K1;

	for (int n = 0; n < 2; n++) {
		__u32 place = (hash >> (53 - 11 * n)) % BYWASH_STATIONS;
		volatile struct stations *s = bpf_map_lookup_elem(&stations, &place);
		if (!s)
			return 0;
		for (int i = 0; i < STATIONS_AT_A_PLACE; i++) {
			__u64 entry = s->entries[i];
			if ((entry ^ station) << ignored)
				continue;
			*due = &s->due[i];
			return entry;
		}
	}
	return 0;
}

/* Returns the port that leads to a station, BYWASH_PORTS if a VXLAN does, or a negative number if neither does.
 * `station` is its address, with the bridge's number from bit 48 on. */
static __always_inline int leads_to(__u64 station)
{
	volatile __u8 *due;
	__u64 entry = find_station(station, 8, &due);

	return entry >> 63 ? entry >> 56 & 127 : -1;
}

/* Returns whether the kernel bridges frames of this kind by their addresses alone, whatever is set on the members. The
 * frame has a whole Ethernet header. Not among these kinds are ARP and neighbour discovery, which the kernel may answer
 * itself, 802.1X, pause frames, and what modules have registered for. */
static __always_inline int is_plainly_bridged(const void *data, const void *end)
{
	const __u8 *ip6 = data + ETH_HLEN;

	switch (*(const __be16 *)(data + 12)) {
	case bpf_htons(ETH_P_IP):
	case bpf_htons(ETH_P_PPP_SES):
	case bpf_htons(ETH_P_MPLS_UC):
		return 1;
	case bpf_htons(ETH_P_IPV6):
		/* IPv6 other than neighbour discovery: ICMPv6 messages from router solicitation, 133, to redirect. */
		return ip6 + sizeof(struct ipv6hdr) + 1 <= (const __u8 *)end &&
		       (ip6[6] != IPPROTO_ICMPV6 || ip6[40] - 133u > 4);
	default:
		return 0;
	}
}

#endif
