//! The counters the analysis uses, by the names they go by.

use serde::Serialize;

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[allow(missing_docs, reason = "each name says which")]
pub enum Event {
    Cycles,
    Instructions,
    NotDelivered,
    Issued,
    Retired,
    Recovery,
    Slots,
    FrontEndSlots,
    BadSpeculationSlots,
    RetiringSlots,
    BackEndSlots,
    StallsMemory,
    StallsL1,
    StallsL2,
    StallsL3,
    StallsStore,
}

/// Every name: the processor's (Intel 64 and IA-32 architectures, perfmon-events.intel.com) first, then perf's own, with
/// what one count of it is worth.
const NAMES: &[(Event, &str, f64)] = &[
    (Event::Cycles, "CPU_CLK_UNHALTED.THREAD", 1.0),
    (Event::Cycles, "CPU_CLK_UNHALTED.THREAD_P", 1.0),
    (Event::Cycles, "cycles", 1.0),
    (Event::Cycles, "cpu-cycles", 1.0),
    // Scaled by the kernel: four slots a cycle.
    (Event::Cycles, "topdown-total-slots", 0.25),
    (Event::Instructions, "INST_RETIRED.ANY", 1.0),
    (Event::Instructions, "INST_RETIRED.ANY_P", 1.0),
    (Event::Instructions, "instructions", 1.0),
    (Event::NotDelivered, "IDQ_UOPS_NOT_DELIVERED.CORE", 1.0),
    (Event::NotDelivered, "topdown-fetch-bubbles", 1.0),
    (Event::Issued, "UOPS_ISSUED.ANY", 1.0),
    (Event::Issued, "topdown-slots-issued", 1.0),
    (Event::Retired, "UOPS_RETIRED.RETIRE_SLOTS", 1.0),
    (Event::Retired, "topdown-slots-retired", 1.0),
    (Event::Recovery, "INT_MISC.RECOVERY_CYCLES", 1.0),
    (Event::Recovery, "topdown-recovery-bubbles", 0.25),
    (Event::Slots, "TOPDOWN.SLOTS", 1.0),
    (Event::Slots, "slots", 1.0),
    (Event::FrontEndSlots, "topdown-fe-bound", 1.0),
    (Event::BadSpeculationSlots, "topdown-bad-spec", 1.0),
    (Event::RetiringSlots, "topdown-retiring", 1.0),
    (Event::BackEndSlots, "topdown-be-bound", 1.0),
    (Event::StallsMemory, "CYCLE_ACTIVITY.STALLS_MEM_ANY", 1.0),
    (Event::StallsL1, "CYCLE_ACTIVITY.STALLS_L1D_MISS", 1.0),
    (Event::StallsL2, "CYCLE_ACTIVITY.STALLS_L2_MISS", 1.0),
    (Event::StallsL3, "CYCLE_ACTIVITY.STALLS_L3_MISS", 1.0),
    (Event::StallsStore, "EXE_ACTIVITY.BOUND_ON_STORES", 1.0),
];

impl Event {
    /// The event of this name and what one count of it is worth; none: the analysis does not use it. Names are taken as
    /// perf prints them, in any case, with modifiers (`:u`) or as the PMU's own (`cpu_core/slots/`).
    pub fn named(name: &str) -> Option<(Self, f64)> {
        let name = match name.split_once('/') {
            Some((_, rest)) => rest.split_once('/').map_or(rest, |(inner, _)| inner),
            None => name.split_once(':').map_or(name, |(bare, _)| bare),
        };
        let found = NAMES.iter().find(|(_, known, _)| known.eq_ignore_ascii_case(name.trim()));
        found.map(|(event, _, worth)| (*event, *worth))
    }

    /// The processor's name for it.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(event, _, _)| *event == self).map_or("?", |(_, name, _)| name)
    }
}
