//! `bywash doctor`: faults planted on interfaces are found and named; `--fix` fixes those that a setting fixes, and
//! `bywash restore` reverts that.

use crate::harness::{Bywash, PATIENCE, bywash};
use bywash_lab::{Namespace, Snapshot, Topology, require, require_lab, wait_until};
use bywash_port::af_xdp::Bare;
use serde_json::{Value, json};
use std::os::unix::fs::MetadataExt;

/// Returns the report of `bywash doctor --json`.
fn told(namespace: &Namespace, arguments: &[&str]) -> Value {
    let out = bywash(namespace, &[&["doctor", "--json"], arguments].concat());
    assert!(out.status.success(), "{}", out.stderr);
    serde_json::from_str(&out.stdout).unwrap()
}

fn findings(namespace: &Namespace, arguments: &[&str]) -> Vec<Value> {
    told(namespace, arguments)["findings"].as_array().unwrap().clone()
}

fn has(found: &[Value], interface: &str, id: &str) -> bool {
    found.iter().any(|f| f["interface"] == interface && f["id"] == id)
}

#[test]
fn planted_faults_are_named_mended_and_put_back() {
    require!(require_lab());
    let r = Namespace::new("doctor").unwrap();
    // Link-local addresses would come and go with their links and show in the snapshots: none are generated.
    r.sysctl("net.ipv6.conf.default.addr_gen_mode", "1").unwrap();
    let pairs = [("d0", "d1"), ("down0", "up0"), ("alone0", "other0"), ("member0", "far0"), ("taken0", "giver0")];
    let mut lines: String = pairs.iter().map(|(a, b)| format!("link add {a} type veth peer name {b}\n")).collect();
    for up in ["d0", "d1", "down0", "up0", "alone0", "member0", "far0", "taken0", "giver0"] {
        lines += &format!("link set {up} up\n");
    }
    lines += "link set d0 mtu 9000\nlink set d1 mtu 9000\nlink add link d0 name d0v type macvtap\n\
              link add br0 type bridge\nlink set member0 master br0\n\
              link add link alone0 name alone0v type macvlan\n";
    r.ip_batch(&lines).unwrap();
    // An interface that was up once keeps a multicast route without carrier. `--fix` sets down0 up, which gives up0 a
    // carrier: up0 must have the route before, so that the snapshots are equal.
    let joined = || r.ip(&["-6", "route", "show", "table", "local", "dev", "up0"]).unwrap().stdout.contains("ff00::/8");
    wait_until("up0 to be ready", PATIENCE, joined).unwrap();
    r.ip(&["link", "set", "down0", "down"]).unwrap();
    for (feature, on) in [("rx-gro-list", true), ("rx-udp-gro-forwarding", true)] {
        r.offload("d0", feature, on).unwrap();
    }
    r.offload("d1", "gro", false).unwrap();
    r.offload("d0", "gro", true).unwrap();
    r.sysctl("net.ipv4.ip_forward", "1").unwrap();
    r.sysctl("net.ipv4.conf.d0.forwarding", "0").unwrap();
    r.sysctl("net.ipv6.conf.all.forwarding", "0").unwrap();
    r.run(&["sh", "-c", "echo 1 > /sys/class/net/d0/queues/rx-0/rps_cpus"]).unwrap();
    let _theirs = r.enter(|| Bare::drop("taken0")).unwrap().unwrap();

    // Interface, fault, and whether a setting fixes it.
    let planted = [
        ("down0", "down", true),
        ("alone0", "no-carrier", false),
        ("taken0", "foreign-program", false),
        ("d0", "interfaces-on-top", false),
        ("d0", "jumbo", false),
        ("d0", "gro-list", true),
        ("d0", "udp-gro", true),
        ("d0", "vlan-offload", true),
        ("d0", "checksum-offload", false),
        ("d0", "no-redirect", true),
        ("d0", "rps", true),
        ("d0", "ipv4-forwarding", true),
        ("d0", "ipv6-forwarding", true),
        ("gone0", "no-interface", false),
        ("lo", "loopback", false),
    ];
    let names = ["--socket", "/nowhere", "d0", "down0", "alone0", "member0", "taken0", "gone0", "lo"];
    let found = findings(&r, &names);
    assert!(!has(&found, "member0", "enslaved"), "a router forwards for its bridge");
    assert!(!has(&found, "alone0", "interfaces-on-top"), "a router forwards for its macvlan");
    for (interface, id, fixable) in planted {
        let one = found.iter().find(|f| f["interface"] == interface && f["id"] == id);
        let one = one.unwrap_or_else(|| panic!("no {id} of {interface} in {found:#?}"));
        assert_eq!((&one["fixable"], &one["fixed"]), (&fixable.into(), &false.into()), "{one}");
        assert!(one["what"].as_str().unwrap().len() > 5 && one["costs"].as_str().unwrap().len() > 5, "{one}");
        assert!(one["mend"].is_string(), "{one}");
    }
    // Sound interfaces are not reported.
    assert!(!has(&found, "d0", "down") && !has(&found, "alone0", "jumbo") && !has(&found, "d0", "foreign-program"));

    // The kernel reports the capabilities of veth's driver since 6.3, those for metadata since 6.8.
    let d0 = &told(&r, &["--socket", "/nowhere", "d0"])["interfaces"][0];
    if !d0["zero_copy"].is_null() {
        assert_eq!(d0["zero_copy"], false, "{d0}");
        assert_eq!(d0["rx_metadata"], json!(["timestamp", "hash", "vlan-tag"]), "{d0}");
        assert_eq!(d0["tx_metadata"], json!([]), "{d0}");
    }

    let before = Snapshot::of(&r).unwrap();
    // Without names and without an instance, all interfaces are examined and none is changed.
    let out = bywash(&r, &["doctor", "--fix", "--socket", "/nowhere"]);
    assert!(!out.status.success() && out.stderr.contains("--fix has changed nothing"), "{}", out.stderr);
    assert!(
        out.stdout.contains("error* [down] down0: it is down") && !out.stdout.contains("fixed: "),
        "{}",
        out.stdout
    );
    assert_eq!(before.differences(&Snapshot::of(&r).unwrap()), Vec::<String>::new());
    let text = bywash(&r, &[&["doctor", "--fix"], names.as_slice()].concat()).stdout;
    assert!(text.contains("error* [down] down0: it is down"), "{text}");
    assert!(text.contains("  see: ip link show"), "{text}");
    assert!(text.contains("  fixed: ethtool -K d0 rx-gro-list off"), "{text}");
    assert!(text.contains("`bywash restore` reverts these fixes") && !text.contains("not fixed"), "{text}");
    assert!(!before.differences(&Snapshot::of(&r).unwrap()).is_empty());
    let left = findings(&r, &names);
    for (interface, id, fixable) in planted {
        assert_eq!(has(&left, interface, id), !fixable, "{id} of {interface} in {left:#?}");
    }
    let out = bywash(&r, &["restore"]);
    let all = out.stdout.split(' ').next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(0);
    let told = format!("{all} of {all} settings restored");
    assert!(out.status.success() && all >= 8 && out.stdout.contains(&told), "{} {}", out.stdout, out.stderr);
    assert_eq!(before.differences(&Snapshot::of(&r).unwrap()), Vec::<String>::new());
    assert!(bywash(&r, &["restore"]).stdout.contains("nothing to restore"));
    assert_crafted_journals_are_refused(&r);
}

/// Writes journals such as only another program than Bywash would, and checks that `bywash restore` obeys none.
fn assert_crafted_journals_are_refused(r: &Namespace) {
    let network = r.enter(|| std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let victim = directory.path().join("victim");
    std::fs::write(&victim, "as it was").unwrap();
    let above = format!("../../../../../../../..{}", victim.display());
    for (name, crafted) in [
        ("doctor-files", json!([{ "path": victim, "was": "changed" }])),
        ("doctor", json!([{ "interface": "d0", "feature": above, "was": 1 }])),
        ("settings", json!([{ "interface": "d0", "feature": above, "was": 1 }])),
    ] {
        let journal = format!("/run/bywash/{name}-{network}.json");
        std::fs::write(&journal, crafted.to_string()).unwrap();
        let out = bywash(r, &["restore"]);
        // A program that obeys it removes it, too.
        let _ = std::fs::remove_file(&journal);
        let why = format!("journal {journal} is not trusted");
        assert!(out.status.code() == Some(1) && out.stderr.contains(&why), "{} {}", out.stdout, out.stderr);
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "as it was", "{name}");
    }
}

#[test]
fn a_running_instance_is_examined() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let bywash_ = Bywash::run(lab.r(), &lab.router_interfaces());
    let socket = bywash_.socket();
    let unknown = "10.99.0.1";
    // There is no route to the address: every ping is dropped.
    let mut ping = lab.a().ns.spawn(&["ping", "-q", "-i", "0.01", "-c", "3000", unknown]).unwrap();
    bywash_.wait("the first drop", |b| b.drops("r0", "no-route") > 0);
    let found = findings(lab.r(), &["--socket", socket.to_str().unwrap()]);
    ping.kill().unwrap();
    let drops = found.iter().find(|f| f["id"] == "drops").unwrap_or_else(|| panic!("{found:#?}"));
    assert_eq!((&drops["interface"], &drops["mend"]), (&"r0".into(), &"bywash capture r0 --drops no-route".into()));
    // The instance's own XDP program is not reported as foreign.
    assert!(!has(&found, "r0", "foreign-program"), "{found:#?}");
    // The doctor does not look for the instance's ports in another namespace.
    let elsewhere = findings(&lab.a().ns, &["--socket", socket.to_str().unwrap()]);
    let ids: Vec<&str> = elsewhere.iter().filter_map(|f| f["id"].as_str()).collect();
    assert!(ids.contains(&"other-namespace") && !ids.contains(&"no-interface"), "{elsewhere:#?}");
    assert!(!found.iter().any(|f| f["id"] == "other-namespace"), "{found:#?}");
    bywash_.stop();
}
