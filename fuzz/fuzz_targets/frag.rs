//! Fragmentation.
//!
//! Sources: crates/wire/src
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::wire::frag(data));
