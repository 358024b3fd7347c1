//! Cell allocation for DPDK drivers, from the buffers of the worker that is calling the driver.
//!
//! A driver knows a mempool but no worker. During a port's call into the driver, a thread-local variable refers to the
//! worker's [`Buffers`], and the mempool operations use those. Other calls (the control side sets up or closes a
//! device) use spare buffers under a lock.

use crate::ffi::{self, Call};
use bywash_frame::{Buffers, PoolSet};
use bywash_sync::lock;
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// Buffers for calls not made by a worker.
static SPARE: Mutex<Option<Buffers>> = Mutex::new(None);

thread_local! {
    static INSIDE: Cell<Option<NonNull<Buffers>>> = const { Cell::new(None) };
    /// Net number of cells that drivers took on this thread since it was last reset.
    static TAKEN: Cell<i64> = const { Cell::new(0) };
}

/// Sets the pools for calls not made by a worker, or removes them.
pub fn spare(pools: Option<&Arc<PoolSet>>) {
    *lock(&SPARE) = pools.map(|pools| Buffers::attach(pools, 0));
}

/// Calls `driver`, which may take and free cells of `bufs`, and keep free ones in the cache of this thread's lcore.
/// Fills in `call` for it. Returns its result and the net number of cells that the driver took.
#[inline]
pub fn with<R>(bufs: &mut Buffers, call: &mut Call, driver: impl FnOnce(&mut Call) -> R) -> (R, i64) {
    bufs.follow();
    let lent = bufs.lent();
    (call.first, call.count) = lent.cells;
    (call.keep, call.mixed) = (lent.most as u32, lent.mixed);
    INSIDE.set(Some(NonNull::from(&mut *bufs)));
    TAKEN.set(0);
    let result = driver(call);
    INSIDE.set(None);
    bufs.lend(call.kept as usize);
    (result, TAKEN.get() - i64::from(call.kept) + lent.now as i64)
}

/// Calls `driver` without a worker; it uses the spare buffers. Returns its result and the net number of cells it took.
pub fn alone<R>(driver: impl FnOnce() -> R) -> (R, i64) {
    TAKEN.set(0);
    let cached = ffi::bywash_dpdk_cached();
    let result = driver();
    ffi::bywash_dpdk_restore(cached);
    (result, TAKEN.get())
}

/// Runs `f` with the buffers of this call: those of [`with`], otherwise the spare ones. `None` if there are none.
fn bufs<R>(f: impl FnOnce(&mut Buffers) -> R) -> Option<R> {
    if let Some(mut inside) = INSIDE.get() {
        // SAFETY: `with` holds the only reference, and does nothing with it while the driver runs on this thread.
        return Some(f(unsafe { inside.as_mut() }));
    }
    lock(&SPARE).as_mut().map(f)
}

/// Takes `n` cells, at most a batch. Returns 1, or 0 if not all of them are available, and then takes none.
pub extern "C" fn take(cells: *mut u32, n: u32) -> c_int {
    let n = n as usize;
    // SAFETY: the caller provides room for `n` cells.
    let cells = unsafe { std::slice::from_raw_parts_mut(cells, n) };
    let taken = bufs(|bufs| {
        let got = bufs.alloc_cells(cells);
        if got < n {
            // SAFETY: allocated above and not used.
            unsafe { bufs.free_cells(&mut cells[..got]) };
        }
        got == n
    });
    if taken == Some(true) {
        TAKEN.set(TAKEN.get() + n as i64);
    }
    c_int::from(taken == Some(true))
}

/// Frees `n` cells, at most a batch. May reorder the array.
pub extern "C" fn give(cells: *mut u32, n: u32) {
    // SAFETY: the caller passes `n` cells.
    let cells = unsafe { std::slice::from_raw_parts_mut(cells, n as usize) };
    TAKEN.set(TAKEN.get() - cells.len() as i64);
    // SAFETY: the driver held these cells and frees each of them once.
    bufs(|bufs| unsafe { bufs.free_cells(cells) });
}

/// Returns the number of free cells in all pools.
pub extern "C" fn count() -> u32 {
    bufs(|bufs| bufs.pools().pools().iter().map(|pool| pool.free()).sum::<usize>() as u32).unwrap_or(0)
}
