//! Options of teams, which are joined to the links of the teams and their members.

use super::{Kernel, Stamped};
use crate::teams::{Set, Team};
use bywash_fib::model::{Bond, Link};

impl Kernel {
    /// Sets what the options of a team say about it, or about its member.
    pub(super) fn join_team(&self, link: &mut Link) {
        if let (Some(team), Some(bond)) = (self.teams.get(&link.index), &mut link.bond) {
            (bond.mode, bond.active) = team.as_ref().map_or((Bond::UNKNOWN, None), Team::mode);
        }
        if let Some(team) = link.master.and_then(|master| self.teams.get(&master)) {
            link.member = team.as_ref().and_then(|team| team.member(link.index));
        }
    }

    /// Returns the kernel indices of all teams.
    pub fn teams(&self) -> Vec<u32> {
        self.teams.keys().copied().collect()
    }

    /// Applies changes of a team's options, if the others are known.
    pub fn change_team(&mut self, index: u32, options: Vec<Set>) {
        if let Some(Some(team)) = self.teams.get(&index) {
            let mut team = team.clone();
            team.apply(options);
            self.set_team(index, Some(team));
        }
    }

    /// Sets all options of a team; `None` if they are not known.
    pub fn set_team(&mut self, index: u32, team: Option<Team>) {
        let Some(known) = self.teams.get_mut(&index) else { return };
        *known = team;
        let of = |link: &&Stamped<Link>| link.value.index == index || link.value.master == Some(index);
        let links: Vec<Link> = self.links.values().filter(of).map(|link| link.value.clone()).collect();
        for old in links {
            let mut link = old.clone();
            self.join_team(&mut link);
            if link != old {
                self.links.entry(link.index).and_modify(|known| known.value = link);
                self.pending.links.entry(old.index).or_insert(Some(old));
            }
        }
    }

    pub(super) fn drop_team(&mut self, index: u32) {
        self.set_team(index, None);
        self.teams.remove(&index);
    }
}
