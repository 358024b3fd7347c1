//! NUMA nodes of CPUs, from sysfs.

use std::path::Path;

/// Directory of the machine's CPUs and nodes.
const SYSTEM: &str = "/sys/devices/system";

/// Place of the memory of a pool whose configuration names a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Bound to this NUMA node.
    Node(u32),
    /// Not bound, because the machine has one NUMA node.
    OneNode,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(node) => write!(f, "NUMA node {node}"),
            Self::OneNode => f.write_str("not bound: one NUMA node"),
        }
    }
}

impl Place {
    /// Returns where memory for this CPU belongs; `None` if there is no such CPU.
    pub(crate) fn of(cpu: usize) -> Option<Self> {
        Self::under(Path::new(SYSTEM), cpu)
    }

    fn under(system: &Path, cpu: usize) -> Option<Self> {
        let numbers = |directory: &Path| -> Option<Vec<u32>> {
            let names = std::fs::read_dir(directory).ok()?.flatten().map(|entry| entry.file_name());
            Some(names.filter_map(|name| name.to_str()?.strip_prefix("node")?.parse().ok()).collect())
        };
        let own = numbers(&system.join(format!("cpu/cpu{cpu}")))?;
        // A kernel without NUMA has no nodes.
        let nodes = numbers(&system.join("node")).unwrap_or_default();
        Some(own.first().filter(|_| nodes.len() > 1).map_or(Self::OneNode, |node| Self::Node(*node)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn cpus_have_nodes() {
        let system = tempfile::tempdir().unwrap();
        let place = |cpu| Place::under(system.path(), cpu);
        let make = |path: &str| std::fs::create_dir_all(system.path().join(path)).unwrap();
        make("cpu/cpu0/topology");
        assert_eq!((place(0), place(1)), (Some(Place::OneNode), None), "a kernel without NUMA");
        make("cpu/cpu0/node0");
        make("node/node0");
        assert_eq!(place(0), Some(Place::OneNode));
        make("node/node1");
        make("cpu/cpu5/node1");
        assert_eq!((place(0), place(5), place(6)), (Some(Place::Node(0)), Some(Place::Node(1)), None));
    }
}
