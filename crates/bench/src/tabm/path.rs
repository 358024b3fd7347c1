//! Path of the packets: replay ports, the dispatching device, its channels, and threads that forward.

use super::{Case, Order, Runs, TabmArgs};
use bywash_engine::cpus;
use bywash_frame::{BATCH, Batch, Frame, PoolSet};
use bywash_measure::pmu::{CacheMisses, Misses};
use bywash_port::npe::{self, Channel, Counters, Descriptor, Device, Dispatch};
use bywash_port::pcap::{Pace, PcapPort, PcapSource};
use bywash_port::{Port, PortCounters};
use bywash_sync::clock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Capacity of a channel in packets.
const CHANNEL: usize = 512;
const WARM_UP: Duration = Duration::from_millis(100);

/// Device with its channels.
pub struct Setup {
    pub pools: Arc<PoolSet>,
    pub device: Device,
    pub channels: Vec<Channel>,
    /// Counters of the replay ports.
    pub lines: Vec<Arc<PortCounters>>,
}

/// Creates a device over replay ports of this pace: one, or one for each thread, with its share of the rate.
pub fn open(args: &TabmArgs, case: Case, bits: Option<f64>) -> anyhow::Result<Setup> {
    let Case { threads, dispatch, .. } = case;
    let config = npe::Config { channels: threads, dispatch, depth: CHANNEL, engine: args.engine };
    let share = args.frames / threads / args.block * args.block;
    let mut layout = config.layout(case.kind, share, args.block);
    // The first pool is the device's own.
    layout.iter_mut().skip(1).for_each(|pool| pool.lifo = case.order == Order::Lifo);
    let cells = layout.iter().map(|pool| pool.frames).sum();
    let pools = PoolSet::new(crate::arena(case.kind, cells, args.pages)?, &layout)?;
    let packet: Vec<u8> = (0..case.len()).map(|i| i as u8).collect();
    let source = PcapSource::from_frames(vec![packet; BATCH])?.repeated().heads_only();
    let ports = if dispatch == Dispatch::ByPort { threads } else { 1 };
    let pace = bits.map_or(Pace::Full, |bits| Pace::BitsPerSecond((bits / ports as f64) as u64));
    let ports: Vec<PcapPort> = (0..ports).map(|_| PcapPort::replay(source.clone().paced(pace))).collect();
    let lines = ports.iter().map(Port::counters).collect();
    let ports = ports.into_iter().map(|port| Box::new(port) as Box<dyn Port>).collect();
    let (device, channels) = npe::create(config, ports, &pools)?;
    Ok(Setup { pools, device, channels, lines })
}

/// Chain of a thread's descriptors, each of which names the address of the next packet. The thread gets its packets
/// from a queue; that they are where the chain says is verified.
#[derive(Default)]
pub struct Chain {
    next: Option<u64>,
    /// Cell of the previous packet.
    cell: Option<u32>,
    /// Packets found at the address that the previous descriptor named.
    pub named: u64,
    /// Packets in the cell after that of the previous one.
    pub consecutive: u64,
    /// All packets.
    pub packets: u64,
}

impl Chain {
    /// Goes on to the next packet, in this cell. Panics if it is not where the previous descriptor said.
    pub fn follow(&mut self, packet: &Frame, cell: u32, told: Descriptor) {
        if let Some(next) = self.next {
            assert_eq!(next, packet.addr(), "the chain of descriptors breaks: a bug");
            self.named += 1;
        }
        self.consecutive += u64::from(self.cell.replace(cell).is_some_and(|before| before + 1 == cell));
        self.packets += 1;
        self.next = told.next;
    }
}

/// Result of one round.
pub struct Measured {
    pub received_mpps: f64,
    pub mpps: f64,
    /// Misses per packet from the processor's counters, if available.
    pub dtlb_misses: Option<f64>,
    pub llc_misses: Option<f64>,
}

/// Forwards at the rate offered, on `case.threads` threads.
///
/// Without a CPU of its own ([`Runs::Threads`]), so that two CPUs can have two threads, the device makes a turn
/// whenever a thread finds its channel empty.
pub fn measure(args: &TabmArgs, case: Case, cpus: &cpus::Placement) -> anyhow::Result<Measured> {
    let Setup { pools, device, channels, lines } = open(args, case, Some(args.rate * 1e9))?;
    let counters = device.counters();
    let device = Arc::new(Mutex::new(device));
    let stop = Arc::new(AtomicBool::new(false));
    let alone = (args.device == Runs::Own).then(|| {
        let (device, stop, cpu) = (device.clone(), stop.clone(), cpus.cpu(case.threads));
        std::thread::spawn(move || -> anyhow::Result<()> {
            crate::pin(Some(cpu))?;
            let mut device = bywash_sync::lock(&device);
            while !stop.load(Ordering::Relaxed) {
                device.turn();
            }
            Ok(())
        })
    });
    let mut running = vec![];
    for (at, channel) in channels.into_iter().enumerate() {
        let (cpu, crowded) = (cpus.cpu(at), !cpus.enough_for(args.on_cpus(case.threads)));
        let device = alone.is_none().then(|| device.clone());
        let mut thread = Thread { channel, device, chain: Chain::default(), crowded };
        let stop = stop.clone();
        running.push(std::thread::spawn(move || -> anyhow::Result<(Option<Misses>, u64)> {
            crate::pin(Some(cpu))?;
            let mut misses = CacheMisses::open().ok();
            let mut batch = Batch::new();
            while !stop.load(Ordering::Relaxed) {
                thread.turn(&mut batch);
            }
            Ok((misses.as_mut().map(CacheMisses::read).transpose()?, thread.chain.packets))
        }));
    }
    std::thread::sleep(WARM_UP);
    let before = Count::now(&counters, &lines);
    std::thread::sleep(Duration::from_millis(args.milliseconds));
    let after = Count::now(&counters, &lines);
    stop.store(true, Ordering::Relaxed);
    let (mut misses, mut packets) = (vec![], 0);
    for thread in running {
        let (of_thread, seen) = thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        misses.extend(of_thread);
        packets += seen;
    }
    if let Some(alone) = alone {
        alone.join().map_err(|_| anyhow::anyhow!("the device's thread panicked"))??;
    }
    let device = Arc::into_inner(device).and_then(|device| device.into_inner().ok());
    device.ok_or_else(|| anyhow::anyhow!("a thread still has the device: a bug"))?.close();
    crate::all_back(&pools)?;
    // Counted from the first to the last packet of the threads.
    let of = |which: fn(&Misses) -> f64| {
        (misses.len() == case.threads).then(|| misses.iter().map(which).sum::<f64>() / packets.max(1) as f64)
    };
    let per_tick = clock::tsc_hz() as f64 / (after.ticks - before.ticks) as f64 / 1e6;
    Ok(Measured {
        received_mpps: (after.received - before.received) as f64 * per_tick,
        mpps: (after.sent - before.sent) as f64 * per_tick,
        dtlb_misses: of(|misses| misses.dtlb),
        llc_misses: of(|misses| misses.llc),
    })
}

/// Packets received from the lines and sent by the device until now.
struct Count {
    ticks: u64,
    received: u64,
    sent: u64,
}

impl Count {
    fn now(counters: &Counters, lines: &[Arc<PortCounters>]) -> Self {
        let received = lines.iter().map(|line| line.rx_packets.get()).sum();
        Self { ticks: clock::tsc(), received, sent: counters.sent.get() }
    }
}

/// Thread that forwards the packets of a channel.
struct Thread {
    channel: Channel,
    /// `None` if the device has a CPU of its own.
    device: Option<Arc<Mutex<Device>>>,
    chain: Chain,
    /// True if other threads need this CPU.
    crowded: bool,
}

impl Thread {
    /// Forwards the packets received since the last turn; if there are none, lets the device make one.
    fn turn(&mut self, batch: &mut Batch) {
        if self.channel.poll(batch) == 0 {
            return self.idle();
        }
        for mut packet in batch.drain() {
            let told = self.channel.descriptor(&mut packet);
            self.chain.follow(&packet, self.channel.arena().cell_of(packet.addr()), told);
            if let Some(head) = self.channel.arena().head_mut::<12>(&mut packet) {
                let (to, from) = head.split_at_mut(6);
                to.swap_with_slice(from);
            }
            while let Err(again) = self.channel.send(packet, told.port, told.len as usize) {
                packet = again;
                self.idle();
            }
        }
    }

    /// Lets the device make a turn, unless another thread does so.
    fn idle(&self) {
        match self.device.as_ref().map(|device| device.try_lock()) {
            Some(Ok(mut device)) => device.turn(),
            _ if self.crowded => std::thread::yield_now(),
            _ => std::hint::spin_loop(),
        }
    }
}
