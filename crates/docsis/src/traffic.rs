//! Synthetic traffic of a cable network, generated in memory.

use crate::group::Mac;
use bywash_wire::build::Packet;
use bywash_wire::ethernet::{FCS_LEN, MacAddr};
use std::net::{Ipv4Addr, SocketAddr};

/// Share of packets of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Weight of this size, relative to the sum of all weights.
    pub weight: u32,
    /// Size of the packets in bytes, without FCS.
    pub size: usize,
}

/// Cable mix of Intel's vCMTS measurements: 3 % of 68 bytes, 1 % of 932, 96 % of 1520.
pub const CABLE_IMIX: [Share; 3] =
    [Share { weight: 3, size: 68 }, Share { weight: 1, size: 932 }, Share { weight: 96, size: 1520 }];

/// Generates `packets` UDP packets over IPv4 to `modems` in turn, with sizes mixed as evenly as the weights allow. All
/// come from one server; each modem has a destination port of its own.
///
/// # Panics
/// Panics without modems, without a positive weight, or with a size that a UDP packet cannot have (below 42 bytes,
/// above 9000).
pub fn packets(modems: &[Mac], mix: &[Share], packets: usize) -> Vec<Vec<u8>> {
    let weights: u64 = mix.iter().map(|share| u64::from(share.weight)).sum();
    assert!(!modems.is_empty() && weights > 0, "no modems, or no size with a weight");
    // The next size is the one that is farthest behind its share.
    let mut sent = vec![0u64; mix.len()];
    (0..packets)
        .map(|number| {
            let due = (0..mix.len()).max_by_key(|i| {
                let share = i128::from(mix[*i].weight) * (number as i128 + 1);
                share - i128::from(sent[*i]) * i128::from(weights)
            });
            let due = due.unwrap_or(0);
            sent[due] += 1;
            let modem = number % modems.len();
            let source = SocketAddr::from((Ipv4Addr::new(198, 18, 0, 1), 443));
            let host = Ipv4Addr::from(0x0a00_0000 + modem as u32 + 1);
            let destination = SocketAddr::from((host, 1024 + (modem % 60_000) as u16));
            Packet::udp(source, destination)
                .macs(MacAddr([2, 0, 0, 0, 0, 1]), MacAddr(modems[modem]))
                .size(mix[due].size + FCS_LEN)
                .build()
                .expect("a size that a UDP packet can have")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_modems_are_met_exactly() {
        let modems: Vec<Mac> = (0..300u16).map(|i| [2, 0, 0, 0, (i >> 8) as u8, i as u8]).collect();
        let packets = packets(&modems, &CABLE_IMIX, 600);
        for (share, n) in CABLE_IMIX.iter().zip([18, 6, 576]) {
            assert_eq!(packets.iter().filter(|p| p.len() == share.size).count(), n);
        }
        assert!(modems.iter().all(|mac| packets.iter().filter(|p| p[..6] == mac[..]).count() == 2));
        let first = packets.iter().position(|p| p.len() == 68).unwrap();
        assert!((10..30).contains(&first), "short ones come evenly: {first}");
    }
}
