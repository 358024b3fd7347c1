//! Asking a running instance: HTTP and JSON over a unix socket.
//!
//! | request | answer |
//! |---|---|
//! | `GET /v1/ports`, `workers`, `pools`, `routes`, `neighbours`, `drops`, `placement`, `sandbox`, `config` | that topic |
//! | `GET /v1/routes?prefix=P`, `GET /v1/neighbours?prefix=P` | only what P names |
//! | `GET /v1/flows`, `groups`, `fdb`, `caches` | those of a switch; `flows?match=M`: only the flows that M selects |
//! | `GET /v1/modems`, `service-flows`, `channels` | those of a cable downstream |
//! | `POST /v1/flows?op=add` (`mod`, `del`) `&strict=true` | the body's flows, groups and meters, a line each: `{"changed"}` |
//! | `POST /v1/trace` | what becomes of the packet that the body describes: `PORT HEX`, or of a switch by its fields |
//! | `GET /v1/drift` | where the kernel's tables, read anew, and the router's differ |
//! | `POST /v1/audit` | every cell counted: where it is |
//! | `POST /v1/level?level=L&port=P&..` | moves ports, or all where none is named, to a level; the placement then |
//! | `POST /v1/reload` `?dry_run=true` | the configuration is read again and taken over: `{"changes": [text], "applied"}` |
//! | `POST /v1/takeover?socket=NAME` | the process that waits at that abstract socket takes over: `{}` when both have met |
//! | `POST /v1/capture?port=P&drops=R&way=W&snaplen=N` | packets as pcapng, until `DELETE /v1/capture?number=N` |
//! | `GET /metrics` | all counters, as Prometheus reads them |
//! | `GET /v1/version`, `GET /v1/health` | `{"version"}`, `{"status": "ok"}`, or 503 while a worker hangs |
//!
//! An error is `{"error", "hint"}` with a status from 400 on.

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

/// Where an instance listens unless told otherwise.
pub const SOCKET: &str = "/run/bywash/bywash.sock";

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// `[{name, id, interface, kind, state, reason?, mac, mtu, mode, level, queues: [{queue, worker, ..}], counters:
    /// {rx_packets, ..}, details: {..}}]`
    Ports,
    /// `[{id, cpu, idle, turns, idle_turns, sleeps, busy_percent, stages: [{name, cycles_per_packet, packets,
    /// cycles}], rx_burst_mean, ..}]`
    Workers,
    /// `{arena: {cells, spare, cell, bytes, pages, note}, pools: [PoolStats], audit: {cells, free, cached, parked, held, missing}}`
    Pools,
    /// `[{prefix, kind, metric, protocol, next_hops: [{via, port, interface, mac, state, weight}], mtu, installed,
    /// reason?}]`
    Routes,
    /// `[{addr, interface, port, mac, state}]`
    Neighbours,
    /// `{drops: [{port, reason, packets}], events: [{event, count}], xdp: [{port, verdict, packets}]}`
    Drops,
    /// `[{port, configured, level, why, mode, mode_why, target, target_why, kept: [{kind, packets, object,
    /// reason, ignored, allow}], frames: {driver, user, kernel}}]`, frames
    /// received; `configured` is null for a port that can have no level, `level` absent while its interface is gone.
    Placement,
    /// `{state, reason, no_new_privs, capabilities: [name], seccomp, threads, system_calls: [name]}`, of all threads: state
    /// is `on`, `off` or `partly`, and `reason` says why it is not on.
    Sandbox,
    /// `[{table, priority, cookie, match, actions, n_packets, n_bytes, duration_s, idle_age_s, idle_timeout_s,
    /// hard_timeout_s}]`
    Flows,
    /// `{groups: [text], meters: [{meter, passed, refused}]}`
    Groups,
    /// Learned addresses: `[{port, number, vlan, mac, age_s}]`
    Fdb,
    /// `{workers: [{worker, exact_hits, megaflow_hits, misses, ..}], flows, addresses_moved}`
    Caches,
    /// Modems of a cable downstream: `[{group, mac, said, flows, packets, bytes, queued, policed, queue_overflow}]`
    Modems,
    /// Their service flows: `[{group, modem, flow, dsid, priority, packets, bytes, queued, policed, queue_overflow}]`
    ServiceFlows,
    /// Their channels: `[{group, channel, rate, packets, bytes, group_queued, crypto}]`; rate null: no limit.
    Channels,
    /// The [`crate::config::Config`] in effect.
    Config,
    /// Where the kernel's tables, read anew, differ from the data plane's: `[{object, name, drift}]`.
    Drift,
    /// `{cells, free, cached, parked, held, missing}`, counted now.
    Audit,
    /// `{status: "ok"}`; an error, with status 503, while a worker hangs.
    Health,
}

impl Topic {
    /// All that are read with GET, in the order `show all` has them.
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

    /// Its name in paths.
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

    /// The filter it takes, by its name in queries.
    pub fn filter(self) -> Option<&'static str> {
        match self {
            Self::Routes | Self::Neighbours => Some("prefix"),
            Self::Flows => Some("match"),
            _ => None,
        }
    }

    /// The mode that has it; none: every one.
    pub fn mode(self) -> Option<Mode> {
        match self {
            Self::Routes | Self::Neighbours | Self::Drift => Some(Mode::Router),
            Self::Flows | Self::Groups | Self::Fdb | Self::Caches => Some(Mode::Switch),
            Self::Modems | Self::ServiceFlows | Self::Channels => Some(Mode::Cmts),
            _ => None,
        }
    }
}

/// What can be asked with a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowCommand {
    /// Flows, groups and meters are changed: a line each.
    Change(Verb),
    /// What becomes of a packet, `PORT HEX` or, of a switch, described by its fields: `{story: [line], outputs: [port],
    /// dropped}`; a switch adds `megaflow`, a router `{port, level: {level, why}, stages: [name], route, adjacencies:
    /// [{addr, port, mac, state}], frames: [{port, frame}]}`.
    Trace,
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is received.
    Rx,
    /// It is sent.
    Tx,
}

/// What a capture is to hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureRequest {
    /// Packets of these ports; all if there is none.
    pub ports: Vec<String>,
    /// Only packets that go this way.
    pub way: Option<Way>,
    /// Only packets dropped for these reasons; `all`: for any.
    pub drops: Vec<String>,
    /// Most bytes kept of a packet; 0: all.
    pub snaplen: u32,
    /// Only packets that pass this: what `tcpdump -ddd` prints.
    pub filter: Option<String>,
}

/// A capture that can begin.
pub trait Capturing: Send {
    /// Writes pcapng to `out` until `stop`, on the caller's thread. An error is `out`'s.
    fn run(self: Box<Self>, out: Box<dyn Write>, stop: &AtomicBool) -> std::io::Result<()>;
}

/// The running program, as the API sees it.
///
/// # Thread-safety
/// Called by several threads at once, while workers run: counters and snapshots are read, nothing is waited for.
pub trait Instance: Send + Sync {
    /// The topic now, in the shape its documentation gives. `filter` is there only for topics that take one, and is
    /// the client's: anything. An error is told to the client as a bad request.
    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Value, String>;

    /// Moves ports to a level, all that can be where none is named, and gives the placement then. An error is told to
    /// the client as a bad request; a name that is none moves nothing.
    fn set_level(&self, level: Level, ports: &[String]) -> Result<Value, String>;

    /// Reads the configuration again and takes it over, or only says what that would change: a line each. An error is
    /// told to the client as a bad request; nothing is changed then.
    fn reload(&self, dry_run: bool) -> Result<Vec<String>, String>;

    /// Meets the process that is to take over, at the abstract socket where it waits. An error is told to the client as a bad
    /// request; it goes on then.
    fn take_over(&self, _socket: &str) -> Result<(), String> {
        Err("it cannot be taken over".into())
    }

    /// Gets a capture ready. An error is told to the client as a bad request.
    fn capture(&self, _request: &CaptureRequest) -> Result<Box<dyn Capturing>, String> {
        Err("it captures no packets".into())
    }

    /// Changes flows, or tells what becomes of a packet. An error is told to the client as a bad request; of lines one of which is wrong, none is done.
    fn flows(&self, command: FlowCommand, text: &str) -> Result<Value, String>;
}
