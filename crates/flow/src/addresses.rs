//! Learned addresses of the bridge on the control side: where each was last seen, and which one makes room for a new
//! one.

use crate::model::OfPort;
use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Learned address.
struct Mac {
    port: OfPort,
    seen: Instant,
    /// Value of the clock when it was last seen.
    order: u64,
}

/// Addresses learned on one port.
#[derive(Default)]
struct OnPort {
    /// Order and key of each address; the one not seen for the longest time is first.
    oldest: BTreeSet<(u64, u64)>,
    evicted: u64,
}

/// Learned addresses by their keys ([`crate::pipeline::mac_key`]).
///
/// A full table makes room as OVS does (`evict_mac_entry_fairly` in its lib/mac-learning.c): the port with most
/// addresses loses the one that it has not seen for the longest time. So no port is pushed below its fair share.
#[derive(Default)]
pub(crate) struct Addresses {
    macs: HashMap<u64, Mac>,
    ports: HashMap<OfPort, OnPort>,
    clock: u64,
}

/// Effect of a report that an address was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The address was known on this port.
    Again,
    /// The address is new.
    New,
    /// The address was known on another port.
    Moved,
}

impl Addresses {
    /// Returns the number of addresses.
    pub fn len(&self) -> usize {
        self.macs.len()
    }

    /// Returns the port where an address was last seen.
    pub fn port(&self, key: u64) -> Option<OfPort> {
        self.macs.get(&key).map(|mac| mac.port)
    }

    /// Records that an address was seen on a port.
    pub fn see(&mut self, key: u64, port: OfPort, now: Instant) -> Seen {
        self.clock += 1;
        let mac = Mac { port, seen: now, order: self.clock };
        let before = self.macs.insert(key, mac);
        let seen = match &before {
            None => Seen::New,
            Some(before) if before.port == port => Seen::Again,
            Some(_) => Seen::Moved,
        };
        if let Some(before) = before {
            self.unlist(key, &before);
        }
        self.ports.entry(port).or_default().oldest.insert((self.clock, key));
        seen
    }

    fn unlist(&mut self, key: u64, mac: &Mac) {
        if let Some(on) = self.ports.get_mut(&mac.port) {
            on.oldest.remove(&(mac.order, key));
        }
    }

    /// Forgets an address. Returns `false` if it is unknown.
    pub fn forget(&mut self, key: u64) -> bool {
        let mac = self.macs.remove(&key);
        mac.iter().for_each(|mac| self.unlist(key, mac));
        mac.is_some()
    }

    /// Evicts an address and returns its key, if `port` has more than `limit` of them or there are more than `total` in
    /// all.
    pub fn evict(&mut self, port: OfPort, limit: usize, total: usize) -> Option<u64> {
        let own = self.ports.get(&port).map_or(0, |on| on.oldest.len());
        let from = if own > limit {
            port
        } else if self.len() > total {
            // Among ports with equally many, the port of the new address.
            *self.ports.iter().max_by_key(|(of, on)| (on.oldest.len(), **of == port, of.0))?.0
        } else {
            return None;
        };
        let on = self.ports.get_mut(&from)?;
        let (_, key) = on.oldest.pop_first()?;
        on.evicted += 1;
        self.macs.remove(&key);
        Some(key)
    }

    /// Returns the keys of the addresses learned on a port, or of all addresses for `None`.
    pub fn on(&self, port: Option<OfPort>) -> Vec<u64> {
        self.macs.iter().filter(|(_, mac)| port.is_none_or(|port| mac.port == port)).map(|(key, _)| *key).collect()
    }

    /// Forgets the addresses not seen for longer than `ageing` and returns their keys.
    pub fn expire(&mut self, now: Instant, ageing: Duration) -> Vec<u64> {
        let mut gone = Vec::new();
        for on in self.ports.values_mut() {
            while let Some((_, key)) = on.oldest.first().copied()
                && self.macs.get(&key).is_none_or(|mac| now - mac.seen > ageing)
            {
                on.oldest.pop_first();
                self.macs.remove(&key);
                gone.push(key);
            }
        }
        gone
    }

    /// Forgets the counters of a port that was removed.
    pub fn remove_port(&mut self, port: OfPort) {
        self.ports.remove(&port);
    }

    /// Returns how many addresses are learned on a port, and how many were evicted from it.
    pub fn counts(&self, port: OfPort) -> (usize, u64) {
        self.ports.get(&port).map_or((0, 0), |on| (on.oldest.len(), on.evicted))
    }

    /// Returns each address's key, its port, and the time since it was last seen.
    pub fn list(&self, now: Instant) -> impl Iterator<Item = (u64, OfPort, Duration)> {
        self.macs.iter().map(move |(key, mac)| (*key, mac.port, now - mac.seen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sees address `key` on a port of a table of 12 and returns the keys evicted for it.
    fn see(table: &mut Addresses, key: u64, port: u16, limit: usize) -> Vec<u64> {
        table.see(key, OfPort(port), Instant::now());
        std::iter::from_fn(|| table.evict(OfPort(port), limit, 12)).collect()
    }

    const NONE: usize = usize::MAX;

    #[test]
    fn the_port_with_most_makes_room() {
        let mut table = Addresses::default();
        for port in 1..=3 {
            for n in 0..4 {
                assert!(see(&mut table, 100 * u64::from(port) + n, port, NONE).is_empty());
            }
        }
        // All have their share: the port of a new address loses its own oldest.
        assert_eq!(see(&mut table, 1000, 1, NONE), [100]);
        assert!(see(&mut table, 101, 1, NONE).is_empty(), "101 is known");
        assert_eq!(see(&mut table, 1001, 1, NONE), [102]);
        assert_eq!(see(&mut table, 1002, 1, NONE), [103]);
        assert_eq!(see(&mut table, 1003, 1, NONE), [1000], "101 was seen later");
        // A port below its share takes from the one above.
        assert!(table.forget(200) && !table.forget(200));
        assert!(see(&mut table, 1004, 1, NONE).is_empty());
        assert_eq!(see(&mut table, 2000, 2, NONE), [101]);
        assert_eq!([1, 2, 3].map(|of| table.counts(OfPort(of))), [(4, 5), (4, 0), (4, 0)]);
    }

    #[test]
    fn a_limited_port_loses_its_own() {
        let mut table = Addresses::default();
        assert!(see(&mut table, 1, 1, 2).is_empty());
        assert!(see(&mut table, 2, 1, 2).is_empty());
        assert!(see(&mut table, 1, 1, 2).is_empty());
        assert_eq!(see(&mut table, 3, 1, 2), [2]);
        // An address that moves counts on its new port.
        assert!(see(&mut table, 4, 2, 2).is_empty());
        assert_eq!(table.see(4, OfPort(1), Instant::now()), Seen::Moved);
        assert_eq!(table.evict(OfPort(1), 2, 12), Some(1));
        // The limit was lowered.
        assert_eq!(see(&mut table, 5, 1, 1), [3, 4]);
        assert_eq!((table.counts(OfPort(1)), table.counts(OfPort(2)), table.len()), ((1, 4), (0, 0), 1));
    }

    #[test]
    fn what_is_not_seen_is_forgotten() {
        let (mut table, start) = (Addresses::default(), Instant::now());
        let at = |s: u64| start + Duration::from_secs(s);
        table.see(1, OfPort(1), at(0));
        table.see(2, OfPort(2), at(1));
        assert_eq!(table.see(1, OfPort(1), at(2)), Seen::Again);
        assert_eq!(table.expire(at(11), Duration::from_secs(9)), [2]);
        assert_eq!(table.list(at(11)).collect::<Vec<_>>(), [(1, OfPort(1), Duration::from_secs(9))]);
        assert!(table.on(Some(OfPort(2))).is_empty());
        assert_eq!(table.on(None), [1]);
    }
}
