//! Values and parsers that the arguments of several benchmarks share.

use clap::{Args, ValueEnum};

pub const SECONDS: std::ops::RangeInclusive<u64> = 1..=3600;

/// Measurements that alternate between several forwarders.
#[derive(Debug, Args)]
pub struct Series {
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Number of rounds, each measuring all of them; the result is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
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

impl std::fmt::Display for OnOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(if *self == Self::On { "on" } else { "off" })
    }
}

pub fn number(text: &str, range: std::ops::RangeInclusive<usize>, what: &str) -> Result<usize, String> {
    let wanted = || format!("expected {} to {} {what}", range.start(), range.end());
    text.replace('_', "").parse().ok().filter(|n| range.contains(n)).ok_or_else(wanted)
}

pub fn frames(text: &str) -> Result<usize, String> {
    number(text, bywash_config::FRAMES, "buffers")
}

pub fn block(text: &str) -> Result<usize, String> {
    let wanted = "expected a power of two from 64 to 65536".to_string();
    number(text, bywash_config::BLOCK, "buffers").ok().filter(|n| n.is_power_of_two()).ok_or(wanted)
}

pub fn gbits(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|rate| (0.001..=1000.0).contains(rate)).ok_or("expected 0.001 to 1000 Gbit/s".into())
}

pub fn touch(text: &str) -> Result<usize, String> {
    number(text, 0..=1792, "bytes")
}

pub fn routes(text: &str) -> Result<usize, String> {
    number(text, 1..=4_000_000, "routes")
}

pub fn flows(text: &str) -> Result<usize, String> {
    number(text, 1..=1 << 20, "flows")
}

/// Parses a frame size in bytes, from 64 (Ethernet's minimum) to 1518 (the maximum without VLAN tag or jumbo frames;
/// RFC 2544, section 9.1).
pub fn size(text: &str) -> Result<usize, String> {
    number(text, 64..=1518, "bytes")
}
