//! Generic netlink: families of messages, whose numbers the kernel chooses when it registers them (linux/genetlink.h).

use crate::error::Error;
use crate::socket::Socket;
use crate::wire::{Attributes, attribute, text, u16_at, u32_at};
use rustix::io::Errno;

/// Octets of the header of each message (struct genlmsghdr): command, version, two reserved.
pub const HEADER: usize = 4;

/// Number of the family that knows the others, and its command.
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;

/// A family, until its module is unloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// Type of its messages.
    pub id: u16,
    /// Multicast groups by name.
    groups: Vec<(String, u32)>,
}

/// Opens a socket of generic netlink; see [`Socket::open_protocol`].
///
/// # Errors
/// See [`Socket::open_protocol`].
pub fn open(groups: &[u32], receive_buffer: usize) -> Result<Socket, Error> {
    Socket::open_protocol(Some(rustix::net::netlink::GENERIC), groups, receive_buffer)
}

/// Returns the body of a request.
pub fn request(command: u8, version: u8, attributes: &[u8]) -> Vec<u8> {
    [&[command, version, 0, 0], attributes].concat()
}

impl Family {
    /// Asks the kernel for a family, whose module it loads if need be.
    ///
    /// # Errors
    /// If there is no such family, or the kernel does not tell about it.
    pub fn find(socket: &mut Socket, name: &str, buffer: &mut [u8]) -> Result<Self, Error> {
        let name = attribute(CTRL_ATTR_FAMILY_NAME, &[name.as_bytes(), &[0]].concat());
        let mut found = None;
        socket.ask(GENL_ID_CTRL, &request(CTRL_CMD_GETFAMILY, 1, &name), buffer, |message| {
            found = found.take().or_else(|| family(message.body));
        })?;
        found.ok_or(Error::Socket { doing: "find a family of", source: Errno::NOENT.into() })
    }

    /// Returns the number of a multicast group.
    pub fn group(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|(of, _)| of == name).map(|(_, group)| *group)
    }
}

fn family(body: &[u8]) -> Option<Family> {
    let (mut id, mut groups) = (None, vec![]);
    for (kind, value) in Attributes::after(body, HEADER) {
        match kind {
            CTRL_ATTR_FAMILY_ID => id = u16_at(value, 0),
            CTRL_ATTR_MCAST_GROUPS => groups.extend(Attributes::after(value, 0).filter_map(|(_, group)| {
                let of = |wanted| Attributes::after(group, 0).find(|(kind, _)| *kind == wanted);
                let (name, number) = (of(CTRL_ATTR_MCAST_GRP_NAME)?.1, of(CTRL_ATTR_MCAST_GRP_ID)?.1);
                Some((text(name), u32_at(number, 0)?))
            })),
            _ => {}
        }
    }
    Some(Family { id: id?, groups })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::DATAGRAM;

    /// The family that knows all others is in every kernel, and knows itself.
    #[test]
    fn a_family_is_found_by_its_name() {
        let (mut socket, mut buffer) = (open(&[], 1 << 16).unwrap(), vec![0; DATAGRAM]);
        let family = Family::find(&mut socket, "nlctrl", &mut buffer).unwrap();
        assert_eq!((family.id, family.group("no such group")), (GENL_ID_CTRL, None));
        open(&[family.group("notify").unwrap()], 1 << 16).unwrap();
        assert!(Family::find(&mut socket, "no such family", &mut buffer).is_err());
    }
}
