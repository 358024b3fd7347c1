//! The properties the targets check, which are the ones the ordinary tests check (crates/wire/tests).

#[path = "../crates/wire/tests/common/mod.rs"]
pub mod wire;
