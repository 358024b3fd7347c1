//! Usual pool usage, sampled from time to time.

/// Samples kept for the median.
const KEPT: usize = 1024;

/// Latest samples of the number of frames in use, and the maximum of all samples.
#[derive(Default)]
pub(super) struct OccupancySamples {
    samples: Vec<u32>,
    next: usize,
    peak: usize,
}

impl OccupancySamples {
    pub fn add(&mut self, in_use: usize) {
        self.peak = self.peak.max(in_use);
        if self.samples.len() < KEPT {
            self.samples.push(in_use as u32);
        } else {
            self.samples[self.next] = in_use as u32;
        }
        self.next = (self.next + 1) % KEPT;
    }

    /// Returns the median of the samples kept; `None` before the first.
    pub fn median(&self) -> Option<usize> {
        let mut sorted = self.samples.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).map(|n| *n as usize)
    }

    pub fn peak(&self) -> usize {
        self.peak
    }
}
