//! Syntax of ovs-ofctl: flows, groups and meters, parsed with the column of each error, and shown as OVS shows them.

mod actions;
mod flow;
mod group;
mod learn;
mod links;
mod matches;
mod show;
#[cfg(test)]
mod tests;
mod text;
mod value;

pub use flow::{filter, flow, packet};
pub use group::{group, group_id, meter, meter_id};
pub use show::{Shown, ShownActions, ShownMatch};
pub use text::SyntaxError;

use crate::model::OfPort;

/// Function that returns the port with a given name.
pub type PortNames<'a> = &'a dyn Fn(&str) -> Option<OfPort>;
