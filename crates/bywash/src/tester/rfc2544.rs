//! `bywash rfc2544`: benchmarks a device as described in a configuration file.

use super::ports::{self, Wanted};
use super::{print, raise_priority, stopped_by_signals};
use crate::cli::tester::Rfc2544Args;
use crate::config::ConfigErrors;
use crate::error::Usage;
use crate::stdout::stdout;
use anyhow::{Context as _, bail, ensure};
use bywash_frame::{Arena, ArenaConfig, Buffers, PoolConfig, PoolSet};
use bywash_tester::rfc2544::{Plan, Report, Rig, SizeReport, Test, Together, Want, html};
use bywash_tester::{
    Bench, Device, LEARNING, Lane, LaneResult, Planted, Rate, Sizes, Stamp, Stream, Templates, Trial, TrialError,
};
use bywash_wire::ethernet::MacAddr;
use serde::{Deserialize, Serialize};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Maximum delay that a sender makes up for, in nanoseconds and in frames, whichever is longer. A longer burst of the
/// tester's own could fill the device's buffers.
const CATCH_UP: (u64, f64) = (200_000, 16.0);
/// Time for the device to process learning frames.
const LEARNING_WAIT: Duration = Duration::from_millis(10);
const MAX_PAIRS: usize = 6;
/// Where the keys of the configuration file are described.
const DESCRIBED: &str = "docs/user-guide.md describes the file";

/// Configuration file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    title: String,
    /// Maximum rate to try, in each direction. A percentage is one of each direction's own link rate.
    #[serde(default)]
    max_rate: Option<String>,
    /// Link rate, if the driver does not report it.
    #[serde(default)]
    line_rate: Option<String>,
    #[serde(default)]
    plan: Plan,
    #[serde(default, rename = "pair")]
    pairs: Vec<Pair>,
    /// Simulated device within the tester, instead of pairs, for checking the tester itself.
    #[serde(default)]
    device: Option<OwnDevice>,
    /// Shell command that resets the device, run in the middle of a trial.
    #[serde(default)]
    reset: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    from: String,
    to: String,
    #[serde(default)]
    bidirectional: bool,
    /// Addresses of the device on each side, if it is a router.
    gateway: Option<std::net::IpAddr>,
    reverse_gateway: Option<std::net::IpAddr>,
    src: Option<String>,
    dst: Option<String>,
    #[serde(default = "one")]
    flows: usize,
}

fn one() -> usize {
    1
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OwnDevice {
    limit_pps: u64,
    buffer: usize,
    delay_us: u64,
    reset_ms: u64,
}

/// State of an interrupted run.
#[derive(Serialize, Deserialize)]
struct State {
    config: String,
    report: Report,
}

/// Runs `bywash rfc2544`.
pub fn run(args: &Rfc2544Args) -> anyhow::Result<()> {
    let path = args.config.display();
    let text = std::fs::read_to_string(&args.config).map_err(|why| Usage(format!("cannot read `{path}`: {why}")))?;
    let file: File =
        toml::from_str(&text).map_err(|why| ConfigErrors::of_toml(&path.to_string(), &text, &why, DESCRIBED))?;
    check(&file).map_err(|why| Usage(format!("`{path}`: {why}")))?;
    let state = args.state.clone().unwrap_or_else(|| sibling_path(&args.config, "state.json"));
    let mut report = match earlier(&state, &text)? {
        Some(report) => {
            say(args, &format!("resuming from `{}`", state.display()));
            report
        }
        None => Report { facts: facts(&file), plan: file.plan.clone(), sizes: vec![] },
    };
    raise_priority();
    let stop = stopped_by_signals()?;
    let mut rig = if file.device.is_some() { own(&file, stop.clone())? } else { interfaces(&file, stop.clone())? };
    let shown = std::io::stderr().is_terminal();
    let mut tell = |what: &str| {
        if shown {
            // Ignore errors: there is no other place to report them.
            let _ = write!(std::io::stderr(), "\r{what}\x1b[K");
        } else {
            tracing::info!("{what}");
        }
    };
    let mut keep = |report: &Report| -> anyhow::Result<()> {
        let next = sibling_path(&state, "new");
        let kept = State { config: text.clone(), report: report.clone() };
        std::fs::write(&next, serde_json::to_vec(&kept)?)
            .and_then(|()| std::fs::rename(&next, &state))
            .with_context(|| format!("cannot write `{}`", state.display()))
    };
    let done = report.complete(&mut rig, &mut tell, &mut keep);
    if shown {
        let _ = writeln!(std::io::stderr());
    }
    let interrupted = stop.load(Ordering::Relaxed);
    // Also after an error: with a corrected file, the run starts over.
    if (done.is_ok() && !interrupted) || report.sizes.iter().any(has_results) {
        if args.json {
            writeln!(stdout(), "{}", serde_json::to_string(&report)?)?;
        } else {
            table(&report)?;
        }
    }
    done?;
    if interrupted {
        bail!("interrupted: run the same command again to resume from `{}`", state.display());
    }
    if let Some(page) = &args.html {
        std::fs::write(page, html(&report)).with_context(|| format!("cannot write `{}`", page.display()))?;
    }
    // The report is complete: the next run starts from the beginning.
    let _ = std::fs::remove_file(&state);
    Ok(())
}

fn say(args: &Rfc2544Args, what: &str) {
    if !args.json {
        tracing::warn!("{what}");
    }
}

fn sibling_path(path: &Path, what: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(what);
    name.into()
}

/// Returns the report of an interrupted run with the same configuration; `None` if there is none.
fn earlier(state: &Path, config: &str) -> anyhow::Result<Option<Report>> {
    let Ok(bytes) = std::fs::read(state) else { return Ok(None) };
    let name = state.display();
    let kept: State = serde_json::from_slice(&bytes).with_context(|| {
        format!("`{name}` is not the state of an earlier run: remove it, or give another file by --state")
    })?;
    ensure!(
        kept.config == config,
        "`{name}` is of a run with another configuration: remove it to start over, or give another file by --state"
    );
    Ok(Some(kept.report))
}

/// Validates the contents of the file.
fn check(file: &File) -> Result<(), String> {
    let plan = &file.plan;
    if file.pairs.is_empty() == file.device.is_none() {
        return Err("expected at least one [[pair]] of ports, or a [device]".into());
    }
    if file.pairs.len() > MAX_PAIRS {
        return Err(format!("{} pairs: expected at most {MAX_PAIRS}", file.pairs.len()));
    }
    let mut names: Vec<&str> = vec![];
    for name in file.pairs.iter().flat_map(|pair| [pair.from.as_str(), pair.to.as_str()]) {
        if names.contains(&name) {
            return Err(format!("interface `{name}` is listed twice: each port is one end of one pair"));
        }
        names.push(name);
    }
    if plan.sizes.is_empty() || plan.sizes.iter().any(|size| !(64..=9216).contains(size)) {
        return Err("plan.sizes: expected frame sizes from 64 to 9216 bytes".into());
    }
    let within = |name: &str, value: f64, low: f64, high: f64| {
        let good = (low..=high).contains(&value);
        if good { Ok(()) } else { Err(format!("plan.{name} = {value}: expected {low} to {high}")) }
    };
    within("seconds", plan.seconds, 0.01, 86400.0)?;
    within("drain", plan.drain, 0.0, 60.0)?;
    within("resolution", plan.resolution, 0.01, 50.0)?;
    within("accepted_loss", plan.accepted_loss, 0.0, 100.0)?;
    within("burst_seconds", plan.burst_seconds, 0.0001, 3600.0)?;
    plan.latency_loads.iter().try_for_each(|load| within("latency_loads", *load, 0.1, 1000.0))?;
    for (i, test) in plan.tests.iter().enumerate() {
        let throughput = plan.tests[..i].contains(&Test::Throughput);
        if matches!(test, Test::BackToBack | Test::Recovery) && !throughput {
            return Err(format!(
                "plan.tests: `{}` evaluates the throughput: list \"throughput\" before it",
                test.name()
            ));
        }
    }
    let resets = file.reset.is_some() || file.device.is_some_and(|device| device.reset_ms > 0);
    if plan.tests.contains(&Test::Reset) && !resets {
        return Err("the test `reset` needs a command that resets the device: reset = \"..\"".into());
    }
    Ok(())
}

fn facts(file: &File) -> Vec<(String, String)> {
    let mut facts = vec![];
    let mut add = |name: &str, value: String| {
        if !value.is_empty() {
            facts.push((name.to_owned(), value));
        }
    };
    add("Title", file.title.clone());
    add("Date", today());
    let system = rustix::system::uname();
    add("Kernel", system.release().to_string_lossy().into_owned());
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    add("Processor", model.map_or(String::new(), |(_, name)| name.trim().to_owned()));
    add("Tester", format!("bywash {}", env!("CARGO_PKG_VERSION")));
    let pair = |p: &Pair| format!("{} {} {}", p.from, if p.bidirectional { "↔" } else { "→" }, p.to);
    add("Ports", file.pairs.iter().map(pair).collect::<Vec<_>>().join(", "));
    add("Device", file.device.map_or(String::new(), |device| format!("the tester's own: {device:?}")));
    add("Highest rate", file.max_rate.clone().unwrap_or_else(|| "100%".into()));
    facts
}

/// Returns the current date and time in UTC, from the days since 1970 (Hinnant's civil_from_days).
fn today() -> String {
    let seconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let z = (seconds / 86400) as i64 + 719_468;
    let (era, day) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02} UTC", of_year - (153 * shifted + 2) / 5 + 1)
}

/// One direction of a pair.
struct PairDirection {
    from: usize,
    to: usize,
    stream: Stream,
    /// Rate of its links in bits per second, the slower one's; `None` if not known.
    line: Option<f64>,
}

/// Bench that performs the trials.
struct BenchRig {
    bench: Bench,
    directions: Vec<PairDirection>,
    plan: Plan,
    rate: Rate,
    reset: Option<String>,
    reset_ms: u64,
    stop: Arc<AtomicBool>,
    /// Keeps the interfaces in use.
    _ports: Option<ports::Held>,
}

fn rates(file: &File) -> anyhow::Result<(Rate, Option<f64>)> {
    let parse = |text: &str| text.parse::<Rate>().map_err(|why| Usage(why.to_string()));
    let rate = parse(file.max_rate.as_deref().unwrap_or("100%"))?;
    let line = match file.line_rate.as_deref().map(parse).transpose()? {
        None => None,
        Some(Rate::Bits(bits)) => Some(bits),
        Some(other) => bail!(Usage(format!("line_rate = \"{other}\": expected a rate in bit/s, such as 10gbps"))),
    };
    if rate == Rate::Full {
        bail!(Usage("max_rate = \"max\": expected a rate at which the search can start".into()));
    }
    Ok((rate, line))
}

/// Returns the line rate of each direction from one port to another, that of the slower link; `None` if no rate is
/// known. A rate that is not known is that of the others, if these are all the same.
fn line_rates(ports: &[(&str, Option<f64>)], directions: &[(usize, usize)]) -> Result<Vec<Option<f64>>, Usage> {
    let first = ports.iter().find_map(|(_, speed)| *speed);
    let same = ports.iter().all(|(_, speed)| speed.is_none() || *speed == first);
    let unknown = ports.iter().find(|(_, speed)| speed.is_none());
    if let (Some((name, _)), false) = (unknown, same) {
        return Err(Usage(format!(
            "the rate of `{name}`'s link is not known, and the others have different rates: set line_rate, such as \
             \"1gbps\", or test them one by one"
        )));
    }
    let speed = |port: usize| ports[port].1.or(first);
    Ok(directions.iter().map(|(from, to)| speed(*from).zip(speed(*to)).map(|(from, to)| from.min(to))).collect())
}

/// Sets up the bench on the tester's own simulated device.
fn own(file: &File, stop: Arc<AtomicBool>) -> anyhow::Result<BenchRig> {
    const CELLS: usize = 16384;
    let device = file.device.unwrap_or_default();
    let (rate, line) = rates(file)?;
    let arena = Arena::new(ArenaConfig { cells: CELLS, ..ArenaConfig::default() })?;
    let pools = PoolSet::new(arena, &[PoolConfig::stack("tester", CELLS)])?;
    let mut bench = Bench::new(Buffers::attach(&pools, 0));
    let planted = Planted {
        limit_pps: device.limit_pps,
        buffer: device.buffer,
        delay_ns: device.delay_us * 1000,
        ..Planted::default()
    };
    let (inside, left, right) = Device::new(planted, 1);
    let (from, to) = (bench.add("left", Box::new(left)), bench.add("right", Box::new(right)));
    bench.add_device(inside);
    let directions = vec![PairDirection { from, to, stream: Stream::default(), line }];
    let (plan, reset_ms) = (file.plan.clone(), device.reset_ms);
    let benched = BenchRig { bench, directions, plan, rate, reset: None, reset_ms, stop, _ports: None };
    benched.check()?;
    Ok(benched)
}

/// Sets up the bench on network interfaces.
fn interfaces(file: &File, stop: Arc<AtomicBool>) -> anyhow::Result<BenchRig> {
    bywash_daemon::privileges::check()?;
    let (rate, line) = rates(file)?;
    let port = |name: &String| Wanted { name: name.clone(), receives: true, raw: false };
    let wanted: Vec<Wanted> = file.pairs.iter().flat_map(|pair| [port(&pair.from), port(&pair.to)]).collect();
    let longest = file.plan.sizes.iter().copied().max().unwrap_or(0);
    let gateway = |address: Option<std::net::IpAddr>| address.map(ports::neighbour).transpose();
    let gateways: Vec<[Option<MacAddr>; 2]> = file
        .pairs
        .iter()
        .map(|pair| Ok([gateway(pair.gateway)?, gateway(pair.reverse_gateway)?]))
        .collect::<anyhow::Result<_>>()?;
    let opened = ports::open(&wanted, longest)?;
    let speeds: Vec<_> = wanted.iter().map(|port| (port.name.as_str(), line.or(ports::speed(&port.name)))).collect();
    let ends: Vec<(usize, usize)> = file
        .pairs
        .iter()
        .enumerate()
        .flat_map(|(i, pair)| {
            [(2 * i + 1, 2 * i)].into_iter().filter(|_| pair.bidirectional).chain([(2 * i, 2 * i + 1)])
        })
        .collect();
    let lines = match line_rates(&speeds, &ends) {
        // Only a percentage needs the links' rates.
        Err(_) if !matches!(rate, Rate::Percent(_)) => vec![None; ends.len()],
        lines => lines?,
    };
    let mut lines = lines.into_iter();
    let mac = |port: usize| MacAddr(opened.links[port].mac);
    let mut directions = vec![];
    for (i, pair) in file.pairs.iter().enumerate() {
        let (from, to) = (2 * i, 2 * i + 1);
        let default = Stream::default();
        let addresses = |text: &Option<String>, default| match text {
            Some(text) => text.parse().map_err(Usage),
            None => Ok(default),
        };
        let (src, dst) = (addresses(&pair.src, default.src)?, addresses(&pair.dst, default.dst)?);
        let [gateway, back] = gateways[i];
        let flows = pair.flows;
        let stream = Stream { src, dst, flows, src_mac: mac(from), dst_mac: gateway.unwrap_or(mac(to)), ..default };
        if pair.bidirectional {
            let (src_mac, dst_mac) = (mac(to), back.unwrap_or(mac(from)));
            let stream = Stream { src: dst, dst: src, src_mac, dst_mac, ..stream.clone() };
            directions.push(PairDirection { from: to, to: from, stream, line: lines.next().flatten() });
        }
        directions.push(PairDirection { from, to, stream, line: lines.next().flatten() });
    }
    let (bench, held) = (opened.bench, opened.held);
    let (plan, reset) = (file.plan.clone(), file.reset.clone());
    let benched = BenchRig { bench, directions, plan, rate, reset, reset_ms: 0, stop, _ports: Some(held) };
    benched.check()?;
    Ok(benched)
}

impl BenchRig {
    /// Checks that the highest rate is known and that frames of all sizes can be sent: an error of the last size would
    /// otherwise come only after the trials of all others.
    fn check(&self) -> anyhow::Result<()> {
        self.rate.pps(64.0, self.fastest()).map_err(|why| Usage(format!("max_rate: {why}, or set line_rate")))?;
        for size in &self.plan.sizes {
            for (port, frame) in self.learning_frames(*size)? {
                self.bench.check_length(port, frame.len())?;
            }
        }
        Ok(())
    }

    /// Returns the highest of the directions' line rates.
    fn fastest(&self) -> Option<f64> {
        self.directions.iter().filter_map(|direction| direction.line).max_by(f64::total_cmp)
    }

    /// Returns the rate in a direction, as a share of that on the fastest links: less only if the highest rate is a
    /// percentage.
    fn share(&self, direction: &PairDirection) -> f64 {
        match (self.rate, direction.line.zip(self.fastest())) {
            (Rate::Percent(_), Some((line, fastest))) => line / fastest,
            _ => 1.0,
        }
    }

    fn templates(&self, size: usize) -> Result<Vec<Arc<Templates>>, TrialError> {
        let made = |direction: &PairDirection| {
            Stream { sizes: Sizes(vec![size]), ..direction.stream.clone() }.templates().map(Arc::new)
        };
        self.directions.iter().map(made).collect::<Result<_, _>>().map_err(|e| TrialError::Source(e.to_string()))
    }

    /// Returns frames from both ends of each direction, from which a switch learns the ports of the addresses.
    fn learning_frames(&self, size: usize) -> Result<Vec<(usize, Vec<u8>)>, TrialError> {
        let mut frames = vec![];
        for direction in &self.directions {
            let there = Stream { sizes: Sizes(vec![size]), flows: 1, ..direction.stream.clone() };
            let (src_mac, dst_mac) = (there.dst_mac, there.src_mac);
            let back = Stream { src: there.dst, dst: there.src, src_mac, dst_mac, ..there.clone() };
            for (port, stream) in [(direction.to, back), (direction.from, there)] {
                let templates = stream.templates().map_err(|e| TrialError::Source(e.to_string()))?;
                let mut frame = vec![0; templates.longest()];
                templates.write(0, Stamp { stream: LEARNING, sequence: 0, time: 0 }, &mut frame);
                frames.push((port, frame));
            }
        }
        Ok(frames)
    }
}

impl Rig for BenchRig {
    fn highest(&self, size: usize) -> f64 {
        self.rate.pps(size as f64, self.fastest()).ok().flatten().unwrap_or(1.0)
    }

    fn together(&self) -> Together {
        Together {
            directions: self.directions.iter().map(|direction| self.share(direction)).sum(),
            line: self.directions.iter().map(|direction| direction.line).sum(),
        }
    }

    fn trial(&mut self, want: &Want) -> Result<Vec<LaneResult>, TrialError> {
        let learning_frames = self.learning_frames(want.size)?;
        for _ in 0..self.plan.learning {
            self.bench.send_learning(&learning_frames);
        }
        self.bench.settle(LEARNING_WAIT);
        let shares: Vec<f64> = self.directions.iter().map(|direction| self.share(direction)).collect();
        let least = shares.iter().copied().fold(1.0, f64::min);
        let each = self.directions.iter().zip(self.templates(want.size)?).zip(shares);
        let lanes = each.map(|((direction, templates), share)| Lane {
            from: direction.from,
            to: Some(direction.to),
            templates,
            pps: Some(want.pps * share),
            burst: 1,
            change: want.change.map(|(at, pps)| ((at as f64 * share).round() as u64, pps * share)),
            share,
        });
        let (command, reset_ms) = (self.reset.clone(), self.reset_ms);
        let mut child = None;
        let mut reset = |devices: &mut [Device], now: u64| {
            devices.iter_mut().for_each(|device| device.fail_until(now + reset_ms * 1_000_000));
            child = command.as_ref().map(|command| std::process::Command::new("sh").args(["-c", command]).spawn());
        };
        let half = (self.plan.seconds * 5e8) as u64;
        let result = self.bench.run(&mut Trial {
            lanes: lanes.collect(),
            length: want.length,
            drain: (self.plan.drain * 1e9) as u64,
            catch_up: CATCH_UP.0.max((CATCH_UP.1 * 1e9 / (want.pps * least)) as u64),
            event: want.reset.then_some((half, &mut reset)),
            stop: &self.stop,
            progress: &mut |_, _| {},
        });
        match child {
            Some(Ok(mut child)) => {
                let status = child.wait().map_err(|e| TrialError::Source(e.to_string()))?;
                if !status.success() {
                    return Err(TrialError::Source(format!("the reset command failed with {status}")));
                }
            }
            Some(Err(e)) => return Err(TrialError::Source(format!("cannot run the reset command: {e}"))),
            None => {}
        }
        result
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Returns whether at least one test of this size is complete.
fn has_results(size: &SizeReport) -> bool {
    use Test::*;
    [Throughput, Latency, Loss, BackToBack, Recovery, Reset].into_iter().any(|test| size.has(test))
}

/// Writes the notes on the results of a test in the lines before, if the tester itself lost frames.
fn note_losses(out: &mut impl Write, size: &SizeReport, test: Test) -> std::io::Result<()> {
    let mut limits = size.lost_by_tester.iter().filter(|(of, _)| *of == test);
    limits.try_for_each(|(_, limit)| writeln!(out, "  note          {}", limit.description()))
}

/// Writes the note on the result in the line before, if the generator was the limit.
fn note(out: &mut impl Write, limited: bool) -> std::io::Result<()> {
    if limited {
        writeln!(out, "  note          the generator was the limit: it could not send faster")?;
    }
    Ok(())
}

fn table(report: &Report) -> anyhow::Result<()> {
    let mut out = stdout();
    for s in report.sizes.iter().filter(|s| has_results(s)) {
        writeln!(out, "{} B, up to {}pps", s.size, print::scaled(s.highest_pps))?;
        if let Some(t) = &s.throughput {
            let least = if t.generator_was_the_limit { "at least " } else { "" };
            let (pps, bits) = (print::scaled(t.pps), print::scaled(t.bits));
            writeln!(out, "  throughput    {least}{pps}pps, {bits}bit/s on the wire, {:.2} %", t.percent)?;
            if let Some(sum) = t.sum.filter(|sum| sum.pps > t.pps) {
                let (pps, bits) = (print::scaled(sum.pps), print::scaled(sum.bits));
                let of =
                    sum.line_percent.map_or(String::new(), |percent| format!(", {percent:.2} % of the line rates"));
                writeln!(out, "  all together  {least}{pps}pps, {bits}bit/s on the wire{of}")?;
            }
            note(&mut out, t.generator_was_the_limit)?;
            if s.always_loses() {
                writeln!(out, "  note          no rate without loss: latency, recovery and reset are not tested")?;
            }
        }
        note_losses(&mut out, s, Test::Throughput)?;
        for at in s.latency.iter().flatten() {
            let l = &at.latency;
            writeln!(
                out,
                "  latency       at {} %: min {:.1}, mean {:.1}, median {:.1}, 99.9 % {:.1}, max {:.1} us",
                at.load, l.min_us, l.mean_us, l.p50_us, l.p99_9_us, l.max_us
            )?;
        }
        note_losses(&mut out, s, Test::Latency)?;
        for at in s.loss.iter().flatten() {
            writeln!(out, "  loss          at {:.1} %: {:.4} %", at.load, at.loss)?;
        }
        note_losses(&mut out, s, Test::Loss)?;
        if let Some(b) = &s.back_to_back {
            let least = if b.is_lower_bound() { "at least " } else { "" };
            writeln!(
                out,
                "  back to back  {least}{:.0} frames; buffer {least}{:.0} frames, {:.3} ms",
                b.frames,
                b.buffer_frames,
                b.corrected_seconds * 1e3
            )?;
            note(&mut out, b.generator_was_the_limit)?;
        }
        note_losses(&mut out, s, Test::BackToBack)?;
        if let Some(r) = s.recovery {
            writeln!(out, "  recovery      {:.3} ms", r.seconds * 1e3)?;
            note(&mut out, r.generator_was_the_limit)?;
        }
        note_losses(&mut out, s, Test::Recovery)?;
        if let Some(r) = s.reset {
            let least = if r.recovered { "" } else { "at least " };
            writeln!(out, "  reset         {least}{:.1} ms", r.seconds * 1e3)?;
            if !r.recovered {
                writeln!(out, "  note          the device did not recover before the end of the trial")?;
            }
        }
        note_losses(&mut out, s, Test::Reset)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_tester::Length;

    #[test]
    fn each_direction_has_the_rate_of_its_slower_link() {
        let of = |speeds: &[Option<f64>], directions: &[(usize, usize)]| {
            let ports: Vec<_> = ["a", "b", "c", "d"].into_iter().zip(speeds.iter().copied()).collect();
            line_rates(&ports, directions).map_err(|why| why.0)
        };
        let (one, ten) = (Some(1e9), Some(10e9));
        assert_eq!(of(&[one, ten, ten, ten], &[(0, 1), (1, 0), (2, 3)]), Ok(vec![one, one, ten]));
        assert_eq!(of(&[one, one, None, one], &[(0, 1), (2, 3)]), Ok(vec![one, one]));
        assert_eq!(of(&[None, None], &[(0, 1)]), Ok(vec![None]));
        assert_eq!(
            of(&[one, ten, None, ten], &[(0, 1), (2, 3)]).unwrap_err(),
            "the rate of `c`'s link is not known, and the others have different rates: set line_rate, such as \"1gbps\", \
             or test them one by one"
        );
    }

    /// Rate and frames of each direction of a trial follow its link, and the sum is given in percent of all links: the
    /// published test of four ports of 1 Gbit/s and two of 10.
    #[test]
    fn percentage_of_different_links() {
        let file: File = toml::from_str("max_rate = \"50%\"\nline_rate = \"10gbps\"\n[device]\n").unwrap();
        let mut rig = own(&file, Arc::default()).unwrap();
        let first = &rig.directions[0];
        let another = |line| PairDirection { from: 0, to: 1, stream: first.stream.clone(), line: Some(line) };
        let more: Vec<_> = [10e9, 1e9, 1e9, 1e9, 1e9].into_iter().map(another).collect();
        rig.directions.extend(more);
        let together = rig.together();
        assert!((together.directions - 2.4).abs() < 1e-9 && together.line == Some(24e9), "{together:?}");
        assert_eq!(rig.highest(64) as u64, 7_440_476);
        let want = Want { size: 64, pps: 1000.0, length: Length::Frames(100), change: None, reset: false };
        rig.plan.drain = 0.0;
        let sent = rig.trial(&want).unwrap();
        let asked: Vec<_> = sent.iter().map(|lane| (lane.asked_pps, lane.sent)).collect();
        let (fast, slow) = ((Some(1000.0), 100), (Some(100.0), 10));
        assert_eq!(asked, [fast, fast, slow, slow, slow, slow]);
        rig.rate = Rate::Packets(1000.0);
        assert_eq!(rig.together(), Together { directions: 6.0, line: Some(24e9) });
    }
}
