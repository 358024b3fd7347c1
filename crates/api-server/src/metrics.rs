//! `GET /metrics`: the topics in Prometheus' text exposition format (version 0.0.4).
//!
//! Metrics of interface traffic have OpenTelemetry's names, as Prometheus writes them: `system.network.io` is
//! `system_network_io_bytes_total`. All others, for which OpenTelemetry has no names, begin with `bywash_`.

use crate::Instance;
use bywash_api::{
    Caches, Channel, Config, Drops, FlowFamily, FlowTable, OfTopic, Placement, Pool, Pools, Port, PortCounters, Stage,
    Topic, Worker, WorkerCaches,
};
use std::fmt::Write;

/// Content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the histogram of burst sizes, in packets; a burst has at most 64.
const BURSTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Function that returns a counter of `T`.
type Count<T> = fn(&T) -> u64;
/// Counters of `T`, each with the metric's name and help.
type Counters<T, const N: usize> = [(&'static str, &'static str, Count<T>); N];

/// Renders all metrics. Leaves out topics that this instance or its mode lacks.
pub fn render(instance: &dyn Instance) -> String {
    let mut text = Text::default();
    let mode = ask::<Config>(instance).unwrap_or_default().mode;
    text.family("bywash_info", "gauge", "Version and mode of this instance; always 1.");
    text.sample("bywash_info", &[("version", env!("CARGO_PKG_VERSION")), ("mode", &mode)], 1.0);
    text.family("bywash_healthy", "gauge", "1 if `show health` succeeds, else 0.");
    text.sample("bywash_healthy", &[], f64::from(instance.show(Topic::Health, None).is_ok()));
    ports(&mut text, &ask::<Vec<Port>>(instance).unwrap_or_default());
    drops(&mut text, &ask(instance).unwrap_or_default());
    placement(&mut text, &ask::<Vec<Placement>>(instance).unwrap_or_default());
    workers(&mut text, &ask::<Vec<Worker>>(instance).unwrap_or_default());
    pools(&mut text, &ask(instance).unwrap_or_default());
    if mode == "router" {
        let table: FlowTable = ask(instance).unwrap_or_default();
        // Without a table, its counters would be zeros that say nothing.
        if !["", "off"].contains(&table.state.as_str()) {
            flow_table(&mut text, &table);
        }
    }
    if mode == "switch" {
        caches(&mut text, &ask(instance).unwrap_or_default());
    }
    if mode == "cmts" {
        channels(&mut text, &ask::<Vec<Channel>>(instance).unwrap_or_default());
    }
    text.0
}

fn ask<T: OfTopic>(instance: &dyn Instance) -> Option<T> {
    T::of(instance.show(T::TOPIC, None).ok()?)
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

    /// Adds a family with one sample for each row: its labels, and its value.
    fn rows<T>(
        &mut self,
        (name, kind, help): (&str, &str, &str),
        rows: impl IntoIterator<Item = T>,
        labels: impl Fn(&T) -> Vec<(&'static str, String)>,
        value: impl Fn(&T) -> f64,
    ) {
        self.family(name, kind, help);
        for row in rows {
            let labels = labels(&row);
            let labels: Vec<_> = labels.iter().map(|(key, value)| (*key, value.as_str())).collect();
            self.sample(name, &labels, value(&row));
        }
    }
}

fn ports(out: &mut Text, ports: &[Port]) {
    let named = |port: &Port| {
        let interface = port.interface.as_ref().unwrap_or(&port.name);
        vec![("port", port.name.clone()), ("network_interface_name", interface.clone())]
    };
    let directions: [(_, _, [Count<PortCounters>; 2]); 2] = [
        ("system_network_io_bytes_total", "Bytes received and sent, without FCS.", [|c| c.rx_bytes, |c| c.tx_bytes]),
        (
            "system_network_packet_count_total",
            "Frames received and sent, without those left to the kernel.",
            [|c| c.rx_packets, |c| c.tx_packets],
        ),
    ];
    for (name, help, [rx, tx]) in directions {
        let rows = ports.iter().flat_map(|port| [(port, "receive", rx), (port, "transmit", tx)]);
        let labels = |(port, direction, _): &(&Port, &'static str, _)| {
            let mut labels = named(port);
            labels.push(("network_io_direction", (*direction).into()));
            labels
        };
        out.rows((name, "counter", help), rows, labels, |(port, _, count)| count(&port.counters) as f64);
    }
    out.rows(
        ("bywash_port_up", "gauge", "1 if the port is up, else 0."),
        ports,
        |port| {
            let mut labels = named(port);
            labels.extend([("kind", port.kind.clone()), ("level", port.level.clone())]);
            labels
        },
        |port| f64::from(u8::from(port.state == "up")),
    );
    let name = |port: &&Port| vec![("port", port.name.clone())];
    let counters: Counters<PortCounters, 3> = [
        ("bywash_port_tx_full_total", "Bursts that the device took in part: its ring was full.", |c| c.tx_full),
        ("bywash_port_rx_wakeups_total", "System calls to wake the receiving side.", |c| c.rx_wakeups),
        ("bywash_port_tx_wakeups_total", "System calls to wake the sending side.", |c| c.tx_wakeups),
    ];
    for (metric, help, count) in counters {
        out.rows((metric, "counter", help), ports, name, |port| count(&port.counters) as f64);
    }
    let switched = || ports.iter().filter_map(|port| Some((port, port.switch.as_ref()?)));
    out.rows(
        ("bywash_port_addresses", "gauge", "Addresses that a switch has learned on the port."),
        switched(),
        |(port, _)| name(port),
        |(_, switch)| switch.addresses as f64,
    );
    out.rows(
        ("bywash_port_addresses_evicted_total", "counter", "Addresses learned on the port that made room for others."),
        switched(),
        |(port, _)| name(port),
        |(_, switch)| switch.evicted as f64,
    );
    out.rows(
        (
            "bywash_tx_queue_wait_p99_seconds",
            "gauge",
            "99th percentile of the time that packets have waited in the tx queue.",
        ),
        ports.iter().filter_map(|port| Some((port, port.tx_queue.stats.wait_us_p99?))),
        |(port, _)| name(port),
        |(_, us)| us / 1e6,
    );
}

fn drops(out: &mut Text, Drops { drops, events, xdp }: &Drops) {
    out.rows(
        (
            "system_network_packet_dropped_total",
            "counter",
            "Packets dropped, by ingress port, or by egress port if the device refused them.",
        ),
        drops,
        |row| {
            let direction = if row.reason == "tx-refused" { "transmit" } else { "receive" };
            vec![("port", row.port.clone()), ("reason", row.reason.clone()), ("network_io_direction", direction.into())]
        },
        |row| row.packets as f64,
    );
    out.rows(
        ("bywash_events_total", "counter", "Other events of packets, by ingress port."),
        events,
        |row| vec![("port", row.port.clone()), ("event", row.event.clone())],
        |row| row.count as f64,
    );
    out.rows(
        ("bywash_xdp_frames_total", "counter", "Frames by verdict of the port's XDP program."),
        xdp,
        |row| vec![("port", row.port.clone()), ("verdict", row.verdict.clone())],
        |row| row.packets as f64,
    );
}

fn placement(out: &mut Text, placement: &[Placement]) {
    out.rows(
        (
            "bywash_kernel_policies",
            "gauge",
            "Kernel policies that concern what a port receives or sends, respected or ignored.",
        ),
        placement.iter().flat_map(|port| [(port, false), (port, true)]),
        |(port, ignored)| {
            vec![("port", port.port.clone()), ("regard", if *ignored { "ignore" } else { "respect" }.into())]
        },
        |(port, ignored)| port.kept.iter().filter(|kept| kept.ignored == *ignored).count() as f64,
    );
    if let Some(policies) = placement.iter().find_map(|port| port.policies) {
        let name = "bywash_kernel_policy_changes_total";
        out.family(name, "counter", "Changes of the kernel's policies, some of them several at once.");
        out.sample(name, &[], policies.changes as f64);
        let name = "bywash_kernel_policies_pending";
        out.family(
            name,
            "gauge",
            "1 while a change of the kernel's policies is read; until then, all packets are left \
                                   to the kernel.",
        );
        out.sample(name, &[], f64::from(u8::from(policies.pending)));
    }
    out.rows(
        ("bywash_placement_frames_total", "counter", "Frames received, by the level they were handled at."),
        placement.iter().flat_map(|Placement { port, frames, .. }| {
            [(port, "driver", frames.driver), (port, "user", frames.user), (port, "kernel", frames.kernel)]
        }),
        |(port, level, _)| vec![("port", (*port).clone()), ("level", (*level).into())],
        |(_, _, frames)| *frames as f64,
    );
}

fn workers(out: &mut Text, workers: &[Worker]) {
    let counters: Counters<Worker, 6> = [
        ("bywash_worker_cycles_total", "TSC ticks since the worker started.", |w| w.cycles),
        ("bywash_worker_busy_cycles_total", "TSC ticks in iterations that found something to do.", |w| w.busy_cycles),
        ("bywash_worker_turns_total", "Iterations of the worker's loop.", |w| w.turns),
        ("bywash_worker_idle_turns_total", "Iterations that found nothing to do.", |w| w.idle_turns),
        ("bywash_worker_sleeps_total", "Times the worker slept.", |w| w.sleeps),
        ("bywash_worker_panics_total", "Panics of its stages that the worker has outlived.", |w| w.panics),
    ];
    for (name, help, count) in counters {
        let labels = |worker: &&Worker| {
            let cpu = worker.cpu.map_or("any".into(), |cpu| cpu.to_string());
            vec![("worker", worker.id.to_string()), ("cpu", cpu)]
        };
        out.rows((name, "counter", help), workers, labels, |worker| count(worker) as f64);
    }
    let counters: Counters<Stage, 3> = [
        ("bywash_stage_cycles_total", "TSC ticks spent in a stage, estimated from samples.", |s| s.cycles),
        ("bywash_stage_packets_total", "Packets handled by a stage.", |s| s.packets),
        ("bywash_stage_bursts_total", "Bursts handled by a stage.", |s| s.bursts),
    ];
    for (name, help, count) in counters {
        let stages = workers.iter().flat_map(|worker| worker.stages.iter().map(|stage| (worker.id, stage)));
        let labels = |(id, stage): &(u64, &Stage)| vec![("worker", id.to_string()), ("stage", stage.name.clone())];
        out.rows((name, "counter", help), stages, labels, |(_, stage)| count(stage) as f64);
    }
    let name = "bywash_rx_burst_packets";
    out.family(name, "histogram", "Packets in a burst received.");
    for Worker { id, rx_bursts, .. } in workers {
        let id = id.to_string();
        for bound in BURSTS {
            let within: u64 = rx_bursts.iter().take(bound + 1).sum();
            out.sample(&format!("{name}_bucket"), &[("worker", &id), ("le", &bound.to_string())], within as f64);
        }
        let all = rx_bursts.iter().sum::<u64>() as f64;
        out.sample(&format!("{name}_bucket"), &[("worker", &id), ("le", "+Inf")], all);
        let packets: u64 = rx_bursts.iter().zip(0..).map(|(bursts, size)| size * bursts).sum();
        out.sample(&format!("{name}_sum"), &[("worker", &id)], packets as f64);
        out.sample(&format!("{name}_count"), &[("worker", &id)], all);
    }
}

fn pools(out: &mut Text, Pools { pools, arena, .. }: &Pools) {
    let gauges: Counters<Pool, 5> = [
        ("bywash_pool_frames", "Buffers the pool has.", |pool| pool.frames),
        ("bywash_pool_free_frames", "Buffers free in the shared part.", |pool| pool.free),
        ("bywash_pool_cached_frames", "Buffers free in workers' caches.", |pool| pool.cached),
        ("bywash_pool_in_use_frames", "Buffers held by ports, queues and workers.", |pool| pool.in_use),
        ("bywash_pool_peak_frames", "Most buffers in use at any sample.", |pool| pool.peak),
    ];
    let counters: Counters<Pool, 3> = [
        ("bywash_pool_allocated_total", "Buffers handed out.", |pool| pool.allocated),
        ("bywash_pool_freed_total", "Buffers given back.", |pool| pool.freed),
        ("bywash_pool_exhausted_total", "Allocations that got fewer buffers than requested.", |pool| pool.exhausted),
    ];
    let gauges = gauges.into_iter().map(|row| ("gauge", row));
    for (kind, (name, help, count)) in gauges.chain(counters.into_iter().map(|row| ("counter", row))) {
        let labels = |pool: &&Pool| vec![("pool", pool.name.clone()), ("kind", pool.kind.clone())];
        out.rows((name, kind, help), pools, labels, |pool| count(pool) as f64);
    }
    out.family("bywash_arena_bytes", "gauge", "Memory of the buffer arena.");
    out.sample("bywash_arena_bytes", &[("pages", &arena.pages)], arena.bytes as f64);
}

fn flow_table(out: &mut Text, table: &FlowTable) {
    let families: [(_, _, _, Count<FlowFamily>); 3] = [
        ("bywash_established_flows", "gauge", "Established flows in the table.", |family| family.flows),
        ("bywash_established_flows_inserted_total", "counter", "Flows inserted.", |family| family.inserted),
        ("bywash_established_flows_removed_total", "counter", "Flows removed.", |family| family.removed),
    ];
    for (name, kind, help, count) in families {
        let labels = |row: &&FlowFamily| vec![("family", row.family.clone())];
        out.rows((name, kind, help), &table.families, labels, |row| count(row) as f64);
    }
    out.family("bywash_established_flows_limit", "gauge", "Most established flows that the table may have.");
    out.sample("bywash_established_flows_limit", &[], table.limit as f64);
    out.rows(
        ("bywash_established_flows_revoked_total", "counter", "Flows revoked, by reason."),
        &table.revoked,
        |row| vec![("reason", row.reason.clone())],
        |row| row.flows as f64,
    );
    let counters: Counters<FlowTable, 5> = [
        ("bywash_established_flows_refused_total", "Connections that the table had no room for.", |table| table.full),
        ("bywash_established_packets_total", "Packets forwarded by established flows.", |table| table.packets),
        ("bywash_established_bytes_total", "Bytes forwarded by established flows.", |table| table.bytes),
        ("bywash_connections_lost_total", "Times that events of connections were lost.", |table| table.lost),
        ("bywash_connections_judged_total", "Evaluations of the rules for connections.", |table| table.judged),
    ];
    for (name, help, count) in counters {
        out.family(name, "counter", help);
        out.sample(name, &[], count(table) as f64);
    }
    let name = "bywash_connections_judging_seconds_total";
    out.family(name, "counter", "Time that judging connections took.");
    out.sample(name, &[], table.judging_us as f64 / 1e6);
}

fn caches(out: &mut Text, Caches { workers, flows, .. }: &Caches) {
    out.rows(
        ("bywash_flow_lookups_total", "counter", "Packets by what matched them: a cache, or the flow tables."),
        workers.iter().flat_map(|WorkerCaches { worker, exact_hits, megaflow_hits, misses, .. }| {
            [(worker, "exact", exact_hits), (worker, "megaflow", megaflow_hits), (worker, "tables", misses)]
        }),
        |(worker, by, _)| vec![("worker", worker.to_string()), ("by", (*by).into())],
        |(_, _, packets)| **packets as f64,
    );
    out.family("bywash_flows", "gauge", "Flows in the tables.");
    out.sample("bywash_flows", &[], *flows as f64);
}

fn channels(out: &mut Text, channels: &[Channel]) {
    let counters: Counters<Channel, 2> = [
        ("bywash_channel_packets_total", "Frames sent by a channel.", |channel| channel.packets),
        ("bywash_channel_bytes_total", "Bytes sent by a channel.", |channel| channel.bytes),
    ];
    for (name, help, count) in counters {
        let labels = |row: &&Channel| vec![("group", row.group.to_string()), ("channel", row.channel.to_string())];
        out.rows((name, "counter", help), channels, labels, |row| count(row) as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bywash_api::FlowsRevoked;

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
    fn flows_are_counted_by_family_and_reason() {
        let family = |name: &str, flows| FlowFamily {
            family: name.into(),
            flows,
            inserted: 9,
            removed: 9 - flows,
            ..FlowFamily::default()
        };
        let revoked = vec![FlowsRevoked { reason: "new-rules".into(), flows: 3 }];
        let families = vec![family("ipv4", 4), family("ipv6", 2)];
        let mut text = Text::default();
        flow_table(&mut text, &FlowTable { families, revoked, judging_us: 1500, packets: 7, ..FlowTable::default() });
        for line in [
            "flows{family=\"ipv6\"} 2",
            "flows_removed_total{family=\"ipv4\"} 5",
            "flows_revoked_total{reason=\"new-rules\"} 3",
            "packets_total 7",
        ] {
            assert!(text.0.contains(&format!("bywash_established_{line}\n")), "{line}: {}", text.0);
        }
        assert!(text.0.ends_with("bywash_connections_judging_seconds_total 0.0015\n"), "{}", text.0);
    }

    #[test]
    fn bursts_are_cumulative() {
        let mut bursts = vec![0; 65];
        (bursts[1], bursts[3], bursts[64]) = (5, 2, 1);
        let mut text = Text::default();
        workers(&mut text, &[Worker { rx_bursts: bursts, ..Worker::default() }]);
        for line in ["_bucket{worker=\"0\",le=\"2\"} 5", "_bucket{worker=\"0\",le=\"4\"} 7", "_sum{worker=\"0\"} 75"] {
            assert!(text.0.contains(&format!("bywash_rx_burst_packets{line}\n")), "{line}: {}", text.0);
        }
    }
}
