//! Types of values that are words: the names of an enumeration, or a word instead of a number or list.

pub use bywash_docsis::{queue::Overflow, seal::Crypto};
pub use bywash_engine::Idle;
pub use bywash_frame::{Pages, PoolKind};
pub use bywash_port::af_xdp::{RingSizes, Transmit, ZeroCopy};
pub use bywash_port::{memif::Role as MemifRole, npe::Engine as NpeEngine, pcap::LinkType};
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
    /// The listed queues; packets on all others are left to the kernel.
    #[serde(untagged)]
    List(Vec<usize>),
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

/// Attachment of the XDP program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum XdpMode {
    /// Native if the driver supports it, else generic; generic on veth
    #[default]
    Auto,
    /// In the driver; an error if the driver does not support it
    Native,
    /// In front of the network stack, by traffic control (Linux 6.6) or generic XDP; works on any interface, but is
    /// slower
    Generic,
}

/// Forwarding level of a port's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// `driver` if the program is attached natively and no socket uses zero-copy, or if it is attached by traffic
    /// control and either the kernel forwards or the port is a member of a bridge; else, and always in a switch, `user`
    #[default]
    Auto,
    /// In the driver, by XDP or traffic control; packets it cannot handle, in user space or, with traffic control, in
    /// the kernel
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
    /// `fix` on interfaces that deliver partial checksums (veth), else `trust`
    #[default]
    Auto,
    /// Complete partial checksums
    Fix,
    /// Leave all checksums unchanged
    Trust,
}

/// Active queue management of a service flow of a cable downstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Aqm {
    /// Only a full queue drops
    #[default]
    None,
    /// DOCSIS-PIE (RFC 8034)
    Pie,
}

/// Worker of a service group of a cable downstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Upper MAC, which polls the input
    Upper,
    /// Lower MAC
    Lower,
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
    /// Dispatching device over a capture file or a TAP interface
    Npe,
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
            Self::Npe => "npe",
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
