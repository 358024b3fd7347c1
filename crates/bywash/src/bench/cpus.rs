//! Which CPUs threads of a benchmark run on, and how near to each other those are.

use serde::Serialize;

/// CPUs for threads that work together: siblings on one core first, where there are any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    cpus: Vec<usize>,
    /// Whether the first two are threads of one core.
    siblings: bool,
    /// Threads that share a CPU with another; 0 where there are enough.
    crowded: usize,
}

impl Placement {
    /// For `threads` threads.
    pub fn of(threads: usize) -> anyhow::Result<Self> {
        let set = rustix::thread::sched_getaffinity(None)?;
        let allowed: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
        let siblings = |cpu: usize| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
            std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
        };
        let mut cpus = allowed;
        // By core, the cores by their first thread: a stable sort keeps neighbours together.
        cpus.sort_by_key(|cpu| siblings(*cpu).split([',', '-']).next().and_then(|n| n.parse().ok()).unwrap_or(*cpu));
        let one_core = cpus.len() > 1 && !siblings(cpus[0]).is_empty() && siblings(cpus[0]) == siblings(cpus[1]);
        Ok(Self { siblings: one_core, crowded: threads.saturating_sub(cpus.len()), cpus })
    }

    /// The CPUs, those of one core together.
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// The CPU of a thread.
    pub fn cpu(&self, thread: usize) -> usize {
        self.cpus[thread % self.cpus.len()]
    }

    /// Whether each of `threads` threads has a CPU to itself.
    pub fn enough_for(&self, threads: usize) -> bool {
        threads <= self.cpus.len()
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.siblings { "the first two on one core" } else { "a core each" };
        write!(f, "{} CPUs, {how}", self.cpus.len())?;
        if self.crowded > 0 { write!(f, ", {} threads share one with another", self.crowded) } else { Ok(()) }
    }
}
