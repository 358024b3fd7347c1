// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* For benchmarks, run by BPF_PROG_TEST_RUN: each run gives the packet another head, then continues in the program that
 * is measured, or in one that does nothing. The difference of the two times is the cost of the program. */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define HEADS 4096
#define HEAD 64

struct head {
	__u64 words[HEAD / 8];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HEADS);
	__type(key, __u32);
	__type(value, struct head);
} heads SEC(".maps");

/* Index of the next head, and number of heads. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} cursor SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} measured SEC(".maps");

SEC("xdp.frags")
int rotate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	__u32 zero = 0, one = 1;
	__u32 *next = bpf_map_lookup_elem(&cursor, &zero), *count = bpf_map_lookup_elem(&cursor, &one);

	if (!next || !count || data + HEAD > end)
		return XDP_ABORTED;
	__u32 at = *next;
	*next = at + 1 < *count ? at + 1 : 0;
	struct head *head = bpf_map_lookup_elem(&heads, &at);
	if (!head)
		return XDP_ABORTED;
	__builtin_memcpy(data, head, HEAD);
	bpf_tail_call(ctx, &measured, 0);
	return XDP_ABORTED;
}

SEC("xdp.frags")
int nothing(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
