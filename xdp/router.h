/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What becomes of a frame at a router's port, whether it comes as XDP's frame or as an skb.
 *
 * Stages: parse -> route -> forward. A stage returns the reason for an end, or NEXT; TO_USER is for what needs more than
 * forwarding. */
#ifndef BYWASH_ROUTER_H
#define BYWASH_ROUTER_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#ifndef BYWASH_PLAIN
#include "known.h"
#endif
#include "forward.h"

#define NEXT (-1)

struct frame {
	void *ctx;
	const struct bywash_port *port;
	void *data;
	void *end;                    /* of what lies in one piece: the headers, at least */
	__u32 bytes;                  /* of the frame: XDP's as far as it lies in one piece, an skb's in full */
	__u32 gso_size;               /* payload of each packet that an skb will be cut into; 0: it is one packet */
	__u64 version;
	__u32 len;                    /* of the IP packet, once it is known to be sound */
	const struct bywash_hop *hop; /* once the way is known */
};

static __always_inline __u16 be16(const __u8 *p)
{
	return bpf_ntohs(*(const __u16 *)p);
}

#ifdef BYWASH_PLAIN
static __always_inline const struct bywash_port *port_of(__u32 ifindex);

/* Without tables of our own the kernel is asked whether it is a packet's end, or its way out is no port: user space must not
 * have to give back what it may not be able to. */
static __always_inline int whose(const struct frame *f, struct bpf_fib_lookup *to)
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
/* Bytes behind the IP header of a packet that an skb will be cut into; more than any MTU where it cannot be told. */
static __always_inline __u32 segment(const struct frame *f, __u8 proto, const __u8 *l4)
{
	if (proto == 6 && (void *)l4 + 13 <= f->end)
		return f->gso_size + (l4[12] >> 4) * 4;
	return proto == 17 ? f->gso_size + 8 : 1 << 16;
}
#endif

/* Where the tables lead. With the driver's level on, a sound packet's own next hop is in `hop` on NEXT. */
static __always_inline int route_v4(struct frame *f, const __u8 *ip)
{
	const __u8 *dst = ip + 16, *src = ip + 12;

	if (dst[0] >= 224 && (dst[0] < 240 || (dst[0] == 255 && dst[1] == 255 && dst[2] == 255 && dst[3] == 255)))
		return PASS_MULTICAST;
	if (dst[0] == 0 || dst[0] == 127 || src[0] == 127)
		return PASS_RESERVED;
	if ((dst[0] == 169 && dst[1] == 254) || (src[0] == 169 && src[1] == 254))
		return PASS_LINK_LOCAL;

#ifdef BYWASH_PLAIN
	struct bpf_fib_lookup to = { .family = 2 };

	__builtin_memcpy(&to.ipv4_src, src, 4);
	__builtin_memcpy(&to.ipv4_dst, dst, 4);
	return whose(f, &to);
#else
	f->version = current_version();
	struct bywash_hop *hop = hop_of(f->version, lookup4(f->version, be32_at(dst)));
	if (!hop)
		return TO_USER;
	if (hop->kind == HOP_LOCAL)
		return PASS_LOCAL;
	if (hop->kind == HOP_KERNEL)
		return PASS_ROUTE;
	if (!(f->port->flags & BYWASH_DRIVER) || !sound4(ip, f->bytes - ETH_HLEN))
		return TO_USER;
	if (hop->kind == HOP_GROUP)
		hop = member(f->version, hop, flow_hash4(ip, f->end));
	f->len = be16(ip + 2);
	if (f->gso_size)
		f->len = segment(f, ip[9], ip + 20) + 20;
	if (f->port->flags & BYWASH_PARTIAL && !(*(const __u16 *)(ip + 6) & bpf_htons(0x3fff)) &&
	    unfinished(ip[9], ip + 20, f->end, f->len - 20, sum_words(ip + 12, 2)))
		return TO_USER;
	f->hop = hop;
	return NEXT;
#endif
}

static __always_inline int route_v6(struct frame *f, const __u8 *ip)
{
	const __u8 *dst = ip + 24, *src = ip + 8;

	if (dst[0] == 0xff)
		return PASS_MULTICAST;
	if ((dst[0] == 0xfe && (dst[1] & 0xc0) == 0x80) || (src[0] == 0xfe && (src[1] & 0xc0) == 0x80))
		return PASS_LINK_LOCAL;
	__u64 high = be64_at(dst), low = be64_at(dst + 8);
	if (!high && low <= 1)
		return PASS_RESERVED;

#ifdef BYWASH_PLAIN
	struct bpf_fib_lookup to = { .family = 10 };

	__builtin_memcpy(to.ipv6_src, src, 16);
	__builtin_memcpy(to.ipv6_dst, dst, 16);
	return whose(f, &to);
#else
	f->version = current_version();
	struct bywash_hop *hop = hop_of(f->version, lookup6(f->version, high, low));
	if (!hop)
		return TO_USER;
	if (hop->kind == HOP_LOCAL)
		return PASS_LOCAL;
	if (hop->kind == HOP_KERNEL)
		return PASS_ROUTE;
	if (!(f->port->flags & BYWASH_DRIVER) || !sound6(ip, f->bytes - ETH_HLEN))
		return TO_USER;
	if (hop->kind == HOP_GROUP)
		hop = member(f->version, hop, flow_hash6(ip, f->end));
	f->len = be16(ip + 4) + 40;
	if (f->gso_size)
		f->len = segment(f, ip[6], ip + 40) + 40;
	/* Behind extension headers user space looks. */
	if (f->port->flags & BYWASH_PARTIAL &&
	    (ip[6] == 43 || ip[6] == 60 || unfinished(ip[6], ip + 40, f->end, f->len - 40, sum_words(ip + 8, 8))))
		return TO_USER;
	f->hop = hop;
	return NEXT;
#endif
}

static __always_inline int same_mac(const __u8 *a, const __u8 *b)
{
	return !((*(const __u32 *)a ^ *(const __u32 *)b) | (*(const __u16 *)(a + 4) ^ *(const __u16 *)(b + 4)));
}

/* Link layer: for this port's own address. */
static __always_inline int parse(const struct frame *f)
{
	const __u8 *eth = f->data, *mac = f->port->mac;

	if (f->data + ETH_HLEN > f->end)
		return PASS_SHORT;
	if (f->port->flags & BYWASH_RAW)
		return TO_USER;
	if (eth[0] & 1)
		return PASS_MULTICAST;
	if (!same_mac(eth, mac))
		return PASS_NOT_MINE;
	/* From ourselves: the injector marks so what user space gave back. Taken again, it would go round for ever. */
	if (same_mac(eth + ETH_ALEN, mac))
		return PASS_RETURNED;
	return NEXT;
}

/* A header too short or too broken to tell goes to user space, which drops it by name. */
static __always_inline int route(struct frame *f)
{
	const __u8 *eth = f->data, *ip = f->data + ETH_HLEN;

	switch (be16(eth + 12)) {
	case ETH_P_IP:
		if (f->data + ETH_HLEN + 20 > f->end || ip[0] >> 4 != 4)
			return TO_USER;
		if ((ip[0] & 15) > 5)
			return PASS_OPTIONS;
		return route_v4(f, ip);
	case ETH_P_IPV6:
		if (f->data + ETH_HLEN + 40 > f->end || ip[0] >> 4 != 6)
			return TO_USER;
		if (ip[6] == 0)
			return PASS_OPTIONS;
		return route_v6(f, ip);
	case ETH_P_8021Q:
	case ETH_P_8021AD:
		return PASS_VLAN;
	default:
		return PASS_ETHERTYPE;
	}
}

/* Rewrites the frame for its next hop. */
static __always_inline int forward(const struct frame *f)
{
	__u8 *eth = f->data, *ip = f->data + ETH_HLEN;
	const struct bywash_hop *hop = f->hop;

	if (!hop || hop->kind != HOP_FORWARD || f->len > hop->mtu || f->data + ETH_HLEN + 20 > f->end)
		return TO_USER;
	/* The device refuses a frame that padding makes too long, and nobody would count it. */
	if (!f->gso_size && f->bytes > hop->mtu + ETH_HLEN)
		return TO_USER;
	/* From native XDP a device must take frames that have no skb. */
	if (f->port->flags & BYWASH_NATIVE && !(hop->flags & HOP_TAKES_FRAMES))
		return TO_USER;
	if (f->port->flags & BYWASH_REDIRECTS && hop->port == f->port->id)
		return TO_USER;
	if (ip[0] >> 4 == 4) {
		/* RFC 1624: the TTL is the high byte of its word. */
		__u32 sum = *(__u16 *)(ip + 10) + bpf_htons(0x0100);
		*(__u16 *)(ip + 10) = sum + (sum >= 0xffff);
		ip[8]--;
	} else {
		ip[7]--;
	}
	/* In two: a copy whose alignment the compiler cannot know goes byte by byte. */
	*(__u64 *)eth = *(const __u64 *)hop->macs;
	*(__u32 *)(eth + 8) = *(const __u32 *)(hop->macs + 8);
	return NEXT;
}

#endif
