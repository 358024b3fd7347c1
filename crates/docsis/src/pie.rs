//! DOCSIS-PIE: active queue management by early drops that keep the queueing delay near a target (RFC 8034).
//!
//! The delay is estimated from the length of the queue and the rates to which its flow is shaped, as the RFC does, and
//! not measured.

use bywash_sync::random::splitmix64;

/// Constants of RFC 8034, appendix A. Times are in seconds, sizes in bytes.
mod constants {
    /// Time between two updates of the drop probability.
    pub const INTERVAL: f64 = 0.016;
    /// Weights of the delay's distance from the target and of its change, per second.
    pub const A: f64 = 0.25;
    pub const B: f64 = 2.5;
    /// Time for which a queue that has just become active drops nothing.
    pub const MAX_BURST: f64 = 0.142;
    /// Time after which a quiet queue becomes inactive.
    pub const BURST_RESET_TIMEOUT: f64 = 1.0;
    /// Mean and least size of a packet.
    pub const MEAN_PKTSIZE: f64 = 1024.0;
    pub const MIN_PKTSIZE: f64 = 64.0;
    /// Highest probability of a drop; and bounds of the sum of probabilities since the last drop: below the first no
    /// packet is dropped, from the second on the next one is.
    pub const PROB_LOW: f64 = 0.85;
    pub const PROB_HIGH: f64 = 8.5;
    /// Delay below which the probability decays, and delay above which it grows fast.
    pub const LATENCY_LOW: f64 = 0.005;
    pub const LATENCY_HIGH: f64 = 0.2;
    /// Part of the buffer from which on the queue becomes active.
    pub const ACTIVE_FROM: f64 = 1.0 / 3.0;
    /// Divisors of a change of the probability, each for probabilities below a bound.
    pub const TUNING: [(f64, f64); 8] = [
        (0.000001, 2048.0),
        (0.00001, 512.0),
        (0.0001, 128.0),
        (0.001, 32.0),
        (0.01, 8.0),
        (0.1, 2.0),
        (1.0, 0.5),
        (10.0, 0.125),
    ];
    /// Divisor above the last bound.
    pub const TUNING_ABOVE: f64 = 0.03125;
    /// Greatest increase, once the probability is 0.1 or more; also the increase beyond [`LATENCY_HIGH`].
    pub const STEP: f64 = 0.02;
    /// Factor of the decay.
    pub const DECAY: f64 = 0.98;
}
use constants::*;
pub(crate) use constants::{INTERVAL, MEAN_PKTSIZE};

/// Parameters of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PieConfig {
    /// Target of the delay in milliseconds.
    pub latency_ms: u32,
    /// Sustained rate in bits per second.
    pub sustained: u64,
    /// Peak rate in bits per second; 0 means no limit.
    pub peak: u64,
    /// Size of the buffer in bytes.
    pub buffer: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No drops until the queue reaches a third of its buffer.
    Inactive,
    /// The delay was low for a while.
    Quiescent,
    Active,
}

/// State of one queue.
#[derive(Clone, Debug)]
pub struct Pie {
    target: f64,
    /// Rates in bytes per second.
    sustained: f64,
    peak: f64,
    buffer: f64,
    state: State,
    drop_prob: f64,
    accu_prob: f64,
    qdelay_old: f64,
    burst_allowance: f64,
    burst_reset: f64,
    /// Number of random numbers drawn.
    drawn: u64,
    seed: u64,
}

/// Contents of a queue and of its flow's bucket, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Bytes queued.
    pub queued: usize,
    /// Tokens of the sustained rate.
    pub tokens: f64,
}

impl Pie {
    /// Creates the state of an empty queue. `seed` selects the random numbers.
    pub fn new(config: &PieConfig, seed: u64) -> Self {
        let peak = if config.peak == 0 { f64::INFINITY } else { config.peak as f64 / 8.0 };
        Self {
            target: f64::from(config.latency_ms) / 1000.0,
            sustained: config.sustained as f64 / 8.0,
            peak,
            buffer: config.buffer as f64,
            state: State::Inactive,
            drop_prob: 0.0,
            accu_prob: 0.0,
            qdelay_old: 0.0,
            burst_allowance: 0.0,
            burst_reset: 0.0,
            drawn: 0,
            seed,
        }
    }

    /// Returns whether an arriving packet of `len` bytes is dropped (appendix A.2.1).
    pub fn drops(&mut self, len: u32, load: Load) -> bool {
        let queued = load.queued as f64;
        if self.state == State::Inactive {
            if queued < self.buffer * ACTIVE_FROM {
                return false;
            }
            self.state = State::Active;
            (self.drop_prob, self.accu_prob, self.burst_reset) = (0.0, 0.0, 0.0);
            self.qdelay_old = self.delay(load);
            self.burst_allowance = MAX_BURST;
        }
        if self.burst_allowance > 0.0 {
            return false;
        }
        if self.drop_prob == 0.0 {
            self.accu_prob = 0.0;
        }
        let probability = (self.drop_prob * f64::from(len) / MEAN_PKTSIZE).min(PROB_LOW);
        self.accu_prob += probability;
        let low = self.qdelay_old < 0.5 * self.target && self.drop_prob < 0.2;
        if low || queued <= 2.0 * MEAN_PKTSIZE || self.accu_prob < PROB_LOW {
            return false;
        }
        if self.accu_prob < PROB_HIGH && self.random() > probability {
            return false;
        }
        self.accu_prob = 0.0;
        self.state = State::Active;
        true
    }

    /// Updates the drop probability; to be called once an interval (appendix A.2.2).
    pub fn update(&mut self, load: Load) {
        let delay = self.delay(load);
        if self.burst_allowance > 0.0 {
            self.drop_prob = 0.0;
            self.burst_allowance = (self.burst_allowance - INTERVAL).max(0.0);
        } else {
            let change = A * (delay - self.target) + B * (delay - self.qdelay_old);
            let divisor = TUNING.iter().find(|(bound, _)| self.drop_prob < *bound);
            let mut change = change / divisor.map_or(TUNING_ABOVE, |(_, divisor)| *divisor);
            if self.drop_prob >= 0.1 {
                change = change.min(STEP);
            }
            self.drop_prob += change;
            if delay < LATENCY_LOW && self.qdelay_old < LATENCY_LOW {
                self.drop_prob *= DECAY;
            } else if delay > LATENCY_HIGH {
                self.drop_prob += STEP;
            }
            self.drop_prob = self.drop_prob.clamp(0.0, PROB_LOW * MEAN_PKTSIZE / MIN_PKTSIZE);
        }
        let low = |delay: f64| delay < 0.5 * self.target;
        let quiet = low(delay) && low(self.qdelay_old) && self.drop_prob == 0.0 && self.burst_allowance == 0.0;
        match self.state {
            State::Active if quiet => (self.state, self.burst_reset) = (State::Quiescent, 0.0),
            State::Quiescent if quiet => {
                self.burst_reset += INTERVAL;
                if self.burst_reset > BURST_RESET_TIMEOUT {
                    self.state = State::Inactive;
                }
            }
            State::Quiescent => self.burst_reset = 0.0,
            State::Active | State::Inactive => {}
        }
        self.qdelay_old = delay;
    }

    /// Returns whether updates with an empty queue change nothing.
    pub fn at_rest(&self) -> bool {
        self.state == State::Inactive && self.drop_prob == 0.0 && self.qdelay_old == 0.0
    }

    /// Returns the time that a packet arriving now would wait, in seconds: the bucket's tokens are sent at the peak
    /// rate, the remainder at the sustained rate.
    fn delay(&self, load: Load) -> f64 {
        let queued = load.queued as f64;
        let at_once = queued.min(load.tokens);
        at_once / self.peak + (queued - at_once) / self.sustained
    }

    fn random(&mut self) -> f64 {
        self.drawn += 1;
        (splitmix64(self.seed, self.drawn) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes packets of 1,000 bytes at `arrival` bytes per second for `seconds` through a queue that drains at the
    /// sustained rate. Returns the delays at the updates, and the numbers of packets and drops.
    fn run(pie: &mut Pie, queued: &mut f64, arrival: f64, seconds: f64) -> (Vec<f64>, usize, usize) {
        let (rate, step) = (pie.sustained, 1000.0 / arrival);
        let (mut delays, mut packets, mut drops) = (vec![], 0, 0);
        let (mut time, mut next) = (0.0, INTERVAL);
        while time < seconds {
            time += step;
            *queued = (*queued - rate * step).max(0.0);
            if time >= next {
                pie.update(Load { queued: *queued as usize, tokens: 0.0 });
                delays.push(*queued / rate);
                next += INTERVAL;
            }
            packets += 1;
            if pie.drops(1000, Load { queued: *queued as usize, tokens: 0.0 }) {
                drops += 1;
            } else {
                *queued += 1000.0;
            }
        }
        (delays, packets, drops)
    }

    fn config() -> PieConfig {
        PieConfig { latency_ms: 10, sustained: 80_000_000, peak: 0, buffer: 300_000 }
    }

    #[test]
    fn the_delay_settles_at_its_target() {
        let (mut pie, mut queued) = (Pie::new(&config(), 7), 0.0);
        let (delays, packets, drops) = run(&mut pie, &mut queued, 12_500_000.0, 30.0);
        let late = &delays[delays.len() / 2..];
        let mean = late.iter().sum::<f64>() / late.len() as f64;
        assert!((0.008..0.012).contains(&mean), "{mean}");
        // A fifth of the packets is too much.
        let share = drops as f64 / packets as f64;
        assert!((0.17..0.23).contains(&share), "{share}");
    }

    #[test]
    fn nothing_is_dropped_below_the_rate_or_in_a_burst() {
        let (mut pie, mut queued) = (Pie::new(&config(), 7), 0.0);
        assert_eq!(run(&mut pie, &mut queued, 9_900_000.0, 5.0).2, 0);
        // A burst of less than 142 ms, although it fills a third of the buffer and more.
        assert_eq!(run(&mut pie, &mut queued, 12_500_000.0, 0.1).2, 0);
        assert!(queued > 200_000.0, "{queued}");
        assert_eq!(pie.state, State::Active);
        // A quiet second and a few intervals later the next burst has its allowance, too.
        assert_eq!(run(&mut pie, &mut queued, 2_000_000.0, 2.0).2, 0);
        assert_eq!(pie.state, State::Inactive);
        assert!(run(&mut pie, &mut queued, 25_000_000.0, 1.0).2 > 0);
    }

    /// Probabilities computed by hand from the formulas of appendix A.
    #[test]
    fn an_update_follows_the_formula() {
        let mut pie = Pie::new(&config(), 7);
        let load = |delay_ms: usize| Load { queued: delay_ms * 10_000, tokens: 0.0 };
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} is not {b}");
        // 0.25 (0.03 - 0.01) + 2.5 (0.03 - 0) = 0.08, over 2048.
        pie.update(load(30));
        near(pie.drop_prob, 0.08 / 2048.0);
        // 0.25 * 0.02 = 0.005, over 128, as the probability is below 0.0001.
        pie.update(load(30));
        near(pie.drop_prob, 0.08 / 2048.0 + 0.005 / 128.0);
        pie.drop_prob = 0.5;
        pie.update(load(30));
        near(pie.drop_prob, 0.5 + 0.005 / 0.5);
        // At most 0.02, and 0.02 more above 200 ms.
        pie.update(load(210));
        near(pie.drop_prob, 0.51 + 0.02 + 0.02);
        (pie.drop_prob, pie.qdelay_old) = (0.05, 0.0);
        pie.update(load(2));
        near(pie.drop_prob, (0.05 + (0.25 * -0.008 + 2.5 * 0.002) / 2.0) * 0.98);
        (pie.drop_prob, pie.qdelay_old) = (13.59, 0.2);
        pie.update(load(250));
        near(pie.drop_prob, 0.85 * 1024.0 / 64.0);
    }

    #[test]
    fn tokens_are_sent_at_the_peak_rate() {
        let pie = Pie::new(&PieConfig { peak: 160_000_000, ..config() }, 7);
        let delay = pie.delay(Load { queued: 50_000, tokens: 20_000.0 });
        assert!((delay - (0.001 + 0.003)).abs() < 1e-12, "{delay}");
        let at_once = Pie::new(&config(), 7).delay(Load { queued: 20_000, tokens: 20_000.0 });
        assert!(at_once == 0.0);
    }
}
