//! Array of cell indices that several threads fill and empty in bulk, each its own part at a time.

use bywash_sync::facade::UnsafeCell;

/// The array. The surrounding pool decides which thread may access which part.
pub(super) struct Slots(Box<[UnsafeCell<u32>]>);

// SAFETY: the elements are reached by `read` and `write` only, whose callers exclude others from their range meanwhile.
unsafe impl Send for Slots {}
// SAFETY: as for `Send`.
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
    /// # Safety
    /// No other thread reads or writes these elements meanwhile.
    ///
    /// # Panics
    /// If the range exceeds the array.
    #[inline]
    pub unsafe fn write(&self, at: usize, cells: &[u32]) {
        let places = &self.0[at..at + cells.len()];
        #[cfg(not(loom))]
        // SAFETY: as many elements as cells, not accessed by others now, and in an array of its own. `UnsafeCell<u32>`
        // has the memory layout of `u32`.
        unsafe {
            std::ptr::copy_nonoverlapping(cells.as_ptr(), UnsafeCell::raw_get(places.as_ptr()), cells.len());
        }
        #[cfg(loom)]
        for (place, cell) in places.iter().zip(cells) {
            // SAFETY: not accessed by others now, which loom checks.
            place.with_mut(|p| unsafe { *p = *cell });
        }
    }

    /// Copies the elements from `at` on to `out`.
    ///
    /// # Safety
    /// No other thread writes these elements meanwhile.
    ///
    /// # Panics
    /// If the range exceeds the array.
    #[inline]
    pub unsafe fn read(&self, at: usize, out: &mut [u32]) {
        let places = &self.0[at..at + out.len()];
        #[cfg(not(loom))]
        // SAFETY: as for `write`.
        unsafe {
            std::ptr::copy_nonoverlapping(UnsafeCell::raw_get(places.as_ptr()), out.as_mut_ptr(), out.len());
        }
        #[cfg(loom)]
        for (place, cell) in places.iter().zip(out) {
            // SAFETY: not written by others now, which loom checks.
            place.with(|p| unsafe { *cell = *p });
        }
    }
}
