//! Table of all configuration keys: the source of the reader's checks, the defaults, docs/config.md and the JSON
//! schema.

mod cable;

pub use cable::{CMTS, FLOW, GROUP, PROFILE};

use crate::choice::*;
use crate::host::CPUS;
use crate::key::Takes::{self, *};
use crate::key::{Key, Section, key};
use crate::text;
use bywash_frame::BATCH;
use bywash_port::{memif, npe};
use std::ops::RangeInclusive;

/// Valid sizes of a pool in buffers. The maximum is 32 GiB of 2 KiB cells.
pub const FRAMES: RangeInclusive<usize> = 64..=16 << 20;
/// Valid sizes of a block in buffers; a size must also be a power of two.
pub const BLOCK: RangeInclusive<usize> = 64..=65536;
/// Valid cell sizes in bytes.
pub const CELLS: [usize; 3] = [2048, 4096, 16384];
/// Valid numbers of worker threads.
pub const WORKERS: RangeInclusive<usize> = 1..=256;
/// Valid numbers of a worker.
const WORKER: RangeInclusive<usize> = 0..=*WORKERS.end() - 1;
/// Valid CPU numbers.
const CPU: RangeInclusive<usize> = 0..=CPUS - 1;
/// Valid sizes of an AF_XDP socket's ring in descriptors.
const RING_SIZE: Takes = PowerOfTwo("ring size", 64..=65536);

/// Makes the default path of an instance's socket both a constant and a TOML value.
macro_rules! socket {
    () => {
        "/run/bywash/bywash.sock"
    };
}
/// Default path of an instance's socket.
pub const SOCKET: &str = socket!();

const AF_XDP: &[PortKind] = &[PortKind::AfXdp];
const PCAP: &[PortKind] = &[PortKind::Pcap, PortKind::Npe];
const MEMIF: &[PortKind] = &[PortKind::Memif];
const DPDK: &[PortKind] = &[PortKind::Dpdk];
const NPE: &[PortKind] = &[PortKind::Npe];

/// Keys before the first table.
pub static TOP: Section = Section {
    header: "",
    doc: "Keys at the top of the file, before any table.",
    keys: &[
        key("mode", Choice(names::<Mode>), "\"router\"", "")
            .doc(
                "Operating mode. `router`: forwards packets according to the kernel's routes and neighbours. `switch`: \
                 forwards frames according to flows; by default, the only flow makes it a learning bridge. A switch \
                 takes every frame that its ports receive; the kernel gets none. `cmts`: acts as the downstream of a \
                 cable modem termination system.",
            )
            .example("\"switch\""),
        key("sandbox", Choice(names::<Sandbox>), "\"on\"", "")
            .doc(
                "Drops, once the instance listens, all privileges except those listed in the user guide, and all \
                 system calls that it does not use. `bywash show sandbox` lists what remains. In the sandbox, file \
                 permissions apply to root, too: it can only read and write files whose mode bits allow it. Always off \
                 with ports of kind `dpdk`, whose drivers need more, and with an engine `rtl`, which is a process.",
            )
            .example("\"off\""),
    ],
};

pub static SWITCH: Section = Section {
    header: "[switch]",
    doc: "Flow tables, caches and address learning of a switch.",
    keys: &[
        key("flows", Text(&text::PATH), "(none)", "")
            .doc(
                "File with the flows, one per line, in the syntax of `ovs-ofctl add-flows`; lines with \
                 `group_id=` define groups, lines with `meter=` meters. Ports are referred to by name or by number, \
                 from 1 in the order of this file. Without this key, the switch has one flow, `priority=0 \
                 actions=NORMAL`: the learning bridge. A reload loads the file again if it has changed.",
            )
            .example("\"/etc/bywash/flows\"")
            .only(Mode::Switch),
        key("local", Text(&text::INTERFACE_AND_PORT), "(none)", "")
            .doc(
                "TAP interface of this host, as a port of the switch: `LOCAL` in flows, number 65534. Its addresses \
                 are those of the host in the network. It needs no `[[port]]`; one with this name and `kind = \"tap\"` \
                 can give settings for it.",
            )
            .example("\"br0\"")
            .only(Mode::Switch),
        key("vlan_limit", Int(0..=2), "1", "tags")
            .doc(
                "Number of VLAN tags that flows see, as `other_config:vlan-limit` of Open vSwitch; 0 means the \
                 maximum, 2. Any further tags are payload: with 1, the Ethernet type of a packet with two tags is that \
                 of the inner tag, 0x8100 or 0x88a8; with 2, `pop_vlan` shows the inner tag, and flows see the IP \
                 packet after both.",
            )
            .example("2")
            .only(Mode::Switch),
        key("macs", Int(16..=1_000_000), "8192", "addresses")
            .doc(
                "Maximum number of learned MAC addresses. When it is reached, a new address replaces the one not seen \
                 for the longest time on the port that has most.",
            )
            .example("65536")
            .only(Mode::Switch),
        key("mac_ageing_s", Int(1..=86_400), "300", "seconds")
            .doc("Time after which a learned MAC address that is no longer seen is removed.")
            .example("60")
            .only(Mode::Switch),
        key("exact", Int(0..=1 << 20), "8192", "keys per worker")
            .doc("Size of the exact-match cache. 0 disables it.")
            .example("0")
            .only(Mode::Switch),
        key("exact_insert", Int(1..=1_000_000), "100", "flows")
            .doc("Insertion rate of the exact-match cache: one in this many flows that miss it is inserted.")
            .example("1")
            .only(Mode::Switch),
        key("megaflows", Int(16..=4_000_000), "200000", "megaflows per worker")
            .doc("Maximum number of megaflows. Beyond it, each packet of a new flow is processed by the flow tables.")
            .example("10000")
            .only(Mode::Switch),
        key("megaflow_idle_s", Int(1..=3600), "10", "seconds")
            .doc("Time after which a megaflow that no packet has used is removed.")
            .example("30")
            .only(Mode::Switch),
    ],
};

pub static ROUTER: Section = Section {
    header: "[router]",
    doc: "Settings of a router: its table of established flows (connections that bypass the kernel's firewall rules), \
          the ICMP messages that it sends, and the stacked interfaces for which it forwards.",
    keys: &[
        key("flows", Int(0..=4_000_000), "1000000", "connections")
            .doc(
                "Maximum number of connections that Bywash forwards past the kernel's nf_tables rules and connection \
                 tracking. Only established connections qualify, and only if the rules accept every packet of them; \
                 all others are left to the kernel. Memory is allocated once the rules let a connection qualify: 4 MiB \
                 at first, then for each connection 64 bytes (IPv4) or 112 bytes (IPv6), plus about 16. 0: the kernel \
                 forwards all packets that its rules apply to.",
            )
            .example("0"),
        key("icmp_rate", Int(0..=1_000_000), "1000", "errors/s per worker")
            .doc(
                "Maximum rate of ICMP errors (RFC 1812, section 4.3.2.8). Errors about packets that exceed the MTU, \
                 which path MTU discovery depends on, have a separate limit of the same size. Each destination is \
                 limited as well, as in Linux. 0: no errors are sent.",
            )
            .example("50"),
        key("redirects", Bool, "false", "")
            .doc("Sends ICMP redirects to hosts that could use a better next hop.")
            .example("true"),
        key("vlans", Bool, "true", "")
            .doc(
                "Forwards packets of the ports' VLAN interfaces past the kernel. With `false` they are left to the \
                 kernel.",
            )
            .example("false"),
        key("macvlans", Bool, "true", "")
            .doc(
                "Forwards packets to macvlans on the ports, such as those of VRRP, past the kernel. With `false` they \
                 are left to the kernel.",
            )
            .example("false"),
        key("tunnels", Bool, "true", "")
            .doc(
                "Forwards packets through tunnels of kinds `gre`, `gretap`, `ipip`, `sit`, `ip6gre`, `ip6gretap`, \
                 `ip6tnl` and `vxlan` past the kernel. With `false` they are left to the kernel.",
            )
            .example("false"),
        key("bridges", Bool, "true", "")
            .doc(
                "Forwards routed packets of the ports' bridges, and unicast frames between ports on members of a bridge, \
                 past the kernel. With `false` they are left to the kernel.",
            )
            .example("false"),
    ],
};

/// Returns a key of `[kernel]`; `doc` describes the kind of policy.
const fn regard(name: &'static str, doc: &'static str) -> Key {
    key(name, Choice(names::<Regard>), "\"respect\"", "").doc(doc).example("\"ignore\"").only(Mode::Router)
}

pub static KERNEL: Section = Section {
    header: "[kernel]",
    doc: "Kernel policies that apply to forwarded packets. `respect`: packets that such a policy affects are left to \
           the kernel; policy changes take effect within milliseconds. `ignore`: such packets are forwarded without \
           regard to the policy; the log, `bywash doctor`, `show placement` and the metrics report this.",
    keys: &[
        regard(
            "netfilter",
            "Chains of nf_tables, including those of iptables-nft, that could drop, change or count a forwarded \
             packet.",
        ),
        regard(
            "iptables_legacy",
            "Rules, and policies other than ACCEPT, of `iptables-legacy` and `ip6tables-legacy`.",
        ),
        regard("ipsec", "IPsec policies for forwarding and output (`ip xfrm policy`)."),
        regard("rules", "Policy routing rules (`ip rule`) other than the kernel's default ones and those of VRFs."),
        regard(
            "sysctls",
            "Settings under `/proc/sys/net` that disable forwarding, check source addresses, or otherwise change how \
             the kernel forwards.",
        ),
        regard("traffic_control", "Configured qdiscs, and filters on ingress or egress of a port (`tc`)."),
        regard(
            "programs",
            "BPF programs that others have attached to a port (tcx) or to socket lookup (sk_lookup), IPVS services, \
             and netfilter hook functions registered by other modules.",
        ),
    ],
};

pub static POOL: Section = Section {
    header: "[pool]",
    doc: "Packet buffers: one pool per worker, all in one arena. To give some workers other settings, write several \
          tables `[[pool]]`. A table with any of the keys `workers`, `group` and `side` applies to the workers that \
          match all of them; the table without these keys applies to the remaining workers. Exactly one table must \
          apply to each worker. `cell`, `pages` and `reserve` are settings of the arena; they are allowed only in the \
          table for the remaining workers. In DPDK's ip_pipeline, whose configuration the reference document for \
          cable downstreams extends, `type` is `kind` here, `cache_size` is `cache`, `pool_size` is `frames`, \
          `buffer_size` is `cell`, and its `cpu` is the number of a CPU socket; here, `cpu` is any CPU of that socket.",
    keys: &[
        key("name", Text(&text::NAME), "(by worker)", "")
            .doc(
                "Name in `show`. If several workers have a pool each, their numbers follow it: `name-0`. By default \
                 pools are called `worker0` and so on, and `shared` if all workers share one.",
            )
            .example("\"upper\""),
        key("workers", List("worker numbers", WORKER), "(any)", "")
            .doc("Workers that use these settings.")
            .example("[0]"),
        key("group", Int(1..=*WORKERS.end() / 2), "(any)", "")
            .doc("Service group whose workers use these settings: its number, from 1 in the order of the file.")
            .example("1")
            .only(Mode::Cmts),
        key("side", Choice(names::<Side>), "(both)", "")
            .doc(
                "Worker of a service group that uses these settings. `upper`: the upper MAC, whose pool holds the \
                 packets for modems. `lower`: the lower MAC, whose pool holds the frames received on the output.",
            )
            .example("\"upper\"")
            .only(Mode::Cmts),
        key("kind", Or("auto", &Choice(names::<PoolKind>)), "\"stack\"", "")
            .doc(
                "Order in which free buffers are reused. `stack`: last in, first out, so that the next buffer is still \
                 in the CPU cache. `ring`: first in, first out, as in DPDK, behind a cache per worker. `tabm`: in \
                 order of address within a block; freeing a buffer only counts, and a block is reused once all of its \
                 buffers are free. `sdb`: the same, with one pool and one current block shared by all workers. \
                 `typewriter`: as `tabm`, but a packet from a `pcap` port takes only the space it needs, so that a \
                 buffer holds several packets; not with `af_xdp` and `dpdk` ports. `auto`: `stack` for a worker that \
                 frees its buffers itself; if another worker frees them, `stack`, `tabm` or `ring` by the time that a \
                 cache line takes between the two CPUs, which is measured at the start and when a reload moves workers \
                 or ports, and by the kernel's list of hyper-threads ([buffers.md](buffers.md#chosen-by-the-machine)).",
            )
            .example("\"ring\""),
        key("cache", Or("auto", &Int(0..=8192)), "\"auto\"", "buffers per worker")
            .doc(
                "Size of each worker's cache in front of the pool, at most half the pool; kinds with blocks have no \
                 cache. `auto`: 256 for `ring`, else 0.",
            )
            .example("128"),
        key("frames", Or("auto", &Int(FRAMES)), "\"auto\"", "buffers per worker")
            .doc(
                "Size of each worker's pool. It must cover the rings of the worker's queues (rx, tx, fill and \
                 completion together) and the cache. `auto`: that sum plus 1024. Kinds with blocks need a whole number \
                 of blocks, at least two; for them `auto` adds two blocks.",
            )
            .example("65536"),
        key("reserve", Int(0..=*FRAMES.end()), "0", "buffers")
            .doc(
                "Buffers that initially belong to no pool. `bywash reload` creates new pools from them and returns the \
                 buffers of removed pools to them. Replacing a worker's pool takes as many buffers as the new pool \
                 holds.",
            )
            .example("32768"),
        key("block", PowerOfTwo("block size", BLOCK), "1024", "buffers")
            .doc(
                "Block size of `sdb`, `tabm` and `typewriter`. A single buffer that is held for long keeps its whole \
                 block from being reused.",
            )
            .example("256"),
        key("cpu", Int(CPU), "(none)", "")
            .doc(
                "CPU to whose NUMA node the pool's memory is bound. On a machine with one node this has no effect; \
                 `bywash show pools` shows the node. By default the kernel places the memory.",
            )
            .example("0"),
        key("cell", Or("auto", &OneOf("cell size", &CELLS)), "\"auto\"", "bytes")
            .doc(
                "Size of a buffer. `auto`: 2048; 4096 with `mode = \"cmts\"`, whose PDUs have up to 2000 bytes. 256 \
                 bytes of it are metadata and headroom; an interface's MTU plus 18 bytes must fit the remainder. 16384 \
                 is for MTUs above 3822, up to 9000 and more: AF_XDP then receives a frame in several pieces, which \
                 are joined by copying everything after the first 3840 bytes. This needs Linux 6.6 and cannot be \
                 combined with `typewriter` or `in_order`.",
            )
            .example("4096"),
        key("pages", Choice(names::<Pages>), "\"auto\"", "")
            .doc(
                "Page size of the buffer memory. `auto`: reserved 2 MiB pages, else transparent huge pages, else 4 KiB \
                 pages; `bywash show pools` shows the result. `2m`: 2 MiB pages, reserved or transparent, or an error.",
            )
            .example("\"4k\""),
    ],
};

pub static WORKER_KEYS: Section = Section {
    header: "[workers]",
    doc: "Forwarding threads.",
    keys: &[
        key("count", Or("auto", &Int(WORKERS)), "\"auto\"", "threads")
            .doc(
                "Number of workers. `auto`: the queue count of the port with the fewest queues, at most one worker per \
                 CPU in `cpus`.",
            )
            .example("2"),
        key("cpus", Or("auto", &List("CPU numbers", CPU)), "\"auto\"", "")
            .doc(
                "CPUs that the workers are pinned to, in order; at least as many as `count`. `auto`: all CPUs that the \
                 process may use; the first one, which usually handles most of the machine's other work, is used \
                 last.",
            )
            .example("[0]"),
        key("idle", Choice(names::<Idle>), "\"sleep\"", "")
            .doc(
                "Behaviour of a worker that has no packets. `sleep`: it backs off, then sleeps until a packet arrives. \
                 `spin`: it keeps polling, for the lowest latency at the cost of a whole CPU.",
            )
            .example("\"spin\""),
        key("counters", Bool, "false", "")
            .doc(
                "Count core cycles, instructions and retired slots of each stage by the processor's counters, for \
                 `bywash profile`; takes three counters of each worker's CPU. Without such counters the workers run as \
                 usual, and a log message says why.",
            )
            .example("true"),
    ],
};

pub static API: Section = Section {
    header: "[api]",
    doc: "Interfaces of the running instance for monitoring and control.",
    keys: &[
        key("socket", Text(&text::PATH), concat!("\"", socket!(), "\""), "")
            .doc("Unix socket of the HTTP API that `bywash show` and other commands use. Each instance needs its own.")
            .example("\"/tmp/bywash.sock\""),
        key("group", Text(&text::GROUP), "(none)", "")
            .doc("Group that may connect to `socket`, in addition to root.")
            .example("\"bywash\""),
        key("read_socket", Text(&text::PATH), "(none)", "")
            .doc(
                "Unix socket of the read-only API: it answers GET requests, which change nothing and show no packets, \
                 and refuses all others as forbidden.",
            )
            .example("\"/run/bywash/read.sock\""),
        key("read_group", Text(&text::GROUP), "(none)", "")
            .doc("Group that may connect to `read_socket`, in addition to root.")
            .example("\"users\""),
        key("metrics", Text(&text::LISTEN), "(none)", "")
            .doc(
                "TCP address that serves `/metrics` to Prometheus, and nothing else: a loopback address, at which \
                 everyone on this machine can read it, unless `metrics_public` is true. The Unix socket serves \
                 `/metrics`, too.",
            )
            .example("\"127.0.0.1:9469\""),
        key("metrics_public", Bool, "false", "")
            .doc("Lets `metrics` be an address that other machines reach. It needs `metrics_token`.")
            .example("true"),
        key("metrics_token", Either(&Text(&text::TOKEN), &Table(&SECRET_FROM)), "(none)", "")
            .doc(
                "Token that each request to `metrics` must have, as a bearer token or as the password of user \
                 `bywash`. It is not encrypted on its way. `{ file = \"PATH\" }` reads it from a file, `{ credential = \
                 \"NAME\" }` from a systemd credential (`LoadCredential=`); it is never shown.",
            )
            .example("\"open-sesame-0123456789\""),
    ],
};

pub static PORT: Section = Section {
    header: "[[port]]",
    doc: "A port. Each port has its own table; ports are numbered in the order of their tables.",
    keys: &[
        key("name", Text(&text::NAME), "(the name of the interface)", "")
            .doc(
                "Name of the port in `show`, in logs and in flows. In the default, `_` stands for each character of \
                 the interface's name that is not allowed here.",
            )
            .example("\"wan\""),
        key("kind", Choice(names::<PortKind>), "\"af_xdp\"", "")
            .doc(
                "Kind of port. `af_xdp`: a network interface, shared with the kernel. `tap`: a TAP interface, created \
                 at startup. `pcap`: a capture file that is replayed. `memif`: another process (VPP, DPDK, Bywash), by \
                 shared memory. `null`: receives nothing and discards what is sent. `dpdk`: a DPDK device, in a build \
                 with the feature `dpdk`. `npe`: a dispatching device, which distributes the packets of a capture file \
                 (`file`, `record`) or else of a TAP interface (`interface`) over channels, one for each worker.",
            )
            .example("\"tap\""),
        key("interface", Text(&text::INTERFACE), "(required)", "")
            .doc(
                "Network interface of the port. Ports of kind `pcap`, `memif` and `null` need none; if one is given, a \
                 router creates a TAP interface of that name, the port's twin: the kernel's addresses, neighbours, \
                 routes and routing daemons use it as they use a NIC. The same holds for `dpdk`, unless it is the \
                 interface that the DPDK device uses or creates.",
            )
            .example("\"eth1\""),
        key("queues", Or("all", &List("queue numbers", 0..=4095)), "\"all\"", "")
            .doc("Receive queues to use. Packets that arrive on other queues are left to the kernel.")
            .example("[0]")
            .of(AF_XDP),
        key("ring", Either(&RING_SIZE, &Table(&RING)), "2048", "descriptors")
            .doc(
                "Size of the rings of each queue: one number for all four, or `{ rx = N, tx = N, fill = N, completion \
                 = N }`, each 2048 by default. For a memif client, one number from 16 to 16384; a memif server uses \
                 the size that its client sets.",
            )
            .example("{ rx = 512 }")
            .of(&[PortKind::AfXdp, PortKind::Memif])
            .but(PortKind::Memif, PowerOfTwo("ring size", memif::RING)),
        key("zero_copy", Choice(names::<ZeroCopy>), "\"auto\"", "")
            .doc(
                "Use of AF_XDP zero-copy mode. `auto`: if the driver supports it, except with `level` set to `driver`, \
                 because the driver cannot forward frames on queues with zero-copy sockets; `bywash show ports` shows \
                 the result. `require`: an error if the driver does not support it. Zero-copy sockets that receive or \
                 send nothing because of a driver fault are opened again after 0.4 s; if that does not help, they are \
                 opened in copy mode (`auto`), or the port is left to the kernel (`require`).",
            )
            .example("\"off\"")
            .of(AF_XDP),
        key("transmit", Choice(names::<Transmit>), "\"auto\"", "")
            .doc(
                "Transmit method. `socket`: through the AF_XDP socket. `inject`: by running a BPF program over a batch \
                 of frames, which pass the interface's queueing discipline and are visible to tcpdump. `auto`: \
                 `inject` on veth, where it is faster, else `socket`; `bywash show ports` shows the choice.",
            )
            .example("\"socket\"")
            .of(AF_XDP),
        key("busy_poll", Int(0..=1024), "0", "frames")
            .doc(
                "Preferred busy polling (Linux 5.11): the worker's system calls poll the driver, up to this many \
                 frames each, and interrupts stay off (`napi_defer_hard_irqs` and `gro_flush_timeout` are set, and \
                 restored on exit). One CPU then does all the work, at a higher rate if that CPU would also serve the \
                 interrupts. 0: interrupts.",
            )
            .example("64")
            .of(AF_XDP),
        key("rx_burst", Int(1..=BATCH), "64", "frames")
            .doc(
                "Maximum number of frames received from a queue in one iteration of its worker. Smaller bursts make \
                 iterations shorter, but cost more per packet.",
            )
            .example("16")
            .of(AF_XDP),
        key("need_wakeup", Bool, "true", "")
            .doc(
                "Uses the kernel's need-wakeup flag, which tells when a system call is needed to send. Without it, \
                 every iteration with frames to send makes a system call.",
            )
            .example("false")
            .of(AF_XDP),
        key("in_order", Bool, "false", "")
            .doc(
                "Reclaims sent frames from a list kept in transmit order and compares each completion with it. The \
                 list is abandoned if the driver completes frames out of order (`tx_reordered` in `bywash show ports \
                 --json`).",
            )
            .example("true")
            .of(AF_XDP),
        key("xdp", Choice(names::<XdpMode>), "\"auto\"", "")
            .doc(
                "Attachment of the XDP program. `native`: XDP in the driver. `generic`: in front of the network stack, \
                 by traffic control (Linux 6.6), and by generic XDP while user space needs to receive frames. `auto`: \
                 native if the driver supports it; generic on veth, because a native program disables TCP segmentation \
                 offload on the peer.",
            )
            .example("\"generic\"")
            .of(AF_XDP),
        key("checksum", Choice(names::<Checksum>), "\"auto\"", "")
            .doc(
                "Handling of transport checksums that the sender left to checksum offload. `fix`: completes partial \
                 checksums (CHECKSUM_PARTIAL). `trust`: leaves all checksums unchanged. `auto`: `fix` on interfaces \
                 that deliver partial checksums (veth, netkit, TAP, virtio-net without native XDP, interfaces on top \
                 of these, and bridges) and, in a router, where XDP is not native and may see packets that GRO has \
                 merged; else `trust`.",
            )
            .example("\"fix\"")
            .of(AF_XDP),
        key("level", Choice(names::<Level>), "\"auto\"", "")
            .doc(
                "Forwarding level of packets received on the port. `driver`: by the XDP program as far as it can; \
                 other packets in user space, or by the kernel where traffic control forwards. `user`: by the workers. \
                 `kernel`: by the kernel; the port still sends what other ports forward to it. `auto`: in a switch, \
                 `user`; with a program attached by traffic control, `driver` if the kernel forwards or the port is a \
                 member of a bridge, else `user`; with native XDP, `driver` unless a socket uses zero-copy; otherwise \
                 `user`.",
            )
            .example("\"user\"")
            .of(AF_XDP),
        key("spread", Or("off", &List("CPUs", CPU)), "\"off\"", "")
            .doc(
                "CPUs that transmit what the driver forwards from this port (cpumap), for a NIC with fewer queues than \
                 the machine has CPUs. Packets of a flow, except fragments, are always sent by the same CPU. Needs \
                 native XDP and applies to level `driver`. Choose CPUs that neither serve NIC interrupts nor run a \
                 spinning worker; the egress device needs a transmit queue for each. Packets that exceed a CPU's queue \
                 are dropped and counted as `drop_cpu_busy`. `off`: the CPU that received a packet sends it.",
            )
            .example("[2, 3]")
            .of(AF_XDP),
        key("program", Text(&text::PATH), "(none)", "")
            .doc(
                "Object file with an XDP program of your own, which runs before Bywash's, at every level, for each \
                 frame that the port receives: frames that it passes (`XDP_PASS`) go on to Bywash; its other verdicts \
                 are final, and counted as `drop_program` or `to_program` ([user \
                 guide](user-guide.md#a-program-of-your-own)). Each port has an instance of its own, with its own \
                 maps. The file is read whenever the port is opened.",
            )
            .example("\"/etc/bywash/filter.bpf.o\"")
            .of(AF_XDP),
        key("program_section", Text(&text::SYMBOL), "(the only one)", "")
            .doc("Program in the file, by its function's or its section's name, if the file has several.")
            .example("\"drop_discard\"")
            .of(AF_XDP),
        key("device", Text(&text::DEVICE), "(required)", "")
            .doc("Name of the DPDK device, with its arguments, as for the EAL options `-a` and `--vdev`.")
            .example("\"net_tap0,iface=dtap0\"")
            .of(DPDK),
        key("device_queues", Int(1..=64), "1", "")
            .doc(
                "Number of receive and of transmit queues of the device; if there are several, RSS distributes flows \
                 over them.",
            )
            .example("2")
            .of(DPDK),
        key("mtu", Or("auto", &Int(68..=9216)), "\"auto\"", "bytes")
            .doc("MTU of the device. `auto`: unchanged.")
            .example("1400")
            .of(DPDK),
        key("eal", Text(&text::EAL), "\"\"", "")
            .doc("Additional EAL options. EAL is started once, with the options of all ports.")
            .example("\"--log-level=8\"")
            .of(DPDK),
        key("worker", Or("auto", &OneOrMore("a worker number", WORKER)), "\"auto\"", "")
            .doc(
                "Worker that polls the port's queues. `auto`: queue k is polled by worker k modulo the number of \
                 workers; if the port has fewer queues than there are workers, by worker (port index + k) modulo that \
                 number. A number: one worker for all queues. A list: the worker of each queue, in order, repeated if \
                 it is shorter than the number of queues.",
            )
            .example("0"),
        key("tx_burst", Int(1..=BATCH), "32", "frames").doc("Maximum number of frames sent at once.").example("16"),
        key("tx_deadline_us", Int(0..=10_000), "0", "µs")
            .doc(
                "Maximum time that a frame waits for others to be sent with it. 0: until the end of the worker's \
                 iteration.",
            )
            .example("50"),
        key("tag", Int(1..=4094), "(none)", "")
            .doc("VLAN of an access port; its frames are untagged. For the learning bridge.")
            .example("10")
            .only(Mode::Switch),
        key("trunks", List("VLANs from 0 to 4094", 0..=4094), "(all)", "")
            .doc(
                "VLANs of a trunk port, whose frames are tagged; 0 stands for untagged frames. For the learning \
                 bridge.",
            )
            .example("[10, 20]")
            .only(Mode::Switch),
        key("flood", Bool, "true", "")
            .doc("Sends flooded frames out of this port.")
            .example("false")
            .only(Mode::Switch),
        key("macs", Or("auto", &Int(1..=1_000_000)), "\"auto\"", "addresses")
            .doc(
                "Maximum number of MAC addresses learned on this port. When it is reached, a new address replaces the \
                 one not seen for the longest time. `auto`: as many as fit, but when `macs` of `[switch]` is reached, \
                 no more than a fair share.",
            )
            .example("16")
            .only(Mode::Switch),
        key("storm", Int(0..=100_000_000), "0", "frames/s")
            .doc(
                "Storm control: maximum rate of frames received on this port that are flooded (broadcast, multicast \
                 and unknown unicast). 0: no limit.",
            )
            .example("1000")
            .only(Mode::Switch),
        key("mirror", Text(&text::OTHER_PORT), "(none)", "")
            .doc(
                "Port that gets a copy of every frame received or sent on this port. The mirror port carries no other \
                 traffic.",
            )
            .example("\"probe\"")
            .only(Mode::Switch),
        key("file", Text(&text::PATH), "(required)", "")
            .doc(
                "Capture file (pcap or pcapng), replayed from memory. Optional for a port with `record`, which then \
                 receives nothing.",
            )
            .example("\"/var/lib/trace.pcap\"")
            .of(PCAP),
        key("loop", Bool, "false", "").doc("Restarts the replay at the end of the file.").example("true").of(PCAP),
        key("rate", Or("auto", &Int(1..=1_000_000_000)), "\"auto\"", "packets/s")
            .doc("Replay rate. `auto`: as fast as packets are taken.")
            .example("1000")
            .of(PCAP),
        key("link", Choice(names::<LinkType>), "\"ethernet\"", "")
            .doc("Frame type of the capture: Ethernet frames, or DOCSIS MAC frames of a cable downstream.")
            .example("\"docsis\"")
            .of(PCAP),
        key("record", Text(&text::PATH), "(none)", "")
            .doc("File to write sent frames to, as pcap. Without it, they are discarded.")
            .example("\"/tmp/sent.pcap\"")
            .of(PCAP),
        key("channels", Int(npe::CHANNELS), "1", "")
            .doc("Number of channels of a dispatching device, each a queue of the port. Packets go to them in turn.")
            .example("2")
            .of(NPE),
        key("engine", Choice(names::<NpeEngine>), "\"software\"", "")
            .doc(
                "Engine of a dispatching device. `rtl`: the hardware engine, simulated, in a build with the feature \
                 `bywash-port/rtl`; the environment variable `BYWASH_RTL_ENGINE` names its program.",
            )
            .example("\"rtl\"")
            .of(NPE),
        key("block", PowerOfTwo("block size", BLOCK), "1024", "buffers")
            .doc("Size of a block of a dispatching device's memory. Each channel has four. An engine `rtl` has its own size.")
            .example("64")
            .of(NPE),
        key("socket", Text(&text::SOCKET), "(required)", "")
            .doc(
                "Control socket of a memif: a path, or `@` and the name of an abstract socket. Processes with write \
                 permission to the path can connect; initially only the owner.",
            )
            .example("\"/run/bywash/memif.sock\"")
            .of(MEMIF),
        key("role", Choice(names::<MemifRole>), "\"server\"", "")
            .doc(
                "Side of the memif. `server`: listens, and copies packets from and to the client's memory. `client`: \
                 connects, reconnects when the connection is lost, and maps all of its buffers into the peer: nothing \
                 is copied, and the peer must be trusted with every packet.",
            )
            .example("\"client\"")
            .of(MEMIF),
        key("id", Int(0..=u32::MAX as usize), "0", "").doc("Number of the memif on its socket.").example("7").of(MEMIF),
        key("secret", Either(&Text(&text::SECRET), &Table(&SECRET_FROM)), "(none)", "")
            .doc("Secret that a client must present to connect. `{ file = \"PATH\" }` reads it from a file, `{ credential \
                 = \"NAME\" }` from a systemd credential (`LoadCredential=`); it is never shown.")
            .example("\"sesame\"")
            .of(MEMIF),
        key("peer", Text(&text::USER), "(none)", "")
            .doc(
                "User that the server of a memif client may run as, besides root and the user of the instance: the \
                 client gives it its secret and all of its buffers.",
            )
            .example("\"vnf\"")
            .of(MEMIF),
        key("sealed", Bool, "true", "")
            .doc(
                "Makes a memif server refuse memory that its client could take away, which would kill this process: \
                 files that can be truncated, and reserved huge pages. DPDK clients with `zero-copy=yes`, and clients \
                 of Bywash that `show pools` shows with reserved pages (`2 MiB (hugetlb)`), need `false`.",
            )
            .example("false")
            .of(MEMIF),
    ],
};

/// Keys of `ring = { .. }`.
pub static RING: Section = Section {
    header: "`ring`",
    doc: "",
    keys: &[
        key("rx", RING_SIZE, "2048", "").example("512"),
        key("tx", RING_SIZE, "2048", "").example("512"),
        key("fill", RING_SIZE, "2048", "").example("512"),
        key("completion", RING_SIZE, "2048", "").example("512"),
    ],
};

/// Place of a secret that is not in the file itself.
pub static SECRET_FROM: Section = Section {
    header: "a secret",
    doc: "",
    keys: &[
        key("file", Text(&text::PATH), "(none)", "").example("\"/etc/bywash/secret\""),
        key("credential", Text(&text::PATH), "(none)", "").example("\"secret\""),
    ],
};

/// Top-level keys and tables of the file, in the order of the reference.
pub static SECTIONS: &[&Section] =
    &[&TOP, &PORT, &WORKER_KEYS, &POOL, &ROUTER, &KERNEL, &SWITCH, &CMTS, &GROUP, &PROFILE, &FLOW, &API];
