//! ctnetlink's messages, whose numbers are in network order.

use crate::connection::{Connection, Key, TCP, Tuple, UDP, status, tcp};
use bywash_nl::wire::{Attributes, Message, attribute};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Size of struct nfgenmsg, in octets.
const NFGENMSG: usize = 4;
const NFNL_SUBSYS_CTNETLINK: u16 = 1 << 8;
pub(crate) const IPCTNL_MSG_CT_NEW: u16 = NFNL_SUBSYS_CTNETLINK;
pub(crate) const IPCTNL_MSG_CT_GET: u16 = NFNL_SUBSYS_CTNETLINK | 1;
const IPCTNL_MSG_CT_DELETE: u16 = NFNL_SUBSYS_CTNETLINK | 2;
/// Set in the kind of an attribute that consists of attributes.
const NLA_F_NESTED: u16 = 1 << 15;

// enum ctattr_type
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
pub(crate) const CTA_STATUS: u16 = 3;
const CTA_PROTOINFO: u16 = 4;
const CTA_HELP: u16 = 5;
const CTA_TIMEOUT: u16 = 7;
const CTA_MARK: u16 = 8;
const CTA_COUNTERS_ORIG: u16 = 9;
const CTA_COUNTERS_REPLY: u16 = 10;
const CTA_USE: u16 = 11;
const CTA_ID: u16 = 12;
const CTA_TUPLE_MASTER: u16 = 14;
const CTA_SEQ_ADJ_ORIG: u16 = 15;
const CTA_SEQ_ADJ_REPLY: u16 = 16;
const CTA_SECMARK: u16 = 17;
const CTA_ZONE: u16 = 18;
const CTA_SECCTX: u16 = 19;
const CTA_TIMESTAMP: u16 = 20;
const CTA_LABELS: u16 = 22;
const CTA_SYNPROXY: u16 = 24;
const CTA_TIMESTAMP_EVENT: u16 = 27;

// enum ctattr_tuple, ctattr_ip, ctattr_l4proto, ctattr_protoinfo, ctattr_protoinfo_tcp
const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_TUPLE_ZONE: u16 = 3;
const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;
const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTOINFO_TCP: u16 = 1;
const CTA_PROTOINFO_TCP_STATE: u16 = 1;
const CTA_PROTOINFO_TCP_FLAGS_ORIGINAL: u16 = 4;
const CTA_PROTOINFO_TCP_FLAGS_REPLY: u16 = 5;

const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// A message about a TCP or UDP connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The connection exists.
    Present {
        /// The connection.
        connection: Connection,
    },
    /// The connection is gone.
    Gone {
        /// The connection.
        key: Key,
        /// Identifier of the connection; `None` if not reported.
        id: Option<u32>,
    },
}

impl Event {
    /// Returns the connection's key.
    pub fn key(&self) -> Key {
        match self {
            Self::Present { connection } => connection.key,
            Self::Gone { key, .. } => *key,
        }
    }
}

/// Parses a message; `None` for protocols other than TCP and UDP, and for malformed messages.
pub fn parse_event(message: &Message<'_>) -> Option<Event> {
    let attributes = Attributes::after(message.body, NFGENMSG);
    let (mut original, mut reply, mut protocol, mut id) = (None, None, None, None);
    let mut found = Connection {
        key: Key { protocol: 0, original: nowhere(), zone: 0 },
        reply: nowhere(),
        id: 0,
        status: 0,
        mark: 0,
        timeout: None,
        tcp_state: None,
        liberal: false,
        zone_of_direction: false,
        helper: false,
        expected: false,
        sequence_changes: false,
        unknown: None,
    };
    for (kind, value) in attributes {
        match kind {
            CTA_TUPLE_ORIG | CTA_TUPLE_REPLY => {
                let parsed = tuple(value)?;
                if protocol.is_some_and(|known| known != parsed.protocol) {
                    return None;
                }
                protocol = Some(parsed.protocol);
                found.zone_of_direction |= parsed.zone;
                *(if kind == CTA_TUPLE_ORIG { &mut original } else { &mut reply }) = Some(parsed.tuple);
            }
            CTA_STATUS => found.status = be32(value)?,
            CTA_PROTOINFO => (found.tcp_state, found.liberal) = tcp_info(value),
            CTA_HELP => found.helper = true,
            CTA_TIMEOUT => found.timeout = Some(be32(value)?),
            CTA_MARK => found.mark = be32(value)?,
            CTA_ID => id = Some(be32(value)?),
            CTA_ZONE => found.key.zone = be16(value)?,
            CTA_TUPLE_MASTER => found.expected = true,
            CTA_SEQ_ADJ_ORIG | CTA_SEQ_ADJ_REPLY | CTA_SYNPROXY => found.sequence_changes = true,
            CTA_COUNTERS_ORIG | CTA_COUNTERS_REPLY | CTA_USE | CTA_SECMARK | CTA_SECCTX | CTA_TIMESTAMP
            | CTA_LABELS | CTA_TIMESTAMP_EVENT => {}
            other => found.unknown = Some(other),
        }
    }
    found.key.protocol = protocol?;
    found.key.original = original?;
    match message.kind {
        IPCTNL_MSG_CT_DELETE => Some(Event::Gone { key: found.key, id }),
        IPCTNL_MSG_CT_NEW => {
            found.reply = reply.filter(|reply: &Tuple| reply.src.is_ipv6() == found.key.original.src.is_ipv6())?;
            found.id = id?;
            found.helper |= found.status & status::HELPER != 0;
            found.expected |= found.status & status::EXPECTED != 0;
            found.sequence_changes |= found.status & status::SEQ_ADJUST != 0;
            Some(Event::Present { connection: found })
        }
        _ => None,
    }
}

fn nowhere() -> Tuple {
    let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    Tuple { src: nowhere, dst: nowhere }
}

struct Direction {
    protocol: u8,
    tuple: Tuple,
    /// Set if the direction has a zone of its own.
    zone: bool,
}

/// Parses the tuple of a TCP or UDP connection.
fn tuple(value: &[u8]) -> Option<Direction> {
    let (mut src, mut dst, mut ports, mut protocol) = (None, None, (None, None), None);
    let mut zone = false;
    for (kind, value) in Attributes::after(value, 0) {
        match kind {
            CTA_TUPLE_IP => {
                for (kind, value) in Attributes::after(value, 0) {
                    match kind {
                        CTA_IP_V4_SRC => src = v4(value),
                        CTA_IP_V4_DST => dst = v4(value),
                        CTA_IP_V6_SRC => src = v6(value),
                        CTA_IP_V6_DST => dst = v6(value),
                        _ => return None,
                    }
                }
            }
            CTA_TUPLE_PROTO => {
                for (kind, value) in Attributes::after(value, 0) {
                    match kind {
                        CTA_PROTO_NUM => protocol = value.first().copied(),
                        CTA_PROTO_SRC_PORT => ports.0 = be16(value),
                        CTA_PROTO_DST_PORT => ports.1 = be16(value),
                        _ => return None,
                    }
                }
            }
            CTA_TUPLE_ZONE => zone = true,
            _ => return None,
        }
    }
    let (src, dst) = (src?, dst?);
    let protocol = protocol.filter(|protocol| matches!(*protocol, TCP | UDP))?;
    (src.is_ipv6() == dst.is_ipv6()).then_some(())?;
    Some(Direction { protocol, tuple: Tuple::new((src, ports.0?), (dst, ports.1?)), zone })
}

/// Returns the state of TCP, and whether its window is checked in neither direction.
fn tcp_info(value: &[u8]) -> (Option<u8>, bool) {
    let Some((_, value)) = Attributes::after(value, 0).find(|(kind, _)| *kind == CTA_PROTOINFO_TCP) else {
        return (None, false);
    };
    let first = |of| Attributes::after(value, 0).find(|(kind, _)| *kind == of)?.1.first().copied();
    let directions = [CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, CTA_PROTOINFO_TCP_FLAGS_REPLY];
    let liberal = directions.iter().all(|of| first(*of).is_some_and(|flags| flags & tcp::LIBERAL != 0));
    (first(CTA_PROTOINFO_TCP_STATE), liberal)
}

fn v4(value: &[u8]) -> Option<IpAddr> {
    Some(Ipv4Addr::from(<[u8; 4]>::try_from(value).ok()?).into())
}

fn v6(value: &[u8]) -> Option<IpAddr> {
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(value).ok()?).into())
}

fn be16(value: &[u8]) -> Option<u16> {
    Some(u16::from_be_bytes(value.try_into().ok()?))
}

fn be32(value: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(value.try_into().ok()?))
}

/// Returns struct nfgenmsg for a family: AF_UNSPEC asks for both.
pub(crate) fn family(v6: Option<bool>) -> [u8; NFGENMSG] {
    let family = match v6 {
        None => 0,
        Some(false) => AF_INET,
        Some(true) => AF_INET6,
    };
    [family, 0, 0, 0]
}

/// Body of a message about one connection.
pub(crate) struct Body(Vec<u8>);

impl Body {
    /// Creates a body that names the connection.
    pub fn new(key: &Key) -> Self {
        let mut body = family(Some(key.original.src.is_ipv6())).to_vec();
        body.extend(attribute(CTA_TUPLE_ORIG | NLA_F_NESTED, &written(key)));
        if key.zone != 0 {
            body.extend(attribute(CTA_ZONE, &key.zone.to_be_bytes()));
        }
        Self(body)
    }

    /// Lets the connection expire after `seconds`.
    #[must_use]
    pub fn timeout(mut self, seconds: u32) -> Self {
        self.0.extend(attribute(CTA_TIMEOUT, &seconds.to_be_bytes()));
        self
    }

    /// Ends the check of TCP's window in both directions, and makes the kernel forget the acknowledgements it has seen,
    /// which are out of date once it does not see all packets: an RST would not close the connection (nlattr_to_tcp).
    #[must_use]
    pub fn liberal(mut self) -> Self {
        // struct nf_ct_tcp_flags: flags and mask.
        let flags = [tcp::LIBERAL, tcp::LIBERAL | tcp::UNACKNOWLEDGED | tcp::MAXACK];
        let directions = [CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, CTA_PROTOINFO_TCP_FLAGS_REPLY];
        let tcp = directions.map(|direction| attribute(direction, &flags)).concat();
        let info = attribute(CTA_PROTOINFO_TCP | NLA_F_NESTED, &tcp);
        self.0.extend(attribute(CTA_PROTOINFO | NLA_F_NESTED, &info));
        self
    }

    /// Returns the octets behind the message's header.
    pub fn octets(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the attributes of a connection's original tuple.
fn written(key: &Key) -> Vec<u8> {
    let Tuple { src, dst } = key.original;
    let kinds = if src.is_ipv6() { [CTA_IP_V6_SRC, CTA_IP_V6_DST] } else { [CTA_IP_V4_SRC, CTA_IP_V4_DST] };
    let octets = |addr: IpAddr| match addr {
        IpAddr::V4(addr) => addr.octets().to_vec(),
        IpAddr::V6(addr) => addr.octets().to_vec(),
    };
    let addresses = [attribute(kinds[0], &octets(src.ip())), attribute(kinds[1], &octets(dst.ip()))].concat();
    let ports = [(CTA_PROTO_SRC_PORT, src.port()), (CTA_PROTO_DST_PORT, dst.port())];
    let mut protocol = attribute(CTA_PROTO_NUM, &[key.protocol]);
    ports.iter().for_each(|(kind, port)| protocol.extend(attribute(*kind, &port.to_be_bytes())));
    [attribute(CTA_TUPLE_IP | NLA_F_NESTED, &addresses), attribute(CTA_TUPLE_PROTO | NLA_F_NESTED, &protocol)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_nl::wire::{Messages, Request};
    use proptest::prelude::*;

    fn key(src: &str, dst: &str, protocol: u8, zone: u16) -> Key {
        Key { protocol, original: Tuple { src: src.parse().unwrap(), dst: dst.parse().unwrap() }, zone }
    }

    /// Returns the event of a connection with these attributes besides its two tuples and its identifier.
    fn announced(kind: u16, flags: u16, key: Key, reply: Tuple, others: &[(u16, &[u8])]) -> Option<Event> {
        let request = Request::new(kind, flags, 0, &family(None));
        let request = request.attribute(CTA_TUPLE_ORIG, &written(&key));
        let request = request.attribute(CTA_TUPLE_REPLY, &written(&Key { original: reply, ..key }));
        let request = request.attribute(CTA_ID, &7u32.to_be_bytes());
        let request = others.iter().fold(request, |request, (kind, value)| request.attribute(*kind, value));
        parse_event(&Messages::new(request.bytes()).next().unwrap())
    }

    #[test]
    fn attributes_become_a_connection() {
        let key = key("192.0.2.1:4000", "198.51.100.1:80", TCP, 5);
        let reply = Tuple { src: key.original.dst, dst: "203.0.113.9:1024".parse().unwrap() };
        let flags = [tcp::LIBERAL | 3, 0];
        let parts = [
            attribute(CTA_PROTOINFO_TCP_STATE, &[tcp::ESTABLISHED]),
            attribute(CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, &flags),
            attribute(CTA_PROTOINFO_TCP_FLAGS_REPLY, &flags),
        ];
        let state = attribute(CTA_PROTOINFO_TCP, &parts.concat());
        let status = (status::ASSURED | status::SRC_NAT).to_be_bytes();
        let others: [(u16, &[u8]); 5] = [
            (CTA_STATUS, &status),
            (CTA_TIMEOUT, &432_000u32.to_be_bytes()),
            (CTA_MARK, &9u32.to_be_bytes()),
            (CTA_PROTOINFO, &state),
            (CTA_ZONE, &5u16.to_be_bytes()),
        ];
        let found = announced(IPCTNL_MSG_CT_NEW, 0, key, reply, &others);
        let Some(Event::Present { connection }) = found else { panic!("{found:?}") };
        assert_eq!((connection.key, connection.reply, connection.id), (key, reply, 7));
        assert_eq!((connection.mark, connection.timeout, connection.unknown), (9, Some(432_000), None));
        assert_eq!((connection.tcp_state, connection.liberal), (Some(tcp::ESTABLISHED), true));
        assert!(connection.has(status::ASSURED | status::SRC_NAT) && !connection.has(status::DST_NAT));
        assert_eq!(connection.translated(false), reply.reversed());
        assert_eq!(connection.translated(true), key.original.reversed());
    }

    #[test]
    fn helpers_masters_sequences_and_zones_are_reported() {
        let key = key("[2001:db8::1]:4000", "[2001:db8::2]:80", UDP, 0);
        let of = |others: &[(u16, &[u8])]| match announced(IPCTNL_MSG_CT_NEW, 0, key, key.original.reversed(), others) {
            Some(Event::Present { connection }) => connection,
            other => panic!("{other:?}"),
        };
        assert!(of(&[(CTA_HELP, &[])]).helper);
        assert!(of(&[(CTA_STATUS, &status::HELPER.to_be_bytes())]).helper);
        assert!(of(&[(CTA_TUPLE_MASTER, &[])]).expected);
        assert!(of(&[(CTA_STATUS, &status::EXPECTED.to_be_bytes())]).expected);
        assert!(of(&[(CTA_SYNPROXY, &[])]).sequence_changes);
        assert!(of(&[(CTA_SEQ_ADJ_REPLY, &[])]).sequence_changes);
        assert!(of(&[(CTA_STATUS, &status::SEQ_ADJUST.to_be_bytes())]).sequence_changes);
        assert_eq!(of(&[(99, &[])]).unknown, Some(99));
        let zoned = [written(&key), attribute(CTA_TUPLE_ZONE, &[0, 1])].concat();
        assert!(of(&[(CTA_TUPLE_ORIG, &zoned)]).zone_of_direction);
        assert_eq!(of(&[]).unknown, None);
    }

    #[test]
    fn other_protocols_are_none() {
        let key = key("192.0.2.1:0", "192.0.2.2:0", 1, 0);
        assert_eq!(announced(IPCTNL_MSG_CT_NEW, 0, key, key.original.reversed(), &[]), None);
    }

    #[test]
    fn a_removal_needs_no_reply() {
        let key = key("192.0.2.1:1", "192.0.2.2:2", UDP, 0);
        let request = Request::new(IPCTNL_MSG_CT_DELETE, 0, 0, &family(None));
        let request = request.attribute(CTA_TUPLE_ORIG, &written(&key));
        let found = parse_event(&Messages::new(request.bytes()).next().unwrap());
        assert_eq!(found, Some(Event::Gone { key, id: None }));
    }

    proptest! {
        #[test]
        fn any_octets_are_parsed(kind in 0u16..8, body in prop::collection::vec(any::<u8>(), 0..200)) {
            let kind = NFNL_SUBSYS_CTNETLINK | kind;
            let _ = parse_event(&Message { kind, flags: 0, sequence: 0, port: 0, body: &body });
        }

        /// Octets that are nearly right reach the parts within tuples.
        #[test]
        fn damaged_messages_are_parsed(at in 0usize..120, octet in any::<u8>()) {
            let key = key("192.0.2.1:1", "192.0.2.2:2", UDP, 3);
            let request = Request::new(IPCTNL_MSG_CT_NEW, 0, 0, &family(None));
            let request = request.attribute(CTA_TUPLE_ORIG, &written(&key));
            let reply = Key { original: key.original.reversed(), ..key };
            let request = request.attribute(CTA_TUPLE_REPLY, &written(&reply));
            let mut body = request.bytes()[16..].to_vec();
            let at = at % body.len();
            body[at] = octet;
            let _ = parse_event(&Message { kind: IPCTNL_MSG_CT_NEW, flags: 0, sequence: 0, port: 0, body: &body });
        }
    }
}
