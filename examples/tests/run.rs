//! Checks that the examples print the expected result and have less than 60 lines. Cargo builds them before their
//! package's tests.

use bywash_lab::{require, require_lab, run_host_with_timeout};
use std::path::{Path, PathBuf};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the path of a built example, beside the directory of the tests.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("examples").join(name)
}

fn says(name: &str, expected: &str) {
    let output = run_host_with_timeout(&[built(name)], PATIENCE).unwrap();
    assert!(output.stdout.contains(expected), "{name}: {} {}", output.stdout, output.stderr);
}

#[test]
fn examples_do_what_they_say_in_less_than_60_lines() {
    require!(require_lab());
    for (name, expected) in [
        ("own_stage", "5 of 10 answered"),
        ("own_port", "100 of 100 came"),
        ("own_pool", "10 of 10 answered"),
        ("own_app", "10 of 10 answered"),
    ] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.rs"));
        let lines = std::fs::read_to_string(path).unwrap().lines().count();
        assert!(lines < 60, "{name}: {lines} lines");
        says(name, expected);
    }
}

#[test]
fn what_a_new_application_begins_with_forwards() {
    require!(require_lab());
    says("new_app", "5 of 5 pings answered through the application");
}
