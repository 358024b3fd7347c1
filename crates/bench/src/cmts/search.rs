//! Search for the highest rate without loss.

use super::Bench;
use super::trial::{self, Load};
use bywash_frame::PoolKind;
use std::time::Duration;

/// Width of the interval at which the search ends, relative to the closed-loop rate.
const RESOLUTION: f64 = 0.01;
/// Relative reduction of a found rate if its second trial has loss.
const BACK_OFF: f64 = 0.02;

/// Returns the highest rate of each instance, in Gbit/s, at which no instance loses packets. `most` is the closed-loop
/// rate, at which the source waits for the instances. Uses bisection (RFC 2544, section 26.1) and tries the result a
/// second time.
pub fn zero_loss(bench: &Bench<'_>, kind: PoolKind, most: f64) -> anyhow::Result<f64> {
    let length = Duration::from_secs(bench.args.trial);
    let lossless = |gbps: f64| -> anyhow::Result<bool> {
        Ok(trial::run(bench, kind, Load::Paced(bench.packets_per_second(gbps)), length)?.lossless)
    };
    let (mut good, mut bad) = (0.0, most * 1.05);
    // The result is usually near the top.
    let mut next = most * 0.9;
    while bad - good > most * RESOLUTION {
        if lossless(next)? {
            good = next;
        } else {
            bad = next;
        }
        next = (good + bad) / 2.0;
    }
    while good > most * RESOLUTION && !lossless(good)? {
        good -= most * BACK_OFF;
    }
    Ok(good.max(0.0))
}
