#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::port::journal(data));
