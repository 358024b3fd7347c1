//! Text of flows, groups, meters and packets.
//!
//! Sources: crates/flow/src/syntax
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::flow::flow_syntax(data));
