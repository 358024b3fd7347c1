//! What is told from the frames that came.

use crate::order::Order;
use crate::stamp::Stamp;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest delay told apart, in nanoseconds: a minute.
const LONGEST: u64 = 60_000_000_000;
/// Points of a delay curve, in percent.
const CURVE: [f64; 17] =
    [0.0, 1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// One stream as it arrives.
pub struct Receiver {
    /// By sequence numbers.
    pub order: Order,
    /// Bytes of frames, without FCS.
    pub bytes: u64,
    /// Frames from the future: sender and receiver do not share a clock.
    pub unclocked: u64,
    /// Frames that came by a port where they were not expected.
    pub astray: u64,
    /// When the first and the last came.
    pub first: Option<u64>,
    /// When the last came.
    pub last: u64,
    /// The longest time without a frame, between the first and the last, and when it began.
    pub gap: (u64, u64),
    delays: Option<Histogram<u64>>,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            order: Order::default(),
            bytes: 0,
            unclocked: 0,
            astray: 0,
            first: None,
            last: 0,
            gap: (0, 0),
            // The bounds are in order and three digits possible: it is there.
            delays: Histogram::new_with_bounds(1, LONGEST, 3).ok(),
        }
    }
}

impl Receiver {
    /// A frame of this stream came at `now`.
    #[inline]
    pub fn see(&mut self, stamp: Stamp, len: usize, now: u64) {
        if !self.order.see(stamp.sequence) {
            self.astray += 1;
            return;
        }
        self.bytes += len as u64;
        match (now.checked_sub(stamp.time), &mut self.delays) {
            (Some(delay), Some(delays)) => delays.saturating_record(delay),
            _ => self.unclocked += 1,
        }
        if self.first.is_none() {
            self.first = Some(now);
        } else if now.saturating_sub(self.last) > self.gap.0 {
            self.gap = (now - self.last, self.last);
        }
        self.last = now;
    }

    /// The delays.
    pub fn latency(&self) -> Option<Latency> {
        let (h, us) = (self.delays.as_ref()?, |ns: u64| ns as f64 / 1e3);
        let at = |percent| us(h.value_at_percentile(percent));
        (!h.is_empty()).then(|| Latency {
            frames: h.len(),
            min_us: us(h.min()),
            mean_us: h.mean() / 1e3,
            stddev_us: h.stdev() / 1e3,
            p50_us: at(50.0),
            p90_us: at(90.0),
            p99_us: at(99.0),
            p99_9_us: at(99.9),
            p99_99_us: at(99.99),
            max_us: us(h.max()),
            curve: CURVE.iter().map(|percent| (*percent, at(*percent))).collect(),
        })
    }
}

/// Delays from handing a frame to the sending port until it was found in the receiving one, in microseconds.
#[derive(Clone, Debug, Serialize, serde::Deserialize)]
pub struct Latency {
    /// Frames measured.
    pub frames: u64,
    /// The shortest.
    pub min_us: f64,
    /// The mean.
    pub mean_us: f64,
    /// Standard deviation.
    pub stddev_us: f64,
    /// Half took no longer.
    pub p50_us: f64,
    /// 90 % took no longer.
    pub p90_us: f64,
    /// 99 % took no longer.
    pub p99_us: f64,
    /// 99.9 % took no longer.
    pub p99_9_us: f64,
    /// 99.99 % took no longer.
    pub p99_99_us: f64,
    /// The longest.
    pub max_us: f64,
    /// Percent of the frames, and what they took at most.
    pub curve: Vec<(f64, f64)>,
}
