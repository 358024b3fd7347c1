//! Messages of the control channel: 128 bytes each, little-endian, packed.
//!
//! Source: libmemif's `memif.h`, version 2.0, which DPDK and VPP copy.

/// Size of every message in bytes.
pub const SIZE: usize = 128;
/// Protocol version 2.0, the only one that exists.
pub const VERSION: u16 = 0x0200;
/// Log2 of the largest ring size.
pub const MAX_LOG2_RING: u8 = 14;
/// Size of the secret field in bytes.
pub const SECRET: usize = 24;

/// Size of a name field in bytes.
const NAME: usize = 32;
/// Size of the reason field of a disconnect message in bytes.
const REASON: usize = 96;

/// Control message of a known type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Acknowledges the previous message.
    Ack,
    /// Server: its versions and the numbers of regions and rings that it accepts.
    Hello(Hello),
    /// Client: version, interface ID and secret.
    Init(Init),
    /// Client: memory region. The message carries its file descriptor.
    AddRegion {
        /// Index of the region.
        index: u16,
        /// Length of the region in bytes.
        size: u64,
    },
    /// Client: ring. The message carries its interrupt file descriptor.
    AddRing(AddRing),
    /// Client: all regions and rings have been sent.
    Connect {
        /// Name of the client's interface.
        name: String,
    },
    /// Server: the rings are in use from now on.
    Connected {
        /// Name of the server's interface.
        name: String,
    },
    /// Either side: ends the connection.
    Disconnect {
        /// Error code; its meaning is up to the sender.
        code: u32,
        /// Reason as text.
        reason: String,
    },
}

/// First message of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Name of the server's program.
    pub name: String,
    /// Lowest supported version.
    pub min_version: u16,
    /// Highest supported version.
    pub max_version: u16,
    /// Highest region index.
    pub max_region: u16,
    /// Highest index of a ring from server to client.
    pub max_s2c_ring: u16,
    /// Highest index of a ring from client to server.
    pub max_c2s_ring: u16,
    /// Log2 of the largest ring size.
    pub max_log2_ring: u8,
}

/// First message of a client.
#[derive(Clone, PartialEq, Eq)]
pub struct Init {
    /// Version of the client.
    pub version: u16,
    /// Interface ID.
    pub id: u32,
    /// Interface mode; 0 is Ethernet.
    pub mode: u8,
    /// Secret, padded with zeros; all zeros if there is none.
    pub secret: [u8; SECRET],
    /// Name of the client's program.
    pub name: String,
}

impl std::fmt::Debug for Init {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the secret.
        let mut shown = f.debug_struct("Init");
        shown.field("version", &self.version).field("id", &self.id).field("name", &self.name).finish_non_exhaustive()
    }
}

/// Description of a ring and its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddRing {
    /// True for a ring from client to server.
    pub from_client: bool,
    /// Index among the rings of its direction.
    pub index: u16,
    /// Index of the region that contains the ring.
    pub region: u16,
    /// Offset of the ring in the region in bytes.
    pub offset: u32,
    /// Log2 of the number of slots.
    pub log2_size: u8,
    /// Bytes before each packet that are private to the writer.
    pub private_header: u16,
}

impl Message {
    /// Decodes a message. `None` if its type is unknown.
    pub fn read(bytes: &[u8; SIZE]) -> Option<Self> {
        let b16 = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let b32 = |at: usize| u32::from(b16(at)) | u32::from(b16(at + 2)) << 16;
        let b64 = |at: usize| u64::from(b32(at)) | u64::from(b32(at + 4)) << 32;
        Some(match b16(0) {
            1 => Self::Ack,
            2 => Self::Hello(Hello {
                name: text(&bytes[2..2 + NAME]),
                min_version: b16(34),
                max_version: b16(36),
                max_region: b16(38),
                max_s2c_ring: b16(40),
                max_c2s_ring: b16(42),
                max_log2_ring: bytes[44],
            }),
            3 => Self::Init(Init {
                version: b16(2),
                id: b32(4),
                mode: bytes[8],
                secret: std::array::from_fn(|i| bytes[9 + i]),
                name: text(&bytes[33..33 + NAME]),
            }),
            4 => Self::AddRegion { index: b16(2), size: b64(4) },
            5 => Self::AddRing(AddRing {
                from_client: b16(2) & 1 != 0,
                index: b16(4),
                region: b16(6),
                offset: b32(8),
                log2_size: bytes[12],
                private_header: b16(13),
            }),
            6 => Self::Connect { name: text(&bytes[2..2 + NAME]) },
            7 => Self::Connected { name: text(&bytes[2..2 + NAME]) },
            8 => Self::Disconnect { code: b32(2), reason: text(&bytes[6..6 + REASON]) },
            _ => return None,
        })
    }

    /// Encodes the message. Texts are truncated to their fields.
    pub fn bytes(&self) -> [u8; SIZE] {
        let mut to = Writer { bytes: [0; SIZE], at: 0 };
        match self {
            Self::Ack => to.put(&1u16.to_le_bytes()),
            Self::Hello(hello) => {
                to.put(&2u16.to_le_bytes());
                to.text(&hello.name, NAME);
                for number in
                    [hello.min_version, hello.max_version, hello.max_region, hello.max_s2c_ring, hello.max_c2s_ring]
                {
                    to.put(&number.to_le_bytes());
                }
                to.put(&[hello.max_log2_ring]);
            }
            Self::Init(init) => {
                to.put(&3u16.to_le_bytes());
                to.put(&init.version.to_le_bytes());
                to.put(&init.id.to_le_bytes());
                to.put(&[init.mode]);
                to.put(&init.secret);
                to.text(&init.name, NAME);
            }
            Self::AddRegion { index, size } => {
                to.put(&4u16.to_le_bytes());
                to.put(&index.to_le_bytes());
                to.put(&size.to_le_bytes());
            }
            Self::AddRing(ring) => {
                for number in [5, u16::from(ring.from_client), ring.index, ring.region] {
                    to.put(&number.to_le_bytes());
                }
                to.put(&ring.offset.to_le_bytes());
                to.put(&[ring.log2_size]);
                to.put(&ring.private_header.to_le_bytes());
            }
            Self::Connect { name } => {
                to.put(&6u16.to_le_bytes());
                to.text(name, NAME);
            }
            Self::Connected { name } => {
                to.put(&7u16.to_le_bytes());
                to.text(name, NAME);
            }
            Self::Disconnect { code, reason } => {
                to.put(&8u16.to_le_bytes());
                to.put(&code.to_le_bytes());
                to.text(reason, REASON);
            }
        }
        to.bytes
    }
}

struct Writer {
    bytes: [u8; SIZE],
    at: usize,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    /// Appends `text`, always NUL-terminated because the peer may rely on it.
    fn text(&mut self, text: &str, field: usize) {
        let end = text.floor_char_boundary(field - 1);
        self.bytes[self.at..self.at + end].copy_from_slice(&text.as_bytes()[..end]);
        self.at += field;
    }
}

/// Decodes a peer's text for display: up to the first NUL, with control characters replaced by `?`.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secret(text: &str) -> [u8; SECRET] {
        std::array::from_fn(|i| text.as_bytes().get(i).copied().unwrap_or(0))
    }

    /// Checks against the offsets of the packed structures in `memif.h`.
    #[test]
    fn fields_lie_where_other_programs_put_them() {
        let init = Init { version: VERSION, id: 7, mode: 0, secret: secret("abc"), name: "DPDK".into() };
        let bytes = Message::Init(init).bytes();
        assert_eq!(bytes[..9], [3, 0, 0, 2, 7, 0, 0, 0, 0]);
        assert_eq!((&bytes[9..12], &bytes[33..37]), (&b"abc"[..], &b"DPDK"[..]));
        let ring = AddRing { from_client: true, index: 0, region: 0, offset: 0x4080, log2_size: 10, private_header: 0 };
        assert_eq!(Message::AddRing(ring).bytes()[..15], [5, 0, 1, 0, 0, 0, 0, 0, 0x80, 0x40, 0, 0, 10, 0, 0]);
        let region = Message::AddRegion { index: 1, size: 2 << 20 };
        assert_eq!(region.bytes()[..12], [4, 0, 1, 0, 0, 0, 0x20, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn texts_are_cut_and_shown_without_harm() {
        let long = Message::Disconnect { code: 1, reason: "ü".repeat(60) };
        assert_eq!(
            Message::read(&long.bytes()),
            Some(Message::Disconnect { code: 1, reason: "ü".repeat(47) }),
            "95 bytes and a zero"
        );
        let mut bytes = Message::Connect { name: String::new() }.bytes();
        bytes[2..34].copy_from_slice(b"\x1b[2J\xff 01234567890123456789012345");
        let Some(Message::Connect { name }) = Message::read(&bytes) else { panic!() };
        assert!(name.starts_with("?[2J\u{fffd} 0") && !name.contains('\x1b'));
    }

    proptest! {
        #[test]
        fn whatever_is_read_is_written_the_same(bytes in proptest::array::uniform32(any::<u8>()), kind in 0u16..10) {
            let mut message = [0; SIZE];
            message.chunks_mut(32).for_each(|chunk| chunk.copy_from_slice(&bytes));
            message[..2].copy_from_slice(&kind.to_le_bytes());
            let read = Message::read(&message);
            prop_assert_eq!(read.is_some(), (1..=8).contains(&kind));
            if let Some(read) = read {
                let again = Message::read(&read.bytes());
                // Truncated or repaired names are not written as the same bytes, so only the type is compared.
                if bytes.is_ascii() {
                    prop_assert_eq!(std::mem::discriminant(&read), std::mem::discriminant(again.as_ref().unwrap()));
                }
                prop_assert!(again.is_some());
            }
        }
    }
}
