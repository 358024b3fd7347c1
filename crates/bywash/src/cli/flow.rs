//! Arguments of `bywash flow`.

use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Subcommands of `bywash flow`.
#[derive(Debug, Subcommand)]
pub enum FlowArgs {
    /// Add flows, groups (`group_id=`) or meters (`meter=`)
    Add(ChangeArgs),
    /// Change the actions of matching flows
    Mod(StrictArgs),
    /// Delete matching flows, or all flows if no match is given
    Del(DelArgs),
    /// Print flows with their counters, in the format of ovs-ofctl dump-flows
    Dump(DumpArgs),
    /// Add flows from a file, one per line
    ///
    /// All lines are checked before any is sent. A file of more than 4 MiB is sent in pieces, each of which is applied
    /// as a whole; put groups and meters before the flows that use them.
    Load(LoadArgs),
    /// Trace a packet through the flow tables: matching flows, actions and result
    Trace(TraceArgs),
}

/// Instance to connect to.
#[derive(Debug, Args)]
pub struct Target {
    /// API socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::config::SOCKET)]
    pub socket: PathBuf,
}

/// `bywash flow add`
#[derive(Debug, Args)]
pub struct ChangeArgs {
    /// Flows in ovs-ofctl syntax, such as `priority=10,ip,nw_dst=10.0.0.0/8,actions=output:2`; ports by name, or by
    /// number in the configuration's order, starting at 1
    #[arg(value_name = "FLOW", required = true)]
    pub flows: Vec<String>,

    #[command(flatten)]
    pub whom: Target,
}

/// `bywash flow mod`
#[derive(Debug, Args)]
pub struct StrictArgs {
    /// Match and new actions; matching flows get these actions and keep their counters
    #[arg(value_name = "FLOW", required = true)]
    pub flows: Vec<String>,

    /// Change only the flow with exactly this match and priority
    #[arg(long)]
    pub strict: bool,

    #[command(flatten)]
    pub whom: Target,
}

/// `bywash flow del`
#[derive(Debug, Args)]
pub struct DelArgs {
    /// Flows to delete, such as `table=0,ip` or `cookie=0x1/-1`; or a group (`group_id=1`) or meter (`meter=1`)
    #[arg(value_name = "MATCH")]
    pub flows: Vec<String>,

    /// Delete only the flow with exactly this match and priority
    #[arg(long, requires = "flows")]
    pub strict: bool,

    #[command(flatten)]
    pub whom: Target,
}

/// `bywash flow dump`
#[derive(Debug, Args)]
pub struct DumpArgs {
    /// Flows to print  [default: all]
    #[arg(value_name = "MATCH")]
    pub filter: Option<String>,

    /// Omit counters and ages, so that the output can be loaded again
    #[arg(long)]
    pub no_stats: bool,

    /// Print a JSON array with one object per flow
    #[arg(long, conflicts_with = "no_stats")]
    pub json: bool,

    #[command(flatten)]
    pub whom: Target,
}

/// `bywash flow load`
#[derive(Debug, Args)]
pub struct LoadArgs {
    /// File with one flow, group or meter per line; `-` reads standard input. Lines can begin with `delete`, `modify`,
    /// `delete_strict` or `modify_strict`
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Delete all existing flows first
    #[arg(long)]
    pub replace: bool,

    #[command(flatten)]
    pub whom: Target,
}

/// `bywash flow trace`
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Packet header fields, such as `in_port=1,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_dst=80`
    #[arg(value_name = "PACKET")]
    pub packet: String,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub whom: Target,
}
