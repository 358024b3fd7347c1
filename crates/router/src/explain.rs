//! Explanation of what a gate does with one packet, for traces.

use crate::bytes::frame_type;
use crate::gates::{Gate, is_kept};
use crate::translate::{is_closing, key4, key6};
use bywash_engine::PortId;
use bywash_fib::flows::{FlowId, FlowTables};
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::{ipv4, ipv6};

/// Effect of a gate on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gated {
    /// The gate does not keep it: it is forwarded by routes.
    Open,
    /// It is left to the kernel, for this reason.
    Kept(&'static str),
    /// It belongs to a valid flow, and is forwarded if the route of its translated destination allows it.
    Flow {
        /// The flow.
        id: FlowId,
        /// Whether it is a reply.
        reply: bool,
        /// Whether it opens or closes its connection, which revokes the flow: it is left to the kernel.
        closing: bool,
    },
}

/// Returns what a gate does with a frame received on `from`; `flows` is `None` if established flows are off. The caller
/// must have an online reader of the flows' domain.
pub fn gated(flows: Option<&FlowTables>, gate: Gate, from: PortId, frame: &[u8]) -> Gated {
    if !is_kept(gate, frame) {
        return Gated::Open;
    }
    let Some(flows) = flows else { return Gated::Kept("see `bywash show placement`; established flows are off") };
    let ip = frame.get(HEADER_LEN..).unwrap_or_default();
    let (passes, found, l4) = match frame_type(frame) {
        Some(ethertype::IPV4) => {
            let found = key4(ip, from).map(|key| flows.v4.lookup(&key).place(false));
            (gate.flows.v4, found, (ip.get(9), ip.get(ipv4::HEADER_LEN..)))
        }
        _ => {
            let found = key6(frame, from).map(|key| flows.v6.lookup(&key).place(true));
            (gate.flows.v6, found, (ip.get(6), ip.get(ipv6::HEADER_LEN..)))
        }
    };
    match found {
        _ if !passes => Gated::Kept("see `bywash show placement`; no flows pass this port now"),
        None => Gated::Kept("flows have only valid, whole TCP and UDP packets without options, TTL above 1"),
        Some(None) => Gated::Kept("it belongs to no established flow"),
        Some(Some((id, reply))) => {
            let closing = matches!(l4, (Some(protocol), Some(l4)) if is_closing(*protocol, l4));
            Gated::Flow { id, reply, closing }
        }
    }
}
