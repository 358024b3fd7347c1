//! Cost of frames on an OFDM channel, by codewords.
//!
//! A channel carries codewords of a profile, which says how many bits a symbol has. The frames of a profile follow each
//! other in codewords of full length; a codeword that is not full, because there are no more frames or the next one has
//! another profile, is shortened, but keeps its header, parity and pointer.
//!
//! The figures are those of DOCSIS 3.1 (CM-SP-PHYv3.1, downstream forward error correction), except where a comment
//! says *assumed*.

/// Length of a full codeword in bits: LDPC of rate 8/9.
pub const CODEWORD: u32 = 16_200;
/// Bits of a codeword that are not payload: LDPC and BCH parity, and the header with the pointer to the next frame.
pub const OVERHEAD: u32 = 1800 + 168 + 16;
/// Payload of a full codeword in bits.
pub const PAYLOAD: u32 = CODEWORD - OVERHEAD;
/// Symbols of the next codeword pointer (NCP) that each codeword needs: 48 coded bits in symbols of 6 bits. The
/// standard has QPSK, 16-QAM and 64-QAM for them; *Assumed* are 64-QAM, and that the CRC of each symbol's pointers is
/// part of the channel's rate.
pub const NCP_SYMBOLS: u32 = 48 / 6;
/// Bits per symbol that a profile can have, from 16-QAM to 16384-QAM.
pub const BITS: [usize; 10] = [4, 6, 7, 8, 9, 10, 11, 12, 13, 14];

/// Codewords of a channel.
#[derive(Clone, Debug)]
pub struct Codewords {
    /// Bits per symbol of the profile to which the channel's rate refers; 0: frames cost their own bytes.
    best: u8,
    /// Bits per symbol of the last codeword.
    bits: u8,
    /// Bits of payload for which the last codeword has room.
    left: u32,
}

impl Codewords {
    /// Creates the codewords of a channel whose rate is that of the payload of full codewords of a profile with `best`
    /// bits per symbol; 0 if frames cost their own bytes.
    pub fn new(best: u8) -> Self {
        Self { best, bits: 0, left: 0 }
    }

    /// Returns the bytes that a frame of `len` bytes costs at the channel's rate if a symbol has `bits` bits, and the
    /// number of codewords that it begins. `idle` is true if nothing was sent for so long that the last codeword has
    /// ended.
    #[inline]
    pub fn cost(&mut self, len: usize, bits: u8, idle: bool) -> (u32, u32) {
        if self.best == 0 || bits == 0 {
            return (len as u32, 0);
        }
        if idle || bits != self.bits {
            (self.bits, self.left) = (bits, 0);
        }
        let payload = 8 * len as u32;
        let begun = payload.saturating_sub(self.left).div_ceil(PAYLOAD);
        self.left = self.left + begun * PAYLOAD - payload;
        // Bytes times the ratio of the symbols taken to those of a full codeword of the best profile.
        let wide = |n: u32| u64::from(n);
        let [best, bits] = [self.best, bits].map(u64::from);
        let coded = wide(payload) + wide(begun) * (wide(OVERHEAD) + wide(NCP_SYMBOLS) * bits);
        let full = wide(CODEWORD) + wide(NCP_SYMBOLS) * best;
        ((coded * best * wide(PAYLOAD)).div_ceil(8 * bits * full) as u32, begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by hand from the figures of the standard.
    #[test]
    fn known_costs() {
        assert_eq!((CODEWORD, PAYLOAD, PAYLOAD / 8, NCP_SYMBOLS), (16_200, 14_216, 1777, 8));
        for (len, best, bits, cost, begun) in [
            // A full codeword of the best profile costs its payload.
            (1777, 12, 12, 1777, 1),
            // A byte more begins another codeword: 1532 symbols instead of 1358.
            (1778, 12, 12, 2005, 2),
            // 64 bytes: (512 + 1984) / 12 + 8 = 216 symbols.
            (64, 12, 12, 283, 1),
            // 10 bits instead of 12: 1628 symbols.
            (1777, 12, 10, 2131, 1),
            // 4 bits: 4058 symbols.
            (1777, 12, 4, 5311, 1),
            // 1358 symbols, where 14 bits take 1165.
            (1777, 14, 12, 2072, 1),
        ] {
            let found = Codewords::new(best).cost(len, bits, true);
            assert_eq!(found, (cost, begun), "{len} bytes, {bits} of {best} bits");
        }
        assert_eq!(Codewords::new(0).cost(1500, 12, true), (1500, 0));
    }

    #[test]
    fn frames_share_codewords_until_the_profile_changes_or_the_channel_is_idle() {
        let mut codewords = Codewords::new(12);
        let begun = |codewords: &mut Codewords, len, bits, idle| codewords.cost(len, bits, idle).1;
        assert_eq!(begun(&mut codewords, 1000, 12, false), 1);
        assert_eq!(begun(&mut codewords, 777, 12, false), 0, "the rest of the codeword");
        assert_eq!(begun(&mut codewords, 1, 12, false), 1);
        assert_eq!(begun(&mut codewords, 1, 10, false), 1, "another profile");
        assert_eq!(begun(&mut codewords, 1, 12, false), 1, "the codeword before was closed");
        assert_eq!(begun(&mut codewords, 1, 12, true), 1, "idle");
        assert_eq!(begun(&mut codewords, 4 * 1777, 12, false), 4);
    }

    /// Frames of any size cost as much as their bytes, if there is no pause.
    #[test]
    fn a_saturated_channel_has_its_rate() {
        for len in [68, 1520] {
            let mut codewords = Codewords::new(12);
            let sum: u64 = (0..17_770).map(|_| u64::from(codewords.cost(len, 12, false).0)).sum();
            let ratio = sum as f64 / (17_770 * len) as f64;
            // Costs are whole bytes, rounded up.
            assert!((1.0..1.0 + 1.0 / len as f64 + 1e-3).contains(&ratio), "{len}: {ratio}");
        }
    }
}
