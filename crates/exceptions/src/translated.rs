//! Connections that the kernel still translates although no NAT rule is left.
//!
//! A mapping stays with its connection: the kernel applies it for as long as connections are tracked and a chain of
//! type nat is hooked in the connection's family, with or without the rule that made it (nf_nat_inet_fn).

use crate::dump::dump;
use bywash_fib::model::{Families, Tunnel};
use bywash_nl::socket::Socket;
use bywash_nl::wire::{Attributes, Message, attribute};
use libc::{AF_INET, AF_INET6};
use std::collections::BTreeSet;
use std::net::IpAddr;

// linux/netfilter/nfnetlink_conntrack.h: IPCTNL_MSG_CT_NEW and IPCTNL_MSG_CT_GET of NFNL_SUBSYS_CTNETLINK.
const CT_NEW: u16 = 1 << 8;
const CT_GET: u16 = CT_NEW | 1;
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_FILTER: u16 = 25;
const CTA_STATUS_MASK: u16 = 26;
/// CTA_FILTER_ORIG_FLAGS and CTA_FILTER_REPLY_FLAGS have the numbers of the tuples.
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_DST_PORT: u16 = 3;
const NLA_F_NESTED: u16 = 1 << 15;
// net/netfilter/nf_conntrack_netlink.c: CTA_FILTER_F_CTA_PROTO_NUM, CTA_FILTER_F_CTA_PROTO_DST_PORT.
const BY_PROTOCOL: u32 = 1 << 3;
const BY_DST_PORT: u32 = 1 << 5;
// linux/netfilter/nf_conntrack_common.h
const IPS_SRC_NAT: u32 = 1 << 4;
const IPS_DST_NAT: u32 = 1 << 5;

/// Returns those of `families` that have connections with a translated address or port. `socket` is of the protocol
/// NETLINK_NETFILTER.
///
/// The kernel selects the entries (Linux 5.19 and later, IPS_* by mask); older ones return all, in time proportional to
/// their number.
pub fn translated(socket: &mut Socket, families: Families, buffer: &mut [u8]) -> Result<Families, String> {
    let mut found = Families::NONE;
    for (number, family) in [(AF_INET, Families::V4), (AF_INET6, Families::V6)] {
        for status in [IPS_SRC_NAT, IPS_DST_NAT] {
            if (family & families).is_empty() || !(family & found).is_empty() {
                continue;
            }
            // struct nfgenmsg: nfgen_family, version, res_id.
            let body = [number as u8, 0, 0, 0];
            let wanted = status.to_be_bytes();
            let attributes = [(CTA_STATUS, wanted.as_slice()), (CTA_STATUS_MASK, &wanted)];
            let entries = connections(socket, &body, &attributes, buffer, |message| {
                status_of(message).map(|of| (of & status != 0).then_some(()))
            });
            if !entries?.is_empty() {
                found |= family;
            }
        }
    }
    Ok(found)
}

fn status_of(message: &Message<'_>) -> Option<u32> {
    let (_, status) = Attributes::after(message.body, 4).find(|(kind, _)| *kind == CTA_STATUS)?;
    Some(u32::from_be_bytes(status.try_into().ok()?))
}

/// Returns the indices of the tunnels whose outer packets may belong to a connection with a translated address or port:
/// one of their protocol that has both their ends among its addresses or, for a VXLAN, its own end, and its port. A
/// tunnel without an address of its own may have any. `socket` is of the protocol NETLINK_NETFILTER.
///
/// The kernel selects the entries (Linux 5.8 and later); older ones return all.
pub fn translated_outer<'a>(
    socket: &mut Socket,
    tunnels: impl Iterator<Item = (u32, &'a Tunnel)>,
    buffer: &mut [u8],
) -> Result<BTreeSet<u32>, String> {
    let tunnels: Vec<_> = tunnels.collect();
    let kinds = |tunnel: &Tunnel| {
        let (family, port) = (if tunnel.is_over_v6() { AF_INET6 } else { AF_INET }, tunnel.vxlan.map(|of| of.port));
        tunnel.protocols().map(move |protocol| (family as u8, protocol, port))
    };
    let all: BTreeSet<_> = tunnels.iter().flat_map(|(_, tunnel)| kinds(tunnel)).collect();
    let mut found = BTreeSet::new();
    for (family, protocol, port) in all {
        let to_port = port.map(|port| attribute(CTA_PROTO_DST_PORT, &port.to_be_bytes())).unwrap_or_default();
        let of = attribute(CTA_TUPLE_PROTO, &[attribute(CTA_PROTO_NUM, &[protocol]), to_port].concat());
        let flags = BY_PROTOCOL | if port.is_some() { BY_DST_PORT } else { 0 };
        // The protocol is the same in both directions, so one of them is enough to select by.
        let directions = if port.is_some() { [CTA_TUPLE_ORIG, CTA_TUPLE_REPLY].as_slice() } else { &[CTA_TUPLE_ORIG] };
        for direction in directions {
            let filter = attribute(*direction, &flags.to_ne_bytes());
            let attributes = [(*direction, of.as_slice()), (CTA_FILTER | NLA_F_NESTED, &filter)];
            let body = [family, 0, 0, 0];
            let entries = connections(socket, &body, &attributes, buffer, |message| Entry::of(message).map(Some))?;
            let alike = tunnels.iter().filter(|(_, tunnel)| kinds(tunnel).any(|kind| kind == (family, protocol, port)));
            let hit = |tunnel: &Tunnel| entries.iter().any(|entry| entry.translates(protocol, port, tunnel));
            found.extend(alike.filter(|(_, tunnel)| hit(tunnel)).map(|(index, _)| *index));
        }
    }
    Ok(found)
}

/// Returns what `read` finds in the connections that the kernel selects by `attributes`; it returns `None` for
/// malformed ones.
fn connections<T>(
    socket: &mut Socket,
    body: &[u8],
    attributes: &[(u16, &[u8])],
    buffer: &mut [u8],
    read: impl Fn(&Message<'_>) -> Option<Option<T>>,
) -> Result<Vec<T>, String> {
    let each = |message: &Message<'_>| match message.kind {
        CT_NEW => read(message).ok_or(()),
        _ => Ok(None),
    };
    let entries = dump(socket, CT_GET, body, attributes, buffer, each);
    let entries = entries.map_err(|why| format!("translated connections: {why}"))?;
    entries.ok_or_else(|| "translated connections: the kernel does not list them (nf_conntrack_netlink)".into())
}

/// A connection, as far as it matters for outer packets.
#[derive(Debug, Default)]
struct Entry {
    status: u32,
    protocols: Vec<u8>,
    /// Addresses of both directions.
    addresses: Vec<IpAddr>,
    /// Destination ports of both directions.
    ports: Vec<u16>,
}

impl Entry {
    fn of(message: &Message<'_>) -> Option<Self> {
        let mut entry = Self { status: status_of(message)?, ..Self::default() };
        for (kind, value) in Attributes::after(message.body, 4) {
            if kind != CTA_TUPLE_ORIG && kind != CTA_TUPLE_REPLY {
                continue;
            }
            for (part, value) in Attributes::after(value, 0) {
                for (kind, value) in Attributes::after(value, 0) {
                    match (part, kind) {
                        (CTA_TUPLE_IP, CTA_IP_V4_SRC | CTA_IP_V4_DST) => {
                            entry.addresses.push(<[u8; 4]>::try_from(value).ok()?.into());
                        }
                        (CTA_TUPLE_IP, CTA_IP_V6_SRC | CTA_IP_V6_DST) => {
                            entry.addresses.push(<[u8; 16]>::try_from(value).ok()?.into());
                        }
                        (CTA_TUPLE_PROTO, CTA_PROTO_NUM) => entry.protocols.push(*value.first()?),
                        (CTA_TUPLE_PROTO, CTA_PROTO_DST_PORT) => {
                            entry.ports.push(u16::from_be_bytes(value.try_into().ok()?));
                        }
                        _ => {}
                    }
                }
            }
        }
        Some(entry)
    }

    fn translates(&self, protocol: u8, port: Option<u16>, tunnel: &Tunnel) -> bool {
        let other = match port {
            Some(port) => self.ports.contains(&port),
            None => tunnel.external || self.addresses.contains(&tunnel.remote),
        };
        let own = tunnel.local.is_unspecified() || self.addresses.contains(&tunnel.local);
        let alike = self.protocols.contains(&protocol) && own && other;
        self.status & (IPS_SRC_NAT | IPS_DST_NAT) != 0 && alike
    }
}
