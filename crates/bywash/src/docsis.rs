//! `bywash docsis`: seals, opens, frames and parses PDUs in hex, line by line, to check test vectors.

use crate::cli::docsis::{DocsisArgs, FrameArgs, ParseArgs, SealArgs};
use crate::stdout::stdout;
use anyhow::Context as _;
use bywash_docsis::cipher::Tek;
use bywash_docsis::header::{Header, Privacy, Service, parse};
use bywash_docsis::protect::{self, Protection};
use bywash_docsis::seal::Sealer;
use bywash_frame::{Arena, ArenaConfig};
use bywash_port::pcap::{CaptureFile, LinkType, PacketMeta};
use bywash_wire::hex;
use serde_json::json;
use std::io::{BufRead, Write};

/// Runs the subcommand on standard input. Errors at the first line that cannot be processed.
pub fn run(args: DocsisArgs) -> anyhow::Result<()> {
    match args {
        DocsisArgs::Seal(args) => seal(&args),
        DocsisArgs::Open(args) => open(&args),
        DocsisArgs::Frame(args) => frame(&args),
        DocsisArgs::Parse(args) => parse_lines(&args),
    }
}

/// Passes every line of standard input, decoded from hex, to `make`, and prints what it returns. Ends at the first
/// error.
fn lines(mut make: impl FnMut(Vec<u8>) -> anyhow::Result<String>) -> anyhow::Result<()> {
    let mut out = std::io::BufWriter::new(stdout());
    for (at, line) in std::io::stdin().lock().lines().enumerate() {
        let text = line.context("cannot read standard input")?;
        let made = hex::decode(&text).map_err(anyhow::Error::msg).and_then(&mut make);
        match made.with_context(|| format!("line {} of standard input", at + 1)) {
            Ok(text) => writeln!(out, "{text}")?,
            Err(why) => {
                out.flush()?;
                return Err(why);
            }
        }
    }
    Ok(out.flush()?)
}

fn protection(args: &SealArgs) -> Protection {
    Protection { crc: args.crc.on(), cipher: args.cipher.on(), offset: args.offset }
}

fn seal(args: &SealArgs) -> anyhow::Result<()> {
    let how = protection(args);
    let arena = Arena::new(ArenaConfig { cells: 1, ..Default::default() })?;
    let mut sealer = Sealer::new(args.crypto, how, &arena, &[(args.key, args.iv)])?;
    lines(|mut pdu| {
        pdu.resize(pdu.len() + how.added(), 0);
        sealer.seal_bytes(&mut pdu, 0);
        Ok(hex::encode(&pdu))
    })
}

fn open(args: &SealArgs) -> anyhow::Result<()> {
    let how = protection(args);
    let tek = Tek::new(&args.key, &args.iv);
    lines(|mut sealed| {
        let len = protect::open(&tek, how, &mut sealed)?;
        Ok(hex::encode(&sealed[..len]))
    })
}

fn frame(args: &FrameArgs) -> anyhow::Result<()> {
    let privacy = |said| Privacy { enabled: !args.clear, key_sequence: args.key_sequence, toggle: false, said };
    let mut service = (args.dsid.is_some() || args.priority.is_some()).then(|| Service {
        priority: args.priority.unwrap_or(0),
        dsid: args.dsid,
        sequence: args.sequence,
        sequence_change: false,
    });
    let mut file = match &args.pcap {
        None => None,
        Some(path) => {
            let file = CaptureFile::create_linked(path, LinkType::Docsis, &["bywash"], 0);
            Some((file.with_context(|| format!("cannot write {}", path.display()))?, path))
        }
    };
    lines(|pdu| {
        let header = Header { privacy: args.said.map(privacy), service };
        let mut frame = vec![0; header.len()];
        header.write(&mut frame, pdu.len()).with_context(|| format!("a PDU of {} bytes is too long", pdu.len()))?;
        frame.extend(&pdu);
        if let Some(sequence) = service.as_mut().and_then(|service| service.sequence.as_mut()) {
            *sequence = sequence.wrapping_add(1);
        }
        if let Some((file, path)) = &mut file {
            let meta = PacketMeta { time_ns: 0, length: frame.len() as u32, direction: None, interface: 0 };
            file.write(meta, &frame).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(hex::encode(&frame))
    })?;
    if let Some((mut file, path)) = file {
        file.flush().with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn parse_lines(args: &ParseArgs) -> anyhow::Result<()> {
    lines(|bytes| {
        let parsed = parse(&bytes)?;
        let Header { privacy, service } = parsed.header;
        if args.json {
            let pdu = hex::encode(parsed.pdu);
            let rest = hex::encode(parsed.rest);
            return Ok(json!({ "privacy": privacy, "service": service, "pdu": pdu, "rest": rest }).to_string());
        }
        let mut text = String::new();
        if let Some(Privacy { enabled, key_sequence, toggle, said }) = privacy {
            let state = if enabled { "enciphered" } else { "clear" };
            text += &format!("said {said} {state} key {key_sequence}{} ", if toggle { " toggled" } else { "" });
        }
        if let Some(service) = service {
            text += &format!("priority {} ", service.priority);
            service.dsid.iter().for_each(|dsid| text += &format!("dsid {dsid} "));
            service.sequence.iter().for_each(|sequence| text += &format!("sequence {sequence} "));
        }
        text += &format!("pdu {}", hex::encode(parsed.pdu));
        if !parsed.rest.is_empty() {
            text += &format!(" rest {}", hex::encode(parsed.rest));
        }
        Ok(text)
    })
}
