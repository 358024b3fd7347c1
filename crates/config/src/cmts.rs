//! Configuration of a cable downstream: model of `[cmts]`, `[[group]]` and `[[flow]]`.

use crate::choice::{Aqm, Auto, Crypto, Overflow};
use crate::secret::Secret;
use crate::text;
use bywash_fib::model::Prefix;
use bywash_wire::ethernet::MacAddr;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// `[cmts]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CmtsConfig {
    /// True if a CRC is appended to each PDU.
    pub crc: bool,
    /// True if PDUs are encrypted.
    pub cipher: bool,
    /// Encryption library.
    pub crypto: Crypto,
    /// True if the upper MAC's worker encrypts as well while the lower MAC is behind.
    pub assist: bool,
    /// Capacity of the ring between the two workers of a group, in frames.
    pub ring: usize,
    /// Maximum length of the queue of one flow, in frames.
    pub queue: usize,
    /// Maximum length of all queues of a group together, in frames.
    pub queues: usize,
    /// Packet to drop when the queue of a flow is full.
    pub overflow: Overflow,
    /// Maximum number of learned addresses behind a modem.
    pub cpes: usize,
    /// Seconds after which a learned address behind a modem is removed.
    pub cpe_ageing_s: u32,
    /// Rates of each group's OFDM channels in bit/s; 0: no limit.
    #[serde(deserialize_with = "channels")]
    pub channels: Vec<u64>,
}

impl CmtsConfig {
    /// Returns true if every setting has its default.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// `[[group]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupConfig {
    /// Name of the port on which packets for modems arrive.
    pub input: String,
    /// Name of the port on which MAC frames are sent.
    pub output: String,
    /// Number of generated modems; auto: see [`GroupConfig::generated`].
    pub modems: Auto<usize>,
    /// File of modems; `None` for generated ones only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// MAC address of the first modem; the others' follow consecutively.
    #[serde(serialize_with = "shown", deserialize_with = "mac")]
    pub mac: MacAddr,
    /// Security association identifier (SAID) of the first modem; the others' follow consecutively.
    pub said: u16,
    /// AES-128 key of the first modem; the others' are derived from it.
    pub key: Secret<Block>,
    /// Initialization vector of the first modem; the others' are derived from it.
    pub iv: Secret<Block>,
    /// DEPI session to the remote PHY; `None` to send MAC frames without encapsulation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depi: Option<DepiConfig>,
}

/// `depi = { .. }`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DepiConfig {
    /// Local IPv4 address.
    pub local: Ipv4Addr,
    /// Local MAC address.
    #[serde(serialize_with = "shown", deserialize_with = "mac")]
    pub local_mac: MacAddr,
    /// IPv4 address of the remote PHY.
    pub remote: Ipv4Addr,
    /// MAC address of the remote PHY or of the gateway to it.
    #[serde(serialize_with = "shown", deserialize_with = "mac")]
    pub remote_mac: MacAddr,
    /// Session number of the first channel; channel n uses `session` + n.
    pub session: u32,
    /// DSCP of the IP header.
    pub dscp: u8,
    /// Maximum size of an IP packet in bytes.
    pub mtu: usize,
}

/// `[[profile]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileConfig {
    /// Name in the file of modems.
    pub name: String,
    /// Bits per symbol.
    pub bits: u8,
}

/// `[[flow]]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// True if packets above the rates wait instead of being dropped.
    pub shape: bool,
    /// Minimum reserved rate in bit/s; 0: none.
    pub reserved: u64,
    /// Active queue management of a shaped flow.
    pub aqm: Aqm,
    /// Target of its delay in milliseconds.
    pub latency_ms: u32,
    /// DSCP values to match; any if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dscp: Vec<u8>,
    /// IP protocol to match; `None` for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proto: Option<u8>,
    /// Source prefix to match; `None` for any.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "shown_option",
        deserialize_with = "prefix"
    )]
    pub source: Option<Prefix>,
    /// Destination prefix to match; `None` for any.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "shown_option",
        deserialize_with = "prefix"
    )]
    pub destination: Option<Prefix>,
    /// Source port range to match, inclusive; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "range", deserialize_with = "ports")]
    pub source_port: Option<(u16, u16)>,
    /// Destination port range to match, inclusive; `None` for any.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "range", deserialize_with = "ports")]
    pub destination_port: Option<(u16, u16)>,
    /// True if matching packets are dropped.
    pub drop: bool,
}

/// AES block, as key or initialization vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Block(#[serde(deserialize_with = "block")] pub [u8; 16]);

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

/// Deserializes a string that `parse` converts.
fn parsed<'de, T, D: Deserializer<'de>>(from: D, parse: fn(&str) -> Result<T, String>) -> Result<T, D::Error> {
    parse(&String::deserialize(from)?).map_err(D::Error::custom)
}

fn mac<'de, D: Deserializer<'de>>(from: D) -> Result<MacAddr, D::Error> {
    parsed(from, text::mac)
}

fn block<'de, D: Deserializer<'de>>(from: D) -> Result<[u8; 16], D::Error> {
    parsed(from, text::block)
}

fn prefix<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Prefix>, D::Error> {
    parsed(from, text::prefix).map(Some)
}

fn ports<'de, D: Deserializer<'de>>(from: D) -> Result<Option<(u16, u16)>, D::Error> {
    parsed(from, text::ports).map(Some)
}

fn channels<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u64>, D::Error> {
    Ok(Auto::deserialize(from)?.set().cloned().unwrap_or_else(|| vec![0]))
}

fn range<S: Serializer>(range: &Option<(u16, u16)>, to: S) -> Result<S::Ok, S::Error> {
    range.map(|(first, last)| format!("{first}-{last}")).serialize(to)
}

impl FlowConfig {
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
