//! Configuration: model, file format, validation and error reporting.

#![forbid(unsafe_code)]

mod check;
mod cmts;
mod host;
mod keys;
mod load;
mod model;
mod plan;
mod problem;
mod reader;
mod schema;
#[cfg(test)]
mod tests;

pub use check::{cell_for, largest_mtu};
pub use cmts::{Block, CmtsConfig, Crypto, DepiConfig, FlowConfig, GroupConfig, Overflow};
pub use host::{CPUS, Host, Interface, cpu_list, group_id, interface_name};
pub use keys::reference;
pub use load::Draft;
pub use model::*;
pub use plan::{Plan, WorkerPlan};
pub use problem::ConfigErrors;
pub use schema::schema;
