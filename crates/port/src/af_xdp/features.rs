//! XDP features of a device as reported by the kernel: the `netdev` family of generic netlink (linux/netdev.h), since
//! Linux 6.3.

use bywash_nl::generic::{self, Family};
use bywash_nl::socket::DATAGRAM;
use bywash_nl::wire::{Attributes, attribute};
use bywash_nl::{Error, retry};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::sync::OnceLock;

// linux/netdev.h
const NETDEV_CMD_DEV_GET: u8 = 1;
const NETDEV_A_DEV_IFINDEX: u16 = 1;
const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
const NETDEV_A_DEV_XDP_RX_METADATA_FEATURES: u16 = 5;
const NETDEV_A_DEV_XSK_FEATURES: u16 = 6;
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
        let reply = retry(|| ask(ifindex)).ok()??;
        let word = |kind| reply.get(&kind).copied();
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

/// Returns the 64-bit attributes of a device; `None` if the kernel does not have the family. A kernel asked for an
/// unknown family starts modprobe(8) and waits for it each time, so the family is asked for only once.
fn ask(ifindex: u32) -> Result<Option<BTreeMap<u16, u64>>, Error> {
    static FAMILY: OnceLock<Option<u16>> = OnceLock::new();
    if FAMILY.get() == Some(&None) {
        return Ok(None);
    }
    let (mut socket, mut buffer) = (generic::open(&[], DATAGRAM)?, vec![0; DATAGRAM]);
    let family = match FAMILY.get() {
        Some(family) => *family,
        None => {
            let found = match Family::find(&mut socket, "netdev", &mut buffer) {
                Ok(family) => Some(family.id),
                Err(Error::Socket { source, .. }) if Errno::from_io_error(&source) == Some(Errno::NOENT) => None,
                Err(error) => return Err(error),
            };
            *FAMILY.get_or_init(|| found)
        }
    };
    let Some(family) = family else { return Ok(None) };
    let index = attribute(NETDEV_A_DEV_IFINDEX, &ifindex.to_ne_bytes());
    let mut words = BTreeMap::new();
    let word = |(kind, value): (u16, &[u8])| Some((kind, u64::from_ne_bytes(value.try_into().ok()?)));
    socket.ask(family, &generic::request(NETDEV_CMD_DEV_GET, 1, &index), &mut buffer, |message| {
        words.extend(Attributes::after(message.body, generic::HEADER).filter_map(word));
    })?;
    Ok(Some(words))
}
