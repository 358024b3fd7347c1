//! Where drivers take cells and give them back: the buffers of the worker that is in the driver just now.
//!
//! A driver knows a mempool and no worker. While a port's call is inside it, that worker's [`Buffers`] are named in a
//! variable of the thread, and the mempool's operations use them. Elsewhere (a device that is being set up or closed by
//! the control side) those of the spare access are used, under a lock.

use bywash_frame::{BATCH, Batch, Buffers, Frame, PoolSet, RawFrame};
use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// For calls that no worker makes.
static SPARE: Mutex<Option<Buffers>> = Mutex::new(None);

/// Cells given back in one call of a port, which drivers do one at a time.
struct Given {
    cells: [u32; BATCH],
    n: usize,
}

thread_local! {
    static INSIDE: Cell<Option<NonNull<Buffers>>> = const { Cell::new(None) };
    /// What drivers hold more than before, on this thread's account.
    static TAKEN: Cell<i64> = const { Cell::new(0) };
    static GIVEN: RefCell<Given> = const { RefCell::new(Given { cells: [0; BATCH], n: 0 }) };
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
    GIVEN.with_borrow_mut(|given| give_back(bufs, given));
    (result, TAKEN.get())
}

/// Calls `driver` on behalf of nobody in particular. Returns also how many more cells it holds.
pub fn alone<R>(driver: impl FnOnce() -> R) -> (R, i64) {
    TAKEN.set(0);
    (driver(), TAKEN.get())
}

fn give_back(bufs: &mut Buffers, given: &mut Given) {
    let arena = bufs.arena().clone();
    let raw = |cell: &u32| RawFrame { addr: arena.cell_addr(*cell), len: 0, options: 0 };
    // SAFETY: the driver held these cells and let go of each once.
    unsafe { bufs.free_raw(given.cells[..given.n].iter().map(raw)) };
    given.n = 0;
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
    let taken = bufs(|bufs| {
        let mut batch = Batch::new();
        if bufs.alloc(&mut batch, n) < n {
            bufs.free(&mut batch);
            return false;
        }
        let arena = bufs.arena().clone();
        for (i, frame) in batch.drain().enumerate() {
            // SAFETY: the caller has room for `n`.
            unsafe { cells.add(i).write(arena.cell_of(Frame::into_raw(frame).addr)) };
        }
        true
    });
    if taken == Some(true) {
        TAKEN.set(TAKEN.get() + n as i64);
    }
    c_int::from(taken == Some(true))
}

/// `n` cells back, at most a batch.
pub extern "C" fn give(cells: *const u32, n: u32) {
    // SAFETY: the caller names as many.
    let cells = unsafe { std::slice::from_raw_parts(cells, n as usize) };
    TAKEN.set(TAKEN.get() - cells.len() as i64);
    GIVEN.with_borrow_mut(|given| {
        if given.n + cells.len() > BATCH {
            bufs(|bufs| give_back(bufs, given));
        }
        given.cells[given.n..given.n + cells.len()].copy_from_slice(cells);
        given.n += cells.len();
        if INSIDE.get().is_none() {
            bufs(|bufs| give_back(bufs, given));
        }
    });
}

/// Free cells, of all pools.
pub extern "C" fn count() -> u32 {
    bufs(|bufs| bufs.pools().pools().iter().map(|pool| pool.free()).sum::<usize>() as u32).unwrap_or(0)
}
