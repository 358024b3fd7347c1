//! Routing rules, IPsec policies, qdiscs and filters.
//!
//! Sources: crates/exceptions/src crates/nl/src/wire.rs
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_exceptions::fuzz::policies(data));
