//! User of its own, as which an instance runs in its sandbox: files and processes of root are not its own any more.

use anyhow::Context as _;
use rustix::process::{DumpableBehavior, Gid, Uid, geteuid, set_dumpable_behavior};
use rustix::thread::{self, CapabilitySet};
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

/// Users that no package and no administrator creates: systemd gives them to services while they run
/// (`DynamicUser=`; systemd's "Users, Groups, UIDs and GIDs").
const DYNAMIC: RangeInclusive<u32> = 61184..=65519;
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
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    Some(Uid::from_raw(free(journal, &users, |user| Path::new(&format!("/run/systemd/dynamic-uid/{user}")).exists())))
}

/// Returns the first free user from one on that depends on the journal's path, so that instances do not share one. If
/// none is free, returns that one.
fn free(journal: &Path, users: &str, given: impl Fn(u32) -> bool) -> u32 {
    let (first, count) = (*DYNAMIC.start(), DYNAMIC.end() - DYNAMIC.start() + 1);
    let sum = journal.as_os_str().as_bytes().iter().fold(0u32, |sum, byte| sum.wrapping_mul(31) + u32::from(*byte));
    let known = |user: u32| users.lines().any(|line| line.split(':').nth(2) == Some(&user.to_string()));
    let mut all = (0..count).map(|n| first + (sum % count + n) % count);
    let wanted = first + sum % count;
    all.find(|user| !known(*user) && !given(*user)).unwrap_or(wanted)
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
        let first = free(one, "root:x:0:0::/root:/bin/sh\n", |_| false);
        assert!(DYNAMIC.contains(&first) && first != free(other, "", |_| false));
        let taken = format!("root:x:0:0::/root:/bin/sh\nsomebody:x:{first}:1::/:/bin/sh\n");
        let second = free(one, &taken, |_| false);
        assert!(DYNAMIC.contains(&second) && second != first);
        assert_ne!(free(one, &taken, |user| user == second), second);
        assert_eq!(free(one, "", |_| true), first);
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
