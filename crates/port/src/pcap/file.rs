//! Writing capture files: pcap with nanoseconds (magic `a1b23c4d`), and pcapng (draft-ietf-opsawg-pcapng).

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{BufWriter, Result, Write};
use std::path::Path;

/// Link type of a capture file's packets (LINKTYPE_ values of tcpdump.org).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
#[repr(u16)]
pub enum LinkType {
    /// Ethernet frames.
    #[default]
    Ethernet = 1,
    /// DOCSIS MAC frames.
    Docsis = 143,
}

/// Size of the write buffer in bytes.
const BUFFER: usize = 256 << 10;

/// Format of a capture file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Classic pcap with timestamps in nanoseconds. One interface, no directions.
    Pcap,
    /// pcapng, with interface names and each packet's direction.
    #[default]
    PcapNg,
}

impl Format {
    /// Returns the format for a file name: classic for `.pcap` and `.cap`, pcapng for all others.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|e| e.to_str()) {
            Some("pcap" | "cap") => Self::Pcap,
            _ => Self::PcapNg,
        }
    }
}

/// Direction of a packet, seen from the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received by the port.
    Rx,
    /// Sent by the port.
    Tx,
}

/// Metadata of a captured packet.
#[derive(Clone, Copy, Debug)]
pub struct PacketMeta {
    /// Timestamp in nanoseconds since 1970-01-01 UTC.
    pub time_ns: u64,
    /// Length on the wire, without FCS, in bytes.
    pub length: u32,
    /// Direction, if known.
    pub direction: Option<Direction>,
    /// Index of the interface, in the order given to [`CaptureFile::new`].
    pub interface: u32,
}

/// Writer of a capture file. All errors are those of the underlying writer, for example a full disk; after an error the
/// file may end in the middle of a packet.
pub struct CaptureFile<W: Write> {
    out: BufWriter<W>,
    format: Format,
    link: LinkType,
}

impl CaptureFile<File> {
    /// Creates or replaces a file in the format of its name ([`Format::of`]) and writes the file header.
    pub fn create(path: impl AsRef<Path>, interfaces: &[&str], snaplen: u32) -> Result<Self> {
        Self::create_linked(path, LinkType::Ethernet, interfaces, snaplen)
    }

    /// Creates or replaces a file like [`CaptureFile::create`], for packets of any link type.
    pub fn create_linked(path: impl AsRef<Path>, link: LinkType, interfaces: &[&str], snaplen: u32) -> Result<Self> {
        let path = path.as_ref();
        Self::linked(File::create(path)?, Format::of(path), link, interfaces, snaplen)
    }

    /// Creates or replaces a file of these frames, received at time 0.
    pub fn of_frames(path: impl AsRef<Path>, frames: &[Vec<u8>]) -> Result<()> {
        let mut file = Self::create(path, &[], 0)?;
        for frame in frames {
            file.write(PacketMeta { time_ns: 0, length: frame.len() as u32, direction: None, interface: 0 }, frame)?;
        }
        file.flush()
    }
}

impl<W: Write> CaptureFile<W> {
    /// Writes the file header. `snaplen` is the maximum number of bytes kept of a packet, as recorded in the file; 0
    /// means no limit.
    pub fn new(out: W, format: Format, interfaces: &[&str], snaplen: u32) -> Result<Self> {
        Self::linked(out, format, LinkType::Ethernet, interfaces, snaplen)
    }

    /// Writes the file header like [`CaptureFile::new`], for packets of any link type.
    pub fn linked(out: W, format: Format, link: LinkType, interfaces: &[&str], snaplen: u32) -> Result<Self> {
        let mut file = Self { out: BufWriter::with_capacity(BUFFER, out), format, link };
        match format {
            Format::Pcap => file.pcap_head(snaplen)?,
            Format::PcapNg => {
                file.section()?;
                interfaces.iter().try_for_each(|name| file.interface(name, snaplen))?;
            }
        }
        Ok(file)
    }

    /// Appends a packet.
    #[inline]
    pub fn write(&mut self, meta: PacketMeta, bytes: &[u8]) -> Result<()> {
        match self.format {
            Format::Pcap => self.record(meta, bytes),
            Format::PcapNg => self.enhanced(meta, bytes, None),
        }
    }

    /// Appends a packet with a comment. Classic pcap cannot store the comment, which is dropped.
    pub fn write_commented(&mut self, meta: PacketMeta, bytes: &[u8], comment: &str) -> Result<()> {
        match self.format {
            Format::Pcap => self.record(meta, bytes),
            Format::PcapNg => self.enhanced(meta, bytes, Some(comment)),
        }
    }

    /// Appends an interface's numbers of captured and lost packets up to now. Does nothing in classic pcap.
    pub fn statistics(&mut self, interface: u32, time_ns: u64, captured: u64, lost: u64) -> Result<()> {
        if self.format == Format::Pcap {
            return Ok(());
        }
        let mut body = Vec::new();
        body.extend(interface.to_ne_bytes());
        body.extend(((time_ns >> 32) as u32).to_ne_bytes());
        body.extend((time_ns as u32).to_ne_bytes());
        // isb_ifrecv, isb_ifdrop
        option(&mut body, 4, &(captured + lost).to_ne_bytes());
        option(&mut body, 5, &lost.to_ne_bytes());
        option(&mut body, 0, b"");
        self.block(5, &body)
    }

    /// Writes all buffered bytes to the underlying writer.
    pub fn flush(&mut self) -> Result<()> {
        self.out.flush()
    }

    fn pcap_head(&mut self, snaplen: u32) -> Result<()> {
        let snaplen = if snaplen == 0 { 1 << 18 } else { snaplen };
        let mut head = [0u8; 24];
        head[..4].copy_from_slice(&0xa1b2_3c4d_u32.to_ne_bytes());
        head[4..6].copy_from_slice(&2u16.to_ne_bytes());
        head[6..8].copy_from_slice(&4u16.to_ne_bytes());
        head[16..20].copy_from_slice(&snaplen.to_ne_bytes());
        head[20..].copy_from_slice(&(self.link as u32).to_ne_bytes());
        self.out.write_all(&head)
    }

    fn record(&mut self, meta: PacketMeta, bytes: &[u8]) -> Result<()> {
        let (sec, nsec) = (meta.time_ns / 1_000_000_000, meta.time_ns % 1_000_000_000);
        self.words(&[sec as u32, nsec as u32, bytes.len() as u32, meta.length])?;
        self.out.write_all(bytes)
    }

    fn section(&mut self) -> Result<()> {
        let mut body = Vec::new();
        body.extend(0x1a2b_3c4d_u32.to_ne_bytes());
        body.extend(1u16.to_ne_bytes());
        body.extend(0u16.to_ne_bytes());
        body.extend(u64::MAX.to_ne_bytes());
        // shb_userappl
        option(&mut body, 4, b"bywash");
        option(&mut body, 0, b"");
        self.block(0x0a0d_0d0a, &body)
    }

    fn interface(&mut self, name: &str, snaplen: u32) -> Result<()> {
        let mut body = Vec::new();
        body.extend((self.link as u16).to_ne_bytes());
        body.extend(0u16.to_ne_bytes());
        body.extend(snaplen.to_ne_bytes());
        // if_name, and if_tsresol: 10^-9 s
        option(&mut body, 2, name.as_bytes());
        option(&mut body, 9, &[9]);
        option(&mut body, 0, b"");
        self.block(1, &body)
    }

    fn enhanced(&mut self, meta: PacketMeta, bytes: &[u8], comment: Option<&str>) -> Result<()> {
        let pad = bytes.len().next_multiple_of(4) - bytes.len();
        let flags = meta.direction.map(|d| match d {
            Direction::Rx => 1u32,
            Direction::Tx => 2,
        });
        let mut said = Vec::new();
        if let Some(comment) = comment {
            option(&mut said, 1, comment.as_bytes());
        }
        let end = if flags.is_some() || comment.is_some() { 4 } else { 0 };
        let options = said.len() + if flags.is_some() { 8 } else { 0 } + end;
        let total = (32 + bytes.len() + pad + options) as u32;
        let (high, low) = ((meta.time_ns >> 32) as u32, meta.time_ns as u32);
        self.words(&[6, total, meta.interface, high, low, bytes.len() as u32, meta.length])?;
        self.out.write_all(bytes)?;
        self.out.write_all(&[0; 3][..pad])?;
        if let Some(flags) = flags {
            // epb_flags, four bytes
            let mut head = [0; 4];
            head[..2].copy_from_slice(&2u16.to_ne_bytes());
            head[2..].copy_from_slice(&4u16.to_ne_bytes());
            self.words(&[u32::from_ne_bytes(head), flags])?;
        }
        self.out.write_all(&said)?;
        if end > 0 {
            self.words(&[0])?;
        }
        self.words(&[total])
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> Result<()> {
        let total = 12 + body.len() as u32;
        self.words(&[kind, total])?;
        self.out.write_all(body)?;
        self.words(&[total])
    }

    #[inline]
    fn words(&mut self, words: &[u32]) -> Result<()> {
        words.iter().try_for_each(|w| self.out.write_all(&w.to_ne_bytes()))
    }
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_ne_bytes());
    body.extend((value.len() as u16).to_ne_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}
