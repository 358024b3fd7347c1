//! `GET /metrics`: the topics in Prometheus' text exposition format (version 0.0.4).
//!
//! Metrics of interface traffic have OpenTelemetry's names, as Prometheus writes them: `system.network.io` is
//! `system_network_io_bytes_total`. All others, for which OpenTelemetry has no names, begin with `bywash_`.

use super::{Instance, Topic};
use serde_json::Value;
use std::fmt::Write;

/// Content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the histogram of burst sizes, in packets; a burst has at most 64.
const BURSTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Renders all metrics. Leaves out topics that this instance or its mode lacks.
pub fn render(instance: &dyn Instance) -> String {
    let mut text = Text::default();
    let ask = |topic| instance.show(topic, None).unwrap_or_default();
    let config = ask(Topic::Config);
    let mode = config["mode"].as_str().unwrap_or_default();
    text.family("bywash_info", "gauge", "Version and mode of this instance; always 1.");
    text.sample("bywash_info", &[("version", env!("CARGO_PKG_VERSION")), ("mode", mode)], 1.0);
    ports(&mut text, &ask(Topic::Ports));
    drops(&mut text, &ask(Topic::Drops));
    placement(&mut text, &ask(Topic::Placement));
    workers(&mut text, &ask(Topic::Workers));
    pools(&mut text, &ask(Topic::Pools));
    if mode == "switch" {
        caches(&mut text, &ask(Topic::Caches));
    }
    if mode == "cmts" {
        channels(&mut text, &ask(Topic::Channels));
    }
    text.0
}

/// Exposition under construction. The samples of a family must follow its head without a gap.
#[derive(Default)]
struct Text(String);

impl Text {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.0 += name;
        for (at, (key, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{before}{key}=\"{value}\"");
        }
        // Exact up to 2^53, as in Prometheus itself.
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// Adds a family with one sample for each row: its labels, and its value. Rows without a value are left out.
    fn rows<'a>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        rows: &'a [Value],
        labels: impl Fn(&'a Value) -> Vec<(&'static str, String)>,
        value: impl Fn(&'a Value) -> Option<f64>,
    ) {
        self.family(name, kind, help);
        for row in rows {
            if let Some(value) = value(row) {
                let labels = labels(row);
                let labels: Vec<_> = labels.iter().map(|(key, value)| (*key, value.as_str())).collect();
                self.sample(name, &labels, value);
            }
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn ports(out: &mut Text, ports: &Value) {
    let ports = list(ports);
    let interface = |port: &Value| text(if port["interface"].is_string() { &port["interface"] } else { &port["name"] });
    let named = |port: &Value| vec![("port", text(&port["name"])), ("network_interface_name", interface(port))];
    for (name, help, fields) in [
        ("system_network_io_bytes_total", "Bytes received and sent, without FCS.", ["rx_bytes", "tx_bytes"]),
        ("system_network_packet_count_total", "Frames received and sent.", ["rx_packets", "tx_packets"]),
    ] {
        out.family(name, "counter", help);
        for port in ports {
            for (field, direction) in fields.iter().zip(["receive", "transmit"]) {
                let mut labels = named(port);
                labels.push(("network_io_direction", direction.into()));
                let labels: Vec<_> = labels.iter().map(|(key, value)| (*key, value.as_str())).collect();
                out.sample(name, &labels, port["counters"][*field].as_f64().unwrap_or(0.0));
            }
        }
    }
    out.rows(
        ("bywash_port_up", "gauge", "1 if the port is up, else 0."),
        ports,
        |port| {
            let mut labels = named(port);
            labels.extend([("kind", text(&port["kind"])), ("level", text(&port["level"]))]);
            labels
        },
        |port| Some(f64::from(u8::from(port["state"] == "up"))),
    );
    for (name, help, field) in [
        ("bywash_port_tx_full_total", "Bursts that the device took in part: its ring was full.", "tx_full"),
        ("bywash_port_rx_wakeups_total", "System calls to wake the receiving side.", "rx_wakeups"),
        ("bywash_port_tx_wakeups_total", "System calls to wake the sending side.", "tx_wakeups"),
    ] {
        out.rows(
            (name, "counter", help),
            ports,
            |port| vec![("port", text(&port["name"]))],
            |port| port["counters"][field].as_f64(),
        );
    }
    let queue = |port| vec![("port", text(port))];
    out.rows(
        (
            "bywash_tx_queue_wait_p99_seconds",
            "gauge",
            "99th percentile of the time that packets have waited in the tx queue.",
        ),
        ports,
        |port| queue(&port["name"]),
        |port| port["tx_queue"]["wait_us_p99"].as_f64().map(|us| us / 1e6),
    );
}

fn drops(out: &mut Text, drops: &Value) {
    let named = |row: &Value, what: &'static str| vec![("port", text(&row["port"])), (what, text(&row[what]))];
    out.rows(
        (
            "system_network_packet_dropped_total",
            "counter",
            "Packets dropped, by ingress port, or by egress port if the device refused them.",
        ),
        list(&drops["drops"]),
        |row| {
            let mut labels = named(row, "reason");
            let direction = if row["reason"] == "tx-refused" { "transmit" } else { "receive" };
            labels.push(("network_io_direction", direction.into()));
            labels
        },
        |row| row["packets"].as_f64(),
    );
    out.rows(
        ("bywash_events_total", "counter", "Other events of packets, by ingress port."),
        list(&drops["events"]),
        |row| named(row, "event"),
        |row| row["count"].as_f64(),
    );
    out.rows(
        ("bywash_xdp_frames_total", "counter", "Frames by verdict of the port's XDP program."),
        list(&drops["xdp"]),
        |row| named(row, "verdict"),
        |row| row["packets"].as_f64(),
    );
}

fn placement(out: &mut Text, placement: &Value) {
    let name = "bywash_kernel_policies";
    out.family(name, "gauge", "Kernel policies that concern what a port receives or sends, respected or ignored.");
    for port in list(placement) {
        for ignored in [false, true] {
            let of = list(&port["kept"]).iter().filter(|kept| kept["ignored"] == ignored).count();
            let regard = if ignored { "ignore" } else { "respect" };
            out.sample(name, &[("port", &text(&port["port"])), ("regard", regard)], of as f64);
        }
    }
    let name = "bywash_placement_frames_total";
    out.family(name, "counter", "Frames received, by the level they were handled at.");
    for port in list(placement) {
        for level in ["driver", "user", "kernel"] {
            if let Some(frames) = port["frames"][level].as_f64() {
                out.sample(name, &[("port", &text(&port["port"])), ("level", level)], frames);
            }
        }
    }
}

fn workers(out: &mut Text, workers: &Value) {
    let workers = list(workers);
    for (name, help, field) in [
        ("bywash_worker_cycles_total", "TSC ticks since the worker started.", "cycles"),
        ("bywash_worker_busy_cycles_total", "TSC ticks in turns that found something to do.", "busy_cycles"),
        ("bywash_worker_turns_total", "Turns of the worker's loop.", "turns"),
        ("bywash_worker_idle_turns_total", "Turns that found nothing to do.", "idle_turns"),
        ("bywash_worker_sleeps_total", "Times the worker slept.", "sleeps"),
    ] {
        let labels = |worker: &Value| {
            let cpu = worker["cpu"].as_u64().map_or("any".into(), |cpu| cpu.to_string());
            vec![("worker", text(&worker["id"])), ("cpu", cpu)]
        };
        out.rows((name, "counter", help), workers, labels, |worker| worker[field].as_f64());
    }
    for (name, help, field) in [
        ("bywash_stage_cycles_total", "TSC ticks spent in a stage, estimated from samples.", "cycles"),
        ("bywash_stage_packets_total", "Packets handled by a stage.", "packets"),
        ("bywash_stage_bursts_total", "Bursts handled by a stage.", "bursts"),
    ] {
        out.family(name, "counter", help);
        for worker in workers {
            for stage in list(&worker["stages"]) {
                let labels = [("worker", text(&worker["id"])), ("stage", text(&stage["name"]))];
                let labels = labels.each_ref().map(|(key, value)| (*key, value.as_str()));
                out.sample(name, &labels, stage[field].as_f64().unwrap_or(0.0));
            }
        }
    }
    let name = "bywash_rx_burst_packets";
    out.family(name, "histogram", "Packets in a burst received.");
    for worker in workers {
        let id = text(&worker["id"]);
        let counts: Vec<f64> = list(&worker["rx_bursts"]).iter().map(|n| n.as_f64().unwrap_or(0.0)).collect();
        for bound in BURSTS {
            let within: f64 = counts.iter().take(bound + 1).sum();
            out.sample(&format!("{name}_bucket"), &[("worker", &id), ("le", &bound.to_string())], within);
        }
        let all: f64 = counts.iter().sum();
        out.sample(&format!("{name}_bucket"), &[("worker", &id), ("le", "+Inf")], all);
        let packets = counts.iter().enumerate().map(|(size, n)| size as f64 * n).sum();
        out.sample(&format!("{name}_sum"), &[("worker", &id)], packets);
        out.sample(&format!("{name}_count"), &[("worker", &id)], all);
    }
}

fn pools(out: &mut Text, pools: &Value) {
    let rows = list(&pools["pools"]);
    for (name, kind, help, field) in [
        ("bywash_pool_frames", "gauge", "Buffers the pool has.", "frames"),
        ("bywash_pool_free_frames", "gauge", "Buffers free in the shared part.", "free"),
        ("bywash_pool_cached_frames", "gauge", "Buffers free in workers' caches.", "cached"),
        ("bywash_pool_in_use_frames", "gauge", "Buffers held by ports, queues and workers.", "in_use"),
        ("bywash_pool_peak_frames", "gauge", "Most buffers in use at any sample.", "peak"),
        ("bywash_pool_allocated_total", "counter", "Buffers handed out.", "allocated"),
        ("bywash_pool_freed_total", "counter", "Buffers given back.", "freed"),
        ("bywash_pool_exhausted_total", "counter", "Allocations that got fewer buffers than requested.", "exhausted"),
    ] {
        let labels = |pool: &Value| vec![("pool", text(&pool["name"])), ("kind", text(&pool["kind"]))];
        out.rows((name, kind, help), rows, labels, |pool| pool[field].as_f64());
    }
    out.family("bywash_arena_bytes", "gauge", "Memory of the buffer arena.");
    if let Some(bytes) = pools["arena"]["bytes"].as_f64() {
        out.sample("bywash_arena_bytes", &[("pages", &text(&pools["arena"]["pages"]))], bytes);
    }
}

fn caches(out: &mut Text, caches: &Value) {
    let name = "bywash_flow_lookups_total";
    out.family(name, "counter", "Packets by what matched them: a cache, or the flow tables.");
    for worker in list(&caches["workers"]) {
        for (field, by) in [("exact_hits", "exact"), ("megaflow_hits", "megaflow"), ("misses", "tables")] {
            if let Some(packets) = worker[field].as_f64() {
                out.sample(name, &[("worker", &text(&worker["worker"])), ("by", by)], packets);
            }
        }
    }
    if let Some(flows) = caches["flows"].as_f64() {
        out.family("bywash_flows", "gauge", "Flows in the tables.");
        out.sample("bywash_flows", &[], flows);
    }
}

fn channels(out: &mut Text, channels: &Value) {
    for (name, help, field) in [
        ("bywash_channel_packets_total", "Frames sent by a channel.", "packets"),
        ("bywash_channel_bytes_total", "Bytes sent by a channel.", "bytes"),
    ] {
        let labels = |row: &Value| vec![("group", text(&row["group"])), ("channel", text(&row["channel"]))];
        out.rows((name, "counter", help), list(channels), labels, |row| row[field].as_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples() {
        let mut text = Text::default();
        text.family("x_total", "counter", "Help.");
        text.sample("x_total", &[], 9_007_199_254_740_992.0);
        text.sample("x_total", &[("a", "b\"c\\d\ne"), ("f", "")], 0.5);
        let expected = "# HELP x_total Help.\n# TYPE x_total counter\nx_total 9007199254740992\n\
                        x_total{a=\"b\\\"c\\\\d\\ne\",f=\"\"} 0.5\n";
        assert_eq!(text.0, expected);
    }

    #[test]
    fn bursts_are_cumulative() {
        let mut bursts = vec![0; 65];
        (bursts[1], bursts[3], bursts[64]) = (5, 2, 1);
        let mut text = Text::default();
        workers(&mut text, &serde_json::json!([{ "id": 0, "rx_bursts": bursts }]));
        for line in ["_bucket{worker=\"0\",le=\"2\"} 5", "_bucket{worker=\"0\",le=\"4\"} 7", "_sum{worker=\"0\"} 75"] {
            assert!(text.0.contains(&format!("bywash_rx_burst_packets{line}\n")), "{line}: {}", text.0);
        }
    }
}
