//! Configuration of a service group: its modems, their flows and rules, and the counters.

use crate::classify::{Rule, Rules, Verdict};
use crate::keys::{KeyState, SEQUENCES};
use crate::police::Limits;
use crate::rates::Treatment;
use crate::seal::KeyPair;
use bywash_frame::{Arena, Frame};
use bywash_sync::{CachePadded, Counter};

/// MAC address.
pub type Mac = [u8; 6];

/// Bytes before a PDU on its way from the upper to the lower MAC. The first four are a `Lead`, and the lower MAC
/// replaces them all by its headers. The size is one cache line, so that the line written by the upper MAC is one that
/// the lower MAC needs anyway.
pub const LEAD: usize = 64;
/// Bit of the lead's word that marks a sealed PDU.
const SEALED: u32 = 1 << 31;
/// Position of the key's sequence number in the lead's word, above the flow's index.
const SEQUENCE_AT: u32 = 27;
/// Maximum number of flows of a group.
const FLOWS_MAX: usize = 1 << SEQUENCE_AT;

/// Information on a PDU that the upper MAC passes to the lower MAC.
#[derive(Clone, Copy)]
pub(crate) struct Lead {
    /// Index of the PDU's flow.
    pub(crate) flow: u32,
    /// Sequence number of the key that the PDU is sealed with, its CRC appended; `None` if it is not sealed.
    pub(crate) sealed: Option<u8>,
}

impl Lead {
    #[inline]
    pub(crate) fn write(self, arena: &Arena, frame: &mut Frame) {
        if let Some(bytes) = arena.head_mut::<4>(frame) {
            let sealed = self.sealed.map_or(0, |sequence| SEALED | u32::from(sequence) << SEQUENCE_AT);
            *bytes = (self.flow | sealed).to_ne_bytes();
        }
    }

    /// Reads the lead of a frame. `None` if the frame is shorter than [`LEAD`].
    #[inline]
    pub(crate) fn read(arena: &Arena, frame: &Frame) -> Option<Self> {
        let word = u32::from_ne_bytes(*arena.head::<LEAD>(frame)?.first_chunk()?);
        let sequence = (word >> SEQUENCE_AT) as u8 % SEQUENCES;
        Some(Self { flow: word % FLOWS_MAX as u32, sealed: (word & SEALED != 0).then_some(sequence) })
    }
}

/// Minimum size of a PDU in bytes: an Ethernet header.
pub const PDU_MIN: usize = 14;
/// Maximum size of a PDU in bytes, without CRC: that of DOCSIS 3.1.
pub const PDU_MAX: usize = 2000;
/// Maximum number of modems of a group: security association identifiers have 14 bits.
pub const MODEMS_MAX: usize = 1 << 14;

/// Properties common to all flows of a kind.
#[derive(Clone, Debug, Default)]
pub struct FlowKind {
    /// Name in `show`.
    pub name: String,
    /// Traffic priority, 0 to 7; higher values are served first.
    pub priority: u8,
    /// Rate limits.
    pub limits: Limits,
    /// True if packets above the limits wait; otherwise they are dropped.
    pub shape: bool,
    /// Minimum reserved rate in bits per second; 0 if there is none.
    pub reserved: u64,
    /// Target of the delay in milliseconds for early drops, if packets wait; `None` for no early drops.
    pub latency_ms: Option<u32>,
    /// Classification rules. The first flow of the modem takes all packets that no rule matches.
    pub rules: Vec<Rule>,
}

/// Properties common to all modems of a kind.
#[derive(Clone, Debug, Default)]
pub struct ModemKind {
    /// Flows of each modem, at least one. Their rules are evaluated in this order.
    pub flows: Vec<FlowKind>,
    /// Rules for packets to drop, evaluated before the flows' rules.
    pub filters: Vec<Rule>,
}

/// Configuration of a modem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModemConfig {
    /// MAC address: PDUs to it belong to this modem. A group address makes it a multicast group: its PDUs have service
    /// identifiers and a security association of their own, which modems learn by other means.
    pub mac: Mac,
    /// Index of the modem's kind.
    pub kind: usize,
    /// Security association identifier, 0 to 16383.
    pub said: u16,
    /// Key and initialization vector.
    pub key: KeyPair,
    /// Sequence number of the key, 0 to 15.
    pub sequence: u8,
    /// Addresses of the equipment behind it.
    pub cpes: Vec<Mac>,
    /// Bit mask of the channels that it receives; 0 for all.
    pub channels: u64,
    /// Bits per symbol of its profile; 0 without profiles.
    pub bits: u8,
}

/// Flow of a modem.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Index of the modem.
    pub modem: u32,
    /// Index among the modem's flows.
    pub number: u32,
    /// Downstream service identifier.
    pub dsid: u32,
    /// Security association identifier of the modem.
    pub said: u16,
    /// Traffic priority.
    pub priority: u8,
    /// True if its packets wait for tokens.
    pub shaped: bool,
    /// Bits per symbol of the modem's profile; 0 without profiles.
    pub bits: u8,
}

/// Counters of a flow, in one block for each writer.
#[derive(Debug, Default)]
pub struct FlowCounters {
    /// Written by the upper MAC.
    pub upper: CachePadded<UpperCounters>,
    /// Written by the lower MAC.
    pub lower: CachePadded<LowerCounters>,
}

/// Counters of a flow at the upper MAC.
#[derive(Debug, Default)]
pub struct UpperCounters {
    /// Packets passed to the lower MAC.
    pub packets: Counter,
    /// Packets dropped because they exceeded the flow's rates.
    pub policed: Counter,
}

/// Counters of a flow at the lower MAC.
#[derive(Debug, Default)]
pub struct LowerCounters {
    /// Packets sent.
    pub packets: Counter,
    /// Bytes of their PDUs, without CRC.
    pub bytes: Counter,
    /// Packets dropped because the queue was full: new ones or, by policy, the oldest.
    pub overflow: Counter,
    /// Packets dropped early to keep the queueing delay short.
    pub early: Counter,
}

/// Modem as found by its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Modem {
    /// Index of the modem's first flow; its other flows follow.
    pub first_flow: u32,
    pub kind: u32,
}

/// Error of [`Group::new`].
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// No modems.
    #[error("no modems: a service group needs at least one")]
    NoModems,
    /// More modems than security association identifiers.
    #[error("too many modems: {0}, a service group has at most {MODEMS_MAX}")]
    TooManyModems(usize),
    /// Modem whose kind does not exist or has no flows.
    #[error("modem {0} has no flow")]
    NoFlow(usize),
    /// More flows than can be numbered.
    #[error("too many service flows: {0}, a service group has at most {FLOWS_MAX}")]
    TooManyFlows(usize),
    /// Two modems with the same MAC address.
    #[error("modems {0} and {1} have the same address")]
    Duplicate(usize, usize),
}

/// Service group.
///
/// # Thread-safety
/// Both workers and `show` read it concurrently; each counter has one writer.
pub struct Group {
    modems: Vec<ModemConfig>,
    kinds: Vec<ModemKind>,
    rules: Vec<Rules>,
    flows: Vec<Flow>,
    counters: Vec<FlowCounters>,
    table: Table,
    keys: KeyState,
}

impl Group {
    /// Creates a group. Flows get service identifiers (DSIDs) from 1, in the order of the modems.
    pub fn new(kinds: Vec<ModemKind>, modems: Vec<ModemConfig>) -> Result<Self, GroupError> {
        if modems.is_empty() {
            return Err(GroupError::NoModems);
        }
        if modems.len() > MODEMS_MAX {
            return Err(GroupError::TooManyModems(modems.len()));
        }
        let mut flows = vec![];
        let mut table = Table::new(modems.len());
        for (index, modem) in modems.iter().enumerate() {
            let kind = kinds.get(modem.kind).filter(|kind| !kind.flows.is_empty()).ok_or(GroupError::NoFlow(index))?;
            let entry = Modem { first_flow: flows.len() as u32, kind: modem.kind as u32 };
            table.insert(modem.mac, index, entry).map_err(|other| GroupError::Duplicate(other, index))?;
            for (number, flow) in kind.flows.iter().enumerate() {
                flows.push(Flow {
                    modem: index as u32,
                    number: number as u32,
                    dsid: flows.len() as u32 + 1,
                    said: modem.said,
                    priority: flow.priority.min(7),
                    shaped: flow.shape,
                    bits: modem.bits,
                });
            }
        }
        if flows.len() > FLOWS_MAX {
            return Err(GroupError::TooManyFlows(flows.len()));
        }
        let keys = KeyState::new(modems.iter().map(|modem| modem.sequence));
        let rules = kinds.iter().map(ModemKind::rules).collect();
        let counters = flows.iter().map(|_| FlowCounters::default()).collect();
        Ok(Self { modems, kinds, rules, flows, counters, table, keys })
    }

    /// Returns the modems.
    pub fn modems(&self) -> &[ModemConfig] {
        &self.modems
    }

    /// Returns all flows, modem by modem.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// Returns the kind of flow `flow`.
    pub fn kind_of(&self, flow: usize) -> &FlowKind {
        let Flow { modem, number, .. } = self.flows[flow];
        &self.kinds[self.modems[modem as usize].kind].flows[number as usize]
    }

    /// Returns the treatment of flow `flow` at the scheduler.
    pub(crate) fn treatment(&self, flow: usize) -> Treatment {
        let FlowKind { priority, limits, shape, reserved, latency_ms, .. } = *self.kind_of(flow);
        let channels = self.modems[self.flows[flow].modem as usize].channels;
        Treatment { priority, shape: shape.then_some(limits), reserved, latency_ms, channels }
    }

    /// Returns the counters of flow `flow`.
    #[inline]
    pub fn counters(&self, flow: usize) -> &FlowCounters {
        &self.counters[flow]
    }

    /// Returns the first keys for a sealer: the even and the odd key of each modem, of which only one is used at first.
    pub(crate) fn keys(&self) -> Vec<KeyPair> {
        self.modems.iter().flat_map(|modem| [modem.key; 2]).collect()
    }

    /// Returns the sequence number of a modem's key in use.
    pub fn key_in_use(&self, modem: usize) -> u8 {
        self.keys.in_use(modem)
    }

    #[inline]
    pub(crate) fn key_state(&self) -> &KeyState {
        &self.keys
    }

    /// Returns the modem with this index.
    pub(crate) fn modem(&self, index: usize) -> Modem {
        let modem = self.table.find(self.modems[index].mac);
        modem.expect("every modem is in the table")
    }

    /// Returns the index of the modem with this address.
    pub fn modem_at(&self, mac: Mac) -> Option<usize> {
        let modem = self.table.find(mac)?;
        Some(self.flows[modem.first_flow as usize].modem as usize)
    }

    #[inline]
    pub(crate) fn find(&self, mac: Mac) -> Option<Modem> {
        self.table.find(mac)
    }

    /// Returns the index in the group of the flow of a modem's `frame`. `None` if a rule drops it.
    #[inline]
    pub(crate) fn decide(&self, modem: Modem, frame: &[u8]) -> Option<usize> {
        match self.rules[modem.kind as usize].decide(frame) {
            Verdict::Flow(number) => Some((modem.first_flow + number) as usize),
            Verdict::Drop => None,
        }
    }
}

impl FlowKind {
    /// Returns the limits above which packets are dropped.
    pub(crate) fn policed(&self) -> Limits {
        if self.shape { Limits::default() } else { self.limits }
    }
}

impl ModemKind {
    fn rules(&self) -> Rules {
        let filters = self.filters.iter().map(|rule| (rule.clone(), Verdict::Drop));
        let of_flow = |(number, flow): (usize, &FlowKind)| {
            flow.rules.iter().map(move |rule| (rule.clone(), Verdict::Flow(number as u32))).collect::<Vec<_>>()
        };
        Rules(filters.chain(self.flows.iter().enumerate().flat_map(of_flow)).collect())
    }
}

/// Hash table of modems by address: open addressing, at most half full.
pub(crate) struct Table {
    slots: Vec<(u64, Modem)>,
    /// Index of the modem in each slot, to report duplicates.
    numbers: Vec<usize>,
    shift: u32,
}

/// Marks a free slot: greater than any address.
const FREE: u64 = u64::MAX;

impl Table {
    pub(crate) fn new(modems: usize) -> Self {
        let size = (modems * 2).next_power_of_two().max(2);
        let free = (FREE, Modem { first_flow: 0, kind: 0 });
        Self { slots: vec![free; size], numbers: vec![0; size], shift: 64 - size.trailing_zeros() }
    }

    #[inline]
    fn slot(&self, mac: u64) -> usize {
        (mac.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    pub(crate) fn insert(&mut self, mac: Mac, number: usize, modem: Modem) -> Result<(), usize> {
        let mac = word(mac);
        let mut at = self.slot(mac);
        while self.slots[at].0 != FREE {
            if self.slots[at].0 == mac {
                return Err(self.numbers[at]);
            }
            at = (at + 1) % self.slots.len();
        }
        (self.slots[at], self.numbers[at]) = ((mac, modem), number);
        Ok(())
    }

    #[inline]
    pub(crate) fn find(&self, mac: Mac) -> Option<Modem> {
        let mac = word(mac);
        let mut at = self.slot(mac);
        loop {
            let (found, modem) = self.slots[at];
            if found == mac {
                return Some(modem);
            }
            if found == FREE {
                return None;
            }
            at = (at + 1) & (self.slots.len() - 1);
        }
    }
}

#[inline]
fn word(mac: Mac) -> u64 {
    let [a, b, c, d, e, f] = mac;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modem(n: u32, kind: usize) -> ModemConfig {
        let [_, a, b, c] = n.to_be_bytes();
        ModemConfig { mac: [2, 0, 0, a, b, c], kind, said: n as u16, ..ModemConfig::default() }
    }

    fn kind(flows: usize) -> ModemKind {
        ModemKind { flows: vec![FlowKind::default(); flows], filters: vec![] }
    }

    #[test]
    fn every_modem_is_found_and_no_other() {
        for n in [1, 2, 300, 5000] {
            let group = Group::new(vec![kind(1), kind(3)], (0..n).map(|i| modem(i, i as usize % 2)).collect()).unwrap();
            let mut first = 0;
            for i in 0..n {
                let found = group.find(modem(i, 0).mac).unwrap();
                assert_eq!(found.first_flow, first);
                assert_eq!(group.flows()[first as usize].modem, i);
                first += if i % 2 == 0 { 1 } else { 3 };
            }
            assert_eq!(group.flows().len(), first as usize);
            assert!((n..n + 1000).all(|i| group.find(modem(i, 0).mac).is_none()));
            assert!(group.find([0xff; 6]).is_none());
        }
    }

    #[test]
    fn impossible_groups() {
        let new = |kinds, modems| Group::new(kinds, modems).err().unwrap();
        assert_eq!(new(vec![], vec![]), GroupError::NoModems);
        assert_eq!(new(vec![kind(1)], vec![modem(1, 1)]), GroupError::NoFlow(0));
        assert_eq!(new(vec![kind(0)], vec![modem(1, 0)]), GroupError::NoFlow(0));
        assert_eq!(new(vec![kind(1)], vec![modem(1, 0), modem(2, 0), modem(1, 0)]), GroupError::Duplicate(0, 2));
        let many = (0..MODEMS_MAX as u32 + 1).map(|n| modem(n, 0)).collect();
        assert_eq!(new(vec![kind(1)], many), GroupError::TooManyModems(MODEMS_MAX + 1));
    }
}
