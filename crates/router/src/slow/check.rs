//! Validation of packets, with the exact reason why one is not forwarded.

use crate::valid::{martian4, martian6};
use bywash_engine::DropReason;
use bywash_wire::{ipv4, ipv6, proto};

/// Treatment of a valid packet.
pub(super) enum Validated {
    Forward,
    Kernel,
}

/// Validates an IPv4 packet: RFC 1812 5.2.2 (header) and 5.3.7 (martian addresses), in that order, then options and
/// TTL.
pub(super) fn check4(ip: &[u8]) -> Result<Validated, DropReason> {
    use ipv4::Ipv4Error as E;
    let info = ipv4::check(ip).map_err(|e| match e {
        // Steps of RFC 1812 5.2.2: (1), (3), (4), (5), (2).
        E::Runt => DropReason::Runt,
        E::Version => DropReason::BadVersion,
        E::HeaderLength => DropReason::BadHeaderLength,
        E::Length => DropReason::BadLength,
        E::Checksum => DropReason::BadChecksum,
    })?;
    // RFC 1812 5.3.7.
    if martian4(info.src) {
        return Err(DropReason::MartianSource);
    }
    if martian4(info.dst) {
        return Err(DropReason::MartianDestination);
    }
    if info.has_options() {
        return Ok(Validated::Kernel);
    }
    // RFC 1812 5.3.1.
    if info.ttl <= 1 { Err(DropReason::TtlExceeded) } else { Ok(Validated::Forward) }
}

/// Validates an IPv6 packet: RFC 8200 3 (header), then the addresses that no router forwards, hop-by-hop options and
/// the hop limit.
pub(super) fn check6(ip: &[u8]) -> Result<Validated, DropReason> {
    use ipv6::Ipv6Error as E;
    let info = ipv6::check(ip).map_err(|e| match e {
        E::Runt => DropReason::Runt,
        E::Version => DropReason::BadVersion,
        E::Length => DropReason::BadLength,
    })?;
    // RFC 4291 2.5.2, 2.5.3, 2.5.6 and 2.7; and Linux drops IPv4-mapped sources on arrival (ip6_rcv_core).
    if martian6(info.src) || info.src >> 32 == 0xffff {
        return Err(DropReason::MartianSource);
    }
    if martian6(info.dst) {
        return Err(DropReason::MartianDestination);
    }
    // Every router must process hop-by-hop options (RFC 8200 4.3); the kernel does.
    if info.next_header == proto::HOP_BY_HOP {
        return ipv6::walk(ip, &info).map(|_| Validated::Kernel).map_err(|_| DropReason::BadExtension);
    }
    // RFC 8200 3.
    if info.hop_limit <= 1 { Err(DropReason::TtlExceeded) } else { Ok(Validated::Forward) }
}
