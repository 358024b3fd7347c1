//! What is written into each frame to know it again: the first bytes of its UDP payload.

use bywash_wire::ethernet::ethertype;

/// Bytes of a stamp: as many as a UDP datagram over IPv4 has room for in the shortest frame.
pub const STAMP: usize = 18;
/// What a stamp begins with.
pub const MAGIC: [u8; 4] = *b"BWt1";
/// The stream of frames that teach the device where addresses are, and are not counted.
pub const LEARNING: u16 = u16::MAX;

/// Who a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Its stream: another one for each trial, so that a late frame of the last is not taken for one of this.
    pub stream: u16,
    /// Its place in the stream, modulo 2^32.
    pub sequence: u32,
    /// When it was handed to the port, in nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
}

impl Stamp {
    /// As it stands in a frame, in network byte order.
    #[inline]
    pub fn bytes(&self) -> [u8; STAMP] {
        let mut bytes = [0; STAMP];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&self.stream.to_be_bytes());
        bytes[6..10].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[10..].copy_from_slice(&self.time.to_be_bytes());
        bytes
    }

    /// Reads one, if these bytes begin with one.
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

/// The stamp of an Ethernet frame: behind up to two VLAN tags, IPv4 with or without options or IPv6, and UDP.
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
