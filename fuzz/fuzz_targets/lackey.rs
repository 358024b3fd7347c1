//! Traces by valgrind's lackey.
//!
//! Sources: crates/measure/src
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::measure::lackey(data));
