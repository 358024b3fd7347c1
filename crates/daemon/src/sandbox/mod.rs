//! Sandbox of a running instance: once its sockets exist, it gives up being root, all capabilities but those it needs,
//! the ways to gain new ones, all files but those it opens, and all system calls but those it makes. A second process,
//! the [`broker`], keeps more privileges and serves few requests.
//!
//! Entering happens while there is only one thread: capabilities, rules and filters are per thread, and later threads
//! inherit them.

mod broker;
mod calls;
mod files;
mod left;
mod user;

use anyhow::Context as _;
use bywash_api as api;
use bywash_config::{Config, NpeEngine, PortKind, Sandbox};
use files::{Paths, Rules};
use rustix::io::Errno;
use rustix::process::Uid;
use rustix::thread::{self, CapabilitySet, CapabilitySets};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Capabilities that a running instance keeps.
const KEPT: CapabilitySet = CapabilitySet::NET_ADMIN.union(CapabilitySet::NET_RAW).union(CapabilitySet::IPC_LOCK);
/// Capabilities that it also keeps if it has no broker.
const LOADS: CapabilitySet = CapabilitySet::BPF.union(CapabilitySet::PERFMON);
/// First kernel on which a process without CAP_BPF can use its BPF objects even where unprivileged BPF is disabled.
const USES_OBJECTS: (u32, u32) = (5, 19);

/// Set if a reload may load code: in a build with DPDK, the first port of kind `dpdk` makes DPDK load its drivers.
const LOADS_CODE: bool = cfg!(feature = "dpdk");

/// Result of [`enter`].
#[derive(Debug, Default)]
struct Entered {
    /// Set if it took effect, at least in part.
    any: bool,
    /// Reasons for what is missing.
    reason: String,
    /// Set if threads may count their own events.
    counters: bool,
    /// Pid of the broker; `None` if this process may make BPF objects itself.
    broker: Option<u32>,
    /// Capabilities that are kept.
    kept: Option<CapabilitySet>,
    /// Paths of the files that may be opened; `None` if that is not restricted.
    paths: Option<Paths>,
    /// Paths at which the broker makes files.
    made: BTreeSet<PathBuf>,
}

static ENTERED: OnceLock<Entered> = OnceLock::new();

pub use user::started_as;

/// Enters the sandbox, if configured. Returns whether it did, at least in part. Logs what could not be given up.
/// `journal` is the path of the instance's journal.
pub fn enter(config: &Config, journal: &Path) -> bool {
    let mut entered = Entered { counters: config.workers.counters, ..Entered::default() };
    let mut reasons = vec![];
    if config.sandbox == Sandbox::Off {
        reasons.push("turned off, as configured".into());
    } else if config.ports.iter().any(|port| port.kind == PortKind::Dpdk) {
        reasons.push("DPDK drivers need privileges that it takes away".into());
        tracing::warn!("the sandbox is off: {}", reasons[0]);
    } else if config.ports.iter().filter_map(|port| port.npe.as_ref()).any(|npe| npe.engine == NpeEngine::Rtl) {
        reasons.push("the simulated engine is a child process, which Bywash must be able to kill".into());
        tracing::warn!("the sandbox is off: {}", reasons[0]);
    } else {
        let files = config.files();
        let mut paths = Paths::of(&files, journal.parent().unwrap_or(journal));
        let broker = broker::start(config, &files, &paths, journal);
        entered.broker = broker.as_ref().ok().copied();
        // Without a broker it acts as root itself.
        let user = entered.broker.and_then(|_| user::of(journal));
        if entered.broker.is_some() {
            entered.made = std::mem::take(&mut paths.written);
            paths.written = files::of_the_instance();
        }
        let kept = kept(entered.broker.is_some(), entered.counters);
        entered.kept = Some(kept);
        // Drop capabilities first: the filter refuses the calls that it takes. Some paths take them.
        let rules = Rules::prepare(&paths);
        let dropped = drop_capabilities(kept, user);
        let restricted = rules.and_then(Rules::enforce);
        let filtered = filter_calls(entered.counters, entered.broker.is_some());
        entered.any = dropped.is_ok() || restricted.is_ok() || filtered.is_ok();
        entered.paths = restricted.is_ok().then_some(paths);
        for (what, done) in [
            (
                "the broker could not be started, so BPF programs can be loaded and local services reached",
                broker.map(drop),
            ),
            ("cannot drop privileges", dropped),
            ("cannot restrict file access", restricted),
            ("cannot filter system calls", filtered),
        ] {
            if let Err(why) = done {
                tracing::warn!("the sandbox is incomplete: {what}: {why:#}");
                reasons.push(format!("{what}: {why:#}"));
            }
        }
    }
    entered.reason = reasons.join("; ");
    let any = entered.any;
    // Set only once per process.
    let _ = ENTERED.set(entered);
    any
}

/// Runs the second process of an instance in the sandbox, which acts for it with more privileges.
///
/// # Errors
/// If it was not started by an instance.
pub fn broker() -> anyhow::Result<()> {
    broker::run()
}

/// Returns what no longer works because the broker has ended; `None` if it runs, or if there was none.
pub fn without_broker() -> Option<String> {
    let pid = ENTERED.get()?.broker?;
    bywash_port::broker::ended().then(|| {
        format!(
            "the broker (pid {pid}) has ended: forwarding continues, but ports cannot be added, another process cannot \
             take over, and changed interface settings are not restored; restart bywash"
        )
    })
}

/// Returns whether this process is in the sandbox, at least in part.
pub fn entered() -> bool {
    ENTERED.get().is_some_and(|entered| entered.any)
}

/// Adds the sandbox as a possible cause to a permission error.
pub fn explain(why: anyhow::Error, sandboxed: bool) -> anyhow::Error {
    let denied = |cause: &(dyn std::error::Error + 'static)| {
        let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        io == Some(std::io::ErrorKind::PermissionDenied) || cause.downcast_ref::<Errno>() == Some(&Errno::ACCESS)
    };
    if sandboxed && why.chain().any(denied) {
        return why.context(
            "the sandbox may be the cause: it allows only the files that `bywash show sandbox` lists, and only if \
             their mode bits allow access to its user or root; restart bywash to use others, or run it with \
             --no-sandbox",
        );
    }
    why
}

/// Returns the capabilities that are kept, with a broker or without, by a program that counts events or not.
fn kept(broker: bool, counters: bool) -> CapabilitySet {
    let release = rustix::system::uname();
    let mut numbers = release.release().to_str().unwrap_or_default().split(['.', '-']).map_while(|n| n.parse().ok());
    let old = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < USES_OBJECTS;
    let mut kept = KEPT;
    if !broker {
        kept |= LOADS;
    }
    if old {
        kept |= CapabilitySet::BPF;
    }
    if counters {
        kept |= CapabilitySet::PERFMON;
    }
    kept
}

/// Makes the calling thread one of `user`. Gives up all its capabilities but these, and the ways to gain others, also
/// if it cannot become one of `user`.
fn drop_capabilities(kept: CapabilitySet, user: Option<Uid>) -> anyhow::Result<()> {
    thread::set_no_new_privs(true).context("no_new_privs")?;
    // Without CAP_SETPCAP the bounding set stays as it is. It has no effect then: with no_new_privs, no executed
    // program can gain capabilities.
    for bit in 0..u64::BITS {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        if kept.contains(one) {
            continue;
        }
        match thread::remove_capability_from_bounding_set(one) {
            // EINVAL: a capability that this kernel does not know.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(Errno::PERM) => break,
            Err(why) => return Err(why).context("bounding set"),
        }
    }
    let changed = user.map_or(Ok(()), user::change).context("another user");
    let had = thread::capabilities(None).context("cannot read capabilities")?;
    let left = had.permitted.intersection(kept);
    let sets = CapabilitySets { effective: left, permitted: left, inheritable: CapabilitySet::empty() };
    thread::set_capabilities(None, sets).context("capset")?;
    thread::clear_ambient_capability_set().context("ambient set")?;
    changed
}

fn filter_calls(counters: bool, broker: bool) -> anyhow::Result<()> {
    let program = calls::filter(counters, broker).context("cannot build the filter")?;
    seccompiler::apply_filter(&program).context("the kernel refuses the filter")
}

/// Returns what all threads of this process may do, as the kernel reports it.
pub fn report() -> api::Sandbox {
    let (mut threads, mut filtered, mut closed) = (0, 0, 0);
    let mut effective = CapabilitySet::empty();
    for status in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        // A thread that has ended meanwhile has no status.
        let Ok(status) = std::fs::read_to_string(status.path().join("status")) else { continue };
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        threads += 1;
        filtered += usize::from(field("Seccomp:") == Some("2"));
        closed += usize::from(field("NoNewPrivs:") == Some("1"));
        let bits = field("CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok()).unwrap_or(u64::MAX);
        effective |= CapabilitySet::from_bits_retain(bits);
    }
    let capabilities: BTreeSet<String> = effective.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    let nothing = Entered::default();
    let entered = ENTERED.get().unwrap_or(&nothing);
    let whole = entered.kept.is_some_and(|kept| kept.contains(effective)) && filtered == threads && closed == threads;
    let state = match (entered.any, entered.reason.as_str()) {
        (true, "") if whole => "on",
        (true, _) => "partly",
        (false, _) => "off",
    };
    let calls = if state == "on" { calls::names(entered.counters, entered.broker.is_some()) } else { vec![] };
    let listed = |paths: &BTreeSet<PathBuf>| paths.iter().map(|path| path.display().to_string()).collect();
    let (read, written) =
        entered.paths.as_ref().map_or_else(Default::default, |p| (listed(&p.read), listed(&p.written)));
    let user = rustix::process::geteuid();
    let left = left::to_do(effective, filtered == threads, entered.broker.is_some(), entered.paths.as_ref(), user);
    api::Sandbox {
        state: state.into(),
        user: user.as_raw().into(),
        reason: (!entered.reason.is_empty()).then(|| entered.reason.clone()),
        threads: threads as u64,
        no_new_privs: closed == threads,
        capabilities: capabilities.into_iter().collect(),
        seccomp: filtered == threads,
        system_calls: calls.into_iter().map(str::to_owned).collect(),
        broker: entered.broker.map(u64::from),
        broker_ended: bywash_port::broker::ended(),
        landlock: entered.paths.is_some(),
        readable: read,
        writable: written,
        made: listed(&entered.made),
        left,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::UdpSocket;
    use std::process::Command;

    /// Runs in a thread of its own: the filter applies only to that thread.
    #[test]
    fn the_filter_lets_through_what_is_needed_and_nothing_else() {
        let within = || {
            filter_calls(false, true).unwrap();
            // Files, sockets, memory, time and threads.
            assert!(std::fs::read_to_string("/proc/self/status").is_ok());
            // Files are made by the broker alone.
            let directory = std::env::temp_dir().join(format!("bywash-sandbox-{}", std::process::id()));
            assert_eq!(std::fs::create_dir(directory).unwrap_err().kind(), ErrorKind::Unsupported);
            assert!(UdpSocket::bind("127.0.0.1:0").is_ok());
            assert_eq!(std::thread::spawn(|| vec![1u8; 1 << 22].len()).join().unwrap(), 1 << 22);
            std::thread::sleep(std::time::Duration::from_millis(1));
            // BPF objects are made by the broker alone.
            assert!(bywash_port::af_xdp::XdpDatapath::load().is_err());
            // No programs, no processes, no other kinds of socket, no other identity.
            let status = Command::new("/bin/true").status();
            assert_eq!(status.map_err(|why| why.kind()).unwrap_err(), ErrorKind::Unsupported);
            let bluetooth = rustix::net::AddressFamily::BLUETOOTH;
            let socket = rustix::net::socket(bluetooth, rustix::net::SocketType::RAW, None);
            assert_eq!(socket.unwrap_err(), Errno::NOSYS);
            assert_eq!(rustix::process::chroot("/").unwrap_err(), Errno::NOSYS);
            assert!(thread::no_new_privs().is_err(), "prctl is for names alone");
        };
        std::thread::spawn(within).join().unwrap();
        assert!(Command::new("/bin/true").status().unwrap().success(), "only that thread's");
    }

    #[test]
    fn every_call_is_named_once() {
        let names = calls::names(false, true);
        assert!(!names.contains(&"perf_event_open") && calls::names(true, true).contains(&"perf_event_open"));
        let unique: BTreeSet<_> = names.iter().collect();
        assert_eq!(unique.len(), names.len());
        assert!(["bpf", "sendto", "futex"].iter().all(|name| unique.contains(name)));
        assert!(["execve", "ptrace", "mount", "setns", "clone3", "kill"].iter().all(|name| !unique.contains(name)));
    }
}
