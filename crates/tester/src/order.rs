//! Loss, duplication and reordering of a stream's frames.

use serde::Serialize;

/// Number of recent sequence numbers remembered individually. A frame delayed by more cannot be distinguished from a
/// duplicate.
const WINDOW: u64 = 1 << 20;

/// Statistics from sequence numbers.
///
/// A frame is *reordered* if one with a higher number arrived before it (RFC 4737, section 3); its displacement is how
/// many numbers it is behind. A frame that arrived before is a *duplicate* and is not counted as anything else. The
/// stream is considered as a whole: a device that keeps order only within each flow shows reordering here if there are
/// several flows.
#[derive(Debug, Serialize)]
pub struct Order {
    /// Distinct frames received.
    pub received: u64,
    /// Further copies of frames received before.
    pub duplicates: u64,
    /// Frames that arrived behind a later one.
    pub reordered: u64,
    /// The largest displacement, in frames.
    pub displacement: u64,
    /// Frames that arrived more than 1,048,576 behind; counted as reordered.
    pub late: u64,
    /// Highest number received, plus one.
    #[serde(skip)]
    next: u64,
    /// Bitmap of the last numbers below `next`, indexed modulo the window.
    #[serde(skip)]
    seen: Vec<u64>,
}

impl Default for Order {
    fn default() -> Self {
        Self {
            received: 0,
            duplicates: 0,
            reordered: 0,
            displacement: 0,
            late: 0,
            next: 0,
            seen: vec![0; (WINDOW / 64) as usize],
        }
    }
}

impl Order {
    /// Records a frame by its number modulo 2^32. Returns false for a number before the start of the stream.
    #[inline]
    pub fn see(&mut self, sequence: u32) -> bool {
        let ahead = i64::from(sequence.wrapping_sub(self.next as u32) as i32);
        let Some(number) = self.next.checked_add_signed(ahead) else { return false };
        if number >= self.next {
            self.advance(number);
        } else {
            let displacement = self.next - 1 - number;
            if displacement >= WINDOW {
                self.late += 1;
            } else if self.has(number) {
                self.duplicates += 1;
                return true;
            }
            self.reordered += 1;
            self.displacement = self.displacement.max(displacement);
            if displacement >= WINDOW {
                self.received += 1;
                return true;
            }
        }
        self.seen[place(number)] |= 1 << (number % 64);
        self.received += 1;
        true
    }

    /// Returns how many of the first `sent` frames have not arrived.
    pub fn lost(&self, sent: u64) -> u64 {
        sent.saturating_sub(self.received)
    }

    /// Returns the last of the first `sent` frames that has not arrived, within the window.
    pub fn last_lost(&self, sent: u64) -> Option<u64> {
        if sent > self.next {
            return Some(sent - 1);
        }
        (self.next.saturating_sub(WINDOW)..sent.min(self.next)).rev().find(|number| !self.has(*number))
    }

    fn has(&self, number: u64) -> bool {
        self.seen[place(number)] >> (number % 64) & 1 != 0
    }

    /// Sets `number` as the highest, and clears the entries of the numbers skipped.
    #[inline]
    fn advance(&mut self, number: u64) {
        if number - self.next >= WINDOW {
            self.seen.fill(0);
        } else {
            for skipped in self.next..=number {
                self.seen[place(skipped)] &= !(1 << (skipped % 64));
            }
        }
        self.next = number + 1;
    }
}

fn place(number: u64) -> usize {
    (number % WINDOW / 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn by_hand() {
        let mut order = Order::default();
        for n in [0, 1, 3, 2, 3, 6, 1] {
            assert!(order.see(n));
        }
        let o = &order;
        assert_eq!((o.received, o.duplicates, o.reordered, o.displacement), (5, 2, 1, 1));
        assert_eq!((o.lost(7), o.last_lost(7), o.last_lost(6), o.last_lost(9)), (2, Some(5), Some(5), Some(8)));
        assert_eq!(o.last_lost(4), None);
    }

    #[test]
    fn goes_on_beyond_32_bits() {
        let mut order = Order::default();
        let jump = 1u64 << 30;
        for n in 0..=5u64 {
            assert!(order.see((n * jump) as u32));
        }
        assert_eq!((order.received, order.reordered), (6, 0));
        assert!(order.see((5 * jump - 1) as u32));
        assert_eq!((order.reordered, order.displacement, order.lost(5 * jump + 1)), (1, 1, 5 * jump + 1 - 7));
        assert!(order.see((4 * jump) as u32));
        assert_eq!(order.late, 1);
        assert!(!Order::default().see(u32::MAX));
    }

    proptest! {
        #[test]
        fn as_a_set_would_tell(numbers in prop::collection::vec(0u32..5000, 1..400)) {
            let mut order = Order::default();
            let (mut seen, mut highest, mut reordered, mut twice) = (HashSet::new(), None, 0, 0);
            for n in numbers {
                prop_assert!(order.see(n));
                if !seen.insert(n) {
                    twice += 1;
                } else if highest.is_some_and(|h| n < h) {
                    reordered += 1;
                }
                highest = highest.max(Some(n));
            }
            prop_assert_eq!((order.received, order.duplicates, order.reordered), (seen.len() as u64, twice, reordered));
            let lost = (0..6000).rev().find(|n| !seen.contains(&(*n as u32)));
            prop_assert_eq!(order.last_lost(6000), lost);
        }
    }
}
