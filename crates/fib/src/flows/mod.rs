//! Established connections whose packets are forwarded without the kernel, with their translation of addresses and
//! ports: a table for each family, read by workers and by the XDP program.
//!
//! One writer keeps [`Flows`] in step with the kernel's connection tracking; readers look packets up in
//! [`FlowTables`]. A packet belongs to a flow if it has the tuple of one of its directions and was received by that
//! direction's port. It leaves with the other direction's tuple reversed, by the other direction's port.
//!
//! # Validity
//! A flow has the generation for which it was last found valid; packets belong to it only while that is the current
//! one. So [`Flows::set_generation`] revokes all flows by one store, until each is confirmed anew. Nothing is evicted:
//! a full table refuses further flows, whose packets are left to the kernel.
//!
//! # Candidates
//! Readers weigh packets that belong to no flow ([`FlowTable::miss`]), and report tuples that are seen often. The
//! writer takes the reports by [`Flows::candidates`], and finds out which of them are connections to be added.

mod candidates;
mod layout;
mod list;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

pub use layout::Key;
pub use list::{Listed, Standing};
pub use reader::{Exit, FlowTable, Hit};

use crate::region::Shared;
use bywash_sync::Qsbr;
use layout::{BASE, Keys, Size, first_record};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use writer::Writer;

/// Addresses and ports of packets in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tuple {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
}

/// A connection, as connection tracking describes it: the packets of each direction, as they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// IP protocol: 6 for TCP, 17 for UDP.
    pub protocol: u8,
    /// Packets of the side that opened the connection.
    pub original: Tuple,
    /// Packets of the other side: without translation, the original tuple reversed.
    pub reply: Tuple,
    /// Number of the port that receives packets of the original direction.
    pub input: u16,
    /// Number of the port that receives packets of the reply direction.
    pub output: u16,
}

/// A flow in the table. Valid until the flow is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(
    /// Number of its record.
    u32,
);

/// Set in a [`FlowId`] of IPv6.
const V6: u32 = 1 << 31;

impl FlowId {
    /// Returns the flow of a family with this index, which [`FlowId::index`] has returned for a flow in the table.
    pub fn new(v6: bool, index: usize) -> Self {
        let (first, family) = if v6 { (first_record::<4>(), V6) } else { (first_record::<1>(), 0) };
        Self((index as u32).saturating_add(first).min(V6 - 1) | family)
    }

    /// Returns whether it is a flow of IPv6.
    pub fn is_v6(self) -> bool {
        self.0 & V6 != 0
    }

    /// Returns its index among the flows of its family. Indices are small, and are used again after the flow is
    /// removed.
    pub fn index(self) -> usize {
        let first = if self.is_v6() { first_record::<4>() } else { first_record::<1>() };
        ((self.0 & !V6) - first) as usize
    }
}

/// Packets of one direction that were forwarded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Packets, modulo 2^32.
    pub packets: u32,
    /// Bytes of their IP headers and what follows them, without padding.
    pub bytes: u64,
}

/// Reason why a flow was not added. Its packets are left to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There are as many flows as the table may have, both buckets of a tuple are full, or there is no memory.
    Full,
    /// The table has a flow with one of the tuples.
    Known,
    /// The protocol is neither TCP nor UDP, the addresses are of two families, or both directions have one tuple.
    Unfit,
}

/// Flows of both families: the writer's side.
pub struct Flows {
    v4: Writer<1>,
    v6: Writer<4>,
    limit: usize,
}

/// Flows of both families: the readers' side.
#[derive(Clone)]
pub struct FlowTables {
    /// IPv4 flows.
    pub v4: Arc<FlowTable<1>>,
    /// IPv6 flows.
    pub v6: Arc<FlowTable<4>>,
}

impl Flows {
    /// Creates an IPv4 and an IPv6 table, for at most `limit` flows of both together. Their readers are those of
    /// `domain` and, where `memory` is given (first for IPv4, then for IPv6), those that share it. No flow is valid
    /// before [`Flows::set_generation`].
    ///
    /// # Errors
    /// If address space (a GiB) is refused. Memory is taken when it is needed.
    pub fn new(domain: &Qsbr, memory: [Option<Box<dyn Shared>>; 2], limit: usize) -> io::Result<Self> {
        let random = RandomState::new();
        let keys = |family: u64| std::array::from_fn(|n| random.hash_one((family, n as u64)));
        Self::with_keys(domain, memory, limit, [keys(4), keys(6)], Size::of(BASE))
    }

    fn with_keys(
        domain: &Qsbr,
        memory: [Option<Box<dyn Shared>>; 2],
        limit: usize,
        keys: [Keys; 2],
        first: Size,
    ) -> io::Result<Self> {
        let [memory4, memory6] = memory;
        let (v4, v6) = (Writer::new(domain, memory4, keys[0], first)?, Writer::new(domain, memory6, keys[1], first)?);
        Ok(Self { v4, v6, limit })
    }

    /// Returns the readers' side, which is the same for the tables' whole life.
    pub fn reader(&self) -> FlowTables {
        FlowTables { v4: self.v4.reader().clone(), v6: self.v6.reader().clone() }
    }

    /// Returns how many flows may be added.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.len())
    }

    /// Adds a flow that was found valid for `generation`.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn insert(&mut self, flow: &Flow, generation: u32) -> Result<FlowId, Refused> {
        if self.room() == 0 {
            return Err(Refused::Full);
        }
        if !matches!(flow.protocol, 6 | 17) {
            return Err(Refused::Unfit);
        }
        let tuples = [(flow.original, flow.input), (flow.reply, flow.output)];
        match (flow.original.src, flow.reply.src) {
            (IpAddr::V4(_), IpAddr::V4(_)) => {
                let [Some(a), Some(b)] = tuples.map(|(tuple, port)| key4(flow.protocol, &tuple, port)) else {
                    return Err(Refused::Unfit);
                };
                self.v4.insert(distinct([a, b])?, generation).map(FlowId)
            }
            _ => {
                let [Some(a), Some(b)] = tuples.map(|(tuple, port)| key6(flow.protocol, &tuple, port)) else {
                    return Err(Refused::Unfit);
                };
                self.v6.insert(distinct([a, b])?, generation).map(|record| FlowId(record | V6))
            }
        }
    }

    /// Makes a flow valid for `generation`, unless it was revoked; returns whether it is valid now.
    pub fn confirm(&mut self, id: FlowId, generation: u32) -> bool {
        if id.is_v6() { self.v6.confirm(id.0 & !V6, generation) } else { self.v4.confirm(id.0, generation) }
    }

    /// Makes a flow invalid at once; it stays in the table until it is removed.
    pub fn revoke(&mut self, id: FlowId) {
        if id.is_v6() { self.v6.revoke(id.0 & !V6) } else { self.v4.revoke(id.0) }
    }

    /// Removes a flow: no packet belongs to it from now on.
    pub fn remove(&mut self, id: FlowId) {
        if id.0 & V6 == 0 { self.v4.remove(id.0) } else { self.v6.remove(id.0 & !V6) }
    }

    /// Frees flows that were removed and whose grace period has passed, and begins a grace period for the others.
    /// Returns the number of flows whose memory is not free yet. Does not block; call it from time to time until it
    /// returns 0. A table that grows does so itself.
    pub fn collect(&mut self) -> usize {
        self.v4.collect() + self.v6.collect()
    }

    /// Returns the packets and bytes forwarded in a flow's original and its reply direction.
    pub fn traffic(&self, id: FlowId) -> [Traffic; 2] {
        if id.0 & V6 == 0 { self.v4.traffic(id.0) } else { self.v6.traffic(id.0 & !V6) }
    }

    /// Returns the flow whose original direction has this tuple, whatever its ports; `None` if there is none.
    pub fn find(&self, protocol: u8, original: &Tuple) -> Option<FlowId> {
        match original.src {
            IpAddr::V4(_) => self.v4.find(&key4(protocol, original, 0)?).map(FlowId),
            IpAddr::V6(_) => self.v6.find(&key6(protocol, original, 0)?).map(|record| FlowId(record | V6)),
        }
    }

    /// Returns a flow that is in the table.
    pub fn flow(&self, id: FlowId) -> Flow {
        let [(protocol, original, input), (_, reply, output)] = match id.is_v6() {
            false => self.v4.keys(id.0).map(tuple4),
            true => self.v6.keys(id.0 & !V6).map(tuple6),
        };
        Flow { protocol, original, reply, input, output }
    }

    /// Returns the generation that a flow is valid for; 0 if it was revoked.
    pub fn generation(&self, id: FlowId) -> u32 {
        if id.is_v6() { self.v6.generation(id.0 & !V6) } else { self.v4.generation(id.0) }
    }

    /// Returns up to `most` of the tuples that readers have reported since the last call, with their protocols: first
    /// those of IPv4, then those of IPv6, each in the order of their reports. They are hints: a report may be missing,
    /// repeated, or of packets that never were.
    pub fn candidates(&mut self, most: usize) -> Vec<(u8, Tuple)> {
        let mut found = Vec::new();
        let mut report = |(protocol, tuple, _)| found.push((protocol, tuple));
        let taken = self.v4.candidates(most, |key| report(tuple4(key)));
        self.v6.candidates(most - taken, |key| report(tuple6(key)));
        found
    }

    /// Sets the current generation: packets belong to flows of this generation only; with 0, to none. Before the first
    /// generation other than 0, no memory is taken, and no candidate is reported.
    pub fn set_generation(&mut self, generation: u32) {
        self.v4.set_generation(generation);
        self.v6.set_generation(generation);
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Returns whether there are no flows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes of memory in use, which grow with the flows. The memory of removed flows is kept for others.
    pub fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory()
    }
}

fn distinct<const N: usize>(keys: [Key<N>; 2]) -> Result<[Key<N>; 2], Refused> {
    // With one tuple for both directions, the port that receives a packet would have to tell them apart.
    let same = keys[0].addresses == keys[1].addresses && (keys[0].rest ^ keys[1].rest) << 16 == 0;
    if same { Err(Refused::Unfit) } else { Ok(keys) }
}

fn ports(tuple: &Tuple) -> [u8; 4] {
    let [a, b] = tuple.src_port.to_be_bytes();
    let [c, d] = tuple.dst_port.to_be_bytes();
    [a, b, c, d]
}

fn key4(protocol: u8, tuple: &Tuple, port: u16) -> Option<Key<1>> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (tuple.src, tuple.dst) else { return None };
    let addresses = (u64::from(src.to_bits()) << 32 | u64::from(dst.to_bits())).to_be_bytes();
    Some(Key::new(&[addresses], ports(tuple), protocol, port))
}

fn key6(protocol: u8, tuple: &Tuple, port: u16) -> Option<Key<4>> {
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (tuple.src, tuple.dst) else { return None };
    let halves = |address: u128| [(address >> 64) as u64, address as u64].map(u64::to_be_bytes);
    let ([a, b], [c, d]) = (halves(src.to_bits()), halves(dst.to_bits()));
    Some(Key::new(&[a, b, c, d], ports(tuple), protocol, port))
}

/// Returns the protocol, tuple and port of which [`key4`] made a key.
fn tuple4(key: Key<1>) -> (u8, Tuple, u16) {
    let address = |at: usize| {
        let octets = key.addresses[0].to_le_bytes();
        IpAddr::from([octets[at], octets[at + 1], octets[at + 2], octets[at + 3]])
    };
    key.rest(address(0), address(4))
}

/// Returns the protocol, tuple and port of which [`key6`] made a key.
fn tuple6(key: Key<4>) -> (u8, Tuple, u16) {
    let address = |at: usize| {
        let half = |at: usize| u128::from(u64::from_be_bytes(key.addresses[at].to_le_bytes()));
        IpAddr::from((half(at) << 64 | half(at + 1)).to_be_bytes())
    };
    key.rest(address(0), address(2))
}

impl<const N: usize> Key<N> {
    fn rest(&self, src: IpAddr, dst: IpAddr) -> (u8, Tuple, u16) {
        let [a, b, c, d, protocol, ..] = self.rest.to_le_bytes();
        let (src_port, dst_port) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        (protocol, Tuple { src, dst, src_port, dst_port }, (self.rest >> 48) as u16)
    }
}
