//! Control messages of a memif peer.
//!
//! Sources: crates/port/src/memif
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_port::memif::fuzz::memif_messages(data));
