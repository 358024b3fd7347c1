//! The answers of `show --json` match the schemas of `show --schema`, in every mode.

use crate::harness::{Bywash, PATIENCE, bywash, program};
use bywash_api::{Traced, schema};
use bywash_lab::{Ping, Topology, require, require_lab, wait_until};
use serde_json::Value;

fn validate(what: &str, schema: &Value, answer: &Value) {
    let validator = jsonschema::draft202012::new(schema).unwrap();
    let wrong: Vec<String> =
        validator.iter_errors(answer).map(|e| format!("{}: {e}", e.instance_path())).take(5).collect();
    assert!(wrong.is_empty(), "{what}: {wrong:#?}\n{answer}");
}

/// Validates the trace of a packet received on r0 against its schema.
fn compare_trace(instance: &Bywash<'_>) {
    let frame = format!("ffffffffffff0200000000010800{}", "45".repeat(20));
    let socket = instance.socket().to_str().unwrap().to_owned();
    let out = bywash(instance.namespace(), &["trace", "--json", "--socket", &socket, "r0", &frame]);
    let traced: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|why| panic!("{why}: {}", out.stderr));
    validate("trace", &schema::<Traced>("trace"), &traced);
}

/// Validates the answers for these topics against their schemas.
fn compare(instance: &Bywash<'_>, topics: &[&str]) {
    for topic in topics {
        let out = bywash(instance.namespace(), &["show", topic, "--schema"]);
        let schema: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|why| panic!("{why}: {}", out.stderr));
        let shown = instance.show(&[topic]);
        validate(topic, &schema, &shown);
        let empty = shown.as_array().is_some_and(Vec::is_empty);
        // An empty list proves nothing; only drift must be empty.
        assert!(!empty || ["drift"].contains(topic), "{topic} is empty: nothing is compared");
    }
}

#[test]
fn answers_are_as_their_schemas_say() {
    require!(require_lab());
    let lab = Topology::router().unwrap();
    let common = ["ports", "workers", "pools", "drops", "placement", "sandbox", "health", "config"];
    let router = Bywash::run(lab.r(), &lab.router_interfaces());
    assert_eq!(Ping::to(lab.b().v4).count(2).run(&lab.a().ns).unwrap().received, 2);
    compare(&router, &[&common[..], &["routes", "neighbours", "drift", "flow-table", "flows"]].concat());
    compare_trace(&router);
    router.stop();

    let switch = Bywash::run_as_is(lab.r(), &["--mode", "switch", "r0", "r1"]);
    // The switch learns the addresses of hosts that send.
    lab.a()
        .ns
        .try_run(&["ping", "-c", "2", "-i", "0.1", "-W", "1", &lab.b().v4.to_string()], crate::harness::PATIENCE)
        .unwrap();
    switch.wait("a learned address", |switch| !switch.show(&["fdb"]).as_array().unwrap().is_empty());
    compare(&switch, &[&common[..], &["flows", "groups", "fdb", "caches"]].concat());
    compare_trace(&switch);
    switch.stop();

    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("cmts.toml");
    let modems = place.path().join("modems.csv");
    std::fs::write(&modems, "mac,cpe\n00:10:18:00:00:01,00:10:18:00:00:02\n").unwrap();
    let text = format!(
        "mode = \"cmts\"\n[[port]]\ninterface = \"r0\"\n[[port]]\nkind = \"null\"\nname = \"cable\"\n[[group]]\ninput = \
         \"r0\"\noutput = \"cable\"\nmodems = 3\nfile = \"{}\"\n",
        modems.display()
    );
    std::fs::write(&config, text).unwrap();
    let cmts = Bywash::run(lab.r(), &["--config", config.to_str().unwrap()]);
    compare(&cmts, &[&common[..], &["modems", "cpes", "service-flows", "channels"]].concat());
    let out = bywash(lab.r(), &["trace", "--socket", cmts.socket().to_str().unwrap(), "r0", "00"]);
    assert!(out.stderr.contains("mode cmts has no trace"), "{}", out.stderr);
    cmts.stop();
}

#[test]
fn rows_are_selected_by_name_and_repeated() {
    require!(require_lab());
    let lab = Topology::builder().static_neighbours(true).build().unwrap();
    let router = Bywash::run(lab.r(), &lab.router_interfaces());
    for topic in ["ports", "placement", "neighbours"] {
        let of = |row: &Value| row["name"].as_str().or(row["port"].as_str()).unwrap_or_default().to_owned();
        let names: Vec<String> = router.show(&[topic, "r1"]).as_array().unwrap().iter().map(of).collect();
        assert!(!names.is_empty() && names.iter().all(|name| name == "r1"), "{topic}: {names:?}");
    }
    let socket = router.socket().to_str().unwrap().to_owned();
    let show = |arguments: &[&str]| bywash(lab.r(), &[&["show", "--socket", &socket], arguments].concat());
    for topic in ["ports", "neighbours"] {
        let out = show(&[topic, "r9"]);
        assert!(
            out.status.code() == Some(1) && out.stderr.contains("no port `r9`: the ports are r0, r1"),
            "{}",
            out.stderr
        );
    }
    let text = show(&["ports", "r1"]).stdout;
    assert!(text.contains("\nr1 ") && !text.contains("\nr0 "), "{text}");
    let program = program();
    let argv = [&program, "show", "--socket", &socket, "ports", "r1", "--json", "--watch", "0.1"];
    let mut watch = lab.r().spawn(&argv).unwrap();
    let several = || watch.output().matches('\n').count() > 1;
    wait_until("several lines", PATIENCE, several).unwrap_or_else(|why| panic!("{why}: {}", watch.output()));
    watch.kill().unwrap();
    let said = watch.output();
    // The last line may be incomplete.
    let whole = &said[..said.rfind('\n').unwrap()];
    let mut rows = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert!(rows.all(|rows| rows[0]["name"] == "r1"), "{said}");
    router.stop();
}
