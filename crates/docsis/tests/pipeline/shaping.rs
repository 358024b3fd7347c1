//! Traffic shaping, minimum reserved rate and early drops, through both MACs.

use crate::{Setup, group, opened, run, traffic};
use bywash_docsis::classify::Rule;
use bywash_docsis::group::{FlowKind, ModemKind};
use bywash_docsis::header::parse;
use bywash_docsis::police::Limits;
use bywash_docsis::protect::Protection;
use bywash_docsis::queue::{Overflow, QueueLimits};
use bywash_port::pcap::Pace;
use std::collections::HashMap;

fn shaped(sustained: u64) -> FlowKind {
    FlowKind { limits: Limits { sustained, burst: 0, peak: 0 }, shape: true, ..FlowKind::default() }
}

#[test]
fn packets_above_the_rate_wait_and_none_is_lost() {
    // 600 packets of 1,473 bytes on average in 0.35 s.
    let group = group(1, ModemKind { flows: vec![shaped(20_000_000)], filters: vec![] });
    let frames = traffic(&group, 600);
    let bits: usize = frames.iter().map(|frame| (frame.len() + 4) * 8).sum();
    let outcome = run(group, &frames, Setup::default());
    // Without what the bucket holds; the first frames may be sent some time after they were scheduled.
    let least = 0.8 * (bits - 8 * 3044) as f64 / 20e6;
    assert!(outcome.took.as_secs_f64() >= least, "{:?} instead of {least} s", outcome.took);
    assert_eq!((outcome.drops.len(), outcome.sent.len()), (0, 600));
    assert_eq!(opened(&outcome, Protection::default())[&0], frames);
}

#[test]
fn a_reserved_rate_is_served_before_a_higher_priority() {
    let low = FlowKind { reserved: 5_000_000, ..FlowKind::default() };
    let high = FlowKind { priority: 6, rules: vec![Rule::default().dscp([46])], ..FlowKind::default() };
    let group = group(1, ModemKind { flows: vec![low, high], filters: vec![] });
    // A third of the packets is of the high priority; the channel takes 0.7 s for all.
    let frames = traffic(&group, 600);
    let outcome = run(group, &frames, Setup { channels: vec![10_000_000], ..Setup::default() });
    assert_eq!(outcome.drops, HashMap::new());
    // By priority alone, the first 200 would be of the high one.
    let dsids = outcome.sent.iter().map(|frame| parse(frame).unwrap().header.service.unwrap().dsid.unwrap());
    let low = dsids.take(300).filter(|dsid| *dsid == 1).count();
    assert!(low >= 120, "{low} of the low priority among the first 300");
}

#[test]
fn early_drops_are_counted_by_flow() {
    let flow = FlowKind { latency_ms: Some(10), ..shaped(40_000_000) };
    let group = group(1, ModemKind { flows: vec![flow], filters: vec![] });
    let frames = traffic(&group, 8000);
    // Three times the rate for 0.8 s, in a queue that has room for all that is left.
    let queues = QueueLimits { flow: 6000, total: 6000, overflow: Overflow::Tail };
    let setup = Setup { queues, pace: Pace::PacketsPerSecond(10_000), ..Setup::default() };
    let outcome = run(group, &frames, setup);
    let early = outcome.drops["aqm"];
    assert_eq!(outcome.drops.len(), 1, "{:?}", outcome.drops);
    assert_eq!(outcome.group.counters(0).lower.early.get(), early);
    assert_eq!(outcome.sent.len() as u64 + early, 8000);
    assert!(early > 500, "{early}");
}
