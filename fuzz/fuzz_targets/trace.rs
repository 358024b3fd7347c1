//! Packets to trace.
//!
//! Sources: crates/daemon/src/modes/packet.rs
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_daemon::fuzz::trace(data));
