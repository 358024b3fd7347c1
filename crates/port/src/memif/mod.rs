//! memif ports: shared-memory packet exchange with another process (VPP, DPDK, libmemif, another Bywash).
//!
//! The client provides the shared memory: the rings and, for packet data, the arena, so that it sends and receives
//! without copying. The server copies packets from and to the client's memory. Nothing that the peer writes is trusted:
//! a descriptor outside of its region, an index that jumps or a ring without the cookie ends the connection, and the
//! reason is sent to the peer.
//!
//! A client's peer maps the whole arena and can change a packet while it is being processed. Use the client role only
//! with a peer that is trusted with all traffic.

mod control;
mod copying;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod handshake;
mod kick;
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
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Valid numbers of slots of a ring, which must be a power of two.
pub const RING: RangeInclusive<usize> = 16..=1 << message::MAX_LOG2_RING;
/// Maximum number of a client's regions: DPDK's has one for its rings, and one for each of its memory segment lists.
pub const REGIONS: usize = 16;
/// Maximum number of bytes that a server maps of all of a client's regions. Pages that the client's files lack are
/// created when a descriptor points to them, as this process's memory.
pub const MAPPED: u64 = 8 << 30;
/// Maximum length of a secret in bytes.
pub const SECRET: usize = message::SECRET;

/// Role of a port in a memif connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Listens, and copies packets.
    ///
    /// Formerly called master.
    #[default]
    Server,
    /// Connects, and shares its buffers with the peer.
    ///
    /// It tries to connect until it succeeds. Formerly called slave.
    Client,
}

/// Configuration of a memif port.
#[derive(Clone)]
pub struct Config {
    /// Control socket: a path, or `@` followed by an abstract socket name.
    pub socket: PathBuf,
    /// Role of this port.
    pub role: Role,
    /// Interface ID on that socket. A server accepts clients with the same ID only.
    pub id: u32,
    /// Secret that the client must present, at most [`SECRET`] bytes. If empty, the server asks for none.
    pub secret: String,
    /// Slots of each ring that a client creates, within [`RING`]. A server uses the size that the client chose.
    pub ring: usize,
    /// Set if a server requires memory that the client cannot take away: memfds with F_SEAL_SHRINK, not in huge pages.
    /// Otherwise a client that truncates its file, or takes huge pages out of it, kills this process with SIGBUS. DPDK
    /// clients with `zero-copy=yes`, and Bywash's with reserved huge pages, need this off.
    pub sealed: bool,
    /// Interface name sent to the peer.
    pub name: String,
    /// User that the server may run as, besides root and this process's own user. A client gives its secret and all of
    /// its buffers to the server, and any user can listen at an abstract name.
    pub peer: Option<u32>,
}

impl std::fmt::Debug for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the secret.
        let mut shown = f.debug_struct("Config");
        shown.field("socket", &self.socket).field("role", &self.role).field("id", &self.id).finish_non_exhaustive()
    }
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
            peer: None,
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

/// Receives a packet that was reassembled from several descriptors into `frame` and returns 1. If the packet is not
/// `good` or is empty, counts it as invalid, frees it and returns 0.
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

/// Error of [`MemifPort::open`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Ring size that is not a power of two within [`RING`].
    #[error("invalid ring size {0}: must be a power of two from {min} to {max}", min = RING.start(), max = RING.end())]
    Ring(usize),
    /// Secret that is longer than its field or contains a NUL byte.
    #[error("invalid secret of {0} bytes: must be at most {SECRET} bytes, without a NUL byte")]
    Secret(usize),
    /// Arena larger than a client's 32-bit descriptor offsets can address.
    #[error("arena of {0} MiB is too large for a memif client, whose descriptors address 4 GiB: use fewer frames")]
    Reach(usize),
    /// Control socket, descriptor or thread that cannot be created.
    #[error("cannot {what} {socket}: {source}", socket = .socket.display())]
    Socket {
        /// Operation that failed.
        what: &'static str,
        /// Name of the socket.
        socket: PathBuf,
        /// Error returned by the kernel.
        source: std::io::Error,
    },
}
