//! Panics that a worker outlives, and those that end it.

use bywash_engine::{
    App, Context, DropReason, Failure, Idle, PortId, PortTable, Worker, WorkerConfig, WorkerExit, WorkerHandle,
};
use bywash_frame::{Arena, ArenaConfig, BATCH, Batch, Buffers, Frame, PoolConfig, PoolSet};
use bywash_port::{PairPort, Port, PortCounters, TxQueue, TxQueueConfig, pair};
use bywash_sync::Qsbr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pool size at which a worker outlives two panics.
const FRAMES: usize = 2 * 4 * 2 * BATCH;
const IN: PortId = PortId(0);
const OUT: PortId = PortId(1);
/// Port that panics when it is to send.
const BROKEN: PortId = PortId(2);

/// First bytes of packets: what the application does with them.
const SEND: u8 = 0;
const KEEP: u8 = 1;
const PANIC: u8 = 2;
const PANIC_IN_HAND: u8 = 3;
const PANIC_IN_PORT: u8 = 4;

fn what(cx: &Context<'_>, frame: &Frame) -> u8 {
    cx.bufs.arena().data(frame)[0]
}

struct Fragile {
    kept: Vec<Frame>,
    recovers: bool,
}

impl App for Fragile {
    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        assert!(batch.as_slice().iter().all(|frame| what(cx, frame) != PANIC), "as asked");
        for frame in batch.drain() {
            match what(cx, &frame) {
                SEND => cx.send(from, OUT, frame),
                KEEP => self.kept.push(frame),
                PANIC_IN_PORT => {
                    let mut burst = Batch::new();
                    burst.push(frame).unwrap();
                    cx.send_batch(from, BROKEN, &mut burst);
                }
                _ => panic!("as asked"),
            }
        }
    }

    fn held(&self) -> usize {
        self.kept.len()
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.kept.drain(..).for_each(|frame| cx.drop(IN, DropReason::PortDown, frame));
    }

    fn recover(&mut self) -> bool {
        self.recovers
    }
}

struct Broken;

impl Port for Broken {
    fn rx_burst(&mut self, _bufs: &mut Buffers, _out: &mut Batch) -> usize {
        0
    }

    fn tx_burst(&mut self, _bufs: &mut Buffers, _frames: &mut Batch) -> usize {
        panic!("a broken port")
    }

    fn receives(&self) -> bool {
        false
    }

    fn max_frame(&self) -> usize {
        usize::MAX
    }

    fn counters(&self) -> Arc<PortCounters> {
        Arc::default()
    }

    fn close(&mut self, _bufs: &mut Buffers) {}
}

/// A worker with the application, and the far ends of its ports.
struct Rig {
    pools: Arc<PoolSet>,
    bufs: Buffers,
    domain: Qsbr,
    to: PairPort,
    from: PairPort,
    worker: WorkerHandle,
}

impl Rig {
    fn new(outlives: bool, recovers: bool) -> Self {
        let arena = Arena::new(ArenaConfig { cells: FRAMES, ..Default::default() }).unwrap();
        let pools = PoolSet::new(arena, &[PoolConfig::stack("main", FRAMES)]).unwrap();
        let ((here, to), (out, from)) = (pair(64), pair(64));
        let mut ports = PortTable::new();
        for port in [Box::new(here) as Box<dyn Port>, Box::new(out), Box::new(Broken)] {
            ports.add(port, TxQueue::new(TxQueueConfig { burst: 1, deadline_us: 0 }));
        }
        let domain = Qsbr::new();
        let config = WorkerConfig { id: 0, cpu: None, idle: Idle::Sleep };
        let app = Box::new(Fragile { kept: vec![], recovers });
        let mut worker = Worker::new(config, ports, app, Buffers::attach(&pools, 0), domain.register());
        if outlives {
            worker.outlive_panics();
        }
        let bufs = Buffers::attach(&pools, 0);
        Self { pools, bufs, domain, to, from, worker: worker.spawn().unwrap() }
    }

    fn send(&mut self, packet: u8) {
        let mut frame = self.bufs.alloc_one().expect("a free frame");
        assert!(self.bufs.arena().write(&mut frame, &[packet; 60]));
        let mut batch = Batch::new();
        batch.push(frame).unwrap();
        assert_eq!(self.to.tx_burst(&mut self.bufs, &mut batch), 1);
    }

    /// Waits until the worker has sent a packet.
    fn receive(&mut self) {
        let Self { bufs, from, .. } = self;
        wait("a packet", || {
            let mut batch = Batch::new();
            let received = from.rx_burst(bufs, &mut batch);
            bufs.free(&mut batch);
            received == 1
        });
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.worker.counters().port(IN).drops(reason)
    }

    /// Waits until the application has panicked, and returns the failure.
    fn failure(&self) -> Failure {
        wait("the panic", || self.worker.failed().is_some());
        self.worker.failed().unwrap()
    }

    fn restart(&self) {
        self.worker.restart();
        wait("the restart", || self.worker.failed().is_none());
    }

    /// Ends the worker. Returns how it ended, and the number of cells that are missing then.
    fn end(mut self) -> (WorkerExit, usize) {
        let exit = self.worker.stop();
        [&mut self.to, &mut self.from].into_iter().for_each(|port| port.close(&mut self.bufs));
        drop(self.bufs);
        let (missing, wrong) = self.pools.verify();
        assert!(wrong.is_empty(), "{wrong:?}");
        (exit, missing.len())
    }
}

#[track_caller]
fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < until, "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_worker_outlives_its_application_s_panic_and_loses_no_frame() {
    let mut rig = Rig::new(true, true);
    rig.send(KEEP);
    rig.send(SEND);
    rig.receive();
    let watcher = std::thread::current();
    rig.worker.watch_by(watcher);
    rig.send(PANIC);
    assert_eq!(rig.failure(), Failure { why: "as asked".into(), number: 1 });
    // The watcher was unparked: otherwise this would wait for ever.
    std::thread::park();
    assert_eq!((rig.dropped(DropReason::WorkerFailed), rig.dropped(DropReason::PortDown)), (1, 1));

    // Until the restart its ports are served, it answers, and nobody waits for its reader.
    rig.send(SEND);
    wait("a drop", || rig.dropped(DropReason::WorkerFailed) == 2);
    rig.domain.synchronize();
    assert_eq!(rig.worker.report(Duration::from_secs(60)).expect("an answer").held, 0);
    assert!(!rig.worker.finished());

    rig.restart();
    rig.send(SEND);
    rig.receive();
    assert_eq!(rig.dropped(DropReason::WorkerFailed), 2);
    let (exit, missing) = rig.end();
    assert!(matches!(exit, WorkerExit::Stopped) && missing == 0, "{exit:?} {missing}");
}

#[test]
fn a_worker_ends_before_the_frames_in_hand_are_a_quarter_of_its_pool() {
    for others in 0..=2 {
        let mut rig = Rig::new(true, true);
        // Those of other workers with the same pool.
        for _ in 0..others {
            rig.bufs.pool().count_panic();
        }
        for number in 1..=2 - others {
            rig.send(PANIC_IN_HAND);
            assert_eq!(rig.failure().number, number);
            rig.restart();
            rig.send(SEND);
            rig.receive();
        }
        rig.send(PANIC_IN_HAND);
        wait("the end", || rig.worker.finished());
        let (exit, missing) = rig.end();
        assert!(matches!(exit, WorkerExit::Panicked(_)) && missing as u64 == 3 - others, "{exit:?} {missing}");
    }
}

#[test]
fn a_panic_that_is_not_the_application_s_own_or_that_it_cannot_recover_from_ends_the_worker() {
    for (outlives, recovers, packet, why) in [
        (true, true, PANIC_IN_PORT, "a broken port"),
        (true, false, PANIC, "as asked"),
        (false, true, PANIC, "as asked"),
    ] {
        let mut rig = Rig::new(outlives, recovers);
        rig.send(packet);
        wait("the end", || rig.worker.finished());
        assert_eq!(rig.worker.failed(), None);
        let (exit, _) = rig.end();
        assert!(matches!(&exit, WorkerExit::Panicked(said) if said == why), "{exit:?}");
    }
}
