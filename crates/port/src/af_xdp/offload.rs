//! Interface settings (ethtool features, NAPI settings), and a journal to restore them.
//!
//! A setting is written to the journal before it is changed, so that after a kill the next start, or `bywash restore`,
//! finds the old value.

use super::{Error, napi};
use serde::{Deserialize, Serialize};
use std::ffi::c_void;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

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

/// Empty polls before interrupts are enabled again; meanwhile the flush timer polls.
const DEFERRED: u64 = 2;
/// Time after which the kernel polls a driver whose interrupts are off and which nobody else polls.
const FLUSH_AFTER: Duration = Duration::from_micros(200);

/// Makes an ethtool request. `command` is a `u32`-aligned block that starts with the command's number and has room for
/// everything the kernel will write.
fn ethtool(interface: &str, command: &mut [u32]) -> io::Result<()> {
    if interface.is_empty() || interface.len() >= libc::IFNAMSIZ {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    let fd = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_data = command.as_mut_ptr().cast::<c_void>().cast();
    // SAFETY: the request names a block that outlives the call and that every caller below sizes for its command.
    let rc = unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&fd), SIOCETHTOOL, &raw mut request) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
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
        Ok(self.bits(name)?.map(|(active, _)| active))
    }

    /// Returns whether a feature is active, and whether it can be changed.
    fn bits(&self, name: &str) -> Result<Option<(bool, bool)>, Error> {
        let Some(bit) = self.names.iter().position(|n| n == name) else { return Ok(None) };
        let blocks = self.names.len().div_ceil(32);
        // struct ethtool_gfeatures: cmd, size, then {available, requested, active, never_changed} each
        let mut command = vec![0; 2 + 4 * blocks];
        (command[0], command[1]) = (ETHTOOL_GFEATURES, blocks as u32);
        ethtool(&self.interface, &mut command).map_err(|source| self.error("read", name, source))?;
        let block = &command[2 + 4 * (bit / 32)..][..4];
        let mask = 1 << (bit % 32);
        Ok(Some((block[2] & mask != 0, block[0] & mask != 0 && block[3] & mask == 0)))
    }

    /// Turns a feature on or off; returns whether that changed anything. Fails if the driver does not let it change, or
    /// the kernel has no such feature.
    pub fn set(&self, name: &str, on: bool) -> Result<bool, Error> {
        let Some(bit) = self.names.iter().position(|n| n == name) else {
            return Err(self.error("set", name, io::ErrorKind::Unsupported.into()));
        };
        let Some((active, can_change)) = self.bits(name)? else { return Ok(false) };
        if active == on {
            return Ok(false);
        }
        if !can_change {
            return Err(self.error("set", name, io::Error::other("the driver does not let it change")));
        }
        let blocks = self.names.len().div_ceil(32);
        // struct ethtool_sfeatures: cmd, size, then {valid, requested} each
        let mut command = vec![0; 2 + 2 * blocks];
        (command[0], command[1]) = (ETHTOOL_SFEATURES, blocks as u32);
        command[2 + 2 * (bit / 32)] = 1 << (bit % 32);
        command[3 + 2 * (bit / 32)] = u32::from(on) << (bit % 32);
        ethtool(&self.interface, &mut command).map_err(|source| self.error("set", name, source))?;
        if self.get(name)? == Some(on) {
            Ok(true)
        } else {
            Err(self.error("set", name, io::Error::other("another setting of the interface forbids it")))
        }
    }

    fn error(&self, verb: &str, name: &str, source: io::Error) -> Error {
        Error::Feature { interface: self.interface.clone(), action: format!("{verb} feature `{name}`"), source }
    }
}

/// Old value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// State of an ethtool feature.
    On(bool),
    /// Number.
    Number(u64),
}

/// Setting that was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Interface name.
    pub interface: String,
    /// Kernel's name of the feature or other setting.
    pub feature: String,
    /// Value before the change.
    pub was: Value,
}

/// File of the changes that must be restored.
///
/// # Thread-safety
/// One owner. Two processes must not use the same file: name it after the running instance.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    changes: Vec<Change>,
}

impl Journal {
    /// Opens the journal at `path`, with the changes an earlier process left there. Its directory is created when the
    /// first change is written.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let changes = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|e| journal_error(&path, e.into()))?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(journal_error(&path, e)),
        };
        Ok(Self { path, changes })
    }

    /// Returns the changes to restore.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Sets a feature after recording its old value. Does nothing if it already has that value. Returns whether it
    /// changed.
    pub fn set(&mut self, features: &Features, name: &str, on: bool) -> Result<bool, Error> {
        if features.get(name)? == Some(on) {
            return Ok(false);
        }
        let change = Change { interface: features.interface().into(), feature: name.into(), was: Value::On(!on) };
        self.noting(change, || features.set(name, on))
    }

    /// Keeps the interface's interrupts off while its driver is busy polled; they come back soon after
    /// polling stops. Returns whether that changed anything. Needs Linux 5.11.
    pub fn busy_poll(&mut self, interface: &str) -> Result<bool, Error> {
        let mut changed = false;
        for (name, value) in [(napi::DEFER, DEFERRED), (napi::FLUSH, FLUSH_AFTER.as_nanos() as u64)] {
            let failed = |verb: &str, source| Error::Feature {
                interface: interface.into(),
                action: format!("{verb} setting `{name}`"),
                source,
            };
            let was = napi::get(interface, name).map_err(|e| failed("read", e))?;
            if was != value {
                let change = Change { interface: interface.into(), feature: name.into(), was: Value::Number(was) };
                let set = || napi::set(interface, name, value).map(|()| true).map_err(|e| failed("set", e));
                changed |= self.noting(change, set)?;
            }
        }
        Ok(changed)
    }

    /// Makes a change after writing it to the journal.
    fn noting(&mut self, change: Change, make: impl FnOnce() -> Result<bool, Error>) -> Result<bool, Error> {
        let known = self.changes.iter().any(|c| c.interface == change.interface && c.feature == change.feature);
        if !known {
            self.changes.push(change);
            self.write()?;
        }
        let set = make();
        if set.is_err() && !known {
            self.changes.pop();
            self.write()?;
        }
        set
    }

    /// Restores everything, last change first, and removes the file. Interfaces that are gone took their settings with
    /// them. Returns the changes that could not be restored; they stay in the file.
    pub fn restore(&mut self) -> Result<Vec<(Change, Error)>, Error> {
        self.restore_where(|_| true)
    }

    /// Like [`Journal::restore`], for one interface.
    pub fn restore_of(&mut self, interface: &str) -> Result<Vec<(Change, Error)>, Error> {
        self.restore_where(|change| change.interface == interface)
    }

    fn restore_where(&mut self, of: impl Fn(&Change) -> bool) -> Result<Vec<(Change, Error)>, Error> {
        let (wanted, others) = std::mem::take(&mut self.changes).into_iter().partition::<Vec<_>, _>(of);
        let mut failed = Vec::new();
        for change in wanted.into_iter().rev() {
            let undone = match change.was {
                Value::On(on) => Features::of(&change.interface).and_then(|f| f.set(&change.feature, on)),
                Value::Number(number) => {
                    napi::set(&change.interface, &change.feature, number).map(|()| true).map_err(|source| {
                        let action = format!("set setting `{}`", change.feature);
                        Error::Feature { interface: change.interface.clone(), action, source }
                    })
                }
            };
            match undone {
                Ok(_) => {}
                Err(Error::Feature { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => {}
                Err(e) => failed.push((change, e)),
            }
        }
        self.changes = others.into_iter().chain(failed.iter().rev().map(|(c, _)| c.clone())).collect();
        self.write()?;
        Ok(failed)
    }

    /// Replaces the file atomically: a half-written journal would be worse than none.
    fn write(&self) -> Result<(), Error> {
        let failed = |e| journal_error(&self.path, e);
        if self.changes.is_empty() {
            return match std::fs::remove_file(&self.path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed(e)),
                _ => Ok(()),
            };
        }
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        let text = serde_json::to_vec_pretty(&self.changes).map_err(|e| failed(e.into()))?;
        let new = self.path.with_extension("new");
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &self.path)).map_err(failed)
    }
}

fn journal_error(path: &Path, source: io::Error) -> Error {
    Error::Journal { path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_features() {
        let lo = Features::of("lo").unwrap();
        assert_eq!(lo.get("loopback").unwrap(), Some(true));
        assert_eq!(lo.get("no-such-feature").unwrap(), None);
        assert!(lo.set("loopback", false).unwrap_err().to_string().contains("does not let it change"));
        assert!(Features::of("nosuchif0").is_err());
    }

    #[test]
    fn a_broken_journal_is_an_error_not_a_loss() {
        let path = std::env::temp_dir().join(format!("bywash-journal-{}.json", std::process::id()));
        std::fs::write(&path, "{").unwrap();
        assert!(Journal::open(&path).unwrap_err().to_string().contains("bywash-journal"));
        std::fs::remove_file(&path).unwrap();
        assert!(Journal::open(&path).unwrap().changes().is_empty());
    }
}
