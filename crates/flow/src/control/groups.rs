//! Groups and meters.

use super::{Entry, FlowControl, Refused};
use crate::meter::Meter;
use crate::model::{Action, Bucket, GroupSpec, MeterSpec};
use crate::pipeline::{Change, Group};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Maximum number of meter ids that can ever be used.
const METERS: u32 = 65_536;

impl FlowControl {
    /// Adds a group, or replaces the one with its id. Errors if `new` is set and the group exists, or if the group
    /// would run itself.
    pub fn set_group(&mut self, spec: GroupSpec, new: bool) -> Result<(), Refused> {
        let known = self.groups.contains_key(&spec.id);
        if new && known {
            return Err(Refused(format!("group {} already exists: use mod to change it", spec.id)));
        }
        let runs = |bucket: &Bucket| {
            Action::all(&bucket.actions).any(|action| *action == Action::Group(spec.id))
                || bucket.watch_group == Some(spec.id)
        };
        if spec.buckets.iter().any(runs) || self.leads_to(&spec, spec.id) {
            return Err(Refused(format!("group {} would run itself", spec.id)));
        }
        let (id, group) = (spec.id, Arc::new(Group::new(spec)));
        self.groups.insert(id, group.clone());
        self.changes.push(Change::Group(id, Some(group)));
        Ok(())
    }

    /// Returns `true` if a group's buckets run the group `id`, directly or through other groups.
    fn leads_to(&self, spec: &GroupSpec, id: u32) -> bool {
        fn next(spec: &GroupSpec) -> impl Iterator<Item = u32> {
            spec.buckets.iter().flat_map(|b| Action::all(&b.actions)).filter_map(|a| match a {
                Action::Group(next) => Some(*next),
                _ => None,
            })
        }
        let (mut todo, mut seen) = (next(spec).collect::<Vec<_>>(), HashSet::new());
        while let Some(at) = todo.pop() {
            if at == id {
                return true;
            }
            if seen.insert(at)
                && let Some(group) = self.groups.get(&at)
            {
                todo.extend(next(&group.spec));
            }
        }
        false
    }

    /// Deletes a group, or all groups for `None`, and the flows that run them. Returns the number of groups deleted.
    pub fn delete_group(&mut self, id: Option<u32>) -> usize {
        let gone = selected(&self.groups, id);
        self.delete_users(|action| matches!(action, Action::Group(id) if gone.contains(id)));
        for id in &gone {
            self.groups.remove(id);
            self.changes.push(Change::Group(*id, None));
        }
        gone.len()
    }

    /// Deletes the flows that have such an action.
    fn delete_users(&mut self, is_such: impl Fn(&Action) -> bool) {
        let uses = |entry: &&Entry| Action::all(entry.rule.actions()).any(&is_such);
        let slots: Vec<u32> = self.entries.values().filter(uses).map(|entry| entry.rule.slot).collect();
        slots.into_iter().for_each(|slot| self.remove_slot(slot));
    }

    /// Returns the groups, ordered by id.
    pub fn groups(&self) -> Vec<Arc<Group>> {
        let mut groups: Vec<_> = self.groups.values().cloned().collect();
        groups.sort_by_key(|g| g.spec.id);
        groups
    }

    /// Adds a meter, or replaces the one with its id. Errors if `new` is set and the meter exists, or if too many meter
    /// ids have been used.
    pub fn set_meter(&mut self, spec: MeterSpec, new: bool) -> Result<(), Refused> {
        if new && self.meters.contains_key(&spec.id) {
            return Err(Refused(format!("meter {} already exists: use mod to change it", spec.id)));
        }
        let next = self.meter_slots.len() as u32;
        if next >= METERS && !self.meter_slots.contains_key(&spec.id) {
            return Err(Refused(format!("cannot add the meter: {METERS} different meter ids have been used")));
        }
        let (slot, meter) = (*self.meter_slots.entry(spec.id).or_insert(next), Arc::new(Meter::new(spec)));
        self.meters.insert(spec.id, meter.clone());
        self.changes.push(Change::Meter(spec.id, slot, Some(meter)));
        Ok(())
    }

    /// Deletes a meter, or all meters for `None`, and the flows that use them. Returns the number of meters deleted.
    pub fn delete_meter(&mut self, id: Option<u32>) -> usize {
        let gone = selected(&self.meters, id);
        self.delete_users(|action| matches!(action, Action::Meter(id) if gone.contains(id)));
        for id in &gone {
            self.meters.remove(id);
            self.changes.push(Change::Meter(*id, self.meter_slots[id], None));
        }
        gone.len()
    }

    /// Returns the meters, ordered by id.
    pub fn meters(&self) -> Vec<Arc<Meter>> {
        let mut meters: Vec<_> = self.meters.values().cloned().collect();
        meters.sort_by_key(|m| m.spec.id);
        meters
    }
}

/// Returns this id, or all ids for `None`, as far as they exist.
fn selected<T>(all: &HashMap<u32, T>, id: Option<u32>) -> HashSet<u32> {
    all.keys().copied().filter(|known| id.is_none_or(|id| id == *known)).collect()
}
