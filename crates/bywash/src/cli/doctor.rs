//! The arguments of `bywash doctor`.

use clap::Args;
use std::path::PathBuf;

/// `bywash doctor`
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Interfaces to look at: those of the running instance if none is given, or else all
    #[arg(value_name = "IFACE", value_parser = super::interface)]
    pub interfaces: Vec<String>,

    /// Mend what can be mended by a setting, and remember what it was, for `bywash restore`
    #[arg(long)]
    pub fix: bool,

    /// Print what was found as JSON: one value
    #[arg(long)]
    pub json: bool,

    /// Socket of the running instance, if there is one
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::api::SOCKET)]
    pub socket: PathBuf,
}
