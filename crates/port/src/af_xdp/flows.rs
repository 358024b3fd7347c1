//! The flows by which a switch's program forwards: `xdp/switch.h`.
//!
//! Each worker has a table of its own, memory that it writes and the program reads. What the program finds there holds under
//! one generation of the switch's tables, which control announces ([`Flows::set_generation`]): another ends every flow, until
//! its worker says that it is right for the new one ([`FlowTable::stamp`]).
//!
//! A flow is written whole before a bucket names it, and its place is used again when no program can be left that found it
//! there: a grace period of RCU after it was taken out, which control waits for ([`Flows::tend`]), not the worker.

use super::abi::{FLOW_MASKS, FLOWS, PORTS, Passage, QUEUES};
use super::shared::{self, Words};
use super::{Driver, Error};
use bywash_sync::random::splitmix64;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Words of a flow's key: `xdp/switch.h`.
pub const FLOW_KEY: usize = 9;
/// Flows that a bucket has room for.
const SLOTS: usize = 4;
/// 64-bit words of `struct bywash_flow`.
const FLOW_WORDS: usize = 24;
/// Of `struct bywash_flow_masks`: how many there are, flows in all, the factors, the masks.
const MASK_WORDS: usize = FACTORS + FLOW_KEY + FLOW_MASKS * FLOW_KEY;
const FACTORS: usize = 2;
/// Of them, in a flow: the generation, the action, and the first words of what is matched.
const GENERATION: usize = 0;

/// What is done to a frame's outer tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tag {
    /// Nothing.
    #[default]
    Keep,
    /// It goes.
    Pop,
    /// It gets this priority and VLAN.
    Set(u16),
    /// One with this type, priority and VLAN is put before it.
    Push(u16, u16),
    /// It becomes this one.
    Swap(u16, u16),
}

/// A flow for the program: frames it is for, and what is done with them.
///
/// Fields lie where `xdp/switch.h` has them, in network order; the port received from is the program's number. The Ethernet
/// type and that port are among the bits of the mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// What is matched.
    pub key: [u64; FLOW_KEY],
    /// The bits of it that are.
    pub mask: [u64; FLOW_KEY],
    /// New bits of the key's first two words, the Ethernet addresses.
    pub macs: [u64; 2],
    /// Those that stay.
    pub keep: [u64; 2],
    /// Taken off the TTL, which is larger.
    pub ttl: u8,
    /// What is done to the tag.
    pub tag: Tag,
    /// The port it leaves by.
    pub to: u16,
}

impl Forward {
    /// `struct bywash_flow` without its generation.
    fn words(&self) -> [u64; FLOW_WORDS - 1] {
        let (tag, tpid, tci) = match self.tag {
            Tag::Keep => (0, 0, 0),
            Tag::Pop => (1, 0, 0),
            Tag::Set(tci) => (2, 0, tci),
            Tag::Push(tpid, tci) => (3, tpid, tci),
            Tag::Swap(tpid, tci) => (4, tpid, tci),
        };
        let mut words = [0; FLOW_WORDS - 1];
        let (to, tpid, tci) = (self.to.to_le_bytes(), tpid.to_be_bytes(), tci.to_be_bytes());
        words[0] = u64::from_le_bytes([to[0], to[1], tag, self.ttl, tpid[0], tpid[1], tci[0], tci[1]]);
        for (i, (key, mask)) in self.key.iter().zip(self.mask).enumerate() {
            // Those that only IPv6 has lie behind all else.
            let at = if i < 5 { 1 + 2 * i } else { 5 + 2 * i };
            (words[at], words[at + 1]) = (key & mask, mask);
        }
        words[11..13].copy_from_slice(&self.macs);
        words[13..15].copy_from_slice(&self.keep);
        words
    }
}

/// The maps, as mapped.
pub(super) struct Memory {
    masks: Words,
    buckets: Words,
    flows: Words,
    counts: Words,
    serving: Words,
    targets: Words,
    grown: Words,
    workers: usize,
    cpus: usize,
    /// Ports whose frames the program forwards, as a set of bits.
    levels: AtomicU64,
    /// Grace periods begun, and those of them that are over.
    begun: AtomicU64,
    over: AtomicU64,
    /// Somebody waits for one.
    wanted: AtomicBool,
}

impl Memory {
    /// How many entries each map has.
    pub fn sizes(workers: usize, cpus: usize) -> [(&'static str, u32); 5] {
        let flows = (workers * FLOWS) as u32;
        [
            ("flow_masks", workers as u32),
            ("flow_buckets", flows),
            ("flows", flows),
            ("flow_counts", cpus as u32 * flows),
            ("grown", cpus as u32 * PORTS),
        ]
    }

    pub fn map(
        workers: usize,
        cpus: usize,
        words: &mut impl FnMut(&'static str, usize) -> Result<Words, Error>,
    ) -> Result<Self, Error> {
        let flows = workers * FLOWS;
        Ok(Self {
            masks: words("flow_masks", workers * MASK_WORDS)?,
            buckets: words("flow_buckets", flows * SLOTS)?,
            flows: words("flows", flows * FLOW_WORDS)?,
            counts: words("flow_counts", cpus * flows * Passage::WORDS)?,
            serving: words("serving", (PORTS * QUEUES) as usize)?,
            targets: words("targets", PORTS as usize)?,
            grown: words("grown", cpus * PORTS as usize)?,
            workers,
            cpus,
            levels: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            over: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
        })
    }

    pub fn set_target(&self, id: u16, longest: u32) {
        if u32::from(id) < PORTS {
            self.targets.store(id.into(), longest.into());
        }
    }

    pub fn set_level(&self, id: u16, driver: bool) {
        let bit = 1u64.checked_shl(id.into()).unwrap_or(0);
        match driver {
            true => self.levels.fetch_or(bit, Ordering::Relaxed),
            false => self.levels.fetch_and(!bit, Ordering::Relaxed),
        };
    }

    /// By how many bytes what was sent by a port was longer than when it came.
    pub fn grown(&self, id: u16) -> u64 {
        let of = |cpu: usize| self.grown.load(cpu * PORTS as usize + usize::from(id));
        (0..self.cpus).map(of).fold(0, u64::wrapping_add)
    }

    fn grace(&self) {
        let begun = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        shared::grace();
        self.over.fetch_max(begun, Ordering::SeqCst);
    }
}

/// The control side's hold on the flows.
#[derive(Clone)]
pub struct Flows {
    driver: Driver,
    memory: Arc<Memory>,
}

impl Flows {
    pub(super) fn new(driver: Driver, memory: Arc<Memory>) -> Self {
        Self { driver, memory }
    }

    /// The table of worker `n`, counted from 0; none for more than there were to be. To be taken once.
    pub fn table(&self, n: usize, seed: u64) -> Option<FlowTable> {
        (n < self.memory.workers).then(|| FlowTable::new(self.memory.clone(), n, seed))
    }

    /// A port's queue is served by worker `n`: what it receives is looked up in that one's table.
    pub fn serve(&self, port: u16, queue: u32, n: usize) {
        if u32::from(port) < PORTS && queue < QUEUES {
            let word = if n < self.memory.workers { n as u64 + 1 } else { 0 };
            self.memory.serving.store(usize::from(port) * QUEUES as usize + queue as usize, word);
        }
    }

    /// From the next frame on only flows that are right for this generation hold.
    pub fn set_generation(&self, generation: u64) {
        self.driver.set_generation(generation);
    }

    /// Whether any port's frames are forwarded by them.
    pub fn in_use(&self) -> bool {
        self.memory.levels.load(Ordering::Relaxed) != 0
    }

    /// Waits until no program is left that was running at the time of the call: some milliseconds.
    pub fn grace(&self) {
        self.memory.grace();
    }

    /// Does the same if a worker waits for it, so that it can use places again.
    pub fn tend(&self) {
        if self.memory.wanted.swap(false, Ordering::SeqCst) {
            self.memory.grace();
        }
    }
}

/// A worker's table.
///
/// # Thread-safety
/// One owner, the worker; the program reads it at any time.
pub struct FlowTable {
    memory: Arc<Memory>,
    worker: usize,
    factors: [u64; FLOW_KEY],
    /// With how many flows have each.
    masks: [([u64; FLOW_KEY], usize); FLOW_MASKS],
    /// By place: its mask and its slot among the buckets.
    places: Vec<(usize, usize)>,
    free: Vec<u32>,
    /// Taken out, and which grace period had begun by then.
    leaving: VecDeque<(u32, u64)>,
}

impl FlowTable {
    fn new(memory: Arc<Memory>, worker: usize, seed: u64) -> Self {
        // Of a seed that nobody outside knows, who cannot tell then which packets have one hash.
        let factors = std::array::from_fn(|i| splitmix64(seed, i as u64 + 1) | 1);
        let table = Self {
            worker,
            factors,
            masks: [([0; FLOW_KEY], 0); FLOW_MASKS],
            places: vec![(0, 0); FLOWS],
            free: (0..FLOWS as u32).rev().collect(),
            leaving: VecDeque::with_capacity(FLOWS),
            memory,
        };
        table.store_mask(1, (table.memory.workers * FLOWS) as u64);
        factors.iter().enumerate().for_each(|(i, factor)| table.store_mask(FACTORS + i, *factor));
        table
    }

    fn store_mask(&self, at: usize, word: u64) {
        self.memory.masks.store(self.worker * MASK_WORDS + at, word);
    }

    /// A place among those of all workers.
    fn of_all(&self, at: u32) -> usize {
        self.worker * FLOWS + at as usize
    }

    /// Whether what a port receives is forwarded by the program.
    pub fn serves(&self, port: u16) -> bool {
        self.memory.levels.load(Ordering::Relaxed).checked_shr(port.into()).unwrap_or(0) & 1 == 1
    }

    /// Puts a flow in that is right for `generation`; its place. None where there is no room: for it, in its bucket, or for
    /// its mask.
    pub fn insert(&mut self, flow: &Forward, generation: u64) -> Option<u32> {
        let same = |known: &([u64; FLOW_KEY], usize)| known.1 > 0 && known.0 == flow.mask;
        let known = self.masks.iter().position(same);
        let mask = known.or_else(|| self.masks.iter().position(|(_, flows)| *flows == 0))?;
        let hash =
            (0..FLOW_KEY).fold(0u64, |h, i| h.wrapping_add((flow.key[i] & flow.mask[i]).wrapping_mul(self.factors[i])));
        let bucket = (self.worker * FLOWS + (hash >> 52) as usize) * SLOTS;
        let slot = (bucket..bucket + SLOTS).find(|slot| self.memory.buckets.load(*slot) == 0)?;
        let at = self.free.pop()?;
        if known.is_none() {
            self.masks[mask].0 = flow.mask;
            let first = FACTORS + FLOW_KEY + mask * FLOW_KEY;
            flow.mask.iter().enumerate().for_each(|(i, word)| self.store_mask(first + i, *word));
        }
        self.masks[mask].1 += 1;
        self.count_masks();
        self.places[at as usize] = (mask, slot);
        let first = self.of_all(at) * FLOW_WORDS;
        flow.words().into_iter().enumerate().for_each(|(i, w)| self.memory.flows.store(first + 1 + i, w));
        self.memory.flows.store(first + GENERATION, generation);
        let tag = u64::from((hash >> 20) as u32 | 1);
        self.memory.buckets.store(slot, tag << 32 | (self.of_all(at) as u64 + 1));
        Some(at)
    }

    fn count_masks(&self) {
        let n = self.masks.iter().rposition(|(_, flows)| *flows > 0).map_or(0, |last| last + 1);
        self.store_mask(0, n as u64);
    }

    /// Whether the flow at this place is this one.
    pub fn is(&self, at: u32, flow: &Forward) -> bool {
        let first = self.of_all(at) * FLOW_WORDS + 1;
        flow.words().into_iter().enumerate().all(|(i, word)| self.memory.flows.load(first + i) == word)
    }

    /// A flow is right for this generation.
    pub fn stamp(&self, at: u32, generation: u64) {
        self.memory.flows.store(self.of_all(at) * FLOW_WORDS + GENERATION, generation);
    }

    /// Takes a flow out. Its place is counted on until [`FlowTable::freed`] gives it back.
    pub fn remove(&mut self, at: u32) {
        let (mask, slot) = self.places[at as usize];
        self.memory.buckets.store(slot, 0);
        self.masks[mask].1 -= 1;
        self.count_masks();
        // A grace period that begins later is one of programs that find nothing there.
        fence(Ordering::SeqCst);
        self.leaving.push_back((at, self.memory.begun.load(Ordering::SeqCst)));
        self.memory.wanted.store(true, Ordering::SeqCst);
    }

    /// The next place that no program counts on any more; it can be used again.
    pub fn freed(&mut self) -> Option<u32> {
        let (at, begun) = *self.leaving.front()?;
        if self.memory.over.load(Ordering::SeqCst) <= begun {
            return None;
        }
        self.leaving.pop_front();
        self.free.push(at);
        Some(at)
    }

    /// Frames and bytes that were forwarded by all flows that ever had this place.
    pub fn counts(&self, at: u32) -> (u64, u64) {
        let flows = self.memory.workers * FLOWS;
        let mut all = (0u64, 0u64);
        for cpu in 0..self.memory.cpus {
            let word = (cpu * flows + self.of_all(at)) * Passage::WORDS;
            all.0 = all.0.wrapping_add(self.memory.counts.load(word));
            all.1 = all.1.wrapping_add(self.memory.counts.load(word + 1));
        }
        all
    }

    /// Flows in it.
    pub fn len(&self) -> usize {
        FLOWS - self.free.len() - self.leaving.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
