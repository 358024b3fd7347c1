//! Benchmarks of a device by RFC 2544, with back-to-back frames as in RFC 9004 and reset as in RFC 6201.
//!
//! A [`Plan`] states what to measure; a [`Rig`] performs the single trials. The results form a [`Report`], which is
//! passed on after each test, so that it can be saved and an interrupted benchmark resumed.

mod chart;
mod html;

use crate::bench::{LaneResult, Length, Limit, TrialError};
use crate::rate::wire_bits;
use crate::receiver::Latency;
use crate::search::{Answer, highest};
use serde::{Deserialize, Serialize};

pub use html::html;

/// Benchmark tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Test {
    /// Highest rate without loss (section 26.1).
    Throughput,
    /// Latency at and below that rate (26.2).
    Latency,
    /// Frame loss, from the highest rate down (26.3).
    Loss,
    /// Longest burst without loss, and the buffer size derived from it (26.4, RFC 9004).
    BackToBack,
    /// Time that loss continues after an overload (26.5).
    Recovery,
    /// Time without frames after a reset (26.6, RFC 6201).
    Reset,
}

/// Relative shortfall of the rate from which on frames no longer count as a burst or an overload.
const BURST: f64 = 0.02;

/// Parameters of the benchmark. Times in seconds, shares in percent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Plan {
    /// Frame sizes in bytes, FCS included.
    pub sizes: Vec<usize>,
    /// Tests, run in this order for each size. Back-to-back and recovery evaluate the throughput, which must come
    /// before.
    pub tests: Vec<Test>,
    /// Duration of a trial; RFC 2544 asks for 60.
    pub seconds: f64,
    /// Time to wait for frames after each trial; RFC 2544 asks for 2.
    pub drain: f64,
    /// Learning frames sent before each trial, from which the device learns addresses.
    pub learning: usize,
    /// Relative difference below which two rates are considered equal.
    pub resolution: f64,
    /// Loss that is still accepted as none.
    pub accepted_loss: f64,
    /// Maximum number of repetitions of a trial in which the generator could not send at its rate.
    pub retries: usize,
    /// Loads at which latency is measured, relative to the throughput.
    pub latency_loads: Vec<f64>,
    /// Trials at each load; RFC 2544 asks for 20.
    pub latency_trials: usize,
    /// Searches for the longest burst; RFC 9004 asks for 50.
    pub burst_trials: usize,
    /// Longest burst tried, in seconds; RFC 2544 asks for at least 2.
    pub burst_seconds: f64,
}

impl Default for Plan {
    fn default() -> Self {
        use Test::*;
        Self {
            sizes: vec![64, 128, 256, 512, 1024, 1280, 1518],
            tests: vec![Throughput, Latency, Loss, BackToBack, Recovery],
            seconds: 60.0,
            drain: 2.0,
            learning: 3,
            resolution: 0.5,
            accepted_loss: 0.0,
            retries: 2,
            latency_loads: vec![100.0, 90.0, 50.0],
            latency_trials: 20,
            burst_trials: 50,
            burst_seconds: 2.0,
        }
    }
}

/// Parameters of a requested trial.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Frame size in bytes, FCS included.
    pub size: usize,
    /// Rate in frames per second, in each direction of the fastest links; in others it is less in proportion.
    pub pps: f64,
    /// Duration. Frames, too, are those in each direction of the fastest links.
    pub length: Length,
    /// Change of rate: frame number from which on it applies, and the new rate in frames per second.
    pub change: Option<(u64, f64)>,
    /// Set to reset the device in the middle of the trial.
    pub reset: bool,
}

/// All directions of a benchmark taken together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Together {
    /// Sum of the directions' rates, in units of the rate in a direction of the fastest links.
    pub directions: f64,
    /// Sum of the directions' line rates in bits per second; `None` if one is not known.
    pub line: Option<f64>,
}

/// Performs the trials of a benchmark.
pub trait Rig {
    /// Returns the highest rate for frames of this size, in frames per second in each direction of the fastest links.
    fn highest(&self, size: usize) -> f64;

    /// Returns what all directions carry together.
    fn together(&self) -> Together {
        Together { directions: 1.0, line: None }
    }

    /// Runs one trial.
    ///
    /// # Errors
    /// [`TrialError`], which ends the whole benchmark.
    fn trial(&mut self, want: &Want) -> Result<Vec<LaneResult>, TrialError>;

    /// Returns whether the benchmark should end.
    fn stopped(&self) -> bool {
        false
    }
}

/// Results of a benchmark.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Subject, time and environment, as names and values.
    pub facts: Vec<(String, String)>,
    /// Parameters of the benchmark.
    pub plan: Plan,
    /// Results by frame size.
    pub sizes: Vec<SizeReport>,
}

/// Results for one frame size. Rates and frames apply to each direction of each pair of ports, or of those with the
/// fastest links, if the highest rate is a percentage of different rates.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SizeReport {
    /// Frame size in bytes, FCS included.
    pub size: usize,
    /// Highest rate available, in frames per second.
    pub highest_pps: f64,
    /// Highest rate without loss; 0 if there is none.
    pub throughput: Option<Throughput>,
    /// Latency by load. `None`, like recovery and reset, also if there is no rate without loss.
    pub latency: Option<Vec<LatencyAt>>,
    /// Loss, from the highest rate down.
    pub loss: Option<Vec<LossAt>>,
    /// Longest burst without loss.
    pub back_to_back: Option<BackToBack>,
    /// Time that loss continues after an overload.
    pub recovery: Option<Recovery>,
    /// Time without frames after a reset.
    pub reset: Option<Reset>,
    /// Tests in which the tester itself lost frames of trials that the result is based on, and the port that did:
    /// [`Limit::Sender`] or [`Limit::Receiver`]. The device has not been tested with those frames.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_by_tester: Vec<(Test, Limit)>,
}

/// Highest rate without loss.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Throughput {
    /// Rate in frames per second.
    pub pps: f64,
    /// Rate in bits per second on the wire, with FCS, preamble and gap.
    pub bits: f64,
    /// Percentage of the highest rate available.
    pub percent: f64,
    /// Sum of all directions; `None` in a report of an earlier version.
    #[serde(default)]
    pub sum: Option<Sum>,
    /// Set if the generator could not send faster, so that the device may be capable of more.
    pub generator_was_the_limit: bool,
    /// Rates tried, in frames per second, and the loss at each, in percent.
    pub trials: Vec<(f64, f64)>,
}

/// Throughput of all directions together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sum {
    /// Rate in frames per second.
    pub pps: f64,
    /// Rate in bits per second on the wire, with FCS, preamble and gap.
    pub bits: f64,
    /// Percentage of the sum of the line rates; `None` if one is not known.
    pub line_percent: Option<f64>,
}

/// Latency at one load.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LatencyAt {
    /// Load in percent of the throughput.
    pub load: f64,
    /// Rate in frames per second.
    pub pps: f64,
    /// Latency of the trial with the median mean.
    pub latency: Latency,
}

/// Loss at one rate.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LossAt {
    /// Rate sent in frames per second.
    pub pps: f64,
    /// Load in percent of the highest rate.
    pub load: f64,
    /// Loss in percent.
    pub loss: f64,
}

/// Longest burst without loss.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackToBack {
    /// Rate within a burst in frames per second.
    pub pps: f64,
    /// Length in frames: the mean of all searches.
    pub frames: f64,
    /// Shortest and longest burst found.
    pub range: (u64, u64),
    /// Duration of such a burst in seconds.
    pub implied_seconds: f64,
    /// Buffer time in seconds, corrected for frames forwarded meanwhile (RFC 9004, section 6.3).
    pub corrected_seconds: f64,
    /// Corrected buffer size in frames.
    pub buffer_frames: f64,
    /// Set if even the longest burst passed: the buffer is at least that large, or is not needed.
    pub unbounded: bool,
    /// Set if bursts that passed were sent more slowly than at this rate, so that the device needed to buffer less.
    pub generator_was_the_limit: bool,
}

/// Time that loss continues after an overload.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Recovery {
    /// Seconds from the end of the overload to the last lost frame.
    pub seconds: f64,
    /// Set if the generator could not send as fast as the overload asks for, so that there may have been none.
    pub generator_was_the_limit: bool,
}

/// Time without frames after a reset.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Reset {
    /// Longest time without a frame, in seconds.
    pub seconds: f64,
    /// Set if the device forwarded frames again before the trial ended. Otherwise, the time is a lower bound.
    pub recovered: bool,
}

impl Report {
    /// Runs the tests whose results are missing, and passes the report to `keep` after each.
    ///
    /// # Errors
    /// The first error of a trial, or of `keep`.
    pub fn complete<E: From<TrialError>>(
        &mut self,
        rig: &mut impl Rig,
        tell: &mut dyn FnMut(&str),
        keep: &mut dyn FnMut(&Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let plan = self.plan.clone();
        for (i, size) in plan.sizes.iter().enumerate() {
            if self.sizes.len() == i {
                let highest_pps = rig.highest(*size);
                self.sizes.push(SizeReport { size: *size, highest_pps, ..SizeReport::default() });
            }
            for test in &plan.tests {
                if rig.stopped() {
                    return Ok(());
                }
                let done = &mut self.sizes[i];
                if done.has(*test) || (done.always_loses() && test.follows_throughput()) {
                    continue;
                }
                let mut found = done.clone();
                Doing { plan: &plan, rig, tell, size: *size, limits: vec![] }.test(*test, &mut found)?;
                if rig.stopped() {
                    return Ok(());
                }
                self.sizes[i] = found;
                keep(self)?;
            }
        }
        Ok(())
    }
}

impl BackToBack {
    /// Returns whether the device can take at least this burst, and perhaps longer ones.
    pub fn is_lower_bound(&self) -> bool {
        self.unbounded && !self.generator_was_the_limit
    }
}

impl Test {
    /// Returns the name, as in a plan.
    pub fn name(self) -> &'static str {
        match self {
            Self::Throughput => "throughput",
            Self::Latency => "latency",
            Self::Loss => "loss",
            Self::BackToBack => "back-to-back",
            Self::Recovery => "recovery",
            Self::Reset => "reset",
        }
    }

    /// Returns whether the test's rates follow from the throughput.
    fn follows_throughput(self) -> bool {
        matches!(self, Self::Latency | Self::Recovery | Self::Reset)
    }
}

impl SizeReport {
    /// Returns whether the device loses frames at every rate, so that there is none for the tests that follow from it.
    pub fn always_loses(&self) -> bool {
        self.throughput.as_ref().is_some_and(|t| t.pps <= 0.0)
    }

    /// Returns whether the test has been run.
    pub fn has(&self, test: Test) -> bool {
        match test {
            Test::Throughput => self.throughput.is_some(),
            Test::Latency => self.latency.is_some(),
            Test::Loss => self.loss.is_some(),
            Test::BackToBack => self.back_to_back.is_some(),
            Test::Recovery => self.recovery.is_some(),
            Test::Reset => self.reset.is_some(),
        }
    }

    /// Returns the throughput or, if it was not measured, the highest rate.
    fn rate(&self) -> f64 {
        self.throughput.as_ref().map_or(self.highest_pps, |t| t.pps)
    }
}

/// Result of a trial over all lanes.
struct Outcome {
    /// Lowest rate sent, in frames per second, in each direction of the fastest links.
    pps: f64,
    /// Highest loss of a lane, in percent.
    loss: f64,
    /// Set if the generator missed its rate.
    slow: bool,
    /// Ports of the tester that lost frames.
    limits: Vec<Limit>,
    lanes: Vec<LaneResult>,
}

struct Doing<'a, R> {
    plan: &'a Plan,
    rig: &'a mut R,
    tell: &'a mut dyn FnMut(&str),
    size: usize,
    /// Ports of the tester that lost frames of trials that the result is based on.
    limits: Vec<Limit>,
}

impl<R: Rig> Doing<'_, R> {
    fn test(&mut self, test: Test, found: &mut SizeReport) -> Result<(), TrialError> {
        match test {
            Test::Throughput => found.throughput = Some(self.throughput(found)?),
            Test::Latency => found.latency = Some(self.latency(found)?),
            Test::Loss => found.loss = Some(self.loss(found)?),
            Test::BackToBack => found.back_to_back = Some(self.back_to_back(found)?),
            Test::Recovery => found.recovery = Some(self.recovery(found)?),
            Test::Reset => found.reset = Some(self.reset(found)?),
        }
        found.lost_by_tester.extend(self.limits.drain(..).map(|limit| (test, limit)));
        Ok(())
    }

    /// Records that the result is based on this trial.
    fn rely_on(&mut self, got: &Outcome) {
        for limit in &got.limits {
            if !self.limits.contains(limit) {
                self.limits.push(*limit);
            }
        }
    }

    fn time(&self) -> Length {
        Length::Time((self.plan.seconds * 1e9) as u64)
    }

    fn once(&mut self, want: Want) -> Result<Outcome, TrialError> {
        let lanes = self.rig.trial(&want)?;
        let reached = |lane: &LaneResult| lane.pps_before_change.unwrap_or(lane.sent_pps);
        // A direction with a slower link is asked for less: its share counts.
        let of_asked = |lane: &LaneResult| reached(lane) * lane.asked_pps.map_or(1.0, |asked| want.pps / asked);
        let pps = lanes.iter().map(of_asked).fold(f64::INFINITY, f64::min);
        let loss = lanes.iter().map(|lane| lane.loss_percent).fold(0.0, f64::max);
        // A rate within the resolution counts as reached: the search does not distinguish such rates either.
        let near = if matches!(want.length, Length::Frames(_)) { BURST } else { self.plan.resolution / 100.0 };
        // Frames sent all at once have no rate, but are not late.
        let timed = |lane: &&LaneResult| lane.sent == 0 || lane.seconds > 0.0;
        let below = |lane: &LaneResult| reached(lane) < lane.asked_pps.unwrap_or(0.0) * (1.0 - near);
        let slow = lanes.iter().filter(timed).any(below);
        let limits = lanes.iter().filter(|lane| lane.lost_by_tester > 0).flat_map(|lane| lane.limits.clone());
        let limits = limits.filter(|limit| *limit != Limit::Generator).collect();
        Ok(Outcome { pps, loss, slow, limits, lanes })
    }

    /// Runs a trial; repeats it if the generator missed its rate, and returns the best.
    fn best(&mut self, want: Want) -> Result<Outcome, TrialError> {
        let mut best = self.once(want)?;
        for _ in 0..self.plan.retries {
            if !best.slow || self.rig.stopped() {
                break;
            }
            let next = self.once(want)?;
            if !next.slow || next.pps > best.pps {
                best = next;
            }
        }
        Ok(best)
    }

    fn want(&self, pps: f64, length: Length) -> Want {
        Want { size: self.size, pps, length, change: None, reset: false }
    }

    fn throughput(&mut self, found: &SizeReport) -> Result<Throughput, TrialError> {
        let (mut trials, mut limited, accepted) = (vec![], false, self.plan.accepted_loss);
        let length = self.time();
        let (resolution, top) = (self.plan.resolution / 100.0, found.highest_pps);
        let pps = highest(top, resolution, |pps| {
            (self.tell)(&format!("{} B, throughput: {pps:.0} pps", self.size));
            let got = self.best(self.want(pps, length))?;
            trials.push((got.pps, got.loss));
            if got.loss > accepted {
                return Ok(Answer::Bad);
            }
            limited |= got.slow;
            self.rely_on(&got);
            Ok(Answer::Good(got.pps))
        })?;
        let percent = pps * 100.0 / top;
        let bits = pps * wire_bits(self.size as f64);
        let Together { directions, line } = self.rig.together();
        let line_percent = line.map(|line| 100.0 * bits * directions / line);
        let sum = Some(Sum { pps: pps * directions, bits: bits * directions, line_percent });
        Ok(Throughput { pps, bits, percent, sum, generator_was_the_limit: limited, trials })
    }

    fn latency(&mut self, found: &SizeReport) -> Result<Vec<LatencyAt>, TrialError> {
        let mut all = vec![];
        for load in self.plan.latency_loads.clone() {
            let pps = found.rate() * load / 100.0;
            let mut got = vec![];
            for n in 0..self.plan.latency_trials.max(1) {
                (self.tell)(&format!("{} B, latency at {load} %: trial {}", self.size, n + 1));
                let want = self.want(pps, self.time());
                let done = self.best(want)?;
                self.rely_on(&done);
                // Report the direction with the longer delay.
                let slowest = done.lanes.into_iter().filter_map(|lane| lane.latency);
                got.extend(slowest.max_by(|a, b| a.mean_us.total_cmp(&b.mean_us)));
                if self.rig.stopped() {
                    break;
                }
            }
            got.sort_by(|a, b| a.mean_us.total_cmp(&b.mean_us));
            let middle = got.len() / 2;
            all.extend(got.into_iter().nth(middle).map(|latency| LatencyAt { load, pps, latency }));
        }
        Ok(all)
    }

    fn loss(&mut self, found: &SizeReport) -> Result<Vec<LossAt>, TrialError> {
        let (mut all, mut without) = (vec![], 0);
        for step in 0..10 {
            let load = 100.0 - 10.0 * f64::from(step);
            (self.tell)(&format!("{} B, loss at {load} %", self.size));
            let length = self.time();
            let got = self.best(self.want(found.highest_pps * load / 100.0, length))?;
            self.rely_on(&got);
            all.push(LossAt { pps: got.pps, load: got.pps * 100.0 / found.highest_pps, loss: got.loss });
            without = if got.loss > 0.0 { 0 } else { without + 1 };
            // Two trials in a row without loss end the test (26.3).
            if without == 2 || self.rig.stopped() {
                break;
            }
        }
        Ok(all)
    }

    fn back_to_back(&mut self, found: &SizeReport) -> Result<BackToBack, TrialError> {
        let pps = found.highest_pps;
        let most = (pps * self.plan.burst_seconds).max(2.0);
        let (mut longest, mut limited) = (vec![], false);
        for n in 0..self.plan.burst_trials.max(1) {
            let frames = highest(most, 0.002, |frames| {
                (self.tell)(&format!("{} B, back to back: search {}, {frames:.0} frames", self.size, n + 1));
                let got = self.best(self.want(pps, Length::Frames(frames.round() as u64)))?;
                if got.loss > 0.0 {
                    return Ok(Answer::Bad);
                }
                limited |= got.slow;
                self.rely_on(&got);
                Ok(Answer::Good(frames))
            })?;
            longest.push(frames.round() as u64);
            if self.rig.stopped() {
                break;
            }
        }
        let frames = longest.iter().sum::<u64>() as f64 / longest.len() as f64;
        let range = (longest.iter().copied().min().unwrap_or(0), longest.iter().copied().max().unwrap_or(0));
        let implied = frames / pps;
        let corrected = implied * (1.0 - (found.rate() / pps).min(1.0));
        Ok(BackToBack {
            pps,
            frames,
            range,
            implied_seconds: implied,
            corrected_seconds: corrected,
            buffer_frames: corrected * pps,
            unbounded: frames >= most.floor(),
            generator_was_the_limit: limited,
        })
    }

    fn recovery(&mut self, found: &SizeReport) -> Result<Recovery, TrialError> {
        (self.tell)(&format!("{} B, recovery", self.size));
        let over = (found.rate() * 1.1).min(found.highest_pps);
        let (seconds, half) = (self.plan.seconds, found.rate() / 2.0);
        let at = (over * seconds) as u64;
        let frames = at + (half * seconds) as u64;
        let want = Want { change: Some((at, half)), ..self.want(over, Length::Frames(frames)) };
        let got = self.best(want)?;
        self.rely_on(&got);
        let seconds = got.lanes.iter().filter_map(|lane| lane.recovery).fold(0.0, f64::max);
        Ok(Recovery { seconds, generator_was_the_limit: got.slow })
    }

    fn reset(&mut self, found: &SizeReport) -> Result<Reset, TrialError> {
        (self.tell)(&format!("{} B, reset", self.size));
        let length = self.time();
        let want = Want { reset: true, ..self.want(found.rate() * 0.9, length) };
        let got = self.once(want)?;
        self.rely_on(&got);
        let lanes = got.lanes;
        let at_end = |lane: &LaneResult| lane.gap_at_end.unwrap_or(0.0);
        let seconds = lanes.iter().map(|lane| lane.longest_gap.max(at_end(lane))).fold(0.0, f64::max);
        // After a reset from which the device does not recover, the last gap is the longest one.
        let recovered = lanes.iter().all(|lane| lane.received > 0 && at_end(lane) <= lane.longest_gap);
        Ok(Reset { seconds, recovered })
    }
}
