//! Whose the packets to each prefix are, for the XDP programs, which judge before any worker sees a packet.
//!
//! Told are the foreign prefixes, this host's own and those whose way out is the kernel's, and, beneath those, the routes
//! that are ours all the same. Neighbours' own prefixes are left out: one of ours lies over them.
//!
//! The programs' maps have an end. Where all that would be too much, only foreign prefixes stay in that have none of
//! ours beneath; packets to the others come to user space and are handed back.

use super::bits::{Bits, net};
use super::hops::{HopKey, Hops, KERNEL, LOCAL};
use super::rib::Rib;
use bywash_route::Table;
use bywash_route::model::Prefix;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Whose packets to a destination are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This host's.
    Local,
    /// The kernel's: it forwards them, by an interface that is no port.
    Kernel,
    /// Ours.
    User,
}

/// A prefix changed hands. The longest prefix decides; where there is none, packets are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerChange {
    /// Destinations.
    pub prefix: Prefix,
    /// None: nothing is said of this prefix any more.
    pub owner: Option<Owner>,
}

/// Where a next-hop id leads, as far as ownership goes. A group of which one member is the kernel's is the kernel's:
/// it chooses among all of them.
pub(super) fn owner(hops: &Hops, id: u32) -> Owner {
    match hops.key(id) {
        _ if id == LOCAL => Owner::Local,
        _ if id == KERNEL => Owner::Kernel,
        Some(HopKey::Group(members)) if members.iter().any(|m| m.0 == KERNEL) => Owner::Kernel,
        _ => Owner::User,
    }
}

/// A FIB entry that became foreign, or changed from one foreign owner to another, or is foreign no longer.
pub(super) struct Moved<A> {
    pub addr: A,
    pub len: u8,
    pub from: Option<Owner>,
    pub to: Option<Owner>,
}

impl<A: Bits> Moved<A> {
    /// It became foreign, or ceased to be: what of ours lies beneath counts now, or no longer.
    fn flips(&self) -> bool {
        self.len < A::MAX && is_foreign(self.from) != is_foreign(self.to)
    }
}

pub(super) fn is_foreign(owner: Option<Owner>) -> bool {
    matches!(owner, Some(Owner::Local | Owner::Kernel))
}

/// What routes come to at the moment.
pub(super) struct View<'a, A: Bits> {
    pub rib: &'a Rib<A>,
    pub fib: &'a Table<A::Word>,
    pub hops: &'a Hops,
}

impl<A: Bits> View<'_, A> {
    /// Whose a prefix is by the route to exactly it.
    fn owner(&self, addr: A, len: u8) -> Option<Owner> {
        let found = owner(self.hops, self.fib.get(net(addr, len))?);
        // Loopback addresses never come by a wire. A neighbour's own prefix is no route.
        let counts =
            !addr.ip().is_loopback() && (found != Owner::User || len < A::MAX || self.rib.winner(addr, len).is_some());
        counts.then_some(found)
    }

    /// The prefixes that have routes, within this one, each once, itself included, by address, shorter ones first.
    fn within(&self, addr: A, len: u8) -> impl Iterator<Item = (A, u8)> {
        let mut last = None;
        let keys = self.rib.under(addr, len).map(|(k, _)| (k.addr, k.len));
        keys.filter(move |at| at.1 >= len && last.replace(*at) != Some(*at))
    }
}

/// One family's owners.
pub(super) struct Owners<A> {
    now: BTreeMap<(A, u8), Owner>,
    /// Foreign prefixes in the FIB that something can lie beneath, by length.
    foreign: [u32; 129],
    limit: usize,
    /// Not everything is in `now`.
    overflow: bool,
    /// How many fewer there can be, at most, than when they were last counted and found too many.
    fewer: usize,
    /// How many fewer there must be until it is worth counting again.
    recount: usize,
}

impl<A: Bits> Owners<A> {
    pub fn new(limit: usize) -> Self {
        Self { now: BTreeMap::new(), foreign: [0; 129], limit, overflow: false, fewer: 0, recount: 0 }
    }

    /// All there is to tell.
    pub fn iter(&self) -> impl Iterator<Item = (Prefix, Owner)> {
        self.now.iter().map(|(&(addr, len), &owner)| (Prefix { addr: addr.ip(), len }, owner))
    }

    /// Follows FIB entries that have moved, given the prefixes whose routes changed. When that makes them too many:
    /// the number of foreign prefixes whose packets will come to user space.
    pub fn follow(
        &mut self,
        view: &View<'_, A>,
        touched: &[(A, u8)],
        moved: &[Moved<A>],
        changes: &mut Vec<OwnerChange>,
    ) -> Option<usize> {
        for m in moved.iter().filter(|m| m.flips()) {
            let n = &mut self.foreign[usize::from(m.len)];
            *n = n.wrapping_add(if is_foreign(m.to) { 1 } else { u32::MAX });
        }
        let fits = !self.overflow && self.now.len().saturating_add(moved.len()) <= self.limit;
        if fits && self.foreign.iter().all(|n| *n == 0) && !moved.iter().any(Moved::flips) {
            // The usual case: nothing of ours lies beneath anything to tell.
            moved.iter().for_each(|m| self.renew(view, (m.addr, m.len), changes));
            return None;
        }
        let mut told = Vec::new();
        let left_out = if self.overflow {
            touched.iter().for_each(|at| self.renew_some(view, *at, &mut told));
            for m in moved.iter().filter(|m| m.flips()) {
                self.fewer += view.within(m.addr, m.len).take(self.recount).count();
            }
            self.fewer += touched.len();
            if self.fewer >= self.recount { self.rebuild(view, &mut told) } else { None }
        } else {
            let mut all: BTreeSet<(A, u8)> = BTreeSet::new();
            for m in moved.iter().filter(|m| m.flips()) {
                if all.len() <= self.limit {
                    all.extend(view.within(m.addr, m.len).take(self.limit.saturating_add(1)));
                }
            }
            let too_many = all.len() > self.limit;
            if !too_many {
                touched.iter().chain(&all).for_each(|at| self.renew(view, *at, &mut told));
            }
            if too_many || self.now.len() > self.limit { self.rebuild(view, &mut told) } else { None }
        };
        // Of each prefix the last word; and what goes first, since it makes room for what comes.
        told.reverse();
        let mut said = HashSet::new();
        told.retain(|c| said.insert(c.prefix));
        told.reverse();
        told.sort_by_key(|c| c.owner.is_some());
        changes.append(&mut told);
        left_out
    }

    /// Makes one prefix right, where all are told.
    fn renew(&mut self, view: &View<'_, A>, at: (A, u8), changes: &mut Vec<OwnerChange>) {
        let owner = view.owner(at.0, at.1);
        let told = owner != Some(Owner::User) || self.over(at, |over| view.owner(over.0, over.1));
        self.tell(at, owner.filter(|_| told), changes);
    }

    /// Makes one prefix right, where not all are told: what is told must be right, but need not be complete.
    fn renew_some(&mut self, view: &View<'_, A>, at: (A, u8), changes: &mut Vec<OwnerChange>) {
        let told = match view.owner(at.0, at.1) {
            Some(Owner::User) => {
                for over in (0..at.1).map(|len| (at.0.first(len), len)) {
                    if is_foreign(self.now.get(&over).copied()) {
                        self.tell(over, None, changes);
                    }
                }
                None
            }
            Some(Owner::Local) if at.1 == A::MAX => Some(Owner::Local),
            Some(foreign) if !self.now.contains_key(&at) => {
                // Enough to see that none of ours is among a few.
                const LOOK: usize = 256;
                let beneath = view.within(at.0, at.1).take(LOOK + 1).enumerate();
                let mut ours = beneath.filter(|(n, p)| *n == LOOK || view.owner(p.0, p.1) == Some(Owner::User));
                let known = self.over(at, |over| self.now.get(&over).copied());
                (self.now.len() < self.limit && !known && ours.next().is_none()).then_some(foreign)
            }
            owner => owner,
        };
        self.tell(at, told, changes);
    }

    /// Whether a foreign prefix lies over this one, by what `owner` says of it.
    fn over(&self, at: (A, u8), owner: impl Fn((A, u8)) -> Option<Owner>) -> bool {
        let lens = (0..at.1).filter(|len| self.foreign[usize::from(*len)] > 0);
        lens.map(|len| (at.0.first(len), len)).any(|over| is_foreign(owner(over)))
    }

    fn tell(&mut self, at: (A, u8), owner: Option<Owner>, changes: &mut Vec<OwnerChange>) {
        let was = match owner {
            Some(owner) => self.now.insert(at, owner),
            None => self.now.remove(&at),
        };
        if was != owner {
            changes.push(OwnerChange { prefix: Prefix { addr: at.0.ip(), len: at.1 }, owner });
        }
    }

    /// Starts from nothing: counts, and tells all, or what may be told alone.
    fn rebuild(&mut self, view: &View<'_, A>, changes: &mut Vec<OwnerChange>) -> Option<usize> {
        let Walk { all, wanted, hosts, alone, foreign, .. } = Walk::over(view, self.limit);
        let was = self.overflow;
        // Not back at the first that goes: the next that comes would mean all of this again.
        let few = self.limit / 4 * 3;
        self.overflow = wanted > if was { few } else { self.limit };
        (self.fewer, self.recount) = (0, wanted.saturating_sub(few).max(self.limit / 64));
        let (new, left_out): (BTreeMap<_, _>, _) = if self.overflow {
            let room = self.limit.saturating_sub(hosts.len());
            let stands_for = alone.iter().take(room).map(|a| a.2).sum::<usize>();
            let kept = alone.into_iter().take(room).map(|(at, owner, _)| (at, owner));
            let hosts = hosts.into_iter().map(|at| (at, Owner::Local));
            (hosts.chain(kept).collect(), foreign - stands_for)
        } else {
            (all.into_iter().collect(), 0)
        };
        let gone: Vec<(A, u8)> = self.now.keys().filter(|at| !new.contains_key(at)).copied().collect();
        gone.into_iter().for_each(|at| self.tell(at, None, changes));
        new.into_iter().for_each(|(at, owner)| self.tell(at, Some(owner), changes));
        (self.overflow && !was).then_some(left_out)
    }
}

/// One walk over all prefixes that have routes. They come by address, shorter ones first: each right after those over it.
struct Walk<A> {
    /// Everything there is to tell, as long as it is not too much.
    all: Vec<((A, u8), Owner)>,
    /// How much that would be.
    wanted: usize,
    /// This host's addresses.
    hosts: Vec<(A, u8)>,
    /// How many other foreign prefixes there are.
    foreign: usize,
    /// Those without any of ours beneath, but for those beneath another such, with how many they stand for.
    alone: Vec<((A, u8), Owner, usize)>,
    open: Vec<Open<A>>,
}

/// A foreign prefix over the present one.
struct Open<A> {
    at: (A, u8),
    owner: Owner,
    /// The length of `alone` when it came.
    first: usize,
    /// One of ours is beneath.
    ours: bool,
}

impl<A: Bits> Walk<A> {
    fn over(view: &View<'_, A>, limit: usize) -> Self {
        let mut walk = Self { all: vec![], wanted: 0, hosts: vec![], foreign: 0, alone: vec![], open: vec![] };
        let everything = view.rib.iter().map(|(k, _)| (k.addr, k.len));
        let mut last = None;
        for at in everything.filter(|at| last.replace(*at) != Some(*at)) {
            let Some(owner) = view.owner(at.0, at.1) else { continue };
            walk.close(Some(at));
            match owner {
                Owner::Local if at.1 == A::MAX => walk.hosts.push(at),
                Owner::Local | Owner::Kernel => {
                    walk.foreign += 1;
                    walk.open.push(Open { at, owner, first: walk.alone.len(), ours: false });
                }
                Owner::User if walk.open.is_empty() => continue,
                Owner::User => walk.open.iter_mut().for_each(|open| open.ours = true),
            }
            walk.wanted += 1;
            if walk.wanted <= limit {
                walk.all.push((at, owner));
            }
        }
        walk.close(None);
        walk
    }

    /// Ends prefixes that the next one is not beneath.
    fn close(&mut self, next: Option<(A, u8)>) {
        let beneath = |open: &Open<A>| next.is_some_and(|next| next.0.first(open.at.1) == open.at.0);
        while let Some(open) = self.open.pop_if(|open| !beneath(open)) {
            if !open.ours {
                let beneath: usize = self.alone.drain(open.first..).map(|a| a.2).sum();
                self.alone.push((open.at, open.owner, 1 + beneath));
            }
        }
    }
}
