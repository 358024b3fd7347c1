//! AF_XDP socket: its four rings, and the modes in which it tries to bind.
//!
//! With several transmit sockets, the additional ones have only a TX ring and take turns with the first; they share its
//! completion ring (`XDP_SHARED_UMEM` on the same queue).

use super::offload::driver;
use super::ring::{Consumer, Memory, Producer};
use super::short::cuts;
use super::{DeviceFeatures, Error, LinkInfo, Umem};
use bywash_frame::{BATCH, RawFrame};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpRingOffset,
};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

/// `XDP_MAX_TX_SKB_BUDGET` (linux/if_xdp.h, since 6.17): frames sent per system call in copy mode; 32 on older kernels.
const XDP_MAX_TX_SKB_BUDGET: i32 = 9;

/// Maximum number of transmit sockets on one queue.
const MAX_TX_SOCKETS: usize = 16;
// asm-generic/socket.h; SO_PREFER_BUSY_POLL and SO_BUSY_POLL_BUDGET since 5.11.
const SO_BUSY_POLL: i32 = 46;
const SO_PREFER_BUSY_POLL: i32 = 69;
const SO_BUSY_POLL_BUDGET: i32 = 70;
/// Busy-poll time of blocking calls in microseconds. Our calls do not block; the value only must not be 0.
const BUSY_POLL_US: u32 = 20;

/// Use of zero-copy mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum ZeroCopy {
    /// If the driver supports it.
    ///
    /// If not, the port keeps the reason.
    #[default]
    Auto,
    /// Always; an error if the driver does not support it.
    Require,
    /// Never.
    Off,
}

/// Sizes of a socket's four rings in descriptors: powers of two from 64 to 65,536.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RingSizes {
    /// RX ring: received frames.
    pub rx: u32,
    /// TX ring: frames to be sent.
    pub tx: u32,
    /// Fill ring: empty frames posted for the kernel to receive into.
    pub fill: u32,
    /// Completion ring: sent frames to be freed.
    pub completion: u32,
}

impl Default for RingSizes {
    fn default() -> Self {
        Self::all(2048)
    }
}

impl RingSizes {
    /// Returns rings of the same size.
    pub fn all(size: u32) -> Self {
        Self { rx: size, tx: size, fill: size, completion: size }
    }

    /// Returns the maximum number of frames that the rings hold at once.
    pub fn frames(&self) -> usize {
        [self.rx, self.tx, self.fill, self.completion].map(|size| size as usize).iter().sum()
    }

    fn check(self) -> Result<(), Error> {
        for (ring, size) in [("fill", self.fill), ("rx", self.rx), ("tx", self.tx), ("completion", self.completion)] {
            if !size.is_power_of_two() || !(64..=65536).contains(&size) {
                return Err(Error::RingSize { ring, size });
            }
        }
        Ok(())
    }
}

/// Transmit method in copy mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Transmit {
    /// Injection on veth, else the AF_XDP socket.
    #[default]
    Auto,
    /// AF_XDP socket.
    Socket,
    /// Injection by a BPF program, through the interface's queueing discipline.
    ///
    /// The sending thread must be in the interface's network namespace.
    Inject,
}

/// Way in which a port detects received frames and makes the kernel send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Polling {
    /// Run to completion: interrupts fill the RX ring, which is checked without a system call.
    #[default]
    Rtc,
    /// poll(2): waits, receives and makes the kernel send ([`super::wait`]).
    Poll,
    /// Preferred busy polling (Linux 5.11): system calls of the worker poll the driver on the worker's CPU, and the
    /// interrupts stay off meanwhile. See [`super::Journal::busy_poll`] for the interface settings it needs.
    BusyPoll,
}

/// Configuration of a socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SocketConfig {
    /// Copy or zero-copy.
    pub zero_copy: ZeroCopy,
    /// Way of sending.
    pub transmit: Transmit,
    /// Ring sizes.
    pub rings: RingSizes,
    /// Way of detecting received frames.
    pub polling: Polling,
    /// Maximum number of frames that the driver receives per system call when busy polling.
    pub budget: u16,
    /// Maximum number of frames received in one burst.
    pub burst: usize,
    /// Set to prefetch the first cache line of received frames, for workers that read them. A line that is not read
    /// here is better left in the cache of the CPU that wrote it and will write it again.
    pub prefetch: bool,
    /// Set if the kernel signals when it must be woken. Otherwise every turn with frames to send makes a system call.
    pub need_wakeup: bool,
    /// Set if sent frames are freed by a list of our own, in the order they were sent. Each completion is compared
    /// with the list, which is abandoned at the first difference.
    pub in_order: bool,
    /// Number of sockets that send in turn, 1 to 16.
    pub tx_sockets: usize,
    /// Time in milliseconds for which binding a queue is retried that another socket still occupies: after a close the
    /// kernel needs some tens of milliseconds to release it, and seconds on a busy machine.
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
            bind_timeout_ms: 3000,
        }
    }
}

const NO_ZERO_COPY: &str = "the driver has no zero-copy";

/// A bound socket with its rings.
pub(crate) struct Socket {
    // Declared before the descriptor: while a ring is mapped the kernel does not release the queue.
    pub fill: Producer<u64>,
    pub completion: Consumer<u64>,
    pub rx: Consumer<RawFrame>,
    pub tx: Producer<RawFrame>,
    /// Additional transmit sockets.
    others: Vec<(Producer<RawFrame>, OwnedFd)>,
    /// Ring that sends next: 0 for `tx`, otherwise an index into `others` plus 1.
    turn: usize,
    pub fd: Arc<OwnedFd>,
    pub zero_copy: bool,
    /// Reason for copy mode; empty in zero-copy mode, or if that was not asked for.
    pub note: String,
    /// Frames the kernel takes from the TX ring per system call.
    pub tx_budget: u32,
}

/// Empty buffers for the fill ring.
#[derive(Default)]
pub(super) struct Empty {
    pub addrs: Vec<u64>,
    /// Set once a device may have taken them: a socket was bound in zero-copy mode, and may be closed again.
    pub taken: Cell<bool>,
}

/// Memory mapping, unmapped when dropped.
pub(super) struct Mapped {
    pub base: NonNull<c_void>,
    pub len: usize,
}

// SAFETY: an address range of the process, which any thread may unmap.
unsafe impl Send for Mapped {}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once; no pointer of the ring outlives this owner.
        unsafe {
            let _ = rustix::mm::munmap(self.base.as_ptr(), self.len);
        }
    }
}

impl Socket {
    /// Opens and binds a socket for one queue: in zero-copy mode first if allowed, then in copy mode. The fill ring
    /// contains the buffers in `empty`, as far as there is room for them, when the socket is bound.
    pub(crate) fn open(
        umem: &Umem,
        (link, queue): (&LinkInfo, u32),
        config: &SocketConfig,
        empty: &Empty,
    ) -> Result<Self, Error> {
        config.rings.check()?;
        if !(1..=MAX_TX_SOCKETS).contains(&config.tx_sockets) {
            return Err(Error::TxSockets(config.tx_sockets));
        }
        if queue >= link.queues {
            return Err(Error::NoQueue { interface: link.name.clone(), queue, queues: link.queues });
        }
        let mut note = String::new();
        let cut = match config.zero_copy {
            ZeroCopy::Off => None,
            _ => driver(&link.name).and_then(|driver| cuts(&driver, umem.chunk(), link.mtu)),
        };
        // An attempt takes the kernel some 10 ms.
        let never = || DeviceFeatures::of(link.index).is_some_and(|features| !features.zero_copy);
        if let Some(reason) = cut {
            if config.zero_copy == ZeroCopy::Require {
                return Err(Error::ShortBuffers { interface: link.name.clone(), reason });
            }
            note = format!("no zero-copy: {reason}");
        } else if config.zero_copy == ZeroCopy::Auto && never() {
            note = NO_ZERO_COPY.into();
        } else if config.zero_copy != ZeroCopy::Off {
            match Self::bind(umem, (link, queue), config, empty, true) {
                Ok(socket) => return Ok(socket),
                Err(Error::Socket { source, .. }) if config.zero_copy == ZeroCopy::Auto => {
                    note = match source.raw_os_error() {
                        Some(libc::EOPNOTSUPP) => NO_ZERO_COPY.into(),
                        _ => format!("no zero-copy: {source}"),
                    };
                }
                Err(e) => return Err(e),
            }
        }
        let mut socket = Self::bind(umem, (link, queue), config, empty, false)?;
        socket.note = note;
        Ok(socket)
    }

    /// Binds in one mode, waiting for a queue that is about to become free.
    fn bind(
        umem: &Umem,
        (link, queue): (&LinkInfo, u32),
        config: &SocketConfig,
        empty: &Empty,
        zero_copy: bool,
    ) -> Result<Self, Error> {
        let start = Instant::now();
        let patience = Duration::from_millis(config.bind_timeout_ms);
        loop {
            match Self::bind_once(umem, (link, queue), config, empty, zero_copy) {
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

    /// Makes one attempt on a fresh socket, as a failed bind leaves a socket unusable. Joins a registration of the UMEM
    /// if there is one.
    fn bind_once(
        umem: &Umem,
        (link, queue): (&LinkInfo, u32),
        config: &SocketConfig,
        empty: &Empty,
        zero_copy: bool,
    ) -> Result<Self, (&'static str, Errno)> {
        for member in umem.members(zero_copy, (link.index, queue)) {
            match Self::set_up(umem, (link, queue), config, empty, zero_copy, Some(&member)) {
                // The member's interface is gone, so it is not bound any more: try the next.
                Err(("bind", Errno::BADF)) => {}
                result => return result,
            }
        }
        Self::set_up(umem, (link, queue), config, empty, zero_copy, None)
    }

    fn set_up(
        umem: &Umem,
        (link, queue): (&LinkInfo, u32),
        config: &SocketConfig,
        empty: &Empty,
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
        let (mut fill, completion, rx, tx) = unsafe {
            (
                Producer::new(map(&fd, offsets.fr, sizes.fill, XDP_UMEM_PGOFF_FILL_RING)?),
                Consumer::new(map(&fd, offsets.cr, sizes.completion, XDP_UMEM_PGOFF_COMPLETION_RING)?),
                Consumer::new(map(&fd, offsets.rx, sizes.rx, XDP_PGOFF_RX_RING)?),
                Producer::new(map(&fd, offsets.tx, sizes.tx, XDP_PGOFF_TX_RING)?),
            )
        };
        let tx_budget = raise_tx_budget(&fd, sizes.tx);
        // Some drivers (igb) look at the fill ring when they take the queue over, and not again before the first frame.
        let posted = fill.free(empty.addrs.len() as u32);
        empty.addrs.iter().zip(0..posted).for_each(|(&addr, at)| fill.put(at, addr));
        fill.submit(posted);

        let bound = match join {
            Some(member) => {
                // The registration determines the mode: flags are not allowed here.
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
        if zero_copy {
            empty.taken.set(true);
        }
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

    /// Returns the TX ring that sends next.
    #[inline]
    pub(crate) fn lane(&mut self) -> &mut Producer<RawFrame> {
        match self.turn {
            0 => &mut self.tx,
            n => &mut self.others[n - 1].0,
        }
    }

    /// Returns whether there is more than one TX ring.
    #[inline]
    pub(crate) fn has_lanes(&self) -> bool {
        !self.others.is_empty()
    }

    /// Advances to the next TX ring.
    #[inline]
    pub(crate) fn next_lane(&mut self) {
        if self.has_lanes() {
            self.turn = (self.turn + 1) % (self.others.len() + 1);
        }
    }

    /// Returns the number of frames in the TX rings that the kernel has not taken.
    pub(crate) fn pending(&mut self) -> u32 {
        self.tx.pending() + self.others.iter_mut().map(|(ring, _)| ring.pending()).sum::<u32>()
    }

    /// Makes the kernel send what is in the additional TX rings; returns the number of system calls.
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

    /// Makes the kernel send what is in the TX ring. With an empty ring, a cheap check whether the socket still works.
    #[inline]
    pub(crate) fn kick_tx(&self) -> Result<(), Errno> {
        rustix::net::send(&*self.fd, &[], SendFlags::DONTWAIT).map(drop)
    }

    /// Makes the driver look at the fill ring again.
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
    // SAFETY: as above, for the entries. The mapping is kept by its owner, and the kernel is the only opposite side.
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

/// Opens another socket that only sends, with the completion ring of `first`.
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

/// Makes the socket's system calls poll the driver.
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

/// Raises the number of frames that a system call sends in copy mode, 32 by default, if the kernel can; returns the
/// number.
pub(super) fn raise_tx_budget(fd: &OwnedFd, tx: u32) -> u32 {
    if set_option(fd, libc::SOL_XDP, XDP_MAX_TX_SKB_BUDGET, tx).is_ok() { tx } else { 32 }
}

fn hint(step: &str, errno: Errno, zero_copy: bool, long: bool) -> &'static str {
    match (step, errno) {
        ("bind", Errno::INVAL) if long => {
            "; cells larger than 4096 bytes need Linux 6.6: use cells of 4096 bytes and an MTU of at most 3822"
        }
        ("bind", Errno::OPNOTSUPP) if zero_copy => {
            "; the driver has no zero-copy, which was required: \"auto\" falls back to copy mode"
        }
        ("socket", Errno::AFNOSUPPORT) => "; this kernel is built without CONFIG_XDP_SOCKETS",
        ("socket", Errno::PERM) => "; CAP_NET_RAW is needed",
        ("UMEM registration", Errno::NOBUFS | Errno::NOMEM | Errno::PERM) => {
            "; raise the limit on locked memory (`ulimit -l`), or run with CAP_IPC_LOCK"
        }
        ("bind", Errno::OPNOTSUPP) => "; the driver does not support this mode",
        ("preferred busy polling", Errno::NOPROTOOPT) => {
            "; the kernel does not support it (needs Linux 5.11 with CONFIG_NET_RX_BUSY_POLL)"
        }
        ("preferred busy polling", Errno::PERM) => "; CAP_NET_ADMIN is needed",
        ("bind", Errno::NETDOWN) => "; bring the interface up first (`ip link set dev ... up`)",
        ("bind", Errno::NODEV) => "; the interface is gone",
        _ => "",
    }
}
