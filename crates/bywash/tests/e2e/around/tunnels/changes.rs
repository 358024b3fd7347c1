//! Changes of tunnels, and of what their packets depend on: the packets go on as the kernel would have them.

use super::{CHOSEN, EXTERNAL_IP, TUNNELS, Tunnels, VXLANS, has_tunnels, mac_of};
use crate::around::ip;
use crate::bpf;
use crate::harness::Bywash;
use bywash_lab::{Ping, has_tool, kernel_has, require, require_lab};

/// Programs that the kernel attaches without a word see the packets in VXLANs and drop them.
#[test]
fn programs_of_others_hold_for_vxlans() {
    require!(require_lab(), kernel_has("vxlan"), has_tool("python3"));
    let tunnels = Tunnels::new(&VXLANS);
    let (b, r) = (tunnels.0.b(), tunnels.0.r());
    tunnels.answer_by("tv", 87, 87);
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    tunnels.wait_for_tunnels(&bywash);
    let answered = || Ping::to(tunnels.0.a().v4).count(3).run(&b.ns).unwrap().received;
    for attach in [|r| bpf::xdp(r, "tv", bpf::XDP_DROP), bpf::sk_lookup_that_drops] {
        let mut other = attach(r);
        bywash.wait("the program to hold", |_| answered() == 0);
        other.kill().unwrap();
        tunnels.wait_for_tunnels(&bywash);
        assert_eq!(answered(), 3);
    }
    bywash.stop();
}

/// Each change leaves the packets to the kernel, or has them dropped, as the kernel would.
#[test]
fn tunnels_change() {
    require!(require_lab(), has_tunnels(), has_tool("nft"));
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
        // Bywash learns of a change a moment after it has been made.
        bywash.wait(&format!("the rule of hook {hook} to hold"), |_| ping("10.81.0.2").0 == 0);
        assert_eq!(ping("10.81.0.2").0, 0, "past the rule of hook {hook}");
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
        let wanted = if rules.contains("drop") { (0, 0) } else { (5, 0) };
        bywash.wait(rules, |_| sit() == wanted);
        assert_eq!(sit(), wanted, "{rules}");
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
    bywash.wait("tunnels to be left to the kernel", |_| ping("10.81.0.2") == (5, 0));
    r.ip(&["rule", "del", "to", "10.0.2.2", "lookup", "77"]).unwrap();
    tunnels.wait_for_tunnels(&bywash);
    // Down, and up again.
    r.ip(&["link", "set", "tg", "down"]).unwrap();
    bywash.wait("the tunnel to be down", |_| ping("10.81.0.2").0 == 0);
    assert_eq!(ping("10.81.0.2").0, 0, "by a tunnel that is down");
    r.ip(&["link", "set", "tg", "up"]).unwrap();
    tunnels.wait_for_tunnels(&bywash);
    // Another key.
    r.ip(&["link", "change", "tk", "type", "gre", "key", "70"]).unwrap();
    bywash.wait("the old key to be gone", |_| ping("10.82.0.2").0 == 0);
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
    bywash.wait("tunnels to be left to the kernel", |_| ping("10.81.0.2") == (5, 0));
    assert!(
        bywash.log().contains("tg: left to the kernel: gre interface tw may receive its packets instead"),
        "{}",
        bywash.log()
    );
    r.ip(&["link", "del", "tw"]).unwrap();
    tunnels.wait_for_tunnels(&bywash);
    // Gone.
    r.ip(&["link", "del", "tg"]).unwrap();
    bywash.wait("the tunnel to be gone", |_| ping("10.81.0.2").0 == 0);
    assert_eq!(ping("10.81.0.2").0, 0, "by a tunnel that is gone");
    bywash.assert_conserved();
    bywash.stop();
}

/// The stations of a VXLAN are those of the kernel: learned, moved to another end, forgotten.
#[test]
fn stations_of_vxlans_are_followed() {
    require!(require_lab(), kernel_has("vxlan"));
    let tunnels = Tunnels::new(&VXLANS);
    let (a, b, r) = (tunnels.0.a(), tunnels.0.b(), tunnels.0.r());
    let bywash = tunnels.run_with_station();
    let ping = || tunnels.ping(&bywash);
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
    bywash.wait("the station to be left to the kernel", |_| ping() == (5, 0));
    for vni in ["89", "0"] {
        let fdb =
            |what: &str| r.run(&["bridge", "fdb", what, &mac, "dev", "tw", "dst", "10.0.2.2", "vni", vni]).unwrap();
        fdb("add");
        bywash.wait(&format!("network {vni}"), |_| ping() == (0, 0));
        assert_eq!(ping(), (0, 0), "by the VXLAN's own network");
        fdb("del");
    }
    fdb("add", "10.0.2.2");
    bywash.wait("the station to be back", |_| ping() == (5, 5));
    // Rules for the host's own packets.
    r.nft("table inet own { chain c { type filter hook input priority 0; udp dport 4789 drop; }; }").unwrap();
    bywash.wait("the rule to hold", |_| ping().0 == 0);
    assert_eq!(ping().0, 0, "past the rule");
    r.nft("delete table inet own").unwrap();
    bywash.wait("the rule to be gone", |_| ping() == (5, 5));
    // A received frame of a station that is known by another end is left to the kernel, which learns.
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
fn the_source_of_outer_packets_is_the_one_that_the_kernel_takes() {
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
    let bywash = tunnels.run_with_station();
    let ping = || tunnels.ping(&bywash);
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

/// A tunnel that the kernel prefers, and rules that translate addresses, leave one with headers from routes to the
/// kernel.
#[test]
fn tunnels_with_headers_of_routes_are_left() {
    require!(require_lab(), has_tunnels(), has_tool("nft"));
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

/// Traffic control, the default on veth, hands no packets to workers, which forward for tunnels.
#[test]
fn tunnels_are_shown_as_left_where_workers_get_no_packets() {
    require!(require_lab(), kernel_has("vxlan"), kernel_has("tcx"));
    let tunnels = Tunnels::new(&VXLANS);
    for (arguments, left) in [(&[][..], true), (&["--level", "user"], false)] {
        let bywash = Bywash::run_as_is(tunnels.0.r(), &[arguments, &["r0", "r1"]].concat());
        bywash.wait("the tunnel to be shown", |bywash| {
            let shown = bywash.port("r1");
            let of = shown["above"].as_array().unwrap().iter().find(|of| of["name"] == "tv");
            of.is_some_and(|of| of["sends"] == !left && of["left"].to_string().contains("workers forward") == left)
        });
        bywash.stop();
    }
}
