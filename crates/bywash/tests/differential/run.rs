//! The test loop: change the configuration, let Bywash follow, send packets, compare, and repeat what differs.

use crate::change::Change;
use crate::compare::{Balance, Case, Left, ends, error};
use crate::config::{Feature, Walk};
use crate::flows::{self, Connections};
use crate::packets::{Pool, Sent};
use crate::random::Random;
use crate::raw::{Raw, Room, wait};
use crate::rules::{Used, explain};
use crate::topology::{Level, PORTS, Pair};
use bywash_lab::slowness;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// The parameters of a run.
#[derive(Clone)]
pub struct Options {
    pub level: Level,
    pub seed: u64,
    pub features: Vec<Feature>,
    pub packets: usize,
    /// Time that Bywash has to follow a change.
    pub settle: Duration,
    /// Number of steps after which a new topology is built.
    pub steps: u32,
}

/// The counts of a run.
#[derive(Default)]
pub struct Figures {
    pub configurations: u64,
    pub changes: u64,
    pub refused: u64,
    pub packets: u64,
    pub frames: [u64; 2],
    pub late: u64,
    pub padded: u64,
    pub made_here: u64,
    /// Packets that differed at first but not when sent again alone, by kind.
    pub once: BTreeMap<String, u64>,
    /// Number of times that a packet still differed when sent again alone.
    pub slow: u64,
    /// Topologies abandoned because the tables of the two kernels differed.
    pub unlike: u64,
    pub used: Used,
    /// Packets of connections, and those that Bywash has forwarded past the kernel.
    pub of_connections: u64,
    pub past_the_kernel: u64,
    /// Packets that Bywash has put into tunnels, and those that it has taken out of them.
    pub tunnelled: [u64; 2],
}

impl Figures {
    pub fn line(&self, since: Instant) -> String {
        let seconds = since.elapsed().as_secs_f64();
        let rate = self.configurations as f64 / seconds;
        let past = match self.of_connections {
            0 => String::new(),
            sent => format!(
                "; {sent} packets were of connections, flows forwarded {} past the kernel ({:.1} %)",
                self.past_the_kernel,
                self.past_the_kernel as f64 * 100.0 / sent as f64
            ),
        };
        let tunnelled = match self.tunnelled {
            [0, 0] => String::new(),
            [into, from] => format!("; bywash put {into} packets into tunnels and took {from} out of them"),
        };
        format!(
            "{} configurations ({rate:.1}/s), {} changes ({} refused by both), {} packets, {} frames left the kernel and {} \
             bywash; {} differed once only {:?} ({} tries more), {} came late, {} were padded, {} had idents of the router's; {} times the \
             kernels' tables differed; allowed: {:?}{past}{tunnelled}",
            self.configurations,
            self.changes,
            self.refused,
            self.packets,
            self.frames[0],
            self.frames[1],
            self.once.values().sum::<u64>(),
            self.once,
            self.slow,
            self.late,
            self.padded,
            self.made_here,
            self.unlike,
            self.used
        )
    }
}

/// A difference that no rule explains.
pub struct Finding {
    pub summary: String,
    pub level: Level,
    /// Number of ports given to Bywash.
    pub ports: usize,
    /// The configuration at that time.
    pub standing: Vec<Change>,
    /// All changes that led to it.
    pub changes: Vec<Change>,
    pub packets: Vec<Sent>,
    /// The frames that only one side sent for the last of the packets.
    pub frames: String,
    /// The differences between the tables of the two kernels.
    pub unlike: String,
    /// The stations of bridges that only one of the two kernels knows.
    pub stations: String,
    /// With established flows, the connection that the last of the packets belongs to.
    pub flows: Option<Opening>,
}

/// How a connection was opened: the configuration then, and the packets.
#[derive(Clone, Default)]
pub struct Opening {
    pub setup: Vec<Change>,
    pub packets: Vec<Sent>,
}

/// Packets with the same difference, their frames, and the connection that the packets are of.
type Alike = (Vec<Sent>, String, Option<(Opening, usize)>);

/// Sends packets to both routers, and waits until both have sent the same frames or no more frames arrive for `quiet`.
/// A frame that Bywash sends, and the kernel does not, is missed if it comes later than all others.
pub fn exchange(pair: &Pair, sent: &[Sent], quiet: Duration) -> Balance {
    exchange_until(pair, sent, quiet, Balance::is_even)
}

/// Like [`exchange`], but ends early only if `is_done`.
fn exchange_until(pair: &Pair, sent: &[Sent], quiet: Duration, is_done: fn(&Balance) -> bool) -> Balance {
    let mut balance = Balance::default();
    let mut room = Room::new();
    let quiet = quiet * slowness();
    let sockets: Vec<&Raw> = pair.sides.iter().flat_map(|side| &side.raws).collect();
    let mut drain = |balance: &mut Balance| {
        let mut taken = 0;
        for (side, of) in pair.sides.iter().enumerate() {
            for (port, raw) in of.raws.iter().enumerate() {
                loop {
                    let got = raw.receive(&mut room, |frame| balance.add(side, port, frame, sent));
                    taken += got;
                    if got == 0 {
                        break;
                    }
                }
            }
        }
        taken
    };
    // A chunk fits into the rings of a veth.
    for some in sent.chunks(64) {
        for side in &pair.sides {
            for packet in some {
                side.raws[packet.port].send(&packet.frame);
            }
        }
        drain(&mut balance);
    }
    let (started, mut last) = (Instant::now(), Instant::now());
    loop {
        if drain(&mut balance) > 0 {
            last = Instant::now();
        } else if is_done(&balance) || last.elapsed() > quiet || started.elapsed() > 20 * quiet {
            return balance;
        } else {
            wait(&sockets, 1);
        }
    }
}

/// A packet that differs, in a few words and by the frames that only one side sent.
struct Different {
    sent: Sent,
    summary: String,
    frames: String,
    /// The connection that it belongs to, and the number of the epoch's changes before it was opened.
    flows: Option<(Opening, usize)>,
}

/// A pair of routers with their changing configuration.
struct Epoch {
    pair: Pair,
    ports: usize,
    walk: Walk,
    changes: Vec<Change>,
    connections: Option<Connections>,
    limits_looked_at: Cell<Instant>,
    tunnelled: [u64; 2],
}

impl Epoch {
    fn new(options: &Options, random: &Random) -> Self {
        let mut pair = Pair::new();
        // Sometimes Bywash does not get the last port.
        let ports = if random.chance(70) { PORTS } else { PORTS - 1 };
        let flows = options.features.contains(&Feature::Flows);
        pair.start(options.level, ports, flows);
        Self {
            pair,
            ports,
            walk: Walk::new(&options.features),
            changes: vec![],
            connections: flows.then(Connections::default),
            limits_looked_at: Cell::new(Instant::now()),
            tunnelled: [0; 2],
        }
    }

    /// Makes the next changes. Returns whether both routers accepted the same ones and agree on the result.
    fn change(&mut self, random: &Random, figures: &mut Figures) -> bool {
        let mut changes = self.walk.step(random);
        changes.extend(self.connections.iter_mut().flat_map(|connections| connections.commands(random)));
        let taken = self.pair.apply(&changes);
        figures.changes += changes.len() as u64;
        for (at, change) in changes.iter().enumerate() {
            if taken[0][at] != taken[1][at] {
                println!("accepted by one side only ({:?}): {change}", [taken[0][at], taken[1][at]]);
            }
        }
        let refused: Vec<&Change> = (0..changes.len()).filter(|at| !taken[0][*at]).map(|at| &changes[at]).collect();
        figures.refused += refused.len() as u64;
        self.walk.forget(&refused);
        self.changes.extend(changes.iter().cloned());
        let agreed = self.pair.agree(&changes);
        if !agreed {
            println!("the kernels do not agree after {changes:?}:\n{}", self.pair.unlike());
        }
        taken[0] == taken[1] && agreed
    }

    /// Clears what the kernels of both sides have learned from packets, which are not the same for both: path MTUs of
    /// IPv4, and connections. (`ip -6 route flush cache` may take seconds.) Only the kernel's side knows the
    /// connections of packets that Bywash forwarded before the first rule that needs tracking.
    fn forget(&self) {
        let mut changes = vec![Change::Sysctl("net/ipv4/route/flush".into(), "1".into())];
        let text = self.walk.text();
        let tracks = ["ct state", "conntrack", " nat "].iter().any(|word| text.contains(word));
        if self.connections.is_none() && tracks {
            changes.push(Change::Run("conntrack -F".into()));
        }
        self.pair.apply(&changes);
    }

    /// Adds what Bywash has done for tunnels since the last call.
    fn count_tunnelled(&mut self, figures: &mut Figures) {
        let now = self.pair.tunnelled();
        for (at, count) in now.iter().enumerate() {
            figures.tunnelled[at] += count - self.tunnelled[at];
        }
        self.tunnelled = now;
    }

    /// Sends packets, and compares as [`Self::differing_in`] does.
    fn differing(&self, sent: &[Sent], figures: &mut Figures, is_old: &dyn Fn(&str) -> bool) -> Vec<Different> {
        self.differing_in(&exchange(&self.pair, sent, Duration::from_millis(12)), sent, figures, is_old)
    }

    /// Returns the packets that differ without a rule that explains it, and still do when sent again alone. Skips kinds
    /// of differences for which `is_old` returns true.
    fn differing_in(
        &self,
        balance: &Balance,
        sent: &[Sent],
        figures: &mut Figures,
        is_old: &dyn Fn(&str) -> bool,
    ) -> Vec<Different> {
        for side in 0..2 {
            figures.frames[side] += balance.frames[side];
        }
        figures.late += balance.late;
        figures.padded += balance.padded;
        figures.made_here += balance.made_here;
        if balance.is_even() {
            return vec![];
        }
        let context = self.pair.context();
        let (cases, nobodys) = balance.cases(sent);
        if nobodys.iter().any(|side| !side.is_empty()) {
            println!("frames of no packet: {nobodys:02x?}");
        }
        let mut confirmed = vec![];
        let mut open: BTreeMap<String, u32> = BTreeMap::new();
        for case in cases {
            if is_old(&case.summary()) {
                continue;
            }
            if is_limited(&case) && self.limits_looked_at.get().elapsed() < Duration::from_secs(10) * slowness() {
                *figures.used.entry("limits on errors").or_insert(0) += 1;
                continue;
            }
            if explain(&case, &context, &mut figures.used) {
                continue;
            }
            if is_limited(&case) {
                // Both limit errors to one a second to each host, after a few at once (ip_error, net/ipv4/route.c).
                std::thread::sleep(Duration::from_millis(1200));
                self.limits_looked_at.set(Instant::now());
            }
            let of_its_kind = open.entry(case.summary()).or_insert(0);
            *of_its_kind += 1;
            if *of_its_kind > 2 {
                continue;
            }
            self.pair.assert_runs();
            // On a busy machine the first try may come too late; each further one waits longer.
            let mut again = None;
            for quiet in [60, 250, 1000, 5000] {
                // Of flows that NAT maps to one tuple, the first keeps it: the other packets decide over this one.
                self.forget();
                again = alone(&self.pair, case.sent, Duration::from_millis(quiet));
                if again.is_none() {
                    break;
                }
                figures.slow += 1;
            }
            match again {
                Some((summary, frames)) => {
                    confirmed.push(Different { sent: case.sent.clone(), summary, frames, flows: None });
                }
                None => *figures.once.entry(case.summary()).or_insert(0) += 1,
            }
        }
        confirmed
    }
}

impl Epoch {
    /// Returns random packets of the configuration.
    fn packets(&self, options: &Options, random: &Random, many: usize, number: &mut u32) -> Vec<Sent> {
        let has = |feature| options.features.contains(&feature);
        let pool = Pool::new(&self.walk.text(), has(Feature::Packets), has(Feature::OwnSource));
        *number += many as u32;
        (*number - many as u32..*number).map(|number| pool.packet(random, number)).collect()
    }

    /// Opens connections, sends packets of those that are open, and closes some. Returns the packets that differ.
    fn differing_flows(
        &self,
        connections: &mut Connections,
        options: &Options,
        random: &Random,
        number: &mut u32,
        figures: &mut Figures,
        is_old: &dyn Fn(&str) -> bool,
    ) -> Vec<Different> {
        let mut differing = vec![];
        let after = self.changes.len();
        let mut fresh = connections.fresh(random, after, &self.walk.standing());
        for phase in 0..3 {
            let sent = flows::open(&mut fresh, phase, *number);
            *number += sent.len() as u32;
            figures.packets += sent.len() as u64;
            let balance = exchange(&self.pair, &sent, Duration::from_millis(12));
            let unlike: Vec<u32> = balance.cases(&sent).0.iter().map(|case| case.sent.number).collect();
            flows::arrived(&mut fresh, |number| {
                balance.left.get(&number).filter(|_| !unlike.contains(&number)).cloned()
            });
            differing.extend(self.differing_in(&balance, &sent, figures, is_old));
        }
        connections.add(fresh);
        // Mostly after Bywash has judged the connections, sometimes before.
        if random.chance(85) {
            self.pair.wait_for_flows();
        }
        let before = self.pair.past_the_kernel();
        let mut sent = self.packets(options, random, options.packets / 10, number);
        let others = sent.len();
        let mut owners = BTreeMap::new();
        for _ in others..options.packets {
            let Some((owner, packet)) = connections.packet(random, *number) else { break };
            owners.insert(*number, owner);
            *number += 1;
            sent.push(packet);
        }
        figures.packets += sent.len() as u64;
        figures.of_connections += (sent.len() - others) as u64;
        let found = self.differing(&sent, figures, is_old);
        figures.past_the_kernel += self.pair.past_the_kernel() - before;
        let turns = connections.turns(random, *number);
        *number += turns.len() as u32;
        figures.packets += turns.len() as u64;
        owners.extend(turns.iter().map(|(owner, sent)| (sent.number, *owner)));
        let (places, sent): (Vec<usize>, Vec<Sent>) = turns.into_iter().unzip();
        let of_turns = self.differing(&sent, figures, is_old);
        for mut different in found.into_iter().chain(of_turns) {
            different.flows = owners.get(&different.sent.number).map(|owner| {
                let connection = connections.at(*owner);
                let (setup, packets) = (connection.standing.clone(), connection.opening());
                (Opening { setup, packets }, connection.after)
            });
            differing.push(different);
        }
        connections.end_and_forget(random, places);
        differing
    }
}

/// Returns whether only one side sent errors, which a rate limit explains: neither side can switch off all its limits.
fn is_limited(case: &Case<'_>) -> bool {
    let own = |left: &Left| error(&left.1).is_some() && ends(&left.1) != ends(&case.sent.frame);
    let [kernel, bywash] = &case.only;
    (kernel.is_empty() || bywash.is_empty()) && kernel.iter().chain(bywash).all(own)
}

/// Sends one packet. Returns the difference, if no rule explains it: its summary and its frames.
pub fn alone(pair: &Pair, sent: &Sent, quiet: Duration) -> Option<(String, String)> {
    let sent = std::slice::from_ref(sent);
    let whole = |sent| exchange_until(pair, sent, quiet, |_| false);
    let mut found = None;
    for _ in 0..4 {
        // Frames of the same packet, sent before, may still be on their way on a busy machine.
        whole(&[]);
        let balance = whole(sent);
        let context = pair.context();
        let (cases, nobodys) = balance.cases(sent);
        if nobodys.iter().any(|side| !side.is_empty()) {
            return Some(("frames of no packet".into(), listed(&nobodys)));
        }
        let case = cases.iter().find(|case| !explain(case, &context, &mut Used::new()))?;
        found = Some((case.summary(), listed(&case.only)));
        // More than one copy of a frame: of that packet, too.
        let copies = |side: &Vec<Left>| (1..side.len()).any(|n| side[n..].contains(&side[n - 1]));
        if !case.only.iter().any(copies) {
            break;
        }
    }
    found
}

/// Returns the frames that each side alone sent, one a line.
fn listed(only: &[Vec<Left>; 2]) -> String {
    let mut lines = String::new();
    for (name, side) in ["kernel", "bywash"].iter().zip(only) {
        for (port, frame) in side {
            let hex = bywash_wire::hex::encode(&frame[..frame.len().min(120)]);
            writeln!(lines, "  {name} to h{}: {hex}", port + 1).unwrap();
        }
    }
    lines
}

/// Beginnings of the MACs to which the kernel maps multicast and broadcast addresses.
const MAPPED: [&str; 3] = ["lladdr 01:00:5e", "lladdr 33:33", "lladdr ff:ff:ff:ff:ff:ff"];

/// A receiver of findings.
pub trait Findings {
    /// Returns whether enough findings of this kind have been seen.
    fn is_old(&self, summary: &str) -> bool;
    /// Takes a finding. Returns whether to go on.
    fn found(&mut self, finding: Finding) -> bool;
}

/// Runs the test until `deadline`, or until `findings` has enough.
pub fn walk(options: &Options, figures: &mut Figures, deadline: Instant, findings: &mut impl Findings) {
    let random = Random::new(options.seed);
    let mut number = 1;
    let (started, mut shown) = (Instant::now(), Instant::now());
    while Instant::now() < deadline {
        let mut epoch = Epoch::new(options, &random);
        for _ in 0..options.steps {
            if Instant::now() >= deadline {
                return;
            }
            if !epoch.change(&random, figures) {
                break;
            }
            std::thread::sleep(options.settle * slowness());
            epoch.forget();
            let is_old = |summary: &str| findings.is_old(summary);
            let differing = match epoch.connections.take() {
                Some(mut connections) => {
                    let differing =
                        epoch.differing_flows(&mut connections, options, &random, &mut number, figures, &is_old);
                    epoch.connections = Some(connections);
                    differing
                }
                None => {
                    let sent = epoch.packets(options, &random, options.packets, &mut number);
                    figures.packets += sent.len() as u64;
                    epoch.differing(&sent, figures, &is_old)
                }
            };
            figures.configurations += 1;
            if [Feature::Tunnels, Feature::Vxlans].iter().any(|feature| options.features.contains(feature)) {
                epoch.count_tunnelled(figures);
            }
            if shown.elapsed() > Duration::from_secs(10) {
                shown = Instant::now();
                println!("{}: {}", options.level.name(), figures.line(started));
            }
            let mut by_summary: BTreeMap<String, Alike> = BTreeMap::new();
            for Different { sent, summary, frames, flows } in differing {
                let (packets, shown, opening) = by_summary.entry(summary).or_default();
                // The packets of a finding are of one connection.
                if flows.is_some() || opening.is_some() {
                    packets.clear();
                }
                packets.push(sent);
                (*shown, *opening) = (frames, flows);
            }
            let unlike = if by_summary.is_empty() { String::new() } else { epoch.pair.unlike() };
            // Tables that differ are the kernel's doing, except for permanent neighbours: if addresses are added and
            // removed in quick succession, the kernel may or may not keep the anycast address of their prefix. A full
            // neighbour table, as the kernel's own router has earlier, loses NOARP entries (neigh_forced_gc). An entry
            // made while a multicast or broadcast route covers its address keeps the mapped MAC (arp_constructor).
            let mapped = |line: &str| MAPPED.iter().any(|mac| line.contains(mac));
            let by_bywash = |line: &str| {
                let lost = line.ends_with("NOARP ") && line.starts_with("  only the kernel's") && !mapped(line);
                line.ends_with("PERMANENT ") || lost
            };
            if !unlike.lines().all(by_bywash) {
                figures.unlike += 1;
                break;
            }
            for (mut summary, (packets, frames, flows)) in by_summary {
                if !unlike.is_empty() {
                    summary = "permanent neighbours differ".into();
                    println!("{}", epoch.pair.log("permanent"));
                    if findings.is_old(&summary) {
                        break;
                    }
                }
                let with_flows = epoch.connections.is_some();
                let (flows, after) =
                    flows.map_or((with_flows.then(Opening::default), 0), |(opening, after)| (Some(opening), after));
                let changes = epoch.changes[after..].to_vec();
                // A connection meets all changes since it was opened.
                let standing = if after > 0 { changes.clone() } else { epoch.walk.standing() };
                let (level, ports) = (options.level, epoch.ports);
                let (unlike, stations) = (unlike.clone(), epoch.pair.unlike_stations());
                let finding =
                    Finding { summary, level, ports, standing, changes, packets, frames, unlike, stations, flows };
                if !findings.found(finding) {
                    return;
                }
            }
            if !unlike.is_empty() {
                figures.unlike += 1;
                break;
            }
        }
    }
}
