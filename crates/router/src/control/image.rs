//! Builds the entries of ids, as workers see them, from links, addresses and neighbours.

use super::exceptions::is_excepted;
use super::hops::{Adjacency, FIXED, HopKey, Hops, Neighbour};
use super::links::Links;
use super::neighbours::{Neighbours, Reach};
use super::shares::Shares;
use crate::tables::{Cold, Entry, HashPolicy, Kind};
use std::net::IpAddr;

/// Entries by id, kept up to date between publications.
#[derive(Default)]
pub(super) struct Image {
    pub entries: Vec<Entry>,
    pub cold: Vec<Cold>,
    /// Hash policies by which IPv4 and IPv6 packets choose a group member.
    pub hash: [HashPolicy; 2],
    shares: Shares,
}

impl Image {
    /// Rebuilds the entries of `ids`. Call [`Image::buckets`] afterwards.
    pub fn refresh(&mut self, ids: &[u32], hops: &Hops, links: &Links, neighbours: &Neighbours) {
        self.entries.resize(hops.len(), Entry::verdict(Kind::NoRoute));
        self.cold.resize(hops.len(), Cold::default());
        for &id in ids {
            let (entry, cold) = match hops.key(id) {
                Some(HopKey::Fixed(n)) => (Entry::verdict(FIXED[*n as usize]), Cold::default()),
                Some(HopKey::Adjacency(a)) => (entry(a, links, neighbours), cold(a, links)),
                // Its buckets are built last, when its members are known.
                Some(HopKey::Group(_)) => (Entry::verdict(Kind::Group), Cold::default()),
                None => (Entry::verdict(Kind::NoRoute), Cold::default()),
            };
            self.entries[id as usize] = entry;
            self.cold[id as usize] = cold;
        }
    }

    /// Lays out the buckets of all groups. Members whose neighbour is not resolved or whose link has no carrier stay in
    /// them, because the kernel also keeps those that it considers usable. Flows keep their members ([`Shares`]).
    pub fn buckets(&mut self, hops: &Hops) -> Vec<u32> {
        let mut buckets = Vec::new();
        self.shares.retain(|id| matches!(hops.key(id), Some(HopKey::Group(_))));
        for (id, members) in hops.groups() {
            let first = buckets.len();
            buckets.extend_from_slice(self.shares.of(id, members));
            let kernel = self.hash.contains(&HashPolicy::Kernel) && kernel_chooses(self.hash, hops, members);
            let group = Entry::of_group(first as u32, (buckets.len() - first) as u32);
            let kind = if kernel { Kind::Kernel } else { Kind::Group };
            self.entries[id as usize] = Entry { kind, ..group };
        }
        buckets
    }
}

/// Returns whether the choice depends on fields that only the kernel parses.
fn kernel_chooses(hash: [HashPolicy; 2], hops: &Hops, members: &[(u32, u32)]) -> bool {
    let policy = |id: u32| hops.adjacency(id).map(|a| hash[usize::from(a.v6)]);
    members.iter().any(|(id, _)| policy(*id).is_none_or(|policy| policy == HashPolicy::Kernel))
}

fn entry(a: &Adjacency, links: &Links, neighbours: &Neighbours) -> Entry {
    let (Some(port), Some(link)) = (links.port_of(a.index), links.get(a.index)) else {
        return Entry::verdict(Kind::Kernel);
    };
    let reach = match a.neighbour {
        Neighbour::Via(gateway) => Some(neighbours.reach(a.index, gateway)),
        Neighbour::Glean(_) => None,
    };
    if !links.sends(a.index) || !links.takes_outer(a.index, a.outer) {
        return Entry::verdict(Kind::Kernel);
    }
    let mtu6 = links.mtu6(a.index).filter(|_| a.v6);
    let link_mtu = mtu6.map_or(link.mtu, |mtu6| mtu6.min(link.mtu));
    let mtu = a.mtu.unwrap_or(link_mtu);
    let (kind, to) = match reach {
        _ if is_excepted(a, links.excepted(a.index)) => (Kind::Policy, None),
        _ if !links.running(a.index) => (Kind::NoCarrier, None),
        // The kernel applies the route's MTU even if the device's is smaller (ip_dst_mtu_maybe_forward).
        _ if mtu > link_mtu => (Kind::Kernel, None),
        _ if links.is_tunnel(a.index) && link.mac.is_none() => (Kind::Tunnel, None),
        Some(Reach::Usable(mac)) => (Kind::Forward, Some(mac)),
        // Only its own packets make the kernel send a solicitation with their headers.
        _ if a.outer.is_some() => (Kind::Kernel, None),
        None => (Kind::Glean, None),
        Some(Reach::Failed) => (Kind::Failed, None),
        Some(Reach::Unknown) => (Kind::Pending, None),
    };
    let tunnel = match kind {
        Kind::Tunnel => Some(a.index),
        _ => to.and_then(|mac| links.tunnel_towards(a.index, mac)),
    };
    let port = match tunnel.map_or_else(|| links.bridged(a.index, to), |_| None) {
        Some(Ok(port)) => port,
        // The bridge has no ports, but a VXLAN.
        Some(Err(())) if to.is_none() => port,
        // No port leads to the station: the kernel sends by whichever members it must.
        Some(Err(())) => return Entry::verdict(Kind::Kernel),
        None => port,
    };
    let mut macs = [0; 12];
    macs[..6].copy_from_slice(&to.unwrap_or_default());
    macs[6..].copy_from_slice(&link.mac.unwrap_or_default());
    let Some(tunnel) = tunnel else { return Entry::of_port(kind, port, mtu, macs) };
    let path = match a.outer {
        Some(outer) => links.outer_path(tunnel, outer).map(|(header, path)| (path, Some(header as u32))),
        // The kernel asks the other ends for a station that a VXLAN does not know.
        None => links.tunnel_path(tunnel, to).map(|(_, path)| (path, None)),
    };
    let path = path.filter(|_| links.allows_tunnel(tunnel));
    let (Some(number), Some((path, header))) = (links.tunnel_number(tunnel), path) else {
        return Entry::verdict(Kind::Kernel);
    };
    Entry::of_tunnel(number, mtu, macs, path as u32, header)
}

fn cold(a: &Adjacency, links: &Links) -> Cold {
    let (gateway, near) = match a.neighbour {
        Neighbour::Via(gateway) => (Some(gateway), Some(gateway)),
        Neighbour::Glean(prefix) => (None, prefix.map(|p| p.addr)),
    };
    let source4 = match a.source {
        Some(IpAddr::V4(s)) => Some(s),
        _ => links.source4(a.index, near),
    };
    let source6 = match a.source {
        Some(IpAddr::V6(s)) => Some(s),
        _ => links.source6(a.index, near),
    };
    let masquerade4 = links.masquerade4(a.index);
    Cold { index: a.index, gateway, source4, source6, masquerade4 }
}
