//! The arguments of `bywash gen` and `bywash rfc2544`.

use super::{interface, within};
use bywash_tester::{Addresses, Ports, Rate, Sizes};
use bywash_wire::ethernet::MacAddr;
use clap::{Args, ValueEnum};
use std::net::IpAddr;
use std::path::PathBuf;

/// How frames are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// The faster of the two: for `--rate max` the kernel, where AF_XDP would have to copy and the interface takes such
    /// frames; else AF_XDP, which paces better
    Auto,
    /// AF_XDP, or on veth injection in batches
    Socket,
    /// XDP frames made in the kernel: several times faster on veth, but it pauses some 20 ms each second
    Kernel,
}

/// `bywash gen`
#[derive(Debug, Args)]
pub struct GenArgs {
    /// Interfaces to send from
    #[arg(value_name = "IFACE", required = true, value_parser = interface)]
    pub interfaces: Vec<String>,

    /// Interface where the frames are to arrive: one for all senders, or one for each. It carries nothing else
    /// meanwhile but what the kernel answers for itself
    #[arg(long, value_name = "IFACE", value_parser = interface)]
    pub rx: Vec<String>,

    /// Such as 100kpps, 1gbps (preamble, gap and FCS included), 50% of the link's rate, or max
    #[arg(long, default_value = "max")]
    pub rate: Rate,

    /// Frame size in bytes, FCS included: 64, or 64,512,1518 in turn, or 64-1518 mixed
    #[arg(long, value_name = "BYTES", default_value = "64")]
    pub size: Sizes,

    /// Frame sizes of the simple iMix: 64, 594 and 1518 bytes as 7:4:1
    #[arg(long, conflicts_with = "size")]
    pub imix: bool,

    /// Different sets of addresses and ports
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = flows)]
    pub flows: usize,

    /// Choose each flow's addresses and ports from their ranges at random rather than in turn
    #[arg(long)]
    pub random: bool,

    /// Source addresses: one, a range `a-b` or a prefix `a/24`
    #[arg(long, value_name = "ADDRESSES", default_value = "198.18.0.1")]
    pub src: Addresses,

    /// Destination addresses
    #[arg(long, value_name = "ADDRESSES", default_value = "198.19.0.1")]
    pub dst: Addresses,

    /// UDP source ports: one or a range `a-b`
    #[arg(long, value_name = "PORTS", default_value = "1024-65535")]
    pub src_port: Ports,

    /// UDP destination ports
    #[arg(long, value_name = "PORTS", default_value = "9")]
    pub dst_port: Ports,

    /// Source MAC address  [default: the interface's]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    pub src_mac: Option<MacAddr>,

    /// Destination MAC address  [default: that of --rx's interface]
    #[arg(long, value_name = "MAC", value_parser = mac, conflicts_with = "gateway")]
    pub dst_mac: Option<MacAddr>,

    /// Send to the MAC address of this neighbour: a router's address on the first interface's link
    #[arg(long, value_name = "ADDRESS")]
    pub gateway: Option<IpAddr>,

    /// VLAN tag
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(0..=4094))]
    pub vlan: Option<u16>,

    /// Time to live
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub ttl: u8,

    /// Replay this file's frames, over and over, in place of made ones; they are counted, and no more
    #[arg(long, value_name = "FILE", conflicts_with_all = ["size", "imix", "flows", "src", "dst", "vlan", "src_mac"])]
    pub pcap: Option<PathBuf>,

    /// Frames that go back to back; the rate holds on average
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = burst)]
    pub burst: usize,

    /// End after this many frames of each interface
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// End after this time  [default: at Ctrl-C]
    #[arg(long, value_name = "N", conflicts_with = "count", value_parser = super::seconds)]
    pub seconds: Option<f64>,

    /// How frames are sent
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub via: Via,

    /// How long frames are waited for at the end, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub drain: u64,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash rfc2544`
#[derive(Debug, Args)]
pub struct Rfc2544Args {
    /// What is to be tested, and how
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,

    /// Write the report here, as one page with charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Keep here what has been found, so that an interrupted run can go on  [default: the config's name and
    /// .state.json]
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn flows(text: &str) -> Result<usize, String> {
    within(text, 1..=1 << 20)
}

fn burst(text: &str) -> Result<usize, String> {
    within(text, 1..=1 << 20)
}

fn mac(text: &str) -> Result<MacAddr, String> {
    text.parse().map_err(|_| format!("`{text}` is no MAC address: expected such as 02:00:00:00:00:01"))
}
