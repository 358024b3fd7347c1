//! Hardware counters available on this machine, and the reasons for those that are not.

use serde::Serialize;
use std::path::Path;

/// Hardware counter that would replace a modelled figure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Source {
    /// Name of what it counts.
    pub name: &'static str,
    /// Reason why it is not available; `None` if it is.
    pub missing: Option<String>,
}

/// Returns all counters that Bywash uses, available or not.
pub fn sources() -> Vec<Source> {
    sources_in(Path::new("/sys"), Path::new("/proc"))
}

/// Returns why the processor's own counters are not available; `None` if they are.
pub fn core_pmu_missing() -> Option<String> {
    sources().into_iter().next().and_then(|core| core.missing)
}

fn virtual_machine(cpuinfo: &str) -> bool {
    cpuinfo.lines().any(|l| l.starts_with("flags") && l.split_whitespace().any(|f| f == "hypervisor"))
}

fn sources_in(sys: &Path, proc: &Path) -> Vec<Source> {
    let devices = sys.join("bus/event_source/devices");
    let names: Vec<String> = std::fs::read_dir(&devices)
        .map(|dir| dir.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    let any = |prefixes: &[&str]| names.iter().any(|n| prefixes.iter().any(|p| n.starts_with(p)));
    let cpuinfo = std::fs::read_to_string(proc.join("cpuinfo")).unwrap_or_default();
    let here = if virtual_machine(&cpuinfo) { "; the hypervisor does not pass it on" } else { "" };
    let absent = |what: &str| Some(format!("no {what} among the kernel's event sources{here}"));
    let core = if any(&["cpu"]) { None } else { absent("processor PMU (cpu)") };
    let uncore =
        if any(&["uncore_imc", "amd_umc"]) { None } else { absent("memory controller PMU (uncore_imc, amd_umc)") };
    let monitoring = if sys.join("fs/resctrl/mon_data").exists() {
        None
    } else if cpuinfo.contains("cqm_mbm_total") {
        Some("resctrl is not mounted: mount -t resctrl resctrl /sys/fs/resctrl".into())
    } else {
        Some(format!("the processor does not monitor memory bandwidth (cqm_mbm_total){here}"))
    };
    vec![
        Source { name: "dTLB and LLC misses (perf_event_open)", missing: core },
        Source { name: "memory controllers (uncore)", missing: uncore },
        Source { name: "memory bandwidth monitoring (resctrl)", missing: monitoring },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_what_is_missing_and_why() {
        let dir = std::env::temp_dir().join(format!("bywash-hardware-{}", std::process::id()));
        let (sys, proc) = (dir.join("sys"), dir.join("proc"));
        std::fs::create_dir_all(sys.join("bus/event_source/devices/software")).unwrap();
        std::fs::create_dir_all(&proc).unwrap();
        std::fs::write(proc.join("cpuinfo"), "flags : fpu hypervisor cqm_mbm_total\n").unwrap();
        let missing = |sources: Vec<Source>| sources.into_iter().map(|s| s.missing).collect::<Vec<_>>();
        let all = missing(sources_in(&sys, &proc));
        assert!(all[0].as_ref().unwrap().contains("hypervisor") && all[1].as_ref().unwrap().contains("uncore_imc"));
        assert!(all[2].as_ref().unwrap().contains("mount -t resctrl"));
        for there in ["bus/event_source/devices/cpu", "bus/event_source/devices/uncore_imc_0", "fs/resctrl/mon_data"] {
            std::fs::create_dir_all(sys.join(there)).unwrap();
        }
        assert_eq!(missing(sources_in(&sys, &proc)), [None, None, None]);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
