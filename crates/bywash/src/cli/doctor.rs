//! Arguments of `bywash doctor`.

use clap::Args;
use std::path::PathBuf;

/// `bywash doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Interfaces to check  [default: those of the running instance, else all]
    #[arg(value_name = "IFACE", value_parser = crate::config::interface_name)]
    pub interfaces: Vec<String>,

    /// Fix what a setting can fix, and record the previous values for `bywash restore`
    #[arg(long)]
    pub fix: bool,

    /// Print the findings as one JSON value
    #[arg(long)]
    pub json: bool,

    /// API socket of the running instance, if there is one
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::config::SOCKET)]
    pub socket: PathBuf,
}
