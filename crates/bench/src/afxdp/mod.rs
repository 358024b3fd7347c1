//! Benchmark of AF_XDP alone: frames received, sent and forwarded on veth, and the effect of each option.
//!
//! The lab is that of [`super::lab`]: the source is the kernel's live-frame generator on the first CPU; the application
//! runs on the second. Frames are counted by the kernel: for `rxdrop`, those redirected to a socket (the veth's count
//! of successful XDP redirects, since a full socket refuses frames); otherwise, those received by b's interface.

mod app;

use super::lab::{Lab, Rate, SOME, Traffic, rate};
use crate::args::{OnOff, SECONDS, frames, number, size};
use anyhow::{Context as _, ensure};
use app::App;
use bywash_config::{Host, count};
use bywash_frame::Pages;
use bywash_port::PortCounters;
use bywash_port::af_xdp::{Transmit, ZeroCopy};
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Application of `bywash bench afxdp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AfxdpApp {
    /// Receives and drops
    Rxdrop,
    /// Sends the same frame repeatedly
    Txpush,
    /// Forwards between two interfaces
    L2fwd,
}

/// Mapping of buffers to UMEM chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AfxdpLayout {
    /// One buffer per chunk
    Aligned,
    /// One buffer per chunk, registered in unaligned chunk mode
    Unaligned,
    /// Several buffers of 512 bytes per chunk; frames of up to 256 bytes
    Typewriter,
}

/// Wait strategy of `bywash bench afxdp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AfxdpMode {
    /// Run to completion: polls the rings continuously, without system calls
    Rtc,
    /// Blocks in poll(2) after some time without frames (see --spin-us)
    Poll,
    /// Preferred busy polling (SO_PREFER_BUSY_POLL): the driver is polled by this thread's system calls, without
    /// interrupts
    BusyPoll,
}

/// `bywash bench afxdp`
#[derive(Debug, Args)]
pub struct AfxdpArgs {
    /// Operation on frames
    #[arg(long, value_name = "APP", default_value = "rxdrop")]
    pub app: AfxdpApp,
    /// Wait strategy
    #[arg(long, value_name = "MODE", default_value = "rtc")]
    pub mode: AfxdpMode,
    /// Time without frames after which `--mode poll` calls poll(2), in microseconds; 0: after an iteration without. A
    /// thread that sleeps sooner has to be woken for more of the bursts, at the expense of the sending CPU
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub spin_us: u64,
    /// Read every byte received (and swap the MAC addresses of forwarded frames); write every byte sent
    #[arg(long)]
    pub touch: bool,
    /// Maximum number of frames received or sent per iteration
    #[arg(long, value_name = "N", default_value_t = bywash_frame::BATCH, value_parser = batch)]
    pub batch: usize,
    /// Size of each of the four rings, in descriptors
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub ring: u32,
    /// Number of sockets that send in turn, on one UMEM and queue
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub tx_sockets: usize,
    /// Number of queues that send, each by a socket of its own on the same UMEM and a thread of its own: two threads
    /// use both CPUs. For `--app txpush`
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = tx_queues)]
    pub tx_queues: usize,
    /// Reclaim sent frames in the order they were sent, comparing each completion with that order
    #[arg(long, value_name = "on|off", default_value = "off", hide_possible_values = true)]
    pub in_order: OnOff,
    /// Mapping of buffers to UMEM chunks
    #[arg(long, value_name = "HOW", default_value = "aligned")]
    pub layout: AfxdpLayout,
    /// Use of AF_XDP zero-copy mode
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub zero_copy: ZeroCopy,
    /// Transmit method
    #[arg(long, value_name = "HOW", default_value = "auto")]
    pub transmit: Transmit,
    /// Use the kernel's need-wakeup flag (XDP_USE_NEED_WAKEUP), so that system calls are made only when needed
    #[arg(long, value_name = "on|off", default_value = "on", hide_possible_values = true)]
    pub need_wakeup: OnOff,
    /// Maximum number of frames the driver processes per system call, with `--mode busy-poll`
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..))]
    pub budget: u16,
    /// Page size of the buffer memory
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    pub pages: Pages,
    /// Number of buffers in the pool
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = frames)]
    pub frames: usize,
    /// Frame size on the wire in bytes, FCS included
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = size)]
    pub size: usize,
    /// Length of each measurement, in seconds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(SECONDS))]
    pub seconds: u64,
    /// Number of rounds; the result is the median
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub rounds: u64,
    /// Also measure this command in each round: it must do the same on r0, r1 or both, and runs in their network
    /// namespace
    #[arg(long, value_name = "COMMAND")]
    pub peer: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl AfxdpArgs {
    /// Returns whether an option was given that matters only to frames sent by the socket's own rings.
    fn uses_transmit_rings(&self) -> bool {
        self.in_order == OnOff::On || self.tx_sockets > 1
    }
}

fn tx_queues(text: &str) -> Result<usize, String> {
    number(text, 1..=16, "queues")
}

fn batch(text: &str) -> Result<usize, String> {
    number(text, 1..=bywash_frame::BATCH, "frames")
}

#[derive(Serialize)]
struct Figures {
    app: AfxdpApp,
    mode: AfxdpMode,
    touch: bool,
    batch: usize,
    size: usize,
    seconds: u64,
    /// CPUs of the source and of the application; those of its threads with several transmit queues.
    cpus: Vec<usize>,
    /// Features in use on each port.
    got: Vec<BTreeMap<&'static str, String>>,
    /// Median of the rounds. The fields below, except those of rounds, are also from the median round.
    mpps: f64,
    /// Cycles per packet of the application's thread in iterations with frames, including time in the kernel.
    cycles_per_packet: f64,
    /// Percentage of the application's time spent in the kernel.
    kernel_percent: f64,
    /// System calls per packet, by reason.
    system_calls_per_packet: BTreeMap<&'static str, f64>,
    /// Lost frames, by reason.
    lost: BTreeMap<&'static str, u64>,
    /// Number of frames that completed out of order since the start, with in-order completion, which was then
    /// abandoned.
    reordered: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_mpps: Option<f64>,
    /// Ratio of the medians of Bywash's rates and the peer's.
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_ratio: Option<f64>,
    rounds: Vec<Round>,
}

#[derive(Serialize)]
struct Round {
    bywash: Rate,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<Rate>,
    #[serde(skip)]
    account: Account,
}

/// Statistics of the application for one round.
struct Account {
    got: Vec<BTreeMap<&'static str, String>>,
    cycles_per_packet: f64,
    kernel_percent: f64,
    system_calls_per_packet: BTreeMap<&'static str, f64>,
    lost: BTreeMap<&'static str, u64>,
    reordered: u64,
}

/// Runs `bywash bench afxdp`.
pub fn run(args: &AfxdpArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    ensure!(args.tx_queues == 1 || args.app == AfxdpApp::Txpush, "--tx-queues needs --app txpush");
    ensure!(
        !args.uses_transmit_rings() || args.app != AfxdpApp::Rxdrop,
        "--in-order and --tx-sockets concern frames that are sent: add --app txpush or --app l2fwd"
    );
    let queues = args.tx_queues as u32;
    let lab = Lab::with_queues(Traffic::one_route(args.size), queues)?.with_driver_sink()?;
    // The kernel must not forward frames that the application does not receive.
    lab.topology().r().sysctl("net/ipv4/ip_forward", "0")?;
    let bench = Bench { args, lab };
    let mut rounds = vec![];
    for _ in 0..args.rounds {
        rounds.push(bench.round()?);
    }
    let cpus = if args.tx_queues == 1 { bench.lab.cpus.to_vec() } else { bench.threads()? };
    let peer_mpps = super::median(rounds.iter().filter_map(|r| Some(r.peer?.mpps)));
    let mpps = super::median(rounds.iter().map(|r| r.bywash.mpps)).context("no round")?;
    let peer_ratio = peer_mpps.map(|peer| mpps / peer);
    let middle = rounds.iter().find(|r| r.bywash.mpps == mpps).context("no round")?;
    let figures = Figures {
        app: args.app,
        mode: args.mode,
        touch: args.touch,
        batch: args.batch,
        size: args.size,
        seconds: args.seconds,
        cpus,
        got: middle.account.got.clone(),
        mpps,
        cycles_per_packet: middle.account.cycles_per_packet,
        kernel_percent: middle.account.kernel_percent,
        system_calls_per_packet: middle.account.system_calls_per_packet.clone(),
        lost: middle.account.lost.clone(),
        reordered: middle.account.reordered,
        peer_mpps,
        peer_ratio,
        rounds,
    };
    super::report(args.json, &figures, print)
}

struct Bench<'a> {
    args: &'a AfxdpArgs,
    lab: Lab,
}

impl Bench<'_> {
    fn round(&self) -> anyhow::Result<Round> {
        let r = self.lab.topology().r();
        let app = App::start(self.args, r, &self.threads()?, &frame(self.args.size)?)?;
        ensure!(self.settled()?, "no frame gets through");
        let before = Sample::of(&app);
        let bywash = self.measure()?;
        let account = Sample::of(&app).since(&before, &app);
        app.stop()?;
        let peer = self.args.peer.as_ref().map(|command| self.lab.peer_by(command, || self.works(), || self.measure()));
        Ok(Round { bywash, peer: peer.transpose()?, account })
    }

    /// Returns the CPU of each thread of the application.
    fn threads(&self) -> anyhow::Result<Vec<usize>> {
        if self.args.tx_queues == 1 {
            return Ok(vec![self.lab.cpus[1]]);
        }
        // No source needs a CPU.
        let (queues, allowed) = (self.args.tx_queues, Host::this().allowed);
        ensure!(queues <= allowed.len(), "--tx-queues {queues}: only {} CPUs are available", allowed.len());
        Ok(allowed[..queues].to_vec())
    }

    fn measure(&self) -> anyhow::Result<Rate> {
        let time = Duration::from_secs(self.args.seconds);
        match self.args.app {
            // The application is the source.
            AfxdpApp::Txpush => Ok(Rate { mpps: rate(time, || self.count())?, ..Rate::default() }),
            _ => self.lab.measure_by(time, || self.count()),
        }
    }

    /// Returns the number of frames so far, as counted by the kernel.
    fn count(&self) -> anyhow::Result<u64> {
        match self.args.app {
            AfxdpApp::Rxdrop => redirected(&self.lab),
            _ => self.lab.arrived(),
        }
    }

    /// Returns true if frames currently get through.
    fn works(&self) -> anyhow::Result<bool> {
        let before = self.count()?;
        match self.args.app {
            AfxdpApp::Txpush => std::thread::sleep(Duration::from_millis(10)),
            _ => self.lab.probe()?,
        }
        Ok(self.count()? - before > SOME)
    }

    /// Waits until frames get through: a veth accepts frames only some time after a program is attached.
    fn settled(&self) -> anyhow::Result<bool> {
        for _ in 0..100 {
            if self.works()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns the number of frames that the receiving veth's program has redirected to a socket.
fn redirected(lab: &Lab) -> anyhow::Result<u64> {
    let said = lab.topology().r().run(&["ethtool", "-S", "r0"])?.stdout;
    let line = said.lines().find_map(|line| line.trim().strip_prefix("rx_queue_0_xdp_redirect:"));
    line.and_then(|n| n.trim().parse().ok()).context("`ethtool -S r0` counts no XDP redirects")
}

/// Returns the frame to send.
fn frame(size: usize) -> anyhow::Result<Vec<u8>> {
    let (from, to) = (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 19, 0, 1));
    let packet = Packet::udp(SocketAddr::from((from, 1024)), SocketAddr::from((to, 9)));
    // testpmd's default destination, which no station has, so that a stack drops the frame immediately.
    Ok(packet.macs(MacAddr([2, 0, 0, 0, 2, 1]), MacAddr([2, 0, 0, 0, 0, 0])).size(size).build()?)
}

/// Counters of the application at one time.
struct Sample {
    frames: u64,
    busy: u64,
    /// Time in user space and in the kernel.
    times: [u64; 2],
    system_calls: BTreeMap<&'static str, u64>,
    lost: BTreeMap<&'static str, u64>,
}

impl Sample {
    fn of(app: &App) -> Self {
        let sum = |of: fn(&PortCounters) -> u64| app.ports.iter().map(|port| of(&port.counters)).sum();
        Self {
            frames: app.work.iter().map(|work| work.frames.get()).sum(),
            busy: app.work.iter().map(|work| work.busy.get()).sum(),
            times: app
                .work
                .iter()
                .filter_map(|work| work.times())
                .fold([0, 0], |sum, t| [sum[0] + t[0], sum[1] + t[1]]),
            system_calls: BTreeMap::from([
                ("rx_wakeup", sum(|c| c.rx_wakeups.get())),
                ("tx_kick", sum(|c| c.tx_wakeups.get())),
                ("poll", sum(|c| c.polls.get())),
                ("busy_poll", sum(|c| c.busy_polls.get())),
            ]),
            lost: BTreeMap::from([
                ("rx_ring_full", sum(|c| c.rx_ring_full.get())),
                ("rx_no_buffer", sum(|c| c.rx_no_buffer.get())),
                ("tx_refused", sum(|c| c.tx_refused.get())),
                ("invalid", sum(|c| c.invalid.get())),
            ]),
        }
    }

    fn since(&self, before: &Self, app: &App) -> Account {
        let frames = (self.frames - before.frames).max(1) as f64;
        let [user, kernel] = [0, 1].map(|of| self.times[of].saturating_sub(before.times[of]) as f64);
        let calls = self.system_calls.iter().zip(before.system_calls.values());
        let lost = self.lost.iter().zip(before.lost.values());
        Account {
            got: app.ports.iter().map(|port| port.got.clone()).collect(),
            cycles_per_packet: (self.busy - before.busy) as f64 / frames,
            kernel_percent: 100.0 * kernel / (user + kernel).max(1.0),
            system_calls_per_packet: calls.map(|((name, now), then)| (*name, (now - then) as f64 / frames)).collect(),
            lost: lost.map(|((name, now), then)| (*name, now - then)).collect(),
            reordered: app.ports.iter().map(|port| port.counters.tx_reordered.get()).sum(),
        }
    }
}

fn print(f: &Figures) {
    let name = serde_json::to_value(f.app).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
    let rounds = count(f.rounds.len(), "round");
    println!("{name}, {} B, batch {}, medians of {rounds} of {} s", f.size, f.batch, f.seconds);
    for got in &f.got {
        println!("  {}", got.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", "));
    }
    println!(
        "  {:.3} Mpps, {:.0} cycles/packet; {:.0} % of its time in the kernel",
        f.mpps, f.cycles_per_packet, f.kernel_percent
    );
    let calls = f.system_calls_per_packet.iter().map(|(name, calls)| format!("{name} {calls:.4}"));
    println!("  system calls per packet: {}", calls.collect::<Vec<_>>().join(", "));
    let lost: Vec<String> = f.lost.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    if !lost.is_empty() {
        println!("  lost: {}", lost.join(", "));
    }
    if f.reordered > 0 {
        println!("  completed out of order: {} frames; in-order completion was disabled", f.reordered);
    }
    if let (Some(peer), Some(ratio)) = (f.peer_mpps, f.peer_ratio) {
        println!("  peer {peer:.3} Mpps: bywash has {ratio:.2} x its rate");
    }
}
