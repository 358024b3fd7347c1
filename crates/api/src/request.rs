//! Requests other than queries.

use crate::*;
use serde_json::Value;

/// Direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    Rx,
    /// Sent.
    Tx,
}

/// Header of the response to a capture, with the capture's number.
pub const CAPTURE_NUMBER: &str = "x-bywash-capture";

/// Request for a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaptureRequest {
    /// Only packets of these ports; of all ports if empty.
    pub ports: Vec<String>,
    /// Only packets of this direction.
    pub direction: Option<Direction>,
    /// Only packets dropped for these reasons; `all` stands for every reason.
    pub drops: Vec<String>,
    /// Maximum number of bytes kept of a packet; 0 for all.
    pub snaplen: u32,
    /// Only packets that pass this filter, in the format of `tcpdump -ddd`.
    pub filter: Option<String>,
}

/// Documentation of a request.
pub struct Request {
    /// Method, path and parameters.
    pub line: &'static str,
    /// Effect.
    pub about: &'static str,
    /// JSON schema of the answer; `None` if it is not JSON.
    pub schema: Option<fn(&str) -> Value>,
}

/// All requests but the queries for topics.
pub const REQUESTS: [Request; 12] = [
    Request {
        line: "POST /v1/flows?op=OP&strict=true",
        about: "Applies the flows, groups and meters in the body, one per line, or none of them if one is wrong (if the \
                tables are full, those before that line). OP is `add`, `mod` or `del`; `strict` is for the latter two.",
        schema: Some(schema::<FlowsChanged>),
    },
    Request {
        line: "POST /v1/keys?group=N&use=later",
        about: "Changes keys of the modems of service group N (1 if it is not given), one per line of the body: `MAC \
                SEQUENCE KEY IV`, with 32 hex digits each, replaces the modem's key that is not in use and, when every \
                worker has it, uses it; with `use=later`, only the former. `MAC SEQUENCE` uses a key that is loaded. \
                Nothing is changed if a line is not valid; if one is refused, those before it are carried out.",
        schema: Some(schema::<KeysChanged>),
    },
    Request {
        line: "POST /v1/cpes?op=OP&group=N",
        about: "Adds addresses behind the modems of service group N (1 if it is not given), one per line of the body: \
                `ADDRESS MODEM`, or removes them: `ADDRESS`, or changes nothing if a line is wrong. OP is `add` or \
                `del`. An added address stays with its modem until it is removed, or Bywash ends; a learned one is \
                learned again when it is seen. Configured addresses change by a reload.",
        schema: Some(schema::<CpesChanged>),
    },
    Request {
        line: "POST /v1/trace",
        about: "Traces the packet in the body: `PORT HEX`, or for a switch also its fields as in ovs-appctl \
                ofproto/trace. Nothing is sent. Only a switch returns `megaflow`, and only a router the keys from \
                `port` on.",
        schema: Some(schema::<Traced>),
    },
    Request {
        line: "POST /v1/level?level=L&port=P&..",
        about: "Moves the named ports, or all, to the level `auto`, `driver`, `user` or `kernel`, and answers with the \
                placement.",
        schema: Some(schema::<Vec<Placement>>),
    },
    Request {
        line: "POST /v1/reload?dry_run=true",
        about: "Reads the configuration again and applies it; with `dry_run`, only reports what would change.",
        schema: Some(schema::<Reloaded>),
    },
    Request {
        line: "POST /v1/takeover?socket=NAME",
        about: "Lets the process that waits at this socket, which is beside the API socket, take over (`bywash run \
                --takeover`). Answered when the instance is connected to it.",
        schema: Some(schema::<TakenOver>),
    },
    Request {
        line: "POST /v1/capture?port=P&drops=R&way=W&snaplen=N",
        about: "Captures packets as pcapng until the capture is ended: those of the ports P, dropped for the reasons R \
                (`all` for every reason), of the direction W (`rx` or `tx`), with at most N bytes each. The body may \
                be a filter in the format of `tcpdump -ddd`. The header `x-bywash-capture` has the capture's number.",
        schema: None,
    },
    Request {
        line: "DELETE /v1/capture?number=N",
        about: "Ends a capture. Its packets so far are still delivered.",
        schema: Some(schema::<CaptureEnded>),
    },
    Request { line: "GET /v1/version", about: "Returns the version.", schema: Some(schema::<Version>) },
    Request { line: "GET /metrics", about: "Returns all counters in Prometheus' text format.", schema: None },
    Request { line: "any request", about: "Errors have a status of 400 or more.", schema: Some(schema::<Problem>) },
];
