//! Set of cells owned by the kernel.

/// Set of cells given to the kernel through one socket's rings and not yet returned. The kernel may hold a frame that
/// no ring shows (in a driver's receive descriptors, or an skb that is being sent); this set says which cells to take
/// back when the socket is closed. It also prevents an unexpected descriptor from becoming a second frame over the same
/// cell.
///
/// Uses one bit per cell of the arena: 2 KiB for 16,384 cells.
pub(crate) struct InFlight {
    words: Vec<u64>,
    count: usize,
}

impl InFlight {
    pub(crate) fn new(cells: usize) -> Self {
        Self { words: vec![0; cells.div_ceil(64)], count: 0 }
    }

    /// Adds a cell that is given to the kernel.
    #[inline]
    pub(crate) fn give(&mut self, cell: u32) {
        let (word, bit) = (cell as usize / 64, 1 << (cell % 64));
        debug_assert!(self.words[word] & bit == 0, "cell {cell} given twice");
        self.words[word] |= bit;
        self.count += 1;
    }

    /// Removes a cell that the kernel returned. Returns false if the kernel did not have it.
    #[inline]
    pub(crate) fn take(&mut self, cell: u32) -> bool {
        let bit = 1 << (cell % 64);
        match self.words.get_mut(cell as usize / 64) {
            Some(word) if *word & bit != 0 => {
                *word &= !bit;
                self.count -= 1;
                true
            }
            _ => false,
        }
    }

    /// Returns the number of cells owned by the kernel.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Removes and returns all cells.
    pub(crate) fn take_all(&mut self) -> Vec<u32> {
        let mut cells = Vec::with_capacity(self.count);
        for (at, word) in self.words.iter_mut().enumerate() {
            let mut rest = std::mem::take(word);
            while rest != 0 {
                cells.push(at as u32 * 64 + rest.trailing_zeros());
                rest &= rest - 1;
            }
        }
        self.count = 0;
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::InFlight;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn is_a_set(steps in proptest::collection::vec((any::<bool>(), 0u32..210), 0..400)) {
            let mut in_flight = InFlight::new(200);
            let mut model = BTreeSet::new();
            for (give, cell) in steps {
                if give && cell < 200 && model.insert(cell) {
                    in_flight.give(cell);
                } else if !give {
                    prop_assert_eq!(in_flight.take(cell), model.remove(&cell));
                }
                prop_assert_eq!(in_flight.count(), model.len());
            }
            prop_assert_eq!(in_flight.take_all(), model.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(in_flight.count(), 0);
        }
    }
}
