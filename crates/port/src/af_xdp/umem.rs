//! The arena as UMEM.

use bywash_frame::Arena;
use rustix::net::sockopt;
use rustix::net::xdp::{XdpUmemReg, XdpUmemRegFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

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
    members: Mutex<Vec<Member>>,
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
        Arc::new(Self { arena: arena.clone(), members: Mutex::new(Vec::new()) })
    }

    /// The arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Registers the arena on a socket, as a UMEM that others can join.
    pub(super) fn register(&self, socket: impl AsFd) -> io::Result<()> {
        let umem = XdpUmemReg {
            addr: self.arena.base() as u64,
            len: self.arena.size() as u64,
            chunk_size: self.arena.cell_size() as u32,
            // The kernel keeps its own 256 bytes in front of the data, which is where ours starts.
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
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

    /// Makes a bound socket known to those that come later.
    pub(super) fn joined(&self, socket: &Arc<OwnedFd>, zero_copy: bool, place: (u32, u32)) {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.push(Member { socket: Arc::downgrade(socket), zero_copy, place });
    }
}
