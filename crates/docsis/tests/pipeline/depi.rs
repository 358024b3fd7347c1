//! MAC frames packed into DEPI packets.

use crate::{Outcome, Setup, group, opened, run, traffic, two_flows};
use bywash_docsis::depi::{DEPI_LEN, Depi, MTU};
use bywash_docsis::header::parse;
use bywash_docsis::protect::Protection;
use bywash_frame::PoolKind;
use std::collections::{HashMap, HashSet};

const DEPI: Depi = Depi {
    source_mac: [2, 0, 0, 0, 0, 1],
    destination_mac: [2, 0, 0, 0, 0, 2],
    source: std::net::Ipv4Addr::new(192, 0, 2, 1),
    destination: std::net::Ipv4Addr::new(192, 0, 2, 2),
    session: 0x4000_0000,
    dscp: 46,
    mtu: MTU,
};

/// Checks every packet, and returns the frames put together from their segments, with their session. The flow of a
/// frame must be its priority.
pub fn unpacked(packets: &[Vec<u8>], mtu: usize) -> Vec<(u32, Vec<u8>)> {
    let word = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
    let mut next: HashMap<(u32, u8), u16> = HashMap::new();
    let mut begun: HashMap<(u32, u8), Vec<u8>> = HashMap::new();
    let mut frames = vec![];
    for packet in packets {
        assert!(packet.len() <= 14 + mtu);
        let ip = bywash_wire::ipv4::check(&packet[14..]).unwrap();
        assert_eq!((ip.proto, usize::from(ip.total_len)), (115, packet.len() - 14));
        let session = u32::from_be_bytes(packet[34..38].try_into().unwrap());
        let (flags, count) = (packet[38], usize::from(packet[39]));
        assert!(flags & !0x0e == 0x40 && count > 0, "{flags:x} {count}");
        let flow = (session, flags >> 1 & 7);
        let expected = next.entry(flow).or_default();
        assert_eq!(word(&packet[40..]), *expected);
        *expected = expected.wrapping_add(1);
        let mut data = &packet[DEPI_LEN + 2 * count..];
        for entry in packet[DEPI_LEN..][..2 * count].chunks(2) {
            let (flags, len) = (word(entry) & 0xc000, usize::from(word(entry) & 0x3fff));
            assert_eq!(flags & 0x8000 != 0, !begun.contains_key(&flow), "a frame begins where the last one ended");
            let (segment, rest) = data.split_at(len);
            begun.entry(flow).or_default().extend(segment);
            data = rest;
            if flags & 0x4000 != 0 {
                let frame = begun.remove(&flow).unwrap();
                assert_eq!(parse(&frame).unwrap().header.service.unwrap().priority, flow.1);
                frames.push((session, frame));
            }
        }
        assert!(data.is_empty());
    }
    assert!(begun.is_empty());
    frames
}

#[test]
fn frames_are_packed_and_split_without_loss() {
    for (mtu, pool) in [(MTU, PoolKind::Stack), (576, PoolKind::Ring), (3800, PoolKind::Tabm)] {
        let group = group(3, two_flows());
        let frames = traffic(&group, 2000);
        let depi = Some(Depi { mtu, ..DEPI });
        let outcome = run(group, &frames, Setup { depi, pool, ..Setup::default() });
        assert_eq!(outcome.drops, HashMap::new());
        let packets = outcome.sent.len();
        let unpacked = unpacked(&outcome.sent, mtu);
        let sessions: HashSet<u32> = unpacked.iter().map(|(session, _)| session - DEPI.session).collect();
        assert_eq!(sessions.len(), 4, "all channels are used");
        let mut sent: Vec<Vec<u8>> = unpacked.into_iter().map(|(_, frame)| frame).collect();
        // Modems put frames that come by several channels in order.
        sent.sort_by_key(|frame| parse(frame).unwrap().header.service.map(|service| (service.dsid, service.sequence)));
        let bytes: usize = sent.iter().map(Vec::len).sum();
        // Nearly all packets are full: some at the end of a turn are not.
        println!("{mtu}: {packets} packets, {:.0} bytes of frames each", bytes as f64 / packets as f64);
        let outcome = Outcome { sent, ..outcome };
        let by_flow = opened(&outcome, Protection::default());
        for (flow, pdus) in by_flow {
            let f = &outcome.group.flows()[flow as usize];
            let mac = outcome.group.modems()[f.modem as usize].mac;
            let expected = frames.iter().filter(|p| p[..6] == mac && (p[15] != 0) == (f.number == 1));
            assert!(pdus.iter().eq(expected), "flow {flow} at {mtu}");
        }
    }
}
