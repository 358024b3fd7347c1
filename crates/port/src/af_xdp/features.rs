//! XDP features of a device as reported by the kernel: the `netdev` family of generic netlink (linux/netdev.h), since
//! Linux 6.3.

use super::link::{attributes, u16_at};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::io;
use std::sync::OnceLock;

// linux/genetlink.h, linux/netdev.h
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
const NLM_F_REQUEST: u16 = 1;
/// Length of the netlink header and the generic netlink header.
const HEADERS: usize = 20;
// enum netdev_xdp_act
const REDIRECT_TARGET: u64 = 4;
const ZERO_COPY: u64 = 8;

/// Metadata a driver can provide with a received frame, by bit of `enum netdev_xdp_rx_metadata` (Linux 6.8).
const RX_METADATA: [&str; 3] = ["timestamp", "hash", "vlan-tag"];
/// Metadata an AF_XDP socket can give with a frame it sends, by bit of `enum netdev_xsk_flags` (Linux 6.8, 6.14).
const TX_METADATA: [&str; 3] = ["timestamp", "checksum", "launch-time"];

/// XDP features of a device as reported by its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFeatures {
    /// Set if it accepts frames redirected to it; a veth does only while its peer polls, with a program or with GRO
    /// on.
    pub takes_frames: bool,
    /// Set if its driver supports zero-copy.
    pub zero_copy: bool,
    /// Metadata of received frames that programs bound to the device can read. Not used by Bywash.
    pub rx_metadata: Vec<&'static str>,
    /// Metadata that sockets can give with frames they send. Not used by Bywash.
    pub tx_metadata: Vec<&'static str>,
}

impl DeviceFeatures {
    /// Queries the interface with this index in the calling thread's network namespace. `None` if the kernel does not
    /// report features.
    pub fn of(ifindex: u32) -> Option<Self> {
        let reply = ask(ifindex).ok()??;
        let word = |kind| Some(u64::from_ne_bytes(attribute(&reply, kind)?.get(..8)?.try_into().ok()?));
        let names = |kind, names: [&'static str; 3]| {
            let bits = word(kind).unwrap_or(0);
            names.into_iter().enumerate().filter(|(bit, _)| bits >> bit & 1 != 0).map(|(_, name)| name).collect()
        };
        let acts = word(NETDEV_A_DEV_XDP_FEATURES)?;
        Some(Self {
            takes_frames: acts & REDIRECT_TARGET != 0,
            zero_copy: acts & ZERO_COPY != 0,
            rx_metadata: names(NETDEV_A_DEV_XDP_RX_METADATA_FEATURES, RX_METADATA),
            tx_metadata: names(NETDEV_A_DEV_XSK_FEATURES, TX_METADATA),
        })
    }
}

/// Returns whether XDP frames can be redirected to the interface with this index: [`DeviceFeatures::takes_frames`].
pub fn takes_frames(ifindex: u32) -> Option<bool> {
    Some(DeviceFeatures::of(ifindex)?.takes_frames)
}

/// Returns the kernel's reply about a device; `None` if the kernel does not have the family. A kernel asked for an
/// unknown family starts modprobe(8) and waits for it each time, so the family is asked for only once.
fn ask(ifindex: u32) -> io::Result<Option<Vec<u8>>> {
    static FAMILY: OnceLock<Option<u16>> = OnceLock::new();
    if FAMILY.get() == Some(&None) {
        return Ok(None);
    }
    let generic = rustix::net::netlink::GENERIC;
    let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(generic))?;
    let call = |family: u16, command: u8, attribute: u16, value: &[u8]| -> io::Result<Vec<u8>> {
        rustix::net::send(&fd, &request(family, command, attribute, value), SendFlags::empty())?;
        let mut reply = vec![0; 8192];
        let (n, _) = rustix::net::recv(&fd, &mut reply[..], RecvFlags::empty())?;
        reply.truncate(n);
        Ok(reply)
    };
    let family = match FAMILY.get() {
        Some(family) => *family,
        None => {
            let reply = call(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, b"netdev\0")?;
            *FAMILY.get_or_init(|| attribute(&reply, CTRL_ATTR_FAMILY_ID).and_then(|v| u16_at(v, 0)))
        }
    };
    let Some(id) = family else { return Ok(None) };
    call(id, NETDEV_CMD_DEV_GET, NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes()).map(Some)
}

fn request(family: u16, command: u8, attribute: u16, value: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 4];
    message.extend(family.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]); // sequence, port
    message.extend([command, 1, 0, 0]);
    message.extend((value.len() as u16 + 4).to_ne_bytes());
    message.extend(attribute.to_ne_bytes());
    message.extend(value);
    message.resize(message.len().next_multiple_of(4), 0);
    let len = message.len() as u32;
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message
}

/// Returns an attribute of a reply; `None` if the reply is an error or lacks the attribute.
fn attribute(reply: &[u8], wanted: u16) -> Option<&[u8]> {
    const NLMSG_ERROR: u16 = 2;
    if u16_at(reply, 4)? == NLMSG_ERROR {
        return None;
    }
    attributes(reply.get(HEADERS..)?).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}
