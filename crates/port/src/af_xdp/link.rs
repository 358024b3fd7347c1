//! Properties of an interface, read with a single netlink query; without a library, so that ports need no async
//! runtime.

use super::Error;
use super::offload;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;

// linux/rtnetlink.h, linux/if_link.h
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 1;
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
        let fd = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            None, // NETLINK_ROUTE
        )
        .map_err(|e| failed(e.into()))?;
        let index = rustix::net::netdevice::name_to_index(&fd, name).map_err(|e| failed(e.into()))?;
        let mut request = Vec::with_capacity(32);
        request.extend(32u32.to_ne_bytes());
        request.extend(RTM_GETLINK.to_ne_bytes());
        request.extend(NLM_F_REQUEST.to_ne_bytes());
        request.extend([0; 8]); // sequence, port
        request.extend([0; 4]); // family, type
        request.extend(index.to_ne_bytes());
        request.extend([0; 8]); // flags, change
        rustix::net::send(&fd, &request, SendFlags::empty()).map_err(|e| failed(e.into()))?;
        let mut reply = vec![0; 64 << 10];
        let (n, _) = rustix::net::recv(&fd, &mut reply[..], RecvFlags::empty()).map_err(|e| failed(e.into()))?;
        let mut link = Self::parse(&reply[..n]).map_err(failed)?;
        if let Some(queues) = offload::rx_channels(name) {
            link.queues = queues;
        }
        Ok(link)
    }

    /// Queries the interface with this index, whatever its current name.
    pub(super) fn of_index(index: u32) -> Result<Self, Error> {
        let failed = |e: rustix::io::Errno| Error::Query { interface: format!("index {index}"), source: e.into() };
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None);
        let name = rustix::net::netdevice::index_to_name(&fd.map_err(failed)?, index).map_err(failed)?;
        Self::query(&name)
    }

    fn parse(message: &[u8]) -> io::Result<Self> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "malformed netlink reply");
        match u16_at(message, 4) {
            Some(RTM_NEWLINK) => {}
            Some(NLMSG_ERROR) => {
                let code = u32_at(message, 16).ok_or_else(bad)? as i32;
                return Err(io::Error::from_raw_os_error(-code));
            }
            _ => return Err(bad()),
        }
        let mut link = Self { index: u32_at(message, 20).ok_or_else(bad)?, ..Self::default() };
        for (kind, value) in attributes(message.get(32..).ok_or_else(bad)?) {
            match kind {
                IFLA_IFNAME => link.name = text(value),
                IFLA_MTU => link.mtu = u32_at(value, 0).unwrap_or(0),
                IFLA_NUM_RX_QUEUES => link.queues = u32_at(value, 0).unwrap_or(0),
                IFLA_ADDRESS => link.mac = value.try_into().unwrap_or_default(),
                IFLA_LINKINFO => {
                    link.kind =
                        attributes(value).find(|(k, _)| *k == IFLA_INFO_KIND).map(|(_, v)| text(v)).unwrap_or_default();
                }
                IFLA_XDP => link.program = program(value),
                _ => {}
            }
        }
        Ok(link)
    }
}

fn program(xdp: &[u8]) -> Option<(u32, &'static str)> {
    let (mut id, mut mode) = (None, 0);
    for (kind, value) in attributes(xdp) {
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

/// Iterates over the attributes of a netlink message or a nested attribute, with the nesting flags cleared; stops at
/// the first attribute that is truncated.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & 0x3fff;
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

pub(super) fn u16_at(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(b.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(b: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(b.get(at..at + 4)?.try_into().ok()?))
}

fn text(b: &[u8]) -> String {
    String::from_utf8_lossy(b.split(|c| *c == 0).next().unwrap_or_default()).into_owned()
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
        fn garbage_is_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = LinkInfo::parse(&bytes);
            let mut link = bytes;
            if link.len() > 5 {
                link[4..6].copy_from_slice(&RTM_NEWLINK.to_ne_bytes());
                let _ = LinkInfo::parse(&link);
            }
        }
    }
}
