//! Flows of a table as they are shown: read without the writer's cooperation.

use super::layout::{Key, STATE, first_record, hash};
use super::reader::{FlowTable, Hit};
use super::{Flow, FlowId, FlowTables, Traffic, Tuple, V6, key4, key6, tuple4, tuple6};
use std::net::IpAddr;

/// Standing of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Packets belong to it.
    Valid,
    /// The flow has not been confirmed for the current generation yet.
    Unconfirmed,
    /// The flow was revoked and will be removed.
    Revoked,
}

/// A flow in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The flow.
    pub flow: Flow,
    /// Packets and bytes forwarded, of its original and its reply direction.
    pub traffic: [Traffic; 2],
    /// Standing of the flow: valid, unconfirmed or revoked.
    pub standing: Standing,
}

impl FlowTables {
    /// Returns the flow at a place; `None` if there is none. The caller has an online reader of the tables' domain, as
    /// for lookups: a flow that is removed meanwhile is still whole.
    pub fn at(&self, id: FlowId) -> Option<Listed> {
        let record = id.0 & !V6;
        let ([(protocol, original, input), (_, reply, output)], traffic, standing) = match id.is_v6() {
            false => self.v4.at(record).map(|(keys, traffic, standing)| (keys.map(tuple4), traffic, standing))?,
            true => self.v6.at(record).map(|(keys, traffic, standing)| (keys.map(tuple6), traffic, standing))?,
        };
        Some(Listed { flow: Flow { protocol, original, reply, input, output }, traffic, standing })
    }

    /// Returns the flow whose original direction has this tuple, whatever its ports and validity. The caller has an
    /// online reader of the tables' domain.
    pub fn find(&self, protocol: u8, original: &Tuple) -> Option<FlowId> {
        match original.src {
            IpAddr::V4(_) => self.v4.record_of(&key4(protocol, original, 0)?).map(FlowId),
            IpAddr::V6(_) => self.v6.record_of(&key6(protocol, original, 0)?).map(|record| FlowId(record | V6)),
        }
    }
}

impl Hit {
    /// Returns the flow, of this family, and whether the packet is a reply; `None` if it belongs to no flow.
    pub fn place(self, v6: bool) -> Option<(FlowId, bool)> {
        self.is_some().then(|| (FlowId(self.record() | if v6 { V6 } else { 0 }), self.direction() == 1))
    }
}

impl<const N: usize> FlowTable<N> {
    fn at(&self, record: u32) -> Option<([Key<N>; 2], [Traffic; 2], Standing)> {
        if record < first_record::<N>() {
            return None;
        }
        let original = Hit(record << 1);
        // A record with a generation is whole, and is not used again before a grace period has passed.
        let generation = self.word(original, STATE) as u32;
        let keys = [0, 1].map(|direction| self.key(Hit(record << 1 | direction)));
        let standing = match generation {
            0 if self.record_of(&keys[0]) == Some(record) => Standing::Revoked,
            // The record was removed, is being written, or has never been used.
            0 => return None,
            _ if generation == self.generation() => Standing::Valid,
            _ => Standing::Unconfirmed,
        };
        Some((keys, self.traffic(record), standing))
    }

    fn record_of(&self, original: &Key<N>) -> Option<u32> {
        let size = self.size();
        if size.buckets() == 0 {
            return None;
        }
        self.find_original(size, hash(&self.keys, original), original).map(Hit::record)
    }
}
