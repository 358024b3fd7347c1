//! Pacing of frames.

/// Schedules frames at an exact rate, by a clock read by the caller.
///
/// Frames are due at fixed times relative to the first, so that rounding errors do not accumulate. A late caller may
/// send the frames that have become due at once, up to a limit; beyond it, the schedule moves, and the delay is
/// recorded as the generator's, so that it is not attributed to the device.
#[derive(Clone, Debug)]
pub struct Pacer {
    /// Rate in frames per nanosecond; `None`: always due.
    rate: Option<f64>,
    burst: u64,
    catch_up: u64,
    /// Time at which the first frame was due.
    origin: Option<u64>,
    /// Frames sent since.
    gone: u64,
    behind: u64,
}

impl Pacer {
    /// Creates a pacer for `pps` frames per second on average, `burst` at a time back to back. Delays of up to
    /// `catch_up` nanoseconds are made up for.
    pub fn new(pps: Option<f64>, burst: u64, catch_up: u64) -> Self {
        Self { rate: pps.map(|pps| pps / 1e9), burst: burst.max(1), catch_up, origin: None, gone: 0, behind: 0 }
    }

    /// Returns how many frames may be sent at `now`, in nanoseconds of a monotonic clock.
    #[inline]
    pub fn due(&mut self, now: u64) -> u64 {
        let origin = *self.origin.get_or_insert(now);
        let Some(rate) = self.rate else { return u64::MAX };
        let bursts = (now.saturating_sub(origin) as f64 * rate / self.burst as f64) as u64 + 1;
        let due = (bursts * self.burst).saturating_sub(self.gone);
        let most = self.burst + (self.catch_up as f64 * rate) as u64;
        if due > most {
            let late = ((due - most) as f64 / rate) as u64;
            self.origin = Some(origin + late);
            self.behind += late;
            return most;
        }
        due
    }

    /// Records that `n` frames were sent.
    #[inline]
    pub fn spend(&mut self, n: u64) {
        self.gone += n;
    }

    /// Changes the rate from now on.
    pub fn set_rate(&mut self, now: u64, pps: Option<f64>) {
        (self.rate, self.origin, self.gone) = (pps.map(|pps| pps / 1e9), Some(now), 0);
    }

    /// Returns the nanoseconds by which the schedule has moved because of delays that were not made up for.
    pub fn behind(&self) -> u64 {
        self.behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls the pacer every `step` nanoseconds for `time` nanoseconds; returns the frames sent.
    fn run(pacer: &mut Pacer, from: u64, time: u64, step: u64) -> u64 {
        let mut sent = 0;
        for now in (from..from + time).step_by(step as usize) {
            let n = pacer.due(now);
            pacer.spend(n);
            sent += n;
        }
        sent
    }

    #[test]
    fn exact_over_an_hour_of_odd_times() {
        let mut pacer = Pacer::new(Some(100_000.0), 1, 1_000_000);
        let sent = run(&mut pacer, 12345, 3_600_000_000_000, 7_777);
        assert!(sent.abs_diff(360_000_000) <= 1, "{sent}");
        assert_eq!(pacer.behind(), 0);
    }

    #[test]
    fn bursts_are_whole() {
        let mut pacer = Pacer::new(Some(1_000_000.0), 32, 0);
        assert_eq!((pacer.due(0), pacer.due(31_999)), (32, 32));
        pacer.spend(32);
        assert_eq!((pacer.due(31_999), pacer.due(32_000)), (0, 32));
    }

    #[test]
    fn what_is_too_late_is_given_up_and_reported() {
        let mut pacer = Pacer::new(Some(1_000_000.0), 1, 100_000);
        assert_eq!(pacer.due(0), 1);
        pacer.spend(1);
        // A millisecond late: a hundred frames at once, and 900 us are given up.
        let n = pacer.due(1_000_000);
        assert_eq!(n, 101);
        pacer.spend(n);
        assert!(pacer.behind().abs_diff(899_000) < 1000, "{}", pacer.behind());
        assert_eq!(pacer.due(1_000_000), 0);
        assert_eq!(run(&mut pacer, 1_000_000, 1_000_000, 10_000), 990);
    }

    #[test]
    fn another_rate() {
        let mut pacer = Pacer::new(Some(1000.0), 1, 0);
        run(&mut pacer, 0, 1_000_000_000, 1000);
        pacer.set_rate(1_000_000_000, Some(500.0));
        assert_eq!(run(&mut pacer, 1_000_000_000, 1_000_000_000, 1000), 500);
        assert_eq!(Pacer::new(None, 1, 0).due(5), u64::MAX);
    }
}
