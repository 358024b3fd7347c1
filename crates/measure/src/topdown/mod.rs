//! Top-down analysis: determines which part of the processor limits a program.
//!
//! Each cycle a core has a number of pipeline slots (four, where the formulas apply). Each slot is attributed to one of
//! four categories: used by a uop that retired, lost to bad speculation, empty because the front end delivered no uop,
//! or empty because the back end could accept none. The formulas are those of Intel's tuning guides and of the analysis
//! of OVS-DPDK that this project follows:
//!
//! - front-end bound = IDQ_UOPS_NOT_DELIVERED.CORE / (4 * clocks)
//! - bad speculation = (UOPS_ISSUED.ANY - UOPS_RETIRED.RETIRE_SLOTS + 4 * INT_MISC.RECOVERY_CYCLES) / (4 * clocks)
//! - retiring = UOPS_RETIRED.RETIRE_SLOTS / (4 * clocks)
//! - back-end bound = 1 - (front-end bound + bad speculation + retiring)
//!
//! Processors from Ice Lake on count the four categories themselves (`slots` and `topdown-*`); if available, those
//! counts are used instead.

mod analysis;
mod event;
mod meaning;
mod read;

pub use analysis::{Analysis, AnalysisError, Counts, Levels, SLOTS_PER_CYCLE, Shares, analyse};
pub use event::Event;
pub use meaning::{ACCEPTABLE_CPI, HEALTHY_RETIRING, healthy, meaning};
pub use read::{ReadError, Recorded, Unit, read};
