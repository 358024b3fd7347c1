//! Properties of an interface, read by a request of routing netlink.

use super::Error;
use super::offload;
use bywash_nl::retry;
use bywash_nl::socket::{DATAGRAM, Socket};
use bywash_nl::wire::{Attributes, Message, text, u32_at};
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use std::io;

// linux/rtnetlink.h, linux/if_link.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
/// Octets of the header of a link's message (struct ifinfomsg), and the offset of the interface's index in it.
const HEADER: usize = 16;
const INDEX: usize = 4;
const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_NUM_RX_QUEUES: u16 = 32;
const IFLA_XDP: u16 = 43;
const IFLA_XDP_ATTACHED: u16 = 2;
const IFLA_XDP_PROG_ID: u16 = 4;

/// Snapshot of an interface's properties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkInfo {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// MAC address; all zeros if it has none.
    pub mac: [u8; 6],
    /// MTU in bytes.
    pub mtu: u32,
    /// Kind, as shown by `ip -d link` (`veth`, `bond`, ...); empty for a hardware device.
    pub kind: String,
    /// RX queues in use.
    pub queues: u32,
    /// Id and mode of the attached XDP program; `None` if there is none.
    pub program: Option<(u32, &'static str)>,
}

impl LinkInfo {
    /// Queries an interface in the calling thread's network namespace.
    pub fn query(name: &str) -> Result<Self, Error> {
        let failed = |source: io::Error| match source.raw_os_error() {
            Some(libc::ENODEV) => Error::NoInterface(name.into()),
            _ => Error::Query { interface: name.into(), source },
        };
        if name.is_empty() || name.len() > 15 || name.contains(['/', '\0']) {
            return Err(Error::NoInterface(name.into()));
        }
        Self::ask(|socket| name_to_index(socket, name)).map_err(failed)
    }

    /// Queries the interface with this index, whatever its current name.
    pub(super) fn of_index(index: u32) -> Result<Self, Error> {
        Self::ask(|_| Ok(index)).map_err(|source| Error::Query { interface: format!("index {index}"), source })
    }

    fn ask(index: impl Fn(&Socket) -> Result<u32, Errno>) -> io::Result<Self> {
        let mut buffer = vec![0; DATAGRAM];
        let asked = retry(|| {
            let mut socket = Socket::open(&[], DATAGRAM)?;
            let asking = |e: Errno| bywash_nl::Error::Socket { doing: "ask", source: e.into() };
            let mut body = [0; HEADER];
            body[INDEX..INDEX + 4].copy_from_slice(&index(&socket).map_err(asking)?.to_ne_bytes());
            let mut found = None;
            let parse = |message: &Message<'_>| found = found.take().or_else(|| Self::parse(message));
            socket.ask(RTM_GETLINK, &body, &mut buffer, parse)?;
            Ok(found)
        });
        let link = asked.map_err(|error| match error {
            bywash_nl::Error::Socket { source, .. } => source,
            other => io::Error::other(other),
        })?;
        let mut link = link.ok_or(io::ErrorKind::InvalidData)?;
        if let Some(queues) = offload::rx_channels(&link.name) {
            link.queues = queues;
        }
        Ok(link)
    }

    /// Parses the answer; `None` if it is of another kind or too short.
    fn parse(message: &Message<'_>) -> Option<Self> {
        if message.kind != RTM_NEWLINK {
            return None;
        }
        let mut link = Self { index: u32_at(message.body, INDEX)?, ..Self::default() };
        for (kind, value) in Attributes::after(message.body, HEADER) {
            match kind {
                IFLA_IFNAME => link.name = text(value),
                IFLA_MTU => link.mtu = u32_at(value, 0).unwrap_or(0),
                IFLA_NUM_RX_QUEUES => link.queues = u32_at(value, 0).unwrap_or(0),
                IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
                IFLA_LINKINFO => {
                    let kind = Attributes::after(value, 0).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                    link.kind = kind.map(|(_, kind)| text(kind)).unwrap_or_default();
                }
                IFLA_XDP => link.program = program(value),
                _ => {}
            }
        }
        Some(link)
    }
}

fn program(xdp: &[u8]) -> Option<(u32, &'static str)> {
    let (mut id, mut mode) = (None, 0);
    for (kind, value) in Attributes::after(xdp, 0) {
        match kind {
            IFLA_XDP_ATTACHED => mode = *value.first()?,
            // With several modes at once there is one id per mode, and none in this attribute.
            IFLA_XDP_PROG_ID => id = u32_at(value, 0),
            _ => {}
        }
    }
    let mode = match mode {
        0 => return None,
        1 => "native",
        2 => "generic",
        3 => "offloaded",
        _ => "several modes",
    };
    Some((id.unwrap_or(0), mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn loopback_is_known() {
        let lo = LinkInfo::query("lo").unwrap();
        assert_eq!((lo.name.as_str(), lo.mac, lo.program), ("lo", [0; 6], None));
        assert!(lo.mtu > 1500 && lo.index > 0);
    }

    #[test]
    fn unknown_names_are_said() {
        for name in ["nosuchif0", "", "a/b", "name-that-is-too-long"] {
            assert!(matches!(LinkInfo::query(name), Err(Error::NoInterface(n)) if n == name));
        }
    }

    proptest! {
        #[test]
        fn garbage_is_survived(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = LinkInfo::parse(&Message { kind: RTM_NEWLINK, flags: 0, sequence: 0, port: 0, body: &body });
        }
    }
}
