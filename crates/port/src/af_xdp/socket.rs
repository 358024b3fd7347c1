//! One AF_XDP socket: its four rings, and the ladder of modes it is bound by.

use super::ring::{Consumer, Memory, Producer};
use super::{Error, LinkInfo, Umem};
use bywash_frame::RawFrame;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpRingOffset,
};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// `XDP_MAX_TX_SKB_BUDGET` (linux/if_xdp.h, since 6.17): frames one system call sends in copy mode; 32 otherwise.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// Whether frames may be shared with the device itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ZeroCopy {
    /// Where the driver can; else the kernel copies, and the reason is kept.
    #[default]
    Auto,
    /// Zero-copy, or not at all.
    Require,
    /// Copy, even where the driver could do without.
    Off,
}

/// Entries of the four rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RingSizes {
    /// Empty frames posted for the kernel to receive into.
    pub fill: u32,
    /// Received frames waiting for us.
    pub rx: u32,
    /// Frames waiting to be sent.
    pub tx: u32,
    /// Sent frames waiting to be taken back.
    pub completion: u32,
}

impl Default for RingSizes {
    fn default() -> Self {
        Self { fill: 2048, rx: 2048, tx: 2048, completion: 2048 }
    }
}

impl RingSizes {
    fn check(self) -> Result<(), Error> {
        for (ring, size) in [("fill", self.fill), ("rx", self.rx), ("tx", self.tx), ("completion", self.completion)] {
            if !size.is_power_of_two() || !(64..=32768).contains(&size) {
                return Err(Error::RingSize { ring, size });
            }
        }
        Ok(())
    }
}

/// How frames are sent where the kernel copies them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transmit {
    /// By injection on veth, where it is faster; else by the socket.
    Auto,
    /// By the socket.
    #[default]
    Socket,
    /// By injection, from a thread in the interface's network namespace.
    Inject,
}

/// How a socket is set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SocketConfig {
    /// Copy or zero-copy.
    pub zero_copy: ZeroCopy,
    /// How frames are sent.
    pub transmit: Transmit,
    /// Ring sizes.
    pub rings: RingSizes,
    /// How long a queue that is still another socket's is tried again, in milliseconds: the kernel needs some tens
    /// after the last one was closed.
    pub bind_timeout_ms: u64,
}

impl Default for SocketConfig {
    fn default() -> Self {
        Self {
            zero_copy: ZeroCopy::Auto,
            transmit: Transmit::default(),
            rings: RingSizes::default(),
            bind_timeout_ms: 1000,
        }
    }
}

/// A bound socket with its rings.
pub(crate) struct Socket {
    // Declared before the descriptor: while a ring is mapped the kernel does not let go of the queue.
    pub fill: Producer<u64>,
    pub completion: Consumer<u64>,
    pub rx: Consumer<RawFrame>,
    pub tx: Producer<RawFrame>,
    pub fd: Arc<OwnedFd>,
    pub zero_copy: bool,
    /// Why not zero-copy; empty when it is, or was not asked for.
    pub note: String,
    /// Frames the kernel takes from the transmit ring in one system call.
    pub tx_budget: u32,
}

/// A mapping, unmapped when dropped.
pub(super) struct Mapped {
    pub base: NonNull<c_void>,
    pub len: usize,
}

// SAFETY: an address range of the process, unmapped from whatever thread drops it.
unsafe impl Send for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once; the ring's pointers live no longer than this owner.
        unsafe {
            let _ = rustix::mm::munmap(self.base.as_ptr(), self.len);
        }
    }
}

impl Socket {
    /// Opens and binds a socket for one queue: zero-copy first where allowed, then copy.
    pub(crate) fn open(umem: &Umem, link: &LinkInfo, queue: u32, config: &SocketConfig) -> Result<Self, Error> {
        config.rings.check()?;
        if queue >= link.queues {
            return Err(Error::NoQueue { interface: link.name.clone(), queue, queues: link.queues });
        }
        let mut note = String::new();
        if config.zero_copy != ZeroCopy::Off {
            match Self::bind(umem, link, queue, config, true) {
                Ok(socket) => return Ok(socket),
                Err(Error::Socket { source, .. }) if config.zero_copy == ZeroCopy::Auto => {
                    note = match source.raw_os_error() {
                        Some(libc::EOPNOTSUPP) => "the driver has no zero-copy".into(),
                        _ => format!("no zero-copy: {source}"),
                    };
                }
                Err(e) => return Err(e),
            }
        }
        let mut socket = Self::bind(umem, link, queue, config, false)?;
        socket.note = note;
        Ok(socket)
    }

    /// Binds in one mode, waiting for a queue that is about to become free.
    fn bind(umem: &Umem, link: &LinkInfo, queue: u32, config: &SocketConfig, zero_copy: bool) -> Result<Self, Error> {
        let start = Instant::now();
        let patience = Duration::from_millis(config.bind_timeout_ms);
        loop {
            match Self::bind_once(umem, link, queue, config, zero_copy) {
                Err((_, Errno::BUSY)) if start.elapsed() < patience => {
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err((_, Errno::BUSY)) => {
                    let waited_ms = start.elapsed().as_millis();
                    return Err(Error::QueueBusy { interface: link.name.clone(), queue, waited_ms });
                }
                Err((step, errno)) => {
                    return Err(Error::Socket {
                        interface: link.name.clone(),
                        queue,
                        step,
                        source: errno.into(),
                        hint: hint(step, errno),
                    });
                }
                Ok(socket) => return Ok(socket),
            }
        }
    }

    /// One attempt, on a fresh socket each time: a failed bind leaves it unusable. Joins a registration of the UMEM
    /// where there is one.
    fn bind_once(
        umem: &Umem,
        link: &LinkInfo,
        queue: u32,
        config: &SocketConfig,
        zero_copy: bool,
    ) -> Result<Self, (&'static str, Errno)> {
        for member in umem.members(zero_copy, (link.index, queue)) {
            match Self::set_up(umem, link, queue, config, zero_copy, Some(&member)) {
                // The member's interface is gone, so that it is bound to nothing: try the next.
                Err(("bind", Errno::BADF)) => {}
                result => return result,
            }
        }
        Self::set_up(umem, link, queue, config, zero_copy, None)
    }

    fn set_up(
        umem: &Umem,
        link: &LinkInfo,
        queue: u32,
        config: &SocketConfig,
        zero_copy: bool,
        join: Option<&OwnedFd>,
    ) -> Result<Self, (&'static str, Errno)> {
        let fd = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
            .map_err(|e| ("socket", e))?;
        if join.is_none() {
            umem.register(&fd).map_err(|e| ("UMEM registration", Errno::from_io_error(&e).unwrap_or(Errno::IO)))?;
        }
        let sizes = config.rings;
        sockopt::set_xdp_umem_fill_ring_size(&fd, sizes.fill).map_err(|e| ("fill ring", e))?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, sizes.completion).map_err(|e| ("completion ring", e))?;
        sockopt::set_xdp_rx_ring_size(&fd, sizes.rx).map_err(|e| ("rx ring", e))?;
        sockopt::set_xdp_tx_ring_size(&fd, sizes.tx).map_err(|e| ("tx ring", e))?;
        let offsets = sockopt::xdp_mmap_offsets(&fd).map_err(|e| ("ring offsets", e))?;
        // SAFETY: each ring of this fresh socket is mapped once, with its own size, offsets and entry type: the
        // fill and completion rings hold u64 addresses, the others `struct xdp_desc`, which RawFrame mirrors.
        let (fill, completion, rx, tx) = unsafe {
            (
                Producer::new(map(&fd, offsets.fr, sizes.fill, XDP_UMEM_PGOFF_FILL_RING)?),
                Consumer::new(map(&fd, offsets.cr, sizes.completion, XDP_UMEM_PGOFF_COMPLETION_RING)?),
                Consumer::new(map(&fd, offsets.rx, sizes.rx, XDP_PGOFF_RX_RING)?),
                Producer::new(map(&fd, offsets.tx, sizes.tx, XDP_PGOFF_TX_RING)?),
            )
        };
        let tx_budget = raise_tx_budget(&fd, sizes.tx);

        let bound = match join {
            Some(member) => {
                // The mode is the registration's: flags are not allowed here.
                let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, link.index, queue);
                rustix::net::bind(&fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: member.as_fd() })
            }
            None => {
                let mode = if zero_copy { SocketAddrXdpFlags::XDP_ZEROCOPY } else { SocketAddrXdpFlags::XDP_COPY };
                let flags = mode | SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
                rustix::net::bind(&fd, &SocketAddrXdp::new(flags, link.index, queue))
            }
        };
        bound.map_err(|e| ("bind", e))?;
        let options = sockopt::xdp_options(&fd).map_err(|e| ("reading the mode back", e))?;
        let zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        let fd = Arc::new(fd);
        umem.joined(&fd, zero_copy, (link.index, queue));
        Ok(Self { fill, completion, rx, tx, fd, zero_copy, note: String::new(), tx_budget })
    }

    /// Asks the kernel to send what is in the transmit ring; nothing in it makes this a cheap question whether the
    /// socket still works.
    #[inline]
    pub(crate) fn kick_tx(&self) -> Result<(), Errno> {
        rustix::net::send(&*self.fd, &[], SendFlags::DONTWAIT).map(drop)
    }

    /// Asks the driver to look at the fill ring again.
    pub(crate) fn kick_rx(&self) -> Result<(), Errno> {
        rustix::net::recv(&*self.fd, &mut [0u8; 0][..], rustix::net::RecvFlags::DONTWAIT).map(drop)
    }
}

/// # Safety
/// `offsets` and `size` are those of the ring at `page_offset`, whose entries are `T`s; it is mapped once.
unsafe fn map<T: Copy>(
    fd: &OwnedFd,
    offsets: XdpRingOffset,
    size: u32,
    page_offset: u64,
) -> Result<Memory<T>, (&'static str, Errno)> {
    let len = offsets.desc as usize + size as usize * size_of::<T>();
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::POPULATE,
            fd,
            page_offset,
        )
    }
    .map_err(|e| ("mapping a ring", e))?;
    let base = NonNull::new(base).ok_or(("mapping a ring", Errno::NOMEM))?;
    let index = |offset: u64| {
        // SAFETY: the kernel's offsets lie inside the mapping it sized, and are aligned for what is there.
        unsafe { base.byte_add(offset as usize).cast::<AtomicU32>() }
    };
    // SAFETY: as above, for the entries; the mapping lives in its owner, and the kernel is the one opposite side.
    unsafe {
        Ok(Memory::new(
            index(offsets.producer),
            index(offsets.consumer),
            offsets.flags.map(index),
            base.byte_add(offsets.desc as usize).cast(),
            size,
            Box::new(Mapped { base, len }),
        ))
    }
}

/// In copy mode one system call sends 32 frames; newer kernels let it be more. Returns what it is.
fn raise_tx_budget(fd: &OwnedFd, tx: u32) -> u32 {
    // SAFETY: setsockopt(2) with a 4-byte value that outlives the call.
    let rc = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_XDP,
            XDP_MAX_TX_SKB_BUDGET,
            (&raw const tx).cast(),
            size_of::<u32>() as libc::socklen_t,
        )
    };
    if rc == 0 { tx } else { 32 }
}

fn hint(step: &str, errno: Errno) -> &'static str {
    match (step, errno) {
        ("socket", Errno::AFNOSUPPORT) => "; this kernel is built without CONFIG_XDP_SOCKETS",
        ("socket", Errno::PERM) => "; CAP_NET_RAW is needed",
        ("UMEM registration", Errno::NOBUFS | Errno::NOMEM | Errno::PERM) => {
            "; raise the limit on locked memory (`ulimit -l`), or run with CAP_IPC_LOCK"
        }
        ("bind", Errno::OPNOTSUPP) => "; the driver cannot do that",
        ("bind", Errno::NETDOWN) => "; bring the interface up first (`ip link set dev ... up`)",
        ("bind", Errno::NODEV) => "; the interface is gone",
        _ => "",
    }
}
