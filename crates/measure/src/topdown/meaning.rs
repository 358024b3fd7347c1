//! Interpretation of the figures in words.

use super::{Analysis, Shares};

/// Share of retiring slots from which on a program of this kind (high-performance computing) is considered healthy.
pub const HEALTHY_RETIRING: f64 = 0.70;
/// Cycles per instruction up to which such a program is considered acceptable.
pub const ACCEPTABLE_CPI: f64 = 1.0;
/// Shares of slots from which on a loss is reported.
const FRONT_END: f64 = 0.20;
const BAD_SPECULATION: f64 = 0.10;
const BACK_END: f64 = 0.20;
/// Share of cycles stalled at one memory level from which on it is reported.
const LEVEL: f64 = 0.10;

/// Returns whether the figures need no attention.
pub fn healthy(analysis: &Analysis) -> bool {
    let retiring = analysis.retiring.is_none_or(|retiring| retiring >= HEALTHY_RETIRING);
    retiring && analysis.cpi.is_none_or(|cpi| cpi <= ACCEPTABLE_CPI)
}

/// Returns a sentence for each notable figure, the most important first.
pub fn meaning(analysis: &Analysis) -> Vec<String> {
    let mut said = vec![];
    if let Some(share) = analysis.retiring {
        let retiring = 100.0 * share;
        said.push(if share >= HEALTHY_RETIRING {
            format!("retiring {retiring:.1} %: healthy (70 % or more)")
        } else {
            let loss = analysis.slots.as_ref().map_or(String::new(), |slots| format!("; {}", loss(slots)));
            format!("retiring {retiring:.1} %: below the 70 % of a healthy program{loss}")
        });
    }
    if let Some(cpi) = analysis.cpi {
        let least = 1.0 / analysis.slots_per_cycle;
        said.push(if cpi <= ACCEPTABLE_CPI {
            format!("CPI {cpi:.3}: acceptable (at most 1.0; the minimum is {least:.2})")
        } else {
            format!("CPI {cpi:.3}: above the acceptable 1.0 (the minimum is {least:.2})")
        });
    }
    if let Some(slots) = &analysis.slots {
        if slots.front_end_bound >= FRONT_END {
            said.push(
                "front end: instructions are not delivered fast enough; check code size and layout, ITLB and L1I misses"
                    .into(),
            );
        }
        if slots.bad_speculation >= BAD_SPECULATION {
            said.push(
                "bad speculation: branches are mispredicted, or the pipeline is cleared; check per-packet branches"
                    .into(),
            );
        }
        if slots.back_end_bound >= BACK_END && analysis.memory.is_none() {
            said.push(
                "back end: instructions wait for data or for an execution unit; check cache misses, and device \
                 registers written for each packet"
                    .into(),
            );
        }
    }
    if let Some(memory) = &analysis.memory {
        let worst = memory.named().max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((name, share)) = worst.filter(|(_, share)| *share >= LEVEL) {
            said.push(format!("memory: {:.1} % of cycles wait at {name}: {}", 100.0 * share, advice(name)));
        }
    }
    said
}

fn loss(slots: &Shares) -> String {
    let losses = [
        ("back-end bound", slots.back_end_bound),
        ("front-end bound", slots.front_end_bound),
        ("bad speculation", slots.bad_speculation),
    ];
    let most = losses.into_iter().fold(losses[0], |most, loss| if loss.1 > most.1 { loss } else { most });
    format!("most is lost as {} ({:.1} %)", most.0, 100.0 * most.1)
}

fn advice(level: &str) -> &'static str {
    match level {
        "L1" => "loads hit the L1, but wait for earlier stores, for the TLB, or for device registers",
        "L2" => "the burst's data do not fit in the L1",
        "L3" => "tables or buffers do not fit in the L2, or another core has the line",
        "DRAM" => "tables or buffers do not fit in the L3; prefetch, or use fewer buffers",
        _ => "stores exceed what memory accepts; check what is written for each packet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topdown::Levels;

    fn analysis(retiring: f64, back: f64, cpi: f64) -> Analysis {
        let rest = (1.0 - retiring - back) / 2.0;
        let slots = Shares { front_end_bound: rest, bad_speculation: rest, retiring, back_end_bound: back };
        Analysis {
            cycles: 1.0,
            instructions: Some(1.0 / cpi),
            cpi: Some(cpi),
            slots_per_cycle: 4.0,
            retiring: Some(retiring),
            slots: Some(slots),
            own_metrics: false,
            memory: None,
        }
    }

    #[test]
    fn the_document_s_cases() {
        let before = analysis(0.055, 0.93, 4.921);
        let said = meaning(&before).join("\n");
        assert!(
            !healthy(&before) && said.contains("below the 70 %") && said.contains("back-end bound (93.0 %)"),
            "{said}"
        );
        assert!(said.contains("CPI 4.921: above the acceptable 1.0 (the minimum is 0.25)"), "{said}");
        let wider = meaning(&Analysis { slots_per_cycle: 5.0, ..before.clone() }).join("\n");
        assert!(wider.contains("(the minimum is 0.20)"), "{wider}");
        let mut stalled = before;
        let none = None;
        stalled.memory = Some(Levels {
            l1_bound: Some(0.6),
            l2_bound: Some(0.1),
            l3_bound: none,
            dram_bound: none,
            store_bound: none,
        });
        assert!(meaning(&stalled).join("\n").contains("60.0 % of cycles wait at L1"));
        let good = analysis(0.72, 0.2, 0.6);
        assert!(healthy(&good) && meaning(&good)[0].contains("healthy (70 %"));
        assert!(!healthy(&analysis(0.72, 0.2, 1.108)));
    }
}
