//! DOCSIS MAC header of packet PDUs (CableLabs MULPI, "Formats of MAC frames").
//!
//! ```text
//! FC 1 | MAC_PARM 1 | LEN 2 | extended header, MAC_PARM bytes | HCS 2 | PDU, LEN - MAC_PARM bytes
//! ```
//!
//! [`Header::write`] supports a privacy element (BPI+, of five bytes, always first), a downstream service element (of
//! two, four or six bytes), both or neither.

use crate::crc::hcs;

/// Size of a header without extended header in bytes.
pub const HEADER_LEN: usize = 6;
/// Maximum size of a header that [`Header::write`] writes in bytes.
pub const HEADER_MAX: usize = HEADER_LEN + 5 + 6;
/// Maximum size of an extended header in bytes (MULPI: EHDR length 0 to 240).
pub const EXTENSION_MAX: usize = 240;

/// FC: packet PDU, FC_PARM 0, with and without extended header.
const FC_PLAIN: u8 = 0x00;
const FC_EXTENDED: u8 = 0x01;
/// EH_TYPE of the downstream privacy element, and of the downstream service element.
const EH_PRIVACY: u8 = 4;
const EH_SERVICE: u8 = 8;
/// EH_TYPE of the upstream privacy elements, with a request and without.
const EH_UPSTREAM: [u8; 2] = [3, 7];
/// BPI+ version.
const BPI_VERSION: u8 = 1;

/// Downstream privacy element: selects the key of an encrypted PDU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Privacy {
    /// Set if the PDU is encrypted.
    pub enabled: bool,
    /// Key sequence number, 0 to 15.
    pub key_sequence: u8,
    /// Toggle bit: even or odd key.
    pub toggle: bool,
    /// Security association identifier (SAID), 0 to 16383.
    pub said: u16,
}

/// Downstream service element: priority, flow and sequence number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Service {
    /// Traffic priority, 0 to 7.
    pub priority: u8,
    /// Downstream service identifier (DSID), 0 to 1048575. `None` if the element has only a priority.
    pub dsid: Option<u32>,
    /// Sequence number, by which modems reorder frames received over several channels.
    pub sequence: Option<u16>,
    /// Toggles when the sequence restarts.
    pub sequence_change: bool,
}

/// Contents of a header beside the PDU's length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Header {
    /// Privacy element.
    pub privacy: Option<Privacy>,
    /// Downstream service element.
    pub service: Option<Service>,
}

/// Error of [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The bytes end within the frame.
    #[error("the frame is cut off: {have} of {need} bytes")]
    Truncated {
        /// Number of bytes present.
        have: usize,
        /// Number of bytes that the frame needs at least.
        need: usize,
    },
    /// Management, timing, request, fragmentation or reserved frame.
    #[error("frame control {0:#04x} is not that of a packet PDU")]
    NotPacket(u8),
    /// LEN is less than the extended header, or the extended header is longer than [`EXTENSION_MAX`].
    #[error("invalid length: LEN is {len}, with {extension} bytes of extended header")]
    Length {
        /// Value of LEN.
        len: usize,
        /// Value of MAC_PARM.
        extension: usize,
    },
    /// Element that exceeds the extended header, has an invalid length for its type, or is present twice.
    #[error("invalid element {kind} of {len} bytes at byte {at} of the extended header")]
    Element {
        /// Value of EH_TYPE.
        kind: u8,
        /// Value of EH_LEN.
        len: usize,
        /// Offset of the element in the extended header in bytes.
        at: usize,
    },
    /// Wrong header check sequence.
    #[error("wrong header check sequence {found:04x}: computed {computed:04x}")]
    Hcs {
        /// Value in the header, in wire order.
        found: u16,
        /// Computed value.
        computed: u16,
    },
}

/// Parsed frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<'a> {
    /// Contents of the header.
    pub header: Header,
    /// Size of the header in bytes.
    pub header_len: usize,
    /// PDU as received, sealed or not.
    pub pdu: &'a [u8],
    /// Bytes after the frame.
    pub rest: &'a [u8],
}

impl Privacy {
    const LEN: usize = 4;

    #[inline]
    fn value(&self) -> [u8; Self::LEN] {
        let said = (self.said & 0x3fff) | u16::from(self.enabled) << 15 | u16::from(self.toggle) << 14;
        let [high, low] = said.to_be_bytes();
        [self.key_sequence << 4 | BPI_VERSION, high, low, 0]
    }

    fn parse(value: [u8; Self::LEN]) -> Self {
        let said = u16::from_be_bytes([value[1], value[2]]);
        Self {
            enabled: said & 0x8000 != 0,
            key_sequence: value[0] >> 4,
            toggle: said & 0x4000 != 0,
            said: said & 0x3fff,
        }
    }
}

impl Service {
    #[inline]
    fn len(&self) -> usize {
        match (self.dsid, self.sequence) {
            (None, _) => 1,
            (Some(_), None) => 3,
            (Some(_), Some(_)) => 5,
        }
    }

    #[inline]
    fn value(&self) -> [u8; 5] {
        let dsid = self.dsid.unwrap_or(0) & 0xf_ffff;
        let change = u32::from(self.sequence_change && self.sequence.is_some());
        let [_, a, b, c] = (u32::from(self.priority & 7) << 21 | change << 20 | dsid).to_be_bytes();
        let [d, e] = self.sequence.unwrap_or(0).to_be_bytes();
        [a, b, c, d, e]
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let &first = value.first()?;
        let dsid = |b: u8, c: u8| Some(u32::from_be_bytes([0, first & 0xf, b, c]));
        let priority = first >> 5;
        match *value {
            [_] => Some(Self { priority, ..Self::default() }),
            [_, b, c] => Some(Self { priority, dsid: dsid(b, c), ..Self::default() }),
            [_, b, c, d, e] => Some(Self {
                priority,
                dsid: dsid(b, c),
                sequence: Some(u16::from_be_bytes([d, e])),
                sequence_change: first & 0x10 != 0,
            }),
            _ => None,
        }
    }
}

impl Header {
    /// Returns the size of the header in bytes, header check sequence included.
    #[inline]
    pub fn len(&self) -> usize {
        HEADER_LEN + self.extension()
    }

    /// Returns false: a header has at least [`HEADER_LEN`] bytes.
    pub fn is_empty(&self) -> bool {
        false
    }

    #[inline]
    fn extension(&self) -> usize {
        let privacy = if self.privacy.is_some() { 1 + Privacy::LEN } else { 0 };
        privacy + self.service.map_or(0, |s| 1 + s.len())
    }

    /// Writes the header to the start of `out`, for a PDU of `pdu_len` bytes as sent; returns the header's length.
    /// `None`, with `out` unchanged, if `out` is too short or the PDU is too long for LEN.
    #[inline]
    pub fn write(&self, out: &mut [u8], pdu_len: usize) -> Option<usize> {
        let extension = self.extension();
        let len = u16::try_from(pdu_len + extension).ok()?;
        let out = out.get_mut(..HEADER_LEN + extension)?;
        out[0] = if extension == 0 { FC_PLAIN } else { FC_EXTENDED };
        out[1] = extension as u8;
        out[2..4].copy_from_slice(&len.to_be_bytes());
        let mut at = 4;
        if let Some(privacy) = &self.privacy {
            out[at] = EH_PRIVACY << 4 | Privacy::LEN as u8;
            out[at + 1..at + 5].copy_from_slice(&privacy.value());
            at += 1 + Privacy::LEN;
        }
        if let Some(service) = &self.service {
            let len = service.len();
            out[at] = EH_SERVICE << 4 | len as u8;
            out[at + 1..at + 1 + len].copy_from_slice(&service.value()[..len]);
            at += 1 + len;
        }
        let check = hcs(&out[..at]);
        out[at..].copy_from_slice(&check);
        Some(at + 2)
    }

    fn parse_extension(extension: &[u8]) -> Result<Self, ParseError> {
        let mut header = Self::default();
        let mut at = 0;
        while let Some((&tag, rest)) = extension[at..].split_first() {
            let (kind, len) = (tag >> 4, usize::from(tag & 0xf));
            let wrong = ParseError::Element { kind, len, at };
            let value = rest.get(..len).ok_or(wrong)?;
            // Null elements are padding; types not used downstream, and extended types, are skipped.
            let twice = match kind {
                EH_PRIVACY => header.privacy.replace(Privacy::parse(value.try_into().map_err(|_| wrong)?)).is_some(),
                EH_SERVICE => header.service.replace(Service::parse(value).ok_or(wrong)?).is_some(),
                _ => false,
            };
            if twice {
                return Err(wrong);
            }
            at += 1 + len;
        }
        Ok(header)
    }
}

/// Parses the frame at the start of `bytes`.
pub fn parse(bytes: &[u8]) -> Result<Parsed<'_>, ParseError> {
    let have = bytes.len();
    let &[fc, parm, high, low, ..] = bytes else { return Err(ParseError::Truncated { have, need: HEADER_LEN }) };
    if fc != FC_PLAIN && fc != FC_EXTENDED {
        return Err(ParseError::NotPacket(fc));
    }
    // Without extended header, MAC_PARM does not count any bytes known here.
    let extension = if fc == FC_EXTENDED { usize::from(parm) } else { 0 };
    let len = usize::from(u16::from_be_bytes([high, low]));
    if len < extension || extension > EXTENSION_MAX {
        return Err(ParseError::Length { len, extension });
    }
    let header_len = HEADER_LEN + extension;
    let truncated = |need| ParseError::Truncated { have, need };
    let (head, check) = bytes.get(..header_len).ok_or(truncated(header_len))?.split_at(header_len - 2);
    let computed = hcs(head);
    if check != computed {
        let found = u16::from_be_bytes([check[0], check[1]]);
        return Err(ParseError::Hcs { found, computed: u16::from_be_bytes(computed) });
    }
    let header = Header::parse_extension(&head[4..])?;
    let end = HEADER_LEN + len;
    let (frame, rest) = bytes.split_at_checked(end).ok_or(truncated(end))?;
    Ok(Parsed { header, header_len, pdu: &frame[header_len..], rest })
}

/// Returns the service identifier (SID) in the privacy element of an upstream frame, from which `parsed` is; `None` if
/// it has none. That of a modem's primary service flow is also the number of its primary security association (BPI+).
pub fn upstream_sid(frame: &[u8], parsed: &Parsed<'_>) -> Option<u16> {
    let mut extension = frame.get(4..parsed.header_len - 2)?;
    while let Some((&tag, rest)) = extension.split_first() {
        let (value, rest) = rest.split_at_checked(usize::from(tag & 0xf))?;
        if EH_UPSTREAM.contains(&(tag >> 4))
            && let [_, high, low, ..] = *value
        {
            return Some(u16::from_be_bytes([high, low]) & 0x3fff);
        }
        extension = rest;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn headers() -> impl Strategy<Value = Header> {
        let privacy = (any::<bool>(), 0..16u8, any::<bool>(), 0..0x4000u16)
            .prop_map(|(enabled, key_sequence, toggle, said)| Privacy { enabled, key_sequence, toggle, said });
        let place = proptest::option::of((0..0x10_0000u32, proptest::option::of((any::<u16>(), any::<bool>()))));
        let service = (0..8u8, place).prop_map(|(priority, place)| match place {
            None => Service { priority, ..Service::default() },
            Some((dsid, None)) => Service { priority, dsid: Some(dsid), ..Service::default() },
            Some((dsid, Some((sequence, sequence_change)))) => {
                Service { priority, dsid: Some(dsid), sequence: Some(sequence), sequence_change }
            }
        });
        (proptest::option::of(privacy), proptest::option::of(service))
            .prop_map(|(privacy, service)| Header { privacy, service })
    }

    #[test]
    fn a_header_byte_by_byte() {
        let header = Header {
            privacy: Some(Privacy { enabled: true, key_sequence: 2, toggle: false, said: 0x123 }),
            service: Some(Service { priority: 5, dsid: Some(0x4_5678), sequence: Some(0x9abc), sequence_change: true }),
        };
        let mut out = [0; HEADER_MAX];
        assert_eq!(header.write(&mut out, 64), Some(HEADER_MAX));
        let expected = [1, 11, 0, 75, 0x44, 0x21, 0x81, 0x23, 0, 0x85, 0xb4, 0x56, 0x78, 0x9a, 0xbc];
        assert_eq!(out[..15], expected);
        assert_eq!(out[15..], hcs(&expected));
        assert_eq!(Header::default().write(&mut out[..5], 0), None);
        assert_eq!(Header::default().write(&mut out, 65536), None);
        assert_eq!(Header::default().write(&mut out, 65535), Some(6));
    }

    proptest! {
        #[test]
        fn what_was_written_is_parsed(header in headers(), pdu in proptest::collection::vec(any::<u8>(), 0..300),
                                      more in proptest::collection::vec(any::<u8>(), 0..20)) {
            let mut bytes = vec![0; header.len()];
            prop_assert_eq!(header.write(&mut bytes, pdu.len()), Some(header.len()));
            bytes.extend(&pdu);
            let whole = bytes.len();
            for cut in 0..whole {
                let truncated = matches!(parse(&bytes[..cut]), Err(ParseError::Truncated { .. }));
                prop_assert!(truncated);
            }
            bytes.extend(&more);
            let parsed = parse(&bytes).unwrap();
            prop_assert_eq!(parsed, Parsed { header, header_len: header.len(), pdu: &pdu, rest: &more });
        }

        #[test]
        fn one_wrong_bit_in_a_header_is_seen(header in headers(), bit in 0usize..1000) {
            let mut bytes = vec![0; header.len() + 40];
            header.write(&mut bytes, 40);
            let bit = bit % (header.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(parse(&bytes).is_err());
        }

        #[test]
        fn garbage_is_refused_or_consistent(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), fix in any::<bool>()) {
            if fix && bytes.len() >= 6 {
                bytes[0] &= 1;
                let extension = if bytes[0] == 1 { usize::from(bytes[1]) } else { 0 };
                if let Some(check) = bytes.get(..4 + extension).map(hcs)
                    && let Some(at) = bytes.get_mut(4 + extension..6 + extension)
                {
                    at.copy_from_slice(&check);
                }
            }
            if let Ok(parsed) = parse(&bytes) {
                prop_assert_eq!(parsed.header_len + parsed.pdu.len() + parsed.rest.len(), bytes.len());
            }
        }
    }
}
