//! Compares the frames that both routers sent for the same packets.

use crate::packets::{MAGIC, Sent};
use bywash_wire::checksum::update_u16;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// A port, and a frame that its host received.
pub type Left = (usize, Vec<u8>);

/// Index of the kernel's side.
pub const KERNEL: usize = 0;
/// Index of Bywash's side.
pub const BYWASH: usize = 1;

/// Returns the offset and version of the innermost IP packet in a frame: behind VLAN tags, behind the headers that
/// segment routing routes (RFC 8754) have added, and within the packets of VXLANs and other tunnels.
pub fn packet(frame: &[u8]) -> Option<(usize, u8)> {
    packets(frame, outermost(frame)).last()
}

/// Returns the IP packet at this offset, of this version, and those within it, each within the one before.
pub fn packets(frame: &[u8], ip: Option<(usize, u8)>) -> impl Iterator<Item = (usize, u8)> {
    std::iter::successors(ip, |ip| within(frame, *ip))
}

/// Returns the IP packets of a frame from the innermost to the outermost, in an error those of the quoted packet.
pub fn from_within(frame: &[u8]) -> Vec<(usize, u8)> {
    let quoted = error(frame).and_then(|(_, _, quoted)| Some((frame.len() - quoted.len(), quoted.first()? >> 4)));
    let mut packets: Vec<(usize, u8)> = packets(frame, quoted.or(outermost(frame))).collect();
    packets.reverse();
    packets
}

/// Returns the IP packet within the one at this offset, of this version.
fn within(frame: &[u8], (at, version): (usize, u8)) -> Option<(usize, u8)> {
    if let Some(inner) = in_vxlan(frame, (at, version)) {
        return outermost(&frame[inner..]).map(|(at, version)| (inner + at, version));
    }
    let (protocol, behind) = carried(frame, (at, version))?;
    let (inner, version) = match protocol {
        4 => (behind, 4),
        41 => (behind, 6),
        47 => in_gre(frame, behind)?,
        _ => return None,
    };
    // Not the payload that packets of any protocol have (`packets::build`).
    let begin = frame.get(inner..inner + 20)?;
    (begin[0] >> 4 == version && begin[..4] != MAGIC).then_some((inner, version))
}

/// Returns the offset and version of the IP packet behind the GRE header at `at`.
fn in_gre(frame: &[u8], at: usize) -> Option<(usize, u8)> {
    let flags = frame.get(at)?;
    // A checksum, a key and a sequence number are four bytes each.
    let options = (flags & 0xb0).count_ones() as usize;
    let version = match frame.get(at + 2..at + 4)? {
        [0x08, 0x00] => 4,
        [0x86, 0xdd] => 6,
        _ => return None,
    };
    Some((at + 4 + options * 4, version))
}

/// Returns the protocol of an IP packet behind its extension headers, and the offset of what it carries; `None` for
/// fragments but the first, and for headers that are too short.
fn carried(frame: &[u8], (at, version): (usize, u8)) -> Option<(u8, usize)> {
    if version == 4 {
        let place = u16::from_be_bytes([*frame.get(at + 6)?, *frame.get(at + 7)?]) & 0x1fff;
        let words = frame[at] & 15;
        return (place == 0 && words >= 5).then_some((*frame.get(at + 9)?, at + usize::from(words) * 4));
    }
    let (mut next, mut begin) = (*frame.get(at + 6)?, at + 40);
    while [0, 43, 44, 60].contains(&next) {
        let header = frame.get(begin..begin + 8)?;
        if next == 44 && u16::from_be_bytes([header[2], header[3]]) >= 8 {
            return None;
        }
        begin += if next == 44 { 8 } else { (usize::from(header[1]) + 1) * 8 };
        next = header[0];
    }
    Some((next, begin))
}

/// Returns the offset of the fragment header of an IPv6 packet.
fn fragment_header(frame: &[u8], at: usize) -> Option<usize> {
    let (mut next, mut begin) = (*frame.get(at + 6)?, at + 40);
    while [0, 43, 60].contains(&next) {
        let header = frame.get(begin..begin + 8)?;
        (next, begin) = (header[0], begin + (usize::from(header[1]) + 1) * 8);
    }
    (next == 44).then_some(begin)
}

/// Returns the offset of the frame in a VXLAN's packet (RFC 7348): in UDP, to one of the ports that are used here.
fn in_vxlan(frame: &[u8], (at, version): (usize, u8)) -> Option<usize> {
    let (plain, header) = match version {
        4 => (frame.get(at)? == &0x45 && frame.get(at + 9)? == &17, 20),
        _ => (frame.get(at + 6)? == &17, 40),
    };
    let udp = frame.get(at + header..at + header + 30)?;
    let port = u16::from_be_bytes([udp[2], udp[3]]);
    (plain && udp[8..12] == [8, 0, 0, 0] && [4789, 4790, 4793].contains(&port)).then_some(at + header + 16)
}

/// Returns the protocol behind the routing headers of a packet, the first of which is one of segment routing, and the
/// offset of its first byte.
fn behind_segments(frame: &[u8], at: usize, version: u8) -> Option<(u8, usize)> {
    if version != 6 || *frame.get(at + 6)? != 43 || *frame.get(at + 42)? != 4 {
        return None;
    }
    let (mut next, mut begin) = (43, at + 40);
    while next == 43 {
        let units = usize::from(*frame.get(begin + 1)?);
        (next, begin) = (*frame.get(begin)?, begin + (units + 1) * 8);
    }
    Some((next, begin))
}

/// Returns the protocol of the innermost IP packet in a frame, and the offset of its first byte, behind the segments
/// that a route has added.
fn upper(frame: &[u8]) -> Option<(u8, u8, usize)> {
    let (at, version) = packet(frame)?;
    let (protocol, begin) = match version {
        4 => (*frame.get(at + 9)?, at + usize::from(frame.get(at)? & 15) * 4),
        _ => behind_segments(frame, at, version).or(Some((*frame.get(at + 6)?, at + 40)))?,
    };
    Some((version, protocol, begin))
}

/// Returns whether a frame is in another one that a segment routing route has encapsulated (mode `l2encap`).
pub fn is_in_segments(frame: &[u8]) -> bool {
    matches!(upper(frame), Some((6, 143, _)))
}

/// Returns the offset of the outermost IP packet, and its version by the EtherType.
pub fn outermost(frame: &[u8]) -> Option<(usize, u8)> {
    let mut at = 12;
    loop {
        match frame.get(at..at + 2)? {
            [0x08, 0x00] => return Some((at + 2, 4)),
            [0x86, 0xdd] => return Some((at + 2, 6)),
            [0x81, 0x00] | [0x88, 0xa8] => at += 4,
            _ => return None,
        }
    }
}

/// Returns the source and destination addresses of the innermost packet.
pub fn ends(frame: &[u8]) -> Option<&[u8]> {
    addresses_of(frame, packet(frame)?)
}

/// Returns the source and destination addresses of the IP packet at this offset, of this version.
pub fn addresses_of(frame: &[u8], ip: (usize, u8)) -> Option<&[u8]> {
    match ip {
        (at, 4) => frame.get(at + 12..at + 20),
        (at, _) => frame.get(at + 8..at + 40),
    }
}

/// Returns type, code and the quoted packet of an ICMP error or redirect.
pub fn error(frame: &[u8]) -> Option<(u8, u8, &[u8])> {
    let (version, protocol, icmp) = upper(frame)?;
    let (kind, code) = (*frame.get(icmp)?, *frame.get(icmp + 1)?);
    match (version, protocol) {
        (4, 1) if [3, 4, 5, 11, 12].contains(&kind) => Some((kind, code, frame.get(icmp + 8..)?)),
        (6, 58) if kind < 128 => Some((kind, code, frame.get(icmp + 8..)?)),
        (6, 58) if kind == 137 => Some((kind, code, frame.get(icmp + 40..)?)),
        _ => None,
    }
}

/// A number that no packet has.
const OTHER: u32 = 0;

/// Returns the number of the packet that a frame carries or quotes: from its payload, or from as many bits as the IPv4
/// ident or IPv6 flow label holds; [`OTHER`] if no packet in `sent` has those bits.
fn number(frame: &[u8], sent: &[Sent]) -> Option<u32> {
    let at = frame.windows(8).position(|bytes| bytes[..4] == MAGIC);
    if let Some(at) = at {
        return Some(u32::from_be_bytes(frame[at + 4..at + 8].try_into().unwrap()));
    }
    let quoted = error(frame).map(|(_, _, quoted)| quoted);
    let header = match quoted {
        Some(quoted) => quoted,
        None => &frame[packet(frame)?.0..],
    };
    let (part, bits) = match header.first()? >> 4 {
        4 => (u32::from(u16::from_be_bytes([*header.get(4)?, *header.get(5)?])), 0xffff),
        6 => (u32::from_be_bytes(header.get(..4)?.try_into().unwrap()) & 0xf_ffff, 0xf_ffff),
        _ => return None,
    };
    sent.iter().map(|sent| sent.number).find(|number| number & bits == part).or(Some(OTHER))
}

/// Returns whether a frame is one that hosts and routers send on their own account.
fn is_noise(frame: &[u8]) -> bool {
    let tunnelled =
        outermost(frame).and_then(|ip| in_vxlan(frame, ip)).and_then(|inner| frame.get(inner + 12..inner + 14));
    if [frame.get(12..14), tunnelled].contains(&Some(&[0x08, 0x06])) {
        return true;
    }
    let Some((at, version)) = packet(frame) else { return false };
    if frame.windows(8).any(|bytes| bytes[..4] == MAGIC) {
        // A redirect quotes a packet. The kernel limits them to few a second, so that they cannot be compared.
        return version == 6 && icmp(frame) == Some(137) && frame[at + 8] == 0xfe;
    }
    let byte = |n: usize| frame.get(at + n).copied().unwrap_or(0);
    match (version, byte(6)) {
        // Membership reports (RFC 3376). Unicast ones are forwarded, and therefore compared.
        (4, _) => byte(9) == 2 && byte(16) & 0xf0 == 0xe0,
        // Neighbour discovery has hop limit 255, which a forwarded packet cannot have; listener reports have
        // hop-by-hop options.
        (_, 58) => byte(7) == 255 && (133..138).contains(&byte(40)),
        (_, 0) => byte(7) == 1 && [130, 131, 132, 143].contains(&byte(48)),
        _ => false,
    }
}

/// Returns the type of an ICMP or ICMPv6 message.
fn icmp(frame: &[u8]) -> Option<u8> {
    let (version, protocol, begin) = upper(frame)?;
    (protocol == if version == 4 { 1 } else { 58 }).then(|| frame.get(begin).copied())?
}

/// Sets the ident of the IPv4 header at `at` to zero and adapts the checksum.
fn forget_ident(frame: &mut [u8], at: usize) {
    let Some(header) = frame.get_mut(at..at + 20) else { return };
    let [ident, sum] = [4, 10].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
    header[4..6].fill(0);
    header[10..12].copy_from_slice(&update_u16(sum, ident, 0).to_be_bytes());
}

/// Returns the frame without the padding behind its IP packet, and behind the one that a segment routing route has
/// encapsulated.
pub fn unpadded(frame: &[u8]) -> &[u8] {
    let whole = outermost(frame).map_or(frame, |outer| cut(frame, outer));
    packet(whole).map_or(whole, |packet| cut(whole, packet))
}

/// Returns the frame up to the end of the IP packet at this offset, of this version.
fn cut(frame: &[u8], (at, version): (usize, u8)) -> &[u8] {
    let word = |at: usize| frame.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    let length = match version {
        4 => word(at + 2).map(usize::from),
        _ => word(at + 4).map(|length| 40 + usize::from(length)),
    };
    let end = length.filter(|length| *length >= 20).map_or(frame.len(), |length| at + length);
    &frame[..end.min(frame.len())]
}

/// Returns the ident of an IPv6 packet that begins with a fragment header.
fn fragment_ident(frame: &[u8]) -> Option<&[u8]> {
    let (at, 6) = packet(frame)? else { return None };
    frame.get(at + 44..at + 48).filter(|_| frame[at + 6] == 44)
}

/// Clears what the router has chosen in the header around another packet, at this offset and of this version.
fn forget_outer(frame: &mut [u8], (at, version): (usize, u8)) {
    let inner = in_vxlan(frame, (at, version));
    if version == 4 {
        forget_ident(frame, at);
        // Both stand for zero.
        if frame[at + 10..at + 12] == [0xff; 2] {
            frame[at + 10..at + 12].fill(0);
        }
    } else {
        frame[at + 1] &= 0xf0;
        frame[at + 2..at + 4].fill(0);
        if let Some(ident) = fragment_header(frame, at).and_then(|header| frame.get_mut(header + 4..header + 8)) {
            ident.fill(0);
        }
    }
    if let Some(inner) = inner {
        // The kernel's hash for the source port is a secret, and it leaves the checksum to the device.
        let udp = &mut frame[inner - 16..inner - 8];
        udp[..2].fill(0);
        let has_sum = udp[6..] != [0, 0];
        udp[6..].copy_from_slice(&[0, u8::from(has_sum)]);
    }
}

/// Returns the frame with the ident or flow label cleared if the router chose it, and whether it did.
fn canonical<'a>(frame: &[u8], sent: Option<&'a Sent>) -> (Vec<u8>, bool) {
    let mut canonical = frame.to_vec();
    let Some((at, version)) = packet(frame) else { return (canonical, false) };
    // The router chose it in a packet of its own or a translated one. Their addresses differ from those of the packet
    // sent, unless that packet came from its own destination: then an error or echo reply to it has the same addresses.
    let is_own = |sent: &Sent| {
        ends(&sent.frame) != ends(frame)
            || error(frame).is_some() && error(&sent.frame).is_none()
            || matches!((icmp(frame), icmp(&sent.frame)), (Some(0), Some(8)) | (Some(129), Some(128)))
    };
    let made_here = canonical.len() >= at + 20 && sent.is_some_and(is_own);
    let ends_of =
        |sent: &'a Sent| packets(&sent.frame, outermost(&sent.frame)).filter_map(|ip| addresses_of(&sent.frame, ip));
    let hosts: Vec<&[u8]> = sent.into_iter().flat_map(ends_of).collect();
    // A packet around the one that was sent may have the same addresses.
    let all: Vec<_> = packets(frame, outermost(frame)).collect();
    let added = all.len().saturating_sub(hosts.len());
    for (depth, (outer, version)) in all.into_iter().enumerate() {
        if let Some(ident) = behind_segments(frame, outer, version).filter(|(next, _)| *next == 44) {
            canonical.get_mut(ident.1 + 4..ident.1 + 8).into_iter().for_each(|ident| ident.fill(0));
        }
        // A tunnel's packet that a host has sent is forwarded unchanged.
        let ends = addresses_of(frame, (outer, version));
        let is_hosts = depth >= added && ends.is_some_and(|ends| hosts.contains(&ends));
        if outer != at && !is_hosts {
            forget_outer(&mut canonical, (outer, version));
        }
    }
    // The router also chose that of a packet that it reassembled and fragmented again.
    let ident = fragment_ident(frame);
    if ident.is_some() && (made_here || sent.is_none_or(|sent| fragment_ident(&sent.frame) != ident)) {
        canonical[at + 44..at + 48].fill(0);
    }
    if made_here && version == 6 {
        canonical[at + 1] &= 0xf0;
        canonical[at + 2..at + 4].fill(0);
    } else if made_here {
        forget_ident(&mut canonical, at);
    }
    (canonical, made_here)
}

/// The frames of one exchange, counted against each other as they arrive.
#[derive(Default)]
pub struct Balance {
    /// By port and frame: how many more copies the kernel's side has, and the number of the packet they belong to.
    open: HashMap<Left, (i32, Option<u32>)>,
    pub frames: [u64; 2],
    /// Frames that have left the kernel's router, by the number of the packet.
    pub left: HashMap<u32, Left>,
    /// Frames about packets of earlier exchanges.
    pub late: u64,
    /// Frames whose padding was cut off.
    pub padded: u64,
    /// Frames whose ident or flow label was cleared.
    pub made_here: u64,
}

impl Balance {
    pub fn add(&mut self, side: usize, port: usize, frame: &[u8], sent: &[Sent]) {
        if is_noise(frame) {
            return;
        }
        // If the length field of the packet was broken on purpose, what follows it is its payload, with the number.
        let whole = frame;
        let frame = unpadded(whole);
        let padded = frame.len() < whole.len();
        let number = number(frame, sent);
        let first = sent.first().map_or(0, |sent| sent.number);
        let about = number
            .and_then(|number| sent.get(number.wrapping_sub(first) as usize).filter(|sent| sent.number == number));
        let about = about.or_else(|| sent.iter().find(|sent| Some(sent.number) == number));
        if number.is_some() && about.is_none() {
            self.late += 1;
            return;
        }
        self.frames[side] += 1;
        if let Some(number) = number.filter(|_| side == KERNEL && error(frame).is_none()) {
            self.left.insert(number, (port, frame.to_vec()));
        }
        let (frame, made_here) = canonical(frame, about);
        self.padded += u64::from(padded);
        self.made_here += u64::from(made_here);
        let key = (port, frame);
        let more = if side == KERNEL { 1 } else { -1 };
        let count = &mut self.open.entry(key.clone()).or_insert((0, number)).0;
        *count += more;
        if *count == 0 {
            self.open.remove(&key);
        }
    }

    pub fn is_even(&self) -> bool {
        self.open.is_empty()
    }

    /// Returns the frames that only one side sent: first by the packet they belong to, then those that belong to none.
    pub fn cases<'a>(&self, sent: &'a [Sent]) -> (Vec<Case<'a>>, [Vec<Left>; 2]) {
        let mut by_number: BTreeMap<u32, [Vec<Left>; 2]> = BTreeMap::new();
        let mut nobodys = <[Vec<Left>; 2]>::default();
        for (left, (count, number)) in &self.open {
            let side = if *count > 0 { KERNEL } else { BYWASH };
            let to = match number {
                Some(number) => by_number.entry(*number).or_default(),
                None => &mut nobodys,
            };
            to[side].extend(std::iter::repeat_n(left.clone(), count.unsigned_abs() as usize));
        }
        let find = |number| sent.iter().find(|sent| sent.number == number).expect("numbers of others are late");
        let cases = by_number.into_iter().map(|(number, only)| Case { sent: find(number), only }).collect();
        (cases, nobodys)
    }
}

/// A packet for which the two routers sent different frames.
#[derive(Clone)]
pub struct Case<'a> {
    pub sent: &'a Sent,
    /// The frames that only the kernel and only Bywash sent.
    pub only: [Vec<Left>; 2],
}

impl Case<'_> {
    pub fn is_open(&self) -> bool {
        self.only.iter().any(|side| !side.is_empty())
    }

    /// Returns in a few words what each router did.
    pub fn summary(&self) -> String {
        let version = packet(&self.sent.frame).map_or("?".into(), |(_, version)| format!("IPv{version}"));
        let side = |side: usize| {
            let mut words: Vec<String> = self.only[side].iter().map(|left| self.word(left)).collect();
            words.sort();
            words.dedup();
            if words.is_empty() { "nothing".into() } else { words.join("+") }
        };
        let mut summary = format!("{version}: kernel {}, bywash {}", side(KERNEL), side(BYWASH));
        if let [[kernel], [bywash]] = self.only.each_ref().map(Vec::as_slice) {
            let first = kernel.1.iter().zip(&bywash.1).skip(14).position(|(a, b)| a != b);
            match (kernel.0 == bywash.0, first) {
                (false, None) => summary += ", by another port",
                (_, Some(at)) => write!(summary, ", other from byte {at} of the packet").unwrap(),
                (_, None) if kernel.1.len() != bywash.1.len() => summary += ", of another length",
                _ => summary += ", to another station",
            }
        }
        summary
    }

    fn word(&self, (_, frame): &Left) -> String {
        match error(frame) {
            Some((kind, code, _)) if ends(frame) != ends(&self.sent.frame) => format!("error {kind}/{code}"),
            _ if ends(frame) == ends(&self.sent.frame) => "forwards".into(),
            _ => "sends".into(),
        }
    }
}
