//! Compares the XDP program with the user-space router: both get the same frames and the same tables.
//!
//! The kernel runs the program over a frame (BPF_PROG_TEST_RUN); the router gets the frame from a port in memory. A
//! frame that the program redirects to a port must leave the router by that port with the same bytes. A frame that the
//! router forwards and the program does not must have a reason for it: see [`World::compare`].
//!
//! A further test compares both with the Linux kernel: with the same routes, the kernel must forward the same frames
//! with the same bytes, except for [`DIFFERENCES`].

#[path = "driver/bonds.rs"]
mod bonds;
#[path = "driver/bridges.rs"]
mod bridges;
#[path = "driver/flows.rs"]
mod flows;
#[path = "driver/kernel.rs"]
mod kernel;
#[path = "driver/model.rs"]
mod model;
#[path = "driver/nat.rs"]
mod nat;
#[path = "driver/vlans.rs"]
mod vlans;

use bywash_engine::PortId;
use bywash_fib::{Net, Net4, Net6, Shared, Table4, Table6};
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use bywash_lab::{End, Namespace, Veth, require, require_lab};
use bywash_port::Port;
use bywash_port::af_xdp::{
    Family, Hop, HopKind, LinkInfo, Program, REASONS, Segments, TAKES_FRAMES, TunnelEnd, TunnelPolicy, UNICAST,
    XdpAttach, XdpConfig, XdpDatapath,
};
use bywash_router::Router;
use bywash_router::tables::{Cold, Entry, HashPolicy, Kind, Own4, PortInfo, SourceCheck, Tables};
use bywash_sync::{Published, Qsbr};
use bywash_wire::ipv4;
use kernel::Kernel;
use model::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{TestCaseError, TestRunner};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

struct Memory(Segments);

impl Shared for Memory {
    fn segment(&mut self, n: usize) -> io::Result<OwnedFd> {
        self.0.make(n)
    }

    fn grace(&mut self) {
        self.0.grace();
    }
}

/// Sends the frames one by one through the router, from port 0. Returns the fate of each.
fn route(tables: Arc<Published<Tables>>, domain: &Qsbr, redirects: bool, frames: &[Vec<u8>]) -> Vec<Fate> {
    route_with(tables, domain, redirects, frames, |router| router)
}

/// Does what [`route`] does, with a router that `finish` completes.
fn route_with(
    tables: Arc<Published<Tables>>,
    domain: &Qsbr,
    redirects: bool,
    frames: &[Vec<u8>],
    finish: impl FnOnce(Router) -> Router,
) -> Vec<Fate> {
    route_at(tables, domain, (PORTS, 0), redirects, frames, finish)
}

/// Does what [`route_with`] does, with a number of ports, from one of them.
fn route_at(
    tables: Arc<Published<Tables>>,
    domain: &Qsbr,
    ports: (u16, u16),
    redirects: bool,
    frames: &[Vec<u8>],
    finish: impl FnOnce(Router) -> Router,
) -> Vec<Fate> {
    let mut rig = Rig::new(tables, domain, ports, redirects, finish);
    frames
        .iter()
        .map(|frame| {
            let fate = rig.give(frame);
            Fate { named: rig.named(), ..fate }
        })
        .collect()
}

/// The program on every port, and tables that the program and the router share.
struct Twin {
    datapath: XdpDatapath,
    programs: Vec<(Program, u32)>,
    world: World,
    tables: Arc<Published<Tables>>,
}

impl Twin {
    fn new() -> Self {
        let datapath = XdpDatapath::load().unwrap();
        let mut programs = vec![];
        for id in 0..PORTS {
            let link = LinkInfo::query(&format!("p{id}")).unwrap();
            programs.push((Program::attach_to(&datapath, id, &link, XdpAttach::Native, None).unwrap(), link.index));
            if id != NO_TARGET {
                datapath.set_device(id, link.index).unwrap();
            }
        }
        let memory = |family| Box::new(Memory(datapath.segments(family).unwrap())) as Box<dyn Shared>;
        let world = World::new([memory(Family::V4), memory(Family::V6)]);
        let index = |hop: &Hop| programs.get(usize::from(hop.port)).map_or(0, |(_, index)| *index);
        let hops: Vec<Hop> = hops(&world.entries).iter().map(|hop| Hop { ifindex: index(hop), ..*hop }).collect();
        datapath.publish(&hops, &BUCKETS, World::own4().octets());
        let tables = world.tables(Mode::default());
        Self { datapath, programs, world, tables }
    }

    /// Moves the subnet of each next hop to the following one. Most of their addresses have been looked up before, so
    /// that stale results of earlier lookups would show.
    fn turn(&mut self) {
        let ids = self.world.entries.len() as u32;
        for id in 0..ids {
            let (net4, net6) = subnets(id);
            self.world.fibs.0.insert(net4, (id + 1) % ids);
            self.world.fibs.1.insert(net6, (id + 1) % ids);
        }
        self.datapath.changed();
    }

    fn set_up(&mut self, mode: Mode) {
        self.tables = self.world.tables(mode);
        for (id, (program, _)) in (0..).zip(&mut self.programs) {
            program.set_config(mode.config(id)).unwrap();
        }
    }

    fn counters(&self) -> Vec<BTreeMap<&'static str, u64>> {
        let of = |(program, _): &(Program, u32)| {
            let counters = program.counters().unwrap();
            let mut all: BTreeMap<_, _> = REASONS.iter().map(|r| (*r, counters.get(r))).collect();
            all.insert("tx", counters.tx_frames);
            all
        };
        self.programs.iter().map(of).collect()
    }

    /// Runs the program over a frame from port 0, as an XDP frame or as an skb. Returns the name of the verdict, the
    /// port of a redirect, and the resulting bytes.
    fn drive(&self, frame: &[u8], skb: bool) -> (&'static str, Option<u16>, Vec<u8>) {
        let before = self.counters();
        let from = self.programs[0].1;
        let tried =
            if skb { self.datapath.try_skb(from, frame) } else { self.datapath.try_frame(from, frame) }.unwrap();
        let after = self.counters();
        let counted = |name: &str, port: usize| after[port][name] - before[port][name];
        let reasons: Vec<_> = REASONS.into_iter().filter(|r| counted(r, 0) > 0).collect();
        assert_eq!(reasons.len(), 1, "counted once: {reasons:?}");
        let to = (0..PORTS).find(|p| counted("tx", usize::from(*p)) > 0);
        assert_eq!((tried.redirected(), tried.passed()), (to.is_some(), to.is_none()), "{}", reasons[0]);
        (reasons[0], to, tried.bytes)
    }

    /// Compares what the router has done with a frame with what the program does.
    fn compare(&self, mode: Mode, frame: &[u8], fate: &Fate) -> Result<(), TestCaseError> {
        self.world.compare(mode, frame, fate, |frame, skb| self.drive(frame, skb)).map_err(TestCaseError::fail)
    }
}

/// A random frame. `fault` selects a defect; most values stand for none.
#[derive(Clone, Debug)]
struct Shape {
    v6: bool,
    target: prop::sample::Index,
    unusual: u8,
    ttl: u8,
    proto: u8,
    checksum: u8,
    fault: u8,
    body: Vec<u8>,
    padding: usize,
    seed: u16,
}

impl Shape {
    fn build(&self, targets4: &[u32], targets6: &[u128]) -> Vec<u8> {
        let s = self.seed;
        let header = if self.v6 { 40 } else { 20 };
        let mut l3 = vec![0; header];
        l3.extend_from_slice(&self.body);
        let total = l3.len() as u16;
        let unusual4 = [
            [0, 1, 2, 3],
            [127, 0, 0, 1],
            [224, 0, 0, 5],
            [240, 1, 2, 3],
            [255; 4],
            [169, 254, 1, 1],
            [223, 9, 9, 9],
            OWN,
        ];
        if self.v6 {
            l3[0] = 0x60;
            l3[4..6].copy_from_slice(&(total - 40).to_be_bytes());
            (l3[6], l3[7]) = (self.proto, self.ttl);
            l3[8..16].copy_from_slice(&[0x20, 1, 0xd, 0xb8, 0, 0, 0, s as u8]);
            l3[22..24].copy_from_slice(&s.to_be_bytes());
            l3[24..40].copy_from_slice(&self.target.get(targets6).to_be_bytes());
            let unusual6 = [[0xff, 2], [0xfe, 0x80], [0xfe, 0xc0], [0, 0], [0xfc, 0], [0xfe, 0xbf]];
            let at = if s & 1 == 0 { 8 } else { 24 };
            if let Some(unusual) = unusual6.get(usize::from(self.unusual)) {
                l3[at..at + 16].fill(0);
                l3[at..at + 2].copy_from_slice(unusual);
                l3[at + 15] = (s >> 8) as u8 % 4;
            } else if self.unusual == 6 {
                l3[8..20].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]);
            }
        } else {
            (l3[0], l3[8], l3[9]) = (0x45, self.ttl, self.proto);
            l3[2..4].copy_from_slice(&total.to_be_bytes());
            l3[4..6].copy_from_slice(&s.to_be_bytes());
            l3[12..16].copy_from_slice(&[10, 200, (s >> 8) as u8, s as u8]);
            l3[16..20].copy_from_slice(&self.target.get(targets4).to_be_bytes());
            let at = if s & 1 == 0 { 12 } else { 16 };
            if let Some(unusual) = unusual4.get(usize::from(self.unusual)) {
                l3[at..at + 4].copy_from_slice(unusual);
            }
        }
        // The type of an ICMP message. Mostly errors, which are hashed by the packet they quote.
        if matches!(self.proto, 1 | 58) && l3.len() > header && s & 4 == 0 {
            l3[header] = [1, 2, 3, 4, 5, 11, 12, 8][usize::from(s >> 4 & 7)];
        }
        let field = header + if self.proto == 6 { 16 } else { 6 };
        if matches!(self.proto, 6 | 17) && l3.len() >= field + 2 && self.checksum < 3 {
            let addresses = if self.v6 { l3[8..40].to_vec() } else { l3[12..20].to_vec() };
            let len = (total - header as u16).to_be_bytes();
            let pseudo = sum(&[&addresses[..], &[0, self.proto], &len].concat());
            let value = [pseudo, 0, 0xffff - pseudo][usize::from(self.checksum)];
            l3[field..field + 2].copy_from_slice(&(value as u16).to_be_bytes());
        }
        match self.fault {
            0 if !self.v6 => l3[0] = 0x40 + (s % 16) as u8,
            1 => l3[0] = l3[0] & 15 | ((s % 16) as u8) << 4,
            2 if !self.v6 => l3[2..4].copy_from_slice(&(s % 3000).to_be_bytes()),
            2 => l3[4..6].copy_from_slice(&(s % 3000).to_be_bytes()),
            // Fragments, and packets with DF set.
            3 if !self.v6 => l3[6..8].copy_from_slice(&[(s >> 8) as u8 & 0x7f, s as u8]),
            _ => {}
        }
        if !self.v6 {
            let len = usize::from(l3[0] & 15) * 4;
            if len > 20 && len <= l3.len() {
                l3[10..12].fill(0);
                let value = 0xffff - sum(&l3[..len]) as u16;
                l3[10..12].copy_from_slice(&value.to_be_bytes());
            } else {
                ipv4::fill_checksum(&mut l3);
            }
        }
        if self.fault == 4 {
            l3[10 + usize::from(s & 1)] ^= 1 << (s >> 1 & 7);
        }
        let mut frame = [mac(0), [2, 0, 0, 0, 0, 9]].concat();
        let kind: u16 = if self.v6 { 0x86dd } else { 0x800 };
        frame.extend(kind.to_be_bytes());
        frame.extend(l3);
        frame.resize(frame.len() + self.padding, 0);
        match self.fault {
            5 => frame[..6].copy_from_slice(&[[0xff; 6], mac(1), [1, 0, 0x5e, 0, 0, 1]][usize::from(s % 3)]),
            6 => frame[12..14]
                .copy_from_slice(&[0x8100, 0x88a8, 0x806, 0x800, 0x86dd, s][usize::from(s % 6)].to_be_bytes()),
            7 => frame.truncate(14 + usize::from(s) % 60),
            8 => {
                frame[6..12].copy_from_slice(&mac(0));
                frame[6] |= s as u8 & 1;
            }
            9..=11 => {
                let at = usize::from(s) % frame.len();
                frame[at] ^= self.ttl.max(1);
            }
            12 => frame.iter_mut().skip(14).zip(self.body.iter().rev()).for_each(|(byte, noise)| *byte = *noise),
            _ => {}
        }
        frame
    }
}

fn a_shape() -> impl Strategy<Value = Shape> {
    let body = prop_oneof![
        20 => prop::collection::vec(any::<u8>(), 0..100),
        4 => prop::collection::vec(any::<u8>(), 140..200),
        1 => prop::collection::vec(any::<u8>(), 1400..1580),
    ];
    let proto = prop_oneof![4 => Just(17u8), 4 => Just(6u8), 2 => prop::sample::select(vec![0, 1, 33, 43, 44, 51, 58, 60, 132, 136]),
        1 => any::<u8>()];
    let ttl = prop_oneof![10 => 2u8.., 1 => 0u8..3];
    let padding = prop_oneof![4 => Just(0usize), 1 => 0usize..120];
    let fault = prop_oneof![20 => Just(255u8), 10 => 0u8..13];
    let unusual = prop_oneof![20 => Just(255u8), 1 => 0u8..8];
    let rest = (fault, body, padding, any::<u16>());
    (any::<bool>(), any::<prop::sample::Index>(), unusual, ttl, proto, 0u8..6, rest).prop_map(
        |(v6, target, unusual, ttl, proto, checksum, (fault, body, padding, seed))| Shape {
            v6,
            target,
            unusual,
            ttl,
            proto,
            checksum,
            fault,
            body,
            padding,
            seed,
        },
    )
}

/// Returns a namespace with the ports.
fn lab() -> Namespace {
    let ns = Namespace::new("driver").unwrap();
    for id in 0..PORTS {
        let port = End::new(&ns, format!("p{id}")).mac(bywash_wire::ethernet::MacAddr(mac(id)).to_string());
        Veth::new(port, End::new(&ns, format!("q{id}"))).create().unwrap();
    }
    // The program would count the kernel's own multicast, too.
    ns.sysctl("net.ipv6.conf.all.disable_ipv6", "1").unwrap();
    ns
}

#[test]
fn the_program_does_what_the_router_does() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut twin = Twin::new();
            let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
            for mode in MODES {
                twin.set_up(mode);
                let mut runner =
                    TestRunner::new(ProptestConfig { cases: 40, failure_persistence: None, ..Default::default() });
                let done = runner.run(&prop::collection::vec(a_shape(), 1..200), |shapes| {
                    let frames: Vec<_> =
                        shapes.iter().map(|s| s.build(&twin.world.targets4, &twin.world.targets6)).collect();
                    let fates = route(twin.tables.clone(), &twin.world.domain, mode.redirects, &frames);
                    prop_assert_eq!(fates.len(), frames.len());
                    frames.iter().zip(&fates).try_for_each(|(frame, fate)| twin.compare(mode, frame, fate))
                });
                if let Err(e) = done {
                    panic!("{e}");
                }
                twin.turn();
            }
            for (reason, frames) in &twin.counters()[0] {
                seen.insert(reason, *frames);
            }
            println!("{seen:?}");
            let enough = |reason: &str, frames: u64| seen[reason] > frames;
            let seen_all = enough("to_port", 500) && enough("pass_no_socket", 500) && enough("pass_source", 100);
            assert!(seen_all, "too few frames of some verdict: {seen:?}");
        })
        .unwrap();
}

/// The packets that the fuzz targets begin with, and those that the target of the program's sources has failed with.
#[test]
fn the_program_does_what_the_router_does_with_the_corpus() {
    require!(require_lab());
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let target = std::fs::read_to_string(fuzz.join("fuzz_targets/xdp.rs")).unwrap();
    let corpora = target.lines().find_map(|line| line.strip_prefix("//! Corpora: ")).unwrap();
    let folders = corpora.split(' ').chain(["xdp"]).map(|name| fuzz.join("corpus").join(name));
    let files = |folder: PathBuf| folder.read_dir().into_iter().flatten().map(|file| file.unwrap().path());
    let inputs: Vec<_> = folders.chain([fuzz.join("crashes/xdp")]).flat_map(files).collect();
    assert!(inputs.len() > 30, "only {} inputs: is fuzz/corpus present?", inputs.len());
    lab()
        .enter(|| {
            let mut twin = Twin::new();
            for mode in MODES {
                twin.set_up(mode);
                for path in &inputs {
                    let (_, frame) = input(&std::fs::read(path).unwrap());
                    // The kernel runs programs over frames with an Ethernet header.
                    if frame.len() < 14 {
                        continue;
                    }
                    let frames: Vec<_> = twin.world.addressed(&frame).into_iter().chain([frame]).collect();
                    let fates = route(twin.tables.clone(), &twin.world.domain, mode.redirects, &frames);
                    for (frame, fate) in frames.iter().zip(&fates) {
                        twin.compare(mode, frame, fate).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                    }
                }
            }
        })
        .unwrap();
}

#[test]
fn the_program_is_timed_alone() {
    require!(require_lab());
    for family in ["4", "6"] {
        let args = ["bench", "driver", "--family", family, "--routes", "1000", "--destinations", "64", "--rounds", "1"];
        let ran = Command::new(env!("CARGO_BIN_EXE_bywash")).args(args).arg("--json").output().unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let figures: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        // No machine forwards a packet in less time. A shorter time would mean that the program returned early.
        assert!(figures["ns_per_packet"].as_f64().unwrap() > 2.0 && figures["destinations"] == 64, "{figures}");
    }
}

/// Returns the kernel's route arguments for each of [`entries`]; `None` for those that the kernel cannot express.
fn leads() -> Vec<kernel::Leads> {
    let both = |say: &dyn Fn(bool) -> String| [false, true].map(|v6| Some(say(v6)));
    let via = |port: u16, more: &str| both(&|v6| format!("via {} dev t{port} {more}", kernel::gateway(port, v6)));
    let plain = |what: &str| both(&|_| what.to_string());
    let group = |ports: &[(u16, u32)]| {
        both(&|v6| {
            let ways = ports.iter().map(|(port, weight)| {
                format!("nexthop via {} dev t{port} weight {weight}", kernel::gateway(*port, v6))
            });
            ways.collect::<Vec<_>>().join(" ")
        })
    };
    let small = format!("mtu lock {SMALL_MTU}");
    vec![
        plain("throw|"),
        via(0, ""),
        via(1, ""),
        via(NO_TARGET, ""),
        via(1, &small),
        group(&[(0, 1), (1, 2)]),
        // The next hops of one route cannot have different MTUs, and none can be local.
        [None, None],
        [None, None],
        plain("local|dev lo table main"),
        plain("dev away"),
        [Some("via 10.100.1.9 dev t1".into()), Some("via fd00:1::9 dev t1".into())],
        plain("dev t1"),
        plain("blackhole|"),
        plain("unreachable|"),
        plain("prohibit|"),
    ]
}

/// The differences between Bywash and the kernel that are allowed (docs/decisions/differences.md). Each must be seen.
const DIFFERENCES: [&str; 5] = ["class-e", "equal-cost-way", "padding", "this-network", "unfinished-checksum"];

/// Returns a name for the difference between the frames sent by Bywash and by the kernel; `None` if there is none.
fn difference(
    leads: Option<(Kind, u32)>,
    ours: &[(u16, Vec<u8>)],
    theirs: &[(u16, Vec<u8>)],
    named: &[&str],
    source: u8,
) -> Option<&'static str> {
    if ours == theirs {
        return None;
    }
    match source {
        _ if !ours.is_empty() || !named.contains(&"martian-source") => {}
        240.. => return Some("class-e"),
        0 => return Some("this-network"),
        _ => {}
    }
    let ours: Vec<_> = ours.iter().map(|(port, frame)| (*port, unpadded(frame))).collect();
    if ours.len() != theirs.len() {
        return Some("another number of packets");
    }
    let pairs = || ours.iter().zip(theirs);
    if pairs().all(|((port, ours), (other, theirs))| port == other && ours == theirs) {
        return Some("padding");
    }
    // Distance between the first and the last byte that differ, behind the MAC addresses.
    let changed = pairs().map(|((_, ours), (_, theirs))| {
        let at: Vec<_> = (12..ours.len().max(theirs.len())).filter(|at| ours.get(*at) != theirs.get(*at)).collect();
        at.last().map_or(0, |last| last - at[0] + 1)
    });
    let changed: Vec<_> = changed.collect();
    let ways = pairs().any(|((port, _), (other, _))| port != other);
    match (&changed[..], leads) {
        // Only one word of the packet, or of its first fragment, differs.
        ([1..=2, rest @ ..], _) if rest.iter().all(|n| *n == 0) && named.contains(&"checksum-completed") => {
            Some("unfinished-checksum")
        }
        (none, Some((Kind::Group, _))) if none.iter().all(|n| *n == 0) && ways => Some("equal-cost-way"),
        _ => Some("other bytes"),
    }
}

/// Returns the frame without the padding behind its packet.
fn unpadded(frame: &[u8]) -> &[u8] {
    let len = if frame[14] >> 4 == 6 { 54 + be16(&frame[18..]) } else { 14 + be16(&frame[16..]) };
    &frame[..len.min(frame.len())]
}

/// Packets to this host that may have come through a tunnel are user space's, and no others.
#[test]
fn packets_in_tunnels_are_decapsulated_by_user_space() {
    require!(require_lab());
    lab()
        .enter(|| {
            let mut twin = Twin::new();
            twin.set_up(Mode::default());
            let (local, _) = twin.world.entries.iter().enumerate().find(|(_, e)| e.kind == Kind::Local).unwrap();
            let (net4, net6) = subnets(local as u32);
            // Behind the payload are Ethernet's addresses for UDP, and the packet within.
            let frame = |head: [u8; 10], payload: &[u8], to: [u8; 4], kind: u16| {
                let mut ip = [&head[..], &[0, 0, 10, 200, 0, 9], &(net4.addr() + 9).to_be_bytes(), payload].concat();
                let within = match kind {
                    0x86dd => [&[0x60; 8][..], &[0xfd; 16], &to, &[1; 12]].concat(),
                    _ => [&[0x45; 12][..], &[10, 200, 0, 8], &to].concat(),
                };
                if head[9] == 17 {
                    ip.extend([0; 4]);
                    ip.extend([8, 0, 0, 0, 0, 0, 0, 0]);
                    ip.extend([0; 12]);
                    ip.extend(kind.to_be_bytes());
                }
                ip.extend(within);
                let total = (ip.len() as u16).to_be_bytes();
                ip[2..4].copy_from_slice(&total);
                bywash_wire::ipv4::fill_checksum(&mut ip);
                [&mac(0)[..], &[2; 6], &[8, 0], &ip].concat()
            };
            let plain = |protocol| [0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol];
            let of = |protocol, at: usize, with: u8| {
                let mut head = plain(protocol);
                head[at] = with;
                head
            };
            let (gre, key) = (&[0, 0, 8, 0][..], &[0x20, 0, 0x86, 0xdd, 0, 0, 0, 1][..]);
            let (vxlan, none) = (&[1, 2, 18, 181][..], &[][..]);
            let (host, group, near) = ([10, 1, 2, 3], [224, 0, 0, 5], [0xfe, 0x80, 0, 0]);
            let mut hops = hops(&twin.world.entries);
            hops[local].first = 1;
            twin.datapath.publish(&hops, &BUCKETS, World::own4().octets());
            // The frames in VXLANs have identifier 0, and addresses of zeros.
            let (remote, own) = ([10, 200, 0, 9].into(), Ipv4Addr::from(net4.addr() + 9).into());
            let end = |protocol, key| TunnelEnd {
                remote,
                local: own,
                protocol,
                port: 0,
                key,
                ethernet: false,
                summed: false,
            };
            let of_vxlan = |vni| TunnelEnd { remote: Ipv4Addr::UNSPECIFIED.into(), port: 4789, ..end(17, Some(vni)) };
            let to = |mac| TunnelPolicy { number: 70, mac, open: [true; 2], ..TunnelPolicy::default() };
            let far = |end| TunnelEnd { remote: [10, 200, 0, 10].into(), ..end };
            let others = [far(end(4, None)), end(47, Some(2)), far(end(47, None)), of_vxlan(1)];
            let taps = [true, false].map(|summed| TunnelEnd { ethernet: true, summed, ..end(47, summed.then_some(1)) });
            let tap = [&[0, 0, 0x65, 0x58][..], &[0; 12], &[8, 0]].concat();
            let summed = [&[0xa0, 0, 0x65, 0x58, 3, 4, 0, 0, 0, 0, 0, 1][..], &[0; 12], &[0x86, 0xdd]].concat();
            let [arp, other] = [[&tap[..16], &[8, 6]].concat(), [&tap[..4], &[1; 12], &[8, 0]].concat()];
            for takes in 0..32 {
                let ends = [(end(4, None), 1), (end(41, None), 2), (end(47, None), 4), (end(47, Some(1)), 4)];
                let ends = ends.into_iter().chain([(of_vxlan(0), 8)]).chain(taps.map(|end| (end, 16)));
                let ends = ends.filter(|(_, bit)| takes & bit != 0);
                let ends = ends.map(|(end, _)| end).chain(others).map(|end| (end, to([0; 6])));
                twin.datapath.set_tunnels(&ends.collect()).unwrap();
                for (head, payload, to, kind, bit) in [
                    (plain(4), none, host, 0x800, 1),
                    (plain(41), none, host, 0x86dd, 2),
                    (plain(47), gre, host, 0x800, 4),
                    (plain(47), key, host, 0x86dd, 4),
                    (plain(17), vxlan, host, 0x800, 8),
                    (plain(17), vxlan, host, 0x86dd, 8),
                    (plain(47), &tap, host, 0x800, 16),
                    (plain(47), &summed, host, 0x86dd, 16),
                    (plain(47), &arp, host, 0x800, 0),
                    (plain(47), &other, host, 0x800, 0),
                    (plain(47), &tap, group, 0x800, 0),
                    (plain(6), gre, host, 0x800, 0),
                    (plain(0), gre, host, 0x800, 0),
                    // To groups and on the link; ARP in a VXLAN; too short.
                    (plain(4), none, group, 0x800, 0),
                    (plain(41), none, near, 0x86dd, 0),
                    (plain(41), none, [0xff, 2, 0, 0], 0x86dd, 0),
                    (plain(47), gre, group, 0x800, 0),
                    (plain(47), key, [0xff, 2, 0, 0], 0x86dd, 0),
                    (plain(17), vxlan, group, 0x800, 0),
                    (plain(17), vxlan, host, 0x806, 0),
                    (plain(41), none, host, 0x800, 0),
                    // With a checksum, a sequence number, version 1; of Ethernet; to another port.
                    (plain(47), &[0x80, 0, 8, 0], host, 0x800, 0),
                    (plain(47), &[0x10, 0, 8, 0], host, 0x800, 0),
                    (plain(47), &[0, 1, 8, 0], host, 0x800, 0),
                    (plain(47), &[0, 0, 0x65, 0x58], host, 0x800, 0),
                    (plain(17), &[18, 181, 18, 182], host, 0x800, 0),
                    // ECN, a fragment, TTL 1.
                    (of(4, 1, 1), none, host, 0x800, 0),
                    (of(4, 1, 3), none, host, 0x800, 0),
                    (of(4, 1, 2), none, host, 0x800, 1),
                    (of(41, 6, 0x20), none, host, 0x86dd, 0),
                    (of(47, 7, 1), gre, host, 0x800, 0),
                    (of(47, 6, 0x40), gre, host, 0x800, 4),
                    (of(17, 8, 1), vxlan, host, 0x800, 0),
                ] {
                    for skb in [false, true] {
                        let taken = takes & bit != 0 && !skb;
                        let expected = if taken { "pass_no_socket" } else { "pass_local" };
                        let frame = frame(head, payload, to, kind);
                        assert_eq!(twin.drive(&frame, skb).0, expected, "{head:?} {payload:?} {to:?} with {takes}");
                    }
                }
            }
            // To another station than the interface, which a bridge forwards; of a VXLAN that the kernel has; of one
            // whose gate is closed for IPv4.
            let frame = frame(plain(17), vxlan, host, 0x800);
            let closed = TunnelPolicy { open: [false, true], ..to([0; 6]) };
            for (end, takes, expected) in [
                (of_vxlan(0), to([2; 6]), "pass_local"),
                (of_vxlan(1), to([0; 6]), "pass_local"),
                (TunnelEnd { port: 4790, ..of_vxlan(0) }, to([0; 6]), "pass_local"),
                (of_vxlan(0), closed, "pass_policy"),
                (of_vxlan(0), to([0; 6]), "pass_no_socket"),
            ] {
                twin.datapath.set_tunnels(&[(end, takes)].into()).unwrap();
                assert_eq!(twin.drive(&frame, false).0, expected, "{end:?} {takes:?}");
            }
            // To a station behind a member, as the bridge forwards it; of a kind that it may answer; to a station
            // behind another member or a VXLAN, or of another bridge.
            let of = |[passes, learns]: [bool; 2]| TunnelPolicy { members: 2, passes, learns, ..to([2; 6]) };
            let none_of = TunnelPolicy { members: 0, ..of([true, false]) };
            let within6 = |next, kind| {
                let mut frame = [&frame[..frame.len() - 22], &[0x86, 0xdd], &frame[frame.len() - 20..]].concat();
                let at = frame.len() - 20;
                frame.extend([0; 24]);
                (frame[at + 6], frame[at + 40]) = (next, kind);
                frame
            };
            // From a station with another address, which the kernel may have to learn.
            let mut other = frame.clone();
            let source = other.len() - 28..other.len() - 22;
            other[source].fill(4);
            let through = bywash_router::vlan::FIRST;
            let plain = of([false; 2]);
            for (takes, stations, frame, taken) in [
                (plain, &[(70, [0; 6], 1)][..], &frame, true),
                (of([true, false]), &[(70, [0; 6], 1)], &frame, true),
                (TunnelPolicy { members: 1 << 63, ..plain }, &[(70, [0; 6], 63)], &within6(17, 0), true),
                (plain, &[(70, [0; 6], 1)], &within6(58, 128), true),
                (plain, &[(70, [0; 6], 1)], &within6(58, 135), false),
                (none_of, &[(70, [0; 6], 1)], &frame, false),
                (plain, &[(70, [0; 6], 2)], &frame, false),
                (plain, &[(70, [0; 6], through)], &frame, false),
                (plain, &[(71, [0; 6], 1)], &frame, false),
                (plain, &[], &frame, false),
                (plain, &[(70, [0; 6], 1)], &other, true),
                (of([false, true]), &[(70, [0; 6], 1)], &other, false),
                (of([false, true]), &[(70, [0; 6], 1), (70, [4; 6], 2)], &other, false),
                (of([false, true]), &[(70, [0; 6], 1), (71, [4; 6], through)], &other, false),
                (of([false, true]), &[(70, [0; 6], 1), (70, [4; 6], through)], &other, true),
            ] {
                twin.datapath.set_stations(stations).unwrap();
                twin.datapath.set_tunnels(&[(of_vxlan(0), takes)].into()).unwrap();
                let expected = if taken { "pass_no_socket" } else { "pass_local" };
                assert_eq!(twin.drive(frame, false).0, expected, "{takes:?} {stations:?}");
            }
            // Over IPv6, where destination options may hold an encapsulation limit.
            let (remote6, own6) = (Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 9), Ipv6Addr::from(net6.addr() + 9));
            let frame = |start: [u8; 2], hop_limit: u8, options: &[u8], protocol: u8, payload: &[u8]| {
                let within = [&[0x45; 12][..], &[10, 200, 0, 8], &host].concat();
                let vxlan = [&[0; 4][..], &[8, 0, 0, 0, 0, 0, 0, 0], &[0; 12], &[8, 0]].concat();
                let behind = [payload, if protocol == 17 { &vxlan } else { &[] }, &within].concat();
                let (next, options) = match options {
                    [] => (protocol, vec![]),
                    options => (60, [&[protocol], options].concat()),
                };
                let len = ((options.len() + behind.len()) as u16).to_be_bytes();
                let ends = [remote6.octets(), own6.octets()].concat();
                let ip = [&start[..], &[0, 0], &len, &[next, hop_limit], &ends, &options, &behind].concat();
                [&mac(0)[..], &[2; 6], &[0x86, 0xdd], &ip].concat()
            };
            let end6 = |protocol, key| TunnelEnd {
                remote: remote6.into(),
                local: own6.into(),
                protocol,
                port: 0,
                key,
                ethernet: false,
                summed: false,
            };
            let of_vxlan = TunnelEnd { remote: Ipv6Addr::UNSPECIFIED.into(), port: 4789, ..end6(17, Some(0)) };
            let ends = [end6(4, None), end6(47, None), of_vxlan].map(|end| (end, to([0; 6])));
            twin.datapath.set_tunnels(&ends.into()).unwrap();
            let limit = &[0, 4, 1, 7, 1, 1, 0][..];
            for of_v6 in [false, true] {
                hops[local].first = if of_v6 { 2 } else { 1 };
                twin.datapath.publish(&hops, &BUCKETS, World::own4().octets());
                for (start, hop_limit, options, protocol, payload, taken) in [
                    ([0x60, 0], 64, none, 4, none, true),
                    ([0x60, 0], 64, none, 47, gre, true),
                    ([0x60, 0], 64, none, 17, vxlan, true),
                    ([0x60, 0], 64, limit, 4, none, true),
                    ([0x60, 0], 64, limit, 47, gre, true),
                    ([0x60, 0], 64, limit, 17, vxlan, false),
                    // Of another tunnel; with other options.
                    ([0x60, 0], 64, none, 41, none, false),
                    ([0x60, 0], 64, &[0, 5, 2, 0, 0, 1, 0], 4, none, false),
                    ([0x60, 0], 64, &[0, 4, 1, 7, 1, 1, 1], 4, none, false),
                    // ECN; hop limit 1.
                    ([0x60, 0x10], 64, none, 4, none, false),
                    ([0x60, 0x20], 64, none, 4, none, true),
                    ([0x6f, 0xc0], 64, limit, 47, gre, true),
                    ([0x60, 0], 1, none, 4, none, false),
                ] {
                    let expected = if taken && of_v6 { "pass_no_socket" } else { "pass_local" };
                    let frame = frame(start, hop_limit, options, protocol, payload);
                    assert_eq!(twin.drive(&frame, false).0, expected, "{frame:02x?}");
                }
            }
        })
        .unwrap();
}

#[test]
fn the_kernel_does_what_both_do() {
    require!(require_lab());
    require!(bywash_lab::kernel_has("tun"));
    let ns = lab();
    let (mut seen, mut forwarded, mut dropped) = (BTreeMap::<&str, (u64, String)>::new(), 0, 0);
    ns.enter(|| {
        let mut twin = Twin::new();
        twin.set_up(Mode::default());
        let known = |id: u32| leads()[id as usize][0].is_some();
        let routes4: Vec<_> = twin.world.routes4.iter().filter(|(_, id)| known(*id)).copied().collect();
        let routes6: Vec<_> = twin.world.routes6.iter().filter(|(_, id)| known(*id)).copied().collect();
        let macs: Vec<_> = (0..PORTS).map(mac).collect();
        let station = |port: u16| [2, 0, 0, 0, 2, port as u8];
        let mut kernel = Kernel::new(&macs, station, &kernel::routes(&routes4, &routes6, &leads()));
        let mut runner = TestRunner::deterministic();
        let shapes = prop::collection::vec(a_shape(), 100);
        for _ in 0..100 {
            let shapes = shapes.new_tree(&mut runner).unwrap().current();
            let frames: Vec<_> = shapes.iter().map(|s| s.build(&twin.world.targets4, &twin.world.targets6)).collect();
            let fates = route(twin.tables.clone(), &twin.world.domain, false, &frames);
            for (frame, fate) in frames.iter().zip(&fates) {
                let (reason, to, bytes) = twin.drive(frame, false);
                let leads = twin.world.kind(frame);
                if leads.is_some_and(|(_, id)| !known(id)) {
                    continue;
                }
                let mut theirs = kernel.give(frame);
                let (ours, named) = match (reason, to) {
                    (_, Some(to)) => (vec![(to, bytes)], vec![]),
                    ("pass_no_socket", None) if !fate.punted => (fate.sent.clone(), fate.named.clone()),
                    // The frame was left to the kernel, so that there is nothing to compare.
                    _ => continue,
                };
                if theirs.is_empty() && !ours.is_empty() {
                    theirs = kernel.late(frame);
                }
                forwarded += u64::from(!ours.is_empty());
                dropped += u64::from(ours.is_empty());
                assert!(!ours.is_empty() || !named.is_empty(), "lost and not counted: {leads:?} {frame:02x?}");
                if let Some(name) = difference(leads, &ours, &theirs, &named, *frame.get(26).unwrap_or(&0)) {
                    let show =
                        || format!("{leads:?} {named:?} {frame:02x?}\n  ours {ours:02x?}\n  theirs {theirs:02x?}");
                    seen.entry(name).or_insert_with(|| (0, show())).0 += 1;
                }
            }
        }
    })
    .unwrap();
    println!("{forwarded} forwarded, {dropped} not; {:?}", seen.iter().map(|(k, v)| (k, v.0)).collect::<Vec<_>>());
    for (name, (_, example)) in seen.iter().filter(|(name, _)| !DIFFERENCES.contains(name)) {
        println!("{name}: {example}");
    }
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), DIFFERENCES);
    assert!(forwarded > 2000 && dropped > 500, "too few frames");
}
