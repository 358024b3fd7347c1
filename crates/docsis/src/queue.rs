//! Queues of the lower MAC: a FIFO for each flow, and the scheduler that selects the next flow.

use bywash_frame::Frame;
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

const NONE: u32 = u32::MAX;
/// Quantum of the deficit round robin in bytes: the longest PDU of DOCSIS 3.1, so that a flow sends something in every
/// turn.
const QUANTUM: i64 = 2000;

struct Node {
    frame: Option<Frame>,
    /// Next node of the flow, or next free node.
    next: u32,
}

#[derive(Clone, Copy)]
struct Flow {
    head: u32,
    tail: u32,
    len: u32,
    priority: u32,
    /// Bytes that the flow may still send in this turn.
    deficit: i64,
}

/// Queues of a service group: strict priority, and within a priority deficit round robin (Shreedhar and Varghese 1995)
/// by bytes.
pub struct Queues {
    flows: Vec<Flow>,
    nodes: Vec<Node>,
    free: u32,
    /// Flows with frames for each priority, in the order of their turns.
    active: [VecDeque<u32>; PRIORITIES],
    /// Bit mask of the priorities with active flows.
    ready: u8,
    limits: QueueLimits,
    len: usize,
}

impl Queues {
    /// Creates empty queues for flows with these priorities.
    pub fn new(priorities: impl IntoIterator<Item = u8>, limits: QueueLimits) -> Self {
        let flow = |priority: u8| Flow { head: NONE, tail: NONE, len: 0, priority: priority.min(7).into(), deficit: 0 };
        let flows: Vec<Flow> = priorities.into_iter().map(flow).collect();
        let total = limits.total.min(NONE as usize - 1);
        let next = |i: usize| if i + 1 == total { NONE } else { i as u32 + 1 };
        Self {
            nodes: (0..total).map(|i| Node { frame: None, next: next(i) }).collect(),
            free: if total == 0 { NONE } else { 0 },
            active: std::array::from_fn(|_| VecDeque::with_capacity(flows.len())),
            ready: 0,
            flows,
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

    /// Appends a frame to the queue of `flow`; returns the frame that is dropped, if any: the new or the oldest one, by
    /// the [`Overflow`] policy.
    #[inline]
    pub fn push(&mut self, flow: usize, frame: Frame) -> Option<Frame> {
        let mut dropped = None;
        if self.flows[flow].len as usize >= self.limits.flow {
            if self.limits.overflow == Overflow::Tail || self.limits.flow == 0 {
                return Some(frame);
            }
            dropped = self.take(flow);
        }
        let node = self.free;
        if node == NONE {
            return Some(frame);
        }
        let slot = &mut self.nodes[node as usize];
        self.free = slot.next;
        *slot = Node { frame: Some(frame), next: NONE };
        let f = &mut self.flows[flow];
        f.len += 1;
        self.len += 1;
        if f.head == NONE {
            f.head = node;
            // A flow whose only frame was just dropped has kept its turn.
            if dropped.is_none() {
                f.deficit = QUANTUM;
                self.active[f.priority as usize].push_back(flow as u32);
                self.ready |= 1 << f.priority;
            }
        } else {
            self.nodes[f.tail as usize].next = node;
        }
        self.flows[flow].tail = node;
        dropped
    }

    /// Removes the next frame to send and returns it with its flow's index.
    #[inline]
    pub fn pop(&mut self) -> Option<(usize, Frame)> {
        if self.ready == 0 {
            return None;
        }
        let priority = 7 - self.ready.leading_zeros() as usize;
        let active = &mut self.active[priority];
        let flow = loop {
            let &flow = active.front()?;
            let f = &mut self.flows[flow as usize];
            if f.deficit > 0 {
                break flow as usize;
            }
            f.deficit += QUANTUM;
            active.rotate_left(1);
        };
        let frame = self.take(flow)?;
        let f = &mut self.flows[flow];
        f.deficit -= frame.len() as i64;
        if f.head == NONE {
            let active = &mut self.active[priority];
            active.pop_front();
            if active.is_empty() {
                self.ready &= !(1 << priority);
            }
        }
        Some((flow, frame))
    }

    /// Removes the oldest frame of `flow`, which stays active.
    #[inline]
    fn take(&mut self, flow: usize) -> Option<Frame> {
        let f = &mut self.flows[flow];
        let slot = self.nodes.get_mut(f.head as usize)?;
        let frame = slot.frame.take();
        let freed = std::mem::replace(&mut f.head, slot.next);
        slot.next = std::mem::replace(&mut self.free, freed);
        f.len -= 1;
        self.len -= 1;
        frame
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
    use proptest::prelude::*;

    struct Rig {
        bufs: Buffers,
        arena: std::sync::Arc<Arena>,
    }

    impl Rig {
        fn new() -> Self {
            let arena = Arena::new(ArenaConfig { cells: 512, ..Default::default() }).unwrap();
            let pools = PoolSet::new(arena.clone(), &[PoolConfig::stack("test", 512)]).unwrap();
            Self { bufs: Buffers::attach(&pools, 0), arena }
        }

        fn frame(&mut self, number: u32, len: usize) -> Frame {
            let mut frame = self.bufs.alloc_one().unwrap();
            let mut bytes = vec![0; len.max(4)];
            bytes[..4].copy_from_slice(&number.to_ne_bytes());
            self.arena.write(&mut frame, &bytes);
            frame
        }

        fn number(&mut self, frame: Frame) -> u32 {
            let number = u32::from_ne_bytes(*self.arena.head(&frame).unwrap());
            self.bufs.free_one(frame);
            number
        }
    }

    impl Drop for Rig {
        fn drop(&mut self) {
            let mut all = Batch::new();
            while self.bufs.alloc(&mut all, 64) > 0 {
                all.drain().for_each(drop);
            }
            let allocated: u64 =
                self.bufs.pools().pools()[0].stats().allocated - self.bufs.pools().pools()[0].stats().freed;
            if !std::thread::panicking() {
                assert_eq!(allocated, 512, "a frame was lost");
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Push(usize, usize),
        Pop,
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..Default::default() })]
        /// Compares with queues of numbers: each flow is first in, first out; limits hold; the highest priority goes
        /// first.
        #[test]
        fn as_naive_queues(steps in proptest::collection::vec(
                               prop_oneof![(0..6usize, 4..1500usize).prop_map(|(f, l)| Step::Push(f, l)), Just(Step::Pop)], 1..400),
                           flow in 0..5usize, total in 0..20usize, head in any::<bool>()) {
            let overflow = if head { Overflow::Head } else { Overflow::Tail };
            let priorities = [0u8, 1, 1, 5, 7, 7];
            let mut rig = Rig::new();
            let mut queues = Queues::new(priorities, QueueLimits { flow, total, overflow });
            let mut naive: Vec<VecDeque<u32>> = vec![VecDeque::new(); 6];
            for (number, step) in steps.iter().enumerate() {
                match *step {
                    Step::Push(f, len) => {
                        let frame = rig.frame(number as u32, len);
                        let dropped = queues.push(f, frame).map(|frame| rig.number(frame));
                        let in_all: usize = naive.iter().map(VecDeque::len).sum();
                        let expected = if naive[f].len() >= flow {
                            if head && flow > 0 {
                                let oldest = naive[f].pop_front();
                                naive[f].push_back(number as u32);
                                oldest
                            } else {
                                Some(number as u32)
                            }
                        } else if in_all >= total {
                            Some(number as u32)
                        } else {
                            naive[f].push_back(number as u32);
                            None
                        };
                        prop_assert_eq!(dropped, expected);
                    }
                    Step::Pop => {
                        let got = queues.pop().map(|(f, frame)| (f, rig.number(frame)));
                        match got {
                            None => prop_assert!(naive.iter().all(VecDeque::is_empty)),
                            Some((f, number)) => {
                                prop_assert_eq!(naive[f].pop_front(), Some(number));
                                let waiting = (0..6).filter(|g| !naive[*g].is_empty());
                                prop_assert!(waiting.map(|g| priorities[g]).all(|p| p <= priorities[f]));
                            }
                        }
                    }
                }
                prop_assert_eq!(queues.len(), naive.iter().map(VecDeque::len).sum::<usize>());
                (0..6).for_each(|f| assert_eq!(queues.len_of(f), naive[f].len()));
            }
            while let Some((f, frame)) = queues.pop() {
                prop_assert_eq!(naive[f].pop_front(), Some(rig.number(frame)));
            }
            prop_assert!(queues.is_empty() && naive.iter().all(VecDeque::is_empty));
        }
    }

    #[test]
    fn flows_of_one_priority_share_by_bytes() {
        let mut rig = Rig::new();
        let mut queues = Queues::new([3, 3, 3], QueueLimits { flow: 200, total: 400, overflow: Overflow::Tail });
        for (flow, len, n) in [(0, 1500, 60), (1, 100, 150), (2, 700, 100)] {
            for _ in 0..n {
                let frame = rig.frame(0, len);
                assert!(queues.push(flow, frame).is_none());
            }
        }
        let mut bytes = [0usize; 3];
        // Only while all three flows have something to send.
        while (0..3).all(|f| queues.len_of(f) > 1) {
            let (flow, frame) = queues.pop().unwrap();
            bytes[flow] += frame.len();
            rig.bufs.free_one(frame);
        }
        let (least, most) = (bytes.iter().min().unwrap(), bytes.iter().max().unwrap());
        assert!(most - least <= 2 * (QUANTUM as usize + 1500), "{bytes:?}");
        while let Some((_, frame)) = queues.pop() {
            rig.bufs.free_one(frame);
        }
    }
}
