//! Measures the tables: cycles of a lookup, memory, build time, rate of changes.

use crate::addr::{Addr, Net};
use crate::fib::{BATCH, Kernel, NextHopId};
use crate::synth::{self, Random, Rng};
use crate::table::Table;
use bywash_sync::Qsbr;
use bywash_sync::clock::tsc;
use std::io;
use std::time::Instant;

/// Addresses per pass: enough to visit every part of a table.
const ADDRESSES: usize = 1 << 20;
/// Timed passes over the addresses, after one to warm up.
const PASSES: usize = 8;
/// Addresses timed at once: some 20 microseconds, so that few slices are hit by the scheduler and their median is the
/// processor's time even on a busy machine. They are copied to one place first, like addresses that a worker has just
/// read from headers.
const SLICE: usize = 2048;
/// Changes timed for the rate: pairs of a removal and an insertion.
const CHANGES: usize = 100_000;

/// Source of the looked-up addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Traffic {
    /// Uniformly random: all of IPv4, or 2000::/3.
    Uniform,
    /// A random address under a random route: the hard case when routes are sparse.
    Routes,
}

/// Source of the routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Spread {
    /// Prefix lengths of the global table ([`synth::routes4`], [`synth::routes6`]).
    Global,
    /// Random host routes ([`synth::hosts`]).
    Hosts,
}

/// Result of one benchmark.
#[derive(Clone, Debug, serde::Serialize)]
pub struct LookupFigures {
    /// Address family: 4 or 6.
    pub family: u8,
    /// Routes in the table.
    pub routes: usize,
    /// Source of the routes.
    pub spread: Spread,
    /// Source of the addresses.
    pub traffic: Traffic,
    /// Implementation used for the lookups.
    #[serde(rename = "impl")]
    pub kernel: Kernel,
    /// Keys per batch.
    pub batch: usize,
    /// Ticks of the time-stamp counter per lookup: median of the slices.
    pub cycles_per_lookup: f64,
    /// Ticks of the time-stamp counter per lookup: fifth percentile of the slices, the speed when nobody else uses the
    /// caches.
    pub cycles_per_lookup_p5: f64,
    /// Percentage of lookups that found a route; one of each batch is counted.
    pub hit_percent: f64,
    /// Bytes of the forwarding table.
    pub bytes: usize,
    /// Bytes of the routes' own trie, which lookups do not access.
    pub rib_bytes: usize,
    /// Milliseconds to build the table from a list of routes.
    pub build_ms: f64,
    /// Single changes per second (removals and insertions of random routes of the table).
    pub update_per_s: f64,
}

/// Runs one benchmark with `routes` routes of `family` (4 or 6). Uses the default implementation if `kernel` is `None`
/// or the processor cannot run it. Takes a few hundred milliseconds for 500,000 routes.
///
/// # Errors
/// If `family` is neither 4 nor 6, or memory is refused.
pub fn bench_lookup(
    family: u8,
    routes: usize,
    spread: Spread,
    traffic: Traffic,
    kernel: Option<Kernel>,
) -> io::Result<LookupFigures> {
    const SEED: u64 = 1;
    match (family, spread) {
        (4, Spread::Global) => run(4, synth::routes4(routes, SEED), spread, traffic, kernel),
        (4, Spread::Hosts) => run(4, synth::hosts::<u32>(routes, SEED), spread, traffic, kernel),
        (6, Spread::Global) => run(6, synth::routes6(routes, SEED), spread, traffic, kernel),
        (6, Spread::Hosts) => run(6, synth::hosts::<u128>(routes, SEED), spread, traffic, kernel),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "invalid address family: must be 4 or 6")),
    }
}

fn run<A: Addr + Random>(
    family: u8,
    routes: Vec<(Net<A>, NextHopId)>,
    spread: Spread,
    traffic: Traffic,
    kernel: Option<Kernel>,
) -> io::Result<LookupFigures> {
    let domain = Qsbr::new();
    let mut table = Table::<A>::new(&domain)?;
    let start = Instant::now();
    table.load(routes.iter().copied());
    let build_ms = start.elapsed().as_secs_f64() * 1e3;
    let fib = table.reader();
    let bytes = fib.bytes();
    let kernel = kernel.filter(|k| fib.can(*k)).unwrap_or(fib.kernel());

    let addresses = match traffic {
        Traffic::Uniform => synth::uniform::<A>(ADDRESSES, 2),
        Traffic::Routes => synth::under(&routes, ADDRESSES, 2),
    };
    let mut out = [0; BATCH];
    let mut keys_now = [A::ZERO; SLICE];
    let mut hits = 0usize;
    let mut slices = Vec::with_capacity((PASSES + 1) * addresses.len() / SLICE);
    for pass in 0..=PASSES {
        hits = 0;
        for slice in addresses.chunks_exact(SLICE) {
            keys_now.copy_from_slice(slice);
            let start = tsc();
            for keys in keys_now.chunks_exact(BATCH) {
                fib.lookup_batch_with(kernel, keys, &mut out);
                hits += usize::from(std::hint::black_box(&out)[0] != 0);
            }
            if pass > 0 {
                slices.push((tsc() - start) as f64 / SLICE as f64);
            }
        }
    }
    slices.sort_by(f64::total_cmp);

    let mut rng = Rng::new(3);
    let start = Instant::now();
    let mut changes = 0;
    while changes < CHANGES && !routes.is_empty() {
        let (net, id) = routes[rng.below(routes.len() as u64) as usize];
        table.remove(net);
        table.insert(net, id);
        changes += 2;
    }
    let update_per_s = changes as f64 / start.elapsed().as_secs_f64();

    Ok(LookupFigures {
        family,
        routes: table.len(),
        spread,
        traffic,
        kernel,
        batch: BATCH,
        cycles_per_lookup: slices[slices.len() / 2],
        cycles_per_lookup_p5: slices[slices.len() / 20],
        hit_percent: hits as f64 * (100 * BATCH) as f64 / addresses.len() as f64,
        bytes,
        rib_bytes: table.rib_bytes(),
        build_ms,
        update_per_s,
    })
}
