//! AF_XDP alone: frames received, sent and forwarded on veth, and what each knob gives.
//!
//! The lab is that of [`super::lab`]: the source is the kernel's live-frame generator on the first CPU, the application has
//! the second. Counted is by the kernel, whoever works: frames redirected to a socket for `rxdrop` (the veth's own count of
//! successful XDP redirects: a socket that is full refuses), frames that b's interface received for the others.

mod app;

use super::lab::{Lab, Rate, Traffic, rate};
use crate::cli::bench::{AfxdpApp, AfxdpArgs, AfxdpMode};
use anyhow::{Context as _, ensure};
use app::App;
use bywash_port::PortCounters;
use bywash_wire::build::Packet;
use bywash_wire::ethernet::MacAddr;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

#[derive(Serialize)]
struct Figures {
    app: AfxdpApp,
    mode: AfxdpMode,
    touch: bool,
    batch: usize,
    size: usize,
    seconds: u64,
    /// CPUs of the source and of the application.
    cpus: [usize; 2],
    /// What each port got.
    got: Vec<BTreeMap<&'static str, String>>,
    /// Median of the rounds, as everything below that is not a round's.
    mpps: f64,
    /// Of the application's thread in turns with frames, the kernel's share in them included.
    cycles_per_packet: f64,
    /// Of the application's time, what the kernel took.
    kernel_percent: f64,
    /// By reason.
    system_calls_per_packet: BTreeMap<&'static str, f64>,
    /// Frames that did not get through, by reason.
    lost: BTreeMap<&'static str, u64>,
    /// Frames that came back in another order, with in-order completion, since the start: it was given up then.
    reordered: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer_mpps: Option<f64>,
    /// Ours to the peer's: the median of the rounds' ratios.
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

/// What the application says of a round.
struct Account {
    got: Vec<BTreeMap<&'static str, String>>,
    cycles_per_packet: f64,
    kernel_percent: f64,
    system_calls_per_packet: BTreeMap<&'static str, f64>,
    lost: BTreeMap<&'static str, u64>,
    reordered: u64,
}

/// `bywash bench afxdp`.
pub fn run(args: &AfxdpArgs) -> anyhow::Result<()> {
    bywash_lab::require_lab().map_err(|why| anyhow::anyhow!("cannot build the lab: {why}"))?;
    let lab = Lab::new(Traffic::one_route(args.size))?.with_driver_sink()?;
    // A frame that is not taken by the application is not the kernel's to forward.
    lab.topology().r().sysctl("net/ipv4/ip_forward", "0")?;
    let bench = Bench { args, lab };
    let mut rounds = vec![];
    for _ in 0..args.rounds {
        rounds.push(bench.round()?);
    }
    let cpus = bench.lab.cpus;
    let peer_mpps = super::median(rounds.iter().filter_map(|r| Some(r.peer?.mpps)));
    let peer_ratio = super::median(rounds.iter().filter_map(|r| Some(r.bywash.mpps / r.peer?.mpps)));
    let mpps = super::median(rounds.iter().map(|r| r.bywash.mpps)).context("no round")?;
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
        let app = App::start(self.args, r, self.lab.cpus[1], &frame(self.args.size)?)?;
        ensure!(self.settled()?, "no frame gets through");
        let before = Sample::of(&app);
        let bywash = self.measure()?;
        let account = Sample::of(&app).since(&before, &app);
        app.stop()?;
        let peer = self.args.peer.as_ref().map(|command| self.lab.peer_by(command, || self.works(), || self.measure()));
        Ok(Round { bywash, peer: peer.transpose()?, account })
    }

    fn measure(&self) -> anyhow::Result<Rate> {
        let time = Duration::from_secs(self.args.seconds);
        match self.args.app {
            // Its own source.
            AfxdpApp::Txpush => Ok(Rate { mpps: rate(time, || self.count())?, offered_mpps: 0.0 }),
            _ => self.lab.measure_by(time, || self.count()),
        }
    }

    /// Frames so far, by the kernel's count.
    fn count(&self) -> anyhow::Result<u64> {
        match self.args.app {
            AfxdpApp::Rxdrop => redirected(&self.lab),
            _ => self.lab.arrived(),
        }
    }

    /// Whether frames get through now.
    fn works(&self) -> anyhow::Result<bool> {
        let before = self.count()?;
        match self.args.app {
            AfxdpApp::Txpush => std::thread::sleep(Duration::from_millis(10)),
            _ => self.lab.probe()?,
        }
        Ok(self.count()? - before > 500)
    }

    /// A veth takes a moment to say that it takes frames, once there is a program.
    fn settled(&self) -> anyhow::Result<bool> {
        for _ in 0..100 {
            if self.works()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Frames the receiving veth's program has given to a socket that took them.
fn redirected(lab: &Lab) -> anyhow::Result<u64> {
    let said = lab.topology().r().run(&["ethtool", "-S", "r0"])?.stdout;
    let line = said.lines().find_map(|line| line.trim().strip_prefix("rx_queue_0_xdp_redirect:"));
    line.and_then(|n| n.trim().parse().ok()).context("`ethtool -S r0` counts no XDP redirects")
}

/// The frame that is sent.
fn frame(size: usize) -> anyhow::Result<Vec<u8>> {
    let (from, to) = (Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 19, 0, 1));
    let packet = Packet::udp(SocketAddr::from((from, 1024)), SocketAddr::from((to, 9)));
    // The same addresses as testpmd sends to by default: nobody's, so that a stack drops the frame at first sight.
    Ok(packet.macs(MacAddr([2, 0, 0, 0, 2, 1]), MacAddr([2, 0, 0, 0, 0, 0])).size(size).build()?)
}

/// The application's counters at one time.
struct Sample {
    frames: u64,
    busy: u64,
    /// In user space and in the kernel.
    times: [u64; 2],
    system_calls: BTreeMap<&'static str, u64>,
    lost: BTreeMap<&'static str, u64>,
}

impl Sample {
    fn of(app: &App) -> Self {
        let sum = |of: fn(&PortCounters) -> u64| app.ports.iter().map(|port| of(&port.counters)).sum();
        Self {
            frames: app.work.frames.get(),
            busy: app.work.busy.get(),
            times: app.work.times().unwrap_or_default(),
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
    println!("{name}, {} B, batch {}, medians of {} rounds of {} s", f.size, f.batch, f.rounds.len(), f.seconds);
    for got in &f.got {
        println!("  {}", got.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", "));
    }
    println!(
        "  {:.3} Mpps, {:.0} cycles a packet; {:.0} % of its time in the kernel",
        f.mpps, f.cycles_per_packet, f.kernel_percent
    );
    let calls = f.system_calls_per_packet.iter().map(|(name, calls)| format!("{name} {calls:.4}"));
    println!("  system calls a packet: {}", calls.collect::<Vec<_>>().join(", "));
    let lost: Vec<String> = f.lost.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name} {n}")).collect();
    if !lost.is_empty() {
        println!("  lost: {}", lost.join(", "));
    }
    if f.reordered > 0 {
        println!("  completed in another order: {} frames, so not by order any more", f.reordered);
    }
    if let (Some(peer), Some(ratio)) = (f.peer_mpps, f.peer_ratio) {
        println!("  peer {peer:.3} Mpps: bywash has {ratio:.2} x its rate");
    }
}
