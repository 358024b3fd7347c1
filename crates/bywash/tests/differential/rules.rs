//! The differences that are allowed. Each is a line of docs/decisions/differences.md.

mod examples;

use crate::change::Change;
use crate::compare::{BYWASH, Case, KERNEL, Left, ends, error, packet};
use crate::packets::Sent;
use crate::topology::Side;
use bywash_wire::checksum::{pseudo4, pseudo6, update_u16};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// What a rule may look at beside the case.
pub struct Context<'a> {
    /// Ports that Bywash has.
    pub ports: usize,
    /// The kernel's router, to ask for its routes.
    pub kernel: &'a Side,
}

pub struct Rule {
    pub name: &'static str,
    /// Words of the line in differences.md that says so.
    pub documented: &'static str,
    /// Takes out of the case what the difference explains.
    excuse: fn(&mut Case<'_>, &Context<'_>),
    /// Where it is seen, at level `user`.
    pub example: fn() -> (Vec<Change>, Vec<Sent>),
}

pub const RULES: &[Rule] = &[
    Rule { name: "redirects", documented: "Redirects are off", excuse: redirects, example: examples::redirect },
    Rule {
        name: "unfinished checksum",
        documented: "**Unfinished checksums.**",
        excuse: unfinished,
        example: examples::unfinished,
    },
    Rule {
        name: "reserved addresses",
        documented: "240.0.0.0/4, the reserved class E",
        excuse: reserved,
        example: examples::class_e,
    },
    Rule {
        name: "fragment of ICMPv6",
        documented: "A fragment of an ICMPv6 message",
        excuse: icmp6_fragment,
        example: examples::fragment,
    },
];

/// Last, as it asks the kernel.
pub const EQUAL_PATHS: Rule = Rule {
    name: "choice among equal paths",
    documented: "The flow hash is our own",
    excuse: equal_paths,
    example: examples::many_flows,
};

/// Defects that are known, until they are mended. A run says how often it met them.
pub const KNOWN: &[Rule] = &[
    Rule {
        name: "KNOWN: type of service of errors",
        documented: "",
        excuse: tos_of_errors,
        example: examples::no_route_tos,
    },
    Rule {
        name: "KNOWN: time exceeded before no route",
        documented: "",
        excuse: time_before_route,
        example: examples::no_route_no_ttl,
    },
    Rule {
        name: "KNOWN: source of ICMPv6 errors",
        documented: "",
        excuse: source_of_errors,
        example: examples::from_elsewhere,
    },
    Rule {
        name: "KNOWN: errors about other ICMP",
        documented: "",
        excuse: errors_about_icmp,
        example: examples::odd_icmp,
    },
    Rule {
        name: "KNOWN: no error about odd extensions",
        documented: "",
        excuse: odd_extensions,
        example: examples::about_redirect,
    },
    Rule {
        name: "KNOWN: error by what is no port",
        documented: "",
        excuse: error_by_no_port,
        example: examples::by_no_port,
    },
    Rule { name: "KNOWN: unspecified source", documented: "", excuse: unspecified, example: examples::no_source },
    Rule {
        name: "KNOWN: no error to a broadcast source",
        documented: "",
        excuse: broadcast_source,
        example: examples::from_broadcast,
    },
];

/// How often each rule was needed.
pub type Used = BTreeMap<&'static str, u64>;

pub fn all() -> impl Iterator<Item = &'static Rule> {
    RULES.iter().chain(KNOWN).chain([&EQUAL_PATHS])
}

/// Whether the rules explain the case.
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

/// Takes out what both sides have sent, now that a rule has made frames alike.
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

/// Every frame of both sides that is an error of a router's own.
fn errors<'a>(case: &'a mut Case<'_>) -> impl Iterator<Item = &'a mut Vec<u8>> {
    let of_the_sent = ends(&case.sent.frame).map(<[u8]>::to_vec);
    let frames = case.only.iter_mut().flatten().map(|(_, frame)| frame);
    frames.filter(move |frame| error(frame).is_some() && ends(frame) != of_the_sent.as_deref())
}

/// The kernel's errors have the packet's type of service with the precedence of internetwork control (icmp_send, net/ipv4/icmp.c).
fn tos_of_errors(case: &mut Case<'_>, _: &Context<'_>) {
    for frame in errors(case) {
        let Some((at, 4)) = packet(frame) else { continue };
        let old = u16::from_be_bytes([frame[at], frame[at + 1]]);
        let sum = u16::from_be_bytes([frame[at + 10], frame[at + 11]]);
        frame[at + 1] = 0xc0;
        frame[at + 10..at + 12].copy_from_slice(&update_u16(sum, old, old & 0xff00 | 0xc0).to_be_bytes());
    }
}

/// The kernel looks for a route before it looks at the TTL.
fn time_before_route(case: &mut Case<'_>, _: &Context<'_>) {
    let Some((at, version)) = packet(&case.sent.frame) else { return };
    let ttl = case.sent.frame.get(at + if version == 4 { 8 } else { 7 });
    let kind = |left: &[Left]| left.iter().find_map(|(_, frame)| error(frame)).map(|(kind, _, _)| kind);
    let expected = if version == 4 { (Some(3), Some(11)) } else { (Some(1), Some(3)) };
    if ttl.is_some_and(|ttl| *ttl <= 1) && (kind(&case.only[KERNEL]), kind(&case.only[BYWASH])) == expected {
        drop_all(case);
    }
}

/// The kernel's ICMPv6 errors come from the interface by which the packet came, Bywash's from the one that the error leaves by.
fn source_of_errors(case: &mut Case<'_>, _: &Context<'_>) {
    for frame in errors(case) {
        if let Some((at, 6)) = packet(frame) {
            frame[at + 8..at + 24].fill(0);
            frame[at + 42..at + 44].fill(0);
        }
    }
}

/// The kernel answers ICMP of the types it knows only.
fn errors_about_icmp(case: &mut Case<'_>, _: &Context<'_>) {
    let Some((at, 4)) = packet(&case.sent.frame) else { return };
    let icmp = case.sent.frame.get(at + 9) == Some(&1);
    if icmp && case.only[KERNEL].is_empty() && case.only[BYWASH].iter().all(|(_, frame)| error(frame).is_some()) {
        drop_all(case);
    }
}

/// Bywash sends no error about packets with extension headers that it does not follow, nor about redirects.
fn odd_extensions(case: &mut Case<'_>, _: &Context<'_>) {
    let Some((at, 6)) = packet(&case.sent.frame) else { return };
    let redirect = case.sent.frame.get(at + 6) == Some(&58) && case.sent.frame.get(at + 40) == Some(&137);
    let extended = case.sent.frame.get(at + 6).is_some_and(|next| [0, 43, 44, 51, 60, 135].contains(next));
    if (extended || redirect)
        && case.only[BYWASH].is_empty()
        && case.only[KERNEL].iter().all(|(_, frame)| error(frame).is_some())
    {
        drop_all(case);
    }
}

/// Bywash sends no error by an interface that is no port.
fn error_by_no_port(case: &mut Case<'_>, context: &Context<'_>) {
    let there = |(port, frame): &Left| *port >= context.ports && error(frame).is_some();
    if case.only[BYWASH].is_empty() && case.only[KERNEL].iter().all(there) {
        drop_all(case);
    }
}

/// The kernel forwards what has no source back by the interface it came from (ip6_forward looks at sources where it
/// sends no redirect).
fn unspecified(case: &mut Case<'_>, _: &Context<'_>) {
    let Some((at, 6)) = packet(&case.sent.frame) else { return };
    if case.sent.frame.get(at + 8..at + 24) == Some(&[0; 16]) && case.only[BYWASH].is_empty() {
        drop_all(case);
    }
}

/// The kernel answers a source that is the broadcast address of one of its networks, Bywash does not.
fn broadcast_source(case: &mut Case<'_>, _: &Context<'_>) {
    let all_to_broadcast = case.only[KERNEL].iter().all(|(_, frame)| frame[..6] == [0xff; 6] && error(frame).is_some());
    if case.only[BYWASH].is_empty() && all_to_broadcast {
        drop_all(case);
    }
}

fn redirects(case: &mut Case<'_>, _: &Context<'_>) {
    let of_its_own = ends(&case.sent.frame).map(<[u8]>::to_vec);
    let is = |frame: &[u8]| {
        let kind = error(frame).map(|(kind, _, _)| kind);
        let version = packet(frame).map(|(_, version)| version);
        ends(frame) != of_its_own.as_deref() && matches!((version, kind), (Some(4), Some(5)) | (Some(6), Some(137)))
    };
    // What is passed to the kernel it answers so, too, a few a second.
    case.only.iter_mut().for_each(|side| side.retain(|(_, frame)| !is(frame)));
}

/// Where the checksum of TCP or UDP lies in a frame, and its pseudo-header's sum.
fn transport(frame: &[u8]) -> Option<(usize, u16)> {
    let (at, version) = packet(frame)?;
    let word = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
    let (protocol, payload, length) = match version {
        4 => {
            let header = usize::from(frame.get(at)? & 15) * 4;
            (*frame.get(at + 9)?, at + header, usize::from(word(at + 2)?).checked_sub(header)?)
        }
        _ => {
            let (mut next, mut begin, mut left) = (*frame.get(at + 6)?, at + 40, usize::from(word(at + 4)?));
            while [0, 43, 44, 51, 60, 135].contains(&next) {
                let units = usize::from(*frame.get(begin + 1)?);
                let length = match next {
                    44 => 8,
                    51 => (units + 2) * 4,
                    _ => (units + 1) * 8,
                };
                (next, begin, left) = (*frame.get(begin)?, begin + length, left.checked_sub(length)?);
            }
            (next, begin, left)
        }
    };
    let sum = match version {
        4 => pseudo4(frame.get(at..at + 20)?.try_into().unwrap(), protocol, length as u16),
        _ => pseudo6(frame.get(at..at + 40)?.try_into().unwrap(), protocol, length as u32),
    };
    match protocol {
        17 => Some((payload + 6, sum.fold())),
        6 => Some((payload + 16, sum.fold())),
        _ => None,
    }
}

fn unfinished(case: &mut Case<'_>, _: &Context<'_>) {
    let Some((at, pseudo)) = transport(&case.sent.frame) else { return };
    if case.sent.frame.get(at..at + 2) != Some(&pseudo.to_be_bytes()) {
        return;
    }
    let field = at - packet(&case.sent.frame).unwrap().0;
    for frame in case.only.iter_mut().flatten().map(|(_, frame)| frame) {
        let quoted = error(frame).map(|(_, _, quoted)| frame.len() - quoted.len());
        // An error's own checksum is that of what it quotes.
        if let Some((at, version)) = packet(frame).filter(|_| quoted.is_some()) {
            let header = if version == 4 { usize::from(frame[at] & 15) * 4 } else { 40 };
            frame[at + header + 2..at + header + 4].fill(0);
        }
        let at = quoted.or(packet(frame).map(|(at, _)| at)).unwrap_or(0) + field;
        if let Some(sum) = frame.get_mut(at..at + 2) {
            sum.fill(0);
        }
    }
}

fn reserved(case: &mut Case<'_>, _: &Context<'_>) {
    let Some((at, 4)) = packet(&case.sent.frame) else { return };
    let Some(ends) = case.sent.frame.get(at + 12..at + 20) else { return };
    let reserved = ends[0] >= 240 || ends[4] >= 240 || ends[0] == 0;
    if reserved && case.only[BYWASH].is_empty() {
        drop_all(case);
    }
}

fn icmp6_fragment(case: &mut Case<'_>, _: &Context<'_>) {
    let frame = &case.sent.frame;
    let Some((at, 6)) = packet(frame) else { return };
    let fragment = frame.get(at + 6) == Some(&44) && frame.get(at + 40) == Some(&58);
    let later = frame.get(at + 42..at + 44).is_some_and(|place| u16::from_be_bytes([place[0], place[1]]) >= 8);
    let is_error = |(_, frame): &Left| error(frame).is_some();
    if fragment && later && case.only[BYWASH].is_empty() && case.only[KERNEL].iter().all(is_error) {
        drop_all(case);
    }
}

/// The route that the kernel takes has several next hops, and Bywash sent by one of them; or that of an error has.
fn equal_paths(case: &mut Case<'_>, context: &Context<'_>) {
    let Some((src, dst, tos)) = addresses(&case.sent.frame) else { return };
    let iif = format!("p{}", case.sent.port + 1);
    let of_errors = errors(case).count() > 0;
    let there = fib_match(context, &["route", "get", "fibmatch", &dst, "from", &src, "iif", &iif, "tos", &tos]);
    let back = of_errors.then(|| fib_match(context, &["route", "get", "fibmatch", &src])).flatten();
    for route in there.into_iter().chain(back) {
        let ways = route.matches("nexthop ").count();
        if ways > 1 && case.only[BYWASH].iter().all(|(port, _)| route.contains(&format!("dev p{} ", port + 1))) {
            drop_all(case);
        }
    }
}

fn fib_match(context: &Context<'_>, argv: &[&str]) -> Option<String> {
    context.kernel.router.ip(argv).ok().map(|output| output.stdout.replace('\n', " "))
}

/// Source, destination and type of service.
fn addresses(frame: &[u8]) -> Option<(String, String, String)> {
    let (at, version) = packet(frame)?;
    if version == 4 {
        let address =
            |at: usize| Some(Ipv4Addr::from(<[u8; 4]>::try_from(frame.get(at..at + 4)?).unwrap()).to_string());
        return Some((address(at + 12)?, address(at + 16)?, format!("0x{:02x}", frame.get(at + 1)? & 0x1c)));
    }
    let address = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(frame.get(at..at + 16)?).unwrap()).to_string());
    Some((address(at + 8)?, address(at + 24)?, "0".into()))
}
