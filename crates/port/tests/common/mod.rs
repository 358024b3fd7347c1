#![allow(dead_code, unreachable_pub)]

use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use bywash_port::{Port, PortCounters, PortState};
use std::collections::VecDeque;
use std::sync::Arc;

/// Creates pools of `frames` cells in one stack.
pub fn pools(frames: usize) -> Arc<PoolSet> {
    let arena = Arena::new(ArenaConfig { cells: frames, ..Default::default() }).unwrap();
    PoolSet::new(arena, &[PoolConfig::stack("main", frames)]).unwrap()
}

/// Asserts that every cell is back exactly once.
pub fn assert_conserved(pools: &PoolSet) {
    assert_eq!(pools.verify(), (vec![], vec![]));
    assert_eq!(pools.audit(0).missing, 0);
}

/// Returns a batch of frames with these contents.
pub fn batch_of<T: AsRef<[u8]>>(bufs: &mut Buffers, packets: impl IntoIterator<Item = T>) -> Batch {
    let mut batch = Batch::new();
    for p in packets {
        let mut frame = bufs.alloc_one().expect("a free frame");
        assert!(bufs.arena().write(&mut frame, p.as_ref()));
        batch.push(frame).expect("room");
    }
    batch
}

/// Returns the contents of a batch and frees it.
pub fn contents(bufs: &mut Buffers, batch: &mut Batch) -> Vec<Vec<u8>> {
    let bytes = batch.as_slice().iter().map(|f| bufs.arena().data(f).to_vec()).collect();
    bufs.free(batch);
    bytes
}

/// Port that takes a configurable number of frames and keeps their bytes, and receives the frames given to it.
#[derive(Default)]
pub struct Scripted {
    pub take: VecDeque<usize>,
    pub sent: Vec<Vec<u8>>,
    pub receive: VecDeque<Vec<u8>>,
    pub counters: Arc<PortCounters>,
}

impl Port for Scripted {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let before = out.len();
        while out.room() > 0 && !self.receive.is_empty() {
            let Some(mut frame) = bufs.alloc_one() else { break };
            assert!(bufs.arena().write(&mut frame, &self.receive.pop_front().unwrap()));
            out.push(frame).unwrap();
        }
        out.len() - before
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let n = self.take.pop_front().unwrap_or(64).min(frames.len());
        let (mut gone, mut rest) = (Batch::new(), Batch::new());
        for (i, f) in frames.drain().enumerate() {
            if i < n { gone.push(f).unwrap() } else { rest.push(f).unwrap() }
        }
        rest.move_to(frames);
        self.sent.extend(contents(bufs, &mut gone));
        n
    }

    fn state(&self) -> PortState {
        PortState::Up
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn close(&mut self, _bufs: &mut Buffers) {}
}
