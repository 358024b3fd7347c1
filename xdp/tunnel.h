/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Packets that came through tunnels. A program of its own judges them, after a tail call from where the others meet
 * packets to this host, or packets of no flow: it is loaded for the first tunnel whose packets user space forwards, and
 * the verifier follows it once, instead of from each of these places. Not for traffic control, which leaves tunnels to
 * the kernel. */
#ifndef BYWASH_TUNNEL_H
#define BYWASH_TUNNEL_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "outer.h"
#include "translate.h"
#include "vlan.h"

/* Returns the verdict on a packet that came through a tunnel whose gate is closed: TO_USER if it belongs to a flow and
 * user space is expected to forward it. */
static __always_inline int inner_flow(struct frame *f, const struct inner *in, const int v6)
{
	const void *ip = f->data + ETH_HLEN + (in->added & 127);
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;
	const __u32 head = v6 ? sizeof(*ip6) : sizeof(*ip4);
	const void *l4 = ip + head, *end = f->end;
	__u32 room = f->bytes - ETH_HLEN - in->added, found = 0;
	__u64 version;

	if (l4 > end || !(v6 ? valid6(ip6, room) : valid4(ip4, room)) || (!v6 && is_fragment4(ip4)))
		return PASS_POLICY;
	__u32 len = v6 ? bpf_ntohs(ip6->payload_len) : bpf_ntohs(ip4->tot_len) - head;
	__u8 proto = v6 ? ip6->nexthdr : ip4->protocol;
	int class = l4_class(proto, l4, end, len);
	if (class == L4_OTHER)
		return PASS_POLICY;
	const __u64 *addresses = v6 ? (const void *)&ip6->saddr : (const void *)&ip4->saddr;
	__u64 number = in->takes >> END_NUMBER & END_NUMBERS;
	__u64 rest = *(const __u32 *)l4 | (__u64)proto << 32 | number << 48;
	volatile __u64 *record = v6 ? flow_find6(addresses, rest, &found) : flow_find4(addresses, rest, &found);
	if (!record)
		return missed(ip, rest, class == L4_CLOSING, v6);
	if (class == L4_CLOSING) {
		*(volatile __u32 *)(record + FLOW_STATE) = 0;
		return PASS_POLICY;
	}
	struct translation t = translation_of(record, found, v6);
	if (!look_up_translated(f, &t, &version, v6))
		return PASS_POLICY;
	/* For a group, a VLAN, a bond or another tunnel, user space decides. */
	if (adj_mtu(&f->adj) && (head + len > adj_mtu(&f->adj) ||
				 !leaves_by(adj_port(&f->adj), f->adj.index, leaving_rest(&t, v6) >> 48)))
		return PASS_POLICY;
	open_gate(f);
	return TO_USER;
}

/* Returns whether the inner packet may be several datagrams (is_unfinished()). */
static __always_inline int is_unfinished_inner(const struct frame *f, const struct inner *in)
{
	const void *ip = f->data + ETH_HLEN + (in->added & 127);
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;

	if (!(f->port->sending & BYWASH_CHUNKS) || (void *)(ip4 + 1) > f->end)
		return 0;
	if (!in->v6)
		return ip4->protocol == IPPROTO_UDP &&
		       unfinished(IPPROTO_UDP, ip + ip4->ihl * 4, f->end, bpf_ntohs(ip4->tot_len) - ip4->ihl * 4,
				  &ip4->saddr, 2);
	return (void *)(ip6 + 1) <= f->end && ip6->nexthdr == IPPROTO_UDP &&
	       unfinished(IPPROTO_UDP, ip6 + 1, f->end, bpf_ntohs(ip6->payload_len), &ip6->saddr, 8);
}

/* Returns the verdict on a packet that has got as far as the transport header, or to an address of this host. */
static __always_inline int judge_outer(struct xdp_md *ctx, struct frame *f, int v6)
{
	struct inner in = {};
	int closed = f->flags & kernel_flag(v6);

	if (closed && !(f->flags & flows_flag(v6)))
		return PASS_POLICY;
	if (!find_inner(&in, f->data + ETH_HLEN, f->end, f->port->route_id, v6))
		return no_inner(f);
	/* Reloaded so that the verifier forgets the packet: it would follow the rest for each layout of headers. */
	f->data = (void *)(long)ctx->data + ((ctx->data_end - ctx->data - f->bytes) & VLAN_HLEN);
	f->end = (void *)(long)ctx->data_end;
	if (unlikely(is_unfinished_inner(f, &in)))
		return PASS_UNFINISHED;
	__u64 all = in.v6 ? END_OPEN6 : END_OPEN4, flows = in.v6 ? END_FLOWS6 : END_FLOWS4;
	if (in.takes & all && (in.takes & flows || !closed)) {
		open_gate(f);
		return TO_USER;
	}
	if (!(in.takes & flows))
		return PASS_POLICY;
	return in.v6 ? inner_flow(f, &in, 1) : inner_flow(f, &in, 0);
}

SEC("xdp.frags")
int bywash_tunnels(struct xdp_md *ctx)
{
	const struct bywash_port *port = port_of(ctx->ingress_ifindex);

	if (!port)
		return XDP_PASS;
	struct frame f = frame_of_xdp(ctx, port, 0);
	__u32 id = port->id;
	if (f.data + VLAN_HLEN + ETH_HLEN > f.end)
		return count(id, PASS_SHORT, XDP_PASS);
	if (has_tag(ether_type(&f))) {
		f.port = vlan_of(port, ether_type(&f), *(__be16 *)(f.data + 14));
		f.data += VLAN_HLEN;
		f.bytes -= VLAN_HLEN;
	} else if ((*(const __u64 *)f.data ^ mac_and_flags(port)) << 16) {
		f.port = macvlan_of(port, f.data);
	}
	if (!f.port)
		return count(id, PASS_DISABLED, XDP_PASS);
	f.flags = mac_and_flags(f.port) >> 48;
	int reason = judge_outer(ctx, &f, ether_type(&f) == bpf_htons(ETH_P_IPV6));
	return reason == TO_USER ? to_user_as_it_is(&f, ctx) : count(id, reason, XDP_PASS);
}

#endif
