//! Index of the megaflows that depend on learned addresses, by address.

use crate::key::hash_words;

/// Key of the list of megaflows that depend on several learned addresses: a change of any address may affect them. No
/// [`crate::pipeline::mac_key`] is as large.
pub(crate) const SEVERAL: u64 = u64::MAX - 1;
/// Key of a link that is in no list.
const FREE: u64 = u64::MAX;
/// Number that stands for no link.
const END: u32 = u32::MAX;

/// Roles in which a megaflow depends on an address: as the source that it was learned from, and as the destination that
/// was looked up.
pub(crate) const ROLES: usize = 2;
/// Role of the source.
pub(crate) const SOURCE: usize = 0;

#[derive(Clone, Copy)]
struct Link {
    key: u64,
    next: u32,
    prev: u32,
}

/// Result of one step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The walk is at its end.
    End,
    /// A megaflow that does not depend on the address.
    Other,
    /// The megaflow with this index depends on the address in this role.
    Found(u32, usize),
}

/// Lists of megaflows, chained by the hash of the address's key; and one walk through such a list, during which
/// megaflows may be listed and unlisted.
pub(crate) struct Dependents {
    /// First link of each chain.
    heads: Vec<u32>,
    /// Links of each megaflow, one for each role.
    links: Vec<Link>,
    seed: u64,
    wanted: u64,
    /// Link that the walk comes to next.
    cursor: u32,
}

impl Dependents {
    /// Creates an index for `limit` megaflows; hashes are keyed by `seed`.
    pub fn new(limit: usize, seed: u64) -> Self {
        let heads = vec![END; limit.next_power_of_two()];
        Self { heads, links: Vec::with_capacity(ROLES * limit), seed, wanted: FREE, cursor: END }
    }

    /// Makes room for one more megaflow.
    pub fn grow(&mut self) {
        self.links.extend([Link { key: FREE, next: END, prev: END }; ROLES]);
    }

    fn chain(&self, key: u64) -> usize {
        hash_words(&[key], self.seed) as usize & (self.heads.len() - 1)
    }

    /// Lists a megaflow under the keys of its roles, and nowhere else. A walk in progress does not come to it any more.
    pub fn list(&mut self, at: u32, keys: [Option<u64>; ROLES]) {
        for (role, key) in keys.into_iter().enumerate() {
            let link = at * ROLES as u32 + role as u32;
            self.unlist(link);
            let Some(key) = key else { continue };
            let chain = self.chain(key);
            let next = std::mem::replace(&mut self.heads[chain], link);
            if next != END {
                self.links[next as usize].prev = link;
            }
            self.links[link as usize] = Link { key, next, prev: END };
        }
    }

    fn unlist(&mut self, link: u32) {
        let Link { key, next, prev } = self.links[link as usize];
        if key == FREE {
            return;
        }
        if self.cursor == link {
            self.cursor = next;
        }
        match prev {
            END => {
                let chain = self.chain(key);
                self.heads[chain] = next;
            }
            prev => self.links[prev as usize].next = next,
        }
        if next != END {
            self.links[next as usize].prev = prev;
        }
        self.links[link as usize].key = FREE;
    }

    /// Starts a walk over the megaflows that are now listed under `key`.
    pub fn walk(&mut self, key: u64) {
        (self.wanted, self.cursor) = (key, self.heads[self.chain(key)]);
    }

    /// Returns whether the walk is at its end.
    pub fn is_done(&self) -> bool {
        self.cursor == END
    }

    /// Returns whether a megaflow depends on an address.
    pub fn has(&self, at: u32) -> bool {
        let first = at as usize * ROLES;
        self.links[first..first + ROLES].iter().any(|link| link.key != FREE)
    }

    /// Looks at the next megaflow of the walk.
    pub fn step(&mut self) -> Step {
        let Some(link) = self.links.get(self.cursor as usize) else { return Step::End };
        let at = std::mem::replace(&mut self.cursor, link.next);
        match link.key == self.wanted {
            true => Step::Found(at / ROLES as u32, at as usize % ROLES),
            false => Step::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(index: &mut Dependents, key: u64) -> Vec<(u32, usize)> {
        index.walk(key);
        let steps = std::iter::from_fn(|| Some(index.step()).filter(|step| *step != Step::End));
        let mut list: Vec<_> =
            steps.filter_map(|step| if let Step::Found(at, role) = step { Some((at, role)) } else { None }).collect();
        list.sort_unstable();
        list
    }

    proptest! {
        #[test]
        fn lists_are_what_was_listed(steps in proptest::collection::vec((0..16u32, 0..6u64, 0..6u64), 1..200),
                                     seed: u64) {
            let mut index = Dependents::new(16, seed);
            (0..16).for_each(|_| index.grow());
            let mut model = [[None; ROLES]; 16];
            for (at, a, b) in steps {
                let keys = [a, b].map(|key| Some(key).filter(|key| *key != 0));
                index.list(at, keys);
                model[at as usize] = keys;
                for key in 1..6 {
                    let listed = |at: u32| (0..ROLES).map(move |role| (at, role));
                    let of = |&(at, role): &(u32, usize)| model[at as usize][role] == Some(key);
                    let want: Vec<_> = (0..16).flat_map(listed).filter(of).collect();
                    prop_assert_eq!(found(&mut index, key), want);
                }
            }
        }
    }

    #[test]
    fn a_walk_survives_changes() {
        let mut index = Dependents::new(8, 1);
        for at in 0..6 {
            index.grow();
            index.list(at, [Some(7), None]);
        }
        // Megaflows are met from the latest to the oldest.
        index.walk(7);
        assert_eq!(index.step(), Step::Found(5, 0));
        index.list(4, [None, Some(7)]);
        index.list(3, [None; 2]);
        index.list(5, [Some(7), None]);
        assert_eq!(index.step(), Step::Found(2, 0));
        index.list(2, [None; 2]);
        index.list(0, [Some(9), None]);
        assert_eq!(index.step(), Step::Found(1, 0));
        assert_eq!(index.step(), Step::End);
        assert_eq!(found(&mut index, 7), [(1, 0), (4, 1), (5, 0)]);
    }
}
