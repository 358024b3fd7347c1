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
    state: Mutex<State>,
    close: Box<dyn Fn() + Send + Sync>,
}

#[derive(Clone, Copy, Default)]
struct State {
    /// Number of announcements so far.
    announced: u64,
    /// Set if the gate was opened after the newest announcement.
    open: bool,
}

impl Keeper {
    /// Creates a keeper that closes the gate by calling `close`. The owner provides the gate, initially closed.
    pub fn new(close: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), close: Box::new(close) }))
    }

    /// Closes the gate because the known state may be out of date.
    pub fn close(&self) {
        let mut state = lock(&self.0.state);
        *state = State { announced: state.announced + 1, open: false };
        (self.0.close)();
    }

    /// Returns the number of announcements so far. Taken before the state is read, it identifies the reading.
    pub fn announced(&self) -> u64 {
        lock(&self.0.state).announced
    }

    /// Returns whether the gate was opened after the newest announcement.
    pub fn is_open(&self) -> bool {
        lock(&self.0.state).open
    }

    /// Runs `open` unless a change was announced after reading `number` began; returns whether it ran.
    pub fn open(&self, number: u64, open: impl FnOnce()) -> bool {
        let mut state = lock(&self.0.state);
        let newest = state.announced == number;
        if newest {
            open();
            state.open = true;
        }
        newest
    }
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let State { announced, open } = *lock(&self.0.state);
        f.debug_struct("Keeper").field("announced", &announced).field("open", &open).finish()
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
        assert!(!keeper.is_open());
        assert!(keeper.open(number, || open.store(true, Ordering::Release)));
        assert!(keeper.is_open());
        keeper.close();
        assert!(!open.load(Ordering::Acquire) && !keeper.is_open());
        assert!(!keeper.open(number, || open.store(true, Ordering::Release)));
        assert!(!open.load(Ordering::Acquire) && !keeper.is_open());
        assert!(keeper.open(number + 1, || open.store(true, Ordering::Release)));
    }
}
