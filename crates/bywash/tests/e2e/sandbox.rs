//! The sandbox: every thread has only the documented privileges, and the program forwards with those of the systemd
//! unit.

use crate::harness::{Bywash, PATIENCE, program};
use bywash_lab::{Ping, Reason, Topology, has_tool, require, require_lab, run_host, wait_until};
use rustix::process::Signal;
use std::path::{Path, PathBuf};

/// Highest exposure level that `systemd-analyze security` may report for the unit.
const EXPOSURE: f64 = 2.5;

fn unit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd/bywash.service")
}

#[test]
fn the_unit_is_tight() {
    require!(has_tool("systemd-analyze"));
    let unit = unit();
    let out =
        run_host(&["systemd-analyze", "security", "--offline=true", "--no-pager", unit.to_str().unwrap()]).unwrap();
    let line = out.stdout.lines().find(|line| line.contains("Overall exposure level")).unwrap();
    let score = line.split(' ').find_map(|word| word.parse::<f64>().ok()).unwrap();
    assert!(score <= EXPOSURE, "{line}");
}

/// In systemd 252 neither is part of `@system-service`: the program's own sandbox would be refused.
#[test]
fn the_unit_allows_what_makes_the_sandbox() {
    let text = std::fs::read_to_string(unit()).unwrap();
    let allowed: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("SystemCallFilter="))
        .flat_map(str::split_whitespace)
        .collect();
    for call in ["seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self", "bpf"] {
        assert!(allowed.contains(&call), "{call}: {allowed:?}");
    }
}

#[test]
fn the_capabilities_of_the_unit_suffice() {
    require!(require_lab());
    require!(has_tool("setpriv"));
    let text = std::fs::read_to_string(unit()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let names: Vec<String> = line.split(' ').map(|name| name.trim_start_matches("CAP_").to_lowercase()).collect();
    let only = format!("-all,+{}", names.join(",+"));
    let lab = Topology::router().unwrap();
    let program = program();
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let socket = socket.to_str().unwrap();
    // The service gives the socket to a group that it is a member of, which needs no privilege.
    let confined = ["setpriv", "--groups", "65534", "--no-new-privs", "--inh-caps=-all", "--bounding-set", &only];
    let config = place.path().join("bywash.toml");
    let text = format!("[api]\nsocket = \"{socket}\"\ngroup = \"65534\"\n[[port]]\ninterface = \"r0\"\n");
    std::fs::write(&config, text + "[[port]]\ninterface = \"r1\"\n").unwrap();
    let run = [program.as_str(), "run", "--config", config.to_str().unwrap()];
    let mut process = lab.r().spawn(&[&confined[..], &run].concat()).unwrap();
    process.wait_for_output("forwarding;", PATIENCE).unwrap();
    assert_eq!(Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received, 3);
    assert_eq!(std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(socket).unwrap()), 65534);
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let bits = |name: &str| u64::from_str_radix(&field(name), 16).unwrap();
    assert_eq!(bits("CapBnd:").count_ones() as usize, names.len(), "{status}");
    assert_eq!(field("NoNewPrivs:"), "1");
    // The two processes together have all capabilities that the unit gives, and neither has all.
    let shown = [program.as_str(), "show", "sandbox", "--json", "--socket", socket];
    let shown: serde_json::Value = serde_json::from_str(&lab.r().run(&shown).unwrap().stdout).unwrap();
    assert_eq!(shown["state"], "on", "{shown}");
    let broker = of_threads(shown["broker"].as_u64().unwrap() as u32, "CapEff:");
    let broker = u64::from_str_radix(&broker[0], 16).unwrap();
    assert_eq!(broker | bits("CapEff:"), bits("CapBnd:"), "{status}");
    assert!(broker != bits("CapBnd:") && bits("CapEff:") != bits("CapBnd:"), "{status}");
    assert!(!process.output().contains("ERROR"), "{}", process.output());
    assert!(process.terminate(PATIENCE).unwrap().success(), "{}", process.output());
}

/// Starts a program under a profile of seccomp in the format of container runtimes.
const CONFINE: &str = "
import ctypes, json, os, sys
lib = ctypes.CDLL('libseccomp.so.2')
lib.seccomp_init.restype = ctypes.c_void_p
profile = json.load(open(sys.argv[1]))
refused = 0x00050000 | profile['defaultErrnoRet']
rules = ctypes.c_void_p(lib.seccomp_init(ctypes.c_uint32(refused)))
for rule in profile['syscalls']:
    for name in rule['names']:
        number = lib.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            lib.seccomp_rule_add_array(rules, ctypes.c_uint32(0x7fff0000), number, 0, None)
assert lib.seccomp_load(rules) == 0
os.execv(sys.argv[2], sys.argv[2:])
";

fn of_kubernetes(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/kubernetes").join(file)
}

fn has_seccomp_library() -> Result<(), Reason> {
    match run_host(&["python3", "-c", "import ctypes; ctypes.CDLL('libseccomp.so.2')"]) {
        Ok(_) => Ok(()),
        Err(_) => Err(Reason::new("there is no libseccomp.so.2")),
    }
}

#[test]
fn the_system_calls_of_the_pod_suffice() {
    require!(require_lab(), has_tool("python3"), has_seccomp_library());
    let lab = Topology::router().unwrap();
    let place = tempfile::tempdir().unwrap();
    let socket = place.path().join("socket");
    let (program, profile, socket) = (program(), of_kubernetes("seccomp.json"), socket.to_str().unwrap());
    let confined = ["python3", "-c", CONFINE, profile.to_str().unwrap(), program.as_str()];
    let run = ["run", "--socket", socket, "--level", "user", "r0", "r1"];
    let mut process = lab.r().spawn(&[&confined[..], &run].concat()).unwrap();
    process.wait_for_output("forwarding;", PATIENCE).unwrap();
    assert_eq!(Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received, 3);
    // The probes run in the container, too.
    let probe = lab.r().run(&[&confined[..], &["show", "health", "--socket", socket]].concat()).unwrap();
    assert_eq!(probe.stdout.lines().next(), Some("ok"), "{}", probe.stdout);
    // Whatever the instance may call in its sandbox, the pod may.
    let shown = [program.as_str(), "show", "sandbox", "--json", "--socket", socket];
    let shown: serde_json::Value = serde_json::from_str(&lab.r().run(&shown).unwrap().stdout).unwrap();
    assert!(shown["state"] == "on" && shown["user"] != 0, "{shown}");
    let profile: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(profile).unwrap()).unwrap();
    let allowed = profile["syscalls"][0]["names"].as_array().unwrap();
    let calls = shown["system_calls"].as_array().unwrap();
    assert!(calls.len() > 50 && calls.iter().all(|call| allowed.contains(call)), "{shown}");
    for call in ["mount", "ptrace", "setns", "unshare", "init_module", "kexec_load", "fork", "keyctl"] {
        assert!(!allowed.contains(&call.into()), "{call}");
    }
    assert!(!process.output().contains("ERROR"), "{}", process.output());
    assert!(process.terminate(PATIENCE).unwrap().success(), "{}", process.output());
}

#[test]
fn the_pod_exposes_nothing_and_is_not_throttled() {
    let text = std::fs::read_to_string(of_kubernetes("bywash.yaml")).unwrap();
    let code: Vec<&str> = text.lines().map(|line| line.split('#').next().unwrap().trim()).collect();
    let value = |key: &str| code.iter().find_map(|line| line.strip_prefix(key)).unwrap_or_default().trim();
    assert_eq!(value("metrics ="), "\"127.0.0.1:9469\"");
    assert!(value("image:").contains("@sha256:"), "an image by its digest");
    assert!(value("seccompProfile:").contains("Localhost"));
    assert!(!value("limits:").contains("cpu"));
    for word in ["containerPort", "hostPort", "prometheus.io", "Unconfined", "privileged: true"] {
        assert!(!code.iter().any(|line| line.contains(word)), "{word}");
    }
}

/// Returns the value of a field of /proc/PID/task/TID/status for every thread of a process.
fn of_threads(pid: u32, field: &str) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("status")).ok());
    let value = |status: String| status.lines().find_map(|line| line.strip_prefix(field)).map(|v| v.trim().to_owned());
    status.filter_map(value).collect()
}

#[test]
fn every_thread_has_what_is_documented_and_no_more() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    assert_eq!(Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received, 3);
    let shown = bywash.show(&["sandbox"]);
    assert_eq!(
        (&shown["state"], &shown["no_new_privs"], &shown["seccomp"]),
        (&"on".into(), &true.into(), &true.into())
    );
    let names: Vec<&str> =
        shown["capabilities"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    // The numbers are those of linux/capability.h.
    let number = |name: &&str| match *name {
        "CAP_NET_ADMIN" => 12,
        "CAP_NET_RAW" => 13,
        "CAP_IPC_LOCK" => 14,
        other => panic!("{other} is not documented"),
    };
    let mask = names.iter().map(number).fold(0u64, |mask, bit| mask | 1 << bit);
    assert_eq!(names.len(), 3, "{names:?}");
    let guide =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/user-guide.md")).unwrap();
    for name in &names {
        assert!(guide.contains(&format!("| {name} |")), "{name} is not in the user guide");
    }
    let pid = bywash.process.pid();
    let expected = [("CapEff:", format!("{mask:016x}")), ("CapPrm:", format!("{mask:016x}"))];
    let others = [("CapBnd:", format!("{mask:016x}")), ("CapAmb:", "0".repeat(16)), ("CapInh:", "0".repeat(16))];
    let closed = [("NoNewPrivs:", "1".to_owned()), ("Seccomp:", "2".to_owned())];
    for (field, value) in expected.into_iter().chain(others).chain(closed) {
        let values = of_threads(pid, field);
        assert!(values.len() > 2 && values.iter().all(|v| *v == value), "{field} {values:?}, not {value}");
    }
    // The instance is not root, and no file is its own; the broker is root.
    let user = shown["user"].as_u64().unwrap();
    let [own, roots] = [user, 0].map(|user| [user; 4].map(|id| id.to_string()).join("\t"));
    assert!((60706..=61183).contains(&user), "{shown}");
    for field in ["Uid:", "Gid:"] {
        assert!(of_threads(pid, field).iter().all(|value| *value == own), "{field}");
        assert_eq!(of_threads(shown["broker"].as_u64().unwrap() as u32, field), [roots.as_str()], "{field}");
    }
    assert!(of_threads(pid, "Groups:").iter().all(String::is_empty));
    let text = bywash.text(&["sandbox"]);
    assert!(text.starts_with("sandbox: on\n") && text.contains("capabilities: CAP_IPC_LOCK CAP_NET"), "{text}");
    assert!(text.contains(" sendto ") && !text.contains("execve"), "{text}");
    assert!(shown["landlock"].as_bool().unwrap(), "{shown}");
    assert!(text.contains("could still\n  read, drop, change and forge every packet"), "{text}");
    bywash.stop();

    let bywash = Bywash::run(lab.r(), &["--no-sandbox", "r0", "r1"]);
    let shown = bywash.show(&["sandbox"]);
    assert_eq!((&shown["state"], &shown["reason"]), (&"off".into(), &"turned off, as configured".into()), "{shown}");
    assert!(of_threads(bywash.process.pid(), "NoNewPrivs:").iter().all(|value| value == "0"));
    bywash.stop();
}

/// The instance can load no BPF program. A second process loads them, which has nothing else, and ends with the
/// instance.
#[test]
fn programs_are_loaded_by_a_process_that_can_do_nothing_else() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let mut bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let shown = bywash.show(&["sandbox"]);
    let broker = shown["broker"].as_u64().unwrap() as u32;
    assert!(!bywash.text(&["sandbox"]).contains("memory of the kernel"), "{shown}");
    // CAP_NET_ADMIN, CAP_PERFMON and CAP_BPF.
    let mask = format!("{:016x}", 1u64 << 12 | 1 << 38 | 1 << 39);
    for (field, value) in [("CapEff:", mask.as_str()), ("CapPrm:", &mask), ("NoNewPrivs:", "1"), ("Seccomp:", "2")] {
        assert_eq!(of_threads(broker, field), [value], "{field}");
    }
    let sockets = || {
        let all = std::fs::read_dir(format!("/proc/{broker}/fd")).unwrap();
        let to = all.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        to.filter(|to| to.to_string_lossy().starts_with("socket:")).collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(sockets().len(), 1, "one socket, to the instance: {:?}", sockets());
    bywash.process.kill().unwrap();
    let gone =
        || !Path::new(&format!("/proc/{broker}/status")).exists() || of_threads(broker, "State:") == ["Z (zombie)"];
    wait_until("the broker to end", PATIENCE, gone).unwrap();
    assert_eq!(Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received, 3);
}

/// Without its broker an instance forwards, and says what it can no longer do.
#[test]
fn an_instance_outlives_its_broker() {
    require!(require_lab());
    let lab = Topology::router_n(3).unwrap();
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("bywash.toml");
    let ports = |names: &[&str]| {
        let port = |name: &&str| format!("[[port]]\ninterface = \"{name}\"\nlevel = \"user\"\nbusy_poll = 64\n");
        let text = format!("[pool]\nreserve = 40000\n{}", names.iter().map(port).collect::<String>());
        std::fs::write(&config, text).unwrap();
    };
    ports(&["r0", "r1"]);
    let mut bywash = Bywash::run_as_is(lab.r(), &["--config", config.to_str().unwrap()]);
    let broker = bywash.show(&["sandbox"])["broker"].as_u64().unwrap() as i32;
    // The signals that a service manager sends to every process of a service do not end it.
    let broker = rustix::process::Pid::from_raw(broker).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        rustix::process::kill_process(broker, signal).unwrap();
    }
    ports(&["r0", "r1", "r2"]);
    assert!(reload(&bywash).contains("r2"));
    ports(&["r0", "r1"]);
    assert!(reload(&bywash).contains("r2"));
    rustix::process::kill_process(broker, Signal::KILL).unwrap();
    bywash.wait("the end of the broker to be noticed", |bywash| bywash.show(&["sandbox"])["broker_ended"] == true);
    assert!(bywash.text(&["sandbox"]).contains(&format!("broker: pid {broker} has ended")), "{}", bywash.log());
    let health = crate::harness::bywash(lab.r(), &["show", "health", "--socket", bywash.socket().to_str().unwrap()]);
    assert!(!health.status.success() && health.stderr.contains("the broker (pid"), "{health:?}");
    bywash.wait("a warning", |bywash| bywash.log().contains("has ended: forwarding continues, but ports cannot be"));
    assert_eq!(Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received, 3);
    ports(&["r0", "r1", "r2"]);
    reload(&bywash);
    // An injector is made for a port; the maps and programs of the ports are there.
    assert_eq!(Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received, 3);
    // The journal was the broker's, and outlives both.
    assert!(!bywash.signalled(Signal::TERM).success());
    assert!(bywash.log().contains("run `bywash restore`"), "{}", bywash.log());
    let restored = crate::harness::bywash(lab.r(), &["restore"]);
    assert!(restored.stdout.contains("restored") && !restored.stdout.contains("nothing"), "{restored:?}");
    let journal = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(lab.r().path()).unwrap());
    let left: Vec<String> = std::fs::read_dir("/run/bywash").unwrap().map(journal).collect();
    assert!(!left.iter().any(|name| name.contains(&inode.to_string())), "{left:?}");
}

/// Busy polling needs settings below /sys, which a unit with ProtectKernelTunables=yes makes read-only.
#[test]
fn busy_polling_with_a_read_only_sys_names_the_setting_of_the_unit() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[[port]]\ninterface = \"r0\"\nbusy_poll = 64\n").unwrap();
    let by = ["sh", "-c", "mount -o remount,bind,ro /sys && exec \"$@\"", "sh"];
    let mut bywash = Bywash::spawn_by(&by, lab.r(), &["--config", file.path().to_str().unwrap()]);
    assert_eq!(bywash.process.wait(PATIENCE).unwrap().code(), Some(1), "{}", bywash.log());
    assert!(bywash.log().contains("ProtectKernelTunables=no"), "{}", bywash.log());
    assert!(bywash.log().contains("Read-only file system"), "{}", bywash.log());
}

/// An instance that has changed no settings has none to restore, with or without its broker.
#[test]
fn without_its_broker_an_instance_that_changed_nothing_ends_well() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let mut bywash = Bywash::run(lab.r(), &["r0", "r1"]);
    let broker = bywash.show(&["sandbox"])["broker"].as_u64().unwrap() as i32;
    rustix::process::kill_process(rustix::process::Pid::from_raw(broker).unwrap(), Signal::KILL).unwrap();
    bywash.wait("the end of the broker to be noticed", |bywash| bywash.show(&["sandbox"])["broker_ended"] == true);
    let status = bywash.signalled(Signal::TERM);
    assert!(status.success() && !bywash.log().contains("bywash restore"), "{}", bywash.log());
    let restored = crate::harness::bywash(lab.r(), &["restore"]).stdout;
    // Other tests may have left journals of namespaces that are gone.
    assert!(restored.ends_with("nothing to restore\n") && !restored.contains("their instance runs"), "{restored}");
}

/// A configuration that the program can read at the start, but not in the sandbox, is reported: root in the sandbox
/// lacks the capability to read files of others.
#[test]
fn an_unreadable_configuration_is_reported() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("bywash.toml");
    let text = "[[port]]\ninterface = \"r0\"\nlevel = \"user\"\n[[port]]\ninterface = \"r1\"\nlevel = \"user\"\n";
    std::fs::write(&config, text).unwrap();
    // The directory belongs to another user: root needs a capability to enter it.
    let modes =
        |mode| std::fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    std::os::unix::fs::chown(place.path(), Some(65534), Some(65534)).unwrap();
    modes(0o700);
    let bywash = Bywash::run_as_is(lab.r(), &["--config", config.to_str().unwrap()]);
    assert!(bywash.log().contains("in the sandbox the configuration cannot be read again"), "{}", bywash.log());
    let said = reload(&bywash);
    assert!(said.contains("Permission denied"), "{said}");
    modes(0o755);
    assert!(reload(&bywash).contains("nothing to change"));
    bywash.stop();
}

/// Files outside the directories that are named at the start cannot be opened, though their mode bits let root; files
/// that are replaced within these directories can.
#[test]
fn other_files_than_those_of_the_configuration_cannot_be_opened() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    for directory in ["config", "captures", "else"] {
        std::fs::create_dir(at(directory)).unwrap();
    }
    let frames = [vec![0; 60]];
    bywash_port::pcap::CaptureFile::of_frames(at("captures/a.pcap"), &frames).unwrap();
    bywash_port::pcap::CaptureFile::of_frames(at("else/b.pcap"), &frames).unwrap();
    let with = |name: &str| {
        let port = |name: &str| format!("[[port]]\ninterface = \"{name}\"\n");
        let file = at(name);
        let capture = format!("[[port]]\nkind = \"pcap\"\nname = \"c\"\nfile = \"{}\"\n", file.display());
        std::fs::write(at("config/bywash.toml"), port("r0") + &port("r1") + &capture).unwrap();
    };
    with("captures/a.pcap");
    let bywash = Bywash::run_as_is(lab.r(), &["--config", at("config/bywash.toml").to_str().unwrap()]);
    let shown = bywash.show(&["sandbox"]);
    let listed = |key: &str, path: &Path| shown[key].as_array().unwrap().contains(&path.to_str().unwrap().into());
    assert!(listed("readable", &at("config")) && listed("readable", &at("captures")), "{shown}");
    assert!(!listed("readable", Path::new("/etc")), "{shown}");
    assert_eq!(shown["writable"], serde_json::json!(["/dev/net/tun"]), "{shown}");
    assert!(listed("made", Path::new("/run/bywash")), "{shown}");
    with("else/b.pcap");
    let said = reload(&bywash);
    assert!(said.contains("Permission denied") && said.contains("b.pcap"), "{said}");
    std::fs::rename(at("else/b.pcap"), at("captures/b.pcap")).unwrap();
    with("captures/b.pcap");
    let said = reload(&bywash);
    assert!(said.contains("port c"), "{said}");
    assert_eq!(Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received, 3);
    bywash.stop();
}

/// The broker opens, makes and removes files of root for the instance, and keeps its journal.
#[test]
fn files_of_root_are_opened_made_and_removed_by_the_broker() {
    require!(require_lab());
    let lab = Topology::router_n(3).unwrap();
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let modes = |path: &Path, mode| {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    for directory in ["config", "recordings"] {
        std::fs::create_dir(at(directory)).unwrap();
        modes(&at(directory), 0o700);
    }
    let config = at("config/bywash.toml");
    let with = |more: &str| {
        let ports = ["r0", "r1"].map(|name| format!("[[port]]\ninterface = \"{name}\"\nbusy_poll = 64\n")).concat();
        let recording = format!(
            "[[port]]\nkind = \"pcap\"\nname = \"c\"\nrecord = \"{}\"\n",
            at("recordings/first.pcap").display()
        );
        std::fs::write(&config, "[pool]\nreserve = 40000\n".to_owned() + &ports + &recording + more).unwrap();
        modes(&config, 0o600);
    };
    with("");
    let setting = |name: &str| lab.r().run(&["cat", &format!("/sys/class/net/{name}/napi_defer_hard_irqs")]).unwrap();
    let before = setting("r2").stdout;
    let bywash = Bywash::run_as_is(lab.r(), &["--config", config.to_str().unwrap()]);
    assert!(at("recordings/first.pcap").exists());
    // Only root finds the sockets from now on.
    modes(bywash.socket().parent().unwrap(), 0o700);
    assert!(reload(&bywash).contains("nothing to change"), "the file is root's alone");
    // A port that is added later: another recording, and settings of another interface.
    let other = at("recordings/second.pcap");
    let added = format!("[[port]]\nkind = \"pcap\"\nname = \"d\"\nrecord = \"{}\"\n", other.display());
    with(&format!("{added}[[port]]\ninterface = \"r2\"\nbusy_poll = 64\n"));
    let said = reload(&bywash);
    assert!(said.contains("port r2") && other.exists(), "{said}");
    assert_ne!(setting("r2").stdout, before, "{}", bywash.log());
    let owner = |path: &Path| std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(path).unwrap());
    assert_eq!(owner(&other), 0);
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(lab.r().path()).unwrap()).to_string();
    let journals = || {
        let all = std::fs::read_dir("/run/bywash").unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.to_string_lossy().contains(&inode)).collect::<Vec<_>>()
    };
    assert!(journals().len() == 2 && journals().iter().all(|path| owner(path) == 0), "{:?}", journals());
    assert_eq!(Ping::to(lab.b().v4).count(3).run(&lab.a().ns).unwrap().received, 3);
    let socket = bywash.socket();
    bywash.stop();
    assert!(!socket.exists() && journals().is_empty(), "{:?}", journals());
    assert_eq!(setting("r2").stdout, before);
}

fn reload(bywash: &Bywash<'_>) -> String {
    let socket = bywash.socket();
    let out = crate::harness::bywash(bywash.namespace(), &["reload", "--socket", socket.to_str().unwrap()]);
    out.stdout + &out.stderr
}
