//! Bridges: the stations behind ports, and the tags of frames to them.

use super::error::checked;
use super::stations::{BridgeTags, Stations};
use super::{Error, XdpDatapath, shared};

impl XdpDatapath {
    /// Sets the stations of bridges: the bridge's number, the MAC address, and the port that leads to it, or
    /// [`super::PORTS`] for a VXLAN. Frames that ports on members of bridges receive from other stations are passed to
    /// the kernel. Returns the number of stations that are left out: there is room for some ten thousand.
    ///
    /// # Errors
    /// [`Error::Map`] if the memory cannot be mapped; then there are none.
    pub fn set_stations(&self, stations: &[(u16, [u8; 6], u16)]) -> Result<usize, Error> {
        // Closing the gates does not wait for this.
        let (words, without) = Stations::lay_out(stations);
        match self.lock().stations() {
            Some(known) => checked("stations", known.set(words)).map(|()| without),
            None => Ok(stations.len()),
        }
    }

    /// Makes the program pass the next frame of each station to the kernel, which does not see the others.
    pub fn renew_stations(&self) {
        self.lock().stations().into_iter().for_each(|known| known.renew());
    }

    /// Sets the tags with which frames of interfaces on VLAN-filtering bridges leave: by the interface's number, the
    /// tag of its VLAN, in network byte order and with priority 0, and the ports on which frames have it (bit n: port
    /// n). On all other ports they have none.
    ///
    /// If anything changes, waits for a grace period of some milliseconds, and all frames between members of bridges
    /// are left to the kernel until [`XdpDatapath::resume_members`]: the program reads which ports a frame may leave by
    /// before it reads the tags.
    pub fn set_bridge_tags(&self, tags: BridgeTags) {
        let mut inner = self.lock();
        if inner.stations().is_none_or(|known| known.tags == tags) {
            return;
        }
        inner.suspend_members(true);
        drop(inner);
        shared::grace();
        if let Some(known) = self.lock().stations() {
            known.store_tags(tags);
        }
    }

    /// Forwards frames between members of bridges again after [`XdpDatapath::set_bridge_tags`]; to be called once the
    /// ports' configurations agree with the tags.
    pub fn resume_members(&self) {
        let mut inner = self.lock();
        if inner.suspends_members() {
            inner.suspend_members(false);
        }
    }
}
