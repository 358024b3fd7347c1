//! Netlink framing (linux/netlink.h): parses messages and attributes and builds requests. Numbers are in host order; no
//! length in a message is trusted.

/// Type of a message with the error, if any, of a request.
pub const NLMSG_ERROR: u16 = 2;
/// Type of the message that ends a dump.
pub const NLMSG_DONE: u16 = 3;

/// Flag of every request.
pub const NLM_F_REQUEST: u16 = 0x1;
/// Flag: the request is answered by [`NLMSG_ERROR`], also if it succeeds.
pub const NLM_F_ACK: u16 = 0x4;
/// Flag: the sender of a change gets the announcement of it.
pub const NLM_F_ECHO: u16 = 0x8;
/// Flag of an answer: objects changed during the dump, and some may be missing.
pub const NLM_F_DUMP_INTR: u16 = 0x10;
/// Flags of a request for all objects.
pub const NLM_F_DUMP: u16 = 0x300;
/// Flag: creates the object if it does not exist; in an announcement: the object is new.
pub const NLM_F_CREATE: u16 = 0x400;

/// Bits of an attribute's type besides its flags.
const NLA_TYPE_MASK: u16 = 0x3fff;

const HEADER: usize = 16;
const ATTRIBUTE: usize = 4;

/// One message of a datagram (struct nlmsghdr).
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Message type (`nlmsg_type`).
    pub kind: u16,
    /// Message flags (`NLM_F_*`).
    pub flags: u16,
    /// Sequence number of the request that this message answers.
    pub sequence: u32,
    /// Socket whose request this message answers or announces (`nlmsg_pid`); 0 if there was none.
    pub port: u32,
    /// Payload after the header.
    pub body: &'a [u8],
}

/// Iterator over the messages of a datagram. Ends early, with [`Messages::is_whole`] false, at a message with an
/// invalid length.
#[derive(Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
    whole: bool,
}

impl<'a> Messages<'a> {
    /// Returns the messages of a received datagram.
    pub fn new(datagram: &'a [u8]) -> Self {
        Self { rest: datagram, whole: true }
    }

    /// Returns whether no message with an invalid length has been met so far.
    pub fn is_whole(&self) -> bool {
        self.whole
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        let rest = std::mem::take(&mut self.rest);
        let length = u32_at(rest, 0).unwrap_or(0) as usize;
        let Some(whole) = rest.get(..length).filter(|m| m.len() >= HEADER) else {
            self.whole = false;
            return None;
        };
        self.rest = rest.get(align(length)..).unwrap_or_default();
        Some(Message {
            kind: u16_at(whole, 4)?,
            flags: u16_at(whole, 6)?,
            sequence: u32_at(whole, 8)?,
            port: u32_at(whole, 12)?,
            body: &whole[HEADER..],
        })
    }
}

/// Iterator over the attributes (struct nlattr) of a message or nest. Ends at the first attribute with an invalid
/// length: the kernel writes none, and the attributes before it are kept.
#[derive(Clone, Debug)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Returns the attributes in `bytes` after a fixed header of `skip` octets.
    pub fn after(bytes: &'a [u8], skip: usize) -> Self {
        Self(bytes.get(align(skip)..).unwrap_or_default())
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let rest = std::mem::take(&mut self.0);
        let length = usize::from(u16_at(rest, 0)?);
        let kind = u16_at(rest, 2)? & NLA_TYPE_MASK;
        let value = rest.get(ATTRIBUTE..length)?;
        self.0 = rest.get(align(length)..).unwrap_or_default();
        Some((kind, value))
    }
}

/// A netlink request under construction.
#[derive(Debug)]
pub struct Request(Vec<u8>);

impl Request {
    /// Creates a request of type `kind` with a fixed `body`; adds `NLM_F_REQUEST` to `flags`.
    pub fn new(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(96);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(flags | NLM_F_REQUEST).to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(body);
        let mut request = Self(bytes);
        request.close();
        request
    }

    /// Appends an attribute.
    pub fn attribute(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(attribute(kind, value));
        self.close();
        self
    }

    /// Returns the encoded request.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn close(&mut self) {
        self.0.resize(align(self.0.len()), 0);
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
    }
}

/// Returns an attribute, padded: the value of one that consists of attributes is their concatenation.
pub fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = ATTRIBUTE + value.len();
    let mut octets = Vec::with_capacity(align(length));
    octets.extend_from_slice(&(length as u16).to_ne_bytes());
    octets.extend_from_slice(&kind.to_ne_bytes());
    octets.extend_from_slice(value);
    octets.resize(align(length), 0);
    octets
}

/// Returns the octet at offset `at`; `None` beyond the end.
pub fn u8_at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).copied()
}

/// Returns the 16-bit number in host order at offset `at`; `None` beyond the end.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

/// Returns the 32-bit number in host order at offset `at`; `None` beyond the end.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

/// Returns the text of an attribute, which ends at the first octet of 0.
pub fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value.split(|octet| *octet == 0).next().unwrap_or_default()).into_owned()
}

fn align(length: usize) -> usize {
    length.saturating_add(3) & !3
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_is_read_back() {
        let request = Request::new(24, 0x10, 7, &[1, 2, 3, 4]).attribute(1, b"abc").attribute(2, &9u32.to_ne_bytes());
        let mut messages = Messages::new(request.bytes());
        let message = messages.next().unwrap();
        assert_eq!((message.kind, message.flags, message.sequence), (24, 0x11, 7));
        let attributes: Vec<_> = Attributes::after(message.body, 4).collect();
        assert_eq!(attributes, [(1, &b"abc"[..]), (2, &9u32.to_ne_bytes()[..])]);
        assert!(messages.next().is_none());
        assert!(messages.is_whole());
    }

    #[test]
    fn a_lying_length_ends_the_datagram() {
        let mut bytes = Request::new(24, 0, 7, &[0; 12]).bytes().to_vec();
        bytes[0] = 200;
        let mut messages = Messages::new(&bytes);
        assert!(messages.next().is_none());
        assert!(!messages.is_whole());
    }

    proptest! {
        #[test]
        fn any_octets_end(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
            prop_assert!(Messages::new(&bytes).count() <= bytes.len() / HEADER);
            prop_assert!(Attributes::after(&bytes, 0).count() <= bytes.len() / ATTRIBUTE);
        }
    }
}
