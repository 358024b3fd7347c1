//! The entries behind the ids, as workers will see them: made from links, addresses and neighbours.

use super::hops::{Adjacency, FIXED, HopKey, Hops, Way};
use super::links::Links;
use super::neighbours::{Neighbours, Reach};
use crate::tables::{Cold, Entry, Kind};
use std::net::IpAddr;

/// Most buckets of a group.
pub(super) const MAX_BUCKETS: usize = 256;

/// Entries by id, kept up to date between publications.
#[derive(Default)]
pub(super) struct Image {
    pub entries: Vec<Entry>,
    pub cold: Vec<Cold>,
}

impl Image {
    /// Makes the entries of `ids` anew; afterwards [`Image::buckets`].
    pub fn refresh(&mut self, ids: &[u32], hops: &Hops, links: &Links, neighbours: &Neighbours) {
        self.entries.resize(hops.len(), Entry::verdict(Kind::NoRoute));
        self.cold.resize(hops.len(), Cold::default());
        for &id in ids {
            let (entry, cold) = match hops.key(id) {
                Some(HopKey::Fixed(n)) => (Entry::verdict(FIXED[*n as usize]), Cold::default()),
                Some(HopKey::Adjacency(a)) => (entry(a, links, neighbours), cold(a, links)),
                // Its buckets come last, when its members are known.
                Some(HopKey::Group(_)) => (Entry::verdict(Kind::Group), Cold::default()),
                None => (Entry::verdict(Kind::NoRoute), Cold::default()),
            };
            self.entries[id as usize] = entry;
            self.cold[id as usize] = cold;
        }
    }

    /// Lays out the buckets of all groups. Members whose link is down are left out while another's is up, as the
    /// kernel does with `ignore_routes_with_linkdown`; those whose neighbour is not resolved stay.
    pub fn buckets(&mut self, hops: &Hops, links: &Links) -> Vec<u32> {
        let mut buckets = Vec::new();
        for (id, members) in hops.groups() {
            let up = |m: &&(u32, u32)| hops.adjacency(m.0).is_none_or(|a| links.running(a.index));
            let mut shares: Vec<(u32, u32)> = members.iter().filter(up).copied().collect();
            if shares.is_empty() {
                shares = members.to_vec();
            }
            let first = buckets.len();
            spread(&shares, &mut buckets);
            let group = &mut self.entries[id as usize];
            (group.first, group.count) = (first as u32, (buckets.len() - first) as u32);
        }
        buckets
    }
}

/// Each id as often as its share asks, at least once, in at most [`MAX_BUCKETS`].
fn spread(shares: &[(u32, u32)], buckets: &mut Vec<u32>) {
    let shares = &shares[..shares.len().min(MAX_BUCKETS)];
    let total: u64 = shares.iter().map(|s| u64::from(s.1)).sum();
    let room = (MAX_BUCKETS - shares.len()) as u64;
    for &(id, weight) in shares {
        // Too many to have one bucket per unit of weight: one for everybody, the rest in proportion.
        let n = if total <= MAX_BUCKETS as u64 { u64::from(weight) } else { 1 + u64::from(weight) * room / total };
        buckets.extend(std::iter::repeat_n(id, n as usize));
    }
}

fn entry(a: &Adjacency, links: &Links, neighbours: &Neighbours) -> Entry {
    let (Some(port), Some(link)) = (links.port_of(a.index), links.get(a.index)) else {
        return Entry::verdict(Kind::Kernel);
    };
    let reach = match a.way {
        Way::Via(gateway) => Some(neighbours.reach(a.index, gateway)),
        Way::Glean(_) => None,
    };
    let (kind, to) = match reach {
        // The kernel keeps using such routes too, and its device drops the packets; here they are answered.
        _ if !links.running(a.index) => (Kind::Failed, None),
        None => (Kind::Glean, None),
        Some(Reach::Usable(mac)) => (Kind::Forward, Some(mac)),
        Some(Reach::Failed) => (Kind::Failed, None),
        Some(Reach::Unknown) => (Kind::Pending, None),
    };
    let mut entry = Entry { port, mtu: link.mtu.min(a.mtu.unwrap_or(u32::MAX)), ..Entry::verdict(kind) };
    entry.macs[..6].copy_from_slice(&to.unwrap_or_default());
    entry.macs[6..].copy_from_slice(&link.mac.unwrap_or_default());
    entry
}

fn cold(a: &Adjacency, links: &Links) -> Cold {
    let (gateway, near) = match a.way {
        Way::Via(gateway) => (Some(gateway), Some(gateway)),
        Way::Glean(prefix) => (None, prefix.map(|p| p.addr)),
    };
    let source4 = match a.source {
        Some(IpAddr::V4(s)) => Some(s),
        _ => links.source4(a.index, near),
    };
    let source6 = match a.source {
        Some(IpAddr::V6(s)) => Some(s),
        _ => links.source6(a.index, near),
    };
    Cold { index: a.index, gateway, source4, source6 }
}
