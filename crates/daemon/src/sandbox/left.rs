//! List of what an attacker in control of the process could still do.

use super::files::Paths;
use rustix::process::Uid;
use rustix::thread::CapabilitySet;

/// Returns what an attacker inside could still do, with these capabilities, with or without a system call filter, with
/// or without a broker, with access to these files or to all, and as this user.
pub fn to_do(has: CapabilitySet, filtered: bool, broker: bool, paths: Option<&Paths>, user: Uid) -> Vec<String> {
    let mut all = vec![];
    if has.contains(CapabilitySet::NET_ADMIN) {
        all.push("read, drop, change and forge every packet that passes this network namespace".into());
        all.push("change its interfaces, addresses, routes, IPsec policies and firewall rules".into());
    } else if has.contains(CapabilitySet::NET_RAW) {
        all.push("read and forge packets".into());
    }
    if broker && filtered {
        let those = "have BPF programs loaded that are part of bywash, or lie in the directories of the configuration's \
                     files and not where it makes files itself";
        all.push(those.into());
    } else if has.contains(CapabilitySet::BPF | CapabilitySet::PERFMON) {
        all.push("load BPF programs that read the memory of the kernel and of all processes".into());
    }
    if has.contains(CapabilitySet::SYS_ADMIN) {
        all.push("take over the machine: it has CAP_SYS_ADMIN".into());
    }
    let writes = |path: &str| paths.is_none_or(|paths| paths.written.iter().any(|to| to.starts_with(path)));
    match paths {
        None => all.push("read and write every file that its user may".into()),
        Some(_) => all.push("read the files below the readable paths, and write those below the writable ones".into()),
    }
    if broker && filtered {
        let those = "have any file written in directories of recordings, sockets of bywash removed or replaced, and \
                     settings of interfaces changed that bywash changes";
        all.push(those.into());
    }
    if writes("/run/bywash") {
        all.push("leave a journal with settings of interfaces that the next start restores".into());
    }
    if broker && filtered {
        all.push("connect to the sockets in the directories of its own ones".into());
    } else if user.is_root() {
        all.push("connect to the sockets of local services as root, and ask them for what they do for root".into());
    }
    let tcp = if paths.is_none() { "talk to other machines" } else { "talk to other machines by UDP or raw packets" };
    all.push(tcp.into());
    if !filtered {
        all.push("make every system call, and so start programs".into());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_is_left_the_more_is_given_up() {
        let paths = Paths::default();
        let without = to_do(CapabilitySet::all(), false, false, None, Uid::ROOT);
        let within = to_do(super::super::KEPT, true, true, Some(&paths), Uid::from_raw(61000));
        let alone = to_do(super::super::KEPT | super::super::LOADS, true, false, Some(&paths), Uid::ROOT);
        let has = |left: &[String], what: &str| left.iter().any(|line| line.contains(what));
        for what in ["CAP_SYS_ADMIN", "every file", "start programs"] {
            assert!(has(&without, what) && !has(&within, what), "{what}");
        }
        assert!(has(&without, "every packet") && has(&within, "every packet"));
        let reads = "memory of the kernel";
        assert!(has(&without, reads) && has(&alone, reads) && !has(&within, reads), "{within:?}");
        assert!(!has(&to_do(CapabilitySet::empty(), true, true, Some(&paths), Uid::ROOT), "packet that passes"));
    }
}
