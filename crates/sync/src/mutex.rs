//! Mutexes of state that outlives a thread's panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, even if a thread has panicked with it locked.
///
/// A panic is a bug of the thread that it ends, such as one that answers a request. It must not end the threads that
/// lock the same mutex later, and with them forwarding: a thread that only reads leaves everything consistent, and one
/// that makes a change leaves it at worst half done.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_with_the_mutex_locked_is_not_passed_on() {
        let mutex = Mutex::new(1);
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                *lock(&mutex) = 2;
                let _locked = lock(&mutex);
                panic!("a test's panic");
            });
            assert!(panics.join().is_err());
        });
        assert!(mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
    }
}
