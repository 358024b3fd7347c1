//! Gates: the packets received on a port that are left to the kernel, whatever the tables say.
//!
//! There is one word for each port, written by the control side and by the watcher of kernel policies, and read by
//! workers once per burst. It is not part of the published tables: closing a gate must not wait for a grace period.

use crate::bytes::{be16, frame_type};
use crate::vlan::VLANS;
use bywash_engine::{PORTS, PortId};
use bywash_fib::model::Families;
pub use bywash_fib::model::Gate;
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Returns a gate as a word: two bits for each field, IPv4 below IPv6.
fn bits(gate: Gate) -> u8 {
    let two = |families: Families, at: u8| u8::from(families.v4) << at | u8::from(families.v6) << (at + 1);
    two(gate.closed, 0) | two(gate.fragments, 2) | two(gate.errors, 4) | two(gate.flows, 6)
}

fn of_bits(bits: u8) -> Gate {
    let two = |at: u8| Families { v4: bits >> at & 1 != 0, v6: bits >> (at + 1) & 1 != 0 };
    Gate { closed: two(0), fragments: two(2), errors: two(4), flows: two(6) }
}

/// Gates of all ports and VLANs. Clones share them.
///
/// # Thread-safety
/// Any thread may read and write them. A worker applies a change from its next burst on; packets that it already holds
/// were admitted before.
#[derive(Clone, Debug)]
pub struct Gates(Arc<[AtomicU8; PORTS + VLANS]>);

impl Gates {
    /// Creates gates that are all open.
    pub fn open() -> Self {
        Self::all(Gate::default())
    }

    /// Creates gates that are all closed.
    pub fn closed() -> Self {
        Self::all(Gate::CLOSED)
    }

    fn all(gate: Gate) -> Self {
        Self(Arc::new(std::array::from_fn(|_| AtomicU8::new(bits(gate)))))
    }

    /// Sets a port's gate.
    pub fn set(&self, port: PortId, gate: Gate) {
        if let Some(word) = self.0.get(usize::from(port.0)) {
            word.store(bits(gate), Ordering::Release);
        }
    }

    /// Closes all gates.
    pub fn close_all(&self) {
        self.0.iter().for_each(|word| word.store(bits(Gate::CLOSED), Ordering::Release));
    }

    /// Returns a port's gate; closed if there is no port with this number.
    #[inline]
    pub fn get(&self, port: PortId) -> Gate {
        self.0.get(usize::from(port.0)).map_or(Gate::CLOSED, |word| of_bits(word.load(Ordering::Acquire)))
    }

    /// Returns whether some packets received on a port are left to the kernel, not counting those that cause ICMP
    /// errors.
    #[inline]
    pub fn keeps_any(&self, port: PortId) -> bool {
        self.0.get(usize::from(port.0)).is_none_or(|word| word.load(Ordering::Acquire) & 0xf != 0)
    }
}

/// Returns whether a gate keeps a packet. A packet with truncated headers is not kept: it is dropped later with its
/// reason.
pub(crate) fn is_kept(gate: Gate, data: &[u8]) -> bool {
    let Some(ip) = data.get(HEADER_LEN..HEADER_LEN + 20) else { return false };
    match frame_type(data) {
        // The MF bit is set or the offset is not zero.
        Some(ethertype::IPV4) => gate.closed.v4 || (gate.fragments.v4 && be16(&ip[6..]) & 0x3fff != 0),
        // A fragment header, or a header that one may follow (RFC 8200 4.1).
        Some(ethertype::IPV6) => gate.closed.v6 || (gate.fragments.v6 && matches!(ip[6], 0 | 43 | 44 | 51 | 60)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_what_was_set() {
        let gates = Gates::closed();
        assert_eq!((gates.get(PortId(3)), gates.keeps_any(PortId(3))), (Gate::CLOSED, true));
        let errors = Gate { errors: Families::V6, ..Gate::default() };
        gates.set(PortId(3), errors);
        assert_eq!((gates.get(PortId(3)), gates.keeps_any(PortId(3))), (errors, false));
        let mixed = Gate { closed: Families::V4, fragments: Families::V6, flows: Families::V4, ..Gate::default() };
        gates.set(PortId(3), mixed);
        assert_eq!((gates.get(PortId(3)), gates.keeps_any(PortId(3))), (mixed, true));
        gates.close_all();
        assert_eq!((gates.get(PortId(3)), gates.get(PortId(u16::MAX))), (Gate::CLOSED, Gate::CLOSED));
        assert!(!Gates::open().keeps_any(PortId(0)) && Gates::open().keeps_any(PortId(u16::MAX)));
    }
}
