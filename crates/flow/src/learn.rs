//! Flows that packets create: the action `learn`.

use crate::field::{Field, Subfield};
use crate::key::Flow;
use crate::model::{Action, FlowSpec, Match, OfPort, Spelling, Timeouts};
use crate::table::Rule;
use std::sync::Arc;

/// Origin of a value in a learned flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A constant value.
    Value(u128),
    /// The packet's value of this subfield.
    Field(Subfield),
}

/// Part of a learned flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Condition on a subfield.
    Match(Subfield, Source),
    /// Action that sets a subfield.
    Load(Subfield, Source),
    /// Action that sends to the port whose number the packet has in this subfield.
    Output(Subfield),
}

/// Action that adds a flow for the packet, or refreshes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Learn {
    /// Table of the flow.
    pub table: u8,
    /// Priority of the flow.
    pub priority: u16,
    /// Cookie of the flow.
    pub cookie: u64,
    /// Idle timeout in seconds; 0 disables it.
    pub idle_timeout: u16,
    /// Hard timeout in seconds since the flow was last refreshed; 0 disables it.
    pub hard_timeout: u16,
    /// Timeouts of the flow once the connection has ended: its action `fin_timeout`.
    pub fin: Timeouts,
    /// Maximum number of flows with this table and cookie, beyond which none is added; 0 disables the limit.
    pub limit: u32,
    /// Set if the learned flows with this table and cookie are deleted once no flow with such an action is left.
    pub delete_learned: bool,
    /// Conditions and actions of the flow.
    pub parts: Vec<Part>,
}

/// Flow made by a packet.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LearnedFlow {
    pub spec: FlowSpec,
    /// See [`Learn::limit`].
    pub limit: u32,
}

/// Change of the flows that a packet makes.
#[derive(Clone, Debug)]
pub(crate) enum FlowChange {
    /// Adds or refreshes this flow.
    Flow(Arc<LearnedFlow>),
    /// Shortens the timeouts of this flow.
    Ended(Arc<Rule>, Timeouts),
}

impl Part {
    /// Returns the subfield of the packet that the part depends on.
    pub(crate) fn source(&self) -> Option<Subfield> {
        match *self {
            Self::Match(_, Source::Field(from)) | Self::Load(_, Source::Field(from)) | Self::Output(from) => Some(from),
            Self::Match(_, Source::Value(_)) | Self::Load(_, Source::Value(_)) => None,
        }
    }
}

impl Learn {
    /// Returns the flow that a packet makes.
    pub(crate) fn flow(&self, packet: &Flow) -> LearnedFlow {
        let (mut matches, mut actions) = (Match::default(), Vec::new());
        if self.fin != Timeouts::default() {
            actions.push(Action::FinTimeout(self.fin));
        }
        let value = |from: Source| match from {
            Source::Value(value) => value,
            Source::Field(from) => from.get(packet),
        };
        for part in &self.parts {
            match *part {
                Part::Match(to, from) => {
                    // A condition on `nw_tos` is on its upper six bits, as in any flow.
                    let mask = to.mask() & if to.field == Field::NwTos { 0xfc } else { u128::MAX };
                    matches.add(to.field, value(from) << to.low, mask);
                }
                Part::Load(to, from) => {
                    let (value, mask) = (value(from) << to.low, to.mask());
                    actions.push(Action::Set { field: to.field, value, mask, as_: Spelling::Load });
                }
                Part::Output(from) => {
                    let port = u16::try_from(from.get(packet)).map(OfPort);
                    let special = [OfPort::IN_PORT, OfPort::FLOOD, OfPort::ALL, OfPort::LOCAL];
                    actions.extend(
                        port.into_iter().filter(|of| of.0 < OfPort::MAX || special.contains(of)).map(Action::Output),
                    );
                }
            }
        }
        let spec = FlowSpec {
            table: self.table,
            priority: self.priority,
            matches,
            actions,
            cookie: self.cookie,
            idle_timeout: self.idle_timeout,
            hard_timeout: self.hard_timeout,
            check_overlap: false,
            reset_counts: false,
        };
        LearnedFlow { spec, limit: self.limit }
    }
}
