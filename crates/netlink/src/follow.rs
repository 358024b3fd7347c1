//! The mirror's thread: receives notifications, reads the kernel's tables again when they may have changed silently or
//! messages were lost, and reports changes.
//!
//! Dumps use a socket of their own. Notifications that arrive during a dump are stored and applied after it. One that
//! the dump has overtaken is followed by all later ones, which give the final state again, in whatever order the kernel
//! wrote the two; where they may not, the route is left to the kernel and the tables are read again. In the opposite
//! order, a dump's datagram could bring back an object that a notification had already removed. So that no change waits
//! for the end of a long dump, they are also applied and reported at once ([`Origin::Early`]).

mod mtus;

use crate::advertised::Advertisements;
use crate::kernel::{Kernel, Origin, Scope};
use crate::parse::{Event, parse};
use crate::stats::Stats;
use crate::teams::Teams;
use crate::uapi::*;
use bywash_fib::model::{Change, Neighbour};
use bywash_nl::Error;
use bywash_nl::socket::{DATAGRAM, Dumped, Received, Socket};
use bywash_nl::wire::{Message, Messages};
use rustix::fd::{AsFd, BorrowedFd};
use std::cell::RefCell;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// All multicast groups that the mirror follows.
const GROUPS: [u32; 10] = [
    RTNLGRP_LINK,
    RTNLGRP_NEIGH,
    RTNLGRP_IPV4_IFADDR,
    RTNLGRP_IPV4_ROUTE,
    RTNLGRP_IPV6_IFADDR,
    RTNLGRP_IPV6_ROUTE,
    RTNLGRP_IPV4_NETCONF,
    RTNLGRP_IPV6_NETCONF,
    RTNLGRP_NEXTHOP,
    RTNLGRP_BRVLAN,
];
/// Multicast groups of links and their addresses.
const LINK_GROUPS: [u32; 3] = [RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR];

/// Datagrams read from the socket before changes are reported.
const TURN: usize = 8192;
/// Notifications stored during a dump, in octets; beyond that they stay in the socket's own buffer, which may overflow.
const STORED: usize = 256 << 20;
/// Attempts at a dump. When all are interrupted, the data is kept, nothing is removed, and another dump is requested
/// for later.
const TRIES: u32 = 5;
/// Dumps in a row that may fail because the kernel is short of memory, each like one that is interrupted.
const SHORTAGES: u32 = 100;
/// Minimum delay between a disturbed dump of routes and the next one.
const DISTURBED: Duration = Duration::from_secs(1);
/// Resolution of lifetimes in messages, 1/USER_HZ, doubled.
const TICK: Duration = Duration::from_millis(20);
/// Time after which VLANs are read again while a bridge filters them: a request that fails half-way changes the state
/// of a VLAN without a message (br_vlan_process_options).
const VLANS_AGAIN: Duration = Duration::from_secs(5);
/// Time after which links are read again while there are interfaces above others: the kernel does not announce XDP
/// programs that are attached to them by a bpf_link. At most one part in [`RARELY`] of the time is spent on it.
const LINKS_AGAIN: Duration = Duration::from_secs(1);
const RARELY: u32 = 100;
/// Part of the time, as a divisor, that is spent at most on reading IPv6 routes after router advertisements, which any
/// host on a link can send.
const ADVERTISED: u32 = 10;
/// Pending changes at which a running dump reports them.
const REPORT_AT: usize = 1 << 16;

/// Kinds whose dumps may be long.
const LONG: Scope = Scope::ROUTES4.or(Scope::ROUTES6).or(Scope::NEIGHBOURS).or(Scope::STATIONS);

/// Both kinds of routes.
const ROUTES: [Scope; 2] = [Scope::ROUTES4, Scope::ROUTES6];

/// Addresses at which a dump of IPv4 routes may have been interrupted between two datagrams: from the last that one
/// shows to the first of the next.
#[derive(Debug, Default)]
struct Boundaries {
    /// Table and address last shown.
    last: Option<(u32, u32)>,
    /// Set until the next datagram shows a route.
    between: bool,
    /// Tables, and first and last addresses.
    ranges: Vec<(u32, u32, u32)>,
    /// Ranges at the end and the beginning of a table.
    outer: Vec<(u32, u32, u32)>,
}

impl Boundaries {
    fn show(&mut self, event: &Event) {
        let Some((table, addr)) = ipv4_of(event) else { return };
        if let Some((of, last)) = self.last.filter(|_| std::mem::take(&mut self.between)) {
            match of == table {
                true => self.ranges.push((trie_of(table), last, addr)),
                false => self.outer.extend([(of, last, u32::MAX), (table, 0, addr)]),
            }
        }
        self.last = Some((table, addr));
    }

    fn end_datagram(&mut self) {
        self.between = true;
    }

    /// Returns whether stored notifications are about removals of routes in these ranges.
    fn removed_in(&mut self, log: &[u8]) -> bool {
        let Some((table, last)) = self.last else { return false };
        self.outer.push((table, last, u32::MAX));
        self.ranges.sort_unstable();
        let gone = |message: &Message<'_>| message.kind == RTM_DELROUTE && route_kind(message) == Some(Scope::ROUTES4);
        let mut removed = datagrams(log).flat_map(Messages::new).filter(gone);
        removed.any(|message| {
            parse(&message).ok().flatten().and_then(|event| ipv4_of(&event)).is_some_and(|of| self.has(of))
        })
    }

    fn has(&self, (table, addr): (u32, u32)) -> bool {
        let trie = trie_of(table);
        let after = self.ranges.partition_point(|(of, first, _)| (*of, *first) <= (trie, addr));
        // Of two tables in one trie, ranges may overlap.
        self.ranges[..after].iter().rev().take(2).any(|(of, _, last)| *of == trie && addr <= *last)
            || self.outer.iter().any(|(of, first, last)| *of == table && (*first..=*last).contains(&addr))
    }
}

/// Returns the table in whose trie the routes of a table may be: those of local are in that of main while there are no
/// rules (fib_trie_table), and are counted with them.
fn trie_of(table: u32) -> u32 {
    if table == u32::from(RT_TABLE_LOCAL) { u32::from(RT_TABLE_MAIN) } else { table }
}

/// Returns the table and the address of an IPv4 route.
fn ipv4_of(event: &Event) -> Option<(u32, u32)> {
    let (table, addr) = match event {
        Event::Route { key, .. } => (key.table, key.prefix.addr),
        Event::Selective { table, prefix, .. } => (*table, prefix.addr),
        _ => return None,
    };
    match addr {
        IpAddr::V4(addr) => Some((table, addr.to_bits())),
        IpAddr::V6(_) => None,
    }
}

/// Receiver of changes.
pub trait Sink {
    /// Takes a change.
    fn put(&mut self, change: Change);

    /// Makes the changes taken so far available to their owner.
    fn flush(&mut self) {}
}

impl<F: FnMut(Change)> Sink for F {
    fn put(&mut self, change: Change) {
        self(change);
    }
}

/// Follows the kernel's tables; owned by one thread.
#[derive(Debug)]
pub struct Follower {
    events: Socket,
    requests: Socket,
    kernel: Kernel,
    /// Datagrams of notifications stored during a dump, each preceded by its length.
    log: Vec<u8>,
    /// Part of the log, in octets, that has been applied early.
    early: usize,
    boundaries: Boundaries,
    buffer: Vec<u8>,
    dump_buffer: Vec<u8>,
    /// Kinds of objects that are followed.
    follows: Scope,
    wanted: Scope,
    /// Set if the next reading ends with [`Change::Synced`].
    announce: bool,
    /// Times at which IPv4 and IPv6 routes are read again because they changed while they were being dumped.
    disturbed: [Option<Instant>; 2],
    /// Dumps in a row that have failed.
    shortages: u32,
    due: Option<Instant>,
    /// First time at which an IPv6 route expires. The kernel announces neither that nor a longer lifetime.
    expiry: Option<Instant>,
    /// Router advertisements; `None` where they cannot be received.
    advertisements: Option<Advertisements>,
    /// Time at which IPv6 routes are read again after one.
    advertised: Option<Instant>,
    /// Options of teams; `None` without any, or where they cannot be read.
    teams: Option<Teams>,
    /// Time at which VLANs are read again.
    vlans: Option<Instant>,
    /// Time at which links are read again.
    links: Option<Instant>,
    /// Set if a link has changed since this was last reset.
    pub links_changed: bool,
    settle: Duration,
    ended: Instant,
    took: Duration,
    pub stats: Stats,
}

impl Follower {
    /// Subscribes in the calling thread's network namespace: to everything, or only to links and their addresses. Reads
    /// nothing yet.
    pub fn new(receive_buffer: usize, settle: Duration, routes: bool) -> Result<Self, Error> {
        let (groups, follows): (&[u32], _) = match routes {
            true => (&GROUPS, Scope::ALL),
            false => (&LINK_GROUPS, Scope::LINKS | Scope::ADDRESSES),
        };
        let events = Socket::open(groups, receive_buffer)?;
        // Kernels before 5.18 have neither the group nor what it is for.
        let _ = events.join(RTNLGRP_TUNNEL);
        let requests = Socket::open(&[], 1 << 20)?;
        Ok(Self {
            events,
            requests,
            kernel: Kernel::default(),
            log: Vec::new(),
            early: 0,
            boundaries: Boundaries::default(),
            buffer: vec![0; DATAGRAM],
            dump_buffer: vec![0; DATAGRAM],
            follows,
            wanted: Scope::NONE,
            announce: false,
            disturbed: [None; 2],
            shortages: 0,
            due: None,
            expiry: None,
            advertisements: None,
            advertised: None,
            teams: None,
            vlans: None,
            links: None,
            links_changed: false,
            settle,
            ended: Instant::now(),
            took: Duration::ZERO,
            stats: Stats::default(),
        })
    }

    /// Also follows router advertisements.
    ///
    /// # Errors
    /// If they cannot be received.
    pub fn follow_advertisements(&mut self) -> std::io::Result<()> {
        self.advertisements = Advertisements::open()?;
        Ok(())
    }

    /// Returns the sockets to poll for notifications and router advertisements. No more of the latter are awaited until
    /// the routes have been read again.
    pub fn readable(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let advertisements = self.advertisements.as_ref().filter(|_| self.advertised.is_none());
        let teams = self.teams.as_ref().map(AsFd::as_fd);
        std::iter::once(self.events.as_fd()).chain(advertisements.map(AsFd::as_fd)).chain(teams)
    }

    /// Returns the time at which tables must be read again, if any.
    pub fn due(&self) -> Option<Instant> {
        let timers = [self.expiry, self.advertised, self.vlans, self.links];
        self.due.into_iter().chain(timers.into_iter().chain(self.disturbed).flatten()).min()
    }

    /// Returns whether what has been read is all that there was to read.
    pub fn is_settled(&self) -> bool {
        self.due.is_none() && self.disturbed == [None; 2]
    }

    /// Schedules a full read, which ends with [`Change::Synced`].
    pub fn want_all(&mut self) {
        self.announce = true;
        self.want(Scope::ALL);
    }

    /// Returns the earliest time of the next reading: a pause of twice the last one's duration leaves two thirds of the
    /// time for notifications.
    fn rest(&self) -> Instant {
        self.ended + 2 * self.took
    }

    fn want(&mut self, scope: Scope) {
        let scope = scope.and(self.follows);
        if scope.is_empty() {
            return;
        }
        self.wanted.add(scope);
        let rest = self.rest();
        self.due.get_or_insert_with(|| (Instant::now() + self.settle).max(rest));
    }

    /// Applies pending notifications; returns whether there may be more.
    pub fn receive(&mut self, emit: &mut dyn FnMut(Change)) -> Result<bool, Error> {
        if self.advertised.is_none() && self.advertisements.as_ref().is_some_and(Advertisements::receive) {
            // This socket receives an advertisement before the kernel acts on it.
            let rest = self.ended + (ADVERTISED - 1) * self.took;
            self.advertised = Some((Instant::now() + self.settle).max(rest));
        }
        self.receive_teams()?;
        for _ in 0..TURN {
            match self.events.receive(&mut self.buffer)? {
                Received::Empty => return Ok(false),
                Received::Lost => {
                    self.stats.overflows += 1;
                    self.want_all();
                }
                Received::Datagram(length) => {
                    let datagram = std::mem::take(&mut self.buffer);
                    self.apply_datagram(&datagram[..length], Origin::Live, emit);
                    self.buffer = datagram;
                }
            }
        }
        Ok(true)
    }

    /// Reads the neighbours again if one that the kernel has is not known. All notifications that precede its answer
    /// must have been received.
    pub fn check_neighbours(&mut self, found: &[Neighbour]) {
        if found.iter().any(|neighbour| !self.kernel.knows(neighbour)) {
            self.want(Scope::NEIGHBOURS);
        }
    }

    /// Reports the changes since the last report and updates the statistics.
    pub fn report(&mut self, emit: &mut dyn FnMut(Change)) {
        self.kernel.report(emit);
        [
            self.stats.links,
            self.stats.addresses,
            self.stats.routes4,
            self.stats.routes6,
            self.stats.neighbours,
            self.stats.route_bodies,
        ] = self.kernel.sizes();
    }

    /// Reads the scheduled tables now.
    pub fn read_all(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        self.due = self.due.map(|due| due.min(Instant::now()));
        self.read(sink)
    }

    /// Reads the tables again that are due. `sink` receives the differences, those of a large table while it is being
    /// read.
    pub fn read(&mut self, sink: &mut dyn Sink) -> Result<(), Error> {
        let began = Instant::now();
        let (mut scope, mut announce) = (Scope::NONE, false);
        if self.due.is_some_and(|due| due <= began) {
            (scope, announce) = (std::mem::take(&mut self.wanted), std::mem::take(&mut self.announce));
            self.due = None;
        }
        for (at, kind) in self.disturbed.into_iter().zip(ROUTES) {
            scope.add(if at.is_some_and(|at| at <= began) { kind } else { Scope::NONE });
        }
        if self.expiry.is_some_and(|expiry| expiry <= began) {
            scope.add(Scope::ROUTES6.and(self.follows));
        }
        if self.advertised.is_some_and(|at| at <= began) {
            self.advertised = None;
            self.advertisements.as_ref().map(Advertisements::receive);
            scope.add(Scope::ROUTES6.and(self.follows));
        }
        if self.vlans.is_some_and(|vlans| vlans <= began) {
            scope.add(Scope::VLANS);
        }
        let mut of_links = Duration::ZERO;
        self.kernel.begin(scope);
        // Links always come first: their dump waits for a lock under which the kernel may still be clearing routes for
        // a link that it has already reported down. Not all other dumps wait for that lock.
        for kind in [
            Scope::LINKS,
            Scope::ADDRESSES,
            Scope::OBJECTS,
            Scope::ROUTES4,
            Scope::ROUTES6,
            Scope::NEIGHBOURS,
            Scope::VLANS,
            Scope::STATIONS,
        ] {
            scope.add(self.kernel.unread().and(self.follows));
            if kind == Scope::LINKS || scope.has(kind) {
                self.read_kind(kind, sink)?;
            }
            if kind == Scope::LINKS {
                of_links = began.elapsed();
            }
        }
        let wanted = self.kernel.end();
        self.want(wanted);
        self.read_teams(announce);
        self.ended = Instant::now();
        self.took = self.ended - began;
        let filtered = self.follows.has(Scope::VLANS) && self.kernel.filters_vlans();
        self.vlans = filtered.then(|| vlans_due(self.vlans, scope.has(Scope::VLANS), self.ended));
        self.links = self.kernel.has_uppers().then(|| self.ended + LINKS_AGAIN.max(RARELY * of_links));
        self.stats.readings += 1;
        self.stats.last_reading_ms = self.took.as_secs_f64() * 1e3;
        // Reads scheduled during this one wait for at least the same pause.
        self.due = self.due.map(|due| due.max(self.rest()));
        if announce {
            self.stats.resyncs += 1;
            self.report(&mut |change| sink.put(change));
            sink.put(Change::Synced);
        }
        Ok(())
    }

    /// Dumps the objects of a kind, and applies the notifications during the dump.
    fn read_kind(&mut self, kind: Scope, sink: &mut dyn Sink) -> Result<(), Error> {
        let interrupted = self.stats.interrupted;
        let whole = self.dump(kind, sink)?;
        self.replay(kind, self.stats.interrupted != interrupted, sink);
        if whole && kind == Scope::ROUTES6 && self.ask_about_legs() {
            self.disturbed[1].get_or_insert(Instant::now() + DISTURBED);
        }
        Ok(())
    }

    /// Dumps the objects of a kind; returns whether it was not interrupted in the end.
    fn dump(&mut self, kind: Scope, sink: &mut dyn Sink) -> Result<bool, Error> {
        let began = Instant::now();
        if kind == Scope::ROUTES6 {
            self.expiry = None;
        }
        let family = ROUTES.iter().position(|of| *of == kind);
        if let Some(family) = family {
            self.disturbed[family] = None;
        }
        for _ in 0..TRIES {
            let mut whole = true;
            let before = self.log.len();
            self.boundaries = Boundaries::default();
            for (request, family) in requests(kind) {
                // The module that answers may not be there without such an interface.
                if *request == RTM_GETTUNNEL && !self.kernel.filters_networks() {
                    continue;
                }
                match self.dump_once(kind, *request, *family, sink) {
                    Ok(Dumped::Whole | Dumped::Unsupported) => {}
                    Ok(Dumped::Interrupted) => whole = false,
                    Err(error) if error.is_shortage() && self.shortages < SHORTAGES => {
                        self.shortages += 1;
                        whole = false;
                    }
                    Err(error) => return Err(error),
                }
            }
            if whole {
                self.shortages = 0;
                // When the tree changes, the kernel resumes the dump of IPv6 routes by counting those already shown
                // (fib6_dump_table), and may skip some without marking the dump as interrupted.
                let quiet = kind != Scope::ROUTES6 || (!routes6_in(&self.log[before..]) && !self.announce);
                self.kernel.finish(kind, quiet);
                // The dump of IPv4 routes resumes by counting those to one address (fn_trie_dump_leaf).
                let counted = kind == Scope::ROUTES4 && self.boundaries.removed_in(&self.log[before..]);
                if let Some(family) = family.filter(|_| !quiet || counted) {
                    self.disturbed[family] = Some(Instant::now() + DISTURBED.max(9 * began.elapsed()));
                }
                return Ok(true);
            }
            self.stats.interrupted += 1;
        }
        self.want(kind);
        Ok(false)
    }

    /// Applies the notifications stored during a dump of this kind. Those that have been applied early are not applied
    /// again if they are about routes that were not dumped.
    fn replay(&mut self, kind: Scope, interrupted: bool, sink: &mut dyn Sink) {
        // An interrupted dump may have added bodies to those of a route that had been changed early.
        if self.kernel.begin_replay() && interrupted {
            self.want(kind);
        }
        let (log, early) = (std::mem::take(&mut self.log), std::mem::take(&mut self.early));
        for datagram in datagrams(&log[..early]) {
            let mut messages = Messages::new(datagram);
            for message in &mut messages {
                self.stats.messages += 1;
                // The states in between have been reported.
                match route_kind(&message).filter(|of| *of != kind) {
                    None => self.apply_message(&message, Origin::Replay),
                    Some(_) => self.note_expiry(&message),
                }
            }
            self.note_rest(&messages);
        }
        for datagram in datagrams(&log[early..]) {
            self.apply_datagram(datagram, Origin::Replay, &mut |change| sink.put(change));
        }
        let wanted = self.kernel.end_dump(kind);
        self.want(wanted);
    }

    /// Applies pending announcements about the options of teams. If some were lost, the options are not known until
    /// they have been read again.
    fn receive_teams(&mut self) -> Result<(), Error> {
        let (Some(teams), kernel) = (&self.teams, &mut self.kernel) else { return Ok(()) };
        let mut lost = false;
        teams.receive(&mut self.buffer, |change| match change {
            Some((team, options)) => kernel.change_team(team, options),
            None => lost = true,
        })?;
        if lost {
            self.stats.overflows += 1;
            self.kernel.teams().into_iter().for_each(|team| self.kernel.set_team(team, None));
            self.want(Scope::LINKS);
        }
        Ok(())
    }

    /// Reads the options of all teams, like links at every reading. `anew`: subscribes again, because it may have gone
    /// unnoticed that the module of the driver was unloaded, and with it the subscription.
    fn read_teams(&mut self, anew: bool) {
        let indices = self.kernel.teams();
        if indices.is_empty() || anew {
            self.teams = None;
        }
        for index in indices {
            let Self { teams, dump_buffer, .. } = self;
            if teams.is_none() {
                *teams = Teams::open().inspect_err(|error| tracing::debug!("teams cannot be read: {error}")).ok();
            }
            let read = teams.as_mut().and_then(|teams| teams.read(index, dump_buffer).ok());
            self.kernel.set_team(index, read);
        }
    }

    fn dump_once(&mut self, kind: Scope, request: u16, family: u8, sink: &mut dyn Sink) -> Result<Dumped, Error> {
        let mut body = [0; 16];
        body[0] = family;
        let (body, attributes): (&[u8], &[(u16, &[u8])]) = match request {
            RTM_GETLINK => (&body[..], &[(IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes())]),
            RTM_GETADDR | RTM_GETNEXTHOP | RTM_GETVLAN | RTM_GETTUNNEL => (&body[..8], &[]),
            _ => (&body[..12], &[]),
        };
        let rest = self.rest();
        self.kernel.begin_dump(kind);
        let Self {
            events, requests, kernel, log, early: applied, buffer, dump_buffer, stats, expiry, boundaries, ..
        } = self;
        let (mut lost, mut wanted) = (false, Scope::NONE);
        let (kernel, boundaries) = (RefCell::new((kernel, stats)), RefCell::new(boundaries));
        let dumped = requests.dump(
            request,
            body,
            attributes,
            dump_buffer,
            |message| {
                let (kernel, stats) = &mut *kernel.borrow_mut();
                stats.dumped += 1;
                match parse(message) {
                    Ok(Some(event)) => {
                        track_expiry(expiry, rest, &event);
                        boundaries.borrow_mut().show(&event);
                        kernel.apply(event, Origin::Dump);
                    }
                    Ok(None) => {}
                    Err(_) => stats.malformed += 1,
                }
            },
            || {
                let (kernel, stats) = &mut *kernel.borrow_mut();
                boundaries.borrow_mut().end_datagram();
                lost |= store_pending(events, log, buffer, stats)?;
                // Also those stored before this attempt at the dump.
                let early = kind.has(LONG) && log.len() > *applied;
                if early {
                    wanted.add(apply_early(kernel, &log[*applied..], sink));
                    *applied = log.len();
                }
                kernel.end_datagram();
                if early || kernel.pending() >= REPORT_AT {
                    kernel.report(|change| sink.put(change));
                    sink.flush();
                }
                Ok(())
            },
        );
        lost |= store_pending(events, log, buffer, kernel.into_inner().1)?;
        self.want(wanted);
        if lost {
            self.want_all();
        }
        dumped
    }

    fn apply_datagram(&mut self, datagram: &[u8], origin: Origin, emit: &mut dyn FnMut(Change)) {
        let mut messages = Messages::new(datagram);
        for message in &mut messages {
            self.stats.messages += 1;
            if message.kind == RTM_NEWLINK
                && let Ok(Some(event)) = parse(&message)
                && self.kernel.must_report(&event)
            {
                self.kernel.report(&mut *emit);
            }
            self.apply_message(&message, origin);
        }
        self.note_rest(&messages);
    }

    /// Has everything read again if a datagram did not end with a message.
    fn note_rest(&mut self, messages: &Messages<'_>) {
        if !messages.is_whole() {
            self.stats.malformed += 1;
            self.want_all();
        }
    }

    fn note_expiry(&mut self, message: &Message<'_>) {
        match parse(message) {
            Ok(Some(event)) => self.track_expiry(&event),
            Ok(None) => {}
            Err(_) => self.stats.malformed += 1,
        }
    }

    fn track_expiry(&mut self, event: &Event) {
        let rest = self.rest();
        track_expiry(&mut self.expiry, rest, event);
    }

    fn apply_message(&mut self, message: &Message<'_>, origin: Origin) {
        match parse(message) {
            Ok(Some(event)) => {
                self.links_changed |= matches!(event, Event::Link { .. } | Event::LinkGone(_));
                self.track_expiry(&event);
                let wanted = self.kernel.apply(event, origin);
                self.want(wanted);
                if self.teams.is_some() && self.kernel.teams().is_empty() {
                    // Nothing keeps the module of the driver any longer, and with it the subscription.
                    self.teams = None;
                }
            }
            Ok(None) => {}
            Err(_) => self.stats.malformed += 1,
        }
    }
}

/// Takes the time at which a route expires into account, but not before `rest`.
fn track_expiry(expiry: &mut Option<Instant>, rest: Instant, event: &Event) {
    if let Event::Route { expires: Some(after), gone: false, .. } = event {
        let at = (Instant::now() + *after + TICK).max(rest);
        *expiry = Some(expiry.map_or(at, |first| first.min(at)));
    }
}

/// Returns when the VLANs of bridges are read again after a reading that has `ended`, of them too if `read`.
fn vlans_due(due: Option<Instant>, read: bool, ended: Instant) -> Instant {
    due.filter(|_| !read).unwrap_or(ended + VLANS_AGAIN)
}

/// Stores pending notifications unparsed; returns whether any were lost.
fn store_pending(events: &Socket, log: &mut Vec<u8>, buffer: &mut [u8], stats: &mut Stats) -> Result<bool, Error> {
    let mut lost = false;
    while log.len() < STORED {
        match events.receive(buffer)? {
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

/// Applies notifications that have just been stored during a dump; returns the kinds that must be read again.
fn apply_early(kernel: &mut Kernel, log: &[u8], sink: &mut dyn Sink) -> Scope {
    let mut wanted = Scope::NONE;
    for message in datagrams(log).flat_map(Messages::new) {
        // Those that cannot be parsed are counted when they are replayed.
        let Ok(Some(event)) = parse(&message) else { continue };
        if kernel.must_report(&event) {
            kernel.report(|change| sink.put(change));
        }
        wanted.add(kernel.apply(event, Origin::Early));
    }
    wanted
}

/// Returns the datagrams stored in a log.
fn datagrams(mut log: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (length, rest) = log.split_first_chunk::<4>()?;
        let (datagram, rest) = rest.split_at_checked(u32::from_ne_bytes(*length) as usize)?;
        log = rest;
        Some(datagram)
    })
}

/// Returns whether any stored notification is about an IPv6 route.
fn routes6_in(log: &[u8]) -> bool {
    datagrams(log).any(|datagram| Messages::new(datagram).any(|message| route_kind(&message) == Some(Scope::ROUTES6)))
}

/// Returns the kind of the route that a message is about; `None` if it is about something else.
fn route_kind(message: &Message<'_>) -> Option<Scope> {
    match (message.kind, message.body.first()) {
        (RTM_NEWROUTE | RTM_DELROUTE, Some(&AF_INET6)) => Some(Scope::ROUTES6),
        (RTM_NEWROUTE | RTM_DELROUTE, _) => Some(Scope::ROUTES4),
        _ => None,
    }
}

/// Returns the dump requests for all objects of a kind: message type and family.
fn requests(kind: Scope) -> &'static [(u16, u8)] {
    match kind {
        Scope::LINKS => &[(RTM_GETLINK, AF_UNSPEC)],
        Scope::ADDRESSES => &[(RTM_GETADDR, AF_UNSPEC)],
        Scope::OBJECTS => &[(RTM_GETNEXTHOP, AF_UNSPEC)],
        Scope::ROUTES4 => &[(RTM_GETROUTE, AF_INET)],
        Scope::ROUTES6 => &[(RTM_GETROUTE, AF_INET6)],
        Scope::NEIGHBOURS => &[(RTM_GETNEIGH, AF_INET), (RTM_GETNEIGH, AF_INET6)],
        Scope::VLANS => &[(RTM_GETVLAN, AF_BRIDGE), (RTM_GETTUNNEL, AF_BRIDGE)],
        Scope::STATIONS => &[(RTM_GETNEIGH, AF_BRIDGE)],
        _ => &[],
    }
}

#[cfg(test)]
mod tests;
