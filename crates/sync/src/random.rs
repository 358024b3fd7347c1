//! Reproducible pseudo-random numbers: the same sequence for the same seed.

/// Increment between consecutive states of a stream (the splitmix64 gamma).
pub const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns number `i` of a seed's stream: splitmix64 (Steele, Lea, Flood 2014), a good hash of a counter.
#[inline]
pub fn splitmix64(seed: u64, i: u64) -> u64 {
    let z = seed.wrapping_add(i.wrapping_mul(STEP));
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use super::splitmix64;

    /// First numbers for seed 1234567, from the authors' reference program.
    #[test]
    fn the_stream_is_the_published_one() {
        let first = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431];
        assert_eq!(std::array::from_fn(|i| splitmix64(1234567, i as u64 + 1)), first);
    }
}
