//! Array of cell indices that several threads fill and empty in bulk, each its own part at a time.

use bywash_sync::facade::UnsafeCell;

/// The array. The surrounding pool decides which thread may access which part.
pub(super) struct Slots(Box<[UnsafeCell<u32>]>);

// SAFETY: the elements are plain numbers, which may move to another thread.
unsafe impl Send for Slots {}
// SAFETY: only `read` and `write` reach the elements, and their callers let no other thread write those elements, or in
// the case of `write` read them, at the same time.
unsafe impl Sync for Slots {}

impl Slots {
    pub fn new(n: usize) -> Self {
        Self((0..n).map(|_| UnsafeCell::new(0)).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Copies `cells` to the elements from `at` on.
    ///
    /// # Panics
    /// If the range exceeds the array.
    ///
    /// # Safety
    /// No other thread reads or writes these elements meanwhile.
    #[inline]
    pub unsafe fn write(&self, at: usize, cells: &[u32]) {
        let places = &self.0[at..at + cells.len()];
        #[cfg(not(loom))]
        // SAFETY: `places` has as many elements as `cells`, overlaps with it nowhere since it is behind an
        // `UnsafeCell`, and is not accessed by others now, by contract. `UnsafeCell<u32>` has the memory layout of
        // `u32`.
        unsafe {
            std::ptr::copy_nonoverlapping(cells.as_ptr(), UnsafeCell::raw_get(places.as_ptr()), cells.len());
        }
        #[cfg(loom)]
        for (place, cell) in places.iter().zip(cells) {
            // SAFETY: not accessed by others now, by contract; loom checks it.
            place.with_mut(|p| unsafe { *p = *cell });
        }
    }

    /// Copies the elements from `at` on to `out`.
    ///
    /// # Panics
    /// If the range exceeds the array.
    ///
    /// # Safety
    /// No other thread writes these elements meanwhile.
    #[inline]
    pub unsafe fn read(&self, at: usize, out: &mut [u32]) {
        let places = &self.0[at..at + out.len()];
        #[cfg(not(loom))]
        // SAFETY: as for `write`; reads by others do not conflict.
        unsafe {
            std::ptr::copy_nonoverlapping(UnsafeCell::raw_get(places.as_ptr()), out.as_mut_ptr(), out.len());
        }
        #[cfg(loom)]
        for (place, cell) in places.iter().zip(out) {
            // SAFETY: not written by others now, by contract; loom checks it.
            place.with(|p| unsafe { *cell = *p });
        }
    }
}
