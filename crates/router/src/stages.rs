//! The fast path: input, lookup, forward.

use crate::slow::SlowPath;
use crate::tables::{Entry, Kind, Tables};
use bywash_engine::{App, Context, DropReason, Event, PortId};
use bywash_frame::{Arena, BATCH, Batch, Frame};
use bywash_route::{flow_hash4, flow_hash6};
use bywash_sync::{Published, hint::prefetch};
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::{ipv4, partial};
use std::net::IpAddr;
use std::sync::Arc;

/// What the stages ask of the control side.
#[derive(Debug)]
pub enum Request {
    /// Resolve this neighbour, or confirm it.
    Resolve {
        /// Kernel index of the interface.
        index: u32,
        /// Its address.
        addr: IpAddr,
    },
    /// Hand this packet to the kernel as if it had arrived on `from`. The frame must be freed.
    Punt {
        /// Port it came in by.
        from: PortId,
        /// The packet, Ethernet header and all.
        frame: Frame,
    },
}

/// The router's settings.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    /// ICMP errors a second and worker, at most; 0: none.
    pub icmp_rate: u32,
    /// Whether to tell senders of a better first hop (RFC 1812 5.2.7.2).
    pub redirects: bool,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self { icmp_rate: 1000, redirects: false }
    }
}

/// The stage names, in order.
pub(crate) const STAGES: &[&str] = &["input", "lookup", "forward", "slow"];
const INPUT: usize = 0;
const LOOKUP: usize = 1;
const FORWARD: usize = 2;
const SLOW: usize = 3;

/// A packet for the slow path, in place of a next-hop id.
const ODD: u32 = u32::MAX;
/// Set in a next-hop id when the packet is IPv6.
const V6: u32 = 1 << 31;
/// How many packets ahead to load.
const AHEAD: usize = 4;

/// One worker's router.
pub struct Router {
    tables: Arc<Published<Tables>>,
    work: Box<Work>,
    path: SlowPath,
}

/// What the stages tell each other about a burst. Kept from one to the next: nothing is cleared that will be written.
struct Work {
    v4: Lookup<u32>,
    v6: Lookup<u128>,
    /// Where each packet leads: a next-hop id, with `V6` for an IPv6 packet, or `ODD`.
    next: [u32; BATCH],
    /// Port each packet leaves by, or `NOWHERE`.
    to: [PortId; BATCH],
}

/// A packet that stays: it is for the slow path.
const NOWHERE: PortId = PortId(u16::MAX);

/// One family's packets of a burst.
struct Lookup<A> {
    n: usize,
    dst: [A; BATCH],
    /// Position in the burst; not kept while all of the burst is of this family.
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
    /// A router that looks up `tables` and asks by `requests`.
    pub fn new(tables: Arc<Published<Tables>>, requests: rtrb::Producer<Request>, config: RouterConfig) -> Self {
        let path = SlowPath::new(requests, config);
        let work = Work { v4: Lookup::new(), v6: Lookup::new(), next: [ODD; BATCH], to: [NOWHERE; BATCH] };
        Self { tables, work: Box::new(work), path }
    }
}

impl Work {
    /// Checks every packet; what is sound is put up for lookup.
    #[inline]
    fn input(&mut self, arena: &Arena, frames: &[Frame]) {
        frames.iter().take(AHEAD).for_each(|f| arena.prefetch(f));
        let dst = &mut self.v4.dst;
        // A bit for each packet that is not a sound IPv4 packet. (The remainders cost nothing and spare the bounds
        // checks: there are no more packets than places.)
        let mut odd = 0u64;
        for (i, frame) in frames.iter().enumerate() {
            if let Some(ahead) = frames.get(i + AHEAD) {
                arena.prefetch(ahead);
            }
            let Some(head) = arena.head::<HEAD4>(frame) else {
                odd |= 1 << (i % BATCH);
                continue;
            };
            dst[i % BATCH] = u32::from_be_bytes([head[30], head[31], head[32], head[33]]);
            odd |= u64::from(!sound4(head, frame.len() - HEADER_LEN)) << (i % BATCH);
        }
        (self.v4.n, self.v6.n) = (frames.len(), 0);
        if odd != 0 {
            self.sort(arena, frames, odd);
        }
    }

    /// Leaves the sound IPv4 packets for lookup, without gaps, and puts up the sound IPv6 packets among the `odd`.
    fn sort(&mut self, arena: &Arena, frames: &[Frame], odd: u64) {
        self.v4.n = 0;
        for (i, frame) in frames.iter().enumerate().take(BATCH) {
            if odd >> i & 1 == 0 {
                self.v4.add(i, self.v4.dst[i]);
            } else if let Some(dst) = arena.head(frame).and_then(|h| sound6(h, frame.len() - HEADER_LEN)) {
                self.v6.add(i, dst);
            }
        }
    }

    /// Looks up both families; writes where each of the `n` packets leads to `next`.
    #[inline]
    fn lookup(&mut self, tables: &Tables, n: usize) {
        let Self { v4, v6, next, .. } = self;
        tables.fib4.lookup_batch(&v4.dst[..v4.n.min(BATCH)], &mut v4.id[..v4.n.min(BATCH)]);
        if v4.n == n {
            // All of the burst, in order.
            *next = v4.id;
        } else {
            next.fill(ODD);
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

    /// Rewrites what can be forwarded on the spot and notes where it goes. The port, when all go to one.
    #[inline]
    fn forward(
        &mut self,
        arena: &Arena,
        tables: &Tables,
        frames: &mut [Frame],
        from: PortId,
        redirects: bool,
    ) -> Option<PortId> {
        if self.v4.n == frames.len() && !redirects {
            self.rewrite_all::<true>(arena, tables, frames, NOWHERE);
        } else {
            self.rewrite_all::<false>(arena, tables, frames, if redirects { from } else { NOWHERE });
        }
        let to = &self.to[..frames.len().min(BATCH)];
        let first = *to.first()?;
        let differ = to.iter().fold(0, |differ, to| differ | (to.0 ^ first.0));
        (differ == 0 && first != NOWHERE).then_some(first)
    }

    /// With `SOUND4` every packet is a sound IPv4 packet. What would leave by `back` stays: a packet that leaves where it
    /// came from earns its sender a redirect, if those are wanted.
    #[inline(always)]
    fn rewrite_all<const SOUND4: bool>(&mut self, arena: &Arena, tables: &Tables, frames: &mut [Frame], back: PortId) {
        for ((frame, &id), to) in frames.iter_mut().zip(&self.next).zip(&mut self.to) {
            *to = match (SOUND4, id) {
                (true, _) => rewrite(arena, tables, id, false, frame),
                (false, ODD) => NOWHERE,
                (false, _) if back != NOWHERE && hop_port(arena, tables, id, frame) == back => NOWHERE,
                (false, _) => rewrite(arena, tables, id & !V6, id & V6 != 0, frame),
            };
        }
    }
}

impl App for Router {
    fn stages(&self) -> &'static [&'static str] {
        STAGES
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let n = batch.len();
        let Self { tables, work, path } = self;
        let tables = tables.load(cx.reader);
        let arena = cx.bufs.arena();
        if tables.ports.get(usize::from(from.0)).is_some_and(|p| p.partial_checksums) {
            let done = batch.as_mut_slice().iter_mut().map(|f| complete(arena.data_mut(f))).sum();
            cx.event(from, Event::ChecksumCompleted, done);
        }
        work.input(arena, batch.as_slice());
        cx.stage(INPUT, n);
        work.lookup(tables, n);
        cx.stage(LOOKUP, n);
        let to = work.forward(cx.bufs.arena(), tables, batch.as_mut_slice(), from, path.config.redirects);
        cx.stage(FORWARD, n);
        match to {
            Some(to) => {
                cx.send_batch(from, to, batch);
                cx.sent(n);
            }
            None => part(cx, tables, from, batch, &work.to, path),
        }
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        self.path.limiter.refill(cx.now);
        if !self.path.waiting.is_empty() {
            self.path.release(cx, self.tables.load(cx.reader));
        }
        !self.path.waiting.is_empty()
    }

    fn held(&self) -> usize {
        self.path.waiting.len()
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        while let Some(w) = self.path.waiting.pop() {
            cx.drop(w.from, DropReason::PortDown, w.frame);
        }
    }
}

/// Sends a burst's packets their several ways; the odd ones take the slow path.
fn part(
    cx: &mut Context<'_>,
    tables: &Tables,
    from: PortId,
    batch: &mut Batch,
    ways: &[PortId; BATCH],
    path: &mut SlowPath,
) {
    let n = batch.len();
    let mut odd = Batch::new();
    for (frame, &to) in batch.drain().zip(ways) {
        if to == NOWHERE {
            let pushed = odd.push(frame);
            debug_assert!(pushed.is_ok());
        } else {
            cx.send(from, to, frame);
        }
    }
    cx.sent(n);
    if !odd.is_empty() {
        let n = odd.len();
        odd.drain().for_each(|frame| path.slow(cx, tables, from, frame));
        cx.stage(SLOW, n);
    }
}

/// Finishes a packet's transport checksum if the sender left that to its device; 1 when it did.
fn complete(data: &mut [u8]) -> u64 {
    u64::from(data.get_mut(HEADER_LEN..).is_some_and(partial::complete))
}

/// Ethernet and IPv4 header.
const HEAD4: usize = HEADER_LEN + 20;
/// Ethernet and IPv6 header.
const HEAD6: usize = HEADER_LEN + 40;

/// The EtherType of IPv4, as it lies in memory.
const ETH_IPV4: u16 = ethertype::IPV4.to_be();

/// Two bytes of the frame, as they lie in memory.
#[inline(always)]
fn ne16(head: &[u8; HEAD4], at: usize) -> u16 {
    u16::from_ne_bytes([head[at], head[at + 1]])
}

/// Whether this is an IPv4 packet of at most `room` bytes that may take the fast path: sound by RFC 1812 5.2.2, without
/// options, with TTL to spare, neither end a martian.
#[inline(always)]
fn sound4(head: &[u8; HEAD4], room: usize) -> bool {
    let Some(ip) = head.last_chunk::<20>() else { return false };
    let total = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    // Faults are gathered rather than asked for one by one: the answer is nearly always the same.
    let faults = u32::from(ne16(head, 12) ^ ETH_IPV4)
        | u32::from(ip[0] ^ 0x45)
        | u32::from(total.wrapping_sub(20) > room.wrapping_sub(20))
        | u32::from(ip[8] < 2)
        | u32::from(MARTIAN[usize::from(ip[12])] | MARTIAN[usize::from(ip[16])])
        | u32::from(!ipv4::header_checksum_ok(ip));
    faults == 0
}

/// By an IPv4 address's first byte: 1 where it is no host's.
static MARTIAN: [u8; 256] = {
    let mut table = [0; 256];
    let mut first = 0;
    while first < 256 {
        table[first] = martian4((first as u32) << 24) as u8;
        first += 1;
    }
    table
};

/// The frame's Ethernet type; none when it is too short to have one.
#[inline(always)]
pub(crate) fn frame_type(data: &[u8]) -> Option<u16> {
    let header: &[u8; HEADER_LEN] = data.first_chunk()?;
    Some(u16::from_be_bytes([header[12], header[13]]))
}

/// Addresses that are no host's: this network, loopback, multicast, reserved and broadcast.
#[inline]
pub(crate) const fn martian4(addr: u32) -> bool {
    // One comparison for 0/8 and for 224/4 and above; one for 127/8.
    (addr.wrapping_sub(1 << 24) >= 223 << 24) | (addr >> 24 == 127)
}

/// The destination of an IPv6 packet of at most `room` bytes that may take the fast path.
#[inline]
fn sound6(head: &[u8; HEAD6], room: usize) -> Option<u128> {
    let h = head[HEADER_LEN..].first_chunk::<40>()?;
    let ipv6 = u16::from_be_bytes([head[12], head[13]]) == ethertype::IPV6;
    let payload = usize::from(u16::from_be_bytes([h[4], h[5]]));
    let src = u128::from_be_bytes(*h[8..24].first_chunk()?);
    let dst = u128::from_be_bytes(*h[24..40].first_chunk()?);
    // A hop-by-hop header (next header 0) is the slow path's.
    let sound =
        ipv6 & (h[0] >> 4 == 6) & (payload + 40 <= room) & (h[6] != 0) & (h[7] > 1) & !martian6(src) & !martian6(dst);
    sound.then_some(dst)
}

/// Addresses that are not forwarded from or to: multicast, link-local, loopback, unspecified (RFC 4291 2.5, 2.7).
#[inline]
pub(crate) fn martian6(addr: u128) -> bool {
    (addr >> 120 == 0xff) | (addr >> 118 == 0xfe80 >> 6) | (addr <= 1)
}

/// The id of a plain next hop: `id` itself, or the member of the group it names that the packet's flow chooses.
#[inline]
pub(crate) fn resolve(tables: &Tables, id: u32, data: &[u8]) -> u32 {
    let group = entry(tables, id);
    if group.kind == Kind::Group { member(tables, group, data) } else { id }
}

/// The next hop `id` names.
#[inline]
pub(crate) fn entry(tables: &Tables, id: u32) -> &Entry {
    tables.entries.get(id as usize).unwrap_or(&tables.entries[0])
}

#[inline]
fn member(tables: &Tables, group: &Entry, data: &[u8]) -> u32 {
    let pick = (u64::from(flow_hash(data)) * u64::from(group.count)) >> 32;
    tables.buckets.get((group.first + pick as u32) as usize).copied().unwrap_or(0)
}

/// A hash of the flow a sound packet belongs to: addresses, protocol, and ports where every fragment would agree.
fn flow_hash(data: &[u8]) -> u32 {
    let ip = &data[HEADER_LEN..];
    if ip[0] >> 4 == 4 {
        let proto = ip[9];
        let (src, dst) = (be32(&ip[12..]), be32(&ip[16..]));
        // Fragments after the first carry no ports: no fragment's ports count, so that all take one way.
        let whole = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff == 0;
        let ports = if whole { ports(proto, ip.get(usize::from(ip[0] & 15) * 4..)) } else { 0 };
        flow_hash4(src, dst, proto, ports)
    } else {
        let src = u128::from_be_bytes(*ip[8..].first_chunk().unwrap_or(&[0; 16]));
        let dst = u128::from_be_bytes(*ip[24..].first_chunk().unwrap_or(&[0; 16]));
        flow_hash6(src, dst, ip[6], ports(ip[6], ip.get(40..)))
    }
}

fn ports(proto: u8, l4: Option<&[u8]>) -> u32 {
    match (proto, l4) {
        // TCP, UDP, DCCP, SCTP, UDP-Lite: source and destination port first.
        (6 | 17 | 33 | 132 | 136, Some(l4)) if l4.len() >= 4 => be32(l4),
        _ => 0,
    }
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from_be_bytes(*b))
}

/// The port a sound packet would leave by; only asked for when redirects are wanted.
fn hop_port(arena: &Arena, tables: &Tables, id: u32, frame: &Frame) -> PortId {
    entry(tables, resolve(tables, id & !V6, arena.data(frame))).port
}

/// Makes a sound packet ready to leave and says where; `NOWHERE`, and nothing changed, when it is not for the fast
/// path: no plain next hop, or too large.
#[inline(always)]
fn rewrite(arena: &Arena, tables: &Tables, id: u32, v6: bool, frame: &mut Frame) -> PortId {
    let mut hop = entry(tables, id);
    if hop.kind != Kind::Forward {
        if hop.kind != Kind::Group {
            return NOWHERE;
        }
        hop = entry(tables, member(tables, hop, arena.data(frame)));
    }
    let Some(h) = arena.head_mut::<HEAD4>(frame) else { return NOWHERE };
    let word = |at: usize| u16::from_be_bytes([h[HEADER_LEN + at], h[HEADER_LEN + at + 1]]);
    let len = if v6 { 40 + u32::from(word(4)) } else { u32::from(word(2)) };
    if len > hop.mtu || hop.kind != Kind::Forward {
        return NOWHERE;
    }
    if v6 {
        h[HEADER_LEN + 7] -= 1;
    } else if let Some(ip) = h.last_chunk_mut() {
        ipv4::decrement_ttl(ip);
    }
    if let Some(macs) = h.first_chunk_mut() {
        *macs = hop.macs;
    }
    hop.port
}

#[inline]
pub(crate) fn rewrite_macs(hop: &Entry, data: &mut [u8]) {
    if let Some(macs) = data.first_chunk_mut() {
        *macs = hop.macs;
    }
}

pub(crate) fn be16(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from(u16::from_be_bytes(*b)))
}
