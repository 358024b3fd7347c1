//! Page sizes of a mapping: requested and obtained.

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// Bytes in a huge page on x86-64.
pub(crate) const HUGE: usize = 2 << 20;
/// Bytes in a small page.
pub(crate) const SMALL: usize = 4096;
/// `MADV_COLLAPSE` (linux/mman.h, since 6.1): synchronously collapses mapped pages into huge pages.
const MADV_COLLAPSE: i32 = 25;
/// Cause of huge pages that are mapped but cannot be populated.
const LIMITED: &str = "the hugetlb limit of a cgroup is lower";

/// Requested page size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Pages {
    /// 2 MiB, reserved or transparent, if available, else 4 KiB.
    #[default]
    Auto,
    /// 2 MiB; an error if unavailable.
    #[serde(rename = "2m")]
    #[cfg_attr(feature = "clap", value(name = "2m"))]
    Huge,
    /// 4 KiB.
    #[serde(rename = "4k")]
    #[cfg_attr(feature = "clap", value(name = "4k"))]
    Small,
}

/// Page size in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PageKind {
    /// Reserved 2 MiB pages (hugetlbfs).
    #[serde(rename = "2m-hugetlb")]
    Hugetlb,
    /// Transparent 2 MiB pages.
    #[serde(rename = "2m-transparent")]
    Transparent,
    /// 4 KiB pages.
    #[serde(rename = "4k")]
    Small,
}

impl std::fmt::Display for PageKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Hugetlb => "2 MiB (hugetlb)",
            Self::Transparent => "2 MiB (transparent)",
            Self::Small => "4 KiB",
        })
    }
}

/// Populated shared mapping of a memfd.
pub(crate) struct Mapping {
    pub base: *mut u8,
    pub len: usize,
    pub fd: OwnedFd,
    pub kind: PageKind,
    /// Why a better kind of page is not used; empty if it is, or was not requested.
    pub note: String,
}

/// Miri maps no files: memory of the allocator stands in for the mapping.
#[cfg(miri)]
impl Mapping {
    pub fn new(len: usize, _want: Pages) -> Result<Self, (PageKind, std::io::Error)> {
        let len = len.next_multiple_of(HUGE).max(HUGE);
        let fd = std::fs::File::open("/dev/null").map_err(|e| (PageKind::Small, e))?.into();
        // SAFETY: the size is not 0.
        let base = unsafe { std::alloc::alloc_zeroed(Self::layout(len)) };
        Ok(Self { base, len, fd, kind: PageKind::Small, note: String::new() })
    }

    fn layout(len: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(len, HUGE).expect("a size that memory has")
    }
}

#[cfg(miri)]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, once; the arena that owns it is gone.
        unsafe { std::alloc::dealloc(self.base, Self::layout(self.len)) };
    }
}

#[cfg(not(miri))]
impl Mapping {
    pub fn new(len: usize, want: Pages) -> Result<Self, (PageKind, std::io::Error)> {
        let len = len.next_multiple_of(HUGE);
        let mut note = String::new();
        if want != Pages::Small {
            match Self::map(len, MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) {
                Ok((base, fd)) => return Ok(Self { base, len, fd, kind: PageKind::Hugetlb, note }),
                Err(e) => {
                    note = match Errno::from_io_error(&e) {
                        Some(Errno::NOMEM) => format!("fewer than {} MiB are reserved (vm.nr_hugepages)", len >> 20),
                        _ => format!("no reserved pages for {} MiB: {e}", len >> 20),
                    }
                }
            }
        }
        // Populating more memory than is available would not fail: the OOM killer would end a process, likely this one.
        if let Some(available) = available().filter(|available| len > *available) {
            let why = std::io::Error::other(format!("{} MiB of memory are available", available >> 20));
            return Err((PageKind::Small, why));
        }
        let (base, fd) = Self::map(len, MemfdFlags::CLOEXEC).map_err(|e| (PageKind::Small, e))?;
        let mut m = Self { base, len, fd, kind: PageKind::Small, note };
        if want != Pages::Small {
            match m.collapse() {
                Ok(()) => m.kind = PageKind::Transparent,
                Err(e) => m.note = format!("{}; no transparent huge pages ({e})", m.note),
            }
            if want == Pages::Huge && m.kind == PageKind::Small {
                return Err((PageKind::Transparent, std::io::Error::other(m.note.clone())));
            }
        }
        if m.kind == PageKind::Small {
            m.populate().map_err(|e| (PageKind::Small, e))?;
        }
        Ok(m)
    }

    fn map(len: usize, flags: MemfdFlags) -> std::io::Result<(*mut u8, OwnedFd)> {
        let fd = rustix::fs::memfd_create("bywash-arena", flags | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        // A receiver of the file descriptor can rely on the size.
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK)?;
        let (prot, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        if flags.contains(MemfdFlags::HUGETLB) {
            let shared = shared | MapFlags::POPULATE;
            // Aligned by itself. Do not map over a reservation: if this fails for lack of pages, as it often does, the
            // kernel may already have removed the reservation, and another thread may have mapped its range.
            // SAFETY: a new mapping at an address of the kernel's choice.
            let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, shared, &fd, 0)? };
            // Beyond the limit of a cgroup, pages are mapped without an error, and an access ends the process.
            // SAFETY: advice on our own mapping, which changes no contents, and its end.
            match unsafe { rustix::mm::madvise(base, len, Advice::LinuxPopulateWrite) } {
                // Linux before 5.14 does not know the advice.
                Ok(()) | Err(Errno::INVAL) => return Ok((base.cast(), fd)),
                Err(errno) => {
                    // SAFETY: as above.
                    let _ = unsafe { rustix::mm::munmap(base, len) };
                    let limited = errno == Errno::FAULT;
                    return Err(if limited { std::io::Error::other(LIMITED) } else { errno.into() });
                }
            }
        }
        // The transparent pages need 2 MiB alignment: reserve more than needed, map inside.
        // SAFETY: a fresh anonymous reservation at an address of the kernel's choice.
        let reserve = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len + HUGE, ProtFlags::empty(), MapFlags::PRIVATE)?
        } as usize;
        let at = reserve.next_multiple_of(HUGE);
        // SAFETY: the pieces before and after the aligned range are ours and unused; MAP_FIXED replaces the rest
        // of our own reservation.
        unsafe {
            if at > reserve {
                rustix::mm::munmap(reserve as *mut _, at - reserve)?;
            }
            let tail = reserve + len + HUGE - (at + len);
            if tail > 0 {
                rustix::mm::munmap((at + len) as *mut _, tail)?;
            }
            // If this fails, leave the rest of the reservation mapped: its range may no longer be ours to unmap.
            let base = rustix::mm::mmap(at as *mut _, len, prot, shared | MapFlags::FIXED, &fd, 0)?;
            Ok((base.cast(), fd))
        }
    }

    /// Populates the mapping with small pages, as far as it is not populated.
    fn populate(&self) -> std::io::Result<()> {
        // SAFETY: advice on our own mapping; it changes no contents.
        unsafe { rustix::mm::madvise(self.base.cast(), self.len, Advice::LinuxPopulateWrite)? };
        Ok(())
    }

    /// Requests huge pages now, and checks that the kernel provided them.
    fn collapse(&mut self) -> std::io::Result<()> {
        // The kernel collapses any range that has a page. Populating all of it is not needed, and takes several times
        // as long.
        for at in (0..self.len).step_by(HUGE) {
            // SAFETY: inside our own mapping, which nobody else has yet, and whose contents are zeros.
            unsafe { self.base.add(at).write_volatile(0) };
        }
        // SAFETY: advice on our own mapping; it changes no contents.
        unsafe {
            let _ = rustix::mm::madvise(self.base.cast(), self.len, Advice::LinuxHugepage);
            if libc::madvise(self.base.cast(), self.len, MADV_COLLAPSE) != 0 {
                return Err(std::io::Error::last_os_error());
            }
        }
        let mapped = huge_bytes(self.base as usize)?;
        if mapped >= self.len { Ok(()) } else { Err(std::io::Error::other(format!("{mapped} of {} bytes", self.len))) }
    }
}

#[cfg(not(miri))]
impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once; the arena that owns it is gone.
        unsafe {
            let _ = rustix::mm::munmap(self.base.cast(), self.len);
        }
    }
}

/// Returns the bytes available without swapping, from /proc/meminfo; `None` if it does not say.
fn available() -> Option<usize> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

/// Returns the bytes mapped by transparent huge pages in the mapping that starts at `at`, from /proc/self/smaps.
fn huge_bytes(at: usize) -> std::io::Result<usize> {
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let start = format!("{at:x}-");
    let mut here = false;
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or("");
        if !first.ends_with(':') {
            here = line.starts_with(&start);
        } else if here && (first == "ShmemPmdMapped:" || first == "FilePmdMapped:") {
            let kib: usize = line.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
            if kib > 0 {
                return Ok(kib << 10);
            }
        }
    }
    Ok(0)
}
