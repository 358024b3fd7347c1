//! Benchmark of the forwarding levels on the same traffic: the kernel, a minimal XDP redirect, Bywash at each level,
//! and peers, in alternating rounds.
//!
//! Everything except `user`, `spread` and the peers runs on the generator's CPU: the generator's system call passes
//! each frame to the driver; the driver's program or the kernel's forwarding, and the reception at b, run within it.
//! All figures include the generator's cost. b's driver drops the frames, unless its stack is selected as receiver.

use super::lab::{FOR_RATE, Interfaces, Lab, Rate, Traffic};
use crate::args::{Family, Series, flows, routes};
use anyhow::{Context as _, bail};
use bywash_config::{CpuList, Level, count};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Options by which the programs of traffic control forward. Without a native program, an interface receives live
/// frames only while it polls, as for the kernel.
const BY_TC: &[&str] = &["--xdp", "generic"];

/// Receiver at the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sink {
    /// Driver of the far host, which drops the packets
    Driver,
    /// Network stack of the far host, on the CPU that sent the packets
    Stack,
}

/// `bywash bench placement`
#[derive(Debug, Args)]
pub struct PlacementArgs {
    /// Forwarding levels, separated by commas; `mpps` in the JSON is that of the first
    #[arg(long, value_name = "LEVEL", default_value = "driver", value_delimiter = ',')]
    pub level: Vec<Level>,
    /// IP version; the smallest IPv6 frame has 66 bytes
    #[arg(long, value_name = "4|6", default_value = "4", hide_possible_values = true)]
    pub family: Family,
    /// Number of routes in the kernel's table, over 250 next hops
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = routes)]
    pub routes: usize,
    /// Number of destination addresses in the traffic
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = flows)]
    pub destinations: usize,
    #[command(flatten)]
    pub series: Series,
    /// Measure only bywash, not the kernel or the minimal XDP redirect
    #[arg(long)]
    pub ours_only: bool,
    /// Also measure the driver with these CPUs transmitting what it forwards (as `bywash run --spread`)
    #[arg(long, value_name = "LIST")]
    pub spread: Option<CpuList>,
    /// Also measure the kernel and each level with this many policy routing rules by source, of which none selects the
    /// traffic (as NAME+rules)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=60))]
    pub rules: Option<u8>,
    /// Also measure the kernel and each level with both interfaces in bridges (as NAME+bridges)
    #[arg(long)]
    pub bridges: bool,
    /// Also measure the kernel and each level between VLANs on the interfaces, with tagged frames (as NAME+vlans), and
    /// each level without them but by the same programs, those of traffic control (as NAME+tc): on veth, native XDP
    /// sees no tags
    #[arg(long)]
    pub vlans: bool,
    /// Also measure the kernel and each level with both interfaces in bonds (as NAME+bonds)
    #[arg(long)]
    pub bonds: bool,
    /// Also measure the kernel and each level with both interfaces in a VRF (as NAME+vrf)
    #[arg(long)]
    pub vrf: bool,
    /// Also measure the kernel and each level with both interfaces in one bridge, between whose members the frames are
    /// sent (as NAME+members), and each level without it but by traffic control (as NAME+tc): on veth, native XDP
    /// forwards no frames between members
    #[arg(long)]
    pub members: bool,
    /// Also measure the kernel and each level with the packets sent through a VXLAN (as NAME+vxlan)
    #[arg(long)]
    pub vxlan: bool,
    /// Also measure the kernel and each level with the packets sent through a VXLAN over IPv6 (as NAME+vxlan6)
    #[arg(long)]
    pub vxlan6: bool,
    /// Also measure the kernel and each level with the packets received through a VXLAN (as NAME+from-vxlan)
    #[arg(long)]
    pub from_vxlan: bool,
    /// Also measure the kernel and each level with the frames received through a VXLAN, which a bridge forwards to its
    /// other member (as NAME+vxlan-to-member)
    #[arg(long)]
    pub vxlan_to_member: bool,
    /// Receiver of the forwarded packets
    #[arg(long, value_name = "WHO", default_value = "driver")]
    pub sink: Sink,
    /// Also measure this command: it must forward between r0 and r1, and runs in the router's network namespace; can be
    /// repeated
    #[arg(long, value_name = "NAME=COMMAND")]
    pub peer: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Serialize)]
struct Figures {
    /// Rate of the first level, from the medians below.
    mpps: f64,
    /// Medians of the rounds by forwarder, in millions of arrived frames per second.
    median_mpps: BTreeMap<String, f64>,
    /// Ratio of the first level's rate to each of the others.
    ratio: BTreeMap<String, f64>,
    size: usize,
    destinations: usize,
    routes: usize,
    seconds: u64,
    /// CPUs of the generator and of the workers.
    cpus: [usize; 2],
    rounds: Vec<BTreeMap<String, Rate>>,
}

/// Runs `bywash bench placement`.
pub fn run(args: &PlacementArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    let peers: Vec<(&str, &str)> = args.peer.iter().map(|p| peer(p)).collect::<anyhow::Result<_>>()?;
    let PlacementArgs { destinations, routes, family, .. } = *args;
    let size = args.series.size;
    let lab = Lab::new(Traffic { size, destinations, routes, family })?;
    let mut lab = match args.sink {
        Sink::Driver => lab.with_driver_sink()?,
        Sink::Stack => lab.with_stack_sink()?,
    };
    let time = Duration::from_secs(args.series.seconds);
    let mut rounds = vec![];
    for _ in 0..args.series.rounds {
        let mut round = BTreeMap::new();
        if !args.ours_only {
            round.insert("kernel".to_owned(), lab.kernel(time)?);
            round.insert("redirect".to_owned(), lab.redirect(time)?);
        }
        levels(args, &lab, (FOR_RATE, ""), &mut round, || lab.measure(time))?;
        if let Some(rules) = args.rules {
            set_rules(args.family, &lab, rules, "add").context("with rules")?;
            again(args, &lab, "rules", &mut round).context("with rules")?;
            set_rules(args.family, &lab, rules, "del")?;
        }
        let by_tc = |lab: &Lab, name: &str, round: &mut _| levels(args, lab, (BY_TC, name), round, || lab.kernel(time));
        if args.members || args.vlans {
            by_tc(&lab, "+tc", &mut round).context("by traffic control")?;
        }
        let wanted = [
            (args.bridges, Interfaces::Bridges),
            (args.vlans, Interfaces::Vlans),
            (args.bonds, Interfaces::Bonds),
            (args.vrf, Interfaces::Vrf),
        ];
        for (_, interfaces) in wanted.into_iter().filter(|(wanted, _)| *wanted) {
            let name = interfaces.name();
            let with = || format!("with {name}");
            lab.route_by(interfaces).with_context(with)?;
            if interfaces == Interfaces::Vlans {
                kernel(args, &lab, name, &mut round).with_context(with)?;
                by_tc(&lab, "+vlans", &mut round).with_context(with)?;
            } else {
                again(args, &lab, name, &mut round).with_context(with)?;
            }
            lab.route_plain(interfaces)?;
        }
        for (wanted, over6, name) in [(args.vxlan, false, "vxlan"), (args.vxlan6, true, "vxlan6")] {
            if wanted {
                lab.start_vxlan(over6).context("through a VXLAN")?;
                again(args, &lab, name, &mut round).context("through a VXLAN")?;
                lab.end_vxlan()?;
            }
        }
        for (wanted, bridged, name) in
            [(args.from_vxlan, false, "from-vxlan"), (args.vxlan_to_member, true, "vxlan-to-member")]
        {
            if wanted {
                lab.receive_by_vxlan(bridged).context("from a VXLAN")?;
                again(args, &lab, name, &mut round).context("from a VXLAN")?;
                lab.receive_plain()?;
            }
        }
        if args.members {
            lab.bridge_together().context("in one bridge")?;
            kernel(args, &lab, "members", &mut round).context("in one bridge")?;
            by_tc(&lab, "+members", &mut round).context("between members")?;
            lab.unbridge_together()?;
        }
        if let Some(cpus) = &args.spread {
            let cpus = cpus.0.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            let bywash = lab.bywash(&[FOR_RATE, &["--level", "driver", "--spread", &cpus]].concat())?;
            round.insert("spread".to_owned(), lab.measure(time).context("spread over CPUs")?);
            bywash.stop()?;
        }
        for (name, command) in &peers {
            round.insert((*name).to_owned(), lab.peer(command, time)?);
        }
        rounds.push(round);
    }
    let figures = figures(args, &lab, rounds);
    super::report(args.json, &figures, print)
}

/// Adds policy routing rules by source, or deletes them.
fn set_rules(family: Family, lab: &Lab, many: u8, verb: &str) -> anyhow::Result<()> {
    let option = if family == Family::V6 { "-6 " } else { "" };
    let from = |n: u8| if family == Family::V6 { format!("fd99::{n:x}") } else { format!("203.0.113.{n}") };
    (1..=many).try_for_each(|n| {
        let rule = format!("{option}rule {verb} pref {n} from {} lookup 100", from(n));
        Ok(lab.topology().r().ip(&rule.split(' ').collect::<Vec<_>>()).map(drop)?)
    })
}

/// Measures the kernel and each level again, with the present configuration of the lab.
fn again(args: &PlacementArgs, lab: &Lab, with: &str, round: &mut BTreeMap<String, Rate>) -> anyhow::Result<()> {
    kernel(args, lab, with, round)?;
    let time = Duration::from_secs(args.series.seconds);
    levels(args, lab, (FOR_RATE, &format!("+{with}")), round, || lab.measure(time))
}

/// Measures the kernel with the present configuration of the lab, if it is wanted.
fn kernel(args: &PlacementArgs, lab: &Lab, with: &str, round: &mut BTreeMap<String, Rate>) -> anyhow::Result<()> {
    if !args.ours_only {
        round.insert(format!("kernel+{with}"), lab.kernel(Duration::from_secs(args.series.seconds))?);
    }
    Ok(())
}

/// Measures each level with these options, as its name with this suffix.
fn levels(
    args: &PlacementArgs,
    lab: &Lab,
    (options, suffix): (&[&str], &str),
    round: &mut BTreeMap<String, Rate>,
    measure: impl Fn() -> anyhow::Result<Rate>,
) -> anyhow::Result<()> {
    for name in args.level.iter().map(|level| level.name()) {
        let bywash = lab.bywash(&[options, &["--level", name]].concat())?;
        round.insert(format!("{name}{suffix}"), measure().with_context(|| format!("at level {name}"))?);
        bywash.stop()?;
    }
    Ok(())
}

/// Parses `NAME=COMMAND`.
fn peer(text: &str) -> anyhow::Result<(&str, &str)> {
    match text.split_once('=') {
        Some((name, command)) if !name.is_empty() && !command.is_empty() => Ok((name, command)),
        _ => bail!("--peer {text}: expected NAME=COMMAND"),
    }
}

fn figures(args: &PlacementArgs, lab: &Lab, rounds: Vec<BTreeMap<String, Rate>>) -> Figures {
    let median_mpps = super::medians(&rounds, |rate| rate.mpps);
    let first = args.level[0].name();
    let mpps = median_mpps[first];
    let others = median_mpps.iter().filter(|(name, _)| *name != first);
    Figures {
        mpps,
        ratio: others.map(|(name, other)| (name.clone(), mpps / other)).collect(),
        median_mpps,
        size: args.series.size,
        destinations: args.destinations,
        routes: args.routes,
        seconds: args.series.seconds,
        cpus: lab.cpus,
        rounds,
    }
}

fn print(f: &Figures) {
    println!(
        "{} B, {}, {}, medians of {} of {} s",
        f.size,
        count(f.destinations, "destination"),
        count(f.routes, "route"),
        count(f.rounds.len(), "round"),
        f.seconds
    );
    for (name, mpps) in &f.median_mpps {
        let ratio = f.ratio.get(name).map(|r| format!(", bywash has {r:.2} x its rate")).unwrap_or_default();
        println!("  {name:14} {mpps:6.3} Mpps{ratio}");
    }
}
