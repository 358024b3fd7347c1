//! Every kind of pool under the router: packets are forwarded, buffers are reused, and all are accounted for.

use crate::harness::Bywash;
use crate::reload::{File, reload};
use bywash_lab::{End, Namespace, Ping, Topology, Veth, require, require_lab};
use serde_json::{Value, json};
use std::time::Duration;

/// Returns these keys of each pool, in the order of the pools' names.
fn keys(running: &Bywash, keys: &[&str]) -> Value {
    let mut pools = running.show(&["pools"])["pools"].as_array().unwrap().clone();
    pools.sort_by_key(|pool| pool["name"].as_str().unwrap().to_owned());
    pools.iter().map(|pool| keys.iter().map(|key| pool[*key].clone()).collect::<Value>()).collect()
}

#[test]
fn each_worker_has_the_pool_that_names_it() {
    require!(require_lab());
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let pools = "[workers]\ncount = 2\n[[pool]]\nworkers = [1]\nname = \"second\"\nkind = \"ring\"\ncpu = 0\n\
                 [[pool]]\nframes = 4096\nreserve = 8192\n";
    let ports = "[[port]]\ninterface = \"r0\"\nring = 64\nlevel = \"user\"\n\
                 [[port]]\ninterface = \"r1\"\nring = 64\nlevel = \"user\"\n";
    let file = File::new(&format!("{ports}{pools}"));
    let running = file.run(&lab);
    let forwards = || {
        let ping = Ping::to(lab.b().v4).count(200).interval(Duration::ZERO).one_by_one();
        let report = ping.run(&lab.a().ns).unwrap();
        assert_eq!(report.received, 200, "{}", report.text);
    };
    forwards();
    let shown = ["name", "kind", "cache", "frames", "workers", "cpu"];
    let expected = json!([["second", "ring", 256, 1536, [1], 0], ["worker0", "stack", 0, 4096, [0], null]]);
    assert_eq!(keys(&running, &shown), expected);
    let memory = &keys(&running, &["memory"])[0][0];
    let nodes = std::fs::read_dir("/sys/devices/system/node")
        .map_or(0, |all| all.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("node")).count());
    let place = if nodes > 1 { "NUMA node " } else { "not bound: one NUMA node" };
    assert!(memory.as_str().is_some_and(|memory| memory.starts_with(place)), "{memory}");
    assert!(running.log().contains("pool second: memory near CPU 0: "), "{}", running.log());
    // Both allocate: each worker receives from a port of its own.
    let allocated = keys(&running, &["allocated"]);
    assert!((0..2).all(|n| allocated[n][0].as_u64() > Some(200)), "{allocated}");

    let config = running.show(&["config"]);
    assert_eq!(config["pool"].as_array().map(Vec::len), Some(2), "{config}");

    // A reload replaces the pool of the entry that differs, and no other.
    file.write(&format!("{ports}{}", pools.replace("\"ring\"", "\"stack\"").replace("second", "other")));
    let told = reload(&running, &[]).ok().unwrap().stdout;
    assert_eq!(told, "pool other added: stack of 1280; second drains: ring of 1536 with caches of 256\n");
    forwards();
    let of = |name: &str| {
        let pools = keys(&running, &["name", "workers", "draining"]);
        pools.as_array().unwrap().iter().find(|pool| pool[0] == name).cloned()
    };
    assert_eq!(of("other"), Some(json!(["other", [1], false])));
    assert_eq!(of("worker0"), Some(json!(["worker0", [0], false])));

    // Both workers in one pool, as one table.
    file.write(&format!("{ports}[workers]\ncount = 2\n[pool]\nkind = \"sdb\"\nblock = 64\nreserve = 8192\n"));
    let told = reload(&running, &[]).ok().unwrap().stdout;
    assert!(told.starts_with("pool shared added: sdb of ") && told.lines().count() == 1, "{told}");
    forwards();
    assert_eq!(of("shared"), Some(json!(["shared", [0, 1], false])));
    file.write(&format!("{ports}{}", pools.replace("reserve = 8192", "reserve = 64")));
    let refused = reload(&running, &[]).stderr;
    assert!(refused.contains("pool.reserve: 8192 -> 64: it is a setting of the arena"), "{refused}");
    running.stop();
}

#[test]
fn groups_of_a_cable_downstream_have_pools_of_their_own() {
    require!(require_lab());
    let (headend, host) = (Namespace::new("c").unwrap(), Namespace::new("h").unwrap());
    let mut text = "mode = \"cmts\"\n".to_string();
    for n in 1..=2 {
        Veth::new(End::new(&headend, format!("in{n}")), End::new(&host, format!("e{n}"))).create().unwrap();
        text += &format!(
            "[[port]]\ninterface = \"in{n}\"\nring = 64\n[[port]]\nname = \"cable{n}\"\nkind = \"null\"\n\
             [[group]]\ninput = \"in{n}\"\noutput = \"cable{n}\"\nmodems = 2\n"
        );
    }
    text += "[[pool]]\ngroup = 2\nside = \"upper\"\nkind = \"ring\"\ncache = 64\n\
             [[pool]]\ngroup = 2\nside = \"lower\"\nname = \"low\"\n[[pool]]\nkind = \"tabm\"\nblock = 64\n";
    let file = File::new(&text);
    let running = Bywash::run(&headend, &["--config", file.path().to_str().unwrap()]);
    let expected =
        json!([["low", "stack", [3]], ["worker0", "tabm", [0]], ["worker1", "tabm", [1]], ["worker2", "ring", [2]]]);
    assert_eq!(keys(&running, &["name", "kind", "workers"]), expected);
    let mac = [2, 0xca, 0xb1, 0, 0, 1];
    for n in ["1", "2"] {
        let packet = crate::cmts::packet(mac, 80, 0, 100);
        crate::raw::send(&host, &format!("e{n}"), &[(50, packet)]);
        running.wait("frames on the cable", |running| running.counter(&format!("cable{n}"), "tx_packets") == 50);
    }
    file.write(&text.replace("cache = 64", "cache = 32"));
    let refused = reload(&running, &[]).stderr;
    assert!(refused.contains("pool.0.cache: 64 -> 32: a cable downstream keeps the pools"), "{refused}");
    running.stop();
}

#[test]
fn every_kind_of_pool_forwards_and_reuses_buffers() {
    require!(require_lab());
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bywash.toml");
    for kind in ["stack", "ring", "sdb", "tabm"] {
        // Two queues with four rings of 64 take half of the frames: blocks are reused after a few hundred packets.
        let text = format!(
            "[[port]]\ninterface = \"r0\"\nring = 64\nlevel = \"user\"\n\
             [[port]]\ninterface = \"r1\"\nring = 64\nlevel = \"user\"\n\
             [pool]\nkind = \"{kind}\"\nblock = 64\nframes = 1024\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut bywash = Bywash::spawn(lab.r(), &["--config", file.to_str().unwrap()]);
        bywash.process.wait_for_output("forwarding;", crate::harness::PATIENCE).unwrap();
        // The pings are sent one by one, since the rings hold few packets.
        let ping = Ping::to(lab.b().v4).count(1500).interval(Duration::ZERO).one_by_one();
        let report = ping.run(&lab.a().ns).unwrap();
        assert_eq!(report.received, 1500, "{kind}: {}", report.text);
        let shown = bywash.show(&["pools"]);
        let pool = &shown["pools"][0];
        let figure = |name: &str| pool[name].as_u64().unwrap_or_else(|| panic!("{kind}: no {name} in {pool}"));
        assert_eq!((pool["kind"].as_str(), figure("frames"), figure("surplus")), (Some(kind), 1024, 0));
        assert!(figure("normal") <= figure("peak") && figure("peak") <= 1024, "{pool}");
        assert!(figure("allocated") > 3000, "{kind}: no buffer is reused: {pool}");
        assert_eq!(shown["audit"]["missing"].as_i64(), Some(0), "{shown}");
        if matches!(kind, "sdb" | "tabm") {
            let blocks = &pool["blocks"];
            let states = ["free", "open", "draining"].map(|state| blocks[state].as_u64().unwrap());
            assert_eq!((blocks["size"].as_u64(), states.iter().sum::<u64>()), (Some(64), 16), "{pool}");
        } else {
            assert!(pool["blocks"].is_null());
        }
        bywash.stop();
    }
}

/// The kind of a pool is chosen when its worker starts, or moves, or another one begins to free its frames. Which kind
/// depends on the machine; what is shown must be what was said.
#[test]
fn a_kind_is_chosen_by_who_frees_and_how_far_that_is() {
    require!(require_lab());
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        bywash_lab::skip!("two workers on CPUs of their own need two CPUs");
    }
    let lab = Topology::builder().queues(2).static_neighbours(true).build().unwrap();
    let ports = "[[port]]\ninterface = \"r0\"\nring = 64\nlevel = \"user\"\n\
                 [[port]]\ninterface = \"r1\"\nring = 64\nlevel = \"user\"\n";
    let more = "[[port]]\nkind = \"null\"\nname = \"n\"\nworker = 0\n";
    let text = |more: &str, cpus: &str, reserve: usize| {
        format!(
            "[workers]\ncount = 2\ncpus = {cpus}\n[pool]\nkind = \"auto\"\nblock = 64\n\
             reserve = {reserve}\n{ports}{more}"
        )
    };
    // The kind of worker 1's pool, and the reason.
    let chosen = |running: &Bywash| {
        let pools = running.show(&["pools"])["pools"].as_array().unwrap().clone();
        let pool = pools.iter().find(|pool| pool["workers"] == json!([1])).unwrap();
        ["kind", "chosen"].map(|key| pool[key].as_str().unwrap_or_default().to_owned())
    };
    let forwards = || {
        let ping = Ping::to(lab.b().v4).count(200).interval(Duration::ZERO).one_by_one();
        assert_eq!(ping.run(&lab.a().ns).unwrap().received, 200);
    };
    let file = File::new(&text("", "[0, 1]", 8192));
    let running = file.run(&lab);
    let own = ["stack", "the worker frees its frames itself"].map(str::to_owned);
    assert_eq!(chosen(&running), own);
    let log = running.log();
    assert!(log.contains("pool worker1: kind stack: the worker frees its frames itself"), "{log}");
    assert_eq!(running.show(&["config"])["pool"]["kind"], "auto");
    forwards();

    // Worker 1 has no queue of the new port: what it sends there is freed by worker 0.
    file.write(&text(more, "[0, 1]", 8192));
    let told = reload(&running, &[]).ok().unwrap().stdout;
    let [kind, why] = chosen(&running);
    assert!(told.contains(&format!("worker 1: pool of kind {kind}: {why}\n")), "{told}{kind}: {why}");
    assert!(!told.contains("worker 0: pool of kind"), "{told}");
    assert_eq!(told.contains(&format!("pool worker1.2 added: {kind} of")), kind != "stack", "{told}");
    let by = |why: &str, one: usize, other: usize| {
        let ends =
            [format!("ns from CPU {one} to {other}"), format!("CPUs {one} and {other} were too busy to measure")];
        why.starts_with("worker 0 frees its frames") && ends.iter().any(|end| why.contains(end))
    };
    assert!(by(&why, 1, 0), "{why}");
    forwards();
    assert_eq!(reload(&running, &[]).ok().unwrap().stdout, "nothing to change\n");

    file.write(&text(more, "[1, 0]", 8192));
    let told = reload(&running, &[]).ok().unwrap().stdout;
    let [kind, why] = chosen(&running);
    assert!(by(&why, 0, 1) && told.contains(&format!("worker 1: pool of kind {kind}: {why}\n")), "{told}");
    forwards();
    file.write(&text("", "[1, 0]", 8192));
    reload(&running, &[]).ok().unwrap();
    assert_eq!(chosen(&running), own);
    running.stop();

    // Without spare buffers a pool keeps its kind, and says so once it does.
    let file = File::new(&text("", "[0, 1]", 0));
    let running = file.run(&lab);
    file.write(&text(more, "[0, 1]", 0));
    let log = running.log();
    reload(&running, &["--dry-run"]).ok().unwrap();
    assert_eq!(running.log(), log);
    let told = reload(&running, &[]).ok().unwrap().stdout;
    let [kind, why] = chosen(&running);
    assert!(kind == "stack" && told.contains(&format!("worker 1: pool of kind stack: {why}\n")), "{told}");
    assert_eq!(running.log().matches(&format!("worker 1: pool of kind stack: {why}")).count(), 1, "{}", running.log());
    forwards();
    running.stop();
}
