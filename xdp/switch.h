/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Handling of a frame at a switch's port: it is forwarded by a flow that a worker has put into its table, or handed to
 * user space. These flows come from the workers' own megaflow caches (crates/flow/src/app/driver.rs); the program makes
 * no decision of its own.
 *
 * Only the worker itself writes its table. An entry is complete before a bucket refers to it. Except for its
 * generation, it is not written again as long as a program may still use a reference to it that it read from the bucket
 * earlier. */
#ifndef BYWASH_SWITCH_H
#define BYWASH_SWITCH_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"
#include "checksum.h"

/* Action on the outer VLAN tag. */
enum bywash_tag {
	TAG_KEEP,
	TAG_POP,
	TAG_SET,  /* its priority and VLAN */
	TAG_PUSH,
	TAG_SWAP, /* its type as well */
};

/* Key layout of crates/flow/src/key.rs, as far as TCP and UDP need it; the port is the program's port number. */
#define KEY_WORDS 9
#define KEY_WORDS4 5 /* words that IPv4 uses */
#define KEY_TAGGED bpf_htons(0x1000)
#define KEY_VALID 0x80
#define KEY_8100 1
#define KEY_88A8 2

struct field {
	__u64 value, mask;
};

/* A flow in a worker's table. */
struct bywash_flow {
	__u64 generation; /* generation of the tables for which the flow has been checked */
	__u16 to;         /* the port it leaves by */
	__u8 tag;         /* enum bywash_tag */
	__u8 ttl;         /* subtracted from the TTL, which the match guarantees to be larger */
	__u16 tpid;       /* this and `tci`: as in the frame */
	__u16 tci;
	struct field match[KEY_WORDS4];
	__u64 macs[2]; /* new bits in the key's first two words */
	__u64 keep[2]; /* mask of the bits that stay */
	struct field match6[KEY_WORDS - KEY_WORDS4];
};

/* A worker's lookup parameters: the masks of its flows, and the factors of the hash. */
struct bywash_flow_masks {
	__u64 n;
	__u64 flows; /* flows of all workers, which is the number of counters of each CPU */
	__u64 factors[KEY_WORDS];
	__u64 words[BYWASH_FLOW_MASKS][KEY_WORDS];
};

/* Flows with one hash; each slot has a tag in the upper half, and in the lower half a flow number, counted from 1. */
struct bywash_flow_bucket {
	__u64 slots[4];
};

/* The loader sizes these maps for all workers. */
MAPPED(flow_masks, 1, struct bywash_flow_masks);

MAPPED(flow_buckets, BYWASH_FLOWS, struct bywash_flow_bucket);

MAPPED(flows, BYWASH_FLOWS, struct bywash_flow);

/* Counters of each flow, by CPU. */
MAPPED(flow_counts, BYWASH_FLOWS, struct bywash_traffic);

/* Worker that serves each port and queue, counted from 1. */
MAPPED(serving, BYWASH_PORTS * BYWASH_QUEUES, __u64);

/* Longest redirected frame that each port's device takes, in bytes; 0: none. */
MAPPED(targets, BYWASH_PORTS, __u64);

/* Bytes by which frames have grown or shrunk by VLAN tags, by CPU and egress port. The loader sizes the map for all
 * CPUs. */
MAPPED(grown, BYWASH_PORTS, __u64);

struct frame {
	struct xdp_md *ctx;
	const struct bywash_port *port;
	void *data;
	void *end;
	__u32 bytes;
	__u32 flags;
	__u32 to;   /* egress port, set by the lookup */
	__u32 flow; /* the matching flow */
	__u32 flows;
	int grows;
};

/* A packet's fields for the lookup. */
struct packet {
	__u64 key[KEY_WORDS];
	__u32 l3;
	int v6;
	int tagged;
};

static __always_inline __u64 six_and(__u64 six, __u16 two)
{
	return (six & 0xffffffffffffull) | (__u64)two << 48;
}

/* Reads the transport fields at `l4`, which is `after` bytes into the frame and has `len` bytes. Called on each
 * family's own path: the verifier of Linux 6.1 does not track that a packet of one family is not of the other later. */
static __always_inline int read_transport(const struct frame *f, struct packet *p, __u8 proto, const __u8 *l4,
					  __u32 after, __u32 len, const void *addresses, int words)
{
	__u64 flags = 0;

	/* A negative length is, unsigned, larger than any frame. */
	if (len > f->bytes || after + len > f->bytes)
		return 0;
	if (proto == IPPROTO_TCP) {
		if ((void *)l4 + sizeof(struct tcphdr) > f->end || l4[12] >> 4 < 5 || (__u32)(l4[12] >> 4) * 4 > len)
			return 0;
		flags = (l4[12] & 15) | (__u64)l4[13] << 8;
	} else if (proto != IPPROTO_UDP || (void *)l4 + sizeof(struct udphdr) > f->end || len < sizeof(struct udphdr)) {
		return 0;
	}
	if (f->flags & BYWASH_PARTIAL && (unfinished(proto, l4, f->end, len, addresses, words) ||
					  (proto == IPPROTO_UDP && unfinished_within(l4, f->end))))
		return 0;
	p->key[2] |= bpf_htons(f->port->id) | (__u64)proto << 32 | (__u64)KEY_VALID << 40 | flags << 48;
	p->key[3] |= *(const __u32 *)l4;
	return 1;
}

/* Reads the packet's fields like `extract` in crates/flow/src/extract.rs. Returns 0 for packets other than unfragmented
 * TCP or UDP without IP options and extension headers. */
static __always_inline int read_packet(const struct frame *f, struct packet *p)
{
	const __u8 *eth = f->data, *ip;
	__u16 type = *(const __u16 *)(eth + 12), tci = 0;
	__u64 tpid = 0;

	p->l3 = ETH_HLEN;
	p->tagged = type == bpf_htons(ETH_P_8021Q) || type == bpf_htons(ETH_P_8021AD);
	if (p->tagged) {
		if (f->data + ETH_HLEN + 4 > f->end)
			return 0;
		tpid = type == bpf_htons(ETH_P_8021Q) ? KEY_8100 : KEY_88A8;
		tci = *(const __u16 *)(eth + 14) | KEY_TAGGED;
		type = *(const __u16 *)(eth + 16);
		p->l3 += 4;
	}
	p->key[0] = six_and(*(const __u64 *)eth, tci);
	p->key[1] = six_and(*(const __u64 *)(eth + 6), type);
	/* The offset is constant in either case, so that the verifier knows it. */
	ip = p->tagged ? eth + ETH_HLEN + 4 : eth + ETH_HLEN;
	p->v6 = type == bpf_htons(ETH_P_IPV6);
	if (p->v6) {
		const struct ipv6hdr *ip6 = (const void *)ip;

		if ((void *)(ip6 + 1) > f->end || ip6->version != 6)
			return 0;
		p->key[2] = (__u64)(__u8)(ip[0] << 4 | ip[1] >> 4) << 16 | (__u64)ip6->hop_limit << 24;
		p->key[3] = tpid << 32 | (__u64)(ip[1] & 15) << 40 | (__u64)*(const __u16 *)(ip + 2) << 48;
		p->key[4] = 0;
		for (int i = 0; i < KEY_WORDS - KEY_WORDS4; i++)
			p->key[KEY_WORDS4 + i] = *(const __u64 *)(ip + 8 + 8 * i);
		return read_transport(f, p, ip6->nexthdr, (const void *)(ip6 + 1), p->l3 + sizeof(*ip6),
				      bpf_ntohs(ip6->payload_len), &ip6->saddr, 8);
	}
	const struct iphdr *ip4 = (const void *)ip;

	if (type != bpf_htons(ETH_P_IP) || (void *)(ip4 + 1) > f->end || ip[0] != 0x45 ||
	    ip4->frag_off & bpf_htons(0x3fff))
		return 0;
	p->key[2] = (__u64)ip4->tos << 16 | (__u64)ip4->ttl << 24;
	p->key[3] = tpid << 32;
	p->key[4] = *(const __u64 *)(ip + 12);
	/* Never read; initialised for the verifier of Linux 6.1. */
	for (int i = KEY_WORDS4; i < KEY_WORDS; i++)
		p->key[i] = 0;
	return read_transport(f, p, ip4->protocol, (const void *)(ip4 + 1), p->l3 + sizeof(*ip4),
			      bpf_ntohs(ip4->tot_len) - (__u32)sizeof(*ip4), &ip4->saddr, 2);
}

static __always_inline __u64 hash(const struct packet *p, const __u64 *mask, const __u64 *factors)
{
	__u64 h = 0;

	for (int i = 0; i < KEY_WORDS4; i++)
		h += (p->key[i] & mask[i]) * factors[i];
	if (p->v6)
		for (int i = KEY_WORDS4; i < KEY_WORDS; i++)
			h += (p->key[i] & mask[i]) * factors[i];
	return h;
}

/* Compares by the flow's own mask, since the worker's mask may have been overwritten while it was read. Flows always
 * match the Ethernet type, so a flow of IPv6 never matches an IPv4 packet. */
static __always_inline int matches(const struct bywash_flow *flow, const struct packet *p)
{
	__u64 d = 0;

	for (int i = 0; i < KEY_WORDS4; i++)
		d |= (p->key[i] & flow->match[i].mask) ^ flow->match[i].value;
	if (p->v6)
		for (int i = 0; i < KEY_WORDS - KEY_WORDS4; i++)
			d |= (p->key[KEY_WORDS4 + i] & flow->match6[i].mask) ^ flow->match6[i].value;
	return !d;
}

static __always_inline const struct bywash_flow *find(struct frame *f, const struct packet *p, __u32 worker)
{
	const struct bywash_flow_masks *masks = bpf_map_lookup_elem(&flow_masks, &worker);

	if (!masks)
		return NULL;
	f->flows = masks->flows;
	for (__u32 i = 0; i < BYWASH_FLOW_MASKS; i++) {
		if (i >= masks->n)
			break;
		__u64 h = hash(p, masks->words[i], masks->factors);
		__u32 tag = h >> 20 | 1, at = 0, key = worker * BYWASH_FLOWS + (h >> 52);
		const volatile struct bywash_flow_bucket *bucket = bpf_map_lookup_elem(&flow_buckets, &key);

		_Static_assert(BYWASH_FLOWS == 1 << (64 - 52), "the hash's highest bits");
		if (!bucket)
			return NULL;
		for (int s = 0; s < 4; s++) {
			__u64 slot = bucket->slots[s];
			if (slot >> 32 == tag)
				at = slot;
		}
		if (!at)
			continue;
		f->flow = at - 1;
		const struct bywash_flow *flow = bpf_map_lookup_elem(&flows, &f->flow);
		if (flow && matches(flow, p))
			return flow;
	}
	return NULL;
}

/* Rewrites the frame. Returns NEXT; if it fails, the verdict, and the frame is unchanged. */
static __always_inline int rewrite(struct frame *f, const struct bywash_flow *flow, const struct packet *p)
{
	__u8 tag = flow->tag;
	__u32 l3 = p->l3;
	__u8 *eth = f->data;
	__u64 dst = *(const __u64 *)eth, src = *(const __u64 *)(eth + 6);

	if (tag == TAG_PUSH) {
		f->grows = 4;
		if (bpf_xdp_adjust_head(f->ctx, -4))
			return TO_USER;
	} else if (tag == TAG_POP) {
		f->grows = -4;
		if (bpf_xdp_adjust_head(f->ctx, 4))
			return TO_USER;
	}
	/* Reloaded in any case, so that the verifier need not know whether the head moved. */
	eth = (void *)(long)f->ctx->data;
	f->end = (void *)(long)f->ctx->data_end;
	l3 = (l3 + f->grows) & 31;
	__u8 *ip = eth + l3;
	/* Never true, since the frame had this length before; the verifier needs the check. */
	if ((void *)ip + 20 > f->end || (void *)eth + 20 > f->end)
		return DROP_PORT_GONE;
	dst = (dst & flow->keep[0]) | flow->macs[0];
	src = (src & flow->keep[1]) | flow->macs[1];
	/* Without the two bytes behind the addresses, which may be those of a removed tag. */
	*(__u32 *)eth = dst;
	*(__u16 *)(eth + 4) = dst >> 32;
	*(__u32 *)(eth + 6) = src;
	*(__u16 *)(eth + 10) = src >> 32;
	if (tag == TAG_PUSH || tag == TAG_SWAP)
		*(__u16 *)(eth + 12) = flow->tpid;
	if (tag >= TAG_SET)
		*(__u16 *)(eth + 14) = flow->tci;
	if (flow->ttl) {
		if (p->v6) {
			((struct ipv6hdr *)ip)->hop_limit -= flow->ttl;
		} else {
			lower_ttl((struct iphdr *)ip, flow->ttl);
		}
	}
	return NEXT;
}

static __always_inline void count_flow(const struct frame *f)
{
	__u32 key = bpf_get_smp_processor_id() * f->flows + f->flow;
	struct bywash_traffic *p = bpf_map_lookup_elem(&flow_counts, &key);

	if (likely(p)) {
		p->frames++;
		p->bytes += f->bytes;
	}
}

static __always_inline void count_grown(__u32 to, int by)
{
	__u32 key = bpf_get_smp_processor_id() * BYWASH_PORTS + to;
	__u64 *bytes = by ? bpf_map_lookup_elem(&grown, &key) : NULL;

	if (bytes)
		*bytes += by;
}

static __always_inline int parse(const struct frame *f, __u64 mine)
{
	(void)mine;
	if (unlikely(f->data + ETH_HLEN > f->end))
		return PASS_SHORT;
	return f->flags & BYWASH_FORWARD ? NEXT : TO_USER;
}

static __always_inline int route(struct frame *f)
{
	__u32 key = f->port->id * BYWASH_QUEUES + f->ctx->rx_queue_index;
	struct packet p;

	/* Frames to group addresses and frames of several buffers go to user space. */
	if (*(const __u8 *)f->data & 1 || f->ctx->rx_queue_index >= BYWASH_QUEUES ||
	    bpf_xdp_get_buff_len(f->ctx) != f->bytes)
		return TO_USER;
	const __u64 *worker = bpf_map_lookup_elem(&serving, &key);
	if (!worker || !*worker || !read_packet(f, &p))
		return TO_USER;
	/* Read before the flow, so that a flow found then has been checked for this generation or a later one. */
	__u64 generation = *(const volatile __u64 *)&f->port->version;
	const struct bywash_flow *flow = find(f, &p, *worker - 1);
	if (!flow || *(const volatile __u64 *)&flow->generation != generation)
		return TO_USER;
	f->to = flow->to;
	const __u64 *longest = bpf_map_lookup_elem(&targets, &f->to);
	__u8 tag = flow->tag;
	__u32 len = tag == TAG_PUSH ? f->bytes + 4 : tag == TAG_POP ? f->bytes - 4 : f->bytes;
	if (!longest || len > *longest)
		return TO_USER;
	if (tag != TAG_KEEP && tag != TAG_PUSH && !p.tagged)
		return TO_USER;
	return rewrite(f, flow, &p);
}

#endif
