//! Slot boundaries in cells that hold several packets (the typewriter's margin stops).
//!
//! The cell of an address follows from a shift. Where a policy places packets one behind the other, each in as many
//! cache lines as it needs, a slot is found between two marks: the arena has one bit per line, set where a slot begins.
//! A slot never extends into the next cell.

use bywash_sync::facade::{AtomicU64, Ordering};

/// Logarithm of the line size in bytes.
pub(crate) const LINE_SHIFT: u32 = 6;

/// The marks of an arena: one word per cell, one bit per line of the cell.
///
/// Plain loads and stores suffice: only the taker that has the cell's block open sets marks, and both marks of a slot
/// are set before its owner receives it. Marks set beyond the slot meanwhile do not affect the owner.
pub(crate) struct Marks {
    words: Box<[AtomicU64]>,
    /// Logarithm of the lines per cell: 5 or 6.
    shift: u32,
}

impl Marks {
    /// Creates marks for `cells` cells of 2 KiB or 4 KiB: `cell_shift` is 11 or 12.
    pub fn new(cells: usize, cell_shift: u32) -> Self {
        let shift = cell_shift - LINE_SHIFT;
        assert!(shift <= 6, "a word has a bit for each line of a cell");
        Self { words: (0..cells).map(|_| AtomicU64::new(1)).collect(), shift }
    }

    /// Returns the logarithm of the lines per cell.
    pub fn lines_shift(&self) -> u32 {
        self.shift
    }

    /// Returns the number of lines of the slot that begins at line `first`.
    #[inline]
    pub fn lines_at(&self, first: u32) -> u32 {
        let (_, end) = self.around(first.into());
        (end - u64::from(first)) as u32
    }

    /// Marks a slot of `lines` lines at line `first` of the arena. Slots of a cell are made in ascending order.
    #[inline]
    pub fn set(&self, first: u32, lines: u32) {
        let word = &self.words[(first >> self.shift) as usize];
        let at = first & ((1 << self.shift) - 1);
        // A slot at the start of a cell discards the marks of its previous use.
        let before = if at == 0 { 0 } else { word.load(Ordering::Relaxed) };
        let end = at + lines;
        let ends = if end < 64 { 1 << end } else { 0 };
        word.store(before | 1 << at | ends, Ordering::Relaxed);
    }

    /// Returns the slot that contains `line` of the arena: its first line, and the line behind its end. For a line
    /// outside the arena, returns the start of its cell twice.
    #[inline]
    pub fn around(&self, line: u64) -> (u64, u64) {
        let at = (line & ((1 << self.shift) - 1)) as u32;
        let cell = line - u64::from(at);
        let Some(word) = self.words.get((line >> self.shift) as usize) else { return (cell, cell) };
        let word = word.load(Ordering::Relaxed);
        let upto = u64::MAX >> (63 - at);
        // The first line of a cell always begins a slot.
        let start = 63 - ((word & upto) | 1).leading_zeros();
        let end = (word & !upto).trailing_zeros().min(1 << self.shift);
        (cell + u64::from(start), cell + u64::from(end))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slots_lie_between_marks() {
        for (cell_shift, lines) in [(11, 32), (12, 64)] {
            let marks = Marks::new(3, cell_shift);
            assert_eq!(marks.around(lines + 7), (lines, 2 * lines), "an untouched cell is one slot");
            for (first, n) in [(0, 5), (5, 1), (6, 20)] {
                marks.set((lines + first) as u32, n as u32);
                (first..first + n).for_each(|at| {
                    assert_eq!(marks.around(lines + at), (lines + first, lines + first + n), "{at}");
                });
            }
            // Up to the cell's end, then the cell from its start again.
            marks.set((lines + 26) as u32, (lines - 26) as u32);
            assert_eq!(marks.around(2 * lines - 1), (lines + 26, 2 * lines));
            assert_eq!(marks.around(lines + 25), (lines + 6, lines + 26));
            marks.set(lines as u32, lines as u32);
            assert_eq!(marks.around(lines + 26), (lines, 2 * lines));
            assert_eq!(marks.around(0), (0, lines));
            assert_eq!(marks.around((1 << 40) + 9), (1 << 40, 1 << 40), "another arena's");
        }
    }
}
