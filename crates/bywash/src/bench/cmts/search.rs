//! The highest rate without loss.

use super::Bench;
use super::trial::{self, Load};
use bywash_frame::PoolKind;
use std::time::Duration;

/// The search ends when what is left of the interval is this part of the rate of the closed loop.
const RESOLUTION: f64 = 0.01;
/// Rates found are tried again; one that loses then is lowered by this part.
const BACK_OFF: f64 = 0.02;

/// The highest rate in Gbit/s, of an instance, at which all instances lose nothing; `most` is what they do when the
/// source waits for them. By bisection (RFC 2544, section 26.1), with a second trial of what it finds.
pub fn zero_loss(bench: &Bench<'_>, kind: PoolKind, most: f64) -> anyhow::Result<f64> {
    let length = Duration::from_secs(bench.args.trial);
    let lossless = |gbps: f64| -> anyhow::Result<bool> {
        Ok(trial::run(bench, kind, Load::Paced(bench.packets_per_second(gbps)), length)?.lossless)
    };
    let (mut good, mut bad) = (0.0, most * 1.05);
    // The answer is mostly near the top.
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
