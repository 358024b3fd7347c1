//! A project that `bywash new app` creates with an installed program.

use std::path::Path;
use std::process::Command;

fn run(command: &mut Command) -> String {
    let out = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}: {}\n{stderr}", out.status);
    String::from_utf8(out.stdout).unwrap()
}

/// The project resolves although cargo has downloaded nothing: an empty `CARGO_HOME` stands for another machine. With
/// BYWASH_NEW_APP=1 it is compiled, too, which takes minutes.
#[test]
fn an_installed_program_has_the_sources_of_a_new_application() {
    if Command::new("make").arg("--version").output().is_err() {
        println!("SKIP: no make");
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (program, sources) = (env!("CARGO_BIN_EXE_bywash"), at("sources"));
    run(Command::new(repository.join("tools/sources.sh")).arg(&sources).env("CARGO", env!("CARGO")));
    let variables = [("BYWASH", Path::new(program)), ("SOURCES", &sources), ("DESTDIR", &at("root"))];
    let variables = variables.map(|(name, value)| format!("{name}={}", value.display()));
    run(Command::new("make").arg("-C").arg(&repository).args(["install", "PREFIX=/usr"]).args(variables));
    // The installed copy must suffice.
    std::fs::remove_dir_all(&sources).unwrap();

    let installed = at("root/usr/bin/bywash");
    run(Command::new(&installed).args(["new", "app", "hello"]).current_dir(place.path()));
    let cargo = |arguments: &[&str]| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(arguments).current_dir(at("hello")).env("CARGO_HOME", at("empty")).env_remove("CARGO_TARGET_DIR");
        run(&mut cargo)
    };
    let found: serde_json::Value =
        serde_json::from_str(&cargo(&["metadata", "--offline", "--format-version", "1"])).unwrap();
    let packages = found["packages"].as_array().unwrap();
    let root = place.path().canonicalize().unwrap();
    for package in packages {
        let manifest = package["manifest_path"].as_str().unwrap();
        assert!(Path::new(manifest).starts_with(&root), "{manifest}");
    }
    for name in ["bywash-engine", "bywash-frame", "bywash-kit", "bywash-lab", "aya"] {
        assert!(packages.iter().any(|package| package["name"] == name), "{name}: {found}");
    }
    if Command::new("rustfmt").arg("--version").output().is_ok_and(|found| found.status.success()) {
        cargo(&["fmt", "--check"]);
    }
    if std::env::var_os("BYWASH_NEW_APP").is_some() {
        cargo(&["check", "--offline"]);
    }

    std::fs::remove_dir_all(at("root/usr/share/bywash")).unwrap();
    let alone = Command::new(&installed).args(["new", "app", "other"]).current_dir(place.path()).output().unwrap();
    let told = String::from_utf8_lossy(&alone.stderr);
    assert!(!alone.status.success() && told.contains("no sources of Bywash's crates"), "{told}");
    assert!(!at("other").exists());
}
