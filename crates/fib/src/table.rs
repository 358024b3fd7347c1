//! The writer's side: the routes, and the forwarding table kept in line with them.

use crate::addr::{Addr, Net, ROOT, STRIDE};
use crate::fib::{Fib, INDEX, MAX_ID, NO_ROUTE, NODE, NextHopId, ROOT_WORDS, SKIP};
use crate::pool::Pool;
use crate::region::{Region, Shared};
use crate::rib::{Cover, NONE, Rib};
use bywash_sync::Qsbr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Routes of one family and their forwarding table. There is one writer; readers use [`Table::reader`].
///
/// # Thread-safety
/// Changes take `&mut self`. A change becomes visible address by address while the method runs, and to all lookups when
/// it returns.
pub struct Table<A: Addr> {
    rib: Rib<A>,
    fib: Arc<Fib<A>>,
    pool: Pool,
}

/// The IPv4 table.
pub type Table4 = Table<u32>;
/// The IPv6 table.
pub type Table6 = Table<u128>;

/// A change of the routes: the prefix whose route was added, removed or changed, or everything.
struct Change<A> {
    key: A,
    len: u8,
    all: bool,
}

impl<A: Addr> Change<A> {
    /// Returns whether anything in `key`/`depth` may differ.
    fn touches(&self, key: A, depth: u8) -> bool {
        self.all || self.key.common(key) >= self.len.min(depth)
    }

    /// Returns whether slot `slot` of the level at `depth` may differ, when prefixes of `cover` bits cover it now. The
    /// level itself must be touched.
    fn affects(&self, slot: usize, depth: u8, cover: u8) -> bool {
        let end = depth + STRIDE;
        if self.all {
            return true;
        }
        if self.len > end {
            return self.key.slot(depth) == slot;
        }
        let within = self.len <= depth || (self.key.slot(depth) ^ slot) >> (end - self.len) == 0;
        within && cover <= self.len
    }
}

/// Cover of a place without a covering route.
const NO_COVER: Cover = Cover { id: NO_ROUTE, len: 0 };
/// Depth of the 64-slot levels in which the root is repainted.
const CHUNK: u8 = ROOT - STRIDE;

impl<A: Addr> Table<A> {
    /// Creates an empty table whose readers belong to `domain`.
    ///
    /// # Errors
    /// If address space (at least 8 MiB) or memory for the root (1 MiB) is refused.
    pub fn new(domain: &Qsbr) -> io::Result<Self> {
        Self::in_region(domain, Region::new(None)?)
    }

    /// Creates an empty table in memory that readers outside the domain read as well.
    ///
    /// # Errors
    /// Same as [`Table::new`].
    pub fn shared(domain: &Qsbr, memory: Box<dyn Shared>) -> io::Result<Self> {
        Self::in_region(domain, Region::new(Some(memory))?)
    }

    fn in_region(domain: &Qsbr, region: Region) -> io::Result<Self> {
        let pool = Pool::new(domain, &region, ROOT_WORDS)?;
        let table = Self { rib: Rib::new(), fib: Arc::new(Fib::new(region)), pool };
        table.publish_size();
        Ok(table)
    }

    /// Returns the forwarding table, which is the same one for the table's whole life.
    pub fn reader(&self) -> Arc<Fib<A>> {
        self.fib.clone()
    }

    /// Returns the number of routes.
    pub fn len(&self) -> usize {
        self.rib.len()
    }

    /// Returns whether there is no route.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a route or replaces its next hop; returns the former next hop.
    ///
    /// # Panics
    /// If `id` exceeds [`MAX_ID`], or the system is out of memory.
    pub fn insert(&mut self, net: Net<A>, id: NextHopId) -> Option<NextHopId> {
        assert!(id <= MAX_ID, "next-hop id beyond 31 bits");
        let old = self.rib.insert(net, id);
        if old != Some(id) {
            self.update(&Change { key: net.addr(), len: net.len(), all: false });
        }
        old
    }

    /// Removes a route; returns its next hop.
    ///
    /// # Panics
    /// If the system is out of memory: the remaining routes may need another node.
    pub fn remove(&mut self, net: Net<A>) -> Option<NextHopId> {
        let old = self.rib.remove(net)?;
        self.update(&Change { key: net.addr(), len: net.len(), all: false });
        Some(old)
    }

    /// Adds many routes at once; of several with one prefix the last wins. Faster than single insertions from a few
    /// thousand routes on.
    ///
    /// # Panics
    /// Same as [`Table::insert`].
    pub fn load(&mut self, routes: impl IntoIterator<Item = (Net<A>, NextHopId)>) {
        let mut routes: Vec<_> = routes.into_iter().collect();
        routes.sort_by_key(|(net, _)| *net);
        for (net, id) in routes {
            assert!(id <= MAX_ID, "next-hop id beyond 31 bits");
            self.rib.insert(net, id);
        }
        self.update(&Change { key: A::ZERO, len: 0, all: true });
    }

    /// Returns the next hop of exactly this prefix.
    pub fn get(&self, net: Net<A>) -> Option<NextHopId> {
        self.rib.get(net)
    }

    /// Returns the longest prefix that covers `addr`, from the routes (not the forwarding table).
    pub fn longest_match(&self, addr: A) -> Option<(Net<A>, NextHopId)> {
        self.rib.longest_match(addr)
    }

    /// Returns all routes by address, shorter prefixes first.
    pub fn iter(&self) -> impl Iterator<Item = (Net<A>, NextHopId)> {
        self.rib.iter()
    }

    /// Frees nodes whose grace period has passed and starts one for the other retired nodes; changes do so too, from
    /// time to time. Returns the bytes of nodes still waiting. Call it when idle.
    pub fn reclaim(&mut self) -> usize {
        let waiting = self.pool.reclaim(&self.fib.region);
        self.publish_size();
        waiting
    }

    /// Returns the bytes of live nodes, without the root and free memory.
    pub fn node_bytes(&self) -> usize {
        self.pool.used() * 8
    }

    /// Returns the bytes of the routes' own trie, which lookups never access.
    pub fn rib_bytes(&self) -> usize {
        self.rib.bytes()
    }

    fn publish_size(&self) {
        self.fib.top_bytes.store(self.pool.top() * 8, Ordering::Relaxed);
    }

    /// Brings the forwarding table in line with a change of the routes.
    fn update(&mut self, ch: &Change<A>) {
        if ch.len > ROOT && !ch.all {
            let (below, cover) = self.rib.place(self.rib.top(), NO_COVER, ch.key, ROOT);
            let at = ch.key.root();
            let old = self.fib.region.load32(at);
            let new = self.slot(below, cover, ROOT, old, ch);
            if new != old {
                self.fib.region.store32(at, new);
            }
        } else {
            let first = ch.key.mask(ch.len).root() / 64;
            let chunks = 1usize << CHUNK.saturating_sub(ch.len);
            for chunk in first..first + chunks {
                self.root_chunk(chunk, ch);
            }
        }
        self.pool.settle(&self.fib.region);
        self.publish_size();
    }

    /// Repaints 64 references of the root.
    fn root_chunk(&mut self, chunk: usize, ch: &Change<A>) {
        let key = A::from_top(chunk, CHUNK);
        let (top, cover) = self.rib.place(self.rib.top(), NO_COVER, key, CHUNK);
        let slots = self.rib.slots(top, CHUNK, cover);
        for s in 0..64 {
            if !ch.affects(s, CHUNK, slots.cover[s].len) {
                continue;
            }
            let at = chunk * 64 + s;
            let old = self.fib.region.load32(at);
            let new = self.slot(slots.below[s], slots.cover[s], ROOT, old, ch);
            if new != old {
                self.fib.region.store32(at, new);
            }
        }
    }

    /// Returns the new reference of a slot at `depth` that was `old`.
    fn slot(&mut self, below: u32, cover: Cover, depth: u8, old: u32, ch: &Change<A>) -> u32 {
        if below == NONE {
            self.retire_tree(old);
            return cover.id;
        }
        self.make(below, cover, depth, old, ch)
    }

    /// Returns the reference for the routes below `top`, all of which share `depth` bits and some of which are longer.
    /// Takes ownership of the nodes below `old`: returns it, reuses its parts, or retires them.
    fn make(&mut self, top: u32, cover: Cover, depth: u8, old: u32, ch: &Change<A>) -> u32 {
        let (key, len, _) = self.rib.node(top);
        if !ch.touches(key, depth) {
            return old;
        }
        let top = if len == depth { self.rib.only_child(top) } else { top };
        let (key, len, inner) = self.rib.node(top);
        if depth >= A::SKIP_FROM && len > depth + STRIDE {
            if !inner {
                self.retire_tree(old);
                let id = self.rib.route(top).unwrap_or(NO_ROUTE);
                return self.new_skip(key, len, id, cover.id);
            }
            return self.make_skip(top, cover, depth, old, ch);
        }
        if !ch.all && ch.len > depth + STRIDE && old & (NODE | SKIP) == NODE {
            self.change_one(top, cover, depth, old, ch)
        } else {
            self.repaint(top, cover, depth, old, ch)
        }
    }

    /// [`Table::make`] for routes that share so many bits that at least one level would be empty.
    fn make_skip(&mut self, top: u32, cover: Cover, depth: u8, old: u32, ch: &Change<A>) -> u32 {
        let (key, len, _) = self.rib.node(top);
        // Levels stay aligned, so that the nodes behind a skip survive when the skip changes.
        let to = len - len % STRIDE;
        let behind = match self.rib.route(top) {
            Some(id) if len == to => Cover { id, len },
            _ => cover,
        };
        if old & (NODE | SKIP) == NODE | SKIP {
            let (old_key, old_len, hit, miss) = self.fib.skip(old);
            if old_len == to && hit & NODE != 0 && old_key == key.mask(to) && miss == cover.id {
                let new = self.make(top, behind, to, hit, ch);
                if new != hit {
                    let refs = u64::from(new) | u64::from(miss) << 32;
                    self.fib.region.store((old & INDEX) as usize + A::SKIP_WORDS, refs);
                }
                return old;
            }
        }
        let inner = self.descend(old, key, depth, to);
        let hit = self.make(top, behind, to, inner, ch);
        self.new_skip(key.mask(to), to, hit, cover.id)
    }

    /// Changes the one slot of a level that contains the changed, longer route.
    fn change_one(&mut self, top: u32, cover: Cover, depth: u8, old: u32, ch: &Change<A>) -> u32 {
        let end = depth + STRIDE;
        let (below, cover) = self.rib.place(top, cover, ch.key, end);
        let s = ch.key.slot(depth);
        let half = self.half_of(old, s);
        let was = self.fib.region.load32(half);
        let new = self.slot(below, cover, end, was, ch);
        if new == was {
            return old;
        }
        if new & was & NODE != 0 {
            // Both are nodes, so the slot is a run of its own before and after.
            self.fib.region.store32(half, new);
            return old;
        }
        let mut refs = self.expand(old);
        refs[s] = new;
        self.node_from(&refs, old)
    }

    /// Repaints all slots of a level.
    fn repaint(&mut self, top: u32, cover: Cover, depth: u8, old: u32, ch: &Change<A>) -> u32 {
        let mut refs = self.open(old, depth);
        let slots = self.rib.slots(top, depth, cover);
        for (s, r) in refs.iter_mut().enumerate() {
            if ch.affects(s, depth, slots.cover[s].len) {
                *r = self.slot(slots.below[s], slots.cover[s], depth + STRIDE, *r, ch);
            }
        }
        let old = if old & (NODE | SKIP) == NODE { old } else { NO_ROUTE };
        self.node_from(&refs, old)
    }

    /// Returns the half-word index of slot `s` of a bitmap node.
    fn half_of(&self, node: u32, s: usize) -> usize {
        let at = (node & INDEX) as usize;
        at * 2 + 2 + (self.fib.region.load(at) << (63 - s)).count_ones() as usize
    }

    /// Returns the 64 references of a bitmap node.
    fn expand(&self, node: u32) -> [u32; 64] {
        let at = (node & INDEX) as usize;
        let bitmap = self.fib.region.load(at);
        let mut half = at * 2 + 2;
        let mut current = self.fib.region.load32(half);
        std::array::from_fn(|s| {
            if bitmap >> s & 1 != 0 {
                half += 1;
                current = self.fib.region.load32(half);
            }
            current
        })
    }

    /// Returns the 64 references that a level at `depth` in place of `old` would have. The caller remains responsible
    /// for retiring a bitmap node; a skip is retired unless it is among the references.
    fn open(&mut self, old: u32, depth: u8) -> [u32; 64] {
        if old & NODE == 0 {
            return [old; 64];
        }
        if old & SKIP == 0 {
            return self.expand(old);
        }
        let (key, len, hit, miss) = self.fib.skip(old);
        let (end, s) = (depth + STRIDE, key.slot(depth));
        let mut refs = [miss; 64];
        if len > end {
            refs[s] = old;
        } else {
            refs[s..s + (1 << (end - len))].fill(hit);
            self.retire(old);
        }
        refs
    }

    /// Follows `old`, found at `depth`, along `key` to depth `to`; retires the nodes on the way and the subtrees beside
    /// it.
    fn descend(&mut self, mut old: u32, key: A, mut depth: u8, to: u8) -> u32 {
        while depth < to && old & NODE != 0 {
            if old & SKIP != 0 {
                let (old_key, len, hit, miss) = self.fib.skip(old);
                let same = old_key.common(key) >= len.min(to);
                if same && len > to {
                    return old;
                }
                self.retire(old);
                if same && hit & NODE != 0 {
                    (old, depth) = (hit, len);
                } else {
                    self.retire_tree(hit);
                    // A route that ends on the way covers everything below it; the caller repaints.
                    old = if same { hit } else { miss };
                    break;
                }
            } else {
                let s = key.slot(depth);
                let half = self.half_of(old, s);
                let next = self.fib.region.load32(half);
                self.for_each_ref(old, |table, r| {
                    if r != next {
                        table.retire_tree(r);
                    }
                });
                self.retire(old);
                (old, depth) = (next, depth + STRIDE);
            }
        }
        old
    }

    fn for_each_ref(&mut self, node: u32, mut f: impl FnMut(&mut Self, u32)) {
        let at = (node & INDEX) as usize;
        let n = self.fib.region.load(at).count_ones() as usize + 1;
        for half in at * 2 + 2..at * 2 + 2 + n {
            let r = self.fib.region.load32(half);
            f(self, r);
        }
    }

    /// Retires all nodes that `r` leads to.
    fn retire_tree(&mut self, r: u32) {
        if r & NODE == 0 {
            return;
        }
        if r & SKIP != 0 {
            let (_, _, hit, _) = self.fib.skip(r);
            self.retire_tree(hit);
        } else {
            self.for_each_ref(r, Self::retire_tree);
        }
        self.retire(r);
    }

    fn retire(&mut self, r: u32) {
        let at = (r & INDEX) as usize;
        let words = if r & SKIP != 0 {
            A::SKIP_WORDS + 1
        } else {
            node_words(self.fib.region.load(at).count_ones() as usize + 1)
        };
        self.pool.retire(at, words);
    }

    fn new_skip(&mut self, key: A, len: u8, hit: u32, miss: u32) -> u32 {
        let at = self.pool.alloc(&self.fib.region, A::SKIP_WORDS + 1);
        for (i, w) in key.pack(len).into_iter().enumerate().take(A::SKIP_WORDS) {
            self.fib.region.store(at + i, w);
        }
        self.fib.region.store(at + A::SKIP_WORDS, u64::from(hit) | u64::from(miss) << 32);
        at as u32 | NODE | SKIP
    }

    /// Returns a bitmap node with these references. Reuses `old` (a bitmap node or a next hop) if its runs are the
    /// same, and stores the references that differ one by one: each store changes only its own addresses.
    fn node_from(&mut self, refs: &[u32; 64], old: u32) -> u32 {
        let mut bitmap = 0u64;
        let mut runs = [refs[0]; 64];
        let mut n = 1;
        for s in 1..64 {
            let new_run = refs[s] != refs[s - 1];
            bitmap |= u64::from(new_run) << s;
            runs[n & 63] = if new_run { refs[s] } else { runs[n & 63] };
            n += usize::from(new_run);
        }
        let region = &self.fib.region;
        if old & NODE != 0 {
            let at = (old & INDEX) as usize;
            if n > 1 && region.load(at) == bitmap {
                for (i, r) in runs[..n].iter().enumerate() {
                    if region.load32(at * 2 + 2 + i) != *r {
                        region.store32(at * 2 + 2 + i, *r);
                    }
                }
                return old;
            }
            self.retire(old);
        }
        if n == 1 && runs[0] & NODE == 0 {
            return runs[0];
        }
        let at = self.pool.alloc(&self.fib.region, node_words(n));
        let region = &self.fib.region;
        region.store(at, bitmap);
        for (i, pair) in runs[..n].chunks(2).enumerate() {
            let high = pair.get(1).copied().unwrap_or(NO_ROUTE);
            region.store(at + 1 + i, u64::from(pair[0]) | u64::from(high) << 32);
        }
        at as u32 | NODE
    }
}

/// Returns the words of a bitmap node with `n` references.
fn node_words(n: usize) -> usize {
    1 + n.div_ceil(2)
}
