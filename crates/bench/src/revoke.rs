//! Benchmark of revocation: established connections are forwarded at full load, a command makes the kernel drop their
//! packets, and the time is taken from the command's return until the last packet arrives.

use super::lab::{Lab, Traffic, received};
use super::nat;
use crate::args::{Family, flows};
use anyhow::{Context as _, ensure};
use bywash_config::count;
use bywash_lab::patience;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The rules without those by which a connection begins: once it is gone, its packets are dropped.
const ESTABLISHED_ONLY: &str = "
table inet filter {
 set blocked { type ipv4_addr; flags interval; }
 chain forward {
  type filter hook forward priority 0; policy drop;
  ip daddr @blocked drop
  ct state established,related accept
 }
}
table ip nat { chain from { type nat hook postrouting priority 100; oifname r1 masquerade; }; }
";
/// Interval at which arrived frames are counted.
const SAMPLE: Duration = Duration::from_micros(100);
/// Time without a frame that ends a measurement.
const QUIET: Duration = Duration::from_millis(50);
/// Longest time until connections are forwarded, or are not.
const LIMIT: Duration = Duration::from_secs(60);

/// A command that ends the forwarding of established connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// `nft insert rule`
    Rule,
    /// `nft -f`: all rules replaced
    Ruleset,
    /// `nft add element`
    Element,
    /// `conntrack -D`
    Delete,
    /// `conntrack -F`
    Flush,
    /// `ip route del`
    Route,
}

/// `bywash bench revoke`
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// Commands, separated by commas
    #[arg(
        long,
        value_name = "COMMAND",
        value_delimiter = ',',
        default_value = "rule,ruleset,element,delete,flush,route"
    )]
    pub commands: Vec<Command>,
    /// Number of established connections
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = flows)]
    pub flows: usize,
    /// Level that forwards them: `driver`, `user`, or `kernel` without bywash
    #[arg(long, value_name = "LEVEL", default_value = "driver")]
    pub level: bywash_config::Level,
    /// Number of times that each command is given
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub times: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Times until the last packet of one command, in milliseconds.
#[derive(Serialize)]
struct Times {
    median: f64,
    worst: f64,
    all: Vec<f64>,
    /// Median from the command's start.
    from_start: f64,
}

#[derive(Serialize)]
struct Figures {
    level: &'static str,
    flows: usize,
    /// Milliseconds from the command's return to the last packet that arrived; 0 if none did after it.
    last_packet_ms: BTreeMap<Command, Times>,
}

/// Runs `bywash bench revoke`.
pub fn run(args: &RevokeArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    bywash_lab::has_tool("nft").map_err(|why| anyhow::anyhow!("cannot load rules: {why}"))?;
    bywash_lab::has_tool("conntrack").map_err(|why| anyhow::anyhow!("cannot see connections: {why}"))?;
    let traffic = Traffic { size: 64, destinations: args.flows, routes: 1, family: Family::V4 };
    let lab = Lab::new(traffic)?.without_checksums().with_driver_sink()?;
    let level = args.level.name();
    let mut times = BTreeMap::new();
    for command in &args.commands {
        times.insert(*command, measure(&lab, args, *command).with_context(|| format!("{command:?}"))?);
    }
    super::report(args.json, &Figures { level, flows: args.flows, last_packet_ms: times }, print)
}

/// Runs a command as often as requested, and returns the times until the last packet.
fn measure(lab: &Lab, args: &RevokeArgs, command: Command) -> anyhow::Result<Times> {
    nat::establish(lab, args.flows)?;
    nat::load(lab.topology(), ESTABLISHED_ONLY)?;
    let b = lab.topology().b();
    let bywash = match args.level.name() {
        "kernel" => None,
        level => Some(nat::start(lab, args.flows, level, "respect")?),
    };
    let polled = |on| lab.topology().r().offload(&lab.topology().a().router_interface, "gro", on);
    polled(bywash.is_none())?;
    let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Seen::default()));
    let (ends, sees, interface) = (stop.clone(), seen.clone(), b.interface.clone());
    let watcher = b.ns.thread(move || sees.watch(&interface, &ends))?;
    let source = lab.flood(stop.clone())?;
    let (mut all, mut from_start) = (vec![], vec![]);
    let result = (0..args.times).try_for_each(|n| -> anyhow::Result<()> {
        if n > 0 {
            undo(lab, args.flows, command)?;
            polled(bywash.is_none())?;
        }
        wait(|| match &bywash {
            // All packets pass by the kernel.
            Some(bywash) => {
                let (before, came) = (nat::forwarded(bywash)?, seen.count());
                std::thread::sleep(QUIET);
                let came = seen.count() - came;
                Ok(came > 100 && (nat::forwarded(bywash)? - before) * 100 > came * 98)
            }
            None => {
                let came = seen.count();
                std::thread::sleep(QUIET);
                Ok(seen.count() - came > 100)
            }
        })
        .context("the connections are not forwarded")?;
        let started = seen.now();
        give(lab, command)?;
        let returned = seen.now();
        wait(|| {
            std::thread::sleep(QUIET / 10);
            Ok(seen.quiet() > QUIET)
        })
        .context("packets still arrive")?;
        let since = |time| seen.last().saturating_sub(time) as f64 / 1e6;
        all.push(since(returned));
        from_start.push(since(started));
        Ok(())
    });
    stop.store(true, Ordering::Relaxed);
    source.join().map_err(|_| anyhow::anyhow!("the generator panicked"))???;
    watcher.join().map_err(|_| anyhow::anyhow!("the watcher panicked"))???;
    result?;
    undo(lab, args.flows, if command == Command::Route { command } else { Command::Rule })?;
    polled(false)?;
    bywash.map_or(Ok(()), |bywash| bywash.stop())?;
    let (median, worst) = (super::median(all.iter().copied()), all.iter().copied().fold(0.0, f64::max));
    let from_start = super::median(from_start).context("no times")?;
    Ok(Times { median: median.context("no times")?, worst, all, from_start })
}

/// Waits until a condition holds.
fn wait(mut holds: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let until = Instant::now() + patience(LIMIT);
    while !holds()? {
        ensure!(Instant::now() < until, "not within {LIMIT:?}");
    }
    Ok(())
}

/// Gives a command.
fn give(lab: &Lab, command: Command) -> anyhow::Result<()> {
    let r = lab.topology().r();
    let run = |argv: &[&str]| r.run(argv).map(drop);
    match command {
        Command::Rule => run(&["nft", "insert rule inet filter forward drop"])?,
        Command::Ruleset => {
            nat::load(lab.topology(), &ESTABLISHED_ONLY.replace("ct state established,related accept", ""))?
        }
        Command::Element => run(&["nft", "add element inet filter blocked { 198.0.0.0/8 }"])?,
        Command::Delete => run(&["conntrack", "-D", "-p", "udp", "--orig-port-dst", "9"])?,
        Command::Flush => run(&["conntrack", "-F"])?,
        Command::Route => run(&["ip", "route", "del", lab.network()])?,
    }
    Ok(())
}

/// Undoes a command, and opens the connections again if they are gone.
fn undo(lab: &Lab, flows: usize, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Rule | Command::Ruleset | Command::Element => nat::load(lab.topology(), ESTABLISHED_ONLY),
        Command::Delete | Command::Flush => {
            nat::establish(lab, flows)?;
            nat::load(lab.topology(), ESTABLISHED_ONLY)
        }
        Command::Route => lab.route(),
    }
}

/// Frames seen at the far host.
#[derive(Default)]
struct Seen {
    count: AtomicU64,
    /// Time at which the count was last larger than before, and that at which it was last read, in nanoseconds.
    last: AtomicU64,
    read: AtomicU64,
}

impl Seen {
    fn watch(&self, interface: &str, ends: &AtomicBool) -> anyhow::Result<()> {
        while !ends.load(Ordering::Relaxed) {
            let count = received(interface)?;
            // The time after reading: a frame is never recorded too early.
            let now = self.now();
            if self.count.swap(count, Ordering::Relaxed) != count {
                self.last.store(now, Ordering::Relaxed);
            }
            self.read.store(now, Ordering::Release);
            std::thread::sleep(SAMPLE);
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// Returns the time without a frame up to the last reading.
    fn quiet(&self) -> Duration {
        Duration::from_nanos(self.read.load(Ordering::Acquire).saturating_sub(self.last()))
    }
}

fn print(f: &Figures) {
    let flows = count(f.flows, "connection");
    println!("{flows}, level {}: time from the command's return to the last packet", f.level);
    for (command, times) in &f.last_packet_ms {
        let command = format!("{command:?}").to_lowercase();
        let Times { median, worst, all, from_start } = times;
        let n = all.len();
        println!("  {command:8} median {median:.1}, worst {worst:.1} ms, {n} times; from its start {from_start:.1} ms");
    }
}
