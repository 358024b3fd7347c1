//! What a capture costs forwarding: the same worker, with and without a recorder, in turns.

use crate::cli::bench::Captured;
use bywash_engine::{DropReason, WorkerHandle};
use bywash_port::pcap::Filter;
use bywash_port::{PortCounters, Wanted, capture};
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Length of a turn.
const TURN: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(1);
/// `ip and udp src port 9999`: no packet of the traffic.
const NOTHING: &str = "11\n40 0 0 12\n21 0 8 2048\n48 0 0 23\n21 0 6 17\n40 0 0 20\n69 4 0 8191\n177 0 0 14\n\
    72 0 0 14\n21 0 1 9999\n6 0 0 262144\n6 0 0 0\n";

/// A capture's cost.
#[derive(Serialize)]
pub struct Cost {
    what: Captured,
    /// Packets forwarded with the capture, of those without: the median of pairs of turns.
    ratio: f64,
    least: f64,
    most: f64,
    pairs: usize,
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (percent, least, most) = (100.0 * self.ratio, 100.0 * self.least, 100.0 * self.most);
        let what = match self.what {
            Captured::Drops => "dropped for a reason that does not occur",
            Captured::Filtered => "received and passing a filter that none passes",
        };
        write!(
            f,
            "with a capture of packets {what}: {percent:.1} % of the rate without \
             (median of {} pairs, {least:.1} to {most:.1} %)",
            self.pairs
        )
    }
}

/// Measures for about `seconds`.
pub fn cost(what: Captured, worker: &WorkerHandle, ports: &[Arc<PortCounters>], seconds: u64) -> anyhow::Result<Cost> {
    let all = || vec![true; ports.len()];
    let wanted = match what {
        Captured::Drops => {
            Wanted { dropped: all(), reasons: DropReason::Blackhole.bit(), snaplen: 1 << 18, ..Wanted::default() }
        }
        Captured::Filtered => {
            let filter = Some(Arc::new(Filter::parse(NOTHING)?));
            Wanted { received: all(), filter, snaplen: 1 << 18, ..Wanted::default() }
        }
    };
    let turn = || {
        let sent = || -> u64 { ports.iter().map(|port| port.tx_packets.get()).sum() };
        let (before, started) = (sent(), Instant::now());
        std::thread::sleep(TURN);
        (sent() - before) as f64 / started.elapsed().as_secs_f64()
    };
    let pairs = (Duration::from_secs(seconds).as_millis() / (2 * TURN.as_millis())).max(1) as usize;
    let mut ratios: Vec<f64> = (0..pairs)
        .map(|pair| {
            let off = |rates: &mut [f64; 2]| rates[0] = turn();
            let on = |rates: &mut [f64; 2]| {
                let (recorder, records) = capture(0, wanted.clone(), 1 << 20);
                worker.record(recorder);
                rates[1] = turn();
                assert!(worker.stop_recording(0, PATIENCE), "the worker lost its recorder");
                assert_eq!(records.stats().captured, 0, "there was something to capture");
            };
            let mut rates = [0.0; 2];
            // Now the one first, now the other: what drifts falls on both.
            if pair % 2 == 0 {
                off(&mut rates);
                on(&mut rates);
            } else {
                on(&mut rates);
                off(&mut rates);
            }
            rates[1] / rates[0]
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    Ok(Cost { what, ratio: ratios[pairs / 2], least: ratios[0], most: ratios[pairs - 1], pairs })
}
