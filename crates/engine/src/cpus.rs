//! Assignment of threads to CPUs, with the topology of these CPUs.

use serde::Serialize;

/// CPUs for threads that exchange data: pairs of hyper-threads of one core come first, those of one socket after each
/// other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Placement {
    cpus: Vec<usize>,
    /// True if the first two CPUs are hyper-threads of one core.
    siblings: bool,
    /// Number of threads that have to share a CPU with another thread.
    crowded: usize,
    /// Sockets that the threads are on.
    sockets: Vec<usize>,
    /// Place of each of `cpus`.
    #[serde(skip)]
    places: Vec<Place>,
}

/// Socket and core of a CPU.
type Place = (usize, usize);

impl Placement {
    /// Returns the placement of `threads` threads on the CPUs that the process may use.
    pub fn of(threads: usize) -> rustix::io::Result<Self> {
        let set = rustix::thread::sched_getaffinity(None)?;
        let allowed = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu));
        Ok(Self::by(threads, allowed, |cpu| (socket(cpu), core(cpu))))
    }

    /// Returns the placement on the `allowed` CPUs; `place` returns the place of a CPU. The CPUs at even places of the
    /// list have the next one on the same core, as far as there are such pairs; CPUs without a partner come last,
    /// because one of them before a pair would split that pair and all after it. The list goes through one socket after
    /// the other, since a machine's numbers may alternate between them.
    fn by(threads: usize, allowed: impl Iterator<Item = usize>, place: impl Fn(usize) -> Place) -> Self {
        let mut cpus: Vec<(Place, usize)> = allowed.map(|cpu| (place(cpu), cpu)).collect();
        cpus.sort_unstable();
        let of_core = |place: Place| cpus.iter().filter(move |(other, _)| *other == place).map(|(_, cpu)| *cpu);
        let alone =
            |&(place, cpu): &(Place, usize)| of_core(place).count() % 2 == 1 && of_core(place).next_back() == Some(cpu);
        let (last, mut order): (Vec<_>, Vec<_>) = cpus.iter().copied().partition(alone);
        order.extend(last);
        let (places, cpus): (Vec<Place>, Vec<usize>) = order.into_iter().unzip();
        let siblings = places.len() > 1 && places[0] == places[1];
        let mut sockets: Vec<usize> = places.iter().take(threads).map(|(socket, _)| *socket).collect();
        sockets.sort_unstable();
        sockets.dedup();
        Self { siblings, crowded: threads.saturating_sub(cpus.len()), sockets, cpus, places }
    }

    /// Returns the CPUs, with those of a core next to each other.
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }

    /// Returns the CPUs in the order for threads that exchange nothing: a hyper-thread of each core before the second
    /// of any.
    pub fn apart(&self) -> Vec<usize> {
        let places = &self.places;
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|i| (places[..*i].iter().filter(|place| **place == places[*i]).count(), places[*i]));
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

/// Returns whether two different CPUs are hyper-threads of one core, by the kernel's word.
pub fn one_core(one: usize, other: usize) -> bool {
    one != other && core(one) == core(other)
}

/// Returns the first hyper-thread of a CPU's core, which stands for the core; the CPU itself if the kernel does not
/// say.
fn core(cpu: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    std::fs::read_to_string(path).ok().and_then(|siblings| first(&siblings)).unwrap_or(cpu)
}

/// Returns the socket of a CPU; 0 if the kernel does not say.
fn socket(cpu: usize) -> usize {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id");
    std::fs::read_to_string(path).ok().and_then(|socket| socket.trim().parse().ok()).unwrap_or(0)
}

/// Returns the first CPU of a list in the kernel's form, such as `0,20` or `0-1`.
fn first(list: &str) -> Option<usize> {
    list.trim().split([',', '-']).next()?.parse().ok()
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
        if self.places.iter().any(|(socket, _)| *socket != self.places[0].0) {
            let sockets: Vec<String> = self.sockets.iter().map(usize::to_string).collect();
            write!(f, ", on socket{} {}", if sockets.len() > 1 { "s" } else { "" }, sockets.join(", "))?;
        }
        if self.crowded > 0 { write!(f, ", {} threads share one with another", self.crowded) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the placement of `threads` threads on `allowed` CPUs of a machine whose cores have these lists of
    /// hyper-threads.
    fn placed(threads: usize, allowed: &[usize], lists: &[&str]) -> Placement {
        let core = |cpu: usize| {
            let all = |list: &str| -> Vec<usize> {
                let parts = list.split(',').map(|part| part.split('-').map(|n| n.parse().unwrap()).collect::<Vec<_>>());
                parts.flat_map(|ends| ends[0]..=*ends.last().unwrap()).collect()
            };
            lists.iter().find(|list| all(list).contains(&cpu)).map_or(cpu, |list| first(list).unwrap())
        };
        Placement::by(threads, allowed.iter().copied(), |cpu| (0, core(cpu)))
    }

    fn lists(of: std::ops::Range<usize>, list: impl Fn(usize) -> String) -> Vec<String> {
        of.map(list).collect()
    }

    #[test]
    fn a_hyper_thread_without_its_partner_splits_no_pair() {
        let far = lists(0..20, |k| format!("{k},{}", k + 20));
        let far: Vec<&str> = far.iter().map(String::as_str).collect();
        let allowed: Vec<usize> = (1..40).collect();
        let placement = placed(2, &allowed, &far);
        let expected: Vec<usize> = (1..20).flat_map(|k| [k, k + 20]).chain([20]).collect();
        assert_eq!((placement.cpus(), placement.siblings), (expected.as_slice(), true));
        // A thread for each core, in the order of cores, before the second of any.
        let apart: Vec<usize> = std::iter::once(20).chain(1..20).chain(21..40).collect();
        assert_eq!(placement.apart(), apart);

        let near = ["0-1", "2-3", "4-5"];
        assert_eq!(placed(2, &[1, 2, 3, 5], &near).cpus(), [2, 3, 1, 5]);
        // An odd number of threads of one core.
        assert_eq!(placed(2, &[0, 1, 2, 4, 5, 6], &["0-3", "4-7"]).cpus(), [0, 1, 4, 5, 2, 6]);
    }

    /// A machine whose CPU numbers alternate between two sockets, and whose hyper-threads are four numbers apart.
    #[test]
    fn one_socket_is_filled_before_the_next() {
        let two = |threads| Placement::by(threads, 0..8, |cpu| (cpu % 2, cpu % 4));
        let placement = two(4);
        assert_eq!(placement.cpus(), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(placement.apart(), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert!(placement.siblings && placement.to_string().ends_with(", on socket 0"), "{placement}");
        assert!(two(6).to_string().ends_with(", on sockets 0, 1"), "{}", two(6));
        assert!(!placed(2, &[0, 1], &[]).to_string().contains("socket"), "there is no other");
    }

    #[test]
    fn cores_of_one_thread_keep_their_order() {
        let placement = placed(5, &[0, 1, 3, 2], &[]);
        assert_eq!((placement.cpus(), placement.siblings, placement.crowded), ([0, 1, 2, 3].as_slice(), false, 1));
        assert_eq!(placement.apart(), [0, 1, 2, 3]);
        assert_eq!(placed(2, &[0, 1, 2, 3], &["0,2", "1,3"]).cpus(), [0, 2, 1, 3]);
    }

    #[test]
    fn the_kernel_says_which_cpus_are_of_one_core() {
        assert!(!one_core(0, 0), "one CPU is no pair");
        let Ok(list) = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list") else {
            return println!("SKIP: no topology");
        };
        let siblings = list.trim().split_once([',', '-']).is_some();
        assert_eq!((1..1024).any(|cpu| one_core(0, cpu)), siblings, "{list}");
    }
}
