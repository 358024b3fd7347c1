//! Which of a stream's frames came, how often, and in what order.

use serde::Serialize;

/// Sequence numbers that are remembered one by one: a frame that comes later than this is not told from its duplicate.
const WINDOW: u64 = 1 << 20;

/// What sequence numbers tell.
///
/// A frame is *reordered* when one with a higher number came before it (RFC 4737, section 3); how many numbers it is
/// behind is its displacement. A frame that came before is a *duplicate*, wherever it comes, and counts as nothing
/// else. The stream is looked at as a whole: a device that only keeps the order within each flow shows reordering here
/// when there is more than one.
#[derive(Debug, Serialize)]
pub struct Order {
    /// Different frames.
    pub received: u64,
    /// Further copies of them.
    pub duplicates: u64,
    /// Frames that came behind a later one.
    pub reordered: u64,
    /// The largest displacement, in frames.
    pub displacement: u64,
    /// Frames that came more than 1,048,576 behind: taken for reordered ones.
    pub late: u64,
    /// One more than the highest number.
    #[serde(skip)]
    next: u64,
    /// A bit for each of the last numbers below `next`, at its place modulo the window.
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
    /// Takes note of a frame by its number modulo 2^32. False for a number that cannot be: from before the first.
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

    /// Frames of the first `sent` that have not come.
    pub fn lost(&self, sent: u64) -> u64 {
        sent.saturating_sub(self.received)
    }

    /// The last of the first `sent` frames that has not come, as far back as is remembered.
    pub fn last_lost(&self, sent: u64) -> Option<u64> {
        if sent > self.next {
            return Some(sent - 1);
        }
        (self.next.saturating_sub(WINDOW)..sent.min(self.next)).rev().find(|number| !self.has(*number))
    }

    fn has(&self, number: u64) -> bool {
        self.seen[place(number)] >> (number % 64) & 1 != 0
    }

    /// Makes `number` the highest, and forgets what was at the places of those between.
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
