//! Memory of a table: one reservation of address space, made writable from the front as the table grows.
//!
//! It grows by segments of private memory, or of memory that other readers share ([`Shared`]). The latter is mapped in
//! smaller pieces, because all that is mapped of it is resident.
//!
//! Readers follow indices found in this memory. Any index is masked into the reservation, all of which is readable
//! (untouched parts read as zero) and stays mapped for the region's lifetime: a reader that outstays a grace period can
//! get a wrong answer, but can never read outside.

use bywash_sync::lock;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap};
use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes made writable at a time, the size of a huge page.
pub const SEGMENT: usize = 2 << 20;
const STEP: usize = SEGMENT;
/// Bytes of shared memory mapped at a time.
const PIECE: usize = STEP / 32;
/// Bytes behind the last index, room for the largest node.
const SLACK: usize = 4096;
/// Number of words that a reference can address.
const MOST: usize = 1 << 30;

/// Provider of memory for a table that is also read by others who cannot announce quiescent states, such as an XDP
/// program.
///
/// After the first refusal no more segments are requested. A forwarding table requests them in order; it continues in
/// private memory, and its other readers must treat everything beyond their last segment as zeros. A flow table
/// requests them as its parts grow; after a refusal it grows no further.
pub trait Shared: Send {
    /// Creates segment `n`, counted from 0: [`SEGMENT`] bytes, all zero. Returns a descriptor to map it by.
    fn segment(&mut self, n: usize) -> io::Result<OwnedFd>;

    /// Returns when every reader that was in the table at the time of the call has left it. Takes milliseconds.
    fn grace(&mut self);
}

/// A provider, and the number and descriptor of the segment that is mapped in part.
struct Provider {
    memory: Box<dyn Shared>,
    begun: Option<(usize, OwnedFd)>,
}

/// A reservation of 64-bit words.
pub(crate) struct Region {
    /// Provider of segments, and the segment that is not mapped to its end; `None` for private memory.
    shared: Option<Mutex<Provider>>,
    /// Set if a segment was refused: it and all later ones are private.
    refused: std::sync::atomic::AtomicBool,
    base: NonNull<AtomicU64>,
    map: *mut std::ffi::c_void,
    map_len: usize,
    /// Words reserved, a power of two, minus one.
    mask: usize,
}

// SAFETY: the mapping is owned, and all access to it is through atomics.
unsafe impl Send for Region {}
// SAFETY: the mapping is owned, and all access to it is through atomics.
unsafe impl Sync for Region {}

impl Provider {
    fn new(memory: Box<dyn Shared>) -> Mutex<Self> {
        Mutex::new(Self { memory, begun: None })
    }
}

impl Region {
    /// Reserves address space: 8 GiB, or the most that RLIMIT_AS allows. No memory is charged before
    /// [`Region::commit`].
    pub fn new(shared: Option<Box<dyn Shared>>) -> io::Result<Self> {
        let mut words = MOST;
        loop {
            match Self::reserve(words) {
                Ok(mut r) => {
                    r.shared = shared.map(Provider::new);
                    return Ok(r);
                }
                Err(_) if words > 1 << 20 => words /= 2,
                Err(e) => return Err(e),
            }
        }
    }

    /// Reserves address space for `words` words, a power of two.
    pub fn of(words: usize, shared: Option<Box<dyn Shared>>) -> io::Result<Self> {
        let mut region = Self::reserve(words)?;
        region.shared = shared.map(Provider::new);
        Ok(region)
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

    /// Makes words `0..words` writable, given that `0..from` already are. Returns the new limit, at least `words`.
    pub fn commit(&self, from: usize, words: usize) -> io::Result<usize> {
        let unit = if self.is_shared() { PIECE } else { STEP };
        let end = (words * 8).next_multiple_of(unit);
        if end > (self.mask + 1) * 8 {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let mut start = (from * 8).next_multiple_of(unit);
        while start < end {
            let end_of_segment = (start / STEP + 1) * STEP;
            let to = end.min(end_of_segment);
            if self.share(start, to)? {
                start = to;
            } else {
                // SAFETY: the range is inside our own mapping and only gains a permission.
                unsafe {
                    let at = self.base.as_ptr().byte_add(start).cast();
                    mprotect(at, end_of_segment - start, MprotectFlags::READ | MprotectFlags::WRITE)?;
                }
                start = end_of_segment;
            }
        }
        Ok(start.max(end) / 8)
    }

    /// Maps shared memory from byte `from` to `to` of one segment; returns false if the segment stays private. Errors
    /// if others already see the beginning of the segment and the rest cannot be mapped.
    fn share(&self, from: usize, to: usize) -> io::Result<bool> {
        let Some(shared) = &self.shared else { return Ok(false) };
        if self.refused.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let (n, at) = (from / STEP, from % STEP);
        let provider = &mut *lock(shared);
        let begun = provider.begun.take_if(|(begun, _)| *begun == n);
        let segment = begun.map_or_else(|| provider.memory.segment(n), |(_, fd)| Ok(fd));
        let mapped = segment.and_then(|fd| {
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
            // SAFETY: the range lies inside our own reservation, nobody has written to it, and its words are read as
            // atomics only, whoever else writes them.
            unsafe { mmap(self.base.as_ptr().byte_add(from).cast(), to - from, prot, flags, &fd, at as u64)? };
            Ok(fd)
        });
        match mapped {
            Ok(fd) => provider.begun = (!to.is_multiple_of(STEP)).then_some((n, fd)),
            Err(why) if at > 0 => return Err(why),
            Err(_) => self.refused.store(true, Ordering::Relaxed),
        }
        Ok(!self.is_refused())
    }

    /// Returns when no reader outside the domain can still see nodes that were unlinked before the call.
    pub fn grace(&self) {
        if let Some(shared) = &self.shared {
            lock(shared).memory.grace();
        }
    }

    /// Returns whether there are readers outside the domain.
    pub fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// Returns whether a segment was refused, so that it is private although there are readers outside the domain.
    pub fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns the memory of words `from..to` to the system if it is private; the words stay writable.
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

    /// Returns the address of word 0, for the vector kernels.
    #[inline(always)]
    pub fn base(&self) -> *const AtomicU64 {
        self.base.as_ptr()
    }

    /// Returns the number of reserved words minus one.
    #[inline(always)]
    pub fn mask(&self) -> usize {
        self.mask
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: masked into the reservation, which is mapped readable, aligned and lives as long as `self`.
        unsafe { &*self.base.as_ptr().add(at & self.mask) }
    }

    /// Loads word `at`, modulo the reservation.
    #[inline(always)]
    pub fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    /// Loads half-word `at`, modulo the reservation.
    #[inline(always)]
    pub fn load32(&self, at: usize) -> u32 {
        (self.load(at >> 1) >> ((at & 1) * 32)) as u32
    }

    /// Stores word `at`, which must be committed (otherwise the process faults). Only for the writer, except words in
    /// which readers may overwrite each other.
    pub fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    /// Adds to word `at`, which must be committed. For any thread.
    #[inline(always)]
    pub fn add(&self, at: usize, value: u64) {
        self.word(at).fetch_add(value, Ordering::Relaxed);
    }

    /// Clears the bits of word `at` that `mask` lacks. For any thread.
    #[inline(always)]
    pub fn and(&self, at: usize, mask: u64) {
        self.word(at).fetch_and(mask, Ordering::Release);
    }

    /// Replaces word `at` by what `new` makes of it, unless that is `None`; returns whether it did. For any thread.
    pub fn update(&self, at: usize, new: impl FnMut(u64) -> Option<u64>) -> bool {
        self.word(at).fetch_update(Ordering::Release, Ordering::Relaxed, new).is_ok()
    }

    /// Returns half-word `at`, modulo the reservation, of a word that is accessed by halves only.
    #[inline(always)]
    pub fn half(&self, at: usize) -> &AtomicU32 {
        let word = std::ptr::from_ref(self.word(at >> 1)).cast::<AtomicU32>();
        // SAFETY: one of the two halves of a word of the mapping.
        unsafe { &*word.add(at & 1) }
    }

    /// Stores half-word `at`. The other half belongs to the writer too, so reading it back is not a race.
    pub fn store32(&self, at: usize, value: u32) {
        let shift = (at & 1) * 32;
        let old = self.word(at >> 1).load(Ordering::Relaxed);
        self.store(at >> 1, old & !(0xffff_ffff << shift) | u64::from(value) << shift);
    }

    /// Returns a view for loops: it keeps the region's fields in registers, where atomic loads would otherwise force
    /// the compiler to reread them.
    #[inline(always)]
    pub fn view(&self) -> View<'_> {
        View { base: self.base, mask: self.mask, region: PhantomData }
    }
}

/// A copy of a region's base and mask; see [`Region::view`].
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    base: NonNull<AtomicU64>,
    mask: usize,
    region: PhantomData<&'a Region>,
}

impl View<'_> {
    /// Loads the word `near` words behind word `at` modulo the reservation; `near` is at most 64.
    #[inline(always)]
    pub fn load(self, at: u32, near: usize) -> u64 {
        debug_assert!(near <= 64);
        let at = at as usize & self.mask;
        // SAFETY: masked into the reservation, which is mapped readable; behind it is room for 512 words.
        unsafe { &*self.base.as_ptr().add(at).add(near) }.load(Ordering::Acquire)
    }

    /// Prefetches the cache line of word `at` modulo the reservation.
    #[inline(always)]
    pub fn prefetch(self, at: u32) {
        let p = self.base.as_ptr().wrapping_add(at as usize & self.mask);
        bywash_sync::hint::prefetch_at(p.cast());
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the mapping made in `reserve`; nothing borrows it any more.
        let _ = unsafe { munmap(self.map, self.map_len) };
    }
}
