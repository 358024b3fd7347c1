//! A flow hash for choosing among equal next hops: all packets of a flow take the same one.
//!
//! It consists of two multiplications and shifts and is not keyed: a sender that can choose addresses can choose the
//! next hop, as with any router's ECMP. The upper bits are the best mixed; scale the hash by multiplication rather than
//! by remainder.

const K1: u64 = 0x9e37_79b9_7f4a_7c15;
const K2: u64 = 0xd6e8_feb8_6659_fd93;

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let x = (a ^ K1).wrapping_mul(K2) ^ b;
    let x = (x ^ (x >> 32)).wrapping_mul(K1);
    x ^ (x >> 29)
}

/// Hashes the flow of an IPv4 packet. `ports` holds source and destination port in packet order, 0 if there are none.
#[inline]
pub fn flow_hash4(src: u32, dst: u32, proto: u8, ports: u32) -> u32 {
    let h = mix(u64::from(src) << 32 | u64::from(dst), u64::from(ports) << 8 | u64::from(proto));
    (h.wrapping_mul(K2) >> 32) as u32
}

/// Hashes the flow of an IPv6 packet; `ports` as in [`flow_hash4`].
#[inline]
pub fn flow_hash6(src: u128, dst: u128, proto: u8, ports: u32) -> u32 {
    let ends = mix(mix((src >> 64) as u64, src as u64), mix((dst >> 64) as u64, dst as u64));
    (mix(ends, u64::from(ports) << 8 | u64::from(proto)).wrapping_mul(K2) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns chi-squared of `n` flows over `ways`. For an even spread it is about `ways`, and `ways + 6 * sqrt(2 *
    /// ways)` is almost never exceeded.
    fn chi_squared(hashes: impl Iterator<Item = u32>, ways: u64) -> f64 {
        let mut bins = vec![0f64; ways as usize];
        let mut n = 0.0;
        for h in hashes {
            bins[((u64::from(h) * ways) >> 32) as usize] += 1.0;
            n += 1.0;
        }
        let mean = n / ways as f64;
        bins.iter().map(|b| (b - mean) * (b - mean) / mean).sum()
    }

    #[test]
    fn flows_that_differ_little_spread_evenly() {
        for ways in [2, 3, 4, 7, 8, 16] {
            let limit = ways as f64 + 6.0 * (2.0 * ways as f64).sqrt();
            let by_port = (0..20_000u32).map(|p| flow_hash4(0x0a00_0001, 0x0a00_0102, 17, p << 16 | 53));
            let by_host = (0..20_000u32).map(|h| flow_hash4(0x0a00_0001 + h, 0x0a01_0001, 6, 80));
            let by_host6 = (0..20_000u128).map(|h| flow_hash6((0xfd00 << 112) + h, 1, 6, 80));
            let by_net6 = (0..20_000u128).map(|h| flow_hash6((0xfd00 << 112) + (h << 64), 1, 6, 80));
            for (name, x) in [
                ("port", chi_squared(by_port, ways)),
                ("host", chi_squared(by_host, ways)),
                ("host6", chi_squared(by_host6, ways)),
                ("net6", chi_squared(by_net6, ways)),
            ] {
                assert!(x < limit, "{name} over {ways}: {x} beyond {limit}");
            }
        }
    }
}
