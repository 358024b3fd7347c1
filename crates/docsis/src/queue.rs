//! Queues of the lower MAC: a FIFO for each flow, and the scheduler that selects the next flow.

use crate::pie;
use crate::rates::{Rates, Treatment};
use bywash_frame::Frame;
use priority_queue::PriorityQueue;
use std::cmp::Reverse;
use std::collections::VecDeque;

/// Number of priorities.
pub const PRIORITIES: usize = 8;

/// Packet to drop when the queue of a flow is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Overflow {
    /// The arriving packet.
    #[default]
    Tail,
    /// The oldest packet in the queue.
    Head,
}

/// Limits of the queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Maximum number of frames of one flow.
    pub flow: usize,
    /// Maximum number of frames of all flows.
    pub total: usize,
    /// Drop policy when a flow's queue is full. When only the total is reached, the new packet is dropped.
    pub overflow: Overflow,
}

/// Reason why a queue drops a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The flow's queue, or all queues together, were full.
    Full,
    /// Early drop.
    Early,
}

const NONE: u32 = u32::MAX;
/// Quantum of the deficit round robin in bytes: the longest PDU of DOCSIS 3.1, so that a flow sends something in every
/// turn.
const QUANTUM: i64 = 2000;
/// List of flows below their reserved rate, above the lists of the priorities.
const GUARANTEED: usize = PRIORITIES;

struct Node {
    frame: Option<Frame>,
    /// Next node of the flow, or next free node.
    next: u32,
    /// Bytes that count for rates.
    bytes: u32,
}

#[derive(Clone, Copy)]
struct Flow {
    head: u32,
    tail: u32,
    len: u32,
    /// Index of its [`Rates`]; [`NONE`] for a flow without.
    rates: u32,
    /// Bytes that the flow may still send in this turn.
    deficit: i64,
    /// Index of its set of channels.
    set: u16,
    priority: u8,
    /// Set if it is in the list of its priority, and in the list [`GUARANTEED`]. A flow that is emptied from one stays
    /// in the other until that reaches it.
    listed: bool,
    guaranteed: bool,
    /// Set if it waits for tokens of the rates it is shaped to, in no list or about to leave it.
    parked: bool,
}

/// Flow whose tokens a timer waits for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Awaited {
    Shaper(u32),
    Reserved(u32),
}

/// Flows with frames that may use the same channels.
struct Set {
    /// Bit mask of these channels.
    channels: u64,
    /// Flows for each priority, and those below their reserved rate, in the order of their turns.
    lists: [VecDeque<u32>; PRIORITIES + 1],
    /// Bit mask of the lists that are not empty.
    ready: u16,
    /// Virtual time of each list: the bytes sent from it, each divided by the flows listed then.
    served: [u64; PRIORITIES + 1],
}

impl Set {
    /// Appends a flow to a list. `served` are the virtual times of all sets: one that sent nothing meanwhile gains
    /// nothing.
    #[inline]
    fn add(&mut self, list: usize, flow: usize, served: &[u64; PRIORITIES + 1]) {
        if self.lists[list].is_empty() {
            let last = served[list];
            self.served[list] = if ahead(self.served[list], last) > 0 { self.served[list] } else { last };
        }
        self.lists[list].push_back(flow as u32);
        self.ready |= 1 << list;
    }
}

/// Returns how far a set's virtual time is ahead of the last one that was served: negative if it is behind. Times wrap
/// (2^48 bytes of one flow take 3.5 days at 7.5 Gbit/s), and a set that sends nothing may be behind by any difference,
/// but none is ahead by more than a frame.
fn ahead(time: u64, last: u64) -> i64 {
    let difference = time.wrapping_sub(last).cast_signed();
    if difference < 1 << 40 { difference } else { i64::MIN }
}

/// Binary digits of virtual times behind the point.
const FRACTION: u32 = 16;

/// Queues of a service group. Flows below their minimum reserved rate come first; then strict priority, and within a
/// priority deficit round robin (Shreedhar and Varghese 1995) by bytes. Shaped flows wait until they have tokens. Times
/// are TSC ticks.
pub struct Queues {
    flows: Vec<Flow>,
    rates: Vec<Rates>,
    nodes: Vec<Node>,
    free: u32,
    /// Sets of channels, at least one.
    sets: Vec<Set>,
    /// Virtual time of each list: that of the set which sent last. A set that becomes ready starts there.
    served: [u64; PRIORITIES + 1],
    /// Times from which flows have the tokens for their oldest frames.
    timers: PriorityQueue<Awaited, Reverse<u64>, foldhash::fast::RandomState>,
    /// Time between two updates of early drops.
    interval: u64,
    limits: QueueLimits,
    len: usize,
}

impl Queues {
    /// Creates empty queues for flows treated so. `hz` is the TSC frequency.
    pub fn new(treatments: impl IntoIterator<Item = Treatment>, limits: QueueLimits, hz: u64) -> Self {
        let mut rates = vec![];
        let mut masks: Vec<u64> = vec![];
        let flow = |treatment: Treatment| {
            let of_flow = Rates::new(&treatment, &limits, hz, rates.len() as u64);
            let index = if of_flow.is_some() { rates.len() as u32 } else { NONE };
            rates.extend(of_flow);
            let channels = if treatment.channels == 0 { u64::MAX } else { treatment.channels };
            let set = masks.iter().position(|mask| *mask == channels).unwrap_or_else(|| {
                masks.push(channels);
                masks.len() - 1
            });
            Flow {
                head: NONE,
                tail: NONE,
                len: 0,
                rates: index,
                deficit: 0,
                set: set as u16,
                priority: treatment.priority.min(7),
                listed: false,
                guaranteed: false,
                parked: false,
            }
        };
        let flows: Vec<Flow> = treatments.into_iter().map(flow).collect();
        let of_set = |set: usize| flows.iter().filter(|flow| usize::from(flow.set) == set).count();
        let sets = masks.iter().enumerate().map(|(set, &channels)| Set {
            channels,
            lists: std::array::from_fn(|_| VecDeque::with_capacity(of_set(set))),
            ready: 0,
            served: [0; PRIORITIES + 1],
        });
        let sets: Vec<Set> = sets.collect();
        let total = limits.total.min(NONE as usize - 1);
        let next = |i: usize| if i + 1 == total { NONE } else { i as u32 + 1 };
        Self {
            nodes: (0..total).map(|i| Node { frame: None, next: next(i), bytes: 0 }).collect(),
            free: if total == 0 { NONE } else { 0 },
            sets,
            served: [0; PRIORITIES + 1],
            // A flow waits for either kind of token at most once.
            timers: PriorityQueue::with_capacity_and_hasher(2 * rates.len(), Default::default()),
            interval: (hz as f64 * pie::INTERVAL) as u64,
            flows,
            rates,
            limits,
            len: 0,
        }
    }

    /// Returns the number of frames in all queues.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether all queues are empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of frames in the queue of `flow`. Panics if there is no such flow.
    pub fn len_of(&self, flow: usize) -> usize {
        self.flows[flow].len as usize
    }

    /// Appends a frame that counts as `bytes` to the queue of `flow`; returns the frame that is dropped, if any: the
    /// new one, or by the [`Overflow`] policy the oldest one. A shaped flow whose oldest frame is dropped still waits
    /// until it has the tokens for that frame.
    #[inline]
    pub fn push(&mut self, flow: usize, frame: Frame, bytes: u32, now: u64) -> Option<(Frame, Cause)> {
        let mut dropped = None;
        if self.flows[flow].len as usize >= self.limits.flow {
            if self.limits.overflow == Overflow::Tail || self.limits.flow == 0 {
                return Some((frame, Cause::Full));
            }
            self.advance(flow, now);
            dropped = self.take(flow).map(|(frame, _)| (frame, Cause::Full));
        }
        let node = self.free;
        if node == NONE {
            return Some((frame, Cause::Full));
        }
        if let Some(rates) = self.rates.get_mut(self.flows[flow].rates as usize) {
            if dropped.is_none() && rates.drops_early(bytes, now, self.interval) {
                return Some((frame, Cause::Early));
            }
            rates.bytes += bytes as usize;
        }
        let slot = &mut self.nodes[node as usize];
        self.free = slot.next;
        *slot = Node { frame: Some(frame), next: NONE, bytes };
        let f = &mut self.flows[flow];
        f.len += 1;
        self.len += 1;
        if f.head == NONE {
            f.head = node;
            f.tail = node;
            self.enlist(flow, now);
        } else {
            self.nodes[f.tail as usize].next = node;
            self.flows[flow].tail = node;
        }
        dropped
    }

    /// Removes the next frame to send on a channel of mask `channels`, and returns it with its flow's index. `None` if
    /// all flows that may use such a channel are empty or wait for tokens.
    #[inline]
    pub fn pop(&mut self, now: u64, channels: u64) -> Option<(usize, Frame)> {
        if !self.timers.is_empty() {
            self.wake(now);
        }
        while let Some((set, list)) = self.first(channels) {
            let Some(&flow) = self.sets[set].lists[list].front() else {
                self.sets[set].ready &= !(1 << list);
                continue;
            };
            let flow = flow as usize;
            let f = &self.flows[flow];
            if f.head == NONE || f.parked || f.rates != NONE && !self.may_send(flow, list, now) {
                self.unlist(set, list);
                continue;
            }
            let f = &mut self.flows[flow];
            if list != GUARANTEED && f.deficit <= 0 {
                f.deficit += QUANTUM;
                self.sets[set].lists[list].rotate_left(1);
                continue;
            }
            let listed = self.sets[set].lists[list].len() as u64;
            self.advance(flow, now);
            let (frame, bytes) = self.take(flow)?;
            let served = &mut self.sets[set].served[list];
            self.served[list] = *served;
            *served = served.wrapping_add((u64::from(bytes) << FRACTION) / listed);
            let f = &mut self.flows[flow];
            if list != GUARANTEED {
                f.deficit -= i64::from(bytes);
            }
            if let Some(rates) = self.rates.get_mut(f.rates as usize) {
                rates.charge(bytes, now);
                // The next frame may need fewer tokens than the timer was set for.
                if f.head != NONE && !f.guaranteed {
                    self.enlist(flow, now);
                }
            }
            if self.flows[flow].head == NONE {
                self.unlist(set, list);
            } else if list == GUARANTEED {
                self.sets[set].lists[list].rotate_left(1);
            }
            return Some((flow, frame));
        }
        None
    }

    /// Returns the set and the list that come first among those that may use a channel of mask `channels`. `None` if
    /// all are empty.
    #[inline]
    fn first(&self, channels: u64) -> Option<(usize, usize)> {
        let ready = self.sets.iter().enumerate().filter(|(_, set)| set.channels & channels != 0 && set.ready != 0);
        let lists = ready.map(|(index, set)| (index, 15 - set.ready.leading_zeros() as usize, set));
        // The highest list; of several sets the one that has sent the fewest bytes for each of its flows.
        let first = lists.min_by_key(|&(_, list, set)| (Reverse(list), ahead(set.served[list], self.served[list])));
        first.map(|(index, list, _)| (index, list))
    }

    /// Removes all frames, also those that wait for tokens.
    pub fn drain(&mut self, mut out: impl FnMut(Frame)) {
        for flow in 0..self.flows.len() {
            while let Some((frame, _)) = self.take(flow) {
                out(frame);
            }
        }
    }

    /// Lists a flow with frames where it may be served, and sets timers for what it may not be served for yet.
    #[inline]
    fn enlist(&mut self, flow: usize, now: u64) {
        let f = &mut self.flows[flow];
        if f.parked {
            return;
        }
        let set = &mut self.sets[usize::from(f.set)];
        if let Some(rates) = self.rates.get(f.rates as usize) {
            let bytes = self.nodes[f.head as usize].bytes;
            if let Some(at) = rates.shaped_until(bytes, now) {
                f.parked = true;
                self.timers.push(Awaited::Shaper(flow as u32), Reverse(at));
                return;
            }
            match rates.reserved_from(bytes, now) {
                Some(Ok(())) if !f.guaranteed => {
                    f.guaranteed = true;
                    set.add(GUARANTEED, flow, &self.served);
                }
                Some(Err(at)) => {
                    self.timers.push(Awaited::Reserved(flow as u32), Reverse(at));
                }
                _ => {}
            }
        }
        if !f.listed {
            f.listed = true;
            f.deficit = QUANTUM;
            set.add(f.priority as usize, flow, &self.served);
        }
    }

    /// Removes the first flow of a list of a set.
    #[inline]
    fn unlist(&mut self, set: usize, list: usize) {
        let set = &mut self.sets[set];
        let Some(flow) = set.lists[list].pop_front() else { return };
        let f = &mut self.flows[flow as usize];
        if list == GUARANTEED {
            f.guaranteed = false;
        } else {
            f.listed = false;
        }
        if set.lists[list].is_empty() {
            set.ready &= !(1 << list);
        }
    }

    /// Returns whether the first flow of `list`, which has rates, has the tokens to be served from there. If not, sets
    /// a timer.
    fn may_send(&mut self, flow: usize, list: usize, now: u64) -> bool {
        let f = &mut self.flows[flow];
        let rates = &self.rates[f.rates as usize];
        let bytes = self.nodes[f.head as usize].bytes;
        if let Some(at) = rates.shaped_until(bytes, now) {
            f.parked = true;
            self.timers.push(Awaited::Shaper(flow as u32), Reverse(at));
            return false;
        }
        if list != GUARANTEED {
            return true;
        }
        match rates.reserved_from(bytes, now) {
            Some(Err(at)) => {
                self.timers.push(Awaited::Reserved(flow as u32), Reverse(at));
                false
            }
            _ => true,
        }
    }

    /// Lists the flows whose timers have expired.
    fn wake(&mut self, now: u64) {
        while let Some((awaited, _)) = self.timers.pop_if(|_, Reverse(at)| *at <= now) {
            let flow = match awaited {
                Awaited::Shaper(flow) => {
                    self.flows[flow as usize].parked = false;
                    flow
                }
                Awaited::Reserved(flow) => flow,
            };
            if self.flows[flow as usize].head != NONE {
                self.enlist(flow as usize, now);
            }
        }
    }

    /// Brings the early drops of a flow up to date, before its queue changes.
    #[inline]
    fn advance(&mut self, flow: usize, now: u64) {
        if let Some(rates) = self.rates.get_mut(self.flows[flow].rates as usize) {
            rates.advance(now, self.interval);
        }
    }

    /// Removes the oldest frame of `flow`, which stays listed; returns it with the bytes that it counts as.
    #[inline]
    fn take(&mut self, flow: usize) -> Option<(Frame, u32)> {
        let f = &mut self.flows[flow];
        let slot = self.nodes.get_mut(f.head as usize)?;
        let (frame, bytes) = (slot.frame.take()?, slot.bytes);
        let freed = std::mem::replace(&mut f.head, slot.next);
        slot.next = std::mem::replace(&mut self.free, freed);
        f.len -= 1;
        self.len -= 1;
        if let Some(rates) = self.rates.get_mut(f.rates as usize) {
            rates.bytes -= bytes as usize;
        }
        Some((frame, bytes))
    }
}

#[cfg(test)]
mod tests;
