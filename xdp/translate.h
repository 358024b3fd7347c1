/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Forwarding past a closed gate: packets of established connections, on which the kernel's rules have decided, are
 * translated and forwarded as the kernel would. All other packets of the family, those that are not certainly of such a
 * flow or that need more than forwarding, are passed to the kernel unchanged. crates/router/src/translate.rs does the
 * same. */
#ifndef BYWASH_TRANSLATE_H
#define BYWASH_TRANSLATE_H

#include <linux/bpf.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "flows.h"
#include "router.h"

/* Returned for frames that take the path of a port without flows; not a verdict of XDP or traffic control. */
#define PLAIN (-2)

#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16

/* Translation of a packet, which leaves with the reverse of the other direction's tuple. The record is read where its
 * contents are needed, to save stack: the stack of several functions adds up. */
struct translation {
	volatile __u64 *record;
	volatile __u64 *leaves; /* addresses of the other direction */
	__u32 other;            /* the other direction */
	__u32 checksum;         /* offset of the transport checksum that is left to be updated; 0: none */
};

enum l4_class {
	L4_OTHER,
	L4_PLAIN,   /* changes nothing in the kernel's record of its connection */
	L4_CLOSING, /* opens or closes the connection, all of whose packets the kernel handles from then on */
};

/* Classifies a transport header that the kernel's connection tracking finds valid (tcp_error, udp_error); L4_OTHER for
 * all others. `len` is the number of bytes behind the IP header. If UDP's own length is less, the kernel checks the
 * checksum over all of them, which fails although the receiver finds it right (nf_ip_checksum). */
static __always_inline int l4_class(__u8 proto, const __u8 *l4, const void *end, __u32 len)
{
	if (proto == IPPROTO_TCP) {
		if ((void *)(l4 + 20) > end)
			return L4_OTHER;
		__u32 head = (l4[12] >> 4) * 4;
		if (head < 20 || head > len)
			return L4_OTHER;
		if (l4[13] & (TCP_FIN | TCP_SYN | TCP_RST))
			return L4_CLOSING;
		return l4[13] & TCP_ACK ? L4_PLAIN : L4_OTHER;
	}
	if (proto != IPPROTO_UDP || (void *)(l4 + 8) > end)
		return L4_OTHER;
	__u32 udp = bpf_ntohs(*(const __u16 *)(l4 + 4));
	return udp >= 8 && udp == len ? L4_PLAIN : L4_OTHER;
}

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* Returns 0xffff, the other zero of one's complement, for 0. */
static __always_inline __u16 nonzero(__u16 sum)
{
	return sum ? sum : 0xffff;
}

static __always_inline __u16 updated(__u16 checksum, __u16 change)
{
	return ~fold((__u16)~checksum + change);
}

static __always_inline struct translation translation_of(volatile __u64 *record, __u32 direction, const int v6)
{
	/* The compiler knows that it is 0 or 1, the verifier does not. */
	barrier_var(direction);
	__u32 other = (direction ^ 1) & 1;

	return (struct translation){ .record = record, .leaves = record + other * (v6 ? 8 : 2), .other = other };
}

/* Returns the transport ports that the packet leaves with, and from bit 48 on the number of the port that it leaves
 * by. */
static __always_inline __u64 leaving_rest(const struct translation *t, const int v6)
{
	__u64 rest = v6 ? t->record[4 + t->other] : t->leaves[1];
	__u32 ports = rest;

	return (rest & ~0xffffffffull) | (__u32)(ports << 16 | ports >> 16);
}

/* Returns the one's complement difference that translation makes to the addresses, or to addresses and ports. Never
 * 0. */
static __always_inline __u16 change(const struct translation *t, const int addresses_only)
{
	__u16 difference = t->record[FLOW_STATE] >> (addresses_only ? 32 : 48);

	return t->other ? difference : nonzero(~difference);
}

/* Hashes the packet as the kernel routes it: with the translated destination and the original source, which the kernel
 * translates after routing. */
static __always_inline __u32 translated_hash(const struct frame *f, const struct translation *t, const void *ip,
					     __u8 proto, const int v6)
{
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;
	const __u64 *source6 = (const void *)&ip6->saddr;
	__u32 came = *(const __u32 *)(ip + (v6 ? sizeof(*ip6) : sizeof(*ip4)));
	__u64 to = t->leaves[0], ends = bpf_be64_to_cpu(to << 32 | ip4->saddr);
	__u32 ports = (came & 0xffff) | ((__u32)leaving_rest(t, v6) & 0xffff0000);
	__u64 more = (__u64)bpf_ntohl(ports) << 8 | proto;

	if (v6) {
		ends = flow_mix(flow_mix(bpf_be64_to_cpu(source6[0]), bpf_be64_to_cpu(source6[1])),
				flow_mix(bpf_be64_to_cpu(to), bpf_be64_to_cpu(t->leaves[1])));
		if (f->flags & BYWASH_L3_HASH6)
			more = (__u64)(be32_at(ip6) & 0xfffff) << 8 | proto;
	} else if (f->flags & BYWASH_L3_HASH4) {
		more = 0;
	}
	return flow_mix(ends, more) * K2 >> 32;
}

/* Returns the fields by which a bond chooses the member that a translated packet leaves by. */
static __always_inline struct bond_fields translated_fields(const struct translation *t, const int v6)
{
	__u64 addresses = t->leaves[0];

	if (v6)
		addresses ^= t->leaves[1] ^ t->leaves[2] ^ t->leaves[3];
	return (struct bond_fields){ .addresses = folded(addresses), .ends = leaving_rest(t, v6) };
}

/* Looks up the translated destination of a packet; returns 0 if the verifier's checks fail, which is never. */
static __always_inline int look_up_translated(struct frame *f, const struct translation *t, __u64 *version,
					      const int v6)
{
	if (v6) {
		__u64 high = t->leaves[0], low = t->leaves[1];
		struct dst_slot6 slot = read_slot6(high, low);
		if (!slot.k)
			return 0;
		*version = current_version(f->port);
		lookup6(*version, high, low, &slot, &f->adj);
	} else {
		__u32 dst = t->leaves[0];
		struct dst_slot4 slot = read_slot4(dst);
		if (!slot.k)
			return 0;
		*version = current_version(f->port);
		lookup4(*version, dst, &slot, &f->adj);
	}
	return 1;
}

/* Sets the adjacency of a translated packet. Returns NEXT, or the verdict if the packet is not forwarded here. */
static __always_inline int translated_hop(struct frame *f, const struct translation *t, const void *ip, __u32 longest,
					  __u8 proto, const int v6)
{
	const struct iphdr *ip4 = ip;
	__u64 version;

	if (!look_up_translated(f, t, &version, v6))
		return PASS_POLICY;
	__u32 port = adj_port(&f->adj);
	if (!adj_mtu(&f->adj)) {
		__u32 key = f->adj.macs;
		const struct bywash_hop *hop = hop_at(key);
		if (hop && hop->kind == HOP_GROUP)
			hop = member(version, hop, translated_hash(f, t, ip, proto, v6));
		else if (hop && hop->flags & HOP_THROUGH)
			return hop->port == f->port->route_id ? PASS_POLICY : TO_USER;
		else if (!is_above(hop))
			return PASS_POLICY;
		struct bond_fields fields = translated_fields(t, v6);
		int reason = select_egress(f, version, hop, &fields, v6);
		if (reason != NEXT)
			return reason;
		port = hop ? hop->port : port;
	}
	if (longest > adj_mtu(&f->adj) && !segments_fit(f))
		return PASS_POLICY;
	__u32 number = leaving_rest(t, v6) >> 48;
	if (!leaves_by(port, f->adj.index, number) || (f->flags & BYWASH_REDIRECTS && number == f->port->route_id))
		return PASS_POLICY;
	if (!v6 && (f->flags & (BYWASH_RPF_LOOSE | BYWASH_RPF_STRICT) || own_bit(f->port->own, &ip4->saddr)) &&
	    !takes_source(version, ip4->saddr, f->port->route_id, f->flags))
		return PASS_SOURCE;
	/* Its device takes no redirected frames: user space sends it. */
	return adj_excluding(&f->adj) & f->flags & BYWASH_NATIVE ? TO_USER : NEXT;
}

/* Leaves a packet that may belong to a flow to the kernel; weighs it or, if `closing` is set, resets its weight. */
static __always_inline int missed(const void *ip, __u64 rest, int closing, const int v6)
{
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;
	const __u64 *addresses = v6 ? (const void *)&ip6->saddr : (const void *)&ip4->saddr;

	if (v6 && closing)
		flow_forget6(addresses[0], addresses[1], addresses[2], addresses[3], rest);
	else if (v6)
		flow_miss6(addresses[0], addresses[1], addresses[2], addresses[3], rest);
	else if (closing)
		flow_forget4(addresses[0], rest);
	else
		flow_miss4(addresses[0], rest);
	return PASS_POLICY;
}

/* Lets user space take a packet that belongs to a flow. */
static __always_inline void open_gate(struct frame *f)
{
	f->flags &= ~(BYWASH_KERNEL4 | BYWASH_KERNEL6 | BYWASH_DEFRAG);
}

/* Returns the verdict on a packet of a family whose gate is closed except for flows; on NEXT it has been translated,
 * except for the transport checksum of an skb. */
static __always_inline int translate(struct frame *f, struct translation *t, void *ip, const int v6, const int skb)
{
	struct iphdr *ip4 = ip;
	struct ipv6hdr *ip6 = ip;
	const __u32 head = v6 ? sizeof(*ip6) : sizeof(*ip4);
	__u8 *l4 = ip + head;
	__u8 proto = v6 ? ip6->nexthdr : ip4->protocol;
	__u64 *addresses = v6 ? (void *)&ip6->saddr : (void *)&ip4->saddr;
	__u32 room = f->bytes - ETH_HLEN, found = 0;

	if (unlikely(!(v6 ? valid6(ip6, room) : valid4(ip4, room)) || (!v6 && is_fragment4(ip4)))) {
		rare_path();
		return PASS_POLICY;
	}
	__u32 len = v6 ? bpf_ntohs(ip6->payload_len) : bpf_ntohs(ip4->tot_len) - head;
	int class = l4_class(proto, l4, f->end, len);
	if (unlikely(class == L4_OTHER)) {
		rare_path();
		return skb ? PASS_POLICY : TO_TUNNEL;
	}
	__u32 ports = *(const __u32 *)l4;
	__u64 rest = ports | (__u64)proto << 32 | (__u64)f->port->route_id << 48;
	/* Hides the memory latency of the destination's slot, unless translation changes the destination. */
	if (v6)
		read_slot6(addresses[2], addresses[3]);
	else
		read_slot4(ip4->daddr);
	volatile __u64 *record = v6 ? flow_find6(addresses, rest, &found) : flow_find4(addresses, rest, &found);
	if (!record)
		return !skb && proto == IPPROTO_UDP ? TO_TUNNEL : missed(ip, rest, class == L4_CLOSING, v6);
	if (unlikely(class == L4_CLOSING)) {
		/* The generation: no packet belongs to the flow any more, and control removes it. */
		*(volatile __u32 *)(record + FLOW_STATE) = 0;
		return PASS_POLICY;
	}
	open_gate(f);
	if (!(f->flags & BYWASH_FORWARD))
		return TO_USER;
	*t = translation_of(record, found, v6);
	__u32 longest = f->gso_size ? segment(f, proto, l4) + head : room;
	int reason = translated_hop(f, t, ip, longest, proto, v6);
	if (reason != NEXT)
		return reason == PASS_POLICY ? missed(ip, rest, 0, v6) : reason;
	if (f->flags & BYWASH_PARTIAL &&
	    unlikely(unfinished(proto, l4, f->end, f->gso_size ? longest - head : len, addresses, v6 ? 8 : 2)))
		return TO_USER;
	if (f->flags & BYWASH_PARTIAL && proto == IPPROTO_UDP && unfinished_within(l4, f->end))
		return PASS_UNFINISHED;

	*(__u64 *)f->data = f->adj.macs;
	*(__u32 *)(f->data + 8) = f->adj.rest;
	__u64 first = t->leaves[v6 ? 2 : 0];
	__u32 new_ports = leaving_rest(t, v6);
	if (!v6)
		first = first << 32 | first >> 32;
	__u64 differ = (addresses[0] ^ first) | (ports ^ new_ports);
	if (v6)
		differ |= (addresses[1] ^ t->leaves[3]) | (addresses[2] ^ t->leaves[0]) | (addresses[3] ^ t->leaves[1]);
	/* Before the checksum is written: a load of it with the TTL would wait for the smaller store. */
	if (v6)
		ip6->hop_limit--;
	else
		lower_ttl(ip4, 1);
	if (differ) {
		const __u32 at = proto == IPPROTO_TCP ? 16 : 6;
		__u16 *checksum = (void *)(l4 + at);
		const void *limit = f->end;
		/* Keeps the compiler from using what l4_class() found: the verifier of Linux 6.1 does not know it here,
		 * nor that `at` goes with the protocol. */
		barrier_var(limit);
		addresses[0] = first;
		if (v6) {
			addresses[1] = t->leaves[3];
			addresses[2] = t->leaves[0];
			addresses[3] = t->leaves[1];
		} else {
			ip4->check = updated(ip4->check, change(t, 1));
		}
		*(__u32 *)l4 = new_ports;
		/* A UDP checksum of 0 means none, and stays 0. */
		if (skb)
			t->checksum = head + at;
		else if ((void *)(checksum + 1) > limit)
			return PASS_POLICY;
		else if (proto == IPPROTO_TCP)
			*checksum = updated(*checksum, change(t, 0));
		else if (*checksum)
			*checksum = nonzero(updated(*checksum, change(t, 0)));
	}
	__u32 direction = !t->other;
	__sync_fetch_and_add((__u32 *)(record + 6) + direction, 1);
	__sync_fetch_and_add((__u64 *)(record + (v6 ? 12 : 4)) + direction, len + head);
	return NEXT;
}

/* Returns the verdict on a packet of a port, or VLAN, with flows; PLAIN if its family has none. */
static __always_inline int judge_flow(struct frame *f, struct translation *t, const int skb)
{
	void *ip = f->data + ETH_HLEN;
	__u16 type = ether_type(f);

	if (type == bpf_htons(ETH_P_IP) && f->flags & BYWASH_FLOWS4 && ip + sizeof(struct iphdr) <= f->end)
		return translate(f, t, ip, 0, skb);
	if (type == bpf_htons(ETH_P_IPV6) && f->flags & BYWASH_FLOWS6 && ip + sizeof(struct ipv6hdr) <= f->end)
		return translate(f, t, ip, 1, skb);
	return PLAIN;
}

/* Acts as missed(), but reads the transport header again. */
static __always_inline int missed_again(const struct frame *f, const void *ip, const int v6)
{
	const struct iphdr *ip4 = ip;
	const struct ipv6hdr *ip6 = ip;
	const __u32 head = v6 ? sizeof(*ip6) : sizeof(*ip4);
	const void *l4 = ip + head;

	if (l4 > f->end)
		return PASS_POLICY;
	__u8 proto = v6 ? ip6->nexthdr : ip4->protocol;
	int class = l4_class(proto, l4, f->end, v6 ? bpf_ntohs(ip6->payload_len) : bpf_ntohs(ip4->tot_len) - head);
	if (class == L4_OTHER)
		return PASS_POLICY;
	__u64 rest = *(const __u32 *)l4 | (__u64)proto << 32 | (__u64)f->port->route_id << 48;
	return missed(ip, rest, class == L4_CLOSING, v6);
}

/* Returns the verdict on a packet that the program of tunnel.h handles, if it came through no tunnel or that program is
 * not loaded. */
static __attribute__((noinline)) int no_inner(const struct frame *f)
{
	const void *ip = f->data + ETH_HLEN;

	if (ip + sizeof(struct iphdr) > f->end)
		return PASS_LOCAL;
	if (ether_type(f) == bpf_htons(ETH_P_IP) && f->flags & BYWASH_FLOWS4)
		return missed_again(f, ip, 0);
	if (ether_type(f) == bpf_htons(ETH_P_IPV6) && f->flags & BYWASH_FLOWS6)
		return missed_again(f, ip, 1);
	return PASS_LOCAL;
}

/* Continues in the program of tunnel.h. Returns the verdict if that program is not loaded. */
static __always_inline int to_tunnel_program(struct xdp_md *ctx, const struct frame *f, const int flows)
{
	bpf_tail_call(ctx, &tunnel_xdp, 0);
	return flows ? no_inner(f) : PASS_LOCAL;
}

#endif
