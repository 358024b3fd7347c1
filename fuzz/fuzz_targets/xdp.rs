//! The router's XDP program, compiled for this machine, and the stages of the router.
//!
//! Corpora: frag icmp ipv4 ipv6 partial views
//! Sources: xdp crates/router/src crates/wire/src crates/fib/src fuzz/xdp crates/bywash/tests/driver/model.rs
#![no_main]

#[path = "../xdp/mod.rs"]
mod harness;

libfuzzer_sys::fuzz_target!(|data: &[u8]| harness::xdp(data));
