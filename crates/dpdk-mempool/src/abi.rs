//! Functions declared in `shim/mempool.c`. None of them panics on arguments that a caller may pass.

use crate::Objects;
use bywash_frame::{CellPool, PoolKind};
use std::ffi::{c_int, c_void};

/// Object behind a mempool's `pool_data`.
pub struct Mempool {
    pool: CellPool,
    objects: Objects,
}

/// Numbers of objects converted between numbers and addresses at a time: for short and for long requests.
const SOME: usize = 64;
const MANY: usize = 512;

impl Mempool {
    fn take<const N: usize>(&self, taker: usize, out: &mut [usize]) -> bool {
        let mut cells = [0; N];
        for at in (0..out.len()).step_by(N) {
            let (before, rest) = out.split_at_mut(at);
            let n = rest.len().min(N);
            if !self.pool.take(taker, &mut cells[..n]) {
                self.give::<N>(before);
                return false;
            }
            rest.iter_mut().zip(&cells[..n]).for_each(|(to, cell)| *to = self.objects.address(*cell));
        }
        true
    }

    fn give<const N: usize>(&self, all: &[usize]) -> bool {
        let mut cells = [0; N];
        let mut good = true;
        for some in all.chunks(N) {
            let mut n = 0;
            for address in some {
                match self.objects.number(*address) {
                    Some(cell) => {
                        cells[n] = cell;
                        n += 1;
                    }
                    None => good = false,
                }
            }
            good &= self.pool.give(&cells[..n]);
        }
        good
    }
}

/// Creates a mempool for `count` objects at distances of `stride` bytes, none of which is in it yet. `kind` is 0 for
/// `stack`, 1 for `sdb`, 2 for `tabm`; `takers` is the number of threads with a block of their own; `block` is the
/// number of objects in a block, 0 to choose it by `count`. Returns null if an argument is invalid.
#[unsafe(no_mangle)]
pub extern "C" fn bywash_mempool_new(kind: u32, count: u32, stride: usize, takers: u32, block: u32) -> *mut Mempool {
    let kind = match kind {
        0 => PoolKind::Stack,
        1 => PoolKind::Sdb,
        2 => PoolKind::Tabm,
        _ => return std::ptr::null_mut(),
    };
    let block = if block == 0 { CellPool::block(count as usize) } else { block as usize };
    let sound = (1..=i32::MAX as u32).contains(&count) && block.is_power_of_two() && block <= 65536;
    match Objects::new(stride).filter(|_| sound) {
        Some(objects) => {
            let pool = CellPool::with_blocks(kind, count as usize, takers as usize, block);
            Box::into_raw(Box::new(Mempool { pool, objects }))
        }
        None => std::ptr::null_mut(),
    }
}

/// Destroys a mempool.
///
/// # Safety
/// `mempool` is from [`bywash_mempool_new`], or null, and is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_mempool_drop(mempool: *mut Mempool) {
    if !mempool.is_null() {
        // SAFETY: `bywash_mempool_new` boxed it, and the caller passes ownership.
        drop(unsafe { Box::from_raw(mempool) });
    }
}

/// Registers an object. At most the `count` of [`bywash_mempool_new`] may be registered.
///
/// # Safety
/// `mempool` is from [`bywash_mempool_new`], and no other call uses it at the same time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_mempool_add(mempool: *mut Mempool, object: usize) {
    // SAFETY: the caller guarantees a valid mempool that no other call uses.
    unsafe { (*mempool).objects.add(object) }
}

/// Completes the registration of objects in one piece of memory.
///
/// # Safety
/// The same as for [`bywash_mempool_add`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_mempool_added(mempool: *mut Mempool) {
    // SAFETY: the caller guarantees a valid mempool that no other call uses.
    unsafe { (*mempool).objects.sort() }
}

/// Takes `n` objects and returns 0, or takes none and returns 1. `taker` is the thread's index, below the `takers` of
/// [`bywash_mempool_new`]; threads with other indices share.
///
/// # Safety
/// `mempool` is from [`bywash_mempool_new`]; `out` has room for `n` addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_mempool_get(
    mempool: *const Mempool,
    taker: u32,
    out: *mut *mut c_void,
    n: u32,
) -> c_int {
    // SAFETY: the caller guarantees both; an address has the size of a pointer, and the contents of `out` are
    // overwritten.
    let (mempool, out) = unsafe { (&*mempool, std::slice::from_raw_parts_mut(out.cast::<usize>(), n as usize)) };
    let taker = taker as usize;
    let got = if out.len() <= SOME { mempool.take::<SOME>(taker, out) } else { mempool.take::<MANY>(taker, out) };
    c_int::from(!got)
}

/// Frees objects. Returns 0, or 1 if some are not of this mempool; those are ignored.
///
/// # Safety
/// `mempool` is from [`bywash_mempool_new`]; `objects` are `n` addresses, each of an object that was taken and not yet
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_mempool_put(mempool: *const Mempool, objects: *const *mut c_void, n: u32) -> c_int {
    // SAFETY: the caller guarantees both; an address has the size of a pointer.
    let (mempool, all) = unsafe { (&*mempool, std::slice::from_raw_parts(objects.cast::<usize>(), n as usize)) };
    let good = if all.len() <= SOME { mempool.give::<SOME>(all) } else { mempool.give::<MANY>(all) };
    c_int::from(!good)
}

/// Returns the number of free objects.
///
/// # Safety
/// `mempool` is from [`bywash_mempool_new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_mempool_count(mempool: *const Mempool) -> u32 {
    // SAFETY: the caller guarantees a valid mempool.
    unsafe { (*mempool).pool.free() as u32 }
}
