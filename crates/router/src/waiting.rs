//! Packets that wait for their neighbour to be resolved.

use bywash_engine::PortId;
use bywash_frame::Frame;
use std::net::IpAddr;

/// Packets that may wait on one worker.
const CAPACITY: usize = 256;
/// Packets that may wait for one neighbour: enough for a TCP handshake and a DNS query, not for a flood.
const PER_NEIGHBOUR: usize = 8;

/// One waiting packet.
pub(crate) struct Wait {
    /// The packet, whole and already charged with its hop.
    pub frame: Frame,
    /// Port it came in by.
    pub from: PortId,
    /// Interface of the neighbour.
    pub index: u32,
    /// The neighbour.
    pub addr: IpAddr,
    /// Time-stamp counter after which nobody waits any more.
    pub until: u64,
    /// Time-stamp counter at which to ask for the neighbour again: an earlier request may have been one too many for
    /// the kernel side, and nothing ever comes of it.
    pub ask_at: u64,
    /// Whether the neighbour had already failed when the packet came.
    pub failed: bool,
}

/// The packets waiting on one worker; never allocates after it was made.
pub(crate) struct Waiting {
    list: Vec<Wait>,
    /// Time-stamp counter at which to look again.
    pub recheck_at: u64,
}

impl Waiting {
    pub fn new() -> Self {
        Self { list: Vec::with_capacity(CAPACITY), recheck_at: 0 }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a packet, unless too many wait already. Says whether it is the first for its neighbour.
    pub fn add(&mut self, wait: Wait) -> Result<bool, Wait> {
        let same = self.list.iter().filter(|w| w.addr == wait.addr && w.index == wait.index).count();
        if self.list.len() == CAPACITY || same >= PER_NEIGHBOUR {
            return Err(wait);
        }
        self.list.push(wait);
        Ok(same == 0)
    }

    pub fn pop(&mut self) -> Option<Wait> {
        self.list.pop()
    }

    /// Takes the `i`th, in order of arrival.
    pub fn take(&mut self, i: usize) -> Wait {
        self.list.remove(i)
    }

    /// The `i`th.
    pub fn get_mut(&mut self, i: usize) -> Option<&mut Wait> {
        self.list.get_mut(i)
    }
}
