//! One AF_XDP ring: an array and two indices in memory shared with the kernel.
//!
//! Each of the four rings has one producer and one consumer. Indices are free-running `u32`s that wrap at 2^32; an
//! entry's slot is its index modulo the ring's size, a power of two. The producer's store-release of its index passes
//! the entries on, and the consumer's store-release returns the slots (net/xdp/xsk_queue.h of Linux). Both sides keep a
//! copy of the other's index and read the shared one only when the copy leaves too few entries, so that the index's
//! cache line does not bounce on every burst.

use std::any::Any;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// `XDP_RING_NEED_WAKEUP` (linux/if_xdp.h).
const NEED_WAKEUP: u32 = 1;

/// Memory of a ring, with the owner that keeps it mapped.
pub(crate) struct Memory<T> {
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: Option<NonNull<AtomicU32>>,
    entries: NonNull<T>,
    size: u32,
    _owner: Box<dyn Any + Send>,
    _entries: PhantomData<T>,
}

// SAFETY: the pointers lead into memory that `_owner`, itself Send, keeps mapped; only the owner of the ring uses them.
unsafe impl<T: Send> Send for Memory<T> {}

impl<T: Copy> Memory<T> {
    /// # Safety
    /// While `owner` exists, the pointers are aligned and valid: the indices for atomic access, `entries` for `size`
    /// entries of `T`, any bit pattern of which is a `T`. `size` is a power of two. Only the one opposite side touches
    /// this memory, and it follows the ring's protocol.
    pub(crate) unsafe fn new(
        producer: NonNull<AtomicU32>,
        consumer: NonNull<AtomicU32>,
        flags: Option<NonNull<AtomicU32>>,
        entries: NonNull<T>,
        size: u32,
        owner: Box<dyn Any + Send>,
    ) -> Self {
        // SAFETY: the accessors below dereference the pointers and rely on this contract; `_owner` makes it last.
        debug_assert!(size.is_power_of_two());
        Self { producer, consumer, flags, entries, size, _owner: owner, _entries: PhantomData }
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: valid as long as the owner, by the contract of `new`.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: valid as long as the owner, by the contract of `new`.
        unsafe { self.consumer.as_ref() }
    }

    #[inline]
    fn slot(&self, index: u32) -> NonNull<T> {
        // SAFETY: masked to below `size`.
        unsafe { self.entries.add((index & (self.size - 1)) as usize) }
    }

    fn wants_wakeup(&self) -> bool {
        // SAFETY: valid as long as the owner, by the contract of `new`.
        self.flags.is_none_or(|f| unsafe { f.as_ref() }.load(Ordering::Relaxed) & NEED_WAKEUP != 0)
    }
}

/// Producing end of a ring: of the fill and the TX ring.
pub(crate) struct Producer<T> {
    ring: Memory<T>,
    /// Own index.
    head: u32,
    /// Consumer's index as last read.
    tail: u32,
}

impl<T: Copy> Producer<T> {
    pub(crate) fn new(ring: Memory<T>) -> Self {
        let head = ring.producer().load(Ordering::Relaxed);
        let tail = ring.consumer().load(Ordering::Acquire);
        Self { ring, head, tail }
    }

    pub(crate) fn size(&self) -> u32 {
        self.ring.size
    }

    /// Returns the number of free slots, at most `want`.
    #[inline]
    pub(crate) fn free(&mut self, want: u32) -> u32 {
        if self.room() < want {
            // Acquire: the consumer has read the slots it hands back.
            self.tail = self.ring.consumer().load(Ordering::Acquire);
        }
        self.room().min(want)
    }

    fn room(&self) -> u32 {
        self.ring.size.saturating_sub(self.head.wrapping_sub(self.tail))
    }

    /// Writes the entry `at` places after the last one submitted; `at` must be less than the result of `free`.
    #[inline]
    pub(crate) fn put(&mut self, at: u32, entry: T) {
        debug_assert!(at < self.room());
        // SAFETY: a slot inside the ring; free, so that the consumer does not read it.
        unsafe { self.ring.slot(self.head.wrapping_add(at)).write(entry) }
    }

    /// Submits the first `n` entries written.
    #[inline]
    pub(crate) fn submit(&mut self, n: u32) {
        self.head = self.head.wrapping_add(n);
        // Release: the entries are written before the consumer can see them.
        self.ring.producer().store(self.head, Ordering::Release);
    }

    /// Returns the number of submitted entries that the consumer has not taken.
    pub(crate) fn pending(&mut self) -> u32 {
        self.tail = self.ring.consumer().load(Ordering::Acquire);
        self.head.wrapping_sub(self.tail)
    }

    /// Returns whether the kernel needs a system call to go on; always true if the ring has no flags.
    #[inline]
    pub(crate) fn wants_wakeup(&self) -> bool {
        self.ring.wants_wakeup()
    }
}

/// Consuming end of a ring: of the RX and the completion ring.
pub(crate) struct Consumer<T> {
    ring: Memory<T>,
    /// Own index.
    tail: u32,
    /// Producer's index as last read.
    head: u32,
}

impl<T: Copy> Consumer<T> {
    pub(crate) fn new(ring: Memory<T>) -> Self {
        let tail = ring.consumer().load(Ordering::Relaxed);
        let head = ring.producer().load(Ordering::Acquire);
        Self { ring, tail, head }
    }

    pub(crate) fn size(&self) -> u32 {
        self.ring.size
    }

    /// Returns the number of entries ready to read, at most `want`.
    #[inline]
    pub(crate) fn ready(&mut self, want: u32) -> u32 {
        if self.waiting() < want {
            // Acquire: the entries are read after the index that hands them over.
            self.head = self.ring.producer().load(Ordering::Acquire);
        }
        self.waiting().min(want)
    }

    /// Returns the number of entries known to be ready, without reading the shared index.
    #[inline]
    pub(crate) fn waiting(&self) -> u32 {
        self.head.wrapping_sub(self.tail).min(self.ring.size)
    }

    /// Reads the entry `at` places after the last one released; `at` must be less than the result of `ready`.
    #[inline]
    pub(crate) fn get(&self, at: u32) -> T {
        debug_assert!(at < self.waiting());
        // SAFETY: a slot inside the ring, handed over by the producer and not yet handed back.
        unsafe { self.ring.slot(self.tail.wrapping_add(at)).read() }
    }

    /// Returns the first `n` slots to the producer.
    #[inline]
    pub(crate) fn release(&mut self, n: u32) {
        self.tail = self.tail.wrapping_add(n);
        // Release: the entries are read before the producer can overwrite them.
        self.ring.consumer().store(self.tail, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    struct Heap {
        producer: AtomicU32,
        consumer: AtomicU32,
        entries: Vec<u64>,
    }

    /// Returns both ends of one ring in ordinary memory, its indices starting at `at`.
    fn ring(size: u32, at: u32) -> (Producer<u64>, Consumer<u64>) {
        let heap = Box::new(Heap { producer: at.into(), consumer: at.into(), entries: vec![0; size as usize] });
        let heap: &'static mut Heap = Box::leak(heap);
        let entries = NonNull::new(heap.entries.as_mut_ptr()).unwrap();
        let heap: &'static Heap = heap;
        // SAFETY: leaked, so valid for good; one producer and one consumer are made of it.
        let end = || unsafe {
            Memory::new((&heap.producer).into(), (&heap.consumer).into(), None, entries, size, Box::new(()))
        };
        (Producer::new(end()), Consumer::new(end()))
    }

    proptest! {
        /// Compares the ring with a queue, across the wraparound of the indices at 2^32.
        #[test]
        fn is_a_bounded_queue(
            log_size in 0u32..7,
            back in 0u32..200,
            steps in proptest::collection::vec((any::<bool>(), 0u32..80, 0u32..80), 1..200),
        ) {
            let size = 1 << log_size;
            let (mut producer, mut consumer) = ring(size, 0u32.wrapping_sub(back));
            let mut model = VecDeque::new();
            let mut next = 0u64;
            for (produce, want, part) in steps {
                if produce {
                    let free = producer.free(want);
                    prop_assert_eq!(free, want.min(size - model.len() as u32));
                    let n = free.min(part);
                    for i in 0..n {
                        producer.put(i, next);
                        model.push_back(next);
                        next += 1;
                    }
                    producer.submit(n);
                } else {
                    let ready = consumer.ready(want);
                    prop_assert_eq!(ready, want.min(model.len() as u32));
                    let n = ready.min(part);
                    for i in 0..n {
                        prop_assert_eq!(consumer.get(i), model.pop_front().unwrap());
                    }
                    consumer.release(n);
                }
                prop_assert_eq!(producer.pending(), model.len() as u32);
            }
        }
    }

    #[test]
    fn two_threads_agree_across_the_wrap() {
        let (mut producer, mut consumer) = ring(64, u32::MAX - 5000);
        const N: u64 = 100_000;
        std::thread::scope(|s| {
            s.spawn(move || {
                let mut next = 0;
                while next < N {
                    let n = producer.free(17).min((N - next) as u32);
                    (0..n).for_each(|i| producer.put(i, next + u64::from(i)));
                    producer.submit(n);
                    next += u64::from(n);
                    if n == 0 {
                        std::thread::yield_now();
                    }
                }
            });
            let mut next = 0;
            while next < N {
                let n = consumer.ready(13);
                (0..n).for_each(|i| assert_eq!(consumer.get(i), next + u64::from(i)));
                consumer.release(n);
                next += u64::from(n);
                if n == 0 {
                    std::thread::yield_now();
                }
            }
        });
    }
}
