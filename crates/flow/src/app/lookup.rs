//! Flow lookup for a burst: exact-match cache, megaflow cache, then tables.

use super::{Arrival, Caches, Ends, Work, low_bits};
use crate::exec::execute;
use crate::learn::FlowChange;
use crate::megaflow::bits;
use crate::translate::{Learn, Report};
use bywash_engine::Context;
use bywash_frame::{BATCH, Batch};

impl Caches {
    /// Finds each packet's flow and records which packets have one. Packets whose flow cannot be cached are processed
    /// at once.
    pub(super) fn lookup(&mut self, cx: &mut Context<'_>, arrival: Arrival<'_>, work: &mut Work, batch: &mut Batch) {
        let n = batch.len().min(BATCH);
        let all = low_bits(n);
        let mut missed = 0u64;
        if work.plain == all {
            for i in 0..n {
                let found = self.plain.find(&work.plain_keys[i], work.hashes[i]).unwrap_or_default();
                self.mega.prefetch(found);
                work.flows[i] = found;
                missed |= u64::from(found.incarnation == 0) << i;
            }
        } else {
            missed = self.lookup_mixed(work, all);
        }
        work.found = all & !missed;
        // Runts already have a drop reason, and no fields to look up.
        let mut rest = missed;
        if work.plain != all {
            let runts = bits(all & !work.plain).filter(|i| work.layouts[*i].l3 == 0).fold(0, |set, i| set | 1 << i);
            rest &= !runts;
            work.found &= !runts;
        }
        self.ends.counters.exact_hits.add(u64::from(work.found.count_ones()));
        if rest != 0 {
            self.lookup_rest(cx, arrival, work, batch, rest, 0);
        }
    }

    /// Looks up a burst with packets that are not plain in the exact-match cache. Returns the set of packets not found.
    fn lookup_mixed(&self, work: &mut Work, all: u64) -> u64 {
        let mut missed = 0;
        for i in bits(all) {
            let found = if work.plain >> i & 1 == 1 {
                self.plain.find(&work.plain_keys[i], work.hashes[i])
            } else {
                self.others.as_ref().and_then(|cache| cache.find(&work.keys[i], work.hashes[i]))
            };
            work.flows[i] = found.unwrap_or_default();
            missed |= u64::from(found.is_none()) << i;
        }
        missed
    }

    /// Looks up packets that missed the exact-match cache (`rest`) or hit a flow that is gone or older than the tables
    /// (`stale`).
    #[inline(never)]
    pub(super) fn lookup_rest(
        &mut self,
        cx: &mut Context<'_>,
        arrival: Arrival<'_>,
        work: &mut Work,
        batch: &mut Batch,
        rest: u64,
        stale: u64,
    ) {
        let Arrival { pipeline, of, .. } = arrival;
        for i in bits((rest | stale) & work.plain) {
            work.read(cx.bufs.arena(), (of, pipeline.vlan_limit), &batch.as_slice()[i], i);
        }
        let dead = bits(stale).filter(|i| !self.mega.lives(work.flows[*i])).fold(0, |set, i| set | 1 << i);
        let mut stale = stale & !dead;
        let (unknown, tries) = self.mega.find_batch(&work.keys, rest | dead, &mut work.flows);
        let hits = (rest | dead) & !unknown;
        let counters = &self.ends.counters;
        counters.masks_tried.add(tries);
        counters.megaflow_hits.add(u64::from(hits.count_ones()));
        work.found = (work.found | hits) & !unknown;
        for i in bits(hits) {
            stale |= u64::from(self.mega.cold(work.flows[i].at).generation != pipeline.generation) << i;
            self.remember(work, i);
        }
        for i in bits(unknown | stale) {
            let flow = work.flows[i];
            let right = stale >> i & 1 == 1
                && self.mega.lives(flow)
                && (self.mega.cold(flow.at).generation == pipeline.generation
                    || self.revalidate(pipeline, flow.at, Some(&work.keys[i]), cx.now));
            if right || self.miss(cx, arrival, i, work, batch) {
                work.found |= 1 << i;
            } else {
                work.found &= !(1 << i);
            }
        }
    }

    /// Inserts a packet's key into the exact-match cache with a probability of one in `insert_one_in`.
    fn remember(&mut self, work: &Work, i: usize) {
        if self.config.exact == 0 {
            return;
        }
        // xorshift64 (Marsaglia 2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if !(self.random >> 32).is_multiple_of(u64::from(self.config.insert_one_in.max(1))) {
            return;
        }
        let (hash, flow, coin, mega) = (work.hashes[i], work.flows[i], self.random & 1 == 1, &self.mega);
        if work.plain >> i & 1 == 1 {
            self.plain.insert(&work.plain_keys[i], hash, flow, coin, |f| mega.lives(f));
        } else if let Some(cache) = &mut self.others {
            cache.insert(&work.keys[i], hash, flow, coin, |f| mega.lives(f));
        }
    }

    /// Sends a packet through the tables. Returns `true` if its flow is now in the cache; otherwise the packet has been
    /// processed.
    #[cold]
    fn miss(
        &mut self,
        cx: &mut Context<'_>,
        arrival: Arrival<'_>,
        i: usize,
        work: &mut Work,
        batch: &mut Batch,
    ) -> bool {
        let Arrival { pipeline, from, .. } = arrival;
        // An earlier packet of the burst may have installed the same flow.
        if let Some(flow) = self.mega.find(&work.keys[i])
            && self.mega.cold(flow.at).generation == pipeline.generation
        {
            work.flows[i] = flow;
            self.ends.counters.megaflow_hits.add(1);
            return true;
        }
        self.ends.counters.misses.add(1);
        self.translator.translate(pipeline, &work.keys[i]);
        let reported = self.report_learned();
        match self.mega.insert(&work.keys[i], &self.translator, pipeline.generation, cx.now) {
            Ok((flow, narrow)) => {
                self.ends.counters.made.add(1);
                self.ends.counters.masks_full.add(u64::from(narrow));
                work.flows[i] = flow;
                self.mega.cold(flow.at).reported = if reported { cx.now } else { 0 };
                self.remember(work, i);
                self.drive(pipeline, flow.at);
                true
            }
            Err(_) => {
                self.ends.counters.not_cached.add(1);
                let bytes = batch.as_slice()[i].len() as u64;
                for rule in &self.translator.rules {
                    self.ends.stats.add(*rule, 1, bytes);
                }
                let reason = self.translator.reason;
                let mut one = [i as u8];
                let ops = std::mem::take(&mut self.translator.ops);
                execute(
                    cx,
                    pipeline,
                    from,
                    &ops,
                    reason,
                    batch.as_mut_slice(),
                    &mut work.layouts,
                    &mut one,
                    &mut work.to,
                );
                self.translator.ops = ops;
                false
            }
        }
    }

    /// Reports the source addresses and the flows of the packet just translated. Returns `false` if there is no room
    /// for all.
    pub(super) fn report_learned(&mut self) -> bool {
        report(&mut self.ends, &self.translator.learn, &self.translator.flow_changes, Report::Seen)
    }
}

/// Reports addresses and changes of flows. Returns `false` if there is no room for all reports.
pub(super) fn report(
    ends: &mut Ends,
    addresses: &[Learn],
    flow_changes: &[FlowChange],
    kind: fn(Learn) -> Report,
) -> bool {
    let reports = addresses.iter().map(|learn| kind(*learn)).chain(flow_changes.iter().cloned().map(Report::Change));
    let refused = reports.filter_map(|report| ends.learn.push(report).err()).count();
    ends.counters.learn_later.add(refused as u64);
    refused == 0
}
