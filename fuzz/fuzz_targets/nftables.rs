//! Rules of nf_tables.
//!
//! Sources: crates/exceptions/src/nft crates/exceptions/src/nft.rs crates/nl/src/wire.rs
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_exceptions::fuzz::nftables(data));
