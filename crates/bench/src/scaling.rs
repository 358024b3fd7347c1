//! Rate by number of workers, each with ports and a pool of its own.

use bywash_engine::cpus::Placement;
use bywash_frame::{PoolConfig, PoolKind};
use clap::Args;
use serde::Serialize;

/// Options of benchmarks that run with several workers.
#[derive(Debug, Args)]
pub struct Scaling {
    /// Numbers of workers to measure in turn, each worker on a CPU of its own, on different cores as long as there are
    /// enough
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1", value_parser = workers, conflicts_with = "cpu")]
    pub workers: Vec<usize>,
    /// Number of rounds, each measuring all numbers of workers; the result is the median
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
}

fn workers(text: &str) -> Result<usize, String> {
    crate::args::number(text, 1..=64, "workers")
}

/// Rates by number of workers.
#[derive(Serialize)]
pub struct Curve {
    cpus: Placement,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    workers: usize,
    /// Median rate of all workers together.
    mpps: f64,
    rounds_mpps: Vec<f64>,
    /// Median of TSC cycles per packet of a worker.
    cycles_per_packet: f64,
    /// Rate per worker, relative to that of the first row.
    per_worker: f64,
    /// True if there are more workers than CPUs, so that the rate means little.
    crowded: bool,
}

impl Scaling {
    /// Returns whether one worker is measured once.
    pub fn one(&self) -> bool {
        self.workers == [1] && self.rounds == 1
    }

    /// Measures all numbers of workers in turn, with `measure`, which takes each worker's CPU. One worker alone runs on
    /// `cpu`. Returns the first figures, and the rates unless one worker was measured once. `rate` returns figures'
    /// packets per microsecond, and cycles per packet.
    pub fn measure<F>(
        &self,
        cpu: Option<usize>,
        mut measure: impl FnMut(&[Option<usize>]) -> anyhow::Result<F>,
        rate: impl Fn(&F) -> (f64, f64),
    ) -> anyhow::Result<(F, Option<Curve>)> {
        let cpus = Placement::of(self.workers.iter().copied().max().unwrap_or(1))?;
        let apart = cpus.apart();
        let (mut rounds, mut first) = (vec![vec![]; self.workers.len()], None);
        for _ in 0..self.rounds {
            for (&workers, rates) in self.workers.iter().zip(&mut rounds) {
                // A CPU is given for one worker only.
                let pinned: Vec<_> = match cpu.is_some() || self.one() {
                    true => vec![cpu],
                    false => (0..workers).map(|worker| Some(apart[worker % apart.len()])).collect(),
                };
                let figures = measure(&pinned)?;
                rates.push(rate(&figures));
                first.get_or_insert(figures);
            }
        }
        let median = |rates: &[(f64, f64)], of: fn(&(f64, f64)) -> f64| crate::median(rates.iter().map(of));
        let mut rows: Vec<Row> = vec![];
        for (&workers, rates) in self.workers.iter().zip(&rounds) {
            let mpps = median(rates, |rate| rate.0).unwrap_or(0.0);
            let reference = rows.first().map_or(mpps / workers as f64, |row| row.mpps / row.workers as f64);
            rows.push(Row {
                workers,
                mpps,
                rounds_mpps: rates.iter().map(|rate| rate.0).collect(),
                cycles_per_packet: median(rates, |rate| rate.1).unwrap_or(0.0),
                per_worker: mpps / workers as f64 / reference,
                crowded: !cpus.enough_for(workers),
            });
        }
        let first = first.ok_or_else(|| anyhow::anyhow!("no number of workers is given"))?;
        Ok((first, (!self.one()).then_some(Curve { cpus, rows })))
    }
}

impl std::fmt::Display for Curve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}\nworkers     Mpps  cycles/packet  per worker", self.cpus)?;
        for Row { workers, mpps, cycles_per_packet, per_worker, crowded, .. } in &self.rows {
            let crowded = if *crowded { "  crowded: more workers than CPUs" } else { "" };
            writeln!(f, "{workers:7} {mpps:8.1} {cycles_per_packet:14.1} {per_worker:11.2}{crowded}")?;
        }
        Ok(())
    }
}

/// Returns the pools of `workers` workers, as the router has them: one each of `frames` frames, except for `sdb`, which
/// all share. Worker N takes from pool N modulo their number.
pub fn pools(kind: PoolKind, frames: usize, cache: usize, workers: usize) -> Vec<PoolConfig> {
    let pool = |worker, frames| PoolConfig { cache, ..PoolConfig::new(&format!("worker{worker}"), kind, frames) };
    match kind {
        PoolKind::Sdb => vec![pool(0, frames * workers)],
        _ => (0..workers).map(|worker| pool(worker, frames)).collect(),
    }
}
