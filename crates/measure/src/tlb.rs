//! Model of a data TLB with two levels.

use crate::processor::Processor;
use crate::processor::Replacement;
use crate::sets::Sets;
use serde::Serialize;

/// Page size of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PageSize {
    /// 4 KiB.
    #[serde(rename = "4k")]
    Small,
    /// 2 MiB.
    #[serde(rename = "2m")]
    Huge,
}

impl PageSize {
    fn shift(self) -> u32 {
        match self {
            Self::Small => 12,
            Self::Huge => 21,
        }
    }
}

/// Data TLB of one thread. A miss in both levels is a page walk, which performance counters report as a dTLB miss
/// (`dTLB-load-misses` in perf).
pub struct Tlb {
    small: Sets,
    huge: Sets,
    joint: bool,
    second: Sets,
    walks: u64,
}

impl Tlb {
    /// Creates an empty TLB.
    pub fn new(of: &Processor) -> Self {
        let level = |level: crate::processor::TlbLevel| Sets::new(level.entries, level.ways, false, Replacement::Lru);
        Self {
            small: level(of.tlb_4k),
            huge: level(of.tlb_2m),
            joint: of.tlb_joint,
            second: level(of.tlb_l2),
            walks: 0,
        }
    }

    /// Accesses the byte at `addr`, for reading or writing.
    pub fn access(&mut self, addr: u64, page: PageSize) {
        // Bit 0 distinguishes the page sizes where they share entries; the bits above are the page number.
        let number = addr >> page.shift();
        let tag = number << 1 | u64::from(page == PageSize::Huge);
        let first = if page == PageSize::Huge && !self.joint { &mut self.huge } else { &mut self.small };
        if first.touch(spread(tag), false) {
            return;
        }
        first.put(spread(tag), false);
        if !self.second.touch(spread(tag), false) {
            self.walks += 1;
            self.second.put(spread(tag), false);
        }
    }

    /// Returns the number of page walks so far.
    pub fn walks(&self) -> u64 {
        self.walks
    }
}

/// Moves the page number to the low bits, which select the set, and the page size to the top bit.
fn spread(tag: u64) -> u64 {
    tag.rotate_right(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processor::{EMERALD_RAPIDS, XEON_GOLD_6148, ZEN_5};

    /// Returns the walks per page in one pass over `pages` pages, once warm.
    fn walks(of: &Processor, pages: u64, page: PageSize, touches: u64) -> f64 {
        let mut tlb = Tlb::new(of);
        let pass = |tlb: &mut Tlb| {
            for n in 0..pages {
                (0..touches).for_each(|t| tlb.access((n << page.shift()) + t * 64, page));
            }
            tlb.walks()
        };
        let warm = pass(&mut tlb);
        (pass(&mut tlb) - warm) as f64 / pages as f64
    }

    #[test]
    fn known_answers() {
        for of in [&XEON_GOLD_6148, &EMERALD_RAPIDS, &ZEN_5] {
            let reach = of.tlb_l2.entries as u64;
            for page in [PageSize::Small, PageSize::Huge] {
                // Pages that fit are walked once; with twice as many, in order, every access to a new page misses.
                assert_eq!(walks(of, reach, page, 5), 0.0, "{}", of.name);
                assert_eq!(walks(of, 2 * reach, page, 5), 1.0, "{}", of.name);
            }
        }
    }

    #[test]
    fn pages_of_both_sizes_are_kept_apart() {
        let mut tlb = Tlb::new(&ZEN_5);
        tlb.access(0, PageSize::Small);
        tlb.access(0, PageSize::Huge);
        tlb.access(4095, PageSize::Small);
        tlb.access((2 << 20) - 1, PageSize::Huge);
        assert_eq!(tlb.walks(), 2);
    }
}
