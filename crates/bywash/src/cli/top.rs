//! Arguments of `bywash top`.

use clap::Args;
use std::path::PathBuf;

/// `bywash top`
///
/// Keys: `o` overview, `p` ports, `w` workers, `b` buffers, `f` flows, `d` drops, Tab the next view; arrows, PgUp,
/// PgDn, Home and End scroll; `+` and `-` change the interval; space pauses and resumes; `q`, Esc and Ctrl-C quit.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between samples; rates are averages over this interval
    #[arg(long, short, value_name = "SECS", default_value_t = 1.0, value_parser = super::seconds)]
    pub interval: f64,

    /// Print one sample as text and exit
    #[arg(long)]
    pub once: bool,

    /// Print one sample as JSON and exit
    #[arg(long)]
    pub json: bool,

    /// Print a sample written by --json, in the format of --once, without connecting to an instance
    #[arg(long, value_name = "FILE", conflicts_with = "interval")]
    pub from: Option<PathBuf>,

    /// API socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::config::SOCKET)]
    pub socket: PathBuf,
}
