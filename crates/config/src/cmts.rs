//! Configuration of a cable downstream: model and reader of `[cmts]`, `[[group]]` and `[[flow]]`.

use crate::keys;
use crate::model::Auto;
use crate::reader::Table;
use bywash_route::model::Prefix;
use bywash_wire::ethernet::MacAddr;
use clap::ValueEnum;
use serde::{Serialize, Serializer};
use std::net::{IpAddr, Ipv4Addr};

/// Valid numbers of modems in a group.
pub const MODEMS: std::ops::RangeInclusive<usize> = 1..=bywash_docsis::group::MODEMS_MAX;
/// Valid rates in bit/s.
const RATES: std::ops::RangeInclusive<usize> = 0..=1_000_000_000_000;

/// Implementation that encrypts PDUs and computes their CRC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
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

/// `[cmts]`
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CmtsConfig {
    /// True if a CRC is appended to each PDU.
    pub crc: bool,
    /// True if PDUs are encrypted.
    pub cipher: bool,
    /// Encryption library.
    pub crypto: Crypto,
    /// True if the upper MAC's worker encrypts as well while the lower MAC is behind.
    pub assist: bool,
    /// Maximum length of the queue of one flow, in frames.
    pub queue: usize,
    /// Maximum length of all queues of a group together, in frames.
    pub queues: usize,
    /// Packet to drop when the queue of a flow is full.
    pub overflow: Overflow,
    /// Rates of each group's OFDM channels in bit/s; 0: no limit.
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
    /// Returns true if every setting has its default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn read(&mut self, mut table: Table<'_, '_>) {
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
    /// Name of the port on which packets for modems arrive.
    pub input: String,
    /// Name of the port on which MAC frames are sent.
    pub output: String,
    /// Number of modems.
    pub modems: usize,
    /// MAC address of the first modem; the others' follow consecutively.
    #[serde(serialize_with = "shown")]
    pub mac: MacAddr,
    /// Security association identifier (SAID) of the first modem; the others' follow consecutively.
    pub said: u16,
    /// AES-128 key of the first modem; the others' are derived from it.
    pub key: Block,
    /// Initialization vector of the first modem; the others' are derived from it.
    pub iv: Block,
    /// DEPI session to the remote PHY; `None` to send MAC frames without encapsulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depi: Option<DepiConfig>,
}

/// `depi = { .. }`
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DepiConfig {
    /// Local IPv4 address.
    pub local: Ipv4Addr,
    /// Local MAC address.
    #[serde(serialize_with = "shown")]
    pub local_mac: MacAddr,
    /// IPv4 address of the remote PHY.
    pub remote: Ipv4Addr,
    /// MAC address of the remote PHY or of the gateway to it.
    #[serde(serialize_with = "shown")]
    pub remote_mac: MacAddr,
    /// Session number of the first channel; channel n uses `session` + n.
    pub session: u32,
    /// DSCP of the IP header.
    pub dscp: u8,
}

/// `[[flow]]`
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FlowConfig {
    /// Name in `show`.
    pub name: String,
    /// Traffic priority, 0 to 7; higher ones are sent first.
    pub priority: u8,
    /// Maximum sustained rate in bit/s; 0: no limit.
    pub rate: u64,
    /// Maximum burst in bytes; 0: the default.
    pub burst: u32,
    /// Peak rate in bit/s; 0: no limit.
    pub peak: u64,
    /// DSCP values to match; any if empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dscp: Vec<u8>,
    /// IP protocol to match; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proto: Option<u8>,
    /// Source prefix to match; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shown_option")]
    pub source: Option<Prefix>,
    /// Destination prefix to match; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shown_option")]
    pub destination: Option<Prefix>,
    /// Source port range to match, inclusive; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "ports")]
    pub source_port: Option<(u16, u16)>,
    /// Destination port range to match, inclusive; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "ports")]
    pub destination_port: Option<(u16, u16)>,
    /// True if matching packets are dropped.
    pub drop: bool,
}

/// AES block, as key or initialization vector.
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

/// Returns the parsed value of a string key; `None`, with a problem noted, if `parse` refuses it.
fn parsed<T>(table: &mut Table<'_, '_>, key: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
    table.text(key, |text| parse(text).map(drop)).and_then(|text| parse(&text).ok())
}

fn mac(text: &str) -> Result<MacAddr, String> {
    let mac: MacAddr = text.parse().map_err(|_| "expected an address such as 02:00:00:00:00:01")?;
    if mac.0[0] & 1 == 0 { Ok(mac) } else { Err("expected a unicast address, not a group address".into()) }
}

fn block(text: &str) -> Result<Block, String> {
    let bytes = bywash_wire::hex::decode(text)?;
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
    let wrong = || "expected a port, or a range such as 1024-65535".to_string();
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
    if range.0 <= range.1 { Ok(range) } else { Err(wrong()) }
}

fn address(text: &str) -> Result<Ipv4Addr, String> {
    text.parse().map_err(|_| "expected an IPv4 address".into())
}

impl GroupConfig {
    pub(crate) fn read(mut table: Table<'_, '_>) -> Self {
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
    pub(crate) fn read(mut table: Table<'_, '_>) -> Self {
        let mut flow = Self::default();
        put(&mut flow.name, table.text("name", crate::load::name));
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

    /// Returns true if the flow has any classifier.
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
