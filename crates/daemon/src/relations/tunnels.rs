//! Tunnels whose packets can be forwarded, and reasons why those of the others are left to the kernel.

use super::{Joined, Relations, named};
use bywash_fib::model::{self, Encapsulation, Link, Tunnel, Vxlan};
use bywash_router::control::MasterSpec;
use std::net::IpAddr;

/// A tunnel whose packets can be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Through {
    /// Kernel index of the interface; for one of several networks of a VXLAN interface, [`MasterSpec::index_of_vlan`].
    pub index: u32,
    pub tunnel: Tunnel,
    /// Interface that its packets belong to, if it is a member of a bridge, and the time in seconds after which the
    /// bridge forgets stations behind it, if it learns any there.
    pub joined: Option<(Joined, Option<u32>)>,
}

impl Relations {
    /// Returns the tunnels, each with what it forwards or, if its packets cannot be forwarded, the reason why they are
    /// left to the kernel. Tunnels that are down and lack a needed address are not among them.
    pub fn tunnels(&self) -> impl Iterator<Item = (&Link, Result<Through, String>)> {
        let all = self.links.values().filter(|_| !self.left_tunnels);
        all.filter_map(|link| Some((link, link.tunnel?))).flat_map(|(link, tunnel)| {
            if !is_host_tunnel(&tunnel) {
                // The kernel itself creates one without addresses of each kind but VXLAN.
                let why = link.up.then(|| Err("it has no local address, or no fixed remote".into()));
                return why.map(|why| (link, why)).into_iter().collect::<Vec<_>>();
            }
            match self.through(link, tunnel) {
                Ok(all) => all.into_iter().map(|through| (link, Ok(through))).collect(),
                Err(why) => vec![(link, Err(why))],
            }
        })
    }

    /// Returns what a tunnel forwards as a member of a bridge: several networks of a VXLAN, or one; errors with the
    /// reason if it cannot forward for the bridge.
    fn joined_by_tunnel(&self, link: &Link, tunnel: Tunnel) -> Result<Vec<Through>, String> {
        if let Some(why) = self.left(link.index) {
            return Err(why);
        }
        let of = link.master.and_then(|bridge| self.links.get(&bridge)).and_then(|bridge| bridge.bridge);
        let ageing = of.map_or(0, |of| of.ageing_ms);
        let learns = link.member.is_some_and(|state| state.learns);
        let ageing = learns.then_some((ageing / 1000).max(1) as u32);
        let through = |index, tunnel, joined| Through { index, tunnel, joined: Some((joined, ageing)) };
        let mut joined = self.joined(link.index).into_iter();
        if !tunnel.external {
            let joined = joined.find(|joined| !joined.tagged);
            let joined = joined.ok_or("its bridge filters VLANs, and it is an untagged member of none")?;
            return Ok(vec![through(link.index, tunnel, joined)]);
        }
        let network = |joined: Joined| {
            let (index, vni) = (MasterSpec::index_of_vlan(link.index, joined.vlan)?, link.vlans.vni(joined.vlan)?);
            Some(through(index, tunnel.network(vni), joined))
        };
        let networks: Vec<Through> = joined.filter_map(network).collect();
        if networks.is_empty() { Err("none of its bridge's VLANs is a network of it".into()) } else { Ok(networks) }
    }

    /// Checks what a tunnel itself, and what is below and above it, does with its packets. Returns what it forwards.
    fn is_followed(&self, link: &Link, tunnel: Tunnel) -> Result<Vec<Through>, String> {
        if !link.up {
            return Err("it is down".into());
        }
        let of_itself = |tunnel| vec![Through { index: link.index, tunnel, joined: None }];
        let through = match self.member(link.index) {
            Some(_) if tunnel.is_ethernet() => self.joined_by_tunnel(link, tunnel)?,
            Some(member) => return Err(member),
            None if tunnel.vxlan.is_some_and(|vxlan| vxlan.filters) => {
                return Err("it has a VNI filter, and belongs to no bridge".into());
            }
            None if tunnel.external => of_itself(tunnel.with_headers_of_routes()),
            None => of_itself(tunnel),
        };
        if let Some(upper) = self.all_above(link.index).next() {
            return Err(format!("{} is above it", named(upper)));
        }
        if !tunnel.plain {
            return Err("it has an XDP program, or properties that are not followed".into());
        }
        if tunnel.is_ethernet() && link.mac.is_none_or(|mac| mac[0] & 1 != 0) {
            return Err("it does not resolve neighbours, or has no valid MAC address".into());
        }
        let on_vrf = |link: &Link| link.vrf.is_some() || model::vrf(&self.links, link.index).is_some();
        let below = tunnel.vxlan.map_or(tunnel.link, |vxlan| vxlan.link);
        match self.links.get(&below).is_some_and(on_vrf) {
            true => Err("it is bound to a VRF or a member of one".into()),
            false => Ok(through),
        }
    }

    fn through(&self, link: &Link, tunnel: Tunnel) -> Result<Vec<Through>, String> {
        let through = self.is_followed(link, tunnel)?;
        if let Some(Vxlan { port, .. }) = tunnel.vxlan {
            // Of several that receive the packets of all networks at one port, the kernel uses the last
            // (vxlan_vs_find_vni).
            let same = |of: &Tunnel| of.external && of.vxlan.is_some_and(|vxlan| vxlan.port == port && !vxlan.filters);
            return self.is_alone(link, |of| tunnel.external && same(of)).map(|()| through);
        }
        // vti_ipip_handler comes before ipip's, and vti_ipv6_handler and vti_ip6ip_handler before those of ip6tnl.
        // ip6gre_tunnel_lookup does not tell ip6erspan from ip6gretap.
        let before = match tunnel.encapsulation {
            Encapsulation::Ipip => "vti",
            Encapsulation::Ip6tnl => "vti6",
            Encapsulation::Gretap if tunnel.is_over_v6() => "ip6erspan",
            _ => "",
        };
        let first = self.all().find(|link| link.kind == before && link.up);
        if let Some(first) = first.filter(|_| !before.is_empty()) {
            return Err(format!("{} may receive its packets instead", named(first)));
        }
        // The kernel prefers a tunnel that is bound to the interface of a received packet, and one with an address of
        // its own (ip_tunnel_lookup, ip6_tnl_lookup, ip6gre_tunnel_lookup), and any to one with headers from routes.
        let takes_too = |other: &Tunnel| {
            if tunnel.external {
                return other.kind() == tunnel.kind() && !is_fallback(other);
            }
            let any = |ours: IpAddr, theirs: IpAddr| theirs.is_unspecified() || ours == theirs;
            let local = |with: bool| tunnel.local.is_unspecified() || with;
            let same =
                local(tunnel.local == other.local) && (tunnel.remote, tunnel.keys[0]) == (other.remote, other.keys[0]);
            let bound = other.link != 0 && local(any(tunnel.local, other.local)) && any(tunnel.remote, other.remote);
            other.kind() == tunnel.kind() && (same || bound)
        };
        self.is_alone(link, takes_too).map(|()| through)
    }

    /// Checks that no other tunnel takes packets of this one.
    fn is_alone(&self, link: &Link, takes_too: impl Fn(&Tunnel) -> bool) -> Result<(), String> {
        let other = |of: &&Link| of.index != link.index && of.tunnel.as_ref().is_some_and(&takes_too);
        match self.all().find(other) {
            Some(other) => Err(format!("{} may receive its packets instead", named(other))),
            None => Ok(()),
        }
    }
}

/// Returns whether an interface is a VXLAN of several networks.
pub(super) fn has_networks(link: &Link) -> bool {
    link.tunnel.is_some_and(|tunnel| tunnel.external && tunnel.vxlan.is_some())
}

/// Returns whether a tunnel takes the packets that no other one takes, as the tunnel of each kind that the kernel
/// itself creates does.
fn is_fallback(tunnel: &Tunnel) -> bool {
    let anywhere = tunnel.local.is_unspecified() && tunnel.remote.is_unspecified();
    anywhere && tunnel.keys[0].is_none() && tunnel.link == 0 && !tunnel.external
}

/// Returns whether a tunnel sends from this host to others that are known: to one remote, unless it is a VXLAN or has
/// headers from routes. Without a local address, the kernel chooses one for each remote; kinds `ip6tnl`, `ip6gre`
/// and `ip6gretap` must have one.
fn is_host_tunnel(tunnel: &Tunnel) -> bool {
    let may_choose = tunnel.vxlan.is_some() || !tunnel.is_over_v6();
    let local = model::is_host(tunnel.local) || (may_choose && tunnel.local.is_unspecified());
    local && (tunnel.vxlan.is_some() || tunnel.external || model::is_host(tunnel.remote))
}
