//! Parsers of flows, flow filters and packet descriptions.

use super::PortNames;
use super::actions::{Place, actions};
use super::matches::{Conditions, lacking};
use super::text::{SyntaxError, Text};
use super::value::{decimal, number, port, small};
use crate::field::{Field, Needs};
use crate::key::{Flow, KEY_WORDS, TAGGED, TAGS};
use crate::learn::Part;
use crate::model::{Action, FlowFilter, FlowSpec, Match, Spelling};

type Result<T> = std::result::Result<T, SyntaxError>;

/// Parses a flow: `priority=100,tcp,tp_dst=80,actions=output:2`.
pub fn flow(line: &str, names: PortNames<'_>) -> Result<FlowSpec> {
    let (text, written) = cut_actions(line);
    let Some(written) = written else {
        return Text::new(line).from(line.trim_end().len()).wrong("a flow needs `actions=`");
    };
    let mut spec = FlowSpec {
        table: 0,
        priority: FlowSpec::DEFAULT_PRIORITY,
        matches: Match::default(),
        actions: Vec::new(),
        cookie: 0,
        idle_timeout: 0,
        hard_timeout: 0,
        check_overlap: false,
        reset_counts: false,
    };
    let mut conditions = Conditions::default();
    let mut rest = text;
    while let Some((name, value)) = rest.next_item()? {
        let want =
            || value.filter(|v| !v.is_empty()).map_or_else(|| name.wrong(format!("{} needs a value", name.str())), Ok);
        match name.str() {
            "table" | "table_id" => spec.table = table(want()?)?,
            "priority" => spec.priority = small(want()?, 16)?,
            "cookie" => spec.cookie = small(want()?, 64)?,
            "idle_timeout" => spec.idle_timeout = small(want()?, 16)?,
            "hard_timeout" => spec.hard_timeout = small(want()?, 16)?,
            "check_overlap" | "reset_counts" if value.is_some() => {
                return name.wrong(format!("{} takes no value", name.str()));
            }
            "check_overlap" => spec.check_overlap = true,
            "reset_counts" => spec.reset_counts = true,
            // Statistics, which a dump shows and which are not settings: a dump can be loaded.
            "duration" | "n_packets" | "n_bytes" | "idle_age" | "hard_age" => {}
            "send_flow_rem" => return name.wrong("send_flow_rem: there is no controller to tell that a flow has gone"),
            "importance" => return name.wrong("importance: no flow is removed to make room for another"),
            _ if conditions.take(&mut spec.matches, name, value, names)? => {}
            other => return name.wrong(format!("unknown field or flow property `{other}`")),
        }
    }
    conditions.finish(&spec.matches)?;
    spec.actions = actions(written, names, Place::Flow(spec.table))?;
    check(&spec, written)?;
    Ok(spec)
}

pub(super) fn table(text: Text<'_>) -> Result<u8> {
    match decimal(text, 8)? {
        255 => text.wrong("table 255 does not exist: tables are 0 to 254"),
        id => Ok(id),
    }
}

/// Refuses to set or move fields that no packet of the flow has. `mod_*` actions are accepted: they skip such packets.
fn check(spec: &FlowSpec, written: Text<'_>) -> Result<()> {
    check_actions(spec.matches, &spec.actions, written)
}

fn check_actions(mut matches: Match, actions: &[Action], written: Text<'_>) -> Result<()> {
    let cannot = |matches: &Match, field: Field| match lacking(field.info().needs, matches) {
        Some(lacking) => written.wrong(format!("{} can only be used in a flow that matches {lacking}", field.name())),
        None => Ok(()),
    };
    let tagged = u128::from(TAGGED);
    // Whether there is an inner tag, and the outer one in `matches`, as far as is known.
    let mut inner = false;
    for action in actions {
        let fields = match action {
            Action::Clone(list) | Action::WriteActions(list) => {
                check_actions(matches, list, written)?;
                continue;
            }
            Action::PushVlan(_) if inner => {
                return written.wrong(format!("push_vlan of more than {TAGS} tags: a packet has no more here"));
            }
            Action::PushVlan(_) => {
                inner = Field::VlanTci.get(&matches.value) & tagged != 0;
                Field::VlanTci.set(&mut matches.value, tagged);
                continue;
            }
            Action::PopVlan(_) => {
                Field::VlanTci.set(&mut matches.value, if inner { tagged } else { 0 });
                inner = false;
                continue;
            }
            // It would have no effect on untagged packets, which would leave without the tag.
            Action::VlanVid { push: false, .. } | Action::VlanPcp { push: false, .. }
                if lacking(Needs::Vlan, &matches).is_some() =>
            {
                return written
                    .wrong(format!("{action} can only be used in a flow that matches a tag: use mod_vlan_.."));
            }
            Action::VlanVid { .. } | Action::VlanPcp { .. } => {
                Field::VlanTci.set(&mut matches.value, tagged);
                continue;
            }
            Action::Set { field: Field::VlanTci, value, .. } => {
                Field::VlanTci.set(&mut matches.value, *value);
                continue;
            }
            Action::PushMpls(dl_type) | Action::PopMpls(dl_type) => {
                // The EtherType is all that is known of the packet behind the labels.
                Field::NwProto.set(&mut matches.mask, 0);
                Field::DlType.set(&mut matches.mask, u128::MAX);
                Field::DlType.set(&mut matches.value, u128::from(*dl_type));
                continue;
            }
            Action::Move(src, dst) => [Some(src.field), Some(dst.field)],
            Action::Push(of) | Action::Pop(of) | Action::OutputReg(of) => [Some(of.field), None],
            Action::Multipath(choice) => [Some(choice.to.field), None],
            Action::Bundle(choice) => [choice.to.map(|to| to.field), None],
            Action::Set { field, as_: Spelling::SetField | Spelling::Load, .. } => [Some(*field), None],
            Action::FinTimeout(_) if lacking(Needs::Proto(6), &matches).is_some() => {
                return written.wrong("fin_timeout can only be used in a flow that matches tcp or tcp6");
            }
            Action::Learn(learn) => {
                let mut sources = learn.parts.iter().filter_map(Part::source);
                sources.try_for_each(|from| cannot(&matches, from.field))?;
                continue;
            }
            _ => continue,
        };
        fields.into_iter().flatten().try_for_each(|field| cannot(&matches, field))?;
    }
    Ok(())
}

/// Splits a line into the parts before and behind `actions=`.
fn cut_actions(line: &str) -> (Text<'_>, Option<Text<'_>>) {
    let text = Text::new(line);
    for word in ["actions=", "actions:", "action="] {
        for (at, _) in line.match_indices(word) {
            if at == 0 || line[..at].ends_with([',', ' ', '\t']) {
                return (text.sub(0, at), Some(text.from(at + word.len()).trim()));
            }
        }
    }
    (text, None)
}

/// Parses a flow filter: `table=0,ip,cookie=0x1/-1,out_port=2`; one for exact matches if `strict`.
pub fn filter(line: &str, names: PortNames<'_>, strict: bool) -> Result<FlowFilter> {
    let mut filter = FlowFilter::default();
    let mut conditions = Conditions::default();
    let mut rest = Text::new(line);
    while let Some((name, value)) = rest.next_item()? {
        let want =
            || value.filter(|v| !v.is_empty()).map_or_else(|| name.wrong(format!("{} needs a value", name.str())), Ok);
        match name.str() {
            "table" | "table_id" => filter.table = Some(table(want()?)?),
            "priority" if strict => filter.priority = Some(small(want()?, 16)?),
            "priority" => return name.wrong("priority: only a strict command selects flows by their priority"),
            "cookie" => {
                let text = want()?;
                filter.cookie = Some(match text.split("/") {
                    Some((cookie, mask)) if mask.str() == "-1" => (small(cookie, 64)?, u64::MAX),
                    Some((cookie, mask)) => (small(cookie, 64)?, small(mask, 64)?),
                    None => (number(text, 64)? as u64, u64::MAX),
                });
            }
            "out_port" => filter.out_port = Some(port(want()?, names)?),
            "out_group" => filter.out_group = Some(small(want()?, 32)?),
            _ if conditions.take(&mut filter.matches, name, value, names)? => {}
            "actions" | "action" => return name.wrong("actions are not allowed in a flow filter"),
            other => return name.wrong(format!("unknown field or flow property `{other}`")),
        }
    }
    conditions.finish(&filter.matches)?;
    Ok(filter)
}

/// Parses a packet described by its fields, for a trace: `in_port=1,tcp,nw_src=10.0.0.1,tp_dst=80`.
pub fn packet(line: &str, names: PortNames<'_>) -> Result<Flow> {
    let mut matches = Match::default();
    let mut conditions = Conditions::default();
    let mut rest = Text::new(line);
    while let Some((name, value)) = rest.next_item()? {
        if !conditions.take(&mut matches, name, value, names)? {
            return name.wrong(format!("unknown field `{}`", name.str()));
        }
        if matches.mask.0[KEY_WORDS..].iter().any(|word| *word != 0) {
            return name.wrong(format!("{}: no packet has this field: it is 0 on arrival", name.str()));
        }
    }
    conditions.finish(&matches)?;
    let mut flow = matches.value;
    if Field::VlanTci.get(&matches.mask) & u128::from(TAGGED) != 0 && Field::VlanTci.get(&flow) != 0 {
        flow.put(crate::key::at::TPID, &[crate::key::TPID_8100]);
    }
    if matches!(Field::DlType.get(&flow), 0x800 | 0x86dd | 0x806 | 0x8035) {
        flow.bytes_mut()[crate::key::at::NW_FRAG] |= crate::key::IP_VALID;
    }
    if matches!(Field::DlType.get(&flow), 0x8847 | 0x8848) {
        flow.put(crate::key::at::STACK, &[1]);
    }
    if Field::DlType.get(&matches.mask) == 0 {
        Field::DlType.set(&mut flow, u128::from(crate::extract::DL_TYPE_NONE));
    }
    Ok(flow)
}
