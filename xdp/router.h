/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Handling of a frame at a router's port, for XDP frames and for skbs.
 *
 * Stages: parse -> route -> forward. A stage returns the final verdict, or NEXT; TO_USER is for packets that need more
 * than forwarding. */
#ifndef BYWASH_ROUTER_H
#define BYWASH_ROUTER_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#ifndef BYWASH_PLAIN
#include "dst_cache.h"
#include "bond.h"
#endif
#include "forward.h"

struct frame {
	void *ctx;
	const struct bywash_port *port;
	void *data;
	void *end;                    /* end of the linear data, which has at least the headers */
	__u32 bytes;                  /* length of the frame: for XDP its linear part, for an skb all of it */
	__u32 gso_size;               /* payload of each packet that an skb will be segmented into; 0: one packet */
	__u32 flags;                  /* the port's, read once; without BYWASH_FORWARD if validation failed */
#ifndef BYWASH_PLAIN
	struct adjacency adj;         /* set by the lookup */
	__u32 tag;                    /* tag to send with, as in the frame; 0: none */
	int tags;                     /* the program handles tags (vlan.h) */
	int bridged;                  /* the program handles members of bridges (bridge.h) */
#endif
};

/* Returned for a packet that leaves with a tag, or by a member of a bond: the programs of vlan.h handle it. Like
 * TO_TUNNEL, not a verdict of XDP or traffic control. */
#define TO_VLAN (-3)

/* Returned for a packet to this host that may have come through a tunnel: the program of tunnel.h handles it. */
#define TO_TUNNEL (-4)

/* Does not use struct ethhdr, which is packed: the compiler would load single bytes. */
static __always_inline __u16 ether_type(const struct frame *f)
{
	return *(const __u16 *)(f->data + 12);
}

/* Returns the port flag that leaves packets of a family to the kernel. */
static __always_inline __u32 kernel_flag(const int v6)
{
	return v6 ? BYWASH_KERNEL6 : BYWASH_KERNEL4;
}

/* Returns the port flag of a gate that is closed for a family except for flows. */
static __always_inline __u32 flows_flag(const int v6)
{
	return v6 ? BYWASH_FLOWS6 : BYWASH_FLOWS4;
}

/* Returns whether the next header is a fragment header, or an extension header that may precede one. */
static __always_inline int may_be_fragment6(__u8 next)
{
	return next == IPPROTO_HOPOPTS || next == IPPROTO_ROUTING || next == IPPROTO_FRAGMENT || next == IPPROTO_AH ||
	       next == IPPROTO_DSTOPTS;
}

/* Returns whether the port's gate leaves the packet to the kernel. Truncated headers go to user space, which drops
 * them. */
static __always_inline int is_left_to_kernel(const struct frame *f)
{
	const struct iphdr *ip4 = f->data + ETH_HLEN;
	const struct ipv6hdr *ip6 = f->data + ETH_HLEN;

	if ((void *)(ip4 + 1) > f->end)
		return 0;
	switch (ether_type(f)) {
	case bpf_htons(ETH_P_IP):
		return f->flags & BYWASH_KERNEL4 || (f->flags & BYWASH_DEFRAG && is_fragment4(ip4));
	case bpf_htons(ETH_P_IPV6):
		return f->flags & BYWASH_KERNEL6 || (f->flags & BYWASH_DEFRAG && may_be_fragment6(ip6->nexthdr));
	default:
		return 0;
	}
}

/* Returns whether there may be an unfinished checksum that user space does not find: in a packet within a tunnel, or that
 * of SCTP, which it cannot tell from a finished one. */
static __always_inline int hides_checksum(__u8 proto, const void *l4, const void *end)
{
	if (proto == IPPROTO_UDP)
		return unfinished_within(l4, end);
	return proto == IPPROTO_IPIP || proto == IPPROTO_IPV6 || proto == IPPROTO_GRE || proto == IPPROTO_SCTP ||
	       proto == IPPROTO_MPLS;
}

/* Returns whether only the kernel can finish a packet. Besides checksums (hides_checksum()), with generic XDP it may be
 * several datagrams: a sender's (UDP_SEGMENT), or merged by GRO. Their length is not in the packet, and their checksum is
 * unfinished. UDP may follow extension headers. */
static __always_inline int is_unfinished(const struct frame *f)
{
	const struct iphdr *ip4 = f->data + ETH_HLEN;
	const struct ipv6hdr *ip6 = f->data + ETH_HLEN;
	int chunks = f->port->sending & BYWASH_CHUNKS;
	const void *l4;

	if ((void *)(ip4 + 1) > f->end)
		return 0;
	switch (ether_type(f)) {
	case bpf_htons(ETH_P_IP):
		l4 = ip4 + 1;
		barrier_var(l4);
		if (*(const __u8 *)ip4 != 0x45 || is_fragment4(ip4))
			return 0;
		return hides_checksum(ip4->protocol, l4, f->end) ||
		       (chunks && ip4->protocol == IPPROTO_UDP &&
			unfinished(IPPROTO_UDP, l4, f->end, bpf_ntohs(ip4->tot_len) - sizeof(*ip4), &ip4->saddr, 2));
	case bpf_htons(ETH_P_IPV6):
		l4 = ip6 + 1;
		barrier_var(l4);
		if (l4 > f->end || ip6->version != 6)
			return 0;
		/* Behind these, there may be any of the others: a tunnel's packets have an encapsulation limit. */
		if (ip6->nexthdr == IPPROTO_ROUTING || ip6->nexthdr == IPPROTO_DSTOPTS)
			return 1;
		return hides_checksum(ip6->nexthdr, l4, f->end) ||
		       (chunks && ip6->nexthdr == IPPROTO_UDP &&
			unfinished(IPPROTO_UDP, l4, f->end, bpf_ntohs(ip6->payload_len), &ip6->saddr, 8));
	default:
		return 0;
	}
}

static __always_inline const struct bywash_port *port_of(__u32 ifindex);

#ifdef BYWASH_PLAIN
/* Asks the kernel, as there are no tables, whether a packet is local or its egress interface is not a port: user space
 * must not get packets that it would have to return to the kernel, because it may not be able to. */
static __always_inline int kernel_verdict(const struct frame *f, struct bpf_fib_lookup *to)
{
	to->ifindex = f->port->ifindex;
	switch (bpf_fib_lookup(f->ctx, to, sizeof(*to), 0)) {
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return PASS_LOCAL;
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return port_of(to->ifindex) ? TO_USER : PASS_ROUTE;
	default:
		return TO_USER;
	}
}
#else
/* Returns the number of bytes behind the IP header in each packet that an skb will be segmented into; more than any MTU
 * if unknown: UDP may be a tunnel, with headers of its own in each packet. */
static __always_inline __u32 segment(const struct frame *f, __u8 proto, const void *l4)
{
	const __u8 *offset = l4 + 12; /* the byte of struct tcphdr's field doff */

	if (proto == IPPROTO_TCP && (void *)(offset + 1) <= f->end)
		return f->gso_size + (*offset >> 4) * 4;
	return 1 << 16;
}
#endif

/* Returns the verdict on an IPv4 packet that failed validation; NEXT if its destination decides. Packets with an
 * unusable header go to user space, which drops them with a reason. */
static __always_inline int exception4(const struct iphdr *ip)
{
	const __u8 *dst = (const void *)&ip->daddr, *src = (const void *)&ip->saddr;

	if (ip->version != 4)
		return TO_USER;
	if (ip->ihl > 5)
		return PASS_OPTIONS;
	if (dst[0] >= 224 && (dst[0] < 240 || (dst[0] == 255 && dst[1] == 255 && dst[2] == 255 && dst[3] == 255)))
		return PASS_MULTICAST;
	if (dst[0] == 0 || dst[0] == 127 || src[0] == 127)
		return PASS_RESERVED;
	if ((dst[0] == 169 && dst[1] == 254) || (src[0] == 169 && src[1] == 254))
		return PASS_LINK_LOCAL;
	return NEXT;
}

static __always_inline int exception6(const struct ipv6hdr *ip)
{
	if (ip->version != 6)
		return TO_USER;
	if (ip->nexthdr == IPPROTO_HOPOPTS)
		return PASS_OPTIONS;
	if (ip->daddr.s6_addr[0] == 0xff)
		return PASS_MULTICAST;
	if (link_local6(&ip->daddr) || link_local6(&ip->saddr))
		return PASS_LINK_LOCAL;
	if (reserved6(&ip->daddr))
		return PASS_RESERVED;
	return dubious6(&ip->saddr) ? PASS_SOURCE : NEXT;
}

#ifndef BYWASH_PLAIN
/* Returns the tables' version. Must be read before the tables and the next hop: see
 * crates/port/src/af_xdp/datapath.rs. */
static __always_inline __u64 current_version(const struct bywash_port *port)
{
	return *(const volatile __u64 *)&port->version;
}

/* Returns whether all segments of an skb fit the egress device's MTU, by the kernel's own account of their headers. A
 * smaller MTU of the route is left to the kernel. */
static __always_inline int segments_fit(const struct frame *f)
{
	__u32 mtu = 0;

	return f->gso_size && f->adj.index && !bpf_check_mtu(f->ctx, f->adj.index, &mtu, 0, BPF_MTU_CHK_SEGS) &&
	       mtu <= adj_mtu(&f->adj);
}

static __always_inline __u32 group_hash(const struct frame *f, const void *ip, const int v6)
{
	if (unlikely(f->flags & (v6 ? BYWASH_L3_HASH6 : BYWASH_L3_HASH4)))
		return v6 ? flow_l3_hash6(ip, f->end) : flow_l3_hash4(ip, f->end);
	return v6 ? flow_hash6(ip, f->end) : flow_hash4(ip, f->end);
}

/* Returns whether packets that leave by a port, or a VLAN, leave by the interface with this number: the port or VLAN
 * itself, or the bridge that the port belongs to. */
static __always_inline int leaves_by(__u32 port, __u32 ifindex, __u32 number)
{
	const struct bywash_port *to;

	if (likely(port == number))
		return 1;
	if (likely(number < BYWASH_PORTS || port >= BYWASH_PORTS))
		return 0;
	to = port_of(ifindex);
	return to && to->route_id == number;
}

/* Returns whether the kernel certainly accepts this source on this port (fib_validate_source, RFC 3704). Strict: its
 * route leads out of this port; loose: it has a route. Routes without a single next hop are left to the kernel. Global,
 * like find4. */
__attribute__((noinline)) int takes_source(__u64 version, __u32 src, __u32 port, __u32 flags)
{
	struct dst_slot4 slot = read_slot4(src);
	struct adjacency adj = {};

	if (!slot.k)
		return 0;
	lookup4(version, src, &slot, &adj);
	if (!adj_mtu(&adj)) {
		const struct bywash_hop *hop = hop_at(adj.macs);

		if (!hop)
			return 0;
		/* Without rp_filter, only check that it is not one of the host's own addresses. */
		if (!(flags & (BYWASH_RPF_LOOSE | BYWASH_RPF_STRICT)))
			return hop->kind != HOP_LOCAL && hop->kind != HOP_POLICY;
		return hop->flags & HOP_UNICAST &&
		       (!(flags & BYWASH_RPF_STRICT) || leaves_by(hop->port, hop->ifindex, port));
	}
	return !(flags & BYWASH_RPF_STRICT) || leaves_by(adj_port(&adj), adj.index, port);
}

/* Returns whether packets to a next hop leave by a VLAN or a bond. */
static __always_inline int is_above(const struct bywash_hop *hop)
{
	return hop && (hop->kind == HOP_VLAN || hop->kind == HOP_BOND);
}

/* Sets the adjacency to a next hop by a port or, in the programs that handle tags, by a VLAN or by the member of a bond
 * that `fields` select. Returns NEXT, or the verdict if it cannot. */
static __always_inline int select_egress(struct frame *f, __u64 version, const struct bywash_hop *hop,
					 const struct bond_fields *fields, const int v6)
{
	if (!is_above(hop)) {
		set_adj(&f->adj, hop, 0, v6);
		return NEXT;
	}
	if (!f->tags)
		return TO_VLAN;
	/* It would leave by its ingress interface, which may have several ports. */
	if (f->flags & BYWASH_REDIRECTS && hop->port == f->port->route_id)
		return TO_USER;
	if (hop->kind == HOP_BOND) {
		__u32 index = 0;
		int port = bond_port(version, hop, fields, &index, v6);
		if (port < 0)
			return TO_USER;
		set_adj_by(&f->adj, hop, port, v6);
		f->adj.index = index;
	} else {
		set_adj_by(&f->adj, hop, hop->first, v6);
	}
	f->tag = hop->count;
	return NEXT;
}

/* Handles a next hop other than by a port: the kernel's, for invalid packets too; a group, of which a member is
 * selected; a VLAN or bond; or one left to user space. Returns NEXT if the adjacency is set, otherwise the verdict. */
static __always_inline int special_hop(struct frame *f, __u64 version, void *ip, const int v6)
{
	__u32 key = f->adj.macs;
	const struct bywash_hop *hop = hop_at(key);

	if (!hop)
		return TO_USER;
	/* With rules, the packet may have another route. Destinations under a policy are left to the kernel in every
	 * table. */
	if (hop->kind == HOP_KERNEL && f->flags & BYWASH_RULES)
		return TO_USER;
	if (hop->kind == HOP_LOCAL)
		return likely(!(hop->first & (v6 ? 2 : 1))) ? PASS_LOCAL : TO_TUNNEL;
	if (hop->kind > HOP_LOCAL)
		return hop->kind == HOP_POLICY ? PASS_POLICY : PASS_ROUTE;
	/* It would leave by the tunnel, or the bridge with the tunnel, that it came by. */
	if (hop->flags & HOP_THROUGH && hop->port == f->port->route_id)
		return PASS_ROUTE;
	if (!(f->flags & BYWASH_FORWARD))
		return TO_USER;
	if (hop->kind == HOP_GROUP)
		hop = member(version, hop, group_hash(f, ip, v6));
	else if (!is_above(hop))
		return TO_USER;
	struct bond_fields fields = {};
	if (f->tags && hop && hop->kind == HOP_BOND && !bond_fields_of(&fields, bond_policy(hop), ip, f->end, v6))
		return TO_USER;
	return select_egress(f, version, hop, &fields, v6);
}
#endif

#ifndef BYWASH_PLAIN
/* Returns the verdict on a packet that needs more than its header handled: a fragment that the kernel reassembles, or
 * one with an unfinished transport checksum. Returns NEXT for all others. */
static __always_inline int payload_exception(const struct frame *f, const void *ip, const int v6, __u8 proto,
					     __u32 longest)
{
	const int head = v6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;
	const void *l4 = ip + head;

	if (f->flags & (BYWASH_PARTIAL | BYWASH_DEFRAG)) {
		if (f->flags & BYWASH_DEFRAG && (v6 ? may_be_fragment6(proto) : is_fragment4(ip4)))
			return PASS_POLICY;
		__u32 len = f->gso_size ? longest - head :
			    v6 ? bpf_ntohs(ip6->payload_len) : bpf_ntohs(ip4->tot_len) - head;
		/* As is_unfinished(). */
		if (f->flags & BYWASH_PARTIAL && v6 && unlikely(proto == IPPROTO_ROUTING || proto == IPPROTO_DSTOPTS))
			return PASS_UNFINISHED;
		if (f->flags & BYWASH_PARTIAL && (v6 || !is_fragment4(ip4)) &&
		    unlikely(unfinished(proto, l4, f->end, len, v6 ? (void *)&ip6->saddr : &ip4->saddr, v6 ? 8 : 2)))
			return TO_USER;
		if (f->flags & BYWASH_PARTIAL && proto != IPPROTO_TCP && hides_checksum(proto, l4, f->end))
			return PASS_UNFINISHED;
	}
	return NEXT;
}
#endif

/* Looks up the destination and returns the verdict; on NEXT the packet has been rewritten for its next hop. */
static __always_inline int route_ip(struct frame *f, void *ip, const int v6)
{
	struct iphdr *ip4 = ip;
	struct ipv6hdr *ip6 = ip;
	int reason;

#ifdef BYWASH_PLAIN
	struct bpf_fib_lookup to = { .family = v6 ? 10 : 2 };

	reason = v6 ? exception6(ip6) : exception4(ip4);
	if (reason != NEXT)
		return reason;
	if (v6) {
		__builtin_memcpy(to.ipv6_src, &ip6->saddr, 16);
		__builtin_memcpy(to.ipv6_dst, &ip6->daddr, 16);
	} else {
		to.ipv4_src = ip4->saddr;
		to.ipv4_dst = ip4->daddr;
	}
	return kernel_verdict(f, &to);
#else
	const int head = v6 ? sizeof(*ip6) : sizeof(*ip4);
	const void *l4 = ip + head;
	const __u64 *dst6 = (const void *)&ip6->daddr;
	__u8 proto = v6 ? ip6->nexthdr : ip4->protocol;
	__u32 room = f->bytes - ETH_HLEN;
	struct dst_slot4 slot4;
	struct dst_slot6 slot6;

	if (v6)
		slot6 = read_slot6(dst6[0], dst6[1]);
	else
		slot4 = read_slot4(ip4->daddr);
	/* Never true: there is always a slot. The verifier needs the check. */
	if (unlikely(!(v6 ? (void *)slot6.k : (void *)slot4.k)))
		return TO_USER;
	if (unlikely(!(v6 ? valid6(ip6, room) : valid4(ip4, room)))) {
		reason = v6 ? exception6(ip6) : exception4(ip4);
		if (reason != NEXT)
			return reason;
		f->flags &= ~BYWASH_FORWARD;
	}
	__u64 version = current_version(f->port);
	if (v6)
		lookup6(version, dst6[0], dst6[1], &slot6, &f->adj);
	else
		lookup4(version, ip4->daddr, &slot4, &f->adj);

	/* For an skb, its segments count; otherwise, padding too: a frame too long for the device would be lost
	 * uncounted. */
	__u32 longest = f->gso_size ? segment(f, proto, l4) + head : room;
	if (unlikely(longest > adj_mtu(&f->adj))) {
		if (!adj_mtu(&f->adj)) {
			reason = special_hop(f, version, ip, v6);
			if (reason != NEXT)
				return reason;
		}
		if (longest > adj_mtu(&f->adj) && !segments_fit(f))
			return TO_USER;
	}
	/* One test for all rare cases: the port's gate is closed for the family; with native XDP the device takes no
	 * redirected frames; redirects are on; the source must be validated. */
	const __u32 rare = BYWASH_REDIRECTS | (v6 ? 0 : BYWASH_RPF_LOOSE | BYWASH_RPF_STRICT);
	if (unlikely((f->flags ^ BYWASH_FORWARD) & (adj_excluding(&f->adj) | rare)) ||
	    (!v6 && unlikely(own_bit(f->port->own, &ip4->saddr)))) {
		if ((f->flags ^ BYWASH_FORWARD) & adj_excluding(&f->adj))
			return f->flags & kernel_flag(v6) ? PASS_POLICY : TO_USER;
		if (f->flags & BYWASH_REDIRECTS &&
		    (adj_port(&f->adj) == f->port->id ||
		     (f->bridged && leaves_by(adj_port(&f->adj), f->adj.index, f->port->route_id))))
			return TO_USER;
		if (!v6 && !takes_source(version, ip4->saddr, f->port->route_id, f->flags))
			return PASS_SOURCE;
	}
	reason = payload_exception(f, ip, v6, proto, longest);
	if (reason != NEXT)
		return reason;
	/* Two stores, because the compiler copies byte by byte if it does not know the alignment. */
	*(__u64 *)f->data = f->adj.macs;
	*(__u32 *)(f->data + 8) = f->adj.rest;
	if (v6) {
		ip6->hop_limit--;
	} else {
		lower_ttl(ip4, 1);
	}
	return NEXT;
#endif
}

/* The group bit (IEEE 802) of an address in the low six bytes of a number, the first byte lowest. */
#define GROUP_BIT 1ull

/* Link layer: accepts frames to this port's own address. */
static __always_inline int parse(const struct frame *f, __u64 mine)
{
	const __u8 *eth = f->data;

	if (unlikely(f->data + ETH_HLEN > f->end))
		return PASS_SHORT;
	if (f->flags & BYWASH_RAW)
		return TO_USER;
	/* Compares six of eight bytes, without those behind the address, or before it. */
	if (unlikely((*(const __u64 *)eth ^ mine) << 16))
		return eth[0] & 1 ? PASS_MULTICAST : PASS_NOT_MINE;
	/* The source is the port's address with the group bit, which is the injector's mark for returned packets (taken
	 * again, they would loop), or the address itself. */
	if (unlikely((*(const __u64 *)(eth + 4) >> 16 ^ mine) << 16 <= GROUP_BIT << 16))
		return PASS_RETURNED;
	return NEXT;
}

/* Network layer. Packets with a truncated header go to user space, which drops them with a reason. */
static __always_inline int route(struct frame *f)
{
	void *ip = f->data + ETH_HLEN;
	__u16 type = ether_type(f);

	if (likely(type == bpf_htons(ETH_P_IP)))
		return ip + sizeof(struct iphdr) > f->end ? TO_USER : route_ip(f, ip, 0);
	if (likely(type == bpf_htons(ETH_P_IPV6)))
		return ip + sizeof(struct ipv6hdr) > f->end ? TO_USER : route_ip(f, ip, 1);
	return type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD) ? PASS_VLAN : PASS_ETHERTYPE;
}

#endif
