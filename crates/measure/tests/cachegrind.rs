//! Compares the model of one cache with valgrind's cachegrind, on the same accesses.

use bywash_measure::{Memory, Processor, XEON_GOLD_6148};
use std::process::Command;

/// Geometry of the cache in both. Cachegrind requires a first level; it gets one of two lines.
const BYTES: usize = 64 << 10;
const WAYS: usize = 8;
const BUFFER: usize = 192 << 10;
const STEPS: usize = 60_000;

/// Returns single-line accesses, half in order and half random; about a quarter are writes.
fn accesses(steps: usize) -> impl Iterator<Item = (usize, bool)> {
    let mut x = 7u64;
    (0..steps).map(move |at| {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let line = if at % 2 == 0 { at / 2 } else { (x >> 40) as usize } % (BUFFER / 64);
        (line, x >> 33 & 3 == 0)
    })
}

/// Workload to run under cachegrind, not a test: performs `BYWASH_STEPS` accesses.
#[test]
fn replay() {
    let Some(steps) = std::env::var("BYWASH_STEPS").ok().and_then(|n| n.parse().ok()) else { return };
    #[repr(align(64))]
    #[derive(Clone, Copy)]
    struct Line([u8; 64]);
    let mut buffer = vec![Line([0; 64]); BUFFER / 64];
    let buffer = std::hint::black_box(&mut buffer);
    for (line, write) in accesses(steps) {
        if write {
            buffer[line].0[0] = 1;
        } else {
            std::hint::black_box(buffer[line].0[0]);
        }
    }
    std::hint::black_box(buffer);
}

/// Returns the last-level data misses that cachegrind counts for `steps` accesses.
fn cachegrind(steps: usize) -> u64 {
    let exe = std::env::current_exe().unwrap();
    let out = std::env::temp_dir().join(format!("bywash-cachegrind-{}-{steps}", std::process::id()));
    let output = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=yes", "--I1=32768,8,64", "--D1=128,1,64"])
        .arg(format!("--LL={BYTES},{WAYS},64"))
        .arg(format!("--cachegrind-out-file={}", out.display()))
        .arg(exe)
        .args(["--exact", "replay", "--test-threads=1"])
        .env("BYWASH_STEPS", steps.to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&out).unwrap();
    let _ = std::fs::remove_file(&out);
    // The lines `events: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw` and `summary:` with their sums.
    let field = |name: &str| text.lines().rev().find_map(|l| l.strip_prefix(name)).expect("a line").split_whitespace();
    let misses = field("events:").zip(field("summary:")).filter(|(event, _)| matches!(*event, "DLmr" | "DLmw"));
    misses.map(|(_, n)| n.parse::<u64>().unwrap()).sum()
}

#[test]
fn misses_are_cachegrinds() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        // In the form of the lab's macros; this crate cannot depend on the lab.
        println!("SKIP: no valgrind");
        return;
    }
    // The program's own accesses cancel out.
    let counted = cachegrind(2 * STEPS) - cachegrind(STEPS);
    let cache = bywash_measure::processor::Cache { bytes: BYTES, ways: WAYS };
    // A last level of a single line: in effect, only the second level caches anything.
    let one_level =
        Processor { l2: cache, llc: bywash_measure::processor::Cache { bytes: 64, ways: 1 }, ..XEON_GOLD_6148 };
    let mut memory = Memory::new(&one_level, 1, 1);
    let mut run = |from, to| {
        let before = memory.traffic().read_lines;
        for (line, write) in accesses(to).skip(from) {
            let addr = line as u64 * 64;
            if write { memory.write(0, addr, 1) } else { memory.read(0, addr, 1) }
        }
        memory.traffic().read_lines - before
    };
    run(0, STEPS);
    let modelled = run(STEPS, 2 * STEPS);
    let off = (modelled as f64 / counted as f64 - 1.0).abs();
    assert!(off < 0.03, "modelled {modelled}, cachegrind {counted}");
    assert!(counted > STEPS as u64 / 4 && counted < STEPS as u64, "the accesses hardly test the cache: {counted}");
}
