//! The XDP program as a consumer of the router's tables: it forwards with the same tables as the workers.

use crate::tables::{BondInfo, Entry, Kind, Tables};
use crate::vlan::UNTAGGED;
use bywash_engine::PortId;
use bywash_fib::Shared;
use bywash_fib::model::Mac;
use bywash_port::af_xdp::{self, Family, Hop, HopKind, PORTS, Segments, TAKES_FRAMES, THROUGH, UNICAST};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Redirect targets of the XDP program, by port number. Clones share one table.
#[derive(Clone)]
pub struct Targets(Arc<[AtomicU64; PORTS as usize]>);

/// Redirect target of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Kernel index of the port's interface; 0 if the program must not send to it.
    pub ifindex: u32,
    /// Set if the device takes frames without an skb, as native XDP redirects them.
    pub takes_frames: bool,
}

impl Default for Targets {
    fn default() -> Self {
        Self(Arc::new([const { AtomicU64::new(0) }; PORTS as usize]))
    }
}

impl Targets {
    /// Stores the target of `port`. Returns `true` if it changed.
    pub fn set(&self, port: usize, target: Target) -> bool {
        let word = u64::from(target.ifindex) << 1 | u64::from(target.takes_frames);
        self.0.get(port).is_some_and(|known| known.swap(word, Ordering::Relaxed) != word)
    }

    /// Returns the target of `port`; the default for an unknown port.
    pub fn get(&self, port: u16) -> Target {
        let word = self.0.get(usize::from(port)).map_or(0, |known| known.load(Ordering::Relaxed));
        Target { ifindex: (word >> 1) as u32, takes_frames: word & 1 != 0 }
    }
}

/// Another consumer of the workers' tables: the XDP program that forwards by them.
#[derive(Clone)]
pub struct XdpTableSink {
    /// The XDP program and its maps.
    pub program: af_xdp::XdpDatapath,
    /// Devices that the program sends to.
    pub targets: Targets,
}

impl XdpTableSink {
    /// Provides memory for the IPv4 and the IPv6 table. Called once.
    pub fn memory(&mut self) -> [Box<dyn Shared>; 2] {
        [Family::V4, Family::V6].map(|family| {
            let segments = self.program.segments(family);
            Box::new(Memory { segments, refused: "user space forwards the routes beyond it" }) as Box<dyn Shared>
        })
    }

    /// Applies the next hops and groups of `tables`. On return, the program uses no older ones.
    pub fn publish(&mut self, tables: &Tables) {
        // The program finds the ports of bonds after the buckets of groups.
        let (mut buckets, mut bonds) = (Cow::from(&tables.buckets), BTreeMap::new());
        for (id, bond) in &tables.bonds {
            bonds.insert(*id, (bond, buckets.len() as u32));
            buckets.to_mut().extend(bond.ports.iter().map(|port| u32::from(port.0)));
        }
        let hops: Vec<Hop> = tables.entries.iter().map(|entry| self.hop(entry, tables, &bonds)).collect();
        self.program.publish(&hops, &buckets, tables.own4.octets());
    }

    /// Sets the stations of bridges: the bridge's number, the MAC address, and the port that leads to it. Of the frames
    /// that a bridge receives, the program forwards only those from these stations. Returns the number of stations that
    /// it has no room for.
    pub(crate) fn set_stations(&mut self, stations: &[(PortId, Mac, PortId)]) -> usize {
        let all: Vec<_> = stations.iter().map(|(bridge, mac, port)| (bridge.0, *mac, port.0)).collect();
        self.program.set_stations(&all).unwrap_or_else(|e| {
            tracing::warn!("bridges are left to the kernel: {e}");
            all.len()
        })
    }

    /// Makes the program pass the next packet of each station to the kernel.
    pub(crate) fn renew_stations(&mut self) {
        self.program.renew_stations();
    }

    /// Called after the tables' memory has changed: the program must discard what it has cached of it.
    pub(crate) fn changed(&mut self) {
        self.program.changed();
    }

    /// Returns the memory of the IPv4 and IPv6 flow tables that the program reads; can be called once.
    pub fn flow_memory(&self) -> [Box<dyn Shared>; 2] {
        [Family::V4, Family::V6].map(|family| {
            let segments = self.program.flow_segments(family);
            Box::new(Memory { segments, refused: "the kernel forwards the flows beyond it" }) as Box<dyn Shared>
        })
    }

    /// Returns a next hop as the program has it. `bonds` maps the number of each bond to the bond and the bucket of its
    /// first port.
    fn hop(&self, entry: &Entry, tables: &Tables, bonds: &BTreeMap<PortId, (&BondInfo, u32)>) -> Hop {
        let vlan = tables.vlan(entry.port);
        let below = vlan.map_or(entry.port, |vlan| vlan.port);
        let (alone, bond) = ([below], bonds.get(&below));
        let ports = bond.map_or(&alone[..], |(bond, _)| &bond.ports);
        let targets = || ports.iter().map(|port| self.targets.get(port.0));
        let reached = targets().all(|target| target.ifindex != 0);
        let takes_frames = targets().all(|target| target.takes_frames);
        let kind = match entry.kind {
            Kind::Local => HopKind::Local,
            Kind::Kernel | Kind::NoCarrier => HopKind::Kernel,
            Kind::Policy => HopKind::Policy,
            Kind::Forward if reached && ports.len() > 1 => HopKind::Bond,
            Kind::Forward if reached && !entry.port.is_port() => HopKind::Vlan,
            Kind::Forward if reached => HopKind::Forward,
            // If one next hop of the group is left to the kernel, the kernel chooses among all of them.
            Kind::Group if members(entry, tables).any(|m| matches!(m.kind, Kind::Kernel | Kind::Policy)) => {
                HopKind::Kernel
            }
            Kind::Group => HopKind::Group,
            _ => HopKind::User,
        };
        let Entry { macs, port, mtu, first, count, .. } = *entry;
        let flags = if takes_frames { TAKES_FRAMES } else { 0 } | if entry.kind.is_unicast() { UNICAST } else { 0 };
        let flags = flags | if entry.kind == Kind::Tunnel { THROUGH } else { 0 };
        let tag = u32::from_le_bytes(vlan.map_or(UNTAGGED, |vlan| vlan.tag));
        let ifindex = ports.first().map_or(0, |port| self.targets.get(port.0).ifindex);
        // For a port, the port itself, because its device is the target.
        let number = if port.is_port() { port } else { tables.number(port) };
        let (first, count, ifindex) = match (kind, bond) {
            (HopKind::Bond, Some((bond, at))) => (*at, tag, (bond.hash as u32) << 16 | ports.len() as u32),
            (HopKind::Vlan, _) => (ports.first().map_or(0, |port| port.0.into()), tag, ifindex),
            (HopKind::Local, _) => (tables.tunnels.families(), 0, ifindex),
            _ => (first, count, ifindex),
        };
        Hop { macs, kind, flags, port: number.0, mtu, first, count, ifindex }
    }
}

fn members<'a>(group: &Entry, tables: &'a Tables) -> impl Iterator<Item = &'a Entry> {
    tables.members(group).iter().filter_map(|id| tables.entries.get(*id as usize))
}

struct Memory {
    segments: Option<Segments>,
    /// Consequence of a refused segment.
    refused: &'static str,
}

impl Shared for Memory {
    fn segment(&mut self, n: usize) -> io::Result<OwnedFd> {
        let made = self.segments.as_mut().map_or(Err(io::ErrorKind::AddrInUse.into()), |segments| segments.make(n));
        made.inspect_err(|e| tracing::warn!("a table no longer fits the XDP program ({e}): {}", self.refused))
    }

    fn grace(&mut self) {
        if let Some(segments) = &self.segments {
            segments.grace();
        }
    }
}
