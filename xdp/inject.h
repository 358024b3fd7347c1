/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* The batch that inject.bpf.c reads, in memory shared with the process. The Rust side is
 * crates/port/src/af_xdp/inject.rs; a test there compares the numbers below with its own. */
#ifndef BYWASH_INJECT_H
#define BYWASH_INJECT_H

#define INJECT_FRAMES 256
#define INJECT_BYTES 262144
#define INJECT_LONGEST 16384

struct inject_frame {
	__u32 at;     /* offset in data */
	__u32 len;    /* with the Ethernet header, without FCS */
	__s32 result; /* the kernel's result: 0 if accepted */
	__u32 reserved;
};

struct inject_batch {
	__u32 count;
	__u32 ifindex;
	__u32 flags; /* of bpf_clone_redirect: 0 sends, BPF_F_INGRESS receives */
	__u32 queue; /* number of the transmit queue, plus 1; 0: the kernel chooses by flow */
	struct inject_frame frames[INJECT_FRAMES];
	__u8 data[INJECT_BYTES];
};

#endif
