//! Configuration: model, file format, validation and error reporting.

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
pub use cmts::{CmtsConfig, DepiConfig, FlowConfig, GroupConfig};
pub use host::Host;
pub use keys::reference;
pub use load::Draft;
pub use model::*;
pub use plan::Plan;
pub use problem::ConfigErrors;
pub use schema::schema;
