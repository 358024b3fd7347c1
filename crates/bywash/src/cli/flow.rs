//! The arguments of `bywash flow`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// What can be done with a switch's flows.
#[derive(Debug, Subcommand)]
pub enum FlowArgs {
    /// Add flows, groups (`group_id=`) or meters (`meter=`)
    Add(ChangeArgs),
    /// Change what the flows do that match
    Mod(StrictArgs),
    /// Delete the flows that match; without any, all of them
    Del(DelArgs),
    /// Print flows with their counters, as ovs-ofctl dump-flows does
    Dump(DumpArgs),
    /// Add the flows of a file, a line each
    Load(LoadArgs),
    /// Tell what becomes of a packet, and why
    Trace(TraceArgs),
}

/// The instance to ask.
#[derive(Debug, Args)]
pub struct Whom {
    /// Socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::api::SOCKET)]
    pub socket: PathBuf,
}

/// `bywash flow add`
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// Flows in ovs-ofctl's syntax, such as `priority=10,ip,nw_dst=10.0.0.0/8,actions=output:2`; ports go by name or by
    /// number, from 1 in the configuration's order
    #[arg(value_name = "FLOW", required = true)]
    pub flows: Vec<String>,

    #[command(flatten)]
    pub whom: Whom,
}

/// `bywash flow mod`
#[derive(Debug, Args)]
pub struct StrictArgs {
    /// Flows: those that match what one matches get its actions, and keep their counters
    #[arg(value_name = "FLOW", required = true)]
    pub flows: Vec<String>,

    /// Only a flow with exactly this match and priority
    #[arg(long)]
    pub strict: bool,

    #[command(flatten)]
    pub whom: Whom,
}

/// `bywash flow del`
#[derive(Debug, Args)]
pub struct DelArgs {
    /// Which flows, such as `table=0,ip` or `cookie=0x1/-1`; or `group_id=1`, `meter=1`
    #[arg(value_name = "MATCH")]
    pub flows: Vec<String>,

    /// Only the flow with exactly this match and priority
    #[arg(long, requires = "flows")]
    pub strict: bool,

    #[command(flatten)]
    pub whom: Whom,
}

/// `bywash flow dump`
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// Which flows; all without
    #[arg(value_name = "MATCH")]
    pub filter: Option<String>,

    /// Leave counters and ages out: what is left can be loaded again
    #[arg(long)]
    pub no_stats: bool,

    /// Print JSON: an array with an object for each flow
    #[arg(long, conflicts_with = "no_stats")]
    pub json: bool,

    #[command(flatten)]
    pub whom: Whom,
}

/// `bywash flow load`
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// The file, or `-`: a flow, group or meter on each line. `delete`, `modify` and their `_strict` can stand before one
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Delete all flows first
    #[arg(long)]
    pub replace: bool,

    #[command(flatten)]
    pub whom: Whom,
}

/// `bywash flow trace`
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// The packet by its fields, such as `in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_dst=80`
    #[arg(value_name = "PACKET")]
    pub packet: String,

    /// Print JSON: one object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub whom: Whom,
}
