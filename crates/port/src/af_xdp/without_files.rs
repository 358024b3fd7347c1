//! Runs code in a thread that can open no file.
//!
//! A library may read files that its caller has no use for: the loader's constructor reads and takes apart the kernel's
//! BTF types (6 MB, some 50 ms), for relocations that Bywash's objects do not have, and has no way to leave them out.

use std::panic::resume_unwind;

// linux/filter.h, linux/seccomp.h
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const SECCOMP_RET_ERRNO: u32 = 0x0005_0000;
const SECCOMP_RET_ALLOW: u32 = 0x7fff_0000;

/// Runs `f` in a thread of its own in which opening a file fails. If the kernel cannot refuse it, as in a process whose
/// own filter lets none be added, `f` opens files as usual.
pub(super) fn without_files<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let confined = scope.spawn(|| {
            refuse_open();
            f()
        });
        confined.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Has the kernel refuse openat(2) to the calling thread, for good.
fn refuse_open() {
    let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut filter = [
        // The number of the call, the first field of `struct seccomp_data`.
        statement(LOAD, 0, 0, 0),
        statement(JUMP_IF_EQUAL, 0, 1, libc::SYS_openat as u32),
        statement(RETURN, 0, 0, SECCOMP_RET_ERRNO | libc::EACCES as u32),
        statement(RETURN, 0, 0, SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls change the calling thread alone; `program` points to `len` instructions, which the kernel copies.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn only_that_thread_opens_nothing() {
        let refused = without_files(|| File::open("/proc/self/status").map(drop)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
        File::open("/proc/self/status").unwrap();
        std::thread::spawn(|| File::open("/proc/self/status").unwrap()).join().unwrap();
    }
}
