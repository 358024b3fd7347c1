//! Prints what the flow table costs: `cargo run --release -p bywash-fib --example flows`.

use bywash_fib::flows::{Flow, FlowTable, Flows, Hit, Key, Tuple};
use bywash_fib::synth::Rng;
use bywash_sync::{Qsbr, clock::tsc};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Instant;

/// Packets looked up for each figure.
const PACKETS: usize = 1 << 22;
const BATCH: usize = 64;

fn flow(v6: bool, n: u32) -> Flow {
    let address = |net: u8, n: u32| -> IpAddr {
        match v6 {
            false => Ipv4Addr::from_bits(u32::from(net) << 24 | n).into(),
            true => Ipv6Addr::from_bits(u128::from(net) << 120 | u128::from(n)).into(),
        }
    };
    let original = Tuple { src: address(10, n % 60_000), dst: address(20, n), src_port: 1024, dst_port: 443 };
    let reply = Tuple { src: original.dst, dst: address(30, 1), src_port: 443, dst_port: 1024 + (n % 60_000) as u16 };
    Flow { protocol: 17, original, reply, input: 0, output: 1 }
}

/// Returns TSC ticks for each of the keys, visited at random, by the median batch, and the share that was found.
fn lookups<const N: usize>(table: &FlowTable<N>, keys: &[Key<N>]) -> (f64, f64) {
    let (mut rng, mut hits, mut found, mut ticks) = (Rng::new(7), [Hit::NONE; BATCH], 0, vec![]);
    for _ in 0..PACKETS / BATCH {
        let batch: [Key<N>; BATCH] = std::array::from_fn(|_| keys[rng.below(keys.len() as u64) as usize]);
        let start = tsc();
        table.lookup_batch(&batch, &mut hits);
        ticks.push(tsc() - start);
        found += hits.iter().filter(|hit| hit.is_some()).count();
    }
    // Not the mean, which other work on the CPU raises.
    ticks.sort_unstable();
    (ticks[ticks.len() / 2] as f64 / BATCH as f64, found as f64 / PACKETS as f64)
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(a) => a.octets().to_vec(),
        IpAddr::V6(a) => a.octets().to_vec(),
    }
}

/// Returns the keys of packets of flows `from..to`.
fn keys<const N: usize>(v6: bool, from: u32, to: u32) -> Vec<Key<N>> {
    let key = |n: u32| {
        let Tuple { src, dst, src_port, dst_port } = flow(v6, n).original;
        let addresses = [octets(src), octets(dst)].concat();
        let ([a, b], [c, d]) = (src_port.to_be_bytes(), dst_port.to_be_bytes());
        Key::new(addresses.as_chunks::<8>().0.try_into().expect("the family's addresses"), [a, b, c, d], 17, 0)
    };
    (from..to).map(key).collect()
}

fn main() -> std::io::Result<()> {
    println!("family    flows     MiB  insert ns  remove ns  hit ticks  miss ticks");
    for v6 in [false, true] {
        for n in [1_000, 100_000, 1_000_000] {
            let mut flows = Flows::new(&Qsbr::new(), [None, None], n as usize)?;
            flows.set_generation(1);
            let start = Instant::now();
            let ids: Vec<_> = (0..n).filter_map(|n| flows.insert(&flow(v6, n), 1).ok()).collect();
            let insert = start.elapsed().as_nanos() as f64 / f64::from(n);
            let tables = flows.reader();
            let (hit, miss) = match v6 {
                false => (lookups(&tables.v4, &keys(v6, 0, n)), lookups(&tables.v4, &keys(v6, n, 2 * n))),
                true => (lookups(&tables.v6, &keys(v6, 0, n)), lookups(&tables.v6, &keys(v6, n, 2 * n))),
            };
            assert!(
                ids.len() == n as usize && hit.1 == 1.0 && miss.1 == 0.0,
                "{} inserted, {hit:?}, {miss:?}",
                ids.len()
            );
            let mib = flows.memory() as f64 / 1048576.0;
            let start = Instant::now();
            ids.into_iter().for_each(|id| flows.remove(id));
            let remove = start.elapsed().as_nanos() as f64 / f64::from(n);
            let family = if v6 { 6 } else { 4 };
            println!("{family:6} {n:8} {mib:7.1} {insert:10.0} {remove:10.0} {:10.1} {:11.1}", hit.0, miss.0);
        }
    }
    Ok(())
}
