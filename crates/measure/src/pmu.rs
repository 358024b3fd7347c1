//! Hardware counters of a running thread, by `perf_event_open`.

use crate::hardware;
use crate::topdown::{Counts, Event};
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Dynamic, DynamicBuilder, Hardware, Raw};
use perf_event::{Builder, Counter, ReadFormat, Sampler};
use std::path::Path;

/// Kernel names of the processor's PMU; on processors with two kinds of core, that of the performance cores.
const PMUS: [&str; 2] = ["cpu", "cpu_core"];
/// Top-down events provided by the kernel. `OWN`: Ice Lake and later, which must form one group led by `slots`.
/// `FORMULAS`: Haswell to Cascade Lake, the inputs of the formulas.
const OWN: [&str; 5] = ["slots", "topdown-fe-bound", "topdown-bad-spec", "topdown-retiring", "topdown-be-bound"];
const FORMULAS: [&str; 4] =
    ["topdown-fetch-bubbles", "topdown-slots-issued", "topdown-slots-retired", "topdown-recovery-bubbles"];
/// Models of family 6, from Skylake to Ice Lake, that support the events in `STALLS` under these numbers.
const STALLS_ON: [u32; 13] = [0x4e, 0x5e, 0x55, 0x8e, 0x9e, 0xa5, 0xa6, 0x6a, 0x6c, 0x7d, 0x7e, 0x8c, 0x8d];
/// Event, umask and counter mask (perfmon-events.intel.com, Skylake server).
const STALLS: [(Event, u64); 5] = [
    (Event::StallsMemory, raw(0xa3, 0x14, 0x14)),
    (Event::StallsL1, raw(0xa3, 0x0c, 0x0c)),
    (Event::StallsL2, raw(0xa3, 0x05, 0x05)),
    (Event::StallsL3, raw(0xa3, 0x06, 0x06)),
    (Event::StallsStore, raw(0xa6, 0x40, 0)),
];
/// Those of these models, Ice Lake and Tiger Lake, where [`Event::StallsStore`] needs a counter mask to count cycles
/// (EXE_ACTIVITY.BOUND_ON_STORES).
const STORES_MASKED: [u32; 6] = [0x6a, 0x6c, 0x7d, 0x7e, 0x8c, 0x8d];

const fn raw(event: u64, umask: u64, mask: u64) -> u64 {
    event | umask << 8 | mask << 24
}

/// Counters of one thread, counting from when they are opened.
pub struct ThreadCounters {
    counters: Vec<(Event, f64, Counter)>,
    missing: Vec<String>,
}

impl ThreadCounters {
    /// Opens counters of `thread` in user space and kernel, on any CPU.
    ///
    /// # Errors
    /// Returns why hardware counters are not available or not permitted.
    pub fn open(thread: i32) -> Result<Self, String> {
        if let Some(why) = hardware::core_pmu_missing() {
            return Err(format!("hardware counters: {why}"));
        }
        let mut these = Self { counters: vec![], missing: vec![] };
        for (event, hardware) in [(Event::Cycles, Hardware::CPU_CYCLES), (Event::Instructions, Hardware::INSTRUCTIONS)]
        {
            these.add(event, 1.0, &mut on(Builder::new(hardware), thread), None).map_err(refused)?;
        }
        if !these.add_named(&OWN, thread, true) && !these.add_named(&FORMULAS, thread, false) {
            these.missing.push("top-down figures: the kernel has no top-down events for this processor".into());
        }
        if STALLS_ON.contains(&model()) {
            for (event, mut config) in STALLS {
                if event == Event::StallsStore && STORES_MASKED.contains(&model()) {
                    config |= raw(0, 0, 2);
                }
                if let Err(why) = these.add(event, 1.0, &mut on(Builder::new(Raw::new(config)), thread), None) {
                    these.missing.push(format!("{}: {why}", event.name()));
                }
            }
        } else {
            these.missing.push("memory levels: no known events for this processor".into());
        }
        Ok(these)
    }

    /// Returns the figures that are not counted, with the reasons.
    pub fn missing(&self) -> &[String] {
        &self.missing
    }

    /// Returns the counts so far, extrapolated if counters were multiplexed.
    ///
    /// # Errors
    /// Returns the kernel's error if a counter cannot be read.
    pub fn read(mut self) -> std::io::Result<Counts> {
        let mut counts = Counts::default();
        for (event, worth, counter) in &mut self.counters {
            counts.add(*event, estimate(counter)? * *worth);
        }
        Ok(counts)
    }

    /// Adds kernel events by name. Adds none, and returns false, unless all are available.
    fn add_named(&mut self, names: &[&str], thread: i32, grouped: bool) -> bool {
        let before = self.counters.len();
        for name in names {
            let Some((event, worth)) = Event::named(name) else { return false };
            let leader = (grouped && self.counters.len() > before).then_some(before);
            let added = named(name).is_some_and(|(dynamic, scale)| {
                self.add(event, worth * scale, &mut on(Builder::new(dynamic), thread), leader).is_ok()
            });
            if !added {
                self.counters.truncate(before);
                return false;
            }
        }
        true
    }

    fn add(
        &mut self,
        event: Event,
        worth: f64,
        builder: &mut Builder<'_>,
        leader: Option<usize>,
    ) -> std::io::Result<()> {
        let counter = match leader {
            Some(at) => builder.build_with_group(&mut self.counters[at].2)?,
            None => builder.build()?,
        };
        self.counters.push((event, worth, counter));
        Ok(())
    }
}

fn on(mut builder: Builder<'static>, thread: i32) -> Builder<'static> {
    builder.observe_pid(thread).any_cpu().include_kernel().enabled(true);
    builder.read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
    builder
}

fn refused(why: std::io::Error) -> String {
    match why.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "hardware counters: not permitted: try sudo, or lower /proc/sys/kernel/perf_event_paranoid".into()
        }
        _ => format!("hardware counters: {why}"),
    }
}

/// Counters of the calling thread that it reads without a system call (`rdpmc`): core cycles, instructions, and slots
/// that retired a uop.
pub struct StageCounters([Sampler; 3]);

impl StageCounters {
    /// Opens the counters, in user space and kernel, on any CPU.
    ///
    /// # Errors
    /// Returns why hardware counters are not available or not permitted, or that this processor's event for retired
    /// slots is not known.
    pub fn open() -> Result<Self, String> {
        if let Some(why) = hardware::core_pmu_missing() {
            return Err(format!("hardware counters: {why}"));
        }
        let retired = retired().ok_or("hardware counters: no known event for retired slots on this processor")?;
        Ok(Self([
            mapped(Builder::new(Hardware::CPU_CYCLES))?,
            mapped(Builder::new(Hardware::INSTRUCTIONS))?,
            mapped(Builder::new(Raw::new(retired)))?,
        ]))
    }

    /// Returns the counts so far; `None` while the kernel lends a counter to others.
    pub fn read(&self) -> Option<[u64; 3]> {
        let [cycles, instructions, retired] = &self.0;
        Some([cycles.read_user().count()?, instructions.read_user().count()?, retired.read_user().count()?])
    }
}

fn mapped(mut builder: Builder<'_>) -> Result<Sampler, String> {
    builder.observe_self().any_cpu().include_kernel().enabled(true);
    builder.build().and_then(|counter| counter.sampled(0)).map_err(refused)
}

/// Slots per cycle, and the models of Intel's family 6 that have so many: Haswell to Cascade Lake, Ice Lake to Rocket
/// Lake, Sapphire to Granite Rapids; without processors of two kinds of core. On each of them event 0xC2 with umask
/// 0x02 counts retired slots: `UOPS_RETIRED.RETIRE_SLOTS`, or `.SLOTS` from Ice Lake on (perfmon-events.intel.com).
const INTEL: [(f64, &[u32]); 3] = [
    (4.0, &[0x3c, 0x3f, 0x45, 0x46, 0x3d, 0x47, 0x4f, 0x56, 0x4e, 0x5e, 0x55, 0x8e, 0x9e, 0xa5, 0xa6, 0x66]),
    (5.0, &[0x6a, 0x6c, 0x7d, 0x7e, 0x8c, 0x8d, 0xa7]),
    (6.0, &[0x8f, 0xcf, 0xad, 0xae]),
];
/// Slots per cycle of AMD's families: Zen and Zen 2, Zen 3 and Zen 4 dispatch up to six operations a cycle, Zen 5 up to
/// eight (`total_dispatch_slots` in Linux, tools/perf/pmu-events/arch/x86/amdzen4 and amdzen5; software optimization
/// guides of families 17h and 19h).
const AMD: [(f64, u32); 3] = [(6.0, 0x17), (6.0, 0x19), (8.0, 0x1a)];

/// Returns the number of pipeline slots per cycle of this machine's processor; `None` if that is not known.
pub fn slots_per_cycle() -> Option<f64> {
    slots_of(identity())
}

fn slots_of((vendor, family, model): (Vendor, u32, u32)) -> Option<f64> {
    match (vendor, family) {
        (Vendor::Intel, 6) => INTEL.iter().find(|(_, models)| models.contains(&model)).map(|(slots, _)| *slots),
        (Vendor::Amd, _) => AMD.iter().find(|(_, of)| *of == family).map(|(slots, _)| *slots),
        _ => None,
    }
}

/// Returns the number of the event that counts retired slots: that of [`INTEL`], or `ex_ret_ops` of AMD's Zen (PPR of
/// family 17h, PMCx0C1). `None` for processors whose slots per cycle are not known.
fn retired() -> Option<u64> {
    slots_per_cycle()?;
    Some(if identity().0 == Vendor::Amd { raw(0xc1, 0, 0) } else { raw(0xc2, 0x02, 0) })
}

/// Cache and TLB misses of one thread in user space.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Misses {
    /// Last-level data TLB misses: loads, and stores if the processor counts them.
    pub dtlb: f64,
    /// Last-level cache misses of loads.
    pub llc: f64,
}

/// Counters of the calling thread's misses, counting from when they are opened.
pub struct CacheMisses {
    dtlb: Counter,
    dtlb_stores: Option<Counter>,
    llc: Counter,
}

impl CacheMisses {
    /// Opens counters of the calling thread, on any CPU.
    ///
    /// # Errors
    /// Returns why hardware counters are not available or not permitted.
    pub fn open() -> Result<Self, String> {
        if let Some(why) = hardware::core_pmu_missing() {
            return Err(format!("hardware counters: {why}"));
        }
        let misses = |which, operation| {
            let event = Cache { which, operation, result: CacheResult::MISS };
            let mut builder = Builder::new(event);
            builder.observe_self().any_cpu().enabled(true);
            builder.read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
            builder.build().map_err(refused)
        };
        Ok(Self {
            dtlb: misses(CacheId::DTLB, CacheOp::READ)?,
            dtlb_stores: misses(CacheId::DTLB, CacheOp::WRITE).ok(),
            llc: misses(CacheId::LL, CacheOp::READ)?,
        })
    }

    /// Returns the misses so far.
    ///
    /// # Errors
    /// Returns the kernel's error if a counter cannot be read.
    pub fn read(&mut self) -> std::io::Result<Misses> {
        let stores = self.dtlb_stores.as_mut().map_or(Ok(0.0), estimate)?;
        Ok(Misses { dtlb: estimate(&mut self.dtlb)? + stores, llc: estimate(&mut self.llc)? })
    }
}

/// Returns a counter's value extrapolated to the full time, if it was multiplexed with others.
pub(crate) fn estimate(counter: &mut Counter) -> std::io::Result<f64> {
    let got = counter.read_count_and_time()?;
    let share = if got.time_running == 0 { 0.0 } else { got.time_enabled as f64 / got.time_running as f64 };
    Ok(got.count as f64 * share)
}

/// Returns the event that the kernel describes under `name`, and the factor by which it wants its counts multiplied:
/// perf does so, the kernel itself does not.
fn named(name: &str) -> Option<(Dynamic, f64)> {
    PMUS.iter().find_map(|pmu| scaled(Path::new(pmu), name))
}

/// Returns the event `name` of `pmu` (a name or a directory), with its factor.
fn scaled(pmu: &Path, name: &str) -> Option<(Dynamic, f64)> {
    let mut description = description(pmu).ok()?;
    description.event(name).ok()?;
    let scale = description.scale().ok()?.unwrap_or(1.0);
    Some((description.build().ok()?, scale))
}

/// Returns the description of an event of `pmu` with all fields 0: the builder takes those that are not set for
/// missing.
pub(crate) fn description(pmu: &Path) -> std::io::Result<DynamicBuilder> {
    let mut description = Dynamic::builder(pmu)?;
    let fields: Vec<String> = description.fields().map(|(name, _)| name.to_owned()).collect();
    for name in fields {
        description.field(&name, 0)?;
    }
    Ok(description)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Vendor {
    Intel,
    Amd,
    Other,
}

/// Returns the processor's vendor, family and model number.
fn identity() -> (Vendor, u32, u32) {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of = |key: &str| {
        let mut fields = info.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(name, _)| name.trim() == key).map_or("", |(_, value)| value.trim())
    };
    let vendor = match of("vendor_id") {
        "GenuineIntel" => Vendor::Intel,
        "AuthenticAMD" => Vendor::Amd,
        _ => Vendor::Other,
    };
    (vendor, of("cpu family").parse().unwrap_or(0), of("model").parse().unwrap_or(0))
}

/// Returns the processor's model number if it is of Intel's family 6, else 0.
fn model() -> u32 {
    match identity() {
        (Vendor::Intel, 6, model) => model,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_or_says_why_not() {
        match ThreadCounters::open(0) {
            Ok(counters) => {
                let mut sum = 0u64;
                (0..1_000_000u64).for_each(|n| sum = std::hint::black_box(sum.wrapping_add(n)));
                let counts = counters.read().unwrap();
                let counted = [Event::Cycles, Event::Instructions].map(|event| counts.get(event).unwrap());
                assert!(counted[1] > 1e6 && counted[0] > 1e5, "{counts:?}");
            }
            Err(why) => {
                assert!(why.starts_with("hardware counters: "), "{why}");
                println!("SKIP: {why}");
            }
        }
    }

    /// The kernel counts cycles of recovery, and names the slots of a cycle as the factor: 4, or 2 with hyper-threads
    /// (Linux, arch/x86/events/intel/core.c). Each count is then worth one cycle, or half of one.
    #[test]
    fn recovery_is_counted_in_cycles() {
        let pmu = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let path = pmu.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("type", "4\n");
        for (field, bits) in [("event", "0-7"), ("umask", "8-15"), ("any", "21"), ("cmask", "24-31")] {
            write(&format!("format/{field}"), &format!("config:{bits}\n"));
        }
        write("events/topdown-recovery-bubbles", "event=0xd,umask=0x3,cmask=1\n");
        write("events/topdown-slots-issued", "event=0xe,umask=0x1\n");
        for (text, expected) in [("4\n", 1.0), ("2\n", 0.5)] {
            write("events/topdown-recovery-bubbles.scale", text);
            let (event, worth) = Event::named("topdown-recovery-bubbles").unwrap();
            let (_, scale) = scaled(pmu.path(), "topdown-recovery-bubbles").unwrap();
            assert_eq!((event, worth * scale), (Event::Recovery, expected), "{text}");
        }
        assert_eq!(scaled(pmu.path(), "topdown-slots-issued").unwrap().1, 1.0);
        assert!(scaled(pmu.path(), "topdown-fetch-bubbles").is_none());
    }

    #[test]
    fn slots_by_processor() {
        let known = [
            (Vendor::Intel, 6, 0x55, Some(4.0)),
            (Vendor::Intel, 6, 0x6a, Some(5.0)),
            (Vendor::Intel, 6, 0x8f, Some(6.0)),
            (Vendor::Intel, 6, 0x0f, None),
            (Vendor::Intel, 15, 0x55, None),
            (Vendor::Amd, 0x15, 0x02, None),
            (Vendor::Amd, 0x17, 0x31, Some(6.0)),
            (Vendor::Amd, 0x19, 0x11, Some(6.0)),
            (Vendor::Amd, 0x1a, 0x02, Some(8.0)),
            (Vendor::Other, 0x18, 0x00, None),
        ];
        for (vendor, family, model, slots) in known {
            assert_eq!(slots_of((vendor, family, model)), slots, "{vendor:?} {family:#x} {model:#x}");
        }
    }

    #[test]
    fn stages_are_counted_without_a_system_call_or_it_says_why_not() {
        match StageCounters::open() {
            Ok(counters) => {
                let before = counters.read();
                let mut sum = 0u64;
                (0..1_000_000u64).for_each(|n| sum = std::hint::black_box(sum.wrapping_add(n)));
                let Some((before, after)) = before.zip(counters.read()) else {
                    println!("SKIP: the kernel lends the counters to others");
                    return;
                };
                assert!(before.iter().zip(after).all(|(before, after)| after - before > 100_000));
            }
            Err(why) => {
                assert!(why.starts_with("hardware counters: "), "{why}");
                println!("SKIP: {why}");
            }
        }
    }

    /// Tests the memory shared with the kernel by a counter that no processor's register holds.
    #[test]
    fn a_counter_without_a_register_has_no_count() {
        use perf_event::events::Software;
        match mapped(Builder::new(Software::TASK_CLOCK)) {
            Ok(clock) => assert_eq!(clock.read_user().count(), None),
            Err(why) => println!("SKIP: {why}"),
        }
    }

    #[test]
    fn misses_or_says_why_not() {
        match CacheMisses::open() {
            Ok(mut misses) => {
                let memory = vec![1u8; 64 << 20];
                let sum: u64 = memory.iter().step_by(4096).map(|b| u64::from(*b)).sum();
                assert_eq!(sum, 16384);
                assert!(misses.read().unwrap().dtlb > 100.0);
            }
            Err(why) => assert!(why.starts_with("hardware counters: "), "{why}"),
        }
    }

    /// Tests the path to the kernel and back with a counter that needs no PMU.
    #[test]
    fn a_clock_stands_in() {
        use perf_event::events::Software;
        let mut these = ThreadCounters { counters: vec![], missing: vec![] };
        let mut builder = on(Builder::new(Software::TASK_CLOCK), 0);
        if let Err(why) = these.add(Event::Cycles, 0.5, &mut builder, None) {
            println!("SKIP: no perf events: {why}");
            return;
        }
        let start = std::time::Instant::now();
        // The clock is that of this thread, which need not get the CPU at once.
        while estimate(&mut these.counters[0].2).unwrap() < 4e6 && start.elapsed().as_secs() < 60 {}
        let half_ns = these.read().unwrap().get(Event::Cycles).unwrap();
        let longest = start.elapsed().as_nanos() as f64;
        assert!((1e6..longest).contains(&half_ns), "{half_ns} of {longest}");
    }
}
