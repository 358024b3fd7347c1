#![doc = include_str!("../README.md")]
//! [`Draft`] reads a file and [`Draft::finish`] checks it: the result is a [`Config`]. The table of keys (`keys`) says
//! what each key takes and its default; the reader, the defaults of the model, [`reference()`] and [`schema()`] follow
//! it.

#![forbid(unsafe_code)]

mod check;
mod choice;
mod cmts;
mod files;
mod host;
mod key;
mod keys;
mod load;
mod model;
mod modems;
mod plan;
mod pools;
mod problem;
mod reader;
mod reference;
mod schema;
mod secret;
#[cfg(test)]
mod tests;
mod text;

pub use check::{cell_for, largest_mtu};
pub use choice::*;
pub use cmts::{Block, CmtsConfig, DepiConfig, FlowConfig, GroupConfig, ProfileConfig};
pub use files::Files;
pub use host::{CPUS, CpuList, Host, Interface, cpu_list, group_id, user_id};
pub use keys::{BLOCK, FRAMES, SOCKET, WORKERS};
pub use load::Draft;
pub use model::*;
pub use modems::{Modems, WrongModems};
pub use plan::{Plan, WorkerPlan};
pub use pools::PoolPlan;
pub use problem::ConfigErrors;
pub use reference::reference;
pub use schema::schema;
pub use secret::Secret;
pub use text::{HIDDEN, count, interface_name};
