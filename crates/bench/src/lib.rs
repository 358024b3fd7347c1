//! `bywash bench`: benchmarks; each prints its result as text or as one JSON object.

#![forbid(unsafe_code)]

mod afxdp;
mod args;
mod attack;
mod captured;
mod churn;
mod cmts;
mod crr;
mod dpdk;
mod driver;
mod established;
mod forward;
mod generator;
pub mod lab;
mod line;
mod lookup;
mod memif;
mod memory;
mod nat;
mod pair;
mod placement;
mod pool;
mod ports;
mod revoke;
mod scaling;
mod stages;
mod switch;
mod tabm;
mod txq;
mod veth;

use anyhow::Context as _;
use bywash_frame::{Arena, ArenaConfig, ArenaError, Pages, PoolKind};
use clap::Subcommand;
use lab::Rate;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Subcommands of `bywash bench`.
#[derive(Debug, Subcommand)]
pub enum BenchArgs {
    /// AF_XDP alone, on veth: frames received, sent or forwarded, and the effect of each option (root)
    Afxdp(afxdp::AfxdpArgs),
    /// Route changes under traffic: packets lost or misrouted, and the lag behind the kernel's table (root)
    Churn(churn::ChurnArgs),
    /// Established connections through a firewall with masquerade while others attack: rates, memory, evictions (root)
    Attack(attack::AttackArgs),
    /// Cable downstream on two workers: rate, cycles by stage, and the highest rate without loss
    Cmts(cmts::CmtsArgs),
    /// New TCP connections through a firewall with masquerade: the kernel, then bywash (root)
    Crr(crr::CrrArgs),
    /// XDP program alone: nanoseconds per packet, measured with the kernel's BPF test run (root)
    Driver(driver::DriverArgs),
    /// Router on one or more workers: replays a capture from memory, forwards between two ports, discards
    Forward(forward::ForwardArgs),
    /// Traffic generator: streams with sequence numbers and timestamps compared with bare frames, both made in the
    /// kernel, on veth (root)
    Generator(generator::GeneratorArgs),
    /// Longest-prefix match: cycles per lookup, memory and build time
    Lookup(lookup::LookupArgs),
    /// memif: packets between two threads with separate buffers, or to or from another program
    Memif(memif::MemifArgs),
    /// Model of the memory traffic of a two-thread cable downstream, by pool kind and number of instances
    Memory(memory::MemoryArgs),
    /// Established connections through a firewall with masquerade: the kernel, a minimal XDP
    /// redirect, bywash in the driver or in user space (root)
    Nat(nat::NatArgs),
    /// Two workers connected by in-memory ports
    Pair(pair::PairArgs),
    /// Forwarding levels on the same traffic: the kernel, a minimal XDP redirect, bywash in the driver or in user space
    /// (root)
    Placement(placement::PlacementArgs),
    /// Steps a worker of a benchmark, for its instructions
    #[command(hide = true)]
    Step(stages::StepArgs),
    /// Flow switch on one or more workers: replays a capture from memory, matches flows, discards
    Switch(switch::SwitchArgs),
    /// Buffer pools between two threads: one allocates and writes, the other reads and frees
    Pool(pool::PoolArgs),
    /// Forwarding between two or more veth ports by frame size: the kernel, bywash in user space, bywash in the driver
    /// (root)
    Ports(ports::PortsArgs),
    /// Per-thread blocks compared with a shared block: throughput and TLB misses
    Tabm(tabm::TabmArgs),
    /// Revocation delay: time from a command that ends established connections (a rule, a ruleset, a set element,
    /// `conntrack`, a route) until Bywash no longer forwards them (root)
    Revoke(revoke::RevokeArgs),
    /// Transmit queues of the flow switch: packets of a burst sent together, or each flow's separately
    Txq(txq::TxqArgs),
    /// Forwarding between veth interfaces in the lab: the kernel, then bywash (root)
    Veth(veth::VethArgs),
}

/// Runs one benchmark and prints its result. On SIGINT or SIGTERM, removes its network namespaces and exits.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot install signal handlers")?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let begins = interrupted.clone();
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            begins.store(true, Ordering::Release);
            bywash_lab::sweep_own();
            std::process::exit(128 + signal);
        }
    });
    let result = run_one(args);
    // An error may come from the namespaces' removal: the other thread ends the process.
    while result.is_err() && interrupted.load(Ordering::Acquire) {
        std::thread::park();
    }
    result
}

fn run_one(args: BenchArgs) -> anyhow::Result<()> {
    match args {
        BenchArgs::Afxdp(args) => afxdp::run(&args),
        BenchArgs::Attack(args) => attack::run(&args),
        BenchArgs::Cmts(args) => cmts::run(&args),
        BenchArgs::Churn(args) => churn::run(&args),
        BenchArgs::Crr(args) => crr::run(&args),
        BenchArgs::Driver(args) => driver::run(&args),
        BenchArgs::Forward(args) => forward::run(&args),
        BenchArgs::Generator(args) => generator::run(&args),
        BenchArgs::Lookup(args) => lookup::run(&args),
        BenchArgs::Memif(args) => memif::run(&args),
        BenchArgs::Memory(args) => memory::run(&args),
        BenchArgs::Nat(args) => nat::run(&args),
        BenchArgs::Pair(args) => pair::run(&args),
        BenchArgs::Placement(args) => placement::run(&args),
        BenchArgs::Step(args) => stages::step(&args),
        BenchArgs::Revoke(args) => revoke::run(&args),
        BenchArgs::Switch(args) => switch::run(&args),
        BenchArgs::Pool(args) => pool::run(&args),
        BenchArgs::Ports(args) => ports::run(&args),
        BenchArgs::Tabm(args) => tabm::run(&args),
        BenchArgs::Txq(args) => txq::run(&args),
        BenchArgs::Veth(args) => veth::run(&args),
    }
}

/// Prints a benchmark's figures: as one JSON object, or as text by `print`.
fn report<F: serde::Serialize>(json: bool, figures: &F, print: impl FnOnce(&F)) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string(figures)?);
    } else {
        print(figures);
    }
    Ok(())
}

/// Returns the median (the upper one of an even number); `None` if there are no values.
fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    middle(values, |value| *value)
}

/// Returns the one of which a figure is the median.
fn middle<T>(all: impl IntoIterator<Item = T>, of: impl Fn(&T) -> f64) -> Option<T> {
    let mut all: Vec<T> = all.into_iter().collect();
    all.sort_by(|a, b| of(a).total_cmp(&of(b)));
    (!all.is_empty()).then(|| all.swap_remove(all.len() / 2))
}

/// Returns the medians of a figure by forwarder.
fn medians<K: Ord + Clone>(rounds: &[BTreeMap<K, Rate>], of: impl Fn(&Rate) -> f64) -> BTreeMap<K, f64> {
    let mut samples: BTreeMap<K, Vec<f64>> = BTreeMap::new();
    for (name, rate) in rounds.iter().flatten() {
        samples.entry(name.clone()).or_default().push(of(rate));
    }
    samples.into_iter().filter_map(|(name, all)| Some((name, median(all)?))).collect()
}

/// Returns an arena of `cells` cells, laid out for pools of this kind.
fn arena(kind: PoolKind, cells: usize, pages: Pages) -> Result<Arc<Arena>, ArenaError> {
    Arena::new(ArenaConfig { cells, pages, packed: kind.packed(), ..Default::default() })
}

/// Errors if a frame has not been returned to its pool.
fn all_back(pools: &bywash_frame::PoolSet) -> anyhow::Result<()> {
    let (missing, wrong) = pools.verify();
    let (lost, misplaced) = (missing.len(), wrong.len());
    anyhow::ensure!(lost == 0 && misplaced == 0, "{lost} cells lost, {misplaced} misplaced: a bug");
    Ok(())
}

/// Pins this thread, and the threads it starts later, to `cpu`, if one is given.
fn pin(cpu: Option<usize>) -> anyhow::Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|e| anyhow::anyhow!("cannot run on CPU {cpu}: {e}; `nproc` prints the number of CPUs"))
}
