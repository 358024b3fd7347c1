//! DOCSIS MAC headers.
//!
//! Sources: crates/docsis/src/header.rs crates/docsis/src/crc.rs
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::docsis::docsis_header(data));
