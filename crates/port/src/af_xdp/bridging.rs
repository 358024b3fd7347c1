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

    /// Sets the VLAN tags of frames sent for interfaces on VLAN-filtering bridges. `tags` maps the number of an
    /// interface to the tag of its VLAN (in network byte order, with priority 0) and to the ports on which its frames
    /// are tagged (bit n: port n); on all other ports they are sent untagged.
    ///
    /// If anything changes, blocks for a grace period of some milliseconds, because the program reads the egress ports
    /// of a frame before the tags. All frames between members of bridges are left to the kernel from then on, until
    /// [`XdpDatapath::resume_members`].
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
