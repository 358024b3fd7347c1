/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* What the XDP program and the process that loads it must agree on. The Rust side is crates/port/src/af_xdp/abi.rs; a test
 * there compares the lists below with its own. */
#ifndef BYWASH_H
#define BYWASH_H

/* Why a frame went where it went: index into the counters. */
enum bywash_reason {
	TO_USER,          /* redirected to the queue's socket */
	PASS_DISABLED,    /* the port is not taken over (yet, or any more) */
	PASS_NO_SOCKET,   /* meant for user space, but no socket on this queue */
	PASS_NOT_MINE,    /* unicast to another station's MAC address */
	PASS_VLAN,        /* tagged */
	PASS_ETHERTYPE,   /* neither IPv4 nor IPv6 */
	PASS_OPTIONS,     /* IPv4 options, IPv6 hop-by-hop options */
	PASS_LOCAL,       /* to one of the host's own addresses */
	PASS_MULTICAST,   /* multicast or broadcast, MAC or IP */
	PASS_LINK_LOCAL,  /* link-local source or destination */
	PASS_RESERVED,    /* 0/8, 127/8, ::, ::1 */
	PASS_SUPERFRAME,  /* longer than user space takes: GSO frames, jumbo frames */
	PASS_SHORT,       /* no whole Ethernet header */
	PASS_ROUTE,       /* its way out is the kernel's: an interface that is no port */
	PASS_RETURNED,    /* user space took it and gave it back (inject.bpf.c) */
	BYWASH_REASONS,
};

enum bywash_flag {
	BYWASH_ENABLED = 1 << 0, /* off: everything is passed */
	BYWASH_PREFIX4 = 1 << 1, /* prefix4 is not empty */
	BYWASH_PREFIX6 = 1 << 2, /* prefix6 is not empty */
	BYWASH_RAW = 1 << 3,     /* no router: every frame that fits goes to user space */
};

/* What prefix4 and prefix6 say of a destination: PASS_LOCAL, PASS_ROUTE, or that it is for user space, which a shorter
 * prefix would deny. */
#define BYWASH_USER 0xff

struct bywash_config {
	__u8 mac[6];
	__u16 flags;
	__u32 max_frame; /* longest frame for user space, Ethernet header included */
	__u32 reserved;
};

struct bywash_counters {
	__u64 frames[16]; /* by enum bywash_reason */
};

struct bywash_prefix4 {
	__u32 len;
	__u8 addr[4];
};

struct bywash_prefix6 {
	__u32 len;
	__u8 addr[16];
};

#endif
