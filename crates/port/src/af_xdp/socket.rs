//! One AF_XDP socket: its four rings, and the ladder of modes it is bound by.
//!
//! With several transmit sockets the others have a transmit ring only, and take turns with the first one's; they share
//! its completion ring (`XDP_SHARED_UMEM` on the same queue).

use super::ring::{Consumer, Memory, Producer};
use super::{Error, LinkInfo, Umem};
use bywash_frame::{BATCH, RawFrame};
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

/// More transmit sockets than this on one queue are a mistake.
const MAX_TX_SOCKETS: usize = 16;
// asm-generic/socket.h; SO_PREFER_BUSY_POLL and SO_BUSY_POLL_BUDGET since 5.11.
const SO_BUSY_POLL: i32 = 46;
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;
/// Time for which blocking calls would busy poll, in microseconds. Ours do not block: what counts is that it is not 0.
const BUSY_POLL_US: u32 = 20;

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
            if !size.is_power_of_two() || !(64..=65536).contains(&size) {
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

/// How a port learns of what arrives, and has what it sends taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Polling {
    /// Run to completion: interrupts fill the receive ring, which is looked at without a system call.
    #[default]
    Rtc,
    /// poll(2): waits, receives and has frames sent ([`super::wait`]).
    Poll,
    /// Preferred busy polling (Linux 5.11): the driver is polled by our own system calls, on our CPU, and its interrupts
    /// stay off as long as we do. See [`super::Journal::busy_poll`] for what the interface needs.
    BusyPoll,
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
    /// How it learns of what arrives.
    pub polling: Polling,
    /// Frames the driver may receive in one system call when busy polling.
    pub budget: u16,
    /// Most frames received in one burst.
    pub burst: usize,
    /// Whether what is received will be read: its first cache line is asked for at once. A line that nobody reads here had
    /// better stay in the cache of the CPU that wrote it, and will write it again.
    pub prefetch: bool,
    /// Whether the kernel says when it must be woken. Without, every turn with frames to send makes a system call.
    pub need_wakeup: bool,
    /// Whether what was sent is taken back by a list of our own, in the order it was sent in. Each completion is compared with
    /// the list, which is given up at the first difference.
    pub in_order: bool,
    /// Sockets that send in turn, 1 to 16.
    pub tx_sockets: usize,
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
            polling: Polling::Rtc,
            budget: 64,
            burst: BATCH,
            prefetch: true,
            need_wakeup: true,
            in_order: false,
            tx_sockets: 1,
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
    /// The other transmit sockets.
    others: Vec<(Producer<RawFrame>, OwnedFd)>,
    /// Whose turn it is to send: `tx`, or one of `others`.
    turn: usize,
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
        if !(1..=MAX_TX_SOCKETS).contains(&config.tx_sockets) {
            return Err(Error::TxSockets(config.tx_sockets));
        }
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
                        hint: hint(step, errno, zero_copy, umem.long()),
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
                let wakeup = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
                let mut flags = if config.need_wakeup { mode | wakeup } else { mode };
                flags.set(SocketAddrXdpFlags::XDP_USE_SG, umem.long());
                rustix::net::bind(&fd, &SocketAddrXdp::new(flags, link.index, queue))
            }
        };
        bound.map_err(|e| ("bind", e))?;
        let others = (1..config.tx_sockets).map(|_| transmitter(&fd, link, queue, sizes.tx));
        let others = others.collect::<Result<Vec<_>, _>>()?;
        if config.polling == Polling::BusyPoll {
            for fd in std::iter::once(&fd).chain(others.iter().map(|(_, fd)| fd)) {
                busy_poll(fd, config.budget).map_err(|e| ("preferred busy polling", e))?;
            }
        }
        let options = sockopt::xdp_options(&fd).map_err(|e| ("reading the mode back", e))?;
        let zero_copy = options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY);
        let fd = Arc::new(fd);
        umem.joined(&fd, zero_copy, (link.index, queue));
        Ok(Self { fill, completion, rx, tx, others, turn: 0, fd, zero_copy, note: String::new(), tx_budget })
    }

    /// The transmit ring whose turn it is.
    #[inline]
    pub(crate) fn lane(&mut self) -> &mut Producer<RawFrame> {
        match self.turn {
            0 => &mut self.tx,
            n => &mut self.others[n - 1].0,
        }
    }

    /// Whether there is more than one.
    #[inline]
    pub(crate) fn has_lanes(&self) -> bool {
        !self.others.is_empty()
    }

    /// The next one's turn.
    #[inline]
    pub(crate) fn next_lane(&mut self) {
        if self.has_lanes() {
            self.turn = (self.turn + 1) % (self.others.len() + 1);
        }
    }

    /// Frames that the kernel has not taken from the transmit rings.
    pub(crate) fn pending(&mut self) -> u32 {
        self.tx.pending() + self.others.iter_mut().map(|(ring, _)| ring.pending()).sum::<u32>()
    }

    /// Has the kernel send what is in the other transmit rings; returns the calls made.
    pub(crate) fn kick_others(&mut self) -> Result<u32, Errno> {
        let mut calls = 0;
        for (ring, fd) in &mut self.others {
            if ring.pending() > 0 {
                calls += 1;
                rustix::net::send(&*fd, &[], SendFlags::DONTWAIT)?;
            }
        }
        Ok(calls)
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

/// Another socket that only sends, by the completion ring of `first`.
fn transmitter(
    first: &OwnedFd,
    link: &LinkInfo,
    queue: u32,
    size: u32,
) -> Result<(Producer<RawFrame>, OwnedFd), (&'static str, Errno)> {
    let fd = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .map_err(|e| ("socket", e))?;
    sockopt::set_xdp_tx_ring_size(&fd, size).map_err(|e| ("tx ring", e))?;
    let offsets = sockopt::xdp_mmap_offsets(&fd).map_err(|e| ("ring offsets", e))?;
    // SAFETY: as in `set_up`.
    let ring = Producer::new(unsafe { map(&fd, offsets.tx, size, XDP_PGOFF_TX_RING)? });
    raise_tx_budget(&fd, size);
    let addr = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_SHARED_UMEM, link.index, queue);
    rustix::net::bind(&fd, &SocketAddrXdpWithSharedUmem { addr, shared_umem_fd: first.as_fd() })
        .map_err(|e| ("bind of another transmit socket", e))?;
    Ok((ring, fd))
}

/// Has the socket's system calls poll the driver.
fn busy_poll(fd: &OwnedFd, budget: u16) -> Result<(), Errno> {
    let options =
        [(SO_PREFER_BUSY_POLL, 1), (SO_BUSY_POLL, BUSY_POLL_US), (SO_BUSY_POLL_BUDGET, u32::from(budget.max(1)))];
    options.into_iter().try_for_each(|(option, value)| set_option(fd, libc::SOL_SOCKET, option, value))
}

fn set_option(fd: &OwnedFd, level: i32, option: i32, value: u32) -> Result<(), Errno> {
    let len = size_of::<u32>() as libc::socklen_t;
    // SAFETY: setsockopt(2) with a 4-byte value that outlives the call.
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len) };
    if rc == 0 { Ok(()) } else { Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}

/// In copy mode one system call sends 32 frames; newer kernels let it be more. Returns what it is.
fn raise_tx_budget(fd: &OwnedFd, tx: u32) -> u32 {
    if set_option(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, tx).is_ok() { tx } else { 32 }
}

fn hint(step: &str, errno: Errno, zero_copy: bool, long: bool) -> &'static str {
    match (step, errno) {
        ("bind", Errno::INVAL) if long => {
            "; frames over several buffers (cells larger than 4096 bytes) need Linux 6.6: a cell of 4096, and an MTU of 3822"
        }
        ("bind", Errno::OPNOTSUPP) if zero_copy => "; the driver has no zero-copy, which was required: \"auto\" copies",
        ("socket", Errno::AFNOSUPPORT) => "; this kernel is built without CONFIG_XDP_SOCKETS",
        ("socket", Errno::PERM) => "; CAP_NET_RAW is needed",
        ("UMEM registration", Errno::NOBUFS | Errno::NOMEM | Errno::PERM) => {
            "; raise the limit on locked memory (`ulimit -l`), or run with CAP_IPC_LOCK"
        }
        ("bind", Errno::OPNOTSUPP) => "; the driver cannot do that",
        ("preferred busy polling", Errno::NOPROTOOPT) => {
            "; this kernel has none (Linux 5.11 and CONFIG_NET_RX_BUSY_POLL)"
        }
        ("preferred busy polling", Errno::PERM) => "; CAP_NET_ADMIN is needed",
        ("bind", Errno::NETDOWN) => "; bring the interface up first (`ip link set dev ... up`)",
        ("bind", Errno::NODEV) => "; the interface is gone",
        _ => "",
    }
}
