//! API of a running instance: HTTP and JSON over a unix socket.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/ports`, `workers`, `pools`, `routes`, `neighbours`, `drops`, `placement` | the topic |
//! | `GET /v1/sandbox`, `config` | the topic |
//! | `GET /v1/routes?prefix=P`, `GET /v1/neighbours?prefix=P` | only entries that P selects |
//! | `GET /v1/flows`, `groups`, `fdb`, `caches` | topics of a switch; `flows?match=M`: only the flows that M selects |
//! | `GET /v1/modems`, `service-flows`, `channels` | topics of a cable downstream |
//! | `POST /v1/flows?op=add` (`mod`, `del`) `&strict=true` | applies the flows in the body: `{"changed"}` |
//! | `POST /v1/trace` | traces the packet in the body: `PORT HEX`, or for a switch its fields |
//! | `GET /v1/drift` | differences between the kernel's tables, read afresh, and the router's |
//! | `POST /v1/audit` | counts all cells, by where they are |
//! | `POST /v1/level?level=L&port=P&..` | moves the named ports, or all, to a level; answers with the placement |
//! | `POST /v1/reload` `?dry_run=true` | reads and applies the configuration: `{"changes": [text], "applied"}` |
//! | `POST /v1/takeover?socket=NAME` | lets the process at that abstract socket take over: `{}` when connected to it |
//! | `POST /v1/capture?port=P&drops=R&way=W&snaplen=N` | packets as pcapng, until `DELETE /v1/capture?number=N` |
//! | `GET /metrics` | all counters, in Prometheus' text format |
//! | `GET /v1/version`, `GET /v1/health` | `{"version"}`, `{"status": "ok"}`, or 503 while a worker hangs |
//!
//! Errors are `{"error", "hint"}` with a status of 400 or more.

mod capture;
mod metrics;
mod schema;
mod serve;
mod socket;
#[cfg(test)]
mod tests;

pub use capture::NUMBER as CAPTURE_NUMBER;
pub use schema::schema;
pub use serve::serve;
pub use socket::{Listener, group_id};

use crate::config::{Level, Mode};
use crate::flows::Verb;
use serde_json::Value;
use std::io::Write;
use std::sync::atomic::AtomicBool;

/// Default path of an instance's socket.
pub const SOCKET: &str = "/run/bywash/bywash.sock";

/// Topic of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// Ports: `[{name, id, interface, kind, state, reason, mac, mtu, addresses, mode, level, queues: [{worker, held,
    /// state, ..}], tx_queue: {..}, counters: {rx_packets, ..}}]`
    Ports,
    /// Workers: `[{id, cpu, idle, turns, idle_turns, sleeps, busy_percent, stages: [{name, cycles_per_packet, packets,
    /// cycles}], rx_burst_mean, ..}]`
    Workers,
    /// Pools and their arena: `{arena: {cells, spare, cell, bytes, pages, note}, pools: [PoolStats], audit: {cells,
    /// free, cached, parked, held, missing}}`
    Pools,
    /// Routes: `[{prefix, table, kind, metric, protocol, next_hops: [{via, port, interface, state, weight}], mtu,
    /// source, installed, reason}]`
    Routes,
    /// Neighbours: `[{addr, interface, port, mac, state, installed}]`
    Neighbours,
    /// Drops, other events, and verdicts of the XDP programs: `{drops: [{port, reason, packets}], events: [{port,
    /// event, count}], xdp: [{port, verdict, packets}]}`
    Drops,
    /// Level of each port, and why: `[{port, configured, level, why, mode, mode_why, spread, spread_why, target,
    /// target_why, kept: [{kind, packets, object, reason, ignored, allow}], frames: {driver, user, kernel}}]`. `frames`
    /// counts received frames; `configured` is null for a port that can have no level, `level` absent while its
    /// interface is gone.
    Placement,
    /// Sandbox of all threads: `{state, reason, no_new_privs, capabilities: [name], seccomp, threads, system_calls:
    /// [name]}`. `state` is `on`, `off` or `partly`, and `reason` says why it is not on.
    Sandbox,
    /// Flows: `[{table, priority, cookie, match, actions, n_packets, n_bytes, duration_s, idle_age_s, idle_timeout_s,
    /// hard_timeout_s}]`
    Flows,
    /// Groups and meters: `{groups: [text], meters: [{meter, passed, refused}]}`
    Groups,
    /// Learned addresses: `[{port, number, vlan, mac, age_s}]`
    Fdb,
    /// Flow caches: `{workers: [{worker, exact_hits, megaflow_hits, misses, ..}], flows, addresses_moved}`
    Caches,
    /// Modems of a cable downstream: `[{group, mac, said, flows, packets, bytes, queued, policed, queue_overflow}]`
    Modems,
    /// Service flows of the modems: `[{group, modem, flow, dsid, priority, packets, bytes, queued, policed,
    /// queue_overflow}]`
    ServiceFlows,
    /// Channels of the downstream: `[{group, channel, rate, packets, bytes, group_queued, crypto}]`; `rate` is null if
    /// there is no limit.
    Channels,
    /// The [`crate::config::Config`] in effect.
    Config,
    /// Differences between the kernel's tables, read afresh, and the data plane's: `[{object, name, drift}]`.
    Drift,
    /// Audit of all buffers, counted on request: `{cells, free, cached, parked, held, missing}`
    Audit,
    /// Health: `{status: "ok"}`; an error, with status 503, while a worker hangs.
    Health,
}

impl Topic {
    /// Topics served with GET, in the order of `show all`.
    pub const SHOWN: [Topic; 16] = [
        Topic::Ports,
        Topic::Workers,
        Topic::Pools,
        Topic::Routes,
        Topic::Neighbours,
        Topic::Drops,
        Topic::Placement,
        Topic::Sandbox,
        Topic::Flows,
        Topic::Groups,
        Topic::Fdb,
        Topic::Caches,
        Topic::Modems,
        Topic::ServiceFlows,
        Topic::Channels,
        Topic::Config,
    ];

    /// Returns the topic's name in paths.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ports => "ports",
            Self::Workers => "workers",
            Self::Pools => "pools",
            Self::Routes => "routes",
            Self::Neighbours => "neighbours",
            Self::Drops => "drops",
            Self::Placement => "placement",
            Self::Sandbox => "sandbox",
            Self::Flows => "flows",
            Self::Groups => "groups",
            Self::Fdb => "fdb",
            Self::Caches => "caches",
            Self::Modems => "modems",
            Self::ServiceFlows => "service-flows",
            Self::Channels => "channels",
            Self::Config => "config",
            Self::Drift => "drift",
            Self::Audit => "audit",
            Self::Health => "health",
        }
    }

    /// Returns the name of the query parameter that filters the topic; `None` if it takes no filter.
    pub fn filter(self) -> Option<&'static str> {
        match self {
            Self::Routes | Self::Neighbours => Some("prefix"),
            Self::Flows => Some("match"),
            _ => None,
        }
    }

    /// Returns the mode that has the topic; `None` if every mode has it.
    pub fn mode(self) -> Option<Mode> {
        match self {
            Self::Routes | Self::Neighbours | Self::Drift => Some(Mode::Router),
            Self::Flows | Self::Groups | Self::Fdb | Self::Caches => Some(Mode::Switch),
            Self::Modems | Self::ServiceFlows | Self::Channels => Some(Mode::Cmts),
            _ => None,
        }
    }
}

/// Request that carries a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowCommand {
    /// Changes flows, groups and meters, one per line.
    Change(Verb),
    /// Traces a packet, given as `PORT HEX` or, to a switch, described by its fields: `{story: [line], outputs: [port],
    /// dropped}`; a switch adds `megaflow`, a router `{port, level: {level, why}, stages: [name], route, adjacencies:
    /// [{addr, port, mac, state}], frames: [{port, frame}]}`.
    Trace,
}

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Received.
    Rx,
    /// Sent.
    Tx,
}

/// Request for a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureRequest {
    /// Only packets of these ports; of all ports if empty.
    pub ports: Vec<String>,
    /// Only packets of this direction.
    pub way: Option<Way>,
    /// Only packets dropped for these reasons; `all` stands for every reason.
    pub drops: Vec<String>,
    /// Most bytes kept of a packet; 0 for all.
    pub snaplen: u32,
    /// Only packets that pass this filter, in the format of `tcpdump -ddd`.
    pub filter: Option<String>,
}

/// Capture that is ready to start.
pub trait Capturing: Send {
    /// Writes pcapng to `out` until `stop` is set, on the caller's thread. Errors only if `out` does.
    fn run(self: Box<Self>, out: Box<dyn Write>, stop: &AtomicBool) -> std::io::Result<()>;
}

/// The running instance, as the API sees it.
///
/// # Thread-safety
/// Called from several threads at once while workers run.
pub trait Instance: Send + Sync {
    /// Returns the topic's current state, in the shape that [`Topic`] documents. `filter` is given only for topics that
    /// take one; it comes from the client and may be anything. The client gets an error as a bad request.
    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Value, String>;

    /// Moves the named ports to a level, or all that have levels if none is named, and returns the placement. The
    /// client gets an error as a bad request; an unknown name moves nothing.
    fn set_level(&self, level: Level, ports: &[String]) -> Result<Value, String>;

    /// Reads the configuration again and applies it, and returns a line for each change. With `dry_run`, only returns
    /// the lines. The client gets an error as a bad request; nothing is changed then.
    fn reload(&self, dry_run: bool) -> Result<Vec<String>, String>;

    /// Connects to the process that takes over, at the abstract socket where it waits. The client gets an error as a
    /// bad request; this instance continues then.
    fn take_over(&self, _socket: &str) -> Result<(), String> {
        Err("this instance cannot be taken over".into())
    }

    /// Prepares a capture. The client gets an error as a bad request.
    fn capture(&self, _request: &CaptureRequest) -> Result<Box<dyn Capturing>, String> {
        Err("this instance cannot capture packets".into())
    }

    /// Changes flows, or traces a packet. The client gets an error as a bad request; if one line is invalid, none is
    /// applied.
    fn flows(&self, command: FlowCommand, text: &str) -> Result<Value, String>;
}
