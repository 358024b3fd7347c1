//! UMEM: the arena registered with the kernel for AF_XDP sockets.

use super::unreturned::{self, Unreturned};
use bywash_frame::{Arena, Buffers};
use bywash_sync::lock;
use rustix::net::sockopt;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Relation between the kernel's chunks and the arena's cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// A chunk is a cell, or its first page.
    #[default]
    Aligned,
    /// A chunk has the size of a cell and may begin anywhere.
    Unaligned,
    /// Like `Unaligned`, with chunks larger than cells: frames lie one after the other in memory that would otherwise
    /// be the chunk of one frame. Only frames that fit a cell may be received ([`super::XdpConfig::max_frame`]): longer
    /// ones would overwrite the next cell. The last [`Layout::spare`] cells cannot be received into.
    Typewriter,
}

/// Smallest chunk in bytes: XDP_UMEM_MIN_CHUNK_SIZE.
const MIN_CHUNK: usize = 2048;
/// Largest chunk in bytes: a page.
const MAX_CHUNK: usize = 4096;

impl Layout {
    /// Returns the number of cells at the arena's end that have no room for a whole chunk.
    pub fn spare(self, cell: usize) -> usize {
        if self == Self::Typewriter { MIN_CHUNK / cell.min(MIN_CHUNK) } else { 0 }
    }
}

/// Arena used as UMEM by any number of sockets, on any interfaces and queues.
///
/// The kernel pins and maps the memory once per registration; later sockets join one (`XDP_SHARED_UMEM`). A
/// registration fixes copy or zero-copy mode for all its sockets, so there is at most one of each. To join, a socket
/// names any live, bound member; when none is left the memory is registered anew.
///
/// # Thread-safety
/// May be shared by all threads that open sockets.
pub struct Umem {
    arena: Arc<Arena>,
    layout: Layout,
    members: Mutex<Vec<Member>>,
    unreturned: Unreturned,
}

struct Member {
    socket: Weak<OwnedFd>,
    zero_copy: bool,
    /// Interface index and queue.
    place: (u32, u32),
}

impl Umem {
    /// Makes an arena usable by AF_XDP sockets. Nothing is registered before the first socket.
    pub fn new(arena: &Arc<Arena>) -> Arc<Self> {
        Self::with_layout(arena, Layout::Aligned)
    }

    /// Like [`Umem::new`], with another layout.
    pub fn with_layout(arena: &Arc<Arena>, layout: Layout) -> Arc<Self> {
        Arc::new(Self {
            arena: arena.clone(),
            layout,
            members: Mutex::new(Vec::new()),
            unreturned: Unreturned::default(),
        })
    }

    /// Returns the layout.
    #[inline]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Returns the size of a chunk in bytes.
    pub fn chunk(&self) -> usize {
        self.arena.cell_size().clamp(MIN_CHUNK, MAX_CHUNK)
    }

    /// Returns whether a cell is larger than a chunk, so that long frames come in several buffers.
    pub fn long(&self) -> bool {
        self.arena.cell_size() > self.chunk()
    }

    /// Registers the arena on a socket, as a UMEM that other sockets can join.
    pub(super) fn register(&self, socket: impl AsFd) -> io::Result<()> {
        let umem = XdpUmemReg {
            addr: self.arena.base() as u64,
            len: self.arena.size() as u64,
            chunk_size: self.chunk() as u32,
            // The kernel reserves 256 bytes before the data, which puts the data at the arena's own `DATA_OFFSET`.
            headroom: 0,
            flags: match self.layout {
                Layout::Aligned => XdpUmemRegFlags::empty(),
                Layout::Unaligned | Layout::Typewriter => XdpUmemRegFlags::XDP_UMEM_UNALIGNED_CHUNK_FLAG,
            },
            tx_metadata_len: 0,
        };
        Ok(sockopt::set_xdp_umem_reg(socket, umem)?)
    }

    /// Returns the sockets that a new one at `place` can join in this mode. A socket at the same place is excluded: two
    /// sockets with rings of their own there conflict, which the kernel reports clearly only without joining.
    pub(super) fn members(&self, zero_copy: bool, place: (u32, u32)) -> Vec<Arc<OwnedFd>> {
        let mut members = lock(&self.members);
        members.retain(|m| m.socket.strong_count() > 0);
        let fit = members.iter().filter(|m| m.zero_copy == zero_copy && m.place != place);
        fit.filter_map(|m| m.socket.upgrade()).collect()
    }

    /// Returns the number of frames of closed ports that their devices may still access: in zero-copy mode, or from
    /// which they had not finished sending. They belong to no pool until [`Umem::reclaim`] finds that they are done.
    pub fn held(&self) -> usize {
        self.unreturned.len()
    }

    /// Frees the frames of closed ports that no device accesses any more; returns how many are still held. If
    /// there are such frames, makes a few system calls per port, so it is not for workers. Must be called in the
    /// network namespace of the ports.
    pub fn reclaim(&self, bufs: &mut Buffers) -> usize {
        if self.held() > 0 {
            let mut cells = self.unreturned.take(unreturned::is_free);
            // SAFETY: each was in flight through a closed port's socket, was taken from that set once, and the kernel
            // no longer uses it.
            unsafe { bufs.free_cells(&mut cells) };
        }
        self.held()
    }

    /// Like [`Umem::reclaim`], waiting for the kernel for up to `wait`.
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

    pub(super) fn unreturned(&self) -> &Unreturned {
        &self.unreturned
    }

    /// Registers a bound socket as one that later sockets can join.
    pub(super) fn joined(&self, socket: &Arc<OwnedFd>, zero_copy: bool, place: (u32, u32)) {
        self.unreturned.bound(place);
        let mut members = lock(&self.members);
        members.push(Member { socket: Arc::downgrade(socket), zero_copy, place });
    }

    /// Keeps later sockets from joining one that is about to be closed. Returns whether a thread that is joining it
    /// still has it, so that dropping this reference does not close it.
    pub(super) fn left(&self, socket: &Arc<OwnedFd>) -> bool {
        let mut members = lock(&self.members);
        members.retain(|m| !std::ptr::eq(m.socket.as_ptr(), Arc::as_ptr(socket)));
        // Only `members` makes more references, under the same lock.
        Arc::strong_count(socket) > 1
    }
}
