#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod addresses;
pub mod app;
pub mod control;
mod dependents;
pub mod emc;
mod exec;
pub mod extract;
pub mod field;
pub mod key;
pub mod learn;
pub mod megaflow;
pub mod meter;
pub mod model;
mod normal;
pub mod ops;
pub mod pipeline;
pub mod rewrite;
pub mod script;
pub mod stats;
pub mod syntax;
pub mod table;
pub mod translate;
