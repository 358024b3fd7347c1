//! Forwarding of fragments: flows see no ports in any fragment, so that all fragments of a packet take the same path.

mod common;

use bywash_flow::app::CacheConfig;
use common::rig::{Rig, add};

/// Returns a UDP packet to port 53, or a fragment of one. `flags` is the IPv4 fragment word: flags and offset.
fn packet(flags: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    let mut ip = [0x45, 0, 0, 44, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ip[6..8].copy_from_slice(&flags.to_be_bytes());
    let sum = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum::<u32>();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    frame.extend([4, 210, 0, 53, 0, 24, 0, 0]);
    frame.resize(60, 0);
    frame
}

#[test]
fn all_of_a_packet_goes_one_way() {
    let mut rig = Rig::new(4, CacheConfig { insert_one_in: 1, ..CacheConfig::default() }, 32);
    let flows = [
        "priority=10,udp,tp_dst=53,actions=output:2",
        "priority=5,udp,tp_dst=0,actions=output:3",
        "priority=1,actions=output:4",
    ];
    add(&mut rig.control, &flows);
    // First through the tables, then through the caches.
    for _ in 0..2 {
        let way =
            |rig: &mut Rig, flags| rig.send(1, &[packet(flags)]).iter().map(|(port, _)| *port).collect::<Vec<_>>();
        assert_eq!(way(&mut rig, 0), [2], "a whole packet");
        assert_eq!(way(&mut rig, 0x2000), [3], "the first fragment");
        assert_eq!(way(&mut rig, 0x2003), [3], "a middle fragment");
        assert_eq!(way(&mut rig, 0x0006), [3], "the last fragment");
    }
}
