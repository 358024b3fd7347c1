//! `bywash trace`: traces one packet, given in hex or taken from a port.

use crate::api::Traced;
use crate::api::client;
use crate::capture;
use crate::cli::trace::TraceArgs;
use crate::error::Usage;
use crate::stdout::stdout;
use bywash_wire::hex;
use serde_json::Value;
use std::io::Write;

/// Asks the instance for a trace, and prints it.
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    let frame = match args.frame.as_deref() {
        None => hex::encode(&capture::next(&args.socket, &args.port, args.filter.as_deref())?),
        Some("-") => std::io::read_to_string(std::io::stdin())?,
        Some(hex) => {
            // The instance ignores colons as well.
            hex::decode(&hex.replace(':', " ")).map_err(|why| Usage(format!("the frame is not hex: {why}")))?;
            hex.to_owned()
        }
    };
    let (packet, mut out) = (format!("{} {frame}", args.port), stdout());
    if args.json {
        let value: Value = client::trace(&args.socket, &packet)?;
        return Ok(writeln!(out, "{value}")?);
    }
    let Traced { mut story, outputs, dropped, routed, .. } = client::trace(&args.socket, &packet)?;
    let kernel = routed.and_then(|routed| routed.kernel.or(routed.gate.and_then(|gate| gate.kernel)));
    let end = match dropped {
        // The line of the story that has this reason; it is not said twice.
        Some(reason) => {
            let says = |line: &String| {
                let told = line.strip_prefix("dropped: ").or_else(|| line.strip_prefix("not forwarded: "));
                told.is_some_and(|told| told.starts_with(&reason))
            };
            let at = story.iter().position(says);
            at.map_or_else(|| format!("dropped: {reason}"), |at| story.remove(at))
        }
        None if outputs.is_empty() && kernel.is_some() => "left to the kernel".into(),
        None if outputs.is_empty() => "not sent".into(),
        None => format!("sent to: {}", outputs.join(", ")),
    };
    for line in story {
        writeln!(out, "{line}")?;
    }
    Ok(writeln!(out, "\n{end}")?)
}
