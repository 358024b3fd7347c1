//! `bywash trace`: traces one packet, given in hex or taken from a port.

use crate::api::Traced;
use crate::api::client;
use crate::capture;
use crate::cli::trace::TraceArgs;
use serde_json::Value;
use std::io::Write;

/// Asks the instance for a trace, and prints it.
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    let frame = match args.frame.as_deref() {
        None => to_hex(&capture::next(&args.socket, &args.port, args.filter.as_deref())?),
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

/// Parses a packet in the format of `POST /v1/trace`: the port's name and the frame in hex, in which spaces and colons
/// are ignored.
pub fn parse(text: &str) -> Result<(&str, Vec<u8>), String> {
    let (port, hex) = text.trim().split_once(char::is_whitespace).ok_or("expected a port and a frame in hex")?;
    let digits: Vec<u8> = hex.bytes().filter(|c| !c.is_ascii_whitespace() && *c != b':').collect();
    let digit = |c: u8| char::from(c).to_digit(16);
    let byte = |pair: &[u8]| match *pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    let bytes = bytes.filter(|bytes| !bytes.is_empty()).ok_or("the frame is not hex: two digits a byte")?;
    Ok((port, bytes))
}

/// Formats bytes in hex, two digits each.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_in_hex() {
        assert_eq!(parse("r0 0a:0B 0c\n"), Ok(("r0", vec![10, 11, 12])));
        assert_eq!(parse(&format!("r0 {}", to_hex(&[0, 255, 16]))), Ok(("r0", vec![0, 255, 16])));
        for bad in ["", "r0", "r0 ", "r0 0", "r0 0x", "r0 xy", "r0 \u{e4}"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
