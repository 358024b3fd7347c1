// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Gives a frame to the kernel as if an interface had received it: run by BPF_PROG_TEST_RUN with the frame as its data
 * and the interface's index in cb[0]. The test run throws its own packet away; the clone is real. Returns what the
 * kernel said: 0, 1 where its backlog is full (NET_RX_DROP), or a negative errno. */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("classifier")
int inject(struct __sk_buff *skb)
{
	return bpf_clone_redirect(skb, skb->cb[0], BPF_F_INGRESS);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
