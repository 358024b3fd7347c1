//! BPF objects: the maps and programs that a process uses, and the only ways in which they are made.
//!
//! A process that may load any program can read the kernel's memory. So a process that gives up that privilege has
//! another make its objects ([`crate::broker`]), which makes only what [`Make`] can express: the programs of this
//! crate, and those in the user's files. All other use of the objects needs only their descriptors.

use super::abi::{DST_CACHE_CPUS, DST_CACHE4, DST_CACHE6, PORTS, SEGMENT};
use super::flows::Memory;
use super::load::{chain, loader, named, program_fd};
use super::map::Map;
use super::user_program::{data, link_first};
use super::{Error, UserProgram, inject, shared};
use aya::Ebpf;
use aya::programs::{Program, ProgramError, RawTracePoint, Xdp};
use bywash_sync::lock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::panic::resume_unwind;
use std::sync::{LazyLock, Mutex};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../xdp/bywash.bpf.o");
/// XDP program without forwarding tables.
static PLAIN: &[u8] = aya::include_bytes_aligned!("../../xdp/plain.bpf.o");
/// XDP program for a switch, with the flows of its workers.
static SWITCH: &[u8] = aya::include_bytes_aligned!("../../xdp/switch.bpf.o");

/// Names of the first segments of the tables for IPv4 and IPv6 among the objects of a router.
pub(super) const FIRST_SEGMENTS: [&str; 2] = ["fib4 0", "fib6 0"];

/// Variant of the XDP program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    Router,
    Plain,
    /// Switch with tables for this many workers.
    Switch(usize),
}

impl Kind {
    fn object(self) -> &'static [u8] {
        match self {
            Kind::Router => OBJECT,
            Kind::Plain => PLAIN,
            Kind::Switch(_) => SWITCH,
        }
    }
}

/// Programs of XDP and of traffic control that only some routers need, and that are loaded when they are first needed.
/// All but [`OnDemand::TrafficControl`] are entered by tail calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OnDemand {
    /// For ports with connections that may be forwarded.
    Flows,
    /// For VLANs.
    Vlans,
    /// For connections that may be forwarded and that enter or leave by a VLAN.
    FlowsOfVlans,
    /// For ports with policy routing rules.
    Rules,
    /// For ports on members of bridges.
    Bridges,
    /// For packets that came through tunnels; there is none of traffic control.
    Tunnels,
    /// For ports whose frames XDP does not take, unless it was loaded together with the datapath.
    TrafficControl,
}

impl OnDemand {
    pub(super) fn names(self) -> &'static [&'static str] {
        match self {
            OnDemand::Flows => &["bywash_flows", "bywash_tc_flows"],
            OnDemand::Vlans => &["bywash_vlan", "bywash_tc_vlan"],
            OnDemand::FlowsOfVlans => &["bywash_vlan_flows", "bywash_tc_vlan_flows"],
            OnDemand::Rules => &["bywash_rules", "bywash_tc_rules"],
            OnDemand::Bridges => &["bywash_bridge", "bywash_tc_bridge"],
            OnDemand::Tunnels => &["bywash_tunnels"],
            OnDemand::TrafficControl => &["bywash_tc"],
        }
    }
}

/// Objects to be made. `of` is the number of a datapath.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Make {
    /// Maps and programs of a datapath, with or without that of traffic control.
    Datapath { kind: Kind, tc: bool },
    /// Further programs of a datapath.
    OnDemand { of: u32, what: OnDemand },
    /// `bywash_first` with a program of the user's linked into it, and that program's maps.
    First { of: u32, user: UserProgram },
    /// Program of an injector, and its batch.
    Injector,
    /// Segment of a forwarding table.
    Segment,
    /// Makes nothing: the datapath is gone, and its objects are dropped.
    Forget { of: u32 },
}

/// Objects by name.
#[derive(Debug, Default)]
pub(crate) struct Made {
    /// Number of a datapath.
    pub number: u32,
    /// Reason why a datapath cannot spread frames over CPUs.
    pub no_spread: Option<String>,
    pub objects: BTreeMap<String, OwnedFd>,
}

impl Made {
    /// Takes an object out of the others.
    pub fn take(&mut self, name: &str) -> Result<OwnedFd, String> {
        self.objects.remove(name).ok_or_else(|| format!("not in the object: {name}"))
    }
}

/// Reason why objects are not made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refused {
    /// The kernel refuses a program or a map of ours.
    Ours(String),
    /// The user's program cannot be used.
    Program { file: String, reason: String },
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Ours(reason) => Error::Load { interface: String::new(), reason },
            Refused::Program { file, reason } => Error::UserProgram { file, reason },
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        match error {
            Error::UserProgram { file, reason } => Refused::Program { file, reason },
            other => Refused::Ours(other.reason()),
        }
    }
}

/// Makes objects: in the broker ([`crate::broker`]) if there is one, otherwise in this process.
pub(super) fn make(what: &Make) -> Result<Made, Refused> {
    static HERE: LazyLock<Mutex<Maker>> = LazyLock::new(Mutex::default);
    match crate::broker::make(what) {
        Some(made) => made,
        None => lock(&HERE).make(what),
    }
}

/// Maker of objects. It keeps those of datapaths, for the programs that are loaded later.
#[derive(Default)]
pub(crate) struct Maker {
    datapaths: BTreeMap<u32, (Ebpf, Kind)>,
    next: u32,
}

impl Maker {
    pub fn make(&mut self, what: &Make) -> Result<Made, Refused> {
        let gone = || Refused::Ours("there is no such datapath".into());
        match what {
            Make::Datapath { kind, tc } => self.datapath(*kind, *tc).map_err(Refused::Ours),
            Make::OnDemand { of, what } => {
                let (ebpf, _) = self.datapaths.get_mut(of).ok_or_else(gone)?;
                load_on_demand(ebpf, *what).map_err(Refused::Ours)
            }
            Make::First { of, user } => {
                let (ebpf, kind) = self.datapaths.get(of).ok_or_else(gone)?;
                link_first(ebpf, kind.object(), user)
            }
            Make::Injector => inject::load().map_err(Refused::Ours),
            Make::Segment => {
                let segment = shared::new_array(SEGMENT as u32).map_err(|e| Refused::Ours(e.to_string()))?;
                Ok(Made { objects: [("segment".to_owned(), segment)].into(), ..Made::default() })
            }
            Make::Forget { of } => {
                self.datapaths.remove(of);
                Ok(Made::default())
            }
        }
    }

    fn datapath(&mut self, kind: Kind, tc: bool) -> Result<Made, String> {
        let cpus = aya::util::nr_cpus().map_err(|(what, e)| format!("{what}: {e}"))?;
        let cached_cpus = (cpus as u32).min(DST_CACHE_CPUS);
        let mut loader = loader();
        loader
            .map_max_entries("dst_cache4", cached_cpus * DST_CACHE4)
            .map_max_entries("dst_cache6", cached_cpus * DST_CACHE6);
        loader.map_max_entries("port_pairs", cpus as u32 * PORTS * PORTS).map_max_entries("cpumap", cpus as u32);
        if let Kind::Switch(workers) = kind {
            for (map, entries) in Memory::sizes(workers, cpus) {
                loader.map_max_entries(map, entries);
            }
        }
        let mut ebpf = loader.load(kind.object()).map_err(|e| chain(&e))?;
        drop(loader);
        let tables = match kind {
            Kind::Router => ["fib4", "fib6"].map(|name| ebpf.map(name).and_then(data)).into(),
            _ => vec![],
        };
        let tables = tables.into_iter().map(|table| {
            let fd = table.ok_or("a table is not in the object")?.fd();
            Map::new(fd.as_fd().try_clone_to_owned().map_err(|e| e.to_string())?).map_err(|e| e.to_string())
        });
        let tables = tables.collect::<Result<Vec<Map>, String>>()?;
        let programs: &[&str] = if tc { &["bywash", "bywash_tc"] } else { &["bywash"] };
        let mut objects: BTreeMap<String, OwnedFd> = std::thread::scope(|scope| {
            // The kernel waits for a grace period of RCU for each, while its verifier computes.
            let begun: Vec<_> = tables.iter().map(|table| scope.spawn(|| first_segment(table))).collect();
            load_side_by_side(&mut ebpf, programs)?;
            let begun = begun.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)));
            let named = FIRST_SEGMENTS.into_iter().zip(begun);
            named.map(|(name, first)| Ok((name.to_owned(), first?))).collect::<Result<_, String>>()
        })?;
        let no_spread = match kind {
            Kind::Plain => Some("the program does not forward".into()),
            _ => load_spread(&mut ebpf).err(),
        };
        for (name, program) in ebpf.programs().filter(|(_, program)| is_loaded(program)) {
            let fd = program.fd().map_err(|e| chain(&e))?;
            objects.insert(name.to_owned(), fd.as_fd().try_clone_to_owned().map_err(|e| e.to_string())?);
        }
        for (name, map) in ebpf.maps() {
            if let Some(map) = data(map) {
                objects.insert(name.to_owned(), map.fd().as_fd().try_clone_to_owned().map_err(|e| e.to_string())?);
            }
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.datapaths.insert(number, (ebpf, kind));
        Ok(Made { number, no_spread, objects })
    }
}

fn is_loaded(program: &Program) -> bool {
    program.fd().is_ok()
}

/// Loads the program that runs on the sending CPUs, and the one that counts frames lost to full queues.
fn load_spread(ebpf: &mut Ebpf) -> Result<(), String> {
    named::<Xdp>(ebpf, "bywash_cpumap")?.load().map_err(|e| chain(&e))?;
    named::<RawTracePoint>(ebpf, "bywash_cpumap_enqueue")?.load().map_err(|e| chain(&e))
}

/// Makes the first segment of a table.
fn first_segment(table: &Map) -> Result<OwnedFd, String> {
    let made = shared::new_array(SEGMENT as u32).and_then(|segment| table.put(0, segment.as_fd()).map(|()| segment));
    made.map_err(|e| e.to_string())
}

/// Loads those programs that are not loaded, each in a thread of its own: the kernel's verifier takes tens of
/// milliseconds for each.
fn load_side_by_side(ebpf: &mut Ebpf, names: &[&str]) -> Result<(), String> {
    let load = |program: &mut Program| match program {
        Program::Xdp(xdp) => xdp.load(),
        Program::SchedClassifier(classifier) => classifier.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    };
    std::thread::scope(|scope| {
        let asked = ebpf.programs_mut().filter(|(name, program)| names.contains(name) && !is_loaded(program));
        let loading: Vec<_> = asked.map(|(_, program)| scope.spawn(move || load(program))).collect();
        let joined = loading.into_iter().map(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)));
        joined.collect::<Result<(), _>>().map_err(|e| chain(&e))
    })
}

/// Loads these programs, and returns their descriptors.
fn load_on_demand(ebpf: &mut Ebpf, what: OnDemand) -> Result<Made, String> {
    load_side_by_side(ebpf, what.names())?;
    let mut made = Made::default();
    for name in what.names() {
        let fd = program_fd(ebpf, name)?.as_fd().try_clone_to_owned().map_err(|e| e.to_string())?;
        made.objects.insert((*name).to_owned(), fd);
    }
    Ok(made)
}
