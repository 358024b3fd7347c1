//! Arguments of `bywash trace`.

use clap::Args;
use std::path::PathBuf;

/// `bywash trace`
///
/// A separate thread runs the packet through the instance's own stages with the current tables. It sends
/// nothing, resolves no neighbour and changes no counter.
#[derive(Debug, Args)]
#[command(
    override_usage = "bywash trace [OPTIONS] <PORT> <HEX>\n       bywash trace [OPTIONS] <PORT> --live [--filter <EXPR>]"
)]
pub struct TraceArgs {
    /// Port that receives the packet
    #[arg(value_name = "PORT")]
    pub port: String,

    /// Frame in hex, starting with the Ethernet header; `-` reads it from standard input
    #[arg(value_name = "HEX", required_unless_present_any = ["live", "filter"])]
    pub frame: Option<String>,

    /// Trace the next packet that the port receives; that packet is forwarded as usual
    #[arg(long, conflicts_with = "frame")]
    pub live: bool,

    /// Trace the next packet that matches this tcpdump expression (requires tcpdump); implies --live
    #[arg(long, short, value_name = "EXPR", conflicts_with = "frame")]
    pub filter: Option<String>,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    /// API socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::config::SOCKET)]
    pub socket: PathBuf,
}
