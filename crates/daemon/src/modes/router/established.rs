//! View of established flows: the table's flows and counts, and the connections that are left to the kernel.
//!
//! The thread that keeps the table is not involved: flows are read as workers read them, and connections from the
//! kernel.

use super::flows::Ports;
use super::view::parse_prefix;
use crate::modes::Names;
use bywash_api::{
    EstablishedFlow, EstablishedFlows, FlowDirection, FlowFamily, FlowTable, FlowsRevoked, KernelConnections,
    KernelReason, LastRevoked,
};
use bywash_conntrack::{
    Connection, Counts, Judge, Reason, Revocation, Statistics, TCP, Times, UDP, flow, packets_since, read_connections,
};
use bywash_engine::{PORTS, PortId};
use bywash_exceptions::PortLink;
use bywash_exceptions::nft::{self, Rule, Ruleset};
use bywash_fib::flows::{Flow, FlowId, FlowTables, Listed, Standing, Traffic, Tuple};
use bywash_fib::model::{Families, Prefix};
use bywash_router::gates::{Gate, Gates};
use bywash_router::tables::Tables;
use bywash_router::vlan::VLANS;
use bywash_sync::{Published, Qsbr, lock};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, UNIX_EPOCH};

/// Maximum number of flows in an answer.
const PAGE: usize = 10_000;
/// Maximum number of places of the table that are examined for an answer.
const LOOKED_AT: usize = 1 << 17;
/// Places that are examined between two quiescent states.
const BURST: usize = 1024;
/// Reason of a connection whose packets need no flow.
const NEEDS_NONE: &str = "none: it needs no flow, its packets are forwarded by routes";
/// Longest time that judging the connections may take.
const JUDGING: Duration = Duration::from_secs(30);

/// The router's established flows, as the API sees them.
pub struct Established {
    /// `None` if no flows are kept.
    pub table: Option<Table>,
    pub limit: usize,
    pub names: Names,
    pub gates: Gates,
    pub tables: Arc<Published<Tables>>,
    pub domain: Qsbr,
    /// Highest numbers of packets and bytes of flows ever reported, so that these counters never decrease.
    pub most: [AtomicU64; 2],
}

/// The table of flows, and its statistics.
pub struct Table {
    pub flows: FlowTables,
    pub statistics: Arc<Statistics>,
}

impl Established {
    /// Returns the flows that a filter selects. `uppers` are the ports' VLANs and bridges, by number and name.
    pub fn flows(&self, filter: Option<&str>, uppers: &[(PortId, String)]) -> Result<EstablishedFlows, String> {
        let selection = Selection::parse(filter.unwrap_or_default())?;
        let Some(Table { flows, statistics }) = &self.table else { return Ok(EstablishedFlows::default()) };
        let ports = lock(&self.names).clone().into_iter().zip(0..).map(|(name, port)| (port, name));
        let names: HashMap<u16, String> =
            ports.chain(uppers.iter().map(|(upper, name)| (upper.0, name.clone()))).collect();
        let mut reader = self.domain.register();
        let total = present(&statistics.counts()).iter().sum();
        let mut answer = EstablishedFlows { total, ..EstablishedFlows::default() };
        let mut found: Vec<(FlowId, Listed)> = Vec::new();
        for (n, id) in places(selection.after, statistics.places()).enumerate() {
            if n == LOOKED_AT || found.len() == selection.limit {
                answer.next = Some(cursor(id));
                break;
            }
            if n.is_multiple_of(BURST) {
                reader.quiescent();
            }
            if let Some(listed) = flows.at(id).filter(|listed| selection.selects(&listed.flow)) {
                found.push((id, listed));
            }
        }
        let times = statistics.times(found.iter().map(|(id, _)| *id));
        answer.flows = found.iter().zip(times).map(|((_, listed), times)| row(listed, &names, times)).collect();
        Ok(answer)
    }

    /// Returns the table's size and counts.
    pub fn table(&self) -> FlowTable {
        let Some(table) = &self.table else {
            return FlowTable { state: "off".into(), ..FlowTable::default() };
        };
        let counts = table.statistics.counts();
        let [packets, bytes] = self.forwarded(table, counts.retired);
        let flows = |port: u16| self.gates.get(PortId(port)).flows;
        let passing = (0..(PORTS + VLANS) as u16).fold(Families::NONE, |all, port| all | flows(port));
        let family = |at: usize, name: &str| FlowFamily {
            family: name.into(),
            passing: [passing.v4, passing.v6][at],
            flows: present(&counts)[at],
            inserted: counts.inserted[at],
            removed: counts.removed[at],
        };
        let revoked = |(why, flows): (Revocation, &u64)| FlowsRevoked { reason: why.name().into(), flows: *flows };
        let last_revoked = counts.last.map(|(time, why)| LastRevoked {
            reason: why.name().into(),
            time: time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        });
        FlowTable {
            state: if passing.is_empty() { "idle" } else { "passing" }.into(),
            limit: self.limit as u64,
            families: vec![family(0, "ipv4"), family(1, "ipv6")],
            packets,
            bytes,
            revoked: Revocation::ALL.into_iter().zip(&counts.revoked).map(revoked).collect(),
            last_revoked,
            full: counts.full,
            lost: counts.lost,
            judged: counts.judged.0,
            judging_us: counts.judged.1.as_micros() as u64,
        }
    }

    /// Returns the packets and bytes that flows have forwarded, `retired` ones included. A flow that was removed since
    /// those were counted may be missing.
    fn forwarded(&self, Table { flows, statistics }: &Table, retired: (u64, u64)) -> [u64; 2] {
        let (mut packets, mut octets) = retired;
        let mut reader = self.domain.register();
        for (n, id) in places(FlowId::new(false, 0), statistics.places()).enumerate() {
            if n.is_multiple_of(BURST) {
                reader.quiescent();
            }
            // The record is not used for another flow meanwhile.
            let before = statistics.packets(id);
            if let Some(Listed { traffic, .. }) = flows.at(id) {
                packets += packets_since(before, &traffic);
                octets += traffic.iter().map(|one| one.bytes).sum::<u64>();
            }
        }
        let grown = |most: &AtomicU64, now: u64| most.fetch_max(now, Ordering::Relaxed).max(now);
        [grown(&self.most[0], packets), grown(&self.most[1], octets)]
    }

    /// Reads the kernel's connections and judges those without a valid flow, by the rules as they are now.
    pub fn connections(&self, links: &[PortLink]) -> Result<KernelConnections, String> {
        let ruleset = nft::read_whole().map_err(|why| format!("the rules cannot be read: {why}"))?;
        let judge = Judge::new(&ruleset);
        let mut ports = Ports::new(self.tables.clone(), &self.domain);
        ports.set(links);
        // The rules' reasons come first.
        ports.pass(links.iter().map(|port| (port.id, Families::BOTH)).collect());
        let (mut reader, until) = (self.domain.register(), Instant::now() + JUDGING);
        let mut answer = KernelConnections::default();
        let mut reasons: HashMap<String, KernelReason> = HashMap::new();
        let mut each = |connection: Connection| {
            reader.quiescent();
            answer.connections += 1;
            let listed = self.listed(&connection);
            let standing = listed.map(|listed| listed.standing);
            let valid = listed.filter(|listed| listed.standing == Standing::Valid);
            if valid.is_some_and(|listed| self.passes(&listed.flow)) {
                answer.forwarded += 1;
                return;
            }
            if Instant::now() > until {
                answer.skipped += 1;
                return;
            }
            let judged = match flow(&connection, &judge, &ports) {
                Ok(flow) => self.accepted(&flow, standing),
                Err(Reason::Firewall(_)) if self.needs_none(&connection, links) => {
                    KernelReason { reason: NEEDS_NONE.into(), ..KernelReason::default() }
                }
                Err(reason) => refused(&reason, &ruleset),
            };
            let key = format!("{} {}", judged.rule.as_deref().unwrap_or_default(), judged.reason);
            let known = reasons.entry(key).or_insert_with(|| KernelReason { example: example(&connection), ..judged });
            known.connections += 1;
        };
        read_connections(&mut each).map_err(|why| why.to_string())?;
        answer.reasons = reasons.into_values().collect();
        answer.reasons.sort_by(|a, b| b.connections.cmp(&a.connections).then_with(|| a.reason.cmp(&b.reason)));
        Ok(answer)
    }

    /// Returns whether the gates of a flow's ports let its packets of both directions pass.
    fn passes(&self, flow: &Flow) -> bool {
        let v6 = flow.original.src.is_ipv6();
        let flows = [flow.input, flow.output].map(|port| self.gates.get(PortId(port)).flows);
        flows.iter().all(|flows| if v6 { flows.v6 } else { flows.v4 })
    }

    /// Returns whether no port leaves packets of a connection's family to the kernel, whatever its rules say.
    fn needs_none(&self, connection: &Connection, ports: &[PortLink]) -> bool {
        let v6 = connection.key.original.src.is_ipv6();
        let closed = |port: &PortLink| self.gates.get(PortId(port.id)).closed;
        ports.iter().map(closed).all(|closed| if v6 { !closed.v6 } else { !closed.v4 })
    }

    /// Returns the flow of a connection; `None` if it has none.
    fn listed(&self, connection: &Connection) -> Option<Listed> {
        let (key, original) = (connection.key, connection.key.original);
        let (src, dst) = (original.src.ip(), original.dst.ip());
        let tuple = Tuple { src, dst, src_port: original.src.port(), dst_port: original.dst.port() };
        let Table { flows, .. } = self.table.as_ref().filter(|_| key.zone == 0)?;
        flows.at(flows.find(key.protocol, &tuple)?)
    }

    /// Returns the reason why a connection that the rules accept is nevertheless left to the kernel.
    fn accepted(&self, flow: &Flow, standing: Option<Standing>) -> KernelReason {
        let v6 = flow.original.src.is_ipv6();
        let has = |families: Families| if v6 { families.v6 } else { families.v4 };
        let gates = [flow.input, flow.output].map(|port| self.gates.get(PortId(port)));
        let all = |is: &dyn Fn(&Gate) -> bool| gates.iter().all(is);
        let full = |table: &Table| present(&table.statistics.counts()).iter().sum::<u64>() >= self.limit as u64;
        let held = &Reason::Held.to_string();
        let reason = match standing {
            _ if all(&|gate| !has(gate.closed)) => NEEDS_NONE,
            _ if self.table.is_none() => "flows are off: `flows` is 0 in [router]",
            Some(Standing::Revoked) => "revoked: it is being closed",
            Some(Standing::Valid) => held,
            Some(Standing::Unconfirmed) => "the newest rules are still to be evaluated for it",
            None if self.table.as_ref().is_some_and(full) => "the table is full: `flows` in [router] is its size",
            None if !self.passes(flow) => held,
            None => {
                "it has had few packets so far, or the kernel sends no events of it: it began while Bywash did not listen"
            }
        };
        KernelReason { reason: reason.into(), ..KernelReason::default() }
    }
}

fn refused(reason: &Reason, ruleset: &Ruleset) -> KernelReason {
    let Reason::Firewall(refusal) = reason else {
        return KernelReason { reason: reason.to_string(), ..KernelReason::default() };
    };
    let (place, what) = refusal.parts();
    KernelReason {
        reason: what.into(),
        rule: place.map(ToString::to_string),
        text: place.and_then(|place| ruleset.rule(place)).map(Rule::text),
        ..KernelReason::default()
    }
}

fn example(connection: &Connection) -> String {
    let protocol = protocol(connection.key.protocol);
    format!("{protocol} {}, replies {}", connection.key.original, connection.reply)
}

fn protocol(number: u8) -> &'static str {
    if number == TCP { "tcp" } else { "udp" }
}

/// Returns the number of flows of IPv4 and of IPv6.
fn present(counts: &Counts) -> [u64; 2] {
    [0, 1].map(|family| counts.inserted[family] - counts.removed[family])
}

/// Iterates over the places from one on: those of IPv4, then those of IPv6.
fn places(from: FlowId, places: [usize; 2]) -> impl Iterator<Item = FlowId> {
    let first = move |v6| match (from.is_v6(), v6) {
        (true, false) => usize::MAX,
        (false, true) => 0,
        _ => from.index(),
    };
    let of = move |v6| (first(v6)..places[usize::from(v6)]).map(move |index| FlowId::new(v6, index));
    [false, true].into_iter().flat_map(of)
}

fn cursor(id: FlowId) -> String {
    format!("{}.{}", if id.is_v6() { 6 } else { 4 }, id.index())
}

fn row(listed: &Listed, names: &HashMap<u16, String>, times: Times) -> EstablishedFlow {
    let Listed { flow, traffic, standing } = listed;
    let direction = |tuple: &Tuple, port: u16, traffic: &Traffic| FlowDirection {
        src: tuple.src,
        src_port: tuple.src_port,
        dst: tuple.dst,
        dst_port: tuple.dst_port,
        port: names.get(&port).map_or("?".into(), String::clone),
        level: String::new(),
        packets: traffic.packets,
        bytes: traffic.bytes,
    };
    let state = match standing {
        Standing::Valid => "valid",
        Standing::Unconfirmed => "unconfirmed",
        Standing::Revoked => "revoked",
    };
    EstablishedFlow {
        protocol: protocol(flow.protocol).into(),
        original: direction(&flow.original, flow.input, &traffic[0]),
        reply: direction(&flow.reply, flow.output, &traffic[1]),
        age_s: times.age.into(),
        idle_s: times.idle.into(),
        state: state.into(),
    }
}

/// Flows to show.
#[derive(Debug, PartialEq)]
struct Selection {
    src: Option<Prefix>,
    dst: Option<Prefix>,
    port: Option<u16>,
    protocol: Option<u8>,
    limit: usize,
    /// Place to begin at.
    after: FlowId,
}

impl Selection {
    fn parse(text: &str) -> Result<Self, String> {
        let (src, dst, port, protocol) = (None, None, None, None);
        let mut all = Self { src, dst, port, protocol, limit: PAGE, after: FlowId::new(false, 0) };
        for part in text.split([',', ' ']).filter(|part| !part.is_empty()) {
            let wrong = || format!("`{part}`: flows are selected by src=, dst=, port=, proto=, limit= and after=");
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            match key {
                "src" => all.src = Some(parse_prefix(value)?),
                "dst" => all.dst = Some(parse_prefix(value)?),
                "port" => {
                    let port = value.parse().map_err(|_| format!("`{part}`: expected a port from 0 to 65535"))?;
                    all.port = Some(port);
                }
                "proto" if value == "tcp" => all.protocol = Some(TCP),
                "proto" if value == "udp" => all.protocol = Some(UDP),
                "proto" => return Err(format!("`{part}`: proto is tcp or udp")),
                "limit" => all.limit = value.parse::<usize>().map_err(|_| wrong())?.min(PAGE),
                "after" => {
                    let (family, index) = value.split_once('.').ok_or_else(wrong)?;
                    let index = index.parse::<u32>().ok().filter(|index| *index < 1 << 31).ok_or_else(wrong)?;
                    let v6 = match family {
                        "4" => false,
                        "6" => true,
                        _ => return Err(wrong()),
                    };
                    all.after = FlowId::new(v6, index as usize);
                }
                _ => return Err(wrong()),
            }
        }
        Ok(all)
    }

    fn selects(&self, flow: &Flow) -> bool {
        let Flow { protocol, original, reply, .. } = flow;
        let within =
            |of: Option<Prefix>, addrs: [IpAddr; 2]| of.is_none_or(|of| addrs.iter().any(|a| of.covers((*a).into())));
        let ports = [original.src_port, original.dst_port, reply.src_port, reply.dst_port];
        self.protocol.is_none_or(|of| of == *protocol)
            && self.port.is_none_or(|of| ports.contains(&of))
            && within(self.src, [original.src, reply.dst])
            && within(self.dst, [original.dst, reply.src])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_selected_before_and_after_their_translation() {
        let tuple = |src: &str, src_port, dst: &str, dst_port| {
            let (src, dst) = (src.parse().unwrap(), dst.parse().unwrap());
            Tuple { src, dst, src_port, dst_port }
        };
        let flow = Flow {
            protocol: TCP,
            original: tuple("10.0.0.1", 4000, "192.0.2.1", 80),
            reply: tuple("192.0.2.1", 80, "203.0.113.9", 1024),
            input: 0,
            output: 1,
        };
        let takes = |text: &str| Selection::parse(text).unwrap().selects(&flow);
        for good in
            ["", "src=10.0.0.0/8,proto=tcp", "src=203.0.113.9 dst=192.0.2.0/24", "port=80", "port=1024", "limit=0"]
        {
            assert!(takes(good), "{good}");
        }
        for other in ["src=192.0.2.1", "dst=10.0.0.1", "port=81", "proto=udp", "src=::/0", "src=10.0.0.1,port=81"] {
            assert!(!takes(other), "{other}");
        }
        for wrong in [
            "src",
            "src=x",
            "proto=icmp",
            "port=65536",
            "after=5.1",
            "after=4",
            "limit=-1",
            "x=1",
            "after=4.4294967295",
        ] {
            assert!(Selection::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn places_follow_a_cursor() {
        let all = |from| places(from, [3, 2]).map(cursor).collect::<Vec<_>>();
        assert_eq!(all(FlowId::new(false, 0)), ["4.0", "4.1", "4.2", "6.0", "6.1"]);
        for (n, id) in places(FlowId::new(false, 0), [3, 2]).enumerate() {
            let after = Selection::parse(&format!("after={}", cursor(id))).unwrap().after;
            assert_eq!((after, all(after).len()), (id, 5 - n));
        }
    }
}
