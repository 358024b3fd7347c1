//! A changed configuration is applied under load: ports that stay lose no packets, and a failed reload changes nothing.

use crate::harness::{Bywash, PATIENCE, alone, bywash};
use crate::load;
use bywash_lab::{Output, Ping, Topology, require, require_lab, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// A configuration file, deleted on drop.
pub struct File {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl File {
    pub fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = Self { path: directory.path().join("bywash.toml"), _directory: directory };
        file.write(text);
        file
    }

    pub fn write(&self, text: &str) {
        std::fs::write(&self.path, text).unwrap();
    }

    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Runs the program with this configuration on the lab's router.
    pub fn run<'a>(&self, lab: &'a Topology) -> Bywash<'a> {
        Bywash::run_as_is(lab.r(), &["--config", self.path.to_str().unwrap()])
    }
}

/// Returns a configuration with these ports; each is an interface and further lines of its section.
pub fn config(ports: &[(&str, &str)]) -> String {
    let ports = ports.iter().map(|(interface, more)| {
        let level = if more.contains("level") { "" } else { "level = \"user\"\n" };
        format!("[[port]]\ninterface = \"{interface}\"\nring = 512\n{level}{more}\n")
    });
    format!("[pool]\nframes = 10240\nreserve = 20480\n[workers]\ncount = 1\n{}", ports.collect::<String>())
}

pub fn reload(running: &Bywash, more: &[&str]) -> Output {
    let socket = running.socket();
    bywash(running.namespace(), &[&["reload", "--socket", socket.to_str().unwrap()], more].concat())
}

/// Without a configuration file there is nothing that a reload could read.
#[test]
fn without_a_file_there_is_nothing_to_reload() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let running = Bywash::run(lab.r(), &["r0", "r1"]);
    for more in [&[][..], &["--dry-run"]] {
        let refused = reload(&running, more);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(refused.stderr.contains("no configuration file to read again"), "{refused:?}");
    }
    running.stop();
}

fn names(running: &Bywash) -> Vec<String> {
    running.show(&["ports"]).as_array().unwrap().iter().map(|port| port["name"].as_str().unwrap().into()).collect()
}

/// Returns whether a ping from host a to the third host is answered.
fn reaches_c(lab: &Topology) -> bool {
    let to = lab.hosts()[2].v4;
    Ping::to(to).count(1).wait(PATIENCE).run(&lab.a().ns).unwrap().received == 1
}

/// Returns the state that a failed reload must not change.
fn state(running: &Bywash) -> Value {
    let ports = running.show(&["ports"]).as_array().unwrap().clone();
    let of = |port: &Value| ["name", "id", "interface", "state", "level", "mode"].map(|key| port[key].clone());
    let links = running.namespace().ip(&["-d", "-o", "link", "show"]).unwrap().stdout;
    let programs: Vec<_> = links.split_whitespace().filter(|word| word.starts_with("xdp")).collect();
    let ports: Vec<_> = ports.iter().map(of).collect();
    // A pool that a failed reload used for a moment drains until its frames are back: only the current pool is
    // compared.
    serde_json::json!([ports, running.show(&["config"]), programs.len(), pool(running)])
}

/// Returns name, kind and size of the pool that frames are allocated from.
fn pool(running: &Bywash) -> Value {
    let pools = running.show(&["pools"])["pools"].as_array().unwrap().clone();
    let taken: Vec<_> = pools.iter().filter(|pool| pool["draining"] == false).collect();
    assert_eq!(taken.len(), 1, "{pools:?}");
    serde_json::json!(["name", "kind", "frames"].map(|key| taken[0][key].clone()))
}

#[test]
fn a_port_a_pool_and_routes_change_in_one_reload() {
    require!(require_lab());
    let _alone = alone();
    let lab = Topology::builder().ports(4).static_neighbours(true).build().unwrap();
    load::route(&lab);
    let first = config(&[("r0", ""), ("r1", ""), ("r2", "")]);
    let file = File::new(&first);
    let running = file.run(&lab);
    let routes = |what: &str| {
        let all = (0..250).map(|n| format!("route {what} 45.0.{n}.0/24 via 10.0.4.2\n")).collect::<String>();
        lab.r().ip_batch(&all).unwrap();
    };
    // Frames of the previous pool are in the ports' rings, and return to it as packets arrive at every port.
    let drained = || {
        let all = [0, 1, 2, 3].iter().filter(|n| names(&running).contains(&format!("r{n}")));
        let reached = |n: &&usize| {
            let host = &lab.hosts()[**n];
            let from = if **n == 0 { &lab.b().ns } else { &lab.a().ns };
            Ping::to(host.v4).count(600).interval(Duration::from_millis(1)).run(from).unwrap().received > 0
        };
        all.filter(reached).count() > 0 && running.show(&["pools"])["pools"].as_array().unwrap().len() == 1
    };
    assert_eq!(pool(&running), serde_json::json!(["worker0", "stack", 10240]));
    let ((), loss) = load::during(&lab, load::rate(), || {
        let second = config(&[("r0", ""), ("r1", ""), ("r3", "")]);
        let second = second.replace("frames = 10240", "kind = \"ring\"\nframes = 10000");
        for (text, name, told) in [
            (&second, "worker0.2", "ring of 10000 with caches of 256; worker0 drains: stack of 10240\nport r3 added"),
            (&first, "worker0", "stack of 10240; worker0.2 drains: ring of 10000 with caches of 256\nport r2 added"),
        ] {
            file.write(text);
            let would = reload(&running, &["--dry-run"]).ok().unwrap().stdout;
            assert!(would.contains(told), "{would}");
            let pools = running.show(&["pools"])["pools"].clone();
            assert_eq!(pools.as_array().unwrap().len(), 1, "the dry run changed the pools: {pools}");
            routes(if name == "worker0" { "del" } else { "add" });
            assert_eq!(reload(&running, &[]).ok().unwrap().stdout, would);
            assert_eq!(pool(&running)[0], name);
            let pools = running.show(&["pools"])["pools"].clone();
            assert!(pools.as_array().unwrap().len() <= 2, "{pools}");
            wait_until("the old pool to drain", 3 * PATIENCE, drained)
                .unwrap_or_else(|e| panic!("{e}: {}", running.show(&["all"])));
        }
    });
    println!(
        "a port, a pool and 250 routes come and go under {} packets/s: {} sent, {} lost, none for {:?}",
        load::rate(),
        loss.sent,
        loss.lost,
        loss.gap
    );
    assert_eq!((loss.unexplained(running.starved("r0")), loss.twice), (0, 0), "{loss:?}: {}", running.show(&["drops"]));
    end(running);
}

#[test]
fn ports_come_and_go_and_the_others_lose_nothing() {
    require!(require_lab());
    let _alone = alone();
    let lab = Topology::builder().ports(4).static_neighbours(true).build().unwrap();
    load::route(&lab);
    let file = File::new(&config(&[("r0", ""), ("r1", ""), ("r2", "")]));
    let mut running = file.run(&lab);
    let ((), loss) = load::during(&lab, load::rate(), || {
        let say = |output: Output| output.ok().unwrap().stdout;
        assert!(reaches_c(&lab));
        assert_eq!(say(reload(&running, &[])), "nothing to change\n");
        // One reload adds a port and removes another, after a dry run that changes nothing.
        file.write(&config(&[("r3", ""), ("r0", ""), ("r1", "")]));
        let told = say(reload(&running, &["--dry-run"]));
        assert_eq!(told, "port r3 added: af_xdp\nport r2 removed\n");
        assert_eq!(names(&running), ["r0", "r1", "r2"]);
        assert_eq!(say(reload(&running, &[])), told);
        assert_eq!(names(&running), ["r0", "r1", "r3"]);
        let d = lab.hosts()[3].v4;
        running.wait_to_count("r3", "tx_packets", 3, || {
            let report = Ping::to(d).count(3).interval(Duration::from_millis(10)).run(&lab.a().ns).unwrap();
            assert_eq!(report.received, 3, "{} {}", report.text, running.log());
        });
        // The kernel forwards the packets of the removed port.
        let links = lab.r().ip(&["-d", "link", "show", "r2"]).unwrap().stdout;
        assert!(!links.contains("xdp"), "{links}");
        assert!(reaches_c(&lab), "the kernel does not forward to the removed port: {}", running.show(&["all"]));
        // SIGHUP adds the port again with other settings, while routes change, too.
        file.write(&config(&[("r0", ""), ("r1", ""), ("r2", "tx_burst = 8\n"), ("r3", "tx_deadline_us = 20\n")]));
        lab.r()
            .ip_batch(&(0..200).map(|n| format!("route add 45.0.{n}.0/24 via 10.0.4.2\n")).collect::<String>())
            .unwrap();
        running.process.signal(Signal::HUP).unwrap();
        wait_until("four ports", PATIENCE, || names(&running).len() == 4).unwrap();
        running
            .wait("the last change", |running| running.log().contains("reload: port r3 opened again: tx_deadline_us"));
        assert!(reaches_c(&lab), "{} {}", running.show(&["all"]), running.log());
        let levels =
            [("r0", "level = \"kernel\"\n"), ("r1", ""), ("r2", "tx_burst = 8\n"), ("r3", "tx_deadline_us = 20\n")];
        file.write(&config(&levels).replace("count = 1\n", "count = 1\nidle = \"spin\"\n"));
        let told = say(reload(&running, &["--json"]));
        let told: Value = serde_json::from_str(&told).unwrap();
        let changes = serde_json::json!(["port r0 level: user -> kernel", "workers.idle: sleep -> spin"]);
        assert_eq!(told, serde_json::json!({ "changes": changes, "applied": true }));
        assert_eq!(running.port("r0")["level"], "kernel");
    });
    println!(
        "reloads under {} packets/s: {} sent, {} lost, none for {:?}",
        load::rate(),
        loss.sent,
        loss.lost,
        loss.gap
    );
    assert_eq!((loss.unexplained(running.starved("r0")), loss.twice), (0, 0), "{loss:?}: {}", running.show(&["drops"]));
    end(running);
}

/// Ends the program and checks that every buffer is back in its pool. Packets are not balanced: the counters of a
/// removed port are gone.
pub fn end(mut running: Bywash) {
    let status = running.signalled(Signal::TERM);
    let log = running.log();
    assert!(status.success() && log.contains("cells are back in their pools"), "{status}: {log}");
    crate::harness::assert_detached(running.namespace());
}

#[test]
fn a_reload_that_fails_changes_nothing() {
    require!(require_lab());
    let _alone = alone();
    let lab = Topology::builder().ports(4).static_neighbours(true).build().unwrap();
    load::route(&lab);
    let good = config(&[("r0", ""), ("r1", ""), ("r2", "")]);
    let file = File::new(&good);
    let running = file.run(&lab);
    let before = state(&running);
    let failing = [
        // Errors of the file, of this machine, and settings that cannot change while the program runs.
        ("[[port]\n".to_owned(), "bywash.toml"),
        (config(&[("r0", ""), ("r1", ""), ("nosuch0", "")]), "nosuch0"),
        (good.replace("[pool]", "[pool]\ncell = 4096"), "pool.cell: \"auto\" -> 4096: it is a setting of the arena"),
        (
            good.replace("frames = 10240", "frames = 30000"),
            "the new pools need 30000 buffers, but only 20480 are spare",
        ),
        (good.replace("frames = 10240", "frames = 1000"), "1000 buffers are too few for worker 0"),
        (good.replace("ring = 512", "ring = 2048"), "nothing changed"),
        (config(&[("r0", ""), ("r1", ""), ("r2", ""), ("r3", "zero_copy = \"require\"\n")]), "r3"),
        // Reloads that fail halfway: after the pool was replaced, at r3; after r2 was removed and r3 added, at r1.
        (
            config(&[("r0", ""), ("r1", ""), ("r3", "zero_copy = \"require\"\n")])
                .replace("frames = 10240", "frames = 9000"),
            "r3",
        ),
        (
            config(&[("r0", ""), ("r1", "zero_copy = \"require\"\n"), ("r3", "")])
                .replace("frames = 10240", "frames = 9000"),
            "r1",
        ),
    ];
    let touched = failing.len() - 1;
    for (at, (text, expected)) in failing.into_iter().enumerate() {
        file.write(&text);
        let ((), loss) = load::during(&lab, load::rate(), || {
            let failed = reload(&running, &[]);
            assert!(!failed.status.success() && failed.stderr.contains(expected), "{text}: {}", failed.stderr);
            assert!(failed.stderr.contains("nothing changed"), "{}", failed.stderr);
            // One line, or a drawing of the place in the file.
            assert!(failed.stderr.lines().count() == 1 || failed.stderr.contains("--> "), "{}", failed.stderr);
            std::thread::sleep(Duration::from_millis(100));
        });
        // The last one closes the port by which the packets leave, and opens it again.
        if at < touched {
            assert_eq!((loss.unexplained(running.starved("r0")), loss.twice), (0, 0), "{text}: {loss:?}");
        }
        assert_eq!(state(&running), before, "{text}");
        assert!(reaches_c(&lab));
    }
    file.write(&good);
    assert_eq!(reload(&running, &[]).ok().unwrap().stdout, "nothing to change\n");
    end(running);
}

/// A port whose settings change is opened again: a level that was requested for it stays.
#[test]
fn a_port_that_is_opened_again_keeps_its_level() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let file = File::new(&config(&[("r0", "level = \"auto\""), ("r1", "level = \"auto\"")]));
    let running = file.run(&lab);
    let socket = running.socket();
    let level = ["level", "--socket", socket.to_str().unwrap(), "user"];
    bywash(running.namespace(), &level).ok().unwrap();
    let ping = || Ping::to(lab.b().v4).count(5).run(&lab.a().ns).unwrap().received;
    running.wait("packets to pass", |_| ping() == 5);
    file.write(&config(&[("r0", "level = \"auto\"\nrx_burst = 32"), ("r1", "level = \"auto\"")]));
    let told = reload(&running, &[]).ok().unwrap().stdout;
    assert!(told.contains("rx_burst"), "{told}");
    let asked = |port: &str| running.placement(port)["configured"].clone();
    assert_eq!((asked("r0"), ping()), ("user".into(), 5));
    // The file may set another level.
    let with = |level: &str, burst: u8| {
        let lines = format!("level = \"{level}\"\nrx_burst = {burst}");
        file.write(&config(&[("r0", &lines), ("r1", "level = \"auto\"")]));
        reload(&running, &[]).ok().unwrap();
        asked("r0")
    };
    assert_eq!((with("kernel", 64), asked("r1")), ("kernel".into(), "user".into()));
    // A level that the file had for some time does not stay.
    assert_eq!((with("user", 64), with("kernel", 32)), ("user".into(), "kernel".into()));
    running.stop();
}

/// Ports exchange their interfaces, and one takes the interface of a port that goes.
#[test]
fn interfaces_move_between_ports() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let file = File::new(&config(&[("r0", "name = \"wan\""), ("r1", "name = \"lan\"")]));
    let running = file.run(&lab);
    let ports = || {
        let ports = running.show(&["ports"]).as_array().unwrap().clone();
        ports.iter().map(|port| serde_json::json!([port["name"], port["id"], port["interface"]])).collect::<Value>()
    };
    let reaches = || Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received == 3;
    assert_eq!(ports(), serde_json::json!([["wan", 0, "r0"], ["lan", 1, "r1"]]));
    file.write(&config(&[("r1", "name = \"wan\""), ("r0", "name = \"lan\"")]));
    reload(&running, &[]).ok().unwrap();
    assert_eq!(ports(), serde_json::json!([["wan", 0, "r1"], ["lan", 1, "r0"]]));
    running.wait("packets to pass", |_| reaches());
    // The new port is opened before the number of the removed one is free.
    file.write(&config(&[("r0", "name = \"wan\""), ("r1", "name = \"new\"")]));
    reload(&running, &[]).ok().unwrap();
    assert_eq!(ports(), serde_json::json!([["wan", 0, "r0"], ["new", 2, "r1"]]));
    running.wait("packets to pass", |_| reaches());
    end(running);
}

/// A port that is opened again takes the buffers of the worker that has served it.
#[test]
fn a_port_that_is_opened_again_keeps_its_worker() {
    require!(require_lab());
    let lab = Topology::builder().ports(3).build().unwrap();
    let text = |burst: u8| {
        let port = |n: usize| format!("[[port]]\ninterface = \"r{n}\"\nqueues = [0]\nlevel = \"user\"\n");
        format!("[workers]\ncount = 2\n{}tx_burst = {burst}\n{}{}", port(0), port(1), port(2))
    };
    let file = File::new(&text(32));
    let running = file.run(&lab);
    file.write(&text(16));
    assert_eq!(reload(&running, &[]).ok().unwrap().stdout, "port r0 opened again: tx_burst 32 -> 16\n");
    assert_eq!(Ping::to(lab.b().v4).count(3).wait(PATIENCE).run(&lab.a().ns).unwrap().received, 3);
    end(running);
}

#[test]
fn workers_move_to_other_cpus() {
    require!(require_lab());
    let _alone = alone();
    let lab = Topology::builder().ports(2).static_neighbours(true).build().unwrap();
    load::route(&lab);
    let good = config(&[("r0", ""), ("r1", "")]);
    let file = File::new(&good);
    let running = file.run(&lab);
    let runs_on = || {
        let worker = running.show(&["workers"])[0].clone();
        let status = std::fs::read_to_string(format!("/proc/{}/status", worker["thread"])).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned();
        assert_eq!(line, worker["cpu"].to_string());
        line
    };
    let ((), loss) = load::during(&lab, load::rate(), || {
        for cpu in [0, std::thread::available_parallelism().unwrap().get() - 1] {
            file.write(&good.replace("count = 1\n", &format!("count = 1\ncpus = [{cpu}]\n")));
            let told = reload(&running, &[]).ok().unwrap().stdout;
            assert!(told.contains(&format!("to {cpu}\n")) || told == "nothing to change\n", "{told}");
            assert_eq!(runs_on(), cpu.to_string());
        }
        file.write(&good.replace("count = 1\n", "count = 2\n"));
        let refused = reload(&running, &[]).stderr;
        assert!(refused.contains("workers.count: 1 -> 2: queues and rings are assigned to workers"), "{refused}");
    });
    println!(
        "workers move under {} packets/s: {} sent, {} lost, none for {:?}",
        load::rate(),
        loss.sent,
        loss.lost,
        loss.gap
    );
    assert_eq!((loss.unexplained(running.starved("r0")), loss.twice), (0, 0), "{loss:?}: {}", running.show(&["drops"]));
    end(running);
}
