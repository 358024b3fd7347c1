//! The two checks of a DOCSIS frame: the header's CRC-16 and the PDU's CRC-32.

/// Bytes of the PDU's CRC.
pub const CRC_LEN: usize = 4;

/// CRC-16 of ITU-T X.25, the polynomial x^16 + x^12 + x^5 + 1 of MULPI's header check sequence, byte by byte.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x8408 } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// The header check sequence over the MAC header up to it, as it stands on the wire.
#[inline]
pub fn hcs(header: &[u8]) -> [u8; 2] {
    let crc = header.iter().fold(0xffff_u16, |crc, b| crc >> 8 ^ TABLE[usize::from((crc ^ u16::from(*b)) as u8)]);
    (!crc).to_le_bytes()
}

/// The CRC-32 of IEEE 802.3 over a PDU, as it stands on the wire.
#[inline]
pub fn crc32(pdu: &[u8]) -> [u8; CRC_LEN] {
    crc32fast::hash(pdu).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_check_values() {
        // Both catalogues of CRCs give these for the text "123456789": X.25 906e, 802.3 cbf43926.
        assert_eq!(hcs(b"123456789"), [0x6e, 0x90]);
        assert_eq!(crc32(b"123456789"), [0x26, 0x39, 0xf4, 0xcb]);
        assert_eq!((hcs(b""), crc32(b"")), ([0, 0], [0; 4]));
    }
}
