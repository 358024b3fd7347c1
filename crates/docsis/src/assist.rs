//! Sealing on the upper MAC, for frames that the lower MAC has no time to seal.

use crate::group::{Group, LEAD};
use crate::keys::NewKeys;
use crate::lower::{LowerConfig, LowerStats};
use crate::protect::Protection;
use crate::seal::{SealError, Sealer};
use bywash_frame::{Arena, BATCH, Frame};
use bywash_sync::clock;
use std::sync::Arc;

/// Number of frames queued at the lower MAC for which the upper MAC seals one frame of each batch.
const PER_FRAME: u64 = 8;
/// Minimum number of frames to seal of a batch: libipsec-mb has lanes to fill, and frames that are not sealed wait for
/// those that are.
const LEAST: usize = 16;
/// Maximum time in microseconds that frames wait in the sealer for more frames.
const PATIENCE_US: u64 = 10;

/// Sealer on the upper MAC's worker, active while the lower MAC is behind. Nearly all frames that pass the policer are
/// sent, apart from rare queue drops, so the work is seldom wasted, and a payload just received is in this CPU's caches
/// and not in the lower MAC's.
pub(crate) struct Assist {
    sealer: Sealer,
    /// New keys; `None` if they never change.
    new_keys: Option<NewKeys>,
    arena: Arc<Arena>,
    protection: Protection,
    lower: Arc<LowerStats>,
    /// Time of the last batch in TSC ticks.
    fed: u64,
    /// Maximum time that frames wait in the sealer in TSC ticks.
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
        Ok(Self {
            sealer,
            new_keys: None,
            arena: arena.clone(),
            protection: config.protection,
            lower,
            fed: 0,
            patience,
        })
    }

    /// Takes new keys from the control half.
    pub(crate) fn keyed_by(&mut self, new_keys: NewKeys) {
        self.new_keys = Some(new_keys);
    }

    /// Returns the number of frames of a new batch to seal here. If it is 0, flushes all frames held to `out`.
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

    /// Passes a frame on unsealed, in order behind the frames held.
    #[inline]
    pub(crate) fn pass(&mut self, frame: Frame, out: &mut Vec<Frame>) {
        self.sealer.pass(frame, |frame| out.push(frame));
    }

    /// Seals the PDU after its lead; finished frames go to `out`, in order. Errors with the frame if it has no room for
    /// the CRC.
    #[inline]
    pub(crate) fn seal(&mut self, mut frame: Frame, key: usize, out: &mut Vec<Frame>) -> Result<(), Frame> {
        let len = frame.len() + self.protection.added();
        if !self.arena.resize(&mut frame, len) {
            return Err(frame);
        }
        self.sealer.seal(frame, key, LEAD, |frame| out.push(frame));
        Ok(())
    }

    /// Ends a turn: takes new keys, and flushes frames that have waited too long for more.
    #[inline]
    pub(crate) fn turn(&mut self, now: u64, out: &mut Vec<Frame>) {
        if let Some(new_keys) = &mut self.new_keys {
            new_keys.take(&mut self.sealer, |frame| out.push(frame));
        }
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
