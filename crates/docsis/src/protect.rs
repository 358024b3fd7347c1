//! Sealing and opening of a PDU: the CRC is appended, then everything after the addresses is encrypted.

use crate::cipher::Tek;
use crate::crc::{CRC_LEN, crc32};

/// Size in bytes of the destination and source addresses, which stay unencrypted so that modems can recognise their
/// PDUs.
pub const CLEAR: usize = 12;

/// Protection of PDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// Set if the CRC-32 of the PDU is appended.
    pub crc: bool,
    /// Set if PDU and CRC are encrypted.
    pub cipher: bool,
    /// Bytes at the start that stay unencrypted.
    pub offset: usize,
}

impl Default for Protection {
    fn default() -> Self {
        Self { crc: true, cipher: true, offset: CLEAR }
    }
}

impl Protection {
    /// Returns the number of bytes that sealing adds.
    #[inline]
    pub fn added(&self) -> usize {
        if self.crc { CRC_LEN } else { 0 }
    }
}

/// Error of [`open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Too short for a CRC.
    #[error("{0} bytes are too short for a CRC of 4 bytes")]
    Short(usize),
    /// Wrong CRC: damaged, or sealed with another key or offset.
    #[error("wrong CRC {found:08x}, computed {computed:08x}: damaged, or sealed with another key or offset")]
    Crc {
        /// Value in the bytes.
        found: u32,
        /// Computed value.
        computed: u32,
    },
}

/// Seals `bytes` in place. With a CRC, the last four bytes are room for it and those before them are the PDU.
pub fn seal(tek: &Tek, how: Protection, bytes: &mut [u8]) {
    if how.crc
        && let Some((pdu, crc)) = bytes.split_last_chunk_mut::<CRC_LEN>()
    {
        *crc = crc32(pdu);
    }
    if how.cipher
        && let Some(text) = bytes.get_mut(how.offset..)
    {
        tek.encrypt(text);
    }
}

/// Opens `bytes` in place and returns the PDU's length. After an error, `bytes` contain the result of decryption.
pub fn open(tek: &Tek, how: Protection, bytes: &mut [u8]) -> Result<usize, OpenError> {
    if how.cipher
        && let Some(text) = bytes.get_mut(how.offset..)
    {
        tek.decrypt(text);
    }
    if !how.crc {
        return Ok(bytes.len());
    }
    let Some((pdu, found)) = bytes.split_last_chunk::<CRC_LEN>() else { return Err(OpenError::Short(bytes.len())) };
    let computed = crc32(pdu);
    if *found == computed {
        Ok(pdu.len())
    } else {
        Err(OpenError::Crc { found: u32::from_le_bytes(*found), computed: u32::from_le_bytes(computed) })
    }
}
