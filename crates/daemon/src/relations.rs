//! Relations between interfaces, which may leave all packets of a port to the kernel.
//!
//! Packets of a port that belongs to a VRF, bridge or bond are forwarded by that interface's rules, whatever table main
//! says. Some interfaces above a port take packets to the port's own MAC address: an ipvlan shares it, a macvlan may.
//! An interface of an unknown kind above a port may do anything.

use bywash_fib::model::{Change, Link};
use std::collections::BTreeMap;

/// Kinds of upper interfaces that take only packets a router would not forward: those with their own EtherType, those
/// to another MAC address, or those from the kernel's UDP and IP input.
const HARMLESS: [&str; 15] = [
    "macsec",
    "vxlan",
    "geneve",
    "bareudp",
    "gre",
    "gretap",
    "erspan",
    "ip6gre",
    "ip6gretap",
    "ip6erspan",
    "ipip",
    "ip6tnl",
    "sit",
    "vti",
    "vti6",
];

/// Modes of a macvlan in which it takes only packets to its own MAC address: private, VEPA and bridge (`enum
/// macvlan_mode`, linux/if_link.h).
const OWN_ADDRESS: [u32; 3] = [1, 2, 4];

/// Known interfaces, by kernel index, and how they are stacked.
#[derive(Default)]
pub struct Relations(BTreeMap<u32, Link>);

impl Relations {
    /// Applies changes. Returns whether they may have changed the result of [`Relations::left`].
    pub fn note(&mut self, changes: &[Change]) -> bool {
        let of = |link: &Link| (link.name.clone(), link.kind.clone(), link.mac, link.parent, link.macvlan, link.master);
        let mut news = false;
        for change in changes {
            match change {
                Change::Link(link) => {
                    let before = self.0.insert(link.index, link.clone());
                    news |= before.is_none_or(|before| of(&before) != of(link));
                }
                Change::LinkGone { index } => news |= self.0.remove(index).is_some(),
                _ => {}
            }
        }
        news
    }

    /// Returns an interface as the kernel has it.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.0.get(&index)
    }

    /// Returns the reason for which a router leaves this interface to the kernel; `None` if it need not. `hides_tags`:
    /// programs do not see the VLAN tags of received frames, and so would take a frame for a VLAN interface as
    /// untagged.
    pub fn left(&self, index: u32, hides_tags: bool) -> Option<String> {
        let own = self.0.get(&index)?;
        let taken_by = |link: &&Link| link.parent == Some(index) && takes(link, own, hides_tags);
        self.member(index).or_else(|| {
            let link = self.0.values().find(taken_by)?;
            let what = if link.kind == "vlan" { ": programs do not see the tags of its packets" } else { "" };
            Some(format!("{} is above it{what}", named(link)))
        })
    }

    /// Returns which interface this one is a member of, worded as a reason; `None` if it is no member.
    pub fn member(&self, index: u32) -> Option<String> {
        let master = self.0.get(&index)?.master?;
        let master = self.0.get(&master).map_or_else(|| "another interface".into(), named);
        Some(format!("it belongs to {master}"))
    }
}

/// Returns whether `link`, above `own`, takes packets that would otherwise be forwarded as `own`'s.
fn takes(link: &Link, own: &Link, hides_tags: bool) -> bool {
    match link.kind.as_str() {
        "vlan" => hides_tags,
        "macvlan" | "macvtap" => link.mac == own.mac || link.macvlan.is_none_or(|mode| !OWN_ADDRESS.contains(&mode)),
        kind => !HARMLESS.contains(&kind),
    }
}

/// Returns kind and name of an interface, such as `ipvlan interface iv0`.
fn named(link: &Link) -> String {
    format!("{}{}interface {}", link.kind, if link.kind.is_empty() { "" } else { " " }, link.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: &str) -> Link {
        Link {
            index,
            name: name.into(),
            mac: Some([2, 0, 0, 0, 0, index as u8]),
            mtu: 1500,
            up: true,
            carrier: true,
            kind: kind.into(),
            parent: None,
            vlan: None,
            macvlan: None,
            master: None,
            rx_queues: 1,
        }
    }

    fn with(more: Link) -> Relations {
        let mut relations = Relations::default();
        assert!(relations.note(&[Change::Link(link(1, "r0", "")), Change::Link(more.clone())]));
        assert!(!relations.note(&[Change::Link(Link { carrier: false, ..more })]));
        relations
    }

    fn above(kind: &str) -> Link {
        Link { parent: Some(1), ..link(2, "u0", kind) }
    }

    #[test]
    fn members_are_left() {
        let mut relations = with(link(2, "red", "vrf"));
        assert_eq!(relations.left(1, true), None);
        assert!(relations.note(&[Change::Link(Link { master: Some(2), ..link(1, "r0", "") })]));
        assert_eq!(relations.left(1, false).unwrap(), "it belongs to vrf interface red");
        assert!(relations.note(&[Change::Link(link(1, "r0", ""))]));
        assert_eq!((relations.left(1, false), relations.left(7, false)), (None, None));
    }

    #[test]
    fn what_takes_the_ports_packets_or_is_not_known_leaves_it() {
        for kind in ["ipvlan", "ipvtap", "hsr", "dsa", "rmnet"] {
            assert_eq!(with(above(kind)).left(1, false).unwrap(), format!("{kind} interface u0 is above it"));
        }
        assert_eq!(with(above("")).left(1, false).unwrap(), "interface u0 is above it");
        for kind in HARMLESS {
            assert_eq!(with(above(kind)).left(1, true), None, "{kind}");
        }
        // An ipvlan above another interface does not matter.
        assert_eq!(with(Link { parent: Some(3), ..above("ipvlan") }).left(1, false), None);
        let mut relations = with(above("ipvlan"));
        assert!(relations.note(&[Change::LinkGone { index: 2 }]) && relations.left(1, false).is_none());
    }

    #[test]
    fn vlans_leave_it_where_tags_are_hidden() {
        let relations = with(above("vlan"));
        assert_eq!(relations.left(1, false), None);
        let why = relations.left(1, true).unwrap();
        assert_eq!(why, "vlan interface u0 is above it: programs do not see the tags of its packets");
    }

    #[test]
    fn macvlans_leave_it_that_take_what_is_to_its_address() {
        for kind in ["macvlan", "macvtap"] {
            for (mode, left) in
                [(Some(1), false), (Some(2), false), (Some(4), false), (Some(8), true), (Some(16), true), (None, true)]
            {
                assert_eq!(
                    with(Link { macvlan: mode, ..above(kind) }).left(1, true).is_some(),
                    left,
                    "{kind} {mode:?}"
                );
            }
        }
        let same = Link { mac: link(1, "r0", "").mac, macvlan: Some(4), ..above("macvlan") };
        assert!(with(same).left(1, false).is_some());
    }
}
