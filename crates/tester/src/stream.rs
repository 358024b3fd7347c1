//! What a stream's frames look like: a description, and the frames' beginnings made from it.

use crate::sizes::Sizes;
use crate::stamp::{STAMP, Stamp};
use bywash_sync::random::splitmix64;
use bywash_wire::build::{BuildError, Packet};
use bywash_wire::ethernet::{FCS_LEN, MacAddr};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Bytes of a frame that are not zeros: headers and stamp, at most (VLAN tag, IPv6, UDP, rounded up to a word).
pub const HEAD: usize = 88;
/// Most frames that differ: beyond, a run through them takes minutes at any rate.
const MOST: usize = 1 << 20;

/// Addresses from one on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The first.
    pub first: IpAddr,
    /// How many.
    pub count: u64,
}

impl Addresses {
    /// One address.
    pub fn one(address: impl Into<IpAddr>) -> Self {
        Self { first: address.into(), count: 1 }
    }

    /// The one at this place, counted from 0, round and round.
    pub fn at(&self, i: u64) -> IpAddr {
        let i = i % self.count.max(1);
        match self.first {
            IpAddr::V4(first) => Ipv4Addr::from(u32::from(first).wrapping_add(i as u32)).into(),
            IpAddr::V6(first) => std::net::Ipv6Addr::from(u128::from(first).wrapping_add(i.into())).into(),
        }
    }
}

impl FromStr for Addresses {
    type Err = String;

    /// `198.18.0.1`, `198.18.0.1-198.18.0.9`, `198.18.0.0/24`, and the same of IPv6.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` are no addresses: expected one, a range `a-b` or a prefix `a/24`");
        let address = |text: &str| text.trim().parse::<IpAddr>().map_err(|_| wrong());
        let number = |address| match address {
            IpAddr::V4(a) => u128::from(u32::from(a)),
            IpAddr::V6(a) => u128::from(a),
        };
        if let Some((first, len)) = text.split_once('/') {
            let first = address(first)?;
            let bits = if first.is_ipv4() { 32 } else { 128 };
            let len: u32 = len.parse().ok().filter(|len| *len <= bits).ok_or_else(wrong)?;
            let host = (1u128.checked_shl(bits - len).unwrap_or(0)).wrapping_sub(1);
            if number(first) & host != 0 {
                return Err(format!("`{text}` has bits set behind the prefix"));
            }
            return Ok(Self { first, count: u64::try_from(host).unwrap_or(u64::MAX).saturating_add(1) });
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (address(first)?, address(last)?);
        if first.is_ipv4() != last.is_ipv4() || number(first) > number(last) {
            return Err(format!("`{text}` are no addresses from the first to the last"));
        }
        Ok(Self { first, count: u64::try_from(number(last) - number(first)).unwrap_or(u64::MAX).saturating_add(1) })
    }
}

/// UDP ports from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports(pub u16, pub u16);

impl Ports {
    fn at(self, i: u64) -> u16 {
        self.0 + (i % (u64::from(self.1 - self.0) + 1)) as u16
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse::<u16>().ok();
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self(first, last)),
            _ => Err(format!("`{text}` is no port, and no range of them such as 1024-2047")),
        }
    }
}

/// A stream of UDP datagrams.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Source MAC address.
    pub src_mac: MacAddr,
    /// Destination MAC address: the device's port.
    pub dst_mac: MacAddr,
    /// VLAN tag, if any.
    pub vlan: Option<u16>,
    /// Source addresses.
    pub src: Addresses,
    /// Destination addresses.
    pub dst: Addresses,
    /// Source ports.
    pub src_port: Ports,
    /// Destination ports.
    pub dst_port: Ports,
    /// Different sets of these. Flow n has the nth of each, round and round; the source ports go on when all addresses
    /// have been used.
    pub flows: usize,
    /// The fields are chosen from their ranges at random, the same in every run with the same seed.
    pub random: Option<u64>,
    /// Frame sizes.
    pub sizes: Sizes,
    /// Time to live.
    pub ttl: u8,
}

impl Default for Stream {
    /// One flow between addresses for benchmarks (RFC 2544, appendix C.2.2), 64-byte frames, to the discard port.
    fn default() -> Self {
        Self {
            src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
            dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
            vlan: None,
            src: Addresses::one(Ipv4Addr::new(198, 18, 0, 1)),
            dst: Addresses::one(Ipv4Addr::new(198, 19, 0, 1)),
            src_port: Ports(1024, 65535),
            dst_port: Ports(9, 9),
            flows: 1,
            random: None,
            sizes: Sizes(vec![64]),
            ttl: 64,
        }
    }
}

/// Why a stream cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Too small for headers and stamp.
    #[error(
        "a frame of {size} bytes has no room for the headers and the {STAMP} bytes that it is known by: {minimum} at \
         least"
    )]
    Small {
        /// What was asked for.
        size: usize,
        /// What is possible.
        minimum: usize,
    },
    /// Addresses of different families.
    #[error("sources {0} and destinations {1} are of different families")]
    Families(IpAddr, IpAddr),
    /// No frame can be built otherwise.
    #[error("cannot build a frame of {size} bytes: {reason}")]
    Build {
        /// Its size.
        size: usize,
        /// Why not.
        reason: String,
    },
    /// No flows or sizes, or too many frames that differ.
    #[error("{0} flows: from 1 to {MOST} are possible")]
    Flows(usize),
}

/// The beginning of a frame; the rest of it is zeros.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// Headers and the magic number, then zeros.
    pub head: [u8; HEAD],
    /// Bytes of the frame, without FCS.
    pub len: u32,
    /// What the UDP checksum sums up, not folded: all but stream, sequence number and time, which are still to be
    /// written.
    pub sum: u32,
}

/// A stream's frames: sent one after the other, round and round.
#[derive(Clone, Debug)]
pub struct Templates {
    frames: Vec<Template>,
    /// Where the stamp is: the same in all.
    at: usize,
    mean: f64,
    /// Frames that are sent as they are, without a stamp; none: they are made.
    replayed: Vec<Vec<u8>>,
}

impl Stream {
    /// Its frames.
    ///
    /// # Errors
    /// [`StreamError`]: what cannot be built.
    pub fn templates(&self) -> Result<Templates, StreamError> {
        if self.flows == 0 || self.flows > MOST || self.sizes.0.is_empty() {
            return Err(StreamError::Flows(self.flows));
        }
        if self.src.first.is_ipv4() != self.dst.first.is_ipv4() {
            return Err(StreamError::Families(self.src.first, self.dst.first));
        }
        let at = self.stamp_at();
        // Every flow with every size where that is no great number.
        let count = lcm(self.flows, self.sizes.0.len()).min(MOST);
        let count = if count > 16 * self.flows { self.flows } else { count };
        let frame = |i: usize| self.template(i % self.flows, self.sizes.0[i % self.sizes.0.len()]);
        let frames = (0..count).map(frame).collect::<Result<Vec<Template>, _>>()?;
        let mean = frames.iter().map(|t| f64::from(t.len) + FCS_LEN as f64).sum::<f64>() / frames.len() as f64;
        Ok(Templates { frames, at, mean, replayed: vec![] })
    }

    /// Behind Ethernet, VLAN tag, IP and UDP.
    fn stamp_at(&self) -> usize {
        let tag = if self.vlan.is_some() { 4 } else { 0 };
        14 + tag + if self.src.first.is_ipv4() { 20 } else { 40 } + 8
    }

    fn template(&self, flow: usize, size: usize) -> Result<Template, StreamError> {
        let n = flow as u64;
        let field = |which: u64, i| self.random.map_or(i, |seed| splitmix64(seed ^ which << 56, n));
        let (src, dst) = (self.src.at(field(1, n)), self.dst.at(field(2, n)));
        // Addresses come round together after this many flows; from then on other ports tell them apart.
        let round = lcm(self.src.count.min(1 << 20) as usize, self.dst.count.min(1 << 20) as usize).max(1) as u64;
        let ports = (self.src_port.at(field(3, n / round)), self.dst_port.at(field(4, n)));
        let payload = Stamp { stream: 0, sequence: 0, time: 0 }.bytes();
        let mut packet = Packet::udp(SocketAddr::new(src, ports.0), SocketAddr::new(dst, ports.1))
            .macs(self.src_mac, self.dst_mac)
            .ttl(self.ttl)
            .payload(&payload)
            .size(size);
        if let Some(tag) = self.vlan {
            packet = packet.vlan(tag);
        }
        let frame = packet.build().map_err(|e| match e {
            BuildError::Size { minimum } => StreamError::Small { size, minimum },
            e => StreamError::Build { size, reason: e.to_string() },
        })?;
        let mut head = [0; HEAD];
        let n = frame.len().min(HEAD);
        head[..n].copy_from_slice(&frame[..n]);
        let at = self.stamp_at();
        let sum = !u16::from_be_bytes([head[at - 2], head[at - 1]]);
        Ok(Template { head, len: frame.len() as u32, sum: sum.into() })
    }
}

impl Templates {
    /// Frames that are sent as they are, without FCS: they are not stamped, and only counted where they arrive. None
    /// without any.
    pub fn replay(frames: Vec<Vec<u8>>) -> Option<Self> {
        let total: usize = frames.iter().map(|frame| frame.len() + FCS_LEN).sum();
        let blank = |frame: &Vec<u8>| Template { head: [0; HEAD], len: frame.len() as u32, sum: 0 };
        let mean = total as f64 / frames.len() as f64;
        let templates = Self { frames: frames.iter().map(blank).collect(), at: 0, mean, replayed: frames };
        (!templates.frames.is_empty()).then_some(templates)
    }

    /// Whether its frames are sent as they are.
    pub fn is_replay(&self) -> bool {
        !self.replayed.is_empty()
    }

    /// The frames' beginnings.
    pub fn frames(&self) -> &[Template] {
        &self.frames
    }

    /// Where the stamp is in each of them. The UDP checksum stands in the two bytes before.
    pub fn stamp_at(&self) -> usize {
        self.at
    }

    /// Mean frame size, FCS included.
    pub fn mean_size(&self) -> f64 {
        self.mean
    }

    /// The longest frame, without FCS.
    pub fn longest(&self) -> usize {
        self.frames.iter().map(|t| t.len as usize).max().unwrap_or(0)
    }

    /// Writes the frame at this place of the stream, as long as `out`, which is as long as the template says.
    #[inline]
    pub fn write(&self, place: usize, stamp: Stamp, out: &mut [u8]) {
        if let Some(frame) = self.replayed.get(place) {
            out.copy_from_slice(frame);
            return;
        }
        let template = &self.frames[place];
        let n = out.len().min(HEAD);
        out[..n].copy_from_slice(&template.head[..n]);
        out[n..].fill(0);
        let (sequence, time) = (stamp.sequence, stamp.time);
        // 16-bit words in network order; the sum of 8 does not overflow.
        let sum = template.sum
            + u32::from(stamp.stream)
            + (sequence >> 16)
            + (sequence & 0xffff)
            + (time >> 48) as u32
            + (time >> 32) as u16 as u32
            + (time >> 16) as u16 as u32
            + time as u16 as u32;
        let folded = (sum & 0xffff) + (sum >> 16);
        // Zero would mean that there is none (RFC 768).
        let checksum = match !(((folded & 0xffff) + (folded >> 16)) as u16) {
            0 => 0xffff,
            checksum => checksum,
        };
        out[self.at - 2..self.at].copy_from_slice(&checksum.to_be_bytes());
        out[self.at..self.at + STAMP].copy_from_slice(&stamp.bytes());
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: usize, b: usize) -> usize {
    a / gcd(a, b) * b
}
