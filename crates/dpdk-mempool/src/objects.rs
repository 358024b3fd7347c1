//! Conversion between addresses and numbers of objects.

/// Run of objects at equal distances, with consecutive numbers.
struct Run {
    start: usize,
    /// End of the last object.
    end: usize,
    first: u32,
}

/// Addresses of a mempool's objects, numbered in the order they were added.
///
/// A mempool in one piece of memory is one run, and the number of an address is found by a multiplication. A mempool in
/// several pieces (scattered pages, for a device that needs physical addresses) has a run for each piece.
pub struct Objects {
    stride: usize,
    /// 2^64 / stride, rounded up: the upper half of a product with it is the quotient, for any dividend below 2^64 /
    /// stride.
    inverse: u64,
    /// Ordered by number, or by address after [`Objects::sort`].
    runs: Vec<Run>,
    /// Addresses by number, used if there are several runs.
    table: Vec<usize>,
    /// For each piece of 2^`shift` bytes from the first run on, the index of the first run that ends in or after it.
    pieces: Vec<u32>,
    shift: u32,
    count: u32,
}

/// Maximum distance of objects in bytes: 2^64 / `stride` then covers every user-space address.
const LONGEST: usize = 1 << 17;

impl Objects {
    /// Creates an empty map for objects at distances of `stride` bytes. `None` if the distance is below 2 or above 128
    /// KiB.
    pub fn new(stride: usize) -> Option<Self> {
        if !(2..=LONGEST).contains(&stride) {
            return None;
        }
        let inverse = (u64::MAX / stride as u64) + 1;
        Some(Self { stride, inverse, runs: vec![], table: vec![], pieces: vec![], shift: 21, count: 0 })
    }

    /// Returns the number of objects.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Assigns the next number to `address`.
    pub fn add(&mut self, address: usize) {
        let end = address + self.stride;
        // After sorting, the last run need not be the one with the last numbers.
        let newest = self.runs.last().map(|run| run.first + self.quotient(run.end - run.start)) == Some(self.count);
        match self.runs.last_mut() {
            Some(run) if run.end == address && newest => run.end = end,
            _ => {
                if self.runs.len() == 1 {
                    let only = &self.runs[0];
                    self.table = (only.start..only.end).step_by(self.stride).collect();
                }
                self.runs.push(Run { start: address, end, first: self.count });
            }
        }
        if self.runs.len() > 1 {
            self.table.push(address);
        }
        self.count += 1;
    }

    /// Sorts the runs. To be called after the last object of a piece of memory was added: objects of earlier pieces are
    /// found only then.
    pub fn sort(&mut self) {
        self.runs.sort_unstable_by_key(|r| r.start);
        let (Some(low), Some(high)) = (self.runs.first(), self.runs.iter().map(|r| r.end).max()) else { return };
        // About one run for each piece: pieces of 2 MiB, or of 4 KiB if the pages are that scattered.
        self.shift = if (high - low.start) >> 21 < self.runs.len() / 4 { 12 } else { 21 };
        let start = low.start;
        let mut run = 0;
        self.pieces = (0..=(high - start) >> self.shift)
            .map(|piece| {
                let at = start + (piece << self.shift);
                while run + 1 < self.runs.len() && self.runs[run].end <= at {
                    run += 1;
                }
                run as u32
            })
            .collect();
    }

    /// Returns the number of the object at `address`. `None` if the address is in no run.
    #[inline]
    pub fn number(&self, address: usize) -> Option<u32> {
        let [run] = &self.runs[..] else { return self.search(address) };
        (address.wrapping_sub(run.start) < run.end - run.start).then(|| run.first + self.quotient(address - run.start))
    }

    #[inline]
    fn quotient(&self, offset: usize) -> u32 {
        ((u128::from(self.inverse) * offset as u128) >> 64) as u32
    }

    fn search(&self, address: usize) -> Option<u32> {
        let within = |r: &&Run| (r.start..r.end).contains(&address);
        let piece = || address.checked_sub(self.runs.first()?.start).and_then(|at| self.pieces.get(at >> self.shift));
        let sorted = || {
            let from = *piece()? as usize;
            self.runs[from..].iter().find(|r| r.end > address).filter(within)
        };
        // While a piece is added, DPDK puts each of its objects right after adding it, before they are sorted.
        let run = self.runs.last().filter(within).or_else(sorted)?;
        Some(run.first + self.quotient(address - run.start))
    }

    /// Returns the address of object `number`, which must exist.
    #[inline]
    pub fn address(&self, number: u32) -> usize {
        match &self.runs[..] {
            [run] => run.start + number as usize * self.stride,
            _ => self.table[number as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(pieces: &[(usize, usize)], stride: usize) -> (Objects, Vec<usize>) {
        let (mut objects, mut all) = (Objects::new(stride).unwrap(), vec![]);
        for (start, n) in pieces {
            for i in 0..*n {
                let at = start + i * stride;
                objects.add(at);
                all.push(at);
                assert_eq!(objects.number(at), Some(all.len() as u32 - 1), "as soon as it is added");
            }
            objects.sort();
        }
        (objects, all)
    }

    #[test]
    fn addresses_and_numbers_match_in_any_order_of_pieces() {
        const HIGH: usize = 0x7fff_0000_0000;
        for stride in [64, 192, 2368, 65_600, LONGEST] {
            for pieces in [
                vec![(HIGH, 5000)],
                vec![(HIGH, 10), (HIGH + (1 << 40), 100), (HIGH - (1 << 30), 1)],
                (0..400).map(|i| (HIGH + i * (1 << 21), (1 << 21) / stride)).collect(),
                (0..400).rev().map(|i| (HIGH + i * (1 << 17), 1)).collect(),
                vec![(HIGH, 10), (HIGH - (1 << 30), 1), (HIGH + 10 * stride, 1)],
            ] {
                let (objects, all) = added(&pieces, stride);
                assert_eq!(objects.count() as usize, all.len());
                for (number, at) in (0..).zip(&all) {
                    assert_eq!((objects.number(*at), objects.address(number)), (Some(number), *at));
                }
                for outside in [0, 64, HIGH - (1 << 30) - 1, HIGH + (1 << 45), usize::MAX] {
                    assert_eq!(objects.number(outside), None, "{outside:x}");
                }
            }
        }
    }

    #[test]
    fn impossible_distances_are_refused() {
        assert!(Objects::new(0).is_none() && Objects::new(LONGEST + 1).is_none());
    }
}
