//! The kernel's state as shown by `ip`, in the mirror's terms: the reference that tests compare the mirror with.

#![allow(dead_code)]

use bywash_fib::model::*;
use bywash_lab::Namespace;
use bywash_netlink::{Config, Mirror, State};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Returns whether a test must be skipped, and prints the reason.
pub fn skipped() -> bool {
    match bywash_lab::require_lab() {
        Ok(()) => false,
        Err(reason) => {
            bywash_lab::report_skip(&reason);
            true
        }
    }
}

/// A mirror and the state that its changes add up to.
pub struct Followed {
    pub mirror: Mirror,
    pub state: State,
    pub changes: u64,
    pub synced: u64,
}

impl Followed {
    pub fn start(namespace: &Namespace, config: Config) -> Self {
        let mirror = namespace.enter(|| Mirror::start(config)).unwrap().unwrap();
        let mut followed = Self { mirror, state: State::default(), changes: 0, synced: 0 };
        followed.until_synced(1);
        followed
    }

    pub fn take(&mut self, patience: Duration) -> bool {
        let Ok(batch) = self.mirror.changes().recv_timeout(patience) else { return false };
        for change in &batch {
            self.changes += 1;
            self.synced += u64::from(*change == Change::Synced);
            self.state.apply(change);
        }
        true
    }

    pub fn until_synced(&mut self, times: u64) {
        let began = Instant::now();
        while self.synced < times {
            self.take(Duration::from_millis(100));
            assert!(
                began.elapsed() < bywash_lab::patience(Duration::from_secs(60)),
                "no Synced: {:?}",
                self.mirror.stats()
            );
        }
    }

    /// Applies changes until the state equals the kernel's, or fails with the difference.
    pub fn must_agree(&mut self, namespace: &Namespace, what: &str) {
        let began = Instant::now();
        loop {
            while self.take(Duration::from_millis(30)) {}
            let difference = differences(&self.state, &Oracle::of(namespace));
            if difference.is_empty() {
                return;
            }
            if began.elapsed() > bywash_lab::patience(Duration::from_secs(60)) {
                panic!(
                    "after {what} the mirror differs from the kernel:\n{}\n{:?}",
                    difference.join("\n"),
                    self.mirror.stats()
                );
            }
        }
    }
}

/// Output of `ip` as sorted lines in the terms of the model.
pub struct Oracle {
    lines: BTreeMap<String, String>,
}

#[derive(Default)]
struct Names {
    indices: HashMap<String, u32>,
    /// Links that are administratively up.
    up: HashSet<u32>,
    /// The host's own addresses, with their links.
    own: HashSet<(u32, IpAddr)>,
}

impl Names {
    fn get(&self, name: &str) -> Option<&u32> {
        self.indices.get(name)
    }
}

impl Oracle {
    pub fn of(namespace: &Namespace) -> Self {
        let mut lines = BTreeMap::new();
        let links = json(namespace, &["-j", "-d", "link", "show"]);
        let mut names = Names::default();
        for link in &links {
            let index = number(link, "ifindex").unwrap() as u32;
            names.indices.insert(text(link, "ifname").to_string(), index);
            if flag(link, "UP") {
                names.up.insert(index);
            }
        }
        for link in &links {
            let model = link_of(link, &names);
            lines.insert(format!("link {}", model.index), format!("{model:?}"));
        }
        for link in json(namespace, &["-j", "-d", "-N", "addr", "show"]) {
            let index = number(&link, "ifindex").unwrap_or(0) as u32;
            for address in link["addr_info"].as_array().into_iter().flatten() {
                let model = address_of(index, address);
                names.own.insert((index, model.addr));
                lines.insert(format!("address {index} {} {}", model.addr, model.len), format!("{model:?}"));
            }
        }
        for neighbour in json(namespace, &["-j", "neigh", "show", "nud", "all"]) {
            if let Some(model) = neighbour_of(&neighbour, &names) {
                lines.insert(format!("neighbour {} {}", model.index, model.addr), forwarding_view(&model));
            }
        }
        for family in ["-4", "-6"] {
            let mut routes: HashMap<String, Vec<Route>> = HashMap::new();
            for route in json(namespace, &[family, "-j", "-d", "-N", "route", "show", "table", "all"]) {
                if let Some(model) = route_of(&route, &names, family == "-6") {
                    if !route["tos"].is_null() || !route["from"].is_null() {
                        lines.insert(format!("selective {} {}", model.table, model.prefix), String::new());
                        continue;
                    }
                    let key = format!("route {} {} {}", model.table, model.prefix, model.metric);
                    routes.entry(key).or_default().push(model);
                }
            }
            for (key, all) in routes {
                let usable = |r: &&Route| r.kind != RouteKind::Unicast || r.next_hops.iter().any(|h| h.alive);
                let mut model = all.iter().find(usable).unwrap_or(&all[0]).clone();
                let usable: Vec<&Route> = all.iter().filter(usable).collect();
                // Among several of IPv6, reachable neighbours decide: only the kernel can use them.
                if family == "-6" && usable.len() > 1 && usable.iter().any(|route| route.kind == RouteKind::Unicast) {
                    model.kind = RouteKind::Unicast;
                    model.next_hops = [NextHop { index: 0, outer: None, gateway: None, weight: 1, alive: true }].into();
                }
                lines.insert(key, route_view(&model));
            }
        }
        Self { lines }
    }
}

/// Returns the differences as readable lines.
pub fn differences(state: &State, oracle: &Oracle) -> Vec<String> {
    let mut lines = BTreeMap::new();
    for link in state.links() {
        lines.insert(format!("link {}", link.index), format!("{link:?}"));
    }
    for address in state.addresses() {
        lines.insert(format!("address {} {} {}", address.index, address.addr, address.len), format!("{address:?}"));
    }
    for neighbour in state.neighbours().filter(|n| n.addr.is_ipv4() || !n.addr.is_multicast()) {
        lines.insert(format!("neighbour {} {}", neighbour.index, neighbour.addr), forwarding_view(neighbour));
    }
    for route in state.routes() {
        lines.insert(format!("route {} {} {}", route.table, route.prefix, route.metric), route_view(&route));
    }
    lines.extend(state.selective().map(|(table, prefix)| (format!("selective {table} {prefix}"), String::new())));
    let mut out = Vec::new();
    for (key, line) in &oracle.lines {
        if lines.get(key) != Some(line) {
            out.push(format!("{key}\n  kernel: {line}\n  mirror: {}", lines.get(key).map_or("nothing", |l| l)));
        }
    }
    for (key, line) in lines.iter().filter(|(key, _)| !oracle.lines.contains_key(*key)) {
        out.push(format!("{key}\n  kernel: nothing\n  mirror: {line}"));
    }
    out
}

/// Formats a neighbour. Stale entries become delayed ones without a message, which makes no difference to forwarding.
fn forwarding_view(neighbour: &Neighbour) -> String {
    let state = match neighbour.state {
        NeighbourState::Reachable | NeighbourState::Stale => "usable",
        NeighbourState::Incomplete | NeighbourState::Failed => "unusable",
    };
    format!("{state} {:?}", neighbour.mac)
}

fn route_view(route: &Route) -> String {
    let mut hops: Vec<String> = route.next_hops.iter().map(|hop| format!("{hop:?}")).collect();
    hops.sort();
    format!("{:?} mtu {:?} source {:?} by {} {hops:?}", route.kind, route.mtu, route.source, route.protocol)
}

fn json(namespace: &Namespace, arguments: &[&str]) -> Vec<Value> {
    let output = namespace.ip(arguments).unwrap().stdout;
    match output.trim() {
        "" => Vec::new(),
        text => serde_json::from_str(text).unwrap(),
    }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}

/// Returns a number, which `ip` prints as a number or, with -N, as text.
fn number(value: &Value, key: &str) -> Option<u64> {
    value[key].as_u64().or_else(|| value[key].as_str()?.parse().ok())
}

fn flag(value: &Value, wanted: &str) -> bool {
    value["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag.as_str() == Some(wanted)))
}

fn mac(text: &str) -> Option<Mac> {
    let octets: Vec<u8> = text.split(':').map(|o| u8::from_str_radix(o, 16)).collect::<Result<_, _>>().ok()?;
    octets.try_into().ok()
}

fn link_of(link: &Value, names: &Names) -> Link {
    let kind = text(&link["linkinfo"], "info_kind").to_string();
    let plain = |mode| Some(Macvlan { mode, plain: true });
    let paired = kind == "veth" || !link["link_netnsid"].is_null();
    let parent = names.get(text(link, "link")).copied().or(number(link, "link_index").map(|n| n as u32));
    Link {
        index: number(link, "ifindex").unwrap() as u32,
        name: text(link, "ifname").into(),
        mac: if text(link, "link_type") == "ether" && !flag(link, "NOARP") { mac(text(link, "address")) } else { None },
        mtu: number(link, "mtu").unwrap() as u32,
        up: flag(link, "UP"),
        carrier: flag(link, "LOWER_UP"),
        parent: if paired { None } else { parent },
        paired: kind == "veth" && link["link_netnsid"].is_null() && parent.is_some(),
        vlan: if kind == "vlan" { vlan_of(&link["linkinfo"]["info_data"]) } else { None },
        macvlan: match text(&link["linkinfo"]["info_data"], "mode") {
            "private" if kind.starts_with("macv") => plain(1),
            "vepa" => plain(2),
            "bridge" if kind.starts_with("macv") => plain(4),
            "passthru" => plain(8),
            "source" => plain(16),
            _ => None,
        },
        ipvlan: match text(&link["linkinfo"]["info_data"], "mode") {
            "l2" => Some(0),
            "l3" => Some(1),
            "l3s" => Some(2),
            _ => None,
        },
        vrf: number(&link["linkinfo"]["info_data"], "table").filter(|_| kind == "vrf").map(|n| n as u32),
        bridge: None,
        bond: if kind == "bond" { bond_of(&link["linkinfo"]["info_data"], names) } else { None },
        member: member_of(&link["linkinfo"]),
        kind,
        master: names.get(text(link, "master")).copied(),
        rx_queues: number(link, "num_rx_queues").unwrap_or(1) as u32,
        switch: false,
        tunnel: None,
        vlans: BridgeVlans::default(),
    }
}

fn vlan_of(data: &Value) -> Option<Vlan> {
    let protocol = if text(data, "protocol") == "802.1ad" { 0x88a8 } else { 0x8100 };
    let maps = !data["ingress_qos"].is_null() || !data["egress_qos"].is_null();
    let plain = !maps && data["flags"].as_array().is_some_and(|all| all[..] == ["REORDER_HDR"]);
    Some(Vlan { protocol, id: number(data, "id")? as u16, plain })
}

fn bond_of(data: &Value, names: &Names) -> Option<Bond> {
    let modes = ["balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb"];
    let mode = modes.iter().position(|mode| *mode == text(data, "mode"))? as u8;
    let active = names.get(text(data, "active_slave")).copied();
    let hashes = ["layer2", "layer3+4", "layer2+3", "encap2+3", "encap3+4", "vlan+srcmac"];
    let xmit_hash = hashes.iter().position(|hash| *hash == text(data, "xmit_hash_policy")).unwrap_or(0) as u8;
    Some(Bond { mode, active, xmit_hash, plain: number(data, "arp_interval").unwrap_or(0) == 0 })
}

fn member_of(info: &Value) -> Option<Member> {
    let data = &info["info_slave_data"];
    let active = text(data, "state") == "ACTIVE" && text(data, "mii_status") == "UP";
    (text(info, "info_slave_kind") == "bond").then_some(Member {
        active,
        plain: number(data, "queue_id") == Some(0),
        ..Member::default()
    })
}

fn address_of(index: u32, address: &Value) -> Address {
    let addr: IpAddr = text(address, "local").parse().unwrap();
    let set = |key: &str| address[key].as_bool() == Some(true);
    let scope = address["scope"].as_str().map(str::to_string).unwrap_or(address["scope"].to_string());
    let link_scope = match (&addr, scope.as_str()) {
        (IpAddr::V4(_), scope) => !matches!(scope, "global" | "0"),
        (IpAddr::V6(_), scope) => matches!(scope, "link" | "host" | "253" | "254"),
    };
    let secondary = ["secondary", "temporary", "deprecated", "tentative", "dadfailed"].iter().any(|key| set(key));
    Address { index, addr, len: number(address, "prefixlen").unwrap() as u8, secondary, link_scope }
}

fn neighbour_of(neighbour: &Value, names: &Names) -> Option<Neighbour> {
    let addr: IpAddr = text(neighbour, "dst").parse().ok()?;
    let states: Vec<&str> = neighbour["state"].as_array()?.iter().filter_map(Value::as_str).collect();
    if addr.is_multicast() || states.contains(&"NOARP") || states.contains(&"NONE") || states.is_empty() {
        return None;
    }
    let state = match states[0] {
        "INCOMPLETE" => NeighbourState::Incomplete,
        "FAILED" => NeighbourState::Failed,
        "STALE" => NeighbourState::Stale,
        _ => NeighbourState::Reachable,
    };
    let usable = matches!(state, NeighbourState::Reachable | NeighbourState::Stale);
    let mac = mac(text(neighbour, "lladdr")).filter(|_| usable);
    Some(Neighbour { index: *names.get(text(neighbour, "dev"))?, addr, mac, state })
}

fn route_of(route: &Value, names: &Names, v6: bool) -> Option<Route> {
    // Expired, and not collected yet.
    if route["expires"].as_i64().is_some_and(|seconds| seconds < 0) {
        return None;
    }
    let prefix: Prefix = match text(route, "dst") {
        "default" if v6 => "::/0",
        "default" => "0.0.0.0/0",
        dst => dst,
    }
    .parse()
    .unwrap();
    let kind = match text(route, "type") {
        "unicast" | "1" | "" => RouteKind::Unicast,
        "blackhole" | "6" => RouteKind::Blackhole,
        "unreachable" | "7" => RouteKind::Unreachable,
        "prohibit" | "8" => RouteKind::Prohibit,
        "throw" | "9" => RouteKind::Throw,
        _ => RouteKind::Local,
    };
    let mut next_hops = Vec::new();
    if kind == RouteKind::Unicast {
        match route["nexthops"].as_array() {
            Some(hops) => next_hops.extend(hops.iter().map(|hop| hop_of(hop, names))),
            None => next_hops.push(hop_of(route, names)),
        }
    }
    // A route through a blackhole object has no device.
    let kind = if kind == RouteKind::Unicast && next_hops.iter().all(|hop| hop.index == 0) {
        next_hops.clear();
        RouteKind::Blackhole
    } else {
        kind
    };
    // Only the kernel knows whether it uses a gateway that is one of its own addresses, except for next-hop objects.
    let skips =
        |hop: &NextHop| hop.gateway.is_some_and(|addr| addr.is_ipv4() && names.own.contains(&(hop.index, addr)));
    for hop in next_hops.iter_mut().filter(|hop| route["nhid"].is_null() && skips(hop)) {
        hop.index = 0;
    }
    Some(Route {
        table: match text(route, "table") {
            "" | "main" => number(route, "table").unwrap_or(254) as u32,
            "local" => 255,
            other => other.parse().unwrap(),
        },
        prefix,
        kind,
        metric: number(route, "metric").unwrap_or(0) as u32,
        next_hops: next_hops.into(),
        mtu: route["metrics"].as_array().and_then(|m| m.iter().find_map(|m| number(m, "mtu"))).map(|mtu| mtu as u32),
        source: text(route, "prefsrc").parse().ok(),
        protocol: number(route, "protocol").unwrap_or(3) as u8,
    })
}

fn hop_of(hop: &Value, names: &Names) -> NextHop {
    let gateway = text(hop, "gateway").parse().ok().or(text(&hop["via"], "host").parse().ok());
    let index = names.get(text(hop, "dev")).copied().unwrap_or(0);
    // A next hop with "linkdown" but not "dead" is used; the kernel shows both if it ignores the next hop.
    let alive = !flag(hop, "dead") && (index == 0 || names.up.contains(&index));
    NextHop { index, outer: None, gateway, weight: number(hop, "weight").unwrap_or(1) as u16, alive }
}
