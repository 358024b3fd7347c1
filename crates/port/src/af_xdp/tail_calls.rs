//! Programs that are entered by tail calls, loaded when they are first needed.

use super::Error;
use super::map::Map;
use super::objects::{Make, OnDemand, make};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Time after which what the kernel has refused is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(60);

/// Program arrays, and which of their places are filled.
pub(super) struct TailCalls {
    /// Program arrays of XDP and, if it has such programs, of traffic control.
    arrays: Vec<Map>,
    /// For each place of the arrays, whether its programs are loaded, or why and when they could not be.
    loaded: [Result<bool, (String, Instant)>; 2],
}

impl TailCalls {
    pub fn new(arrays: impl Into<Vec<Map>>) -> Self {
        Self { arrays: arrays.into(), loaded: [Ok(false), Ok(false)] }
    }

    /// Loads the programs of a place, for the datapath with this number, unless they are loaded already. Takes some
    /// tens of milliseconds. Programs that could not be loaded are tried again after [`RETRY`]: each attempt takes as
    /// long, but what was missing may have been descriptors or memory.
    pub fn load(&mut self, of: u32, place: usize, what: OnDemand) -> Result<(), Error> {
        let due = match &self.loaded[place] {
            Ok(loaded) => !loaded,
            Err((_, tried)) => tried.elapsed() >= RETRY,
        };
        if due {
            self.loaded[place] = self.enter(of, place, what).map(|()| true).map_err(|why| (why, Instant::now()));
        }
        match &self.loaded[place] {
            Ok(_) => Ok(()),
            Err((reason, _)) => Err(Error::Load { interface: String::new(), reason: reason.clone() }),
        }
    }

    fn enter(&self, of: u32, place: usize, what: OnDemand) -> Result<(), String> {
        let mut made = make(&Make::OnDemand { of, what }).map_err(|why| Error::from(why).reason())?;
        for (programs, name) in self.arrays.iter().zip(what.names()) {
            programs.put(place as u32, made.take(name)?.as_fd()).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Returns whether any of the programs could not be loaded, and is not to be tried again yet.
    pub fn refused(&self) -> bool {
        self.loaded.iter().any(|of| of.as_ref().is_err_and(|(_, tried)| tried.elapsed() < RETRY))
    }
}
