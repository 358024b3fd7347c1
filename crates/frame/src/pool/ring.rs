//! The FIFO: a bounded multi-producer multi-consumer ring of cell indices, filled and emptied in bulk.
//!
//! The algorithm is that of DPDK's `rte_ring` in MP/MC mode: claim a range by moving the head, copy, then publish the
//! range by moving the tail in claim order. A thread preempted between claim and publication delays later ones.

use super::slots::Slots;
use bywash_sync::CachePadded;
use bywash_sync::facade::{AtomicU32, Ordering, spin_loop, thread};

/// Polls of the tail (some tens of microseconds) before a waiting thread yields its CPU.
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
    /// A thread that moved a head over a range has exclusive access to it until it moves the tail.
    slots: Slots,
}

impl Ring {
    /// Creates an empty ring with room for at least `capacity` cells, at most 2^31.
    pub fn new(capacity: usize) -> Self {
        let size = capacity.next_power_of_two();
        Self { producers: Ends::new(), consumers: Ends::new(), mask: size as u32 - 1, slots: Slots::new(size) }
    }

    /// Returns the number of cells; exact only while no other thread uses the ring.
    pub fn len(&self) -> usize {
        // The consumers' end first: it never passes the producers' end as that is read afterwards.
        let head = self.consumers.head.load(Ordering::Acquire);
        let tail = self.producers.tail.load(Ordering::Acquire);
        (tail.wrapping_sub(head) as usize).min(self.slots.len())
    }

    /// Appends all of `cells`, or returns false and appends none if they do not fit.
    pub fn push(&self, cells: &[u32]) -> bool {
        let n = cells.len() as u32;
        let claim = self.claim(&self.producers, n, true, |head| {
            let used = head.wrapping_sub(self.consumers.tail.load(Ordering::Acquire));
            (self.slots.len() as u32).wrapping_sub(used)
        });
        let Some((head, _)) = claim else { return false };
        let (at, end) = self.part(head, cells.len());
        // SAFETY: the range is claimed and not yet published, so no other thread accesses it.
        unsafe {
            self.slots.write(at, &cells[..end]);
            self.slots.write(0, &cells[end..]);
        }
        Self::publish(&self.producers, head, n);
        true
    }

    /// Takes up to `out.len()` cells. Returns how many, and how many are left.
    pub fn pop(&self, out: &mut [u32]) -> (usize, usize) {
        let claim = self.claim(&self.consumers, out.len() as u32, false, |head| {
            self.producers.tail.load(Ordering::Acquire).wrapping_sub(head)
        });
        let Some((head, n)) = claim else { return (0, 0) };
        let (at, end) = self.part(head, n as usize);
        let (first, rest) = out[..n as usize].split_at_mut(end);
        // SAFETY: the range is claimed and not yet published, so no other thread accesses it.
        unsafe {
            self.slots.read(at, first);
            self.slots.read(0, rest);
        }
        Self::publish(&self.consumers, head, n);
        (n as usize, self.producers.tail.load(Ordering::Relaxed).wrapping_sub(head.wrapping_add(n)) as usize)
    }

    /// Returns the array index of position `head`, and how many of `n` entries lie before wraparound.
    fn part(&self, head: u32, n: usize) -> (usize, usize) {
        let at = (head & self.mask) as usize;
        (at, n.min(self.slots.len() - at))
    }

    /// Moves `ends.head` over up to `n` (or, if `exact`, exactly `n`) of the entries that `room` reports. Returns the
    /// old head and the number claimed.
    fn claim(&self, ends: &Ends, n: u32, exact: bool, room: impl Fn(u32) -> u32) -> Option<(u32, u32)> {
        let mut head = ends.head.load(Ordering::Acquire);
        loop {
            let have = room(head);
            // If the head read is stale, it can lie behind the other end; the difference then exceeds the ring size.
            // Retry.
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
        let mut tries = 0u32;
        while ends.tail.load(Ordering::Acquire) != head {
            tries += 1;
            // The thread ahead is probably preempted: with more threads than CPUs, spinning would keep it from running.
            if tries.is_multiple_of(PATIENCE) { thread::yield_now() } else { spin_loop() }
        }
        ends.tail.store(head.wrapping_add(n), Ordering::Release);
    }
}
