//! Packets of 9,000 bytes, which AF_XDP receives in several buffers.

use crate::harness::{Bywash, PATIENCE};
use bywash_lab::{Ping, Topology, Transfer, require, require_lab};
use std::net::IpAddr;

const MTU: u32 = 9000;

/// User space forwards packets of 9,000 bytes in either mode and by either way of sending, if the cells are large
/// enough.
#[test]
fn packets_of_9000_bytes_are_forwarded_in_user_space() {
    require!(require_lab());
    for (mode, transmit) in [("native", "inject"), ("native", "socket"), ("generic", "socket")] {
        let lab = Topology::builder().mtu(MTU).build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bywash.toml");
        let port = |interface: &str| {
            format!(
                "[[port]]\ninterface = \"{interface}\"\nxdp = \"{mode}\"\nlevel = \"user\"\ntransmit = \"{transmit}\"\n"
            )
        };
        std::fs::write(&file, port("r0") + &port("r1") + "[pool]\ncell = 16384\n").unwrap();
        let mut bywash = Bywash::spawn(lab.r(), &["--config", file.to_str().unwrap()]);
        if let Err(e) = bywash.process.wait_for_output("forwarding;", PATIENCE) {
            let log = bywash.log();
            assert!(log.contains("need Linux 6.6"), "{e}: {log}");
            println!("SKIP: kernel without XDP_USE_SG (6.6)");
            return;
        }
        let (a, b) = (lab.a(), lab.b());
        let mean = || bywash.counter("r0", "rx_bytes") / bywash.counter("r0", "rx_packets").max(1);
        for (from, to) in [(a, b), (b, a)] {
            for far in [IpAddr::from(to.v4), to.v6.into()] {
                // One packet larger than a buffer, and one of the MTU.
                for size in [5000, MTU - 48] {
                    let report = Ping::to(far).count(3).size(size).dont_fragment().run(&from.ns).unwrap();
                    assert_eq!((report.received, report.errors), (3, 0), "{mode}, {size}: {}", report.text);
                }
            }
        }
        assert!(mean() > 4500, "{mode}: user space did not forward them: {} bytes each", mean());
        assert!(bywash.all_drops().is_empty(), "{mode}: {:?}", bywash.all_drops());
        for (from, to, address) in [(a, b, IpAddr::from(b.v4)), (b, a, a.v6.into())] {
            let report = Transfer::new(20_000_000).run(&from.ns, &to.ns, address).unwrap();
            assert!(report.is_intact(), "{mode}, {transmit}, {address}: {report:?}");
        }
        bywash.stop();
    }
}
