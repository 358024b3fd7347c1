//! The ports of the running instance, by number: at the start the order in the file, which reloads may change.

use crate::diff::Step;
use crate::liveness::Life;
use crate::ports::{Opened, Xdp};
use bywash_config::{Level, PortConfig, PortKind};
use bywash_port::af_xdp::XdpCounters;
use bywash_port::{PortCounters, TxQueueStats};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Ports by number; free numbers are absent.
pub type Ports = BTreeMap<usize, PortSlot>;

/// State on which opening a port may depend beside its configuration: the interface's index, whether it is up, and its
/// number of queues. Opening is retried only when this changes. Retrying at every message could go on forever: some
/// drivers reset a NIC, and report it, when a program is attached.
pub type Tried = (u32, bool, u32);

/// Run-time state of a port.
pub struct PortSlot {
    /// Configuration with which it was opened.
    pub config: PortConfig,
    /// Level requested since the configuration set one. It applies to an interface that has come back, too.
    pub level: Option<Level>,
    /// XDP program; `None` if the port has none, or its interface is gone.
    pub xdp: Option<Xdp>,
    /// Counters that the program had when the interface went; they go on with the next one.
    last: Option<XdpCounters>,
    /// Counters of every end, and of those before its interface was recreated.
    pub counters: Vec<Arc<PortCounters>>,
    /// Queues, each with the worker that polls it.
    pub queues: Vec<(u32, usize)>,
    /// Statistics of its TX queues, by worker.
    pub tx: Vec<Arc<TxQueueStats>>,
    /// State of the interface when the last attempt to open it failed; `None` if it is open.
    pub tried: Option<Tried>,
    /// State of its link when last logged: true if it was up; `None` before it is known.
    pub link_up: Option<bool>,
    /// Observations of the port while it is zero-copy.
    pub life: Life,
    /// Reason, as last logged, for which it should be left to the kernel, if it has no XDP program that could.
    pub unheeded: Option<String>,
}

impl PortSlot {
    /// Creates the state of a port that is about to be given to the workers of `queues`. Moves the program out of
    /// `opened`.
    pub fn new(opened: &mut Opened, queues: Vec<(u32, usize)>) -> Self {
        Self {
            config: opened.config.clone(),
            level: None,
            xdp: opened.xdp.take(),
            last: None,
            counters: opened.counters().collect(),
            queues,
            tx: vec![],
            tried: None,
            link_up: None,
            life: Life::default(),
            unheeded: None,
        }
    }

    /// Returns the level asked for: that of the last request, or else the configured one. `None` if the port's kind
    /// has no levels.
    pub fn asked(&self) -> Option<Level> {
        self.level.or(self.config.af_xdp.as_ref().map(|af_xdp| af_xdp.level))
    }

    /// Requests a level. A port whose interface is gone gets it when the interface is back. On error the level asked
    /// for stays unchanged.
    pub fn set_level(&mut self, level: Level) -> anyhow::Result<()> {
        self.xdp.as_mut().map_or(Ok(()), |xdp| xdp.set_level(level))?;
        self.level = Some(level);
        Ok(())
    }

    /// Configures a level, which applies unless another one is `requested`. On error nothing changes.
    pub fn configure_level(&mut self, level: Level, requested: Option<Level>) -> anyhow::Result<()> {
        self.set_level(requested.unwrap_or(level))?;
        self.level = requested;
        self.config.af_xdp.iter_mut().for_each(|af_xdp| af_xdp.level = level);
        Ok(())
    }

    /// Returns whether the port waits for its interface.
    pub fn is_gone(&self) -> bool {
        self.config.kind == PortKind::AfXdp && self.xdp.is_none()
    }

    /// Takes the XDP program, whose counters remain.
    pub fn take_xdp(&mut self) -> Option<Xdp> {
        let xdp = self.xdp.take()?;
        self.last = xdp.program.counters().ok();
        Some(xdp)
    }

    /// Adds the counters of new ends. Those of ends that are closed, whose only owner is the slot, become one.
    pub fn add_counters(&mut self, new: impl IntoIterator<Item = Arc<PortCounters>>) {
        let closed = Arc::new(PortCounters::default());
        let is_closed = |end: &mut Arc<PortCounters>| Arc::strong_count(end) == 1;
        self.counters.extract_if(.., is_closed).for_each(|end| closed.add(&end));
        self.counters.push(closed);
        self.counters.extend(new);
    }

    /// Returns the counters of the XDP program, or those that it had when the interface went; `None` if the port never
    /// had one, or they cannot be read.
    pub fn verdicts(&self) -> Option<XdpCounters> {
        self.xdp.as_ref().map_or(self.last, |xdp| xdp.program.counters().ok())
    }

    /// Returns the level requested for a port that is to be opened again with another configuration; `None` if this
    /// sets the level anew.
    pub fn requested_for(&self, config: &PortConfig) -> Option<Level> {
        let configured = |port: &PortConfig| port.af_xdp.as_ref().map(|af_xdp| af_xdp.level);
        self.level.filter(|_| configured(&self.config) == configured(config))
    }

    /// Returns the queues that a worker polls.
    pub fn polled_by(&self, worker: usize) -> impl Iterator<Item = u32> {
        self.queues.iter().filter(move |(_, by)| *by == worker).map(|(queue, _)| *queue)
    }
}

/// Returns the number of the port with this name.
pub fn number(ports: &Ports, name: &str) -> Option<usize> {
    ports.iter().find(|(_, slot)| slot.config.name == name).map(|(at, _)| *at)
}

/// Port that a reload opens.
pub struct Opening<'a> {
    /// Number that it gets.
    pub at: usize,
    pub port: &'a PortConfig,
    /// Level requested for it, if it is opened again.
    pub level: Option<Level>,
    /// Number of the other port that has its interface until then.
    pub held_by: Option<usize>,
}

/// Returns the ports that `steps` open. A port that is opened again keeps its number. A new one gets the lowest free
/// number; one on the interface of a port that is removed may get the number of that port.
pub fn openings<'a>(ports: &Ports, steps: &'a [Step]) -> Vec<Opening<'a>> {
    let held_by = |port: &PortConfig| {
        let has_it = |slot: &PortSlot| slot.config.interface == port.interface && slot.config.name != port.name;
        port.interface.as_ref().and_then(|_| ports.iter().find(|(_, slot)| has_it(slot))).map(|(at, _)| *at)
    };
    let reopened = steps.iter().filter_map(|step| match step {
        Step::Reopen(port, _) => {
            let at = number(ports, &port.name)?;
            Some(Opening { at, port, level: ports[&at].requested_for(port), held_by: held_by(port) })
        }
        _ => None,
    });
    let added = steps.iter().filter_map(|step| if let Step::Add(port) = step { Some(port) } else { None });
    let mut added: Vec<_> = added.map(|port| (port, held_by(port))).collect();
    added.sort_by_key(|(_, held_by)| held_by.is_some());
    let is_removed = |at: &usize| {
        let name = &ports[at].config.name;
        steps.iter().any(|step| matches!(step, Step::Remove(removed) if removed == name))
    };
    let mut taken: BTreeSet<usize> = ports.keys().copied().collect();
    let added = added.into_iter().map(|(port, held_by)| {
        if let Some(at) = held_by.filter(is_removed) {
            taken.remove(&at);
        }
        let at = (0..).find(|at| !taken.contains(at)).unwrap_or_default();
        taken.insert(at);
        Opening { at, port, level: None, held_by }
    });
    reopened.chain(added).collect()
}

/// Reason for which all tunnels are left to the kernel: see [`leave_tunnels`].
pub const TUNNELS_LEFT: &str =
    "workers forward packets of tunnels, and no port hands packets to them: use level user, or native XDP";

/// Returns whether every port leaves packets of tunnels to the kernel.
pub fn leave_tunnels(ports: &Ports) -> bool {
    ports.values().all(|slot| slot.xdp.as_ref().is_some_and(Xdp::leaves_tunnels))
}

/// Returns the XDP programs of the ports that have one.
pub fn programs(ports: &mut Ports) -> impl Iterator<Item = &mut Xdp> {
    ports.values_mut().filter_map(|slot| slot.xdp.as_mut())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_closed_ends_become_one() {
        let mut slot = PortSlot::new(&mut Opened::none(&PortConfig::interface("a")), vec![]);
        let received = |slot: &PortSlot| slot.counters.iter().map(|end| end.rx_packets.get()).sum::<u64>();
        // An end that its worker has not closed yet goes on counting.
        let late = Arc::new(PortCounters::default());
        slot.add_counters([late.clone()]);
        for n in 1..10 {
            let ends = [1, 2].map(|_| Arc::new(PortCounters::default()));
            slot.add_counters(ends.clone());
            ends.iter().for_each(|end| {
                end.rx_packets.add(5);
                end.tx_waiting.set(7);
            });
            late.rx_packets.add(1);
            assert_eq!((received(&slot), slot.counters.len()), (11 * n, 4));
        }
        drop(late);
        slot.add_counters([]);
        assert_eq!((received(&slot), slot.counters.len(), slot.counters[0].tx_waiting.get()), (99, 1, 0));
    }

    #[test]
    fn a_configured_level_replaces_a_request() {
        let config = |level: Level| {
            let mut config = PortConfig::interface("a");
            config.af_xdp.get_or_insert_default().level = level;
            config
        };
        let mut slot = PortSlot::new(&mut Opened::none(&config(Level::Auto)), vec![]);
        slot.set_level(Level::User).unwrap();
        let kept = [Level::Auto, Level::Kernel].map(|level| slot.requested_for(&config(level)));
        assert_eq!((slot.asked(), kept), (Some(Level::User), [Some(Level::User), None]));
        slot.configure_level(Level::Kernel, None).unwrap();
        let kept = [Level::Auto, Level::Kernel].map(|level| slot.requested_for(&config(level)));
        assert_eq!((slot.asked(), kept), (Some(Level::Kernel), [None; 2]));
        // A reload that fails restores both.
        slot.configure_level(Level::Auto, Some(Level::User)).unwrap();
        assert_eq!((slot.asked(), slot.requested_for(&config(Level::Auto))), (Some(Level::User), Some(Level::User)));
    }

    #[test]
    fn numbers_stay_and_are_used_again() {
        let slot = |name: &str| PortSlot::new(&mut Opened::none(&PortConfig::interface(name)), vec![]);
        let mut ports: Ports = ["a", "b", "c", "d"].map(slot).into_iter().enumerate().collect();
        ports.remove(&1);
        let numbers = ["a", "b", "c"].map(|name| number(&ports, name));
        assert_eq!(numbers, [Some(0), None, Some(2)]);
        let on = |name: &str, interface: &str| PortConfig { name: name.into(), ..PortConfig::interface(interface) };
        let again = |port: PortConfig| Step::Reopen(port, String::new());
        let opened = |steps: &[Step]| -> Vec<(String, usize, Option<usize>)> {
            let openings = openings(&ports, steps);
            openings.iter().map(|opening| (opening.port.name.clone(), opening.at, opening.held_by)).collect()
        };
        let expected = |all: &[(&str, usize, Option<usize>)]| {
            all.iter().map(|(name, at, held_by)| ((*name).to_owned(), *at, *held_by)).collect::<Vec<_>>()
        };
        let steps = [Step::Add(on("e", "e")), again(on("d", "d")), Step::Add(on("f", "f")), again(on("a", "a"))];
        assert_eq!(opened(&steps), expected(&[("d", 3, None), ("a", 0, None), ("e", 1, None), ("f", 4, None)]));
        // Ports on interfaces of others: one that is removed, and two that exchange theirs.
        let steps = [
            Step::Add(on("e", "c")),
            again(on("a", "d")),
            again(on("d", "a")),
            Step::Add(on("f", "f")),
            Step::Remove("c".into()),
        ];
        let all = [("a", 0, Some(3)), ("d", 3, Some(0)), ("f", 1, None), ("e", 2, Some(2))];
        assert_eq!(opened(&steps), expected(&all));
    }
}
