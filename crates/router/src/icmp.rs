//! Rate limits for ICMP errors.
//!
//! The limits follow Linux (net/ipv4/icmp.c, net/ipv6/icmp.c): one for each destination (icmp_ratelimit), so that a
//! destination that provokes errors uses up only its own share, and one for all together (icmp_msgs_per_sec). Path MTU
//! discovery depends on "fragmentation needed" and "packet too big", which Linux does not limit; here they have a
//! budget of their own.

use bywash_sync::clock;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;

/// A token bucket of `rate` errors per second, in bursts of up to a twentieth of that but at least ten (RFC 1812
/// 4.3.2.8, RFC 4443 2.4 f).
struct Limiter {
    ticks_per_token: u64,
    burst: u64,
    tokens: u64,
    last: u64,
}

impl Limiter {
    fn new(rate: u32) -> Self {
        let burst = (u64::from(rate) / 20).max(u64::from(rate.min(10)));
        let ticks_per_token = if rate == 0 { u64::MAX } else { clock::tsc_hz() / u64::from(rate) };
        Self { ticks_per_token: ticks_per_token.max(1), burst, tokens: burst, last: clock::tsc() }
    }

    /// Adds the tokens accrued by `now`.
    fn refill(&mut self, now: u64) {
        let new = now.saturating_sub(self.last) / self.ticks_per_token;
        if new > 0 {
            self.last += new * self.ticks_per_token;
            self.tokens = (self.tokens + new).min(self.burst);
        }
    }

    /// Takes one token, if there is one.
    fn take(&mut self) -> bool {
        let has = self.tokens > 0;
        self.tokens -= u64::from(has);
        has
    }
}

/// Class of an error for rate limiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum About {
    /// A packet was too big: path MTU discovery.
    Size,
    /// Anything else.
    Other,
}

impl About {
    /// Returns the interval in microseconds between errors to a destination, and the number of errors allowed at once
    /// after a pause.
    fn pace(self, to: IpAddr) -> (u64, u64) {
        match (self, to) {
            (Self::Size, _) => (2_000, 100),
            // icmp_ratelimit and XRLIM_BURST_FACTOR.
            (Self::Other, IpAddr::V4(_)) => (1_000_000, 6),
            // Linux allows a /64 route four times the rate of a single host.
            (Self::Other, IpAddr::V6(_)) => (250_000, 6),
        }
    }
}

/// Number of destinations remembered; beyond it, those without an error for longest are forgotten.
const DESTINATIONS: usize = 1024;
/// Slots in which a destination may be stored.
const WAYS: usize = 4;

/// Rate limit state of a destination: the time it has not used up, in ticks.
#[derive(Clone, Copy, Default)]
struct Account {
    key: u64,
    last: u64,
    saved: u64,
}

/// Limits of one worker. Does not allocate after creation.
pub(crate) struct Limits {
    size: Limiter,
    other: Limiter,
    accounts: Vec<Account>,
    hasher: RandomState,
}

impl Limits {
    /// Creates limits of `rate` errors per second, and as many about packets that are too big.
    pub fn new(rate: u32) -> Self {
        let accounts = vec![Account::default(); DESTINATIONS];
        Self { size: Limiter::new(rate), other: Limiter::new(rate), accounts, hasher: RandomState::new() }
    }

    /// Adds the tokens accrued by `now`.
    pub fn refill(&mut self, now: u64) {
        self.size.refill(now);
        self.other.refill(now);
    }

    /// Returns whether an error may be sent to `to`; if so, it counts as sent. A destination over its limit takes
    /// nothing from the others.
    pub fn allow(&mut self, to: IpAddr, about: About, now: u64) -> bool {
        self.take(to, about, about.pace(to), now)
    }

    /// Returns whether the kernel may be given a packet that it answers with an error to `to`. The kernel has its own
    /// limits for each destination; this one only keeps one destination from using up the whole rate.
    pub fn allow_kernel(&mut self, to: IpAddr, about: About, now: u64) -> bool {
        // Half of the default rate, and less than half of a burst.
        self.take(to, about, (2_000, 20), now)
    }

    fn take(&mut self, to: IpAddr, about: About, (pace, burst): (u64, u64), now: u64) -> bool {
        let pace = clock::us_to_ticks(pace);
        let (account, saved) = self.account(self.hasher.hash_one((to, about, pace)), now, pace * burst);
        let all = if about == About::Size { &mut self.size } else { &mut self.other };
        let allowed = saved >= pace && all.take();
        self.accounts[account].saved = if allowed { saved - pace } else { saved };
        allowed
    }

    /// Returns the slot of a destination and the time it has saved by `now`, at most `most`.
    fn account(&mut self, key: u64, now: u64, most: u64) -> (usize, u64) {
        let set = key as usize % (DESTINATIONS / WAYS) * WAYS;
        let ways = &mut self.accounts[set..set + WAYS];
        let known = ways.iter().position(|account| account.key == key);
        let oldest = || (0..WAYS).min_by_key(|way| ways[*way].last).unwrap_or(0);
        let way = known.unwrap_or_else(oldest);
        let account = &mut ways[way];
        let saved = match known {
            Some(_) => (account.saved + now.saturating_sub(account.last)).min(most),
            None => most,
        };
        (account.key, account.last) = (key, now);
        (set + way, saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

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

    fn host(n: u32) -> IpAddr {
        Ipv4Addr::from(n).into()
    }

    #[test]
    fn a_destination_uses_up_its_own_share() {
        let mut limits = Limits::new(1000);
        let now = clock::tsc();
        let flood = (0..1000).filter(|_| limits.allow(host(1), About::Other, now)).count();
        assert_eq!(flood, 6);
        assert!(limits.allow(host(2), About::Other, now));
        assert!(limits.allow(Ipv6Addr::LOCALHOST.into(), About::Other, now));
        let later = |us| now + clock::us_to_ticks(us);
        limits.refill(later(1_100_000));
        assert!(limits.allow(host(1), About::Other, later(1_100_000)));
        assert!(!limits.allow(host(1), About::Other, later(1_100_000)));
    }

    #[test]
    fn path_mtu_discovery_has_a_budget_of_its_own() {
        let mut limits = Limits::new(1000);
        let now = clock::tsc();
        let others = (0..10_000).filter(|n| limits.allow(host(*n), About::Other, now)).count();
        assert_eq!(others, 50);
        assert!(limits.allow(host(7), About::Size, now));
        // A destination has a separate share for them too, even after it has provoked other errors.
        let mut limits = Limits::new(1000);
        assert_eq!((0..100).filter(|_| limits.allow(host(7), About::Other, now)).count(), 6);
        assert_eq!((0..100).filter(|_| limits.allow(host(7), About::Size, now)).count(), 50);
        let mut none = Limits::new(0);
        assert!(!none.allow(host(1), About::Size, now));
    }
}
