//! Messages of a takeover.
//!
//! Sources: crates/daemon/src/takeover.rs crates/daemon/src/successor.rs
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_daemon::fuzz::takeover(data));
