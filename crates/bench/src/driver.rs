//! Benchmark of the XDP program alone, timed by the kernel's test run: the cost of forwarding in the driver.

use super::{established, lab};
use crate::args::{Family, number, routes};
use anyhow::{Context as _, ensure};
use bywash_config::count;
use bywash_fib::flows::Flows;
use bywash_fib::{Addr, Net, Table, synth};
use bywash_lab::{End, Namespace, Veth};
use bywash_port::af_xdp::{
    self, HEAD, Hop, HopKind, LinkInfo, Program, RpFilter, TAKES_FRAMES, XdpAttach, XdpBridging, XdpConfig, XdpGate,
    XdpVlan,
};
use bywash_router::vlan::{FIRST, tag};
use bywash_router::xdp::{Targets, XdpTableSink};
use bywash_sync::Qsbr;
use bywash_wire::build::Packet;
use bywash_wire::ethernet::{FCS_LEN, HEADER_LEN, MacAddr, ethertype};
use bywash_wire::partial;
use clap::Args;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// `bywash bench driver`
#[derive(Debug, Args)]
pub struct DriverArgs {
    /// IP version
    #[arg(long, value_name = "4|6", default_value = "4", hide_possible_values = true)]
    pub family: Family,
    /// Number of routes in the table, over 256 next hops
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = routes)]
    pub routes: usize,
    /// Number of destination addresses in the traffic
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = heads)]
    pub destinations: usize,
    /// Number of established connections: the gate is closed except for them, and the traffic's have their source
    /// translated  [default: none, packets are routed]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub established: usize,
    /// Forward from a VLAN to another, with a tag on both sides
    #[arg(long, conflicts_with = "established")]
    pub vlans: bool,
    /// Number of rounds of two million packets each; the result is the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// CPU to run on  [default: chosen by the scheduler]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn heads(text: &str) -> Result<usize, String> {
    number(text, 1..=bywash_port::af_xdp::HEADS, "destinations")
}

/// Program runs per round.
const REPEAT: u32 = 2_000_000;
const SEED: u64 = 1812;

#[derive(Serialize)]
struct Figures {
    /// Nanoseconds per packet in the program: the median of the rounds.
    ns_per_packet: f64,
    /// Equivalent rate, in millions of packets per second.
    mpps: f64,
    /// Nanoseconds per packet of the kernel's test run with an empty program; already subtracted above.
    empty_ns: f64,
    family: u8,
    routes: usize,
    destinations: usize,
    /// Established connections; 0: packets are routed.
    established: usize,
    /// Set if the frames arrived and left with a tag.
    vlans: bool,
    /// Nanoseconds per packet in each round.
    rounds: Vec<f64>,
}

/// Runs `bywash bench driver`.
pub fn run(args: &DriverArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    super::pin(args.cpu)?;
    let ns = Namespace::new("driver")?;
    for id in 0..2 {
        Veth::new(End::new(&ns, format!("p{id}")), End::new(&ns, format!("q{id}"))).create()?;
    }
    // The kernel's own multicast packets would be counted as well.
    ns.sysctl("net.ipv6.conf.all.disable_ipv6", "1")?;
    let figures = ns.enter(|| match args.family {
        Family::V4 => {
            // Some generated routes are not usable: draw an eighth more to replace them.
            let drawn = synth::routes4(args.routes + args.routes / 8 + 64, SEED).into_iter();
            let routes: Vec<_> = drawn.filter(|(net, _)| lab::public(*net)).take(args.routes).collect();
            measure(args, 4, &routes, |to: u32| (Ipv4Addr::new(10, 0, 1, 2).into(), Ipv4Addr::from(to).into()))
        }
        Family::V6 => measure(args, 6, &synth::routes6(args.routes, SEED), |to: u128| {
            (Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 2).into(), Ipv6Addr::from(to).into())
        }),
    })??;
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        let Figures { ns_per_packet, mpps, family, routes, destinations, established, vlans, rounds, .. } = &figures;
        println!(
            "{ns_per_packet:.0} ns/packet, {mpps:.1} Mpps in the driver's program alone, median of {}",
            count(rounds.len(), "round")
        );
        println!("{}, {}", count(routes, &format!("IPv{family} route")), count(destinations, "destination"));
        if *vlans {
            println!("from a VLAN to another");
        }
        if *established > 0 {
            println!("{}, sources translated", count(established, "established connection"));
        }
    }
    Ok(())
}

/// Measures forwarding from p0 to p1 in the calling thread's namespace. `ends` returns source and destination of the
/// packet for an address.
fn measure<A: Addr + synth::Random>(
    args: &DriverArgs,
    family: u8,
    routes: &[(Net<A>, u32)],
    ends: impl Fn(A) -> (IpAddr, IpAddr),
) -> anyhow::Result<Figures> {
    let (from, to) = (LinkInfo::query("p0")?, LinkInfo::query("p1")?);
    let mut driver = XdpTableSink { program: af_xdp::XdpDatapath::load()?, targets: Targets::default() };
    let mut program = Program::attach_to(&driver.program, 0, &from, XdpAttach::Native, None)?;
    let _other = Program::attach_to(&driver.program, 1, &to, XdpAttach::Native, None)?;
    driver.program.set_device(1, to.index)?;
    // Configured as for a router's port between veth interfaces, where the program has the most checks.
    program.set_config(XdpConfig {
        enabled: true,
        forward: true,
        partial: true,
        max_frame: 1514,
        ..program.config()
    })?;
    let hop = |id: u32| {
        let mut macs = [2, 0, 0, 0, (id >> 8) as u8, id as u8, 0, 0, 0, 0, 0, 0];
        macs[6..].copy_from_slice(&to.mac);
        let (kind, port) = if args.vlans { (HopKind::Vlan, FIRST + 1) } else { (HopKind::Forward, 1) };
        // Of a VLAN: its port, and its tag.
        let (first, count) = if args.vlans { (1, u32::from_le_bytes(tag(ethertype::VLAN, 2))) } else { (0, 0) };
        Hop { macs, kind, flags: TAKES_FRAMES, port, mtu: 1500, first, count, ..Hop::default() }
    };
    if args.vlans {
        let vlan = XdpVlan {
            id: FIRST,
            entry: FIRST,
            tag: tag(ethertype::VLAN, 1),
            mac: from.mac,
            max_frame: 1518,
            gate: XdpGate::default(),
            source_check: RpFilter::Off,
            rules: false,
            bridging: XdpBridging::default(),
        };
        program.set_vlans(vec![vlan])?;
    }
    driver.program.publish(&(0..=synth::NEXT_HOPS).map(hop).collect::<Vec<_>>(), &[], 0);
    let [memory4, memory6] = driver.memory();
    let domain = Qsbr::new();
    let mut table = Table::shared(&domain, if family == 4 { memory4 } else { memory6 })?;
    table.load(routes.iter().copied());
    // In front of the EtherType.
    let tags = if args.vlans { tag(ethertype::VLAN, 1).to_vec() } else { vec![] };
    let frames = synth::under(routes, args.destinations, SEED).into_iter().map(|address| {
        let (from_ip, to_ip) = ends(address);
        let frame = |source| {
            Packet::udp(SocketAddr::new(from_ip, source), SocketAddr::new(to_ip, 9))
                .macs(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr(from.mac))
                .size(HEAD - tags.len() + FCS_LEN)
                .build()
        };
        let mut made = frame(1024)?;
        // One checksum in 65,536 equals the pseudo-header's sum, so the packet would be passed to user space as
        // unfinished.
        if partial::state(&made[HEADER_LEN..]) == partial::State::Partial {
            made = frame(1025)?;
        }
        made.splice(12..12, tags.iter().copied());
        made.first_chunk().copied().context("a short frame")
    });
    let frames: Vec<[u8; HEAD]> = frames.collect::<anyhow::Result<_>>()?;
    let mut flows = Flows::new(&domain, driver.flow_memory().map(Some), args.established)?;
    if args.established > 0 {
        let (n, heads) = (args.established, frames.len());
        ensure!(n >= heads, "--established {n} is less than --destinations {heads}: give each a connection");
        flows.set_generation(established::GENERATION);
        for i in 0..n {
            established::add(&mut flows, &frames[i % heads], (0, 1), (i / heads) as u16)?;
        }
        let gate = XdpGate { flows4: true, flows6: true, ..XdpGate::CLOSED };
        program.set_config(XdpConfig { gate, ..program.config() })?;
    }
    let (mut rounds, mut empty) = (vec![], vec![]);
    for _ in 0..args.rounds {
        let before = program.counters()?.get("to_port");
        let timed = driver.program.time(from.index, &frames, REPEAT)?;
        let forwarded = program.counters()?.get("to_port") - before;
        // A packet that is not forwarded takes less time and would distort the result.
        ensure!(forwarded == u64::from(REPEAT), "of {REPEAT} packets the program forwarded {forwarded}: a bug");
        rounds.push(f64::from(timed.whole) - f64::from(timed.empty));
        empty.push(f64::from(timed.empty));
    }
    let median = |values: &[f64]| super::median(values.iter().copied()).context("no round");
    let ns_per_packet = median(&rounds)?;
    Ok(Figures {
        ns_per_packet,
        mpps: 1e3 / ns_per_packet,
        empty_ns: median(&empty)?,
        family,
        routes: table.len(),
        destinations: frames.len(),
        established: flows.len(),
        vlans: args.vlans,
        rounds,
    })
}
