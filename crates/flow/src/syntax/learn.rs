//! Parser of `learn`.

use super::PortNames;
use super::actions::writable;
use super::flow::table;
use super::matches::lacking;
use super::text::{SyntaxError, Text};
use super::value::{self, number, small, subfield};
use crate::field::{Field, Needs, Subfield};
use crate::learn::{Learn, Part, Source};
use crate::model::{Action, FlowSpec, Match, Timeouts};

type Result<T> = std::result::Result<T, SyntaxError>;

/// Maximum number of conditions and actions of a learned flow.
const PARTS: usize = 64;

/// Parses `table=10,idle_timeout=60,eth_dst=eth_src,output:in_port`.
pub fn learn(mut text: Text<'_>, names: PortNames<'_>) -> Result<Action> {
    let mut learn = Learn {
        table: 1,
        priority: FlowSpec::DEFAULT_PRIORITY,
        cookie: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        fin: Timeouts::default(),
        limit: 0,
        delete_learned: false,
        parts: Vec::new(),
    };
    // Literal conditions, which are the prerequisites of the others.
    let mut matches = Match::default();
    while let Some((name, value)) = text.next_item()? {
        let want =
            || value.filter(|v| !v.is_empty()).map_or_else(|| name.wrong(format!("{} needs a value", name.str())), Ok);
        let part = match name.str() {
            "table" => {
                learn.table = table(want()?)?;
                continue;
            }
            "priority" => {
                learn.priority = small(want()?, 16)?;
                continue;
            }
            "cookie" => {
                learn.cookie = small(want()?, 64)?;
                continue;
            }
            "idle_timeout" => {
                learn.idle_timeout = small(want()?, 16)?;
                continue;
            }
            "hard_timeout" => {
                learn.hard_timeout = small(want()?, 16)?;
                continue;
            }
            "limit" => {
                learn.limit = small(want()?, 32)?;
                continue;
            }
            "delete_learned" if value.is_none() => {
                learn.delete_learned = true;
                continue;
            }
            "send_flow_rem" => return name.wrong("send_flow_rem: there is no controller to tell that a flow has gone"),
            "fin_idle_timeout" => {
                learn.fin.idle = small(want()?, 16)?;
                continue;
            }
            "fin_hard_timeout" => {
                learn.fin.hard = small(want()?, 16)?;
                continue;
            }
            "result_dst" => return name.wrong("result_dst: the flow is added after the packet has left"),
            "load" => load(want()?, &matches)?,
            "output" => Part::Output(subfield(want()?)?),
            _ => condition(name, value, &mut matches, names)?,
        };
        if learn.parts.len() == PARTS {
            return name.wrong(format!("too many conditions and actions: at most {PARTS}"));
        }
        learn.parts.push(part);
    }
    if learn.fin != Timeouts::default() && lacking(Needs::Proto(6), &matches).is_some() {
        return text.wrong("fin_idle_timeout and fin_hard_timeout need a learned flow that matches tcp or tcp6");
    }
    Ok(Action::Learn(learn))
}

/// Parses `idle_timeout=10,hard_timeout=20` of `fin_timeout`.
pub fn fin_timeout(mut text: Text<'_>) -> Result<Action> {
    let (whole, mut timeouts) = (text, Timeouts::default());
    while let Some((name, value)) = text.next_item()? {
        match (name.str(), value) {
            ("idle_timeout", Some(value)) => timeouts.idle = small(value, 16)?,
            ("hard_timeout", Some(value)) => timeouts.hard = small(value, 16)?,
            (other, _) => return name.wrong(format!("invalid timeout `{other}`: use idle_timeout= or hard_timeout=")),
        }
    }
    if timeouts == Timeouts::default() {
        return whole.wrong("fin_timeout needs idle_timeout= or hard_timeout= above 0");
    }
    Ok(Action::FinTimeout(timeouts))
}

/// Refuses a field that packets of the learned flow need not have.
fn possible(text: Text<'_>, field: Field, matches: &Match) -> Result<()> {
    match lacking(field.info().needs, matches) {
        Some(lacking) => text.wrong(format!("{} needs a learned flow that matches {lacking}", field.name())),
        None => Ok(()),
    }
}

/// Parses `field`, `field=source` and `field=value`.
fn condition(name: Text<'_>, text: Option<Text<'_>>, matches: &mut Match, names: PortNames<'_>) -> Result<Part> {
    let to = subfield(name)?;
    possible(name, to.field, matches)?;
    let Some(text) = text else { return Ok(Part::Match(to, Source::Field(to))) };
    if named(text) {
        return Ok(Part::Match(to, Source::Field(same_width(text, subfield(text)?, to)?)));
    }
    let value = if to == Subfield::whole(to.field) {
        match value::masked(text, to.field, names)? {
            (value, mask) if mask == to.field.all() => value,
            _ => return text.wrong("a condition of a learned flow has no mask"),
        }
    } else {
        number(text, to.bits)?
    };
    matches.add(to.field, value << to.low, to.mask());
    Ok(Part::Match(to, Source::Value(value)))
}

/// Parses `value->field[from..to]` and `source->field[from..to]`.
fn load(text: Text<'_>, matches: &Match) -> Result<Part> {
    let Some((from, name)) = text.split("->") else {
        return text.wrong("load needs `value->field[from..to]`");
    };
    let to = subfield(name)?;
    writable(name, to.field)?;
    possible(name, to.field, matches)?;
    if named(from) {
        return Ok(Part::Load(to, Source::Field(same_width(from, subfield(from)?, to)?)));
    }
    Ok(Part::Load(to, Source::Value(number(from, to.bits)?)))
}

/// Returns `true` if this is the name of a field, with or without bits.
fn named(text: Text<'_>) -> bool {
    let name = text.split("[").map_or(text, |(name, _)| name);
    Field::find(name.str()).is_some()
}

fn same_width(text: Text<'_>, from: Subfield, to: Subfield) -> Result<Subfield> {
    if from.bits != to.bits {
        return text.wrong(format!("source and destination differ in width: {} and {} bits", from.bits, to.bits));
    }
    Ok(from)
}
