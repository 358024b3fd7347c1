//! Validation of a burst's packets for the fast path, and their new header fields: for the whole burst at once, column
//! by column.

use crate::tables::Own4;
use bywash_frame::{BATCH, Heads};
use bywash_sync::wide::{Wide, widest};
use bywash_wire::ethernet::{HEADER_LEN, ethertype};

/// Fault of a valid packet whose source may be one of the host's own addresses.
pub(crate) const OWN: u32 = 1 << 31;

/// Packets processed per vector loop.
const LANES: usize = 16;

/// Results for a burst's packets, treated as if all were IPv4.
#[repr(C, align(64))]
pub(crate) struct Validation4 {
    /// By packet: nonzero if it may not take the fast path.
    pub faults: [u32; BATCH],
    /// Destination address, in host order.
    pub dst: [u32; BATCH],
    /// Bytes behind the Ethernet header: the packet, and padding.
    pub room: [u32; BATCH],
    /// TTL, protocol and checksum after the hop, as they lie in memory.
    pub hop: [u32; BATCH],
}

impl Validation4 {
    pub fn new() -> Self {
        Self { faults: [0; BATCH], dst: [0; BATCH], room: [0; BATCH], hop: [0; BATCH] }
    }

    /// Checks the first `n` packets of `heads`; returns the OR of all their faults.
    #[inline]
    pub fn validate(&mut self, heads: &Heads, n: usize, own: Own4) -> u32 {
        widest(Validate4 { heads, n: n.min(BATCH), own, out: self })
    }
}

struct Validate4<'a> {
    heads: &'a Heads,
    n: usize,
    own: Own4,
    out: &'a mut Validation4,
}

impl Wide for Validate4<'_> {
    type Out = u32;

    /// A packet may take the fast path if it is valid by RFC 1812 5.2.2, has no options, has a TTL above 1, and neither
    /// address is martian. Faults are collected instead of branched on, because nearly all packets have none. Numbers
    /// in parentheses are the steps of 5.2.2; (1) needs no check, since [`Heads`] reads zeros, which are not version 4,
    /// for a packet that is too short for a header.
    #[inline(always)]
    fn run(self) -> u32 {
        let Self { heads, n, own, out } = self;
        let [kind, size, fragment, hop, src, dst] = &heads.words;
        for from in (0..n).step_by(LANES) {
            for i in from..from + LANES {
                let i = i % BATCH;
                // The words are in the wrong byte order, which does not affect a one's-complement sum (RFC 1071 1.B).
                let sum = halves(size[i]) + halves(fragment[i]) + halves(hop[i]) + halves(src[i]) + halves(dst[i]);
                let sum = halves(halves(sum));
                let total = size[i] >> 24 | (size[i] >> 8 & 0xff00);
                let room = heads.lens[i].wrapping_sub(HEADER_LEN as u32);
                let (from, to) = (src[i].swap_bytes(), dst[i].swap_bytes());
                out.dst[i] = to;
                out.room[i] = room;
                out.hop[i] = one_hop(hop[i]);
                out.faults[i] = (kind[i] >> 16 ^ u32::from(ethertype::IPV4.swap_bytes()))
                    // (3) version; (4) header length, which is 20 bytes without options.
                    | (size[i] & 0xff ^ 0x45)
                    // (5) total length, which the frame must have room for, too.
                    | u32::from(total.wrapping_sub(20) > room.wrapping_sub(20))
                    // RFC 1812 5.3.1.
                    | u32::from(hop[i] & 0xff < 2)
                    // RFC 1812 5.3.7.
                    | u32::from(martian4(from) | martian4(to))
                    // (2) checksum.
                    | u32::from(sum != 0xffff)
                    | own.bit(src[i]) << 31;
            }
        }
        out.faults[..n].iter().fold(0, |all, f| all | f)
    }
}

/// Returns the sum of a word's halves.
#[inline(always)]
fn halves(word: u32) -> u32 {
    (word & 0xffff) + (word >> 16)
}

/// Returns TTL, protocol and checksum after a hop: [`bywash_wire::ipv4::decrement_ttl`] on the word as it lies in
/// memory.
#[inline(always)]
fn one_hop(word: u32) -> u32 {
    // Decrementing the TTL subtracts 1 from the upper byte of a checksummed word, which is the lower byte in memory;
    // 0xffff, minus zero, becomes 0.
    let sum = (word >> 16) + 1;
    let sum = sum + u32::from(sum >= 0xffff);
    sum << 16 | (word & 0xffff).wrapping_sub(1)
}

/// Returns whether an address cannot belong to a host: this network, loopback, multicast, reserved or broadcast (RFC
/// 1812 5.3.7).
#[inline(always)]
pub(crate) const fn martian4(addr: u32) -> bool {
    // One comparison for 0/8 and for 224/4 and above; one for 127/8.
    (addr.wrapping_sub(1 << 24) >= 223 << 24) | (addr >> 24 == 127)
}

/// Returns whether an address can be that of a host, and packets from and to it may be forwarded.
pub(crate) const fn host4(addr: u32) -> bool {
    !martian4(addr) && addr >> 16 != 0xa9fe
}

/// Returns the destination of an IPv6 packet of at most `room` bytes, given by its Ethernet and IPv6 headers, if it may
/// take the fast path.
#[inline]
pub(crate) fn valid6(head: &[u8; HEADER_LEN + 40], room: usize) -> Option<u128> {
    let ipv6 = u16::from_be_bytes([head[12], head[13]]) == ethertype::IPV6;
    valid_header6(head[HEADER_LEN..].first_chunk()?, room).filter(|_| ipv6)
}

/// Same as [`valid6`], without the Ethernet header.
#[inline]
pub(crate) fn valid_header6(h: &[u8; 40], room: usize) -> Option<u128> {
    let payload = usize::from(u16::from_be_bytes([h[4], h[5]]));
    let src = u128::from_be_bytes(*h[8..24].first_chunk()?);
    let dst = u128::from_be_bytes(*h[24..40].first_chunk()?);
    // RFC 8200 3, RFC 4291 2.5 and 2.7. The slow path handles hop-by-hop headers (next header 0).
    let valid = (h[0] >> 4 == 6) & (payload + 40 <= room) & (h[6] != 0) & (h[7] > 1) & !dubious6(src) & !martian6(dst);
    valid.then_some(dst)
}

/// Returns whether packets from or to an address are never forwarded: multicast, link-local, loopback, unspecified (RFC
/// 4291 2.5, 2.7).
#[inline]
pub(crate) fn martian6(addr: u128) -> bool {
    (addr >> 120 == 0xff) | (addr >> 118 == 0xfe80 >> 6) | (addr <= 1)
}

/// Returns whether packets from an address are never or hardly ever forwarded: ::/64 also includes the IPv4-mapped and
/// IPv4-compatible addresses.
#[inline]
fn dubious6(addr: u128) -> bool {
    martian6(addr) | (addr >> 64 == 0)
}
