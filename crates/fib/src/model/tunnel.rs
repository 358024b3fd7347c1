//! Tunnels, and the outer headers of their packets.

use super::Families;
#[cfg(doc)]
use super::NextHop;
use serde::Serialize;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Encapsulation of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Encapsulation {
    /// IPv4 in IPv4 (RFC 2003), kind `ipip`.
    Ipip,
    /// IPv6 in IPv4 (RFC 4213), kind `sit`.
    Sit,
    /// IPv4, IPv6 or both in IPv6 (RFC 2473), kind `ip6tnl`.
    Ip6tnl,
    /// IPv4 or IPv6 in GRE (RFC 2784), perhaps with a key (RFC 2890), kinds `gre` and `ip6gre`.
    Gre,
    /// Ethernet in GRE, kinds `gretap` and `ip6gretap`.
    Gretap,
    /// Ethernet in UDP (RFC 7348), kind `vxlan`.
    Vxlan,
}

/// Properties of a VXLAN interface (IFLA_VXLAN_*, linux/if_link.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Vxlan {
    /// Network identifier.
    pub vni: u32,
    /// Destination port of its packets.
    pub port: u16,
    /// Source ports of its packets: the first, and one past the last; both 0 for the host's range
    /// (`net.ipv4.ip_local_port_range`).
    pub sources: [u16; 2],
    /// Set if its packets have a UDP checksum.
    pub checksum: bool,
    /// Set if it receives packets over IPv6 without a UDP checksum.
    pub unsummed6: bool,
    /// Set if it learns stations from received packets.
    pub learns: bool,
    /// Set if it receives only the packets of networks that it has been given one by one (`vnifilter`).
    pub filters: bool,
    /// Time in seconds after which it forgets a station that it has not seen; 0 if it does not.
    pub ageing: u32,
    /// Kernel index of the interface by which it sends to groups, and whose VRF it belongs to; 0 if there is none.
    pub link: u32,
}

/// Properties of a tunnel (IFLA_IPTUN_*, IFLA_GRE_*, linux/if_tunnel.h; IFLA_VXLAN_*, linux/if_link.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Tunnel {
    /// Encapsulation.
    pub encapsulation: Encapsulation,
    /// Families of the inner packets that it carries.
    pub carries: Families,
    /// The tunnel's own address; unspecified if it takes packets to any address of the host.
    pub local: IpAddr,
    /// Address of its other end, of the same family; unspecified if it has several.
    pub remote: IpAddr,
    /// Kernel index of the only interface by which its packets come and leave; 0 if it is bound to none.
    pub link: u32,
    /// Keys of received and of sent packets, for GRE and Ethernet in it.
    pub keys: [Option<u32>; 2],
    /// Flags that are set if received and sent packets have a checksum, for GRE and Ethernet in it.
    pub summed: [bool; 2],
    /// TTL of its packets; 0 for that of the inner packets or, for VXLAN, that of the host's own packets.
    pub ttl: u8,
    /// TOS or traffic class of its packets; with bit 0 set, that of the inner packets.
    pub tos: u8,
    /// Set if all its packets have the DF bit (`pmtudisc`, `df set`); if not, packets inherit it from inner IPv4
    /// packets, for kinds `ipip`, `gre` and `gretap`. Does not concern tunnels over IPv6.
    pub dont_fragment: bool,
    /// Encapsulation limit that its packets carry (RFC 2473 4.1.1), for kinds `ip6tnl`, `ip6gre` and `ip6gretap`;
    /// `None` if they carry none.
    pub limit: Option<u8>,
    /// Properties of its own, for VXLAN.
    pub vxlan: Option<Vxlan>,
    /// Set if it takes the headers of its packets from their routes ([`NextHop::outer`]), and receives those with any
    /// addresses and keys, or of all networks (`external`). A VXLAN interface on a bridge that filters VLANs takes only
    /// the VNI from elsewhere: from the VLAN.
    pub external: bool,
    /// Set if no other property decides about its packets, and it has no XDP program.
    pub plain: bool,
}

impl Tunnel {
    /// Returns a tunnel between two addresses of one family, with the families that its encapsulation always carries
    /// and no other property.
    pub const fn between(encapsulation: Encapsulation, local: IpAddr, remote: IpAddr) -> Self {
        let carries = match encapsulation {
            Encapsulation::Ipip => Families::V4,
            Encapsulation::Sit => Families::V6,
            Encapsulation::Ip6tnl | Encapsulation::Gre | Encapsulation::Gretap | Encapsulation::Vxlan => Families::BOTH,
        };
        Self {
            encapsulation,
            carries,
            local,
            remote,
            link: 0,
            keys: [None; 2],
            summed: [false; 2],
            ttl: 0,
            tos: 0,
            dont_fragment: false,
            limit: None,
            vxlan: None,
            external: false,
            plain: true,
        }
    }

    /// Returns a tunnel whose ends are not known.
    pub const fn without_ends(encapsulation: Encapsulation, v6: bool) -> Self {
        let any = if v6 { IpAddr::V6(Ipv6Addr::UNSPECIFIED) } else { IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
        Self::between(encapsulation, any, any)
    }

    /// Returns the tunnel as one that takes headers from routes. Packets with these do not have its own addresses, and
    /// are taken at all of the host's; its other properties do not apply to them either.
    pub const fn with_headers_of_routes(self) -> Self {
        let Self { encapsulation, carries, vxlan, plain, .. } = self;
        Self { carries, vxlan, external: true, plain, ..Self::without_ends(encapsulation, self.is_over_v6()) }
    }

    /// Returns the tunnel as the network with this VNI in a VXLAN interface of several networks ([`Self::external`]) on
    /// a bridge. The bridge gives a frame the VNI and no other header, not even the DF bit, which is then never set
    /// (vxlan_xmit_one); the rest is as the interface has it.
    pub fn network(self, vni: u32) -> Self {
        let vxlan = self.vxlan.map(|of| Vxlan { vni, ..of });
        Self { vxlan, external: false, dont_fragment: false, ..self }
    }

    /// Returns the name of its kind of interface.
    pub const fn kind(&self) -> &'static str {
        match self.encapsulation {
            Encapsulation::Ipip => "ipip",
            Encapsulation::Sit => "sit",
            Encapsulation::Ip6tnl => "ip6tnl",
            Encapsulation::Gre if self.is_over_v6() => "ip6gre",
            Encapsulation::Gre => "gre",
            Encapsulation::Gretap if self.is_over_v6() => "ip6gretap",
            Encapsulation::Gretap => "gretap",
            Encapsulation::Vxlan => "vxlan",
        }
    }

    /// Returns whether it carries Ethernet frames: its interface has a MAC address, resolves neighbours, and may be a
    /// member of a bridge.
    pub const fn is_ethernet(&self) -> bool {
        matches!(self.encapsulation, Encapsulation::Gretap | Encapsulation::Vxlan)
    }

    /// Returns whether its packets inherit the DF bit from inner IPv4 packets: with kinds `ipip`, `gre` and `gretap`,
    /// but not with headers from routes (ip_tunnel_xmit, ip_md_tunnel_xmit).
    pub const fn inherits_dont_fragment(&self) -> bool {
        let inherits = matches!(self.encapsulation, Encapsulation::Ipip | Encapsulation::Gre | Encapsulation::Gretap);
        inherits && !self.external
    }

    /// Returns whether its packets are IPv6 packets.
    pub const fn is_over_v6(&self) -> bool {
        self.local.is_ipv6()
    }

    /// Returns the family of its packets.
    pub const fn family(&self) -> Families {
        if self.is_over_v6() { Families::V6 } else { Families::V4 }
    }

    /// Returns the IP protocol number of its packets whose inner packet is IPv6 (`v6`) or IPv4.
    pub const fn protocol(&self, v6: bool) -> u8 {
        match self.encapsulation {
            Encapsulation::Ipip | Encapsulation::Sit | Encapsulation::Ip6tnl => {
                if v6 {
                    41
                } else {
                    4
                }
            }
            Encapsulation::Gre | Encapsulation::Gretap => 47,
            Encapsulation::Vxlan => 17,
        }
    }

    /// Returns the IP protocol numbers of its packets.
    pub fn protocols(&self) -> impl Iterator<Item = u8> + use<> {
        let Self { carries, .. } = *self;
        let [v4, v6] = [false, true].map(|v6| self.protocol(v6));
        let all = [(carries.v4, v4), (carries.v6 && (v4 != v6 || !carries.v4), v6)];
        all.into_iter().filter(|(carried, _)| *carried).map(|(_, protocol)| protocol)
    }

    /// Returns whether the TOS means the same for tunnels of all kinds. An odd TOS stands for that of the inner
    /// packets, except that with kinds `sit` and `vxlan` only 1 does: there, other odd values stand for themselves.
    pub const fn is_tos_unambiguous(&self) -> bool {
        self.tos == 1 || self.tos & 1 == 0
    }
}

/// Outer headers that a route gives to packets (`encap ip`, LWTUNNEL_IP_*, linux/lwtunnel.h), in a tunnel that takes
/// them from routes ([`Tunnel::external`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Outer {
    /// Address of the other end.
    pub remote: IpAddr,
    /// Source address, of the same family; unspecified if the kernel chooses it.
    pub source: IpAddr,
    /// Fields of the headers.
    pub header: OuterHeader,
}

/// Fields of a tunnel's outer headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct OuterHeader {
    /// Network identifier of a VXLAN, or key of GRE.
    pub id: u32,
    /// Set if GRE packets have the key (`key`).
    pub keyed: bool,
    /// TTL or hop limit; 0 for that of the inner packets or, for VXLAN, that of the host's own packets.
    pub ttl: u8,
    /// TOS or traffic class; its ECN bits depend on the packet within.
    pub tos: u8,
    /// Set if VXLAN packets have a UDP checksum, or GRE packets one of their own.
    pub checksum: bool,
    /// Set if the packets have the DF bit.
    pub dont_fragment: bool,
}

impl fmt::Display for Outer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OuterHeader { id, keyed, ttl, tos, checksum, dont_fragment } = self.header;
        write!(f, "ip{} id {id}", if self.remote.is_ipv6() { "6" } else { "" })?;
        if !self.source.is_unspecified() {
            write!(f, " src {}", self.source)?;
        }
        write!(f, " dst {} ttl {ttl} tos {tos}", self.remote)?;
        let flags = [(keyed, " key"), (checksum, " csum"), (dont_fragment, " df")];
        flags.into_iter().filter(|(set, _)| *set).try_for_each(|(_, name)| f.write_str(name))
    }
}
