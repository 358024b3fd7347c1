//! Captures of a running instance: a recorder at every worker, and a writer that turns the records into pcapng.

use crate::api::Capturing;
use crate::shared::Shared;
use crate::workers::ANSWER;
use bywash_api::CaptureRequest;
use bywash_engine::{Change, DROP_REASONS, DropReason, PortId};
use bywash_port::pcap::{CaptureFile, Direction, Filter, Format, PacketMeta, wall_ns};
use bywash_port::{Happened, Records, Wanted, capture};
use bywash_sync::lock;
use std::io::{Result, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Size of each worker's ring to the writer, in bytes.
const RING: usize = 4 << 20;
/// Interval at which an idle writer checks the rings.
const POLL: Duration = Duration::from_millis(2);
/// Interval between statistics blocks, which carry the number of lost packets.
const STATISTICS: Duration = Duration::from_secs(1);
/// Default snap length, in bytes: the whole packet, whatever a cell can hold.
const WHOLE: u32 = 1 << 18;

/// Capture that is ready to start.
struct Prepared {
    shared: Arc<Shared>,
    /// Names of the ports, by number.
    names: Vec<String>,
    /// Packets to record, by worker.
    wanted: Vec<Wanted>,
    snaplen: u32,
}

/// Validates a request. Errors if a port or drop reason is unknown, or the filter is invalid.
pub fn prepare(shared: &Arc<Shared>, request: &CaptureRequest) -> std::result::Result<Box<dyn Capturing>, String> {
    let ports = shared.ports();
    let count = ports.last_key_value().map_or(0, |(at, _)| at + 1);
    let name = |at| ports.get(&at).map_or("?", |slot| &slot.config.name).to_owned();
    let names: Vec<String> = (0..count).map(name).collect();
    let mut chosen = vec![request.ports.is_empty(); names.len()];
    for port in &request.ports {
        let at = names.iter().position(|name| name == port);
        let there = || ports.values().map(|slot| slot.config.name.as_str()).collect::<Vec<_>>().join(", ");
        chosen[at.ok_or_else(|| format!("no port `{port}`: the ports are {}", there()))?] = true;
    }
    let mut reasons = 0;
    for drops in &request.drops {
        reasons |= match DROP_REASONS.iter().find(|reason| reason.name() == drops) {
            Some(reason) => reason.bit(),
            None if drops == "all" => DROP_REASONS.iter().map(|reason| reason.bit()).sum(),
            None => {
                let all: Vec<_> = DROP_REASONS.iter().map(|reason| reason.name()).collect();
                return Err(format!("unknown drop reason `{drops}`: expected `all`, or one of {}", all.join(", ")));
            }
        };
    }
    let filter = request.filter.as_ref().map(|text| Filter::parse(text).map(Arc::new));
    let filter = filter.transpose().map_err(|wrong| wrong.to_string())?;
    let snaplen = if request.snaplen == 0 { WHOLE } else { request.snaplen };
    let wanted = (0..shared.workers.len()).map(|worker| {
        // A worker's ends of ports that it does not poll are rings to the workers that do: those record the packet.
        let own = |direction| -> Vec<bool> {
            let asked = request.drops.is_empty() && request.direction.is_none_or(|only| only == direction);
            let polled = |at| ports.get(&at).is_some_and(|slot| slot.polled_by(worker).next().is_some());
            chosen.iter().enumerate().map(|(at, chosen)| asked && *chosen && polled(at)).collect()
        };
        Wanted {
            received: own(bywash_api::Direction::Rx),
            sent: own(bywash_api::Direction::Tx),
            dropped: chosen.clone(),
            reasons,
            filter: filter.clone(),
            snaplen: snaplen as usize,
        }
    });
    Ok(Box::new(Prepared { wanted: wanted.collect(), shared: shared.clone(), names, snaplen }))
}

impl Capturing for Prepared {
    fn run(self: Box<Self>, out: Box<dyn Write>, stop: &AtomicBool) -> Result<()> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Self { shared, names, wanted, snaplen } = *self;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let shown: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut file = CaptureFile::new(out, Format::PcapNg, &shown, snaplen)?;
        // Flush before the first packet, so that the reader sees that the capture has started.
        file.flush()?;
        let mut rings = vec![];
        let mut captures = lock(&shared.captures);
        // The ports may have changed since the request was validated.
        let stale = shared.other_ports(&names);
        captures.insert(id, names);
        for (worker, wanted) in shared.workers.iter().zip(wanted) {
            let (mut recorder, records) = capture(id, wanted, RING);
            stale.iter().for_each(|at| recorder.leave_out(*at));
            worker.handle.record(recorder);
            rings.push(records);
        }
        drop(captures);
        let written = follow(&mut rings, &mut file, stop);
        for worker in &shared.workers {
            // A worker that does not answer has ended.
            worker.handle.stop_recording(id, ANSWER);
        }
        lock(&shared.captures).remove(&id);
        written?;
        drain(&mut rings, &mut file)?;
        statistics(&rings, &mut file)?;
        file.flush()
    }
}

impl Shared {
    /// Returns the numbers under which there is a port of another name. One without a port has no packets.
    fn other_ports(&self, names: &[String]) -> Vec<u16> {
        let ports = self.ports();
        let is_other = |(at, name): &(usize, &String)| ports.get(at).is_some_and(|slot| slot.config.name != **name);
        names.iter().enumerate().filter(is_other).map(|(at, _)| at as u16).collect()
    }

    /// Leaves the port that is about to get this number out of the captures that know another one by it.
    pub fn leave_out_of_captures(&self, at: usize, name: &str) {
        let captures = lock(&self.captures);
        for (id, _) in captures.iter().filter(|(_, names)| names.get(at).is_some_and(|known| known != name)) {
            for worker in &self.workers {
                worker.handle.change(vec![Change::LeaveOut(*id, PortId(at as u16))], ANSWER);
            }
        }
    }
}

/// Writes records until `stop` is set or the reader has gone.
fn follow(rings: &mut [Records], file: &mut CaptureFile<Box<dyn Write>>, stop: &AtomicBool) -> Result<()> {
    let mut written = Instant::now();
    while !stop.load(Ordering::Acquire) {
        let n = drain(rings, file)?;
        let due = written.elapsed() >= STATISTICS;
        if due {
            written = Instant::now();
            statistics(rings, file)?;
        }
        if n > 0 || due {
            file.flush()?;
        } else {
            std::thread::sleep(POLL);
        }
    }
    Ok(())
}

/// Writes all records present now, in order of time. Returns their number.
fn drain(rings: &mut [Records], file: &mut CaptureFile<Box<dyn Write>>) -> Result<usize> {
    let mut all = vec![];
    for (worker, ring) in rings.iter_mut().enumerate() {
        ring.drain(|record| {
            let direction = if record.happened == Happened::Sent { Direction::Tx } else { Direction::Rx };
            let meta = PacketMeta {
                time_ns: record.time_ns,
                length: record.length,
                direction: Some(direction),
                interface: record.port.into(),
            };
            all.push((meta, worker, record.happened, record.bytes.to_vec()));
            Ok(())
        })?;
    }
    all.sort_by_key(|(meta, ..)| meta.time_ns);
    for (meta, worker, happened, bytes) in &all {
        match happened {
            Happened::Dropped(reason) => {
                let reason = DROP_REASONS.get(usize::from(*reason)).copied().map_or("unknown", DropReason::name);
                file.write_commented(*meta, bytes, &format!("dropped: {reason} (worker {worker})"))?;
            }
            _ => file.write(*meta, bytes)?,
        }
    }
    Ok(all.len())
}

/// Writes the numbers of captured and lost packets. A ring does not know the port of a packet it lost, so the sum is
/// written for the first interface.
fn statistics(rings: &[Records], file: &mut CaptureFile<Box<dyn Write>>) -> Result<()> {
    let stats = rings.iter().map(Records::stats);
    let (captured, lost) = stats.fold((0, 0), |(captured, lost), s| (captured + s.captured, lost + s.lost));
    file.statistics(0, wall_ns(), captured, lost)
}
