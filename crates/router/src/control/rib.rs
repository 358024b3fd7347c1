//! Routes of one family in tables local and main, and the choice among them.
//!
//! The rules are those of the kernel: table local is looked up before table main, whatever the prefix lengths; in a
//! table the longest prefix wins, and among routes to one prefix the lowest metric whose next hops are not all dead. A
//! route whose next hops are all dead is skipped, so a less specific one may win.

use super::bits::Bits;
use super::exceptions::Excepted;
use super::{LOCAL_TABLE, MAIN};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};

/// Table of a route, in the order of lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Local,
    Main,
}

impl Rank {
    /// Returns the rank of the kernel's table with this number; `None` for tables other than local and main.
    pub fn of(table: u32) -> Option<Self> {
        match table {
            LOCAL_TABLE => Some(Self::Local),
            MAIN => Some(Self::Main),
            _ => None,
        }
    }

    /// Returns the kernel's number of the table.
    pub fn table(self) -> u32 {
        match self {
            Self::Local => LOCAL_TABLE,
            Self::Main => MAIN,
        }
    }
}

/// Key of a route. It sorts by prefix first, so that the routes to a prefix and the prefixes below it are adjacent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key<A> {
    pub addr: A,
    pub len: u8,
    pub rank: Rank,
    pub metric: u32,
}

/// Record of a route: 8 bytes, because there may be a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rec {
    /// Number of the set with the route's content ([`super::sets`]).
    pub set: u32,
    /// Origin of the route (rtm_protocol).
    pub protocol: u8,
    /// False if every next hop is dead.
    pub usable: bool,
}

/// Routes of one family.
pub(super) struct Rib<A> {
    routes: BTreeMap<Key<A>, Rec>,
    /// Number of routes of table main by prefix length: the lengths that a longest match must try.
    main: [u32; 129],
    /// Number of routes of table local by prefix length.
    local: [u32; 129],
    /// Prefixes of table local except host routes, with their number of routes: few, and they hide the routes of table
    /// main below them.
    wide: BTreeMap<(u8, A), u32>,
    /// Prefixes that are left to the kernel and hide the routes of both tables below them.
    pub excepted: Excepted<A>,
}

impl<A: Bits> Rib<A> {
    pub fn new() -> Self {
        Self {
            routes: BTreeMap::new(),
            main: [0; 129],
            local: [0; 129],
            wide: BTreeMap::new(),
            excepted: Excepted::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.routes.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Key<A>, &Rec)> {
        self.routes.iter()
    }

    /// Returns the routes after `last`, which need not exist; all routes if it is `None`.
    pub fn after(&self, last: Option<Key<A>>) -> impl Iterator<Item = (&Key<A>, &Rec)> {
        self.routes.range((last.map_or(Unbounded, Excluded), Unbounded))
    }

    /// Adds or replaces a route; returns its former record.
    pub fn insert(&mut self, key: Key<A>, rec: Rec) -> Option<Rec> {
        let old = self.routes.insert(key, rec);
        if old.is_none() {
            self.count(key, 1);
        }
        old
    }

    pub fn remove(&mut self, key: Key<A>) -> Option<Rec> {
        let old = self.routes.remove(&key);
        if old.is_some() {
            self.count(key, u32::MAX);
        }
        old
    }

    fn count(&mut self, key: Key<A>, by: u32) {
        let counts = match key.rank {
            Rank::Main => &mut self.main,
            Rank::Local => &mut self.local,
        };
        let n = &mut counts[usize::from(key.len)];
        *n = n.wrapping_add(by);
        if key.rank == Rank::Local && key.len < A::MAX {
            let n = self.wide.entry((key.len, key.addr)).or_default();
            *n = n.wrapping_add(by);
            if *n == 0 {
                self.wide.remove(&(key.len, key.addr));
            }
        }
    }

    /// Returns the usable route of lowest metric to exactly this prefix in one table.
    fn best(&self, addr: A, len: u8, rank: Rank) -> Option<(Key<A>, Rec)> {
        // The range has no upper bound, because finding it would double the search.
        let from = self.routes.range(Key { addr, len, rank, metric: 0 }..);
        let here = from.take_while(|(k, _)| k.addr == addr && k.len == len && k.rank == rank);
        here.map(|(k, r)| (*k, *r)).find(|(_, r)| r.usable)
    }

    /// Returns the route that decides at exactly this prefix; `None` if there is none, or table local or an exception
    /// hides it.
    pub fn winner(&self, addr: A, len: u8) -> Option<(Key<A>, Rec)> {
        if self.excepted.over(addr, len).is_some() {
            return None;
        }
        let local = if self.local[usize::from(len)] > 0 { self.best(addr, len, Rank::Local) } else { None };
        local.or_else(|| {
            let found = self.best(addr, len, Rank::Main)?;
            self.hidden(addr, len).is_none().then_some(found)
        })
    }

    /// Returns the longest usable prefix of table local that covers this one or equals it, host routes excluded.
    fn hidden(&self, addr: A, len: u8) -> Option<(Key<A>, Rec)> {
        let lens = (0..=len.min(A::MAX - 1)).rev().filter(|l| self.local[usize::from(*l)] > 0);
        let mut known = lens.map(|l| (l, addr.first(l))).filter(|at| self.wide.contains_key(at));
        known.find_map(|(l, a)| self.best(a, l, Rank::Local))
    }

    /// Returns the route that decides for `addr`, ignoring its host routes.
    pub fn covering(&self, addr: A) -> Option<(Key<A>, Rec)> {
        self.hidden(addr, A::MAX - 1).or_else(|| {
            let lens = (0..A::MAX).rev().filter(|l| self.main[usize::from(*l)] > 0);
            lens.map(|l| (addr.first(l), l)).find_map(|(a, l)| self.best(a, l, Rank::Main))
        })
    }

    /// Returns all routes whose prefix lies in this one, itself included.
    pub fn under(&self, addr: A, len: u8) -> impl Iterator<Item = (&Key<A>, &Rec)> {
        let low = Key { addr, len, rank: Rank::Local, metric: 0 };
        let high = Key { addr: addr.last(len), len: A::MAX, rank: Rank::Main, metric: u32::MAX };
        self.routes.range(low..=high)
    }
}
