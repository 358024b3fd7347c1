//! Messages of rtnetlink.
//!
//! Sources: crates/netlink/src crates/nl/src/wire.rs
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_netlink::fuzz::rtnetlink(data));
