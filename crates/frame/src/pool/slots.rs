//! Cell indices in an array that several threads fill and empty, each its own part at a time, in one copy.

use bywash_sync::facade::UnsafeCell;

/// The array. Who may touch which part, and when, is the affair of the pool around it.
pub(super) struct Slots(Box<[UnsafeCell<u32>]>);

// SAFETY: the elements are reached by `read` and `write` only, whose callers keep others from theirs meanwhile.
unsafe impl Send for Slots {}
// SAFETY: as above.
unsafe impl Sync for Slots {}

impl Slots {
    pub fn new(n: usize) -> Self {
        Self((0..n).map(|_| UnsafeCell::new(0)).collect())
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Copies `cells` to the places from `at` on.
    ///
    /// # Safety
    /// No other thread reads or writes these places meanwhile.
    ///
    /// # Panics
    /// When they are not all there.
    #[inline]
    pub unsafe fn write(&self, at: usize, cells: &[u32]) {
        let places = &self.0[at..at + cells.len()];
        #[cfg(not(loom))]
        // SAFETY: as many places as cells, nobody else's now, and in an array of its own. `UnsafeCell<u32>` lies in
        // memory as `u32` does.
        unsafe {
            std::ptr::copy_nonoverlapping(cells.as_ptr(), UnsafeCell::raw_get(places.as_ptr()), cells.len());
        }
        #[cfg(loom)]
        for (place, cell) in places.iter().zip(cells) {
            // SAFETY: nobody else's now, which loom checks.
            place.with_mut(|p| unsafe { *p = *cell });
        }
    }

    /// Copies the places from `at` on to `out`.
    ///
    /// # Safety
    /// No other thread writes these places meanwhile.
    ///
    /// # Panics
    /// When they are not all there.
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
            // SAFETY: nobody writes it now, which loom checks.
            place.with(|p| unsafe { *cell = *p });
        }
    }
}
