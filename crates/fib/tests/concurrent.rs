//! Tests lookups concurrent with a churning writer, and memory use after churn.

use bywash_fib::synth::{self, Rng};
use bywash_fib::{Addr, Kernel, Net, Table, Table4, Table6};
use bywash_sync::Qsbr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Checks that every lookup returns the id of the covering route, which stays, or an id that the address's own more
/// specific routes, which come, go and change, have at some time: never another place's id and never "no route".
fn churn<A: Addr + synth::Random>(cover: Net<A>, lengths: &'static [u8]) {
    const PLACES: u32 = 64;
    let domain = Qsbr::new();
    let mut table = Table::<A>::new(&domain).unwrap();
    table.insert(cover, 1);
    // Ids encode the place they belong to: place * 16 + version, from 16 on.
    let mut rng = Rng::new(9);
    let places: Vec<A> = synth::under(&[(cover, 1)], PLACES as usize, 4);
    let nets: Vec<Vec<Net<A>>> =
        places.iter().map(|p| lengths.iter().map(|l| Net::new(*p, *l).unwrap()).collect()).collect();
    let places: Vec<A> = places.into_iter().map(|p| Net::new(p, A::BITS).unwrap().addr()).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let rounds = Arc::new(AtomicU64::new(0));
    let specific = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = [Kernel::Avx512, Kernel::Scalar]
        .into_iter()
        .map(|kernel| {
            let (fib, mut reader) = (table.reader(), domain.register());
            let (stop, rounds, specific, places) = (stop.clone(), rounds.clone(), specific.clone(), places.clone());
            std::thread::spawn(move || {
                let mut out = vec![0; places.len()];
                while !stop.load(Ordering::Relaxed) {
                    fib.lookup_batch_with(kernel, &places, &mut out);
                    for (i, id) in out.iter().enumerate() {
                        assert!(*id == 1 || id / 16 == i as u32 + 1, "place {i} got {id} by {kernel:?}");
                        specific.fetch_add(u64::from(*id != 1), Ordering::Relaxed);
                    }
                    assert!({
                        let id = fib.lookup(places[0]);
                        id == 1 || id / 16 == 1
                    });
                    rounds.fetch_add(1, Ordering::Relaxed);
                    reader.quiescent();
                }
            })
        })
        .collect();
    let end = std::time::Instant::now() + std::time::Duration::from_millis(1500);
    let mut changes = 0u64;
    while std::time::Instant::now() < end || (rounds.load(Ordering::Relaxed) < 200 && changes < 1 << 32) {
        for _ in 0..256 {
            let i = rng.below(u64::from(PLACES)) as usize;
            let net = nets[i][rng.below(lengths.len() as u64) as usize];
            if rng.below(3) == 0 {
                table.remove(net);
            } else {
                table.insert(net, (i as u32 + 1) * 16 + rng.below(16) as u32);
            }
            changes += 1;
        }
        if readers.iter().any(|r| r.is_finished()) {
            break;
        }
    }
    stop.store(true, Ordering::Relaxed);
    for r in readers {
        r.join().unwrap();
    }
    assert!(specific.load(Ordering::Relaxed) > 0 && changes > 1000);
    for net in nets.into_iter().flatten() {
        table.remove(net);
    }
    table.remove(cover);
    table.reclaim();
    assert_eq!((table.len(), table.node_bytes(), table.reader().bytes()), (0, 0, 1 << 20));
}

// The lengths keep places apart (64 random ones under a /8 or /32 share no /30 or /60).
#[test]
fn readers_never_see_a_hole_ipv4() {
    churn::<u32>(Net::new(10 << 24, 8).unwrap(), &[30, 31, 32]);
}

#[test]
fn readers_never_see_a_hole_ipv6() {
    churn::<u128>(Net::new(0x2001_0db8 << 96, 32).unwrap(), &[60, 64, 65, 100, 127, 128]);
}

#[test]
fn an_online_reader_delays_reuse_and_no_more() {
    let domain = Qsbr::new();
    let mut table = Table4::new(&domain).unwrap();
    let mut reader = domain.register();
    let routes = synth::routes4(2000, 7);
    table.load(routes.iter().copied());
    for (net, _) in &routes {
        table.remove(*net);
    }
    assert!(table.reclaim() > 0);
    reader.quiescent();
    assert_eq!(table.reclaim(), 0);
    assert_eq!(table.reader().bytes(), 1 << 20);
}

#[test]
fn memory_follows_the_routes_through_long_churn() {
    let domain = Qsbr::new();
    let mut table = Table6::new(&domain).unwrap();
    let routes = synth::routes6(20_000, 11);
    table.load(routes.iter().copied());
    let loaded = table.reader().bytes();
    let mut rng = Rng::new(5);
    for _ in 0..200_000 {
        let (net, id) = routes[rng.below(routes.len() as u64) as usize];
        if table.remove(net).is_none() {
            table.insert(net, id);
        }
    }
    for (net, id) in &routes {
        table.insert(*net, *id);
    }
    table.reclaim();
    assert!(table.reader().bytes() < 2 * loaded, "{} after churn, {loaded} before", table.reader().bytes());
    for (net, _) in &routes {
        table.remove(*net);
    }
    table.reclaim();
    assert_eq!((table.node_bytes(), table.reader().bytes()), (0, 1 << 20));
}

#[test]
fn a_million_hosts_and_the_default_route() {
    let domain = Qsbr::new();
    let mut table = Table4::new(&domain).unwrap();
    let routes = synth::hosts::<u32>(1_000_000, 3);
    table.load(routes.iter().copied());
    table.insert(Net::new(0, 0).unwrap(), 7);
    let fib = table.reader();
    for (net, id) in &routes {
        assert_eq!(fib.lookup(net.addr()), *id);
    }
    let misses: Vec<u32> = synth::uniform(1000, 8);
    for a in misses {
        assert_eq!(fib.lookup(a), table.longest_match(a).unwrap().1);
    }
    assert_eq!(table.len(), 1_000_001);
}
