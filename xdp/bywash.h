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
	TO_PORT,          /* forwarded here, by another port's device */
	PASS_POLICY,      /* a policy of the kernel's concerns it: firewall, rule, IPsec, qdisc, switch */
	PASS_EXCEPTION,   /* needs more than forwarding, and there is no user space at this level: the kernel does it */
	DROP_PORT_GONE,   /* forwarded here, but the device has just gone */
	DROP_CPU_BUSY,    /* forwarded here, but the CPU that was to send it has too many to send */
	PASS_SOURCE,      /* the kernel has to say whether it takes a packet with this source on this port */
	BYWASH_REASONS,
};

/* What a stage returns when there is no such reason: the next one has it. */
#define NEXT (-1)

enum bywash_flag {
	BYWASH_ENABLED = 1 << 0, /* off: everything is passed */
	BYWASH_DRIVER = 1 << 1,  /* what can be is forwarded here */
	BYWASH_PARTIAL = 1 << 2, /* a frame may carry an unfinished checksum, and loses that mark when it is redirected */
	BYWASH_RAW = 1 << 3,     /* no router: every frame that fits goes to user space */
	BYWASH_KERNEL4 = 1 << 6, /* IPv4 packets are the kernel's */
	BYWASH_KERNEL6 = 1 << 7, /* IPv6 packets are the kernel's */
	BYWASH_DEFRAG = 1 << 10, /* fragments are the kernel's: it reassembles them */
	BYWASH_NATIVE = 1 << 5,  /* XDP runs in the driver: its frames go by devices that take such frames only */
	BYWASH_REDIRECTS = 1 << 4, /* what would leave by the port it came from is for user space, which tells the sender */
	BYWASH_RPF_LOOSE = 1 << 8,  /* an IPv4 source must have a unicast route (rp_filter 2) */
	BYWASH_RPF_STRICT = 1 << 9, /* it must lead back by the port (rp_filter 1) */
	BYWASH_L3_HASH4 = 1 << 11, /* a group's member is chosen by addresses only (fib_multipath_hash_policy 0) */
	BYWASH_L3_HASH6 = 1 << 12, /* the same of IPv6, with flow label and next header */
};

/* An array of so many that the process maps. */
#define MAPPED(name, entries, of) struct { \
	__uint(type, BPF_MAP_TYPE_ARRAY); \
	__uint(map_flags, BPF_F_MMAPABLE); \
	__uint(max_entries, entries); \
	__type(key, __u32); \
	__type(value, of); \
} name SEC(".maps")

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define BYWASH_PORTS 64    /* ports of a process */
#define BYWASH_PROBES 4    /* places a port may have in the table of ports, from its interface index on */
#define BYWASH_QUEUES 256  /* queues of a port */
#define BYWASH_HOPS 16384  /* next hops in one version */
#define BYWASH_BUCKETS 65536 /* members of groups in one version */
#define BYWASH_KNOWN4 32768 /* IPv4 destinations that a CPU remembers: 1 MiB */
#define BYWASH_KNOWN6 16384 /* IPv6 ones: 1 MiB */
#define BYWASH_KNOWN_CPUS 64 /* beyond these, CPUs share */
#define BYWASH_FLOWS 4096 /* flows of a switch's worker, and buckets they are found in */
#define BYWASH_FLOW_MASKS 8 /* masks they are looked up by */
#define BYWASH_SPREAD 64  /* CPUs that send for a port */
#define BYWASH_SEGMENT (1 << 18)  /* 64-bit words in a segment of a table's memory */
#define BYWASH_SEGMENTS 256

struct bywash_port {
	__u8 mac[6];
	__u16 flags;     /* in one word with the MAC address */
	__u32 max_frame; /* longest frame for user space, Ethernet header included */
	__u32 ifindex;   /* 0: no port */
	__u16 id;        /* below BYWASH_PORTS; the key in `devices`, and of its counters */
	__u16 spread;    /* CPUs that send for it what it receives and is forwarded here; 0: the one that received it */
	__u16 reserved[2];
	__u64 version;   /* of the next hops, and of the routes to them: the same with every port */
	__u64 own;       /* the host's IPv4 addresses, a bit each (own_bit in forward.h): the same with every port */
	__u64 pad[3];    /* to a cache line */
} __attribute__((aligned(64)));

/* What becomes of a packet whose route led here. */
enum bywash_kind {
	HOP_USER,    /* user space knows */
	HOP_FORWARD, /* rewrite the MAC addresses and send */
	HOP_GROUP,   /* one of several: choose by flow hash */
	HOP_LOCAL,   /* an address of the host */
	HOP_KERNEL,  /* its way out is an interface that is no port */
	HOP_POLICY,  /* a policy of the kernel's concerns what goes there */
};

#define HOP_TAKES_FRAMES 1 /* its device takes redirected frames */
#define HOP_UNICAST 2      /* of a unicast route by `port`, whatever its neighbour's state */

struct bywash_hop {
	__u8 macs[12];
	__u8 kind;
	__u8 flags; /* HOP_TAKES_FRAMES, HOP_UNICAST */
	__u16 port;
	__u32 mtu;
	__u32 first; /* of a group: its buckets */
	__u32 count;
	__u32 ifindex; /* the port's */
} __attribute__((aligned(8)));

struct bywash_counters {
	__u64 frames[32]; /* by enum bywash_reason, but for TO_PORT */
};

/* Forwarded from one port to another, by one CPU. */
struct bywash_passage {
	__u64 frames;
	__u64 bytes;
};

#endif
