//! `bywash show`, `bywash level` and `bywash reload`: query the running instance and print its answer.

#[macro_use]
mod layout;

mod established;
mod firewall;
mod flow;
mod tables;

use crate::api::{Config, Placement, Reloaded, Topic, client, without_descriptions};
use crate::cli::{LevelArgs, ReloadArgs, Show, ShowArgs};
use crate::error::Usage;
use crate::stdout::stdout;
use anyhow::ensure;
pub use firewall::evaluated;
pub use flow::run as flow;
pub use layout::{Grid, bits, pps};
use serde_json::{Value, json};
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};
use tables::Rates;

/// Runs `bywash level`: changes the level of ports and prints the resulting placement.
pub fn level(args: &LevelArgs) -> anyhow::Result<()> {
    if args.json {
        let value: Value = client::set_level(&args.socket, args.level.name(), &args.ports)?;
        return Ok(writeln!(stdout(), "{value}")?);
    }
    let placement: Vec<Placement> = client::set_level(&args.socket, args.level.name(), &args.ports)?;
    let text = tables::render(&placement.into(), &mut Rates::default());
    Ok(stdout().write_all(text.as_bytes())?)
}

/// Runs `bywash reload`: prints what has changed or, with `--dry-run`, would change.
pub fn reload(args: &ReloadArgs) -> anyhow::Result<()> {
    let mut out = stdout();
    if args.json {
        let value: Value = client::reload(&args.socket, args.dry_run)?;
        return Ok(writeln!(out, "{value}")?);
    }
    let Reloaded { changes, .. } = client::reload(&args.socket, args.dry_run)?;
    if changes.is_empty() {
        return Ok(writeln!(out, "nothing to change")?);
    }
    Ok(changes.iter().try_for_each(|change| writeln!(out, "{change}"))?)
}

/// Runs `bywash show`: prints the selected topics, with `--watch` repeatedly.
pub fn run(args: &ShowArgs) -> anyhow::Result<()> {
    if let Show::Firewall = args.what {
        return firewall::run(args);
    }
    let topics = topics(args)?;
    if topics == [Topic::EstablishedFlows] && !args.schema && args.watch.is_none() {
        return established::run(args);
    }
    if args.schema {
        let schema = |topic: &Topic| without_descriptions(topic.schema());
        let value = match topics.as_slice() {
            // The answer depends on the instance's mode.
            [Topic::Flows] => json!({ "anyOf": [schema(&Topic::Flows), schema(&Topic::EstablishedFlows)] }),
            [topic] => schema(topic),
            topics => Value::Object(topics.iter().map(|t| (t.name().into(), schema(t))).collect()),
        };
        return Ok(writeln!(stdout(), "{value:#}")?);
    }
    if args.json && args.watch.is_none() {
        return Ok(writeln!(stdout(), "{}", object(args, &here(&args.socket, &topics)?)?)?);
    }
    let Some(seconds) = args.watch else {
        let text = render(args, &here(&args.socket, &topics)?, &mut Rates::default())?;
        return Ok(stdout().write_all(text.as_bytes())?);
    };
    let topics = here(&args.socket, &topics)?;
    let (period, mut rates) = (Duration::from_secs_f64(seconds), Rates::default());
    let mut next = Instant::now();
    loop {
        let text = match args.json {
            true => object(args, &topics)?.to_string(),
            false => render(args, &topics, &mut rates)?,
        };
        let mut out = stdout();
        // Redraw in place to avoid flicker: cursor home, each line cleared to its end, then the remaining screen.
        let clear = !args.json && out.is_terminal();
        if clear {
            write!(out, "\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"))?;
        } else {
            writeln!(out, "{text}")?;
        }
        out.flush()?;
        next += period;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn topics(args: &ShowArgs) -> anyhow::Result<Vec<Topic>> {
    let topics = match args.what {
        Show::Ports => vec![Topic::Ports],
        Show::Workers => vec![Topic::Workers],
        Show::Pools => vec![Topic::Pools],
        Show::Routes => vec![Topic::Routes],
        Show::Neighbours => vec![Topic::Neighbours],
        Show::Drift => vec![Topic::Drift],
        Show::Drops => vec![Topic::Drops],
        Show::Placement => vec![Topic::Placement],
        Show::Sandbox => vec![Topic::Sandbox],
        Show::Health => vec![Topic::Health],
        // A router has other flows than a switch.
        Show::Flows if !args.schema && client::ask::<Config>(&args.socket)?.mode == "router" => {
            vec![Topic::EstablishedFlows]
        }
        Show::Flows => vec![Topic::Flows],
        Show::EstablishedFlows => vec![Topic::EstablishedFlows],
        Show::FlowTable => vec![Topic::FlowTable],
        Show::KernelConnections => vec![Topic::KernelConnections],
        Show::Groups => vec![Topic::Groups],
        Show::Fdb => vec![Topic::Fdb],
        Show::Caches => vec![Topic::Caches],
        Show::Modems => vec![Topic::Modems],
        Show::Cpes => vec![Topic::Cpes],
        Show::ServiceFlows => vec![Topic::ServiceFlows],
        Show::Channels => vec![Topic::Channels],
        Show::Config => vec![Topic::Config],
        // Read from the kernel, not from an instance.
        Show::Firewall => vec![],
        Show::All => Topic::SHOWN.to_vec(),
    };
    let filtered = |topic: &Topic| topic.filter().is_some() || [Topic::Ports, Topic::Placement].contains(topic);
    if args.filter.is_some() && (topics.len() > 1 || !filtered(&topics[0])) {
        let what = "only `show ports`, `placement`, `routes`, `neighbours` and `flows` take a filter";
        return Err(Usage(format!("{what}: leave it out")).into());
    }
    if args.limit.is_some() && topics != [Topic::EstablishedFlows] {
        return Err(Usage("only `show flows` of a router takes --limit: leave it out".into()).into());
    }
    Ok(topics)
}

/// Returns the topics that exist in the instance's mode. A single topic is returned as it is, so that the instance
/// reports why it has none.
fn here(socket: &Path, topics: &[Topic]) -> anyhow::Result<Vec<Topic>> {
    if topics.len() < 2 {
        return Ok(topics.to_vec());
    }
    let config: Config = client::ask(socket)?;
    let has = |topic: &&Topic| match config.mode.as_str() {
        "application" => Topic::OF_APPLICATIONS.contains(topic),
        mode => topic.mode().is_none_or(|of| of == mode),
    };
    Ok(topics.iter().filter(has).copied().collect())
}

/// Returns the instance's answer for a topic, with the rows that the filter selects.
fn ask(args: &ShowArgs, topic: Topic) -> anyhow::Result<Value> {
    let filter = args.filter.as_deref();
    let address = |text: &str| text.split('/').next().is_some_and(|address| address.parse::<IpAddr>().is_ok());
    let by_name = match topic {
        Topic::Ports | Topic::Placement => filter,
        Topic::Neighbours => filter.filter(|text| !address(text)),
        _ => None,
    };
    if topic == Topic::EstablishedFlows {
        return Ok(serde_json::to_value(established::all(args)?)?);
    }
    let Some(name) = by_name else { return client::topic(&args.socket, topic, filter) };
    let rows: Vec<Value> = client::topic(&args.socket, topic, None)?;
    let above = |row: &Value| row["above"].as_array().is_some_and(|all| all.iter().any(|above| above["name"] == name));
    let has = |row: &&Value| ["name", "port", "interface"].iter().any(|key| row[key] == name) || above(row);
    let found: Vec<Value> = rows.iter().filter(has).cloned().collect();
    if found.is_empty() {
        // An interface may have no neighbours; the placement has all interfaces of a router.
        let all: Vec<Value> =
            if topic == Topic::Neighbours { client::topic(&args.socket, Topic::Placement, None)? } else { rows };
        let names: Vec<&str> = all.iter().filter_map(|row| row["name"].as_str().or(row["port"].as_str())).collect();
        ensure!(all.iter().any(|row| has(&row)), "no port `{name}`: the ports are {}", names.join(", "));
    }
    Ok(found.into())
}

/// Returns the answer for one topic, or an object with those for several.
fn object(args: &ShowArgs, topics: &[Topic]) -> anyhow::Result<Value> {
    match topics {
        [topic] => ask(args, *topic),
        topics => topics.iter().map(|topic| Ok((topic.name().to_string(), ask(args, *topic)?))).collect(),
    }
}

fn render(args: &ShowArgs, topics: &[Topic], rates: &mut Rates) -> anyhow::Result<String> {
    let mut out = String::new();
    for &topic in topics {
        let answer = client::typed(&args.socket, topic, ask(args, topic)?)?;
        let text = tables::render(&answer, rates);
        if topics.len() > 1 {
            let name = topic.name();
            out += &format!("{}{name}\n{}\n", if out.is_empty() { "" } else { "\n" }, "-".repeat(name.len()));
        }
        out += &text;
    }
    Ok(out)
}
