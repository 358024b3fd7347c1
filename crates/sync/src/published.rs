//! Snapshot that one writer replaces as a whole and many readers use without a lock.

use crate::facade::{AtomicPtr, Ordering};
use crate::qsbr::{Qsbr, Reader};

/// Current version of an immutable `T`. Readers see one version for a whole burst; the writer frees an old version only
/// after a grace period of the domain.
///
/// # Thread-safety
/// Any number of readers of the same [`Qsbr`] may load concurrently. Writers must serialise themselves.
pub struct Published<T> {
    current: AtomicPtr<T>,
    domain: Qsbr,
}

// SAFETY: a `Published` hands out `&T` to readers on other threads and drops `T` on the writer's.
unsafe impl<T: Send + Sync> Sync for Published<T> {}
// SAFETY: as for `Sync`; the pointer is owned.
unsafe impl<T: Send + Sync> Send for Published<T> {}

impl<T> Published<T> {
    /// Creates the first version, `first`, in `domain`.
    pub fn new(domain: &Qsbr, first: T) -> Self {
        Self { current: AtomicPtr::new(Box::into_raw(Box::new(first))), domain: domain.clone() }
    }

    /// Returns the current version, valid until the reader's next quiescent state. `reader` must belong to the domain
    /// given to [`Published::new`], and be online.
    ///
    /// # Panics
    /// If it is not.
    #[inline]
    pub fn load<'r>(&'r self, reader: &'r Reader) -> &'r T {
        assert!(reader.is_of(&self.domain), "reader of another domain");
        assert!(reader.is_online(), "reader is offline");
        // SAFETY: the pointer came from a Box; it is freed only after a grace period, which waits for `reader`, and the
        // returned borrow keeps `reader` from announcing one and from going offline.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// Replaces the version, waits for a grace period and frees the old version. On return every reader uses the new
    /// version. Callers must serialise themselves; for control threads only.
    pub fn replace(&self, next: T) {
        let old = self.current.swap(Box::into_raw(Box::new(next)), Ordering::AcqRel);
        self.domain.synchronize();
        // SAFETY: unlinked above and no reader holds it after the grace period; each pointer is swapped out once.
        drop(unsafe { Box::from_raw(old) });
    }
}

impl<T> Drop for Published<T> {
    fn drop(&mut self) {
        let last = self.current.load(Ordering::Acquire);
        // SAFETY: `&mut self`: no reader can hold a borrow of it.
        drop(unsafe { Box::from_raw(last) });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    #[should_panic(expected = "reader is offline")]
    fn an_offline_reader_cannot_load() {
        let domain = Qsbr::new();
        let (p, mut reader) = (Published::new(&domain, 1), domain.register());
        reader.offline();
        p.load(&reader);
    }

    #[test]
    fn readers_see_whole_versions_while_they_are_replaced() {
        let domain = Qsbr::new();
        let p = Arc::new(Published::new(&domain, vec![0u64; 64]));
        let stop = Arc::new(AtomicBool::new(false));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (p, stop, mut r) = (p.clone(), stop.clone(), domain.register());
                std::thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let v = p.load(&r);
                        assert!(v.iter().all(|x| *x == v[0]));
                        r.quiescent();
                    }
                })
            })
            .collect();
        for n in 1..500 {
            p.replace(vec![n; 64]);
        }
        stop.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|t| t.join().unwrap());
    }
}
