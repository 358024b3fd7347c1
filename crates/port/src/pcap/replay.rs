//! Replay of packets laid out in memory, copied into buffers as fast as they are requested.

use crate::broker;
use bywash_frame::{Arena, BATCH, Batch, Buffers, Frame, Line};
use bywash_sync::{Counter, clock};
use pcap_parser::{Block, Linktype, PcapBlockOwned, create_reader};
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LINE: usize = size_of::<Line>();
/// Maximum size of a record in bytes: the largest snapshot length tcpdump writes.
const RECORD_MAX: usize = 1 << 18;
/// Size of the buffer in bytes beyond that of a short file.
const LEAST: usize = 4096;
/// Maximum time in microseconds for which a paced source catches up after a delay: the depth of the ring that it stands
/// for. What a longer delay costs is counted ([`Arrears`]).
const CATCH_UP_US: u64 = 10_000;
/// Bytes that a frame occupies on the wire besides its own: FCS, preamble, start delimiter and the gap between frames
/// (IEEE 802.3); and the length to which shorter frames are padded.
const OVERHEAD: u32 = 24;
const SHORTEST: u32 = 60;

/// Error of loading packets for replay.
#[derive(Debug, thiserror::Error)]
pub enum PcapError {
    /// File that cannot be opened or read.
    #[error("cannot read `{path}`: {source}")]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error returned by the kernel.
        source: std::io::Error,
    },
    /// File that is not a capture file or is damaged.
    #[error("`{path}` is not a usable pcap or pcapng file: {what} (after {packets} packets)")]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        what: String,
        /// Number of packets read before the error.
        packets: usize,
    },
    /// File whose packets are not Ethernet frames.
    #[error("`{path}` has link type {link}: only Ethernet (1) can be replayed")]
    LinkType {
        /// Path of the file.
        path: PathBuf,
        /// LINKTYPE_ value found.
        link: i32,
    },
    /// File without packets.
    #[error("`{0}` contains no packets")]
    Empty(PathBuf),
    /// Not enough memory, after this many packets.
    #[error("not enough memory to replay {0} packets")]
    Memory(usize),
}

/// Rate at which a source delivers packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// Full speed: as fast as packets are requested.
    #[default]
    Full,
    /// At this average rate in packets per second.
    PacketsPerSecond(u64),
    /// At this average rate in bits per second on the wire, see [`wire_bits`].
    BitsPerSecond(u64),
}

/// Returns the bits that a frame of `len` bytes, without FCS, occupies on the wire of an Ethernet.
pub fn wire_bits(len: u32) -> u64 {
    8 * u64::from(len.max(SHORTEST) + OVERHEAD)
}

/// Packets laid out one after another in one block of memory, each at the start of a cache line, so that replaying them
/// in order is a sequential read.
///
/// # Thread-safety
/// Used by one worker. Clone it to replay the same packets elsewhere.
#[derive(Clone)]
pub struct PcapSource {
    lines: Vec<Line>,
    /// Index of each packet's first line. Every packet has at least one line.
    first: Vec<u32>,
    /// Each packet's length in bytes.
    lens: Vec<u32>,
    /// Prefix sums of the packet lengths in bytes; the last one is the total.
    sums: Vec<u64>,
    next: usize,
    repeat: bool,
    /// Only the first line of each packet is written, if true.
    heads: bool,
    pace: Option<Pacer>,
    /// Size of the lines of the longest packet in bytes.
    longest: usize,
    oversize: usize,
    /// Number of packets that the capture truncated.
    cut: usize,
}

/// Packets that a paced source did not deliver because it was asked too late, or got no buffers, for longer than it
/// catches up: those that a device would have lost. Written by the source's worker, readable from any thread.
#[derive(Debug, Default)]
pub struct Arrears {
    /// Number of these packets, or of bits on the wire if the pace is in bits.
    pub missed: Counter,
    /// Time in TSC ticks at which the source was last asked; `missed` is complete up to then.
    pub asked: Counter,
}

/// Budget of a paced source, in packets or in bits on the wire.
#[derive(Clone)]
struct Pacer {
    /// Packets or bits per second.
    rate: u64,
    /// Cost of a packet by its length.
    cost: fn(u32) -> u64,
    /// Highest cost of a packet.
    highest: u64,
    /// Time of the last call in TSC ticks. `None` before the first call, so that time before it earns no credit.
    last: Option<u64>,
    /// Credit, in packets or bits, times TSC ticks per second.
    credit: u128,
    /// Credit that expired, in the same unit.
    expired: u128,
    arrears: Arc<Arrears>,
    hz: u64,
}

impl Pacer {
    fn new(rate: u64, cost: fn(u32) -> u64, longest: u32) -> Self {
        let (highest, hz) = (cost(longest), clock::tsc_hz());
        Self { rate, cost, highest, last: None, credit: 0, expired: 0, arrears: Arc::default(), hz }
    }

    /// Returns how many of the packets with the lengths `lens` may be sent now.
    fn due<'a>(&mut self, now: u64, lens: impl Iterator<Item = &'a u32>) -> usize {
        let since = self.last.replace(now).unwrap_or(now);
        let earned = u128::from(now.saturating_sub(since)) * u128::from(self.rate);
        let batch = u128::from(self.highest) * BATCH as u128;
        let most = u128::from(self.hz) * (batch + u128::from(self.rate) * u128::from(CATCH_UP_US) / 1_000_000);
        self.credit += earned;
        if self.credit > most {
            self.expired += self.credit - most;
            self.credit = most;
            self.arrears.missed.set((self.expired / u128::from(self.hz)) as u64);
        }
        self.arrears.asked.set(now);
        let mut left = (self.credit / u128::from(self.hz)) as u64;
        let affordable = |len: &u32| left.checked_sub((self.cost)(*len)).inspect(|rest| left = *rest);
        lens.map_while(affordable).count()
    }

    fn spend(&mut self, lens: &[u32]) {
        let cost: u64 = lens.iter().map(|len| (self.cost)(*len)).sum();
        self.credit -= u128::from(self.hz) * u128::from(cost);
    }
}

impl PcapSource {
    /// Reads a pcap or pcapng file of Ethernet frames into memory.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, PcapError> {
        let path = path.as_ref();
        let io = |source| PcapError::Io { path: path.into(), source };
        let file = broker::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.is_dir() {
            return Err(io(std::io::ErrorKind::IsADirectory.into()));
        }
        let mut source = Self::empty();
        // A pipe or device has no length in advance.
        let len = file.metadata().ok().filter(std::fs::Metadata::is_file).map_or(usize::MAX, |it| it.len() as usize);
        source.read(file, len, path)?;
        if source.is_empty() { Err(PcapError::Empty(path.into())) } else { Ok(source) }
    }

    /// Reads the contents of a pcap or pcapng file of Ethernet frames, which may be without packets.
    pub fn read_from(contents: &[u8]) -> Result<Self, PcapError> {
        let mut source = Self::empty();
        source.read(contents, contents.len(), Path::new("-"))?;
        Ok(source)
    }

    /// Creates a source from the caller's packets. Without packets, the source has ended from the start.
    pub fn from_frames<T: AsRef<[u8]>>(frames: impl IntoIterator<Item = T>) -> Result<Self, PcapError> {
        let mut source = Self::empty();
        frames.into_iter().try_for_each(|f| source.append(f.as_ref()))?;
        Ok(source)
    }

    /// Returns the source with endless repetition.
    pub fn repeated(self) -> Self {
        Self { repeat: true, ..self }
    }

    /// Returns the source limited to writing the first 64 bytes of each packet, its headers; the payload is what the
    /// buffer held before. Models a device that writes payloads by DMA without using CPU time.
    pub fn heads_only(self) -> Self {
        Self { heads: true, ..self }
    }

    /// Returns the source with this pace.
    pub fn paced(self, pace: Pace) -> Self {
        let longest = self.lens.iter().copied().max().unwrap_or(0);
        let pace = match pace {
            Pace::Full => None,
            Pace::PacketsPerSecond(rate) => Some(Pacer::new(rate, |_| 1, longest)),
            Pace::BitsPerSecond(rate) => Some(Pacer::new(rate, wire_bits, longest)),
        };
        Self { pace, ..self }
    }

    /// Returns the count of packets that were not delivered at this pace; `None` at full speed. Clones of a paced
    /// source share it.
    pub fn arrears(&self) -> Option<Arc<Arrears>> {
        self.pace.as_ref().map(|pace| pace.arrears.clone())
    }

    /// Returns the number of packets.
    pub fn len(&self) -> usize {
        self.lens.len()
    }

    /// Returns whether the source has no packets.
    pub fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    /// Returns the number of packets left out because they do not fit a cell. They are found when the first packet is
    /// requested.
    pub fn oversize(&self) -> usize {
        self.oversize
    }

    /// Returns the number of packets that the capture truncated. They are replayed at their captured length.
    pub fn cut(&self) -> usize {
        self.cut
    }

    /// Returns the bytes of the packets, in order.
    pub fn frames(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        self.first.iter().zip(&self.lens).map(|(first, len)| {
            let lines = &self.lines[*first as usize..][..lines_of(*len)];
            let mut bytes: Vec<u8> = lines.iter().flat_map(|l| l.0).collect();
            bytes.truncate(*len as usize);
            bytes
        })
    }

    /// Returns whether all packets were delivered and no more will follow.
    pub fn ended(&self) -> bool {
        self.next == self.len() && !(self.repeat && self.next > 0)
    }

    /// Appends packets to `out`, up to its room; returns their number and their bytes.
    #[inline]
    pub fn fill(&mut self, bufs: &mut Buffers, out: &mut Batch) -> (usize, u64) {
        let max = bufs.arena().max_data();
        if self.longest > max {
            self.leave_out_oversize(max);
        }
        if self.is_empty() {
            return (0, 0);
        }
        let mut want = out.room();
        if !self.repeat {
            want = want.min(self.len() - self.next);
        }
        if let Some(pace) = &mut self.pace {
            let next = self.lens[self.next..].iter().chain(self.lens.iter().cycle());
            want = pace.due(clock::tsc(), next.take(want));
        }
        if want == 0 {
            return (0, 0);
        }
        let before = out.len();
        let mut bytes = 0;
        // In a packed arena, cells are allocated by length, run by run.
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
            if let Some(pace) = &mut self.pace {
                pace.spend(&self.lens[run.clone()]);
            }
            fresh += run.len();
            self.next = run.end;
        }
        (fresh - before, bytes)
    }

    /// Copies a run of packets into as many fresh frames; returns the number of bytes.
    #[inline]
    fn copy(&self, arena: &Arena, run: Range<usize>, frames: &mut [Frame]) -> u64 {
        let Range { start, end } = run;
        let lens = &self.lens[run.clone()];
        if self.lines.len() == self.len() {
            // Every packet fits one line, as in most tests of packet rates.
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

    /// Reads a file of `len` bytes, or more if it grows meanwhile.
    fn read(&mut self, file: impl Read + Send, len: usize, path: &Path) -> Result<(), PcapError> {
        let damaged = |what: String, packets| PcapError::Format { path: path.into(), what, packets };
        // A block fits the buffer; making a large one takes longer than reading a short file.
        let room = len.saturating_add(LEAST).min(4 * RECORD_MAX);
        let mut reader = create_reader(room, Full(file)).map_err(|e| damaged(describe(&e), 0))?;
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
                    // A block that is still incomplete after refilling is truncated or claims an impossible size.
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

/// Reader that fills the buffer unless its file ends: a pipe gives less at a time, which is not the end of a record.
struct Full<R>(R);

impl<R: Read> Read for Full<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.0.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }
}

/// Returns the packet in a block, its original length and its link type, which is `None` if its interface is unknown.
/// Blocks without a packet update the link types of the interfaces.
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
        pcap_parser::PcapError::ReadError => "read error".into(),
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
        let lens: Vec<u32> = (0..BATCH as u32).map(|n| 40 + n * 23).collect();
        let per_packet: (fn(u32) -> u64, _) = (|_| 1, [1, 999, 1_000_000, 14_880_952]);
        let per_bit: (fn(u32) -> u64, _) = (wire_bits, [1_000, 1_000_000, 1_000_000_000, 100_000_000_000]);
        for (cost, rates) in [per_packet, per_bit] {
            let highest = cost(lens[BATCH - 1]);
            let units = |n: usize| lens[..n].iter().map(|len| cost(*len)).sum::<u64>();
            for rate in rates {
                let mut pacer = Pacer { hz, highest, ..Pacer::new(rate, cost, lens[BATCH - 1]) };
                assert_eq!(pacer.due(start, lens.iter()), 0, "nothing is earned before the first call");
                let (mut sent, mut now) = (0, start);
                for i in 0..200_000u64 {
                    // A batch of these lengths at 100 Gbit/s takes 4 µs, 10,000 ticks.
                    now += 500 + i * 7919 % 15_000;
                    let n = pacer.due(now, lens.iter());
                    pacer.spend(&lens[..n]);
                    sent += units(n);
                }
                let want = (u128::from(now - start) * u128::from(rate) / u128::from(hz)) as u64;
                let slack = 2 * BATCH as u64 * highest;
                assert!(sent <= want && sent + slack >= want, "{sent} of {want} at {rate}");
                let late = pacer.due(now + 100 * hz, lens.iter().cycle().take(10_000_000));
                let most = rate / 50 + BATCH as u64 * highest;
                assert!(units(BATCH) * (late / BATCH) as u64 <= most, "{late} at once at {rate}");
            }
        }
    }

    /// Whatever the delays, each packet of the rate is sent, still to be sent, or counted as missed.
    #[test]
    fn a_pacer_loses_no_packet_uncounted() {
        let (hz, rate, start) = (2_500_000_000, 411_523, 1_000);
        let lens = [1520; BATCH];
        let mut pacer = Pacer { hz, ..Pacer::new(rate, |_| 1, 1520) };
        let arrears = pacer.arrears.clone();
        pacer.due(start, lens.iter());
        let (mut sent, mut now) = (0, start);
        let mut stalled = 0;
        for i in 0..5_000u64 {
            // A batch takes 0.16 ms at this rate. Some delays are within the 10 ms of the ring, others are not.
            let delay_us = if i % 500 == 499 { 1_000 * (i / 500 + 6) } else { 100 };
            stalled += delay_us.saturating_sub(CATCH_UP_US);
            now += delay_us * 2_500;
            let n = pacer.due(now, lens.iter());
            pacer.spend(&lens[..n]);
            sent += n as u64;
            let line = u128::from(now - start) * u128::from(rate);
            let accounted = u128::from(sent) * u128::from(hz) + pacer.credit + pacer.expired;
            assert_eq!(accounted, line, "after {i} turns");
            assert_eq!((arrears.asked.get(), arrears.missed.get()), (now, (pacer.expired / u128::from(hz)) as u64));
        }
        // A batch more than the ring holds is caught up.
        let (missed, most) = (arrears.missed.get(), stalled * rate / 1_000_000);
        assert!(missed > 0 && missed <= most, "{missed} of {most} missed");
        // A source that gets no buffers is late as well.
        let before = missed;
        for _ in 0..300 {
            now += 100 * 2_500;
            pacer.due(now, lens.iter());
        }
        assert!(arrears.missed.get() > before + rate / 100, "20 ms more than the ring holds");
    }

    /// 10 Gbit/s are 14.88 million frames of 64 bytes with FCS per second, or 812,743 of 1,518 bytes (RFC 2544).
    #[test]
    fn a_frame_takes_its_overhead_on_the_wire() {
        assert_eq!([14, 60, 1514].map(|len| 10_000_000_000 / wire_bits(len)), [14_880_952, 14_880_952, 812_743]);
    }
}
