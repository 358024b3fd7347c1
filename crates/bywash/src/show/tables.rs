//! Text layout of each topic.

use super::established;
use super::layout::{Cell, Grid, bits, bytes, pps};
use crate::api::{
    Address, Answer, Arena, Audit, Caches, Channel, Cpe, Drift, Drops, Flow, Groups, Health, Kept, Meter, Modem,
    Neighbour, NextHop, Placement, Pool, Pools, Port, Queue, Route, Sandbox, ServiceFlow, SwitchPort, Worker,
};
use crate::config::count;
use std::collections::HashMap;
use std::time::Instant;

/// Previous values of monotonic counters, for computing rates.
#[derive(Default)]
pub struct Rates {
    last: HashMap<String, (Instant, f64)>,
}

impl Rates {
    /// Returns the increase per second of the counter `name` since the previous call; `None` on the first call and if
    /// the counter has decreased, as after a restart.
    fn of(&mut self, name: String, now: f64) -> Option<f64> {
        let (time, before) = self.last.insert(name, (Instant::now(), now))?;
        let seconds = time.elapsed().as_secs_f64();
        (now >= before && seconds > 0.0).then(|| (now - before) / seconds)
    }
}

/// Renders the answer for a topic as text.
pub fn render(answer: &Answer, rates: &mut Rates) -> String {
    match answer {
        Answer::Ports(all) => ports(all, rates),
        Answer::Workers(all) => workers(all),
        Answer::Pools(all) => pools(all),
        Answer::Audit(sum) => audit(sum),
        Answer::Routes(all) => routes(all),
        Answer::Neighbours(all) => neighbours(all),
        Answer::EstablishedFlows(part) => established::flows(part),
        Answer::FlowTable(table) => established::table(table),
        Answer::KernelConnections(all) => established::connections(all),
        Answer::Drift(all) => drift(all),
        Answer::Drops(all) => drops(all, rates),
        Answer::Placement(all) => placement(all),
        Answer::Sandbox(state) => sandbox(state),
        Answer::Health(of) => health(of),
        Answer::Flows(all) => flows(all),
        Answer::Groups(all) => groups(all),
        Answer::Fdb(all) => addresses(all),
        Answer::Caches(all) => caches(all),
        Answer::Modems(all) => modems(all),
        Answer::Cpes(all) => cpes(all),
        Answer::ServiceFlows(all) => service_flows(all),
        Answer::Channels(all) => channels(all),
        Answer::Config(config) => toml::to_string(config).unwrap_or_else(|why| format!("{why}\n")),
    }
}

fn health(health: &Health) -> String {
    let Health { status, version, mode, pid, uptime_s } = health;
    let (minutes, seconds) = (uptime_s / 60, uptime_s % 60);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    let uptime = match (hours / 24, hours % 24) {
        (0, 0) if minutes == 0 => format!("{seconds} s"),
        (0, 0) => format!("{minutes} min {seconds} s"),
        (0, hours) => format!("{hours} h {minutes} min"),
        (days, hours) => format!("{days} d {hours} h"),
    };
    format!("{status}\nbywash {version}, mode {mode}, pid {pid}, up {uptime}\n")
}

fn sandbox(sandbox: &Sandbox) -> String {
    let Sandbox { state, reason, user, threads, no_new_privs, capabilities, seccomp, system_calls, .. } = sandbox;
    let reason = reason.as_ref().map_or(String::new(), |why| format!(" ({why})"));
    let capabilities = if capabilities.is_empty() { "none".into() } else { capabilities.join(" ") };
    let mut lines = vec![
        format!("sandbox: {state}{reason}"),
        format!("user: {user}"),
        format!("threads: {threads}"),
        format!("new privileges: {}", if *no_new_privs { "none" } else { "possible" }),
        format!("capabilities: {capabilities}"),
    ];
    match *seccomp && !system_calls.is_empty() {
        false => lines.push("system calls: all".into()),
        true => {
            lines.push(format!("system calls: {}", system_calls.len()));
            let mut line = String::new();
            for call in system_calls {
                if line.len() + call.len() > 96 {
                    lines.push(format!(" {line}"));
                    line.clear();
                }
                line += &format!(" {call}");
            }
            lines.push(format!(" {line}"));
        }
    }
    match sandbox.broker {
        None => lines.push("broker: none; it loads any BPF program".into()),
        Some(pid) if sandbox.broker_ended => {
            lines.push(format!(
                "broker: pid {pid} has ended: ports cannot be added, nor settings restored; restart bywash"
            ));
        }
        Some(pid) => lines.push(format!("broker: pid {pid}, makes files in {}", sandbox.made.join(" "))),
    }
    match sandbox.landlock {
        false => lines.push("files: all that its user may open".into()),
        true => {
            lines.push(format!("files that can be read: {}", sandbox.readable.join(" ")));
            lines.push(format!("files that can be made: {}", sandbox.writable.join(" ")));
        }
    }
    lines.push("an attacker inside could still".into());
    lines.extend(sandbox.left.iter().map(|left| format!("  {left}")));
    lines.join("\n") + "\n"
}

/// OpenFlow number of the local port.
const LOCAL: u64 = 0xfffe;

fn ports(ports: &[Port], rates: &mut Rates) -> String {
    let mut grid =
        Grid::new(&["port", "interface", "state", "mode", "mtu", "queues", "rx", "tx", "rx rate", "tx rate", "lost"]);
    let mut more = String::new();
    for port in ports {
        let (name, counters) = (&port.name, &port.counters);
        let mut rate = |direction: &str, packets: u64, octets: u64| {
            let packets = rates.of(format!("{name} {direction}_packets"), packets as f64);
            let octets = rates.of(format!("{name} {direction}_bytes"), octets as f64);
            packets.zip(octets).map(|(packets, octets)| format!("{}, {}", pps(packets), bits(octets * 8.0)))
        };
        let rx_rate = rate("rx", counters.rx_packets, counters.rx_bytes);
        let tx_rate = rate("tx", counters.tx_packets, counters.tx_bytes);
        // Forwarding level, attachment of the program, and mode of the sockets ("mixed" if they differ).
        let mut sockets = port.queues.iter().map(|queue| queue.mode.as_deref());
        let socket = sockets.next().flatten();
        let socket = if sockets.all(|mode| mode == socket) { socket } else { Some("mixed") };
        // At level driver with traffic control, no frame comes through a socket.
        let socket = socket.filter(|_| (port.mode.as_deref(), &*port.level) != (Some("tc"), "driver"));
        let level = Some(&*port.level).filter(|level| !level.is_empty());
        let modes = [level, port.mode.as_deref().map(attachment), socket];
        row!(grid;
            name,
            port.interface.as_ref().filter(|interface| *interface != name),
            port.state,
            modes.into_iter().flatten().collect::<Vec<_>>().join(", "),
            port.mtu,
            queues(&port.queues),
            counters.rx_packets,
            counters.tx_packets,
            rx_rate,
            tx_rate,
            counters.rx_no_buffer + counters.rx_ring_full,
        );
        for above in &port.above {
            let level = if above.left.is_some() { "kernel" } else { &port.level };
            let what = [level, above.tag.as_ref().unwrap_or(&above.kind)].join(", ");
            row!(grid; format!("  {}", above.name), "", above.state, what, above.mtu, "", "", "", "", "", "");
        }
        let mut notes: Vec<String> = port.reason.iter().cloned().collect();
        notes.extend(port.queues.iter().filter_map(|queue| queue.mode_note.clone()));
        notes.extend(port.queues.iter().filter_map(|queue| queue.transmit_note.clone()));
        notes.extend(port.queues.iter().filter_map(link));
        notes.extend(port.switch.iter().filter(|port| port.number == LOCAL).map(|_| "the local port".into()));
        notes.extend(port.switch.as_ref().and_then(evicted));
        notes.extend(port.above.iter().filter(|above| !above.sends).map(|above| match &above.left {
            Some(why) => format!("{} is left to the kernel: {why}", above.name),
            None => format!("packets routed to {} are sent by the kernel", above.name),
        }));
        notes.dedup();
        more +=
            &notes.iter().filter(|note| !note.is_empty()).map(|note| format!("{name}: {note}\n")).collect::<String>();
    }
    grid.render("no ports") + &more
}

/// Returns how a port's program is attached, as it is shown.
fn attachment(mode: &str) -> &str {
    match mode {
        "native" => "native XDP",
        "generic" => "generic XDP",
        other => other,
    }
}

/// Describes the addresses learned on a port; `None` if none made room for others.
fn evicted(port: &SwitchPort) -> Option<String> {
    let SwitchPort { addresses, limit, evicted, .. } = port;
    let limit = limit.map_or(String::new(), |limit| format!(" of at most {limit}"));
    (*evicted > 0).then(|| {
        let addresses = if *addresses == 1 { "1 address".into() } else { format!("{addresses} addresses") };
        format!("{addresses}{limit}; {evicted} made room for others")
    })
}

/// Describes the connection of a memif; `None` if the queue is of another kind, or has had no peer.
fn link(queue: &Queue) -> Option<String> {
    let reconnects = queue.reconnects.as_ref()?;
    let peer = queue.peer.as_ref().map(|peer| format!("peer {peer}"));
    let again = (queue.peer.is_some() || reconnects != "0").then(|| format!("reconnects: {reconnects}"));
    let refused = queue.refused.as_ref().map(|refused| format!("refused: {refused}"));
    let parts: Vec<String> = [peer, again, refused].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Formats queues with their workers, as in `0>w0 1>w1`; more than four only as a count.
fn queues(queues: &[Queue]) -> String {
    if queues.len() > 4 {
        return queues.len().to_string();
    }
    let one = |queue: &Queue| format!("{}>w{}", queue.queue.cell(), queue.worker);
    queues.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn workers(workers: &[Worker]) -> String {
    let mut grid =
        Grid::new(&["worker", "cpu", "idle", "busy %", "turns", "idle turns", "sleeps", "burst", "cycles/packet"]);
    let mut more = Grid::new(&["worker", "stage", "packets", "cycles/packet"]);
    let mut tx =
        Grid::new(&["worker", "tx queue", "sends", "packets/send", "wait p50 us", "wait p99 us", "longest us"]);
    for worker in workers {
        for queue in &worker.tx_queues {
            let stats = &queue.stats;
            row!(tx; worker.id, queue.port, stats.sends, stats.burst_mean, stats.wait_us_p50, stats.wait_us_p99,
                stats.wait_us_max);
        }
        for stage in &worker.stages {
            row!(more; worker.id, stage.name, stage.packets, stage.cycles_per_packet);
        }
        let total: f64 = worker.stages.iter().map(|stage| stage.cycles_per_packet).sum();
        row!(grid; worker.id, worker.cpu, worker.idle, worker.busy_percent, worker.turns, worker.idle_turns,
            worker.sleeps, worker.rx_burst_mean, Some(total).filter(|total| *total > 0.0));
    }
    let parts = [grid.render("no workers"), more.render("no stages"), tx.render("no tx queues")];
    parts.join("\n")
}

fn pools(Pools { arena, pools, audit: sum }: &Pools) -> String {
    let Arena { cells, spare, cell, bytes: size, pages, note } = arena;
    let spare = if *spare > 0 { format!("{spare} spare, ") } else { String::new() };
    let mut out = format!("arena: {cells} cells of {cell} B, {spare}{}, pages {pages}\n", bytes(*size as f64));
    if !note.is_empty() {
        out += &format!("       {note}\n");
    }
    let mut grid = Grid::new(&[
        "pool",
        "workers",
        "kind",
        "cache",
        "frames",
        "free",
        "cached",
        "in use",
        "normal",
        "peak",
        "high water",
        "exhausted",
        "surplus",
    ]);
    for pool in pools {
        let name = format!("{}{}", pool.name, if pool.draining { " (draining)" } else { "" });
        let workers = pool.workers.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        row!(grid; name, workers, pool.kind, pool.cache, pool.frames, pool.free, pool.cached, pool.in_use, pool.normal,
            pool.peak, pool.high_water, pool.exhausted, pool.surplus);
    }
    out += &format!("\n{}", grid.render("no pools"));
    for Pool { name, kind, chosen, cpu, memory, .. } in pools {
        if let Some(why) = chosen {
            out += &format!("{name}: {kind} chosen: {why}\n");
        }
        if let (Some(cpu), Some(memory)) = (cpu, memory) {
            out += &format!("{name}: memory near CPU {cpu}: {memory}\n");
        }
    }
    if pools.iter().any(|pool| pool.blocks.is_some()) {
        let mut grid = Grid::new(&["pool", "block", "free", "open", "draining", "frames waiting for their block"]);
        for Pool { name, blocks, parked, .. } in pools {
            let blocks = blocks.as_ref();
            row!(grid; name, blocks.map(|b| b.size), blocks.map(|b| b.free), blocks.map(|b| b.open),
                blocks.map(|b| b.draining), parked);
        }
        out += &format!("\n{}", grid.render("no blocks"));
    }
    out + "\n" + &audit(sum)
}

fn audit(Audit { cells, free, cached, parked, held, missing }: &Audit) -> String {
    let parked = if *parked > 0 { format!("{parked} parked + ") } else { String::new() };
    let moved = if *missing == 0 { "" } else { ", unless they moved during the count" };
    format!("audit: {cells} cells = {free} free + {cached} cached + {parked}{held} held, {missing} missing{moved}\n")
}

/// Descriptions of the reasons for which a route is not installed, by the API's code.
const REASONS: [(&str, &str); 5] = [
    ("kernel", "left to the kernel"),
    ("metric", "not used: another has a lower metric"),
    ("dead", "not used: no next hop is usable"),
    ("hidden", "not used: the prefix is a local address of this machine"),
    ("other-table", "not used: its table is not tracked"),
];

/// Names of route origins (`RTPROT_*` in linux/rtnetlink.h), as used by iproute2.
const PROTOCOLS: [(u8, &str); 15] = [
    (1, "redirect"),
    (2, "kernel"),
    (3, "boot"),
    (4, "static"),
    (9, "ra"),
    (11, "zebra"),
    (12, "bird"),
    (16, "dhcp"),
    (18, "keepalived"),
    (42, "babel"),
    (186, "bgp"),
    (187, "isis"),
    (188, "ospf"),
    (189, "rip"),
    (192, "eigrp"),
];

/// Formats routes like `ip route`, with the state of their next hops and the reason if a route is not used.
fn routes(routes: &[Route]) -> String {
    let mut out = String::new();
    for route in routes {
        let several = route.next_hops.len() > 1;
        let mut words = vec![route.prefix.clone()];
        words.extend(Some(&route.kind).filter(|kind| *kind != "unicast").cloned());
        if let [only] = &*route.next_hops {
            words.push(hop(only, several));
        }
        let protocol = PROTOCOLS.iter().find(|(number, _)| *number == route.protocol);
        words.push(format!("proto {}", protocol.map_or(route.protocol.cell(), |(_, name)| (*name).into())));
        match route.table {
            // Main holds most routes.
            254 => {}
            255 => words.push("table local".into()),
            table => words.push(format!("table {table}")),
        }
        // 0 is IPv4's default metric: omit it.
        words.extend(Some(route.metric).filter(|metric| *metric != 0).map(|metric| format!("metric {metric}")));
        words.extend(route.mtu.filter(|mtu| *mtu != 0).map(|mtu| format!("mtu {mtu}")));
        words.extend(route.source.map(|source| format!("src {source}")));
        if !route.installed {
            let code = route.reason.as_deref().unwrap_or("not used");
            let why = REASONS.iter().find(|(name, _)| *name == code).map_or(code, |(_, why)| why);
            words.push(format!("({why})"));
        }
        words.retain(|word| !word.is_empty());
        out += &(words.join(" ") + "\n");
        if several {
            out += &route.next_hops.iter().map(|one| format!("    {}\n", hop(one, several))).collect::<String>();
        }
    }
    if out.is_empty() { "no routes\n".into() } else { out }
}

/// Formats a next hop; its weight is shown if there are `several`.
fn hop(hop: &NextHop, several: bool) -> String {
    let words = [
        hop.encap.as_ref().map(|encap| format!("encap {encap}")),
        hop.via.map(|via| format!("via {via}")),
        hop.interface.as_ref().or(hop.port.as_ref()).map(|device| format!("dev {device}")),
        several.then(|| format!("weight {}", hop.weight)),
        Some(hop.state.clone()).filter(|state| !state.is_empty()),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn drift(rows: &[Drift]) -> String {
    let mut grid = Grid::new(&["object", "name", "drift"]);
    for Drift { object, name, drift } in rows {
        row!(grid; object, name, drift);
    }
    grid.render("no drift: the kernel's tables and the data plane's agree")
}

fn modems(modems: &[Modem]) -> String {
    let mut grid = Grid::new(&[
        "group",
        "mac",
        "said",
        "key",
        "flows",
        "packets",
        "bytes",
        "queued",
        "policed",
        "queue overflow",
        "aqm",
    ]);
    for m in modems {
        row!(grid; m.group, m.mac, m.said, m.key_sequence, m.flows, m.packets, m.bytes, m.queued, m.policed,
            m.queue_overflow, m.aqm);
    }
    grid.render("no modems")
}

fn cpes(cpes: &[Cpe]) -> String {
    let mut grid = Grid::new(&["group", "mac", "modem", "origin", "idle s"]);
    for c in cpes {
        row!(grid; c.group, c.mac, c.modem, c.origin, c.idle_s);
    }
    grid.render("no addresses behind modems")
}

fn service_flows(flows: &[ServiceFlow]) -> String {
    let mut grid = Grid::new(&[
        "group",
        "mac",
        "flow",
        "dsid",
        "priority",
        "packets",
        "bytes",
        "queued",
        "policed",
        "queue overflow",
        "aqm",
    ]);
    for f in flows {
        row!(grid; f.group, f.modem, f.flow, f.dsid, f.priority, f.packets, f.bytes, f.queued, f.policed,
            f.queue_overflow, f.aqm);
    }
    grid.render("no service flows")
}

fn channels(channels: &[Channel]) -> String {
    let mut grid =
        Grid::new(&["group", "channel", "bit/s", "packets", "bytes", "codewords", "group's queued", "crypto"]);
    for c in channels {
        row!(grid; c.group, c.channel, c.rate, c.packets, c.bytes, c.codewords, c.group_queued, c.crypto);
    }
    grid.render("no channels")
}

/// Formats a flow like ovs-ofctl dump-flows or, without `stats`, like its `--no-stats`.
pub fn flow_line(flow: &Flow, stats: bool) -> String {
    let mut parts = vec![];
    if stats {
        parts.push(format!("cookie={:#x}, duration={:.3}s", flow.cookie, flow.duration_s));
        parts.push(format!("table={}, n_packets={}, n_bytes={}", flow.table, flow.n_packets, flow.n_bytes));
    } else {
        if flow.cookie != 0 {
            parts.push(format!("cookie={:#x}", flow.cookie));
        }
        if flow.table != 0 {
            parts.push(format!("table={}", flow.table));
        }
    }
    for (name, timeout) in [("idle_timeout", flow.idle_timeout_s), ("hard_timeout", flow.hard_timeout_s)] {
        if timeout != 0 {
            parts.push(format!("{name}={timeout}"));
        }
    }
    if stats {
        parts.push(format!("idle_age={}", flow.idle_age_s));
    }
    let priority = Some(flow.priority).filter(|priority| stats || *priority != DEFAULT_PRIORITY);
    let matched = Some(&flow.matches).filter(|matched| !matched.is_empty()).cloned();
    let which = priority.map(|priority| format!("priority={priority}")).into_iter().chain(matched);
    let which = which.collect::<Vec<_>>().join(",");
    parts.push(format!("{which}{}actions={}", if which.is_empty() { "" } else { " " }, flow.actions));
    format!("{}{}", if stats { " " } else { "" }, parts.join(", "))
}

/// Default priority of a flow (OpenFlow).
const DEFAULT_PRIORITY: u16 = 32768;

fn flows(flows: &[Flow]) -> String {
    let lines: String = flows.iter().map(|flow| flow_line(flow, true) + "\n").collect();
    if lines.is_empty() { "no flows\n".into() } else { lines }
}

fn groups(Groups { groups, meters }: &Groups) -> String {
    let meter = |Meter { meter, passed, refused }: &Meter| format!("{meter}  passed={passed} refused={refused}\n");
    let lines: String = groups.iter().map(|group| format!("{group}\n")).chain(meters.iter().map(meter)).collect();
    if lines.is_empty() { "no groups and no meters\n".into() } else { lines }
}

fn addresses(addresses: &[Address]) -> String {
    let mut grid = Grid::new(&["port", "number", "vlan", "mac", "age"]);
    for Address { port, number, vlan, mac, age_s } in addresses {
        row!(grid; port, number, vlan, mac, age_s);
    }
    grid.render("no addresses")
}

fn caches(caches: &Caches) -> String {
    let columns =
        ["worker", "exact-match", "megaflows", "tables", "masks tried", "megaflows now", "masks now", "not cached"];
    let mut grid = Grid::new(&columns);
    for w in &caches.workers {
        let tried = w.megaflow_hits + w.misses;
        let all = w.exact_hits + tried;
        let share = |hits: u64| match all {
            0 => "0".into(),
            all => format!("{hits} ({:.1} %)", 100.0 * hits as f64 / all as f64),
        };
        row!(grid; w.worker, share(w.exact_hits), share(w.megaflow_hits), share(w.misses),
            w.masks_tried as f64 / tried.max(1) as f64, w.megaflows, w.masks, w.not_cached);
    }
    let Caches { flows, addresses_moved: moved, flows_not_learned: not, .. } = caches;
    let grid = grid.render("no workers");
    let flows = count(flows, "flow");
    format!("{grid}\n{flows}; not learned: {not}; addresses moved from port to port: {moved}\n")
}

fn neighbours(neighbours: &[Neighbour]) -> String {
    let mut grid = Grid::new(&["address", "interface", "port", "mac", "state"]);
    for Neighbour { addr, interface, port, mac, state, .. } in neighbours {
        row!(grid; addr, interface, port.as_ref().filter(|port| Some(*port) != interface.as_ref()), mac, state);
    }
    grid.render("no neighbours")
}

fn placement(placement: &[Placement]) -> String {
    let mut grid =
        Grid::new(&["port", "configured", "level", "attached", "target", "in driver", "in user space", "in kernel"]);
    let mut more = String::new();
    for row in placement {
        let (port, frames) = (&row.port, &row.frames);
        let all = frames.driver + frames.user + frames.kernel;
        let share = |frames: u64| match frames {
            0 => "0".into(),
            frames => format!("{frames} ({:.1} %)", 100.0 * frames as f64 / all as f64),
        };
        let target = row.target.map(|takes| if takes { "yes" } else { "no" });
        let attached = row.mode.as_deref().map(attachment);
        row!(grid; port, row.configured, row.level, attached, target, share(frames.driver), share(frames.user),
            share(frames.kernel));
        let sent = row.spread.iter().flatten().map(|sent| format!("CPU {}: {}", sent.cpu, sent.frames));
        let cpus: Vec<String> = sent.collect();
        if !cpus.is_empty() {
            more += &format!("{port} spread: frames sent by {}\n", cpus.join(", "));
        }
        let whys = [
            ("level", Some(&row.why)),
            ("attached", row.mode_why.as_ref()),
            ("spread", row.spread_why.as_ref()),
            ("target", row.target_why.as_ref()),
        ];
        for (what, why) in whys {
            if let Some(why) = why.filter(|why| !why.is_empty()) {
                more += &format!("{port} {what}: {why}\n");
            }
        }
    }
    if placement.iter().any(|row| row.policies.is_some_and(|policies| policies.pending)) {
        more +=
            "a change of the kernel's policies is being read: all packets are left to the kernel until it is applied\n";
    }
    grid.render("no ports") + &more + &kept(placement)
}

/// Formats the kernel policies that keep packets in the kernel, each once with its ports.
fn kept(placement: &[Placement]) -> String {
    let mut all: Vec<(&Kept, Vec<&str>)> = vec![];
    for Placement { port, kept, .. } in placement {
        for reason in kept {
            match all.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, ports)) => ports.push(port),
                None => all.push((reason, vec![port])),
            }
        }
    }
    let line = |(kept, ports): &(&Kept, Vec<&str>)| {
        let Kept { packets, object, reason, allow, ignored, .. } = kept;
        let verb = if *ignored { "FORWARDED DESPITE (ignored by [kernel])" } else { "left to the kernel because of" };
        format!("{}: {packets} {verb} {object}: {reason}\n  to allow: {allow}\n", ports.join(", "))
    };
    all.iter().map(line).collect()
}

fn drops(Drops { drops, events, xdp }: &Drops, rates: &mut Rates) -> String {
    let none = match &xdp[..] {
        [] => "no drops",
        _ if xdp.iter().any(|row| row.verdict.starts_with("drop_")) => "no drops by workers; the program's are below",
        _ => "no drops by Bywash; `nstat`, `ip -s link` and `nft list ruleset` count the kernel's",
    };
    let drops: Vec<_> = drops.iter().map(|row| (&row.port, &row.reason, row.packets)).collect();
    let events: Vec<_> = events.iter().map(|row| (&row.port, &row.event, row.count)).collect();
    let xdp: Vec<_> = xdp.iter().map(|row| (&row.port, &row.verdict, row.packets)).collect();
    let mut out = String::new();
    for (rows, what, counted, none) in
        [(drops, "reason", "packets", none), (events, "event", "count", ""), (xdp, "verdict", "packets", "")]
    {
        let mut grid = Grid::new(&["port", what, counted, "rate"]);
        for (port, of, count) in rows {
            let rate = rates.of(format!("{what} {port} {of}"), count as f64);
            row!(grid; port, of, count, rate.map(pps));
        }
        let text = grid.render(none);
        if !text.trim().is_empty() {
            out += if out.is_empty() { "" } else { "\n" };
            out += &text;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Topic;
    use serde_json::{Value, json};

    fn shown(topic: Topic, value: Value) -> String {
        render(&Answer::read(topic, value).unwrap(), &mut Rates::default())
    }

    /// An instance of another version may leave fields out.
    #[test]
    fn answers_without_their_fields_are_shown() {
        for topic in Topic::SHOWN {
            for value in [json!([]), json!({}), json!([{}])] {
                if let Ok(answer) = Answer::read(topic, value) {
                    render(&answer, &mut Rates::default());
                }
            }
        }
    }

    #[test]
    fn routes_look_like_ip_route() {
        let text = shown(
            Topic::Routes,
            json!([
                { "prefix": "10.0.0.0/8", "kind": "unicast", "metric": 20, "table": 254, "protocol": 186, "mtu": 1400, "installed": true,
                  "next_hops": [{ "via": "192.0.2.1", "interface": "eth0", "state": "reachable", "weight": 1 }] },
                { "prefix": "0.0.0.0/0", "kind": "unicast", "metric": 0, "table": 254, "protocol": 4, "mtu": 0, "installed": true,
                  "next_hops": [{ "via": "192.0.2.1", "interface": "eth0", "weight": 2 }, { "via": "198.51.100.1", "port": "b", "weight": 1 }] },
                { "prefix": "203.0.113.0/24", "kind": "blackhole", "installed": false, "reason": "other-table", "table": 100, "protocol": 186 },
            ]),
        );
        let expected = "\
10.0.0.0/8 via 192.0.2.1 dev eth0 reachable proto bgp metric 20 mtu 1400
0.0.0.0/0 proto static
    via 192.0.2.1 dev eth0 weight 2
    via 198.51.100.1 dev b weight 1
203.0.113.0/24 blackhole proto bgp table 100 (not used: its table is not tracked)
";
        assert_eq!(text, expected);
    }

    #[test]
    fn ports_and_pools() {
        let text = shown(
            Topic::Ports,
            json!([{ "name": "wan", "interface": "eth0", "state": "down", "reason": "link down", "mode": "native", "mtu": 1500,
                     "queues": [{ "queue": "0", "worker": 1, "mode": "copy", "mode_note": "no zero-copy in veth",
                                  "transmit": "inject", "transmit_note": "sends by injection" }],
                     "counters": { "rx_packets": 12, "tx_packets": 7, "rx_no_buffer": 1, "rx_ring_full": 2 } }]),
        );
        assert_eq!(
            text,
            "port  interface  state  mode               mtu  queues  rx  tx  lost\n\
             wan   eth0       down   native XDP, copy  1500  0>w1    12   7     3\n\
             wan: link down\n\
             wan: no zero-copy in veth\n\
             wan: sends by injection\n"
        );
        let memif = |mut port: Value, queue: Value| {
            port["queues"] = json!([queue]);
            port["counters"] = json!({ "rx_packets": 0, "tx_packets": 0, "rx_no_buffer": 0, "rx_ring_full": 0 });
            let text = shown(Topic::Ports, json!([port]));
            text.lines().skip(2).map(str::to_owned).collect::<Vec<_>>()
        };
        let notes = memif(
            json!({ "name": "vpp", "state": "up", "level": "user" }),
            json!({ "queue": "0", "worker": 0, "mode": "memif server, copy", "peer": "VPP, memif0/0",
                    "reconnects": "2", "refused": "1 (ID not found)" }),
        );
        assert_eq!(notes, ["vpp: peer VPP, memif0/0; reconnects: 2; refused: 1 (ID not found)"]);
        let down = |reconnects: &str| {
            memif(
                json!({ "name": "vpp", "state": "down", "reason": "the peer hung up", "level": "user" }),
                json!({ "queue": "0", "worker": 0, "mode": "memif server, copy", "reconnects": reconnects }),
            )
        };
        assert_eq!(down("2"), ["vpp: the peer hung up", "vpp: reconnects: 2"]);
        assert_eq!(down("0"), ["vpp: the peer hung up"]);
        let text = shown(
            Topic::Ports,
            json!([{ "name": "wan", "state": "up", "mode": "tc", "level": "driver", "mtu": 1500,
                     "queues": [{ "queue": "0", "worker": 0, "mode": "copy" }],
                     "above": [{ "name": "wan.10", "kind": "vlan", "tag": "802.1Q 10", "state": "up", "sends": true,
                                 "mtu": 1500 },
                               { "name": "vrrp", "kind": "macvlan", "state": "down", "mtu": 1400 },
                               { "name": "gre7", "kind": "gre", "state": "down", "mtu": 1476, "left": "it is down" }] }]),
        );
        assert_eq!(
            text,
            "port      state  mode                mtu  queues  rx  tx  lost\n\
             wan       up     driver, tc         1500  0>w0     0   0     0\n  \
               wan.10  up     driver, 802.1Q 10  1500\n  \
               vrrp    down   driver, macvlan    1400\n  \
               gre7    down   kernel, gre        1476\n\
             wan: packets routed to vrrp are sent by the kernel\n\
             wan: gre7 is left to the kernel: it is down\n"
        );
        let ports = json!([{ "name": "a", "switch": { "number": 65534, "addresses": 9, "evicted": 0 } },
                           { "name": "b", "switch": { "addresses": 16, "limit": 16, "evicted": 3 } }]);
        let text = shown(Topic::Ports, ports);
        let notes = text.lines().skip(3).collect::<Vec<_>>();
        assert_eq!(notes, ["a: the local port", "b: 16 addresses of at most 16; 3 made room for others"]);
        let audit = json!({ "cells": 8, "free": 5, "cached": 1, "held": 2, "missing": 0 });
        let text = shown(
            Topic::Pools,
            json!({ "arena": { "cells": 8, "cell": 2048, "bytes": 2097152, "pages": "4k", "note": "why" },
                                               "pools": [], "audit": audit }),
        );
        assert!(text.starts_with("arena: 8 cells of 2048 B, 2.00 MiB, pages 4k\n       why\n"), "{text}");
        assert!(text.ends_with("audit: 8 cells = 5 free + 1 cached + 2 held, 0 missing\n"), "{text}");
    }

    #[test]
    fn workers_have_stages_and_tx_queues() {
        let text = shown(
            Topic::Workers,
            json!([{ "id": 0, "cpu": 1, "idle": "spin", "busy_percent": 50.0, "turns": 9,
                     "stages": [{ "name": "rx", "packets": 64, "cycles_per_packet": 5.0 }],
                     "tx_queues": [{ "port": "wan", "sends": 2, "burst_mean": 32.0, "wait_us_p50": 0.5, "wait_us_p99": 49.2,
                                     "wait_us_max": null }] }]),
        );
        assert!(
            text.contains("worker  stage  packets  cycles/packet\n     0  rx          64            5.0\n"),
            "{text}"
        );
        let expected = "\
worker  tx queue  sends  packets/send  wait p50 us  wait p99 us
     0  wan           2          32.0          0.5         49.2
";
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn rates_need_two_looks() {
        let mut rates = Rates::default();
        assert_eq!(rates.of("x".into(), 5.0), None);
        assert!(rates.of("x".into(), 6.0).is_some_and(|rate| rate > 0.0));
        assert_eq!(rates.of("x".into(), 2.0), None, "restarted");
    }

    #[test]
    fn config_is_a_file() {
        let config = crate::config::Config::for_interfaces(&["eth0".into()]);
        let value = serde_json::to_value(&config).unwrap();
        let text = shown(Topic::Config, value.clone());
        assert_eq!(text, toml::to_string(&value).unwrap());
        assert!(text.contains("[[port]]\n") && text.contains("interface = \"eth0\"\n"), "{text}");
    }
}
