//! The arguments of `bywash profile`.

use clap::Args;
use std::path::PathBuf;

/// `bywash profile`
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Only this worker  [default: all]
    #[arg(long, value_name = "N")]
    pub worker: Option<u64>,
    /// How long to look, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Analyse these counters instead: what `perf stat -x,` wrote, or JSON (docs/profile.md)
    #[arg(long, value_name = "FILE", conflicts_with = "seconds")]
    pub from: Option<PathBuf>,
    /// Pipeline slots a cycle of the processor: 4 to Cascade Lake, 5 on Ice Lake, 6 on Sapphire Rapids
    /// [default: what the file says, or 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub slots: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Also write a report with a chart
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Socket of the instance to look at
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::api::SOCKET)]
    pub socket: PathBuf,
}
