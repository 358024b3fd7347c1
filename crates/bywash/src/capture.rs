//! `bywash capture`: packets of the running instance, as pcapng or as lines of text.

mod blocks;
mod line;

use crate::api::{Placement, client};
use crate::cli::capture::CaptureArgs;
use crate::config::count;
use crate::error::Usage;
use crate::stdout::stdout;
use anyhow::{Context as _, bail};
use blocks::{Block, Blocks};
use bywash_port::pcap::compile;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Read timeout, after which the loop checks whether to stop.
const POLL: Duration = Duration::from_millis(100);

/// Captures until a signal or `--count` ends it, then prints the number of packets captured and lost.
pub fn run(args: &CaptureArgs) -> anyhow::Result<()> {
    let writes_to_terminal = args.write.as_deref().is_some_and(is_stdout) && stdout().is_terminal();
    if writes_to_terminal {
        return Err(Usage("-w - writes pcapng, which a terminal cannot show: pipe it to something".into()).into());
    }
    let filter = args.filter.as_deref().map(compile).transpose()?.unwrap_or_default();
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let mut capture = client::capture(&args.socket, &query(args), &filter, POLL)?;
    // Only now: an earlier capture stays in the file if this one does not begin.
    let mut sink = Sink::open(args)?;
    warn_of_missed_packets(&args.socket, &args.ports);
    eprintln!("capturing; Ctrl-C ends it");
    let (mut blocks, mut piece) = (Blocks::default(), vec![0; 256 << 10]);
    let (mut packets, mut lost, mut ending) = (0u64, 0u64, false);
    loop {
        if !ending && (stop.load(Ordering::Acquire) || args.count.is_some_and(|most| packets >= most)) {
            client::end_capture(&args.socket, capture.number)?;
            ending = true;
        }
        match capture.stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => blocks.take_in(&piece[..n]),
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(why) => return Err(why).context("bywash stopped answering"),
        }
        while let Some(block) = blocks.next()? {
            match block {
                Block::Packet { .. } if args.count.is_some_and(|most| packets >= most) => continue,
                Block::Packet { .. } => packets += 1,
                Block::Statistics { lost: now } => lost = now,
                _ => {}
            }
            sink.put(&block, blocks.bytes())?;
        }
        sink.flush()?;
    }
    let packets = count(packets, "packet");
    eprintln!("{packets} captured, {lost} lost because they came faster than they could be written");
    if !ending {
        bail!("bywash ended before the capture did");
    }
    Ok(())
}

/// Returns the next packet that a port receives and that passes the filter. Waits without a time limit.
pub fn next(socket: &Path, port: &str, filter: Option<&str>) -> anyhow::Result<Vec<u8>> {
    let filter = filter.map(compile).transpose()?.unwrap_or_default();
    let ports = [port.to_owned()];
    let query = [("port", port.to_owned()), ("way", "rx".into())];
    let mut capture = client::capture(socket, &query, &filter, POLL)?;
    warn_of_missed_packets(socket, &ports);
    eprintln!("waiting for a packet; Ctrl-C ends it");
    let (mut blocks, mut piece) = (Blocks::default(), vec![0; 256 << 10]);
    loop {
        match capture.stream.read(&mut piece) {
            Ok(0) => bail!("bywash ended before a packet came"),
            Ok(n) => blocks.take_in(&piece[..n]),
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(why) => return Err(why).context("bywash stopped answering"),
        }
        while let Some(block) = blocks.next()? {
            if let Block::Packet { bytes, .. } = block {
                // A failure does not matter: closing the connection ends the capture, too.
                let _ = client::end_capture(socket, capture.number);
                return Ok(bytes);
            }
        }
    }
}

/// Returns the query parameters of the API for the options.
fn query(args: &CaptureArgs) -> Vec<(&'static str, String)> {
    let mut query = vec![("snaplen", args.snaplen.to_string())];
    query.extend(args.ports.iter().map(|port| ("port", port.clone())));
    query.extend(args.drops.iter().map(|reason| ("drops", reason.clone())));
    query.extend(args.direction.iter().map(|direction| ("way", direction.clone())));
    query
}

/// Warns about ports whose packets are forwarded below user space and so are not captured.
fn warn_of_missed_packets(socket: &Path, ports: &[String]) {
    let Ok(placement) = client::ask::<Vec<Placement>>(socket) else { return };
    for Placement { port: name, level, .. } in placement {
        let asked = ports.is_empty() || ports.contains(&name);
        if let Some(level @ ("driver" | "kernel")) = level.as_deref().filter(|_| asked) {
            eprintln!(
                "bywash: packets forwarded at level {level} do not reach user space and are not captured: \
                 `bywash level user {name}` brings them there"
            );
        }
    }
}

fn is_stdout(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Destination of the packets.
enum Sink {
    File { out: BufWriter<File>, name: String },
    Stdout,
    Lines(line::Lines),
}

impl Sink {
    fn open(args: &CaptureArgs) -> anyhow::Result<Self> {
        let Some(path) = &args.write else { return Ok(Self::Lines(line::Lines::default())) };
        let name = path.display().to_string();
        if is_stdout(path) {
            return Ok(Self::Stdout);
        }
        let file = File::create(path).with_context(|| format!("cannot write {name}"))?;
        Ok(Self::File { out: BufWriter::new(file), name })
    }

    fn put(&mut self, block: &Block, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::File { out, name } => out.write_all(bytes).with_context(|| format!("cannot write {name}")),
            Self::Stdout => Ok(stdout().write_all(bytes)?),
            Self::Lines(lines) => Ok(lines.put(block, &mut stdout())?),
        }
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        match self {
            Self::File { out, name } => out.flush().with_context(|| format!("cannot write {name}")),
            Self::Stdout | Self::Lines(_) => Ok(stdout().flush()?),
        }
    }
}
