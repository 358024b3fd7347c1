//! `mode = "router"`: forwarding by the kernel's own tables.

use super::established::{Established, Table};
use super::exceptions::Guard;
use super::flows::Flows;
use super::punt::Punt;
use super::trace::Tracer;
use super::view::Routes;
use crate::modes::{self, Names, Parts, Setup};
use crate::shared::Shared;
use crate::view::Refused;
use crate::vlans::Uppers;
use bywash_config::{KernelConfig, PortConfig};
use bywash_engine::{App, PORTS, PortId};
use bywash_exceptions::{Bridge, PortLink, Vrf};
use bywash_fib::model::Change;
use bywash_frame::{Buffers, Pool};
use bywash_netlink::{Mirror, Paths};
use bywash_nl::pace::Cost;
use bywash_router::control::{Applied, Control, MasterSpec, PortSpec, PortView, TunnelSpec, VlanSpec};
use bywash_router::gates::Gates;
use bywash_router::tunnel::{self, WantedPath};
use bywash_router::vlan::UNTAGGED;
use bywash_router::{Request, Router, RouterConfig};
use bywash_sync::lock;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Interval between confirmations of the neighbours in use: the kernel sees none of their traffic, and so does not
/// confirm them itself.
const CONFIRM: Duration = Duration::from_secs(15);
/// Interval between questions for the paths of tunnels: a sender learns of a smaller MTU after it.
const PATHS: Duration = Duration::from_secs(1);
/// Shortest interval between them, if tunnels need other paths, and the least ratio between it and the CPU time that
/// they take.
const SOONEST_PATHS: Duration = Duration::from_millis(20);
const RARELY: u32 = 20;
/// Maximum number of remotes of tunnels to which packets are sent past the kernel: the PMTU of each is asked for in
/// every interval.
const MOST_PATHS: usize = 1024;
/// Capacity of each worker's request ring to the control loop.
const REQUESTS: usize = 512;
/// Maximum number of neighbours that the kernel resolves for this process at a time. The kernel keeps an unanswered
/// entry for three seconds and has room for 1,024 entries in all (neigh/default/gc_thresh3); without this limit, a scan
/// of a subnet would take all of them.
const RESOLVING: usize = 256;

/// Control half of the router.
struct Routing {
    control: Arc<Mutex<Control>>,
    guard: Guard,
    names: Names,
    requests: Vec<rtrb::Consumer<Request>>,
    /// Frees the frames that workers hand over.
    bufs: Buffers,
    punt: Punt,
    /// Neighbours the kernel was asked to resolve, oldest first.
    resolving: VecDeque<(u32, IpAddr)>,
    confirmed: Instant,
    /// Packets each port had sent at the last confirmation, by port number.
    sent: Vec<u64>,
    /// Asks for the paths of tunnels, and when it last did.
    paths: (Option<Paths>, Instant),
    /// Shortest interval until it may ask again.
    soonest_paths: Duration,
    /// Interfaces above the ports, and tunnels, that were last set.
    uppers: Uppers,
}

/// Sets up a router on the opened ports.
pub fn set_up(setup: &Setup<'_>) -> anyhow::Result<Parts> {
    // A program that the kernel does not allow to forward needs no tables.
    let forwards = setup.driver.filter(|driver| driver.program.refused().is_none());
    let control = Control::with_sink(setup.domain, setup.specs(), forwards.cloned())?;
    let tables = control.tables();
    let gates = Gates::closed();
    let program = setup.driver.map(|driver| driver.program.clone());
    let of = &setup.config.router;
    // A program that the kernel does not allow to forward knows no flows.
    let follows = of.flows > 0 && setup.driver.is_none_or(|driver| driver.program.refused().is_none());
    let table = follows.then(|| {
        let memory = setup.driver.map_or([None, None], |driver| driver.flow_memory().map(Some));
        bywash_fib::flows::Flows::new(setup.domain, memory, of.flows)
    });
    let table = table.transpose()?;
    let known = table.as_ref().map(bywash_fib::flows::Flows::reader);
    let flows = table.map(|table| Flows::start(table, tables.clone(), setup.domain)).transpose()?;
    let shown = known.clone().zip(flows.as_ref().map(Flows::statistics));
    let guard = Guard::start(links(&control), program, gates.clone(), &setup.config.kernel, flows)?;
    let mut requests = vec![];
    let apps = (0..setup.workers).map(|_| {
        let (to_control, inbox) = rtrb::RingBuffer::new(REQUESTS);
        requests.push(inbox);
        let config = RouterConfig { icmp_rate: of.icmp_rate, redirects: of.redirects };
        let router = Router::new(tables.clone(), to_control, config).with_gates(gates.clone());
        let router = if let Some(known) = &known { router.with_flows(known.clone()) } else { router };
        Box::new(router) as Box<dyn App>
    });
    let apps = apps.collect();
    let sent = vec![0; PORTS];
    let refused: Arc<[Refused]> = sent.iter().map(|_| Refused::default()).collect();
    let names: Names = Arc::new(Mutex::new(setup.config.ports.iter().map(|p| p.name.clone()).collect()));
    let control = Arc::new(Mutex::new(control));
    let config = RouterConfig { icmp_rate: of.icmp_rate, redirects: of.redirects };
    let established = Established {
        table: shown.map(|(flows, statistics)| Table { flows, statistics }),
        limit: of.flows,
        names: names.clone(),
        gates: gates.clone(),
        tables: tables.clone(),
        domain: setup.domain.clone(),
        most: Default::default(),
    };
    let tracer = Tracer { tables, domain: setup.domain.clone(), config, gates, flows: known };
    let (seen, shown) = (names.clone(), refused.clone());
    let view = Arc::new(Routes {
        control: control.clone(),
        names: seen,
        refused: shown,
        tracer,
        reasons: guard.reasons(),
        keeper: guard.keeper(),
        established,
    });
    let (bufs, punt) = (Buffers::attach(setup.pools, 0), Punt::open(refused));
    let (resolving, confirmed) = (VecDeque::new(), Instant::now());
    let control = Box::new(Routing {
        control,
        guard,
        names,
        requests,
        bufs,
        punt,
        resolving,
        confirmed,
        sent,
        paths: (None, Instant::now()),
        soonest_paths: SOONEST_PATHS,
        uppers: Default::default(),
    });
    Ok(Parts { control, view, apps, links: vec![] })
}

/// Returns the ports, and the VLANs, bonds and bridges above them, as kernel policies refer to them: by interface index
/// and name. Ports on members of bonds and bridges are not among them: frames that belong to none of these find the
/// port's gate closed.
pub(super) fn links(control: &Control) -> Vec<PortLink> {
    let link = |port: PortView, lower_devices, members, bridge| {
        let PortView { id, index, name, dev, .. } = port;
        let vrf = control.vrf(index).map(|(index, name, table)| Vrf { index, name: name.into(), table });
        let name = dev.unwrap_or(name);
        PortLink { id: id.0, index, name, lower_devices, members, bridge, vrf, ..PortLink::default() }
    };
    // Adds how the kernel receives the packets of ports with these interfaces.
    let with_receivers = |indices: &[u32], link: PortLink| {
        let receivers: Vec<_> = indices.iter().flat_map(|index| control.receivers_of(*index)).collect();
        let is_bridge = |index| control.link(index).is_some_and(|link| link.kind == "bridge");
        let uppers = control.uppers_of(indices);
        PortLink {
            uppers: uppers.iter().map(|link| (link.index, link.name.clone())).collect(),
            received_by: receivers.iter().map(|link| (link.index, link.name.clone())).collect(),
            received_by_member: receivers.iter().any(|link| link.master.is_some_and(is_bridge)),
            paired: indices.iter().filter_map(|index| control.link(*index)).chain(receivers).any(|link| link.paired),
            ..link
        }
    };
    let ports = || control.ports().filter(|port| !port.name.is_empty());
    let own = ports().filter(|port| port.number == port.id && control.bridge_filters(port.id).is_none());
    let mut links: Vec<PortLink> =
        own.map(|port| with_receivers(&[port.index], link(port, vec![], vec![], None))).collect();
    links.extend(control.masters().map(|(view, master)| {
        let members = || ports().filter(|port| master.members.contains(&(port.id, port.index)));
        let bridge = master.stations().filter(|_| master.is_vlan());
        let bridge = bridge.and_then(|(bridge, _)| Some((bridge, control.name_of(bridge)?.to_owned())));
        let members_below = members().map(|port| (port.index, port.dev.unwrap_or(port.name)));
        let vxlans = master.vxlans.iter().map(|index| MasterSpec::interface_of(*index));
        let vxlans = vxlans.filter_map(|index| Some((index, control.name_of(index)?.to_owned())));
        let below = bridge.into_iter().chain(members_below).chain(vxlans).collect();
        let of_bridge =
            master.stations().map(|(bridge, _)| Bridge { vlan: master.is_vlan(), calls_ip: control.calls_ip(bridge) });
        let indices: Vec<u32> = members().map(|port| port.index).collect();
        with_receivers(&indices, link(view, below, members().map(|port| port.id.0).collect(), of_bridge))
    }));
    let vlans: Vec<PortLink> = control
        .vlans()
        .map(|(view, vlan)| {
            let port = links.iter().find(|port| port.id == vlan.port.0);
            let below = port.into_iter().flat_map(PortLink::devices);
            let below = below.map(|(index, name)| (index, name.to_owned())).collect();
            let PortLink { bridge, received_by, received_by_member, paired, .. } = port.cloned().unwrap_or_default();
            PortLink { received_by, received_by_member, paired, ..link(view, below, vec![], bridge) }
        })
        .collect();
    links.extend(vlans);
    let of_tunnel = |(view, spec): (PortView, &TunnelSpec)| {
        let bridge =
            spec.bridge.map(|of| Bridge { vlan: of.index != of.bridge, calls_ip: control.calls_ip(of.bridge) });
        PortLink { tunnel: Some(spec.tunnel), ..link(view, vec![], vec![], bridge) }
    };
    links.extend(control.tunnels().map(of_tunnel));
    links
}

impl modes::Control for Routing {
    fn apply(&mut self, changes: &[Change]) -> Applied {
        let mut control = lock(&self.control);
        // The programs identify a macvlan by its address, and are set after the tables.
        let other = |view: PortView, vlan: &VlanSpec, mac| vlan.tag == UNTAGGED && view.mac != mac;
        let changes_programs = |change: &Change| match change {
            Change::LinkGone { index } => {
                let of = |master: &MasterSpec| master.stations().map_or(master.index, |(bridge, _)| bridge);
                let masters = control.masters().flat_map(|(view, master)| [view.index, of(master)]);
                let tunnels = control.tunnels().map(|(view, _)| view.index);
                let mut all = control.vlans().map(|(view, _)| view.index).chain(masters).chain(tunnels);
                all.any(|one| one == *index)
            }
            Change::Link(link) => {
                control.vlans().any(|(view, vlan)| view.index == link.index && other(view, vlan, link.mac))
            }
            _ => false,
        };
        if changes.iter().any(changes_programs) {
            self.guard.close();
        }
        let applied = control.apply(changes);
        if changes.iter().any(|change| matches!(change, Change::Link(_) | Change::LinkGone { .. })) {
            self.guard.set_ports(links(&control));
        }
        let hosts = |change: &Change| {
            let neighbour = matches!(change, Change::Neighbour(_) | Change::NeighbourGone { .. });
            neighbour || matches!(change, Change::Station(_) | Change::StationGone { .. })
        };
        if !changes.iter().all(hosts) {
            self.guard.routes_changed();
        }
        applied
    }

    fn begin(&mut self, shared: &Shared) {
        self.guard.begin(&self.control, shared);
    }

    fn kernel_changed(&mut self, config: &KernelConfig, shared: &Shared) {
        self.guard.set_respect(config, &self.control, shared);
    }

    fn tick(&mut self, shared: &Shared, mirror: &Mirror) -> bool {
        self.guard.tick(&self.control, shared);
        lock(&self.control).renew_stations();
        self.confirm(shared, mirror);
        let since = self.paths.1.elapsed();
        if since >= PATHS || (since >= self.soonest_paths && lock(&self.control).needs_paths()) {
            self.find_paths();
        }
        self.answer(mirror)
    }

    fn ports_can_change(&self) -> Result<(), &'static str> {
        Ok(())
    }

    fn add_port(&mut self, spec: PortSpec, config: &PortConfig) {
        let at = usize::from(spec.id.0);
        let mut names = lock(&self.names);
        let len = names.len().max(at + 1);
        names.resize(len, String::new());
        names[at].clone_from(&config.name);
        drop(names);
        let mut control = lock(&self.control);
        control.add_port(spec);
        self.guard.set_ports(links(&control));
    }

    fn set_open(&mut self, id: PortId, open: bool) {
        let mut control = lock(&self.control);
        control.set_open(id, open);
        self.guard.set_ports(links(&control));
    }

    fn remove_port(&mut self, id: PortId) {
        let mut control = lock(&self.control);
        control.remove_port(id);
        self.guard.set_ports(links(&control));
    }

    fn set_uppers(&mut self, uppers: &Uppers) {
        let mut control = lock(&self.control);
        // The programs may still hand over packets with a number that now belongs to another interface, and those of a
        // new bond or bridge have policies that have not been read.
        let changed = self.uppers != *uppers;
        if changed {
            self.guard.close();
            self.uppers = uppers.clone();
        }
        control.set_masters(&uppers.masters);
        control.set_vlans(&uppers.vlans);
        control.set_tunnels(&uppers.tunnels);
        drop(control);
        // A new tunnel has no path, and ends may now be reached by another interface. What else changes is found by the
        // next interval.
        if changed {
            self.find_paths();
        }
        let control = lock(&self.control);
        // The gate of a new port is closed; those of the others close until the policies of all have been read.
        self.guard.set_ports(links(&control));
    }

    fn targets_changed(&mut self) {
        lock(&self.control).republish();
    }

    fn take_from(&mut self, pool: &Arc<Pool>) {
        self.bufs.take_from(pool);
    }

    fn stop(self: Box<Self>) {
        let Self { mut bufs, mut requests, .. } = *self;
        for requests in &mut requests {
            while let Ok(request) = requests.pop() {
                if let Request::Punt { frame, .. } = request {
                    bufs.free_one(frame);
                }
            }
        }
    }
}

impl Routing {
    /// Serves the workers' requests. Returns whether there were any.
    fn answer(&mut self, mirror: &Mirror) -> bool {
        let Self { control, requests, bufs, punt, resolving, .. } = self;
        let asked = requests.iter().any(|requests| requests.slots() > 0);
        for requests in requests {
            // Serve only the requests queued by now: a flood of punted packets must not delay route updates.
            for _ in 0..requests.slots() {
                let Ok(request) = requests.pop() else { break };
                match request {
                    Request::Resolve { index, addr } => {
                        if mirror.probe(index, addr) {
                            resolving.retain(|known| *known != (index, addr));
                            resolving.push_back((index, addr));
                        }
                    }
                    Request::Punt { from, id, frame, copy } => {
                        let data = bufs.arena().data(&frame);
                        let to = match id {
                            Some(id) => (lock(control).receiver(from, id), true),
                            None => (Some(lock(control).port_index(from)).filter(|index| *index != 0), false),
                        };
                        punt.hand(from, to, data, copy);
                        bufs.free_one(frame);
                    }
                }
            }
        }
        if resolving.len() > RESOLVING {
            let control = lock(control);
            resolving.retain(|(index, addr)| !control.is_resolved(*index, *addr));
        }
        // The oldest request is the least likely to be answered.
        while resolving.len() > RESOLVING {
            let Some((index, addr)) = resolving.pop_front() else { break };
            mirror.forget(index, addr);
        }
        asked
    }

    /// Asks for the paths to the remotes of tunnels.
    fn find_paths(&mut self) {
        let cost = Cost::begin();
        self.paths.1 = Instant::now();
        if !self.uppers.tunnels.is_empty() {
            self.ask_for_paths();
        }
        self.soonest_paths = cost.times(RARELY).max(SOONEST_PATHS);
    }

    fn ask_for_paths(&mut self) {
        let mut control = lock(&self.control);
        // The paths that are asked for below cover all changes until now.
        control.needs_paths();
        let ends = control.tunnel_ends();
        drop(control);
        if ends.is_empty() {
            return lock(&self.control).set_paths(tunnel::Paths::default());
        }
        if self.paths.0.is_none() {
            match Paths::open() {
                Ok(paths) => self.paths.0 = Some(paths),
                Err(e) => return tracing::error!("tunnels are left to the kernel: {e}"),
            }
        }
        let Some(paths) = &mut self.paths.0 else { return };
        let numbers = |key: &str| -> Vec<i64> {
            let text = std::fs::read_to_string(format!("/proc/sys/net/{key}")).unwrap_or_default();
            text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        let (default_ttl, range) = (numbers("ipv4/ip_default_ttl"), numbers("ipv4/ip_local_port_range"));
        let (&[default_ttl], &[first, last]) = (&default_ttl[..], &range[..]) else {
            // Without these settings all tunnels are left to the kernel.
            return lock(&self.control).set_paths(tunnel::Paths::default());
        };
        let mut hop_limits = BTreeMap::new();
        let path = |WantedPath { ends: (from, to, link), masqueraded, hops }: WantedPath| {
            let path = paths.to(from, to, link)?;
            // Among several default routes of one metric, the kernel takes another for its own packets than for those
            // that it forwards if a gateway does not answer (fib_select_default).
            let own = tunnel::via(path.index, path.gateway, to);
            let underlay = hops.iter().find(|hop| tunnel::via(hop.index, hop.gateway, to) == own)?;
            let chosen = from.is_unspecified();
            let source = if chosen { path.source? } else { from };
            if masqueraded && underlay.masquerade4.map(IpAddr::V4) != Some(source) {
                return None;
            }
            let via = (chosen || hops.len() > 1).then_some(own);
            // ip4_dst_hoplimit, ip6_dst_hoplimit
            let mut hop_limit = || {
                let control = lock(&self.control);
                let read = || numbers(&format!("ipv6/conf/{}/hop_limit", control.name_of(underlay.index)?)).pop();
                *hop_limits.entry(underlay.index).or_insert_with(read)
            };
            let ttl = match path.ttl {
                Some(ttl) => ttl,
                None if to.is_ipv4() => default_ttl as u8,
                None => hop_limit()? as u8,
            };
            Some(tunnel::Path { ends: (from, to, link), source, mtu: path.mtu.unwrap_or(u32::MAX), ttl, via })
        };
        let number = |key: &str| numbers(key).first().copied();
        // IP6_AUTO_FLOW_LABEL_OFF, IPV6_FLOWLABEL_STATELESS_FLAG (net/ipv6.h)
        let stateless = if number("ipv6/flowlabel_state_ranges").unwrap_or(0) == 0 { 0 } else { 0x8_0000 };
        let labels = number("ipv6/auto_flowlabels").filter(|labels| *labels != 0).map(|_| stateless);
        // A negative number makes options unknown.
        let at_least = |key, least| number(key).is_some_and(|most| most >= least);
        let limited = at_least("ipv6/max_dst_opts_number", 1) && at_least("ipv6/max_dst_opts_length", 8);
        let mut all: Vec<tunnel::Path> = ends.into_iter().take(MOST_PATHS).filter_map(path).collect();
        all.sort_unstable();
        lock(&self.control).set_paths(tunnel::Paths { all, sources: [first as u16, last as u16], labels, limited });
    }

    /// Makes the kernel probe stale neighbours on ports that have sent since the last call.
    fn confirm(&mut self, shared: &Shared, mirror: &Mirror) {
        if self.confirmed.elapsed() < CONFIRM {
            return;
        }
        self.confirmed = Instant::now();
        let mut sent = vec![0; self.sent.len()];
        for (at, slot) in shared.ports().iter() {
            let by_program = slot.verdicts().map_or(0, |c| c.tx_frames);
            sent[*at] = by_program + slot.counters.iter().map(|c| c.tx_packets.get()).sum::<u64>();
        }
        let control = lock(&self.control);
        for (index, addr) in control.stale_neighbours(|p| sent[usize::from(p.0)] != self.sent[usize::from(p.0)]) {
            mirror.probe(index, addr);
        }
        drop(control);
        self.sent = sent;
    }
}
