//! IPv4 fragmentation (RFC 791 3.2, RFC 1812 4.2.2.7).
//!
//! [`plan`] computes all fragment boundaries once; [`Plan::write`] copies each fragment into a frame of its own.
//! Complete a partial transport checksum first (see [`crate::partial`]): no later hop can do so.

use crate::ipv4::{self, DF, HEADER_LEN, Ipv4Error, Ipv4Info, MF, OFFSET_MASK};
use core::fmt;

/// Smallest MTU in bytes of a link that carries IPv4 (RFC 791).
pub const MIN_MTU: usize = 68;

/// Reason why a packet cannot be fragmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FragError {
    /// The packet failed [`ipv4::check`].
    Header(Ipv4Error),
    /// The packet exceeds the MTU and has DF set.
    DontFragment,
    /// The MTU is below [`MIN_MTU`].
    Mtu,
    /// The IPv4 options are malformed.
    Options,
    /// The packet is itself a fragment and ends beyond the maximum datagram length of 65,535 bytes.
    Offset,
}

impl fmt::Display for FragError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(e) => e.fmt(f),
            Self::DontFragment => f.write_str("exceeds the MTU and has DF set"),
            Self::Mtu => f.write_str("MTU is below 68 bytes"),
            Self::Options => f.write_str("malformed IPv4 options"),
            Self::Offset => f.write_str("fragment ends beyond the maximum datagram length"),
        }
    }
}

impl std::error::Error for FragError {}

/// Position and size of one fragment of a [`Plan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of the fragment's data within the original packet's data, in bytes.
    pub offset: usize,
    /// Length of the data in bytes.
    pub len: usize,
    /// Length of the header in bytes, options included.
    pub header_len: usize,
}

/// Boundaries and options of all fragments of one packet.
#[derive(Clone, Debug)]
pub struct Plan {
    info: Ipv4Info,
    count: usize,
    first: usize,
    later: usize,
    // Options of every fragment except the first, padded to a multiple of 4 bytes.
    options: [u8; 40],
    options_len: usize,
}

/// Plans the fragmentation of `l3` so that no fragment exceeds `mtu` bytes, IP header included. A packet that fits
/// yields a single fragment equal to the packet.
///
/// # Errors
/// [`FragError`]. On [`FragError::DontFragment`] the router must send the ICMP error "fragmentation needed" to the
/// sender.
pub fn plan(l3: &[u8], mtu: usize) -> Result<Plan, FragError> {
    let info = ipv4::check(l3).map_err(FragError::Header)?;
    let header_len = usize::from(info.header_len);
    let data = usize::from(info.total_len) - header_len;
    let mut plan = Plan { info, count: 1, first: data, later: data, options: [0; 40], options_len: 0 };
    if usize::from(info.total_len) <= mtu {
        return Ok(plan);
    }
    if mtu < MIN_MTU {
        return Err(FragError::Mtu);
    }
    if info.dont_fragment() {
        return Err(FragError::DontFragment);
    }
    let options = l3.get(HEADER_LEN..header_len).unwrap_or_default();
    plan.options_len = copied_options(options, &mut plan.options).ok_or(FragError::Options)?;
    plan.first = (mtu - header_len) & !7;
    plan.later = (mtu - HEADER_LEN - plan.options_len) & !7;
    plan.count = 1 + (data - plan.first).div_ceil(plan.later);
    if usize::from(info.fragment & OFFSET_MASK) * 8 + data > usize::from(u16::MAX) {
        return Err(FragError::Offset);
    }
    Ok(plan)
}

/// Copies the options that have the copy flag set to `out` and returns their padded length, or `None` if the options
/// are malformed.
fn copied_options(mut options: &[u8], out: &mut [u8; 40]) -> Option<usize> {
    let mut at = 0;
    loop {
        match *options {
            // End of list. `out` is zeroed, and zero is also the padding byte.
            [] | [0, ..] => return Some((at + 3) & !3),
            [1, ..] => options = &options[1..],
            [kind, len, ..] => {
                let (option, rest) = options.split_at_checked(usize::from(len).max(2))?;
                if option.len() != usize::from(len) {
                    return None;
                }
                if kind & 0x80 != 0 {
                    out.get_mut(at..at + option.len())?.copy_from_slice(option);
                    at += option.len();
                }
                options = rest;
            }
            [_] => return None,
        }
    }
}

impl Plan {
    /// Returns the number of fragments, at least 1.
    #[inline]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns fragment `i`, counted from 0, or `None` if there are not that many.
    pub fn fragment(&self, i: usize) -> Option<Fragment> {
        if i >= self.count {
            return None;
        }
        let data = usize::from(self.info.total_len) - usize::from(self.info.header_len);
        let (offset, room, header_len) = match i {
            0 => (0, self.first, usize::from(self.info.header_len)),
            _ => (self.first + (i - 1) * self.later, self.later, HEADER_LEN + self.options_len),
        };
        Some(Fragment { offset, len: room.min(data.checked_sub(offset)?), header_len })
    }

    /// Writes fragment `i` of `l3`, which must be the packet given to [`plan`], to the start of `out` and returns its
    /// length in bytes. Returns `None` if there is no such fragment or a slice is too short.
    pub fn write(&self, i: usize, l3: &[u8], out: &mut [u8]) -> Option<usize> {
        let fragment = self.fragment(i)?;
        let start = usize::from(self.info.header_len) + fragment.offset;
        let data = l3.get(start..start + fragment.len)?;
        let len = fragment.header_len + fragment.len;
        let (header, body) = out.get_mut(..len)?.split_at_mut(fragment.header_len);
        body.copy_from_slice(data);
        if i == 0 {
            header.copy_from_slice(l3.get(..fragment.header_len)?);
        } else {
            let (fixed, options) = header.split_at_mut(HEADER_LEN);
            fixed.copy_from_slice(l3.get(..HEADER_LEN)?);
            options.copy_from_slice(&self.options[..self.options_len]);
        }
        let more = if i + 1 == self.count { self.info.fragment & MF } else { MF };
        let offset = (self.info.fragment & OFFSET_MASK) + (fragment.offset / 8) as u16;
        header[0] = 0x40 | (fragment.header_len / 4) as u8;
        header[2..4].copy_from_slice(&(len as u16).to_be_bytes());
        header[6..8].copy_from_slice(&((self.info.fragment & DF) | more | offset).to_be_bytes());
        ipv4::fill_checksum(header);
        Some(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::Packet;
    use proptest::prelude::*;

    fn packet(options: &[u8], payload: &[u8]) -> Vec<u8> {
        Packet::udp("10.0.0.1:5".parse().unwrap(), "10.9.0.1:6".parse().unwrap())
            .ident(0xbeef)
            .ip_options(options)
            .payload(payload)
            .build_l3()
            .unwrap()
    }

    fn cut(l3: &[u8], mtu: usize) -> Vec<Vec<u8>> {
        let plan = plan(l3, mtu).unwrap();
        (0..plan.count())
            .map(|i| {
                let mut out = vec![0xcc; 2 * mtu];
                let n = plan.write(i, l3, &mut out).unwrap();
                assert!(out[n..].iter().all(|b| *b == 0xcc));
                out.truncate(n);
                out
            })
            .collect()
    }

    /// Joins the data of the fragments after checking each one. Returns the data and the MF flag of the last fragment.
    fn reassemble(fragments: &[Vec<u8>], mtu: usize) -> (Vec<u8>, bool) {
        let mut data = Vec::new();
        let mut more = true;
        let base = usize::from(ipv4::check(&fragments[0]).unwrap().fragment & OFFSET_MASK) * 8;
        for f in fragments {
            let info = ipv4::check(f).unwrap();
            assert!(f.len() <= mtu && more);
            assert_eq!(usize::from(info.total_len), f.len());
            assert_eq!(usize::from(info.fragment & OFFSET_MASK) * 8, base + data.len());
            assert_eq!(f[4..6], [0xbe, 0xef]);
            data.extend_from_slice(info.payload(f));
            more = info.fragment & MF != 0;
        }
        (data, more)
    }

    proptest! {
        #[test]
        fn reassembles(
            payload in proptest::collection::vec(any::<u8>(), 0..4000),
            mtu in MIN_MTU..1600,
            options in prop_oneof![Just(&[][..]), Just(&[0x94, 4, 0, 0][..]), Just(&[7, 7, 4, 0, 0, 0, 0, 1][..]), Just(&[7, 3, 4, 0x94, 4, 0, 0, 0][..])],
        ) {
            let l3 = packet(options, &payload);
            let fragments = cut(&l3, mtu);
            let hl = 20 + options.len();
            let (data, more) = reassemble(&fragments, mtu);
            prop_assert_eq!(&data[..], &l3[hl..]);
            prop_assert!(!more);
            if fragments.len() == 1 {
                prop_assert_eq!(&fragments[0], &l3);
            }
            // Fragmenting a fragment again keeps its base offset and its MF flag.
            for f in &fragments {
                if f.len() > MIN_MTU {
                    let info = ipv4::check(f).unwrap();
                    let (data, more) = reassemble(&cut(f, MIN_MTU), MIN_MTU);
                    prop_assert_eq!(&data[..], info.payload(f));
                    prop_assert_eq!(more, info.fragment & MF != 0);
                }
            }
        }
    }

    #[test]
    fn options_by_the_copy_flag() {
        // Record route (7) is in the first fragment only; router alert (0x94) and stream identifier (0x88) are copied.
        let options = [7, 3, 4, 1, 0x94, 4, 0, 0, 0x88, 4, 0, 9];
        let l3 = packet(&options, &[1; 200]);
        let fragments = cut(&l3, 100);
        assert_eq!(fragments[0][20..32], options);
        assert_eq!(fragments[1][0], 0x47);
        assert_eq!(fragments[1][20..28], [0x94, 4, 0, 0, 0x88, 4, 0, 9]);
        assert!(fragments.len() > 2);
        // Copied options whose length is not a multiple of 4 are padded.
        let mut out = [0; 40];
        assert_eq!(copied_options(&[0x83, 3, 4, 0], &mut out), Some(4));
        assert_eq!(out[..4], [0x83, 3, 4, 0]);
        for bad in [&[0x94, 5, 0, 0][..], &[1, 1, 1, 0x94], &[0x94, 1, 0, 0], &[0x94, 0, 0, 0]] {
            assert_eq!(copied_options(bad, &mut out), None, "{bad:?}");
        }
    }

    #[test]
    fn faults() {
        let l3 = packet(&[], &[0; 200]);
        assert_eq!(plan(&l3, 67).unwrap_err(), FragError::Mtu);
        assert_eq!(plan(&l3[..100], 68).unwrap_err(), FragError::Header(Ipv4Error::Length));
        let with = |word: u16| {
            let mut p = l3.clone();
            p[6..8].copy_from_slice(&word.to_be_bytes());
            ipv4::fill_checksum(&mut p);
            plan(&p, 68).map(|p| p.count())
        };
        assert_eq!(with(DF), Err(FragError::DontFragment));
        assert_eq!(with(OFFSET_MASK), Err(FragError::Offset));
        assert_eq!(with(8000), Ok(5));
        assert_eq!(plan(&packet(&[0x94, 9, 0, 0], &[0; 200]), 100).unwrap_err(), FragError::Options);
    }

    #[test]
    fn wrong_index_or_room() {
        let l3 = packet(&[], &[0; 200]);
        let plan = plan(&l3, 100).unwrap();
        let mut out = [0; 100];
        assert_eq!(plan.write(plan.count(), &l3, &mut out), None);
        assert_eq!(plan.write(0, &l3, &mut out[..99]), None);
        assert_eq!(plan.write(1, &l3[..150], &mut out), None);
        assert_eq!(plan.write(0, &l3, &mut out), Some(100));
    }
}
