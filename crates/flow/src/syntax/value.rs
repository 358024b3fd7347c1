//! Parsers of values: numbers, addresses, ports, and field values with masks.

use super::PortNames;
use super::text::{SyntaxError, Text};
use crate::field::{Field, Form, Subfield, ones};
use crate::model::OfPort;
use std::net::{Ipv4Addr, Ipv6Addr};

type Result<T> = std::result::Result<T, SyntaxError>;

/// Parses a number of at most `bits` bits: decimal, hexadecimal with `0x`, or, as in OVS, octal with a leading 0.
pub fn number(text: Text<'_>, bits: u32) -> Result<u128> {
    let str = text.str();
    let parsed = if let Some(hex) = str.strip_prefix("0x").or_else(|| str.strip_prefix("0X")) {
        u128::from_str_radix(hex, 16)
    } else if str.len() > 1 && str.starts_with('0') {
        u128::from_str_radix(&str[1..], 8)
    } else {
        str.parse()
    };
    match parsed {
        Ok(n) if n <= ones(bits) && !str.contains('+') => Ok(n),
        Ok(n) => text.wrong(format!("{n} is too large: at most {}", ones(bits))),
        Err(_) => text.wrong(format!("invalid number `{str}`")),
    }
}

/// Parses a number as [`number`] does, but a leading 0 means nothing. OVS reads ports and tables so.
pub fn decimal<T: TryFrom<u128>>(text: Text<'_>, bits: u32) -> Result<T> {
    let zeros = text.str().len() - text.str().trim_start_matches('0').len();
    let digits = text.str().bytes().all(|b| b.is_ascii_digit());
    small(if digits { text.from(zeros.min(text.str().len().saturating_sub(1))) } else { text }, bits)
}

pub fn small<T: TryFrom<u128>>(text: Text<'_>, bits: u32) -> Result<T> {
    match T::try_from(number(text, bits)?) {
        Ok(n) => Ok(n),
        Err(_) => text.wrong("the number is too large"),
    }
}

pub fn mac(text: Text<'_>) -> Result<u128> {
    let mut value = 0;
    let mut parts = 0;
    for part in text.str().split(':') {
        let ok = (1..=2).contains(&part.len()) && part.bytes().all(|b| b.is_ascii_hexdigit());
        let Ok(byte) = u8::from_str_radix(part, 16) else { break };
        if !ok {
            parts = 0;
            break;
        }
        value = value << 8 | u128::from(byte);
        parts += 1;
    }
    if parts == 6 && text.str().matches(':').count() == 5 {
        Ok(value)
    } else {
        text.wrong(format!("invalid Ethernet address `{}`: expected xx:xx:xx:xx:xx:xx", text.str()))
    }
}

fn ip4(text: Text<'_>) -> Result<u128> {
    match text.str().parse::<Ipv4Addr>() {
        Ok(addr) => Ok(u128::from(addr.to_bits())),
        Err(_) => text.wrong(format!("invalid IPv4 address `{}`", text.str())),
    }
}

fn ip6(text: Text<'_>) -> Result<u128> {
    match text.str().parse::<Ipv6Addr>() {
        Ok(addr) => Ok(addr.to_bits()),
        Err(_) => text.wrong(format!("invalid IPv6 address `{}`", text.str())),
    }
}

/// Parses a port's number or name. The names of special ports are not case-sensitive. `any` is OpenFlow's newer name of
/// `none`.
pub fn port(text: Text<'_>, names: PortNames<'_>) -> Result<OfPort> {
    let str = text.str().trim_matches('"');
    if str.eq_ignore_ascii_case("any") {
        return Ok(OfPort::NONE);
    }
    if let Some((_, port)) = OfPort::NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(str)) {
        return Ok(*port);
    }
    if str.starts_with(|c: char| c.is_ascii_digit()) {
        let number: u16 = decimal(text, 16)?;
        let special = OfPort::NAMES.iter().any(|(_, port)| port.0 == number);
        return if number < OfPort::MAX || special {
            Ok(OfPort(number))
        } else {
            text.wrong(format!("invalid port number {number}: must be below {}", OfPort::MAX))
        };
    }
    match names(str) {
        Some(port) => Ok(port),
        None => text.wrong(format!("unknown port `{str}`: use its number for a port that is added later")),
    }
}

/// Parses a prefix length and returns it as a mask of `bits` bits.
fn prefix(text: Text<'_>, bits: u32) -> Result<u128> {
    match text.str().parse::<u32>() {
        Ok(len) if len <= bits => Ok(ones(bits) & !ones(bits - len)),
        _ => text.wrong(format!("invalid prefix length `{}`: must be 0 to {bits}", text.str())),
    }
}

/// Refuses bits that the field does not have.
pub fn within(text: Text<'_>, field: Field, value: u128) -> Result<u128> {
    match value & !field.all() {
        0 => Ok(value),
        _ => text.wrong(format!("the lowest two bits of {} must be 0: use nw_ecn", field.name())),
    }
}

/// Parses a field's value without a mask.
fn plain(text: Text<'_>, field: Field, names: PortNames<'_>) -> Result<u128> {
    match field.info().form {
        Form::Mac => mac(text),
        Form::Ip4 => ip4(text),
        Form::Ip6 => ip6(text),
        Form::Port => Ok(u128::from(port(text, names)?.0)),
        Form::Frag | Form::TcpFlags | Form::Decimal | Form::Hex => {
            within(text, field, number(text, field.info().bits)?)
        }
    }
}

const FLAGS: [&str; 12] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns", "[9]", "[10]", "[11]"];

/// Parses TCP flags such as `+syn-ack`, where `+` means set and `-` means not set.
fn tcp_flags(text: Text<'_>) -> Result<(u128, u128)> {
    let (mut value, mut mask) = (0, 0);
    let mut rest = text;
    while let Some(sign) = rest.str().chars().next() {
        let name_end = rest.str()[1..].find(['+', '-']).map_or(rest.str().len(), |at| at + 1);
        let name = rest.sub(1, name_end);
        let Some(bit) = FLAGS.iter().position(|f| *f == name.str()) else {
            return name.wrong(format!("unknown TCP flag `{}`: use {}", name.str(), FLAGS[..9].join(", ")));
        };
        if mask >> bit & 1 == 1 {
            return name.wrong("this flag is given twice");
        }
        mask |= 1 << bit;
        value |= u128::from(sign == '+') << bit;
        rest = rest.from(name_end);
    }
    Ok((value, mask))
}

/// Formats TCP flags like `+syn-ack`.
pub fn show_flags(value: u128, mask: u128) -> String {
    let bits = (0..FLAGS.len()).filter(|bit| mask >> bit & 1 == 1);
    bits.map(|bit| format!("{}{}", if value >> bit & 1 == 1 { '+' } else { '-' }, FLAGS[bit])).collect()
}

/// Values of `ip_frag`: name, value and mask.
pub const FRAGS: [(&str, u128, u128); 5] =
    [("no", 0, 3), ("yes", 1, 1), ("first", 1, 3), ("later", 3, 3), ("not_later", 0, 2)];

/// Parses a field's value and mask: `value`, `value/mask` or `address/length`.
pub fn masked(text: Text<'_>, field: Field, names: PortNames<'_>) -> Result<(u128, u128)> {
    let info = field.info();
    if text.is_empty() {
        return text.wrong(format!("{} needs a value", field.name()));
    }
    match info.form {
        Form::Frag => {
            return match FRAGS.iter().find(|(name, ..)| *name == text.str()) {
                Some((_, value, mask)) => Ok((*value, *mask)),
                None => text.wrong(format!("unknown value `{}`: use no, yes, first, later or not_later", text.str())),
            };
        }
        Form::TcpFlags if text.str().starts_with(['+', '-']) => return tcp_flags(text),
        _ => {}
    }
    let Some((value, mask)) = text.split("/") else { return Ok((plain(text, field, names)?, field.all())) };
    let value = plain(value, field, names)?;
    let bits = match info.form {
        Form::Mac => mac(mask)?,
        Form::Ip4 if mask.str().contains('.') => ip4(mask)?,
        Form::Ip6 if mask.str().contains(':') => ip6(mask)?,
        Form::Ip4 | Form::Ip6 => prefix(mask, info.bits)?,
        _ => number(mask, info.bits)?,
    };
    if bits != field.all() && !info.maskable {
        return mask.wrong(format!("{} cannot be masked", field.name()));
    }
    Ok((value, bits))
}

/// Parses a subfield: `NXM_NX_REG0[4..7]`, `reg0[3]`, `NXM_OF_ETH_SRC[]`, `eth_src`.
pub fn subfield(text: Text<'_>) -> Result<Subfield> {
    let (name, range) = match text.str().find('[') {
        Some(at) => (text.sub(0, at), Some(text.from(at))),
        None => (text, None),
    };
    let Some(field) = Field::find(name.str()) else {
        return name.wrong(format!("unknown field `{}`", name.str()));
    };
    let whole = Subfield::whole(field);
    let Some(range) = range else { return Ok(whole) };
    let Some(inner) = range.str().strip_suffix(']').map(|s| range.sub(1, s.len())) else {
        return range.wrong("missing `]` for this `[`");
    };
    if inner.is_empty() {
        return Ok(whole);
    }
    let (first, last) = match inner.split("..") {
        Some((first, last)) => (small::<u32>(first, 16)?, small::<u32>(last, 16)?),
        None => {
            let bit = small(inner, 16)?;
            (bit, bit)
        }
    };
    if first > last || last >= whole.bits {
        return inner.wrong(format!("invalid bit range: {} has bits 0 to {}", field.name(), whole.bits - 1));
    }
    Ok(Subfield { field, low: first, bits: last - first + 1 })
}
