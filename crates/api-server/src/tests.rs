//! Tests of the server with correct, faulty and hostile clients.

use super::*;
use bywash_api::{Health, Route, Sandbox};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Instance that answers with the request; it panics when asked for workers.
struct Echo;

impl Instance for Echo {
    fn show(&self, topic: Topic, filter: Option<&str>) -> Result<Answer, String> {
        match (topic, filter) {
            (Topic::Workers, _) => panic!("a test's panic"),
            (Topic::Health, _) => Ok(Health { status: "ok".into(), ..Health::default() }.into()),
            (Topic::Routes, Some("bad")) => Err("`bad` is not a prefix".into()),
            _ => {
                Ok(Sandbox { state: topic.name().into(), reason: filter.map(str::to_owned), ..Sandbox::default() }
                    .into())
            }
        }
    }
}

struct Place {
    _directory: tempfile::TempDir,
    addresses: Addresses,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("run/bywash.sock");
        std::fs::create_dir(directory.path().join("run")).unwrap();
        Self { _directory: directory, addresses: Addresses::of(socket) }
    }

    fn socket(&self) -> &Path {
        &self.addresses.all.path
    }

    fn start(&self) -> impl Drop + use<> {
        self.start_with(Arc::new(Echo))
    }

    fn start_with(&self, instance: Arc<dyn Instance>) -> impl Drop + use<> {
        let ask = || Ok::<_, String>("changed");
        let more = axum::Router::new().route("/v1/ports", axum::routing::post(move || answer(ask)));
        serve(Listener::bind(&self.addresses).unwrap(), instance, more).unwrap()
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
fn topics_and_errors() {
    let place = Place::new();
    let _server = place.start();
    let get = |path: &str| request(place.socket(), "GET", path);
    let asked = |(status, answer): (u16, Value)| (status, answer["state"].clone(), answer["reason"].clone());
    assert_eq!(asked(get("/v1/ports")), (200, "ports".into(), Value::Null));
    assert_eq!(asked(get("/v1/routes?prefix=10.0.0.0%2F8")), (200, "routes".into(), "10.0.0.0/8".into()));
    let (status, health) = get("/v1/health");
    assert_eq!((status, &health["status"]), (200, &"ok".into()));
    assert_eq!(get("/v1/version").1["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(asked(request(place.socket(), "POST", "/v1/audit")).1, "audit");
    assert!(raw(place.socket(), b"POST /v1/ports HTTP/1.1\r\nHost: x\r\n\r\n").ends_with("\"changed\""));
    for (method, path, status) in [
        ("GET", "/v1/routes?prefix=bad", 400),
        ("GET", "/v1/routes?prefiks=x", 400),
        ("GET", "/v1/ports?prefix=x", 400),
        ("GET", "/v1/routes?prefix=a&prefix=b&%ff", 400),
        ("GET", "/v1/nothing", 404),
        ("GET", "/", 404),
        ("GET", "/v1/audit", 405),
        ("POST", "/v1/pools", 405),
        ("GET", "/v1/workers", 500),
    ] {
        let (got, body) = request(place.socket(), method, path);
        assert_eq!(got, status, "{method} {path}: {body}");
        assert!(body["error"].is_string() && body["hint"] != "", "{method} {path}: {body}");
    }
    assert_eq!(get("/v1/ports").0, 200, "it survived a panic");
}

#[test]
fn requests_that_are_no_http_get_a_reason() {
    let place = Place::new();
    let _server = place.start();
    let fields = "a: b\r\n".repeat(200);
    let (path, long) = ("x".repeat(70_000), "x".repeat(20_000));
    for (request, status, words) in [
        ("nonsense\r\n\r\n".into(), 400, "not one of HTTP/1.1"),
        ("GET /v1/ports HTTP/9.1\r\n\r\n".into(), 400, "not one of HTTP/1.1"),
        (format!("GET /v1/ports HTTP/1.1\r\n{fields}\r\n"), 431, "header is too long"),
        (format!("GET /v1/ports HTTP/1.1\r\nx: {long}\r\n\r\n"), 431, "header is too long"),
        (format!("GET /{path} HTTP/1.1\r\n\r\n"), 431, "header is too long"),
    ] {
        let answer = raw(place.socket(), request.as_bytes());
        let start: String = request.chars().take(40).collect();
        let Some((head, body)) = answer.split_once("\r\n\r\n") else {
            // The rest of a long request lies unread when the server closes, which may cost the client the answer.
            assert!(request.len() > 10_000, "{start}: no answer");
            continue;
        };
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{start}: {head}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{start}: {head}");
        let body: Value = serde_json::from_str(body).unwrap();
        assert!(body["error"].as_str().unwrap().contains(words) && body["hint"].is_string(), "{start}: {body}");
    }
    assert_eq!(request(place.socket(), "GET", "/v1/ports").0, 200);
}

#[test]
fn one_instance_has_the_socket() {
    let place = Place::new();
    let first = Listener::bind(&place.addresses).unwrap();
    let mode = std::fs::metadata(place.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    let second = Listener::bind(&place.addresses).unwrap_err().to_string();
    assert!(second.contains(&format!("already runs, pid {}", std::process::id())), "{second}");
    assert!(place.socket().exists());
    drop(first);
    assert!(!place.socket().exists());
    let left: Vec<_> = std::fs::read_dir(place.socket().parent().unwrap()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_missing_directory_is_not_made_anywhere() {
    let place = Place::new();
    let directory = place.socket().with_file_name("missing");
    let error = Listener::bind(&Addresses::of(directory.join("x.sock"))).unwrap_err().to_string();
    assert!(error.contains(&format!("directory {} does not exist", directory.display())), "{error}");
    assert!(!directory.exists());
}

#[test]
fn dead_socket_is_replaced_and_nothing_else() {
    let place = Place::new();
    drop(UnixListener::bind(place.socket()).unwrap());
    assert!(place.socket().exists(), "a killed process leaves its socket");
    drop(Listener::bind(&place.addresses).unwrap());

    std::fs::write(place.socket(), "precious").unwrap();
    let error = Listener::bind(&place.addresses).unwrap_err().to_string();
    assert!(error.contains("there is something else"), "{error}");
    assert_eq!(std::fs::read_to_string(place.socket()).unwrap(), "precious");
}

#[test]
fn another_instances_socket_is_left_alone() {
    let place = Place::new();
    let first = Listener::bind(&place.addresses).unwrap();
    std::fs::remove_file(place.socket()).unwrap();
    let _second = Listener::bind(&place.addresses).unwrap();
    drop(first);
    assert!(place.socket().exists());
}

#[test]
fn one_that_takes_over_takes_the_names() {
    let mut place = Place::new();
    let read = place.socket().with_file_name("read.sock");
    place.addresses.reading = Some(Address { path: read.clone(), group: None });
    let files = || std::fs::read_dir(read.parent().unwrap()).unwrap().count();
    let first = Listener::bind(&place.addresses).unwrap();
    let mut second = Listener::make(&place.addresses).unwrap();
    let inodes = || [place.socket(), &read].map(|path| std::fs::metadata(path).unwrap().ino());
    let before = inodes();
    assert_eq!(files(), 4, "both have their sockets");
    // A listener that gives up leaves the names alone.
    drop(Listener::make(&place.addresses).unwrap());
    assert_eq!((files(), inodes()), (4, before));
    second.take_names().unwrap();
    let after = inodes();
    assert!(files() == 2 && before.iter().all(|inode| !after.contains(inode)));
    // The first listener has lost the names, and removes only what is its own.
    drop(first);
    assert_eq!((files(), inodes()), (2, after));
    let mode = std::fs::metadata(&read).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o660);
    drop(UnixStream::connect(place.socket()).unwrap());
    drop(second);
    assert_eq!(files(), 0);
}

#[test]
fn of_two_that_start_at_once_one_wins() {
    let place = Place::new();
    for _ in 0..20 {
        drop(UnixListener::bind(place.socket()).unwrap());
        let threads: Vec<_> = (0..4)
            .map(|id| {
                // The temporary name has the process's number and a counter, so each thread is like a process of its
                // own.
                let addresses = place.addresses.clone();
                std::thread::spawn(move || (id, Listener::bind(&addresses)))
            })
            .collect();
        let bound: Vec<_> = threads.into_iter().filter_map(|thread| thread.join().unwrap().1.ok()).collect();
        assert_eq!(bound.len(), 1);
    }
}

#[test]
fn hostile_clients_are_bounded() {
    let place = Place::new();
    let _server = place.start();
    let socket: PathBuf = place.socket().into();

    let huge = format!("GET /v1/ports HTTP/1.1\r\nX: {}\r\n\r\n", "x".repeat(1 << 20));
    let answer = raw(&socket, huge.as_bytes());
    assert!(!answer.contains("200 OK"), "{answer}");
    assert!(!raw(&socket, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").contains("200 OK"));
    let claims = b"POST /v1/audit HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n";
    let started = Instant::now();
    raw(&socket, claims);
    assert!(started.elapsed() < Duration::from_secs(60), "a body that never comes is not waited for");

    // More silent connections than are served at once; the header's time limit ends them.
    let silent: Vec<_> = (0..70).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let started = Instant::now();
    assert_eq!(request(&socket, "GET", "/v1/health").0, 200);
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
    drop(silent);
}

#[test]
fn stopping_does_not_wait_for_clients() {
    let stopped_in_time = || {
        let place = Place::new();
        let server = place.start();
        let _silent = UnixStream::connect(place.socket()).unwrap();
        let started = Instant::now();
        drop(server);
        let in_time = started.elapsed() < Duration::from_secs(2);
        assert!(!place.socket().exists());
        in_time
    };
    // Once is enough, since a busy machine takes its time.
    assert!((0..10).any(|_| stopped_in_time()));
}

#[test]
fn the_reading_socket_only_reads() {
    let mut place = Place::new();
    let reading = place.socket().with_file_name("read.sock");
    place.addresses.reading = Some(Address { path: reading.clone(), group: None });
    let server = place.start();
    assert_eq!(request(&reading, "GET", "/v1/ports").0, 200);
    for (method, path) in [("POST", "/v1/ports"), ("POST", "/v1/audit"), ("DELETE", "/v1/ports"), ("PUT", "/")] {
        let (status, answer) = request(&reading, method, path);
        assert_eq!((status, &answer["error"]), (403, &format!("{method} {path} is not allowed at this socket").into()));
    }
    // The other socket still accepts all requests.
    assert!(raw(place.socket(), b"POST /v1/ports HTTP/1.1\r\nHost: x\r\n\r\n").ends_with("\"changed\""));
    drop(server);
    assert!(!reading.exists() && !place.socket().exists());
}

/// Instance with very many routes, which counts the pieces that it has made; it panics at the given one.
struct Many {
    made: Arc<AtomicUsize>,
    pieces: usize,
    panics_at: usize,
}

/// Routes in a piece.
const PIECE: usize = 500;

impl Instance for Many {
    fn show(&self, topic: Topic, _filter: Option<&str>) -> Result<Answer, String> {
        Echo.show(topic, None)
    }

    fn rows(&self, topic: Topic, _filter: Option<&str>) -> Option<Result<Box<dyn Rows>, String>> {
        let Self { made, pieces, panics_at } = self;
        let rows = Counted { made: made.clone(), at: 0, pieces: *pieces, panics_at: *panics_at };
        (topic == Topic::Routes).then(|| Ok(Box::new(rows) as _))
    }
}

struct Counted {
    made: Arc<AtomicUsize>,
    at: usize,
    pieces: usize,
    panics_at: usize,
}

impl Rows for Counted {
    fn next(&mut self) -> Option<Answer> {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.at += 1;
        assert_ne!(self.at, self.panics_at, "a test's panic");
        let route = |n| Route { prefix: format!("route {n}"), ..Route::default() };
        // Some pieces have no rows, as with a filter.
        let rows = if self.at % 3 == 1 { 0..0 } else { 0..PIECE };
        (self.at <= self.pieces).then(|| Answer::Routes(rows.map(route).collect()))
    }
}

#[test]
fn a_long_answer_is_made_as_it_is_read() {
    let place = Place::new();
    let made = Arc::new(AtomicUsize::new(0));
    let pieces = 1200;
    let _server = place.start_with(Arc::new(Many { made: made.clone(), pieces, panics_at: 0 }));
    let ask = || {
        let mut stream = UnixStream::connect(place.socket()).unwrap();
        stream.write_all(b"GET /v1/routes HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        // The answer has begun.
        let mut start = [0; 12];
        stream.read_exact(&mut start).unwrap();
        assert_eq!(start, *b"HTTP/1.1 200");
        stream
    };
    let slow: Vec<_> = (0..4).map(|_| ask()).collect();
    // While four clients read nothing, others are answered, and one of them reads everything.
    assert_eq!(request(place.socket(), "GET", "/v1/health").0, 200);
    let routes: Vec<Route> = bywash_api::client::ask(place.socket()).unwrap();
    assert_eq!(routes.len(), pieces * 2 / 3 * PIECE);
    assert!(routes.iter().enumerate().all(|(n, route)| route.prefix == format!("route {}", n % PIECE)));
    // Each of the four has what the socket holds, some hundred kilobytes, and two pieces, of fifty.
    let ahead = made.load(Ordering::Relaxed) - (pieces + 1);
    assert!(ahead < 4 * 40, "{ahead} pieces were made for clients that do not read");
    drop(slow);
}

#[test]
fn an_answer_that_breaks_off_is_not_taken_for_a_whole_one() {
    let place = Place::new();
    let _server = place.start_with(Arc::new(Many { made: Arc::default(), pieces: 100, panics_at: 50 }));
    let failed = bywash_api::client::ask::<Vec<Route>>(place.socket()).unwrap_err();
    assert!(format!("{failed:#}").contains("incomplete"), "{failed:#}");
}

/// Instance that shows nothing until it is let go on.
#[derive(Default)]
struct Slow {
    asked: AtomicUsize,
    go_on: (Mutex<bool>, Condvar),
}

impl Slow {
    fn let_go_on(&self) {
        *self.go_on.0.lock().unwrap() = true;
        self.go_on.1.notify_all();
    }
}

impl Instance for Slow {
    fn show(&self, _topic: Topic, _filter: Option<&str>) -> Result<Answer, String> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        drop(self.go_on.1.wait_while(self.go_on.0.lock().unwrap(), |go_on| !*go_on).unwrap());
        Ok(Health { status: "ok".into(), ..Health::default() }.into())
    }
}

#[test]
fn readers_leave_threads_to_those_who_change_something() {
    let mut place = Place::new();
    let reading = place.socket().with_file_name("read.sock");
    place.addresses.reading = Some(Address { path: reading.clone(), group: None });
    let slow = Arc::new(Slow::default());
    let _server = place.start_with(slow.clone());
    std::thread::scope(|scope| {
        let readers: Vec<_> =
            (0..16).map(|_| scope.spawn(|| raw(&reading, b"GET /v1/ports HTTP/1.1\r\nHost: x\r\n\r\n"))).collect();
        while slow.asked.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // It is not answered before the readers if they have all threads.
        let changed = raw(place.socket(), b"POST /v1/ports HTTP/1.1\r\nHost: x\r\n\r\n");
        slow.let_go_on();
        assert!(changed.ends_with("\"changed\""), "{changed}");
        readers.into_iter().for_each(|reader| assert!(reader.join().unwrap().contains("200 OK")));
    });
}

#[test]
fn readers_who_disconnect_take_no_further_threads() {
    let mut place = Place::new();
    let reading = place.socket().with_file_name("read.sock");
    place.addresses.reading = Some(Address { path: reading.clone(), group: None });
    let slow = Arc::new(Slow::default());
    let _server = place.start_with(slow.clone());
    let ask = || {
        let mut stream = UnixStream::connect(&reading).unwrap();
        stream.write_all(b"GET /v1/ports HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        stream
    };
    let first = [ask(), ask()];
    let asked = || slow.asked.load(Ordering::Relaxed);
    while asked() < first.len() {
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(first);
    // No thread answers these requests: each comes after the server has seen what happened before.
    let others_are_served = || (0..20).for_each(|_| assert_eq!(request(place.socket(), "GET", "/v1/version").0, 200));
    others_are_served();
    let next: Vec<_> = (0..16).map(|_| ask()).collect();
    others_are_served();
    let threads = asked();
    slow.let_go_on();
    assert_eq!(threads, 2);
    for mut stream in next {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("200 OK"), "{answer}");
    }
}

#[test]
fn tables_are_compared_for_one_client_at_a_time() {
    let place = Place::new();
    let slow = Arc::new(Slow::default());
    let _server = place.start_with(slow.clone());
    std::thread::scope(|scope| {
        let first = scope.spawn(|| request(place.socket(), "GET", "/v1/drift"));
        while slow.asked.load(Ordering::Relaxed) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (status, answer) = request(place.socket(), "GET", "/v1/drift");
        slow.let_go_on();
        assert_eq!((status, first.join().unwrap().0), (429, 200), "{answer}");
    });
    assert_eq!(request(place.socket(), "GET", "/v1/drift").0, 200);
}

/// Instance that shows nothing.
struct Bare;

impl Instance for Bare {
    fn show(&self, topic: Topic, _filter: Option<&str>) -> Result<Answer, String> {
        Err(format!("there is no {}", topic.name()))
    }
}

/// Listens for metrics at a free port; returns the server and the port's address.
fn metrics(place: &mut Place, token: Option<&str>) -> (impl Drop + use<>, SocketAddr) {
    // Clients of other tests, on 127.0.0.1, may take the same port meanwhile.
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let ip = std::net::Ipv4Addr::new(127, 0, 9, NEXT.fetch_add(1, Ordering::Relaxed));
    let at = TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap();
    place.addresses.metrics = Some(Metrics { at, token: token.map(str::to_owned) });
    (place.start_with(Arc::new(Bare)), at)
}

/// Returns the answer to `GET /metrics` with further header fields.
fn scrape(at: SocketAddr, fields: &str) -> String {
    let mut stream = TcpStream::connect(at).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\n{fields}\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn idle_connections_do_not_keep_metrics_from_being_scraped() {
    let mut place = Place::new();
    let (_server, at) = metrics(&mut place, None);
    // All places are taken, and more wait. The first places become free after 2 s.
    let scraped_in_time = || {
        let idle: Vec<_> = (0..100).map(|_| TcpStream::connect(at).unwrap()).collect();
        let started = Instant::now();
        assert!(scrape(at, "Host: localhost\r\n").starts_with("HTTP/1.1 200"));
        drop(idle);
        started.elapsed() < Duration::from_secs(1)
    };
    // Once is enough, since a busy machine takes its time.
    assert!((0..10).any(|_| scraped_in_time()));
}

#[test]
fn metrics_are_for_this_machine_or_whoever_has_the_token() {
    let mut place = Place::new();
    let (server, at) = metrics(&mut place, None);
    assert!(scrape(at, &format!("Host: {at}\r\n")).starts_with("HTTP/1.1 200"));
    assert!(scrape(at, "Host: elsewhere.example\r\n").starts_with("HTTP/1.1 421"), "DNS rebinding");
    drop(server);

    let (_server, at) = metrics(&mut place, Some("open-sesame-0123456789"));
    let with = |value: &str| scrape(at, &format!("Host: elsewhere.example\r\nAuthorization: {value}\r\n"));
    assert!(with("Bearer open-sesame-0123456789").starts_with("HTTP/1.1 200"));
    assert!(with("Basic Ynl3YXNoOm9wZW4tc2VzYW1lLTAxMjM0NTY3ODk=").starts_with("HTTP/1.1 200"));
    for wrong in ["", "Bearer", "Bearer open-sesame-012345678", "Bearer open-sesame-0123456788", "Basic b3Blbg=="] {
        let refused = with(wrong);
        assert!(refused.starts_with("HTTP/1.1 401"), "{wrong}: {refused}");
        assert!(refused.contains("www-authenticate: Basic") && !refused.contains("bywash_info"), "{refused}");
    }
}
