//! Tunnels through which the router sends all packets, to a remote behind each port, or receives them.

use super::PORTS;
use crate::lab::vxlan::{self, VNI, VXLAN_PORT};
use anyhow::Context as _;
use bywash_engine::PortId;
use bywash_fib::model::{Encapsulation, Tunnel, Vxlan};
use bywash_fib::{Net, Table4, Table6};
use bywash_router::tables::{Entry, Kind, PortInfo};
use bywash_router::tunnel::{Path, Paths, Stations, TunnelInfo, Tunnels, ends_of};
use bywash_router::vlan::FIRST;
use bywash_wire::build::Packet;
use bywash_wire::ethernet::{HEADER_LEN, MacAddr, ethertype};
use bywash_wire::{ipv4, proto};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Longest packet that a tunnel carries: with 70 bytes around it, those of a VXLAN over IPv6, it fits an MTU of 1500.
const MTU: u32 = 1430;
/// Size on the wire of a frame with such a packet, FCS included.
pub const SIZE: usize = MTU as usize + HEADER_LEN + 4;
/// Address of the router. Those of the other ends follow it, in the order of the ports.
const LOCAL4: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const LOCAL6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const MAC: [u8; 6] = [2, 0, 0, 0, 9, 1];

/// Returns a VXLAN over IPv4.
pub fn vxlan() -> Tunnel {
    between(LOCAL4.into(), Ipv4Addr::UNSPECIFIED.into())
}

/// Returns a VXLAN over IPv6.
pub fn vxlan6() -> Tunnel {
    between(LOCAL6.into(), Ipv6Addr::UNSPECIFIED.into())
}

/// Returns a GRE tunnel over IPv4, to the end behind the first port.
pub fn gre() -> Tunnel {
    Tunnel::between(Encapsulation::Gre, LOCAL4.into(), end_behind(LOCAL4.into(), 0))
}

/// Returns the address of the other end behind a port.
fn end_behind(local: IpAddr, port: u16) -> IpAddr {
    match local {
        IpAddr::V4(local) => Ipv4Addr::from_bits(local.to_bits() + 1 + u32::from(port)).into(),
        IpAddr::V6(local) => Ipv6Addr::from_bits(local.to_bits() + 1 + u128::from(port)).into(),
    }
}

fn between(local: IpAddr, remote: IpAddr) -> Tunnel {
    let vxlan = Vxlan { vni: VNI, port: VXLAN_PORT, checksum: true, ..Vxlan::default() };
    Tunnel { vxlan: Some(vxlan), ..Tunnel::between(Encapsulation::Vxlan, local, remote) }
}

/// Returns a packet that brings the router this frame by a tunnel over IPv4, from the other end behind the first port.
pub fn around(tunnel: &Tunnel, frame: &[u8]) -> anyhow::Result<Vec<u8>> {
    let (to, rest) = frame.split_first_chunk().context("a destination")?;
    let (from, rest) = rest.split_first_chunk().context("a source")?;
    let remote = Ipv4Addr::from_bits(LOCAL4.to_bits() + 1);
    if tunnel.vxlan.is_some() {
        let payload = vxlan::payload(&[&MAC, &from[..], rest].concat());
        let packet = Packet::udp((remote, 50_000).into(), (LOCAL4, VXLAN_PORT).into());
        return Ok(packet.macs(MacAddr(*from), MacAddr(*to)).payload(&payload).build()?);
    }
    let (kind, packet) = rest.split_first_chunk::<2>().context("a type")?;
    // No flags, version 0, and the type of the packet (RFC 2784 2).
    let gre = [&[0, 0], &kind[..], packet].concat();
    let [high, low] = (ipv4::HEADER_LEN as u16 + gre.len() as u16).to_be_bytes();
    let mut head = [0x45, 0, high, low, 0, 0, 0, 0, 64, proto::GRE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    head[12..16].copy_from_slice(&remote.octets());
    head[16..].copy_from_slice(&LOCAL4.octets());
    ipv4::fill_checksum(&mut head);
    Ok([&to[..], from, &ethertype::IPV4.to_be_bytes(), &head, &gre].concat())
}

/// Adds next hops through a tunnel to the other end behind each port, in the order of the ports, and the routes to
/// these ends. The entries from 1 on must be the next hops out of the ports.
pub fn add(entries: &mut Vec<Entry>, tables: (&mut Table4, &mut Table6), tunnel: Tunnel) -> anyhow::Result<Tunnels> {
    let (mut paths, mut all, (table4, table6)) = (vec![], vec![], tables);
    let vni: Vec<u32> = tunnel.vxlan.map(|vxlan| vxlan.vni).into_iter().collect();
    let mut lead = |to: IpAddr, hop: u32| {
        let added = match to {
            IpAddr::V4(to) => Net::new(to.to_bits(), 32).map(|net| _ = table4.insert(net, hop)),
            IpAddr::V6(to) => Net::new(to.to_bits(), 128).map(|net| _ = table6.insert(net, hop)),
        };
        added.context("a host route")
    };
    for port in 0..PORTS {
        let remote = end_behind(tunnel.local, port);
        lead(remote, 1 + u32::from(port))?;
        // A VXLAN has the ends of all ports; other tunnels have one each.
        let (number, of) = if tunnel.vxlan.is_some() { (0, tunnel.remote) } else { (port, remote) };
        let id = PortId(FIRST + number);
        if number == port {
            all.push(TunnelInfo {
                id,
                tunnel: Tunnel { remote: of, ..tunnel },
                ends: ends_of(&Tunnel { remote: of, ..tunnel }, &[tunnel.local], &vni),
                info: PortInfo { index: 9 + u32::from(number), mac: MAC, ..PortInfo::default() },
                mac: MAC,
                ageing: None,
                stations: Arc::new(Stations::default()),
                members: vec![],
                longest: 0,
                masqueraded: false,
                tracked: None,
            });
        }
        paths.push(Path { ends: (tunnel.local, remote, 0), source: tunnel.local, mtu: 1500, ttl: 64, via: None });
        let macs = [2, 0, 0, 0, 8, port as u8, MAC[0], MAC[1], MAC[2], MAC[3], MAC[4], MAC[5]];
        entries.push(Entry::of_tunnel(id, MTU, macs, port.into(), None));
    }
    lead(tunnel.local, entries.len() as u32)?;
    entries.push(Entry::verdict(Kind::Local));
    let paths = Paths { all: paths, sources: [32768, 60999], labels: None, limited: true };
    Ok(Tunnels::new(all, paths, vec![], false))
}
