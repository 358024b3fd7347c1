//! Memory shared between the process and an XDP program, and the grace period after which the program no longer uses
//! old values.

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Values of an array map with `BPF_F_MMAPABLE`, as 64-bit words.
pub(super) struct Words {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping is owned, and all access to it is through atomics.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the first `words` 64-bit words of the map.
    pub fn map(fd: BorrowedFd<'_>, words: usize) -> io::Result<Self> {
        Self::map_from(fd, 0, words)
    }

    /// Maps `words` 64-bit words of the map from word `first` on, which begins a page.
    fn map_from(fd: BorrowedFd<'_>, first: usize, words: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        let len = (words * 8).next_multiple_of(rustix::param::page_size());
        // SAFETY: a fresh mapping at an address of the kernel's choice, which refuses a mapping longer than the map.
        let base = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, fd, first as u64 * 8)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, words })
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.words, "word {at} of {}", self.words);
        // SAFETY: inside the mapping, aligned, and mapped as long as `self` exists; the program's accesses are whole
        // words.
        unsafe { self.base.add(at).as_ref() }
    }

    pub fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    pub fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        let len = (self.words * 8).next_multiple_of(rustix::param::page_size());
        // SAFETY: the mapping made in `map`; nothing borrows it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), len) };
    }
}

/// Two versions of a table, one after the other in an array map with `BPF_F_MMAPABLE`. Only the part of each that has
/// been used is mapped: all that is mapped is resident, and tables have room for much more than most configurations
/// need.
pub(super) struct Versions {
    map: OwnedFd,
    /// Maximum number of entries of a version, and number of 64-bit words of an entry.
    entries: usize,
    of_an_entry: usize,
    /// Mapped part of each version, and the number of entries in it.
    mapped: [(Words, usize); 2],
}

impl Versions {
    /// Bytes mapped of each version at first.
    const FIRST: usize = 4096;

    /// Maps the beginning of both versions. A version is a multiple of pages long.
    pub fn new(map: OwnedFd, entries: usize, of_an_entry: usize) -> io::Result<Self> {
        let first = Self::FIRST / 8 / of_an_entry;
        let map_one = |n: usize| {
            let words = Words::map_from(map.as_fd(), n * entries * of_an_entry, first * of_an_entry)?;
            Ok::<_, io::Error>((words, first))
        };
        let mapped = [map_one(0)?, map_one(1)?];
        Ok(Self { map, entries, of_an_entry, mapped })
    }

    /// Makes room for `wanted` entries in a version, and returns the number for which there is room: fewer if the table
    /// is full or cannot be mapped. All entries after these are zero.
    pub fn room(&mut self, version: usize, wanted: usize) -> usize {
        let (words, room) = &mut self.mapped[version];
        if wanted > *room {
            let more = wanted.next_power_of_two().min(self.entries);
            let first = version * self.entries * self.of_an_entry;
            if let Ok(larger) = Words::map_from(self.map.as_fd(), first, more * self.of_an_entry) {
                (*words, *room) = (larger, more);
            }
        }
        *room
    }

    /// Stores word `at` of a version, for which there is room.
    pub fn store(&self, version: usize, at: usize, value: u64) {
        self.mapped[version].0.store(at, value);
    }
}

// linux/bpf.h
const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// Creates an array map with one zeroed value of `value_size` bytes that can be mapped.
pub(super) fn new_array(value_size: u32) -> io::Result<OwnedFd> {
    /// First fields of the first member of `union bpf_attr`.
    #[repr(C)]
    struct Attr {
        map_type: u32,
        key_size: u32,
        value_size: u32,
        max_entries: u32,
        map_flags: u32,
    }
    let mut attr =
        Attr { map_type: BPF_MAP_TYPE_ARRAY, key_size: 4, value_size, max_entries: 1, map_flags: BPF_F_MMAPABLE };
    // SAFETY: bpf(2) with an attribute of its size, without pointers.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, BPF_MAP_CREATE, &raw mut attr, size_of::<Attr>() as libc::c_uint) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor the kernel has just returned, owned by no one else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

// linux/membarrier.h
const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;

/// Waits until every XDP program that was running at the time of the call has ended. A program runs within one RCU read
/// section, and the global barrier of membarrier(2) is an RCU grace period. On a machine with one CPU it returns at
/// once, which is correct where a program ends before a process runs, so not with PREEMPT_RT. On such a machine, and if
/// the kernel has no such barrier (nohz_full), sleeps longer than any program runs.
pub(super) fn grace() {
    // SAFETY: membarrier(2) has no memory arguments.
    let rc = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    // SAFETY: sysconf(3) has no memory arguments.
    let one = || unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) } <= 1;
    let preempts = || rustix::system::uname().version().to_bytes().windows(10).any(|part| part == b"PREEMPT_RT");
    if rc != 0 || preempts() && one() {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}
