//! Stations of bridges. The program forwards frames that members of the bridges receive only if they come from these
//! stations.

use super::abi::{PORTS, STATIONS, STATIONS_AT_A_PLACE, VLANS};
use super::shared::Words;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Value of the word that marks the due stations of a place, if all of them are due.
const ALL_DUE: u64 = u64::from_le_bytes([1; 8]);

/// Stations in the program's memory: `struct stations` of `xdp/stations.h`.
pub(super) struct Stations {
    map: OwnedFd,
    /// Mapped when there are stations: all that is mapped is resident.
    words: Option<Words>,
    known: Vec<u64>,
    /// Kernel indices of the ports' interfaces.
    interfaces: Words,
    /// Tags in the program's memory, `struct bywash_bridge` of `xdp/bridge.h`, and as they were last set.
    bridges: Words,
    pub tags: BridgeTags,
}

/// Tags of frames, and the ports on which they have them, by the interface's number
/// ([`super::XdpDatapath::set_bridge_tags`]).
pub type BridgeTags = BTreeMap<u16, ([u8; 4], u64)>;

impl Stations {
    /// 64-bit words of a place.
    const WORDS: usize = STATIONS_AT_A_PLACE + 1;
    /// `K1` of `xdp/flow_hash.h`.
    const K1: u64 = 0x9e37_79b9_7f4a_7c15;

    /// 64-bit words of `struct bywash_bridge`.
    const BRIDGE: usize = 2;

    pub fn new(map: OwnedFd, [interfaces, bridges]: [&OwnedFd; 2]) -> io::Result<Self> {
        let interfaces = Words::map(interfaces.as_fd(), PORTS as usize)?;
        let bridges = Words::map(bridges.as_fd(), VLANS as usize * Self::BRIDGE)?;
        Ok(Self { map, words: None, known: vec![], interfaces, bridges, tags: BTreeMap::new() })
    }

    pub fn store_tags(&mut self, tags: BridgeTags) {
        for n in 0..VLANS as u16 {
            let (tag, ports) = tags.get(&(PORTS as u16 + n)).copied().unwrap_or_default();
            let at = usize::from(n) * Self::BRIDGE;
            self.bridges.store(at, ports);
            self.bridges.store(at + 1, u32::from_ne_bytes(tag).into());
        }
        self.tags = tags;
    }

    /// Sets the interface by which frames to a port leave; 0: none.
    pub fn set_interface(&self, port: u16, ifindex: u32) {
        self.interfaces.store(port.into(), ifindex.into());
    }

    /// Returns an entry: MAC address, bridge, and port.
    fn entry((bridge, mac, port): (u16, [u8; 6], u16)) -> u64 {
        let [a, b, c, d, e, f] = mac;
        u64::from_le_bytes([a, b, c, d, e, f, (bridge.wrapping_sub(PORTS as u16)) as u8, port as u8 | 128])
    }

    /// Returns the two places for an entry.
    fn places(entry: u64) -> [usize; 2] {
        let hash = (entry & !(0xff << 56)).wrapping_mul(Self::K1);
        [53, 42].map(|shift| (hash >> shift) as usize % STATIONS)
    }

    /// Returns the words for these stations and no others, and the number of stations for which there is no room.
    pub fn lay_out(stations: &[(u16, [u8; 6], u16)]) -> (Vec<u64>, usize) {
        let (mut all, mut without) = (vec![0; STATIONS * Self::WORDS], 0);
        for station in stations {
            let entry = Self::entry(*station);
            // At the place with more room.
            let slots = Self::places(entry).map(|place| place * Self::WORDS..(place + 1) * Self::WORDS - 1);
            let free = slots.map(|mut slots| slots.find(|at| all[*at] == 0).map(|at| (at % Self::WORDS, at)));
            match free.into_iter().flatten().min() {
                Some((_, at)) => all[at] = entry,
                None => without += 1,
            }
        }
        (all, without)
    }

    /// Sets the words ([`Stations::lay_out`]). If a known station moves to another place, all stations there become
    /// due, that is, the kernel has to receive a frame of each: whether the moved one was due is no longer known.
    pub fn set(&mut self, new: Vec<u64>) -> io::Result<()> {
        if self.words.is_none() && new.iter().all(|word| *word == 0) {
            return Ok(());
        }
        if self.words.is_none() {
            self.words = Some(Words::map(self.map.as_fd(), STATIONS * Self::WORDS)?);
        }
        let Some(words) = &self.words else { return Ok(()) };
        for (place, entries) in new.chunks(Self::WORDS).enumerate() {
            let at = place * Self::WORDS;
            let old = |n: usize| self.known.get(at + n).copied().unwrap_or(0);
            let changed = || entries.iter().enumerate().filter(|(n, entry)| old(*n) != **entry);
            if changed().any(|(_, entry)| *entry != 0 && self.has(*entry)) {
                words.store(at + STATIONS_AT_A_PLACE, ALL_DUE);
            }
            changed().for_each(|(n, entry)| words.store(at + n, *entry));
        }
        self.known = new;
        Ok(())
    }

    /// Returns whether there is this entry.
    fn has(&self, entry: u64) -> bool {
        let at = |place: usize| place * Self::WORDS..(place + 1) * Self::WORDS - 1;
        Self::places(entry).into_iter().flat_map(at).any(|n| self.known.get(n) == Some(&entry))
    }

    /// Marks all stations as due: the kernel has to receive a frame of each.
    pub fn renew(&self) {
        let Some(words) = &self.words else { return };
        for (place, entries) in self.known.chunks(Self::WORDS).enumerate() {
            if entries.iter().any(|entry| *entry != 0) {
                words.store(place * Self::WORDS + STATIONS_AT_A_PLACE, ALL_DUE);
            }
        }
    }
}
