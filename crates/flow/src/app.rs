//! The switch's stages: extract, look up in three levels, act by groups.

use crate::emc::{Emc, FlowRef};
use crate::exec::{DROP, drop_as, execute, quick, quick_plain};
use crate::extract::{Layout, PlainKey, complete_partial, extract, plain};
use crate::key::{KEY_WORDS, Key};
use crate::megaflow::{Hot, Megaflows, Plan, bits};
use crate::pipeline::Pipeline;
use crate::stats::{CacheCounters, FlowStats};
use crate::translate::{Learn, Translator};
use bywash_engine::{App, Context, DropReason, Event, PortId};
use bywash_frame::{Arena, BATCH, Batch, Frame};
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
/// Megaflows looked after in a turn: normally, and after a change of the tables.
const SWEEP: usize = 1;
const SWEEP_CHANGED: usize = 32;
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
    /// Each flow's packets are sent on their own.
    by_flow: bool,
}

/// What the stages tell each other about a burst.
struct Work {
    /// Packets that are plain, as a set of bits, and their keys.
    plain: u64,
    plain_keys: [PlainKey; BATCH],
    /// Keys of the others, and of what the exact-match cache does not know.
    keys: [Key; BATCH],
    hashes: [u64; BATCH],
    layouts: [Layout; BATCH],
    flows: [FlowRef; BATCH],
    /// Packets that have a flow to act by.
    found: u64,
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
}

struct Caches {
    config: CacheConfig,
    /// For plain packets.
    plain: Emc<4>,
    /// For all others.
    others: Option<Emc<KEY_WORDS>>,
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
            plain: Emc::new(config.exact.max(2)),
            others: (config.exact > 0).then(|| Emc::new(config.exact.max(2))),
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
            plain: 0,
            plain_keys: [[0; 4]; BATCH],
            found: 0,
            keys: [[0; KEY_WORDS]; BATCH],
            hashes: [0; BATCH],
            layouts: [Layout::default(); BATCH],
            flows: [FlowRef::default(); BATCH],
            to: [DROP; BATCH],
            next: [0; BATCH],
        };
        Self { tables, caches, work: Box::new(work), by_flow: false }
    }

    /// Has it send the packets of each flow in a burst on their own, flow after flow, and not all that leave by a port
    /// together: how OVS did before it had transmit queues, to measure what those bring.
    pub fn sending_by_flow(mut self) -> Self {
        self.by_flow = true;
        self
    }
}

impl App for Switch {
    fn stages(&self) -> &'static [&'static str] {
        STAGES
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let n = batch.len();
        let Self { tables, caches, work, by_flow } = self;
        let pipeline: &Pipeline = tables.load(cx.reader);
        let of = pipeline.of_port(from).map_or(0, |of| of.0);
        if pipeline.partial(from) {
            complete(cx, from, batch.as_mut_slice());
        }
        if caches.config.exact > 0 {
            work.read_plain(cx.bufs.arena(), caches, of, batch.as_slice());
        } else {
            work.plain = 0;
        }
        let others = low_bits(n) & !work.plain;
        if others != 0 {
            work.read_others(cx.bufs.arena(), caches, of, batch.as_mut_slice(), others);
        }
        cx.stage(EXTRACT, n);
        caches.lookup(cx, pipeline, from, of, work, batch);
        cx.stage(LOOKUP, n);
        caches.act(cx, pipeline, from, of, work, batch);
        cx.stage(ACTIONS, n);
        if *by_flow {
            caches.send_by_flow(cx, from, work, batch);
        } else {
            send(cx, from, &work.to, batch);
        }
        cx.sent(n);
        caches.sort_in = caches.sort_in.saturating_sub(n as u64);
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let pipeline: &Pipeline = self.tables.load(cx.reader);
        self.caches.sweep(cx.now, pipeline)
    }
}

/// Completes the checksums that a sender on this host left to its device.
#[inline(never)]
fn complete(cx: &mut Context<'_>, from: PortId, frames: &mut [Frame]) {
    let arena = cx.bufs.arena();
    let completed = frames.iter_mut().fold(0, |n, frame| n + u64::from(complete_partial(arena.data_mut(frame))));
    if completed > 0 {
        cx.event(from, Event::ChecksumCompleted, completed);
    }
}

/// The lowest `n` bits, 0 to 64.
fn low_bits(n: usize) -> u64 {
    if n >= 64 { !0 } else { (1 << n) - 1 }
}

impl Work {
    /// Reads the plain packets.
    #[inline]
    fn read_plain(&mut self, arena: &Arena, caches: &Caches, of: u16, frames: &[Frame]) {
        frames.iter().take(AHEAD).for_each(|f| arena.prefetch(f));
        let mut plain_ones = 0;
        for (i, frame) in frames.iter().enumerate() {
            if let Some(ahead) = frames.get(i + AHEAD) {
                arena.prefetch(ahead);
            }
            let Some(key) = arena.head(frame).and_then(|head| plain(head, frame.len(), of)) else { continue };
            let hash = Emc::hash(&key, caches.ends.seed);
            (self.plain_keys[i % BATCH], self.hashes[i % BATCH]) = (key, hash);
            caches.plain.prefetch(hash);
            plain_ones |= 1 << (i % BATCH);
        }
        self.plain = plain_ones;
    }

    /// Reads the others; those that are no frames at all are dropped.
    fn read_others(&mut self, arena: &Arena, caches: &Caches, of: u16, frames: &mut [Frame], others: u64) {
        for i in bits(others) {
            if self.read(arena, of, &frames[i], i) {
                self.hashes[i] = Emc::hash(&self.keys[i], caches.ends.seed);
                if let Some(cache) = &caches.others {
                    cache.prefetch(self.hashes[i]);
                }
            } else {
                self.to[i] = drop_as(DropReason::Runt);
            }
        }
    }

    /// Reads a packet's fields; false when it has none.
    #[inline]
    fn read(&mut self, arena: &Arena, of: u16, frame: &Frame, i: usize) -> bool {
        match extract(arena.data(frame), of, &mut self.keys[i]) {
            Some(layout) => {
                self.layouts[i] = layout;
                true
            }
            None => {
                self.layouts[i] = Layout::default();
                false
            }
        }
    }
}

impl Work {
    /// Whether all `n` packets are of one flow and go one way.
    #[inline]
    fn one_way(&self, n: usize) -> bool {
        let n = n.min(BATCH);
        let (flows, to) = (&self.flows[..n], &self.to[..n]);
        let differ = |i: usize| (flows[i].at ^ flows[0].at) | u32::from(to[i].0 ^ to[0].0);
        self.found == low_bits(n) && (1..n).fold(0, |all, i| all | differ(i)) == 0
    }

    /// The packets of a group, in their order.
    #[inline]
    fn members<'a>(&self, group: &Group, into: &'a mut [u8; BATCH]) -> &'a mut [u8] {
        let mut i = group.first;
        let members = &mut into[..usize::from(group.n)];
        for member in members.iter_mut() {
            *member = i;
            i = self.next[usize::from(i) % BATCH];
        }
        members
    }
}

/// What a packet has that is plain.
const PLAIN_LAYOUT: Layout = Layout { l3: 14, l4: 34 };

impl Caches {
    /// Finds each packet's flow, and notes which packets have one. What has none that can be cached is handled on the
    /// spot.
    fn lookup(
        &mut self,
        cx: &mut Context<'_>,
        pipeline: &Pipeline,
        from: PortId,
        of: u16,
        work: &mut Work,
        batch: &mut Batch,
    ) {
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
        // What is no frame has its end already, and no fields.
        let mut rest = missed;
        if work.plain != all {
            let runts = bits(all & !work.plain).filter(|i| work.layouts[*i].l3 == 0).fold(0, |set, i| set | 1 << i);
            rest &= !runts;
            work.found &= !runts;
        }
        self.ends.counters.exact_hits.add(u64::from(work.found.count_ones()));
        if rest != 0 {
            self.lookup_rest(cx, pipeline, from, of, work, batch, rest, 0);
        }
    }

    /// The exact-match lookup of a burst that is not all plain packets; which are not known.
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

    /// Packets that the exact-match cache does not know (`rest`), or knows a flow of that is gone or older than the tables
    /// (`stale`).
    #[allow(clippy::too_many_arguments)]
    #[inline(never)]
    fn lookup_rest(
        &mut self,
        cx: &mut Context<'_>,
        pipeline: &Pipeline,
        from: PortId,
        of: u16,
        work: &mut Work,
        batch: &mut Batch,
        rest: u64,
        stale: u64,
    ) {
        for i in bits((rest | stale) & work.plain) {
            work.read(cx.bufs.arena(), of, &batch.as_slice()[i], i);
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
            if right || self.miss(cx, pipeline, from, i, work, batch) {
                work.found |= 1 << i;
            } else {
                work.found &= !(1 << i);
            }
        }
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
            && self.mega.cold(flow.at).generation == pipeline.generation
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
        let cold = self.mega.cold(at);
        let since = cold.generation;
        let touched = pipeline.rest_changed > since
            || (cold.bridged && pipeline.macs_changed > since)
            || (0..4).any(|w| {
                bits(cold.tables[w]).any(|b| pipeline.tables.get(64 * w + b).is_some_and(|t| t.changed > since))
            });
        self.ends.counters.revalidated.add(1);
        if !touched {
            self.mega.right_for(at, pipeline.generation);
            return true;
        }
        // What it counted was the old flows', and where an address was before says nothing of where it is.
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
        // Without a packet an address is not seen. The next packet of one that is forgotten, or known elsewhere, is not to
        // be found here: it has to be told of.
        let unseen = !seen && self.translator.learn.is_some_and(|learn| !pipeline.knows(&learn));
        if narrower || unseen {
            self.mega.remove(at);
            self.ends.counters.removed.add(1);
            return false;
        }
        if seen {
            self.tell_address();
        }
        let used = self.mega.cold(at).used;
        if self.mega.cold(at).ops != self.translator.ops {
            self.ends.counters.changed.add(1);
        }
        self.mega.fill(at, &self.translator, pipeline.generation, used);
        true
    }

    /// Counts a megaflow's packets for its flows, and tells, if `tell`, that their address is in use. True when there
    /// were any.
    fn credit(&mut self, at: u32, now: u64, tell: bool) -> bool {
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
            && tell
            && now.wrapping_sub(cold.told) > self.ticks_per_s
        {
            cold.told = now;
            if self.ends.learn.push(learn).is_err() {
                self.ends.counters.learn_later.add(1);
            }
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
        let changed = self.swept != pipeline.generation;
        for _ in 0..if changed { SWEEP_CHANGED } else { SWEEP } {
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
            if self.mega.hot(at).incarnation() == 0 {
                continue;
            }
            let current = self.mega.cold(at).generation == pipeline.generation;
            let used = self.credit(at, now, current);
            if !used && now.wrapping_sub(self.mega.cold(at).used) > self.idle {
                self.mega.remove(at);
                self.ends.counters.removed.add(1);
            } else if !current {
                self.revalidate(pipeline, at, None, now);
            }
        }
        self.swept != pipeline.generation
    }

    /// Does what each packet's flow says. Packets whose flow has more to do than a [`Plan::Quick`] are gathered in groups
    /// by flow, and each list of ops is run once for its group.
    fn act(
        &mut self,
        cx: &mut Context<'_>,
        pipeline: &Pipeline,
        from: PortId,
        of: u16,
        work: &mut Work,
        batch: &mut Batch,
    ) {
        let plain = work.plain == low_bits(batch.len()) && work.found == work.plain;
        let act = if plain { Self::act_each::<true> } else { Self::act_each::<false> };
        let (mut lists, stale) = act(self, cx.bufs.arena(), pipeline.generation, work, batch.as_mut_slice(), !0);
        if stale != 0 {
            work.found &= !stale;
            self.lookup_rest(cx, pipeline, from, of, work, batch, 0, stale);
            let arena = cx.bufs.arena();
            let (more, _) = self.act_each::<false>(arena, pipeline.generation, work, batch.as_mut_slice(), stale);
            lists |= more;
        }
        if lists != 0 {
            self.act_by_group(cx, pipeline, from, work, batch, lists);
        }
    }

    /// Acts on the packets of the set `which` that have a flow. Returns those whose flow has a list of ops, and those whose
    /// flow is gone or older than the tables.
    #[inline(always)]
    fn act_each<const PLAIN: bool>(
        &mut self,
        arena: &Arena,
        generation: u64,
        work: &mut Work,
        frames: &mut [Frame],
        which: u64,
    ) -> (u64, u64) {
        let (mut lists, mut stale) = (0u64, 0u64);
        let which = which & work.found;
        for (i, frame) in frames.iter_mut().enumerate().take(BATCH) {
            if !PLAIN && which >> i & 1 == 0 {
                continue;
            }
            let flow = work.flows[i];
            let hot = self.mega.hot(flow.at);
            if hot.valid != Hot::valid_for(flow.incarnation, generation) {
                stale |= 1 << i;
                continue;
            }
            hot.packets += 1;
            hot.bytes += frame.len() as u64;
            match hot.plan {
                Plan::Quick { value, keep, dec, to } => {
                    if PLAIN || work.plain >> i & 1 == 1 {
                        quick_plain(arena, frame, value, keep, dec);
                    } else {
                        quick(arena, frame, work.layouts[i], value, keep, dec);
                    }
                    work.to[i] = to;
                }
                Plan::Drop(reason) => work.to[i] = drop_as(reason),
                Plan::List => lists |= 1 << i,
            }
        }
        (lists, stale)
    }

    #[inline(never)]
    fn act_by_group(
        &mut self,
        cx: &mut Context<'_>,
        pipeline: &Pipeline,
        from: PortId,
        work: &mut Work,
        batch: &mut Batch,
        lists: u64,
    ) {
        for i in bits(lists & work.plain) {
            work.layouts[i] = PLAIN_LAYOUT;
        }
        let (groups, n) = self.gather(work, lists);
        for group in &groups[..n] {
            let mut members = [0; BATCH];
            let members = work.members(group, &mut members);
            let cold = self.mega.cold(group.flow);
            let frames = batch.as_mut_slice();
            execute(cx, pipeline, from, &cold.ops, cold.reason, frames, &mut work.layouts, members, &mut work.to);
        }
    }

    /// Gathers the packets of the set `which`, each of which has a flow, by it.
    #[inline]
    fn gather(&mut self, work: &mut Work, which: u64) -> ([Group; BATCH], usize) {
        self.burst = self.burst.wrapping_add(1).max(1);
        let mut groups = [const { Group { flow: 0, first: 0, last: 0, n: 0 } }; BATCH];
        let mut n = 0;
        for i in bits(which) {
            let at = work.flows[i].at;
            let cold = self.mega.cold(at);
            if cold.burst == self.burst {
                let group = &mut groups[usize::from(cold.group) % BATCH];
                work.next[usize::from(group.last) % BATCH] = i as u8;
                group.last = i as u8;
                group.n += 1;
            } else {
                (cold.burst, cold.group) = (self.burst, n as u8);
                groups[n % BATCH] = Group { flow: at, first: i as u8, last: i as u8, n: 1 };
                n += 1;
            }
        }
        (groups, n.min(BATCH))
    }

    /// Sends a burst's packets their ways, the packets of each flow on their own.
    #[inline(never)]
    fn send_by_flow(&mut self, cx: &mut Context<'_>, from: PortId, work: &mut Work, batch: &mut Batch) {
        if work.one_way(batch.len()) {
            return send_one_way(cx, from, work.to[0], batch);
        }
        let (groups, n) = self.gather(work, work.found);
        let mut frames = batch.drain();
        let mut frames: [Option<Frame>; BATCH] = std::array::from_fn(|_| frames.next());
        let mut group_frames = Batch::new();
        for group in &groups[..n] {
            let mut members = [0; BATCH];
            let mut to = None;
            for i in work.members(group, &mut members).iter().map(|i| usize::from(*i)) {
                let Some(frame) = frames[i].take() else { continue };
                if let Some(before) = to.replace(work.to[i]).filter(|before| *before != work.to[i]) {
                    send_one_way(cx, from, before, &mut group_frames);
                }
                let pushed = group_frames.push(frame);
                debug_assert!(pushed.is_ok());
            }
            send_one_way(cx, from, to.unwrap_or(DROP), &mut group_frames);
        }
        for (i, frame) in frames.into_iter().enumerate() {
            let pushed = frame.map_or(Ok(()), |frame| group_frames.push(frame));
            debug_assert!(pushed.is_ok());
            send_one_way(cx, from, work.to[i], &mut group_frames);
        }
    }
}

/// Sends all packets of `batch` by `to`, or drops them for the reason it holds.
fn send_one_way(cx: &mut Context<'_>, from: PortId, to: PortId, batch: &mut Batch) {
    match crate::exec::reason(to) {
        _ if batch.is_empty() => {}
        None => cx.send_batch(from, to, batch),
        Some(reason) => batch.drain().for_each(|frame| cx.drop(from, reason, frame)),
    }
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
