//! Pipeline: one version of all tables that workers look packets up in.

use crate::field::Field;
use crate::key::Flow;
use crate::meter::Meter;
use crate::model::{Action, FlowSpec, GroupKind, GroupSpec, OfPort};
use crate::table::{Rule, Table};
use crate::translate::Learn;
use bywash_engine::PortId;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Number of flow tables.
pub const TABLES: usize = 255;

/// VLANs that a port carries, for `normal`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Vlans {
    /// All VLANs, tagged; untagged packets belong to VLAN 0.
    #[default]
    All,
    /// A trunk of these VLANs, tagged; 0 stands for untagged packets.
    Trunk(Vec<u16>),
    /// An access port of this VLAN, untagged.
    Access(u16),
}

/// Port of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPort {
    /// OpenFlow number.
    pub of: OfPort,
    /// Engine port number.
    pub id: PortId,
    /// Name.
    pub name: String,
    /// VLANs that it carries.
    pub vlans: Vlans,
    /// Set if flooded packets are sent out of it.
    pub flood: bool,
    /// Maximum number of addresses learned on it; `None` for no limit of its own.
    pub macs: Option<usize>,
    /// Set if the link is up, as needed for fast failover.
    pub up: bool,
    /// Set if frames received on it may carry partial transport checksums.
    pub partial_checksums: bool,
}

impl SwitchPort {
    /// Returns port `of` (from 1) with the name `p` and that number, engine port `of - 1`, all VLANs, up, and flooding
    /// on.
    pub fn numbered(of: u16) -> Self {
        Self {
            of: OfPort(of),
            id: PortId(of - 1),
            name: format!("p{of}"),
            vlans: Vlans::All,
            flood: true,
            macs: None,
            up: true,
            partial_checksums: false,
        }
    }

    pub(crate) fn is_access(&self) -> bool {
        matches!(self.vlans, Vlans::Access(_))
    }

    pub(crate) fn carries(&self, vlan: u16) -> bool {
        match &self.vlans {
            Vlans::All => true,
            Vlans::Trunk(list) => list.contains(&vlan),
            Vlans::Access(own) => *own == vlan,
        }
    }
}

/// Mirror that copies packets to a port.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Mirror {
    /// Name.
    pub name: String,
    /// Ports whose received packets are copied.
    pub sources: Vec<OfPort>,
    /// Ports whose sent packets are copied.
    pub destinations: Vec<OfPort>,
    /// Port to which the copies are sent. `normal` neither floods to it nor accepts packets from it.
    pub output: Option<OfPort>,
}

/// Group in executable form.
#[derive(Debug)]
pub struct Group {
    /// Specification of the group.
    pub spec: GroupSpec,
    /// Actions of each bucket, in the order in which an action set is executed.
    pub(crate) actions: Vec<Vec<Action>>,
    /// Mask of the bits that a select group hashes.
    pub(crate) hashed: Flow,
}

/// Default fields that a select group hashes.
const HASHED: [Field; 12] = {
    use Field::*;
    [DlSrc, DlDst, DlType, VlanVid, NwSrc, NwDst, Ipv6Src, Ipv6Dst, NwProto, TpSrc, TpDst, InPort]
};

impl Group {
    /// Prepares a group for execution.
    pub fn new(spec: GroupSpec) -> Self {
        let fields: &[Field] = if spec.fields.is_empty() { &HASHED } else { &spec.fields };
        let hashed = fields.iter().fold(Flow::default(), |m, f| m | f.mask(f.all()));
        Self {
            actions: spec.buckets.iter().map(|b| action_set(b.actions.iter()).cloned().collect()).collect(),
            hashed,
            spec,
        }
    }
}

/// Returns the actions of an action set in the order in which they are executed (OpenFlow 1.3.5, 5.10): pop tags, push
/// tags, TTL, fields, and finally the group, output or resubmit. Of each kind except fields and meters, only the last
/// action counts. Without an action of the last kind there are none.
pub(crate) fn action_set<'a, L>(list: L) -> impl Iterator<Item = &'a Action>
where
    L: DoubleEndedIterator<Item = &'a Action> + Clone,
{
    let last = |of: fn(&Action) -> bool| list.clone().rev().find(|a| of(a));
    let end = last(|a| matches!(a, Action::Group(_)))
        .or_else(|| last(|a| matches!(a, Action::Output(_) | Action::OutputReg(_))))
        .or_else(|| last(|a| matches!(a, Action::Resubmit(..))));
    let sets = list.clone().filter(|a| {
        matches!(a, Action::Set { .. } | Action::Move(..) | Action::VlanVid { .. } | Action::VlanPcp { .. })
    });
    let first = [
        last(|a| matches!(a, Action::PopVlan(_))),
        last(|a| matches!(a, Action::PopMpls(_))),
        last(|a| matches!(a, Action::PushMpls(_))),
        last(|a| matches!(a, Action::PushVlan(_))),
        last(|a| matches!(a, Action::DecTtl)),
        last(|a| matches!(a, Action::DecMplsTtl)),
    ];
    let meters = list.filter(|a| matches!(a, Action::Meter(_)));
    let all = meters.chain(first.into_iter().flatten()).chain(sets).chain(end);
    all.take(if end.is_some() { usize::MAX } else { 0 })
}

/// Returns the map key of a learned address: the VLAN in the upper 16 bits, the Ethernet address below.
pub(crate) fn mac_key(vlan: u16, mac: u64) -> u64 {
    u64::from(vlan) << 48 | mac
}

/// Number of keys that a [`Learned`] keeps.
const LEARNED: usize = 1024;

/// Keys of the learned addresses that changed last, numbered from 0. A change of an address has no generation: the
/// workers find the megaflows that depend on it by its key.
#[derive(Clone, Default)]
pub(crate) struct Learned {
    keys: VecDeque<u64>,
    /// Number of the next key.
    pub(crate) end: u64,
}

impl Learned {
    fn push(&mut self, key: u64) {
        if self.keys.len() == LEARNED {
            self.keys.pop_front();
        }
        self.keys.push_back(key);
        self.end += 1;
    }

    /// Returns the key with this number; `None` if there is none yet or it is no longer kept.
    pub(crate) fn get(&self, number: u64) -> Option<u64> {
        let at = number.checked_sub(self.end - self.keys.len() as u64)?;
        self.keys.get(usize::try_from(at).ok()?).copied()
    }
}

/// One version of everything that a packet is looked up in.
#[derive(Clone, Default)]
pub struct Pipeline {
    /// Version number, which grows with every change except of learned addresses.
    pub generation: u64,
    /// Generation of the last change other than to flows and learned addresses: groups, meters, ports, mirrors, storm
    /// limits.
    pub(crate) rest_changed: u64,
    /// Number of VLAN tags that are read of a packet.
    pub vlan_limit: usize,
    pub(crate) tables: Vec<Table>,
    pub(crate) groups: HashMap<u32, Arc<Group>>,
    /// Meters by slot; a slot stays assigned to its meter id forever.
    pub(crate) meters: Vec<Option<Arc<Meter>>>,
    pub(crate) meter_slots: HashMap<u32, u32>,
    pub(crate) ports: Vec<SwitchPort>,
    pub(crate) mirrors: Vec<Mirror>,
    /// Learned addresses, by [`mac_key`].
    pub(crate) macs: HashMap<u64, OfPort>,
    pub(crate) learned: Learned,
    /// Limits of flooded packets, indexed by engine port.
    pub(crate) storm: Vec<Option<Arc<Meter>>>,
}

/// Change of a pipeline. It is applied to both versions, one after the other.
#[derive(Clone)]
pub(crate) enum Change {
    Insert(Arc<Rule>),
    Remove(Arc<Rule>),
    Group(u32, Option<Arc<Group>>),
    Meter(u32, u32, Option<Arc<Meter>>),
    Ports(Vec<SwitchPort>),
    Mirrors(Vec<Mirror>),
    Storm(Vec<Option<Arc<Meter>>>),
    Learn(u64, Option<OfPort>),
}

impl Pipeline {
    pub(crate) fn apply(&mut self, change: &Change, generation: u64) {
        self.generation = generation;
        match change {
            Change::Insert(rule) | Change::Remove(rule) => {
                let id = usize::from(rule.spec.table);
                if self.tables.len() <= id {
                    self.tables.resize_with(id + 1, Table::default);
                }
                let table = &mut self.tables[id];
                table.changed = generation;
                match change {
                    Change::Insert(_) => table.insert(rule),
                    _ => table.remove(rule),
                }
                return;
            }
            Change::Learn(key, port) => {
                match port {
                    Some(port) => self.macs.insert(*key, *port),
                    None => self.macs.remove(key),
                };
                self.learned.push(*key);
                return;
            }
            Change::Group(id, group) => {
                match group {
                    Some(group) => self.groups.insert(*id, group.clone()),
                    None => self.groups.remove(id),
                };
            }
            Change::Meter(id, slot, meter) => {
                let at = *slot as usize;
                if self.meters.len() <= at {
                    self.meters.resize(at + 1, None);
                }
                self.meters[at].clone_from(meter);
                match meter {
                    Some(_) => self.meter_slots.insert(*id, *slot),
                    None => self.meter_slots.remove(id),
                };
            }
            Change::Ports(ports) => self.ports.clone_from(ports),
            Change::Mirrors(mirrors) => self.mirrors.clone_from(mirrors),
            Change::Storm(limits) => self.storm.clone_from(limits),
        }
        self.rest_changed = generation;
    }

    /// Returns the table with this number, or `None` if no table with this or a higher number ever had a flow.
    pub fn table(&self, id: u8) -> Option<&Table> {
        self.tables.get(usize::from(id))
    }

    /// Returns all ports, in the order of the engine's port numbers.
    pub fn ports(&self) -> &[SwitchPort] {
        &self.ports
    }

    /// Returns the port with this OpenFlow number.
    pub fn port(&self, of: OfPort) -> Option<&SwitchPort> {
        self.ports.iter().find(|p| p.of == of)
    }

    /// Returns the OpenFlow number of an engine port.
    pub fn of_port(&self, id: PortId) -> Option<OfPort> {
        self.by_id(id).map(|port| port.of)
    }

    #[inline]
    fn by_id(&self, id: PortId) -> Option<&SwitchPort> {
        // Ports are listed in the engine's order, without removed ones.
        match self.ports.get(usize::from(id.0)) {
            Some(port) if port.id == id => Some(port),
            _ => self.ports.iter().find(|p| p.id == id),
        }
    }

    /// Returns `true` if frames received on an engine port may carry partial checksums.
    #[inline]
    pub(crate) fn partial(&self, id: PortId) -> bool {
        self.by_id(id).is_some_and(|p| p.partial_checksums)
    }

    /// Returns `true` if these addresses are already learned on the ports where they were seen.
    pub(crate) fn has_learned(&self, addresses: &[Learn]) -> bool {
        addresses.iter().all(|learn| self.macs.get(&mac_key(learn.vlan, learn.mac)) == Some(&learn.port))
    }

    /// Returns `true` if there is a flow with this match and priority, and it has the same actions and cookie.
    pub(crate) fn has_flow(&self, spec: &FlowSpec) -> bool {
        let there = self.table(spec.table).and_then(|table| table.exact(&spec.matches, spec.priority));
        there.is_some_and(|rule| rule.spec.actions == spec.actions && rule.spec.cookie == spec.cookie)
    }

    /// Returns `true` if a bucket is live: its watched port is up or its watched group has a live bucket. A bucket that
    /// watches nothing is live except in a fast-failover group. Each bucket of a watched group that is examined takes
    /// one from `budget`; at zero, the watched group counts as dead.
    pub(crate) fn alive(&self, group: &Group, bucket: usize, budget: &mut u32) -> bool {
        self.alive_below(group, bucket, 0, budget)
    }

    fn alive_below(&self, group: &Group, bucket: usize, depth: usize, budget: &mut u32) -> bool {
        let bucket = &group.spec.buckets[bucket];
        let port = bucket.watch_port.map(|of| self.port(of).is_some_and(|p| p.up));
        let watched = bucket.watch_group.map(|id| {
            let Some(watched) = self.groups.get(&id).filter(|_| depth < 8) else { return false };
            (0..watched.spec.buckets.len()).any(|b| {
                // Groups that all watch each other would be examined once per path, which is exponential.
                *budget > 0 && {
                    *budget -= 1;
                    self.alive_below(watched, b, depth + 1, budget)
                }
            })
        });
        match (port, watched) {
            (None, None) => group.spec.kind != GroupKind::FastFailover,
            (port, watched) => port == Some(true) || watched == Some(true),
        }
    }
}
