//! Cost of a capture to forwarding: the same worker with and without a recorder, in alternating intervals.

use bywash_config::count;
use bywash_engine::{DropReason, WorkerHandle};
use bywash_port::pcap::{Filter, compile};
use bywash_port::{PortCounters, Wanted, capture};
use bywash_sync::clock;
use clap::ValueEnum;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Capture that is active while forwarding is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Captured {
    /// Packets dropped for one reason, which does not occur
    Drops,
    /// Received packets that match a filter that no packet matches
    Filtered,
}

/// Length of an interval.
const TURN: Duration = Duration::from_millis(250);
const PATIENCE: Duration = Duration::from_secs(1);

/// Cost of a capture.
#[derive(Serialize)]
pub struct Cost {
    what: Captured,
    filter: Option<String>,
    /// Rate with the capture relative to the rate without: the median of all pairs of intervals.
    ratio: f64,
    least: f64,
    most: f64,
    /// Additional TSC cycles per packet in the worker: the median.
    cycles: f64,
    pairs: usize,
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (percent, least, most) = (100.0 * self.ratio, 100.0 * self.least, 100.0 * self.most);
        let what = match &self.filter {
            None => "dropped for a reason that does not occur".to_owned(),
            Some(filter) => format!("received and matching `{filter}`, which none does"),
        };
        write!(
            f,
            "with a capture of packets {what}: {percent:.1} % of the rate without, {:.1} cycles/packet more \
             (median of {}, {least:.1} to {most:.1} %)",
            self.cycles,
            count(self.pairs, "pair")
        )
    }
}

/// Measures the cost for about `seconds`.
pub fn cost(
    what: Captured,
    filter: &str,
    worker: &WorkerHandle,
    ports: &[Arc<PortCounters>],
    seconds: u64,
) -> anyhow::Result<Cost> {
    let all = || vec![true; ports.len()];
    let wanted = match what {
        Captured::Drops => {
            Wanted { dropped: all(), reasons: DropReason::Blackhole.bit(), snaplen: 1 << 18, ..Wanted::default() }
        }
        Captured::Filtered => {
            let filter = Some(Arc::new(Filter::parse(&compile(filter)?)?));
            Wanted { received: all(), filter, snaplen: 1 << 18, ..Wanted::default() }
        }
    };
    let turn = || {
        let sent = || -> u64 { ports.iter().map(|port| port.tx_packets.get()).sum() };
        let (before, started) = (sent(), Instant::now());
        std::thread::sleep(TURN);
        let rate = (sent() - before) as f64 / started.elapsed().as_secs_f64();
        clock::tsc_hz() as f64 / rate
    };
    let pairs = (Duration::from_secs(seconds).as_millis() / (2 * TURN.as_millis())).max(1) as usize;
    let (mut ratios, mut cycles): (Vec<f64>, Vec<f64>) = (0..pairs)
        .map(|pair| {
            let off = |cycles: &mut [f64; 2]| cycles[0] = turn();
            let on = |cycles: &mut [f64; 2]| {
                let (recorder, records) = capture(0, wanted.clone(), 1 << 20);
                worker.record(recorder);
                cycles[1] = turn();
                assert!(worker.stop_recording(0, PATIENCE), "the worker lost its recorder");
                assert_eq!(records.stats().captured, 0, "there was something to capture");
            };
            let mut taken = [0.0; 2];
            // Alternate the order, so that drift affects both alike.
            if pair % 2 == 0 {
                off(&mut taken);
                on(&mut taken);
            } else {
                on(&mut taken);
                off(&mut taken);
            }
            (taken[0] / taken[1], taken[1] - taken[0])
        })
        .unzip();
    ratios.sort_by(f64::total_cmp);
    cycles.sort_by(f64::total_cmp);
    let (ratio, least, most) = (ratios[pairs / 2], ratios[0], ratios[pairs - 1]);
    let filter = (what == Captured::Filtered).then(|| filter.to_owned());
    Ok(Cost { what, filter, ratio, least, most, cycles: cycles[pairs / 2], pairs })
}
