// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The program on every AF_XDP port: who gets a frame, the kernel or user space. One instance, with its own maps, per
 * interface. What is the kernel's, or cannot be judged, is passed, and so is everything when the process is gone: a
 * socket's entry in the map goes with it, and the map's default action is XDP_PASS.
 *
 * Stages: parse -> the kernel's? -> user space. A stage returns a reason to pass the frame, or NEXT. */

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include "bywash.h"

#define NEXT (-1)

struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u32);
} xsks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bywash_config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bywash_counters);
} counters SEC(".maps");

/* Addresses of the host, all interfaces; broadcast addresses of its networks among them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u8[4]);
	__type(value, __u8);
} local4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u8[16]);
	__type(value, __u8);
} local6 SEC(".maps");

/* Whose other destinations are, by longest match: local prefixes shorter than an address, and routes whose way out is
 * no port. Most often empty, and then not asked: a lookup takes longer than in a hash map. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bywash_prefix4);
	__type(value, __u8);
} prefix4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct bywash_prefix6);
	__type(value, __u8);
} prefix6 SEC(".maps");

struct frame {
	struct xdp_md *ctx;
	const struct bywash_config *config;
	void *data;
	void *end;
};

static __always_inline __u16 be16(const __u8 *p)
{
	return (__u16)p[0] << 8 | p[1];
}

static __always_inline int owner(const __u8 *found)
{
	return !found || *found == BYWASH_USER ? NEXT : *found;
}

/* An address field in a frame is not aligned for anything wider than a byte once a tag or option shifts it; BPF loads
 * of packet data may be unaligned on the CPUs we build for, and the verifier allows them. */
static __always_inline int local_v4(const struct frame *f, const __u8 *ip)
{
	const __u8 *dst = ip + 16, *src = ip + 12;

	if (dst[0] >= 224 && (dst[0] < 240 || (dst[0] == 255 && dst[1] == 255 && dst[2] == 255 && dst[3] == 255)))
		return PASS_MULTICAST;
	if (dst[0] == 0 || dst[0] == 127 || src[0] == 127)
		return PASS_RESERVED;
	if ((dst[0] == 169 && dst[1] == 254) || (src[0] == 169 && src[1] == 254))
		return PASS_LINK_LOCAL;

	struct bywash_prefix4 key = { .len = 32 };
	__builtin_memcpy(key.addr, dst, 4);
	if (bpf_map_lookup_elem(&local4, key.addr))
		return PASS_LOCAL;
	return f->config->flags & BYWASH_PREFIX4 ? owner(bpf_map_lookup_elem(&prefix4, &key)) : NEXT;
}

static __always_inline int local_v6(const struct frame *f, const __u8 *ip)
{
	const __u8 *dst = ip + 24, *src = ip + 8;

	if (dst[0] == 0xff)
		return PASS_MULTICAST;
	if ((dst[0] == 0xfe && (dst[1] & 0xc0) == 0x80) || (src[0] == 0xfe && (src[1] & 0xc0) == 0x80))
		return PASS_LINK_LOCAL;

	struct bywash_prefix6 key = { .len = 128 };
	__builtin_memcpy(key.addr, dst, 16);
	const __u32 *w = (const __u32 *)key.addr;
	if (!w[0] && !w[1] && !w[2] && (!w[3] || w[3] == bpf_htonl(1)))
		return PASS_RESERVED;
	if (bpf_map_lookup_elem(&local6, key.addr))
		return PASS_LOCAL;
	return f->config->flags & BYWASH_PREFIX6 ? owner(bpf_map_lookup_elem(&prefix6, &key)) : NEXT;
}

/* Link layer: for this port's own address, untagged, and not too long. */
static __always_inline int parse(const struct frame *f)
{
	const __u8 *eth = f->data, *mac = f->config->mac;

	if (f->data + ETH_HLEN > f->end)
		return PASS_SHORT;
	if (bpf_xdp_get_buff_len(f->ctx) > f->config->max_frame)
		return PASS_SUPERFRAME;
	if (f->config->flags & BYWASH_RAW)
		return NEXT;
	if (eth[0] & 1)
		return PASS_MULTICAST;
	if ((eth[0] ^ mac[0]) | (eth[1] ^ mac[1]) | (eth[2] ^ mac[2]) | (eth[3] ^ mac[3]) | (eth[4] ^ mac[4]) |
	    (eth[5] ^ mac[5]))
		return PASS_NOT_MINE;
	/* From ourselves: the injector marks so what user space gave back. Taken again, it would go round for ever. */
	const __u8 *src = eth + ETH_ALEN;
	if (!((src[0] ^ mac[0]) | (src[1] ^ mac[1]) | (src[2] ^ mac[2]) | (src[3] ^ mac[3]) | (src[4] ^ mac[4]) |
	      (src[5] ^ mac[5])))
		return PASS_RETURNED;
	return NEXT;
}

/* Whether the host itself is meant, or a way out of the kernel's. A header too short or too broken to tell goes to user space, which drops it by
 * name. */
static __always_inline int local(const struct frame *f)
{
	const __u8 *eth = f->data, *ip = f->data + ETH_HLEN;

	if (f->config->flags & BYWASH_RAW)
		return NEXT;
	switch (be16(eth + 12)) {
	case ETH_P_IP:
		if (f->data + ETH_HLEN + 20 > f->end || ip[0] >> 4 != 4)
			return NEXT;
		if ((ip[0] & 15) > 5)
			return PASS_OPTIONS;
		return local_v4(f, ip);
	case ETH_P_IPV6:
		if (f->data + ETH_HLEN + 40 > f->end || ip[0] >> 4 != 6)
			return NEXT;
		if (ip[6] == 0)
			return PASS_OPTIONS;
		return local_v6(f, ip);
	case ETH_P_8021Q:
	case ETH_P_8021AD:
		return PASS_VLAN;
	default:
		return PASS_ETHERTYPE;
	}
}

static __always_inline int count(int reason, int verdict)
{
	__u32 zero = 0;
	struct bywash_counters *c = bpf_map_lookup_elem(&counters, &zero);

	if (c)
		c->frames[reason & 15]++;
	return verdict;
}

SEC("xdp.frags")
int bywash(struct xdp_md *ctx)
{
	__u32 zero = 0;
	const struct bywash_config *cfg = bpf_map_lookup_elem(&config, &zero);

	if (!cfg || !(cfg->flags & BYWASH_ENABLED))
		return count(PASS_DISABLED, XDP_PASS);

	struct frame f = {
		.ctx = ctx,
		.config = cfg,
		.data = (void *)(long)ctx->data,
		.end = (void *)(long)ctx->data_end,
	};
	int reason = parse(&f);
	if (reason == NEXT)
		reason = local(&f);
	if (reason != NEXT)
		return count(reason, XDP_PASS);

	if (bpf_redirect_map(&xsks, ctx->rx_queue_index, XDP_PASS) != XDP_REDIRECT)
		return count(PASS_NO_SOCKET, XDP_PASS);
	return count(TO_USER, XDP_REDIRECT);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
