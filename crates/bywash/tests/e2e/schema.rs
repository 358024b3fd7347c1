//! What `show --json` prints is what `show --schema` says, in every mode.

use crate::harness::{Bywash, bywash};
use bywash_api::{Traced, schema};
use bywash_lab::{Ping, Topology, require, require_lab};
use serde_json::Value;

fn validate(what: &str, schema: &Value, answer: &Value) {
    let validator = jsonschema::draft202012::new(schema).unwrap();
    let wrong: Vec<String> =
        validator.iter_errors(answer).map(|e| format!("{}: {e}", e.instance_path())).take(5).collect();
    assert!(wrong.is_empty(), "{what}: {wrong:#?}\n{answer}");
}

/// Compares a trace of a packet that r0 receives.
fn compare_trace(instance: &Bywash<'_>) {
    let frame = format!("ffffffffffff0200000000010800{}", "45".repeat(20));
    let socket = instance.socket().to_str().unwrap().to_owned();
    let out = bywash(instance.namespace(), &["trace", "--json", "--socket", &socket, "r0", &frame]);
    let traced: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|why| panic!("{why}: {}", out.stderr));
    validate("trace", &schema::<Traced>("trace"), &traced);
}

/// Compares each topic that this instance has with its schema.
fn compare(instance: &Bywash<'_>, topics: &[&str]) {
    for topic in topics {
        let out = bywash(instance.namespace(), &["show", topic, "--schema"]);
        let schema: Value = serde_json::from_str(&out.stdout).unwrap_or_else(|why| panic!("{why}: {}", out.stderr));
        let shown = instance.show(&[topic]);
        validate(topic, &schema, &shown);
        let empty = shown.as_array().is_some_and(Vec::is_empty);
        // Drift there is none; a switch begins without groups.
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
    compare(&router, &[&common[..], &["routes", "neighbours", "drift"]].concat());
    compare_trace(&router);
    router.stop();

    let switch = Bywash::run_as_is(lab.r(), &["--mode", "switch", "r0", "r1"]);
    // It learns who speaks.
    lab.a()
        .ns
        .try_run(&["ping", "-c", "2", "-i", "0.1", "-W", "1", &lab.b().v4.to_string()], crate::harness::PATIENCE)
        .unwrap();
    switch.wait("an address", |switch| !switch.show(&["fdb"]).as_array().unwrap().is_empty());
    compare(&switch, &[&common[..], &["flows", "groups", "fdb", "caches"]].concat());
    compare_trace(&switch);
    switch.stop();

    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("cmts.toml");
    let text = "mode = \"cmts\"\n[[port]]\ninterface = \"r0\"\n[[port]]\nkind = \"null\"\nname = \"cable\"\n\
                [[group]]\ninput = \"r0\"\noutput = \"cable\"\nmodems = 3\n";
    std::fs::write(&config, text).unwrap();
    let cmts = Bywash::run(lab.r(), &["--config", config.to_str().unwrap()]);
    compare(&cmts, &[&common[..], &["modems", "service-flows", "channels"]].concat());
    cmts.stop();
}
