//! A stream of random choices, equal for equal seeds.

use bywash_sync::random::splitmix64;
use std::cell::Cell;

pub struct Random {
    seed: u64,
    drawn: Cell<u64>,
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self { seed, drawn: Cell::new(0) }
    }

    pub fn next(&self) -> u64 {
        self.drawn.set(self.drawn.get() + 1);
        splitmix64(self.seed, self.drawn.get())
    }

    /// Returns a number from 0 to `n - 1`; `n` must not be 0.
    pub fn below(&self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn chance(&self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Clone>(&self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    pub fn bytes(&self, n: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..n.div_ceil(8)).flat_map(|_| self.next().to_be_bytes()).collect();
        bytes.truncate(n);
        bytes
    }
}
