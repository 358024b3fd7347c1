//! Text layout of each topic. Fields missing from an answer are left empty, because client and instance may have
//! different versions.

use super::layout::{Grid, bits, bytes, cell, pps};
use crate::api::Topic;
use serde_json::Value;
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
pub fn render(topic: Topic, value: &Value, rates: &mut Rates) -> String {
    match topic {
        Topic::Ports => ports(value, rates),
        Topic::Workers => workers(value),
        Topic::Pools | Topic::Audit => pools(value),
        Topic::Routes => routes(value),
        Topic::Neighbours => neighbours(value),
        Topic::Drift => columns(value, &DRIFT, "no drift: the kernel's tables and the data plane's agree"),
        Topic::Drops => drops(value, rates),
        Topic::Placement => placement(value),
        Topic::Sandbox => sandbox(value),
        Topic::Health => format!("{}\n", text(value, "status")),
        Topic::Flows => flows(value),
        Topic::Groups => groups(value),
        Topic::Fdb => addresses(value),
        Topic::Caches => caches(value),
        Topic::Modems => columns(value, &MODEMS, "no modems"),
        Topic::ServiceFlows => columns(value, &SERVICE_FLOWS, "no service flows"),
        Topic::Channels => columns(value, &CHANNELS, "no channels"),
        Topic::Config => toml::to_string(value).unwrap_or_else(|_| format!("{value:#}\n")),
    }
}

fn sandbox(value: &Value) -> String {
    let words = |key: &str| list(&value[key]).iter().filter_map(Value::as_str).collect::<Vec<_>>();
    let or_none = |text: String| if text.is_empty() { "none".into() } else { text };
    let reason = value["reason"].as_str().map_or(String::new(), |why| format!(" ({why})"));
    let mut lines = vec![
        format!("sandbox: {}{reason}", text(value, "state")),
        format!("threads: {}", text(value, "threads")),
        format!("new privileges: {}", if value["no_new_privs"] == true { "none" } else { "possible" }),
        format!("capabilities: {}", or_none(words("capabilities").join(" "))),
    ];
    let calls = words("system_calls");
    match value["seccomp"] == true && !calls.is_empty() {
        false => lines.push("system calls: all".into()),
        true => {
            lines.push(format!("system calls: {}", calls.len()));
            let mut line = String::new();
            for call in calls {
                if line.len() + call.len() > 96 {
                    lines.push(format!(" {line}"));
                    line.clear();
                }
                line += &format!(" {call}");
            }
            lines.push(format!(" {line}"));
        }
    }
    lines.join("\n") + "\n"
}

/// Returns the elements of an array; empty if the value is not an array.
pub fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn text(value: &Value, key: &str) -> String {
    cell(&value[key])
}

fn ports(value: &Value, rates: &mut Rates) -> String {
    let mut grid =
        Grid::new(&["port", "interface", "state", "mode", "mtu", "queues", "rx", "tx", "rx rate", "tx rate", "lost"]);
    let mut more = String::new();
    for port in list(value) {
        let (name, counters) = (text(port, "name"), &port["counters"]);
        let mut rate = |way: &str| {
            let mut of = |unit: &str| {
                let counter = format!("{way}_{unit}");
                rates.of(format!("{name} {counter}"), number(&counters[counter.as_str()]))
            };
            let (packets, octets) = (of("packets"), of("bytes"));
            packets.zip(octets).map_or(String::new(), |(p, b)| format!("{}, {}", pps(p), bits(b * 8.0)))
        };
        let (rx_rate, tx_rate) = (rate("rx"), rate("tx"));
        let lost = number(&counters["rx_no_buffer"]) + number(&counters["rx_ring_full"]);
        let interface = text(port, "interface");
        // Modes of the XDP program and of the sockets ("mixed" if they differ), and the forwarding level.
        let sockets = list(&port["queues"]);
        let socket = sockets.first().map(|queue| text(queue, "mode")).unwrap_or_default();
        let alike = sockets.iter().all(|queue| text(queue, "mode") == socket);
        let modes = [text(port, "mode"), if alike { socket } else { "mixed".into() }, text(port, "level")];
        let mode = modes.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
        grid.row(vec![
            name.clone(),
            if interface == name { String::new() } else { interface },
            text(port, "state"),
            mode.join(", "),
            text(port, "mtu"),
            queues(&port["queues"]),
            cell(&counters["rx_packets"]),
            cell(&counters["tx_packets"]),
            rx_rate,
            tx_rate,
            format!("{lost:.0}"),
        ]);
        let mut notes: Vec<&str> = [&port["reason"], &port["note"]].into_iter().filter_map(Value::as_str).collect();
        for note in ["mode_note", "transmit_note"] {
            notes.extend(sockets.iter().filter_map(|queue| queue[note].as_str()));
        }
        // Peer of a memif.
        let link = |queue: &&Value| {
            let peer = queue["peer"].as_str()?;
            let mut link = format!("peer {peer}; reconnects: {}", text(queue, "reconnects"));
            link += &queue["refused"].as_str().map_or(String::new(), |refused| format!("; refused: {refused}"));
            Some(link)
        };
        let links: Vec<String> = sockets.iter().filter_map(|queue| link(&queue)).collect();
        notes.extend(links.iter().map(String::as_str));
        notes.dedup();
        more +=
            &notes.iter().filter(|note| !note.is_empty()).map(|note| format!("{name}: {note}\n")).collect::<String>();
    }
    grid.render("no ports") + &more
}

/// Formats queues with their workers, as in `0>w0 1>w1`; more than four only as a count.
fn queues(value: &Value) -> String {
    let queues = list(value);
    if queues.len() > 4 {
        return queues.len().to_string();
    }
    let one = |queue: &Value| format!("{}>w{}", text(queue, "queue"), text(queue, "worker"));
    queues.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn workers(value: &Value) -> String {
    let mut grid =
        Grid::new(&["worker", "cpu", "idle", "busy %", "turns", "idle turns", "sleeps", "burst", "cycles/packet"]);
    let mut more = Grid::new(&["worker", "stage", "packets", "cycles/packet"]);
    let mut tx =
        Grid::new(&["worker", "tx queue", "sends", "packets/send", "wait p50 us", "wait p99 us", "longest us"]);
    for worker in list(value) {
        for queue in list(&worker["tx_queues"]) {
            tx.row(
                std::iter::once(text(worker, "id"))
                    .chain(
                        ["port", "sends", "burst_mean", "wait_us_p50", "wait_us_p99", "wait_us_max"]
                            .map(|key| text(queue, key)),
                    )
                    .collect(),
            );
        }
        let mut total = 0.0;
        for stage in list(&worker["stages"]) {
            total += number(&stage["cycles_per_packet"]);
            more.row(vec![
                text(worker, "id"),
                text(stage, "name"),
                text(stage, "packets"),
                text(stage, "cycles_per_packet"),
            ]);
        }
        grid.row(vec![
            text(worker, "id"),
            text(worker, "cpu"),
            text(worker, "idle"),
            text(worker, "busy_percent"),
            text(worker, "turns"),
            text(worker, "idle_turns"),
            text(worker, "sleeps"),
            text(worker, "rx_burst_mean"),
            if total > 0.0 { format!("{total:.1}") } else { String::new() },
        ]);
    }
    let parts = [grid.render("no workers"), more.render("no stages"), tx.render("no tx queues")];
    parts.join("\n")
}

fn pools(value: &Value) -> String {
    let mut out = String::new();
    let arena = &value["arena"];
    if arena.is_object() {
        out += &format!(
            "arena: {} cells of {} B, {}{}, pages {}\n",
            text(arena, "cells"),
            text(arena, "cell"),
            if number(&arena["spare"]) > 0.0 { format!("{} spare, ", text(arena, "spare")) } else { String::new() },
            bytes(number(&arena["bytes"])),
            text(arena, "pages")
        );
        if let Some(note) = arena["note"].as_str().filter(|note| !note.is_empty()) {
            out += &format!("       {note}\n");
        }
        out += "\n";
    }
    let columns = [
        ("pool", "name"),
        ("kind", "kind"),
        ("cache", "cache"),
        ("frames", "frames"),
        ("free", "free"),
        ("cached", "cached"),
        ("in use", "in_use"),
        ("normal", "normal"),
        ("peak", "peak"),
        ("high water", "high_water"),
        ("exhausted", "exhausted"),
        ("surplus", "surplus"),
    ];
    let mut grid = Grid::new(&columns.map(|(title, _)| title));
    for pool in list(&value["pools"]) {
        let mut row: Vec<String> = columns.iter().map(|(_, column)| text(pool, column)).collect();
        if pool["draining"] == true {
            row[0] += " (draining)";
        }
        grid.row(row);
    }
    out += &grid.render("no pools");
    if list(&value["pools"]).iter().any(|pool| pool["blocks"].is_object()) {
        let mut grid = Grid::new(&["pool", "block", "free", "open", "draining", "frames waiting for their block"]);
        for pool in list(&value["pools"]) {
            let blocks = &pool["blocks"];
            let of = |column| text(blocks, column);
            grid.row(vec![
                text(pool, "name"),
                of("size"),
                of("free"),
                of("open"),
                of("draining"),
                text(pool, "parked"),
            ]);
        }
        out += &format!("\n{}", grid.render("no blocks"));
    }
    let audit = if value["audit"].is_object() { &value["audit"] } else { value };
    if audit["cells"].is_number() && audit["missing"].is_number() {
        out += &format!(
            "\naudit: {} cells = {} free + {} cached + {}{} held, {} missing\n",
            text(audit, "cells"),
            text(audit, "free"),
            text(audit, "cached"),
            if number(&audit["parked"]) > 0.0 { format!("{} parked + ", text(audit, "parked")) } else { String::new() },
            text(audit, "held"),
            text(audit, "missing")
        );
    }
    out
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
const PROTOCOLS: [(u64, &str); 15] = [
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

fn protocol(value: &Value) -> String {
    let name = PROTOCOLS.iter().find(|(number, _)| value.as_u64() == Some(*number));
    name.map_or_else(|| cell(value), |(_, name)| (*name).into())
}

/// Formats a routing table's number; empty for main, which holds most routes.
fn table(value: &Value) -> String {
    match value.as_u64() {
        Some(254) => String::new(),
        Some(255) => "local".into(),
        _ => cell(value),
    }
}

/// Formats routes like `ip route`, with the state of their next hops and the reason if a route is not used.
fn routes(value: &Value) -> String {
    let mut out = String::new();
    for route in list(value) {
        let mut line = text(route, "prefix");
        let mut word = |before: &str, value: String| {
            if !value.is_empty() {
                line += &format!(" {before}{value}");
            }
        };
        let kind = text(route, "kind");
        if kind != "unicast" {
            word("", kind);
        }
        let hops = list(&route["next_hops"]);
        let hop = |hop: &Value| {
            let part = |before: &str, key: &str| {
                let value = text(hop, key);
                if value.is_empty() { value } else { format!("{before}{value}") }
            };
            let weight = Some(part("weight ", "weight")).filter(|_| hops.len() > 1).unwrap_or_default();
            let device = if hop["interface"].is_null() { part("dev ", "port") } else { part("dev ", "interface") };
            let parts = [part("via ", "via"), device, weight, part("", "state"), part("", "mac")];
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
        };
        if let [only] = hops {
            word("", hop(only));
        }
        word("proto ", protocol(&route["protocol"]));
        word("table ", table(&route["table"]));
        // 0 is IPv4's default metric: omit it.
        word("metric ", Some(text(route, "metric")).filter(|metric| metric != "0").unwrap_or_default());
        word("mtu ", Some(text(route, "mtu")).filter(|mtu| mtu != "0").unwrap_or_default());
        word("src ", text(route, "source"));
        if route["installed"] == Value::Bool(false) {
            let code = text(route, "reason");
            let why = REASONS.iter().find(|(name, _)| *name == code).map_or(code.as_str(), |(_, why)| why);
            word("", if why.is_empty() { "(not used)".into() } else { format!("({why})") });
        }
        out += &line;
        out += "\n";
        if hops.len() > 1 {
            out += &hops.iter().map(|one| format!("    {}\n", hop(one))).collect::<String>();
        }
    }
    if out.is_empty() { "no routes\n".into() } else { out }
}

/// Column headings and the fields below them.
type Columns<const N: usize> = [(&'static str, &'static str); N];

const DRIFT: Columns<3> = [("object", "object"), ("name", "name"), ("drift", "drift")];
const MODEMS: Columns<9> = [
    ("group", "group"),
    ("mac", "mac"),
    ("said", "said"),
    ("flows", "flows"),
    ("packets", "packets"),
    ("bytes", "bytes"),
    ("queued", "queued"),
    ("policed", "policed"),
    ("queue overflow", "queue_overflow"),
];
const SERVICE_FLOWS: Columns<10> = [
    ("group", "group"),
    ("mac", "modem"),
    ("flow", "flow"),
    ("dsid", "dsid"),
    ("priority", "priority"),
    ("packets", "packets"),
    ("bytes", "bytes"),
    ("queued", "queued"),
    ("policed", "policed"),
    ("queue overflow", "queue_overflow"),
];
const CHANNELS: Columns<7> = [
    ("group", "group"),
    ("channel", "channel"),
    ("bit/s", "rate"),
    ("packets", "packets"),
    ("bytes", "bytes"),
    ("group's queued", "group_queued"),
    ("crypto", "crypto"),
];

fn columns<const N: usize>(value: &Value, columns: &Columns<N>, none: &str) -> String {
    let mut grid = Grid::new(&columns.map(|(heading, _)| heading));
    for row in list(value) {
        grid.row(columns.map(|(_, key)| text(row, key)).into());
    }
    grid.render(none)
}

/// Formats a flow like ovs-ofctl dump-flows or, without `stats`, like its `--no-stats`.
pub fn flow_line(flow: &Value, stats: bool) -> String {
    let of = |key: &str| text(flow, key);
    let n = |key: &str| flow[key].as_u64().unwrap_or(0);
    let mut parts = vec![];
    if stats {
        parts.push(format!("cookie={:#x}, duration={:.3}s", n("cookie"), number(&flow["duration_s"])));
        parts.push(format!("table={}, n_packets={}, n_bytes={}", of("table"), of("n_packets"), of("n_bytes")));
    } else {
        if n("cookie") != 0 {
            parts.push(format!("cookie={:#x}", n("cookie")));
        }
        if n("table") != 0 {
            parts.push(format!("table={}", of("table")));
        }
    }
    for name in ["idle_timeout", "hard_timeout"] {
        let timeout = n(&format!("{name}_s"));
        if timeout != 0 {
            parts.push(format!("{name}={timeout}"));
        }
    }
    if stats {
        parts.push(format!("idle_age={}", of("idle_age_s")));
    }
    let priority = Some(format!("priority={}", of("priority"))).filter(|_| stats || n("priority") != DEFAULT_PRIORITY);
    let matched = Some(of("match")).filter(|matched| !matched.is_empty());
    let which: Vec<String> = priority.into_iter().chain(matched).collect();
    let which = if which.is_empty() { String::new() } else { format!("{} ", which.join(",")) };
    parts.push(format!("{which}actions={}", of("actions")));
    format!("{}{}", if stats { " " } else { "" }, parts.join(", "))
}

/// Default priority of a flow (OpenFlow).
const DEFAULT_PRIORITY: u64 = 32768;

fn flows(value: &Value) -> String {
    let lines: String = list(value).iter().map(|flow| flow_line(flow, true) + "\n").collect();
    if lines.is_empty() { "no flows\n".into() } else { lines }
}

fn groups(value: &Value) -> String {
    let groups = list(&value["groups"]).iter().map(|group| cell(group) + "\n");
    let meters = list(&value["meters"]).iter().map(|meter| {
        let of = |key: &str| text(meter, key);
        format!("{}  passed={} refused={}\n", of("meter"), of("passed"), of("refused"))
    });
    let lines: String = groups.chain(meters).collect();
    if lines.is_empty() { "no groups and no meters\n".into() } else { lines }
}

fn addresses(value: &Value) -> String {
    let mut grid = Grid::new(&["port", "number", "vlan", "mac", "age"]);
    for row in list(value) {
        grid.row(["port", "number", "vlan", "mac", "age_s"].map(|key| text(row, key)).to_vec());
    }
    grid.render("no addresses")
}

fn caches(value: &Value) -> String {
    let columns =
        ["worker", "exact-match", "megaflows", "tables", "masks tried", "megaflows now", "masks now", "not cached"];
    let mut grid = Grid::new(&columns);
    for row in list(&value["workers"]) {
        let n = |key: &str| number(&row[key]);
        let hits = [n("exact_hits"), n("megaflow_hits"), n("misses")];
        let all: f64 = hits.iter().sum();
        let share = |hits: f64| if all > 0.0 { format!("{hits} ({:.1} %)", 100.0 * hits / all) } else { "0".into() };
        let mut cells = vec![text(row, "worker")];
        cells.extend(hits.map(share));
        cells.push(format!("{:.1}", n("masks_tried") / (hits[1] + hits[2]).max(1.0)));
        cells.extend(["megaflows", "masks", "not_cached"].map(|key| text(row, key)));
        grid.row(cells);
    }
    let (flows, moved) = (text(value, "flows"), text(value, "addresses_moved"));
    format!("{}\n{flows} flows; addresses moved from port to port: {moved}\n", grid.render("no workers"))
}

fn neighbours(value: &Value) -> String {
    let mut grid = Grid::new(&["address", "interface", "port", "mac", "state"]);
    for neighbour in list(value) {
        let port = text(neighbour, "port");
        let interface = text(neighbour, "interface");
        let port = if port == interface { String::new() } else { port };
        grid.row(vec![text(neighbour, "addr"), interface, port, text(neighbour, "mac"), text(neighbour, "state")]);
    }
    grid.render("no neighbours")
}

fn placement(value: &Value) -> String {
    let mut grid =
        Grid::new(&["port", "configured", "level", "xdp", "target", "in driver", "in user space", "in kernel"]);
    let mut more = String::new();
    for port in list(value) {
        let frames = &port["frames"];
        let handled = |level: &str| number(&frames[level]);
        let all = handled("driver") + handled("user") + handled("kernel");
        let share = |level| match handled(level) {
            0.0 => cell(&frames[level]),
            n => format!("{n:.0} ({:.1} %)", 100.0 * n / all),
        };
        let target = match port["target"].as_bool() {
            Some(takes) => if takes { "yes" } else { "no" }.into(),
            None => String::new(),
        };
        grid.row(vec![
            text(port, "port"),
            text(port, "configured"),
            text(port, "level"),
            text(port, "mode"),
            target,
            share("driver"),
            share("user"),
            share("kernel"),
        ]);
        let sent = |cpu: &Value| format!("CPU {}: {}", cell(&cpu["cpu"]), cell(&cpu["frames"]));
        let cpus: Vec<String> = list(&port["spread"]).iter().map(sent).collect();
        if !cpus.is_empty() {
            more += &format!("{} spread: frames sent by {}\n", text(port, "port"), cpus.join(", "));
        }
        for (what, why) in [("level", "why"), ("xdp", "mode_why"), ("spread", "spread_why"), ("target", "target_why")] {
            if let Some(why) = port[why].as_str().filter(|why| !why.is_empty()) {
                more += &format!("{} {what}: {why}\n", text(port, "port"));
            }
        }
    }
    grid.render("no ports") + &more + &kept(value)
}

/// Formats the kernel policies that keep packets in the kernel, each once with its ports.
fn kept(placement: &Value) -> String {
    let mut all: Vec<(&Value, Vec<String>)> = vec![];
    for port in list(placement) {
        for reason in list(&port["kept"]) {
            match all.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, ports)) => ports.push(text(port, "port")),
                None => all.push((reason, vec![text(port, "port")])),
            }
        }
    }
    let line = |(reason, ports): &(&Value, Vec<String>)| {
        let [packets, object, why, allow] = ["packets", "object", "reason", "allow"].map(|key| text(reason, key));
        let verb = if reason["ignored"] == true {
            "FORWARDED DESPITE (ignored by [kernel])"
        } else {
            "left to the kernel because of"
        };
        format!("{}: {packets} {verb} {object}: {why}\n  to allow: {allow}\n", ports.join(", "))
    };
    all.iter().map(line).collect()
}

fn drops(value: &Value, rates: &mut Rates) -> String {
    let mut out = String::new();
    // Accept an answer that is only the list of drops.
    let parts = [
        (if value.is_array() { value } else { &value["drops"] }, "reason", "packets", "no drops"),
        (&value["events"], "event", "count", ""),
        (&value["xdp"], "verdict", "packets", ""),
    ];
    for (part, what, counted, none) in parts {
        let mut grid = Grid::new(&["port", what, counted, "rate"]);
        for one in list(part).iter().filter(|one| number(&one[counted]) > 0.0) {
            let (port, reason) = (text(one, "port"), text(one, what));
            let rate = rates.of(format!("{what} {port} {reason}"), number(&one[counted]));
            let rate = rate.map(pps).unwrap_or_default();
            grid.row(vec![port, reason, text(one, counted), rate]);
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
    use serde_json::json;

    fn shown(topic: Topic, value: Value) -> String {
        render(topic, &value, &mut Rates::default())
    }

    #[test]
    fn answers_of_any_shape_are_shown() {
        for topic in Topic::SHOWN {
            for value in
                [json!(null), json!([]), json!({}), json!([1, "x", {}, null]), json!({ "pools": 3, "drops": {} })]
            {
                shown(topic, value);
            }
        }
    }

    #[test]
    fn routes_look_like_ip_route() {
        let text = shown(
            Topic::Routes,
            json!([
                { "prefix": "10.0.0.0/8", "kind": "unicast", "metric": 20, "protocol": "bgp", "mtu": 1400, "installed": true,
                  "next_hops": [{ "via": "192.0.2.1", "interface": "eth0", "state": "reachable", "weight": 1 }] },
                { "prefix": "0.0.0.0/0", "kind": "unicast", "metric": 0, "protocol": "static", "mtu": 0, "installed": true,
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
            "port  interface  state  mode           mtu  queues  rx  tx  lost\n\
             wan   eth0       down   native, copy  1500  0>w1    12   7     3\n\
             wan: link down\n\
             wan: no zero-copy in veth\n\
             wan: sends by injection\n"
        );
        let text = shown(
            Topic::Ports,
            json!([{ "name": "vpp", "state": "down", "reason": "the peer hung up", "level": "user",
                     "queues": [{ "queue": "0", "worker": 0, "mode": "memif server, copy", "peer": "VPP, memif0/0",
                                  "reconnects": "2", "refused": "1 (ID not found)" }],
                     "counters": { "rx_packets": 0, "tx_packets": 0, "rx_no_buffer": 0, "rx_ring_full": 0 } }]),
        );
        let notes: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            notes,
            ["vpp: the peer hung up", "vpp: peer VPP, memif0/0; reconnects: 2; refused: 1 (ID not found)"]
        );
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
        let text = shown(Topic::Config, serde_json::to_value(&config).unwrap());
        assert!(text.contains("[[port]]\n") && text.contains("interface = \"eth0\"\n"), "{text}");
    }
}
