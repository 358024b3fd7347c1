//! Which cells are with the kernel.

/// A set of cells given to the kernel through one socket's rings and not yet come back. The kernel may keep a frame
/// where no ring shows it (a driver's receive descriptors, a packet in flight), and after the socket is closed they
/// are all ours again: this is how we know which. It also keeps a descriptor we did not expect from becoming a
/// second frame over one cell.
///
/// One bit per cell of the arena: 2 KiB for 16,384 cells.
pub(crate) struct Custody {
    words: Vec<u64>,
    count: usize,
}

impl Custody {
    pub(crate) fn new(cells: usize) -> Self {
        Self { words: vec![0; cells.div_ceil(64)], count: 0 }
    }

    /// The cell goes to the kernel.
    #[inline]
    pub(crate) fn give(&mut self, cell: u32) {
        let (word, bit) = (cell as usize / 64, 1 << (cell % 64));
        debug_assert!(self.words[word] & bit == 0, "cell {cell} given twice");
        self.words[word] |= bit;
        self.count += 1;
    }

    /// The cell comes back. False: it was not there.
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

    /// Cells with the kernel.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Takes all cells back.
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
    use super::Custody;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn is_a_set(steps in proptest::collection::vec((any::<bool>(), 0u32..210), 0..400)) {
            let mut custody = Custody::new(200);
            let mut model = BTreeSet::new();
            for (give, cell) in steps {
                if give && cell < 200 && model.insert(cell) {
                    custody.give(cell);
                } else if !give {
                    prop_assert_eq!(custody.take(cell), model.remove(&cell));
                }
                prop_assert_eq!(custody.count(), model.len());
            }
            prop_assert_eq!(custody.take_all(), model.into_iter().collect::<Vec<_>>());
            prop_assert_eq!(custody.count(), 0);
        }
    }
}
