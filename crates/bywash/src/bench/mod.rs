//! `bywash bench`: the figures, each by one command and as one JSON object.

mod forward;
pub mod lab;
mod lookup;
mod pair;
mod placement;
mod switch;
pub mod veth;

use crate::cli::bench::BenchArgs;

/// Runs one benchmark and prints its result.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    match args {
        BenchArgs::Forward(args) => forward::run(&args),
        BenchArgs::Lookup(args) => lookup::run(&args),
        BenchArgs::Pair(args) => pair::run(&args),
        BenchArgs::Placement(args) => placement::run(&args),
        BenchArgs::Switch(args) => switch::run(&args),
        BenchArgs::Veth(args) => veth::run(&args),
    }
}

/// Runs this thread, and those it starts from now on, on `cpu`.
fn pin(cpu: Option<usize>) -> anyhow::Result<()> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|e| anyhow::anyhow!("cannot run on CPU {cpu}: {e}; `nproc` says how many there are"))
}
