//! Trouble with the machine: memory, descriptors and disks that are full, a kernel that refuses netlink requests, a
//! process that is stopped, a clock that is set, a CPU that goes. Whatever happens, the kernel or the program forwards,
//! nothing stays changed, and the next start works.

use crate::faults::{forwards, starts_again};
use crate::harness::{Bywash, PATIENCE, alone, assert_detached, bywash, wait_until_detached};
use crate::panics::of_this_build;
use bywash_lab::{Ping, Probe, Reason, Snapshot, Topology, has_tool, require, require_lab, run_host, wait_until};
use rustix::process::Signal;
use serde_json::json;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Starts the program by a command that limits it; checks that it forwards or ends with a reason, and that all is as
/// before in the end. Returns whether it forwarded.
fn tried(lab: &Topology, by: &[&str], what: &str) -> bool {
    let before = Snapshot::of(lab.r()).unwrap();
    let mut running = Bywash::spawn_by(by, lab.r(), &["--level", "user", "r0", "r1"]);
    let mut ended = None;
    wait_until("it to forward or end", PATIENCE, || {
        ended = running.process.try_status().unwrap();
        ended.is_some() || running.log().contains("forwarding;")
    })
    .unwrap_or_else(|why| panic!("{what}: {why}: {}", running.log()));
    forwards(lab, what);
    match ended {
        Some(status) => assert!(!status.success() && !running.log().is_empty(), "{what}: {status}"),
        None => {
            let status = running.signalled(Signal::TERM);
            assert!(status.success(), "{what}: {status}: {}", running.log());
        }
    }
    wait_until("the kernel to detach", PATIENCE, || {
        !lab.r().ip(&["-d", "link", "show"]).unwrap().stdout.contains("xdp")
    })
    .unwrap();
    // A program that was ended in the middle leaves the rest to the next start.
    if ended.is_some() {
        starts_again(what, lab, &before, &running.socket());
    }
    let differences = before.differences(&Snapshot::of(lab.r()).unwrap());
    assert!(differences.is_empty(), "{what}: {differences:#?}");
    ended.is_none()
}

#[test]
fn a_start_with_few_descriptors() {
    require!(require_lab(), has_tool("prlimit"));
    let lab = Topology::router().unwrap();
    let limits = [4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 96, 256];
    let forwarded =
        limits.map(|limit| tried(&lab, &["prlimit", &format!("--nofile={limit}")], &format!("{limit} fds")));
    assert!(!forwarded[0] && forwarded[limits.len() - 1], "{forwarded:?}");
}

#[test]
fn a_start_with_little_memory() {
    require!(require_lab(), has_tool("prlimit"));
    let lab = Topology::router().unwrap();
    let limits = [64u64, 160, 384, 1024, 4096, 1 << 16];
    let forwarded =
        limits.map(|mib| tried(&lab, &["prlimit", &format!("--as={}", mib << 20)], &format!("{mib} MiB of addresses")));
    assert!(!forwarded[0] && forwarded[limits.len() - 1], "{forwarded:?}");
}

/// Limits the descriptors of a running process, as its user: root may not everywhere (CAP_SYS_RESOURCE).
fn limit_descriptors(running: &Bywash, most: u64) {
    let pid = running.process.pid();
    let user = fs::metadata(format!("/proc/{pid}")).unwrap().uid().to_string();
    let (pid, limit) = (pid.to_string(), format!("--nofile={most}:"));
    let user = ["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"];
    run_host(&[&user[..], &["prlimit", "--pid", &pid, &limit]].concat()).unwrap();
}

/// Without descriptors the API answers nobody and a reload fails, but forwarding goes on; once there are some again, so
/// does all else.
#[test]
fn no_descriptors_while_it_runs() {
    require!(require_lab(), has_tool("prlimit"), has_tool("setpriv"));
    let lab = Topology::router_n(3).unwrap();
    let before = Snapshot::of(lab.r()).unwrap();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("bywash.toml");
    let write = |names: &[&str]| {
        let port = |name: &&str| format!("[[port]]\ninterface = \"{name}\"\nlevel = \"user\"\n");
        fs::write(&file, format!("[pool]\nreserve = 40000\n{}", names.iter().map(port).collect::<String>())).unwrap();
    };
    write(&["r0", "r1"]);
    let mut running = Bywash::run_as_is(lab.r(), &["--config", file.to_str().unwrap()]);
    let socket = running.socket();
    let socket = socket.to_str().unwrap();
    let used = fs::read_dir(format!("/proc/{}/fd", running.process.pid())).unwrap().count() as u64;
    write(&["r0", "r1", "r2"]);
    let told = |running: &Bywash| {
        let log = running.log();
        (log.matches("ERROR reload: ").count(), log.contains("port r2 added"))
    };
    // From none that can be opened (the first ones stay in use) to those with which the port is added, one by one near
    // those in use. Some of the latter may have been open for a moment only.
    for most in [8, 16].into_iter().chain(used.saturating_sub(16)..used + 64) {
        let earlier = told(&running);
        limit_descriptors(&running, most);
        running.process.signal(Signal::HUP).unwrap();
        wait_until("the reload to end", PATIENCE, || told(&running) != earlier)
            .unwrap_or_else(|why| panic!("{why}: {}", running.log()));
        forwards(&lab, "a reload without descriptors");
        if told(&running).1 {
            break;
        }
    }
    assert!(told(&running).0 > 1 && told(&running).1, "{used} in use: {}", running.log());
    forwards(&lab, "a reload with few descriptors");
    limit_descriptors(&running, 1024);
    let reaches_c = || Ping::to(lab.hosts()[2].v4).count(3).run(&lab.a().ns).unwrap().received == 3;
    wait_until("the new port to forward", PATIENCE, reaches_c).unwrap();
    running.wait("the port", |running| running.port("r2")["state"] == "up");
    let done = bywash(lab.r(), &["reload", "--socket", socket]);
    assert!(done.status.success(), "{done:?}: {}", running.log());
    forwards(&lab, "a reload with descriptors");
    let lines = running.log().lines().count();
    assert!(lines < 150, "{lines} lines: {}", running.log());
    ends_clean(running, &lab, &before, "descriptors that were used up");
}

/// Ends a program that has logged errors; checks that it has lost no buffer and left nothing changed.
fn ends_clean(mut running: Bywash, lab: &Topology, before: &Snapshot, what: &str) {
    running.assert_conserved();
    let status = running.signalled(Signal::TERM);
    assert!(status.success() && running.log().contains("cells are back in their pools"), "{what}: {}", running.log());
    assert_detached(lab.r());
    let differences = before.differences(&Snapshot::of(lab.r()).unwrap());
    assert!(differences.is_empty(), "{what}: {differences:#?}");
}

/// Group of processes whose memory is limited. Dropping it removes it.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes a group, of either version of cgroups.
    fn new() -> Result<Self, Reason> {
        let name = format!("bywash-test-{}", std::process::id());
        for place in ["/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"] {
            let group = Self(Path::new(place).join(&name));
            if fs::create_dir(&group.0).is_ok() && group.limit_file().exists() {
                return Ok(group);
            }
        }
        Err(Reason::new("no cgroup with a limit of memory can be made"))
    }

    fn limit_file(&self) -> PathBuf {
        let first = self.0.join("memory.limit_in_bytes");
        if first.exists() { first } else { self.0.join("memory.max") }
    }

    fn used(&self) -> u64 {
        let first = self.0.join("memory.usage_in_bytes");
        let file = if first.exists() { first } else { self.0.join("memory.current") };
        fs::read_to_string(file).unwrap().trim().parse().unwrap()
    }

    /// Moves a process into the group, with its future children.
    fn take(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

/// Command that stops itself, and runs another when it is continued: until then it can be put into a group.
const LATER: [&str; 4] = ["sh", "-c", "echo waits >&2; kill -STOP $$; exec \"$@\"", "sh"];

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A process that has just ended is still a member.
        let _ = wait_until("the group to be empty", PATIENCE, || fs::remove_dir(&self.0).is_ok());
    }
}

fn has_cgroups() -> Probe {
    Cgroup::new().map(drop)
}

/// The kernel kills the processes of a group that needs more memory than it may have.
#[test]
fn a_cgroup_without_memory() {
    require!(require_lab(), has_cgroups());
    let _alone = alone();
    let lab = Topology::router().unwrap();
    let before = Snapshot::of(lab.r()).unwrap();
    let group = Cgroup::new().unwrap();
    let mut running = Bywash::spawn_by(&LATER, lab.r(), &["--level", "user", "r0", "r1"]);
    running.process.wait_for_output("waits", PATIENCE).unwrap();
    let pid = running.process.pid();
    let stopped = || fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") T "));
    wait_until("it to stop", PATIENCE, stopped).unwrap();
    group.take(pid);
    running.process.signal(Signal::CONT).unwrap();
    running.process.wait_for_output("forwarding;", PATIENCE).unwrap();
    forwards(&lab, "a start in a group");
    fs::write(group.limit_file(), (group.used() + (1 << 20)).to_string()).unwrap();
    let mut ended = None;
    for first in (0..300_000u32).step_by(10_000) {
        let route = |n: u32| format!("route add {}.{}.{}.0/24 via 10.0.2.2\n", 45 + (n >> 16), n >> 8 & 255, n & 255);
        lab.r().ip_batch(&(first..first + 10_000).map(route).collect::<String>()).unwrap();
        ended = running.process.try_status().unwrap();
        if ended.is_some() {
            break;
        }
    }
    let _ = wait_until("the kernel to kill it", PATIENCE, || {
        ended = running.process.try_status().unwrap();
        ended.is_some()
    });
    let ended = ended.unwrap_or_else(|| panic!("{} of memory: {}", group.used(), running.log()));
    assert_eq!(ended.signal(), Some(libc::SIGKILL), "{}", running.log());
    forwards(&lab, "the kernel killed it");
    wait_until_detached(lab.r());
    lab.r().ip(&["route", "flush", "via", "10.0.2.2"]).unwrap();
    starts_again("the kernel killed it", &lab, &before, &running.socket());
}

/// Script that runs the program with a disk of its own at /run/bywash, of 64 KiB.
const OWN_DISK: &str = "mkdir -p /run/bywash && mount -t tmpfs -o size=64k,mode=755 none /run/bywash && exec \"$@\"";
/// Script that fills it.
const FILL: &str = "cat /dev/zero > /run/bywash/fill 2>/dev/null; test -s /run/bywash/fill";

/// Without room for the journal no setting is changed: a start or a reload fails, and says why.
#[test]
fn a_full_disk() {
    require!(require_lab(), has_tool("unshare"), has_tool("nsenter"));
    let lab = Topology::router_n(3).unwrap();
    let before = Snapshot::of(lab.r()).unwrap();
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("bywash.toml");
    let write = |names: &[&str]| {
        let port = |name: &&str| format!("[[port]]\ninterface = \"{name}\"\nlevel = \"user\"\nbusy_poll = 64\n");
        fs::write(&file, format!("[pool]\nreserve = 40000\n{}", names.iter().map(port).collect::<String>())).unwrap();
    };
    write(&["r0", "r1"]);
    let arguments = ["--config", file.to_str().unwrap()];
    let unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c"];
    let full = OWN_DISK.replace("&& exec", &format!("&& {{ {FILL}; }} && exec"));
    let mut running = Bywash::spawn_by(&[&unshare[..], &[full.as_str(), "sh"]].concat(), lab.r(), &arguments);
    let status = running.process.wait(PATIENCE).unwrap();
    assert!(!status.success() && running.log().contains("No space left"), "{}", running.log());
    let differences = before.differences(&Snapshot::of(lab.r()).unwrap());
    assert!(differences.is_empty(), "{differences:#?}");
    forwards(&lab, "a start on a full disk");

    let mut running = Bywash::spawn_by(&[&unshare[..], &[OWN_DISK, "sh"]].concat(), lab.r(), &arguments);
    running.process.wait_for_output("forwarding;", PATIENCE).unwrap();
    let pid = running.process.pid().to_string();
    let inside = |script: &str| run_host(&["nsenter", "--target", &pid, "--mount", "sh", "-c", script]).unwrap();
    inside(FILL);
    write(&["r0", "r1", "r2"]);
    let socket = running.socket();
    let again = || bywash(lab.r(), &["reload", "--socket", socket.to_str().unwrap()]);
    let done = again();
    assert!(!done.status.success() && done.stderr.contains("No space left"), "{done:?}");
    forwards(&lab, "a reload on a full disk");
    inside("rm /run/bywash/fill");
    assert!(again().status.success());
    inside(FILL);
    forwards(&lab, "a reload");
    // Changed settings are put back, whether the journal can be written or not.
    ends_clean(running, &lab, &before, "a stop on a full disk");
}

/// Netlink calls fail at random as if the kernel were short of memory: a start may fail, and a program that runs
/// follows the kernel's tables nevertheless.
#[test]
fn netlink_errors_at_random() {
    require!(require_lab(), of_this_build(), has_tool("nft"));
    let lab = Topology::router().unwrap();
    for one_of in [3, 7, 20, 50] {
        tried(&lab, &["env", &format!("BYWASH_FAULT_NETLINK={one_of}")], &format!("1 of {one_of} calls fails"));
    }
    let before = Snapshot::of(lab.r()).unwrap();
    for one_of in [40, 100] {
        let by = ["env", &format!("BYWASH_FAULT_NETLINK={one_of}")];
        let mut running = Bywash::spawn_by(&by, lab.r(), &["--level", "user", "r0", "r1"]);
        running
            .process
            .wait_for_output("forwarding;", PATIENCE)
            .unwrap_or_else(|why| panic!("{why}: {}", running.log()));
        for round in 0..20 {
            let verb = if round % 2 == 0 { "add" } else { "del" };
            let lines = (0..200).map(|n| format!("route {verb} 45.0.{n}.0/24 via 10.0.2.2\n"));
            lab.r().ip_batch(&lines.collect::<String>()).unwrap();
            let rules = "table ip t { chain f { type filter hook forward priority 0; tcp dport 9 drop; }; }";
            lab.r().run(&["nft", &if verb == "add" { rules.to_owned() } else { "delete table ip t".into() }]).unwrap();
            forwards(&lab, "netlink errors");
        }
        running.wait("all that was not reported to be read again", |running| {
            let rows = running.show(&["placement"]);
            let free = |row: &serde_json::Value| row["kept"] == json!([]) && row["policies"]["pending"] == false;
            rows.as_array().unwrap().iter().all(free)
        });
        lab.r().ip(&["route", "add", "46.0.0.0/8", "via", "10.0.2.2"]).unwrap();
        running.wait("the tables to equal the kernel's", |running| {
            let socket = running.socket();
            let shown = bywash(running.namespace(), &["show", "--json", "drift", "--socket", socket.to_str().unwrap()]);
            serde_json::from_str::<serde_json::Value>(&shown.stdout).is_ok_and(|drift| drift == json!([]))
        });
        lab.r().ip(&["route", "del", "46.0.0.0/8"]).unwrap();
        ends_clean(running, &lab, &before, "netlink errors");
    }
}

/// A process that is stopped for ten seconds, as by a debugger or a machine that sleeps, goes on as before. Meanwhile
/// the driver forwards what it can.
#[test]
fn a_process_that_is_stopped() {
    require!(require_lab());
    let lab = Topology::builder().static_neighbours(true).host_offload("gro", true).host_offload("tx", false);
    let lab = lab.build().unwrap();
    for level in ["user", "driver"] {
        let mut running = Bywash::run(lab.r(), &["--level", level, "r0", "r1"]);
        forwards(&lab, "a start");
        running.process.signal(Signal::STOP).unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            // The driver answers, however late on a busy machine.
            let wait = if level == "driver" { PATIENCE } else { Duration::from_millis(200) };
            let ping = Ping::to(lab.b().v4).count(5).interval(Duration::from_millis(100)).wait(wait);
            let got = ping.run(&lab.a().ns).unwrap().received;
            assert!(level != "driver" || got == 5, "the driver forwarded {got} of 5");
            // More than the netlink sockets hold in the end.
            let lines = (0..2_000).map(|n| format!("route replace 45.{}.{}.0/24 via 10.0.2.2\n", n >> 8, n & 255));
            lab.r().ip_batch(&lines.collect::<String>()).unwrap();
        }
        running.process.signal(Signal::CONT).unwrap();
        running.wait("health", |running| {
            let socket = running.socket();
            bywash(running.namespace(), &["show", "health", "--socket", socket.to_str().unwrap()]).status.success()
        });
        running.wait("the tables to equal the kernel's", |running| running.show(&["drift"]) == json!([]));
        forwards(&lab, "it was stopped");
        let levels = running.show(&["placement"]);
        assert!(levels.as_array().unwrap().iter().all(|row| row["level"] == level), "{levels}");
        running.stop();
    }
}

/// Tests that disturb everything else on the machine are run on request.
fn may_disturb() -> Probe {
    match std::env::var_os("BYWASH_TEST_MACHINE") {
        Some(_) => Ok(()),
        None => Err(Reason::new("it changes the clock or the CPUs of the whole machine: BYWASH_TEST_MACHINE=1")),
    }
}

/// Sets the clock of the machine forward or back.
fn step_clock(seconds: i64) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    rustix::time::clock_settime(
        rustix::time::ClockId::Realtime,
        rustix::time::Timespec { tv_sec: now.tv_sec + seconds, ..now },
    )
    .unwrap();
}

#[test]
fn a_clock_that_is_set() {
    require!(require_lab(), may_disturb());
    let _alone = alone();
    let lab = Topology::router().unwrap();
    let running = Bywash::run(lab.r(), &lab.router_interfaces());
    for seconds in [60, -120, 60] {
        step_clock(seconds);
        forwards(&lab, "a step of the clock");
        lab.r().ip(&["route", "replace", "46.0.0.0/8", "via", "10.0.2.2"]).unwrap();
        running.wait("the tables to equal the kernel's", |running| running.show(&["drift"]) == json!([]));
    }
    running.stop();
}

/// CPU that can be taken offline. Dropping it brings it back.
struct Offline(PathBuf);

impl Drop for Offline {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, "1");
    }
}

fn has_spare_cpu() -> Probe {
    match Path::new("/sys/devices/system/cpu/cpu1/online").exists() {
        true => Ok(()),
        false => Err(Reason::new("no CPU can be taken offline")),
    }
}

/// The worker of a CPU that goes is moved by the kernel, and forwards there.
#[test]
fn a_cpu_that_goes() {
    require!(require_lab(), may_disturb(), has_spare_cpu());
    let _alone = alone();
    let lab = Topology::router().unwrap();
    let running = Bywash::run(lab.r(), &["--workers", "1", "--cpus", "1", "r0", "r1"]);
    forwards(&lab, "a start");
    let gone = Offline("/sys/devices/system/cpu/cpu1/online".into());
    fs::write(&gone.0, "0").unwrap();
    forwards(&lab, "a CPU that goes");
    lab.r().ip(&["route", "replace", "46.0.0.0/8", "via", "10.0.2.2"]).unwrap();
    running.wait("the tables to equal the kernel's", |running| running.show(&["drift"]) == json!([]));
    drop(gone);
    forwards(&lab, "a CPU that comes back");
    running.stop();
}
