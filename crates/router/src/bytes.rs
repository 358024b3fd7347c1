//! Fields of packets, as numbers. A field that lies beyond the end is 0.

use bywash_wire::ethernet::HEADER_LEN;

/// Returns the frame's Ethernet type; `None` if the frame is too short.
#[inline(always)]
pub(crate) fn frame_type(data: &[u8]) -> Option<u16> {
    let header: &[u8; HEADER_LEN] = data.first_chunk()?;
    Some(u16::from_be_bytes([header[12], header[13]]))
}

pub(crate) fn be16(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from(u16::from_be_bytes(*b)))
}

pub(crate) fn be32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from_be_bytes(*b))
}

pub(crate) fn address6(bytes: &[u8]) -> u128 {
    bytes.first_chunk().map_or(0, |address| u128::from_be_bytes(*address))
}
