//! Compares the tables with a linear scan under random inserts, replacements, removals and bulk loads.

use bywash_fib::{Addr, Kernel, Net, NextHopId, Table};
use bywash_sync::Qsbr;
use proptest::prelude::*;

/// Reference implementation: a list of routes.
struct Linear<A: Addr>(Vec<(Net<A>, NextHopId)>);

impl<A: Addr> Linear<A> {
    fn lookup(&self, a: A) -> NextHopId {
        self.0.iter().filter(|(n, _)| n.contains(a)).max_by_key(|(n, _)| n.len()).map_or(0, |r| r.1)
    }

    fn insert(&mut self, net: Net<A>, id: NextHopId) -> Option<NextHopId> {
        let old = self.remove(net);
        self.0.push((net, id));
        old
    }

    fn remove(&mut self, net: Net<A>) -> Option<NextHopId> {
        let at = self.0.iter().position(|r| r.0 == net)?;
        Some(self.0.swap_remove(at).1)
    }
}

/// Generator of addresses whose prefixes nest and collide: few distinct bits, at significant places.
trait Source: Addr {
    fn place(seed: u64, sparse: u8) -> Self;
    fn near(self, bit: u8) -> Self;
}

impl Source for u32 {
    fn place(seed: u64, sparse: u8) -> Self {
        let x = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        match sparse % 4 {
            0 => x,
            1 => x & 0x0101_0103,
            2 => 0x0a00_0000 | x & 0xff,
            _ => 0x0a00_0000 | x & 0x3f_00c3,
        }
    }
    fn near(self, bit: u8) -> Self {
        self ^ 1 << (bit % 32)
    }
}

impl Source for u128 {
    fn place(seed: u64, sparse: u8) -> Self {
        let x = u128::from(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let x = x << 64 | x.swap_bytes();
        match sparse % 4 {
            0 => x,
            1 => x & (0x0101_0103 << 96 | 0x3f << 60 | 3),
            2 => 0x2001 << 112 | x & 0xff,
            _ => 0x2a00 << 112 | x & (0x7 << 90 | 0xf << 78 | 0x7 << 40 | 0x3),
        }
    }
    fn near(self, bit: u8) -> Self {
        self ^ 1 << (bit % 128)
    }
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, u8, u8, u32),
    Remove(usize),
    Replace(usize, u32),
    Nest(usize, u8, u32),
    Load(Vec<(u64, u8, u8, u32)>),
}

fn op() -> impl Strategy<Value = Op> {
    let id = prop_oneof![4 => 1u32..6, 1 => Just(bywash_fib::MAX_ID), 1 => 0u32..1 << 24];
    prop_oneof![
        8 => (any::<u64>(), any::<u8>(), any::<u8>(), id.clone()).prop_map(|(a, b, c, d)| Op::Insert(a, b, c, d)),
        5 => any::<usize>().prop_map(Op::Remove),
        2 => (any::<usize>(), id.clone()).prop_map(|(a, b)| Op::Replace(a, b)),
        5 => (any::<usize>(), any::<u8>(), id.clone()).prop_map(|(a, b, c)| Op::Nest(a, b, c)),
        1 => prop::collection::vec((any::<u64>(), any::<u8>(), any::<u8>(), id), 0..40).prop_map(Op::Load),
    ]
}

/// Returns a prefix length. Short ones repaint thousands of levels and are used only in some steps.
fn length<A: Addr>(raw: u8) -> u8 {
    match raw {
        0..4 => 0,
        4..40 => A::BITS,
        40..60 => raw % 19,
        _ => 12 + raw % (A::BITS - 11),
    }
}

fn check<A: Source>(ops: Vec<Op>) {
    let domain = Qsbr::new();
    let mut table = Table::<A>::new(&domain).unwrap();
    let fib = table.reader();
    let mut naive = Linear(Vec::new());
    let mut probes: Vec<A> = vec![A::ZERO];
    for op in ops {
        match op {
            Op::Insert(seed, sparse, len, id) => {
                let net = Net::new(A::place(seed, sparse), length::<A>(len)).unwrap();
                assert_eq!(table.insert(net, id), naive.insert(net, id));
                probes.push(A::place(seed, sparse));
            }
            Op::Remove(i) if !naive.0.is_empty() => {
                let net = naive.0[i % naive.0.len()].0;
                assert_eq!(table.remove(net), naive.remove(net));
                assert_eq!(table.remove(net), None);
            }
            Op::Replace(i, id) if !naive.0.is_empty() => {
                let net = naive.0[i % naive.0.len()].0;
                assert_eq!(table.insert(net, id), naive.insert(net, id));
            }
            Op::Nest(i, len, id) if !naive.0.is_empty() => {
                let inner = naive.0[i % naive.0.len()].0;
                let net = Net::new(inner.addr().near(len), length::<A>(len.wrapping_mul(7))).unwrap();
                assert_eq!(table.insert(net, id), naive.insert(net, id));
                probes.push(net.addr());
            }
            Op::Load(routes) => {
                let routes: Vec<_> = routes
                    .into_iter()
                    .map(|(s, p, l, id)| (Net::new(A::place(s, p), length::<A>(l)).unwrap(), id))
                    .collect();
                table.load(routes.iter().copied());
                for (net, id) in routes {
                    naive.insert(net, id);
                    probes.push(net.addr());
                }
            }
            _ => {}
        }
        table.reclaim();
        let mut keys = probes.clone();
        for (net, _) in &naive.0 {
            keys.push(net.addr());
            for bit in [0, 7, 13, 31] {
                keys.push(net.addr().near(bit + 32 - net.len() % 32));
            }
        }
        let mut wide = vec![0; keys.len()];
        let mut narrow = vec![0; keys.len()];
        fib.lookup_batch(&keys, &mut wide);
        fib.lookup_batch_with(Kernel::Scalar, &keys, &mut narrow);
        for (i, k) in keys.iter().enumerate() {
            let want = naive.lookup(*k);
            assert_eq!(fib.lookup(*k), want, "{k:x?}");
            assert_eq!(wide[i], want, "vector, {k:x?}");
            assert_eq!(narrow[i], want, "scalar, {k:x?}");
            assert_eq!(table.longest_match(*k).map_or(0, |r| r.1), want, "rib, {k:x?}");
        }
    }
    assert_eq!(table.len(), naive.0.len());
    let mut all: Vec<_> = table.iter().collect();
    assert!(all.is_sorted_by_key(|r| r.0));
    naive.0.sort_unstable_by_key(|r| r.0);
    assert_eq!(all, naive.0);
    for (net, id) in all.drain(..) {
        assert_eq!(table.get(net), Some(id));
        table.remove(net);
    }
    table.reclaim();
    assert_eq!((table.node_bytes(), fib.bytes()), (0, 1 << 20));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn ipv4(ops in prop::collection::vec(op(), 1..60)) {
        check::<u32>(ops);
    }

    #[test]
    fn ipv6(ops in prop::collection::vec(op(), 1..60)) {
        check::<u128>(ops);
    }
}
