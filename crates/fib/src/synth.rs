//! Route sets and address streams for benchmarks and tests: deterministic, with the prefix lengths of the global
//! routing tables.
//!
//! Lengths follow the shares in public BGP tables (IPv4: 59 % /24, 11 % /22, 9 % /23, 1 % longer than /24; IPv6: 46 %
//! /48, 16 % /32). Positions do not: real prefixes cluster, which favours caches. Here IPv4 prefixes are spread evenly
//! over unicast space, IPv6 prefixes evenly within allocations spread over the registries' blocks.

use crate::addr::{Addr, Net, Net4, Net6};
use crate::fib::NextHopId;
use bywash_sync::random;
use std::collections::HashSet;

/// Largest next-hop id; routes are spread over ids from 1 to this.
pub const NEXT_HOPS: u32 = 256;

/// A small random number generator (SplitMix64) that is deterministic for a given seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let next = random::splitmix64(self.0, 1);
        self.0 = self.0.wrapping_add(random::STEP);
        next
    }

    /// Returns 128 random bits.
    pub fn next_u128(&mut self) -> u128 {
        u128::from(self.next_u64()) << 64 | u128::from(self.next_u64())
    }

    /// Returns a uniform number below `n`, which must not be 0.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    fn id(&mut self) -> NextHopId {
        1 + self.below(u64::from(NEXT_HOPS)) as u32
    }

    /// Returns a random length, by weights.
    fn pick(&mut self, table: &[(u8, u32)]) -> u8 {
        let mut at = self.below(table.iter().map(|(_, w)| u64::from(*w)).sum()) as u32;
        for (len, weight) in table {
            if at < *weight {
                return *len;
            }
            at -= weight;
        }
        table[0].0
    }
}

/// Prefix lengths and their weights, in hundredths of a per cent.
const LENGTHS4: [(u8, u32); 25] = [
    (24, 5900),
    (22, 1120),
    (23, 930),
    (21, 520),
    (20, 450),
    (19, 270),
    (18, 150),
    (17, 90),
    (16, 150),
    (15, 20),
    (14, 12),
    (13, 6),
    (12, 4),
    (11, 2),
    (10, 2),
    (9, 1),
    (8, 1),
    (25, 10),
    (26, 10),
    (27, 10),
    (28, 10),
    (29, 15),
    (30, 15),
    (31, 2),
    (32, 28),
];
const LENGTHS6: [(u8, u32); 20] = [
    (48, 4600),
    (32, 1600),
    (44, 650),
    (40, 700),
    (36, 500),
    (29, 400),
    (47, 350),
    (46, 250),
    (45, 150),
    (42, 150),
    (43, 60),
    (41, 60),
    (38, 60),
    (34, 60),
    (33, 150),
    (30, 40),
    (31, 40),
    (28, 30),
    (64, 100),
    (128, 50),
];
/// Blocks from which the registries allocate.
const BLOCKS6: [(u128, u8); 7] = [
    (0x2001 << 112, 16),
    (0x2400 << 112, 12),
    (0x2600 << 112, 12),
    (0x2800 << 112, 12),
    (0x2a00 << 112, 12),
    (0x2c00 << 112, 12),
    (0x2a10 << 112, 12),
];

/// Returns `n` distinct IPv4 routes within 1.0.0.0 to 223.255.255.255, in random order.
pub fn routes4(n: usize, seed: u64) -> Vec<(Net4, NextHopId)> {
    let mut rng = Rng::new(seed);
    distinct(n, || {
        let len = rng.pick(&LENGTHS4);
        let addr = (1 << 24) + rng.below(223 << 24) as u32;
        Net::new(addr, len).map(|net| (net, rng.id()))
    })
}

/// Returns `n` distinct IPv6 routes within the registries' blocks, in random order.
pub fn routes6(n: usize, seed: u64) -> Vec<(Net6, NextHopId)> {
    let mut rng = Rng::new(seed);
    let allocations: Vec<u128> = (0..(n / 5).max(16))
        .map(|_| {
            let (block, len) = BLOCKS6[rng.below(BLOCKS6.len() as u64) as usize];
            block | rng.next_u128() >> len
        })
        .collect();
    distinct(n, || {
        let len = rng.pick(&LENGTHS6);
        let addr = allocations[rng.below(allocations.len() as u64) as usize].mask(32) | rng.next_u128() >> 32;
        // An allocation has one /32; prefixes of up to /33 come from fresh space.
        let addr = if len <= 33 {
            let (block, block_len) = BLOCKS6[rng.below(BLOCKS6.len() as u64) as usize];
            block | rng.next_u128() >> block_len
        } else {
            addr
        };
        Net::new(addr, len).map(|net| (net, rng.id()))
    })
}

/// Returns `n` distinct random host routes: no provider announces such a table, but lookups must handle it.
pub fn hosts<A: Addr + Random>(n: usize, seed: u64) -> Vec<(Net<A>, NextHopId)> {
    let mut rng = Rng::new(seed);
    distinct(n, || Net::new(A::random(&mut rng), A::BITS).map(|net| (net, rng.id())))
}

fn distinct<A: Addr>(n: usize, mut make: impl FnMut() -> Option<(Net<A>, NextHopId)>) -> Vec<(Net<A>, NextHopId)> {
    let mut seen = HashSet::with_capacity(n);
    let mut routes = Vec::with_capacity(n);
    while routes.len() < n {
        if let Some((net, id)) = make()
            && seen.insert((net.addr().pack(net.len()), net.len()))
        {
            routes.push((net, id));
        }
    }
    routes
}

/// Addresses that can be drawn at random.
pub trait Random: Sized {
    /// Returns an address, uniform over the whole family.
    fn random(rng: &mut Rng) -> Self;
    /// Returns an address, uniform over the range that benchmarks call "random": all of IPv4, or 2000::/3.
    fn uniform(rng: &mut Rng) -> Self;
}

impl Random for u32 {
    fn random(rng: &mut Rng) -> Self {
        (rng.next_u64() >> 32) as u32
    }
    fn uniform(rng: &mut Rng) -> Self {
        Self::random(rng)
    }
}

impl Random for u128 {
    fn random(rng: &mut Rng) -> Self {
        rng.next_u128()
    }
    fn uniform(rng: &mut Rng) -> Self {
        1 << 125 | rng.next_u128() >> 3
    }
}

/// Returns `n` uniformly random addresses.
pub fn uniform<A: Addr + Random>(n: usize, seed: u64) -> Vec<A> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| A::uniform(&mut rng)).collect()
}

/// Returns `n` addresses, each a random one within a random route.
pub fn under<A: Addr + Random>(routes: &[(Net<A>, NextHopId)], n: usize, seed: u64) -> Vec<A> {
    let mut rng = Rng::new(seed);
    (0..n)
        .map(|_| {
            let net = routes[rng.below(routes.len() as u64) as usize].0;
            let any = A::random(&mut rng);
            net.addr().join(any, net.len())
        })
        .collect()
}
