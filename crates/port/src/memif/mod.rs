//! memif: packets to and from another process, through memory that both have mapped (VPP, DPDK, libmemif, ourselves).
//!
//! The client brings the memory: the rings, and for packets the arena, so that it sends and receives without a copy. The
//! server copies. Nothing that the peer writes is believed: a descriptor that points nowhere, an index that jumps or a
//! ring that is none ends the connection, with the reason sent to the peer.
//!
//! A client's peer sees the whole arena, and can change a packet while it is being looked at. It is trusted with
//! packets; not with more.

mod control;
mod copying;
mod handshake;
mod lending;
mod link;
mod memory;
mod message;
mod port;
mod refusal;
mod socket;

use crate::PortCounters;
use bywash_frame::{Batch, Buffers, Frame};
use handshake::Terms;
use link::Link;
pub use message::{AddRing, Hello, Init, Message, SIZE as MESSAGE_SIZE};
pub use port::MemifPort;
pub use refusal::Refusal;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Slots that a ring can have; a power of two.
pub const RING: RangeInclusive<usize> = 16..=1 << message::MAX_LOG2_RING;
/// Bytes that a secret can have.
pub const SECRET: usize = message::SECRET;

/// Which side of a memif a port is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It listens, and copies. (Of old: master.)
    #[default]
    Server,
    /// It connects, again and again, and brings the memory. (Of old: slave.)
    Client,
}

/// What a memif port is made with.
#[derive(Clone, Debug)]
pub struct Config {
    /// The control socket: a path, or `@` and an abstract name.
    pub socket: PathBuf,
    /// Which side it is.
    pub role: Role,
    /// The interface's number on that socket.
    pub id: u32,
    /// What the client has to know, at most [`SECRET`] bytes; empty: nothing.
    pub secret: String,
    /// Slots of each ring that a client makes, one of [`RING`]. A server takes what it gets.
    pub ring: usize,
    /// Whether a server insists on memory that the client cannot cut off (F_SEAL_SHRINK). Without, such a client can end
    /// the process. DPDK's clients need it off when they send without a copy.
    pub sealed: bool,
    /// The name told to the peer.
    pub name: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: PathBuf::new(),
            role: Role::default(),
            id: 0,
            secret: String::new(),
            ring: 2048,
            sealed: true,
            name: "bywash".into(),
        }
    }
}

impl Config {
    fn terms(&self) -> Terms {
        let secret = self.secret.as_bytes();
        Terms {
            id: self.id,
            secret: std::array::from_fn(|i| secret.get(i).copied().unwrap_or(0)),
            log2_ring: self.ring.ilog2() as u8,
            sealed: self.sealed,
            name: self.name.clone(),
        }
    }
}

/// Receives a packet that came in parts, put together in `frame`; returns 1. When it is not `good`, or has no bytes, it is
/// counted as invalid and freed; 0.
fn put_together(frame: Frame, good: bool, bufs: &mut Buffers, out: &mut Batch, counters: &PortCounters) -> usize {
    if !good || frame.len() == 0 {
        counters.invalid.add(1);
        bufs.free_one(frame);
        return 0;
    }
    counters.rx_packets.add(1);
    counters.rx_bytes.add(frame.len() as u64);
    let pushed = out.push(frame);
    debug_assert!(pushed.is_ok());
    1
}

/// Why there is no memif port.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A ring that no peer takes.
    #[error("a ring of {0} slots: expected a power of two from {min} to {max}", min = RING.start(), max = RING.end())]
    Ring(usize),
    /// A secret that does not fit its field.
    #[error("a secret of {0} bytes: at most {SECRET} fit, without a zero")]
    Secret(usize),
    /// Buffers that descriptors cannot reach.
    #[error("{0} MiB of buffers: a memif client's descriptors reach 4 GiB; use fewer frames")]
    Reach(usize),
    /// The socket.
    #[error("cannot {what} {socket}: {source}", socket = .socket.display())]
    Socket {
        /// What was tried.
        what: &'static str,
        /// Its name.
        socket: PathBuf,
        /// The kernel's reason.
        source: std::io::Error,
    },
}
