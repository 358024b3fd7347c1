//! Trials over a simulated device with known limits, in one thread.

use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use bywash_port::{NullPort, PairPort, Port, PortCounters, PortState, by_port, pair};
use bywash_tester::{
    Bench, Device, Lane, LaneResult, Length, Limit, Planted, Sent, Sizes, Source, Stamp, Stream, Task, Templates,
    Trial, TrialError,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MS: u64 = 1_000_000;

fn pools() -> Arc<PoolSet> {
    let arena = Arena::new(ArenaConfig { cells: 16384, ..ArenaConfig::default() }).unwrap();
    PoolSet::new(arena, &[PoolConfig::stack("tester", 16384)]).unwrap()
}

fn bench(pools: &Arc<PoolSet>, planted: Planted) -> Bench {
    let mut bench = Bench::new(Buffers::attach(pools, 0));
    let (device, left, right) = Device::new(planted, 3);
    bench.add("left", Box::new(left));
    bench.add("right", Box::new(right));
    bench.add_device(device);
    bench
}

fn lane(pps: f64) -> Lane {
    let templates = Arc::new(Stream { flows: 16, ..Stream::default() }.templates().unwrap());
    Lane { from: 0, to: Some(1), templates, pps: Some(pps), burst: 1, change: None, share: 1.0 }
}

fn run(bench: &mut Bench, lanes: Vec<Lane>, length: Length) -> Result<Vec<LaneResult>, TrialError> {
    let stop = AtomicBool::new(false);
    bench.run(&mut Trial {
        lanes,
        length,
        drain: 500 * MS,
        catch_up: 10 * MS,
        event: None,
        stop: &stop,
        progress: &mut |_, _| {},
    })
}

fn all_back(pools: &PoolSet) {
    let (missing, wrong) = pools.verify();
    assert!(missing.is_empty() && wrong.is_empty(), "{missing:?} {wrong:?}");
}

#[test]
fn a_wire_loses_nothing_and_the_rate_is_exact() {
    let pools = pools();
    let mut bench = bench(&pools, Planted::default());
    // The last frame comes late if another process uses the CPU just then: one trial of several must go undisturbed.
    let mut rates = vec![];
    for _ in 0..20 {
        let result = &run(&mut bench, vec![lane(100_000.0)], Length::Frames(50_000)).unwrap()[0];
        assert_eq!(
            (result.sent, result.received, result.lost, result.duplicates, result.reordered),
            (50_000, 50_000, 0, 0, 0)
        );
        // If another process used the CPU for longer than is made up for, the limit is reported.
        if !result.limits.contains(&Limit::Generator) {
            assert!((result.sent_pps / 100_000.0 - 1.0).abs() < 0.001, "{}", result.sent_pps);
        }
        rates.push(result.received_pps / result.sent_pps);
        if (rates[rates.len() - 1] - 1.0).abs() < 0.01 {
            break;
        }
    }
    assert!((rates[rates.len() - 1] - 1.0).abs() < 0.01, "{rates:?}");
    drop(bench);
    all_back(&pools);
}

#[test]
fn a_known_delay_is_found() {
    let pools = pools();
    let mut bench = bench(&pools, Planted { delay_ns: MS / 5, ..Planted::default() });
    let result = &run(&mut bench, vec![lane(50_000.0)], Length::Time(300 * MS)).unwrap()[0];
    let latency = result.latency.as_ref().unwrap();
    assert_eq!((latency.frames, result.lost), (result.sent, 0));
    // The histogram keeps three digits. Frames for which the time comes while another process has the CPU are delayed
    // further: few, since the delay is much shorter than a turn of a process.
    assert!((199.0..210.0).contains(&latency.min_us), "{latency:?}");
    assert!((199.0..300.0).contains(&latency.p50_us), "{latency:?}");
    assert!(latency.curve.windows(2).all(|w| w[0].1 <= w[1].1), "{latency:?}");
}

#[test]
fn each_kind_of_harm_is_distinguished() {
    let pools = pools();
    let share = |n: u64, of: u64| n as f64 / of as f64;
    let mut lossy = bench(&pools, Planted { drop: 0.1, ..Planted::default() });
    let r = &run(&mut lossy, vec![lane(200_000.0)], Length::Frames(20_000)).unwrap()[0];
    assert_eq!((r.received + r.lost, r.duplicates, r.reordered, r.lost_by_tester), (20_000, 0, 0, 0));
    assert!((share(r.lost, r.sent) - 0.1).abs() < 0.02 && (r.loss_percent - 10.0).abs() < 2.0, "{r:?}");
    let mut twice = bench(&pools, Planted { duplicate: 0.2, ..Planted::default() });
    let r = &run(&mut twice, vec![lane(200_000.0)], Length::Frames(20_000)).unwrap()[0];
    assert_eq!((r.received, r.lost, r.reordered), (20_000, 0, 0));
    assert!((share(r.duplicates, r.sent) - 0.2).abs() < 0.02, "{r:?}");
    // Frames can be swapped with the previous one only while that is still queued.
    let mut mixed = bench(&pools, Planted { reorder: 0.5, delay_ns: MS, ..Planted::default() });
    let r = &run(&mut mixed, vec![lane(200_000.0)], Length::Frames(20_000)).unwrap()[0];
    assert_eq!((r.received, r.lost, r.duplicates), (20_000, 0, 0));
    assert!(share(r.reordered, r.sent) > 0.2 && r.displacement >= 1, "{r:?}");
}

#[test]
fn both_ways_at_once_with_frames_of_all_sizes() {
    let pools = pools();
    let mut bench = bench(&pools, Planted::default());
    let templates = Arc::new(Stream { sizes: Sizes::imix(), flows: 7, ..Stream::default() }.templates().unwrap());
    let there = Lane { templates, ..lane(30_000.0) };
    let back = Lane { from: 1, to: Some(0), ..there.clone() };
    for r in run(&mut bench, vec![there, back], Length::Frames(6000)).unwrap() {
        assert_eq!((r.sent, r.received, r.misdirected, r.plain), (6000, 6000, 0, 0), "{r:?}");
    }
    drop(bench);
    all_back(&pools);
}

#[test]
fn the_silence_at_the_end_is_measured() {
    const PPS: f64 = 20_000.0;
    let pools = pools();
    let run_with = |planted, dead_at| {
        let stop = AtomicBool::new(false);
        let results = bench(&pools, planted).run(&mut Trial {
            lanes: vec![lane(PPS)],
            length: Length::Frames(8000),
            drain: 10 * MS,
            catch_up: MS,
            event: Some((dead_at, &mut |devices, _| devices[0].fail_until(u64::MAX))),
            stop: &stop,
            progress: &mut |_, _| {},
        });
        results.unwrap().remove(0)
    };
    let r = run_with(Planted { drop: 1.0, ..Planted::default() }, 0);
    assert_eq!((r.received, r.gap_at_end), (0, Some(r.seconds)));
    let r = run_with(Planted::default(), 200 * MS);
    // No frame is sent before its time. After the last arrival, at most two bursts of a millisecond are sent at once.
    let least = (r.lost - 50) as f64 / PPS;
    let most = r.seconds - (r.received - 1) as f64 / PPS + 1e-6;
    assert!(r.gap_at_end.is_some_and(|gap| gap > 0.1 && (least..most).contains(&gap)), "{r:?}");
    let r = &run(&mut bench(&pools, Planted::default()), vec![lane(PPS)], Length::Frames(100)).unwrap()[0];
    assert_eq!(r.gap_at_end, Some(0.0));
    let unchecked = Lane { to: None, ..lane(PPS) };
    let r = &run(&mut bench(&pools, Planted::default()), vec![unchecked], Length::Frames(100)).unwrap()[0];
    assert_eq!(r.gap_at_end, None);
}

#[test]
fn the_rate_before_a_change_is_told_apart() {
    let pools = pools();
    let mut bench = bench(&pools, Planted::default());
    let changing = Lane { change: Some((5000, 2000.0)), ..lane(100_000.0) };
    let r = &run(&mut bench, vec![changing], Length::Frames(6000)).unwrap()[0];
    let before = r.pps_before_change.unwrap();
    // The second phase takes half a second; no frame is sent before its time.
    assert!(before < 100_100.0 && 5000.0 / before < r.seconds - 0.45, "{r:?}");
    let r = &run(&mut bench, vec![lane(100_000.0)], Length::Frames(100)).unwrap()[0];
    assert_eq!(r.pps_before_change, None);
}

#[test]
fn the_generator_says_that_it_was_the_limit() {
    let pools = pools();
    let mut bench = bench(&pools, Planted::default());
    let r = &run(&mut bench, vec![lane(1e9)], Length::Frames(300_000)).unwrap()[0];
    assert!(r.limits.contains(&Limit::Generator) && r.sent_pps < 9e8 && r.lost_by_device() == 0, "{r:?}");
}

#[test]
fn a_rate_that_cannot_be_reached_does_not_take_longer() {
    let pools = pools();
    let mut bench = bench(&pools, Planted::default());
    // No machine sends these frames within the time of the trial, or twice that.
    let r = &run(&mut bench, vec![lane(1e9)], Length::Time(100 * MS)).unwrap()[0];
    assert!(r.limits.contains(&Limit::Generator) && r.sent > 0 && r.sent < 100_000_000, "{r:?}");
    assert_eq!((r.lost, r.received), (0, r.sent), "{r:?}");
}

#[test]
fn ports_that_go_down_and_frames_too_long_are_named() {
    let pools = pools();
    let mut bench = Bench::new(Buffers::attach(&pools, 0));
    let (near, far) = pair(64);
    bench.add("near", Box::new(near));
    bench.add("sink", Box::new(NullPort::default()));
    let mut far: Option<Box<dyn Port>> = Some(Box::new(far));
    let mut other = Buffers::attach(&pools, 0);
    let stop = AtomicBool::new(false);
    let failed = bench.run(&mut Trial {
        lanes: vec![lane(1000.0)],
        length: Length::Time(10_000 * MS),
        drain: 0,
        catch_up: MS,
        event: None,
        stop: &stop,
        progress: &mut |ns, _| {
            if ns > 50 * MS
                && let Some(mut far) = far.take()
            {
                far.close(&mut other);
            }
        },
    });
    let error = failed.unwrap_err().to_string();
    assert!(error.contains("port `near` went down in the middle of a trial: peer closed"), "{error}");
    drop(bench);
    let jumbo = Stream { sizes: Sizes(vec![9000]), ..Stream::default() }.templates().unwrap();
    let mut bench = self::bench(&pools, Planted::default());
    let error = run(&mut bench, vec![Lane { templates: Arc::new(jumbo), ..lane(1.0) }], Length::Frames(1)).unwrap_err();
    assert!(error.to_string().contains("a packet buffer holds no more"), "{error}");
    drop((bench, other));
    all_back(&pools);
}

/// A port that takes every frame and loses every fourth, as an interface does whose queue is full.
struct Lossy<P>(P, u64);

impl<P: Port> Port for Lossy<P> {
    by_port!(0: rx_burst, counters, housekeep, state, close);

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let n = frames.len();
        frames.filter(|_, frame| {
            self.1 += 1;
            if !self.1.is_multiple_of(4) {
                return Some(frame);
            }
            self.0.counters().tx_refused.add(1);
            bufs.free_one(frame);
            None
        });
        let kept = frames.len();
        // The wire has room for all of them.
        assert_eq!(self.0.tx_burst(bufs, frames), kept);
        n
    }
}

#[test]
fn what_a_port_refuses_is_not_offered_unless_the_device_refuses_it() {
    let pools = pools();
    for hands_over in [false, true] {
        let mut bench = Bench::new(Buffers::attach(&pools, 0));
        let (device, left, right) = Device::new(Planted::default(), 3);
        bench.add("left", Box::new(Lossy(left, 0)));
        bench.add("right", Box::new(right));
        bench.add_device(device);
        if hands_over {
            bench.hands_over(0);
        }
        let changing = Lane { change: Some((4000, 20_000.0)), ..lane(20_000.0) };
        let r = &run(&mut bench, vec![changing], Length::Frames(8000)).unwrap()[0];
        assert_eq!((r.sent, r.received, r.lost), (8000, 6000, 2000), "{r:?}");
        // All rates are at most the one requested, however busy the machine is.
        let rates = [r.sent_pps, r.pps_before_change.unwrap()];
        if hands_over {
            assert_eq!(
                (r.lost_by_tester, r.loss_percent, r.limits.contains(&Limit::Sender)),
                (0, 25.0, false),
                "{r:?}"
            );
        } else {
            assert_eq!(
                (r.lost_by_tester, r.loss_percent, r.limits.contains(&Limit::Sender)),
                (2000, 0.0, true),
                "{r:?}"
            );
            assert!(rates.iter().all(|rate| *rate < 15_100.0), "{r:?}");
        }
        // Three quarters of the frames are offered, or all of them.
        let share = (r.sent_pps * r.seconds) / 8000.0;
        assert!((share - if hands_over { 1.0 } else { 0.75 }).abs() < 0.01, "{r:?}");
        drop(bench);
        all_back(&pools);
    }
}

/// A port that receives from two devices in turn, and loses every other frame of the first.
struct Joint {
    ends: [PairPort; 2],
    turns: u64,
    frames: u64,
}

impl Port for Joint {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        self.turns += 1;
        let Self { ends: [losing, other], turns, frames } = self;
        if turns.is_multiple_of(2) {
            return other.rx_burst(bufs, out);
        }
        let mut got = Batch::new();
        losing.rx_burst(bufs, &mut got);
        got.filter(|_, frame| {
            *frames += 1;
            if frames.is_multiple_of(2) {
                return Some(frame);
            }
            losing.counters().rx_ring_full.add(1);
            bufs.free_one(frame);
            None
        });
        got.move_to(out)
    }

    fn tx_burst(&mut self, _: &mut Buffers, _: &mut Batch) -> usize {
        0
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.ends[0].counters()
    }

    fn close(&mut self, bufs: &mut Buffers) {
        self.ends.iter_mut().for_each(|end| end.close(bufs));
    }
}

#[test]
fn what_a_shared_receiver_loses_is_counted_once() {
    let pools = pools();
    let mut bench = Bench::new(Buffers::attach(&pools, 0));
    let (device, left, right) = Device::new(Planted::default(), 3);
    let (lossy, other_left, other_right) = Device::new(Planted { drop: 0.25, ..Planted::default() }, 4);
    bench.add("left", Box::new(left));
    bench.add("other", Box::new(other_left));
    bench.add("joint", Box::new(Joint { ends: [right, other_right], turns: 0, frames: 0 }));
    bench.add_device(device);
    bench.add_device(lossy);
    let lanes = [0, 1].map(|from| Lane { from, to: Some(2), ..lane(20_000.0) });
    let results = run(&mut bench, lanes.to_vec(), Length::Frames(4000)).unwrap();
    let sum = |count: fn(&LaneResult) -> u64| results.iter().map(count).sum::<u64>();
    assert_eq!(results[0].lost, 2000, "{results:?}");
    assert!((700..1300).contains(&results[1].lost), "{results:?}");
    // Nobody knows whose frames the ring had no room for.
    assert_eq!((sum(|r| r.lost_by_tester), sum(LaneResult::lost_by_device)), (2000, results[1].lost), "{results:?}");
    assert!(results.iter().all(|r| r.limits.contains(&Limit::Receiver) && r.lost_by_tester <= r.lost), "{results:?}");
    drop(bench);
    all_back(&pools);
}

#[test]
fn replayed_frames_may_have_stamps() {
    let pools = pools();
    let mut bench = bench(&pools, Planted { drop: 0.25, ..Planted::default() });
    let stamped = Stream::default().templates().unwrap();
    let mut frame = vec![0; stamped.longest()];
    stamped.write(0, Stamp { stream: 0, sequence: 7, time: 0 }, &mut frame);
    let templates = Arc::new(Templates::replay(vec![frame]).unwrap());
    let r = &run(&mut bench, vec![Lane { templates, ..lane(20_000.0) }], Length::Frames(4000)).unwrap()[0];
    assert_eq!((r.received + r.lost, r.received, r.misdirected), (4000, r.plain, 0), "{r:?}");
    assert!((700..1300).contains(&r.lost) && r.latency.is_none(), "{r:?}");
}

/// A port whose link is down while the flag is set.
struct Cut(NullPort, Arc<AtomicBool>);

impl Port for Cut {
    by_port!(0: rx_burst, tx_burst, counters, close);

    fn state(&self) -> PortState {
        if self.1.load(Ordering::Relaxed) { PortState::Down("cut".into()) } else { PortState::Up }
    }
}

/// A source that sends for five seconds unless it is stopped.
struct Patient;

impl Source for Patient {
    fn send(&mut self, _: &Task, stop: &AtomicBool) -> Result<Sent, String> {
        let until = Instant::now() + Duration::from_secs(5);
        while !stop.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Sent::default())
    }
}

#[test]
fn a_port_that_is_down_for_a_moment_ends_the_sources() {
    let pools = pools();
    let mut bench = Bench::new(Buffers::attach(&pools, 0));
    let down = Arc::new(AtomicBool::new(false));
    bench.add("near", Box::new(NullPort::default()));
    bench.add("far", Box::new(Cut(NullPort::default(), down.clone())));
    bench.set_source(0, Some(Box::new(Patient)));
    let (stop, mut reports) = (AtomicBool::new(false), 0);
    let failed = bench.run(&mut Trial {
        lanes: vec![lane(1000.0)],
        length: Length::Time(5000 * MS),
        drain: 0,
        catch_up: MS,
        event: None,
        stop: &stop,
        // States are checked before each report: the port is down at the second check only.
        progress: &mut |_, _| {
            reports += 1;
            down.store(reports == 1, Ordering::Relaxed);
        },
    });
    let error = failed.unwrap_err().to_string();
    assert!(error.contains("port `far` went down in the middle of a trial: cut"), "{error}");
    assert!(reports < 200, "the source went on: {reports} reports");
}

#[test]
fn a_link_that_an_event_takes_down_does_not_end_the_trial() {
    let pools = pools();
    let mut bench = Bench::new(Buffers::attach(&pools, 0));
    let down = Arc::new(AtomicBool::new(false));
    bench.add("near", Box::new(NullPort::default()));
    bench.add("far", Box::new(Cut(NullPort::default(), down.clone())));
    let stop = AtomicBool::new(false);
    let mut last = 0;
    let results = bench.run(&mut Trial {
        lanes: vec![lane(10_000.0)],
        length: Length::Time(300 * MS),
        drain: 0,
        catch_up: MS,
        event: Some((100 * MS, &mut |_, _| down.store(true, Ordering::Relaxed))),
        stop: &stop,
        progress: &mut |ns, _| last = ns,
    });
    let r = &results.unwrap()[0];
    assert_eq!((r.received, r.lost), (0, r.sent), "{r:?}");
    assert!(down.load(Ordering::Relaxed) && last > 250 * MS, "{last}");
    // The next trial says so if the link is still down.
    let error = run(&mut bench, vec![lane(10_000.0)], Length::Frames(1)).unwrap_err().to_string();
    assert!(error.contains("port `far` does not work: cut"), "{error}");
}

#[test]
fn ends_on_request() {
    let pools = pools();
    let mut bench = bench(&pools, Planted::default());
    let stop = AtomicBool::new(false);
    let results = bench.run(&mut Trial {
        lanes: vec![Lane { pps: None, ..lane(1.0) }],
        length: Length::Time(3_600_000 * MS),
        drain: 500 * MS,
        catch_up: MS,
        event: None,
        stop: &stop,
        progress: &mut |ns, counts| {
            if ns > 100 * MS {
                assert!(counts[0].0 > 0);
                stop.store(true, Ordering::Relaxed);
            }
        },
    });
    let r = &results.unwrap()[0];
    assert!(r.sent > 1000 && r.received == r.sent && r.limits.is_empty(), "{r:?}");
    let mut batch = Batch::new();
    assert_eq!(Buffers::attach(&pools, 0).alloc(&mut batch, 1), 1);
    Buffers::attach(&pools, 0).free(&mut batch);
}
