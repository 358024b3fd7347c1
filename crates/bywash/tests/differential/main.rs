//! Differential test of `bywash run` against the kernel alone: two equal routers get the same random configuration
//! changes and the same packets, and the frames that they send are compared byte by byte. [`rules`] lists the
//! differences that are allowed.
//!
//! | variable | meaning |
//! |---|---|
//! | `DIFFERENTIAL_SECONDS` | duration of the test at each level, 16 by default |
//! | `DIFFERENTIAL_SEED` | the seed; by default a fixed one and, if `DIFFERENTIAL_SECONDS` is set, also a random one |
//! | `DIFFERENTIAL_LEVEL` | the only level to test: `user`, `driver` or `auto` |
//! | `DIFFERENTIAL_FEATURES` | names of [`config::Feature`], separated by commas; `-name` leaves one out |
//! | `DIFFERENTIAL_PACKETS` | packets for each configuration, 1,000 by default |
//! | `DIFFERENTIAL_SETTLE_MS` | time that Bywash has to follow a change, 10 ms by default |
//! | `DIFFERENTIAL_FINDINGS` | number of differences after which a run ends, 1 by default |
//! | `DIFFERENTIAL_LATENCY` | number of rounds; measures the [`latency`] of changes instead of comparing |

mod change;
mod compare;
mod config;
mod flows;
mod latency;
mod packets;
mod random;
mod raw;
mod rules;
mod run;
mod shrink;
mod topology;

use bywash_lab::{has_tool, report_skip, require, require_lab};
use change::Change;
use config::Feature;
use run::{Figures, Finding, Findings, Options};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use topology::{Level, Pair};

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(format!("DIFFERENTIAL_{name}")).ok().filter(|value| !value.is_empty())?;
    Some(value.parse().unwrap_or_else(|_| panic!("DIFFERENTIAL_{name}={value} is not a valid value")))
}

/// The features tested if `DIFFERENTIAL_FEATURES` is not set.
const DEFAULT: &[Feature] = &[
    Feature::Routes,
    Feature::Tos,
    Feature::Nexthops,
    Feature::Addresses,
    Feature::Bridges,
    Feature::Forwarding,
    Feature::RpFilter,
    Feature::Rules,
    Feature::Xfrm,
    Feature::Qdisc,
    Feature::Packets,
    Feature::OwnSource,
];

/// The features tested with established flows. The others would leave too many packets to the kernel.
const FLOWS: &[Feature] = &[
    Feature::Flows,
    Feature::Routes,
    Feature::Addresses,
    Feature::Neighbours,
    Feature::Links,
    Feature::Mtu,
    Feature::Forwarding,
    Feature::RpFilter,
    Feature::Sysctls,
    Feature::Packets,
];

fn features(default: &[Feature]) -> Vec<Feature> {
    let asked: Option<String> = variable("FEATURES");
    let mut features = default.to_vec();
    let names: Vec<&str> = asked.iter().flat_map(|names| names.split(',')).map(str::trim).collect();
    if names.iter().any(|name| !name.starts_with('-')) {
        features.clear();
    }
    for name in names {
        let parse = |name: &str| {
            Feature::parse(name).unwrap_or_else(|| panic!("no feature {name}: {:?}", Feature::ALL.map(Feature::name)))
        };
        match name.strip_prefix('-') {
            Some(name) => features.retain(|feature| *feature != parse(name)),
            None if name == "all" => {
                features = Feature::ALL.to_vec();
                features.retain(|feature| *feature != Feature::Flows);
            }
            None => features.push(parse(name)),
        }
    }
    features.retain(|feature| match feature.missing() {
        Some(why) => {
            report_skip(&format_args!("{}: {why}", feature.name()));
            false
        }
        None => true,
    });
    features
}

/// Prints each new kind of finding after [`shrink::shrink`] has reduced it, and counts the findings by kind.
struct Reporter {
    level: Level,
    seed: u64,
    most: u32,
    seen: BTreeMap<String, u32>,
}

impl Findings for Reporter {
    fn is_old(&self, summary: &str) -> bool {
        self.seen.contains_key(summary)
    }

    fn found(&mut self, finding: Finding) -> bool {
        let shrunk = shrink::shrink(&finding, Duration::from_secs(45));
        for summary in [&finding.summary, &shrunk.summary] {
            *self.seen.entry(summary.clone()).or_insert(0) += 1;
        }
        let number = self.seen.len() as u32;
        let script = shrink::script(&finding, &shrunk, self.seed, number);
        println!("DIFFERENT ({}): {}", self.level.name(), shrunk.summary);
        if !shrunk.again {
            println!("  not reproduced with new routers; {} changes", shrunk.changes.len());
            print!("{}{}", finding.unlike, finding.stations);
        }
        shrunk.changes.iter().take(60).for_each(|change| println!("  {change}"));
        let frame = &shrunk.packet.frame;
        let hex = bywash_wire::hex::encode(&frame[..frame.len().min(100)]);
        println!("  into h{}:    {hex} ({} bytes)", shrunk.packet.port + 1, frame.len());
        println!("{}  {}", shrunk.frames, script.display());
        number < self.most
    }
}

/// Serializes the tests, so that each has the machine to itself.
static ALONE: Mutex<()> = Mutex::new(());

fn hold(level: Level, default: &[Feature]) {
    require!(require_lab());
    let features = features(default);
    let with_flows = features.contains(&Feature::Flows);
    // Features asked for are tested once.
    if with_flows != default.contains(&Feature::Flows) {
        return;
    }
    if variable::<String>("LEVEL").is_some_and(|wanted| wanted != level.name()) {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(rounds) = variable("LATENCY") {
        latency::measure(level, rounds);
        return;
    }
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    // Without a given time only the fixed seed is used, so that a run of the tests is repeatable.
    let random = variable::<u64>("SECONDS").map(|_| clock.as_nanos() as u64 % 1_000_000_007);
    let seeds = variable("SEED").map_or_else(|| [1812].into_iter().chain(random).collect(), |seed| vec![seed]);
    let time = Duration::from_secs(variable("SECONDS").unwrap_or(16)) / seeds.len() as u32;
    for seed in seeds {
        let options = Options {
            level,
            seed,
            features: features.clone(),
            packets: variable("PACKETS").unwrap_or(if with_flows { 400 } else { 1000 }),
            settle: Duration::from_millis(variable("SETTLE_MS").unwrap_or(10)),
            steps: if with_flows { 100 } else { 50 },
        };
        let names: Vec<String> = options.features.iter().map(|feature| feature.name()).collect();
        println!("{}: seed {seed}, {}", level.name(), names.join(","));
        let (started, mut figures) = (Instant::now(), Figures::default());
        let mut reporter = Reporter { level, seed, most: variable("FINDINGS").unwrap_or(1), seen: BTreeMap::new() };
        run::walk(&options, &mut figures, started + time, &mut reporter);
        println!("{}: seed {seed}: {}", level.name(), figures.line(started));
        // A run in which the kernel forwards everything would show nothing.
        assert!(figures.past_the_kernel > 0 || figures.of_connections < 50_000, "no flow has forwarded a packet");
        let seen = reporter.seen;
        assert!(seen.is_empty(), "{}: differs from the kernel with seed {seed}: {seen:#?}", level.name());
    }
}

#[test]
fn user_space_forwards_as_the_kernel() {
    hold(Level::User, DEFAULT);
}

#[test]
fn the_driver_forwards_as_the_kernel() {
    hold(Level::Driver, DEFAULT);
}

#[test]
fn by_default_it_forwards_as_the_kernel() {
    hold(Level::Auto, DEFAULT);
}

#[test]
fn user_space_forwards_established_flows_as_the_kernel() {
    hold(Level::User, FLOWS);
}

#[test]
fn the_driver_forwards_established_flows_as_the_kernel() {
    hold(Level::Driver, FLOWS);
}

#[test]
fn by_default_established_flows_are_forwarded_as_by_the_kernel() {
    hold(Level::Auto, FLOWS);
}

/// Checks that each rule is still needed: an obsolete one could hide a defect.
#[test]
fn every_allowed_difference_is_still_there() {
    require!(require_lab(), has_tool("nft"));
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut pair = Pair::new();
    pair.start(Level::User, topology::PORTS, true);
    let mut stale = vec![];
    for rule in rules::all() {
        let rules::Example { changes, opening, sent } = (rule.example)();
        let mut used = rules::Used::new();
        // Under the firewall of the rule before, packets would be left to the kernel, and no difference would appear.
        pair.apply(&[Change::Nft("flush ruleset".into())]);
        pair.apply(&changes);
        let opens = !opening.is_empty();
        for packet in opening {
            run::exchange(&pair, &[packet], Duration::from_millis(100));
        }
        if opens {
            // Packets of a connection propose it only when there are more of them: a change of rules has all read.
            pair.apply(&[Change::Nft("add table ip again\ndelete table ip again".into())]);
        }
        // A busy machine may follow late. Later rounds wait longer, because of the rate limits on errors.
        for wait in [300, 300, 1000, 3000, 10_000] {
            std::thread::sleep(Duration::from_millis(wait));
            let balance = run::exchange(&pair, &sent, Duration::from_millis(300));
            let context = pair.context();
            for case in balance.cases(&sent).0 {
                rules::explain(&case, &context, &mut used);
            }
            if used.contains_key(rule.name) {
                break;
            }
        }
        if !used.contains_key(rule.name) {
            stale.push(rule.name);
        }
    }
    assert!(stale.is_empty(), "differences no longer seen, remove them from rules.rs: {stale:?}");
}

/// Checks that the rule for unfinished checksums also explains those within a tunnel, in the quotation of an error.
#[test]
fn an_error_may_quote_a_completed_checksum() {
    require!(require_lab());
    for feature in [Feature::Vxlans, Feature::Vrfs] {
        if let Some(why) = feature.missing() {
            return report_skip(&format_args!("{}: {why}", feature.name()));
        }
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut pair = Pair::new();
    pair.start(Level::User, topology::PORTS, false);
    let rules::Example { changes, sent, .. } = rules::unfinished_within();
    pair.apply(&changes);
    let differ = || {
        let balance = run::exchange(&pair, &sent, Duration::from_millis(300));
        let mut used = rules::Used::new();
        let (cases, _) = balance.cases(&sent);
        let explained = cases.iter().all(|case| rules::explain(case, &pair.context(), &mut used));
        assert!(explained, "{:02x?}", cases.iter().map(|case| &case.only).collect::<Vec<_>>());
        used.contains_key("unfinished checksum")
    };
    bywash_lab::wait_until("errors that differ", Duration::from_secs(60), differ).unwrap();
}

#[test]
fn every_allowed_difference_is_documented() {
    let differences = include_str!("../../../../docs/decisions/differences.md");
    for rule in rules::all() {
        assert!(differences.contains(rule.documented), "not in differences.md: {:?} ({})", rule.documented, rule.name);
    }
}
