//! Tests of the API's requests.

use super::*;
use bywash_api::{Answer, Sandbox, Topic};
use bywash_api_server::Listener;
use bywash_config::ApiConfig;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Instance that answers with the request.
struct Echo;

impl bywash_api_server::Instance for Echo {
    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Answer, String> {
        let reason = filter.map(str::to_owned);
        Ok(Sandbox { state: topic.name().into(), reason, ..Sandbox::default() }.into())
    }
}

impl Instance for Echo {
    fn capture(&self, _request: &CaptureRequest) -> Result<Box<dyn Capturing>, String> {
        Ok(Box::new(Flood))
    }

    fn change_flows(&self, _verb: Verb, lines: &str) -> Result<FlowsChanged, String> {
        if lines == "bad" { Err("column 1: bad".into()) } else { Ok(FlowsChanged { changed: 1 }) }
    }

    fn trace(&self, packet: &str) -> Result<Traced, String> {
        Ok(Traced { story: vec![packet.into()], ..Traced::default() })
    }

    fn reload(&self, dry_run: bool) -> Result<Vec<String>, String> {
        if dry_run { Ok(vec!["port x added".into()]) } else { Err("nothing changed: no".into()) }
    }

    fn change_keys(&self, _group: usize, lines: &str, _later: bool) -> Result<KeysChanged, String> {
        take_time(lines);
        Ok(KeysChanged::default())
    }

    fn change_cpes(&self, _group: usize, lines: &str, _add: bool) -> Result<CpesChanged, String> {
        take_time(lines);
        Ok(CpesChanged::default())
    }

    fn take_over(&self, socket: &str) -> Result<(), String> {
        take_time(socket);
        Ok(())
    }

    fn set_level(&self, level: Level, ports: &[String]) -> Result<Vec<Placement>, String> {
        if ports.contains(&"bad".into()) {
            return Err("no port `bad`".into());
        }
        ports.iter().for_each(|port| take_time(port));
        let row = |port: &String| Placement { port: port.clone(), why: level.name().into(), ..Placement::default() };
        Ok(ports.iter().map(row).collect())
    }
}

/// Waits, if asked to, for longer than a connection may last.
fn take_time(asked: &str) {
    if asked == "slow" {
        std::thread::sleep(Duration::from_secs(17));
    }
}

/// Capture of packets that never end.
struct Flood;

impl Capturing for Flood {
    fn run(self: Box<Self>, mut out: Box<dyn Write>, stop: &AtomicBool) -> std::io::Result<()> {
        while !stop.load(Ordering::Acquire) {
            out.write_all(&[0; 64 << 10])?;
        }
        // Frames recorded meanwhile.
        (0..64).try_for_each(|_| out.write_all(&[0; 64 << 10]))
    }
}

struct Place {
    _directory: tempfile::TempDir,
    config: ApiConfig,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("bywash.sock");
        Self { _directory: directory, config: ApiConfig { socket, ..ApiConfig::default() } }
    }

    fn socket(&self) -> &Path {
        &self.config.socket
    }

    fn start(&self) -> impl Drop + use<> {
        serve(Listener::bind(&addresses(&self.config).unwrap()).unwrap(), Arc::new(Echo)).unwrap()
    }
}

/// Sends bytes, and returns everything received until the end of the connection.
fn raw(socket: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    // The server may disconnect while a hostile client still sends.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Sends a request, and returns status and body.
fn request(socket: &Path, method: &str, path: &str) -> (u16, Value) {
    let answer = raw(socket, format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    let (header, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let value = serde_json::from_str(body).unwrap_or_else(|_| panic!("no JSON: {answer}"));
    (header[9..12].parse().unwrap(), value)
}

#[test]
fn levels_and_reloads() {
    let place = Place::new();
    let _server = place.start();
    let post = |path: &str| request(place.socket(), "POST", path);
    assert_eq!(post("/v1/reload?dry_run=true"), (200, json!({ "changes": ["port x added"], "applied": false })));
    assert_eq!(post("/v1/reload").0, 400);
    for wrong in ["dry_run=maybe", "dry_run=true&x=1", "x=1&dry_run=true", "dry_run=true&dry_run=false"] {
        // Parameters may be taken in any order.
        (0..20).for_each(|_| assert_eq!(post(&format!("/v1/reload?{wrong}")).0, 400, "{wrong}"));
    }

    let (status, moved) = post("/v1/level?level=driver&port=a&port=b%2F1");
    let moved: Vec<Placement> = serde_json::from_value(moved).unwrap();
    assert_eq!((status, moved[0].why.as_str(), moved[1].port.as_str()), (200, "driver", "b/1"));

    for (method, path, status) in [
        ("POST", "/v1/level", 400),
        ("POST", "/v1/level?level=high", 400),
        ("POST", "/v1/level?level=user&level=driver", 400),
        ("POST", "/v1/level?level=user&prefix=a", 400),
        ("POST", "/v1/level?level=user&port=bad", 400),
        ("GET", "/v1/level?level=user", 405),
        // By the server, which has tests of its own: the routes above must not take its answers away.
        ("GET", "/v1/routes?prefiks=x", 400),
        ("GET", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v1/audit", 405),
        ("POST", "/v1/ports", 405),
    ] {
        let (got, body) = request(place.socket(), method, path);
        assert_eq!(got, status, "{method} {path}: {body}");
        assert!(body["error"].is_string() && body["hint"] != "", "{method} {path}: {body}");
    }
}

/// A change goes on though its client is cut off, which would not learn the result.
#[test]
fn a_change_may_take_longer_than_an_answer() {
    let place = Place::new();
    let _server = place.start();
    let ask = |line: &'static str, body: &str| {
        let (socket, length) = (place.socket().to_owned(), body.len());
        let request = format!("POST {line} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}");
        std::thread::spawn(move || (line, raw(&socket, request.as_bytes())))
    };
    let all = [
        ask("/v1/level?level=user&port=slow", ""),
        ask("/v1/keys?group=1", "slow"),
        ask("/v1/cpes?op=add", "slow"),
        ask("/v1/takeover?socket=slow", ""),
    ];
    for (line, answer) in all.map(|one| one.join().unwrap()) {
        assert!(answer.starts_with("HTTP/1.1 200 "), "{line}: {answer:?}");
    }
}

#[test]
fn the_reading_socket_only_reads() {
    let mut place = Place::new();
    let reading = place.socket().with_file_name("read.sock");
    place.config.read_socket = Some(reading.clone());
    let server = place.start();
    assert_eq!(request(&reading, "GET", "/v1/ports").0, 200);
    for (method, path) in [
        ("POST", "/v1/level?level=user"),
        ("POST", "/v1/reload"),
        ("POST", "/v1/flows?op=del"),
        ("POST", "/v1/capture"),
        ("DELETE", "/v1/capture?number=0"),
        ("POST", "/v1/trace"),
        ("PUT", "/v1/ports"),
    ] {
        let (status, answer) = request(&reading, method, path);
        assert_eq!(
            (status, &answer["error"]),
            (403, &format!("{method} {} is not allowed at this socket", path.split('?').next().unwrap()).into())
        );
    }
    // The other socket still accepts all requests.
    assert_eq!(request(place.socket(), "POST", "/v1/reload?dry_run=true").0, 200);
    drop(server);
    assert!(!reading.exists() && !place.socket().exists());
}

#[test]
fn captures_end_though_nobody_reads_them() {
    let place = Place::new();
    let _server = place.start();
    let begin = || {
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        stream.write_all(b"POST /v1/capture HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n").unwrap();
        let mut start = [0; 12];
        stream.read_exact(&mut start).unwrap();
        (start == *b"HTTP/1.1 200").then_some(stream)
    };
    let stalled: Vec<_> = (0..4).map(|_| begin().expect("a capture")).collect();
    assert!(begin().is_none(), "a fifth capture");
    for number in 1..=4 {
        let (status, ended) = request(place.socket(), "DELETE", &format!("/v1/capture?number={number}"));
        assert_eq!((status, ended), (200, json!({ "ended": number })));
    }
    // In a minute the server would end them anyway.
    let until = Instant::now() + Duration::from_secs(40);
    while begin().is_none() {
        assert!(Instant::now() < until, "captures that were ended still run");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(stalled);
}
