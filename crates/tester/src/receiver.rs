//! Measurements on received frames.

use crate::order::Order;
use crate::stamp::Stamp;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Longest delay recorded, in nanoseconds: one minute.
const LONGEST: u64 = 60_000_000_000;
/// Percentiles at which the delay curve is reported.
const CURVE: [f64; 17] =
    [0.0, 1.0, 5.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0, 99.0, 99.9, 99.99, 100.0];

/// Receiving side of one stream.
pub struct Receiver {
    /// Statistics from sequence numbers.
    pub order: Order,
    /// Frames received by another port, or with an impossible sequence number.
    pub misdirected: u64,
    /// Arrival time of the first frame, in nanoseconds.
    pub first: Option<u64>,
    /// Arrival time of the last frame, in nanoseconds.
    pub last: u64,
    /// Longest time without a frame between the first and the last, and when it began, in nanoseconds.
    pub gap: (u64, u64),
    delays: Option<Histogram<u64>>,
}

impl Default for Receiver {
    fn default() -> Self {
        Self {
            order: Order::default(),
            misdirected: 0,
            first: None,
            last: 0,
            gap: (0, 0),
            // Cannot fail: the bounds are in order and three digits are supported.
            delays: Histogram::new_with_bounds(1, LONGEST, 3).ok(),
        }
    }
}

impl Receiver {
    /// Records a frame of this stream that arrived at `now`.
    #[inline]
    pub fn see(&mut self, stamp: Stamp, now: u64) {
        if !self.order.see(stamp.sequence) {
            self.misdirected += 1;
            return;
        }
        // A damaged stamp can be of a later time.
        if let (Some(delay), Some(delays)) = (now.checked_sub(stamp.time), &mut self.delays) {
            delays.saturating_record(delay);
        }
        if self.first.is_none() {
            self.first = Some(now);
        } else if now.saturating_sub(self.last) > self.gap.0 {
            self.gap = (now - self.last, self.last);
        }
        self.last = now;
    }

    /// Returns the delays; `None` if none was measured.
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

/// Delays from passing a frame to the sending port until reading it from the receiving one, in microseconds.
#[derive(Clone, Debug, Serialize, serde::Deserialize)]
pub struct Latency {
    /// Frames measured.
    pub frames: u64,
    /// Minimum.
    pub min_us: f64,
    /// Mean.
    pub mean_us: f64,
    /// Standard deviation.
    pub stddev_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 90th percentile.
    pub p90_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p99_9_us: f64,
    /// 99.99th percentile.
    pub p99_99_us: f64,
    /// Maximum.
    pub max_us: f64,
    /// Percentiles: percentage of frames, and their longest delay.
    pub curve: Vec<(f64, f64)>,
}
