//! Programs of the user's own on a port: one that Bywash runs first, and one that was there before.

use crate::hang::Stopped;
use crate::harness::{Bywash, PATIENCE, assert_detached, bound, bywash, program};
use crate::reload::{File, config, reload};
use bywash_lab::{Output, Ping, Probe, Reason, Snapshot, Topology, has_tool, require, require_lab, wait_until};
use rustix::process::Signal;
use std::cell::Cell;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program of the documentation: drops datagrams to a port, 9 by default.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/discard.bpf.c");
const COMPILERS: [&str; 2] = ["clang", "clang-14"];

fn has_compiler() -> Probe {
    if !Path::new("/usr/include/bpf/bpf_helpers.h").exists() {
        return Err(Reason::new("no bpf/bpf_helpers.h: libbpf-dev"));
    }
    if COMPILERS.iter().any(|name| has_tool(name).is_ok()) { Ok(()) } else { has_tool(COMPILERS[0]) }
}

/// Compiles a program to an object file of this name.
fn compile_as(object: &Path, source: &Path, more: &[&str]) {
    let compiler = COMPILERS.into_iter().find(|name| has_tool(name).is_ok()).unwrap();
    let mut command = Command::new(compiler);
    command.args(["-O2", "-g", "-target", "bpf", &format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH)]);
    let done = command.args(more).arg("-c").arg(source).arg("-o").arg(object).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Compiles the program for a UDP port, and returns the object file.
fn compile(directory: &Path, port: u16) -> PathBuf {
    let object = directory.join(format!("discard-{port}.bpf.o"));
    compile_as(&object, Path::new(SOURCE), &["-Wall", "-Werror", &format!("-DPORT={port}")]);
    object
}

/// Start of programs that need no header.
const HEAD: &str = "struct xdp_md { unsigned data, data_end; };\n#define SEC(n) __attribute__((section(n), used))\n\
                    char L[] SEC(\"license\") = \"GPL\";\n";

fn compile_text(directory: &Path, name: &str, text: &str) -> PathBuf {
    let source = directory.join(name).with_extension("c");
    std::fs::write(&source, text).unwrap();
    let object = source.with_extension("o");
    compile_as(&object, &source, &[]);
    object
}

/// Compiles a program that the verifier rejects.
fn compile_wild(directory: &Path) -> PathBuf {
    let wild = "int f(struct xdp_md *c) { return *(int *)(long)c->data; }";
    compile_text(directory, "wild", &format!("{HEAD}SEC(\"xdp.frags\") {wild}"))
}

/// Returns a configuration whose port r0 has these lines.
fn with(lines: &str) -> String {
    config(&[("r0", lines), ("r1", "")])
}

fn line(object: &Path) -> String {
    format!("program = \"{}\"\n", object.display())
}

/// Returns a router between hosts that send finished checksums and take redirected frames, so that the driver can
/// forward between them.
fn lab() -> Topology {
    let lab = Topology::builder().static_neighbours(true).host_offload("gro", true).host_offload("tx", false);
    lab.build().unwrap()
}

/// Numbered datagrams from host a to two ports of host b.
struct Datagrams {
    from: UdpSocket,
    to: [(UdpSocket, SocketAddr); 2],
    sent: Cell<u32>,
}

const PORTS: [u16; 2] = [9, 10];

impl Datagrams {
    fn new(lab: &Topology) -> Self {
        let bind = |ns, port| {
            let socket = bound(ns, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)));
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let from = bind(&lab.a().ns, 0);
        let to = PORTS.map(|port| (bind(&lab.b().ns, port), SocketAddr::from((lab.b().v4, port))));
        Self { from, to, sent: Cell::new(0) }
    }

    fn send(&self, port: usize) {
        self.sent.set(self.sent.get() + 1);
        self.from.send_to(&self.sent.get().to_be_bytes(), self.to[port].1).unwrap();
    }

    /// Returns whether a datagram sent after the first `before` ones has arrived.
    fn arrived(&self, port: usize, before: u32) -> bool {
        let (mut came, mut number) = (false, [0; 4]);
        while self.to[port].0.recv(&mut number).is_ok() {
            came |= u32::from_be_bytes(number) > before;
        }
        came
    }

    /// Sends datagrams to the `open` port until one arrives; fails if any of five before it arrives at the other.
    fn only(&self, open: usize) {
        let before = self.sent.get();
        for _ in 0..5 {
            self.send(1 - open);
        }
        self.reaches(open);
        assert!(!self.arrived(1 - open, before), "a datagram to port {} was not dropped", PORTS[1 - open]);
    }

    /// Sends datagrams to a port until one arrives.
    fn reaches(&self, port: usize) {
        let before = self.sent.get();
        let sent = || {
            self.send(port);
            self.arrived(port, before)
        };
        wait_until(&format!("a datagram to port {}", PORTS[port]), PATIENCE, sent).unwrap();
    }
}

/// Returns whether three pings are answered. One that a busy machine loses is repeated.
fn pings(lab: &Topology) -> bool {
    let answered = || Ping::to(lab.b().v4).count(1).run(&lab.a().ns).unwrap().received == 1;
    (0..3).all(|_| wait_until("an answer to a ping", PATIENCE, answered).is_ok())
}

fn check(lab: &Topology, file: &File) -> Output {
    bywash(lab.r(), &["config", "check", file.path().to_str().unwrap()])
}

#[test]
fn it_runs_first_and_its_verdicts_are_final() {
    require!(require_lab(), has_compiler());
    let directory = tempfile::tempdir().unwrap();
    let nine = compile(directory.path(), 9);
    let lab = lab();
    let before = Snapshot::of(lab.r()).unwrap();
    let datagrams = Datagrams::new(&lab);
    for (xdp, level, counter) in [
        ("native", "driver", "to_port"),
        ("native", "user", "to_user"),
        ("generic", "driver", "to_port"),
        ("generic", "user", "to_user"),
        ("auto", "kernel", "pass_disabled"),
    ] {
        let both = format!("xdp = \"{xdp}\"\nlevel = \"{level}\"\n");
        let file = File::new(&config(&[("r0", &(both.clone() + &line(&nine))), ("r1", &both)]));
        let running = file.run(&lab);
        datagrams.only(1);
        running.wait("the datagrams to be counted", |running| running.verdicts("r0", "drop_program") >= 5);
        assert_eq!(running.verdicts("r0", "drop_program"), 5, "{xdp}, {level}");
        running.wait(counter, |running| {
            assert!(pings(&lab), "{xdp}, {level}: {}", running.log());
            running.verdicts("r0", counter) >= 3
        });
        assert_eq!(running.port("r0")["level"], level);
        // A port without one is as ever.
        assert_eq!(running.verdicts("r1", "drop_program"), 0);
        running.stop();
        datagrams.reaches(0);
    }
    let differences = before.differences(&Snapshot::of(lab.r()).unwrap());
    assert!(differences.is_empty(), "{differences:#?}");
}

#[test]
fn a_reload_changes_it_and_a_kill_ends_it() {
    require!(require_lab(), has_compiler());
    let directory = tempfile::tempdir().unwrap();
    let [nine, ten] = PORTS.map(|port| compile(directory.path(), port));
    let lab = lab();
    let datagrams = Datagrams::new(&lab);
    let file = File::new(&with(&line(&nine)));
    let mut running = file.run(&lab);
    datagrams.only(1);
    file.write(&with(&line(&ten)));
    let done = reload(&running, &[]);
    assert!(done.status.success() && done.stdout.contains("program"), "{done:?}");
    datagrams.only(0);
    assert!(pings(&lab), "{}", running.log());
    file.write(&with(""));
    assert!(reload(&running, &[]).status.success());
    datagrams.reaches(0);
    datagrams.reaches(1);
    file.write(&with(&line(&nine)));
    assert!(reload(&running, &[]).status.success());
    datagrams.only(1);
    running.signalled(Signal::KILL);
    assert_detached(lab.r());
    datagrams.reaches(0);
    assert!(pings(&lab));
    assert!(bywash(lab.r(), &["restore"]).status.success());
}

/// The object file changes in place, so that the port can be opened neither as the file says now nor as before.
#[test]
fn a_port_that_a_failed_reload_loses_is_named_and_comes_back() {
    require!(require_lab(), has_compiler());
    let directory = tempfile::tempdir().unwrap();
    let [nine, ten] = PORTS.map(|port| compile(directory.path(), port));
    let wild = compile_wild(directory.path());
    let lab = lab();
    let datagrams = Datagrams::new(&lab);
    let object = directory.path().join("program.o");
    std::fs::copy(&nine, &object).unwrap();
    let file = File::new(&with(&line(&object)));
    let mut running = file.run(&lab);
    datagrams.only(1);
    std::fs::copy(&wild, &object).unwrap();
    let other = with(&(line(&object) + "tx_burst = 8\n"));
    file.write(&other);
    let lost = reload(&running, &[]);
    assert!(lost.status.code() == Some(1) && lost.stderr.contains("The verifier: "), "{lost:?}");
    assert!(!lost.stderr.contains("nothing changed") && lost.stderr.contains("port `r0` is removed"), "{lost:?}");
    let ports = |running: &Bywash| running.show(&["ports"]).as_array().unwrap().len();
    assert_eq!((ports(&running), running.show(&["config"])["port"].as_array().unwrap().len()), (1, 1));
    assert!(pings(&lab), "{}", running.log());
    // With an object that loads, the port is one that is new.
    std::fs::copy(&ten, &object).unwrap();
    let done = reload(&running, &[]).ok().unwrap().stdout;
    assert_eq!(done, "port r0 added: af_xdp\n");
    assert_eq!(ports(&running), 2);
    datagrams.only(0);
    assert!(running.signalled(Signal::TERM).success(), "{}", running.log());
    assert_detached(lab.r());
}

/// Whoever controls the instance could put a program where it makes its files.
#[test]
fn a_program_is_not_loaded_from_where_the_instance_makes_files() {
    require!(require_lab(), has_compiler());
    let directory = tempfile::tempdir().unwrap();
    let [nine, ten] = PORTS.map(|port| compile(directory.path(), port));
    let lab = lab();
    let datagrams = Datagrams::new(&lab);
    let file = File::new(&with(&line(&nine)));
    let mut running = file.run(&lab);
    // The directory of its socket.
    let socket = running.socket();
    let made = socket.with_file_name("made.o");
    std::fs::copy(&ten, &made).unwrap();
    let link = ten.with_file_name("link.o");
    std::os::unix::fs::symlink(&made, &link).unwrap();
    for from in [&made, &link] {
        file.write(&with(&line(from)));
        let done = reload(&running, &[]);
        assert!(!done.status.success() && done.stderr.contains("where it makes files itself"), "{done:?}");
        datagrams.only(1);
    }
    file.write(&with(&line(&ten)));
    assert!(reload(&running, &[]).status.success());
    datagrams.only(0);
    // The port was opened again, and counts from there on: packets need not balance.
    assert!(running.signalled(Signal::TERM).success(), "{}", running.log());
}

#[test]
fn a_takeover_has_its_own() {
    require!(require_lab(), has_compiler());
    let directory = tempfile::tempdir().unwrap();
    let [nine, ten] = PORTS.map(|port| compile(directory.path(), port));
    let lab = lab();
    let datagrams = Datagrams::new(&lab);
    for xdp in ["native", "generic"] {
        let lines = |program: String| with(&format!("xdp = \"{xdp}\"\nlevel = \"driver\"\n{program}"));
        // From none to one, and from one to another.
        for (before, after) in [(String::new(), line(&ten)), (line(&nine), line(&ten))] {
            let file = File::new(&lines(before));
            let running = file.run(&lab);
            datagrams.reaches(1);
            file.write(&lines(after));
            let (program, socket) = (program(), running.socket());
            let mut argv = vec![program.as_str(), "run", "--takeover", "--socket", socket.to_str().unwrap()];
            argv.extend(["--config", file.path().to_str().unwrap()]);
            let mut second = lab.r().spawn(&argv).unwrap();
            second.wait_for_output("forwarding;", PATIENCE).unwrap_or_else(|e| panic!("{e}: {}", second.output()));
            datagrams.only(0);
            let ended = || running.log().contains("cells are back in their pools");
            wait_until("the first process to end", PATIENCE, ended).unwrap();
            datagrams.only(0);
            assert!(pings(&lab), "{}", second.output());
            second.signal(Signal::TERM).unwrap();
            assert!(second.wait(PATIENCE).unwrap().success(), "{}", second.output());
            assert_detached(lab.r());
            datagrams.reaches(1);
        }
    }
}

#[test]
fn what_is_wrong_with_a_program_is_said() {
    require!(require_lab(), has_compiler());
    let directory = tempfile::tempdir().unwrap();
    let nine = compile(directory.path(), 9);
    let lab = lab();
    let linear = compile_text(
        directory.path(),
        "linear",
        &format!("{HEAD}SEC(\"xdp\") int f(struct xdp_md *c) {{ return 2; }}"),
    );
    let wild = compile_wild(directory.path());
    let missing = directory.path().join("missing.o");
    let cases = [
        (line(&missing), "No such file or directory", true),
        (line(Path::new(SOURCE)), "expected an object file", true),
        (line(&linear), "expected `SEC(\"xdp.frags\")`", true),
        (
            format!("{}program_section = \"nothing\"\n", line(&nine)),
            "its programs are `discard` (section `xdp.frags`)",
            true,
        ),
        (line(&wild), "The verifier: ", false),
    ];
    for (lines, said, by_check) in cases {
        let file = File::new(&with(&lines));
        let checked = check(&lab, &file);
        assert_eq!(!checked.status.success(), by_check, "{checked:?}");
        assert!(!by_check || checked.stderr.contains(said), "{said}: {checked:?}");
        let mut running = Bywash::spawn(lab.r(), &["--config", file.path().to_str().unwrap()]);
        let status = running.process.wait(PATIENCE).unwrap();
        assert!(!status.success() && running.log().contains(said), "{said}: {}", running.log());
        assert_detached(lab.r());
    }
    let file = File::new(&with(&format!("{}program_section = \"discard\"\n", line(&nine))));
    assert!(check(&lab, &file).status.success());
}

/// Only where an XDP program of ours would be attached, one of another owner is in the way.
#[test]
fn a_program_of_another_owner_is_refused_only_where_ours_would_be() {
    require!(require_lab(), has_compiler());
    let directory = tempfile::tempdir().unwrap();
    let nine = compile(directory.path(), 9);
    let lab = lab();
    let datagrams = Datagrams::new(&lab);
    let object = nine.to_str().unwrap();
    let running = File::new(&with("level = \"driver\"")).run(&lab);
    let has_tcx = running.show(&["placement"])[0]["mode"] == "tc";
    running.stop();
    for (attach, detach) in [("xdpdrv", "xdp"), ("xdpgeneric", "xdpgeneric")] {
        lab.r().ip(&["link", "set", "dev", "r0", attach, "obj", object, "sec", "xdp.frags"]).unwrap();
        for lines in ["level = \"user\"", "xdp = \"native\"\nlevel = \"driver\""] {
            let file = File::new(&with(lines));
            let mut running = Bywash::spawn(lab.r(), &["--config", file.path().to_str().unwrap()]);
            assert!(!running.process.wait(PATIENCE).unwrap().success());
            let log = running.log();
            assert!(log.contains("already runs XDP program `discard`, id "), "{log}");
            assert!(log.contains(&format!("`ip link set dev r0 {detach} off`")), "{log}");
        }
        if !has_tcx {
            println!("SKIP: kernel without tcx (6.6)");
            lab.r().ip(&["link", "set", "dev", "r0", detach, "off"]).unwrap();
            continue;
        }
        // By traffic control, behind it.
        let mut running = File::new(&with("level = \"driver\"")).run(&lab);
        datagrams.only(1);
        assert!(pings(&lab), "{}", running.log());
        // Behind generic XDP, traffic control leaves to the kernel the frames that it copied.
        running.wait("packets by the driver", |running| {
            attach == "xdpgeneric" || pings(&lab) && running.verdicts("r0", "to_port") >= 3
        });
        assert!(running.log().contains("another XDP program"), "{}", running.log());
        let socket = running.socket();
        let refused = bywash(lab.r(), &["level", "user", "r0", "--socket", socket.to_str().unwrap()]);
        assert!(!refused.status.success() && refused.stderr.contains("already runs XDP program"), "{refused:?}");
        assert!(pings(&lab));
        running.process.signal(Signal::TERM).unwrap();
        wait_until("the end", PATIENCE, || running.log().contains("cells are back in their pools")).unwrap();
        datagrams.only(1);
        lab.r().ip(&["link", "set", "dev", "r0", detach, "off"]).unwrap();
        assert_detached(lab.r());
    }
    if !has_tcx {
        return;
    }
    // Nor is one that comes later.
    let running = File::new(&with("level = \"driver\"")).run(&lab);
    lab.r().ip(&["link", "set", "dev", "r0", "xdpdrv", "obj", object, "sec", "xdp.frags"]).unwrap();
    datagrams.only(1);
    assert!(pings(&lab), "{}", running.log());
    lab.r().ip(&["link", "set", "dev", "r0", "xdp", "off"]).unwrap();
    datagrams.reaches(0);
    running.stop();
}

/// A program that was attached while ours was detached, because a worker hung, keeps the port from user space only as
/// long as it stays.
#[test]
fn a_port_is_taken_over_again_once_no_other_program_is_in_the_way() {
    require!(require_lab(), has_compiler());
    let directory = tempfile::tempdir().unwrap();
    let nine = compile(directory.path(), 9);
    let lab = lab();
    let mut running = File::new(&with("")).run(&lab);
    let level = |running: &Bywash, port: &str| running.placement(port)["level"].clone();
    let thread = running.show(&["workers"])[0]["thread"].as_u64().unwrap();
    let stopped = Stopped::new(thread as i32).unwrap();
    running.wait("the port to be left to the kernel", |running| level(running, "r0") == "kernel");
    if running.placement("r0")["mode"] != "tc" {
        println!("SKIP: kernel without tcx (6.6)");
        drop(stopped);
        running.stop();
        return;
    }
    let other = ["link", "set", "dev", "r0", "xdpgeneric", "obj", nine.to_str().unwrap(), "sec", "xdp.frags"];
    lab.r().ip(&other).unwrap();
    drop(stopped);
    running.wait("the other port to be taken over again", |running| level(running, "r1") == "user");
    running.wait("the other program to be named", |running| {
        let shown = running.placement("r0");
        shown["level"] == "kernel" && shown["why"].as_str().unwrap().contains("already runs XDP program")
    });
    assert!(pings(&lab), "{}", running.log());
    lab.r().ip(&["link", "set", "dev", "r0", "xdpgeneric", "off"]).unwrap();
    running.wait("the port to be taken over again", |running| level(running, "r0") == "user");
    running.wait_to_count("r0", "rx_packets", 1, || assert!(pings(&lab), "{}", running.log()));
    assert_eq!(running.log().matches("already runs XDP program").count(), 1, "{}", running.log());
    assert!(running.signalled(Signal::TERM).success(), "{}", running.log());
    assert_detached(lab.r());
}
