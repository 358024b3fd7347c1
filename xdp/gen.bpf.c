// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The live-frame generator's program: run by BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, it writes one frame
 * and sends it out of the device the run was started for. The frame pages are recycled, and a receiver may have
 * rewritten a page in place, so the headers are written every time. */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define NULL ((void *)0)
#define HEAD 60
/* Bytes by which the IP packet whose destination is written begins later than in a plain frame. */
#define TAG 4    /* an 802.1Q tag */
#define VXLAN 50 /* Ethernet, IPv4, UDP and VXLAN headers */

struct gen {
	__u8 head[112]; /* the frame's first bytes: HEAD, and `around` more */
	__u32 flows;    /* entries of `flows` in use, at least 1 */
	__u32 v4;       /* an IPv4 header follows 14 bytes after `around`: write destination and checksum */
	__u32 v6;       /* IPv6: write the destination */
	__u32 around;   /* 0, TAG or VXLAN */
	__u32 next;
};

/* Fields that differ from flow to flow, in network order. */
struct flow {
	__u8 dst[16];
	__u8 check[2];
	__u8 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gen);
} gen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set when loaded */
	__type(key, __u32);
	__type(value, struct flow);
} flows SEC(".maps");

/* Writes `around` bytes after the first HEAD, and returns p + around; NULL if the frame is too short. */
static __always_inline __u8 *further(__u8 *p, __u8 *end, struct gen *g, const __u32 around)
{
	if (p + HEAD + around > end)
		return NULL;
	__builtin_memcpy(p + HEAD, g->head + HEAD, around);
	return p + around;
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	__u8 *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0;
	struct gen *g = bpf_map_lookup_elem(&gen, &zero);

	if (!g || p + HEAD > end)
		return XDP_ABORTED;
	__builtin_memcpy(p, g->head, HEAD);
	switch (g->around) {
	case TAG:
		p = further(p, end, g, TAG);
		break;
	case VXLAN:
		p = further(p, end, g, VXLAN);
		break;
	}
	if (!p || p + HEAD > end)
		return XDP_ABORTED;

	__u32 at = g->next;
	g->next = at + 1 < g->flows ? at + 1 : 0;
	struct flow *f = bpf_map_lookup_elem(&flows, &at);
	if (!f)
		return XDP_ABORTED;
	if (g->v4) {
		__builtin_memcpy(p + 30, f->dst, 4);
		__builtin_memcpy(p + 24, f->check, 2);
	} else if (g->v6) {
		__builtin_memcpy(p + 38, f->dst, 16);
	}
	return XDP_TX;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
