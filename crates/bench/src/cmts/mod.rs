//! Benchmark of the cable downstream: instances of two workers each, from traffic in memory to encrypted frames, which
//! are discarded.
//!
//! Reception stands for a device: whole packets or headers (`--writes`) are copied from memory; the source fits a
//! second-level cache. All processing after that is the same as with `mode = "cmts"`.

mod library;
mod search;
mod source;
mod trial;

use crate::args::{OnOff, SECONDS, frames, gbits, number};
use crate::line::{self, Auto, TransferCost};
use anyhow::Context as _;
use bywash_config::count;
use bywash_docsis::cipher::derived_key;
use bywash_docsis::classify::Rule;
use bywash_docsis::group::{FlowKind, Group, Mac, ModemConfig, ModemKind, PDU_MAX};
use bywash_docsis::instance::{CELL, RING, RINGS};
use bywash_docsis::lower::LowerConfig;
use bywash_docsis::protect::Protection;
use bywash_docsis::queue::{Overflow, QueueLimits};
use bywash_docsis::seal::Crypto;
use bywash_docsis::traffic::{CABLE_IMIX, Share, packets};
use bywash_engine::cpus;
use bywash_frame::{Pages, PoolKind};
use bywash_measure::energy::Joules;
use bywash_measure::hardware;
use bywash_port::pcap::PcapSource;
use clap::{Args, ValueEnum};
use search::Trial;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use trial::{Load, Outcome, Stage};

/// `bywash bench cmts`
#[derive(Debug, Args)]
pub struct CmtsArgs {
    /// Number of instances, each with an upper and a lower MAC on two CPUs: hyper-threads of one core if possible
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number_of_instances)]
    pub instances: usize,
    /// Append a CRC to each PDU
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub crc: OnOff,
    /// Encrypt PDUs
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub cipher: OnOff,
    /// Encryption library
    #[arg(long, value_name = "WHO", default_value = "auto")]
    pub crypto: Crypto,
    /// Let the upper MAC's worker encrypt as well while the lower MAC is behind
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub assist: OnOff,
    /// Pool kinds, measured one after the other
    #[arg(long, value_name = "KINDS", value_delimiter = ',', default_value = "ring,stack")]
    pub kinds: Vec<PoolKind>,
    /// Packet sizes in bytes without FCS, each with its share  [default: 68:3,932:1,1520:96]
    #[arg(long, value_name = "SIZE:SHARE,..", value_delimiter = ',', value_parser = share, conflicts_with = "size")]
    pub imix: Option<Vec<MixShare>>,
    /// Use one packet size, in bytes without FCS
    #[arg(long, value_name = "BYTES", value_parser = pdu)]
    pub size: Option<usize>,
    /// Modems per instance, each with two flows
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = modems)]
    pub modems: usize,
    /// Replay this capture file instead; each destination address in it is a modem
    #[arg(long, value_name = "FILE", conflicts_with_all = ["imix", "size", "modems"])]
    pub pcap: Option<PathBuf>,
    /// Part of each packet that the traffic source (which stands for a device) writes: `all`, copied by the upper MAC's
    /// CPU, or `headers`, 64 bytes, with stale buffer contents as payload
    #[arg(long, value_name = "PART", default_value = "all")]
    pub writes: Writes,
    /// Rates of an instance's OFDM channels in Gbit/s; 0: no limit  [default: four of 1.89 with --rate; four without
    /// limit else, with --hold as well, where the workers determine the rate]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = channel)]
    pub channels: Option<Vec<u64>>,
    /// Fixed rate of each instance in Gbit/s, even with loss  [default: the maximum, followed by the search]
    #[arg(long, value_name = "GBITS", value_parser = gbits)]
    pub rate: Option<f64>,
    /// Search for the highest rate without loss
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub search: OnOff,
    /// Length of each trial of the search, in seconds
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub trial: u64,
    /// Afterwards, hold the reference document's rates (5, 5.5 and 6.3 Gbit/s) and the highest rate without loss for
    /// this many seconds each; the latter is lowered until it is held
    #[arg(long, value_name = "N", conflicts_with = "rate", value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub hold: Option<u64>,
    /// Bursts on top of the fixed rate: every 100 ms after the last one is over, packets arrive as fast as they are
    /// taken until this many frames are in flight
    #[arg(long, value_name = "FRAMES", requires = "rate", value_parser = burst)]
    pub burst: Option<usize>,
    /// Capacity of the ring between the upper and the lower MAC, in frames  [default: 4096, or the frames of a burst
    /// and as many again]
    #[arg(long, value_name = "N", value_parser = ring)]
    pub ring: Option<usize>,
    /// Also measure the encryption library alone, with PDUs of 1518 bytes
    #[arg(long)]
    pub library: bool,
    /// Number of buffers in each instance's pool
    #[arg(long, value_name = "N", default_value_t = 32768, value_parser = frames)]
    pub frames: usize,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// Length of the measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Part of a packet that the traffic source of `bench cmts` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Writes {
    /// First 64 bytes, like a generator with constant payloads: the CPU is spared the device's work
    Headers,
    /// Every byte: the CPU does the device's work
    All,
}

/// Packet size and its share in a traffic mix.
#[derive(Clone, Copy, Debug)]
pub struct MixShare {
    /// Size in bytes without FCS.
    pub size: usize,
    /// Share, relative to the sum of all weights.
    pub weight: u32,
}

fn number_of_instances(text: &str) -> Result<usize, String> {
    number(text, 1..=64, "instances")
}

fn modems(text: &str) -> Result<usize, String> {
    number(text, 1..=bywash_docsis::group::MODEMS_MAX, "modems")
}

/// Parses a PDU size in bytes, from the headers of UDP over IPv4 on.
fn pdu(text: &str) -> Result<usize, String> {
    number(text, 60..=PDU_MAX, "bytes")
}

fn burst(text: &str) -> Result<usize, String> {
    number(text, 1000..=1_000_000, "frames")
}

fn ring(text: &str) -> Result<usize, String> {
    number(text, RINGS, "frames")
}

fn share(text: &str) -> Result<MixShare, String> {
    let (size, weight) = text.split_once(':').ok_or("expected SIZE:SHARE, such as 1520:96")?;
    Ok(MixShare { size: pdu(size)?, weight: number(weight, 1..=1_000_000, "parts")? as u32 })
}

/// Parses the rate of a channel in Gbit/s; returns it in bits per second.
fn channel(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { gbits(text).map(|rate| (rate * 1e9) as u64) }
}

/// Number of OFDM channels per instance.
const CHANNELS: usize = 4;
/// Rate of an OFDM channel of 192 MHz with 4096-QAM in bits per second.
const CHANNEL_RATE: u64 = 1_890_000_000;
/// Maximum length in frames of all queues of an instance, and of a flow's queue.
const QUEUE: usize = 4096;
/// Frames in flight besides those of a burst: caches of the pool, and batches that are received and sent.
const SPARE: usize = 1024;
/// Rates in Gbit/s that the reference document holds without loss: 5 with and without CRC, 5.5 with, 6.3 without.
const DOCUMENT: [f64; 3] = [5.0, 5.5, 6.3];
/// DSCP of a modem's second flow: expedited forwarding (RFC 3246).
const VOICE: u8 = 46;

#[derive(Serialize)]
struct Figures {
    rows: Vec<Row>,
    /// Figures of the encryption library alone, on the first CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    library: Option<library::Figures>,
    instances: usize,
    crc: OnOff,
    cipher: OnOff,
    /// Encryption library in use, and why a better one is not.
    crypto: String,
    modems: usize,
    /// Number of packets after which the traffic repeats.
    packets: usize,
    mean_size: f64,
    /// Part of each packet that the source writes.
    writes: Writes,
    frames: usize,
    /// Size of a buffer in bytes.
    cell: usize,
    /// Capacity of the ring between the two workers of an instance.
    ring: usize,
    pages: String,
    seconds: u64,
    /// True if workers share a CPU; the figures then depend on the scheduler, too.
    crowded: bool,
    cpus: cpus::Placement,
    /// Cost of a cache line transfer between the first two CPUs before the trials.
    line: Option<TransferCost>,
    /// Choice of `kind = "auto"` for the upper MACs' pools.
    auto: Auto,
    hardware: Vec<hardware::Source>,
    /// Reason why the rows have no power.
    #[serde(skip_serializing_if = "Option::is_none")]
    power_missing: Option<String>,
}

/// Traffic between memory and processors of the whole machine, in gigabytes per second.
#[derive(Serialize)]
struct Traffic {
    #[serde(skip_serializing_if = "Option::is_none")]
    read_gbs: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_gbs: Option<f64>,
    gbs: f64,
    /// How much less this is than that of the first kind, in percent, for each bit carried; `None` for the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    less_percent: Option<f64>,
    source: &'static str,
}

/// Mean power during a trial, in watts.
#[derive(Serialize)]
struct Power {
    /// Power of all processors.
    package_watts: f64,
    /// Power of their memory; `None` if it is not counted apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    dram_watts: Option<f64>,
}

#[derive(Serialize)]
struct Row {
    pool: String,
    /// Rate of all instances together, in PDUs without MAC header and CRC.
    gbps: f64,
    mpps: f64,
    /// Cycles per packet of an instance, whose two workers run in parallel.
    cycles_per_packet: f64,
    /// Requested rate per instance; `None` for the closed loop, in which the source sends as frames leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    rate_gbps: Option<f64>,
    loss_percent: f64,
    drops: Vec<(&'static str, u64)>,
    /// Highest rate per instance at which no instance loses packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    zero_loss_gbps: Option<f64>,
    /// Frames in flight per instance during the first trial.
    occupancy: source::Figures,
    /// Rates held for longer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    held: Vec<Held>,
    /// Ratio to the rate of the library alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_library: Option<f64>,
    /// Share of the bytes that each channel carried.
    channels_percent: Vec<f64>,
    /// Cycles of the two workers by stage, and their share of each worker's cycles.
    stages: Vec<Stage>,
    /// Memory traffic; `None` if it cannot be measured here.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Traffic>,
    /// Power of the whole machine's processors and memory; `None` if it cannot be measured here.
    #[serde(skip_serializing_if = "Option::is_none")]
    power: Option<Power>,
    #[serde(skip)]
    power_missing: Option<String>,
    #[serde(skip)]
    crypto: String,
    #[serde(skip)]
    pages: String,
}

/// Trial of `--hold`.
#[derive(Serialize)]
struct Held {
    /// Rate per instance.
    gbps: f64,
    /// Rates of an instance's channels; 0: no limit.
    channels_gbps: Vec<f64>,
    seconds: u64,
    loss_percent: f64,
    occupancy: source::Figures,
}

/// Parameters common to all trials.
struct Bench<'a> {
    args: &'a CmtsArgs,
    source: PcapSource,
    modems: Vec<Mac>,
    mean_size: f64,
    cpus: cpus::Placement,
}

pub fn run(args: &CmtsArgs) -> anyhow::Result<()> {
    let bench = Bench::new(args)?;
    let library = if args.library { Some(library::measure(args, &bench.cpus)?) } else { None };
    let line = line::measure(&bench.cpus)?;
    let mut rows = args.kinds.iter().map(|kind| bench.row(*kind)).collect::<anyhow::Result<Vec<_>>>()?;
    compare(rows.iter_mut().map(|row| (row.gbps, row.memory.as_mut())));
    if let Some(library) = &library {
        rows.iter_mut().for_each(|row| row.of_library = Some(row.gbps / args.instances as f64 / library.gbps));
    }
    // At a fixed rate no kind is the fastest.
    let rates = rows.iter().filter(|_| args.rate.is_none()).map(|row| (row.pool.as_str(), row.gbps));
    let auto = Auto::between(&bench.cpus, line, &rates.collect::<Vec<_>>());
    let first = rows.first();
    let figures = Figures {
        library,
        instances: args.instances,
        crc: args.crc,
        cipher: args.cipher,
        crypto: first.map(|row| row.crypto.clone()).unwrap_or_default(),
        modems: bench.modems.len(),
        packets: bench.source.len(),
        mean_size: bench.mean_size,
        writes: args.writes,
        frames: args.frames,
        cell: CELL,
        ring: bench.ring(),
        pages: first.map(|row| row.pages.clone()).unwrap_or_default(),
        seconds: args.seconds,
        crowded: !bench.cpus.enough_for(2 * args.instances),
        cpus: bench.cpus,
        line,
        auto,
        hardware: hardware::sources(),
        power_missing: first.and_then(|row| row.power_missing.clone()),
        rows,
    };
    super::report(args.json, &figures, print)
}

fn print(f: &Figures) {
    println!(
        "{} of two workers on {}; {}, packets of {:.0} B; crc {}, cipher {}: {}",
        count(f.instances, "instance"),
        f.cpus,
        count(f.modems, "modem"),
        f.mean_size,
        f.crc,
        f.cipher,
        f.crypto
    );
    if f.crowded {
        println!(
            "  crowded: {} workers share the CPUs, so these are figures of the scheduler as well",
            2 * f.instances
        );
    }
    if let Some(library) = &f.library {
        println!(
            "  the library alone: {:.2} Gbit/s, {:.0} cycles/packet of {} B",
            library.gbps, library.cycles_per_packet, library.size
        );
    }
    for row in &f.rows {
        print!("  {:5} {:6.2} Gbit/s, {:6.0} cycles/packet", row.pool, row.gbps, row.cycles_per_packet);
        row.rate_gbps.inspect(|rate| print!(", {:.3} % lost of {rate} Gbit/s per instance", row.loss_percent));
        row.of_library.inspect(|ratio| print!(", {ratio:.2} of the library"));
        row.zero_loss_gbps.inspect(|rate| print!("; no loss up to {rate:.2} Gbit/s per instance"));
        row.memory.as_ref().inspect(|traffic| print!("; {}", moved(traffic, &f.rows[0].pool)));
        row.power.as_ref().inspect(|power| print!("; {power}"));
        println!();
        println!("        in flight {}", in_flight(&row.occupancy));
        for held in &row.held {
            let loss =
                if held.loss_percent == 0.0 { "no loss".into() } else { format!("{:.4} % lost", held.loss_percent) };
            println!(
                "        {:.2} Gbit/s per instance for {} s ({}): {loss}; in flight {}",
                held.gbps,
                held.seconds,
                channels(&held.channels_gbps),
                in_flight(&held.occupancy)
            );
        }
        let shares: Vec<String> = row.channels_percent.iter().map(|of| format!("{of:.1}")).collect();
        println!("        shares of the channels: {} %", shares.join(", "));
        for stage in &row.stages {
            println!(
                "        {} {:9} {:7.1} cycles/packet {:5.1} %",
                stage.worker, stage.stage, stage.cycles_per_packet, stage.percent
            );
        }
        row.drops.iter().for_each(|(reason, n)| println!("        {n} dropped: {reason}"));
    }
    println!("  {} (a cache line takes {} from CPU to CPU)", f.auto, line::words(&[f.line]));
    f.power_missing.as_ref().inspect(|why| println!("  power not measured: {why}"));
}

/// Compares the memory traffic of each kind with that of the first, where both are known: for each bit carried, as a
/// kind with more traffic may also carry more. Takes the rates of the kinds, too.
fn compare<'a>(mut of_kinds: impl Iterator<Item = (f64, Option<&'a mut Traffic>)>) {
    let a_bit = |gbps: f64, traffic: &Traffic| traffic.gbs / gbps;
    let Some((gbps, Some(first))) = of_kinds.next() else { return };
    let first = a_bit(gbps, first);
    // NaN or infinite if nothing was carried.
    for (gbps, traffic) in of_kinds {
        let Some(traffic) = traffic else { continue };
        let less = 100.0 * (1.0 - a_bit(gbps, traffic) / first);
        traffic.less_percent = Some(less).filter(|less| less.is_finite());
    }
}

/// Returns the rates of an instance's channels as text.
fn channels(gbps: &[f64]) -> String {
    if gbps.contains(&0.0) {
        return "channels without limit".into();
    }
    let gbps: Vec<String> = gbps.iter().map(f64::to_string).collect();
    format!("channels of {} Gbit/s", gbps.join(", "))
}

impl std::fmt::Display for Power {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "processors {:.1} W", self.package_watts)?;
        self.dram_watts.map_or(Ok(()), |watts| write!(f, ", memory {watts:.1} W"))?;
        write!(f, " (measured: powercap)")
    }
}

/// Returns memory traffic as text, compared with that of the kind `first`.
fn moved(traffic: &Traffic, first: &str) -> String {
    let part = |gbs: Option<f64>, how: &str| gbs.map(|gbs| format!("{gbs:.2} {how}"));
    let parts: Vec<String> =
        part(traffic.read_gbs, "read").into_iter().chain(part(traffic.write_gbs, "written")).collect();
    let mut text = format!("memory {:.2} GB/s", traffic.gbs);
    if !parts.is_empty() {
        text += &format!(", {}", parts.join(" and "));
    }
    if let Some(less) = traffic.less_percent {
        let more = if less < 0.0 { "more" } else { "less" };
        text += &format!(", {:.0} % {more} a bit than {first}", less.abs());
    }
    format!("{text} ({})", traffic.source)
}

/// Returns the frames in flight as text.
fn in_flight(occupancy: &source::Figures) -> String {
    let mut text = format!("{:.0}, at most {}", occupancy.normal, occupancy.peak);
    if let Some(bursts) = &occupancy.bursts {
        let source::Bursts { number, over, longest_ms } = bursts;
        text += &format!("; {number} bursts, {over} of them over, after at most {longest_ms:.1} ms");
    }
    text
}

impl<'a> Bench<'a> {
    fn new(args: &'a CmtsArgs) -> anyhow::Result<Self> {
        if let Some(burst) = args.burst {
            let least = burst + SPARE;
            anyhow::ensure!(args.frames >= least, "--burst {burst} needs --frames {least} or more");
        }
        let cpus = cpus::Placement::of(2 * args.instances)?;
        let (source, modems) = match &args.pcap {
            Some(path) => {
                let source = PcapSource::load(path).with_context(|| format!("{}", path.display()))?;
                let mut modems: Vec<Mac> = source.frames().filter_map(|f| f.first_chunk().copied()).collect();
                modems.sort_unstable();
                modems.dedup();
                anyhow::ensure!(!modems.is_empty(), "{}: no packet has a destination address", path.display());
                (source, modems)
            }
            None => {
                let modems: Vec<Mac> = (0..args.modems).map(mac).collect();
                let mix: Vec<Share> = match (args.size, &args.imix) {
                    (Some(size), _) => vec![Share { weight: 1, size }],
                    (None, Some(mix)) => mix.iter().map(|m| Share { weight: m.weight, size: m.size }).collect(),
                    (None, None) => CABLE_IMIX.into(),
                };
                // A multiple of 100, so that a mix in percent is exact, and at least two packets for every modem.
                let n = (2 * args.modems).next_multiple_of(100);
                (PcapSource::from_frames(packets(&modems, &mix, n))?, modems)
            }
        };
        let bytes: usize = source.frames().map(|f| f.len()).sum();
        let mean_size = bytes as f64 / source.len().max(1) as f64;
        let source = source.repeated();
        let source = if args.writes == Writes::Headers { source.heads_only() } else { source };
        Ok(Self { args, source, modems, mean_size, cpus })
    }

    fn protection(&self) -> Protection {
        protection(self.args)
    }

    /// Returns the capacity of the ring between the two workers.
    fn ring(&self) -> usize {
        self.args.ring.unwrap_or_else(|| RING.max(2 * self.args.burst.unwrap_or(0)).min(*RINGS.end()))
    }

    fn lower(&self, channels: Vec<u64>) -> LowerConfig {
        let queue = QUEUE + self.args.burst.unwrap_or(0);
        LowerConfig {
            protection: self.protection(),
            crypto: self.args.crypto,
            assist: self.args.assist == OnOff::On,
            queues: QueueLimits { flow: queue, total: queue, overflow: Overflow::Tail },
            channels,
            bits: 0,
            depi: None,
        }
    }

    /// Returns the rates of an instance's channels, `rate` by default.
    fn channels(&self, rate: u64) -> Vec<u64> {
        self.args.channels.clone().unwrap_or_else(|| vec![rate; CHANNELS])
    }

    /// Returns the packets per second of this traffic at `gbps`.
    fn packets_per_second(&self, gbps: f64) -> u64 {
        (gbps * 1e9 / 8.0 / self.mean_size).max(1.0) as u64
    }

    /// Runs the instances at `gbps` each, on channels of these rates.
    fn held(&self, kind: PoolKind, gbps: f64, channels: &[u64], seconds: u64) -> anyhow::Result<Held> {
        let load = Load::Paced(self.packets_per_second(gbps));
        let length = Duration::from_secs(seconds);
        let Outcome { loss_percent, occupancy, .. } = trial::run(self, kind, load, channels, length)?;
        let channels_gbps = channels.iter().map(|rate| *rate as f64 / 1e9).collect();
        Ok(Held { gbps, channels_gbps, seconds, loss_percent, occupancy })
    }

    fn row(&self, kind: PoolKind) -> anyhow::Result<Row> {
        let (load, channels) = match self.args.rate {
            Some(gbps) => (Load::Paced(self.packets_per_second(gbps)), self.channels(CHANNEL_RATE)),
            None => (Load::Closed, self.channels(0)),
        };
        let seconds = Duration::from_secs(self.args.seconds);
        let outcome = trial::run(self, kind, load, &channels, seconds)?;
        let mut held = vec![];
        if let Some(seconds) = self.args.hold {
            for gbps in DOCUMENT {
                held.push(self.held(kind, gbps, &channels, seconds)?);
            }
        }
        let zero_loss = match self.args.rate {
            None if self.args.search == OnOff::On => {
                let lossless = |gbps, trial| -> anyhow::Result<bool> {
                    let hold = self.args.hold.filter(|_| trial == Trial::Confirm);
                    let one = self.held(kind, gbps, &channels, hold.unwrap_or(self.args.trial))?;
                    let lossless = one.loss_percent == 0.0;
                    held.extend(hold.filter(|_| lossless).map(|_| one));
                    Ok(lossless)
                };
                Some(search::zero_loss(outcome.gbps_each, lossless)?)
            }
            _ => None,
        };
        let Outcome { gbps_each, mpps_each, cycles_per_packet, loss_percent, drops, stages, crypto, pages, .. } =
            outcome;
        let gbs = |bytes: f64| bytes / 1e9 / outcome.seconds;
        let memory = outcome.memory.ok().map(|moved| Traffic {
            read_gbs: moved.read_bytes.map(gbs),
            write_gbs: moved.written_bytes.map(gbs),
            gbs: gbs(moved.bytes),
            less_percent: None,
            source: moved.source,
        });
        let (power, power_missing) = match outcome.energy {
            Ok(Joules { package, dram }) => {
                let watts = |joules: f64| joules / outcome.seconds;
                (Some(Power { package_watts: watts(package), dram_watts: dram.map(watts) }), None)
            }
            Err(why) => (None, Some(why)),
        };
        let instances = self.args.instances as f64;
        Ok(Row {
            pool: kind.to_string(),
            gbps: gbps_each * instances,
            mpps: mpps_each * instances,
            cycles_per_packet,
            rate_gbps: self.args.rate,
            loss_percent,
            drops,
            zero_loss_gbps: zero_loss,
            occupancy: outcome.occupancy,
            held,
            of_library: None,
            channels_percent: outcome.channels_percent,
            stages,
            memory,
            power,
            power_missing,
            crypto,
            pages,
        })
    }
}

fn protection(args: &CmtsArgs) -> Protection {
    Protection { crc: args.crc == OnOff::On, cipher: args.cipher == OnOff::On, ..Protection::default() }
}

/// Returns a group of these modems with two flows each, distinguished by DSCP.
pub(crate) fn group(modems: &[Mac]) -> anyhow::Result<Arc<Group>> {
    let flow = |name: &str, priority, rules| FlowKind { name: name.into(), priority, rules, ..FlowKind::default() };
    let flows = vec![flow("best-effort", 1, vec![]), flow("voice", 5, vec![Rule::default().dscp([VOICE])])];
    let kind = ModemKind { flows, filters: vec![] };
    let modem =
        |(i, mac): (usize, &Mac)| ModemConfig { mac: *mac, said: i as u16 + 1, key: key(i), ..ModemConfig::default() };
    Ok(Arc::new(Group::new(vec![kind], modems.iter().enumerate().map(modem).collect())?))
}

/// Returns the MAC address of the `index`-th modem: locally administered, unicast.
pub(crate) fn mac(index: usize) -> Mac {
    let [.., a, b, c] = (index as u32).to_be_bytes();
    [2, 0xca, 0xb1, a, b, c]
}

/// Returns key and initialization vector of the `index`-th modem.
fn key(index: usize) -> bywash_docsis::seal::KeyPair {
    (derived_key(&[0x42; 16], index as u32), derived_key(&[0x24; 16], index as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_traffic_is_compared_with_that_of_the_first_kind() {
        let of = |read_gbs, write_gbs, gbs| {
            Some(Traffic { read_gbs, write_gbs, gbs, less_percent: None, source: "memory controllers" })
        };
        let mut kinds = [of(Some(6.0), Some(4.0), 10.0), of(Some(1.5), Some(0.9), 2.4), None, of(None, None, 12.0)];
        // The second carried half as much as the others.
        let gbps = [20.0, 10.0, 20.0, 20.0];
        compare(gbps.into_iter().zip(kinds.iter_mut().map(Option::as_mut)));
        let texts: Vec<String> = kinds.iter().flatten().map(|traffic| moved(traffic, "ring")).collect();
        assert_eq!(texts[0], "memory 10.00 GB/s, 6.00 read and 4.00 written (memory controllers)");
        assert_eq!(
            texts[1],
            "memory 2.40 GB/s, 1.50 read and 0.90 written, 52 % less a bit than ring (memory controllers)"
        );
        assert_eq!(texts[2], "memory 12.00 GB/s, 20 % more a bit than ring (memory controllers)");
        let mut unknown = [None, of(None, None, 12.0)];
        compare(unknown.iter_mut().map(|traffic| (1.0, traffic.as_mut())));
        assert!(unknown[1].as_ref().unwrap().less_percent.is_none());
        let mut idle = [of(None, None, 0.0), of(None, None, 0.0)];
        compare(idle.iter_mut().map(|traffic| (0.0, traffic.as_mut())));
        assert!(idle[1].as_ref().unwrap().less_percent.is_none());
    }

    #[test]
    fn channels_are_named_by_their_rates() {
        assert_eq!(channels(&[1.89, 1.89]), "channels of 1.89, 1.89 Gbit/s");
        assert_eq!(channels(&[7.0, 0.0]), "channels without limit");
    }
}
