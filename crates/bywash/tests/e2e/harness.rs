//! The program under test, raw frames to and from a host, and what tests ask of both.

use bywash_lab::{Namespace, Output, Process, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::TempDir;

/// For what takes milliseconds on an idle machine and is waited for on a busy one.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The program, from this build unless told otherwise.
pub fn program() -> String {
    std::env::var("BYWASH_UNDER_TEST").unwrap_or_else(|_| env!("CARGO_BIN_EXE_bywash").to_owned())
}

/// Tests that measure run one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `bywash run`, forwarding. Ends with its guard.
pub struct Bywash<'a> {
    pub process: Process,
    namespace: &'a Namespace,
    directory: TempDir,
}

impl<'a> Bywash<'a> {
    /// Runs it on `interfaces`, in user space where nothing else is asked for, and waits until it forwards.
    pub fn run(namespace: &'a Namespace, interfaces: &[&str]) -> Self {
        if bywash_lab::detached_ports() > 0 {
            return Self::run_detached(namespace, interfaces);
        }
        let said = interfaces.iter().any(|argument| ["--level", "--config"].contains(argument));
        let level: &[&str] = if said { &[] } else { &["--level", "user"] };
        Self::run_as_is(namespace, &[level, interfaces].concat())
    }

    /// Runs it on DPDK's devices in place of `interfaces`, which are their twins, and waits until they have carrier.
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
                // Frames that fit a cell of 2,048 bytes.
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

    /// Runs it with these arguments and no others, and waits until it forwards.
    pub fn run_as_is(namespace: &'a Namespace, arguments: &[&str]) -> Self {
        let mut bywash = Self::spawn(namespace, arguments);
        bywash.process.wait_for_output("forwarding;", PATIENCE).unwrap();
        bywash
    }

    /// Starts it with arguments of the caller's own.
    pub fn spawn(namespace: &'a Namespace, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let program = program();
        let mut argv = vec![program.as_str(), "run", "--socket", socket.to_str().unwrap()];
        argv.extend(arguments);
        Self { process: namespace.spawn(&argv).unwrap(), namespace, directory }
    }

    /// Where it runs.
    pub fn namespace(&self) -> &Namespace {
        self.namespace
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// `bywash show WHAT --json`.
    pub fn show(&self, what: &[&str]) -> Value {
        let (program, socket) = (program(), self.socket());
        let mut argv = vec![program.as_str(), "show", "--json", "--socket", socket.to_str().unwrap()];
        argv.extend(what);
        let output = self.namespace.run(&argv).unwrap_or_else(|error| panic!("{error}; it logged: {}", self.log()));
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output.stdout))
    }

    /// `bywash show WHAT`, for people.
    pub fn text(&self, what: &[&str]) -> String {
        let (program, socket) = (program(), self.socket());
        let mut argv = vec![program.as_str(), "show", "--socket", socket.to_str().unwrap()];
        argv.extend(what);
        self.namespace.run(&argv).unwrap_or_else(|error| panic!("{error}; it logged: {}", self.log())).stdout
    }

    /// Packets that came in by `port` and were dropped for `reason`.
    pub fn drops(&self, port: &str, reason: &str) -> u64 {
        count(&self.show(&["drops"])["drops"], &[("port", port), ("reason", reason)], "packets")
    }

    /// Drops by reason, over all ports, those that are not 0.
    pub fn all_drops(&self) -> Vec<(String, u64)> {
        let shown = self.show(&["drops"]);
        let row = |row: &Value| (row["reason"].as_str().unwrap().to_owned(), row["packets"].as_u64().unwrap());
        shown["drops"].as_array().unwrap().iter().map(row).collect()
    }

    /// Times `event` happened to packets that came in by `port`.
    pub fn events(&self, port: &str, event: &str) -> u64 {
        count(&self.show(&["drops"])["events"], &[("port", port), ("event", event)], "count")
    }

    /// Frames the XDP program of `port` judged so. Where there is none, the router hands over what is the kernel's.
    pub fn verdicts(&self, port: &str, verdict: &str) -> u64 {
        if bywash_lab::detached_ports() > 0 && ["pass_local", "pass_route", "pass_options"].contains(&verdict) {
            return self.events(port, "punted");
        }
        count(&self.show(&["drops"])["xdp"], &[("port", port), ("verdict", verdict)], "packets")
    }

    /// The row of `show ports` for a port.
    pub fn port(&self, name: &str) -> Value {
        let ports = self.show(&["ports"]);
        let found = ports.as_array().unwrap().iter().find(|port| port["name"] == name);
        found.unwrap_or_else(|| panic!("no port {name} in {ports}")).clone()
    }

    /// A counter of a port: `rx_packets`, `tx_packets`, ... Without what crosses between the port and its twin: that
    /// no worker has seen, as it sees nothing of what an XDP program passes.
    pub fn counter(&self, port: &str, name: &str) -> u64 {
        counter(&self.port(port), name).unwrap_or_else(|| panic!("no counter {name} of {port}"))
    }

    /// Waits until `condition` holds of what it shows.
    pub fn wait(&self, what: &str, mut condition: impl FnMut(&Self) -> bool) {
        if let Err(error) = wait_until(what, PATIENCE, || condition(self)) {
            panic!("{error}; it shows {}; it logged {}", self.show(&["all"]), self.log());
        }
    }

    /// Waits until every packet is accounted for: received and made here is sent, dropped by name and handed to the
    /// kernel.
    pub fn assert_conserved(&self) {
        let mut last = String::new();
        let balanced = wait_until("packets to balance", PATIENCE, || {
            let (ports, shown) = (self.show(&["ports"]), self.show(&["drops"]));
            let counter = |name: &str| -> u64 {
                ports.as_array().unwrap().iter().map(|port| counter(port, name).unwrap_or(0)).sum()
            };
            let event = |name: &str| count(&shown["events"], &[("event", name)], "count");
            // These are lost before they are received.
            let before = ["rx-no-buffer", "rx-ring-full", "invalid-descriptor"];
            let lost: u64 = before.iter().map(|reason| count(&shown["drops"], &[("reason", reason)], "packets")).sum();
            // The program's own drops.
            let there =
                ["drop_port_gone", "drop_cpu_busy"].map(|drop| count(&shown["xdp"], &[("verdict", drop)], "packets"));
            let dropped = count(&shown["drops"], &[], "packets") - lost + there.iter().sum::<u64>();
            let come = counter("rx_packets") + event("icmp-sent") + event("fragment-made") + event("copy-made");
            let gone = counter("tx_packets") + dropped + event("punted") + event("fragmented");
            last = format!("{come} came, {gone} went: {shown} {ports}");
            come == gone
        });
        balanced.unwrap_or_else(|error| panic!("{error}: {last}"));
    }

    /// SIGTERM, and what must hold before and after: no packet is unaccounted for, it ends in peace, every buffer is
    /// where it belongs, and no program is attached. Returns its log.
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

    pub fn signalled(&mut self, signal: Signal) -> ExitStatus {
        self.process.signal(signal).unwrap();
        self.process.wait(PATIENCE).unwrap()
    }
}

/// A port's counter, less what crosses between the port and its twin.
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

/// The sum of `field` over the rows in which all `keys` are as given.
pub fn count(rows: &Value, keys: &[(&str, &str)], field: &str) -> u64 {
    let rows = rows.as_array().unwrap_or_else(|| panic!("not a list: {rows}"));
    let matching = rows.iter().filter(|row| keys.iter().all(|(key, value)| row[*key] == *value));
    matching.map(|row| row[field].as_u64().unwrap()).sum()
}

/// No XDP program is on any interface of the namespace.
pub fn assert_detached(namespace: &Namespace) {
    let links = namespace.ip(&["-d", "link", "show"]).unwrap().stdout;
    assert!(!links.contains("xdp"), "still attached: {links}");
}

/// Runs `bywash` to its end in a namespace.
pub fn bywash(namespace: &Namespace, arguments: &[&str]) -> Output {
    let program = program();
    let mut argv = vec![program.as_str()];
    argv.extend(arguments);
    namespace.try_run(&argv, PATIENCE).unwrap()
}
