//! Relations between interfaces, which may leave all packets of a port to the kernel.
//!
//! Packets of a port that belongs to a bridge or bond are forwarded by that interface's rules, whatever the tables say.
//! Those of a VRF's member are looked up in the VRF's table. Some interfaces above a port take packets to the port's own MAC address: an ipvlan shares it, a macvlan may.
//! An interface of an unknown kind above a port may do anything.

use bywash_fib::model::{Change, Link, Vlan};
use bywash_wire::ethernet::ethertype;
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
        let above = |link: &Link| (link.parent, link.macvlan, link.vlan, link.master, link.vrf);
        let of = |link: &Link| (link.name.clone(), link.kind.clone(), link.mac, link.up, above(link));
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

    /// Returns the reason for which a router leaves this interface to the kernel; `None` if it need not.
    pub fn left(&self, index: u32) -> Option<String> {
        let own = self.0.get(&index)?;
        self.member(index).or_else(|| {
            let link = self.0.values().find(|link| link.parent == Some(index) && takes(link, own))?;
            Some(format!("{} is above it", named(link)))
        })
    }

    /// Returns the reason for which a router leaves this interface to the kernel where programs do not see the tags of
    /// received frames, and so would take a frame of a VLAN as untagged.
    pub fn left_without_tags(&self, index: u32) -> Option<String> {
        let link = self.0.values().find(|link| link.parent == Some(index) && link.kind == "vlan")?;
        Some(format!("{} is above it: programs do not see the tags of its packets", named(link)))
    }

    /// Returns the VLAN interfaces above this one, each with its VLAN or, if more than what every interface has decides
    /// about its packets, the reason for which they are the kernel's.
    pub fn vlans(&self, index: u32) -> impl Iterator<Item = (&Link, Result<Vlan, String>)> {
        let above = self.0.values().filter(move |link| link.kind == "vlan" && link.parent == Some(index));
        above.map(|link| (link, self.plain(link)))
    }

    fn plain(&self, link: &Link) -> Result<Vlan, String> {
        let tagged = |vlan: &Vlan| [ethertype::VLAN, ethertype::QINQ].contains(&vlan.protocol);
        let known = |vlan: &Vlan| tagged(vlan) && (1..0xfff).contains(&vlan.id);
        let unicast = link.mac.is_some_and(|mac| mac[0] & 1 == 0);
        if !link.up {
            return Err("it is down".into());
        }
        if let Some(member) = self.member(link.index) {
            return Err(member);
        }
        if let Some(upper) = self.0.values().find(|upper| upper.parent == Some(link.index)) {
            return Err(format!("{} is above it", named(upper)));
        }
        match link.vlan.filter(|vlan| unicast && known(vlan)) {
            Some(vlan) if vlan.plain => Ok(vlan),
            Some(_) => Err("it has flags other than reorder_hdr, maps of priorities, or an XDP program".into()),
            None => Err("its tag or address is not known".into()),
        }
    }

    /// Returns the VRF that an interface belongs to, by index, name and table; `None` if it belongs to none.
    pub fn vrf(&self, index: u32) -> Option<(u32, &str, u32)> {
        let vrf = self.0.get(&self.0.get(&index)?.master?)?;
        Some((vrf.index, &vrf.name, vrf.vrf?))
    }

    /// Returns which interface this one is a member of, worded as a reason; `None` if it is no member, or a VRF's.
    pub fn member(&self, index: u32) -> Option<String> {
        let master = self.0.get(&index)?.master?;
        if self.vrf(index).is_some() {
            return None;
        }
        let master = self.0.get(&master).map_or_else(|| "another interface".into(), named);
        Some(format!("it belongs to {master}"))
    }
}

/// Returns whether `link`, above `own`, takes packets that would otherwise be forwarded as `own`'s.
fn takes(link: &Link, own: &Link) -> bool {
    match link.kind.as_str() {
        "vlan" => false,
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
            vrf: None,
            bond: None,
            member: None,
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
        let mut relations = with(link(2, "br0", "bridge"));
        assert_eq!(relations.left(1), None);
        assert!(relations.note(&[Change::Link(Link { master: Some(2), ..link(1, "r0", "") })]));
        assert_eq!(relations.left(1).unwrap(), "it belongs to bridge interface br0");
        assert!(relations.note(&[Change::Link(Link { vrf: Some(10), ..link(2, "red", "vrf") })]));
        assert_eq!((relations.left(1), relations.vrf(1)), (None, Some((2, "red", 10))));
        assert!(relations.note(&[Change::Link(link(2, "red", "vrf"))]), "a VRF whose table is not known");
        assert!(relations.left(1).is_some() && relations.vrf(1).is_none());
        assert!(relations.note(&[Change::Link(link(1, "r0", ""))]));
        assert_eq!((relations.left(1), relations.left(7)), (None, None));
    }

    #[test]
    fn what_takes_the_ports_packets_or_is_not_known_leaves_it() {
        for kind in ["ipvlan", "ipvtap", "hsr", "dsa", "rmnet"] {
            assert_eq!(with(above(kind)).left(1).unwrap(), format!("{kind} interface u0 is above it"));
        }
        assert_eq!(with(above("")).left(1).unwrap(), "interface u0 is above it");
        for kind in HARMLESS {
            assert_eq!(with(above(kind)).left(1), None, "{kind}");
        }
        // An ipvlan above another interface does not matter.
        assert_eq!(with(Link { parent: Some(3), ..above("ipvlan") }).left(1), None);
        let mut relations = with(above("ipvlan"));
        assert!(relations.note(&[Change::LinkGone { index: 2 }]) && relations.left(1).is_none());
    }

    #[test]
    fn vlans_leave_it_where_tags_are_hidden() {
        let relations = with(above("vlan"));
        assert_eq!(relations.left(1), None);
        let why = relations.left_without_tags(1).unwrap();
        assert_eq!(why, "vlan interface u0 is above it: programs do not see the tags of its packets");
        assert_eq!(with(above("macsec")).left_without_tags(1), None);
    }

    #[test]
    fn plain_vlans_are_found() {
        let plain = Vlan { protocol: 0x8100, id: 5, plain: true };
        let vlan = Link { vlan: Some(plain), ..above("vlan") };
        let of = |relations: &Relations| relations.vlans(1).filter_map(|(_, vlan)| vlan.ok()).collect::<Vec<_>>();
        let found = |link: Link| of(&with(link));
        assert_eq!(found(vlan.clone()), [plain]);
        let service = Vlan { protocol: 0x88a8, ..plain };
        assert_eq!(found(Link { vlan: Some(service), ..vlan.clone() }), [service]);
        for other in [
            Link { vlan: Some(Vlan { plain: false, ..plain }), ..vlan.clone() },
            Link { vlan: Some(Vlan { protocol: 0x9100, ..plain }), ..vlan.clone() },
            Link { vlan: Some(Vlan { id: 0, ..plain }), ..vlan.clone() },
            Link { vlan: Some(Vlan { id: 0xfff, ..plain }), ..vlan.clone() },
            Link { vlan: None, ..vlan.clone() },
            Link { kind: "macvlan".into(), macvlan: Some(4), ..vlan.clone() },
            Link { parent: Some(3), ..vlan.clone() },
            Link { parent: None, ..vlan.clone() },
            Link { up: false, ..vlan.clone() },
            Link { master: Some(3), ..vlan.clone() },
            Link { mac: None, ..vlan.clone() },
            Link { mac: Some([1, 0, 0, 0, 0, 1]), ..vlan.clone() },
        ] {
            assert_eq!(found(other.clone()), [], "{other:?}");
        }
        // Whatever is above a VLAN takes packets of its.
        let mut relations = with(vlan.clone());
        for kind in ["vlan", "macvlan", "ipvlan", "macsec"] {
            assert!(relations.note(&[Change::Link(Link { parent: Some(2), ..link(3, "w0", kind) })]));
            assert_eq!(relations.vlans(1).next().unwrap().1, Err(format!("{kind} interface w0 is above it")));
            assert!(relations.note(&[Change::LinkGone { index: 3 }]));
            assert_eq!(of(&relations), [plain]);
        }
        assert!(relations.note(&[Change::Link(Link { up: false, ..vlan })]));
        assert_eq!(of(&relations), []);
    }

    #[test]
    fn macvlans_leave_it_that_take_what_is_to_its_address() {
        for kind in ["macvlan", "macvtap"] {
            for (mode, left) in
                [(Some(1), false), (Some(2), false), (Some(4), false), (Some(8), true), (Some(16), true), (None, true)]
            {
                assert_eq!(with(Link { macvlan: mode, ..above(kind) }).left(1).is_some(), left, "{kind} {mode:?}");
            }
        }
        let same = Link { mac: link(1, "r0", "").mac, macvlan: Some(4), ..above("macvlan") };
        assert!(with(same).left(1).is_some());
    }
}
