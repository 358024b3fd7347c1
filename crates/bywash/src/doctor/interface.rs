//! Checks of an interface.

use super::finding::Severity::{Error, Note, Warning};
use super::finding::{Finding, Fix};
use crate::config::{cell_for, largest_mtu};
use bywash_port::af_xdp::{DeviceFeatures, Features, LinkInfo, driver, is_of_an_instance};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// Largest MTU that fits a cell of the default size.
const MTU_OF_A_CELL: u32 = largest_mtu(2048) as u32;
/// IFF_UP (linux/if.h).
const UP: u32 = 1;

/// Properties of an examined interface.
#[derive(Debug, Serialize)]
pub struct Properties {
    pub interface: String,
    pub driver: String,
    pub mtu: u32,
    pub queues: u32,
    /// True if XDP frames can be redirected to the interface; `None` if the kernel does not report it.
    pub takes_redirected: Option<bool>,
    /// True if the driver supports zero-copy; `None` if the kernel does not report it.
    pub zero_copy: Option<bool>,
    /// Metadata that the driver provides for received frames.
    pub rx_metadata: Vec<&'static str>,
    /// Metadata that the driver accepts for frames sent by AF_XDP.
    pub tx_metadata: Vec<&'static str>,
    /// ID and mode of the attached XDP program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Peer of a veth, if it is in this namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
}

/// Examines an interface. `user` is the mode of the instance at `socket` if that uses the interface; `cpus` is the
/// number of available CPUs. A missing interface is reported as a finding.
pub fn examine(name: &str, (user, socket): (Option<&str>, &Path), cpus: usize) -> (Option<Properties>, Vec<Finding>) {
    let link = match LinkInfo::query(name) {
        Ok(link) => link,
        Err(why) => {
            let gone = Finding::new(Error, "no-interface", why.to_string(), "it cannot be used as a port");
            return (None, vec![gone.see("ip link show").of(name)]);
        }
    };
    if name == "lo" {
        let what = "it is the loopback interface, which receives nothing from other machines";
        return (
            None,
            vec![Finding::new(Error, "loopback", what, "it cannot be used as a port").see("ip link show").of(name)],
        );
    }
    let driver = driver(name).unwrap_or_else(|| link.kind.clone());
    let sys = Path::new("/sys/class/net").join(name);
    // /sys may show another namespace with an interface of the same name: compare the index.
    let sys = (number(&sys.join("ifindex")) == Some(link.index)).then_some(sys);
    let peer = if driver == "veth" { sys.as_deref().and_then(|sys| peer(sys, link.index)) } else { None };
    let can = DeviceFeatures::of(link.index);
    let takes = can.as_ref().map(|can| can.takes_frames);
    let nic = Nic { name, link: &link, veth: driver == "veth", peer: peer.as_deref(), sys };
    let mut found = vec![];
    found.extend(nic.state());
    found.extend(nic.other_users(user.is_some(), socket));
    found.extend(nic.offloads());
    found.extend(nic.redirects(takes));
    // An instance has buffers for the MTU of an interface that it uses, or has said that it has not.
    found.extend(nic.size(cpus).into_iter().filter(|finding| user.is_none() || finding.id != "jumbo"));
    found.extend(nic.steering());
    // Only a router leaves packets to the kernel's forwarding.
    if user.is_none_or(|mode| mode == "router") {
        found.extend(nic.forwarding());
    }
    let program = link.program.map(|(id, mode)| format!("{id}, {mode}"));
    let seen = Properties {
        interface: name.into(),
        driver,
        mtu: link.mtu,
        queues: link.queues,
        takes_redirected: takes,
        zero_copy: can.as_ref().map(|can| can.zero_copy),
        rx_metadata: can.as_ref().map_or(vec![], |can| can.rx_metadata.clone()),
        tx_metadata: can.map_or(vec![], |can| can.tx_metadata),
        program,
        peer,
    };
    (Some(seen), found.into_iter().map(|finding| finding.of(name)).collect())
}

/// Reports an XDP program that the examined instance did not attach. `instance` tells whether another instance of
/// Bywash did, if that is known.
fn program(name: &str, (id, mode): (u32, &str), instance: Option<bool>, socket: &Path) -> Finding {
    let costs = "bywash cannot attach its own";
    match instance {
        Some(true) => {
            let socket = socket.display();
            let what = format!("another instance of Bywash forwards here (its socket is not {socket})");
            let mend = "end that instance, or name its socket with `--socket`";
            Finding::new(Error, "another-instance", what, costs).mend(mend)
        }
        Some(false) => {
            let what = format!("another XDP program is attached (id {id}, {mode}): `bpftool prog show id {id}`");
            let word = if mode == "generic" { "xdpgeneric" } else { "xdp" };
            let mend =
                format!("end the program that attached it or, if no link holds it, ip link set dev {name} {word} off");
            Finding::new(Error, "foreign-program", what, costs).mend(mend)
        }
        None => {
            let what = format!("an XDP program is attached (id {id}, {mode}); only root can read whose it is");
            let costs = "if it is not that of a running bywash, bywash cannot attach its own";
            Finding::new(Warning, "unknown-program", what, costs).mend("run `bywash doctor` as root, with sudo")
        }
    }
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number(path: &Path) -> Option<u32> {
    text(path)?.parse().ok()
}

/// Returns the peer of a veth if it is in this namespace. The peer's index alone is not enough: another interface of
/// this namespace may have it.
fn peer(sys: &Path, index: u32) -> Option<String> {
    let other = number(&sys.join("iflink"))?;
    let all = fs::read_dir(sys.parent()?).ok()?.flatten();
    let found = all.map(|entry| entry.path()).find(|entry| number(&entry.join("ifindex")) == Some(other))?;
    // A peer in another namespace may even have this interface's own index.
    let mutual = found != sys && number(&found.join("iflink")) == Some(index);
    mutual.then(|| found.file_name().map(|name| name.to_string_lossy().into_owned())).flatten()
}

struct Nic<'a> {
    name: &'a str,
    link: &'a LinkInfo,
    veth: bool,
    peer: Option<&'a str>,
    /// Directory in /sys; `None` if /sys shows another namespace.
    sys: Option<PathBuf>,
}

impl Nic<'_> {
    fn file(&self, name: &str) -> Option<PathBuf> {
        Some(self.sys.as_ref()?.join(name))
    }

    /// Checks that the interface is up and has a carrier.
    fn state(&self) -> Option<Finding> {
        let path = self.file("flags")?;
        let flags = u32::from_str_radix(text(&path)?.trim_start_matches("0x"), 16).ok()?;
        if flags & UP == 0 {
            let fix = Fix::File { path: path.display().to_string(), value: format!("{:#x}", flags | UP) };
            return Some(Finding::new(Error, "down", "it is down", "no packet is received or sent").fix(fix));
        }
        if number(&self.file("carrier")?)? == 0 {
            let what = "it has no carrier";
            let mend = match self.peer {
                Some(peer) => format!("ip link set {peer} up"),
                None => "connect the cable, or bring up the peer".into(),
            };
            return Some(Finding::new(Error, "no-carrier", what, "no packet is received or sent").mend(mend));
        }
        None
    }

    /// Checks for other users of the interface: XDP programs, a master, interfaces on top of it.
    fn other_users(&self, ours: bool, socket: &Path) -> Vec<Finding> {
        let name = self.name;
        let mut found = vec![];
        if let Some((id, mode)) = self.link.program.filter(|_| !ours) {
            found.push(program(name, (id, mode), is_of_an_instance(id), socket));
        }
        let Some(sys) = &self.sys else { return found };
        let is = |device: &str, kinds: &[&str]| {
            let of = text(&sys.with_file_name(device).join("uevent")).unwrap_or_default();
            of.lines().filter_map(|line| line.strip_prefix("DEVTYPE=")).any(|kind| kinds.contains(&kind))
        };
        let master = fs::read_link(sys.join("master")).ok().and_then(|m| m.file_name()?.to_str().map(str::to_owned));
        // The driver gives teams no DEVTYPE.
        let is_team = |master: &str| driver(master).as_deref() == Some("team");
        // A router forwards for these through their members, or reports why not.
        if let Some(master) =
            master.as_ref().filter(|master| !is(master, &["bond", "bridge", "vrf"]) && !is_team(master))
        {
            let costs = "a router leaves its packets to the kernel";
            let what = format!("it is a member of {master}");
            found.push(Finding::new(Error, "enslaved", what, costs).mend(format!("ip link set {name} nomaster")));
        }
        let entries = fs::read_dir(sys).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let uppers: Vec<String> = names.filter_map(|name| Some(name.strip_prefix("upper_")?.to_owned())).collect();
        // A macvtap has the same driver, and a character device as its other end.
        let macvlan = |upper: &str| {
            driver(upper).as_deref() == Some("macvlan") && !sys.with_file_name(upper).join("macvtap").exists()
        };
        // A router forwards for VLANs, macvlans and VXLANs, or leaves them alone to the kernel.
        let others =
            |upper: &&String| Some(*upper) != master.as_ref() && !is(upper, &["vlan", "vxlan"]) && !macvlan(upper);
        let on_top: Vec<&String> = uppers.iter().filter(others).collect();
        if let Some(first) = on_top.first() {
            let what = format!("there are interfaces on top of it, such as {first}");
            let costs = "a router may leave all its packets to the kernel: see `bywash show placement`";
            found.push(Finding::new(Warning, "interfaces-on-top", what, costs).mend(format!("ip link del {first}")));
        }
        found
    }

    /// Checks for offloads that change frames before XDP programs see them.
    fn offloads(&self) -> Vec<Finding> {
        let mut found = vec![];
        let Ok(features) = Features::of(self.name) else { return found };
        let on = |features: &Features, name: &str| features.get(name).ok().flatten() == Some(true);
        let off = |interface: &str, feature: &str| Fix::Feature {
            interface: interface.into(),
            feature: feature.into(),
            on: false,
        };
        for (id, feature, what) in [
            ("lro", "rx-lro", "the device merges TCP segments (LRO)"),
            ("gro-hw", "rx-gro-hw", "the device merges TCP segments (hardware GRO)"),
            ("gro-list", "rx-gro-list", "UDP datagrams are collected in lists (rx-gro-list)"),
            ("udp-gro", "rx-udp-gro-forwarding", "UDP datagrams are merged (rx-udp-gro-forwarding)"),
        ] {
            if on(&features, feature) {
                let costs = "merged packets cannot be forwarded as they arrived: they are left to the kernel";
                found.push(Finding::new(Warning, id, what, costs).fix(off(self.name, feature)));
            }
        }
        let hidden = "XDP programs do not see the tag: tagged frames are left to the kernel, or appear untagged";
        if !self.veth && on(&features, "rx-vlan-hw-parse") {
            let what = "the device strips VLAN tags";
            found.push(Finding::new(Note, "vlan-offload", what, hidden).fix(off(self.name, "rx-vlan-hw-parse")));
        }
        let Some((peer, Ok(theirs))) = self.peer.map(|peer| (peer, Features::of(peer))) else { return found };
        if on(&theirs, "tx-vlan-hw-insert") {
            let what = format!("its peer {peer} passes VLAN tags outside the frame");
            found.push(Finding::new(Note, "vlan-offload", what, hidden).fix(off(peer, "tx-vlan-hw-insert")));
        }
        if on(&theirs, "tx-checksum-ip-generic") {
            let what = format!("its peer {peer} sends partial transport checksums (CHECKSUM_PARTIAL)");
            let costs = "workers complete them, which requires reading every byte";
            let mend = format!("ethtool -K {peer} tx off");
            found.push(Finding::new(Note, "checksum-offload", what, costs).mend(mend));
        }
        found
    }

    /// Checks that XDP frames can be redirected to the interface.
    fn redirects(&self, takes: Option<bool>) -> Option<Finding> {
        if takes != Some(false) {
            return None;
        }
        let costs = "native XDP cannot forward packets to this interface; traffic control can";
        if !self.veth {
            let what = "its driver does not accept frames redirected by XDP programs of other interfaces";
            return Some(Finding::new(Note, "no-redirect", what, costs));
        }
        let what = "the peer of this veth has neither GRO enabled nor an XDP program";
        let finding = Finding::new(Warning, "no-redirect", what, costs);
        Some(match self.peer {
            Some(peer) => finding.fix(Fix::Feature { interface: peer.into(), feature: "rx-gro".into(), on: true }),
            None => finding.mend("ethtool -K PEER gro on in the peer's namespace"),
        })
    }

    /// Checks the MTU and the number of queues.
    fn size(&self, cpus: usize) -> Vec<Finding> {
        let (name, mut found) = (self.name, vec![]);
        if self.link.mtu > MTU_OF_A_CELL {
            let what =
                format!("its MTU is {}: packets longer than {MTU_OF_A_CELL} bytes need larger buffers", self.link.mtu);
            let costs =
                "`bywash run` refuses the interface; if the MTU is raised later, longer packets are the kernel's";
            let cell = cell_for(self.link.mtu as usize).unwrap_or(16384);
            let mend = format!("set `cell = {cell}` in [pool], or lower the MTU");
            found.push(Finding::new(Warning, "jumbo", what, costs).mend(mend));
        }
        // A bridge, for example, has no channels that could be added.
        let has_channels = self.veth || self.file("device").is_none_or(|device| device.exists());
        if self.link.queues == 1 && cpus > 1 && has_channels {
            let what = format!("it has 1 receive queue; the machine has {cpus} CPUs");
            let costs = "only one worker can receive from it";
            let mend = if self.veth {
                format!("ethtool -L {name} rx {cpus} tx {cpus}")
            } else {
                format!("ethtool -L {name} combined {cpus}")
            };
            found.push(Finding::new(Note, "one-queue", what, costs).mend(mend));
        }
        found
    }

    /// Checks which CPUs handle its packets.
    fn steering(&self) -> Vec<Finding> {
        let mut found = vec![];
        let Some(sys) = &self.sys else { return found };
        let queues = fs::read_dir(sys.join("queues")).into_iter().flatten().flatten();
        let mut steered: Vec<PathBuf> = queues.map(|entry| entry.path().join("rps_cpus")).collect();
        steered.sort();
        for path in steered {
            let Some(mask) = text(&path).filter(|mask| mask.contains(|c: char| !"0,".contains(c))) else { continue };
            let what = format!("packets are steered to other CPUs in software (RPS, mask {mask})");
            let costs = "frames are moved to another CPU before an XDP program sees them";
            let fix = Fix::File { path: path.display().to_string(), value: "0".into() };
            found.push(Finding::new(Warning, "rps", what, costs).fix(fix));
        }
        let irqs = fs::read_dir(sys.join("device/msi_irqs")).into_iter().flatten().flatten();
        let affinity =
            |irq: fs::DirEntry| text(&Path::new("/proc/irq").join(irq.file_name()).join("effective_affinity_list"));
        let cpus: Vec<String> = irqs.filter_map(affinity).collect();
        if cpus.len() > 2 && cpus.iter().all(|cpu| *cpu == cpus[0]) {
            let what = format!("all its {} interrupts are handled by CPU {}", cpus.len(), cpus[0]);
            let costs = "one CPU does the kernel's receive work for all queues";
            let mend = "distribute them: /proc/irq/N/smp_affinity_list, or irqbalance";
            found.push(Finding::new(Warning, "interrupts", what, costs).mend(mend));
        }
        let nodes = text(Path::new("/sys/devices/system/node/online")).unwrap_or_default();
        if let Some(node) = text(&sys.join("device/numa_node")).filter(|node| !node.starts_with('-'))
            && nodes != "0"
        {
            let what = format!("it belongs to NUMA node {node} (online: {nodes})");
            let costs = "workers on CPUs of another node access its memory more slowly";
            let list = format!("/sys/devices/system/node/node{node}/cpulist");
            let mend =
                format!("set `cpus` in [workers] to CPUs of this node: {}", text(Path::new(&list)).unwrap_or(list));
            found.push(Finding::new(Note, "numa", what, costs).mend(mend));
        }
        found
    }

    /// Checks that the kernel forwards the packets left to it, and that no redirect changes the routes of the others.
    fn forwarding(&self) -> Vec<Finding> {
        let four = format!("/proc/sys/net/ipv4/conf/{}/forwarding", self.name);
        // The kernel has one IPv6 forwarding setting for all interfaces.
        let six = "/proc/sys/net/ipv6/conf/all/forwarding".to_owned();
        let off = |path: &str| text(Path::new(path)).is_some_and(|value| value == "0");
        let finding = |id, family| {
            let what = format!("the kernel does not forward {family}");
            Finding::new(Error, id, what, "packets left to the kernel are lost, and all packets once bywash exits")
        };
        let fix = |path| Fix::File { path, value: "1".into() };
        let mut found = vec![];
        if off(&four) {
            found.push(finding("ipv4-forwarding", "IPv4").fix(fix(four)));
        }
        // With forwarding, redirects are accepted if this setting and that of all interfaces are on. Setting ip_forward
        // turns the latter off, setting an interface's forwarding does not (inet_forward_change in the kernel).
        let on = |path: &str| text(Path::new(path)).is_some_and(|value| value == "1");
        let redirects = format!("/proc/sys/net/ipv4/conf/{}/accept_redirects", self.name);
        if on("/proc/sys/net/ipv4/conf/all/accept_redirects") && on(&redirects) {
            let what = "the kernel accepts ICMP redirects, which change the routes of IPv4 packets";
            let costs = "IPv4 packets that leave by this interface are left to the kernel";
            found.push(
                Finding::new(Warning, "accept-redirects", what, costs)
                    .fix(Fix::File { path: redirects, value: "0".into() }),
            );
        }
        if off(&six) {
            let six_off = finding("ipv6-forwarding", "IPv6");
            // The host may be reached by these routes: the operator decides.
            found.push(match advertised(&fs::read_to_string("/proc/net/ipv6_route").unwrap_or_default(), accepts) {
                loses if loses.is_empty() => six_off.fix(fix(six)),
                loses => six_off.mend(keep_advertised(&loses)),
            });
        }
        found
    }
}

/// Returns the setting `accept_ra` of an interface.
fn accepts(interface: &str) -> Option<u32> {
    number(Path::new(&format!("/proc/sys/net/ipv6/conf/{interface}/accept_ra")))
}

/// Returns the interfaces in `routes`, the text of /proc/net/ipv6_route, whose default route is from a router
/// advertisement and would be removed once the kernel forwards IPv6: all whose `accept_ra`, which `accepts` returns, is
/// not 2 (Documentation/networking/ip-sysctl.rst).
fn advertised(routes: &str, accepts: impl Fn(&str) -> Option<u32>) -> Vec<&str> {
    // RTF_DEFAULT and RTF_ADDRCONF (linux/ipv6_route.h).
    const FLAGS: u32 = 0x0001_0000 | 0x0004_0000;
    let mut found: Vec<&str> = routes
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace().skip(8);
            let (flags, interface) = (u32::from_str_radix(words.next()?, 16).ok()?, words.next()?);
            (flags & FLAGS == FLAGS && accepts(interface) != Some(2)).then_some(interface)
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns the command that has the kernel forward IPv6 and keep these interfaces' advertised default routes.
fn keep_advertised(interfaces: &[&str]) -> String {
    let accept = interfaces.iter().map(|interface| format!("net/ipv6/conf/{interface}/accept_ra=2 "));
    let accept: String = accept.collect();
    let names = interfaces.join(" and ");
    format!("sysctl -w {accept}net/ipv6/conf/all/forwarding=1 (with accept_ra=1, {names} would lose the default route)")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines are the kernel's.
    #[test]
    fn advertised_default_routes_are_found() {
        let zero = "00000000000000000000000000000000";
        let routes = format!(
            "{zero} 00 {zero} 00 fe80000000000000000000000000dead 00000400 00000001 00000000 00450003     eth0\n\
             {zero} 00 {zero} 00 fe80000000000000000000000000beef 00000400 00000001 00000000 00000003     eth1\n\
             {zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n"
        );
        assert_eq!(advertised(&routes, |_| Some(1)), ["eth0"]);
        assert!(advertised(&routes, |_| Some(2)).is_empty());
    }

    #[test]
    fn a_program_is_recognised_by_its_owner() {
        let of = |instance, mode| program("r0", (7, mode), instance, Path::new("/run/bywash/bywash.sock"));
        let other = of(Some(true), "native");
        assert_eq!(other.id, "another-instance");
        assert!(other.what.ends_with("(its socket is not /run/bywash/bywash.sock)"), "{}", other.what);
        assert!(of(Some(false), "generic").mend.ends_with("ip link set dev r0 xdpgeneric off"));
        assert_eq!(of(None, "native").id, "unknown-program");
    }
}
