//! Opening of protected DOCSIS PDUs.
//!
//! Sources: crates/docsis/src/protect.rs crates/docsis/src/cipher.rs crates/docsis/src/crc.rs
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| bywash_fuzz::docsis::docsis_open(data));
