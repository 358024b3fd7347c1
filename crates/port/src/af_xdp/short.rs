//! Drivers whose zero-copy needs buffers larger than the frames.

use bywash_frame::DATA_OFFSET;

/// Drivers that tell the device the size of the buffers in KiB, rounded down, and treat each part of a longer frame as
/// a frame: igb, as seen on Linux 6.18, and igc, whose source does the same.
const ROUND_DOWN: [&str; 2] = ["igb", "igc"];
const KIB: usize = 1024;
/// Number of bytes of a frame that the MTU does not count: Ethernet header, VLAN tag, FCS.
const AROUND: usize = 14 + 4 + 4;

/// Returns why this driver would cut frames of an interface with this MTU in zero-copy mode, with chunks of this size.
pub(super) fn cuts(driver: &str, chunk: usize, mtu: u32) -> Option<String> {
    let room = |chunk: usize| (chunk - DATA_OFFSET) / KIB * KIB;
    let frame = mtu as usize + AROUND;
    if !ROUND_DOWN.contains(&driver) || frame <= room(chunk) {
        return None;
    }
    let remedy = match 4096 {
        large if frame <= room(large) => format!("cells of {large} bytes have room for this MTU"),
        large => format!("cells of {large} bytes have room for an MTU of {}", room(large) - AROUND),
    };
    Some(format!("{driver} uses {} bytes of a chunk of {chunk}, and cuts longer frames; {remedy}", room(chunk)))
}

#[cfg(test)]
mod tests {
    use super::cuts;

    #[test]
    fn only_whole_kilobytes_of_a_chunk_are_used() {
        assert!(cuts("igb", 2048, 1500).unwrap().starts_with("igb uses 1024 bytes of a chunk of 2048"));
        assert!(cuts("igb", 2048, 1500).unwrap().ends_with("cells of 4096 bytes have room for this MTU"));
        assert_eq!(cuts("igb", 2048, 1002), None);
        assert!(cuts("igb", 2048, 1003).is_some());
        assert_eq!(cuts("igc", 4096, 1500), None);
        assert_eq!(cuts("igb", 4096, 3050), None);
        assert!(cuts("igb", 4096, 3051).unwrap().ends_with("room for an MTU of 3050"));
        assert_eq!(cuts("ice", 2048, 1500), None);
    }
}
