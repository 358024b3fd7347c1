//! The program under test as a guard: starting and ending it, its counters, and checks that every test makes.

use bywash_lab::{Namespace, Output, Process, patience, settle, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Time limit for events that take milliseconds on an idle machine, and may take long on a busy one.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Binds a socket to a port in a namespace. The port's previous socket may still be open in a process that another test
/// has forked, until that executes its program.
pub fn bound<T: Send>(ns: &Namespace, bind: impl Fn() -> io::Result<T> + Sync) -> T {
    let mut bound = None;
    wait_until("the port to be free", PATIENCE, || {
        bound = match ns.enter(&bind).unwrap() {
            Err(why) if why.kind() == ErrorKind::AddrInUse => None,
            socket => Some(socket.unwrap()),
        };
        bound.is_some()
    })
    .unwrap();
    bound.unwrap()
}

/// Returns the path of the program under test: `BYWASH_UNDER_TEST`, or the program of this build.
pub fn program() -> String {
    std::env::var("BYWASH_UNDER_TEST").unwrap_or_else(|_| env!("CARGO_BIN_EXE_bywash").to_owned())
}

/// Acquires the lock of tests that measure time, loss or memory, or that load the CPUs: one of them runs at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Acquires the lock of tests that run routing daemons: one of them runs at a time, beside tests of other kinds.
pub fn daemons() -> MutexGuard<'static, ()> {
    static DAEMONS: Mutex<()> = Mutex::new(());
    DAEMONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running `bywash run`. Dropping it ends the program.
pub struct Bywash<'a> {
    pub process: Process,
    namespace: &'a Namespace,
    directory: TempDir,
}

impl<'a> Bywash<'a> {
    /// Runs the program on `interfaces`, at level `user` unless the arguments say otherwise, and waits until it
    /// forwards.
    pub fn run(namespace: &'a Namespace, interfaces: &[&str]) -> Self {
        if bywash_lab::detached_ports() > 0 {
            return Self::run_detached(namespace, interfaces);
        }
        let said = interfaces.iter().any(|argument| ["--level", "--config"].contains(argument));
        let level: &[&str] = if said { &[] } else { &["--level", "user"] };
        Self::run_as_is(namespace, &[level, interfaces].concat())
    }

    /// Runs the program on DPDK devices with the twins `interfaces`, and waits until the ports are up.
    fn run_detached(namespace: &'a Namespace, interfaces: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let driver = std::env::var("BYWASH_DPDK_DRIVER").unwrap_or("net_af_packet".into());
        let (mut text, mut most) = (String::new(), 1);
        for (at, interface) in interfaces.iter().enumerate() {
            let wire = interface.replace('r', "w");
            let queues = format!("ls -d /sys/class/net/{wire}/queues/rx-* | wc -l");
            let queues: usize = namespace.run(&["sh", "-c", &queues]).unwrap().stdout.trim().parse().unwrap();
            most = most.max(queues);
            let more = match driver.as_str() {
                // Frames fit a cell of 2,048 bytes.
                "net_af_packet" => format!("qpairs={queues},framesz=1792,blocksz=28672,qdisc_bypass=0"),
                _ => format!("queue_count={queues}"),
            };
            writeln!(
                text,
                "[[port]]\nkind = \"dpdk\"\nname = \"{interface}\"\ninterface = \"{interface}\"\n\
                 device_queues = {queues}\ndevice = \"{driver}{at},iface={wire},{more}\""
            )
            .unwrap();
        }
        writeln!(text, "[workers]\ncount = {most}").unwrap();
        let file = directory.path().join("bywash.toml");
        std::fs::write(&file, text).unwrap();
        let running = Self::run_as_is(namespace, &["--config", file.to_str().unwrap()]);
        for interface in interfaces {
            running.wait("carrier", |running| running.port(interface)["state"] == "up");
        }
        running
    }

    /// Runs the program with these arguments and no others, and waits until it forwards.
    pub fn run_as_is(namespace: &'a Namespace, arguments: &[&str]) -> Self {
        settle(namespace).unwrap();
        let mut bywash = Self::spawn(namespace, arguments);
        bywash.process.wait_for_output("forwarding;", PATIENCE).unwrap();
        // A start waits no longer than a few seconds for the policies.
        if bywash.log().contains("policies could not be read within") {
            bywash.wait("the policies to be read", |bywash| {
                let shown = bywash.show(&["placement"]);
                shown.as_array().unwrap().iter().all(|row| row["policies"]["pending"] == false)
            });
        }
        bywash
    }

    /// Starts the program with these arguments, and does not wait.
    pub fn spawn(namespace: &'a Namespace, arguments: &[&str]) -> Self {
        Self::spawn_by(&[], namespace, arguments)
    }

    /// Like [`Bywash::spawn`], by a command that runs another, such as `env`.
    pub fn spawn_by(by: &[&str], namespace: &'a Namespace, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let program = program();
        let mut argv = by.to_vec();
        argv.extend([program.as_str(), "run", "--socket", socket.to_str().unwrap()]);
        argv.extend(arguments);
        Self { process: namespace.spawn(&argv).unwrap(), namespace, directory }
    }

    /// Returns the namespace that the program runs in.
    pub fn namespace(&self) -> &Namespace {
        self.namespace
    }

    /// Returns the path of the API socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// Returns the answer of `bywash show --json WHAT`. Asks again while there is none: while the kernel verifies a
    /// large program, which takes seconds on a busy machine, the instance may give no answer in time.
    pub fn show(&self, what: &[&str]) -> Value {
        let (program, socket) = (program(), self.socket());
        let mut argv = vec![program.as_str(), "show", "--json", "--socket", socket.to_str().unwrap()];
        argv.extend(what);
        let output = self.ask(&argv);
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output.stdout))
    }

    /// Returns the text that `bywash show WHAT` prints.
    pub fn text(&self, what: &[&str]) -> String {
        let (program, socket) = (program(), self.socket());
        let mut argv = vec![program.as_str(), "show", "--socket", socket.to_str().unwrap()];
        argv.extend(what);
        self.ask(&argv).stdout
    }

    /// Runs a command that asks the instance, again while it gives no answer in time.
    fn ask(&self, argv: &[&str]) -> Output {
        let begun = Instant::now();
        loop {
            match self.namespace.run(argv) {
                Ok(output) => return output,
                Err(error)
                    if error.to_string().contains("incomplete or malformed answer")
                        && begun.elapsed() < patience(PATIENCE) => {}
                Err(error) => panic!("{error}; it logged: {}", self.log()),
            }
        }
    }

    /// Returns the number of packets received on `port` and dropped for `reason`.
    pub fn drops(&self, port: &str, reason: &str) -> u64 {
        count(&self.show(&["drops"])["drops"], &[("port", port), ("reason", reason)], "packets")
    }

    /// Returns all drops: reason and packets of each row, over all ports, without rows of 0.
    pub fn all_drops(&self) -> Vec<(String, u64)> {
        let shown = self.show(&["drops"]);
        let row = |row: &Value| (row["reason"].as_str().unwrap().to_owned(), row["packets"].as_u64().unwrap());
        shown["drops"].as_array().unwrap().iter().map(row).collect()
    }

    /// Returns the number of frames that `port` lost because no worker read it for a while, as on a busy machine.
    pub fn unread(&self, port: &str) -> u64 {
        ["rx-no-buffer", "rx-ring-full"].map(|reason| self.drops(port, reason)).iter().sum()
    }

    /// Returns how long the program's threads have waited for a CPU in all.
    pub fn waited(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.pid())).unwrap();
        let of = |task: io::Result<std::fs::DirEntry>| {
            let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
            text.split(' ').nth(1)?.parse::<u64>().ok()
        };
        Duration::from_nanos(tasks.filter_map(of).sum())
    }

    /// Returns the number of frames that `port` lost because other processes kept the program's threads from reading
    /// it; 0 if these have hardly waited for a CPU, so that only the program can be to blame.
    pub fn starved(&self, port: &str) -> u64 {
        if self.waited() < Duration::from_millis(200) { 0 } else { self.unread(port) }
    }

    /// Returns how often `event` happened to packets received on `port`.
    pub fn events(&self, port: &str, event: &str) -> u64 {
        count(&self.show(&["drops"])["events"], &[("port", port), ("event", event)], "count")
    }

    /// Returns the number of frames to which the XDP program of `port` gave this verdict. Detached ports have no XDP
    /// program: packets that it would pass to the kernel are punted by the router, and their number is returned
    /// instead.
    pub fn verdicts(&self, port: &str, verdict: &str) -> u64 {
        if bywash_lab::detached_ports() > 0 && ["pass_local", "pass_route", "pass_options"].contains(&verdict) {
            return self.events(port, "punted");
        }
        count(&self.show(&["drops"])["xdp"], &[("port", port), ("verdict", verdict)], "packets")
    }

    /// Returns the row of `show ports` for a port.
    pub fn port(&self, name: &str) -> Value {
        let ports = self.show(&["ports"]);
        let found = ports.as_array().unwrap().iter().find(|port| port["name"] == name);
        found.unwrap_or_else(|| panic!("no port {name} in {ports}")).clone()
    }

    /// Returns the row of `show placement` for a port.
    pub fn placement(&self, port: &str) -> Value {
        let placement = self.show(&["placement"]);
        let found = placement.as_array().unwrap().iter().find(|row| row["port"] == port);
        found.unwrap_or_else(|| panic!("no port {port} in {placement}")).clone()
    }

    /// Returns the reason why a port is left to the kernel; `None` if it is not.
    pub fn left_because(&self, port: &str) -> Option<String> {
        let row = self.placement(port);
        (row["level"] == "kernel").then(|| row["why"].as_str().unwrap().to_owned())
    }

    /// Returns a counter of a port (`rx_packets`, `tx_packets`, ...), without the packets that cross between the port
    /// and its twin. Workers see those as little as the packets that an XDP program passes.
    pub fn counter(&self, port: &str, name: &str) -> u64 {
        counter(&self.port(port), name).unwrap_or_else(|| panic!("no counter {name} of {port}"))
    }

    /// Waits until `condition` holds; on timeout panics with everything that the program shows and its log.
    pub fn wait(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        if let Err(error) = wait_until(what, PATIENCE, || condition(self)) {
            panic!("{error}; it shows {}; it logged {}", self.show(&["all"]), self.log());
        }
    }

    /// Repeats `send` until a counter of a port grows by at least `count` meanwhile: the kernel forwards the packets of
    /// a new port until its policies and routes have been read.
    pub fn wait_to_count(&self, port: &str, name: &str, count: u64, mut send: impl FnMut()) {
        self.wait(&format!("{count} {name} of {port}"), |bywash| {
            let before = bywash.counter(port, name);
            send();
            bywash.counter(port, name) >= before + count
        });
    }

    /// Makes a change that concerns the kernel's policies, and waits until they have been read and applied: the kernel
    /// forwards meanwhile.
    pub fn change_policies<T>(&self, change: impl FnOnce() -> T) -> T {
        let changes = |shown: &Value| shown[0]["policies"]["changes"].as_u64().unwrap();
        let before = changes(&self.show(&["placement"]));
        let done = change();
        self.wait("the policies to be read", |bywash| {
            let shown = bywash.show(&["placement"]);
            changes(&shown) > before && shown[0]["policies"]["pending"] == false
        });
        done
    }

    /// Waits until every packet is accounted for: the packets received and generated equal those sent, dropped and
    /// handed to the kernel.
    pub fn assert_conserved(&self) {
        let mut last = String::new();
        let balanced = wait_until("packets to balance", PATIENCE, || {
            let (ports, shown) = (self.show(&["ports"]), self.show(&["drops"]));
            let counter = |name: &str| -> u64 {
                ports.as_array().unwrap().iter().map(|port| counter(port, name).unwrap_or(0)).sum()
            };
            let event = |name: &str| count(&shown["events"], &[("event", name)], "count");
            // Packets dropped for these reasons are not counted as received.
            let before = ["rx-no-buffer", "rx-ring-full", "invalid-descriptor"];
            let lost: u64 = before.iter().map(|reason| count(&shown["drops"], &[("reason", reason)], "packets")).sum();
            // The XDP program counts its own drops.
            let there =
                ["drop_port_gone", "drop_cpu_busy"].map(|drop| count(&shown["xdp"], &[("verdict", drop)], "packets"));
            let dropped = count(&shown["drops"], &[], "packets") - lost + there.iter().sum::<u64>();
            let made = ["icmp-sent", "fragment-made", "copy-made", "depi-made"].map(event);
            let used_up = ["punted", "fragmented", "depi-packed"].map(event);
            let come = counter("rx_packets") + made.iter().sum::<u64>();
            let gone = counter("tx_packets") + dropped + used_up.iter().sum::<u64>();
            last = format!("{come} came, {gone} went: {shown} {ports}");
            come == gone
        });
        balanced.unwrap_or_else(|error| panic!("{error}: {last}"));
    }

    /// Ends the program with SIGTERM and returns its log. Fails unless every packet is accounted for, the exit status
    /// is 0, every buffer is back in its pool, no error is logged, no XDP program is attached, and the socket is
    /// removed.
    pub fn stop(mut self) -> String {
        self.assert_conserved();
        let status = self.signalled(Signal::TERM);
        let log = self.log();
        assert!(status.success(), "{status}: {log}");
        assert!(log.contains("cells are back in their pools"), "no clean audit: {log}");
        assert!(!log.contains("ERROR"), "{log}");
        assert_detached(self.namespace);
        assert!(!self.socket().exists(), "the socket is left behind");
        log
    }

    /// Sends a signal, waits for the end, and returns the exit status.
    pub fn signalled(&mut self, signal: Signal) -> ExitStatus {
        self.process.signal(signal).unwrap();
        self.process.wait(PATIENCE).unwrap()
    }
}

/// Returns a port's counter without the packets that cross between the port and its twin.
fn counter(port: &Value, name: &str) -> Option<u64> {
    let crossed = match name {
        "rx_packets" => &["to_kernel", "to_kernel_lost"][..],
        "tx_packets" => &["from_kernel"],
        _ => &[],
    };
    let queues = port["queues"].as_array().into_iter().flatten();
    let of = |queue: &Value, field: &str| queue[field].as_str().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    let crossed: u64 = queues.flat_map(|queue| crossed.iter().map(move |field| of(queue, field))).sum();
    Some(port["counters"][name].as_u64()?.saturating_sub(crossed))
}

/// Returns the sum of `field` over the rows in which all `keys` have the given values.
pub fn count(rows: &Value, keys: &[(&str, &str)], field: &str) -> u64 {
    let rows = rows.as_array().unwrap_or_else(|| panic!("not a list: {rows}"));
    let matching = rows.iter().filter(|row| keys.iter().all(|(key, value)| row[*key] == *value));
    matching.map(|row| row[field].as_u64().unwrap()).sum()
}

/// Fails if an XDP program is attached to an interface of the namespace.
pub fn assert_detached(namespace: &Namespace) {
    let links = namespace.ip(&["-d", "link", "show"]).unwrap().stdout;
    assert!(!links.contains("xdp"), "still attached: {links}");
}

/// Waits until no XDP program is attached to an interface of the namespace, after its process was killed.
pub fn wait_until_detached(namespace: &Namespace) {
    let detached = || !namespace.ip(&["-d", "link", "show"]).unwrap().stdout.contains("xdp");
    wait_until("the kernel to detach", PATIENCE, detached).unwrap();
}

/// Runs `bywash` in a namespace and waits for its end.
pub fn bywash(namespace: &Namespace, arguments: &[&str]) -> Output {
    let program = program();
    let mut argv = vec![program.as_str()];
    argv.extend(arguments);
    namespace.try_run(&argv, PATIENCE).unwrap()
}
