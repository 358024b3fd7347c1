//! Measurement of memory traffic, by the counters of the memory controllers or else by the processor's memory bandwidth
//! monitoring (resctrl).
//!
//! Both count the traffic of the whole machine, not of one program: other programs are included.

use crate::pmu;
use perf_event::events::Dynamic;
use perf_event::{Builder, Counter, ReadFormat};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes per transfer, if the kernel gives an event no scale.
const LINE: f64 = 64.0;
/// Kernel names of a memory controller's read and write transfers (arch/x86/events/intel/uncore_*.c).
const EVENTS: [[&str; 2]; 4] = [
    ["cas_count_read", "cas_count_write"],
    ["read", "write"],
    ["data_read", "data_write"],
    ["data_reads", "data_writes"],
];
/// Event code of the column commands (CAS) of AMD's memory controllers, each of which moves a line, and the values of
/// `rdwrmask` that select reads and writes. The kernel names no events of these controllers
/// (arch/x86/events/amd/uncore.c); perf does (tools/perf/pmu-events/arch/x86/amdzen4/memory-controller.json,
/// umc_cas_cmd.rd and umc_cas_cmd.wr).
const UMC_CAS: u64 = 0x0a;
const UMC_MASKS: [u64; 2] = [1, 2];

/// Traffic between memory and processors since the counters were opened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moved {
    /// Bytes read; `None` if the source does not distinguish reads from writes.
    pub read_bytes: Option<f64>,
    /// Bytes written; `None` if the source does not distinguish reads from writes.
    pub written_bytes: Option<f64>,
    /// Bytes in both directions.
    pub bytes: f64,
    /// Name of the source of the figures.
    pub source: &'static str,
}

/// Counters of memory traffic.
pub struct Bandwidth(Source);

enum Source {
    /// Counters of reads and writes per controller, with the bytes that one count stands for.
    Controllers(Vec<[(Counter, f64); 2]>),
    /// One file per cache domain, and the sum of all when opened.
    Resctrl(Vec<PathBuf>, u64),
}

impl Bandwidth {
    /// Opens counters of the whole machine.
    ///
    /// # Errors
    /// Returns the reason for each kind of counter that is not available.
    pub fn open() -> Result<Self, String> {
        Self::open_in(Path::new("/sys"))
    }

    fn open_in(sys: &Path) -> Result<Self, String> {
        let controllers = match controllers(sys) {
            Ok(counters) => return Ok(Self(Source::Controllers(counters))),
            Err(why) => why,
        };
        let files = resctrl(sys);
        if files.is_empty() {
            return Err(format!("{controllers}; resctrl: no mon_data/*/mbm_total_bytes below /sys/fs/resctrl"));
        }
        match sum(&files) {
            Ok(before) => Ok(Self(Source::Resctrl(files, before))),
            Err(why) => Err(format!("{controllers}; resctrl: {why}")),
        }
    }

    /// Returns the traffic since the counters were opened.
    ///
    /// # Errors
    /// Returns the kernel's error, or an error naming a monitoring domain that has no value at the moment.
    pub fn read(&mut self) -> io::Result<Moved> {
        match &mut self.0 {
            Source::Controllers(counters) => {
                let mut sums = [0.0; 2];
                for both in counters {
                    for (sum, (counter, bytes)) in sums.iter_mut().zip(both) {
                        *sum += pmu::estimate(counter)? * *bytes;
                    }
                }
                let [read, written] = sums;
                let source = "measured: memory controllers";
                Ok(Moved { read_bytes: Some(read), written_bytes: Some(written), bytes: read + written, source })
            }
            Source::Resctrl(files, before) => {
                let bytes = sum(files)?.saturating_sub(*before) as f64;
                Ok(Moved { read_bytes: None, written_bytes: None, bytes, source: "measured: resctrl" })
            }
        }
    }
}

/// Opens the counters of every memory controller. A machine may have two kinds of them; the first that opens is used.
fn controllers(sys: &Path) -> Result<Vec<[(Counter, f64); 2]>, String> {
    let devices = sys.join("bus/event_source/devices");
    let mut names: Vec<String> = std::fs::read_dir(&devices)
        .map(|dir| dir.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.retain(|name| name.starts_with("uncore_imc") || name.starts_with("amd_umc"));
    names.sort_unstable();
    if names.is_empty() {
        return Err("memory controllers: no uncore_imc or amd_umc among the kernel's event sources".into());
    }
    // Both kinds count the same transfers.
    let (free, programmed): (Vec<String>, Vec<String>) = names.into_iter().partition(|n| n.contains("free_running"));
    let mut why = String::new();
    for kind in [programmed, free].into_iter().filter(|kind| !kind.is_empty()) {
        match kind.iter().map(|name| controller(&devices.join(name))).collect::<Result<Vec<_>, _>>() {
            Ok(all) => return Ok(all.into_iter().flatten().collect()),
            Err(of_kind) => why = of_kind,
        }
    }
    Err(format!("memory controllers: {why}"))
}

/// Returns the event that counts the reads (`which` = 0) or writes (1) of a controller, and the bytes that one count
/// stands for.
fn event(controller: &Path, which: usize) -> io::Result<(Dynamic, f64)> {
    let mut description = pmu::description(controller)?;
    let mut bytes = LINE;
    if controller.file_name().is_some_and(|name| name.to_string_lossy().starts_with("amd_umc")) {
        description.field("event", UMC_CAS)?.field("rdwrmask", UMC_MASKS[which])?;
    } else {
        let known = |events: &&[&str; 2]| events.iter().all(|event| controller.join("events").join(event).exists());
        let unnamed = || io::Error::other("the kernel names no event for reads and writes");
        description.event(EVENTS.iter().find(known).ok_or_else(unnamed)?[which])?;
        let unit = match description.unit()?.as_deref() {
            Some("MiB") => 1048576.0,
            Some("KiB") => 1024.0,
            _ => 1.0,
        };
        bytes = description.scale()?.map_or(LINE, |scale| scale * unit);
    }
    Ok((description.build().map_err(io::Error::other)?, bytes))
}

/// Opens the counters of one controller, on each CPU in its cpumask: one per package.
fn controller(pmu: &Path) -> Result<Vec<[(Counter, f64); 2]>, String> {
    let name = pmu.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let cpus = std::fs::read_to_string(pmu.join("cpumask")).unwrap_or_default();
    let cpus = cpu_list(&cpus).ok_or_else(|| format!("{name}: invalid cpumask `{}`", cpus.trim()))?;
    let open = |which: usize, cpu: usize| -> io::Result<(Counter, f64)> {
        let (event, bytes) = event(pmu, which)?;
        let mut builder = Builder::new(event);
        builder.any_pid().one_cpu(cpu).include_kernel().include_hv().enabled(true);
        builder.read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
        Ok((builder.build()?, bytes))
    };
    let both = |cpu: usize| Ok([open(0, cpu)?, open(1, cpu)?]);
    cpus.into_iter().map(both).collect::<io::Result<Vec<_>>>().map_err(|why| match why.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("{name}: not permitted: try sudo, or lower /proc/sys/kernel/perf_event_paranoid to 0")
        }
        _ => format!("{name}: {why}"),
    })
}

/// Parses a CPU list such as `0,24` or `0-3`.
fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = vec![];
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    (!cpus.is_empty()).then_some(cpus)
}

/// Returns the files that count the traffic of the cache domains.
fn resctrl(sys: &Path) -> Vec<PathBuf> {
    let Ok(domains) = std::fs::read_dir(sys.join("fs/resctrl/mon_data")) else { return vec![] };
    let mut files: Vec<PathBuf> = domains.flatten().map(|d| d.path().join("mbm_total_bytes")).collect();
    files.retain(|file| file.exists());
    files.sort_unstable();
    files
}

fn sum(files: &[PathBuf]) -> io::Result<u64> {
    let of = |file: &PathBuf| {
        let text = std::fs::read_to_string(file)?;
        // "Unavailable" briefly after a change of groups, "Unassigned" if there are too few counters.
        text.trim().parse::<u64>().map_err(|_| io::Error::other(format!("{}: {}", file.display(), text.trim())))
    };
    files.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn put(at: PathBuf, text: &str) {
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        fs::write(at, text).unwrap();
    }

    #[test]
    fn nothing_there() {
        let sys = tempfile::tempdir().unwrap();
        let why = Bandwidth::open_in(sys.path()).err().unwrap();
        assert!(why.contains("no uncore_imc or amd_umc") && why.contains("resctrl"), "{why}");
    }

    #[test]
    fn resctrl_sums_domains() {
        let sys = tempfile::tempdir().unwrap();
        let file = |n: usize| sys.path().join(format!("fs/resctrl/mon_data/mon_L3_{n:02}/mbm_total_bytes"));
        put(file(0), "1000\n");
        put(file(1), "500\n");
        let mut bandwidth = Bandwidth::open_in(sys.path()).unwrap();
        put(file(0), "4000\n");
        put(file(1), "700\n");
        let moved = bandwidth.read().unwrap();
        assert_eq!((moved.bytes, moved.read_bytes, moved.source), (3200.0, None, "measured: resctrl"));
        put(file(1), "Unavailable\n");
        assert!(bandwidth.read().unwrap_err().to_string().contains("Unavailable"));
        assert!(Bandwidth::open_in(sys.path()).err().unwrap().contains("mon_L3_01"));
    }

    /// A fake memory controller whose events are the kernel's CPU clock, which every machine has.
    #[test]
    fn controllers_are_read_by_their_scale() {
        let sys = tempfile::tempdir().unwrap();
        let pmu = sys.path().join("bus/event_source/devices/uncore_imc_0");
        put(pmu.join("type"), "1\n");
        put(pmu.join("format/event"), "config:0-7\n");
        // None of the events uses this format.
        put(pmu.join("format/umask"), "config:8-15\n");
        put(pmu.join("cpumask"), "0\n");
        for (event, scale) in [("cas_count_read", "2"), ("cas_count_write", "1")] {
            put(pmu.join("events").join(event), "event=0x00\n");
            put(pmu.join("events").join(format!("{event}.scale")), scale);
            put(pmu.join("events").join(format!("{event}.unit")), "KiB\n");
        }
        match Bandwidth::open_in(sys.path()) {
            Ok(mut bandwidth) => {
                // The clocks start one after the other, and another process may have the CPU in between: that part
                // of the whole shrinks.
                let start = std::time::Instant::now();
                loop {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                    let moved = bandwidth.read().unwrap();
                    let (read, written) = (moved.read_bytes.unwrap(), moved.written_bytes.unwrap());
                    if written > 1024.0 && (1.5..2.5).contains(&(read / written)) {
                        break;
                    }
                    assert!(start.elapsed().as_secs() < 60, "{moved:?}");
                }
            }
            // Watching whole CPUs requires root.
            Err(why) => assert!(why.contains("uncore_imc_0: ") && !why.contains("missing"), "{why}"),
        }
        fs::remove_file(pmu.join("events/cas_count_write")).unwrap();
        let why = Bandwidth::open_in(sys.path()).err().unwrap();
        assert!(why.contains("uncore_imc_0: the kernel names no event"), "{why}");
    }

    /// AMD's controllers, whose events have no names.
    #[test]
    fn events_without_names_are_put_together_from_fields() {
        let sys = tempfile::tempdir().unwrap();
        let pmu = sys.path().join("bus/event_source/devices/amd_umc_0");
        // The raw events of the processor, which accept these codes or are not there.
        put(pmu.join("type"), "4\n");
        put(pmu.join("cpumask"), "0\n");
        put(pmu.join("format/event"), "config:0-7\n");
        put(pmu.join("format/rdwrmask"), "config:8-9\n");
        for (which, config) in ["config: 266,", "config: 522,"].into_iter().enumerate() {
            let (event, bytes) = event(&pmu, which).unwrap();
            assert_eq!(bytes, 64.0);
            assert!(format!("{event:?}").contains(config), "{event:?}");
        }
        if let Err(why) = Bandwidth::open_in(sys.path()) {
            assert!(why.contains("amd_umc_0: "), "{why}");
        }
        fs::remove_file(pmu.join("format/rdwrmask")).unwrap();
        let why = Bandwidth::open_in(sys.path()).err().unwrap();
        assert!(why.contains("amd_umc_0: ") && why.contains("rdwrmask"), "{why}");
    }

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpu_list("0,24\n"), Some(vec![0, 24]));
        assert_eq!(cpu_list("0-2,5"), Some(vec![0, 1, 2, 5]));
        assert_eq!((cpu_list(""), cpu_list("none")), (None, None));
    }

    #[test]
    fn this_machine_counts_or_says_why_not() {
        match Bandwidth::open() {
            Ok(mut bandwidth) => assert!(bandwidth.read().unwrap().bytes >= 0.0),
            Err(why) => assert!(why.contains("memory controllers: "), "{why}"),
        }
    }
}
