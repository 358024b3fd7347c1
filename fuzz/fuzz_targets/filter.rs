//! Packet filters.
//!
//! Sources: crates/port/src/pcap
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::port::filter(data));
