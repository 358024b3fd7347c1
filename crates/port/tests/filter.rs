//! Tests of filters against libpcap, by tcpdump, and against a reference interpreter.

mod common;
#[path = "properties/interpreter.rs"]
mod interpreter;

use bywash_frame::{BATCH, Buffers, PoolSet};
use bywash_lab::{has_tool, require};
use bywash_port::pcap::{CaptureFile, Filter, Format, Matcher, PacketMeta, PcapError, PcapSource};
use common::{assert_conserved, batch_of, pools};
use interpreter::{CODES, MEMORY, one_by_one, text};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::TestRunner;
use std::cell::Cell;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

/// Returns which of `packets` pass when filtered in bursts of `burst`.
fn passing(pools: &Arc<PoolSet>, text: &str, packets: &[Vec<u8>], burst: usize) -> Vec<bool> {
    let mut bufs = Buffers::attach(pools, 0);
    let mut matcher = Matcher::new(Arc::new(Filter::parse(text).unwrap()));
    let mut all = vec![];
    for packets in packets.chunks(burst) {
        let mut batch = batch_of(&mut bufs, packets);
        let bits = matcher.passing(bufs.arena(), batch.as_slice());
        assert_eq!(bits.checked_shr(packets.len() as u32).unwrap_or(0), 0, "packets that do not exist pass");
        all.extend((0..packets.len()).map(|i| bits >> i & 1 == 1));
        bufs.free(&mut batch);
    }
    all
}

/// Generates valid programs, with offsets near a packet's size and jumps inside the program.
fn programs() -> impl Strategy<Value = Vec<(u16, u8, u8, u32)>> {
    let k = prop_oneof![4 => 0u32..100, 1 => any::<u32>(), 1 => Just(i32::MAX as u32)];
    vec((select(CODES), any::<u8>(), any::<u8>(), k), 0..40).prop_map(|mut program| {
        program.push((0x16, 0, 0, 0));
        let len = program.len();
        for (at, (code, jt, jf, k)) in program.iter_mut().enumerate() {
            let left = len - at - 1;
            match *code & 7 {
                _ if *code == 0x05 => *k %= left as u32,
                5 => (*jt, *jf) = ((usize::from(*jt) % left) as u8, (usize::from(*jf) % left) as u8),
                _ if matches!(*code, 0x60 | 0x61 | 2 | 3) => *k %= MEMORY as u32,
                _ if matches!(*code, 0x64 | 0x74) => *k %= 32,
                _ if matches!(*code, 0x34 | 0x94) => *k = (*k).max(1),
                0 | 1 if *code & 0xe0 != 0x80 && *code > 1 => *k &= i32::MAX as u32,
                _ => {}
            }
        }
        program
    })
}

/// Generates packets of few kinds and few values, so that filters match some; some are truncated or malformed.
fn packets() -> impl Strategy<Value = Vec<u8>> {
    let port = || select(&[9u16, 53, 80, 1000, 65535][..]);
    let host = || select(&[[10, 0, 0, 1], [10, 9, 9, 9], [192, 0, 2, 1]][..]);
    let kind = select(&[0x0800u16, 0x0800, 0x86dd, 0x0806, 0x8100, 0x8847][..]);
    let ip = (host(), host(), select(&[1u8, 6, 17, 58, 132][..]), 0u8..4, select(&[0u16, 0, 0x4000, 1, 0x2000][..]));
    let end = prop_oneof![3 => Just(usize::MAX), 1 => 0usize..120];
    (kind, ip, port(), port(), vec(any::<u8>(), 0..40), end).prop_map(
        |(kind, (src, dst, protocol, options, fragment), from, to, rest, end)| {
            let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
            let mut kind = kind;
            if kind == 0x8100 {
                packet.extend([0x81, 0, 0, 7]);
                kind = 0x0800;
            }
            packet.extend(kind.to_be_bytes());
            match kind {
                0x86dd => {
                    packet.extend([0x60, 0, 0, 0, 0, 40, protocol, 64]);
                    for host in [src, dst] {
                        packet.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0]);
                        packet.extend(host);
                    }
                }
                0x0806 => {
                    packet.extend([0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1]);
                    packet.extend(src);
                    packet.extend([0; 6]);
                    packet.extend(dst);
                }
                _ => {
                    packet.extend([0x45 + options, 0, 0, 60, 0, 1]);
                    packet.extend(fragment.to_be_bytes());
                    packet.extend([64, protocol, 0, 0]);
                    packet.extend(src);
                    packet.extend(dst);
                    packet.extend(vec![1; 4 * usize::from(options)]);
                }
            }
            packet.extend(from.to_be_bytes());
            packet.extend(to.to_be_bytes());
            packet.extend(rest);
            packet.truncate(end);
            packet
        },
    )
}

/// Generates expressions of tcpdump's language.
fn expressions() -> impl Strategy<Value = String> {
    const SIMPLE: &[&str] = &[
        "ip",
        "ip6",
        "arp",
        "tcp",
        "udp",
        "icmp",
        "icmp6",
        "sctp",
        "tcp port 9",
        "udp dst port 53",
        "port 80",
        "src port 1000",
        "portrange 50-90",
        "host 10.9.9.9",
        "src host 10.0.0.1",
        "dst net 10.0.0.0/8",
        "net 192.0.2.0/24",
        "ip6 host 2001:db8::a09:909",
        "ether host 02:00:00:00:00:01",
        "ether proto 0x8847",
        "broadcast",
        "multicast",
        "greater 80",
        "less 50",
        "len > 60 and len <= 90",
        "ip[8] = 64",
        "ip[0] & 0xf != 5",
        "ip[6:2] & 0x1fff != 0",
        "udp[4:2] + 1 > 200",
        "tcp[13] & 2 != 0",
        "ip[2:2] - (ip[0] & 0xf) * 4 > 30",
        "ether[12:2] > 1500",
        "ip[12:4] % 7 = 3",
        "ip[16:4] / ip[9] > 100000",
        "ip[9] << 2 >= 40",
        "ip6[6] = 17",
        "ip proto 132",
        "vlan and udp",
        "vlan 7",
        "ip protochain 17",
    ];
    let simple = select(SIMPLE).prop_map(str::to_owned);
    simple.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) and ({b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a}) or ({b})")),
            inner.prop_map(|a| format!("not ({a})")),
        ]
    })
}

fn tcpdump(arguments: &[&str]) -> Output {
    Command::new("tcpdump").args(arguments).output().unwrap()
}

/// Returns the packets that tcpdump finds in a file of `packets`, in order.
fn tcpdump_finds(place: &Path, packets: &[Vec<u8>], expression: &str) -> Vec<Vec<u8>> {
    let (all, found) = (place.join("all.pcap"), place.join("found.pcap"));
    let mut file = CaptureFile::new(std::fs::File::create(&all).unwrap(), Format::Pcap, &["p"], 65535).unwrap();
    for (packet, n) in packets.iter().zip(0u64..) {
        let meta = PacketMeta { time_ns: n, length: packet.len() as u32, direction: None, interface: 0 };
        file.write(meta, packet).unwrap();
    }
    file.flush().unwrap();
    let [all, to] = [&all, &found].map(|path| path.to_str().unwrap());
    let out = tcpdump(&["-r", all, "-w", to, "--", expression]);
    assert!(out.status.success(), "{expression}: {}", String::from_utf8_lossy(&out.stderr));
    match PcapSource::load(&found) {
        Err(PcapError::Empty(_)) => vec![],
        found => found.unwrap().frames().collect(),
    }
}

#[test]
fn a_filter_passes_what_libpcap_passes() {
    require!(has_tool("tcpdump"));
    let (pools, place) = (pools(2 * BATCH), tempfile::tempdir().unwrap());
    let (found, all) = (Cell::new(0), Cell::new(0));
    let packets = vec(packets(), 1..400);
    let config = ProptestConfig { cases: 80, ..Default::default() };
    let tested = TestRunner::new(config).run(&(expressions(), packets, 1..=BATCH), |(expression, packets, burst)| {
        let compiled = tcpdump(&["-y", "EN10MB", "-s", "262144", "-ddd", "--", &expression]);
        // tcpdump rejects an expression that cannot match: "expression rejects all packets".
        prop_assume!(compiled.status.success());
        let text = String::from_utf8(compiled.stdout).unwrap();
        // Backward jumps (`protochain`) and kernel metadata are extensions that are not supported here.
        prop_assume!(Filter::parse(&text).is_ok());
        let ours = passing(&pools, &text, &packets, burst);
        let ours: Vec<_> = packets.iter().zip(ours).filter(|(_, passes)| *passes).map(|(p, _)| p.clone()).collect();
        prop_assert_eq!(&ours, &tcpdump_finds(place.path(), &packets, &expression), "{}", expression);
        found.set(found.get() + ours.len());
        all.set(all.get() + packets.len());
        Ok(())
    });
    tested.unwrap();
    let (found, all) = (found.get(), all.get());
    assert!(found > all / 20 && found < all - all / 20, "{found} of {all} passed: the filters hardly discriminate");
    assert_conserved(&pools);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..Default::default() })]

    /// Any valid program gives the same result on bursts of any size as the reference interpreter.
    #[test]
    fn a_burst_at_a_time_is_as_one_by_one(program in programs(), packets in vec(packets(), 1..200), burst in 1..=BATCH) {
        let pools = pools(2 * BATCH);
        let wanted: Vec<_> = packets.iter().map(|p| one_by_one(&program, p).unwrap_or(0) > 0).collect();
        prop_assert_eq!(passing(&pools, &text(&program), &packets, burst), wanted);
    }
}
