//! The syntax of ovs-ofctl: flows, groups and meters, read with the column of what is wrong, and shown as OVS does.

mod actions;
mod flow;
mod group;
mod matches;
mod show;
mod text;
mod value;

pub use flow::{filter, flow, packet};
pub use group::{group, group_id, meter, meter_id};
pub use show::{Shown, ShownActions, ShownMatch};
pub use text::SyntaxError;

use crate::model::OfPort;

/// Ports by name.
pub type PortNames<'a> = &'a dyn Fn(&str) -> Option<OfPort>;
