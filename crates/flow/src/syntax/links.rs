//! Parsers of `multipath`, `bundle` and `bundle_load`.

use super::PortNames;
use super::actions::writable;
use super::text::{SyntaxError, Text};
use super::value::{port, small, subfield};
use crate::field::{Subfield, ones};
use crate::model::{Action, Bundle, Hashed, Multipath};

type Result<T> = std::result::Result<T, SyntaxError>;

/// Maximum number of members of a bundle, the same as OVS's.
const MEMBERS: usize = 2048;

/// Returns the argument before the next comma, and removes both.
fn argument<'a>(text: &mut Text<'a>, what: &str) -> Result<Text<'a>> {
    if text.is_empty() {
        return text.wrong(format!("missing {what}"));
    }
    let (argument, rest) = text.split(",").unwrap_or((*text, text.from(text.str().len())));
    *text = rest;
    Ok(argument.trim())
}

fn hashed(text: Text<'_>) -> Result<Hashed> {
    match Hashed::NAMES.iter().find(|(name, _)| *name == text.str()) {
        Some((_, hashed)) => Ok(*hashed),
        None => {
            let names = Hashed::NAMES.map(|(name, _)| name).join(", ");
            text.wrong(format!("unknown fields `{}`: use one of {names}", text.str()))
        }
    }
}

fn target(text: Text<'_>) -> Result<Subfield> {
    let to = subfield(text)?;
    writable(text, to.field).map(|()| to)
}

/// Parses `fields,basis,algorithm,links,arg,field[from..to]`.
pub fn multipath(mut text: Text<'_>) -> Result<Action> {
    let hashed = hashed(argument(&mut text, "the fields to hash")?)?;
    let basis = small(argument(&mut text, "the basis")?, 16)?;
    let name = argument(&mut text, "the algorithm")?;
    let Some(algorithm) = Multipath::ALGORITHMS.into_iter().find(|known| *known == name.str()) else {
        return name.wrong(format!("unknown algorithm: use one of {}", Multipath::ALGORITHMS.join(", ")));
    };
    let count = argument(&mut text, "the number of links")?;
    let links: u32 = small(count, 16)?;
    if !(1..=65535).contains(&links) {
        return count.wrong("the number of links must be 1 to 65535");
    }
    let arg = small(argument(&mut text, "the algorithm's argument")?, 32)?;
    let to = target(text)?;
    if u128::from(links - 1) > ones(to.bits) {
        return text.wrong(format!("{} bits are too few for {links} links", to.bits));
    }
    Ok(Action::Multipath(Multipath { hashed, basis, algorithm, links, arg, to }))
}

/// Parses `fields,basis,algorithm,ofport,members:port,..`; `load`: with `field[from..to]` in front of the members.
pub fn bundle(mut text: Text<'_>, names: PortNames<'_>, load: bool) -> Result<Action> {
    let hashed = hashed(argument(&mut text, "the fields to hash")?)?;
    let basis = small(argument(&mut text, "the basis")?, 16)?;
    let name = argument(&mut text, "the algorithm")?;
    let by_hash = match name.str() {
        "hrw" => true,
        "active_backup" => false,
        _ => return name.wrong("unknown algorithm: use active_backup or hrw"),
    };
    let kind = argument(&mut text, "the type of the members")?;
    if kind.str() != "ofport" {
        return kind.wrong("unknown type of members: use ofport");
    }
    let to = if load { Some(target(argument(&mut text, "the field to load")?)?) } else { None };
    let list = text.split("members:").or_else(|| text.split("slaves:"));
    let Some((_, mut list)) = list.filter(|(before, _)| before.trim().is_empty()) else {
        return text.wrong("missing `members:`");
    };
    let mut members = Vec::new();
    while !list.is_empty() {
        if members.len() == MEMBERS {
            return list.wrong(format!("too many members: at most {MEMBERS}"));
        }
        members.push(port(argument(&mut list, "a port")?, names)?);
    }
    if to.is_some_and(|to| to.bits < 16) {
        return text.wrong("a port's number has 16 bits: the field is too narrow");
    }
    Ok(Action::Bundle(Bundle { hashed, basis, by_hash, members, to }))
}
