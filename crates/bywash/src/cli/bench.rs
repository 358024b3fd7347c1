//! The arguments of `bywash bench`.

use super::docsis::Crypto;
use crate::config::{Level, MemifRole, Pages, PoolKind, Transmit, ZeroCopy};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub enum BenchArgs {
    /// AF_XDP alone, on veth: frames received, sent or forwarded, and what each knob of it gives (root)
    Afxdp(AfxdpArgs),
    /// Routes that change while packets flow: none lost, none by a wrong way, and how far behind (root)
    Churn(ChurnArgs),
    /// The two-worker cable downstream: rate, cycles by stage, and the highest rate without loss
    Cmts(CmtsArgs),
    /// The XDP program alone: nanoseconds a packet, by the kernel's test run (root)
    Driver(DriverArgs),
    /// One worker, the full router path: pcap replayed from memory, two ports, discard
    Forward(ForwardArgs),
    /// Streams with sequence numbers and times against the barest frames, both made in the kernel, on veth (root)
    Generator(GeneratorArgs),
    /// Longest-prefix match: cycles, bytes and build time
    Lookup(LookupArgs),
    /// memif: packets between two threads with buffers of their own, or to or from another program
    Memif(MemifArgs),
    /// Memory traffic of a two-thread cable downstream by pool kind and number of instances, modelled
    Memory(MemoryArgs),
    /// Two workers joined by ports in memory
    Pair(PairArgs),
    /// Each level on the same frames: the kernel, the barest XDP redirect, us in the driver or in user space (root)
    Placement(PlacementArgs),
    /// One worker, the flow switch: pcap replayed from memory, flows, discard
    Switch(SwitchArgs),
    /// Buffer pools between two threads: taken and written by one, read and freed by the other
    Pool(PoolArgs),
    /// Forwarding between two and more veth ports by frame size: the kernel, us in user space, us in the driver (root)
    Ports(PortsArgs),
    /// Blocks that are a thread's own against blocks that all share: throughput and TLB misses
    Tabm(TabmArgs),
    /// Transmit queues: the flow switch sends a burst's packets together, or each flow's on their own
    Txq(TxqArgs),
    /// Forwarding between veth interfaces in the lab: the kernel, then us (root)
    Veth(VethArgs),
}

const SECONDS: std::ops::RangeInclusive<u64> = 1..=3600;

/// What `bywash bench afxdp` does with frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AfxdpApp {
    /// Receives and drops
    Rxdrop,
    /// Sends the same frame over and over
    Txpush,
    /// Receives on one interface and sends out of the other
    L2fwd,
}

/// How the kernel's chunks of memory lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AfxdpLayout {
    /// A chunk is a buffer
    Aligned,
    /// The same, registered as chunks that may begin anywhere
    Unaligned,
    /// Buffers of 512 bytes, several in a chunk; frames of up to 256 bytes
    Typewriter,
}

/// How `bywash bench afxdp` waits for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfxdpMode {
    /// Run to completion: looks at the rings again and again, without a system call
    Rtc,
    /// By poll(2), when nothing has come for 20 us
    Poll,
    /// Has the driver polled by its own system calls, and no interrupts (SO_PREFER_BUSY_POLL)
    BusyPoll,
}

/// `bywash bench afxdp`
#[derive(Debug, Args)]
pub struct AfxdpArgs {
    /// What is done with frames
    #[arg(long, value_name = "APP", default_value = "rxdrop")]
    pub app: AfxdpApp,
    /// How it waits for frames
    #[arg(long, value_name = "MODE", default_value = "rtc")]
    pub mode: AfxdpMode,
    /// Read every byte received (and swap the MAC addresses of what is forwarded), write every byte sent
    #[arg(long)]
    pub touch: bool,
    /// Frames received or sent in one turn
    #[arg(long, value_name = "N", default_value_t = bywash_frame::BATCH, value_parser = batch)]
    pub batch: usize,
    /// Descriptors in each of the four rings
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub ring: u32,
    /// Sockets that send in turn, on one UMEM and queue
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tx_sockets: usize,
    /// Take back what was sent in the order it was sent in, comparing each completion with that
    #[arg(long, value_name = "on|off", default_value = "off", hide_possible_values = true)]
    pub in_order: OnOff,
    /// How the kernel's chunks of memory lie
    #[arg(long, value_name = "HOW", default_value = "aligned")]
    pub layout: AfxdpLayout,
    /// AF_XDP zero-copy
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub zero_copy: ZeroCopy,
    /// How frames are sent
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub transmit: Transmit,
    /// Whether the kernel says when it must be woken
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub need_wakeup: OnOff,
    /// Frames the driver may receive in one system call, with `--mode busy-poll`
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub budget: u16,
    /// Pages the buffers lie in
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// Buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Rounds; the result is the median
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Measure this in each round as well: a command that does the same to r0, r1 or both, run in their network namespace
    #[arg(long, value_name = "COMMAND")]
    pub peer: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench forward`
#[derive(Debug, Args)]
pub struct ForwardArgs {
    /// Order in which buffers are used again
    #[arg(long, value_name = "KIND", default_value = "stack")]
    pub pool: PoolKind,
    /// Buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Buffers in the worker's cache in front of the pool; it would hide the pool's policy  [default: 0]
    #[arg(long, value_name = "N", value_parser = cache)]
    pub cache: Option<usize>,
    /// IPv4 routes in the table
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = routes)]
    pub routes: usize,
    /// Flows in the traffic: as many destination addresses
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    pub flows: usize,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Read every byte of every packet on the way
    #[arg(long)]
    pub touch: bool,
    /// Pages the buffers lie in
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// Measure as well, by turns, what a capture costs that captures nothing
    #[arg(long, value_name = "WHAT")]
    pub capture: Option<Captured>,
    /// The filter of `--capture filtered`, in tcpdump's language: one that no packet of the traffic passes
    #[arg(long, value_name = "EXPR", default_value = "udp src port 9999")]
    pub filter: String,
    /// CPU to run on  [default: where the kernel puts it]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Replay this pcap on both ports instead of generated traffic
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Forward between DPDK's net_pcap devices on port0.pcap and port1.pcap of this directory (a build with the feature `dpdk`)
    #[arg(long, value_name = "DIR", conflicts_with = "pcap")]
    pub net_pcap: Option<PathBuf>,
    /// Only write the traffic and the routes (port0.pcap, port1.pcap, routes_v4.txt as l3fwd reads them), and end
    #[arg(long, value_name = "DIR", conflicts_with = "pcap")]
    pub write_pcap: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What is captured while forwarding is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Captured {
    /// Packets dropped for one reason, of which there are none
    Drops,
    /// Received packets that pass a filter, which none does
    Filtered,
}

/// `bywash bench generator`
#[derive(Debug, Args)]
pub struct GeneratorArgs {
    /// Flows in the traffic
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    pub flows: usize,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Alternating rounds
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
    /// Flows in the traffic: as many source addresses and ports
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    pub flows: usize,
    /// Flows of the switch, in ovs-ofctl's syntax; port 1 receives, port 2 discards  [default: 512 with dec_ttl, mod_dl_dst]
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// Exact-match cache
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub emc: OnOff,
    /// One in this many flows that the exact-match cache lacks is put there
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub emc_insert: u32,
    /// Replay this pcap instead of generated traffic
    #[arg(long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,
    /// Buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Pages the buffers lie in
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// CPU to run on  [default: where the kernel puts it]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Only write the traffic and the flows (traffic.pcap, flows.txt), and end
    #[arg(long, value_name = "DIR")]
    pub write: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OnOff {
    /// On
    On,
    /// Off
    Off,
}

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Family {
    /// IPv4
    #[value(name = "4")]
    V4,
    /// IPv6
    #[value(name = "6")]
    V6,
}

/// Which addresses are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LookupTraffic {
    /// Uniformly random addresses: most routes are missed, caches as well
    Uniform,
    /// Addresses within the routes
    Routed,
}

/// `bywash bench lookup`
#[derive(Debug, Args)]
pub struct LookupArgs {
    /// IP version
    #[arg(long, value_name = "4|6", default_value = "4", hide_possible_values = true)]
    pub family: Family,
    /// Routes in the table  [default: 500000 for IPv4, 200000 for IPv6]
    #[arg(long, value_name = "N", value_parser = routes)]
    pub routes: Option<usize>,
    /// Which addresses are looked up
    #[arg(long, value_name = "KIND", default_value = "uniform")]
    pub traffic: LookupTraffic,
    /// CPU to run on  [default: where the kernel puts it]
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
    /// Numbers of instances
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8,12", value_parser = instances)]
    pub instances: Vec<usize>,
    /// Kinds of pool; what each saves is against the first
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "ring,stack")]
    pub kinds: Vec<PoolKind>,
    /// Gbit/s of each instance
    #[arg(long, value_name = "GBITS", default_value_t = 5.0, value_parser = gbits)]
    pub rate: f64,
    /// Whether a CRC is computed over each packet
    #[arg(long, value_name = "WHETHER", default_value = "off")]
    pub crc: OnOff,
    /// Buffers in each instance's pool: the power of two that holds the document's peak of 20,000
    #[arg(long, value_name = "N", default_value_t = 32768, value_parser = frames)]
    pub frames: usize,
    /// Packets in flight in each instance, between receive and transmit ring: the document's
    #[arg(long, value_name = "N", default_value_t = 750, value_parser = in_flight)]
    pub in_flight: usize,
    /// Descriptors of each receive ring: what the programs that come with DPDK 18.08 ask for
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = descriptors)]
    pub rx_ring: usize,
    /// Descriptors of each transmit ring, where a sent frame waits until its slot is needed: as above
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = descriptors)]
    pub tx_ring: usize,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench churn`
#[derive(Debug, Args)]
pub struct ChurnArgs {
    /// Route changes a second; 0: as many as the kernel takes
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub rate: u64,
    /// Packets a second
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub packets: u64,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Where to forward
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
    /// Routes in the table, over 256 next hops
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = routes)]
    pub routes: usize,
    /// Destination addresses in the traffic
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = heads)]
    pub destinations: usize,
    /// Rounds of two million packets; the result is the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// CPU to run on  [default: where the kernel puts it]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench cmts`
#[derive(Debug, Args)]
pub struct CmtsArgs {
    /// Instances, each an upper and a lower MAC on two CPUs: siblings where there are any
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number_of_instances)]
    pub instances: usize,
    /// Whether a CRC is put behind each PDU
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub crc: OnOff,
    /// Whether PDUs are enciphered
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub cipher: OnOff,
    /// Who seals
    #[arg(long, value_name = "WHO", default_value = "auto")]
    pub crypto: Crypto,
    /// Whether the upper MAC seals as well while the lower one is behind
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub assist: OnOff,
    /// Kinds of pool, each measured after the other
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "ring,stack")]
    pub kinds: Vec<PoolKind>,
    /// Packets: sizes in bytes without FCS, each with its share  [default: 68:3,932:1,1520:96]
    #[arg(long, value_name = "SIZE:SHARE,..", value_delimiter = ',', value_parser = share, conflicts_with = "size")]
    pub imix: Option<Vec<MixShare>>,
    /// Packets of one size, in bytes without FCS
    #[arg(long, value_name = "BYTES", value_parser = pdu)]
    pub size: Option<usize>,
    /// Modems of an instance, each with two flows
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = modems)]
    pub modems: usize,
    /// Replay this pcap instead; its destination addresses are the modems
    #[arg(long, value_name = "FILE", conflicts_with_all = ["imix", "size", "modems"])]
    pub pcap: Option<PathBuf>,
    /// What the source, which stands for a device, writes of a packet: `headers` (64 bytes, the payload being what the
    /// buffer held) or `all`, copied by the upper MAC's CPU
    #[arg(long, value_name = "PART", default_value = "headers")]
    pub writes: Writes,
    /// Gbit/s of each instance, whatever is lost  [default: no more than can be done, and then the search]
    #[arg(long, value_name = "GBITS", value_parser = gbits)]
    pub rate: Option<f64>,
    /// Whether the highest rate without loss is looked for
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub search: OnOff,
    /// Length of each trial of the search, in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub trial: u64,
    /// Measure sealing alone as well, with PDUs of 1518 bytes
    #[arg(long)]
    pub library: bool,
    /// Buffers in the pool of each instance
    #[arg(long, value_name = "N", default_value_t = 32768, value_parser = frames)]
    pub frames: usize,
    /// Pages the buffers lie in
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What the source of `bench cmts` writes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Writes {
    /// Its first 64 bytes, as a generator whose payloads do not change: the processor does not do the device's work
    Headers,
    /// Every byte: the processor does
    All,
}

/// A share of packets.
#[derive(Clone, Copy, Debug)]
pub struct MixShare {
    /// Bytes without FCS.
    pub size: usize,
    /// In parts of the sum of all.
    pub weight: u32,
}

/// `bywash bench pair`
#[derive(Debug, Args)]
pub struct PairArgs {
    /// Order in which buffers are used again
    #[arg(long, value_name = "KIND", default_value = "stack")]
    pub pool: PoolKind,
    /// Buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Have the receiver copy so many bytes of each frame into a buffer of its own: what zero copy saves
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
    /// Which side we are; without --socket, the other thread is the other
    #[arg(long, value_name = "server|client", default_value = "client", hide_possible_values = true)]
    pub role: MemifRole,
    /// Which way the packets go, from our side
    #[arg(long, value_name = "send|receive", default_value = "send", hide_possible_values = true)]
    pub way: MemifWay,
    /// Control socket of the memif, with another program as the peer  [default: both sides are ours]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Packet size in bytes, which has no FCS
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Slots of each ring, where we are the client
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub ring: usize,
    /// CPU to run on  [default: the first; the other thread on the second]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MemifWay {
    /// We send
    Send,
    /// We receive
    Receive,
}

/// `bywash bench pool`
#[derive(Debug, Args)]
pub struct PoolArgs {
    /// Kinds to measure, in this order
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "ring,stack,sdb,tabm")]
    pub kinds: Vec<PoolKind>,
    /// Threads: 1, which takes and frees, or pairs of a taker and a releaser
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = pool_threads)]
    pub threads: usize,
    /// Buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 131_072, value_parser = frames)]
    pub frames: usize,
    /// Buffers a block of `sdb` and `tabm`
    #[arg(long, value_name = "N", default_value_t = bywash_frame::BLOCK, value_parser = block)]
    pub block: usize,
    /// Bytes of each buffer that are written and read
    #[arg(long, value_name = "BYTES", default_value_t = 1520, value_parser = touch)]
    pub touch: usize,
    /// Pages the buffers lie in
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// Measure the kinds in turn, five rounds, and print the medians
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
    /// Kinds of blocks to measure, by turns: sdb, tabm, typewriter
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "sdb,tabm")]
    pub kinds: Vec<PoolKind>,
    /// Numbers of threads to measure with
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8", value_parser = channels)]
    pub threads: Vec<usize>,
    /// Packet sizes, in bytes
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,128,256,512,1024,1500", value_parser = packet)]
    pub sizes: Vec<usize>,
    /// Buffers in the region that the threads share, or that is split between them
    #[arg(long, value_name = "N", default_value_t = 131_072, value_parser = frames)]
    pub frames: usize,
    /// Buffers a block
    #[arg(long, value_name = "N", default_value_t = bywash_frame::BLOCK, value_parser = block)]
    pub block: usize,
    /// Pages the buffers lie in
    #[arg(long, value_name = "SIZE", default_value = "4k")]
    pub pages: Pages,
    /// Hand out a thread's blocks in the order they came back, as `sdb` does, and not the latest first
    #[arg(long)]
    pub fifo: bool,
    /// Rounds, each measuring all kinds; the result is the median
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
    /// Numbers of flows: as many source addresses, in turn
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,4,16,64", value_parser = txq_flows)]
    pub flows: Vec<usize>,
    /// Send what leaves by the port together, or each flow's packets at once  [default: measure both in turn]
    #[arg(long, value_name = "on|off", hide_possible_values = true)]
    pub coalesce: Option<OnOff>,
    /// Where to send
    #[arg(long, value_name = "PORT", default_value = "pair")]
    pub port: TxqPort,
    /// How the veth's port sends
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub transmit: Transmit,
    /// Frames that the tx queue sends at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = burst)]
    pub burst: usize,
    /// Longest that the tx queue waits for them, in microseconds; 0: to the end of the worker's turn
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=10_000))]
    pub deadline_us: u64,
    /// Packets per second that are offered  [default: as many as are taken]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub rate: Option<u64>,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Rounds, each measuring on and off; the result is the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Length of each measurement, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    pub milliseconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Where `bywash bench txq` sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TxqPort {
    /// A ring in memory to another thread
    Pair,
    /// memif, to another thread with buffers of its own
    Memif,
    /// AF_XDP on a veth whose other end drops (root)
    Veth,
    /// Nowhere
    Null,
}

impl TxqPort {
    /// As given on the command line.
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
    /// Rounds, each measuring all of them; the result is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Do not measure the kernel
    #[arg(long)]
    pub ours_only: bool,
    /// How bywash's ports send
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub transmit: Transmit,
    /// Measure this as well: a command that forwards between r0 and r1, run in the router's network namespace
    #[arg(long, value_name = "COMMAND")]
    pub peer: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Who receives at the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sink {
    /// The far host's driver, which drops it
    Driver,
    /// The far host's stack, on the CPU that sent it
    Stack,
}

/// `bywash bench placement`
#[derive(Debug, Args)]
pub struct PlacementArgs {
    /// Where to forward, one or more, separated by commas; `mpps` is the first one's
    #[arg(long, value_name = "LEVEL", default_value = "driver", value_delimiter = ',')]
    pub level: Vec<Level>,
    /// IPv4 routes in the kernel's table, over 250 next hops
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = routes)]
    pub routes: usize,
    /// Destination addresses in the traffic
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    pub destinations: usize,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Rounds, each measuring all of them; the result is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Measure neither the kernel nor the bare redirect
    #[arg(long)]
    pub ours_only: bool,
    /// Measure this as well: the driver, with these CPUs to send what it forwards (`bywash run --spread`)
    #[arg(long, value_name = "LIST", value_parser = super::only_cpus)]
    pub spread: Option<super::CpuList>,
    /// Who receives what was forwarded
    #[arg(long, value_name = "WHO", default_value = "driver")]
    pub sink: Sink,
    /// Measure these as well: commands that forward between r0 and r1, run in the router's network namespace
    #[arg(long, value_name = "NAME=COMMAND")]
    pub peer: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash bench ports`
#[derive(Debug, Args)]
pub struct PortsArgs {
    /// Numbers of ports, half of them sending to the other half and back
    #[arg(long, value_name = "LIST", default_value = "2,4,6", value_delimiter = ',', value_parser = even_ports)]
    pub ports: Vec<usize>,
    /// Frame sizes on the wire in bytes, FCS included
    #[arg(long, value_name = "LIST", default_value = "64,128,256,512,1024,1280,1518", value_delimiter = ',', value_parser = size)]
    pub sizes: Vec<usize>,
    /// Rounds, each measuring all; the result is the median
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
    number(text, 1..=20, "instances: the processor has so many cores")
}

fn number_of_instances(text: &str) -> Result<usize, String> {
    number(text, 1..=64, "instances")
}

fn modems(text: &str) -> Result<usize, String> {
    number(text, 1..=bywash_docsis::group::MODEMS_MAX, "modems")
}

/// From the headers of UDP over IPv4 to what a cell holds beside the MAC header and the CRC.
fn pdu(text: &str) -> Result<usize, String> {
    number(text, 60..=1700, "bytes")
}

fn share(text: &str) -> Result<MixShare, String> {
    let (size, weight) = text.split_once(':').ok_or("expected SIZE:SHARE, as in 1520:96")?;
    Ok(MixShare { size: pdu(size)?, weight: number(weight, 1..=1_000_000, "parts")? as u32 })
}

fn descriptors(text: &str) -> Result<usize, String> {
    number(text, 64..=4096, "descriptors")
}

fn in_flight(text: &str) -> Result<usize, String> {
    number(text, 32..=1 << 20, "packets: a burst is 32")
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
    let wanted = "expected 1, or an even number to 64".to_string();
    number(text, 1..=64, "threads").ok().filter(|n| *n == 1 || n % 2 == 0).ok_or(wanted)
}

fn even_ports(text: &str) -> Result<usize, String> {
    let wanted = "expected 2, 4, ..., 16 ports".to_string();
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

/// 64: the least Ethernet has; 1518: the most without VLAN tags or jumbo frames (RFC 2544, section 9.1).
fn size(text: &str) -> Result<usize, String> {
    number(text, 64..=1518, "bytes")
}
