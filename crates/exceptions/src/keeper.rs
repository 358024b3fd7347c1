//! The gate that the watcher closes on a notification from the kernel and the control side opens again.

use bywash_sync::lock;
use std::sync::{Arc, Mutex};

/// Closes the gate when the kernel announces a change, and lets it open only for the newest reading. Clones share one
/// gate.
///
/// # Thread-safety
/// Any thread may call it. The closing function runs under a lock that [`Keeper::open`] takes too: it must be short and
/// must not call back into the keeper.
#[derive(Clone)]
pub struct Keeper(Arc<Inner>);

struct Inner {
    /// Number of announcements so far.
    announced: Mutex<u64>,
    close: Box<dyn Fn() + Send + Sync>,
}

impl Keeper {
    /// Creates a keeper that closes the gate by calling `close`. The owner provides the gate, initially closed.
    pub fn new(close: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { announced: Mutex::new(0), close: Box::new(close) }))
    }

    /// Closes the gate because the known state may be out of date.
    pub(crate) fn close(&self) {
        let mut announced = lock(&self.0.announced);
        *announced += 1;
        (self.0.close)();
    }

    /// Returns the number of announcements so far. Taken before the state is read, it identifies the reading.
    pub(crate) fn announced(&self) -> u64 {
        *lock(&self.0.announced)
    }

    /// Runs `open` unless a change was announced after reading `number` began; returns whether it ran.
    pub fn open(&self, number: u64, open: impl FnOnce()) -> bool {
        let announced = lock(&self.0.announced);
        let newest = *announced == number;
        if newest {
            open();
        }
        newest
    }
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("announced", &self.announced()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn only_the_newest_reading_opens() {
        let open = Arc::new(AtomicBool::new(false));
        let gate = open.clone();
        let keeper = Keeper::new(move || gate.store(false, Ordering::Release));
        let number = keeper.announced();
        assert!(keeper.open(number, || open.store(true, Ordering::Release)));
        keeper.close();
        assert!(!open.load(Ordering::Acquire));
        assert!(!keeper.open(number, || open.store(true, Ordering::Release)));
        assert!(!open.load(Ordering::Acquire));
        assert!(keeper.open(number + 1, || open.store(true, Ordering::Release)));
    }
}
