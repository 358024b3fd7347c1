//! Interfaces and CPUs of this machine, for checking a configuration against them.

use rustix::fs::{Gid, Uid};
use std::fs;
use std::str::FromStr;

/// Flag of a TAP interface (`linux/if_tun.h`), which a TUN interface does not have.
const IFF_TAP: u32 = 2;

/// Network interface of the calling thread's network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// MTU in bytes; `None` if unknown.
    pub mtu: Option<usize>,
    /// Number of receive queues; `None` if unknown.
    pub queues: Option<usize>,
    /// Set if the interface is a TAP interface; `None` if unknown.
    pub tap: Option<bool>,
}

/// Interfaces and CPUs of a machine, and what this program can use there.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// Interfaces of the network namespace.
    pub interfaces: Vec<Interface>,
    /// Online CPUs.
    pub cpus: Vec<usize>,
    /// CPUs that the process may run on.
    pub allowed: Vec<usize>,
    /// Set if the program was built with DPDK.
    pub dpdk: bool,
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
        Self { interfaces: names.map(interface).collect(), cpus, allowed, dpdk: cfg!(feature = "dpdk") }
    }

    /// Adds interfaces of these names that a running instance waits for, of which nothing else is known.
    pub fn awaiting(mut self, names: impl IntoIterator<Item = String>) -> Self {
        for name in names {
            if self.interface(&name).is_none() {
                self.interfaces.push(Interface { name, ..Interface::default() });
            }
        }
        self
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
    let tap = || match fs::read_to_string(sys.join("tun_flags")) {
        Ok(flags) => Some(u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).ok()? & IFF_TAP != 0),
        Err(why) => (why.kind() == std::io::ErrorKind::NotFound).then_some(false),
    };
    let tap = same.then(tap).flatten();
    Interface { name: name.into(), mtu: known(number("mtu")), queues: known(queues()), tap }
}

/// Returns the interface's index in the calling thread's namespace.
fn index_of(name: &str) -> Option<usize> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
    let any = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None).ok()?;
    netdevice::name_to_index(&any, name).ok().map(|index| index as usize)
}

/// Returns the id of a group, given by its name in /etc/group or by number.
pub fn group_id(group: &str) -> Option<Gid> {
    id("/etc/group", group).map(Gid::from_raw)
}

/// Returns the id of a user, given by its name in /etc/passwd or by number.
pub fn user_id(user: &str) -> Option<Uid> {
    id("/etc/passwd", user).map(Uid::from_raw)
}

fn id(file: &str, wanted: &str) -> Option<u32> {
    let known = fs::read_to_string(file).unwrap_or_default();
    let named = known.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(wanted)).then(|| fields.nth(1)?.parse().ok()).flatten()
    });
    named.or_else(|| wanted.parse().ok()).filter(|&id| id != u32::MAX)
}

/// Upper bound of CPU numbers.
pub const CPUS: usize = 4096;

/// CPU numbers in one string, such as `2,3` or `4-7`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(pub Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        cpu_list(text).map(Self)
    }
}

/// Parses a CPU list in the kernel's format, such as `0,2-4`, with CPU numbers below [`CPUS`].
///
/// Errors if a number is invalid, a range is descending, or a CPU is listed twice.
pub fn cpu_list(text: &str) -> Result<Vec<usize>, String> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| {
            let wrong = || format!("`{part}` is not a CPU number: expected a list such as `2,3` or `4-7`");
            text.parse().ok().filter(|&cpu| cpu < CPUS).ok_or_else(wrong)
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("`{part}` is a descending range: write `{last}-{first}`"));
        }
        for cpu in first..=last {
            if cpus.contains(&cpu) {
                return Err(format!("CPU {cpu} is listed twice"));
            }
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(cpu_list("3"), Ok(vec![3]));
        assert_eq!(cpu_list("0,2-4\n"), Ok(vec![0, 2, 3, 4]));
        for bad in ["", "a", "1-", "4-2", "1,1", "0-2,1", "99999", "1,,2"] {
            assert!(cpu_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn groups_have_ids() {
        assert_eq!(group_id("root").map(|id| id.as_raw()), Some(0));
        assert_eq!(group_id("1234").map(|id| id.as_raw()), Some(1234));
        assert_eq!(group_id("no such group"), None);
    }
}
