//! Journal of changed interface settings, to restore them.
//!
//! A setting is written to the journal before it is changed, so that after a kill the next start, or `bywash restore`,
//! finds the old value. `bywash restore` runs as root and outside the sandbox, so that a journal is trusted only as far
//! as it must be: [`allowed`] lists the settings that it may name, [`file`] who may have written it. In a process that
//! has a [broker], the broker changes the settings and writes the journal.
//!
//! Interfaces are recorded by index, too: one that was renamed gets its settings back, and another one that has its
//! name now keeps its own.

mod allowed;
mod file;

use super::{Error, Features, napi};
use crate::broker;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

pub use allowed::is_interface_name;
pub use file::JournalFile;

/// Empty polls before interrupts are enabled again; meanwhile the flush timer polls.
const DEFERRED: u64 = 2;
/// Time after which the kernel polls a driver whose interrupts are off and which nobody else polls.
const FLUSH_AFTER: Duration = Duration::from_micros(200);

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
    /// Interface index; 0 if it is not known, in a journal of an earlier version.
    #[serde(default)]
    pub index: u32,
}

impl Change {
    fn new(interface: &str, feature: &str, was: Value) -> Self {
        let index = index_socket().and_then(|socket| Ok(netdevice::name_to_index(socket, interface)?));
        Self { interface: interface.into(), feature: feature.into(), was, index: index.unwrap_or(0) }
    }

    /// Returns whether this is a change of the same setting.
    fn is_of(&self, other: &Self) -> bool {
        let known = self.index != 0 && other.index != 0;
        let same = if known { self.index == other.index } else { self.interface == other.interface };
        same && self.feature == other.feature
    }

    /// Returns the interface's present name; `None` if it has gone.
    fn present_name(&self) -> io::Result<Option<String>> {
        if self.index == 0 {
            return Ok(Some(self.interface.clone()));
        }
        match netdevice::index_to_name(index_socket()?, self.index) {
            Err(Errno::NODEV) => Ok(None),
            name => Ok(Some(name?)),
        }
    }
}

/// Returns a socket to ask the kernel for names and indices of interfaces.
fn index_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// Act of a journal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Act {
    /// Turns a feature on or off.
    Set { interface: String, feature: String, on: bool },
    /// Prepares busy polling.
    BusyPoll { interface: String },
    /// Restores the settings of an interface, or all.
    Restore { interface: Option<String> },
}

/// Result of an [`Act`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Done {
    /// Settings were set; true if any had another value.
    Changed(bool),
    /// Changes that could not be restored, and why.
    Left(Vec<(Change, String)>),
}

/// File of the changes that must be restored.
///
/// # Thread-safety
/// One owner. Two processes must not use the same file: name it after the running instance.
#[derive(Debug)]
pub struct Journal {
    file: JournalFile,
    changes: Vec<Change>,
}

impl Journal {
    /// Opens the journal at `path`, with the changes an earlier process left there. Its directory is created when the
    /// first change is written. The journal of a process with a broker is the broker's, whatever its path.
    ///
    /// # Errors
    /// [`Error::JournalRefused`] if others could have written it, or if it names anything that Bywash does not change;
    /// [`Error::JournalDirectory`] if others could have written any in its directory.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let file = JournalFile::new(path);
        let changes = if broker::present() { vec![] } else { file.read(allowed::check)? };
        Ok(Self { file, changes })
    }

    /// Returns the changes in the text of a journal. Errors with the reason if it is refused.
    pub fn parse(text: &[u8]) -> Result<Vec<Change>, String> {
        file::parse(text, allowed::check)
    }

    /// Returns the changes to restore, as far as this process made them; after [`Journal::restore`], those that could
    /// not be restored.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Sets a feature after recording its old value. Does nothing if it already has that value. Returns whether it
    /// changed. Errors if a journal may not name the feature.
    pub fn set(&mut self, features: &Features, name: &str, on: bool) -> Result<bool, Error> {
        let (interface, feature) = (features.interface().to_owned(), name.to_owned());
        self.changed(&Act::Set { interface, feature, on }, features.interface(), &format!("set feature `{name}`"))
    }

    /// Keeps the interface's interrupts off while its driver is busy polled; they come back soon after
    /// polling stops. Returns whether that changed anything. Needs Linux 5.11.
    pub fn busy_poll(&mut self, interface: &str) -> Result<bool, Error> {
        self.changed(&Act::BusyPoll { interface: interface.into() }, interface, "prepare busy polling")
    }

    /// Restores everything, last change first, and removes the file. Interfaces that are gone took their settings with
    /// them; those that were renamed are found. Returns the changes that could not be restored; they stay in the file.
    pub fn restore(&mut self) -> Result<Vec<(Change, String)>, Error> {
        self.restored(Act::Restore { interface: None })
    }

    /// Like [`Journal::restore`], for one interface.
    pub fn restore_of(&mut self, interface: &str) -> Result<Vec<(Change, String)>, Error> {
        self.restored(Act::Restore { interface: Some(interface.into()) })
    }

    fn changed(&mut self, act: &Act, interface: &str, action: &str) -> Result<bool, Error> {
        let done = match broker::change(act) {
            Some(done) => {
                done.map_err(|source| Error::Feature { interface: interface.into(), action: action.into(), source })?
            }
            None => self.act(act)?,
        };
        Ok(matches!(done, Done::Changed(true)))
    }

    fn restored(&mut self, act: Act) -> Result<Vec<(Change, String)>, Error> {
        let done = match broker::change(&act) {
            Some(done) => done.map_err(|source| self.file.failed(source))?,
            None => return self.act(&act).map(Done::left),
        };
        let left = done.left();
        self.changes = left.iter().map(|(change, _)| change.clone()).collect();
        Ok(left)
    }

    /// Acts in this process.
    pub(crate) fn act(&mut self, act: &Act) -> Result<Done, Error> {
        Ok(match act {
            Act::Set { interface, feature, on } => Done::Changed(self.feature(interface, feature, *on)?),
            Act::BusyPoll { interface } => Done::Changed(self.defer_interrupts(interface)?),
            Act::Restore { interface: None } => Done::Left(self.restore_where(|_| true)?),
            Act::Restore { interface: Some(one) } => Done::Left(self.restore_where(|change| change.interface == *one)?),
        })
    }

    fn feature(&mut self, interface: &str, name: &str, on: bool) -> Result<bool, Error> {
        let features = Features::of(interface)?;
        if features.get(name)? == Some(on) {
            return Ok(false);
        }
        let change = Change::new(interface, name, Value::On(!on));
        self.noting(change, || features.set(name, on))
    }

    fn defer_interrupts(&mut self, interface: &str) -> Result<bool, Error> {
        let mut changed = false;
        for (name, value) in [(napi::DEFER, DEFERRED), (napi::FLUSH, FLUSH_AFTER.as_nanos() as u64)] {
            let failed = |verb: &str, source| failed_to(verb, interface, name, source);
            let was = napi::get(interface, name).map_err(|e| failed("read", e))?;
            if was != value {
                let change = Change::new(interface, name, Value::Number(was));
                let set = || napi::set(interface, name, value).map(|()| true).map_err(|e| failed("set", e));
                changed |= self.noting(change, set)?;
            }
        }
        Ok(changed)
    }

    /// Makes a change after writing it to the journal.
    fn noting(&mut self, change: Change, make: impl FnOnce() -> Result<bool, Error>) -> Result<bool, Error> {
        allowed::check(&change).map_err(|why| Error::Feature {
            interface: change.interface.clone(),
            action: format!("record `{}`", change.feature),
            source: io::Error::other(why),
        })?;
        let known = self.changes.iter().any(|c| c.is_of(&change));
        if !known {
            // An earlier interface of this name may have taken its settings with it.
            self.changes.retain(|c| c.interface != change.interface || !matches!(c.present_name(), Ok(None)));
            self.changes.push(change);
            if let Err(why) = self.file.write(&self.changes) {
                self.changes.pop();
                return Err(why);
            }
        }
        let set = make();
        if set.is_err() && !known {
            self.changes.pop();
            self.file.write(&self.changes)?;
        }
        set
    }

    fn restore_where(&mut self, of: impl Fn(&Change) -> bool) -> Result<Vec<(Change, String)>, Error> {
        let (wanted, others) = std::mem::take(&mut self.changes).into_iter().partition::<Vec<_>, _>(of);
        let mut failed = Vec::new();
        for change in wanted.into_iter().rev() {
            let undone = match change.present_name() {
                Ok(None) => Ok(()),
                Ok(Some(interface)) => set(&interface, &change),
                Err(source) => Err(failed_to("find", &change.interface, &change.feature, source)),
            };
            match undone {
                Ok(()) => {}
                Err(Error::Feature { source, .. }) if source.raw_os_error() == Some(libc::ENODEV) => {}
                Err(e) => failed.push((change, e.to_string())),
            }
        }
        self.changes = others.into_iter().chain(failed.iter().rev().map(|(c, _)| c.clone())).collect();
        self.file.write(&self.changes)?;
        Ok(failed)
    }
}

/// Gives an interface's setting the value that it had before the change.
fn set(interface: &str, change: &Change) -> Result<(), Error> {
    let name = &change.feature;
    match change.was {
        Value::On(on) => Features::of(interface)?.set(name, on).map(drop),
        Value::Number(was) => napi::set(interface, name, was).map_err(|e| failed_to("set", interface, name, e)),
    }
}

fn failed_to(verb: &str, interface: &str, name: &str, source: io::Error) -> Error {
    Error::Feature { interface: interface.into(), action: format!("{verb} setting `{name}`"), source }
}

impl Done {
    fn left(self) -> Vec<(Change, String)> {
        match self {
            Self::Left(changes) => changes,
            Self::Changed(_) => vec![],
        }
    }
}
