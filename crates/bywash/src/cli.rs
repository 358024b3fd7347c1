//! The command line: what can be asked for, and in which words.

pub mod bench;
pub mod capture;
pub mod docsis;
pub mod doctor;
pub mod flow;
pub mod new;
pub mod profile;
pub mod tester;
pub mod top;
pub mod trace;
pub mod web;

use crate::config::{Auto, Idle, Level, Mode, Pages, PoolKind, Transmit, XdpMode, ZeroCopy};
use bench::BenchArgs;
use capture::CaptureArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use docsis::DocsisArgs;
use doctor::DoctorArgs;
use flow::FlowArgs;
use new::NewArgs;
use profile::ProfileArgs;
use std::path::PathBuf;
use tester::{GenArgs, Rfc2544Args};
use top::TopArgs;
use trace::TraceArgs;
use web::WebArgs;

const AFTER_HELP: &str = "\
Exit status:
  0  done
  1  it failed: the last line on stderr says what, where, and what to do
  2  the command line or the configuration is wrong

Environment:
  BYWASH_SOCKET  socket of the running instance, for `run`, `show`, `top`, `web`, `capture`,
                 `trace`, `doctor`, `level`, `reload`, `flow` and `profile`
  BYWASH_LOG     what is logged, like --log
  NO_COLOR       no colours when set

Files:
  /run/bywash/bywash.sock  where `run` listens and `show` asks
";

/// A packet dataplane beside the Linux kernel.
///
/// Forwards packets between network interfaces in user space, with the kernel's own links, addresses, routes and
/// neighbours. Whatever is the kernel's (ARP, local addresses, multicast, routing protocols) still goes to the kernel,
/// and when bywash ends, however it ends, the kernel forwards again.
#[derive(Debug, Parser)]
#[command(name = "bywash", version, after_long_help = AFTER_HELP, max_term_width = 100, propagate_version = false)]
pub struct Cli {
    /// What is logged to stderr: error, warn, info, debug, trace, or a filter such as `info,bywash_port=debug`
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log: Option<String>,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Forward packets between interfaces
    Run(RunArgs),
    /// Ask the running instance
    Show(ShowArgs),
    /// Show the running instance live: ports, workers, buffers, flows and drops, with rates
    Top(TopArgs),
    /// Serve a page with the running instance's ports, rates and drops, for a browser on this machine
    Web(WebArgs),
    /// Capture packets of the running instance: received, sent, or dropped and why
    Capture(CaptureArgs),
    /// Follow one packet through the running instance, with the decision at each stage
    Trace(TraceArgs),
    /// Move ports of the running instance to another level
    Level(LevelArgs),
    /// Have the running instance take over its changed configuration file, without loss on ports that stay
    Reload(ReloadArgs),
    /// Say where the cycles of the running instance go, or what recorded counters tell
    Profile(ProfileArgs),
    /// Add, change, delete, dump, load and trace the flows of a running switch
    #[command(subcommand)]
    Flow(FlowArgs),
    /// Check a configuration, or list what can be set
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Say what stands in the way of forwarding on this machine, what it costs, and what mends it
    Doctor(DoctorArgs),
    /// Put back the settings that a killed run left changed, and those that `doctor --fix` made
    Restore(RestoreArgs),
    /// Begin a project of your own on Bywash's crates
    #[command(subcommand)]
    New(NewArgs),
    /// Build host - router - host on this machine, try it out, and remove it
    Demo(DemoArgs),
    /// Send frames at an exact rate, and tell what came of them: loss, order, delay
    Gen(GenArgs),
    /// Benchmark a device: throughput, latency, loss, bursts, recovery
    #[command(name = "rfc2544")]
    Rfc2544(Rfc2544Args),
    /// Measure a part on its own, without network hardware
    #[command(subcommand)]
    Bench(BenchArgs),
    /// Seal, open, frame and parse DOCSIS PDUs in hex
    #[command(subcommand)]
    Docsis(DocsisArgs),
    /// Print shell completions
    Completion {
        /// The shell to complete for
        shell: Shell,
    },
    /// Print the manual page, or write one per command
    Man {
        /// Write a page for every command into this directory
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Print the version
    Version,
}

/// `bywash run`
#[derive(Debug, Default, Args)]
pub struct RunArgs {
    /// Take over the ports of the instance that runs at this socket, without loss, and end it; where none runs, just start.
    /// SIGUSR2 has an instance without a sandbox do this itself, with the program and the file as they are now
    #[arg(long)]
    pub takeover: bool,

    /// Interfaces to forward between, each with default settings
    #[arg(value_name = "IFACE", required_unless_present = "config", value_parser = interface)]
    pub interfaces: Vec<String>,

    /// Read this TOML file; options given here override it
    #[arg(long, value_name = "FILE", conflicts_with = "interfaces")]
    pub config: Option<PathBuf>,

    /// What to be
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,

    /// Flows a switch begins with, one a line in ovs-ofctl's syntax; without, it is a learning bridge
    #[arg(long, value_name = "FILE")]
    pub flows: Option<PathBuf>,

    /// Worker threads, or `auto`: as many as every port has queues for, at most one per CPU
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<Auto<usize>>,

    /// CPUs the workers are pinned to, such as `2,3` or `4-7`, or `auto`
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub cpus: Option<Auto<CpuList>>,

    /// Order in which buffers are used again: `stack` (last in, first out), `ring` (first in, first out), or blocks
    /// at consecutive addresses, shared (`sdb`), one for each worker (`tabm`), or with several packets to a buffer
    /// (`typewriter`)
    #[arg(long, value_name = "KIND")]
    pub pool: Option<PoolKind>,

    /// Buffers per worker, or `auto`: what its rings can hold, and some
    #[arg(long, value_name = "N", value_parser = frames)]
    pub frames: Option<Auto<usize>>,

    /// Pages the buffers lie in
    #[arg(long, value_name = "SIZE")]
    pub pages: Option<Pages>,

    /// AF_XDP zero-copy
    #[arg(long, value_name = "WHEN")]
    pub zero_copy: Option<ZeroCopy>,

    /// How AF_XDP ports send where the kernel copies frames
    #[arg(long, value_name = "HOW")]
    pub transmit: Option<Transmit>,

    /// Where the XDP program is attached; `native` on veth is for packet rate, and costs its peer TCP segmentation
    #[arg(long, value_name = "WHERE")]
    pub xdp: Option<XdpMode>,

    /// Where packets are forwarded
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<Level>,

    /// CPUs that send what the driver forwards, such as `2-5`: for NICs with fewer queues than there are CPUs
    #[arg(long, value_name = "LIST", value_parser = only_cpus)]
    pub spread: Option<CpuList>,

    /// What a worker does when there is nothing to do
    #[arg(long, value_name = "HOW")]
    pub idle: Option<Idle>,

    /// Keep all privileges and system calls that it was started with
    #[arg(long)]
    pub no_sandbox: bool,

    /// Listen here for `bywash show` and the API
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true)]
    pub socket: Option<PathBuf>,
}

/// `bywash show`
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// What to show
    #[arg(value_name = "WHAT")]
    pub what: Show,

    /// Only routes within this prefix or covering this address; only neighbours with this address; only flows that
    /// match this
    #[arg(value_name = "FILTER")]
    pub filter: Option<String>,

    /// Print the instance's JSON: one value
    #[arg(long)]
    pub json: bool,

    /// Print the JSON schema of what --json prints, and ask nobody
    #[arg(long, conflicts_with_all = ["json", "watch", "filter"])]
    pub schema: bool,

    /// Socket of the instance to ask
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::api::SOCKET)]
    pub socket: PathBuf,

    /// Show again every SECS seconds, with rates
    #[arg(long, value_name = "SECS", conflicts_with = "json", value_parser = seconds)]
    pub watch: Option<f64>,
}

/// `bywash level`
#[derive(Debug, Args)]
pub struct LevelArgs {
    /// Where packets are to be forwarded from now on, until the instance ends
    #[arg(value_name = "LEVEL")]
    pub level: Level,

    /// Ports whose packets are meant: all if none is given
    #[arg(value_name = "PORT")]
    pub ports: Vec<String>,

    /// Print where packets are handled then, as `show placement --json` does
    #[arg(long)]
    pub json: bool,

    /// Socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::api::SOCKET)]
    pub socket: PathBuf,
}

/// `bywash reload`
///
/// The file that `bywash run --config` was given is read again, checked, and taken over as a whole: ports come and go,
/// levels change; ports that stay as they are lose nothing. When anything cannot be done, nothing is. SIGHUP does the same.
#[derive(Debug, Args)]
pub struct ReloadArgs {
    /// Only print what would change
    #[arg(long)]
    pub dry_run: bool,

    /// Print `{"changes", "applied"}`
    #[arg(long)]
    pub json: bool,

    /// Socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::api::SOCKET)]
    pub socket: PathBuf,
}

/// What `bywash show` can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Show {
    /// Interfaces and their counters
    Ports,
    /// Threads: their CPU, load and stages
    Workers,
    /// Buffers: where they are, and how scarce they got
    Pools,
    /// Routes as they are forwarded by
    Routes,
    /// Neighbours as they are sent to
    #[value(alias = "neighbors")]
    Neighbours,
    /// Where the kernel's tables, read anew, and the router's differ: nowhere, when nothing changes
    Drift,
    /// Packets not forwarded, by reason
    Drops,
    /// Where packets are handled, and why there
    Placement,
    /// What the instance may do: capabilities and system calls
    Sandbox,
    /// Whether every worker turns: fails while one hangs
    Health,
    /// Flows of a switch
    Flows,
    /// Groups and meters of a switch
    Groups,
    /// Addresses a switch has learned
    Fdb,
    /// A switch's caches: packets found, by level
    Caches,
    /// Modems of a cable downstream
    Modems,
    /// Service flows of a cable downstream: packets, queues, and drops by flow
    ServiceFlows,
    /// Channels of a cable downstream
    Channels,
    /// The configuration in effect
    Config,
    /// All of these but drift and health
    All,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration file and say all that is wrong with it
    Check {
        /// The file
        file: PathBuf,
        /// It is for another machine: do not look whether its interfaces and CPUs exist here
        #[arg(long)]
        elsewhere: bool,
    },
    /// Print every key with its default and unit, as Markdown
    Reference,
    /// Print a JSON schema of the file, for editors
    Schema,
}

/// `bywash restore`
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Print what was put back as JSON: one array
    #[arg(long)]
    pub json: bool,
}

/// `bywash demo`
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=60))]
    pub seconds: u64,
}

/// CPU numbers, as given on a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

/// Longest interface name: `IFNAMSIZ` (linux/if.h) less the NUL.
const INTERFACE_NAME: usize = 15;

/// An interface name as the kernel would take it (`dev_valid_name`).
pub fn interface(name: &str) -> Result<String, String> {
    if name.is_empty() || name.len() > INTERFACE_NAME {
        return Err(format!("an interface name has 1 to {INTERFACE_NAME} characters"));
    }
    if name == "." || name == ".." || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
        return Err("an interface name has no `/`, `:` or space".into());
    }
    Ok(name.into())
}

fn auto<T>(text: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<Auto<T>, String> {
    if text == "auto" { Ok(Auto::Auto) } else { parse(text).map(Auto::Set) }
}

fn within(text: &str, range: std::ops::RangeInclusive<usize>) -> Result<usize, String> {
    let wanted = || format!("expected a number from {} to {}", range.start(), range.end());
    text.parse().ok().filter(|n| range.contains(n)).ok_or_else(wanted)
}

fn workers(text: &str) -> Result<Auto<usize>, String> {
    auto(text, |text| within(text, crate::config::WORKERS)).map_err(|why| format!("{why}, or `auto`"))
}

fn frames(text: &str) -> Result<Auto<usize>, String> {
    auto(text, |text| within(text, crate::config::FRAMES)).map_err(|why| format!("{why}, or `auto`"))
}

fn cpus(text: &str) -> Result<Auto<CpuList>, String> {
    auto(text, only_cpus)
}

/// The same without `auto`.
pub fn only_cpus(text: &str) -> Result<CpuList, String> {
    cpu_list(text).map(CpuList)
}

/// `0,2-4` as the kernel writes lists of CPUs.
pub fn cpu_list(text: &str) -> Result<Vec<usize>, String> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            within(text, 0..=4095).map_err(|_| format!("`{part}` is no CPU: expected a list such as `2,3` or `4-7`"))
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("`{part}` runs backwards: write `{last}-{first}`"));
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return Err(format!("CPU {cpu} is there twice"));
            }
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

fn seconds(text: &str) -> Result<f64, String> {
    let wanted = "expected seconds from 0.1 to 3600";
    text.parse().ok().filter(|s| (0.1..=3600.0).contains(s)).ok_or_else(|| wanted.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(cpu_list("3"), Ok(vec![3]));
        assert_eq!(cpu_list("0,2-4\n"), Ok(vec![0, 2, 3, 4]));
        for bad in ["", "a", "1-", "4-2", "1,1", "0-2,1", "99999", "1,,2"] {
            assert!(cpu_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn interface_names() {
        assert!(interface("eth0.100").is_ok());
        for bad in ["", "0123456789abcdef", "a b", "..", "a/b", "a:b"] {
            assert!(interface(bad).is_err(), "{bad}");
        }
    }
}
