//! Established flows that are left to the kernel for another reason than the firewall's rules: what is shown says so.

use crate::flows::{LEVELS, behind_firewall, run_with_flow, wait_until_followed};
use crate::harness::Bywash;
use bywash_lab::{has_tool, require, require_lab};

/// Returns what `show placement` says about packets of ports, without how to change it.
fn placement(bywash: &Bywash) -> Vec<String> {
    let text = bywash.text(&["placement"]);
    let of = |line: &str| line.contains(" left to the kernel because of ");
    text.lines().filter(|line| of(line)).map(str::to_owned).collect()
}

fn shows(bywash: &Bywash, what: &str, parts: &[&str]) {
    bywash.wait(&format!("{parts:?} in `show {what}`"), |bywash| {
        let text = bywash.text(&[what]);
        parts.iter().all(|part| text.contains(part))
    });
}

const RULES: &str = "table inet filter chain forward policy drop: policy drop";
const HELD: &str = "left to the kernel: no flows pass on its ports, or on one of them: see `bywash show placement`";

#[test]
fn a_routing_rule_is_named() {
    require!(require_lab(), has_tool("nft"));
    for level in [LEVELS[0], LEVELS[2]] {
        let lab = behind_firewall();
        let (bywash, _ends) = run_with_flow(&lab, level);
        lab.r().ip(&["rule", "add", "from", "192.0.2.1", "lookup", "100", "priority", "60"]).unwrap();
        let held = "r0, r1: IPv4 packets of established flows left to the kernel because of ip rule 60: ";
        bywash.wait("the rule to be named", |bywash| placement(bywash).iter().any(|line| line.starts_with(held)));
        let shown = placement(&bywash);
        for line in [
            format!("r0, r1: all IPv4 packets left to the kernel because of {RULES}"),
            format!("r0, r1: all IPv6 packets except those of established flows left to the kernel because of {RULES}"),
        ] {
            assert!(shown.contains(&line), "{line}: {shown:?}");
        }
        let instead = "`bywash show firewall` says which established flows would be forwarded without ip rule 60\n";
        shows(&bywash, "placement", &[instead]);
        bywash.wait("flows of IPv6 to pass", |bywash| bywash.show(&["flow-table"])["state"] == "passing");
        shows(&bywash, "flow-table", &["established flows: passing (ipv6 only); "]);
        shows(&bywash, "kernel-connections", &["1 connection, 0 of them forwarded past the kernel's rules", HELD]);
        let told = "IPv4 packets of established flows are left to the kernel: ip rule 60: ";
        bywash.wait("the log", |bywash| bywash.log().contains(told));
        lab.r().ip(&["rule", "del", "priority", "60"]).unwrap();
        bywash.wait("the rule to be gone", |bywash| !placement(bywash).iter().any(|line| line.starts_with(held)));
        wait_until_followed(&bywash);
        shows(&bywash, "flow-table", &["established flows: passing; "]);
        bywash.stop();
    }
}

/// A rule that leaves all packets of one port to the kernel, and the flows of another, is named once.
#[test]
fn a_routing_rule_is_named_once() {
    require!(require_lab(), has_tool("nft"));
    let lab = behind_firewall();
    let (bywash, _ends) = run_with_flow(&lab, LEVELS[0]);
    lab.r()
        .ip_batch(
            "rule add iif r0 tos 0x10 lookup 100 priority 50\nrule add iif r0 tos 0x08 lookup 100 priority 51\n\
             rule add from 192.0.2.1 lookup 100 priority 60\n",
        )
        .unwrap();
    let held = "r1: IPv4 packets of established flows left to the kernel because of ip rule 50: ";
    let without = "would be forwarded without ip rule 50, ip rule 51\n";
    bywash.wait("the rules to be named, each once", |bywash| {
        let text = bywash.text(&["placement"]);
        text.contains(held) && text.contains(without)
    });
    bywash.stop();
}

/// Flows pass the other port still.
#[test]
fn a_filter_of_one_port_is_named_there() {
    require!(require_lab(), has_tool("nft"), has_tool("tc"));
    let lab = behind_firewall();
    let (bywash, _ends) = run_with_flow(&lab, LEVELS[2]);
    let filter = "tc qdisc add dev r0 clsact && tc filter add dev r0 ingress protocol ipv6 u32 match u32 0 0 \
                  action mirred egress redirect dev lo";
    lab.r().run(&["sh", "-c", filter]).unwrap();
    bywash.wait("the filter to be named", |bywash| placement(bywash).iter().any(|line| line.contains("tc filter")));
    let shown = placement(&bywash);
    for line in [
        format!("r0: all packets left to the kernel because of {RULES}"),
        format!("r1: all packets except those of established flows left to the kernel because of {RULES}"),
    ] {
        assert!(shown.contains(&line), "{line}: {shown:?}");
    }
    shows(&bywash, "placement", &["would be forwarded without tc filter dev r0 ingress u32\n"]);
    shows(&bywash, "kernel-connections", &["0 of them forwarded past the kernel's rules", HELD]);
    bywash.stop();
}

#[test]
fn rules_of_legacy_iptables_are_named() {
    require!(require_lab(), has_tool("nft"), has_tool("iptables-legacy"));
    let lab = behind_firewall();
    let (bywash, _ends) = run_with_flow(&lab, LEVELS[2]);
    lab.r().run(&["iptables-legacy", "-A", "FORWARD", "-p", "tcp", "--dport", "99", "-j", "DROP"]).unwrap();
    let legacy =
        "r0, r1: all IPv4 packets left to the kernel because of iptables-legacy table filter chain FORWARD: rules";
    bywash.wait("them to be named", |bywash| placement(bywash).iter().any(|line| line == legacy));
    let without = "would be forwarded without iptables-legacy table filter chain FORWARD\n";
    shows(&bywash, "placement", &[without, "to allow: remove the rules, and set the policies to ACCEPT"]);
    shows(&bywash, "kernel-connections", &["0 of them forwarded past the kernel's rules", HELD]);
    bywash.stop();
}

/// The connection's ports are known; its packets are left to the kernel where they leave.
#[test]
fn a_qdisc_is_no_missing_route() {
    require!(require_lab(), has_tool("nft"), has_tool("tc"));
    let lab = behind_firewall();
    let (bywash, mut ends) = run_with_flow(&lab, LEVELS[2]);
    lab.r().run(&["tc", "qdisc", "add", "dev", "r1", "root", "pfifo", "limit", "100"]).unwrap();
    let why = "packets that leave through one of them are left to the kernel: see `bywash show placement`";
    bywash.wait("the reason", |bywash| {
        ends.talk(b"a message");
        bywash.text(&["kernel-connections"]).contains(why)
    });
    assert!(placement(&bywash).iter().any(|line| line.starts_with("r1: packets that leave left to the kernel")));
    bywash.stop();
}

/// Tables without hooks keep no packets, translated connections included.
#[test]
fn dormant_rules_keep_nothing() {
    require!(require_lab(), has_tool("nft"));
    let lab = behind_firewall();
    let (bywash, _ends) = run_with_flow(&lab, LEVELS[2]);
    lab.r().nft("add table inet filter { flags dormant; }\nadd table ip nat { flags dormant; }").unwrap();
    bywash.wait("the connection to need no flow", |bywash| {
        bywash.text(&["kernel-connections"]).contains("none: it needs no flow, its packets are forwarded by routes")
    });
    assert!(!placement(&bywash).iter().any(|line| line.contains(": all packets")));
    bywash.stop();
}
