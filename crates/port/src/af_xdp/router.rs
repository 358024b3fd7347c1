//! Maps and programs of a router's datapath, in addition to those of every datapath.

use super::Error;
use super::abi::TAGS;
use super::ends::Ends;
use super::error::checked;
use super::map::Map;
use super::objects::FIRST_SEGMENTS;
use super::parts::Parts;
use super::segments::Segments;
use super::shared::Words;
use super::stations::Stations;
use super::tail_calls::TailCalls;
use std::collections::BTreeMap;
use std::io;

/// Part of a datapath that only a router's program has. Programs in it are loaded when they are first needed.
pub(super) struct Router {
    /// Memory of each family's forwarding table, until it is handed out.
    pub fibs: [Option<Segments>; 2],
    /// Memory of each family's connections whose packets are forwarded although the gate is closed, until it is handed
    /// out.
    pub connections: [Option<Map>; 2],
    /// Programs for ports with such connections.
    pub flow_programs: TailCalls,
    /// VLANs by their keys in the program, and the programs for their frames.
    pub vlans: Vlans,
    /// Tunnels whose packets go to user space.
    pub ends: Ends,
    /// Program for their packets.
    pub tunnel_programs: TailCalls,
    /// Programs for ports with policy routing rules.
    pub rule_programs: TailCalls,
    /// Stations of bridges.
    pub stations: Stations,
    /// Programs for ports on members of bridges.
    pub bridge_programs: TailCalls,
}

impl Router {
    pub fn take(parts: &mut Parts) -> Result<Self, Error> {
        let [first4, first6] = FIRST_SEGMENTS;
        let stations = parts.take("stations")?;
        let of_stations = [&parts.take("interfaces")?, &parts.take("bridges")?];
        Ok(Self {
            fibs: [Some(parts.segments("fib4", first4)?), Some(parts.segments("fib6", first6)?)],
            connections: [Some(parts.map("flows4")?), Some(parts.map("flows6")?)],
            flow_programs: parts.tail_calls(["flow_xdp", "flow_tc"])?,
            vlans: Vlans {
                numbers: parts.map("vlans")?,
                slots: parts.words("tags", TAGS as usize)?,
                keys: BTreeMap::new(),
                programs: parts.tail_calls(["vlan_xdp", "vlan_tc"])?,
            },
            ends: Ends::new(parts.map("ends")?),
            tunnel_programs: TailCalls::new([parts.map("tunnel_xdp")?]),
            rule_programs: parts.tail_calls(["rules_xdp", "rules_tc"])?,
            stations: checked("interfaces", Stations::new(stations, of_stations))?,
            bridge_programs: parts.tail_calls(["bridge_xdp", "bridge_tc"])?,
        })
    }
}

/// VLANs in the program.
pub(super) struct Vlans {
    numbers: Map,
    /// Numbers by tag, each with its key: `tags` in `xdp/vlan.h`.
    slots: Words,
    /// Keys in `numbers`, with their ports and the numbers of their entries.
    pub keys: BTreeMap<u64, (u16, u16)>,
    pub programs: TailCalls,
}

/// Bits of a VLAN's key.
const KEY_BITS: u32 = 48;
/// Bit of a macvlan's key.
const MACVLAN: u16 = 1 << 15;

impl Vlans {
    /// Returns the program's key of a port's VLAN or, without a tag, of the macvlan with this MAC address.
    pub fn key(port: u16, tag: [u8; 4], [m, n, o, p, q, r]: [u8; 6]) -> u64 {
        let [a, b, c, d] = tag;
        if tag == [0; 4] {
            return u64::from_le_bytes([m, n, o, p, q, r, 0, 0]) << 16 | u64::from(MACVLAN | port);
        }
        let (protocol, id) = (u16::from_ne_bytes([a, b]), u16::from_ne_bytes([c, d]));
        u64::from(port) | u64::from(protocol) << 16 | u64::from(id) << 32
    }

    /// Adds a VLAN: its key, and its port and the number of its entry.
    pub fn insert(&mut self, key: u64, of: (u16, u16)) -> io::Result<()> {
        self.numbers.update(&key.to_ne_bytes(), &u32::from(of.1).to_ne_bytes())?;
        self.keys.insert(key, of);
        match slot(key) {
            Some(at) if self.slots.load(at) == 0 => self.slots.store(at, key | u64::from(of.1) << KEY_BITS),
            _ => {}
        }
        Ok(())
    }

    /// Removes a VLAN from the program.
    pub fn remove(&self, key: u64) {
        if let Some(at) = slot(key).filter(|at| self.slots.load(*at) << (64 - KEY_BITS) == key << (64 - KEY_BITS)) {
            self.slots.store(at, 0);
        }
        // An error means that it is not there.
        let _ = self.numbers.delete(&key.to_ne_bytes());
    }
}

/// Returns the slot of a VLAN's key; `None` for a macvlan's.
fn slot(key: u64) -> Option<usize> {
    let [port, _, id] = [0, 16, 32].map(|shift| (key >> shift) as u16);
    (port & MACVLAN == 0).then(|| usize::from(u16::from_be(id) ^ port << 3) % TAGS as usize)
}
