//! Memory of the forwarding tables, made segment by segment.

use super::abi::SEGMENT;
use super::map::Map;
use super::objects::{Make, make};
use super::shared::Words;
use super::{Error, shared};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Memory of one table; see [`super::XdpDatapath::segments`].
pub struct Segments {
    outer: Map,
    /// The first segment, made with the table, until it is asked for.
    first: Option<OwnedFd>,
}

impl Segments {
    pub(super) fn new(outer: Map) -> Self {
        Self { outer, first: None }
    }

    /// Takes the first segment, and tests that it can be mapped.
    pub(super) fn begun(outer: Map, first: OwnedFd) -> io::Result<Self> {
        Words::map(first.as_fd(), SEGMENT / 8)?;
        Ok(Self { outer, first: Some(first) })
    }

    /// Makes segment `n`, counted from 0, of [`SEGMENT`] zero bytes; returns a descriptor to map it by.
    ///
    /// # Errors
    /// If there are as many segments as the table can have, or the kernel refuses the memory.
    pub fn make(&mut self, n: usize) -> io::Result<OwnedFd> {
        if let (0, Some(first)) = (n, self.first.take()) {
            return Ok(first);
        }
        let refused = |why| io::Error::other(Error::from(why).reason());
        let segment = make(&Make::Segment).map_err(refused)?.take("segment").map_err(io::Error::other)?;
        self.outer.put(n as u32, segment.as_fd())?;
        Ok(segment)
    }

    /// Waits until every program that was running at the time of the call has ended.
    pub fn grace(&self) {
        shared::grace();
    }
}
