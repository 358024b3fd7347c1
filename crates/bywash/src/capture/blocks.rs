//! Parser for the blocks of a pcapng stream from the instance, in this machine's byte order.

use anyhow::bail;

/// Largest accepted block, in bytes: a packet of one cell, and its options.
const LARGEST: usize = 1 << 20;

/// Parsed content of a block. [`Blocks::bytes`] has its bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Block {
    /// Interface, with its name.
    Interface(String),
    /// A packet.
    Packet {
        interface: usize,
        time_ns: u64,
        length: u32,
        /// Captured bytes of the packet.
        bytes: Vec<u8>,
        sent: bool,
        comment: Option<String>,
    },
    /// Statistics, with the number of packets lost so far.
    Statistics { lost: u64 },
    /// Any other block.
    Other,
}

/// Splits a byte stream into blocks.
#[derive(Default)]
pub struct Blocks {
    pending: Vec<u8>,
    /// Length of the block returned last, which is still at the front of `pending`.
    last: usize,
}

impl Blocks {
    /// Appends received bytes.
    pub fn take_in(&mut self, bytes: &[u8]) {
        self.pending.drain(..std::mem::take(&mut self.last));
        self.pending.extend(bytes);
    }

    /// Returns the next complete block; `None` if it has not been received completely. Errors if the bytes are not
    /// pcapng.
    pub fn next(&mut self) -> anyhow::Result<Option<Block>> {
        self.pending.drain(..std::mem::take(&mut self.last));
        let Some(length) = word(&self.pending, 4) else { return Ok(None) };
        let length = length as usize;
        if !(12..=LARGEST).contains(&length) || !length.is_multiple_of(4) {
            bail!("invalid pcapng from bywash: a block of {length} bytes");
        }
        if self.pending.len() < length {
            return Ok(None);
        }
        self.last = length;
        Ok(Some(parse(self.bytes())))
    }

    /// Returns the bytes of the block returned last.
    pub fn bytes(&self) -> &[u8] {
        &self.pending[..self.last]
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

fn long(bytes: &[u8]) -> Option<u64> {
    bytes.get(..8)?.try_into().ok().map(u64::from_ne_bytes)
}

fn parse(block: &[u8]) -> Block {
    let inner = &block[..block.len() - 4];
    let known = match word(inner, 0) {
        Some(1) => option(inner, 16, 2).map(|name| Block::Interface(String::from_utf8_lossy(name).into())),
        Some(5) => option(inner, 20, 5).and_then(long).map(|lost| Block::Statistics { lost }),
        Some(6) => packet(inner),
        _ => None,
    };
    known.unwrap_or(Block::Other)
}

fn packet(inner: &[u8]) -> Option<Block> {
    let at = |n: usize| word(inner, 8 + 4 * n);
    let (kept, length) = (at(3)? as usize, at(4)?);
    let options = 28 + kept.next_multiple_of(4);
    let flags = option(inner, options, 2).and_then(|flags| word(flags, 0)).unwrap_or(0);
    Some(Block::Packet {
        interface: at(0)? as usize,
        time_ns: u64::from(at(1)?) << 32 | u64::from(at(2)?),
        length,
        bytes: inner.get(28..28 + kept)?.to_vec(),
        sent: flags & 3 == 2,
        comment: option(inner, options, 1).map(|text| String::from_utf8_lossy(text).into()),
    })
}

/// Returns the value of the first option with this code, among the options that start at `at`.
fn option(inner: &[u8], mut at: usize, code: u16) -> Option<&[u8]> {
    loop {
        let head = word(inner, at)?.to_ne_bytes();
        let (this, length) = (u16::from_ne_bytes([head[0], head[1]]), u16::from_ne_bytes([head[2], head[3]]));
        if this == 0 {
            return None;
        }
        if this == code {
            return inner.get(at + 4..at + 4 + usize::from(length));
        }
        at += 4 + usize::from(length).next_multiple_of(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_port::pcap::{CaptureFile, Direction, Format, PacketMeta};

    #[test]
    fn what_is_written_is_read() {
        let mut file = Vec::new();
        let mut writer = CaptureFile::new(&mut file, Format::PcapNg, &["r0", "r1"], 100).unwrap();
        let meta = |direction| PacketMeta { time_ns: (7 << 32) + 5, length: 99, direction, interface: 1 };
        writer.write(meta(Some(Direction::Tx)), b"12345").unwrap();
        writer.write_commented(meta(Some(Direction::Rx)), b"1234", "dropped: runt").unwrap();
        writer.write_commented(meta(None), b"", "x").unwrap();
        writer.statistics(0, 5, 3, 2).unwrap();
        writer.flush().unwrap();
        drop(writer);
        // Whatever the size of the pieces, the blocks are the same and no byte is lost between them.
        for size in [1, 7, 64, 1000] {
            let (mut blocks, mut told, mut copied) = (Blocks::default(), vec![], Vec::<u8>::new());
            for piece in file.chunks(size) {
                blocks.take_in(piece);
                while let Some(block) = blocks.next().unwrap() {
                    told.push(block);
                    copied.extend(blocks.bytes());
                }
            }
            assert_eq!(copied, file);
            let packet = |bytes: &[u8], sent, comment: Option<&str>| Block::Packet {
                interface: 1,
                time_ns: (7 << 32) + 5,
                length: 99,
                bytes: bytes.to_vec(),
                sent,
                comment: comment.map(Into::into),
            };
            let want = [
                Block::Other,
                Block::Interface("r0".into()),
                Block::Interface("r1".into()),
                packet(b"12345", true, None),
                packet(b"1234", false, Some("dropped: runt")),
                packet(b"", false, Some("x")),
                Block::Statistics { lost: 2 },
            ];
            assert_eq!(told, want);
        }
    }

    #[test]
    fn what_is_no_pcapng() {
        for bytes in [[0xff; 16].as_slice(), &[0; 16], b"HTTP/1.1 200 OK\r\n\r\n"] {
            let mut blocks = Blocks::default();
            blocks.take_in(bytes);
            assert!(blocks.next().is_err(), "{bytes:?}");
        }
    }
}
