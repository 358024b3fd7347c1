//! Model of the memory traffic caused by a pool's policy, for N instances of a two-thread cable downstream.
//!
//! The accesses are those of the real pipeline ([`pipeline`]), recorded by valgrind ([`trace`]), and those of a
//! simulated device before and behind it ([`device`]). The caches are a model ([`bywash_measure::Memory`]), in which
//! each instance repeats the accesses at addresses of its own. The two threads run on one core and share its
//! second-level cache, as in the reference document.

mod device;
mod pipeline;
mod trace;

use crate::args::{OnOff, frames, gbits, number};
use bywash_docsis::instance::CELL;
use bywash_frame::{BATCH, PoolKind};
use bywash_measure::{Memory, Processor, Traffic, XEON_GOLD_6148, hardware};
use clap::Args;
use serde::Serialize;
use std::io::IsTerminal;
use std::ops::RangeInclusive;
use trace::{Access, Mark, Touch};

/// `bywash bench memory`
#[derive(Clone, Debug, Args)]
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
    #[arg(long, value_name = "N", default_value_t = 32768, value_parser = buffers)]
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
    /// Run the pipeline on the first of the kinds, and print what valgrind's trace needs to be understood
    #[arg(long, hide = true)]
    pub pipeline: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Parses a number of buffers whose trace, some kilobytes for each, fits into memory.
fn buffers(text: &str) -> Result<usize, String> {
    const MOST: usize = 1 << 18;
    frames(text).and_then(|n| if n <= MOST { Ok(n) } else { Err(format!("at most {MOST}: their trace is in memory")) })
}

fn instances(text: &str) -> Result<usize, String> {
    number(text, 1..=20, "instances: the modelled processor has 20 cores")
}

/// Valid sizes of a descriptor ring: a batch fits.
const DESCRIPTORS: RangeInclusive<usize> = BATCH..=4096;
/// Valid numbers of packets in flight.
const IN_FLIGHT: RangeInclusive<usize> = BATCH..=1 << 19;

fn descriptors(text: &str) -> Result<usize, String> {
    number(text, DESCRIPTORS, "descriptors")
}

fn in_flight(text: &str) -> Result<usize, String> {
    number(text, IN_FLIGHT, "packets (a burst has 64)")
}

/// Cable IMIX: mean size in bytes.
const IMIX_MEAN: f64 = (3.0 * 68.0 + 1.0 * 932.0 + 96.0 * 1520.0) / 100.0;

/// Value of a parameter of the model, its source, and whether it was chosen after results had been seen.
#[derive(Clone, Copy, Debug, Serialize)]
struct Parameter {
    name: &'static str,
    value: u64,
    source: &'static str,
    chosen: bool,
}

impl MemoryArgs {
    /// Returns whether the pipeline can run with these parameters: the frames in use at once are fewer than there are.
    fn possible(&self) -> bool {
        let rings = [self.rx_ring, self.tx_ring].iter().all(|ring| DESCRIPTORS.contains(ring));
        rings && IN_FLIGHT.contains(&self.in_flight) && self.held() <= self.frames
    }

    /// Returns the number of frames in use at once.
    fn held(&self) -> usize {
        self.rx_ring + self.in_flight + self.tx_ring + BATCH
    }

    fn parameters(&self) -> Vec<Parameter> {
        let of = |name, value: usize, source, chosen| Parameter { name, value: value as u64, source, chosen };
        let capture = "the document's capture, ds_cable-imix2_300cms_4ofdm.pcap";
        vec![
            of("frames in a pool", self.frames, "assumed: the power of two above the document's peak of 20,000", false),
            of("packets in flight", self.in_flight, "the document's 750 \"running\", read as between the rings", true),
            of("receive ring, descriptors", self.rx_ring, "assumed: example programs of DPDK 18.08", true),
            of("transmit ring, descriptors", self.tx_ring, "assumed: example programs of DPDK 18.08", true),
            of("receive descriptor, bytes", 32, "DPDK 18.08, RTE_LIBRTE_I40E_16BYTE_RX_DESC=n", false),
            of("transmit descriptor, bytes", 16, "X710", false),
            of("frames freed at once by the driver", 32, "DPDK 18.08, tx_free_thresh", false),
            of("cable modems", pipeline::MODEMS, capture, false),
            of("channels", pipeline::CHANNELS, capture, false),
            of(
                "frames sealed by the upper MAC",
                usize::from(pipeline::ASSIST),
                "the document: the lower MAC seals all; before 2026-12-01 the upper one sealed most",
                true,
            ),
            of("cache of a ring, frames a worker", PoolKind::Ring.default_cache(), "the document", false),
            of("cache of a stack, frames a worker", PoolKind::Stack.default_cache(), "the document", false),
            of("cell, bytes", CELL, "the pipeline's", false),
            of("pools to an instance", 1, "the pipeline's; the document has two", false),
            of(
                "lines just accessed, counted once",
                trace::RECENT,
                "the trace's: an eighth of a first-level cache",
                false,
            ),
            of("passes before the one counted", WARM, "the trace's: until caches that were empty are full", true),
        ]
    }

    /// Returns the arguments with each assumed parameter, and each interpretation of the document, halved and doubled.
    fn varied(&self) -> Vec<(&'static str, [Self; 2])> {
        type Set = fn(&mut MemoryArgs, &dyn Fn(usize) -> usize);
        let all: [(&'static str, Set); 4] = [
            ("frames in a pool", |args, f| args.frames = f(args.frames)),
            ("packets in flight", |args, f| args.in_flight = f(args.in_flight)),
            ("receive ring, descriptors", |args, f| args.rx_ring = f(args.rx_ring)),
            ("transmit ring, descriptors", |args, f| args.tx_ring = f(args.tx_ring)),
        ];
        let one = |set: Set, f: &dyn Fn(usize) -> usize| {
            let mut args = self.clone();
            set(&mut args, f);
            args
        };
        all.into_iter().map(|(name, set)| (name, [one(set, &|n| n / 2), one(set, &|n| n * 2)])).collect()
    }
}

/// Tests in the reference document: rate in Gbit/s, CRC, and by how many percent less memory traffic the stack caused
/// than the ring, for each number of instances.
const INSTANCES: [usize; 5] = [1, 2, 4, 8, 12];
const DOCUMENT: [(f64, OnOff, [f64; 5]); 4] = [
    (5.0, OnOff::Off, [95.0, 88.0, 81.0, 63.0, 42.0]),
    (5.0, OnOff::On, [96.0, 91.0, 87.0, 65.0, 44.0]),
    (6.3, OnOff::Off, [94.0, 87.0, 78.0, 61.0, 46.0]),
    (5.5, OnOff::On, [95.0, 91.0, 84.0, 76.0, 48.0]),
];
/// Reductions that the document gives for reads or writes alone, both in its first test: number of instances, percent.
const DOCUMENT_READS: (usize, f64) = (12, 33.0);
const DOCUMENT_WRITES: (usize, f64) = (1, 97.0);

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
    /// Reductions relative to the first kind; `None` for that kind.
    #[serde(flatten)]
    dropped: Option<Dropped>,
    /// The same reductions in the reference document, as far as it gives them.
    #[serde(flatten)]
    document: Option<Document>,
    source: &'static str,
}

/// Reductions of the traffic, in percent: reads and writes together, and each alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Dropped {
    drop_percent: f64,
    read_drop_percent: f64,
    write_drop_percent: f64,
}

/// Reductions in the reference document.
#[derive(Clone, Copy, Debug, Serialize)]
struct Document {
    document_percent: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document_read_percent: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    document_write_percent: Option<f64>,
}

impl Dropped {
    /// Returns the reductions relative to `base`, both as gigabytes per second read and written; zero relative to zero.
    fn from(base: (f64, f64), now: (f64, f64)) -> Self {
        let percent = |base: f64, now: f64| if base > 0.0 { 100.0 * (1.0 - now / base) } else { 0.0 };
        Self {
            drop_percent: percent(base.0 + base.1, now.0 + now.1),
            read_drop_percent: percent(base.0, now.0),
            write_drop_percent: percent(base.1, now.1),
        }
    }
}

impl Document {
    /// Returns the document's figures for this test; `None` if it has none.
    fn of(args: &MemoryArgs, instances: usize) -> Option<Self> {
        let at = INSTANCES.iter().position(|n| *n == instances)?;
        let test = DOCUMENT.iter().position(|(rate, crc, _)| *rate == args.rate && *crc == args.crc)?;
        let alone = |(of, percent): (usize, f64)| (test == 0 && of == instances).then_some(percent);
        Some(Self {
            document_percent: DOCUMENT[test].2[at],
            document_read_percent: alone(DOCUMENT_READS),
            document_write_percent: alone(DOCUMENT_WRITES),
        })
    }
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
        let pair = |row: &Row| Some((row.dropped?.drop_percent, row.document?.document_percent));
        let drops: Vec<(f64, f64)> = rows.iter().filter_map(pair).collect();
        let mean = |of: fn(&(f64, f64)) -> f64| drops.iter().map(of).sum::<f64>() / drops.len() as f64;
        (!drops.is_empty()).then(|| Self {
            mean_absolute_error: mean(|d| (d.0 - d.1).abs()),
            mean_percent: mean(|d| d.0),
            document_mean_percent: mean(|d| d.1),
        })
    }
}

/// Reductions of the traffic by the second kind, with a parameter at half and at double its value; `None` where the
/// pipeline cannot run so.
#[derive(Serialize)]
struct Sensitivity {
    parameter: &'static str,
    half_percent: Option<f64>,
    as_is_percent: Option<f64>,
    double_percent: Option<f64>,
}

pub fn run(args: &MemoryArgs) -> anyhow::Result<()> {
    if args.parameters {
        return super::report(args.json, &args.parameters(), |all| print_parameters(all));
    }
    let (held, frames) = (args.held(), args.frames);
    anyhow::ensure!(args.possible(), "{held} buffers are in use at once: --frames {frames} is too small");
    if args.pipeline {
        return pipeline::run(args);
    }
    if std::io::stderr().is_terminal() {
        eprintln!("tracing the pipeline under valgrind, which takes minutes");
    }
    let by_kind = modelled(args, &args.instances)?;
    let mut rows: Vec<Row> = vec![];
    for (at, &instances) in args.instances.iter().enumerate() {
        for (which, &kind) in args.kinds.iter().enumerate() {
            let (read_gbs, write_gbs) = by_kind[which][at];
            let pair = args.kinds[0] == PoolKind::Ring && kind == PoolKind::Stack;
            rows.push(Row {
                kind: kind.to_string(),
                instances,
                read_gbs,
                write_gbs,
                dropped: (which > 0).then(|| Dropped::from(by_kind[0][at], (read_gbs, write_gbs))),
                document: Document::of(args, instances).filter(|_| pair),
                source: "modelled",
            });
        }
    }
    let most = args.instances.iter().copied().max().unwrap_or(1);
    let mut sensitivity = vec![];
    if args.vary {
        let reduction = |args: &MemoryArgs| -> anyhow::Result<Option<f64>> {
            if args.kinds.len() < 2 || !args.possible() {
                return Ok(None);
            }
            let by_kind = modelled(args, &[most])?;
            Ok(Some(Dropped::from(by_kind[0][0], by_kind[1][0]).drop_percent))
        };
        let as_is = rows.iter().filter(|row| row.instances == most).find_map(|row| row.dropped);
        for (parameter, [half, double]) in args.varied() {
            let (half_percent, double_percent) = (reduction(&half)?, reduction(&double)?);
            let as_is_percent = as_is.map(|dropped| dropped.drop_percent);
            sensitivity.push(Sensitivity { parameter, half_percent, as_is_percent, double_percent });
        }
    }
    let figures = Figures {
        deviation: Deviation::of(&rows),
        parameters: args.parameters(),
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
    super::report(args.json, &figures, |figures| print(figures, most))
}

fn print(figures: &Figures, most: usize) {
    println!("modelled for {}; {} Gbit/s an instance, CRC {}", XEON_GOLD_6148.name, figures.rate, figures.crc);
    println!("percent saved by instances, with the document's figures in parentheses where it gives them");
    println!("instances  kind    read GB/s  write GB/s            drop            read           write");
    for row in &figures.rows {
        let percent = |here: fn(&Dropped) -> f64, there: fn(&Document) -> Option<f64>| {
            let there = row.document.as_ref().and_then(there).map_or(String::new(), |n| format!(" ({n:.0})"));
            row.dropped.as_ref().map_or(String::new(), |dropped| format!("{:.1}{there}", here(dropped)))
        };
        println!(
            "{:9}  {:5} {:11.2} {:11.2} {:>15} {:>15} {:>15}",
            row.instances,
            row.kind,
            row.read_gbs,
            row.write_gbs,
            percent(|d| d.drop_percent, |d| Some(d.document_percent)),
            percent(|d| d.read_drop_percent, |d| d.document_read_percent),
            percent(|d| d.write_drop_percent, |d| d.document_write_percent)
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

/// Returns the gigabytes per second read and written, for each pool kind and each number of instances.
fn modelled(args: &MemoryArgs, instances: &[usize]) -> anyhow::Result<Vec<Vec<(f64, f64)>>> {
    std::thread::scope(|threads| {
        let one = |kind| threads.spawn(move || traced(args, kind, instances));
        let all: Vec<_> = args.kinds.iter().map(|kind| one(*kind)).collect();
        all.into_iter().map(|kind| kind.join().expect("the model")).collect()
    })
}

/// Traces a pipeline on pools of this kind, for [`modelled`].
fn traced(args: &MemoryArgs, kind: PoolKind, instances: &[usize]) -> anyhow::Result<Vec<(f64, f64)>> {
    let mut command = trace::valgrind(&std::env::current_exe()?);
    command.args(["bench", "memory", "--pipeline", "--kinds", &kind.to_string(), "--crc", &args.crc.to_string()]);
    command.args(["--frames", &args.frames.to_string(), "--in-flight", &args.in_flight.to_string()]);
    command.args(["--rx-ring", &args.rx_ring.to_string(), "--tx-ring", &args.tx_ring.to_string()]);
    command.args(["--rate", &args.rate.to_string()]);
    let (mut turns, mut first, mut packets): (Vec<Vec<Touch>>, _, _) = (vec![], None, 0);
    trace::follow(&mut command, |mark, touches| match mark {
        Mark::Warm(sent) => first = Some(*sent),
        Mark::Turn if first.is_some() => turns.push(touches.to_vec()),
        Mark::End(sent) => packets = sent - first.unwrap_or(0),
        Mark::Dma(_) | Mark::Device | Mark::Core | Mark::Turn => {}
    })?;
    let seconds = packets as f64 * IMIX_MEAN * 8.0 / (args.rate * 1e9);
    let gbs = |lines: u64| lines as f64 * XEON_GOLD_6148.line as f64 / seconds / 1e9;
    let one = |&instances: &usize| {
        let traffic = passes(&turns, instances);
        (gbs(traffic.read_lines), gbs(traffic.written_lines))
    };
    Ok(instances.iter().map(one).collect())
}

/// Passes through the pool before the one that is counted: the first finds empty caches.
const WARM: usize = 2;

/// Returns the traffic of a pass through the pool, in which the instances take turns.
fn passes(turns: &[Vec<Touch>], instances: usize) -> Traffic {
    let mut memory = Memory::new(&XEON_GOLD_6148, instances, 1);
    let mut before = Traffic::default();
    for _ in 0..=WARM {
        before = memory.traffic();
        for touches in turns {
            (0..instances).for_each(|instance| replay(&mut memory, instance, touches));
        }
    }
    memory.traffic() - before
}

/// Repeats accesses for one instance, whose two threads are on one core, at its own addresses.
fn replay(memory: &mut Memory, instance: usize, touches: &[Touch]) {
    for touch in touches {
        // Addresses of user space have 47 bits.
        let (addr, line) = (touch.addr | (instance as u64) << 47, trace::LINE as usize);
        match touch.access {
            Access::Read => memory.read(instance, addr, line),
            Access::Write => memory.write(instance, addr, line),
            Access::DeviceRead => memory.device_read(instance, addr, line),
            Access::DeviceWrite => memory.device_write(instance, addr, line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::FromArgMatches as _;

    impl Default for MemoryArgs {
        fn default() -> Self {
            let matches = Self::augment_args(clap::Command::new("memory")).get_matches_from(["memory"]);
            Self::from_arg_matches(&matches).unwrap()
        }
    }

    #[test]
    fn instances_repeat_accesses_apart() {
        let touches = [(0, Access::Write), (64, Access::Read), (0, Access::Read), (128, Access::DeviceWrite)];
        let touches = touches.map(|(addr, access)| Touch { addr, access });
        let mut memory = Memory::new(&XEON_GOLD_6148, 2, 1);
        replay(&mut memory, 0, &touches);
        assert_eq!(memory.traffic().read_lines, 2);
        replay(&mut memory, 1, &[Touch { addr: 128, access: Access::Read }]);
        assert_eq!(memory.traffic().read_lines, 3, "what the first instance's device wrote is not the second's");
        replay(&mut memory, 1, &touches);
        assert_eq!(memory.traffic().read_lines, 5, "the second instance has lines of its own");
        replay(&mut memory, 1, &[Touch { addr: 128, access: Access::DeviceRead }]);
        assert_eq!(memory.traffic(), Traffic { read_lines: 5, written_lines: 0 }, "from the shared level");
    }

    #[test]
    fn a_pass_is_counted_when_caches_are_warm() {
        let lines =
            |bytes: u64| (0..bytes / trace::LINE).map(|n| Touch { addr: n * trace::LINE, access: Access::Write });
        let fits = [lines(512 << 10).collect(), lines(512 << 10).collect()];
        assert_eq!(passes(&fits, 2), Traffic::default());
        let most = passes(&[lines(57 << 20).collect()], 1);
        let all = (57 << 20) / trace::LINE;
        assert!(most.read_lines > all * 98 / 100 && most.written_lines > all * 98 / 100, "{most:?} of {all}");
    }

    #[test]
    fn reads_and_writes_are_compared_apart() {
        let dropped = Dropped::from((3.0, 1.0), (1.5, 0.1));
        assert_eq!((dropped.drop_percent, dropped.read_drop_percent), (60.0, 50.0));
        assert!((dropped.write_drop_percent - 90.0).abs() < 1e-9);
        let first = MemoryArgs::default();
        let of =
            |args: &MemoryArgs, n| Document::of(args, n).map(|d| (d.document_read_percent, d.document_write_percent));
        assert_eq!(of(&first, 1), Some((None, Some(97.0))));
        assert_eq!(of(&first, 12), Some((Some(33.0), None)));
        assert_eq!(of(&MemoryArgs { crc: OnOff::On, ..first.clone() }, 12), Some((None, None)));
        assert_eq!(of(&MemoryArgs { rate: 4.0, ..first }, 12), None);
    }

    #[test]
    fn what_has_no_source_is_varied() {
        let args = MemoryArgs::default();
        let parameters = args.parameters();
        assert!(args.possible() && parameters.iter().all(|parameter| !parameter.source.is_empty()));
        // Interpretations of the document are varied as well.
        let open = |p: &&Parameter| p.source.starts_with("assumed") || p.source.contains("read as");
        let open: Vec<_> = parameters.iter().filter(open).map(|parameter| (parameter.name, parameter.value)).collect();
        let varied = args.varied();
        assert_eq!(
            varied.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            open.iter().map(|o| o.0).collect::<Vec<_>>()
        );
        for ((name, [half, double]), (_, value)) in varied.iter().zip(open) {
            let of = |args: &MemoryArgs| args.parameters().iter().find(|p| p.name == *name).map(|p| p.value);
            assert_eq!((of(half), of(double)), (Some(value / 2), Some(value * 2)), "{name}");
        }
        assert!(!MemoryArgs { frames: 1024, ..args.clone() }.possible());
        assert!(!MemoryArgs { rx_ring: 8192, ..args }.possible());
    }

    #[test]
    fn the_error_is_absolute() {
        let row = |percent, document: Option<f64>| Row {
            kind: "stack".into(),
            instances: 1,
            read_gbs: 0.0,
            write_gbs: 0.0,
            dropped: Some(Dropped::from((50.0, 50.0), (50.0 - percent / 2.0, 50.0 - percent / 2.0))),
            document: document.map(|document_percent| Document {
                document_percent,
                document_read_percent: None,
                document_write_percent: None,
            }),
            source: "modelled",
        };
        let rows = [row(100.0, Some(90.0)), row(40.0, Some(60.0)), row(1.0, None)];
        let of = Deviation::of(&rows).unwrap();
        assert_eq!((of.mean_absolute_error, of.mean_percent, of.document_mean_percent), (15.0, 70.0, 75.0));
        assert!(Deviation::of(&rows[2..]).is_none());
    }
}
