//! Cost of running the program: resident memory, and the time until the first forwarded packet.

use crate::harness::{Bywash, PATIENCE, alone};
use bywash_lab::{Topology, Transfer, require, require_lab};
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns a value of /proc/PID/status, in MiB.
fn status(pid: u32, name: &str) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
}

#[test]
fn resident_memory_beside_the_arena_is_small() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    // Traffic makes the program use its memory.
    Transfer::new(20_000_000).run(&lab.a().ns, &lab.b().ns, lab.b().v4).unwrap();
    let arena = bywash.show(&["pools"])["arena"]["bytes"].as_u64().unwrap() as f64 / f64::from(1 << 20);
    let pid = bywash.process.pid();
    let (rss, anonymous, shared) = (status(pid, "VmRSS"), status(pid, "RssAnon"), status(pid, "RssShmem"));
    // The arena is shared memory; only the part that was used is resident.
    let beside = rss - arena.min(shared);
    println!(
        "{rss:.1} MiB resident ({anonymous:.1} anonymous, {shared:.1} shared), arena {arena:.1}: {beside:.1} beside it"
    );
    assert!(beside < 64.0, "{beside:.1} MiB beside the arena");
    bywash.stop();
}

/// Returns for how long the first thread of a process has waited for a CPU.
fn waited(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
    text.split(' ').nth(1).and_then(|ns| ns.parse().ok()).unwrap_or(0.0) / 1e9
}

/// The kernel's forwarding is off, and `sysctls = "ignore"` has the router forward all the same: it must be the router
/// that forwards the first packet. The goal is 300 ms.
#[test]
fn the_first_packet_is_forwarded_soon() {
    require!(require_lab());
    let _alone = alone();
    let mut best = f64::MAX;
    for _ in 0..3 {
        let lab = Topology::builder().forwarding(false).static_neighbours(true).build().unwrap();
        let (a, to) = (lab.a(), IpAddr::from(lab.b().v4));
        let argv = ["ping", "-n", "-D", "-i", "0.005", &to.to_string()];
        let mut pings = a.ns.spawn(&argv).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let text = crate::reload::config(&[("r0", ""), ("r1", "")]);
        let file = crate::reload::File::new(&format!("[kernel]\nsysctls = \"ignore\"\n{text}"));
        let bywash = file.run(&lab);
        // Other processes are none of its doing.
        let waited = waited(bywash.process.pid());
        pings.wait_for_output("bytes from", PATIENCE).unwrap_or_else(|why| panic!("{why}: {}", bywash.log()));
        pings.kill().unwrap();
        let output = pings.output();
        let line = output.lines().find(|line| line.contains("bytes from"));
        let line = line.unwrap();
        // "[1700000000.123456] 64 bytes from ..."
        let at: f64 = line.trim_start_matches('[').split(']').next().unwrap().parse().unwrap();
        best = best.min(at - started - waited);
        assert!(bywash.log().contains("net.ipv4.ip_forward=0"), "{}", bywash.log());
        bywash.stop();
        drop(lab);
    }
    println!("start to first forwarded packet: {:.0} ms", best * 1e3);
    assert!(best < 1.5, "{best:.3} s from start to first forwarded packet");
}
