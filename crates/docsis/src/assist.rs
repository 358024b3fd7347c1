//! The upper MAC's share of the sealing: what the lower MAC has no time for.

use crate::group::{Group, LEAD};
use crate::lower::{LowerConfig, LowerStats};
use crate::protect::Protection;
use crate::seal::{SealError, Sealer};
use bywash_frame::{Arena, BATCH, Frame};
use bywash_sync::clock;
use std::sync::Arc;

/// One frame of a batch is sealed for so many that wait for the lower MAC.
const PER_FRAME: u64 = 8;
/// Fewest sealed of a batch, if any: libipsec-mb has lanes to fill, and those not sealed wait for those that are.
const LEAST: usize = 16;
/// How long, in microseconds, frames wait for others to be sealed with.
const PATIENCE_US: u64 = 10;

/// Seals on the upper MAC's worker while the lower MAC is behind. What has passed the policer is sent in any case but the
/// rare drop from a queue, and a payload that was just received lies in this CPU's caches, not in the lower MAC's.
pub(crate) struct Assist {
    sealer: Sealer,
    arena: Arc<Arena>,
    protection: Protection,
    lower: Arc<LowerStats>,
    /// When frames came last.
    fed: u64,
    /// For how long what it holds waits for others to be sealed with, in ticks.
    patience: u64,
}

impl Assist {
    pub(crate) fn new(
        group: &Group,
        arena: &Arc<Arena>,
        config: &LowerConfig,
        lower: Arc<LowerStats>,
    ) -> Result<Self, SealError> {
        let sealer = Sealer::new(config.crypto, config.protection, arena, &group.keys())?;
        let patience = clock::us_to_ticks(PATIENCE_US);
        Ok(Self { sealer, arena: arena.clone(), protection: config.protection, lower, fed: 0, patience })
    }

    /// How many of a batch that has come are to be sealed here. If none, nothing is held back: it goes to `out`.
    #[inline]
    pub(crate) fn share(&mut self, now: u64, out: &mut Vec<Frame>) -> usize {
        self.fed = now;
        let share = ((self.lower.behind.get() / PER_FRAME) as usize).min(BATCH);
        if share < LEAST {
            self.flush(out);
            return 0;
        }
        share
    }

    /// Leaves a frame to the lower MAC, behind those that came before it.
    #[inline]
    pub(crate) fn pass(&mut self, frame: Frame, out: &mut Vec<Frame>) {
        self.sealer.pass(frame, |frame| out.push(frame));
    }

    /// Seals a PDU behind its lead; what is done goes to `out`, in the order it came. The frame comes back as an error
    /// when it has no room for the CRC.
    #[inline]
    pub(crate) fn seal(&mut self, mut frame: Frame, key: usize, out: &mut Vec<Frame>) -> Result<(), Frame> {
        let len = frame.len() + self.protection.added();
        if !self.arena.resize(&mut frame, len) {
            return Err(frame);
        }
        self.sealer.seal(frame, key, LEAD, |frame| out.push(frame));
        Ok(())
    }

    /// Ends a turn: frames wait for others to be sealed with, but not for those that may never come.
    #[inline]
    pub(crate) fn turn(&mut self, now: u64, out: &mut Vec<Frame>) {
        if now.saturating_sub(self.fed) > self.patience {
            self.flush(out);
        }
    }

    #[inline]
    pub(crate) fn flush(&mut self, out: &mut Vec<Frame>) {
        self.sealer.flush(|frame| out.push(frame));
    }

    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        self.sealer.waiting()
    }
}
