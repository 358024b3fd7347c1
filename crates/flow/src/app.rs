//! The switch's stages: extract, look up in three levels, act by groups.

use crate::emc::{Emc, FlowRef};
use crate::exec::{DROP, drop_as, execute};
use crate::extract::{Layout, extract};
use crate::key::{KEY_WORDS, Key, SHORT_WORDS};
use crate::megaflow::{Megaflows, Plan, bits};
use crate::pipeline::Pipeline;
use crate::stats::{CacheCounters, FlowStats};
use crate::translate::{Learn, Translator};
use bywash_engine::{App, Context, DropReason, PortId};
use bywash_frame::{BATCH, Batch};
use bywash_sync::{Published, clock};
use std::sync::Arc;

/// The caches' settings.
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Keys in the exact-match cache; 0: none.
    pub exact: usize,
    /// One in this many flows found elsewhere is put there.
    pub insert_one_in: u32,
    /// Most megaflows.
    pub megaflows: usize,
    /// A megaflow without packets goes after this many seconds.
    pub idle_s: u64,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self { exact: 8192, insert_one_in: 100, megaflows: 200_000, idle_s: 10 }
    }
}

/// The stage names, in order.
const STAGES: &[&str] = &["extract", "lookup", "actions"];
const EXTRACT: usize = 0;
const LOOKUP: usize = 1;
const ACTIONS: usize = 2;
/// How many packets ahead to load.
const AHEAD: usize = 4;
/// Megaflows looked after in a turn.
const SWEEP: usize = 16;
/// Tuples are sorted anew after this many packets.
const SORT: u64 = 1 << 16;

/// What a worker shares with the control side.
pub(crate) struct Ends {
    pub stats: Arc<FlowStats>,
    pub counters: Arc<CacheCounters>,
    pub learn: rtrb::Producer<Learn>,
    pub seed: u64,
}

/// One worker's switch.
pub struct Switch {
    tables: Arc<Published<Arc<Pipeline>>>,
    caches: Caches,
    work: Box<Work>,
}

/// What the stages tell each other about a burst.
struct Work {
    keys: [Key; BATCH],
    hashes: [u64; BATCH],
    layouts: [Layout; BATCH],
    flows: [FlowRef; BATCH],
    /// Where each packet leaves: see [`crate::exec`].
    to: [PortId; BATCH],
    /// The group's next packet.
    next: [u8; BATCH],
}

struct Group {
    flow: u32,
    first: u8,
    last: u8,
    n: u8,
    bytes: u32,
}

struct Caches {
    config: CacheConfig,
    short: Emc<SHORT_WORDS>,
    /// For packets with more to them: IPv6, ARP.
    long: Option<Emc<KEY_WORDS>>,
    mega: Megaflows,
    translator: Translator,
    ends: Ends,
    /// State of the generator that decides on insertions.
    random: u64,
    burst: u32,
    sort_in: u64,
    sweep_at: usize,
    /// Generation the sweep in progress began with.
    sweeping: u64,
    swept: u64,
    idle: u64,
    ticks_per_s: u64,
}

impl Switch {
    pub(crate) fn new(tables: Arc<Published<Arc<Pipeline>>>, config: CacheConfig, ends: Ends) -> Self {
        let hz = clock::tsc_hz();
        let caches = Caches {
            config,
            short: Emc::new(config.exact.max(2)),
            long: (config.exact > 0).then(|| Emc::new(config.exact.max(2))),
            mega: Megaflows::new(config.megaflows.max(16), ends.seed),
            translator: Translator::default(),
            random: ends.seed | 1,
            burst: 0,
            sort_in: SORT,
            sweep_at: 0,
            sweeping: 0,
            swept: 0,
            idle: hz.saturating_mul(config.idle_s),
            ticks_per_s: hz,
            ends,
        };
        let work = Work {
            keys: [[0; KEY_WORDS]; BATCH],
            hashes: [0; BATCH],
            layouts: [Layout::default(); BATCH],
            flows: [FlowRef::default(); BATCH],
            to: [DROP; BATCH],
            next: [0; BATCH],
        };
        Self { tables, caches, work: Box::new(work) }
    }
}

impl App for Switch {
    fn stages(&self) -> &'static [&'static str] {
        STAGES
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let n = batch.len();
        let Self { tables, caches, work } = self;
        let pipeline: &Pipeline = tables.load(cx.reader);
        let of = pipeline.of_port(from).map_or(0, |of| of.0);
        let known = work.extract(cx, caches, of, batch);
        cx.stage(EXTRACT, n);
        let rest = caches.lookup(cx, pipeline, from, known, work, batch);
        cx.stage(LOOKUP, n);
        caches.act(cx, pipeline, from, rest, work, batch);
        cx.stage(ACTIONS, n);
        send(cx, from, &work.to, batch);
        cx.sent(n);
        caches.sort_in = caches.sort_in.saturating_sub(n as u64);
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let pipeline: &Pipeline = self.tables.load(cx.reader);
        self.caches.sweep(cx.now, pipeline)
    }
}

impl Work {
    /// Reads every packet's fields; returns which packets are any.
    #[inline]
    fn extract(&mut self, cx: &Context<'_>, caches: &Caches, of: u16, batch: &Batch) -> u64 {
        let arena = cx.bufs.arena();
        let frames = batch.as_slice();
        let mut known = 0;
        frames.iter().take(AHEAD).for_each(|f| arena.prefetch(f));
        for (i, frame) in frames.iter().enumerate().take(BATCH) {
            if let Some(ahead) = frames.get(i + AHEAD) {
                arena.prefetch(ahead);
            }
            let key = &mut self.keys[i];
            let Some(layout) = extract(arena.data(frame), of, key) else { continue };
            known |= 1 << i;
            self.layouts[i] = layout;
            let hash = Emc::<SHORT_WORDS>::hash(key.first_chunk().expect("shorter"), caches.ends.seed);
            self.hashes[i] = hash;
            caches.short.prefetch(hash);
        }
        known
    }
}

impl Caches {
    /// Finds each packet's flow. What has none that can be cached is handled on the spot. Returns the others.
    fn lookup(
        &mut self,
        cx: &mut Context<'_>,
        pipeline: &Pipeline,
        from: PortId,
        known: u64,
        work: &mut Work,
        batch: &mut Batch,
    ) -> u64 {
        let n = batch.len();
        let all = if n == BATCH { !0 } else { (1 << n) - 1 };
        for i in bits(all & !known) {
            work.to[i] = drop_as(DropReason::Runt);
        }
        let mut missed = known;
        if self.config.exact > 0 {
            for i in bits(known) {
                let key = &work.keys[i];
                let found = if is_short(key) {
                    self.short.find(key.first_chunk().expect("shorter"), work.hashes[i])
                } else if let Some(long) = &self.long {
                    work.hashes[i] = Emc::hash(key, self.ends.seed);
                    long.find(key, work.hashes[i])
                } else {
                    None
                };
                if let Some(flow) = found {
                    self.mega.prefetch(flow);
                    work.flows[i] = flow;
                    missed &= !(1 << i);
                }
            }
        }
        // Known to the exact-match cache, but gone, or older than the tables.
        let mut stale = 0u64;
        for i in bits(known & !missed) {
            let hot = self.mega.hot(work.flows[i].at);
            let dead = hot.incarnation != work.flows[i].incarnation;
            missed |= u64::from(dead) << i;
            stale |= u64::from(!dead && hot.generation != pipeline.generation) << i;
        }
        let counters = &self.ends.counters;
        counters.exact_hits.add(u64::from((known & !missed).count_ones()));
        let mut rest = known;
        if missed != 0 {
            let (unknown, tries) = self.mega.find_batch(&work.keys, missed, &mut work.flows);
            counters.masks_tried.add(tries);
            counters.megaflow_hits.add(u64::from((missed & !unknown).count_ones()));
            for i in bits(missed & !unknown) {
                stale |= u64::from(self.mega.hot(work.flows[i].at).generation != pipeline.generation) << i;
                self.remember(work, i);
            }
            for i in bits(unknown) {
                if !self.miss(cx, pipeline, from, i, work, batch) {
                    rest &= !(1 << i);
                }
            }
        }
        for i in bits(stale) {
            let flow = work.flows[i];
            let right = self.mega.lives(flow)
                && (self.mega.hot(flow.at).generation == pipeline.generation
                    || self.revalidate(pipeline, flow.at, Some(&work.keys[i]), cx.now));
            if !right && !self.miss(cx, pipeline, from, i, work, batch) {
                rest &= !(1 << i);
            }
        }
        rest
    }

    /// Puts a packet's key in the exact-match cache, perhaps.
    fn remember(&mut self, work: &Work, i: usize) {
        if self.config.exact == 0 {
            return;
        }
        // xorshift64 (Marsaglia 2003).
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        if self.config.insert_one_in > 1 && (self.random >> 32) % u64::from(self.config.insert_one_in) != 0 {
            return;
        }
        let (key, hash, coin) = (&work.keys[i], work.hashes[i], self.random & 1 == 1);
        let mega = &self.mega;
        if is_short(key) {
            let short = key.first_chunk().expect("shorter");
            self.short.insert(short, hash, work.flows[i], coin, |f| mega.lives(f));
        } else if let Some(long) = &mut self.long {
            long.insert(key, hash, work.flows[i], coin, |f| mega.lives(f));
        }
    }

    /// Takes a packet through the tables. True when its flow is now in the cache; else it has been handled.
    #[cold]
    fn miss(
        &mut self,
        cx: &mut Context<'_>,
        pipeline: &Pipeline,
        from: PortId,
        i: usize,
        work: &mut Work,
        batch: &mut Batch,
    ) -> bool {
        // A packet before it in the burst may have been of the same flow.
        if let Some(flow) = self.mega.find(&work.keys[i])
            && self.mega.hot(flow.at).generation == pipeline.generation
        {
            work.flows[i] = flow;
            self.ends.counters.megaflow_hits.add(1);
            return true;
        }
        self.ends.counters.misses.add(1);
        self.translator.translate(pipeline, &work.keys[i]);
        self.tell_address();
        match self.mega.insert(&work.keys[i], &self.translator, pipeline.generation, cx.now) {
            Ok((flow, narrow)) => {
                self.ends.counters.made.add(1);
                self.ends.counters.masks_full.add(u64::from(narrow));
                work.flows[i] = flow;
                self.remember(work, i);
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

    fn tell_address(&mut self) {
        if let Some(learn) = self.translator.learn
            && self.ends.learn.push(learn).is_err()
        {
            self.ends.counters.learn_later.add(1);
        }
    }

    /// Brings a megaflow up to date; false when it had to go. `key`: a packet of it.
    fn revalidate(&mut self, pipeline: &Pipeline, at: u32, key: Option<&Key>, now: u64) -> bool {
        let since = self.mega.hot(at).generation;
        let cold = self.mega.cold(at);
        let touched = pipeline.rest_changed > since
            || (cold.bridged && pipeline.macs_changed > since)
            || (0..4).any(|w| {
                bits(cold.tables[w]).any(|b| pipeline.tables.get(64 * w + b).is_some_and(|t| t.changed > since))
            });
        self.ends.counters.revalidated.add(1);
        if !touched {
            self.mega.hot(at).generation = pipeline.generation;
            return true;
        }
        // What it counted was the old flows'.
        self.credit(at, now);
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
        if narrower {
            self.mega.remove(at);
            self.ends.counters.removed.add(1);
            return false;
        }
        self.tell_address();
        let used = self.mega.cold(at).used;
        if self.mega.cold(at).ops != self.translator.ops {
            self.ends.counters.changed.add(1);
        }
        self.mega.fill(at, &self.translator, pipeline.generation, used);
        true
    }

    /// Counts a megaflow's packets for its flows. True when there were any.
    fn credit(&mut self, at: u32, now: u64) -> bool {
        let (packets, bytes) = self.mega.take_counts(at);
        let cold = self.mega.cold(at);
        if packets == 0 {
            return false;
        }
        for rule in &cold.rules {
            self.ends.stats.add(*rule, packets, bytes);
        }
        // An address in use is kept; saying so once a second is enough.
        if let Some(learn) = cold.learn
            && now.wrapping_sub(cold.used) > self.ticks_per_s
            && self.ends.learn.push(learn).is_err()
        {
            self.ends.counters.learn_later.add(1);
        }
        cold.used = now;
        true
    }

    /// Looks after a few megaflows: their counts, whether they are right, whether they are used. True while there is
    /// more to do for a change.
    fn sweep(&mut self, now: u64, pipeline: &Pipeline) -> bool {
        if self.sort_in == 0 {
            self.mega.sort();
            self.sort_in = SORT;
        }
        if self.sweep_at == 0 {
            self.sweeping = pipeline.generation;
        }
        for _ in 0..SWEEP {
            if self.sweep_at >= self.mega.places() {
                self.sweep_at = 0;
                self.swept = self.sweeping;
                let counters = &self.ends.counters;
                counters.generation.set(self.swept);
                counters.megaflows.set(self.mega.len() as u64);
                counters.masks.set(self.mega.masks() as u64);
                break;
            }
            let at = self.sweep_at as u32;
            self.sweep_at += 1;
            if self.mega.hot(at).incarnation == 0 {
                continue;
            }
            let used = self.credit(at, now);
            if !used && now.wrapping_sub(self.mega.cold(at).used) > self.idle {
                self.mega.remove(at);
                self.ends.counters.removed.add(1);
            } else if self.mega.hot(at).generation != pipeline.generation {
                self.revalidate(pipeline, at, None, now);
            }
        }
        self.swept != pipeline.generation
    }

    /// Groups the packets by flow, and acts once for each group.
    fn act(
        &mut self,
        cx: &mut Context<'_>,
        pipeline: &Pipeline,
        from: PortId,
        rest: u64,
        work: &mut Work,
        batch: &mut Batch,
    ) {
        self.burst = self.burst.wrapping_add(1).max(1);
        let mut groups: [Group; BATCH] = [const { Group { flow: 0, first: 0, last: 0, n: 0, bytes: 0 } }; BATCH];
        let mut n = 0;
        for i in bits(rest) {
            let at = work.flows[i].at;
            let len = batch.as_slice()[i].len() as u32;
            let hot = self.mega.hot(at);
            if hot.burst == self.burst {
                let group = &mut groups[usize::from(hot.group) % BATCH];
                work.next[usize::from(group.last) % BATCH] = i as u8;
                group.last = i as u8;
                group.n += 1;
                group.bytes += len;
            } else {
                (hot.burst, hot.group) = (self.burst, n as u8);
                groups[n % BATCH] = Group { flow: at, first: i as u8, last: i as u8, n: 1, bytes: len };
                n += 1;
            }
        }
        for group in &groups[..n.min(BATCH)] {
            let hot = self.mega.hot(group.flow);
            hot.packets += u32::from(group.n);
            hot.bytes += u64::from(group.bytes);
            match hot.plan {
                Plan::Quick { value, set, dec, to } => {
                    let arena = cx.bufs.arena();
                    let mut i = usize::from(group.first) % BATCH;
                    for _ in 0..group.n {
                        let frame = &mut batch.as_mut_slice()[i];
                        crate::exec::quick(arena, frame, work.layouts[i], value, set, dec);
                        work.to[i] = to;
                        i = usize::from(work.next[i]) % BATCH;
                    }
                }
                Plan::Drop(reason) => {
                    let mut i = usize::from(group.first) % BATCH;
                    for _ in 0..group.n {
                        work.to[i] = drop_as(reason);
                        i = usize::from(work.next[i]) % BATCH;
                    }
                }
                Plan::List => {
                    let mut members = [0; BATCH];
                    let mut i = group.first;
                    for member in &mut members[..usize::from(group.n)] {
                        *member = i;
                        i = work.next[usize::from(i) % BATCH];
                    }
                    let cold = self.mega.cold(group.flow);
                    let members = &mut members[..usize::from(group.n)];
                    let (ops, reason) = (&cold.ops, cold.reason);
                    execute(
                        cx,
                        pipeline,
                        from,
                        ops,
                        reason,
                        batch.as_mut_slice(),
                        &mut work.layouts,
                        members,
                        &mut work.to,
                    );
                }
            }
        }
    }
}

#[inline(always)]
fn is_short(key: &Key) -> bool {
    key[SHORT_WORDS..].iter().fold(0, |or, w| or | w) == 0
}

/// Sends a burst's packets their ways.
fn send(cx: &mut Context<'_>, from: PortId, to: &[PortId; BATCH], batch: &mut Batch) {
    let to = &to[..batch.len().min(BATCH)];
    let Some(first) = to.first() else { return };
    let differ = to.iter().fold(0, |differ, to| differ | (to.0 ^ first.0));
    if differ == 0 && crate::exec::reason(*first).is_none() {
        return cx.send_batch(from, *first, batch);
    }
    for (frame, to) in batch.drain().zip(to) {
        match crate::exec::reason(*to) {
            None => cx.send(from, *to, frame),
            Some(reason) => cx.drop(from, reason, frame),
        }
    }
}
