//! Configuration files.
//!
//! Sources: crates/config/src
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::config::config(data));
