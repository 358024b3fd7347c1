//! The functions `shim/mempool.c` declares. None of them panics on what a caller may pass.

use crate::Objects;
use bywash_frame::{CellPool, PoolKind};
use std::ffi::{c_int, c_void};

/// What a mempool's `pool_data` points to.
pub struct Mempool {
    pool: CellPool,
    objects: Objects,
}

/// Objects turned from numbers to addresses at once.
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

/// A mempool for `count` objects that will lie `stride` bytes apart, none of which is in it yet. `kind`: 0 `stack`, 1
/// `sdb`, 2 `tabm`; `takers`: threads that get a block of their own; `block`: objects a block, 0 for what fits the size.
/// Null: one of them is impossible.
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

/// Frees it.
///
/// # Safety
/// `mempool` is from [`bywash_mempool_new`], or null, and nobody uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_mempool_drop(mempool: *mut Mempool) {
    if !mempool.is_null() {
        // SAFETY: it was boxed by `bywash_mempool_new`, and the caller gives it up.
        drop(unsafe { Box::from_raw(mempool) });
    }
}

/// Makes an object known, at most as many as were said.
///
/// # Safety
/// `mempool` is from [`bywash_mempool_new`], and no other call is at work on it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_mempool_add(mempool: *mut Mempool, object: usize) {
    // SAFETY: the caller says that it is one, and used by nobody else.
    unsafe { (*mempool).objects.add(object) }
}

/// The last object of a piece of memory was added.
///
/// # Safety
/// As for [`bywash_mempool_add`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_mempool_added(mempool: *mut Mempool) {
    // SAFETY: the caller says that it is one, and used by nobody else.
    unsafe { (*mempool).objects.sort() }
}

/// Takes `n` objects, or none: then it is not 0. `taker`: the thread, below the takers of [`bywash_mempool_new`]; any
/// other is one that shares.
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
    // SAFETY: the caller vouches for both; an address is as large as a pointer, and its contents are overwritten.
    let (mempool, out) = unsafe { (&*mempool, std::slice::from_raw_parts_mut(out.cast::<usize>(), n as usize)) };
    let taker = taker as usize;
    let got = if out.len() <= SOME { mempool.take::<SOME>(taker, out) } else { mempool.take::<MANY>(taker, out) };
    c_int::from(!got)
}

/// Takes objects back. Not 0: some are not of this mempool, and were left alone.
///
/// # Safety
/// `mempool` is from [`bywash_mempool_new`]; `objects` are `n` addresses, each of an object that is out.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_mempool_put(mempool: *const Mempool, objects: *const *mut c_void, n: u32) -> c_int {
    // SAFETY: the caller vouches for both; an address is as large as a pointer.
    let (mempool, all) = unsafe { (&*mempool, std::slice::from_raw_parts(objects.cast::<usize>(), n as usize)) };
    let good = if all.len() <= SOME { mempool.give::<SOME>(all) } else { mempool.give::<MANY>(all) };
    c_int::from(!good)
}

/// Objects in it now.
///
/// # Safety
/// `mempool` is from [`bywash_mempool_new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bywash_mempool_count(mempool: *const Mempool) -> u32 {
    // SAFETY: the caller says that it is one.
    unsafe { (*mempool).pool.free() as u32 }
}
