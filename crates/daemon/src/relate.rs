//! Decides, whenever the relations between interfaces change, for which interfaces above the ports and which tunnels
//! packets are forwarded; all others are left to the kernel.

use crate::ports::Xdp;
use crate::relations::{Joined, Through};
use crate::runtime::Runtime;
use crate::slots;
use crate::vlans::{Carried, Left, Master, Uppers};
use bywash_config::Mode;
use bywash_port::af_xdp;
use bywash_router::bond::XmitHash;
use bywash_router::control::{Egress, MasterSpec, PortView};
use bywash_router::vlan::{UNTAGGED, VLANS};
use bywash_sync::lock;
use std::collections::BTreeMap;

/// Interfaces found above the ports, and tunnels.
#[derive(Default)]
struct Found {
    /// Bonds and bridges, by kernel index.
    masters: BTreeMap<u32, Master>,
    /// VLANs and macvlans.
    carried: Vec<Carried>,
    tunnels: Vec<Through>,
    /// Number of VLANs without an interface that are left to the kernel because there are too many.
    unchosen: usize,
    /// Interfaces above ports that are left to the kernel, by kernel index.
    left: BTreeMap<u32, Left>,
    /// VLANs, macvlans and tunnels by name, each with the reason why it is left to the kernel, if it is.
    reasons: BTreeMap<String, Option<String>>,
}

impl Runtime {
    /// Leaves ports to the kernel, or takes them over again, according to the current relations, and finds the bonds,
    /// bridges and VLANs above them, and tunnels.
    pub fn relate(&mut self) {
        let views = self.shared.view.ports();
        self.relations.set_ports(views.iter().map(|view| view.index).filter(|index| *index != 0).collect());
        self.relations.configure(&self.shared.config().router);
        self.relations.serve(&views.iter().map(|view| view.index).collect());
        let mut found = Found::default();
        self.find_bonds(&views, &mut found);
        self.find_bridges(&views, &mut found);
        if self.shared.config().mode == Mode::Router {
            self.find_tunnels(&views, &mut found);
        }
        self.choose_vlans(&mut found);
        let members = found.masters.values().flat_map(|master| &master.members);
        self.relations.serve(&members.map(|(_, member)| *member).collect());
        self.find_vlans(&views, &mut found);
        let uppers = self.number(&mut found);
        let served = uppers.masters.iter().flat_map(|master| &master.members).map(|(_, member)| *member).collect();
        self.relations.serve(&served);
        // The gates close first, so that no packet is attributed to another interface.
        self.mode.set_uppers(&uppers);
        if self.relate_programs(&views) {
            self.query_targets();
        }
        self.log_uppers(found.reasons);
        *lock(&self.shared.left) = found.left.into_values().collect();
        self.log_members(&uppers.masters);
    }

    /// Returns the ports whose program satisfies a condition.
    fn ports_whose<'a>(&self, views: &'a [PortView], holds: impl Fn(&Xdp) -> bool) -> Vec<&'a PortView> {
        let ports = self.shared.ports();
        let xdp = |view: &PortView| ports.get(&view.id.0.into()).and_then(|slot| slot.xdp.as_ref());
        views.iter().filter(|view| xdp(view).is_some_and(&holds)).collect()
    }

    fn find_bonds(&self, views: &[PortView], found: &mut Found) {
        for view in self.ports_whose(views, |xdp| !xdp.program.config().raw) {
            // A bond that is a port itself is served by that port.
            let above = self.relations.bond_above(view.index).map(|bond| bond.index);
            let Some(index) = above.filter(|index| views.iter().all(|view| view.index != *index)) else { continue };
            let hash =
                self.relations.link(index).and_then(|link| XmitHash::of(link.bond?.xmit_hash)).unwrap_or_default();
            let new = || Master::new(UNTAGGED, Egress::ByHash(hash));
            let bond = found.masters.entry(index).or_insert_with(new);
            if self.relations.left(view.index).is_none() {
                bond.members.push((view.id, view.index));
            }
        }
        for (index, bond) in &mut found.masters {
            bond.members = self.relations.in_order(*index, &bond.members, af_xdp::bond_members);
        }
    }

    fn find_bridges(&self, views: &[PortView], found: &mut Found) {
        for view in self.ports_whose(views, Xdp::forwards_uppers) {
            if self.relations.left(view.index).is_some() {
                continue;
            }
            for Joined { index, bridge, vlan, tag, tagged } in self.relations.joined(view.index) {
                let new = || Master::new(tag, Egress::ToStation { bridge, vlan });
                let master = found.masters.entry(index).or_insert_with(new);
                master.members.push((view.id, view.index));
                master.tagged.extend(tagged.then_some(view.id));
            }
        }
    }

    fn find_tunnels(&self, views: &[PortView], found: &mut Found) {
        let leaves = slots::leave_tunnels(&self.shared.ports());
        for (link, through) in self.relations.tunnels() {
            if views.iter().any(|view| view.index == link.index) {
                continue;
            }
            if let Ok(Through { index, joined: Some((Joined { index: of, bridge, vlan, tag, .. }, _)), .. }) = through {
                let new = || Master::new(tag, Egress::ToStation { bridge, vlan });
                found.masters.entry(of).or_insert_with(new).vxlans.push(index);
            }
            let why = through.map(|through| found.tunnels.push(through)).err();
            found.left.extend(why.clone().map(|why| (link.index, Left::new(link, why))));
            let why = why.or_else(|| leaves.then(|| slots::TUNNELS_LEFT.into()));
            found.reasons.insert(link.name.clone(), why);
        }
    }

    /// Keeps the VLANs without an interface that have two members at least, as long as half of all numbers are left for
    /// interfaces.
    fn choose_vlans(&self, found: &mut Found) {
        let Found { masters, tunnels, unchosen, left, reasons, .. } = found;
        let mut numbers = 0;
        masters.retain(|index, master| {
            if MasterSpec::vlan_of_index(*index).is_none() {
                return true;
            }
            let several = master.members.len() + master.vxlans.len() > 1;
            let fits = numbers + master.numbers() <= VLANS / 2;
            numbers += if several && fits { master.numbers() } else { 0 };
            *unchosen += usize::from(several && !fits);
            several && fits
        });
        tunnels.retain(|through| {
            if through.joined.is_none_or(|(of, _)| masters.contains_key(&of.index)) {
                return true;
            }
            let why = "its bridge has no interface and no port in its VLAN, or too many VLANs".to_owned();
            if let Some(link) = self.relations.link(MasterSpec::interface_of(through.index)) {
                left.insert(link.index, Left::new(link, why.clone()));
                reasons.insert(link.name.clone(), Some(why));
            }
            false
        });
        // Other networks of the same VXLAN may remain.
        for link in tunnels.iter().filter_map(|of| self.relations.link(MasterSpec::interface_of(of.index))) {
            left.remove(&link.index);
            reasons.insert(link.name.clone(), None);
        }
    }

    fn find_vlans(&self, views: &[PortView], found: &mut Found) {
        for view in self.ports_whose(views, Xdp::forwards_uppers) {
            let port = view.id;
            for (link, packets) in self.relations.uppers(view.index) {
                // An interface that is a port itself is served by that port, and one that is like a bridge has members.
                if views.iter().any(|view| view.index == link.index) || found.masters.contains_key(&link.index) {
                    continue;
                }
                let parent = link.parent.unwrap_or_default();
                let carry = |packets| found.carried.push(Carried { index: link.index, packets, port, parent });
                let why = packets.map(carry).err();
                if let Some(why) = &why {
                    found.left.entry(link.index).or_insert_with(|| Left::new(link, why.clone())).ports.push(port);
                }
                found.reasons.insert(link.name.clone(), why);
            }
        }
    }

    /// Gives the interfaces their numbers, of which there may be too few.
    fn number(&mut self, found: &mut Found) -> Uppers {
        let Found { masters, carried, tunnels, unchosen, left, .. } = found;
        let (interfaces, others): (Vec<_>, Vec<_>) =
            masters.iter().partition(|(index, _)| MasterSpec::vlan_of_index(**index).is_none());
        let wanted = carried.len() + interfaces.iter().map(|(_, master)| master.tagged.len()).sum::<usize>();
        let uppers = self.numbers.assign(masters, carried, tunnels);
        let numbered = uppers.masters.iter().map(|master| master.index).collect::<Vec<_>>();
        let members = masters.iter().filter(|(index, _)| !numbered.contains(index));
        let members = members.flat_map(|(index, of)| of.members.iter().map(|(port, _)| (*index, Some(*port))));
        for (index, port) in uppers.without(carried, tunnels).into_iter().chain(members) {
            let Some(link) = self.relations.link(index) else { continue };
            let new = || Left::new(link, "there are too many interfaces above ports".into());
            left.entry(index).or_insert_with(new).ports.extend(port);
        }
        let entries = uppers.vlans.iter().map(|vlan| vlan.entries.len()).sum::<usize>();
        let given = || uppers.masters.iter().filter(|master| master.has_interface());
        let entries = entries + given().map(|master| master.tagged.len()).sum::<usize>();
        let lines = [
            ("VLANs or macvlans", wanted.saturating_sub(entries)),
            ("bonds or bridges", interfaces.len().saturating_sub(given().count())),
            ("tunnels", tunnels.len().saturating_sub(uppers.tunnels.len())),
            ("VLANs without an interface", *unchosen + others.len() + given().count() - uppers.masters.len()),
        ];
        let lines = lines.into_iter().filter(|(_, many)| *many > 0);
        let lines = lines.map(|(what, many)| {
            format!("{many} {what} are left to the kernel: too many (see \"Limits\" in docs/user-guide.md)")
        });
        let lines: Vec<String> = lines.collect();
        lines.iter().filter(|line| !self.unnumbered.contains(line)).for_each(|line| tracing::warn!("{line}"));
        self.unnumbered = lines;
        uppers
    }

    /// Gives the ports' programs the interfaces that their packets belong to. Returns whether any program now leaves
    /// its port to the kernel, or takes it over.
    fn relate_programs(&mut self, views: &[PortView]) -> bool {
        let (mut news, mut ports) = (false, self.shared.ports());
        for port in views {
            let Some(slot) = ports.get_mut(&port.id.0.into()) else { continue };
            match &mut slot.xdp {
                Some(xdp) => match xdp.relate(&self.relations) {
                    Ok(changed) => news |= changed,
                    Err(e) => tracing::error!("{e:#}"),
                },
                None => {
                    let why = self.relations.member(port.index).or_else(|| self.relations.left(port.index));
                    if let Some(why) = &why
                        && slot.unheeded.as_ref() != Some(why)
                    {
                        tracing::warn!(
                            "{}: {why}. This kind of port cannot leave packets to the kernel, so its packets are \
                             forwarded by table main, not as the kernel would; use a port of kind af_xdp",
                            port.name
                        );
                    }
                    slot.unheeded = why;
                }
            }
        }
        news
    }

    /// Logs the VLANs, macvlans and tunnels that are new, or whose reason has changed.
    fn log_uppers(&mut self, reasons: BTreeMap<String, Option<String>>) {
        for (name, why) in reasons.iter().filter(|(name, why)| self.vlans.get(*name) != Some(why)) {
            match why {
                Some(why) => tracing::info!("{name}: left to the kernel: {why}"),
                None => tracing::info!("{name}: its packets are forwarded past the kernel"),
            }
        }
        self.vlans = reasons;
    }

    /// Logs the bonds and bridges whose members have changed.
    fn log_members(&mut self, masters: &[MasterSpec]) {
        let name = |index| self.relations.link(MasterSpec::interface_of(index)).map_or("?", |link| &link.name);
        // Each change of a member's VLANs removes it until they have been read again; its return is not logged.
        let exists = |index: &u32| match MasterSpec::vlan_of_index(*index) {
            Some((bridge, _)) => self.relations.link(bridge).is_some(),
            None => self.relations.link(*index).is_some_and(|link| link.kind == "vlan"),
        };
        self.members.retain(|index, _| exists(index) || masters.iter().any(|master| master.index == *index));
        for master in masters {
            let MasterSpec { index, members, egress, .. } = master;
            let known = self.members.entry(*index).or_default();
            let same = match master.is_vlan() {
                true => members.iter().all(|member| known.contains(member)),
                false => known == members,
            };
            if same {
                continue;
            }
            known.clone_from(members);
            if known.is_empty() {
                continue;
            }
            let plural = if members.len() > 1 { "s" } else { "" };
            let vxlans = master.vxlans.iter().filter(|_| !master.has_interface()).copied();
            let members = members.iter().map(|(_, member)| *member).chain(vxlans);
            let members = members.map(name).collect::<Vec<_>>().join(", ");
            match egress {
                Egress::ToStation { bridge, vlan } if !master.has_interface() => {
                    let bridge = name(*bridge);
                    tracing::info!("{bridge}: frames of VLAN {vlan} are forwarded between its members {members}");
                }
                Egress::ToStation { .. } => {
                    tracing::info!("{}: packets that it routes are forwarded on its members {members}", name(*index));
                }
                Egress::ByHash(_) => {
                    tracing::info!("{}: its packets are forwarded by its member{plural} {members}", name(*index));
                }
            }
        }
    }
}
