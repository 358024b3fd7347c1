//! Random packets for a configuration: from and to addresses in and beside its prefixes, and malformed ones.

pub mod build;
mod tunnel;

use crate::random::Random;
use crate::topology::{HOSTS, PORTS, host_mac, router_mac};
use build::{Ipv4, Ipv6, ethernet, tagged, transport4, transport6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
pub use tunnel::NETWORKS;
use tunnel::{Tunnel, Vxlan};

/// A frame that is sent to both routers. Its number, from 1, is unique.
#[derive(Clone, Debug)]
pub struct Sent {
    pub port: usize,
    pub number: u32,
    pub frame: Vec<u8>,
}

/// Precedes the number in a payload.
pub const MAGIC: [u8; 4] = *b"bWdT";

/// Returns the word of a line that follows `before`.
fn after<'a>(line: &'a str, before: &str) -> Option<&'a str> {
    line.split_once(before)?.1.split(' ').next()
}

/// A VLAN interface of a port, or a VLAN of a bridge that the port is a member of.
#[derive(Clone, Copy)]
struct Vlan {
    port: usize,
    protocol: u16,
    id: u16,
}

impl Vlan {
    /// Parses the line that creates one (`upper::vlan`, `upper::trunk`).
    fn parse(line: &str) -> Option<Self> {
        let after = |word| after(line, word);
        if let Some(port) = after("bridge vlan add dev p") {
            return Some(Self {
                port: port.parse::<usize>().ok()? - 1,
                protocol: 0x8100,
                id: after(" vid ")?.parse().ok()?,
            });
        }
        let port: usize = after("link add link p")?.parse().ok()?;
        let protocol = if after(" type vlan protocol ")? == "802.1ad" { 0x88a8 } else { 0x8100 };
        Some(Self { port: port - 1, protocol, id: after(" id ")?.parse().ok()? })
    }
}

/// Returns the ports that are members of bonds, each with the first member of its bond, whose MAC address the bond has
/// (`upper::bond`).
fn bonded(text: &str) -> Vec<(usize, usize)> {
    let mut members: Vec<(&str, usize)> = vec![];
    let mut bonded = vec![];
    for (port, bond) in text.lines().filter_map(|line| line.strip_prefix("r ip link set p")?.split_once(" master bo")) {
        let Ok(port) = port.parse::<usize>() else { continue };
        let first = members.iter().find(|(other, _)| *other == bond).map_or(port - 1, |(_, first)| *first);
        members.push((bond, first));
        bonded.push((port - 1, first));
    }
    bonded
}

/// The prefixes of a configuration, from which addresses are chosen.
pub struct Pool {
    v4: Vec<(u32, u8)>,
    v6: Vec<(u128, u8)>,
    /// The router's addresses that the configuration adds.
    owns: Vec<IpAddr>,
    vxlans: Vec<Vxlan>,
    tunnels: Vec<Tunnel>,
    vlans: Vec<Vlan>,
    bonded: Vec<(usize, usize)>,
    /// Set if a bridge filters VLANs.
    bridged: bool,
    unusual: bool,
    own: bool,
}

impl Pool {
    /// Collects the prefixes in the text of a configuration and those of the links. `unusual` adds packets that no host
    /// would send, `own` packets from the router's own addresses.
    pub fn new(text: &str, unusual: bool, own: bool) -> Self {
        let mut pool = Self {
            v4: vec![],
            v6: vec![],
            owns: vec![],
            vxlans: vec![],
            tunnels: tunnel::all(text),
            vlans: vec![],
            bonded: bonded(text),
            bridged: text.contains("vlan_filtering 1"),
            unusual,
            own,
        };
        pool.vlans = text.lines().filter_map(Vlan::parse).collect();
        pool.vxlans = text.lines().filter_map(Vxlan::parse).collect();
        for line in text.lines().filter_map(|line| line.split_once("address add ")) {
            pool.owns.extend(line.1.split([' ', '/']).next().and_then(|address| address.parse::<IpAddr>().ok()));
        }
        for word in text.split(|c: char| c.is_whitespace() || "{},/-;'".contains(c) && c != '/') {
            let (address, length) =
                word.split_once('/').map_or((word, None), |(address, length)| (address, length.parse().ok()));
            match address.parse() {
                Ok(IpAddr::V4(address)) => pool.v4.push((address.into(), length.unwrap_or(32).min(32))),
                Ok(IpAddr::V6(address)) => pool.v6.push((address.into(), length.unwrap_or(128).min(128))),
                Err(_) => {}
            }
        }
        for n in 1..=PORTS as u32 {
            pool.v4.push((0x0a00_0000 | n << 8, 24));
            pool.v6.push((0xfd00 << 112 | u128::from(n) << 96, 64));
        }
        pool
    }

    /// Returns an address in or beside a prefix.
    fn beside(random: &Random, base: u128, length: u8, bits: u8) -> u128 {
        let host = if length == bits { 0 } else { u128::MAX >> (128 - u32::from(bits - length)) };
        let noise = u128::from(random.next()) << 64 | u128::from(random.next());
        match random.below(8) {
            0 => base & !host,
            1 => base | host,
            2 => (base | host).wrapping_add(1),
            3 => (base & !host).wrapping_sub(1),
            4 => base,
            5 => (base & !host).wrapping_add(1 + noise % 6),
            _ => base & !host | noise & host,
        }
    }

    fn host4(random: &Random, port: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 0, port as u8 + 1, (2 + random.below(HOSTS)) as u8)
    }

    fn host6(random: &Random, port: usize) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, port as u16 + 1, 0, 0, 0, 0, 0, (2 + random.below(HOSTS)) as u16)
    }

    fn v4(&self, random: &Random) -> Ipv4Addr {
        let port = random.below(PORTS);
        match random.below(100) {
            0..70 => {
                let (base, length) = random.pick(&self.v4);
                Ipv4Addr::from(Self::beside(random, base.into(), length, 32) as u32)
            }
            70..85 => Self::host4(random, port),
            85..88 => Ipv4Addr::new(10, 0, port as u8 + 1, 1),
            88..90 => Ipv4Addr::new(10, 0, port as u8 + 1, 255),
            90..94 if self.unusual => random.pick(&[
                Ipv4Addr::BROADCAST,
                Ipv4Addr::UNSPECIFIED,
                Ipv4Addr::LOCALHOST,
                Ipv4Addr::new(127, 1, 2, 3),
                Ipv4Addr::new(0, 1, 2, 3),
                Ipv4Addr::new(224, 0, 0, 1),
                Ipv4Addr::new(239, 1, 2, 3),
                Ipv4Addr::new(240, 0, 0, 1),
                Ipv4Addr::new(169, 254, 1, 2),
                Ipv4Addr::new(100, 64, 0, 1),
            ]),
            _ => Ipv4Addr::from((random.next() as u32 % 0xe000_0000) | 0x0100_0000),
        }
    }

    fn v6(&self, random: &Random) -> Ipv6Addr {
        let port = random.below(PORTS);
        match random.below(100) {
            0..70 => {
                let (base, length) = random.pick(&self.v6);
                Self::beside(random, base, length, 128).into()
            }
            70..85 => Self::host6(random, port),
            85..88 => Ipv6Addr::new(0xfd00, port as u16 + 1, 0, 0, 0, 0, 0, 1),
            88..94 if self.unusual => random.pick(&[
                Ipv6Addr::UNSPECIFIED,
                Ipv6Addr::LOCALHOST,
                Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0xff01, 0, 0, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 0x1234),
                Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, port as u16 + 1, 2),
                Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0x9999),
                Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 1),
                Ipv4Addr::new(10, 0, 1, 2).to_ipv6_mapped(),
                Ipv4Addr::new(10, 0, 1, 2).to_ipv6_compatible(),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0x0a00, 0x0102),
                Ipv6Addr::new(0x2002, 0x0a00, 0x0102, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0xfd00, port as u16 + 1, 0, 0, 0, 0, 0, 0),
            ]),
            _ => (u128::from(random.next() >> 3) << 64 | 0x2 << 124 | u128::from(random.next())).into(),
        }
    }

    /// Returns whether an address is one of the router's.
    fn is_own(&self, address: IpAddr) -> bool {
        let configured = self.owns.contains(&address);
        configured
            || match address {
                IpAddr::V4(a) => a.octets()[..2] == [10, 0] && a.octets()[3] == 1,
                IpAddr::V6(a) => a.segments()[0] == 0xfd00 && a.segments()[2..] == [0, 0, 0, 0, 0, 1],
            }
    }

    /// Returns a random packet with the number.
    pub fn packet(&self, random: &Random, number: u32) -> Sent {
        let port = random.below(PORTS);
        let v6 = random.chance(47);
        let unusual = self.unusual && random.chance(45);
        let mut frame =
            if v6 { self.packet6(random, port, number, unusual) } else { self.packet4(random, port, number, unusual) };
        let own = self.bonded.iter().rfind(|(member, _)| *member == port).map_or(port, |(_, first)| *first);
        let macs = |random: &Random| {
            if !self.vxlans.is_empty() && random.chance(15) {
                // To a station of a VXLAN, or a host of another port, that a bridge may lead to.
                let [high, low] = (random.pick(&self.vxlans).number as u16).to_be_bytes();
                let station = [2, 0, (2 + random.below(HOSTS)) as u8, 4, high, low];
                let host = host_mac((port + 1) % PORTS, 2 + random.below(HOSTS));
                return [random.pick(&[station, station, host]), host_mac(port, 2 + random.below(HOSTS))];
            }
            if self.bridged && random.chance(40) {
                // To a host that a bridge may lead to.
                return [random.below(PORTS), port].map(|port| host_mac(port, 2 + random.below(HOSTS)));
            }
            let to = match random.below(if unusual { 30 } else { 1000 }) {
                0 => [0xff; 6],
                1 => [1, 0, 0x5e, 0, 0, 1],
                2 => [0x33, 0x33, 0, 0, 0, 1],
                3 => [2, 9, 9, 9, 9, 9],
                4 => router_mac((port + 1) % PORTS),
                _ => router_mac(own),
            };
            [to, host_mac(port, 2 + random.below(HOSTS))]
        };
        let [to, from] = macs(random);
        let mut ethertype = if v6 { 0x86dd } else { 0x800 };
        if unusual && random.chance(2) {
            ethertype = random.pick(&[0x86dd, 0x800, 0x88b5, 0x8847, 0x88cc, 0x0800 >> 4, 0x8864]);
        }
        frame = ethernet(to, from, ethertype, frame);
        if unusual {
            match random.below(60) {
                0 => frame = tagged(frame, 0x8100, random.pick(&[0, 1, 5, 0x2005, 0x6000, 4095])),
                1 => frame = tagged(tagged(frame, 0x8100, 5), 0x88a8, 7),
                2 => frame.truncate(14 + random.below(60)),
                3 => frame.extend(vec![0; random.below(40)]),
                4 => frame.extend(random.bytes(8)),
                5 => {
                    let at = 14 + random.below(frame.len() - 14).min(60);
                    // Ident and flow label stay: they identify the packet.
                    let known_by = if v6 { 15..18 } else { 18..20 };
                    if let Some(byte) = frame.get_mut(at).filter(|_| !known_by.contains(&at)) {
                        *byte = random.next() as u8;
                    }
                }
                _ => {}
            }
        }
        let vlans: Vec<_> = self.vlans.iter().filter(|vlan| vlan.port == own).collect();
        if !vlans.is_empty() && random.chance(60) && frame.len() >= 14 {
            let vlan = random.pick(&vlans);
            frame = tagged(frame, vlan.protocol, vlan.id | random.pick(&[0, 0, 0x6000, 0x1000]));
        }
        frame.truncate(1950);
        if !self.vxlans.is_empty() && random.chance(20) {
            frame = self.in_vxlan(random, port, number, &frame);
        } else if !self.tunnels.is_empty() && random.chance(35) {
            frame = self.in_tunnel(random, port, number, frame);
        }
        Sent { port, number, frame }
    }

    fn packet4(&self, random: &Random, port: usize, number: u32, unusual: bool) -> Vec<u8> {
        let dst = self.v4(random);
        let mut src = if random.chance(85) { Self::host4(random, port) } else { self.v4(random) };
        if !self.own && self.is_own(src.into()) {
            src = Self::host4(random, port);
        }
        let mut ip = Ipv4 {
            src,
            dst,
            ident: number as u16,
            ttl: random.pick(&[64, 64, 64, 64, 63, 255, 2, 1]),
            ..Ipv4::default()
        };
        ip.tos = random.pick(&[0, 0, 0, 0x10, 0x08, 0x04, 0xb8, 0x01, 0x03, 0xff]);
        ip.fragment = if random.chance(40) { 0x4000 } else { 0 };
        if unusual {
            match random.below(16) {
                0 => ip.ttl = 0,
                1 => ip.fragment |= random.pick(&[0x2000, 0x2000, 0x8000, 0xa000]),
                2 => ip.fragment = random.pick(&[1, 2, 185, 0x2001, 0x1fff, 0x2000 | 100, 0x4000 | 3]),
                3 | 4 => ip.options = build::options4(random),
                _ => {}
            }
        }
        let (protocol, payload) = transport4(random, &ip, self.size(random, 20), number, unusual);
        ip.protocol = protocol;
        let mut packet = ip.packet(&payload);
        if unusual {
            match random.below(24) {
                0 => packet[10] ^= 0x40,
                1 => build::set_length4(&mut packet, random),
                2 => {
                    build::resum4(&mut packet, |packet| packet[0] = random.pick(&[0x55, 0x65, 0x44, 0x40, 0x05, 0x4f]))
                }
                _ => {}
            }
        }
        packet
    }

    fn packet6(&self, random: &Random, port: usize, number: u32, unusual: bool) -> Vec<u8> {
        let dst = self.v6(random);
        let mut src = if random.chance(85) { Self::host6(random, port) } else { self.v6(random) };
        if !self.own && self.is_own(src.into()) {
            src = Self::host6(random, port);
        }
        let class = random.pick(&[0, 0, 0, 0x10, 0xb8, 3, 0xff]);
        let mut ip = Ipv6 {
            src,
            dst,
            class,
            label: number & 0xf_ffff,
            limit: random.pick(&[64, 64, 64, 64, 255, 2, 1]),
            extensions: vec![],
        };
        if unusual {
            match random.below(12) {
                0 => ip.limit = 0,
                1..5 => ip.extensions = build::extensions(random, number),
                _ => {}
            }
        }
        let (protocol, payload) = transport6(random, &ip, self.size(random, 40), number, unusual);
        let mut packet = ip.packet(protocol, &payload);
        if unusual {
            match random.below(40) {
                0 => packet[0] = random.pick(&[0x40, 0x50, 0x70, 0x00]),
                1 => packet[4..6].copy_from_slice(&random.pick(&[0u16, 1, 8, 39, 1400, 65535]).to_be_bytes()),
                _ => {}
            }
        }
        packet
    }

    /// Returns a payload size for a packet with an IP header of `header` bytes and a transport header; often one near
    /// an MTU.
    fn size(&self, random: &Random, header: usize) -> usize {
        if random.chance(90) {
            return random.below(60);
        }
        let mtu = random.pick(&[1280, 1281, 1300, 1400, 1492, 1499, 1500, 1500, 1504, 1518, 600]);
        (mtu + 2 - random.below(5)).saturating_sub(header + random.pick(&[8, 8, 8, 20]))
    }
}
