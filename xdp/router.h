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
	__u32 flags;                  /* of the port, read once; without BYWASH_DRIVER if it is not sound */
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

/* Whose a packet is that is not sound; NEXT: whose its destination is. A header too broken to tell goes to user space, which
 * drops it by name. */
static __always_inline int odd4(const __u8 *ip)
{
	const __u8 *dst = ip + 16, *src = ip + 12;

	if (ip[0] >> 4 != 4)
		return TO_USER;
	if ((ip[0] & 15) > 5)
		return PASS_OPTIONS;
	if (dst[0] >= 224 && (dst[0] < 240 || (dst[0] == 255 && dst[1] == 255 && dst[2] == 255 && dst[3] == 255)))
		return PASS_MULTICAST;
	if (dst[0] == 0 || dst[0] == 127 || src[0] == 127)
		return PASS_RESERVED;
	if ((dst[0] == 169 && dst[1] == 254) || (src[0] == 169 && src[1] == 254))
		return PASS_LINK_LOCAL;
	return NEXT;
}

static __always_inline int odd6(const __u8 *ip)
{
	const __u8 *dst = ip + 24, *src = ip + 8;

	if (ip[0] >> 4 != 6)
		return TO_USER;
	if (ip[6] == 0)
		return PASS_OPTIONS;
	if (dst[0] == 0xff)
		return PASS_MULTICAST;
	if (link_local6(dst) || link_local6(src))
		return PASS_LINK_LOCAL;
	return reserved6(dst) ? PASS_RESERVED : NEXT;
}

#ifndef BYWASH_PLAIN
/* Read first, then the tables, then the next hop: see crates/port/src/af_xdp/driver.rs. */
static __always_inline __u64 current_version(const struct bywash_port *port)
{
	return *(const volatile __u64 *)&port->version;
}

/* Whether `hop` may be forwarded to: what is the kernel's is its own, broken or not. */
static __always_inline int may_forward(const struct frame *f, const struct bywash_hop *hop)
{
	if (unlikely(!hop))
		return TO_USER;
	if (unlikely(hop->kind >= HOP_LOCAL))
		return hop->kind == HOP_LOCAL ? PASS_LOCAL : PASS_ROUTE;
	return likely(f->flags & BYWASH_DRIVER) ? NEXT : TO_USER;
}

/* Whether a packet of `len` bytes can leave for a next hop from here: writes its MAC addresses if so. */
static __always_inline int leave(struct frame *f, const struct bywash_hop *hop, __u32 len)
{
	/* An skb is cut into packets of `len` bytes; else the device refuses a frame that padding makes too long, and
	 * nobody would count it. */
	__u32 longest = f->gso_size ? len : f->bytes - ETH_HLEN;

	if (unlikely(!hop || hop->kind != HOP_FORWARD || longest > hop->mtu))
		return TO_USER;
	/* From native XDP a device must take frames that have no skb. */
	if (unlikely(f->flags & BYWASH_NATIVE && !(hop->flags & HOP_TAKES_FRAMES)))
		return TO_USER;
	if (unlikely(f->flags & BYWASH_REDIRECTS && hop->port == f->port->id))
		return TO_USER;
	f->hop = hop;
	/* In two: a copy whose alignment the compiler cannot know goes byte by byte. */
	*(__u64 *)f->data = *(const __u64 *)hop->macs;
	*(__u32 *)(f->data + 8) = *(const __u32 *)(hop->macs + 8);
	return NEXT;
}
#endif

/* Where the tables lead; on NEXT the packet is rewritten for it. */
static __always_inline int route_v4(struct frame *f, __u8 *ip)
{
	int reason;

#ifdef BYWASH_PLAIN
	struct bpf_fib_lookup to = { .family = 2 };

	reason = odd4(ip);
	if (reason != NEXT)
		return reason;
	__builtin_memcpy(&to.ipv4_src, ip + 12, 4);
	__builtin_memcpy(&to.ipv4_dst, ip + 16, 4);
	return whose(f, &to);
#else
	if (unlikely(!sound4(ip, f->bytes - ETH_HLEN))) {
		reason = odd4(ip);
		if (reason != NEXT)
			return reason;
		f->flags &= ~BYWASH_DRIVER;
	}
	__u64 version = current_version(f->port);
	const struct bywash_hop *hop = hop_at(lookup4(version, *(const __u32 *)(ip + 16)));
	reason = may_forward(f, hop);
	if (unlikely(reason != NEXT))
		return reason;
	if (hop->kind == HOP_GROUP)
		hop = member(version, hop, flow_hash4(ip, f->end));
	__u32 len = be16(ip + 2);
	if (f->gso_size)
		len = segment(f, ip[9], ip + 20) + 20;
	if (f->flags & BYWASH_PARTIAL && !(*(const __u16 *)(ip + 6) & bpf_htons(0x3fff)) &&
	    unlikely(unfinished(ip[9], ip + 20, f->end, len - 20, ip + 12, 2)))
		return TO_USER;
	reason = leave(f, hop, len);
	if (unlikely(reason != NEXT))
		return reason;
	/* RFC 1624: the TTL is the high byte of its word. Its checksum, in the same 32 bits, gets what it loses, and the carry
	 * around its end. */
	__u32 *ttl = (void *)(ip + 8), word = *ttl;
	*ttl = word - 1 + (word < 0xfffe0000 ? 1 << 16 : 2 << 16);
	return NEXT;
#endif
}

static __always_inline int route_v6(struct frame *f, __u8 *ip)
{
	int reason;

#ifdef BYWASH_PLAIN
	struct bpf_fib_lookup to = { .family = 10 };

	reason = odd6(ip);
	if (reason != NEXT)
		return reason;
	__builtin_memcpy(to.ipv6_src, ip + 8, 16);
	__builtin_memcpy(to.ipv6_dst, ip + 24, 16);
	return whose(f, &to);
#else
	if (unlikely(!sound6(ip, f->bytes - ETH_HLEN))) {
		reason = odd6(ip);
		if (reason != NEXT)
			return reason;
		f->flags &= ~BYWASH_DRIVER;
	}
	__u64 version = current_version(f->port);
	const struct bywash_hop *hop = hop_at(lookup6(version, *(const __u64 *)(ip + 24), *(const __u64 *)(ip + 32)));
	reason = may_forward(f, hop);
	if (unlikely(reason != NEXT))
		return reason;
	if (hop->kind == HOP_GROUP)
		hop = member(version, hop, flow_hash6(ip, f->end));
	__u32 len = be16(ip + 4) + 40;
	if (f->gso_size)
		len = segment(f, ip[6], ip + 40) + 40;
	/* Behind extension headers user space looks. */
	if (f->flags & BYWASH_PARTIAL &&
	    unlikely(ip[6] == 43 || ip[6] == 60 || unfinished(ip[6], ip + 40, f->end, len - 40, ip + 8, 8)))
		return TO_USER;
	reason = leave(f, hop, len);
	if (unlikely(reason != NEXT))
		return reason;
	ip[7]--;
	return NEXT;
#endif
}

/* Link layer: for this port's own address. */
static __always_inline int parse(const struct frame *f, __u64 mine)
{
	const __u8 *eth = f->data;

	if (unlikely(f->data + ETH_HLEN > f->end))
		return PASS_SHORT;
	if (f->flags & BYWASH_RAW)
		return TO_USER;
	/* Six bytes of eight each, without what is behind them, or before. */
	if (unlikely((*(const __u64 *)eth ^ mine) << 16))
		return eth[0] & 1 ? PASS_MULTICAST : PASS_NOT_MINE;
	/* From ourselves: the injector marks so what user space gave back. Taken again, it would go round for ever. */
	if (unlikely(!((*(const __u64 *)(eth + 4) >> 16 ^ mine) << 16)))
		return PASS_RETURNED;
	return NEXT;
}

/* A header too short goes to user space, which drops it by name. */
static __always_inline int route(struct frame *f)
{
	__u8 *ip = f->data + ETH_HLEN;
	__u16 type = *(const __u16 *)(f->data + 12);

	if (likely(type == bpf_htons(ETH_P_IP)))
		return f->data + ETH_HLEN + 20 > f->end ? TO_USER : route_v4(f, ip);
	if (likely(type == bpf_htons(ETH_P_IPV6)))
		return f->data + ETH_HLEN + 40 > f->end ? TO_USER : route_v6(f, ip);
	return type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD) ? PASS_VLAN : PASS_ETHERTYPE;
}

#endif
