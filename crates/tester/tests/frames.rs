//! Format of a stream's frames on the wire.

use bywash_tester::{Addresses, LEARNING, Ports, Sizes, Stamp, Stream, StreamError, find};
use bywash_wire::ethernet::carried;
use bywash_wire::partial::transport_checksum_ok;
use bywash_wire::{ipv4, ipv6};
use proptest::prelude::*;

fn frame(stream: &Stream, place: usize, stamp: Stamp) -> Vec<u8> {
    let templates = stream.templates().unwrap();
    let mut frame = vec![0xaa; templates.frames()[place].len as usize];
    templates.write(place, stamp, &mut frame);
    frame
}

/// Returns the IP packet of an untagged frame.
fn l3(frame: &[u8]) -> &[u8] {
    &frame[14..]
}

proptest! {
    #[test]
    fn every_frame_is_valid_and_known_again(
        number in any::<u16>(), sequence in any::<u32>(), time in any::<u64>(), place in 0usize..60,
        size in 84usize..1519, six in any::<bool>(), random in any::<bool>(),
    ) {
        let ranges = [("198.18.0.0/24", "198.19.0.1-198.19.0.9"), ("fd00::/64", "fd01::1-fd01::7")];
        let (src, dst) = ranges[usize::from(six)];
        let stream = Stream {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            flows: 20,
            sizes: Sizes(vec![size, 1518, 84]),
            random: random.then_some(7),
            ..Stream::default()
        };
        let stamp = Stamp { stream: number, sequence, time };
        let frame = frame(&stream, place, stamp);
        prop_assert_eq!(find(&frame), Some(stamp));
        prop_assert_eq!(frame.len() + 4, stream.sizes.0[place % 3]);
        prop_assert!(transport_checksum_ok(l3(&frame)));
        if six {
            prop_assert!(ipv6::check(l3(&frame)).is_ok());
        } else {
            prop_assert!(ipv4::check(l3(&frame)).is_ok());
        }
        prop_assert!(carried(&frame).is_some());
    }
}

#[test]
fn the_shortest_frames() {
    let stamp = Stamp { stream: LEARNING, sequence: u32::MAX, time: u64::MAX };
    assert_eq!(find(&frame(&Stream::default(), 0, stamp)), Some(stamp));
    let tagged = Stream { vlan: Some(7), sizes: Sizes(vec![68]), ..Stream::default() };
    assert_eq!(find(&frame(&tagged, 0, stamp)), Some(stamp));
    let six = Addresses::one("fd00::1".parse::<std::net::Ipv6Addr>().unwrap());
    let small = |vlan, six: Option<Addresses>| {
        let default = Stream::default();
        let (src, dst) = (six.unwrap_or(default.src), six.unwrap_or(default.dst));
        Stream { vlan, src, dst, ..default }.templates().unwrap_err()
    };
    assert_eq!(small(Some(1), None), StreamError::Small { size: 64, minimum: 68 });
    assert_eq!(small(None, Some(six)), StreamError::Small { size: 64, minimum: 84 });
    assert_eq!(small(Some(1), Some(six)), StreamError::Small { size: 64, minimum: 88 });
    let mixed = Stream { dst: six, ..Stream::default() };
    assert!(matches!(mixed.templates(), Err(StreamError::Families(..))));
    assert!(matches!(Stream { flows: 0, ..Stream::default() }.templates(), Err(StreamError::Flows(0))));
}

#[test]
fn flows_differ() {
    let flows = |stream: &Stream| {
        let templates = stream.templates().unwrap();
        let tuple = |t: &bywash_tester::Template| t.head[26..38].to_vec();
        let all: Vec<_> = templates.frames().iter().map(tuple).collect();
        let distinct = all.iter().collect::<std::collections::HashSet<_>>().len();
        (all.len(), distinct)
    };
    // Three address pairs, then other ports.
    let stream = Stream {
        src: "198.18.0.1-198.18.0.3".parse().unwrap(),
        src_port: Ports(1000, 1999),
        flows: 3000,
        ..Stream::default()
    };
    assert_eq!(flows(&stream), (3000, 3000));
    let mixed = Stream { flows: 100, sizes: Sizes::imix(), ..stream.clone() };
    assert_eq!(flows(&mixed), (1200, 100));
    let (all, distinct) = flows(&Stream { random: Some(1), ..stream });
    assert!(all == 3000 && distinct > 1800, "{distinct}");
}

/// Returns how often the rarest and the most frequent of these occur.
fn extremes<T: Ord>(all: impl IntoIterator<Item = T>) -> (usize, usize) {
    let mut counts = std::collections::BTreeMap::new();
    all.into_iter().for_each(|one| *counts.entry(one).or_insert(0) += 1);
    (*counts.values().min().unwrap(), *counts.values().max().unwrap())
}

#[test]
fn sizes_and_flows_occur_evenly() {
    let list = |count: usize| Sizes((0..count).map(|i| 64 + 2 * i).collect());
    let range: Sizes = "64-1518".parse().unwrap();
    for (sizes, count) in [(range, 64), (list(17), 17), (list(100), 100), (Sizes(vec![64, 1518]), 2)] {
        for flows in [1, 3, 17, 63, 64, 101, 1000, 600_001] {
            let stream =
                Stream { flows, sizes: sizes.clone(), dst: "198.19.0.0/16".parse().unwrap(), ..Stream::default() };
            let templates = stream.templates().unwrap();
            let all = templates.frames();
            let lengths: std::collections::HashSet<_> = all.iter().map(|t| t.len).collect();
            assert_eq!(lengths.len(), count, "{flows} flows");
            let even = |(least, most): (usize, usize)| least == most || (least >= 16 && most == least + 1);
            let (by_size, by_flow) =
                (extremes(all.iter().map(|t| t.len)), extremes(all.iter().map(|t| &t.head[26..38])));
            assert!(even(by_size) && even(by_flow), "{flows} flows, {count} sizes: {by_size:?} {by_flow:?}");
            assert!((templates.mean_size() - sizes.mean()).abs() < sizes.mean() / 16.0, "{}", templates.mean_size());
        }
    }
}

#[test]
fn every_flow_has_every_size_in_the_same_share() {
    // Numbers with and without common factors.
    for flows in [1, 2, 4, 6, 7, 12, 1000] {
        let stream = Stream { sizes: Sizes::imix(), flows, dst: "198.19.0.0/16".parse().unwrap(), ..Stream::default() };
        let mut by_flow = std::collections::HashMap::new();
        for template in stream.with_room().templates().unwrap().frames() {
            by_flow.entry(template.head[26..38].to_vec()).or_insert_with(Vec::new).push(template.len);
        }
        assert_eq!(by_flow.len(), flows);
        for lengths in by_flow.values() {
            let share = |len| lengths.iter().filter(|l| **l == len).count();
            assert_eq!((lengths.len(), share(60), share(590), share(1514)), (12, 7, 4, 1), "{flows} flows");
        }
    }
}

#[test]
fn addresses_as_written() {
    let four: Addresses = "10.0.0.254-10.0.1.1".parse().unwrap();
    assert_eq!((four.count, four.at(2).to_string()), (4, "10.0.1.0".into()));
    assert_eq!("fd00::/120".parse::<Addresses>().unwrap().count, 256);
    assert_eq!("fd00::/48".parse::<Addresses>().unwrap().count, u64::MAX);
    for bad in ["", "10.0.0.1/24", "10.0.0.0/33", "10.0.0.2-10.0.0.1", "10.0.0.1-fd00::1", "x"] {
        assert!(bad.parse::<Addresses>().is_err(), "{bad}");
    }
}
