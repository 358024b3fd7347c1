//! `--spread`: several CPUs send the frames that a port receives, in order within each flow, and frames that a CPU has
//! no time for are counted.

use crate::harness::{Bywash, PATIENCE, alone};
use crate::load;
use crate::moves::{Ran, handled, lab, moved};
use crate::{raw, switch_driver};
use bywash_lab::{Ping, Topology, Transfer, require, require_lab, wait_until};
use bywash_port::af_xdp::LiveGen;
use bywash_wire::build::Packet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Runs the program at level `driver` with native XDP and `--spread` over these CPUs.
fn run<'a>(lab: &'a Topology, cpus: &[usize]) -> Bywash<'a> {
    let list = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    let running = Bywash::run(lab.r(), &["--xdp", "native", "--level", "driver", "--spread", &list, "r0", "r1"]);
    running.wait("redirection", |running| running.show(&["placement"])[1]["target"] == true);
    let told = running.show(&["placement"]);
    let listed: Vec<_> = spread(&running, 0).iter().map(|(cpu, _)| *cpu).collect();
    assert_eq!(listed, cpus, "{told}");
    running
}

/// Returns the CPUs that send for a port, and the number of frames that each has sent.
fn spread(running: &Bywash, port: usize) -> Vec<(usize, u64)> {
    let told = running.show(&["placement"]);
    let cpus = told[port]["spread"].as_array().unwrap_or_else(|| panic!("{told}"));
    cpus.iter().map(|row| (row["cpu"].as_u64().unwrap() as usize, row["frames"].as_u64().unwrap())).collect()
}

/// Returns the last two CPUs.
fn cpus() -> Vec<usize> {
    let n = std::thread::available_parallelism().unwrap().get();
    (n.saturating_sub(2)..n).collect()
}

/// Returns the number of kernel threads that process the queue of a CPU map.
fn takers() -> usize {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let names = processes.filter_map(|process| std::fs::read_to_string(process.path().join("comm")).ok());
    names.filter(|name| name.starts_with("cpumap/")).count()
}

/// Sends like [`moved`], up to five times until nothing is lost: a CPU that other processes have for a while drops what
/// its queues have no room for.
fn moved_without_loss(lab: &Topology, running: &Bywash, path: &[&str], stay: Duration) -> Ran {
    let mut ran = moved(lab, running, load::rate(), path, stay);
    for _ in 1..5 {
        if ran.lost == 0 || ran.twice > 0 {
            break;
        }
        println!("{} of {} packets lost; again", ran.lost, ran.sent);
        ran = moved(lab, running, load::rate(), path, stay);
    }
    ran
}

#[test]
fn each_flow_stays_in_order_on_its_cpu() {
    require!(require_lab());
    let _alone = alone();
    let (lab, cpus, before) = (lab(), cpus(), takers());
    let running = run(&lab, &cpus);
    assert_eq!(takers(), before + cpus.len());
    let ran = moved_without_loss(&lab, &running, &[], Duration::from_secs(1));
    assert_eq!((ran.lost, ran.twice, ran.late), (0, 0, vec![0]), "{}", running.show(&["all"]));
    let sent = spread(&running, 0);
    assert!(handled(&running, "r0")[0] >= ran.sent, "{sent:?}");
    // With a thousand flows each CPU has its share, and no other CPU sends.
    assert_eq!(sent.iter().map(|(_, frames)| frames).sum::<u64>(), handled(&running, "r0")[0]);
    assert!(sent.iter().all(|(_, frames)| *frames > ran.sent / 4), "{sent:?}");
    let ran = moved_without_loss(&lab, &running, &["user", "driver", "kernel", "driver"], Duration::from_millis(300));
    println!("reordered after each move: {:?}", ran.late);
    assert_eq!((ran.lost, ran.twice), (0, 0), "{}", running.show(&["all"]));

    let (a, b) = (lab.a(), lab.b());
    for to in [IpAddr::from(b.v4), b.v6.into()] {
        let report = Ping::to(to).count(3).run(&a.ns).unwrap();
        assert_eq!(report.received, 3, "{}; {}", report.text, running.show(&["drops"]));
        let report = Transfer::new(20_000_000).run(&a.ns, &b.ns, to).unwrap();
        assert!(report.is_intact(), "{to}: {report:?}");
    }
    running.stop();
    wait_until("the queues to go", PATIENCE, || takers() == before).unwrap();
}

#[test]
fn frames_a_busy_cpu_drops_are_counted() {
    require!(require_lab());
    let _alone = alone();
    let cpus = cpus();
    let (lab, last, before) = (lab(), *cpus.last().unwrap(), takers());
    // One CPU sends all frames, and also runs the network stack that receives them at the other end.
    let running = run(&lab, &[last]);
    let (a, r) = (lab.a(), lab.r());
    let received = || bywash_lab::counters(r, "r0").unwrap().rx_packets;
    let verdicts = || {
        let told = running.show(&["drops"]);
        let of_r0 = told["xdp"].as_array().unwrap().iter().filter(|row| row["port"] == "r0").cloned();
        of_r0.map(|row| (row["verdict"].as_str().unwrap().to_owned(), row["packets"].as_u64().unwrap())).collect()
    };
    let sum = |verdicts: &Vec<(String, u64)>| verdicts.iter().map(|(_, n)| n).sum::<u64>();
    // Frames received before the program was attached. One that comes between two readings would be counted by one.
    let mut others = 0;
    wait_until("no frame to come", PATIENCE, || {
        let (seen, counted) = (received(), sum(&verdicts()));
        others = seen.wrapping_sub(counted);
        (seen, counted) == (received(), sum(&verdicts()))
    })
    .unwrap();
    let macs = [&a.mac, &a.router_mac].map(|text| text.parse().unwrap());
    let frame = Packet::udp(SocketAddr::from((a.v4, 7)), SocketAddr::from((Ipv4Addr::new(44, 0, 0, 1), 9)));
    let frame = frame.macs(macs[0], macs[1]).size(64).build().unwrap();
    let to: Vec<IpAddr> = (0..1000u32).map(|n| Ipv4Addr::from(44 << 24 | n).into()).collect();
    let interface = a.interface.clone();
    let source = a.ns.thread(move || LiveGen::new(&interface, &frame, &to).unwrap().run(1_000_000, 64).unwrap());
    source.unwrap().join().unwrap().unwrap();
    wait_until("every frame to be accounted for", PATIENCE, || received() == others + sum(&verdicts()))
        .unwrap_or_else(|error| panic!("{error}: of {} frames, {others} before, {:?}", received(), verdicts()));
    let verdicts = verdicts();
    println!("{verdicts:?}");
    let of = |name: &str| verdicts.iter().find(|(verdict, _)| verdict == name).map_or(0, |(_, n)| *n);
    assert!(of("to_port") > 0 && of("drop_cpu_busy") > 0, "{verdicts:?}");
    assert_eq!(spread(&running, 0), [(last, of("to_port"))]);
    let counted = running.port("r0")["counters"]["rx_packets"].as_u64().unwrap();
    assert_eq!(counted, of("to_port") + of("drop_cpu_busy"));
    running.stop();
    // Other tests count the queues.
    wait_until("the queues to go", PATIENCE, || takers() == before).unwrap();
}

#[test]
fn a_switchs_flows_are_spread_too() {
    require!(require_lab());
    let _alone = alone();
    let (lab, takers_before) = (switch_driver::lab(2), takers());
    // The switch adds a tag.
    let settings = format!("level = \"driver\"\nspread = {:?}", cpus());
    let switch = lab.run(&[&format!("{settings}\ntag = 10"), &format!("{settings}\ntrunks = [10]")], "");
    assert_eq!(takers(), takers_before + cpus().len());
    let mut hello = switch_driver::udp(0, 2, 10);
    hello[..6].fill(0xff);
    raw::send(lab.host(2), "e0", &[(1, hello)]);
    switch.wait("the address to be learned", |switch| !switch.show(&["fdb"]).as_array().unwrap().is_empty());
    switch_driver::send_until_driven(&switch, &lab, 1, &switch_driver::udp(2, 1, 0));
    let sent = |port| spread(&switch, port).iter().map(|(_, frames)| *frames).collect::<Vec<_>>();
    let counted = |port: &str, what: &str| switch.port(port)["counters"][what].as_u64().unwrap();
    let before = sent(0);
    // No more at a time than the queues hold, which a busy machine may empty late.
    for n in 1..=10 {
        raw::send(lab.host(1), "e0", &[(100, switch_driver::udp(2, 1, 0))]);
        switch.wait("all to be sent", |_| sent(0).iter().sum::<u64>() >= before.iter().sum::<u64>() + 100 * n);
    }
    // All frames of one flow are sent by the same CPU. Frames sent before may have been counted late.
    let more: Vec<_> = sent(0).iter().zip(before).map(|(now, then)| now - then).collect();
    let senders = more.iter().filter(|frames| **frames > 0).count();
    assert!(senders == 1 && more.iter().sum::<u64>() >= 1000, "{more:?}");
    // All frames of host 1 leave with a tag, which adds four bytes.
    switch.wait("every tag to be counted", |_| {
        let frames = counted("p2", "tx_packets");
        frames == counted("p1", "rx_packets") && counted("p2", "tx_bytes") == counted("p1", "rx_bytes") + 4 * frames
    });
    switch.stop();
    wait_until("the queues to go", PATIENCE, || takers() == takers_before).unwrap();
}

#[test]
fn spread_without_native_xdp_is_explained() {
    require!(require_lab());
    let lab = lab();
    let running = Bywash::run(lab.r(), &["--level", "driver", "--spread", "0", "r0", "r1"]);
    let told = running.show(&["placement"]);
    assert!(told[0]["spread_why"].as_str().unwrap().contains("receive packet steering"), "{told}");
    running.stop();
}
