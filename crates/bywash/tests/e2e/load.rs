//! Load of numbered packets, to count those that are lost or duplicated and to measure gaps.

use crate::harness::bound;
use bywash_lab::{Namespace, Topology};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

const PORT: u16 = 7007;
/// Number of flows, each to a destination address of its own.
pub const FLOWS: u64 = 1000;
/// Packets a second, unless BYWASH_LOAD says otherwise: so few that a veth's queue of 256 holds the packets of a tenth
/// of a second, for which a busy machine may keep their receiver from running.
const RATE: u32 = 2_000;
/// Milliseconds of packets that the sender sends at once after it was kept from running.
const CATCH_UP_MS: u32 = 3;

/// Returns the default rate in packets a second: BYWASH_LOAD, or [`RATE`].
pub fn rate() -> u32 {
    std::env::var("BYWASH_LOAD").ok().map_or(RATE, |text| text.parse().expect("BYWASH_LOAD is a rate"))
}

/// Receiver of one load.
pub struct Receiver {
    socket: UdpSocket,
    /// First two bytes of the load's packets: those of an earlier one may arrive late.
    pub load: u16,
}

/// Returns the receiver of a new load, with a read timeout of 100 ms.
pub fn receiver(namespace: &Namespace) -> Receiver {
    static LOADS: AtomicU16 = AtomicU16::new(0);
    let socket = bound(namespace, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)));
    // The buffer holds the packets that arrive while a busy machine keeps the reader from running.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    Receiver { socket, load: LOADS.fetch_add(1, Ordering::Relaxed) }
}

/// Sends packet `n` of a load along flow `n` modulo [`FLOWS`], at `rate`, until `stop`; returns the number of packets
/// sent.
pub fn send(namespace: &Namespace, load: u16, rate: u32, stop: &AtomicBool) -> u64 {
    let socket = namespace.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap().unwrap();
    let at_once = u64::from(rate * CATCH_UP_MS / 1000).max(32);
    let (started, mut base, mut sent) = (Instant::now(), 0, 0u64);
    while !stop.load(Ordering::Relaxed) {
        let due = (started.elapsed().as_secs_f64() * f64::from(rate)) as u64 - base;
        if due > sent + at_once {
            base += due - sent - at_once;
        }
        let until = due.min(sent + at_once);
        while sent < until {
            let flow = (sent % FLOWS) as u16;
            let to = Ipv4Addr::new(44, 0, (flow >> 8) as u8, flow as u8);
            let number = u64::from(load) << 48 | sent;
            socket.send_to(&number.to_be_bytes(), SocketAddr::from((to, PORT))).unwrap();
            sent += 1;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    sent
}

/// Receives the next packet of the load and returns its number; `None` if none arrives within the socket's timeout.
pub fn next(receiver: &Receiver) -> Option<u64> {
    loop {
        let mut number = [0; 8];
        receiver.socket.recv(&mut number).ok()?;
        let number = u64::from_be_bytes(number);
        if number >> 48 == u64::from(receiver.load) {
            return Some(number & ((1 << 48) - 1));
        }
    }
}

/// Sets the flag that ends the sender when dropped, also on panic.
pub struct Stops<'a>(pub &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Packets sent, and the fate of those that did not arrive exactly once.
#[derive(Debug)]
pub struct Loss {
    pub sent: u64,
    pub lost: u64,
    pub twice: u64,
    /// Longest time between the arrivals of two packets.
    pub gap: Duration,
}

/// Routes the flows from host a through the router to host b.
pub fn route(lab: &Topology) {
    lab.r().ip(&["route", "add", "44.0.0.0/8", "via", &lab.b().v4.to_string()]).unwrap();
    lab.b().ns.ip(&["route", "add", "local", "44.0.0.0/8", "dev", "lo"]).unwrap();
}

/// Sends from host a to host b at `rate` while `body` runs.
pub fn during<T>(lab: &Topology, rate: u32, body: impl FnOnce() -> T) -> (T, Loss) {
    between(&lab.a().ns, &lab.b().ns, rate, body)
}

/// Sends from one namespace to another at `rate` while `body` runs.
pub fn between<T>(from: &Namespace, to: &Namespace, rate: u32, body: impl FnOnce() -> T) -> (T, Loss) {
    let (receiver, stop) = (receiver(to), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(from, receiver.load, rate, &stop));
        let reader = scope.spawn(|| {
            let (mut seen, mut gap, mut last) = (Vec::<u8>::new(), Duration::ZERO, None);
            loop {
                let Some(number) = next(&receiver) else {
                    if stop.load(Ordering::Relaxed) {
                        return (seen, gap);
                    }
                    continue;
                };
                let now = Instant::now();
                gap = last.map_or(gap, |last| gap.max(now - last));
                last = Some(now);
                let at = number as usize;
                seen.resize(seen.len().max(at + 1), 0);
                seen[at] += 1;
            }
        });
        let result = {
            let _stops = Stops(&stop);
            body()
        };
        let (sent, (seen, gap)) = (sender.join().unwrap(), reader.join().unwrap());
        let lost = sent - seen.iter().filter(|times| **times > 0).count() as u64;
        let twice = seen.iter().filter(|times| **times > 1).count() as u64;
        (result, Loss { sent, lost, twice, gap })
    })
}
