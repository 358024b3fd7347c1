//! Interfaces and CPUs of this machine, for checking a configuration against them.

use crate::cli::cpu_list;
use std::fs;

/// Network interface of the calling thread's network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    /// MTU in bytes; `None` if unknown.
    pub mtu: Option<usize>,
    /// Number of receive queues; `None` if unknown.
    pub queues: Option<usize>,
}

/// Interfaces and CPUs of a machine.
#[derive(Clone, Debug, Default)]
pub struct Host {
    pub interfaces: Vec<Interface>,
    /// Online CPUs.
    pub cpus: Vec<usize>,
    /// CPUs that the process may run on.
    pub allowed: Vec<usize>,
}

impl Host {
    /// Returns the current interfaces and CPUs of this machine.
    pub fn this() -> Self {
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        let allowed: Vec<usize> = match rustix::thread::sched_getaffinity(None) {
            Ok(set) => (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
            Err(_) => Vec::new(),
        };
        let cpus = cpu_list(&online).unwrap_or_else(|_| allowed.clone());
        // The thread's namespace: /sys/class/net shows the namespace in which it was mounted.
        let table = fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        let names = table.lines().skip(2).filter_map(|line| Some(line.rsplit_once(':')?.0.trim()));
        Self { interfaces: names.map(interface).collect(), cpus, allowed }
    }

    /// Returns the interface with that name.
    pub fn interface(&self, name: &str) -> Option<&Interface> {
        self.interfaces.iter().find(|interface| interface.name == name)
    }
}

fn interface(name: &str) -> Interface {
    let sys = std::path::Path::new("/sys/class/net").join(name);
    let number = |file: &str| fs::read_to_string(sys.join(file)).ok()?.trim().parse::<usize>().ok();
    // /sys may show another namespace with an interface of the same name: compare the index.
    let same = number("ifindex").is_some_and(|index| Some(index) == index_of(name));
    let queues = || {
        let entries = fs::read_dir(sys.join("queues")).ok()?;
        Some(entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with("rx-")).count())
    };
    let known = |value: Option<usize>| value.filter(|_| same);
    Interface { name: name.into(), mtu: known(number("mtu")), queues: known(queues()) }
}

/// Returns the interface's index in the calling thread's namespace.
fn index_of(name: &str) -> Option<usize> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
    let any = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    netdevice::name_to_index(&any, name).ok().map(|index| index as usize)
}
