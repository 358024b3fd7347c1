//! Text output of the tester.

use crate::config::count;
use bywash_tester::{LaneResult, wire_bits};

/// Formats a number with three decimals and a unit prefix: `1.230 M`.
pub fn scaled(n: f64) -> String {
    let (n, unit) = match n.abs() {
        a if a >= 1e9 => (n / 1e9, " G"),
        a if a >= 1e6 => (n / 1e6, " M"),
        a if a >= 1e3 => (n / 1e3, " k"),
        _ => (n, " "),
    };
    format!("{n:.3}{unit}")
}

/// Formats the result of a lane in several lines.
pub fn lane(r: &LaneResult, mean_size: f64) -> String {
    let to = r.to.as_ref().map_or(String::new(), |to| format!(" -> {to}"));
    let asked = r.asked_pps.map_or(String::new(), |pps| format!(" ({}pps requested)", scaled(pps)));
    let mut lines = format!(
        "{}{to}\n  sent      {} in {:.3} s: {}pps{asked}, {}bit/s on the wire\n",
        r.from,
        count(r.sent, "frame"),
        r.seconds,
        scaled(r.sent_pps),
        scaled(r.sent_pps * wire_bits(mean_size)),
    );
    if r.to.is_some() {
        lines += &format!("  received  {}: {}pps\n", count(r.received, "frame"), scaled(r.received_pps));
        let percent = r.lost as f64 * 100.0 / r.sent.max(1) as f64;
        lines +=
            &format!("  lost      {} ({percent:.4} %), {} of them in the tester itself\n", r.lost, r.lost_by_tester);
        lines += &format!(
            "  order     {}, {} reordered (by {} at most)\n",
            count(r.duplicates, "duplicate"),
            r.reordered,
            r.displacement
        );
        if r.misdirected > 0 {
            lines += &format!("  elsewhere {} arrived on another port\n", count(r.misdirected, "frame"));
        }
        if let Some(l) = &r.latency {
            lines += &format!(
                "  delay     min {:.1}, mean {:.1}, median {:.1}, 99 % {:.1}, 99.9 % {:.1}, max {:.1} us\n",
                l.min_us, l.mean_us, l.p50_us, l.p99_us, l.p99_9_us, l.max_us
            );
        }
    }
    for limit in &r.limits {
        lines += &format!("  note      {}\n", limit.description());
    }
    lines
}
