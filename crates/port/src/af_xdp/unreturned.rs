//! Cells that a device may still access although their socket is closed.
//!
//! Closing a zero-copy socket does not stop the device at once: the kernel takes the rings away from the driver later,
//! in a work item (`xp_put_pool` and `xp_release_deferred` in net/xdp/xsk_buff_pool.c). Until then the device receives
//! into posted buffers and sends submitted ones. In copy mode, the skbs of some drivers consist of the cells' own pages
//! (`xsk_build_skb_zerocopy` in net/xdp/xsk.c), and keep the closed socket. In both cases the queue becomes free only
//! when the driver is done (`xp_clear_dev`), so a successful bind of another socket proves that it is.

use bywash_sync::lock;
use rustix::io::Errno;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Interface index and queue number.
pub(super) type Place = (u32, u32);

/// UMEM size of a probe socket: one chunk, in bytes.
const PAGE: usize = 4096;

/// Cells of closed sockets, by queue.
#[derive(Default)]
pub(super) struct Unreturned {
    held: Mutex<Vec<(Place, Vec<u32>)>>,
    /// Total number of cells held.
    cells: AtomicUsize,
    /// Cells whose queue is known to be free.
    free: Mutex<Vec<u32>>,
}

impl Unreturned {
    /// Adds the cells of the socket at `place`. Must be called before that socket is closed.
    pub fn put(&self, place: Place, cells: Vec<u32>) {
        self.cells.fetch_add(cells.len(), Ordering::AcqRel);
        lock(&self.held).push((place, cells));
    }

    /// Returns the number of cells held.
    pub fn len(&self) -> usize {
        self.cells.load(Ordering::Acquire)
    }

    /// Records that a socket was bound at `place`, so no device accesses the cells of earlier sockets there.
    pub fn bound(&self, place: Place) {
        self.sift(|at| at == place);
    }

    /// Removes and returns the cells of those queues for which `is_free` returns true.
    pub fn take(&self, is_free: impl FnMut(Place) -> bool) -> Vec<u32> {
        self.sift(is_free);
        let free = std::mem::take(&mut *lock(&self.free));
        self.cells.fetch_sub(free.len(), Ordering::AcqRel);
        free
    }

    fn sift(&self, mut is_free: impl FnMut(Place) -> bool) {
        let mut held = lock(&self.held);
        let cells = held.extract_if(.., |(place, _)| is_free(*place)).flat_map(|(_, cells)| cells);
        lock(&self.free).extend(cells);
    }
}

/// Returns whether no device uses the rings of a closed socket at `place` any more. Binds a probe socket there in copy
/// mode and closes it at once. A removed interface was stopped before, so its queues are free; on any other error the
/// queue counts as in use.
pub(super) fn is_free((interface, queue): Place) -> bool {
    matches!(bind((interface, queue)), Ok(()) | Err(Errno::NODEV))
}

fn bind((interface, queue): Place) -> Result<(), Errno> {
    let fd = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // The allocation contains one page-aligned page. Nothing is posted, so nothing is written to it.
    let memory = vec![0u8; 2 * PAGE];
    let addr = (memory.as_ptr() as u64).next_multiple_of(PAGE as u64);
    let flags = XdpUmemRegFlags::empty();
    let umem = XdpUmemReg { addr, len: PAGE as u64, chunk_size: PAGE as u32, headroom: 0, flags, tx_metadata_len: 0 };
    sockopt::set_xdp_umem_reg(&fd, umem)?;
    sockopt::set_xdp_umem_fill_ring_size(&fd, 1)?;
    sockopt::set_xdp_umem_completion_ring_size(&fd, 1)?;
    sockopt::set_xdp_rx_ring_size(&fd, 1)?;
    rustix::net::bind(&fd, &SocketAddrXdp::new(SocketAddrXdpFlags::XDP_COPY, interface, queue))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_back_what_is_free() {
        let unreturned = Unreturned::default();
        unreturned.put((1, 0), vec![1, 2]);
        unreturned.put((1, 1), vec![3]);
        unreturned.put((2, 0), vec![4]);
        assert_eq!((unreturned.len(), unreturned.take(|_| false)), (4, vec![]));
        assert_eq!((unreturned.take(|place| place == (1, 1)), unreturned.len()), (vec![3], 3));
        unreturned.bound((1, 0));
        assert_eq!((unreturned.take(|_| false), unreturned.len()), (vec![1, 2], 1));
        assert_eq!((unreturned.take(|_| true), unreturned.len()), (vec![4], 0));
    }
}
