//! Big-endian fields of packets, as numbers.

use bywash_wire::ethernet::HEADER_LEN;

/// Returns the frame's Ethernet type; `None` if the frame is too short.
#[inline(always)]
pub(crate) fn frame_type(data: &[u8]) -> Option<u16> {
    let header: &[u8; HEADER_LEN] = data.first_chunk()?;
    Some(u16::from_be_bytes([header[12], header[13]]))
}

/// Returns the first two bytes; 0 if there are fewer.
pub(crate) fn be16(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from(u16::from_be_bytes(*b)))
}

/// Returns the first four bytes; 0 if there are fewer.
pub(crate) fn be32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from_be_bytes(*b))
}

/// Returns the IPv6 address that the first 16 bytes are; 0 if there are fewer.
pub(crate) fn address6(bytes: &[u8]) -> u128 {
    bytes.first_chunk().map_or(0, |address| u128::from_be_bytes(*address))
}
