//! MTUs of IPv6 routes with several legs. Each leg has its own, of which messages show one, so the kernel is asked
//! about the others.

use super::Follower;
use crate::parse::{Event, Leg, parse};
use crate::uapi::*;
use bywash_nl::wire::attribute;
use std::net::{IpAddr, Ipv6Addr};

/// Requests at most, in a reading, for legs of IPv6 routes: some five for a route with two.
const LEGS: u32 = 1 << 14;
/// Requests at most for one route.
const FOR_ONE: u32 = 1 << 12;
/// Upper half of the source addresses in these requests, from a prefix for examples (RFC 3849).
const SOURCES: u64 = 0x2001_0db8_6c65_6773;

impl Follower {
    /// Finds the IPv6 routes whose legs have different MTUs, or an MTU that could not be learned. A request for a
    /// packet's route shows the attributes of the leg that the packet takes, so this asks for packets from several
    /// sources. Returns whether the kernel was short of memory, or a route has changed since it was dumped.
    pub(super) fn ask_about_legs(&mut self) -> bool {
        let (mut left, mut again) = (LEGS, false);
        for (key, body) in self.kernel.multipaths6() {
            let IpAddr::V6(to) = key.prefix.addr else { continue };
            let mut unseen: Vec<&Leg> = body.legs.iter().filter(|leg| self.kernel.forwards_by(leg)).collect();
            // Set while the answers are about this route.
            let (mut same, mut mixed) = (true, false);
            let end = left.saturating_sub(requests_for(&unseen));
            while !unseen.is_empty() && same && !mixed && left > end {
                left -= 1;
                let from = Ipv6Addr::from(u128::from(SOURCES) << 64 | u128::from(left));
                let buffer = &mut self.dump_buffer;
                // Another route may take such packets: a more specific one, or one of another table.
                same = false;
                let answered = self.requests.ask(RTM_GETROUTE, &packet6(from, to), buffer, |message| {
                    if let Ok(Some(Event::Route { key: of, body: found, .. })) = parse(message) {
                        let changed = of == key && found.legs.len() != body.legs.len();
                        again |= changed;
                        same = of == key && !changed;
                        mixed = changed || same && found.mtu != body.mtu;
                        unseen.retain(|leg| !found.legs.first().is_some_and(|first| leg.has_same_target(first)));
                    }
                });
                if let Err(error) = answered {
                    same = false;
                    mixed = error.is_shortage();
                    again |= mixed;
                }
            }
            // A leg may be left: all packets take the same if the hash of multipath does not include their sources.
            mixed |= same && !unseen.is_empty() && left > 0;
            self.kernel.set_mixed_mtus(key, mixed);
        }
        again
    }
}

/// Returns the number of requests at most for a route with these legs, of which packets take each according to its
/// weight: enough to see the one with the least.
fn requests_for(legs: &[&Leg]) -> u32 {
    let weights = || legs.iter().map(|leg| u32::from(leg.weight.max(1)));
    (32 * weights().sum::<u32>() / weights().min().unwrap_or(1)).min(FOR_ONE)
}

/// Returns a request for the route of a packet (struct rtmsg, and attributes), the leg that it takes first.
fn packet6(from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
    let mut body = vec![AF_INET6, 128, 128, 0, 0, 0, 0, 0];
    body.extend((RTM_F_FIB_MATCH | RTM_F_LOOKUP_TABLE).to_ne_bytes());
    body.extend(attribute(RTA_DST, &to.octets()));
    body.extend(attribute(RTA_SRC, &from.octets()));
    body
}

#[cfg(test)]
mod tests;
