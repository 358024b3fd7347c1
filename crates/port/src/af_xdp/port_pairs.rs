//! Counters of the frames that the programs forwarded from one port to another.

use super::abi::{PORTS, Traffic};
use super::shared::Words;

/// Counters of frames forwarded between ports.
pub(super) struct PortPairs {
    words: Words,
    cpus: usize,
}

impl PortPairs {
    /// Words per CPU.
    pub const OF_A_CPU: usize = (PORTS * PORTS) as usize * Traffic::WORDS;

    /// Creates the counters in this memory.
    pub fn new(words: Words, cpus: usize) -> Self {
        Self { words, cpus }
    }

    /// Returns the index of the counters of frames that one CPU forwarded from one port to another.
    fn at(cpu: usize, from: u16, to: u16) -> usize {
        cpu * Self::OF_A_CPU + (usize::from(from) * PORTS as usize + usize::from(to)) * Traffic::WORDS
    }

    /// Returns the frames and bytes forwarded from one port to another, summed over CPUs.
    pub fn between(&self, from: u16, to: u16) -> Traffic {
        let mut all = Traffic::default();
        for cpu in 0..self.cpus {
            let at = Self::at(cpu, from, to);
            all.frames = all.frames.wrapping_add(self.words.load(at));
            all.bytes = all.bytes.wrapping_add(self.words.load(at + 1));
        }
        all
    }

    /// Returns the frames received by a port and forwarded, per sending CPU.
    pub fn by_cpu(&self, from: u16) -> Vec<u64> {
        let sent =
            |cpu| (0..PORTS as u16).map(|to| self.words.load(Self::at(cpu, from, to))).fold(0, u64::wrapping_add);
        (0..self.cpus).map(sent).collect()
    }
}
