//! Policy routing: packets of a port with rules are looked up in one table after another, as the rules say, until one
//! has a route.

use crate::tables::{Entry, Kind};
use bywash_fib::{Addr, Fib};
use bywash_frame::BATCH;
use std::sync::Arc;

/// Rule as workers apply it.
#[derive(Clone)]
pub struct Step<A: Addr> {
    /// Set if the rule selects the packets that do not match both `from` and `to` (`ip rule add not`).
    pub not: bool,
    /// Prefix of the source: its first address, and the mask of its bits.
    pub from: (A, A),
    /// Prefix of the destination, in the same form.
    pub to: (A, A),
    /// Action on the packets that it selects.
    pub action: Action<A>,
}

/// Action of a rule.
#[derive(Clone)]
pub enum Action<A: Addr> {
    /// Looks the destination up here.
    Lookup(Arc<Fib<A>>),
    /// Takes the next hop with this id.
    Hop(u32),
}

/// Rules of a port, in order. Without any, packets are looked up in [`Tables::fib4`](crate::tables::Tables::fib4) or
/// [`Tables::fib6`](crate::tables::Tables::fib6).
#[derive(Clone)]
pub struct Steps<A: Addr>(Arc<[Step<A>]>);

impl<A: Addr> Default for Steps<A> {
    fn default() -> Self {
        Self(Arc::new([]))
    }
}

impl<A: Addr> std::fmt::Debug for Steps<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rules", self.0.len())
    }
}

impl<A: Addr> FromIterator<Step<A>> for Steps<A> {
    fn from_iter<I: IntoIterator<Item = Step<A>>>(steps: I) -> Self {
        Self(steps.into_iter().collect())
    }
}

impl<A: Addr + std::ops::BitAnd<Output = A>> Step<A> {
    #[inline]
    fn selects(&self, src: A, dst: A) -> bool {
        ((src & self.from.1 == self.from.0) && (dst & self.to.1 == self.to.0)) != self.not
    }
}

/// Returns whether a table has no route for a packet, so that the next rule decides (`throw` included).
#[inline]
fn is_missed(entries: &[Entry], id: u32) -> bool {
    entries.get(id as usize).is_none_or(|entry| entry.kind == Kind::NoRoute)
}

impl<A: Addr + Default + std::ops::BitAnd<Output = A>> Steps<A> {
    /// Returns whether there are no rules.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next hop of a packet; 0 if no table has a route.
    pub fn lookup(&self, entries: &[Entry], src: A, dst: A) -> u32 {
        let mut all = self.0.iter().filter(|step| step.selects(src, dst)).map(|step| match &step.action {
            Action::Lookup(fib) => fib.lookup(dst),
            Action::Hop(id) => *id,
        });
        all.find(|id| !is_missed(entries, *id)).unwrap_or(0)
    }

    /// Looks up the packets of a burst: `ids[i]` becomes the next hop of the packet from `src[i]` to `dst[i]`, or 0 if
    /// no table has a route.
    pub fn lookup_batch(&self, entries: &[Entry], src: &[A], dst: &[A], ids: &mut [u32]) {
        let n = src.len().min(dst.len()).min(ids.len()).min(BATCH);
        ids[..n].fill(0);
        // Packets for which no table has had a route yet.
        let mut open = [0u8; BATCH];
        open.iter_mut().zip(0..).for_each(|(open, at)| *open = at);
        let mut left = n;
        let (mut chosen, mut to, mut found) = ([0u8; BATCH], [A::default(); BATCH], [0u32; BATCH]);
        for step in &*self.0 {
            if left == 0 {
                return;
            }
            let mut count = 0;
            for at in &open[..left] {
                let i = usize::from(*at) % BATCH;
                if step.selects(src[i], dst[i]) {
                    (chosen[count], to[count]) = (*at, dst[i]);
                    count += 1;
                }
            }
            match &step.action {
                Action::Lookup(fib) => fib.lookup_batch(&to[..count], &mut found[..count]),
                Action::Hop(id) => found[..count].fill(*id),
            }
            let mut some = false;
            for (at, id) in chosen[..count].iter().zip(&found) {
                if !is_missed(entries, *id) {
                    ids[usize::from(*at)] = *id;
                    some = true;
                }
            }
            if some {
                let mut kept = 0;
                for k in 0..left {
                    let at = open[k];
                    if ids[usize::from(at)] == 0 {
                        open[kept] = at;
                        kept += 1;
                    }
                }
                left = kept;
            }
        }
    }
}
