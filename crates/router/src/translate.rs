//! Forwarding past a closed gate: packets of established connections, which the kernel's rules have accepted, are
//! translated and forwarded as the kernel would.
//!
//! A packet of the family that does not certainly belong to such a flow, or that needs more than forwarding, is passed
//! to the kernel unchanged; none is answered with an error. `xdp/translate.h` does the same.

use crate::bytes::{be16, be32, frame_type};
use crate::gates::{Gate, is_kept};
use crate::slow::{SlowPath, has_accepted_source, ip_len, seconds};
use crate::tables::{Entry, HashPolicy, Kind, Tables};
use crate::tunnel::{self, OuterRoute};
use crate::valid::{host4, valid6};
use crate::vlan::{self, Ingress};
use bywash_engine::{Context, DropReason, Event, PortId};
use bywash_fib::flows::{Exit, FlowTable, FlowTables, Hit, Key};
use bywash_fib::{flow_hash4, flow_hash6};
use bywash_frame::{BATCH, Batch, Frame};
use bywash_wire::ethernet::{HEADER_LEN, ethertype};
use bywash_wire::{ipv4, ipv6, proto};

/// Flows of a worker's router, and a burst's packets that may belong to them.
pub(crate) struct Translator {
    flows: FlowTables,
    v4: Packets<1, u32>,
    v6: Packets<4, u128>,
}

/// Packets of one family.
struct Packets<const N: usize, A> {
    n: usize,
    keys: [Key<N>; BATCH],
    hits: [Hit; BATCH],
    /// Translated destinations, and their next hops.
    dst: [A; BATCH],
    ids: [u32; BATCH],
}

/// Class of a packet.
#[derive(Clone, Copy)]
enum Class {
    /// The gate does not keep it.
    Open,
    /// Left to the kernel.
    Kept,
    /// Outer packet of a tunnel.
    Outer,
    /// IPv4 packet that may belong to a flow, with its index in [`Translator::v4`].
    V4(usize),
    /// IPv6 packet likewise, with its index in [`Translator::v6`].
    V6(usize),
}

impl<const N: usize, A: Copy + Default> Packets<N, A> {
    fn new() -> Self {
        Self { n: 0, keys: [Key::NONE; BATCH], hits: [Hit::NONE; BATCH], dst: [A::default(); BATCH], ids: [0; BATCH] }
    }

    /// Adds a packet and returns its index.
    fn add(&mut self, key: Key<N>) -> usize {
        self.keys[self.n] = key;
        self.n += 1;
        self.n - 1
    }

    /// Returns the translation and the next hop of packet `at`; `None` if it is left to the kernel. `closing` is set if
    /// the packet opens or closes its connection. `hash` selects the member of a group of next hops; `leads` says
    /// whether the packet can be sent to a next hop that has to be on this port.
    #[inline(always)]
    fn route<'t>(
        &self,
        flows: &FlowTable<N>,
        tables: &'t Tables,
        (at, closing): (usize, bool),
        hash: impl FnOnce(&Exit<N>) -> u32,
        leads: impl FnOnce(&Entry, u16) -> bool,
    ) -> Option<(Exit<N>, &'t Entry)> {
        let (hit, key) = (self.hits[at], &self.keys[at]);
        if !belongs(flows, hit, key, closing) {
            return None;
        }
        let exit = flows.exit(hit);
        let hop = forwarding_hop(tables, self.ids[at], || hash(&exit)).filter(|hop| leads(hop, exit.port));
        if hop.is_none() {
            flows.miss(key, false);
        }
        Some((exit, hop?))
    }
}

impl Translator {
    pub fn new(flows: FlowTables) -> Self {
        Self { flows, v4: Packets::new(), v6: Packets::new() }
    }

    /// Forwards the packets of flows, and passes to the kernel the others that the gate keeps for it. Packets that the
    /// gate does not keep stay in `batch`.
    pub fn forward(
        &mut self,
        cx: &mut Context<'_>,
        tables: &Tables,
        path: &mut SlowPath,
        (gate, from): (Gate, Ingress),
        batch: &mut Batch,
    ) {
        let classes = self.classify(cx, tables, gate, from, batch);
        self.look_up(tables);
        // Frames are moved after all of them are translated, when their handles have long been written: a load that
        // spans two recent stores waits for them.
        let mut hops = [None; BATCH];
        for ((frame, class), hop) in batch.as_mut_slice().iter_mut().zip(&classes).zip(&mut hops) {
            *hop = match *class {
                Class::Open | Class::Kept | Class::Outer => None,
                Class::V4(at) => self.translate4(cx, tables, path, from, frame, at),
                Class::V6(at) => self.translate6(cx, tables, path, from, frame, at),
            };
        }
        batch.filter(|at, frame| {
            match (hops[at], classes[at]) {
                (Some(hop), _) => {
                    if from.outer.is_some() {
                        cx.event(from.port, Event::Decapsulated, 1);
                    }
                    match hop.kind {
                        Kind::Tunnel => send_through(cx, tables, path, from, frame, hop),
                        _ => vlan::send(cx, tables, from.port, hop.port, frame),
                    }
                }
                (None, Class::Outer) => path.receive_outer(cx, tables, from, frame),
                (None, Class::Open) => return Some(frame),
                (None, _) => {
                    cx.event(from.port, Event::KeptByPolicy, 1);
                    path.punt(cx, from, frame);
                }
            }
            None
        });
    }

    fn classify(
        &mut self,
        cx: &Context<'_>,
        tables: &Tables,
        gate: Gate,
        from: Ingress,
        batch: &Batch,
    ) -> [Class; BATCH] {
        (self.v4.n, self.v6.n) = (0, 0);
        let outer_passes = from.outer.is_none() && tables.tunnels.outer_passes();
        let arena = cx.bufs.arena();
        let mut classes = [Class::Kept; BATCH];
        for (class, frame) in classes.iter_mut().zip(batch.as_slice()) {
            let data = arena.data(frame);
            if !is_kept(gate, data) {
                *class = Class::Open;
                continue;
            }
            let passes = if frame_type(data) == Some(ethertype::IPV6) { gate.flows.v6 } else { gate.flows.v4 };
            if outer_passes && passes && tunnel::is_outer(tables, data) {
                *class = Class::Outer;
                continue;
            }
            let ip = data.get(HEADER_LEN..).unwrap_or_default();
            match frame_type(data) {
                Some(ethertype::IPV4) if gate.flows.v4 => {
                    *class = key4(ip, from.id).map_or(Class::Kept, |key| Class::V4(self.v4.add(key)));
                }
                Some(ethertype::IPV6) if gate.flows.v6 => {
                    *class = key6(data, from.id).map_or(Class::Kept, |key| Class::V6(self.v6.add(key)));
                }
                _ => {}
            }
        }
        classes
    }

    fn look_up(&mut self, tables: &Tables) {
        let Self { flows, v4, v6 } = self;
        let (n4, n6) = (v4.n.min(BATCH), v6.n.min(BATCH));
        flows.v4.lookup_batch(&v4.keys[..n4], &mut v4.hits[..n4]);
        flows.v6.lookup_batch(&v6.keys[..n6], &mut v6.hits[..n6]);
        // Packets without a flow are looked up as destination 0.
        for (dst, hit) in v4.dst[..n4].iter_mut().zip(&v4.hits) {
            *dst = if hit.is_some() { be32(&flows.v4.exit(*hit).addresses[0][4..]) } else { 0 };
        }
        for (dst, hit) in v6.dst[..n6].iter_mut().zip(&v6.hits) {
            *dst = if hit.is_some() { address6(&flows.v6.exit(*hit), 2) } else { 0 };
        }
        tables.fib4.lookup_batch(&v4.dst[..n4], &mut v4.ids[..n4]);
        tables.fib6.lookup_batch(&v6.dst[..n6], &mut v6.ids[..n6]);
    }

    /// Translates packet `at` and returns its next hop; `None`, with the packet unchanged, if it is left to the kernel.
    fn translate4<'t>(
        &self,
        cx: &Context<'_>,
        tables: &'t Tables,
        path: &SlowPath,
        from: Ingress,
        frame: &mut Frame,
        at: usize,
    ) -> Option<&'t Entry> {
        let data = cx.bufs.arena().data_mut(frame);
        let ip = &data[HEADER_LEN..];
        let closing = is_closing(ip[9], &ip[ipv4::HEADER_LEN..]);
        let hash = |exit: &Exit<1>| hash4(tables, exit, ip);
        let leads = |hop: &Entry, port| leads(tables, hop, port, data, path, from.id, cx.now);
        let (exit, hop) = self.v4.route(&self.flows.v4, tables, (at, closing), hash, leads)?;
        if !has_accepted_source(tables, from, data) {
            return None;
        }
        hop.rewrite_macs(data);
        let ip = &mut data[HEADER_LEN..];
        let (protocol, len) = (ip[9], be16(&ip[2..]));
        let (header, l4) = ip.split_first_chunk_mut::<{ ipv4::HEADER_LEN }>()?;
        if header[12..] != exit.addresses[0] || l4[..4] != exit.ports {
            header[12..].copy_from_slice(&exit.addresses[0]);
            update(&mut header[10..], exit.addresses_change);
            rewrite_l4(&exit, protocol, l4);
        }
        ipv4::decrement_ttl(header);
        self.flows.v4.count(self.v4.hits[at], len);
        Some(hop)
    }

    /// Translates an IPv6 packet like [`Translator::translate4`].
    fn translate6<'t>(
        &self,
        cx: &Context<'_>,
        tables: &'t Tables,
        path: &SlowPath,
        from: Ingress,
        frame: &mut Frame,
        at: usize,
    ) -> Option<&'t Entry> {
        let data = cx.bufs.arena().data_mut(frame);
        let ip = &data[HEADER_LEN..];
        let closing = is_closing(ip[6], &ip[ipv6::HEADER_LEN..]);
        let hash = |exit: &Exit<4>| hash6(tables, exit, ip);
        let leads = |hop: &Entry, port| leads(tables, hop, port, data, path, from.id, cx.now);
        let (exit, hop) = self.v6.route(&self.flows.v6, tables, (at, closing), hash, leads)?;
        hop.rewrite_macs(data);
        let ip = &mut data[HEADER_LEN..];
        let (protocol, payload) = (ip[6], be16(&ip[4..]));
        let (header, l4) = ip.split_first_chunk_mut::<{ ipv6::HEADER_LEN }>()?;
        let addresses = exit.addresses.as_flattened();
        if header[8..] != *addresses || l4[..4] != exit.ports {
            header[8..].copy_from_slice(addresses);
            rewrite_l4(&exit, protocol, l4);
        }
        header[7] -= 1;
        self.flows.v6.count(self.v6.hits[at], payload + ipv6::HEADER_LEN as u32);
        Some(hop)
    }
}

/// Returns whether a packet is to be forwarded with its flow. A packet that opens or closes the connection revokes the
/// flow; one without a flow is counted as a miss.
fn belongs<const N: usize>(flows: &FlowTable<N>, hit: Hit, key: &Key<N>, closing: bool) -> bool {
    match (hit.is_some(), closing) {
        (true, true) => flows.revoke(hit),
        (true, false) => {}
        (false, _) => flows.miss(key, closing),
    }
    hit.is_some() && !closing
}

/// Returns the key of an IPv4 packet; `None` if it cannot belong to a flow.
// Inline, so that the key is written where it stays: its copy would wait for the stores of its parts.
#[inline(always)]
pub(crate) fn key4(ip: &[u8], from: PortId) -> Option<Key<1>> {
    let info = ipv4::check(ip).ok()?;
    let plain = usize::from(info.header_len) == ipv4::HEADER_LEN && info.fragment & 0x3fff == 0 && info.ttl > 1;
    if !plain || !host4(info.src) || !host4(info.dst) {
        return None;
    }
    let l4 = ip.get(ipv4::HEADER_LEN..usize::from(info.total_len))?;
    Some(Key::new(&[*ip[12..].first_chunk()?], valid_l4(info.proto, l4)?, info.proto, from.0))
}

/// Returns the key of a frame with an IPv6 packet; `None` if it cannot belong to a flow.
#[inline(always)]
pub(crate) fn key6(data: &[u8], from: PortId) -> Option<Key<4>> {
    valid6(data.first_chunk()?, data.len() - HEADER_LEN)?;
    let ip = &data[HEADER_LEN..];
    let l4 = ip.get(ipv6::HEADER_LEN..ipv6::HEADER_LEN + be16(&ip[4..]) as usize)?;
    let (addresses, _) = ip[8..ipv6::HEADER_LEN].as_chunks::<8>();
    Some(Key::new(addresses.first_chunk()?, valid_l4(ip[6], l4)?, ip[6], from.0))
}

/// TCP flags that open or close a connection: FIN, SYN, RST.
const FIN_SYN_RST: u8 = 0x07;

/// Returns the ports of a TCP or UDP packet; `None` for other protocols, and if the kernel's connection tracking would
/// find the packet invalid (`tcp_error`, `udp_error`). If UDP's own length is less than that of the IP packet, the
/// kernel checks the checksum over all octets, which fails although the receiver finds it right (`nf_ip_checksum`).
fn valid_l4(protocol: u8, l4: &[u8]) -> Option<[u8; 4]> {
    const ACK: u8 = 0x10;
    let valid = match protocol {
        proto::TCP => {
            let head: &[u8; 20] = l4.first_chunk()?;
            let len = usize::from(head[12] >> 4) * 4;
            (20..=l4.len()).contains(&len) && head[13] & (FIN_SYN_RST | ACK) != 0
        }
        proto::UDP => {
            let head: &[u8; 8] = l4.first_chunk()?;
            be16(&head[4..]) as usize == l4.len()
        }
        _ => false,
    };
    l4.first_chunk().copied().filter(|_| valid)
}

/// Returns whether a transport packet opens or closes its connection: from then on all its packets are left to the
/// kernel.
pub(crate) fn is_closing(protocol: u8, l4: &[u8]) -> bool {
    protocol == proto::TCP && l4.get(13).is_some_and(|flags| flags & FIN_SYN_RST != 0)
}

/// Returns the next hop with this id, or the member of its group that a hash selects; `None` unless its kind is
/// [`Kind::Forward`] or [`Kind::Tunnel`].
fn forwarding_hop(tables: &Tables, id: u32, hash: impl FnOnce() -> u32) -> Option<&Entry> {
    let hop = tables.entry(id);
    let hop = match hop.kind {
        Kind::Group => tables.entry(tables.member(hop, hash())),
        _ => hop,
    };
    matches!(hop.kind, Kind::Forward | Kind::Tunnel).then_some(hop)
}

/// Returns whether a frame can be sent to this next hop, on the flow's port. Padding counts, too: the device would
/// refuse too long a frame.
fn leads(tables: &Tables, hop: &Entry, port: u16, data: &[u8], path: &SlowPath, from: PortId, now: u64) -> bool {
    let (number, room) = (tables.number(hop.port), (data.len() - HEADER_LEN) as u32);
    let passes = number.0 == port && room <= hop.mtu && !(path.config.redirects && number == from);
    passes && (hop.kind != Kind::Tunnel || leads_through(tables, hop, data, from, now))
}

#[cold]
fn leads_through(tables: &Tables, hop: &Entry, data: &[u8], from: PortId, now: u64) -> bool {
    let leads = |route: &OuterRoute<'_>| {
        route.encap(tables, data, ip_len(data).0).is_some() && !route.claim_refresh(|| seconds(now))
    };
    tables.number(hop.port) != from && OuterRoute::of(tables, hop).as_ref().is_some_and(leads)
}

/// Sends a translated packet through the tunnel of its next hop.
#[cold]
fn send_through(cx: &mut Context<'_>, tables: &Tables, path: &mut SlowPath, from: Ingress, frame: Frame, hop: &Entry) {
    let data = cx.bufs.arena().data(&frame);
    let (route, (len, _)) = (OuterRoute::of(tables, hop), ip_len(data));
    match route.as_ref().and_then(|route| route.encap(tables, data, len)) {
        Some(encap) => path.send_through(cx, tables, from, (frame, len), &encap),
        // The route to the remote has changed since the packet was translated.
        None => cx.drop(from.port, DropReason::NoRoute, frame),
    }
}

/// Hashes a packet as the kernel routes it, by the hash policy of its family: with its translated destination but its
/// original source, which the kernel translates after routing.
fn hash4(tables: &Tables, exit: &Exit<1>, ip: &[u8]) -> u32 {
    let (src, dst) = (be32(&ip[12..]), be32(&exit.addresses[0][4..]));
    match tables.hash4 {
        HashPolicy::L3 => flow_hash4(src, dst, 0, 0),
        _ => flow_hash4(src, dst, ip[9], routed_ports(&ip[ipv4::HEADER_LEN..], exit.ports)),
    }
}

fn hash6(tables: &Tables, exit: &Exit<4>, ip: &[u8]) -> u32 {
    let (src, dst) = (u128::from_be_bytes(*ip[8..].first_chunk().unwrap_or(&[0; 16])), address6(exit, 2));
    match tables.hash6 {
        HashPolicy::L3 => flow_hash6(src, dst, ip[6], be32(ip) & 0xf_ffff),
        _ => flow_hash6(src, dst, ip[6], routed_ports(&ip[ipv6::HEADER_LEN..], exit.ports)),
    }
}

/// Returns the ports of a packet as the kernel routes it: the original source and the translated destination.
fn routed_ports(l4: &[u8], leaves: [u8; 4]) -> u32 {
    be16(l4) << 16 | be16(&leaves[2..])
}

fn address6(exit: &Exit<4>, at: usize) -> u128 {
    let half = |at: usize| u128::from(u64::from_be_bytes(exit.addresses[at]));
    half(at) << 64 | half(at + 1)
}

fn rewrite_l4<const N: usize>(exit: &Exit<N>, protocol: u8, l4: &mut [u8]) {
    l4[..4].copy_from_slice(&exit.ports);
    if protocol == proto::TCP {
        update(&mut l4[16..], exit.change);
    } else if l4[6..8] != [0, 0] {
        update(&mut l4[6..], exit.change);
        if l4[6..8] == [0, 0] {
            // RFC 768: zero means that there is no checksum.
            l4[6..8].fill(0xff);
        }
    }
}

/// Updates the checksum at the start of `field` by a one's complement difference (RFC 1624 eqn. 3).
fn update(field: &mut [u8], change: u16) {
    let sum = u32::from(!u16::from_le_bytes([field[0], field[1]])) + u32::from(change);
    let sum = (sum & 0xffff) + (sum >> 16);
    field[..2].copy_from_slice(&(!(sum as u16)).to_le_bytes());
}
