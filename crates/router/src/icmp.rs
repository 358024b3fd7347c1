//! How many ICMP errors may be sent.

use bywash_sync::clock;

/// A token bucket: `rate` errors a second, in bursts of up to a twentieth of that (RFC 1812 4.3.2.8, RFC 4443 2.4 f).
pub(crate) struct Limiter {
    ticks_per_token: u64,
    burst: u64,
    tokens: u64,
    last: u64,
}

impl Limiter {
    pub fn new(rate: u32) -> Self {
        let burst = (u64::from(rate) / 20).max(u64::from(rate.min(10)));
        let ticks_per_token = if rate == 0 { u64::MAX } else { clock::tsc_hz() / u64::from(rate) };
        Self { ticks_per_token: ticks_per_token.max(1), burst, tokens: burst, last: clock::tsc() }
    }

    /// Adds what has accrued by `now`.
    pub fn refill(&mut self, now: u64) {
        let new = now.saturating_sub(self.last) / self.ticks_per_token;
        if new > 0 {
            self.last += new * self.ticks_per_token;
            self.tokens = (self.tokens + new).min(self.burst);
        }
    }

    /// Takes one token, if there is one.
    pub fn take(&mut self) -> bool {
        let has = self.tokens > 0;
        self.tokens -= u64::from(has);
        has
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_burst() {
        let mut l = Limiter::new(1000);
        let start = l.last;
        assert_eq!((0..100).filter(|_| l.take()).count(), 50);
        l.refill(start + clock::tsc_hz() / 100);
        assert_eq!((0..100).filter(|_| l.take()).count(), 10);
        l.refill(start + clock::tsc_hz() * 100);
        assert_eq!((0..100).filter(|_| l.take()).count(), 50);
        let mut none = Limiter::new(0);
        none.refill(u64::MAX);
        assert!(!none.take());
    }
}
