//! What a cable downstream is configured with, and how that is read.

use super::keys;
use super::model::Auto;
use super::reader::Table;
use crate::cli::docsis::Crypto;
use bywash_route::model::Prefix;
use bywash_wire::ethernet::MacAddr;
use clap::ValueEnum;
use serde::{Serialize, Serializer};
use std::net::{IpAddr, Ipv4Addr};

/// Modems a group can have.
pub const MODEMS: std::ops::RangeInclusive<usize> = 1..=bywash_docsis::group::MODEMS_MAX;
/// Bits a second that a rate can be.
const RATES: std::ops::RangeInclusive<usize> = 0..=1_000_000_000_000;

/// What happens to a packet whose flow's queue is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// It is dropped
    #[default]
    Tail,
    /// The oldest in the queue is dropped for it
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

/// `[cmts]`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CmtsConfig {
    /// Whether a CRC is put behind each PDU.
    pub crc: bool,
    /// Whether PDUs are enciphered.
    pub cipher: bool,
    /// Who seals.
    pub crypto: Crypto,
    /// Whether the upper MAC seals as well while the lower one is behind.
    pub assist: bool,
    /// Frames the queue of a flow holds.
    pub queue: usize,
    /// Frames the queues of a group hold together.
    pub queues: usize,
    /// What is dropped when a flow's queue is full.
    pub overflow: Overflow,
    /// Rates of each group's OFDM channels in bits a second; 0: no limit.
    pub channels: Vec<u64>,
}

impl Default for CmtsConfig {
    fn default() -> Self {
        Self {
            crc: true,
            cipher: true,
            crypto: Crypto::Auto,
            assist: true,
            queue: 256,
            queues: 8192,
            overflow: Overflow::Tail,
            channels: vec![0],
        }
    }
}

impl CmtsConfig {
    /// Whether nothing was set.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn read(&mut self, mut table: Table<'_, '_>) {
        put(&mut self.crc, table.boolean("crc"));
        put(&mut self.cipher, table.boolean("cipher"));
        put(&mut self.crypto, table.choice("crypto"));
        put(&mut self.assist, table.boolean("assist"));
        put(&mut self.queue, table.integer("queue", 1..=65536));
        put(&mut self.queues, table.integer("queues", 64..=1 << 20));
        put(&mut self.overflow, table.choice("overflow"));
        let channels = table.auto_one_or_more("channels", RATES);
        put(
            &mut self.channels,
            channels.map(|rates| rates.set().map_or(vec![0], |r| r.iter().map(|r| *r as u64).collect())),
        );
    }
}

/// `[[group]]`
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GroupConfig {
    /// Name of the port that packets for modems come in by.
    pub input: String,
    /// Name of the port that MAC frames leave by.
    pub output: String,
    /// Modems.
    pub modems: usize,
    /// Address of the first; the others' follow.
    #[serde(serialize_with = "shown")]
    pub mac: MacAddr,
    /// Security association of the first; the others' follow.
    pub said: u16,
    /// Key of the first; the others' are derived from it.
    pub key: Block,
    /// Initialization vector of the first; the others' are derived from it.
    pub iv: Block,
    /// Where the remote PHY is; none: frames are sent as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depi: Option<DepiConfig>,
}

/// `depi = { .. }`
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DepiConfig {
    /// Our address.
    pub local: Ipv4Addr,
    /// Our MAC address.
    #[serde(serialize_with = "shown")]
    pub local_mac: MacAddr,
    /// The remote PHY's address.
    pub remote: Ipv4Addr,
    /// Its MAC address, or its gateway's.
    #[serde(serialize_with = "shown")]
    pub remote_mac: MacAddr,
    /// Session of the first channel.
    pub session: u32,
    /// Code point.
    pub dscp: u8,
}

/// `[[flow]]`
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FlowConfig {
    /// Its name in `show`.
    pub name: String,
    /// Traffic priority.
    pub priority: u8,
    /// Maximum sustained rate in bits a second; 0: no limit.
    pub rate: u64,
    /// Bytes that may go at once; 0: the default.
    pub burst: u32,
    /// Peak rate in bits a second; 0: no limit.
    pub peak: u64,
    /// Code points.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dscp: Vec<u8>,
    /// Protocol.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proto: Option<u8>,
    /// Where packets come from.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shown_option")]
    pub source: Option<Prefix>,
    /// Where they go.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shown_option")]
    pub destination: Option<Prefix>,
    /// From these ports.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "ports")]
    pub source_port: Option<(u16, u16)>,
    /// To these ports.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "ports")]
    pub destination_port: Option<(u16, u16)>,
    /// No modem gets such packets.
    pub drop: bool,
}

/// A cipher block: key or vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block(pub [u8; 16]);

impl Serialize for Block {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:032x}", u128::from_be_bytes(self.0)))
    }
}

fn shown<S: Serializer>(value: &impl std::fmt::Display, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(value)
}

fn shown_option<S: Serializer>(value: &Option<Prefix>, to: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(ToString::to_string).serialize(to)
}

fn ports<S: Serializer>(range: &Option<(u16, u16)>, to: S) -> Result<S::Ok, S::Error> {
    range.map(|(first, last)| format!("{first}-{last}")).serialize(to)
}

fn put<T>(to: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *to = value;
    }
}

/// A text that `parse` takes.
fn parsed<T>(table: &mut Table<'_, '_>, key: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
    table.text(key, |text| parse(text).map(drop)).and_then(|text| parse(&text).ok())
}

fn mac(text: &str) -> Result<MacAddr, String> {
    let mac: MacAddr = text.parse().map_err(|_| "expected an address such as 02:00:00:00:00:01")?;
    if mac.0[0] & 1 == 0 { Ok(mac) } else { Err("that is a group's address, not one station's".into()) }
}

fn block(text: &str) -> Result<Block, String> {
    let bytes = crate::docsis::unhex(text)?;
    bytes.try_into().map(Block).map_err(|_| format!("expected 32 hex digits, found {}", text.trim().len()))
}

fn prefix(text: &str) -> Result<Prefix, String> {
    let wrong = || "expected an address or a prefix such as 10.0.0.0/8".to_string();
    let (addr, len) = text.split_once('/').map_or((text, None), |(addr, len)| (addr, Some(len)));
    let addr: IpAddr = addr.parse().map_err(|_| wrong())?;
    let most = if addr.is_ipv4() { 32 } else { 128 };
    let len = len.map_or(Ok(most), |len| len.parse().map_err(|_| wrong()))?;
    if len <= most { Ok(Prefix { addr, len }) } else { Err(wrong()) }
}

fn port_range(text: &str) -> Result<(u16, u16), String> {
    let wrong = || "expected a port, or two as in 1024-65535".to_string();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if range.0 <= range.1 { Ok(range) } else { Err(wrong()) }
}

fn address(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().map_err(|_| "expected an IPv4 address".into())
}

impl GroupConfig {
    pub(super) fn read(mut table: Table<'_, '_>) -> Self {
        let mut group = Self { modems: 300, mac: MacAddr([2, 0xca, 0xb1, 0, 0, 1]), said: 1, ..Self::default() };
        put(&mut group.input, table.text("input", |_| Ok(())));
        put(&mut group.output, table.text("output", |_| Ok(())));
        put(&mut group.modems, table.integer("modems", MODEMS));
        put(&mut group.mac, parsed(&mut table, "mac", mac));
        put(&mut group.said, table.integer("said", 0..=0x3fff).map(|said| said as u16));
        put(&mut group.key, parsed(&mut table, "key", block));
        put(&mut group.iv, parsed(&mut table, "iv", block));
        if let Some(mut depi) = table.table("depi", &keys::DEPI) {
            let unspecified = Ipv4Addr::UNSPECIFIED;
            group.depi = Some(DepiConfig {
                local: parsed(&mut depi, "local", address).unwrap_or(unspecified),
                local_mac: parsed(&mut depi, "local_mac", mac).unwrap_or(MacAddr::ZERO),
                remote: parsed(&mut depi, "remote", address).unwrap_or(unspecified),
                remote_mac: parsed(&mut depi, "remote_mac", mac).unwrap_or(MacAddr::ZERO),
                session: depi.integer("session", 1..=u32::MAX as usize).unwrap_or(1) as u32,
                dscp: depi.integer("dscp", 0..=63).unwrap_or(0) as u8,
            });
        }
        group
    }
}

impl FlowConfig {
    pub(super) fn read(mut table: Table<'_, '_>) -> Self {
        let mut flow = Self::default();
        put(&mut flow.name, table.text("name", super::load::name));
        put(&mut flow.priority, table.integer("priority", 0..=7).map(|priority| priority as u8));
        put(&mut flow.rate, table.integer("rate", RATES).map(|rate| rate as u64));
        put(&mut flow.burst, table.integer("burst", 0..=u32::MAX as usize).map(|burst| burst as u32));
        put(&mut flow.peak, table.integer("peak", RATES).map(|rate| rate as u64));
        let dscp = table.auto_one_or_more("dscp", 0..=63);
        let points = |points: &Vec<usize>| points.iter().map(|point| *point as u8).collect();
        put(&mut flow.dscp, dscp.map(|list: Auto<Vec<usize>>| list.set().map_or(vec![], points)));
        flow.proto = table.integer("proto", 0..=255).map(|proto| proto as u8);
        flow.source = parsed(&mut table, "source", prefix);
        flow.destination = parsed(&mut table, "destination", prefix);
        flow.source_port = parsed(&mut table, "source_port", port_range);
        flow.destination_port = parsed(&mut table, "destination_port", port_range);
        put(&mut flow.drop, table.boolean("drop"));
        flow
    }

    /// Whether it asks for anything.
    pub fn has_rule(&self) -> bool {
        let Self { dscp, proto, source, destination, source_port, destination_port, .. } = self;
        !dscp.is_empty()
            || proto.is_some()
            || source.is_some()
            || destination.is_some()
            || source_port.is_some()
            || destination_port.is_some()
    }
}
