//! Model of the configuration: plain values with every default filled in.
//!
//! [`Config`] serializes to a TOML file that can be read back; `bywash show config` prints it.

use crate::cmts::{CmtsConfig, FlowConfig, GroupConfig};
use crate::plan::SPARE;
use bywash_exceptions::Kind;
use clap::ValueEnum;
use serde::{Serialize, Serializer};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Valid sizes of a pool in buffers. The maximum is 32 GiB of 2 KiB cells.
pub const FRAMES: RangeInclusive<usize> = 64..=16 << 20;
/// Valid sizes of a block in buffers; a size must also be a power of two.
pub const BLOCK: RangeInclusive<usize> = 64..=65536;
/// Valid numbers of worker threads.
pub const WORKERS: RangeInclusive<usize> = 1..=256;

/// Default path of an instance's socket.
pub const SOCKET: &str = "/run/bywash/bywash.sock";

/// Configured value, or `auto`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Auto<T> {
    /// Chosen by the program.
    #[default]
    Auto,
    /// Set to this value.
    Set(T),
}

impl<T> Auto<T> {
    /// Returns the configured value; `None` if it is `auto`.
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

/// Buffer pool policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum PoolKind {
    /// Last in, first out
    #[default]
    Stack,
    /// First in, first out, behind a cache per worker
    Ring,
    /// Blocks of consecutive buffers, one shared by all workers
    Sdb,
    /// Blocks of consecutive buffers, one per worker
    Tabm,
    /// Like tabm, but each packet takes only the space it needs
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

/// Page size of the buffer memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Pages {
    /// 2 MiB, reserved or transparent, if available, else 4 KiB
    #[default]
    Auto,
    /// 2 MiB; an error if unavailable
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

/// Operating mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Router beside the kernel, with the kernel's routes and neighbours
    #[default]
    Router,
    /// Switch with flow tables and a learning bridge
    Switch,
    /// Downstream of a cable modem termination system
    Cmts,
}

/// Confinement of the process to the privileges it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Sandbox {
    /// Only the needed capabilities and system calls, and no new privileges
    #[default]
    On,
    /// All privileges of the starting process
    Off,
}

impl Mode {
    /// Returns the name in the configuration file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Switch => "switch",
            Self::Cmts => "cmts",
        }
    }
}

/// Behaviour of a worker that has no packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Back off, then sleep until a packet arrives
    #[default]
    Sleep,
    /// Keep polling: lowest latency, but uses a whole CPU
    Spin,
}

/// Use of AF_XDP zero-copy mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ZeroCopy {
    /// If the driver supports it
    #[default]
    Auto,
    /// Always; an error if the driver does not support it
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

/// Transmit method of an AF_XDP port in copy mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Transmit {
    /// Injection on veth, else the AF_XDP socket
    #[default]
    Auto,
    /// AF_XDP socket
    Socket,
    /// Injection by a BPF program, through the interface's queueing discipline
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

/// Attachment of the XDP program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// Native if the driver supports it, else generic; generic on veth
    #[default]
    Auto,
    /// In the driver; an error if the driver does not support it
    Native,
    /// In front of the network stack: works on any interface, but is slower
    Generic,
}

/// Forwarding level of a port's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Cheapest of the other levels that the port supports
    #[default]
    Auto,
    /// In the driver, by XDP; packets it cannot handle, in user space
    Driver,
    /// In user space, by the workers
    User,
    /// In the kernel
    Kernel,
}

impl Level {
    /// Returns the name in the configuration file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Driver => "driver",
            Self::User => "user",
            Self::Kernel => "kernel",
        }
    }
}

/// Handling of transport checksums that the sender left to checksum offload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Checksum {
    /// `fix` on interfaces that deliver unfinished checksums (veth), else `trust`
    #[default]
    Auto,
    /// Complete unfinished checksums
    Fix,
    /// Leave all checksums unchanged
    Trust,
}

/// Kind of port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum PortKind {
    /// Network interface, through AF_XDP sockets
    #[default]
    #[value(name = "af_xdp")]
    AfXdp,
    /// TAP interface, created for the kernel
    Tap,
    /// Replayed capture file
    Pcap,
    /// Shared memory with another process
    Memif,
    /// Receives nothing, discards what is sent
    Null,
    /// DPDK device, in a build with DPDK
    Dpdk,
}

impl PortKind {
    /// Returns the name in the configuration file.
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

/// Receive queues that a port uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    /// All queues of the interface.
    #[default]
    All,
    /// These queues; packets on the others are left to the kernel.
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
    /// RX ring: received frames.
    pub rx: usize,
    /// TX ring: frames to send.
    pub tx: usize,
    /// Fill ring: empty buffers for the device to receive into.
    pub fill: usize,
    /// Completion ring: buffers of sent frames to be reclaimed.
    pub completion: usize,
}

impl Rings {
    /// Returns four rings of `size` descriptors each.
    pub fn all(size: usize) -> Self {
        Self { rx: size, tx: size, fill: size, completion: size }
    }

    /// Returns the maximum number of buffers that the rings hold at once.
    pub fn frames(&self) -> usize {
        self.rx + self.tx + self.fill + self.completion
    }
}

impl Default for Rings {
    fn default() -> Self {
        Self::all(2048)
    }
}

/// Complete configuration of an instance.
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
    /// Maximum number of ICMP errors per second and worker; 0: none.
    pub icmp_rate: u32,
    /// True if ICMP redirects are sent.
    pub redirects: bool,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self { icmp_rate: 1000, redirects: false }
    }
}

/// Treatment of a kind of kernel policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Regard {
    /// Leave packets that it affects to the kernel
    #[default]
    Respect,
    /// Forward such packets without regard to it
    Ignore,
}

/// `[kernel]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelConfig {
    /// Chains of nf_tables, including those of iptables-nft.
    pub netfilter: Regard,
    /// Rules of iptables-legacy.
    pub iptables_legacy: Regard,
    /// IPsec policies.
    pub ipsec: Regard,
    /// Policy routing rules (`ip rule`).
    pub rules: Regard,
    /// Settings under `/proc/sys/net`.
    pub sysctls: Regard,
    /// Qdiscs and filters.
    pub traffic_control: Regard,
    /// BPF programs of other owners.
    pub programs: Regard,
}

impl KernelConfig {
    /// Returns true if packets are forwarded without regard to policies of this kind.
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
    /// File of initial flows, groups and meters; `None` for the learning bridge alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<PathBuf>,
    /// Maximum number of learned MAC addresses.
    pub macs: usize,
    /// Seconds after which a MAC address that was not seen is removed.
    pub mac_ageing_s: u32,
    /// Size of each worker's exact-match cache in keys; 0: no cache.
    pub exact: usize,
    /// Insertion rate of the exact-match cache: one in this many flows that miss it.
    pub exact_insert: u32,
    /// Maximum number of megaflows per worker.
    pub megaflows: usize,
    /// Seconds after which an unused megaflow is removed.
    pub megaflow_idle_s: u32,
}

impl SwitchConfig {
    /// Returns true if every setting has its default.
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
    /// Order in which free buffers are reused.
    pub kind: PoolKind,
    /// Size of each worker's cache in buffers; auto: the default of the pool kind.
    pub cache: Auto<usize>,
    /// Size of each worker's pool in buffers; auto: see [`crate::Plan`].
    pub frames: Auto<usize>,
    /// Size of a block in buffers, for kinds with blocks.
    pub block: usize,
    /// Buffers set aside for pools that a reload creates.
    pub reserve: usize,
    /// Size of a cell in bytes: 2048, 4096 or 16384.
    pub cell: usize,
    /// Page size of the buffer memory.
    pub pages: Pages,
}

impl Default for PoolConfig {
    fn default() -> Self {
        let (kind, pages) = (PoolKind::default(), Pages::default());
        Self { kind, cache: Auto::Auto, frames: Auto::Auto, block: bywash_frame::BLOCK, reserve: 0, cell: 2048, pages }
    }
}

impl PoolConfig {
    /// Returns the size of each worker's cache in buffers.
    pub fn cache_frames(&self) -> usize {
        let default = || bywash_frame::PoolKind::from(self.kind).default_cache();
        self.cache.set().copied().unwrap_or_else(default)
    }

    /// Returns the size, in buffers, of a pool that must hold `needed` buffers.
    ///
    /// # Errors
    /// The configured size if it is smaller than `needed`.
    pub fn frames_for(&self, needed: usize) -> Result<usize, usize> {
        match self.frames.set() {
            // Two more blocks: one being handed out, and one that waits for its last cell to be freed.
            None if self.blocks() => Ok((needed + SPARE).next_multiple_of(self.block) + 2 * self.block),
            None => Ok(needed + SPARE),
            Some(&frames) if frames >= needed => Ok(frames),
            Some(&frames) => Err(frames),
        }
    }

    /// Returns true if cells are handed out and reclaimed in blocks.
    pub fn blocks(&self) -> bool {
        bywash_frame::PoolKind::from(self.kind).blocks()
    }

    /// Returns true if a cell can hold several packets.
    pub fn packed(&self) -> bool {
        bywash_frame::PoolKind::from(self.kind).packed()
    }

    /// Returns the parameters of a pool of this kind with `frames` buffers.
    pub fn pool(&self, name: &str, frames: usize) -> bywash_frame::PoolConfig {
        let (cache, block) = (self.cache_frames(), self.block);
        bywash_frame::PoolConfig { cache, block, ..bywash_frame::PoolConfig::new(name, self.kind.into(), frames) }
    }
}

/// `[workers]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WorkersConfig {
    /// Number of threads.
    pub count: Auto<usize>,
    /// CPUs to pin the workers to, in order.
    pub cpus: Auto<Vec<usize>>,
    /// Behaviour without packets.
    pub idle: Idle,
}

/// `[api]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ApiConfig {
    /// Unix socket of the HTTP API.
    pub socket: PathBuf,
    /// Group that may connect to `socket`, in addition to root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// Unix socket of the read-only API.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_socket: Option<PathBuf>,
    /// Group that may connect to `read_socket`, in addition to root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_group: Option<String>,
    /// TCP address that serves the Prometheus metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<SocketAddr>,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self { socket: SOCKET.into(), group: None, read_socket: None, read_group: None, metrics: None }
    }
}

/// `[[port]]`
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PortConfig {
    /// Name in `show` and in log messages.
    pub name: String,
    /// Kind of port.
    pub kind: PortKind,
    /// Network interface of an `af_xdp` or `tap` port, or name of the TAP twin of another kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Workers of the port's queues. Auto: queue k is polled by worker k modulo the number of workers. One number: the
    /// worker of all queues. A list: the worker of each queue, in the order of `queues`, repeated if it is shorter.
    pub worker: Auto<Vec<usize>>,
    /// Maximum number of frames sent at once.
    pub tx_burst: usize,
    /// Maximum time in microseconds that a frame waits for others to be sent with it; 0: until the end of the worker's
    /// iteration.
    pub tx_deadline_us: u32,
    /// Settings for a switch.
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
    /// DPDK's name of the device, with its arguments.
    pub device: String,
    /// Number of receive and of transmit queues.
    pub device_queues: u16,
    /// MTU in bytes; auto: unchanged.
    pub mtu: Auto<u16>,
    /// Additional EAL options. EAL is started once, with the options of all ports.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub eal: String,
}

impl Default for DpdkPortConfig {
    fn default() -> Self {
        Self { device: String::new(), device_queues: 1, mtu: Auto::Auto, eal: String::new() }
    }
}

impl PortConfig {
    /// Returns an `af_xdp` port on `interface`, of the same name, with default settings.
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

/// Settings of a port that apply to a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BridgePortConfig {
    /// VLAN of an access port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<u16>,
    /// VLANs of a trunk port; 0 stands for untagged frames. `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trunks: Option<Vec<u16>>,
    /// True if flooded frames are sent out of the port.
    pub flood: bool,
    /// Storm control: maximum rate of frames received on the port that are flooded, per second; 0: no limit.
    pub storm: u32,
    /// Name of the port that gets a copy of every frame received or sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mirror: Option<String>,
}

impl BridgePortConfig {
    /// Returns true if every setting has its default.
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
    /// Receive queues to use.
    pub queues: Queues,
    /// Sizes of the four rings.
    pub ring: Rings,
    /// Use of zero-copy mode.
    pub zero_copy: ZeroCopy,
    /// Transmit method.
    pub transmit: Transmit,
    /// Maximum number of frames per busy poll; 0: interrupts.
    pub busy_poll: u16,
    /// Maximum number of frames received per iteration.
    pub rx_burst: usize,
    /// True if the kernel's need-wakeup flag is used.
    pub need_wakeup: bool,
    /// True if sent frames are expected to complete in order.
    pub in_order: bool,
    /// Attachment of the XDP program.
    pub mode: XdpMode,
    /// Handling of unfinished checksums.
    pub checksum: Checksum,
    /// Forwarding level of received packets.
    pub level: Level,
    /// CPUs that transmit what the driver forwards; if empty, the CPU that received a packet sends it.
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

/// Side of a memif.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MemifRole {
    /// Listens, and copies packets
    #[default]
    Server,
    /// Connects, and shares its buffers with the peer
    Client,
}

/// Settings of a `memif` port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemifConfig {
    /// Control socket: a path, or `@` and an abstract name.
    #[serde(skip_serializing_if = "no_path")]
    pub socket: PathBuf,
    /// Side of the memif.
    pub role: MemifRole,
    /// Number of the memif on its socket.
    pub id: u32,
    /// Secret that a client must present; none if empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub secret: String,
    /// Size of each ring in slots, if the port is a client.
    pub ring: usize,
    /// True if a server refuses memory that its client could truncate.
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

/// Link type of a capture.
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
    /// File to replay, pcap or pcapng; none if empty.
    #[serde(skip_serializing_if = "no_path")]
    pub file: PathBuf,
    /// True if the replay restarts at the end of the file.
    #[serde(rename = "loop")]
    pub repeat: bool,
    /// Replay rate in packets per second; auto: as fast as packets are taken.
    pub rate: Auto<u64>,
    /// Frame type of the files.
    pub link: Link,
    /// File to write sent frames to; `None` to discard them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<PathBuf>,
}

impl Config {
    /// Returns the default configuration with a port on each of these interfaces.
    pub fn for_interfaces(interfaces: &[String]) -> Self {
        let ports = interfaces.iter().map(|interface| PortConfig::interface(interface)).collect();
        Self { ports, ..Self::default() }
    }
}
