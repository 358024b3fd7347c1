//! Interface features, by ethtool requests.

use super::Error;
use super::ioctl::request;
use std::io;

// linux/sockios.h, linux/ethtool.h
const SIOCETHTOOL: libc::c_ulong = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x3;
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_GFEATURES: u32 = 0x3a;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
const ETH_SS_FEATURES: u32 = 4;
/// Bytes of a name in a string set.
const ETH_GSTRING_LEN: usize = 32;

/// Makes an ethtool request. `command` is a `u32`-aligned block that starts with the command's number and has room for
/// everything the kernel will write.
fn ethtool(interface: &str, command: &mut [u32]) -> io::Result<()> {
    request(interface, SIOCETHTOOL, command)
}

/// Returns the RX queues in use, from ETHTOOL_GCHANNELS; `None` if the driver does not report them.
pub(crate) fn rx_channels(interface: &str) -> Option<u32> {
    // cmd, max_{rx,tx,other,combined}, {rx,tx,other,combined}_count
    let mut channels = [0; 9];
    channels[0] = ETHTOOL_GCHANNELS;
    ethtool(interface, &mut channels).ok()?;
    Some(channels[5] + channels[8]).filter(|n| *n > 0)
}

/// Returns the driver's name (`veth`, `ixgbe`, ...), from ETHTOOL_GDRVINFO; `None` if it does not report one.
pub fn driver(interface: &str) -> Option<String> {
    // struct ethtool_drvinfo: cmd, then driver[32]; 196 bytes in all.
    let mut info = [0; 49];
    info[0] = ETHTOOL_GDRVINFO;
    ethtool(interface, &mut info).ok()?;
    let bytes: Vec<u8> = info[1..9].iter().flat_map(|w| w.to_ne_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8(bytes).ok()
}

/// Features of one interface, by the kernel's names (`rx-gro`, `rx-vlan-hw-parse`, ...; `ethtool -k` shows some of them
/// under older names).
#[derive(Clone, Debug)]
pub struct Features {
    interface: String,
    names: Vec<String>,
}

/// State of one feature.
struct FeatureState {
    active: bool,
    /// Set if the kernel turns the feature on as soon as the interface's other settings permit it.
    wanted: bool,
    can_change: bool,
}

impl Features {
    /// Reads the names of all features of this kernel.
    pub fn of(interface: &str) -> Result<Self, Error> {
        let failed =
            |source| Error::Feature { interface: interface.into(), action: "list the features".into(), source };
        // struct ethtool_sset_info: cmd, reserved, u64 mask, u32 counts
        let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
        ethtool(interface, &mut info).map_err(failed)?;
        let count = info[4] as usize;
        // struct ethtool_gstrings: cmd, set, len, then the names
        let mut strings = vec![0; 3 + count * ETH_GSTRING_LEN / 4];
        (strings[0], strings[1], strings[2]) = (ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32);
        ethtool(interface, &mut strings).map_err(failed)?;
        let names = strings[3..]
            .chunks(ETH_GSTRING_LEN / 4)
            .map(|words| words.iter().flat_map(|w| w.to_ne_bytes()).take_while(|b| *b != 0).collect())
            .map(|bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned())
            .collect();
        Ok(Self { interface: interface.into(), names })
    }

    /// Returns the interface's name.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Returns whether a feature is active; `None` if the kernel has no feature of that name.
    pub fn get(&self, name: &str) -> Result<Option<bool>, Error> {
        Ok(self.state(name)?.map(|state| state.active))
    }

    fn state(&self, name: &str) -> Result<Option<FeatureState>, Error> {
        let Some(bit) = self.names.iter().position(|n| n == name) else { return Ok(None) };
        let blocks = self.names.len().div_ceil(32);
        // struct ethtool_gfeatures: cmd, size, then {available, requested, active, never_changed} each
        let mut command = vec![0; 2 + 4 * blocks];
        (command[0], command[1]) = (ETHTOOL_GFEATURES, blocks as u32);
        ethtool(&self.interface, &mut command).map_err(|source| self.error("read", name, source))?;
        let block = &command[2 + 4 * (bit / 32)..][..4];
        let mask = 1 << (bit % 32);
        let can_change = block[0] & mask != 0 && block[3] & mask == 0;
        Ok(Some(FeatureState { active: block[2] & mask != 0, wanted: block[1] & mask != 0, can_change }))
    }

    /// Turns a feature on or off; returns whether that changed anything. Fails if the driver does not let it change, or
    /// the kernel has no such feature.
    pub fn set(&self, name: &str, on: bool) -> Result<bool, Error> {
        let Some(bit) = self.names.iter().position(|n| n == name) else {
            return Err(self.error("set", name, io::ErrorKind::Unsupported.into()));
        };
        let Some(before) = self.state(name)? else { return Ok(false) };
        if before.active == on {
            return Ok(false);
        }
        if !before.can_change {
            return Err(self.error("set", name, io::Error::other("the driver does not let it change")));
        }
        self.want(name, bit, on)?;
        if self.get(name)? == Some(on) {
            return Ok(true);
        }
        // The kernel would make the change as soon as the other setting permits it.
        self.want(name, bit, before.wanted)?;
        Err(self.error("set", name, io::Error::other("another setting of the interface forbids it")))
    }

    /// Makes the kernel want the feature `name`, with this number, on or off.
    fn want(&self, name: &str, bit: usize, on: bool) -> Result<(), Error> {
        let blocks = self.names.len().div_ceil(32);
        // struct ethtool_sfeatures: cmd, size, then {valid, requested} each
        let mut command = vec![0; 2 + 2 * blocks];
        (command[0], command[1]) = (ETHTOOL_SFEATURES, blocks as u32);
        command[2 + 2 * (bit / 32)] = 1 << (bit % 32);
        command[3 + 2 * (bit / 32)] = u32::from(on) << (bit % 32);
        ethtool(&self.interface, &mut command).map_err(|source| self.error("set", name, source))
    }

    fn error(&self, verb: &str, name: &str, source: io::Error) -> Error {
        Error::Feature { interface: self.interface.clone(), action: format!("{verb} feature `{name}`"), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_lab::{End, Namespace, Veth, require, require_lab};

    #[test]
    fn loopback_has_features() {
        let lo = Features::of("lo").unwrap();
        assert_eq!(lo.get("loopback").unwrap(), Some(true));
        assert_eq!(lo.get("no-such-feature").unwrap(), None);
        assert!(lo.set("loopback", false).unwrap_err().to_string().contains("does not let it change"));
        assert!(Features::of("nosuchif0").is_err());
    }

    #[test]
    fn what_another_setting_forbids_is_not_done_later() {
        require!(require_lab());
        let (near, far) = (Namespace::new("on").unwrap(), Namespace::new("of").unwrap());
        Veth::new(End::new(&near, "o0"), End::new(&far, "o1")).create().unwrap();
        near.enter(|| {
            let features = Features::of("o0").unwrap();
            let (sg, tso) = ("tx-scatter-gather", "tx-tcp-segmentation");
            assert!(features.set(tso, false).unwrap());
            assert!(features.set(sg, false).unwrap());
            let refused = features.set(tso, true).unwrap_err().to_string();
            assert!(refused.contains("another setting of the interface forbids it"), "{refused}");
            assert!(features.set(sg, true).unwrap());
            assert_eq!(features.get(tso).unwrap(), Some(false));
        })
        .unwrap();
    }
}
