//! Benchmark of longest-prefix match alone: cycles per lookup, memory, and the time to build and update the table.

use crate::cli::bench::{Family, LookupArgs, LookupTraffic};
use bywash_fib::bench::{LookupFigures, Spread, Traffic, bench_lookup};

/// Runs `bywash bench lookup`.
pub fn run(args: &LookupArgs) -> anyhow::Result<()> {
    super::pin(args.cpu)?;
    let family = match args.family {
        Family::V4 => 4,
        Family::V6 => 6,
    };
    let routes = args.routes.unwrap_or(if family == 4 { 500_000 } else { 200_000 });
    let traffic = match args.traffic {
        LookupTraffic::Uniform => Traffic::Uniform,
        LookupTraffic::Routed => Traffic::Routes,
    };
    let figures = bench_lookup(family, routes, Spread::Global, traffic, None)?;
    super::report(args.json, &figures, print)
}

fn print(f: &LookupFigures) {
    println!("{:.1} cycles/lookup, batches of {}", f.cycles_per_lookup, f.batch);
    println!(
        "{} IPv{} routes in {:.2} MiB, built in {:.0} ms",
        f.routes,
        f.family,
        f.bytes as f64 / 1048576.0,
        f.build_ms
    );
    println!("{:.0} changes/s; {:.0} % of the addresses found a route", f.update_per_s, f.hit_percent);
}
