//! Compares the XDP program, the traffic-control program and the router, all with VLANs, with a plain router that has a
//! port instead of each VLAN.
//!
//! The router must do with a tagged frame as the plain one does with the frame without its tag, received on
//! that port; and what it sends there must leave with the VLAN's tag. What the programs forward, the router must send
//! with the same bytes.

use super::flows::{Case, a_case};
use super::*;
use bywash_fib::flows::Flows;
use bywash_fib::model::{Families, Gate};
use bywash_port::af_xdp::{XdpBridging, XdpGate, XdpVlan};
use bywash_port::{TapConfig, TapPort};
use bywash_router::gates::Gates;
use bywash_router::tables::VlanInfo;
use bywash_router::tunnel::Tunnels;
use bywash_router::vlan::{FIRST, tag};
use std::cell::RefCell;

/// Port, protocol and identifier of each VLAN.
const VLANS: [(u16, u16, u16); 5] =
    [(0, 0x8100, 5), (0, 0x8100, 6), (0, 0x88a8, 5), (1, 0x8100, 5), (NO_TARGET, 0x8100, 9)];
/// The VLAN whose MAC address is that of its port.
const SAME: u16 = 1;

fn vlan_mac(n: u16) -> [u8; 6] {
    if n == SAME { mac(0) } else { [2, 0, 0, 0, 1, n as u8] }
}

fn vlan_tag(n: u16) -> [u8; 4] {
    let (_, protocol, id) = VLANS[usize::from(n)];
    tag(protocol, id)
}

/// Next hops by ports, which are below [`FIRST`], and by VLANs.
fn entries() -> Vec<Entry> {
    let forward = |port: u16, mtu| {
        let own = if port < FIRST { mac(port) } else { vlan_mac(port - FIRST) };
        let macs = [[2, 0, 0, 0, 2, port as u8], own].concat().try_into().unwrap();
        Entry::of_port(Kind::Forward, PortId(port), mtu, macs)
    };
    let unresolved = |port, kind| Entry::of_port(kind, PortId(port), 1500, [0; 12]);
    vec![
        Entry::verdict(Kind::NoRoute),
        forward(0, 1500),
        forward(1, 1500),
        forward(FIRST, 1500),
        forward(FIRST + 1, 1500),
        forward(FIRST + 2, 1500),
        forward(FIRST + 3, 1500),
        forward(FIRST + 4, 1500),
        forward(FIRST + 3, SMALL_MTU),
        Entry::of_group(0, 3),
        Entry::of_group(3, 2),
        Entry::verdict(Kind::Local),
        Entry::verdict(Kind::Kernel),
        unresolved(FIRST, Kind::Pending),
        unresolved(FIRST + 3, Kind::Glean),
        Entry::verdict(Kind::Blackhole),
    ]
}

/// Members of the groups: of a port and two VLANs, and of a VLAN to which the program cannot send.
const MEMBERS: [u32; 5] = [2, 6, 4, 7, 3];

/// Routes back to sources: address, prefix length and entry. They lead to port 0, VLANs 0, 1 and 2, and a group.
const SOURCES: [([u8; 4], u8, u32); 6] = [
    ([10, 200, 0, 0], 18, 1),
    ([10, 200, 64, 0], 18, 3),
    ([10, 200, 128, 0], 18, 4),
    ([10, 200, 192, 0], 19, 5),
    ([10, 200, 224, 0], 19, 9),
    (OWN, 32, 11),
];

fn hop(entry: &Entry) -> Hop {
    let vlan = entry.port.0.checked_sub(FIRST).map(|n| (VLANS[usize::from(n)].0, vlan_tag(n)));
    let target = vlan.map_or(entry.port.0, |(port, _)| port) != NO_TARGET;
    let kind = match entry.kind {
        Kind::Local => HopKind::Local,
        Kind::Kernel => HopKind::Kernel,
        Kind::Forward if target && vlan.is_some() => HopKind::Vlan,
        Kind::Forward if target => HopKind::Forward,
        Kind::Group => HopKind::Group,
        _ => HopKind::User,
    };
    let unicast = matches!(entry.kind, Kind::Forward | Kind::Glean | Kind::Pending);
    let flags = if unicast { TAKES_FRAMES | UNICAST } else { TAKES_FRAMES };
    let group = (entry.group().start as u32, entry.group().len() as u32);
    let (first, count) = vlan.map_or(group, |(port, tag)| (port.into(), u32::from_le_bytes(tag)));
    Hop { macs: entry.macs, kind, flags, port: entry.port.0, mtu: entry.mtu, first, count, ifindex: 0 }
}

/// The programs on three interfaces, and tables.
struct Trunks {
    datapath: XdpDatapath,
    programs: Vec<(Program, u32)>,
    domain: Qsbr,
    fibs: (Table4, Table6),
}

impl Trunks {
    /// `named` returns the name of each port's interface.
    fn new(named: impl Fn(u16) -> String, how: XdpAttach) -> Self {
        let datapath = XdpDatapath::load().unwrap();
        let mut programs = vec![];
        for id in 0..PORTS {
            let link = LinkInfo::query(&named(id)).unwrap();
            programs.push((Program::attach_to(&datapath, id, &link, how, None).unwrap(), link.index));
            datapath.set_device(id, link.index).unwrap();
        }
        let domain = Qsbr::new();
        let memory = |family| Box::new(Memory(datapath.segments(family).unwrap()));
        let mut fibs = (
            Table4::shared(&domain, memory(Family::V4)).unwrap(),
            Table6::shared(&domain, memory(Family::V6)).unwrap(),
        );
        let entries = entries();
        for id in 0..entries.len() as u32 {
            let (net4, net6) = subnets(id);
            fibs.0.insert(net4, id);
            fibs.1.insert(net6, id);
        }
        for (addr, len, id) in SOURCES {
            fibs.0.insert(Net::new(u32::from_be_bytes(addr), len).unwrap(), id);
        }
        let index = |hop: &Hop| {
            let port = if hop.kind == HopKind::Vlan { hop.first } else { hop.port.into() };
            programs.get(port as usize).map_or(0, |(_, index)| *index)
        };
        let hops: Vec<Hop> = entries.iter().map(hop).map(|hop| Hop { ifindex: index(&hop), ..hop }).collect();
        datapath.publish(&hops, &MEMBERS, Own4::default().with(OWN.into()).octets());
        Self { datapath, programs, domain, fibs }
    }

    fn set_up(&mut self, mode: Mode, gate: XdpGate) {
        for (id, (program, _)) in (0u16..).zip(&mut self.programs) {
            let config = XdpConfig { gate, ..mode.config(id) };
            let source_check = config.source_check;
            program.set_config(config).unwrap();
            let vlan = |n: u16| {
                let (number, tag, mac) = (FIRST + n, vlan_tag(n), vlan_mac(n));
                XdpVlan {
                    id: number,
                    entry: number,
                    tag,
                    mac,
                    max_frame: MAX_FRAME + 4,
                    gate,
                    source_check,
                    rules: false,
                    bridging: XdpBridging::default(),
                }
            };
            let of_port = (0..VLANS.len() as u16).filter(|n| VLANS[usize::from(*n)].0 == id);
            program.set_vlans(of_port.map(vlan).collect()).unwrap();
        }
    }

    /// Returns the router's tables, with VLANs, or `flat`, with a port instead of each.
    fn tables(&self, mode: Mode, flat: bool) -> Arc<Published<Tables>> {
        let info = |mac, vlans| PortInfo {
            index: 1,
            mac,
            partial_checksums: true,
            source_check: mode.check,
            vlans,
            ..PortInfo::default()
        };
        let numbers = || 0..VLANS.len() as u16;
        let of_port = |port: u16| {
            let of_port = numbers().filter(|n| VLANS[usize::from(*n)].0 == port);
            let mut vlans: Vec<_> = of_port.map(|n| (vlan_tag(n), PortId(FIRST + n))).collect();
            vlans.sort_unstable();
            vlans
        };
        let (mut entries, mut ports, mut vlans) = (entries(), vec![], vec![]);
        if flat {
            ports.extend((0..PORTS).map(|port| info(mac(port), vec![])));
            ports.extend(numbers().map(|n| info(vlan_mac(n), vec![])));
            entries.iter_mut().filter(|entry| entry.port.0 >= FIRST).for_each(|entry| entry.port.0 -= FIRST - PORTS);
        } else {
            ports.extend((0..PORTS).map(|port| info(mac(port), of_port(port))));
            vlans.extend(numbers().map(|n| {
                let port = PortId(VLANS[usize::from(n)].0);
                Some(VlanInfo { port, tag: vlan_tag(n), info: info(vlan_mac(n), vec![]) })
            }));
        }
        let hash = if mode.l3 { HashPolicy::L3 } else { HashPolicy::L4 };
        let tables = Tables {
            generation: 1,
            fib4: self.fibs.0.reader(),
            fib6: self.fibs.1.reader(),
            cold: vec![Cold::default(); entries.len()],
            entries,
            buckets: MEMBERS.to_vec(),
            ports,
            vlans,
            bonds: vec![],
            bridges: vec![],
            tunnels: Tunnels::default(),
            own4: Own4::default().with(OWN.into()),
            hash4: hash,
            hash6: hash,
        };
        Arc::new(Published::new(&self.domain, tables))
    }

    /// Runs the program over a frame from port 0. Returns the name of the verdict, the port of a redirect, and the
    /// resulting bytes.
    fn drive(&self, frame: &[u8], skb: bool) -> (&'static str, Option<u16>, Vec<u8>) {
        let counted = || {
            let of = |(program, _): &(Program, u32)| program.counters().unwrap();
            self.programs.iter().map(of).collect::<Vec<_>>()
        };
        let (before, from) = (counted(), self.programs[0].1);
        let tried =
            if skb { self.datapath.try_skb(from, frame) } else { self.datapath.try_frame(from, frame) }.unwrap();
        let after = counted();
        let reasons: Vec<_> = REASONS.into_iter().filter(|r| after[0].get(r) > before[0].get(r)).collect();
        assert_eq!(reasons.len(), 1, "counted once: {reasons:?}");
        let sent = |port: &u16| after[usize::from(*port)].tx_frames > before[usize::from(*port)].tx_frames;
        let to = (0..PORTS).find(sent);
        assert_eq!((tried.redirected(), tried.passed()), (to.is_some(), to.is_none()), "{}", reasons[0]);
        (reasons[0], to, tried.bytes)
    }
}

/// Tag that a frame is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    None,
    /// VLAN and priority.
    Vlan(u16, u8),
    /// Tag that belongs to no interface.
    Other([u8; 4]),
    /// VLAN 0, with another tag behind it.
    Two,
}

fn a_tag() -> impl Strategy<Value = Tag> {
    prop_oneof![
        4 => Just(Tag::None),
        12 => (0u16..3, prop_oneof![3 => Just(0), 1 => any::<u8>()]).prop_map(|(n, priority)| Tag::Vlan(n, priority)),
        1 => prop::sample::select(vec![
            [0x81, 0, 0, 0],
            [0x81, 0, 0xe0, 0],
            [0x81, 0, 0, 7],
            [0x81, 0, 0x0f, 0xff],
            [0x88, 0xa8, 0, 6],
            [0x91, 0, 0, 5],
        ]).prop_map(Tag::Other),
        1 => Just(Tag::Two),
    ]
}

/// Returns the frame with a tag; its addresses, if they are the port's, become the VLAN's.
fn tagged(frame: &[u8], with: Tag) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let insert = |frame: &mut Vec<u8>, tag: [u8; 4]| drop(frame.splice(12..12, tag));
    match with {
        Tag::None => {}
        Tag::Other(tag) => insert(&mut frame, tag),
        Tag::Two => {
            insert(&mut frame, [0x81, 0, 0, 6]);
            insert(&mut frame, vlan_tag(0));
            frame[..6].copy_from_slice(&vlan_mac(0));
        }
        Tag::Vlan(n, priority) => {
            let mut tag = vlan_tag(n);
            tag[2] |= priority & 0xf0;
            insert(&mut frame, tag);
            for at in [0, 6] {
                if frame[at..at + 6] == mac(0) {
                    frame[at..at + 6].copy_from_slice(&vlan_mac(n));
                }
            }
        }
    }
    frame
}

/// Returns the number of the plain router's port for a frame from port 0, and the frame that it gets; `None` for a tag
/// of nobody. In no way like the router's own.
fn flattened(frame: &[u8]) -> Option<(u16, Vec<u8>)> {
    let kind = be16(&frame[12..]) as u16;
    if !matches!(kind, 0x8100 | 0x88a8) {
        return Some((0, frame.to_vec()));
    }
    let id = be16(frame.get(14..16)?) as u16 % 4096;
    let n = VLANS.iter().position(|vlan| *vlan == (0, kind, id)).filter(|_| frame.len() >= 18)?;
    Some((PORTS + n as u16, [&frame[..12], &frame[16..]].concat()))
}

/// Returns a frame without its tag, if it has one.
fn untag(frame: &[u8]) -> Vec<u8> {
    let tagged = matches!(be16(&frame[12..]), 0x8100 | 0x88a8);
    if tagged { [&frame[..12], &frame[16..]].concat() } else { frame.to_vec() }
}

/// Returns what is sent for what the plain router sends.
fn with_tags(sent: &[(u16, Vec<u8>)]) -> Vec<(u16, Vec<u8>)> {
    let tag = |(port, frame): &(u16, Vec<u8>)| match port.checked_sub(PORTS) {
        None => (*port, frame.clone()),
        Some(n) => (VLANS[usize::from(n)].0, [&frame[..12], &vlan_tag(n)[..], &frame[12..]].concat()),
    };
    sent.iter().map(tag).collect()
}

/// Returns the fates of frames from port 0 in the plain router; `None` for a tag of nobody.
fn flat_fates(trunks: &Trunks, mode: Mode, frames: &[Vec<u8>]) -> Vec<Option<Fate>> {
    let flat = trunks.tables(mode, true);
    let ways: Vec<_> = frames.iter().map(|frame| flattened(frame)).collect();
    let mut fates: Vec<Option<Fate>> = frames.iter().map(|_| None).collect();
    let ports = PORTS + VLANS.len() as u16;
    for from in 0..ports {
        let mine =
            || ways.iter().enumerate().filter_map(|(at, way)| Some((at, way.as_ref()?))).filter(|w| w.1.0 == from);
        let bare: Vec<_> = mine().map(|(_, (_, frame))| frame.clone()).collect();
        if bare.is_empty() {
            continue;
        }
        let done = route_at(flat.clone(), &trunks.domain, (ports, from), mode.redirects, &bare, |router| router);
        for ((at, _), fate) in mine().zip(done) {
            fates[at] = Some(fate);
        }
    }
    fates
}

const MODES: [Mode; 4] = [
    Mode { redirects: false, check: SourceCheck::Off, l3: false },
    Mode { redirects: true, check: SourceCheck::Off, l3: true },
    Mode { redirects: false, check: SourceCheck::Loose, l3: false },
    Mode { redirects: false, check: SourceCheck::Strict, l3: true },
];

/// Destinations of each next hop.
fn targets() -> (Vec<u32>, Vec<u128>) {
    let nets = (0..entries().len() as u32).map(subnets);
    let of = |(net4, net6): (Net4, Net6)| ((1..5).map(move |n| net4.addr() + n), (2..6).map(move |n| net6.addr() + n));
    let (v4, v6): (Vec<_>, Vec<_>) = nets.map(of).unzip();
    (v4.into_iter().flatten().collect(), v6.into_iter().flatten().collect())
}

/// Returns whether the program has a reason not to forward a frame that the router forwards by `to`.
fn may_leave(reason: &str, mode: Mode, frame: &[u8], to: u16, sent: &[u8], trunks: &Trunks) -> bool {
    let Some((port, mut bare)) = flattened(frame) else { return reason == "pass_vlan" };
    // As port 0 would get it.
    let own = port.checked_sub(PORTS).map_or(mac(0), vlan_mac);
    for at in [0, 6] {
        if bare[at..at + 6] == own {
            bare[at..at + 6].copy_from_slice(&mac(0));
        } else if bare[at..at + 6] == mac(0) {
            bare[at..at + 6].copy_from_slice(&mac(9));
        }
    }
    let untagged = untag(sent);
    let target = |at: usize, len: usize| bare.get(at..at + len).map(|ip| ip.to_vec());
    let id = match be16(&bare[12..]) {
        0x800 => target(30, 4).map(|ip| trunks.fibs.0.reader().lookup(u32::from_be_bytes(ip.try_into().unwrap()))),
        0x86dd => target(38, 16).map(|ip| trunks.fibs.1.reader().lookup(u128::from_be_bytes(ip.try_into().unwrap()))),
        _ => None,
    };
    let leads = id.map(|id| (entries()[id as usize].kind, 0));
    match reason {
        "pass_no_socket" | "pass_exception" => leaves(&bare, mode.redirects, to, &untagged),
        "pass_superframe" => frame.len() > MAX_FRAME as usize,
        "pass_source" => be16(&bare[12..]) == 0x86dd && bare[22..30] == [0; 8],
        "pass_vlan" => matches!(be16(&bare[12..]), 0x8100 | 0x88a8),
        _ => passes(reason, &bare, leads),
    }
}

fn frames(shapes: &[(Shape, Tag)]) -> Vec<Vec<u8>> {
    let (targets4, targets6) = targets();
    shapes.iter().map(|(shape, tag)| tagged(&shape.build(&targets4, &targets6), *tag)).collect()
}

#[test]
fn vlans_are_like_ports() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut trunks = Trunks::new(|id| format!("p{id}"), XdpAttach::Native);
            let forwarded = RefCell::new(BTreeMap::<(bool, bool), u64>::new());
            let left = RefCell::new(BTreeMap::<&str, u64>::new());
            for mode in MODES {
                trunks.set_up(mode, XdpGate::default());
                let tables = trunks.tables(mode, false);
                let mut runner =
                    TestRunner::new(ProptestConfig { cases: 30, failure_persistence: None, ..Default::default() });
                let done = runner.run(&prop::collection::vec((a_shape(), a_tag()), 1..200), |shapes| {
                    let frames = frames(&shapes);
                    let fates = route(tables.clone(), &trunks.domain, mode.redirects, &frames);
                    let flat = flat_fates(&trunks, mode, &frames);
                    prop_assert_eq!(fates.len(), frames.len());
                    for ((frame, fate), flat) in frames.iter().zip(&fates).zip(&flat) {
                        let show = || format!("{mode:?} {frame:02x?}, the router sent {:02x?}", fate.sent);
                        match flat {
                            Some(flat) => {
                                prop_assert!(fate.sent == with_tags(&flat.sent), "{:02x?} {}", flat.sent, show());
                                prop_assert!(fate.punted == flat.punted && fate.named == flat.named, "{}", show());
                            }
                            None => prop_assert!(fate.sent.is_empty() && fate.punted, "{}", show()),
                        }
                        let (reason, to, bytes) = trunks.drive(frame, false);
                        if let Some(to) = to {
                            prop_assert!(fate.sent == [(to, bytes.clone())], "{bytes:02x?} {}", show());
                            let tag = |frame: &[u8]| matches!(be16(&frame[12..]), 0x8100 | 0x88a8);
                            *forwarded.borrow_mut().entry((tag(frame), tag(&bytes))).or_default() += 1;
                        } else {
                            prop_assert!(bytes == *frame, "{reason}, changed: {bytes:02x?} {}", show());
                            *left.borrow_mut().entry(reason).or_default() += 1;
                            if let [(to, sent)] = &fate.sent[..] {
                                // The router sends without padding where a packet is too long with it, and pieces.
                                let whole = flattened(frame).is_none_or(|(_, bare)| bare.len() == untag(sent).len());
                                let may = !whole || may_leave(reason, mode, frame, *to, sent, &trunks);
                                prop_assert!(may, "{reason}: {}", show());
                            }
                        }
                        if frame.len() >= 54 && flattened(frame).is_some_and(|(port, _)| port == 0) {
                            let (_, skb_to, mut skb) = trunks.drive(frame, true);
                            prop_assert!(skb_to == to, "as an skb to {skb_to:?}, else {reason}: {}", show());
                            // The tag is beside the data.
                            if let Some((_, sent)) = fate.sent.first().filter(|_| to.is_some())
                                && sent.len() > frame.len()
                            {
                                skb.splice(12..12, sent[12..16].to_vec());
                            }
                            prop_assert!(skb == bytes, "as an skb {skb:02x?}: {}", show());
                        }
                    }
                    Ok(())
                });
                if let Err(e) = done {
                    panic!("{e}");
                }
            }
            let (forwarded, left) = (forwarded.into_inner(), left.into_inner());
            println!("{forwarded:?} {left:?}");
            for way in [(false, false), (false, true), (true, false), (true, true)] {
                assert!(forwarded[&way] > 100, "{forwarded:?}");
            }
            assert!(left["pass_no_socket"] > 100 && left["pass_vlan"] > 100 && left["pass_source"] > 50, "{left:?}");
        })
        .unwrap();
}

/// A packet of a flow, the VLAN that it arrives by, and the port or VLAN that the flow leaves by.
struct Flowing {
    case: Case,
    tag: Tag,
    out: u16,
}

impl Flowing {
    fn new(case: Case, from: u16) -> Self {
        let entry = entries()[case.id as usize];
        let by = match entry.kind {
            Kind::Group => entries()[MEMBERS[entry.group().start] as usize].port.0,
            _ => entry.port.0,
        };
        let out = case.port.map_or(by, |port| [0, 1, FIRST, FIRST + 3][usize::from(port)]);
        let tag = from.checked_sub(1).map_or(Tag::None, |vlan| Tag::Vlan(vlan, 0));
        Self { case, tag, out }
    }

    /// Adds the flow to a table; `number` returns the numbers of ports and VLANs there.
    fn insert(&self, flows: &mut Flows, n: u16, number: impl Fn(u16) -> u16) {
        let from = if let Tag::Vlan(vlan, _) = self.tag { FIRST + vlan } else { 0 };
        let mut flow = self.case.flow(n, number(self.out));
        *(if self.case.reply { &mut flow.output } else { &mut flow.input }) = number(from);
        if self.case.known > 2 {
            flows.insert(&flow, 1).unwrap();
        }
    }
}

#[test]
fn a_port_goes_on_whose_vlans_cannot_be_set() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut trunks = Trunks::new(|id| format!("p{id}"), XdpAttach::Native);
            trunks.set_up(MODES[0], XdpGate::default());
            let program = &mut trunks.programs[0].0;
            let before = program.config();
            // More than the program's map takes.
            let vlan = |id| XdpVlan {
                id: FIRST,
                entry: FIRST,
                tag: tag(0x8100, id),
                mac: vlan_mac(0),
                max_frame: MAX_FRAME + 4,
                gate: XdpGate::default(),
                source_check: before.source_check,
                rules: false,
                bridging: XdpBridging::default(),
            };
            let all: Vec<XdpVlan> = (1..1000).map(vlan).collect();
            let why = program.set_vlans(all.clone()).unwrap_err().to_string();
            assert!(why.contains("vlans"), "{why}");
            assert_eq!(program.config(), before);
            // Not tried again for a while, for the same reason; without VLANs there is none.
            assert_eq!(program.set_vlans(all.clone()).unwrap_err().to_string(), why);
            program.set_vlans(vec![]).unwrap();
            assert!(program.set_vlans(all).is_err());
        })
        .unwrap();
}

/// Packets of established flows past closed gates, with and without tags on either side: the router must do what the
/// plain one does with flows of the ports instead of the VLANs, and the programs what the router does.
#[test]
fn flows_of_vlans_are_like_those_of_ports() {
    require!(require_lab());
    let gates = Gates::closed();
    for number in 0..FIRST + VLANS.len() as u16 {
        gates.set(PortId(number), Gate { flows: Families::BOTH, ..Gate::CLOSED });
    }
    let past = XdpGate { flows4: true, flows6: true, ..XdpGate::CLOSED };
    let check = || {
        let mut runner = TestRunner::deterministic();
        let shapes = prop::collection::vec((a_case(), 0u16..4, 1u32..11), 200);
        let (mut forwarded, mut left) = (BTreeMap::<(bool, bool, bool), u64>::new(), BTreeMap::<&str, u64>::new());
        let with_tag = |frame: &[u8]| matches!(be16(&frame[12..]), 0x8100 | 0x88a8);
        for mode in MODES {
            let mut trunks = Trunks::new(|id| format!("p{id}"), XdpAttach::Native);
            let memory = [Family::V4, Family::V6].map(|family| {
                Some(Box::new(Memory(trunks.datapath.flow_segments(family).unwrap())) as Box<dyn Shared>)
            });
            let mut flows = Flows::new(&trunks.domain, memory, 2000).unwrap();
            let mut flat_flows = Flows::new(&trunks.domain, [None, None], 2000).unwrap();
            flows.set_generation(1);
            flat_flows.set_generation(1);
            trunks.set_up(mode, past);
            let (tables, flat) = (trunks.tables(mode, false), trunks.tables(mode, true));
            for round in 0..5 {
                let cases = shapes.new_tree(&mut runner).unwrap().current().into_iter().zip(round * 200..);
                let flowing = cases.map(|((case, from, id), n)| {
                    // Wrong checksums have two zeros.
                    let checksum = if case.checksum == 0 { 5 } else { case.checksum };
                    let flowing = Flowing::new(Case { id, checksum, ..case }, from);
                    flowing.insert(&mut flows, n, |number| number);
                    flowing
                        .insert(&mut flat_flows, n, |number| number.checked_sub(FIRST).map_or(number, |n| n + PORTS));
                    (tagged(&flowing.case.frame(n), flowing.tag), flowing)
                });
                let (frames, flowing): (Vec<Vec<u8>>, Vec<Flowing>) = flowing.unzip();
                let fates = route_with(tables.clone(), &trunks.domain, mode.redirects, &frames, |router| {
                    router.with_gates(gates.clone()).with_flows(flows.reader())
                });
                for ((frame, fate), Flowing { case, tag, .. }) in frames.iter().zip(&fates).zip(&flowing) {
                    let show = || format!("{mode:?} {case:?} {tag:?} {frame:02x?}, the router sent {:02x?}", fate.sent);
                    let (port, bare) = flattened(frame).unwrap();
                    let ports = (PORTS + VLANS.len() as u16, port);
                    let reader = flat_flows.reader();
                    let plain = route_at(flat.clone(), &trunks.domain, ports, mode.redirects, &[bare], |router| {
                        router.with_gates(gates.clone()).with_flows(reader)
                    });
                    assert!(fate.sent == with_tags(&plain[0].sent), "{:02x?} {}", plain[0].sent, show());
                    assert!(fate.punted == plain[0].punted, "{}", show());
                    let (reason, to, bytes) = trunks.drive(frame, false);
                    if let Some(to) = to {
                        assert!(fate.sent == [(to, bytes.clone())], "{bytes:02x?} {}", show());
                        *forwarded.entry((case.v6, with_tag(frame), with_tag(&bytes))).or_default() += 1;
                    } else {
                        assert!(bytes == *frame, "{reason}, changed: {bytes:02x?} {}", show());
                        // The program knows no next hops by ports that it cannot send to.
                        let known = fate.sent.first().is_none_or(|(port, _)| *port != NO_TARGET);
                        let users = ["pass_no_socket", if known { "" } else { "pass_policy" }];
                        assert!(fate.sent.is_empty() || users.contains(&reason), "{reason}: {}", show());
                        *left.entry(reason).or_default() += 1;
                    }
                    if *tag == Tag::None && frame.len() >= 54 {
                        let (_, skb_to, mut skb) = trunks.drive(frame, true);
                        // Finished or not, the kernel knows the checksum's state.
                        if case.checksum == 1 {
                            continue;
                        }
                        assert!(skb_to == to, "as an skb to {skb_to:?}, else {reason}: {}", show());
                        if let Some((_, sent)) = fate.sent.first().filter(|_| to.is_some())
                            && sent.len() > frame.len()
                        {
                            skb.splice(12..12, sent[12..16].to_vec());
                        }
                        assert!(skb == bytes, "as an skb {skb:02x?}: {}", show());
                    }
                }
            }
        }
        println!("{forwarded:?} {left:?}");
        for v6 in [false, true] {
            for way in [(v6, false, false), (v6, false, true), (v6, true, false), (v6, true, true)] {
                assert!(forwarded[&way] > 30, "{forwarded:?}");
            }
        }
        assert!(left["pass_policy"] > 100 && left["pass_no_socket"] > 30, "{left:?}");
    };
    lab().enter(check).unwrap();
}

/// TAP interfaces instead of the ports, without IP forwarding.
struct Taps {
    taps: Vec<TapPort>,
    bufs: Buffers,
}

impl Taps {
    fn new() -> Self {
        let arena = Arena::new(ArenaConfig { cells: 1024, ..Default::default() }).unwrap();
        let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 1024)]).unwrap();
        let tap = |id| {
            let config = TapConfig { name: format!("t{id}"), mac: Some(mac(id)), mtu: None, up: true };
            TapPort::create(&config).unwrap()
        };
        Self { taps: (0..PORTS).map(tap).collect(), bufs: Buffers::attach(&pools, 0) }
    }

    /// Delivers a frame to port 0. Returns the frames that leave, with their ports.
    fn give(&mut self, frame: &[u8]) -> Vec<(u16, Vec<u8>)> {
        let mut batch = Batch::new();
        assert_eq!(self.bufs.alloc(&mut batch, 1), 1);
        assert!(self.bufs.arena().write(&mut batch.as_mut_slice()[0], frame));
        assert_eq!(self.taps[0].tx_burst(&mut self.bufs, &mut batch), 1);
        self.sent()
    }

    fn sent(&mut self) -> Vec<(u16, Vec<u8>)> {
        let mut sent = vec![];
        for (id, tap) in (0u16..).zip(&mut self.taps) {
            let mut batch = Batch::new();
            while tap.rx_burst(&mut self.bufs, &mut batch) > 0 {
                sent.extend(batch.as_slice().iter().map(|f| (id, self.bufs.arena().data(f).to_vec())));
                self.bufs.free(&mut batch);
            }
        }
        sent
    }
}

/// The kernel takes a received frame's tag out of it before traffic control sees it, and puts a tag into a frame that a
/// TAP interface sends.
#[test]
fn traffic_control_does_what_xdp_does_with_tags() {
    require!(require_lab(), bywash_lab::kernel_has("tun"));
    let (ports, taps) = (lab(), Namespace::new("taps").unwrap());
    taps.sysctl("net.ipv6.conf.all.disable_ipv6", "1").unwrap();
    taps.sysctl("net.ipv6.conf.default.disable_ipv6", "1").unwrap();
    let mut xdp = ports.enter(|| Trunks::new(|id| format!("p{id}"), XdpAttach::Native)).unwrap();
    let (mut lines, mut tc) =
        taps.enter(|| (Taps::new(), Trunks::new(|id| format!("t{id}"), XdpAttach::Generic))).unwrap();
    if !tc.programs[0].0.has_tc() {
        println!("SKIP: kernel without tcx (6.6)");
        return;
    }
    let mut forwarded = 0;
    let mut runner = TestRunner::deterministic();
    let shapes = prop::collection::vec((a_shape(), a_tag()), 100);
    for mode in MODES {
        // An skb keeps the mark of an unfinished checksum, so traffic control does not look for one.
        let set_up = |trunks: &mut Trunks| {
            trunks.set_up(mode, XdpGate::default());
            for (program, _) in &mut trunks.programs {
                program.set_config(XdpConfig { partial: false, ..program.config() }).unwrap();
            }
        };
        ports.enter(|| set_up(&mut xdp)).unwrap();
        taps.enter(|| set_up(&mut tc)).unwrap();
        for _ in 0..20 {
            let frames = frames(&shapes.new_tree(&mut runner).unwrap().current());
            for frame in &frames {
                let (reason, to, bytes) = ports.enter(|| xdp.drive(frame, false)).unwrap();
                // For shorter IP frames the program has no headers to read in an skb, and there is no longer a frame.
                if frame.len() < 60 || frame.len() > 1518 {
                    continue;
                }
                let expected: Vec<_> = to.map(|to| (to, bytes)).into_iter().collect();
                let mut sent = lines.give(frame);
                if sent.is_empty() && !expected.is_empty() {
                    let _ = bywash_lab::wait_until("the frame", std::time::Duration::from_millis(500), || {
                        sent = lines.sent();
                        !sent.is_empty()
                    });
                }
                assert!(sent == expected, "{mode:?} {reason} {frame:02x?}\n  sent {sent:02x?}\n  not {expected:02x?}");
                forwarded += sent.len();
            }
        }
    }
    assert!(forwarded > 1000, "{forwarded} forwarded");
    lines.taps.iter_mut().for_each(|tap| tap.close(&mut lines.bufs));
}
