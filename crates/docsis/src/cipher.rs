//! BPI+ data encryption: AES-128 in CBC mode with residual termination block processing.
//!
//! Whole blocks are encrypted in CBC mode. The residue, shorter than a block, is XORed with the encryption of the last
//! ciphertext block, which is CFB of that many bits. A text shorter than one block uses the IV in place of that
//! ciphertext block (CableLabs, DOCSIS Security Specification, "Packet data encryption"; the same in libipsec-mb's
//! `DOCSIS_SEC_BPI`). The length never changes.

use aes::Aes128;
use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};

/// Size of a cipher block in bytes.
pub const BLOCK: usize = 16;

/// Traffic encryption key with its initialization vector, for the portable cipher.
#[derive(Clone)]
pub struct Tek {
    aes: Aes128,
    iv: [u8; BLOCK],
}

impl Tek {
    /// Creates it from the key and the initialization vector of the key exchange.
    pub fn new(key: &[u8; BLOCK], iv: &[u8; BLOCK]) -> Self {
        Self { aes: Aes128::new(&Array(*key)), iv: *iv }
    }

    /// Encrypts `text` in place.
    pub fn encrypt(&self, text: &mut [u8]) {
        let mut last = self.iv;
        let (blocks, rest) = text.as_chunks_mut::<BLOCK>();
        for block in blocks {
            *block = self.block(xor(*block, last));
            last = *block;
        }
        self.residue(rest, last);
    }

    /// Decrypts `text` in place.
    pub fn decrypt(&self, text: &mut [u8]) {
        let mut last = self.iv;
        let (blocks, rest) = text.as_chunks_mut::<BLOCK>();
        for block in blocks {
            let mut plain = Array(*block);
            self.aes.decrypt_block(&mut plain);
            let cipher = std::mem::replace(block, xor(plain.0, last));
            last = cipher;
        }
        self.residue(rest, last);
    }

    fn block(&self, plain: [u8; BLOCK]) -> [u8; BLOCK] {
        let mut block = Array(plain);
        self.aes.encrypt_block(&mut block);
        block.0
    }

    /// Encrypts or decrypts the residue, which is the same operation.
    fn residue(&self, rest: &mut [u8], last: [u8; BLOCK]) {
        if rest.is_empty() {
            return;
        }
        let pad = self.block(last);
        rest.iter_mut().zip(pad).for_each(|(byte, pad)| *byte ^= pad);
    }
}

fn xor(a: [u8; BLOCK], b: [u8; BLOCK]) -> [u8; BLOCK] {
    (u128::from_ne_bytes(a) ^ u128::from_ne_bytes(b)).to_ne_bytes()
}

/// Derives the key of modem `index` from a master key shared by many modems: the index, encrypted with the master key,
/// or the master key itself for index 0. For labs and tests without key exchange.
pub fn derived_key(master: &[u8; BLOCK], index: u32) -> [u8; BLOCK] {
    if index == 0 {
        return *master;
    }
    let mut block = Array(u128::from(index).to_be_bytes());
    Aes128::new(&Array(*master)).encrypt_block(&mut block);
    block.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
    }

    fn tek() -> Tek {
        // NIST SP 800-38A, F.2.1 (CBC) and F.3.13 (CFB128) use the same key, vector and text.
        let key = bytes("2b7e151628aed2a6abf7158809cf4f3c").try_into().unwrap();
        Tek::new(&key, &bytes("000102030405060708090a0b0c0d0e0f").try_into().unwrap())
    }

    const TEXT: &str = "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51";

    #[test]
    fn whole_blocks_are_cbc() {
        let mut text = bytes(TEXT);
        tek().encrypt(&mut text);
        assert_eq!(text, bytes("7649abac8119b246cee98e9b12e9197d5086cb9b507219ee95db113a917678b2"));
    }

    #[test]
    fn runts_are_cfb_from_the_vector() {
        for len in 0..BLOCK {
            let mut text = bytes(TEXT)[..len].to_vec();
            tek().encrypt(&mut text);
            assert_eq!(text, bytes("3b3fd92eb72dad20333449f8e83cfb4a")[..len]);
        }
    }

    #[test]
    fn decryption_undoes_encryption_at_every_length() {
        for len in 0..200 {
            let plain: Vec<u8> = (0..len).map(|i| (i * 37 + len) as u8).collect();
            let mut text = plain.clone();
            tek().encrypt(&mut text);
            assert!(len < 4 || text != plain);
            tek().decrypt(&mut text);
            assert_eq!(text, plain);
        }
    }

    #[test]
    fn derived_keys_differ() {
        let keys: std::collections::HashSet<_> = (0..1000).map(|i| derived_key(&[7; 16], i)).collect();
        assert_eq!(keys.len(), 1000);
        assert_eq!(derived_key(&[7; 16], 0), [7; 16]);
    }
}
