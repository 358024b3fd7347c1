//! Reads the ruleset from the kernel.

use super::parse::{self, NFGENMSG, Of};
use super::{Chain, Element, Family, FlowTable, Rule, Ruleset, Set, Table};
use crate::effect::Unknown;
use bywash_nl::Error;
use bywash_nl::socket::{DATAGRAM, Dumped, Socket};
use bywash_nl::wire::{Attributes, Message, u32_at};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

const NFNL_SUBSYS_NFTABLES: u16 = 10 << 8;
const NFT_MSG_GETTABLE: u16 = NFNL_SUBSYS_NFTABLES | 1;
const NFT_MSG_GETCHAIN: u16 = NFNL_SUBSYS_NFTABLES | 4;
const NFT_MSG_GETRULE: u16 = NFNL_SUBSYS_NFTABLES | 7;
const NFT_MSG_GETSET: u16 = NFNL_SUBSYS_NFTABLES | 10;
const NFT_MSG_GETSETELEM: u16 = NFNL_SUBSYS_NFTABLES | 13;
const NFT_MSG_GETGEN: u16 = NFNL_SUBSYS_NFTABLES | 16;
const NFT_MSG_GETOBJ: u16 = NFNL_SUBSYS_NFTABLES | 19;
const NFT_MSG_GETFLOWTABLE: u16 = NFNL_SUBSYS_NFTABLES | 23;
/// An answer to a request for objects of a kind (NFT_MSG_GET*) is NFT_MSG_NEW*, one less.
const NEW: u16 = 1;
const NFTA_GEN_ID: u16 = 1;
const NFTA_SET_ELEM_LIST_TABLE: u16 = 1;
const NFTA_SET_ELEM_LIST_SET: u16 = 2;
/// struct nfgenmsg for any family, version NFNETLINK_V0.
const ANY: [u8; NFGENMSG] = [0; NFGENMSG];

/// Maximum number of elements of a set that are read: more would take too much memory.
const ELEMENTS: usize = 1 << 20;
/// Attempts at reading the ruleset before giving up because changes interrupt it.
const TRIES: usize = 8;

/// Reads the ruleset of the calling thread's network namespace once, without the elements of sets.
pub fn read() -> Result<Ruleset, Unknown> {
    Reader::open()?.read()
}

/// Reads the ruleset of the calling thread's network namespace once, with the elements of sets.
pub fn read_whole() -> Result<Ruleset, Unknown> {
    Reader::open()?.read_whole()
}

/// Reads the ruleset of the network namespace of the thread that opened it. Holds one socket.
///
/// Like `nft list ruleset`, a request may make the kernel load its nf_tables module.
#[derive(Debug)]
pub struct Reader {
    /// `None` if the kernel has no nfnetlink.
    socket: Option<Socket>,
    buffer: Vec<u8>,
}

/// Reason why an attempt to read the ruleset failed.
enum Failed {
    Changed,
    Unknown(Unknown),
}

impl Reader {
    /// Opens a reader in the calling thread's network namespace.
    pub fn open() -> Result<Self, Unknown> {
        let socket = match Socket::open_protocol(Some(rustix::net::netlink::NETFILTER), &[], 1 << 20) {
            Ok(socket) => Some(socket),
            Err(error) if errno(&error) == Some(Errno::PROTONOSUPPORT) => None,
            Err(error) => return Err(unknown(error)),
        };
        Ok(Self { socket, buffer: vec![0; DATAGRAM] })
    }

    /// Reads all tables, without the elements of sets. The ruleset is empty if the kernel has no nf_tables.
    pub fn read(&mut self) -> Result<Ruleset, Unknown> {
        self.attempts(false)
    }

    /// Reads all tables, with the elements of sets.
    pub fn read_whole(&mut self) -> Result<Ruleset, Unknown> {
        self.attempts(true)
    }

    fn attempts(&mut self, elements: bool) -> Result<Ruleset, Unknown> {
        for _ in 0..TRIES {
            let Some(before) = self.generation()? else { return Ok(Ruleset::default()) };
            match self.attempt(elements) {
                Ok(ruleset) if self.generation()? == Some(before) => {
                    return Ok(Ruleset { generation: before, ..ruleset });
                }
                Ok(_) | Err(Failed::Changed) => {}
                Err(Failed::Unknown(unknown)) => return Err(unknown),
            }
        }
        Err(Unknown { why: "the nf_tables ruleset changes too fast to be read".into() })
    }

    /// Returns the generation id of the ruleset, which every change by netlink changes; `None` if the kernel has no
    /// nf_tables. Adding, removing or renaming an interface changes the devices of chains but not the generation id.
    pub fn generation(&mut self) -> Result<Option<u32>, Unknown> {
        let Some(socket) = &mut self.socket else { return Ok(None) };
        let mut generation = None;
        let answer = socket.ask(NFT_MSG_GETGEN, &ANY, &mut self.buffer, |message| {
            let mut attributes = Attributes::after(message.body, NFGENMSG);
            let id = attributes.find(|(attribute, _)| *attribute == NFTA_GEN_ID);
            generation = id.and_then(|(_, id)| u32_at(id, 0)).map(u32::from_be);
        });
        match answer {
            Ok(()) if generation.is_some() => Ok(generation),
            Ok(()) => Err(Unknown { why: "nf_tables reported no generation id".into() }),
            // nfnetlink does not know the subsystem (nfnetlink_rcv_msg returns EINVAL).
            Err(error) if matches!(errno(&error), Some(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOENT)) => Ok(None),
            Err(error) => Err(unknown(error)),
        }
    }

    fn attempt(&mut self, elements: bool) -> Result<Ruleset, Failed> {
        let mut gathered = Gathered::default();
        for (table, known) in self.dump(NFT_MSG_GETTABLE, &ANY, &[], parse::table)? {
            gathered.table(table, known)?;
        }
        for chain in self.dump(NFT_MSG_GETCHAIN, &ANY, &[], parse::chain)? {
            gathered.chain(chain)?;
        }
        for rule in self.dump(NFT_MSG_GETRULE, &ANY, &[], parse::rule)? {
            gathered.rule(rule)?;
        }
        for object in self.dump(NFT_MSG_GETOBJ, &ANY, &[], parse::object)? {
            gathered.object(object)?;
        }
        for flow_table in self.dump(NFT_MSG_GETFLOWTABLE, &ANY, &[], parse::flow_table)? {
            gathered.flow_table(flow_table)?;
        }
        for set in self.dump(NFT_MSG_GETSET, &ANY, &[], parse::set)? {
            let table = gathered.set(set)?;
            let Some(mut set) = table.sets.pop_if(|_| elements) else { continue };
            match self.elements(table, &set.name)? {
                Some(elements) => set.fill(elements),
                None => set.opaque = Some("more elements than are read".into()),
            }
            table.sets.push(set);
        }
        Ok(gathered.ruleset)
    }

    /// Reads the elements of a set; `None` if there are more than [`ELEMENTS`].
    fn elements(&mut self, table: &Table, set: &str) -> Result<Option<Vec<Element>>, Failed> {
        let body = [table.family.number(), 0, 0, 0];
        let (name, set) = (format!("{}\0", table.name), format!("{set}\0"));
        let which = [(NFTA_SET_ELEM_LIST_TABLE, name.as_bytes()), (NFTA_SET_ELEM_LIST_SET, set.as_bytes())];
        let read = Cell::new(0);
        let part = |body: &[u8]| {
            let mut part = parse::elements(body)?;
            read.set(read.get() + part.object.1.len());
            if read.get() > ELEMENTS {
                part.object.1.clear();
            }
            Some(part)
        };
        let parts = self.dump(NFT_MSG_GETSETELEM, &body, &which, part)?;
        if read.get() > ELEMENTS {
            return Ok(None);
        }
        Ok(Some(parts.into_iter().flat_map(|part| part.object.1).collect()))
    }

    fn dump<T>(
        &mut self,
        question: u16,
        body: &[u8],
        which: &[(u16, &[u8])],
        parse: impl Fn(&[u8]) -> Option<T>,
    ) -> Result<Vec<T>, Failed> {
        let mut all = Vec::new();
        let mut understood = true;
        let socket = self.socket.as_mut().ok_or(Failed::Changed)?;
        let each = |message: &Message<'_>| match parse(message.body) {
            Some(object) if message.kind == question - NEW => all.push(object),
            _ => understood = false,
        };
        match socket.dump(question, body, which, &mut self.buffer, each, || Ok(())) {
            Ok(Dumped::Whole) if understood => Ok(all),
            Ok(Dumped::Whole) => Err(not("malformed answer from nf_tables")),
            Ok(Dumped::Interrupted) => Err(Failed::Changed),
            // Linux has objects since 4.10, and flow tables since 4.16.
            Ok(Dumped::Unsupported) if [NFT_MSG_GETOBJ, NFT_MSG_GETFLOWTABLE].contains(&question) => Ok(Vec::new()),
            Ok(Dumped::Unsupported) => Err(not("nf_tables cannot be read")),
            // A set that is gone since the sets were read.
            Err(error) if question == NFT_MSG_GETSETELEM && errno(&error) == Some(Errno::NOENT) => Err(Failed::Changed),
            Err(error) => Err(Failed::Unknown(unknown(error))),
        }
    }
}

/// A ruleset under construction, with the positions of its tables and chains.
#[derive(Default)]
struct Gathered {
    ruleset: Ruleset,
    tables: HashMap<(Family, String), (usize, bool)>,
    chains: HashMap<(usize, String), usize>,
}

impl Gathered {
    // Names are unique: a table that is listed twice was removed and added while the kernel listed them.
    fn table(&mut self, table: Table, known: bool) -> Result<(), Failed> {
        let Entry::Vacant(free) = self.tables.entry((table.family, table.name.clone())) else {
            return Err(Failed::Changed);
        };
        free.insert((self.ruleset.tables.len(), known));
        self.ruleset.tables.push(table);
        Ok(())
    }

    fn find<T>(&self, of: &Of<T>) -> Result<usize, Failed> {
        let at = self.tables.get(&(of.family, of.table.clone()));
        at.map(|(at, _)| *at).ok_or(Failed::Changed)
    }

    fn chain(&mut self, chain: Of<Chain>) -> Result<(), Failed> {
        let at = self.find(&chain)?;
        let mut chain = chain.object;
        let table = &mut self.ruleset.tables[at];
        if !self.tables[&(table.family, table.name.clone())].1 {
            chain.opaque.get_or_insert("unknown attribute of its table".into());
        }
        let Entry::Vacant(free) = self.chains.entry((at, chain.name.clone())) else { return Err(Failed::Changed) };
        free.insert(table.chains.len());
        table.chains.push(chain);
        Ok(())
    }

    fn rule(&mut self, rule: Of<(String, Rule)>) -> Result<(), Failed> {
        let at = self.find(&rule)?;
        let (chain, rule) = rule.object;
        let chain = *self.chains.get(&(at, chain)).ok_or(Failed::Changed)?;
        self.ruleset.tables[at].chains[chain].rules.push(rule);
        Ok(())
    }

    fn object(&mut self, object: Of<Option<String>>) -> Result<(), Failed> {
        let at = self.find(&object)?;
        self.ruleset.tables[at].tracking.extend(object.object);
        Ok(())
    }

    fn flow_table(&mut self, flow_table: Of<FlowTable>) -> Result<(), Failed> {
        let at = self.find(&flow_table)?;
        self.ruleset.tables[at].flow_tables.push(flow_table.object);
        Ok(())
    }

    /// Adds a set without elements; returns its table, of which it is the last set.
    fn set(&mut self, set: Of<(Set, bool)>) -> Result<&mut Table, Failed> {
        let at = self.find(&set)?;
        let (set, tracks) = set.object;
        let table = &mut self.ruleset.tables[at];
        if table.sets.iter().any(|other| other.name == set.name) {
            return Err(Failed::Changed);
        }
        if tracks {
            table.tracking.push(format!("set {}", set.name));
        }
        table.sets.push(set);
        Ok(table)
    }
}

/// Returns the ruleset that messages of a dump describe, whatever their order. Those that cannot be read, or belong to
/// nothing that came before, are left out.
#[cfg(any(test, fuzzing))]
pub fn gather<'a>(messages: impl Iterator<Item = Message<'a>>) -> Ruleset {
    let mut gathered = Gathered::default();
    for message in messages {
        let body = message.body;
        let _ = match message.kind.wrapping_add(NEW) {
            NFT_MSG_GETTABLE => parse::table(body).map(|(table, known)| gathered.table(table, known)),
            NFT_MSG_GETCHAIN => parse::chain(body).map(|chain| gathered.chain(chain)),
            NFT_MSG_GETRULE => parse::rule(body).map(|rule| gathered.rule(rule)),
            NFT_MSG_GETOBJ => parse::object(body).map(|object| gathered.object(object)),
            NFT_MSG_GETFLOWTABLE => parse::flow_table(body).map(|flow_table| gathered.flow_table(flow_table)),
            NFT_MSG_GETSET => parse::set(body).map(|set| gathered.set(set).map(drop)),
            NFT_MSG_GETSETELEM => parse::elements(body).map(|elements| gathered.elements(elements)),
            _ => None,
        };
    }
    gathered.ruleset
}

#[cfg(any(test, fuzzing))]
impl Gathered {
    fn elements(&mut self, part: Of<(String, Vec<Element>)>) -> Result<(), Failed> {
        let at = self.find(&part)?;
        let (name, elements) = part.object;
        let set = self.ruleset.tables[at].sets.iter_mut().find(|set| set.name == name).ok_or(Failed::Changed)?;
        let mut all = set.elements.take().unwrap_or_default();
        all.extend(elements);
        set.fill(all);
        Ok(())
    }
}

fn not(why: &str) -> Failed {
    Failed::Unknown(Unknown { why: why.to_owned() })
}

fn errno(error: &Error) -> Option<Errno> {
    match error {
        Error::Socket { source, .. } => Errno::from_io_error(source),
        _ => None,
    }
}

fn unknown(error: Error) -> Unknown {
    let why = match &error {
        Error::Socket { source, .. } => format!("nf_tables cannot be read: {error}: {source}"),
        _ => format!("nf_tables cannot be read: {error}"),
    };
    Unknown { why }
}
