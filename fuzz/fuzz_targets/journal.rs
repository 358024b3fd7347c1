//! Journals of changed interface settings.
//!
//! Sources: crates/port/src/af_xdp/journal
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::port::journal(data));
