//! Load of numbered packets, to count those that are lost or duplicated and to measure gaps.

use crate::harness::bound;
use bywash_lab::{Namespace, Topology};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
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

/// Time for which other processes keep a sender from running on a busy machine.
const BUSY: Duration = Duration::from_millis(20);

/// Sends packet `n` of a load along flow `n` modulo [`FLOWS`], at `rate`, until `stop`; returns the number of packets
/// sent, and whether the machine is so busy that other threads may have been kept from running, too.
pub fn send(namespace: &Namespace, load: u16, rate: u32, stop: &AtomicBool) -> (u64, bool) {
    let socket = namespace.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))).unwrap().unwrap();
    let at_once = u64::from(rate * CATCH_UP_MS / 1000).max(32);
    let (started, mut base, mut sent) = (Instant::now(), 0, 0u64);
    let (mut last, mut busy) = (started, false);
    while !stop.load(Ordering::Relaxed) {
        busy |= last.elapsed() > BUSY;
        last = Instant::now();
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
    (sent, busy)
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

/// Number of packets of a load, which is known once its sender has ended.
pub struct Ending(AtomicU64);

impl Ending {
    pub fn new() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    /// Tells the receiver how many packets were sent.
    pub fn set(&self, sent: u64) {
        self.0.store(sent, Ordering::Relaxed);
    }

    /// Returns whether the receiver may end: when `seen` packets have arrived, the last of them at `last`.
    pub fn is_reached(&self, seen: u64, last: Instant) -> bool {
        let sent = self.0.load(Ordering::Relaxed);
        // A busy machine may keep the others on their way for a while.
        sent != u64::MAX && (seen >= sent || last.elapsed() > Duration::from_secs(3))
    }
}

/// Lets the receiver end when dropped on panic.
pub struct Ends<'a>(pub &'a Ending);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.set(0);
        }
    }
}

/// Returns the number of packets that the interfaces of these namespaces have dropped, because queues had no room or
/// there was no way on.
pub fn dropped(namespaces: &[&Namespace]) -> u64 {
    let of = |ns: &&Namespace| {
        let links: serde_json::Value = serde_json::from_str(&ns.ip(&["-j", "-s", "link"]).unwrap().stdout).unwrap();
        let sides = links.as_array().unwrap().iter().flat_map(|link| ["rx", "tx"].map(|side| &link["stats64"][side]));
        sides.map(|side| side["dropped"].as_u64().unwrap()).sum::<u64>()
    };
    namespaces.iter().map(of).sum()
}

/// Packets sent, and the fate of those that did not arrive exactly once.
#[derive(Debug)]
pub struct Loss {
    pub sent: u64,
    pub lost: u64,
    pub twice: u64,
    /// Packets that the kernel dropped at the interfaces on the way, if the machine is so busy that it may not have
    /// emptied their queues in time.
    pub dropped: u64,
    /// Longest time between the arrivals of two packets.
    pub gap: Duration,
}

impl Loss {
    /// Returns the number of lost packets that a busy machine does not explain, of whose frames a port has lost
    /// `starved` ([`Bywash::starved`](crate::harness::Bywash::starved)).
    pub fn unexplained(&self, starved: u64) -> u64 {
        self.lost.saturating_sub(self.dropped + starved)
    }
}

/// Routes the flows from host a through the router to host b.
pub fn route(lab: &Topology) {
    lab.r().ip(&["route", "add", "44.0.0.0/8", "via", &lab.b().v4.to_string()]).unwrap();
    lab.b().ns.ip(&["route", "add", "local", "44.0.0.0/8", "dev", "lo"]).unwrap();
}

/// Sends from host a to host b at `rate` while `body` runs.
pub fn during<T>(lab: &Topology, rate: u32, body: impl FnOnce() -> T) -> (T, Loss) {
    between(&lab.a().ns, &[lab.r()], &lab.b().ns, rate, body)
}

/// Sends from one namespace through others to another at `rate` while `body` runs.
pub fn between<T>(
    from: &Namespace,
    through: &[&Namespace],
    to: &Namespace,
    rate: u32,
    body: impl FnOnce() -> T,
) -> (T, Loss) {
    let all = [through, &[from, to]].concat();
    let (receiver, stop, ending) = (receiver(to), AtomicBool::new(false), Ending::new());
    let before = dropped(&all);
    let (result, (sent, busy), (seen, gap)) = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send(from, receiver.load, rate, &stop));
        let reader = scope.spawn(|| {
            let (mut seen, mut gap, mut last, mut some) = (Vec::<u8>::new(), Duration::ZERO, Instant::now(), 0);
            loop {
                let Some(number) = next(&receiver) else {
                    if ending.is_reached(some, last) {
                        return (seen, gap);
                    }
                    continue;
                };
                let now = Instant::now();
                gap = if some > 0 { gap.max(now - last) } else { gap };
                last = now;
                let at = number as usize;
                seen.resize(seen.len().max(at + 1), 0);
                some += u64::from(seen[at] == 0);
                seen[at] += 1;
            }
        });
        let _ends = Ends(&ending);
        let result = {
            let _stops = Stops(&stop);
            body()
        };
        let sent = sender.join().unwrap();
        ending.set(sent.0);
        (result, sent, reader.join().unwrap())
    });
    let lost = sent - seen.iter().filter(|times| **times > 0).count() as u64;
    let twice = seen.iter().filter(|times| **times > 1).count() as u64;
    let dropped = if busy { dropped(&all).saturating_sub(before) } else { 0 };
    (result, Loss { sent, lost, twice, dropped, gap })
}
