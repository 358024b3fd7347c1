//! Returning the allocator's free memory to the system.
//!
//! The C library's allocator returns only memory that is free at the end of a heap. A million routes are many small
//! allocations interleaved with others, so that without trimming a process would keep its peak size.

/// Page faults since the last trim that make another one worthwhile. Each stands for at least one page.
#[cfg(target_env = "gnu")]
const MANY: u64 = 256;
/// Bytes free at the end of a heap from which on they are returned at once: `malloc_trim` does not cover the ends of
/// thread heaps. By default the allocator raises this threshold up to 64 MiB.
#[cfg(target_env = "gnu")]
const END: libc::c_int = 1 << 20;
/// Allocation size in bytes from which on an allocation is a mapping of its own: with the default of 128 KiB, every
/// batch of changes would be one.
#[cfg(target_env = "gnu")]
const MAPPED: libc::c_int = 4 << 20;

/// Heaps: the main thread's, and one that all others share. By default each thread gets its own, of which some pages
/// stay in use for good. Threads that forward do not allocate.
#[cfg(target_env = "gnu")]
const HEAPS: libc::c_int = 2;

/// Trims the process's heap when worthwhile. For threads that do not forward: concurrent allocations wait for the trim.
#[derive(Debug)]
pub struct Heap {
    #[cfg(target_env = "gnu")]
    faults: u64,
}

impl Heap {
    /// Creates a `Heap` and has all threads but the main one share a heap. Call it before threads are started.
    #[cfg(target_env = "gnu")]
    pub fn new() -> Self {
        // SAFETY: sets a number, under the allocator's lock.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, HEAPS) };
        Self { faults: 0 }
    }

    /// Returns free pages to the system, and sets the process's allocator to keep as little free memory as practical.
    /// Call it once the large allocations of the start have been made: until then, each is best as a mapping of its
    /// own.
    #[cfg(target_env = "gnu")]
    pub fn startup_done(&mut self) {
        // SAFETY: sets two numbers under the allocator's lock, and affects free memory only.
        unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, END);
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
            libc::malloc_trim(0);
        }
        self.faults = faults();
    }

    /// Does nothing: there is nothing to set for this allocator.
    #[cfg(not(target_env = "gnu"))]
    pub fn startup_done(&mut self) {}

    /// Creates a `Heap`; there is nothing to set for this allocator.
    #[cfg(not(target_env = "gnu"))]
    pub fn new() -> Self {
        Self {}
    }

    /// Returns free pages to the system if the process has had enough page faults since the last time.
    #[cfg(target_env = "gnu")]
    pub fn trim(&mut self) {
        if faults() >= self.faults + MANY {
            // SAFETY: affects free memory only.
            unsafe { libc::malloc_trim(0) };
            self.faults = faults();
        }
    }

    /// Does nothing: other allocators return memory by themselves.
    #[cfg(not(target_env = "gnu"))]
    pub fn trim(&mut self) {}
}

/// Returns the number of minor page faults of the process so far.
#[cfg(target_env = "gnu")]
fn faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: writes a `rusage`, for which all zeros is a valid value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    usage.ru_minflt as u64
}

impl Default for Heap {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    fn resident() -> usize {
        let text = std::fs::read_to_string("/proc/self/statm").unwrap();
        text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    #[test]
    fn what_lies_between_is_given_back_again_and_again() {
        let mut heap = Heap::new();
        heap.startup_done();
        for _ in 0..3 {
            let mut pieces: Vec<Option<Box<[u8; 2048]>>> = (0..50_000).map(|_| Some(Box::new([1; 2048]))).collect();
            for (at, piece) in pieces.iter_mut().enumerate() {
                if at % 64 > 0 {
                    *piece = None;
                }
            }
            let before = resident();
            heap.trim();
            let back = before.saturating_sub(resident());
            assert!(back > 50 << 20, "{back} of 98 MiB given back");
            assert!(pieces.iter().flatten().all(|piece| piece[2047] == 1));
        }
    }
}
