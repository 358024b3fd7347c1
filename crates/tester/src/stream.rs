//! Description of a stream's frames, and frame templates built from it.

use crate::sizes::Sizes;
use crate::stamp::{STAMP, Stamp};
use bywash_port::af_xdp::LiveHead;
use bywash_sync::random::splitmix64;
use bywash_wire::build::{BuildError, Packet};
use bywash_wire::ethernet::{FCS_LEN, MacAddr};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Bytes of a frame that may be nonzero: headers and stamp, at most (VLAN tag, IPv6, UDP, rounded up to a word).
pub const HEAD: usize = 88;
/// Maximum number of different frames: cycling through more would take minutes at any rate.
const MOST: usize = 1 << 20;
/// Maximum number of times that each flow or each size occurs, whichever there are more of.
const ROUNDS: usize = 16;

/// Range of consecutive addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// First address.
    pub first: IpAddr,
    /// Number of addresses.
    pub count: u64,
}

impl Addresses {
    /// Creates a range of one address.
    pub fn one(address: impl Into<IpAddr>) -> Self {
        Self { first: address.into(), count: 1 }
    }

    /// Returns the address at index `i`, modulo the count.
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

    /// Parses `198.18.0.1`, `198.18.0.1-198.18.0.9` or `198.18.0.0/24`, or the same with IPv6 addresses.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("invalid addresses `{text}`: expected one address, a range `a-b` or a prefix `a/24`");
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
                return Err(format!("`{text}` has bits set beyond the prefix length"));
            }
            return Ok(Self { first, count: u64::try_from(host).unwrap_or(u64::MAX).saturating_add(1) });
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (address(first)?, address(last)?);
        if first.is_ipv4() != last.is_ipv4() || number(first) > number(last) {
            return Err(format!(
                "invalid address range `{text}`: expected two addresses of one family, the lower one first"
            ));
        }
        Ok(Self { first, count: u64::try_from(number(last) - number(first)).unwrap_or(u64::MAX).saturating_add(1) })
    }
}

/// Range of UDP ports, first and last.
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
            _ => Err(format!("invalid port `{text}`: expected a port or a range such as 1024-2047")),
        }
    }
}

/// Description of a stream of UDP datagrams.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Source MAC address.
    pub src_mac: MacAddr,
    /// Destination MAC address: that of the device's port.
    pub dst_mac: MacAddr,
    /// VLAN tag, if any.
    pub vlan: Option<u16>,
    /// Source addresses.
    pub src: Addresses,
    /// Destination addresses.
    pub dst: Addresses,
    /// UDP source ports.
    pub src_port: Ports,
    /// UDP destination ports.
    pub dst_port: Ports,
    /// Number of flows. Flow n uses the nth value of each range, modulo its length; the source port advances each time
    /// all address pairs have been used.
    pub flows: usize,
    /// Seed to choose the fields from their ranges at random, reproducibly. If `None`, they are used in order.
    pub random: Option<u64>,
    /// Frame sizes.
    pub sizes: Sizes,
    /// IPv4 TTL or IPv6 hop limit.
    pub ttl: u8,
}

impl Default for Stream {
    /// Returns a stream of one flow between benchmark addresses (RFC 2544, appendix C.2.2), with 64-byte frames, to the
    /// discard port.
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

/// Error from building a stream's frames.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// Frame too small for headers and stamp.
    #[error("a frame of {size} bytes has no room for the headers and the {STAMP}-byte stamp: use at least {minimum}")]
    Small {
        /// Requested frame size in bytes.
        size: usize,
        /// Minimum frame size in bytes.
        minimum: usize,
    },
    /// Source and destination addresses of different families.
    #[error("sources {0} and destinations {1} are of different families")]
    Families(IpAddr, IpAddr),
    /// Frame that cannot be built for another reason.
    #[error("cannot build a frame of {size} bytes: {reason}")]
    Build {
        /// Frame size in bytes.
        size: usize,
        /// Reason reported by the packet builder.
        reason: String,
    },
    /// No flows or no sizes, or too many flows.
    #[error("invalid number of flows {0}: must be from 1 to {MOST}")]
    Flows(usize),
}

/// Start of a frame; the remainder of the frame is zeros.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// Headers and the stamp's magic number, then zeros.
    pub head: [u8; HEAD],
    /// Length of the frame in bytes, without FCS.
    pub len: u32,
    /// Unfolded sum for the UDP checksum over everything except stream, sequence number and time, which are written
    /// later.
    pub sum: u32,
}

/// Frames of a stream, to be sent in turn, cyclically.
#[derive(Clone, Debug)]
pub struct Templates {
    frames: Vec<Template>,
    /// Offset of the stamp, the same in all frames.
    at: usize,
    mean: f64,
    /// Frames that are sent unchanged, without a stamp; empty if frames are built from the templates.
    replayed: Vec<Vec<u8>>,
}

impl Stream {
    /// Builds the frames of the stream.
    ///
    /// # Errors
    /// [`StreamError`] if they cannot be built.
    pub fn templates(&self) -> Result<Templates, StreamError> {
        if self.flows == 0 || self.flows > MOST || self.sizes.0.is_empty() {
            return Err(StreamError::Flows(self.flows));
        }
        if self.src.first.is_ipv4() != self.dst.first.is_ipv4() {
            return Err(StreamError::Families(self.src.first, self.dst.first));
        }
        let at = self.stamp_at();
        // Combine every flow with every size. If that needs too many frames, end after whole rounds of whichever there
        // are more of: those occur equally often, and the others nearly so.
        let (flows, sizes) = (self.flows, self.sizes.0.len());
        let longer = flows.max(sizes);
        let rounds = (MOST / longer).clamp(1, ROUNDS);
        let count = (flows * sizes).min(rounds * longer);
        // After this many frames the combinations would repeat, so that flows and sizes are moved against each other.
        let repeat = lcm(flows, sizes);
        let frame = |i: usize| self.template(i % flows, self.sizes.0[(i + i / repeat) % sizes]);
        let frames = (0..count).map(frame).collect::<Result<Vec<Template>, _>>()?;
        let mean = frames.iter().map(|t| f64::from(t.len) + FCS_LEN as f64).sum::<f64>() / frames.len() as f64;
        Ok(Templates { frames, at, mean, replayed: vec![] })
    }

    /// Lengthens frames in which the headers and the stamp have no room.
    #[must_use]
    pub fn with_room(mut self) -> Self {
        let smallest = self.stamp_at() + STAMP + FCS_LEN;
        self.sizes.0.iter_mut().for_each(|size| *size = (*size).max(smallest));
        self
    }

    /// Returns the offset of the stamp, behind Ethernet, VLAN tag, IP and UDP.
    fn stamp_at(&self) -> usize {
        let tag = if self.vlan.is_some() { 4 } else { 0 };
        14 + tag + if self.src.first.is_ipv4() { 20 } else { 40 } + 8
    }

    fn template(&self, flow: usize, size: usize) -> Result<Template, StreamError> {
        let n = flow as u64;
        let field = |which: u64, i| self.random.map_or(i, |seed| splitmix64(seed ^ which << 56, n));
        let (src, dst) = (self.src.at(field(1, n)), self.dst.at(field(2, n)));
        // Address pairs repeat after this many flows; further flows differ in their ports.
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
    /// Creates templates from frames to be sent unchanged, given without FCS: they are not stamped, and only counted on
    /// arrival. `None` if there are no frames.
    pub fn replay(frames: Vec<Vec<u8>>) -> Option<Self> {
        let total: usize = frames.iter().map(|frame| frame.len() + FCS_LEN).sum();
        let blank = |frame: &Vec<u8>| Template { head: [0; HEAD], len: frame.len() as u32, sum: 0 };
        let mean = total as f64 / frames.len() as f64;
        let templates = Self { frames: frames.iter().map(blank).collect(), at: 0, mean, replayed: frames };
        (!templates.frames.is_empty()).then_some(templates)
    }

    /// Returns whether the frames are sent unchanged.
    pub fn is_replay(&self) -> bool {
        !self.replayed.is_empty()
    }

    /// Returns the frame templates.
    pub fn frames(&self) -> &[Template] {
        &self.frames
    }

    /// Returns the frames' heads, in the form for the kernel's generator program.
    pub fn heads(&self) -> Vec<LiveHead> {
        self.frames.iter().map(|t| LiveHead { bytes: t.head, len: t.len, sum: t.sum }).collect()
    }

    /// Returns the offset of the stamp in each frame. The UDP checksum is in the two bytes before it.
    pub fn stamp_at(&self) -> usize {
        self.at
    }

    /// Returns the mean frame size in bytes, FCS included.
    pub fn mean_size(&self) -> f64 {
        self.mean
    }

    /// Returns the length of the longest frame in bytes, without FCS.
    pub fn longest(&self) -> usize {
        self.frames.iter().map(|t| t.len as usize).max().unwrap_or(0)
    }

    /// Writes the frame at index `place` to `out`, whose length must be that of the template.
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
        // 16-bit words in network order; the sum of eight does not overflow 32 bits.
        let sum = template.sum
            + u32::from(stamp.stream)
            + (sequence >> 16)
            + (sequence & 0xffff)
            + (time >> 48) as u32
            + (time >> 32) as u16 as u32
            + (time >> 16) as u16 as u32
            + time as u16 as u32;
        let folded = (sum & 0xffff) + (sum >> 16);
        // A checksum of zero would mean that there is none (RFC 768).
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
