//! Benchmark of a router with a stateful firewall and masquerade, on established UDP connections: the kernel, a minimal
//! XDP redirect, Bywash without regard to the rules, and Bywash with them, in alternating rounds.
//!
//! The connections are opened through the kernel by packets both ways. Each has a destination of its own; the traffic
//! belongs to all of them in turn, in the direction whose sources are translated. All forwarders but `user` run on the
//! generator's CPU, as in `bywash bench placement`.

use super::lab::{Bywash, Lab, Rate, STATIONS, Traffic};
use crate::args::{SECONDS, flows, size};
use anyhow::{Context as _, ensure};
use bywash_api::{Placement, client};
use bywash_lab::patience;
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
/// Time for connection tracking to take UDP with packets both ways for a connection (UDP_STREAM in
/// net/netfilter/nf_conntrack_proto_udp.c), and some more.
const STREAM: Duration = Duration::from_millis(2100);
/// Longest time until the connections are forwarded.
const READY: Duration = Duration::from_secs(120);
/// Seconds after which an idle connection ends: longer than a measurement that passes by the kernel.
const TIMEOUT: &str = "3600";

/// `bywash bench nat`
#[derive(Debug, Args)]
pub struct NatArgs {
    /// Number of established connections; the kernel must have room for them (nf_conntrack_max)
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = flows)]
    pub flows: usize,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Number of rounds, each measuring all of them; the result is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Figures {
    /// Medians of the rounds by forwarder, in millions of arrived frames per second.
    median_mpps: BTreeMap<&'static str, f64>,
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
    let traffic = Traffic { size: args.size, destinations: args.flows, routes: 1 };
    let lab = Lab::new(traffic)?.without_checksums().with_driver_sink()?;
    establish(&lab, args.flows)?;
    let time = Duration::from_secs(args.seconds);
    let mut rounds = vec![];
    for _ in 0..args.rounds {
        let mut round = BTreeMap::from([("kernel", lab.kernel(time)?), ("redirect", lab.redirect(time)?)]);
        for (name, level, netfilter) in
            [("routed", "driver", "ignore"), ("driver", "driver", "respect"), ("user", "user", "respect")]
        {
            round.insert(name, bywash(&lab, args, level, netfilter).context(name)?);
        }
        rounds.push(round);
    }
    let mut samples: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for (name, rate) in rounds.iter().flatten() {
        samples.entry(name).or_default().push(rate.mpps);
    }
    let figures = Figures {
        median_mpps: samples.into_iter().filter_map(|(name, rates)| Some((name, super::median(rates)?))).collect(),
        flows: args.flows,
        size: args.size,
        seconds: args.seconds,
        cpus: lab.cpus,
        rounds,
    };
    super::report(args.json, &figures, print)
}

/// Loads a ruleset in the router, in place of what it has.
pub fn load(lab: &Lab, rules: &str) -> anyhow::Result<()> {
    let mut file = tempfile::NamedTempFile::new()?;
    write!(file, "flush ruleset\n{rules}")?;
    lab.topology().r().run(&["nft", "-f", file.path().to_str().context("no UTF-8 path")?])?;
    Ok(())
}

/// Loads the rules and opens the connections.
pub fn establish(lab: &Lab, count: usize) -> anyhow::Result<()> {
    let (r, b) = (lab.topology().r(), lab.topology().b());
    load(lab, RULES)?;
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
        assured =
            r.run(&["sh", "-c", "conntrack -L -p udp 2>/dev/null | grep -c ASSURED || :"])?.stdout.trim().parse()?;
        std::thread::sleep(STREAM);
    }
    Ok(())
}

/// Starts Bywash at a level, with room for these connections.
pub fn start(lab: &Lab, flows: usize, level: &str, netfilter: &str) -> anyhow::Result<Bywash> {
    let mut text = format!("[kernel]\nnetfilter = \"{netfilter}\"\n[router]\nflows = {flows}\n");
    for name in lab.topology().router_interfaces() {
        writeln!(text, "[[port]]\ninterface = \"{name}\"\nxdp = \"native\"\nlevel = \"{level}\"")?;
    }
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(text.as_bytes())?;
    Bywash::configured(lab.topology(), lab.cpus[1], file.path())
}

/// Measures Bywash at a level, once it forwards all connections.
fn bywash(lab: &Lab, args: &NatArgs, level: &str, netfilter: &str) -> anyhow::Result<Rate> {
    let running = start(lab, args.flows, level, netfilter)?;
    let until = Instant::now() + patience(READY);
    loop {
        let before = forwarded(&running)?;
        lab.send(args.flows as u64)?;
        let passed = forwarded(&running)? - before;
        // User space may be overrun by frames that come at once.
        if passed * 1000 >= args.flows as u64 * if level == "user" { 500 } else { 999 } {
            break;
        }
        ensure!(Instant::now() < until, "of {} connections, {passed} are forwarded past the kernel", args.flows);
        std::thread::sleep(Duration::from_millis(100));
    }
    let before = forwarded(&running)?;
    let rate = lab.measure(Duration::from_secs(args.seconds))?;
    let arrived = (rate.mpps * args.seconds as f64 * 1e6) as u64;
    let passed = forwarded(&running)? - before;
    ensure!(passed * 100 > arrived * 99, "the kernel forwarded too: {passed} of {arrived} frames passed by it");
    running.stop()?;
    Ok(rate)
}

/// Returns the frames that r0 received and that were forwarded past the kernel.
pub fn forwarded(running: &Bywash) -> anyhow::Result<u64> {
    let ports: Vec<Placement> = client::ask(&running.socket)?;
    let port = ports.first().context("no port")?;
    Ok(port.frames.driver + port.frames.user)
}

fn print(f: &Figures) {
    let rounds = f.rounds.len();
    println!("{} connections, {} B, medians of {rounds} rounds of {} s", f.flows, f.size, f.seconds);
    let of = |name| f.median_mpps.get(name).copied().unwrap_or(f64::NAN);
    for (name, mpps) in &f.median_mpps {
        let (kernel, redirect) = (mpps / of("kernel"), mpps / of("redirect"));
        println!("  {name:10} {mpps:6.3} Mpps, {kernel:5.2} x the kernel, {redirect:.2} of the redirect");
    }
}
