//! Frames between a tunnel and other members of its bridge. Like the XDP program between members (`xdp/bridge.h`), the
//! router forwards them by their addresses alone, unchanged except for a tag, past gates and settings for routed
//! packets.

use super::{TunnelInfo, Tunnels};
use crate::bytes::frame_type;
use crate::vlan::Ingress;
use bywash_engine::PortId;
use bywash_fib::model::Mac;
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::{ipv4, ipv6, proto};
use std::net::IpAddr;

/// A port on another member of the bridge that a tunnel is a member of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberPort {
    /// Kernel index of the member.
    pub index: u32,
    /// The port.
    pub port: PortId,
    /// Length in bytes of the longest frame that it sends, Ethernet header included and a tag aside.
    pub longest: u32,
    /// Number of the entry of their VLAN on the port, if frames leave with its tag.
    pub entry: Option<PortId>,
}

impl TunnelInfo {
    /// Returns the port, or the VLAN's entry on it, by which the tunnel's bridge forwards a frame to this address;
    /// `None` if it is left to the kernel.
    pub(super) fn member(&self, to: &Mac, frame: &[u8]) -> Option<PortId> {
        if self.members.is_empty() || !is_plainly_bridged(frame) {
            return None;
        }
        let index = self.stations.member_of(to)?;
        let member = self.members.iter().find(|member| member.index == index)?;
        (frame.len() <= member.longest as usize).then_some(member.entry.unwrap_or(member.port))
    }
}

impl Tunnels {
    /// Returns the tunnel, and its end, behind which the bridge of a port has the station that a frame, without a tag,
    /// is for. `None` if the frame is left to the kernel.
    pub(crate) fn towards(&self, from: Ingress, frame: &[u8]) -> Option<(&TunnelInfo, IpAddr)> {
        let to: &Mac = frame.first_chunk()?;
        // The kernel sends any frame, but fields of the outer headers depend on these.
        let version = frame.get(HEADER_LEN)? >> 4;
        let whole = version == if frame_type(frame) == Some(ethertype::IPV6) { 6 } else { 4 };
        if to[0] & 1 != 0 || !whole || !is_plainly_bridged(frame) {
            return None;
        }
        let first = self.bridged.partition_point(|(bridge, _)| *bridge < from.id);
        let tunnels = self.bridged[first..].iter().take_while(|(bridge, _)| *bridge == from.id);
        tunnels.map(|(_, at)| &self.all[*at]).find_map(|tunnel| {
            let beyond = &tunnel.stations.beyond;
            let at = beyond.binary_search_by_key(to, |(mac, _)| *mac).ok()?;
            let reached = tunnel.members.iter().any(|member| member.port == from.port);
            (reached && frame.len() <= tunnel.longest as usize).then_some((tunnel, beyond[at].1))
        })
    }
}

/// Returns whether the kernel would take this frame from a tunnel, bridge it by its addresses alone, and send it
/// through a tunnel: an IP packet with a whole header (pskb_inet_may_pull) that is not neighbour discovery, which a
/// bridge may answer itself (br_is_nd_neigh_msg).
fn is_plainly_bridged(frame: &[u8]) -> bool {
    let Some(ip) = frame.get(HEADER_LEN..) else { return false };
    match frame_type(frame) {
        Some(ethertype::IPV4) => ip.len() >= ipv4::HEADER_LEN,
        Some(ethertype::IPV6) => {
            // ICMPv6 messages from router solicitation to redirect.
            ip.len() > ipv6::HEADER_LEN && (ip[6] != proto::ICMP6 || !(133..=137).contains(&ip[ipv6::HEADER_LEN]))
        }
        _ => false,
    }
}
