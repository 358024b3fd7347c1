//! The four top-down formulas, and the breakdown of memory stalls.

use super::Event;
use serde::Serialize;
use std::collections::BTreeMap;

/// Pipeline slots per cycle of the processors that the formulas were written for: Sandy Bridge to Cascade Lake.
pub const SLOTS_PER_CYCLE: f64 = 4.0;
/// Tolerance for shares outside of 0 to 1, because counters are not read at one instant.
const SLACK: f64 = 0.02;

/// Event counts of a thread, a stage or a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts(BTreeMap<Event, f64>);

impl Counts {
    /// Adds `n` to the count of an event.
    pub fn add(&mut self, event: Event, n: f64) {
        *self.0.entry(event).or_default() += n;
    }

    /// Returns the count of an event; `None` if it was not counted.
    pub fn get(&self, event: Event) -> Option<f64> {
        self.0.get(&event).copied()
    }
}

/// Shares of all pipeline slots; they add up to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shares {
    /// Slots left empty because the front end delivered no uop, although the back end could have accepted one.
    pub front_end_bound: f64,
    /// Slots wasted on uops that were discarded, and on recovering from that.
    pub bad_speculation: f64,
    /// Slots used by uops that retired.
    pub retiring: f64,
    /// Slots left empty because the back end accepted no uop, waiting for data or without a free execution unit.
    pub back_end_bound: f64,
}

/// Shares of all cycles in which execution stalled on memory, by level. `None` if not counted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Levels {
    /// Stalls on loads that hit or are served by the L1: its latency, blocked forwarding, TLB.
    pub l1_bound: Option<f64>,
    /// Stalls on loads that missed the L1 and hit the L2.
    pub l2_bound: Option<f64>,
    /// Stalls on loads that missed the L2 and hit the L3.
    pub l3_bound: Option<f64>,
    /// Stalls on loads that missed the L3.
    pub dram_bound: Option<f64>,
    /// Stalls on a full store buffer.
    pub store_bound: Option<f64>,
}

impl Levels {
    /// Returns the levels that were counted, by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, f64)> {
        [
            ("L1", self.l1_bound),
            ("L2", self.l2_bound),
            ("L3", self.l3_bound),
            ("DRAM", self.dram_bound),
            ("stores", self.store_bound),
        ]
        .into_iter()
        .filter_map(|(name, share)| Some((name, share?)))
    }
}

/// Result of the analysis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    /// Unhalted core cycles.
    pub cycles: f64,
    /// Instructions retired.
    pub instructions: Option<f64>,
    /// Cycles per instruction.
    pub cpi: Option<f64>,
    /// Pipeline slots per cycle: counted if the processor counts its slots, else as given.
    pub slots_per_cycle: f64,
    /// Share of the slots used by uops that retired, also where the other shares are not known.
    pub retiring: Option<f64>,
    /// Shares of the pipeline slots.
    pub slots: Option<Shares>,
    /// Set if the shares come from the processor's own metrics rather than from the formulas.
    pub own_metrics: bool,
    /// Memory stalls by level.
    pub memory: Option<Levels>,
}

/// Error from [`analyse`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnalysisError {
    /// Some events of a set that is only usable as a whole are missing.
    #[error("{} {} missing but required for {what}: record {}", list(missing), are(missing), list(all))]
    Missing {
        /// Figure that cannot be computed.
        what: &'static str,
        /// Events that are missing.
        missing: Vec<Event>,
        /// All events that the figure requires.
        all: Vec<Event>,
    },
    /// The counts contradict each other.
    #[error("{what}: were these counted together, and over the same time?")]
    Impossible {
        /// Event whose count is implausible.
        event: Event,
        /// Description of the contradiction.
        what: String,
    },
}

fn list(events: &[Event]) -> String {
    events.iter().map(|event| event.name()).collect::<Vec<_>>().join(", ")
}

fn are(events: &[Event]) -> &'static str {
    if events.len() == 1 { "is" } else { "are" }
}

const FORMULAS: [Event; 4] = [Event::NotDelivered, Event::Issued, Event::Retired, Event::Recovery];
const OWN: [Event; 5] =
    [Event::Slots, Event::FrontEndSlots, Event::BadSpeculationSlots, Event::RetiringSlots, Event::BackEndSlots];

/// Analyses counts from a processor with `width` slots per cycle; where slots and cycles were counted, these say so.
///
/// # Errors
/// [`AnalysisError`] if cycles were not counted, if only some of the events of a formula were, or if a share exceeds
/// all slots.
pub fn analyse(counts: &Counts, width: f64) -> Result<Analysis, AnalysisError> {
    let slots = counts.get(Event::Slots);
    let cycles = counts.get(Event::Cycles).or(slots.map(|slots| slots / width)).unwrap_or(0.0);
    if cycles <= 0.0 {
        let all = vec![Event::Cycles];
        return Err(match counts.get(Event::Cycles) {
            Some(_) => AnalysisError::Impossible {
                event: Event::Cycles,
                what: format!("{} is 0, so nothing ran", Event::Cycles.name()),
            },
            None => AnalysisError::Missing { what: "every figure", missing: all.clone(), all },
        });
    }
    let instructions = counts.get(Event::Instructions);
    let (shares, own_metrics) = match whole(counts, &OWN, "the processor's own top-down")? {
        Some([all, front, bad, retiring, back]) => (Some(own(all, front, bad, retiring, back)?), true),
        None => match whole(counts, &FORMULAS, "top-down")? {
            Some(counted) => (Some(formulas(counted, cycles, width)?), false),
            None => (None, false),
        },
    };
    let counted = slots.filter(|_| own_metrics).zip(counts.get(Event::Cycles));
    Ok(Analysis {
        cycles,
        instructions,
        slots_per_cycle: counted.map_or(width, |(slots, cycles)| (slots / cycles).round().max(1.0)),
        cpi: instructions.filter(|n| *n > 0.0).map(|n| cycles / n),
        retiring: shares.map(|shares| shares.retiring),
        slots: shares,
        own_metrics,
        memory: levels(counts, cycles)?,
    })
}

impl Analysis {
    /// Creates the analysis of a stage from its core cycles, its instructions and the slots of its retired uops, on a
    /// processor with `width` slots per cycle; `None` if nothing was counted.
    ///
    /// # Errors
    /// [`AnalysisError::Impossible`] if more slots retired a uop than the cycles had.
    pub fn of_stage([cycles, instructions, retired]: [u64; 3], width: f64) -> Result<Option<Self>, AnalysisError> {
        if cycles == 0 || instructions == 0 {
            return Ok(None);
        }
        let what = format!("retiring, with {width} slots a cycle,");
        let retiring = share(Event::Retired, &what, retired as f64 / (width * cycles as f64))?;
        Ok(Some(Self {
            cycles: cycles as f64,
            instructions: Some(instructions as f64),
            cpi: Some(cycles as f64 / instructions as f64),
            slots_per_cycle: width,
            retiring: Some(retiring),
            slots: None,
            own_metrics: false,
            memory: None,
        }))
    }
}

/// Returns the counts of all `events`, or `None` if none was counted. Errors if only some were.
fn whole<const N: usize>(
    counts: &Counts,
    events: &[Event; N],
    what: &'static str,
) -> Result<Option<[f64; N]>, AnalysisError> {
    let missing: Vec<Event> = events.iter().copied().filter(|event| counts.get(*event).is_none()).collect();
    match missing.len() {
        0 => Ok(Some(events.map(|event| counts.get(event).unwrap_or(0.0)))),
        n if n == N => Ok(None),
        _ => Err(AnalysisError::Missing { what, missing, all: events.to_vec() }),
    }
}

/// Computes the shares by the formulas (see the module documentation).
fn formulas(
    [not_delivered, issued, retired, recovery]: [f64; 4],
    cycles: f64,
    width: f64,
) -> Result<Shares, AnalysisError> {
    let slots = width * cycles;
    let front_end_bound = share(Event::NotDelivered, "front-end bound", not_delivered / slots)?;
    let bad_speculation = share(Event::Issued, "bad speculation", (issued - retired + width * recovery) / slots)?;
    let retiring = share(Event::Retired, "retiring", retired / slots)?;
    let back = 1.0 - (front_end_bound + bad_speculation + retiring);
    let back_end_bound = share(Event::Retired, "back-end bound", back)?;
    Ok(Shares { front_end_bound, bad_speculation, retiring, back_end_bound })
}

fn own(slots: f64, front: f64, bad: f64, retiring: f64, back: f64) -> Result<Shares, AnalysisError> {
    let sum = front + bad + retiring + back;
    if slots <= 0.0 || (sum / slots - 1.0).abs() > SLACK {
        let what = format!("the four shares make {sum:.0} of {slots:.0} slots");
        return Err(AnalysisError::Impossible { event: Event::Slots, what });
    }
    Ok(Shares {
        front_end_bound: front / sum,
        bad_speculation: bad / sum,
        retiring: retiring / sum,
        back_end_bound: back / sum,
    })
}

fn share(event: Event, what: &str, share: f64) -> Result<f64, AnalysisError> {
    if (-SLACK..=1.0 + SLACK).contains(&share) {
        return Ok(share.clamp(0.0, 1.0));
    }
    let what = format!("{what} would be {:.1} % (by {})", 100.0 * share, event.name());
    Err(AnalysisError::Impossible { event, what })
}

/// Computes the shares of memory stalls as far as counted: stalled cycles with a miss in one level, minus those with a
/// miss in the next.
fn levels(counts: &Counts, cycles: f64) -> Result<Option<Levels>, AnalysisError> {
    let between = |what, event, next| match (counts.get(event), counts.get(next)) {
        (Some(here), Some(below)) => share(event, what, (here - below) / cycles).map(Some),
        _ => Ok(None),
    };
    let only = |what, event| counts.get(event).map(|n| share(event, what, n / cycles)).transpose();
    let levels = Levels {
        l1_bound: between("L1 bound", Event::StallsMemory, Event::StallsL1)?,
        l2_bound: between("L2 bound", Event::StallsL1, Event::StallsL2)?,
        l3_bound: between("L3 bound", Event::StallsL2, Event::StallsL3)?,
        dram_bound: only("DRAM bound", Event::StallsL3)?,
        store_bound: only("store bound", Event::StallsStore)?,
    };
    Ok((levels.named().next().is_some()).then_some(levels))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(all: &[(Event, f64)]) -> Counts {
        let mut counts = Counts::default();
        all.iter().for_each(|(event, n)| counts.add(*event, *n));
        counts
    }

    const KNOWN: [(Event, f64); 6] = [
        (Event::Cycles, 1000.0),
        (Event::Instructions, 800.0),
        (Event::NotDelivered, 400.0),
        (Event::Issued, 1500.0),
        (Event::Retired, 1400.0),
        (Event::Recovery, 15.0),
    ];

    #[test]
    fn formulas_by_hand() {
        let got = analyse(&counts(&KNOWN), 4.0).unwrap();
        let shares = got.slots.unwrap();
        // 400 / 4000; (1500 - 1400 + 60) / 4000; 1400 / 4000; and the remainder.
        let close = |a: f64, b: f64| (a - b).abs() < 1e-12;
        assert!(close(shares.front_end_bound, 0.10) && close(shares.bad_speculation, 0.04), "{shares:?}");
        assert!(close(shares.retiring, 0.35) && close(shares.back_end_bound, 0.51), "{shares:?}");
        assert_eq!((got.cpi, got.own_metrics, got.memory), (Some(1.25), false, None));
    }

    #[test]
    fn levels_by_hand() {
        let mut all = counts(&[(Event::Cycles, 100.0)]);
        for (event, n) in
            [(Event::StallsMemory, 50.0), (Event::StallsL1, 30.0), (Event::StallsL2, 20.0), (Event::StallsL3, 5.0)]
        {
            all.add(event, n);
        }
        let named: Vec<_> = analyse(&all, 4.0).unwrap().memory.unwrap().named().collect();
        assert_eq!(named, [("L1", 0.20), ("L2", 0.10), ("L3", 0.15), ("DRAM", 0.05)]);
    }

    #[test]
    fn own_metrics_go_before_the_formulas() {
        let mut all = counts(&KNOWN);
        for (event, n) in OWN.into_iter().zip([6000.0, 600.0, 300.0, 4200.0, 900.0]) {
            all.add(event, n);
        }
        // The given width is wrong; 6000 slots in 1000 cycles were counted.
        let got = analyse(&all, 4.0).unwrap();
        assert!(got.own_metrics && got.slots.unwrap().retiring == 0.7 && got.slots_per_cycle == 6.0, "{got:?}");
        all.add(Event::BackEndSlots, 900.0);
        let why = analyse(&all, 6.0).unwrap_err().to_string();
        assert!(why.contains("6900 of 6000 slots"), "{why}");
    }

    #[test]
    fn what_is_missing_or_impossible_is_said() {
        let why = |all: &[(Event, f64)]| analyse(&counts(all), 4.0).unwrap_err().to_string();
        assert!(why(&KNOWN[1..]).starts_with("CPU_CLK_UNHALTED.THREAD is missing but required for every figure"));
        let said = why(&KNOWN[..4]);
        assert!(said.starts_with("UOPS_RETIRED.RETIRE_SLOTS, INT_MISC.RECOVERY_CYCLES are missing"), "{said}");
        let mut wrong = KNOWN;
        wrong[4].1 = 9000.0;
        assert!(why(&wrong).contains("bad speculation would be -"), "{}", why(&wrong));
        (wrong[3].1, wrong[4].1) = (9000.0, 9000.0);
        assert!(why(&wrong).starts_with("retiring would be 225.0 % (by UOPS_RETIRED.RETIRE_SLOTS)"), "{}", why(&wrong));
        assert!(why(&[(Event::Cycles, 0.0)]).contains("is 0"));
    }

    #[test]
    fn stage_by_hand() {
        let got = Analysis::of_stage([100, 200, 480], 8.0).unwrap().unwrap();
        assert_eq!((got.cpi, got.retiring, got.slots_per_cycle), (Some(0.5), Some(0.6), 8.0));
        assert_eq!(Analysis::of_stage([0, 0, 0], 8.0), Ok(None));
        let why = Analysis::of_stage([100, 200, 480], 4.0).unwrap_err().to_string();
        assert!(why.starts_with("retiring, with 4 slots a cycle, would be 120.0 %"), "{why}");
    }
}
