//! Display of flows, groups and meters as ovs-ofctl shows them; the output can be parsed again.

use super::matches::SHORTHANDS;
use super::value::{FRAGS, show_flags};
use crate::field::{Field, Form, Subfield};
use crate::key::{TAGGED, at};
use crate::learn::{Learn, Part, Source};
use crate::model::{
    Action, Bundle, FlowSpec, GroupKind, GroupSpec, Match, MeterSpec, Multipath, OfPort, Spelling, Timeouts,
};
use bywash_wire::ethernet::MacAddr;
use std::fmt::{self, Display, Formatter, Write};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Wrapper that displays a flow, group or meter.
pub struct Shown<'a, T>(pub &'a T);

impl Display for OfPort {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match Self::NAMES.iter().find(|(_, port)| port == self) {
            Some((name, _)) => f.write_str(&name.to_ascii_uppercase()),
            None => self.0.fmt(f),
        }
    }
}

fn mac(value: u128) -> String {
    let [.., m, n, o, p, q, r] = value.to_be_bytes();
    MacAddr([m, n, o, p, q, r]).to_string()
}

/// Formats a field's value; `mask` selects the bits that count.
fn field_value(field: Field, value: u128, mask: u128) -> String {
    let info = field.info();
    let exact = mask == field.all();
    let prefix = mask.count_ones() == mask.wrapping_shl(128 - info.bits).leading_ones() && mask != 0;
    match info.form {
        Form::Decimal if exact => value.to_string(),
        Form::Decimal | Form::Hex if exact => format!("{value:#x}"),
        Form::Decimal | Form::Hex => format!("{value:#x}/{mask:#x}"),
        Form::Mac if exact => mac(value),
        Form::Mac => format!("{}/{}", mac(value), mac(mask)),
        Form::Ip4 | Form::Ip6 => {
            let addr = |value: u128| match info.form {
                Form::Ip4 => Ipv4Addr::from_bits(value as u32).to_string(),
                _ => Ipv6Addr::from_bits(value).to_string(),
            };
            match (exact, prefix) {
                (true, _) => addr(value),
                (_, true) => format!("{}/{}", addr(value), mask.count_ones()),
                _ => format!("{}/{}", addr(value), addr(mask)),
            }
        }
        Form::Port => OfPort(value as u16).to_string(),
        Form::Frag => match FRAGS.iter().find(|(_, v, m)| (*v, *m) == (value, mask)) {
            Some((name, ..)) => (*name).into(),
            None => "error".into(),
        },
        Form::TcpFlags if exact => format!("{value:#x}"),
        Form::TcpFlags => show_flags(value, mask),
    }
}

/// Wrapper that displays a match as part of a flow's line; empty if everything is matched.
pub struct ShownMatch<'a>(pub &'a Match);

impl Display for ShownMatch<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Match { value, mask } = self.0;
        let mut parts: Vec<String> = Vec::new();
        let dl_type = self.0.exact(Field::DlType);
        let protocol = self.0.exact(Field::NwProto);
        let short = |with: Option<u8>| {
            SHORTHANDS.iter().find(|(_, t, p)| dl_type == Some(u128::from(*t)) && *p == with).map(|(name, ..)| *name)
        };
        let both = protocol.and_then(|p| short(Some(p as u8)));
        let kind = both.or_else(|| short(None));
        parts.extend(kind.map(str::to_owned));
        let ip = matches!(dl_type, Some(0x800 | 0x86dd));
        let arp = matches!(dl_type, Some(0x806 | 0x8035));
        let mpls = matches!(dl_type, Some(0x8847 | 0x8848));
        // No flow matches the inner tag; megaflows do.
        let inner = mask.u16(at::INNER_TCI);
        for field in ORDER {
            if field == Field::DlSrc && inner != 0 {
                parts.extend(vlan("1", value.u16(at::INNER_TCI).into(), inner.into()));
            }
            let bits = field.get(mask);
            if bits == 0 {
                continue;
            }
            let skip = match field {
                Field::VlanTci => {
                    parts.extend(vlan("", field.get(value), bits));
                    true
                }
                Field::DlType => kind.is_some(),
                Field::NwProto => both.is_some() || arp,
                Field::ArpOp | Field::ArpSpa | Field::ArpTpa | Field::ArpSha | Field::ArpTha => !arp,
                Field::NwSrc | Field::NwDst => arp,
                Field::NdSll | Field::NdTll => arp || mpls,
                Field::MplsLabel | Field::MplsTc | Field::MplsBos | Field::MplsTtl => !mpls,
                // OVS shows those of ICMPv6 by the same names.
                Field::IcmpType | Field::IcmpCode => {
                    !matches!((dl_type, protocol), (Some(0x800), Some(1)) | (Some(0x86dd), Some(58)))
                }
                Field::TpSrc | Field::TpDst => !(ip && matches!(protocol, Some(6 | 17 | 132))),
                _ => false,
            };
            if skip {
                continue;
            }
            if field == Field::IpDscp {
                parts.push(format!("nw_tos={}", field.get(value) << 2));
                continue;
            }
            parts.push(format!("{}={}", field.name(), field_value(field, field.get(value), bits)));
        }
        f.write_str(&parts.join(","))
    }
}

/// Fields in the order in which they are shown, covering each bit of a packet once.
const ORDER: [Field; 51] = {
    use Field::*;
    [
        ConjId, Reg0, Reg1, Reg2, Reg3, Reg4, Reg5, Reg6, Reg7, Reg8, Reg9, Reg10, Reg11, Reg12, Reg13, Reg14, Reg15,
        Metadata, PktMark, InPort, VlanTci, DlSrc, DlDst, DlType, MplsLabel, MplsTc, MplsTtl, MplsBos, Ipv6Src,
        Ipv6Dst, Ipv6Label, NwSrc, NwDst, ArpSpa, ArpTpa, NwProto, ArpOp, ArpSha, ArpTha, IpDscp, NwEcn, NwTtl, IpFrag,
        IcmpType, IcmpCode, TpSrc, TpDst, TcpFlags, NdTarget, NdSll, NdTll,
    ]
};

/// Returns the conditions on a tag. `which` is the end of their names: `1` for the inner tag.
fn vlan(which: &str, value: u128, mask: u128) -> Vec<String> {
    let tagged = u128::from(TAGGED);
    let (vid, pcp) = (mask & 0xfff, mask >> 13);
    if mask & tagged != 0 && value & tagged != 0 && matches!(vid, 0 | 0xfff) && matches!(pcp, 0 | 7) && vid + pcp != 0 {
        let mut parts = Vec::new();
        if vid != 0 {
            parts.push(format!("dl_vlan{which}={}", value & 0xfff));
        }
        if pcp != 0 {
            parts.push(format!("dl_vlan_pcp{which}={}", value >> 13));
        }
        return parts;
    }
    if mask == 0xffff {
        vec![format!("vlan_tci{which}={value:#06x}")]
    } else {
        vec![format!("vlan_tci{which}={value:#06x}/{mask:#06x}")]
    }
}

fn sub(f: &mut Formatter<'_>, sub: &Subfield) -> fmt::Result {
    f.write_str(sub.field.nxm())?;
    if *sub == Subfield::whole(sub.field) {
        f.write_str("[]")
    } else if sub.bits == 1 {
        write!(f, "[{}]", sub.low)
    } else {
        write!(f, "[{}..{}]", sub.low, sub.low + sub.bits - 1)
    }
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output(port) if port.0 < OfPort::MAX => write!(f, "output:{}", port.0),
            Self::Output(OfPort::CONTROLLER) => f.write_str("CONTROLLER:65535"),
            Self::Output(port) => port.fmt(f),
            Self::OutputReg(from) => {
                f.write_str("output:")?;
                sub(f, from)
            }
            Self::Group(id) => write!(f, "group:{id}"),
            Self::Meter(id) => write!(f, "meter:{id}"),
            Self::PushVlan(tpid) => write!(f, "push_vlan:{tpid:#06x}"),
            Self::PopVlan(true) => f.write_str("strip_vlan"),
            Self::PopVlan(false) => f.write_str("pop_vlan"),
            Self::PushMpls(dl_type) => write!(f, "push_mpls:{dl_type:#06x}"),
            Self::PopMpls(dl_type) => write!(f, "pop_mpls:{dl_type:#06x}"),
            Self::VlanVid { vid, push } => write!(f, "{}_vlan_vid:{vid}", if *push { "mod" } else { "set" }),
            Self::VlanPcp { pcp, push } => write!(f, "{}_vlan_pcp:{pcp}", if *push { "mod" } else { "set" }),
            Self::Set { field, value, mask, as_ } => match as_ {
                Spelling::Mod("mod_nw_tos") => write!(f, "mod_nw_tos:{value}"),
                Spelling::Mod(name) => write!(f, "{name}:{}", field_value(*field, *value, *mask)),
                Spelling::SetField => write!(f, "set_field:{}->{}", field_value(*field, *value, *mask), field.name()),
                Spelling::Load => {
                    let low = mask.trailing_zeros().min(127);
                    write!(f, "load:{:#x}->", value >> low)?;
                    sub(f, &Subfield { field: *field, low, bits: mask.count_ones() })
                }
            },
            Self::Move(src, dst) => {
                f.write_str("move:")?;
                sub(f, src)?;
                f.write_str("->")?;
                sub(f, dst)
            }
            Self::DecTtl => f.write_str("dec_ttl"),
            Self::DecMplsTtl => f.write_str("dec_mpls_ttl"),
            Self::Resubmit(Some(port), None) => write!(f, "resubmit:{port}"),
            Self::Resubmit(port, table) => {
                f.write_str("resubmit(")?;
                if let Some(port) = port {
                    port.fmt(f)?;
                }
                write!(f, ",{})", table.unwrap_or(255))
            }
            Self::Goto(table) => write!(f, "goto_table:{table}"),
            Self::Exit => f.write_str("exit"),
            Self::ClearActions => f.write_str("clear_actions"),
            Self::WriteActions(list) => write!(f, "write_actions({})", ShownActions(list)),
            Self::Clone(list) => write!(f, "clone({})", ShownActions(list)),
            Self::Multipath(Multipath { hashed, basis, algorithm, links, arg, to }) => {
                write!(f, "multipath({},{basis},{algorithm},{links},{arg},", hashed.name())?;
                sub(f, to)?;
                f.write_char(')')
            }
            Self::Bundle(Bundle { hashed, basis, by_hash, members, to }) => {
                let algorithm = if *by_hash { "hrw" } else { "active_backup" };
                f.write_str(if to.is_some() { "bundle_load(" } else { "bundle(" })?;
                write!(f, "{},{basis},{algorithm},ofport,", hashed.name())?;
                if let Some(to) = to {
                    sub(f, to)?;
                    f.write_char(',')?;
                }
                let members: Vec<String> = members.iter().map(ToString::to_string).collect();
                write!(f, "members:{})", members.join(","))
            }
            Self::Longer(than, to) => {
                write!(f, "check_pkt_larger({than})->")?;
                sub(f, to)
            }
            Self::Sample(of) => write!(f, "sample(probability={of})"),
            Self::Conjunction { id, part, parts } => write!(f, "conjunction({id},{part}/{parts})"),
            Self::FinTimeout(Timeouts { idle, hard }) => {
                let both = [("idle_timeout", idle), ("hard_timeout", hard)].map(|(name, s)| format!("{name}={s}"));
                let shown = if *hard == 0 {
                    &both[..1]
                } else if *idle == 0 {
                    &both[1..]
                } else {
                    &both[..]
                };
                write!(f, "fin_timeout({})", shown.join(","))
            }
            Self::Learn(learn) => learned(f, learn),
            Self::Push(from) => {
                f.write_str("push:")?;
                sub(f, from)
            }
            Self::Pop(to) => {
                f.write_str("pop:")?;
                sub(f, to)
            }
        }
    }
}

/// Shows a `learn` action.
fn learned(f: &mut Formatter<'_>, learn: &Learn) -> fmt::Result {
    write!(f, "learn(table={}", learn.table)?;
    for (name, timeout) in [
        ("idle_timeout", learn.idle_timeout),
        ("hard_timeout", learn.hard_timeout),
        ("fin_idle_timeout", learn.fin.idle),
        ("fin_hard_timeout", learn.fin.hard),
    ] {
        if timeout != 0 {
            write!(f, ",{name}={timeout}")?;
        }
    }
    if learn.priority != FlowSpec::DEFAULT_PRIORITY {
        write!(f, ",priority={}", learn.priority)?;
    }
    if learn.delete_learned {
        f.write_str(",delete_learned")?;
    }
    if learn.cookie != 0 {
        write!(f, ",cookie={:#x}", learn.cookie)?;
    }
    if learn.limit != 0 {
        write!(f, ",limit={}", learn.limit)?;
    }
    for part in &learn.parts {
        f.write_char(',')?;
        match part {
            Part::Match(to, Source::Value(value)) if *to == Subfield::whole(to.field) => {
                write!(f, "{}={}", to.field.name(), field_value(to.field, *value, to.field.all()))?;
            }
            Part::Match(to, Source::Value(value)) => {
                sub(f, to)?;
                write!(f, "={value:#x}")?;
            }
            Part::Match(to, Source::Field(from)) => {
                sub(f, to)?;
                if to != from {
                    f.write_char('=')?;
                    sub(f, from)?;
                }
            }
            Part::Load(to, from) => {
                f.write_str("load:")?;
                match from {
                    Source::Value(value) => write!(f, "{value:#x}")?,
                    Source::Field(from) => sub(f, from)?,
                }
                f.write_str("->")?;
                sub(f, to)?;
            }
            Part::Output(from) => {
                f.write_str("output:")?;
                sub(f, from)?;
            }
        }
    }
    f.write_char(')')
}

/// Wrapper that displays a list of actions, or `drop` if it is empty.
pub struct ShownActions<'a>(pub &'a [Action]);

impl Display for ShownActions<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("drop");
        }
        for (i, action) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_char(',')?;
            }
            action.fmt(f)?;
        }
        Ok(())
    }
}

impl Display for Shown<'_, FlowSpec> {
    /// Formats the flow like `ovs-ofctl dump-flows --no-stats`.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let spec = self.0;
        if spec.cookie != 0 {
            write!(f, "cookie={:#x}, ", spec.cookie)?;
        }
        if spec.table != 0 {
            write!(f, "table={}, ", spec.table)?;
        }
        for (name, timeout) in [("idle_timeout", spec.idle_timeout), ("hard_timeout", spec.hard_timeout)] {
            if timeout != 0 {
                write!(f, "{name}={timeout}, ")?;
            }
        }
        let matched = ShownMatch(&spec.matches).to_string();
        if spec.priority != FlowSpec::DEFAULT_PRIORITY {
            write!(f, "priority={}{}", spec.priority, if matched.is_empty() { "" } else { "," })?;
        }
        write!(f, "{matched} actions={}", ShownActions(&spec.actions))
    }
}

impl Display for Shown<'_, GroupSpec> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let group = self.0;
        write!(f, "group_id={},type={}", group.id, group.kind.name())?;
        if group.kind == GroupKind::Select && !group.fields.is_empty() {
            let names: Vec<&str> = group.fields.iter().map(|f| f.name()).collect();
            write!(f, ",selection_method=hash,fields({})", names.join(","))?;
        }
        for bucket in &group.buckets {
            write!(f, ",bucket=bucket_id:{},weight:{}", bucket.id, bucket.weight)?;
            if let Some(port) = bucket.watch_port {
                write!(f, ",watch_port:{port}")?;
            }
            if let Some(group) = bucket.watch_group {
                write!(f, ",watch_group:{group}")?;
            }
            write!(f, ",actions={}", ShownActions(&bucket.actions))?;
        }
        Ok(())
    }
}

impl Display for Shown<'_, MeterSpec> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let MeterSpec { id, packets, rate, burst } = *self.0;
        write!(f, "meter={id} {}", if packets { "pktps" } else { "kbps" })?;
        if burst != 0 {
            f.write_str(" burst")?;
        }
        write!(f, " bands=type=drop rate={rate}")?;
        if burst != 0 { write!(f, " burst_size={burst}") } else { Ok(()) }
    }
}
