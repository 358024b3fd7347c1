//! The separate user that an instance runs as in its sandbox, so that root's files and processes are no longer its own.

use anyhow::Context as _;
use rustix::process::{DumpableBehavior, Gid, Uid, geteuid, set_dumpable_behavior};
use rustix::thread::{self, CapabilitySet};
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

/// Users that neither distributions nor systemd give to anybody (systemd's "Users, Groups, UIDs and GIDs").
const UNUSED: RangeInclusive<u32> = 60706..=61183;
/// Capabilities that it takes to become another user.
const BECOME: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID);

static STARTED_AS: OnceLock<Uid> = OnceLock::new();

/// Returns the user as which this process was started.
pub fn started_as() -> Uid {
    STARTED_AS.get().copied().unwrap_or_else(geteuid)
}

/// Returns a user for the instance with this journal. `None` if the process is not root, or cannot become another user.
pub fn of(journal: &Path) -> Option<Uid> {
    let has = thread::capabilities(None).ok()?.effective;
    if !geteuid().is_root() || !has.contains(BECOME) {
        return None;
    }
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let user = free(journal, &(read("/etc/passwd") + &read("/etc/group")));
    // In a user namespace.
    let denied = read("/proc/self/setgroups").trim() == "deny";
    let mapped = |map: &str| is_mapped(&read(map), user);
    (!denied && mapped("/proc/self/uid_map") && mapped("/proc/self/gid_map")).then(|| Uid::from_raw(user))
}

/// Returns the first user that is not in `known`, lines of passwd(5) and group(5), beginning with one that depends on
/// the journal's path: few instances share a user. If there is none, returns that one.
fn free(journal: &Path, known: &str) -> u32 {
    let (first, count) = (*UNUSED.start(), UNUSED.end() - UNUSED.start() + 1);
    let sum = journal.as_os_str().as_bytes().iter().fold(0u32, |sum, byte| sum.wrapping_mul(31) + u32::from(*byte));
    let is_known = |user: u32| known.lines().any(|line| line.split(':').nth(2) == Some(&user.to_string()));
    let nth = |n: u32| first + (sum % count + n) % count;
    (0..count).map(nth).find(|user| !is_known(*user)).unwrap_or(nth(0))
}

/// Returns whether a map of user_namespaces(7) has this number.
fn is_mapped(map: &str, number: u32) -> bool {
    map.lines().any(|line| {
        let fields: Vec<u64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        matches!(fields[..], [first, _, count] if (first..first + count).contains(&u64::from(number)))
    })
}

/// Makes the calling thread one of this user, and of the group with the same number, without supplementary groups. It
/// keeps its permitted capabilities, and loses the effective ones until they are set again.
pub fn change(user: Uid) -> anyhow::Result<()> {
    let _ = STARTED_AS.set(geteuid());
    let group = Gid::from_raw(user.as_raw());
    thread::set_keep_capabilities(true).context("keepcaps")?;
    thread::set_thread_groups(&[]).context("setgroups")?;
    thread::set_thread_res_gid(group, group, group).context("setresgid")?;
    thread::set_thread_res_uid(user, user, user).context("setresuid")?;
    // The change made root the owner of the process's files in /proc, and ended core dumps.
    set_dumpable_behavior(DumpableBehavior::Dumpable).context("dumpable")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_user_is_chosen_that_nobody_has() {
        let [one, other] = ["/run/bywash/settings-1.json", "/run/bywash/settings-2.json"].map(Path::new);
        let first = free(one, "root:x:0:0::/root:/bin/sh\n");
        assert!(UNUSED.contains(&first) && first != free(other, ""));
        let second = free(one, &format!("root:x:0:0::/root:/bin/sh\nsomebody:x:{first}:1::/:/bin/sh\n"));
        assert!(UNUSED.contains(&second) && second != first);
        let all: String = UNUSED.map(|user| format!("a:x:{user}:\n")).collect();
        assert_eq!(free(one, &all), first);
        assert!(is_mapped("         0          0 4294967295\n", first) && is_mapped("0 100000 65536\n", first));
        assert!(!is_mapped("0 1000 1\n", first) && !is_mapped("", first));
    }

    /// Runs in a thread of its own: the change applies only to that thread.
    #[test]
    fn capabilities_stay_and_the_rest_of_root_goes() {
        let place = tempfile::tempdir().unwrap();
        let Some(user) = of(&place.path().join("journal")) else {
            println!("SKIP: root needed");
            return;
        };
        let file = place.path().join("file");
        std::fs::write(&file, "x").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let within = || {
            change(user).unwrap();
            super::super::drop_capabilities(CapabilitySet::NET_ADMIN, None).unwrap();
            assert_eq!((geteuid(), started_as()), (user, Uid::ROOT));
            assert_eq!(thread::capabilities(None).unwrap().effective, CapabilitySet::NET_ADMIN);
            assert!(std::fs::read(&file).is_err());
            assert!(thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT).is_err());
        };
        std::thread::scope(|scope| scope.spawn(within).join()).unwrap();
        assert!(geteuid().is_root(), "only that thread's");
    }
}
