//! The sources of the router's XDP program under the host's compiler, compared with the stages of the router: both have
//! the same tables and get the same frames. The comparison is that of the tests of the program in the kernel.

#[expect(dead_code, reason = "the tests use more of it")]
#[path = "../../crates/bywash/tests/driver/model.rs"]
mod model;

use bywash_engine::PortId;
use bywash_fib::Shared;
use bywash_fib::flows::{Flow, FlowId, Flows, Traffic, Tuple};
use bywash_fib::model::{Families, Gate};
use bywash_port::af_xdp::{Hop, REASONS, XdpConfig, XdpGate};
use bywash_router::gates::Gates;
use bywash_router::tables::SourceCheck;
use bywash_router::vlan::FIRST;
use bywash_sync::Qsbr;
use model::*;
use std::cell::RefCell;
use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{FromRawFd, OwnedFd};

/// `struct outcome` of harness.c.
#[repr(C)]
struct Outcome {
    verdict: u32,
    reason: i32,
    to: i32,
    len: u32,
    data: *const u8,
}

#[link(name = "xdp", kind = "static")]
// SAFETY: the declarations are those of harness.c.
unsafe extern "C" {
    fn xdp_begin() -> c_int;
    fn xdp_segment(table: u32, n: u32) -> c_int;
    fn xdp_port(id: u32, words: *const u64, bridged: *const u64, own: u64);
    fn xdp_target(id: u32);
    fn xdp_renew(table: u32, n: u32);
    fn xdp_hops(all: *const Hop, many: u32, members: *const u32, many_members: u32);
    fn xdp_run(frame: *const u8, len: u32, skb: c_int, how: c_int, start: c_int, out: *mut Outcome);
}

// linux/bpf.h, linux/pkt_cls.h
const XDP_PASS: u32 = 2;
const XDP_REDIRECT: u32 = 4;
const TC_ACT_UNSPEC: u32 = u32::MAX;
const TC_ACT_REDIRECT: u32 = 7;

/// Memory of a table, by its number in harness.c; of each two, the first is for IPv4.
struct Memory(u32);

impl Shared for Memory {
    fn segment(&mut self, n: usize) -> io::Result<OwnedFd> {
        // SAFETY: the function checks both numbers.
        let fd = unsafe { xdp_segment(self.0, n as u32) };
        assert!(fd >= 0, "no memory for a table");
        // SAFETY: a descriptor that was just made, owned by no one else.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// The program runs on this thread.
    fn grace(&mut self) {}
}

/// Modes with flows past closed gates, behind those without.
const FLOW_MODES: [Mode; 3] = [MODES[0], MODES[1], Mode { redirects: false, check: SourceCheck::Strict, l3: true }];
const MANY_FLOWS: u16 = 32;

/// Returns flow `n`: for each of both families, protocols and directions, with and without translation of its source
/// and its destination.
fn flow(n: u16) -> Flow {
    let bit = |bit: u16| n >> bit & 1 == 1;
    // Next hops by ports 0 and 1, one that the program cannot send by, one with a small MTU, and a group.
    let id = [1, 2, 2, 3, 4, 5][usize::from(n % 6)];
    let (net4, net6) = subnets(id);
    let own = |net: u8| -> IpAddr {
        match bit(0) {
            false => Ipv4Addr::new(10, 200, net, n as u8).into(),
            true => Ipv6Addr::new(0xfd00, net.into(), 0, 0, 0, 0, 7, n).into(),
        }
    };
    let there: IpAddr = match bit(0) {
        false => Ipv4Addr::from_bits(net4.addr() + 0x100 + u32::from(n)).into(),
        true => Ipv6Addr::from_bits(net6.addr() + 0x100 + u128::from(n)).into(),
    };
    let arrives = Tuple { src: own(0), dst: if bit(4) { own(16) } else { there }, src_port: 1000 + n, dst_port: 443 };
    let leaves = Tuple {
        src: if bit(3) { own(32) } else { arrives.src },
        dst: there,
        src_port: if bit(3) { 40_000 + n } else { arrives.src_port },
        dst_port: if bit(4) { 8443 } else { 443 },
    };
    let back = Tuple { src: leaves.dst, dst: leaves.src, src_port: leaves.dst_port, dst_port: leaves.src_port };
    let port = if id == 5 { 1 } else { entries()[id as usize].port.0 };
    let protocol = if bit(1) { 6 } else { 17 };
    match bit(2) {
        false => Flow { protocol, original: arrives, reply: back, input: 0, output: port },
        true => Flow { protocol, original: back, reply: arrives, input: port, output: 0 },
    }
}

/// Number of the bridge.
const BRIDGE: u16 = FIRST + 7;

/// Numbers of the tables of flows in harness.c: the program's and the router's.
const FLOWS: [u32; 2] = [2, 4];

/// The flows of a side, with what they have carried.
struct Connections {
    table: u32,
    flows: Flows,
    known: Vec<(FlowId, [Traffic; 2])>,
}

/// What a flow has carried, as packets and bytes of each direction, and whether it was closed.
type Change = ([(u32, u64); 2], bool);

impl Connections {
    fn new(table: u32) -> Self {
        let memory = [table, table + 1].map(|table| Some(Box::new(Memory(table)) as Box<dyn Shared>));
        let mut flows = Flows::new(&Qsbr::new(), memory, usize::from(MANY_FLOWS)).expect("memory");
        flows.set_generation(1);
        let known = (0..MANY_FLOWS).map(|n| (flows.insert(&flow(n), 1).expect("room"), Default::default())).collect();
        Self { table, flows, known }
    }

    /// Returns what has changed since the last call, by flow. Closed flows are valid again then.
    fn changes(&mut self) -> impl Iterator<Item = Change> {
        let Self { table, flows, known } = self;
        known.iter_mut().map(|(id, before)| {
            let now = flows.traffic(*id);
            let carried = |d: usize| {
                let (now, before) = (now[d], before[d]);
                (now.packets.wrapping_sub(before.packets), now.bytes.wrapping_sub(before.bytes))
            };
            let carried = [carried(0), carried(1)];
            *before = now;
            let closed = flows.generation(*id) == 0;
            if closed {
                // SAFETY: a flow in the table.
                unsafe { xdp_renew(*table + u32::from(id.is_v6()), id.index() as u32) };
                assert_eq!(flows.generation(*id), 1, "another record was written to");
            }
            (carried, closed)
        })
    }
}

/// Both sides.
struct Bench {
    world: World,
    /// Entries of the program's ports in each mode, as such and as members of a bridge.
    words: Vec<Vec<[[u64; 3]; 2]>>,
    /// The router in each mode.
    rigs: Vec<Rig>,
    /// The program's flows and the router's.
    connections: [Connections; 2],
}

impl Bench {
    fn new() -> Self {
        // SAFETY: called once, before all others.
        assert!(unsafe { xdp_begin() } != 0, "no memory at the addresses of frames");
        let memory = |table| Box::new(Memory(table)) as Box<dyn Shared>;
        let world = World::new([memory(0), memory(1)]);
        let hops: Vec<Hop> =
            hops(&world.entries).iter().map(|hop| Hop { ifindex: u32::from(hop.port) + 1, ..*hop }).collect();
        // SAFETY: so many of each are there.
        unsafe { xdp_hops(hops.as_ptr(), hops.len() as u32, BUCKETS.as_ptr(), BUCKETS.len() as u32) };
        // SAFETY: numbers of ports.
        (0..PORTS).filter(|id| *id != NO_TARGET).for_each(|id| unsafe { xdp_target(id.into()) });
        let connections = FLOWS.map(Connections::new);
        let gate = XdpGate { flows4: true, flows6: true, ..XdpGate::CLOSED };
        let entry = |mode: Mode, id: u16, gate| {
            let words = |master: Option<u16>| {
                let bridged = master.is_some();
                XdpConfig { gate, master, bridged, ..mode.config(id) }.words(id, u32::from(id) + 1)
            };
            [None, Some(BRIDGE)].map(words)
        };
        let entries = |mode, gate| (0..PORTS).map(|id| entry(mode, id, gate)).collect();
        let plain = MODES.map(|mode| entries(mode, XdpGate::default()));
        let words = plain.into_iter().chain(FLOW_MODES.map(|mode| entries(mode, gate))).collect();
        let rig = |mode: Mode, flows: Option<&Flows>| {
            Rig::new(world.tables(mode), &world.domain, (PORTS, 0), mode.redirects, |router| match flows {
                Some(flows) => {
                    let gates = Gates::closed();
                    gates.set(PortId(0), Gate { flows: Families::BOTH, ..Gate::CLOSED });
                    router.with_gates(gates).with_flows(flows.reader())
                }
                None => router,
            })
        };
        let plain = MODES.map(|mode| rig(mode, None));
        let rigs = plain.into_iter().chain(FLOW_MODES.map(|mode| rig(mode, Some(&connections[1].flows)))).collect();
        Self { world, words, rigs, connections }
    }

    fn give(&mut self, data: &[u8]) {
        let (mode, frame) = input(data);
        let mode = mode % self.rigs.len();
        for (id, [words, bridged]) in (0..).zip(&self.words[mode]) {
            // SAFETY: number and entries of a port.
            unsafe { xdp_port(id, words.as_ptr(), bridged.as_ptr(), World::own4().octets()) };
        }
        if frame.len() < 14 {
            return assert_eq!(drive(&frame, false, false), ("pass_short", None, frame));
        }
        let other = if mode < MODES.len() { self.world.addressed(&frame) } else { of_flow(&frame) };
        for frame in other.into_iter().chain([frame]) {
            match mode.checked_sub(MODES.len()) {
                None => self.compare(mode, &frame),
                Some(_) => self.compare_flows(mode, &frame),
            }
        }
    }

    fn compare(&mut self, mode: usize, frame: &[u8]) {
        let fate = self.rigs[mode].give(frame);
        self.world
            .compare(MODES[mode], frame, &fate, |frame, skb| drive(frame, skb, true))
            .unwrap_or_else(|e| panic!("{e}"));
    }

    /// Compares packets of flows past closed gates: what the program forwards, the router forwards, and both count it
    /// for the same flow.
    fn compare_flows(&mut self, mode: usize, frame: &[u8]) {
        let (reason, to, bytes) = both(frame, |frame, skb| drive(frame, skb, false)).unwrap_or_else(|e| panic!("{e}"));
        let fate = self.rigs[mode].give(frame);
        let show = || format!("{reason} to {to:?} {bytes:02x?}: {frame:02x?}, the router sent {:02x?}", fate.sent);
        // Packets in frames to others are left to the kernel, which does not forward them. A router without the program
        // has no such frames but those to groups.
        let own = (frame[..6] == mac(0) || frame[0] & 1 == 1) && frame[6..12] != mac(0);
        match (to, &fate.sent[..]) {
            (Some(to), [(port, sent)]) => assert!(*port == to && *sent == bytes && !fate.punted, "{}", show()),
            (Some(_), _) => panic!("{}", show()),
            (None, sent) => {
                assert!(bytes == frame, "changed: {}", show());
                let users = |to: u16| to == NO_TARGET || unfinished(frame);
                let kept = ["pass_no_socket", "pass_policy", "pass_superframe"].contains(&reason);
                let may_stay = !own || kept && sent.iter().all(|(to, _)| users(*to));
                assert!(sent.is_empty() || may_stay, "{}", show());
            }
        }
        let runs = if to.is_none() { 0 } else { RUNS * (1 + u32::from(is_skb(frame))) };
        let [theirs, ours] = &mut self.connections;
        for ((carried, closed), (by_router, closed_there)) in theirs.changes().zip(ours.changes()) {
            let expected = by_router.map(|(packets, bytes)| (packets * runs, bytes * u64::from(runs)));
            let alike = carried == expected && (closed == closed_there || !own);
            assert!(alike, "{carried:?} {closed} {by_router:?} {}", show());
        }
    }
}

/// Returns the frame with addresses, ports and protocol of a flow; `None` if it is too short.
fn of_flow(frame: &[u8]) -> Option<Vec<u8>> {
    let v6 = match be16(frame.get(12..14)?) {
        0x800 => false,
        0x86dd => true,
        _ => return None,
    };
    let (addresses, protocol, l4) = if v6 { (22, 20, 54) } else { (26, 23, 34) };
    let mut frame = frame.to_vec();
    // The last octet of the destination chooses.
    let n = u16::from(*frame.get(l4 - 1)?) % (MANY_FLOWS / 2) * 2 + u16::from(v6);
    let flow = flow(n);
    let tuple = if flow.input == 0 { flow.original } else { flow.reply };
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    frame[addresses..l4].copy_from_slice(&[octets(tuple.src), octets(tuple.dst)].concat());
    frame[protocol] = flow.protocol;
    frame.get_mut(l4..l4 + 2)?.copy_from_slice(&tuple.src_port.to_be_bytes());
    frame.get_mut(l4 + 2..l4 + 4)?.copy_from_slice(&tuple.dst_port.to_be_bytes());
    mend(&mut frame);
    Some(frame)
}

/// Ways in which a frame arrives: `enum arrival` of harness.c.
const PLAINLY: c_int = 0;
const TAGGED: c_int = 1;
const BRIDGED: c_int = 2;

/// Runs of the program in [`drive`] over a frame of a flow.
const RUNS: u32 = 3;

/// Runs the program of XDP or of traffic control over a frame at the end and at the beginning of memory, with the tag
/// of a VLAN whose entry is that of the port and, if wanted, on the port as a bridge's member. It must do the same,
/// whether it has looked the addresses up before or not.
fn drive(frame: &[u8], skb: bool, bridged: bool) -> Driven {
    let run = |how: c_int, start: bool| {
        let mut out = Outcome { verdict: 0, reason: 0, to: 0, len: 0, data: std::ptr::null() };
        let len = frame.len() as u32;
        // SAFETY: a frame of its length, which fits the memory for it.
        unsafe { xdp_run(frame.as_ptr(), len, skb.into(), how, start.into(), &raw mut out) };
        // SAFETY: the frame in that memory, which is not written before the next run.
        let bytes = unsafe { std::slice::from_raw_parts(out.data, out.len as usize) }.to_vec();
        let reason = usize::try_from(out.reason).map_or("not counted once", |reason| REASONS[reason]);
        let [passed, redirected] = if skb { [TC_ACT_UNSPEC, TC_ACT_REDIRECT] } else { [XDP_PASS, XDP_REDIRECT] };
        let to = u16::try_from(out.to).ok();
        let verdict = if to.is_some() { redirected } else { passed };
        assert_eq!(out.verdict, verdict, "{reason} to {to:?}, skb {skb}: {frame:02x?}");
        (reason, to, bytes)
    };
    let (at_end, at_start) = (run(PLAINLY, false), run(PLAINLY, true));
    assert!(at_end == at_start, "{at_end:02x?} {at_start:02x?}, skb {skb}: {frame:02x?}");
    // Others' tags, and second ones, are left to the kernel.
    if frame.len() < 14 || matches!(be16(&frame[12..]), 0x8100 | 0x88a8) {
        return at_end;
    }
    if bridged {
        let bridged = run(BRIDGED, skb);
        assert!(bridged == at_end, "{at_end:02x?}, from a bridge {bridged:02x?}, skb {skb}: {frame:02x?}");
    }
    // The longest frame for user space is not longer by a tag.
    if !(MAX_FRAME - 3..=MAX_FRAME).contains(&(frame.len() as u32)) {
        let (reason, to, mut bytes) = run(TAGGED, skb);
        if to.is_none() && !skb {
            assert_eq!(bytes.drain(12..16).as_slice(), [0x81, 0, 0, 5], "another tag");
        }
        let tagged = (reason, to, bytes);
        assert!(tagged == at_end, "{at_end:02x?}, with a tag {tagged:02x?}, skb {skb}: {frame:02x?}");
    }
    at_end
}

/// Gives the frames that an input stands for to both sides, and compares.
pub fn xdp(data: &[u8]) {
    thread_local!(static BENCH: RefCell<Bench> = RefCell::new(Bench::new()));
    BENCH.with_borrow_mut(|bench| bench.give(data));
}
