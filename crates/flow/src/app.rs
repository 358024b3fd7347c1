//! The switch's stages: extract, look up in three levels, act by groups.

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
use crate::translate::{Learn, Translator};
use bywash_engine::{App, Context, PortId};
use bywash_frame::{BATCH, Batch};
use bywash_port::af_xdp::FlowTable;
use bywash_sync::{Published, clock};
use driver::Driven;
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
    /// Its flows in the driver, where there is one.
    pub table: Option<FlowTable>,
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
    driven: Option<Driven>,
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
    pub(crate) fn new(tables: Arc<Published<Arc<Pipeline>>>, config: CacheConfig, mut ends: Ends) -> Self {
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
            driven: ends.table.take().map(Driven::new),
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
            read::complete(cx, from, batch.as_mut_slice());
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
            act::send(cx, from, &work.to, batch);
        }
        cx.sent(n);
        caches.sort_in = caches.sort_in.saturating_sub(n as u64);
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        let pipeline: &Pipeline = self.tables.load(cx.reader);
        let more = self.caches.sweep(cx.now, pipeline);
        self.caches.look_after_driven(cx.now, pipeline) | more
    }
}

/// The lowest `n` bits, 0 to 64.
fn low_bits(n: usize) -> u64 {
    if n >= 64 { !0 } else { (1 << n) - 1 }
}
