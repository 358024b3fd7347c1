//! The kernel's own traffic with the program attached: TCP with superframes and partial checksums.

use bywash_lab::{Direction, Iperf, Topology, Transfer, has_tool, require, require_lab};
use bywash_port::af_xdp::{Features, Journal, LinkInfo, Program, XdpAttach, XdpConfig};

#[test]
fn tcp_through_the_kernel_survives_the_program() {
    require!(require_lab(), has_tool("iperf3"));
    let topology = Topology::router().unwrap();
    let (a, b) = (topology.a(), topology.b());
    let tcp = || {
        let report = Iperf::tcp(2).run(&a.ns, &b.ns, b.v4, Direction::Forward).unwrap();
        report.bits_per_second / 1e9
    };
    let features = |ns: &bywash_lab::Namespace, name: &str| {
        let of = ["tx-tcp-segmentation", "rx-gro", "tx-checksum-ip-generic"];
        let get = || Features::of(name).map(|f| of.map(|n| f.get(n).unwrap().unwrap()));
        ns.enter(get).unwrap().unwrap()
    };
    let was = (features(&a.ns, &a.interface), features(topology.r(), &a.router_interface));
    let plain = tcp();
    let mut rates = vec![];
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal.json");
    for (how, gro) in [(XdpAttach::Native, false), (XdpAttach::Native, true), (XdpAttach::Generic, false)] {
        let mut journal = Journal::open(&path).unwrap();
        // Enabled without a socket: each frame passes all checks and then goes to the kernel.
        let programs = topology
            .r()
            .enter(|| {
                topology
                    .router_interfaces()
                    .iter()
                    .map(|name| {
                        let link = LinkInfo::query(name).unwrap();
                        let mut program = Program::attach(&link, how).unwrap();
                        let config =
                            XdpConfig { enabled: true, mac: link.mac, max_frame: 1514, ..XdpConfig::default() };
                        program.set_config(config).unwrap();
                        if gro {
                            journal.set(&Features::of(name).unwrap(), "rx-gro", true).unwrap();
                        }
                        program
                    })
                    .collect::<Vec<_>>()
            })
            .unwrap();
        let now = (features(&a.ns, &a.interface), features(topology.r(), &a.router_interface));
        let rate = tcp();
        let counters = programs[0].counters().unwrap();
        println!(
            "{how:?}, GRO {gro}: {rate:.2} Gbit/s of {plain:.2}; features host/router (tso, gro, csum) {was:?} -> {now:?}; {counters:?}"
        );
        let report = Transfer::new(64 << 20).run(&a.ns, &b.ns, b.v4).unwrap();
        assert!(report.is_intact(), "{how:?}: {report:?}");
        rates.push(rate);
        drop(programs);
        topology.r().enter(|| journal.restore().unwrap()).unwrap();
        let after = (features(&a.ns, &a.interface), features(topology.r(), &a.router_interface));
        assert_eq!(after, was, "{how:?}: detaching puts back what attaching changed");
    }
    // Speed is measured by the benchmarks. But if superframes or unfinished checksums were dropped, TCP would depend on
    // retransmissions.
    assert!(rates.iter().all(|rate| *rate > plain / 50.0), "{rates:?} of {plain} Gbit/s");
}
