//! Keeps a flow table in step with the kernel's connections.
//!
//! A connection enters the table by an announcement only: with `net.netfilter.nf_conntrack_events` at 2, its default,
//! the kernel announces nothing of connections that began while nobody listened, not even their end. Those that are
//! read are changed without effect, which the kernel announces if it announces anything of them.

use crate::connection::{Connection, Key, Tuple, tcp};
use crate::judge::{Judge, Refusal};
use crate::kernel::{Announced, Change, Error, Heard, Kernel};
use crate::message::Announcement;
use crate::obstacle::{Obstacle, obstacle};
use bywash_exceptions::nft::Interface;
use bywash_fib::flows::{self, Flow, FlowId, Flows};
use rustix::fd::BorrowedFd;
use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Announcements that are heard before other work is looked at, in datagrams.
const DATAGRAMS: usize = 256;
/// Flows of which the use is looked at in a call of [`Follower::renew`].
const PART: usize = 1024;

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
        let tcp = key.protocol == TCP;
        let timeout = if tcp { self.tcp } else { self.udp };
        Change { key, timeout: Some(timeout.saturating_add(timeout / 4)), liberal: tcp }
    }
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
    /// The table of flows has no room.
    Full,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Obstacle(obstacle) => obstacle.fmt(f),
            Self::Route => f.write_str("not routed between two ports"),
            Self::Firewall(refusal) => refusal.fmt(f),
            Self::Full => f.write_str("table of flows is full"),
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

/// State of a flow beside the table.
#[derive(Clone, Copy, Debug, Default)]
struct Beside {
    /// Whether the flow is in the table.
    present: bool,
    /// Identifier of its connection.
    id: u32,
    /// Status, mark and identifier as they were judged, mixed.
    judged: u64,
    /// Packets when its use was looked at last, modulo 2^32.
    packets: u32,
    /// Second, since the follower's start, in which the connection was renewed last.
    renewed: u32,
}

/// The table of flows, with what is known of each beside it.
struct Known {
    table: Flows,
    /// By family, IPv4 first, and index of the flow.
    beside: [Vec<Beside>; 2],
}

impl Known {
    fn beside(&mut self, id: FlowId) -> &mut Beside {
        let beside = &mut self.beside[usize::from(id.is_v6())];
        let len = beside.len().max(id.index() + 1);
        beside.resize(len, Beside::default());
        &mut beside[id.index()]
    }

    fn remove(&mut self, id: FlowId) {
        self.table.remove(id);
        self.beside(id).present = false;
    }

    /// Returns the flows among those at these places, of both families in turn.
    fn flows(&self, places: Range<usize>) -> impl Iterator<Item = FlowId> {
        let [v4, v6] = &self.beside;
        let places = places.start..places.end.min(v4.len() + v6.len());
        let id = |at: usize| FlowId::new(at >= v4.len(), if at < v4.len() { at } else { at - v4.len() });
        places.map(id).filter(|id| self.beside[usize::from(id.is_v6())][id.index()].present)
    }

    fn places(&self) -> usize {
        self.beside.iter().map(Vec::len).sum()
    }
}

/// Keeps a table of flows in step with the kernel's connections. One thread uses it.
pub struct Follower {
    kernel: Kernel,
    known: Known,
    /// Changes that make the kernel announce connections which could be taken then.
    provoked: Vec<Key>,
    began: Instant,
    /// Place of the flow of which the use is looked at next.
    next: usize,
}

impl Follower {
    /// Creates a follower of the kernel's connections that keeps this table.
    pub fn new(kernel: Kernel, table: Flows) -> Self {
        let known = Known { table, beside: [Vec::new(), Vec::new()] };
        Self { kernel, known, provoked: Vec::new(), began: Instant::now(), next: 0 }
    }

    /// Returns the socket that becomes readable with an announcement.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.kernel.readable()
    }

    /// Returns the table of flows.
    pub fn flows(&mut self) -> &mut Flows {
        &mut self.known.table
    }

    /// Reads all connections, judges them anew, and removes the flows of all others. Flows become valid with
    /// `generation` as they are judged.
    ///
    /// # Errors
    /// If a socket fails. [`Announced::Lost`] means that the table must be read again, and that no flow may be used
    /// meanwhile.
    pub fn read(
        &mut self,
        generation: u32,
        judge: &Judge<'_>,
        routes: &dyn Routes,
        timeouts: &Timeouts,
    ) -> Result<Announced, Error> {
        let now = self.now();
        let Self { kernel, known, provoked, .. } = self;
        let mut looking = Looking { known, provoked, generation, now, judge, routes };
        let all = kernel.read(&mut |heard| match heard {
            Heard::Read(connection) => looking.read(&connection),
            Heard::Announced(announcement) => looking.announced(announcement),
            Heard::Lost => looking.known.table.set_generation(0),
        })?;
        if all == Announced::All {
            let old = |id: &FlowId| self.known.table.generation(*id) != generation;
            let gone: Vec<FlowId> = self.known.flows(0..usize::MAX).filter(old).collect();
            gone.into_iter().for_each(|id| self.known.remove(id));
        }
        self.provoke(timeouts)?;
        Ok(all)
    }

    /// Hears pending announcements.
    ///
    /// # Errors
    /// As [`Follower::read`].
    pub fn hear(
        &mut self,
        generation: u32,
        judge: &Judge<'_>,
        routes: &dyn Routes,
        timeouts: &Timeouts,
    ) -> Result<Announced, Error> {
        let now = self.now();
        let Self { kernel, known, provoked, .. } = self;
        let mut looking = Looking { known, provoked, generation, now, judge, routes };
        let all = kernel.hear(DATAGRAMS, |announcement| looking.announced(announcement))?;
        self.provoke(timeouts)?;
        Ok(all)
    }

    /// Renews the connections of valid flows that have been used, for a part of the table. Returns the time until the
    /// next call.
    ///
    /// A connection expires no earlier than if the kernel saw its packets, and at most half of its timeout later.
    ///
    /// # Errors
    /// If the socket fails.
    pub fn renew(&mut self, timeouts: &Timeouts) -> Result<Duration, Error> {
        let now = self.now();
        let known = &mut self.known;
        let places = known.places();
        let part: Vec<FlowId> = known.flows(self.next..self.next + PART).collect();
        self.next = if self.next + PART < places { self.next + PART } else { 0 };
        let mut changes = Vec::new();
        for id in part {
            let packets = known.table.traffic(id).iter().fold(0, |sum, one| one.packets.wrapping_add(sum));
            let beside = *known.beside(id);
            // A flow that its own packets have revoked is the kernel's.
            if beside.packets == packets || known.table.generation(id) == 0 {
                continue;
            }
            let flow = known.table.flow(id);
            if now - beside.renewed >= timeouts.due(flow.protocol) {
                *known.beside(id) = Beside { packets, renewed: now, ..beside };
                changes.push(timeouts.renewal(key(&flow)));
            }
        }
        self.change(&changes)?;
        let pass = Duration::from_secs(timeouts.due(TCP).min(timeouts.due(UDP)).into());
        let parts = u32::try_from(places.div_ceil(PART)).unwrap_or(u32::MAX).max(1);
        Ok((pass / parts).clamp(Duration::from_millis(1), Duration::from_secs(1)))
    }

    /// Makes changes; flows of connections that are gone are removed.
    fn change(&mut self, changes: &[Change]) -> Result<(), Error> {
        for gone in self.kernel.change(changes)? {
            if let Some(id) = self.known.table.find(gone.protocol, &tuple(gone.original)) {
                self.known.remove(id);
            }
        }
        Ok(())
    }

    /// Renews connections: those that could be taken, so that the kernel announces them, and those just taken.
    fn provoke(&mut self, timeouts: &Timeouts) -> Result<(), Error> {
        let changes: Vec<Change> = self.provoked.drain(..).map(|key| timeouts.renewal(key)).collect();
        self.change(&changes)
    }

    /// Returns the seconds since the follower's start.
    fn now(&self) -> u32 {
        self.began.elapsed().as_secs() as u32
    }
}

/// The follower while it looks at connections.
struct Looking<'a> {
    known: &'a mut Known,
    provoked: &'a mut Vec<Key>,
    generation: u32,
    now: u32,
    judge: &'a Judge<'a>,
    routes: &'a dyn Routes,
}

impl Looking<'_> {
    /// Looks at a connection that was read.
    fn read(&mut self, connection: &Connection) {
        let known = self.find(&connection.key);
        let judged = self.judge(connection);
        if !self.keeps(known, &judged, connection) && judged.is_ok() {
            self.provoked.push(connection.key);
        }
    }

    fn announced(&mut self, announcement: Announcement) {
        let known = self.find(&announcement.key());
        let mut connection = match announcement {
            Announcement::Present { connection, .. } => connection,
            Announcement::Gone { id, .. } => {
                if let Some(known) = known.filter(|known| id.is_none_or(|id| self.known.beside(*known).id == id)) {
                    self.known.remove(known);
                }
                return;
            }
        };
        // What is not told has not changed.
        let untold = connection.key.protocol == TCP && connection.tcp_state.is_none();
        if untold {
            connection.tcp_state = Some(tcp::ESTABLISHED);
        }
        if let Some(id) = known.filter(|id| self.is_as_judged(*id, &connection)) {
            self.known.table.confirm(id, self.generation);
            return;
        }
        let judged = self.judge(&connection);
        if self.keeps(known, &judged, &connection) {
            return;
        }
        let Ok(flow) = judged else { return };
        // One whose flow was in the table may just have been closed: the next announcement tells.
        let certain = known.is_none() && !untold && (connection.key.protocol != TCP || connection.liberal);
        if certain {
            self.insert(&flow, &connection);
        }
        self.provoked.push(connection.key);
    }

    /// Returns whether a flow is valid and nothing that it was judged by has changed.
    fn is_as_judged(&mut self, id: FlowId, connection: &Connection) -> bool {
        self.known.table.generation(id) == self.generation
            && self.known.beside(id).judged == mixed(connection)
            && obstacle(connection).is_none()
            && self.known.table.flow(id).reply == tuple(connection.reply)
    }

    /// Makes a known flow valid if it is the judged one, of the same connection, and removes it otherwise. Returns
    /// whether it is valid.
    fn keeps(&mut self, known: Option<FlowId>, judged: &Result<Flow, Reason>, connection: &Connection) -> bool {
        let Some(id) = known else { return false };
        let same =
            self.known.beside(id).id == connection.id && judged.as_ref().ok() == Some(&self.known.table.flow(id));
        // Fails if the flow's own packets have revoked it.
        let kept = same && self.known.table.confirm(id, self.generation);
        if kept {
            self.known.beside(id).judged = mixed(connection);
        } else {
            self.known.remove(id);
        }
        kept
    }

    fn find(&self, key: &Key) -> Option<FlowId> {
        (key.zone == 0).then(|| self.known.table.find(key.protocol, &tuple(key.original)))?
    }

    fn judge(&self, connection: &Connection) -> Result<Flow, Reason> {
        flow(connection, self.judge, self.routes)
    }

    fn insert(&mut self, flow: &Flow, connection: &Connection) {
        // A full table leaves the connection to the kernel, which needs no error.
        let Ok(id) = self.known.table.insert(flow, self.generation) else { return };
        *self.known.beside(id) =
            Beside { present: true, id: connection.id, judged: mixed(connection), packets: 0, renewed: self.now };
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
