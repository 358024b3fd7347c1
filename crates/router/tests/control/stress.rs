//! Readers look up addresses continuously: the result must always belong to the requested prefix.

use crate::world::*;
use bywash_fib::model::Change;
use bywash_router::tables::{Kind, Tables};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Prefix n leads only to gateways g with `g % CLASSES == n % CLASSES`.
const CLASSES: u8 = 16;
const GATEWAYS: u8 = 64;
const PREFIXES: u8 = 64;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn belongs(t: &Tables, id: u32, class: u8) {
    let (entry, cold) = (t.entries[id as usize], t.cold[id as usize]);
    match entry.kind {
        Kind::NoRoute | Kind::Blackhole => {}
        Kind::Forward | Kind::Pending | Kind::Failed => {
            let gateway = cold.gateway.expect("a gateway").to_string();
            let g: u8 = gateway.rsplit('.').next().unwrap().parse().unwrap();
            assert_eq!(g % CLASSES, class, "id {id} leads to {gateway}");
            assert!(entry.kind != Kind::Forward || entry.macs[5] == g, "MAC of another neighbour");
        }
        Kind::Group => {
            let members = &t.buckets[entry.group()];
            assert!(!members.is_empty());
            for m in members {
                assert_ne!(t.entries[*m as usize].kind, Kind::Group);
                belongs(t, *m, class);
            }
        }
        other => panic!("id {id} is {other:?}"),
    }
}

#[test]
fn ids_never_change_under_a_reader() {
    let mut w = World::bare();
    w.apply(&[link(P0, "p0"), link(P1, "p1")]);
    let (stop, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let readers: Vec<_> = (1..=2u64)
        .map(|seed| {
            let (stop, seen, tables, mut reader) =
                (stop.clone(), seen.clone(), w.control.tables(), w.domain.register());
            std::thread::spawn(move || {
                let mut rng = seed * 0x9e37_79b9;
                while !stop.load(Relaxed) {
                    let t = tables.load(&reader);
                    for _ in 0..64 {
                        let n = (random(&mut rng) % u64::from(PREFIXES)) as u8;
                        let id = t.fib4.lookup(u32::from_be_bytes([20, n, 0, 1]));
                        // Sometimes yield, so that the writer can do something in between. An id is valid for the whole
                        // turn, also under tables published since it was looked up.
                        if random(&mut rng).is_multiple_of(16) {
                            std::thread::yield_now();
                            belongs(tables.load(&reader), id, n % CLASSES);
                        }
                        belongs(t, id, n % CLASSES);
                    }
                    seen.fetch_add(64, Relaxed);
                    reader.quiescent();
                }
            })
        })
        .collect();
    let (end, limit) = (Instant::now() + Duration::from_secs(2), Instant::now() + Duration::from_secs(120));
    let mut rng = 42;
    let gateway = |rng: &mut u64, class: u8| {
        let g = class + CLASSES * (random(rng) % u64::from(GATEWAYS / CLASSES)) as u8;
        (if g.is_multiple_of(2) { P0 } else { P1 }, format!("10.0.0.{g}"), g)
    };
    let mut batches = 0;
    // On a busy machine it takes longer than that to have tried enough.
    let enough = |batches| batches > 100 && seen.load(Relaxed) > 1000;
    while (Instant::now() < end || !enough(batches)) && readers.iter().all(|r| !r.is_finished()) {
        assert!(Instant::now() < limit, "{batches} batches, {seen:?} lookups: too few");
        let changes: Vec<Change> = (0..random(&mut rng) % 8)
            .map(|_| {
                let n = (random(&mut rng) % u64::from(PREFIXES)) as u8;
                let to = route(&format!("20.{n}.0.0/16"));
                let (index, via, g) = gateway(&mut rng, n % CLASSES);
                let (index2, via2, _) = gateway(&mut rng, n % CLASSES);
                match random(&mut rng) % 8 {
                    0 | 1 => to.gone(),
                    2 => neighbour(index, &via, if g == 0 { 0 } else { g }),
                    3 => Change::NeighbourGone { index, addr: via.parse().unwrap() },
                    4 | 5 => to.via(index, &via).weighted(index2, &via2, 1 + (random(&mut rng) % 3) as u16).into(),
                    _ => to.via(index, &via).into(),
                }
            })
            .collect();
        w.apply(&changes);
        batches += 1;
    }
    stop.store(true, Relaxed);
    readers.into_iter().for_each(|r| r.join().expect("a reader found another route's entry"));
}
