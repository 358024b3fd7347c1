//! `bywash trace`: traces one packet, given in hex or taken from a port.

use crate::api::Traced;
use crate::api::client;
use crate::capture;
use crate::cli::trace::TraceArgs;
use bywash_wire::hex;
use serde_json::Value;
use std::io::Write;

/// Asks the instance for a trace, and prints it.
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    let frame = match args.frame.as_deref() {
        None => hex::encode(&capture::next(&args.socket, &args.port, args.filter.as_deref())?),
        Some("-") => std::io::read_to_string(std::io::stdin())?,
        Some(hex) => hex.to_owned(),
    };
    let (packet, mut out) = (format!("{} {frame}", args.port), std::io::stdout().lock());
    if args.json {
        let value: Value = client::trace(&args.socket, &packet)?;
        return Ok(writeln!(out, "{value}")?);
    }
    let Traced { story, outputs, dropped, .. } = client::trace(&args.socket, &packet)?;
    for line in story {
        writeln!(out, "{line}")?;
    }
    let end = match dropped {
        Some(reason) => format!("dropped: {reason}"),
        None if outputs.is_empty() => "not sent".into(),
        None => format!("sent to: {}", outputs.join(", ")),
    };
    Ok(writeln!(out, "\n{end}")?)
}
