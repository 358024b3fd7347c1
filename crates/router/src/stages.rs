//! The fast path: stages input, lookup and forward.

use crate::bytes::address6;
use crate::gates::{Gates, is_kept};
use crate::request::{Request, RouterConfig};
use crate::slow::{Inner, SlowPath};
use crate::tables::{Entry, Kind, PortInfo, Reception, SourceCheck, Tables, takes_source};
use crate::translate::Translator;
use crate::tunnel::OuterRoute;
use crate::valid::{OWN, Validation4, valid6};
use crate::vlan::{self, Ingress, Tag};
use crate::waiting::Waiting;
use bywash_engine::{App, Context, DropReason, Event, PortId};
use bywash_fib::flows::FlowTables;
use bywash_frame::{Arena, BATCH, Batch, Burst, Frame, Heads};
use bywash_sync::{Published, hint::prefetch};
use bywash_wire::ethernet::HEADER_LEN;
use bywash_wire::partial;
use std::sync::Arc;

/// Names of the stages, in order.
pub(crate) const STAGES: &[&str] = &["input", "lookup", "forward", "slow"];
const INPUT: usize = 0;
const LOOKUP: usize = 1;
const FORWARD: usize = 2;
const SLOW: usize = 3;

/// Marks a packet for the slow path, in place of a next-hop id.
const EXCEPTION: u32 = u32::MAX;
/// Set in a next-hop id when the packet is IPv6.
const V6: u32 = 1 << 31;

/// The router of one worker.
pub struct Router {
    tables: Arc<Published<Tables>>,
    work: Box<Work>,
    path: SlowPath,
    /// `None` if no flows pass closed gates.
    translator: Option<Box<Translator>>,
}

/// State of a burst that the stages share. It is reused for all bursts; fields that will be overwritten are not
/// cleared.
struct Work {
    heads: Heads,
    validation: Validation4,
    /// Valid packets of a mixed burst, by family.
    v4: Lookup<u32>,
    v6: Lookup<u128>,
    /// Next hop of each packet: its id, with `V6` for an IPv6 packet, or `EXCEPTION`.
    next: [u32; BATCH],
    /// Egress port of each packet, or `NOWHERE`.
    to: [PortId; BATCH],
}

/// Index of the IPv4 sources among the words of a burst's heads.
const SOURCES: usize = 4;
/// Marks a packet without an egress port, which is for a tunnel or the slow path.
const NOWHERE: PortId = PortId(u16::MAX);

/// Packets of one family in a burst.
struct Lookup<A> {
    n: usize,
    dst: [A; BATCH],
    /// Positions in the burst.
    at: [u8; BATCH],
    id: [u32; BATCH],
}

impl<A: Copy + Default> Lookup<A> {
    fn new() -> Self {
        Self { n: 0, dst: [A::default(); BATCH], at: [0; BATCH], id: [0; BATCH] }
    }

    fn add(&mut self, at: usize, dst: A) {
        self.dst[self.n] = dst;
        self.at[self.n] = at as u8;
        self.n += 1;
    }
}

impl Router {
    /// Creates a router that looks up `tables` and sends its requests to `requests`. It leaves no packets to the kernel
    /// because of policies unless [`Router::with_gates`] sets gates.
    pub fn new(tables: Arc<Published<Tables>>, requests: rtrb::Producer<Request>, config: RouterConfig) -> Self {
        let path = SlowPath::new(requests, config);
        let work = Work {
            heads: Heads::default(),
            validation: Validation4::new(),
            v4: Lookup::new(),
            v6: Lookup::new(),
            next: [EXCEPTION; BATCH],
            to: [NOWHERE; BATCH],
        };
        Self { tables, work: Box::new(work), path, translator: None }
    }

    /// Leaves to the kernel the packets that these gates keep.
    #[must_use]
    pub fn with_gates(mut self, gates: Gates) -> Self {
        self.path.gates = gates;
        self
    }

    /// Forwards packets of these flows, whose readers belong to the tables' domain, past gates that let flows pass.
    #[must_use]
    pub fn with_flows(mut self, flows: FlowTables) -> Self {
        self.translator = Some(Box::new(Translator::new(flows)));
        self
    }
}

/// Packets of a burst that were rewritten.
enum Rewritten {
    /// All packets, and all leave by this port.
    ToOne(PortId),
    /// All packets, which leave by several ports, or by a VLAN or bond.
    ToSeveral,
    /// Not all packets: the others have no port yet.
    InPart,
}

impl Work {
    /// Checks every packet. Returns the burst, and whether all packets are valid IPv4; if not, lists the valid ones of
    /// each family.
    #[inline]
    fn input<'a>(
        &mut self,
        arena: &'a Arena,
        tables: &Tables,
        port: Option<&PortInfo>,
        frames: &'a mut [Frame],
    ) -> (Burst<'a>, bool) {
        let burst = self.heads.read(arena, frames);
        let n = burst.frames().len().min(BATCH);
        let faults = self.validation.validate(&self.heads, n, tables.own4);
        let mixed = if faults & OWN != 0 { self.check_own_sources(tables, port, n) } else { faults != 0 };
        if mixed {
            self.split_by_family(arena, burst.frames());
        }
        (burst, !mixed)
    }

    /// Looks up the sources that may be the host's own addresses; returns whether any packet has a fault.
    #[cold]
    fn check_own_sources(&mut self, tables: &Tables, port: Option<&PortInfo>, n: usize) -> bool {
        let addresses = self.heads.words[SOURCES].iter().zip(&self.validation.dst);
        let mut all = 0;
        for (fault, (src, dst)) in self.validation.faults[..n].iter_mut().zip(addresses) {
            let back = || tables.entry(tables.back4(port, src.swap_bytes(), *dst)).kind;
            if *fault == OWN && !matches!(back(), Kind::Local | Kind::Policy) {
                *fault = 0;
            }
            all |= *fault;
        }
        all != 0
    }

    /// Looks up the sources of IPv4 packets, and marks for the slow path those that the kernel might not accept.
    #[cold]
    fn check_sources(&mut self, tables: &Tables, n: usize, from: PortId, port: &PortInfo) {
        let check = port.source_check;
        let Self { heads, validation, v4: Lookup { dst: sources, id: back, .. }, next, .. } = self;
        let n = n.min(BATCH);
        heads.words[SOURCES].iter().zip(&mut *sources).for_each(|(raw, src)| *src = raw.swap_bytes());
        if port.back4.is_empty() {
            tables.fib4.lookup_batch(&sources[..n], &mut back[..n]);
        } else {
            port.back4.lookup_batch(&tables.entries, &validation.dst[..n], &sources[..n], &mut back[..n]);
        }
        for (next, back) in next[..n].iter_mut().zip(&*back).filter(|(next, _)| **next & V6 == 0) {
            if !takes_source(tables, check, tables.entry(*back), from) {
                *next = EXCEPTION;
            }
        }
    }

    /// Lists the valid packets of each family.
    fn split_by_family(&mut self, arena: &Arena, frames: &[Frame]) {
        (self.v4.n, self.v6.n) = (0, 0);
        for (i, frame) in frames.iter().enumerate().take(BATCH) {
            if self.validation.faults[i] == 0 {
                self.v4.add(i, self.validation.dst[i]);
            } else if let Some(dst) = arena.head(frame).and_then(|h| valid6(h, frame.len() - HEADER_LEN)) {
                self.v6.add(i, dst);
            }
        }
    }

    /// Looks up the next hops of the `n` packets. `all4` is set if all of them are valid IPv4 packets.
    #[inline]
    fn lookup(&mut self, tables: &Tables, n: usize, all4: bool) {
        let Self { validation, v4, v6, next, .. } = self;
        let n = n.min(BATCH);
        if all4 {
            tables.fib4.lookup_batch(&validation.dst[..n], &mut next[..n]);
        } else {
            next.fill(EXCEPTION);
            tables.fib4.lookup_batch(&v4.dst[..v4.n.min(BATCH)], &mut v4.id[..v4.n.min(BATCH)]);
            for (id, at) in v4.id.iter().zip(&v4.at).take(v4.n) {
                next[usize::from(*at) % BATCH] = *id;
            }
            tables.fib6.lookup_batch(&v6.dst[..v6.n.min(BATCH)], &mut v6.id[..v6.n.min(BATCH)]);
            for (id, at) in v6.id.iter().zip(&v6.at).take(v6.n) {
                next[usize::from(*at) % BATCH] = *id | V6;
            }
        }
        // A small table is in the cache anyway.
        if tables.entries.len() > 256 {
            next.iter().take(n).filter_map(|id| tables.entries.get((id & !V6) as usize)).for_each(prefetch);
        }
    }

    /// Looks up the next hops of the packets by the port's rules. `all4` is set if all of them are valid IPv4 packets.
    #[cold]
    fn lookup_by_rules(&mut self, arena: &Arena, tables: &Tables, port: &PortInfo, frames: &[Frame], all4: bool) {
        let Self { heads, validation, v4, v6, next, .. } = self;
        if all4 {
            (v4.n, v6.n) = (0, 0);
            let dst = validation.dst.iter().take(frames.len());
            dst.enumerate().for_each(|(at, dst)| v4.add(at, *dst));
        }
        next.fill(EXCEPTION);
        let (n4, n6) = (v4.n.min(BATCH), v6.n.min(BATCH));
        let (at4, at6) = (&v4.at[..n4], &v6.at[..n6]);
        let (mut src4, mut src6) = ([0; BATCH], [0; BATCH]);
        for (src, at) in src4.iter_mut().zip(at4) {
            *src = heads.words[SOURCES][usize::from(*at) % BATCH].swap_bytes();
        }
        for (src, at) in src6.iter_mut().zip(at6) {
            let ip = frames.get(usize::from(*at)).and_then(|frame| arena.data(frame).get(HEADER_LEN + 8..));
            *src = ip.map_or(0, address6);
        }
        if port.rules4.is_empty() {
            tables.fib4.lookup_batch(&v4.dst[..n4], &mut v4.id[..n4]);
        } else {
            port.rules4.lookup_batch(&tables.entries, &src4[..n4], &v4.dst[..n4], &mut v4.id[..n4]);
        }
        if port.rules6.is_empty() {
            tables.fib6.lookup_batch(&v6.dst[..n6], &mut v6.id[..n6]);
        } else {
            port.rules6.lookup_batch(&tables.entries, &src6[..n6], &v6.dst[..n6], &mut v6.id[..n6]);
        }
        at4.iter().zip(&v4.id).for_each(|(at, id)| next[usize::from(*at) % BATCH] = *id);
        at6.iter().zip(&v6.id).for_each(|(at, id)| next[usize::from(*at) % BATCH] = *id | V6);
    }

    /// Rewrites the packets that can be forwarded at once and records their egress ports. Returns the port if all go to
    /// one. Packets that would be sent on `back` are left to the slow path: with redirects enabled, a packet sent on
    /// the port that received it causes a redirect.
    #[inline]
    fn forward(
        &mut self,
        arena: &Arena,
        tables: &Tables,
        mut burst: Burst<'_>,
        all4: bool,
        back: PortId,
    ) -> Option<PortId> {
        let n = burst.frames().len().min(BATCH);
        if all4 && back == NOWHERE {
            match self.rewrite_plain(tables, &mut burst) {
                Rewritten::ToOne(port) => return Some(port),
                Rewritten::ToSeveral => return None,
                Rewritten::InPart => {}
            }
        } else {
            self.to.fill(NOWHERE);
        }
        self.rewrite_rest(arena, tables, burst.into_frames(), back);
        let to = &self.to[..n];
        let first = *to.first()?;
        let differ = to.iter().fold(0, |differ, to| differ | (to.0 ^ first.0));
        (differ == 0 && first.is_port()).then_some(first)
    }

    /// Rewrites, in a burst of valid IPv4 packets, those whose next hop is resolved and not a group and that fit its
    /// MTU.
    // Not inlined: the rest of `process_batch` takes so many registers that the loop would reload two of them for each
    // packet.
    #[inline(never)]
    fn rewrite_plain(&mut self, tables: &Tables, burst: &mut Burst<'_>) -> Rewritten {
        let Self { validation, next, to, .. } = self;
        let Some(heads) = burst.heads_mut() else {
            to.fill(NOWHERE);
            return Rewritten::InPart;
        };
        let first = tables.entry(next[0]).port;
        // The ports are compared as they are found: loading from `to` in longer words right after the stores would wait
        // for them to leave the store buffer.
        let (mut all, mut differ) = (true, 0);
        let found = next.iter().zip(&validation.room).zip(&validation.hop);
        for ((head, to), ((&id, &room), &new)) in heads.zip(to).zip(found) {
            match tables.entries.get(id as usize) {
                Some(hop) if hop.kind == Kind::Forward && room <= hop.mtu => {
                    rewrite4(hop, new, head);
                    *to = hop.port;
                    differ |= hop.port.0 ^ first.0;
                }
                _ => (*to, all) = (NOWHERE, false),
            }
        }
        match all {
            true if differ == 0 && first.is_port() => Rewritten::ToOne(first),
            true => Rewritten::ToSeveral,
            false => Rewritten::InPart,
        }
    }

    /// Rewrites the packets of either family that have no port yet, by their next hop or a member of its group.
    fn rewrite_rest(&mut self, arena: &Arena, tables: &Tables, frames: &mut [Frame], back: PortId) {
        let Self { validation, next, to, .. } = self;
        for (i, frame) in frames.iter_mut().enumerate().take(BATCH) {
            let (id, v6) = (next[i] & !V6, next[i] & V6 != 0);
            if next[i] == EXCEPTION || to[i] != NOWHERE {
                continue;
            }
            let hop = tables.entry(tables.resolve(id, arena.data(frame)));
            // Padding counts, too: the device would refuse too long a frame. The slow path removes it.
            let room = (frame.len() as u32).wrapping_sub(HEADER_LEN as u32);
            let Some(head) = arena.head_mut::<HEAD4>(frame) else { continue };
            if hop.kind != Kind::Forward || room > hop.mtu || (back != NOWHERE && tables.number(hop.port) == back) {
                continue;
            }
            if v6 {
                rewrite6(hop, head);
            } else {
                rewrite4(hop, validation.hop[i], head);
            }
            to[i] = hop.port;
        }
    }
}

impl Router {
    /// Processes the frames of each of a port's VLANs and macvlans as a batch of its own. Frames that remain in `batch`
    /// belong to the port itself or to the kernel.
    #[cold]
    fn process_tagged(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        loop {
            let tables = self.tables.load(cx.reader);
            let Some(port) = tables.port(from) else { return };
            let mut tagged = Batch::new();
            let Some((id, has_tag)) = vlan::take(cx.bufs.arena(), port, batch, &mut tagged) else { return };
            let tag = match (has_tag, tables.vlan(id)) {
                (false, _) => Tag::None,
                (true, Some(_)) => Tag::OfPort,
                (true, None) => Tag::OfBridge,
            };
            self.process_batch(cx, Ingress { port: from, id, tag, outer: None }, &mut tagged);
        }
    }

    /// Processes a batch from a port, or of one of its VLANs.
    #[inline]
    fn process_batch(&mut self, cx: &mut Context<'_>, from: Ingress, batch: &mut Batch) {
        let Self { tables, work, path, translator } = self;
        let tables = tables.load(cx.reader);
        let (port, id) = (tables.port(from.id), from.id);
        if port.is_none() && from.port != from.id {
            // The interface has gone since its frames were selected.
            return batch.drain().for_each(|frame| path.punt(cx, from, frame));
        }
        // Each member of a bond or bridge has a device of its own.
        let device = tables.ports.get(usize::from(from.port.0));
        if let (Some(port), Some(device)) = (port, device)
            && (device.reception != Reception::Own || !port.macvlans.is_empty())
        {
            // A bridge forwards frames without a tag, and those of its VLANs.
            let bridged = from.tag == Tag::OfBridge || tables.number(from.port) == id;
            let others = device.reception == Reception::Bridged && !bridged;
            let reception = if others { Reception::Own } else { device.reception };
            filter_by_mac(cx, tables, path, (port, reception), from, batch);
        }
        let arena = cx.bufs.arena();
        if device.is_some_and(|device| device.partial_checksums) {
            let done = batch.as_mut_slice().iter_mut().map(|f| complete(arena.data_mut(f))).sum();
            cx.event(from.port, Event::ChecksumCompleted, done);
        }
        // After the checksums: the mark of an unfinished checksum does not travel with a punted packet.
        if path.gates.keeps_any(id) {
            punt_kept(cx, tables, path, translator.as_deref_mut(), from, batch);
        }
        let (n, arena) = (batch.len(), cx.bufs.arena());
        let (burst, all4) = work.input(arena, tables, port, batch.as_mut_slice());
        cx.stage(INPUT, n);
        match port.filter(|port| !port.rules4.is_empty() || !port.rules6.is_empty()) {
            Some(port) => work.lookup_by_rules(arena, tables, port, burst.frames(), all4),
            None => work.lookup(tables, n, all4),
        }
        if let Some(port) = port.filter(|p| p.source_check != SourceCheck::Off) {
            work.check_sources(tables, n, id, port);
        }
        cx.stage(LOOKUP, n);
        let back = if path.config.redirects { id } else { NOWHERE };
        let to = work.forward(arena, tables, burst, all4, back);
        cx.stage(FORWARD, n);
        match to {
            Some(to) => {
                cx.send_batch(from.port, to, batch);
                cx.sent(n);
            }
            None => dispatch(cx, tables, from, batch, work, path),
        }
        if !path.inner.frames.is_empty() {
            forward_inner(cx, tables, path, translator.as_deref_mut());
        }
    }
}

/// Forwards the inner packets that belong to flows, and punts the others.
#[cold]
fn forward_inner(cx: &mut Context<'_>, tables: &Tables, path: &mut SlowPath, mut translator: Option<&mut Translator>) {
    let (mut frames, origins) = (Batch::new(), path.inner.from);
    path.inner.frames.move_to(&mut frames);
    let mut alike = Batch::new();
    let mut flush = |cx: &mut Context<'_>, from: Ingress, batch: &mut Batch| {
        if let Some(translator) = translator.as_deref_mut() {
            translator.forward(cx, tables, path, (path.gates.get(from.id), from), batch);
        }
        // The gate has opened since: punt these rather than look them up again.
        batch.drain().for_each(|frame| path.punt(cx, from, frame));
    };
    let n = frames.len();
    for (at, frame) in frames.drain().enumerate() {
        let pushed = alike.push(frame);
        debug_assert!(pushed.is_ok());
        if at + 1 == n || origins[at + 1] != origins[at] {
            flush(cx, origins[at], &mut alike);
        }
    }
}

impl App for Router {
    fn stages(&self) -> &'static [&'static str] {
        STAGES
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let port = self.tables.load(cx.reader).ports.get(usize::from(from.0));
        if port.is_some_and(|port| !port.vlans.is_empty() || !port.macvlans.is_empty()) {
            self.process_tagged(cx, from, batch);
            if batch.is_empty() {
                return;
            }
        }
        let id = self.tables.load(cx.reader).number(from);
        self.process_batch(cx, Ingress { port: from, id, tag: Tag::None, outer: None }, batch);
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.path.waiting.is_empty() {
            let Self { tables, path, translator, .. } = self;
            let tables = tables.load(cx.reader);
            path.release(cx, tables);
            // A waiting packet may have become one to this host.
            if !path.inner.frames.is_empty() {
                forward_inner(cx, tables, path, translator.as_deref_mut());
            }
        }
        !self.path.waiting.is_empty()
    }

    fn held(&self) -> usize {
        self.path.waiting.len()
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        while let Some(w) = self.path.waiting.pop() {
            cx.drop(w.from.port, DropReason::PortDown, w.frame);
        }
    }

    /// Continues with an empty queue of waiting packets. Tables and flows do not belong to this worker, which changes
    /// the counters and the validity of flows by single stores; the state of a burst, including the translator's, is
    /// overwritten by the next one; and the rest only limits the rate of ICMP errors.
    fn recover(&mut self) -> bool {
        (self.path.waiting, self.path.inner) = (Waiting::new(), Inner::new());
        true
    }
}

/// Drops frames to other hosts, which a promiscuous port receives, and punts frames to group MAC addresses that carry a
/// unicast packet: no router forwards those (RFC 1812 5.3.4; ip_forward, ip6_forward). On a port with macvlans, a
/// program may still hand over frames to a former address of one of them: they are punted, too. Frames to other
/// stations that a bridge forwards go through a VXLAN or to the kernel.
fn filter_by_mac(
    cx: &mut Context<'_>,
    tables: &Tables,
    path: &mut SlowPath,
    (port, reception): (&PortInfo, Reception),
    from: Ingress,
    batch: &mut Batch,
) {
    let arena = cx.bufs.arena();
    let mine = |frame: &Frame| {
        let data = arena.data(frame);
        match data.first_chunk::<6>() {
            Some(to) if to[0] & 1 != 0 => !carries_unicast(data),
            Some(to) => reception == Reception::Link || *to == port.mac,
            None => true,
        }
    };
    if batch.as_slice().iter().all(mine) {
        return;
    }
    let mut others = Batch::new();
    batch.filter(|_, frame| if mine(&frame) { Some(frame) } else { others.push(frame).err() });
    for frame in others.drain() {
        // The frame may be for this host: the kernel decides.
        let group = cx.bufs.arena().data(&frame)[0] & 1 != 0;
        let may_be = reception == Reception::Own || group;
        if reception == Reception::Bridged && !group {
            path.bridge(cx, tables, from, frame);
        } else if may_be && port.index != 0 {
            path.punt(cx, from, frame);
        } else {
            cx.drop(from.port, DropReason::NotMine, frame);
        }
    }
}

/// Returns whether a frame carries an IP packet to a unicast address.
fn carries_unicast(data: &[u8]) -> bool {
    match data.get(12..14) {
        Some([0x08, 0x00]) => data.get(30).is_some_and(|first| *first < 224),
        Some([0x86, 0xdd]) => data.get(38).is_some_and(|first| *first != 0xff),
        _ => false,
    }
}

/// Punts the packets that the port's gate keeps, except for those of flows, which it forwards.
#[cold]
fn punt_kept(
    cx: &mut Context<'_>,
    tables: &Tables,
    path: &mut SlowPath,
    translator: Option<&mut Translator>,
    from: Ingress,
    batch: &mut Batch,
) {
    let gate = path.gates.get(from.id);
    if let Some(translator) = translator.filter(|_| !gate.flows.is_empty()) {
        return translator.forward(cx, tables, path, (gate, from), batch);
    }
    batch.filter(|_, frame| {
        if !is_kept(gate, cx.bufs.arena().data(&frame)) {
            return Some(frame);
        }
        cx.event(from.port, Event::KeptByPolicy, 1);
        path.punt(cx, from, frame);
        None
    });
}

/// Sends the packets of a burst to their egress ports. Those that go through tunnels, or came through them, and all
/// others without a port take the slow path.
fn dispatch(
    cx: &mut Context<'_>,
    tables: &Tables,
    from: Ingress,
    batch: &mut Batch,
    Work { to: egress, next, .. }: &Work,
    path: &mut SlowPath,
) {
    let n = batch.len();
    let (mut exceptions, mut tunnelled, mut hops) = (Batch::new(), Batch::new(), [0; BATCH]);
    for (frame, (&to, &next)) in batch.drain().zip(egress.iter().zip(next)) {
        if to.is_port() {
            cx.send(from.port, to, frame);
        } else if to == NOWHERE {
            let id = tunnelled_by(tables, next, cx.bufs.arena().data(&frame));
            hops[tunnelled.len() % BATCH] = id.unwrap_or(0);
            let pushed = if id.is_some() { tunnelled.push(frame) } else { exceptions.push(frame) };
            debug_assert!(pushed.is_ok());
        } else {
            vlan::send_above(cx, tables, from.port, to, frame);
        }
    }
    cx.sent(n);
    let slow = exceptions.len() + tunnelled.len();
    if slow > 0 {
        pass_tunnels(cx, tables, from, &mut tunnelled, &hops, path);
        exceptions.drain().for_each(|frame| path.slow(cx, tables, from, frame));
        cx.stage(SLOW, slow);
    }
}

/// Returns the next hop of a packet, by its id in [`Work::next`], if that is a tunnel or, if there are tunnels, this
/// host.
fn tunnelled_by(tables: &Tables, next: u32, data: &[u8]) -> Option<u32> {
    if next == EXCEPTION || tables.tunnels.is_empty() {
        return None;
    }
    let id = tables.resolve(next & !V6, data);
    matches!(tables.entry(id).kind, Kind::Tunnel | Kind::Local).then_some(id)
}

/// Sends valid packets through the tunnels of these next hops, and forwards the inner packets of those to this host.
fn pass_tunnels(
    cx: &mut Context<'_>,
    tables: &Tables,
    from: Ingress,
    batch: &mut Batch,
    hops: &[u32; BATCH],
    path: &mut SlowPath,
) {
    let (mut of, mut route) = (0, None);
    for (frame, &id) in batch.drain().zip(hops) {
        let hop = tables.entry(id);
        if hop.kind == Kind::Local {
            path.decapsulate(cx, tables, from, frame);
            continue;
        }
        if of != id {
            (of, route) = (id, OuterRoute::of(tables, hop));
        }
        path.encapsulate(cx, tables, from, frame, (hop, route.as_ref()));
    }
}

/// Completes a packet's transport checksum if the sender left it to its device; returns 1 if it did.
fn complete(data: &mut [u8]) -> u64 {
    u64::from(data.get_mut(HEADER_LEN..).is_some_and(partial::complete))
}

/// Bytes of the Ethernet and IPv4 headers.
const HEAD4: usize = HEADER_LEN + 20;

/// Rewrites a valid IPv4 packet for sending; `new` is its [`Validation4::hop`].
#[inline(always)]
fn rewrite4(hop: &Entry, new: u32, head: &mut [u8; HEAD4]) {
    head[..12].copy_from_slice(&hop.macs);
    head[HEADER_LEN + 8..HEADER_LEN + 12].copy_from_slice(&new.to_le_bytes());
}

/// Rewrites a valid IPv6 packet for sending.
#[inline(always)]
fn rewrite6(hop: &Entry, head: &mut [u8; HEAD4]) {
    head[..12].copy_from_slice(&hop.macs);
    head[HEADER_LEN + 7] -= 1;
}
