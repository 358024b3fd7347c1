//! A service group as it is configured: its modems, their flows, the rules between them; and their counters.

use crate::classify::{Rule, Rules, Verdict};
use crate::police::Limits;
use crate::seal::KeyPair;
use bywash_frame::{Arena, Frame};
use bywash_sync::{CachePadded, Counter};

/// A MAC address.
pub type Mac = [u8; 6];

/// Bytes in front of a PDU on its way from the upper to the lower MAC. A [`Lead`] is in the first four; the lower MAC
/// puts its headers in their place. One cache line, so that what the upper MAC wrote there is what the lower MAC needs
/// anyway.
pub const LEAD: usize = 64;
/// Its bit that says that the PDU is sealed.
const SEALED: u32 = 1 << 31;

/// What the upper MAC tells the lower MAC of a PDU.
#[derive(Clone, Copy)]
pub(crate) struct Lead {
    /// The number of its flow.
    pub(crate) flow: u32,
    /// It is sealed, its CRC behind it.
    pub(crate) sealed: bool,
}

impl Lead {
    #[inline]
    pub(crate) fn write(self, arena: &Arena, frame: &mut Frame) {
        if let Some(bytes) = arena.head_mut::<4>(frame) {
            *bytes = (self.flow | if self.sealed { SEALED } else { 0 }).to_ne_bytes();
        }
    }

    /// None: the frame has none.
    #[inline]
    pub(crate) fn read(arena: &Arena, frame: &Frame) -> Option<Self> {
        let word = u32::from_ne_bytes(*arena.head::<LEAD>(frame)?.first_chunk()?);
        Some(Self { flow: word & !SEALED, sealed: word & SEALED != 0 })
    }
}

/// Shortest PDU: an Ethernet header.
pub const PDU_MIN: usize = 14;
/// Most modems of a group: 14 bits of security association.
pub const MODEMS_MAX: usize = 1 << 14;

/// What every flow of a kind has in common.
#[derive(Clone, Debug, Default)]
pub struct FlowKind {
    /// Its name in `show`.
    pub name: String,
    /// Traffic priority: 0 to 7, the higher before the lower.
    pub priority: u8,
    /// What is policed.
    pub limits: Limits,
    /// Packets that are its own; the kind's flow that is named first takes the rest.
    pub rules: Vec<Rule>,
}

/// What every modem of a kind has in common.
#[derive(Clone, Debug, Default)]
pub struct ModemKind {
    /// Flows that each of them has, at least one. Their order is the order their rules are asked in.
    pub flows: Vec<FlowKind>,
    /// Packets that none of them gets, asked before the flows' rules.
    pub filters: Vec<Rule>,
}

/// A modem.
#[derive(Clone, Debug)]
pub struct ModemConfig {
    /// Its address: PDUs to it are its own.
    pub mac: Mac,
    /// Index of its kind.
    pub kind: usize,
    /// Security association: 0 to 16383.
    pub said: u16,
    /// Key and vector.
    pub key: KeyPair,
}

/// One flow of one modem.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Index of its modem.
    pub modem: u32,
    /// Its number among its modem's.
    pub number: u32,
    /// Downstream service identifier.
    pub dsid: u32,
    /// Security association of its modem.
    pub said: u16,
    /// Traffic priority.
    pub priority: u8,
}

/// What happened to a flow's packets. The first block is the upper MAC's, the second the lower MAC's.
#[derive(Debug, Default)]
pub struct FlowCounters {
    /// Written by the upper MAC.
    pub upper: CachePadded<UpperCounters>,
    /// Written by the lower MAC.
    pub lower: CachePadded<LowerCounters>,
}

/// The upper MAC's share.
#[derive(Debug, Default)]
pub struct UpperCounters {
    /// Packets handed to the lower MAC.
    pub packets: Counter,
    /// Packets above its rates.
    pub policed: Counter,
}

/// The lower MAC's share.
#[derive(Debug, Default)]
pub struct LowerCounters {
    /// Packets sent.
    pub packets: Counter,
    /// Bytes of their PDUs, without CRC.
    pub bytes: Counter,
    /// Packets that found its queue full, or made room in it.
    pub overflow: Counter,
}

/// A modem, as it is found by its address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Modem {
    /// Index of its first flow; the others follow.
    pub first_flow: u32,
    pub kind: u32,
}

/// Why there is no such group.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// Nobody to send to.
    #[error("a service group without modems")]
    NoModems,
    /// More than security associations.
    #[error("{0} modems are more than the {MODEMS_MAX} a service group can have")]
    TooManyModems(usize),
    /// A modem of a kind that has no flows, or that there is not.
    #[error("modem {0} has no flow")]
    NoFlow(usize),
    /// One address twice.
    #[error("modems {0} and {1} have the same address")]
    Duplicate(usize, usize),
}

/// A service group.
///
/// # Thread-safety
/// Both its workers and `show` read it; each counter has one writer.
pub struct Group {
    modems: Vec<ModemConfig>,
    kinds: Vec<ModemKind>,
    rules: Vec<Rules>,
    flows: Vec<Flow>,
    counters: Vec<FlowCounters>,
    table: Table,
}

impl Group {
    /// Puts a group together. Flows get their identifiers in the modems' order, from 1.
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
                });
            }
        }
        let rules = kinds.iter().map(ModemKind::rules).collect();
        let counters = flows.iter().map(|_| FlowCounters::default()).collect();
        Ok(Self { modems, kinds, rules, flows, counters, table })
    }

    /// Its modems.
    pub fn modems(&self) -> &[ModemConfig] {
        &self.modems
    }

    /// All flows: modem by modem.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// What the `flow`-th flow is one of.
    pub fn kind_of(&self, flow: usize) -> &FlowKind {
        let Flow { modem, number, .. } = self.flows[flow];
        &self.kinds[self.modems[modem as usize].kind].flows[number as usize]
    }

    /// The `flow`-th flow's counters.
    #[inline]
    pub fn counters(&self, flow: usize) -> &FlowCounters {
        &self.counters[flow]
    }

    /// The keys, by the modems' numbers.
    pub fn keys(&self) -> Vec<KeyPair> {
        self.modems.iter().map(|modem| modem.key).collect()
    }

    #[inline]
    pub(crate) fn find(&self, mac: Mac) -> Option<Modem> {
        self.table.find(mac)
    }

    /// What becomes of `frame` to a modem: the number of its flow in the group.
    #[inline]
    pub(crate) fn decide(&self, modem: Modem, frame: &[u8]) -> Option<usize> {
        match self.rules[modem.kind as usize].decide(frame) {
            Verdict::Flow(number) => Some((modem.first_flow + number) as usize),
            Verdict::Drop => None,
        }
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

/// Modems by address: open addressing, at most half full.
struct Table {
    slots: Vec<(u64, Modem)>,
    /// The modems' numbers, slot by slot: for telling who is there twice.
    numbers: Vec<usize>,
    shift: u32,
}

/// Above all addresses.
const FREE: u64 = u64::MAX;

impl Table {
    fn new(modems: usize) -> Self {
        let size = (modems * 2).next_power_of_two().max(2);
        let free = (FREE, Modem { first_flow: 0, kind: 0 });
        Self { slots: vec![free; size], numbers: vec![0; size], shift: 64 - size.trailing_zeros() }
    }

    #[inline]
    fn slot(&self, mac: u64) -> usize {
        (mac.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    fn insert(&mut self, mac: Mac, number: usize, modem: Modem) -> Result<(), usize> {
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
    fn find(&self, mac: Mac) -> Option<Modem> {
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
        ModemConfig { mac: [2, 0, 0, a, b, c], kind, said: n as u16, key: ([0; 16], [0; 16]) }
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
