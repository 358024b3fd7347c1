//! Packets that hosts send through the tunnels of a configuration, right and wrong.

use super::build::{self, Ipv4, Ipv6, ethernet};
use super::{Pool, after};
use crate::compare::outermost;
use crate::random::Random;
use crate::topology::{HOSTS, PORTS, host_mac, router_mac};
use bywash_wire::checksum::{Sum, checksum, pseudo4, pseudo6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// UDP port of VXLANs of several networks.
pub const NETWORKS: u16 = 4791;

/// A VXLAN of a configuration, or a network of one.
#[derive(Clone, Copy)]
pub struct Vxlan {
    id: u32,
    /// Number in the MAC addresses of its stations.
    pub number: u32,
    /// Set for a VLAN of a bridge, whose address is that of a port.
    network: bool,
    /// Unspecified if it has no address of its own.
    local: IpAddr,
    port: u16,
    learns: bool,
}

impl Vxlan {
    /// Parses the line that creates one (`upper::vxlan`, `upper::external`, `upper::networks`).
    pub fn parse(line: &str) -> Option<Self> {
        let after = |word| after(line, word);
        if let Some(id) = after(" tunnel_info id ") {
            let (id, number) = (id.parse().ok()?, after(" dev vn")?.parse().ok()?);
            return Some(Self { id, number, network: true, local: nobody(false), port: NETWORKS, learns: false });
        }
        // The number of an external one is in its name.
        let external = line.contains(" type vxlan external ");
        let id = after(if external { " link add vx" } else { " type vxlan id " })?.parse().ok()?;
        let end = |word| after(word).map_or(Some(None), |word| Some(Some(word.parse::<IpAddr>().ok()?)));
        let over6 = end(" remote ")?.is_some_and(|remote| remote.is_ipv6());
        let local = end(" local ")?.unwrap_or_else(|| nobody(over6));
        let local = if external { nobody(local.is_ipv6()) } else { local };
        let (port, learns) = (after(" dstport ")?.parse().ok()?, !line.contains("nolearning"));
        Some(Self { id, number: id, network: false, local, port, learns })
    }
}

/// Another tunnel of a configuration (`config::tunnel`).
#[derive(Clone, Copy)]
pub struct Tunnel {
    /// Set for GRE.
    gre: bool,
    v4: bool,
    v6: bool,
    local: IpAddr,
    remote: IpAddr,
    /// The key of packets to the router.
    key: Option<u32>,
}

/// Returns the tunnels in the text of a configuration, as their last lines describe them.
pub fn all(text: &str) -> Vec<Tunnel> {
    let mut named: Vec<(&str, Tunnel)> = vec![];
    for line in text.lines() {
        let words = ["r ip link add tu", "r ip link set tu"].into_iter().find_map(|start| line.strip_prefix(start));
        let Some((name, properties)) = words.and_then(|words| words.split_once(" type ")) else { continue };
        let before = named.iter().position(|(other, _)| *other == name).map(|at| named.remove(at).1);
        let external = properties.ends_with(" external");
        // The number of an external one is that of most of its routes' headers.
        let numbered = |of: Tunnel| Tunnel { key: if external { name.parse().ok() } else { of.key }, ..of };
        named.extend(Tunnel::parse(properties, before).map(|tunnel| (name, numbered(tunnel))));
    }
    named.into_iter().map(|(_, tunnel)| tunnel).collect()
}

impl Tunnel {
    /// Parses a kind and properties, which change those of the tunnel `before`.
    fn parse(line: &str, before: Option<Self>) -> Option<Self> {
        let word = |before: &str| line.rsplit_once(before).and_then(|(_, after)| after.split(' ').next());
        let kind = line.split(' ').next()?;
        let (over6, mode) = (kind.starts_with("ip6"), word(" mode "));
        let end = |name: &str, before: Option<IpAddr>| match word(name) {
            Some(word) => word.parse().ok(),
            None => before.or(Some(nobody(over6))),
        };
        let (v4, v6) = match (kind, mode) {
            ("ipip", _) | ("sit", Some("ipip")) | ("ip6tnl", Some("ipip6")) => (true, false),
            ("sit", None | Some("ip6ip")) | ("ip6tnl", Some("ip6ip6")) => (false, true),
            _ => (true, true),
        };
        let key = word(" key ").or(word(" ikey ")).and_then(|word| word.parse().ok());
        Some(Self {
            gre: kind.ends_with("gre"),
            v4,
            v6,
            local: end(" local ", before.map(|before| before.local))?,
            remote: end(" remote ", before.map(|before| before.remote))?,
            key: key.or(before.and_then(|before| before.key)),
        })
    }
}

/// Returns the unspecified address.
fn nobody(v6: bool) -> IpAddr {
    if v6 { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
}

/// Returns a tunnel's own address or, without one, that of the router on the link `net`.
fn own(local: IpAddr, net: u8) -> IpAddr {
    match local {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::new(10, 0, net, 1).into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::new(0xfd00, net.into(), 0, 0, 0, 0, 0, 1).into(),
        local => local,
    }
}

/// Returns the IP packet with a payload.
type Wrap = dyn Fn(&[u8]) -> Vec<u8>;

/// Returns the EtherType of packets between two addresses, and a function that makes such a packet, sometimes one that
/// no tunnel takes.
fn outer(random: &Random, src: IpAddr, dst: IpAddr, protocol: u8, number: u32) -> (u16, Box<Wrap>) {
    let class = random.pick(&[0, 0, 0, 1, 2, 3, 0xb8]);
    let ttl = if random.chance(95) { 64 } else { random.pick(&[1, 2, 255]) };
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let rare = random.pick(&[0x2000, 0x2001, 3, 0x8000]);
            let fragment = if random.chance(96) { random.pick(&[0, 0x4000]) } else { rare };
            let options = if random.chance(3) { build::options4(random) } else { vec![] };
            let ip = Ipv4 { src, dst, tos: class, ident: number as u16, fragment, ttl, protocol, options };
            (0x800, Box::new(move |payload| ip.packet(payload)))
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let limit = vec![0, 4, 1, random.pick(&[0, 1, 4]), 1, 0, 0];
            let extensions = match random.below(100) {
                0..3 => build::extensions(random, number),
                3..30 if protocol != 17 => vec![(60, limit)],
                _ => vec![],
            };
            let ip = Ipv6 { src, dst, class, label: number & 0xf_ffff, limit: ttl, extensions };
            (0x86dd, Box::new(move |payload| ip.packet(protocol, payload)))
        }
        _ => unreachable!("addresses of one family"),
    }
}

/// Returns the frame from a host on the link of `port` to the router.
fn framed(random: &Random, port: usize, kind: u16, packet: Vec<u8>) -> Vec<u8> {
    let mut frame = ethernet(router_mac(port), host_mac(port, 2 + random.below(HOSTS)), kind, packet);
    frame.truncate(1950);
    frame
}

impl Pool {
    /// Returns a frame within a VXLAN's packet to the router, right or wrong.
    pub(super) fn in_vxlan(&self, random: &Random, port: usize, number: u32, frame: &[u8]) -> Vec<u8> {
        let Vxlan { id, number: of, network, local, port: to, learns } = random.pick(&self.vxlans);
        let [high, low] = (of as u16).to_be_bytes();
        let host = (2 + random.below(HOSTS)) as u8;
        let mut inner = frame.to_vec();
        if inner.len() >= 14 {
            // Never from a port's host, which would move to the VXLAN. When a station moves, the kernel may send to its
            // new end by the route to the old one (vxlan_snoop, dst_cache).
            inner[6..12].copy_from_slice(&[2, 0, host, 4, high, low]);
            match random.below(20) {
                0 => {}
                // To a host that may be behind another member of the VXLAN's bridge.
                1..=6 => inner[..6].copy_from_slice(&host_mac(random.below(PORTS), 2 + random.below(HOSTS))),
                _ if network => inner[..6].copy_from_slice(&router_mac(random.below(PORTS))),
                _ => inner[..6].copy_from_slice(&[2, 0, 0, 3, high, low]),
            }
        }
        let vni = if random.chance(97) { id } else { id + 1 };
        let word: u32 = if random.chance(97) { 0x0800_0000 } else { random.pick(&[0, 0x0800_0001, 0x8800_0000]) };
        let vxlan = [&word.to_be_bytes()[..], &(vni << 8).to_be_bytes(), &inner].concat();
        let len = (8 + vxlan.len()) as u16;
        let mut udp = [&[0xc0, host][..], &to.to_be_bytes(), &len.to_be_bytes(), &[0, 0], &vxlan].concat();
        let local = own(local, if learns { 1 } else { 1 + random.below(PORTS) as u8 });
        // A station that is learned sends by its own end: moves take effect at different times.
        let src: IpAddr = match local {
            IpAddr::V4(dst) if learns => Ipv4Addr::new(10, 0, dst.octets()[2], host).into(),
            IpAddr::V4(_) => Self::host4(random, port).into(),
            IpAddr::V6(dst) if learns => Ipv6Addr::new(0xfd00, dst.segments()[1], 0, 0, 0, 0, 0, host.into()).into(),
            IpAddr::V6(_) => Self::host6(random, port).into(),
        };
        let (kind, outer) = outer(random, src, local, 17, number);
        if random.chance(60) {
            let packet = outer(&udp);
            let pseudo = match local {
                IpAddr::V4(_) => pseudo4(packet.first_chunk().expect("a header"), 17, len),
                IpAddr::V6(_) => pseudo6(packet.first_chunk().expect("a header"), 17, len.into()),
            };
            let wrong = u16::from(random.chance(4));
            let sum = (pseudo + Sum::of(&udp)).checksum() ^ wrong;
            udp[6..8].copy_from_slice(&sum.to_be_bytes());
        }
        framed(random, port, kind, outer(&udp))
    }

    /// Returns a frame's packet within a tunnel's packet to the router, right or wrong, or the frame if no tunnel
    /// carries such packets.
    pub(super) fn in_tunnel(&self, random: &Random, port: usize, number: u32, frame: Vec<u8>) -> Vec<u8> {
        let Some((at, version)) = outermost(&frame) else { return frame };
        let any = random.chance(5);
        let carries = |tunnel: &&Tunnel| any || if version == 4 { tunnel.v4 } else { tunnel.v6 };
        let tunnels: Vec<Tunnel> = self.tunnels.iter().filter(carries).copied().collect();
        if tunnels.is_empty() {
            return frame;
        }
        let Tunnel { gre, local, remote, key, .. } = random.pick(&tunnels);
        // The kernel chooses the address on the remote's link.
        let net = match remote {
            IpAddr::V4(remote) if random.chance(90) => remote.octets()[2],
            _ => 1 + random.below(PORTS) as u8,
        };
        let local = own(local, net);
        let other: IpAddr = match local {
            IpAddr::V4(_) => Self::host4(random, port).into(),
            IpAddr::V6(_) => Self::host6(random, port).into(),
        };
        // A tunnel with headers from routes has any remote, and any key or none.
        let (remote, key) = match remote.is_unspecified() {
            true => (other, key.filter(|_| random.chance(60))),
            false => (remote, key),
        };
        let (src, dst) = match random.below(40) {
            0 => (other, local),
            1 => (remote, other),
            _ => (remote, local),
        };
        let inner = &frame[at..];
        let (protocol, payload) = match version {
            _ if gre => (47, in_gre(random, key, if version == 4 { 0x800 } else { 0x86dd }, number, inner)),
            4 => (4, inner.to_vec()),
            _ => (41, inner.to_vec()),
        };
        let (kind, outer) = outer(random, src, dst, protocol, number);
        framed(random, port, kind, outer(&payload))
    }
}

/// Returns a packet behind a GRE header (RFC 2784, RFC 2890), sometimes one of another tunnel or none at all.
fn in_gre(random: &Random, key: Option<u32>, ethertype: u16, number: u32, inner: &[u8]) -> Vec<u8> {
    const SUM: u16 = 0x8000;
    const KEY: u16 = 0x2000;
    const SEQUENCE: u16 = 0x1000;
    let (mut key, mut ethertype, mut flags) = (key, ethertype, 0);
    let mut wrong = 0;
    match random.below(40) {
        0 => key = if key.is_some() { None } else { Some(1) },
        1 => key = Some(random.pick(&[0, 1, 2, 3, 7])),
        2 => flags |= SUM,
        3 => (flags, wrong) = (SUM, 1),
        4 => flags |= SEQUENCE,
        // A routing header, version 1, and a reserved bit.
        5 => flags |= random.pick(&[0x4000, 1, 0x400, 8]),
        6 => ethertype = random.pick(&[0x6558, 0x8847, 0x88be, 0x806, 0x800, 0x86dd]),
        _ => {}
    }
    if key.is_some() {
        flags |= KEY;
    }
    let mut gre = [flags.to_be_bytes(), ethertype.to_be_bytes()].concat();
    if flags & SUM != 0 {
        gre.extend([0; 4]);
    }
    gre.extend(key.iter().flat_map(|key| key.to_be_bytes()));
    if flags & SEQUENCE != 0 {
        gre.extend(number.to_be_bytes());
    }
    gre.extend(inner);
    if flags & SUM != 0 {
        let sum = checksum(&gre) ^ wrong;
        gre[4..6].copy_from_slice(&sum.to_be_bytes());
    }
    gre
}
