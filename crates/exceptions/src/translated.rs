//! Connections that NAT still translates although no rule does.
//!
//! A mapping stays with its connection: the kernel applies it for as long as connections are tracked and a chain of
//! type nat is hooked in the connection's family, with or without the rule that made it (nf_nat_inet_fn).

use crate::dump::dump;
use bywash_fib::model::Families;
use bywash_netlink::socket::Socket;
use bywash_netlink::wire::{Attributes, Message};
use libc::{AF_INET, AF_INET6};

// linux/netfilter/nfnetlink_conntrack.h: IPCTNL_MSG_CT_NEW and IPCTNL_MSG_CT_GET of NFNL_SUBSYS_CTNETLINK.
const CT_NEW: u16 = 1 << 8;
const CT_GET: u16 = CT_NEW | 1;
const CTA_STATUS: u16 = 3;
const CTA_STATUS_MASK: u16 = 26;
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
            let entries = dump(socket, CT_GET, &body, &attributes, buffer, |message| match message.kind {
                CT_NEW => status_of(message).map(|of| (of & status != 0).then_some(())).ok_or(()),
                _ => Ok(None),
            });
            if !entries.map_err(|why| format!("translated connections: {why}"))?.is_empty() {
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
