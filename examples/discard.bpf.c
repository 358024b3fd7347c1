// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* A port's own program: drops UDP datagrams to port 9, and passes all else on to Bywash. */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#ifndef PORT
#define PORT 9
#endif

SEC("xdp.frags")
int discard(struct xdp_md *ctx)
{
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct iphdr *ip = (void *)(eth + 1);
	struct udphdr *udp = (void *)(ip + 1);

	if ((void *)(udp + 1) > end || eth->h_proto != bpf_htons(ETH_P_IP) || ip->ihl != 5 || ip->protocol != IPPROTO_UDP)
		return XDP_PASS;
	return udp->dest == bpf_htons(PORT) ? XDP_DROP : XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
