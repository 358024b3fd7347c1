//! Prints the lookup figures of every case: `cargo run --release -p bywash-route --example lookup`.

use bywash_route::bench::{Spread, Traffic, bench_lookup};
use bywash_route::fib::Kernel;

fn main() -> std::io::Result<()> {
    println!("family routes   spread traffic impl   cycles   min  hit%  MiB   rib MiB  build ms  updates/s");
    for (family, routes, spread) in [
        (4, 500_000, Spread::Global),
        (4, 1_000_000, Spread::Global),
        (4, 1_000_000, Spread::Hosts),
        (6, 200_000, Spread::Global),
        (6, 200_000, Spread::Hosts),
    ] {
        for traffic in [Traffic::Uniform, Traffic::Routes] {
            for kernel in [None, Some(Kernel::Scalar)] {
                let f = bench_lookup(family, routes, spread, traffic, kernel)?;
                println!(
                    "{family} {routes:8} {spread:?} {traffic:?} {:?} {:.1} {:.1} {:.0}% {:.2} {:.1} {:.0} {:.0}",
                    f.kernel,
                    f.cycles_per_lookup,
                    f.cycles_per_lookup_min,
                    f.hit_percent,
                    f.bytes as f64 / 1048576.0,
                    f.rib_bytes as f64 / 1048576.0,
                    f.build_ms,
                    f.update_per_s
                );
            }
        }
    }
    Ok(())
}
