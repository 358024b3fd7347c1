use super::*;
use crate::police::{BURST_DEFAULT, BURST_MIN, Limits};
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use proptest::prelude::*;

/// Ticks of a nanosecond.
const HZ: u64 = 1_000_000_000;

struct Rig {
    bufs: Buffers,
    arena: std::sync::Arc<Arena>,
}

impl Rig {
    fn new() -> Self {
        let arena = Arena::new(ArenaConfig { cells: 512, ..Default::default() }).unwrap();
        let pools = PoolSet::new(arena.clone(), &[PoolConfig::stack("test", 512)]).unwrap();
        Self { bufs: Buffers::attach(&pools, 0), arena }
    }

    fn frame(&mut self, number: u32, len: usize) -> Frame {
        let mut frame = self.bufs.alloc_one().unwrap();
        let mut bytes = vec![0; len.max(4)];
        bytes[..4].copy_from_slice(&number.to_ne_bytes());
        self.arena.write(&mut frame, &bytes);
        frame
    }

    fn number(&mut self, frame: Frame) -> u32 {
        let number = u32::from_ne_bytes(*self.arena.head(&frame).unwrap());
        self.bufs.free_one(frame);
        number
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let mut all = Batch::new();
        while self.bufs.alloc(&mut all, 64) > 0 {
            all.drain().for_each(drop);
        }
        let allocated: u64 =
            self.bufs.pools().pools()[0].stats().allocated - self.bufs.pools().pools()[0].stats().freed;
        if !std::thread::panicking() {
            assert_eq!(allocated, 512, "a frame was lost");
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize, usize),
    Pop,
}

/// Flow of a naive model, whose buckets are contents in ticks.
struct Naive {
    treatment: Treatment,
    frames: VecDeque<(u32, u32)>,
    /// Ticks per byte, depth and contents: sustained, peak, reserved.
    buckets: [Option<(i64, i64, i64)>; 3],
}

impl Naive {
    fn new(treatment: Treatment) -> Self {
        let bucket = |bits: u64, depth: u32| {
            let per_byte = (8 * HZ).checked_div(bits)? as i64;
            Some((per_byte, per_byte * i64::from(depth), per_byte * i64::from(depth)))
        };
        let shape = treatment.shape.unwrap_or_default();
        let burst = if shape.burst == 0 { BURST_DEFAULT } else { shape.burst.max(BURST_MIN) };
        let buckets =
            [bucket(shape.sustained, burst), bucket(shape.peak, BURST_MIN), bucket(treatment.reserved, BURST_DEFAULT)];
        Self { treatment, frames: VecDeque::new(), buckets }
    }

    fn pass(&mut self, ticks: u64) {
        for (_, depth, contents) in self.buckets.iter_mut().flatten() {
            *contents = (*contents + ticks as i64).min(*depth);
        }
    }

    fn has(&self, bucket: usize) -> Option<bool> {
        let (per_byte, depth, contents) = self.buckets[bucket]?;
        let (_, bytes) = *self.frames.front()?;
        Some(contents >= (per_byte * i64::from(bytes)).min(depth))
    }

    fn may_send(&self) -> bool {
        !self.frames.is_empty() && self.has(0) != Some(false) && self.has(1) != Some(false)
    }

    fn send(&mut self) -> Option<u32> {
        let (number, bytes) = self.frames.pop_front()?;
        for (at, bucket) in self.buckets.iter_mut().enumerate() {
            if let Some((per_byte, _, contents)) = bucket {
                let after = *contents - *per_byte * i64::from(bytes);
                *contents = if at == 2 { after.max(0) } else { after };
            }
        }
        Some(number)
    }
}

fn treatments() -> impl Strategy<Value = Vec<Treatment>> {
    // Rates with whole numbers of ticks per byte.
    let rate = || prop_oneof![Just(0u64), Just(8_000_000), Just(80_000_000), Just(800_000_000)];
    let shape = proptest::option::of((rate(), prop_oneof![Just(0u32), 2000..20_000u32], rate()));
    let one = (0..3u8, shape, rate()).prop_map(|(priority, shape, reserved)| Treatment {
        priority,
        shape: shape.map(|(sustained, burst, peak)| Limits { sustained, burst, peak }),
        reserved,
        ..Treatment::default()
    });
    proptest::collection::vec(one, 1..7)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]
    /// Compares with queues of numbers: each flow is first in, first out; limits hold; the highest priority goes
    /// first.
    #[test]
    fn as_naive_queues(steps in proptest::collection::vec(
                           prop_oneof![(0..6usize, 4..1500usize).prop_map(|(f, l)| Step::Push(f, l)), Just(Step::Pop)], 1..400),
                       flow in 0..5usize, total in 0..20usize, head in any::<bool>()) {
        let overflow = if head { Overflow::Head } else { Overflow::Tail };
        let priorities = [0u8, 1, 1, 5, 7, 7];
        let mut rig = Rig::new();
        let treatments = priorities.map(|priority| Treatment { priority, ..Treatment::default() });
        let mut queues = Queues::new(treatments, QueueLimits { flow, total, overflow }, HZ);
        let mut naive: Vec<VecDeque<u32>> = vec![VecDeque::new(); 6];
        for (number, step) in steps.iter().enumerate() {
            match *step {
                Step::Push(f, len) => {
                    let frame = rig.frame(number as u32, len);
                    let dropped = queues.push(f, frame, len as u32, 0).map(|(frame, _)| rig.number(frame));
                    let in_all: usize = naive.iter().map(VecDeque::len).sum();
                    let expected = if naive[f].len() >= flow {
                        if head && flow > 0 {
                            let oldest = naive[f].pop_front();
                            naive[f].push_back(number as u32);
                            oldest
                        } else {
                            Some(number as u32)
                        }
                    } else if in_all >= total {
                        Some(number as u32)
                    } else {
                        naive[f].push_back(number as u32);
                        None
                    };
                    prop_assert_eq!(dropped, expected);
                }
                Step::Pop => {
                    let got = queues.pop(0, 1).map(|(f, frame)| (f, rig.number(frame)));
                    match got {
                        None => prop_assert!(naive.iter().all(VecDeque::is_empty)),
                        Some((f, number)) => {
                            prop_assert_eq!(naive[f].pop_front(), Some(number));
                            let waiting = (0..6).filter(|g| !naive[*g].is_empty());
                            prop_assert!(waiting.map(|g| priorities[g]).all(|p| p <= priorities[f]));
                        }
                    }
                }
            }
            prop_assert_eq!(queues.len(), naive.iter().map(VecDeque::len).sum::<usize>());
            (0..6).for_each(|f| assert_eq!(queues.len_of(f), naive[f].len()));
        }
        while let Some((f, frame)) = queues.pop(0, 1) {
            prop_assert_eq!(naive[f].pop_front(), Some(rig.number(frame)));
        }
        prop_assert!(queues.is_empty() && naive.iter().all(VecDeque::is_empty));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..Default::default() })]
    /// Compares with naive buckets: a flow sends as soon as it has tokens and never before, flows below their
    /// reserved rate go first, then the highest priority, and each flow is first in, first out.
    #[test]
    fn rates_as_naive_buckets(treatments in treatments(),
                              steps in proptest::collection::vec(
                                  (prop_oneof![(0..7usize, 64..2005usize).prop_map(|(f, l)| Step::Push(f, l)), Just(Step::Pop)],
                                   prop_oneof![Just(0u64), 0..2_000u64, 0..3_000_000u64]), 1..400)) {
        let limits = QueueLimits { flow: 20, total: 400, overflow: Overflow::Tail };
        let mut rig = Rig::new();
        let mut queues = Queues::new(treatments.clone(), limits, HZ);
        let mut naive: Vec<Naive> = treatments.into_iter().map(Naive::new).collect();
        // Some time after the buckets were created full.
        let mut now = 1 << 40;
        for (number, (step, gap)) in steps.into_iter().enumerate() {
            now += gap;
            naive.iter_mut().for_each(|flow| flow.pass(gap));
            match step {
                Step::Push(f, len) => {
                    let f = f % naive.len();
                    let frame = rig.frame(number as u32, 4);
                    let dropped = queues.push(f, frame, len as u32, now).map(|(frame, _)| rig.number(frame));
                    let flow = &mut naive[f].frames;
                    let full = flow.len() == 20;
                    if !full {
                        flow.push_back((number as u32, len as u32));
                    }
                    prop_assert_eq!(dropped, full.then_some(number as u32));
                }
                Step::Pop => {
                    let got = queues.pop(now, 1).map(|(f, frame)| (f, rig.number(frame)));
                    let able: Vec<usize> = (0..naive.len()).filter(|f| naive[*f].may_send()).collect();
                    let Some((f, number)) = got else {
                        prop_assert!(able.is_empty(), "{able:?} could send");
                        continue;
                    };
                    prop_assert!(able.contains(&f), "{f} has no tokens");
                    let below = |f: usize| naive[f].has(2) == Some(true);
                    if able.iter().any(|g| below(*g)) {
                        prop_assert!(below(f), "{f} is not below its reserved rate");
                    } else {
                        let priority = |f: usize| naive[f].treatment.priority;
                        prop_assert!(able.iter().all(|g| priority(*g) <= priority(f)));
                    }
                    prop_assert_eq!(naive[f].send(), Some(number));
                }
            }
            prop_assert!(queues.timers.len() <= 2 * queues.rates.len());
        }
        queues.drain(|frame| rig.bufs.free_one(frame));
        prop_assert!(queues.is_empty());
    }
}

/// A flow waits for its reserved rate with a long frame, which is then sent by priority: the short one behind it does
/// not wait as long.
#[test]
fn a_reserved_rate_is_kept_when_the_next_frame_needs_less() {
    let mut rig = Rig::new();
    // A byte in 1,000 ticks.
    let treatments = [Treatment { reserved: 8_000_000, ..Treatment::default() }, Treatment::default()];
    let mut queues = Queues::new(treatments, QueueLimits { flow: 20, total: 40, overflow: Overflow::Tail }, HZ);
    let now = 1 << 40;
    for (flow, bytes) in [(0, BURST_DEFAULT), (0, 2000), (0, 100), (1, 64), (1, 64)] {
        let frame = rig.frame(0, 4);
        assert!(queues.push(flow, frame, bytes, now).is_none());
    }
    let mut pop = |at| {
        let (flow, frame) = queues.pop(at, 1).unwrap();
        rig.bufs.free_one(frame);
        flow
    };
    // The first frame empties the bucket; the second is sent in its turn.
    assert_eq!((pop(now), pop(now)), (0, 0));
    assert_eq!((pop(now + 99_999), pop(now + 100_000), pop(now + 100_000)), (1, 0, 1));
}

#[test]
fn flows_of_one_priority_share_by_bytes() {
    let mut rig = Rig::new();
    let treatment = Treatment { priority: 3, ..Treatment::default() };
    let mut queues = Queues::new([treatment; 3], QueueLimits { flow: 200, total: 400, overflow: Overflow::Tail }, HZ);
    for (flow, len, n) in [(0, 1500, 60), (1, 100, 150), (2, 700, 100)] {
        for _ in 0..n {
            let frame = rig.frame(0, len);
            assert!(queues.push(flow, frame, len as u32, 0).is_none());
        }
    }
    let mut bytes = [0usize; 3];
    // Only while all three flows have something to send.
    while (0..3).all(|f| queues.len_of(f) > 1) {
        let (flow, frame) = queues.pop(0, 1).unwrap();
        bytes[flow] += frame.len();
        rig.bufs.free_one(frame);
    }
    let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
    assert!(most - least <= 2 * (QUANTUM as usize + 1500), "{bytes:?}");
    while let Some((_, frame)) = queues.pop(0, 1) {
        rig.bufs.free_one(frame);
    }
}

#[test]
fn a_flow_is_sent_on_its_channels_only() {
    let mut rig = Rig::new();
    let of = |priority, channels| Treatment { priority, channels, ..Treatment::default() };
    // Channels 0 and 1; channel 1 alone; all.
    let treatments = [of(1, 0b11), of(5, 0b10), of(1, 0)];
    let limits = QueueLimits { flow: 100, total: 300, overflow: Overflow::Tail };
    let mut queues = Queues::new(treatments, limits, HZ);
    for flow in [0, 1, 2] {
        for _ in 0..50 {
            let frame = rig.frame(0, 1000);
            assert!(queues.push(flow, frame, 1000, 0).is_none());
        }
    }
    let mut sent = |queues: &mut Queues, channel: u32| {
        let (flow, frame) = queues.pop(0, 1 << channel)?;
        rig.bufs.free_one(frame);
        Some(flow)
    };
    // On channel 0 two flows of the same priority share; on channel 1 the third has a higher one.
    let first: Vec<_> = (0..40).map(|_| sent(&mut queues, 0)).collect();
    assert!(first.iter().all(|flow| [Some(0), Some(2)].contains(flow)));
    assert_eq!(first.iter().filter(|flow| **flow == Some(0)).count(), 20);
    assert!((0..50).all(|_| sent(&mut queues, 1) == Some(1)));
    assert!((0..30).all(|_| sent(&mut queues, 7) == Some(2)));
    assert_eq!((sent(&mut queues, 7), queues.len_of(0)), (None, 30));
    assert!((0..30).all(|_| sent(&mut queues, 1) == Some(0)));
    assert!(queues.is_empty());
}

/// A set of channels with fewer flows has a share of the bytes for each of them, like others: it is not served as often
/// as a set with many flows, and frame sizes do not matter. Virtual times may wrap.
#[test]
fn flows_of_all_sets_have_equal_shares() {
    for began in [0, u64::MAX - (100_000 << FRACTION)] {
        shares_are_equal(began, began);
    }
    // A set that has sent nothing for long.
    for behind in [1 << 20, 1 << 62, 1 << 63, 3 << 62] {
        shares_are_equal(behind, 0);
    }
}

fn shares_are_equal(began: u64, of_last: u64) {
    let mut rig = Rig::new();
    let of = |channels| Treatment { priority: 1, channels, ..Treatment::default() };
    // Four flows on all channels, and one on channel 0, whose frames are shorter.
    let mut queues = Queues::new(
        [of(0), of(0), of(0), of(0), of(1)],
        QueueLimits { flow: 1000, total: 5000, overflow: Overflow::Tail },
        HZ,
    );
    queues.served.fill(began);
    queues.sets.iter_mut().for_each(|set| set.served.fill(began));
    queues.sets.last_mut().unwrap().served.fill(of_last);
    let len = |flow: usize| if flow == 4 { 250 } else { 1000 };
    let mut bytes = [0; 5];
    for _ in 0..2000 {
        for flow in 0..5 {
            while queues.len_of(flow) < 8 {
                let frame = rig.frame(0, len(flow));
                assert!(queues.push(flow, frame, len(flow) as u32, 0).is_none());
            }
        }
        let (flow, frame) = queues.pop(0, 1).unwrap();
        bytes[flow] += rig.arena.data(&frame).len();
        rig.bufs.free_one(frame);
    }
    let even = bytes.iter().sum::<usize>() / 5;
    assert!(bytes.iter().all(|share| share.abs_diff(even) * 50 < even), "{bytes:?} from {began}");
    queues.drain(|frame| rig.bufs.free_one(frame));
}
