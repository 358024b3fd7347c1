//! Arguments of `bywash web`.

use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `bywash web`
#[derive(Debug, Args)]
pub struct WebArgs {
    /// Address and port to serve on; everyone who can reach it sees all that `bywash show` shows
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8469")]
    pub listen: SocketAddr,

    /// Allow an address other than loopback
    #[arg(long)]
    pub public: bool,

    /// API socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::config::SOCKET)]
    pub socket: PathBuf,
}
