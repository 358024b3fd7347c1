//! Grouping of a benchmark's rounds between two CPUs that are at times near and at times far.
//!
//! On a virtual machine, two CPUs may share a core at one time and not at another, and a pool's rate between them is
//! several times higher when they do. So each round's rate is recorded with the cost of a cache line transfer.

use bywash_engine::cpus::Placement;
pub use bywash_engine::line::TransferCost;
use bywash_engine::line::{self, Way};
use bywash_frame::PoolKind;
use serde::Serialize;
use std::fmt;

/// Ratio to the nearest round from which a round counts as far.
const FAR: f64 = 2.0;

/// Measures the transfer between the first two CPUs; `None` if there are fewer, or it took too long.
pub fn measure(cpus: &Placement) -> anyhow::Result<Option<TransferCost>> {
    Ok(if cpus.enough_for(2) { line::measure(cpus.cpu(0), cpus.cpu(1))? } else { None })
}

/// Pool kind that `kind = "auto"` would choose on the first two CPUs, and the fastest of those measured there.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Auto {
    pub kind: String,
    /// `None` if fewer than two kinds were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fastest: Option<String>,
}

impl Auto {
    /// Returns the choice for threads on `cpus`, where a cache line takes this long, beside the measured `rates`.
    pub fn between(cpus: &Placement, cost: Option<TransferCost>, rates: &[(&str, f64)]) -> Self {
        let way = if cpus.enough_for(2) {
            Way::between(cpus.cpu(0), cpus.cpu(1), cost.map(|cost| cost.ns))
        } else {
            // Threads on one CPU share its caches.
            Way { ns: Some(0.0), one_core: false }
        };
        Self::of(way.policy(), rates)
    }

    /// Returns the choice `kind` beside the measured `rates`.
    pub fn of(kind: PoolKind, rates: &[(&str, f64)]) -> Self {
        let fastest = rates.iter().max_by(|one, other| one.1.total_cmp(&other.1)).filter(|_| rates.len() > 1);
        Self { kind: kind.to_string(), fastest: fastest.map(|(kind, _)| (*kind).to_owned()) }
    }
}

impl fmt::Display for Auto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, fastest } = self;
        write!(f, "auto would choose {kind}")?;
        match fastest {
            Some(fastest) if fastest == kind => write!(f, ", the fastest here"),
            Some(fastest) => write!(f, "; the fastest here is {fastest}"),
            None => Ok(()),
        }
    }
}

/// Returns the lower median of the costs that are known.
pub fn usual(costs: &[Option<TransferCost>]) -> Option<TransferCost> {
    let mut known: Vec<TransferCost> = costs.iter().copied().flatten().collect();
    known.sort_by(|one, other| one.ns.total_cmp(&other.ns));
    known.get(known.len().saturating_sub(1) / 2).copied()
}

/// Medians of rounds with near and with far CPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Apart {
    pub near_mpps: f64,
    pub near_rounds: usize,
    pub far_mpps: f64,
    pub far_rounds: usize,
}

impl fmt::Display for Apart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { near_mpps, near_rounds, far_mpps, far_rounds } = self;
        write!(f, "two machines in one: {near_mpps:.2} Mpps in {near_rounds} near rounds, ")?;
        write!(f, "{far_mpps:.2} in {far_rounds} far ones")
    }
}

/// Returns separate medians of near and far rounds; `None` if all rounds are alike or the costs are unknown.
pub fn apart(costs: &[Option<TransferCost>], mpps: &[f64]) -> Option<Apart> {
    let rounds: Vec<(f64, f64)> =
        costs.iter().zip(mpps).map(|(cost, mpps)| cost.map(|cost| (cost.ns, *mpps))).collect::<Option<_>>()?;
    let nearest = rounds.iter().map(|(ns, _)| *ns).min_by(f64::total_cmp)?;
    let (far, near): (Vec<_>, Vec<_>) = rounds.iter().partition(|(ns, _)| *ns > FAR * nearest);
    let median = |of: &[(f64, f64)]| super::median(of.iter().map(|(_, mpps)| *mpps));
    Some(Apart { near_mpps: median(&near)?, near_rounds: near.len(), far_mpps: median(&far)?, far_rounds: far.len() })
}

/// Returns the costs of the rounds in words, such as `50, 51, 160 ns`.
pub fn words(costs: &[Option<TransferCost>]) -> String {
    let one = |cost: &Option<TransferCost>| cost.map_or("?".into(), |cost| format!("{:.0}", cost.ns));
    format!("{} ns", costs.iter().map(one).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_of_auto_stands_beside_the_fastest() {
        let rates = [("ring", 4.4), ("stack", 7.6), ("tabm", 10.7)];
        let line = |kind, rates: &[(&str, f64)]| Auto::of(kind, rates).to_string();
        assert_eq!(line(PoolKind::Tabm, &rates), "auto would choose tabm, the fastest here");
        assert_eq!(line(PoolKind::Ring, &rates), "auto would choose ring; the fastest here is tabm");
        assert_eq!(line(PoolKind::Ring, &rates[..1]), "auto would choose ring");
        let cost = |ns| Some(TransferCost { ns, cycles: ns });
        assert_eq!(usual(&[cost(70.0), None, cost(50.0), cost(160.0)]).unwrap().ns, 70.0);
        assert!(usual(&[None]).is_none() && usual(&[]).is_none());
    }

    #[test]
    fn near_and_far_rounds_are_not_averaged() {
        let costs =
            |ns: &[f64]| ns.iter().map(|ns| Some(TransferCost { ns: *ns, cycles: 2.0 * ns })).collect::<Vec<_>>();
        let mpps = [18.0, 2.2, 17.0, 2.1, 18.5];
        let both = apart(&costs(&[50.0, 160.0, 52.0, 170.0, 70.0]), &mpps).unwrap();
        assert_eq!(both, Apart { near_mpps: 18.0, near_rounds: 3, far_mpps: 2.2, far_rounds: 2 });
        assert_eq!(apart(&costs(&[50.0, 60.0, 52.0, 70.0, 99.0]), &mpps), None);
        assert_eq!(apart(&[None, Some(TransferCost { ns: 1.0, cycles: 2.0 })], &mpps[..2]), None);
    }
}
