//! `bywash profile`: shows where CPU cycles go, by worker and stage, and what the processor waits for.

mod html;
mod live;
mod recorded;
mod text;

use crate::cli::profile::ProfileArgs;
use anyhow::Context as _;
use bywash_measure::topdown::{ACCEPTABLE_CPI, Analysis, SLOTS_PER_CYCLE, healthy, meaning};
use serde::Serialize;

/// Minimum excess, as a share of all cycles, for a stage to be pointed out.
const WORTH_A_LOOK: f64 = 0.05;

/// Result of a profile.
#[derive(Debug, Serialize)]
struct Report {
    /// `live`, or the name of the file.
    source: String,
    /// Length of the measurement; `None` for a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    /// Unit of cycles: `tsc` or `core`.
    clock: &'static str,
    /// Slots per cycle of the processor, where its counters do not count them.
    slots_per_cycle: f64,
    workers: Vec<Worker>,
    /// Stage to optimize first.
    hot: Option<Hot>,
    /// Reasons why hardware counters are missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    notes: Vec<String>,
}

/// Figures of a worker, or of everything if a file does not name workers.
#[derive(Debug, Default, Serialize)]
struct Worker {
    worker: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<u64>,
    /// Share of time in iterations that had work.
    #[serde(skip_serializing_if = "Option::is_none")]
    busy_percent: Option<f64>,
    /// Sum of the cycles of its stages.
    cycles: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    packets: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles_per_packet: Option<f64>,
    /// Hardware counters of its whole thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<Analysis>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    meaning: Vec<String>,
    stages: Vec<Stage>,
}

#[derive(Debug, Default, Serialize)]
struct Stage {
    stage: String,
    /// Percentage of its worker's cycles.
    percent: f64,
    cycles: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    packets: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    packets_per_burst: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles_per_packet: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counters: Option<Analysis>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    meaning: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Hot {
    worker: Option<u64>,
    stage: String,
    /// Percentage of all measured cycles.
    percent: f64,
    why: String,
}

/// Runs `bywash profile`.
pub fn run(args: &ProfileArgs) -> anyhow::Result<()> {
    let mut report = match &args.from {
        Some(path) => recorded::report(path, args)?,
        None => live::report(args)?,
    };
    report.finish();
    if let Some(path) = &args.html {
        std::fs::write(path, html::page(&report)).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", text::render(&report));
    }
    Ok(())
}

impl Stage {
    /// Creates a stage with the figures derived from cycles, packets and bursts.
    fn new(stage: &str, cycles: f64, packets: Option<u64>, bursts: Option<u64>) -> Self {
        let over = |n: Option<u64>| n.filter(|n| *n > 0).map(|n| n as f64);
        Self {
            stage: stage.into(),
            cycles,
            packets,
            packets_per_burst: over(packets).zip(over(bursts)).map(|(packets, bursts)| packets / bursts),
            cycles_per_packet: over(packets).map(|packets| cycles / packets),
            ..Self::default()
        }
    }
}

impl Report {
    fn new(source: String, clock: &'static str, slots_per_cycle: Option<f64>) -> Self {
        Self {
            source,
            seconds: None,
            clock,
            slots_per_cycle: slots_per_cycle.unwrap_or(SLOTS_PER_CYCLE),
            workers: vec![],
            hot: None,
            missing: vec![],
            notes: vec![],
        }
    }

    /// Computes the derived figures: shares, interpretations, and the hottest stage.
    fn finish(&mut self) {
        for worker in &mut self.workers {
            worker.cycles = worker.stages.iter().map(|stage| stage.cycles).sum();
            worker.meaning = worker.counters.iter().flat_map(meaning).collect();
            for stage in &mut worker.stages {
                stage.percent = 100.0 * stage.cycles / worker.cycles.max(1.0);
                stage.meaning = stage.counters.iter().flat_map(meaning).collect();
            }
        }
        self.hot = self.hottest();
    }

    /// Returns the stage to optimize first: the one with the most cycles in excess of an acceptable CPI if that excess
    /// is worth a look; else the one that loses the most slots among those with unhealthy counters; else the one with
    /// the most cycles. Ignores [`live::OTHER`] and stages without cycles.
    fn hottest(&self) -> Option<Hot> {
        let all: f64 = self.workers.iter().map(|worker| worker.cycles).sum();
        let most = |of: &dyn Fn(&Stage) -> f64| {
            let each = self.workers.iter().flat_map(|w| w.stages.iter().map(move |stage| (w.worker, stage)));
            let stages = each.filter(|(_, stage)| stage.stage != live::OTHER);
            let known = stages.map(|(worker, stage)| (of(stage), worker, stage)).filter(|(much, _, _)| *much > 0.0);
            known.max_by(|a, b| a.0.total_cmp(&b.0))
        };
        let excess = |stage: &Stage| {
            let cpi = stage.counters.as_ref().and_then(|counters| counters.cpi).unwrap_or(ACCEPTABLE_CPI);
            stage.cycles * (1.0 - ACCEPTABLE_CPI / cpi)
        };
        let lost = |stage: &Stage| {
            let retiring = stage.counters.as_ref().filter(|counters| !healthy(counters)).and_then(|c| c.retiring);
            retiring.map_or(0.0, |retiring| stage.cycles * (1.0 - retiring))
        };
        let (_, worker, stage) = most(&excess)
            .filter(|(excess, _, _)| *excess > WORTH_A_LOOK * all)
            .or_else(|| most(&lost))
            .or_else(|| most(&|stage| stage.cycles))?;
        let why = match &stage.counters {
            Some(counters) if healthy(counters) => "it has the most cycles; all stages are healthy".into(),
            Some(_) => stage.meaning.iter().take(2).cloned().collect::<Vec<_>>().join("; "),
            None => match stage.cycles_per_packet {
                Some(cycles) => format!("it has the most cycles: {cycles:.1} per packet"),
                None => "it has the most cycles".into(),
            },
        };
        Some(Hot { worker, stage: stage.stage.clone(), percent: 100.0 * stage.cycles / all.max(1.0), why })
    }
}
