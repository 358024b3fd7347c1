//! The arguments of `bywash capture`.

use clap::Args;
use std::path::PathBuf;

/// `bywash capture`
#[derive(Debug, Args)]
pub struct CaptureArgs {
    /// Ports whose packets are wanted: all if none is given
    #[arg(value_name = "PORT")]
    pub ports: Vec<String>,

    /// Only packets dropped for this reason, or `all`; may be given several times
    #[arg(long, value_name = "REASON", conflicts_with = "way")]
    pub drops: Vec<String>,

    /// Only packets received (rx) or sent (tx)
    #[arg(long, value_name = "WAY", value_parser = ["rx", "tx"])]
    pub way: Option<String>,

    /// Only packets that match this expression in tcpdump's language (see pcap-filter(7)); tcpdump must be installed
    #[arg(long, short, value_name = "EXPR")]
    pub filter: Option<String>,

    /// Write pcapng to this file, or to standard output (`-`), instead of a line for each packet
    #[arg(long, short, value_name = "FILE")]
    pub write: Option<PathBuf>,

    /// Keep at most this many bytes of a packet; 0: all
    #[arg(long, short, value_name = "BYTES", default_value_t = 0)]
    pub snaplen: u32,

    /// End after this many packets
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::api::SOCKET)]
    pub socket: PathBuf,
}
