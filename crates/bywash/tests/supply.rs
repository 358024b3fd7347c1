//! Dependencies and archives of the program: the dependencies are those that deny.toml allows, the list of parts names
//! all of them, and archives of the same program are the same.

use serde_json::Value;
use spdx::expression::ExpressionReq;
use spdx::{Expression, LicenseReq, Licensee, ParseMode};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(program: &str, arguments: &[&str]) -> String {
    let out = Command::new(program).args(arguments).current_dir(root()).output();
    let out = out.unwrap_or_else(|why| panic!("{program}: {why}"));
    assert!(out.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Returns the packages that a build on Linux uses.
fn packages() -> Vec<Value> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let asked = ["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", TARGET];
    let mut all: Value = serde_json::from_str(&run(env!("CARGO"), &asked)).unwrap();
    let used: BTreeSet<String> =
        all["resolve"]["nodes"].as_array().unwrap().iter().map(|node| text(node, "id")).collect();
    let Value::Array(packages) = all["packages"].take() else { panic!("no packages") };
    packages.into_iter().filter(|package| used.contains(&text(package, "id"))).collect()
}

fn text(of: &Value, key: &str) -> String {
    of[key].as_str().unwrap_or_default().to_owned()
}

fn allowed() -> toml::Table {
    std::fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap()
}

fn words(of: &toml::Value) -> Vec<String> {
    of.as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect()
}

#[test]
fn dependencies_are_licensed_and_come_from_one_registry() {
    let allowed = allowed();
    let licences: Vec<Licensee> =
        words(&allowed["licenses"]["allow"]).iter().map(|name| Licensee::parse(name).unwrap()).collect();
    let registries = words(&allowed["sources"]["allow-registry"]);
    let mut used = BTreeSet::new();
    let mut permits = |asked: &LicenseReq| {
        let found = licences.iter().position(|licence| licence.satisfies(asked));
        used.extend(found);
        found.is_some()
    };
    for package in packages() {
        let (name, licence) = (text(&package, "name"), text(&package, "license"));
        if package["source"].is_null() {
            assert!(name.starts_with("bywash"), "{name} is a path");
            continue;
        }
        let source = text(&package, "source");
        assert!(registries.iter().any(|from| source == format!("registry+{from}")), "{name} comes from {source}");
        let parsed = Expression::parse_mode(&licence, ParseMode::LAX).unwrap_or_else(|why| panic!("{name}: {why}"));
        let each: Vec<&ExpressionReq> = parsed.requirements().collect();
        assert!(parsed.evaluate(&mut permits), "{name} has the licence {licence}: {each:?}");
    }
    assert_eq!(used.len(), licences.len(), "deny.toml allows a licence that nothing has");
}

#[test]
fn second_versions_are_known() {
    let known: BTreeSet<String> = allowed()["bans"]["skip"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["crate"].as_str().unwrap().to_owned())
        .collect();
    let mut versions: BTreeMap<String, usize> = BTreeMap::new();
    packages().iter().for_each(|package| *versions.entry(text(package, "name")).or_default() += 1);
    let twice: BTreeSet<String> = versions.into_iter().filter(|(_, count)| *count > 1).map(|(name, _)| name).collect();
    assert_eq!(twice, known, "crates in several versions, and those that deny.toml lists");
}

#[test]
fn the_list_of_parts_names_all_of_them() {
    let parts: Value = serde_json::from_str(&run("tools/sbom.py", &[])).unwrap();
    assert_eq!((&parts["bomFormat"], &parts["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = parts["components"].as_array().unwrap();
    let purl = |package: &Value| format!("pkg:cargo/{}@{}", text(package, "name"), text(package, "version"));
    let listed: BTreeSet<String> = components.iter().map(|part| text(part, "purl")).collect();
    assert_eq!(listed.len(), components.len());
    // Dependencies of tests alone are not listed.
    for name in ["rustix", "aya", "seccompiler", "landlock", "tokio"] {
        assert!(listed.iter().any(|purl| purl.starts_with(&format!("pkg:cargo/{name}@"))), "{name}");
    }
    assert!(!listed.iter().any(|purl| purl.contains("/proptest@") || purl.contains("/spdx@")), "{listed:?}");
    let all: BTreeSet<String> = packages().iter().map(purl).collect();
    assert!(listed.is_subset(&all));
    for part in components.iter().filter(|part| !text(part, "name").starts_with("bywash")) {
        assert_eq!(part["hashes"][0]["content"].as_str().unwrap_or_default().len(), 64, "{part}");
    }
}

#[test]
fn archives_of_the_same_program_are_the_same() {
    let place = tempfile::tempdir().unwrap();
    let archive = |name: &str| {
        let out = place.path().join(name);
        run("tools/dist.sh", &[env!("CARGO_BIN_EXE_bywash"), out.to_str().unwrap()]);
        let sums = std::fs::read_to_string(out.join("SHA256SUMS")).unwrap();
        assert_eq!(sums.lines().count(), 2, "{sums}");
        run("sh", &["-c", &format!("cd {} && sha256sum --check --quiet SHA256SUMS", out.display())]);
        sums
    };
    let sums = archive("one");
    assert_eq!(archive("two"), sums);
    let name =
        sums.lines().find_map(|line| line.split_whitespace().nth(1).filter(|name| name.ends_with(".gz"))).unwrap();
    let listed = run("tar", &["-tzf", place.path().join("one").join(name).to_str().unwrap()]);
    for file in ["bin/bywash", "share/man/man1/bywash.1.gz", "bywash.cdx.json", "LICENSE", "bywash.service"] {
        assert!(listed.lines().any(|line| line.ends_with(file)), "{file} is not in\n{listed}");
    }
}
