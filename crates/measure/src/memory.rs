//! Model of second-level caches, a shared last-level cache, memory, and devices that read and write through the last
//! level.
//!
//! Not modelled, with the effect on the results: first-level caches (none, as their hits never reach memory),
//! prefetchers (they read more, equally for every policy), replacement other than exact LRU in the second level, and
//! the choice of victims that bypass the last level (here all go there).

use crate::processor::{Processor, Replacement};
use crate::sets::{Evicted, Sets};
use serde::Serialize;

/// Traffic at the memory controllers, in cache lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Lines read from memory.
    pub read_lines: u64,
    /// Lines written to memory.
    pub written_lines: u64,
}

impl std::ops::Sub for Traffic {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            read_lines: self.read_lines - before.read_lines,
            written_lines: self.written_lines - before.written_lines,
        }
    }
}

/// Caches of one socket.
pub struct Memory {
    l2: Vec<Sets>,
    /// Size of the groups of adjacent cores that may take lines from each other.
    group: usize,
    llc: Sets,
    device_ways: usize,
    line: u64,
    traffic: Traffic,
}

impl Memory {
    /// Creates empty caches for `cores` cores. Lines are shared only within groups of `group` cores.
    pub fn new(of: &Processor, cores: usize, group: usize) -> Self {
        let lines = |cache: crate::processor::Cache| cache.bytes / of.line;
        Self {
            l2: (0..cores).map(|_| Sets::new(lines(of.l2), of.l2.ways, false, Replacement::Lru)).collect(),
            group,
            // The last level is sliced over the cores by an unpublished but uniform hash.
            llc: Sets::new(lines(of.llc), of.llc.ways, true, of.llc_replacement),
            device_ways: of.device_ways,
            line: of.line as u64,
            traffic: Traffic::default(),
        }
    }

    /// Returns the memory traffic so far. Dirty lines still in a cache are not counted as written.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Reads `len` bytes on `core`.
    pub fn read(&mut self, core: usize, addr: u64, len: usize) {
        self.lines(addr, len).for_each(|line| self.touch(core, line, false));
    }

    /// Writes `len` bytes on `core`, which first reads lines it does not have.
    pub fn write(&mut self, core: usize, addr: u64, len: usize) {
        self.lines(addr, len).for_each(|line| self.touch(core, line, true));
    }

    /// Writes `len` bytes by a device, for `core`'s group. A device writes whole lines.
    pub fn device_write(&mut self, core: usize, addr: u64, len: usize) {
        for line in self.lines(addr, len) {
            for l2 in self.group_of(core) {
                // The previous contents are overwritten, so they need not be written back.
                self.l2[l2].take(line);
            }
            if self.llc.touch(line, true) {
                continue;
            }
            if self.device_ways == 0 {
                self.traffic.written_lines += 1;
            } else {
                // Allocate in the highest ways, which others fill last (IIO_LLC_WAYS: 0x600 of eleven).
                let all = self.llc.ways();
                let out = self.llc.put_in(line, true, all - self.device_ways..all);
                self.evict(out);
            }
        }
    }

    /// Reads `len` bytes by a device; a core of `core`'s group may have them cached. The caches do not change.
    pub fn device_read(&mut self, core: usize, addr: u64, len: usize) {
        for line in self.lines(addr, len) {
            let cached = self.llc.has(line) || self.group_of(core).any(|l2| self.l2[l2].has(line));
            self.traffic.read_lines += u64::from(!cached);
        }
    }

    fn lines(&self, addr: u64, len: usize) -> std::ops::Range<u64> {
        // The last line ends where addresses do.
        addr / self.line..addr.saturating_add(len as u64).div_ceil(self.line)
    }

    fn group_of(&self, core: usize) -> std::ops::Range<usize> {
        let first = core - core % self.group;
        first..(first + self.group).min(self.l2.len())
    }

    fn touch(&mut self, core: usize, line: u64, write: bool) {
        if self.l2[core].touch(line, write) {
            return;
        }
        // The line comes from a neighbour, the last level or memory, and is then in this core's L2 only.
        let neighbours = self.group_of(core).filter(|l2| *l2 != core);
        let mut found = None;
        for l2 in neighbours {
            found = found.or(self.l2[l2].take(line));
        }
        let found = found.or_else(|| self.llc.take(line));
        let dirty = found.unwrap_or_else(|| {
            self.traffic.read_lines += 1;
            false
        });
        if let Some(out) = self.l2[core].put(line, dirty || write) {
            let out = self.llc.put(out.tag, out.dirty);
            self.evict(out);
        }
    }

    fn evict(&mut self, out: Option<Evicted>) {
        self.traffic.written_lines += u64::from(out.is_some_and(|out| out.dirty));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processor::{Cache, XEON_GOLD_6148, ZEN_5};

    /// Returns the lines read and written per pass over `bytes` bytes, once warm.
    fn pass(of: &Processor, bytes: u64, work: impl Fn(&mut Memory, u64)) -> Traffic {
        let mut memory = Memory::new(of, 1, 1);
        let all = |memory: &mut Memory| (0..bytes / 64).for_each(|n| work(memory, n * 64));
        all(&mut memory);
        let warm = memory.traffic();
        all(&mut memory);
        memory.traffic() - warm
    }

    #[test]
    fn what_fits_stays_and_what_does_not_is_moved_whole() {
        let of = &XEON_GOLD_6148;
        let read = |m: &mut Memory, at| m.read(0, at, 64);
        let write = |m: &mut Memory, at| m.write(0, at, 64);
        assert_eq!(pass(of, 512 << 10, read), Traffic::default());
        assert_eq!(pass(of, 512 << 10, write), Traffic::default());
        // L2 and last level together hold 28.5 MiB; with sequential passes over twice that, no line is still cached
        // when it is read again.
        let lines = (57 << 20) / 64;
        let most = |n: u64| n > lines * 98 / 100 && n <= lines;
        let traffic = pass(of, 57 << 20, read);
        assert!(most(traffic.read_lines) && traffic.written_lines == 0, "{traffic:?}");
        let traffic = pass(of, 57 << 20, write);
        assert!(most(traffic.read_lines) && most(traffic.written_lines), "{traffic:?}");
    }

    #[test]
    fn a_device_writes_without_reading_and_in_its_ways_only() {
        let of = &XEON_GOLD_6148;
        let write = |m: &mut Memory, at| m.device_write(0, at, 64);
        // Two of eleven ways: 5 MiB.
        assert_eq!(pass(of, 3 << 20, write).written_lines, 0);
        let lines = (20 << 20) / 64;
        let traffic = pass(of, 20 << 20, write);
        assert_eq!(traffic.read_lines, 0);
        assert!(traffic.written_lines > lines * 95 / 100, "{traffic:?} of {lines}");
        // A line that a core has read is evicted from its L2 to any way of the last level; the device then writes it
        // in place.
        let both = |m: &mut Memory, at| {
            m.device_write(0, at, 64);
            m.read(0, at, 64);
        };
        let traffic = pass(of, 10 << 20, both);
        assert!(traffic.written_lines < (10 << 20) / 64 / 20, "{traffic:?}");
        // Without device ways, all device writes go to memory, and the core reads the data from there.
        let traffic = pass(&ZEN_5, 1 << 20, both);
        assert_eq!(traffic, Traffic { read_lines: 16384, written_lines: 16384 });
    }

    #[test]
    fn a_device_reads_what_is_in_any_cache_of_the_group() {
        let mut memory = Memory::new(&XEON_GOLD_6148, 4, 2);
        memory.write(1, 0, 640);
        memory.device_read(0, 0, 640);
        assert_eq!(memory.traffic().read_lines, 10, "only what the core had to read before it wrote");
        memory.read(0, 0, 640);
        memory.device_read(1, 0, 641);
        assert_eq!(memory.traffic().read_lines, 11, "moved from core to core; one line is nowhere");
    }

    #[test]
    fn partial_lines_are_whole_ones() {
        let mut memory = Memory::new(&XEON_GOLD_6148, 1, 1);
        memory.read(0, 63, 2);
        memory.read(0, 128, 0);
        assert_eq!(memory.traffic().read_lines, 2);
        memory.read(0, u64::MAX - 63, 64);
        memory.read(0, u64::MAX, usize::MAX);
        assert_eq!(memory.traffic().read_lines, 3, "the last line of all, once");
    }

    /// Every dirty line is written once: lines written equal lines dirtied minus those still cached.
    #[test]
    fn writes_are_conserved() {
        let tiny = Processor {
            l2: Cache { bytes: 8 * 64, ways: 2 },
            llc: Cache { bytes: 16 * 64, ways: 4 },
            ..XEON_GOLD_6148
        };
        let mut memory = Memory::new(&tiny, 2, 2);
        let mut x = 1u64;
        let mut dirty = std::collections::BTreeSet::new();
        let mut dirtied = 0;
        for _ in 0..10_000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (line, core) = (x >> 40 & 63, (x >> 60 & 1) as usize);
            match x >> 56 & 3 {
                0 => memory.read(core, line * 64, 64),
                1 => memory.device_write(core, line * 64, 64),
                2 => memory.device_read(core, line * 64, 64),
                _ => memory.write(core, line * 64, 64),
            }
            if x >> 56 & 1 == 1 && dirty.insert(line) {
                dirtied += 1;
            }
            // Lines no longer in any cache have been written.
            dirty.retain(|l| memory.llc.has(*l) || memory.l2.iter_mut().any(|c| c.has(*l)));
        }
        assert_eq!(memory.traffic().written_lines, dirtied - dirty.len() as u64);
    }
}
