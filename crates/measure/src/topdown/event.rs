//! Events that the analysis uses, by their names.

use serde::Serialize;

/// Hardware event.
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

/// Names of each event and the factor to apply to a count: the processor's names first (Intel 64 and IA-32
/// architectures, perfmon-events.intel.com), then those of perf.
const NAMES: &[(Event, &str, f64)] = &[
    (Event::Cycles, "CPU_CLK_UNHALTED.THREAD", 1.0),
    (Event::Cycles, "CPU_CLK_UNHALTED.THREAD_P", 1.0),
    (Event::Cycles, "cycles", 1.0),
    (Event::Cycles, "cpu-cycles", 1.0),
    // Perf prints it scaled to four slots per cycle by the factor that the kernel names beside the event.
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
    /// Returns the event with this name and the factor to apply to its count; `None` if the analysis does not use it.
    /// Accepts names as printed by perf, in any case, with modifiers (`:u`) or with their PMU (`cpu_core/slots/`).
    pub fn named(name: &str) -> Option<(Self, f64)> {
        let name = match name.split_once('/') {
            Some((_, rest)) => rest.split_once('/').map_or(rest, |(inner, _)| inner),
            None => name.split_once(':').map_or(name, |(bare, _)| bare),
        };
        let found = NAMES.iter().find(|(_, known, _)| known.eq_ignore_ascii_case(name.trim()));
        found.map(|(event, _, worth)| (*event, *worth))
    }

    /// Returns the processor's name of the event.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(event, _, _)| *event == self).map_or("?", |(_, name, _)| name)
    }
}
