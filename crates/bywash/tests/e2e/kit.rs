//! A project that `bywash new app` creates. The tests of `examples` run its contents; BYWASH_NEW_APP=1 has the project
//! built and run here, too, which takes minutes.

use crate::harness::program;
use bywash_lab::{has_tool, require, require_lab, run_host_with_timeout};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time limit for building the crates that a new project uses, on a busy machine.
const BUILD: Duration = Duration::from_secs(1200);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn cargo(directory: &Path, arguments: &[&str]) -> String {
    let target = repository().join("target");
    let target = std::env::var("CARGO_TARGET_DIR").unwrap_or(target.display().to_string());
    let change = format!("cd {} && CARGO_TARGET_DIR={target} exec cargo \"$@\"", directory.display());
    let argv = [&["sh", "-c", change.as_str(), "cargo"], arguments].concat();
    run_host_with_timeout(&argv, BUILD).unwrap().stdout
}

#[test]
fn a_new_application_builds_and_forwards_in_the_lab() {
    require!(require_lab(), has_tool("cargo"));
    let whole = std::env::var_os("BYWASH_NEW_APP").is_some();
    let place = tempfile::tempdir().unwrap();
    let repository = repository();
    let make =
        format!("cd {} && {} new app hello --crates {}", place.path().display(), program(), repository.display());
    let told = run_host_with_timeout(&["sh", "-c", &make], BUILD).unwrap().stdout;
    assert!(told.contains("its stages are in src/main.rs"), "{told}");
    let again = run_host_with_timeout(&["sh", "-c", &make], BUILD).unwrap_err().to_string();
    assert!(again.contains("hello already exists"), "{again}");
    // The project has the workspace's lock file, so that nothing is downloaded.
    let hello = place.path().join("hello");
    let told = cargo(&hello, &["tree", "--offline", "--depth", "1", "--prefix", "none"]);
    for name in ["engine", "frame", "kit", "lab"] {
        assert!(told.contains(&format!("bywash-{name} v")), "{told}");
    }
    if !whole {
        return;
    }
    let told = cargo(&hello, &["run", "-q", "--offline"]);
    println!("{told}");
    assert!(told.contains("5 of 5 pings answered through the application"), "{told}");
}
