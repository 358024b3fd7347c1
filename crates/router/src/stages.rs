//! The fast path: input, lookup, forward.

use crate::icmp::Limiter;
use crate::tables::{Entry, Kind, Tables};
use crate::waiting::Waiting;
use bywash_engine::{App, Context, Event, PortId};
use bywash_frame::{BATCH, Batch, Frame};
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
    pub(crate) tables: Arc<Published<Tables>>,
    pub(crate) requests: rtrb::Producer<Request>,
    pub(crate) config: RouterConfig,
    pub(crate) waiting: Waiting,
    pub(crate) limiter: Limiter,
    pub(crate) ip_id: u16,
    odd: Batch,
}

/// One family's packets of a burst.
struct Lookup<A> {
    n: usize,
    dst: [A; BATCH],
    /// Position in the burst.
    at: [u8; BATCH],
    next: [u32; BATCH],
}

impl<A: Copy + Default> Lookup<A> {
    fn new() -> Self {
        Self { n: 0, dst: [A::default(); BATCH], at: [0; BATCH], next: [0; BATCH] }
    }

    #[inline]
    fn add(&mut self, at: usize, dst: A) {
        self.dst[self.n] = dst;
        self.at[self.n] = at as u8;
        self.n += 1;
    }
}

impl Router {
    /// A router that looks up `tables` and asks by `requests`.
    pub fn new(tables: Arc<Published<Tables>>, requests: rtrb::Producer<Request>, config: RouterConfig) -> Self {
        let limiter = Limiter::new(config.icmp_rate);
        Self { tables, requests, config, waiting: Waiting::new(), limiter, ip_id: 1, odd: Batch::new() }
    }

    /// Checks every packet; what is sound is put up for lookup, the rest stays `ODD` in `next`.
    #[inline]
    fn input(
        cx: &mut Context<'_>,
        batch: &mut Batch,
        unfinished: bool,
        v4: &mut Lookup<u32>,
        v6: &mut Lookup<u128>,
    ) -> usize {
        let arena = cx.bufs.arena();
        let frames = batch.as_mut_slice();
        let mut completed = 0;
        for f in frames.iter().take(AHEAD) {
            arena.prefetch(f);
        }
        for i in 0..frames.len() {
            if let Some(ahead) = frames.get(i + AHEAD) {
                arena.prefetch(ahead);
            }
            let data = arena.data_mut(&mut frames[i]);
            match frame_type(data) {
                Some(ethertype::IPV4) => {
                    if let Some(dst) = sound4(data) {
                        v4.add(i, dst);
                    }
                }
                Some(ethertype::IPV6) => {
                    if let Some(dst) = sound6(data) {
                        v6.add(i, dst);
                    }
                }
                _ => {}
            }
            if unfinished {
                completed += usize::from(data.get_mut(HEADER_LEN..).is_some_and(partial::complete));
            }
        }
        completed
    }

    /// Looks up both families; writes the ids to the packets' places.
    #[inline]
    fn lookup(tables: &Tables, v4: &mut Lookup<u32>, v6: &mut Lookup<u128>, next: &mut [u32; BATCH]) {
        if v4.n > 0 {
            tables.fib4.lookup_batch(&v4.dst[..v4.n], &mut v4.next[..v4.n]);
            for k in 0..v4.n {
                let id = v4.next[k];
                if let Some(e) = tables.entries.get(id as usize) {
                    prefetch(e);
                }
                next[usize::from(v4.at[k]) % BATCH] = id;
            }
        }
        if v6.n > 0 {
            tables.fib6.lookup_batch(&v6.dst[..v6.n], &mut v6.next[..v6.n]);
            for k in 0..v6.n {
                let id = v6.next[k];
                if let Some(e) = tables.entries.get(id as usize) {
                    prefetch(e);
                }
                next[usize::from(v6.at[k]) % BATCH] = id | V6;
            }
        }
    }

    /// Rewrites and queues what can be forwarded on the spot; leaves the rest in `odd`.
    #[inline]
    fn forward(
        cx: &mut Context<'_>,
        tables: &Tables,
        from: PortId,
        batch: &mut Batch,
        next: &[u32; BATCH],
        odd: &mut Batch,
        redirects: bool,
    ) {
        for (mut frame, &id) in batch.drain().zip(next) {
            let data = cx.bufs.arena().data_mut(&mut frame);
            let to = match id {
                ODD => None,
                _ => rewrite(entry(tables, resolve(tables, id & !V6, data)), data, id & V6 != 0),
            };
            // A packet that leaves where it came from earns its sender a redirect, if those are wanted.
            let to = to.filter(|to| !(redirects && *to == from));
            match to {
                Some(to) => cx.send(from, to, frame),
                None => {
                    let pushed = odd.push(frame);
                    debug_assert!(pushed.is_ok());
                }
            }
        }
    }
}

impl App for Router {
    fn stages(&self) -> &'static [&'static str] {
        STAGES
    }

    fn process(&mut self, cx: &mut Context<'_>, from: PortId, batch: &mut Batch) {
        let n = batch.len();
        let shared = self.tables.clone();
        let tables = shared.load(cx.reader);
        let partial = tables.ports.get(usize::from(from.0)).is_some_and(|p| p.partial_checksums);
        let (mut v4, mut v6) = (Lookup::new(), Lookup::new());
        let completed = Self::input(cx, batch, partial, &mut v4, &mut v6);
        if completed > 0 {
            cx.event(from, Event::ChecksumCompleted, completed as u64);
        }
        cx.stage(INPUT, n);
        let mut next = [ODD; BATCH];
        Self::lookup(tables, &mut v4, &mut v6, &mut next);
        cx.stage(LOOKUP, n);
        Self::forward(cx, tables, from, batch, &next, &mut self.odd, self.config.redirects);
        cx.stage(FORWARD, n);
        if !self.odd.is_empty() {
            let mut odd = std::mem::take(&mut self.odd);
            let n = odd.len();
            odd.drain().for_each(|frame| self.slow(cx, tables, from, frame));
            cx.stage(SLOW, n);
        }
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        self.limiter.refill(cx.now);
        if !self.waiting.is_empty() {
            let shared = self.tables.clone();
            let tables = shared.load(cx.reader);
            self.release(cx, tables);
        }
        !self.waiting.is_empty()
    }

    fn held(&self) -> usize {
        self.waiting.len()
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        while let Some(w) = self.waiting.pop() {
            cx.drop(w.from, bywash_engine::DropReason::PortDown, w.frame);
        }
    }
}

/// The destination of an IPv4 packet that may take the fast path: sound by RFC 1812 5.2.2, without options, with
/// TTL to spare, neither end a martian.
#[inline]
fn sound4(data: &[u8]) -> Option<u32> {
    let ip = data.get(HEADER_LEN..)?;
    let h: &[u8; 20] = ip.first_chunk()?;
    let total = usize::from(u16::from_be_bytes([h[2], h[3]]));
    let src = u32::from_be_bytes([h[12], h[13], h[14], h[15]]);
    let dst = u32::from_be_bytes([h[16], h[17], h[18], h[19]]);
    let sound = (h[0] == 0x45)
        & (total >= 20)
        & (total <= ip.len())
        & (h[8] > 1)
        & !martian4(src)
        & !martian4(dst)
        & ipv4::header_checksum_ok(h);
    sound.then_some(dst)
}

/// The frame's Ethernet type; none when it is too short to have one.
#[inline]
pub(crate) fn frame_type(data: &[u8]) -> Option<u16> {
    data.get(12..HEADER_LEN)?.first_chunk().map(|t| u16::from_be_bytes(*t))
}

/// Addresses that are no host's: this network, loopback, multicast, reserved and broadcast.
#[inline]
pub(crate) fn martian4(addr: u32) -> bool {
    // One comparison for 0/8 and for 224/4 and above; one for 127/8.
    (addr.wrapping_sub(1 << 24) >= 223 << 24) | (addr >> 24 == 127)
}

/// The destination of an IPv6 packet that may take the fast path.
#[inline]
fn sound6(data: &[u8]) -> Option<u128> {
    let ip = data.get(HEADER_LEN..)?;
    let h: &[u8; 40] = ip.first_chunk()?;
    let payload = usize::from(u16::from_be_bytes([h[4], h[5]]));
    let src = u128::from_be_bytes(*h[8..24].first_chunk()?);
    let dst = u128::from_be_bytes(*h[24..40].first_chunk()?);
    // A hop-by-hop header (next header 0) and a jumbogram's zero length are the slow path's.
    let sound =
        (h[0] >> 4 == 6) & (payload + 40 <= ip.len()) & (h[6] != 0) & (h[7] > 1) & !martian6(src) & !martian6(dst);
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

/// Makes a sound packet ready to leave by `hop` and says where; None, and nothing changed, when it is not for the
/// fast path: no plain next hop, or too large.
#[inline]
fn rewrite(hop: &Entry, data: &mut [u8], v6: bool) -> Option<PortId> {
    let ip = data.get_mut(HEADER_LEN..)?;
    let len = if v6 { 40 + be16(&ip[4..]) } else { be16(&ip[2..]) };
    if hop.kind != Kind::Forward || len > hop.mtu {
        return None;
    }
    if v6 {
        ip[7] -= 1;
    } else {
        ipv4::decrement_ttl(ip.first_chunk_mut()?);
    }
    rewrite_macs(hop, data);
    Some(hop.port)
}

#[inline]
pub(crate) fn rewrite_macs(hop: &Entry, data: &mut [u8]) {
    data[..12].copy_from_slice(&hop.macs);
}

pub(crate) fn be16(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from(u16::from_be_bytes(*b)))
}
