//! Batch lookups with AVX-512: eight keys in a vector, level by level over up to eight vectors.
//!
//! The scalar counterpart is `Fib::scalar_chunk`; a test compares the two. To the processor, gathers are plain loads;
//! the required order, a node after the reference to it, follows from their data dependency.

use crate::addr::{Addr, ROOT, STRIDE};
use crate::fib::{BATCH, Fib, INDEX, Kernel, NODE, NextHopId, SKIP};
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Keys per vector.
const LANES: usize = 8;
/// Vectors per chunk.
const VECTORS: usize = BATCH / LANES;

/// Returns whether this processor has the instructions that [`chunk`] needs.
pub(crate) fn available() -> bool {
    static HAVE: OnceLock<bool> = OnceLock::new();
    *HAVE.get_or_init(|| {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vpopcntdq")
    })
}

/// Returns whether gathers are fast: the Linux kernel reports that this processor needs no mitigation of
/// CVE-2022-40982, which makes gathers slower than single loads. Without a report they are assumed to be slow.
pub(crate) fn fast_gathers() -> bool {
    static FAST: OnceLock<bool> = OnceLock::new();
    const SAYS: &str = "/sys/devices/system/cpu/vulnerabilities/gather_data_sampling";
    *FAST.get_or_init(|| std::fs::read_to_string(SAYS).is_ok_and(|s| s.trim() == "Not affected"))
}

/// Returns whether this processor has BMI1, BMI2, LZCNT and POPCNT.
pub(crate) fn bmi2() -> bool {
    let bmi = is_x86_feature_detected!("bmi1") && is_x86_feature_detected!("bmi2");
    bmi && is_x86_feature_detected!("lzcnt") && is_x86_feature_detected!("popcnt")
}

/// Looks up at most 64 keys. `out` must be as long as `dst`.
///
/// # Panics
/// If the processor lacks the instructions, the lengths differ, or there are more than 64 keys.
#[inline]
pub(crate) fn chunk<A: Addr>(fib: &Fib<A>, dst: &[A], out: &mut [NextHopId]) {
    assert!(fib.can(Kernel::Avx512) && dst.len() == out.len() && dst.len() <= BATCH);
    // SAFETY: `Fib::can` is true only where `available` has found the instructions; the lengths have just been checked.
    unsafe { chunk_avx512(fib, dst, out) }
}

/// Returns the first 64 bits of eight keys, left-aligned.
///
/// # Safety
/// The processor has these instructions, and `at` points to eight readable keys.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512vpopcntdq")]
#[inline]
unsafe fn load<A: Addr>(at: *const A) -> __m512i {
    // SAFETY: eight keys of `u32` fill the 32 bytes that the first load reads, and eight of `u128` the 128 bytes that
    // the other two read; `Addr` is sealed, so there is no other type. The loads need no alignment.
    unsafe {
        if A::BITS == 32 {
            _mm512_slli_epi64::<32>(_mm512_cvtepu32_epi64(_mm256_loadu_si256(at.cast())))
        } else {
            let (a, b) = (_mm512_loadu_si512(at.cast()), _mm512_loadu_si512(at.add(4).cast()));
            _mm512_permutex2var_epi64(a, _mm512_setr_epi64(1, 3, 5, 7, 9, 11, 13, 15), b)
        }
    }
}

/// Looks up the keys as [`chunk`] does.
///
/// # Safety
/// The processor has these instructions, and `dst.len() == out.len() <= 64`.
#[target_feature(enable = "avx512f,avx512vl,avx512dq,avx512vpopcntdq")]
unsafe fn chunk_avx512<A: Addr>(fib: &Fib<A>, dst: &[A], out: &mut [NextHopId]) {
    let n = dst.len();
    if n == 0 {
        return;
    }
    let vectors = n.div_ceil(LANES);
    let mut tail = [A::ZERO; LANES];
    let mut keys = [_mm512_setzero_si512(); VECTORS];
    let mut refs = [_mm256_setzero_si256(); VECTORS];
    for (v, key) in keys.iter_mut().enumerate().take(vectors) {
        let from = v * LANES;
        let at = if from + LANES <= n {
            dst[from..].as_ptr()
        } else {
            tail[..n - from].copy_from_slice(&dst[from..]);
            tail.as_ptr()
        };
        // SAFETY: `at` points to eight keys, of `dst` if it has as many left, otherwise of `tail`. The instructions are
        // there, by this function's own contract.
        *key = unsafe { load(at) };
    }

    let base = fib.region.base();
    let word = _mm512_set1_epi64((fib.region.mask() & INDEX as usize) as i64);
    let low = _mm512_set1_epi64(63);
    let kind = _mm256_set1_epi32((NODE | SKIP) as i32);
    let node = _mm256_set1_epi32(NODE as i32);
    for v in 0..vectors {
        let at = _mm512_srli_epi64::<{ 64 - ROOT as u32 }>(keys[v]);
        // SAFETY: 18 bits index the root of 2^18 references.
        refs[v] = unsafe { _mm512_i64gather_epi32::<4>(at, base.cast()) };
    }

    // Levels whose six bits lie within a key's first 64.
    let mut depth = ROOT;
    while depth < A::BITS && depth <= 64 - STRIDE {
        let shift = _mm_cvtsi32_si128(i32::from(64 - STRIDE - depth));
        let mut any = 0;
        for v in 0..vectors {
            let r = refs[v];
            let open = _mm256_cmpeq_epi32_mask(_mm256_and_si256(r, kind), node);
            any |= open;
            if open == 0 {
                continue;
            }
            let at = _mm512_and_si512(_mm512_cvtepu32_epi64(r), word);
            // SAFETY: masked into the region, all of which is readable.
            let bitmap = unsafe { _mm512_mask_i64gather_epi64::<8>(_mm512_setzero_si512(), open, at, base.cast()) };
            let left = _mm512_andnot_si512(_mm512_srl_epi64(keys[v], shift), low);
            let rank = _mm512_popcnt_epi64(_mm512_sllv_epi64(bitmap, left));
            let half = _mm512_add_epi64(_mm512_add_epi64(at, at), _mm512_add_epi64(rank, _mm512_set1_epi64(2)));
            // SAFETY: at most 33 words past a masked index, which the region's slack covers.
            refs[v] = unsafe { _mm512_mask_i64gather_epi32::<4>(r, open, half, base.cast()) };
        }
        if any == 0 {
            break;
        }
        depth += STRIDE;
    }

    // Finish what the vectors left open: skips, and nodes below the last level.
    let mut open = 0u64;
    for (v, refs) in refs.iter().enumerate().take(vectors) {
        let from = v * LANES;
        open |= (_mm256_movemask_ps(_mm256_castsi256_ps(*refs)) as u64) << from;
        if from + LANES <= n {
            // SAFETY: `out` has eight places from here on.
            unsafe { _mm256_storeu_si256(out[from..].as_mut_ptr().cast(), *refs) };
        } else {
            let mut lanes = [0u32; LANES];
            // SAFETY: eight places.
            unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), *refs) };
            out[from..].copy_from_slice(&lanes[..n - from]);
        }
    }
    open &= u64::MAX >> (BATCH - n);
    if open != 0 {
        finish(fib, dst, out, open, depth);
    }
}

/// Walks the references of the `open` keys to their ends, one by one: a skip stores its own depth, a bitmap node is
/// open only after the last vector level, at `depth`.
#[inline(never)]
fn finish<A: Addr>(fib: &Fib<A>, dst: &[A], out: &mut [NextHopId], open: u64, depth: u8) {
    let region = fib.region.view();
    let mut todo = open;
    while todo != 0 {
        region.prefetch(out[todo.trailing_zeros() as usize]);
        todo &= todo - 1;
    }
    todo = open;
    while todo != 0 {
        let i = todo.trailing_zeros() as usize;
        todo &= todo - 1;
        out[i] = fib.walk(out[i], dst[i], if out[i] & SKIP == 0 { depth } else { ROOT });
    }
}
