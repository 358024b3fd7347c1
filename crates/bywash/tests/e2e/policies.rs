//! Kernel policies: packets that the kernel would not forward are not forwarded past it, at any level, whether the
//! policy exists before the start or is added while the router runs. One test measures the time until a new policy
//! holds.

use crate::flows::{Ends, LATE};
use crate::garbage::mac;
use crate::harness::{Bywash, PATIENCE, bound};
use crate::moves::handled;
use crate::raw::{self, Ear};
use crate::reload::{File, config, reload};
use bywash_lab::{Ping, Topology, has_tool, kernel_has, require, require_lab, wait_until};
use bywash_wire::build::Packet;
use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A policy by which the kernel does not forward from a to b.
struct Policy {
    name: &'static str,
    /// Shell commands in the router's namespace.
    set: &'static str,
    unset: &'static str,
    /// Families that the policy stops: IPv4, IPv6.
    stops: (bool, bool),
    /// Key in `[kernel]` of the configuration.
    kind: &'static str,
}

const fn policy(
    name: &'static str,
    set: &'static str,
    unset: &'static str,
    stops: (bool, bool),
    kind: &'static str,
) -> Policy {
    Policy { name, set, unset, stops, kind }
}

const V4: (bool, bool) = (true, false);
const V6: (bool, bool) = (false, true);
const BOTH: (bool, bool) = (true, true);

const POLICIES: &[Policy] = &[
    policy(
        "nft forward",
        "nft 'add table inet t; add chain inet t c { type filter hook forward priority 0; policy drop; }'",
        "nft delete table inet t",
        BOTH,
        "netfilter",
    ),
    policy(
        "nft prerouting",
        "nft 'add table ip t; add chain ip t c { type filter hook prerouting priority 0; }; add rule ip t c iifname r0 drop'",
        "nft delete table ip t",
        V4,
        "netfilter",
    ),
    policy(
        "nft postrouting",
        "nft 'add table ip6 t; add chain ip6 t c { type filter hook postrouting priority 0; }; add rule ip6 t c oifname r1 drop'",
        "nft delete table ip6 t",
        V6,
        "netfilter",
    ),
    policy(
        "nft ingress of a port",
        "nft 'add table netdev t; add chain netdev t c { type filter hook ingress device r0 priority 0; }; add rule netdev t c ip protocol { icmp, udp } drop'",
        "nft delete table netdev t",
        V4,
        "netfilter",
    ),
    policy(
        "nft egress of a port",
        "nft 'add table netdev t; add chain netdev t c { type filter hook egress device r1 priority 0; }; add rule netdev t c meta l4proto { icmp, icmpv6, udp } drop'",
        "nft delete table netdev t",
        BOTH,
        "netfilter",
    ),
    policy(
        "nft by connection state",
        "nft 'add table inet t; add chain inet t c { type filter hook forward priority 0; }; add rule inet t c ct state new drop'",
        "nft delete table inet t",
        BOTH,
        "netfilter",
    ),
    policy("iptables-nft", "iptables-nft -A FORWARD -o r1 -j DROP", "iptables-nft -F FORWARD", V4, "netfilter"),
    policy(
        "iptables-legacy",
        "iptables-legacy -P FORWARD DROP",
        "iptables-legacy -P FORWARD ACCEPT",
        V4,
        "iptables_legacy",
    ),
    policy(
        "ip6tables-legacy",
        "ip6tables-legacy -A FORWARD -j DROP",
        "ip6tables-legacy -F FORWARD",
        V6,
        "iptables_legacy",
    ),
    policy(
        "IPsec, forward",
        "ip xfrm policy add dir fwd src 0.0.0.0/0 dst 10.0.2.0/24 action block",
        "ip xfrm policy flush",
        V4,
        "ipsec",
    ),
    policy(
        "IPsec, output",
        "ip xfrm policy add dir out src ::/0 dst ::/0 action block",
        "ip xfrm policy flush",
        V6,
        "ipsec",
    ),
    policy("rule by source", "ip rule add from 10.0.1.0/24 prohibit", "ip rule del from 10.0.1.0/24", V4, "rules"),
    policy(
        "rule by destination",
        "ip -6 rule add to fd00:2::/64 blackhole",
        "ip -6 rule del to fd00:2::/64",
        V6,
        "rules",
    ),
    policy("rule by port", "ip rule add iif r0 blackhole", "ip rule del iif r0", V4, "rules"),
    policy("net.ipv4.ip_forward", "sysctl -w net.ipv4.ip_forward=0", "sysctl -w net.ipv4.ip_forward=1", V4, "sysctls"),
    policy(
        "forwarding of a port",
        "sysctl -w net.ipv4.conf.r0.forwarding=0",
        "sysctl -w net.ipv4.conf.r0.forwarding=1",
        V4,
        "sysctls",
    ),
    policy(
        "net.ipv6.conf.all.forwarding",
        "sysctl -w net.ipv6.conf.all.forwarding=0",
        "sysctl -w net.ipv6.conf.all.forwarding=1",
        V6,
        "sysctls",
    ),
    policy(
        "qdisc",
        "tc qdisc replace dev r1 root tbf rate 8bit burst 20 limit 1",
        "tc qdisc del dev r1 root",
        BOTH,
        "traffic_control",
    ),
    policy(
        "filter",
        "tc qdisc add dev r0 clsact && \
         tc filter add dev r0 ingress protocol ip u32 match u32 0 0 action mirred egress redirect dev lo && \
         tc filter add dev r0 ingress protocol ipv6 u32 match u32 0 0 action mirred egress redirect dev lo",
        "tc qdisc del dev r0 clsact",
        BOTH,
        "traffic_control",
    ),
];

/// A router in front of a kernel that does not forward says so last, and once what to set.
#[test]
fn what_does_not_forward_says_what_to_set() {
    require!(require_lab());
    let lab = Topology::builder().forwarding(false).build().unwrap();
    let mut bywash = Bywash::spawn(lab.r(), &["r0", "r1"]);
    bywash.process.wait_for_output("started, but nothing is forwarded", PATIENCE).unwrap();
    let log = bywash.log();
    let set = "`sysctl -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1`";
    assert!(log.lines().any(|line| line.contains("started, but nothing") && line.contains(set)), "{log}");
    assert!(!log.contains("INFO forwarding"), "{log}");
    let shown = bywash.text(&["placement"]);
    assert_eq!(shown.matches("sysctl -w net.ipv4.").count(), 1, "{shown}");
    assert!(shown.contains("r0, r1: IPv4 packets received left to the kernel because of sysctl net.ipv4.ip_forward=0"));
    assert!(shown.contains("`sysctl -w net.ipv4.ip_forward=1`") && !shown.contains("accept_redirects"), "{shown}");
    // The command shown is enough.
    lab.r().run(&["sysctl", "-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]).unwrap();
    bywash.wait("forwarding", |bywash| answered(&lab) == (2, 2) && !bywash.text(&["placement"]).contains("sysctl"));
    // With this, one port alone does not forward, and `ip_forward=1` would change nothing.
    lab.r().run(&["sysctl", "-w", "net.ipv4.conf.r0.forwarding=0"]).unwrap();
    bywash
        .wait("the policy", |bywash| bywash.text(&["placement"]).contains("`sysctl -w net.ipv4.conf.r0.forwarding=1`"));
    bywash.stop();
}

fn shell(lab: &Topology, line: &str) {
    lab.r().run(&["sh", "-c", line]).unwrap();
}

/// Sends two pings of each family from a to b, and returns how many are answered by IPv4 and by IPv6.
fn answered(lab: &Topology) -> (u32, u32) {
    let count = |to: IpAddr| {
        let ping = Ping::to(to).count(2).interval(Duration::from_millis(20)).wait(Duration::from_millis(300));
        ping.run(&lab.a().ns).unwrap().received
    };
    (count(lab.b().v4.into()), count(lab.b().v6.into()))
}

/// Waits until the kernel forwards between the hosts.
fn wait_for_kernel(lab: &Topology) {
    wait_until("the kernel to forward", PATIENCE, || answered(lab) == (2, 2)).unwrap();
}

/// Fails if a ping of a family that the policy stops gets through.
fn assert_stopped(lab: &Topology, policy: &Policy, when: &str) {
    let (v4, v6) = answered(lab);
    let Policy { name, stops, .. } = policy;
    assert!(!stops.0 || v4 == 0, "{when}: {v4} IPv4 pings went past `{name}`");
    assert!(!stops.1 || v6 == 0, "{when}: {v6} IPv6 pings went past `{name}`");
}

/// Waits until the hosts reach each other and the router, not the kernel, forwards the packets that r0 receives.
fn wait_for_fast_path(lab: &Topology, bywash: &Bywash) {
    // A veth refuses redirected frames unless its peer has GRO on or an XDP program; user space then forwards them.
    let forwarded = || handled(bywash, "r0")[..2].iter().sum::<u64>();
    bywash.wait("packets to be forwarded past the kernel", |_| {
        let before = forwarded();
        answered(lab) == (2, 2) && forwarded() >= before + 4
    });
}

/// Returns the kernel objects that keep packets of a port in the kernel.
fn kept(bywash: &Bywash, port: &str) -> Vec<Value> {
    bywash.placement(port)["kept"].as_array().unwrap().clone()
}

/// Returns whether the policy is shown as keeping packets of a port in the kernel or, for a rule that is followed, in
/// user space.
fn is_kept(bywash: &Bywash, policy: &Policy) -> bool {
    let placement = bywash.show(&["placement"]);
    let of_port = |row: &Value| {
        let kept = row["kept"].as_array().unwrap().iter().any(|kept| kept["kind"] == policy.kind);
        kept || (policy.kind == "rules" && row["why"].as_str().unwrap().contains("policy routing rules"))
    };
    placement.as_array().unwrap().iter().any(of_port)
}

/// Arguments for each level: user space, the driver by native XDP, and the default, the driver by traffic control.
const LEVELS: [&[&str]; 3] = [&["--level", "user"], &["--xdp", "native", "--level", "driver"], &[]];

/// Creates a lab with known neighbours, so that no packet is lost or delayed by neighbour resolution.
fn lab() -> Topology {
    let lab = Topology::router().unwrap();
    wait_for_kernel(&lab);
    lab
}

#[test]
pub fn a_policy_that_comes_while_it_runs_holds() {
    require!(require_lab(), has_tool("nft"), has_tool("iptables-legacy"));
    for arguments in LEVELS {
        let lab = lab();
        let bywash = Bywash::run_as_is(lab.r(), &[arguments, &["r0", "r1"]].concat());
        for policy in POLICIES {
            wait_for_fast_path(&lab, &bywash);
            shell(&lab, policy.set);
            // On a busy machine the thread that follows the kernel may get its CPU late.
            bywash.wait("the reason to be shown", |bywash| is_kept(bywash, policy));
            assert_stopped(&lab, policy, &format!("{arguments:?}, while it runs"));
            shell(&lab, policy.unset);
        }
        wait_for_fast_path(&lab, &bywash);
        bywash.wait("no reason to be left", |bywash| kept(bywash, "r0").is_empty() && kept(bywash, "r1").is_empty());
        bywash.stop();
    }
}

#[test]
pub fn a_policy_that_was_there_holds_from_the_first_packet() {
    require!(require_lab(), has_tool("nft"), has_tool("iptables-legacy"));
    for (at, policy) in POLICIES.iter().enumerate() {
        let lab = lab();
        shell(&lab, policy.set);
        let arguments = LEVELS[at % LEVELS.len()];
        let bywash = Bywash::run_as_is(lab.r(), &[arguments, &["r0", "r1"]].concat());
        assert_stopped(&lab, policy, &format!("{arguments:?}, from the start"));
        shell(&lab, policy.unset);
        wait_for_fast_path(&lab, &bywash);
        bywash.stop();
    }
}

#[test]
pub fn a_policy_outlives_reload_takeover_and_kill() {
    require!(require_lab(), has_tool("nft"), has_tool("iptables-legacy"));
    let program = crate::harness::program();
    for (at, policy) in POLICIES.iter().enumerate() {
        let level = ["level = \"user\"\n", "xdp = \"native\"\nlevel = \"driver\"\n", "level = \"auto\"\n"][at % 3];
        let lab = Topology::router_n(3).unwrap();
        wait_for_kernel(&lab);
        let file = File::new(&config(&[("r0", level), ("r1", level)]));
        let bywash = file.run(&lab);
        wait_for_fast_path(&lab, &bywash);
        shell(&lab, policy.set);
        bywash.wait("the reason to be shown", |bywash| is_kept(bywash, policy));
        file.write(&config(&[("r0", level), ("r1", level), ("r2", level)]));
        reload(&bywash, &[]);
        assert_stopped(&lab, policy, "after the reload that adds a port");
        assert!(is_kept(&bywash, policy), "{} is not shown after the reload", policy.name);
        let (socket, path) = (bywash.socket(), file.path());
        let argv = ["run", "--takeover", "--socket", socket.to_str().unwrap(), "--config", path.to_str().unwrap()];
        let mut next = lab.r().spawn(&[&[program.as_str()], &argv[..]].concat()).unwrap();
        next.wait_for_output("forwarding;", PATIENCE).unwrap();
        assert_stopped(&lab, policy, "after the takeover");
        next.signal(rustix::process::Signal::KILL).unwrap();
        assert_stopped(&lab, policy, "after kill -9");
        shell(&lab, policy.unset);
        wait_until(&format!("the kernel to forward without {}", policy.name), PATIENCE, || answered(&lab) == (2, 2))
            .unwrap();
    }
}

/// A port that is a bridge has its members' policies, whose effect the packets bring along: a mark, a packet type.
#[test]
fn policies_of_members_hold_for_a_bridge_that_is_a_port() {
    require!(require_lab(), has_tool("nft"));
    let policies = [
        policy(
            "a mark of a member's chain",
            "nft 'add table netdev t; add chain netdev t c { type filter hook ingress device r0 priority 0; }; \
             add rule netdev t c meta mark set 1' && ip rule add fwmark 1 blackhole",
            "ip rule del fwmark 1 && nft delete table netdev t",
            V4,
            "netfilter",
        ),
        policy(
            "a packet type of a bridge's chain",
            "nft 'add table bridge t; add chain bridge t c { type filter hook prerouting priority 0; }; \
             add rule bridge t c ip protocol { icmp, udp } meta pkttype set other'",
            "nft delete table bridge t",
            V4,
            "netfilter",
        ),
    ];
    for arguments in [&["--level", "user"][..], &[]] {
        let lab = lab();
        let (a, r) = (lab.a(), lab.r());
        r.ip_batch(&format!(
            "link add br0 address {mac} type bridge\naddress flush dev r0\nlink set r0 master br0\nlink set br0 up\n\
             address add {v4}/24 dev br0\naddress add {v6}/64 dev br0 nodad\n",
            mac = a.router_mac,
            v4 = a.router_v4,
            v6 = a.router_v6,
        ))
        .unwrap();
        let bywash = Bywash::run_as_is(r, &[arguments, &["br0", "r1"]].concat());
        let fast = || {
            let forwarded = || handled(&bywash, "br0")[..2].iter().sum::<u64>();
            bywash.wait("packets to be forwarded past the kernel", |_| {
                let before = forwarded();
                answered(&lab) == (2, 2) && forwarded() >= before + 4
            });
        };
        for policy in &policies {
            fast();
            shell(&lab, policy.set);
            bywash.wait("the reason to be shown", |bywash| !kept(bywash, "br0").is_empty());
            assert_stopped(&lab, policy, &format!("{arguments:?}"));
            shell(&lab, policy.unset);
        }
        fast();
        bywash.stop();
    }
}

/// Packets that a veth's peer sends in the same namespace keep their mark.
#[test]
fn marks_from_a_peer_in_the_same_namespace_select_rules() {
    require!(require_lab());
    for arguments in LEVELS {
        let lab = lab();
        let (a, r) = (lab.a(), lab.r());
        // Host a is behind a bridge in the router's namespace, whose other member is the port's peer.
        r.ip_batch(&format!(
            "link add q0 address {mac} type veth peer name q1\nlink add br0 type bridge\naddress flush dev r0\n\
             link set r0 master br0\nlink set q1 master br0\nlink set br0 up\nlink set q0 up\nlink set q1 up\n\
             address add {v4}/24 dev q0\naddress add {v6}/64 dev q0 nodad\n",
            mac = a.router_mac.replace("02:", "06:"),
            v4 = a.router_v4,
            v6 = a.router_v6,
        ))
        .unwrap();
        a.ns.ip(&["neigh", "flush", "dev", &a.interface]).unwrap();
        let bywash = Bywash::run_as_is(r, &[arguments, &["q0", "r1"]].concat());
        bywash.wait("packets to be forwarded past the kernel", |bywash| {
            let before: u64 = handled(bywash, "q0")[..2].iter().sum();
            answered(&lab) == (2, 2) && handled(bywash, "q0")[..2].iter().sum::<u64>() >= before + 4
        });
        shell(
            &lab,
            "nft 'add table bridge t; add chain bridge t c { type filter hook prerouting priority 0; }; \
             add rule bridge t c meta mark set 1' && ip rule add fwmark 1 blackhole",
        );
        bywash.wait("the reason to be shown", |bywash| !kept(bywash, "q0").is_empty());
        assert!(kept(&bywash, "r1").is_empty(), "a port without a peer here");
        assert_eq!(answered(&lab).0, 0, "{arguments:?}");
        bywash.stop();
    }
}

/// The kernel does not forward packets of a connection of its own, whose address has moved to another host, until the
/// socket is closed.
#[test]
fn packets_of_a_connection_whose_address_has_moved_are_left() {
    require!(require_lab());
    const MOVED: Ipv4Addr = Ipv4Addr::new(10, 0, 9, 1);
    let is_left =
        |bywash: &Bywash<'_>| kept(bywash, "r0").iter().any(|row| row["object"].to_string().contains("10.0.9.1"));
    for arguments in LEVELS {
        let lab = lab();
        let (a, b, r) = (lab.a(), lab.b(), lab.r());
        for ns in [r, &b.ns] {
            ns.ip(&["address", "add", "10.0.9.1/32", "dev", "lo"]).unwrap();
        }
        let bywash = Bywash::run_as_is(r, &[arguments, &["r0", "r1"]].concat());
        wait_for_fast_path(&lab, &bywash);
        let listener = r.enter(|| TcpListener::bind((MOVED, 0))).unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let mut client = a.ns.enter(|| TcpStream::connect(to)).unwrap().unwrap();
        let (server, _) = listener.accept().unwrap();
        r.ip_batch(&format!("address del {MOVED}/32 dev lo\nroute add {MOVED} via {} dev r1\n", b.v4)).unwrap();
        bywash.wait("the reason to be shown", is_left);
        // Host b would refuse a segment of no connection.
        client.write_all(b"lost").unwrap();
        client.set_read_timeout(Some(Duration::from_millis(700))).unwrap();
        let error = client.read(&mut [0]).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{arguments:?}: {error}");
        rustix::net::sockopt::set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
        drop(server);
        bywash.wait("no reason to be left", |bywash| !is_left(bywash));
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset, "{arguments:?}");
        bywash.stop();
    }
}

/// Rules for `lo` are taken to be about no forwarded packet, so a port of that name is left to the kernel.
#[test]
fn a_port_named_as_the_loopback_interface_is_left() {
    require!(require_lab(), has_tool("nft"), kernel_has("live-rename"));
    let lab = lab();
    let bywash = Bywash::run_as_is(lab.r(), &["r0", "r1"]);
    wait_for_fast_path(&lab, &bywash);
    shell(&lab, "ip link set lo name loop && ip link set r1 name lo");
    let policy = policy(
        "a rule for the name",
        "nft 'add table inet t; add chain inet t c { type filter hook forward priority 0; }; \
         add rule inet t c oifname lo drop'",
        "nft delete table inet t",
        BOTH,
        "netfilter",
    );
    bywash.wait("the reason to be shown", |bywash| !kept(bywash, "r1").is_empty());
    shell(&lab, policy.set);
    assert_stopped(&lab, &policy, "renamed");
    bywash.stop();
}

#[test]
pub fn an_ignored_policy_does_not_hold_and_is_logged() {
    require!(require_lab(), has_tool("nft"));
    let policy = &POLICIES[0];
    let lab = lab();
    let text = config(&[("r0", ""), ("r1", "")]);
    let file = File::new(&format!("[kernel]\nnetfilter = \"ignore\"\n{text}"));
    let bywash = file.run(&lab);
    shell(&lab, policy.set);
    bywash.wait("the policy to be logged", |bywash| bywash.log().contains("IGNORED, as configured"));
    // The gates open a moment after the line is logged.
    bywash.wait("packets to go past the policy", |_| answered(&lab) == (2, 2));
    assert!(kept(&bywash, "r0").iter().all(|row| row["ignored"] == true));
    // The reload that removes the setting makes the policy hold.
    file.write(&text);
    reload(&bywash, &[]);
    assert_stopped(&lab, policy, "after the reload");
    bywash.stop();
}

/// The kernel translates a connection's packets for as long as it tracks the connection, also without the rule.
#[test]
pub fn a_translation_outlives_its_rule() {
    require!(require_lab(), has_tool("nft"), has_tool("iptables-legacy"), has_tool("conntrack"));
    // A rule for packets to the router itself keeps tracking on.
    let tools = [
        (
            "nft 'table ip t { chain c { type nat hook postrouting priority 100; oifname r1 masquerade; }; \
             chain i { type filter hook input priority 0; ct state established accept; }; }'",
            "nft flush chain ip t c",
        ),
        (
            "iptables-legacy -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT; \
             iptables-legacy -t nat -A POSTROUTING -o r1 -j MASQUERADE",
            "iptables-legacy -t nat -F",
        ),
    ];
    for (arguments, (set, unset)) in LEVELS.into_iter().flat_map(|level| tools.map(|tool| (level, tool))) {
        let lab = lab();
        let bywash = Bywash::run_as_is(lab.r(), &[arguments, &["r0", "r1"]].concat());
        shell(&lab, set);
        let all = |bywash: &Bywash<'_>, reason: &str| {
            let names = |row: &Value| {
                row["reason"].as_str().unwrap().contains(reason)
                    && row["packets"].as_str().unwrap().starts_with("all IPv4 packets")
            };
            ["r0", "r1"].iter().all(|port| kept(bywash, port).iter().any(names))
        };
        bywash.wait("the rule to be known", |bywash| all(bywash, ""));
        let ends = Ends::udp(&lab, lab.b().v4.into());
        assert!(ends.answered(PATIENCE));
        shell(&lab, unset);
        bywash.wait("the connection to be known", |bywash| all(bywash, "translated before"));
        for _ in 0..100 {
            // Packets from another address than the translated one do not arrive.
            assert!(ends.arrives(LATE) && ends.answered(LATE), "{arguments:?}, {set}: not translated");
        }
        lab.r().run(&["conntrack", "-D", "-p", "udp"]).unwrap();
        bywash.wait("the gate to open", |bywash| !all(bywash, ""));
        wait_for_fast_path(&lab, &bywash);
        bywash.stop();
    }
}

/// Chains and rules that match no forwarded packet keep no packet in the kernel.
#[test]
pub fn unrelated_policies_keep_nothing() {
    require!(require_lab(), has_tool("nft"));
    let lab = lab();
    let bywash = Bywash::run_as_is(lab.r(), &["r0", "r1"]);
    for harmless in [
        "nft 'add table inet t; add chain inet t c { type filter hook forward priority 0; policy accept; }'",
        "nft 'add chain inet t i { type filter hook input priority 0; policy accept; }; add rule inet t i tcp dport 22 drop'",
        "nft 'add rule inet t c iifname \"lo\" drop'",
        "nft 'add rule inet t c oifname \"eth9\" drop'",
        "ip rule add iif eth9 blackhole",
    ] {
        shell(&lab, harmless);
        wait_for_fast_path(&lab, &bywash);
    }
    assert!(kept(&bywash, "r0").is_empty(), "{:?}", kept(&bywash, "r0"));
    bywash.stop();
}

/// Adds each policy under some 100,000 packets a second: packets must stop arriving. The time from the command's return
/// to the last packet's arrival is printed.
#[test]
pub fn a_policy_under_load_holds_at_once() {
    require!(require_lab(), has_tool("nft"), has_tool("iptables-legacy"));
    let _alone = crate::harness::alone();
    for arguments in LEVELS {
        let lab = lab();
        let bywash = Bywash::run_as_is(lab.r(), &[arguments, &["r0", "r1"]].concat());
        for policy in POLICIES {
            wait_for_fast_path(&lab, &bywash);
            let to: IpAddr = if policy.stops.0 { lab.b().v4.into() } else { lab.b().v6.into() };
            let late = last_after(&lab, to, || shell(&lab, policy.set));
            println!(
                "{arguments:?}: {}: the last packet came {late:.1} ms after the command had returned",
                policy.name
            );
            shell(&lab, policy.unset);
        }
        bywash.stop();
    }
}

/// Sends from a to b, runs `change` and waits until packets stop arriving. Returns the milliseconds from the return of
/// `change` to the arrival of the last packet; negative if that arrived before.
fn last_after(lab: &Topology, to: IpAddr, change: impl FnOnce()) -> f64 {
    let (end, came, last) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let begun = Instant::now();
    let now = || begun.elapsed().as_nanos() as u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = bound(&lab.b().ns, || UdpSocket::bind((to, 4000)));
            socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            let mut buffer = [0; 64];
            while !end.load(Ordering::Relaxed) {
                if socket.recv(&mut buffer).is_ok() {
                    last.store(now(), Ordering::Relaxed);
                    came.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        scope.spawn(|| {
            let send = || {
                let socket = UdpSocket::bind((if to.is_ipv4() { "0.0.0.0" } else { "::" }, 0)).unwrap();
                socket.connect((to, 4000)).unwrap();
                let (since, mut sent) = (Instant::now(), 0u64);
                while !end.load(Ordering::Relaxed) {
                    // An ICMP error about an earlier packet is returned by the next send.
                    let _ = socket.send(&[0; 18]);
                    sent += 1;
                    while since.elapsed() < Duration::from_micros(10 * sent) && !end.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                }
            };
            lab.a().ns.enter(send).unwrap();
        });
        wait_until("packets to come", PATIENCE, || came.load(Ordering::Relaxed) > 1000).unwrap();
        change();
        let returned = now();
        let mut before = came.load(Ordering::Relaxed);
        wait_until("packets to stop", PATIENCE, || {
            std::thread::sleep(Duration::from_millis(200));
            let more = came.load(Ordering::Relaxed);
            // The policy by a qdisc passes a packet now and then.
            more - std::mem::replace(&mut before, more) < 20
        })
        .unwrap();
        end.store(true, Ordering::Relaxed);
        (last.load(Ordering::Relaxed) as f64 - returned as f64) / 1e6
    })
}

/// kube-proxy sets `route_localnet` on all interfaces.
#[test]
fn packets_of_loopback_addresses_are_routed_as_the_kernel_is_set() {
    require!(require_lab());
    for arguments in LEVELS {
        let lab = lab();
        let (a, b) = (lab.a(), lab.b());
        let bywash = Bywash::run_as_is(lab.r(), &[arguments, &["r0", "r1"]].concat());
        wait_for_fast_path(&lab, &bywash);
        let ear = Ear::at(&b.ns, &b.interface);
        let loopback = SocketAddr::from(([127, 1, 2, 3], 7));
        let send = |from: SocketAddr, to: u16| {
            let packet = Packet::udp(from, (b.v4, to).into()).macs(mac(&a.mac), mac(&a.router_mac));
            raw::send(&a.ns, &a.interface, &[(1, packet.build().unwrap())]);
        };
        let is = |to: u16| move |frame: &[u8]| frame.get(36..38) == Some(&to.to_be_bytes());
        send(loopback, 1);
        send((a.v4, 7).into(), 2);
        ear.wait(1, is(2));
        shell(&lab, "sysctl -q -w net.ipv4.conf.all.route_localnet=1");
        send(loopback, 3);
        ear.wait(1, is(3));
        assert!(!ear.heard().iter().any(|frame| is(1)(frame)), "{arguments:?}: a martian was routed");
        wait_for_fast_path(&lab, &bywash);
        assert!(kept(&bywash, "r0").is_empty(), "{arguments:?}");
        bywash.stop();
    }
}

/// Returns a router solicitation (RFC 4861 4.1) from a to b, as if it had been routed, with this hop limit.
fn solicitation(lab: &Topology, hop_limit: u8) -> Vec<u8> {
    let (a, b) = (lab.a(), lab.b());
    let mut frame = [mac(&a.router_mac).0, mac(&a.mac).0].concat();
    frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 58, hop_limit]);
    frame.extend([a.v6.octets(), b.v6.octets()].concat());
    frame.extend([133, 0, 0, 0, 0, 0, 0, 0]);
    frame
}

#[test]
fn discovery_for_a_proxied_neighbour_is_left_to_the_kernel() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let (a, b) = (lab.a(), lab.b());
    Ping::to(b.v6).run(&a.ns).unwrap();
    let bywash = Bywash::run(lab.r(), &lab.router_interfaces());
    let ear = Ear::at(&b.ns, &b.interface);
    // The hop limit tells the solicitations apart.
    let send = |hop_limit| raw::send(&a.ns, &a.interface, &[(1, solicitation(&lab, hop_limit))]);
    let is = |hop_limit: u8| move |frame: &[u8]| frame.get(20..22) == Some(&[58, hop_limit - 1]) && frame[54] == 133;
    send(60);
    ear.wait(1, is(60));
    shell(&lab, &format!("ip neigh add proxy {} dev {}", b.v6, a.router_interface));
    send(61);
    ear.wait(1, is(61));
    shell(&lab, "sysctl -w net.ipv6.conf.all.proxy_ndp=1");
    let reason = format!("neighbour proxy {} on {}", b.v6, a.router_interface);
    bywash.wait("the proxy to be known", |bywash| bywash.show(&["placement"]).to_string().contains(&reason));
    send(62);
    shell(&lab, "sysctl -w net.ipv6.conf.all.proxy_ndp=0");
    bywash.wait("the proxy to be gone", |bywash| !bywash.show(&["placement"]).to_string().contains(&reason));
    send(63);
    ear.wait(1, is(63));
    assert!(!ear.heard().iter().any(|frame| is(62)(frame)), "routed past the kernel");
    bywash.stop();
}
