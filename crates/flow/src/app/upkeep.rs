//! Megaflow maintenance: revalidation, statistics and expiry.

use super::{Caches, EXAMINED, ROUNDS, SORT, SWEEP, SWEEP_CHANGED, SWEEP_MOST, lookup};
use crate::dependents::{SEVERAL, SOURCE, Step};
use crate::key::Key;
use crate::learn::FlowChange;
use crate::megaflow::bits;
use crate::pipeline::Pipeline;
use crate::translate::Report;

impl Caches {
    /// Revalidates a megaflow against the current tables. `key` is the key of one of its packets, if there is one.
    /// Returns `false` if the megaflow was removed.
    pub(super) fn revalidate(&mut self, pipeline: &Pipeline, at: u32, key: Option<&Key>, now: u64) -> bool {
        let cold = self.mega.cold(at);
        let since = cold.generation;
        let touched = pipeline.rest_changed > since
            || (0..4).any(|w| {
                bits(cold.tables[w]).any(|b| pipeline.tables.get(64 * w + b).is_some_and(|t| t.changed > since))
            });
        self.ends.counters.revalidated.add(1);
        if !touched {
            self.mega.mark_valid(at, pipeline.generation);
            self.drive(pipeline, at);
            return true;
        }
        // The counts belong to the old flows, and the port where the address was seen before may be outdated.
        self.credit(at, now, false);
        let seen = key.is_some();
        let sample;
        let key = match key {
            Some(key) => key,
            None => {
                sample = self.mega.sample(at);
                &sample
            }
        };
        self.translator.translate(pipeline, key);
        let mask = self.mega.mask(at);
        let narrower = self.translator.mask.key().iter().zip(mask).any(|(new, old)| new & !old != 0);
        // Without a packet there is nothing to learn from. If the address is unknown or known on another port, or the
        // flow is not there or another, remove the megaflow, so that the next packet takes the slow path and is learned
        // from.
        let known = pipeline.has_learned(&self.translator.learn)
            && self.translator.flow_changes.iter().all(|change| match change {
                FlowChange::Flow(flow) => pipeline.has_flow(&flow.spec),
                FlowChange::Ended(..) => true,
            });
        let unseen = !seen && !known;
        if narrower || unseen {
            self.forget(at);
            return false;
        }
        if seen {
            self.mega.cold(at).reported = if self.report_learned() { now } else { 0 };
        }
        let used = self.mega.cold(at).used;
        if self.mega.cold(at).ops != self.translator.ops {
            self.ends.counters.changed.add(1);
        }
        self.mega.fill(at, &self.translator, pipeline.generation, used);
        self.drive(pipeline, at);
        true
    }

    /// Returns whether megaflows are yet to be marked by [`Caches::mark_dependents`].
    #[inline]
    pub(super) fn is_behind(&self, pipeline: &Pipeline) -> bool {
        self.learned_next != pipeline.learned.end || self.examining_all.is_some() || !self.mega.dependents.is_done()
    }

    /// Marks the megaflows that depend on addresses learned or forgotten since the last call, for translation with
    /// their next packet. Examines at most [`EXAMINED`] megaflows; returns `true` if there are more.
    pub(super) fn mark_dependents(&mut self, pipeline: &Pipeline) -> bool {
        for _ in 0..EXAMINED {
            if let Some(at) = self.examining_all {
                let there = (at as usize) < self.mega.places();
                self.examining_all = there.then_some(at + 1);
                if there && self.mega.hot(at).incarnation() != 0 && self.mega.dependents.has(at) {
                    self.doubt(at);
                }
                continue;
            }
            match self.mega.dependents.step() {
                // The address is already known on the port that these packets come from: there is nothing to learn.
                Step::Found(at, SOURCE) if pipeline.has_learned(&self.mega.cold(at).learn) => {}
                Step::Found(at, _) => self.doubt(at),
                Step::Other => {}
                Step::End => match pipeline.learned.get(self.learned_next) {
                    Some(key) if self.learned_next < self.several_next => {
                        self.learned_next += 1;
                        self.mega.dependents.walk(key);
                    }
                    Some(_) => {
                        self.several_next = pipeline.learned.end;
                        self.mega.dependents.walk(SEVERAL);
                    }
                    None if self.learned_next == pipeline.learned.end => return false,
                    // The worker slept for longer than keys are kept.
                    None => {
                        (self.learned_next, self.several_next) = (pipeline.learned.end, pipeline.learned.end);
                        self.examining_all = Some(0);
                    }
                },
            }
        }
        true
    }

    /// Marks a megaflow to be translated again with its next packet, which the driver leaves to this worker.
    fn doubt(&mut self, at: u32) {
        self.mega.doubt(at);
        if let (Some(driven), Some(place)) = (&self.driven, self.mega.cold(at).driven.checked_sub(1)) {
            driven.distrust(place);
        }
    }

    /// Removes a megaflow.
    fn forget(&mut self, at: u32) {
        self.retire(at);
        self.mega.remove(at);
        self.ends.counters.removed.add(1);
    }

    /// Credits a megaflow's packets to its flows. If `refresh` is set, also reports that its address is in use. Returns
    /// `true` if there were packets.
    pub(super) fn credit(&mut self, at: u32, now: u64, refresh: bool) -> bool {
        let (packets, bytes) = self.mega.take_counts(at);
        let (driven, driven_bytes) = self.take_driven(at);
        let (packets, bytes) = (packets + driven, bytes + driven_bytes);
        let cold = self.mega.cold(at);
        if packets == 0 {
            return false;
        }
        for rule in &cold.rules {
            self.ends.stats.add(*rule, packets, bytes);
        }
        // Reports refresh the address, and the flow, before it ages out; one per second is enough.
        // A report for which there is no room is repeated with the next packets; until the first, the address is new.
        let report = if cold.reported == 0 { Report::Seen } else { Report::Used };
        if refresh
            && now.wrapping_sub(cold.reported) > self.ticks_per_s
            && lookup::report(&mut self.ends, &cold.learn, &cold.flow_changes, report)
        {
            cold.reported = now;
        }
        cold.used = now;
        true
    }

    /// Maintains a few megaflows: credits counts, revalidates, removes idle ones. Returns `true` while a change of the
    /// tables needs more work.
    pub(super) fn sweep(&mut self, now: u64, pipeline: &Pipeline) -> bool {
        if self.sort_in == 0 {
            self.mega.sort();
            self.sort_in = SORT;
        }
        if self.sweep_at == 0 {
            self.sweeping = pipeline.generation;
        }
        let changed = self.swept != pipeline.generation;
        // A round of all megaflows takes half a second at most, also on a worker that sleeps and so has few turns:
        // timeouts of flows and addresses are counted in seconds, and depend on the counts being credited.
        let rate = ROUNDS * self.mega.places() as u64;
        let elapsed = now.wrapping_sub(self.swept_last);
        let due = rate.saturating_mul(elapsed) / self.ticks_per_s;
        // The time of a part of a megaflow counts in the next turn.
        self.swept_last = match due {
            0..=SWEEP_MOST => self.swept_last.wrapping_add(due * self.ticks_per_s / rate.max(1)),
            _ => now,
        };
        let least = if changed { SWEEP_CHANGED } else { SWEEP };
        let mut checked = 0;
        for _ in 0..least.max(due.min(SWEEP_MOST) as usize) {
            if self.sweep_at >= self.mega.places() {
                self.sweep_at = 0;
                self.swept = self.sweeping;
                let counters = &self.ends.counters;
                if self.driven.is_none() {
                    counters.generation.set(self.swept);
                }
                counters.megaflows.set(self.mega.len() as u64);
                counters.masks.set(self.mega.masks() as u64);
                break;
            }
            let at = self.sweep_at as u32;
            self.sweep_at += 1;
            if self.mega.hot(at).incarnation() == 0 {
                continue;
            }
            let current = self.mega.cold(at).generation == pipeline.generation;
            let used = self.credit(at, now, current);
            if !used && now.wrapping_sub(self.mega.cold(at).used) > self.idle {
                self.forget(at);
            } else if !current {
                self.revalidate(pipeline, at, None, now);
                checked += 1;
                // A translation takes much longer than the rest.
                if checked == SWEEP_CHANGED {
                    break;
                }
            } else if used && self.mega.cold(at).driven == 0 {
                self.drive(pipeline, at);
            }
        }
        self.swept != pipeline.generation
    }
}

#[cfg(test)]
mod tests {
    use crate::app::CacheConfig;
    use crate::control::{BridgeConfig, FlowControl};
    use crate::key::KEY_WORDS;
    use crate::translate::Translator;
    use bywash_sync::Qsbr;

    /// The control side looks for new packets once a second: it must find those of every megaflow that has any.
    #[test]
    fn a_worker_that_sleeps_credits_every_megaflow_between_two_checks() {
        let domain = Qsbr::new();
        let mut control = FlowControl::new(&domain, vec![], BridgeConfig::default());
        for megaflows in [1, 7, 197, 20_000] {
            let mut switch = control.worker(CacheConfig::default(), 1);
            let reader = domain.register();
            let pipeline = switch.tables.load(&reader);
            let mut result = Translator::default();
            result.mask.0[0] = !0;
            for n in 0..megaflows {
                let mut key = [0; KEY_WORDS];
                key[0] = n;
                assert!(switch.caches.mega.insert(&key, &result, pipeline.generation, 0).is_ok());
            }
            let nap = switch.caches.ticks_per_s / 100;
            let mut now = nap;
            while switch.caches.sweep(now, pipeline) {
                now += nap;
            }
            let mut rounds = 0;
            for _ in 0..200 {
                now += nap;
                let before = switch.caches.sweep_at;
                switch.caches.sweep(now, pipeline);
                rounds += u64::from(switch.caches.sweep_at < before);
            }
            assert!(rounds >= 3, "{megaflows} megaflows: {rounds} rounds in two seconds");
        }
    }
}
