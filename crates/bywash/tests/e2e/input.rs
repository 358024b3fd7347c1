//! Impossible arguments and configurations are refused with the right exit status and a message that names the fault
//! and its place.

use crate::harness::{Bywash, PATIENCE, bywash, program};
use crate::reload::{File, config};
use bywash_lab::{Namespace, Snapshot, Topology, has_tool, require, require_lab};
use rustix::process::Signal;

/// Runs `bywash run`, which must end, with a socket of its own; returns exit status and standard error.
fn refused(namespace: &Namespace, arguments: &[&str]) -> (Option<i32>, String) {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let output = bywash(namespace, &[&["run", "--socket", socket.to_str().unwrap()][..], arguments].concat());
    assert!(!socket.exists(), "{arguments:?} leaves its socket behind");
    (output.status.code(), output.stderr)
}

#[test]
fn impossible_interfaces_are_named() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    for (arguments, code, parts) in [
        (&["r0", "nope0"][..], 2, &["no interface nope0", "r0, r1"][..]),
        (&["r0", "r0"], 2, &["r0", "twice"]),
        (&["lo"], 2, &["lo"]),
        (&["an-interface-of-20-c"], 2, &["1 to 15"]),
        (&["../r0"], 2, &["must not contain `/`"]),
        (&[], 2, &["required"]),
        (&["r0", "--frames", "3"], 2, &["64"]),
        (&["r0", "--workers", "0"], 2, &["1 to 256"]),
        (&["r0", "--cpus", "4000"], 2, &["4000"]),
    ] {
        let (status, stderr) = refused(lab.r(), arguments);
        assert_eq!(status, Some(code), "{arguments:?}: {stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{arguments:?}: no {part:?} in: {stderr}");
        }
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
    crate::harness::assert_detached(lab.r());
}

#[test]
fn faults_of_a_configuration_are_located() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bywash.toml");
    for (text, parts) in [
        ("[[port]]\ninterface = \"r0\n", &["bywash.toml:2:"][..]),
        ("[[port]]\ninterface = \"r0\"\nspeed = 9\n", &["bywash.toml:3:1", "speed"]),
        ("[[port]]\ninterface = 7\n", &["bywash.toml:2:13"]),
        ("[[port]]\ninterface = \"r0\"\n[pool]\nframes = 1\n", &["bywash.toml:4:10", "64"]),
        ("[[port]]\ninterface = \"nope0\"\n", &["bywash.toml:2:13", "nope0"]),
        ("", &["no port", "[[port]]"]),
    ] {
        std::fs::write(&file, text).unwrap();
        let (status, stderr) = refused(lab.r(), &["--config", file.to_str().unwrap()]);
        assert_eq!(status, Some(2), "{text}: {stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{text}: no {part:?} in: {stderr}");
        }
    }
    let (status, stderr) = refused(lab.r(), &["--config", "/nowhere/bywash.toml"]);
    assert!(status == Some(2) && stderr.contains("/nowhere/bywash.toml"), "{status:?}: {stderr}");
}

#[test]
fn another_instance_and_its_program_are_left_alone() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let first = Bywash::run(lab.r(), &["r0"]);
    // A second instance at the same socket is refused.
    let socket = first.socket();
    let output = bywash(lab.r(), &["run", "--socket", socket.to_str().unwrap(), "r1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr.contains("already runs") && output.stderr.contains(&first.process.pid().to_string()));
    // An instance at another socket that asks for an interface with an instance's program is refused, too, before its
    // own program is there for the first to see. (Kernels before 6.6 have only XDP.)
    let (status, stderr) = refused(lab.r(), &["r1", "r0"]);
    assert_eq!(status, Some(1), "{stderr}");
    let told = ["another instance of Bywash forwards its packets", "`r0` already runs XDP program"];
    assert!(told.iter().any(|why| stderr.contains(why)), "{stderr}");
    assert!(!first.log().contains("left to the kernel: BPF program"), "{}", first.log());
    // The refused instance has released r1, and the first still runs.
    let mut second = Bywash::run(lab.r(), &["r1"]);
    assert_eq!(first.port("r0")["state"], "up");
    assert!(second.signalled(Signal::TERM).success());
    first.stop();
}

#[test]
fn another_instance_and_restore_leave_the_settings_of_the_first() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let before = Snapshot::of(lab.r()).unwrap();
    let file = File::new(&config(&[("r0", "xdp = \"native\"\nlevel = \"driver\"\nbusy_poll = 64\n")]));
    let mut first = file.run(&lab);
    let set = Snapshot::of(lab.r()).unwrap();
    assert!(!before.differences(&set).is_empty(), "no setting was changed");
    let unchanged = |after: &str| {
        assert_eq!(set.differences(&Snapshot::of(lab.r()).unwrap()), Vec::<String>::new(), "after {after}");
    };
    let socket = first.socket();
    let output = bywash(lab.r(), &["run", "--socket", socket.to_str().unwrap(), "r1"]);
    assert!(output.stderr.contains("already runs"), "{}", output.stderr);
    unchanged("a start at its socket");
    let output = bywash(lab.r(), &["restore"]);
    assert!(output.stdout.contains("r0: their instance runs"), "{} {}", output.stdout, output.stderr);
    unchanged("restore");
    let mut second = Bywash::run(lab.r(), &["r1"]);
    assert!(!second.log().contains("did not end cleanly"), "{}", second.log());
    assert!(second.signalled(Signal::TERM).success());
    unchanged("another instance");
    first.signalled(Signal::KILL);
    let output = bywash(lab.r(), &["restore"]);
    assert!(output.stdout.contains(" restored"), "{} {}", output.stdout, output.stderr);
    assert_eq!(before.differences(&Snapshot::of(lab.r()).unwrap()), Vec::<String>::new());
}

#[test]
fn a_missing_privilege_is_named() {
    require!(require_lab(), has_tool("setpriv"));
    let lab = Topology::router().unwrap();
    // A copy in a directory that the unprivileged user may read.
    let directory = tempfile::tempdir().unwrap();
    let open = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(directory.path(), open).unwrap();
    let copy = directory.path().join("bywash");
    std::fs::copy(program(), &copy).unwrap();
    let nobody = ["setpriv", "--reuid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--"];
    let argv = [&nobody[..], &[copy.to_str().unwrap(), "run", "r0", "r1"]].concat();
    let output = lab.r().try_run(&argv, PATIENCE).unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", output.stderr);
    assert!(output.stderr.contains("CAP_NET_ADMIN") && output.stderr.contains("try `sudo bywash run r0 r1`"));

    let running = Bywash::run(lab.r(), &["r0", "r1"]);
    let socket = running.socket();
    let run = |arguments: &[&str]| {
        let argv = [&["setpriv", "--regid=65534"], &nobody[1..], &[copy.to_str().unwrap()], arguments].concat();
        lab.r().try_run(&argv, PATIENCE).unwrap()
    };
    let output = run(&["doctor", "--socket", socket.to_str().unwrap(), "r0"]);
    let unseen = "the running instance was not examined: no permission to connect to the instance at ";
    assert!(output.stdout.contains(unseen) && !output.stdout.contains("no instance runs"), "{}", output.stdout);
    for (arguments, hint) in [
        (&["show", "firewall"][..], ": run the command as root, with sudo\n"),
        (&["restore"], ": run the command as root, with sudo\n"),
        (&["demo"], ": run `sudo bywash demo`\n"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", output.stderr);
        assert!(output.stderr.ends_with(hint), "{arguments:?}: {}", output.stderr);
    }
    running.stop();
}
