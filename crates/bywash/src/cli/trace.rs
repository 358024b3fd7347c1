//! The arguments of `bywash trace`.

use clap::Args;
use std::path::PathBuf;

/// `bywash trace`
///
/// The instance's own stages, on a thread of their own with the tables as they are now, handle the packet. Nothing is sent
/// by it, no neighbour is asked for, and no counter moves.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The port that the packet comes in by
    #[arg(value_name = "PORT")]
    pub port: String,

    /// The frame in hex, Ethernet header first; `-`: from standard input
    #[arg(value_name = "HEX", required_unless_present = "live")]
    pub frame: Option<String>,

    /// Take the next packet that the port receives; it is forwarded as ever
    #[arg(long, conflicts_with = "frame")]
    pub live: bool,

    /// Of live packets, the next that matches this expression in tcpdump's language; tcpdump must be installed
    #[arg(long, short, value_name = "EXPR", requires = "live")]
    pub filter: Option<String>,

    /// Print JSON: one object
    #[arg(long)]
    pub json: bool,

    /// Socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::api::SOCKET)]
    pub socket: PathBuf,
}
