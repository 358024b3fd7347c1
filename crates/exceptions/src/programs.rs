//! BPF programs that other processes have attached: to interfaces (tcx), and to the choice of sockets (sk_lookup).
//!
//! The kernel announces neither; both are queried by the owner's functions ([`Programs`]).

use crate::effect::{Effect, IfMatch, Kind, Scope};
use bywash_fib::model::Families;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// A BPF program that another process has attached to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Program id, as shown by bpftool.
    pub id: u32,
    /// Set if the program runs on received packets (tcx ingress); otherwise it runs on sent ones (tcx egress).
    pub ingress: bool,
}

/// Queries for foreign BPF programs. Each returns an empty list if the kernel does not support such programs.
pub struct Programs {
    /// Returns those on the interface with this index; none if the interface is gone.
    pub on_interface: Box<dyn Fn(u32) -> io::Result<Vec<Foreign>> + Send>,
    /// Returns the ids of those that choose the sockets of packets to this host (sk_lookup).
    pub on_sockets: Box<dyn Fn() -> io::Result<Vec<u32>> + Send>,
}

/// The foreign programs, as last queried; `None` if the query failed.
pub struct Attached {
    query: Programs,
    /// By index of the interface.
    on_interfaces: BTreeMap<u32, Option<Vec<Foreign>>>,
    on_sockets: Option<Vec<u32>>,
}

impl Attached {
    pub fn new(query: Programs) -> Self {
        Self { query, on_interfaces: BTreeMap::new(), on_sockets: Some(vec![]) }
    }

    /// Queries the programs, those of these interfaces among them, and returns whether they have changed.
    pub fn changed(&mut self, interfaces: BTreeSet<u32>) -> bool {
        let on_interfaces =
            interfaces.into_iter().map(|index| (index, (self.query.on_interface)(index).ok())).collect();
        let on_sockets = (self.query.on_sockets)().ok();
        let before = std::mem::replace(&mut self.on_interfaces, on_interfaces);
        let sockets_before = std::mem::replace(&mut self.on_sockets, on_sockets);
        before != self.on_interfaces || sockets_before != self.on_sockets
    }

    /// Returns the effects of the programs. `name` returns an interface's name.
    pub fn effects<'a>(&self, name: impl Fn(u32) -> &'a str) -> Vec<Effect> {
        let effect =
            |scope, object, reason: &str| Effect { kind: Kind::Programs, scope, object, reason: reason.into() };
        let of = |(index, found): (&u32, &Option<Vec<Foreign>>)| -> Vec<Effect> {
            let on = vec![IfMatch::Index(*index)];
            let Some(found) = found else {
                let object = format!("BPF programs of {}", name(*index));
                return vec![effect(Scope::In(on, Families::BOTH), object, "cannot be queried")];
            };
            let one = |foreign: &Foreign| {
                let scope = if foreign.ingress { Scope::In } else { Scope::Out }(on.clone(), Families::BOTH);
                let side = if foreign.ingress { "ingress" } else { "egress" };
                let object = format!("BPF program {} on tcx {side} of {}", foreign.id, name(*index));
                effect(scope, object, "may drop, change or redirect packets")
            };
            found.iter().map(one).collect()
        };
        let own = |object, reason| effect(Scope::Own(Families::BOTH), object, reason);
        let on_sockets = match &self.on_sockets {
            Some(ids) => {
                let one = |id| own(format!("BPF program {id} of type sk_lookup"), "may drop packets to this host");
                ids.iter().map(one).collect()
            }
            None => vec![own("BPF programs of type sk_lookup".into(), "cannot be queried")],
        };
        self.on_interfaces.iter().flat_map(of).chain(on_sockets).collect()
    }
}
