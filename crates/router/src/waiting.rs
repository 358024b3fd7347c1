//! Packets that wait for their neighbour to be resolved.
//!
//! A scan of a subnet causes packets to many addresses that do not exist. So that those do not displace packets for a
//! neighbour that would answer, a new packet is always accepted: when there is no room, the neighbour with the most
//! packets loses its oldest one; among neighbours with equally many, the one that has waited longest does.

use crate::vlan::Ingress;
use bywash_frame::Frame;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::IpAddr;

/// Maximum number of packets waiting on one worker.
pub(crate) const CAPACITY: usize = 512;
/// Maximum number of packets waiting for one neighbour: enough for a TCP handshake and a DNS query, not for a flood.
pub(crate) const PER_NEIGHBOUR: usize = 8;
/// Number of hash chains of neighbours.
const CHAINS: usize = 1024;
/// End of a list.
const NONE: u16 = u16::MAX;

/// A waiting packet.
pub(crate) struct Wait {
    /// The packet as received.
    pub frame: Frame,
    /// Origin of the packet.
    pub from: Ingress,
    /// Time-stamp counter at which its wait ends.
    pub until: u64,
    /// Set if the router made it, rather than received it for forwarding.
    pub own: bool,
}

/// A neighbour that packets wait for.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// Kernel index of the interface.
    pub index: u32,
    /// Address of the neighbour.
    pub addr: IpAddr,
    /// Time-stamp counter at which to request it again: the kernel side may have discarded an earlier request without a
    /// result.
    pub ask_at: u64,
    /// Set if it had already failed when its first packet arrived.
    pub failed: bool,
}

/// Slot of a packet, and a link to the next packet of its neighbour.
struct Place {
    wait: Option<Wait>,
    next: u16,
}

/// Slot of a neighbour.
struct Group {
    asked: Asked,
    /// Ends of the list of packets that wait for the neighbour, oldest first.
    head: u16,
    tail: u16,
    count: u8,
    /// The next neighbour in the hash chain; in a free slot, the next free one.
    chained: u16,
    /// Links to neighbours with equally many packets, in the order in which they reached that number.
    before: u16,
    after: u16,
}

/// List of the neighbours with equally many packets.
#[derive(Clone, Copy)]
struct Row {
    first: u16,
    last: u16,
}

/// Packets waiting on one worker. Does not allocate after creation.
pub(crate) struct Waiting {
    places: Vec<Place>,
    free: u16,
    groups: Vec<Group>,
    free_group: u16,
    chains: Box<[u16; CHAINS]>,
    /// Lists of neighbours, by the number of packets.
    rows: [Row; PER_NEIGHBOUR + 1],
    hasher: RandomState,
    len: usize,
    /// Time-stamp counter of the next check.
    pub recheck_at: u64,
}

/// Result of adding a packet.
pub(crate) enum Added {
    /// The packet waits; the value is the packet evicted for it, if any.
    Waits(Option<Wait>),
    /// Too many packets already wait for its neighbour.
    Full(Wait),
}

impl Waiting {
    pub fn new() -> Self {
        let next = |i: usize| if i + 1 < CAPACITY { (i + 1) as u16 } else { NONE };
        let nobody = Asked { index: 0, addr: IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), ask_at: 0, failed: false };
        let group =
            |i| Group { asked: nobody, head: NONE, tail: NONE, count: 0, chained: next(i), before: NONE, after: NONE };
        Self {
            places: (0..CAPACITY).map(|i| Place { wait: None, next: next(i) }).collect(),
            free: 0,
            groups: (0..CAPACITY).map(group).collect(),
            free_group: 0,
            chains: Box::new([NONE; CHAINS]),
            rows: [Row { first: NONE, last: NONE }; PER_NEIGHBOUR + 1],
            hasher: RandomState::new(),
            len: 0,
            recheck_at: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a packet that waits for `asked`.
    pub fn add(&mut self, asked: Asked, wait: Wait) -> Added {
        let chain = self.chain(asked.index, asked.addr);
        let known = self.find(chain, asked.index, asked.addr);
        if known != NONE && usize::from(self.groups[usize::from(known)].count) == PER_NEIGHBOUR {
            return Added::Full(wait);
        }
        let evicted = if self.len == CAPACITY { self.evict() } else { None };
        // The evicted packet may have been the only one of this neighbour.
        let known = if evicted.is_some() { self.find(chain, asked.index, asked.addr) } else { known };
        let group = if known == NONE { self.found(chain, asked) } else { known };
        self.append(group, wait);
        Added::Waits(evicted)
    }

    /// Returns whether packets wait for this neighbour.
    pub fn has(&self, index: u32, addr: IpAddr) -> bool {
        self.find(self.chain(index, addr), index, addr) != NONE
    }

    /// Returns the neighbour in this slot, below [`CAPACITY`]; `None` if the slot is free.
    pub fn asked(&mut self, place: usize) -> Option<&mut Asked> {
        self.groups.get_mut(place).filter(|g| g.count > 0).map(|g| &mut g.asked)
    }

    /// Returns the oldest packet that waits for the neighbour in this slot.
    pub fn oldest(&self, place: usize) -> Option<&Wait> {
        let group = self.groups.get(place).filter(|g| g.count > 0)?;
        self.places[usize::from(group.head)].wait.as_ref()
    }

    /// Removes and returns the oldest packet that waits for the neighbour in this slot.
    pub fn take(&mut self, place: usize) -> Option<Wait> {
        self.groups.get(place).filter(|g| g.count > 0)?;
        Some(self.remove(place as u16))
    }

    /// Removes and returns any packet; `None` if there is none.
    pub fn pop(&mut self) -> Option<Wait> {
        self.evict()
    }

    fn chain(&self, index: u32, addr: IpAddr) -> usize {
        self.hasher.hash_one((index, addr)) as usize % CHAINS
    }

    fn find(&self, chain: usize, index: u32, addr: IpAddr) -> u16 {
        let mut at = self.chains[chain];
        while at != NONE {
            let group = &self.groups[usize::from(at)];
            if group.asked.addr == addr && group.asked.index == index {
                break;
            }
            at = group.chained;
        }
        at
    }

    /// Allocates a slot for a neighbour. There are as many slots for neighbours as for packets.
    fn found(&mut self, chain: usize, asked: Asked) -> u16 {
        let at = self.free_group;
        let group = &mut self.groups[usize::from(at)];
        self.free_group = group.chained;
        (group.asked, group.chained) = (asked, self.chains[chain]);
        self.chains[chain] = at;
        at
    }

    fn append(&mut self, at: u16, wait: Wait) {
        self.leave_row(at);
        let place = self.free;
        let free = &mut self.places[usize::from(place)];
        self.free = free.next;
        (free.wait, free.next) = (Some(wait), NONE);
        let group = &mut self.groups[usize::from(at)];
        let last = std::mem::replace(&mut group.tail, place);
        group.count += 1;
        match group.count {
            1 => group.head = place,
            _ => self.places[usize::from(last)].next = place,
        }
        self.len += 1;
        self.join_row(at);
    }

    /// Removes and returns the packet that must make room for another.
    fn evict(&mut self) -> Option<Wait> {
        let at = self.rows.iter().rev().map(|row| row.first).find(|first| *first != NONE)?;
        Some(self.remove(at))
    }

    /// Removes and returns the oldest packet of a neighbour that has one.
    fn remove(&mut self, at: u16) -> Wait {
        self.leave_row(at);
        let group = &mut self.groups[usize::from(at)];
        let place = group.head;
        let taken = &mut self.places[usize::from(place)];
        group.head = std::mem::replace(&mut taken.next, self.free);
        self.free = place;
        let wait = taken.wait.take().expect("a packet in its place");
        group.count -= 1;
        self.len -= 1;
        if group.count > 0 {
            self.join_row(at);
        } else {
            self.forget(at);
        }
        wait
    }

    /// Removes a neighbour without packets from its chain.
    fn forget(&mut self, at: u16) {
        let Asked { index, addr, .. } = self.groups[usize::from(at)].asked;
        let next = self.groups[usize::from(at)].chained;
        let chain = self.chain(index, addr);
        if self.chains[chain] == at {
            self.chains[chain] = next;
        } else {
            let mut before = self.chains[chain];
            while self.groups[usize::from(before)].chained != at {
                before = self.groups[usize::from(before)].chained;
            }
            self.groups[usize::from(before)].chained = next;
        }
        let group = &mut self.groups[usize::from(at)];
        (group.head, group.tail) = (NONE, NONE);
        group.chained = std::mem::replace(&mut self.free_group, at);
    }

    fn leave_row(&mut self, at: u16) {
        let Group { count, before, after, .. } = self.groups[usize::from(at)];
        let row = &mut self.rows[usize::from(count)];
        if count == 0 {
            return;
        }
        match before {
            NONE => row.first = after,
            _ => self.groups[usize::from(before)].after = after,
        }
        match after {
            NONE => row.last = before,
            _ => self.groups[usize::from(after)].before = before,
        }
    }

    fn join_row(&mut self, at: u16) {
        let row = &mut self.rows[usize::from(self.groups[usize::from(at)].count)];
        let before = std::mem::replace(&mut row.last, at);
        match before {
            NONE => row.first = at,
            _ => self.groups[usize::from(before)].after = at,
        }
        let group = &mut self.groups[usize::from(at)];
        (group.before, group.after) = (before, NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vlan::Tag;
    use bywash_engine::PortId;
    use bywash_frame::{Arena, ArenaConfig, Buffers, PoolConfig, PoolSet};
    use std::collections::BTreeMap;
    use std::net::Ipv4Addr;

    fn asked(n: u32) -> Asked {
        Asked { index: 1, addr: Ipv4Addr::from(n).into(), ask_at: 0, failed: false }
    }

    struct Lab {
        bufs: Buffers,
        waiting: Waiting,
    }

    impl Lab {
        fn new() -> Self {
            let arena = Arena::new(ArenaConfig { cells: 2 * CAPACITY, ..Default::default() }).unwrap();
            let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 2 * CAPACITY)]).unwrap();
            Self { bufs: Buffers::attach(&pools, 0), waiting: Waiting::new() }
        }

        /// Adds a packet for neighbour `n`, identified by `until`. Returns the kind of result and the evicted packet.
        fn add(&mut self, n: u32, until: u64) -> (&'static str, Option<u64>) {
            let frame = self.bufs.alloc_one().unwrap();
            let Asked { index, addr, .. } = asked(n);
            let first = !self.waiting.has(index, addr);
            match self.waiting.add(
                asked(n),
                Wait {
                    frame,
                    from: Ingress { port: PortId(0), id: PortId(0), tag: Tag::None, outer: None },
                    until,
                    own: false,
                },
            ) {
                Added::Waits(evicted) => {
                    let gone = evicted.map(|w| (w.until, self.bufs.free_one(w.frame)).0);
                    (if first { "first" } else { "more" }, gone)
                }
                Added::Full(w) => {
                    self.bufs.free_one(w.frame);
                    ("full", None)
                }
            }
        }

        fn empty(&mut self) {
            while let Some(w) = self.waiting.pop() {
                self.bufs.free_one(w.frame);
            }
        }
    }

    #[test]
    fn a_scan_does_not_keep_a_neighbour_out() {
        let mut lab = Lab::new();
        let full = CAPACITY as u32;
        for n in 0..full {
            assert_eq!(lab.add(n, n.into()), ("first", None));
        }
        // All have one packet: the one that has waited longest is evicted.
        assert_eq!(lab.add(full, 5000), ("first", Some(0)));
        // A neighbour with two packets loses its oldest one first.
        assert_eq!(lab.add(full, 5001), ("more", Some(1)));
        assert_eq!(lab.add(full + 1, 5002), ("first", Some(5000)));
        assert_eq!(lab.add(full + 2, 5003), ("first", Some(2)));
        lab.empty();
        for n in 0..PER_NEIGHBOUR as u64 {
            assert_eq!(lab.add(7, n), (if n == 0 { "first" } else { "more" }, None));
        }
        assert_eq!(lab.add(7, 99), ("full", None));
        lab.empty();
    }

    /// Compares with a list of packets in the order of arrival.
    #[test]
    fn does_what_a_list_would() {
        let mut lab = Lab::new();
        let mut list: Vec<(u32, u64)> = vec![];
        let mut random = 1u64;
        let mut next = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % n
        };
        for turn in 0..40_000 {
            if next(8) < 6 {
                let n = next(if turn % 8000 < 4000 { 3000 } else { 60 }) as u32;
                let count = |of: u32, list: &[(u32, u64)]| list.iter().filter(|(n, _)| *n == of).count();
                let had = count(n, &list);
                let (what, gone) = lab.add(n, turn);
                if had == PER_NEIGHBOUR {
                    assert_eq!(what, "full");
                    continue;
                }
                if let Some(gone) = gone {
                    assert_eq!(list.len(), CAPACITY);
                    let at = list.iter().position(|(_, until)| *until == gone).unwrap();
                    let (loser, _) = list[at];
                    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
                    list.iter().for_each(|(n, _)| *counts.entry(*n).or_default() += 1);
                    assert_eq!(Some(&counts[&loser]), counts.values().max());
                    assert!(list[..at].iter().all(|(n, _)| *n != loser), "not its oldest");
                    list.remove(at);
                } else {
                    assert!(list.len() < CAPACITY);
                }
                assert_eq!(what == "first", had == 0);
                list.push((n, turn));
            } else {
                let place = next(CAPACITY as u64) as usize;
                let addr = lab.waiting.asked(place).map(|asked| asked.addr);
                let oldest = lab.waiting.oldest(place).map(|w| w.until);
                let taken = lab.waiting.take(place);
                assert_eq!((addr.is_some(), oldest), (taken.is_some(), taken.as_ref().map(|w| w.until)));
                let Some(taken) = taken else { continue };
                let at = list.iter().position(|(n, _)| Some(Ipv4Addr::from(*n).into()) == addr).unwrap();
                assert_eq!(list.remove(at).1, taken.until);
                lab.bufs.free_one(taken.frame);
            }
            assert_eq!(lab.waiting.len(), list.len());
        }
        lab.empty();
        assert!(lab.waiting.is_empty());
    }
}
