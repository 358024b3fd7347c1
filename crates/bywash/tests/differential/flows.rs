//! Connections through both routers, established by packets of both directions, and random packets of them.

use crate::change::Change;
use crate::compare::{Left, packet};
use crate::config::firewall::SERVED;
use crate::packets::build::{Ipv4, Ipv6, ethernet, extensions, options4, resum4, set_length4, tagged};
use crate::packets::{MAGIC, Sent};
use crate::random::Random;
use crate::topology::{HOSTS, PORTS, host_mac, router_mac};
use bywash_wire::checksum::{Sum, pseudo4, pseudo6};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;

/// Urgent pointer by which segments beyond the window are known.
pub const OUT_OF_WINDOW: [u8; 2] = [0xbe, 0x70];

/// Number of connections that are kept open.
const OPEN: usize = 150;
/// Most connections opened at a time.
const AT_ONCE: usize = 40;

/// One direction of a connection: the port that receives its packets, and their ends as they are sent.
#[derive(Clone, Copy, Debug)]
struct Way {
    port: usize,
    src: SocketAddr,
    dst: SocketAddr,
}

/// Fields of a TCP segment. Windows are of 65,535 bytes, without a scale.
#[derive(Clone, Copy)]
struct Segment {
    seq: u32,
    ack: u32,
    flags: u8,
}

#[derive(Clone)]
pub struct Connection {
    tcp: bool,
    client: Way,
    /// The server's direction, once a packet has reached it.
    server: Option<Way>,
    /// Initial sequence numbers of client and server.
    initial: [u32; 2],
    /// Packets that have opened it.
    opening: Vec<Sent>,
    /// Number of the epoch's changes before, and the configuration that they have left.
    pub after: usize,
    pub standing: Vec<Change>,
    /// Set once it has been closed or deleted.
    ended: bool,
}

/// The connections of a pair of routers.
#[derive(Default)]
pub struct Connections {
    open: Vec<Connection>,
    opened: u16,
}

/// Returns the payload of a packet: its number and `size` bytes.
fn numbered(number: u32, size: usize) -> Vec<u8> {
    let mut data = [&MAGIC[..], &number.to_be_bytes()].concat();
    data.resize(8 + size, number as u8);
    data
}

/// Returns a TCP header with these options, or a UDP header, and the payload, without a checksum.
fn transport(way: &Way, tcp: Option<Segment>, options: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = [way.src.port().to_be_bytes(), way.dst.port().to_be_bytes()].concat();
    match tcp {
        Some(Segment { seq, ack, flags }) => {
            bytes.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
            bytes.extend([((20 + options.len()) as u8) << 2, flags, 0xff, 0xff, 0, 0, 0, 0]);
            bytes.extend(options);
        }
        None => bytes.extend([((8 + data.len()) as u16).to_be_bytes(), [0; 2]].concat()),
    }
    bytes.extend(data);
    bytes
}

/// A packet to be built, with its transport header behind `headers`.
struct Draft {
    way: Way,
    protocol: u8,
    number: u32,
    limit: u8,
    class: u8,
    /// Flags and offset of IPv4.
    fragment: u16,
    options: Vec<u8>,
    extensions: Vec<(u8, Vec<u8>)>,
    /// Added to the right checksum.
    wrong: u16,
    /// Leaves out UDP's checksum.
    none: bool,
    payload: Vec<u8>,
}

impl Draft {
    fn new(way: Way, number: u32, tcp: Option<Segment>, options: &[u8], data: &[u8]) -> Self {
        Self {
            way,
            protocol: if tcp.is_some() { 6 } else { 17 },
            number,
            limit: 64,
            class: 0,
            fragment: 0,
            options: vec![],
            extensions: vec![],
            wrong: 0,
            none: false,
            payload: transport(&way, tcp, options, data),
        }
    }

    /// Returns the IP packet.
    fn packet(mut self) -> Vec<u8> {
        let field = match self.protocol {
            6 => 16,
            17 => 6,
            _ => 2,
        };
        let length = self.payload.len();
        let finish = |payload: &mut [u8], pseudo: Sum| {
            let sum = (pseudo + Sum::of(payload)).checksum();
            let sum = if self.protocol == 17 && sum == 0 { 0xffff } else { sum };
            let sum = if self.none { 0 } else { sum.wrapping_add(self.wrong) };
            if let Some(field) = payload.get_mut(field..field + 2) {
                field.copy_from_slice(&sum.to_be_bytes());
            }
        };
        match (self.way.src.ip(), self.way.dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                let ip = Ipv4 {
                    src,
                    dst,
                    tos: self.class,
                    ident: self.number as u16,
                    fragment: self.fragment,
                    ttl: self.limit,
                    protocol: self.protocol,
                    options: self.options,
                };
                let header: [u8; 20] = ip.packet(&[])[..20].try_into().unwrap();
                let pseudo =
                    if self.protocol == 1 { Sum::ZERO } else { pseudo4(&header, self.protocol, length as u16) };
                finish(&mut self.payload, pseudo);
                ip.packet(&self.payload)
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                let label = self.number & 0xf_ffff;
                let (class, limit, extensions) = (self.class, self.limit, self.extensions);
                let ip = Ipv6 { src, dst, class, label, limit, extensions };
                let header: [u8; 40] = ip.packet(self.protocol, &[])[..40].try_into().unwrap();
                finish(&mut self.payload, pseudo6(&header, self.protocol, length as u32));
                ip.packet(self.protocol, &self.payload)
            }
            _ => unreachable!("ends of one family"),
        }
    }

    fn sent(self) -> Sent {
        let (port, number, v6) = (self.way.port, self.number, self.way.src.is_ipv6());
        frame(port, number, v6, self.packet())
    }
}

fn frame(port: usize, number: u32, v6: bool, packet: Vec<u8>) -> Sent {
    let ethertype = if v6 { 0x86dd } else { 0x800 };
    Sent { port, number, frame: ethernet(router_mac(port), host_mac(port, 2), ethertype, packet) }
}

/// Returns the way back of the packet in a frame that left by `port`; `None` if it is not of this protocol.
fn back(port: usize, frame: &[u8], tcp: bool) -> Option<Way> {
    let (at, version) = packet(frame)?;
    let (protocol, [src, dst], transport) = match version {
        4 => {
            let of = |at: usize| Some(IpAddr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).unwrap()));
            (*frame.get(at + 9)?, [of(at + 12)?, of(at + 16)?], at + 20)
        }
        _ => {
            let of = |at: usize| Some(IpAddr::from(<[u8; 16]>::try_from(frame.get(at..at + 16)?).unwrap()));
            (*frame.get(at + 6)?, [of(at + 8)?, of(at + 24)?], at + 40)
        }
    };
    let word = |at: usize| Some(u16::from_be_bytes(frame.get(at..at + 2)?.try_into().unwrap()));
    let ports = [word(transport)?, word(transport + 2)?];
    let way = Way { port, src: SocketAddr::new(dst, ports[1]), dst: SocketAddr::new(src, ports[0]) };
    (protocol == if tcp { 6 } else { 17 }).then_some(way)
}

fn host(random: &Random, v6: bool, port: usize, behind: bool) -> IpAddr {
    let (n, host) = (port as u8 + 1, (2 + random.below(HOSTS)) as u8);
    match (v6, behind) {
        (false, false) => Ipv4Addr::new(10, 0, n, host).into(),
        (false, true) => Ipv4Addr::new(10, 20, n, host).into(),
        (true, false) => Ipv6Addr::new(0xfd00, n.into(), 0, 0, 0, 0, 0, host.into()).into(),
        (true, true) => Ipv6Addr::new(0xfd20, n.into(), 0, 0, 0, 0, 0, host.into()).into(),
    }
}

impl Connection {
    /// Returns a connection between random hosts, from a port that no other one uses: NAT then keeps it.
    fn new(random: &Random, from: u16, after: usize, standing: Vec<Change>) -> Self {
        let (v6, tcp, port) = (random.chance(40), random.chance(50), random.below(PORTS));
        let other = (port + if random.chance(5) { 0 } else { 1 + random.below(PORTS - 1) }) % PORTS;
        let to = if random.chance(12) {
            // The router itself, which may translate it.
            match v6 {
                false => Ipv4Addr::new(10, 0, other as u8 + 1, 1).into(),
                true => Ipv6Addr::new(0xfd00, other as u16 + 1, 0, 0, 0, 0, 0, 1).into(),
            }
        } else {
            host(random, v6, other, random.chance(25))
        };
        let src = SocketAddr::new(host(random, v6, port, random.chance(15)), from);
        let client = Way { port, src, dst: SocketAddr::new(to, random.pick(&SERVED)) };
        let initial = [random.next() as u32, random.next() as u32];
        Self { tcp, client, server: None, initial, opening: vec![], after, standing, ended: false }
    }

    fn segment(&self, replies: bool, flags: u8, offset: u32) -> Option<Segment> {
        let [here, there] = [usize::from(replies), usize::from(!replies)].map(|way| self.initial[way]);
        let ack = if flags & ACK != 0 { there.wrapping_add(1) } else { 0 };
        self.tcp.then_some(Segment { seq: here.wrapping_add(offset), ack, flags })
    }

    /// Returns packet `phase` of the three that open the connection; `None` if the one before has not arrived.
    fn open(&mut self, phase: usize, number: u32) -> Option<Sent> {
        let (replies, flags) = [(false, SYN), (true, SYN | ACK), (false, ACK)][phase];
        let way = if replies { self.server? } else { self.client };
        if phase > 0 && self.server.is_none() {
            return None;
        }
        let data = if self.tcp { vec![] } else { numbered(number, 0) };
        let segment = self.segment(replies, flags, u32::from(phase > 1));
        let sent = Draft::new(way, number, segment, &[], &data).sent();
        self.opening.push(sent.clone());
        Some(sent)
    }

    /// Returns a random packet of the connection.
    fn packet(&self, random: &Random, number: u32) -> Sent {
        let server = self.server.expect("an open connection");
        // The server of an ended one speaks: what the client sends would begin another.
        let replies = self.ended || random.chance(50);
        let (way, opposite) = if replies { (server, self.client) } else { (self.client, server) };
        let size = if random.chance(85) {
            random.below(90)
        } else {
            random.pick(&[200, 600, 1000, 1200, 1400, 1430, 1440, 1450, 1460, 1464, 1472, 1480])
        };
        let data = numbered(number, size);
        let flags = random.pick(&[ACK, ACK, ACK, ACK | PSH, ACK | PSH, ACK | 0x20, ACK | 0x40, ACK | 0x80]);
        let segment = self.segment(replies, flags, 1 + random.below(20_000) as u32);
        let stamp = [1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2];
        let options: &[u8] = if random.chance(30) { &stamp } else { &[] };
        let mut draft = Draft::new(way, number, segment, options, &data);
        draft.fragment = random.pick(&[0, 0x4000]);
        draft.class = random.pick(&[0, 0, 0, 0xb8, 0x10, 3]);
        draft.limit = random.pick(&[64, 64, 64, 63, 255, 2]);
        if self.ended || !random.chance(35) {
            return draft.sent();
        }
        self.unusual(random, draft, &opposite, &data)
    }

    /// Makes a packet unusual or wrong in one way.
    fn unusual(&self, random: &Random, mut draft: Draft, opposite: &Way, data: &[u8]) -> Sent {
        let (way, number, v6) = (draft.way, draft.number, draft.way.src.is_ipv6());
        let header = if v6 { 40 } else { 20 };
        let rebuilt = |way: Way, segment: Option<Segment>| Draft::new(way, number, segment, &[], data).sent();
        let replies = way.src != self.client.src;
        let segment = |flags: u8, offset: u32| self.segment(replies, flags, offset);
        let against = |offset: u32| self.segment(!replies, ACK, offset);
        let moved = |mut way: Way, by: u16| {
            way.src.set_port(way.src.port().wrapping_add(by));
            way
        };
        match random.below(22) {
            0 => draft.limit = random.pick(&[0, 1, 1, 1]),
            1 if v6 => draft.extensions = extensions(random, number),
            1 => draft.options = options4(random),
            2 => draft.wrong = random.pick(&[1, 0x1234]),
            3 => draft.none = draft.protocol == 17,
            4 => draft.fragment = random.pick(&[0x2000, 1, 0x2001, 0x8000]),
            5 => return rebuilt(moved(way, 20_000), segment(ACK, 1)),
            6 => {
                let (mut way, port) = (way, way.dst.port());
                // Not one that NAT may draw on one side, as it does below 512 where another is taken.
                way.dst.set_port(if port < 512 { port + 512 } else { port ^ 1 });
                return rebuilt(way, segment(ACK, 1));
            }
            7 => {
                return rebuilt(Way { port: (way.port + 1 + random.below(PORTS - 1)) % PORTS, ..way }, segment(ACK, 1));
            }
            // The opposite direction's ends by this port, and this one's ends exchanged.
            8 => return rebuilt(Way { port: way.port, ..*opposite }, against(1)),
            9 => return rebuilt(Way { port: way.port, src: way.dst, dst: way.src }, against(1)),
            10 if self.tcp => return rebuilt(way, segment(random.pick(&[0, PSH, 0x20, 0xff, FIN, SYN | FIN]), 1)),
            11 if self.tcp => draft.payload[12] = random.pick(&[0x00, 0x40, 0x60, 0xf0, 0x5f]),
            11 => {
                let length = random.pick(&[0, 7, 8, data.len() as u16 + 7, data.len() as u16 + 9, 0xffff]);
                draft.payload[4..6].copy_from_slice(&length.to_be_bytes());
            }
            12 => draft.payload.truncate(random.below(24).max(8)),
            13 => {
                let mut sent = draft.sent();
                let mut packet = sent.frame.split_off(14);
                match random.below(3) {
                    0 if !v6 => set_length4(&mut packet, random),
                    0 => packet[4..6].copy_from_slice(&random.pick(&[0u16, 8, 39, 1400]).to_be_bytes()),
                    1 if !v6 => packet[10] ^= 0x40,
                    1 => packet[0] = random.pick(&[0x40, 0x50, 0x70]),
                    _ if !v6 => resum4(&mut packet, |packet| packet[0] = random.pick(&[0x55, 0x65, 0x44, 0x46])),
                    _ => packet[6] = random.pick(&[0, 44, 59, 60, 1, 58]),
                }
                sent.frame.extend(packet);
                return sent;
            }
            14 => {
                let mut sent = draft.sent();
                sent.frame[..6].copy_from_slice(&random.pick(&[
                    [0xff; 6],
                    [2, 9, 9, 9, 9, 9],
                    router_mac((way.port + 1) % PORTS),
                ]));
                return sent;
            }
            15 => {
                let Sent { port, number, frame } = draft.sent();
                return Sent { port, number, frame: tagged(frame, 0x8100, random.pick(&[0, 5, 0x2000])) };
            }
            16 => {
                let mut sent = draft.sent();
                let padding = random.below(40);
                sent.frame.extend(vec![0xaa; padding]);
                return sent;
            }
            17 => {
                let mut sent = draft.sent();
                let length = sent.frame.len() - 1 - random.below(30);
                sent.frame.truncate(length.max(14 + header));
                return sent;
            }
            18 if self.tcp => draft = self.draft_beyond_window(way, replies, number, data),
            _ => return self.error(random, number, opposite, data),
        }
        draft.sent()
    }

    /// Returns an ICMP error about a packet of the opposite direction, as it left the router, or a distorted one.
    fn error(&self, random: &Random, number: u32, opposite: &Way, data: &[u8]) -> Sent {
        let way = if opposite.src == self.client.src { self.server.expect("an open connection") } else { self.client };
        let v6 = way.src.is_ipv6();
        let about = Way { port: way.port, src: way.dst, dst: way.src };
        let segment = self.tcp.then_some(Segment { seq: 1, ack: 1, flags: ACK });
        let mut quoted = Draft::new(about, number, segment, &[], &data[..data.len().min(60)]).packet();
        if random.chance(20) {
            quoted.truncate((if v6 { 40 } else { 20 }) + random.pick(&[0, 4, 8, 8]));
        }
        let (kind, code) = match v6 {
            false => random.pick(&[(3, 1), (3, 3), (3, 4), (11, 0), (12, 0), (5, 1)]),
            true => random.pick(&[(1, 0), (1, 4), (2, 0), (3, 0), (4, 1)]),
        };
        let [a, b] = random.pick(&[0u16, 1280, 1400]).to_be_bytes();
        let payload = [&[kind, code, 0, 0, 0, 0, a, b][..], &quoted].concat();
        let from = if random.chance(60) { way.src.ip() } else { host(random, v6, way.port, false) };
        let from = Way { src: SocketAddr::new(from, 0), ..way };
        let draft = Draft::new(from, number, None, &[], &[]);
        Draft { protocol: if v6 { 58 } else { 1 }, payload, ..draft }.sent()
    }

    /// Returns a packet after which the kernel's state of the connection may be another.
    fn turn(&self, random: &Random, number: u32) -> Sent {
        let replies = random.chance(50);
        let way = if replies { self.server.expect("an open connection") } else { self.client };
        let flags = random.pick(&[FIN | ACK, FIN | ACK, RST, RST | ACK, SYN, SYN | ACK]);
        let offset = u32::from(flags & SYN == 0);
        Draft::new(way, number, self.segment(replies, flags, offset), &[], &[]).sent()
    }

    /// Returns a TCP connection that nothing translates, and the packets that establish it, from number 1.
    pub fn example() -> (Self, Vec<Sent>) {
        let end = |port: u8, transport| SocketAddr::new(Ipv4Addr::new(10, 0, port + 1, 2).into(), transport);
        let client = Way { port: 0, src: end(0, 4000), dst: end(1, 80) };
        let server = Some(Way { port: 1, src: client.dst, dst: client.src });
        let (opening, standing) = (vec![], vec![]);
        let mut example =
            Self { tcp: true, client, server, initial: [1, 2], opening, after: 0, standing, ended: false };
        for phase in 0..3 {
            example.open(phase, phase as u32 + 1);
        }
        let opening = example.opening();
        (example, opening)
    }

    /// Returns packet 4, whose TCP checksum is wrong.
    pub fn with_wrong_checksum(&self) -> Sent {
        let draft = Draft::new(self.client, 4, self.segment(false, ACK, 1), &[], &numbered(4, 0));
        Draft { wrong: 1, ..draft }.sent()
    }

    /// Returns packet 4, which is beyond the window.
    pub fn beyond_window(&self) -> Sent {
        self.draft_beyond_window(self.client, false, 4, &numbered(4, 0)).sent()
    }

    fn draft_beyond_window(&self, way: Way, replies: bool, number: u32, data: &[u8]) -> Draft {
        let mut draft = Draft::new(way, number, self.segment(replies, ACK, 1 << 20), &[], data);
        draft.payload[18..20].copy_from_slice(&OUT_OF_WINDOW);
        draft
    }

    /// Returns packets that establish it; the last one of UDP has to come two seconds later.
    pub fn opening(&self) -> Vec<Sent> {
        let again = self.opening.get(1).filter(|_| !self.tcp);
        self.opening.iter().chain(again).cloned().collect()
    }

    /// Returns arguments of conntrack that select the connection.
    fn selection(&self) -> String {
        let Way { src, dst, .. } = self.client;
        let family = if src.is_ipv6() { "ipv6" } else { "ipv4" };
        let protocol = if self.tcp { "tcp" } else { "udp" };
        format!("-f {family} -p {protocol} -s {} -d {} --sport {}", src.ip(), dst.ip(), src.port())
    }
}

impl Connections {
    /// Returns connections to be opened, so that as many as wanted are open.
    pub fn fresh(&mut self, random: &Random, after: usize, standing: &[Change]) -> Vec<Connection> {
        let more = OPEN.saturating_sub(self.open.len());
        let more = if self.opened == 0 { more } else { more.min(AT_ONCE) };
        let mut fresh = vec![];
        for _ in 0..more {
            self.opened += 1;
            fresh.push(Connection::new(random, 1024 + self.opened, after, standing.to_vec()));
        }
        fresh
    }

    /// Keeps the connections whose packets have all arrived.
    pub fn add(&mut self, fresh: Vec<Connection>) {
        self.open.extend(fresh);
    }

    /// Ends or changes some connections, by commands of conntrack.
    pub fn commands(&mut self, random: &Random) -> Vec<Change> {
        let mut changes = vec![];
        if self.open.is_empty() || !random.chance(30) {
            return changes;
        }
        if random.chance(3) {
            self.open.iter_mut().for_each(|connection| connection.ended = true);
            return vec![Change::Run("conntrack -F".into())];
        }
        for _ in 0..1 + random.below(3) {
            let at = random.below(self.open.len());
            let connection = &mut self.open[at];
            if connection.ended {
                continue;
            }
            let selection = connection.selection();
            if random.chance(60) {
                connection.ended = true;
                changes.push(Change::Run(format!("conntrack -D {selection}")));
            } else {
                let mark = random.below(6);
                changes.push(Change::Run(format!("conntrack -U {selection} --mark {mark}")));
            }
        }
        changes
    }

    /// Returns a random packet of any connection, and the place of the connection.
    pub fn packet(&self, random: &Random, number: u32) -> Option<(usize, Sent)> {
        let at = random.below(self.open.len().max(1));
        self.open.get(at).map(|connection| (at, connection.packet(random, number)))
    }

    /// Returns packets that open and close TCP connections, and the places of the connections.
    pub fn turns(&self, random: &Random, number: u32) -> Vec<(usize, Sent)> {
        let mut turns: Vec<(usize, Sent)> = vec![];
        for (at, connection) in self.open.iter().enumerate() {
            if connection.tcp && !connection.ended && random.chance(4) {
                turns.push((at, connection.turn(random, number + turns.len() as u32)));
            }
        }
        turns
    }

    /// Forgets connections that have ended, and lets most of those at `places` end.
    pub fn end_and_forget(&mut self, random: &Random, places: Vec<usize>) {
        let ended: Vec<bool> = self.open.iter().map(|connection| connection.ended).collect();
        for at in places {
            self.open[at].ended |= random.chance(80);
        }
        let mut ended = ended.into_iter();
        self.open.retain(|_| !ended.next().expect("one for each"));
    }

    pub fn at(&self, place: usize) -> &Connection {
        &self.open[place]
    }
}

/// Returns the packets of phase `phase` by which connections are opened; those whose last one has not arrived are
/// removed.
pub fn open(fresh: &mut Vec<Connection>, phase: usize, mut number: u32) -> Vec<Sent> {
    let mut sent = vec![];
    fresh.retain_mut(|connection| {
        let packet = connection.open(phase, number);
        number += 1;
        sent.extend(packet.clone());
        packet.is_some()
    });
    sent
}

/// Takes what has left the kernel's router for the packets that were sent, and removes the connections of which nothing
/// has, or not the same from both, which `left` tells.
pub fn arrived(fresh: &mut Vec<Connection>, left: impl Fn(u32) -> Option<Left>) {
    fresh.retain_mut(|connection| {
        let number = connection.opening.last().expect("a packet").number;
        let way = left(number).and_then(|(port, frame)| back(port, &frame, connection.tcp));
        if connection.opening.len() == 1 {
            connection.server = way;
        }
        way.is_some()
    });
}
