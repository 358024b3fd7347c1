//! Tables of legacy iptables and ip6tables (x_tables), which nfnetlink does not show.
//!
//! Only the outline of a table is read (struct ipt_getinfo): which hooks have rules, and their policies. Rules on the
//! path of forwarded packets are assumed to match all of them; any rule is assumed to enable connection tracking. A
//! table without rules and with ACCEPT policies only, as `iptables-legacy -L` leaves one, has no effect.

mod outline;
mod sockopt;

use crate::effect::{Effect, Kind, Scope, Unknown};
use bywash_fib::model::Families;
use outline::Outline;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use sockopt::QuerySocket;
use std::io;
use std::path::Path;

/// Size of the buffer for table names, in octets. Names have at most 31 octets (XT_TABLE_MAXNAMELEN), and tables are
/// few.
const NAMES: usize = 4096;

/// Reads the tables of the calling thread's network namespace once.
pub fn read() -> Result<Vec<Effect>, Unknown> {
    let mut legacy = Legacy::open(opened);
    std::mem::replace(&mut legacy.effects, Ok(Vec::new()))
}

/// Function that opens a file for reading: the kernel lets root alone open those of table names.
pub type Open = fn(&Path) -> io::Result<OwnedFd>;

/// Opens a file as the user of this process.
pub fn opened(path: &Path) -> io::Result<OwnedFd> {
    Ok(std::fs::File::open(path)?.into())
}

/// Watches the tables of one network namespace by polling.
#[derive(Debug)]
pub struct Legacy {
    tables: [Tables; 2],
    effects: Result<Vec<Effect>, Unknown>,
}

impl Legacy {
    /// Reads the tables of the calling thread's network namespace, whose names `open` opens.
    pub fn open(open: Open) -> Self {
        let mut legacy = Self {
            tables: [sockopt::Family::Ip, sockopt::Family::Ip6].map(|family| Tables::new(family, open)),
            effects: Ok(Vec::new()),
        };
        legacy.changed();
        legacy
    }

    /// Reads the tables again and returns whether their effects or the families with a table nat have changed. Must be
    /// called from a thread in the network namespace in which it was opened.
    ///
    /// Takes three to five system calls if no table is registered, and two for each registered one. A table without
    /// rules on the path of forwarded packets is copied whole, to read its policies.
    pub fn changed(&mut self) -> bool {
        let translating = self.translating();
        let tables = self.tables.iter_mut().map(Tables::read).collect::<Result<Vec<_>, _>>();
        let effects = tables.map(|all| [all.concat(), self.bridged()].concat());
        let changed = effects != self.effects || translating != self.translating();
        self.effects = effects;
        changed
    }

    fn bridged(&mut self) -> Vec<Effect> {
        // Without a socket, nothing is known.
        let has_ebtables = self.tables[0].socket().map_or(true, QuerySocket::has_ebtables);
        bridged(has_ebtables, Path::new(MODULES))
    }

    /// Returns the families in which a table nat is hooked, as last read.
    pub fn translating(&self) -> Families {
        let nat = self.tables.iter().filter(|tables| tables.nat);
        nat.fold(Families::NONE, |all, tables| all | tables.family.families())
    }

    /// Returns the effects as last read.
    pub fn effects(&self) -> Result<&[Effect], &Unknown> {
        self.effects.as_deref()
    }
}

/// Directories of modules that are loaded.
const MODULES: &str = "/sys/module";

/// Returns the effects of ebtables-legacy, whose tables are on bridge hooks and are not read: of its modules that are
/// loaded or, if it is built into the kernel, of all its tables.
fn bridged(has_ebtables: bool, modules: &Path) -> Vec<Effect> {
    if !has_ebtables {
        return vec![];
    }
    let loaded = |name: &str| rustix::fs::stat(modules.join(name)).err() != Some(Errno::NOENT);
    let effect = |object| Effect {
        kind: Kind::IptablesLegacy,
        scope: Scope::Bridged,
        object,
        reason: "may have rules for bridged packets (ebtables-legacy)".into(),
    };
    // The tables can be built in only with what they are built on. Without sysfs, nothing is known.
    if !loaded("ebtables") {
        return vec![effect("ebtables, built into the kernel".into())];
    }
    let tables = ["ebtable_broute", "ebtable_filter", "ebtable_nat"].into_iter().filter(|name| loaded(name));
    tables.map(|name| effect(format!("module {name}"))).collect()
}

/// Tables of one family.
#[derive(Debug)]
struct Tables {
    family: sockopt::Family,
    open: Open,
    /// File of the table names. The kernel creates it with the first table of the family.
    names: Option<OwnedFd>,
    socket: Option<QuerySocket>,
    /// Set if the family has a table nat, as last read.
    nat: bool,
}

impl Tables {
    fn new(family: sockopt::Family, open: Open) -> Self {
        Self { family, open, names: None, socket: None, nat: false }
    }

    fn read(&mut self) -> Result<Vec<Effect>, Unknown> {
        let mut effects = Vec::new();
        let mut buffer = [0; NAMES];
        self.nat = false;
        for name in self.names(&mut buffer)? {
            self.nat |= name == "nat";
            let outline = match self.outline(name) {
                Ok(Some(outline)) => outline,
                Ok(None) => continue,
                Err(why) => {
                    let why = format!("{} table {name} cannot be read: {why}", self.family.tool());
                    return Err(Unknown { why });
                }
            };
            effects.extend(effects_of(self.family, name, &outline));
        }
        Ok(effects)
    }

    fn names<'a>(&mut self, buffer: &'a mut [u8; NAMES]) -> Result<impl Iterator<Item = &'a str> + use<'a>, Unknown> {
        let path = self.family.names();
        let unknown = |error: Errno| Unknown { why: format!("{path} cannot be read: {error}") };
        if self.names.is_none() {
            self.names = match (self.open)(Path::new(path)) {
                Ok(file) => Some(file),
                // Without a table of the family the file does not exist. Without its directory the state is unknown.
                Err(why) if why.kind() == io::ErrorKind::NotFound => {
                    rustix::fs::stat("/proc/thread-self/net").map(|_| None).map_err(unknown)?
                }
                Err(why) => return Err(Unknown { why: format!("{path} cannot be read: {why}") }),
            };
        }
        let mut length = 0;
        while let Some(file) = &self.names {
            match rustix::io::pread(file, &mut buffer[length..], length as u64) {
                Ok(0) => break,
                Ok(more) => length += more,
                Err(Errno::INTR) => {}
                Err(error) => {
                    // The file may have gone with its module; the next read opens it again.
                    self.names = None;
                    return Err(unknown(error));
                }
            }
        }
        if length == NAMES {
            return Err(unknown(Errno::FBIG));
        }
        let text = std::str::from_utf8(&buffer[..length]).map_err(|_| unknown(Errno::ILSEQ))?;
        Ok(text.lines())
    }

    fn socket(&mut self) -> Result<&QuerySocket, Errno> {
        if self.socket.is_none() {
            self.socket = Some(QuerySocket::open(self.family)?);
        }
        self.socket.as_ref().ok_or(Errno::BADF)
    }

    /// Reads the outline of a table; `None` if the table no longer exists.
    fn outline(&mut self, name: &str) -> Result<Option<Outline>, String> {
        let socket = self.socket().map_err(|error| error.to_string())?;
        // The kernel returns EAGAIN if the table changed between the two requests.
        for _ in 0..8 {
            let info = match socket.info(name) {
                Ok(info) => info,
                Err(Errno::NOENT) => return Ok(None),
                Err(error) => return Err(error.to_string()),
            };
            let mut outline = Outline::of(&info).ok_or("malformed ipt_getinfo")?;
            if outline.hides_policies() {
                match socket.entries(name, outline.size) {
                    Ok(entries) => outline.policies(self.family, &entries).ok_or("malformed table entries")?,
                    Err(Errno::AGAIN) => continue,
                    Err(error) => return Err(error.to_string()),
                }
            }
            return Ok(Some(outline));
        }
        Err("it changes too fast".into())
    }
}

fn effects_of(family: sockopt::Family, name: &str, outline: &Outline) -> Vec<Effect> {
    let families = family.families();
    let object = |what: &str| format!("{} table {name}{what}", family.tool());
    let effect =
        |scope, object, reason: &str| Effect { kind: Kind::IptablesLegacy, scope, object, reason: reason.into() };
    let of_chain = |(scope, chain, reason)| effect(scope, object(&format!(" chain {chain}")), reason);
    let mut effects = Vec::new();
    // Policies are read only without rules for forwarded packets; such rules leave all packets to the kernel.
    if let Some((chain, reason)) = outline.forwarded() {
        effects.push(of_chain((Scope::All(families), chain, reason)));
    } else {
        let output = |scope| outline.local().map(|reason| (scope, "OUTPUT", reason));
        let input = outline.input().map(|reason| (Scope::Own(families), "INPUT", reason));
        let own = [output(Scope::Errors(families)), output(Scope::Own(families)), input];
        effects.extend(own.into_iter().flatten().map(of_chain));
    }
    if outline.has_rules() {
        let reason = "rules, which may turn connection tracking on";
        effects.push(effect(Scope::Fragments(families), object(""), reason));
    }
    effects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ebtables_may_be_a_module_or_built_in() {
        let modules = tempfile::tempdir().unwrap();
        let found = |has| bridged(has, modules.path()).into_iter().map(|effect| effect.object).collect::<Vec<_>>();
        assert_eq!(found(false), [""; 0]);
        assert_eq!(found(true), ["ebtables, built into the kernel"]);
        std::fs::create_dir(modules.path().join("ebtables")).unwrap();
        assert_eq!(found(true), [""; 0]);
        std::fs::create_dir(modules.path().join("ebtable_nat")).unwrap();
        assert_eq!(found(true), ["module ebtable_nat"]);
        assert_eq!(bridged(true, Path::new("/nonexistent"))[0].scope, Scope::Bridged);
    }

    #[test]
    fn a_kernel_without_ebtables_says_so() {
        let socket = QuerySocket::open(sockopt::Family::Ip).unwrap();
        let config = std::process::Command::new("sh").args(["-c", "zcat /proc/config.gz"]).output().unwrap();
        let config = String::from_utf8_lossy(&config.stdout);
        if config.contains("# CONFIG_BRIDGE_NF_EBTABLES_LEGACY is not set") {
            assert!(!socket.has_ebtables());
        }
    }
}
