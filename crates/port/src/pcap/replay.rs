//! Replay: packets laid out in memory, copied into buffers as fast as they are asked for.

use bywash_frame::{Arena, BATCH, Batch, Buffers, Frame, Line};
use bywash_sync::clock;
use pcap_parser::{Block, Linktype, PcapBlockOwned, create_reader};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};

const LINE: usize = size_of::<Line>();
/// Largest record a file may have: the largest snapshot length tcpdump writes.
const RECORD_MAX: usize = 1 << 18;
/// A paced source that was not asked in time makes up for at most this much.
const CATCH_UP_US: u64 = 10_000;

/// Why a file cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// It cannot be opened or read.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// It is not a capture file, or is damaged.
    #[error("`{path}` is no usable pcap or pcapng file: {what} (after {packets} packets)")]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// Packets read before.
        packets: usize,
    },
    /// Its packets are not Ethernet frames.
    #[error("`{path}` holds link type {link}, and only Ethernet (1) can be replayed")]
    LinkType {
        /// The file.
        path: PathBuf,
        /// LINKTYPE value found.
        link: i32,
    },
    /// It has no packets.
    #[error("`{0}` holds no packets")]
    Empty(PathBuf),
    /// It does not fit into memory.
    #[error("not enough memory to replay {0} packets")]
    Memory(usize),
}

/// How fast a source delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// As fast as it is asked.
    #[default]
    Full,
    /// At this rate in packets per second, on average.
    PacketsPerSecond(u64),
}

/// Packets in one block of memory, each at the start of a cache line, one behind the other, so that replaying them
/// in order is a sequential read.
///
/// # Thread-safety
/// Belongs to one worker. Clone it to replay the same packets elsewhere.
#[derive(Clone)]
pub struct PcapSource {
    lines: Vec<Line>,
    /// Each packet's first line; it has at least one.
    first: Vec<u32>,
    /// Each packet's length in bytes.
    lens: Vec<u32>,
    /// Bytes of all packets before each, and of all.
    sums: Vec<u64>,
    next: usize,
    repeat: bool,
    /// Of each packet only the first line is written.
    heads: bool,
    pace: Option<Pacer>,
    /// Bytes of the lines of the longest packet.
    longest: usize,
    oversize: usize,
    /// Packets the capture holds only the beginning of.
    cut: usize,
}

#[derive(Clone, Copy)]
struct Pacer {
    rate: u64,
    /// When it was asked last; none: never, so that the time before the first packet is asked for earns nothing.
    last: Option<u64>,
    /// Credit, in packets times ticks a second.
    credit: u128,
    hz: u64,
}

impl Pacer {
    fn new(rate: u64) -> Self {
        Self { rate, last: None, credit: 0, hz: clock::tsc_hz() }
    }

    /// Packets that may go now.
    fn due(&mut self, now: u64) -> usize {
        let since = self.last.replace(now).unwrap_or(now);
        let ticks = now.wrapping_sub(since).min(clock::us_to_ticks(CATCH_UP_US));
        let most = u128::from(self.hz) * (BATCH as u128 + u128::from(self.rate) * u128::from(CATCH_UP_US) / 1_000_000);
        self.credit = (self.credit + u128::from(ticks) * u128::from(self.rate)).min(most);
        (self.credit / u128::from(self.hz)) as usize
    }

    fn spend(&mut self, n: usize) {
        self.credit -= u128::from(self.hz) * n as u128;
    }
}

impl PcapSource {
    /// Reads a pcap or pcapng file of Ethernet frames into memory.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PcapError> {
        let path = path.as_ref();
        let io = |source| PcapError::Io { path: path.into(), source };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.is_dir() {
            return Err(io(std::io::ErrorKind::IsADirectory.into()));
        }
        let mut source = Self::empty();
        source.read(file, path)?;
        if source.is_empty() { Err(PcapError::Empty(path.into())) } else { Ok(source) }
    }

    /// Takes the packets from the caller. Without any, the source has ended from the start.
    pub fn from_frames<T: AsRef<[u8]>>(frames: impl IntoIterator<Item = T>) -> Result<Self, PcapError> {
        let mut source = Self::empty();
        frames.into_iter().try_for_each(|f| source.append(f.as_ref()))?;
        Ok(source)
    }

    /// Starts again at the end, for ever.
    pub fn repeated(self) -> Self {
        Self { repeat: true, ..self }
    }

    /// Writes the first 64 bytes of each packet, its headers, and leaves as payload what the buffer held: a device
    /// writes payloads without taking the processor's time, and a copy that stands for it does not.
    pub fn heads_only(self) -> Self {
        Self { heads: true, ..self }
    }

    /// Delivers at this pace.
    pub fn paced(self, pace: Pace) -> Self {
        let pace = match pace {
            Pace::Full => None,
            Pace::PacketsPerSecond(rate) => Some(Pacer::new(rate)),
        };
        Self { pace, ..self }
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.lens.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// Packets that do not fit a cell, found and left out when the first is asked for.
    pub fn oversize(&self) -> usize {
        self.oversize
    }

    /// Packets that the capture holds only the beginning of: replayed as short as they are.
    pub fn cut(&self) -> usize {
        self.cut
    }

    /// The packets' bytes, in order.
    pub fn frames(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.first.iter().zip(&self.lens).map(|(first, len)| {
            let lines = &self.lines[*first as usize..][..lines_of(*len)];
            let mut bytes: Vec<u8> = lines.iter().flat_map(|l| l.0).collect();
            bytes.truncate(*len as usize);
            bytes
        })
    }

    /// Whether everything was delivered, and no more will come.
    pub fn ended(&self) -> bool {
        self.next == self.len() && !(self.repeat && self.next > 0)
    }

    /// Appends packets to `out`, up to its room; returns how many, and their bytes.
    #[inline]
    pub fn fill(&mut self, bufs: &mut Buffers, out: &mut Batch) -> (usize, u64) {
        let max = bufs.arena().max_data();
        if self.longest > max {
            self.leave_out_oversize(max);
        }
        let mut want = out.room();
        if let Some(pace) = &mut self.pace {
            want = want.min(pace.due(clock::tsc()));
        }
        if !self.repeat {
            want = want.min(self.len() - self.next);
        }
        if want == 0 || self.is_empty() {
            return (0, 0);
        }
        let before = out.len();
        let mut bytes = 0;
        // Where room is given by length, it is asked for run by run.
        let packed = bufs.packed();
        let n = if packed { want } else { bufs.alloc(out, want) };
        let mut fresh = before;
        while fresh < before + n {
            if self.next == self.len() {
                self.next = 0;
            }
            let mut run = self.next..self.len().min(self.next + before + n - fresh);
            if packed {
                run.end = run.start + bufs.alloc_for(out, &self.lens[run.clone()]);
                if run.is_empty() {
                    break;
                }
            }
            let frames = &mut out.as_mut_slice()[fresh..][..run.len()];
            bytes += self.copy(bufs.arena(), run.clone(), frames);
            fresh += run.len();
            self.next = run.end;
        }
        let n = fresh - before;
        if let Some(pace) = &mut self.pace {
            pace.spend(n);
        }
        (n, bytes)
    }

    /// Copies a run of packets into as many fresh frames; returns the bytes.
    #[inline]
    fn copy(&self, arena: &Arena, run: Range<usize>, frames: &mut [Frame]) -> u64 {
        let Range { start, end } = run;
        let lens = &self.lens[run.clone()];
        if self.lines.len() == self.len() {
            // Each packet is one line, as most are in a test of packet rates.
            arena.write_line_each(frames, &self.lines[run], lens);
        } else {
            for ((frame, first), len) in frames.iter_mut().zip(&self.first[run]).zip(lens) {
                let len = *len as usize;
                let written = if self.heads { len.min(LINE) } else { len };
                let lines = &self.lines[*first as usize..][..lines_of(written as u32)];
                let fits = arena.write_lines(frame, lines, written) && (written == len || arena.resize(frame, len));
                debug_assert!(fits);
            }
        }
        self.sums[end] - self.sums[start]
    }

    #[cold]
    fn leave_out_oversize(&mut self, max: usize) {
        let before = self.len();
        let fits = |len: &u32| lines_of(*len) * LINE <= max;
        let mut lens = self.lens.iter();
        self.first.retain(|_| lens.next().is_some_and(fits));
        self.lens.retain(fits);
        self.sums = sums_of(&self.lens);
        self.oversize += before - self.len();
        self.longest = max;
        self.next = 0;
    }

    fn empty() -> Self {
        Self {
            lines: Vec::new(),
            first: Vec::new(),
            lens: Vec::new(),
            sums: vec![0],
            next: 0,
            repeat: false,
            heads: false,
            pace: None,
            longest: 0,
            oversize: 0,
            cut: 0,
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), PcapError> {
        let packets = self.len();
        let full = |_| PcapError::Memory(packets);
        let at = u32::try_from(self.lines.len()).map_err(|_| PcapError::Memory(packets))?;
        let n = lines_of(bytes.len() as u32);
        self.lines.try_reserve(n).map_err(full)?;
        self.first.try_reserve(1).map_err(full)?;
        self.lens.try_reserve(1).map_err(full)?;
        self.sums.try_reserve(1).map_err(full)?;
        self.first.push(at);
        self.lens.push(bytes.len() as u32);
        self.sums.push(self.sums[packets] + bytes.len() as u64);
        self.longest = self.longest.max(n * LINE);
        self.lines.extend(std::iter::repeat_n(Line([0; LINE]), n));
        for (line, chunk) in self.lines[at as usize..].iter_mut().zip(bytes.chunks(LINE)) {
            line.0[..chunk.len()].copy_from_slice(chunk);
        }
        Ok(())
    }

    fn read(&mut self, file: impl Read + Send, path: &Path) -> Result<(), PcapError> {
        let damaged = |what: String, packets| PcapError::Format { path: path.into(), what, packets };
        let mut reader = create_reader(4 * RECORD_MAX, file).map_err(|e| damaged(describe(&e), 0))?;
        let mut links = Vec::new();
        let mut starved = 0;
        loop {
            let consumed = match reader.next() {
                Ok((consumed, block)) => {
                    if let Some((bytes, original, link)) = packet(&block, &mut links) {
                        let Some(link) = link else {
                            return Err(damaged("a packet of an undeclared interface".into(), self.len()));
                        };
                        if link != Linktype::ETHERNET {
                            return Err(PcapError::LinkType { path: path.into(), link: link.0 });
                        }
                        self.append(bytes)?;
                        self.cut += usize::from(original as usize > bytes.len());
                    }
                    consumed
                }
                Err(pcap_parser::PcapError::Eof) => return Ok(()),
                Err(e) => {
                    let hungry = matches!(e, pcap_parser::PcapError::Incomplete(_));
                    let what = describe(&e);
                    // A block that stays incomplete after reading on is cut off, or claims a size that none has.
                    if !hungry || starved == 2 || reader.reader_exhausted() {
                        return Err(damaged(what, self.len()));
                    }
                    starved += 1;
                    reader.refill().map_err(|e| damaged(describe(&e), self.len()))?;
                    continue;
                }
            };
            starved = 0;
            reader.consume(consumed);
        }
    }
}

/// The packet in a block, its original length and its link type, which is none when its interface is not known.
/// Blocks without a packet tell which interfaces there are.
fn packet<'a>(block: &'a PcapBlockOwned<'a>, links: &mut Vec<Linktype>) -> Option<(&'a [u8], u32, Option<Linktype>)> {
    let clip = |data: &'a [u8], len: u32| &data[..data.len().min(len as usize)];
    match block {
        PcapBlockOwned::LegacyHeader(h) => *links = vec![h.network],
        PcapBlockOwned::Legacy(b) => return Some((clip(b.data, b.caplen), b.origlen, links.first().copied())),
        PcapBlockOwned::NG(Block::SectionHeader(_)) => links.clear(),
        PcapBlockOwned::NG(Block::InterfaceDescription(i)) => links.push(i.linktype),
        PcapBlockOwned::NG(Block::EnhancedPacket(b)) => {
            return Some((clip(b.data, b.caplen), b.origlen, links.get(b.if_id as usize).copied()));
        }
        PcapBlockOwned::NG(Block::SimplePacket(b)) => {
            return Some((clip(b.data, b.origlen), b.origlen, links.first().copied()));
        }
        PcapBlockOwned::NG(_) => {}
    }
    None
}

fn describe<I: std::fmt::Debug>(e: &pcap_parser::PcapError<I>) -> String {
    match e {
        pcap_parser::PcapError::HeaderNotRecognized => "no pcap or pcapng header".into(),
        pcap_parser::PcapError::Eof => "the file is empty".into(),
        pcap_parser::PcapError::Incomplete(_) | pcap_parser::PcapError::UnexpectedEof => "a record is cut off".into(),
        pcap_parser::PcapError::BufferTooSmall => format!("a record is larger than {RECORD_MAX} bytes"),
        pcap_parser::PcapError::ReadError => "the file cannot be read on".into(),
        _ => "a record is malformed".into(),
    }
}

fn sums_of(lens: &[u32]) -> Vec<u64> {
    let mut sum = 0;
    let sums = lens.iter().map(|len| {
        sum += u64::from(*len);
        sum
    });
    std::iter::once(0).chain(sums).collect()
}

fn lines_of(len: u32) -> usize {
    (len as usize).div_ceil(LINE).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pacer_keeps_its_rate_on_average_and_catches_up_within_limits() {
        let (hz, start) = (2_500_000_000, 77);
        for rate in [1, 999, 1_000_000, 14_880_952] {
            let mut pacer = Pacer { rate, last: None, credit: 0, hz };
            assert_eq!(pacer.due(start), 0, "nothing is earned before the first call");
            let (mut sent, mut now) = (0u64, start);
            for i in 0..200_000u64 {
                now += 500 + i * 7919 % 20_000;
                let n = pacer.due(now).min(BATCH);
                pacer.spend(n);
                sent += n as u64;
            }
            let want = (u128::from(now - start) * u128::from(rate) / u128::from(hz)) as u64;
            assert!(sent <= want && sent + 2 * BATCH as u64 >= want, "{sent} of {want} at {rate}");
            let late = pacer.due(now + 100 * hz);
            assert!(late as u64 <= BATCH as u64 + rate / 50, "{late} at once at {rate}");
        }
    }
}
