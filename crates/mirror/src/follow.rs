//! The mirror's thread: hears the kernel, reads its tables again when they may have changed silently or messages were
//! lost, and reports.
//!
//! Dumps come over a socket of their own. Notifications that arrive meanwhile are put by as they are and taken in
//! after it: one that the dump has overtaken is then followed by all that came after it, so the end is right in
//! whatever order the kernel wrote the two. The other way round, a dump's datagram could bring back what a
//! notification had already removed.

use crate::error::Error;
use crate::kernel::{Kernel, Origin, Scope};
use crate::parse::{Event, parse};
use crate::socket::{DATAGRAM, Dumped, Received, Socket};
use crate::stats::Stats;
use crate::uapi::*;
use crate::wire::{Message, Messages};
use bywash_route::model::Change;
use std::time::{Duration, Instant};

/// Datagrams taken from the socket before changes are reported.
const TURN: usize = 8192;
/// Notifications put by during a dump, in octets; beyond that the socket's own buffer holds them, and may overflow.
const PUT_BY: usize = 256 << 20;
/// A dump that is interrupted so often is taken as it is, nothing removed, and asked for again later.
const TRIES: u32 = 5;
/// How long after a dump of IPv6 routes that was disturbed the next one is taken, at the least.
const DISTURBED: Duration = Duration::from_secs(1);
/// Changes after which a dump under way reports.
const REPORT_AT: usize = 1 << 16;

/// The kernel as followed by one thread.
#[derive(Debug)]
pub struct Follower {
    heard: Socket,
    asked: Socket,
    kernel: Kernel,
    /// Notifications put by during a dump, one after the other.
    log: Vec<u8>,
    buffer: Vec<u8>,
    dump_buffer: Vec<u8>,
    /// What is followed at all.
    follows: Scope,
    wanted: Scope,
    /// Whether the next reading ends with [`Change::Synced`].
    announce: bool,
    /// IPv6 routes changed while they were dumped.
    disturbed: bool,
    due: Option<Instant>,
    settle: Duration,
    ended: Instant,
    took: Duration,
    pub stats: Stats,
}

impl Follower {
    /// Subscribes, in the calling thread's network namespace: to all, or only to links and their addresses. Nothing is read
    /// yet.
    pub fn new(receive_buffer: usize, settle: Duration, routes: bool) -> Result<Self, Error> {
        let (groups, follows): (&[u32], _) = match routes {
            true => (&crate::socket::GROUPS, Scope::ALL),
            false => (&crate::socket::LINK_GROUPS, Scope::LINKS | Scope::ADDRESSES),
        };
        let heard = Socket::open(groups, receive_buffer)?;
        let asked = Socket::open(&[], 1 << 20)?;
        Ok(Self {
            heard,
            asked,
            kernel: Kernel::default(),
            log: Vec::new(),
            buffer: vec![0; DATAGRAM],
            dump_buffer: vec![0; DATAGRAM],
            follows,
            wanted: Scope::NONE,
            announce: false,
            disturbed: false,
            due: None,
            settle,
            ended: Instant::now(),
            took: Duration::ZERO,
            stats: Stats::default(),
        })
    }

    /// The socket to wait on.
    pub fn heard(&self) -> &Socket {
        &self.heard
    }

    /// When the tables are to be read again.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Everything is to be read again, and the end of it announced.
    pub fn want_all(&mut self) {
        self.announce = true;
        self.want(Scope::ALL);
    }

    fn want(&mut self, scope: Scope) {
        let scope = scope.and(self.follows);
        if scope.is_empty() {
            return;
        }
        self.wanted.add(scope);
        // Whatever happens, two thirds of the time is left for what is heard.
        let rest = self.ended + 2 * self.took;
        self.due.get_or_insert_with(|| (Instant::now() + self.settle).max(rest));
    }

    /// Takes in what has been heard, and reports; returns whether there may be more.
    pub fn hear(&mut self, emit: &mut dyn FnMut(Change)) -> Result<bool, Error> {
        for _ in 0..TURN {
            match self.heard.receive(&mut self.buffer)? {
                Received::Empty => return Ok(false),
                Received::Lost => {
                    self.stats.overflows += 1;
                    self.want_all();
                }
                Received::Datagram(length) => {
                    let datagram = std::mem::take(&mut self.buffer);
                    self.take_in(&datagram[..length], Origin::Live, emit);
                    self.buffer = datagram;
                }
            }
        }
        Ok(true)
    }

    /// Reports what has changed.
    pub fn report(&mut self, emit: &mut dyn FnMut(Change)) {
        self.kernel.report(emit);
        self.stats.warnings = self.kernel.warnings();
        [
            self.stats.links,
            self.stats.addresses,
            self.stats.routes4,
            self.stats.routes6,
            self.stats.neighbours,
            self.stats.route_bodies,
        ] = self.kernel.sizes();
    }

    /// Reads again what is wanted. `emit` gets the differences; those of a large table while it is being read.
    pub fn read(&mut self, emit: &mut dyn FnMut(Change)) -> Result<(), Error> {
        let (scope, announce) = (std::mem::take(&mut self.wanted), std::mem::take(&mut self.announce));
        self.due = None;
        let began = Instant::now();
        self.kernel.begin(scope);
        // Links first, always: that dump waits for the lock under which the kernel is still clearing routes, perhaps,
        // for a link that has already been reported down. The others do not all wait for it.
        for kind in [
            Scope::LINKS,
            Scope::RULES,
            Scope::ADDRESSES,
            Scope::OBJECTS,
            Scope::ROUTES4,
            Scope::ROUTES6,
            Scope::NEIGHBOURS,
        ] {
            if kind == Scope::LINKS || scope.has(kind) {
                self.dump(kind, emit)?;
            }
        }
        let log = std::mem::take(&mut self.log);
        for datagram in datagrams(&log) {
            self.take_in(datagram, Origin::Replay, emit);
        }
        self.ended = Instant::now();
        self.took = self.ended - began;
        self.stats.readings += 1;
        self.stats.last_reading_ms = self.took.as_secs_f64() * 1e3;
        // Wanted while reading: no sooner than a rest from now.
        if let Some(due) = &mut self.due {
            *due = (*due).max(self.ended + 2 * self.took);
        }
        if std::mem::take(&mut self.disturbed) {
            self.wanted.add(Scope::ROUTES6);
            self.due.get_or_insert(self.ended + DISTURBED.max(9 * self.took));
        }
        if announce {
            self.stats.resyncs += 1;
            self.report(emit);
            emit(Change::Synced);
        }
        Ok(())
    }

    fn dump(&mut self, kind: Scope, emit: &mut dyn FnMut(Change)) -> Result<(), Error> {
        for _ in 0..TRIES {
            let mut whole = true;
            let before = self.log.len();
            for (request, family) in requests(kind) {
                match self.dump_once(*request, *family, emit)? {
                    Dumped::Whole | Dumped::Unsupported => {}
                    Dumped::Interrupted => whole = false,
                }
            }
            if whole {
                // When the tree changes, the kernel goes on with the dump of IPv6 routes by counting those already
                // shown (fib6_dump_table), and may leave some out without saying so.
                let quiet = kind != Scope::ROUTES6 || (!routes6_in(&self.log[before..]) && !self.announce);
                self.kernel.finish(kind, quiet);
                self.disturbed |= !quiet;
                return Ok(());
            }
            self.stats.interrupted += 1;
        }
        self.want(kind);
        Ok(())
    }

    fn dump_once(&mut self, request: u16, family: u8, emit: &mut dyn FnMut(Change)) -> Result<Dumped, Error> {
        let mut body = [0; 16];
        body[0] = family;
        let (body, attributes): (&[u8], &[(u16, &[u8])]) = match request {
            RTM_GETLINK => (&body[..], &[(IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes())]),
            RTM_GETADDR | RTM_GETNEXTHOP => (&body[..8], &[]),
            _ => (&body[..12], &[]),
        };
        let Self { heard, asked, kernel, log, buffer, dump_buffer, stats, .. } = self;
        let mut lost = false;
        let kernel = std::cell::RefCell::new((kernel, stats));
        let dumped = asked.dump(
            request,
            body,
            attributes,
            dump_buffer,
            |message| {
                let (kernel, stats) = &mut *kernel.borrow_mut();
                stats.dumped += 1;
                match parse(message) {
                    Ok(Some(event)) => {
                        kernel.apply(event, Origin::Dump);
                    }
                    Ok(None) => {}
                    Err(_) => stats.malformed += 1,
                }
            },
            || {
                let (kernel, stats) = &mut *kernel.borrow_mut();
                if kernel.pending() >= REPORT_AT {
                    kernel.report(&mut *emit);
                }
                lost |= put_by(heard, log, buffer, stats)?;
                Ok(())
            },
        )?;
        lost |= put_by(heard, log, buffer, kernel.into_inner().1)?;
        if lost {
            self.want_all();
        }
        Ok(dumped)
    }

    fn take_in(&mut self, datagram: &[u8], origin: Origin, emit: &mut dyn FnMut(Change)) {
        let mut messages = Messages::new(datagram);
        for message in &mut messages {
            self.stats.messages += 1;
            self.take_in_message(&message, origin, emit);
        }
        if !messages.is_whole() {
            self.stats.malformed += 1;
            self.want_all();
        }
    }

    fn take_in_message(&mut self, message: &Message<'_>, origin: Origin, emit: &mut dyn FnMut(Change)) {
        match parse(message) {
            Ok(Some(event)) => {
                if matches!(event, Event::Link { .. }) && self.kernel.must_report(&event) {
                    self.kernel.report(emit);
                }
                let wanted = self.kernel.apply(event, origin);
                self.want(wanted);
            }
            Ok(None) => {}
            Err(_) => self.stats.malformed += 1,
        }
    }
}

/// Puts by what has been heard, as it is; returns whether something was lost.
fn put_by(heard: &Socket, log: &mut Vec<u8>, buffer: &mut [u8], stats: &mut Stats) -> Result<bool, Error> {
    let mut lost = false;
    while log.len() < PUT_BY {
        match heard.receive(buffer)? {
            Received::Empty => break,
            Received::Lost => {
                stats.overflows += 1;
                lost = true;
            }
            Received::Datagram(length) => {
                log.extend_from_slice(&(length as u32).to_ne_bytes());
                log.extend_from_slice(&buffer[..length]);
            }
        }
    }
    Ok(lost)
}

/// The datagrams put by in a log.
fn datagrams(mut log: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = log.split_first_chunk::<4>()?;
        let (datagram, rest) = rest.split_at_checked(u32::from_ne_bytes(*length) as usize)?;
        log = rest;
        Some(datagram)
    })
}

/// Whether any of them is about an IPv6 route.
fn routes6_in(log: &[u8]) -> bool {
    let about = |m: Message<'_>| matches!(m.kind, RTM_NEWROUTE | RTM_DELROUTE) && m.body.first() == Some(&AF_INET6);
    datagrams(log).any(|datagram| Messages::new(datagram).any(about))
}

/// The dumps that show all objects of a kind: message type and family.
fn requests(kind: Scope) -> &'static [(u16, u8)] {
    match kind {
        Scope::LINKS => &[(RTM_GETLINK, AF_UNSPEC)],
        Scope::RULES => &[(RTM_GETRULE, AF_INET), (RTM_GETRULE, AF_INET6)],
        Scope::ADDRESSES => &[(RTM_GETADDR, AF_UNSPEC)],
        Scope::OBJECTS => &[(RTM_GETNEXTHOP, AF_UNSPEC)],
        Scope::ROUTES4 => &[(RTM_GETROUTE, AF_INET)],
        Scope::ROUTES6 => &[(RTM_GETROUTE, AF_INET6)],
        Scope::NEIGHBOURS => &[(RTM_GETNEIGH, AF_INET), (RTM_GETNEIGH, AF_INET6)],
        _ => &[],
    }
}
