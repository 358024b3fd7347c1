//! Quiescent-state based reclamation.
//!
//! A worker announces once per burst that it holds no reference into shared tables
//! ([`Reader::quiescent`], one load and one store to its own cache line). A writer that has unlinked something
//! waits until every worker has announced since ([`Qsbr::synchronize`]) before it frees or reuses it.
//! A worker about to sleep goes [`Reader::offline`], so that a sleeping worker never delays a writer.
//!
//! # Thread-safety
//! [`Qsbr`] is shared; [`Reader`] belongs to one thread. Registration takes a lock, reading never does.

use crate::CachePadded;
use crate::facade::{Arc, AtomicU64, Mutex, Ordering, fence, thread};
use std::sync::PoisonError;

/// A slot's value while its worker is offline.
const OFFLINE: u64 = u64::MAX;

type Slot = Arc<CachePadded<AtomicU64>>;

struct Shared {
    epoch: CachePadded<AtomicU64>,
    slots: Mutex<Vec<Slot>>,
}

/// A reclamation domain: the readers of one set of tables, and the epoch they have seen.
#[derive(Clone)]
pub struct Qsbr {
    shared: Arc<Shared>,
}

/// Token for a grace period: objects unlinked before it may be freed once [`Qsbr::passed`] returns true for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

impl Default for Qsbr {
    fn default() -> Self {
        Self::new()
    }
}

impl Qsbr {
    /// Creates a domain without readers.
    pub fn new() -> Self {
        Self { shared: Arc::new(Shared { epoch: CachePadded::new(AtomicU64::new(1)), slots: Mutex::new(Vec::new()) }) }
    }

    /// Registers a reader, which is online from now on.
    pub fn register(&self) -> Reader {
        let slot: Slot = Arc::new(CachePadded::new(AtomicU64::new(OFFLINE)));
        self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner).push(slot.clone());
        let mut reader = Reader { shared: self.shared.clone(), slot };
        reader.online();
        reader
    }

    /// Starts a grace period. Call it after unlinking, and keep the epoch with the object to be freed.
    pub fn advance(&self) -> Epoch {
        // The unlinking stores must be visible to any reader that announces the new epoch.
        Epoch(self.shared.epoch.fetch_add(1, Ordering::SeqCst) + 1)
    }

    /// Returns whether every online reader has announced a quiescent state since `epoch` began. Waits only for the
    /// registry lock.
    pub fn passed(&self, epoch: Epoch) -> bool {
        fence(Ordering::SeqCst);
        let slots = self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.iter().all(|s| s.load(Ordering::SeqCst) >= epoch.0)
    }

    /// Waits for a whole grace period. For control threads only: a reader that calls it waits for itself.
    pub fn synchronize(&self) {
        let epoch = self.advance();
        while !self.passed(epoch) {
            thread::yield_now();
        }
    }

    /// Returns the number of registered readers.
    pub fn readers(&self) -> usize {
        self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// One thread's membership in a domain. References obtained through it end at the next
/// [`Reader::quiescent`], which the borrow checker enforces.
pub struct Reader {
    shared: Arc<Shared>,
    slot: Slot,
}

impl Reader {
    /// Announces that this thread holds no reference into the domain's tables. Call it once per burst.
    #[inline]
    pub fn quiescent(&mut self) {
        let epoch = self.shared.epoch.load(Ordering::Acquire);
        if self.slot.load(Ordering::Relaxed) != epoch {
            // Release: the burst's reads stay before it. The fence keeps the next burst's reads after it, and
            // runs only when a writer has moved the epoch.
            self.slot.store(epoch, Ordering::Release);
            fence(Ordering::SeqCst);
        }
    }

    /// Returns whether this reader belongs to `domain`.
    #[inline]
    pub fn is_of(&self, domain: &Qsbr) -> bool {
        Arc::ptr_eq(&self.shared, &domain.shared)
    }

    /// Returns whether grace periods wait for this reader.
    #[inline]
    pub fn is_online(&self) -> bool {
        self.slot.load(Ordering::Relaxed) != OFFLINE
    }

    /// Excludes this reader from grace periods until [`Reader::online`]. Call it before sleeping.
    pub fn offline(&mut self) {
        self.slot.store(OFFLINE, Ordering::Release);
    }

    /// Includes this reader in grace periods again after [`Reader::offline`].
    pub fn online(&mut self) {
        // SeqCst store then fence: a writer either sees this reader online or this reader sees the writer's tables.
        let epoch = self.shared.epoch.load(Ordering::SeqCst);
        self.slot.store(epoch, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut slots = self.shared.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.retain(|s| !Arc::ptr_eq(s, &self.slot));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn online_reader_holds_the_epoch_back() {
        let q = Qsbr::new();
        let mut r = q.register();
        let e = q.advance();
        assert!(!q.passed(e));
        r.quiescent();
        assert!(q.passed(e));
    }

    #[test]
    fn offline_and_dropped_readers_do_not() {
        let q = Qsbr::new();
        let mut r = q.register();
        r.offline();
        let e = q.advance();
        assert!(q.passed(e));
        r.online();
        let e = q.advance();
        assert!(!q.passed(e));
        drop(r);
        assert!(q.passed(e));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::facade::AtomicUsize;

    /// A reader that loads the index before the swap must not see the slot poisoned while it holds it.
    #[test]
    fn nothing_is_freed_under_a_reader() {
        loom::model(|| {
            let q = Qsbr::new();
            let index = Arc::new(AtomicUsize::new(0));
            let alive = Arc::new([AtomicUsize::new(1), AtomicUsize::new(1)]);
            let mut reader = q.register();
            let (i, a) = (index.clone(), alive.clone());
            let t = thread::spawn(move || {
                for _ in 0..2 {
                    let at = i.load(Ordering::Acquire);
                    assert_eq!(a[at].load(Ordering::Relaxed), 1);
                    reader.quiescent();
                }
            });
            index.store(1, Ordering::Release);
            let epoch = q.advance();
            if q.passed(epoch) {
                alive[0].store(0, Ordering::Relaxed);
            }
            t.join().unwrap();
        });
    }
}
