//! Types of values that are words: the names of an enumeration, or a word instead of a number or list.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Returns the names of all variants of an enumeration, as in the configuration file.
pub fn names<T: ValueEnum>() -> Vec<String> {
    T::value_variants().iter().filter_map(T::to_possible_value).map(|value| value.get_name().to_owned()).collect()
}

/// Configured value, or `auto`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Auto<T> {
    /// Chosen by the program.
    #[default]
    Auto,
    /// Set to this value.
    #[serde(untagged)]
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

/// Receive queues that a port uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Queues {
    /// All queues of the interface.
    #[default]
    All,
    /// These queues; packets on the others are left to the kernel.
    #[serde(untagged)]
    List(Vec<usize>),
}

/// Buffer pool policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Back off, then sleep until a packet arrives
    #[default]
    Sleep,
    /// Keep polling: lowest latency, but uses a whole CPU
    Spin,
}

/// Use of AF_XDP zero-copy mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ValueEnum)]
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

/// Treatment of a kind of kernel policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Regard {
    /// Leave packets that it affects to the kernel
    #[default]
    Respect,
    /// Forward such packets without regard to it
    Ignore,
}

/// Side of a memif.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum MemifRole {
    /// Listens, and copies packets
    #[default]
    Server,
    /// Connects, and shares its buffers with the peer
    Client,
}

/// Link type of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Link {
    /// Ethernet frames
    #[default]
    Ethernet,
    /// DOCSIS MAC frames
    Docsis,
}

/// Implementation that encrypts PDUs and computes their CRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Crypto {
    /// libipsec-mb if it is installed, else portable code
    #[default]
    Auto,
    /// libipsec-mb; an error if it is not installed
    IpsecMb,
    /// Portable code
    Portable,
}

impl From<Crypto> for bywash_docsis::seal::Crypto {
    fn from(crypto: Crypto) -> Self {
        match crypto {
            Crypto::Auto => Self::Auto,
            Crypto::IpsecMb => Self::IpsecMb,
            Crypto::Portable => Self::Portable,
        }
    }
}

/// Packet to drop when the queue of a flow is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// The arriving packet
    #[default]
    Tail,
    /// The oldest packet in the queue
    Head,
}

impl From<Overflow> for bywash_docsis::queue::Overflow {
    fn from(overflow: Overflow) -> Self {
        match overflow {
            Overflow::Tail => Self::Tail,
            Overflow::Head => Self::Head,
        }
    }
}
