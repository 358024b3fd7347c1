//! Files below /proc/sys and /sys that `bywash doctor --fix` changes, and `bywash restore` puts back.
//!
//! `bywash restore` writes them as root, directed by a journal that an instance in its sandbox could have written. So
//! only paths of a list are accepted, with values that the doctor changes, and only files of procfs and sysfs.

use anyhow::{Context as _, ensure};
use bywash_port::af_xdp::is_interface_name;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstatfs, openat, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::io::Write;

/// IFF_UP (linux/if.h).
const UP: u32 = 1;
/// PROC_SUPER_MAGIC and SYSFS_MAGIC (linux/magic.h).
const PROC: u64 = 0x9fa0;
const SYSFS: u64 = 0x6265_6572;
/// Number of attempts to open a file while others are being renamed or mounted.
const TRIES: usize = 1000;
/// Longest mask of CPUs, in bytes: 8192 CPUs.
const LONGEST_MASK: usize = 8192 / 32 * 9;

/// Kind of setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// Flags of an interface that was down.
    Flags,
    /// CPUs to which a queue's packets are steered.
    Steering,
    /// Forwarding, which was off.
    Forwarding,
    /// Redirects, which were accepted.
    Redirects,
}

/// Returns the kind of setting that a path names; `None` if the doctor does not change it.
fn kind(path: &str) -> Option<Setting> {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["", "sys", "class", "net", interface, "flags"] if is_interface_name(interface) => Some(Setting::Flags),
        ["", "sys", "class", "net", interface, "queues", queue, "rps_cpus"] if is_interface_name(interface) => {
            let number = queue.strip_prefix("rx-").filter(|n| n.len() < 6 && n.bytes().all(|c| c.is_ascii_digit()));
            number.filter(|n| !n.is_empty()).map(|_| Setting::Steering)
        }
        // These two apply to all interfaces.
        ["", "proc", "sys", "net", "ipv4", "conf", "all" | "default", _] => None,
        ["", "proc", "sys", "net", "ipv4", "conf", interface, "forwarding"] if is_interface_name(interface) => {
            Some(Setting::Forwarding)
        }
        ["", "proc", "sys", "net", "ipv4", "conf", interface, "accept_redirects"] if is_interface_name(interface) => {
            Some(Setting::Redirects)
        }
        ["", "proc", "sys", "net", "ipv6", "conf", "all", "forwarding"] => Some(Setting::Forwarding),
        _ => None,
    }
}

fn flags(text: &str) -> Option<u32> {
    let digits = text.strip_prefix("0x")?;
    digits.bytes().all(|c| c.is_ascii_hexdigit()).then(|| u32::from_str_radix(digits, 16).ok())?
}

/// Checks that a journal may have this path and the value that it had. Errors with the reason if not.
pub fn check(path: &str, was: &str) -> Result<(), String> {
    let Some(kind) = kind(path) else { return Err(format!("Bywash does not change {path:?}")) };
    let right = match kind {
        Setting::Flags => flags(was).is_some_and(|flags| flags & UP == 0),
        Setting::Steering => {
            (1..=LONGEST_MASK).contains(&was.len()) && was.bytes().all(|c| c.is_ascii_hexdigit() || c == b',')
        }
        Setting::Forwarding => was == "0",
        Setting::Redirects => was == "1",
    };
    if right { Ok(()) } else { Err(format!("Bywash does not change the value {was:?} in {path:?}")) }
}

/// Puts back the value that a setting had. For an interface's flags, this only sets it down again.
pub fn restore(path: &str, was: &str) -> anyhow::Result<()> {
    if kind(path) != Some(Setting::Flags) {
        return write(path, was);
    }
    let now = std::fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let now = flags(now.trim()).with_context(|| format!("{path} has no flags: {now:?}"))?;
    write(path, &format!("{:#x}", now & !UP))
}

/// Writes a setting. Errors if the path leads to anything but the kernel's own file.
pub fn write(path: &str, value: &str) -> anyhow::Result<()> {
    let failed = || format!("cannot write {value} to {path}");
    ensure!(kind(path).is_some(), "Bywash does not change the setting {path}");
    // The interfaces of /sys/class/net are links, to directories of /sys.
    let (root, below, system, resolve) = match (path.strip_prefix("/proc/sys/"), path.strip_prefix("/sys/")) {
        (Some(below), _) => ("/proc/sys", below, PROC, ResolveFlags::NO_SYMLINKS),
        (None, below) => ("/sys", below.unwrap_or_default(), SYSFS, ResolveFlags::NO_MAGICLINKS),
    };
    let safely = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(CWD, root, safely | OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).with_context(failed)?;
    let open = || openat2(&directory, below, safely | OFlags::WRONLY, Mode::empty(), ResolveFlags::BENEATH | resolve);
    // Links below /sys contain `..`, which the kernel does not follow while anything is renamed or mounted
    // (openat2(2)).
    let mut tries = (1..TRIES).map(|_| open()).skip_while(|file| matches!(file, Err(Errno::AGAIN)));
    let file = tries.next().unwrap_or_else(open).with_context(failed)?;
    let of = fstatfs(&file).with_context(failed)?.f_type as u64;
    ensure!(of == system, "{}: the file is not the kernel's: something else is mounted there", failed());
    File::from(file).write_all(value.as_bytes()).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_doctor_changes_is_accepted() {
        for (path, was) in [
            ("/sys/class/net/eth0/flags", "0x1002"),
            ("/sys/class/net/eth0.100/queues/rx-0/rps_cpus", "3"),
            ("/sys/class/net/eth0/queues/rx-127/rps_cpus", "ffffffff,00000001"),
            ("/proc/sys/net/ipv4/conf/eth0/forwarding", "0"),
            ("/proc/sys/net/ipv6/conf/all/forwarding", "0"),
            ("/proc/sys/net/ipv4/conf/eth0/accept_redirects", "1"),
        ] {
            assert_eq!(check(path, was), Ok(()), "{path}");
        }
    }

    #[test]
    fn every_other_path_and_value_is_refused() {
        for (path, was) in [
            ("/etc/passwd", "0"),
            ("", "0"),
            ("/", "0"),
            ("sys/class/net/eth0/flags", "0x2"),
            ("/proc/sys/kernel/core_pattern", "|/tmp/x"),
            ("/proc/sys/net/ipv4/conf/../../../kernel/core_pattern/forwarding", "0"),
            ("/proc/sys/net/ipv4/conf/../forwarding", "0"),
            ("/proc/sys/net/ipv4/conf/./forwarding", "0"),
            ("/proc/sys/net/ipv4/conf//forwarding", "0"),
            ("/proc/sys/net/ipv4/conf/all/forwarding", "0"),
            ("/proc/sys/net/ipv4/conf/default/forwarding", "0"),
            ("/proc/sys/net/ipv4/conf/all/accept_redirects", "1"),
            ("/proc/sys/net/ipv4/conf/eth0/accept_redirects", "0"),
            ("/proc/sys/net/ipv4/conf/eth0/forwarding/", "0"),
            ("/proc/sys/net/ipv4/conf/eth0/rp_filter", "0"),
            ("/proc/sys/net/ipv6/conf/eth0/forwarding", "0"),
            ("/sys/class/net/eth0/device/driver/unbind", "0"),
            ("/sys/class/net/eth0/mtu", "68"),
            ("/sys/class/net/../../kernel/flags", "0x2"),
            ("/sys/class/net/eth0/queues/../flags", "0x2"),
            ("/sys/class/net/eth0/queues/rx-/rps_cpus", "1"),
            ("/sys/class/net/eth0/queues/rx-0/../rps_cpus", "1"),
            ("/sys/class/net/eth0/queues/rx-..0/rps_cpus", "1"),
            ("/sys/class/net/eth0/queues/tx-0/rps_cpus", "1"),
            ("/sys/class/net/eth0/queues/rx-0/rps_flow_cnt", "1"),
            // Paths of the list, and values that the doctor does not change.
            ("/sys/class/net/eth0/flags", "0x1003"),
            ("/sys/class/net/eth0/flags", "4098"),
            ("/sys/class/net/eth0/flags", "0x+2"),
            ("/sys/class/net/eth0/flags", "0x2\n0x3"),
            ("/sys/class/net/eth0/queues/rx-0/rps_cpus", ""),
            ("/sys/class/net/eth0/queues/rx-0/rps_cpus", "all"),
            ("/proc/sys/net/ipv4/conf/eth0/forwarding", "1"),
            ("/proc/sys/net/ipv6/conf/all/forwarding", "0\n1"),
        ] {
            assert!(check(path, was).is_err(), "{path} {was}");
            assert!(kind(path).is_some() || write(path, was).is_err(), "{path}");
        }
    }

    #[test]
    fn a_missing_interface_is_an_error() {
        for path in ["/proc/sys/net/ipv4/conf/nosuchif0/forwarding", "/sys/class/net/nosuchif0/queues/rx-0/rps_cpus"] {
            let why = format!("{:#}", write(path, "0").unwrap_err());
            assert!(why.contains(&format!("cannot write 0 to {path}")), "{why}");
        }
    }
}
