//! Runs the example programs as a reader would.

use bywash_port::pcap::PcapSource;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Cargo builds examples before it runs all of a package's tests, and not for `--test examples` alone.
fn example(name: &str) -> Option<PathBuf> {
    let exe = std::env::current_exe().unwrap();
    let path = exe.ancestors().nth(2).unwrap().join("examples").join(name);
    if !path.exists() {
        println!("SKIP: {} is not built: cargo build -p bywash-port --examples", path.display());
        return None;
    }
    Some(path)
}

/// Writes 3,000 packets that differ in their first byte and length.
fn capture(path: &Path) -> Vec<Vec<u8>> {
    use bywash_port::pcap::{CaptureFile, PacketMeta};
    let packets: Vec<Vec<u8>> = (0..3000usize).map(|n| (0..60 + n % 1400).map(|i| (n + i) as u8).collect()).collect();
    let mut file = CaptureFile::create(path, &["in"], 65535).unwrap();
    for packet in &packets {
        let meta = PacketMeta { time_ns: 0, length: packet.len() as u32, direction: None, interface: 0 };
        file.write(meta, packet).unwrap();
    }
    file.flush().unwrap();
    packets
}

fn run(program: &Path, from: &Path, to: &Path, rest: &str) -> (String, Vec<Vec<u8>>) {
    let out = Command::new(program).args([from, to]).arg(rest).output().unwrap();
    assert!(out.status.success(), "{rest}: {}", String::from_utf8_lossy(&out.stderr));
    let packets = PcapSource::load(to).unwrap().frames().collect();
    (String::from_utf8(out.stdout).unwrap(), packets)
}

fn is_short(path: &str) {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(path)).unwrap();
    assert!(text.lines().count() < 60, "{path} has {} lines", text.lines().count());
}

#[test]
fn two_workers_forward_in_order_whatever_the_pool() {
    is_short("two_workers.rs");
    let Some(program) = example("two_workers") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("in.pcap"), dir.path().join("out.pcap"));
    let mut expected = capture(&from);
    expected.iter_mut().for_each(|p| p[..12].rotate_left(6));
    for kind in ["ring", "stack", "sdb", "tabm"] {
        let (said, packets) = run(&program, &from, &to, kind);
        assert_eq!(said, "3000 packets, 0 cells lost\n");
        assert!(packets == expected, "{kind}: other packets");
    }
    let bad = Command::new(&program).args([&from, &to]).arg("heap").output().unwrap();
    assert!(!bad.status.success() && String::from_utf8_lossy(&bad.stderr).contains("ring, stack, sdb and tabm"));
}

#[test]
fn npe_forward_sends_packets_whole_and_once() {
    is_short("npe_forward.rs");
    let Some(program) = example("npe_forward") else { return };
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("in.pcap"), dir.path().join("out.pcap"));
    let mut left = capture(&from);
    let (said, packets) = run(&program, &from, &to, "3");
    // A device that is faster than its threads drops packets; those it took are sent, in no defined order between
    // threads.
    assert_eq!(said, format!("{} of 3000 packets sent; cells lost: []\n", packets.len()));
    assert!(packets.len() >= 512, "{said}");
    left.sort();
    for packet in &packets {
        let at = left.binary_search(packet).unwrap_or_else(|_| panic!("twice, or changed: {} bytes", packet.len()));
        left.remove(at);
    }
}
