//! Tunnels: their stations, and the paths to their other ends.

use super::super::followed::Followed;
use super::super::{PortView, TunnelSpec};
use super::{Links, differing, replace};
use crate::tables::{PortInfo, SourceCheck};
use crate::tunnel::{Paths, Stations, TunnelInfo, Tunnels};
use bywash_engine::PortId;
use bywash_fib::model::{Mac, Tunnel};
use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::Arc;

impl Links {
    /// Returns whether an interface is a tunnel whose packets are forwarded.
    pub fn is_tunnel(&self, index: u32) -> bool {
        self.tunnels.contains_key(&index)
    }

    /// Sets the tunnels, and returns the interfaces that became or ceased to be one, or changed.
    pub fn set_tunnels(&mut self, tunnels: &[TunnelSpec]) -> Vec<u32> {
        let old = replace(&mut self.tunnels, tunnels, |tunnel| tunnel.index);
        differing(&old, &self.tunnels)
    }

    /// Sets the tunnels whose packets are forwarded, by number; returns those for which that changes.
    pub fn allow_tunnels(&mut self, allowed: &BTreeSet<PortId>) -> Vec<u32> {
        let old = std::mem::replace(&mut self.allowed, allowed.clone());
        let changed = |(spec, _): &&(TunnelSpec, _)| old.contains(&spec.id) != allowed.contains(&spec.id);
        self.tunnels.values().filter(changed).map(|(spec, _)| spec.index).collect()
    }

    /// Returns whether policies allow the packets of a tunnel to be forwarded; false for other interfaces.
    pub fn allows_tunnel(&self, index: u32) -> bool {
        self.tunnels.get(&index).is_some_and(|(spec, _)| self.allowed.contains(&spec.id))
    }

    /// Returns the pairs of ends between which tunnels that policies allow need a path, each with the interface that it
    /// leads by, if the tunnel is bound to one, or 0.
    pub fn tunnel_ends(&self) -> BTreeSet<(Ipv4Addr, Ipv4Addr, u32)> {
        let of = |(spec, _): &(TunnelSpec, SourceCheck)| {
            let Tunnel { local, remote, link, vxlan, .. } = spec.tunnel;
            let remotes = match vxlan {
                Some(_) => self.ends_of(spec.index).collect(),
                None => vec![remote],
            };
            remotes.into_iter().map(move |remote| (local, remote, link))
        };
        self.tunnels.values().filter(|(spec, _)| self.allows_tunnel(spec.index)).flat_map(of).collect()
    }

    /// Returns the other ends of a VXLAN that lead to stations, each once.
    pub fn ends_of(&self, index: u32) -> impl Iterator<Item = Ipv4Addr> {
        self.behind.range((index, 0)..=(index, u32::MAX)).map(|((_, end), _)| Ipv4Addr::from_bits(*end))
    }

    /// Returns the stations of a VXLAN, in ascending order, with the ends that lead to them.
    fn stations_of(&self, index: u32) -> impl Iterator<Item = (Mac, u32)> {
        let range = self.stations.range((index, 0, [0; 6])..=(index, 0, [0xff; 6]));
        range.map(|((_, _, mac), end)| (*mac, *end))
    }

    /// Returns the other end of a tunnel that leads to a station, or its only other end, if there is a path to it.
    pub fn tunnel_path(&self, index: u32, station: Option<Mac>) -> Option<Ipv4Addr> {
        let (TunnelSpec { tunnel, .. }, _) = self.tunnels.get(&index)?;
        let end = match station {
            Some(mac) => Ipv4Addr::from_bits(*self.stations.get(&(index, 0, mac))?),
            None => tunnel.remote,
        };
        let ends = (tunnel.local, end, tunnel.link);
        self.paths.all.binary_search_by_key(&ends, |path| path.ends).ok().map(|_| end)
    }

    /// Sets the paths of tunnels. Returns whether they have changed, and the tunnels whose next hops this changes.
    pub fn set_paths(&mut self, paths: Paths) -> (bool, Vec<u32>) {
        let ends = |paths: &Paths| paths.all.iter().map(|path| path.ends).collect::<Vec<_>>();
        let (changed, others) = (self.paths != paths, ends(&self.paths) != ends(&paths));
        self.paths = paths;
        (changed, self.tunnels.keys().filter(|_| others).copied().collect())
    }

    /// Brings the stations of VXLANs up to date, for [`Links::tunnels`].
    pub fn refresh_ends(&mut self) {
        self.ends.retain(|index, _| self.tunnels.contains_key(index));
        let vxlans = self.tunnels.iter().filter(|(_, (spec, _))| spec.tunnel.vxlan.is_some());
        for index in vxlans.map(|(index, _)| *index).collect::<Vec<_>>() {
            let before = self.ends.get(&index);
            if before.is_none() || self.stale_ends.contains(&index) {
                let new = Stations::new(self.stations_of(index).collect(), before.unwrap_or(&Arc::default()));
                self.ends.insert(index, Arc::new(new));
            }
        }
        self.stale_ends.clear();
    }

    /// Returns the tunnels as the stages use them, without those that policies leave to the kernel.
    pub fn tunnels(&self, followed: &Followed) -> Tunnels {
        let of = |(TunnelSpec { id, index, tunnel }, _): &(TunnelSpec, SourceCheck)| {
            let info = PortInfo {
                index: *index,
                mac: self.get(*index).and_then(|link| link.mac).unwrap_or_default(),
                source4: self.source4(*index, None),
                source6: self.source6(*index, None),
                source_check: self.source_check(*id),
                ..PortInfo::default()
            };
            let info = self.with_rules(info, *id, followed);
            let stations = self.ends.get(index).cloned().unwrap_or_default();
            TunnelInfo { id: *id, tunnel: *tunnel, info, stations }
        };
        let open = self.tunnels.values().filter(|(spec, _)| self.allows_tunnel(spec.index) && self.running(spec.index));
        Tunnels::new(open.map(of).collect(), self.paths.clone())
    }

    /// Returns all tunnels for display, by kernel index.
    pub fn tunnel_views(&self) -> impl Iterator<Item = (PortView, &TunnelSpec)> {
        self.tunnels.values().map(|(spec, _)| {
            let TunnelSpec { id, index, .. } = *spec;
            let name = self.get(index).map(|link| link.name.clone()).unwrap_or_default();
            (self.view(id, name, index), spec)
        })
    }

    /// Returns the number of a tunnel whose packets are forwarded.
    pub fn tunnel_number(&self, index: u32) -> Option<PortId> {
        self.tunnels.get(&index).map(|(spec, _)| spec.id)
    }
}
