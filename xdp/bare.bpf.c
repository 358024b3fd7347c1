// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* For benchmarks: the cheapest way for an XDP program to send a frame (without reading it, one entry in a device map),
 * and the cheapest way to drop one. */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} to SEC(".maps");

SEC("xdp")
int redirect(struct xdp_md *ctx)
{
	(void)ctx;
	return bpf_redirect_map(&to, 0, 0);
}

SEC("xdp")
int drop(struct xdp_md *ctx)
{
	(void)ctx;
	return XDP_DROP;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
