//! Traffic control: configured queueing disciplines, and filters on a port's ingress or egress.
//!
//! A qdisc that the kernel attached by itself has handle 0, a configured one has another handle. The former only queue
//! packets that a device cannot take at once and are deliberately ignored (docs/decisions/differences.md).

use crate::effect::{Effect, IfMatch, Kind, Scope};
use bywash_fib::model::Families;
use bywash_nl::wire::{Attributes, u32_at};

// linux/rtnetlink.h, linux/pkt_sched.h
pub const RTM_NEWQDISC: u16 = 36;
pub const RTM_GETQDISC: u16 = 38;
pub const RTM_NEWTFILTER: u16 = 44;
pub const RTM_GETTFILTER: u16 = 46;
pub const RTNLGRP_TC: u32 = 4;
/// Size of struct tcmsg, in octets.
pub const TCMSG: usize = 20;
const TC_H_INGRESS: u32 = 0xffff_fff1;
const TCA_KIND: u16 = 1;
const TCA_INGRESS_BLOCK: u16 = 13;
const TCA_EGRESS_BLOCK: u16 = 14;
/// Parents of filters: the `ingress` qdisc, and the two sides of `clsact`.
pub const INGRESS: u32 = 0xffff_0000;
pub const CLSACT_INGRESS: u32 = 0xffff_fff2;
pub const CLSACT_EGRESS: u32 = 0xffff_fff3;

/// A qdisc or filter (struct tcmsg and the attributes that matter).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub index: u32,
    pub handle: u32,
    pub parent: u32,
    pub kind: String,
    /// Set if it shares its filters with other interfaces.
    pub shared: bool,
}

/// Parses the body of `RTM_NEWQDISC` or `RTM_NEWTFILTER`; `None` if it is truncated.
pub fn parse(body: &[u8]) -> Option<Object> {
    let (index, handle, parent) = (u32_at(body, 4)?, u32_at(body, 8)?, u32_at(body, 12)?);
    let mut object = Object { index, handle, parent, kind: String::new(), shared: false };
    for (kind, value) in Attributes::after(body.get(..)?, TCMSG) {
        match kind {
            TCA_KIND => {
                let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
                object.kind = String::from_utf8_lossy(&value[..end]).into_owned();
            }
            TCA_INGRESS_BLOCK | TCA_EGRESS_BLOCK => object.shared = true,
            _ => {}
        }
    }
    Some(object)
}

impl Object {
    /// Returns whether this qdisc (`ingress` or `clsact`) only holds filters that run before or after the network
    /// stack.
    pub fn holds_filters(&self) -> bool {
        self.parent == TC_H_INGRESS
    }

    fn on(&self) -> Vec<IfMatch> {
        vec![IfMatch::Index(self.index)]
    }

    /// Returns the effect of the qdisc itself. `None` if the kernel attached it, or if it only holds filters that it
    /// does not share.
    pub fn qdisc_effect(&self, name: &str) -> Option<Effect> {
        let handle = format!("{:x}:", self.handle >> 16);
        let effect = |scope, reason: &str| {
            let object = format!("tc qdisc {} {handle} dev {name}", self.kind);
            Some(Effect { kind: Kind::TrafficControl, scope, object, reason: reason.into() })
        };
        if self.holds_filters() {
            let reason = "may have filters in a block shared with other interfaces";
            return if self.shared { effect(Scope::All(Families::BOTH), reason) } else { None };
        }
        let configured = self.handle >> 16 != 0;
        configured.then(|| effect(Scope::Out(self.on(), Families::BOTH), "queues, shapes or drops outgoing packets"))?
    }

    /// Returns the effect of a filter.
    pub fn filter_effect(&self, name: &str) -> Effect {
        let egress = self.parent == CLSACT_EGRESS;
        let scope = if egress { Scope::Out } else { Scope::In }(self.on(), Families::BOTH);
        let side = if egress { "egress" } else { "ingress" };
        let object = format!("tc filter dev {name} {side} {}", self.kind);
        Effect { kind: Kind::TrafficControl, scope, object, reason: "may drop, mark or redirect packets".into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qdisc(handle: u32, parent: u32, kind: &str) -> Object {
        Object { index: 3, handle, parent, kind: kind.into(), shared: false }
    }

    #[test]
    fn configured_qdiscs_concern_what_leaves() {
        assert!(qdisc(0, u32::MAX, "noqueue").qdisc_effect("r0").is_none());
        assert!(qdisc(0, u32::MAX, "fq_codel").qdisc_effect("r0").is_none());
        let effect = qdisc(0x8001_0000, u32::MAX, "tbf").qdisc_effect("r0").unwrap();
        assert_eq!(effect.scope, Scope::Out(vec![IfMatch::Index(3)], Families::BOTH));
        assert_eq!(effect.object, "tc qdisc tbf 8001: dev r0");
        assert!(qdisc(0xffff_0000, TC_H_INGRESS, "clsact").qdisc_effect("r0").is_none());
    }

    #[test]
    fn filters_concern_their_side() {
        let side = |parent| qdisc(0, parent, "u32").filter_effect("r0").scope;
        assert!(matches!(side(CLSACT_EGRESS), Scope::Out(..)));
        assert!(matches!(side(CLSACT_INGRESS), Scope::In(..)));
        assert!(matches!(side(INGRESS), Scope::In(..)));
        assert_eq!(parse(&[0; 10]), None);
    }
}
