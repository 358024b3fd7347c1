// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* The live-frame generator's program: run by BPF_PROG_TEST_RUN with BPF_F_TEST_XDP_LIVE_FRAMES, it writes one frame
 * and sends it out of the device the run was started for. The frame pages are recycled, and whoever received one may
 * have rewritten it in place: the headers are written anew every time. */

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define HEAD 60

struct gen {
	__u8 head[64];   /* the frame's first bytes, for flow 0 */
	__u32 flows;     /* destinations: the template's and the flows - 1 behind it */
	__u32 v4;        /* an IPv4 header follows the Ethernet header: vary the destination, keep the checksum right */
	__u32 v6;        /* IPv6: vary the last 32 bits of the destination */
	__u32 next;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gen);
} gen SEC(".maps");

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	__u8 *p = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0;
	struct gen *g = bpf_map_lookup_elem(&gen, &zero);

	if (!g || p + HEAD > end)
		return XDP_ABORTED;
	__builtin_memcpy(p, g->head, HEAD);

	__u32 flow = g->next;
	g->next = flow + 1 < g->flows ? flow + 1 : 0;
	if (g->v4) {
		__u32 dst = bpf_ntohl(*(__u32 *)(p + 30)), to = dst + flow;
		/* RFC 1624: HC' = ~(~HC + ~m + m'). */
		__u32 sum = (__u16)~bpf_ntohs(*(__u16 *)(p + 24));
		sum += (__u16)~(dst >> 16) + (__u16)~dst + (to >> 16) + (to & 0xffff);
		sum = (sum & 0xffff) + (sum >> 16);
		sum = (sum & 0xffff) + (sum >> 16);
		*(__u32 *)(p + 30) = bpf_htonl(to);
		*(__u16 *)(p + 24) = bpf_htons((__u16)~sum);
	} else if (g->v6) {
		__u32 *dst = (__u32 *)(p + 50);
		*dst = bpf_htonl(bpf_ntohl(*dst) + flow);
	}
	return XDP_TX;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
