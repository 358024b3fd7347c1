//! Switches under `/proc/sys/net` that decide whether the kernel forwards a packet, and how.
//!
//! The kernel announces changes of some of them as NETCONF messages, but not of most: the files stay open and are read
//! again every [`crate::POLL`], in about a microsecond each. An open file below `/proc/sys/net` belongs to the network
//! namespace of the thread that opened it.

use crate::effect::{Effect, IfMatch, Kind, Scope};
use crate::verdict::PortLink;
use bywash_fib::model::{Families, HashPolicy, SourceCheck};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Settings that the dataplane applies itself instead of leaving packets to the kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Reverse-path check, by interface index; absent if it is off.
    pub source_check: BTreeMap<u32, SourceCheck>,
    /// IPv6 MTU of an interface in bytes (`net.ipv6.conf.IF.mtu`), by interface index.
    pub mtu6: BTreeMap<u32, u32>,
    /// Hash policy for the choice among equal IPv4 next hops.
    pub hash4: HashPolicy,
    /// Hash policy for the choice among equal IPv6 next hops.
    pub hash6: HashPolicy,
    /// Indices of interfaces that are gone, or have another name now: nothing is known of their switches.
    pub gone: BTreeSet<u32>,
}

/// Switches for all interfaces, as paths below `/proc/sys/net`.
const GLOBAL: [&str; 10] = [
    "ipv4/conf/all/rp_filter",
    "ipv4/ip_forward_use_pmtu",
    "ipv4/icmp_errors_use_inbound_ifaddr",
    "ipv4/fib_multipath_hash_policy",
    "ipv6/conf/all/forwarding",
    "ipv6/fib_multipath_hash_policy",
    "ipv6/conf/all/proxy_ndp",
    "ipv4/fib_multipath_use_neigh",
    "ipv4/conf/all/accept_redirects",
    "ipv4/ip_forward",
];

/// Switches of frames between the members of bridges, there with br_netfilter: whether they pass hooks of ARP, IPv6 and
/// IPv4, which also drop malformed packets and cut off padding.
const OF_BRIDGES: [&str; 3] = ["bridge-nf-call-arptables", "bridge-nf-call-ip6tables", "bridge-nf-call-iptables"];

/// Switches of an interface: family, and name below `conf/IF`.
const OF_PORT: [(&str, &str); 8] = [
    ("ipv4", "forwarding"),
    ("ipv4", "rp_filter"),
    ("ipv6", "disable_ipv6"),
    ("ipv6", "mtu"),
    ("ipv6", "proxy_ndp"),
    ("ipv4", "accept_redirects"),
    ("ipv6", "accept_redirects"),
    ("ipv6", "forwarding"),
];

/// A switch and its value when last read; `None` if the switch does not exist.
#[derive(Debug, Default)]
struct Switch {
    path: PathBuf,
    /// Opened again after a failed read: an interface with an MTU below 1280 loses its IPv6 switches, for example.
    file: Option<File>,
    value: Option<i64>,
    /// Error for which the switch could not be read, although it may exist.
    failed: Option<io::ErrorKind>,
}

impl Switch {
    fn open(path: PathBuf) -> Self {
        let mut switch = Self { path: PathBuf::from("/proc/sys/net").join(path), ..Self::default() };
        switch.read();
        switch
    }

    /// Reads the value again and returns whether it has changed.
    fn read(&mut self) -> bool {
        let read = match self.file.as_ref().map(value) {
            Some(Ok(value)) => Ok(value),
            _ => self.reopen(),
        };
        let (value, failed) = match read {
            Ok(value) => (Some(value), None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (None, None),
            Err(error) => (None, Some(error.kind())),
        };
        let before = (std::mem::replace(&mut self.value, value), std::mem::replace(&mut self.failed, failed));
        before != (value, failed)
    }

    fn reopen(&mut self) -> io::Result<i64> {
        // Closed first, in case files have run out.
        self.file = None;
        value(self.file.insert(File::open(&self.path)?))
    }
}

/// Reads a switch's value.
fn value(file: &File) -> io::Result<i64> {
    let mut text = [0; 24];
    let n = file.read_at(&mut text, 0)?;
    let value = std::str::from_utf8(&text[..n]).ok().and_then(|text| text.trim().parse().ok());
    value.ok_or(io::ErrorKind::InvalidData.into())
}

/// All switches that matter for a set of ports.
#[derive(Debug, Default)]
pub struct Sysctls {
    global: Vec<Switch>,
    /// The switches of [`OF_BRIDGES`]; empty without bridges.
    bridges: Vec<Switch>,
    ports: Vec<(PortLink, Vec<Switch>)>,
}

impl Sysctls {
    /// Opens the switches of these ports, and those of all interfaces, in the calling thread's network namespace.
    pub fn open(ports: &[PortLink]) -> Self {
        // No packet has a member of a bridge as its interface.
        let routed = |port: &&PortLink| port.tunnel.is_none() || port.bridge.is_none();
        let of = |port: &PortLink| {
            // An interface name contains no slash; any other name could lead out of the directory.
            let named = !port.name.is_empty() && !port.name.contains('/') && port.name != "." && port.name != "..";
            let path = |(family, key): &(&str, &str)| [family, "conf", port.name.as_str(), key].iter().collect();
            let open = |at| if named { Switch::open(path(at)) } else { Switch::default() };
            (port.clone(), OF_PORT.iter().map(open).collect())
        };
        let bridges = OF_BRIDGES.iter().filter(|_| ports.iter().any(|port| port.bridge.is_some()));
        Self {
            global: GLOBAL.iter().map(|path| Switch::open(path.into())).collect(),
            bridges: bridges.map(|key| Switch::open(["bridge", *key].iter().collect())).collect(),
            ports: ports.iter().filter(routed).map(of).collect(),
        }
    }

    /// Reads all switches again and returns whether any has changed.
    pub fn changed(&mut self) -> bool {
        let of_ports = self.ports.iter_mut().flat_map(|(_, switches)| switches);
        let all = self.global.iter_mut().chain(&mut self.bridges).chain(of_ports);
        all.fold(false, |changed, switch| changed | switch.read())
    }

    /// Returns which switch could not be read, and why; `None` if all could that exist.
    pub fn unreadable(&self) -> Option<String> {
        let all = self.global.iter().chain(&self.bridges).chain(self.ports.iter().flat_map(|(_, switches)| switches));
        all.filter_map(|switch| Some(format!("{}: {}", switch.path.display(), switch.failed?))).next()
    }

    /// Returns whether the kernel answers neighbour discovery for others on any port (`proxy_ndp`).
    pub fn proxies_discovery(&self) -> bool {
        let all = self.global.iter().chain(self.ports.iter().flat_map(|(_, switches)| switches));
        all.filter(|switch| switch.path.ends_with("proxy_ndp")).any(|switch| is_on(switch.value))
    }

    /// Returns the settings to apply, and the effects of switches that the dataplane does not implement.
    pub fn analyse(&self) -> (Settings, Vec<Effect>) {
        let mut found = Found::default();
        let Some(global) = Global::of(&self.global) else { return (found.settings, found.effects) };
        found.add_global(&global);
        for (key, switch) in OF_BRIDGES.iter().zip(&self.bridges) {
            if is_on(switch.value) {
                let object = format!("net.bridge.{key}=1");
                found.add(Scope::Between, &object, "passes them to netfilter's hooks for IP or ARP");
            }
        }
        let ports = self.ports.iter().filter_map(|(port, switches)| Some((port, OfPort::of(switches)?)));
        let any_forwards4 = ports.clone().any(|(_, of)| of.forwarding4 == Some(1));
        // Ports that do not forward IPv4 because no interface does: one switch for all.
        let mut off = vec![];
        for (port, of) in ports.filter(|(port, _)| port.index != 0) {
            // An interface with a very small MTU has no switches, either.
            if (of.forwarding4.is_none() || of.disabled6.is_none()) && !exists(&port.name) {
                found.settings.gone.insert(port.index);
                continue;
            }
            if of.forwarding4 != Some(1) && global.forwarding4 == Some(0) {
                off.push(IfMatch::Index(port.index));
            }
            found.add_forwarding(port, &of, &global);
            found.add_sources(port, &of, &global);
            found.add_redirects(port, &of, &global, any_forwards4);
            found.add_ipv6(port, &of, &global);
        }
        if !off.is_empty() {
            found.add(Scope::In(off, Families::V4), "net.ipv4.ip_forward=0", "does not forward");
        }
        (found.settings, found.effects)
    }
}

/// Values of the switches of [`GLOBAL`] that matter for packets.
struct Global {
    rp_filter: Option<i64>,
    use_pmtu: Option<i64>,
    errors_use_inbound: Option<i64>,
    hash4: Option<i64>,
    forwarding6: Option<i64>,
    hash6: Option<i64>,
    use_neigh: Option<i64>,
    redirects4: Option<i64>,
    forwarding4: Option<i64>,
}

impl Global {
    fn of(switches: &[Switch]) -> Option<Self> {
        let mut values = switches.iter().map(|switch| switch.value);
        Some(Self {
            rp_filter: values.next()?,
            use_pmtu: values.next()?,
            errors_use_inbound: values.next()?,
            hash4: values.next()?,
            forwarding6: values.next()?,
            hash6: values.next()?,
            // Behind `proxy_ndp`, which `proxies_discovery` reads.
            use_neigh: values.nth(1)?,
            redirects4: values.next()?,
            forwarding4: values.next()?,
        })
    }
}

/// Values of the switches of [`OF_PORT`] that matter for packets.
struct OfPort {
    forwarding4: Option<i64>,
    rp_filter: Option<i64>,
    disabled6: Option<i64>,
    mtu6: Option<i64>,
    redirects4: Option<i64>,
    redirects6: Option<i64>,
    forwarding6: Option<i64>,
}

impl OfPort {
    fn of(switches: &[Switch]) -> Option<Self> {
        let values: Vec<Option<i64>> = switches.iter().map(|switch| switch.value).collect();
        let [forwarding4, rp_filter, disabled6, mtu6, _, redirects4, redirects6, forwarding6] = values[..] else {
            return None;
        };
        Some(Self { forwarding4, rp_filter, disabled6, mtu6, redirects4, redirects6, forwarding6 })
    }
}

fn is_on(value: Option<i64>) -> bool {
    value.unwrap_or(0) != 0
}

/// Returns whether there is an interface of this name.
fn exists(name: &str) -> bool {
    let (family, kind) = (rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM);
    let socket = rustix::net::socket_with(family, kind, rustix::net::SocketFlags::CLOEXEC, None);
    let found = socket.and_then(|socket| rustix::net::netdevice::name_to_index(socket, name));
    found != Err(rustix::io::Errno::NODEV)
}

#[derive(Default)]
struct Found {
    settings: Settings,
    effects: Vec<Effect>,
}

impl Found {
    fn add(&mut self, scope: Scope, object: &str, reason: &str) {
        let (object, reason) = (format!("sysctl {object}"), reason.to_owned());
        self.effects.push(Effect { kind: Kind::Sysctls, scope, object, reason });
    }

    /// Adds what concerns the packets of all interfaces.
    fn add_global(&mut self, global: &Global) {
        let hash = |value| match value {
            None | Some(0) => HashPolicy::L3,
            Some(1) => HashPolicy::L4,
            Some(_) => HashPolicy::Kernel,
        };
        (self.settings.hash4, self.settings.hash6) = (hash(global.hash4), hash(global.hash6));
        // A kernel without IPv6 has no such switch, and no packets to forward.
        if global.forwarding6 == Some(0) {
            self.add(Scope::All(Families::V6), "net.ipv6.conf.all.forwarding=0", "does not forward");
        }
        if is_on(global.use_pmtu) {
            self.add(Scope::All(Families::V4), "net.ipv4.ip_forward_use_pmtu=1", "limits packets to path MTUs");
        }
        if is_on(global.use_neigh) {
            let object = "net.ipv4.fib_multipath_use_neigh=1";
            self.add(Scope::All(Families::V4), object, "chooses among next hops by the state of their neighbours");
        }
        if is_on(global.errors_use_inbound) {
            let object = "net.ipv4.icmp_errors_use_inbound_ifaddr=1";
            self.add(Scope::Errors(Families::V4), object, "sends ICMP errors from the receiving interface's address");
        }
    }

    /// Adds that a port's interface does not forward IPv4, unless none does.
    fn add_forwarding(&mut self, port: &PortLink, of: &OfPort, global: &Global) {
        if of.forwarding4 != Some(1) && global.forwarding4 != Some(0) {
            let object = format!("net.ipv4.conf.{}.forwarding=0", port.name);
            let on = vec![IfMatch::Index(port.index)];
            self.add(Scope::In(on, Families::V4), &object, "does not forward packets of the port");
        }
    }

    /// Adds how the sources of packets received on a port are checked.
    fn add_sources(&mut self, port: &PortLink, of: &OfPort, global: &Global) {
        // IN_DEV_RPFILTER (linux/inetdevice.h) is the greater of the two.
        match of.rp_filter.max(global.rp_filter).unwrap_or(0) {
            0 => {}
            1 => drop(self.settings.source_check.insert(port.index, SourceCheck::Strict)),
            _ => drop(self.settings.source_check.insert(port.index, SourceCheck::Loose)),
        }
    }

    /// Adds whether redirects accepted on a port change the routes of packets; `forwards4` is set if any port forwards
    /// IPv4.
    ///
    /// A redirect that is accepted gives packets to its destination another next hop on the interface that it came by,
    /// without an announcement (IN_DEV_RX_REDIRECTS, rt6_do_redirect). Without forwarding at all, no packet is sent by
    /// them.
    fn add_redirects(&mut self, port: &PortLink, of: &OfPort, global: &Global, forwards4: bool) {
        let (name, on, reason) =
            (port.name.as_str(), || vec![IfMatch::Index(port.index)], "sends packets as redirects say");
        // An interface that does not forward takes part without the switch of all (IN_DEV_RX_REDIRECTS).
        let (all, own) = (is_on(global.redirects4), is_on(of.redirects4));
        let accepts4 = if of.forwarding4 == Some(1) { all && own } else { all || own };
        if forwards4 && accepts4 {
            let object = format!("net.ipv4.conf.{}.accept_redirects=1", if own { name } else { "all" });
            self.add(Scope::Out(on(), Families::V4), &object, reason);
        }
        if is_on(of.redirects6) && of.forwarding6 == Some(0) && is_on(global.forwarding6) {
            let object = format!("net.ipv6.conf.{name}.accept_redirects=1");
            self.add(Scope::Out(on(), Families::V6), &object, reason);
        }
    }

    /// Adds whether a port's interface takes part in IPv6, and its MTU there.
    fn add_ipv6(&mut self, port: &PortLink, of: &OfPort, global: &Global) {
        // An interface with an MTU below 1280 has no IPv6 and no IPv6 switches. A kernel without IPv6 has none at all.
        if of.disabled6 != Some(0) && global.forwarding6.is_some() {
            let object = match of.disabled6 {
                Some(_) => format!("net.ipv6.conf.{}.disable_ipv6=1", port.name),
                None => format!("net.ipv6.conf.{} does not exist: the MTU is below 1280", port.name),
            };
            let on = || vec![IfMatch::Index(port.index)];
            self.add(Scope::In(on(), Families::V6), &object, "accepts no IPv6");
            self.add(Scope::Out(on(), Families::V6), &object, "sends no IPv6");
        }
        if let Some(mtu) = of.mtu6.and_then(|mtu| u32::try_from(mtu).ok()) {
            self.settings.mtu6.insert(port.index, mtu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switches(values: &[Option<i64>]) -> Vec<Switch> {
        values.iter().map(|value| Switch { value: *value, ..Switch::default() }).collect()
    }

    fn analysed(global: [i64; 10], port: [i64; 8]) -> (Settings, Vec<Effect>) {
        let link = PortLink { index: 7, name: "r0".into(), ..PortLink::default() };
        let global = switches(&global.map(Some));
        Sysctls { global, bridges: vec![], ports: vec![(link, switches(&port.map(Some)))] }.analyse()
    }

    #[test]
    fn hooks_of_ip_may_see_frames_between_members() {
        let of = |values: [Option<i64>; 3]| {
            let sysctls =
                Sysctls { global: switches(&GLOBAL_NOW.map(Some)), bridges: switches(&values), ports: vec![] };
            sysctls.analyse().1.iter().map(|effect| (effect.scope.clone(), effect.object.clone())).collect::<Vec<_>>()
        };
        assert_eq!([of([None; 3]), of([Some(0); 3])], [[], []]);
        let ip6 = "sysctl net.bridge.bridge-nf-call-ip6tables=1";
        assert_eq!(of([Some(0), Some(1), None]), [(Scope::Between, ip6.to_owned())]);
    }

    #[test]
    fn a_switch_that_cannot_be_read_is_unlike_one_that_does_not_exist() {
        // A directory.
        let read = |path: &str| Sysctls { global: vec![Switch::open(path.into())], ..Sysctls::default() }.unreadable();
        let errors = [read("nosuch"), read("ipv4/ip_forward"), read("ipv4")];
        assert_eq!(errors, [None, None, Some("/proc/sys/net/ipv4: is a directory".into())]);
    }

    const GLOBAL_NOW: [i64; 10] = [0, 0, 0, 0, 1, 0, 0, 0, 0, 1];
    const PORT_NOW: [i64; 8] = [1, 0, 0, 1500, 0, 1, 1, 1];

    #[test]
    fn a_router_at_its_defaults_has_no_effects() {
        let (settings, effects) = analysed(GLOBAL_NOW, PORT_NOW);
        assert_eq!(effects, []);
        let l3 = HashPolicy::L3;
        assert_eq!(settings, Settings { mtu6: [(7, 1500)].into(), hash4: l3, hash6: l3, ..Settings::default() });
    }

    #[test]
    fn each_switch_has_its_effect() {
        let of_port = |at: usize, value| {
            let mut port = PORT_NOW;
            port[at] = value;
            analysed(GLOBAL_NOW, port)
        };
        let of_all = |at: usize, value| {
            let mut global = GLOBAL_NOW;
            global[at] = value;
            analysed(global, PORT_NOW)
        };
        let on = || vec![IfMatch::Index(7)];
        let scope = |(_, effects): (Settings, Vec<Effect>)| effects[0].scope.clone();
        assert_eq!(scope(of_port(0, 0)), Scope::In(on(), Families::V4));
        let gone = PortLink { index: 7, name: "nosuchif0".into(), ..PortLink::default() };
        let ports = vec![(gone, switches(&[None; 8]))];
        let (settings, effects) = Sysctls { global: switches(&GLOBAL_NOW.map(Some)), bridges: vec![], ports }.analyse();
        assert_eq!((settings.gone, effects), ([7].into(), vec![]));
        assert_eq!(scope(of_port(2, 1)), Scope::In(on(), Families::V6));
        assert_eq!(scope(of_all(1, 1)), Scope::All(Families::V4));
        assert_eq!(scope(of_all(2, 1)), Scope::Errors(Families::V4));
        assert_eq!(scope(of_all(4, 0)), Scope::All(Families::V6));
        assert_eq!(scope(of_all(7, 1)), Scope::All(Families::V4));
        // Accepted redirects: for IPv4 on all interfaces and on this one, for IPv6 on one that does not forward.
        assert_eq!(scope(of_all(8, 1)), Scope::Out(on(), Families::V4));
        assert_eq!(scope(of_port(7, 0)), Scope::Out(on(), Families::V6));
        // On an interface that does not forward IPv4 while another does, one of both switches is enough.
        let among = |all: i64, own: i64| {
            let (mut global, mut port) = (GLOBAL_NOW, PORT_NOW);
            (global[8], port[0], port[5]) = (all, 0, own);
            let link = |index| PortLink { index, name: "r0".into(), ..PortLink::default() };
            let ports = [(7, port), (8, PORT_NOW)].map(|(index, of)| (link(index), switches(&of.map(Some))));
            let sysctls = Sysctls { global: switches(&global.map(Some)), bridges: vec![], ports: ports.into() };
            let out = Scope::Out(on(), Families::V4);
            sysctls.analyse().1.iter().any(|effect| effect.scope == out)
        };
        assert_eq!([among(0, 0), among(0, 1), among(1, 0)], [false, true, true]);
        // Without forwarding, one switch is to be set, and redirects do not matter.
        let (mut global, mut port) = (GLOBAL_NOW, PORT_NOW);
        (global[8], global[9], port[0]) = (1, 0, 0);
        let objects: Vec<String> = analysed(global, port).1.into_iter().map(|effect| effect.object).collect();
        assert_eq!(objects, ["sysctl net.ipv4.ip_forward=0"]);
        // The greater value of conf/all and the interface applies: 2 (loose) overrides 1 (strict).
        assert_eq!(of_port(1, 1).0.source_check[&7], SourceCheck::Strict);
        assert_eq!(of_all(0, 2).0.source_check[&7], SourceCheck::Loose);
        assert_eq!(of_all(3, 1).0.hash4, HashPolicy::L4);
        assert_eq!(of_all(5, 3).0.hash6, HashPolicy::Kernel);
    }
}
