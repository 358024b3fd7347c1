//! Parser of action lists.

use super::PortNames;
use super::learn;
use super::links;
use super::text::{SyntaxError, Text};
use super::value::{self, decimal, small};
use crate::field::{Field, Subfield};
use crate::model::{Action, OfPort, Spelling};
use bywash_wire::ethernet::ethertype;

type Result<T> = std::result::Result<T, SyntaxError>;

/// Names of all actions.
pub(super) const KNOWN: &str = "output, in_port, flood, all, normal, drop, push_vlan, pop_vlan, strip_vlan, push_mpls, \
    pop_mpls, mod_vlan_vid, mod_vlan_pcp, mod_dl_src, mod_dl_dst, mod_nw_src, mod_nw_dst, mod_nw_tos, mod_nw_ecn, \
    mod_nw_ttl, mod_tp_src, mod_tp_dst, dec_ttl, set_mpls_label, set_mpls_tc, set_mpls_ttl, dec_mpls_ttl, set_field, \
    load, move, resubmit, goto_table, group, meter, write_metadata, clear_actions, write_actions, clone, push, pop, \
    multipath, bundle, bundle_load, check_pkt_larger, controller, sample, learn, fin_timeout, conjunction, exit";

/// Maximum number of `clone` inside each other.
const CLONES: usize = 8;

/// Maximum number of conjunctions that a flow is a part of.
const CONJUNCTIONS: usize = 64;

/// Place of a list of actions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Flow in this table.
    Flow(u8),
    /// Bucket of a group.
    Bucket,
    /// `write_actions`.
    Set,
    /// `clone` within this many others.
    Clone(usize),
}

impl Place {
    /// Returns why an action cannot be here; `None` if it can.
    fn refuses(self, action: &Action) -> Option<&'static str> {
        use Action::*;
        let instruction = matches!(action, Goto(_) | ClearActions | WriteActions(_))
            || matches!(action, Set { as_: Spelling::Mod("write_metadata"), .. });
        let flows_only = matches!(
            action,
            Multipath(_) | Bundle(_) | Longer(..) | Sample(_) | Learn(_) | FinTimeout(_) | Conjunction { .. }
        );
        match self {
            Self::Flow(_) => None,
            Self::Bucket
                if flows_only
                    || matches!(
                        action,
                        Goto(_) | ClearActions | WriteActions(_) | Clone(_) | Push(_) | Pop(_) | Exit
                    ) =>
            {
                Some("not allowed in a group")
            }
            Self::Bucket => None,
            Self::Set
                if instruction || flows_only || matches!(action, Meter(_) | Exit | Clone(_) | Push(_) | Pop(_)) =>
            {
                Some("not allowed in an action set")
            }
            Self::Set => None,
            Self::Clone(_) if instruction => Some("not allowed in clone"),
            // The rest of the flow would be limited, too.
            Self::Clone(_) if matches!(action, Conjunction { .. }) => Some("not allowed in clone"),
            Self::Clone(_) if matches!(action, Meter(_)) => Some("not allowed in clone: place it in front"),
            Self::Clone(_) => None,
        }
    }
}

/// Parses a list of actions.
pub fn actions(mut text: Text<'_>, names: PortNames<'_>, place: Place) -> Result<Vec<Action>> {
    let mut list: Vec<Action> = Vec::new();
    let whole = text;
    let mut dropped = None;
    let mut gone = None;
    while let Some((name, value)) = text.next_item()? {
        if let Some(drop) = dropped {
            return Text::wrong(drop, "`drop` must be the only action");
        }
        if gone.is_some() {
            return name.wrong("nothing can follow goto_table");
        }
        if name.str().eq_ignore_ascii_case("drop") {
            if !list.is_empty() || value.is_some() {
                return name.wrong("`drop` must be the only action");
            }
            dropped = Some(name);
            continue;
        }
        let action = one(name, value, names, place)?;
        if let Some(why) = place.refuses(&action) {
            return name.wrong(format!("{}: {why}", name.str()));
        }
        let mixed = list.first().is_some_and(|first| is_part(first) != is_part(&action));
        if mixed || is_part(&action) && list.len() == CONJUNCTIONS {
            return name.wrong(format!("a flow has only conjunction actions, at most {CONJUNCTIONS}, or none"));
        }
        if matches!(action, Action::Goto(_)) {
            gone = Some(name);
        }
        list.push(action);
    }
    if list.is_empty() && dropped.is_none() && !whole.is_empty() {
        return whole.wrong("no action given: use `drop` to drop packets");
    }
    Ok(list)
}

fn is_part(action: &Action) -> bool {
    matches!(action, Action::Conjunction { .. })
}

fn one(name: Text<'_>, value: Option<Text<'_>>, names: PortNames<'_>, place: Place) -> Result<Action> {
    let want = || match value {
        Some(value) if !value.is_empty() => Ok(value),
        _ => name.wrong(format!("{} needs a value", name.str())),
    };
    let set = |spelling: &'static str, field: Field, value: u128| Action::Set {
        field,
        value,
        mask: field.all(),
        as_: Spelling::Mod(spelling),
    };
    let plain = |action: Action| match value {
        Some(value) if !value.is_empty() => value.wrong(format!("{} takes no value", name.str())),
        _ => Ok(action),
    };
    let mac = |spelling, field| Ok(set(spelling, field, value::mac(want()?)?));
    let field = |spelling, field: Field| {
        let text = want()?;
        if text.str().contains('/') {
            return text.wrong(format!("{spelling} takes no mask"));
        }
        Ok(set(spelling, field, value::masked(text, field, names)?.0))
    };
    let lower = name.str().to_ascii_lowercase();
    // Refused before the list inside is parsed: otherwise only the stack would limit how deeply lists are nested.
    let list = match lower.as_str() {
        "write_actions" => place.refuses(&Action::WriteActions(Vec::new())),
        "clone" => place.refuses(&Action::Clone(Vec::new())),
        _ => None,
    };
    if let Some(why) = list {
        return name.wrong(format!("{}: {why}", name.str()));
    }
    match lower.as_str() {
        "output" => output(want()?, names),
        "push_vlan" => match small(want()?, 16)? {
            tpid @ (ethertype::VLAN | ethertype::QINQ) => Ok(Action::PushVlan(tpid)),
            _ => want()?.wrong("invalid Ethernet type of a VLAN tag: use 0x8100 or 0x88a8"),
        },
        "pop_vlan" => plain(Action::PopVlan(false)),
        "strip_vlan" => plain(Action::PopVlan(true)),
        "push_mpls" => match small(want()?, 16)? {
            dl_type @ (ethertype::MPLS | ethertype::MPLS_UPSTREAM) => Ok(Action::PushMpls(dl_type)),
            _ => want()?.wrong("invalid Ethernet type of MPLS: use 0x8847 or 0x8848"),
        },
        "pop_mpls" => match small(want()?, 16)? {
            ..0x600 | ethertype::ARP | 0x8035 | ethertype::VLAN | ethertype::QINQ => {
                want()?.wrong("only IP is read after labels, no ARP, VLAN tag or LLC: use 0x800, 0x86dd or 0x8847")
            }
            dl_type => Ok(Action::PopMpls(dl_type)),
        },
        "set_mpls_label" => field("set_mpls_label", Field::MplsLabel),
        "set_mpls_tc" => field("set_mpls_tc", Field::MplsTc),
        "set_mpls_ttl" => field("set_mpls_ttl", Field::MplsTtl),
        "dec_mpls_ttl" => plain(Action::DecMplsTtl),
        "mod_vlan_vid" | "set_vlan_vid" => {
            Ok(Action::VlanVid { vid: small(want()?, 12)?, push: lower == "mod_vlan_vid" })
        }
        "mod_vlan_pcp" | "set_vlan_pcp" => {
            Ok(Action::VlanPcp { pcp: small(want()?, 3)?, push: lower == "mod_vlan_pcp" })
        }
        "mod_dl_src" => mac("mod_dl_src", Field::DlSrc),
        "mod_dl_dst" => mac("mod_dl_dst", Field::DlDst),
        "mod_nw_src" => field("mod_nw_src", Field::NwSrc),
        "mod_nw_dst" => field("mod_nw_dst", Field::NwDst),
        "mod_nw_tos" => {
            let tos = value::number(want()?, 8)?;
            if tos & 3 != 0 {
                return want()?.wrong("the lowest two bits of the TOS must be 0: use mod_nw_ecn to set them");
            }
            Ok(Action::Set { field: Field::NwTos, value: tos, mask: 0xfc, as_: Spelling::Mod("mod_nw_tos") })
        }
        "mod_nw_ecn" => field("mod_nw_ecn", Field::NwEcn),
        "mod_nw_ttl" => field("mod_nw_ttl", Field::NwTtl),
        "mod_tp_src" => field("mod_tp_src", Field::TpSrc),
        "mod_tp_dst" => field("mod_tp_dst", Field::TpDst),
        "dec_ttl" => plain(Action::DecTtl),
        "set_field" => set_field(want()?, names),
        "load" | "reg_load" => load(want()?, names),
        "move" => copy(want()?),
        "resubmit" => resubmit(want()?, names),
        "goto_table" => goto(want()?, place),
        "group" => Ok(Action::Group(small(want()?, 32)?)),
        "meter" => Ok(Action::Meter(small(want()?, 32)?)),
        "write_metadata" => {
            let text = want()?;
            let (value, mask) = value::masked(text, Field::Metadata, names)?;
            Ok(Action::Set { field: Field::Metadata, value: value & mask, mask, as_: Spelling::Mod("write_metadata") })
        }
        "clear_actions" => plain(Action::ClearActions),
        "write_actions" => Ok(Action::WriteActions(actions(want()?, names, Place::Set)?)),
        "clone" => {
            let depth = if let Place::Clone(outer) = place { outer + 1 } else { 0 };
            if depth == CLONES {
                return name.wrong(format!("too many clones inside each other: at most {CLONES}"));
            }
            Ok(Action::Clone(actions(want()?, names, Place::Clone(depth))?))
        }
        "multipath" => links::multipath(want()?),
        "bundle" => links::bundle(want()?, names, false),
        "bundle_load" => links::bundle(want()?, names, true),
        "controller" => controller(value),
        "conjunction" => conjunction(want()?),
        "fin_timeout" => learn::fin_timeout(want()?),
        "learn" => learn::learn(value.unwrap_or(name.from(name.str().len())), names),
        "sample" => sample(want()?),
        "check_pkt_larger" => longer(want()?),
        "push" => Ok(Action::Push(value::subfield(want()?)?)),
        "pop" => {
            let to = value::subfield(want()?)?;
            writable(want()?, to.field)?;
            Ok(Action::Pop(to))
        }
        "exit" => plain(Action::Exit),
        _ if value.is_none() => match value::port(name, names) {
            Ok(port) => to(name, port),
            Err(e) if name.str().starts_with(|c: char| c.is_ascii_digit()) => Err(e),
            Err(_) => name.wrong(format!("unknown action or port `{}`; actions are {KNOWN}", name.str())),
        },
        _ => name.wrong(format!("unknown action `{}`; actions are {KNOWN}", name.str())),
    }
}

fn output(text: Text<'_>, names: PortNames<'_>) -> Result<Action> {
    if text.str().contains('[') || Field::find(text.str()).is_some_and(|f| f != Field::InPort) {
        return Ok(Action::OutputReg(value::subfield(text)?));
    }
    to(text, value::port(text, names)?)
}

fn to(text: Text<'_>, port: OfPort) -> Result<Action> {
    if port == OfPort::NONE { text.wrong("there is no port to send to: use `drop`") } else { Ok(Action::Output(port)) }
}

pub(super) fn writable(text: Text<'_>, field: Field) -> Result<()> {
    if field.info().writable { Ok(()) } else { text.wrong(format!("{} cannot be set", field.name())) }
}

/// Parses `set_field:value[/mask]->field`.
fn set_field(text: Text<'_>, names: PortNames<'_>) -> Result<Action> {
    let Some((value, name)) = text.split("->") else {
        return text.wrong("set_field needs `value->field`");
    };
    let Some(field) = Field::find(name.str()) else {
        return name.wrong(format!("unknown field `{}`", name.str()));
    };
    writable(name, field)?;
    let (bits, mask) = if field == Field::VlanVid {
        // OpenFlow's "present" bit is optional.
        let (v, m) = value.split("/").map_or((value, None), |(v, m)| (v, Some(m)));
        let mask = m.map_or(Ok(0xfff), |m| value::number(m, 13))?;
        (value::number(v, 13)? & 0xfff, mask & 0xfff)
    } else {
        value::masked(value, field, names)?
    };
    Ok(Action::Set { field, value: bits & mask, mask, as_: Spelling::SetField })
}

/// Parses `load:value->field[from..to]`.
fn load(text: Text<'_>, names: PortNames<'_>) -> Result<Action> {
    let Some((value, to)) = text.split("->") else {
        return text.wrong("load needs `value->field[from..to]`");
    };
    let sub = value::subfield(to)?;
    writable(to, sub.field)?;
    let number = match value.str() {
        str if sub.field == Field::InPort && !str.starts_with(|c: char| c.is_ascii_digit()) => {
            u128::from(value::port(value, names)?.0)
        }
        _ => value::within(value, sub.field, value::number(value, sub.bits)? << sub.low)? >> sub.low,
    };
    Ok(Action::Set { field: sub.field, value: number << sub.low, mask: sub.mask(), as_: Spelling::Load })
}

/// Parses `move:from[a..b]->to[c..d]`.
fn copy(text: Text<'_>) -> Result<Action> {
    let Some((from, to)) = text.split("->") else {
        return text.wrong("move needs `from[a..b]->to[c..d]`");
    };
    let (src, dst): (Subfield, Subfield) = (value::subfield(from)?, value::subfield(to)?);
    writable(to, dst.field)?;
    if src.bits != dst.bits {
        return text.wrong(format!("source and destination differ in width: {} and {} bits", src.bits, dst.bits));
    }
    Ok(Action::Move(src, dst))
}

/// Parses the argument of `controller`: none, `65535` or `max_len=65535`, which is the whole packet.
fn controller(value: Option<Text<'_>>) -> Result<Action> {
    let mut rest = value.unwrap_or(Text::new(""));
    while let Some((name, value)) = rest.next_item()? {
        match (name.str(), value) {
            ("65535", None) => {}
            ("max_len", Some(value)) if value.str() == "65535" => {}
            ("max_len", Some(value)) => return value.wrong("the whole packet is captured: use max_len=65535 or none"),
            (other, None) if other.starts_with(|c: char| c.is_ascii_digit()) => {
                return name.wrong("the whole packet is captured: use 65535 or none");
            }
            (other, _) => return name.wrong(format!("{other}: there is no controller, only a capture of the packet")),
        }
    }
    Ok(Action::Output(OfPort::CONTROLLER))
}

/// Parses `probability=number`.
fn sample(mut text: Text<'_>) -> Result<Action> {
    let (whole, mut probability) = (text, None);
    while let Some((name, value)) = text.next_item()? {
        match (name.str(), value) {
            ("probability", Some(value)) => match small(value, 16)? {
                0 => return value.wrong("the probability is 1 to 65535, of 65535"),
                of => probability = Some(of),
            },
            (other, _) => return name.wrong(format!("{other}: there are no collectors, only a capture of the packet")),
        }
    }
    probability.map_or_else(|| whole.wrong("sample needs `probability=`"), |of| Ok(Action::Sample(of)))
}

/// Parses `id,part/parts`.
fn conjunction(text: Text<'_>) -> Result<Action> {
    let parts = text.split(",").and_then(|(id, rest)| rest.split("/").map(|(part, parts)| (id, part, parts)));
    let Some((id, part, parts)) = parts.map(|(id, part, parts)| (id.trim(), part.trim(), parts.trim())) else {
        return text.wrong("conjunction needs `(id,part/parts)`");
    };
    let (id, k, n) = (small(id, 32)?, small(part, 8)?, small(parts, 8)?);
    if !(2..=64).contains(&n) {
        return parts.wrong("a conjunction has 2 to 64 parts");
    }
    if !(1..=n).contains(&k) {
        return part.wrong(format!("the parts are numbered 1 to {n}"));
    }
    Ok(Action::Conjunction { id, part: k, parts: n })
}

/// Parses `bytes)->field[bit]` and `bytes->field[bit]`.
fn longer(text: Text<'_>) -> Result<Action> {
    let Some((than, to)) = text.split(")->").or_else(|| text.split("->")) else {
        return text.wrong("check_pkt_larger needs `(bytes)->field[bit]`");
    };
    let sub = value::subfield(to)?;
    writable(to, sub.field)?;
    if sub.bits != 1 {
        return to.wrong(format!("the result is one bit: {} bits are given", sub.bits));
    }
    Ok(Action::Longer(small(than, 16)?, sub))
}

/// Parses the argument of `goto_table`.
fn goto(text: Text<'_>, place: Place) -> Result<Action> {
    let to: u8 = decimal(text, 8)?;
    match place {
        Place::Flow(own) if to <= own => {
            text.wrong(format!("goto_table needs a table above {own}: use resubmit for others"))
        }
        _ if to == 255 => text.wrong("table 255 does not exist: tables are 0 to 254"),
        _ => Ok(Action::Goto(to)),
    }
}

/// Parses `resubmit:port`, `resubmit(port,table)` and `resubmit(,table)`.
fn resubmit(text: Text<'_>, names: PortNames<'_>) -> Result<Action> {
    let (port, table) = text.split(",").map_or((text, None), |(port, table)| (port, Some(table)));
    let (port, table) = (port.trim(), table.map(Text::trim));
    let port = if port.is_empty() { None } else { Some(value::port(port, names)?) };
    let table = match table.filter(|t| !t.is_empty()) {
        Some(table) => Some(decimal::<u8>(table, 8)?).filter(|t| *t != 255),
        None => None,
    };
    if port.is_none() && table.is_none() {
        return text.wrong("resubmit needs a port, a table, or both");
    }
    Ok(Action::Resubmit(port, table))
}
