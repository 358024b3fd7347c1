//! Benchmark of an attack: established connections are forwarded at full load on one CPU, while another CPU receives
//! packets that each begin a connection.
//!
//! Established packets are those that Bywash has forwarded past the kernel's rules; packets of the attack that the
//! kernel forwards are not counted. Both kinds arrive on one port, each on a queue of its own.

use super::lab::{Bywash, Lab, Traffic, WARM_UP};
use super::nat;
use crate::args::{Family, SECONDS, flows};
use anyhow::{Context as _, ensure};
use bywash_api::{FlowTable, client};
use bywash_config::count;
use bywash_port::af_xdp::{LiveGen, LiveOrder, LiveStream};
use bywash_tester::{Addresses, Ports, Sizes, Stream};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// First attacked address, outside of the destinations of established connections.
const ATTACKED: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 1);
/// Number of attacked addresses, and source ports of the attack.
const ADDRESSES: u64 = 60_000;
const SOURCES: std::ops::Range<u16> = 20_000..20_008;
/// Longest time that an attacker's generator runs before another one has its turn.
const TURN: Duration = Duration::from_millis(500);
/// Interval at which memory is sampled.
const SAMPLE: Duration = Duration::from_millis(50);
/// Clock ticks of `/proc/PID/stat` in a second.
const TICKS: f64 = 100.0;

/// An attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Attack {
    /// A loop that does nothing, for comparison: what the CPUs share
    Loop,
    /// `spray` through another router of this machine, which has the rules but not Bywash, for comparison: what the
    /// CPUs share while one runs the kernel's code
    Elsewhere,
    /// TCP packets with SYN to ever-changing addresses, from ever-changing ports
    Syn,
    /// UDP datagrams, a million a second, to ever-changing addresses, from ever-changing ports
    Spray,
    /// UDP datagrams to all ports of one address
    Scan,
}

/// `bywash bench attack`
#[derive(Debug, Args)]
pub struct AttackArgs {
    /// Attacks, separated by commas
    #[arg(long, value_name = "ATTACK", value_delimiter = ',', default_value = "loop,elsewhere,syn,spray,scan")]
    pub attacks: Vec<Attack>,
    /// Number of established connections
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = flows)]
    pub flows: usize,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Number of rounds, each without and with the attack; the result is the median
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Figures of one attack.
#[derive(Serialize)]
struct Attacked {
    /// Medians of the rounds: millions of packets of established connections a second, without and with the attack.
    before_mpps: f64,
    during_mpps: f64,
    /// Packets of the attack that the router received, in millions per second.
    attack_mpps: f64,
    /// Resident memory before the attack, and its maximum during it, in bytes.
    memory: u64,
    memory_peak: u64,
    /// Flows removed, and flows revoked until they were judged anew.
    removed: u64,
    revoked: u64,
    /// Number of times that announcements were lost.
    lost: u64,
    /// Connections judged.
    judged: u64,
    /// CPU time of each second, by thread, for threads that used any.
    cpu: BTreeMap<String, f64>,
}

#[derive(Serialize)]
struct Figures {
    flows: usize,
    seconds: u64,
    cpus: [usize; 2],
    attacks: BTreeMap<Attack, Attacked>,
}

/// Runs `bywash bench attack`.
pub fn run(args: &AttackArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    bywash_lab::has_tool("nft").map_err(|why| anyhow::anyhow!("cannot load rules: {why}"))?;
    bywash_lab::has_tool("conntrack").map_err(|why| anyhow::anyhow!("cannot see connections: {why}"))?;
    let traffic = Traffic { size: 64, destinations: args.flows, routes: 1, family: Family::V4 };
    let lab = Lab::with_queues(traffic, 2)?.without_checksums().with_driver_sink()?;
    ensure!(lab.cpus[0] != lab.cpus[1], "an attack needs a CPU of its own");
    nat::establish(&lab, args.flows)?;
    let r = lab.topology().r();
    r.sysctl("net/netfilter/nf_conntrack_udp_timeout", "30")?;
    // The generator does not update TCP's checksum.
    r.sysctl("net/netfilter/nf_conntrack_checksum", "0")?;
    let elsewhere = Lab::with_queues(traffic, 2)?.without_checksums().with_driver_sink()?;
    nat::load(elsewhere.topology(), nat::RULES)?;
    // Live frames are received by NAPI only, which an interface without an XDP program has for GRO.
    elsewhere.topology().r().offload(&elsewhere.topology().a().router_interface, "gro", true)?;
    spread(&lab)?;
    spread(&elsewhere)?;
    let running = nat::start(&lab, args.flows, "driver", "respect")?;
    nat::wait_until_forwarded(&lab, &running, args.flows, 999)?;
    let (stop, mut attacks) = (Arc::new(AtomicBool::new(false)), BTreeMap::new());
    let source = lab.flood(stop.clone())?;
    let result = args.attacks.iter().try_for_each(|attack| -> anyhow::Result<()> {
        let attacked = if *attack == Attack::Elsewhere { &elsewhere } else { &lab };
        attacks.insert(*attack, measure(attacked, args, &running, *attack).with_context(|| format!("{attack:?}"))?);
        Ok(())
    });
    stop.store(true, Ordering::Relaxed);
    source.join().map_err(|_| anyhow::anyhow!("the generator panicked"))???;
    result?;
    running.stop()?;
    super::report(args.json, &Figures { flows: args.flows, seconds: args.seconds, cpus: lab.cpus, attacks }, print)
}

/// Measures one attack, on the router of `attacked`.
fn measure(attacked: &Lab, args: &AttackArgs, running: &Bywash, attack: Attack) -> anyhow::Result<Attacked> {
    let time = Duration::from_secs(args.seconds);
    let table = || -> anyhow::Result<FlowTable> { client::ask(&running.socket) };
    let received = || if attack == Attack::Elsewhere { received(attacked) } else { nat::left(running) };
    let counted = || -> anyhow::Result<(FlowTable, BTreeMap<String, f64>, u64)> {
        Ok((table()?, cpu(running.process.pid())?, received()?))
    };
    let (memory, ..) = running.memory()?;
    let peak = AtomicU64::new(memory);
    let (mut without, mut with, mut offered) = (vec![], vec![], vec![]);
    let (mut removed, mut revoked, mut lost, mut judged) = (0, 0, 0, 0);
    let mut cpu: BTreeMap<String, f64> = BTreeMap::new();
    for _ in 0..args.rounds {
        without.push(super::lab::rate(time, || nat::forwarded(running))?);
        let stop = Arc::new(AtomicBool::new(false));
        let attacker = attacker(attacked, attack, stop.clone())?;
        let measured = thread::scope(|scope| -> anyhow::Result<()> {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    peak.fetch_max(running.memory().map_or(0, |(resident, _)| resident), Ordering::Relaxed);
                    thread::sleep(SAMPLE);
                }
            });
            let measured = (|| {
                // The generator is set up meanwhile.
                let before = received()?;
                let until = Instant::now() + Duration::from_secs(30);
                while attack != Attack::Loop && received()? - before < 1000 {
                    ensure!(Instant::now() < until, "no packet of the attack arrives");
                    thread::sleep(WARM_UP);
                }
                let (start, before) = (Instant::now(), counted()?);
                with.push(super::lab::rate(time, || nat::forwarded(running))?);
                let (after, seconds) = (counted()?, start.elapsed().as_secs_f64());
                let removals = |of: &FlowTable| of.families.iter().map(|family| family.removed).sum::<u64>();
                let revocations = |of: &FlowTable| of.revoked.iter().map(|row| row.flows).sum::<u64>();
                removed += removals(&after.0) - removals(&before.0);
                revoked += revocations(&after.0) - revocations(&before.0);
                lost += after.0.lost - before.0.lost;
                judged += after.0.judged - before.0.judged;
                offered.push((after.2 - before.2) as f64 / seconds / 1e6);
                for (name, time) in after.1 {
                    *cpu.entry(name.clone()).or_default() +=
                        (time - before.1.get(&name).copied().unwrap_or_default()) / seconds / args.rounds as f64;
                }
                Ok(())
            })();
            stop.store(true, Ordering::Relaxed);
            measured
        });
        attacker.join().map_err(|_| anyhow::anyhow!("the attacker panicked"))???;
        measured?;
    }
    cpu.retain(|_, time| *time >= 0.01);
    let median = |of| super::median(of).context("no rates");
    Ok(Attacked {
        before_mpps: median(without)?,
        during_mpps: median(with)?,
        attack_mpps: median(offered)?,
        memory,
        memory_peak: peak.into_inner(),
        removed,
        revoked: revoked - removed,
        lost,
        judged,
        cpu,
    })
}

/// Gives each CPU a transmit queue of the router's interface towards b. Packets that the kernel forwards would
/// otherwise go by any queue, and veth processes a queue's packets on the CPU that the queue's receiver last ran on.
fn spread(lab: &Lab) -> anyhow::Result<()> {
    let (r, interface) = (lab.topology().r(), &lab.topology().b().router_interface);
    for (queue, cpu) in lab.cpus.iter().enumerate() {
        // A bitmap in words of 32 bits, the highest first.
        let mask = format!("{:x}{}", 1u32 << (cpu % 32), ",00000000".repeat(cpu / 32));
        r.run(&["sh", "-c", &format!("echo {mask} > /sys/class/net/{interface}/queues/tx-{queue}/xps_cpus")])?;
    }
    Ok(())
}

/// Starts to attack, on the other CPU.
fn attacker(
    lab: &Lab,
    attack: Attack,
    stop: Arc<AtomicBool>,
) -> anyhow::Result<thread::JoinHandle<bywash_lab::Result<anyhow::Result<()>>>> {
    let a = lab.topology().a();
    let (interface, cpu, from) = (a.interface.clone(), lab.cpus[1], IpAddr::from(a.v4));
    let macs: (MacAddr, MacAddr) = a.mac.parse().ok().zip(a.router_mac.parse().ok()).context("no MAC addresses")?;
    Ok(a.ns.thread(move || -> anyhow::Result<()> {
        super::pin(Some(cpu))?;
        let running = || !stop.load(Ordering::Relaxed);
        let dst = |count| Addresses { first: ATTACKED.into(), count };
        let (dst, src_port, dst_port, flows, pps) = match attack {
            Attack::Loop => {
                while running() {}
                return Ok(());
            }
            Attack::Syn => {
                let to: Vec<IpAddr> = (0..ADDRESSES).map(|n| dst(ADDRESSES).at(n)).collect();
                let generator = |port| -> anyhow::Result<LiveGen> {
                    let packet = Packet::tcp((from, port).into(), (ATTACKED, 80).into()).tcp_fields(1, 0, 2);
                    let frame = packet.macs(macs.0, macs.1).size(64).build()?;
                    Ok(LiveGen::new(&interface, &frame, &to)?)
                };
                let mut generators = SOURCES.map(generator).collect::<anyhow::Result<Vec<_>>>()?;
                while running() {
                    for generator in generators.iter_mut().take_while(|_| running()) {
                        generator.run_for(TURN, super::lab::BATCH)?;
                    }
                }
                return Ok(());
            }
            Attack::Spray | Attack::Elsewhere => {
                let ports = Ports(SOURCES.start, SOURCES.end - 1);
                (dst(ADDRESSES), ports, Ports(53, 53), ADDRESSES as usize * SOURCES.len(), Some(1e6))
            }
            Attack::Scan => {
                (dst(1), Ports(SOURCES.start, SOURCES.start), Ports(1, u16::MAX), usize::from(u16::MAX), None)
            }
        };
        let src = Addresses::one(from);
        let stream = Stream {
            src_mac: macs.0,
            dst_mac: macs.1,
            src,
            dst,
            src_port,
            dst_port,
            flows,
            sizes: Sizes(vec![64]),
            ..Stream::default()
        };
        let templates = stream.templates()?;
        let mut live = LiveStream::new(&interface, &templates.heads(), templates.stamp_at())?;
        while running() {
            let order = LiveOrder { stream: 1, pps, catch_up: Duration::ZERO, frames: u64::MAX, time: TURN };
            live.send(&order, &stop)?;
        }
        Ok(())
    })?)
}

/// Returns the number of packets that the router of a lab has received from the attacker's side.
fn received(lab: &Lab) -> anyhow::Result<u64> {
    let name = &lab.topology().a().router_interface;
    let devices = lab.topology().r().enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))??;
    let counters = devices.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'));
    Ok(counters.and_then(|of| of.split_whitespace().nth(1)).context("no counters")?.parse()?)
}

/// Returns the CPU time that threads have used, in seconds, by name.
fn cpu(pid: u32) -> anyhow::Result<BTreeMap<String, f64>> {
    let mut used: BTreeMap<String, f64> = BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let Ok(stat) = std::fs::read_to_string(task?.path().join("stat")) else { continue };
        let (name, rest) = stat.split_once(" (").and_then(|(_, rest)| rest.rsplit_once(") ")).context("no stat")?;
        // utime and stime, fields 14 and 15 of proc_pid_stat(5).
        let ticks: f64 = rest.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
        *used.entry(name.into()).or_default() += ticks / TICKS;
    }
    Ok(used)
}

fn print(f: &Figures) {
    println!("{}, medians of rounds of {} s", count(f.flows, "connection"), f.seconds);
    for (attack, of) in &f.attacks {
        let (before, during, share) = (of.before_mpps, of.during_mpps, of.during_mpps / of.before_mpps);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "  {:9} {before:.2} Mpps before, {during:.2} during it ({share:.2}); attack {:.2} Mpps",
            format!("{attack:?}").to_lowercase(),
            of.attack_mpps
        );
        println!("            memory {:.1} MiB, at most {:.1}", mib(of.memory), mib(of.memory_peak));
        let Attacked { removed, revoked, lost, judged, .. } = of;
        println!(
            "            flows removed {removed}, revoked {revoked}; events lost {lost} times; {judged} evaluated"
        );
        let cpu = of.cpu.iter().map(|(name, time)| format!("{name} {:.0} %", time * 100.0)).collect::<Vec<_>>();
        println!("            CPU time: {}", if cpu.is_empty() { "none".into() } else { cpu.join(", ") });
    }
}
