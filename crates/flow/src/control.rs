//! Control side of the switch: changes flows, groups, meters and learned addresses, and publishes new versions of the
//! tables to the workers.

mod groups;
mod learn;

use crate::addresses::{Addresses, Seen};
use crate::app::{CacheConfig, Ends, Switch};
use crate::key::{Key, TAGS, hash_words};
use crate::learn::LearnedFlow;
use crate::meter::Meter;
use crate::model::{Action, FlowFilter, FlowSpec, Match, MeterSpec, OfPort};
use crate::pipeline::{Change, Group, Mirror, Pipeline, SwitchPort, mac_key};
use crate::stats::{CacheCounters, FlowStats, MAX_FLOWS};
use crate::table::Rule;
use crate::translate::{Report, Translator};
use bywash_port::af_xdp::Flows;
use bywash_sync::{Published, Qsbr};
use learn::{LearnKey, Learners};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Capacity of each worker's queue of address reports.
const LEARN_QUEUE: usize = 256;

/// Number of flows without a timeout that an expiry check looks at.
const LOOKED_AT: u32 = 16_384;

/// Minimum interval between two grace periods for flows removed from the driver.
const TEND: Duration = Duration::from_millis(250);

/// Refused request, with the reason as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

/// Settings of the learning bridge and the flow tables.
#[derive(Clone, Copy, Debug)]
pub struct BridgeConfig {
    /// Maximum number of learned addresses on all ports together.
    pub macs: usize,
    /// Time after which an address that was not seen is forgotten.
    pub ageing: Duration,
    /// Number of VLAN tags that flows see; any further ones are payload. At most [`TAGS`], which 0 stands for, too.
    pub vlan_limit: usize,
    /// Maximum number of flows in all tables together.
    pub flows: usize,
    /// Maximum number of flows that packets made (`learn`).
    pub learned: usize,
    /// Minimum time between two changes of the tables by packets. Each makes workers translate again the megaflows that
    /// use a changed table.
    pub learn_interval: Duration,
}

impl Default for BridgeConfig {
    fn default() -> Self {
        Self {
            macs: 8192,
            ageing: Duration::from_secs(300),
            vlan_limit: 1,
            flows: MAX_FLOWS,
            learned: 65_536,
            learn_interval: Duration::from_millis(100),
        }
    }
}

/// Control-side state of a flow.
#[derive(Clone)]
struct Entry {
    rule: Arc<Rule>,
    /// Set for a flow that a packet made.
    learned: bool,
    added: Instant,
    /// Start of the hard timeout.
    refreshed: Instant,
    used: Instant,
    /// Packet count at the last expiry check.
    seen: u64,
    /// Packets and bytes on the counter slot when the flow was added.
    base: (u64, u64),
}

struct WorkerEnd {
    stats: Arc<FlowStats>,
    counters: Arc<CacheCounters>,
    learn: rtrb::Consumer<Report>,
}

/// Flow with its age and statistics.
pub struct FlowReport {
    /// The flow.
    pub rule: Arc<Rule>,
    /// Time since the flow was added.
    pub age: Duration,
    /// Time since the last packet, as known from the last expiry check. If there are many flows, a check covers only
    /// some of those without a timeout; for such a flow, it is the last check that covered it.
    pub idle: Duration,
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Control side of the switch: its tables and its workers.
///
/// Two versions of the tables exist: the live one, which the workers use, and a spare. A change is applied to the
/// spare, which is published and becomes the live one, and then to the other version. So the cost of a change depends
/// on its size, not on the size of the tables.
pub struct FlowControl {
    published: Arc<Published<Arc<Pipeline>>>,
    live: Arc<Pipeline>,
    spare: Arc<Pipeline>,
    changes: Vec<Change>,
    config: BridgeConfig,
    entries: HashMap<u32, Entry>,
    /// Slots by [`index_key`].
    index: HashMap<u64, Vec<u32>>,
    free: Vec<u32>,
    /// Slots of removed flows with the generation of the removal, until no worker counts for them any more.
    leaving: VecDeque<(u32, u64)>,
    next_slot: u32,
    timed: BTreeSet<u32>,
    /// Next slot that an expiry check looks at, whether its flow has a timeout or not.
    looked_at: u32,
    addresses: Addresses,
    workers: Vec<WorkerEnd>,
    /// Groups and meters as they are with the changes that are yet to be published.
    groups: HashMap<u32, Arc<Group>>,
    meters: HashMap<u32, Arc<Meter>>,
    /// Slots of all meter ids that were ever used.
    meter_slots: HashMap<u32, u32>,
    /// Flow tables of the workers in the driver.
    offload: Option<Flows>,
    tended: Instant,
    /// Number of flows by table and cookie.
    flow_counts: HashMap<LearnKey, usize>,
    /// Actions that learn flows, by the table and cookie of these flows.
    learners: HashMap<LearnKey, Learners>,
    /// Number of flows that packets made.
    learned: usize,
    /// Flows to learn, and the time at which flows were last learned.
    to_learn: Vec<Arc<LearnedFlow>>,
    last_learned: Option<Instant>,
    /// Tables and cookies whose learned flows are to be deleted.
    unlearned: Vec<LearnKey>,
    /// Number of times a learned address moved to another port.
    pub moved: u64,
    /// Number of times a flow was not learned because of its limit or because the tables were full.
    pub not_learned: u64,
}

impl FlowControl {
    /// Creates a switch without flows. The workers' readers must belong to `domain`.
    pub fn new(domain: &Qsbr, ports: Vec<SwitchPort>, config: BridgeConfig) -> Self {
        let vlan_limit = if config.vlan_limit == 0 { TAGS } else { config.vlan_limit.min(TAGS) };
        let first = Pipeline { ports, generation: 1, rest_changed: 1, vlan_limit, ..Pipeline::default() };
        let live = Arc::new(first.clone());
        Self {
            published: Arc::new(Published::new(domain, live.clone())),
            live,
            spare: Arc::new(first),
            changes: Vec::new(),
            config,
            entries: HashMap::new(),
            index: HashMap::new(),
            free: Vec::new(),
            leaving: VecDeque::new(),
            next_slot: 0,
            timed: BTreeSet::new(),
            looked_at: 0,
            addresses: Addresses::default(),
            workers: Vec::new(),
            groups: HashMap::new(),
            meters: HashMap::new(),
            meter_slots: HashMap::new(),
            offload: None,
            tended: Instant::now(),
            flow_counts: HashMap::new(),
            learners: HashMap::new(),
            learned: 0,
            to_learn: Vec::new(),
            last_learned: None,
            unlearned: Vec::new(),
            moved: 0,
            not_learned: 0,
        }
    }

    /// Lets the driver forward by the flows of all workers created from now on.
    pub fn drive(&mut self, flows: Flows) {
        flows.set_generation(self.live.generation);
        self.offload = Some(flows);
    }

    /// Creates the [`Switch`] of another worker. `seed` keys its hashes and must be unpredictable to senders.
    pub fn worker(&mut self, config: CacheConfig, seed: u64) -> Switch {
        let (learn, inbox) = rtrb::RingBuffer::new(LEARN_QUEUE);
        let (stats, counters) = (Arc::new(FlowStats::default()), Arc::new(CacheCounters::default()));
        (0..self.next_slot).step_by(1024).chain(self.next_slot.checked_sub(1)).for_each(|slot| stats.make_room(slot));
        let table = self.offload.as_ref().and_then(|offload| offload.table(self.workers.len(), random_seed()));
        self.workers.push(WorkerEnd { stats: stats.clone(), counters: counters.clone(), learn: inbox });
        Switch::new(self.published.clone(), config, Ends { stats, counters, learn, seed, table })
    }

    /// Returns the cache counters of each worker.
    pub fn counters(&self) -> impl Iterator<Item = &Arc<CacheCounters>> {
        self.workers.iter().map(|w| &w.counters)
    }

    /// Returns the tables that the workers use.
    pub fn pipeline(&self) -> &Pipeline {
        &self.live
    }

    /// Publishes all changes since the last commit. On return, all workers use the new tables, and the driver forwards
    /// no frame by the old ones. Learned addresses alone make no new generation, so that no megaflow is invalidated but
    /// those that depend on them: each worker, and with it the driver, follows them soon after.
    pub fn commit(&mut self) {
        self.delete_unlearned();
        if self.changes.is_empty() {
            return;
        }
        let asked_for = self.changes.iter().any(|change| !matches!(change, Change::Learn(..)));
        let generation = self.live.generation + u64::from(asked_for);
        if asked_for {
            // Do this first: from here on the driver uses no entry until a worker has confirmed it for this generation.
            self.offload.iter().for_each(|offload| offload.set_generation(generation));
        }
        for end in 0..2 {
            // No reader holds the spare any more: `replace` waited for that.
            let spare = Arc::get_mut(&mut self.spare).expect("the spare has no other owner");
            self.changes.iter().for_each(|change| spare.apply(change, generation));
            if end == 0 {
                self.published.replace(self.spare.clone());
                std::mem::swap(&mut self.live, &mut self.spare);
            }
        }
        if let Some(offload) = self.offload.as_ref().filter(|offload| asked_for && offload.in_use()) {
            offload.grace();
        }
        self.changes.clear();
    }

    /// Makes changes, which are yet to be published. If `make` errors, everything is as before.
    pub(crate) fn make_all<E>(&mut self, make: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<(), E> {
        let before = (
            (self.entries.clone(), self.index.clone(), self.timed.clone(), self.learned),
            (self.free.clone(), self.leaving.clone(), self.next_slot),
            (self.groups.clone(), self.meters.clone(), self.meter_slots.clone()),
            (self.flow_counts.clone(), self.learners.clone(), self.unlearned.clone()),
        );
        let changes = self.changes.len();
        make(self).inspect_err(|_| {
            (
                (self.entries, self.index, self.timed, self.learned),
                (self.free, self.leaving, self.next_slot),
                (self.groups, self.meters, self.meter_slots),
                (self.flow_counts, self.learners, self.unlearned),
            ) = before;
            self.changes.truncate(changes);
        })
    }

    /// Returns the packets and bytes counted for a slot, summed over all workers.
    fn sum(&self, slot: u32) -> (u64, u64) {
        let each = self.workers.iter().map(|w| w.stats.get(slot));
        each.fold((0, 0), |(p, b), (packets, bytes)| (p + packets, b + bytes))
    }

    fn slot(&mut self) -> Result<u32, Refused> {
        if self.entries.len() >= self.config.flows.min(MAX_FLOWS) {
            return Err(Refused(format!("cannot add the flow: the tables are full ({} flows)", self.entries.len())));
        }
        if let Some(slot) = self.free.pop() {
            return Ok(slot);
        }
        if self.next_slot as usize >= MAX_FLOWS {
            return Err(Refused(format!(
                "cannot add the flow: all {MAX_FLOWS} counter slots are in use, including those of flows just deleted"
            )));
        }
        self.next_slot += 1;
        for worker in &self.workers {
            worker.stats.make_room(self.next_slot - 1);
        }
        Ok(self.next_slot - 1)
    }

    /// Returns the slot of the flow with exactly this table, priority and match.
    fn find_exact(&self, table: u8, priority: u16, matches: &Match) -> Option<u32> {
        let same = |slot: &&u32| {
            let other = &self.entries[*slot].rule.spec;
            other.table == table && other.priority == priority && other.matches == *matches
        };
        self.index.get(&index_key(priority, matches)).and_then(|slots| slots.iter().find(same)).copied()
    }

    /// Adds a flow and replaces an existing one with the same table, priority and match. Errors if the tables are full
    /// or an overlap check fails.
    pub fn add(&mut self, spec: FlowSpec) -> Result<(), Refused> {
        self.insert(spec).map(drop)
    }

    /// Adds a flow as [`FlowControl::add`] does, and returns its slot.
    fn insert(&mut self, spec: FlowSpec) -> Result<u32, Refused> {
        let replaced = self.find_exact(spec.table, spec.priority, &spec.matches);
        // A flow that replaces another may overlap, as in OVS.
        if spec.check_overlap && replaced.is_none() {
            let overlaps = |r: &&Entry| {
                let other = &r.rule.spec;
                other.table == spec.table && other.priority == spec.priority && other.matches.overlaps(&spec.matches)
            };
            if let Some(other) = self.entries.values().find(overlaps) {
                return Err(Refused(format!("the flow overlaps `{}`", crate::syntax::Shown(&other.rule.spec))));
            }
        }
        if let Some(slot) = replaced {
            self.remove_slot(slot);
        }
        let slot = self.slot()?;
        let now = Instant::now();
        let timed = spec.idle_timeout | spec.hard_timeout != 0;
        let rule = Arc::new(Rule { spec, slot });
        self.changes.push(Change::Insert(rule.clone()));
        let base = self.sum(slot);
        self.count(&rule.spec);
        self.index.entry(index_of(&rule.spec)).or_default().push(slot);
        self.entries
            .insert(slot, Entry { rule, learned: false, added: now, refreshed: now, used: now, seen: base.0, base });
        if timed {
            self.timed.insert(slot);
        }
        Ok(slot)
    }

    fn remove_slot(&mut self, slot: u32) {
        let Some(entry) = self.entries.remove(&slot) else { return };
        self.timed.remove(&slot);
        let key = index_of(&entry.rule.spec);
        if let Some(slots) = self.index.get_mut(&key) {
            slots.retain(|s| *s != slot);
            if slots.is_empty() {
                self.index.remove(&key);
            }
        }
        self.discount(&entry.rule.spec);
        self.learned -= usize::from(entry.learned);
        self.changes.push(Change::Remove(entry.rule));
        self.leaving.push_back((slot, self.live.generation + 1));
        self.reuse_slots();
    }

    /// Frees the slots that no worker counts for any more.
    fn reuse_slots(&mut self) {
        let seen = self.workers.iter().map(|w| w.counters.generation.get()).min().unwrap_or(u64::MAX);
        while let Some((slot, generation)) = self.leaving.front()
            && *generation <= seen
        {
            self.free.push(*slot);
            self.leaving.pop_front();
        }
    }

    fn selected(&self, filter: &FlowFilter, strict: bool) -> Vec<u32> {
        let hits = |rule: &Rule| {
            let spec = &rule.spec;
            let has = |wanted: Action| Action::all(&spec.actions).any(|action| *action == wanted);
            let outputs = |port: OfPort| has(Action::Output(port));
            let same = if strict {
                spec.matches == filter.matches && spec.priority == filter.priority.unwrap_or(FlowSpec::DEFAULT_PRIORITY)
            } else {
                spec.matches.within(&filter.matches)
            };
            same && filter.table.is_none_or(|t| t == spec.table)
                && filter.cookie.is_none_or(|(value, mask)| (spec.cookie ^ value) & mask == 0)
                && filter.out_port.is_none_or(outputs)
                && filter.out_group.is_none_or(|id| has(Action::Group(id)))
        };
        // With the index, since a scan would make deleting many flows one by one quadratic.
        let exact = || {
            let priority = filter.priority.unwrap_or(FlowSpec::DEFAULT_PRIORITY);
            self.index.get(&index_key(priority, &filter.matches)).into_iter().flatten()
        };
        let mut found: Vec<&Arc<Rule>> = if strict {
            exact().map(|slot| &self.entries[slot].rule).filter(|r| hits(r)).collect()
        } else {
            self.entries.values().map(|e| &e.rule).filter(|r| hits(r)).collect()
        };
        found.sort_by_key(|r| (r.spec.table, std::cmp::Reverse(r.spec.priority), r.slot));
        found.iter().map(|r| r.slot).collect()
    }

    /// Replaces the actions and cookies of the flows whose match is within that of `spec`, or, if `strict`, equals
    /// match and priority. Counters are kept unless `reset_counts` is set; the hard timeout starts again. Returns the
    /// number of flows changed; adds `spec` as a new flow and returns 0 if there are none.
    pub fn modify(&mut self, spec: FlowSpec, strict: bool) -> Result<usize, Refused> {
        let (table, priority) = (Some(spec.table), Some(spec.priority));
        let filter = FlowFilter { table, priority, matches: spec.matches, ..FlowFilter::default() };
        let found = self.selected(&filter, strict);
        if found.is_empty() {
            return self.add(spec).map(|()| 0);
        }
        let now = Instant::now();
        for slot in &found {
            let sum = self.sum(*slot);
            let Some(entry) = self.entries.get_mut(slot) else { continue };
            let changed = FlowSpec { actions: spec.actions.clone(), cookie: spec.cookie, ..entry.rule.spec.clone() };
            let rule = Arc::new(Rule { spec: changed, slot: *slot });
            let old = std::mem::replace(&mut entry.rule, rule.clone());
            entry.refreshed = now;
            if spec.reset_counts {
                entry.base = sum;
            }
            self.count(&rule.spec);
            self.discount(&old.spec);
            self.changes.extend([Change::Remove(old), Change::Insert(rule)]);
        }
        Ok(found.len())
    }

    /// Deletes the flows that `filter` selects and returns their number. If `strict`, match and priority must be equal.
    pub fn delete(&mut self, filter: &FlowFilter, strict: bool) -> usize {
        let found = self.selected(filter, strict);
        found.iter().for_each(|slot| self.remove_slot(*slot));
        found.len()
    }

    /// Returns the flows that `filter` selects, ordered by table and descending priority.
    pub fn flows(&self, filter: &FlowFilter) -> Vec<FlowReport> {
        self.numbers(filter).iter().filter_map(|slot| self.report(*slot)).collect()
    }

    /// Returns the numbers of the flows that `filter` selects, ordered by table and descending priority.
    pub fn numbers(&self, filter: &FlowFilter) -> Vec<u32> {
        self.selected(filter, false)
    }

    /// Returns the flow that has a number now; `None` if none has.
    pub fn report(&self, number: u32) -> Option<FlowReport> {
        let entry = self.entries.get(&number)?;
        let (now, (packets, bytes)) = (Instant::now(), self.sum(number));
        Some(FlowReport {
            rule: entry.rule.clone(),
            age: now - entry.added,
            idle: now - entry.used,
            packets: packets.saturating_sub(entry.base.0),
            bytes: bytes.saturating_sub(entry.base.1),
        })
    }

    /// Returns the number of flows.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns `true` if there are no flows.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Replaces the mirrors.
    pub fn set_mirrors(&mut self, mirrors: Vec<Mirror>) {
        self.changes.push(Change::Mirrors(mirrors));
        self.commit();
    }

    /// Replaces the ports, given in the order of the engine's port numbers, with the packets per second that each may
    /// flood (0 for no limit), and the mirrors. On return, no worker sends out of a removed port, and the addresses
    /// learned on removed ports are forgotten.
    pub fn set_ports(&mut self, ports: Vec<SwitchPort>, limits: &[u32], mirrors: Vec<Mirror>) {
        let gone: Vec<OfPort> = self.live.ports.iter().map(|p| p.of).filter(|of| !has(&ports, *of)).collect();
        self.changes.push(Change::Ports(ports));
        self.changes.push(Change::Storm(storm(limits)));
        self.set_mirrors(mirrors);
        // Drain pending address reports first, so that they are not attributed to a later port with the same number.
        self.poll();
        for of in gone {
            self.flush_macs(Some(of));
            self.addresses.remove_port(of);
        }
    }

    /// Sets the link state of a port. Addresses learned on a port that goes down are forgotten.
    pub fn set_port_up(&mut self, of: OfPort, up: bool) {
        if self.live.port(of).is_none_or(|p| p.up == up) {
            return;
        }
        let mut ports = self.live.ports.clone();
        ports.iter_mut().filter(|p| p.of == of).for_each(|p| p.up = up);
        self.changes.push(Change::Ports(ports));
        if !up {
            self.flush_macs(Some(of));
        }
        self.commit();
    }

    /// Forgets the learned addresses of one port, or of all ports for `None`, and returns their number.
    pub fn flush_macs(&mut self, of: Option<OfPort>) -> usize {
        let keys = self.addresses.on(of);
        for key in &keys {
            self.addresses.forget(*key);
            self.changes.push(Change::Learn(*key, None));
        }
        self.commit();
        keys.len()
    }

    fn learn(&mut self, report: Report, now: Instant) {
        let learn = match report {
            Report::Change(change) => return self.handle_change(change),
            Report::Seen(learn) | Report::Used(learn) => learn,
        };
        // The report was queued before the port went down.
        let Some(port) = self.live.port(learn.port).filter(|port| port.up) else { return };
        let (key, limit) = (mac_key(learn.vlan, learn.mac), port.macs.unwrap_or(usize::MAX));
        if matches!(report, Report::Used(_)) && self.addresses.port(key) != Some(learn.port) {
            return;
        }
        let seen = self.addresses.see(key, learn.port, now);
        if seen == Seen::Again {
            return;
        }
        self.moved += u64::from(seen == Seen::Moved);
        self.changes.push(Change::Learn(key, Some(learn.port)));
        while let Some(evicted) = self.addresses.evict(learn.port, limit, self.config.macs) {
            self.changes.push(Change::Learn(evicted, None));
        }
    }

    /// Returns the learned addresses: VLAN, address, port, and time since the address was last seen.
    pub fn macs(&self) -> Vec<(u16, u64, OfPort, Duration)> {
        let one = |(key, port, age): (u64, OfPort, Duration)| ((key >> 48) as u16, key & 0xffff_ffff_ffff, port, age);
        let mut list: Vec<_> = self.addresses.list(Instant::now()).map(one).collect();
        list.sort();
        list
    }

    /// Returns how many addresses are learned on a port, and how many made room for others.
    pub fn learned_on(&self, of: OfPort) -> (usize, u64) {
        self.addresses.counts(of)
    }

    /// Processes the address reports of the workers. Returns `true` if there were any. Call every few milliseconds.
    pub fn poll(&mut self) -> bool {
        let now = Instant::now();
        let mut learned = Vec::new();
        for worker in &mut self.workers {
            for _ in 0..worker.learn.slots() {
                learned.extend(worker.learn.pop());
            }
        }
        let any = !learned.is_empty();
        learned.into_iter().for_each(|l| self.learn(l, now));
        self.learn_flows(now);
        self.commit();
        if let Some(offload) = self.offload.as_ref().filter(|_| now - self.tended > TEND) {
            self.tended = now;
            offload.tend();
        }
        any || !self.to_learn.is_empty()
    }

    /// Removes expired flows and addresses. Call about once per second.
    pub fn expire(&mut self) {
        let now = Instant::now();
        let ageing = self.config.ageing;
        let aged = self.addresses.expire(now, ageing);
        self.changes.extend(aged.into_iter().map(|key| Change::Learn(key, None)));
        let mut over = Vec::new();
        for slot in &self.timed {
            let packets = self.sum(*slot).0;
            let Some(entry) = self.entries.get_mut(slot) else { continue };
            if packets != entry.seen {
                (entry.seen, entry.used) = (packets, now);
            }
            let spec = &entry.rule.spec;
            let out = |timeout: u16, since: Instant| timeout != 0 && (now - since).as_secs() >= u64::from(timeout);
            if out(spec.hard_timeout, entry.refreshed) || out(spec.idle_timeout, entry.used) {
                over.push(*slot);
            }
        }
        over.into_iter().for_each(|slot| self.remove_slot(slot));
        for _ in 0..LOOKED_AT.min(self.next_slot) {
            let slot = self.looked_at;
            self.looked_at = (slot + 1) % self.next_slot;
            let packets = self.sum(slot).0;
            if let Some(entry) = self.entries.get_mut(&slot).filter(|entry| entry.seen != packets) {
                (entry.seen, entry.used) = (packets, now);
            }
        }
        self.reuse_slots();
        self.commit();
    }

    /// Sends a packet through the tables and returns the result with a description of each step in `story`.
    pub fn trace(&self, key: &Key) -> Translator {
        let mut translator = Translator::default();
        translator.story = Some(Vec::new());
        translator.translate(&self.live, key);
        translator
    }
}

fn has(ports: &[SwitchPort], of: OfPort) -> bool {
    ports.iter().any(|port| port.of == of)
}

fn storm(limits: &[u32]) -> Vec<Option<Arc<Meter>>> {
    let meter = |rate: &u32| {
        let spec = || MeterSpec { id: 0, packets: true, rate: *rate, burst: (*rate / 10).max(1) };
        (*rate > 0).then(|| Arc::new(Meter::new(spec())))
    };
    limits.iter().map(meter).collect()
}

/// Returns a hash of priority and match, which identify a flow within its table.
fn index_key(priority: u16, matches: &Match) -> u64 {
    hash_words(&matches.value.0, hash_words(&matches.mask.0, u64::from(priority)))
}

fn index_of(spec: &FlowSpec) -> u64 {
    index_key(spec.priority, &spec.matches)
}

/// Returns a hash seed from the system's random source.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let state = std::collections::hash_map::RandomState::new();
    let word = |n: u8| {
        let mut hasher = state.build_hasher();
        hasher.write_u8(n);
        hasher.finish()
    };
    hash_words(&[word(1), word(2)], word(3))
}
