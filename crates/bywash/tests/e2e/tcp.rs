//! TCP through the router: bytes arrive unchanged, and at a reasonable rate.

use crate::harness::{Bywash, alone};
use bywash_lab::{Direction, Iperf, Topology, Transfer, has_tool, require, require_lab};
use std::net::IpAddr;

#[test]
pub fn bytes_arrive_as_they_were_sent() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let (a, b) = (lab.a(), lab.b());
    // An emulated machine transfers less, by its slowness.
    let gigabyte = 1_000_000_000 / u64::from(bywash_lab::slowness());
    for (megabytes, from, to, address) in
        [(1000, a, b, IpAddr::from(b.v4)), (100, b, a, a.v4.into()), (100, a, b, b.v6.into()), (100, b, a, a.v6.into())]
    {
        let report = Transfer::new(gigabyte * megabytes / 1000).run(&from.ns, &to.ns, address).unwrap();
        assert!(report.is_intact(), "{address}: {report:?}");
        println!("{megabytes} MB to {address}: {:.2} Gbit/s", report.bits_per_second() / 1e9);
    }
    assert!(bywash.counter("r0", "rx_packets") + bywash.verdicts("r0", "pass_superframe") > 1000);
    assert!(bywash.events("r0", "checksum-completed") > 0, "no partial checksum was met: has veth changed?");
    bywash.stop();
}

/// Both modes of attaching carry TCP, whichever is the default on this machine.
#[test]
fn either_mode_carries_tcp() {
    require!(require_lab());
    for mode in ["native", "generic"] {
        let lab = Topology::router().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bywash.toml");
        let port =
            |interface: &str| format!("[[port]]\ninterface = \"{interface}\"\nxdp = \"{mode}\"\nlevel = \"user\"\n");
        std::fs::write(&file, port("r0") + &port("r1")).unwrap();
        let bywash = Bywash::run(lab.r(), &["--config", file.to_str().unwrap()]);
        assert_eq!(bywash.port("r0")["mode"], mode);
        let (a, b) = (lab.a(), lab.b());
        for (from, to, address) in [(a, b, IpAddr::from(b.v4)), (b, a, a.v6.into())] {
            let report = Transfer::new(20_000_000).run(&from.ns, &to.ns, address);
            let report = report.unwrap_or_else(|e| panic!("{mode}, {address}: {e}; {}", bywash.show(&["drops"])));
            assert!(report.is_intact(), "{mode}, {address}: {report:?}");
        }
        assert!(bywash.counter("r0", "rx_packets") > 0);
        bywash.stop();
    }
}

/// The default for veth, a traffic control program, forwards unsegmented packets with partial checksums as they are:
/// none takes another path, and no XDP program copies them.
#[test]
fn by_default_veth_forwards_what_tcp_sends_in_one_piece() {
    require!(require_lab());
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let bywash = Bywash::run_as_is(lab.r(), &lab.router_interfaces());
    let row = bywash.show(&["placement"])[0].clone();
    if row["mode_why"].as_str().unwrap().contains("no traffic control program") {
        println!("SKIP: kernel without tcx (6.6): {}", row["mode_why"]);
        return;
    }
    assert_eq!((&row["mode"], &row["level"]), (&"tc".into(), &"driver".into()), "{row}");
    let (a, b) = (lab.a(), lab.b());
    for (from, to, address) in [(a, b, IpAddr::from(b.v4)), (b, a, a.v6.into())] {
        let report = Transfer::new(100_000_000).run(&from.ns, &to.ns, address).unwrap();
        assert!(report.is_intact(), "{address}: {report:?}");
        println!("100 MB to {address}: {:.2} Gbit/s", report.bits_per_second() / 1e9);
    }
    let (frames, bytes) = (bywash.verdicts("r0", "to_port"), bywash.counter("r0", "rx_bytes"));
    assert!(bytes > 100_000_000 && bytes / frames > 3000, "cut to pieces: {frames} frames, {bytes} bytes");
    for other in ["to_user", "pass_exception", "pass_superframe"] {
        assert_eq!(bywash.verdicts("r0", other), 0, "{other}");
    }
    bywash.stop();
}

/// The goal is half of the kernel's rate. The test requires a tenth, because the machine may be busy.
#[test]
fn throughput_is_of_the_kernels_order() {
    require!(require_lab(), has_tool("iperf3"));
    let _alone = alone();
    let lab = Topology::router().unwrap();
    let b = lab.b();
    let ways = [
        (IpAddr::from(b.v4), Direction::Forward),
        (b.v4.into(), Direction::Reverse),
        (b.v6.into(), Direction::Forward),
        (b.v6.into(), Direction::Reverse),
    ];
    let measure = || {
        let rate = |(to, way)| Iperf::tcp(1).run(&lab.a().ns, &b.ns, to, way).unwrap().bits_per_second / 1e9;
        ways.map(rate)
    };
    let mut shares = [0f64; 4];
    // Other load on the machine may disturb one measurement, but hardly all three: the best counts.
    for _ in 0..3 {
        let kernel = measure();
        let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
        let ours = measure();
        bywash.stop();
        for n in 0..ways.len() {
            let (way, kernel, ours) = (ways[n], kernel[n], ours[n]);
            let share = 100.0 * ours / kernel;
            println!("TCP {way:?}: kernel {kernel:.2} Gbit/s, bywash {ours:.2} ({share:.0} %)");
            shares[n] = shares[n].max(share);
        }
        if shares.iter().all(|share| *share > 50.0) {
            return;
        }
    }
    assert!(shares.iter().all(|share| *share > 10.0), "{shares:.0?} % of the kernel's rate");
}
