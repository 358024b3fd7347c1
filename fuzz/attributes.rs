//! Netlink datagrams made of random input; included by the properties of the parsers.

/// Messages that an input can choose from.
pub struct Choice {
    /// Kinds of messages.
    pub kinds: &'static [u16],
    /// Families, for the first octet of the body.
    pub families: &'static [u8],
    /// Size in octets of the fixed header behind the message's own, by kind.
    pub fixed: fn(u16) -> usize,
}

/// Most octets of a value, and of an attribute's kind.
const VALUE: u8 = 40;
const KINDS: u8 = 48;
/// First token of each meaning: an attribute with a length that is right or wrong, the beginning and the end of nested
/// attributes or, outside of these, of a message.
const WRONG: u8 = 2 * KINDS;
const NEST: u8 = WRONG + KINDS;
const END: u8 = NEST + KINDS;
/// Most octets of a datagram, whose attributes have lengths of 16 bits.
const LONGEST: usize = 60_000;

/// Returns a datagram for an input. Behind an even first byte this is the rest of the input. Behind an odd one, the
/// rest describes messages whose lengths are right, however the attributes are nested: random input seldom has such.
pub fn datagram(data: &[u8], choice: &Choice) -> Vec<u8> {
    match data.split_first() {
        Some((first, rest)) if first % 2 == 0 => rest.to_vec(),
        Some((_, rest)) => described(rest, choice),
        None => vec![],
    }
}

fn described(data: &[u8], choice: &Choice) -> Vec<u8> {
    let mut out: Vec<u8> = vec![];
    let mut rest = data.iter().copied();
    while let (Some(kind), Some(flags)) = (rest.next(), rest.next()) {
        let start = out.len();
        let kind = choice.kinds[usize::from(kind) % choice.kinds.len()];
        out.extend([0; 4]);
        out.extend(kind.to_ne_bytes());
        // NLM_F_REPLACE, NLM_F_EXCL, NLM_F_CREATE and NLM_F_APPEND are in the upper byte.
        out.extend((u16::from(flags) << 8).to_ne_bytes());
        out.extend([0; 8]);
        out.extend((0..(choice.fixed)(kind)).map(|_| rest.next().unwrap_or(0)));
        if let Some(family) = out.get_mut(start + 16) {
            *family = choice.families[usize::from(*family) % choice.families.len()];
        }
        out.resize(out.len().next_multiple_of(4), 0);
        attributes(&mut rest, &mut out);
        let len = (out.len() - start) as u32;
        out[start..start + 4].copy_from_slice(&len.to_ne_bytes());
        if out.len() > LONGEST {
            break;
        }
    }
    out
}

fn attributes(rest: &mut impl Iterator<Item = u8>, out: &mut Vec<u8>) {
    let mut nests = vec![];
    let close = |start: usize, out: &mut Vec<u8>| {
        let len = (out.len() - start) as u16;
        out[start..start + 2].copy_from_slice(&len.to_ne_bytes());
    };
    while let Some(token) = rest.next() {
        let start = out.len();
        if start > LONGEST {
            break;
        }
        if token >= END {
            match nests.pop() {
                Some(start) => close(start, out),
                None => break,
            }
        } else {
            out.extend([0; 2]);
            out.extend(u16::from(token % KINDS).to_ne_bytes());
            if token >= NEST {
                nests.push(start);
            } else {
                let len = rest.next().unwrap_or(0) % VALUE;
                out.extend((0..len).map(|_| rest.next().unwrap_or(0)));
                let len = u16::from(len) + 4 + if token >= WRONG { 3 } else { 0 };
                out[start..start + 2].copy_from_slice(&len.to_ne_bytes());
                out.resize(out.len().next_multiple_of(4), 0);
            }
        }
    }
    nests.into_iter().rev().for_each(|start| close(start, out));
}
