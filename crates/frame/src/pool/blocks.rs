//! Blocks: cells handed out at consecutive addresses, a block at a time, and returned by counting.
//!
//! A returned cell is not recorded by its number. Instead the release counter of its block is raised, by one atomic
//! addition per block and burst, on whichever thread frees. A block is free again when all of its cells have been
//! counted. A cell held for long delays the reuse of its own block only.
//!
//! The policies differ in which takers share an open block. `sdb`: all takers share one, so that the cells of different
//! threads lie in it in the order in which packets arrived. `tabm`: each taker has its own. `typewriter`: like `tabm`,
//! but lines of cells are handed out and counted: a packet gets as many lines as it needs, behind the previous packet,
//! or at the start of the next cell if the current one has too few left.

use super::out::Out;
use super::ring::Ring;
use super::stack::Stack;
use crate::marks::Marks;
use bywash_sync::facade::{AtomicBool, AtomicU32, AtomicU64, Ordering, thread};
use bywash_sync::{CachePadded, Counter};
use serde::Serialize;

/// Valid block sizes in cells, powers of two: at least a batch, at most 128 MiB of 2 KiB cells.
pub(super) const SIZES: std::ops::RangeInclusive<usize> = 64..=65536;

/// Queue of free blocks.
enum Queue {
    Fifo(Ring),
    Lifo(Stack),
}

/// Open block, the one being handed out, and its next cell: `block << 32 | next`. If `next` is the block size, no block
/// is open.
#[derive(Clone, Copy)]
struct Open(u64);

impl Open {
    fn new(block: u32, next: u32) -> Self {
        Self(u64::from(block) << 32 | u64::from(next))
    }

    fn block(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn next(self) -> u32 {
        self.0 as u32
    }
}

/// Position in an open block, either private to one taker or shared by several.
trait Cursor {
    fn open(&self) -> Open;
    /// Advances the open block from `from` to `to`; returns false if another taker has advanced it. ABA is harmless:
    /// the value describes the position completely.
    fn step(&self, from: Open, to: Open) -> bool;
}

impl Cursor for Counter {
    #[inline]
    fn open(&self) -> Open {
        Open(self.get())
    }

    #[inline]
    fn step(&self, _: Open, to: Open) -> bool {
        self.set(to.0);
        true
    }
}

impl Cursor for AtomicU64 {
    #[inline]
    fn open(&self) -> Open {
        Open(self.load(Ordering::Acquire))
    }

    #[inline]
    fn step(&self, from: Open, to: Open) -> bool {
        self.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// Added to a block's release counter to keep the block from becoming free.
const HELD: u32 = 1 << 24;

/// A range of cells, divided into blocks.
pub(super) struct Blocks {
    first: u32,
    /// Logarithm of the cells in a block.
    shift: u32,
    free: Queue,
    /// Cells of each block returned since it was opened.
    released: Box<[CachePadded<AtomicU32>]>,
    /// Open blocks that any taker may advance: one shared by all (`sdb`), or one per taker ([`Blocks::take_at`]).
    slots: Box<[CachePadded<AtomicU64>]>,
    /// Record of the returned cells, if single cells can be reused before their block is free.
    back: Option<Back>,
}

/// Record of the cells returned to blocks that are not free yet: those are not out. In a free block, all count as out.
struct Back {
    out: Out,
    /// Lock: one taker at a time searches.
    taken: AtomicBool,
}

/// Number of a pool's blocks by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BlockStats {
    /// Cells per block.
    pub size: usize,
    /// Blocks waiting to be handed out.
    pub free: usize,
    /// Blocks being handed out.
    pub open: usize,
    /// Blocks fully handed out, of which cells are still in use.
    pub draining: usize,
}

impl Blocks {
    /// Creates `blocks` free blocks of `size` cells, starting at cell `first`.
    pub fn new(first: u32, size: usize, blocks: usize, shared: bool, lifo: bool) -> Self {
        let new = Self::drained(first, size, blocks, usize::from(shared), lifo);
        // The lowest block is handed out first.
        let order = |i: u32| if lifo { blocks as u32 - 1 - i } else { i };
        (0..blocks as u32).for_each(|i| new.put(order(i)));
        new
    }

    /// Creates blocks whose cells are all in use, with `slots` shared positions for open blocks.
    fn drained(first: u32, size: usize, blocks: usize, slots: usize, lifo: bool) -> Self {
        let free = if lifo { Queue::Lifo(Stack::new(blocks)) } else { Queue::Fifo(Ring::new(blocks)) };
        Self {
            first,
            shift: size.trailing_zeros(),
            free,
            released: (0..blocks).map(|_| CachePadded::new(AtomicU32::new(0))).collect(),
            slots: (0..slots).map(|_| CachePadded::new(AtomicU64::new(size as u64))).collect(),
            back: None,
        }
    }

    /// Creates blocks like [`Blocks::drained`] whose returned cells can be reused before their block is free
    /// ([`Blocks::pick`]).
    pub fn picking(size: usize, blocks: usize, slots: usize, lifo: bool) -> Self {
        let back = Some(Back { out: Out::new(size * blocks, true), taken: AtomicBool::new(false) });
        Self { back, ..Self::drained(0, size, blocks, slots, lifo) }
    }

    fn size(&self) -> u32 {
        1 << self.shift
    }

    fn cells(&self, block: u32) -> std::ops::Range<u32> {
        let start = self.first + (block << self.shift);
        start..start + self.size()
    }

    /// Returns the initial position of a taker with a block of its own: no block open.
    pub fn closed(&self) -> u64 {
        u64::from(self.size())
    }

    fn put(&self, block: u32) {
        let fits = match &self.free {
            Queue::Fifo(ring) => ring.push(&[block]),
            Queue::Lifo(stack) => stack.push(&[block]),
        };
        debug_assert!(fits, "more free blocks than there are");
    }

    fn get(&self) -> Option<u32> {
        let mut block = [0];
        let (n, _) = match &self.free {
            Queue::Fifo(ring) => ring.pop(&mut block),
            Queue::Lifo(stack) => stack.pop(&mut block),
        };
        (n == 1).then_some(block[0])
    }

    /// Returns the number of free cells in blocks that are not open.
    pub fn free(&self) -> usize {
        let blocks = match &self.free {
            Queue::Fifo(ring) => ring.len(),
            Queue::Lifo(stack) => stack.len(),
        };
        blocks << self.shift
    }

    /// Takes up to `out.len()` cells for a taker whose open block is `own`; `sdb` uses the shared one instead. Returns
    /// how many and, if a block was opened, the number of free cells left in unopened blocks.
    #[inline]
    pub fn take(&self, own: &Counter, out: &mut [u32]) -> (usize, Option<usize>) {
        match self.slots.first() {
            Some(shared) => self.take_from(&**shared, out),
            None => self.take_from(own, out),
        }
    }

    /// Performs [`Blocks::take`] for the taker whose open block is in `slot`; numbers beyond the last slot share the
    /// last.
    #[inline]
    pub fn take_at(&self, slot: usize, out: &mut [u32]) -> usize {
        self.take_from(&*self.slots[slot.min(self.slots.len() - 1)], out).0
    }

    #[inline]
    fn take_from(&self, cursor: &impl Cursor, out: &mut [u32]) -> (usize, Option<usize>) {
        let (mut got, mut left) = (0, None);
        while got < out.len() {
            let open = cursor.open();
            let n = self.hand_out(cursor, open, &mut out[got..]);
            if open.next() == self.size() {
                let Some(block) = self.get() else { break };
                left = Some(self.free());
                if !cursor.step(open, Open::new(block, 0)) {
                    self.put(block);
                }
            }
            got += n;
        }
        (got, left)
    }

    /// Takes a slot for each of `lines`, which gives the number of lines needed, for a taker whose open block is `own`.
    /// Replaces each entry with the number of the slot's first line. Returns the same as [`Blocks::take`].
    #[inline]
    pub fn take_slots(&self, own: &Counter, marks: &Marks, lines: &mut [u32]) -> (usize, Option<usize>) {
        let cell = 1 << marks.lines_shift();
        let (mut got, mut left) = (0, None);
        while got < lines.len() {
            let (open, need) = (Open(own.get()), lines[got].clamp(1, cell));
            if open.next() == self.size() {
                let Some(block) = self.get() else { break };
                left = Some(self.free());
                own.set(Open::new(block, 0).0);
                continue;
            }
            let rest = cell - (open.next() & (cell - 1));
            own.set(Open::new(open.block(), open.next() + need.min(rest)).0);
            if need > rest {
                // The remaining lines of this cell are unused: count them as released.
                self.count((open.block(), rest));
                continue;
            }
            let first = self.cells(open.block()).start + open.next();
            marks.set(first, need);
            lines[got] = first;
            got += 1;
        }
        (got, left)
    }

    /// Takes cells from the block at `open`, unless another taker has advanced it. Returns how many.
    #[inline]
    fn hand_out(&self, cursor: &impl Cursor, open: Open, out: &mut [u32]) -> usize {
        let n = (self.size() - open.next()).min(out.len() as u32);
        if n == 0 || !cursor.step(open, Open::new(open.block(), open.next() + n)) {
            return 0;
        }
        let from = self.first + (open.block() << self.shift) + open.next();
        out[..n as usize].iter_mut().zip(from..).for_each(|(cell, c)| *cell = c);
        n as usize
    }

    /// Takes up to `out.len()` cells from the open blocks of other takers and from blocks that are not free yet. For
    /// use when there is no free block. Returns how many.
    #[cold]
    pub fn pick(&self, out: &mut [u32]) -> usize {
        let Some(back) = &self.back else { return 0 };
        // Wait instead of giving up: a second searcher must not conclude that nothing is free.
        while back.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            thread::yield_now();
        }
        let mut got = 0;
        for slot in &self.slots {
            while got < out.len() && slot.open().next() < self.size() {
                got += self.hand_out(&**slot, slot.open(), &mut out[got..]);
            }
        }
        for block in 0..self.released.len() as u32 {
            if got == out.len() {
                break;
            }
            got += self.pick_from(back, block, &mut out[got..]);
        }
        back.taken.store(false, Ordering::Release);
        got
    }

    fn pick_from(&self, back: &Back, block: u32, out: &mut [u32]) -> usize {
        let released = &self.released[block as usize];
        // A block that has counted all of its cells belongs to the thread that counted the last. Its counter must not
        // be raised even briefly: that thread may put it into the queue, and another may use it up meanwhile and then
        // not see it counted. ABA is harmless: any other value means that some but not all cells are counted now.
        let held = |n: u32| (n != 0 && n != self.size()).then(|| n.wrapping_add(HELD));
        if released.fetch_update(Ordering::AcqRel, Ordering::Relaxed, held).is_err() {
            return 0;
        }
        let mut got = 0;
        for cell in self.cells(block) {
            let place = cell - self.first;
            if got < out.len() && !back.out.is_out(place) && back.out.claim(place) {
                out[got] = cell;
                got += 1;
            }
        }
        let less = HELD + got as u32;
        if released.fetch_sub(less, Ordering::AcqRel).wrapping_sub(less) == self.size() {
            self.whole(block);
        }
        got
    }

    /// Counts `cells` as released. Each was handed out and is released once.
    #[inline]
    pub fn release(&self, cells: &[u32]) {
        if let Some(back) = &self.back {
            cells.iter().for_each(|cell| back.out.put(cell - self.first));
        }
        self.release_all(cells, |_| 1);
    }

    /// Counts the lines of slots as released: the counterpart of [`Blocks::take_slots`].
    #[inline]
    pub fn release_slots(&self, marks: &Marks, slots: &[u32]) {
        self.release_all(slots, |first| marks.lines_at(first));
    }

    #[inline(always)]
    fn release_all(&self, cells: &[u32], weight: impl Fn(u32) -> u32) {
        // A burst usually holds cells of one block, or of one block per port it came from.
        let mut counts = [(0u32, 0u32); 4];
        let mut used = 0;
        for cell in cells {
            let block = (cell - self.first) >> self.shift;
            match counts[..used].iter_mut().find(|(b, _)| *b == block) {
                Some((_, n)) => *n += weight(*cell),
                None => {
                    if used == counts.len() {
                        self.count(counts[0]);
                        used -= 1;
                        counts.copy_within(1.., 0);
                    }
                    counts[used] = (block, weight(*cell));
                    used += 1;
                }
            }
        }
        counts[..used].iter().for_each(|c| self.count(*c));
    }

    /// Releases the unused part of a taker's own open block when the taker leaves.
    pub fn close(&self, own: &Counter) {
        let open = Open(own.get());
        own.set(self.closed());
        let left = self.size() - open.next();
        if left > 0 {
            self.count((open.block(), left));
        }
    }

    #[inline]
    fn count(&self, (block, n): (u32, u32)) {
        // Acquire: the thread that counts the last cell must see all prior accesses to the others; Release passes them
        // on with the block.
        let before = self.released[block as usize].fetch_add(n, Ordering::AcqRel);
        if before.wrapping_add(n) == self.size() {
            self.whole(block);
        }
    }

    /// Returns a block to the free queue after all of its cells have been counted.
    fn whole(&self, block: u32) {
        if let Some(back) = &self.back {
            self.cells(block).for_each(|cell| back.out.take(cell - self.first));
        }
        // Nobody else changes the counter until the block is handed out again, which comes after `put`.
        self.released[block as usize].store(0, Ordering::Relaxed);
        self.put(block);
    }

    /// Returns the cells of each open block that are not handed out yet. `owns`: positions of all takers.
    pub fn opened(&self, owns: impl Iterator<Item = u64>) -> Vec<std::ops::Range<u32>> {
        let slots = self.slots.iter().map(|s| s.load(Ordering::Acquire));
        let open = owns.chain(slots).map(Open).filter(|o| o.next() < self.size());
        open.map(|o| self.cells(o.block()).start + o.next()..self.cells(o.block()).end).collect()
    }

    /// Returns the number of cells returned to blocks that are not free yet.
    pub fn parked(&self) -> usize {
        self.released.iter().map(|n| (n.load(Ordering::Relaxed) & (HELD - 1)) as usize).sum()
    }

    /// Returns the number of blocks by state; `open` is the number of open blocks.
    pub fn stats(&self, open: usize) -> BlockStats {
        let free = self.free() >> self.shift;
        BlockStats { size: 1 << self.shift, free, open, draining: self.released.len().saturating_sub(free + open) }
    }

    /// Returns every free cell of unopened blocks, by emptying the queue and filling it again.
    pub fn sweep(&self) -> Vec<u32> {
        let mut blocks: Vec<u32> = std::iter::from_fn(|| self.get()).take(self.released.len() + 1).collect();
        let cells = blocks.iter().flat_map(|b| self.cells(*b)).collect();
        if let Queue::Lifo(_) = self.free {
            blocks.reverse();
        }
        blocks.into_iter().for_each(|b| self.put(b));
        cells
    }
}
