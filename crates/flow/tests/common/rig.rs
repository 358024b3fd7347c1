//! Test switch on one worker, with ports in memory.

use bywash_engine::{Idle, PortId, PortTable, Worker, WorkerConfig};
use bywash_flow::app::CacheConfig;
use bywash_flow::control::{BridgeConfig, FlowControl};
use bywash_flow::pipeline::SwitchPort;
use bywash_flow::syntax;
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use bywash_port::af_xdp::Flows;
use bywash_port::{Port, PortCounters, Records, TxQueue, TxQueueConfig, Wanted, capture};
use bywash_sync::Qsbr;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Sent packets with their egress ports.
pub type Sent = Vec<(u16, Vec<u8>)>;

struct TestPort {
    of: u16,
    input: Arc<Mutex<VecDeque<Vec<u8>>>>,
    output: Arc<Mutex<Sent>>,
    counters: Arc<PortCounters>,
    burst: usize,
}

impl Port for TestPort {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        let mut input = self.input.lock().unwrap();
        let n = input.len().min(self.burst).min(out.room());
        let mut fresh = Batch::new();
        assert_eq!(bufs.alloc(&mut fresh, n), n, "no buffers");
        for mut frame in fresh.drain() {
            assert!(bufs.arena().write(&mut frame, &input.pop_front().unwrap()));
            out.push(frame).unwrap();
        }
        n
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let n = frames.len();
        let mut output = self.output.lock().unwrap();
        output.extend(frames.as_slice().iter().map(|f| (self.of, bufs.arena().data(f).to_vec())));
        bufs.free(frames);
        n
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn close(&mut self, _bufs: &mut Buffers) {}
}

/// Returns the switch's ports, numbered 1 to `n`.
pub fn ports(n: u16) -> Vec<SwitchPort> {
    (1..=n).map(SwitchPort::numbered).collect()
}

/// Adds these flows.
pub fn add<F: AsRef<str>>(control: &mut FlowControl, flows: &[F]) {
    for flow in flows {
        let flow = flow.as_ref();
        control.add(syntax::flow(flow, &|_| None).unwrap_or_else(|e| panic!("{flow}: {e}"))).unwrap();
    }
    control.commit();
}

pub struct Rig {
    pub control: FlowControl,
    inputs: Vec<Arc<Mutex<VecDeque<Vec<u8>>>>>,
    output: Arc<Mutex<Sent>>,
    pools: Arc<PoolSet>,
    worker: Option<bywash_engine::WorkerHandle>,
}

impl Rig {
    pub fn new(n: u16, caches: CacheConfig, burst: usize) -> Self {
        Self::on_driver(n, caches, burst, None)
    }

    /// Creates a switch that also offloads its flows to the driver if `flows` is given.
    pub fn on_driver(n: u16, caches: CacheConfig, burst: usize, flows: Option<Flows>) -> Self {
        // Tests look at once.
        let config = BridgeConfig { learn_interval: Duration::ZERO, ..BridgeConfig::default() };
        Self::configured(n, caches, burst, flows, config)
    }

    /// Creates a switch with these settings.
    pub fn configured(n: u16, caches: CacheConfig, burst: usize, flows: Option<Flows>, config: BridgeConfig) -> Self {
        let arena = Arena::new(ArenaConfig { cells: 2048, ..Default::default() }).unwrap();
        let pools = PoolSet::new(arena, &[PoolConfig::stack("test", 2048)]).unwrap();
        let domain = Qsbr::new();
        let mut control = FlowControl::new(&domain, ports(n), config);
        flows.into_iter().for_each(|flows| control.drive(flows));
        let switch = control.worker(caches, 12345);
        let (mut table, output, mut inputs) = (PortTable::new(), Arc::new(Mutex::new(vec![])), vec![]);
        for of in 1..=n {
            let input = Arc::new(Mutex::new(VecDeque::new()));
            inputs.push(input.clone());
            let port = TestPort { of, input, output: output.clone(), counters: Arc::default(), burst };
            table.add(Box::new(port), TxQueue::new(TxQueueConfig::default()));
        }
        let config = WorkerConfig { id: 0, cpu: None, idle: Idle::Sleep };
        let worker = Worker::new(config, table, Box::new(switch), Buffers::attach(&pools, 0), domain.register());
        let worker = Some(worker.spawn().unwrap());
        Self { control, inputs, output, pools, worker }
    }

    /// Feeds packets into a port, waits until they are processed and returns the packets sent.
    pub fn send(&mut self, of: u16, packets: &[Vec<u8>]) -> Sent {
        self.input(of, packets);
        self.drain()
    }

    pub fn input(&self, of: u16, packets: &[Vec<u8>]) {
        self.inputs[usize::from(of) - 1].lock().unwrap().extend(packets.iter().cloned());
    }

    /// Waits until all packets are processed and returns the packets sent.
    pub fn drain(&mut self) -> Sent {
        while self.inputs.iter().any(|i| !i.lock().unwrap().is_empty()) {
            std::thread::yield_now();
        }
        self.settle(2);
        std::mem::take(&mut self.output.lock().unwrap())
    }

    /// Waits for at least `turns` turns of the worker.
    pub fn settle(&self, turns: u64) {
        let worker = self.worker.as_ref().unwrap();
        let from = worker.counters().turns.get();
        while worker.counters().turns.get() < from + turns && !worker.finished() {
            std::thread::yield_now();
        }
        assert!(!worker.finished(), "the worker has ended");
    }

    /// Returns the number of turns of the worker so far.
    pub fn turns(&self) -> u64 {
        self.worker.as_ref().unwrap().counters().turns.get()
    }

    /// Captures the packets that are dropped for one of these reasons, of all ports.
    pub fn capture(&self, reasons: &[bywash_engine::DropReason]) -> Records {
        let reasons = reasons.iter().map(|reason| reason.bit()).sum();
        let dropped = vec![true; self.inputs.len()];
        let (recorder, records) = capture(0, Wanted { dropped, reasons, snaplen: 2048, ..Wanted::default() }, 1 << 20);
        self.worker.as_ref().unwrap().record(recorder);
        records
    }

    pub fn counter(&self, name: &str) -> u64 {
        let list = self.control.counters().next().unwrap().list();
        list.iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }

    /// Returns the number of copies made of packets, received on any port.
    pub fn copies(&self) -> u64 {
        let counters = self.worker.as_ref().unwrap().counters();
        (0..self.inputs.len() as u16).map(|p| counters.port(PortId(p)).events(bywash_engine::Event::CopyMade)).sum()
    }

    pub fn drops(&self, reason: bywash_engine::DropReason) -> u64 {
        let counters = self.worker.as_ref().unwrap().counters();
        (0..self.inputs.len() as u16).map(|p| counters.port(PortId(p)).drops(reason)).sum()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.worker.take().unwrap().stop();
        let (missing, wrong) = self.pools.verify();
        if !std::thread::panicking() {
            assert!(missing.is_empty() && wrong.is_empty(), "{missing:?} {wrong:?}");
        }
    }
}
