//! Checks that crates depend only on those listed above them in docs/architecture.md, that the modules of a crate form
//! no circle, and that no thread panics because another has.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

type Graph = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// Returns the crates in the first column of the table, in its order.
fn listed() -> Vec<String> {
    let text = read("docs/architecture.md");
    let (_, table) = text.split_once("## Crates, lowest first").expect("a table of crates");
    let rows = table.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = rows.skip(2).filter_map(|row| row.split('|').nth(1));
    cells.flat_map(|cell| cell.split(',')).map(|name| name.trim().trim_matches('`').to_owned()).collect()
}

#[test]
fn crates_depend_on_crates_above_them() {
    let listed = listed();
    let mut found: Vec<String> = vec![];
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let manifest: toml::Table = read(format!("crates/{name}/Cargo.toml")).parse().unwrap();
        let at = listed.iter().position(|other| *other == name);
        let above = &listed[..at.unwrap_or_else(|| panic!("docs/architecture.md does not list {name}"))];
        for kind in ["dependencies", "build-dependencies"] {
            let used = manifest.get(kind).and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys);
            // The lab is not in crates/ and uses none of them.
            for used in used.filter_map(|used| used.strip_prefix("bywash-")).filter(|used| *used != "lab") {
                assert!(
                    above.iter().any(|other| other == used),
                    "{name} uses {used}, which is not above it in the list"
                );
            }
        }
        found.push(name);
    }
    assert!(listed.iter().all(|name| found.contains(name)), "docs/architecture.md lists a crate that does not exist");
}

#[test]
fn no_thread_panics_because_another_has() {
    for name in listed() {
        files(&root().join(format!("crates/{name}/src")), 0, &mut |text, _| {
            let (code, _) = text.split_once("\nmod tests {").unwrap_or((text, ""));
            let panics = |line: &&str| line.contains(".lock().expect(") || line.contains(".lock().unwrap()");
            assert_eq!(code.lines().find(panics), None, "{name}: `bywash_sync::lock` locks a poisoned mutex, too");
        });
    }
}

/// Returns the modules of a crate and those that each imports. A module in a directory includes the modules in it.
fn modules(source: &str) -> Graph {
    let mut graph = Graph::new();
    for entry in std::fs::read_dir(root().join(source)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if !["lib", "main", "tests"].contains(&name.as_str()) {
            files(&path, 1, &mut |text, depth| graph.entry(name.clone()).or_default().extend(imports(text, depth)));
        }
    }
    let names: BTreeSet<String> = graph.keys().cloned().collect();
    for (name, imports) in &mut graph {
        let unknown: Vec<&String> = imports.difference(&names).collect();
        assert!(unknown.is_empty(), "{source}/{name}: import {unknown:?} from the module that defines it");
        imports.remove(name);
    }
    graph
}

/// Calls `each` with the text and the depth of a file, or of every file in a directory. A module of the crate has the
/// depth 1, as has its `mod.rs`; the modules in it have 2.
fn files(path: &Path, depth: usize, each: &mut impl FnMut(&str, usize)) {
    if path.is_dir() {
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let own = path.file_name().is_some_and(|name| name == "mod.rs");
            files(&path, if own { depth } else { depth + 1 }, each);
        }
    } else if path.file_name().is_some_and(|name| name != "tests.rs") {
        each(&std::fs::read_to_string(path).unwrap(), depth);
    }
}

/// Returns the first names of all paths that begin with `crate::`, or with as many `super::` as the file is deep,
/// except in comments and in tests at the end.
fn imports(text: &str, depth: usize) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.replace(&"super::".repeat(depth), "crate::");
    let mut found = BTreeSet::new();
    for path in code.split("crate::").skip(1) {
        let mut depth = 0;
        // One name, or those at the first level of braces: `{one, two::{..}}`.
        let end = path.find(|c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth <= 0 && !(c == '}' || c == '_' || c.is_alphanumeric())
        });
        let list = path[..end.unwrap_or(path.len())].trim_start_matches('{').trim_end_matches('}');
        let mut depth = 0;
        let names = list.split(|c: char| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0 && c == ','
        });
        found.extend(names.filter_map(|name| name.trim().split([':', ' ']).next()).map(str::to_owned));
    }
    found.retain(|name| !name.is_empty());
    found
}

/// Removes modules that import none of the rest until all are gone or the rest import each other in circles.
fn circle(mut graph: Graph) -> Graph {
    while let Some(name) = graph.iter().find(|(_, imports)| imports.is_empty()).map(|(name, _)| name.clone()) {
        graph.remove(&name);
        graph.values_mut().for_each(|imports| imports.retain(|import| *import != name));
    }
    graph
}

#[test]
fn modules_form_no_circle() {
    for source in ["crates/config/src", "crates/daemon/src"] {
        let rest = circle(modules(source));
        assert!(rest.is_empty(), "{source}: modules that import each other: {rest:#?}");
    }
}

#[test]
fn circles_are_found() {
    let names = |text, depth| imports(text, depth).into_iter().collect::<Vec<_>>();
    assert_eq!(names("use crate::{a::{B, C}, d};\n// crate::e\nlet x = super::f::G;\n", 1), ["a", "d", "f"]);
    assert_eq!(names("use super::a;\nuse super::super::b;\n", 2), ["b"]);
    let graph = |edges: &[(&str, &[&str])]| -> Graph {
        edges.iter().map(|(name, to)| (name.to_string(), to.iter().map(|to| to.to_string()).collect())).collect()
    };
    assert!(circle(graph(&[("a", &["b"]), ("b", &["c"]), ("c", &[])])).is_empty());
    assert_eq!(circle(graph(&[("a", &["b"]), ("b", &["a"]), ("c", &[])])).len(), 2);
}
