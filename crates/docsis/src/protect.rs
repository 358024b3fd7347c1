//! Sealing a PDU and opening it again: CRC appended, then everything behind the addresses enciphered.

use crate::cipher::Tek;
use crate::crc::{CRC_LEN, crc32};

/// Bytes of destination and source address, which stay clear so that modems can tell what is theirs.
pub const CLEAR: usize = 12;

/// What is done to PDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protection {
    /// The CRC-32 of the PDU is appended.
    pub crc: bool,
    /// PDU and CRC are enciphered.
    pub cipher: bool,
    /// Bytes at the front that stay clear.
    pub offset: usize,
}

impl Default for Protection {
    fn default() -> Self {
        Self { crc: true, cipher: true, offset: CLEAR }
    }
}

impl Protection {
    /// Bytes it adds.
    #[inline]
    pub fn added(&self) -> usize {
        if self.crc { CRC_LEN } else { 0 }
    }
}

/// Why sealed bytes cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No room for a CRC.
    #[error("{0} bytes cannot end in a CRC of 4")]
    Short(usize),
    /// Damaged, or another key's.
    #[error("the CRC says {found:08x}, the PDU's is {computed:08x}: damaged, or sealed with another key or offset")]
    Crc {
        /// As it stands there.
        found: u32,
        /// As it should be.
        computed: u32,
    },
}

/// Seals in place. With a CRC, the last four of `bytes` are room for it and what is before them is the PDU.
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

/// Opens in place; returns the PDU's length. After an error, `bytes` hold what came of deciphering them.
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
