//! Rules as text, close to what nft prints.

use super::expression::{To, fib, source_nat};
use super::{Comparison, Expression, Rule, Verdict, ct, meta};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Content of a register.
#[derive(Clone)]
struct Named {
    name: String,
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    /// A number in network order.
    Number,
    /// A number in the machine's order.
    Host,
    /// Bits of `ct state`.
    State,
    /// Address of IPv4, or its first octets.
    Address,
    /// Address of IPv6, or its first octets.
    Address6,
    /// Name of an interface.
    Name,
    /// Family (NFPROTO_*).
    Family,
    /// IP protocol.
    Protocol,
}

impl Rule {
    /// Returns the rule as text. Where nft has a shorter way to say something, nft's text differs.
    pub fn text(&self) -> String {
        let mut registers: BTreeMap<usize, Named> = BTreeMap::new();
        let mut words = Vec::new();
        for expression in &self.expressions {
            words.extend(word(expression, &mut registers));
        }
        if let Some(comment) = &self.comment {
            words.push(format!("comment \"{comment}\""));
        }
        words.join(" ")
    }
}

/// Returns the words of an expression; `None` if it only puts something into a register.
fn word(expression: &Expression, registers: &mut BTreeMap<usize, Named>) -> Option<String> {
    let known = |registers: &BTreeMap<usize, Named>, at: &usize| {
        registers.get(at).cloned().unwrap_or(Named { name: format!("register {at}"), format: Format::Number })
    };
    let mut put = |at: usize, name: String, format| {
        registers.insert(at, Named { name, format });
        None
    };
    match expression {
        Expression::Immediate { register, value } => put(*register, hex(value), Format::Number),
        Expression::Meta { key, register } => {
            let format = match *key {
                meta::IIFNAME | meta::OIFNAME => Format::Name,
                meta::PROTOCOL => Format::Number,
                meta::NFPROTO => Format::Family,
                meta::L4PROTO => Format::Protocol,
                _ => Format::Host,
            };
            let own = matches!(*key, meta::IIF | meta::OIF | meta::IIFNAME | meta::OIFNAME);
            put(*register, format!("{}{}", if own { "" } else { "meta " }, meta::name(*key)), format)
        }
        Expression::Ct { key, direction, register } => {
            let format = match *key {
                ct::STATE => Format::State,
                ct::SRC | ct::DST | ct::SRC_IP | ct::DST_IP | ct::SRC_IP6 | ct::DST_IP6 => Format::Address,
                ct::PROTO_SRC | ct::PROTO_DST => Format::Number,
                _ => Format::Host,
            };
            let name = ct::name(*key);
            let name = match direction {
                Some(0) => name.replacen("ct ", "ct original ", 1),
                Some(_) => name.replacen("ct ", "ct reply ", 1),
                None => name.to_owned(),
            };
            put(*register, name, format)
        }
        Expression::Payload { base, offset, len, register } => {
            let (name, format) = field(*base, *offset, *len);
            put(*register, name, format)
        }
        Expression::Bitwise { from, to, mask, xor } => {
            let Named { name, format } = known(registers, from);
            let prefix = mask.iter().map(|octet| octet.leading_ones()).sum::<u32>();
            let whole = mask.iter().map(|octet| octet.count_ones()).sum::<u32>() == prefix;
            let name = match format {
                Format::State => format!("{name} {}", states(mask)),
                Format::Address | Format::Address6 if whole => format!("{name}/{prefix}"),
                _ if xor.iter().all(|octet| *octet == 0) => format!("{name} & {}", number(mask, format)),
                _ => format!("{name} & {} ^ {}", number(mask, format), number(xor, format)),
            };
            registers.insert(*to, Named { name, format });
            None
        }
        Expression::ByteOrder { from, to, .. } => {
            let Named { name, .. } = known(registers, from);
            registers.insert(*to, Named { name, format: Format::Number });
            None
        }
        Expression::Compare { register, by, value } => {
            let Named { name, format } = known(registers, register);
            // `ct state & (established | related) != 0`
            if format == Format::State && value.iter().all(|octet| *octet == 0) && name.contains(' ') {
                return Some(if *by == Comparison::NotEqual { name } else { format!("{name} unset") });
            }
            let sign = match by {
                Comparison::Equal => "",
                Comparison::NotEqual => "!= ",
                Comparison::Less => "< ",
                Comparison::LessOrEqual => "<= ",
                Comparison::Greater => "> ",
                Comparison::GreaterOrEqual => ">= ",
            };
            Some(format!("{name} {sign}{}", shown(value, format)))
        }
        Expression::Range { register, inside, from, to } => {
            let Named { name, format } = known(registers, register);
            let sign = if *inside { "" } else { "!= " };
            Some(format!("{name} {sign}{}-{}", shown(from, format), shown(to, format)))
        }
        Expression::Lookup { set, key, data, invert } => {
            // The fields of a concatenation follow each other.
            let fields: Vec<&str> = registers.range(key..).map(|(_, named)| named.name.as_str()).collect();
            let sign = if *invert { "!= " } else { "" };
            let map = match data {
                None => "",
                Some(To::Verdict) => "vmap ",
                Some(To::Register(_)) => "map ",
            };
            Some(format!("{} {sign}{map}@{set}", fields.join(" . ")))
        }
        Expression::Verdict(verdict) => Some(match verdict {
            Verdict::Accept => "accept".into(),
            Verdict::Drop => "drop".into(),
            Verdict::Continue => "continue".into(),
            Verdict::Break => "break".into(),
            Verdict::Return => "return".into(),
            Verdict::Jump(chain) => format!("jump {chain}"),
            Verdict::Goto(chain) => format!("goto {chain}"),
            Verdict::Other(how) => how.clone(),
        }),
        Expression::Counter { name: Some(name) } => Some(format!("counter name {name}")),
        Expression::Counter { name: None } => Some("counter".into()),
        Expression::Match { name, .. } => Some(format!("xt match {name}")),
        Expression::SourceNat { address } => Some(source_nat(*address).into()),
        Expression::FlowAdd => Some("flow add".into()),
        Expression::Mark { .. } => Some("xt target MARK".into()),
        Expression::Fib { result, flags, register } => {
            let number = *result == fib::OIFNAME || flags & fib::PRESENT != 0;
            put(*register, fib::text(*result, *flags), if number { Format::Number } else { Format::Host })
        }
        Expression::Reads { how, register } => match register {
            Some(register) => put(*register, how.clone(), Format::Number),
            None => {
                registers.insert(0, Named { name: how.clone(), format: Format::Number });
                None
            }
        },
        Expression::Update { set, .. } => Some(format!("update @{set}")),
        Expression::Acts { how, .. } => Some(how.clone()),
    }
}

/// Returns nft's name of octets of a packet.
fn field(base: u32, offset: u32, len: u32) -> (String, Format) {
    let (name, format) = match (base, offset, len) {
        (1, 1, 1) => ("ip dscp", Format::Number),
        (1, 8, 1) => ("ip ttl", Format::Number),
        (1, 9, 1) => ("ip protocol", Format::Protocol),
        (1, 6, 1) => ("ip6 nexthdr", Format::Protocol),
        // nft loads no more octets than a prefix has.
        (1, 12, 1..=4) => ("ip saddr", Format::Address),
        (1, 16, 1..=4) => ("ip daddr", Format::Address),
        (1, 8, 2..=16) => ("ip6 saddr", Format::Address6),
        (1, 24, 1..=16) => ("ip6 daddr", Format::Address6),
        (2, 0, 2) => ("sport", Format::Number),
        (2, 2, 2) => ("dport", Format::Number),
        (2, 13, 1) => ("tcp flags", Format::Number),
        _ => {
            let base = ["ll", "nh", "th", "ih"].get(base as usize).unwrap_or(&"payload");
            // Any offset can be given; none of the kernel's headers is that long.
            let bits = |octets: u32| u64::from(octets) * 8;
            return (format!("@{base},{},{}", bits(offset), bits(len)), Format::Number);
        }
    };
    (name.into(), format)
}

fn shown(value: &[u8], format: Format) -> String {
    match format {
        Format::State => states(value),
        Format::Name => {
            let end = value.iter().position(|octet| *octet == 0);
            let name = String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]);
            format!("\"{name}{}\"", if end.is_none() { "*" } else { "" })
        }
        // Only the length distinguishes the families of a ct key's address.
        Format::Address if value.len() <= 4 => {
            let mut octets = [0; 4];
            octets[..value.len()].copy_from_slice(value);
            format!("{}{}", Ipv4Addr::from(octets), prefix(value, 4))
        }
        Format::Address | Format::Address6 if value.len() <= 16 => {
            let mut octets = [0; 16];
            octets[..value.len()].copy_from_slice(value);
            format!("{}{}", Ipv6Addr::from(octets), prefix(value, 16))
        }
        format => match (format, value) {
            (Format::Family, [2]) => "ipv4".into(),
            (Format::Family, [10]) => "ipv6".into(),
            (Format::Protocol, [1]) => "icmp".into(),
            (Format::Protocol, [6]) => "tcp".into(),
            (Format::Protocol, [17]) => "udp".into(),
            (Format::Protocol, [58]) => "icmpv6".into(),
            _ => number(value, format),
        },
    }
}

/// Returns the length of a prefix that ends with an octet, if `value` is not a whole address.
fn prefix(value: &[u8], whole: usize) -> String {
    if value.len() < whole { format!("/{}", 8 * value.len()) } else { String::new() }
}

fn number(value: &[u8], format: Format) -> String {
    let host = format == Format::Host && cfg!(target_endian = "little");
    let octets: Vec<u8> = if host { value.iter().rev().copied().collect() } else { value.to_vec() };
    match octets.len() {
        1..=8 => octets.iter().fold(0u64, |number, octet| number << 8 | u64::from(*octet)).to_string(),
        _ => hex(&octets),
    }
}

fn hex(octets: &[u8]) -> String {
    octets.iter().fold("0x".to_owned(), |mut text, octet| {
        let _ = write!(text, "{octet:02x}");
        text
    })
}

/// Returns the names of the bits of `ct state`.
fn states(value: &[u8]) -> String {
    const NAMES: [(u32, &str); 5] = [(1, "invalid"), (2, "established"), (4, "related"), (8, "new"), (64, "untracked")];
    let Ok(bits) = value.try_into().map(u32::from_ne_bytes) else { return hex(value) };
    let names: Vec<&str> = NAMES.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| *name).collect();
    if names.is_empty() { bits.to_string() } else { names.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_read_as_nft_prints_them() {
        let text =
            |expressions: &[Expression]| Rule { handle: 1, expressions: expressions.to_vec(), comment: None }.text();
        let compare = |by, value: &[u8]| Expression::Compare { register: 0, by, value: value.to_vec() };
        let equal = |value: &[u8]| compare(Comparison::Equal, value);
        let bitwise =
            |mask: &[u8]| Expression::Bitwise { from: 0, to: 0, mask: mask.to_vec(), xor: vec![0; mask.len()] };
        let payload = |base, offset, len, register| Expression::Payload { base, offset, len, register };
        let load = |key| Expression::Meta { key, register: 0 };
        let accept = || Expression::Verdict(Verdict::Accept);
        let state = Expression::Ct { key: ct::STATE, direction: None, register: 0 };
        let any = [bitwise(&6u32.to_ne_bytes()), compare(Comparison::NotEqual, &[0; 4])];
        assert_eq!(text(&[&[state], &any[..], &[accept()]].concat()), "ct state established,related accept");
        assert_eq!(text(&[load(meta::IIFNAME), equal(b"p0\0\0"), accept()]), "iifname \"p0\" accept");
        assert_eq!(text(&[load(meta::OIFNAME), equal(b"p")]), "oifname \"p*\"");
        assert_eq!(text(&[load(meta::L4PROTO), equal(&[17])]), "meta l4proto udp");
        assert_eq!(text(&[load(meta::MARK), equal(&7u32.to_ne_bytes())]), "meta mark 7");
        assert_eq!(text(&[payload(1, 12, 4, 0), equal(&[10, 0, 0, 1])]), "ip saddr 10.0.0.1");
        assert_eq!(text(&[payload(1, 12, 2, 0), equal(&[10, 66])]), "ip saddr 10.66.0.0/16");
        assert_eq!(text(&[payload(1, 24, 8, 0), equal(&[0xfd, 0, 0, 1, 0, 0, 0, 0])]), "ip6 daddr fd00:1::/64");
        assert_eq!(text(&[payload(2, u32::MAX, 4, 0), equal(&[1])]), "@th,34359738360,32 1");
        let net = [payload(1, 16, 4, 0), bitwise(&[255, 255, 240, 0]), equal(&[10, 0, 16, 0])];
        assert_eq!(text(&net), "ip daddr/20 10.0.16.0");
        let range = Expression::Range { register: 0, inside: false, from: vec![0, 1], to: vec![0, 80] };
        assert_eq!(text(&[payload(2, 2, 2, 0), range]), "dport != 1-80");
        let lookup = Expression::Lookup { set: "s".into(), key: 0, data: Some(To::Verdict), invert: false };
        assert_eq!(text(&[payload(1, 12, 4, 0), payload(2, 2, 2, 4), lookup]), "ip saddr . dport vmap @s");
        let rule = Rule { handle: 1, expressions: vec![accept()], comment: Some("x".into()) };
        assert_eq!(rule.text(), "accept comment \"x\"");
    }
}
