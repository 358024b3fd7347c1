//! `bywash gen`: sends frames at an exact rate and measures loss, order and latency.

use super::kernel::Kernel;
use super::ports::{self, Wanted};
use super::{print, raise_priority, stopped_by_signals};
use crate::cli::tester::{GenArgs, Via};
use crate::error::Usage;
use crate::stdout::stdout;
use anyhow::{bail, ensure};
use bywash_port::af_xdp::takes_frames;
use bywash_port::pcap::PcapSource;
use bywash_tester::{Lane, LaneResult, Length, Sizes, Stream, Templates, Trial, wire_bits};
use bywash_wire::ethernet::MacAddr;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::sync::Arc;

/// Maximum delay in nanoseconds that a sender which was kept from its CPU makes up for: 10 ms.
const CATCH_UP: u64 = 10_000_000;
/// Destination MAC address if neither receiver nor gateway is given: an address that no device has.
const NOBODY: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const SECOND: u64 = 1_000_000_000;

#[derive(Serialize)]
struct Figures<'a> {
    /// Transmit method of each lane.
    via: Vec<&'static str>,
    /// Mean frame size, FCS included.
    size: f64,
    flows: usize,
    lanes: &'a [LaneResult],
}

/// Runs `bywash gen`.
pub fn run(args: &GenArgs) -> anyhow::Result<()> {
    if args.rx.len() > 1 && args.rx.len() != args.interfaces.len() {
        let (n, m) = (args.rx.len(), args.interfaces.len());
        bail!(Usage(format!("--rx is given {n} times for {m} interfaces: give it once, or once for each interface")));
    }
    let listed = &args.interfaces;
    if let Some(twice) = listed.iter().enumerate().find(|(i, name)| listed[..*i].contains(name)) {
        bail!(Usage(format!("interface `{}` is listed twice", twice.1)));
    }
    if args.pcap.is_some() && !args.rx.is_empty() && distinct(args.rx.iter()).len() < listed.len() {
        bail!(Usage(
            "--pcap with one --rx for several interfaces: replayed frames are only counted, which does not show whose \
             are lost: give each interface an --rx of its own"
                .into()
        ));
    }
    let names = distinct(args.interfaces.iter().chain(&args.rx));
    let replay = args.pcap.as_ref().map(PcapSource::load).transpose()?;
    let replay = replay.and_then(|source| Templates::replay(source.frames().collect())).map(Arc::new);
    bywash_daemon::privileges::check()?;
    let sizes = if args.imix { Sizes::imix() } else { args.size.clone() };
    let longest = replay.as_ref().map_or(sizes.largest(), |frames| frames.longest());
    // Foreign addresses, VLAN tags or replayed frames: the XDP program must not filter.
    let raw = args.vlan.is_some() || args.dst_mac.is_some() || args.pcap.is_some();
    let wanted: Vec<Wanted> =
        names.iter().map(|name| Wanted { name: (*name).clone(), receives: args.rx.contains(name), raw }).collect();
    raise_priority();
    let stop = stopped_by_signals()?;
    let gateway = args.gateway.map(ports::neighbour).transpose()?;
    let mut opened = ports::open(&wanted, longest)?;
    let place = |name: &String| names.iter().position(|n| *n == name);
    let lanes = args.interfaces.iter().enumerate().map(|(from, name)| {
        let to = args.rx.get(from).or(args.rx.first()).and_then(place);
        let templates = match &replay {
            Some(replay) => replay.clone(),
            None => {
                let rx_mac = to.map(|to| MacAddr(opened.links[to].mac));
                let stream = Stream {
                    src_mac: args.src_mac.unwrap_or(MacAddr(opened.links[from].mac)),
                    dst_mac: args.dst_mac.or(gateway).or(rx_mac).unwrap_or(NOBODY),
                    vlan: args.vlan,
                    src: args.src,
                    dst: args.dst,
                    src_port: args.src_port,
                    dst_port: args.dst_port,
                    flows: args.flows,
                    random: args.random.then_some(1),
                    sizes: sizes.clone(),
                    ttl: args.ttl,
                };
                let stream = if args.imix { stream.with_room() } else { stream };
                Arc::new(stream.templates().map_err(|e| Usage(e.to_string()))?)
            }
        };
        let pps = args.rate.pps(templates.mean_size(), ports::speed(name));
        let pps = pps.map_err(|why| Usage(format!("interface `{name}`: {why}")))?;
        Ok(Lane { from, to, templates, pps, burst: args.burst as u64, change: None, share: 1.0 })
    });
    let lanes = lanes.collect::<anyhow::Result<Vec<Lane>>>()?;
    let sizes: Vec<f64> = lanes.iter().map(|lane| lane.templates.mean_size()).collect();
    let mut methods = vec![];
    for lane in &lanes {
        let method = transmit_method(args, &opened, lane)?;
        if method == Via::Kernel {
            let source = Kernel::new(&args.interfaces[lane.from], &lane.templates)?;
            opened.bench.set_source(lane.from, Some(Box::new(source)));
        }
        methods.push(if method == Via::Kernel { "kernel" } else { "socket" });
    }
    let length = match (args.count, args.seconds) {
        (Some(frames), _) => Length::Frames(frames),
        (None, Some(seconds)) => Length::Time((seconds * 1e9) as u64),
        // Ten years, that is, until Ctrl-C.
        (None, None) => Length::Time(10 * 365 * 86400 * SECOND),
    };
    let mut progress = Progress::new(wire_bits(sizes[0]));
    let results = opened.bench.run(&mut Trial {
        lanes,
        length,
        drain: args.drain * 1_000_000,
        catch_up: CATCH_UP,
        event: None,
        stop: &stop,
        progress: &mut |time, counts| progress.tell(time, counts),
    });
    progress.end();
    let results = results?;
    if args.json {
        let figures = Figures { via: methods, size: sizes[0], flows: args.flows, lanes: &results };
        writeln!(stdout(), "{}", serde_json::to_string(&figures)?)?;
    } else {
        for (result, size) in results.iter().zip(&sizes) {
            write!(stdout(), "{}", print::lane(result, *size))?;
        }
    }
    hint(args, &results);
    let sent: u64 = results.iter().map(|r| r.sent).sum();
    ensure!(sent > 0, "nothing was sent: the ports accepted no frame");
    Ok(())
}

/// Returns each name once, in the order in which they first occur.
fn distinct<'a>(all: impl Iterator<Item = &'a String>) -> Vec<&'a String> {
    let mut names = vec![];
    for name in all {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Returns the transmit method of a lane, which is never [`Via::Auto`].
fn transmit_method(args: &GenArgs, opened: &ports::Ports, lane: &Lane) -> anyhow::Result<Via> {
    if lane.templates.is_replay() || (args.burst > 1 && lane.pps.is_some()) {
        ensure!(
            args.via != Via::Kernel,
            Usage("--via kernel supports neither bursts nor replay: use --via socket".into())
        );
        return Ok(Via::Socket);
    }
    let link = &opened.links[lane.from];
    Ok(match args.via {
        Via::Auto if lane.pps.is_none() && !opened.zero_copy[lane.from] && takes_frames(link.index) == Some(true) => {
            Via::Kernel
        }
        Via::Auto => Via::Socket,
        via => via,
    })
}

/// Logs the likely cause for each lane that sent frames and received none.
fn hint(args: &GenArgs, results: &[LaneResult]) {
    for r in results.iter().filter(|r| r.sent > 0 && r.received == 0) {
        match &r.to {
            Some(to) if *to == r.from => tracing::warn!(
                "nothing came back: `{to}` both sends and receives, so the device must return frames through the \
                 port they arrived on"
            ),
            Some(to) if args.gateway.is_none() && args.dst_mac.is_none() => tracing::warn!(
                "nothing arrived at `{to}`: if the device is a router, give its sending-side address by --gateway"
            ),
            Some(to) => tracing::warn!("nothing arrived at `{to}`: does the device have a route to the destination?"),
            None => {}
        }
    }
}

/// Progress line on the terminal, updated every second.
struct Progress {
    shown: bool,
    bits: f64,
    next: u64,
    last: (u64, u64, u64),
}

impl Progress {
    fn new(bits: f64) -> Self {
        Self { shown: std::io::stderr().is_terminal(), bits, next: SECOND, last: (0, 0, 0) }
    }

    fn tell(&mut self, time: u64, counts: &[(u64, u64)]) {
        if !self.shown || time < self.next {
            return;
        }
        self.next = time + SECOND;
        let (sent, received) = counts.iter().fold((0, 0), |sum, c| (sum.0 + c.0, sum.1 + c.1));
        let seconds = (time - self.last.0) as f64 / 1e9;
        let [tx, rx] = [sent - self.last.1, received - self.last.2].map(|n| n as f64 / seconds);
        let line = format!(
            "{:5.0} s  sent {}pps ({}bit/s), received {}pps",
            time as f64 / 1e9,
            print::scaled(tx),
            print::scaled(tx * self.bits),
            print::scaled(rx)
        );
        // Ignore errors: there is no other place to report them.
        let _ = write!(std::io::stderr(), "\r{line}\x1b[K");
        self.last = (time, sent, received);
    }

    fn end(&self) {
        if self.shown && self.last.0 > 0 {
            let _ = writeln!(std::io::stderr());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_interface_is_opened_once() {
        let all = ["a", "b", "x", "c", "d", "c", "b", "d"].map(String::from);
        assert_eq!(distinct(all.iter()), ["a", "b", "x", "c", "d"]);
    }
}
