//! Rollover of the modems' keys.
//!
//! A modem has an even and an odd key, after the parity of their sequence numbers, so that it can open frames sealed
//! with either while one replaces the other. One is in use. A [`Rollover`] passes a new key to every sealer of the
//! group and puts it in use once all of them have it. Before that, it waits until no frame sealed with the replaced key
//! is in flight between the two workers, as only frames sealed with the last two keys can be opened.

use crate::group::Group;
use crate::seal::{KeyPair, Sealer};
use bywash_frame::Frame;
use bywash_sync::Counter;
use rtrb::{Consumer, Producer, RingBuffer};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Number of sequence numbers: they have four bits.
pub const SEQUENCES: u8 = 16;

/// Capacity of the ring of updates to one worker.
const UPDATES: usize = 64;

/// Returns the place of a key among those of a sealer.
#[inline]
pub(crate) fn slot(modem: usize, sequence: u8) -> usize {
    2 * modem + usize::from(sequence & 1)
}

/// State of the keys of all modems that the two workers and the control half share.
pub(crate) struct KeyState {
    /// Sequence number of the key in use of each modem.
    in_use: Vec<AtomicU8>,
    /// Frames sealed by the upper MAC and handed over, by slot. Written by the upper MAC.
    early: Vec<Counter>,
    /// Those of them that the lower MAC has sent or dropped. Written by the lower MAC.
    gone: Vec<Counter>,
}

impl KeyState {
    pub(crate) fn new(sequences: impl Iterator<Item = u8>) -> Self {
        let in_use: Vec<_> = sequences.map(|sequence| AtomicU8::new(sequence % SEQUENCES)).collect();
        let counters = || (0..2 * in_use.len()).map(|_| Counter::new()).collect();
        Self { early: counters(), gone: counters(), in_use }
    }

    /// Returns the sequence number of a modem's key in use.
    #[inline]
    pub(crate) fn in_use(&self, modem: usize) -> u8 {
        self.in_use[modem].load(Ordering::Acquire)
    }

    /// Counts a frame sealed by the upper MAC.
    #[inline]
    pub(crate) fn sealed_early(&self, modem: usize, sequence: u8) {
        self.early[slot(modem, sequence)].add(1);
    }

    /// Uncounts a frame sealed by the upper MAC that could not be handed over.
    #[inline]
    pub(crate) fn not_handed_over(&self, modem: usize, sequence: u8) {
        self.early[slot(modem, sequence)].add(u64::MAX);
    }

    /// Counts a frame sealed by the upper MAC that has left the lower MAC's queues.
    #[inline]
    pub(crate) fn gone(&self, modem: usize, sequence: u8) {
        self.gone[slot(modem, sequence)].add(1);
    }

    fn drained(&self, slot: usize) -> bool {
        self.early[slot].get() == self.gone[slot].get()
    }
}

/// Error of [`Rollover::change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No such modem.
    #[error("unknown modem")]
    NoModem,
    /// Sequence number above 15.
    #[error("invalid sequence number {0}: expected 0 to 15")]
    Sequence(u8),
    /// Key that would replace the one in use.
    #[error("key {key} has the parity of key {in_use}, which is in use: the next one is {}", (in_use + 1) % SEQUENCES)]
    Parity {
        /// Sequence number of the refused key.
        key: u8,
        /// Sequence number of the key in use.
        in_use: u8,
    },
    /// The modem's last change is not complete.
    #[error("the last change of this modem's keys is still under way: try again")]
    UnderWay,
    /// Key to be used that was not loaded.
    #[error("key {0} is not loaded")]
    NotLoaded(u8),
}

/// Message to a worker that seals.
#[derive(Clone, Copy)]
enum Update {
    /// Replace the key of this slot.
    Key(usize, KeyPair),
    /// Acknowledge: everything decided with earlier keys in use is done.
    Fence,
}

/// Worker's end of a [`Rollover`].
pub struct NewKeys {
    updates: Consumer<Update>,
    taken: Arc<AtomicU64>,
}

impl NewKeys {
    /// Takes new keys into `sealer`. Finished frames go to `out`. To be called between bursts.
    #[inline]
    pub(crate) fn take(&mut self, sealer: &mut Sealer, out: impl FnMut(Frame)) {
        if !self.updates.is_empty() {
            self.take_all(sealer, out);
        }
    }

    #[cold]
    fn take_all(&mut self, sealer: &mut Sealer, mut out: impl FnMut(Frame)) {
        while let Ok(update) = self.updates.pop() {
            if let Update::Key(slot, key) = update {
                sealer.set_key(slot, &key, &mut out);
            }
            self.taken.fetch_add(1, Ordering::Release);
        }
    }
}

/// Control half's end of a worker.
struct End {
    updates: Producer<Update>,
    passed: u64,
    taken: Arc<AtomicU64>,
}

/// Change of a modem's keys.
struct Change {
    modem: usize,
    sequence: u8,
    /// New key; `None` if it was loaded before.
    key: Option<KeyPair>,
    /// True if the key is used once all workers have it; otherwise it is only loaded.
    put_in_use: bool,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Frames sealed with the replaced key may be on their way.
    Drain,
    /// The workers have not taken the update with this number yet.
    Load(u64),
    /// The workers may still use the previous key.
    Fence(u64),
}

/// Control half of a group's keys.
pub struct Rollover {
    group: Arc<Group>,
    ends: Vec<End>,
    /// Each modem's even and odd key with their sequence numbers; `None` if there is no such key.
    loaded: Vec<[Option<(u8, KeyPair)>; 2]>,
    /// For each modem, true if a change of its keys is under way.
    busy: Vec<bool>,
    changes: VecDeque<Change>,
}

impl Rollover {
    /// Creates the control half for `group`, without workers.
    pub fn new(group: Arc<Group>) -> Self {
        let loaded = group.modems().iter().map(|modem| {
            let mut loaded = [None; 2];
            loaded[usize::from(modem.sequence & 1)] = Some((modem.sequence, modem.key));
            loaded
        });
        let (loaded, busy) = (loaded.collect(), vec![false; group.modems().len()]);
        Self { group, ends: vec![], loaded, busy, changes: VecDeque::new() }
    }

    /// Adds a worker that seals. To be called before the first change.
    pub fn add_worker(&mut self) -> NewKeys {
        let (producer, consumer) = RingBuffer::new(UPDATES);
        let taken: Arc<AtomicU64> = Arc::default();
        self.ends.push(End { updates: producer, passed: 0, taken: taken.clone() });
        NewKeys { updates: consumer, taken }
    }

    /// Begins to replace a modem's key that is not in use by `key`, if one is given, and to use key `sequence`
    /// afterwards if `put_in_use` is true. [`Rollover::tick`] completes the change.
    pub fn change(
        &mut self,
        modem: usize,
        sequence: u8,
        key: Option<KeyPair>,
        put_in_use: bool,
    ) -> Result<(), KeyError> {
        self.check(modem, sequence, key.is_some())?;
        self.busy[modem] = true;
        self.changes.push_back(Change { modem, sequence, key, put_in_use, stage: Stage::Drain });
        Ok(())
    }

    /// Returns whether [`Rollover::change`] accepts such a change now, with a new key if `new` is true.
    pub fn check(&self, modem: usize, sequence: u8, new: bool) -> Result<(), KeyError> {
        let busy = self.busy.get(modem).ok_or(KeyError::NoModem)?;
        if sequence >= SEQUENCES {
            return Err(KeyError::Sequence(sequence));
        }
        if *busy {
            return Err(KeyError::UnderWay);
        }
        let in_use = self.group.key_state().in_use(modem);
        if !new && self.loaded[modem][usize::from(sequence & 1)].is_none_or(|(loaded, _)| loaded != sequence) {
            return Err(KeyError::NotLoaded(sequence));
        }
        if new && sequence & 1 == in_use & 1 {
            return Err(KeyError::Parity { key: sequence, in_use });
        }
        Ok(())
    }

    /// Returns whether a modem uses this key, by this sequence number.
    pub fn uses(&self, modem: usize, sequence: u8, key: &KeyPair) -> bool {
        self.group.key_state().in_use(modem) == sequence
            && self.loaded[modem][usize::from(sequence & 1)] == Some((sequence, *key))
    }

    /// Returns the number of changes under way.
    pub fn pending(&self) -> usize {
        self.changes.len()
    }

    /// Carries changes on as far as the workers are; returns how many remain under way.
    pub fn tick(&mut self) -> usize {
        let Self { group, ends, loaded, busy, changes } = self;
        let state = group.key_state();
        changes.retain_mut(|change| {
            let slot = slot(change.modem, change.sequence);
            if change.stage == Stage::Drain {
                // Without a new key, nothing is replaced.
                let update = match change.key {
                    Some(key) => state.drained(slot).then_some(Update::Key(slot, key)),
                    None => Some(Update::Fence),
                };
                match update.and_then(|update| pass(ends, update)) {
                    Some(number) => change.stage = Stage::Load(number),
                    None => return true,
                }
            }
            if let Stage::Load(number) = change.stage
                && taken(ends, number)
            {
                if let Some(key) = change.key {
                    loaded[change.modem][usize::from(change.sequence & 1)] = Some((change.sequence, key));
                }
                if change.put_in_use {
                    state.in_use[change.modem].store(change.sequence, Ordering::Release);
                }
                match pass(ends, Update::Fence) {
                    Some(number) => change.stage = Stage::Fence(number),
                    None => return true,
                }
            }
            let complete = matches!(change.stage, Stage::Fence(number) if taken(ends, number));
            busy[change.modem] = !complete;
            !complete
        });
        changes.len()
    }
}

/// Passes an update to every worker; returns its number. `None` if a ring has no room.
fn pass(ends: &mut [End], update: Update) -> Option<u64> {
    if ends.iter().any(|end| end.updates.is_full()) {
        return None;
    }
    for end in ends.iter_mut() {
        let passed = end.updates.push(update);
        debug_assert!(passed.is_ok());
        end.passed += 1;
    }
    // Every worker has had the same updates.
    Some(ends.first().map_or(0, |end| end.passed))
}

/// Returns whether all workers have taken update `number`.
fn taken(ends: &[End], number: u64) -> bool {
    ends.iter().all(|end| end.taken.load(Ordering::Acquire) >= number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{FlowKind, ModemConfig, ModemKind};
    use crate::protect::Protection;
    use crate::seal::Crypto;
    use bywash_frame::{Arena, ArenaConfig};

    fn group() -> Arc<Group> {
        let kind = ModemKind { flows: vec![FlowKind::default()], filters: vec![] };
        let modem = |n: u8| ModemConfig {
            mac: [2, 0, 0, 0, 0, n],
            kind: 0,
            said: n.into(),
            key: ([n; 16], [0; 16]),
            sequence: 15,
            ..ModemConfig::default()
        };
        Arc::new(Group::new(vec![kind], (0..3).map(modem).collect()).unwrap())
    }

    struct Worker {
        keys: NewKeys,
        sealer: Sealer,
    }

    impl Worker {
        fn new(rollover: &mut Rollover, group: &Group) -> Self {
            let arena = Arena::new(ArenaConfig { cells: 1, ..Default::default() }).unwrap();
            let sealer = Sealer::new(Crypto::Portable, Protection::default(), &arena, &group.keys()).unwrap();
            Self { keys: rollover.add_worker(), sealer }
        }

        fn turn(&mut self) {
            self.keys.take(&mut self.sealer, |_| ());
        }

        fn seals_as(&mut self, slot: usize, key: &KeyPair) -> bool {
            let (mut ours, mut theirs) = ([7; 64], [7; 64]);
            self.sealer.seal_bytes(&mut ours, slot);
            let tek = crate::cipher::Tek::new(&key.0, &key.1);
            crate::protect::seal(&tek, Protection::default(), &mut theirs);
            ours == theirs
        }
    }

    #[test]
    fn a_key_is_used_once_every_worker_has_it() {
        let group = group();
        let mut rollover = Rollover::new(group.clone());
        let mut workers = [(); 2].map(|()| Worker::new(&mut rollover, &group));
        let new: KeyPair = ([9; 16], [8; 16]);
        rollover.change(1, 0, Some(new), true).unwrap();
        assert_eq!(rollover.change(1, 2, Some(new), true), Err(KeyError::UnderWay));
        for worker in &mut workers {
            assert_eq!((rollover.tick(), group.key_in_use(1)), (1, 15));
            worker.turn();
            assert!(worker.seals_as(slot(1, 0), &new) && worker.seals_as(slot(1, 15), &([1; 16], [0; 16])));
        }
        // The new key is used from now on, but a worker may still be at a frame with the last one.
        assert_eq!((rollover.tick(), group.key_in_use(1)), (1, 0));
        assert_eq!(rollover.change(1, 1, Some(new), true), Err(KeyError::UnderWay));
        workers.iter_mut().for_each(Worker::turn);
        assert_eq!((rollover.tick(), group.key_in_use(1), group.key_in_use(0)), (0, 0, 15));
        assert_eq!(rollover.change(1, 4, Some(new), true), Err(KeyError::Parity { key: 4, in_use: 0 }));
    }

    #[test]
    fn a_key_is_not_replaced_while_frames_sealed_with_it_wait() {
        let group = group();
        let mut rollover = Rollover::new(group.clone());
        let mut worker = Worker::new(&mut rollover, &group);
        let (old, new): (KeyPair, KeyPair) = (([1; 16], [0; 16]), ([9; 16], [8; 16]));
        let state = group.key_state();
        state.sealed_early(1, 15);
        state.sealed_early(1, 15);
        let complete = |rollover: &mut Rollover, worker: &mut Worker| {
            (0..4).for_each(|_| {
                rollover.tick();
                worker.turn();
            });
            rollover.pending() == 0
        };
        rollover.change(1, 0, Some(old), true).unwrap();
        assert!(complete(&mut rollover, &mut worker));
        rollover.change(1, 1, Some(new), true).unwrap();
        assert!(!complete(&mut rollover, &mut worker) && worker.seals_as(slot(1, 15), &old));
        state.gone(1, 15);
        assert!(!complete(&mut rollover, &mut worker));
        state.not_handed_over(1, 15);
        assert!(complete(&mut rollover, &mut worker) && worker.seals_as(slot(1, 1), &new));
        assert_eq!(group.key_in_use(1), 1);
    }

    #[test]
    fn a_key_can_be_loaded_first_and_used_later() {
        let group = group();
        let mut rollover = Rollover::new(group.clone());
        let mut worker = Worker::new(&mut rollover, &group);
        let mut complete = |rollover: &mut Rollover| {
            while rollover.tick() > 0 {
                worker.turn();
            }
        };
        assert_eq!(rollover.change(2, 0, None, true), Err(KeyError::NotLoaded(0)));
        rollover.change(2, 0, Some(([3; 16], [4; 16])), false).unwrap();
        complete(&mut rollover);
        assert_eq!(group.key_in_use(2), 15);
        rollover.change(2, 0, None, true).unwrap();
        complete(&mut rollover);
        assert_eq!(group.key_in_use(2), 0);
        rollover.change(2, 15, None, true).unwrap();
        complete(&mut rollover);
        assert_eq!(group.key_in_use(2), 15);
        assert_eq!(rollover.change(9, 0, None, true), Err(KeyError::NoModem));
        assert_eq!(rollover.change(2, 16, None, true), Err(KeyError::Sequence(16)));
    }

    #[test]
    fn more_changes_than_a_ring_holds() {
        let kind = ModemKind { flows: vec![FlowKind::default()], filters: vec![] };
        let modem = |n: u16| {
            let [a, b] = n.to_be_bytes();
            ModemConfig { mac: [2, 0, 0, 0, a, b], said: n, ..ModemConfig::default() }
        };
        let group = Arc::new(Group::new(vec![kind], (0..1000).map(modem).collect()).unwrap());
        let mut rollover = Rollover::new(group.clone());
        let mut worker = Worker::new(&mut rollover, &group);
        (0..1000).for_each(|modem| rollover.change(modem, 1, Some(([modem as u8; 16], [1; 16])), true).unwrap());
        while rollover.tick() > 0 {
            worker.turn();
        }
        for modem in 0..1000 {
            assert_eq!(group.key_in_use(modem), 1);
            assert!(worker.seals_as(slot(modem, 1), &([modem as u8; 16], [1; 16])));
        }
    }
}
