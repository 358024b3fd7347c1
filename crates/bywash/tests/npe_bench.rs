//! `bywash bench tabm` on the simulated engine of `rtl/`, in a build with the feature `bywash-port/rtl`.
//!
//! `BYWASH_RTL_ENGINE` names the simulation's program, built with blocks of 1,024 cells. `make rtl` runs this.

use bywash_lab::skip;
use std::process::{Command, Output};

/// Each thread has more pages than a TLB has entries.
const FRAMES: &str = "16384";

fn bench(args: &[&str]) -> Output {
    let common = ["bench", "tabm", "--engine", "rtl", "--kinds", "tabm", "--sizes", "64", "--frames", FRAMES];
    Command::new(env!("CARGO_BIN_EXE_bywash")).args(common).args(args).output().unwrap()
}

/// The known answers of the software engine: a thread's packets are adjacent, so that two share a page and its
/// translation, and each but the first is where the descriptor before says.
#[test]
fn the_simulated_engine_gives_the_answers_of_the_software() {
    if std::env::var_os("BYWASH_RTL_ENGINE").is_none() {
        skip!("BYWASH_RTL_ENGINE is not set: the simulated engine is not checked");
    }
    let out = bench(&["--order", "fifo", "--threads", "1,2,4", "--dispatch", "round-robin,by-port", "--json"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let figures: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let rows = figures["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "{figures:#}");
    for row in rows {
        let (misses, chained) = (row["dtlb_misses_per_packet"].as_f64(), row["chained"].as_f64());
        assert!(misses.is_some_and(|misses| (misses - 0.5).abs() < 0.01), "{row:#}");
        assert!(chained.is_some_and(|chained| chained > 0.99) && row["mpps"].is_null(), "{row:#}");
    }
    let refused = bench(&["--order", "lifo"]);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("add --order fifo"), "{why}");
}
