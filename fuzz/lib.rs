//! Properties checked by the fuzz targets, shared with the tests of the crates. Those of private parsers are in their
//! crates, in modules named `fuzz`.

#[path = "../crates/config/tests/properties/mod.rs"]
pub mod config;

#[path = "../crates/conntrack/tests/properties/mod.rs"]
pub mod conntrack;

#[path = "../crates/docsis/tests/properties/mod.rs"]
pub mod docsis;

#[path = "../crates/flow/tests/properties/mod.rs"]
pub mod flow;

#[path = "../crates/measure/tests/properties/mod.rs"]
pub mod measure;

#[path = "../crates/port/tests/properties/mod.rs"]
pub mod port;

#[path = "../crates/wire/tests/common/mod.rs"]
pub mod wire;
