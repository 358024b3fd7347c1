//! Profile of a running instance: two samples of its counters, with hardware counters on its threads in between.

use super::{Report, Stage, Worker};
use crate::api::{self, client};
use crate::cli::profile::ProfileArgs;
use crate::config::count;
use anyhow::{Context as _, bail};
use bywash_measure::pmu::{ThreadCounters, slots_per_cycle};
use bywash_measure::topdown::{Analysis, analyse};
use std::time::{Duration, Instant};

/// Name of the stage for busy cycles that no stage accounts for: polling idle ports, housekeeping, reading the clock.
pub const OTHER: &str = "other";

/// Profiles the running instance for `args.seconds`.
pub fn report(args: &ProfileArgs) -> anyhow::Result<Report> {
    let before: Vec<api::Worker> = client::ask(&args.socket)?;
    let workers = chosen(&before, args.worker)?;
    let mut report = Report::new("live".into(), "tsc", args.slots.map(f64::from).or_else(slots_per_cycle));
    let mut counters: Vec<Option<ThreadCounters>> = vec![];
    for worker in &workers {
        counters.push(match ThreadCounters::open(worker.thread as i32) {
            Ok(counters) => {
                report.missing.extend(counters.missing().iter().cloned());
                Some(counters)
            }
            Err(why) => {
                report.missing.push(why);
                None
            }
        });
    }
    let start = Instant::now();
    std::thread::sleep(Duration::from_secs(args.seconds));
    let after: Vec<api::Worker> = client::ask(&args.socket)?;
    report.seconds = Some(start.elapsed().as_secs_f64());
    for (worker, counters) in workers.into_iter().zip(counters) {
        let id = worker.id;
        let now = after.iter().find(|now| now.id == id);
        let now = now.context("a worker has disappeared: was the instance restarted?")?;
        let counts = counters.map(ThreadCounters::read).transpose().context("cannot read the hardware counters")?;
        let counters = counts.map(|counts| analyse(&counts, report.slots_per_cycle)).transpose();
        let counters = counters.unwrap_or_else(|why| {
            report.missing.push(format!("worker {id}: {why}"));
            None
        });
        let width = counters.as_ref().map_or(report.slots_per_cycle, |counters| counters.slots_per_cycle);
        let entry = difference(worker, now, width, &mut report.missing)?;
        report.workers.push(Worker { counters, ..entry });
    }
    report.missing.dedup();
    if report.workers.iter().any(|worker| worker.counters.is_some()) {
        report.notes.push("cycles of stages are ticks of the TSC".into());
        if report.workers.iter().flat_map(|worker| &worker.stages).all(|stage| stage.counters.is_none()) {
            let key = "`counters = true` in `[workers]`";
            report.notes.push(format!("hardware counters cover whole worker threads; {key} counts stages, too"));
        }
    }
    if report.workers.iter().all(|worker| worker.packets == Some(0)) {
        report.notes.push("no packets arrived during the measurement, so the stages show nothing".into());
    }
    Ok(report)
}

fn chosen(workers: &[api::Worker], wanted: Option<u64>) -> anyhow::Result<Vec<&api::Worker>> {
    let chosen: Vec<_> = workers.iter().filter(|worker| wanted.is_none_or(|id| worker.id == id)).collect();
    if chosen.is_empty() {
        bail!("no worker {}: the instance has {}", wanted.unwrap_or_default(), count(workers.len(), "worker"));
    }
    Ok(chosen)
}

/// Returns the difference between two samples of a worker, on a processor with `width` slots per cycle. Adds to
/// `missing` why a stage's counters cannot be right.
fn difference(
    before: &api::Worker,
    after: &api::Worker,
    width: f64,
    missing: &mut Vec<String>,
) -> anyhow::Result<Worker> {
    let grown = |was: u64, is: u64| is.checked_sub(was).context("counters have decreased: was the instance restarted?");
    let mut stages = vec![];
    for (was, is) in before.stages.iter().zip(&after.stages) {
        let (packets, bursts) = (grown(was.packets, is.packets)?, grown(was.bursts, is.bursts)?);
        let mut stage = Stage::new(&is.name, grown(was.cycles, is.cycles)? as f64, Some(packets), Some(bursts));
        if let Some(is) = is.counted {
            let mut counted = is;
            for (now, then) in counted.iter_mut().zip(was.counted.unwrap_or_default()) {
                *now = grown(then, *now)?;
            }
            stage.counters = Analysis::of_stage(counted, width).unwrap_or_else(|why| {
                missing.push(format!("worker {}, {}: {why}", after.id, stage.stage));
                None
            });
        }
        stages.push(stage);
    }
    let packets = stages.first().and_then(|rx| rx.packets);
    let (all, busy) = (grown(before.cycles, after.cycles)?, grown(before.busy_cycles, after.busy_cycles)?);
    let known: f64 = stages.iter().map(|stage| stage.cycles).sum();
    // Stages are estimated from one iteration in sixteen, so their sum can exceed the busy cycles.
    let rest = busy as f64 - known;
    if rest > 0.0 {
        stages.push(Stage::new(OTHER, rest, packets, None));
    }
    Ok(Worker {
        worker: Some(after.id),
        cpu: after.cpu,
        busy_percent: Some(100.0 * busy as f64 / (all.max(1)) as f64),
        packets,
        cycles_per_packet: packets.filter(|n| *n > 0).map(|n| known.max(busy as f64) / n as f64),
        stages,
        ..Worker::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn stages_between_two_looks() {
        let look = |scale: u64| {
            let worker = json!({ "id": 0, "cpu": 1, "cycles": 1000 * scale, "busy_cycles": 500 * scale, "stages": [
                { "name": "rx", "cycles": 100 * scale, "packets": 64 * scale, "bursts": scale },
                { "name": "lookup", "cycles": 300 * scale, "packets": 64 * scale, "bursts": 2 * scale,
                  "counted": [200 * scale, 400 * scale, 500 * scale] },
            ] });
            serde_json::from_value(worker).unwrap()
        };
        let mut report = Report::new("live".into(), "tsc", None);
        let mut missing = vec![];
        report.workers.push(difference(&look(1), &look(3), 5.0, &mut missing).unwrap());
        assert!(missing.is_empty(), "{missing:?}");
        report.finish();
        let worker = &report.workers[0];
        assert_eq!((worker.busy_percent, worker.packets, worker.cycles), (Some(50.0), Some(128), 1000.0));
        let stage = |at: usize| {
            (worker.stages[at].stage.as_str(), worker.stages[at].percent, worker.stages[at].packets_per_burst)
        };
        assert_eq!((stage(0), stage(1)), (("rx", 20.0, Some(64.0)), ("lookup", 60.0, Some(32.0))));
        assert_eq!((stage(2).0, worker.stages[2].cycles), (OTHER, 200.0));
        assert_eq!(worker.stages[1].cycles_per_packet, Some(600.0 / 128.0));
        let counted = worker.stages[1].counters.as_ref().unwrap();
        assert_eq!((counted.cycles, counted.cpi, counted.retiring), (400.0, Some(0.5), Some(0.5)));
        assert_eq!(worker.stages[0].counters, None);
        let hot = report.hot.unwrap();
        assert_eq!((hot.stage.as_str(), hot.worker, hot.percent), ("lookup", Some(0), 60.0));
        let restarted = difference(&look(3), &look(1), 5.0, &mut missing).unwrap_err().to_string();
        assert!(restarted.contains("restarted"), "{restarted}");
        let narrow = difference(&look(1), &look(3), 2.0, &mut missing).unwrap();
        assert_eq!(narrow.stages[1].counters, None);
        assert!(missing[0].starts_with("worker 0, lookup: retiring, with 2 slots a cycle,"), "{missing:?}");
    }
}
