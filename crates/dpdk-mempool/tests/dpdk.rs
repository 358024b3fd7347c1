//! Runs Debian's dpdk-test and dpdk-testpmd with the plugin loaded as users would load it.

use bywash_lab::{has_tool, require, require_root, skip};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const OPERATIONS: [&str; 3] = ["bywash_stack", "bywash_sdb", "bywash_tabm"];

/// Returns the plugin built by `make dpdk-plugin DPDK_PROFILE=dev`, beside the directory of this test's program.
fn built() -> Result<PathBuf, String> {
    let me = std::env::current_exe().expect("a test has a path");
    let built = me.ancestors().nth(2).expect("target/debug/deps").join("librte_mempool_bywash.so");
    if built.exists() {
        Ok(built)
    } else {
        Err("no librte_mempool_bywash.so: make dpdk-plugin DPDK_PROFILE=dev".into())
    }
}

/// Copies the plugin to a directory that is not world-writable: the EAL loads plugins from no other.
fn plugin(built: &Path) -> (TempDir, PathBuf) {
    let dir = tempfile::Builder::new().prefix("bywash-dpdk-").tempdir_in("/run").expect("root may write to /run");
    let copy = dir.path().join("librte_mempool_bywash.so");
    std::fs::copy(built, &copy).expect("copied");
    (dir, copy)
}

/// Builds a library that shortens DPDK's seconds: mempool_perf_autotest measures each of its hundreds of cases for five
/// seconds.
fn short_seconds(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("short.c"), dir.join("short.so"));
    std::fs::write(&source, "unsigned long rte_get_tsc_hz(void) { return 100000; }\n").expect("written");
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().expect("cc runs");
    assert!(built.success());
    library
}

/// Runs a DPDK program with `operations` as the default mempool operations and returns its output. An input line `wait
/// N` pauses for N milliseconds.
fn dpdk(
    program: &str,
    plugin: &Path,
    operations: &str,
    options: &[&str],
    input: &str,
    preload: Option<&Path>,
) -> String {
    let mut command = Command::new(program);
    // Without shared configuration, several programs can run at once and leave nothing in /run/dpdk.
    command.args(["--no-huge", "-m", "768", "--no-pci", "--no-shconf", "--file-prefix", operations, "-d"]);
    command.arg(plugin).args(["--mbuf-pool-ops-name", operations]).args(options);
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let mut stdin = child.stdin.take().expect("piped");
    for line in input.lines() {
        match line.strip_prefix("wait ") {
            Some(ms) => std::thread::sleep(Duration::from_millis(ms.parse().expect("milliseconds"))),
            None => writeln!(stdin, "{line}").expect("it reads its commands"),
        }
    }
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn dpdks_own_tests_pass_with_each_as_the_default() {
    require!(require_root(), has_tool("dpdk-test"));
    let built = match built() {
        Ok(built) => built,
        Err(reason) => skip!("{reason}"),
    };
    let (dir, plugin) = plugin(&built);
    let short = short_seconds(dir.path());
    for operations in OPERATIONS {
        for (test, preload, says) in [
            ("mempool_autotest", None, format!("Testing {operations} mempool handler")),
            ("mempool_perf_autotest", Some(&*short), format!("start performance test for {operations}")),
        ] {
            let said = dpdk("dpdk-test", &plugin, operations, &["-l", "0,1"], &format!("{test}\nquit\n"), preload);
            let tail = &said[said.len().saturating_sub(2000)..];
            assert!(said.contains(&says), "{test} with {operations}: {tail}");
            assert!(said.contains("Test OK") && !said.contains("Test Failed"), "{test} with {operations}: {tail}");
        }
    }
}

/// Returns the number after `key` in each of testpmd's mempool dumps.
fn numbers(said: &str, key: &str) -> Vec<u64> {
    let after = |line: &str| line.trim().strip_prefix(key)?.trim().parse().ok();
    said.lines().filter_map(after).collect()
}

#[test]
fn testpmd_forwards_with_each_and_every_mbuf_comes_back() {
    require!(require_root(), has_tool("dpdk-testpmd"));
    let built = match built() {
        Ok(built) => built,
        Err(reason) => skip!("{reason}"),
    };
    let (_dir, plugin) = plugin(&built);
    // Frames go from the first port through a ring to the last: lcore 2 frees what lcore 1 took from the pool. The ring
    // keeps its frames at the stop, so its two ends run alone afterwards and drain it.
    let ports = ["--vdev", "net_null0,size=1520,copy=1", "--vdev", "net_ring0", "--vdev", "net_null1,no-rx=1"];
    let more =
        ["--lcores", "0@0,1@0,2@1", "--", "-i", "--forward-mode=macswap", "--nb-cores=2", "--total-num-mbufs=65536"];
    let options = [&ports[..], &more[..], &["--port-topology=chained"]].concat();
    for operations in OPERATIONS {
        // Each start takes at least one burst of 32 from the ring of 1,024, however late testpmd is.
        let drain = "start\nwait 5\nstop\n".repeat(40);
        let input = format!("start\nwait 400\nstop\nset portlist 1,2\n{drain}dump_mempool mb_pool_0\nquit\n");
        let said = dpdk("dpdk-testpmd", &plugin, operations, &options, &input, None);
        let tail = &said[said.len().saturating_sub(6000)..];
        assert!(said.contains(&format!("ops_name: <{operations}>")), "{operations}: {tail}");
        // "RX-packets: 1   RX-dropped: ..." for each port and in total.
        let first = |line: &str| line.trim().strip_prefix("TX-packets:")?.split_whitespace().next()?.parse().ok();
        let sent: Vec<u64> = said.lines().filter_map(first).collect();
        assert!(sent.iter().max() > Some(&0), "{operations} forwarded nothing: {tail}");
        let count = |key| numbers(&said, key).pop().unwrap_or_else(|| panic!("no {key} with {operations}: {tail}"));
        let (free, cached, all) = (count("common_pool_count="), count("total_cache_count="), count("populated_size="));
        assert_eq!(free + cached, all, "{operations}: {tail}");
    }
}
