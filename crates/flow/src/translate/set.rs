//! Action set: actions written on the way through the tables, executed at its end.

use crate::model::Action;

/// Maximum number of `write_actions` that a packet meets.
const WRITES: usize = 64;

/// Action set of a packet in translation.
#[derive(Clone, Copy)]
pub(super) struct ActionSet<'t> {
    written: [&'t [Action]; WRITES],
    from: u8,
    to: u8,
}

impl Default for ActionSet<'_> {
    fn default() -> Self {
        Self { written: [&[]; WRITES], from: 0, to: 0 }
    }
}

impl<'t> ActionSet<'t> {
    /// Adds actions. Returns `false` if there is no room.
    pub fn write(&mut self, actions: &'t [Action]) -> bool {
        let room = self.written.get_mut(usize::from(self.to));
        let done = room.map(|room| *room = actions).is_some();
        self.to += u8::from(done);
        done
    }

    pub fn clear(&mut self) {
        self.from = self.to;
    }

    /// Returns the extent of the set, to restore it after later changes.
    pub fn extent(&self) -> (u8, u8) {
        (self.from, self.to)
    }

    pub fn restore(&mut self, (from, to): (u8, u8)) {
        (self.from, self.to) = (from, to);
    }

    /// Returns the actions in the order in which they were written.
    pub fn actions(&self) -> impl DoubleEndedIterator<Item = &'t Action> + Clone {
        self.written[usize::from(self.from)..usize::from(self.to)].iter().flat_map(|list| list.iter())
    }
}
