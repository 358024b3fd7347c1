//! Keeps a flow table in step with the kernel's connections.
//!
//! Connections are found in two ways. The table's readers report the tuples of packets that have no flow
//! ([`Flows::candidates`](bywash_fib::flows::Flows::candidates)), and the kernel is asked for the connection of each
//! tuple. Connections that existed before are found when the whole conntrack table is read.
//!
//! A flow is only safe if the kernel reports the end of its connection. With `net.netfilter.nf_conntrack_events` at 2,
//! its default, the kernel sends no events, not even of the end, for a connection that began while nobody listened. So
//! a connection first gets a change without effect; if the kernel does not echo it, the kernel would send no events
//! either, and the connection is left to the kernel.
//!
//! Except for changes of marks, where rules match them, only events of ends are received, and by default only those of
//! assured connections: a flood of short connections costs little.

use crate::connection::{Connection, Key, TCP, Tuple, UDP, status, tcp};
use crate::judge::{Judge, Refusal};
use crate::kernel::{Change, Changed, Error, Events, Item, Kernel};
use crate::message::Event;
use crate::obstacle::{Obstacle, obstacle};
use crate::statistics::{Revocation, Statistics, packets_since};
use bywash_exceptions::nft::Interface;
use bywash_fib::flows::{self, Flow, FlowId, Flows, Refused};
use bywash_fib::model::Families;
use rustix::fd::BorrowedFd;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of events that are read before other work is done, in datagrams.
const DATAGRAMS: usize = 4096;
/// Number of flows that end at once from which on the other flows are suspended for a moment.
const MANY: usize = 64;
/// Maximum number of connections that are judged before events are read again.
const JUDGED: usize = 64;
/// Number of flows that one call of [`Follower::renew`] examines. If a connection ends after the last events were read
/// and a new connection takes its key, the new one is renewed by mistake; examining few flows at a time keeps that
/// window short.
const PART: usize = 128;
/// Timeout for a connection that turns out to be opening or closing when it is renewed, in seconds: the kernel's
/// default for the longest of TCP's states at its beginning and its end (nf_conntrack_tcp_timeout_syn_sent,
/// _time_wait).
const BRIEF: u32 = 120;

/// Routes of a router, by which a connection's interfaces are found.
pub trait Routes {
    /// Returns the port that packets to an address leave by, and its interface; `None` if it is not a single port.
    fn towards(&self, addr: IpAddr) -> Option<(u16, &Interface)>;

    /// Returns whether only the port's interface can have given this address to a translated source.
    fn is_source_of(&self, addr: IpAddr, port: u16) -> bool;

    /// Returns whether an address is one of the host's own.
    fn is_own(&self, addr: IpAddr) -> bool;

    /// Returns whether a policy, such as those of IPsec, leaves packets to an address to the kernel. When one is added
    /// for a destination, no flow may be valid until all connections have been read again.
    fn is_excepted(&self, addr: IpAddr) -> bool;

    /// Returns whether a port is a bridge, of several members.
    fn is_bridge(&self, port: u16) -> bool;

    /// Returns the families whose flows forward packets that a port receives.
    fn passing(&self, port: u16) -> Families;
}

/// Seconds for which the kernel keeps connections without seeing their packets. When they change, all connections have
/// to be read again: those that are in use have the earlier timeouts until the kernel sees a packet.
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
    /// Returns the longest time without a renewal for a connection in use: an eighth of its timeout, which is also the
    /// time that a pass over the table takes.
    fn due(&self, protocol: u8) -> u32 {
        if protocol == TCP { self.tcp.min(self.tcp_stalled) / 8 } else { self.udp / 8 }
    }

    /// Returns a change that renews a connection for a quarter longer than the kernel would: traffic is only noticed at
    /// the end of a pass, and that pass may begin an eighth of the timeout after the last renewal.
    fn renewal(&self, key: Key) -> Change {
        let timeout = if key.protocol == TCP { self.tcp } else { self.udp };
        Change { timeout: Some(timeout.saturating_add(timeout / 4)), ..without_window_check(key) }
    }

    /// Returns the seconds that a connection of this state is given which was renewed by mistake; `None` if it lasts as
    /// long as one in use. One that has taken the key of another may not have been answered.
    fn brief(&self, renewed: &Connection) -> Option<u32> {
        let unanswered = match obstacle(renewed) {
            Some(Obstacle::NotAssured) => true,
            Some(Obstacle::NotEstablished) => false,
            _ => return None,
        };
        let (protocol, state) = (renewed.key.protocol, renewed.tcp_state);
        match protocol {
            // Packets of a connection whose beginning was not seen (nf_conntrack_tcp_timeout_unacknowledged).
            TCP if unanswered && state == Some(tcp::ESTABLISHED) => Some(BRIEF.max(self.tcp_stalled)),
            TCP => Some(BRIEF),
            _ => Some(BRIEF.min(self.udp)),
        }
    }

    /// Returns the seconds after which a connection expires if it is not used. The kernel does not show them for one
    /// that is in a flow table (ctnetlink_dump_info), and keeps it for as long as the table does, and a while longer.
    fn left(&self, connection: &Connection) -> u32 {
        let offloaded = connection.has(status::OFFLOAD);
        connection.timeout.unwrap_or(if offloaded { self.udp } else { 0 })
    }

    /// Returns whether a connection is kept long enough for its use to be seen, and for a renewal. A use that the
    /// kernel sees makes it last.
    fn lasts(&self, connection: &Connection) -> bool {
        self.left(connection) >= 2 * self.due(connection.key.protocol)
    }

    /// Returns the number of seconds that a pass over the table takes at most.
    fn pass(&self) -> u32 {
        self.due(TCP).min(self.due(UDP))
    }
}

/// Inputs to the decision which connections become flows.
#[derive(Clone, Copy)]
pub struct Terms<'a> {
    /// Generation of the flows that are judged by these inputs.
    pub generation: u32,
    /// The rules.
    pub judge: &'a Judge<'a>,
    /// The routes.
    pub routes: &'a dyn Routes,
    /// The kernel's timeouts.
    pub timeouts: Timeouts,
    /// Returns whether the other inputs have not changed since.
    pub are_current: &'a dyn Fn() -> bool,
}

/// Returns a change without an effect.
fn unchanged(key: Key) -> Change {
    Change { key, timeout: None, liberal: false }
}

/// Returns a change whose only effect is that the kernel no longer checks TCP's window.
fn without_window_check(key: Key) -> Change {
    Change { liberal: key.protocol == TCP, ..unchanged(key) }
}

/// Reason why a connection is not forwarded past the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A property of the connection itself.
    Obstacle(Obstacle),
    /// In one direction, the route does not lead out of exactly one port.
    Route,
    /// None of the connection's ports lets packets of flows pass, so that a flow would forward none.
    Held,
    /// The source is translated to an address of this host, but not to one of the egress interface. If the
    /// connection was masqueraded on another interface, which the kernel does not report, it ends it
    /// (nf_nat_oif_changed).
    Source,
    /// The connection is translated and stays on one bridge: the kernel may send its packets to another member without
    /// routing them (br_nf_pre_routing_finish).
    Bridged,
    /// A policy selects packets by the destination before translation: those of IPsec for forwarded packets do
    /// (nf_nat_decode_session).
    Policy,
    /// The firewall's rules.
    Firewall(Refusal),
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Obstacle(obstacle) => obstacle.fmt(f),
            Self::Route => f.write_str(
                "not routed between two ports, or packets that leave through one of them are left to the kernel: see \
                 `bywash show placement`",
            ),
            Self::Held => f.write_str("no flows pass on its ports, or on one of them: see `bywash show placement`"),
            Self::Source => {
                f.write_str("its source is translated to an address that the egress interface does not have")
            }
            Self::Bridged => f.write_str("it is translated and stays on one bridge"),
            Self::Policy => {
                f.write_str("a policy concerns the address that it is translated from: see `bywash show placement`")
            }
            Self::Firewall(refusal) => refusal.fmt(f),
        }
    }
}

/// Returns the flow of a connection that may be forwarded past the kernel, or why it may not.
pub fn flow(connection: &Connection, judge: &Judge<'_>, routes: &dyn Routes) -> Result<Flow, Reason> {
    if let Some(obstacle) = obstacle(connection) {
        return Err(Reason::Obstacle(obstacle));
    }
    if !judge.learns_end(connection) {
        return Err(Reason::Obstacle(Obstacle::NotAssured));
    }
    let [(output, server), (input, client)] = ways(connection, routes)?;
    let source = connection.reply.dst.ip();
    if source != connection.key.original.src.ip() && !routes.is_source_of(source, output) {
        return Err(Reason::Source);
    }
    let [there, back] = [false, true].map(|replies| connection.translated(replies).dst);
    let translated = there != connection.key.original.dst || back != connection.reply.dst;
    if output == input && translated && routes.is_bridge(output) {
        return Err(Reason::Bridged);
    }
    if [connection.key.original, connection.reply].iter().any(|tuple| routes.is_excepted(tuple.dst.ip())) {
        return Err(Reason::Policy);
    }
    if let Some(refusal) = judge.refusal(connection, client, server) {
        return Err(Reason::Firewall(refusal));
    }
    let Key { protocol, original, .. } = connection.key;
    Ok(Flow { protocol, original: tuple(original), reply: tuple(connection.reply), input, output })
}

/// Returns the ports that packets of the original direction and replies leave by, with their interfaces, if a flow
/// between them would forward any packet.
fn ways<'a>(connection: &Connection, routes: &'a dyn Routes) -> Result<[(u16, &'a Interface); 2], Reason> {
    let towards = |replies| routes.towards(connection.translated(replies).dst.ip()).ok_or(Reason::Route);
    let ways = [towards(false)?, towards(true)?];
    let passing = ways.iter().fold(Families::NONE, |all, (port, _)| all | routes.passing(*port));
    let passes = if connection.key.original.src.is_ipv6() { passing.v6 } else { passing.v4 };
    if passes { Ok(ways) } else { Err(Reason::Held) }
}

fn tuple(of: Tuple) -> flows::Tuple {
    flows::Tuple { src: of.src.ip(), dst: of.dst.ip(), src_port: of.src.port(), dst_port: of.dst.port() }
}

/// Outcome of [`Follower::consider`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Considered {
    /// Candidates that the table's readers had reported.
    pub candidates: usize,
    /// True if more connections may be waiting.
    pub more: bool,
}

/// Keeps a table of flows in step with the kernel's connections. One thread uses it.
pub struct Follower {
    kernel: Kernel,
    known: Known,
    /// Connections that were read and have no flow yet, at most as many as the table has room for.
    backlog: Vec<Key>,
    /// Number of times that all connections were read.
    readings: u64,
    /// Index of the flow that is examined next.
    next: usize,
    /// Generation of the valid flows; 0: none.
    generation: u32,
    /// Set while no flow is used because too many are ending.
    suspended: bool,
}

impl Follower {
    /// Creates a follower of the kernel's connections for `table`, which is empty.
    pub fn new(kernel: Kernel, table: Flows, statistics: Arc<Statistics>) -> Self {
        let known = Known { table, statistics };
        Self { kernel, known, backlog: Vec::new(), readings: 0, next: 0, generation: 0, suspended: false }
    }

    /// Receives events from another socket from now on. No flow may be valid until all connections have been read.
    pub fn listen(&mut self, kernel: Kernel) {
        self.kernel = kernel;
    }

    /// Returns the socket that becomes readable with an event.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.kernel.readable()
    }

    /// Returns the table of flows.
    pub fn flows(&mut self) -> &mut Flows {
        &mut self.known.table
    }

    /// Revokes all flows until they have been judged for `generation`. With generation 0, no flow becomes valid.
    pub fn revoke(&mut self, generation: u32, why: Revocation) {
        self.known.table.set_generation(generation);
        (self.generation, self.suspended) = (generation, false);
        self.known.statistics.revoked(why);
    }

    /// Reads all connections, judges those again that have a flow, and removes flows whose connection is gone. Each
    /// flow becomes valid as soon as it is judged, unless many end meanwhile: then no flow is used until
    /// [`Follower::receive`] finds that fewer do. Connections without a flow are left to [`Follower::consider`].
    ///
    /// # Errors
    /// If a socket fails. [`Events::Lost`] means that the table must be read again, and that no flow may be used
    /// meanwhile; it is also returned if the terms have changed, and no flow is used from that moment on.
    pub fn read(&mut self, terms: &Terms<'_>) -> Result<Events, Error> {
        self.readings += 1;
        let Self { kernel, known, backlog, suspended, .. } = self;
        backlog.clear();
        let (mut ended, mut outdated) = (0, false);
        let all = kernel.read(&mut |item| match item {
            Item::Connection(_) if outdated || !(terms.are_current)() => {
                known.table.set_generation(0);
                outdated = true;
            }
            Item::Connection(connection) => {
                if let Some(id) = known.find(&connection.key) {
                    let judged = known.judge(&connection, terms);
                    known.confirm(id, &judged, &connection, terms);
                } else if backlog.len() < known.table.room()
                    && obstacle(&connection).is_none()
                    && !matches!(ways(&connection, terms.routes), Err(Reason::Held))
                {
                    backlog.push(connection.key);
                }
            }
            Item::Event(event) => {
                ended += usize::from(known.handle(&event));
                if ended == MANY {
                    known.table.set_generation(0);
                    *suspended = true;
                }
            }
            Item::Lost => known.table.set_generation(0),
        })?;
        if outdated {
            return Ok(Events::Lost);
        }
        if all == Events::All {
            let old = |id: &FlowId| known.table.generation(*id) != terms.generation;
            let gone: Vec<FlowId> = known.statistics.flows(0..usize::MAX).into_iter().filter(old).collect();
            gone.into_iter().for_each(|id| known.remove(id, Revocation::Gone));
        }
        Ok(all)
    }

    /// Reads pending events. Each takes effect at once.
    ///
    /// While many flows end at once, as when the table is flushed, no flow is used: reading the events takes longer
    /// than the command that causes them.
    ///
    /// # Errors
    /// If a socket fails. [`Events::Lost`] has the same meaning as that of [`Follower::read`].
    pub fn receive(&mut self) -> Result<Events, Error> {
        let Self { kernel, known, .. } = self;
        let mut ended = 0;
        let announced = kernel.receive(DATAGRAMS, |event| {
            ended += usize::from(known.handle(&event));
            if ended == MANY {
                known.table.set_generation(0);
            }
        })?;
        let suspended = ended >= MANY;
        if std::mem::replace(&mut self.suspended, suspended) && !suspended && announced == Events::All {
            self.known.table.set_generation(self.generation);
        }
        Ok(announced)
    }

    /// Judges connections that have no valid flow but were read or have sent packets, and adds flows for those that may
    /// be forwarded.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn consider(&mut self, terms: &Terms<'_>) -> Result<Considered, Error> {
        let Self { kernel, known, backlog, readings, .. } = self;
        let candidates = known.table.candidates(JUDGED);
        let tuple = |(protocol, of): &(u8, flows::Tuple)| Key {
            protocol: *protocol,
            original: Tuple::new((of.src, of.src_port), (of.dst, of.dst_port)),
            zone: 0,
        };
        let mut keys: Vec<Key> = candidates.iter().map(tuple).collect();
        let proposed = keys.len();
        keys.extend(backlog.drain(backlog.len().saturating_sub(JUDGED - keys.len())..));
        // At the start, a million connections would have to be forwarded by the kernel until each has shown itself.
        let shown = if *readings == 1 { keys.len() } else { proposed };
        let shown: HashSet<Key> = keys[..shown].iter().copied().collect();
        let mut found = kernel.get(&keys)?;
        // Packets of both directions propose the same connection.
        found.sort_by_key(|connection| connection.key);
        found.dedup_by_key(|connection| connection.key);
        let mut fit: Vec<(Flow, Connection)> = Vec::new();
        for connection in found {
            let judged = known.judge(&connection, terms);
            let kept = known.find(&connection.key).is_some_and(|id| known.confirm(id, &judged, &connection, terms));
            match judged {
                Ok(_) if kept || !terms.timeouts.lasts(&connection) => {}
                Ok(_) if may_be_masqueraded(&connection, terms.routes) && !shown.contains(&connection.key) => {}
                Ok(_) if fit.len() >= known.table.room() => known.statistics.full(),
                Ok(flow) => fit.push((flow, connection)),
                Err(_) => {}
            }
        }
        // The kernel must go on checking the window of connections of whose end it sends no event.
        let has_window = |connection: &Connection| connection.key.protocol == TCP;
        let same = fit.iter().filter(|(_, connection)| has_window(connection));
        let same: Vec<Change> = same.map(|(_, connection)| unchanged(connection.key)).collect();
        let mut answered = kernel.change(&same)?.into_iter().map(|changed| matches!(changed, Changed::To(_)));
        fit.retain(|(_, connection)| !has_window(connection) || answered.next() == Some(true));
        let changes: Vec<Change> = fit.iter().map(|(_, connection)| without_window_check(connection.key)).collect();
        for ((flow, connection), changed) in fit.iter().zip(kernel.change(&changes)?) {
            // No event is read between this answer and the insertion, so the event of its end is handled after both.
            if matches!(&changed, Changed::To(now) if now.id == connection.id && is_fit(now)) {
                known.insert(flow, connection, terms);
            }
        }
        Ok(Considered { candidates: candidates.len(), more: keys.len() == JUDGED })
    }

    /// Examines a part of the table: renews the connections of valid flows that have been used, and removes flows that
    /// their own packets have revoked, or whose connection has changed or expired. Returns the time until the next
    /// call.
    ///
    /// A connection expires no earlier than if the kernel saw its packets, and at most half of its timeout later. The
    /// kernel sends the event only when it collects the connection, which may be a minute later (gc_worker).
    ///
    /// # Errors
    /// If the socket fails.
    pub fn renew(&mut self, timeouts: &Timeouts) -> Result<Duration, Error> {
        let Self { kernel, known, .. } = self;
        let now = known.statistics.now();
        let places = known.statistics.places().iter().sum();
        let part = known.statistics.flows(self.next..self.next + PART);
        self.next = if self.next + PART < places { self.next + PART } else { 0 };
        // A connection may expire before the next pass: the kernel then has to see whether it is used.
        let soon = now.saturating_add(timeouts.pass() + 1);
        let mut used = Vec::new();
        for id in part {
            if known.table.generation(id) == 0 {
                known.remove(id, Revocation::Closed);
                continue;
            }
            let flow = known.table.flow(id);
            let traffic = known.table.traffic(id);
            let renewal = timeouts.renewal(key(&flow));
            let (renews, expires) = known.statistics.with_state(id, |state| {
                let packets = packets_since(state.packets, &traffic);
                if state.packets != packets {
                    (state.packets, state.used, state.unrenewed) = (packets, now, true);
                }
                let renews = state.unrenewed && now - state.renewed >= timeouts.due(flow.protocol);
                if renews {
                    (state.renewed, state.unrenewed) = (now, false);
                    state.expires = now.saturating_add(renewal.timeout.unwrap_or(0));
                }
                (renews, state.expires <= soon)
            });
            if renews {
                used.push((id, renewal));
            } else if expires {
                known.remove(id, Revocation::Gone);
            }
        }
        let changes: Vec<Change> = used.iter().map(|(_, change)| *change).collect();
        let mut mistaken = Vec::new();
        for ((id, change), changed) in used.into_iter().zip(kernel.change(&changes)?) {
            match changed {
                Changed::To(connection) if known.is_as_judged(id, &connection) => {}
                Changed::To(connection) => {
                    known.remove(id, Revocation::Changed);
                    if let Some(timeout) = timeouts.brief(&connection) {
                        mistaken.push(Change { timeout: Some(timeout), liberal: false, ..change });
                    }
                }
                Changed::Unreported => known.remove(id, Revocation::Changed),
                Changed::Gone => known.remove(id, Revocation::Gone),
            }
        }
        kernel.change(&mistaken)?;
        let pass = Duration::from_secs(timeouts.pass().into());
        let parts = u32::try_from(places.div_ceil(PART)).unwrap_or(u32::MAX).max(1);
        Ok((pass / parts).clamp(Duration::from_millis(1), Duration::from_secs(1)))
    }
}

/// Returns whether a connection may have been masqueraded, perhaps on another interface than its packets leave by now:
/// one without an address gives them that of another. The kernel, which does not tell, ends such a connection with the
/// next packet of its original direction (nf_nat_oif_changed). So a connection that outlives such packets was not.
fn may_be_masqueraded(connection: &Connection, routes: &dyn Routes) -> bool {
    let source = connection.reply.dst.ip();
    source != connection.key.original.src.ip() && routes.is_own(source)
}

/// Returns whether a connection has no obstacle, and the kernel no longer checks its window.
fn is_fit(connection: &Connection) -> bool {
    obstacle(connection).is_none() && (connection.key.protocol != TCP || connection.liberal)
}

/// The table of flows, with the follower's own record of each.
struct Known {
    table: Flows,
    statistics: Arc<Statistics>,
}

impl Known {
    /// Returns the flow of a connection; `None` if there is none.
    fn find(&self, key: &Key) -> Option<FlowId> {
        (key.zone == 0).then(|| self.table.find(key.protocol, &tuple(key.original)))?
    }

    fn remove(&mut self, id: FlowId, why: Revocation) {
        let revoked = self.table.generation(id) == 0;
        self.table.remove(id);
        self.statistics.removed(id, if revoked { Revocation::Closed } else { why }, self.table.traffic(id));
    }

    /// Removes the flow of a connection that, by this event, is gone or has changed since it was judged. Returns
    /// whether a flow was removed.
    fn handle(&mut self, event: &Event) -> bool {
        let Some(flow) = self.find(&event.key()) else { return false };
        match event {
            Event::Present { connection } if self.is_as_judged(flow, connection) => return false,
            Event::Present { .. } => self.remove(flow, Revocation::Changed),
            Event::Gone { id, .. } => {
                if id.is_some_and(|id| self.statistics.with_state(flow, |state| state.id) != id) {
                    return false;
                }
                self.remove(flow, Revocation::Gone);
            }
        }
        true
    }

    /// Returns whether the properties by which a flow was judged are unchanged. Events leave out unchanged properties.
    fn is_as_judged(&self, id: FlowId, connection: &Connection) -> bool {
        self.statistics.with_state(id, |state| state.judged) == hash_judged(connection)
            && matches!(obstacle(connection), None | Some(Obstacle::StateMissing))
            && self.table.flow(id).reply == tuple(connection.reply)
    }

    /// Makes a flow valid if `judged` is the same flow, of the same connection, which lasts; otherwise removes it.
    /// Returns whether it is valid.
    fn confirm(
        &mut self,
        id: FlowId,
        judged: &Result<Flow, Reason>,
        connection: &Connection,
        terms: &Terms<'_>,
    ) -> bool {
        let same = self.statistics.with_state(id, |state| state.id) == connection.id
            && judged.as_ref().ok() == Some(&self.table.flow(id));
        // Fails if the flow's own packets have revoked it.
        let confirmed = same && terms.timeouts.lasts(connection) && self.table.confirm(id, terms.generation);
        if confirmed {
            let expires = self.statistics.now().saturating_add(terms.timeouts.left(connection));
            self.statistics.with_state(id, |state| (state.judged, state.expires) = (hash_judged(connection), expires));
        } else {
            self.remove(id, Revocation::Changed);
        }
        confirmed
    }

    fn judge(&self, connection: &Connection, terms: &Terms<'_>) -> Result<Flow, Reason> {
        let began = Instant::now();
        let judged = flow(connection, terms.judge, terms.routes);
        self.statistics.judged(began.elapsed());
        judged
    }

    /// Adds a flow, unless the table is full, which leaves the connection to the kernel.
    fn insert(&mut self, flow: &Flow, connection: &Connection, terms: &Terms<'_>) {
        match self.table.insert(flow, terms.generation) {
            Ok(id) => {
                let left = terms.timeouts.left(connection);
                self.statistics.inserted(id, connection.id, hash_judged(connection), left);
            }
            Err(Refused::Full) => self.statistics.full(),
            Err(Refused::Known | Refused::Unfit) => {}
        }
    }
}

/// Hashes the properties by which a connection is judged and which may change. The status bit for the kernel's flow
/// table is left out: it comes and goes without an event, and no verdict depends on it.
fn hash_judged(connection: &Connection) -> u64 {
    let Connection { id, status, mark, .. } = *connection;
    let status = status & !status::OFFLOAD;
    (u64::from(id) << 32 | u64::from(mark)) ^ u64::from(status).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn key(flow: &Flow) -> Key {
    let flows::Tuple { src, dst, src_port, dst_port } = flow.original;
    Key { protocol: flow.protocol, original: Tuple::new((src, src_port), (dst, dst_port)), zone: 0 }
}
