//! Ethernet, tag and transport headers, checksums, addresses and hex digits as text.
//!
//! Sources: crates/wire/src
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::wire::views(data));
