//! `bywash flow`: changes and prints the flows of the running switch.

use super::tables::flow_line;
use crate::api::{Flow, Port, Topic, Traced, client};
use crate::cli::flow::{FlowArgs, LoadArgs};
use crate::config::count;
use crate::error::Usage;
use crate::flows::{self, ScriptError, Verb};
use crate::stdout::stdout;
use anyhow::{Context as _, anyhow};
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::path::Path;

/// Maximum size of the lines in one request, in bytes. The switch applies each request as a whole and locks its tables
/// meanwhile.
const PIECE: usize = 4 << 20;

pub fn run(args: &FlowArgs) -> anyhow::Result<()> {
    match args {
        FlowArgs::Add(args) => change(&args.whom.socket, Verb::Add, &args.flows),
        FlowArgs::Mod(args) => change(&args.whom.socket, Verb::Mod { strict: args.strict }, &args.flows),
        FlowArgs::Del(args) if args.flows.is_empty() => {
            let all = Verb::Del { strict: false };
            report(all, client::change_flows(&args.whom.socket, all.name(), "delete ", "flow del")?)
        }
        FlowArgs::Del(args) => change(&args.whom.socket, Verb::Del { strict: args.strict }, &args.flows),
        FlowArgs::Load(args) => load(args),
        FlowArgs::Dump(args) => {
            let (socket, filter) = (&args.whom.socket, args.filter.as_deref());
            let mut out = std::io::BufWriter::new(stdout());
            if args.json {
                let value: Value = client::topic_for(socket, Topic::Flows, filter, "flow dump")?;
                writeln!(out, "{value}")?;
            } else {
                for flow in client::topic_for::<Vec<Flow>>(socket, Topic::Flows, filter, "flow dump")? {
                    writeln!(out, "{}", flow_line(&flow, !args.no_stats))?;
                }
            }
            Ok(out.flush()?)
        }
        FlowArgs::Trace(args) => {
            let mut out = stdout();
            if args.json {
                let value: Value = client::trace(&args.whom.socket, &args.packet)?;
                return Ok(writeln!(out, "{value}")?);
            }
            let Traced { story, outputs, dropped, megaflow, .. } = client::trace(&args.whom.socket, &args.packet)?;
            for line in story {
                writeln!(out, "{line}")?;
            }
            match dropped {
                Some(reason) => writeln!(out, "\ndropped: {reason}")?,
                None => writeln!(out, "\nsent to: {}", outputs.join(", "))?,
            }
            let megaflow = megaflow.filter(|text| !text.is_empty());
            Ok(writeln!(out, "megaflow: {}", megaflow.as_deref().unwrap_or("every packet"))?)
        }
    }
}

/// Validates all lines, so that nothing is sent if a later line is wrong, and sends them in pieces of [`PIECE`] bytes.
/// `what` names the command in errors, `place` adds the position to one. Returns how many flows, groups and meters were
/// changed.
fn send(
    socket: &Path,
    (verb, what): (Verb, &str),
    lines: &str,
    place: impl Fn(ScriptError) -> anyhow::Error,
) -> anyhow::Result<u64> {
    let names: Vec<String> = client::ask::<Vec<Port>>(socket)?.into_iter().map(|port| port.name).collect();
    flows::parse(lines, verb, &|name| flows::port_number(&names, None, name)).map_err(place)?;
    let (mut rest, mut sent, mut changed) = (lines, 0, 0);
    while !rest.is_empty() {
        let end = match rest.get(..PIECE) {
            Some(piece) => piece.rfind('\n').map_or(rest.len(), |at| at + 1),
            None if rest.len() <= PIECE => rest.len(),
            // The limit falls inside a character.
            None => rest[..rest.floor_char_boundary(PIECE)].rfind('\n').map_or(rest.len(), |at| at + 1),
        };
        let (piece, after) = rest.split_at(end);
        changed += client::change_flows(socket, verb.name(), piece, what).map_err(|why| match sent {
            0 => why,
            sent => anyhow!("{why:#}; the first {} were sent separately and have been applied", count(sent, "line")),
        })?;
        sent += piece.lines().count();
        rest = after;
    }
    Ok(changed)
}

/// Prints how many flows, groups and meters a command changed: another number than expected may mean that its match is
/// wrong.
fn report(verb: Verb, changed: u64) -> anyhow::Result<()> {
    let done = match verb {
        Verb::Add => return Ok(()),
        Verb::Mod { .. } => "changed or added",
        Verb::Del { .. } => "deleted",
    };
    Ok(writeln!(stdout(), "{changed} {done}")?)
}

fn change(socket: &Path, verb: Verb, flows: &[String]) -> anyhow::Result<()> {
    for flow in flows {
        anyhow::ensure!(!flow.contains('\n'), "a flow must be one line: use `bywash flow load` for several");
        // A file may have empty lines and comments; as an argument they are a mistake.
        if flow.trim().is_empty() || flow.trim_start().starts_with('#') {
            return Err(Usage(format!("`{flow}` is no flow")).into());
        }
    }
    let what = format!("flow {}", verb.name().0);
    let changed = send(socket, (verb, &what), &flows.join("\n"), |wrong| {
        let flow = flows.get(wrong.line - 1).map_or("", String::as_str);
        anyhow!("`{flow}`: {}", wrong.error)
    })?;
    report(verb, changed)
}

fn load(args: &LoadArgs) -> anyhow::Result<()> {
    let (name, mut text) = (args.file.display().to_string(), String::new());
    if name == "-" {
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(&args.file).with_context(|| format!("cannot read {name}"))?;
    }
    let first = usize::from(args.replace);
    if args.replace {
        text.insert_str(0, "delete \n");
    }
    send(&args.whom.socket, (Verb::Add, "flow load"), &text, |wrong| {
        anyhow!("{name}:{}:{}: {}", wrong.line - first, wrong.error.column, wrong.error.what)
    })?;
    Ok(())
}
