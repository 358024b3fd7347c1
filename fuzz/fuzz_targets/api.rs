//! Requests to the API.
//!
//! Sources: crates/api-server/src crates/daemon/src/api
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_daemon::fuzz::api(data));
