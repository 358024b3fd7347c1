//! A named network namespace that is deleted when its guard is dropped.

use crate::command::{self, DEFAULT_TIMEOUT, Output};
use crate::error::{Error, Result};
use crate::process::Process;
use crate::sweep;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Directory where iproute2 keeps named namespaces (`NETNS_RUN_DIR`).
pub(crate) const RUN_DIR: &str = "/run/netns";

static NEXT: AtomicU32 = AtomicU32::new(0);
static SWEPT: Once = Once::new();

/// A network namespace named `bw-<pid>-<n>-<hint>`, with `lo` up and IPv6 addresses usable at once (no duplicate
/// address detection, no router advertisements). Deleted on drop, together with the processes in it.
///
/// All methods take `&self` and may be called from several threads.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a namespace. `hint` helps readers of `ip netns`; it must be usable in a file name. Requires
    /// CAP_SYS_ADMIN.
    pub fn new(hint: &str) -> Result<Self> {
        // Once per process: remove what an earlier run left behind when it was killed.
        SWEPT.call_once(|| {
            let _ = sweep::sweep();
        });
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}{}-{number}-{hint}", sweep::PREFIX, std::process::id());
        command::run_host(&["ip", "netns", "add", &name])?;
        let namespace = Self { name };
        namespace.enter(|| -> Result<()> {
            for (key, value) in [
                ("net/ipv6/conf/all/accept_dad", "0"),
                ("net/ipv6/conf/default/accept_dad", "0"),
                ("net/ipv6/conf/all/accept_ra", "0"),
                ("net/ipv6/conf/default/accept_ra", "0"),
                // The range of groups that may open ICMP sockets, as `Ping` does.
                ("net/ipv4/ping_group_range", "0 0"),
            ] {
                write_sysctl(key, value)?;
            }
            Ok(())
        })??;
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// Returns the name, as shown by `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the path of its file, to open and pass to `setns`.
    pub fn path(&self) -> PathBuf {
        [RUN_DIR, &self.name].iter().collect()
    }

    /// Runs a program in the namespace. A failure status is an error, as is running longer than 60 s.
    pub fn run<S: AsRef<OsStr>>(&self, argv: &[S]) -> Result<Output> {
        self.run_with_timeout(argv, DEFAULT_TIMEOUT)
    }

    /// Runs a program like [`Self::run`], with another time limit.
    pub fn run_with_timeout<S: AsRef<OsStr>>(&self, argv: &[S], timeout: Duration) -> Result<Output> {
        self.try_run(argv, timeout)?.ok()
    }

    /// Runs a program in the namespace and returns its output whatever its status.
    pub fn try_run<S: AsRef<OsStr>>(&self, argv: &[S], timeout: Duration) -> Result<Output> {
        command::run(&self.exec(argv), None, timeout)
    }

    /// Starts a program in the namespace; dropping the returned guard ends it.
    pub fn spawn<S: AsRef<OsStr>>(&self, argv: &[S]) -> Result<Process> {
        Process::start(&self.exec(argv))
    }

    /// Returns the command line that runs a program in the namespace. `ip netns exec` is used instead of `setns`
    /// because it also mounts the namespace's own /sys, where the program sees its interfaces. That mount hides
    /// /sys/fs/bpf.
    fn exec<S: AsRef<OsStr>>(&self, argv: &[S]) -> Vec<OsString> {
        let mut all: Vec<OsString> = ["ip", "netns", "exec", &self.name].iter().map(OsString::from).collect();
        all.extend(argv.iter().map(|word| word.as_ref().to_owned()));
        all
    }

    /// Runs `ip -n NAMESPACE ARGUMENTS`.
    pub fn ip<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Output> {
        let mut all: Vec<OsString> = ["ip", "-n", &self.name].iter().map(OsString::from).collect();
        all.extend(arguments.iter().map(|word| word.as_ref().to_owned()));
        command::run(&all, None, DEFAULT_TIMEOUT)?.ok()
    }

    /// Runs `ip -batch`: one command per line, without the leading `ip`, stopping at the first failure. For many
    /// routes.
    pub fn ip_batch(&self, lines: &str) -> Result<Output> {
        command::run(&["ip", "-n", &self.name, "-batch", "-"], Some(lines), DEFAULT_TIMEOUT)?.ok()
    }

    /// Runs `nft -f` on a ruleset in the namespace. A ruleset that is refused is an error.
    pub fn nft(&self, ruleset: &str) -> Result<Output> {
        command::run(&self.exec(&["nft", "-f", "-"]), Some(ruleset), DEFAULT_TIMEOUT)?.ok()
    }

    /// Runs `work` on a new thread inside the namespace and returns its result; a panic in it is resumed on the caller.
    ///
    /// Sockets opened by `work` stay in the namespace. It sees the namespace's /proc/sys/net and /proc/thread-self/net,
    /// but the caller's /sys and /proc/self/net.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let file = self.open()?;
        thread::scope(|scope| {
            let inside = scope.spawn(|| move_in(&file, &self.name).map(|()| work()));
            match inside.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Runs `work` like [`Self::enter`], without waiting for it. The namespace's devices are removed when both this
    /// guard and the sockets opened by `work` are gone.
    pub fn thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<Result<T>>> {
        let file = self.open()?;
        let name = self.name.clone();
        Ok(thread::spawn(move || move_in(&file, &name).map(|()| work())))
    }

    fn open(&self) -> Result<File> {
        let path = self.path();
        File::open(&path).map_err(|source| Error::io(format!("opening {}", path.display()), source))
    }

    /// Sets a sysctl. `key` uses slashes (`net/ipv4/ip_forward`), or dots if no component contains one.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let key = if key.contains('/') { key.to_owned() } else { key.replace('.', "/") };
        self.enter(|| write_sysctl(&key, value))?
    }

    /// Reads a sysctl, without surrounding whitespace. `key` has the same form as in [`Self::sysctl`].
    pub fn read_sysctl(&self, key: &str) -> Result<String> {
        let key = if key.contains('/') { key.to_owned() } else { key.replace('.', "/") };
        let path = format!("/proc/sys/{key}");
        let read = self.enter(|| fs::read_to_string(&path))?;
        read.map(|text| text.trim().to_owned()).map_err(|source| Error::io(format!("reading {path}"), source))
    }

    /// Turns an `ethtool -K` feature on or off (`gro`, `tx`, `tso`, `rx`, ...).
    pub fn offload(&self, interface: &str, feature: &str, on: bool) -> Result<()> {
        let state = if on { "on" } else { "off" };
        self.run(&["ethtool", "-K", interface, feature, state]).map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        sweep::remove(&self.name);
    }
}

fn move_in(file: &File, name: &str) -> Result<()> {
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|source| Error::io(format!("entering namespace {name}"), source))
}

/// Sets a sysctl in the calling thread's namespace; `key` uses slashes.
fn write_sysctl(key: &str, value: &str) -> Result<()> {
    let path = format!("/proc/sys/{key}");
    fs::write(&path, value).map_err(|source| Error::io(format!("writing {value} to {path}"), source))
}
