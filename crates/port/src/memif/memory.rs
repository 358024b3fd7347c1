//! Memory shared with a peer: regions, and the rings in them.
//!
//! The peer may write to all of it at any time. Each value is therefore read once, into a local, and checked there;
//! indices and descriptors are atomics; bytes are copied, never borrowed, and the compiler cannot read them again in
//! place of the copy.

use super::refusal::Refusal;
use bywash_frame::Arena;
use bywash_sync::hint::{prefetch_at, prefetch_to_write};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::arch::asm;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// `MEMIF_COOKIE`, the first word of a ring.
const COOKIE: u32 = 0x3E31F20;
/// Size of the ring header before the descriptors in bytes.
const HEAD: usize = 128;
/// Size of a descriptor in bytes.
const DESC: usize = 16;
/// `MEMIF_RING_FLAG_MASK_INT`: the ring's receiver polls and needs no interrupt.
const MASK_INT: u16 = 1;
/// Range of a descriptor's offset in bytes. No more than this of a region is mapped.
pub const REACH: u64 = 1 << 32;
/// `TMPFS_MAGIC` (linux/magic.h): file system of a memfd of ordinary pages.
const TMPFS: i64 = 0x0102_1994;
/// `MEMIF_DESC_FLAG_NEXT`: the packet continues in the next descriptor.
const NEXT: u16 = 1;

/// Size of a cache line in bytes.
const LINE: usize = 64;

/// Memory region mapped by both sides.
pub struct Region {
    base: *mut u8,
    len: usize,
    /// Set if the mapping belongs to the arena and must not be unmapped here.
    arena: Option<Arc<Arena>>,
}

// SAFETY: the mapping lasts as long as the region. Its bytes are only copied from and to, or accessed as atomics.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// Creates a region in new memory that the peer cannot shrink, and its file descriptor.
    pub fn create(len: usize) -> std::io::Result<(Self, OwnedFd)> {
        let fd = rustix::fs::memfd_create("bywash-memif", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)?;
        Ok((Self { base: map(&fd, len)?, len, arena: None }, fd))
    }

    /// Returns the arena as a region, for packets sent and received without copying.
    pub fn arena(arena: &Arc<Arena>) -> Self {
        Self { base: arena.base(), len: arena.mapped(), arena: Some(arena.clone()) }
    }

    /// Maps the peer's memory of `size` bytes, at most the first 4 GiB. With `sealed`, requires memory that an access
    /// always finds, because SIGBUS kills the process: F_SEAL_SHRINK keeps the peer from truncating the file. It does
    /// not keep it from punching holes. A page taken out of tmpfs is replaced by zeros at the next access; a huge page
    /// (hugetlbfs) only if one is free, so those are refused.
    pub fn of_peer(fd: &OwnedFd, size: u64, sealed: bool) -> Result<Self, Refusal> {
        if sealed {
            let seals = rustix::fs::fcntl_get_seals(fd).unwrap_or(SealFlags::empty());
            if !seals.contains(SealFlags::SHRINK) {
                return Err(Refusal::Unsealed);
            }
            if rustix::fs::fstatfs(fd).map_err(|_| Refusal::Resources)?.f_type != TMPFS {
                return Err(Refusal::HugePages);
            }
        }
        let has = rustix::fs::fstat(fd).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        let len = size.min(REACH) as usize;
        if size == 0 || size > has {
            return Err(Refusal::RegionSize);
        }
        let base = map(fd, len).map_err(|_| Refusal::RegionMap)?;
        Ok(Self { base, len, arena: None })
    }

    /// Returns the number of bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the `len` bytes from `offset` on lie in the region.
    #[inline]
    pub fn has(&self, offset: u32, len: usize) -> bool {
        offset as usize + len <= self.len
    }

    /// Prefetches the cache line at `offset`, which may lie outside of the region.
    #[inline]
    pub fn prefetch(&self, offset: u32) {
        prefetch_at(self.base.wrapping_add(offset as usize));
    }

    /// Prefetches the cache line at `offset` for writing, for a line that the peer has read since. `offset` may lie
    /// outside of the region.
    #[inline]
    pub fn prefetch_to_write(&self, offset: u64) {
        prefetch_to_write(self.base.wrapping_add(offset as usize));
    }

    /// Copies the bytes at `offset` into `to`. Returns false, without copying, if they are not all in the region.
    #[inline]
    pub fn read(&self, offset: u32, to: &mut [u8]) -> bool {
        let fits = self.has(offset, to.len());
        if fits {
            // SAFETY: the source lies in the mapping, the destination is borrowed exclusively; the peer may write
            // meanwhile, and then the copy is a mix of old and new bytes.
            unsafe { copy(self.base.add(offset as usize), to.as_mut_ptr(), to.len()) };
        }
        fits
    }

    /// Copies `from` to `offset`. Returns false, without copying, if it does not fit in the region.
    #[inline]
    pub fn write(&self, offset: u32, from: &[u8]) -> bool {
        let fits = self.has(offset, from.len());
        if fits {
            // SAFETY: as in `read`, with source and destination swapped.
            unsafe { copy(from.as_ptr(), self.base.add(offset as usize), from.len()) };
        }
        fits
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.arena.is_none() {
            // SAFETY: this region's own mapping, unmapped once; rings in it belong to the same link.
            unsafe {
                let _ = rustix::mm::munmap(self.base.cast(), self.len);
            }
        }
    }
}

fn map(fd: &OwnedFd, len: usize) -> std::io::Result<*mut u8> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            fd.as_fd(),
            0,
        )?
    };
    Ok(base.cast())
}

/// Copies `len` bytes. Packets of 32 to 64 bytes, the most frequent ones, take four moves instead of a call.
///
/// The compiler takes both places to be unrelated afterwards. Otherwise it could read shared memory later where the
/// private copy is meant, after a check of the copy and a change by the peer.
///
/// # Safety
/// Both places have `len` bytes and do not overlap.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    type Part = [u8; 16];
    if (LINE / 2..=LINE).contains(&len) {
        // The last two parts overlap the first two if the packet is shorter than a cache line.
        let parts = [0, 16, len - 32, len - 16];
        for at in parts {
            // SAFETY: `at + 16` is at most `len`; any address is aligned for bytes.
            unsafe { to.add(at).cast::<Part>().write_unaligned(from.add(at).cast::<Part>().read_unaligned()) };
        }
    } else {
        // SAFETY: the caller guarantees `len` bytes at both places, without overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
    // SAFETY: no instruction; it may change any memory as far as the compiler knows.
    unsafe { asm!("", options(nostack, preserves_flags)) };
}

/// Descriptor, copied out of its ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Desc {
    /// Set if the packet continues in the next descriptor.
    pub next: bool,
    /// Index of the region that contains the bytes.
    pub region: u16,
    /// Number of bytes of the packet, or size of the buffer.
    pub length: u32,
    /// Offset in the region in bytes.
    pub offset: u32,
}

/// Ring of descriptors: one side writes `head`, the other `tail`; both are free-running 16-bit indices.
///
/// The region that contains the ring must outlive it: both are fields of one [`super::link::Link`].
pub struct Ring {
    base: *mut u8,
    mask: u16,
}

// SAFETY: all of the ring's memory is accessed by atomics.
unsafe impl Send for Ring {}

impl Ring {
    /// Returns the size in bytes of a ring of 2^`log2` slots.
    pub const fn bytes(log2: u8) -> usize {
        HEAD + (DESC << log2)
    }

    /// Returns the ring of 2^`log2` slots at `offset`. `None` if it is misaligned or not entirely inside the region.
    ///
    /// # Safety
    /// The region outlives the ring.
    pub unsafe fn at(region: &Region, offset: u32, log2: u8) -> Option<Self> {
        let whole = offset.is_multiple_of(DESC as u32) && region.has(offset, Self::bytes(log2));
        // SAFETY: `has` checked that the ring lies inside the mapping.
        whole.then(|| Self { base: unsafe { region.base.add(offset as usize) }, mask: (1u16 << log2) - 1 })
    }

    #[inline]
    fn word<T>(&self, at: usize) -> &T {
        debug_assert!(at + size_of::<T>() <= HEAD + DESC * self.slots());
        // SAFETY: `T` is an atomic and `at` an offset inside the ring that is aligned for it, because the ring is
        // aligned to 16 bytes.
        unsafe { &*self.base.add(at).cast::<T>() }
    }

    /// Returns the number of slots.
    #[inline]
    pub fn slots(&self) -> usize {
        usize::from(self.mask) + 1
    }

    /// Returns the slot of an index.
    #[inline]
    pub fn slot(&self, index: u16) -> usize {
        usize::from(index & self.mask)
    }

    /// Initialises an empty ring whose receiver polls.
    pub fn reset(&self) {
        self.word::<AtomicU32>(0).store(COOKIE, Ordering::Relaxed);
        self.poll();
        self.set_head(0);
        self.set_tail(0);
    }

    /// Returns whether the ring begins with the cookie.
    pub fn is_ring(&self) -> bool {
        self.word::<AtomicU32>(0).load(Ordering::Relaxed) == COOKIE
    }

    /// Masks wakeups: this side, the receiver, polls.
    pub fn poll(&self) {
        self.word::<AtomicU16>(4).store(MASK_INT, Ordering::Relaxed);
    }

    /// Unmasks wakeups: this side, the receiver, is about to sleep.
    pub fn wake_me(&self) {
        self.word::<AtomicU16>(4).store(0, Ordering::Relaxed);
    }

    /// Returns whether the receiver wants to be woken.
    #[inline]
    pub fn wants_waking(&self) -> bool {
        self.word::<AtomicU16>(4).load(Ordering::Relaxed) & MASK_INT == 0
    }

    /// Reads the head with acquire ordering: descriptors and data written before the other side moved it are visible.
    #[inline]
    pub fn head(&self) -> u16 {
        self.word::<AtomicU16>(6).load(Ordering::Acquire)
    }

    /// Publishes the head with release ordering: the other side sees all earlier writes once it sees the new head.
    #[inline]
    pub fn set_head(&self, head: u16) {
        self.word::<AtomicU16>(6).store(head, Ordering::Release);
    }

    /// Reads the tail with acquire ordering, like [`Ring::head`].
    #[inline]
    pub fn tail(&self) -> u16 {
        self.word::<AtomicU16>(64).load(Ordering::Acquire)
    }

    /// Publishes the tail with release ordering, like [`Ring::set_head`].
    #[inline]
    pub fn set_tail(&self, tail: u16) {
        self.word::<AtomicU16>(64).store(tail, Ordering::Release);
    }

    /// Returns a copy of the descriptor of an index.
    #[inline]
    pub fn desc(&self, index: u16) -> Desc {
        let at = HEAD + DESC * self.slot(index);
        let first = self.word::<AtomicU64>(at).load(Ordering::Relaxed);
        let offset = self.word::<AtomicU32>(at + 8).load(Ordering::Relaxed);
        Desc { next: first as u16 & NEXT != 0, region: (first >> 16) as u16, length: (first >> 32) as u32, offset }
    }

    /// Prefetches the `n` descriptors from an index on.
    #[inline]
    pub fn prefetch(&self, index: u16, n: usize) {
        self.lines(index, n).for_each(prefetch_at);
    }

    /// Prefetches the `n` descriptors from an index on for writing.
    #[inline]
    pub fn prefetch_to_write(&self, index: u16, n: usize) {
        self.lines(index, n).for_each(prefetch_to_write);
    }

    /// Returns the cache lines of the `n` descriptors from an index on; the last line may be missing.
    #[inline]
    fn lines(&self, index: u16, n: usize) -> impl Iterator<Item = *const u8> + '_ {
        let at = move |i| HEAD + DESC * self.slot(index.wrapping_add(i as u16));
        (0..n).step_by(LINE / DESC).map(move |i| self.base.wrapping_add(at(i)).cast_const())
    }

    /// Writes the descriptor of an index, with zero metadata.
    #[inline]
    pub fn set_desc(&self, index: u16, desc: Desc) {
        let at = HEAD + DESC * self.slot(index);
        let first = u64::from(desc.next) | u64::from(desc.region) << 16 | u64::from(desc.length) << 32;
        self.word::<AtomicU64>(at).store(first, Ordering::Relaxed);
        self.word::<AtomicU64>(at + 8).store(u64::from(desc.offset), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_left_at_neither_end() {
        let (region, fd) = Region::create(4096).unwrap();
        let peer = Region::of_peer(&fd, 4096, true).unwrap();
        for len in [1, 15, 16, 31, 32, 33, 47, 60, 63, 64, 65, 1500] {
            let packet: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
            assert!(region.write(4096 - len as u32, &packet));
            assert!(!region.write(4097 - len as u32, &packet));
            let mut got = vec![0; len];
            assert!(peer.read(4096 - len as u32, &mut got));
            assert_eq!(got, packet);
            assert!(!peer.read(4097 - len as u32, &mut got) && !peer.read(u32::MAX, &mut got));
        }
    }

    #[test]
    fn memory_that_could_go_away_is_refused() {
        let (_region, sealed) = Region::create(8192).unwrap();
        assert!(matches!(Region::of_peer(&sealed, 8193, true), Err(Refusal::RegionSize)));
        assert!(matches!(Region::of_peer(&sealed, 0, true), Err(Refusal::RegionSize)));
        assert!(matches!(Region::of_peer(&sealed, u64::MAX, true), Err(Refusal::RegionSize)));
        assert!(rustix::fs::ftruncate(&sealed, 4096).is_err());
        let open = rustix::fs::memfd_create("open", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&open, 4096).unwrap();
        assert!(matches!(Region::of_peer(&open, 4096, true), Err(Refusal::Unsealed)));
        assert!(Region::of_peer(&open, 4096, false).is_ok());
        let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
        assert!(matches!(Region::of_peer(&file, 4096, true), Err(Refusal::Unsealed)));
    }

    /// No huge pages need to be free: the file is refused before it is mapped.
    #[test]
    fn huge_pages_are_refused() {
        const HUGE: u64 = 2 << 20;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        let Ok(fd) = rustix::fs::memfd_create("huge", flags) else {
            return eprintln!("SKIP: this kernel has no hugetlbfs");
        };
        rustix::fs::ftruncate(&fd, HUGE).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        assert!(matches!(Region::of_peer(&fd, HUGE, true), Err(Refusal::HugePages)));
        assert!(matches!(Region::of_peer(&fd, HUGE, false), Ok(_) | Err(Refusal::RegionMap)));
    }

    #[test]
    fn rings_lie_whole_in_their_region() {
        let (region, _fd) = Region::create(Ring::bytes(4) + 64).unwrap();
        // SAFETY: the region outlives these rings.
        let at = |offset, log2| unsafe { Ring::at(&region, offset, log2) };
        assert!(at(0, 4).is_some() && at(64, 4).is_some());
        assert!(at(80, 4).is_none() && at(8, 4).is_none() && at(0, 5).is_none() && at(u32::MAX - 15, 0).is_none());
        let ring = at(64, 4).unwrap();
        assert!(!ring.is_ring());
        ring.reset();
        assert!(ring.is_ring() && !ring.wants_waking());
        let desc = Desc { next: true, region: 3, length: 0x1234_5678, offset: 0x9abc_def0 };
        ring.set_desc(31, desc);
        assert_eq!((ring.desc(15), ring.desc(14)), (desc, Desc::default()));
    }
}
