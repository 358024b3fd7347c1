//! Arguments of `bywash bench`.

use crate::config::{Crypto, Level, MemifRole, Pages, PoolKind, Transmit, ZeroCopy};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// Subcommands of `bywash bench`.
#[derive(Debug, Subcommand)]
pub enum BenchArgs {
    /// AF_XDP alone, on veth: frames received, sent or forwarded, and the effect of each option (root)
    Afxdp(AfxdpArgs),
    /// Route changes under traffic: packets lost or misrouted, and the lag behind the kernel's table (root)
    Churn(ChurnArgs),
    /// Cable downstream on two workers: rate, cycles by stage, and the highest rate without loss
    Cmts(CmtsArgs),
    /// XDP program alone: nanoseconds per packet, measured with the kernel's BPF test run (root)
    Driver(DriverArgs),
    /// Router on one worker: replays a capture from memory, forwards between two ports, discards
    Forward(ForwardArgs),
    /// Traffic generator: streams with sequence numbers and timestamps compared with bare frames, both made in the
    /// kernel, on veth (root)
    Generator(GeneratorArgs),
    /// Longest-prefix match: cycles per lookup, memory and build time
    Lookup(LookupArgs),
    /// memif: packets between two threads with separate buffers, or to or from another program
    Memif(MemifArgs),
    /// Model of the memory traffic of a two-thread cable downstream, by pool kind and number of instances
    Memory(MemoryArgs),
    /// Two workers connected by in-memory ports
    Pair(PairArgs),
    /// Forwarding levels on the same traffic: the kernel, a minimal XDP redirect, bywash in the driver or in user space
    /// (root)
    Placement(PlacementArgs),
    /// Flow switch on one worker: replays a capture from memory, matches flows, discards
    Switch(SwitchArgs),
    /// Buffer pools between two threads: one allocates and writes, the other reads and frees
    Pool(PoolArgs),
    /// Forwarding between two or more veth ports by frame size: the kernel, bywash in user space, bywash in the driver
    /// (root)
    Ports(PortsArgs),
    /// Per-thread blocks compared with a shared block: throughput and TLB misses
    Tabm(TabmArgs),
    /// Transmit queues of the flow switch: packets of a burst sent together, or each flow's separately
    Txq(TxqArgs),
    /// Forwarding between veth interfaces in the lab: the kernel, then bywash (root)
    Veth(VethArgs),
}

const SECONDS: std::ops::RangeInclusive<u64> = 1..=3600;

/// Application of `bywash bench afxdp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AfxdpApp {
    /// Receives and drops
    Rxdrop,
    /// Sends the same frame repeatedly
    Txpush,
    /// Forwards between two interfaces
    L2fwd,
}

/// Mapping of buffers to UMEM chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AfxdpLayout {
    /// One buffer per chunk
    Aligned,
    /// One buffer per chunk, registered in unaligned chunk mode
    Unaligned,
    /// Several buffers of 512 bytes per chunk; frames of up to 256 bytes
    Typewriter,
}

/// Wait strategy of `bywash bench afxdp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfxdpMode {
    /// Run to completion: polls the rings continuously, without system calls
    Rtc,
    /// Blocks in poll(2) after 20 µs without frames
    Poll,
    /// Preferred busy polling (SO_PREFER_BUSY_POLL): the driver is polled by this thread's system calls, without
    /// interrupts
    BusyPoll,
}

/// `bywash bench afxdp`
#[derive(Debug, Args)]
pub struct AfxdpArgs {
    /// Operation on frames
    #[arg(long, value_name = "APP", default_value = "rxdrop")]
    pub app: AfxdpApp,
    /// Wait strategy
    #[arg(long, value_name = "MODE", default_value = "rtc")]
    pub mode: AfxdpMode,
    /// Read every byte received (and swap the MAC addresses of forwarded frames); write every byte sent
    #[arg(long)]
    pub touch: bool,
    /// Maximum number of frames received or sent per iteration
    #[arg(long, value_name = "N", default_value_t = bywash_frame::BATCH, value_parser = batch)]
    pub batch: usize,
    /// Size of each of the four rings, in descriptors
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub ring: u32,
    /// Number of sockets that send in turn, on one UMEM and queue
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tx_sockets: usize,
    /// Reclaim sent frames in the order they were sent, comparing each completion with that order
    #[arg(long, value_name = "on|off", default_value = "off", hide_possible_values = true)]
    pub in_order: OnOff,
    /// Mapping of buffers to UMEM chunks
    #[arg(long, value_name = "HOW", default_value = "aligned")]
    pub layout: AfxdpLayout,
    /// Use of AF_XDP zero-copy mode
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub zero_copy: ZeroCopy,
    /// Transmit method
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub transmit: Transmit,
    /// Use the kernel's need-wakeup flag (XDP_USE_NEED_WAKEUP), so that system calls are made only when needed
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub need_wakeup: OnOff,
    /// Maximum number of frames the driver processes per system call, with `--mode busy-poll`
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub budget: u16,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// Number of buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Number of rounds; the result is the median
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Also measure this command in each round: it must do the same on r0, r1 or both, and runs in their network
    /// namespace
    #[arg(long, value_name = "COMMAND")]
    pub peer: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench forward`
#[derive(Debug, Args)]
pub struct ForwardArgs {
    /// Buffer pool policy
    #[arg(long, value_name = "KIND", default_value = "stack")]
    pub pool: PoolKind,
    /// Number of buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Size of the worker's cache in front of the pool, in buffers; a cache hides the pool's policy  [default: 0]
    #[arg(long, value_name = "N", value_parser = cache)]
    pub cache: Option<usize>,
    /// Number of IPv4 routes in the table
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = routes)]
    pub routes: usize,
    /// Number of flows in the traffic, each with its own destination address
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    pub flows: usize,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Read every byte of every forwarded packet
    #[arg(long)]
    pub touch: bool,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// Also measure, in alternating rounds, the cost of an active capture that matches no packet
    #[arg(long, value_name = "WHAT")]
    pub capture: Option<Captured>,
    /// tcpdump expression of `--capture filtered`; no packet of the traffic may match it
    #[arg(long, value_name = "EXPR", default_value = "udp src port 9999")]
    pub filter: String,
    /// CPU to run on  [default: chosen by the scheduler]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Replay this capture file on both ports instead of generated traffic
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Forward between DPDK net_pcap devices on port0.pcap and port1.pcap in this directory (requires a build with the
    /// feature `dpdk`)
    #[arg(long, value_name = "DIR", conflicts_with = "pcap")]
    pub net_pcap: Option<PathBuf>,
    /// Only write the traffic and the routes to this directory (port0.pcap, port1.pcap, and routes_v4.txt in l3fwd's
    /// format), and exit
    #[arg(long, value_name = "DIR", conflicts_with = "pcap")]
    pub write_pcap: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Capture that is active while forwarding is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Captured {
    /// Packets dropped for one reason, which does not occur
    Drops,
    /// Received packets that match a filter, which none matches
    Filtered,
}

/// `bywash bench generator`
#[derive(Debug, Args)]
pub struct GeneratorArgs {
    /// Number of flows in the traffic
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    pub flows: usize,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Number of rounds, alternating between the two
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=99))]
    pub rounds: u64,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench switch`
#[derive(Debug, Args)]
pub struct SwitchArgs {
    /// Number of flows in the traffic, each with its own source address and port
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    pub flows: usize,
    /// File with the switch's flows, in ovs-ofctl syntax; port 1 receives, port 2 discards  [default: 512 flows with
    /// dec_ttl and mod_dl_dst]
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Use the exact-match cache
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub emc: OnOff,
    /// Insertion rate of the exact-match cache: one in N flows that miss it is inserted
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub emc_insert: u32,
    /// Replay this capture file instead of generated traffic
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Number of buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// CPU to run on  [default: chosen by the scheduler]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Only write the traffic and the flows to this directory (traffic.pcap, flows.txt), and exit
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Setting that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnOff {
    /// On
    On,
    /// Off
    Off,
}

/// IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Family {
    /// IPv4
    #[value(name = "4")]
    V4,
    /// IPv6
    #[value(name = "6")]
    V6,
}

/// Addresses to look up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LookupTraffic {
    /// Uniformly random addresses: most match no route and miss the CPU caches
    Uniform,
    /// Random addresses covered by the routes
    Routed,
}

/// `bywash bench lookup`
#[derive(Debug, Args)]
pub struct LookupArgs {
    /// IP version
    #[arg(long, value_name = "4|6", default_value = "4", hide_possible_values = true)]
    pub family: Family,
    /// Number of routes in the table  [default: 500000 for IPv4, 200000 for IPv6]
    #[arg(long, value_name = "N", value_parser = routes)]
    pub routes: Option<usize>,
    /// Addresses to look up
    #[arg(long, value_name = "KIND", default_value = "uniform")]
    pub traffic: LookupTraffic,
    /// CPU to run on  [default: chosen by the scheduler]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl std::fmt::Display for OnOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(if *self == Self::On { "on" } else { "off" })
    }
}

/// `bywash bench memory`
#[derive(Debug, Args)]
pub struct MemoryArgs {
    /// Numbers of instances to model
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8,12", value_parser = instances)]
    pub instances: Vec<usize>,
    /// Pool kinds to model; savings are relative to the first
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "ring,stack")]
    pub kinds: Vec<PoolKind>,
    /// Rate of each instance in Gbit/s
    #[arg(long, value_name = "GBITS", default_value_t = 5.0, value_parser = gbits)]
    pub rate: f64,
    /// Compute a CRC over each packet
    #[arg(long, value_name = "WHETHER", default_value = "off")]
    pub crc: OnOff,
    /// Number of buffers in each instance's pool; the default is the power of two above the reference document's peak
    /// of 20,000
    #[arg(long, value_name = "N", default_value_t = 32768, value_parser = frames)]
    pub frames: usize,
    /// Packets in flight in each instance, between receive and transmit ring; the default is the reference document's
    #[arg(long, value_name = "N", default_value_t = 750, value_parser = in_flight)]
    pub in_flight: usize,
    /// Size of each receive ring in descriptors; the default is that of the example programs of DPDK 18.08
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = descriptors)]
    pub rx_ring: usize,
    /// Size of each transmit ring in descriptors, where a sent frame stays until its slot is reused; default as for
    /// --rx-ring
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = descriptors)]
    pub tx_ring: usize,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench churn`
#[derive(Debug, Args)]
pub struct ChurnArgs {
    /// Route changes per second; 0: as many as the kernel accepts
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub rate: u64,
    /// Packets per second
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub packets: u64,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Forwarding level
    #[arg(long, value_name = "LEVEL", default_value = "driver")]
    pub level: Level,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench driver`
#[derive(Debug, Args)]
pub struct DriverArgs {
    /// IP version
    #[arg(long, value_name = "4|6", default_value = "4", hide_possible_values = true)]
    pub family: Family,
    /// Number of routes in the table, over 256 next hops
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = routes)]
    pub routes: usize,
    /// Number of destination addresses in the traffic
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = heads)]
    pub destinations: usize,
    /// Number of rounds of two million packets each; the result is the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// CPU to run on  [default: chosen by the scheduler]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench cmts`
#[derive(Debug, Args)]
pub struct CmtsArgs {
    /// Number of instances, each with an upper and a lower MAC on two CPUs: hyper-threads of one core if possible
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number_of_instances)]
    pub instances: usize,
    /// Append a CRC to each PDU
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub crc: OnOff,
    /// Encrypt PDUs
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub cipher: OnOff,
    /// Encryption library
    #[arg(long, value_name = "WHO", default_value = "auto")]
    pub crypto: Crypto,
    /// Let the upper MAC's worker encrypt as well while the lower MAC is behind
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub assist: OnOff,
    /// Pool kinds, measured one after the other
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "ring,stack")]
    pub kinds: Vec<PoolKind>,
    /// Packet sizes in bytes without FCS, each with its share  [default: 68:3,932:1,1520:96]
    #[arg(long, value_name = "SIZE:SHARE,..", value_delimiter = ',', value_parser = share, conflicts_with = "size")]
    pub imix: Option<Vec<MixShare>>,
    /// Use one packet size, in bytes without FCS
    #[arg(long, value_name = "BYTES", value_parser = pdu)]
    pub size: Option<usize>,
    /// Modems per instance, each with two flows
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = modems)]
    pub modems: usize,
    /// Replay this capture file instead; each destination address in it is a modem
    #[arg(long, value_name = "FILE", conflicts_with_all = ["imix", "size", "modems"])]
    pub pcap: Option<PathBuf>,
    /// Part of each packet that the traffic source (which stands for a device) writes: `headers`, 64 bytes, with stale
    /// buffer contents as payload, or `all`, copied by the upper MAC's CPU
    #[arg(long, value_name = "PART", default_value = "headers")]
    pub writes: Writes,
    /// Fixed rate of each instance in Gbit/s, even with loss  [default: the maximum, followed by the search]
    #[arg(long, value_name = "GBITS", value_parser = gbits)]
    pub rate: Option<f64>,
    /// Search for the highest rate without loss
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub search: OnOff,
    /// Length of each trial of the search, in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub trial: u64,
    /// Also measure the encryption library alone, with PDUs of 1518 bytes
    #[arg(long)]
    pub library: bool,
    /// Number of buffers in each instance's pool
    #[arg(long, value_name = "N", default_value_t = 32768, value_parser = frames)]
    pub frames: usize,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Part of a packet that the traffic source of `bench cmts` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Writes {
    /// First 64 bytes, like a generator with constant payloads: the CPU is spared the device's work
    Headers,
    /// Every byte: the CPU does the device's work
    All,
}

/// Packet size and its share in a traffic mix.
#[derive(Clone, Copy, Debug)]
pub struct MixShare {
    /// Size in bytes without FCS.
    pub size: usize,
    /// Share, relative to the sum of all weights.
    pub weight: u32,
}

/// `bywash bench pair`
#[derive(Debug, Args)]
pub struct PairArgs {
    /// Buffer pool policy
    #[arg(long, value_name = "KIND", default_value = "stack")]
    pub pool: PoolKind,
    /// Number of buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Bytes of each frame that the receiver copies into its own buffer, to show what zero copy saves
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = touch)]
    pub copy: usize,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench memif`
#[derive(Debug, Args)]
pub struct MemifArgs {
    /// Our side of the memif; without --socket, the other thread is the other side
    #[arg(long, value_name = "server|client", default_value = "client", hide_possible_values = true)]
    pub role: MemifRole,
    /// Direction of the packets, as seen from our side
    #[arg(long, value_name = "send|receive", default_value = "send", hide_possible_values = true)]
    pub way: MemifWay,
    /// Control socket of a memif shared with another program  [default: both sides are in this process]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Packet size in bytes, without FCS
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Size of each ring in slots, if our side is the client
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub ring: usize,
    /// CPU to run on  [default: the first CPU, and the second for the other thread]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Direction of the packets in `bywash bench memif`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemifWay {
    /// Our side sends
    Send,
    /// Our side receives
    Receive,
}

/// `bywash bench pool`
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// Pool kinds to measure, in this order
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "ring,stack,sdb,tabm")]
    pub kinds: Vec<PoolKind>,
    /// Number of threads: 1, which allocates and frees, or an even number, half of which allocate and half free
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = pool_threads)]
    pub threads: usize,
    /// Number of buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 131_072, value_parser = frames)]
    pub frames: usize,
    /// Block size of `sdb` and `tabm`, in buffers
    #[arg(long, value_name = "N", default_value_t = bywash_frame::BLOCK, value_parser = block)]
    pub block: usize,
    /// Number of bytes written and read per buffer
    #[arg(long, value_name = "BYTES", default_value_t = 1520, value_parser = touch)]
    pub touch: usize,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// Measure the pool kinds in turn for five rounds and print the medians
    #[arg(long)]
    pub alternate: bool,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench tabm`
#[derive(Debug, Args)]
pub struct TabmArgs {
    /// Pool kinds to measure in turn: sdb, tabm, typewriter
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "sdb,tabm")]
    pub kinds: Vec<PoolKind>,
    /// Thread counts to measure
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8", value_parser = channels)]
    pub threads: Vec<usize>,
    /// Packet sizes, in bytes
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,128,256,512,1024,1500", value_parser = packet)]
    pub sizes: Vec<usize>,
    /// Number of buffers in the region that the threads share or that is divided between them
    #[arg(long, value_name = "N", default_value_t = 131_072, value_parser = frames)]
    pub frames: usize,
    /// Block size, in buffers
    #[arg(long, value_name = "N", default_value_t = bywash_frame::BLOCK, value_parser = block)]
    pub block: usize,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "4k")]
    pub pages: Pages,
    /// Reuse a thread's blocks in the order they were freed, as `sdb` does, instead of the last freed first
    #[arg(long)]
    pub fifo: bool,
    /// Number of rounds, each measuring all kinds; the result is the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Length of each measurement, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    pub milliseconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench txq`
#[derive(Debug, Args)]
pub struct TxqArgs {
    /// Flow counts to measure; each flow has its own source address, used in turn
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,16,64", value_parser = txq_flows)]
    pub flows: Vec<usize>,
    /// Send all packets for a port together (on), or each flow's packets immediately (off)  [default: measure both in
    /// turn]
    #[arg(long, value_name = "on|off", hide_possible_values = true)]
    pub coalesce: Option<OnOff>,
    /// Kind of egress port
    #[arg(long, value_name = "PORT", default_value = "pair")]
    pub port: TxqPort,
    /// Transmit method of the veth port
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub transmit: Transmit,
    /// Number of frames after which the TX queue sends
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = burst)]
    pub burst: usize,
    /// Maximum time the TX queue collects frames, in microseconds; 0: until the end of the worker's iteration
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub deadline_us: u64,
    /// Offered load in packets per second  [default: as many as are accepted]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub rate: Option<u64>,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Number of buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Number of rounds, each measuring on and off; the result is the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Length of each measurement, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    pub milliseconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Egress port of `bywash bench txq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TxqPort {
    /// In-memory ring to another thread
    Pair,
    /// memif to another thread with separate buffers
    Memif,
    /// AF_XDP on a veth whose peer drops the frames (root)
    Veth,
    /// Discards the frames
    Null,
}

impl TxqPort {
    /// Returns the port's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pair => "pair",
            Self::Memif => "memif",
            Self::Veth => "veth",
            Self::Null => "null",
        }
    }
}

/// `bywash bench veth`
#[derive(Debug, Args)]
pub struct VethArgs {
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Number of rounds, each measuring all of them; the result is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Measure only bywash, not the kernel
    #[arg(long)]
    pub ours_only: bool,
    /// Transmit method of bywash's ports
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub transmit: Transmit,
    /// Also measure this command: it must forward between r0 and r1, and runs in the router's network namespace
    #[arg(long, value_name = "COMMAND")]
    pub peer: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Receiver at the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sink {
    /// Driver of the far host, which drops the packets
    Driver,
    /// Network stack of the far host, on the CPU that sent the packets
    Stack,
}

/// `bywash bench placement`
#[derive(Debug, Args)]
pub struct PlacementArgs {
    /// Forwarding levels, separated by commas; `mpps` in the JSON is that of the first
    #[arg(long, value_name = "LEVEL", default_value = "driver", value_delimiter = ',')]
    pub level: Vec<Level>,
    /// Number of IPv4 routes in the kernel's table, over 250 next hops
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = routes)]
    pub routes: usize,
    /// Number of destination addresses in the traffic
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    pub destinations: usize,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Number of rounds, each measuring all of them; the result is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Measure only bywash, not the kernel or the minimal XDP redirect
    #[arg(long)]
    pub ours_only: bool,
    /// Also measure the driver with these CPUs transmitting what it forwards (as `bywash run --spread`)
    #[arg(long, value_name = "LIST", value_parser = super::only_cpus)]
    pub spread: Option<super::CpuList>,
    /// Receiver of the forwarded packets
    #[arg(long, value_name = "WHO", default_value = "driver")]
    pub sink: Sink,
    /// Also measure this command: it must forward between r0 and r1, and runs in the router's network namespace; can be
    /// repeated
    #[arg(long, value_name = "NAME=COMMAND")]
    pub peer: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench ports`
#[derive(Debug, Args)]
pub struct PortsArgs {
    /// Port counts to measure; half of the ports send to the other half and back
    #[arg(long, value_name = "LIST", default_value = "2,4,6", value_delimiter = ',', value_parser = even_ports)]
    pub ports: Vec<usize>,
    /// Frame sizes on the wire in bytes, FCS included
    #[arg(long, value_name = "LIST", default_value = "64,128,256,512,1024,1280,1518", value_delimiter = ',', value_parser = size)]
    pub sizes: Vec<usize>,
    /// Number of rounds, each measuring everything; the result is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn number(text: &str, range: std::ops::RangeInclusive<usize>, what: &str) -> Result<usize, String> {
    let wanted = || format!("expected {} to {} {what}", range.start(), range.end());
    text.replace('_', "").parse().ok().filter(|n| range.contains(n)).ok_or_else(wanted)
}

fn frames(text: &str) -> Result<usize, String> {
    number(text, crate::config::FRAMES, "buffers")
}

fn batch(text: &str) -> Result<usize, String> {
    number(text, 1..=bywash_frame::BATCH, "frames")
}

fn cache(text: &str) -> Result<usize, String> {
    number(text, 0..=8192, "buffers")
}

fn block(text: &str) -> Result<usize, String> {
    let wanted = "expected a power of two from 64 to 65536".to_string();
    number(text, crate::config::BLOCK, "buffers").ok().filter(|n| n.is_power_of_two()).ok_or(wanted)
}

fn instances(text: &str) -> Result<usize, String> {
    number(text, 1..=20, "instances: the modelled processor has 20 cores")
}

fn number_of_instances(text: &str) -> Result<usize, String> {
    number(text, 1..=64, "instances")
}

fn modems(text: &str) -> Result<usize, String> {
    number(text, 1..=bywash_docsis::group::MODEMS_MAX, "modems")
}

/// Parses a PDU size in bytes: from the headers of UDP over IPv4 (60) to the space of a cell without MAC header and CRC
/// (1700).
fn pdu(text: &str) -> Result<usize, String> {
    number(text, 60..=1700, "bytes")
}

fn share(text: &str) -> Result<MixShare, String> {
    let (size, weight) = text.split_once(':').ok_or("expected SIZE:SHARE, such as 1520:96")?;
    Ok(MixShare { size: pdu(size)?, weight: number(weight, 1..=1_000_000, "parts")? as u32 })
}

fn descriptors(text: &str) -> Result<usize, String> {
    number(text, 64..=4096, "descriptors")
}

fn in_flight(text: &str) -> Result<usize, String> {
    number(text, 32..=1 << 20, "packets (a burst has 32)")
}

fn gbits(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|rate| (0.001..=1000.0).contains(rate)).ok_or("expected 0.001 to 1000 Gbit/s".into())
}

fn txq_flows(text: &str) -> Result<usize, String> {
    number(text, 1..=4096, "flows")
}

fn burst(text: &str) -> Result<usize, String> {
    number(text, 1..=bywash_frame::BATCH, "frames")
}

fn pool_threads(text: &str) -> Result<usize, String> {
    let wanted = "expected 1 or an even number from 2 to 64".to_string();
    number(text, 1..=64, "threads").ok().filter(|n| *n == 1 || n % 2 == 0).ok_or(wanted)
}

fn even_ports(text: &str) -> Result<usize, String> {
    let wanted = "expected an even number of ports from 2 to 16".to_string();
    number(text, 2..=16, "ports").ok().filter(|n| n % 2 == 0).ok_or(wanted)
}

fn channels(text: &str) -> Result<usize, String> {
    number(text, 1..=16, "threads")
}

fn touch(text: &str) -> Result<usize, String> {
    number(text, 0..=1792, "bytes")
}

fn packet(text: &str) -> Result<usize, String> {
    number(text, 64..=1518, "bytes")
}

fn routes(text: &str) -> Result<usize, String> {
    number(text, 1..=4_000_000, "routes")
}

fn flows(text: &str) -> Result<usize, String> {
    number(text, 1..=1 << 20, "flows")
}

fn heads(text: &str) -> Result<usize, String> {
    number(text, 1..=bywash_port::af_xdp::HEADS, "destinations")
}

/// Parses a frame size in bytes, from 64 (Ethernet's minimum) to 1518 (the maximum without VLAN tag or jumbo frames;
/// RFC 2544, section 9.1).
fn size(text: &str) -> Result<usize, String> {
    number(text, 64..=1518, "bytes")
}
