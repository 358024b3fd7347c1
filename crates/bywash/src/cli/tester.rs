//! Arguments of `bywash gen` and `bywash rfc2544`.

use super::within;
use crate::config::interface_name;
use bywash_tester::{Addresses, Ports, Rate, Sizes};
use bywash_wire::ethernet::MacAddr;
use clap::{Args, ValueEnum};
use std::net::IpAddr;
use std::path::PathBuf;

/// Transmit method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Via {
    /// `kernel` for `--rate max` if AF_XDP would run in copy mode and the interface accepts XDP frames; else `socket`,
    /// which paces more precisely
    Auto,
    /// AF_XDP sockets, or on veth injection in batches
    Socket,
    /// XDP frames generated in the kernel: several times faster on veth, but pauses for about 20 ms each second
    Kernel,
}

/// `bywash gen`
#[derive(Debug, Args)]
pub struct GenArgs {
    /// Interfaces to send from
    #[arg(value_name = "IFACE", required = true, value_parser = interface_name)]
    pub interfaces: Vec<String>,

    /// Interface to receive the frames on: one for all senders, or one for each sender. The tester takes the packets
    /// that this interface receives while it runs; the kernel still answers ARP, unless --vlan, --dst-mac or --pcap is
    /// given
    #[arg(long, value_name = "IFACE", value_parser = interface_name)]
    pub rx: Vec<String>,

    /// Rate: such as 100kpps, 1gbps (including preamble, inter-frame gap and FCS), 50% of the link rate, or max
    #[arg(long, default_value = "max")]
    pub rate: Rate,

    /// Frame size in bytes, FCS included: one size (64), a list used in turn (64,512,1518), or a range (64-1518)
    #[arg(long, value_name = "BYTES", default_value = "64")]
    pub size: Sizes,

    /// Use the simple IMIX: frames of 64 (or what the headers need), 594 and 1518 bytes in the ratio 7:4:1
    #[arg(long, conflicts_with = "size")]
    pub imix: bool,

    /// Number of flows, each with its own addresses and ports
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = flows)]
    pub flows: usize,

    /// Choose each flow's addresses and ports at random within their ranges instead of in order
    #[arg(long)]
    pub random: bool,

    /// Source addresses: one, a range `a-b`, or a prefix `a/24`
    #[arg(long, value_name = "ADDRESSES", default_value = "198.18.0.1")]
    pub src: Addresses,

    /// Destination addresses, as for --src
    #[arg(long, value_name = "ADDRESSES", default_value = "198.19.0.1")]
    pub dst: Addresses,

    /// UDP source ports: one, or a range `a-b`
    #[arg(long, value_name = "PORTS", default_value = "1024-65535")]
    pub src_port: Ports,

    /// UDP destination ports, as for --src-port
    #[arg(long, value_name = "PORTS", default_value = "9")]
    pub dst_port: Ports,

    /// Source MAC address  [default: the interface's]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    pub src_mac: Option<MacAddr>,

    /// Destination MAC address  [default: that of the --rx interface]
    #[arg(long, value_name = "MAC", value_parser = mac, conflicts_with = "gateway")]
    pub dst_mac: Option<MacAddr>,

    /// Use the MAC address of this neighbour as destination: a router's address on the first interface's link
    #[arg(long, value_name = "ADDRESS")]
    pub gateway: Option<IpAddr>,

    /// VLAN ID of the frames' 802.1Q tag
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(0..=4094))]
    pub vlan: Option<u16>,

    /// Time to live (TTL) of the frames' IP header
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub ttl: u8,

    /// Replay the frames of this capture file in a loop instead of generating frames; they are only counted, without
    /// sequence or latency checks, so that each sender needs an --rx of its own
    #[arg(long, value_name = "FILE", conflicts_with_all = ["size", "imix", "flows", "src", "dst", "vlan", "src_mac"])]
    pub pcap: Option<PathBuf>,

    /// Frames sent back to back; the average rate stays the same
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = burst)]
    pub burst: usize,

    /// Stop after this many frames per interface  [default: run until Ctrl-C]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Stop after this many seconds  [default: run until Ctrl-C]
    #[arg(long, value_name = "N", conflicts_with = "count", value_parser = super::seconds)]
    pub seconds: Option<f64>,

    /// Transmit method
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub via: Via,

    /// Time to wait for outstanding frames at the end, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pub drain: u64,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `bywash rfc2544`
#[derive(Debug, Args)]
pub struct Rfc2544Args {
    /// Test configuration (TOML): device ports, frame sizes and tests
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,

    /// Write the report to this file, as one HTML page with charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// File to keep the results so far, so that an interrupted run can be resumed  [default: the configuration file's
    /// name with .state.json]
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
    text.parse().map_err(|_| format!("`{text}` is not a MAC address: expected one such as 02:00:00:00:00:01"))
}
