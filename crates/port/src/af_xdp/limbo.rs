//! Buffers that a device may still have although their socket is closed.
//!
//! Closing a zero-copy socket does not stop the device: the kernel takes the rings from the driver later, in a work item
//! (`xp_put_pool` and `xp_release_deferred` of net/xdp/xsk_buff_pool.c). Until then the device receives into what was posted
//! and sends what was given to it. Only when the driver is done is the queue free (`xp_clear_dev`), and so another socket
//! bound to it is the proof.

use rustix::io::Errno;
use rustix::net::xdp::{SocketAddrXdp, SocketAddrXdpFlags, XdpUmemReg, XdpUmemRegFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// A queue: interface index and number.
pub(super) type Place = (u32, u32);

/// Bytes of the UMEM of a socket that only asks: one chunk.
const PAGE: usize = 4096;

/// Cells that were with closed sockets, by queue.
#[derive(Default)]
pub(super) struct Limbo {
    held: Mutex<Vec<(Place, Vec<u32>)>>,
    /// Cells in it.
    cells: AtomicUsize,
    /// Cells whose queue is known to be free.
    free: Mutex<Vec<u32>>,
}

impl Limbo {
    /// Takes cells in, before the socket at `place` is closed.
    pub fn put(&self, place: Place, cells: Vec<u32>) {
        self.cells.fetch_add(cells.len(), Ordering::AcqRel);
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push((place, cells));
    }

    /// Cells in it.
    pub fn len(&self) -> usize {
        self.cells.load(Ordering::Acquire)
    }

    /// A socket has been bound at `place`: whatever was there before is no device's any more.
    pub fn bound(&self, place: Place) {
        self.sift(|at| at == place);
    }

    /// Gives back the cells of those queues that `is_free`.
    pub fn take(&self, is_free: impl FnMut(Place) -> bool) -> Vec<u32> {
        self.sift(is_free);
        let free = std::mem::take(&mut *self.free.lock().unwrap_or_else(PoisonError::into_inner));
        self.cells.fetch_sub(free.len(), Ordering::AcqRel);
        free
    }

    fn sift(&self, mut is_free: impl FnMut(Place) -> bool) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let cells = held.extract_if(.., |(place, _)| is_free(*place)).flat_map(|(_, cells)| cells);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).extend(cells);
    }
}

/// Whether no closed socket's rings are with a device any more at `place`: asked by binding a socket there in copy mode, which
/// is closed again at once. An interface that is gone was stopped before. In doubt it is not free.
pub(super) fn is_free((interface, queue): Place) -> bool {
    matches!(bind((interface, queue)), Ok(()) | Err(Errno::NODEV))
}

fn bind((interface, queue): Place) -> Result<(), Errno> {
    let fd = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    // One page in it begins at a page; nothing is posted, so that nothing is written to it.
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
        let limbo = Limbo::default();
        limbo.put((1, 0), vec![1, 2]);
        limbo.put((1, 1), vec![3]);
        limbo.put((2, 0), vec![4]);
        assert_eq!((limbo.len(), limbo.take(|_| false)), (4, vec![]));
        assert_eq!((limbo.take(|place| place == (1, 1)), limbo.len()), (vec![3], 3));
        limbo.bound((1, 0));
        assert_eq!((limbo.take(|_| false), limbo.len()), (vec![1, 2], 1));
        assert_eq!((limbo.take(|_| true), limbo.len()), (vec![4], 0));
    }
}
