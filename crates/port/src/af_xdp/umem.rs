//! The arena as UMEM.

use super::limbo::{self, Limbo};
use bywash_frame::{Arena, Buffers, RawFrame};
use rustix::net::sockopt;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How chunks, the pieces of memory that the kernel knows, and the arena's cells lie to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// A chunk is a cell, or the first page of one.
    #[default]
    Aligned,
    /// A chunk is a cell's worth of memory, and may begin anywhere.
    Unaligned,
    /// The same with chunks larger than cells: frames lie one behind the other in what would be one frame's chunk. Only frames
    /// that fit a cell may be received ([`super::XdpConfig::max_frame`]): longer ones would reach into the next. The last
    /// [`Layout::spare`] cells cannot be received into.
    Typewriter,
}

/// The smallest chunk there is: XDP_UMEM_MIN_CHUNK_SIZE.
const MIN_CHUNK: usize = 2048;
/// The largest: a page.
const MAX_CHUNK: usize = 4096;

impl Layout {
    /// Cells at the arena's end in which no whole chunk begins.
    pub fn spare(self, cell: usize) -> usize {
        if self == Self::Typewriter { MIN_CHUNK / cell.min(MIN_CHUNK) } else { 0 }
    }
}

/// One arena as the UMEM of any number of sockets, on any interfaces and queues.
///
/// The kernel pins and maps the memory once for each registration; later sockets join one (`XDP_SHARED_UMEM`). It
/// fixes copy or zero-copy for all that join, so there is at most one registration of each. To join, a socket names
/// a live, bound member: any member will do, and when none is left the memory is registered anew.
///
/// # Thread-safety
/// Shared by all who open sockets.
pub struct Umem {
    arena: Arc<Arena>,
    layout: Layout,
    members: Mutex<Vec<Member>>,
    limbo: Limbo,
}

struct Member {
    socket: Weak<OwnedFd>,
    zero_copy: bool,
    /// Interface index and queue.
    place: (u32, u32),
}

impl Umem {
    /// Makes an arena usable by AF_XDP sockets. Nothing is registered until the first of them.
    pub fn new(arena: &Arc<Arena>) -> Arc<Self> {
        Self::with_layout(arena, Layout::Aligned)
    }

    /// The same in another layout.
    pub fn with_layout(arena: &Arc<Arena>, layout: Layout) -> Arc<Self> {
        Arc::new(Self { arena: arena.clone(), layout, members: Mutex::new(Vec::new()), limbo: Limbo::default() })
    }

    /// Its layout.
    #[inline]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Bytes of a chunk.
    pub fn chunk(&self) -> usize {
        self.arena.cell_size().clamp(MIN_CHUNK, MAX_CHUNK)
    }

    /// Whether a cell is larger than a chunk, so that long frames come in several buffers.
    pub fn long(&self) -> bool {
        self.arena.cell_size() > self.chunk()
    }

    /// Registers the arena on a socket, as a UMEM that others can join.
    pub(super) fn register(&self, socket: impl AsFd) -> io::Result<()> {
        let umem = XdpUmemReg {
            addr: self.arena.base() as u64,
            len: self.arena.size() as u64,
            chunk_size: self.chunk() as u32,
            // The kernel keeps its own 256 bytes in front of the data, which is where ours starts.
            headroom: 0,
            flags: match self.layout {
                Layout::Aligned => XdpUmemRegFlags::empty(),
                Layout::Unaligned | Layout::Typewriter => XdpUmemRegFlags::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
            },
            tx_metadata_len: 0,
        };
        Ok(sockopt::set_xdp_umem_reg(socket, umem)?)
    }

    /// Sockets that a new one at `place` of the same mode can join. A socket at that very place cannot be joined:
    /// two with rings of their own there are a conflict, which the kernel tells clearly only without joining.
    pub(super) fn members(&self, zero_copy: bool, place: (u32, u32)) -> Vec<Arc<OwnedFd>> {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.retain(|m| m.socket.strong_count() > 0);
        let fit = members.iter().filter(|m| m.zero_copy == zero_copy && m.place != place);
        fit.filter_map(|m| m.socket.upgrade()).collect()
    }

    /// Frames of closed zero-copy ports that their devices may still have. They are no pool's until [`Umem::reclaim`] finds
    /// that the kernel has taken them from the driver.
    pub fn held(&self) -> usize {
        self.limbo.len()
    }

    /// Frees those frames of closed zero-copy ports that no device has any more; returns how many one still may. Makes a few
    /// system calls for each port, if there are any such frames: not for a worker. In the network namespace of the ports.
    pub fn reclaim(&self, bufs: &mut Buffers) -> usize {
        if self.held() > 0 {
            let cells = self.limbo.take(limbo::is_free);
            let frames = cells.iter().map(|&cell| RawFrame { addr: self.arena.cell_addr(cell), len: 0, options: 0 });
            // SAFETY: each was in a closed port's custody, which it left but once, and the kernel has let go of it.
            unsafe { bufs.free_raw(frames) };
        }
        self.held()
    }

    /// As [`Umem::reclaim`], waiting for the kernel for up to `wait`.
    pub fn settle(&self, bufs: &mut Buffers, wait: Duration) -> usize {
        let until = Instant::now() + wait;
        loop {
            let left = self.reclaim(bufs);
            if left == 0 || Instant::now() >= until {
                return left;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub(super) fn limbo(&self) -> &Limbo {
        &self.limbo
    }

    /// Makes a bound socket known to those that come later.
    pub(super) fn joined(&self, socket: &Arc<OwnedFd>, zero_copy: bool, place: (u32, u32)) {
        self.limbo.bound(place);
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.push(Member { socket: Arc::downgrade(socket), zero_copy, place });
    }
}
