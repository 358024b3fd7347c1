//! IPv6 headers and extension headers.
//!
//! Sources: crates/wire/src
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::wire::ipv6(data));
