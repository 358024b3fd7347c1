//! Benchmark of route changes under traffic, at up to hundreds of thousands per second, with a checker that knows every
//! state: each packet must take the route that was valid when it was sent, or the one that replaced it.
//!
//! There are four ranges of prefixes behind hosts b and c: 43/8 belongs to b and 45/8 to c; 44/8 alternates between
//! them at the given rate; 46.0.0.0/24 alternates ten times a second. Packets are sent to the latter until one takes
//! the new route, which measures the lag behind the kernel; after that, none may take the old route.

use super::lab;
use crate::args::SECONDS;
use anyhow::{Context as _, bail, ensure};
use bywash_api::{Placement, Route, client};
use bywash_config::Host;
use bywash_config::Level;
use bywash_lab::{Topology, TopologyBuilder};
use bywash_netlink::change::{AT_ONCE, Changer, Changes};
use clap::Args;
use serde::Serialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// `bywash bench churn`
#[derive(Debug, Args)]
pub struct ChurnArgs {
    /// Route changes per second; 0: as many as the kernel accepts
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub rate: u64,
    /// Packets per second
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub packets: u64,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Forwarding level
    #[arg(long, value_name = "LEVEL", default_value = "driver")]
    pub level: Level,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

const PORT: u16 = 7007;
/// Maximum number of packets sent at once after the sender was delayed.
const AT_MOST: u64 = 32;
const PREFIXES: u32 = 10_000;
/// Flag in the numbers of packets that probe for the new route.
const PROBE: u64 = 1 << 63;
const PATIENCE: Duration = Duration::from_secs(60);
/// Time without a packet after which no more are expected: a busy machine may keep the worker from forwarding.
const QUIET: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct Figures {
    /// Route changes per second that the kernel applied and Bywash followed.
    changes_per_s: f64,
    changes: u64,
    seconds: f64,
    sent: u64,
    /// Packets that did not arrive.
    lost: u64,
    /// Packets that took a route which was no longer valid or never was.
    wrong: u64,
    /// Milliseconds from the kernel's acceptance of a change to the first packet that takes the new route.
    lag_ms: Lag,
    /// Frames by forwarding level.
    driver: u64,
    user: u64,
    kernel: u64,
}

#[derive(Serialize)]
struct Lag {
    median: f64,
    most: f64,
    samples: usize,
}

/// Change of the probed prefix to host `to`, first observed by packet `seen`.
struct Flip {
    to: usize,
    seen: u64,
    lag: Duration,
}

/// Packets that arrived at one host.
#[derive(Default)]
struct Arrivals {
    packets: u64,
    wrong: u64,
    probes: Vec<u64>,
}

/// Prepared changes towards b and towards c.
struct Turns {
    flips: [Changes; 2],
    probe: [Changes; 2],
}

/// Runs `bywash bench churn`.
pub fn run(args: &ChurnArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    // Disable checksum offload: packets with unfinished checksums are handled in user space at any level.
    let builder = Topology::builder().ports(3).static_neighbours(true);
    let topology = TopologyBuilder::host_offload(builder, "gro", true).host_offload("tx", false).build()?;
    for host in &topology.hosts()[1..] {
        for first in 43..=46 {
            host.ns.ip(&["route", "add", "local", &format!("{first}.0.0.0/8"), "dev", "lo"])?;
        }
    }
    let mut changer = topology.r().enter(Changer::open)??;
    let turns = begin(&topology, &mut changer)?;
    let cpu = Host::this().allowed.last().copied().context("no CPU to run on")?;
    let options = [lab::FOR_RATE, &["--level", args.level.name()]].concat();
    let bywash = lab::Bywash::start(&topology, cpu, &options)?;
    let figures = measure(args, &topology, changer, &turns, &bywash)?;
    bywash.stop()?;
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
    } else {
        let Figures { changes_per_s, seconds, sent, lost, wrong, lag_ms, .. } = &figures;
        println!(
            "{changes_per_s:.0} route changes/s for {seconds:.1} s: {sent} packets, {lost} lost, {wrong} misrouted"
        );
        println!("lag behind the kernel {:.1} ms, {:.1} ms at most", lag_ms.median, lag_ms.most);
    }
    Ok(())
}

/// Installs the initial routes and prepares the changes.
fn begin(topology: &Topology, changer: &mut Changer) -> anyhow::Result<Turns> {
    let prefixes = |first: u8| -> Vec<(Ipv4Addr, u8)> {
        (0..PREFIXES).map(|n| (Ipv4Addr::new(first, (n >> 8) as u8, n as u8, 0), 24)).collect()
    };
    let index = |host: usize| -> anyhow::Result<u32> {
        let interface = topology.hosts()[host].router_interface.clone();
        let link = topology.r().enter(|| bywash_netlink::interface_by_name(&interface))??;
        Ok(link.with_context(|| format!("no {interface}"))?.index)
    };
    let next_hops = [(topology.hosts()[1].v4, index(1)?), (topology.hosts()[2].v4, index(2)?)];
    let to = |prefixes: &[(Ipv4Addr, u8)]| next_hops.map(|(gateway, index)| Changes::replace(prefixes, gateway, index));
    let turns = Turns { flips: to(&prefixes(44)), probe: to(&[(Ipv4Addr::new(46, 0, 0, 0), 24)]) };
    let [b, c] = [to(&prefixes(43))[0].clone(), to(&prefixes(45))[1].clone()];
    for changes in [&b, &c, &turns.flips[0], &turns.probe[0]] {
        (0..changes.pieces()).try_for_each(|n| changer.make(changes, n))?;
    }
    Ok(turns)
}

fn measure(
    args: &ChurnArgs,
    topology: &Topology,
    mut changer: Changer,
    turns: &Turns,
    bywash: &lab::Bywash,
) -> anyhow::Result<Figures> {
    let hosts = topology.hosts();
    let socket = |host: usize, port: u16| hosts[host].ns.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)));
    let ears = [socket(1, PORT)??, socket(2, PORT)??];
    for ear in &ears {
        // A large buffer, so that packets are not lost if the reader is delayed on a busy machine.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(ear, 64 << 20)?;
        ear.set_read_timeout(Some(QUIET))?;
    }
    let (mouth, probing) = (socket(0, 0)??, socket(0, 0)??);
    let probe_changer = topology.r().enter(Changer::open)??;
    let (stop, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let seen = [AtomicU64::new(0), AtomicU64::new(0)];
    let before = handled(bywash)?;
    let (arrivals, sent, (changes, took), flips) = std::thread::scope(|scope| {
        let ears = [0, 1].map(|host| {
            let (ear, ended, seen) = (&ears[host], &ended, &seen[host]);
            scope.spawn(move || listen(ear, host, seen, ended))
        });
        let sender = scope.spawn(|| send(&mouth, args.packets, &stop));
        let prober = scope.spawn(|| probe(&probing, probe_changer, &turns.probe, &seen, &stop));
        let changed = change(args, &mut changer, &turns.flips);
        stop.store(true, Ordering::Relaxed);
        let (sent, flips) = (joined(sender)?, joined(prober)?);
        ended.store(true, Ordering::Relaxed);
        let [b, c] = ears;
        anyhow::Ok(([joined(b)?, joined(c)?], sent?, changed?, flips?))
    })?;
    let now = handled(bywash)?;
    let (probes, flips) = flips;
    let wrong = arrivals.iter().map(|arrivals| arrivals.wrong).sum::<u64>() + stale(&flips, &arrivals);
    let arrived: u64 = arrivals.iter().map(|arrivals| arrivals.packets).sum();
    settle(bywash, changes, hosts)?;
    let mut lags: Vec<f64> = flips.iter().map(|flip| flip.lag.as_secs_f64() * 1e3).collect();
    lags.sort_by(f64::total_cmp);
    let lag_ms = Lag {
        median: lags.get(lags.len() / 2).copied().context("no route change was followed")?,
        most: lags.last().copied().unwrap_or_default(),
        samples: lags.len(),
    };
    Ok(Figures {
        changes_per_s: (changes + flips.len() as u64) as f64 / took.as_secs_f64(),
        changes: changes + flips.len() as u64,
        seconds: took.as_secs_f64(),
        sent: sent + probes,
        lost: (sent + probes).saturating_sub(arrived),
        wrong,
        lag_ms,
        driver: now[0] - before[0],
        user: now[1] - before[1],
        kernel: now[2] - before[2],
    })
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, T>) -> anyhow::Result<T> {
    thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))
}

/// Alternates 44/8 at the requested rate. Returns the number of changes and the time they took.
fn change(args: &ChurnArgs, changer: &mut Changer, flips: &[Changes; 2]) -> anyhow::Result<(u64, Duration)> {
    let (started, mut made) = (Instant::now(), 0u64);
    let time = Duration::from_secs(args.seconds);
    let pieces = flips[0].pieces() as u64;
    while started.elapsed() < time {
        let due = started.elapsed().as_secs_f64() * args.rate as f64;
        if args.rate > 0 && made as f64 > due {
            std::thread::sleep(Duration::from_micros(300));
            continue;
        }
        let piece = made / AT_ONCE as u64;
        // The first change is towards c.
        changer.make(&flips[1 - (piece / pieces) as usize % 2], (piece % pieces) as usize)?;
        made += AT_ONCE as u64;
    }
    Ok((made, started.elapsed()))
}

/// Sends `packets` numbered packets per second until `stop`. Returns the number sent.
fn send(socket: &UdpSocket, packets: u64, stop: &AtomicBool) -> anyhow::Result<u64> {
    let (started, mut base, mut sent) = (Instant::now(), 0, 0u64);
    while !stop.load(Ordering::Relaxed) {
        let due = (started.elapsed().as_secs_f64() * packets as f64) as u64 - base;
        if due > sent + AT_MOST {
            base += due - sent - AT_MOST;
        }
        while sent < due.min(sent + AT_MOST) {
            socket.send_to(&sent.to_be_bytes(), SocketAddr::from((destination(sent), PORT)))?;
            sent += 1;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(sent)
}

/// Returns the destination of packet `n`: alternately in the range of b, the alternating range, and the range of c,
/// with consecutive prefixes.
fn destination(n: u64) -> Ipv4Addr {
    let prefix = (n / 3) % u64::from(PREFIXES);
    Ipv4Addr::new(43 + (n % 3) as u8, (prefix >> 8) as u8, prefix as u8, 9)
}

/// Alternates the probed prefix until `stop`. Returns the number of packets sent to it, and when each change was
/// observed.
fn probe(
    socket: &UdpSocket,
    mut changer: Changer,
    changes: &[Changes; 2],
    seen: &[AtomicU64; 2],
    stop: &AtomicBool,
) -> anyhow::Result<(u64, Vec<Flip>)> {
    let to = SocketAddr::from((Ipv4Addr::new(46, 0, 0, 9), PORT));
    let (mut sent, mut flips) = (0u64, vec![]);
    while !stop.load(Ordering::Relaxed) {
        let host = 1 - flips.len() % 2;
        changer.make(&changes[host], 0)?;
        let (started, first) = (Instant::now(), sent);
        while seen[host].load(Ordering::Acquire) <= first {
            ensure!(started.elapsed() < PATIENCE, "a route change is not followed within {PATIENCE:?}");
            socket.send_to(&(sent | PROBE).to_be_bytes(), to)?;
            sent += 1;
            std::thread::sleep(Duration::from_micros(100));
        }
        flips.push(Flip { to: host, seen: seen[host].load(Ordering::Acquire) - 1, lag: started.elapsed() });
        // Packets that are sent now must not take the old route.
        for _ in 0..10 {
            socket.send_to(&(sent | PROBE).to_be_bytes(), to)?;
            sent += 1;
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok((sent, flips))
}

/// Receives packets at b (0) or c (1) until `ended` is set and no more arrive.
fn listen(socket: &UdpSocket, host: usize, seen: &AtomicU64, ended: &AtomicBool) -> Arrivals {
    let mut arrivals = Arrivals::default();
    let mut number = [0; 8];
    loop {
        if socket.recv(&mut number).is_err() {
            if ended.load(Ordering::Relaxed) {
                return arrivals;
            }
            continue;
        }
        arrivals.packets += 1;
        match u64::from_be_bytes(number) {
            probe if probe & PROBE != 0 => {
                arrivals.probes.push(probe & !PROBE);
                // Store the number plus one: 0 means that none was seen.
                seen.fetch_max((probe & !PROBE) + 1, Ordering::Release);
            }
            n => arrivals.wrong += u64::from(destination(n).octets()[0] == [45, 43][host]),
        }
    }
}

/// Returns the number of packets that took the old route after one had taken the new route.
fn stale(flips: &[Flip], arrivals: &[Arrivals; 2]) -> u64 {
    let until = flips.iter().skip(1).map(|next| next.seen).chain([u64::MAX]);
    let late = flips.iter().zip(until).map(|(flip, until)| {
        // Packets sent after the next change may take either route; it may be in progress before it is observed.
        let between = |n: &&u64| **n > flip.seen && **n < (flip.seen + 10).min(until);
        arrivals[1 - flip.to].probes.iter().filter(between).count() as u64
    });
    late.sum()
}

/// Returns the host to which prefix `n` of 44/8 leads after so many changes, made in the order of the prefixes.
fn target(n: u32, changes: u64) -> usize {
    let of_each = changes / u64::from(PREFIXES);
    1 + (of_each + u64::from(u64::from(n) < changes % u64::from(PREFIXES))) as usize % 2
}

/// Returns the number of a prefix of 44/8; `None` for other prefixes.
fn flipping(prefix: &str) -> Option<u32> {
    let (address, _) = prefix.split_once('/')?;
    let [first, high, low, _] = address.parse::<Ipv4Addr>().ok()?.octets();
    (first == 44).then_some(u32::from(high) << 8 | u32::from(low))
}

/// Waits until the last change is in effect.
fn settle(bywash: &lab::Bywash, changes: u64, hosts: &[bywash_lab::Host]) -> anyhow::Result<()> {
    let started = Instant::now();
    loop {
        let routes: Vec<Route> = client::ask(&bywash.socket)?;
        let flipping = routes.iter().filter_map(|route| Some((flipping(&route.prefix)?, route)));
        let (right, all) = flipping.fold((0, 0), |(right, all), (n, route)| {
            let via = IpAddr::from(hosts[target(n, changes)].v4);
            (right + u32::from(route.next_hops.first().is_some_and(|hop| hop.via == Some(via))), all + 1)
        });
        if right == PREFIXES && all == PREFIXES {
            return Ok(());
        }
        if started.elapsed() > PATIENCE {
            bail!("only {right} of {all} routes lead where the kernel's do: a bug");
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns the frames received on port r0 by forwarding level: driver, user space, kernel.
fn handled(bywash: &lab::Bywash) -> anyhow::Result<[u64; 3]> {
    let placement: Vec<Placement> = client::ask(&bywash.socket)?;
    let frames = &placement.first().context("there is no port")?.frames;
    Ok([frames.driver, frames.user, frames.kernel])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_changes_may_end_between_two_turns() {
        let targets = |changes| [0, 99, 100, PREFIXES - 1].map(|n| target(n, changes));
        assert_eq!(targets(0), [1, 1, 1, 1]);
        assert_eq!(targets(100), [2, 2, 1, 1]);
        assert_eq!(targets(u64::from(PREFIXES)), [2, 2, 2, 2]);
        assert_eq!(targets(u64::from(PREFIXES) + 100), [1, 1, 2, 2]);
        assert_eq!((flipping("44.1.2.0/24"), flipping("43.1.2.0/24"), flipping("fd00::/64")), (Some(258), None, None));
    }
}
