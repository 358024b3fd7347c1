//! Profile of counters recorded in a file.

use super::{Report, Stage, Worker};
use crate::cli::profile::ProfileArgs;
use anyhow::{Context as _, anyhow, bail};
use bywash_measure::topdown::{Unit, analyse, read};
use std::path::Path;

/// Reads and analyses a file of counters.
pub fn report(path: &Path, args: &ProfileArgs) -> anyhow::Result<Report> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let recorded = read(&text).map_err(|why| anyhow!("{name}: {why}"))?;
    let width = args.slots.map(f64::from).or(recorded.slots_per_cycle);
    let mut report = Report::new(name.to_string(), "core", width);
    report.notes = recorded.notes;
    let units: Vec<&Unit> = recorded.units.iter().filter(|u| args.worker.is_none_or(|n| u.worker == Some(n))).collect();
    if units.is_empty() {
        bail!("{name}: the file has no counters of worker {}", args.worker.unwrap_or_default());
    }
    let mut without = vec![];
    for unit in units {
        let analysis =
            analyse(&unit.counts, report.slots_per_cycle).map_err(|why| anyhow!("{name}: {}", unit.explain(&why)))?;
        if width.is_none() {
            report.slots_per_cycle = analysis.slots_per_cycle;
        }
        let called = if unit.name.is_empty() { "all" } else { &unit.name };
        if analysis.slots.is_none() {
            without.push(called);
        }
        let mut stage = Stage::new(called, analysis.cycles, unit.packets, unit.bursts);
        stage.counters = Some(analysis);
        match report.workers.iter_mut().find(|worker| worker.worker == unit.worker) {
            Some(worker) => worker.stages.push(stage),
            None => report.workers.push(Worker { worker: unit.worker, stages: vec![stage], ..Worker::default() }),
        }
    }
    if !without.is_empty() {
        report.missing.push(format!(
            "no top-down figures of {}: the file lacks their counters (see docs/profile.md for those to record)",
            without.join(", ")
        ));
    }
    Ok(report)
}
