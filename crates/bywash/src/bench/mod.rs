//! `bywash bench`: benchmarks; each prints its result as text or as one JSON object.

mod afxdp;
mod captured;
mod churn;
mod cmts;
mod dpdk;
mod driver;
mod forward;
mod generator;
pub mod lab;
mod lookup;
mod memif;
mod memory;
mod pair;
mod placement;
mod pool;
mod ports;
mod switch;
mod tabm;
mod txq;
pub mod veth;

use crate::cli::bench::BenchArgs;
use anyhow::Context as _;
use bywash_frame::{Arena, ArenaConfig, ArenaError, Pages, PoolKind};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;

/// Runs one benchmark and prints its result. On SIGINT or SIGTERM, removes its network namespaces and exits.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot install signal handlers")?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            bywash_lab::sweep_own();
            std::process::exit(128 + signal);
        }
    });
    match args {
        BenchArgs::Afxdp(args) => afxdp::run(&args),
        BenchArgs::Cmts(args) => cmts::run(&args),
        BenchArgs::Churn(args) => churn::run(&args),
        BenchArgs::Driver(args) => driver::run(&args),
        BenchArgs::Forward(args) => forward::run(&args),
        BenchArgs::Generator(args) => generator::run(&args),
        BenchArgs::Lookup(args) => lookup::run(&args),
        BenchArgs::Memif(args) => memif::run(&args),
        BenchArgs::Memory(args) => memory::run(&args),
        BenchArgs::Pair(args) => pair::run(&args),
        BenchArgs::Placement(args) => placement::run(&args),
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
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
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
