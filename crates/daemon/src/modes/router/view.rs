//! View of a router: routes, neighbours, drift, and traces of packets.

use super::drift::drift;
use super::established::Established;
use super::exceptions::{self, KeptReasons};
use super::trace::{self, Decisions, Followed, Tracer};
use crate::modes::{Names, mac, packet};
use crate::view::{PIECE, Refused, View};
use crate::vlans::Left;
use bywash_api::{Above, Answer, Kept, Neighbour, NextHop, Policies, Route, Topic, TraceAdjacency, Traced};
use bywash_api_server::Rows;
use bywash_engine::PortId;
use bywash_exceptions::Keeper;
use bywash_fib::model::{Prefix, RouteKind, RuleAction, Tunnel};
use bywash_router::control::{
    Control, HopView, LOCAL_TABLE, MAIN, MasterSpec, NeighbourView, Place, PortView, RouteStatus, RouteView,
};
use bywash_router::left_by_program;
use bywash_router::vlan::UNTAGGED;
use bywash_sync::lock;
use bywash_wire::ethernet::{EthernetHeader, carried, ethertype};
use bywash_wire::{ipv4, ipv6};
use serde::Serialize;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

/// The router, as the API sees it.
pub struct Routes {
    pub control: Arc<Mutex<Control>>,
    pub names: Names,
    /// Frames that the kernel did not accept, by port.
    pub refused: Arc<[Refused]>,
    pub tracer: Tracer,
    /// Reasons for which packets are left to the kernel.
    pub reasons: KeptReasons,
    /// Keeper of the gates, which are closed while the policies are read.
    pub keeper: Keeper,
    pub established: Established,
}

impl View for Routes {
    fn ports(&self) -> Vec<PortView> {
        lock(&self.control).ports().collect()
    }

    fn above(&self, left: &[Left]) -> Vec<(PortId, Above)> {
        let control = lock(&self.control);
        let of_master = |view: &PortView, master: &MasterSpec, sends| {
            let (kind, tag) = match master.is_bridge() {
                true if master.is_vlan() => ("vlan", Some(master.tag)),
                true => ("bridge", None),
                false => (control.link(master.index).map_or("bond", |link| link.kind.as_str()), None),
            };
            above(view, kind, tag, sends)
        };
        let masters = control.masters().flat_map(|(view, master)| {
            let shown = of_master(&view, master, master.has_interface());
            master.members.iter().map(|(port, _)| (*port, shown.clone())).collect::<Vec<_>>()
        });
        let vlans = control.vlans().flat_map(|(view, vlan)| {
            let tag = (vlan.tag != UNTAGGED).then_some(vlan.tag);
            let shown = above(&view, if tag.is_some() { "vlan" } else { "macvlan" }, tag, vlan.sends);
            vlan.entries.iter().map(|(port, _)| (*port, shown.clone())).collect::<Vec<_>>()
        });
        let first = control.ports().next().map(|port| port.id);
        // A tunnel is listed with the port that its remote is reached through now, or with the first port while there
        // is none, as before the neighbour on the way is resolved.
        let through = |spec| control.ports_of_tunnel(spec).next().or(first);
        let tunnels = control.tunnels().filter_map(|(view, spec)| {
            let Tunnel { local, remote, .. } = spec.tunnel;
            let left = (!control.keeps_source(spec)).then(|| MASQUERADED.into());
            let shown = above(&view, spec.tunnel.kind(), None, left.is_none() && control.allows_tunnel(spec.index));
            let ends = if spec.tunnel.external { Some(BY_ROUTES.into()) } else { ends(local, remote) };
            Some((through(spec)?, Above { name: view.name, ends, left, ..shown }))
        });
        // Bridges of VXLANs alone, such as those of layer-3 VNIs.
        let bridges = control.tunnels().filter_map(|(_, spec)| {
            let alone = |master: &MasterSpec| master.members.is_empty() && master.vxlans.contains(&spec.index);
            let (view, master) = control.masters().find(|(_, master)| alone(master))?;
            Some((through(spec)?, of_master(&view, master, control.allows_tunnel(spec.index))))
        });
        let left = left.iter().flat_map(|left| {
            let known = |remote: &IpAddr| !remote.is_unspecified() && !remote.is_multicast();
            let carrier = |remote: IpAddr| control.carriers_to(remote).first().copied();
            let towards = |(_, remote)| Some(remote).filter(known).and_then(carrier).or(first);
            let ports = left.ports.iter().copied().chain(left.ends.and_then(towards));
            let shown = control.interface(left.index).map(|view| Above {
                ends: left.ends.and_then(|(local, remote)| ends(local, remote)),
                left: Some(left.why.clone()),
                ..above(&view, &left.kind, left.tag, false)
            });
            ports.filter_map(|port| Some((port, shown.clone()?))).collect::<Vec<_>>()
        });
        masters.chain(vlans).chain(bridges).chain(tunnels).chain(left).collect()
    }

    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Answer, String> {
        match topic {
            Topic::Drift => drift(&self.control).map(Answer::from),
            Topic::EstablishedFlows => self.established.flows(filter, &self.uppers()).map(Answer::from),
            Topic::FlowTable => Ok(self.established.table().into()),
            Topic::KernelConnections => {
                let ports = super::control::links(&lock(&self.control));
                self.established.connections(&ports).map(Answer::from)
            }
            _ => Err(topic.not_in("router")),
        }
    }

    fn rows(&self, topic: Topic, filter: Option<&str>) -> Option<Result<Box<dyn Rows>, String>> {
        let filter = || filter.map(parse_prefix).transpose();
        let (control, names) = (self.control.clone(), self.names.clone());
        match topic {
            Topic::Routes => {
                Some(filter().map(|filter| Box::new(RouteRows { control, names, filter, last: None }) as _))
            }
            Topic::Neighbours => {
                Some(filter().map(|filter| Box::new(NeighbourRows { control, names, filter, last: None }) as _))
            }
            _ => None,
        }
    }

    fn trace(&self, packet: &str, has_program: &dyn Fn(PortId) -> bool) -> Result<Traced, String> {
        let (port, frame) = packet::parse(packet)?;
        let ports = self.ports();
        let known = || ports.iter().map(|port| port.name.as_str()).collect::<Vec<_>>().join(", ");
        let from = ports.iter().find(|view| view.name == port);
        let from = from.ok_or_else(|| format!("no port `{port}`: the ports are {}", known()))?;
        if has_program(from.id) {
            // Interfaces above a port may have addresses of their own, and a bridge forwards frames to others.
            let above = self.above(&[]).iter().any(|(id, _)| *id == from.id);
            if let Some(why) = left_by_program(from.mac.filter(|_| !above), &frame) {
                return Ok(trace::left(port, &frame, why));
            }
        }
        // A member's address is that of its bridge.
        let of_bridge = lock(&self.control).bridge_filters(from.id).is_some();
        if of_bridge && from.mac.is_some_and(|mac| !frame.starts_with(&mac)) {
            return Ok(trace::bridged(port, &frame));
        }
        let from = (from.id, from.number);
        let mut names = vec![String::new(); ports.iter().map(|port| usize::from(port.id.0) + 1).max().unwrap_or(0)];
        ports.iter().for_each(|port| names[usize::from(port.id.0)].clone_from(&port.name));
        let followed = self.tracer.follow(names.len(), from, &frame)?;
        let decisions = self.decisions(from.1, &frame, &followed);
        Ok(trace::answer(&names, port, &frame, decisions, &followed))
    }

    fn kept(&self, port: PortId) -> Vec<Kept> {
        exceptions::shown(&self.reasons, port)
    }

    fn policies(&self) -> Option<Policies> {
        Some(Policies { changes: self.keeper.announced(), pending: !self.keeper.is_open() })
    }

    fn refused(&self, port: PortId) -> Option<&Refused> {
        self.refused.get(usize::from(port.0))
    }
}

/// Reason for which a tunnel is left to the kernel.
const MASQUERADED: &str = "masquerading may give its outer packets another source";

/// Describes the addresses of a tunnel that takes them from routes.
const BY_ROUTES: &str = "by routes";

/// Describes an interface above a port; `tag` is a VLAN's.
fn above(view: &PortView, kind: &str, tag: Option<[u8; 4]>, sends: bool) -> Above {
    let number = |[protocol, second, high, low]: [u8; 4]| {
        let protocol = if [protocol, second] == ethertype::QINQ.to_be_bytes() { "802.1ad" } else { "802.1Q" };
        format!("{protocol} {}", u16::from_be_bytes([high, low]) & 0xfff)
    };
    Above {
        name: view.dev.as_ref().unwrap_or(&view.name).clone(),
        kind: kind.into(),
        tag: tag.map(number),
        state: if view.running { "up" } else { "down" }.into(),
        sends,
        mac: view.mac.map(mac),
        mtu: view.mtu.map(u64::from),
        ends: None,
        left: None,
        addresses: view.addresses.iter().map(Prefix::to_string).collect(),
    }
}

/// Describes the addresses of a tunnel: its own, and that of its other end if it has one; `None` without.
fn ends(local: IpAddr, remote: IpAddr) -> Option<String> {
    let remote = (!remote.is_unspecified() && !remote.is_multicast()).then_some(remote);
    match (local.is_unspecified(), remote) {
        (true, None) => None,
        (true, Some(remote)) => Some(format!("any to {remote}")),
        (false, None) => Some(local.to_string()),
        (false, Some(remote)) => Some(format!("{local} to {remote}")),
    }
}

impl Routes {
    /// Returns number and name of the VLANs, bonds and bridges whose packets are forwarded.
    fn uppers(&self) -> Vec<(PortId, String)> {
        let control = lock(&self.control);
        let views = control.vlans().map(|(view, _)| view).chain(control.masters().map(|(view, _)| view));
        let views = views.chain(control.tunnels().map(|(view, _)| view));
        views.map(|view| (view.id, view.dev.unwrap_or(view.name))).collect()
    }

    /// Returns the route of a packet that `port` received, and the neighbours that the packet, or those made from it,
    /// were sent to.
    fn decisions(&self, port: PortId, frame: &[u8], followed: &Followed) -> Decisions {
        let control = lock(&self.control);
        let translated = followed.gate.as_ref().and_then(|gate| gate.destination());
        let addresses = addresses(frame).map(|(src, dst)| (src, translated.unwrap_or(dst)));
        let destination = addresses.map(|(_, dst)| dst);
        let route = addresses.and_then(|(src, dst)| route_of(&control, port, src, dst));
        let route = route.map(|route| (route_line(&route), row(&self.names, &route)));
        let adjacency = |(port, frame): (PortId, &[u8])| {
            let to = EthernetHeader::parse(frame)?.0.dst.0;
            let n = control.neighbours().find(|n| n.port == Some(port) && n.mac == Some(to))?;
            let (state, port) = (word(n.state), name(&self.names, port));
            let line = format!("adjacency: {} at {}, {port}, {state}", n.addr, mac(to));
            Some((line, TraceAdjacency { addr: n.addr, port, mac: mac(to), state }))
        };
        let has_destination = destination.is_some();
        Decisions { route, has_destination, adjacencies: followed.sent().filter_map(adjacency).collect() }
    }
}

/// Routes, all or those related to a prefix, in pieces.
struct RouteRows {
    control: Arc<Mutex<Control>>,
    names: Names,
    filter: Option<Prefix>,
    last: Option<Place>,
}

impl Rows for RouteRows {
    fn next(&mut self) -> Option<Answer> {
        let control = lock(&self.control);
        let seen: Vec<(Place, RouteView)> = control.routes_after(self.last).take(PIECE).collect();
        drop(control);
        self.last = Some(seen.last()?.0);
        let shown = seen.iter().filter(|(_, r)| self.filter.is_none_or(|f| related(r.prefix, f)));
        Some(Answer::Routes(shown.map(|(_, r)| row(&self.names, r)).collect()))
    }
}

/// Neighbours, all or those within a prefix, in pieces.
struct NeighbourRows {
    control: Arc<Mutex<Control>>,
    names: Names,
    filter: Option<Prefix>,
    last: Option<(IpAddr, u32)>,
}

impl Rows for NeighbourRows {
    fn next(&mut self) -> Option<Answer> {
        let control = lock(&self.control);
        let seen: Vec<NeighbourView> = control.neighbours_after(self.last).take(PIECE).collect();
        drop(control);
        self.last = seen.last().map(|n| Some((n.addr, n.index)))?;
        let shown = seen.into_iter().filter(|n| self.filter.is_none_or(|f| f.covers(n.addr.into())));
        let row = |n: NeighbourView| Neighbour {
            addr: n.addr,
            interface: n.dev,
            port: n.port.map(|port| name(&self.names, port)),
            mac: n.mac.map(mac),
            state: word(n.state),
            installed: n.installed,
        };
        Some(Answer::Neighbours(shown.map(row).collect()))
    }
}

fn row(names: &Names, r: &RouteView) -> Route {
    let hop = |hop: &HopView| NextHop {
        via: hop.via,
        port: hop.port.map(|port| name(names, port)),
        interface: hop.dev.clone(),
        state: word(hop.state),
        encap: hop.outer.map(|outer| outer.to_string()),
        weight: hop.weight,
    };
    let installed = r.status == RouteStatus::Installed;
    Route {
        prefix: r.prefix.to_string(),
        table: r.table,
        kind: word(r.kind),
        metric: r.metric,
        protocol: r.protocol,
        next_hops: r.next_hops.iter().map(hop).collect(),
        mtu: r.mtu,
        source: r.source,
        installed,
        reason: (!installed).then(|| word(r.status)),
    }
}

fn name(names: &Names, port: PortId) -> String {
    lock(names).get(usize::from(port.0)).map_or("?".into(), String::clone)
}

/// Returns the name of an enum's variant, as it is serialised.
fn word(variant: impl Serialize) -> String {
    serde_json::to_value(variant).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Formats a route as a line of a trace.
fn route_line(route: &RouteView) -> String {
    let hop = |hop: &HopView| {
        let via = hop.via.map_or(String::new(), |via| format!(" via {via}"));
        let dev = hop.dev.as_ref().map_or(String::new(), |dev| format!(" dev {dev}"));
        let encap = hop.outer.map_or(String::new(), |outer| format!(" encap {outer}"));
        format!("{encap}{via}{dev} ({})", word(hop.state))
    };
    let hops: Vec<String> = route.next_hops.iter().map(hop).collect();
    let left = match route.status {
        RouteStatus::Kernel => ": left to the kernel",
        RouteStatus::Policy => ": left to the kernel by its policy",
        _ => "",
    };
    let table = match route.table {
        LOCAL_TABLE | MAIN => String::new(),
        other => format!(" table {other}"),
    };
    format!("route: {} {}{table}{}{left}", word(route.kind), route.prefix, hops.join(" or"))
}

/// Returns the route by which a packet that `port` received is forwarded: by the port's policy routing rules or,
/// without any, by tables local and main. `None` if there is none, or if a rule decides without one.
fn route_of(control: &Control, port: PortId, src: IpAddr, dst: IpAddr) -> Option<RouteView> {
    let best = |tables: &[u32], shortest: u8| {
        let decides = |status| matches!(status, RouteStatus::Installed | RouteStatus::Kernel | RouteStatus::Policy);
        let all = control.routes().filter(|route| tables.contains(&route.table) && decides(route.status));
        let covering = all.filter(|route| route.prefix.len >= shortest && route.prefix.covers(dst.into()));
        covering.max_by_key(|route| route.prefix.len).filter(|route| route.kind != RouteKind::Throw)
    };
    let local_and_main = || best(&[LOCAL_TABLE, MAIN], 0);
    let rules = control.rules_of(port).map(|rules| if dst.is_ipv4() { &rules.v4 } else { &rules.v6 });
    let Some(rules) = rules.filter(|rules| !rules.is_empty()) else { return local_and_main() };
    for rule in rules {
        let has = |prefix: Option<Prefix>, addr: IpAddr| prefix.is_none_or(|prefix| prefix.covers(addr.into()));
        if (has(rule.from, src) && has(rule.to, dst)) == rule.not {
            continue;
        }
        let found = match rule.then {
            RuleAction::LocalAndMain => local_and_main(),
            RuleAction::Table { table, shortest } => best(&[table], shortest),
            RuleAction::Discard(_) | RuleAction::Kernel => return None,
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Returns the source and destination address of a frame; `None` if it carries no valid IP header.
fn addresses(frame: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let carried = carried(frame)?;
    let l3 = frame.get(carried.offset..)?;
    match carried.ethertype {
        ethertype::IPV4 => ipv4::Ipv4Header::parse(l3).map(|(header, _)| (header.src.into(), header.dst.into())),
        ethertype::IPV6 => ipv6::Ipv6Header::parse(l3).map(|(header, _)| (header.src.into(), header.dst.into())),
        _ => None,
    }
}

/// Parses a filter, of which an error names the text.
pub(super) fn parse_prefix(text: &str) -> Result<Prefix, String> {
    text.parse().map_err(|why| format!("`{text}`: {why}"))
}

/// Returns whether a route lies within the filter's prefix or covers it.
fn related(route: Prefix, filter: Prefix) -> bool {
    route.covers(filter) || filter.covers(route)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters() {
        let p = |t| parse_prefix(t).unwrap();
        assert!(related(p("0.0.0.0/0"), p("10.0.0.0/8")) && related(p("10.1.2.0/24"), p("10.0.0.0/8")));
        assert!(!related(p("10.1.2.0/24"), p("10.1.3.0/24")));
    }
}
