//! Fields of frames, for the flow switch.
//!
//! Sources: crates/flow/src/extract.rs crates/flow/src/key.rs
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::flow::flow_extract(data));
