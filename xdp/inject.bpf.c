// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Gives the kernel a batch of frames, to be sent by an interface, or as if the interface had received them. Never
 * attached: run by BPF_PROG_TEST_RUN, whose own packet is overwritten with each frame of the batch in turn and cloned
 * into the interface. Softirqs are off during the run, so the receiver at the other end of a veth runs once a batch,
 * not once a frame. Returns the number of refused frames; the kernel's result is stored with each frame. */

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "inject.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct inject_batch);
} batch SEC(".maps");

struct run {
	struct __sk_buff *skb;
	__u32 refused;
};

/* Returns 0; NET_XMIT_DROP or NET_RX_DROP if a queue of the kernel is full; or a negative errno. */
static __always_inline int one(struct __sk_buff *skb, struct inject_batch *b, const struct inject_frame *f)
{
	__u32 at = f->at, len = f->len;
	int error;

	/* Before 6.8 the verifier learns nothing from len != 0, which is what a check for len < 1 becomes. The bounds
	 * that come from a mask and an addition survive any compiler. */
	len--;
	if (at > INJECT_BYTES - INJECT_LONGEST || len >= INJECT_LONGEST)
		return -22; /* EINVAL */
	barrier_var(len);
	len = (len & (INJECT_LONGEST - 1)) + 1;
	if (skb->len != len) {
		error = bpf_skb_change_tail(skb, len, 0);
		if (error)
			return error;
	}
	error = bpf_skb_store_bytes(skb, 0, b->data + at, len, 0);
	return error ? error : bpf_clone_redirect(skb, b->ifindex, b->flags);
}

/* A callback, so that the verifier examines it once; without CAP_PERFMON a loop's iterations are too many for it. */
static long turn(__u32 i, struct run *run)
{
	__u32 zero = 0;
	struct inject_batch *b = bpf_map_lookup_elem(&batch, &zero);

	if (!b || i >= INJECT_FRAMES)
		return 1;
	b->frames[i].result = one(run->skb, b, &b->frames[i]);
	run->refused += b->frames[i].result != 0;
	return 0;
}

SEC("classifier")
int inject(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct inject_batch *b = bpf_map_lookup_elem(&batch, &zero);
	struct run run = { .skb = skb };

	if (!b)
		return 0;
	/* As if received on this queue: the kernel sends on the queue of the same number (skb_tx_hash), clones
	 * included. */
	skb->queue_mapping = b->queue;
	bpf_loop(b->count, turn, &run, 0);
	return run.refused;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
