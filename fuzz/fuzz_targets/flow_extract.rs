#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::flow::flow_extract(data));
