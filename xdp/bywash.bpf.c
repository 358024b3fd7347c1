// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The program on every AF_XDP port: decides whether a frame goes to another port, to the kernel or to user space. One
 * instance serves all ports of a process, with the process's own tables. Frames for the kernel, and frames that cannot
 * be judged, are passed. So is everything after the process has ended: its sockets' entries leave the map, and its
 * programs are detached.
 *
 * Most programs exist twice: for XDP, and for traffic control where XDP is not native and an skb exists already. The
 * latter forwards the skb as it is, with unfinished checksums and TCP segments, and leaves everything else to the
 * kernel. Programs for VLANs, flows, rules, bridges and tunnels are separate, and loaded when the first port needs
 * them. */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#ifdef BYWASH_SWITCH
#include "switch.h"
#define EGRESS(f) ((f)->to)
#else
#include "router.h"
#define EGRESS(f) adj_port(&(f)->adj)
#ifndef BYWASH_PLAIN
#define BYWASH_ROUTER
#endif
#endif

/* AF_XDP sockets by port and queue. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, BYWASH_PORTS * BYWASH_QUEUES);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

/* A port's slot is the first free one of BYWASH_PROBES, from its interface index on. VLANs follow, by number. */
MAPPED(ports, BYWASH_PORTS + BYWASH_VLANS, struct bywash_port);

/* Target device of each port. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, BYWASH_PORTS);
	__type(key, __u32);
	__type(value, __u32);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BYWASH_PORTS);
	__type(key, __u32);
	__type(value, struct bywash_counters);
} counters SEC(".maps");

static __always_inline struct bywash_counters *counters_of(__u32 id)
{
	return bpf_map_lookup_elem(&counters, &id);
}

#ifndef BYWASH_PLAIN
#include "cpumap.h"
#endif

static __always_inline int count(__u32 id, int reason, int verdict)
{
	struct bywash_counters *c = counters_of(id);

	if (!c)
		return verdict;
#ifdef BYWASH_PLAIN
	/* Without CAP_PERFMON the index must be constant on each path to this point, so paths must not be merged. */
#define COUNT(n) case n: c->frames[n]++; asm volatile("" :: "i"(n)); break;
	switch (reason) {
	COUNT(TO_USER) COUNT(PASS_DISABLED) COUNT(PASS_NO_SOCKET) COUNT(PASS_NOT_MINE) COUNT(PASS_VLAN)
	COUNT(PASS_ETHERTYPE) COUNT(PASS_OPTIONS) COUNT(PASS_LOCAL) COUNT(PASS_MULTICAST) COUNT(PASS_LINK_LOCAL)
	COUNT(PASS_RESERVED) COUNT(PASS_SUPERFRAME) COUNT(PASS_SHORT) COUNT(PASS_ROUTE) COUNT(PASS_RETURNED)
	COUNT(PASS_POLICY) COUNT(PASS_SOURCE) COUNT(TO_PROGRAM) COUNT(DROP_PROGRAM) COUNT(PASS_UNFINISHED)
	}
#else
	c->frames[reason & 31]++;
#endif
	return verdict;
}

static __always_inline int to_socket(const struct bywash_port *port, struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index;

	if (queue >= BYWASH_QUEUES ||
	    bpf_redirect_map(&xsks, port->id * BYWASH_QUEUES + queue, XDP_PASS) != XDP_REDIRECT)
		return count(port->id, PASS_NO_SOCKET, XDP_PASS);
	return count(port->id, TO_USER, XDP_REDIRECT);
}

/* Hands a frame to user space, whatever is in it. */
static __always_inline int to_user_as_it_is(const struct frame *f, struct xdp_md *ctx)
{
#ifndef BYWASH_SWITCH
	if (unlikely(f->flags & (BYWASH_KERNEL4 | BYWASH_KERNEL6 | BYWASH_DEFRAG)) && is_left_to_kernel(f))
		return count(f->port->id, PASS_POLICY, XDP_PASS);
#endif
	if (bpf_xdp_get_buff_len(ctx) > f->port->max_frame)
		return count(f->port->id, PASS_SUPERFRAME, XDP_PASS);
	return to_socket(f->port, ctx);
}

static __always_inline int to_user(const struct frame *f, struct xdp_md *ctx)
{
#ifndef BYWASH_SWITCH
	if (unlikely(f->flags & BYWASH_PARTIAL || f->port->sending & BYWASH_CHUNKS) && !(f->flags & BYWASH_RAW) &&
	    is_unfinished(f))
		return count(f->port->id, PASS_UNFINISHED, XDP_PASS);
#endif
	return to_user_as_it_is(f, ctx);
}

#ifndef BYWASH_PLAIN
/* Counters by CPU, ingress port and egress port; the loader sizes the map for all CPUs. One counter replaces four: a
 * port's received frames are the sum of its row, its sent frames the sum of its column. */
MAPPED(port_pairs, BYWASH_PORTS * BYWASH_PORTS, struct bywash_traffic);

static __always_inline void count_forwarded(__u32 from, __u32 to, __u32 bytes)
{
	__u32 key = (bpf_get_smp_processor_id() * BYWASH_PORTS + from) * BYWASH_PORTS + to;
	struct bywash_traffic *p = bpf_map_lookup_elem(&port_pairs, &key);

	if (likely(p)) {
		p->frames++;
		p->bytes += bytes;
	}
}

static __always_inline int to_port(const struct frame *f)
{
	if (likely(!f->port->cpus) || !cpumap_redirect(f->ctx, f->port, EGRESS(f), f->bytes)) {
		if (bpf_redirect_map(&devices, EGRESS(f), XDP_DROP) != XDP_REDIRECT)
			return count(f->port->id, DROP_PORT_GONE, XDP_DROP);
		count_forwarded(f->port->id, EGRESS(f), f->bytes);
#ifdef BYWASH_SWITCH
		count_grown(f->to, f->grows);
#endif
	}
#ifdef BYWASH_SWITCH
	count_flow(f);
#endif
	return XDP_REDIRECT;
}

/* Sends a frame on the CPU that it was handed to. */
SEC("xdp.frags/cpumap")
int bywash_cpumap(struct xdp_md *ctx)
{
	const struct cpumap_meta *on = (void *)(long)ctx->data_meta;

	if ((void *)(on + 1) > (void *)(long)ctx->data)
		return XDP_ABORTED;
	__u32 from = on->from, to = on->to, bytes = on->bytes;
	/* Remove the metadata: the stack compares it when it merges skbs made of such frames. */
	bpf_xdp_adjust_meta(ctx, sizeof(*on));
	if (bpf_redirect_map(&devices, to, XDP_DROP) != XDP_REDIRECT)
		return count(from, DROP_PORT_GONE, XDP_DROP);
	count_forwarded(from, to, bytes);
#ifdef BYWASH_SWITCH
	count_grown(to, (int)bpf_xdp_get_buff_len(ctx) - (int)bytes);
#endif
	return XDP_REDIRECT;
}
#endif

static __always_inline const struct bywash_port *port_of(__u32 ifindex)
{
	for (int i = 0; i < BYWASH_PROBES; i++) {
		__u32 key = (ifindex + i) % BYWASH_PORTS;
		struct bywash_port *port = bpf_map_lookup_elem(&ports, &key);
		if (port && port->ifindex == ifindex)
			return port;
	}
	return NULL;
}

/* Returns the port's MAC address and flags, which are in one word. */
static __always_inline __u64 mac_and_flags(const struct bywash_port *port)
{
	return *(const volatile __u64 *)port;
}

static __always_inline struct frame frame_of_xdp(struct xdp_md *ctx, const struct bywash_port *port, __u32 flags)
{
	return (struct frame){
		.ctx = ctx,
		.port = port,
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
		.bytes = ctx->data_end - ctx->data,
		.flags = flags,
	};
}

static __always_inline int judge(struct frame *f, __u64 mine)
{
	int reason = parse(f, mine);

	return likely(reason == NEXT) ? route(f) : reason;
}

#ifdef BYWASH_ROUTER
#define FLOWS (BYWASH_FLOWS4 | BYWASH_FLOWS6)

/* Defines a map of programs, in which others continue by a tail call. */
#define PROGRAMS(name, many) struct { \
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY); \
	__uint(max_entries, many); \
	__type(key, __u32); \
	__type(value, __u32); \
} name SEC(".maps")

/* Programs for ports and VLANs with flows, which are larger: loaded for the first such port, so that others do not wait
 * for the verifier. */
#define FLOWS_OF_PORTS 0
#define FLOWS_OF_VLANS 1
PROGRAMS(flow_xdp, 2);
PROGRAMS(flow_tc, 2);

PROGRAMS(tunnel_xdp, 1);

#include "translate.h"
#include "vlan.h"
#include "tunnel.h"

/* Carries out the verdict on a frame without a tag. `programs` has, at `which`, the program for frames that leave with
 * one; `flows` is set on ports with flows. */
static __always_inline int conclude(struct xdp_md *ctx, const struct frame *f, int reason, void *programs, __u32 which,
				    const int flows)
{
	if (unlikely(reason == TO_TUNNEL))
		reason = to_tunnel_program(ctx, f, flows);
	switch (reason) {
	case NEXT:
		return to_port(f);
	case TO_USER:
		return to_user(f, ctx);
	case PASS_NOT_MINE:
		if (!has_tag(ether_type(f)) && !may_be_macvlan(f->port, reason))
			return count(f->port->id, reason, XDP_PASS);
		/* It may be to the address of a VLAN or macvlan. */
	case PASS_VLAN:
		return tagged(ctx, &vlan_xdp, 0, f->port, XDP_PASS);
	case TO_VLAN:
		return tagged(ctx, programs, which, f->port, XDP_PASS);
	default:
		return count(f->port->id, reason, XDP_PASS);
	}
}

#include "rules.h"
#include "bridge.h"

SEC("xdp.frags")
int bywash_flows(struct xdp_md *ctx)
{
	const struct bywash_port *port = port_of(ctx->ingress_ifindex);

	if (!port)
		return XDP_PASS;
	__u64 mine = mac_and_flags(port);
	struct translation t = {};
	struct frame f = frame_of_xdp(ctx, port, mine >> 48);
	f.bridged = 1;
	int reason = parse(&f, mine);
	if (reason == NEXT)
		reason = judge_flow(&f, &t, 0);
	if (reason == PLAIN)
		reason = route(&f);
	return conclude(ctx, &f, reason, &flow_xdp, FLOWS_OF_VLANS, 1);
}
#endif

SEC("xdp.frags")
int bywash(struct xdp_md *ctx)
{
	const struct bywash_port *port = port_of(ctx->ingress_ifindex);

	if (!port)
		return XDP_PASS;
	__u64 mine = mac_and_flags(port);
	__u32 flags = mine >> 48;
	if (!(flags & BYWASH_ENABLED)) {
#ifdef BYWASH_ROUTER
		if (port->sending & BYWASH_BRIDGED)
			bpf_tail_call(ctx, &bridge_xdp, 0);
		if (flags & FLOWS)
			bpf_tail_call(ctx, &flow_xdp, FLOWS_OF_PORTS);
		if (flags & BYWASH_RULES)
			bpf_tail_call(ctx, &rules_xdp, 0);
#endif
		return count(port->id, PASS_DISABLED, XDP_PASS);
	}

	struct frame f = frame_of_xdp(ctx, port, flags);
	int reason = judge(&f, mine);
#ifdef BYWASH_ROUTER
	return conclude(ctx, &f, reason, &vlan_xdp, 0, 0);
#else
	switch (reason) {
#ifdef BYWASH_SWITCH
	case NEXT:
		return to_port(&f);
	case DROP_PORT_GONE:
		return count(port->id, reason, XDP_DROP);
#endif
	case TO_USER:
		return to_user(&f, ctx);
	default:
		return count(port->id, reason, XDP_PASS);
	}
#endif
}

#include "user_program.h"

#ifdef BYWASH_ROUTER
/* Bytes of headers that are read: Ethernet, IPv6, ICMPv6, and the IPv6 header that an ICMPv6 error quotes. */
#define HEADERS (ETH_HLEN + 40 + 8 + 40)
/* Bytes of headers up to the type of an ICMPv6 message. */
#define HEADERS6 (ETH_HLEN + 40 + 1)
/* Offsets of UDP's checksum from the IP header. */
#define UDP_CHECKSUM4 (20 + 6)
#define UDP_CHECKSUM6 (40 + 6)

/* Returns whether the headers of a TCP packet are in linear data. The kernel's own TCP keeps only the headers there;
 * pulling bytes of the payload costs a copy of the structure that describes its pages. */
static __always_inline int has_tcp_headers(const struct __sk_buff *skb, const void *ip, const void *end)
{
	const struct ipv6hdr *ip6 = ip;
	const struct iphdr *ip4 = ip;

	if (skb->protocol == bpf_htons(ETH_P_IP))
		return ip + sizeof(*ip4) + sizeof(struct tcphdr) <= end && ip4->ihl == 5 &&
		       ip4->protocol == IPPROTO_TCP;
	return ip + sizeof(*ip6) + sizeof(struct tcphdr) <= end && ip6->nexthdr == IPPROTO_TCP;
}

/* Returns a frame's properties, with its headers in linear data: a NIC that receives into pages may have left them
 * outside. */
static __always_inline struct frame frame_of(struct __sk_buff *skb, const struct bywash_port *port, __u32 flags)
{
	const void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;

	if (data + HEADERS > end && end - data < skb->len && !has_tcp_headers(skb, data + ETH_HLEN, end))
		bpf_skb_pull_data(skb, skb->len < HEADERS ? skb->len : HEADERS);
	return (struct frame){
		.ctx = skb,
		.port = port,
		.data = (void *)(long)skb->data,
		.end = (void *)(long)skb->data_end,
		.bytes = skb->len,
		.gso_size = skb->gso_size,
		.flags = flags,
	};
}

/* Returns the port's address and flags, as mac_and_flags() does; for a packet to another host, an address that no such
 * packet has: that of a group. Filters of other interfaces may redirect packets to a port's ingress, with the type that
 * they had there (and with a mark by which rules select). A member of a bridge may have another address than the
 * bridge. */
static __always_inline __u64 mac_and_flags_for(const struct __sk_buff *skb, const struct bywash_port *port)
{
	__u64 mine = mac_and_flags(port);

	if (unlikely(skb->pkt_type == PACKET_OTHERHOST) && !(port->sending & BYWASH_BRIDGED))
		mine |= GROUP_BIT;
	return mine;
}

/* Sends an skb whose hop limit was lowered. A packet sum computed by a NIC includes the hop limit: adjust it. (IPv4's
 * header checksum compensates for the TTL.) */
static __always_inline int send_skb(struct __sk_buff *skb, const struct frame *f)
{
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		bpf_csum_update(skb, ~(__u32)bpf_htons(1));
	count_forwarded(f->port->id, EGRESS(f), f->bytes);
	return bpf_redirect(f->adj.index, 0);
}

/* Carries out the verdict on an skb without a tag, as `conclude` does for an XDP frame. */
static __always_inline int conclude_skb(struct __sk_buff *skb, const struct frame *f, int reason, void *programs,
					__u32 which)
{
	switch (reason) {
	case NEXT:
		return send_skb(skb, f);
	case TO_USER:
		return count(f->port->id, PASS_EXCEPTION, TC_ACT_UNSPEC);
	case TO_TUNNEL:
		return count(f->port->id, PASS_LOCAL, TC_ACT_UNSPEC);
	case PASS_VLAN:
		return tagged(skb, &vlan_tc, 0, f->port, TC_ACT_UNSPEC);
	case TO_VLAN:
		return tagged(skb, programs, which, f->port, TC_ACT_UNSPEC);
	default:
		if (may_be_macvlan(f->port, reason))
			return tagged(skb, &vlan_tc, 0, f->port, TC_ACT_UNSPEC);
		return count(f->port->id, reason, TC_ACT_UNSPEC);
	}
}

/* Updates the transport checksum of a packet that was translated. The kernel knows whether it is that of the packet or,
 * unfinished, only of the pseudo-header. The headers are linear and have been written to, so that neither call
 * fails. */
static __always_inline void update_checksum(struct __sk_buff *skb, const struct translation *t)
{
	__u64 udp = t->checksum == UDP_CHECKSUM4 || t->checksum == UDP_CHECKSUM6 ? BPF_F_MARK_MANGLED_0 : 0;
	__u32 at = ETH_HLEN + t->checksum;
	__u16 addresses = change(t, 1), ports = fold(change(t, 0) + (__u16)~addresses), field;

	/* No checksum compensates for the ports; for IPv4's addresses, that of the header does. */
	if (udp && !bpf_skb_load_bytes(skb, at, &field, sizeof(field)) && !field) {
		bpf_csum_update(skb, ports);
		if (t->checksum == UDP_CHECKSUM6)
			bpf_csum_update(skb, addresses);
		return;
	}
	bpf_l4_csum_replace(skb, at, 0, addresses, BPF_F_PSEUDO_HDR | udp);
	bpf_l4_csum_replace(skb, at, 0, ports, udp);
	/* The first call adjusts a NIC's packet sum, as is right for IPv4, where the header's checksum compensates for
	 * the addresses. */
	if (skb->protocol == bpf_htons(ETH_P_IPV6))
		bpf_csum_update(skb, addresses);
}

SEC("classifier")
int bywash_tc_flows(struct __sk_buff *skb)
{
	const struct bywash_port *port = port_of(skb->ifindex);

	if (!port)
		return TC_ACT_UNSPEC;
	__u64 mine = mac_and_flags_for(skb, port);
	/* At level `user` the XDP program has counted the frame. */
	if (!(mine >> 48 & BYWASH_FORWARD))
		return TC_ACT_UNSPEC;
	if (unlikely(skb->mark))
		return count(port->id, PASS_POLICY, TC_ACT_UNSPEC);
	if (skb->vlan_present)
		return tagged(skb, &vlan_tc, 0, port, TC_ACT_UNSPEC);

	struct translation t = {};
	struct frame f = frame_of(skb, port, mine >> 48);
	f.bridged = 1;
	int reason = parse(&f, mine);
	if (reason == NEXT)
		reason = judge_flow(&f, &t, 1);
	if (reason == PLAIN)
		reason = route(&f);
	if (reason == NEXT && t.checksum)
		update_checksum(skb, &t);
	return conclude_skb(skb, &f, reason, &flow_tc, FLOWS_OF_VLANS);
}

SEC("classifier")
int bywash_tc(struct __sk_buff *skb)
{
	const struct bywash_port *port = port_of(skb->ifindex);

	if (!port)
		return TC_ACT_UNSPEC;
	__u64 mine = mac_and_flags_for(skb, port);
	__u32 flags = mine >> 48;
	if (!(flags & BYWASH_ENABLED)) {
		if (port->sending & BYWASH_BRIDGED)
			bpf_tail_call(skb, &bridge_tc, 0);
		if (flags & FLOWS)
			bpf_tail_call(skb, &flow_tc, FLOWS_OF_PORTS);
		if (flags & BYWASH_RULES)
			bpf_tail_call(skb, &rules_tc, 0);
		return count(port->id, PASS_DISABLED, TC_ACT_UNSPEC);
	}
	/* At level `user` the XDP program has counted the frame, unless none is attached because the kernel gets every
	 * packet. */
	if (!(flags & BYWASH_FORWARD))
		return flags & BYWASH_KERNEL4 && flags & BYWASH_KERNEL6 ? count(port->id, PASS_POLICY, TC_ACT_UNSPEC) :
									  TC_ACT_UNSPEC;
	if (unlikely(skb->mark))
		return count(port->id, PASS_POLICY, TC_ACT_UNSPEC);
	if (skb->vlan_present)
		return tagged(skb, &vlan_tc, 0, port, TC_ACT_UNSPEC);

	struct frame f = frame_of(skb, port, flags);
	return conclude_skb(skb, &f, judge(&f, mine), &vlan_tc, 0);
}

SEC("classifier")
int bywash_tc_rules(struct __sk_buff *skb)
{
	const struct bywash_port *port = port_of(skb->ifindex);

	if (!port)
		return TC_ACT_UNSPEC;
	__u64 mine = mac_and_flags_for(skb, port);
	if (unlikely(skb->mark))
		return count(port->id, PASS_POLICY, TC_ACT_UNSPEC);
	if (skb->vlan_present)
		return tagged(skb, &vlan_tc, 0, port, TC_ACT_UNSPEC);

	struct frame f = frame_of(skb, port, mine >> 48);
	return conclude_skb(skb, &f, judge_by_rules(&f, mine), &vlan_tc, 0);
}

SEC("classifier")
int bywash_tc_bridge(struct __sk_buff *skb)
{
	const struct bywash_port *port = port_of(skb->ifindex);

	if (!port)
		return TC_ACT_UNSPEC;
	__u64 mine = mac_and_flags(port);
	/* At level `user` the XDP program has counted the frame. */
	if (!(mine >> 48 & BYWASH_FORWARD))
		return TC_ACT_UNSPEC;
	struct bridged frame = { .length = skb->gso_size ? 0 : skb->len };
	/* Neighbour discovery is recognised by the byte behind the IPv6 header. */
	if (skb->protocol == bpf_htons(ETH_P_IPV6) && (void *)(long)skb->data + HEADERS6 > (void *)(long)skb->data_end)
		bpf_skb_pull_data(skb, skb->len < HEADERS6 ? skb->len : HEADERS6);
	__be16 protocol = skb->vlan_present ? skb->vlan_proto : 0, tci = bpf_htons(skb->vlan_tci);
	int reason = judge_bridged(port, (void *)(long)skb->data, (void *)(long)skb->data_end, protocol, tci, &frame);
	if (reason == NEXT) {
		bpf_tail_call(skb, &flow_tc, FLOWS_OF_PORTS);
		reason = PASS_DISABLED;
	}
	if (reason == TO_MEMBER) {
		const __u64 *index = bpf_map_lookup_elem(&interfaces, &frame.to);
		/* The frame's own tag is beside its data, and stays if the frame leaves with a tag. */
		if (!index || !*index || has_tag(skb->protocol))
			return count(port->id, PASS_BRIDGED, TC_ACT_UNSPEC);
		if (protocol && !frame.tag)
			bpf_skb_vlan_pop(skb);
		else if (!protocol && frame.tag && bpf_skb_vlan_push(skb, frame.tag, bpf_ntohs(frame.tag >> 16)))
			return count(port->id, PASS_BRIDGED, TC_ACT_UNSPEC);
		count_forwarded(port->id, frame.to, skb->len);
		count(port->id, TO_MEMBER, 0);
		return bpf_redirect(*index, 0);
	}
	return count(port->id, reason, TC_ACT_UNSPEC);
}

/* Handles an skb that comes or leaves with a tag. Its own tag is beside its data. */
static __always_inline int handle_skb_tags(struct __sk_buff *skb, const int flows)
{
	const struct bywash_port *port = port_of(skb->ifindex);
	__u32 came = skb->vlan_present;

	if (!port)
		return TC_ACT_UNSPEC;
	__u32 id = port->id;
	if (came) {
		port = vlan_of(port, skb->vlan_proto, bpf_htons(skb->vlan_tci));
		if (!port)
			return count(id, PASS_VLAN, TC_ACT_UNSPEC);
	} else if ((void *)(long)skb->data + ETH_HLEN <= (void *)(long)skb->data_end &&
		   (*(const __u64 *)(long)skb->data ^ mac_and_flags_for(skb, port)) << 16) {
		port = macvlan_of(port, (void *)(long)skb->data);
		if (!port)
			return count(id, PASS_NOT_MINE, TC_ACT_UNSPEC);
	}
	__u64 mine = mac_and_flags(port);
	__u32 flags = mine >> 48;
	if (!(flags & BYWASH_FORWARD))
		return TC_ACT_UNSPEC;
	if (unlikely(skb->mark))
		return count(id, PASS_POLICY, TC_ACT_UNSPEC);
	if (!flows && flags & FLOWS)
		return tagged(skb, &flow_tc, FLOWS_OF_VLANS, port, TC_ACT_UNSPEC);

	struct translation t = {};
	struct frame f = frame_of(skb, port, flags);
	f.tags = f.bridged = 1;
	int reason = parse(&f, mine);
	if (reason == NEXT)
		reason = flows ? judge_flow(&f, &t, 1) : PLAIN;
	if (reason == PLAIN)
		reason = route(&f);
	switch (reason) {
	case NEXT:
		break;
	case TO_USER:
		return count(id, PASS_EXCEPTION, TC_ACT_UNSPEC);
	default:
		return count(id, reason == TO_TUNNEL ? PASS_LOCAL : reason, TC_ACT_UNSPEC);
	}
	if (t.checksum)
		update_checksum(skb, &t);
	/* Neither call fails: no tag is in the data, so none has to be moved into it or out of it. */
	if (came)
		bpf_skb_vlan_pop(skb);
	if (f.tag)
		bpf_skb_vlan_push(skb, f.tag, bpf_ntohs(f.tag >> 16));
	return send_skb(skb, &f);
}

SEC("classifier")
int bywash_tc_vlan(struct __sk_buff *skb)
{
	return handle_skb_tags(skb, 0);
}

SEC("classifier")
int bywash_tc_vlan_flows(struct __sk_buff *skb)
{
	return handle_skb_tags(skb, 1);
}
#endif

char LICENSE[] SEC("license") = "Dual BSD/GPL";
