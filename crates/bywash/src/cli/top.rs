//! The arguments of `bywash top`.

use clap::Args;
use std::path::PathBuf;

/// `bywash top`
///
/// Keys: `o` overview, `p` ports, `w` workers, `b` buffers, `f` flows, `d` drops, Tab the next of them; arrows, PgUp, PgDn,
/// Home and End scroll; `+` and `-` change the interval; space stops and goes on; `q`, Esc and Ctrl-C end it.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds between looks; figures are of the time in between
    #[arg(long, short, value_name = "SECS", default_value_t = 1.0, value_parser = super::seconds)]
    pub interval: f64,

    /// Print one look as text, and end
    #[arg(long)]
    pub once: bool,

    /// Print one look as JSON, and end
    #[arg(long)]
    pub json: bool,

    /// Show a look that --json wrote, as --once does, and ask nobody
    #[arg(long, value_name = "FILE", conflicts_with = "interval")]
    pub from: Option<PathBuf>,

    /// Socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::api::SOCKET)]
    pub socket: PathBuf,
}
