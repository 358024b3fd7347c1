//! Program of the user's own on a port, which runs before ours.
//!
//! `bywash_first` (xdp/user_program.h) is attached in place of our program to ports that have one. It calls a function
//! that is replaced by the user's program when they are linked here. If the user's program passes the frame,
//! `bywash_first` continues with our program by a tail call. Ports without such a program run none of this.

use super::attach::load_xdp;
use super::load::{chain, verdict};
use super::objects::{Made, Make, Refused, make};
use super::{Error, XdpDatapath};
use crate::broker;
use aya::maps::{Map, MapData};
use aya::{Btf, Ebpf, EbpfLoader};
use aya_obj::generated::bpf_insn;
use aya_obj::programs::XdpAttachType;
use aya_obj::{Object, ProgramSection};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;

/// Name of the program that the user's program is linked into.
const FIRST: &str = "bywash_first";

/// Program of the user's own: a BPF object file with an XDP program, as clang compiles it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserProgram {
    /// The object file.
    pub file: PathBuf,
    /// Name of the program's function, or of its section; `None` if the file has one XDP program.
    pub section: Option<String>,
}

impl UserProgram {
    /// Checks that the file has the program, as far as it can be told without the kernel.
    ///
    /// # Errors
    /// [`Error::UserProgram`] with the reason.
    pub fn check(&self) -> Result<(), Error> {
        self.read().map(drop)
    }

    /// Returns the contents of the file, the parsed object, and the name of the program's function.
    fn read(&self) -> Result<(Vec<u8>, Object, String), Error> {
        let mut contents = vec![];
        let read = broker::open(&self.file).and_then(|mut file| file.read_to_end(&mut contents));
        read.map_err(|e| self.refused(e.to_string()))?;
        let object = Object::parse(&contents).map_err(|e| {
            self.refused(format!("{}: expected an object file made by `clang -O2 -g -target bpf -c`", chain(&e)))
        })?;
        let name = self.find(&object)?;
        Ok((contents, object, name))
    }

    /// Returns the name of the program's function.
    fn find(&self, object: &Object) -> Result<String, Error> {
        let mut all: Vec<(&str, &str)> =
            object.programs.iter().map(|(name, p)| (name.as_str(), of(&p.section))).collect();
        all.sort_unstable();
        let found = match &self.section {
            Some(wanted) => {
                all.iter().filter(|(name, section)| wanted == name || wanted == section).collect::<Vec<_>>()
            }
            None => all.iter().filter(|(_, section)| section.starts_with("xdp")).collect(),
        };
        let list = all.iter().map(|(name, section)| format!("`{name}` (section `{section}`)")).collect::<Vec<_>>();
        let list = if list.is_empty() { "no programs".into() } else { list.join(", ") };
        let reason = match (found.as_slice(), &self.section) {
            ([(name, "xdp.frags")], _) => return Ok((*name).into()),
            ([(name, "xdp")], _) => format!(
                "program `{name}` is in section `xdp`: expected `SEC(\"xdp.frags\")`, for frames may come in several \
                 buffers, of which it finds the first between `data` and `data_end`"
            ),
            ([(name, section), ..], Some(_)) if !section.starts_with("xdp") => {
                format!("program `{name}` is of another type: expected `SEC(\"xdp.frags\")`")
            }
            ([], Some(wanted)) => format!("it has no program or section `{wanted}`; its programs are {list}"),
            ([], None) => format!("it has no XDP program, only {list}"),
            _ => format!("it has several such programs: name one of {list} by `program_section`"),
        };
        Err(self.refused(reason))
    }

    fn refused(&self, reason: String) -> Error {
        Error::UserProgram { file: self.file.display().to_string(), reason }
    }
}

/// Returns the name of a section with XDP programs for interfaces; "another" for other sections.
fn of(section: &ProgramSection) -> &'static str {
    match section {
        ProgramSection::Xdp { attach_type: XdpAttachType::Interface, frags: true } => "xdp.frags",
        ProgramSection::Xdp { attach_type: XdpAttachType::Interface, frags: false } => "xdp",
        _ => "another",
    }
}

/// `bywash_first` with the user's program linked into it, loaded.
pub(super) struct First {
    pub program: OwnedFd,
    /// The user's maps: an array of programs is emptied when its last descriptor is closed.
    _maps: Vec<OwnedFd>,
}

impl XdpDatapath {
    /// Loads `bywash_first` with this program in it, for port `id`.
    pub(super) fn load_first(&self, id: u16, user: &UserProgram) -> Result<First, Error> {
        let inner = self.lock();
        let mut made = make(&Make::First { of: inner.number, user: user.clone() })?;
        let program = made.take(FIRST).map_err(Refused::Ours)?;
        let in_next = |e: std::io::Error| Error::Map { interface: String::new(), map: "next", reason: e.to_string() };
        inner.next.put(id.into(), inner.xdp.as_fd()).map_err(in_next)?;
        Ok(First { program, _maps: made.objects.into_values().collect() })
    }
}

/// Maximum number of objects of a user's program, itself and its maps, which one message carries.
const MAPS: usize = 64;

/// Makes `bywash_first` of a datapath with this program in it, and the program's maps.
pub(super) fn link_first(datapath: &Ebpf, object: &[u8], user: &UserProgram) -> Result<Made, Refused> {
    let refused = |reason: String| Refused::Program { file: user.file.display().to_string(), reason };
    let (contents, mut theirs, name) = user.read()?;
    let failed = |what: &str, e: &dyn std::error::Error| refused(format!("{what}: {}", chain(e)));
    if theirs.has_btf_relocations() {
        let kernels = Btf::from_sys_fs().map_err(|e| failed("it refers to the kernel's types", &e))?;
        theirs.relocate_btf(&kernels).map_err(|e| failed("it refers to the kernel's types", &e))?;
    }
    // Makes the maps; the kernel sees the program only as a part of ours.
    let maps = EbpfLoader::new().btf(None).load(&contents).map_err(|e| failed("its maps", &e))?;
    let fd_of = |name: &str| maps.map(name).and_then(data).map(|map| map.fd().as_fd().as_raw_fd());
    let license = theirs.license.clone();
    let instructions = linked(&mut theirs, &name, fd_of).map_err(refused)?;

    let error = Refused::Ours;
    let mut ours = Object::parse(object).map_err(|e| error(chain(&e)))?;
    let first = ours.programs.get(FIRST).map(|program| program.function_key());
    let stub = first.and_then(|at| ours.functions.get(&at)).map(|function| function.instructions.len());
    // The maps that `bywash_first` uses; the others belong to other programs in the object.
    let fd_of = |name: &str| match name {
        "ports" | "counters" | "next" => datapath.map(name).and_then(data).map(|map| map.fd().as_fd().as_raw_fd()),
        _ => Some(0),
    };
    let mut all = linked(&mut ours, FIRST, fd_of).map_err(error)?;
    // Relocation put the stub after the function that calls it.
    all.truncate(stub.unwrap_or_default());
    all.extend(instructions);
    let program = load_xdp(&all, &license, c"bywash_first").map_err(|(e, log)| {
        let log = log.split("\nprocessed ").next().unwrap_or_default().trim_end().replace('\n', " ");
        refused(match log.as_str() {
            "" => format!("the kernel refuses it: {e}"),
            log => verdict(format!("the kernel refuses it: {e}. Verifier output: {log}")),
        })
    })?;
    let mut objects = BTreeMap::from([(FIRST.to_owned(), program)]);
    for (n, map) in maps.maps().filter_map(|(_, map)| data(map)).enumerate() {
        let copy = map.fd().as_fd().try_clone_to_owned().map_err(|e| failed("its maps", &e))?;
        objects.insert(format!("map {n}"), copy);
    }
    if objects.len() > MAPS {
        return Err(refused(format!("it has more than {} maps", MAPS - 1)));
    }
    Ok(Made { objects, ..Made::default() })
}

/// Returns the instructions of a program, followed by those of the functions that it calls. `fd_of` returns the
/// descriptor of a map.
fn linked(object: &mut Object, program: &str, fd_of: impl Fn(&str) -> Option<RawFd>) -> Result<Vec<bpf_insn>, String> {
    let maps = object.maps.clone();
    let all = maps.iter().map(|(name, map)| Some((name.as_str(), fd_of(name)?, map))).collect::<Option<Vec<_>>>();
    let all = all.ok_or("it has a map of a type that XDP programs do not use")?;
    let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    object.relocate_maps(all.into_iter(), &sections).map_err(|e| chain(&e))?;
    object.relocate_calls(&sections).map_err(|e| chain(&e))?;
    let program = object.programs.get(program).ok_or_else(|| format!("the object has no program `{program}`"))?;
    let function = object.functions.get(&program.function_key()).ok_or("the program has no function")?;
    Ok(function.instructions.clone())
}

/// Returns the data of a map; `None` if it is of a type that XDP programs cannot use.
pub(super) fn data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::ArrayOfMaps(data)
        | Map::BloomFilter(data)
        | Map::CpuMap(data)
        | Map::DevMap(data)
        | Map::DevMapHash(data)
        | Map::HashMap(data)
        | Map::HashOfMaps(data)
        | Map::LpmTrie(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::PerCpuHashMap(data)
        | Map::PerCpuLruHashMap(data)
        | Map::PerfEventArray(data)
        | Map::ProgramArray(data)
        | Map::Queue(data)
        | Map::RingBuf(data)
        | Map::Stack(data)
        | Map::XskMap(data) => Some(data),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the name found in one of our own objects, or the reason for which none was.
    fn found(object: &str, section: Option<&str>) -> Result<String, String> {
        let file = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/xdp")).join(object);
        let user = UserProgram { file, section: section.map(str::to_owned) };
        user.read().map(|(_, _, name)| name).map_err(|e| e.to_string())
    }

    #[test]
    fn programs_are_found_by_function_or_section() {
        assert_eq!(found("bywash.bpf.o", Some("bywash")).unwrap(), "bywash");
        for (object, section, reason) in [
            ("bywash.bpf.o", None, "it has several such programs: name one of `bywash` (section `xdp.frags`), "),
            ("bywash.bpf.o", Some("xdp.frags"), "it has several such programs"),
            ("bywash.bpf.o", Some("bywash_tc"), "program `bywash_tc` is of another type"),
            ("bywash.bpf.o", Some("nothing"), "it has no program or section `nothing`"),
            ("gen.bpf.o", None, "expected `SEC(\"xdp.frags\")`"),
            ("inject.bpf.o", None, "it has no XDP program"),
            ("nothing.bpf.o", None, "No such file"),
            ("bywash.h", None, "expected an object file"),
        ] {
            let error = found(object, section).unwrap_err();
            assert!(error.contains(reason) && error.contains(object), "{error}");
        }
    }
}
