//! Keeps a flow table in step with the kernel's connections.
//!
//! A connection enters the table by an announcement only: with `net.netfilter.nf_conntrack_events` at 2, its default,
//! the kernel announces nothing of connections that began while nobody listened, not even their end. Those that are
//! read are changed without effect, which the kernel announces if it announces anything of them.
//!
//! Announcements that end a flow take effect as they are heard. Those that could begin one wait, so that a flood of new
//! connections, each of which has to be judged, does not keep a flow alive whose connection has ended.

use crate::connection::{Connection, Key, TCP, Tuple, UDP, tcp};
use crate::judge::{Judge, Refusal};
use crate::kernel::{Announced, Change, Error, Heard, Kernel};
use crate::message::Announcement;
use crate::obstacle::{Obstacle, obstacle};
use crate::statistics::{Revocation, Statistics};
use bywash_exceptions::nft::Interface;
use bywash_fib::flows::{self, Flow, FlowId, Flows, Refused};
use rustix::fd::BorrowedFd;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Announcements that are heard before other work is looked at, in datagrams.
const DATAGRAMS: usize = 4096;
/// Connections that are judged before announcements are heard again.
const JUDGED: usize = 64;
/// Most connections that wait to be judged, and most refused ones that are remembered. Of the others, the former are asked
/// for later, the latter stay the kernel's until they are announced again.
const WAITING: usize = 1 << 17;
/// Time before a new TCP connection is judged: many end sooner, and would cost more than they gain.
const SHORT: Duration = Duration::from_millis(100);
/// Flows, and refused connections, that are looked at in a call of [`Follower::renew`]. A connection that ends after the
/// last announcements were heard, and whose key another one has by then, would be renewed in its place: few flows make
/// that time short.
const PART: usize = 128;

/// Routes of a router, by which a connection's interfaces are found.
pub trait Routes {
    /// Returns the port that packets to an address leave by, and its interface; `None` if that is no single port.
    fn towards(&self, addr: IpAddr) -> Option<(u16, &Interface)>;
}

/// Seconds for which the kernel keeps connections that it sees no packet of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// net.netfilter.nf_conntrack_tcp_timeout_established.
    pub tcp: u32,
    /// The shortest timeout that the kernel may have given such a connection:
    /// net.netfilter.nf_conntrack_tcp_timeout_unacknowledged, and nf_conntrack_tcp_timeout_max_retrans.
    pub tcp_stalled: u32,
    /// net.netfilter.nf_conntrack_udp_timeout_stream.
    pub udp: u32,
}

impl Timeouts {
    /// Returns the longest time without a renewal for a connection in use: an eighth of what it has, as is the time
    /// that a pass over the table takes.
    fn due(&self, protocol: u8) -> u32 {
        if protocol == TCP { self.tcp.min(self.tcp_stalled) / 8 } else { self.udp / 8 }
    }

    /// Returns a change that renews a connection, by a quarter more than the kernel would: its use is seen at the end of
    /// a pass, which may begin when its last renewal is an eighth old.
    fn renewal(&self, key: Key) -> Change {
        let timeout = if key.protocol == TCP { self.tcp } else { self.udp };
        Change { timeout: Some(timeout.saturating_add(timeout / 4)), ..untimed(key) }
    }

    /// Returns the change that follows a connection's entry into the table: it fails if the connection is gone. It
    /// renews one that could expire before its use is seen. Others keep the kernel's timeout: one that has closed, and
    /// whose announcement is still to be heard, must not get that of an established one.
    fn entry(&self, connection: &Connection) -> Change {
        let key = connection.key;
        let expires = connection.timeout.is_none_or(|left| left < 2 * self.due(key.protocol));
        if expires { self.renewal(key) } else { untimed(key) }
    }
}

/// Terms on which connections become flows.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// Generation of the flows that are judged on these terms.
    pub generation: u32,
    /// The rules.
    pub judge: &'a Judge<'a>,
    /// The routes.
    pub routes: &'a dyn Routes,
    /// The kernel's timeouts.
    pub timeouts: Timeouts,
}

/// Returns a change without effect, but that the kernel announces the connection and no longer checks TCP's window.
fn untimed(key: Key) -> Change {
    Change { key, timeout: None, liberal: key.protocol == TCP }
}

/// Reason why a connection is not forwarded past the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The connection itself.
    Obstacle(Obstacle),
    /// A route of one of its directions does not lead out of a single port.
    Route,
    /// The firewall.
    Firewall(Refusal),
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Obstacle(obstacle) => obstacle.fmt(f),
            Self::Route => f.write_str("not routed between two ports"),
            Self::Firewall(refusal) => refusal.fmt(f),
        }
    }
}

/// Returns the flow of a connection that may be forwarded past the kernel, or why it may not.
pub fn flow(connection: &Connection, judge: &Judge<'_>, routes: &dyn Routes) -> Result<Flow, Reason> {
    if let Some(obstacle) = obstacle(connection) {
        return Err(Reason::Obstacle(obstacle));
    }
    let towards = |replies| routes.towards(connection.translated(replies).dst.ip()).ok_or(Reason::Route);
    let ((output, server), (input, client)) = (towards(false)?, towards(true)?);
    if let Some(refusal) = judge.refusal(connection, client, server) {
        return Err(Reason::Firewall(refusal));
    }
    let Key { protocol, original, .. } = connection.key;
    Ok(Flow { protocol, original: tuple(original), reply: tuple(connection.reply), input, output })
}

fn tuple(of: Tuple) -> flows::Tuple {
    flows::Tuple { src: of.src.ip(), dst: of.dst.ip(), src_port: of.src.port(), dst_port: of.dst.port() }
}

/// Ports that routes lead a connection's packets out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Egress {
    /// Translated destination of the original direction.
    far: IpAddr,
    /// Ports of the original direction and of replies; `None` for one that has no single port.
    ports: [Option<u16>; 2],
}

impl Egress {
    /// Looks up the routes to a connection's ends.
    fn new(key: &Key, far: IpAddr, routes: &dyn Routes) -> Self {
        let port = |addr| routes.towards(addr).map(|(port, _)| port);
        Self { far, ports: [port(far), port(key.original.src.ip())] }
    }
}

/// The table of flows, with what is known of each beside it.
struct Known {
    table: Flows,
    statistics: Arc<Statistics>,
}

impl Known {
    /// Returns the flow of a connection; `None` if it has none.
    fn find(&self, key: &Key) -> Option<FlowId> {
        (key.zone == 0).then(|| self.table.find(key.protocol, &tuple(key.original)))?
    }

    fn remove(&mut self, id: FlowId, why: Revocation) {
        let revoked = self.table.generation(id) == 0;
        self.table.remove(id);
        self.statistics.removed(id, if revoked { Revocation::Closed } else { why }, self.table.traffic(id));
    }
}

/// A connection that waits to be judged.
struct Waiting {
    connection: Connection,
    /// Whether it may be taken at once: all of it was told and, for TCP, the window is no longer checked.
    certain: bool,
    /// Time from which on it is judged.
    due: Instant,
}

/// Connections that wait to be judged, as they were announced last.
#[derive(Default)]
struct Queue {
    waiting: BTreeMap<Key, Waiting>,
    turns: BTreeSet<(Instant, Key)>,
}

impl Queue {
    /// Adds a connection, or what was announced of one that waits already; returns false if there is no room.
    fn push(&mut self, mut of: Waiting) -> bool {
        let key = of.connection.key;
        match self.remove(&key) {
            Some(known) => of.due = of.due.min(known.due),
            None if self.waiting.len() >= WAITING => return false,
            None => {}
        }
        self.turns.insert((of.due, key));
        self.waiting.insert(key, of);
        true
    }

    fn remove(&mut self, key: &Key) -> Option<Waiting> {
        let removed = self.waiting.remove(key)?;
        self.turns.remove(&(removed.due, *key));
        Some(removed)
    }

    /// Removes the connection whose turn it is; `None` if no turn has come.
    fn pop(&mut self) -> Option<Waiting> {
        let (due, key) = *self.turns.first()?;
        if due <= Instant::now() { self.remove(&key) } else { None }
    }
}

/// Keeps a table of flows in step with the kernel's connections. One thread uses it.
pub struct Follower {
    kernel: Kernel,
    known: Known,
    /// Connections without a flow that are to be judged.
    queue: Queue,
    /// Connections that routes or the firewall refused, with their ports as judged. Announcements tell nothing of
    /// routes.
    refused: BTreeMap<Key, Egress>,
    /// Refused connection that was looked at last.
    compared: Option<Key>,
    /// Changes to make: of connections that could be taken once they are announced, and of those just taken.
    changes: Vec<Change>,
    /// Connections to be changed without effect once fewer wait, so that the kernel announces them: all at once, they
    /// would be more announcements than its buffer holds. No more than the table has room for.
    candidates: Vec<Key>,
    /// Place of the flow that is looked at next.
    next: usize,
}

impl Follower {
    /// Creates a follower of the kernel's connections that keeps this table, which is empty.
    pub fn new(kernel: Kernel, table: Flows, statistics: Arc<Statistics>) -> Self {
        let known = Known { table, statistics };
        let (queue, refused, changes, candidates) = (Queue::default(), BTreeMap::new(), Vec::new(), Vec::new());
        Self { kernel, known, queue, refused, compared: None, changes, candidates, next: 0 }
    }

    /// Returns the socket that becomes readable with an announcement.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.kernel.readable()
    }

    /// Returns the table of flows.
    pub fn flows(&mut self) -> &mut Flows {
        &mut self.known.table
    }

    /// Revokes all flows until they are judged for `generation`; for none if it is 0.
    pub fn revoke(&mut self, generation: u32, why: Revocation) {
        self.known.table.set_generation(generation);
        self.known.statistics.revoked(why);
    }

    /// Returns the time from which on a call of [`Follower::hear`] judges connections that wait, or asks for others;
    /// `None` if there are none.
    pub fn due(&self) -> Option<Instant> {
        if !self.candidates.is_empty() {
            return Some(Instant::now());
        }
        self.queue.turns.first().map(|(due, _)| *due)
    }

    /// Reads all connections, judges them anew, and removes the flows of all others. Flows become valid as they are
    /// judged.
    ///
    /// # Errors
    /// If a socket fails. [`Announced::Lost`] means that the table must be read again, and that no flow may be used
    /// meanwhile.
    pub fn read(&mut self, terms: &Terms<'_>) -> Result<Announced, Error> {
        self.queue = Queue::default();
        self.candidates = Vec::new();
        self.refused.clear();
        let (mut looking, kernel) = self.looking(terms);
        let all = kernel.read(&mut |heard| match heard {
            Heard::Read(connection) => {
                looking.read(&connection);
                looking.judge_waiting(1);
            }
            Heard::Announced(announcement) => looking.announced(announcement),
            Heard::Lost => looking.known.table.set_generation(0),
        })?;
        if all == Announced::All {
            let old = |id: &FlowId| self.known.table.generation(*id) != terms.generation;
            let gone: Vec<FlowId> = self.known.statistics.flows(0..usize::MAX).into_iter().filter(old).collect();
            gone.into_iter().for_each(|id| self.known.remove(id, Revocation::Gone));
        }
        self.change()?;
        Ok(all)
    }

    /// Hears pending announcements, and judges some of the connections that wait.
    ///
    /// # Errors
    /// If a socket fails. [`Announced::Lost`] has the same meaning as that of [`Follower::read`].
    pub fn hear(&mut self, terms: &Terms<'_>) -> Result<Announced, Error> {
        let (mut looking, kernel) = self.looking(terms);
        let all = kernel.hear(DATAGRAMS, |announcement| looking.announced(announcement))?;
        if all == Announced::All {
            looking.judge_waiting(JUDGED);
            let few = self.candidates.len().min(JUDGED.saturating_sub(self.queue.waiting.len()));
            self.changes.extend(self.candidates.drain(self.candidates.len() - few..).map(untimed));
        }
        self.change()?;
        Ok(all)
    }

    /// Looks at a part of the table: renews the connections of valid flows that have been used, and has connections
    /// judged again whose route leads out of another port than before, with and without a flow. Returns the time until
    /// the next call.
    ///
    /// A connection expires no earlier than if the kernel saw its packets, and at most half of its timeout later.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn renew(&mut self, terms: &Terms<'_>) -> Result<Duration, Error> {
        let Terms { timeouts, routes, .. } = terms;
        let known = &mut self.known;
        let now = known.statistics.now();
        let places = known.statistics.places().iter().sum();
        let part = known.statistics.flows(self.next..self.next + PART);
        self.next = if self.next + PART < places { self.next + PART } else { 0 };
        for id in part {
            let flow = known.table.flow(id);
            if is_elsewhere(&flow, *routes) {
                known.remove(id, Revocation::Changed);
                self.changes.push(untimed(key(&flow)));
                continue;
            }
            let packets = known.table.traffic(id).iter().fold(0, |sum, one| one.packets.wrapping_add(sum));
            // A flow that its own packets have revoked is the kernel's.
            let revoked = known.table.generation(id) == 0;
            let renews = known.statistics.beside(id, |beside| {
                if beside.packets != packets {
                    (beside.packets, beside.used, beside.unrenewed) = (packets, now, true);
                }
                let renews = beside.unrenewed && !revoked && now - beside.renewed >= timeouts.due(flow.protocol);
                if renews {
                    (beside.renewed, beside.unrenewed) = (now, false);
                }
                renews
            });
            if renews {
                self.changes.push(timeouts.renewal(key(&flow)));
            }
        }
        self.compare(*routes);
        self.change()?;
        let pass = Duration::from_secs(timeouts.due(TCP).min(timeouts.due(UDP)).into());
        let parts = u32::try_from(places.max(self.refused.len()).div_ceil(PART)).unwrap_or(u32::MAX).max(1);
        Ok((pass / parts).clamp(Duration::from_millis(1), Duration::from_secs(1)))
    }

    /// Looks at a part of the refused connections, and has those announced, and so judged again, whose ports differ.
    fn compare(&mut self, routes: &dyn Routes) {
        let after = self.compared.map_or(Bound::Unbounded, Bound::Excluded);
        let part: Vec<Key> = self.refused.range((after, Bound::Unbounded)).take(PART).map(|(key, _)| *key).collect();
        self.compared = part.last().copied().filter(|_| part.len() == PART);
        for key in part {
            if self.refused.get(&key).is_some_and(|was| Egress::new(&key, was.far, routes) != *was) {
                self.refused.remove(&key);
                self.changes.push(untimed(key));
            }
        }
    }

    /// Makes the noted changes. Flows of connections that are gone are removed.
    fn change(&mut self) -> Result<(), Error> {
        let changes = std::mem::take(&mut self.changes);
        for gone in self.kernel.change(&changes)? {
            if let Some(id) = self.known.find(&gone) {
                self.known.remove(id, Revocation::Gone);
            }
        }
        Ok(())
    }

    fn looking<'a>(&'a mut self, terms: &'a Terms<'a>) -> (Looking<'a>, &'a mut Kernel) {
        let Self { kernel, known, queue, refused, changes, candidates, .. } = self;
        (Looking { known, queue, refused, changes, candidates, terms }, kernel)
    }
}

/// Returns whether routes lead the packets of a flow out of another port than the one that it was judged with. A
/// direction without a port is no reason: its packets are the kernel's until the route is back.
fn is_elsewhere(flow: &Flow, routes: &dyn Routes) -> bool {
    let differs = |addr, port| routes.towards(addr).is_some_and(|(towards, _)| towards != port);
    differs(flow.reply.src, flow.output) || differs(flow.original.src, flow.input)
}

/// The follower while it looks at connections.
struct Looking<'a> {
    known: &'a mut Known,
    queue: &'a mut Queue,
    refused: &'a mut BTreeMap<Key, Egress>,
    changes: &'a mut Vec<Change>,
    candidates: &'a mut Vec<Key>,
    terms: &'a Terms<'a>,
}

impl Looking<'_> {
    /// Looks at a connection that was read.
    fn read(&mut self, connection: &Connection) {
        let judged = self.judge(connection);
        let kept = self.known.find(&connection.key).is_some_and(|id| self.keeps(id, &judged, connection));
        if !kept && judged.is_ok() {
            self.ask_later(connection.key);
        }
    }

    fn ask_later(&mut self, key: Key) {
        if self.candidates.len() < self.known.table.room() {
            self.candidates.push(key);
        } else {
            self.known.statistics.full();
        }
    }

    /// Looks at an announcement: ends or keeps the flow of the connection if it has one, and notes the connection if it
    /// could have one.
    fn announced(&mut self, announcement: Announcement) {
        let known = self.known.find(&announcement.key());
        let mut connection = match announcement {
            Announcement::Present { connection, .. } => connection,
            Announcement::Gone { key, id, .. } => {
                self.queue.remove(&key);
                self.refused.remove(&key);
                let same = |known: &FlowId| id.is_none_or(|id| self.known.statistics.beside(*known, |b| b.id) == id);
                if let Some(known) = known.filter(same) {
                    self.known.remove(known, Revocation::Gone);
                }
                return;
            }
        };
        let key = connection.key;
        // An announcement leaves out what has not changed.
        let told = key.protocol != TCP || connection.tcp_state.is_some();
        connection.tcp_state = connection.tcp_state.or((key.protocol == TCP).then_some(tcp::ESTABLISHED));
        if let Some(id) = known {
            if self.is_as_judged(id, &connection) {
                return;
            }
            let judged = self.judge(&connection);
            // The connection may just have been closed: the next announcement tells.
            if !self.keeps(id, &judged, &connection) && judged.is_ok() {
                self.changes.push(untimed(key));
            }
        } else if obstacle(&connection).is_some() {
            self.queue.remove(&key);
            self.refused.remove(&key);
        } else {
            let certain = told && (key.protocol != TCP || connection.liberal);
            let due = Instant::now() + if key.protocol == TCP && !certain { SHORT } else { Duration::ZERO };
            if !self.queue.push(Waiting { connection, certain, due }) {
                self.ask_later(key);
            }
        }
    }

    /// Judges connections that wait.
    fn judge_waiting(&mut self, most: usize) {
        for _ in 0..most {
            let Some(Waiting { connection, certain, .. }) = self.queue.pop() else { return };
            let key = connection.key;
            let Ok(flow) = self.judge(&connection) else { continue };
            if !certain {
                self.changes.push(untimed(key));
            } else if self.insert(&flow, &connection) {
                self.changes.push(self.terms.timeouts.entry(&connection));
            }
        }
    }

    /// Returns whether a flow is valid and nothing that it was judged by has changed.
    fn is_as_judged(&mut self, id: FlowId, connection: &Connection) -> bool {
        self.known.table.generation(id) == self.terms.generation
            && self.known.statistics.beside(id, |beside| beside.judged) == mixed(connection)
            && obstacle(connection).is_none()
            && self.known.table.flow(id).reply == tuple(connection.reply)
    }

    /// Makes a flow valid if it is the judged one, of the same connection, and removes it otherwise. Returns whether it
    /// is valid.
    fn keeps(&mut self, id: FlowId, judged: &Result<Flow, Reason>, connection: &Connection) -> bool {
        let same = self.known.statistics.beside(id, |beside| beside.id) == connection.id
            && judged.as_ref().ok() == Some(&self.known.table.flow(id));
        // Fails if the flow's own packets have revoked it.
        let kept = same && self.known.table.confirm(id, self.terms.generation);
        if kept {
            self.known.statistics.beside(id, |beside| beside.judged = mixed(connection));
        } else {
            self.known.remove(id, Revocation::Changed);
        }
        kept
    }

    /// Judges a connection, and remembers it if something else than an obstacle refuses it.
    fn judge(&mut self, connection: &Connection) -> Result<Flow, Reason> {
        let began = Instant::now();
        let (key, Terms { judge, routes, .. }) = (connection.key, self.terms);
        let judged = flow(connection, judge, *routes);
        self.known.statistics.judged(began.elapsed());
        self.refused.remove(&key);
        if matches!(judged, Err(Reason::Route | Reason::Firewall(_))) && self.refused.len() < WAITING {
            let egress = Egress::new(&key, connection.reply.src.ip(), *routes);
            self.refused.insert(key, egress);
        }
        judged
    }

    /// Adds a flow; returns whether it is in the table.
    fn insert(&mut self, flow: &Flow, connection: &Connection) -> bool {
        let id = match self.known.table.insert(flow, self.terms.generation) {
            Ok(id) => id,
            // A full table leaves the connection to the kernel, which needs no error.
            Err(refused) => {
                if refused == Refused::Full {
                    self.known.statistics.full();
                }
                return false;
            }
        };
        self.known.statistics.inserted(id, connection.id, mixed(connection));
        true
    }
}

/// Mixes what a connection is judged by and that may change.
fn mixed(connection: &Connection) -> u64 {
    let Connection { id, status, mark, .. } = *connection;
    (u64::from(id) << 32 | u64::from(mark)) ^ u64::from(status).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn key(flow: &Flow) -> Key {
    let flows::Tuple { src, dst, src_port, dst_port } = flow.original;
    Key { protocol: flow.protocol, original: Tuple::new((src, src_port), (dst, dst_port)), zone: 0 }
}
