//! Tunnels: packets are encapsulated and decapsulated past the kernel as the kernel does it, and left to it where it
//! would do more.

use super::ip;
use crate::harness::Bywash;
use crate::raw::{Ear, send};
use bywash_lab::{Ping, Probe, Topology, Transfer, kernel_has, require, require_lab};
use bywash_wire::ipv4::fill_checksum;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

/// A tunnel between the router and host b: name, kind and options, MTU, and the numbers of the networks in it (0 for
/// none). A VXLAN is over IPv6 with the option `over6`. With the option `chosen`, it has no address of its own at the
/// router; with `external`, neither, and it takes the headers from the routes there, which have the properties instead.
pub type Row = (&'static str, &'static str, u32, u8, u16);

const TUNNELS: [Row; 7] = [
    ("tg", "gre", 1476, 81, 81),
    ("tk", "gre key 7 ttl 33 tos 0x10", 1472, 82, 82),
    ("tn", "gre ikey 8 okey 9 tos inherit ttl 64 nopmtudisc", 1472, 83, 83),
    ("ti", "ipip ttl 64", 1480, 84, 0),
    ("ts", "sit ttl 64", 1480, 0, 85),
    ("tc", "gre key 10 chosen", 1472, 86, 86),
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
    ("vl", "vxlan id 89 dstport 4789", 1450, 89, 89),
    ("vn", "vxlan id 90 dstport 4789 nolearning ttl 9 df set", 1450, 90, 90),
];

/// Two VXLANs that take the headers of their packets from routes.
pub const EXTERNAL: [Row; 2] = [
    ("te", "vxlan id 93 dstport 4789 nolearning udpcsum external", 1450, 93, 93),
    ("tf", "vxlan id 94 dstport 4792 nolearning noudpcsum ttl 9 tos 0x10 srcport 50000 50100 external", 1450, 94, 94),
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
                let by_routes = options.contains(" external");
                let external = by_routes && host == 1;
                let local = match external || (options.contains(" chosen") && host == 1) {
                    true => String::new(),
                    false => format!("local {local}"),
                };
                let ends = if external { String::new() } else { format!("{local} remote {remote}") };
                let options = options.replace(" over6", "").replace(" chosen", "");
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
                let ethernet = kind == "vxlan";
                let address = if ethernet { format!("address {}", mac_of(*v4, host)) } else { String::new() };
                let mtu = if ethernet || external { format!("mtu {mtu}") } else { String::new() };
                let bridge = (host == 1 && BRIDGED.iter().any(|row| row.0 == *name)).then(|| format!("br{v4}"));
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
        let ethernet = self.1.iter().any(|row| row.0 == name && row.1.starts_with("vxlan"));
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
}

#[test]
fn tunnels_are_forwarded_past_the_kernel() {
    require!(require_lab(), has_tunnels());
    forwards(&TUNNELS[..6], "10.0.2.1 to 10.0.2.2");
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

pub fn forwards(rows: &'static [Row], ends: &str) {
    let tunnels = Tunnels::new(rows);
    tunnels.assert_connected();
    for more in [&[][..], &["--xdp", "native"]] {
        let arguments = [&["--level", "user"][..], more, &["r0", "r1"]].concat();
        let bywash = Bywash::run(tunnels.0.r(), &arguments);
        tunnels.wait_for_tunnels(&bywash);
        tunnels.assert_carried(&bywash);
        tunnels.assert_connected();
        let shown = bywash.port("r1");
        let kind = rows[0].1.split(' ').next().unwrap();
        let above = shown["above"].as_array().unwrap().iter();
        let is_tunnel = |of: &&serde_json::Value| of["ends"] == ends || of["name"] == "tc";
        let above: Vec<_> = above.filter(|of| of["kind"] == "bridge" || is_tunnel(of)).collect();
        let bridges = above.iter().filter(|of| of["kind"] == "bridge").count();
        assert_eq!(bridges, if rows[0].0 == BRIDGED[0].0 { rows.len() } else { 0 }, "{shown}");
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
        bywash.stop();
        tunnels.assert_connected();
    }
}

/// Each change leaves the packets to the kernel, or has them dropped, as the kernel would.
#[test]
fn tunnels_change() {
    require!(require_lab(), has_tunnels(), bywash_lab::has_tool("nft"));
    let tunnels = Tunnels::new(&TUNNELS[..6]);
    let (a, b, r) = (tunnels.0.a(), tunnels.0.b(), tunnels.0.r());
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    tunnels.wait_for_tunnels(&bywash);
    tunnels.answer_by("tg", 81, 81);
    // Returns the answers of host b, and the packets that were encapsulated for them.
    let ping = |to: &str| {
        let before = Tunnels::moved(&bywash).0;
        let report = Ping::to(ip(to)).count(5).run(&a.ns).unwrap();
        (report.received, Tunnels::moved(&bywash).0 - before)
    };
    // The host's own packets have rules.
    for hook in ["input", "output"] {
        let rules =
            format!("table inet own {{ chain c {{ type filter hook {hook} priority 0; ip protocol gre drop; }}; }}");
        r.nft(&rules).unwrap();
        let (received, _) = ping("10.81.0.2");
        assert_eq!(received, 0, "past the rule of hook {hook}");
        let kept = bywash.placement("r1")["kept"].to_string();
        assert!(kept.contains("table inet own") && kept.contains("packets in the tunnel"), "{kept}");
        r.nft("delete table inet own").unwrap();
        let rules = "icmp type destination-unreachable accept; ct state invalid drop; ct state established accept; \
                     ip saddr 10.0.2.0/24 ip protocol { gre, ipip, ipv6 } accept";
        r.nft(&format!("table ip own {{ chain c {{ type filter hook {hook} priority 0; policy drop; {rules}; }}; }}"))
            .unwrap();
        bywash.wait("packets in tunnels past rules that accept them", |_| ping("10.81.0.2") == (5, 5));
        r.nft("delete table ip own").unwrap();
        tunnels.wait_for_tunnels(&bywash);
    }
    // IPv6 is encapsulated in IPv4, which has rules where IPv6 has none.
    let sit = || {
        let before = Tunnels::moved(&bywash).0;
        let report = Ping::to(ip("fd81::2")).count(5).run(&a.ns).unwrap();
        (report.received, Tunnels::moved(&bywash).0 - before)
    };
    for rules in [
        "chain c { type filter hook postrouting priority 0; ip protocol gre drop; }",
        "chain c { type nat hook postrouting priority 100; ip protocol gre masquerade random; }",
        "chain c { type filter hook postrouting priority 0; oifname \"r1\" ip protocol gre drop; }",
    ] {
        bywash.wait("IPv6 in the tunnel", |_| sit() == (5, 5));
        r.nft(&format!("table ip own {{ {rules}; }}")).unwrap();
        let (received, encapsulated) = sit();
        assert!(encapsulated == 0 && received == if rules.contains("drop") { 0 } else { 5 }, "{rules}");
        r.nft("delete table ip own").unwrap();
    }
    // Masquerading that changes nothing; connection tracking sees a packet every ten seconds.
    let nat = "chain c { type nat hook postrouting priority 100; oifname r1 masquerade; }";
    r.nft(&format!("table ip own {{ {nat}; }}")).unwrap();
    bywash.wait("IPv6 in the tunnel beside masquerading", |_| matches!(sit(), (5, 4..=5)));
    r.nft("delete table ip own").unwrap();
    tunnels.wait_for_tunnels(&bywash);
    // Rules may route the packets around those in the tunnels.
    r.ip(&["rule", "add", "to", "10.0.2.2", "lookup", "77"]).unwrap();
    bywash.wait("tunnels to be the kernel's", |_| ping("10.81.0.2") == (5, 0));
    r.ip(&["rule", "del", "to", "10.0.2.2", "lookup", "77"]).unwrap();
    tunnels.wait_for_tunnels(&bywash);
    // Down, and up again.
    r.ip(&["link", "set", "tg", "down"]).unwrap();
    assert_eq!(ping("10.81.0.2").0, 0);
    r.ip(&["link", "set", "tg", "up"]).unwrap();
    tunnels.wait_for_tunnels(&bywash);
    // Another key.
    r.ip(&["link", "change", "tk", "type", "gre", "key", "70"]).unwrap();
    assert_eq!(ping("10.82.0.2").0, 0, "by the old key");
    b.ns.ip(&["link", "change", "tk", "type", "gre", "key", "70"]).unwrap();
    bywash.wait("the new key", |_| ping("10.82.0.2") == (5, 5));
    // A smaller MTU of the path: for senders, that of the tunnel is smaller.
    r.ip(&["route", "replace", "10.0.2.2/32", "dev", "r1", "mtu", "1300"]).unwrap();
    bywash.wait("the MTU of the path", |_| {
        let report = Ping::to(ip("10.81.0.2")).count(1).size(1260).dont_fragment().run(&a.ns).unwrap();
        report.received == 0 && report.text.contains("1276")
    });
    let report = Ping::to(ip("10.81.0.2")).count(2).size(1276 - 28).dont_fragment().run(&a.ns).unwrap();
    assert_eq!(report.received, 2, "{}", report.text);
    r.ip(&["route", "del", "10.0.2.2/32", "dev", "r1"]).unwrap();
    a.ns.ip(&["route", "flush", "cache"]).unwrap();
    tunnels.wait_for_tunnels(&bywash);
    // Another tunnel that takes its packets.
    r.ip(&["link", "add", "tw", "type", "gre", "local", "10.0.2.1", "dev", "r1"]).unwrap();
    bywash.wait("tunnels to be the kernel's", |_| ping("10.81.0.2") == (5, 0));
    assert!(bywash.log().contains("tg: gre interface tw may take its packets"), "{}", bywash.log());
    r.ip(&["link", "del", "tw"]).unwrap();
    tunnels.wait_for_tunnels(&bywash);
    // Gone.
    r.ip(&["link", "del", "tg"]).unwrap();
    let report = Ping::to(ip("10.81.0.2")).count(3).run(&a.ns).unwrap();
    assert_eq!(report.received, 0, "{}", report.text);
    bywash.assert_conserved();
    bywash.stop();
}

pub fn ipv4(tos: u8, ttl: u8, fragment: u16, protocol: u8, ends: (Ipv4Addr, Ipv4Addr), payload: &[u8]) -> Vec<u8> {
    let total = (20 + payload.len() as u16).to_be_bytes();
    let fragment = fragment.to_be_bytes();
    let head = [0x45, tos, total[0], total[1], 0x12, 0x34, fragment[0], fragment[1], ttl, protocol, 0, 0];
    let mut packet = [&head[..], &ends.0.octets(), &ends.1.octets(), payload].concat();
    fill_checksum(&mut packet);
    packet
}

pub fn ipv6(class: u8, hops: u8, ends: (Ipv6Addr, Ipv6Addr), payload: &[u8]) -> Vec<u8> {
    let (len, class) = ((payload.len() as u16).to_be_bytes(), u32::from(class) << 20 | 0x6000_1234);
    let head = [len[0], len[1], 253, hops];
    [&class.to_be_bytes()[..], &head, &ends.0.octets(), &ends.1.octets(), payload].concat()
}

pub fn frame(to: &str, from: &str, kind: u16, packet: &[u8]) -> Vec<u8> {
    let mac = |text: &str| text.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect::<Vec<u8>>();
    [&mac(to)[..], &mac(from), &kind.to_be_bytes(), packet].concat()
}

/// Clears the fields that the kernel chooses as it likes: identification, and with it the checksum.
fn masked(mut frame: Vec<u8>) -> Vec<u8> {
    frame[18..20].fill(0);
    frame[24..26].fill(0);
    frame
}

/// Payload of the nth packet, by which it is recognised. The protocol is that for experiments (RFC 3692).
pub fn payload(n: usize) -> Vec<u8> {
    format!("bywash{n:04}").into_bytes()
}

fn number(frame: &[u8]) -> Option<usize> {
    let at = frame.windows(6).position(|window| window == b"bywash")?;
    std::str::from_utf8(frame.get(at + 6..at + 10)?).ok()?.parse().ok()
}

/// Sends frames, and returns those that arrive with their numbers, in the order of these.
fn passed(tunnels: &Tunnels, from_a: bool, frames: &[Vec<u8>], last: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let (a, b) = (tunnels.0.a(), tunnels.0.b());
    let (from, to) = if from_a { (a, b) } else { (b, a) };
    let ear = Ear::at(&to.ns, &to.interface);
    for chunk in frames.chunks(16) {
        let some: Vec<_> = chunk.iter().map(|frame| (1, frame.clone())).collect();
        send(&from.ns, &from.interface, &some);
        std::thread::sleep(Duration::from_millis(20));
    }
    // The last one comes through in any case, after all others.
    std::thread::sleep(Duration::from_millis(300));
    send(&from.ns, &from.interface, &[(1, last.to_owned())]);
    ear.wait(1, |frame| number(frame) == Some(9999));
    let heard = ear.heard().into_iter().filter_map(|frame| Some((number(&frame)?, frame)));
    let mut all: Vec<_> = heard.filter(|(n, _)| *n != 9999).collect();
    all.sort();
    all
}

/// Packets of all kinds leave encapsulated by the same bytes as without the program.
#[test]
fn packets_are_encapsulated_as_the_kernel_does() {
    require!(require_lab(), has_tunnels());
    let tunnels = Tunnels::new(&TUNNELS[..6]);
    let (b, r) = (tunnels.0.b(), tunnels.0.r());
    // Another tunnel of kind `sit`, which needs another address of the router or the host.
    let (name, options, ..) = TUNNELS[6];
    r.ip_batch(&format!(
        "address add 10.0.2.101/24 dev r1\nlink add name {name} type {options} local 10.0.2.101 remote {}\nlink set {name} up\n\
         route add fd99::/64 dev {name}\n",
        b.v4
    ))
    .unwrap();
    encapsulates(&tunnels, &[81, 82, 83, 84, 86], &[0xfd81, 0xfd82, 0xfd83, 0xfd85, 0xfd86, 0xfd99], masked);
}

#[test]
fn packets_with_headers_of_routes_are_encapsulated_as_the_kernel_does() {
    require!(require_lab(), has_tunnels());
    let tunnels = Tunnels::new(&EXTERNAL_IP);
    encapsulates(&tunnels, &[95, 96], &[0xfd95], masked);
}

/// A tunnel that the kernel prefers, and rules that translate addresses, leave one with headers from routes to the
/// kernel.
#[test]
fn tunnels_with_headers_of_routes_are_left() {
    require!(require_lab(), has_tunnels(), bywash_lab::has_tool("nft"));
    let tunnels = Tunnels::new(&EXTERNAL_IP);
    let (a, r) = (tunnels.0.a(), tunnels.0.r());
    tunnels.answer_by("gx", 95, 95);
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    let carried = |bywash: &Bywash<'_>| {
        let before = Tunnels::moved(bywash);
        let report = Ping::to(ip("10.95.0.2")).count(3).run(&a.ns).unwrap();
        assert_eq!(report.received, 3, "{}", report.text);
        Tunnels::moved(bywash) != before
    };
    bywash.wait("packets past the kernel", carried);
    for (left, again) in [
        ("ip link add gz type gre local 10.0.2.1 remote 10.0.2.99 key 3; ip link set gz up", "ip link del gz"),
        (
            "nft 'table ip t { chain c { type nat hook postrouting priority 100; oifname nobody masquerade; }; }'",
            "nft delete table ip t",
        ),
    ] {
        r.run(&["sh", "-c", left]).unwrap();
        bywash.wait("packets by the kernel", |bywash| !carried(bywash));
        r.run(&["sh", "-c", again]).unwrap();
        bywash.wait("packets past the kernel again", carried);
    }
    bywash.stop();
}

#[test]
fn frames_are_encapsulated_as_the_kernel_does() {
    frames_are_encapsulated(&VXLANS);
}

#[test]
fn frames_with_a_chosen_source_are_encapsulated_as_the_kernel_does() {
    frames_are_encapsulated(&CHOSEN);
}

#[test]
fn frames_with_headers_of_routes_are_encapsulated_as_the_kernel_does() {
    frames_are_encapsulated(&EXTERNAL);
}

fn frames_are_encapsulated(rows: &'static [Row; 2]) {
    require!(require_lab(), kernel_has("vxlan"));
    let tunnels = Tunnels::new(rows);
    // The kernel would leave the checksum to the device.
    tunnels.0.r().run(&["ethtool", "-K", "r1", "tx", "off"]).unwrap();
    // The source port has the kernel's secret hash in it; the checksum is right, or there is none.
    let masked = |mut frame: Vec<u8>| {
        let udp = &frame[34..];
        let header: &[u8; 20] = frame[14..34].try_into().unwrap();
        let sum = bywash_wire::checksum::pseudo4(header, 17, udp.len() as u16) + bywash_wire::checksum::Sum::of(udp);
        let (none, right) = (udp[6..8] == [0, 0], sum.is_valid());
        let source = u16::from_be_bytes([udp[0], udp[1]]);
        let range = if none { 50000..50100 } else { 32768..60999 };
        assert!(range.contains(&source), "{source}");
        frame[34..36].fill(0);
        frame[40..42].copy_from_slice(&[u8::from(none), u8::from(right)]);
        masked(frame)
    };
    let nets6 = rows.map(|row| 0xfd00 | u16::from_str_radix(&row.4.to_string(), 16).unwrap());
    encapsulates(&tunnels, &rows.map(|row| row.3), &nets6, masked);
}

pub fn encapsulates(tunnels: &Tunnels, nets4: &[u8], nets6: &[u16], masked: impl Fn(Vec<u8>) -> Vec<u8>) {
    let (a, b, r) = (tunnels.0.a(), tunnels.0.b(), tunnels.0.r());
    let mut frames = vec![];
    let mut add = |packet: &dyn Fn(&[u8]) -> Vec<u8>| {
        let packet = packet(&payload(frames.len()));
        let kind = if packet[0] >> 4 == 6 { 0x86dd } else { 0x0800 };
        frames.push(frame(&a.router_mac, &a.mac, kind, &packet));
    };
    for net in nets4 {
        for (tos, ttl, fragment) in [
            (0, 64, 0),
            (0xb8, 2, 0x4000),
            (0x11, 255, 0),
            (0x2, 9, 0x4000),
            (0x3, 64, 0),
            (0xff, 64, 0x4000),
            (0, 64, 0x2000),
        ] {
            let to = Ipv4Addr::new(10, *net, 0, 2);
            add(&|payload| ipv4(tos, ttl, fragment, 253, (a.v4, to), &[payload, &[7; 31]].concat()));
        }
    }
    for net in nets6 {
        for (class, hops) in [(0, 64), (0xb8, 2), (0x2, 9), (0x3, 64), (0xff, 255)] {
            let to = Ipv6Addr::new(*net, 0, 0, 0, 0, 0, 0, 2);
            add(&|payload| ipv6(class, hops, (a.v6, to), payload));
        }
    }
    // Padding is not encapsulated.
    add(&|payload| ipv4(0, 64, 0, 253, (a.v4, Ipv4Addr::new(10, nets4[0], 0, 2)), payload));
    frames.last_mut().unwrap().extend([0xaa; 40]);
    let last = ipv4(0, 64, 0, 253, (a.v4, b.v4), b"bywash9999");
    let last = frame(&a.router_mac, &a.mac, 0x0800, &last);
    // Neighbours in a VXLAN are known afterwards.
    tunnels.assert_connected();
    let kernels = passed(tunnels, true, &frames, &last);
    assert_eq!(kernels.len(), frames.len(), "the kernel sends them");
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    tunnels.wait_for_tunnels(&bywash);
    tunnels.assert_carried(&bywash);
    let before = Tunnels::moved(&bywash).0;
    let ours = passed(tunnels, true, &frames, &last);
    let encapsulated = Tunnels::moved(&bywash).0 - before;
    assert_eq!(encapsulated, frames.len() as u64, "{}", bywash.show(&["all"]));
    for ((n, theirs), (m, ours)) in kernels.into_iter().zip(ours) {
        assert_eq!((n, masked(theirs)), (m, masked(ours)));
    }
    bywash.stop();
}

/// Packets around others, right and wrong in all ways: the same packets come out as without the program.
#[test]
fn packets_are_decapsulated_as_the_kernel_does() {
    require!(require_lab(), has_tunnels());
    let tunnels = Tunnels::new(&TUNNELS[..6]);
    let (a, b) = (tunnels.0.a(), tunnels.0.b());
    let ends = (b.v4, b.router_v4);
    let (mut frames, mut plain) = (vec![], 0);
    // Adds the packet around another, which is given by the flags and key of GRE or else by the protocol; `taken` if it
    // is decapsulated past the kernel.
    let mut add = |taken: bool, around: &dyn Fn(&[u8]) -> Vec<u8>, within: &dyn Fn(&[u8]) -> Vec<u8>| {
        let packet = around(&within(&payload(frames.len())));
        plain += u64::from(taken);
        frames.push(frame(&b.router_mac, &b.mac, 0x0800, &packet));
    };
    let gre = |flags: u16, kind: u16, more: &[u8], payload: &[u8]| {
        [&flags.to_be_bytes()[..], &kind.to_be_bytes(), more, payload].concat()
    };
    let around = |tos: u8, ttl: u8, fragment: u16, protocol: u8| {
        move |payload: &[u8]| ipv4(tos, ttl, fragment, protocol, ends, payload)
    };
    let (from4, from6) = (Ipv4Addr::new(10, 81, 0, 2), Ipv6Addr::new(0xfd81, 0, 0, 0, 0, 0, 0, 2));
    let in4 = |payload: &[u8]| ipv4(0, 64, 0, 253, (from4, a.v4), payload);
    let in6 = |payload: &[u8]| ipv6(0, 64, (from6, a.v6), payload);
    let plain4 = |payload: &[u8]| gre(0, 0x0800, &[], payload);
    // Every tunnel and family.
    add(true, &|p| around(0, 64, 0, 47)(&plain4(p)), &in4);
    add(true, &|p| around(0, 64, 0x4000, 47)(&gre(0, 0x86dd, &[], p)), &in6);
    add(true, &|p| around(0, 64, 0, 47)(&gre(0x2000, 0x0800, &[0, 0, 0, 7], p)), &in4);
    add(true, &|p| around(0, 64, 0, 47)(&gre(0x2000, 0x86dd, &[0, 0, 0, 8], p)), &in6);
    add(true, &|p| around(0, 64, 0, 4)(p), &in4);
    add(true, &|p| around(0, 64, 0, 41)(p), &in6);
    // Congestion marks, around and within.
    for tos in 0..4 {
        for within in 0..4 {
            add(tos & 1 == 0, &|p| around(tos, 64, 0, 47)(&plain4(p)), &|p| ipv4(within, 64, 0, 253, (from4, a.v4), p));
            add(tos & 1 == 0, &|p| around(tos, 64, 0, 41)(p), &|p| ipv6(within, 64, (from6, a.v6), p));
        }
    }
    // Faults of the outer packet: TTL, a fragment, another key, flags, versions, protocols, ends.
    add(false, &|p| around(0, 1, 0, 47)(&plain4(p)), &in4);
    add(false, &|p| around(0, 64, 0x2000, 47)(&plain4(p)), &in4);
    for (flags, kind, more) in [
        (0x2000u16, 0x0800u16, &[0, 0, 0, 70][..]),
        (0x2000, 0x0800, &[0, 0, 0, 9]),
        (0x2000, 0x0800, &[]),
        (0x8000, 0x0800, &[0, 0, 0, 0]),
        (0x1000, 0x0800, &[0, 0, 0, 1]),
        (0x4000, 0x0800, &[0, 0, 0, 0]),
        (0x0001, 0x0800, &[]),
        (0x0008, 0x0800, &[]),
        (0, 0x6558, &[]),
        (0, 0x0806, &[]),
    ] {
        add(false, &|p| around(0, 64, 0, 47)(&gre(flags, kind, more, p)), &in4);
    }
    add(false, &|p| ipv4(0, 64, 0, 47, (Ipv4Addr::new(10, 0, 2, 9), b.router_v4), &plain4(p)), &in4);
    add(false, &|p| ipv4(0, 64, 0, 47, (b.v4, a.router_v4), &plain4(p)), &in4);
    add(false, &|p| around(0, 64, 0, 47)(&gre(0, 0x86dd, &[], p)), &in4);
    add(false, &|p| around(0, 64, 0, 4)(p), &in6);
    add(false, &|p| around(0, 64, 0, 41)(p), &in4);
    // The kernel gets the packet as it came, after a look at the second one.
    add(true, &|p| around(0, 64, 0, 4)(&around(0, 64, 0, 4)(p)), &in4);
    let broken = |packet: Vec<u8>, at: usize, with: u8| {
        let mut packet = packet;
        packet[at] ^= with;
        packet
    };
    add(false, &|p| broken(around(0, 64, 0, 4)(p), 10, 1), &in4);
    // Faults of the inner packet: TTL, checksum, options, lengths, addresses that are not forwarded.
    for (ttl, taken) in [(2, true), (1, false), (0, false)] {
        add(taken, &|p| around(0, 64, 0, 4)(p), &|p| ipv4(0, ttl, 0, 253, (from4, a.v4), p));
        add(taken, &|p| around(0, 64, 0, 41)(p), &|p| ipv6(0, ttl, (from6, a.v6), p));
    }
    for (at, with) in [(10, 1), (0, 1), (0, 0x20), (3, 0x40)] {
        add(false, &|p| around(0, 64, 0, 4)(p), &|p| broken(in4(p), at, with));
    }
    // Of the last three, the kernel gets the packets, or a copy, after a look at their routes.
    for (from, to, taken) in [
        (from4, Ipv4Addr::new(224, 0, 0, 5), false),
        (from4, Ipv4Addr::new(127, 0, 0, 1), false),
        (Ipv4Addr::new(127, 0, 0, 1), a.v4, false),
        (Ipv4Addr::new(0, 0, 0, 0), a.v4, false),
        (a.router_v4, a.v4, false),
        (from4, a.router_v4, true),
        (from4, Ipv4Addr::new(10, 0, 1, 255), true),
        (from4, Ipv4Addr::new(10, 99, 0, 1), true),
    ] {
        add(taken, &|p| around(0, 64, 0, 4)(p), &|p| ipv4(0, 64, 0, 253, (from, to), p));
    }
    for (from, to, taken) in [
        ("fe80::9", "fd00:1::2", false),
        ("fd85::2", "ff02::5", false),
        ("::1", "fd00:1::2", false),
        ("fd85::2", "fd00:1::1", true),
    ] {
        let ends: (Ipv6Addr, Ipv6Addr) = (from.parse().unwrap(), to.parse().unwrap());
        add(taken, &|p| around(0, 64, 0, 41)(p), &|p| ipv6(0, 64, ends, p));
    }
    // Padding behind.
    add(true, &|p| around(0, 64, 0, 4)(p), &in4);
    frames.last_mut().unwrap().extend([0xaa; 40]);
    decapsulates(&tunnels, &frames, plain..=plain);
}

/// Fails unless as many of the frames as `plain` says are decapsulated past the kernel, and all that come out do so
/// anyway.
pub fn decapsulates(tunnels: &Tunnels, frames: &[Vec<u8>], plain: RangeInclusive<u64>) {
    let (a, b, r) = (tunnels.0.a(), tunnels.0.b(), tunnels.0.r());
    let last = ipv4(0, 64, 0, 253, (b.v4, a.v4), b"bywash9999");
    let last = frame(&b.router_mac, &b.mac, 0x0800, &last);
    let kernels = passed(tunnels, false, frames, &last);
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    tunnels.wait_for_tunnels(&bywash);
    let before = Tunnels::moved(&bywash).1;
    let ours = passed(tunnels, false, frames, &last);
    let taken = Tunnels::moved(&bywash).1 - before;
    assert_eq!(kernels, ours);
    assert!(plain.contains(&taken), "{taken}, not {plain:?}: {}", bywash.show(&["all"]));
    bywash.assert_conserved();
    bywash.stop();
}

/// The same for frames in VXLANs.
#[test]
fn frames_are_decapsulated_as_the_kernel_does() {
    frames_are_decapsulated(&VXLANS, Ipv6Addr::new(0xfd87, 0, 0, 0, 0, 0, 0, 2));
}

/// The same in VXLANs without an address of their own.
#[test]
fn frames_to_any_address_are_decapsulated_as_the_kernel_does() {
    frames_are_decapsulated(&CHOSEN, Ipv6Addr::new(0xfd91, 0, 0, 0, 0, 0, 0, 2));
}

/// The same for frames in VXLANs that are members of bridges.
#[test]
fn frames_to_a_bridge_are_decapsulated_as_the_kernel_does() {
    frames_are_decapsulated(&BRIDGED, Ipv6Addr::new(0xfd89, 0, 0, 0, 0, 0, 0, 2));
}

fn frames_are_decapsulated(rows: &'static [Row; 2], from6: Ipv6Addr) {
    require!(require_lab(), kernel_has("vxlan"));
    let tunnels = Tunnels::new(rows);
    let (a, b) = (tunnels.0.a(), tunnels.0.b());
    let (mut frames, mut plain) = (vec![], 0);
    let [learns, told] = [rows[0].3, rows[1].3];
    let id = u32::from(learns) << 8;
    let from4 = Ipv4Addr::new(10, learns, 0, 2);
    let own = |vni: u8| (mac_of(vni, 1), mac_of(vni, 2));
    let vxlan = |word: u32, vni: u32, inner: &[u8]| [&word.to_be_bytes()[..], &vni.to_be_bytes(), inner].concat();
    // Returns the packet around a VXLAN header and what follows; the checksum is right, plus `wrong`, or `None`.
    let around = |ends: (Ipv4Addr, Ipv4Addr), tos: u8, port: u16, wrong: Option<u16>, more: i16, vxlan: &[u8]| {
        let len = (8 + vxlan.len() as i16 + more) as u16;
        let mut udp = [&50_000u16.to_be_bytes()[..], &port.to_be_bytes(), &len.to_be_bytes(), &[0, 0], vxlan].concat();
        let packet = ipv4(tos, 64, 0, 17, ends, &udp);
        let header: &[u8; 20] = packet[..20].try_into().unwrap();
        let sum = bywash_wire::checksum::pseudo4(header, 17, len) + bywash_wire::checksum::Sum::of(&udp);
        if let Some(wrong) = wrong {
            udp[6..8].copy_from_slice(&(sum.checksum() ^ wrong).to_be_bytes());
        }
        ipv4(tos, 64, 0, 17, ends, &udp)
    };
    let ends = (b.v4, b.router_v4);
    let mut add = |taken: bool, packet: &dyn Fn(&[u8]) -> Vec<u8>| {
        frames.push(frame(&b.router_mac, &b.mac, 0x0800, &packet(&payload(frames.len()))));
        plain += u64::from(taken);
    };
    let in4 =
        |(to, from): (String, String), p: &[u8]| frame(&to, &from, 0x0800, &ipv4(0, 64, 0, 253, (from4, a.v4), p));
    let in6 = |(to, from): (String, String), p: &[u8]| frame(&to, &from, 0x86dd, &ipv6(0, 64, (from6, a.v6), p));
    const VNI: u32 = 0x0800_0000;
    for vni in [learns, told] {
        for wrong in [None, Some(0)] {
            add(true, &|p| around(ends, 0, 4789, wrong, 0, &vxlan(VNI, u32::from(vni) << 8, &in4(own(vni), p))));
            add(true, &|p| around(ends, 0, 4789, wrong, 0, &vxlan(VNI, u32::from(vni) << 8, &in6(own(vni), p))));
        }
        for tos in 0..4u8 {
            for within in 0..4 {
                let packet = |p: &[u8]| ipv4(within, 64, 0, 253, (from4, a.v4), p);
                let inner = |p: &[u8]| frame(&own(vni).0, &own(vni).1, 0x0800, &packet(p));
                let taken = tos & 1 == 0;
                add(taken, &|p| around(ends, tos, 4789, None, 0, &vxlan(VNI, u32::from(vni) << 8, &inner(p))));
            }
        }
    }
    let plain4 = |p: &[u8]| vxlan(VNI, id, &in4(own(learns), p));
    add(false, &|p| around(ends, 0, 4789, Some(1), 0, &plain4(p)));
    add(false, &|p| around(ends, 0, 4788, None, 0, &plain4(p)));
    add(false, &|p| around(ends, 0, 4789, None, 1, &plain4(p)));
    add(false, &|p| around(ends, 0, 4789, None, -1, &plain4(p)));
    add(false, &|p| around((b.v4, a.router_v4), 0, 4789, None, 0, &plain4(p)));
    for (word, vni) in [(0, id), (VNI, 99 << 8), (VNI, id | 1), (VNI | 1, id), (0x0c00_0000, id)] {
        add(false, &|p| around(ends, 0, 4789, None, 0, &vxlan(word, vni, &in4(own(learns), p))));
    }
    // Faults of the inner frame: other addresses, other types, packets that are not forwarded.
    let (mine, theirs) = own(learns);
    for (to, from) in [
        ("02:00:00:00:87:09", theirs.as_str()),
        ("ff:ff:ff:ff:ff:ff", &theirs),
        ("01:00:5e:00:00:05", &theirs),
        (&mine, &mine),
        (&mine, "03:00:00:00:00:01"),
        (&mine, "00:00:00:00:00:00"),
    ] {
        let ends_within = (to.to_owned(), from.to_owned());
        add(false, &|p| around(ends, 0, 4789, None, 0, &vxlan(VNI, id, &in4(ends_within.clone(), p))));
    }
    for kind in [0x86dd, 0x8100, 0x0806, 0x0000] {
        let inner = |p: &[u8]| frame(&mine, &theirs, kind, &ipv4(0, 64, 0, 253, (from4, a.v4), p));
        add(false, &|p| around(ends, 0, 4789, None, 0, &vxlan(VNI, id, &inner(p))));
    }
    for (ttl, to, taken) in [(2, a.v4, true), (1, a.v4, false), (64, Ipv4Addr::new(224, 0, 0, 5), false)] {
        let inner = |p: &[u8]| frame(&mine, &theirs, 0x0800, &ipv4(0, ttl, 0, 253, (from4, to), p));
        add(taken, &|p| around(ends, 0, 4789, None, 0, &vxlan(VNI, id, &inner(p))));
    }
    // A VXLAN that does not learn takes frames of any station, of any end.
    let strange = (mac_of(told, 1), "02:00:00:00:88:99".to_owned());
    add(true, &|p| around(ends, 0, 4789, None, 0, &vxlan(VNI, u32::from(told) << 8, &in4(strange.clone(), p))));
    let other = (Ipv4Addr::new(10, 0, 2, 9), b.router_v4);
    add(true, &|p| around(other, 0, 4789, None, 0, &vxlan(VNI, u32::from(told) << 8, &in4(own(told), p))));
    // The kernel may hear one, to renew the station of the VXLAN that learns.
    decapsulates(&tunnels, &frames, plain - 1..=plain);
}

/// The stations of a VXLAN are those of the kernel: learned, moved to another end, forgotten.
#[test]
fn stations_of_vxlans_are_followed() {
    require!(require_lab(), kernel_has("vxlan"));
    let tunnels = Tunnels::new(&VXLANS);
    let (a, b, r) = (tunnels.0.a(), tunnels.0.b(), tunnels.0.r());
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    tunnels.wait_for_tunnels(&bywash);
    tunnels.answer_by("tw", 88, 88);
    let ping = || tunnels.ping(&bywash);
    bywash.wait("the station to be known", |_| ping() == (5, 5));
    let mac = mac_of(88, 2);
    let fdb = |what: &str, dst: &str| {
        r.run(&["bridge", "fdb", what, &mac, "dev", "tw", "dst", dst]).unwrap();
    };
    // To another end, which is nobody: its neighbour is not known.
    fdb("replace", "10.0.2.77");
    bywash.wait("the station to be elsewhere", |_| ping() == (0, 0));
    fdb("replace", "10.0.2.2");
    bywash.wait("the station to be back", |_| ping() == (5, 5));
    // Without an entry the kernel sends to the default end.
    fdb("del", "10.0.2.2");
    bywash.wait("the station to be the kernel's", |_| ping() == (5, 0));
    r.run(&["bridge", "fdb", "add", &mac, "dev", "tw", "dst", "10.0.2.2", "vni", "89"]).unwrap();
    bywash.wait("another network", |_| ping() == (0, 0));
    r.run(&["bridge", "fdb", "del", &mac, "dev", "tw", "dst", "10.0.2.2", "vni", "89"]).unwrap();
    fdb("add", "10.0.2.2");
    bywash.wait("the station to be back", |_| ping() == (5, 5));
    // Rules for the host's own packets.
    r.nft("table inet own { chain c { type filter hook input priority 0; udp dport 4789 drop; }; }").unwrap();
    assert_eq!(ping().0, 0, "past the rule");
    r.nft("delete table inet own").unwrap();
    bywash.wait("the rule to be gone", |_| ping() == (5, 5));
    // A received frame of a station that is known by another end is the kernel's, which learns.
    tunnels.answer_by("tv", 87, 87);
    bywash.wait("the other VXLAN", |bywash| {
        let before = Tunnels::moved(bywash);
        let _ = Ping::to(ip("10.87.0.2")).count(5).run(&a.ns);
        let now = Tunnels::moved(bywash);
        now.0 - before.0 == 5 && now.1 - before.1 >= 4
    });
    let known = || r.run(&["bridge", "fdb", "show", "dev", "tv"]).unwrap().stdout;
    assert!(known().contains(&format!("{} dst 10.0.2.2", mac_of(87, 2))), "{}", known());
    // The kernel hears a station that Bywash hears in each quarter of the ageing time, and so does not forget it.
    r.ip(&["link", "change", "tv", "type", "vxlan", "ageing", "8"]).unwrap();
    let mut traffic = a.ns.spawn(&["ping", "-n", "-q", "-i", "0.1", "10.87.0.2"]).unwrap();
    let (before, punted) = (Tunnels::moved(&bywash).1, bywash.events("r1", "punted"));
    bywash.wait("the kernel to hear the station", |bywash| {
        bywash.events("r1", "punted") >= punted + 7 && Tunnels::moved(bywash).1 >= before + 50
    });
    traffic.kill().unwrap();
    assert!(known().contains(&format!("{} dst 10.0.2.2", mac_of(87, 2))), "{}", known());
    b.ns.ip(&["address", "add", "10.0.2.9/24", "dev", "b0"]).unwrap();
    b.ns.ip(&["link", "change", "tv", "type", "vxlan", "local", "10.0.2.9"]).unwrap();
    bywash.wait("the station to move", |_| {
        let _ = Ping::to(ip("10.87.0.2")).count(1).run(&a.ns);
        known().contains(&format!("{} dst 10.0.2.9", mac_of(87, 2)))
    });
    bywash.assert_conserved();
    bywash.stop();
}

/// A tunnel without an address of its own follows the kernel's choice of one: in what it sends, and to receive.
#[test]
fn the_source_of_outer_packets_is_the_kernels() {
    require!(require_lab(), kernel_has("vxlan"));
    let tunnels = Tunnels::new(&CHOSEN);
    let (a, b, r) = (tunnels.0.a(), tunnels.0.b(), tunnels.0.r());
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    tunnels.wait_for_tunnels(&bywash);
    tunnels.answer_by("ta", 91, 91);
    let passes = |to: &str, source: &str| {
        bywash.wait(&format!("packets from {source} without the kernel"), |bywash| {
            let before = Tunnels::moved(bywash);
            let report = Ping::to(ip(to)).count(5).run(&a.ns).unwrap();
            let now = Tunnels::moved(bywash);
            // The other end learns it, and answers to it.
            let known = b.ns.run(&["bridge", "fdb", "show", "dev", "ta"]).unwrap().stdout;
            let learned = known.contains(&format!("{} dst {source}", mac_of(91, 1)));
            // The kernel may hear one, to renew the VXLAN's station.
            learned && report.received == 5 && now.0 - before.0 == 5 && now.1 - before.1 >= 4
        });
    };
    passes("10.91.0.2", "10.0.2.1");
    r.ip_batch("address add 10.0.2.101/24 dev r1\nroute add 10.0.2.2/32 dev r1 src 10.0.2.101\n").unwrap();
    passes("10.91.0.2", "10.0.2.101");
    // With its address, the kernel removes the route.
    r.ip(&["address", "del", "10.0.2.101/24", "dev", "r1"]).unwrap();
    passes("10.91.0.2", "10.0.2.1");
    // Masquerading gives the only address of the interface, which is the source already. There are no rules for IPv6.
    let nat = "chain c { type nat hook postrouting priority 100; oifname r1 masquerade; }";
    r.nft(&format!("table ip own {{ {nat}; }}")).unwrap();
    passes("fd91::2", "10.0.2.1");
    r.ip(&["address", "add", "10.0.2.102/24", "dev", "r1"]).unwrap();
    bywash.wait("the kernel to masquerade", |bywash| {
        let before = Tunnels::moved(bywash);
        let received = Ping::to(ip("fd91::2")).count(5).run(&a.ns).unwrap().received;
        received == 5 && Tunnels::moved(bywash) == before
    });
    bywash.assert_conserved();
    bywash.stop();
}

/// If several next hops lead to the other end, outer packets leave by the one that the kernel takes.
#[test]
fn outer_packets_leave_by_the_kernels_next_hop() {
    require!(require_lab(), kernel_has("vxlan"));
    let tunnels = Tunnels::new(&VXLANS);
    let (a, b, r) = (tunnels.0.a(), tunnels.0.b(), tunnels.0.r());
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    tunnels.wait_for_tunnels(&bywash);
    tunnels.answer_by("tw", 88, 88);
    let ping = || tunnels.ping(&bywash);
    bywash.wait("the station to be known", |_| ping() == (5, 5));
    let end = "198.51.100.9";
    b.ns.ip(&["address", "add", &format!("{end}/32"), "dev", "lo"]).unwrap();
    r.ip_batch(&format!("route add {end}/32 nexthop via 10.0.2.2 dev r1 nexthop via 10.0.2.3 dev r1\n")).unwrap();
    let route = r.ip(&["route", "get", end, "from", "10.0.2.1"]).unwrap().stdout;
    let [own, other] = if route.contains("via 10.0.2.3") { ["10.0.2.3", "10.0.2.2"] } else { ["10.0.2.2", "10.0.2.3"] };
    let lead = |to: &str, mac: &str| {
        r.ip(&["neighbour", "replace", to, "lladdr", mac, "nud", "permanent", "dev", "r1"]).unwrap();
    };
    let nobody = "02:00:00:00:66:66";
    lead(own, &b.mac);
    lead(other, nobody);
    r.run(&["bridge", "fdb", "replace", &mac_of(88, 2), "dev", "tw", "dst", end]).unwrap();
    bywash.wait("outer packets by the kernel's next hop", |_| ping() == (5, 5));
    lead(own, nobody);
    lead(other, &b.mac);
    bywash.wait("outer packets by no other one", |_| ping() == (0, 5));
    r.ip(&["route", "replace", end, "via", other]).unwrap();
    bywash.wait("outer packets by the only next hop", |_| ping() == (5, 5));
    bywash.assert_conserved();
    bywash.stop();
    // The kernel itself.
    r.ip_batch(&format!("route replace {end}/32 nexthop via 10.0.2.2 dev r1 nexthop via 10.0.2.3 dev r1\n")).unwrap();
    let received = || Ping::to(ip("10.88.0.2")).count(5).run(&a.ns).unwrap().received;
    assert_eq!(received(), 0);
    lead(own, &b.mac);
    lead(other, nobody);
    assert_eq!(received(), 5);
}
