//! The properties the targets check, which are the ones the ordinary tests check (crates/wire/tests, crates/flow/tests).

#[path = "../crates/wire/tests/common/mod.rs"]
pub mod wire;

#[path = "../crates/flow/tests/properties/mod.rs"]
pub mod flow;
