//! Programs that are entered by tail calls, loaded when they are first needed.

use super::Error;
use super::map::Map;
use super::objects::{Make, OnDemand, make};
use std::os::fd::AsFd;

/// Program arrays, and which of their places are filled.
pub(super) struct TailCalls {
    /// Program arrays of XDP and, if it has such programs, of traffic control.
    arrays: Vec<Map>,
    /// For each place of the arrays, whether its programs are loaded, or the kernel's reason for refusing them.
    loaded: [Result<bool, String>; 2],
}

impl TailCalls {
    pub fn new(arrays: impl Into<Vec<Map>>) -> Self {
        Self { arrays: arrays.into(), loaded: [Ok(false), Ok(false)] }
    }

    /// Loads the programs of a place, for the datapath with this number, unless they are loaded already. Takes some
    /// tens of milliseconds. Programs that the kernel has refused are not tried again: each attempt would take as long.
    pub fn load(&mut self, of: u32, place: usize, what: OnDemand) -> Result<(), Error> {
        if self.loaded[place] == Ok(false) {
            self.loaded[place] = self.enter(of, place, what).map(|()| true);
        }
        let refused = |reason: &String| Error::Load { interface: String::new(), reason: reason.clone() };
        self.loaded[place].as_ref().map(|_| ()).map_err(refused)
    }

    fn enter(&self, of: u32, place: usize, what: OnDemand) -> Result<(), String> {
        let mut made = make(&Make::OnDemand { of, what }).map_err(|why| Error::from(why).reason())?;
        for (programs, name) in self.arrays.iter().zip(what.names()) {
            programs.put(place as u32, made.take(name)?.as_fd()).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Returns whether the kernel has refused any of the programs.
    pub fn refused(&self) -> bool {
        self.loaded.iter().any(Result::is_err)
    }
}
