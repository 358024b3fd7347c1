//! Profile as a self-contained HTML page, which loads no other resources.

use super::text::{heading, place};
use super::{Report, Stage, Worker};
use std::fmt::Write as _;

const STYLE: &str = "\
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .5em 0 1em } th, td { padding: .15em .8em; text-align: right }
th { border-bottom: 1px solid #888; font-weight: 600 } td:first-child, th:first-child { text-align: left }
.chart { position: relative; margin: 1em 0 } .chart div { position: absolute; height: 27px; overflow: hidden;
white-space: nowrap; box-sizing: border-box; border: 1px solid #fff; padding: 3px 5px; font-size: 12px }
.hot { font-weight: 700; outline: 2px solid #b00020; outline-offset: -2px; z-index: 1 }
.look { background: #fff3e0; border-left: 4px solid #e65100; padding: .6em 1em }
";

/// Height of a chart row in pixels.
const ROW: usize = 28;
const WORKERS: [&str; 4] = ["#cfd8dc", "#b0bec5", "#c5cae9", "#d7ccc8"];
const STAGES: [&str; 7] = ["#ffcc80", "#ffb74d", "#ffd54f", "#ffab91", "#f4c27a", "#ffe082", "#ffa270"];

/// Returns the report as an HTML page.
pub fn page(report: &Report) -> String {
    let mut out = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>bywash profile</title>\n<style>{STYLE}</style>\n\
         <h1>bywash profile</h1>\n<p>{}</p>\n",
        escape(&match report.seconds {
            Some(seconds) =>
                format!("{seconds:.1} s of a running instance; cycles are ticks of the time-stamp counter"),
            None =>
                format!("from {}; cycles are core cycles with {} slots each", report.source, report.slots_per_cycle),
        })
    );
    if let Some(hot) = &report.hot {
        let at = place(hot.worker, &hot.stage);
        let line = format!("Look at {at}: {:.1} % of all cycles; {}", hot.percent, hot.why);
        let _ = writeln!(out, "<p class=\"look\">{}</p>", escape(&line));
    }
    out += &chart(report);
    for worker in &report.workers {
        let _ = writeln!(out, "<h2>{}</h2>", escape(&heading(worker)));
        out += &list(&worker.meaning);
        out += &table(worker);
        for stage in worker.stages.iter().filter(|stage| !stage.meaning.is_empty()) {
            let _ = write!(out, "<h3>{}</h3>\n{}", escape(&stage.stage), list(&stage.meaning));
        }
    }
    let missing = report.missing.iter().map(|why| format!("Not measured: {why}"));
    out += &list(&missing.chain(report.notes.iter().cloned()).collect::<Vec<_>>());
    out
}

/// Returns the chart: like a flame graph from the top, with rows for all cycles, the workers, their stages, and the
/// top-down shares of each stage. Widths are proportional to cycles.
fn chart(report: &Report) -> String {
    let all: f64 = report.workers.iter().map(|worker| worker.cycles).sum();
    if all <= 0.0 {
        return String::new();
    }
    let mut boxes = String::new();
    let mut add = |row: usize, left: f64, width: f64, colour: &str, class: &str, label: &str| {
        let (left, wide, label) = (100.0 * left / all, 100.0 * width / all, escape(label));
        let top = row * ROW;
        let _ = writeln!(
            boxes,
            "<div class=\"{class}\" style=\"left:{left:.3}%;width:{wide:.3}%;top:{top}px;background:{colour}\" \
             title=\"{label}\">{label}</div>"
        );
    };
    add(0, 0.0, all, "#eceff1", "", "all cycles");
    let (mut left, mut rows) = (0.0, 3);
    for (n, worker) in report.workers.iter().enumerate() {
        add(1, left, worker.cycles, WORKERS[n % WORKERS.len()], "", &heading(worker));
        for (m, stage) in worker.stages.iter().enumerate() {
            let hot = report.hot.as_ref().is_some_and(|hot| hot.worker == worker.worker && hot.stage == stage.stage);
            let colour = STAGES[m % STAGES.len()];
            add(2, left, stage.cycles, colour, if hot { "hot" } else { "" }, &label(stage));
            if let Some(slots) = stage.counters.as_ref().and_then(|counters| counters.slots) {
                rows = 4;
                let mut from = left;
                for (name, share, colour) in [
                    ("retiring", slots.retiring, "#a5d6a7"),
                    ("front-end bound", slots.front_end_bound, "#90caf9"),
                    ("bad speculation", slots.bad_speculation, "#ce93d8"),
                    ("back-end bound", slots.back_end_bound, "#ef9a9a"),
                ] {
                    add(3, from, share * stage.cycles, colour, "", &format!("{name} {:.1} %", 100.0 * share));
                    from += share * stage.cycles;
                }
            }
            left += stage.cycles;
        }
    }
    format!("<div class=\"chart\" style=\"height:{}px\">\n{boxes}</div>\n", rows * ROW)
}

fn label(stage: &Stage) -> String {
    let cycles = stage.cycles_per_packet.map_or(String::new(), |n| format!(", {n:.1} cycles/packet"));
    let cpi = stage.counters.as_ref().and_then(|c| c.cpi).map_or(String::new(), |n| format!(", CPI {n:.3}"));
    format!("{} {:.1} %{cycles}{cpi}", stage.stage, stage.percent)
}

fn table(worker: &Worker) -> String {
    let heads = [
        "stage",
        "cycles %",
        "packets",
        "packets/burst",
        "cycles/packet",
        "CPI",
        "retiring %",
        "front end %",
        "bad speculation %",
        "back end %",
    ];
    let mut out = format!("<table><tr>{}</tr>\n", heads.map(|head| format!("<th>{head}</th>")).concat());
    for stage in &worker.stages {
        let number = |n: Option<f64>, digits: usize| n.map_or(String::new(), |n| format!("{n:.digits$}"));
        let slots = stage.counters.as_ref().and_then(|counters| counters.slots);
        let cells = [
            escape(&stage.stage),
            number(Some(stage.percent), 1),
            stage.packets.map_or(String::new(), |n| n.to_string()),
            number(stage.packets_per_burst, 1),
            number(stage.cycles_per_packet, 1),
            number(stage.counters.as_ref().and_then(|counters| counters.cpi), 3),
            number(stage.counters.as_ref().and_then(|counters| counters.retiring).map(|share| 100.0 * share), 1),
            number(slots.map(|s| 100.0 * s.front_end_bound), 1),
            number(slots.map(|s| 100.0 * s.bad_speculation), 1),
            number(slots.map(|s| 100.0 * s.back_end_bound), 1),
        ];
        let _ = writeln!(out, "<tr>{}</tr>", cells.map(|cell| format!("<td>{cell}</td>")).concat());
    }
    out + "</table>\n"
}

fn list(lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    format!("<ul>{}</ul>\n", lines.iter().map(|line| format!("<li>{}</li>\n", escape(line))).collect::<String>())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
