//! Addresses of the equipment behind the modems (CPE): configured, added at run time, or learned from upstream frames.
//!
//! The lower MAC sees upstream frames on its output port. The headers of those on a modem's primary service flow name
//! its security association, and their PDUs begin with the addresses, which are never encrypted. It passes the
//! addresses to a [`Learning`], which publishes the table that the upper MAC uses. Frames on other service flows are
//! not learned from.

use crate::group::{Group, Mac, Modem, Table};
use crate::header;
use bywash_sync::{Published, Qsbr};
use rtrb::{Consumer, Producer, RingBuffer};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Capacity of the ring of seen addresses: those that do not fit are seen again later.
const SEEN: usize = 1024;
/// Interval at which addresses that are no longer seen are looked for.
const AGEING: Duration = Duration::from_secs(1);

/// Maximum number of addresses that are added at run time in a group.
pub const CPES_ADDED: usize = 65_536;

/// Limits of learned addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpeLimits {
    /// Maximum number of learned addresses of a modem.
    pub of_modem: usize,
    /// Time after which an address that is no longer seen is removed.
    pub ageing: Duration,
}

/// Table of addresses, as the upper MAC uses it.
pub struct Cpes(Table);

impl Cpes {
    /// Returns the modem that an address is behind.
    #[inline]
    pub(crate) fn find(&self, mac: Mac) -> Option<Modem> {
        self.0.find(mac)
    }
}

/// Source address of an upstream frame, with its security association.
struct Seen {
    mac: Mac,
    said: u16,
}

/// Lower MAC's end of a [`Learning`].
pub struct Observer(Producer<Seen>);

impl Observer {
    /// Notes the source address of an upstream MAC frame.
    #[inline]
    pub(crate) fn see(&mut self, frame: &[u8]) {
        let Ok(parsed) = header::parse(frame) else { return };
        if let Some(said) = header::upstream_sid(frame, &parsed)
            && let Some(&[_, _, _, _, _, _, a, b, c, d, e, f]) = parsed.pdu.first_chunk()
        {
            // If the ring is full, the next frame of this source is noted instead.
            let _ = self.0.push(Seen { mac: [a, b, c, d, e, f], said });
        }
    }
}

/// Address behind a modem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpe {
    /// Index of the modem.
    pub modem: usize,
    /// Origin of the address.
    pub origin: Origin,
}

/// Origin of an address behind a modem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Configured.
    Configured,
    /// Added at run time, until it is removed.
    Added,
    /// Learned; last seen at this time.
    Learned(Instant),
}

impl Cpe {
    /// Returns when the address was last seen; `None` if it is not a learned one.
    pub fn seen(&self) -> Option<Instant> {
        if let Origin::Learned(seen) = self.origin { Some(seen) } else { None }
    }
}

/// Reason for which an address cannot be added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpeError {
    /// Group address, or the zero address.
    #[error("it is not the address of a station")]
    NoStation,
    /// Address of a modem.
    #[error("it is a modem's own address")]
    OfModem,
    /// Address in the configuration.
    #[error("it is configured: change the file of modems, and reload")]
    Configured,
    /// Unknown address.
    #[error("no modem of the group has it")]
    Unknown,
    /// Address that an earlier change of the same request names.
    #[error("it is named twice")]
    Twice,
    /// More than [`CPES_ADDED`] addresses.
    #[error(
        "the group would have more than {CPES_ADDED} added addresses: remove some, or write them to the file of modems"
    )]
    Full,
}

/// Control half: keeps the addresses and publishes the table.
pub struct Learning {
    group: Arc<Group>,
    limits: CpeLimits,
    seen: Consumer<Seen>,
    published: Arc<Published<Cpes>>,
    cpes: HashMap<Mac, Cpe>,
    /// Number of learned addresses of each modem.
    learned: Vec<usize>,
    /// Time at which addresses were last aged.
    aged: Instant,
    /// Modem of each security association.
    by_said: HashMap<u16, usize>,
}

impl Learning {
    /// Creates a table of the configured addresses, for readers of `domain`, and the lower MAC's end.
    pub fn new(group: Arc<Group>, limits: CpeLimits, domain: &Qsbr) -> (Self, Observer) {
        let (producer, seen) = RingBuffer::new(SEEN);
        // Multicast groups send nothing upstream.
        let modems = group.modems().iter().enumerate().filter(|(_, modem)| modem.mac[0] & 1 == 0);
        let by_said = modems.map(|(at, modem)| (modem.said, at)).collect();
        let published = Arc::new(Published::new(domain, Cpes(Table::new(1))));
        let learned = vec![0; group.modems().len()];
        let mut learning =
            Self { group, limits, seen, published, cpes: HashMap::new(), learned, aged: Instant::now(), by_said };
        let configured: Vec<Vec<Mac>> = learning.group.modems().iter().map(|modem| modem.cpes.clone()).collect();
        learning.configure(&configured);
        (learning, Observer(producer))
    }

    /// Returns the published table.
    pub fn table(&self) -> Arc<Published<Cpes>> {
        self.published.clone()
    }

    /// Replaces the configured addresses by those of each modem. A learned or added address that is now configured is
    /// no longer learned or added.
    pub fn configure(&mut self, of_modems: &[Vec<Mac>]) {
        self.cpes.retain(|_, cpe| cpe.origin != Origin::Configured);
        for (modem, macs) in of_modems.iter().enumerate() {
            macs.iter().for_each(|&mac| self.set(mac, Some(Cpe { modem, origin: Origin::Configured })));
        }
        self.publish();
    }

    /// Adds each address behind the modem with this index, or removes it if there is none. An address that was learned
    /// or added behind another modem moves. Errors with the index of the first change that is refused; nothing is
    /// changed then.
    pub fn change(&mut self, changes: &[(Mac, Option<usize>)]) -> Result<(), (usize, CpeError)> {
        let mut named = HashSet::new();
        let mut added = self.cpes.values().filter(|cpe| cpe.origin == Origin::Added).count();
        for (at, (mac, modem)) in changes.iter().enumerate() {
            let check = self.check(*mac, modem.is_some());
            check.and(named.insert(*mac).then_some(()).ok_or(CpeError::Twice)).map_err(|why| (at, why))?;
            let known = self.cpes.get(mac).is_some_and(|cpe| cpe.origin == Origin::Added);
            added = added + usize::from(modem.is_some()) - usize::from(known);
            if added > CPES_ADDED {
                return Err((at, CpeError::Full));
            }
        }
        for &(mac, modem) in changes {
            self.set(mac, modem.map(|modem| Cpe { modem, origin: Origin::Added }));
        }
        self.publish();
        Ok(())
    }

    fn check(&self, mac: Mac, add: bool) -> Result<(), CpeError> {
        match self.cpes.get(&mac) {
            Some(cpe) if cpe.origin == Origin::Configured => Err(CpeError::Configured),
            None if !add => Err(CpeError::Unknown),
            _ if mac[0] & 1 != 0 || mac == [0; 6] => Err(CpeError::NoStation),
            _ if self.group.find(mac).is_some() => Err(CpeError::OfModem),
            _ => Ok(()),
        }
    }

    fn set(&mut self, mac: Mac, cpe: Option<Cpe>) {
        let before = match cpe {
            Some(cpe) => self.cpes.insert(mac, cpe),
            None => self.cpes.remove(&mac),
        };
        if let Some(Cpe { modem, origin: Origin::Learned(_) }) = before {
            self.learned[modem] -= 1;
        }
    }

    /// Learns the addresses that were seen, and removes those that have not been seen for too long. An address stays
    /// with its modem until then, so that no other modem can take it over. Returns whether the table changed.
    pub fn tick(&mut self, now: Instant) -> bool {
        let mut changed = false;
        // Only as many as are there now: the lower MAC may add more as fast as they are taken.
        for _ in 0..self.seen.slots() {
            let Ok(Seen { mac, said }) = self.seen.pop() else { break };
            let Some(&modem) = self.by_said.get(&said) else { continue };
            match self.cpes.get_mut(&mac) {
                Some(Cpe { modem: of, origin: Origin::Learned(seen) }) if *of == modem => *seen = now,
                Some(_) => {}
                None if mac[0] & 1 != 0 || self.group.find(mac).is_some() => {}
                None if self.learned[modem] >= self.limits.of_modem => {}
                None => {
                    self.cpes.insert(mac, Cpe { modem, origin: Origin::Learned(now) });
                    self.learned[modem] += 1;
                    changed = true;
                }
            }
        }
        if now.saturating_duration_since(self.aged) >= AGEING {
            self.aged = now;
            changed |= self.age(now);
        }
        if changed {
            self.publish();
        }
        changed
    }

    /// Removes addresses that have not been seen for too long; returns whether there were any.
    fn age(&mut self, now: Instant) -> bool {
        let Self { cpes, learned, limits, .. } = self;
        let before = cpes.len();
        cpes.retain(|_, cpe| {
            let keep = cpe.seen().is_none_or(|seen| now.saturating_duration_since(seen) < limits.ageing);
            if !keep {
                learned[cpe.modem] -= 1;
            }
            keep
        });
        cpes.len() < before
    }

    /// Returns all addresses.
    pub fn all(&self) -> impl Iterator<Item = (Mac, Cpe)> + '_ {
        self.cpes.iter().map(|(mac, cpe)| (*mac, *cpe))
    }

    fn publish(&self) {
        let mut table = Table::new(self.cpes.len());
        for (number, (mac, cpe)) in self.cpes.iter().enumerate() {
            // The addresses are the keys of a map, hence different.
            let _ = table.insert(*mac, number, self.group.modem(cpe.modem));
        }
        self.published.replace(Cpes(table));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{FlowKind, ModemConfig, ModemKind};

    const CPE: Mac = [0, 1, 2, 3, 4, 5];

    fn group() -> Arc<Group> {
        let kind = ModemKind { flows: vec![FlowKind::default(); 2], filters: vec![] };
        let modem = |n: u8| ModemConfig {
            mac: [2, 0, 0, 0, 0, n],
            said: 100 + u16::from(n),
            cpes: if n == 2 { vec![[0, 9, 9, 9, 9, 9]] } else { vec![] },
            ..ModemConfig::default()
        };
        Arc::new(Group::new(vec![kind], (0..3).map(modem).collect()).unwrap())
    }

    /// Returns an upstream frame of modem `said` from `source`: a header with an upstream privacy element and a PDU.
    fn upstream(said: u16, source: Mac) -> Vec<u8> {
        let [high, low] = (said | 0x8000).to_be_bytes();
        let mut frame = vec![1, 5, 0, 5 + 60, 0x34, 0x11, high, low, 0];
        frame.extend(crate::crc::hcs(&frame));
        frame.extend([0xff; 6]);
        frame.extend(source);
        frame.extend([7; 48]);
        frame
    }

    fn new(of_modem: usize) -> (Learning, Observer, Qsbr) {
        let domain = Qsbr::new();
        let limits = CpeLimits { of_modem, ageing: Duration::from_secs(100) };
        let (learning, observer) = Learning::new(group(), limits, &domain);
        (learning, observer, domain)
    }

    fn behind(learning: &Learning, domain: &Qsbr, mac: Mac) -> Option<u32> {
        let reader = domain.register();
        learning.published.load(&reader).find(mac).map(|modem| modem.first_flow / 2)
    }

    #[test]
    fn an_address_is_learned_kept_and_forgotten() {
        let (mut learning, mut observer, domain) = new(2);
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!((behind(&learning, &domain, CPE), behind(&learning, &domain, [0, 9, 9, 9, 9, 9])), (None, Some(2)));
        observer.see(&upstream(101, CPE));
        assert!(learning.tick(start) && behind(&learning, &domain, CPE) == Some(1));
        // Another modem cannot take it over while it is alive.
        observer.see(&upstream(100, CPE));
        assert!(!learning.tick(after(50)) && behind(&learning, &domain, CPE) == Some(1));
        observer.see(&upstream(101, CPE));
        assert!(!learning.tick(after(90)) && !learning.tick(after(189)));
        assert!(learning.tick(after(190)) && behind(&learning, &domain, CPE).is_none());
        observer.see(&upstream(100, CPE));
        assert!(learning.tick(after(191)) && behind(&learning, &domain, CPE) == Some(0));
        // Configured ones do not age.
        assert!(!learning.tick(after(200)) && behind(&learning, &domain, [0, 9, 9, 9, 9, 9]) == Some(2));
    }

    #[test]
    fn what_cannot_be_behind_a_modem_is_not_learned() {
        let (mut learning, mut observer, _domain) = new(2);
        observer.see(&upstream(200, CPE));
        observer.see(&upstream(101, [1, 0, 0x5e, 0, 0, 1]));
        observer.see(&upstream(101, [2, 0, 0, 0, 0, 0]));
        observer.see(&upstream(101, [0, 9, 9, 9, 9, 9]));
        observer.see(&upstream(101, CPE)[..20]);
        observer.see(&[]);
        assert!(!learning.tick(Instant::now()));
        for n in 0..5 {
            observer.see(&upstream(101, [0, 0, 0, 0, 0, n]));
        }
        assert!(learning.tick(Instant::now()));
        assert_eq!(learning.all().filter(|(_, cpe)| cpe.seen().is_some()).count(), 2, "the limit of a modem");
    }

    #[test]
    fn added_addresses_may_move_and_go_when_there_is_room_for_no_more() {
        let (mut learning, ..) = new(1);
        let mac = |n: usize| [2, 1, 0, (n >> 16) as u8, (n >> 8) as u8, n as u8];
        let all: Vec<_> = (0..CPES_ADDED).map(|n| (mac(n), Some(0))).collect();
        learning.change(&all).unwrap();
        let more = (mac(CPES_ADDED), Some(0));
        assert_eq!(learning.change(&[more]), Err((0, CpeError::Full)));
        learning.change(&[(mac(0), Some(1))]).unwrap();
        learning.change(&[(mac(1), None), more]).unwrap();
    }

    #[test]
    fn configured_addresses_are_replaced() {
        let (mut learning, mut observer, domain) = new(1);
        observer.see(&upstream(101, CPE));
        learning.tick(Instant::now());
        learning.configure(&[vec![CPE], vec![], vec![]]);
        assert_eq!((behind(&learning, &domain, CPE), behind(&learning, &domain, [0, 9, 9, 9, 9, 9])), (Some(0), None));
        // The modem has room for another one.
        observer.see(&upstream(101, [0, 0, 0, 0, 0, 7]));
        assert!(learning.tick(Instant::now()) && behind(&learning, &domain, [0, 0, 0, 0, 0, 7]) == Some(1));
    }

    #[test]
    fn addresses_are_added_and_removed() {
        let (mut learning, mut observer, domain) = new(1);
        let configured = [0, 9, 9, 9, 9, 9];
        observer.see(&upstream(101, CPE));
        learning.tick(Instant::now());
        // A learned address moves, and its modem has room for another.
        assert_eq!(learning.change(&[(CPE, Some(0)), ([0, 0, 0, 0, 0, 7], Some(2))]), Ok(()));
        assert_eq!(behind(&learning, &domain, CPE), Some(0));
        observer.see(&upstream(101, [0, 0, 0, 0, 0, 8]));
        observer.see(&upstream(101, CPE));
        assert!(learning.tick(Instant::now()) && behind(&learning, &domain, [0, 0, 0, 0, 0, 8]) == Some(1));
        assert_eq!(behind(&learning, &domain, CPE), Some(0), "an added address is not learned");
        // The added address is not removed for its age, nor by another configuration.
        learning.tick(Instant::now() + Duration::from_secs(1000));
        learning.configure(&[vec![], vec![], vec![configured]]);
        assert_eq!(behind(&learning, &domain, CPE), Some(0));
        for (mac, modem, why) in [
            ([1, 0, 0, 0, 0, 1], Some(0), CpeError::NoStation),
            ([0; 6], Some(0), CpeError::NoStation),
            ([2, 0, 0, 0, 0, 1], Some(0), CpeError::OfModem),
            (configured, Some(0), CpeError::Configured),
            (configured, None, CpeError::Configured),
            ([0, 0, 0, 0, 0, 6], None, CpeError::Unknown),
            (CPE, Some(1), CpeError::Twice),
        ] {
            assert_eq!(learning.change(&[(CPE, None), (mac, modem)]), Err((1, why)), "{mac:?}");
        }
        assert_eq!(behind(&learning, &domain, CPE), Some(0), "nothing is changed");
        assert_eq!(learning.change(&[(CPE, None)]), Ok(()));
        assert_eq!(behind(&learning, &domain, CPE), None);
    }
}
