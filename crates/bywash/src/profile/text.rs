//! Profile as text.

use super::{Report, Worker};
use crate::config::count;
use crate::show::Grid;
use bywash_measure::topdown::Analysis;

/// Renders the report for a terminal.
pub fn render(report: &Report) -> String {
    let mut out = match report.seconds {
        Some(seconds) => format!("{seconds:.1} s; cycles are ticks of the time-stamp counter\n"),
        None => format!("{}; cycles are core cycles with {} slots each\n", report.source, report.slots_per_cycle),
    };
    for worker in &report.workers {
        out += &format!("\n{}\n", heading(worker));
        if let Some(counters) = &worker.counters {
            out += &format!("{}\n", figures(counters));
            out += &worker.meaning.iter().map(|line| format!("  {line}\n")).collect::<String>();
        }
        out += &stages(worker);
        for stage in worker.stages.iter().filter(|stage| !stage.meaning.is_empty()) {
            out += &stage.meaning.iter().map(|line| format!("{}: {line}\n", stage.stage)).collect::<String>();
        }
    }
    out += "\n";
    if let Some(hot) = &report.hot {
        out += &format!("look at {}: {:.1} % of all cycles; {}\n", place(hot.worker, &hot.stage), hot.percent, hot.why);
    }
    for line in report.missing.iter().map(|why| format!("not measured: {why}")).chain(report.notes.iter().cloned()) {
        out += &format!("{line}\n");
    }
    out
}

/// Names a stage, as in `lookup` of worker 0.
pub fn place(worker: Option<u64>, stage: &str) -> String {
    worker.map_or_else(|| format!("`{stage}`"), |n| format!("`{stage}` of worker {n}"))
}

/// Summarizes a worker in one line.
pub fn heading(worker: &Worker) -> String {
    let name = worker.worker.map_or_else(|| "all".to_owned(), |n| format!("worker {n}"));
    let cpu = worker.cpu.map(|cpu| format!("CPU {cpu}"));
    let busy = worker.busy_percent.map(|busy| format!("{busy:.1} % busy"));
    let packets = worker.packets.map(|n| count(n, "packet"));
    let cycles = worker.cycles_per_packet.map(|n| format!("{n:.1} cycles/packet"));
    let parts: Vec<String> = [cpu, busy, packets, cycles].into_iter().flatten().collect();
    if parts.is_empty() { name } else { format!("{name}: {}", parts.join(", ")) }
}

/// Summarizes a thread's hardware counters in one line.
fn figures(counters: &Analysis) -> String {
    let mut parts = vec![format!("{:.0} core cycles", counters.cycles)];
    parts.extend(counters.cpi.map(|cpi| format!("CPI {cpi:.3}")));
    if let Some(slots) = &counters.slots {
        let shares = [
            ("retiring", slots.retiring),
            ("front-end bound", slots.front_end_bound),
            ("bad speculation", slots.bad_speculation),
            ("back-end bound", slots.back_end_bound),
        ];
        parts.extend(shares.map(|(name, share)| format!("{name} {:.1} %", 100.0 * share)));
    }
    parts.extend(counters.memory.iter().flat_map(|m| m.named()).map(|(name, n)| format!("{name} {:.1} %", 100.0 * n)));
    parts.join(", ")
}

fn stages(worker: &Worker) -> String {
    let mut grid = Grid::new(&[
        "stage",
        "cycles %",
        "packets",
        "packets/burst",
        "cycles/packet",
        "CPI",
        "retiring %",
        "front end %",
        "bad spec. %",
        "back end %",
        "waits for",
    ]);
    for stage in &worker.stages {
        let number = |n: Option<f64>, digits: usize| n.map_or(String::new(), |n| format!("{n:.digits$}"));
        let counters = stage.counters.as_ref();
        let slots = counters.and_then(|counters| counters.slots);
        let share = |of: fn(&bywash_measure::topdown::Shares) -> f64| number(slots.as_ref().map(|s| 100.0 * of(s)), 1);
        let levels = counters
            .and_then(|counters| counters.memory)
            .iter()
            .flat_map(|m| m.named().collect::<Vec<_>>())
            .map(|(name, n)| format!("{name} {:.1}", 100.0 * n))
            .collect::<Vec<_>>();
        grid.row(vec![
            stage.stage.clone(),
            format!("{:.1}", stage.percent),
            stage.packets.map_or(String::new(), |n| n.to_string()),
            number(stage.packets_per_burst, 1),
            number(stage.cycles_per_packet, 1),
            number(counters.and_then(|counters| counters.cpi), 3),
            number(counters.and_then(|counters| counters.retiring).map(|share| 100.0 * share), 1),
            share(|s| s.front_end_bound),
            share(|s| s.bad_speculation),
            share(|s| s.back_end_bound),
            levels.join(", "),
        ]);
    }
    grid.render("no stages")
}
