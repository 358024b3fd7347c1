//! Prints the lookup figures of all cases: `cargo run --release -p bywash-fib --example lookup`.

use bywash_fib::bench::{Spread, Traffic, bench_lookup};
use bywash_fib::fib::Kernel;

fn main() -> std::io::Result<()> {
    let only = std::env::args().nth(1).map_or(0..5, |a| {
        let n = a.parse().unwrap_or(0);
        n..n + 1
    });
    println!("family routes   spread traffic impl   cycles   p5  hit%  MiB   rib MiB  build ms  updates/s");
    for &(family, routes, spread) in &[
        (4, 500_000, Spread::Global),
        (4, 1_000_000, Spread::Global),
        (4, 1_000_000, Spread::Hosts),
        (6, 200_000, Spread::Global),
        (6, 200_000, Spread::Hosts),
    ][only]
    {
        for traffic in [Traffic::Uniform, Traffic::Routes] {
            for kernel in [Kernel::Scalar, Kernel::Avx512] {
                let f = bench_lookup(family, routes, spread, traffic, Some(kernel))?;
                println!(
                    "{family} {routes:8} {spread:?} {traffic:?} {:?} {:.1} {:.1} {:.0}% {:.2} {:.1} {:.0} {:.0}",
                    f.kernel,
                    f.cycles_per_lookup,
                    f.cycles_per_lookup_p5,
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
