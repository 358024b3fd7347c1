//! Benchmark of a router with a stateful firewall and masquerade, on established UDP connections: the kernel, the
//! kernel with a flow table (nf_flowtable) where it has the module, a minimal XDP redirect, Bywash without regard to
//! the rules, and Bywash with them, in alternating rounds. `source` is the generator, whose frames the router's driver
//! drops, `idle` the generator without writing and sending them.
//!
//! The connections are opened through the kernel by packets in both directions. Each has a destination of its own; the
//! traffic belongs to all of them in turn, in the direction whose sources are translated. All forwarders but `user` run
//! on the generator's CPU, as in `bywash bench placement`.

use super::lab::{Bywash, Lab, Rate, STATIONS, Traffic};
use crate::args::{Family, Series, flows};
use anyhow::{Context as _, ensure};
use bywash_api::{FlowTable, LevelFrames, Placement, client};
use bywash_config::count;
use bywash_lab::{Namespace, Topology, patience};
use bywash_port::af_xdp::{LiveOrder, LiveStream};
use bywash_tester::{Addresses, Ports, Sizes, Stream};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Hosts behind r0 may open connections, and are translated to the router's address.
pub const RULES: &str = "
table inet filter {
 chain forward {
  type filter hook forward priority 0; policy drop;
  ct state established,related accept
  iifname r0 accept
 }
}
table ip nat { chain from { type nat hook postrouting priority 100; oifname r1 masquerade; }; }
";
/// A flow table for the connections of [`RULES`], in addition to them.
const FLOW_TABLE: &str = "
table inet filter { flowtable ft { hook ingress priority 0; devices = { r0, r1 }; }; }
insert rule inet filter forward meta l4proto udp flow add @ft
";
/// Time for connection tracking to take UDP with packets in both directions for a connection (UDP_STREAM in
/// net/netfilter/nf_conntrack_proto_udp.c), and some more.
const STREAM: Duration = Duration::from_millis(2100);
/// Longest time until the connections are forwarded.
const READY: Duration = Duration::from_secs(120);
/// Seconds after which an idle connection ends: longer than a measurement whose packets bypass the kernel.
const TIMEOUT: &str = "3600";

/// `bywash bench nat`
#[derive(Debug, Args)]
pub struct NatArgs {
    /// Number of established connections; the kernel must have room for them (nf_conntrack_max)
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = flows)]
    pub flows: usize,
    #[command(flatten)]
    pub series: Series,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Figures {
    /// Medians of the rounds by forwarder, in millions of arrived frames per second.
    median_mpps: BTreeMap<&'static str, f64>,
    /// Medians of the nanoseconds for a frame on the generator's CPU, its generation included. In an emulated machine
    /// whose clock counts them (`lab/vm/run --bench`), these are instructions.
    median_frame_ns: BTreeMap<&'static str, f64>,
    /// Reason for which there is no `flowtable`.
    no_flow_table: Option<String>,
    flows: usize,
    size: usize,
    seconds: u64,
    /// CPUs of the generator and of the worker.
    cpus: [usize; 2],
    rounds: Vec<BTreeMap<&'static str, Rate>>,
}

/// Runs `bywash bench nat`.
pub fn run(args: &NatArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    bywash_lab::has_tool("nft").map_err(|why| anyhow::anyhow!("cannot load rules: {why}"))?;
    let traffic = Traffic { size: args.series.size, destinations: args.flows, routes: 1, family: Family::V4 };
    let lab = Lab::new(traffic)?.without_checksums().with_driver_sink()?;
    establish(&lab, args.flows)?;
    let time = Duration::from_secs(args.series.seconds);
    let flow_table = lab.topology().r().nft(FLOW_TABLE);
    load(lab.topology(), RULES)?;
    let mut rounds = vec![];
    for _ in 0..args.series.rounds {
        let mut round = BTreeMap::from([
            ("idle", lab.idle(time)?),
            ("source", lab.source(time)?),
            ("kernel", lab.kernel(time)?),
            ("redirect", lab.redirect(time)?),
        ]);
        if flow_table.is_ok() {
            round.insert("flowtable", self::flow_table(&lab, args.flows, time)?);
        }
        for (name, level, netfilter) in
            [("routed", "driver", "ignore"), ("driver", "driver", "respect"), ("user", "user", "respect")]
        {
            round.insert(name, bywash(&lab, args, level, netfilter).context(name)?);
        }
        rounds.push(round);
    }
    let figures = Figures {
        median_mpps: super::medians(&rounds, |rate| rate.mpps),
        median_frame_ns: super::medians(&rounds, |rate| rate.frame_ns),
        no_flow_table: flow_table.err().map(|why| why.to_string()),
        flows: args.flows,
        size: args.series.size,
        seconds: args.series.seconds,
        cpus: lab.cpus,
        rounds,
    };
    super::report(args.json, &figures, print)
}

/// Loads a ruleset in the router, replacing the present one.
pub fn load(topology: &Topology, rules: &str) -> anyhow::Result<()> {
    topology.r().nft(&format!("flush ruleset\n{rules}"))?;
    Ok(())
}

/// Loads the rules and opens the connections.
pub fn establish(lab: &Lab, count: usize) -> anyhow::Result<()> {
    let (r, b) = (lab.topology().r(), lab.topology().b());
    load(lab.topology(), RULES)?;
    let room: usize = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max")?.trim().parse()?;
    ensure!(room > count, "the kernel tracks {room} connections at most: raise net.netfilter.nf_conntrack_max");
    // Bywash is started later: the kernel must announce these connections, too.
    r.sysctl("net/netfilter/nf_conntrack_events", "1")?;
    r.sysctl("net/netfilter/nf_conntrack_udp_timeout_stream", TIMEOUT)?;
    r.sysctl("net/netfilter/nf_conntrack_udp_timeout", TIMEOUT)?;
    let (src_mac, dst_mac) = b.mac.parse().ok().zip(b.router_mac.parse().ok()).context("no MAC addresses")?;
    let replies = Stream {
        src_mac,
        dst_mac,
        src: Addresses { first: STATIONS.into(), count: count as u64 },
        src_port: Ports(9, 9),
        dst: Addresses { first: b.router_v4.into(), count: 1 },
        dst_port: Ports(1024, 1024),
        flows: count,
        sizes: Sizes(vec![64]),
        ..Stream::default()
    };
    let templates = replies.templates()?;
    let (heads, at) = (templates.heads(), templates.stamp_at());
    let order = LiveOrder { stream: 1, pps: None, catch_up: Duration::ZERO, frames: count as u64, time: READY };
    let mut assured = 0;
    let until = Instant::now() + patience(READY);
    while assured < count {
        ensure!(Instant::now() < until, "{assured} of {count} connections were established");
        lab.polled(&lab.topology().a().router_interface, || lab.send(count as u64))?;
        lab.polled(&b.router_interface, || {
            b.ns.enter(|| LiveStream::new(&b.interface, &heads, at)?.send(&order, &AtomicBool::new(false)))??;
            Ok(())
        })?;
        assured = counted(r, "ASSURED")?;
        std::thread::sleep(STREAM);
    }
    Ok(())
}

/// Measures the kernel with a flow table, which takes the connections once they have sent packets.
fn flow_table(lab: &Lab, flows: usize, time: Duration) -> anyhow::Result<Rate> {
    let r = lab.topology().r();
    r.nft(FLOW_TABLE)?;
    lab.polled(&lab.topology().a().router_interface, || lab.send(flows as u64))?;
    let taken = counted(r, "OFFLOAD")?;
    ensure!(taken * 100 >= flows * 99, "the flow table has {taken} of {flows} connections");
    let rate = lab.kernel(time);
    load(lab.topology(), RULES)?;
    rate
}

/// Returns the number of UDP connections with this word in their row.
fn counted(r: &Namespace, word: &str) -> anyhow::Result<usize> {
    let list = format!("conntrack -L -p udp 2>/dev/null | grep -c {word} || :");
    Ok(r.run(&["sh", "-c", &list])?.stdout.trim().parse()?)
}

/// Starts Bywash at a level with native XDP, with room for these connections.
pub fn start(lab: &Lab, flows: usize, level: &str, netfilter: &str) -> anyhow::Result<Bywash> {
    let ports = format!("xdp = \"native\"\nlevel = \"{level}\"");
    start_with(lab.topology(), lab.cpus[1], flows, &ports, netfilter)
}

/// Starts Bywash with these settings for each port.
pub fn start_with(
    topology: &Topology,
    cpu: usize,
    flows: usize,
    ports: &str,
    netfilter: &str,
) -> anyhow::Result<Bywash> {
    let mut text = format!("[kernel]\nnetfilter = \"{netfilter}\"\n[router]\nflows = {flows}\n");
    for name in topology.router_interfaces() {
        writeln!(text, "[[port]]\ninterface = \"{name}\"\n{ports}")?;
    }
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(text.as_bytes())?;
    Bywash::configured(topology, cpu, file.path())
}

/// Measures Bywash at a level, once it forwards all connections.
fn bywash(lab: &Lab, args: &NatArgs, level: &str, netfilter: &str) -> anyhow::Result<Rate> {
    let running = start(lab, args.flows, level, netfilter)?;
    if netfilter == "respect" {
        wait_until_followed(&running, args.flows)?;
    }
    // User space may be overrun by frames that come at once.
    wait_until_forwarded(lab, &running, args.flows, if level == "user" { 500 } else { 999 })?;
    // Over the whole measurement, its warm-up included, as the frames that arrive.
    let (passed_before, arrived_before) = (forwarded(&running)?, lab.arrived()?);
    let rate = lab.measure(Duration::from_secs(args.series.seconds))?;
    let (passed, arrived) = (forwarded(&running)? - passed_before, lab.arrived()? - arrived_before);
    ensure!(passed * 100 > arrived * 99, "the kernel forwarded too: {passed} of {arrived} frames passed by it");
    running.stop()?;
    Ok(rate)
}

/// Waits until all but a thousandth of the connections have flows.
pub fn wait_until_followed(running: &Bywash, flows: usize) -> anyhow::Result<()> {
    let until = Instant::now() + patience(READY);
    loop {
        let table: FlowTable = client::ask(&running.socket)?;
        let taken = table.families.iter().map(|family| family.flows).sum::<u64>();
        if taken * 1000 >= flows as u64 * 999 {
            return Ok(());
        }
        ensure!(Instant::now() < until, "of {flows} connections, {taken} have flows");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Waits until so many thousandths of the connections' packets are forwarded past the kernel.
pub fn wait_until_forwarded(lab: &Lab, running: &Bywash, flows: usize, share: u64) -> anyhow::Result<()> {
    let until = Instant::now() + patience(READY);
    loop {
        let before = forwarded(running)?;
        lab.send(flows as u64)?;
        let passed = forwarded(running)? - before;
        if passed * 1000 >= flows as u64 * share {
            return Ok(());
        }
        ensure!(Instant::now() < until, "of {flows} connections, {passed} are forwarded past the kernel");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the frames that r0 received and that were forwarded past the kernel.
pub fn forwarded(running: &Bywash) -> anyhow::Result<u64> {
    let frames = frames(running)?;
    Ok(frames.driver + frames.user)
}

/// Returns the frames that r0 received and that were left to the kernel.
pub fn left(running: &Bywash) -> anyhow::Result<u64> {
    Ok(frames(running)?.kernel)
}

fn frames(running: &Bywash) -> anyhow::Result<LevelFrames> {
    let ports: Vec<Placement> = client::ask(&running.socket)?;
    Ok(ports.into_iter().next().context("no port")?.frames)
}

fn print(f: &Figures) {
    let rounds = f.rounds.len();
    let (flows, rounds) = (count(f.flows, "connection"), count(rounds, "round"));
    println!("{flows}, {} B, medians of {rounds} of {} s", f.size, f.seconds);
    let of = |name| f.median_mpps.get(name).copied().unwrap_or(f64::NAN);
    for (name, mpps) in &f.median_mpps {
        let (kernel, redirect) = (mpps / of("kernel"), mpps / of("redirect"));
        let ns = f.median_frame_ns.get(name).copied().unwrap_or(f64::NAN);
        println!(
            "  {name:10} {mpps:6.3} Mpps, {kernel:5.2} x the kernel, {redirect:.2} of the redirect; {ns:.0} ns a frame"
        );
    }
    if let Some(why) = &f.no_flow_table {
        println!("  no flowtable: {why}");
    }
}
