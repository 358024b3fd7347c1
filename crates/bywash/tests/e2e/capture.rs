//! `bywash capture`: dropped packets with the reason, passing packets by a filter, and errors of usage.

use crate::harness::{Bywash, PATIENCE, bywash, program};
use crate::reload::{File, config, reload};
use bywash_lab::{Ping, Process, Topology, has_tool, require, require_lab};
use rustix::process::Signal;

/// Error of a capture that is one too many.
const FULL: &str = "4 captures run already";

/// Starts `bywash capture` and waits until it captures. The router notices by itself that a capture has ended, and may
/// refuse another until then.
fn capture(bywash: &Bywash<'_>, arguments: &[&str]) -> Process {
    let (program, socket) = (program(), bywash.socket());
    let argv = [&[program.as_str(), "capture", "--socket", socket.to_str().unwrap()], arguments].concat();
    let start = || bywash.namespace().spawn(&argv).unwrap();
    let mut process = start();
    bywash.wait("the capture to begin", |_| {
        let said = process.output();
        if said.contains(FULL) {
            process = start();
        }
        said.contains("capturing; Ctrl-C ends it")
    });
    process
}

/// Waits for the capture to end, and fails unless it reports this number of packets and none lost.
fn ended(mut process: Process, packets: usize) {
    let status = process.wait(PATIENCE).unwrap();
    let said = process.output();
    assert!(status.success() && said.contains(&format!("{packets} packets captured, 0 lost")), "{status}: {said}");
}

/// Returns these fields of a capture file as tshark prints them: one line for each packet, separated by semicolons.
fn tshark(bywash: &Bywash<'_>, file: &str, fields: &[&str]) -> Vec<String> {
    let mut argv = vec!["tshark", "-n", "-r", file, "-T", "fields", "-E", "separator=;"];
    fields.iter().for_each(|field| argv.extend(["-e", field]));
    let out = bywash.namespace().run_with_timeout(&argv, 3 * PATIENCE).unwrap();
    out.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn drops_are_captured_with_their_reason_and_traffic_by_a_filter() {
    require!(require_lab());
    require!(has_tool("tcpdump"));
    require!(has_tool("tshark"));
    let lab = Topology::router().unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let (a, b) = (lab.a(), lab.b());
    let place = tempfile::tempdir().unwrap();
    let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let (drops, ttl, received) = (path("drops.pcapng"), path("ttl.pcapng"), path("received.pcapng"));
    let by_reason = capture(&bywash, &["--drops", "ttl-exceeded", "-w", &drops, "-c", "3"]);
    let filtered = format!("icmp and host {} and greater 200", b.v4);
    let mut by_filter = capture(&bywash, &["r0", "--direction", "rx", "--filter", &filtered, "-w", &received]);
    let mut by_ttl = capture(&bywash, &["--filter", "ip[8] = 63", "--snaplen", "60", "-w", &ttl]);

    for ttl in [1, 1, 1, 64] {
        let report = Ping::to(b.v4).count(1).ttl(ttl).run(&a.ns).unwrap();
        assert_eq!(report.received, u32::from(ttl == 64), "{}", report.text);
    }
    assert_eq!(Ping::to(b.v4).count(4).size(400).run(&a.ns).unwrap().received, 4);
    assert_eq!(Ping::to(b.v6).count(2).size(400).run(&a.ns).unwrap().received, 2);
    ended(by_reason, 3);
    for (process, packets) in [(&mut by_filter, 4), (&mut by_ttl, 10)] {
        process.signal(Signal::INT).unwrap();
        let status = process.wait(PATIENCE).unwrap();
        let said = process.output();
        assert!(status.success() && said.contains(&format!("\n{packets} packets captured, 0 lost")), "{said}");
    }

    let shown = tshark(&bywash, &drops, &["frame.interface_name", "ip.ttl", "frame.comment"]);
    assert_eq!(shown, ["r0;1;dropped: ttl-exceeded (worker 0)"; 3]);
    let (from, to) = (a.v4, b.v4);
    assert_eq!(tshark(&bywash, &received, &["ip.src", "ip.dst", "frame.len"]), vec![format!("{from};{to};442"); 4]);
    // Requests and answers as they leave (flags 2: outbound), cut to the snapshot length.
    let shown = tshark(&bywash, &ttl, &["frame.interface_name", "frame.cap_len", "frame.packet_flags_direction"]);
    let of = |port: &str| shown.iter().filter(|line| **line == format!("{port};60;0x00000002")).count();
    assert_eq!((of("r1"), of("r0")), (5, 5), "{shown:?}");
    bywash.stop();
}

/// A capture knows ports by their numbers, which a reload may give to others.
#[test]
fn a_port_under_the_number_of_another_is_not_taken_for_it() {
    require!(require_lab());
    let lab = Topology::builder().ports(3).static_neighbours(true).build().unwrap();
    let file = File::new(&config(&[("r0", ""), ("r1", "")]));
    let bywash = file.run(&lab);
    let mut lines = capture(&bywash, &["--direction", "tx"]);
    let ping = |to: usize| {
        let report = Ping::to(lab.hosts()[to].v4).count(3).run(&lab.a().ns).unwrap();
        assert_eq!(report.received, 3, "{} {}", report.text, bywash.log());
    };
    let change = |ports: &[(&str, &str)]| {
        file.write(&config(ports));
        reload(&bywash, &[]).ok().unwrap();
    };
    ping(1);
    lines.wait_for_output("r1 sent: ", PATIENCE).unwrap();
    let number = |name: &str| bywash.port(name)["id"].clone();
    let known = number("r1");
    change(&[("r0", "")]);
    change(&[("r0", ""), ("r2", "")]);
    assert_eq!(number("r2"), known);
    bywash.wait_to_count("r2", "tx_packets", 3, || ping(2));
    // A port that is opened again is still known.
    change(&[("r0", "tx_burst = 8\n"), ("r2", "")]);
    bywash.wait("an answer to be captured", |_| {
        let report = Ping::to(lab.hosts()[2].v4).count(1).size(400).run(&lab.a().ns).unwrap();
        assert_eq!(report.received, 1, "{}", report.text);
        lines.output().contains("r0 sent: 442 B")
    });
    let (shown, to) = (lines.output(), lab.hosts()[2].v4.to_string());
    assert!(!shown.lines().any(|line| line.contains("r1 sent: ") && line.contains(&to)), "{shown}");
    lines.signal(Signal::INT).unwrap();
    assert!(lines.wait(PATIENCE).unwrap().success(), "{}", lines.output());
    bywash.stop();
}

#[test]
fn errors_of_a_capture_are_reported() {
    require!(require_lab());
    require!(has_tool("tcpdump"));
    let lab = Topology::router().unwrap();
    let bywash_ = Bywash::run(lab.r(), &lab.router_interfaces());
    let socket = bywash_.socket();
    let run =
        |arguments: &[&str]| bywash(lab.r(), &[&["capture", "--socket", socket.to_str().unwrap()], arguments].concat());
    // At most four captures run at once; a killed one makes room for another.
    let mut four: Vec<_> = (0..4).map(|_| capture(&bywash_, &["-w", "/dev/null"])).collect();
    assert!(run(&[]).stderr.contains(FULL));
    for process in &mut four {
        process.kill().unwrap();
    }
    for (arguments, told) in [
        (&["r7"][..], "no port `r7`: the ports are r0, r1"),
        (&["--drops", "boredom"], "unknown drop reason `boredom`"),
        (&["--filter", "udp prt 53", "-w", "/dev/null"], "--filter `udp prt 53`"),
        (&["-w", "/nowhere/x"], "cannot write /nowhere/x"),
        (&["-w", "/dev/full"], "cannot write /dev/full: No space left"),
    ] {
        let mut out = run(arguments);
        bywash_.wait("room for one more", |_| {
            let full = out.stderr.contains(FULL);
            if full {
                out = run(arguments);
            }
            !full
        });
        assert!(!out.status.success() && out.stderr.contains(told), "{arguments:?}: {}", out.stderr);
    }
    // A capture that does not begin gives no advice about the packets that it would miss.
    let level = |to: &str| bywash(lab.r(), &["level", "--socket", socket.to_str().unwrap(), to]);
    assert!(level("kernel").status.success());
    let out = run(&["--drops", "boredom"]).stderr;
    assert!(out.lines().count() == 1 && out.contains("unknown drop reason `boredom`"), "{out}");
    assert!(level("user").status.success());
    // The capture prints lines, and the router ends before it.
    let mut lines = capture(&bywash_, &["--way", "tx"]);
    let line = format!("B icmp {} > {}", lab.b().v4, lab.a().v4);
    bywash_.wait("an answer to be captured", |_| {
        assert_eq!(Ping::to(lab.b().v4).count(1).run(&lab.a().ns).unwrap().received, 1);
        lines.output().contains(&line)
    });
    assert!(lines.output().contains("r0 sent: 98 B"), "{}", lines.output());
    bywash_.stop();
    assert!(!lines.wait(PATIENCE).unwrap().success());
    assert!(lines.output().contains("ended before the capture did"), "{}", lines.output());
}
