//! Where a table's nodes come from: exact-size free lists over a region, and the grace period in between.

use crate::region::Region;
use bywash_sync::Qsbr;
use bywash_sync::qsbr::Epoch;
use std::collections::VecDeque;
use std::io;

/// Words in a cache line.
const LINE: usize = 8;
/// Largest node: a bitmap and 64 references.
const LARGEST: usize = 33;
/// Retired nodes that share one grace period.
const BATCH: usize = 256;
/// Words that share one grace period of the readers outside the domain: 1 MiB for a wait of milliseconds.
const GARBAGE: usize = 1 << 17;
/// Extents shorter than this go to the free lists.
const EXTENT: usize = 64;

/// Allocates nodes of 2 to 33 words. The writer's only.
///
/// A node of up to a cache line never straddles two. Free memory is merged when it exceeds what is used, so that
/// long churn ends in the footprint of the routes, not of the worst moment.
pub(crate) struct Pool {
    domain: Qsbr,
    /// First word the pool may use.
    start: usize,
    /// Open extent `at..end`.
    at: usize,
    end: usize,
    /// Free extents, apart from the open one.
    extents: Vec<(usize, usize)>,
    /// End of all that was ever handed out and not given back.
    top: usize,
    committed: usize,
    free: [Vec<u32>; LARGEST + 1],
    free_words: usize,
    used_words: usize,
    retired: Vec<(u32, u8)>,
    waiting: VecDeque<(Epoch, Vec<(u32, u8)>)>,
    /// What only readers outside the domain may still see.
    outside: Vec<(u32, u8)>,
    outside_words: usize,
    /// Words of all three.
    waiting_words: usize,
}

impl Pool {
    /// Uses `region` from word `start` on; commits what lies before it.
    pub fn new(domain: &Qsbr, region: &Region, start: usize) -> io::Result<Self> {
        let committed = region.commit(0, start)?;
        Ok(Self {
            domain: domain.clone(),
            start,
            at: start,
            end: start,
            extents: Vec::new(),
            top: start,
            committed,
            free: std::array::from_fn(|_| Vec::new()),
            free_words: 0,
            used_words: 0,
            retired: Vec::new(),
            waiting: VecDeque::new(),
            outside: Vec::new(),
            outside_words: 0,
            waiting_words: 0,
        })
    }

    /// End of the memory in use, in words from the region's start.
    pub fn top(&self) -> usize {
        self.top
    }

    /// Words of live nodes.
    pub fn used(&self) -> usize {
        self.used_words
    }

    /// A node of `words`.
    ///
    /// # Panics
    /// When the system has no more memory, as a `Vec` would abort.
    pub fn alloc(&mut self, region: &Region, words: usize) -> usize {
        self.used_words += words;
        if let Some(at) = self.free[words].pop() {
            self.free_words -= words;
            return at as usize;
        }
        loop {
            let gap = LINE - self.at % LINE;
            let pad = if gap < words && words <= LINE { gap } else { 0 };
            if self.at + pad + words <= self.end {
                let at = self.at;
                self.at += pad + words;
                if pad > 0 {
                    self.give(at, pad);
                }
                return at + pad;
            }
            self.next_extent(region);
        }
    }

    /// Replaces the open extent, which is too short.
    fn next_extent(&mut self, region: &Region) {
        if self.end == self.top && self.extents.is_empty() {
            let end = (self.top + 1).next_multiple_of(512);
            if end > self.committed {
                self.committed = region.commit(self.committed, end).expect("memory for the forwarding table");
            }
            (self.end, self.top) = (end, end);
            return;
        }
        let rest = (self.at, self.end - self.at);
        if let Some((at, len)) = self.extents.pop() {
            self.free_words -= len;
            (self.at, self.end) = (at, at + len);
        } else {
            (self.at, self.end) = (self.top, self.top);
        }
        self.give(rest.0, rest.1);
    }

    /// Puts free words on the lists; a single word rests until the next merge.
    fn give(&mut self, mut at: usize, mut words: usize) {
        self.free_words += words;
        while words >= 2 {
            let n = if words > LARGEST { LARGEST - 1 } else { words };
            self.free[n].push(at as u32);
            at += n;
            words -= n;
        }
        if words == 1 {
            self.free[1].push(at as u32);
        }
    }

    /// Takes back a node that readers may still see. Call after, or in the same operation as, its unlinking; the
    /// grace period starts with [`Pool::settle`].
    pub fn retire(&mut self, at: usize, words: usize) {
        self.retired.push((at as u32, words as u8));
        self.used_words -= words;
        self.waiting_words += words;
    }

    /// Call when everything retired has been unlinked: starts grace periods, ends those that have passed.
    pub fn settle(&mut self, region: &Region) {
        if self.retired.len() >= BATCH {
            self.reclaim(region);
        }
    }

    /// Starts a grace period for all that is retired; frees what has passed its own. Bytes still waiting.
    pub fn reclaim(&mut self, region: &Region) -> usize {
        if !self.retired.is_empty() {
            self.waiting.push_back((self.domain.advance(), std::mem::take(&mut self.retired)));
        }
        while let Some((epoch, _)) = self.waiting.front()
            && self.domain.passed(*epoch)
        {
            let (_, nodes) = self.waiting.pop_front().expect("front exists");
            if region.is_shared() {
                self.outside_words += nodes.iter().map(|(_, words)| usize::from(*words)).sum::<usize>();
                self.outside.extend(nodes);
            } else {
                self.free(nodes);
            }
        }
        if self.outside_words >= GARBAGE || (self.outside_words > 0 && self.used_words == 0) {
            region.grace();
            self.outside_words = 0;
            let nodes = std::mem::take(&mut self.outside);
            self.free(nodes);
        }
        // Below a megabyte of garbage the walk is not worth it, but an empty table is always trimmed.
        if self.free_words > (self.used_words + self.waiting_words).max(1 << 17)
            || (self.used_words + self.waiting_words == 0 && self.top > self.start)
        {
            self.merge(region);
        }
        self.waiting_words * 8
    }

    fn free(&mut self, nodes: Vec<(u32, u8)>) {
        for (at, words) in nodes {
            self.free[usize::from(words)].push(at);
            self.free_words += usize::from(words);
            self.waiting_words -= usize::from(words);
        }
    }

    /// Joins neighbouring free nodes and gives free memory at the end back to the system.
    fn merge(&mut self, region: &Region) {
        let mut all = std::mem::take(&mut self.extents);
        for (words, list) in self.free.iter_mut().enumerate() {
            all.extend(list.drain(..).map(|at| (at as usize, words)));
            list.shrink_to(64);
        }
        all.push((self.at, self.end - self.at));
        all.sort_unstable();
        self.free_words = 0;
        (self.at, self.end) = (self.top, self.top);
        let mut open: Option<(usize, usize)> = None;
        let mut joined = Vec::new();
        for (at, len) in all {
            match &mut open {
                Some((start, n)) if *start + *n == at => *n += len,
                _ => joined.extend(open.replace((at, len))),
            }
        }
        if let Some((at, len)) = open {
            if at + len == self.top {
                region.discard(at, self.top);
                self.top = at;
                (self.at, self.end) = (at, at);
            } else {
                joined.push((at, len));
            }
        }
        // Lowest last: the next allocations fill the front, and the end becomes free.
        for (at, len) in joined.into_iter().rev() {
            if len >= EXTENT {
                self.free_words += len;
                self.extents.push((at, len));
            } else {
                self.give(at, len);
            }
        }
    }
}
