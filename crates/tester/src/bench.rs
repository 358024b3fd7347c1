//! The tester's ports, and trials over them.

use crate::clock::now_ns;
use crate::device::Device;
use crate::pace::Pacer;
use crate::receiver::{Latency, Receiver};
use crate::sender::Sender;
use crate::stamp::{LEARNING, find};
use crate::stream::Templates;
use bywash_frame::{Batch, Buffers};
use bywash_port::{Port, PortState};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Interval in nanoseconds at which port states are checked and progress is reported.
const CHECK: u64 = 20_000_000;
/// Time in nanoseconds beyond that of the trial after which a port that is late stops sending. Sources end by
/// themselves.
const GRACE: u64 = 100_000_000;
/// Relative shortfall of the rate from which on the generator counts as the limit.
const TOLERANCE: f64 = 0.001;

/// Duration of a trial.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    /// Sending time in nanoseconds. At a given rate, sends as many frames as fit that time; a port that is late sends
    /// for 0.1 s more, and not the rest.
    Time(u64),
    /// Number of frames per lane.
    Frames(u64),
}

/// Sender of frames by other means than a port, such as the kernel's own generator.
pub trait Source: Send {
    /// Sends a stream's frames until it is done or `stop` is set. Called on a thread of its own.
    ///
    /// # Errors
    /// Returns an error message for the user.
    fn send(&mut self, task: &Task, stop: &AtomicBool) -> Result<Sent, String>;
}

/// Request to a [`Source`].
#[derive(Clone, Debug)]
pub struct Task {
    /// Frames to send.
    pub templates: Arc<Templates>,
    /// Stream number to stamp the frames with.
    pub stream: u16,
    /// Rate in frames per second; `None` sends as fast as possible.
    pub pps: Option<f64>,
    /// Duration.
    pub length: Length,
}

/// Result of a [`Source`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Frames generated.
    pub frames: u64,
    /// Nanoseconds from the first to the last frame.
    pub time: u64,
    /// Nanoseconds by which the schedule was moved because frames were late.
    pub behind: u64,
    /// Frames that the interface did not accept.
    pub refused: u64,
}

/// Traffic from one port to another.
#[derive(Clone)]
pub struct Lane {
    /// Sending port.
    pub from: usize,
    /// Receiving port. If `None`, arrivals are not checked.
    pub to: Option<usize>,
    /// Frames to send. Replayed frames are only counted on arrival: their receiving port must be that of no other lane.
    pub templates: Arc<Templates>,
    /// Rate in frames per second; `None` sends as fast as possible.
    pub pps: Option<f64>,
    /// Frames sent back to back.
    pub burst: u64,
    /// Change of rate: frame number from which on it applies, and the new rate in frames per second.
    pub change: Option<(u64, f64)>,
    /// Share of the trial's [`Length::Frames`] that the lane sends, so that slower lanes end with the others.
    pub share: f64,
}

impl Lane {
    /// Returns how long the lane sends in a trial of this length.
    fn length(&self, trial: Length) -> Length {
        match trial {
            Length::Frames(frames) => Length::Frames(((frames as f64 * self.share).round() as u64).max(frames.min(1))),
            time => time,
        }
    }
}

/// Callback in the middle of a trial, given the bench's devices and the time in nanoseconds.
pub type Event<'a> = &'a mut dyn FnMut(&mut [Device], u64);
/// Progress callback, given the nanoseconds since the start, and frames sent and received by lane.
pub type Progress<'a> = &'a mut dyn FnMut(u64, &[(u64, u64)]);

/// Parameters of a single trial.
pub struct Trial<'a> {
    /// Lanes, all running at the same time.
    pub lanes: Vec<Lane>,
    /// Duration of sending.
    pub length: Length,
    /// Time in nanoseconds to wait for frames after all have been sent.
    pub drain: u64,
    /// Longest delay in nanoseconds that a late sender makes up for.
    pub catch_up: u64,
    /// Callback to run at this time, in nanoseconds after the start. From then on, ports may be down: a reset of the
    /// device can take the links down.
    pub event: Option<(u64, Event<'a>)>,
    /// Ends the trial early when set.
    pub stop: &'a AtomicBool,
    /// Called several times per second with the progress.
    pub progress: Progress<'a>,
}

/// Error that ends a trial without a result.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A port went down during the trial.
    #[error("port `{port}` went down in the middle of a trial: {reason}")]
    Down {
        /// Name of the port.
        port: String,
        /// Reason given by the port.
        reason: String,
    },
    /// A port is down before the trial starts.
    #[error("port `{port}` does not work: {reason}")]
    NotUp {
        /// Name of the port.
        port: String,
        /// Reason given by the port.
        reason: String,
    },
    /// Frames exceed what a port can carry.
    #[error(
        "port `{port}` carries frames of {most} bytes at most (FCS included), but {longest} are requested: {advice}"
    )]
    TooLong {
        /// Name of the port.
        port: String,
        /// Longest frame of the port in bytes, FCS included.
        most: usize,
        /// Longest frame requested in bytes, FCS included.
        longest: usize,
        /// Advice for the user.
        advice: &'static str,
    },
    /// A source failed.
    #[error("{0}")]
    Source(String),
}

/// Limitation of the tester itself that affected a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limit {
    /// Frames were sent late, or more slowly than requested.
    Generator,
    /// The sending port lost frames, which were not offered to the device.
    Sender,
    /// The receiving port lost frames before they could be counted.
    Receiver,
}

impl Limit {
    /// Returns a description for the user.
    pub fn description(self) -> &'static str {
        match self {
            Self::Generator => "the generator was the limit, not the device: it sent frames late",
            Self::Sender => "the sending port lost frames, not the device",
            Self::Receiver => "the receiving port lost frames, not the device: it cannot take more",
        }
    }
}

/// Result of a lane.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaneResult {
    /// Name of the sending port.
    pub from: String,
    /// Name of the receiving port; `None` if arrivals were not checked.
    pub to: Option<String>,
    /// Requested rate in frames per second.
    pub asked_pps: Option<f64>,
    /// Rate offered to the device in frames per second, without frames that the sending port lost.
    pub sent_pps: f64,
    /// Frames sent, those included that the sending port lost.
    pub sent: u64,
    /// Time from the first to the last frame sent, in seconds.
    pub seconds: f64,
    /// Distinct frames received.
    pub received: u64,
    /// Rate of distinct frames in frames per second, from the first to the last.
    pub received_pps: f64,
    /// Frames not received, regardless of where they were lost.
    pub lost: u64,
    /// Lost frames that the receiving port dropped or the sending port did not send, unless it passes frames to the
    /// device itself ([`Bench::hands_over`]). The frames that a receiving port dropped are divided between its lanes in
    /// proportion to their losses: whose they were is not known.
    pub lost_by_tester: u64,
    /// Frames lost by the device, in percent of those offered to it.
    pub loss_percent: f64,
    /// Further copies of frames received before.
    pub duplicates: u64,
    /// Frames received behind later ones.
    pub reordered: u64,
    /// Largest displacement of a reordered frame, in frames.
    pub displacement: u64,
    /// Frames of the stream received by another port.
    pub misdirected: u64,
    /// Frames without a stamp received by the receiving port, or all frames if they are replayed.
    pub plain: u64,
    /// Latency of the received frames.
    pub latency: Option<Latency>,
    /// Longest time without a frame between the first and the last, in seconds.
    pub longest_gap: f64,
    /// Time from the last frame received until the last one was sent, in seconds: 0 if frames arrived to the end.
    /// Without any frame received, the time of sending. `None` if arrivals were not checked by their stamps, or the
    /// frames were sent by a [`Source`].
    pub gap_at_end: Option<f64>,
    /// Total time in milliseconds by which frames were sent late.
    pub behind_ms: f64,
    /// Rate sent until the change of rate, in frames per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pps_before_change: Option<f64>,
    /// Seconds from the change of rate until the last lost frame was sent; 0 if none was lost after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<f64>,
    /// Limitations of the tester that affected the result.
    pub limits: Vec<Limit>,
}

impl LaneResult {
    /// Returns the number of frames lost by the device.
    pub fn lost_by_device(&self) -> u64 {
        self.lost.saturating_sub(self.lost_by_tester)
    }
}

/// A port with its name and source.
struct Place {
    name: String,
    port: Box<dyn Port>,
    source: Option<Box<dyn Source>>,
    plain: u64,
    /// Set if frames that the port or its source refuses are the device's loss.
    hands_over: bool,
}

/// The tester's ports, and the devices simulated by it.
///
/// # Thread-safety
/// Used by one thread, which does all the work: lanes send in turn, a few microseconds apart. Only a [`Source`] has a
/// thread of its own.
pub struct Bench {
    bufs: Buffers,
    places: Vec<Place>,
    devices: Vec<Device>,
    stream: u16,
    closed: bool,
}

impl Bench {
    /// Creates a bench without ports that sends and receives with `bufs`.
    pub fn new(bufs: Buffers) -> Self {
        Self { bufs, places: vec![], devices: vec![], stream: 0, closed: false }
    }

    /// Adds a port and returns its number.
    pub fn add(&mut self, name: &str, port: Box<dyn Port>) -> usize {
        self.places.push(Place { name: name.into(), port, source: None, plain: 0, hands_over: false });
        self.places.len() - 1
    }

    /// Counts as lost by the device the frames that this port or its source refuses. For a port such as a veth: the
    /// device receives at once what it sends, and it refuses frames for which the other end has no room.
    pub fn hands_over(&mut self, port: usize) {
        self.places[port].hands_over = true;
    }

    /// Sets the source that sends in place of this port; `None` removes it.
    pub fn set_source(&mut self, port: usize, source: Option<Box<dyn Source>>) {
        self.places[port].source = source;
    }

    /// Adds a device whose ports have been added.
    pub fn add_device(&mut self, device: Device) {
        self.devices.push(device);
    }

    /// Polls all ports for `time`, so that they become ready to receive, and drops the frames received.
    pub fn settle(&mut self, time: Duration) {
        let until = now_ns() + time.as_nanos() as u64;
        loop {
            for place in &mut self.places {
                let mut batch = Batch::new();
                place.port.rx_burst(&mut self.bufs, &mut batch);
                self.bufs.free(&mut batch);
                place.port.housekeep(&mut self.bufs);
            }
            self.turn_devices();
            if now_ns() >= until {
                return;
            }
        }
    }

    /// Sends frames as they are, so that the device learns addresses (RFC 2544, section 23).
    pub fn send_learning(&mut self, frames: &[(usize, Vec<u8>)]) {
        for (port, bytes) in frames {
            let Some(mut frame) = self.bufs.alloc_one() else { continue };
            self.bufs.arena().write(&mut frame, bytes);
            let mut batch = Batch::new();
            if let Err(frame) = batch.push(frame) {
                self.bufs.free_one(frame);
            }
            let place = &mut self.places[*port];
            place.port.tx_burst(&mut self.bufs, &mut batch);
            self.bufs.free(&mut batch);
            place.port.housekeep(&mut self.bufs);
        }
    }

    fn turn_devices(&mut self) {
        if !self.devices.is_empty() {
            let now = now_ns();
            self.devices.iter_mut().for_each(|device| device.turn(&mut self.bufs, now));
        }
    }

    /// Checks that the port carries frames of this length, given without FCS.
    ///
    /// # Errors
    /// [`TrialError::TooLong`].
    pub fn check_length(&self, port: usize, longest: usize) -> Result<(), TrialError> {
        const FCS: usize = 4;
        let (place, room) = (&self.places[port], self.bufs.arena().max_data());
        let most = place.port.max_frame().min(room);
        if longest <= most {
            return Ok(());
        }
        let advice = if most < room { "raise its MTU" } else { "a packet buffer holds no more" };
        Err(TrialError::TooLong { port: place.name.clone(), most: most + FCS, longest: longest + FCS, advice })
    }

    fn check(&self, lane: &Lane) -> Result<(), TrialError> {
        let mut ports = [Some(lane.from), lane.to].into_iter().flatten();
        ports.try_for_each(|port| self.check_length(port, lane.templates.longest()))?;
        self.up().map_err(|e| match e {
            TrialError::Down { port, reason } => TrialError::NotUp { port, reason },
            e => e,
        })
    }

    fn up(&self) -> Result<(), TrialError> {
        let down = self.places.iter().find_map(|place| match place.port.state() {
            PortState::Down(reason) => Some(TrialError::Down { port: place.name.clone(), reason }),
            _ => None,
        });
        down.map_or(Ok(()), Err)
    }

    /// Runs a trial.
    ///
    /// # Errors
    /// [`TrialError`]; frames not sent yet are freed.
    pub fn run(&mut self, trial: &mut Trial<'_>) -> Result<Vec<LaneResult>, TrialError> {
        trial.lanes.iter().try_for_each(|lane| self.check(lane))?;
        let first = self.first_stream(trial.lanes.len());
        let mut sources: Vec<_> = trial
            .lanes
            .iter()
            .map(|lane| self.places[lane.from].source.take().map(|source| (lane.from, source)))
            .collect();
        let mut run = Run::new(self, trial, first, &sources);
        let stop = AtomicBool::new(false);
        let (mut sent, mut outcome) = (vec![None; trial.lanes.len()], Ok(()));
        std::thread::scope(|scope| {
            let mut threads: Vec<_> = sources
                .iter_mut()
                .enumerate()
                .map(|(i, source)| {
                    let (_, source) = source.as_mut()?;
                    let lane = &trial.lanes[i];
                    let (templates, stream) = (lane.templates.clone(), first.wrapping_add(i as u16));
                    let task = Task { templates, stream, pps: lane.pps, length: lane.length(trial.length) };
                    let stop = &stop;
                    Some(scope.spawn(move || source.send(&task, stop)))
                })
                .collect();
            let waits = |threads: &[Option<std::thread::ScopedJoinHandle<'_, _>>]| {
                threads.iter().flatten().any(|thread| !thread.is_finished())
            };
            outcome = run.go(self, trial, |end| {
                if end {
                    stop.store(true, Ordering::Relaxed);
                }
                waits(&threads)
            });
            stop.store(true, Ordering::Relaxed);
            for (i, thread) in threads.iter_mut().enumerate() {
                let Some(thread) = thread.take() else { continue };
                match thread.join() {
                    Ok(Ok(figures)) => sent[i] = Some(figures),
                    Ok(Err(why)) if outcome.is_ok() => outcome = Err(TrialError::Source(why)),
                    Err(_) if outcome.is_ok() => outcome = Err(TrialError::Source("the generator panicked".into())),
                    _ => {}
                }
            }
        });
        for (port, source) in sources.into_iter().flatten() {
            self.places[port].source = Some(source);
        }
        outcome?;
        Ok(run.results(self, trial, &sent))
    }

    fn first_stream(&mut self, lanes: usize) -> u16 {
        let (first, lanes) = (self.stream, lanes as u16);
        self.stream = if first >= LEARNING - 2 * lanes { 0 } else { first + lanes };
        first
    }

    /// Frees every frame and closes the ports.
    pub fn close(&mut self) {
        self.closed = true;
        self.devices.iter_mut().for_each(|device| device.close(&mut self.bufs));
        self.places.iter_mut().for_each(|place| place.port.close(&mut self.bufs));
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !self.closed {
            self.close();
        }
    }
}

/// Returns the frames refused by the sending port, and those lost by the receiving one.
fn losses(bench: &Bench, lane: &Lane) -> [u64; 2] {
    let refused = bench.places[lane.from].port.counters().tx_refused.get();
    let lost = lane.to.map_or(0, |to| {
        let c = bench.places[to].port.counters();
        c.rx_no_buffer.get() + c.rx_ring_full.get()
    });
    [refused, lost]
}

/// Returns the frames that the sending port lost since `before` without offering them to the device: none if it passes
/// frames to the device itself.
fn lost_unsent(bench: &Bench, lane: &Lane, before: [u64; 2], source: Option<Sent>) -> u64 {
    if bench.places[lane.from].hands_over {
        return 0;
    }
    losses(bench, lane)[0].saturating_sub(before[0]) + source.map_or(0, |sent| sent.refused)
}

/// Change of a lane's rate.
#[derive(Clone, Copy)]
struct Changed {
    /// Time in nanoseconds.
    at: u64,
    /// Frames sent before.
    sent: u64,
    /// Rate offered before, in frames per second.
    pps: f64,
}

/// Returns the rate of `frames` in frames per second, given the nanoseconds from the first to the last. The duration of
/// the last frame itself is not part of that interval.
fn per_second(frames: u64, time: u64) -> f64 {
    if time == 0 { 0.0 } else { frames.saturating_sub(1) as f64 * 1e9 / time as f64 }
}

/// Frames of a lane.
struct Totals {
    frames: u64,
    plain: u64,
    received: u64,
    lost: u64,
    /// Frames that the sending port lost.
    unsent: u64,
}

/// Divides `lost`, a count of a port, in proportion to the losses of the port's lanes, and returns the share of the
/// lane that is marked. The shares add up to `lost`, or to all losses if those are fewer.
fn share(lost: u64, losses: impl Iterator<Item = (bool, u64)>) -> u64 {
    let (mut before, mut own, mut all) = (0, 0, 0);
    for (marked, loss) in losses {
        if marked {
            (before, own) = (all, loss);
        }
        all += loss;
    }
    let lost = u128::from(lost.min(all));
    let up_to = |n: u64| (lost * u128::from(n) / u128::from(all.max(1))) as u64;
    up_to(before + own) - up_to(before)
}

/// State of a running trial.
struct Run {
    first: u16,
    senders: Vec<Option<Sender>>,
    receivers: Vec<Receiver>,
    changes: Vec<Option<(u64, f64)>>,
    changed: Vec<Option<Changed>>,
    losses: Vec<[u64; 2]>,
    plain: Vec<u64>,
    /// For each port, true if it receives replayed frames.
    replayed: Vec<bool>,
    began: u64,
}

impl Run {
    fn new(bench: &Bench, trial: &Trial<'_>, first: u16, sources: &[Option<(usize, Box<dyn Source>)>]) -> Self {
        let sender = |(i, lane): (usize, &Lane)| {
            let frames = match (lane.length(trial.length), lane.pps) {
                (Length::Frames(frames), _) => frames,
                (Length::Time(ns), Some(pps)) => (pps * ns as f64 / 1e9).round().max(1.0) as u64,
                (Length::Time(_), None) => u64::MAX,
            };
            let pacer = Pacer::new(lane.pps, lane.burst, trial.catch_up);
            let stream = first.wrapping_add(i as u16);
            sources[i].is_none().then(|| Sender::new(lane.templates.clone(), stream, frames, pacer))
        };
        Self {
            first,
            senders: trial.lanes.iter().enumerate().map(sender).collect(),
            receivers: trial.lanes.iter().map(|_| Receiver::default()).collect(),
            changes: trial.lanes.iter().map(|lane| lane.change).collect(),
            changed: vec![None; trial.lanes.len()],
            losses: trial.lanes.iter().map(|lane| losses(bench, lane)).collect(),
            plain: bench.places.iter().map(|place| place.plain).collect(),
            replayed: (0..bench.places.len())
                .map(|port| trial.lanes.iter().any(|lane| lane.to == Some(port) && lane.templates.is_replay()))
                .collect(),
            began: now_ns(),
        }
    }

    /// Sends and receives until the end. `sources_run` returns whether sources still send; given true, it ends them.
    fn go(
        &mut self,
        bench: &mut Bench,
        trial: &mut Trial<'_>,
        mut sources_run: impl FnMut(bool) -> bool,
    ) -> Result<(), TrialError> {
        self.began = now_ns();
        let (mut check, mut done) = (self.began + CHECK, None);
        let (mut outcome, mut happened) = (Ok(()), false);
        let mut sources_done = !sources_run(false);
        loop {
            let now = now_ns();
            let mut sending = false;
            for (i, lane) in trial.lanes.iter().enumerate() {
                let Some(sender) = &mut self.senders[i] else { continue };
                if let Some((at, pps)) = self.changes[i]
                    && sender.sent >= at
                {
                    self.changes[i] = None;
                    let lost = lost_unsent(bench, lane, self.losses[i], None);
                    let before = per_second(sender.sent.saturating_sub(lost), sender.time());
                    self.changed[i] = Some(Changed { at: now, sent: sender.sent, pps: before });
                    sender.pacer.set_rate(now, Some(pps));
                }
                sender.turn(&mut bench.bufs, bench.places[lane.from].port.as_mut(), now);
                sending |= !sender.ended();
            }
            self.receive(bench, &trial.lanes);
            for place in &mut bench.places {
                place.port.housekeep(&mut bench.bufs);
            }
            bench.turn_devices();
            if trial.event.as_ref().is_some_and(|(at, _)| now - self.began >= *at)
                && let Some((_, event)) = trial.event.take()
            {
                event(&mut bench.devices, now);
                happened = true;
            }
            if now >= check {
                check = now + CHECK;
                // The port may be up again before all sources have ended: the first error counts.
                if outcome.is_ok() && !happened {
                    outcome = bench.up();
                }
                let over = |lane: &Lane| match trial.length {
                    Length::Time(time) => now - self.began >= time + if lane.pps.is_some() { GRACE } else { 0 },
                    Length::Frames(_) => false,
                };
                let stop = trial.stop.load(Ordering::Relaxed) || outcome.is_err();
                sources_done = !sources_run(stop);
                for (sender, lane) in self.senders.iter_mut().zip(&trial.lanes) {
                    if let Some(sender) = sender.as_mut().filter(|_| stop || over(lane)) {
                        sender.stop(&mut bench.bufs);
                    }
                }
                self.tell(trial, now);
            }
            match done {
                None if !sending && sources_done => done = Some(now),
                Some(done) if now - done >= trial.drain || outcome.is_err() => break,
                _ => {}
            }
        }
        self.senders.iter_mut().flatten().for_each(|sender| sender.stop(&mut bench.bufs));
        self.tell(trial, now_ns());
        outcome
    }

    fn tell(&self, trial: &mut Trial<'_>, now: u64) {
        let counts: Vec<_> = self
            .senders
            .iter()
            .zip(&self.receivers)
            .map(|(sender, receiver)| (sender.as_ref().map_or(0, |s| s.sent), receiver.order.received))
            .collect();
        (trial.progress)(now - self.began, &counts);
    }

    #[inline]
    fn receive(&mut self, bench: &mut Bench, lanes: &[Lane]) {
        for (port, place) in bench.places.iter_mut().enumerate() {
            let mut batch = Batch::new();
            if place.port.rx_burst(&mut bench.bufs, &mut batch) == 0 {
                continue;
            }
            let now = now_ns();
            let arena = bench.bufs.arena();
            for frame in batch.as_slice() {
                // A replayed frame may have a stamp, of the time when it was captured.
                let Some(stamp) = (!self.replayed[port]).then(|| find(arena.data(frame))).flatten() else {
                    place.plain += 1;
                    continue;
                };
                let lane = usize::from(stamp.stream.wrapping_sub(self.first));
                match (lanes.get(lane), self.receivers.get_mut(lane)) {
                    (Some(lane), Some(receiver)) if lane.to == Some(port) => receiver.see(stamp, now),
                    (Some(_), Some(receiver)) => receiver.misdirected += 1,
                    // Frame of an earlier trial, or a learning frame.
                    _ => {}
                }
            }
            bench.bufs.free(&mut batch);
        }
    }

    fn results(&self, bench: &Bench, trial: &Trial<'_>, sent: &[Option<Sent>]) -> Vec<LaneResult> {
        let totals = |(i, lane): (usize, &Lane)| {
            let frames = match (&self.senders[i], sent[i]) {
                (Some(sender), _) => sender.sent,
                (None, sent) => sent.map_or(0, |sent| sent.frames),
            };
            let plain = lane.to.map_or(0, |to| bench.places[to].plain - self.plain[to]);
            // Frames without a stamp are only counted.
            let received = if lane.templates.is_replay() { plain } else { self.receivers[i].order.received };
            let lost = if lane.to.is_some() { frames.saturating_sub(received) } else { 0 };
            let unsent = lost_unsent(bench, lane, self.losses[i], sent[i]);
            Totals { frames, plain, received, lost, unsent }
        };
        let totals: Vec<Totals> = trial.lanes.iter().enumerate().map(totals).collect();
        let lane = |(i, lane): (usize, &Lane)| {
            let receiver = &self.receivers[i];
            let Totals { frames, plain, received, lost, unsent } = totals[i];
            let lost_here = losses(bench, lane)[1].saturating_sub(self.losses[i][1]);
            let beside = trial.lanes.iter().zip(&totals).enumerate().filter(|(_, (other, _))| other.to == lane.to);
            let beside = beside.map(|(n, (_, totals))| (n == i, totals.lost.saturating_sub(totals.unsent)));
            let (time, behind) = match (&self.senders[i], sent[i]) {
                (Some(sender), _) => (sender.time(), sender.pacer.behind()),
                (None, sent) => sent.map_or((0, 0), |sent| (sent.time, sent.behind)),
            };
            let offered = frames.saturating_sub(unsent);
            let sent_pps = per_second(offered, time);
            let order = &receiver.order;
            let lost_by_tester = lost.min(unsent + share(lost_here, beside));
            let mut limits = vec![];
            // The rate of a few frames is not precise to a thousandth.
            let slow = lane.pps.is_some_and(|pps| frames > 1000 && per_second(frames, time) < pps * (1.0 - TOLERANCE));
            if lane.change.is_none() && slow || behind as f64 > time as f64 * TOLERANCE {
                limits.push(Limit::Generator);
            }
            limits.extend(
                [(unsent, Limit::Sender), (lost_here, Limit::Receiver)]
                    .iter()
                    .filter_map(|(n, limit)| (*n > 0).then_some(*limit)),
            );
            let arrived = receiver.first.map_or(0, |first| receiver.last - first);
            let span = self.senders[i].as_ref().and_then(|sender| sender.span);
            let gap_at_end = span.filter(|_| lane.to.is_some() && !lane.templates.is_replay()).map(|(first, last)| {
                let silent_from = receiver.first.map_or(first, |_| receiver.last);
                last.saturating_sub(silent_from) as f64 / 1e9
            });
            let recovery = self.changed[i].and_then(|Changed { at, sent: number, .. }| {
                let sender = self.senders[i].as_ref()?;
                let (pps, last) = (lane.change?.1, sender.span?.1);
                let lost = order.last_lost(frames).filter(|lost| *lost >= number);
                let after = lost.map_or(0.0, |lost| ((lost - number) as f64 / pps).min((last - at) as f64 / 1e9));
                Some(after)
            });
            LaneResult {
                from: bench.places[lane.from].name.clone(),
                to: lane.to.map(|to| bench.places[to].name.clone()),
                asked_pps: lane.pps,
                sent_pps,
                sent: frames,
                seconds: time as f64 / 1e9,
                received,
                received_pps: per_second(order.received, arrived),
                lost,
                lost_by_tester,
                loss_percent: (lost - lost_by_tester) as f64 * 100.0 / offered.max(1) as f64,
                duplicates: order.duplicates,
                reordered: order.reordered,
                displacement: order.displacement,
                misdirected: receiver.misdirected,
                plain,
                latency: receiver.latency(),
                longest_gap: receiver.gap.0 as f64 / 1e9,
                gap_at_end,
                behind_ms: behind as f64 / 1e6,
                pps_before_change: self.changed[i].map(|changed| changed.pps),
                recovery,
                limits,
            }
        };
        trial.lanes.iter().enumerate().map(lane).collect()
    }
}
