//! Messages of ctnetlink.
//!
//! Sources: crates/conntrack/src/message.rs crates/conntrack/src/obstacle.rs crates/nl/src/wire.rs
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::conntrack::ctnetlink(data));
