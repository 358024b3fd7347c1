//! Properties checked by the fuzz targets, shared with the tests of the crates (crates/wire/tests, crates/flow/tests,
//! crates/port/tests).

#[path = "../crates/wire/tests/common/mod.rs"]
pub mod wire;

#[path = "../crates/flow/tests/properties/mod.rs"]
pub mod flow;

#[path = "../crates/port/tests/properties/mod.rs"]
pub mod port;
