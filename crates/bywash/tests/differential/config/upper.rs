//! Interfaces above ports: VLANs, bonds, VRFs, bridges with their stations, macvlans, and VXLANs.

use super::Object;
use crate::change::Change;
use crate::packets::NETWORKS;
use crate::random::Random;
use crate::topology::{self, HOSTS, PORTS, host_mac, router_mac, text};

fn ip(line: String) -> Change {
    Change::Ip(line)
}

/// Returns the changes that make a new interface as quiet as the ports are.
pub fn new(name: &str, line: String) -> Vec<Change> {
    let sysctl = |key: String| Change::Sysctl(key, "0".into());
    // No duplicate address detection: link-local addresses are there at once.
    let mut add = vec![sysctl("net/ipv6/conf/default/accept_dad".into()), ip(line)];
    add.extend(["rp_filter", "send_redirects"].map(|key| sysctl(format!("net/ipv4/conf/{name}/{key}"))));
    for family in ["ipv4", "ipv6"] {
        add.extend(["mcast_solicit", "ucast_solicit"].map(|key| sysctl(format!("net/{family}/neigh/{name}/{key}"))));
    }
    add
}

/// Returns the changes that move a port's subnets and neighbours to an interface above it, and those that move them
/// back.
fn moved(n: usize, name: &str) -> (Vec<Change>, Vec<Change>) {
    let mut there = vec![
        ip(format!("address del 10.0.{n}.1/24 dev p{n}")),
        ip(format!("address del fd00:{n}::1/64 dev p{n}")),
        ip(format!("address add 10.0.{n}.1/24 dev {name}")),
        ip(format!("address add fd00:{n}::1/64 dev {name} nodad")),
    ];
    let of = |change: Change| match change {
        Change::Ip(line) => Change::Ip(line.replace(&format!("dev p{n}"), &format!("dev {name}"))),
        other => other,
    };
    there.extend(topology::neighbours(n - 1).into_iter().map(of));
    let mut back = vec![
        ip(format!("address add 10.0.{n}.1/24 dev p{n}")),
        ip(format!("address add fd00:{n}::1/64 dev p{n} nodad")),
    ];
    back.extend(topology::neighbours(n - 1));
    (there, back)
}

/// Returns the changes that give an interface subnets of its own.
pub fn addresses(name: &str, net: u32) -> Vec<Change> {
    vec![
        ip(format!("address add 10.{net}.0.1/24 dev {name}")),
        ip(format!("address add fd00:{net}::1/64 dev {name} nodad")),
    ]
}

/// Returns the changes that give an interface subnets of its own, in which hosts have the MAC addresses of `mac`.
fn subnets(name: &str, net: u32, mac: impl Fn(usize) -> String) -> Vec<Change> {
    let mut add = addresses(name, net);
    for host in 2..2 + HOSTS {
        for address in [format!("10.{net}.0.{host}"), format!("fd00:{net}::{host}")] {
            add.push(ip(format!("neighbour replace {address} lladdr {} nud permanent dev {name}", mac(host))));
        }
    }
    add
}

/// Returns the numbers of one to `most` neighbouring ports, from `first` on.
fn members(random: &Random, first: usize, most: usize) -> Vec<usize> {
    (0..1 + random.below(most)).map(|more| (first - 1 + more) % PORTS + 1).collect()
}

/// Returns the address of a host, or with number 1 the router's, on the link of a port.
pub fn address(v6: bool, port: usize, host: usize) -> String {
    if v6 { format!("fd00:{port}::{host}") } else { format!("10.0.{port}.{host}") }
}

/// Returns the address of a host, as the other end of a tunnel.
pub fn end(random: &Random, v6: bool) -> String {
    address(v6, 1 + random.below(PORTS), 2 + random.below(HOSTS))
}

/// Returns a VLAN interface of a port, which may have the port's subnets.
pub fn vlan(random: &Random, named: u32) -> Object {
    let (n, name) = (1 + random.below(PORTS), format!("vl{named}"));
    let protocol = random.pick(&["802.1Q", "802.1Q", "802.1Q", "802.1ad"]);
    let option = random.pick(&["", "", "", " reorder_hdr off", " egress-qos-map 0:3", " ingress-qos-map 3:1"]);
    let id = 1 + named % 4094;
    let mut add = new(&name, format!("link add link p{n} name {name} type vlan protocol {protocol} id {id}{option}"));
    if random.chance(20) {
        add.push(ip(format!("link set {name} mtu {}", random.pick(&[1280, 1400, 1496]))));
    }
    add.push(ip(format!("link set {name} up")));
    let mut remove = vec![ip(format!("link del {name}"))];
    if random.chance(60) {
        let (there, back) = moved(n, &name);
        add.extend(there);
        remove.extend(back);
    } else {
        add.extend(subnets(&name, 100 + named % 100, |host| text(host_mac(n - 1, host))));
    }
    Object::new(add, remove)
}

/// Returns a bond of one or two ports, with the first one's subnets. The kernel refuses members that belong to another
/// interface.
pub fn bond(random: &Random, named: u32) -> Object {
    let (n, name) = (1 + random.below(PORTS), format!("bo{named}"));
    let mode = random.pick(&[
        "active-backup",
        "balance-xor xmit_hash_policy layer2",
        "balance-xor xmit_hash_policy layer2+3",
        "balance-xor xmit_hash_policy layer3+4",
    ]);
    let mut add = new(&name, format!("link add {name} type bond miimon 10 mode {mode}"));
    let mut remove = vec![ip(format!("link del {name}"))];
    for member in members(random, n, 2) {
        add.push(ip(format!("link set p{member} down")));
        add.push(ip(format!("link set p{member} master {name}")));
        remove.push(ip(format!("link set p{member} up")));
        remove.extend(topology::neighbours(member - 1));
    }
    add.push(ip(format!("link set {name} up")));
    let (there, back) = moved(n, &name);
    add.extend(there);
    remove.extend(back);
    Object::new(add, remove)
}

/// Returns a VRF of one or two ports.
pub fn vrf(random: &Random, named: u32) -> Object {
    let (n, name) = (1 + random.below(PORTS), format!("vr{named}"));
    let mut add = new(&name, format!("link add {name} type vrf table {}", 1000 + named));
    add.push(ip(format!("link set {name} up")));
    let mut remove = vec![ip(format!("link del {name}"))];
    for member in members(random, n, 2) {
        // The kernel sets the port down and up again.
        let mut again = vec![ip(format!("address replace fd00:{member}::1/64 dev p{member} nodad"))];
        again.extend(topology::neighbours(member - 1));
        add.push(ip(format!("link set p{member} master {name}")));
        add.extend(again.iter().cloned());
        remove.extend(again);
    }
    // The last change tells whether there is such an interface.
    add.push(ip(format!("link set {name} up")));
    Object::new(add, remove)
}

/// Returns a macvlan with the address that a port has had, to which packets are sent.
pub fn macvlan(random: &Random, named: u32) -> Object {
    let (n, name) = (1 + random.below(PORTS), format!("mv{named}"));
    let own = text(router_mac(n - 1));
    let mode = random.pick(&["private", "vepa", "bridge", "bridge", "private", "source"]);
    let mut add = vec![ip(format!("link set p{n} address 02:00:00:00:01:{n:02x}"))];
    add.extend(new(&name, format!("link add link p{n} name {name} address {own} type macvlan mode {mode}")));
    add.push(ip(format!("link set {name} up")));
    let mut remove = vec![ip(format!("link del {name}")), ip(format!("link set p{n} address {own}"))];
    if random.chance(80) {
        let (there, back) = moved(n, &name);
        add.extend(there);
        remove.extend(back);
    }
    Object::new(add, remove)
}

/// Returns a bridge of one to three ports, one of which may give it its subnets. The kernel refuses members that belong
/// to another bridge.
pub fn bridge(random: &Random, named: u32) -> Object {
    let (first, name) = (1 + random.below(PORTS), format!("br{named}"));
    let members = members(random, first, 3);
    let ageing = random.pick(&[30000, 30000, 200]);
    let mut add = new(&name, format!("link add {name} type bridge mcast_snooping 0 ageing_time {ageing}"));
    let mut remove = vec![ip(format!("link del {name}"))];
    for n in &members {
        add.push(ip(format!("link set p{n} master {name}")));
    }
    add.push(ip(format!("link set {name} up")));
    if random.chance(80) {
        // The first member's subnets move to the bridge; a host of another member has an address there.
        let n = first;
        let (there, back) = moved(n, &name);
        add.extend(there);
        remove.extend(back);
        let (other, host) = (random.pick(&members), 2 + random.below(HOSTS));
        for address in [format!("10.0.{n}.{}", 20 + host), format!("fd00:{n}::{}", 20 + host)] {
            let mac = text(host_mac(other - 1, host));
            add.push(ip(format!("neighbour replace {address} lladdr {mac} nud permanent dev {name}")));
        }
    }
    if random.chance(50) {
        let (n, host) = (random.pick(&members), 2 + random.below(HOSTS));
        let mac = text(host_mac(first - 1, host));
        add.push(Change::Run(format!(
            "bridge fdb replace {mac} dev p{n} master {}",
            random.pick(&["static", "dynamic"])
        )));
    }
    let option = match random.below(10) {
        0 => Some("learning off"),
        1 => Some("isolated on"),
        2 => Some("hairpin on"),
        3 => Some("locked on"),
        _ => None,
    };
    if let Some(option) = option {
        add.push(ip(format!("link set p{first} type bridge_slave {option}")));
    }
    Object::new(add, remove)
}

/// Returns a bridge of one to three ports that filters VLANs, which each port has with a tag, without one, or not at
/// all. The router may have an interface in each, with subnets of its own, and stations may be there from the
/// beginning.
pub fn trunk(random: &Random, named: u32) -> Object {
    let (first, name) = (1 + random.below(PORTS), format!("bt{named}"));
    let members = members(random, first, 3);
    let (pvid, run) = (random.pick(&[0, 0, 1]), |line: String| Change::Run(format!("bridge {line}")));
    let options = format!("vlan_filtering 1 vlan_default_pvid {pvid} mcast_snooping 0");
    let mut add = new(&name, format!("link add {name} type bridge {options}"));
    for n in &members {
        add.push(ip(format!("link set p{n} master {name}")));
    }
    let networks = random.chance(50);
    let has_filter = random.chance(50);
    if networks {
        add.extend(network_device(random, named, &name, has_filter));
    }
    for vlan in [5, 6, 7] {
        if networks {
            add.extend(network(random, named, vlan, has_filter));
        }
        for n in &members {
            let how = random.pick(&["", "", "", " pvid untagged", " pvid untagged", " untagged", " pvid"]);
            if random.chance(85) {
                add.push(run(format!("vlan add dev p{n} vid {vlan}{how}")));
            }
            let mac = text(host_mac(n - 1, 2 + random.below(HOSTS)));
            if random.chance(60) {
                add.push(run(format!("fdb replace {mac} dev p{n} vlan {vlan} master static")));
            }
        }
        if random.chance(50) {
            let upper = format!("{name}.{vlan}");
            add.push(run(format!("vlan add dev {name} vid {vlan} self")));
            add.extend(new(&upper, format!("link add link {name} name {upper} type vlan id {vlan}")));
            if random.chance(20) {
                // Not followed: the kernel has the VLAN's frames.
                add.push(ip(format!("link set {upper} address 02:00:00:00:05:{vlan:02x}")));
            }
            add.push(ip(format!("link set {upper} up")));
            let behind = random.pick(&members) - 1;
            add.extend(subnets(&upper, 100 + (3 * named + vlan) % 100, |host| match networks && host % 2 == 0 {
                true => station(named, host),
                false => text(host_mac(behind, host)),
            }));
        }
    }
    add.push(ip(format!("link set {name} up")));
    let mut remove = vec![ip(format!("link del {name}"))];
    if networks {
        remove.push(ip(format!("link del vn{named}")));
    }
    Object::new(add, remove)
}

/// Returns the MAC address of a station behind a VXLAN, whose third byte is that of its host (`packets`).
fn station(named: u32, host: usize) -> String {
    format!("02:00:{host:02x}:04:{:02x}:{:02x}", named >> 8 & 0xff, named & 0xff)
}

/// Returns a VXLAN whose networks are VLANs of a bridge.
fn network_device(random: &Random, named: u32, bridge: &str, has_filter: bool) -> Vec<Change> {
    let name = format!("vn{named}");
    let filter = if has_filter { " vnifilter" } else { "" };
    let own = format!("02:00:00:05:{:02x}:{:02x}", named >> 8 & 0xff, named & 0xff);
    let mut line = format!("link add {name} address {own} type vxlan external{filter} nolearning dstport {NETWORKS}");
    if random.chance(80) {
        line += &format!(" local {}", address(false, 1 + random.below(PORTS), 1));
    }
    line += random.pick(&[" ttl 9", " ttl auto", " df set"]);
    line += random.pick(&["", " tos 0x10", " tos inherit"]);
    line += random.pick(&[" udpcsum", " noudpcsum"]);
    let mut add = new(&name, line);
    add.push(ip(format!("link set {name} mtu {} master {bridge} up", random.pick(&[1450, 1450, 1500]))));
    let (tunnel, learning) = (random.pick(&["on", "on", "on", "off"]), random.pick(&["off", "off", "on"]));
    add.push(ip(format!("link set {name} type bridge_slave vlan_tunnel {tunnel} learning {learning}")));
    add
}

/// Returns a VLAN of a bridge as a network of its VXLAN, with stations behind the ports' hosts.
fn network(random: &Random, named: u32, vlan: u32, has_filter: bool) -> Vec<Change> {
    let (name, vni) = (format!("vn{named}"), 10 * named + vlan);
    let mut add = vec![];
    let mut run = |line: String| add.push(Change::Run(format!("bridge {line}")));
    if has_filter && random.chance(90) {
        run(format!("vni add dev {name} vni {vni}"));
    }
    run(format!("vlan add dev {name} vid {vlan}{}", random.pick(&["", "", "", "", " untagged"])));
    if random.chance(90) {
        run(format!("vlan add dev {name} vid {vlan} tunnel_info id {vni}"));
    }
    for host in 2..2 + HOSTS {
        let mac = station(named, host);
        if random.chance(80) {
            run(format!("fdb replace {mac} dev {name} vlan {vlan} master static"));
        }
        if random.chance(85) {
            let to = if random.chance(5) { vni + 1 } else { vni };
            run(format!("fdb append {mac} dev {name} src_vni {vni} dst {} vni {to} self", end(random, false)));
        }
    }
    add
}

/// Returns a VXLAN that takes the headers of its packets from routes, with a subnet and routes to the stations in it.
fn external(random: &Random, named: u32) -> Object {
    let (name, net, v6) = (format!("vx{named}"), 100 + named % 100, random.chance(30));
    let tail = format!("{:02x}:{:02x}", named >> 8 & 0xff, named & 0xff);
    // All VXLANs of one port must be alike in this.
    let port = random.pick(&[4789, 4790, 4793, 4793, 4793]);
    let mut line = format!("link add {name} address 02:00:00:03:{tail} type vxlan external dstport {port}");
    if v6 || random.chance(10) {
        line += &format!(" local {}", address(v6, 1 + random.below(PORTS), 1));
    }
    line += if random.chance(10) { "" } else { " nolearning" };
    line += if v6 { random.pick(&["", " udp6zerocsumrx"]) } else { "" };
    let mut add = new(&name, line);
    add.push(ip(format!("link set {name} mtu {} up", random.pick(&[1450, 1450, 1280, 1500]))));
    add.extend(subnets(&name, net, |host| format!("02:00:{host:02x}:04:{tail}")));
    add.extend(with_headers(random, named, &name, v6, &["", " csum", " csum", " key", " seq"]));
    // The last change tells whether there is such an interface.
    add.push(ip(format!("link set {name} up")));
    Object::new(add, vec![ip(format!("link del {name}"))])
}

/// Returns routes to the stations in the subnets of a tunnel, which give its packets headers, mostly of IPv6 if `v6`,
/// with one of these flags.
pub fn with_headers(random: &Random, named: u32, name: &str, v6: bool, flags: &[&str]) -> Vec<Change> {
    let (net, mut add) = (100 + named % 100, vec![]);
    for host in 2..2 + HOSTS {
        for to in [format!("10.{net}.0.{host}/32"), format!("fd00:{net}::{host}/128")] {
            let family = if to.contains(':') { "-6 " } else { "" };
            let end = end(random, v6 != random.chance(5));
            let [encap, ttl, tos] = if end.contains(':') { ["ip6", "hoplimit", "tc"] } else { ["ip", "ttl", "tos"] };
            let mut headers = format!("{encap} id {} dst {end}", named + u32::from(random.chance(10)));
            if random.chance(10) {
                headers += &format!(" src {}", address(end.contains(':'), 1 + random.below(PORTS), 1));
            }
            if random.chance(40) {
                headers += &format!(" {ttl} {}", random.pick(&[1, 9, 64]));
            }
            if random.chance(40) {
                headers += &format!(" {tos} {}", random.pick(&["0x10", "1", "0xff"]));
            }
            headers += random.pick(flags);
            if random.chance(85) {
                add.push(ip(format!("{family}route replace {to} encap {headers} dev {name}")));
            }
        }
    }
    add
}

/// Returns a VXLAN of one of the router's addresses, perhaps in a bridge, with a subnet and stations behind the ports'
/// hosts.
pub fn vxlan(random: &Random, named: u32) -> Object {
    if random.chance(20) {
        return external(random, named);
    }
    let (n, name) = (1 + random.below(PORTS), format!("vx{named}"));
    let (net, tail) = (100 + named % 100, format!("{:02x}:{:02x}", named >> 8 & 0xff, named & 0xff));
    let v6 = random.chance(40);
    let learns = random.chance(30);
    let bridge = random.chance(40).then(|| format!("vb{named}"));
    // Packets are sent to the interface with the addresses (`packets`).
    let (own, member) = (format!("02:00:00:03:{tail}"), format!("02:00:00:05:{tail}"));
    let mut line = format!(
        "link add {name} address {} type vxlan id {named} dstport {}",
        if bridge.is_some() { &member } else { &own },
        random.pick(&[4789, 4789, 4789, 4789, 4790])
    );
    let remote = random.chance(70);
    if remote {
        line += &format!(" remote {}", end(random, v6));
    }
    // Without any address, it is over IPv4.
    if random.chance(80) || (v6 && !remote) {
        line += &format!(" local {}", address(v6, n, 1));
    }
    // A tunnel that inherits its TTL or DF flag is left to the kernel, with all packets: keep such tunnels rare.
    let inherits = |random: &Random| random.chance(3);
    line += if inherits(random) { " ttl inherit" } else { random.pick(&[" ttl 9", " ttl auto"]) };
    line += random.pick(&["", "", " tos 0x10", " tos inherit"]);
    line += if inherits(random) { " df inherit" } else { random.pick(&["", " df set"]) };
    line += match v6 {
        true => random.pick(&[" noudp6zerocsumtx", " udp6zerocsumtx", " udp6zerocsumtx udp6zerocsumrx"]),
        false => random.pick(&[" udpcsum", " noudpcsum"]),
    };
    line += if learns { "" } else { " nolearning" };
    let mut add = new(&name, line);
    add.push(ip(format!("link set {name} mtu {} up", random.pick(&[1450, 1450, 1450, 1280, 1500]))));
    let mut remove = vec![ip(format!("link del {name}"))];
    let mut told = false;
    if let Some(bridge) = &bridge {
        add.extend(new(bridge, format!("link add {bridge} address {own} type bridge mcast_snooping 0")));
        add.push(ip(format!("link set {name} master {bridge}")));
        add.push(ip(format!("link set {bridge} up")));
        let option = random.pick(&["learning off", "learning off", "learning on", "isolated on", "locked on"]);
        told = option == "learning off";
        if option != "locked on" || random.chance(20) {
            add.push(ip(format!("link set {name} type bridge_slave {option}")));
        }
        remove.push(ip(format!("link del {bridge}")));
        // Hosts behind other members, whose addresses are in `packets`, too.
        for member in random.chance(60).then(|| members(random, n, 2)).into_iter().flatten() {
            add.push(ip(format!("link set p{member} master {bridge}")));
            if random.chance(80) {
                let (there, back) = moved(member, bridge);
                add.extend(there);
                remove.extend(back);
            }
            for host in (2..2 + HOSTS).filter(|_| random.chance(70)) {
                let mac = text(host_mac(member - 1, host));
                add.push(Change::Run(format!("bridge fdb replace {mac} dev p{member} master static")));
            }
        }
    }
    let of = bridge.as_ref().unwrap_or(&name);
    let station = |host: usize| station(named, host);
    add.extend(subnets(of, net, station));
    for host in 2..2 + HOSTS {
        let mac = station(host);
        if bridge.is_some() && (told || random.chance(50)) && random.chance(90) {
            add.push(Change::Run(format!("bridge fdb replace {mac} dev {name} master static")));
        }
        if random.chance(85) {
            // A station that is learned is behind the end that its frames come from.
            let end = if learns { address(v6, n, host) } else { end(random, v6) };
            let more = if random.chance(5) { " vni 7" } else { "" };
            add.push(Change::Run(format!("bridge fdb add {mac} dev {name} dst {end}{more}")));
        }
    }
    // The last change tells whether there is such an interface.
    add.push(ip(format!("link set {name} up")));
    Object::new(add, remove)
}
