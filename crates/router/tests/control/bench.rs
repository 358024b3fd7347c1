//! Measures the time to load and to change a full table, and its memory. Figures are only printed, because the machine
//! is shared.

use crate::world::*;
use bywash_fib::model::{Change, Prefix, Route};
use std::time::Instant;

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|p| p.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn routes(count: usize) -> Vec<Change> {
    let vias: Vec<Route> = (0..64u8)
        .map(|n| match n % 4 {
            0 => route("0.0.0.0/0").via(P0, &format!("10.0.0.{n}")).via(P1, &format!("10.0.1.{n}")).0,
            _ => route("0.0.0.0/0").via(P0, &format!("10.0.0.{n}")).0,
        })
        .collect();
    let mut state = 7u64;
    (0..count)
        .map(|n| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(n as u64 | 1);
            let addr = std::net::IpAddr::V4(((state >> 32) as u32).into());
            let len = if state.is_multiple_of(5) { 22 } else { 24 };
            let prefix = Prefix::containing(addr, len).unwrap();
            Change::Route(Route { prefix, ..vias[(state >> 20) as usize % vias.len()].clone() })
        })
        .collect()
}

fn loaded(how: &str, load: &[Change]) -> World {
    let mut w = World::new();
    let before = resident();
    let start = Instant::now();
    load.chunks(4096).for_each(|batch| drop(w.apply(batch)));
    let took = start.elapsed();
    let weight = resident().saturating_sub(before);
    let stats = w.control.stats();
    let (each, fib) = (weight / stats.routes4, stats.fib4_bytes / stats.routes4);
    println!("{} routes {how} in {took:?}; {each} bytes each, of which the FIB {fib}; {stats:?}", stats.routes4);
    w
}

#[test]
fn half_a_million_routes() {
    let count = if cfg!(debug_assertions) { 50_000 } else { 500_000 };
    let load = routes(count);
    drop(loaded("in random order", &load));
    let mut sorted = load.clone();
    sorted.sort_by_key(|c| if let Change::Route(r) = c { Some(r.prefix) } else { None });
    let mut w = loaded("in the kernel's order", &sorted);
    let stats = w.control.stats();
    let churn: Vec<Change> = routes(100_000).into_iter().zip(&load).map(|(new, old)| with_prefix(new, old)).collect();
    for batch in [1, 16, 256] {
        let start = Instant::now();
        churn.chunks(batch).for_each(|batch| drop(w.apply(batch)));
        let rate = churn.len() as f64 / start.elapsed().as_secs_f64();
        println!("changes in batches of {batch}: {rate:.0} per second");
        // Restore the routes, so that the next pass changes something again.
        w.apply(&load[..churn.len()]);
    }
    let start = Instant::now();
    w.apply(&[neighbour(P0, "10.0.0.1", 1)]);
    println!("a neighbour of {} routes resolved in {:?}", stats.routes4 / 64, start.elapsed());
    let start = Instant::now();
    w.apply(&[Change::LinkGone { index: P1 }]);
    println!("a port gone in {:?}", start.elapsed());
}

/// Returns a new route for the prefix of an old one, or its removal for some.
fn with_prefix(new: Change, old: &Change) -> Change {
    let (Change::Route(new), Change::Route(old)) = (new, old) else { unreachable!("only routes are made") };
    if new.prefix.addr.is_ipv4() && new.prefix.len == 22 {
        return Change::RouteGone { table: 254, prefix: old.prefix, metric: 0 };
    }
    Change::Route(Route { prefix: old.prefix, ..new })
}
