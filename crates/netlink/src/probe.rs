//! Requests neighbour resolution from the kernel.

use crate::parse::{Event, parse};
use crate::uapi::*;
use bywash_fib::model::Neighbour;
use bywash_nl::Error;
use bywash_nl::socket::{DATAGRAM, Received, Socket};
use bywash_nl::wake::Wake;
use bywash_nl::wire::{Message, Messages, NLM_F_ACK, NLM_F_CREATE, Request, u16_at, u32_at};
use bywash_sync::lock;
use rustix::io::Errno;
use rustix::net::netdevice::index_to_name;
use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Minimum interval between requests for one neighbour. The kernel itself solicits once a second (retrans_time), so
/// more requests would not help.
const INTERVAL: Duration = Duration::from_millis(500);
/// States in which the kernel does not resolve a neighbour. NTF_USE would end them.
const FIXED: u16 = NUD_PERMANENT | NUD_NOARP;
/// Neighbours whose last request is remembered; beyond that, the oldest may be requested again at once.
const REMEMBERED: usize = 16 << 10;

#[derive(Debug)]
struct Inner {
    socket: Socket,
    /// Receives the announcements of neighbours; read only around a request that could undo a permanent entry.
    events: Socket,
    requested: HashMap<(u32, IpAddr), Instant>,
    /// Keys of `requested` in the order of their requests.
    order: VecDeque<(u32, IpAddr)>,
    buffer: Vec<u8>,
    found: Arc<Found>,
}

/// Entries that the kernel had when it was asked to resolve them, for the thread that follows its tables: a dump of
/// neighbours may leave some out when the table changes meanwhile (neigh_dump_table), without a mark.
#[derive(Debug)]
pub(crate) struct Found {
    neighbours: Mutex<Vec<Neighbour>>,
    wake: Arc<Wake>,
}

impl Found {
    pub fn new(wake: Arc<Wake>) -> Self {
        Self { neighbours: Mutex::default(), wake }
    }

    pub fn take(&self) -> Vec<Neighbour> {
        std::mem::take(&mut lock(&self.neighbours))
    }

    fn add(&self, neighbour: Neighbour) {
        lock(&self.neighbours).push(neighbour);
        self.wake.wake();
    }
}

/// Requests resolution or confirmation of neighbours from the kernel. Clones share one socket and may be used from any
/// thread.
#[derive(Clone, Debug)]
pub struct Prober(Arc<Mutex<Inner>>);

impl Prober {
    pub(crate) fn open(found: Arc<Found>) -> Result<Self, Error> {
        let socket = Socket::open(&[], 256 << 10)?;
        let events = Socket::open(&[RTNLGRP_NEIGH], 1 << 20)?;
        Ok(Self(Arc::new(Mutex::new(Inner {
            socket,
            events,
            requested: HashMap::new(),
            order: VecDeque::new(),
            buffer: vec![0; DATAGRAM],
            found,
        }))))
    }

    /// Requests that the kernel resolve `addr` on interface `index`, or confirm it if it is stale (NTF_USE, as if the
    /// kernel had a packet to send). The result arrives as a change of the neighbour. Returns false if the last request
    /// was less than half a second ago or the kernel refuses (no such interface, neighbour table full, no
    /// CAP_NET_ADMIN).
    ///
    /// Runs on the calling thread and may wait for the kernel's configuration lock: never call it from a worker.
    pub fn probe(&self, index: u32, addr: IpAddr) -> bool {
        let mut inner = lock(&self.0);
        let Inner { socket, events, requested, order, buffer, found } = &mut *inner;
        let now = Instant::now();
        if requested.get(&(index, addr)).is_some_and(|last| now - *last < INTERVAL) {
            return false;
        }
        while let Some(oldest) = order.front() {
            let old = requested.get(oldest).is_none_or(|last| now - *last >= INTERVAL);
            if !old && order.len() < REMEMBERED {
                break;
            }
            requested.remove(oldest);
            order.pop_front();
        }
        requested.insert((index, addr), now);
        order.push_back((index, addr));
        let mut ask = |flags| ask(socket, buffer, |sequence| use_it(sequence, index, addr, flags));
        match ask(NLM_F_CREATE | NLM_F_EXCL) {
            Some(0) => return true,
            // The entry exists: confirm it unless it was made permanent, which NTF_USE would undo (__neigh_update).
            Some(code) if Errno::from_raw_os_error(-code) == Errno::EXIST => {}
            _ => return false,
        }
        let may = |entry: &Entry| {
            entry.neighbour.iter().filter(|known| known.mac.is_some()).for_each(|known| found.add(known.clone()));
            entry.state & FIXED == 0
        };
        let request = |sequence| use_it(sequence, index, addr, 0);
        change((socket, events), buffer, (index, addr), NLM_F_REPLACE, may, request)
    }

    /// Requests that the kernel stop resolving `addr` on interface `index` and delete the entry. Returns false if there
    /// is no such entry, it is resolved or permanent by now, or the kernel refuses. Like [`Prober::probe`], it must not
    /// be called from a worker.
    pub fn forget(&self, index: u32, addr: IpAddr) -> bool {
        let mut inner = lock(&self.0);
        let Inner { socket, events, requested, buffer, .. } = &mut *inner;
        requested.remove(&(index, addr));
        let delete = |sequence| {
            let request = Request::new(RTM_DELNEIGH, NLM_F_ACK, sequence, &body(index, addr, 0));
            destination(request, addr)
        };
        let may = |entry: &Entry| entry.state & !(NUD_INCOMPLETE | NUD_FAILED) == 0;
        change((socket, events), buffer, (index, addr), NLM_F_CREATE | NLM_F_REPLACE, may, delete)
    }
}

/// Sends a request, which the kernel answers within the send call. Returns the negative error number or 0; `None` if
/// there is no answer.
fn ask(socket: &mut Socket, buffer: &mut [u8], request: impl FnOnce(u32) -> Request) -> Option<i32> {
    let sent = socket.send(request);
    let mut code = None;
    while let Ok(Received::Datagram(length)) = socket.receive(buffer) {
        code = u32_at(&buffer[..length], 16).map(|code| code as i32);
    }
    sent.ok().and(code)
}

/// Sends a request that changes an entry, if there is one and it `may` be changed. Returns whether it was changed.
///
/// Netlink has no conditional request. If the entry was made permanent between the query and the request, the request
/// undid that: it is made permanent again, as announced, unless it was deleted since. `again` holds the flags of that
/// request: without `NLM_F_CREATE`, a deleted entry does not come back.
fn change(
    (socket, events): (&mut Socket, &Socket),
    buffer: &mut [u8],
    (index, addr): (u32, IpAddr),
    again: u16,
    may: impl Fn(&Entry) -> bool,
    request: impl FnOnce(u32) -> Request,
) -> bool {
    while !matches!(events.receive(buffer), Ok(Received::Empty) | Err(_)) {}
    let Some(Entry { port: own, .. }) = entry(socket, buffer, index, addr).filter(may) else { return false };
    if ask(socket, buffer, request) != Some(0) {
        return false;
    }
    let mut undone = None;
    while let Ok(received @ (Received::Datagram(_) | Received::Lost)) = events.receive(buffer) {
        let Received::Datagram(length) = received else { continue };
        for message in Messages::new(&buffer[..length]).filter(|message| is_about(message, index, addr)) {
            undone = after(&message, own).unwrap_or(undone);
        }
    }
    let Some(body) = undone else { return true };
    let name = index_to_name(&*socket, index).unwrap_or_else(|_| format!("interface {index}"));
    tracing::info!(
        "neighbour {addr} on {name} was made permanent while it was being probed; the probe undid this, and it has been \
         made permanent again"
    );
    ask(socket, buffer, |sequence| Request::new(RTM_NEWNEIGH, again | NLM_F_ACK, sequence, &body));
    false
}

/// Returns the permanent entry to be restored after the announcement of a neighbour's state: `Some(None)` if there is
/// none any more, `None` if the announcement changes nothing. `own` is the number of the socket that sends requests.
fn after(message: &Message<'_>, own: u32) -> Option<Option<Vec<u8>>> {
    let state = u16_at(message.body, 8).unwrap_or(NUD_NONE);
    match message.kind {
        RTM_NEWNEIGH if is_fixed(message.body) => Some(Some(message.body.to_vec())),
        // neigh_delete() announces this state first, with the socket that asked for the deletion.
        RTM_NEWNEIGH if state & NUD_FAILED != 0 && ![0, own].contains(&message.port) => Some(None),
        // The entry went with its interface or address: a deletion announces the last state.
        RTM_DELNEIGH if is_fixed(message.body) => Some(None),
        _ => None,
    }
}

/// Returns whether a neighbour message has a permanent or NOARP entry.
fn is_fixed(body: &[u8]) -> bool {
    u16_at(body, 8).is_some_and(|state| state & FIXED != 0)
}

/// Returns whether a message is about this neighbour.
fn is_about(message: &Message<'_>, index: u32, addr: IpAddr) -> bool {
    match parse(message) {
        Ok(Some(Event::Neighbour(there))) => (there.index, there.addr) == (index, addr),
        Ok(Some(Event::NeighbourGone(at, there))) => (at, there) == (index, addr),
        _ => false,
    }
}

/// An entry as the kernel shows it.
struct Entry {
    /// State (NUD_*).
    state: u16,
    /// `None` if the mirror does not follow such entries.
    neighbour: Option<Neighbour>,
    /// Number of the socket that asked (`nlmsg_pid`).
    port: u32,
}

/// Asks for an entry; `None` if there is none.
fn entry(socket: &mut Socket, buffer: &mut [u8], index: u32, addr: IpAddr) -> Option<Entry> {
    let asked =
        socket.send(|sequence| destination(Request::new(RTM_GETNEIGH, 0, sequence, &body(index, addr, 0)), addr));
    let mut found = None;
    while let Ok(Received::Datagram(length)) = socket.receive(buffer) {
        for message in Messages::new(&buffer[..length]).filter(|message| message.kind == RTM_NEWNEIGH) {
            let neighbour = match parse(&message) {
                Ok(Some(Event::Neighbour(neighbour))) => Some(neighbour),
                _ => None,
            };
            found = u16_at(message.body, 8).map(|state| Entry { state, neighbour, port: message.port });
        }
    }
    asked.ok().and(found)
}

fn use_it(sequence: u32, index: u32, addr: IpAddr, flags: u16) -> Request {
    let body = body(index, addr, NTF_USE);
    destination(Request::new(RTM_NEWNEIGH, flags | NLM_F_ACK, sequence, &body), addr)
}

/// Returns a struct ndmsg.
fn body(index: u32, addr: IpAddr, flags: u8) -> [u8; 12] {
    let mut body = [0; 12];
    body[0] = if addr.is_ipv4() { AF_INET } else { AF_INET6 };
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..10].copy_from_slice(&NUD_NONE.to_ne_bytes());
    body[10] = flags;
    body
}

fn destination(request: Request, addr: IpAddr) -> Request {
    match addr {
        IpAddr::V4(addr) => request.attribute(NDA_DST, &addr.octets()),
        IpAddr::V6(addr) => request.attribute(NDA_DST, &addr.octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 7;
    const OTHER: u32 = 8;

    /// Returns whether a permanent entry is to be restored after these announcements: type, state and socket of each.
    fn restored(announced: &[(u16, u16, u32)]) -> bool {
        let mut undone = None;
        for &(kind, state, port) in announced {
            let mut body = body(1, IpAddr::from([10, 0, 0, 1]), 0);
            body[8..10].copy_from_slice(&state.to_ne_bytes());
            let message = Message { kind, flags: 0, sequence: 0, port, body: &body };
            undone = after(&message, OWN).unwrap_or(undone);
        }
        undone.is_some()
    }

    #[test]
    fn only_what_the_request_undid_is_restored() {
        let made = (RTM_NEWNEIGH, NUD_PERMANENT, OTHER);
        let deleted = |by| [(RTM_NEWNEIGH, NUD_FAILED, by), (RTM_DELNEIGH, NUD_FAILED, 0)];
        assert!(!restored(&deleted(OWN)));
        assert!(restored(&[made]));
        assert!(restored(&[&[made][..], &deleted(OWN)].concat()));
        assert!(restored(&[&deleted(OTHER)[..], &[made]].concat()));
        // Resolution may fail at once: announced for no socket.
        assert!(restored(&[made, (RTM_NEWNEIGH, NUD_FAILED, 0)]));
        assert!(!restored(&[&[made][..], &deleted(OTHER)].concat()));
        assert!(!restored(&[made, (RTM_DELNEIGH, NUD_PERMANENT, 0)]));
        assert!(restored(&[made, (RTM_DELNEIGH, NUD_PERMANENT, 0), made]));
    }
}
