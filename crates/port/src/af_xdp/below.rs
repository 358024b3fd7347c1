//! The devices below an interface: members of a bond or bridge, the device below a VLAN interface or macvlan.
//!
//! Frames that an interface receives are as its lowest device left them: VLAN tags that a NIC stripped stay stripped,
//! and checksums that a veth's peer left unfinished stay so above a bridge.

use super::{Features, LinkInfo, driver};
use std::fs;
use std::path::{Path, PathBuf};

/// Directory of the network interfaces. `lower_NAME` in an interface's directory links to a device below it
/// (`netdev_adjacent`).
const SYS: &str = "/sys/class/net";
/// Kinds of interfaces that are stacked on others. A bridge is treated separately: its members change as guests come
/// and go.
const STACKED: [&str; 11] =
    ["bond", "team", "vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec", "vrf", "hsr", "batadv"];
const BRIDGE: &str = "bridge";
/// Names of the device features that strip VLAN tags on reception: of 802.1Q, and of 802.1ad.
pub const TAKE_TAGS_OFF: [&str; 2] = ["rx-vlan-hw-parse", "rx-vlan-stag-hw-parse"];
/// Drivers of pairs of interfaces, to which the other end passes tags outside the frame.
const PAIRS: [&str; 2] = ["veth", "netkit"];

/// An interface and all devices below it.
pub struct Below {
    /// Names and drivers of the devices, the interface first.
    devices: Vec<(String, String)>,
    /// Set if there may be devices below that are not listed.
    unknown: bool,
}

impl Below {
    /// Finds the devices below an interface.
    pub fn of(link: &LinkInfo) -> Self {
        let sys = Path::new(SYS);
        // /sys may be that of another network namespace, with another interface of the same name; a lower device may be
        // in another namespace, too.
        let ours = number(sys.join(&link.name).join("ifindex")) == Some(link.index);
        let names = if ours { lowest_last(sys, &link.name) } else { vec![link.name.clone()] };
        let unknown = link.kind == BRIDGE || (names.len() == 1 && STACKED.contains(&link.kind.as_str()));
        let devices = names.into_iter().map(|name| (driver(&name).unwrap_or_default(), name));
        Self { devices: devices.map(|(driver, name)| (name, driver)).collect(), unknown }
    }

    /// Returns the driver of the interface itself.
    pub fn driver(&self) -> &str {
        &self.devices[0].1
    }

    /// Returns the names of all devices, the interface first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().map(|(name, _)| name.as_str())
    }

    /// Returns whether received frames may have unfinished transport checksums. `native`: XDP runs in the interface's
    /// driver, for which a virtio-net asks its host to complete them.
    pub fn leaves_checksums(&self, native: bool) -> bool {
        let leaves = |driver: &str| match driver {
            "virtio_net" => !native,
            driver => driver == "tun" || PAIRS.contains(&driver),
        };
        self.unknown || self.devices.iter().any(|(_, driver)| leaves(driver))
    }

    /// Returns the devices that can be set to leave VLAN tags in frames. A veth is not among them: the tag is outside
    /// the frame before it is received.
    pub fn strippers(&self) -> impl Iterator<Item = &str> {
        self.devices.iter().filter(|(_, driver)| !PAIRS.contains(&driver.as_str())).map(|(name, _)| name.as_str())
    }

    /// Returns whether programs do not see the VLAN tags of received frames, with the devices' current settings.
    pub fn hides_tags(&self) -> bool {
        let on = |name: &str, feature| Features::of(name).and_then(|f| f.get(feature)).is_ok_and(|on| on == Some(true));
        let stripped = |name: &str| TAKE_TAGS_OFF.iter().any(|feature| on(name, feature));
        let hidden = |(name, driver): &(String, String)| PAIRS.contains(&driver.as_str()) || stripped(name);
        // A stacked device leaves tags as the devices below it do, whatever it reports itself.
        let lowest = if self.devices.len() > 1 { &self.devices[1..] } else { &self.devices[..] };
        self.unknown || lowest.iter().any(hidden)
    }
}

/// Returns an interface and the devices below it, each once.
fn lowest_last(sys: &Path, name: &str) -> Vec<String> {
    let mut all = vec![name.to_owned()];
    let mut at = 0;
    while at < all.len() {
        let entries = fs::read_dir(sys.join(&all[at])).into_iter().flatten().flatten();
        for entry in entries {
            let file = entry.file_name();
            let lower = file.to_str().and_then(|file| file.strip_prefix("lower_")).map(str::to_owned);
            all.extend(lower.filter(|lower| !all.contains(lower)));
        }
        at += 1;
    }
    all
}

fn number(path: PathBuf) -> Option<u32> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn below(devices: &[(&str, &str)], unknown: bool) -> Below {
        let devices = devices.iter().map(|(name, driver)| ((*name).into(), (*driver).into())).collect();
        Below { devices, unknown }
    }

    #[test]
    fn all_that_it_stands_on_is_found_once() {
        let sys = tempfile::tempdir().unwrap();
        for (upper, lower) in
            [("bond0.5", "bond0"), ("bond0", "eth0"), ("bond0", "eth1"), ("eth1", "dsa0"), ("eth0", "dsa0")]
        {
            fs::create_dir_all(sys.path().join(upper).join(format!("lower_{lower}"))).unwrap();
        }
        let mut found = lowest_last(sys.path(), "bond0.5");
        assert_eq!(found[..2], ["bond0.5", "bond0"]);
        found.sort();
        assert_eq!(found, ["bond0", "bond0.5", "dsa0", "eth0", "eth1"]);
        assert_eq!(lowest_last(sys.path(), "gone"), ["gone"]);
    }

    #[test]
    fn checksums_and_tags_are_as_the_lowest_left_them() {
        let nics = below(&[("bond0", "bonding"), ("nosuch0", "ixgbe"), ("nosuch1", "ixgbe")], false);
        assert!(!nics.leaves_checksums(false) && !nics.hides_tags());
        assert_eq!(nics.strippers().collect::<Vec<_>>(), ["bond0", "nosuch0", "nosuch1"]);
        let mixed = below(&[("bond0", "bonding"), ("nosuch0", "ixgbe"), ("v0", "veth")], false);
        assert!(mixed.leaves_checksums(false) && mixed.hides_tags());
        assert_eq!(mixed.strippers().collect::<Vec<_>>(), ["bond0", "nosuch0"]);
        let unknown = below(&[("macvlan0", "macvlan")], true);
        assert!(unknown.leaves_checksums(false) && unknown.hides_tags());
        let tap = below(&[("vlan5", "802.1Q VLAN Support"), ("tap0", "tun")], false);
        assert!(tap.leaves_checksums(false) && !tap.hides_tags());
        assert!(below(&[("netkit0", "netkit")], false).leaves_checksums(true));
        let guest = below(&[("ens3", "virtio_net")], false);
        assert!(guest.leaves_checksums(false) && !guest.leaves_checksums(true));
        assert!(below(&[("bond0", "bonding"), ("ens3", "virtio_net")], false).leaves_checksums(false));
    }
}
