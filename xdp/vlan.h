/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* VLANs: frames that come or leave with a tag; and macvlans, whose frames are to addresses of their own. Separate
 * programs handle them, after a tail call from where the other programs meet such a frame, so that the path of other
 * frames stays as short as it is. They are loaded for the first VLAN; those for VLANs with flows, for the first gate
 * that lets flows pass while there are VLANs.
 *
 * A VLAN has an entry in `ports`, behind those of the ports: its own address, gates and checks, and otherwise the
 * fields of the port that carries it. A tag without an entry is left to the kernel, as are priority tags (VLAN 0) and
 * second tags. */
#ifndef BYWASH_VLAN_H
#define BYWASH_VLAN_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "router.h"

#define VLAN_HLEN 4

/* Numbers of VLANs and macvlans. The key of a VLAN is its port's id and, from bit 16 and 32 on, protocol and identifier
 * as in the frame; that of a macvlan is its port's id, bit 15, and from bit 16 on its MAC address. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, BYWASH_VLANS);
	__type(key, __u64);
	__type(value, __u32);
} vlans SEC(".maps");

/* Numbers of VLANs by tag, in front of `vlans`: the key, and from bit 48 on the number. Where two VLANs have the same
 * slot, only `vlans` has the second. */
MAPPED(tags, BYWASH_TAGS, __u64);

PROGRAMS(vlan_xdp, 1);
PROGRAMS(vlan_tc, 1);

static __always_inline int has_tag(__be16 type)
{
	return type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD);
}

/* Continues in a program for tags. If there is none, the frame is left to the kernel. */
static __always_inline int tagged(void *ctx, void *programs, __u32 which, const struct bywash_port *port, int verdict)
{
	bpf_tail_call(ctx, programs, which);
	return count(port->id, PASS_VLAN, verdict);
}

static __always_inline const struct bywash_port *upper_of(__u64 key)
{
	const __u32 *number = bpf_map_lookup_elem(&vlans, &key);

	return number ? bpf_map_lookup_elem(&ports, number) : NULL;
}

/* Returns the VLAN of a tag; NULL if the tag is left to the kernel. */
static __always_inline const struct bywash_port *vlan_of(const struct bywash_port *port, __be16 protocol, __be16 tci)
{
	__u64 key = port->id | (__u64)protocol << 16 | (__u64)(tci & bpf_htons(0xfff)) << 32;
	__u32 at = (bpf_ntohs(tci) ^ port->id << 3) % BYWASH_TAGS;
	const volatile __u64 *slot = bpf_map_lookup_elem(&tags, &at);
	__u64 word = slot ? *slot : 0;

	/* An empty slot has no key: a tag's protocol is not 0. */
	if (unlikely((word ^ key) << 16))
		return upper_of(key);
	__u32 number = word >> 48;
	return bpf_map_lookup_elem(&ports, &number);
}

/* Returns the macvlan with a frame's destination; NULL if there is none. */
static __always_inline const struct bywash_port *macvlan_of(const struct bywash_port *port, const void *eth)
{
	return upper_of(port->id | 1 << 15 | *(const __u64 *)eth << 16);
}

/* Returns whether a frame that the port itself does not take may be to a macvlan. */
static __always_inline int may_be_macvlan(const struct bywash_port *port, int reason)
{
	return reason == PASS_NOT_MINE && port->sending & BYWASH_MACVLANS;
}

/* Handles a frame that comes or leaves with a tag. It is unchanged until the verdict, but gets four bytes of room in
 * front if it is untagged. The untagged header is then at offset 4: in a tagged frame, the header that it would have
 * without its tag. */
static __always_inline int handle_tags(struct xdp_md *ctx, const int flows)
{
	const struct bywash_port *port = port_of(ctx->ingress_ifindex);
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__be16 type;

	if (!port)
		return XDP_PASS;
	__u32 id = port->id;
	if (data + ETH_HLEN + VLAN_HLEN > end)
		return count(id, PASS_VLAN, XDP_PASS);
	type = *(__be16 *)(data + 12);
	int came = has_tag(type), upper = came;
	__u64 mine = mac_and_flags(port);
	if (came) {
		port = vlan_of(port, type, *(__be16 *)(data + 14));
		if (!port)
			return count(id, PASS_VLAN, XDP_PASS);
		mine = mac_and_flags(port);
	} else if ((*(const __u64 *)data ^ mine) << 16) {
		port = macvlan_of(port, data);
		if (!port)
			return count(id, PASS_NOT_MINE, XDP_PASS);
		mine = mac_and_flags(port);
		upper = 1;
	}
	__u32 passes = flows ? BYWASH_ENABLED | FLOWS : BYWASH_ENABLED;
	if (upper && !(mine >> 48 & passes)) {
		if (!flows && mine >> 48 & FLOWS)
			return tagged(ctx, &flow_xdp, FLOWS_OF_VLANS, port, XDP_PASS);
		return count(id, PASS_DISABLED, XDP_PASS);
	}
	if (!came) {
		if (bpf_xdp_adjust_head(ctx, -VLAN_HLEN))
			return count(id, PASS_VLAN, XDP_PASS);
		data = (void *)(long)ctx->data;
		end = (void *)(long)ctx->data_end;
		if (data + ETH_HLEN + VLAN_HLEN > end)
			return XDP_ABORTED;
	}
	struct translation t = {};
	struct frame f = {
		.ctx = ctx,
		.port = port,
		.data = data,
		.end = end,
		.bytes = end - data - VLAN_HLEN,
		.flags = mine >> 48,
		.tags = 1,
		.bridged = 1,
	};
	if (!came)
		f.data = data + VLAN_HLEN;
	int reason = upper ? parse(&f, mine) : NEXT;
	f.data = data + VLAN_HLEN;
	if (reason == NEXT) {
		reason = flows ? judge_flow(&f, &t, 0) : PLAIN;
		if (reason == PLAIN)
			reason = route(&f);
	}
	if (reason == NEXT) {
		if (f.tag) {
			*(__u64 *)data = f.adj.macs;
			*(__u32 *)(data + 8) = f.adj.rest;
			*(__u32 *)(data + 12) = f.tag;
		} else if (bpf_xdp_adjust_head(ctx, VLAN_HLEN)) {
			return XDP_ABORTED;
		}
		return to_port(&f);
	}
	if (!came) {
		bpf_xdp_adjust_head(ctx, VLAN_HLEN);
		f.data = (void *)(long)ctx->data;
		f.end = (void *)(long)ctx->data_end;
	}
	if (reason == TO_TUNNEL)
		reason = to_tunnel_program(ctx, &f, flows);
	return reason == TO_USER ? to_user(&f, ctx) : count(id, reason, XDP_PASS);
}

SEC("xdp.frags")
int bywash_vlan(struct xdp_md *ctx)
{
	return handle_tags(ctx, 0);
}

SEC("xdp.frags")
int bywash_vlan_flows(struct xdp_md *ctx)
{
	return handle_tags(ctx, 1);
}

#endif
