//! C programs on the library: the example, and checks of each function. The header is what the sources give.

use bywash_lab::{require, require_root};
use bywash_port::pcap::{CaptureFile, PcapSource};
use std::path::{Path, PathBuf};
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the libraries built with this test, which lie beside it: the shared and the static one.
fn libraries() -> [PathBuf; 2] {
    let deps = std::env::current_exe().expect("a test has a path").parent().expect("in a directory").to_path_buf();
    let newest = |name: &dyn Fn(&str) -> bool| {
        let entries = std::fs::read_dir(&deps).expect("a directory").map(|entry| entry.expect("an entry").path());
        let found = entries.filter(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(name));
        found.max_by_key(|path| path.metadata().and_then(|about| about.modified()).expect("a file")).expect("built")
    };
    [".so", ".a"].map(|end| newest(&|name| name.starts_with("libbywash_npe") && name.ends_with(end)))
}

/// Compiles a program against a library, and returns it.
fn compiled(source: &str, library: &Path, dir: &Path) -> PathBuf {
    let program = dir.join("program");
    let out = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-I"])
        .args([&format!("{HERE}/include"), "-o"])
        .args([&program, &Path::new(HERE).join(source)])
        .arg(library)
        .args(["-lpthread", "-ldl", "-lm"])
        .output()
        .expect("cc runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

/// Runs a program; returns what it prints.
fn run(program: &Path, args: &[&Path]) -> String {
    let [shared, _] = libraries();
    let out = Command::new(program)
        .args(args)
        .env("LD_LIBRARY_PATH", shared.parent().expect("in a directory"))
        .output()
        .expect("it runs");
    let (said, complaint) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "{said}{complaint}");
    said.into_owned()
}

fn frames(path: &Path) -> Vec<Vec<u8>> {
    PcapSource::load(path).unwrap().frames().collect()
}

#[test]
fn the_example_forwards_every_packet() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to] = ["in.pcap", "out.pcap"].map(|name| dir.path().join(name));
    // Less than a channel holds, so that none is lost however slow the threads are.
    let mut sent: Vec<Vec<u8>> =
        (0..500).map(|n| (0..60 + n * 7 % 1400).map(|i| (n * 31 + i) as u8).collect()).collect();
    CaptureFile::of_frames(&from, &sent).unwrap();
    for library in libraries() {
        let program = compiled("examples/forward.c", &library, dir.path());
        for threads in ["1", "4"] {
            let said = run(&program, &[&from, &to, Path::new("500"), Path::new(threads)]);
            assert_eq!(said, "500 of 500 packets sent, 0 kept\n");
            let mut got = frames(&to);
            // The order of packets of different threads is not defined.
            if threads != "1" {
                sent.sort();
                got.sort();
            }
            assert!(got == sent, "{threads} threads: other packets");
            CaptureFile::of_frames(&from, &sent).unwrap();
        }
    }
}

#[test]
fn each_function_does_what_the_header_says() {
    let dir = tempfile::tempdir().unwrap();
    let [_, library] = libraries();
    let program = compiled("tests/checks.c", &library, dir.path());
    assert_eq!(run(&program, &[]), "passed\n");
    let [from, to] = ["in.pcap", "out.pcap"].map(|name| dir.path().join(name));
    CaptureFile::of_frames(&from, &(0..8).map(|n| vec![n; 60 + usize::from(n)]).collect::<Vec<_>>()).unwrap();
    assert_eq!(run(&program, &[Path::new("packets"), &from, &to]), "passed\n");
    let sent = frames(&to);
    assert_eq!((sent[0].clone(), sent[1].len()), (vec![0xab; 100], 1792));
    assert_eq!((sent.len(), &sent[1][..61]), (2, &[1; 61][..]));
}

#[test]
fn a_tap_interface_lasts_as_long_as_its_device() {
    require!(require_root());
    let dir = tempfile::tempdir().unwrap();
    let program = compiled("tests/checks.c", &libraries()[1], dir.path());
    // In a network namespace of its own.
    assert_eq!(run(Path::new("unshare"), &[Path::new("--net"), &program, Path::new("tap")]), "passed\n");
}

/// `BYWASH_BLESS=1` writes the header instead.
#[test]
fn the_header_is_what_the_sources_give() {
    let path = Path::new(HERE).join("include/bywash_npe.h");
    let names = [("NetDevice", "net_device"), ("NetPkt", "net_pkt"), ("NetCounters", "net_counters")];
    let mut config = cbindgen::Config {
        language: cbindgen::Language::C,
        style: cbindgen::Style::Tag,
        cpp_compat: true,
        no_includes: true,
        usize_is_size_t: true,
        line_length: 110,
        include_guard: Some("BYWASH_NPE_H".into()),
        sys_includes: vec!["stddef.h".into(), "stdint.h".into()],
        header: Some(
            "// The dispatching device in C: packets on threads with their own blocks of memory.\n\
             // Made from the sources of the crate bywash-npe-c, where a program that uses it is in examples/."
                .into(),
        ),
        ..cbindgen::Config::default()
    };
    config.export.rename = names.map(|(rust, c)| (rust.to_owned(), c.to_owned())).into();
    // In the order in which a program uses them.
    let mut sources = cbindgen::Builder::new().with_config(config);
    for source in ["device", "ports", "packet", "counters", "error"] {
        sources = sources.with_src(Path::new(HERE).join(format!("src/{source}.rs")));
    }
    let mut text = vec![];
    sources.generate().expect("the sources are read").write(&mut text);
    let text = String::from_utf8(text).unwrap().replace(" * # Safety\n", "");
    if std::env::var_os("BYWASH_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let here = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(here, text, "{} is not up to date: run this test with BYWASH_BLESS=1", path.display());
}

/// The README's program, which is too short to do anything else.
#[test]
fn the_readmes_program_compiles() {
    let readme = std::fs::read_to_string(Path::new(HERE).join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```c\n").expect("a program");
    let (program, _) = rest.split_once("```").expect("its end");
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("readme.c");
    std::fs::write(&source, program).unwrap();
    compiled(source.to_str().unwrap(), &libraries()[1], dir.path());
}
