//! Compares the XDP program, the router and a model for packets of established connections, which both forward past a
//! closed gate: they must agree byte for byte, and pass everything else to the kernel as it came.

use super::*;
use bywash_fib::flows::{Flow, FlowId, Flows, Traffic, Tuple};
use bywash_fib::model::{Families, Gate};
use bywash_fib::{flow_hash4, flow_hash6};
use bywash_port::af_xdp::XdpGate;
use bywash_router::gates::Gates;
use bywash_wire::checksum::{checksum, update_u16};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// A packet, and the flow that it may belong to.
#[derive(Clone, Debug)]
pub struct Case {
    pub v6: bool,
    pub tcp: bool,
    pub reply: bool,
    /// Entry of the translated destination.
    pub id: u32,
    /// Set if source and destination are translated.
    pub translated: [bool; 2],
    /// 0: the flow is not in the table; 1: revoked; 2: of another generation.
    pub known: u8,
    /// The port in the flow that the packet leaves by, if it is not the right one.
    pub port: Option<u16>,
    pub strange_source: bool,
    pub ttl: u8,
    pub flags: u8,
    pub checksum: u8,
    pub fault: u8,
    pub body: Vec<u8>,
    pub padding: usize,
}

/// Faults by which a packet is left to the kernel, from 0 on.
const FAULTS: u8 = 10;

pub fn a_case() -> impl Strategy<Value = Case> {
    let body = prop_oneof![
        10 => prop::collection::vec(any::<u8>(), 0..60),
        2 => prop::collection::vec(any::<u8>(), 100..220),
        1 => prop::collection::vec(any::<u8>(), 1400..1460),
    ];
    let id = prop_oneof![8 => prop::sample::select(vec![1u32, 2, 2]), 6 => 1u32..15];
    let known = prop_oneof![10 => Just(9u8), 1 => 0u8..3];
    let port = prop_oneof![10 => Just(None), 1 => (0u16..4).prop_map(Some)];
    let ttl = prop_oneof![10 => 2u8.., 1 => 0u8..2];
    let flags = prop_oneof![10 => prop::sample::select(vec![0x10u8, 0x18, 0x30, 0xd0]), 1 => any::<u8>()];
    let fault = prop_oneof![10 => Just(255u8), 2 => 0..FAULTS];
    let padding = prop_oneof![8 => Just(0usize), 1 => 1usize..60];
    let kind = (any::<bool>(), any::<bool>(), any::<bool>(), id, any::<[bool; 2]>());
    let packet = (ttl, flags, 0u8..6, fault, body, padding);
    (kind, known, port, prop::bool::weighted(0.1), packet).prop_map(
        |((v6, tcp, reply, id, translated), known, port, strange_source, packet)| {
            let (ttl, flags, checksum, fault, body, padding) = packet;
            Case {
                v6,
                tcp,
                reply,
                id,
                translated,
                known,
                port,
                strange_source,
                ttl,
                flags,
                checksum,
                fault,
                body,
                padding,
            }
        },
    )
}

fn reversed(t: Tuple) -> Tuple {
    Tuple { src: t.dst, dst: t.src, src_port: t.dst_port, dst_port: t.src_port }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

impl Case {
    fn proto(&self) -> u8 {
        if self.tcp { 6 } else { 17 }
    }

    /// Returns the tuples with which the packet arrives and leaves; `n` is the number of the case.
    fn tuples(&self, n: u16) -> (Tuple, Tuple) {
        let [high, low] = n.to_be_bytes();
        // Sources that are routed back by port 0 or 1, whatever the check makes of that.
        let own = |net: u8| -> IpAddr {
            match self.v6 {
                false => Ipv4Addr::new(10, 200, net | high, low).into(),
                true => Ipv6Addr::new(0xfd00, net.into(), 0, 0, 0, 0, 7, n).into(),
            }
        };
        let (net4, net6) = subnets(self.id);
        let there: IpAddr = match self.v6 {
            false => Ipv4Addr::from_bits(net4.addr() + 0x100 + u32::from(n)).into(),
            true => Ipv6Addr::from_bits(net6.addr() + 0x100 + u128::from(n)).into(),
        };
        let arrives = Tuple {
            src: own(if self.strange_source { 64 } else { 0 }),
            dst: if self.translated[1] { own(16) } else { there },
            src_port: 1000 + n,
            dst_port: 443,
        };
        let leaves = Tuple {
            src: if self.translated[0] { own(32) } else { arrives.src },
            dst: there,
            src_port: if self.translated[0] { 40_000 ^ n } else { arrives.src_port },
            dst_port: if self.translated[1] { 8443 } else { 443 },
        };
        (arrives, leaves)
    }

    pub fn flow(&self, n: u16, port: u16) -> Flow {
        let (arrives, leaves) = self.tuples(n);
        let (back, protocol) = (reversed(leaves), self.proto());
        match self.reply {
            false => Flow { protocol, original: arrives, reply: back, input: 0, output: port },
            true => Flow { protocol, original: back, reply: arrives, input: port, output: 0 },
        }
    }

    /// Returns the packet with these tuples, with right checksums.
    fn l3(&self, tuple: Tuple, ttl: u8) -> Vec<u8> {
        let mut l4 = [tuple.src_port.to_be_bytes(), tuple.dst_port.to_be_bytes()].concat();
        if self.tcp {
            l4.extend([1, 2, 3, 4, 5, 6, 7, 8, 0x50, self.flags, 9, 9, 0, 0, 0, 0]);
        } else {
            l4.extend(((8 + self.body.len()) as u16).to_be_bytes());
            l4.extend([0, 0]);
        }
        l4.extend(&self.body);
        let (src, dst) = (octets(tuple.src), octets(tuple.dst));
        let len = l4.len() as u16;
        let pseudo = [&src[..], &dst, &[0, self.proto()], &len.to_be_bytes(), &l4].concat();
        let right = match checksum(&pseudo) {
            0 if !self.tcp => 0xffff,
            right => right,
        };
        l4[self.field()..][..2].copy_from_slice(&right.to_be_bytes());
        if self.v6 {
            let [a, b] = len.to_be_bytes();
            return [&[0x60, 0, 0x12, 0x34, a, b, self.proto(), ttl][..], &src, &dst, &l4].concat();
        }
        let [a, b] = (20 + len).to_be_bytes();
        let mut ip = [&[0x45, 0, a, b, 7, 7, 0x40, 0, ttl, self.proto(), 0, 0][..], &src, &dst].concat();
        ipv4::fill_checksum(&mut ip);
        [ip, l4].concat()
    }

    fn field(&self) -> usize {
        if self.tcp { 16 } else { 6 }
    }

    fn header(&self) -> usize {
        if self.v6 { 40 } else { 20 }
    }

    /// Returns the frame that arrives.
    pub fn frame(&self, n: u16) -> Vec<u8> {
        let (arrives, _) = self.tuples(n);
        let mut l3 = self.l3(arrives, self.ttl);
        let at = self.header() + self.field();
        match self.checksum {
            0 => l3[at] ^= 0x35,
            1 => {
                let unfinished = self.unfinished(arrives, &l3);
                l3[at..at + 2].copy_from_slice(&unfinished.to_be_bytes());
            }
            2 => l3[at..at + 2].fill(0),
            _ => {}
        }
        match self.fault {
            // Options, extension headers.
            0 if self.v6 => l3[6] = [0, 43, 44, 60][usize::from(n % 4)],
            0 => l3[0] = 0x46,
            1 if self.v6 => l3[0] = 0x50,
            1 => l3[6] = [0x20, 0x01][usize::from(n % 2)],
            // Another protocol.
            2 => l3[if self.v6 { 6 } else { 9 }] = [1, 58, 132, 47][usize::from(n % 4)],
            // A header that is cut off, by the packet's length.
            3 => {
                l3.truncate(self.header() + if self.tcp { 19 } else { 7 });
                let len = l3.len() as u16;
                match self.v6 {
                    true => l3[4..6].copy_from_slice(&(len - 40).to_be_bytes()),
                    false => l3[2..4].copy_from_slice(&len.to_be_bytes()),
                }
            }
            // Lengths in the transport header that cannot be.
            4 if self.tcp => l3[self.header() + 12] = 0x40,
            4 => l3[self.header() + 4..][..2].copy_from_slice(&7u16.to_be_bytes()),
            5 if self.tcp && self.body.len() < 40 => l3[self.header() + 12] = 0xf0,
            5 if self.tcp => l3[self.header() + 13] |= 2,
            // More than the packet has, or less: the kernel checks the checksum over all octets.
            5 => {
                let wrong = if n.is_multiple_of(2) && !self.body.is_empty() { 7 } else { 9 };
                l3[self.header() + 4..][..2].copy_from_slice(&(wrong + self.body.len() as u16).to_be_bytes());
            }
            // Longer than the frame.
            6 if self.v6 => l3[4] ^= 0x80,
            6 => l3[2] ^= 0x80,
            _ => {}
        }
        if !self.v6 {
            ipv4::fill_checksum(&mut l3[..20]);
        }
        match self.fault {
            7 if !self.v6 => l3[10] ^= 4,
            7 => l3[7] = 1,
            8 if self.v6 => l3[8..16].copy_from_slice(&[0xfe, 0x80, 0, 0, 0, 0, 0, 0]),
            8 => l3[12..14].copy_from_slice(&[169, 254]),
            // Another port of the sender.
            9 => l3[self.header()] ^= 0x80,
            _ => {}
        }
        let kind: u16 = if self.v6 { 0x86dd } else { 0x800 };
        let mut frame = [&mac(0)[..], &[2, 0, 0, 0, 0, 9], &kind.to_be_bytes(), &l3].concat();
        frame.resize(frame.len() + self.padding, 0);
        frame
    }

    /// Returns the sum of the pseudo-header, which a sender leaves in the field for its device.
    fn unfinished(&self, tuple: Tuple, l3: &[u8]) -> u16 {
        let len = (l3.len() - self.header()) as u16;
        let pseudo = [octets(tuple.src), octets(tuple.dst), vec![0, self.proto()], len.to_be_bytes().to_vec()].concat();
        !checksum(&pseudo)
    }

    /// Returns the entry that a translated packet takes.
    fn entry(&self, mode: Mode, n: u16) -> Entry {
        let all = entries();
        let entry = all[self.id as usize];
        if entry.kind != Kind::Group {
            return entry;
        }
        // The kernel translates sources after routing.
        let (arrives, leaves) = self.tuples(n);
        let ports = u32::from(arrives.src_port) << 16 | u32::from(leaves.dst_port);
        let hash = match (arrives.src, leaves.dst) {
            (IpAddr::V4(a), IpAddr::V4(b)) if mode.l3 => flow_hash4(a.to_bits(), b.to_bits(), 0, 0),
            (IpAddr::V4(a), IpAddr::V4(b)) => flow_hash4(a.to_bits(), b.to_bits(), self.proto(), ports),
            (IpAddr::V6(a), IpAddr::V6(b)) if mode.l3 => flow_hash6(a.to_bits(), b.to_bits(), self.proto(), 0x1234),
            (IpAddr::V6(a), IpAddr::V6(b)) => flow_hash6(a.to_bits(), b.to_bits(), self.proto(), ports),
            _ => unreachable!("one family"),
        };
        let members = &BUCKETS[entry.group()];
        let pick = (u64::from(hash) * members.len() as u64) >> 32;
        all[members[pick as usize] as usize]
    }

    /// Returns the port by which the flow's packets leave, as connection tracking and routes say.
    fn port(&self, mode: Mode, n: u16) -> u16 {
        self.port.unwrap_or(self.entry(mode, n).port.0)
    }

    /// Returns whether the packet belongs to a valid flow by its header and the tables of flows alone.
    fn is_of_flow(&self) -> bool {
        let plain = !self.tcp || self.flags & 0x17 == 0x10;
        plain && self.fault >= FAULTS && self.known > 2 && self.ttl > 1
    }

    /// Returns the port and the frame that is expected to leave, as a plain function of the packet.
    fn expected(&self, mode: Mode, n: u16) -> Option<(u16, Vec<u8>)> {
        let (arrives, leaves) = self.tuples(n);
        let (entry, given) = (self.entry(mode, n), self.frame(n));
        let strict = mode.check == SourceCheck::Strict && self.strange_source && !self.v6;
        let fits = given.len() - 14 <= entry.mtu as usize;
        let back = mode.redirects && entry.port == PortId(0);
        let right = entry.port.0 == self.port(mode, n);
        if !self.is_of_flow() || entry.kind != Kind::Forward || !right || !fits || strict || back {
            return None;
        }
        let mut l3 = self.l3(leaves, self.ttl - 1);
        let at = self.header() + self.field();
        let was = u16::from_be_bytes(*given[14 + at..].first_chunk().unwrap());
        match self.checksum {
            2 if !self.tcp => l3[at..at + 2].fill(0),
            0 | 2 => {
                // As wrong as it was.
                let words = |t: Tuple| {
                    [octets(t.src), octets(t.dst), t.src_port.to_be_bytes().to_vec(), t.dst_port.to_be_bytes().to_vec()]
                        .concat()
                };
                let (old, new) = (words(arrives), words(leaves));
                let pairs = old.as_chunks::<2>().0.iter().zip(new.as_chunks::<2>().0);
                let now =
                    pairs.fold(was, |sum, (a, b)| update_u16(sum, u16::from_be_bytes(*a), u16::from_be_bytes(*b)));
                l3[at..at + 2].copy_from_slice(&now.to_be_bytes());
            }
            _ => {}
        }
        let mut frame = [&entry.macs[..], &given[12..14], &l3].concat();
        frame.resize(given.len(), 0);
        Some((entry.port.0, frame))
    }

    /// Returns whether the program leaves a packet of a flow to user space: one with an unfinished checksum, or that
    /// leaves by a device that takes no frames.
    fn is_users(&self, mode: Mode, n: u16) -> bool {
        let (arrives, _) = self.tuples(n);
        let frame = self.frame(n);
        let l3 = &frame[14..frame.len() - self.padding];
        let field = u16::from_be_bytes(*l3[self.header() + self.field()..].first_chunk().unwrap());
        field != 0 && field == self.unfinished(arrives, l3) || self.entry(mode, n).port.0 == NO_TARGET
    }
}

/// Returns whether two frames are the same, but for the two zeros of a checksum that was wrong before.
fn same(case: &Case, a: &[u8], b: &[u8]) -> bool {
    let at = 14 + case.header() + case.field();
    let zero = |frame: &[u8]| frame.get(at..at + 2).is_some_and(|field| matches!(field, [0, 0] | [0xff, 0xff]));
    a == b || (case.checksum < 3 && zero(a) && zero(b) && a[..at] == b[..at] && a[at + 2..] == b[at + 2..])
}

const GENERATION: u32 = 7;

struct Table {
    flows: Flows,
    ids: Vec<FlowId>,
}

impl Table {
    /// Returns an empty table in the memory that the programs read.
    fn of(twin: &Twin) -> Table {
        let memory = [Family::V4, Family::V6]
            .map(|family| Some(Box::new(Memory(twin.datapath.flow_segments(family).unwrap())) as Box<dyn Shared>));
        let mut flows = Flows::new(&twin.world.domain, memory, 1000).unwrap();
        flows.set_generation(GENERATION);
        Table { flows, ids: vec![] }
    }

    /// Puts the flows of the cases into the table.
    fn fill(&mut self, mode: Mode, cases: &[Case]) {
        for (n, case) in (0..).zip(cases).filter(|(_, case)| case.known > 0) {
            let generation = if case.known == 2 { GENERATION - 1 } else { GENERATION };
            let id = self.flows.insert(&case.flow(n, case.port(mode, n)), generation).unwrap();
            if case.known == 1 {
                self.flows.revoke(id);
            }
            self.ids.push(id);
        }
    }

    /// Returns the packets and bytes of all flows, and removes them.
    fn empty(&mut self) -> (u64, u64) {
        let of = |id: &FlowId| self.flows.traffic(*id);
        let all: Vec<Traffic> = self.ids.iter().flat_map(of).collect();
        self.ids.drain(..).for_each(|id| self.flows.remove(id));
        let limit = Instant::now() + Duration::from_secs(60);
        while self.flows.collect() > 0 {
            assert!(Instant::now() < limit, "no grace period ends");
            std::thread::yield_now();
        }
        (all.iter().map(|t| u64::from(t.packets)).sum(), all.iter().map(|t| t.bytes).sum())
    }
}

/// Gives the packets to the program, as frames and as skbs, and to the router. Returns how many flows had.
fn run(twin: &Twin, table: &mut Table, mode: Mode, forward: bool, cases: &[Case]) -> Result<u64, TestCaseError> {
    table.fill(mode, cases);
    let frames: Vec<_> = (0..).zip(cases).map(|(n, case)| case.frame(n)).collect();
    let gates = Gates::closed();
    gates.set(PortId(0), Gate { flows: Families::BOTH, ..Gate::CLOSED });
    let reader = table.flows.reader();
    let fates = route_with(twin.tables.clone(), &twin.world.domain, mode.redirects, &frames, |router| {
        router.with_gates(gates).with_flows(reader)
    });
    let (mut packets, mut bytes) = (0, 0);
    for (n, ((case, frame), fate)) in (0..).zip(cases.iter().zip(&frames).zip(&fates)) {
        let expected = case.expected(mode, n);
        let show = || format!("{mode:?} {case:?}: expected {expected:02x?}, the router sent {:02x?}", fate.sent);
        let len = (frame.len() - 14 - case.padding) as u64;
        match &expected {
            Some((port, frame)) => {
                let sent = fate.sent.len() == 1 && fate.sent[0].0 == *port && same(case, &fate.sent[0].1, frame);
                prop_assert!(sent && !fate.punted, "{}", show());
                (packets, bytes) = (packets + 1, bytes + len);
            }
            None => prop_assert!(fate.sent.is_empty() && fate.punted, "{}", show()),
        }
        for skb in [false, true] {
            // For shorter IP frames the kernel makes no skb.
            if skb && (frame.len() < 54 || !forward) {
                continue;
            }
            let (reason, to, out) = twin.drive(frame, skb);
            let show = || format!("skb {skb}, {reason} to {to:?}: {out:02x?}, {}", show());
            let to_user = if skb { "pass_exception" } else { "pass_no_socket" };
            prop_assert!(to.is_some() || out == *frame, "changed: {}", show());
            // Entry 7 is a group with a member that is left to the kernel.
            let here = forward && case.id != 7;
            match &expected {
                Some((_, sent)) if here && !case.is_users(mode, n) => {
                    prop_assert!(to == Some(fate.sent[0].0) && out == fate.sent[0].1, "{}", show());
                    prop_assert!(same(case, &out, sent));
                    (packets, bytes) = (packets + 1, bytes + len);
                }
                Some(_) if here => prop_assert!(reason == to_user || reason == "pass_policy", "{}", show()),
                _ if !forward && case.is_of_flow() => prop_assert_eq!(reason, to_user, "{}", show()),
                // A packet that is left to the kernel for two reasons may be left to user space for the first.
                _ if forward && case.is_of_flow() && reason == to_user => {
                    prop_assert!(case.is_users(mode, n), "{}", show());
                }
                _ => prop_assert!(matches!(reason, "pass_policy" | "pass_source"), "{}", show()),
            }
        }
    }
    prop_assert_eq!(table.empty(), (packets, bytes));
    Ok(packets)
}

#[test]
fn flows_are_translated_past_a_closed_gate_by_both() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut twin = Twin::new();
            let mut table = Table::of(&twin);
            let modes = [
                Mode::default(),
                Mode { redirects: true, ..Mode::default() },
                Mode { l3: true, check: SourceCheck::Loose, ..Mode::default() },
                Mode { check: SourceCheck::Strict, ..Mode::default() },
            ];
            for (mode, forward) in modes.into_iter().flat_map(|mode| [(mode, true), (mode, false)]) {
                twin.set_up(mode);
                for (program, _) in &mut twin.programs {
                    let gate = XdpGate { flows4: true, flows6: true, ..XdpGate::CLOSED };
                    program.set_config(XdpConfig { gate, forward, ..program.config() }).unwrap();
                }
                let mut runner = TestRunner::deterministic();
                let shapes = prop::collection::vec(a_case(), 200);
                let mut forwarded = 0;
                for _ in 0..10 {
                    let cases = shapes.new_tree(&mut runner).unwrap().current();
                    forwarded += run(&twin, &mut table, mode, forward, &cases).unwrap_or_else(|e| panic!("{e}"));
                }
                println!("{mode:?}, at level driver {forward}: {forwarded} forwarded");
                assert!(forwarded > if forward { 800 } else { 300 });
            }
            // A family without flows is closed, or open and routed as without a gate.
            let cases = tcp_and_udp();
            let mode = Mode::default();
            twin.set_up(mode);
            table.fill(mode, &cases);
            let drive = |twin: &mut Twin, gate: XdpGate| {
                for (program, _) in &mut twin.programs {
                    program.set_config(XdpConfig { gate, forward: true, ..program.config() }).unwrap();
                }
                [0, 1].map(|n| twin.drive(&cases[n].frame(n as u16), false).0)
            };
            let only4 = XdpGate { flows4: true, ..XdpGate::CLOSED };
            assert_eq!(drive(&mut twin, only4), ["to_port", "pass_policy"]);
            // To an address of no route, unless it is translated.
            assert_eq!(drive(&mut twin, XdpGate { v6: false, ..only4 })[0], "to_port");
            assert_ne!(drive(&mut twin, XdpGate { v6: false, ..only4 })[1], "pass_policy");
            assert_eq!(drive(&mut twin, XdpGate::CLOSED), ["pass_policy"; 2]);
            let both = XdpGate { flows4: true, flows6: true, ..XdpGate::CLOSED };
            assert_eq!(drive(&mut twin, both), ["to_port"; 2]);
            // Revoked by one store; closed by the watcher.
            table.flows.set_generation(GENERATION + 1);
            assert_eq!(drive(&mut twin, both), ["pass_policy"; 2]);
            table.flows.set_generation(GENERATION);
            assert_eq!(drive(&mut twin, both), ["to_port"; 2]);
            twin.datapath.close();
            assert_eq!(drive(&mut twin, both), ["pass_policy"; 2]);
            twin.datapath.open();
            assert_eq!(drive(&mut twin, both), ["to_port"; 2]);
        })
        .unwrap();
}

/// Returns a TCP packet over IPv4 and a UDP packet over IPv6.
fn tcp_and_udp() -> [Case; 2] {
    let tcp = Case {
        v6: false,
        tcp: true,
        reply: false,
        id: 2,
        translated: [true; 2],
        known: 9,
        port: None,
        strange_source: false,
        ttl: 9,
        flags: 16,
        checksum: 5,
        fault: 255,
        body: vec![1; 40],
        padding: 0,
    };
    let udp = Case { v6: true, tcp: false, ..tcp.clone() };
    [tcp, udp]
}

/// Packets of no flow are counted by the programs and by the router, from the last one on that opened or closed a
/// connection.
///
/// The table is a new one, and all ways count packets of the same tuple: the random hash puts the weights of two tuples
/// into one slot now and then, and then the one delays the report of the other.
#[test]
fn candidates_are_reported_by_both() {
    require!(require_lab());
    lab().enter(candidates_are_reported).unwrap();
}

fn candidates_are_reported() {
    let mut twin = Twin::new();
    let mut flows = Table::of(&twin).flows;
    twin.set_up(Mode::default());
    for (program, _) in &mut twin.programs {
        let gate = XdpGate { flows4: true, flows6: true, ..XdpGate::CLOSED };
        program.set_config(XdpConfig { gate, forward: true, ..program.config() }).unwrap();
    }
    let gates = Gates::closed();
    gates.set(PortId(0), Gate { flows: Families::BOTH, ..Gate::CLOSED });
    for (n, case) in (300..).step_by(10).zip(&tcp_and_udp()) {
        let closing = Case { flags: 0x11, ..case.clone() };
        // Each report of a UDP tuple doubles the packets until the next; the end of a TCP connection begins anew.
        for (before, skb) in [(7, Some(false)), (7, Some(true)), (15, None)] {
            let before = if case.tcp { 7 } else { before };
            let mut seen = |case: &Case, times: usize| {
                let frames = vec![case.frame(n); times];
                match skb {
                    Some(skb) => frames.iter().for_each(|frame| assert_eq!(twin.drive(frame, skb).0, "pass_policy")),
                    None => {
                        let reader = flows.reader();
                        route_with(twin.tables.clone(), &twin.world.domain, false, &frames, |router| {
                            router.with_gates(gates.clone()).with_flows(reader)
                        });
                    }
                }
                flows.candidates(usize::MAX)
            };
            assert_eq!(seen(case, before), [], "{skb:?} {case:?}");
            if case.tcp {
                assert_eq!(seen(&closing, 20), [], "{skb:?} {case:?}");
                assert_eq!(seen(case, 7), [], "{skb:?} {case:?}");
            }
            assert_eq!(seen(case, 1), [(case.proto(), case.flow(n, 0).original)], "{skb:?}");
        }
    }
}
