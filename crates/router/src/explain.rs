//! Explanation of what a gate does with one packet, for traces.

use crate::bytes::frame_type;
use crate::gates::{Gate, is_kept};
use crate::translate::{is_closing, key4, key6};
use crate::valid::{host4, martian6};
use crate::vlan::is_tagged;
use bywash_engine::PortId;
use bywash_fib::flows::{FlowId, FlowTables};
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::{ipv4, ipv6, proto};

/// Effect of a gate on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gated {
    /// The gate does not keep it: it is forwarded by routes.
    Open,
    /// The packet is left to the kernel, for this reason.
    Kept(&'static str),
    /// It belongs to a valid flow, and is forwarded if the route of its translated destination allows it.
    Flow {
        /// The flow.
        id: FlowId,
        /// Set if it is a reply.
        reply: bool,
        /// Set if it opens or closes its connection, which revokes the flow: it is left to the kernel.
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
    let v4 = frame_type(frame) == Some(ethertype::IPV4);
    let (passes, found, l4) = match v4 {
        true => {
            let found = key4(ip, from).map(|key| flows.v4.lookup(&key).place(false));
            (gate.flows.v4, found, (ip.get(9), ip.get(ipv4::HEADER_LEN..)))
        }
        false => {
            let found = key6(frame, from).map(|key| flows.v6.lookup(&key).place(true));
            (gate.flows.v6, found, (ip.get(6), ip.get(ipv6::HEADER_LEN..)))
        }
    };
    match found {
        _ if !passes => Gated::Kept("see `bywash show placement`; no flows pass this port now"),
        None if v4 => Gated::Kept(flowless4(ip)),
        None => Gated::Kept(flowless6(ip)),
        Some(None) => Gated::Kept("it belongs to no established flow"),
        Some(Some((id, reply))) => {
            let closing = matches!(l4, (Some(protocol), Some(l4)) if is_closing(*protocol, l4));
            Gated::Flow { id, reply, closing }
        }
    }
}

const NOT_TRANSPORT: &str = "it is neither TCP nor UDP: no other packets have flows";
const BAD_TRANSPORT: &str = "its TCP or UDP header is not valid";
const BAD_HEADER: &str = "its IP header is not valid";
const FRAGMENT: &str = "it is a fragment";

/// Returns why an IPv4 packet cannot belong to a flow: the first of the conditions of [`key4`] that it fails.
fn flowless4(ip: &[u8]) -> &'static str {
    let Ok(info) = ipv4::check(ip) else { return BAD_HEADER };
    match info {
        _ if info.has_options() => "it has IP options",
        _ if info.fragment & 0x3fff != 0 => FRAGMENT,
        _ if info.ttl == 0 => "its TTL is 0",
        _ if info.ttl == 1 => "its TTL is 1",
        _ if !host4(info.dst) => "its destination address is not that of a host, or is link-local",
        _ if !host4(info.src) => "its source address is not that of a host, or is link-local",
        _ => transport(info.proto),
    }
}

/// Returns why an IPv6 packet cannot belong to a flow, like [`flowless4`].
fn flowless6(ip: &[u8]) -> &'static str {
    let Ok(info) = ipv6::check(ip) else { return BAD_HEADER };
    match info.next_header {
        _ if info.hop_limit == 0 => "its hop limit is 0",
        _ if info.hop_limit == 1 => "its hop limit is 1",
        _ if martian6(info.dst) => "its destination address is not that of a host, or is link-local",
        _ if martian6(info.src) || info.src >> 64 == 0 => "its source address is not that of a host, or is link-local",
        proto::FRAGMENT => FRAGMENT,
        proto::HOP_BY_HOP | proto::ROUTING | proto::AUTH | proto::DEST_OPTIONS => "it has IPv6 extension headers",
        next => transport(next),
    }
}

fn transport(protocol: u8) -> &'static str {
    if [proto::TCP, proto::UDP].contains(&protocol) { BAD_TRANSPORT } else { NOT_TRANSPORT }
}

/// Returns why the program of a router's port leaves a frame to the kernel whatever the tables and gates say (`parse`,
/// `exception4` and `exception6` in `xdp/router.h`); `None` if they decide. `mac` is the only address that the port
/// takes frames to, if there is only one. Frames with a tag are not judged here: theirs depend on the VLANs.
pub fn left_by_program(mac: Option<[u8; 6]>, frame: &[u8]) -> Option<&'static str> {
    let Some(kind) = frame_type(frame) else { return Some("it is shorter than an Ethernet header") };
    let to: [u8; 6] = *frame.first_chunk()?;
    if to[0] & 1 != 0 {
        return Some("it is a multicast or broadcast frame");
    }
    if mac.is_some_and(|mac| mac != to) {
        return Some("it is addressed to another station than the port's interface");
    }
    if is_tagged(frame) {
        return None;
    }
    // Truncated headers are for user space, which drops them.
    let ip = &frame[HEADER_LEN..];
    match kind {
        ethertype::IPV4 => exception4(ip.first_chunk()?),
        ethertype::IPV6 => exception6(ip.first_chunk()?),
        _ => Some("it is neither IPv4 nor IPv6"),
    }
}

fn exception4(ip: &[u8; ipv4::HEADER_LEN]) -> Option<&'static str> {
    let (src, dst) = (&ip[12..16], &ip[16..20]);
    match *dst {
        _ if ip[0] >> 4 != 4 => None,
        _ if ip[0] & 0xf > 5 => Some("it has IP options"),
        [224..=239, ..] | [255, 255, 255, 255] => Some("its destination address is multicast or broadcast"),
        [0 | 127, ..] => Some("its destination address is reserved"),
        _ if src[0] == 127 => Some("its source address is reserved"),
        [169, 254, ..] => Some("its destination address is link-local"),
        _ if src[..2] == [169, 254] => Some("its source address is link-local"),
        _ => None,
    }
}

fn exception6(ip: &[u8; ipv6::HEADER_LEN]) -> Option<&'static str> {
    let address = |at: usize| ip[at..].first_chunk().map_or(0, |address| u128::from_be_bytes(*address));
    let (src, dst) = (address(8), address(24));
    let link_local = |address: u128| address >> 118 == 0xfe80 >> 6;
    match ip[6] {
        _ if ip[0] >> 4 != 6 => None,
        proto::HOP_BY_HOP => Some("it has hop-by-hop options"),
        _ if dst >> 120 == 0xff => Some("its destination address is multicast"),
        _ if link_local(dst) => Some("its destination address is link-local"),
        _ if link_local(src) => Some("its source address is link-local"),
        _ if dst <= 1 => Some("its destination address is reserved"),
        _ if src >> 64 == 0 => Some("its source address is in ::/64"),
        _ => None,
    }
}
