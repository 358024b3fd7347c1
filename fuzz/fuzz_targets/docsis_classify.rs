//! Classification of packets to a modem.
//!
//! Sources: crates/docsis/src/classify.rs
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::docsis::docsis_classify(data));
