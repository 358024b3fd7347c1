//! A router with routing daemons: FRR, BIRD and keepalived in a network namespace.

use crate::harness::PATIENCE;
use bywash_lab::{Namespace, Process, wait_until};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// A network namespace and the routing daemons that run in it.
pub struct Router {
    pub ns: Namespace,
    /// Directory of the daemons' configurations and sockets.
    directory: PathBuf,
    /// Running daemons and their names; dropping the router ends them.
    daemons: Mutex<Vec<(String, Process)>>,
}

/// Makes a directory writable for all users: the daemons run as users of their own.
pub fn open_to_all(directory: &Path) {
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o777)).unwrap();
}

/// Creates a veth pair between two namespaces. Each end gets its address, which includes the prefix length, unless that
/// is empty.
pub fn join(one: &Namespace, (name, address): (&str, &str), other: &Namespace, (peer, its): (&str, &str)) {
    one.ip(&["link", "add", name, "type", "veth", "peer", "name", peer, "netns", other.name()]).unwrap();
    for (ns, name, address) in [(one, name, address), (other, peer, its)] {
        if !address.is_empty() {
            ns.ip(&["address", "add", address, "dev", name]).unwrap();
        }
        ns.ip(&["link", "set", name, "up"]).unwrap();
    }
}

impl Router {
    /// Creates a router that forwards and hashes ports when it chooses among equal paths. The daemons' files are below
    /// `directory`.
    pub fn new(hint: &str, directory: &Path) -> Self {
        let ns = Namespace::new(hint).unwrap();
        ns.ip(&["link", "set", "lo", "up"]).unwrap();
        ns.sysctl("net/ipv4/ip_forward", "1").unwrap();
        ns.sysctl("net/ipv6/conf/all/forwarding", "1").unwrap();
        ns.sysctl("net/ipv4/fib_multipath_hash_policy", "1").unwrap();
        let directory = directory.join(hint);
        std::fs::create_dir(&directory).unwrap();
        open_to_all(&directory);
        Self { ns, directory, daemons: Mutex::default() }
    }

    fn at(&self, name: &str) -> String {
        self.directory.join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let file = self.at(name);
        std::fs::write(&file, text).unwrap();
        file
    }

    /// Starts a daemon. It runs before other tests' processes, since a busy machine must not end its sessions.
    fn add(&self, name: &str, argv: &[&str]) {
        let argv = [&["nice", "-n", "-10"], argv].concat();
        self.daemons.lock().unwrap().push((name.to_owned(), self.ns.spawn(&argv).unwrap()));
    }

    /// Starts one of FRR's daemons and waits for its vty socket.
    pub fn start(&self, daemon: &str, config: &str) {
        let file = self.write(&format!("{daemon}.conf"), &format!("log stdout\n{config}"));
        let (pid, zserv, sockets) = (self.at(&format!("{daemon}.pid")), self.at("zserv"), self.at(""));
        let (program, vty) = (format!("/usr/lib/frr/{daemon}"), format!("{daemon}.vty"));
        let _ = std::fs::remove_file(self.at(&vty));
        let mut argv = vec![program.as_str(), "-f", &file, "-i", &pid, "-z", &zserv];
        argv.extend(["--vty_socket", &sockets, "-A", "127.0.0.1"]);
        let control = self.at("bfd.ctl");
        if daemon == "bfdd" {
            argv.extend(["--bfdctl", &control]);
        }
        self.add(daemon, &argv);
        wait_until(daemon, PATIENCE, || self.directory.join(&vty).exists())
            .unwrap_or_else(|e| panic!("{e}: {}", self.daemons_say()));
    }

    /// Starts BIRD and waits for its control socket.
    pub fn start_bird(&self, config: &str) {
        let file = self.write("bird.conf", config);
        self.add("bird", &["bird", "-f", "-c", &file, "-s", &self.at("bird.ctl")]);
        wait_until("bird", PATIENCE, || self.directory.join("bird.ctl").exists())
            .unwrap_or_else(|e| panic!("{e}: {}", self.daemons_say()));
    }

    /// Starts keepalived's VRRP.
    pub fn start_keepalived(&self, config: &str) {
        let file = self.write("keepalived.conf", config);
        let (pid, vrrp) = (self.at("keepalived.pid"), self.at("vrrp.pid"));
        let argv = ["keepalived", "-n", "-l", "-D", "-P", "-f", &file, "-p", &pid, "-r", &vrrp];
        self.add("keepalived", &argv);
    }

    /// Kills a daemon with SIGKILL, which leaves the same state as a crash.
    pub fn kill(&self, daemon: &str) {
        let mut daemons = self.daemons.lock().unwrap();
        let at = daemons.iter().position(|(name, _)| name == daemon).unwrap();
        daemons.remove(at).1.kill().unwrap();
    }

    /// Returns the JSON output of `vtysh -c COMMAND`.
    pub fn ask(&self, command: &str) -> Value {
        let sockets = self.directory.to_str().unwrap();
        let output = self.ns.run(&["vtysh", "--vty_socket", sockets, "-c", command]).unwrap();
        serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", output.stdout))
    }

    /// Returns the output of `birdc COMMAND`.
    pub fn ask_bird(&self, command: &str) -> String {
        let mut argv = vec!["birdc", "-s"];
        let socket = self.at("bird.ctl");
        argv.push(&socket);
        argv.extend(command.split(' '));
        self.ns.run(&argv).unwrap().stdout
    }

    /// Returns the output of all daemons so far.
    pub fn daemons_say(&self) -> String {
        self.daemons.lock().unwrap().iter().map(|(_, daemon)| daemon.output()).collect()
    }
}
