//! The TX queue compared with a simple model: order, conservation, and statistics.

mod common;

use bywash_frame::Buffers;
use bywash_port::{Port, TxQueue, TxQueueConfig};
use bywash_sync::clock;
use common::{Scripted, assert_conserved, pools};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Push,
    Turn { ticks: u64, takes: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Push),
        1 => (1..50_000u64, prop_oneof![Just(64), Just(0), 0..40usize]).prop_map(|(ticks, takes)| Step::Turn { ticks, takes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn keeps_order_and_loses_nothing(
        steps in prop::collection::vec(step(), 1..600),
        burst in 0..80usize,
        deadline_us in prop_oneof![Just(0), Just(5), Just(1000)],
    ) {
        let pools = pools(256);
        let mut bufs = Buffers::attach(&pools, 0);
        let mut port = Scripted::default();
        let mut queue = TxQueue::new(TxQueueConfig { burst, deadline_us });
        let burst = burst.clamp(1, 64);
        let (mut now, mut number) = (1u64, 0u32);
        let (mut expected, mut dropped) = (Vec::new(), 0u64);
        let mut oldest = 0;
        for step in steps {
            match step {
                Step::Push => {
                    let bytes = number.to_be_bytes().to_vec();
                    number += 1;
                    let mut frame = bufs.alloc_one().unwrap();
                    prop_assert!(bufs.arena().write(&mut frame, &bytes));
                    if queue.is_empty() {
                        oldest = now;
                    }
                    let taken = queue.push(frame, now).or_else(|frame| {
                        assert!(queue.len() >= burst, "refused with {} of {burst}", queue.len());
                        queue.flush(&mut port, &mut bufs, now);
                        if queue.is_empty() {
                            oldest = now;
                        }
                        queue.push(frame, now)
                    });
                    match taken {
                        Ok(()) => expected.push(bytes),
                        Err(frame) => {
                            // A frame is lost only after a full batch, or if the device took nothing this turn.
                            prop_assert!(queue.len() >= burst);
                            bufs.free_one(frame);
                            dropped += 1;
                        }
                    }
                }
                Step::Turn { ticks, takes } => {
                    now += ticks;
                    port.take.clear();
                    port.take.push_back(takes);
                    let due = !queue.is_empty()
                        && (queue.len() >= burst || now - oldest >= clock::us_to_ticks(deadline_us) * 3 / 4);
                    prop_assert_eq!(queue.due(now), due);
                    if due {
                        let before = queue.len();
                        let sent = queue.flush(&mut port, &mut bufs, now);
                        prop_assert_eq!(sent, before.min(takes));
                    }
                    port.take.extend([0; 2]);
                }
            }
        }
        port.take.clear();
        let stats = queue.stats();
        let through: u64 = stats.bursts.iter().enumerate().map(|(n, c)| n as u64 * c.get()).sum();
        prop_assert_eq!(through, port.sent.len() as u64);
        prop_assert_eq!(stats.sends(), (stats.waits.counts().total(), through));
        let left = queue.clear(&mut bufs);
        prop_assert_eq!(&port.sent[..], &expected[..expected.len() - left]);
        prop_assert_eq!(u64::from(number), port.sent.len() as u64 + left as u64 + dropped);
        port.close(&mut bufs);
        drop(bufs);
        assert_conserved(&pools);
    }
}

#[test]
fn a_full_device_keeps_a_batch_and_is_not_asked_for_every_frame() {
    let pools = pools(512);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut port = Scripted::default();
    port.take.extend([0; 1000]);
    let mut queue = TxQueue::new(TxQueueConfig { burst: 32, deadline_us: 0 });
    let mut lost = 0;
    for _ in 0..320 {
        let frame = bufs.alloc_one().unwrap();
        if let Err(frame) = queue.push(frame, 7) {
            queue.flush(&mut port, &mut bufs, 7);
            if let Err(frame) = queue.push(frame, 7) {
                bufs.free_one(frame);
                lost += 1;
            }
        }
    }
    assert_eq!(queue.len(), 64);
    assert_eq!(lost, 320 - 64);
    let asked = 1000 - port.take.len();
    assert!((2..=10).contains(&asked), "asked {asked} times");
    assert_eq!(queue.stats().bursts[0].get(), asked as u64);
    port.take.clear();
    assert_eq!(queue.flush(&mut port, &mut bufs, 8), 64, "the next turn asks again");
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn the_oldest_frame_s_wait_is_counted_once_a_burst() {
    let pools = pools(64);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut port = Scripted::default();
    let mut queue = TxQueue::new(TxQueueConfig { burst: 64, deadline_us: 50 });
    let mut bursts = 0;
    for wait_us in [100.0, 20_000.0, 300_000.0] {
        // The time for which this thread is not scheduled is added to the wait: one of some bursts is spared that.
        let mut waits = vec![];
        while waits.len() < 20 && !waits.iter().any(|got| *got < wait_us * 1.13 + 1000.0) {
            let before = queue.stats().waits.counts();
            let since = clock::tsc() - clock::us_to_ticks(wait_us as u64);
            queue.push(bufs.alloc_one().unwrap(), since).unwrap();
            queue.push(bufs.alloc_one().unwrap(), clock::tsc()).unwrap();
            assert_eq!(queue.deadline(), Some(since + clock::us_to_ticks(50) * 3 / 4));
            queue.flush(&mut port, &mut bufs, clock::tsc());
            let counts = queue.stats().waits.counts().since(&before);
            assert_eq!(counts.total(), 1);
            waits.push(counts.quantile_us(1.0).unwrap());
            bursts += 1;
        }
        // Up to its bucket's bound.
        assert!(waits.iter().all(|got| *got >= wait_us), "{wait_us} us counted as {waits:?}");
        assert!(waits.iter().any(|got| *got < wait_us * 1.13 + 1000.0), "{wait_us} us counted as {waits:?}");
    }
    assert_eq!((queue.deadline(), queue.stats().sends()), (None, (bursts, 2 * bursts)));
    drop(bufs);
    assert_conserved(&pools);
}
