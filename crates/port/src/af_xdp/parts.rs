//! The maps of a datapath, taken from the objects that were made for it.

use super::Error;
use super::error::checked;
use super::map::Map;
use super::objects::Made;
use super::segments::Segments;
use super::shared::{Versions, Words};
use super::tail_calls::TailCalls;
use std::os::fd::{AsFd, OwnedFd};

/// Objects that were made for a datapath. Each is taken once.
pub(super) struct Parts(pub Made);

impl Parts {
    pub fn take(&mut self, name: &'static str) -> Result<OwnedFd, Error> {
        self.0.take(name).map_err(|reason| Error::Map { interface: String::new(), map: name, reason })
    }

    pub fn map(&mut self, name: &'static str) -> Result<Map, Error> {
        checked(name, Map::new(self.take(name)?))
    }

    /// Takes a map as memory of this many words.
    pub fn words(&mut self, name: &'static str, words: usize) -> Result<Words, Error> {
        checked(name, Words::map(self.take(name)?.as_fd(), words))
    }

    pub fn versions(&mut self, name: &'static str, entries: usize, of_an_entry: usize) -> Result<Versions, Error> {
        checked(name, Versions::new(self.take(name)?, entries, of_an_entry))
    }

    /// Takes the memory of a forwarding table, and its first segment.
    pub fn segments(&mut self, name: &'static str, first: &'static str) -> Result<Segments, Error> {
        checked(name, Segments::begun(self.map(name)?, self.take(first)?))
    }

    /// Takes the arrays of programs of XDP and of traffic control.
    pub fn tail_calls(&mut self, [xdp, tc]: [&'static str; 2]) -> Result<TailCalls, Error> {
        Ok(TailCalls::new([self.map(xdp)?, self.map(tc)?]))
    }
}
