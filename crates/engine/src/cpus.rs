//! Assignment of threads to CPUs, with the topology of these CPUs.

use serde::Serialize;

/// CPUs for threads that exchange data: hyper-threads of the same core come first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    cpus: Vec<usize>,
    /// True if the first two CPUs are hyper-threads of one core.
    siblings: bool,
    /// Number of threads that have to share a CPU with another thread.
    crowded: usize,
}

impl Placement {
    /// Returns the placement of `threads` threads on the CPUs that the process may use.
    pub fn of(threads: usize) -> rustix::io::Result<Self> {
        let set = rustix::thread::sched_getaffinity(None)?;
        let allowed: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
        let mut cpus = allowed;
        // Sort by the first hyper-thread of the core; the sort is stable, so CPUs of a core stay together.
        cpus.sort_by_key(|cpu| core(*cpu));
        let one_core = cpus.len() > 1 && !siblings(cpus[0]).is_empty() && siblings(cpus[0]) == siblings(cpus[1]);
        Ok(Self { siblings: one_core, crowded: threads.saturating_sub(cpus.len()), cpus })
    }

    /// Returns the CPUs, with those of a core next to each other.
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// Returns the CPUs in the order for threads that exchange nothing: a hyper-thread of each core before the second
    /// of any.
    pub fn apart(&self) -> Vec<usize> {
        let cores: Vec<usize> = self.cpus.iter().map(|cpu| core(*cpu)).collect();
        let mut order: Vec<usize> = (0..cores.len()).collect();
        // The sort is stable.
        order.sort_by_key(|i| cores[..*i].iter().filter(|core| **core == cores[*i]).count());
        order.into_iter().map(|i| self.cpus[i]).collect()
    }

    /// Returns the CPU of a thread.
    pub fn cpu(&self, thread: usize) -> usize {
        self.cpus[thread % self.cpus.len()]
    }

    /// Returns true if each of `threads` threads has its own CPU.
    pub fn enough_for(&self, threads: usize) -> bool {
        threads <= self.cpus.len()
    }
}

/// Returns the list of the hyper-threads of a CPU's core, in the kernel's form; empty if it is not known.
fn siblings(cpu: usize) -> String {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    std::fs::read_to_string(path).unwrap_or_default().trim().to_string()
}

/// Returns the first hyper-thread of a CPU's core, which stands for the core.
fn core(cpu: usize) -> usize {
    siblings(cpu).split([',', '-']).next().and_then(|n| n.parse().ok()).unwrap_or(cpu)
}

/// Returns the CPU of a worker by default, out of `allowed`; `None` if that is empty. The first CPU usually handles
/// most of the machine's other work and comes last.
pub fn of_worker(worker: usize, allowed: &[usize]) -> Option<usize> {
    allowed.get((worker + 1) % allowed.len().max(1)).copied()
}

/// Makes the calling thread run on this CPU only.
pub(crate) fn pin(cpu: usize) -> rustix::io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let how = if self.siblings { "the first two on one core" } else { "a core each" };
        write!(f, "{} CPUs, {how}", self.cpus.len())?;
        if self.crowded > 0 { write!(f, ", {} threads share one with another", self.crowded) } else { Ok(()) }
    }
}
