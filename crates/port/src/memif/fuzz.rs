//! Properties of the control messages and the rings for any input from a peer, shared by the fuzz targets and the test
//! that replays their findings.

#[cfg(test)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

use super::copying::Copying;
use super::handshake::{Client, Server, Step, Terms};
use super::lending::Lending;
use super::link::Link;
use super::memory::{Region, Ring};
use super::message::{Message, SECRET, SIZE};
use crate::PortCounters;
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use rustix::event::EventfdFlags;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Log2 of the slots of a ring.
const LOG2: u8 = 4;
/// Size in bytes of the region that holds rings, and packets behind them.
const REGION: usize = 16 << 10;
/// Number of frames of the arena.
const FRAMES: usize = 64;

/// Memory and descriptors that are the same in every execution.
struct Bench {
    pools: Arc<PoolSet>,
    memory: OwnedFd,
    peer: Region,
    bell: OwnedFd,
    /// File that is not an eventfd and cannot be mapped.
    other: OwnedFd,
}

impl Bench {
    fn new() -> Self {
        let arena = Arena::new(ArenaConfig { cells: FRAMES, ..Default::default() }).expect("memory");
        let pools = PoolSet::new(arena, &[PoolConfig::stack("main", FRAMES)]).expect("a pool");
        let (peer, memory) = Region::create(REGION).expect("memory");
        let bell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");
        let other = std::fs::File::open("/dev/null").expect("/dev/null").into();
        Self { pools, memory, peer, bell, other }
    }

    fn link(&self, client: bool) -> Link {
        let region = Region::of_peer(&self.memory, REGION as u64, true).expect("a region");
        let offset = Ring::bytes(LOG2) as u32;
        // SAFETY: the region and both rings become fields of one link.
        let rings = unsafe { (Ring::at(&region, 0, LOG2), Ring::at(&region, offset, LOG2)) };
        let (Some(rx), Some(tx)) = rings else { panic!("room for two rings") };
        assert!(region.write(0, &[0; 2 * Ring::bytes(LOG2)]));
        rx.reset();
        tx.reset();
        let mut regions = vec![region];
        if client {
            regions.push(Region::arena(self.pools.arena()));
        }
        Link { rx, tx, bell: self.bell.try_clone().expect("a descriptor"), regions }
    }
}

thread_local! {
    static BENCH: Bench = Bench::new();
}

/// Checks the handshake with a peer that sends the messages of the input, with or without descriptors, and that every
/// message is the same after it is written and read again.
pub fn memif_messages(data: &[u8]) {
    BENCH.with(|bench| messages(bench, data));
}

fn messages(bench: &Bench, data: &[u8]) {
    let terms = Terms { id: 7, secret: [0; SECRET], log2_ring: LOG2, sealed: true, name: "port".into() };
    let mut server = Server::new(terms.clone());
    let mut client = Client::new(terms, bench.pools.arena().clone());
    let (mut serves, mut asks) = (true, true);
    let mut rest = data;
    while let Some((choice, more)) = rest.split_first() {
        // Most messages are shorter than their size: the rest is zeros.
        let len = more.iter().position(|byte| *byte == 0xa5).unwrap_or(more.len()).min(SIZE);
        let mut bytes = [0; SIZE];
        bytes[..len].copy_from_slice(&more[..len]);
        rest = more.get(len + 1..).unwrap_or_default();
        let Some(message) = Message::read(&bytes) else { continue };
        let again = Message::read(&message.bytes()).expect("a known message");
        assert_eq!(Message::read(&again.bytes()).as_ref(), Some(&again));
        if let Message::Connect { name } | Message::Connected { name } = &message {
            assert!(!name.contains(char::is_control) && name.len() < 3 * SIZE, "{name:?}");
        }
        let fd = match choice % 4 {
            0 => None,
            1 => Some(&bench.memory),
            2 => Some(&bench.bell),
            _ => Some(&bench.other),
        };
        let fd = fd.map(|fd| fd.try_clone().expect("a descriptor"));
        if choice & 4 != 0 && asks {
            asks = matches!(client.handle(message), Ok(Step::Reply(..)));
        } else if serves {
            match server.handle(message, fd) {
                Ok(Step::Reply(said, fd)) => assert!(said == Message::Ack && fd.is_none()),
                Ok(Step::Connected(_, connected)) => {
                    let link = connected.link;
                    assert_eq!((link.rx.head(), link.tx.head()), (0, 0));
                    let mut bufs = Buffers::attach(&bench.pools, 0);
                    let mut copying = Copying::default();
                    let mut out = Batch::new();
                    let got = copying.receive((&link, 0), &mut bufs, &mut out, &PortCounters::default());
                    assert!(matches!(got, Ok(0)));
                    serves = false;
                }
                Ok(Step::Disconnected(_)) | Err(_) => serves = false,
            }
        }
    }
}

/// Checks that nothing that the peer writes to rings and packets leads outside of its memory, loses a frame or makes a
/// packet longer than one. The input is a list of the peer's writes and of this side's calls in between.
pub fn memif_rings(data: &[u8]) {
    let Some((role, script)) = data.split_first() else { return };
    BENCH.with(|bench| rings(bench, role & 1 != 0, script));
}

fn rings(bench: &Bench, client: bool, script: &[u8]) {
    let link = bench.link(client);
    let mut bufs = Buffers::attach(&bench.pools, 0);
    let counters = PortCounters::default();
    let mut copying = Copying::default();
    let mut lending = Lending::new(&link);
    if client {
        lending.refill(&link, &mut bufs);
    }
    let mut rest = script.iter().copied();
    while let Some(token) = rest.next() {
        let mut byte = || rest.next().unwrap_or(0);
        let ring = if token & 0x80 == 0 { &link.rx } else { &link.tx };
        let base = if token & 0x80 == 0 { 0 } else { Ring::bytes(LOG2) as u32 };
        let fine = match token % 8 {
            0 | 1 => {
                // A descriptor: mostly of a packet in the region, in steps of a cache line.
                let slot = u32::from(byte() % 16);
                let (flags, region, high, low) = (byte(), byte(), byte(), byte());
                let length = u32::from(high) << 6 | u32::from(low);
                let offset = if flags & 2 == 0 { u32::from(byte()) << 6 } else { u32::MAX - u32::from(byte()) };
                let mut desc = [0; 16];
                desc[..2].copy_from_slice(&u16::from(flags & 1).to_le_bytes());
                desc[2..4].copy_from_slice(&u16::from(region % 3).to_le_bytes());
                let length = if flags & 4 == 0 { length } else { u32::MAX - length };
                desc[4..8].copy_from_slice(&length.to_le_bytes());
                desc[8..12].copy_from_slice(&offset.to_le_bytes());
                assert!(bench.peer.write(base + 128 + 16 * slot, &desc));
                true
            }
            2 => {
                ring.set_head(ring.head().wrapping_add(u16::from(byte() % 20)));
                true
            }
            3 => {
                ring.set_tail(ring.tail().wrapping_add(u16::from(byte() % 20)));
                true
            }
            4 => {
                // Anything, anywhere.
                let at = u32::from(byte()) << 6 | u32::from(byte());
                let bytes = [byte(), byte()];
                assert!(bench.peer.write(at.min(REGION as u32 - 2), &bytes));
                true
            }
            5 | 6 => {
                let mut out = Batch::new();
                let got = if client {
                    let got = lending.receive((&link, Lending::limit(&link)), &mut bufs, &mut out, &counters);
                    lending.refill(&link, &mut bufs);
                    got
                } else {
                    copying.receive((&link, Copying::limit(&link)), &mut bufs, &mut out, &counters)
                };
                let max = bufs.arena().max_data();
                assert!(out.as_slice().iter().all(|frame| (1..=max).contains(&frame.len())));
                assert!(got.is_err() || got.is_ok_and(|n| n == out.len()));
                bufs.free(&mut out);
                got.is_ok()
            }
            _ => {
                let mut frames = Batch::new();
                let wanted = usize::from(byte() % 8);
                let len = usize::from(byte()) * 6;
                bufs.alloc(&mut frames, wanted);
                let arena = bufs.arena().clone();
                frames.as_mut_slice().iter_mut().for_each(|frame| assert!(arena.resize(frame, len)));
                let offered = frames.len();
                let sent = if client {
                    let room = lending.reclaim(&link, &mut bufs);
                    room.map(|()| lending.send(&link, &mut frames, &counters))
                } else {
                    copying.send(&link, &mut bufs, &mut frames, &counters)
                };
                assert!(sent.as_ref().is_err() || sent.is_ok_and(|n| n + frames.len() == offered));
                bufs.free(&mut frames);
                sent.is_ok()
            }
        };
        if !fine {
            break;
        }
    }
    if client {
        lending.end(&mut bufs);
    }
    // All frames are back, each once.
    let mut all = Batch::new();
    assert_eq!(bufs.alloc(&mut all, FRAMES), FRAMES);
    let mut addrs: Vec<u64> = all.as_slice().iter().map(|frame| frame.addr()).collect();
    addrs.sort_unstable();
    addrs.dedup();
    assert_eq!(addrs.len(), FRAMES);
    bufs.free(&mut all);
}

#[cfg(test)]
mod tests {
    #[test]
    fn corpus_and_crashes() {
        super::replay::corpus_and_crashes(&[
            ("memif_messages", super::memif_messages),
            ("memif_rings", super::memif_rings),
        ]);
    }
}
