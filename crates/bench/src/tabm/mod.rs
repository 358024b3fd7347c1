//! Benchmark of thread-affine blocks (`tabm` with a cell per packet, `typewriter` with only the space it needs) against
//! a shared block (`sdb`): N threads forward packets that the dispatching device `npe` distributes, at the rate of a
//! line.

mod model;
mod path;

use crate::args::{block, frames, gbits, number};
use crate::line::{self, Apart, TransferCost};
use bywash_engine::cpus;
use bywash_frame::{Pages, PoolKind};
use bywash_measure::{Processor, hardware, processor};
use bywash_port::npe::{Dispatch, Engine};
use bywash_port::pcap::wire_bits;
use clap::{Args, ValueEnum};
use path::Measured;
use serde::Serialize;

/// `bywash bench tabm`
#[derive(Debug, Args)]
pub struct TabmArgs {
    /// Pool kinds to measure in turn: sdb, tabm, typewriter
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "sdb,tabm")]
    pub kinds: Vec<PoolKind>,
    /// Thread counts to measure
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8", value_parser = channels)]
    pub threads: Vec<usize>,
    /// Frame sizes on the wire in bytes, FCS included
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "64,128,256,512,1024,1500", value_parser = packet)]
    pub sizes: Vec<usize>,
    /// Rate offered, in Gbit/s on the wire, with preamble, check sequence and gap
    #[arg(long, value_name = "GBIT", default_value_t = 10.0, value_parser = gbits)]
    pub rate: f64,
    /// Rules that select a packet's thread; with `by-port` each thread has a port, with its share of the rate
    #[arg(long, value_name = "RULES", value_delimiter = ',', default_value = "round-robin")]
    pub dispatch: Vec<Dispatch>,
    /// Number of buffers in the region that the threads share or that is divided between them
    #[arg(long, value_name = "N", default_value_t = 131_072, value_parser = frames)]
    pub frames: usize,
    /// Block size, in buffers
    #[arg(long, value_name = "N", default_value_t = bywash_frame::BLOCK, value_parser = block)]
    pub block: usize,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "4k")]
    pub pages: Pages,
    /// Orders in which blocks are reused, for all kinds: `fifo`, as in the paper, or `lifo`, the last freed first
    #[arg(long, value_name = "ORDERS", value_delimiter = ',', default_value = "fifo,lifo")]
    pub order: Vec<Order>,
    /// CPU that the device runs on
    #[arg(long, value_name = "WHERE", default_value = "threads")]
    pub device: Runs,
    /// Engine of the device; with `rtl`, the simulation, nothing is timed
    #[arg(long, value_name = "ENGINE", default_value = "software")]
    pub engine: Engine,
    /// Number of rounds, each measuring all kinds; the result is the median
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Length of each measurement, in milliseconds
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    pub milliseconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Order in which a pool reuses its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// The block that has been free for the longest time first
    Fifo,
    /// The block freed last first
    Lifo,
}

/// CPU that the dispatching device runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Runs {
    /// The threads' CPUs: a thread without packets does the device's work
    Threads,
    /// A CPU of its own
    Own,
}

impl TabmArgs {
    /// Returns the number of CPUs that `threads` threads and the device run on.
    fn on_cpus(&self, threads: usize) -> usize {
        threads + usize::from(self.device == Runs::Own)
    }
}

fn channels(text: &str) -> Result<usize, String> {
    number(text, 1..=16, "threads")
}

fn packet(text: &str) -> Result<usize, String> {
    number(text, 64..=1518, "bytes")
}

/// Length of the FCS, which a frame in memory does not have.
const FCS: usize = 4;

/// Subject of one row.
#[derive(Clone, Copy)]
struct Case {
    kind: PoolKind,
    order: Order,
    dispatch: Dispatch,
    threads: usize,
    /// Size of the frames on the wire, with FCS.
    size: usize,
}

impl Case {
    /// Returns the length of a packet in memory.
    fn len(&self) -> usize {
        self.size - FCS
    }
}

#[derive(Serialize)]
struct Figures {
    rows: Vec<Row>,
    device: Runs,
    cpus: cpus::Placement,
    /// Processor whose TLB is modelled.
    tlb: &'static Processor,
    hardware: Vec<hardware::Source>,
}

#[derive(Serialize)]
struct Row {
    kind: String,
    /// Order in which the pool reuses its blocks.
    order: Order,
    dispatch: Dispatch,
    threads: usize,
    size: usize,
    /// Share of the packets whose address was named by the descriptor of the thread's previous packet.
    chained: f64,
    /// Share of the packets in the cell after that of the thread's previous packet.
    consecutive: f64,
    dtlb_misses_per_packet: f64,
    dtlb_source: &'static str,
    /// Misses of the last-level cache per packet; `None` if they cannot be measured here.
    #[serde(skip_serializing_if = "Option::is_none")]
    llc_misses_per_packet: Option<f64>,
    /// True if there are more threads than CPUs, so that the rate means little.
    crowded: bool,
    /// `None` on the simulated engine.
    #[serde(flatten)]
    rates: Option<Rates>,
}

/// Rates, medians of the rounds.
#[derive(Serialize)]
struct Rates {
    /// Rate of the line.
    offered_mpps: f64,
    offered_gbps: f64,
    /// Rate at which the device took packets from the line.
    received_mpps: f64,
    /// Rate at which it sent those that the threads had forwarded.
    mpps: f64,
    /// The same on the wire.
    carried_gbps: f64,
    rounds_mpps: Vec<f64>,
    /// Cost of a cache line transfer between the first two CPUs before each round.
    line: Vec<Option<TransferCost>>,
    /// Medians of near and far rounds, if there were both.
    #[serde(skip_serializing_if = "Option::is_none")]
    apart: Option<Apart>,
}

pub fn run(args: &TabmArgs) -> anyhow::Result<()> {
    if let Some(kind) = args.kinds.iter().find(|kind| !kind.blocks()) {
        anyhow::bail!("pools of kind {kind} have no blocks: expected sdb, tabm, typewriter");
    }
    if args.engine == Engine::Rtl && args.order != [Order::Fifo] {
        anyhow::bail!("the engine rtl reuses blocks in the order in which they come free: add --order fifo");
    }
    let cpus = cpus::Placement::of(args.on_cpus(args.threads.iter().copied().max().unwrap_or(1)))?;
    let tlb = processor::this().unwrap_or(&bywash_measure::XEON_GOLD_6148);
    let mut rows = vec![];
    for &dispatch in &args.dispatch {
        for &threads in &args.threads {
            for &size in &args.sizes {
                let of_order = |order: &Order| {
                    let order = *order;
                    args.kinds.iter().map(move |&kind| Case { kind, order, dispatch, threads, size })
                };
                let cases: Vec<Case> = args.order.iter().flat_map(of_order).collect();
                rows.extend(of_size(args, &cases, &cpus, tlb)?);
            }
        }
    }
    let figures = Figures { rows, device: args.device, cpus, tlb, hardware: hardware::sources() };
    super::report(args.json, &figures, |figures| print(args, figures))
}

/// Measures the kinds and orders with one number of threads and size, in turn.
fn of_size(
    args: &TabmArgs,
    cases: &[Case],
    cpus: &cpus::Placement,
    tlb: &'static Processor,
) -> anyhow::Result<Vec<Row>> {
    let mut rounds: Vec<Vec<Measured>> = cases.iter().map(|_| vec![]).collect();
    let mut line = vec![];
    // A simulation's speed says nothing about the engine's: the tables in docs/rtl.md count its clocks.
    let timed = if args.engine == Engine::Software { args.rounds } else { 0 };
    for _ in 0..timed {
        line.push(line::measure(cpus)?);
        for (case, rounds) in cases.iter().zip(&mut rounds) {
            rounds.push(path::measure(args, *case, cpus)?);
        }
    }
    let rows = cases.iter().zip(rounds).map(|(case, rounds)| row(args, *case, &rounds, &line, cpus, tlb));
    rows.collect()
}

fn row(
    args: &TabmArgs,
    case: Case,
    rounds: &[Measured],
    line: &[Option<TransferCost>],
    cpus: &cpus::Placement,
    tlb: &'static Processor,
) -> anyhow::Result<Row> {
    let median = |of: &dyn Fn(&Measured) -> Option<f64>| super::median(rounds.iter().filter_map(of));
    let model = model::pages(args, case, tlb)?;
    let (misses, source) = match median(&|round| round.dtlb_misses) {
        Some(misses) => (misses, "measured"),
        None => (model.walks, "modelled"),
    };
    let bits = wire_bits(case.len() as u32) as f64;
    let rates = median(&|round| Some(round.mpps)).map(|mpps| {
        let rounds_mpps: Vec<f64> = rounds.iter().map(|round| round.mpps).collect();
        Rates {
            offered_mpps: args.rate * 1e3 / bits,
            offered_gbps: args.rate,
            received_mpps: median(&|round| Some(round.received_mpps)).unwrap_or(0.0),
            mpps,
            carried_gbps: mpps * bits / 1e3,
            apart: line::apart(line, &rounds_mpps),
            rounds_mpps,
            line: line.to_vec(),
        }
    });
    Ok(Row {
        kind: case.kind.to_string(),
        order: case.order,
        dispatch: case.dispatch,
        threads: case.threads,
        size: case.size,
        chained: model.chained,
        consecutive: model.consecutive,
        dtlb_misses_per_packet: misses,
        dtlb_source: source,
        llc_misses_per_packet: median(&|round| round.llc_misses),
        crowded: !cpus.enough_for(args.on_cpus(case.threads)),
        rates,
    })
}

/// Returns the name of a value as an option has it.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

fn print(args: &TabmArgs, figures: &Figures) {
    let source = figures.rows.first().map_or("modelled", |row| row.dtlb_source);
    println!("{}; dTLB misses {source} ({})", figures.cpus, figures.tlb.name);
    if args.engine == Engine::Software {
        println!("{} Gbit/s offered, on the wire", args.rate);
    } else {
        println!("simulated engine: addresses and descriptors are checked, nothing is timed");
    }
    println!(
        "                                          offered        carried            to the                        \
         dTLB misses"
    );
    println!(
        "threads  size  order  dispatch     kind           Mpps    Mpps  Gbit/s    first  chained  consecutive     \
         a packet"
    );
    // The rows of one order, number of threads and size.
    for of_kinds in figures.rows.chunks(args.kinds.len()) {
        let first = of_kinds[0].rates.as_ref().map_or(0.0, |rates| rates.mpps);
        for row in of_kinds {
            let rates = row.rates.as_ref().map_or(format!("{:>8} {:>7} {:>7} {:>8}", "-", "-", "-", "-"), |rates| {
                let Rates { offered_mpps, mpps, carried_gbps, .. } = rates;
                format!("{offered_mpps:8.2} {mpps:7.2} {carried_gbps:7.2} {:8.2}", mpps / first)
            });
            println!(
                "{:7} {:5}  {:5}  {:11}  {:10} {rates} {:8.2} {:12.2} {:12.3}{}",
                row.threads,
                row.size,
                name(&row.order),
                name(&row.dispatch),
                row.kind,
                row.chained,
                row.consecutive,
                row.dtlb_misses_per_packet,
                if row.crowded && row.rates.is_some() { "  crowded: more threads than CPUs" } else { "" },
            );
            let apart = row.rates.as_ref().and_then(|rates| rates.apart.as_ref());
            apart.inspect(|apart| println!("{:22}{apart}", ""));
        }
    }
    let lines = figures.rows.chunks(args.kinds.len() * args.order.len()).filter_map(|rows| rows[0].rates.as_ref());
    let line: Vec<Option<TransferCost>> = lines.flat_map(|rates| rates.line.clone()).collect();
    if !line.is_empty() {
        println!("way of a cache line from CPU to CPU, by round: {}", line::words(&line));
    }
    for source in &figures.hardware {
        source.missing.as_ref().inspect(|why| println!("not measured by {}: {why}", source.name));
    }
}
