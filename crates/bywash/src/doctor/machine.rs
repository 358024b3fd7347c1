//! Checks of machine-wide settings that reduce performance.

use super::finding::Finding;
use super::finding::Severity::Note;
use std::fs;

fn text(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// Examines the machine.
pub fn examine() -> Vec<Finding> {
    let mut found = vec![];
    let pages = text("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").and_then(|n| n.parse::<u64>().ok());
    if pages == Some(0) {
        let costs = "buffers and large tables use 4 KiB pages, or transparent huge pages if the kernel provides them";
        let mend = "sysctl -w vm.nr_hugepages=512 before bywash starts";
        found.push(Finding::new(Note, "no-hugepages", "no huge pages are reserved", costs).mend(mend));
    }
    if let Some(governor) = text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").filter(|g| g != "performance")
    {
        let what = format!("the CPU frequency governor is `{governor}`");
        let mend = "cpupower frequency-set -g performance";
        found.push(Finding::new(Note, "governor", what, "an idle CPU is slow to speed up").mend(mend));
    }
    if text("/sys/devices/system/cpu/isolated").is_some_and(|cpus| cpus.is_empty()) {
        let costs = "other programs take CPU time from workers, which delays some packets";
        let mend = "isolcpus=LIST on the kernel command line, and the same list in [workers] cpus";
        found.push(Finding::new(Note, "no-isolation", "no CPU is isolated", costs).mend(mend));
    }
    if let Some(release) = text("/proc/sys/kernel/osrelease").filter(|release| older(release, (6, 6))) {
        let what = format!("the kernel is {release}");
        let costs =
            "before 6.6, generic mode is generic XDP, which slows down TCP; before 6.3, drivers do not report features";
        found.push(Finding::new(Note, "old-kernel", what, costs).mend("upgrade the kernel"));
    }
    found
}

/// Returns true if a release such as `6.1.0-18-amd64` is older than the given version.
fn older(release: &str, than: (u32, u32)) -> bool {
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < than,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases() {
        assert!(older("6.1.0-18-amd64", (6, 6)) && older("5.15.0", (6, 6)));
        assert!(!older("6.6.0", (6, 6)) && !older("6.18.3", (6, 6)) && !older("10.0", (6, 6)) && !older("?", (6, 6)));
    }
}
