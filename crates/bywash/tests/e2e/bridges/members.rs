//! Frames between members of a bridge, which the driver forwards without the kernel.

use super::{B, Bridged, C, LEVELS, assert_renewed, ip};
use crate::around::assert_datagrams;
use crate::garbage::mac;
use crate::harness::PATIENCE;
use bywash_lab::{Ping, Transfer, has_tool, require, require_lab, wait_until};
use std::time::Duration;

#[test]
fn frames_between_members_are_bridged_past_the_kernel() {
    require!(require_lab());
    let bridged = Bridged::new("");
    let bywash = bridged.run_between(&[]);
    bridged.wait_until_bridges(&bywash);
    let connected = || {
        for (from, to, addr) in [(bridged.b(), bridged.c(), C[0]), (bridged.c(), bridged.b(), B[1])] {
            let report = Transfer::new(3_000_000).run(from, to, ip(addr)).unwrap();
            assert!(report.is_intact(), "{addr}: {report:?}");
        }
        for (near, far) in B.into_iter().zip(C) {
            assert_datagrams((bridged.b(), ip(near)), (bridged.c(), ip(far)), &[0, 1, 100, 1452, 4000]);
        }
    };
    let before = bridged.between(&bywash);
    connected();
    let now = bridged.between(&bywash);
    assert!((0..2).all(|at| now[at] > before[at] + 50), "{before:?} {now:?}");
    let drops = bywash.show(&["drops"]).to_string();
    assert!(drops.contains("to_member"), "{drops}");
    assert!(bywash.counter("r1", "rx_packets") >= now[0], "counted as received");
    bywash.assert_conserved();
    bywash.stop();
    // Where XDP takes the frames of a veth, it does not see their tags.
    for arguments in &LEVELS[..2] {
        let bywash = bridged.run_between(arguments);
        bywash.wait("r2 to be taken over", |bywash| bywash.show(&["placement"]).to_string().contains("r2"));
        connected();
        assert_eq!(bridged.between(&bywash), [0, 0]);
        bywash.stop();
    }
}

/// A frame with a tag, and what the kernel may answer itself, are not forwarded past it.
#[test]
fn frames_of_a_kind_for_the_kernel_are_left() {
    require!(require_lab(), has_tool("python3"));
    let bridged = Bridged::new("");
    let bywash = bridged.run_between(&[]);
    bridged.wait_until_bridges(&bywash);
    let (of_b, of_c) = (mac(bridged.mac(1)).0, mac(bridged.mac(2)).0);
    let ear = crate::raw::Ear::at(bridged.c(), "c0");
    for (kind, forwarded) in [
        (&[0x88, 0x64][..], true),
        (&[8, 0], true),
        (&[8, 6], false),
        (&[0x88, 0x8e], false),
        (&[0x12, 0x34], false),
        (&[0x81, 0, 0, 5, 8, 0], false),
        (&[0x88, 0xa8, 0, 5, 8, 0], false),
    ] {
        let frame = [&of_c[..], &of_b, kind, &[0; 60]].concat();
        let before = bridged.between(&bywash)[0];
        crate::raw::send(bridged.b(), "b0", &[(5, frame.clone())]);
        ear.wait(5, |heard| heard == frame);
        let past = bridged.between(&bywash)[0] - before;
        // The kernel may hear one of them, to renew the station.
        assert!(if forwarded { past >= 4 } else { past == 0 }, "{kind:02x?}: {past}");
    }
    bywash.stop();
}

#[test]
fn policies_between_members_hold() {
    require!(require_lab());
    let bridged = Bridged::new("");
    let r = bridged.lab.r();
    bridged.introduce();
    let bywash = bridged.run_between(&[]);
    bridged.wait_until_bridges(&bywash);
    let ping =
        |count| Ping::to(ip(C[0])).count(count).wait(Duration::from_millis(100)).run(bridged.b()).unwrap().received;
    let holds = |what: &str, set: &dyn Fn(), unset: &dyn Fn()| {
        set();
        // A change is followed within milliseconds.
        wait_until(what, PATIENCE, || ping(3) == 0).unwrap();
        assert_eq!(ping(5), 0, "{what}");
        unset();
        bridged.wait_until_bridges(&bywash);
    };
    let run = |line: &str| drop(r.run(&line.split(' ').collect::<Vec<_>>()).unwrap());
    for rules in [
        "table bridge f {\nchain c {\ntype filter hook forward priority 0\nip saddr 10.9.0.2 drop\n}\n}",
        "table bridge f {\nchain c {\ntype filter hook prerouting priority 0\nip saddr 10.9.0.2 drop\n}\n}",
        "table bridge f {\nchain c {\ntype filter hook postrouting priority 0\nip saddr 10.9.0.2 drop\n}\n}",
        "table netdev f {\nchain c {\ntype filter hook ingress device \"r1\" priority 0\nip saddr 10.9.0.2 drop\n}\n}",
        "table netdev f {\nchain c {\ntype filter hook egress device \"r2\" priority 0\nip saddr 10.9.0.2 drop\n}\n}",
    ] {
        holds(rules, &|| drop(r.nft(rules).unwrap()), &|| drop(r.nft("flush ruleset").unwrap()));
    }
    let isolate = |on: &str| {
        for member in ["r1", "r2"] {
            run(&format!("bridge link set dev {member} isolated {on}"));
        }
    };
    holds("isolated members", &|| isolate("on"), &|| isolate("off"));
    holds("a disabled member", &|| run("bridge link set dev r2 state 0"), &|| run("bridge link set dev r2 state 3"));
    holds(
        "a filter of the member",
        &|| {
            run("tc qdisc add dev r2 clsact");
            run("tc filter add dev r2 egress protocol ip u32 match u32 0 0 action mirred egress redirect dev lo");
        },
        &|| run("tc qdisc del dev r2 clsact"),
    );
    // An isolated member reaches those that are not isolated.
    run("bridge link set dev r1 isolated on");
    bridged.wait_until_bridges(&bywash);
    // Hooks of IP see frames between members if they are asked to.
    r.nft("table ip f {\nchain c {\ntype filter hook forward priority 0\nip saddr 10.9.0.2 drop\n}\n}").unwrap();
    bridged.wait_until_bridges(&bywash);
    let called = "net/bridge/bridge-nf-call-iptables";
    if std::path::Path::new("/proc/sys").join(called).exists() {
        holds("hooks of IP", &|| r.sysctl(called, "1").unwrap(), &|| r.sysctl(called, "0").unwrap());
        let of_bridge = |on: u8| run(&format!("ip link set br0 type bridge nf_call_iptables {on}"));
        holds("hooks of IP for the bridge", &|| of_bridge(1), &|| of_bridge(0));
    }
    r.nft("flush ruleset").unwrap();
    // A frame that is too long for the other member is lost, as in the kernel.
    r.ip(&["link", "set", "r2", "mtu", "1400"]).unwrap();
    let sized = |size| {
        Ping::to(ip(C[0])).count(3).size(size).wait(Duration::from_millis(100)).run(bridged.b()).unwrap().received
    };
    bywash.wait("what is too long to be lost", |_| sized(1472) == 0);
    let report = Ping::to(ip(C[0])).count(3).size(1372).wait(PATIENCE).run(bridged.b()).unwrap();
    assert_eq!(report.received, 3, "{}", report.text);
    bywash.stop();
}

/// Stations that send to other members alone stay known, and are followed where they go.
#[test]
fn stations_that_send_to_members_are_known_and_followed() {
    require!(require_lab());
    let bridged = Bridged::new("ageing_time 200");
    let r = bridged.lab.r();
    bridged.introduce();
    let bywash = bridged.run_between(&[]);
    bridged.wait_until_bridges(&bywash);
    let known = || r.run(&["bridge", "fdb", "show", "br", "br0", "dynamic"]).unwrap().stdout;
    assert_renewed(|| {
        let before = bridged.between(&bywash);
        let report = Ping::to(ip(C[0])).count(250).interval(Duration::from_millis(20)).run(bridged.b()).unwrap();
        let known = known();
        let all = [1, 2].iter().all(|host| known.contains(&bridged.lab.hosts()[*host].mac));
        let now = bridged.between(&bywash);
        (vec![if all { report.received } else { 0 }], (0..2).map(|at| now[at] - before[at]).collect())
    });
    bywash.wait("the kernel to forget silent stations", |_| known().trim().is_empty());
    // The members change places: the kernel learns b behind r2, and c behind r1.
    bridged.wait_until_bridges(&bywash);
    let (of_b, of_c) = (bridged.lab.hosts()[1].mac.clone(), bridged.lab.hosts()[2].mac.clone());
    for (ns, name, mac, [v4, v6]) in [(bridged.b(), "b0", of_c, C), (bridged.c(), "c0", of_b, B)] {
        ns.ip_batch(&format!(
            "link set {name} down\nlink set {name} address {mac}\naddress flush dev {name} scope global\n\
             link set {name} up\naddress add {v4}/24 dev {name}\naddress add {v6}/64 dev {name} nodad\n"
        ))
        .unwrap();
    }
    let back = || {
        let before = bridged.between(&bywash);
        let report = Ping::to(ip(C[0])).count(10).wait(Duration::from_millis(100)).run(bridged.c()).unwrap();
        let now = bridged.between(&bywash);
        report.received == 10 && (0..2).all(|at| now[at] >= before[at] + 8)
    };
    bywash.wait("frames to be bridged between the new places", |_| back());
    bywash.stop();
}
