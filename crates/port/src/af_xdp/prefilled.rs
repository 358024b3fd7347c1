//! Sockets whose fill ring has buffers when they are bound.
//!
//! Some zero-copy drivers (igb) look at the fill ring when they take a queue over, and then not again before the first
//! frame is received: with an empty ring, none ever is.

use super::in_flight::InFlight;
use super::inject::Injector;
use super::port::injector;
use super::socket::{Empty, Socket, SocketConfig};
use super::{Error, LinkInfo, Umem};
use bywash_frame::{Arena, BATCH, Batch, Buffers};

/// A bound socket, and the initial state of its port.
pub(super) struct Prefilled {
    pub socket: Socket,
    /// Cells in the fill ring.
    pub in_flight: InFlight,
    pub injector: Option<Injector>,
    /// Reason for sending by injector or socket, if the configuration does not determine it.
    pub why: Option<String>,
}

impl Prefilled {
    /// Opens a socket, with buffers in the fill ring if there are any to take them from. After an error they are free,
    /// or [`Umem::reclaim`] frees them when no device has them any more.
    pub fn open(
        umem: &Umem,
        at: (&LinkInfo, u32),
        config: &SocketConfig,
        ahead: Option<Injector>,
        mut bufs: Option<&mut Buffers>,
    ) -> Result<Self, Error> {
        let arena = umem.arena();
        let mut in_flight = InFlight::new(arena.cells());
        let addrs = match &mut bufs {
            Some(bufs) => take(bufs, &mut in_flight, arena, config.rings.fill as usize),
            None => vec![],
        };
        let empty = Empty { addrs, ..Empty::default() };
        let opened = Socket::open(umem, at, config, &empty).and_then(|socket| {
            let (injector, why) = injector(config.transmit, socket.zero_copy, &at.0.name, ahead)?;
            Ok((socket, injector, why))
        });
        let error = match opened {
            Ok((socket, injector, why)) => return Ok(Self { socket, in_flight, injector, why }),
            Err(error) => error,
        };
        let mut cells = in_flight.take_all();
        if empty.taken.get() {
            // Kept apart, as when a port is closed: the device may still own these buffers.
            umem.unreturned().put((at.0.index, at.1), cells);
        } else if let Some(bufs) = bufs {
            // SAFETY: each was taken from the pool above, and the socket in whose ring it was posted is closed.
            unsafe { bufs.free_cells(&mut cells) };
        }
        Err(error)
    }
}

/// Takes up to `want` cells from the pool, marks them as in flight, and returns their addresses.
fn take(bufs: &mut Buffers, in_flight: &mut InFlight, arena: &Arena, want: usize) -> Vec<u64> {
    let (mut empty, mut batch) = (Vec::with_capacity(want), Batch::new());
    while empty.len() < want {
        let n = bufs.alloc(&mut batch, (want - empty.len()).min(BATCH));
        if n == 0 {
            break;
        }
        batch.take_front(n, |_, raw| {
            let cell = arena.cell_of(raw.addr);
            in_flight.give(cell);
            empty.push(arena.cell_addr(cell));
        });
    }
    empty
}
