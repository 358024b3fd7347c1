//! Where drivers take cells and give them back: the buffers of the worker that is in the driver just now.
//!
//! A driver knows a mempool and no worker. While a port's call is inside it, that worker's [`Buffers`] are named in a
//! variable of the thread, and the mempool's operations use them. Elsewhere (a device that is being set up or closed by
//! the control side) those of the spare access are used, under a lock.

use bywash_frame::{Buffers, PoolSet};
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// For calls that no worker makes.
static SPARE: Mutex<Option<Buffers>> = Mutex::new(None);

thread_local! {
    static INSIDE: Cell<Option<NonNull<Buffers>>> = const { Cell::new(None) };
    /// What drivers hold more than before, on this thread's account.
    static TAKEN: Cell<i64> = const { Cell::new(0) };
}

/// From now on there are pools for calls that no worker makes; or none any more.
pub fn spare(pools: Option<&Arc<PoolSet>>) {
    *SPARE.lock().unwrap_or_else(PoisonError::into_inner) = pools.map(|pools| Buffers::attach(pools, 0));
}

/// Calls `driver`, which may take and give cells: of `bufs`. Returns what it returned, and how many more cells it holds.
#[inline]
pub fn with<R>(bufs: &mut Buffers, driver: impl FnOnce() -> R) -> (R, i64) {
    INSIDE.set(Some(NonNull::from(&mut *bufs)));
    TAKEN.set(0);
    let result = driver();
    INSIDE.set(None);
    (result, TAKEN.get())
}

/// Calls `driver` on behalf of nobody in particular. Returns also how many more cells it holds.
pub fn alone<R>(driver: impl FnOnce() -> R) -> (R, i64) {
    TAKEN.set(0);
    (driver(), TAKEN.get())
}

/// Runs `f` with the buffers of this call.
fn bufs<R>(f: impl FnOnce(&mut Buffers) -> R) -> Option<R> {
    if let Some(mut inside) = INSIDE.get() {
        // SAFETY: `with` holds the only reference, and does nothing with it while the driver runs on this thread.
        return Some(f(unsafe { inside.as_mut() }));
    }
    SPARE.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(f)
}

/// `n` cells, at most a batch, or none: 0.
pub extern "C" fn take(cells: *mut u32, n: u32) -> c_int {
    let n = n as usize;
    // SAFETY: the caller has room for `n`.
    let cells = unsafe { std::slice::from_raw_parts_mut(cells, n) };
    let taken = bufs(|bufs| {
        let got = bufs.alloc_cells(cells);
        if got < n {
            // SAFETY: just taken.
            unsafe { bufs.free_cells(&mut cells[..got]) };
        }
        got == n
    });
    if taken == Some(true) {
        TAKEN.set(TAKEN.get() + n as i64);
    }
    c_int::from(taken == Some(true))
}

/// `n` cells back, at most a batch. Their order may change.
pub extern "C" fn give(cells: *mut u32, n: u32) {
    // SAFETY: the caller names as many.
    let cells = unsafe { std::slice::from_raw_parts_mut(cells, n as usize) };
    TAKEN.set(TAKEN.get() - cells.len() as i64);
    // SAFETY: the driver held these cells and let go of each once.
    bufs(|bufs| unsafe { bufs.free_cells(cells) });
}

/// Free cells, of all pools.
pub extern "C" fn count() -> u32 {
    bufs(|bufs| bufs.pools().pools().iter().map(|pool| pool.free()).sum::<usize>() as u32).unwrap_or(0)
}
