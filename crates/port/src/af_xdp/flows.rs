//! Flows by which a switch's program forwards: `xdp/switch.h`.
//!
//! Each worker has a table of its own, in memory that it writes and the program reads. A flow in it is valid under one
//! generation of the switch's tables, which the control side announces ([`Flows::set_generation`]). A new generation
//! invalidates every flow until its worker revalidates it ([`FlowTable::stamp`]).
//!
//! A flow is written completely before a bucket names it. Its slot is reused only when no running program can have
//! found it there: an RCU grace period after its removal. The control side waits for that period ([`Flows::tend`]), not
//! the worker.

use super::abi::{FLOW_MASKS, FLOWS, PORTS, QUEUES, Traffic};
use super::shared::{self, Words};
use super::{Error, XdpDatapath};
use bywash_sync::random::splitmix64;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Length of a flow's key in 64-bit words: `xdp/switch.h`.
pub const FLOW_KEY: usize = 9;
/// Flows per bucket.
const SLOTS: usize = 4;
/// 64-bit words of `struct bywash_flow`.
const FLOW_WORDS: usize = 24;
/// Length of `struct bywash_flow_masks` in words: number of masks, flows of all workers, hash factors, masks.
const MASK_WORDS: usize = FACTORS + FLOW_KEY + FLOW_MASKS * FLOW_KEY;
const FACTORS: usize = 2;
/// Index of the generation in a flow; the action and the matched fields follow.
const GENERATION: usize = 0;

/// Action on a frame's outer VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tag {
    /// Leaves the tag as it is.
    #[default]
    Keep,
    /// Removes the tag.
    Pop,
    /// Sets the tag's priority and VLAN (TCI).
    Set(u16),
    /// Pushes a tag with this type (TPID) and priority and VLAN (TCI).
    Push(u16, u16),
    /// Replaces the tag's type (TPID) and priority and VLAN (TCI).
    Swap(u16, u16),
}

/// Flow for the program: match and action.
///
/// Fields have the layout of `xdp/switch.h`, in network byte order; the ingress port is the program's port id. The mask
/// must include the Ethernet type and the ingress port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forward {
    /// Values to match.
    pub key: [u64; FLOW_KEY],
    /// Bits of `key` that are matched.
    pub mask: [u64; FLOW_KEY],
    /// New bits of the key's first two words, the Ethernet addresses.
    pub macs: [u64; 2],
    /// Bits of these two words that are kept.
    pub keep: [u64; 2],
    /// Decrement of the TTL; the TTL of matching packets must be larger.
    pub ttl: u8,
    /// Action on the outer VLAN tag.
    pub tag: Tag,
    /// Egress port.
    pub to: u16,
}

impl Forward {
    /// Returns the words of `struct bywash_flow` without the generation.
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
            // The words that only IPv6 has are at the end of the structure.
            let at = if i < 5 { 1 + 2 * i } else { 5 + 2 * i };
            (words[at], words[at + 1]) = (key & mask, mask);
        }
        words[11..13].copy_from_slice(&self.macs);
        words[13..15].copy_from_slice(&self.keep);
        words
    }
}

/// Maps of a switch's program, mapped into this process.
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
    /// Ports whose frames the program forwards, one bit per port id.
    levels: AtomicU64,
    /// Number of grace periods begun, and of the latest one that is over.
    begun: AtomicU64,
    over: AtomicU64,
    /// Set if a worker waits for a grace period.
    wanted: AtomicBool,
}

impl Memory {
    /// Returns the number of entries of each map.
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
            counts: words("flow_counts", cpus * flows * Traffic::WORDS)?,
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

    pub fn set_level(&self, id: u16, forward: bool) {
        let bit = 1u64.checked_shl(id.into()).unwrap_or(0);
        match forward {
            true => self.levels.fetch_or(bit, Ordering::Relaxed),
            false => self.levels.fetch_and(!bit, Ordering::Relaxed),
        };
    }

    /// Returns by how many bytes the frames sent by a port have grown since they were received (wraps if they shrank).
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

/// Control side's handle on the flows.
#[derive(Clone)]
pub struct Flows {
    datapath: XdpDatapath,
    memory: Arc<Memory>,
}

impl Flows {
    pub(super) fn new(datapath: XdpDatapath, memory: Arc<Memory>) -> Self {
        Self { datapath, memory }
    }

    /// Returns the table of worker `n`, counted from 0; `None` if the program has no table for it. Must be called once
    /// per worker.
    pub fn table(&self, n: usize, seed: u64) -> Option<FlowTable> {
        (n < self.memory.workers).then(|| FlowTable::new(self.memory.clone(), n, seed))
    }

    /// Assigns a port's queue to worker `n`: frames received there are looked up in that worker's table. A worker
    /// without a table leaves the queue unassigned.
    pub fn serve(&self, port: u16, queue: u32, n: usize) {
        if u32::from(port) < PORTS && queue < QUEUES {
            let word = if n < self.memory.workers { n as u64 + 1 } else { 0 };
            self.memory.serving.store(usize::from(port) * QUEUES as usize + queue as usize, word);
        }
    }

    /// From the next frame on, lets only flows match that are valid for `generation`.
    pub fn set_generation(&self, generation: u64) {
        self.datapath.set_generation(generation);
    }

    /// Returns whether the frames of any port are forwarded by flows.
    pub fn in_use(&self) -> bool {
        self.memory.levels.load(Ordering::Relaxed) != 0
    }

    /// Waits until every program that was running at the time of the call has ended: some milliseconds.
    pub fn grace(&self) {
        self.memory.grace();
    }

    /// Waits for a grace period if a worker needs one to reuse slots.
    pub fn tend(&self) {
        if self.memory.wanted.swap(false, Ordering::SeqCst) {
            self.memory.grace();
        }
    }
}

/// Flow table of one worker.
///
/// # Thread-safety
/// Owned and written by one worker; the program reads it at any time.
pub struct FlowTable {
    memory: Arc<Memory>,
    worker: usize,
    factors: [u64; FLOW_KEY],
    /// Masks in use, each with its number of flows.
    masks: [([u64; FLOW_KEY], usize); FLOW_MASKS],
    /// Mask and bucket slot of each flow, by flow number.
    places: Vec<(usize, usize)>,
    free: Vec<u32>,
    /// Removed flows, each with the number of grace periods begun by then.
    leaving: VecDeque<(u32, u64)>,
}

impl FlowTable {
    fn new(memory: Arc<Memory>, worker: usize, seed: u64) -> Self {
        // The seed is secret, so that nobody outside can choose packets with equal hashes.
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

    /// Returns the number of a flow among those of all workers.
    fn of_all(&self, at: u32) -> usize {
        self.worker * FLOWS + at as usize
    }

    /// Returns whether the program forwards the frames a port receives.
    pub fn serves(&self, port: u16) -> bool {
        self.memory.levels.load(Ordering::Relaxed).checked_shr(port.into()).unwrap_or(0) & 1 == 1
    }

    /// Inserts a flow valid for `generation`; returns its number. `None` if the table, its bucket or the list of masks
    /// is full.
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

    /// Returns whether the flow with this number equals `flow`.
    pub fn is(&self, at: u32, flow: &Forward) -> bool {
        let first = self.of_all(at) * FLOW_WORDS + 1;
        flow.words().into_iter().enumerate().all(|(i, word)| self.memory.flows.load(first + i) == word)
    }

    /// Marks a flow as valid for `generation`.
    pub fn stamp(&self, at: u32, generation: u64) {
        self.memory.flows.store(self.of_all(at) * FLOW_WORDS + GENERATION, generation);
    }

    /// Removes a flow. Its number is not reused before [`FlowTable::freed`] returns it.
    pub fn remove(&mut self, at: u32) {
        let (mask, slot) = self.places[at as usize];
        self.memory.buckets.store(slot, 0);
        self.masks[mask].1 -= 1;
        self.count_masks();
        // Programs that start in a later grace period cannot find the flow.
        fence(Ordering::SeqCst);
        self.leaving.push_back((at, self.memory.begun.load(Ordering::SeqCst)));
        self.memory.wanted.store(true, Ordering::SeqCst);
    }

    /// Returns the number of the next removed flow that no program can still use, and makes it available again; `None`
    /// if there is none yet.
    pub fn freed(&mut self) -> Option<u32> {
        let (at, begun) = *self.leaving.front()?;
        if self.memory.over.load(Ordering::SeqCst) <= begun {
            return None;
        }
        self.leaving.pop_front();
        self.free.push(at);
        Some(at)
    }

    /// Returns the frames and bytes forwarded by all flows that ever had this number.
    pub fn counts(&self, at: u32) -> (u64, u64) {
        let flows = self.memory.workers * FLOWS;
        let mut all = (0u64, 0u64);
        for cpu in 0..self.memory.cpus {
            let word = (cpu * flows + self.of_all(at)) * Traffic::WORDS;
            all.0 = all.0.wrapping_add(self.memory.counts.load(word));
            all.1 = all.1.wrapping_add(self.memory.counts.load(word + 1));
        }
        all
    }

    /// Returns the number of flows in the table.
    pub fn len(&self) -> usize {
        FLOWS - self.free.len() - self.leaving.len()
    }

    /// Returns whether the table is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
