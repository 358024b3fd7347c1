//! Arguments of `bywash web`.

use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// `bywash web`
#[derive(Debug, Args)]
pub struct WebArgs {
    /// Address and port to listen on. Without --public it must be a loopback address; every user of this machine can
    /// then see whatever `bywash show` shows
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8469")]
    pub listen: SocketAddr,

    /// Allow an address that other machines reach; needs --token
    #[arg(long)]
    pub public: bool,

    /// File whose first line is a token. Browsers must send the token as the password of user `bywash`
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,

    /// API socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::config::SOCKET)]
    pub socket: PathBuf,
}
