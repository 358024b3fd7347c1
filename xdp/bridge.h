/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Ports on members of bridges. Frames to the bridge's own MAC address are routed as if the bridge had received them, by
 * the programs for ports with flows: the port's entry has the bridge's address and number. Frames to a station behind
 * another port are sent there unchanged, and user space takes those to a station behind a VXLAN. The kernel bridges all
 * others, including those of stations that it has yet to learn.
 *
 * If the bridge filters VLANs, the entry of a port has the interface to which its frames without a tag belong, which
 * may be a VLAN interface on the bridge, and the other interfaces have entries like VLANs of a port (vlan.h). Each
 * interface has the stations of its VLAN, and its frames leave with its tag or without, as the member has it.
 *
 * A separate program, which runs first, looks the addresses up. It is loaded for the first such port. */
#ifndef BYWASH_BRIDGE_H
#define BYWASH_BRIDGE_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "router.h"
#include "stations.h"

PROGRAMS(bridge_xdp, 1);
PROGRAMS(bridge_tc, 1);

/* Tags with which frames of an interface leave, if its bridge filters VLANs. The process changes an entry only while no
 * interface's `members` refers to it. */
struct bywash_bridge {
	__u64 tagged; /* bit n: with the tag, on port n */
	__u64 tag;    /* as in the frame */
};

/* Entries by the interfaces' numbers less BYWASH_PORTS. */
MAPPED(bridges, BYWASH_VLANS, struct bywash_bridge);

/* A frame to another station that a bridge's member has received. */
struct bridged {
	__u32 length; /* in bytes without a tag; 0 if frames of any length may leave by another port */
	__u32 to;     /* the port by which it leaves */
	__u32 tag;    /* the tag with which it leaves; 0: none */
};

/* Returns whether the kernel has learned this station on its port and need not receive a frame of it now. */
static __always_inline int is_known(__u64 station)
{
	volatile __u8 *due;

	if (!find_station(station, 0, &due))
		return 0;
	if (likely(!*due))
		return 1;
	*due = 0;
	return 0;
}

/* Returns whether a frame has a whole IP header of the version that its EtherType says, which user space needs to hash
 * it. */
static __always_inline int has_version(const void *data, const void *end)
{
	const __u8 *ip = data + ETH_HLEN;

	if (*(const __be16 *)(data + 12) == bpf_htons(ETH_P_IPV6))
		return ip + sizeof(struct ipv6hdr) + 1 <= (const __u8 *)end && *ip >> 4 == 6;
	return ip + 20 <= (const __u8 *)end && *(const __be16 *)(data + 12) == bpf_htons(ETH_P_IP) && *ip >> 4 == 4;
}

/* Returns the verdict on a frame to another station. `of` is the entry of the interface to which it belongs, `data` the
 * frame without a tag except for the addresses, which are at `eth`. The port by which it leaves is never the ingress
 * port, whose bit in `members` stands for VXLANs. */
static __always_inline int judge_between(const struct bywash_port *of, __u64 bridge, __u64 from, const void *eth,
					 const void *data, const void *end, struct bridged *frame)
{
	__u64 members = *(const volatile __u64 *)&of->members;
	int member = leads_to(*(const __u64 *)eth << 16 >> 16 | bridge << 48);
	int through = member == BYWASH_PORTS;

	if (member < 0 || (through ? !(members >> of->id & 1) : member == of->id || !(members >> member & 1)))
		return PASS_NOT_MINE;
	if (!is_plainly_bridged(data, end) || frame->length > (through ? of->through : of->longest))
		return PASS_BRIDGED;
	if (through && !has_version(data, end))
		return PASS_BRIDGED;
	if (!is_known(from))
		return PASS_STATION;
	frame->to = member;
	return through ? TO_USER : TO_MEMBER;
}

/* Returns the verdict on a frame that a bridge's member has received; NEXT if it is routed. `protocol` and `tci` are
 * those of a tag beside its data; 0 if there is none. */
static __always_inline int judge_bridged(const struct bywash_port *port, const void *data, const void *end,
					 __be16 protocol, __be16 tci, struct bridged *frame)
{
	const struct bywash_port *of = port;
	const __u8 *eth = data;

	if (data + ETH_HLEN > end)
		return PASS_SHORT;
	if (!protocol && has_tag(*(const __be16 *)(eth + 12))) {
		if (data + ETH_HLEN + VLAN_HLEN > end)
			return PASS_VLAN;
		protocol = *(const __be16 *)(eth + 12);
		tci = *(const __be16 *)(eth + 14);
		data += VLAN_HLEN;
		frame->length -= VLAN_HLEN;
	}
	int tagged = !!protocol, filters = port->sending & BYWASH_FILTERS;
	/* The kernel learns stations by VLAN. Frames, with or without a tag, may belong to no interface. */
	if (filters) {
		if (tagged)
			of = vlan_of(port, protocol, tci);
		if (!of || of->route_id < BYWASH_PORTS)
			return PASS_VLAN;
	}
	__u64 mine = mac_and_flags(of), id = port->id | 128;
	__u32 bridge = of->route_id - BYWASH_PORTS;
	__u64 from = *(const __u64 *)(eth + 4) >> 16 | (__u64)bridge << 48 | id << 56;
	if (!((*(const __u64 *)eth ^ mine) << 16))
		return is_known(from) ? NEXT : PASS_STATION;
	if (eth[0] & 1)
		return PASS_MULTICAST;
	if (!*(const volatile __u64 *)&of->members)
		return PASS_NOT_MINE;
	if (tagged && !filters)
		return PASS_VLAN;
	int reason = judge_between(of, bridge, from, eth, data, end, frame);
	if (reason != TO_MEMBER || !filters)
		return reason;
	const struct bywash_bridge *leaves = bpf_map_lookup_elem(&bridges, &bridge);
	if (!leaves)
		return PASS_BRIDGED;
	frame->tag = leaves->tagged >> frame->to & 1 ? leaves->tag : 0;
	return reason;
}

/* Gives a frame without a tag this one; if it is 0, removes the frame's tag. A frame that has a tag and leaves with one
 * is unchanged. Returns 0 on success; otherwise the frame is unchanged. */
static __always_inline int retag(struct xdp_md *ctx, __u32 tag)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;

	if (data + ETH_HLEN > end)
		return -1;
	int had = has_tag(*(__be16 *)(data + 12));
	if (had == !!tag)
		return 0;
	__u64 macs = *(__u64 *)data;
	__u32 rest = *(__u32 *)(data + 8);
	if (bpf_xdp_adjust_head(ctx, had ? VLAN_HLEN : -VLAN_HLEN))
		return -1;
	data = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	/* Never true: there is room for a header, and for a tag where there was none. The verifier needs the checks. */
	if (data + ETH_HLEN > end)
		return -1;
	*(__u64 *)data = macs;
	*(__u32 *)(data + 8) = rest;
	if (!tag)
		return 0;
	if (data + ETH_HLEN + VLAN_HLEN > end)
		return -1;
	*(__u32 *)(data + 12) = tag;
	return 0;
}

SEC("xdp.frags")
int bywash_bridge(struct xdp_md *ctx)
{
	const struct bywash_port *port = port_of(ctx->ingress_ifindex);

	if (!port)
		return XDP_PASS;
	const void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 length = bpf_xdp_get_buff_len(ctx);
	/* The kernel bridges frames in several buffers: not every device can send them. */
	struct bridged frame = { .length = length == end - data ? length : ~0u };
	int reason = judge_bridged(port, data, end, 0, 0, &frame);
	if (reason == NEXT) {
		bpf_tail_call(ctx, &flow_xdp, FLOWS_OF_PORTS);
		reason = PASS_DISABLED;
	}
	/* Neither gates nor the port's limit apply: they concern routed packets. */
	if (reason == TO_USER)
		return to_socket(port, ctx);
	if (reason == TO_MEMBER) {
		if (bpf_redirect_map(&devices, frame.to, XDP_PASS) != XDP_REDIRECT || retag(ctx, frame.tag))
			return count(port->id, PASS_BRIDGED, XDP_PASS);
		count_forwarded(port->id, frame.to, length);
		return count(port->id, TO_MEMBER, XDP_REDIRECT);
	}
	return count(port->id, reason, XDP_PASS);
}

#endif
