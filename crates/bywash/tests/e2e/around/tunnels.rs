//! Tunnels: packets are encapsulated and decapsulated past the kernel as the kernel does it, and left to it where it
//! would do more.

mod changes;
mod networks;
pub mod same_bytes;

use super::ip;
use crate::harness::Bywash;
use bywash_lab::{Namespace, Ping, Probe, Topology, Transfer, kernel_has, require, require_lab};
use std::net::IpAddr;

/// A tunnel between the router and host b: name, kind and options, MTU, and the numbers of the networks in it (0 for
/// none). A VXLAN is over IPv6 with the option `over6`. With the option `chosen`, it has no address of its own at the
/// router; with `external`, neither, and it takes the headers from the routes there, which have the properties instead;
/// with `bridged`, it is a member of a bridge there, which has the addresses.
pub type Row = (&'static str, &'static str, u32, u8, u16);

const TUNNELS: [Row; 8] = [
    ("tg", "gre", 1476, 81, 81),
    ("tk", "gre key 7 ttl 33 tos 0x10", 1472, 82, 82),
    ("tn", "gre ikey 8 okey 9 tos inherit ttl 64 nopmtudisc", 1472, 83, 83),
    ("ti", "ipip ttl 64", 1480, 84, 0),
    ("ts", "sit ttl 64", 1480, 0, 85),
    ("tc", "gre key 10 chosen", 1472, 86, 86),
    ("tm", "gre key 11 csum", 1468, 80, 80),
    ("t6", "sit ttl inherit tos 0x20 nopmtudisc", 1480, 0, 0),
];

/// Two VXLANs: the first learns its stations, the second is told them.
pub const VXLANS: [Row; 2] = [
    ("tv", "vxlan id 87 dstport 4789", 1450, 87, 87),
    ("tw", "vxlan id 88 dstport 4789 nolearning noudpcsum ttl 9 tos inherit df set srcport 50000 50100", 1450, 88, 88),
];

/// The same without an address of their own at the router, for which the kernel chooses one.
pub const CHOSEN: [Row; 2] = [
    ("ta", "vxlan id 91 dstport 4789 chosen", 1450, 91, 91),
    ("tb", "vxlan id 92 dstport 4789 nolearning noudpcsum ttl 9 srcport 50000 50100 chosen", 1450, 92, 92),
];

/// Two VXLANs that are members of a bridge at the router, which has the addresses: VXLAN and bridge learn, and are
/// told.
pub const BRIDGED: [Row; 2] = [
    ("vl", "vxlan id 89 dstport 4789 bridged", 1450, 89, 89),
    ("vn", "vxlan id 90 dstport 4789 nolearning ttl 9 df set bridged", 1450, 90, 90),
];

/// Two VXLANs that take the headers of their packets from routes.
pub const EXTERNAL: [Row; 2] = [
    ("te", "vxlan id 93 dstport 4789 nolearning udpcsum external", 1450, 93, 93),
    ("tf", "vxlan id 94 dstport 4792 nolearning noudpcsum ttl 9 tos 0x10 srcport 50000 50100 external", 1450, 94, 94),
];

/// Two networks of one VXLAN at the router, which are VLANs of a bridge there; two VXLANs at host b.
pub const NETWORKS: [Row; 2] = [
    ("n1", "vxlan id 97 dstport 4789 noudpcsum ttl 9 tos inherit df set srcport 50000 50100 networks", 1450, 97, 97),
    ("n2", "vxlan id 98 dstport 4789 noudpcsum ttl 9 tos inherit df set srcport 50000 50100 networks", 1450, 98, 98),
];

/// Tunnels of other kinds that do.
const EXTERNAL_IP: [Row; 2] =
    [("gx", "gre key 95 ttl 9 tos 0x10 external", 1472, 95, 95), ("ix", "ipip ttl 64 external", 1480, 96, 0)];

fn has_tunnels() -> Probe {
    ["gre", "ipip", "sit"].into_iter().try_for_each(kernel_has)
}

/// Returns the options of a tunnel that takes headers from routes, and the headers that these have in place of its
/// other options.
fn outer_of(options: &str) -> (String, String) {
    let mut words = options.split(' ');
    let (mut own, mut outer) = (vec![words.next().unwrap(), "external"], vec![]);
    while let Some(word) = words.next() {
        match word {
            "key" => outer.extend(["key", "id", words.next().unwrap()]),
            "id" | "ttl" | "tos" => outer.extend([word, words.next().unwrap()]),
            "udpcsum" => outer.push("csum"),
            "noudpcsum" => {}
            word => own.push(word),
        }
    }
    (own.join(" "), outer.join(" "))
}

/// Adds a VXLAN of several networks, which are VLANs of a bridge with an interface in each: the first row gives the
/// other properties, and each one the VNI, which is the VLAN's number, too.
fn add_networks(r: &Namespace, rows: &[Row], local: IpAddr, remote: IpAddr) {
    let networks: Vec<_> = rows.iter().filter(|row| row.1.ends_with(" networks")).collect();
    let Some((_, options, mtu, first, _)) = networks.first() else { return };
    let options = options.strip_suffix(" networks").unwrap();
    let (_, properties) = options.strip_prefix("vxlan id ").unwrap().split_once(' ').unwrap();
    r.ip_batch(&format!(
        "link add brn address {} type bridge vlan_filtering 1 vlan_default_pvid 0 mcast_snooping 0\n\
         link add vxn type vxlan external vnifilter nolearning local {local} {properties}\n\
         link set vxn mtu {mtu} master brn up\nlink set brn up\n",
        mac_of(*first, 1)
    ))
    .unwrap();
    let bridge = |line: String| drop(r.run(&line.split(' ').collect::<Vec<_>>()).unwrap());
    bridge("bridge link set dev vxn vlan_tunnel on learning off".into());
    for (_, _, _, vni, v6) in networks {
        bridge(format!("bridge vni add dev vxn vni {vni}"));
        bridge(format!("bridge vlan add dev brn vid {vni} self"));
        bridge(format!("bridge vlan add dev vxn vid {vni}"));
        bridge(format!("bridge vlan add dev vxn vid {vni} tunnel_info id {vni}"));
        let mac = mac_of(*vni, 2);
        for mac in ["00:00:00:00:00:00", &mac] {
            bridge(format!("bridge fdb append {mac} dev vxn src_vni {vni} dst {remote} self"));
        }
        bridge(format!("bridge fdb add {mac} dev vxn vlan {vni} master static"));
        r.ip_batch(&format!(
            "link add link brn name brn.{vni} type vlan id {vni}\nlink set brn.{vni} up\n\
             address add 10.{vni}.0.1/24 dev brn.{vni}\naddress add fd{v6}::1/64 dev brn.{vni} nodad\n"
        ))
        .unwrap();
    }
}

/// A router with tunnels to host b.
pub struct Tunnels(pub Topology, &'static [Row]);

/// MAC address of a VXLAN, by number, at the router (1), where it may be its bridge's, or at host b (2).
pub fn mac_of(number: u8, host: u8) -> String {
    format!("02:00:00:00:{number:02x}:{host:02x}")
}

impl Tunnels {
    pub fn new(rows: &'static [Row]) -> Self {
        let lab = Topology::builder().static_neighbours(true).build().unwrap();
        let (r, b) = (lab.r(), lab.b());
        for (name, options, mtu, v4, v6) in rows {
            let over6 = options.starts_with("ip6") || options.contains(" over6");
            let [of_r, of_b]: [IpAddr; 2] = match over6 {
                true => [b.router_v6.into(), b.v6.into()],
                false => [b.router_v4.into(), b.v4.into()],
            };
            for (ns, local, remote, host) in [(r, of_r, of_b, 1), (&b.ns, of_b, of_r, 2)] {
                if host == 1 && options.ends_with(" networks") {
                    continue;
                }
                let by_routes = options.contains(" external");
                let external = by_routes && host == 1;
                let local = match external || (options.contains(" chosen") && host == 1) {
                    true => String::new(),
                    false => format!("local {local}"),
                };
                let ends = if external { String::new() } else { format!("{local} remote {remote}") };
                let bridge = (host == 1 && options.ends_with(" bridged")).then(|| format!("br{v4}"));
                let without = |options: String, word: &&str| options.replace(&format!(" {word}"), "");
                let options = ["over6", "chosen", "networks", "bridged"].iter().fold((*options).into(), without);
                let (options, outer) = match options.strip_suffix(" external") {
                    Some(options) if external => outer_of(options),
                    plain => (plain.unwrap_or(&options).to_owned(), String::new()),
                };
                let (kind, options) = options.split_once(' ').unwrap_or((&options, ""));
                let options = match host {
                    2 => options.replace("ikey 8 okey 9", "ikey 9 okey 8"),
                    _ => options.to_owned(),
                };
                // Without an interface below it or a remote, a tunnel does not know its MTU.
                let ethernet = kind == "vxlan" || kind.ends_with("tap");
                let address = if ethernet { format!("address {}", mac_of(*v4, host)) } else { String::new() };
                let mtu = if ethernet || external { format!("mtu {mtu}") } else { String::new() };
                let mut lines = String::new();
                let address = match &bridge {
                    Some(bridge) => {
                        lines = format!("link add {bridge} {address} type bridge\nlink set {bridge} up\n");
                        String::new()
                    }
                    None => address,
                };
                lines += &format!(
                    "link add name {name} {address} type {kind} {ends} {options}\n\
                     link set {name} {mtu} up\n"
                );
                lines += &bridge.iter().map(|bridge| format!("link set {name} master {bridge}\n")).collect::<String>();
                let of = bridge.as_deref().unwrap_or(name);
                if *v4 != 0 {
                    lines += &format!("address add 10.{v4}.0.{host}/24 dev {of}\n");
                }
                if *v6 != 0 {
                    lines += &format!("address add fd{v6}::{host}/64 dev {of} nodad\n");
                }
                if external && *v4 != 0 {
                    lines += &format!("route add 10.{v4}.0.2/32 encap ip {outer} dst {remote} dev {name}\n");
                }
                if external && *v6 != 0 {
                    lines += &format!("route add fd{v6}::2/128 encap ip {outer} dst {remote} dev {name}\n");
                }
                if by_routes && ethernet {
                    // Nothing answers solicitations that have no headers of a route.
                    let (mac, other) = (mac_of(*v4, 3 - host), 3 - host);
                    let neigh = |to: String| format!("neigh add {to} lladdr {mac} nud permanent dev {of}\n");
                    lines += &[format!("10.{v4}.0.{other}"), format!("fd{v6}::{other}")].map(neigh).concat();
                }
                ns.ip_batch(&lines).unwrap();
                if options.contains("nolearning") && !external {
                    let (mac, remote) = (mac_of(*v4, 3 - host), remote.to_string());
                    ns.run(&["bridge", "fdb", "add", &mac, "dev", name, "dst", &remote]).unwrap();
                    if bridge.is_some() {
                        ns.run(&["bridge", "link", "set", "dev", name, "learning", "off"]).unwrap();
                        ns.run(&["bridge", "fdb", "add", &mac, "dev", name, "master", "static"]).unwrap();
                    }
                }
            }
        }
        add_networks(r, rows, b.router_v4.into(), b.v4.into());
        Self(lab, rows)
    }

    /// Addresses of host b in a tunnel.
    pub fn of_b(v4: u8, v6: u16) -> impl Iterator<Item = IpAddr> {
        let v4 = (v4 != 0).then(|| ip(&format!("10.{v4}.0.2")));
        v4.into_iter().chain((v6 != 0).then(|| ip(&format!("fd{v6}::2"))))
    }

    /// Has host b's answers to host a go by a tunnel.
    pub fn answer_by(&self, name: &str, v4: u8, v6: u16) {
        let (a, b) = (self.0.a(), self.0.b());
        let ethernet = |row: &Row| row.1.starts_with("vxlan") || row.1.contains("gretap");
        let ethernet = self.1.iter().any(|row| row.0 == name && ethernet(row));
        let by = |carries: bool, via: String| if carries { format!("dev {name}") } else { format!("via {via}") };
        if ethernet {
            let lines =
                format!("route replace {}/32 via 10.{v4}.0.1\nroute replace {}/128 via fd{v6}::1\n", a.v4, a.v6);
            b.ns.ip_batch(&lines).unwrap();
            return;
        }
        b.ns.ip_batch(&format!(
            "route replace {}/32 {}\nroute replace {}/128 {}\n",
            a.v4,
            by(v4 != 0, b.router_v4.to_string()),
            a.v6,
            by(v6 != 0, b.router_v6.to_string()),
        ))
        .unwrap();
    }

    /// Fails if something is lost, changed or not answered as the kernel answers it.
    fn assert_connected(&self) {
        let (a, b) = (self.0.a(), self.0.b());
        for (name, _, mtu, v4, v6) in self.1 {
            self.answer_by(name, *v4, *v6);
            for to in Self::of_b(*v4, *v6) {
                let report = Ping::to(to).count(10).run(&a.ns).unwrap();
                assert_eq!((report.received, report.errors), (10, 0), "{name}, {to}: {}", report.text);
                let report = Transfer::new(500_000).run(&a.ns, &b.ns, to).unwrap();
                assert!(report.is_intact(), "{name}, {to}: {report:?}");
                let report = Ping::to(to).count(1).ttl(1).run(&a.ns).unwrap();
                assert_eq!((report.received, report.errors), (0, 1), "{name}, {to}: {}", report.text);
                // Longer than the tunnel's MTU, and as long.
                let head = if to.is_ipv4() { 28 } else { 48 };
                let report = Ping::to(to).count(1).size(mtu - head + 1).dont_fragment().run(&a.ns).unwrap();
                assert!(report.received == 0 && report.text.contains(&mtu.to_string()), "{name}: {}", report.text);
                let report = Ping::to(to).count(2).size(mtu - head).dont_fragment().run(&a.ns).unwrap();
                assert_eq!(report.received, 2, "{name}, {to}: {}", report.text);
            }
        }
    }

    /// Returns the packets of host a that were encapsulated, and those of host b that were decapsulated.
    pub fn moved(bywash: &Bywash<'_>) -> (u64, u64) {
        (bywash.events("r0", "encapsulated"), bywash.events("r1", "decapsulated"))
    }

    /// Fails unless packets of all tunnels pass without the kernel, in both directions.
    fn assert_carried(&self, bywash: &Bywash<'_>) {
        for (name, _, _, v4, v6) in self.1 {
            self.answer_by(name, *v4, *v6);
            for to in Self::of_b(*v4, *v6) {
                let before = Self::moved(bywash);
                let report = Ping::to(to).count(10).run(&self.0.a().ns).unwrap();
                assert_eq!(report.received, 10, "{name}, {to}: {}", report.text);
                let now = Self::moved(bywash);
                // The kernel may hear one, to renew a VXLAN's station.
                let moved = (now.0 - before.0, now.1 - before.1);
                assert!(moved.0 >= 10 && moved.1 >= 9, "{name}, {to}: {moved:?}; {}", bywash.show(&["all"]));
            }
        }
    }

    /// Sends five packets through VXLAN `tw`. Returns how many were answered, and how many were encapsulated.
    fn ping(&self, bywash: &Bywash<'_>) -> (u32, u64) {
        let before = Self::moved(bywash).0;
        let report = Ping::to(ip("10.88.0.2")).count(5).run(&self.0.a().ns).unwrap();
        (report.received, Self::moved(bywash).0 - before)
    }

    fn wait_for_tunnels(&self, bywash: &Bywash<'_>) {
        bywash.wait("tunnels to be carried", |bywash| {
            let before = Self::moved(bywash);
            let _ = Ping::to(ip(&format!("10.{}.0.2", self.1[0].3))).count(3).run(&self.0.a().ns);
            Self::moved(bywash).0 >= before.0 + 3
        });
    }

    /// Starts a router at level `user`, and waits until host b is a known station of VXLAN `tw`.
    fn run_with_station(&self) -> Bywash<'_> {
        let bywash = Bywash::run(self.0.r(), &["--level", "user", "r0", "r1"]);
        self.wait_for_tunnels(&bywash);
        self.answer_by("tw", 88, 88);
        bywash.wait("the station to be known", |_| self.ping(&bywash) == (5, 5));
        bywash
    }
}

#[test]
fn tunnels_are_forwarded_past_the_kernel() {
    require!(require_lab(), has_tunnels());
    forwards(&TUNNELS[..7], "10.0.2.1 to 10.0.2.2");
}

#[test]
fn vxlans_are_forwarded_past_the_kernel() {
    require!(require_lab(), kernel_has("vxlan"));
    forwards(&VXLANS, "10.0.2.1 to 10.0.2.2");
}

#[test]
fn vxlans_without_an_address_are_forwarded_past_the_kernel() {
    require!(require_lab(), kernel_has("vxlan"));
    forwards(&CHOSEN, "any to 10.0.2.2");
}

#[test]
fn vxlans_with_headers_of_routes_are_forwarded_past_the_kernel() {
    require!(require_lab(), kernel_has("vxlan"));
    forwards(&EXTERNAL, "by routes");
}

#[test]
fn tunnels_with_headers_of_routes_are_forwarded_past_the_kernel() {
    require!(require_lab(), has_tunnels());
    forwards(&EXTERNAL_IP, "by routes");
}

/// The kernel asks for a neighbour with the headers of the packet that waits for it.
#[test]
fn neighbours_behind_headers_of_routes_are_resolved() {
    require!(require_lab(), kernel_has("vxlan"));
    let tunnels = Tunnels::new(&EXTERNAL);
    let r = tunnels.0.r();
    r.ip(&["neigh", "del", "10.93.0.2", "dev", "te"]).unwrap();
    tunnels.answer_by("te", 93, 93);
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    tunnels.wait_for_tunnels(&bywash);
    let known = r.ip(&["neigh", "show", "10.93.0.2", "dev", "te"]).unwrap().stdout;
    assert!(known.contains(&mac_of(93, 2)) && !known.contains("PERMANENT"), "{known}");
    bywash.stop();
}

#[test]
fn vxlans_in_bridges_are_forwarded_past_the_kernel() {
    require!(require_lab(), kernel_has("vxlan"));
    forwards(&BRIDGED, "10.0.2.1 to 10.0.2.2");
}

/// Fails unless routers at level `user`, with generic and with native XDP, carry the packets of all tunnels; `check` is
/// given each of them.
fn carries(rows: &'static [Row], check: impl Fn(&Tunnels, &Bywash<'_>)) {
    let tunnels = Tunnels::new(rows);
    tunnels.assert_connected();
    for more in [&[][..], &["--xdp", "native"]] {
        let arguments = [&["--level", "user"][..], more, &["r0", "r1"]].concat();
        let bywash = Bywash::run(tunnels.0.r(), &arguments);
        tunnels.wait_for_tunnels(&bywash);
        tunnels.assert_carried(&bywash);
        tunnels.assert_connected();
        check(&tunnels, &bywash);
        bywash.stop();
        tunnels.assert_connected();
    }
}

pub fn forwards(rows: &'static [Row], ends: &str) {
    carries(rows, |tunnels, bywash| {
        let shown = bywash.port("r1");
        let kind = rows[0].1.split(' ').next().unwrap();
        let above = shown["above"].as_array().unwrap().iter();
        let is_tunnel = |of: &&serde_json::Value| of["ends"] == ends || of["name"] == "tc" || of["name"] == "gc";
        let above: Vec<_> = above.filter(|of| of["kind"] == "bridge" || is_tunnel(of)).collect();
        let bridges = above.iter().filter(|of| of["kind"] == "bridge").count();
        assert_eq!(bridges, if rows[0].1.ends_with(" bridged") { rows.len() } else { 0 }, "{shown}");
        assert_eq!(above.len() - bridges, rows.len(), "{shown}");
        assert!(above.iter().any(|of| of["kind"] == kind), "{shown}");
        let left = "link add left type vxlan id 99 dstport 4790 remote 10.0.2.2 ttl inherit\nlink set left up";
        tunnels.0.r().ip_batch(left).unwrap();
        bywash.wait("the reason for which it is left", |bywash| {
            let shown = bywash.port("r1")["above"].as_array().unwrap().clone();
            let left = shown.iter().find(|of| of["name"] == "left");
            left.is_some_and(|of| of["left"].as_str().is_some_and(|why| why.contains("not followed")))
        });
        tunnels.0.r().ip(&["link", "del", "left"]).unwrap();
    });
}
