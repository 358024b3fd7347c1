//! The report as a self-contained HTML page, without scripts or external files.

use super::chart::{Axis, Line, bars, escape, lines};
use super::{BackToBack, Report, SizeReport};
use crate::rate::wire_bits;
use std::fmt::Write as _;

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 56rem; padding: 0 1rem; color: #222;
  background: #fff }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { border-bottom: 1px solid #ddd; padding: .25rem .8rem; text-align: right }
th:first-child, td:first-child { text-align: left }
svg { width: 100%; height: auto; margin: .5rem 0 }
svg text { font: 12px system-ui, sans-serif; fill: #444 }
.grid { stroke: #e4e4e4 }
.note { color: #a33 }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #ddd } svg text { fill: #bbb }
  .grid { stroke: #333 } th, td { border-color: #333 } }
";

/// Returns the report as an HTML page.
pub fn html(report: &Report) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>RFC 2544 report</title><style>{STYLE}</style></head><body>\n\
         <h1>RFC 2544 report</h1>\n<table>"
    );
    for (name, value) in &report.facts {
        let _ = writeln!(page, "<tr><td>{}</td><td>{}</td></tr>", escape(name), escape(value));
    }
    let _ = writeln!(
        page,
        "<tr><td>Trial</td><td>{} s, drain time {} s, accepted loss {} %, resolution {} %</td></tr></table>",
        report.plan.seconds, report.plan.drain, report.plan.accepted_loss, report.plan.resolution
    );
    table(&mut page, report);
    let sizes = &report.sizes;
    throughput(&mut page, sizes);
    latency(&mut page, sizes);
    loss(&mut page, sizes);
    page + "</body></html>\n"
}

fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "–".into())
}

fn table(page: &mut String, report: &Report) {
    page.push_str(
        "<h2>Figures</h2>\n<table><tr><th>Frame, B</th><th>Throughput, pps</th><th>of highest tried</th>\
         <th>Latency, us</th><th>Back to back, frames</th><th>Buffer, frames</th><th>Recovery, s</th><th>Reset,
         s</th></tr>\n",
    );
    for s in &report.sizes {
        let t = s.throughput.as_ref();
        let latency = s.latency.as_ref().and_then(|all| all.first());
        let b = s.back_to_back.as_ref();
        let at_least = |unbounded: bool| if unbounded { "≥ " } else { "" };
        let mark = |limited: bool| if limited { " *" } else { "" };
        let burst = |b: &BackToBack, frames: f64| {
            format!("{}{frames:.0}{}", at_least(b.is_lower_bound()), mark(b.generator_was_the_limit))
        };
        let cells = [
            s.size.to_string(),
            or_dash(t.map(|t| format!("{}{:.0}", at_least(t.generator_was_the_limit), t.pps))),
            or_dash(t.map(|t| format!("{:.2} %", t.percent))),
            or_dash(latency.map(|l| format!("{:.1}", l.latency.mean_us))),
            or_dash(b.map(|b| burst(b, b.frames))),
            or_dash(b.map(|b| burst(b, b.buffer_frames))),
            or_dash(s.recovery.map(|r| format!("{:.6}{}", r.seconds, mark(r.generator_was_the_limit)))),
            or_dash(s.reset.map(|r| format!("{}{:.3}", at_least(!r.recovered), r.seconds))),
        ];
        let _ = writeln!(page, "<tr><td>{}</td></tr>", cells.join("</td><td>"));
    }
    page.push_str("</table>\n");
    let mut note = |shown: bool, text: &str| {
        if shown {
            let _ = writeln!(page, "<p class=\"note\">{text}</p>");
        }
    };
    let any = |shown: fn(&SizeReport) -> bool| report.sizes.iter().any(shown);
    note(
        any(|s| s.throughput.as_ref().is_some_and(|t| t.generator_was_the_limit)),
        "Throughput ≥: the generator could send no faster; the device may be able to do more.",
    );
    note(
        any(SizeReport::always_loses),
        "Throughput 0: there is no rate without loss; latency, recovery and reset are not tested.",
    );
    note(
        any(|s| s.back_to_back.as_ref().is_some_and(BackToBack::is_lower_bound)),
        "Back to back ≥: even the longest burst passed.",
    );
    note(
        any(|s| {
            s.back_to_back.as_ref().is_some_and(|b| b.generator_was_the_limit)
                || s.recovery.is_some_and(|r| r.generator_was_the_limit)
        }),
        "*: the generator was the limit: it could not send as fast as the test asks for.",
    );
    note(
        any(|s| s.reset.is_some_and(|r| !r.recovered)),
        "Reset ≥: the device did not recover before the end of the trial.",
    );
    for s in &report.sizes {
        for (test, limit) in &s.lost_by_tester {
            note(true, &format!("{} B, {}: {}.", s.size, test.name(), limit.description()));
        }
    }
}

fn throughput(page: &mut String, sizes: &[SizeReport]) {
    let bits = |s: &SizeReport, pps: f64| pps * wire_bits(s.size as f64);
    let found: Vec<(String, f64, f64)> = sizes
        .iter()
        .filter_map(|s| Some((s.size.to_string(), s.throughput.as_ref()?.bits, bits(s, s.highest_pps))))
        .collect();
    if found.is_empty() {
        return;
    }
    let most = found.iter().map(|(_, a, b)| a.max(*b)).fold(0.0, f64::max);
    let across = Axis::names("frame size, bytes", found.iter().map(|(name, ..)| name.clone()).collect());
    let up = Axis::linear("bit/s on the wire", most);
    let values: Vec<(f64, f64)> = found.iter().map(|(_, a, b)| (*a, *b)).collect();
    page.push_str("<h2>Throughput</h2>\n");
    page.push_str(&bars("throughput", "Throughput by frame size", &across, &up, &values));
}

fn latency(page: &mut String, sizes: &[SizeReport]) {
    let mut all = vec![];
    for s in sizes {
        for at in s.latency.iter().flatten() {
            let points = at.latency.curve.iter().enumerate().map(|(i, (_, us))| (i as f64, us.max(1e-3))).collect();
            all.push(Line { name: format!("{} B, {} %", s.size, at.load), points });
        }
    }
    let Some(curve) = sizes.iter().flat_map(|s| s.latency.iter().flatten()).next().map(|at| &at.latency.curve) else {
        return;
    };
    let values = || all.iter().flat_map(|line| line.points.iter().map(|(_, us)| *us));
    let up = Axis::logarithmic("us", values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let across =
        Axis::names("percent of the frames took no longer", curve.iter().map(|(p, _)| p.to_string()).collect());
    page.push_str("<h2>Latency</h2>\n");
    page.push_str(&lines("latency", "Latency distribution by load", &across, &up, &all));
}

fn loss(page: &mut String, sizes: &[SizeReport]) {
    let line = |s: &SizeReport| {
        let points = s.loss.as_ref()?.iter().map(|at| (at.load, at.loss)).collect();
        Some(Line { name: format!("{} B", s.size), points })
    };
    let all: Vec<Line> = sizes.iter().filter_map(line).collect();
    if all.is_empty() {
        return;
    }
    let most = all.iter().flat_map(|l| l.points.iter().map(|(_, loss)| *loss)).fold(0.0, f64::max);
    let across = Axis::linear("percent of the highest rate", 100.0);
    page.push_str("<h2>Frame loss</h2>\n");
    page.push_str(&lines("loss", "Frame loss by load", &across, &Axis::linear("percent lost", most), &all));
}
