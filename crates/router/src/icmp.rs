//! Rate limits for ICMP errors.
//!
//! The limits follow Linux (net/ipv4/icmp.c, net/ipv6/icmp.c): one for each destination (icmp_ratelimit), so that a
//! destination that provokes errors uses up only its own share, and one for all together (icmp_msgs_per_sec). Path MTU
//! discovery depends on "fragmentation needed" and "packet too big", which Linux does not limit; here they have a
//! budget of their own.

use bywash_sync::bucket::{Bucket, Rate};
use bywash_sync::clock;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;

/// Creates a bucket of `rate` errors per second, in bursts of up to a twentieth of that but at least ten (RFC 1812
/// 4.3.2.8, RFC 4443 2.4 f).
fn bucket(rate: u32) -> Bucket {
    Bucket::new(Rate::new(rate.into(), clock::tsc_hz(), (rate / 20).max(rate.min(10)).into()))
}

/// Class of an error for rate limiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum About {
    /// A packet was too big: path MTU discovery.
    Size,
    /// Anything else.
    Other,
}

/// Pace of errors to one destination.
#[derive(Clone, Copy, Hash)]
enum Pace {
    Size,
    V4,
    V6,
    /// Errors that the kernel sends.
    Kernel,
}

impl Pace {
    /// Intervals in microseconds between errors to a destination, and numbers of errors allowed at once after a pause.
    const ALL: [(u64, u64); 4] = [
        (2_000, 100),
        // icmp_ratelimit and XRLIM_BURST_FACTOR.
        (1_000_000, 6),
        // Linux allows a /64 route four times the rate of a single host.
        (250_000, 6),
        // Half of the default rate, and less than half of a burst.
        (2_000, 20),
    ];
}

/// Number of destinations remembered; beyond it, those whose last error is longest ago are forgotten.
const DESTINATIONS: usize = 1024;
/// Slots in which a destination may be stored.
const WAYS: usize = 4;

/// Token bucket of a destination.
#[derive(Clone, Copy, Default)]
struct Account {
    key: u64,
    /// Time of the last error, sent or not.
    last: u64,
    full_at: u64,
}

/// Limits of one worker. Does not allocate after creation.
pub(crate) struct Limits {
    size: Bucket,
    other: Bucket,
    /// Rates of [`Pace::ALL`].
    paces: [Rate; Pace::ALL.len()],
    accounts: Vec<Account>,
    hasher: RandomState,
}

impl Limits {
    /// Creates limits of `rate` errors per second, and of as many again about packets that are too big.
    pub fn new(rate: u32) -> Self {
        let paces = Pace::ALL.map(|(interval, burst)| Rate::new(1_000_000, interval * clock::tsc_hz(), burst));
        let accounts = vec![Account::default(); DESTINATIONS];
        Self { size: bucket(rate), other: bucket(rate), paces, accounts, hasher: RandomState::new() }
    }

    /// Returns whether an error may be sent to `to`; if so, it counts as sent. A destination over its limit takes
    /// nothing from the others.
    pub fn allow(&mut self, to: IpAddr, about: About, now: u64) -> bool {
        let pace = match (about, to) {
            (About::Size, _) => Pace::Size,
            (About::Other, IpAddr::V4(_)) => Pace::V4,
            (About::Other, IpAddr::V6(_)) => Pace::V6,
        };
        self.take(to, about, pace, now)
    }

    /// Returns whether the kernel may be given a packet that it answers with an error to `to`. The kernel has its own
    /// limits for each destination; this one only keeps one destination from using up the whole rate.
    pub fn allow_kernel(&mut self, to: IpAddr, about: About, now: u64) -> bool {
        self.take(to, about, Pace::Kernel, now)
    }

    fn take(&mut self, to: IpAddr, about: About, pace: Pace, now: u64) -> bool {
        let rate = self.paces[pace as usize];
        let account = account(&mut self.accounts, self.hasher.hash_one((to, about, pace)), now);
        let all = if about == About::Size { &mut self.size } else { &mut self.other };
        let full_at = rate.conforms(account.full_at, 1, now).filter(|_| all.take(now));
        account.full_at = full_at.unwrap_or(account.full_at);
        full_at.is_some()
    }
}

/// Returns the account of a destination, new and full if it is not known.
fn account(accounts: &mut [Account], key: u64, now: u64) -> &mut Account {
    let set = key as usize % (DESTINATIONS / WAYS) * WAYS;
    let ways = &mut accounts[set..set + WAYS];
    let known = ways.iter().position(|account| account.key == key);
    let oldest = || (0..WAYS).min_by_key(|way| ways[*way].last).unwrap_or(0);
    let account = &mut ways[known.unwrap_or_else(oldest)];
    *account = Account { key, last: now, full_at: if known.is_some() { account.full_at } else { 0 } };
    account
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

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
