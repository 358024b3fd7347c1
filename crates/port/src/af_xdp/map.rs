//! Maps of programs, used through their descriptors by bpf(2), so that a process that may not make BPF objects can use
//! those that it was given.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;

// linux/bpf.h
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;

/// First fields of the second member of `union bpf_attr`.
#[repr(C)]
struct Attr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Returns the first words of the kernel's information about an object. The kernel writes no more than fit.
pub(super) fn info<const WORDS: usize>(object: BorrowedFd<'_>) -> io::Result<[u32; WORDS]> {
    /// `info` of `union bpf_attr`.
    #[repr(C)]
    struct Attr {
        bpf_fd: u32,
        info_len: u32,
        info: u64,
    }
    let mut info = [0u32; WORDS];
    let info_len = size_of_val(&info) as u32;
    let mut attr = Attr { bpf_fd: object.as_raw_fd() as u32, info_len, info: info.as_mut_ptr() as u64 };
    let size = size_of::<Attr>() as libc::c_uint;
    // SAFETY: bpf(2) with an attribute of its size, which points to `info_len` octets that outlive the call.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &raw mut attr, size) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(info) }
}

/// Map of a program.
#[derive(Debug)]
pub(super) struct Map {
    fd: OwnedFd,
    id: u32,
    /// Sizes of a key and of a value in bytes.
    key: usize,
    value: usize,
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Map {
    /// Asks the kernel for the sizes of keys and values. Errors if the descriptor is not that of a map.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        // Type, id, sizes, entries and flags of struct bpf_map_info. For a program or a link, the third number is not a
        // size of 4 or 8.
        let [_, id, key, value, ..] = info::<6>(fd.as_fd())?;
        Ok(Self { fd, id, key: key as usize, value: value as usize })
    }

    /// Returns the kernel's id of the map.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Returns the size of a value in bytes.
    pub fn value_size(&self) -> usize {
        self.value
    }

    /// Sets the value of a key.
    ///
    /// # Panics
    /// If the key or the value does not have the map's size.
    pub fn update(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert_eq!((key.len(), value.len()), (self.key, self.value), "sizes of map {}", self.id);
        self.call(BPF_MAP_UPDATE_ELEM, key, value.as_ptr() as u64)
    }

    /// Puts the descriptor of a program, a socket or a map into slot `at`.
    pub fn put(&self, at: u32, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.update(&at.to_ne_bytes(), &fd.as_raw_fd().to_ne_bytes())
    }

    /// Removes a key.
    ///
    /// # Panics
    /// If the key does not have the map's size.
    pub fn delete(&self, key: &[u8]) -> io::Result<()> {
        assert_eq!(key.len(), self.key, "size of a key of map {}", self.id);
        self.call(BPF_MAP_DELETE_ELEM, key, 0)
    }

    /// Returns the values that all possible CPUs have for a key, one after the other, as 64-bit words.
    ///
    /// # Panics
    /// If the key does not have the map's size.
    pub fn of_cpus(&self, key: &[u8]) -> io::Result<Vec<u64>> {
        static CPUS: LazyLock<Option<usize>> = LazyLock::new(|| aya::util::nr_cpus().ok());
        assert_eq!(key.len(), self.key, "size of a key of map {}", self.id);
        let cpus = CPUS.ok_or_else(|| io::Error::other("the number of possible CPUs is not known"))?;
        let mut words = vec![0u64; self.value.div_ceil(8) * cpus];
        self.call(BPF_MAP_LOOKUP_ELEM, key, words.as_mut_ptr() as u64)?;
        Ok(words)
    }

    /// Calls bpf(2) for a key of the map's size. `value` is 0 or the address of memory with room for the command's
    /// value.
    fn call(&self, command: libc::c_long, key: &[u8], value: u64) -> io::Result<()> {
        let (map_fd, key) = (self.fd.as_raw_fd() as u32, key.as_ptr() as u64);
        let mut attr = Attr { map_fd, pad: 0, key, value, flags: 0 };
        // SAFETY: bpf(2) with an attribute of its size. Key and value outlive the call, and have the sizes that the
        // kernel reported for this map; a per-CPU value is read into one such value, rounded up to words, for each CPU.
        let rc = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attr, size_of::<Attr>() as libc::c_uint) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}
