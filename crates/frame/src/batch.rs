//! A burst of frames.

use crate::{Frame, RawFrame};
use std::mem::MaybeUninit;

/// Maximum number of frames in a batch.
pub const BATCH: usize = 64;

/// Up to [`BATCH`] frames in order, without heap allocation. Like a [`Frame`], a batch must be emptied before it is
/// dropped.
pub struct Batch {
    len: usize,
    frames: [MaybeUninit<Frame>; BATCH],
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// Creates an empty batch.
    #[inline]
    pub fn new() -> Self {
        Self { len: 0, frames: [const { MaybeUninit::uninit() }; BATCH] }
    }

    /// Returns the number of frames.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the batch is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns how many more frames fit.
    #[inline]
    pub fn room(&self) -> usize {
        BATCH - self.len
    }

    /// Appends one frame, or returns it as the error if the batch is full.
    #[inline]
    pub fn push(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.len == BATCH {
            return Err(frame);
        }
        self.frames[self.len].write(frame);
        self.len += 1;
        Ok(())
    }

    /// Returns the free entries, for a device to write frames to.
    #[inline]
    pub fn spare(&mut self) -> &mut [MaybeUninit<Frame>] {
        &mut self.frames[self.len..]
    }

    /// Appends the first `n` entries of [`Batch::spare`].
    ///
    /// # Panics
    /// If there are fewer.
    ///
    /// # Safety
    /// The caller must have written a frame to each of these entries that [`Frame::from_raw`] would accept.
    #[inline]
    pub unsafe fn append(&mut self, n: usize) {
        assert!(n <= self.room(), "batch too full");
        // SAFETY: all other functions take the entries below `len` for initialised frames, which these are by contract.
        self.len += n;
    }

    /// Appends a frame for each of `cells`.
    ///
    /// # Panics
    /// If they do not all fit.
    #[inline]
    pub(crate) fn extend_from<T: Copy>(&mut self, cells: &[T], mut make: impl FnMut(T) -> Frame) {
        assert!(cells.len() <= self.room(), "batch too full");
        for (slot, cell) in self.frames[self.len..].iter_mut().zip(cells) {
            slot.write(make(*cell));
        }
        self.len += cells.len();
    }

    /// Removes and returns the last frame.
    #[inline]
    pub fn pop(&mut self) -> Option<Frame> {
        if self.len == 0 {
            return None;
        }
        self.len -= 1;
        // SAFETY: the first `len` entries were written, and this one is now behind `len`.
        Some(unsafe { self.frames[self.len].assume_init_read() })
    }

    /// Returns the frames, in order.
    #[inline]
    pub fn as_slice(&self) -> &[Frame] {
        // SAFETY: the first `len` entries are initialised; MaybeUninit<T> has the layout of T.
        unsafe { std::slice::from_raw_parts(self.frames.as_ptr().cast(), self.len) }
    }

    /// Returns the frames, in order, mutable.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [Frame] {
        // SAFETY: as in `as_slice`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.frames.as_mut_ptr().cast(), self.len) }
    }

    /// Removes all frames, in order. Frames not yet yielded when the iterator is dropped are leaked: run it to its end.
    #[inline]
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = Frame> + '_ {
        let n = std::mem::take(&mut self.len);
        // SAFETY: the first `n` entries were initialised and are read once each; `len` is already 0.
        self.frames[..n].iter().map(|f| unsafe { f.assume_init_read() })
    }

    /// Passes all frames to `filter`, in order, each with its index, and keeps those that it gives back.
    #[inline]
    pub fn filter(&mut self, mut filter: impl FnMut(usize, Frame) -> Option<Frame>) {
        // With the batch empty meanwhile, a panic leaks frames instead of leaving them in two places.
        let (n, mut kept) = (std::mem::take(&mut self.len), 0);
        for at in 0..n.min(BATCH) {
            // SAFETY: the first `n` entries were initialised, and are read once each: entries are written only at or
            // before the last one read.
            let frame = unsafe { self.frames[at].assume_init_read() };
            if let Some(frame) = filter(at, frame) {
                self.frames[kept].write(frame);
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Passes the first `n` frames to `take` as descriptors, and moves the remaining ones to the front.
    #[inline]
    pub fn take_front(&mut self, n: usize, mut take: impl FnMut(usize, RawFrame)) {
        let n = n.min(self.len);
        for (i, f) in self.as_slice()[..n].iter().enumerate() {
            take(i, f.raw());
        }
        self.remove_front(n);
    }

    /// Moves up to `other.room()` frames from the front of `self` to the end of `other`.
    #[inline]
    pub fn move_to(&mut self, other: &mut Batch) -> usize {
        self.move_front(BATCH, other)
    }

    /// Moves up to `n` and `other.room()` frames from the front of `self` to the end of `other`.
    #[inline]
    pub fn move_front(&mut self, n: usize, other: &mut Batch) -> usize {
        let n = n.min(self.len).min(other.room());
        for (to, from) in other.frames[other.len..other.len + n].iter_mut().zip(&self.frames[..n]) {
            // SAFETY: the entry is initialised, and forgotten by `remove_front` below.
            to.write(unsafe { from.assume_init_read() });
        }
        other.len += n;
        self.remove_front(n);
        n
    }

    #[inline]
    fn remove_front(&mut self, n: usize) {
        debug_assert!(n <= self.len);
        if n < self.len {
            // SAFETY: both ranges lie inside the array; entries are moved bitwise and the tail forgotten by `len`.
            unsafe {
                let p = self.frames.as_mut_ptr();
                std::ptr::copy(p.add(n), p, self.len - n);
            }
        }
        self.len -= n;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn frame(n: u64) -> Frame {
        // SAFETY: never used to reach memory.
        unsafe { Frame::from_raw(RawFrame { addr: n, len: 0, options: 0 }) }
    }

    fn addrs(b: &Batch) -> Vec<u64> {
        b.as_slice().iter().map(Frame::addr).collect()
    }

    #[test]
    fn keeps_order_through_partial_takes() {
        let mut b = Batch::new();
        (0..10).for_each(|n| b.push(frame(n)).unwrap());
        let mut seen = vec![];
        b.take_front(4, |i, raw| seen.push((i, raw.addr)));
        assert_eq!(seen, [(0, 0), (1, 1), (2, 2), (3, 3)]);
        assert_eq!(addrs(&b), [4, 5, 6, 7, 8, 9]);
        assert_eq!(b.drain().map(|f| f.addr()).collect::<Vec<_>>(), [4, 5, 6, 7, 8, 9]);
        assert!(b.is_empty());
    }

    #[test]
    fn filters_in_order() {
        let mut b = Batch::new();
        (0..10).for_each(|n| b.push(frame(n)).unwrap());
        let mut gone = vec![];
        b.filter(|at, frame| {
            assert_eq!(at as u64, frame.addr());
            if at % 3 == 0 {
                gone.push(frame);
                return None;
            }
            Some(frame)
        });
        assert_eq!(addrs(&b), [1, 2, 4, 5, 7, 8]);
        assert_eq!(gone.iter().map(Frame::addr).collect::<Vec<_>>(), [0, 3, 6, 9]);
        let mut c = Batch::new();
        assert_eq!(b.move_front(2, &mut c), 2);
        assert_eq!((addrs(&c), addrs(&b)), (vec![1, 2], vec![4, 5, 7, 8]));
    }

    #[test]
    fn refuses_the_65th() {
        let mut b = Batch::new();
        (0..BATCH as u64).for_each(|n| b.push(frame(n)).unwrap());
        assert_eq!(b.push(frame(99)).unwrap_err().addr(), 99);
        let mut c = Batch::new();
        (0..60).for_each(|n| c.push(frame(n)).unwrap());
        assert_eq!(b.move_to(&mut c), 4);
        assert_eq!(b.as_slice()[0].addr(), 4);
        assert_eq!(c.len(), BATCH);
    }
}
