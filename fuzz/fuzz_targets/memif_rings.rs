//! Rings and packets in memory that a memif peer writes.
//!
//! Sources: crates/port/src/memif
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_port::memif::fuzz::memif_rings(data));
