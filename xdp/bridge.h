/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Ports on members of bridges: what they receive to the bridge's own MAC address is routed as the bridge's, by the programs for
 * ports with flows, whose entry of the port has the bridge's address and number. Everything else is the kernel's, which bridges
 * it: above all, frames of stations that the kernel has to learn.
 *
 * A program of its own looks the source up, before those. It is loaded for the first such port. */
#ifndef BYWASH_BRIDGE_H
#define BYWASH_BRIDGE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "router.h"

#define STATIONS_AT_A_PLACE 7

/* Stations of bridges: their MAC address, from bit 48 on the bridge's number less BYWASH_PORTS, and from bit 56 on the port that
 * leads to them, plus 128; 0: none. The process sets `due` when the kernel has to hear a station again. */
struct stations {
	__u64 entries[STATIONS_AT_A_PLACE];
	__u8 due[8];
};

MAPPED(stations, BYWASH_STATIONS, struct stations);

PROGRAMS(bridge_xdp, 1);
PROGRAMS(bridge_tc, 1);

/* Returns whether the kernel knows a station, and need not hear it now. It may be at either of two places. */
static __always_inline int is_known(__u64 station)
{
	__u64 hash = (station & ~(0xffull << 56)) * K1;

	for (int n = 0; n < 2; n++) {
		__u32 place = (hash >> (53 - 11 * n)) % BYWASH_STATIONS;
		volatile struct stations *s = bpf_map_lookup_elem(&stations, &place);
		if (!s)
			return 0;
		for (int i = 0; i < STATIONS_AT_A_PLACE; i++) {
			if (s->entries[i] != station)
				continue;
			if (likely(!s->due[i]))
				return 1;
			s->due[i] = 0;
			return 0;
		}
	}
	return 0;
}

/* Returns the verdict on a frame that a bridge's member has received; NEXT if it is routed. */
static __always_inline int judge_bridged(const struct bywash_port *port, __u64 mine, const void *data, const void *end)
{
	const __u8 *eth = data;
	__u64 bridge = port->route_id - BYWASH_PORTS, id = port->id | 128;

	if (data + ETH_HLEN > end)
		return PASS_SHORT;
	if ((*(const __u64 *)eth ^ mine) << 16)
		return eth[0] & 1 ? PASS_MULTICAST : PASS_NOT_MINE;
	return is_known(*(const __u64 *)(eth + 4) >> 16 | bridge << 48 | id << 56) ? NEXT : PASS_STATION;
}

SEC("xdp.frags")
int bywash_bridge(struct xdp_md *ctx)
{
	const struct bywash_port *port = port_of(ctx->ingress_ifindex);

	if (!port)
		return XDP_PASS;
	int reason = judge_bridged(port, mac_and_flags(port), (void *)(long)ctx->data, (void *)(long)ctx->data_end);
	if (reason == NEXT) {
		bpf_tail_call(ctx, &flow_xdp, FLOWS_OF_PORTS);
		reason = PASS_DISABLED;
	}
	return count(port->id, reason, XDP_PASS);
}

#endif
