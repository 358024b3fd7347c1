//! Choice of an OFDM channel for each frame, so that the channels' shares follow their rates.

use crate::codeword::Codewords;
use bywash_sync::bucket::Rate;
use bywash_sync::clock;

/// Maximum number of channels: a mask of them has 64 bits.
pub const CHANNELS_MAX: usize = 64;

/// Maximum idle time of a channel, in microseconds, that it may catch up on.
const CATCH_UP_US: u64 = 50;

/// Channels of a lower MAC. Times are TSC ticks.
pub struct Channels {
    channels: Vec<Channel>,
    /// Minimum load that a channel is assumed to have, less [`catch_up`](Self::catch_up): a channel that was busy while
    /// others were chosen has no more than that to make up for.
    load: u64,
    catch_up: u64,
}

struct Channel {
    /// Time at which everything sent on the channel will have left; 0 if the channel has no limit.
    free_at: u64,
    /// Time that everything sent on the channel takes at its rate.
    load: u64,
    /// Rate in bytes.
    rate: Rate,
    limited: bool,
    codewords: Codewords,
}

impl Channels {
    /// Creates idle channels with these rates in bits per second, at most [`CHANNELS_MAX`] of them; 0 means no limit. A
    /// channel without limit has the share of the fastest channel with one. The rates are those of a profile with
    /// `best` bits per symbol; 0 without profiles. `hz` is the TSC frequency.
    ///
    /// # Panics
    /// Panics if there are more channels.
    pub fn new(rates: &[u64], best: u8, hz: u64) -> Self {
        assert!(rates.len() <= CHANNELS_MAX, "{} channels", rates.len());
        let ticks = 8 * hz;
        // A tick per byte if no channel has a limit.
        let fastest = rates.iter().copied().max().filter(|rate| *rate > 0).unwrap_or(ticks);
        let channel = |&rate: &u64| Channel {
            free_at: 0,
            load: 0,
            // Bits per second are bytes per 8 seconds. Nothing asks whether frames conform, so the depth is unused.
            rate: Rate::new(if rate == 0 { fastest } else { rate }, ticks, 0),
            limited: rate > 0,
            codewords: Codewords::new(best),
        };
        Self {
            channels: rates.iter().map(channel).collect(),
            load: 0,
            catch_up: (u128::from(hz) * u128::from(CATCH_UP_US) / 1_000_000) as u64,
        }
    }

    /// Creates idle channels with these rates, of a profile with `best` bits per symbol, on this machine's clock.
    pub fn here(rates: &[u64], best: u8) -> Self {
        Self::new(rates, best, clock::tsc_hz())
    }

    /// Returns the free channel with the least load, apart from those in the bit mask `but`. `None` if all are busy.
    #[inline]
    pub fn free(&self, now: u64, but: u64) -> Option<usize> {
        let free = self.channels.iter().enumerate();
        let free = free.filter(|(index, channel)| channel.free_at <= now && but >> index & 1 == 0);
        free.min_by_key(|(_, channel)| self.load(channel)).map(|(index, _)| index)
    }

    /// Adds a frame of `len` bytes, of a profile with `bits` bits per symbol, to the channel with this index. Returns
    /// the number of codewords that it begins.
    #[inline]
    pub fn send(&mut self, index: usize, len: usize, bits: u8, now: u64) -> u32 {
        let load = self.load(&self.channels[index]);
        self.load = self.load.max(load);
        let channel = &mut self.channels[index];
        let idle = channel.limited && now.saturating_sub(channel.free_at) > self.catch_up;
        let (bytes, begun) = channel.codewords.cost(len, bits, idle);
        let cost = channel.rate.cost(bytes) as u64;
        channel.load = load + cost;
        if channel.limited {
            channel.free_at = channel.free_at.max(now.saturating_sub(self.catch_up)) + cost;
        }
        begun
    }

    #[inline]
    fn load(&self, channel: &Channel) -> u64 {
        channel.load.max(self.load.saturating_sub(self.catch_up))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_sync::random::splitmix64;

    const HZ: u64 = 2_500_000_000;

    /// Sends `frames` frames of the cable mix from `turn` on at `rate` bits per second as channels are free, in turns
    /// of a microsecond. Returns the bytes of each channel and the next turn.
    fn send(channels: &mut Channels, turn: u64, rate: u64, frames: u64) -> (Vec<u64>, u64) {
        send_coded(channels, turn, rate, frames, 0)
    }

    fn send_coded(channels: &mut Channels, mut turn: u64, rate: u64, frames: u64, bits: u8) -> (Vec<u64>, u64) {
        let (first, mut sent) = (turn, 0);
        let mut bytes = vec![0u64; channels.channels.len()];
        while sent < frames {
            turn += 1;
            let now = turn * HZ / 1_000_000;
            while sent < frames
                && bytes.iter().sum::<u64>() * 8_000_000 < (turn - first) * rate
                && let Some(index) = channels.free(now, 0)
            {
                let len = match splitmix64(7, sent) % 100 {
                    0..3 => 68,
                    3 => 932,
                    _ => 1520,
                };
                channels.send(index, len, bits, now);
                bytes[index] += len as u64;
                sent += 1;
            }
        }
        (bytes, turn)
    }

    /// Returns each channel's share of the bytes of 20,000 frames, and the rate of all.
    fn shares(rates: &[u64], rate: u64) -> (Vec<f64>, f64) {
        let (bytes, turns) = send(&mut Channels::new(rates, 0, HZ), 0, rate, 20_000);
        let all = bytes.iter().sum::<u64>() as f64;
        (bytes.iter().map(|n| *n as f64 / all).collect(), all * 8e6 / turns as f64)
    }

    #[test]
    fn shares_follow_rates_within_1_percent() {
        const DIFFERENT: [u64; 4] = [1_890_000_000, 960_000_000, 480_000_000, 240_000_000];
        let cases: [(&[u64], [u64; 4]); 4] = [
            (&[0; 4], [1; 4]),
            (&[1_890_000_000; 4], [1; 4]),
            (&DIFFERENT, DIFFERENT),
            // A channel without limit counts as the fastest with one.
            (&[0, 1_890_000_000, 960_000_000, 480_000_000], [1_890, 1_890, 960, 480]),
        ];
        for (rates, parts) in cases {
            let all: u64 = rates.iter().sum();
            let unlimited = rates.contains(&0);
            for (saturated, rate) in [(false, 500_000_000), (false, all * 9 / 10), (true, 2 * all)] {
                if rate == 0 || unlimited && rate > 500_000_000 {
                    continue;
                }
                let (shares, reached) = shares(rates, rate);
                for (share, part) in shares.iter().zip(parts) {
                    let expected = part as f64 / parts.iter().sum::<u64>() as f64;
                    assert!((share / expected - 1.0).abs() < 0.01, "{rates:?} at {rate}: {shares:?}");
                }
                let expected = if saturated { all } else { rate } as f64;
                assert!((reached / expected - 1.0).abs() < 0.01, "{rates:?} at {rate}: {reached}");
            }
        }
    }

    #[test]
    fn a_busy_channel_gains_no_credit() {
        let mut channels = Channels::new(&[0, 1_890_000_000], 0, HZ);
        // At 20 Gbit/s the channel with a limit is nearly always busy.
        let (bytes, turn) = send(&mut channels, 0, 20_000_000_000, 20_000);
        assert!(bytes[0] > 9 * bytes[1], "{bytes:?}");
        let (bytes, _) = send(&mut channels, turn, 500_000_000, 1000);
        assert!((0.9..1.1).contains(&(bytes[0] as f64 / bytes[1] as f64)), "{bytes:?}");
    }

    /// At 10 bits per symbol a channel carries 10 twelfths of its rate, less what the pointers to codewords take more.
    #[test]
    fn a_profile_with_fewer_bits_carries_less() {
        for (bits, part) in [(12, 1.0), (10, 0.8342), (4, 0.3346)] {
            let rates = [1_890_000_000; 4];
            let mut channels = Channels::new(&rates, 12, HZ);
            let (bytes, turns) = send_coded(&mut channels, 0, 2 * 4 * 1_890_000_000, 20_000, bits);
            let reached = bytes.iter().sum::<u64>() as f64 * 8e6 / turns as f64 / (4.0 * 1.89e9);
            assert!((reached / part - 1.0).abs() < 0.01, "{bits} bits: {reached}");
        }
    }
}
