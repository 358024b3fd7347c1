//! Properties of capture files and of packet filters.

use super::interpreter::{CODES, Instruction, one_by_one, text};
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use bywash_port::pcap::{CaptureFile, Direction, Filter, Format, Matcher, PacketMeta, PcapSource};
use std::sync::Arc;

/// Most packets that a filter is run on.
const PACKETS: usize = 32;

thread_local! {
    static POOLS: Arc<PoolSet> = {
        let arena = Arena::new(ArenaConfig { cells: PACKETS, ..Default::default() }).expect("memory");
        PoolSet::new(arena, &[PoolConfig::stack("main", PACKETS)]).expect("a pool")
    };
}

/// Checks that the packets of a file are in it, and the same after they are written in either format and read again.
pub fn pcap(data: &[u8]) {
    let Ok(source) = PcapSource::read_from(data) else { return };
    let frames: Vec<Vec<u8>> = source.frames().collect();
    assert_eq!(frames.len(), source.len());
    assert!(source.cut() <= frames.len());
    assert!(frames.iter().map(Vec::len).sum::<usize>() <= data.len());
    let inside = |frame: &Vec<u8>| frame.is_empty() || data.windows(frame.len()).any(|window| window == frame);
    assert!(frames.iter().all(inside));
    for format in [Format::Pcap, Format::PcapNg] {
        let mut file = vec![];
        let mut out = CaptureFile::new(&mut file, format, &["p"], 0).expect("memory");
        for (frame, at) in frames.iter().zip(0..) {
            let direction = [None, Some(Direction::Rx), Some(Direction::Tx)][at as usize % 3];
            let meta = PacketMeta { time_ns: at, length: frame.len() as u32, direction, interface: 0 };
            match direction {
                Some(_) => out.write_commented(meta, frame, "fuzz"),
                None => out.write(meta, frame),
            }
            .expect("memory");
        }
        out.statistics(0, 7, frames.len() as u64, 0).and_then(|()| out.flush()).expect("memory");
        drop(out);
        let again = PcapSource::read_from(&file).unwrap_or_else(|why| panic!("{why}"));
        assert!(again.frames().eq(frames.iter().cloned()));
    }
}

/// Checks that a filter which is accepted passes the packets that a reference interpreter passes. Behind an even first
/// byte this is the text of a filter, a NUL, and packets; behind an odd one instructions that are all known, and
/// packets.
pub fn filter(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let (written, packets) = match first % 2 {
        0 => match rest.iter().position(|byte| *byte == 0) {
            Some(end) => (String::from_utf8_lossy(&rest[..end]).into_owned(), &rest[end + 1..]),
            None => return,
        },
        _ => described(rest),
    };
    let Ok(filter) = Filter::parse(&written) else { return };
    let program: Vec<Instruction> = written.lines().skip(1).map(instruction).collect();
    let packets = split(packets);
    POOLS.with(|pools| {
        let (mut bufs, mut batch) = (Buffers::attach(pools, 0), Batch::new());
        for packet in &packets {
            let mut frame = bufs.alloc_one().expect("a free frame");
            assert!(bufs.arena().write(&mut frame, packet));
            batch.push(frame).expect("room");
        }
        let passing = Matcher::new(Arc::new(filter)).passing(bufs.arena(), batch.as_slice());
        bufs.free(&mut batch);
        for (at, packet) in packets.iter().enumerate() {
            let wanted = one_by_one(&program, packet).unwrap_or(0) > 0;
            assert_eq!(passing >> at & 1 == 1, wanted, "packet {at} of {written}");
        }
        assert_eq!(passing.checked_shr(packets.len() as u32).unwrap_or(0), 0);
    });
}

/// Returns the text of a program, and what follows it: a number of instructions, then for each the index of its code,
/// the two jumps and the constant, of eight bytes.
fn described(data: &[u8]) -> (String, &[u8]) {
    let Some((count, rest)) = data.split_first() else { return (String::new(), data) };
    let (instructions, rest) = rest.split_at((usize::from(*count) * 8).min(rest.len() / 8 * 8));
    let mut program: Vec<Instruction> = instructions
        .as_chunks::<8>()
        .0
        .iter()
        .map(|&[code, _, jt, jf, k @ ..]| (CODES[usize::from(code) % CODES.len()], jt, jf, u32::from_be_bytes(k)))
        .collect();
    program.push((0x16, 0, 0, 0));
    (text(&program), rest)
}

fn instruction(line: &str) -> Instruction {
    let mut words = line.split_ascii_whitespace().map(|word| word.parse::<u32>().expect("a number"));
    let mut next = || words.next().expect("four numbers");
    (next() as u16, next() as u8, next() as u8, next())
}

/// Returns packets, each behind its length.
fn split(mut rest: &[u8]) -> Vec<&[u8]> {
    let mut packets = vec![];
    while let Some((len, behind)) = rest.split_first().filter(|_| packets.len() < PACKETS) {
        let (packet, behind) = behind.split_at(usize::from(*len).min(behind.len()));
        packets.push(packet);
        rest = behind;
    }
    packets
}
