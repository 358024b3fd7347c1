//! Stamp that identifies a frame: the first bytes of its UDP payload.

use bywash_wire::ethernet::ethertype;

/// Size of a stamp in bytes: the room for UDP payload over IPv4 in the shortest frame.
pub const STAMP: usize = 18;
/// First bytes of a stamp.
pub const MAGIC: [u8; 4] = *b"BWt1";
/// Stream number of learning frames, from which the device learns addresses. They are not counted.
pub const LEARNING: u16 = u16::MAX;

/// Identity of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Stream number, different for each trial, so that a late frame of one trial is not counted in the next.
    pub stream: u16,
    /// Sequence number in the stream, modulo 2^32.
    pub sequence: u32,
    /// Time when the frame was passed to the port, in nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
}

impl Stamp {
    /// Returns the stamp as written in a frame, in network byte order.
    #[inline]
    pub fn bytes(&self) -> [u8; STAMP] {
        let mut bytes = [0; STAMP];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.stream.to_be_bytes());
        bytes[6..10].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[10..].copy_from_slice(&self.time.to_be_bytes());
        bytes
    }

    /// Parses a stamp at the start of `bytes`; `None` if there is none.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; STAMP] = bytes.first_chunk()?;
        let ([magic @ .., _, _], rest) = bytes.split_first_chunk::<6>()?;
        let (sequence, time) = rest.split_first_chunk::<4>()?;
        (*magic == MAGIC).then_some(Self {
            stream: u16::from_be_bytes([bytes[4], bytes[5]]),
            sequence: u32::from_be_bytes(*sequence),
            time: u64::from_be_bytes(*time.first_chunk()?),
        })
    }
}

/// Returns the stamp of an Ethernet frame with up to two VLAN tags, IPv4 with or without options or IPv6, and UDP.
#[inline]
pub fn find(frame: &[u8]) -> Option<Stamp> {
    const UDP_HEADER: usize = 8;
    let mut at = 12;
    loop {
        let kind = u16::from_be_bytes(*frame.get(at..)?.first_chunk()?);
        at += 2;
        let header = match kind {
            ethertype::IPV4 => usize::from(frame.get(at)? & 15) * 4,
            ethertype::IPV6 => 40,
            ethertype::VLAN | ethertype::QINQ if at < 20 => {
                at += 2;
                continue;
            }
            _ => return None,
        };
        return Stamp::read(frame.get(at + header + UDP_HEADER..)?);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_round() {
        let stamp = Stamp { stream: 7, sequence: 0xdead_beef, time: 1 << 62 | 5 };
        assert_eq!(Stamp::read(&stamp.bytes()), Some(stamp));
        assert_eq!(Stamp::read(&stamp.bytes()[..17]), None);
        let mut other = stamp.bytes();
        other[3] ^= 1;
        assert_eq!(Stamp::read(&other), None);
    }

    #[test]
    fn nothing_in_nothing() {
        for len in 0..70 {
            assert_eq!(find(&vec![0x81; len]), None);
            assert_eq!(find(&vec![0; len]), None);
        }
    }
}
