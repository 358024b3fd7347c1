//! Custom router on two workers: forwards IPv4 and IPv6 by the kernel's routes. Everything that it does not forward is
//! the kernel's, by a twin of each port: packets to the router itself, unresolved neighbours, expired TTLs.
//!
//!     sudo -E cargo run -p bywash-examples --example own_router -- /run/own_router.sock eth0 eth1
//!
//! Addresses and routes go to the twins, `twin0` and `twin1`: the kernel receives nothing on the interfaces themselves.

use bywash_engine::{App, Context, DropReason, PortId};
use bywash_frame::Batch;
use bywash_kit::tables::{Kind, Tables};
use bywash_kit::{Kit, Routes};
use bywash_wire::{ethernet::HEADER_LEN, ipv4, ipv6};
use std::error::Error;
use std::time::Duration;

const WORKERS: usize = 2;
/// Buffers for the queues of an interface.
const BUFFERS: usize = WORKERS * 8192;

struct Router {
    routes: Routes,
}

/// Destination of a frame.
enum Destination {
    Port(PortId),
    Kernel,
    /// The frame is for another host: the port is promiscuous.
    Nowhere,
}

/// Lowers the TTL or hop limit of a valid packet. Returns false if it must not be forwarded, or is not as usual.
fn lower(ip: &mut [u8]) -> bool {
    if ipv4::check(ip).is_ok_and(|info| usize::from(info.header_len) == ipv4::HEADER_LEN) {
        return ip.first_chunk_mut().is_some_and(ipv4::decrement_ttl);
    }
    ipv6::check(ip).is_ok() && ip.first_chunk_mut().is_some_and(ipv6::decrement_hop_limit)
}

/// Finds the destination of a frame, which is rewritten if it is forwarded.
fn route(tables: &Tables, from: PortId, frame: &mut [u8]) -> Destination {
    if !frame.starts_with(&tables.ports[usize::from(from.0)].mac) {
        return Destination::Nowhere;
    }
    let hop = *tables.next_hop(frame);
    let fits = frame.len() <= HEADER_LEN + hop.mtu as usize;
    if hop.kind != Kind::Forward || !fits || !lower(&mut frame[HEADER_LEN..]) {
        return Destination::Kernel;
    }
    frame[..hop.macs.len()].copy_from_slice(&hop.macs);
    Destination::Port(hop.port)
}

impl App for Router {
    fn stages(&self) -> &'static [&'static str] {
        &["route"]
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let (n, tables) = (batch.len(), self.routes.load(cx.reader));
        for mut frame in batch.drain() {
            match route(tables, from, cx.bufs.arena().data_mut(&mut frame)) {
                Destination::Port(to) => cx.send(from, to, frame),
                // The number of a twin is that after its port's: see below.
                Destination::Kernel => cx.send(from, PortId(from.0 + 1), frame),
                Destination::Nowhere => cx.drop(from, DropReason::Filtered, frame),
            }
        }
        cx.stage(0, n);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, interfaces @ ..] = &arguments[..] else { return Err("usage: own_router SOCKET INTERFACE...".into()) };
    let mut kit = Kit::new(BUFFERS * interfaces.len())?;
    kit.workers(WORKERS);
    for (number, interface) in interfaces.iter().enumerate() {
        let port = kit.interface(interface)?;
        kit.twin(port, &format!("twin{number}"))?;
    }
    let routes = kit.routes()?;
    let mut running = kit.start_with(|_worker| Router { routes: routes.clone() })?;
    running.serve(socket)?;
    println!("routing; `bywash show ports --socket {socket}` shows the ports; press Enter to stop");
    let stop = std::thread::spawn(|| std::io::stdin().read_line(&mut String::new()));
    while !stop.is_finished() && !running.failed() {
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(running.stop()?)
}
