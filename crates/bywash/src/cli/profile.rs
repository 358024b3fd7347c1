//! Arguments of `bywash profile`.

use clap::Args;
use std::path::PathBuf;

/// `bywash profile`
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Worker to profile  [default: all]
    #[arg(long, value_name = "N")]
    pub worker: Option<u64>,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,
    /// Analyse recorded counters instead: output of `perf stat -x,`, or JSON (see docs/profile.md)
    #[arg(long, value_name = "FILE", conflicts_with = "seconds")]
    pub from: Option<PathBuf>,
    /// Pipeline slots per cycle of the processor: 4 up to Cascade Lake, 5 on Ice Lake, 6 on Sapphire Rapids and on Zen
    /// to Zen 4, 8 on Zen 5  [default: this processor's; of a file, the value in it; else 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    pub slots: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Also write an HTML report with a chart to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// API socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::config::SOCKET)]
    pub socket: PathBuf,
}
