//! Property of the API for any bytes from a client, shared by its fuzz target and the test that replays its findings.

use super::serve::{Shared, more};
use super::{Capturing, Instance};
use bywash_api::{Answer, CaptureRequest, CpesChanged, FlowsChanged, Health, KeysChanged, Placement, Topic, Traced};
use bywash_api_server::InMemory;
use bywash_config::Level;
use bywash_flow::script::Verb;
use serde_json::Value;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Instance that records whether a change was requested, and asserts that none comes by the socket for reading.
#[derive(Default)]
struct Willing {
    /// True if requests come by the socket for reading.
    reading: bool,
    /// True once a change has been asked for.
    asked: Arc<AtomicBool>,
}

impl Willing {
    fn change<T: Default>(&self, refused: bool) -> Result<T, String> {
        assert!(!self.reading, "a change by the socket for reading");
        self.asked.store(true, Ordering::Release);
        if refused { Err("refused".into()) } else { Ok(T::default()) }
    }
}

impl bywash_api_server::Instance for Willing {
    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Answer, String> {
        self.asked.store(true, Ordering::Release);
        assert!(filter.is_none() || topic.filter().is_some());
        match (topic, filter) {
            (Topic::Health, _) => Ok(Health { status: "ok".into(), ..Health::default() }.into()),
            (_, Some("")) => Err("refused".into()),
            _ => Answer::read(topic, Value::Array(vec![])).map_err(|why| why.to_string()),
        }
    }
}

impl Instance for Willing {
    fn capture(&self, request: &CaptureRequest) -> Result<Box<dyn Capturing>, String> {
        assert!(request.filter.as_ref().is_none_or(|filter| !filter.trim().is_empty()));
        self.change::<()>(request.ports.len() > 1)?;
        Ok(Box::new(Short))
    }

    fn change_flows(&self, verb: Verb, lines: &str) -> Result<FlowsChanged, String> {
        assert!(["add", "mod", "del"].iter().any(|op| [false, true].map(|s| Verb::named(op, s)).contains(&Some(verb))));
        self.change(lines.is_empty())
    }

    fn change_keys(&self, _group: usize, lines: &str, later: bool) -> Result<KeysChanged, String> {
        self.change(later && lines.is_empty())
    }

    fn change_cpes(&self, _group: usize, lines: &str, add: bool) -> Result<CpesChanged, String> {
        self.change(add && lines.is_empty())
    }

    fn trace(&self, packet: &str) -> Result<Traced, String> {
        self.change(packet.is_empty())
    }

    fn reload(&self, dry_run: bool) -> Result<Vec<String>, String> {
        self.change(dry_run)
    }

    fn take_over(&self, socket: &str) -> Result<(), String> {
        self.change(socket.is_empty())
    }

    fn set_level(&self, _level: Level, ports: &[String]) -> Result<Vec<Placement>, String> {
        self.change(ports.is_empty())
    }
}

/// Capture of one packet.
struct Short;

impl Capturing for Short {
    fn run(self: Box<Self>, mut out: Box<dyn Write>, _stop: &AtomicBool) -> std::io::Result<()> {
        out.write_all(b"packet")
    }
}

/// The two sockets: for everything, and for reading.
struct Sockets([(InMemory, Arc<AtomicBool>); 2]);

impl Sockets {
    fn new() -> Self {
        Self([false, true].map(|reading| {
            let instance = Arc::new(Willing { reading, ..Willing::default() });
            let asked = instance.asked.clone();
            let shared: Shared = instance.clone();
            (InMemory::new(instance, more(&shared), reading).expect("threads"), asked)
        }))
    }
}

thread_local! {
    static SOCKETS: Sockets = Sockets::new();
}

/// Checks that a request is answered with the right status, that refusals say why, and that only valid requests reach
/// the instance. Bit 0 of the first byte chooses the socket; the other bytes are what a client sends or, with bit 1, a
/// request's first line, without the protocol's version, and a body.
pub fn api(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let request = if first & 2 == 0 { rest.to_vec() } else { described(rest) };
    SOCKETS.with(|Sockets(sockets)| {
        let (socket, asked) = &sockets[usize::from(first & 1)];
        asked.store(false, Ordering::Release);
        judge(&socket.answer(&request), asked.load(Ordering::Acquire));
    });
}

fn described(text: &[u8]) -> Vec<u8> {
    let end = text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len());
    let (line, body) = (&text[..end], text.get(end + 1..).unwrap_or_default());
    let headers = format!(" HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    [line, headers.as_bytes(), body].concat()
}

fn judge(answer: &[u8], asked: bool) {
    // A client that has not sent a whole request is left without an answer.
    if answer.is_empty() {
        return assert!(!asked);
    }
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("a whole head") + 4;
    let head = std::str::from_utf8(&answer[..end]).expect("a head of text");
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse::<u16>().ok()).expect(head);
    let known = [100, 200, 400, 403, 404, 405, 411, 413, 414, 415, 422, 429, 431, 503];
    assert!(known.contains(&status), "{head}");
    assert!(status != 200 || asked || head.contains("application/json"), "{head}");
    // The library answers bytes that are not HTTP without a body, and answers to HEAD have none.
    if status >= 400 && head.contains("application/json") && answer.len() > end {
        let body: Value = serde_json::from_slice(&answer[end..]).unwrap_or_else(|why| panic!("{why}: {head}"));
        assert!(body["error"].is_string() && body["hint"] != "", "{body}");
    }
}
