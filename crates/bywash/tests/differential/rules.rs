//! The differences that are allowed. Each is documented by a line of docs/decisions/differences.md.

mod examples;

use crate::change::Change;
use crate::compare::{
    BYWASH, Case, Left, addresses_of, ends, error, from_within, is_in_segments, outermost, packet, packets, unpadded,
};
use crate::flows::OUT_OF_WINDOW;
use crate::packets::Sent;
use crate::topology::Side;
use bywash_wire::checksum::{Sum, pseudo4, pseudo6, update_u16};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};

pub use examples::unfinished_within;

/// The state that a rule may inspect besides the case.
pub struct Context<'a> {
    /// The kernel's router, for queries of its routes.
    pub kernel: &'a Side,
    /// Set if Bywash forwards established flows.
    pub flows: bool,
}

/// A configuration, packets that open connections in it, and packets for which the routers differ.
pub struct Example {
    pub changes: Vec<Change>,
    pub opening: Vec<Sent>,
    pub sent: Vec<Sent>,
}

pub struct Rule {
    pub name: &'static str,
    /// Words of the line in differences.md that documents the difference.
    pub documented: &'static str,
    /// Removes from the case the frames that the difference explains, or makes them equal.
    excuse: fn(&mut Case<'_>, &Context<'_>),
    /// Returns a configuration and packets that show the difference at level `user`.
    pub example: fn() -> Example,
}

pub const RULES: &[Rule] = &[
    Rule { name: "redirects", documented: "Redirects are off", excuse: redirects, example: examples::redirect },
    Rule {
        name: "unfinished checksum",
        documented: "**Partial checksums (CHECKSUM_PARTIAL).**",
        excuse: unfinished,
        example: examples::unfinished,
    },
    Rule {
        name: "wrong checksum of a flow",
        documented: "**Wrong checksums of established flows.**",
        excuse: wrong_checksum,
        example: examples::wrong_checksum,
    },
    Rule {
        name: "beyond TCP's window",
        documented: "**TCP's window in established flows.**",
        excuse: beyond_window,
        example: examples::beyond_window,
    },
    Rule {
        name: "reserved addresses",
        documented: "240.0.0.0/4, the reserved class E",
        excuse: reserved,
        example: examples::class_e,
    },
    Rule {
        name: "ports drawn by NAT",
        documented: "**Ports chosen by NAT.**",
        excuse: drawn_ports,
        example: examples::one_port_for_two,
    },
    Rule {
        name: "frames in segment routing",
        documented: "**Frames in segment routing.**",
        excuse: in_segments,
        example: examples::frame_in_segments,
    },
];

/// Applied last, because they query the kernel.
const ASKING: &[Rule] = &[
    Rule {
        name: "learned path MTU",
        documented: "The kernel also applies PMTUs that it has learned",
        excuse: learned_mtu,
        example: examples::learned_mtu,
    },
    Rule {
        name: "choice among equal paths",
        documented: "The flow hash is Bywash's own",
        excuse: equal_paths,
        example: examples::many_flows,
    },
];

/// The number of times that each rule was needed.
pub type Used = BTreeMap<&'static str, u64>;

pub fn all() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().chain(ASKING)
}

/// Returns whether the rules explain the case.
pub fn explain(case: &Case<'_>, context: &Context<'_>, used: &mut Used) -> bool {
    let mut case = case.clone();
    for rule in all() {
        let before = case.only.each_ref().map(Vec::len);
        (rule.excuse)(&mut case, context);
        cancel(&mut case);
        if before != case.only.each_ref().map(Vec::len) {
            *used.entry(rule.name).or_insert(0) += 1;
        }
        if !case.is_open() {
            return true;
        }
    }
    false
}

fn drop_all(case: &mut Case<'_>) {
    case.only = Default::default();
}

/// Removes the frames that are equal on both sides after a rule has changed them.
fn cancel(case: &mut Case<'_>) {
    let [kernel, bywash] = &mut case.only;
    kernel.retain(|left| match bywash.iter().position(|other| other == left) {
        Some(at) => {
            bywash.swap_remove(at);
            false
        }
        None => true,
    });
}

/// Returns the frames of both sides that are errors made by a router.
fn errors<'a>(case: &'a mut Case<'_>) -> impl Iterator<Item = &'a mut Vec<u8>> {
    let of_the_sent = ends(&case.sent.frame).map(<[u8]>::to_vec);
    let frames = case.only.iter_mut().flatten().map(|(_, frame)| frame);
    frames.filter(move |frame| error(frame).is_some() && ends(frame) != of_the_sent.as_deref())
}

fn redirects(case: &mut Case<'_>, _: &Context<'_>) {
    let of_its_own = ends(&case.sent.frame).map(<[u8]>::to_vec);
    let is = |frame: &[u8]| {
        let kind = error(frame).map(|(kind, _, _)| kind);
        let version = packet(frame).map(|(_, version)| version);
        ends(frame) != of_its_own.as_deref() && matches!((version, kind), (Some(4), Some(5)) | (Some(6), Some(137)))
    };
    // Both sides: the kernel redirects packets that Bywash passes to it, too, a few a second.
    case.only.iter_mut().for_each(|side| side.retain(|(_, frame)| !is(frame)));
}

/// Returns the protocol of the innermost packet behind its extension headers, and the offset of its payload in the
/// frame.
fn payload(frame: &[u8]) -> Option<(u8, usize)> {
    payload_of(frame, packet(frame)?)
}

/// Returns the protocol of the packet at this offset, of this version, behind its extension headers, and the offset of
/// its payload in the frame.
fn payload_of(frame: &[u8], (at, version): (usize, u8)) -> Option<(u8, usize)> {
    if version == 4 {
        return Some((*frame.get(at + 9)?, at + usize::from(frame.get(at)? & 15) * 4));
    }
    let (mut next, mut begin) = (*frame.get(at + 6)?, at + 40);
    while [0, 43, 44, 51, 60, 135].contains(&next) {
        let units = usize::from(*frame.get(begin + 1)?);
        let length = match next {
            44 => 8,
            51 => (units + 2) * 4,
            _ => (units + 1) * 8,
        };
        (next, begin) = (*frame.get(begin)?, begin + length);
    }
    Some((next, begin))
}

/// The checksum of a TCP or UDP packet.
struct Transport {
    /// Offset of the field in the frame.
    field: usize,
    /// The sum of the pseudo-header.
    pseudo: u16,
    /// Where header and data are in the frame.
    begin: usize,
    end: usize,
}

impl Transport {
    /// Returns that of the packet at this offset, of this version.
    fn of(frame: &[u8], (at, version): (usize, u8)) -> Option<Self> {
        let (protocol, begin) = payload_of(frame, (at, version))?;
        let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let end = at + if version == 4 { usize::from(word(at + 2)?) } else { 40 + usize::from(word(at + 4)?) };
        let length = end.checked_sub(begin)?;
        let sum = match version {
            4 => pseudo4(frame.get(at..at + 20)?.try_into().unwrap(), protocol, length as u16),
            _ => pseudo6(frame.get(at..at + 40)?.try_into().unwrap(), protocol, length as u32),
        };
        let field = begin + checksum_at(protocol)?;
        Some(Self { field, pseudo: sum.fold(), begin, end })
    }
}

/// Returns the offset of the checksum in a TCP or UDP header.
fn checksum_at(protocol: u8) -> Option<usize> {
    match protocol {
        17 => Some(6),
        6 => Some(16),
        _ => None,
    }
}

fn wrong_checksum(case: &mut Case<'_>, context: &Context<'_>) {
    let frame = &case.sent.frame;
    let Some(Transport { field, pseudo, begin, .. }) = packet(frame).and_then(|ip| Transport::of(frame, ip)) else {
        return;
    };
    let end = unpadded(frame).len();
    // The header may be cut off.
    let (Some(bytes), Some(field)) = (frame.get(begin..end), frame.get(field..field + 2)) else { return };
    let none = field == [0, 0];
    let is_wrong = (Sum::of(&pseudo.to_be_bytes()) + Sum::of(bytes)).checksum() != 0;
    let is_forwarded = !case.only[BYWASH].is_empty() && case.only[BYWASH].iter().all(|left| error(&left.1).is_none());
    if context.flows && is_wrong && !none && is_forwarded {
        drop_all(case);
    }
}

fn beyond_window(case: &mut Case<'_>, context: &Context<'_>) {
    let Some((6, at)) = payload(&case.sent.frame) else { return };
    // Rules may drop or translate what is valid, too, and let invalid packets pass.
    if context.flows && case.sent.frame.get(at + 18..at + 20) == Some(&OUT_OF_WINDOW) {
        drop_all(case);
    }
}

/// Takes back the completion of checksums in the frames that Bywash has sent: of the packet that was sent, and of the
/// packets within it.
fn unfinished(case: &mut Case<'_>, _: &Context<'_>) {
    let sent = &case.sent.frame;
    let mut packets: Vec<_> = packets(sent, outermost(sent)).collect();
    packets.reverse();
    for (depth, ip) in packets.into_iter().enumerate() {
        let Some(Transport { field: field_sent, pseudo, begin, end }) = Transport::of(sent, ip) else { continue };
        let Some(data) = sent.get(begin..end) else { continue };
        if sent.get(field_sent..field_sent + 2) != Some(&pseudo.to_be_bytes()) {
            continue;
        }
        let completed = Sum::of(data).checksum();
        // To the router itself, from within a tunnel: the kernel drops it unless the checksum is right.
        let [kernel, bywash] = &mut case.only;
        if kernel.is_empty() {
            bywash.retain(|(_, frame)| !answers(frame, sent, ip));
        }
        for (_, frame) in bywash {
            let same = from_within(frame).get(depth).copied();
            let field = same.and_then(|ip| {
                let (protocol, begin) = payload_of(frame, ip)?;
                Some(begin + checksum_at(protocol)?)
            });
            // In a fragment, the fields in front of it tell where it is.
            let head = &sent[begin..field_sent];
            let at = || frame.windows(head.len()).position(|window| window == head).map(|at| at + head.len());
            let field = if is_fragment4(frame) { at() } else { field };
            let Some(there) = field.and_then(|field| frame.get(field..field + 2)) else { continue };
            let there = u16::from_be_bytes([there[0], there[1]]);
            // If NAT has changed the field, it has changed both alike.
            let before = if there == completed { pseudo } else { update_u16(there, pseudo, completed) };
            let field = field.expect("a field");
            frame[field..field + 2].copy_from_slice(&before.to_be_bytes());
            // The checksum of an error covers the quoted packet.
            let error = error(frame).and_then(|_| payload(frame)).map(|(_, icmp)| icmp + 2);
            if let Some(of_error) = error.and_then(|at| frame.get_mut(at..at + 2)) {
                let sum = update_u16(u16::from_be_bytes([of_error[0], of_error[1]]), there, before);
                of_error.copy_from_slice(&sum.to_be_bytes());
            }
        }
    }
}

/// Returns whether a frame is a host's answer to the TCP or UDP packet at this offset in `sent` that no socket takes:
/// an error about its port, or a reset.
fn answers(frame: &[u8], sent: &[u8], ip: (usize, u8)) -> bool {
    let (Some(from), Some(to)) = (ends(frame), addresses_of(sent, ip)) else { return false };
    let (src, dst) = to.split_at(to.len() / 2);
    let is_back = from == [dst, src].concat();
    let version = packet(frame).map(|(_, version)| version);
    let about_port = matches!((version, error(frame)), (Some(4), Some((3, 3, _))) | (Some(6), Some((1, 4, _))));
    let is_reset = || payload(frame).is_some_and(|(protocol, at)| protocol == 6 && frame.get(at + 13) == Some(&4));
    is_back && (about_port || is_reset())
}

fn reserved(case: &mut Case<'_>, _: &Context<'_>) {
    let Some((at, 4)) = packet(&case.sent.frame) else { return };
    let Some(ends) = case.sent.frame.get(at + 12..at + 20) else { return };
    let reserved = ends[0] >= 240 || ends[4] >= 240 || ends[0] == 0;
    if reserved && case.only[BYWASH].is_empty() {
        drop_all(case);
    }
}

/// Ignores frames that the kernel encapsulates (mode `l2encap`): behind generic XDP it leaves out their Ethernet
/// header.
fn in_segments(case: &mut Case<'_>, _: &Context<'_>) {
    case.only.iter_mut().for_each(|only| only.retain(|(_, frame)| !is_in_segments(frame)));
}

/// Ignores source ports and ICMP idents of packets that NAT has translated: the kernel chooses them at random where the
/// packet's own is taken, also by a packet to the same translated destination.
fn drawn_ports(case: &mut Case<'_>, _: &Context<'_>) {
    drawn_in_quotations(case);
    let ends = |frame| Some((ends(frame)?, source(frame)?));
    let of_the_sent = ends(&case.sent.frame);
    let mut frames = case.only.iter().flatten().map(|(_, frame)| frame).filter(|frame| error(frame).is_none());
    // Only if both sides translated it: a port changed by Bywash alone was not chosen by NAT.
    if frames.any(|frame| ends(frame) == of_the_sent) {
        return;
    }
    for frame in case.only.iter_mut().flatten().map(|(_, frame)| frame).filter(|frame| error(frame).is_none()) {
        let Some((protocol, at)) = payload(frame) else { continue };
        for field in source_fields(protocol).into_iter().flatten() {
            if let Some(field) = frame.get_mut(at + field..at + field + 2) {
                field.fill(0);
            }
        }
    }
}

/// Ignores the ports in packets that errors quote, if both routers have translated them back.
fn drawn_in_quotations(case: &mut Case<'_>) {
    let Some((_, _, quoted)) = error(&case.sent.frame) else { return };
    let header = if quoted.first().is_some_and(|byte| byte >> 4 == 4) { 20 } else { 40 };
    let ports = |frame: &[u8]| Some(error(frame)?.2.get(header..header + 4)?.to_vec());
    let sent = ports(&case.sent.frame);
    if case.only.iter().flatten().any(|(_, frame)| error(frame).is_none() || ports(frame) == sent) {
        return;
    }
    for frame in case.only.iter_mut().flatten().map(|(_, frame)| frame) {
        let Some(at) = error(frame).map(|(_, _, quoted)| frame.len() - quoted.len()) else { continue };
        let protocol = frame.get(at + if header == 20 { 9 } else { 6 }).copied().unwrap_or(0);
        let sum = source_fields(protocol).map_or(0, |[_, sum]| sum);
        // The checksum of the error covers the ports.
        for (at, length) in [(at - 6, 2), (at + header, 4), (at + header + sum, 2)] {
            if let Some(field) = frame.get_mut(at..at + length) {
                field.fill(0);
            }
        }
    }
}

/// Returns the offsets of the source port or ident and of the checksum in the payload of the IP packet. `None` for
/// protocols that conntrack translates by their addresses alone.
fn source_fields(protocol: u8) -> Option<[usize; 2]> {
    match protocol {
        6 => Some([0, 16]),
        17 => Some([0, 6]),
        1 | 58 => Some([4, 2]),
        _ => None,
    }
}

/// Returns the source address, and the source port or ident.
fn source(frame: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
    let ends = ends(frame)?;
    let (protocol, at) = payload(frame)?;
    let part = source_fields(protocol).and_then(|[field, _]| frame.get(at + field..at + field + 2));
    Some((&ends[..ends.len() / 2], part))
}

/// Drops the case if the kernel has learned an MTU for the destination, and answers or fragments what Bywash forwards,
/// or has nowhere to send the answer.
fn learned_mtu(case: &mut Case<'_>, context: &Context<'_>) {
    let by_size = |(_, frame): &Left| {
        let version = packet(frame).map(|(_, version)| version);
        matches!((version, error(frame)), (Some(4), Some((3, 4, _))) | (Some(6), Some((2, 0, _))))
            || is_fragment4(frame)
    };
    let [kernel, bywash] = &case.only;
    // The packet that was sent may itself be a fragment.
    let whole = |frame: &[u8]| !is_fragment4(frame) || frame.len() == case.sent.frame.len();
    let forwards = |left: &Left| error(&left.1).is_none() && whole(&left.1);
    if !kernel.iter().all(by_size) || bywash.is_empty() || !bywash.iter().all(forwards) {
        return;
    }
    let Some((_, dst, _)) = addresses(&case.sent.frame) else { return };
    let Some(route) = asked(context, &["route", "get", &dst]).filter(|route| route.contains(" expires ")) else {
        return;
    };
    let mtu =
        route.split_once(" mtu ").and_then(|(_, rest)| rest.trim_start_matches("lock ").split_whitespace().next());
    let longer = |mtu: usize| packet(&case.sent.frame).is_some_and(|(at, _)| case.sent.frame.len() - at > mtu);
    if mtu.and_then(|mtu| mtu.parse().ok()).is_some_and(|mtu| !kernel.is_empty() || longer(mtu)) {
        drop_all(case);
    }
}

/// Returns whether the innermost packet of a frame is a fragment of an IPv4 packet.
fn is_fragment4(frame: &[u8]) -> bool {
    let bits = packet(frame).filter(|ip| ip.1 == 4).and_then(|(at, _)| frame.get(at + 6..at + 8));
    bits.is_some_and(|bits| u16::from_be_bytes([bits[0], bits[1]]) & 0x3fff != 0)
}

/// Drops the case if the kernel's route for the packet, or for an error about it, has several next hops and Bywash sent
/// by one of them.
fn equal_paths(case: &mut Case<'_>, context: &Context<'_>) {
    let frame = &case.sent.frame;
    let Some((src, ..)) = addresses(frame) else { return };
    // A packet around others is forwarded by its own addresses, unless it is to this host.
    let all = from_within(frame).into_iter().filter_map(|packet| selector(frame, packet));
    let all: BTreeSet<_> = all.chain(addresses(frame)).collect();
    let of_errors = errors(case).count() > 0;
    // By port, it and the interfaces above it.
    let links = context.kernel.router.ip(&["-o", "link"]).map(|output| output.stdout).unwrap_or_default();
    let names = |port: usize| -> Vec<String> {
        let own = format!("p{}", port + 1);
        let of =
            |line: &str| line.split(": ").nth(1).map(|name| name.split('@').map(str::to_owned).collect::<Vec<_>>());
        let ours = |line: &&str| of(line).is_some_and(|names| names[0] == own);
        let masters = links.lines().filter(ours).filter_map(|line| line.split("master ").nth(1)?.split(' ').next());
        let above = links.lines().filter_map(of).filter(|names| names.len() == 2 && names[1] == own);
        let uppers: Vec<String> = masters.map(str::to_owned).chain(above.map(|names| names[0].clone())).collect();
        std::iter::once(own.clone()).chain(uppers).collect()
    };
    let there = |iif: &String| -> Vec<String> {
        let route = |(src, dst, tos): &(String, String, String)| {
            asked(context, &["route", "get", "fibmatch", dst, "from", src, "iif", iif, "tos", tos])
        };
        all.iter().filter_map(route).collect()
    };
    let there: Vec<String> = names(case.sent.port).iter().flat_map(there).collect();
    let back = of_errors.then(|| asked(context, &["route", "get", "fibmatch", &src])).flatten();
    for route in there.into_iter().chain(back) {
        let ways = route.matches("nexthop ").count();
        let leads = |port: usize| names(port).iter().any(|name| route.contains(&format!("dev {name} ")));
        if ways > 1 && case.only[BYWASH].iter().all(|(port, _)| leads(*port)) {
            drop_all(case);
        }
    }
}

/// Returns what `ip` of the kernel's router says, in one line.
fn asked(context: &Context<'_>, argv: &[&str]) -> Option<String> {
    context.kernel.router.ip(argv).ok().map(|output| output.stdout.replace('\n', " "))
}

/// Returns source, destination and type of service of the innermost packet as `ip route get` takes them.
fn addresses(frame: &[u8]) -> Option<(String, String, String)> {
    selector(frame, packet(frame)?)
}

/// Returns those of a packet at this offset, of this version.
fn selector(frame: &[u8], (at, version): (usize, u8)) -> Option<(String, String, String)> {
    if version == 4 {
        let address =
            |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).unwrap()).to_string());
        return Some((address(at + 12)?, address(at + 16)?, format!("0x{:02x}", frame.get(at + 1)? & 0x1c)));
    }
    let address = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(frame.get(at..at + 16)?).unwrap()).to_string());
    Some((address(at + 8)?, address(at + 24)?, "0".into()))
}
