//! The configuration as the rest of the program uses it: plain values, every default filled in.
//!
//! It serializes to what can be read back: `bywash show config` prints a file.

use super::cmts::{CmtsConfig, FlowConfig, GroupConfig};
use super::plan::SPARE;
use bywash_exceptions::Kind;
use clap::ValueEnum;
use serde::{Serialize, Serializer};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Frames a pool can have. The most is 32 GiB of 2 KiB cells.
pub const FRAMES: RangeInclusive<usize> = 64..=16 << 20;
/// Frames a block can have, in powers of two.
pub const BLOCK: RangeInclusive<usize> = 64..=65536;
/// Worker threads there can be.
pub const WORKERS: RangeInclusive<usize> = 1..=256;

/// A value, or the program's own choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Auto<T> {
    /// The program chooses.
    #[default]
    Auto,
    /// This value.
    Set(T),
}

impl<T> Auto<T> {
    /// The value that was set.
    pub fn set(&self) -> Option<&T> {
        match self {
            Self::Auto => None,
            Self::Set(value) => Some(value),
        }
    }
}

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => to.serialize_str("auto"),
            Self::Set(value) => value.serialize(to),
        }
    }
}

/// A pool's policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PoolKind {
    /// Last in, first out
    #[default]
    Stack,
    /// First in, first out, behind a cache per worker
    Ring,
    /// Blocks at consecutive addresses, one that all workers share
    Sdb,
    /// Blocks at consecutive addresses, one for each worker
    Tabm,
    /// As tabm, each packet in no more room than it needs
    Typewriter,
}

impl From<PoolKind> for bywash_frame::PoolKind {
    fn from(kind: PoolKind) -> Self {
        match kind {
            PoolKind::Stack => Self::Stack,
            PoolKind::Ring => Self::Ring,
            PoolKind::Sdb => Self::Sdb,
            PoolKind::Tabm => Self::Tabm,
            PoolKind::Typewriter => Self::Typewriter,
        }
    }
}

/// A size of page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Pages {
    /// The best that can be had
    #[default]
    Auto,
    /// 2 MiB, or an error
    #[serde(rename = "2m")]
    #[value(name = "2m")]
    Huge,
    /// 4 KiB
    #[serde(rename = "4k")]
    #[value(name = "4k")]
    Small,
}

impl From<Pages> for bywash_frame::Pages {
    fn from(pages: Pages) -> Self {
        match pages {
            Pages::Auto => Self::Auto,
            Pages::Huge => Self::Huge,
            Pages::Small => Self::Small,
        }
    }
}

/// What the program is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A router beside the kernel, by the kernel's own tables
    #[default]
    Router,
    /// A switch: flows, and a learning bridge
    Switch,
    /// The downstream of a cable modem termination system
    Cmts,
}

/// Whether what the program may do is cut down to what it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Sandbox {
    /// Few capabilities, no new privileges, and no system calls but those it uses
    #[default]
    On,
    /// All that it was started with
    Off,
}

impl Mode {
    /// Its name in the config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Switch => "switch",
            Self::Cmts => "cmts",
        }
    }
}

/// What a worker does when there is nothing to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Back off, then sleep until a packet comes
    #[default]
    Sleep,
    /// Poll on: lowest delay, a whole CPU
    Spin,
}

/// AF_XDP zero-copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ZeroCopy {
    /// Where the driver can
    #[default]
    Auto,
    /// Or an error
    Require,
    /// Never
    Off,
}

impl From<ZeroCopy> for bywash_port::af_xdp::ZeroCopy {
    fn from(zero_copy: ZeroCopy) -> Self {
        match zero_copy {
            ZeroCopy::Auto => Self::Auto,
            ZeroCopy::Require => Self::Require,
            ZeroCopy::Off => Self::Off,
        }
    }
}

/// How an AF_XDP port sends where the kernel copies frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Transmit {
    /// By injection on veth, else by the socket
    #[default]
    Auto,
    /// By the AF_XDP socket
    Socket,
    /// By injection, through the interface's queueing discipline
    Inject,
}

impl From<Transmit> for bywash_port::af_xdp::Transmit {
    fn from(transmit: Transmit) -> Self {
        match transmit {
            Transmit::Auto => Self::Auto,
            Transmit::Socket => Self::Socket,
            Transmit::Inject => Self::Inject,
        }
    }
}

/// Where the XDP program is attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// In the driver where it can, else generic; generic on veth
    #[default]
    Auto,
    /// In the driver, or an error
    Native,
    /// Generic: any interface, slower
    Generic,
}

/// Where a port's packets are forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// The cheapest of the others that can
    #[default]
    Auto,
    /// In the driver, by XDP; what it cannot do, in user space
    Driver,
    /// In user space, by the workers
    User,
    /// By the kernel
    Kernel,
}

impl Level {
    /// Its name in the config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Driver => "driver",
            Self::User => "user",
            Self::Kernel => "kernel",
        }
    }
}

/// What is done about transport checksums that the sender left to the hardware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Checksum {
    /// `fix` on interfaces that hand over unfinished checksums (veth), `trust` elsewhere
    #[default]
    Auto,
    /// Finish those that are unfinished
    Fix,
    /// Leave them as they are
    Trust,
}

/// What a port is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// A network interface, through AF_XDP sockets
    #[default]
    #[value(name = "af_xdp")]
    AfXdp,
    /// A TAP interface, made for the kernel
    Tap,
    /// A capture file that is replayed
    Pcap,
    /// Packets to and from another process, through shared memory
    Memif,
    /// Receives nothing, discards what is sent
    Null,
    /// A device of DPDK's, in a program built with it
    Dpdk,
}

impl PortKind {
    /// Its name in the config.
    pub fn name(self) -> &'static str {
        match self {
            Self::AfXdp => "af_xdp",
            Self::Tap => "tap",
            Self::Pcap => "pcap",
            Self::Memif => "memif",
            Self::Null => "null",
            Self::Dpdk => "dpdk",
        }
    }
}

/// Queues of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    /// Every one it has.
    #[default]
    All,
    /// These. The kernel keeps the others.
    List(Vec<usize>),
}

impl Serialize for Queues {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::All => to.serialize_str("all"),
            Self::List(queues) => queues.serialize(to),
        }
    }
}

/// Sizes of an AF_XDP socket's four rings, in descriptors: powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rings {
    /// Received frames waiting for the worker.
    pub rx: usize,
    /// Frames waiting for the device.
    pub tx: usize,
    /// Empty frames waiting for packets.
    pub fill: usize,
    /// Sent frames waiting to be taken back.
    pub completion: usize,
}

impl Rings {
    /// All four of `size`.
    pub fn all(size: usize) -> Self {
        Self { rx: size, tx: size, fill: size, completion: size }
    }

    /// Most frames they hold at once.
    pub fn frames(&self) -> usize {
        self.rx + self.tx + self.fill + self.completion
    }
}

impl Default for Rings {
    fn default() -> Self {
        Self::all(2048)
    }
}

/// Everything that can be set.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Config {
    /// `mode`
    pub mode: Mode,
    /// `sandbox`
    pub sandbox: Sandbox,
    /// `[router]`
    pub router: RouterConfig,
    /// `[kernel]`
    pub kernel: KernelConfig,
    /// `[switch]`
    #[serde(skip_serializing_if = "SwitchConfig::is_default")]
    pub switch: SwitchConfig,
    /// `[cmts]`
    #[serde(skip_serializing_if = "CmtsConfig::is_default")]
    pub cmts: CmtsConfig,
    /// `[pool]`
    pub pool: PoolConfig,
    /// `[workers]`
    pub workers: WorkersConfig,
    /// `[api]`
    pub api: ApiConfig,
    /// `[[port]]`, in the file's order: a port's index is its number.
    #[serde(rename = "port")]
    pub ports: Vec<PortConfig>,
    /// `[[group]]`: service groups.
    #[serde(rename = "group", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupConfig>,
    /// `[[flow]]`: the service flows of every modem.
    #[serde(rename = "flow", skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowConfig>,
}

/// `[router]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouterConfig {
    /// Most ICMP errors a worker sends, per second; 0: none.
    pub icmp_rate: u32,
    /// Whether ICMP redirects are sent.
    pub redirects: bool,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self { icmp_rate: 1000, redirects: false }
    }
}

/// Regard for a kind of kernel policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Regard {
    /// Packets that it concerns stay the kernel's
    #[default]
    Respect,
    /// They are forwarded past it
    Ignore,
}

/// `[kernel]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelConfig {
    /// nf_tables, iptables-nft included.
    pub netfilter: Regard,
    /// iptables by the old interface of the kernel.
    pub iptables_legacy: Regard,
    /// IPsec policies.
    pub ipsec: Regard,
    /// `ip rule`.
    pub rules: Regard,
    /// Switches under `/proc/sys/net`.
    pub sysctls: Regard,
    /// Qdiscs and filters.
    pub traffic_control: Regard,
    /// BPF programs of others.
    pub programs: Regard,
}

impl KernelConfig {
    /// Returns whether packets are forwarded past policies of this kind.
    pub fn ignores(&self, kind: Kind) -> bool {
        let regard = match kind {
            Kind::Netfilter => self.netfilter,
            Kind::IptablesLegacy => self.iptables_legacy,
            Kind::Ipsec => self.ipsec,
            Kind::Rules => self.rules,
            Kind::Sysctls => self.sysctls,
            Kind::TrafficControl => self.traffic_control,
            Kind::Programs => self.programs,
        };
        regard == Regard::Ignore
    }
}

/// `[switch]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SwitchConfig {
    /// Flows, groups and meters it begins with; none: the learning bridge for every frame.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<PathBuf>,
    /// Most learned addresses.
    pub macs: usize,
    /// Seconds after which an address that was not seen is forgotten.
    pub mac_ageing_s: u32,
    /// Keys in each worker's exact-match cache; 0: none.
    pub exact: usize,
    /// One in this many flows found elsewhere is put there.
    pub exact_insert: u32,
    /// Most megaflows of each worker.
    pub megaflows: usize,
    /// Seconds after which a megaflow without packets goes.
    pub megaflow_idle_s: u32,
}

impl SwitchConfig {
    /// Whether nothing was set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for SwitchConfig {
    fn default() -> Self {
        let caches = bywash_flow::app::CacheConfig::default();
        let bridge = bywash_flow::control::BridgeConfig::default();
        Self {
            flows: None,
            macs: bridge.macs,
            mac_ageing_s: bridge.ageing.as_secs() as u32,
            exact: caches.exact,
            exact_insert: caches.insert_one_in,
            megaflows: caches.megaflows,
            megaflow_idle_s: caches.idle_s as u32,
        }
    }
}

/// `[pool]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PoolConfig {
    /// Policy.
    pub kind: PoolKind,
    /// Frames in each worker's cache; auto: the kind's default.
    pub cache: Auto<usize>,
    /// Frames per worker; auto: see [`crate::config::Plan`].
    pub frames: Auto<usize>,
    /// Frames a block, where the policy has blocks.
    pub block: usize,
    /// Frames beside, for pools that come later.
    pub reserve: usize,
    /// Bytes a cell: 2048, 4096 or 16384.
    pub cell: usize,
    /// Pages the cells lie in.
    pub pages: Pages,
}

impl Default for PoolConfig {
    fn default() -> Self {
        let (kind, pages) = (PoolKind::default(), Pages::default());
        Self { kind, cache: Auto::Auto, frames: Auto::Auto, block: bywash_frame::BLOCK, reserve: 0, cell: 2048, pages }
    }
}

impl PoolConfig {
    /// Frames in each worker's cache.
    pub fn cache_frames(&self) -> usize {
        let default = || bywash_frame::PoolKind::from(self.kind).default_cache();
        self.cache.set().copied().unwrap_or_else(default)
    }

    /// Frames of a pool that must hold `needed`.
    ///
    /// # Errors
    /// What is configured, where that is fewer.
    pub fn frames_for(&self, needed: usize) -> Result<usize, usize> {
        match self.frames.set() {
            // One block is being handed out, one waits for its last cell.
            None if self.blocks() => Ok((needed + SPARE).next_multiple_of(self.block) + 2 * self.block),
            None => Ok(needed + SPARE),
            Some(&frames) if frames >= needed => Ok(frames),
            Some(&frames) => Err(frames),
        }
    }

    /// Whether cells are handed out and taken back by blocks.
    pub fn blocks(&self) -> bool {
        bywash_frame::PoolKind::from(self.kind).blocks()
    }

    /// Whether a cell holds several packets.
    pub fn packed(&self) -> bool {
        bywash_frame::PoolKind::from(self.kind).packed()
    }

    /// A pool of this kind.
    pub fn pool(&self, name: &str, frames: usize) -> bywash_frame::PoolConfig {
        let (cache, block) = (self.cache_frames(), self.block);
        bywash_frame::PoolConfig { cache, block, ..bywash_frame::PoolConfig::new(name, self.kind.into(), frames) }
    }
}

/// `[workers]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkersConfig {
    /// Threads.
    pub count: Auto<usize>,
    /// CPUs they are pinned to, in order.
    pub cpus: Auto<Vec<usize>>,
    /// What they do when there is nothing to do.
    pub idle: Idle,
}

/// `[api]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApiConfig {
    /// Unix socket to listen on.
    pub socket: PathBuf,
    /// Group that may connect, beside root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Unix socket that can be asked, and not told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_socket: Option<PathBuf>,
    /// Group that may connect to that one, beside root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_group: Option<String>,
    /// TCP address at which Prometheus finds the metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self { socket: crate::api::SOCKET.into(), group: None, read_socket: None, read_group: None, metrics: None }
    }
}

/// `[[port]]`
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PortConfig {
    /// Name in `show` and in logs.
    pub name: String,
    /// What it is.
    pub kind: PortKind,
    /// Network interface of an `af_xdp` or `tap` port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Which worker polls which queue; auto: queue k is worker k's, modulo the number of workers. One number: all
    /// queues. A list: the worker of each queue, in the order of `queues`, repeated when it is shorter.
    pub worker: Auto<Vec<usize>>,
    /// Frames sent at once, at most.
    pub tx_burst: usize,
    /// Longest that a frame waits for others to be sent with, in microseconds; 0: to the end of the worker's turn.
    pub tx_deadline_us: u32,
    /// What it is to a switch.
    #[serde(flatten, skip_serializing_if = "BridgePortConfig::is_default")]
    pub bridge: BridgePortConfig,
    /// Settings of an `af_xdp` port.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub af_xdp: Option<AfXdpConfig>,
    /// Settings of a `pcap` port.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub pcap: Option<PcapConfig>,
    /// Settings of a `memif` port.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub memif: Option<MemifConfig>,
    /// Settings of a `dpdk` port.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub dpdk: Option<DpdkPortConfig>,
}

/// Descriptors of each ring of a DPDK device's queue.
pub const DEVICE_RING: usize = 1024;

/// Settings of a `dpdk` port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DpdkPortConfig {
    /// DPDK's name for the device, and its arguments.
    pub device: String,
    /// Queues, each way.
    pub device_queues: u16,
    /// Its MTU; auto: as it is.
    pub mtu: Auto<u16>,
    /// Options of EAL's; those of all ports together are used.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub eal: String,
}

impl Default for DpdkPortConfig {
    fn default() -> Self {
        Self { device: String::new(), device_queues: 1, mtu: Auto::Auto, eal: String::new() }
    }
}

impl PortConfig {
    /// A port on `interface`, named like it, with default settings.
    pub fn interface(interface: &str) -> Self {
        Self {
            name: interface.into(),
            interface: Some(interface.into()),
            tx_burst: 32,
            af_xdp: Some(AfXdpConfig::default()),
            ..Self::default()
        }
    }
}

/// What a port is to a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BridgePortConfig {
    /// The VLAN it is an access port of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<u16>,
    /// VLANs it carries, tagged, 0 for untagged; none: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trunks: Option<Vec<u16>>,
    /// Whether flooded frames leave by it.
    pub flood: bool,
    /// Most frames a second that came in by it and are flooded; 0: all.
    pub storm: u32,
    /// The port that gets a copy of what comes and goes by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
}

impl BridgePortConfig {
    /// Whether nothing was set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl Default for BridgePortConfig {
    fn default() -> Self {
        Self { tag: None, trunks: None, flood: true, storm: 0, mirror: None }
    }
}

/// Settings of an `af_xdp` port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AfXdpConfig {
    /// Queues to take.
    pub queues: Queues,
    /// Ring sizes.
    pub ring: Rings,
    /// Zero-copy.
    pub zero_copy: ZeroCopy,
    /// How frames are sent.
    pub transmit: Transmit,
    /// Frames the driver may receive in one busy poll; 0: interrupts.
    pub busy_poll: u16,
    /// Most frames received in one turn.
    pub rx_burst: usize,
    /// Whether the kernel says when it must be woken.
    pub need_wakeup: bool,
    /// Whether what was sent is taken to come back in order.
    pub in_order: bool,
    /// Where the XDP program goes.
    pub mode: XdpMode,
    /// Unfinished checksums.
    pub checksum: Checksum,
    /// Where what it receives is forwarded.
    pub level: Level,
    /// CPUs that send what the driver forwards; none: the one that received it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spread: Vec<usize>,
}

impl Default for AfXdpConfig {
    fn default() -> Self {
        Self {
            queues: Queues::default(),
            ring: Rings::default(),
            zero_copy: ZeroCopy::default(),
            transmit: Transmit::default(),
            busy_poll: 0,
            rx_burst: bywash_frame::BATCH,
            need_wakeup: true,
            in_order: false,
            mode: XdpMode::default(),
            checksum: Checksum::default(),
            level: Level::default(),
            spread: vec![],
        }
    }
}

/// Which side of a memif a port is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MemifRole {
    /// It listens, and copies
    #[default]
    Server,
    /// It connects, and its buffers are the shared memory
    Client,
}

/// Settings of a `memif` port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemifConfig {
    /// The control socket: a path, or `@` and an abstract name.
    #[serde(skip_serializing_if = "no_path")]
    pub socket: PathBuf,
    /// Which side it is.
    pub role: MemifRole,
    /// The interface's number.
    pub id: u32,
    /// What a client has to know; empty: nothing.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub secret: String,
    /// Slots of each ring, of a client.
    pub ring: usize,
    /// Memory that a client could take away is refused.
    pub sealed: bool,
}

impl Default for MemifConfig {
    fn default() -> Self {
        Self {
            socket: PathBuf::new(),
            role: MemifRole::default(),
            id: 0,
            secret: String::new(),
            ring: 2048,
            sealed: true,
        }
    }
}

/// What frames are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// Ethernet frames
    #[default]
    Ethernet,
    /// DOCSIS MAC frames
    Docsis,
}

fn no_path(path: &std::path::Path) -> bool {
    path.as_os_str().is_empty()
}

/// Settings of a `pcap` port.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PcapConfig {
    /// Replayed: pcap or pcapng.
    #[serde(skip_serializing_if = "no_path")]
    pub file: PathBuf,
    /// Whether it starts again at its end.
    #[serde(rename = "loop")]
    pub repeat: bool,
    /// Packets per second; auto: as fast as they are taken.
    pub rate: Auto<u64>,
    /// What is recorded.
    pub link: Link,
    /// Where frames sent to the port are written; none: they are discarded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<PathBuf>,
}

impl Config {
    /// Default settings, with a port on each of these interfaces.
    pub fn for_interfaces(interfaces: &[String]) -> Self {
        let ports = interfaces.iter().map(|interface| PortConfig::interface(interface)).collect();
        Self { ports, ..Self::default() }
    }
}
