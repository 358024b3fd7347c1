//! A flow, and its packets at each place where the kernel's rules see them.
//!
//! These are the packets that a dataplane beside the kernel could forward: packets of an established connection, or the
//! outer packets of a tunnel. They are whole, with headers in their usual form (no IP options, no extension headers);
//! TCP packets have ACK, but not SYN, FIN or RST. Their checksums are right: connection tracking treats a packet with a
//! wrong checksum as one of no connection (nf_conntrack_checksum), so a dataplane leaves a packet to the kernel unless
//! it or the device has found the checksum right.

use super::expression::fib;
use super::octets::{self, Octet, Of, Why, known, unknown};
use super::{ct, meta};
use std::cmp::Ordering;
use std::net::IpAddr;

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Kernel index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Set if packets may have a mark when they are received: a veth whose peer is in the same network namespace leaves
    /// them the mark of their sender (SO_MARK), which XDP does not see, and its socket.
    pub marked: bool,
    /// Interfaces below it, by kernel index and name: its packets pass their ingress and egress hooks, too.
    pub below: Vec<(u32, String)>,
}

/// Addresses and ports of a packet; `None` if not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuple {
    /// Source address.
    pub src: Option<IpAddr>,
    /// Destination address.
    pub dst: Option<IpAddr>,
    /// Source port.
    pub src_port: Option<u16>,
    /// Destination port.
    pub dst_port: Option<u16>,
}

impl Tuple {
    fn reversed(self) -> Self {
        let Self { src, dst, src_port, dst_port } = self;
        Self { src: dst, dst: src, src_port: dst_port, dst_port: src_port }
    }
}

/// Course of packets through the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Course {
    /// Received and sent again.
    #[default]
    Forwarded,
    /// Received for the host itself.
    Received,
    /// Sent by the host itself.
    Sent,
}

/// Connection of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// The connection is established.
    #[default]
    Established,
    /// The connection is new, established, or expected by another one.
    Any,
    /// The packets are ICMP errors about packets of another connection.
    Related,
    /// The packets belong to no connection that connection tracking knows.
    Invalid,
}

/// Packets of one direction of an established connection, or of several with what they have in common; or packets that
/// the host itself receives or sends, without translation. Fields that are `None` are not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Set for IPv6, otherwise IPv4.
    pub v6: bool,
    /// Set if the packets may have destination options of IPv6 in front of the header of `protocol`.
    pub options6: bool,
    /// Type and code, if the protocol is ICMP or ICMPv6.
    pub icmp: [u8; 2],
    /// IP protocol number.
    pub protocol: u8,
    /// Course of the packets.
    pub course: Course,
    /// Their connection.
    pub state: State,
    /// Interface that receives the packets.
    pub input: Option<Interface>,
    /// Interface that sends them.
    pub output: Option<Interface>,
    /// Addresses and ports of the connection's first packet, as it was received.
    pub original: Tuple,
    /// Addresses and ports of a reply, as it is received: translation makes it differ from the reverse of `original`.
    pub reply: Tuple,
    /// Set if the packets are replies.
    pub replies: Option<bool>,
    /// Status bits of the connection (IPS_*).
    pub status: Option<u32>,
    /// Mark of the connection.
    pub mark: Option<u32>,
    /// Set if packets may change the mark of the connection, so that it is none of the flow's properties.
    pub mark_changes: bool,
    /// Zone of the connection.
    pub zone: Option<u16>,
    /// Mark of the packets before any rule of nf_tables: filters of traffic control, BPF programs and rules of legacy
    /// iptables set it, too.
    pub skb_mark: Option<u32>,
    /// Set if the route to the untranslated source leads only out of the interface that receives the packets. It has
    /// to be determined again when routes change.
    pub returns: bool,
}

/// A hook that packets pass, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// Received by a device: NF_NETDEV_INGRESS, and NF_INET_INGRESS.
    Ingress,
    /// Before routing.
    Prerouting,
    /// Received for the host itself.
    Input,
    /// Between routing and sending, of forwarded packets.
    Forward,
    /// Sent by the host itself.
    Output,
    /// After routing.
    Postrouting,
    /// About to be sent by a device.
    Egress,
}

impl Hook {
    /// Returns nft's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Prerouting => "prerouting",
            Self::Input => "input",
            Self::Forward => "forward",
            Self::Output => "output",
            Self::Postrouting => "postrouting",
            Self::Egress => "egress",
        }
    }
}

// linux/netfilter_ipv4.h, enum nf_ip_hook_priorities
const NF_IP_PRI_CONNTRACK: i32 = -200;
const NF_IP_PRI_NAT_DST: i32 = -100;
const NF_IP_PRI_NAT_SRC: i32 = 100;

/// Bit of `ct state` of packets without a connection (NF_CT_STATE_INVALID_BIT).
const STATE_INVALID: u32 = 1;
/// Bit of `ct state` of packets of an established connection: NF_CT_STATE_BIT(IP_CT_ESTABLISHED).
const STATE_ESTABLISHED: u32 = 2;
/// Bits of `ct state` of packets of an expected and of a new connection: NF_CT_STATE_BIT(IP_CT_RELATED), (IP_CT_NEW).
const STATE_RELATED: u32 = 4;
const STATE_NEW: u32 = 8;
/// Bit of `ct status` that a connection gets if it lasts, and keeps.
const IPS_ASSURED: u32 = 1 << 2;
/// Bits of `ct status` that come and go with the kernel's flow tables (IPS_OFFLOAD, IPS_HW_OFFLOAD), and that programs
/// can set (IPS_FIXED_TIMEOUT, IPS_HELPER: not in IPS_UNCHANGEABLE_MASK). Rules match most of them by number only.
const IPS_CHANGING: u32 = 1 << 14 | 1 << 15 | 1 << 10 | 1 << 13;
/// Flags of TCP that the packets do not have: FIN, SYN, RST.
const NO_FLAGS: u8 = 0x07;
/// Flag of TCP that the packets have: ACK.
const ACK: u8 = 0x10;
/// Type of an address that a packet is forwarded or sent to (RTN_UNICAST).
pub const UNICAST: u8 = 1;
/// Type of an address of the host itself (RTN_LOCAL).
const LOCAL: u8 = 2;
/// Type of an address of several hosts, of which one gets a packet (RTN_ANYCAST).
const ANYCAST: u8 = 4;

/// IP protocol numbers of ICMP and ICMPv6, of which one message is described ([`Flow::icmp`]).
pub(super) const ICMP: u8 = 1;
pub(super) const ICMP6: u8 = 58;
const TCP: u8 = 6;
const UDP: u8 = 17;
const UDPLITE: u8 = 136;

/// Result of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Load<'a> {
    /// A value.
    Value(Vec<Octet<'a>>),
    /// The rule ends (NFT_BREAK).
    Break,
    /// A value that is not known, or the end of the rule.
    Either(Why<'a>),
}

/// The packets of a flow as the chains of a hook and a priority see them.
#[derive(Clone, Debug)]
pub struct View<'f> {
    flow: &'f Flow,
    hook: Hook,
    priority: i32,
    /// Set if the table is of family netdev.
    netdev: bool,
    /// Set if connection tracking has seen the packet; `None` if that is not known.
    tracked: Option<bool>,
    /// Reason why the packets may be seen on another device, in another form, if so.
    elsewhere: Option<Why<'static>>,
    network: Vec<Octet<'static>>,
    transport: Vec<Octet<'static>>,
}

const fn packets(what: &'static str) -> Why<'static> {
    Why { of: Of::Packets, what }
}

const fn flows(what: &'static str) -> Why<'static> {
    Why { of: Of::Flows, what }
}

/// Returns the octets of a number in the machine's order.
fn host(number: Option<u32>, what: &'static str) -> Load<'static> {
    Load::Value(number.map_or_else(|| unknown(4, flows(what)), |number| known(&number.to_ne_bytes())))
}

/// Returns the octets of a register into which a single one is stored (nft_reg_store8).
fn single(octet: Option<u8>, what: &'static str) -> Load<'static> {
    let octet = octet.map_or(Octet::unknown(flows(what)), Octet::new);
    Load::Value([vec![octet], known(&[0; 3])].concat())
}

/// Returns the octets of a register into which a 16-bit number is stored (nft_reg_store16).
fn half(octets: [Octet<'static>; 2]) -> Load<'static> {
    Load::Value([octets.to_vec(), known(&[0; 2])].concat())
}

fn address(addr: Option<IpAddr>, v6: bool, why: Why<'static>) -> Vec<Octet<'static>> {
    match addr {
        Some(IpAddr::V4(addr)) => known(&addr.octets()),
        Some(IpAddr::V6(addr)) => known(&addr.octets()),
        None => unknown(if v6 { 16 } else { 4 }, why),
    }
}

fn port(port: Option<u16>, why: Why<'static>) -> [Octet<'static>; 2] {
    match port.map(u16::to_be_bytes) {
        Some([first, second]) => [Octet::new(first), Octet::new(second)],
        None => [Octet::unknown(why); 2],
    }
}

impl<'f> View<'f> {
    /// Returns the packets of `flow` as a chain of `hook` with `priority` sees them.
    ///
    /// A chain whose priority is exactly that of connection tracking or of the translation may run before or after it
    /// (nf_hook_entries_grow puts a new function before those of the same priority): what differs is not known there.
    ///
    /// If they may be seen on another device, for the reason `elsewhere`, all their bits are unknown: a VLAN or a
    /// tunnel gives them other headers there.
    pub fn new(flow: &'f Flow, hook: Hook, priority: i32, netdev: bool, elsewhere: Option<Why<'static>>) -> Self {
        let after = |of: Hook, limit: i32| match (hook, priority).cmp(&(of, limit)) {
            Ordering::Less => Some(false),
            Ordering::Equal => None,
            Ordering::Greater => Some(true),
        };
        let (own, other) = match flow.replies {
            _ if flow.course != Course::Forwarded => (flow.original, flow.original.reversed()),
            Some(true) => (flow.reply, flow.original),
            Some(false) => (flow.original, flow.reply),
            None => Default::default(),
        };
        let first = if flow.course == Course::Sent { Hook::Output } else { Hook::Prerouting };
        let (src, dst) = ((own.src, own.src_port), (own.dst, own.dst_port));
        // nf_nat_packet: destinations are translated before routing, sources after it.
        let pick = |after: Option<bool>, before, behind| match after {
            Some(true) => (behind, Of::Flows),
            Some(false) => (before, Of::Flows),
            None if before == behind => (before, Of::Flows),
            None => ((None, None), Of::Packets),
        };
        let (dst, dst_of) = pick(after(Hook::Prerouting, NF_IP_PRI_NAT_DST), dst, (other.src, other.src_port));
        let (src, src_of) = pick(after(Hook::Postrouting, NF_IP_PRI_NAT_SRC), src, (other.dst, other.dst_port));
        let why = [src_of, dst_of];
        Self {
            flow,
            hook,
            priority,
            netdev,
            tracked: after(first, NF_IP_PRI_CONNTRACK).filter(|_| elsewhere.is_none()),
            elsewhere,
            network: network(flow, [src.0, dst.0], why),
            transport: transport(flow, [src.1, dst.1], why),
        }
    }

    /// Returns the flow.
    pub fn flow(&self) -> &'f Flow {
        self.flow
    }

    /// Loads octets of a header (nft_payload_eval).
    pub fn payload(&self, base: u32, offset: u32, len: u32) -> Load<'static> {
        if let Some(why) = self.elsewhere {
            return Load::Either(why);
        }
        let header = match base {
            0 => return Load::Either(packets("link-layer header")),
            1 => &self.network,
            2 => &self.transport,
            _ => return Load::Either(packets("payload")),
        };
        let octets = (offset as usize).checked_add(len as usize).and_then(|end| header.get(offset as usize..end));
        let Some(octets) = octets else { return Load::Either(packets("octets after the header")) };
        // The rest of the register's last word is cleared.
        let rest = len.next_multiple_of(4) - len;
        Load::Value([octets.to_vec(), known(&[0; 4][..rest as usize])].concat())
    }

    /// Loads metadata (nft_meta_get_eval).
    pub fn meta(&self, key: u32) -> Load<'static> {
        if let Some(why) = self.elsewhere {
            return Load::Either(why);
        }
        let flow = self.flow;
        let none = Interface::default();
        // Of packets that a tunnel sends, it is the tunnel itself after routing (ip_output takes skb->dev).
        let input = match self.hook {
            Hook::Output => Some(&none),
            Hook::Egress => None,
            _ => flow.input.as_ref(),
        };
        // There is no egress interface before routing.
        let output = match self.hook {
            Hook::Ingress | Hook::Prerouting | Hook::Input => Some(&none),
            _ => flow.output.as_ref(),
        };
        let name = |interface: Option<&Interface>, what| match interface {
            Some(interface) => {
                let mut name = interface.name.clone().into_bytes();
                name.resize(16, 0);
                Load::Value(known(&name))
            }
            None => Load::Value(unknown(16, flows(what))),
        };
        match key {
            meta::PROTOCOL => half(match flow.v6 {
                true => [Octet::new(0x86), Octet::new(0xdd)],
                false => [Octet::new(0x08), Octet::new(0x00)],
            }),
            // Rules that set it leave the flow to the kernel.
            meta::MARK => match flow.skb_mark {
                Some(mark) => host(Some(mark), ""),
                None => Load::Value(unknown(4, packets("mark"))),
            },
            meta::IIF => host(input.map(|interface| interface.index), "ingress interface"),
            meta::OIF => host(output.map(|interface| interface.index), "egress interface"),
            meta::IIFNAME => name(input, "ingress interface"),
            meta::OIFNAME => name(output, "egress interface"),
            meta::NFPROTO if self.netdev => single(Some(5), ""),
            meta::NFPROTO => single(Some(if flow.v6 { 10 } else { 2 }), ""),
            meta::L4PROTO => single(Some(flow.protocol), ""),
            // PACKET_HOST: others are not forwarded.
            meta::PKTTYPE if flow.course != Course::Sent => single(Some(0), ""),
            // Forwarded packets have no socket once IP has received them (ip_rcv_core, ip6_rcv_core).
            meta::SKUID | meta::SKGID | meta::CGROUP if flow.course == Course::Forwarded => match &flow.input {
                Some(Interface { marked: true, .. }) if self.hook == Hook::Ingress => {
                    Load::Either(packets(meta::name(key)))
                }
                None if self.hook == Hook::Ingress => Load::Either(flows("ingress interface")),
                _ => Load::Break,
            },
            _ => Load::Either(packets(meta::name(key))),
        }
    }

    /// Loads the result of a route lookup for an address (nft_fib4_eval, nft_fib6_eval). A mark does not matter:
    /// packets of flows have none before the rules, and a port whose packets may have one is closed where rules select
    /// routes by it.
    pub fn fib(&self, result: u32, flags: u32) -> Load<'static> {
        let unknown = Load::Either(packets("fib"));
        let (key, present) = (flags & !(fib::MARK | fib::PRESENT), flags & fib::PRESENT != 0);
        match (result, key) {
            (fib::OIF | fib::OIFNAME, key) if key != fib::SADDR | fib::IIF || !self.returns() => unknown,
            (fib::OIF | fib::OIFNAME, _) if present => single(Some(1), ""),
            (fib::OIF, _) => self.meta(meta::IIF),
            (fib::OIFNAME, _) => self.meta(meta::IIFNAME),
            (fib::ADDRTYPE, fib::DADDR) if self.is_global() => match self.destination_type() {
                Some(UNICAST) if self.may_be_anycast() => {
                    let kinds = [UNICAST, ANYCAST].map(|kind| u32::from(kind).to_ne_bytes());
                    Load::Value(octets::merged(&kinds.each_ref().map(<[u8; 4]>::as_slice), packets("fib")))
                }
                Some(kind) => host(Some(kind.into()), ""),
                None => unknown,
            },
            _ => unknown,
        }
    }

    /// Returns whether an IPv6 destination is known to be global or site-local; other addresses can have more than one
    /// type.
    fn is_global(&self) -> bool {
        let first = self.network.get(24).filter(|octet| octet.known == 0xff).map(|octet| octet.value);
        !self.flow.v6 || first.is_some_and(|first| first & 0xe0 == 0x20 || first & 0xfe == 0xfc)
    }

    /// Returns whether an IPv6 destination may be the address of a subnet's routers (RFC 4291 2.6.1), whose type is
    /// anycast although packets to it are forwarded (ipv6_anycast_destination, for prefixes of up to 126 bits).
    fn may_be_anycast(&self) -> bool {
        let last = self.network.get(39);
        self.flow.v6 && last.is_none_or(|octet| octet.value & octet.known & 3 == 0)
    }

    /// Returns whether the route to the packets' source leads out of the interface that receives them.
    pub fn returns(&self) -> bool {
        let as_received = (self.hook, self.priority) < (Hook::Postrouting, NF_IP_PRI_NAT_SRC);
        self.flow.returns && as_received && self.is_whole()
    }

    /// Loads a property of the connection (nft_ct_get_eval).
    pub fn ct(&self, key: u32, direction: Option<u8>) -> Load<'static> {
        if let Some(why) = self.elsewhere {
            return Load::Either(why);
        }
        let flow = self.flow;
        match self.tracked {
            None => return Load::Either(packets("order of chains with the priority of connection tracking")),
            Some(false) if key == ct::STATE => return host(Some(STATE_INVALID), ""),
            Some(false) => return Load::Break,
            Some(true) => {}
        }
        match key {
            ct::STATE | ct::L3PROTOCOL | ct::PROTOCOL => {}
            _ if flow.course != Course::Forwarded => return Load::Either(packets(ct::name(key))),
            _ => {}
        }
        let tuple = match direction {
            None => flow.replies.map(|replies| if replies { flow.reply } else { flow.original }).unwrap_or_default(),
            Some(0) => flow.original,
            Some(_) => flow.reply,
        };
        let padded = |addr, what| Load::Value(address(addr, flow.v6, flows(what)));
        match key {
            ct::STATE => {
                let states: Vec<_> = self.states().iter().map(|state| state.to_ne_bytes()).collect();
                let states: Vec<&[u8]> = states.iter().map(<[u8; 4]>::as_slice).collect();
                Load::Value(octets::merged(&states, packets("ct state")))
            }
            ct::DIRECTION => single(flow.replies.map(u8::from), "direction"),
            ct::STATUS => match host(flow.status, "status of the connection") {
                Load::Value(mut octets) => {
                    let may_come = IPS_ASSURED & !flow.status.unwrap_or_default();
                    for (octet, changing) in octets.iter_mut().zip((IPS_CHANGING | may_come).to_ne_bytes()) {
                        octet.known &= !changing;
                        octet.value &= !changing;
                        octet.why = packets("status of the connection that may change");
                    }
                    Load::Value(octets)
                }
                unknown => unknown,
            },
            ct::MARK if flow.mark_changes => Load::Either(packets("mark of the connection, which rules change")),
            ct::MARK => host(flow.mark, "mark of the connection"),
            ct::L3PROTOCOL => single(Some(if flow.v6 { 10 } else { 2 }), ""),
            ct::PROTOCOL => single(Some(flow.protocol), ""),
            ct::SRC_IP | ct::DST_IP if flow.v6 => Load::Break,
            ct::SRC_IP6 | ct::DST_IP6 if !flow.v6 => Load::Break,
            ct::SRC | ct::SRC_IP | ct::SRC_IP6 => padded(tuple.src, "source address"),
            ct::DST | ct::DST_IP | ct::DST_IP6 => padded(tuple.dst, "destination address"),
            ct::PROTO_SRC => half(port(tuple.src_port, flows("source port"))),
            ct::PROTO_DST => half(port(tuple.dst_port, flows("destination port"))),
            // A zone may be set for one direction only (NF_CT_ZONE_DIR_*): the other one has the default zone.
            ct::ZONE if direction.is_some() => Load::Either(packets("ct zone of a direction")),
            ct::ZONE => match flow.zone.map(u16::to_ne_bytes) {
                Some([first, second]) => half([Octet::new(first), Octet::new(second)]),
                None => half([Octet::unknown(flows("zone")); 2]),
            },
            _ => Load::Either(packets(ct::name(key))),
        }
    }

    /// Returns the type of the destination's route (RTN_*) where the packets have the address that they are routed by,
    /// otherwise `None`: an address of the router's may be translated to another.
    pub fn destination_type(&self) -> Option<u8> {
        let translated = (self.hook, self.priority) > (Hook::Prerouting, NF_IP_PRI_NAT_DST);
        let kind = if self.flow.course == Course::Received { LOCAL } else { UNICAST };
        (translated && self.is_whole()).then_some(kind)
    }

    /// Returns whether the packets are seen in the form that the flow describes.
    pub fn is_whole(&self) -> bool {
        self.elsewhere.is_none()
    }

    /// Returns whether connection tracking has seen the packets; `None` if that is not known.
    pub fn tracked(&self) -> Option<bool> {
        self.tracked
    }

    /// Returns the values that `ct state` may have; none if they are not known.
    pub fn states(&self) -> &'static [u32] {
        match (self.tracked, self.flow.state) {
            (None, _) => &[],
            (Some(false), _) | (_, State::Invalid) => &[STATE_INVALID],
            (_, State::Established) => &[STATE_ESTABLISHED],
            (_, State::Related) => &[STATE_RELATED],
            (_, State::Any) => &[STATE_ESTABLISHED, STATE_RELATED, STATE_NEW],
        }
    }
}

fn network(flow: &Flow, [src, dst]: [Option<IpAddr>; 2], of: [Of; 2]) -> Vec<Octet<'static>> {
    let any = |len, what| unknown(len, packets(what));
    let src = address(src, flow.v6, Why { of: of[0], what: "source address" });
    let dst = address(dst, flow.v6, Why { of: of[1], what: "destination address" });
    if flow.v6 {
        let first = Octet { value: 0x60, known: 0xf0, why: packets("ip6 dscp") };
        let start = [vec![first], any(1, "ip6 dscp"), any(2, "ip6 flowlabel"), any(2, "ip6 length")];
        let next = Octet { known: if flow.options6 { 0 } else { 0xff }, ..Octet::new(flow.protocol) };
        let next = [vec![Octet { why: packets("ip6 nexthdr"), ..next }], any(1, "ip6 hoplimit")];
        return [start.concat(), next.concat(), src, dst].concat();
    }
    // Not a fragment: neither MF nor an offset.
    let offset = [Octet { value: 0, known: 0x3f, why: packets("ip frag-off") }, Octet::new(0)];
    let start = [vec![Octet::new(0x45)], any(1, "ip dscp"), any(2, "ip length"), any(2, "ip id"), offset.to_vec()];
    let next = [any(1, "ip ttl"), vec![Octet::new(flow.protocol)], any(2, "ip checksum")];
    [start.concat(), next.concat(), src, dst].concat()
}

fn transport(flow: &Flow, [src, dst]: [Option<u16>; 2], of: [Of; 2]) -> Vec<Octet<'static>> {
    let src = port(src, Why { of: of[0], what: "source port" });
    let ports = [src, port(dst, Why { of: of[1], what: "destination port" })].concat();
    let any = |len, what| unknown(len, packets(what));
    match flow.protocol {
        TCP => {
            let flags = Octet { value: ACK, known: NO_FLAGS | ACK, why: packets("tcp flags") };
            let numbers = [any(4, "tcp sequence"), any(4, "tcp ackseq"), any(1, "tcp doff")];
            [ports, numbers.concat(), vec![flags], any(2, "tcp window"), any(2, "tcp checksum"), any(2, "tcp urgptr")]
                .concat()
        }
        ICMP => [known(&flow.icmp), any(2, "icmp checksum"), any(4, "icmp mtu")].concat(),
        ICMP6 => [known(&flow.icmp), any(2, "icmpv6 checksum"), any(4, "icmpv6 mtu")].concat(),
        UDP | UDPLITE => [ports, any(2, "udp length"), any(2, "udp checksum")].concat(),
        _ => Vec::new(),
    }
}
