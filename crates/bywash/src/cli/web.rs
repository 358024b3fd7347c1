//! The arguments of `bywash web`.

use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `bywash web`
#[derive(Debug, Args)]
pub struct WebArgs {
    /// Address and port to serve at; whoever reaches it sees what `bywash show` shows
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8469")]
    pub listen: SocketAddr,

    /// Serve at an address that is not this machine's own, too
    #[arg(long)]
    pub public: bool,

    /// Socket of the instance to show
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::api::SOCKET)]
    pub socket: PathBuf,
}
