//! Model of the memory traffic caused by a pool's policy, for N instances of a two-thread cable downstream.
//!
//! The pools are real, and so is the order in which cells are allocated and freed. The caches are a model
//! ([`bywash_measure::Memory`]), which sees the reads and writes of each packet by the device and the two threads. The
//! two threads run on one core and share its second-level cache, as in the reference document.

use crate::args::{OnOff, frames, gbits, number};
use bywash_frame::{
    Arena, ArenaConfig, Batch, Buffers, DATA_OFFSET, Frame, META, Pages, PoolConfig, PoolKind, PoolSet,
};
use bywash_measure::{Memory, Processor, Traffic, XEON_GOLD_6148, hardware};
use clap::Args;
use serde::Serialize;
use std::collections::VecDeque;
use std::io::IsTerminal;
use std::sync::Arc;

/// `bywash bench memory`
#[derive(Debug, Args)]
pub struct MemoryArgs {
    /// Numbers of instances to model
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8,12", value_parser = instances)]
    pub instances: Vec<usize>,
    /// Pool kinds to model; savings are relative to the first
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "ring,stack")]
    pub kinds: Vec<PoolKind>,
    /// Rate of each instance in Gbit/s
    #[arg(long, value_name = "GBITS", default_value_t = 5.0, value_parser = gbits)]
    pub rate: f64,
    /// Compute a CRC over each packet
    #[arg(long, value_name = "WHETHER", default_value = "off")]
    pub crc: OnOff,
    /// Number of buffers in each instance's pool; the default is the power of two above the reference document's peak
    /// of 20,000
    #[arg(long, value_name = "N", default_value_t = 32768, value_parser = frames)]
    pub frames: usize,
    /// Packets in flight in each instance, between receive and transmit ring; the default is the reference document's
    #[arg(long, value_name = "N", default_value_t = 750, value_parser = in_flight)]
    pub in_flight: usize,
    /// Size of each receive ring in descriptors; the default is that of the example programs of DPDK 18.08
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = descriptors)]
    pub rx_ring: usize,
    /// Size of each transmit ring in descriptors, where a sent frame stays until its slot is reused; default as for
    /// --rx-ring
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = descriptors)]
    pub tx_ring: usize,
    /// Print every parameter of the model with its source, or the word `assumed`, and model nothing
    #[arg(long, conflicts_with = "vary")]
    pub parameters: bool,
    /// Also model each assumed parameter at half and at double its value, with the largest number of instances
    #[arg(long)]
    pub vary: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

fn instances(text: &str) -> Result<usize, String> {
    number(text, 1..=20, "instances: the modelled processor has 20 cores")
}

fn descriptors(text: &str) -> Result<usize, String> {
    number(text, 64..=4096, "descriptors")
}

fn in_flight(text: &str) -> Result<usize, String> {
    number(text, 32..=1 << 20, "packets (a burst has 32)")
}

/// Packets received at once.
const BURST: usize = 32;
/// Cable IMIX: packets per hundred, and their sizes in bytes.
const IMIX: [(u64, usize); 3] = [(3, 68), (1, 932), (96, 1520)];
const IMIX_MEAN: f64 = (3.0 * 68.0 + 1.0 * 932.0 + 96.0 * 1520.0) / 100.0;

/// Value of a parameter of the model, where it is from, and whether it was chosen after results had been seen.
#[derive(Clone, Copy, Debug, Serialize)]
struct Parameter {
    name: &'static str,
    value: u64,
    source: &'static str,
    chosen: bool,
}

/// Source of a parameter that has none.
const ASSUMED: &str = "assumed";

/// Parameters of a run.
#[derive(Clone, Copy, Debug)]
struct Model {
    frames: usize,
    in_flight: usize,
    rx_ring: usize,
    tx_ring: usize,
    modems: u64,
    modem: u64,
    key: u64,
    header: usize,
    handoff: usize,
    handoff_entry: usize,
    descriptor: usize,
}

impl Model {
    fn of(args: &MemoryArgs) -> Self {
        Self {
            frames: args.frames,
            in_flight: args.in_flight,
            rx_ring: args.rx_ring,
            tx_ring: args.tx_ring,
            modems: 300,
            modem: 128,
            key: 176,
            header: 18,
            handoff: 1024,
            handoff_entry: 16,
            descriptor: 16,
        }
    }

    /// Returns the number of frames in use at once.
    fn held(&self) -> usize {
        self.rx_ring + self.in_flight + self.tx_ring + BURST
    }

    fn parameters(&self) -> Vec<Parameter> {
        let of = |name, value: usize, source, chosen| Parameter { name, value: value as u64, source, chosen };
        vec![
            of("frames in a pool", self.frames, "assumed: the power of two above the document's peak of 20,000", false),
            of("packets in flight", self.in_flight, "the document's 750 \"running\", read as between the rings", true),
            of("receive ring, descriptors", self.rx_ring, "assumed: example programs of DPDK 18.08", true),
            of("transmit ring, descriptors", self.tx_ring, "assumed: example programs of DPDK 18.08", true),
            of("cable modems", self.modems as usize, ASSUMED, false),
            of("state of a modem, bytes", self.modem as usize, ASSUMED, false),
            of("expanded key of a modem, bytes", self.key as usize, "eleven round keys: FIPS 197, section 5.2", false),
            of("MAC header of a packet, bytes", self.header, ASSUMED, false),
            of("ring between the threads, entries", self.handoff, ASSUMED, false),
            of("entry of that ring, bytes", self.handoff_entry, ASSUMED, false),
            of("descriptor, bytes", self.descriptor, ASSUMED, false),
            of("pools to an instance", 1, "assumed; the document has two", false),
        ]
    }

    /// Returns the model with each assumed parameter halved and doubled, by name.
    fn varied(self) -> Vec<(&'static str, [Self; 2])> {
        type Set = fn(&mut Model, &dyn Fn(u64) -> u64);
        let all: [(&'static str, Set); 10] = [
            ("frames in a pool", |m, f| m.frames = f(m.frames as u64) as usize),
            ("packets in flight", |m, f| m.in_flight = f(m.in_flight as u64) as usize),
            ("receive ring, descriptors", |m, f| m.rx_ring = f(m.rx_ring as u64) as usize),
            ("transmit ring, descriptors", |m, f| m.tx_ring = f(m.tx_ring as u64) as usize),
            ("cable modems", |m, f| m.modems = f(m.modems)),
            ("state of a modem, bytes", |m, f| m.modem = f(m.modem)),
            ("MAC header of a packet, bytes", |m, f| m.header = f(m.header as u64) as usize),
            ("ring between the threads, entries", |m, f| m.handoff = f(m.handoff as u64) as usize),
            ("entry of that ring, bytes", |m, f| m.handoff_entry = f(m.handoff_entry as u64) as usize),
            ("descriptor, bytes", |m, f| m.descriptor = f(m.descriptor as u64) as usize),
        ];
        let one = |set: Set, f: &dyn Fn(u64) -> u64| {
            let mut model = self;
            set(&mut model, f);
            model
        };
        all.into_iter().map(|(name, set)| (name, [one(set, &|n| n / 2), one(set, &|n| n * 2)])).collect()
    }
}

// Address layout of an instance: 64 GiB each, with its pool first.
const RX_RING: u64 = 32 << 30;
const TX_RING: u64 = 33 << 30;
const HANDOFF: u64 = 34 << 30;
const STATE: u64 = 35 << 30;
const KEYS: u64 = (35 << 30) + (1 << 20);
const SLOTS: u64 = 36 << 30;
const INSTANCE: u64 = 64 << 30;

/// Tests in the reference document: rate in Gbit/s, CRC, and by how many percent less memory traffic the stack caused
/// than the ring, for each number of instances.
const INSTANCES: [usize; 5] = [1, 2, 4, 8, 12];
const DOCUMENT: [(f64, OnOff, [f64; 5]); 4] = [
    (5.0, OnOff::Off, [95.0, 88.0, 81.0, 63.0, 42.0]),
    (5.0, OnOff::On, [96.0, 91.0, 87.0, 65.0, 44.0]),
    (6.3, OnOff::Off, [94.0, 87.0, 78.0, 61.0, 46.0]),
    (5.5, OnOff::On, [95.0, 91.0, 84.0, 76.0, 48.0]),
];

#[derive(Serialize)]
struct Figures {
    rows: Vec<Row>,
    /// Deviation of the rows from the document; `None` if it has none of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    deviation: Option<Deviation>,
    parameters: Vec<Parameter>,
    /// Effect of the assumed parameters; empty without `--vary`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    sensitivity: Vec<Sensitivity>,
    rate: f64,
    crc: OnOff,
    frames: usize,
    in_flight: usize,
    rx_ring: usize,
    tx_ring: usize,
    processor: &'static Processor,
    hardware: Vec<hardware::Source>,
}

#[derive(Serialize)]
struct Row {
    kind: String,
    instances: usize,
    read_gbs: f64,
    write_gbs: f64,
    /// Reduction of the traffic relative to the first kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    drop_percent: Option<f64>,
    /// The same reduction in the reference document.
    #[serde(skip_serializing_if = "Option::is_none")]
    document_percent: Option<f64>,
    source: &'static str,
}

/// Deviation of the modelled reductions from the document's, in percentage points.
#[derive(Serialize)]
struct Deviation {
    mean_absolute_error: f64,
    mean_percent: f64,
    document_mean_percent: f64,
}

impl Deviation {
    fn of(rows: &[Row]) -> Option<Self> {
        let drops: Vec<(f64, f64)> = rows.iter().filter_map(|r| r.drop_percent.zip(r.document_percent)).collect();
        let mean = |of: fn(&(f64, f64)) -> f64| drops.iter().map(of).sum::<f64>() / drops.len() as f64;
        (!drops.is_empty()).then(|| Self {
            mean_absolute_error: mean(|d| (d.0 - d.1).abs()),
            mean_percent: mean(|d| d.0),
            document_mean_percent: mean(|d| d.1),
        })
    }
}

/// Reductions of the traffic by the second kind, with a parameter at half and at double its value; `None` where the
/// pool would be too small.
#[derive(Serialize)]
struct Sensitivity {
    parameter: &'static str,
    half_percent: Option<f64>,
    as_is_percent: Option<f64>,
    double_percent: Option<f64>,
}

/// Returns by how many percent less memory traffic the second kind causes than the first.
fn reduction(args: &MemoryArgs, model: &Model, instances: usize) -> anyhow::Result<Option<f64>> {
    let [first, second, ..] = args.kinds[..] else { return Ok(None) };
    if model.held() > model.frames {
        return Ok(None);
    }
    std::thread::scope(|threads| {
        let one = |kind| threads.spawn(move || modelled(args, model, kind, instances));
        let (first, second) = (one(first), one(second));
        let sum = |(read, write): (f64, f64)| read + write;
        let base = sum(first.join().expect("the model")?);
        Ok(Some(100.0 * (1.0 - sum(second.join().expect("the model")?) / base)))
    })
}

pub fn run(args: &MemoryArgs) -> anyhow::Result<()> {
    let model = Model::of(args);
    if args.parameters {
        return super::report(args.json, &model.parameters(), |all| print_parameters(all));
    }
    let held = model.held();
    anyhow::ensure!(held <= args.frames, "{held} buffers are in use at once: --frames {} is too small", args.frames);
    let mut rows: Vec<Row> = vec![];
    for &instances in &args.instances {
        let first = rows.len();
        if std::io::stderr().is_terminal() {
            eprint!("\r{instances} instances \x1b[K");
        }
        // The kinds have separate caches, so they can be modelled in parallel.
        let figures = std::thread::scope(|threads| {
            let one = |kind: PoolKind| threads.spawn(move || modelled(args, &model, kind, instances));
            let all: Vec<_> = args.kinds.iter().map(|kind| one(*kind)).collect();
            all.into_iter().map(|t| t.join().expect("the model")).collect::<anyhow::Result<Vec<_>>>()
        })?;
        for (&kind, (read_gbs, write_gbs)) in args.kinds.iter().zip(figures) {
            let drop_percent = rows.get(first).map(|base| {
                let all = base.read_gbs + base.write_gbs;
                100.0 * (1.0 - (read_gbs + write_gbs) / all)
            });
            let pair = args.kinds[0] == PoolKind::Ring && kind == PoolKind::Stack;
            let document_percent = document(args, instances).filter(|_| pair);
            let kind = kind.to_string();
            rows.push(Row { kind, instances, read_gbs, write_gbs, drop_percent, document_percent, source: "modelled" });
        }
    }
    if std::io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let most = args.instances.iter().copied().max().unwrap_or(1);
    let mut sensitivity = vec![];
    if args.vary {
        let as_is_percent = reduction(args, &model, most)?;
        for (parameter, [half, double]) in model.varied() {
            let (half_percent, double_percent) = (reduction(args, &half, most)?, reduction(args, &double, most)?);
            sensitivity.push(Sensitivity { parameter, half_percent, as_is_percent, double_percent });
        }
    }
    let figures = Figures {
        deviation: Deviation::of(&rows),
        parameters: model.parameters(),
        sensitivity,
        rows,
        rate: args.rate,
        crc: args.crc,
        frames: args.frames,
        in_flight: args.in_flight,
        rx_ring: args.rx_ring,
        tx_ring: args.tx_ring,
        processor: &XEON_GOLD_6148,
        hardware: hardware::sources(),
    };
    if args.json {
        println!("{}", serde_json::to_string(&figures)?);
        return Ok(());
    }
    println!("modelled for {}; {} Gbit/s an instance, CRC {}", XEON_GOLD_6148.name, args.rate, args.crc);
    println!("instances  kind    read GB/s  write GB/s   drop %   document %   deviation");
    for row in &figures.rows {
        let number = |n: Option<f64>| n.map_or("".into(), |n| format!("{n:.1}"));
        let deviation = row.drop_percent.zip(row.document_percent).map(|(here, there)| here - there);
        println!(
            "{:9}  {:5} {:11.2} {:11.2} {:>8} {:>12} {:>11}",
            row.instances,
            row.kind,
            row.read_gbs,
            row.write_gbs,
            number(row.drop_percent),
            number(row.document_percent),
            number(deviation)
        );
    }
    if let Some(Deviation { mean_absolute_error, mean_percent, document_mean_percent }) = &figures.deviation {
        println!("mean absolute error {mean_absolute_error:.1} points");
        println!("mean drop {mean_percent:.1} %, in the document {document_mean_percent:.1} %");
    }
    if !figures.sensitivity.is_empty() {
        println!("drop % of {most} instances with an assumed parameter at  half    as is   double");
        for row in &figures.sensitivity {
            let of = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:.1}"));
            let [half, as_is, double] = [row.half_percent, row.as_is_percent, row.double_percent].map(of);
            println!("  {:50} {half:>7} {as_is:>8} {double:>8}", row.parameter);
        }
    }
    for source in &figures.hardware {
        match &source.missing {
            Some(why) => println!("not measured by {}: {why}", source.name),
            None => println!("{} are available: `bywash bench cmts` uses them", source.name),
        }
    }
    Ok(())
}

fn print_parameters(parameters: &[Parameter]) {
    for Parameter { name, value, source, chosen } in parameters {
        let chosen = if *chosen { "; chosen after results had been seen" } else { "" };
        println!("{name:34} {value:8}  {source}{chosen}");
    }
    println!("{}:", XEON_GOLD_6148.name);
    for (name, source) in XEON_GOLD_6148.sources {
        let chosen = if *name == "llc_replacement" { "; chosen after results had been seen" } else { "" };
        println!("{name:43}  {source}{chosen}");
    }
}

fn document(args: &MemoryArgs, instances: usize) -> Option<f64> {
    let at = INSTANCES.iter().position(|n| *n == instances)?;
    let test = DOCUMENT.iter().find(|(rate, crc, _)| *rate == args.rate && *crc == args.crc)?;
    Some(test.2[at])
}

/// Returns the gigabytes per second read and written by all instances.
fn modelled(args: &MemoryArgs, model: &Model, kind: PoolKind, instances: usize) -> anyhow::Result<(f64, f64)> {
    let mut memory = Memory::new(&XEON_GOLD_6148, instances, 1);
    let all = (0..instances).map(|at| Instance::new(args, model, kind, at));
    let mut all: Vec<Instance> = all.collect::<anyhow::Result<_>>()?;
    // One pass through the largest pool to warm up, one to count.
    let bursts = model.frames.div_ceil(BURST);
    let mut before = Traffic::default();
    for burst in 0..2 * bursts {
        if burst == bursts {
            before = memory.traffic();
        }
        for instance in &mut all {
            instance.turn(&mut memory);
        }
    }
    let traffic = memory.traffic() - before;
    for instance in all {
        instance.close()?;
    }
    let seconds = (bursts * BURST) as f64 * IMIX_MEAN * 8.0 / (args.rate * 1e9);
    let gbs = |lines: u64| lines as f64 * XEON_GOLD_6148.line as f64 / seconds / 1e9;
    Ok((gbs(traffic.read_lines), gbs(traffic.written_lines)))
}

/// Upper and lower MAC thread, and their device.
struct Instance {
    core: usize,
    crc: bool,
    pools: Arc<PoolSet>,
    upper: Buffers,
    lower: Buffers,
    /// Buffers in the receive ring.
    posted: VecDeque<Frame>,
    /// Packets between the two threads that wait to be scheduled.
    queued: VecDeque<Frame>,
    model: Model,
    /// Frames in the transmit ring, where a sent frame stays until its slot is reused.
    sent: VecDeque<Frame>,
    /// Number of packets so far, and of cells allocated and freed, which select slots and descriptors.
    packets: u64,
    taken: u64,
    given: u64,
    random: u64,
}

impl Instance {
    fn new(args: &MemoryArgs, model: &Model, kind: PoolKind, core: usize) -> anyhow::Result<Self> {
        let packed = kind.packed();
        let arena = Arena::new(ArenaConfig { cells: model.frames, pages: Pages::Small, packed, ..Default::default() })?;
        let pools = PoolSet::new(arena, &[PoolConfig::new("cmts", kind, model.frames)])?;
        let (upper, lower) = (Buffers::attach(&pools, 0), Buffers::attach(&pools, 0));
        Ok(Self {
            core,
            crc: args.crc == OnOff::On,
            pools,
            upper,
            lower,
            posted: VecDeque::new(),
            queued: VecDeque::new(),
            model: *model,
            sent: VecDeque::new(),
            packets: 0,
            taken: 0,
            given: 0,
            random: core as u64,
        })
    }

    /// Receives a burst, and sends the packets in excess of the queue length.
    fn turn(&mut self, memory: &mut Memory) {
        self.post(memory);
        for _ in 0..BURST {
            let Some(frame) = self.posted.pop_front() else { break };
            self.receive(memory, frame);
        }
        while self.queued.len() > self.model.in_flight {
            let Some(frame) = self.queued.pop_front() else { break };
            self.send(memory, frame);
        }
        self.reap(memory);
    }

    fn at(&self, offset: u64) -> u64 {
        self.core as u64 * INSTANCE + offset
    }

    /// Returns the address of the entry that packet `number` has in a ring of `entries` entries of `size` bytes.
    fn entry(&self, ring: u64, number: u64, entries: usize, size: usize) -> u64 {
        self.at(ring) + number % entries as u64 * size as u64
    }

    /// Fills the receive ring, on the upper thread.
    fn post(&mut self, memory: &mut Memory) {
        let mut batch = Batch::new();
        while self.posted.len() < self.model.rx_ring {
            let slots = self.pools.pools()[0].free();
            if self.upper.alloc(&mut batch, BURST) == 0 {
                break;
            }
            self.slots(memory, slots, batch.len(), true);
            for frame in batch.drain() {
                let cell = self.at(frame.addr() - DATA_OFFSET as u64);
                memory.write(self.core, cell, META);
                let at = self.entry(RX_RING, self.taken, self.model.rx_ring, self.model.descriptor);
                memory.write(self.core, at, self.model.descriptor);
                self.taken += 1;
                self.posted.push_back(frame);
            }
        }
    }

    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.random >> 33
    }

    /// Receives a packet: the device writes it; the upper thread parses it, looks up the modem, polices, and passes it
    /// on.
    fn receive(&mut self, memory: &mut Memory, mut frame: Frame) {
        let mut share = self.random() % 100;
        let size = IMIX.iter().find(|(of, _)| share.checked_sub(*of).map(|rest| share = rest).is_none());
        let len = size.map_or(1520, |(_, bytes)| *bytes);
        self.pools.arena().resize(&mut frame, len);
        let (core, data) = (self.core, self.at(frame.addr()));
        let at = self.entry(RX_RING, self.packets, self.model.rx_ring, self.model.descriptor);
        memory.device_write(core, data, len);
        memory.device_write(core, at, self.model.descriptor);
        memory.read(core, at, self.model.descriptor);
        memory.write(core, data - DATA_OFFSET as u64, META);
        memory.read(core, data, 64);
        let modem = self.at(STATE) + self.random() % self.model.modems * self.model.modem;
        memory.write(core, modem, self.model.modem as usize);
        let at = self.entry(HANDOFF, self.packets, self.model.handoff, self.model.handoff_entry);
        memory.write(core, at, self.model.handoff_entry);
        self.packets += 1;
        self.queued.push_back(frame);
    }

    /// Sends a packet: the lower thread frames, protects and posts it; the device reads it.
    fn send(&mut self, memory: &mut Memory, frame: Frame) {
        let (core, data, len) = (self.core, self.at(frame.addr()), frame.len());
        let at = self.entry(HANDOFF, self.packets - 1, self.model.handoff, self.model.handoff_entry);
        memory.read(core, at, self.model.handoff_entry);
        memory.read(core, data - DATA_OFFSET as u64, META);
        memory.write(core, data - self.model.header as u64, self.model.header);
        if self.crc {
            memory.read(core, data, len);
            memory.write(core, data + len as u64, 4);
        }
        let modem = self.random() % self.model.modems;
        memory.read(core, self.at(KEYS) + modem * self.model.key, self.model.key as usize);
        // The cipher works in place.
        memory.read(core, data, len);
        memory.write(core, data, len);
        let at = self.entry(TX_RING, self.packets, self.model.tx_ring, self.model.descriptor);
        memory.write(core, at, self.model.descriptor);
        memory.device_read(core, at, self.model.descriptor);
        memory.device_read(core, data - self.model.header as u64, self.model.header + len + 4 * usize::from(self.crc));
        memory.device_write(core, at, self.model.descriptor);
        self.sent.push_back(frame);
    }

    /// Frees the frames sent one ring length ago, on the lower thread.
    fn reap(&mut self, memory: &mut Memory) {
        while self.sent.len() > self.model.tx_ring {
            let mut batch = Batch::new();
            while batch.len() < BURST
                && let Some(frame) = self.sent.pop_front()
            {
                memory.read(self.core, self.at(frame.addr()) - DATA_OFFSET as u64, META);
                let pushed = batch.push(frame);
                debug_assert!(pushed.is_ok());
            }
            let n = batch.len();
            let slots = self.pools.pools()[0].free();
            self.lower.free(&mut batch);
            self.slots(memory, slots, n, false);
            self.given += n as u64;
        }
    }

    /// Models accesses to the pool's own memory: 4 bytes for each free cell, in ring order or at the top of the stack.
    fn slots(&mut self, memory: &mut Memory, free: usize, n: usize, taking: bool) {
        let all = self.pools.pools()[0].config().frames as u64;
        let kind = self.pools.pools()[0].config().kind;
        let slot = match kind {
            PoolKind::Ring => (if taking { self.taken } else { self.given }) % all,
            PoolKind::Stack => (free as u64).saturating_sub(if taking { n as u64 } else { 0 }),
            // One counter per block.
            PoolKind::Sdb | PoolKind::Tabm | PoolKind::Typewriter => 0,
        };
        let at = self.at(SLOTS) + slot * 4;
        if taking {
            memory.read(self.core, at, 4 * n);
        } else {
            memory.write(self.core, at, 4 * n);
        }
    }

    fn close(mut self) -> anyhow::Result<()> {
        for frame in self.posted.drain(..).chain(self.queued.drain(..)).chain(self.sent.drain(..)) {
            self.lower.free_one(frame);
        }
        let Self { pools, upper, lower, .. } = self;
        drop((upper, lower));
        super::all_back(&pools)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gbs(kind: PoolKind, instances: usize, crc: OnOff, in_flight: usize) -> f64 {
        let args = MemoryArgs {
            instances: vec![instances],
            kinds: vec![PoolKind::Ring, PoolKind::Stack],
            rate: 5.0,
            crc,
            frames: 32768,
            in_flight,
            rx_ring: 1024,
            tx_ring: 1024,
            parameters: false,
            vary: false,
            json: true,
        };
        let (read, write) = modelled(&args, &Model::of(&args), kind, instances).unwrap();
        read + write
    }

    #[test]
    fn a_ring_sends_its_packets_to_memory_and_a_stack_does_not() {
        let ring = gbs(PoolKind::Ring, 1, OnOff::Off, 750);
        // 5 Gbit/s are 0.625 GB/s, and a pool of 50 MB exceeds the caches, so most of it is written to memory once.
        assert!((0.3..1.25).contains(&ring), "{ring}");
        assert!(gbs(PoolKind::Stack, 1, OnOff::On, 750) < ring / 20.0);
        // With nearly all frames in flight, the order of reuse makes no difference.
        let full = gbs(PoolKind::Stack, 1, OnOff::Off, 32768 - 2112);
        assert!(full > 0.8 * ring, "{full} against {ring}");
    }

    #[test]
    fn the_error_is_absolute() {
        let row = |drop, document| Row {
            kind: "stack".into(),
            instances: 1,
            read_gbs: 0.0,
            write_gbs: 0.0,
            drop_percent: Some(drop),
            document_percent: document,
            source: "modelled",
        };
        let rows = [row(100.0, Some(90.0)), row(40.0, Some(60.0)), row(1.0, None)];
        let of = Deviation::of(&rows).unwrap();
        assert_eq!((of.mean_absolute_error, of.mean_percent, of.document_mean_percent), (15.0, 70.0, 75.0));
        assert!(Deviation::of(&rows[2..]).is_none());
    }
}
