//! Evaluation of a benchmark's trials, by results made up here.

use bywash_tester::rfc2544::{Plan, Report, Rig, SizeReport, Test, Want, html};
use bywash_tester::{LaneResult, Length, Limit, TrialError};

const HIGHEST: f64 = 100_000.0;

/// Returns the result of a lane that loses nothing, sent at these rates: requested, and reached.
fn lane(asked: f64, reached: f64) -> LaneResult {
    LaneResult {
        from: "left".into(),
        to: Some("right".into()),
        asked_pps: Some(asked),
        sent_pps: reached,
        sent: 1000,
        seconds: 1000.0 / reached,
        received: 1000,
        received_pps: reached,
        lost: 0,
        lost_by_tester: 0,
        loss_percent: 0.0,
        duplicates: 0,
        reordered: 0,
        displacement: 0,
        misdirected: 0,
        plain: 0,
        latency: None,
        longest_gap: 0.001,
        gap_at_end: Some(0.0),
        behind_ms: 0.0,
        pps_before_change: None,
        recovery: None,
        limits: vec![],
    }
}

/// A rig whose trials have the results that a function returns.
struct Told<F>(F);

impl<F: FnMut(&Want) -> Vec<LaneResult>> Rig for Told<F> {
    fn highest(&self, _: usize) -> f64 {
        HIGHEST
    }

    fn trial(&mut self, want: &Want) -> Result<Vec<LaneResult>, TrialError> {
        Ok((self.0)(want))
    }
}

/// Runs one test with frames of one size. Returns its results, and the page.
fn run(test: Test, trial: impl FnMut(&Want) -> Vec<LaneResult>) -> (SizeReport, String) {
    let plan = Plan { sizes: vec![64], tests: vec![test], burst_trials: 3, ..Plan::default() };
    let mut report = Report { plan, ..Report::default() };
    report.complete::<TrialError>(&mut Told(trial), &mut |_| {}, &mut |_| Ok(())).unwrap();
    (report.sizes[0].clone(), html(&report))
}

#[test]
fn a_device_that_does_not_recover_is_not_taken_for_a_fast_one() {
    let gaps =
        |between: f64, at_end: f64| LaneResult { longest_gap: between, gap_at_end: Some(at_end), ..lane(1.0, 1.0) };
    let reset = |lanes: &[LaneResult]| {
        let (size, page) = run(Test::Reset, |want| {
            assert!(want.reset);
            lanes.to_vec()
        });
        let reset = size.reset.unwrap();
        assert_eq!(page.contains("≥ ") && page.contains("Reset ≥"), !reset.recovered, "{page}");
        (reset.seconds, reset.recovered)
    };
    assert_eq!(reset(&[gaps(0.001, 30.0)]), (30.0, false));
    assert_eq!(reset(&[gaps(2.5, 0.0)]), (2.5, true));
    assert_eq!(reset(&[gaps(2.5, 0.0), gaps(0.001, 30.0)]), (30.0, false));
    assert_eq!(reset(&[LaneResult { received: 0, ..gaps(0.0, 60.0) }]), (60.0, false));
}

#[test]
fn without_a_rate_without_loss_nothing_is_tested_at_it() {
    let tests = vec![Test::Throughput, Test::Latency, Test::Loss, Test::Recovery, Test::Reset];
    let plan = Plan { sizes: vec![64], tests, ..Plan::default() };
    let mut report = Report { plan, ..Report::default() };
    let trial = |want: &Want| {
        assert!(want.pps > 0.0 && want.length != Length::Frames(0), "{want:?}");
        vec![LaneResult { loss_percent: 1.0, ..lane(want.pps, want.pps) }]
    };
    report.complete::<TrialError>(&mut Told(trial), &mut |_| {}, &mut |_| Ok(())).unwrap();
    let size = &report.sizes[0];
    assert_eq!(size.throughput.as_ref().map(|t| (t.pps, t.generator_was_the_limit)), Some((0.0, false)));
    assert!(size.latency.is_none() && size.recovery.is_none() && size.reset.is_none(), "{size:?}");
    assert_eq!(size.loss.as_ref().map(Vec::len), Some(10));
    let page = html(&report);
    assert!(page.contains("no rate without loss") && !page.contains("0.000"), "{page}");
}

/// Returns the rate that a generator reaches, given the rate asked for: three tenths in the first trials, then all.
fn generator(mut slow_trials: usize) -> impl FnMut(f64) -> f64 {
    move |asked| {
        let slow = slow_trials > 0;
        slow_trials = slow_trials.saturating_sub(1);
        if slow { 0.3 * asked } else { asked }
    }
}

/// The lane with the slower link is asked for a tenth, and sends four fifths of that: the rate is four fifths, too.
#[test]
fn slower_links_count_by_their_share() {
    let (size, _) = run(Test::Loss, |want| vec![lane(want.pps, want.pps), lane(0.1 * want.pps, 0.08 * want.pps)]);
    let pps = size.loss.unwrap()[0].pps;
    assert!((pps / (0.8 * HIGHEST) - 1.0).abs() < 1e-9, "{pps}");
}

#[test]
fn a_generator_that_is_too_slow_is_named_with_each_result() {
    // A slow trial is repeated: it is no limit if the generator then reaches the rate.
    for (slow_trials, limited) in [(0, false), (1, false), (usize::MAX, true)] {
        let mut reached = generator(slow_trials);
        let (size, page) = run(Test::BackToBack, |want| vec![lane(want.pps, reached(want.pps))]);
        let burst = size.back_to_back.unwrap();
        assert_eq!((burst.unbounded, burst.generator_was_the_limit), (true, limited), "{slow_trials}");
        assert_eq!((burst.is_lower_bound(), page.contains("≥ 200000")), (!limited, !limited), "{page}");
        assert_eq!(page.contains("*: the generator was the limit"), limited, "{page}");
        let mut reached = generator(slow_trials);
        let (size, page) = run(Test::Recovery, |want| {
            let before = reached(want.pps);
            // The second half is slower, so that the mean is lower than the rate asked for.
            let mean = LaneResult { recovery: Some(0.25), ..lane(want.pps, 0.75 * before) };
            vec![LaneResult { pps_before_change: Some(before), ..mean }]
        });
        let recovery = size.recovery.unwrap();
        assert_eq!((recovery.seconds, recovery.generator_was_the_limit), (0.25, limited), "{slow_trials}");
        assert_eq!(page.contains("0.250000 *"), limited, "{page}");
    }
}

#[test]
fn a_burst_that_was_lost_is_the_devices_limit() {
    // The generator is slow, but the device loses frames even so; or the device takes only single frames.
    for longest in [0, 1] {
        let (size, _) = run(Test::BackToBack, |want| {
            if want.length == Length::Frames(longest) {
                return vec![LaneResult { sent: 1, received: 1, seconds: 0.0, ..lane(want.pps, 0.0) }];
            }
            vec![LaneResult { loss_percent: 1.0, ..lane(want.pps, 0.3 * want.pps) }]
        });
        let burst = size.back_to_back.unwrap();
        assert_eq!((burst.range.1, burst.unbounded, burst.generator_was_the_limit), (longest, false, false));
    }
}

#[test]
fn what_the_tester_lost_is_noted_with_the_result() {
    // Of 1000 frames, the receiving port lost 600: the others show no loss by the device.
    let here =
        |lane| LaneResult { received: 400, lost: 600, lost_by_tester: 600, limits: vec![Limit::Receiver], ..lane };
    for test in [Test::Throughput, Test::Latency, Test::Loss, Test::BackToBack, Test::Recovery, Test::Reset] {
        let (size, page) = run(test, |want| vec![lane(want.pps, want.pps), here(lane(want.pps, want.pps))]);
        assert_eq!(size.lost_by_tester, [(test, Limit::Receiver)]);
        let noted = format!("64 B, {}: the receiving port lost frames", test.name());
        assert!(page.contains(&noted), "{noted}: {page}");
        let (size, page) = run(test, |want| vec![lane(want.pps, want.pps)]);
        assert!(size.lost_by_tester.is_empty() && !page.contains("lost frames"), "{page}");
    }
    // The search ends below the rates at which the device and the receiving port lost frames.
    let (size, page) = run(Test::Throughput, |want| {
        let all = lane(want.pps, want.pps);
        vec![if want.pps > 50_000.0 { LaneResult { loss_percent: 1.0, ..here(all) } } else { all }]
    });
    assert!(size.throughput.unwrap().pps > 49_000.0 && size.lost_by_tester.is_empty(), "{page}");
}
