//! Tunnels of a host with a firewall: past the kernel while the rules accept all outer packets, and the connections in
//! them while these are established.

use super::ip;
use super::tunnels::{BRIDGED, Row, Tunnels, VXLANS};
use super::tunnels6;
use crate::flows::{BRIEF, Ends, LATE, run, wait_for_flow_by};
use crate::harness::{Bywash, PATIENCE, bound};
use bywash_lab::{Ping, has_tool, kernel_has, require, require_lab, wait_until};
use std::net::{IpAddr, UdpSocket};

/// A VXLAN stays past the kernel while the rules for the host's own packets accept all of its outer packets.
#[test]
fn vxlans_pass_a_firewall_that_accepts_them() {
    require!(require_lab(), kernel_has("vxlan"), has_tool("nft"), has_tool("iptables-nft"));
    let tunnels = Tunnels::new(&VXLANS);
    let (a, r) = (tunnels.0.a(), tunnels.0.r());
    let bywash = Bywash::run(r, &["--level", "user", "r0", "r1"]);
    tunnels.answer_by("tw", 88, 88);
    // Returns the answers, and the packets that were encapsulated and decapsulated for them.
    let ping_to = |to: &str| {
        let before = Tunnels::moved(&bywash);
        let report = Ping::to(ip(to)).count(5).run(&a.ns).unwrap();
        let now = Tunnels::moved(&bywash);
        (report.received, now.0 - before.0, now.1 - before.1)
    };
    let ping = || ping_to("10.88.0.2");
    // Bywash learns of a change of the rules a moment after it has been made.
    let settles = |what: &str, wanted: (u32, u64, u64)| {
        bywash.wait(what, |_| ping() == wanted);
        assert_eq!(ping(), wanted, "{what}");
    };
    let load = |input: &str, output: &str| {
        let sets = "set ports { type inet_service; elements = { 4789 }; }";
        let input = format!("chain in {{ type filter hook input priority 0; policy drop; {input}; }}");
        let output = format!("chain out {{ type filter hook output priority 0; policy drop; {output}; }}");
        r.nft(&format!("table ip own\ndelete table ip own\ntable ip own {{ {sets}; {input}; {output}; }}")).unwrap();
    };
    let established = "ct state invalid drop; ct state established,related accept";
    let accepted = format!("{established}; udp dport @ports counter accept");
    let both = format!("icmp type destination-unreachable accept; {accepted}");
    bywash.wait("the VXLAN", |_| ping() == (5, 5, 5));
    load(&both, &both);
    bywash.wait("the VXLAN behind the firewall", |_| ping() == (5, 5, 5));
    let kept = || bywash.placement("r1")["kept"].to_string();
    assert!(!kept().contains("tunnels"), "{}", kept());
    // With DF, the host must learn a smaller MTU of the path, by an error about packets that it has not seen.
    load(&accepted, &accepted);
    settles("a rule for invalid packets to hold", (5, 0, 0));
    assert!(kept().contains("would drop ICMP errors about the outer packets"), "{}", kept());
    load(&both, &accepted);
    bywash.wait("the VXLAN behind rules that accept errors", |_| ping() == (5, 5, 5));
    // A port that the rules accept no more: the kernel drops the packets.
    r.nft("delete element ip own ports { 4789 }").unwrap();
    settles("the rules to hold", (0, 0, 0));
    assert!(kept().contains("packets in the tunnel"), "{}", kept());
    r.nft("add element ip own ports { 4789 }").unwrap();
    bywash.wait("the port to be accepted again", |_| ping() == (5, 5, 5));
    // A limit, which only the kernel can apply, for either hook.
    let limit = format!("limit rate 1000/second burst 1000 packets accept; {both}");
    for (input, output) in [(&limit, &both), (&both, &limit)] {
        load(input, output);
        settles("a limit to hold", (5, 0, 0));
        assert!(kept().contains("depends on limit"), "{}", kept());
    }
    load(&both, established);
    settles("a policy to hold", (0, 0, 0));
    load(&both, "accept");
    bywash.wait("the VXLAN behind another firewall", |_| ping() == (5, 5, 5));
    // After routing, the interface that has received the outer packets is the VXLAN itself.
    let rule = |rule: &str| {
        let chain = format!("chain c {{ type filter hook postrouting priority 0; {rule}; }}");
        r.nft(&format!("table ip own\ndelete table ip own\ntable ip own {{ {chain}; }}")).unwrap();
    };
    rule("iifname \"tw\" drop");
    let passed = || {
        let (received, encapsulated, _) = ping();
        (received, encapsulated)
    };
    bywash.wait("a rule for what the VXLAN sends to hold", |_| passed() == (0, 0));
    assert_eq!(passed(), (0, 0), "past a rule for what the VXLAN sends");
    tunnels.answer_by("tv", 87, 87);
    bywash.wait("the VXLAN without a rule", |_| ping_to("10.87.0.2") == (5, 5, 5));
    tunnels.answer_by("tw", 88, 88);
    rule("iifname \"other\" drop");
    bywash.wait("the VXLAN past a rule for another interface", |_| ping().1 == 5);
    r.nft("delete table ip own").unwrap();
    // Each rule of iptables has a counter.
    let iptables = |rule: &str| r.run(&[&["iptables-nft"], &rule.split(' ').collect::<Vec<_>>()[..]].concat()).unwrap();
    iptables("-A INPUT -p icmp -m icmp --icmp-type destination-unreachable -j ACCEPT");
    iptables("-A INPUT -m conntrack --ctstate INVALID -j DROP");
    iptables("-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT");
    iptables("-A INPUT -p udp -m udp --dport 4789 -j ACCEPT");
    iptables("-P INPUT DROP");
    bywash.wait("the VXLAN behind rules of iptables", |_| ping() == (5, 5, 5));
    iptables("-D INPUT -p udp -m udp --dport 4789 -j ACCEPT");
    bywash.wait("the rules of iptables to hold", |_| ping().0 == 0);
    assert_eq!(ping().0, 0, "past the rules of iptables");
    iptables("-P INPUT ACCEPT");
    iptables("-F INPUT");
    bywash.assert_conserved();
}

/// Rules for the outer packets, and a forward chain: hosts behind r0 may open connections.
const WALL: &str = "
table inet wall {
 chain own {
  type filter hook input priority 0; policy drop;
  icmp type destination-unreachable accept
  ct state established,related accept
  meta l4proto ipv6-icmp accept
  udp dport 4789-4790 accept
 }
 chain forward {
  type filter hook forward priority 0; policy drop;
  ct state established,related accept
  iifname r0 accept
 }
}
";

#[test]
fn established_connections_pass_through_vxlans() {
    connections_pass(&VXLANS);
}

#[test]
fn established_connections_pass_through_vxlans_over_ipv6() {
    connections_pass(&tunnels6::VXLANS);
}

#[test]
fn established_connections_pass_through_vxlans_of_bridges() {
    connections_pass(&BRIDGED);
}

fn connections_pass(rows: &'static [Row]) {
    require!(require_lab(), kernel_has("vxlan"), has_tool("nft"), has_tool("conntrack"));
    for level in ["level = \"user\"\n", "xdp = \"native\"\nlevel = \"driver\"\n"] {
        let tunnels = Tunnels::new(rows);
        let (a, b, r) = (tunnels.0.a(), tunnels.0.b(), tunnels.0.r());
        r.nft(WALL).unwrap();
        let bywash = run(&tunnels.0, level);
        for (name, _, _, v4, v6) in rows {
            tunnels.answer_by(name, *v4, *v6);
            for to in Tunnels::of_b(*v4, *v6) {
                let own = if to.is_ipv4() { IpAddr::from(a.v4) } else { a.v6.into() };
                let mut udp = Ends::udp_between((&a.ns, own), (&b.ns, to), to);
                wait_for_flow(&bywash, &mut udp, &format!("{level:?}: {name}: UDP to {to}"));
                udp.talk(&[7; 1300]);
                // Connections that host b opens are refused, by the kernel: workers get none of their packets.
                let kept = || bywash.events("r1", "kept-by-policy");
                let before = kept();
                let back = Ping::to(own).count(2).run(&b.ns).unwrap();
                assert_eq!(back.received, 0, "{level:?}: {name}: {to}: past the firewall");
                assert_eq!(kept(), before, "{level:?}: {name}: {to}: handed to workers");
                // The kernel's connection ends, and what b sends is of no connection any more.
                r.run(&["conntrack", "-D", "-p", "udp", "--dport", "80"]).unwrap();
                wait_until("the end of the connection to hold", PATIENCE, || udp.is_unanswered()).unwrap();
                assert!(!udp.answered(BRIEF), "{level:?}: {name}: {to}: forwarded past conntrack");
            }
        }
        // A rule for established connections, then one for the outer packets.
        let (name, _, _, v4, v6) = rows[0];
        tunnels.answer_by(name, v4, v6);
        let to = ip(&format!("10.{v4}.0.2"));
        let mut udp = Ends::udp_between((&a.ns, a.v4.into()), (&b.ns, to), to);
        for (hook, rule) in
            [("forward", "udp dport 80 drop"), ("input", "udp dport 4789 drop"), ("output", "udp dport 4789 drop")]
        {
            wait_for_flow(&bywash, &mut udp, &format!("{level:?}: {hook}: UDP"));
            r.nft(&format!("table inet more {{ chain c {{ type filter hook {hook} priority 10; {rule}; }}; }}"))
                .unwrap();
            let passes = || if hook == "input" { udp.answered(BRIEF) } else { udp.arrives(BRIEF) };
            // Bywash learns of the rule a moment after nft has returned.
            wait_until("the rule to hold", PATIENCE, || (0..3).all(|_| !passes())).unwrap();
            assert!(!passes(), "{level:?}: past a rule of {hook}");
            r.nft("delete table inet more").unwrap();
        }
        wait_for_flow(&bywash, &mut udp, &format!("{level:?}: UDP again"));
        // A chain on the device that the outer packets come by.
        let rule = "udp dport 4789 drop";
        r.nft(&format!(
            "table netdev more {{ chain c {{ type filter hook ingress device r1 priority 0; {rule}; }}; }}"
        ))
        .unwrap();
        wait_until("the chain on the device to hold", PATIENCE, || udp.is_unanswered()).unwrap();
        assert!(!udp.answered(BRIEF), "{level:?}: past a chain on a device");
        r.nft("delete table netdev more").unwrap();
        wait_for_flow(&bywash, &mut udp, &format!("{level:?}: UDP after that"));
        bywash.assert_conserved();
        bywash.stop();
    }
}

/// A firewall for one family closes the gates of tunnels for it, while the outer packets of the other may pass; all of
/// the other family's packets in tunnels do.
#[test]
fn a_firewall_for_one_family_leaves_the_other_alone() {
    require!(require_lab(), kernel_has("vxlan"), has_tool("nft"), has_tool("conntrack"));
    for (rows, walled) in [(&VXLANS, "ip6"), (&VXLANS, "ip"), (&tunnels6::VXLANS, "ip6"), (&tunnels6::VXLANS, "ip")] {
        let tunnels = Tunnels::new(&rows[..1]);
        let (name, _, _, v4, v6) = rows[0];
        let (a, b, r) = (tunnels.0.a(), tunnels.0.b(), tunnels.0.r());
        r.nft(&WALL.replace("inet", walled)).unwrap();
        let bywash = run(&tunnels.0, "level = \"user\"\n");
        tunnels.answer_by(name, v4, v6);
        for to in Tunnels::of_b(v4, v6) {
            let own = if to.is_ipv4() { IpAddr::from(a.v4) } else { a.v6.into() };
            let what = format!("{name}: table {walled}: {to}");
            if to.is_ipv6() == (walled == "ip6") {
                let mut udp = Ends::udp_between((&a.ns, own), (&b.ns, to), to);
                wait_for_flow(&bywash, &mut udp, &what);
                let before = bywash.events("r1", "kept-by-policy");
                assert_eq!(Ping::to(own).count(2).run(&b.ns).unwrap().received, 0, "{what}: past the firewall");
                assert_eq!(bywash.events("r1", "kept-by-policy"), before, "{what}: handed to workers");
            } else {
                bywash.wait(&format!("{what}: past the kernel"), |bywash| {
                    let before = Tunnels::moved(bywash);
                    let report = Ping::to(to).count(5).run(&a.ns).unwrap();
                    let (sent, received) = Tunnels::moved(bywash);
                    (report.received, sent - before.0, received - before.1) == (5, 5, 5)
                });
            }
        }
        bywash.assert_conserved();
    }
}

/// Rules that masquerade what leaves by r1, where the tunnels' outer packets leave, too.
const MASQUERADE: &str = "
table ip nat {
 chain out {
  type nat hook postrouting priority 100;
  oifname r1 masquerade
 }
}
";

/// Translation of other packets leaves tunnels past the kernel, as long as no connection of their outer packets is
/// translated.
#[test]
fn masquerading_leaves_tunnels_alone() {
    require!(require_lab(), kernel_has("vxlan"), has_tool("nft"), has_tool("conntrack"));
    let tunnels = Tunnels::new(&VXLANS[..1]);
    let (a, b, r) = (tunnels.0.a(), tunnels.0.b(), tunnels.0.r());
    r.nft(WALL).unwrap();
    r.nft(MASQUERADE).unwrap();
    let bywash = run(&tunnels.0, "level = \"user\"\n");
    tunnels.answer_by("tv", 87, 87);
    let to = ip("10.87.0.2");
    let mut udp = Ends::udp_between((&a.ns, a.v4.into()), (&b.ns, to), to);
    wait_for_flow(&bywash, &mut udp, "UDP beside masquerading");
    let kept = || bywash.placement("r1")["kept"].to_string();
    // Iptables' rule is another expression.
    let iptables = |rule: &str| r.run(&[&["iptables-nft"], &rule.split(' ').collect::<Vec<_>>()[..]].concat()).unwrap();
    r.nft("delete table ip nat").unwrap();
    iptables("-t nat -A POSTROUTING -o r1 -j MASQUERADE");
    wait_for_flow(&bywash, &mut udp, "UDP beside iptables' masquerading");
    iptables("-t nat -D POSTROUTING -o r1 -j MASQUERADE");
    r.nft("delete table ip nat").unwrap();
    r.nft(MASQUERADE).unwrap();
    wait_for_flow(&bywash, &mut udp, "UDP beside masquerading again");
    // A rule that translates the outer packets, and the connections that it leaves behind.
    let forget = |port: &str| r.run(&["conntrack", "-D", "-p", "udp", "--dport", port]).unwrap();
    r.nft("insert rule ip nat out udp dport 4789 masquerade to :7000-7100").unwrap();
    bywash.wait("the rule to keep the tunnel", |_| kept().contains("depends on masquerade"));
    // Connections of before the rule are not translated.
    forget("4789");
    let kernels = |udp: &Ends| {
        let before = Tunnels::moved(&bywash).0;
        (0..3).all(|_| udp.arrives(LATE)) && Tunnels::moved(&bywash).0 == before
    };
    bywash.wait("the kernel to send through the tunnel", |_| kernels(&udp));
    r.nft("flush chain ip nat out; add rule ip nat out oifname r1 masquerade").unwrap();
    bywash.wait("a connection to keep the tunnel", |_| kept().contains("outer packets is translated"));
    assert!(kernels(&udp), "past a translated connection");
    forget("4789");
    wait_for_flow(&bywash, &mut udp, "UDP after the translated connection");
    // A host's own connection, translated to the port of the tunnel.
    let other = bound(&a.ns, || UdpSocket::bind((a.v4, 4789)));
    // Connections of all namespaces are searched, those of other tests included: up to a minute passes in between.
    let search = |what: &str, mut found: Box<dyn FnMut() -> bool>| wait_until(what, 3 * PATIENCE, &mut found).unwrap();
    search(
        "another's connection to keep the tunnel",
        Box::new(|| {
            // The kernel forgets a connection without replies after 30 s.
            other.send_to(b"other", (b.v4, 9)).unwrap();
            kept().contains("outer packets is translated")
        }),
    );
    forget("9");
    search("the other connection to be forgotten", Box::new(|| !kept().contains("outer packets is translated")));
    wait_for_flow(&bywash, &mut udp, "UDP after the other connection");
    // Rules may translate the packets within, too.
    r.nft("add rule ip nat out oifname tv masquerade").unwrap();
    forget("80");
    drop(udp);
    let mut within = Ends::udp_between((&a.ns, a.v4.into()), (&b.ns, to), to);
    wait_for_flow(&bywash, &mut within, "translated UDP in the tunnel");
    let Ends::Udp(_, far) = &within else { unreachable!() };
    assert_eq!(far.peer_addr().unwrap().ip(), ip("10.87.0.1"), "the source that host b sees");
    // The kernel would give the outer packets another source.
    let first = format!(
        "addr del {own}/24 dev r1\naddr add 10.0.2.99/16 dev r1\naddr add {own}/24 dev r1\n",
        own = b.router_v4
    );
    r.ip_batch(&first).unwrap();
    bywash.wait("the kernel to masquerade the outer packets", |_| kernels(&within));
    let left = |bywash: &Bywash<'_>| bywash.show(&["ports"]).to_string().contains("masquerading may give");
    bywash.wait("the tunnel to be left to the kernel", left);
    let received = || (bywash.events("r1", "decapsulated"), bywash.events("r1", "kept-by-policy"));
    let before = received();
    for _ in 0..3 {
        within.answered(BRIEF);
    }
    assert_eq!(received(), before, "what is received is the kernel's, too, at once");
    bywash.assert_conserved();
}

/// Talks until all packets pass the tunnel past the kernel, in both directions.
fn wait_for_flow(bywash: &Bywash<'_>, ends: &mut Ends, what: &str) {
    wait_for_flow_by(bywash, ends, what, |bywash| {
        let (sent, received) = Tunnels::moved(bywash);
        [sent, received]
    });
}
