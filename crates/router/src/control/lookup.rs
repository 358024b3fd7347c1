//! Routes that are looked up together, and the FIBs made of them.

use super::Touched;
use super::bits::{Bits, V4, V6, net};
use super::exceptions::except;
use super::hops::Hops;
use super::plan::{Op, Planner};
use super::rib::{Key, Rank, Rec, Rib};
use bywash_fib::model::Prefix;
use bywash_fib::{Table, Table4, Table6};
use std::net::IpAddr;

/// Routes of tables local and main, or of one table as policy routing rules look it up, and their FIBs.
pub(super) struct Lookup {
    pub rib4: Rib<V4>,
    pub rib6: Rib<V6>,
    pub fib4: Table4,
    pub fib6: Table6,
}

/// Changes of the FIBs of a lookup.
pub(super) struct Ops {
    v4: Vec<Op<V4>>,
    v6: Vec<Op<V6>>,
}

impl Ops {
    pub fn is_empty(&self) -> bool {
        self.v4.is_empty() && self.v6.is_empty()
    }
}

impl Lookup {
    /// Creates a lookup without routes.
    pub fn new(fib4: Table4, fib6: Table6) -> Self {
        Self { rib4: Rib::new(), rib6: Rib::new(), fib4, fib6 }
    }

    /// Adds a route (or removes it if `rec` is `None`) and records the prefixes that may lead elsewhere because of it.
    /// Returns the former record.
    pub fn note(
        &mut self,
        touched: &mut Touched,
        prefix: Prefix,
        rank: Rank,
        metric: u32,
        rec: Option<Rec>,
    ) -> Option<Rec> {
        match prefix.addr {
            IpAddr::V4(a) => note(&mut self.rib4, &mut touched.v4, a.to_bits(), prefix.len, rank, metric, rec),
            IpAddr::V6(a) => note(&mut self.rib6, &mut touched.v6, a.into(), prefix.len, rank, metric, rec),
        }
    }

    /// Adds or removes an exception for a prefix, and records the prefixes affected.
    pub fn except(&mut self, touched: &mut Touched, prefix: Prefix, add: bool) {
        match prefix.addr {
            IpAddr::V4(a) => except(&mut self.rib4, &mut touched.v4, a.to_bits(), prefix.len, add),
            IpAddr::V6(a) => except(&mut self.rib6, &mut touched.v6, a.into(), prefix.len, add),
        }
    }

    /// Records the prefixes of the routes with these records.
    pub fn touch(&self, touched: &mut Touched, of: impl Fn(&Rec) -> bool) {
        touched.v4.extend(self.rib4.iter().filter(|(_, r)| of(r)).map(|(k, _)| (k.addr, k.len)));
        touched.v6.extend(self.rib6.iter().filter(|(_, r)| of(r)).map(|(k, _)| (k.addr, k.len)));
    }

    /// Returns the changes of the FIBs after changes of routes to these prefixes or of neighbours with these addresses.
    pub fn plan(&self, planner: &mut Planner<'_>, touched: &mut Touched) -> Ops {
        Ops {
            v4: planner.plan(&self.rib4, &self.fib4, &mut touched.v4),
            v6: planner.plan(&self.rib6, &self.fib6, &mut touched.v6),
        }
    }

    /// Sets and removes FIB entries.
    pub fn carry_out(&mut self, hops: &mut Hops, ops: Ops) {
        carry_out(&mut self.fib4, hops, ops.v4);
        carry_out(&mut self.fib6, hops, ops.v6);
    }

    /// Frees memory of the FIBs that no reader uses any more.
    pub fn reclaim(&mut self) {
        self.fib4.reclaim();
        self.fib6.reclaim();
    }

    /// Releases the next hops of all FIB entries: the lookup is about to be dropped.
    pub fn release(&self, hops: &mut Hops) {
        self.fib4.iter().for_each(|(_, id)| hops.release(id));
        self.fib6.iter().for_each(|(_, id)| hops.release(id));
    }

    /// Returns the id in the FIB for an address's host prefix.
    pub fn at(&self, addr: IpAddr) -> Option<u32> {
        match addr {
            IpAddr::V4(a) => self.fib4.get(net(a.to_bits(), 32)),
            IpAddr::V6(a) => self.fib6.get(net(V6::from(a), 128)),
        }
    }

    /// Returns the routes of a table, each with its prefix and metric.
    pub fn of(&self, table: u32) -> impl Iterator<Item = (Prefix, u32, Rec)> {
        of_table(&self.rib4, table).chain(of_table(&self.rib6, table))
    }
}

fn of_table<A: Bits>(rib: &Rib<A>, table: u32) -> impl Iterator<Item = (Prefix, u32, Rec)> {
    let routes = rib.iter().filter(move |(key, _)| key.rank.table() == table);
    routes.map(|(key, rec)| (Prefix { addr: key.addr.ip(), len: key.len }, key.metric, *rec))
}

fn note<A: Bits>(
    rib: &mut Rib<A>,
    touched: &mut Vec<(A, u8)>,
    addr: A,
    len: u8,
    rank: Rank,
    metric: u32,
    rec: Option<Rec>,
) -> Option<Rec> {
    // The kernel reports no length out of range; it is limited here all the same.
    let len = len.min(A::MAX);
    let key = Key { addr: addr.first(len), len, rank, metric };
    let old = match rec {
        Some(rec) => rib.insert(key, rec),
        None => rib.remove(key),
    };
    if old.map(|o| (o.set, o.usable)) != rec.map(|r| (r.set, r.usable)) {
        touched.push((key.addr, len));
        if rank == Rank::Local && len < A::MAX {
            // It hides, or no longer hides, routes of table main below it.
            touched.extend(rib.under(key.addr, len).map(|(k, _)| (k.addr, k.len)));
        }
    }
    old
}

fn carry_out<A: Bits>(fib: &mut Table<A::Word>, hops: &mut Hops, ops: Vec<Op<A>>) {
    for Op { addr, len, id } in ops {
        let old = match id {
            Some(id) => fib.insert(net(addr, len), id),
            None => fib.remove(net(addr, len)),
        };
        old.into_iter().for_each(|old| hops.release(old));
    }
}
