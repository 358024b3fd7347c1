//! Ports are moved between levels, and routes change, under a load of numbered packets: none is lost or duplicated.

use crate::harness::{Bywash, PATIENCE, alone, bywash};
use crate::load::{Ending, Ends, FLOWS, Stops, dropped, next, receiver, send};
use bywash_lab::{Ping, Topology, Transfer, has_tool, require, require_lab, slowness, wait_until};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Packets a second. With BYWASH_LOAD, the test of moves uses the highest rate up to that at which no level loses
/// packets by itself.
const RATE: u32 = 10_000;

/// Creates a lab in which the driver can forward all frames: the hosts' devices accept redirected ones, and the hosts
/// complete their checksums (other frames are left to user space). Host b has the addresses of the numbered flows.
pub fn lab() -> Topology {
    let lab = Topology::builder().static_neighbours(true).host_offload("gro", true).host_offload("tx", false);
    let lab = lab.build().unwrap();
    lab.r().ip(&["route", "add", "44.0.0.0/8", "via", &lab.b().v4.to_string()]).unwrap();
    lab.b().ns.ip(&["route", "add", "local", "44.0.0.0/8", "dev", "lo"]).unwrap();
    lab
}

fn level(lab: &Topology, running: &Bywash, level: &str) {
    let socket = running.socket();
    bywash(lab.r(), &["level", level, "--socket", socket.to_str().unwrap()]).ok().unwrap();
}

/// Returns the number of the port's frames that each level has handled: driver, user space, kernel.
pub fn handled(running: &Bywash, port: &str) -> [u64; 3] {
    let row = running.placement(port);
    ["driver", "user", "kernel"].map(|level| row["frames"][level].as_u64().unwrap())
}

/// Result of a run: packets sent, and the fate of those that did not arrive once and in order.
pub struct Ran {
    pub sent: u64,
    seconds: f64,
    pub lost: u64,
    pub twice: u64,
    /// Packets that the kernel dropped at the interfaces on the way, if the machine is so busy that it may not have
    /// emptied their queues in time.
    dropped: u64,
    /// Packets that a later one of their flow overtook, before the first move and after each move.
    pub late: Vec<u64>,
}

/// Sends while ports are moved to each level of `path`, each after `stay`.
pub fn moved(lab: &Topology, running: &Bywash, rate: u32, path: &[&str], stay: Duration) -> Ran {
    let (receiver, stop, moves) = (receiver(&lab.b().ns), AtomicBool::new(false), AtomicU64::new(0));
    let (namespaces, ending) = ([&lab.a().ns, lab.r(), &lab.b().ns], Ending::new());
    let dropped_before = dropped(&namespaces);
    std::thread::scope(|scope| {
        let started = Instant::now();
        let sender = scope.spawn(|| send(&lab.a().ns, receiver.load, rate, &stop));
        let reader = scope.spawn(|| {
            let (mut seen, mut most) = (Vec::<u8>::new(), vec![0; FLOWS as usize]);
            let mut late = vec![0u64; path.len() + 1];
            let (mut some, mut last) = (0, Instant::now());
            loop {
                let Some(number) = next(&receiver) else {
                    if ending.is_reached(some, last) {
                        return (seen, late);
                    }
                    continue;
                };
                last = Instant::now();
                let (at, most) = (number as usize, &mut most[(number % FLOWS) as usize]);
                seen.resize(seen.len().max(at + 1), 0);
                some += u64::from(seen[at] == 0);
                seen[at] += 1;
                late[moves.load(Ordering::Relaxed) as usize] += u64::from(number < *most);
                *most = number.max(*most);
            }
        });
        // If an assertion below fails, the sender and the reader must end, too.
        let (_stops, _ends) = (Stops(&stop), Ends(&ending));
        std::thread::sleep(stay);
        let mut before = handled(running, "r0");
        for wanted in path {
            moves.fetch_add(1, Ordering::Relaxed);
            level(lab, running, wanted);
            std::thread::sleep(stay);
            if let Some(at) = ["driver", "user", "kernel"].iter().position(|level| level == wanted) {
                running.wait(&format!("packets at level {wanted}"), |running| {
                    handled(running, "r0")[at] > before[at] + 100
                });
            }
            before = handled(running, "r0");
        }
        stop.store(true, Ordering::Relaxed);
        let (sent, busy) = sender.join().unwrap();
        let seconds = started.elapsed().as_secs_f64();
        ending.set(sent);
        let (seen, late) = reader.join().unwrap();
        let lost = sent - seen.iter().filter(|times| **times > 0).count() as u64;
        let twice = seen.iter().filter(|times| **times > 1).count() as u64;
        let dropped = if busy { dropped(&namespaces).saturating_sub(dropped_before) } else { 0 };
        Ran { sent, seconds, lost, twice, dropped, late }
    })
}

/// Returns the highest rate at which no level loses packets by itself: [`RATE`], doubled as often as `most` allows.
fn loss_free(lab: &Topology, running: &Bywash, most: u32) -> u32 {
    let mut rate = RATE;
    while rate * 2 <= most {
        for wanted in ["driver", "user", "kernel"] {
            level(lab, running, wanted);
            let ran = moved(lab, running, rate * 2, &[], Duration::from_secs(1));
            let got = ran.sent as f64 / ran.seconds;
            if ran.lost > 0 || got < 1.8 * f64::from(rate) {
                println!("{} packets/s: {wanted} lost {} of {}, {got:.0}/s sent", rate * 2, ran.lost, ran.sent);
                return rate;
            }
        }
        rate *= 2;
    }
    rate
}

/// Slower modes than expected are logged, each with its reason, and with the remedy where there is one.
#[test]
fn slower_modes_are_logged() {
    require!(require_lab(), bywash_lab::has_tool("ethtool"));
    let lab = Topology::builder().static_neighbours(true).host_offload("gro", false).build().unwrap();
    let running = Bywash::run(lab.r(), &["--xdp", "native", "--level", "auto", "r0", "r1"]);
    let has = |what: &str| running.log().contains(what);
    for port in ["r0", "r1"] {
        assert!(has(&format!("{port}: copy mode, in which the kernel copies each frame for user space: ")));
        assert!(has(&format!("WARN {port}: user space must send its frames, because its driver does not accept")));
    }
    assert!(has("`ethtool -K PEER gro on`"), "{}", running.log());
    let pages = running.show(&["pools"])["arena"].clone();
    assert_eq!(pages["note"] != "", has("INFO buffer memory uses "), "{pages}: {}", running.log());
    lab.b().ns.offload(&lab.b().interface, "gro", true).unwrap();
    running.wait("redirection", |_| has("r1: native XDP can now redirect frames to it"));
    running.stop();
}

#[test]
fn flows_move_between_levels_and_none_is_lost() {
    require!(require_lab());
    let _alone = alone();
    let most = std::env::var("BYWASH_LOAD").ok().and_then(|text| text.parse().ok()).unwrap_or(RATE);
    for mode in ["native", "generic"] {
        let lab = lab();
        let running = Bywash::run(lab.r(), &["--xdp", mode, "--level", "driver", "r0", "r1"]);
        running.wait("redirection", |running| running.show(&["placement"])[1]["target"] == true);
        let rate = loss_free(&lab, &running, most);
        level(&lab, &running, "driver");
        let path = ["user", "driver", "kernel", "driver", "user", "kernel", "user", "auto"];
        let Ran { sent, lost, twice, dropped, late, .. } =
            moved(&lab, &running, rate, &path, Duration::from_millis(300));
        println!(
            "{mode}, {rate} packets/s, {FLOWS} flows: {sent} sent, {lost} lost ({dropped} by a busy machine), \
             {twice} duplicated; reordered after each move: {late:?}"
        );
        let unexplained = lost.saturating_sub(dropped + running.starved("r0"));
        assert_eq!((unexplained, twice), (0, 0), "{mode}: {}", running.show(&["all"]));
        let error = bywash(lab.r(), &["level", "user", "r7", "--socket", running.socket().to_str().unwrap()]);
        assert!(error.stderr.contains("no port `r7`: the ports are r0, r1"), "{}", error.stderr);
        running.stop();
    }
}

#[test]
fn tcp_is_intact_at_each_level() {
    require!(require_lab());
    for (mode, level) in
        [("native", "driver"), ("native", "user"), ("native", "auto"), ("generic", "driver"), ("generic", "user")]
    {
        let lab = Topology::router().unwrap();
        let running = Bywash::run(lab.r(), &["--xdp", mode, "--level", level, "r0", "r1"]);
        let (a, b) = (lab.a(), lab.b());
        for (from, to, address) in [(a, b, std::net::IpAddr::from(b.v4)), (b, a, a.v6.into())] {
            let report = Transfer::new(20_000_000).run(&from.ns, &to.ns, address).unwrap();
            assert!(report.is_intact(), "{mode}, {level}, {address}: {report:?}");
            println!("{mode}, {level}: {:.2} Gbit/s", report.bits_per_second() / 1e9);
        }
        running.stop();
    }
}

/// Runs `bywash bench churn` for a short time: BYWASH_CHURN seconds, by default 5.
#[test]
fn no_wrong_next_hop_while_routes_change() {
    require!(require_lab());
    let _alone = alone();
    let seconds = std::env::var("BYWASH_CHURN").unwrap_or("5".into());
    // An emulated machine gets a lower rate.
    let slowness = slowness();
    let (rate, packets) = ((100_000 / slowness).to_string(), (10_000 / slowness).to_string());
    let is_fast = || {
        let ran = Command::new(env!("CARGO_BIN_EXE_bywash"))
            .args(["bench", "churn", "--json", "--seconds", &seconds, "--rate", &rate, "--packets", &packets])
            .output()
            .unwrap();
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
        let figures: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
        println!("{figures}");
        let number = |name: &str| figures[name].as_f64().unwrap();
        assert_eq!(number("wrong"), 0.0, "{figures}");
        // A busy machine may leave a queue on the way full, but hardly each time.
        number("lost") == 0.0
            && number("changes") >= 50_000.0 / f64::from(slowness)
            && number("driver") > number("sent") / 2.0
    };
    // The exact rate depends on the machine, and on what else it does; the order of magnitude must be right, and the
    // driver must do most of the forwarding.
    assert!((0..3).any(|_| is_fast()), "too few changes, packets lost, or too few by the driver");
}

#[test]
fn user_space_forwards_where_the_kernel_refuses_the_xdp_program() {
    require!(require_lab());
    require!(has_tool("setpriv"));
    let _alone = alone();
    let lab = Topology::router().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("bywash.sock");
    // Without CAP_PERFMON the verifier refuses a program that reads a map at a computed offset.
    let without = ["-perfmon,-sys_admin"; 2];
    let mut argv =
        vec!["setpriv".into(), format!("--bounding-set={}", without[0]), format!("--inh-caps={}", without[1])];
    argv.extend([env!("CARGO_BIN_EXE_bywash"), "run", "--xdp", "native", "--socket"].map(String::from));
    argv.extend([socket.to_str().unwrap(), "r0", "r1"].map(String::from));
    let mut process = lab.r().spawn(&argv).unwrap();
    process.wait_for_output("forwarding;", PATIENCE).unwrap();
    assert!(process.output().contains("the kernel refuses the program for level driver"));
    let shown = || {
        let shown = bywash(lab.r(), &["show", "placement", "--json", "--socket", socket.to_str().unwrap()]);
        serde_json::from_str::<serde_json::Value>(&shown.ok().unwrap().stdout).unwrap()
    };
    let row = &shown()[0];
    println!("{row}");
    assert_eq!((&row["level"], &row["target"]), (&"user".into(), &false.into()), "{row}");
    let why = row["why"].as_str().unwrap();
    assert!(why.contains("refuses the program that forwards") && why.contains("The verifier"), "{why}");
    // User space forwards packets between the hosts, and the kernel receives those to the router itself.
    for to in [std::net::IpAddr::from(lab.b().v4), lab.b().v6.into(), lab.a().router_v4.into()] {
        // Only few packets wait for a neighbour that is not known yet: it must be known before the burst.
        let knows = || Ping::to(to).count(1).run(&lab.a().ns).unwrap().received == 1;
        wait_until("the neighbours", PATIENCE, knows).unwrap();
        let report = Ping::to(to).count(20).interval(Duration::from_millis(10)).run(&lab.a().ns).unwrap();
        assert_eq!(report.received, report.sent, "{to}: {:?}", shown());
    }
    let row = &shown()[0];
    assert!(row["frames"]["user"].as_u64().unwrap() >= 40 && row["frames"]["driver"] == 0, "{row}");
    bywash(lab.r(), &["level", "driver", "--socket", socket.to_str().unwrap()]).ok().unwrap();
    assert_eq!(shown()[0]["level"], "user");
    assert!(process.terminate(PATIENCE).unwrap().success(), "{}", process.output());
}
