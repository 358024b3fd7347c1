//! Every key of the configuration file, once: for did-you-mean, and for docs/config.md.

use super::model::{Mode, PortKind};
use std::fmt::Write;

/// A key, documented.
pub struct Key {
    pub name: &'static str,
    /// What it takes, in words.
    pub takes: &'static str,
    /// Its default: TOML, or words in parentheses.
    pub default: &'static str,
    /// Its unit; empty: none.
    pub unit: &'static str,
    pub doc: &'static str,
    /// A value that is not the default, as TOML.
    pub example: &'static str,
    /// The kinds of port it belongs to; empty: all, or not a port's.
    pub kinds: &'static [PortKind],
    /// The mode it belongs to; none: all.
    pub mode: Option<Mode>,
}

/// A table of the file.
pub struct Section {
    /// As in the file: `[pool]`, `[[port]]`.
    pub header: &'static str,
    pub doc: &'static str,
    pub keys: &'static [Key],
}

const fn key(name: &'static str, takes: &'static str, default: &'static str, unit: &'static str) -> Key {
    Key { name, takes, default, unit, doc: "", example: "", kinds: &[], mode: None }
}

impl Key {
    const fn doc(self, doc: &'static str) -> Self {
        Self { doc, ..self }
    }

    const fn example(self, example: &'static str) -> Self {
        Self { example, ..self }
    }

    const fn only(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    const fn of(self, kinds: &'static [PortKind]) -> Self {
        Self { kinds, ..self }
    }
}

const AF_XDP: &[PortKind] = &[PortKind::AfXdp];
const PCAP: &[PortKind] = &[PortKind::Pcap];
const MEMIF: &[PortKind] = &[PortKind::Memif];
const DPDK: &[PortKind] = &[PortKind::Dpdk];

/// What stands above all tables.
pub static TOP: Section = Section {
    header: "",
    doc: "What stands above the tables.",
    keys: &[
        key("mode", "`\"router\"`, `\"switch\"`, `\"cmts\"`", "\"router\"", "")
        .doc(
            "What the program is. `router`: it forwards packets by the kernel's own routes and neighbours. `switch`: it \
             forwards frames by flows, of which the learning bridge is one; every frame its ports receive is its own. `cmts`: the downstream of a \
             cable modem termination system.",
        )
        .example("\"switch\""),
        key("sandbox", "`\"on\"`, `\"off\"`", "\"on\"", "")
            .doc(
                "Whether it gives up, once it listens, all privileges but those listed in the user guide, and all system \
                 calls but those it uses. `bywash show sandbox` has what is left. Root, too, reads and writes then only \
                 what its owner's mode bits allow. With ports of kind `dpdk` it is always off: their drivers need more.",
            )
            .example("\"off\""),
    ],
};

pub static SWITCH: Section = Section {
    header: "[switch]",
    doc: "What a switch forwards by.",
    keys: &[
        key("flows", "a path", "(none)", "")
            .doc(
                "Flows it begins with, one a line, as `ovs-ofctl add-flows` reads them; lines with `group_id=` are groups, \
                 lines with `meter=` meters. Ports are numbered from 1 in their order here, and can be named. Without: \
                 one flow, `priority=0 actions=NORMAL`, the learning bridge.",
            )
            .example("\"/etc/bywash/flows\"")
            .only(Mode::Switch),
        key("macs", "16 to 1000000", "8192", "addresses")
            .doc("Most addresses that are learned; the one not seen for longest makes room for another.")
            .example("65536")
            .only(Mode::Switch),
        key("mac_ageing_s", "1 to 86400", "300", "seconds")
            .doc("How long an address is kept that is not seen any more.")
            .example("60")
            .only(Mode::Switch),
        key("exact", "0 to 1048576", "8192", "keys per worker")
            .doc("Size of the exact-match cache. 0: there is none.")
            .example("0")
            .only(Mode::Switch),
        key("exact_insert", "1 to 1000000", "100", "flows")
            .doc("One in so many flows that are found elsewhere is put in the exact-match cache.")
            .example("1")
            .only(Mode::Switch),
        key("megaflows", "16 to 4000000", "200000", "megaflows per worker")
            .doc("Most megaflows. Beyond them packets are taken through the tables, each by itself.")
            .example("10000")
            .only(Mode::Switch),
        key("megaflow_idle_s", "1 to 3600", "10", "seconds")
            .doc("How long a megaflow is kept that no packet uses.")
            .example("30")
            .only(Mode::Switch),
    ],
};

pub static CMTS: Section = Section {
    header: "[cmts]",
    doc: "What a cable downstream does to frames, in every group.",
    keys: &[
        key("crc", "`true`, `false`", "true", "")
            .doc("Whether the CRC-32 is put behind each PDU.")
            .example("false")
            .only(Mode::Cmts),
        key("cipher", "`true`, `false`", "true", "")
            .doc("Whether PDUs are enciphered: AES-128, CBC with residual block termination (BPI+).")
            .example("false")
            .only(Mode::Cmts),
        key("crypto", "`\"auto\"`, `\"ipsec-mb\"`, `\"portable\"`", "\"auto\"", "")
            .doc("Who seals. `auto`: libipsec-mb where it is installed, else portable code; `bywash show channels` says which.")
            .example("\"portable\"")
            .only(Mode::Cmts),
        key("assist", "`true`, `false`", "true", "")
            .doc("Whether the upper MAC's worker seals as well while 128 frames or more wait for the lower MAC's.")
            .example("false")
            .only(Mode::Cmts),
        key("queue", "1 to 65536", "256", "frames")
            .doc("What the queue of one service flow holds.")
            .example("64")
            .only(Mode::Cmts),
        key("queues", "64 to 1048576", "8192", "frames")
            .doc("What all queues of a group hold together.")
            .example("1024")
            .only(Mode::Cmts),
        key("overflow", "`\"tail\"`, `\"head\"`", "\"tail\"", "")
            .doc("Which packet is dropped when the queue of a flow is full: the one that came, or the oldest.")
            .example("\"head\"")
            .only(Mode::Cmts),
        key("channels", "`\"auto\"`, a rate, a list of them", "\"auto\"", "bit/s")
            .doc("Rates of the OFDM channels of a group; 0: no limit. `auto`: one without limit.")
            .example("[1_890_000_000, 1_890_000_000]")
            .only(Mode::Cmts),
    ],
};

pub static GROUP: Section = Section {
    header: "[[group]]",
    doc: "A service group of a cable downstream. Each has two workers: an upper MAC, which polls its input, and a lower MAC.",
    keys: &[
        key("input", "a port's name", "(required)", "")
            .doc("Where Ethernet frames for its modems come in.")
            .example("\"eth0\"")
            .only(Mode::Cmts),
        key("output", "a port's name", "(required)", "")
            .doc("Where MAC frames leave. What that port receives is dropped.")
            .example("\"cable\"")
            .only(Mode::Cmts),
        key("modems", "1 to 16384", "300", "modems").doc("How many it has.").example("1000").only(Mode::Cmts),
        key("mac", "an address", "\"02:ca:b1:00:00:01\"", "")
            .doc("Address of the first modem; the others' follow. A frame to another address is dropped as `unknown-modem`.")
            .example("\"00:10:18:00:00:00\"")
            .only(Mode::Cmts),
        key("said", "0 to 16383", "1", "").doc("Security association of the first modem; the others' follow.").example("100").only(Mode::Cmts),
        key("key", "32 hex digits", "\"00000000000000000000000000000000\"", "")
            .doc("AES-128 key of the first modem. That of the n-th after it is n, as a block, enciphered with it: for labs, where no key exchange takes place.")
            .example("\"2b7e151628aed2a6abf7158809cf4f3c\"")
            .only(Mode::Cmts),
        key("iv", "32 hex digits", "\"00000000000000000000000000000000\"", "")
            .doc("Initialization vector of the first modem; the others' are derived like their keys.")
            .example("\"000102030405060708090a0b0c0d0e0f\"")
            .only(Mode::Cmts),
        key("depi", "a table", "(none)", "")
            .doc(
                "The remote PHY that MAC frames are sent to, in DEPI (L2TPv3 over IPv4): `{ local = \"192.0.2.1\", local_mac = \
                 \"..\", remote = \"192.0.2.2\", remote_mac = \"..\", session = 1, dscp = 0 }`. Channel n has session + n.",
            )
            .example(
                "{ local = \"192.0.2.1\", local_mac = \"02:00:00:00:00:01\", remote = \"192.0.2.2\", remote_mac = \
                 \"02:00:00:00:00:02\" }",
            )
            .only(Mode::Cmts),
    ],
};

/// The keys of `depi = { .. }`.
pub static DEPI: Section = Section {
    header: "`depi`",
    doc: "",
    keys: &[
        key("local", "", "(required)", ""),
        key("local_mac", "", "(required)", ""),
        key("remote", "", "(required)", ""),
        key("remote_mac", "", "(required)", ""),
        key("session", "", "1", ""),
        key("dscp", "", "0", ""),
    ],
};

pub static FLOW: Section = Section {
    header: "[[flow]]",
    doc: "A service flow that every modem has. A packet belongs to the first that asks for it, and else to the first of all. \
          Without any, each modem has one without limits.",
    keys: &[
        key("name", "1 to 32 of `a-z A-Z 0-9 . _ -`", "(required)", "")
            .doc("Its name in `show`.")
            .example("\"voice\"")
            .only(Mode::Cmts),
        key("priority", "0 to 7", "0", "")
            .doc("Its packets go before those of lower ones.")
            .example("5")
            .only(Mode::Cmts),
        key("rate", "0 to 1000000000000", "0", "bit/s")
            .doc("Maximum sustained rate. 0: no limit. What is above it is dropped as `policed`.")
            .example("100_000_000")
            .only(Mode::Cmts),
        key("burst", "0 to 4294967295", "0", "bytes")
            .doc("What may go at once above the rate, at least 1522. 0: 3044.")
            .example("100_000")
            .only(Mode::Cmts),
        key("peak", "0 to 1000000000000", "0", "bit/s")
            .doc("Peak rate. 0: no limit.")
            .example("200_000_000")
            .only(Mode::Cmts),
        key("dscp", "a code point, a list of them", "(any)", "")
            .doc("It asks for packets with one of these.")
            .example("[46]")
            .only(Mode::Cmts),
        key("proto", "0 to 255", "(any)", "")
            .doc("It asks for packets of this protocol.")
            .example("17")
            .only(Mode::Cmts),
        key("source", "an address or prefix", "(any)", "")
            .doc("It asks for packets from here.")
            .example("\"10.0.0.0/8\"")
            .only(Mode::Cmts),
        key("destination", "an address or prefix", "(any)", "")
            .doc("It asks for packets to here.")
            .example("\"fd00::/8\"")
            .only(Mode::Cmts),
        key("source_port", "a port, or two", "(any)", "")
            .doc("It asks for packets from these ports.")
            .example("\"5060\"")
            .only(Mode::Cmts),
        key("destination_port", "a port, or two", "(any)", "")
            .doc("It asks for packets to these ports.")
            .example("\"16384-32767\"")
            .only(Mode::Cmts),
        key("drop", "`true`, `false`", "false", "")
            .doc("No flow, but a filter: what it asks for is dropped as `filtered`, before any flow is asked.")
            .example("true")
            .only(Mode::Cmts),
    ],
};

pub static ROUTER: Section = Section {
    header: "[router]",
    doc: "What the router does beside forwarding.",
    keys: &[
        key("icmp_rate", "0 to 1000000", "1000", "errors/s per worker")
            .doc(
                "Most ICMP errors sent (RFC 1812, section 4.3.2.8); as many again about packets that are too big, on which \
                 path MTU discovery depends. Each destination has a limit too, as in Linux. 0: none.",
            )
            .example("50"),
        key("redirects", "`true`, `false`", "false", "")
            .doc("Whether ICMP redirects are sent to hosts that have a better way.")
            .example("true"),
    ],
};

/// A key of `[kernel]`, which says what a kind of policy is.
const fn regard(name: &'static str, doc: &'static str) -> Key {
    key(name, "`\"respect\"`, `\"ignore\"`", "\"respect\"", "").doc(doc).example("\"ignore\"").only(Mode::Router)
}

pub static KERNEL: Section = Section {
    header: "[kernel]",
    doc: "Kernel policies that forwarded packets would meet. `respect`: packets that such a policy concerns stay the \
          kernel's; a change takes effect within milliseconds. `ignore`: they are forwarded past it, which is said in \
          the log, by `bywash doctor`, `show placement` and the metrics.",
    keys: &[
        regard(
            "netfilter",
            "Chains of nf_tables, iptables-nft included, that could drop, change or count a forwarded packet.",
        ),
        regard(
            "iptables_legacy",
            "Rules, and policies other than ACCEPT, of `iptables-legacy` and `ip6tables-legacy`.",
        ),
        regard("ipsec", "Forward and output policies of IPsec (`ip xfrm policy`)."),
        regard("rules", "Policy routing rules (`ip rule`) beside the kernel's own."),
        regard(
            "sysctls",
            "Switches under `/proc/sys/net` by which the kernel does not forward, checks sources, or does it in another \
             way.",
        ),
        regard("traffic_control", "Qdiscs that were configured, and filters before or behind a port (`tc`)."),
        regard("programs", "BPF programs of others on a port (tcx)."),
    ],
};

pub static POOL: Section = Section {
    header: "[pool]",
    doc: "Where packets lie: one pool per worker, all in one arena.",
    keys: &[
        key("kind", "`\"stack\"`, `\"ring\"`, `\"sdb\"`, `\"tabm\"`, `\"typewriter\"`", "\"stack\"", "")
            .doc(
                "Which free buffer is used next. `stack`: the one last freed, which is still in the cache. `ring`: the \
                 one freed longest ago, as DPDK does, behind a cache per worker. `tabm`: the next one of a block at \
                 consecutive addresses; freeing only counts, and a block is used again when all of it is free. `sdb`: \
                 the same, with one pool and one block that all workers share. `typewriter`: as `tabm`, but a packet of a \
                 `pcap` port takes no more room than it needs, so that a buffer holds several; not with `af_xdp` and `dpdk` ports.",
            )
            .example("\"ring\""),
        key("cache", "`\"auto\"`, 0 to 8192", "\"auto\"", "buffers per worker")
            .doc("Size of each worker's cache in front of the pool, at most half the pool; kinds of blocks have none. `auto`: 256 for `ring`, else 0.")
            .example("128"),
        key("frames", "`\"auto\"`, 64 to 16777216", "\"auto\"", "buffers per worker")
            .doc(
                "Size of the pool. It must hold what the rings of the worker's queues can hold at once (rx, tx, fill and \
                 completion together) and the cache. `auto`: that, and 1024. Where there are blocks: two or more whole ones; \
                 `auto` adds two.",
            )
            .example("65536"),
        key("reserve", "0 to 16777216", "0", "buffers")
            .doc(
                "Buffers that belong to no pool at first: `bywash reload` makes other pools of them, and has those again of pools \
                 that are gone. Another pool for a worker takes as many as it holds.",
            )
            .example("32768"),
        key("block", "a power of two from 64 to 65536", "1024", "buffers")
            .doc("Size of a block of `sdb`, `tabm` and `typewriter`. One buffer that is held long keeps its block from being used.")
            .example("256"),
        key("cell", "2048, 4096, 16384", "2048", "bytes")
            .doc(
                "Size of a buffer. 256 bytes of it are metadata and headroom: an interface's MTU and 18 bytes must fit the rest. \
                 16384 is for MTUs over 3822, to 9000 and beyond: AF_XDP then receives frames in several pieces, put together \
                 by a copy of what is behind the first 3840 bytes. Needs Linux 6.6; not for `typewriter`, nor with `in_order`.",
            )
            .example("4096"),
        key("pages", "`\"auto\"`, `\"2m\"`, `\"4k\"`", "\"auto\"", "")
            .doc(
                "Pages the buffers lie in. `auto`: reserved 2 MiB pages, else transparent ones, else 4 KiB; what it got is \
                 in `bywash show pools`. `2m`: 2 MiB of either kind, or an error.",
            )
            .example("\"4k\""),
    ],
};

pub static WORKERS: Section = Section {
    header: "[workers]",
    doc: "The threads that forward.",
    keys: &[
        key("count", "`\"auto\"`, 1 to 256", "\"auto\"", "threads")
            .doc("`auto`: as many as every port has queues for, at most one per CPU in `cpus`.")
            .example("2"),
        key("cpus", "`\"auto\"`, a list of CPU numbers", "\"auto\"", "")
            .doc("CPUs the workers are pinned to, in order: at least `count`. `auto`: those the process may use, the first of them last.")
            .example("[0]"),
        key("idle", "`\"sleep\"`, `\"spin\"`", "\"sleep\"", "")
            .doc("What a worker does without packets. `sleep`: it backs off, then sleeps until one comes. `spin`: it polls on, for the lowest delay at the price of a CPU.")
            .example("\"spin\""),
    ],
};

pub static API: Section = Section {
    header: "[api]",
    doc: "Where the running program can be asked.",
    keys: &[
        key("socket", "a path", "\"/run/bywash/bywash.sock\"", "")
            .doc("Unix socket with the HTTP API that `bywash show` uses. Each instance needs its own.")
            .example("\"/tmp/bywash.sock\""),
        key("group", "a group's name", "(none)", "").doc("Group that may connect, beside root.").example("\"bywash\""),
        key("read_socket", "a path", "(none)", "")
            .doc(
                "Unix socket with the part of the API that changes nothing and shows no packets: all that is read with \
                 GET. What else is asked there is forbidden.",
            )
            .example("\"/run/bywash/read.sock\""),
        key("read_group", "a group's name", "(none)", "")
            .doc("Group that may connect to `read_socket`, beside root.")
            .example("\"users\""),
        key("metrics", "an address and a port", "(none)", "")
            .doc(
                "TCP address at which Prometheus finds `/metrics`, and nothing else. Whoever reaches it can read it. \
                 The Unix socket has `/metrics`, too.",
            )
            .example("\"127.0.0.1:9469\""),
    ],
};

pub static PORT: Section = Section {
    header: "[[port]]",
    doc: "A port. One table for each; their order is their numbering.",
    keys: &[
        key("name", "1 to 32 of `a-z A-Z 0-9 . _ -`", "(the interface's)", "")
            .doc("Its name in `show` and in logs.")
            .example("\"wan\""),
        key("kind", "`\"af_xdp\"`, `\"tap\"`, `\"pcap\"`, `\"memif\"`, `\"null\"`, `\"dpdk\"`", "\"af_xdp\"", "")
            .doc(
                "What it is. `af_xdp`: a network interface, shared with the kernel. `tap`: a TAP interface, made at the \
                 start. `pcap`: a capture file that is replayed. `memif`: another process (VPP, DPDK, Bywash), by shared \
                 memory. `null`: receives nothing, discards what is sent. `dpdk`: a device of DPDK's, in a program \
                 built with the feature `dpdk`.",
            )
            .example("\"tap\""),
        key("interface", "an interface's name", "(required)", "")
            .doc(
                "The interface. Ports of kind `pcap`, `memif` and `null` need none; given one, a router makes a TAP interface \
                 of that name, their twin: the kernel's addresses, neighbours, routes and routing daemons work on it as on a \
                 NIC. So with `dpdk`, unless it is the interface that the device stands on or makes.",
            )
            .example("\"eth1\""),
        key("queues", "`\"all\"`, a list of queue numbers", "\"all\"", "")
            .doc("Queues to take. What arrives on the others is the kernel's.")
            .example("[0]")
            .of(AF_XDP),
        key("ring", "a power of two from 64 to 65536, or a table", "2048", "descriptors")
            .doc("Size of the rings of each queue: one number for all four, or `{ rx = N, tx = N, fill = N, completion = N }`, each with the default 2048. Of a memif client, one number from 16 to 16384; a server takes what its client has.")
            .example("{ rx = 512 }")
            .of(&[PortKind::AfXdp, PortKind::Memif]),
        key("zero_copy", "`\"auto\"`, `\"require\"`, `\"off\"`", "\"auto\"", "")
            .doc(
                "AF_XDP zero-copy. `auto`: where the driver can, unless `level` is `driver`, which forwards what no socket has; \
                 what it got is in `bywash show ports`. `require`: or an error.",
            )
            .example("\"off\"")
            .of(AF_XDP),
        key("transmit", "`\"auto\"`, `\"socket\"`, `\"inject\"`", "\"auto\"", "")
            .doc(
                "How frames are sent. `socket`: by the AF_XDP socket. `inject`: by a BPF program that is run over a batch of \
                 them, through the interface's queueing discipline and in sight of tcpdump. `auto`: `inject` on veth, where \
                 it is faster; what it chose is in `bywash show ports`.",
            )
            .example("\"socket\"")
            .of(AF_XDP),
        key("busy_poll", "0 to 1024", "0", "frames")
            .doc(
                "Preferred busy polling (Linux 5.11): the worker has the driver polled by its own system calls, up to so many \
                 frames each, and interrupts stay off (`napi_defer_hard_irqs` and `gro_flush_timeout`, put back on exit). One \
                 CPU then does all of it, at a higher rate where interrupts would come to that same CPU. 0: interrupts.",
            )
            .example("64")
            .of(AF_XDP),
        key("rx_burst", "1 to 64", "64", "frames")
            .doc("Most frames received from a queue in one turn of its worker. Fewer make turns shorter, and each packet dearer.")
            .example("16")
            .of(AF_XDP),
        key("need_wakeup", "`true`, `false`", "true", "")
            .doc("Whether the kernel says when it must be woken to send. Without, every turn with frames to send makes a system call.")
            .example("false")
            .of(AF_XDP),
        key("in_order", "`true`, `false`", "false", "")
            .doc(
                "What was sent is taken back by a list of our own, in the order it was sent in, and each completion is compared \
                 with it. Where a driver reorders (`tx_reordered` in `bywash show ports --json`), the list is given up.",
            )
            .example("true")
            .of(AF_XDP),
        key("mode", "`\"auto\"`, `\"native\"`, `\"generic\"`", "\"auto\"", "")
            .doc(
                "Where the program is attached. `native`: XDP in the driver. `generic`: before the network stack, by \
                 traffic control (Linux 6.6), and by generic XDP while user space is to have frames. `auto`: native \
                 where the driver can; on veth generic, because a native program takes TCP segmentation from its peer.",
            )
            .example("\"generic\"")
            .of(AF_XDP),
        key("checksum", "`\"auto\"`, `\"fix\"`, `\"trust\"`", "\"auto\"", "")
            .doc(
                "Transport checksums that the sender left to its hardware. `fix`: finish those that are unfinished. \
                 `trust`: leave all as they are. `auto`: `fix` on interfaces that hand over unfinished ones (veth, and what stands on one; bridges).",
            )
            .example("\"fix\"")
            .of(AF_XDP),
        key("level", "`\"auto\"`, `\"driver\"`, `\"user\"`, `\"kernel\"`", "\"auto\"", "")
            .doc(
                "Where what it receives is forwarded. `driver`: by the program, as far as that can; the rest in user space, or \
                 by the kernel where traffic control forwards. `user`: by the workers. `kernel`: by the kernel; the \
                 port still sends what others forward to it. `auto`: `driver` where the program is attached natively \
                 and no socket has zero-copy, or by traffic control; else `user`.",
            )
            .example("\"user\"")
            .of(AF_XDP),
        key("spread", "`\"off\"`, a list of CPUs", "\"off\"", "")
            .doc(
                "CPUs that send what the program forwards of this port, a flow's packets always by the same one, fragments aside \
                 (cpumap): for a NIC with fewer queues than there are CPUs. Needs native XDP, and is of the level `driver`. Best \
                 are CPUs that neither the NIC interrupts nor a worker spins on; the other device needs a transmit queue for \
                 each. What a CPU has too many of is dropped and counted, as `drop_cpu_busy`. `off`: the CPU that received it \
                 sends it.",
            )
            .example("[2, 3]")
            .of(AF_XDP),
        key("device", "a DPDK device's name, and its arguments behind commas", "(required)", "")
            .doc("The device, as DPDK's option `-a` or `--vdev` names it.")
            .example("\"net_tap0,iface=dtap0\"")
            .of(DPDK),
        key("device_queues", "1 to 64", "1", "")
            .doc("Queues of the device, each way; with several, it spreads flows over them (RSS).")
            .example("2")
            .of(DPDK),
        key("mtu", "`\"auto\"`, 68 to 9216", "\"auto\"", "bytes").doc("The device's MTU. `auto`: as it is.").example("1400").of(DPDK),
        key("eal", "options of DPDK's EAL", "\"\"", "")
            .doc("Further options for EAL, which starts once: those of all ports together.")
            .example("\"--log-level=8\"")
            .of(DPDK),
        key("worker", "`\"auto\"`, a worker's number, a list of them", "\"auto\"", "")
            .doc(
                "Which worker polls which queue. `auto`: queue k is worker k's, modulo the number of workers. A number: all \
                 queues. A list: one for each queue, in their order, repeated when it is shorter.",
            )
            .example("0"),
        key("tx_burst", "1 to 64", "32", "frames").doc("Frames sent at once, at most.").example("16"),
        key("tx_deadline_us", "0 to 10000", "0", "µs")
            .doc("Longest that a frame waits for others to be sent with. 0: to the end of the worker's turn.")
            .example("50"),
        key("tag", "1 to 4094", "(none)", "")
            .doc("The VLAN that the port is an access port of: its frames have no tag. For the learning bridge.")
            .example("10")
            .only(Mode::Switch),
        key("trunks", "a list of VLANs from 0 to 4094", "(all)", "")
            .doc("VLANs that the port carries with their tag; 0 is what has none. For the learning bridge.")
            .example("[10, 20]")
            .only(Mode::Switch),
        key("flood", "`true`, `false`", "true", "")
            .doc("Whether flooded frames leave by it.")
            .example("false")
            .only(Mode::Switch),
        key("storm", "0 to 100000000", "0", "frames/s")
            .doc(
                "Storm control: most frames received by it that are flooded, which those to broadcast, multicast and \
                 unknown addresses are. 0: no limit.",
            )
            .example("1000")
            .only(Mode::Switch),
        key("mirror", "another port's name", "(none)", "")
            .doc("Where a copy of all that comes and goes by it is sent. That port is for nothing else.")
            .example("\"probe\"")
            .only(Mode::Switch),
        key("file", "a path", "(required)", "")
            .doc("Capture that is replayed from memory: pcap or pcapng. Not required of a port that records: it then receives nothing.")
            .example("\"/var/lib/trace.pcap\"")
            .of(PCAP),
        key("loop", "`true`, `false`", "false", "").doc("Whether it starts again at its end.").example("true").of(PCAP),
        key("rate", "`\"auto\"`, 1 to 1000000000", "\"auto\"", "packets/s")
            .doc("Speed of the replay. `auto`: as fast as packets are taken.")
            .example("1000")
            .of(PCAP),
        key("link", "`\"ethernet\"`, `\"docsis\"`", "\"ethernet\"", "")
            .doc("What is recorded: Ethernet frames, or the MAC frames of a cable downstream.")
            .example("\"docsis\"")
            .of(PCAP),
        key("record", "a path", "(none)", "")
            .doc("Where frames sent to the port are written, as pcap. Without: they are discarded.")
            .example("\"/tmp/sent.pcap\"")
            .of(PCAP),
        key("socket", "a path, or `@` and a name", "(required)", "")
            .doc(
                "Control socket of a memif. `@`: an abstract one. Of a path, who may connect is who may write to it: at first \
                 the owner.",
            )
            .example("\"/run/bywash/memif.sock\"")
            .of(MEMIF),
        key("role", "`\"server\"`, `\"client\"`", "\"server\"", "")
            .doc(
                "Which side of a memif it is. `server`: it listens, and copies from and to the client's memory. `client`: it \
                 connects, as often as it has to, and its peer has all of our buffers mapped: nothing is copied, and the \
                 peer is trusted with every packet.",
            )
            .example("\"client\"")
            .of(MEMIF),
        key("id", "0 to 4294967295", "0", "").doc("Number of the memif on its socket.").example("7").of(MEMIF),
        key("secret", "a text of at most 24 bytes", "(none)", "")
            .doc("What a client has to know to connect.")
            .example("\"sesame\"")
            .of(MEMIF),
        key("sealed", "`true`, `false`", "true", "")
            .doc(
                "Whether a memif server refuses memory that its client could take away again, and so end the process. DPDK's \
                 clients with `zero-copy=yes` need `false`.",
            )
            .example("false")
            .of(MEMIF),
    ],
};

/// The four rings of `ring = { .. }`.
pub static RING: Section = Section {
    header: "`ring`",
    doc: "",
    keys: &[
        key("rx", "", "2048", "").example("512"),
        key("tx", "", "2048", "").example("512"),
        key("fill", "", "2048", "").example("512"),
        key("completion", "", "2048", "").example("512"),
    ],
};

/// The top and the tables of the file, in the order they are documented in.
pub static SECTIONS: &[&Section] =
    &[&TOP, &PORT, &WORKERS, &POOL, &ROUTER, &KERNEL, &SWITCH, &CMTS, &GROUP, &FLOW, &API];

const INTRODUCTION: &str = "\
# Configuration

<!-- Written by `bywash config reference`; a test compares the two. -->

`bywash run --config FILE` reads a TOML file. Nothing is read that is not named: there is no file that is looked for.
`bywash run IFACE...` is the same as a file with one `[[port]]` for each interface and nothing else. Options of
`bywash run` override the file. `bywash config check FILE` says all that is wrong with a file, with line and column;
`bywash show config` prints the configuration of the running program as a file that can be read again.

```toml
[[port]]
interface = \"eth0\"

[[port]]
interface = \"eth1\"
```

Unknown keys, wrong types and impossible values are errors. Changes take effect at the next start.
";

/// docs/config.md.
pub fn reference() -> String {
    let mut out = INTRODUCTION.to_string();
    for section in SECTIONS {
        let heading = if section.header.is_empty() { "Above".into() } else { format!("`{}`", section.header) };
        // Writing to a String cannot fail.
        let _ = write!(out, "\n## {heading}\n\n{}\n", section.doc);
        for key in section.keys {
            let code = |text: &str| if text.starts_with('(') { text.to_string() } else { format!("`{text}`") };
            let _ = write!(out, "\n### `{}`\n\n{}\n\n", key.name, key.doc);
            let _ = writeln!(out, "- takes {}", key.takes);
            let _ = writeln!(out, "- default: {}", code(key.default));
            let _ = writeln!(out, "- example: `{} = {}`", key.name, key.example);
            if !key.unit.is_empty() {
                let _ = writeln!(out, "- unit: {}", key.unit);
            }
            if let Some(mode) = key.mode {
                let _ = writeln!(out, "- only with `mode = \"{}\"`", mode.name());
            }
            if !key.kinds.is_empty() {
                let kinds: Vec<_> = key.kinds.iter().map(|kind| format!("`{}`", kind.name())).collect();
                let _ = writeln!(out, "- only in ports of kind {}", kinds.join(", "));
            }
        }
    }
    out
}
