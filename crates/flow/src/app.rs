//! Worker stages of the switch: extract keys, look up in three levels, apply actions by group.

mod act;
mod driver;
mod lookup;
mod read;
mod upkeep;

use crate::emc::{Emc, FlowRef};
use crate::exec::DROP;
use crate::extract::{Layout, PlainKey};
use crate::key::{KEY_WORDS, Key};
use crate::megaflow::Megaflows;
use crate::pipeline::Pipeline;
use crate::stats::{CacheCounters, FlowStats};
use crate::translate::{Report, Translator};
use bywash_engine::{App, Context, PortId};
use bywash_frame::{BATCH, Batch};
use bywash_port::af_xdp::FlowTable;
use bywash_sync::{Published, clock};
use driver::Driven;
use std::sync::Arc;

/// Cache settings of a worker.
#[derive(Clone, Copy, Debug)]
pub struct CacheConfig {
    /// Number of keys in the exact-match cache; 0 disables it.
    pub exact: usize,
    /// One in this many flows found in the megaflow cache or the tables is inserted into the exact-match cache.
    pub insert_one_in: u32,
    /// Maximum number of megaflows.
    pub megaflows: usize,
    /// Idle timeout of a megaflow, in seconds.
    pub idle_s: u64,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self { exact: 8192, insert_one_in: 100, megaflows: 200_000, idle_s: 10 }
    }
}

/// Stage names, in order.
const STAGES: &[&str] = &["extract", "lookup", "actions"];
const EXTRACT: usize = 0;
const LOOKUP: usize = 1;
const ACTIONS: usize = 2;
/// Prefetch distance in packets.
const AHEAD: usize = 4;
/// Least number of megaflows swept per turn: normally, and after a change of the tables, when this is also the greatest
/// number of those that are checked.
const SWEEP: usize = 1;
const SWEEP_CHANGED: usize = 32;
/// Rounds of all megaflows per second. The control side looks once a second for packets of flows that time out: each
/// megaflow's counts must be credited in between.
const ROUNDS: u64 = 2;
/// Most megaflows swept per turn.
const SWEEP_MOST: u64 = 4096;
/// Megaflows examined per call because of changed addresses.
const EXAMINED: usize = 64;
/// Number of packets between two sorts of the tuples.
const SORT: u64 = 1 << 16;

/// State that a worker shares with the control side.
pub(crate) struct Ends {
    pub stats: Arc<FlowStats>,
    pub counters: Arc<CacheCounters>,
    pub learn: rtrb::Producer<Report>,
    pub seed: u64,
    /// The worker's flow table in the XDP program, if the driver level is in use.
    pub table: Option<FlowTable>,
}

/// Switch of one worker.
pub struct Switch {
    tables: Arc<Published<Arc<Pipeline>>>,
    caches: Caches,
    work: Box<Work>,
    /// Set if the packets of each flow are sent as a burst of their own.
    by_flow: bool,
}

/// A burst's ingress port, by both of its numbers, and the tables that its packets are looked up in.
#[derive(Clone, Copy)]
struct Arrival<'p> {
    pipeline: &'p Pipeline,
    from: PortId,
    of: u16,
}

/// Per-burst state passed between the stages.
struct Work {
    /// Bit set of the plain packets, and their keys.
    plain: u64,
    plain_keys: [PlainKey; BATCH],
    /// Full keys: of packets that are not plain, and of plain packets that missed the exact-match cache.
    keys: [Key; BATCH],
    hashes: [u64; BATCH],
    layouts: [Layout; BATCH],
    flows: [FlowRef; BATCH],
    /// Bit set of the packets for which a flow was found.
    found: u64,
    /// Egress port or drop reason of each packet: see [`crate::exec`].
    to: [PortId; BATCH],
    /// Index of the next packet in the same group.
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
    /// Exact-match cache of plain packets.
    plain: Emc<4>,
    /// Exact-match cache of all other packets.
    others: Option<Emc<KEY_WORDS>>,
    mega: Megaflows,
    translator: Translator,
    ends: Ends,
    driven: Option<Driven>,
    /// State of the pseudo-random generator that decides on insertions.
    random: u64,
    burst: u32,
    sort_in: u64,
    sweep_at: usize,
    /// Time up to which megaflows have been swept.
    swept_last: u64,
    /// Pipeline generation at the start of the sweep in progress.
    sweeping: u64,
    swept: u64,
    /// Number of the next key of [`Pipeline::learned`] to process, and of the first for which megaflows that depend on
    /// several addresses are yet to be examined.
    learned_next: u64,
    several_next: u64,
    /// Next megaflow to examine if all of them have to be.
    examining_all: Option<u32>,
    idle: u64,
    ticks_per_s: u64,
}

impl Switch {
    pub(crate) fn new(tables: Arc<Published<Arc<Pipeline>>>, config: CacheConfig, mut ends: Ends) -> Self {
        let driven = ends.table.take().map(Driven::new);
        let caches = Caches::new(config, ends, driven);
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

    /// Sends the packets of each flow in a burst separately, flow after flow, instead of all packets for a port
    /// together. OVS did so before it had transmit queues; used to measure the benefit of transmit queues.
    pub fn sending_by_flow(mut self) -> Self {
        self.by_flow = true;
        self
    }
}

impl Caches {
    /// Returns empty caches, those of a worker that starts. The driver's table is empty, too.
    fn new(config: CacheConfig, ends: Ends, driven: Option<Driven>) -> Self {
        let hz = clock::tsc_hz();
        Self {
            config,
            plain: Emc::new(config.exact.max(2)),
            others: (config.exact > 0).then(|| Emc::new(config.exact.max(2))),
            mega: Megaflows::new(config.megaflows.max(16), ends.seed),
            translator: Translator::default(),
            random: ends.seed | 1,
            burst: 0,
            sort_in: SORT,
            sweep_at: 0,
            swept_last: 0,
            sweeping: 0,
            swept: 0,
            learned_next: 0,
            several_next: 0,
            examining_all: None,
            idle: hz.saturating_mul(config.idle_s),
            ticks_per_s: hz,
            driven,
            ends,
        }
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
        if caches.is_behind(pipeline) {
            caches.mark_dependents(pipeline);
        }
        if pipeline.partial(from) {
            read::complete(cx, from, batch.as_mut_slice());
        }
        if caches.config.exact > 0 {
            work.read_plain(cx.bufs.arena(), caches, of, batch.as_slice());
        } else {
            work.plain = 0;
        }
        let others = low_bits(n) & !work.plain;
        if others != 0 {
            let how = (of, pipeline.vlan_limit);
            work.read_others(cx.bufs.arena(), caches, how, batch.as_mut_slice(), others);
        }
        cx.stage(EXTRACT, n);
        let arrival = Arrival { pipeline, from, of };
        caches.lookup(cx, arrival, work, batch);
        cx.stage(LOOKUP, n);
        caches.act(cx, arrival, work, batch);
        cx.stage(ACTIONS, n);
        if *by_flow {
            caches.send_by_flow(cx, from, work, batch);
        } else {
            act::send(cx, from, &work.to, batch);
        }
        cx.sent(n);
        caches.sort_in = caches.sort_in.saturating_sub(n as u64);
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let pipeline: &Pipeline = self.tables.load(cx.reader);
        let more = self.caches.mark_dependents(pipeline) | self.caches.sweep(cx.now, pipeline);
        self.caches.look_after_driven(cx.now, pipeline) | more
    }

    /// Goes on with empty caches, since a change of them may have been interrupted. Flows, learned addresses and
    /// counters are the control side's; packets counted for cached flows and not credited yet are lost to the counters.
    fn recover(&mut self) -> bool {
        let Caches { config, ends, driven, .. } = &mut self.caches;
        let learn = std::mem::replace(&mut ends.learn, rtrb::RingBuffer::new(1).0);
        let (stats, counters, seed) = (ends.stats.clone(), ends.counters.clone(), ends.seed);
        let driven = driven.take().map(Driven::emptied);
        self.caches = Caches::new(*config, Ends { stats, counters, learn, seed, table: None }, driven);
        true
    }
}

/// Returns a mask of the lowest `n` bits, 0 to 64.
fn low_bits(n: usize) -> u64 {
    if n >= 64 { !0 } else { (1 << n) - 1 }
}
