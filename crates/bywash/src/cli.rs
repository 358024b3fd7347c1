//! Command line: subcommands, options and their parsers.

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

use crate::config::{Auto, CpuList, Idle, Level, Mode, Pages, PoolKind, Transmit, XdpMode, ZeroCopy, interface_name};
use bywash_bench::BenchArgs;
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
  0  success; `doctor` succeeds whatever it finds
  1  failure: the last line on stderr says what failed, where, and what to do
  2  invalid command line or configuration

Environment:
  BYWASH_SOCKET  API socket of the instance, for `run`, `show`, `top`, `web`, `capture`,
                 `trace`, `doctor`, `level`, `reload`, `flow` and `profile`
  BYWASH_LOG     log level or filter, as for --log
  NO_COLOR       disables colours if set

Files:
  /run/bywash/bywash.sock  default API socket: `run` listens on it, the other commands connect to it
";

/// Packet dataplane that runs beside the Linux kernel.
///
/// Forwards packets between network interfaces, in the driver (XDP) or in user space (AF_XDP, DPDK, memif), using the
/// kernel's links, addresses, routes and neighbours. Packets for the host itself (ARP, local addresses, multicast,
/// routing protocols) are passed to the kernel. If bywash exits or is killed, the kernel forwards again.
#[derive(Debug, Parser)]
#[command(name = "bywash", version, after_long_help = AFTER_HELP, max_term_width = 100, propagate_version = false)]
pub struct Cli {
    /// Log level for stderr (error, warn, info, debug, trace) or a filter such as `info,bywash_port=debug`  [default:
    /// info for `run`, else warn]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub log: Option<String>,

    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Forward packets between interfaces
    Run(RunArgs),
    /// Show the state of the running instance: ports, workers, routes, drops and more
    Show(ShowArgs),
    /// Monitor the running instance live: ports, workers, buffers, flows and drops, with rates
    ///
    /// Keys: `o` overview, `p` ports, `w` workers, `b` buffers, `f` flows, `d` drops, Tab the next view; arrows, PgUp,
    /// PgDn, Home and End scroll; `+` and `-` change the interval; space pauses and resumes; `q`, Esc and Ctrl-C quit.
    Top(TopArgs),
    /// Serve a web page with the running instance's ports, rates and drops
    Web(WebArgs),
    /// Capture packets that the running instance receives, sends or drops
    Capture(CaptureArgs),
    /// Trace one packet through the running instance and print the decision of each stage
    ///
    /// A separate thread runs the packet through the instance's own stages with the current tables. It sends
    /// nothing, resolves no neighbour and changes no counter.
    Trace(TraceArgs),
    /// Change where the running instance forwards a port's packets: driver, user space or kernel
    Level(LevelArgs),
    /// Apply the changed configuration file to the running instance, without loss on unchanged ports
    ///
    /// The instance reads the file given to `bywash run --config` again, checks it, and applies it as a whole: it adds
    /// and removes ports and changes levels; unchanged ports lose no packets. If any part cannot be applied, nothing is
    /// changed. SIGHUP does the same.
    Reload(ReloadArgs),
    /// Report where the running instance spends CPU cycles, or analyse recorded counters
    Profile(ProfileArgs),
    /// Add, change, delete, dump, load and trace the flows of a running switch
    #[command(subcommand)]
    Flow(FlowArgs),
    /// Check a configuration file, or print the configuration reference or schema
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Find out what prevents or slows down forwarding on this machine, what each problem costs, and how to fix it
    Doctor(DoctorArgs),
    /// Restore system settings left changed by a killed instance or by `doctor --fix`
    Restore(RestoreArgs),
    /// Create a new project based on Bywash's crates
    #[command(subcommand)]
    New(NewArgs),
    /// Run a demonstration: build host - router - host in network namespaces, measure, clean up
    Demo(DemoArgs),
    /// Generate traffic at an exact rate and measure loss, reordering and latency
    Gen(GenArgs),
    /// Benchmark a device per RFC 2544: throughput, latency, frame loss, back-to-back, recovery
    #[command(name = "rfc2544")]
    Rfc2544(Rfc2544Args),
    /// Benchmark individual components, without network hardware
    #[command(subcommand)]
    Bench(BenchArgs),
    /// Encrypt, decrypt, frame and parse DOCSIS PDUs given in hex
    #[command(subcommand)]
    Docsis(DocsisArgs),
    /// Print a shell completion script
    Completion {
        /// Shell to generate completions for
        shell: Shell,
    },
    /// Print the manual page, or write one for each command
    Man {
        /// Write a manual page for every command into this directory
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Print the version
    Version,
    /// Load BPF programs for the instance that started this process
    #[command(hide = true)]
    Broker,
}

/// `bywash run`
#[derive(Debug, Default, Args)]
#[command(override_usage = "bywash run [OPTIONS] <IFACE>...\n       bywash run [OPTIONS] --config <FILE>")]
pub struct RunArgs {
    /// Take over the ports of the instance that listens on --socket, without packet loss, and stop that instance; start
    /// normally if none is running. An instance without a sandbox can also be sent SIGUSR2: it then starts its own
    /// successor, from the program file and configuration file that are on disk at that time
    #[arg(long)]
    pub takeover: bool,

    /// Interfaces to forward between, each with default port settings
    #[arg(value_name = "IFACE", required_unless_present = "config", value_parser = interface_name)]
    pub interfaces: Vec<String>,

    /// Configuration file (TOML). Options on the command line take precedence over it, and it over the defaults below
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Operating mode  [default: router]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,

    /// File with a switch's initial flows (not `flows` of `[router]`), one per line in ovs-ofctl syntax; without it,
    /// the switch is a learning bridge
    #[arg(long, value_name = "FILE")]
    pub flows: Option<PathBuf>,

    /// Number of worker threads, or `auto`: the queue count of the port with the fewest queues, at most one per CPU
    /// [default: auto]
    #[arg(long, value_name = "N", value_parser = workers)]
    pub workers: Option<Auto<usize>>,

    /// CPUs to pin the workers to, such as `2,3` or `4-7`, or `auto`  [default: auto]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub cpus: Option<Auto<CpuList>>,

    /// Allocation policy of the buffer pools; the configuration file also accepts `auto`  [default: stack]
    #[arg(long, value_name = "KIND")]
    pub pool: Option<PoolKind>,

    /// Buffers per worker, or `auto`: enough for the rings of its queues, plus a reserve  [default: auto]
    #[arg(long, value_name = "N", value_parser = frames)]
    pub frames: Option<Auto<usize>>,

    /// Page size of the buffer memory  [default: auto]
    #[arg(long, value_name = "SIZE")]
    pub pages: Option<Pages>,

    /// Use of AF_XDP zero-copy mode  [default: auto]
    #[arg(long, value_name = "WHEN")]
    pub zero_copy: Option<ZeroCopy>,

    /// Transmit method of AF_XDP ports in copy mode  [default: auto]
    #[arg(long, value_name = "HOW")]
    pub transmit: Option<Transmit>,

    /// XDP attach mode; on veth, `native` gives a higher packet rate, but disables TCP segmentation offload on the peer
    /// [default: auto]
    #[arg(long, value_name = "WHERE")]
    pub xdp: Option<XdpMode>,

    /// Forwarding level  [default: auto]
    #[arg(long, value_name = "LEVEL")]
    pub level: Option<Level>,

    /// CPUs that transmit packets forwarded in the driver (cpumap), such as `2-5`: for NICs with fewer queues than the
    /// machine has CPUs  [default: the CPU that received the packet]
    #[arg(long, value_name = "LIST")]
    pub spread: Option<CpuList>,

    /// Behaviour of a worker that has no packets  [default: sleep]
    #[arg(long, value_name = "HOW")]
    pub idle: Option<Idle>,

    /// Keep all capabilities and system calls of the starting process
    #[arg(long)]
    pub no_sandbox: bool,

    /// API socket to listen on, for `bywash show` and the other commands  [default: /run/bywash/bywash.sock]
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true)]
    pub socket: Option<PathBuf>,
}

/// `bywash show`
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Table to show
    #[arg(value_name = "WHAT")]
    pub what: Show,

    /// Filter, depending on WHAT. `ports`, `placement`: a port or interface. `routes`: a prefix or address.
    /// `neighbours`: a prefix, an address or an interface. `flows` of a switch: a match. `flows` of a router: any of
    /// src=PREFIX,dst=PREFIX,port=N,proto=tcp
    #[arg(value_name = "FILTER")]
    pub filter: Option<String>,

    /// Show at most N of a router's flows, 0 for all  [default: 1000]
    #[arg(long, value_name = "N", conflicts_with = "schema")]
    pub limit: Option<u64>,

    /// Print the instance's response as one JSON value
    #[arg(long)]
    pub json: bool,

    /// Print the JSON schema of the --json output, without connecting to an instance
    #[arg(long, conflicts_with_all = ["json", "watch", "filter"])]
    pub schema: bool,

    /// API socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::config::SOCKET)]
    pub socket: PathBuf,

    /// Repeat every SECS seconds, with rates; with --json, one value per line, without rates
    #[arg(long, value_name = "SECS", value_parser = seconds)]
    pub watch: Option<f64>,
}

/// `bywash level`
#[derive(Debug, Args)]
pub struct LevelArgs {
    /// Forwarding level, in effect until it is changed again or the instance exits
    #[arg(value_name = "LEVEL")]
    pub level: Level,

    /// Ports to change  [default: all]
    #[arg(value_name = "PORT")]
    pub ports: Vec<String>,

    /// Print the resulting placement as `show placement --json` does
    #[arg(long)]
    pub json: bool,

    /// API socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::config::SOCKET)]
    pub socket: PathBuf,
}

/// `bywash reload`
///
/// Reads the file given to `bywash run --config` again, checks it, and applies it as a whole: adds and removes ports
/// and changes levels; unchanged ports lose no packets. If any part cannot be applied, nothing is changed. SIGHUP does
/// the same.
#[derive(Debug, Args)]
pub struct ReloadArgs {
    /// Print the changes without applying them
    #[arg(long)]
    pub dry_run: bool,

    /// Print one JSON object: `{"changes", "applied"}`
    #[arg(long)]
    pub json: bool,

    /// API socket of the instance
    #[arg(long, value_name = "PATH", env = "BYWASH_SOCKET", hide_env = true, default_value = crate::config::SOCKET)]
    pub socket: PathBuf,
}

/// Tables of `bywash show`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Show {
    /// Ports: link state, level, packets and losses
    Ports,
    /// Worker threads: CPU, load and time per stage
    Workers,
    /// Buffer pools: free and used buffers, peak use and shortages
    Pools,
    /// Routes in the forwarding table
    Routes,
    /// Neighbours and their link-layer addresses
    #[value(alias = "neighbors")]
    Neighbours,
    /// Differences between the router's copy of the kernel's tables and these tables, which are read again; none if the
    /// copy is in sync
    Drift,
    /// Dropped packets by reason
    Drops,
    /// Forwarding level of each port, and the reason for it
    Placement,
    /// The kernel's nf_tables chains in the order in which a forwarded packet traverses them, and their verdict on
    /// established flows; with the flow table, if a router runs. Reads the rules from the kernel itself
    Firewall,
    /// Remaining privileges of the instance: capabilities and system calls
    Sandbox,
    /// Liveness of the workers, with version, mode, pid and uptime; fails if a worker hangs or the
    /// broker has ended
    Health,
    /// Flows of the switch; of a router, its established flows
    Flows,
    /// Established flows, which bypass the kernel's firewall rules: translation, packets, age and idle time
    EstablishedFlows,
    /// Table of a router's established flows: size, packets, and why flows were revoked
    FlowTable,
    /// Connections that the kernel forwards itself, by reason, with the rules responsible
    KernelConnections,
    /// Groups and meters of the switch
    Groups,
    /// MAC addresses learned by the switch
    Fdb,
    /// Flow caches of the switch: hits by level
    Caches,
    /// Modems of the cable downstream
    Modems,
    /// Addresses behind the modems of the cable downstream
    Cpes,
    /// Service flows of the cable downstream: packets, queues and drops
    ServiceFlows,
    /// Channels of the cable downstream
    Channels,
    /// The configuration in effect
    Config,
    /// All of the above except drift, health, firewall and kernel-connections
    All,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a configuration file and report every error in it
    Check {
        /// Configuration file
        file: PathBuf,
        /// Skip the checks that depend on this machine (its interfaces, CPUs, users, files): the file is for another
        /// one
        #[arg(long, alias = "elsewhere")]
        skip_host_checks: bool,
    },
    /// Print a reference of all keys, with defaults and units, as Markdown
    Reference,
    /// Print a JSON schema of the configuration file, for editors
    Schema,
}

/// `bywash restore`
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// Print one JSON object
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
    auto(text, str::parse)
}

fn seconds(text: &str) -> Result<f64, String> {
    let wanted = "expected a number of seconds from 0.1 to 3600";
    text.parse().ok().filter(|s| (0.1..=3600.0).contains(s)).ok_or_else(|| wanted.into())
}

#[cfg(test)]
#[path = "../tests/docs/page.rs"]
mod page;

#[cfg(test)]
mod tests {
    use super::page::{Documented, documented, is_placeholder};
    use super::*;
    use clap::CommandFactory;

    /// Returns the reason why a command line is refused that has no placeholder and is not a mere mention of a command
    /// or an option.
    fn refused(Documented { page, words, example }: &Documented) -> Option<String> {
        let is_option = |word: &String| word.starts_with('-');
        let mentioned = !words.iter().any(is_option) || words.last().is_some_and(is_option);
        // An ellipsis stands for options, too.
        if words.iter().any(|word| is_placeholder(word)) || !example && mentioned && !page.ends_with("documents.md") {
            return None;
        }
        let all = std::iter::once("bywash").chain(words.iter().map(String::as_str));
        match Cli::command().try_get_matches_from(all) {
            Err(why) if why.use_stderr() => Some(format!("{page}: {words:?}: {why}")),
            _ => None,
        }
    }

    #[test]
    fn documented_command_lines_are_accepted() {
        let all = documented();
        let wrong: Vec<String> = all.iter().filter_map(refused).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));

        let line = |words: &str| Documented {
            page: "docs/documents.md".into(),
            words: words.split_whitespace().map(str::to_owned).collect(),
            example: false,
        };
        assert!(refused(&line("bench cmts --burst 20000")).is_some_and(|why| why.contains("--rate")));
        assert!(refused(&line("rfc2544")).is_some());
        for good in ["bench cmts --rate 1 --burst 20000", "bench cmts --burst N", "bench tabm", "show pools"] {
            assert_eq!(refused(&line(good)), None, "{good}");
        }
    }

    #[test]
    fn definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_of_run_are_those_of_the_file() {
        let config = serde_json::to_value(crate::config::Config::for_interfaces(&["a".into()])).unwrap();
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for (option, key) in [
            ("mode", "/mode"),
            ("workers", "/workers/count"),
            ("cpus", "/workers/cpus"),
            ("pool", "/pool/kind"),
            ("frames", "/pool/frames"),
            ("pages", "/pool/pages"),
            ("zero_copy", "/port/0/zero_copy"),
            ("transmit", "/port/0/transmit"),
            ("xdp", "/port/0/xdp"),
            ("level", "/port/0/level"),
            ("idle", "/workers/idle"),
            ("socket", "/api/socket"),
        ] {
            let argument = run.get_arguments().find(|argument| argument.get_id() == option).unwrap();
            let help = argument.get_help().unwrap().to_string();
            let value =
                config.pointer(key).and_then(|value| value.as_str()).unwrap_or_else(|| panic!("{key}: {config}"));
            assert!(help.ends_with(&format!("[default: {value}]")), "--{option}: {help}");
        }
    }
}
