//! Cleanup after killed runs: the name of a namespace contains the process ID of its creator.

use crate::command;
use crate::namespace::RUN_DIR;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;

pub(crate) const PREFIX: &str = "bw-";

/// Removes every `bw-<pid>-*` namespace whose creator is gone, with the processes in it. Returns the names.
///
/// [`crate::Namespace::new`] calls it once per process. A creator in another PID namespace appears dead: do not share
/// /run/netns between containers.
pub fn sweep() -> Vec<String> {
    let stale: Vec<String> = ours().into_iter().filter(|(_, pid)| !is_alive(*pid)).map(|(name, _)| name).collect();
    for name in &stale {
        remove(name);
    }
    stale
}

/// Removes every namespace of this process, with the processes in it. For exits without unwinding, such as by a signal.
pub fn sweep_own() {
    for (name, _) in ours().into_iter().filter(|(_, pid)| *pid == std::process::id()) {
        remove(&name);
    }
}

/// Returns every namespace named in this crate's format, with its creator's process ID.
fn ours() -> Vec<(String, u32)> {
    let Ok(entries) = fs::read_dir(RUN_DIR) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let pid = maker(&name)?;
            Some((name, pid))
        })
        .collect()
}

fn maker(name: &str) -> Option<u32> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let pid = parts.next()?.parse().ok()?;
    parts.next()?.parse::<u32>().ok()?;
    parts.next()?;
    Some(pid)
}

fn is_alive(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Kills the processes in a namespace of this crate and deletes it. Ignores errors, because it runs in `Drop`.
pub(crate) fn remove(name: &str) {
    let pids = command::run(&["ip", "netns", "pids", name], None, command::DEFAULT_TIMEOUT);
    // A process left inside would keep the devices after the name is gone.
    let pids = pids.iter().flat_map(|output| output.stdout.split_whitespace()).filter_map(|pid| pid.parse().ok());
    for pid in pids.filter_map(Pid::from_raw).filter(|pid| *pid != rustix::process::getpid()) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let _ = command::run(&["ip", "netns", "del", name], None, command::DEFAULT_TIMEOUT);
}

#[cfg(test)]
mod tests {
    use super::maker;

    #[test]
    fn only_our_own_names_are_taken() {
        assert_eq!(maker("bw-123-0-a"), Some(123));
        assert_eq!(maker("bw-123-0-a-b"), Some(123));
        for foreign in ["bw-x-0-a", "bw-123", "bw-123-", "bw-123-a-b", "blue", "cni-1-2-3", "bw-4294967296-1-a"] {
            assert_eq!(maker(foreign), None, "{foreign}");
        }
    }
}
