//! Tunnels whose packets go from the program to user space, by the header fields that identify them.

use super::map::Map;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

/// Most ends of tunnels that the program has room for: BYWASH_ENDS.
pub const TUNNEL_ENDS: usize = 1536;

/// Header fields of a packet that came through a tunnel, by which the tunnel is found (`struct bywash_end`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TunnelEnd {
    /// Address of the other end; unspecified for VXLAN, which may have several.
    pub remote: IpAddr,
    /// The tunnel's own address, of the same family.
    pub local: IpAddr,
    /// IP protocol.
    pub protocol: u8,
    /// Destination port for VXLAN; else 0.
    pub port: u16,
    /// Key of GRE, or network identifier of VXLAN.
    pub key: Option<u32>,
    /// Set for Ethernet frames in GRE.
    pub ethernet: bool,
    /// Set for GRE with a checksum.
    pub summed: bool,
}

impl TunnelEnd {
    fn bytes(&self) -> [u8; 40] {
        // RFC 7348 5: the network identifier is followed by a reserved octet.
        let shift = if self.port == 0 { 0 } else { 8 };
        let mut bytes = [0; 40];
        for (addr, at) in [(self.remote, 0), (self.local, 16)] {
            match addr {
                IpAddr::V4(addr) => bytes[at..at + 4].copy_from_slice(&addr.octets()),
                IpAddr::V6(addr) => bytes[at..at + 16].copy_from_slice(&addr.octets()),
            }
        }
        bytes[32..36].copy_from_slice(&(self.key.unwrap_or(0) << shift).to_be_bytes());
        bytes[36..38].copy_from_slice(&self.port.to_be_bytes());
        // END_KEYED and the constants after it.
        let flags = [self.key.is_some(), self.local.is_ipv6(), self.ethernet, self.summed].into_iter().zip(0..);
        (bytes[38], bytes[39]) = (self.protocol, flags.map(|(set, bit)| u8::from(set) << bit).sum());
        bytes
    }
}

/// Selection of the packets of a tunnel that go to user space (`struct bywash_through`). All others are left to the
/// kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelPolicy {
    /// Number of the interface that the inner packets belong to, below 4,096.
    pub number: u16,
    /// Destination MAC address of the frames in it that are routed, if it carries frames.
    pub mac: [u8; 6],
    /// Number of the only interface that receives the packets; `None` if any may.
    pub link: Option<u16>,
    /// For IPv4 and for IPv6: set if user space takes all inner packets, while the gate of the port is open.
    pub open: [bool; 2],
    /// For IPv4 and for IPv6: set if user space takes packets of flows while that gate is closed, or all packets if
    /// `open` is set, too.
    pub flows: [bool; 2],
    /// Ports on other members of the tunnel's bridge to which user space forwards inner frames: bit n stands for
    /// port n.
    pub members: u64,
    /// Set if user space forwards these frames while that gate is closed, too.
    pub passes: bool,
    /// Set if the kernel learns the sources of such frames: user space takes only those of stations that the bridge has
    /// behind a VXLAN.
    pub learns: bool,
}

impl TunnelPolicy {
    fn bytes(&self) -> [u8; 24] {
        let [a, b, c, d, e, f] = self.mac;
        let [open4, open6] = self.open;
        let [flows4, flows6] = self.flows;
        // END_NUMBER and the constants after it.
        let flags = [open4, open6, flows4, flows6].into_iter().zip(60..).map(|(set, bit)| u64::from(set) << bit);
        let mac = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        let takes = mac | u64::from(self.number & 0xfff) << 48 | flags.sum::<u64>();
        let link = self.link.map_or(0, |link| u64::from(link) + 1);
        let both = |set: bool, at: u32| if set { 3u64 << at } else { 0 };
        let flags = both(self.members != 0, 60) | both(self.passes, 62) | u64::from(self.learns) << 16;
        let mut bytes = [0; 24];
        for (word, value) in bytes.chunks_exact_mut(8).zip([takes, link | flags, self.members]) {
            word.copy_from_slice(&value.to_ne_bytes());
        }
        bytes
    }
}

/// The program's map of tunnels, and its contents as last set.
pub(super) struct Ends {
    map: Map,
    known: BTreeMap<TunnelEnd, TunnelPolicy>,
}

impl Ends {
    pub fn new(map: Map) -> Self {
        Self { map, known: BTreeMap::new() }
    }

    /// Sets the map. After an error, the packets of the tunnels that could not be set are left to the kernel.
    pub fn set(&mut self, ends: &BTreeMap<TunnelEnd, TunnelPolicy>) -> io::Result<()> {
        let gone: Vec<TunnelEnd> = self.known.keys().filter(|end| !ends.contains_key(end)).copied().collect();
        gone.iter().for_each(|end| self.remove(end));
        let mut done = Ok(());
        for (end, takes) in ends {
            if self.known.get(end) == Some(takes) {
                continue;
            }
            match self.map.update(&end.bytes(), &takes.bytes()) {
                Ok(()) => drop(self.known.insert(*end, *takes)),
                // The others do not depend on it.
                failed => {
                    self.remove(end);
                    done = failed;
                }
            }
        }
        done
    }

    fn remove(&mut self, end: &TunnelEnd) {
        // An error means that it is not there: nobody else changes the map.
        let _ = self.map.delete(&end.bytes());
        self.known.remove(end);
    }
}
