//! Checksums of a DOCSIS frame: the header's CRC-16 and the PDU's CRC-32.

/// Size of the PDU's CRC in bytes.
pub const CRC_LEN: usize = 4;

/// Maximum number of bytes processed in one step: headers written here have at most 15 bytes before the check sequence.
const STEP: usize = 16;

/// Tables of the CRC-16 of ITU-T X.25, with the polynomial x^16 + x^12 + x^5 + 1 of MULPI's header check sequence: the
/// contribution of each byte value when 0 to 15 bytes follow.
static TABLES: [[u16; 256]; STEP] = {
    let mut tables = [[0; 256]; STEP];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x8408 } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut after = 1;
    while after < STEP {
        let mut byte = 0;
        while byte < 256 {
            let crc = tables[after - 1][byte];
            tables[after][byte] = crc >> 8 ^ tables[0][(crc & 0xff) as usize];
            byte += 1;
        }
        after += 1;
    }
    tables
};

/// Returns the header check sequence of `header`, the MAC header without the sequence itself, in wire order.
#[inline]
pub fn hcs(header: &[u8]) -> [u8; 2] {
    (!hcs_register(header)).to_le_bytes()
}

#[inline]
fn hcs_register(header: &[u8]) -> u16 {
    if let [first, second, rest @ ..] = header
        && let Some(tables) = TABLES.get(..header.len())
    {
        // The CRC is the XOR of the contributions of all bytes, which do not depend on each other. The initial ones
        // affect the first two bytes.
        let bytes = [!first, !second];
        let bytes = bytes.iter().chain(rest);
        return bytes.zip(tables.iter().rev()).fold(0, |crc, (byte, table)| crc ^ table[usize::from(*byte)]);
    }
    header.iter().fold(0xffff, |crc, b| crc >> 8 ^ TABLES[0][usize::from((crc ^ u16::from(*b)) as u8)])
}

/// Returns the CRC-32 of IEEE 802.3 of a PDU, in wire order.
#[inline]
pub fn crc32(pdu: &[u8]) -> [u8; CRC_LEN] {
    crc32fast::hash(pdu).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_check_values() {
        // Published check values for the text "123456789": X.25 906e, 802.3 cbf43926.
        assert_eq!(hcs(b"123456789"), [0x6e, 0x90]);
        assert_eq!(crc32(b"123456789"), [0x26, 0x39, 0xf4, 0xcb]);
        assert_eq!((hcs(b""), crc32(b"")), ([0, 0], [0; 4]));
    }

    #[test]
    fn in_one_step_as_byte_by_byte() {
        let bytes: Vec<u8> = (0..40u8).map(|i| i.wrapping_mul(151) ^ 0x5a).collect();
        for len in 0..bytes.len() {
            let one_by_one = bytes[..len]
                .iter()
                .fold(0xffff_u16, |crc, b| crc >> 8 ^ TABLES[0][usize::from((crc ^ u16::from(*b)) as u8)]);
            assert_eq!(hcs(&bytes[..len]), (!one_by_one).to_le_bytes(), "{len}");
        }
    }
}
