//! The allocator's free memory, given back to the system.
//!
//! The C library's allocator returns by itself only what is free at the end of a heap. A million routes are many small
//! pieces with others between them, so that a process would keep the size of its worst moment.

/// Page faults, each of a page at least, since the last time after which it is worth the walk again.
#[cfg(target_env = "gnu")]
const MANY: u64 = 256;
/// Octets free at the end of a thread's heap from which on they are given back at once: the walk leaves those out. Left
/// alone, the allocator raises it to 64 MiB.
#[cfg(target_env = "gnu")]
const END: libc::c_int = 1 << 20;
/// Octets from which on a piece is a mapping of its own: with the usual 128 KiB, every batch of changes
/// would be one.
#[cfg(target_env = "gnu")]
const MAPPED: libc::c_int = 4 << 20;

/// When it was last given back. For threads that do not forward: who allocates meanwhile waits.
#[derive(Debug)]
pub struct Heap {
    #[cfg(target_env = "gnu")]
    faults: u64,
}

impl Heap {
    /// Has the process's allocator keep no more than it must.
    #[cfg(target_env = "gnu")]
    pub fn new() -> Self {
        // SAFETY: sets two numbers, under the allocator's lock.
        unsafe {
            libc::mallopt(libc::M_TRIM_THRESHOLD, END);
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED);
        }
        Self { faults: 0 }
    }

    /// Nothing to be set.
    #[cfg(not(target_env = "gnu"))]
    pub fn new() -> Self {
        Self {}
    }

    /// Gives free pages back, if the process has taken some since the last time.
    #[cfg(target_env = "gnu")]
    pub fn tend(&mut self) {
        if faults() >= self.faults + MANY {
            // SAFETY: concerns free memory only.
            unsafe { libc::malloc_trim(0) };
            self.faults = faults();
        }
    }

    /// Other allocators do so by themselves.
    #[cfg(not(target_env = "gnu"))]
    pub fn tend(&mut self) {}
}

/// Page faults of the process so far.
#[cfg(target_env = "gnu")]
fn faults() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: writes a `rusage`, of which all zeros is one.
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
        for _ in 0..3 {
            let mut pieces: Vec<Option<Box<[u8; 2048]>>> = (0..50_000).map(|_| Some(Box::new([1; 2048]))).collect();
            for (at, piece) in pieces.iter_mut().enumerate() {
                if at % 64 > 0 {
                    *piece = None;
                }
            }
            let before = resident();
            heap.tend();
            let back = before.saturating_sub(resident());
            assert!(back > 50 << 20, "{back} of 98 MiB given back");
            assert!(pieces.iter().flatten().all(|piece| piece[2047] == 1));
        }
    }
}
