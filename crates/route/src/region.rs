//! The memory a table lives in: one reservation of address space, made writable from the front as the table grows.
//!
//! It grows by segments: private memory, or memory that others read as well ([`Shared`]).
//!
//! Readers follow indices found in this memory. Whatever they find, an index is masked into the reservation, all
//! of which is readable (untouched parts read as zero) and stays mapped while the region lives: a reader can get a
//! wrong answer only by outstaying a grace period, and can never read outside.

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes made writable at a time: a huge page.
pub const SEGMENT: usize = 2 << 20;
const STEP: usize = SEGMENT;
/// Room behind the last index for the largest node.
const SLACK: usize = 4096;
/// Most words a reference can name.
const MOST: usize = 1 << 30;

/// Memory for a table that others, who cannot be asked to announce quiescent states, read as well: an XDP program.
///
/// Segments come in order. After the first that is refused no more are asked for: the table goes on in private memory,
/// and its other readers must take what lies beyond their last segment for zeros.
pub trait Shared: Send {
    /// Makes segment `n`, counted from 0, of [`SEGMENT`] bytes, all zero; a descriptor to map it by.
    fn segment(&mut self, n: usize) -> io::Result<OwnedFd>;

    /// Returns when every reader that was in the table at the time of the call has left it. Takes milliseconds.
    fn grace(&mut self);
}

/// A reservation of 64-bit words.
pub(crate) struct Region {
    /// Where segments come from; none: private memory.
    shared: Option<Mutex<Box<dyn Shared>>>,
    /// Segments that were refused, and all behind them, are private.
    refused: std::sync::atomic::AtomicBool,
    base: NonNull<AtomicU64>,
    map: *mut std::ffi::c_void,
    map_len: usize,
    /// Words reserved, a power of two, minus one.
    mask: usize,
}

// SAFETY: the mapping is owned, and all access to it is through atomics.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Reserves address space: 8 GiB, or the most that a limit (RLIMIT_AS) leaves. Nothing is accounted until
    /// [`Region::commit`].
    pub fn new(shared: Option<Box<dyn Shared>>) -> io::Result<Self> {
        let mut words = MOST;
        loop {
            match Self::reserve(words) {
                Ok(mut r) => {
                    r.shared = shared.map(Mutex::new);
                    return Ok(r);
                }
                Err(_) if words > 1 << 20 => words /= 2,
                Err(e) => return Err(e),
            }
        }
    }

    fn reserve(words: usize) -> io::Result<Self> {
        let map_len = words * 8 + SLACK + STEP;
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let map = unsafe {
            mmap_anonymous(std::ptr::null_mut(), map_len, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::NORESERVE)?
        };
        let pad = map.align_offset(STEP);
        // SAFETY: pad < STEP, inside the mapping; the result is not null.
        let base = unsafe { NonNull::new_unchecked(map.byte_add(pad).cast::<AtomicU64>()) };
        // SAFETY: the range is inside our own mapping. A kernel without huge pages refuses; 4 KiB pages serve too.
        let _ = unsafe { madvise(base.as_ptr().cast(), words * 8, Advice::LinuxHugepage) };
        Ok(Self { shared: None, refused: false.into(), base, map, map_len, mask: words - 1 })
    }

    /// Makes words `0..words` writable, given that `0..from` are. The new limit, at least `words`.
    pub fn commit(&self, from: usize, words: usize) -> io::Result<usize> {
        let end = (words * 8).next_multiple_of(STEP);
        if end > (self.mask + 1) * 8 {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let start = (from * 8).next_multiple_of(STEP);
        for n in start / STEP..end / STEP {
            if !self.share(n) {
                // SAFETY: the range is inside our own mapping and only gains a permission.
                unsafe {
                    let at = self.base.as_ptr().byte_add(n * STEP).cast();
                    mprotect(at, STEP, MprotectFlags::READ | MprotectFlags::WRITE)?;
                }
            }
        }
        Ok(end / 8)
    }

    /// Puts shared memory in the place of segment `n`; false when it stays private.
    fn share(&self, n: usize) -> bool {
        let Some(shared) = &self.shared else { return false };
        if self.refused.load(Ordering::Relaxed) {
            return false;
        }
        let segment = shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).segment(n);
        let mapped = segment.and_then(|fd| {
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
            // SAFETY: the range lies inside our own reservation, nobody has written to it, and its words are read as
            // atomics only, whoever else writes them.
            unsafe { Ok(mmap(self.base.as_ptr().byte_add(n * STEP).cast(), STEP, prot, flags, fd, 0)?) }
        });
        self.refused.store(mapped.is_err(), Ordering::Relaxed);
        mapped.is_ok()
    }

    /// Returns when no reader but those of the domain is left in what was unlinked before the call.
    pub fn grace(&self) {
        if let Some(shared) = &self.shared {
            shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner).grace();
        }
    }

    /// Whether there are such readers.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Gives the memory of words `from..to` back to the system, where it is private; they stay writable.
    pub fn discard(&self, from: usize, to: usize) {
        if self.is_shared() {
            return;
        }
        let (from, to) = ((from * 8).next_multiple_of(STEP), to * 8);
        if from < to {
            // SAFETY: the range is inside our own private mapping, all access to which is atomic; the caller
            // has no node left there.
            let _ = unsafe { madvise(self.base.as_ptr().byte_add(from).cast(), to - from, Advice::LinuxDontNeed) };
        }
    }

    /// Address of word 0, for the vector kernels.
    #[inline(always)]
    pub fn base(&self) -> *const AtomicU64 {
        self.base.as_ptr()
    }

    /// Words reserved minus one.
    #[inline(always)]
    pub fn mask(&self) -> usize {
        self.mask
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: masked into the reservation, which is mapped readable, aligned and lives as long as `self`.
        unsafe { &*self.base.as_ptr().add(at & self.mask) }
    }

    /// Word `at`, modulo the reservation.
    #[inline(always)]
    pub fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    /// Half-word `at`, modulo the reservation.
    #[inline(always)]
    pub fn load32(&self, at: usize) -> u32 {
        (self.load(at >> 1) >> ((at & 1) * 32)) as u32
    }

    /// Stores word `at`, which must be committed (else the process faults). The writer's only.
    pub fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    /// Stores half-word `at`; the other half is the writer's own, so that reading it back is no race.
    pub fn store32(&self, at: usize, value: u32) {
        let shift = (at & 1) * 32;
        let old = self.word(at >> 1).load(Ordering::Relaxed);
        self.store(at >> 1, old & !(0xffff_ffff << shift) | u64::from(value) << shift);
    }

    /// The region for a loop: its fields in registers, which loads of an atomic would otherwise make it reread.
    #[inline(always)]
    pub fn view(&self) -> View<'_> {
        View { base: self.base, mask: self.mask, region: PhantomData }
    }
}

/// See [`Region::view`].
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    base: NonNull<AtomicU64>,
    mask: usize,
    region: PhantomData<&'a Region>,
}

impl View<'_> {
    /// Word `at` modulo the reservation, plus `near`, which is at most 64.
    #[inline(always)]
    pub fn load(self, at: u32, near: usize) -> u64 {
        debug_assert!(near <= 64);
        let at = at as usize & self.mask;
        // SAFETY: masked into the reservation, which is mapped readable; behind it is room for 512 words.
        unsafe { &*self.base.as_ptr().add(at).add(near) }.load(Ordering::Acquire)
    }

    /// Asks for the cache line of word `at` modulo the reservation.
    #[inline(always)]
    pub fn prefetch(self, at: u32) {
        let p = self.base.as_ptr().wrapping_add(at as usize & self.mask);
        bywash_sync::hint::prefetch_at(p.cast());
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `reserve`; nothing borrows it any more.
        let _ = unsafe { munmap(self.map, self.map_len) };
    }
}
