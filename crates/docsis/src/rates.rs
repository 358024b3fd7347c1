//! Rates of a flow at the scheduler: traffic shaping, minimum reserved rate and early drops.

use crate::pie::{self, Load, Pie, PieConfig};
use crate::police::{BURST_DEFAULT, Limits, Policer};
use crate::queue::QueueLimits;
use bywash_sync::bucket::Rate;

/// Treatment of a flow by its queue and the scheduler.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Treatment {
    /// Traffic priority, 0 to 7; higher values are served first.
    pub priority: u8,
    /// Rates to which the flow is shaped: its packets wait for tokens. `None` if it is not.
    pub shape: Option<Limits>,
    /// Minimum reserved rate in bits per second, served before any priority; 0 if there is none.
    pub reserved: u64,
    /// Target of the delay in milliseconds for early drops, of a shaped flow; `None` for no early drops.
    pub latency_ms: Option<u32>,
    /// Bit mask of the channels that the flow may use; 0 for all.
    pub channels: u64,
}

/// Rates of a flow that has any.
pub(crate) struct Rates {
    shaper: Option<Policer>,
    reserved: Option<Reserved>,
    pie: Option<(Pie, u64)>,
    /// Bytes queued.
    pub(crate) bytes: usize,
}

/// Bucket of a minimum reserved rate.
struct Reserved {
    rate: Rate,
    full_at: u64,
}

impl Rates {
    /// Returns the rates of a flow treated so; `None` if it has none. `seed` selects the random numbers.
    pub(crate) fn new(treatment: &Treatment, limits: &QueueLimits, hz: u64, seed: u64) -> Option<Self> {
        let Treatment { shape, reserved, latency_ms, .. } = *treatment;
        if shape.is_none() && reserved == 0 {
            return None;
        }
        let pie = shape.zip(latency_ms).map(|(Limits { sustained, peak, .. }, latency_ms)| {
            let buffer = limits.flow.min(limits.total) * pie::MEAN_PKTSIZE as usize;
            (Pie::new(&PieConfig { latency_ms, sustained, peak, buffer }, seed), 0)
        });
        Some(Self {
            shaper: shape.map(|limits| Policer::new(&limits, hz)),
            reserved: (reserved > 0)
                .then(|| Reserved { rate: Rate::new(reserved, 8 * hz, BURST_DEFAULT.into()), full_at: 0 }),
            pie,
            bytes: 0,
        })
    }

    /// Returns the time until which `bytes` have to wait for tokens; `None` if they need not.
    #[inline]
    pub(crate) fn shaped_until(&self, bytes: u32, now: u64) -> Option<u64> {
        self.shaper.as_ref().map(|shaper| shaper.ready_at(bytes)).filter(|at| *at > now)
    }

    /// Returns whether `bytes` are within the reserved rate, or the time from which they are; `None` without one.
    #[inline]
    pub(crate) fn reserved_from(&self, bytes: u32, now: u64) -> Option<Result<(), u64>> {
        let at = self.reserved.as_ref().map(|reserved| reserved.rate.ready_at(reserved.full_at, bytes))?;
        Some(if at <= now { Ok(()) } else { Err(at) })
    }

    /// Takes tokens for `bytes` that are sent.
    #[inline]
    pub(crate) fn charge(&mut self, bytes: u32, now: u64) {
        if let Some(shaper) = &mut self.shaper {
            shaper.charge(bytes, now);
        }
        // Bytes sent by priority take tokens, too, but never more than there are.
        if let Some(Reserved { rate, full_at }) = &mut self.reserved {
            *full_at = rate.charge(*full_at, bytes, now).min(now.saturating_add(rate.depth()));
        }
    }

    pub(crate) fn drops_early(&mut self, bytes: u32, now: u64, interval: u64) -> bool {
        self.advance(now, interval);
        let load = Load { queued: self.bytes, tokens: self.tokens(now) };
        self.pie.as_mut().is_some_and(|(pie, _)| pie.drops(bytes, load))
    }

    fn tokens(&self, now: u64) -> f64 {
        self.shaper.as_ref().map_or(0.0, |shaper| shaper.tokens(now))
    }

    /// Makes up for the updates that were due since the queue last changed.
    #[inline]
    pub(crate) fn advance(&mut self, now: u64, interval: u64) {
        while let Some((_, next)) = self.pie
            && next <= now
        {
            let load = Load { queued: self.bytes, tokens: self.tokens(next) };
            let Some((pie, at)) = &mut self.pie else { return };
            pie.update(load);
            *at += interval;
            if load.queued == 0 && pie.at_rest() && *at <= now {
                *at += (now - *at) / interval * interval + interval;
            }
        }
    }
}
