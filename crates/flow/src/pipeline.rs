//! What workers look packets up in: one version of all tables.

use crate::field::Field;
use crate::key::Flow;
use crate::meter::Meter;
use crate::model::{Action, GroupKind, GroupSpec, OfPort};
use crate::table::{Rule, Table};
use crate::translate::Learn;
use bywash_engine::PortId;
use std::collections::HashMap;
use std::sync::Arc;

/// Number of tables.
pub const TABLES: usize = 255;

/// Which VLANs a port carries, for `normal`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Vlans {
    /// All of them, tagged; what is untagged is VLAN 0.
    #[default]
    All,
    /// These, tagged (0: untagged).
    Trunk(Vec<u16>),
    /// This one, untagged.
    Access(u16),
}

/// A port of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPort {
    /// Its number in flows.
    pub of: OfPort,
    /// The engine's number.
    pub id: PortId,
    /// Its name.
    pub name: String,
    /// VLANs it carries.
    pub vlans: Vlans,
    /// Whether flooded packets leave by it.
    pub flood: bool,
    /// Whether it works, as fast failover asks.
    pub up: bool,
    /// Whether frames received by it may carry transport checksums that are not finished.
    pub partial_checksums: bool,
}

impl SwitchPort {
    /// Port `of`, from 1, named `pN`: the engine's port before it, of all VLANs, up and flooded to.
    pub fn numbered(of: u16) -> Self {
        Self {
            of: OfPort(of),
            id: PortId(of - 1),
            name: format!("p{of}"),
            vlans: Vlans::All,
            flood: true,
            up: true,
            partial_checksums: false,
        }
    }

    pub(crate) fn carries(&self, vlan: u16) -> bool {
        match &self.vlans {
            Vlans::All => true,
            Vlans::Trunk(list) => list.contains(&vlan),
            Vlans::Access(own) => *own == vlan,
        }
    }
}

/// Copies packets to a port.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Mirror {
    /// Its name.
    pub name: String,
    /// Ports whose incoming packets are copied.
    pub sources: Vec<OfPort>,
    /// Ports whose outgoing packets are copied.
    pub destinations: Vec<OfPort>,
    /// Where the copies go; nothing else does, as far as `normal` is asked.
    pub output: Option<OfPort>,
}

/// A group, ready to run.
#[derive(Debug)]
pub struct Group {
    /// As it was asked for.
    pub spec: GroupSpec,
    /// Each bucket's actions, in the order an action set runs in.
    pub(crate) actions: Vec<Vec<Action>>,
    /// Bits a select group hashes.
    pub(crate) hashed: Flow,
}

/// Fields a select group hashes when it does not say.
const HASHED: [Field; 12] = {
    use Field::*;
    [DlSrc, DlDst, DlType, VlanVid, NwSrc, NwDst, Ipv6Src, Ipv6Dst, NwProto, TpSrc, TpDst, InPort]
};

impl Group {
    /// Prepares a group.
    pub fn new(spec: GroupSpec) -> Self {
        let fields: &[Field] = if spec.fields.is_empty() { &HASHED } else { &spec.fields };
        let hashed = fields.iter().fold(Flow::default(), |m, f| m | f.mask(f.all()));
        Self { actions: spec.buckets.iter().map(|b| action_set(&b.actions)).collect(), hashed, spec }
    }
}

/// The actions of a bucket in the order of an action set (OpenFlow 1.3.5, 5.10): tags off, tags on, TTL, fields, and at
/// last the group or output. Of each but fields the last counts. Without an output nothing needs to be done.
fn action_set(actions: &[Action]) -> Vec<Action> {
    let last = |of: fn(&Action) -> bool| actions.iter().rev().find(|a| of(a)).cloned();
    let end = last(|a| matches!(a, Action::Group(_)))
        .or_else(|| last(|a| matches!(a, Action::Output(_) | Action::OutputReg(_))))
        .or_else(|| last(|a| matches!(a, Action::Resubmit(..))));
    let Some(end) = end else { return Vec::new() };
    let sets = actions.iter().filter(|a| {
        matches!(a, Action::Set { .. } | Action::Move(..) | Action::VlanVid { .. } | Action::VlanPcp { .. })
    });
    let first = [
        last(|a| matches!(a, Action::PopVlan(_))),
        last(|a| matches!(a, Action::PushVlan(_))),
        last(|a| matches!(a, Action::DecTtl)),
    ];
    let meters = actions.iter().filter(|a| matches!(a, Action::Meter(_)));
    meters.cloned().chain(first.into_iter().flatten()).chain(sets.cloned()).chain([end]).collect()
}

/// Identifies a learned address: the VLAN above the Ethernet address.
pub(crate) fn mac_key(vlan: u16, mac: u64) -> u64 {
    u64::from(vlan) << 48 | mac
}

/// One version of everything a packet is looked up in.
#[derive(Clone, Default)]
pub struct Pipeline {
    /// Grows with every change.
    pub generation: u64,
    /// Generation of the last change that is not one table's flows: groups, meters, ports, mirrors.
    pub(crate) rest_changed: u64,
    /// Generation of the last change of the learned addresses.
    pub(crate) macs_changed: u64,
    pub(crate) tables: Vec<Table>,
    pub(crate) groups: HashMap<u32, Arc<Group>>,
    /// By slot; a slot is a meter's for good.
    pub(crate) meters: Vec<Option<Arc<Meter>>>,
    pub(crate) meter_slots: HashMap<u32, u32>,
    pub(crate) ports: Vec<SwitchPort>,
    pub(crate) mirrors: Vec<Mirror>,
    /// Learned addresses, by [`mac_key`].
    pub(crate) macs: HashMap<u64, OfPort>,
    /// Limit of flooded packets, by engine port.
    pub(crate) storm: Vec<Option<Arc<Meter>>>,
}

/// A change of a pipeline. It is applied to both versions, one after the other.
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
                self.macs_changed = generation;
                match port {
                    Some(port) => self.macs.insert(*key, *port),
                    None => self.macs.remove(key),
                };
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

    /// The table with this number, if it ever had a flow.
    pub fn table(&self, id: u8) -> Option<&Table> {
        self.tables.get(usize::from(id))
    }

    /// All ports, in the engine's order.
    pub fn ports(&self) -> &[SwitchPort] {
        &self.ports
    }

    /// The port with this number.
    pub fn port(&self, of: OfPort) -> Option<&SwitchPort> {
        self.ports.iter().find(|p| p.of == of)
    }

    /// The number flows know an engine port by.
    pub fn of_port(&self, id: PortId) -> Option<OfPort> {
        self.by_id(id).map(|port| port.of)
    }

    #[inline]
    fn by_id(&self, id: PortId) -> Option<&SwitchPort> {
        // Ports are listed in the engine's order, without those that went.
        match self.ports.get(usize::from(id.0)) {
            Some(port) if port.id == id => Some(port),
            _ => self.ports.iter().find(|p| p.id == id),
        }
    }

    /// Whether frames received by an engine port may carry unfinished checksums.
    #[inline]
    pub(crate) fn partial(&self, id: PortId) -> bool {
        self.by_id(id).is_some_and(|p| p.partial_checksums)
    }

    /// Whether an address is known to be where it was seen.
    pub(crate) fn knows(&self, learn: &Learn) -> bool {
        self.macs.get(&mac_key(learn.vlan, learn.mac)) == Some(&learn.port)
    }

    /// Whether a bucket may be used: it watches nothing, or what it watches is alive. Each bucket of a watched group that is
    /// looked at takes one of `looks`; without any left none is alive.
    pub(crate) fn alive(&self, group: &Group, bucket: usize, looks: &mut u32) -> bool {
        self.alive_below(group, bucket, 0, looks)
    }

    fn alive_below(&self, group: &Group, bucket: usize, depth: usize, looks: &mut u32) -> bool {
        let bucket = &group.spec.buckets[bucket];
        let port = bucket.watch_port.map(|of| self.port(of).is_some_and(|p| p.up));
        let watched = bucket.watch_group.map(|id| {
            let Some(watched) = self.groups.get(&id).filter(|_| depth < 8) else { return false };
            (0..watched.spec.buckets.len()).any(|b| {
                // Groups that all watch each other would be looked at again and again, by each way that leads there.
                *looks > 0 && {
                    *looks -= 1;
                    self.alive_below(watched, b, depth + 1, looks)
                }
            })
        });
        match (port, watched) {
            (None, None) => group.spec.kind != GroupKind::FastFailover,
            (port, watched) => port == Some(true) || watched == Some(true),
        }
    }
}
