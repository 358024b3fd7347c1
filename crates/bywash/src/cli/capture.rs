//! Arguments of `bywash capture`.

use clap::Args;
use std::path::PathBuf;

/// `bywash capture`
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// Ports to capture on; those that a reload adds later are not captured  [default: all]
    #[arg(value_name = "PORT")]
    pub ports: Vec<String>,

    /// Capture only packets dropped for this reason, or for any (`all`); can be repeated
    #[arg(long, value_name = "REASON", conflicts_with = "direction")]
    pub drops: Vec<String>,

    /// Capture packets of only one direction: received (rx) or sent (tx)
    #[arg(long, alias = "way", value_name = "DIRECTION", value_parser = ["rx", "tx"])]
    pub direction: Option<String>,

    /// Capture only packets that match this tcpdump expression (see pcap-filter(7); requires tcpdump)
    #[arg(long, short, value_name = "EXPR")]
    pub filter: Option<String>,

    /// Write pcapng to this file or, with `-`, to standard output, instead of printing one line per packet
    #[arg(long, short, value_name = "FILE")]
    pub write: Option<PathBuf>,

    /// Maximum number of bytes captured per packet; 0: no limit
    #[arg(long, short, value_name = "BYTES", default_value_t = 0)]
    pub snaplen: u32,

    /// Stop after this many packets  [default: run until Ctrl-C]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// API socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::config::SOCKET)]
    pub socket: PathBuf,
}
