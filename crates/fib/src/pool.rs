//! Allocates a table's nodes: exact-size free lists over a region, and a grace period before reuse.

use crate::region::Region;
use bywash_sync::Qsbr;
use bywash_sync::qsbr::Epoch;
use std::collections::VecDeque;
use std::io;

/// Words per cache line.
const LINE: usize = 8;
/// Words of the largest node: a bitmap and 64 references.
const LARGEST: usize = 33;
/// Retired nodes that share one grace period.
const BATCH: usize = 256;
/// Words that share one grace period of the readers outside the domain: 1 MiB for a wait of milliseconds.
const GARBAGE: usize = 1 << 17;
/// Free extents shorter than this many words go to the free lists.
const EXTENT: usize = 64;

/// Allocator of nodes of 2 to 33 words, used only by the writer.
///
/// A node that fits a cache line never straddles two. Free memory is merged when it exceeds the memory in use, so that
/// the footprint after long churn follows the routes, not the worst moment.
pub(crate) struct Pool {
    domain: Qsbr,
    /// First word the pool may use.
    start: usize,
    /// Open extent `at..end`.
    at: usize,
    end: usize,
    /// Free extents except the open one.
    extents: Vec<(usize, usize)>,
    /// End of all memory that was handed out and not given back.
    top: usize,
    committed: usize,
    free: [Vec<u32>; LARGEST + 1],
    free_words: usize,
    used_words: usize,
    retired: Vec<(u32, u8)>,
    waiting: VecDeque<(Epoch, Vec<(u32, u8)>)>,
    /// Nodes that only readers outside the domain may still see.
    outside: Vec<(u32, u8)>,
    outside_words: usize,
    /// Words of `retired`, `waiting` and `outside` together.
    waiting_words: usize,
}

impl Pool {
    /// Creates a pool that uses `region` from word `start` on; commits the words before it.
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

    /// Returns the end of the memory in use, in words from the region's start.
    pub fn top(&self) -> usize {
        self.top
    }

    /// Returns the words of live nodes.
    pub fn used(&self) -> usize {
        self.used_words
    }

    /// Allocates a node of `words` words and returns its word index.
    ///
    /// # Panics
    /// If the system is out of memory, as a `Vec` would abort.
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

    /// Puts free words on the free lists; a single word stays unused until the next merge.
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

    /// Retires a node that readers may still see. Call it after the node was unlinked, or in the same operation; the
    /// grace period starts with [`Pool::settle`].
    pub fn retire(&mut self, at: usize, words: usize) {
        self.retired.push((at as u32, words as u8));
        self.used_words -= words;
        self.waiting_words += words;
    }

    /// Starts grace periods and ends those that have passed, if enough nodes have been retired. Call it when all
    /// retired nodes have been unlinked.
    pub fn settle(&mut self, region: &Region) {
        if self.retired.len() >= BATCH {
            self.reclaim(region);
        }
    }

    /// Starts a grace period for all retired nodes and frees those whose own has passed. Returns the bytes still
    /// waiting.
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
        // Merging is not worth it below a megabyte of free memory, but an empty table is always trimmed.
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

    /// Joins adjacent free nodes and returns free memory at the end to the system.
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
        // Lowest last: the next allocations fill the front, so that the end becomes free.
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
