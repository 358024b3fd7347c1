//! Model of the configuration: plain values with every default filled in.
//!
//! [`Config`] serializes to a TOML file that can be read back; `bywash show config` prints it.

use crate::choice::*;
use crate::cmts::{CmtsConfig, FlowConfig, GroupConfig, ProfileConfig};
use crate::keys;
use crate::secret::Secret;
use crate::text;
use bywash_exceptions::Kind;
use bywash_port::af_xdp::UserProgram;
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Deserializes the sizes of the four rings, or one size for all.
fn rings<'de, D: Deserializer<'de>>(from: D) -> Result<RingSizes, D::Error> {
    match toml::Value::deserialize(from)? {
        toml::Value::Integer(size) => Ok(RingSizes::all(size.try_into().map_err(D::Error::custom)?)),
        table => table.try_into().map_err(D::Error::custom),
    }
}

/// Complete configuration of an instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// `[pool]`, or each `[[pool]]` in the file's order.
    #[serde(rename = "pool", serialize_with = "one_or_many")]
    pub pools: Vec<PoolConfig>,
    /// `[workers]`
    pub workers: WorkersConfig,
    /// `[api]`
    pub api: ApiConfig,
    /// `[[port]]`, in the file's order: a port's index is its number.
    #[serde(default, rename = "port", deserialize_with = "ports")]
    pub ports: Vec<PortConfig>,
    /// `[[group]]`: service groups.
    #[serde(default, rename = "group", skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupConfig>,
    /// `[[profile]]`: profiles of the channels.
    #[serde(default, rename = "profile", skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<ProfileConfig>,
    /// `[[flow]]`: the service flows of every modem.
    #[serde(default, rename = "flow", skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<FlowConfig>,
    /// Files that it was read from: its own, and those of its secrets.
    #[serde(skip)]
    pub sources: Vec<PathBuf>,
}

/// `[router]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouterConfig {
    /// Maximum number of ICMP errors per second and worker; 0: none.
    pub icmp_rate: u32,
    /// Maximum number of connections that are forwarded past the kernel's firewall.
    pub flows: usize,
    /// True if ICMP redirects are sent.
    pub redirects: bool,
    /// True if packets of VLAN interfaces are forwarded past the kernel.
    pub vlans: bool,
    /// True if packets to macvlans are forwarded past the kernel.
    pub macvlans: bool,
    /// True if packets of tunnels are forwarded past the kernel.
    pub tunnels: bool,
    /// True if packets that bridges route are forwarded past the kernel.
    pub bridges: bool,
}

/// `[kernel]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchConfig {
    /// File of flows, groups and meters; `None` for the learning bridge alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flows: Option<PathBuf>,
    /// TAP interface that is the local port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,
    /// Number of VLAN tags that flows see; 0: as many as possible.
    pub vlan_limit: usize,
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

/// Keys of the arena that all pools lie in.
pub const OF_ARENA: [&str; 3] = ["reserve", "cell", "pages"];

/// `[pool]` or `[[pool]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolConfig {
    /// Name of its pools in `show`; `None` for names by worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Workers that allocate from it; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<Vec<usize>>,
    /// Number of the service group whose workers allocate from it, from 1; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
    /// Side of a cable downstream whose workers allocate from it; `None` for both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub side: Option<Side>,
    /// Order in which free buffers are reused; auto: chosen by the cost of a cache line transfer between the workers.
    pub kind: Auto<PoolKind>,
    /// Size of each worker's cache in buffers; auto: the default of the pool kind.
    pub cache: Auto<usize>,
    /// Size of each worker's pool in buffers; auto: see [`crate::Plan`].
    pub frames: Auto<usize>,
    /// Size of a block in buffers, for kinds with blocks.
    pub block: usize,
    /// CPU to whose NUMA node its memory is bound; `None` to leave it where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<usize>,
    /// Buffers set aside for pools that a reload creates.
    pub reserve: usize,
    /// Size of a cell in bytes: 2048, 4096 or 16384; auto: see [`Config::cell`].
    pub cell: Auto<usize>,
    /// Page size of the buffer memory.
    pub pages: Pages,
}

impl PoolConfig {
    /// Returns whether it is for some workers only. The one that is not is for all others, and has the arena's keys.
    pub fn selects(&self) -> bool {
        self.workers.is_some() || self.group.is_some() || self.side.is_some()
    }
}

/// Serializes the only entry as a table, and several as an array of tables, in which only the common one has the
/// arena's keys.
fn one_or_many<S: Serializer>(pools: &[PoolConfig], to: S) -> Result<S::Ok, S::Error> {
    if let [one] = pools {
        return one.serialize(to);
    }
    let table = |pool: &PoolConfig| {
        let mut table = toml::Table::try_from(pool).map_err(serde::ser::Error::custom)?;
        table.retain(|key, _| !pool.selects() || !OF_ARENA.contains(&key));
        Ok(table)
    };
    to.collect_seq(pools.iter().map(table).collect::<Result<Vec<_>, _>>()?)
}

/// `[workers]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkersConfig {
    /// Number of threads.
    pub count: Auto<usize>,
    /// CPUs to pin the workers to, in order.
    pub cpus: Auto<Vec<usize>>,
    /// Behaviour without packets.
    pub idle: Idle,
    /// True if the processor's counters count each stage.
    pub counters: bool,
}

/// `[api]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// True if that may be an address that other machines reach.
    pub metrics_public: bool,
    /// Token that requests to that address must have; none if empty.
    #[serde(default, skip_serializing_if = "crate::secret::is_empty")]
    pub metrics_token: Secret<String>,
}

/// `[[port]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortConfig {
    /// Name in `show` and in log messages.
    #[serde(default)]
    pub name: String,
    /// Kind of port.
    pub kind: PortKind,
    /// Network interface of an `af_xdp` or `tap` port, or name of the TAP twin of another kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Workers of the port's queues. Auto: queue k is polled by worker k modulo the number of workers; if the port has
    /// fewer queues than there are workers, by worker (port index + k) modulo that number. One number: the worker of
    /// all queues. A list: the worker of each queue, in the order of `queues`, repeated if it is shorter.
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
    #[serde(flatten, skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub af_xdp: Option<AfXdpConfig>,
    /// Settings of a `pcap` port.
    #[serde(flatten, skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub pcap: Option<PcapConfig>,
    /// Settings of a `memif` port.
    #[serde(flatten, skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub memif: Option<MemifConfig>,
    /// Settings of a `dpdk` port.
    #[serde(flatten, skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub dpdk: Option<DpdkPortConfig>,
    /// Settings of an `npe` port, which also has those of a `pcap` port, or else an interface.
    #[serde(flatten, skip_deserializing, skip_serializing_if = "Option::is_none")]
    pub npe: Option<NpeConfig>,
}

/// Settings of an `npe` port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NpeConfig {
    /// Number of channels: queues of the port.
    pub channels: usize,
    /// Engine of the device.
    pub engine: NpeEngine,
    /// Size of a block of the device's memory in buffers.
    pub block: usize,
}

/// Descriptors of each ring of a DPDK device's queue.
pub const DEVICE_RING: usize = 1024;

/// Settings of a `dpdk` port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DpdkPortConfig {
    /// DPDK's name of the device, with its arguments.
    #[serde(default)]
    pub device: String,
    /// Number of receive and of transmit queues.
    pub device_queues: u16,
    /// MTU in bytes; auto: unchanged.
    pub mtu: Auto<u16>,
    /// Additional EAL options. EAL is started once, with the options of all ports.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub eal: String,
}

impl PortConfig {
    /// Returns an `af_xdp` port on `interface`, named after it, with default settings.
    pub fn interface(interface: &str) -> Self {
        Self {
            name: text::port_name(interface),
            interface: Some(interface.into()),
            af_xdp: Some(AfXdpConfig::default()),
            ..Self::default()
        }
    }

    /// Returns the number of queues of a port that is not of kind `af_xdp`, whose queues are its interface's.
    pub fn own_queues(&self) -> u32 {
        match (&self.dpdk, &self.npe) {
            (Some(dpdk), _) => dpdk.device_queues.into(),
            (None, Some(npe)) => npe.channels as u32,
            (None, None) => 1,
        }
    }

    /// Returns whether the port creates the TAP interface `interface` and receives from it.
    pub fn is_tap(&self) -> bool {
        self.kind == PortKind::Tap || (self.kind == PortKind::Npe && self.pcap.is_none())
    }

    /// Converts a table of the file.
    fn of(mut table: toml::Table) -> Result<Self, toml::de::Error> {
        keys::PORT.complete(&mut table);
        let mut port: Self = table.clone().try_into()?;
        match port.kind {
            PortKind::AfXdp => port.af_xdp = Some(table.try_into()?),
            PortKind::Pcap => port.pcap = Some(table.try_into()?),
            PortKind::Memif => port.memif = Some(table.try_into()?),
            PortKind::Dpdk => port.dpdk = Some(table.try_into()?),
            PortKind::Npe => {
                port.npe = Some(table.clone().try_into()?);
                let pcap: PcapConfig = table.try_into()?;
                port.pcap = Some(pcap).filter(|pcap| !pcap.file.as_os_str().is_empty() || pcap.record.is_some());
            }
            PortKind::Tap | PortKind::Null => {}
        }
        if port.name.is_empty() {
            port.name = port.interface.as_deref().map(text::port_name).unwrap_or_default();
        }
        Ok(port)
    }
}

fn ports<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<PortConfig>, D::Error> {
    let tables = Vec::<toml::Table>::deserialize(from)?;
    tables.into_iter().map(|table| PortConfig::of(table).map_err(D::Error::custom)).collect()
}

fn list_or_off<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<usize>, D::Error> {
    match toml::Value::deserialize(from)? {
        toml::Value::String(_) => Ok(vec![]),
        list => list.try_into().map_err(D::Error::custom),
    }
}

/// Settings of a port that apply to a switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgePortConfig {
    /// VLAN of an access port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<u16>,
    /// VLANs of a trunk port; 0 stands for untagged frames. `None` for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trunks: Option<Vec<u16>>,
    /// True if flooded frames are sent out of the port.
    pub flood: bool,
    /// Maximum number of MAC addresses learned on the port; auto: a fair share of the switch's, if these are used up.
    pub macs: Auto<usize>,
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

/// Settings of an `af_xdp` port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AfXdpConfig {
    /// Receive queues to use.
    pub queues: Queues,
    /// Sizes of the four rings.
    #[serde(deserialize_with = "rings")]
    pub ring: RingSizes,
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
    pub xdp: XdpMode,
    /// Handling of unfinished checksums.
    pub checksum: Checksum,
    /// Forwarding level of received packets.
    pub level: Level,
    /// CPUs that transmit what the driver forwards; if empty, the CPU that received a packet sends it.
    #[serde(deserialize_with = "list_or_off", skip_serializing_if = "Vec::is_empty")]
    pub spread: Vec<usize>,
    /// Object file with the user's own XDP program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
    /// Function or section of that program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program_section: Option<String>,
}

impl AfXdpConfig {
    /// Returns the user's own program, if there is one.
    pub fn user_program(&self) -> Option<UserProgram> {
        self.program.clone().map(|file| UserProgram { file, section: self.program_section.clone() })
    }
}

/// Settings of a `memif` port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemifConfig {
    /// Control socket: a path, or `@` and an abstract name.
    #[serde(default, skip_serializing_if = "no_path")]
    pub socket: PathBuf,
    /// Side of the memif.
    pub role: MemifRole,
    /// Number of the memif on its socket.
    pub id: u32,
    /// Secret that a client must present; none if empty.
    #[serde(default, skip_serializing_if = "crate::secret::is_empty")]
    pub secret: Secret<String>,
    /// Size of each ring in slots, if the port is a client.
    pub ring: usize,
    /// True if a server refuses memory that its client could truncate.
    pub sealed: bool,
    /// User that a client's server may run as, besides root and the instance's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

fn no_path(path: &std::path::Path) -> bool {
    path.as_os_str().is_empty()
}

/// Settings of a `pcap` port.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PcapConfig {
    /// File to replay, pcap or pcapng; none if empty.
    #[serde(default, skip_serializing_if = "no_path")]
    pub file: PathBuf,
    /// True if the replay restarts at the end of the file.
    #[serde(rename = "loop")]
    pub repeat: bool,
    /// Replay rate in packets per second; auto: as fast as packets are taken.
    pub rate: Auto<u64>,
    /// Frame type of the files.
    pub link: LinkType,
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

    /// Converts a file whose values are valid. Absent keys get their defaults.
    pub(crate) fn of(mut file: toml::Table) -> Result<Self, toml::de::Error> {
        for section in keys::SECTIONS {
            match section.name() {
                "" => section.complete(&mut file),
                name if section.one_or_many() => {
                    let mut tables = match file.remove(name) {
                        None => vec![],
                        Some(toml::Value::Array(tables)) => tables,
                        Some(table) => vec![table],
                    };
                    if tables.is_empty() {
                        tables.push(toml::Table::new().into());
                    }
                    tables.iter_mut().filter_map(toml::Value::as_table_mut).for_each(|table| section.complete(table));
                    file.insert(name.into(), tables.into());
                }
                name if section.many() => {
                    let tables = file.get_mut(name).and_then(toml::Value::as_array_mut);
                    let tables = tables.into_iter().flatten().filter_map(toml::Value::as_table_mut);
                    tables.for_each(|table| section.complete(table));
                }
                name => {
                    let table = file.entry(name).or_insert_with(|| toml::Table::new().into());
                    table.as_table_mut().into_iter().for_each(|table| section.complete(table));
                }
            }
        }
        let mut config: Self = file.try_into()?;
        if let Some(local) = &config.switch.local
            && !config.ports.iter().any(|port| port.name == *local)
        {
            let (name, interface) = (local.clone(), Some(local.clone()));
            config.ports.push(PortConfig { name, kind: PortKind::Tap, interface, ..PortConfig::default() });
        }
        Ok(config)
    }
}

/// Takes the defaults of each model from the table of keys.
macro_rules! defaults {
    ($($model:ty: $section:ident),+ $(,)?) => {
        $(impl Default for $model {
            fn default() -> Self {
                keys::$section.defaults()
            }
        })+
    };
}

defaults! {
    RouterConfig: ROUTER,
    KernelConfig: KERNEL,
    SwitchConfig: SWITCH,
    CmtsConfig: CMTS,
    PoolConfig: POOL,
    WorkersConfig: WORKER_KEYS,
    ApiConfig: API,
    PortConfig: PORT,
    AfXdpConfig: PORT,
    BridgePortConfig: PORT,
}

impl Default for Config {
    fn default() -> Self {
        Self::of(toml::Table::new()).unwrap_or_else(|why| panic!("the defaults do not fit the model: {why}"))
    }
}
