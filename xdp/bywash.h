/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Definitions shared by the XDP program and the process that loads it. The Rust side is crates/port/src/af_xdp/abi.rs;
 * a test there compares the lists below with its own. */
#ifndef BYWASH_H
#define BYWASH_H

/* Verdict on a frame: index into the counters. */
enum bywash_reason {
	TO_USER,          /* redirected to the queue's socket */
	PASS_DISABLED,    /* the port is not taken over (yet, or any more) */
	PASS_NO_SOCKET,   /* meant for user space, but no socket on this queue */
	PASS_NOT_MINE,    /* unicast to another station's MAC address */
	PASS_VLAN,        /* a tag left to the kernel: of a VLAN without an entry (vlan.h), or a second one */
	PASS_ETHERTYPE,   /* neither IPv4 nor IPv6 */
	PASS_OPTIONS,     /* IPv4 options, IPv6 hop-by-hop options */
	PASS_LOCAL,       /* to one of the host's own addresses */
	PASS_MULTICAST,   /* multicast or broadcast, MAC or IP */
	PASS_LINK_LOCAL,  /* link-local source or destination */
	PASS_RESERVED,    /* 0/8, 127/8, ::, ::1 */
	PASS_SUPERFRAME,  /* longer than the port's max_frame: GSO frames, jumbo frames */
	PASS_SHORT,       /* no whole Ethernet header */
	PASS_ROUTE,       /* the egress interface is not a port */
	PASS_RETURNED,    /* returned to the kernel by user space (inject.bpf.c) */
	TO_PORT,          /* routed by this program to another port's device */
	PASS_POLICY,      /* a kernel policy applies to it: firewall, rule, IPsec, qdisc, forwarding switch */
	PASS_EXCEPTION,   /* left to the kernel: needs user space, which traffic control cannot reach */
	DROP_PORT_GONE,   /* forwarded by this program, but the egress device has just disappeared */
	DROP_CPU_BUSY,    /* forwarded by this program, but the queue to the CPU that sends it was full */
	PASS_SOURCE,      /* the kernel must validate this source address on this port */
	TO_PROGRAM,       /* sent or redirected by the port's own program */
	DROP_PROGRAM,     /* dropped by the port's own program */
	PASS_STATION,     /* from a station that the bridge has yet to learn, or has to hear again */
	TO_MEMBER,        /* forwarded unchanged by this program to another member of the bridge */
	PASS_BRIDGED,     /* to another member, but left to the kernel: ARP, neighbour discovery, too long */
	PASS_UNFINISHED,  /* only the kernel can finish it: perhaps several datagrams, or a checksum within a tunnel */
	BYWASH_REASONS,
};

/* Returned by a stage that has no verdict: the next stage handles the frame. */
#define NEXT (-1)

enum bywash_flag {
	BYWASH_ENABLED = 1 << 0, /* if unset, all frames are passed, unless flows, rules or a bridge take its place */
	BYWASH_FORWARD = 1 << 1,  /* the program forwards what it can */
	BYWASH_PARTIAL = 1 << 2, /* checksums may be unfinished; the mark that says so is lost in a redirect */
	BYWASH_RAW = 1 << 3,     /* a switch's port: every frame that fits goes to user space */
	BYWASH_KERNEL4 = 1 << 6, /* IPv4 packets are passed to the kernel */
	BYWASH_KERNEL6 = 1 << 7, /* IPv6 packets are passed to the kernel */
	BYWASH_DEFRAG = 1 << 10, /* fragments are passed to the kernel, which reassembles them */
	BYWASH_NATIVE = 1 << 5,  /* XDP runs in the driver: only devices that take redirected frames are targets */
	BYWASH_REDIRECTS = 1 << 4, /* packets that would leave by their ingress port go to user space for a redirect */
	BYWASH_RPF_LOOSE = 1 << 8,  /* an IPv4 source must have a unicast route (rp_filter 2) */
	BYWASH_RPF_STRICT = 1 << 9, /* that route must lead out of the ingress port (rp_filter 1) */
	BYWASH_L3_HASH4 = 1 << 11, /* a group's member is selected by addresses only (fib_multipath_hash_policy 0) */
	BYWASH_L3_HASH6 = 1 << 12, /* the same for IPv6, with flow label and next header */
	BYWASH_FLOWS4 = 1 << 13, /* with BYWASH_KERNEL4, not BYWASH_ENABLED: all but packets of flows are passed */
	BYWASH_FLOWS6 = 1 << 14, /* the same for IPv6 */
	BYWASH_RULES = 1 << 15,  /* policy routing rules decide, too; never set with BYWASH_FORWARD */
};

/* Flags of egress and ingress ports under policy routing rules (rules.h), of bridge members, of ports with macvlans, and
 * of generic XDP. */
enum bywash_sending {
	BYWASH_TARGET = 1 << 0,       /* packets may be sent on the port */
	BYWASH_TAKES_FRAMES = 1 << 1, /* its device takes redirected frames */
	BYWASH_KEPT4 = 1 << 2,        /* only the kernel may send IPv4 packets on it */
	BYWASH_KEPT6 = 1 << 3,        /* only the kernel may send IPv6 packets on it */
	BYWASH_BY_RULES = 1 << 4,     /* with BYWASH_RULES, not BYWASH_ENABLED: forwards what the port receives */
	BYWASH_KEEPS = 1 << 5,        /* the kernel's answers are cached: they depend on a packet's addresses alone */
	BYWASH_BRIDGED = 1 << 6,      /* instead of BYWASH_ENABLED: the port is a bridge's member (bridge.h) */
	BYWASH_MACVLANS = 1 << 7,     /* the port has macvlans, with addresses of their own (vlan.h) */
	BYWASH_FILTERS = 1 << 8,      /* with BYWASH_BRIDGED: the bridge filters VLANs */
	BYWASH_CHUNKS = 1 << 9,       /* generic XDP, and checksums may be unfinished: UDP may be several datagrams */
};

/* Defines an array map of `entries` values that the process maps into its memory. */
#define MAPPED(name, entries, of) struct { \
	__uint(type, BPF_MAP_TYPE_ARRAY); \
	__uint(map_flags, BPF_F_MMAPABLE); \
	__uint(max_entries, entries); \
	__type(key, __u32); \
	__type(value, of); \
} name SEC(".maps")

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
/* Keeps a rarely taken exit in a block of its own. Otherwise the compiler copies the values that the exit needs before
 * each test that leads to it, and common packets pay for that. */
#define rare_path() asm volatile("")

#define BYWASH_PORTS 64    /* ports of a process */
#define BYWASH_ENDS 1536   /* ends of tunnels */
#define BYWASH_VLANS 192   /* VLANs and bridges of a process, numbered from BYWASH_PORTS on */
#define BYWASH_TAGS 512    /* slots for VLANs by tag: a power of two */
#define BYWASH_STATIONS 2048 /* places for stations of bridges, each with room for seven */
#define BYWASH_PROBES 4    /* slots of `ports` that may hold a port, from its interface index on */
#define BYWASH_QUEUES 256  /* queues of a port */
#define BYWASH_HOPS 16384  /* next hops in one version of the table */
#define BYWASH_BUCKETS 65536 /* group members in one version of the table */
#define BYWASH_DST_CACHE4 32768 /* IPv4 destinations cached for a CPU: 1 MiB */
#define BYWASH_DST_CACHE6 16384 /* IPv6 destinations cached for a CPU: 1 MiB */
#define BYWASH_DST_CACHE_CPUS 64 /* CPUs with caches of their own; further CPUs share */
#define BYWASH_FLOWS 4096 /* flows of a switch's worker, and hash buckets for them */
#define BYWASH_FLOW_MASKS 8 /* masks in a worker's flow lookup */
#define BYWASH_PORT_CPUS 64  /* maximum number of CPUs that send for a port */
#define BYWASH_SEGMENT (1 << 18)  /* 64-bit words in a segment of a table's memory */
#define BYWASH_SEGMENTS 256

/* A port, or a VLAN that it carries. */
struct bywash_port {
	__u8 mac[6];
	__u16 flags;     /* enum bywash_flag; in one word with the MAC address */
	__u32 max_frame; /* longest frame for user space in bytes, Ethernet header included */
	__u32 ifindex;   /* the port's; 0: unused slot */
	__u16 id;        /* the port's, below BYWASH_PORTS; the key in `devices`, and of its counters */
	__u16 cpus;      /* number of CPUs that send the frames forwarded from this port; 0: the receiving CPU sends */
	__u16 route_id;  /* number of the interface: the port's id, or the number of its VLAN or bridge */
	__u16 sending;   /* enum bywash_sending */
	__u64 version;   /* of the next hops and the routes to them; the same in every port */
	__u64 own;       /* filter of the host's IPv4 addresses (own_bit in forward.h); the same in every port */
	/* Bit n: frames to port n, another member of its bridge, are forwarded (bridge.h). The port's own bit: user
	 * space takes frames to VXLANs in the bridge. */
	__u64 members;
	__u32 longest;   /* longest frame to another port in bytes, Ethernet header included */
	__u32 through;   /* longest frame to a VXLAN */
	__u32 pad[2];    /* to a cache line */
} __attribute__((aligned(64)));

/* Treatment of a packet whose route leads to this next hop. */
enum bywash_kind {
	HOP_USER,    /* left to user space */
	HOP_FORWARD, /* rewrite the MAC addresses and send */
	HOP_GROUP,   /* a group: select a member by flow hash */
	HOP_VLAN,    /* like HOP_FORWARD, but with a tag, or by a macvlan */
	HOP_BOND,    /* like HOP_VLAN, but by the member of a bond that a hash selects (bond.h) */
	HOP_LOCAL,   /* an address of the host */
	HOP_KERNEL,  /* the egress interface is not a port */
	HOP_POLICY,  /* a kernel policy applies to packets to this destination */
};

#define HOP_TAKES_FRAMES 1 /* its device takes redirected frames */
#define HOP_UNICAST 2      /* belongs to a unicast route by `port`, whatever the neighbour's state */
#define HOP_THROUGH 4      /* through a tunnel: user space encapsulates */

struct bywash_hop {
	__u8 macs[12];
	__u8 kind;
	__u8 flags; /* HOP_TAKES_FRAMES, HOP_UNICAST, HOP_THROUGH */
	__u16 port;    /* of a VLAN or bond: its number */
	__u32 mtu;
	/* Group: first bucket. VLAN: its port. Bond: bucket with the first of its ports. Local: 1 if there are tunnels
	 * over IPv4, plus 2 if there are tunnels over IPv6. */
	__u32 first;
	__u32 count;   /* group: number of buckets; VLAN or bond: the tag, 0 for none */
	__u32 ifindex; /* of the port; bond: number of its ports, and from bit 16 on their hash policy */
} __attribute__((aligned(8)));

/* Header fields of a packet that came through a tunnel, by which the tunnel is found. */
struct bywash_end {
	__be32 remote[4]; /* an IPv4 address in the first word; 0 for VXLAN, which may have several */
	__be32 local[4];
	__be32 key;       /* key of GRE, or network identifier of VXLAN */
	__be16 port;      /* destination port of VXLAN */
	__u8 protocol;
	__u8 flags;       /* END_KEYED to END_SUMMED */
};

#define END_KEYED 1
#define END_V6 2
#define END_ETHERNET 4 /* Ethernet frames in GRE */
#define END_SUMMED 8   /* GRE with a checksum */

/* A tunnel whose packets user space forwards. */
struct bywash_through {
	__u64 takes; /* of Ethernet: destination MAC address of frames to route, in packet order; END_* */
	/* Number of the only interface that receives its packets, plus one; 0: any. For a tunnel's frames to other
	 * addresses, which its bridge forwards: END_LEARNS, both or no END_OPEN*, both or no END_FLOWS*. */
	__u64 link;
	__u64 members; /* bit n: such frames may leave by port n */
};

#define END_NUMBER 48 /* number of the interface that receives the inner packets */
#define END_NUMBERS 0xfff
#define END_LEARNS (1ull << 16) /* the kernel learns the sources of such frames */
#define END_OPEN4 (1ull << 60)  /* user space takes all IPv4 packets, if the gate of the port is open */
#define END_OPEN6 (1ull << 61)
#define END_FLOWS4 (1ull << 62) /* takes those of flows, or all with END_OPEN4, also if that gate is closed */
#define END_FLOWS6 (1ull << 63)
#define END_FLAGS (END_OPEN4 | END_OPEN6 | END_FLOWS4 | END_FLOWS6)

struct bywash_counters {
	__u64 frames[32]; /* by enum bywash_reason; TO_PORT is counted in `port_pairs` */
};

/* Counters, by CPU, of the frames forwarded from one port to another, or by one flow. */
struct bywash_traffic {
	__u64 frames;
	__u64 bytes;
};

#endif
