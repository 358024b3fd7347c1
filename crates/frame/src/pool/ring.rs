//! The FIFO: a bounded multi-producer multi-consumer ring of cell indices, filled and emptied in bulk.
//!
//! The algorithm is that of DPDK's `rte_ring` in its MP/MC mode: claim a range by moving a head, copy, then
//! publish it by moving the tail in claim order. A thread that is preempted between the two delays later ones.

use super::slots::Slots;
use bywash_sync::CachePadded;
use bywash_sync::facade::{AtomicU32, Ordering, spin_loop, thread};

/// Looks at the tail, some tens of microseconds of them, until a thread makes way for others.
const PATIENCE: u32 = 1024;

struct Ends {
    head: AtomicU32,
    tail: AtomicU32,
}

impl Ends {
    fn new() -> CachePadded<Self> {
        CachePadded::new(Self { head: AtomicU32::new(0), tail: AtomicU32::new(0) })
    }
}

/// A ring for up to `capacity` cells.
pub(super) struct Ring {
    producers: CachePadded<Ends>,
    consumers: CachePadded<Ends>,
    mask: u32,
    /// Whoever moved a head over some of them has them to itself until it moves the tail.
    slots: Slots,
}

impl Ring {
    /// An empty ring with room for at least `capacity` cells; at most 2^31.
    pub fn new(capacity: usize) -> Self {
        let size = capacity.next_power_of_two();
        Self { producers: Ends::new(), consumers: Ends::new(), mask: size as u32 - 1, slots: Slots::new(size) }
    }

    /// Cells in it; exact when nobody is at work.
    pub fn len(&self) -> usize {
        let tail = self.producers.tail.load(Ordering::Acquire);
        tail.wrapping_sub(self.consumers.head.load(Ordering::Acquire)) as usize
    }

    /// Appends all of `cells`, or none when they do not fit.
    pub fn push(&self, cells: &[u32]) -> bool {
        let n = cells.len() as u32;
        let claim = self.claim(&self.producers, n, true, |head| {
            let used = head.wrapping_sub(self.consumers.tail.load(Ordering::Acquire));
            (self.slots.len() as u32).wrapping_sub(used)
        });
        let Some((head, _)) = claim else { return false };
        let (at, end) = self.part(head, cells.len());
        // SAFETY: claimed, and not yet published.
        unsafe {
            self.slots.write(at, &cells[..end]);
            self.slots.write(0, &cells[end..]);
        }
        Self::publish(&self.producers, head, n);
        true
    }

    /// Takes up to `out.len()` cells; returns how many, and how many are left.
    pub fn pop(&self, out: &mut [u32]) -> (usize, usize) {
        let claim = self.claim(&self.consumers, out.len() as u32, false, |head| {
            self.producers.tail.load(Ordering::Acquire).wrapping_sub(head)
        });
        let Some((head, n)) = claim else { return (0, 0) };
        let (at, end) = self.part(head, n as usize);
        let (first, rest) = out[..n as usize].split_at_mut(end);
        // SAFETY: claimed, and not yet published.
        unsafe {
            self.slots.read(at, first);
            self.slots.read(0, rest);
        }
        Self::publish(&self.consumers, head, n);
        (n as usize, self.producers.tail.load(Ordering::Relaxed).wrapping_sub(head.wrapping_add(n)) as usize)
    }

    /// Where the places from `head` on begin, and how many of `n` lie before the array's end.
    fn part(&self, head: u32, n: usize) -> (usize, usize) {
        let at = (head & self.mask) as usize;
        (at, n.min(self.slots.len() - at))
    }

    /// Moves `ends.head` over up to `n` (or exactly `n`) of what `room` says is there.
    fn claim(&self, ends: &Ends, n: u32, exact: bool, room: impl Fn(u32) -> u32) -> Option<(u32, u32)> {
        let mut head = ends.head.load(Ordering::Acquire);
        loop {
            let have = room(head);
            // A stale head can lie behind the other end, and the difference is then beyond any real one. Look again.
            if have > self.slots.len() as u32 {
                spin_loop();
                head = ends.head.load(Ordering::Acquire);
                continue;
            }
            let n = if exact && have < n { 0 } else { n.min(have) };
            if n == 0 {
                return None;
            }
            match ends.head.compare_exchange(head, head.wrapping_add(n), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some((head, n)),
                Err(now) => head = now,
            }
        }
    }

    fn publish(ends: &Ends, head: u32, n: u32) {
        let mut looks = 0u32;
        while ends.tail.load(Ordering::Acquire) != head {
            looks += 1;
            // Whoever is before us is not running, then: with more threads than CPUs, spinning keeps it from that.
            if looks.is_multiple_of(PATIENCE) { thread::yield_now() } else { spin_loop() }
        }
        ends.tail.store(head.wrapping_add(n), Ordering::Release);
    }
}
