//! memif tests: Bywash in both roles, peers that violate the protocol, and DPDK.

#[path = "../common/mod.rs"]
mod common;
mod dpdk;
mod liars;

use bywash_frame::{Batch, Buffers, PoolSet};
use bywash_port::memif::{Config, Error, MemifPort, Role};
use bywash_port::{Port, PortState};
use common::{assert_conserved, batch_of, contents, pools};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Time limit of every wait.
const LONG: Duration = Duration::from_secs(60);

/// Port with a pool of its own, as in a separate process.
struct End {
    port: MemifPort,
    bufs: Buffers,
    pools: Arc<PoolSet>,
}

impl End {
    fn open(config: &Config) -> Self {
        let pools = pools(4096);
        let bufs = Buffers::attach(&pools, 0);
        Self { port: MemifPort::open(config, pools.arena()).unwrap(), bufs, pools }
    }

    /// Runs one turn of a worker and returns the packets received.
    fn turn(&mut self, out: &mut Batch) -> Vec<Vec<u8>> {
        let mut got = Batch::new();
        self.port.rx_burst(&mut self.bufs, &mut got);
        self.port.tx_burst(&mut self.bufs, out);
        self.port.housekeep(&mut self.bufs);
        contents(&mut self.bufs, &mut got)
    }

    /// Runs turns until the port is up, or is down for a reason that contains `words`.
    fn until(&mut self, words: &str) {
        let start = Instant::now();
        loop {
            assert!(self.turn(&mut Batch::new()).is_empty());
            match self.port.state() {
                PortState::Up if words == "up" => return,
                PortState::Down(why) if words != "up" && why.contains(words) => return,
                state => assert!(start.elapsed() < LONG, "expected {words}: {state:?}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn detail(&self, name: &str) -> String {
        let details = self.port.details();
        details.iter().find(|(key, _)| *key == name).map(|(_, value)| value.clone()).unwrap_or_default()
    }

    fn close(mut self) {
        self.port.close(&mut self.bufs);
        assert_eq!(self.port.held(), 0);
        drop(self.bufs);
        assert_conserved(&self.pools);
    }
}

/// Returns the path of a control socket for one test, with its temporary folder.
fn socket() -> (PathBuf, tempfile::TempDir) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let folder = tempfile::tempdir().unwrap();
    (folder.path().join(format!("memif{}.sock", COUNT.fetch_add(1, Ordering::Relaxed))), folder)
}

fn config(socket: &std::path::Path, role: Role) -> Config {
    Config { socket: socket.into(), role, ring: 256, ..Config::default() }
}

/// Returns a connected server and client.
fn ends(socket: &std::path::Path) -> (End, End) {
    let mut server = End::open(&config(socket, Role::Server));
    let mut client = End::open(&config(socket, Role::Client));
    client.until("up");
    server.until("up");
    (server, client)
}

/// Returns packet `n`: it begins with its number, and its length depends on the number.
fn packet(n: u32) -> Vec<u8> {
    let mut bytes = vec![n as u8; [60, 64, 14, 33, 512, 1514, 1600][n as usize % 7]];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    bytes
}

#[test]
fn packets_arrive_in_order_and_whole_both_ways() {
    const N: u32 = 20_000;
    let (path, _folder) = socket();
    let (server, client) = ends(&path);
    let run = |mut end: End| {
        move || {
            let (mut out, mut sent, mut received) = (Batch::new(), 0u32, 0u32);
            let start = Instant::now();
            while sent < N || received < N || !out.is_empty() {
                if out.is_empty() && sent < N {
                    // Bursts of all sizes make the ring wrap at every position.
                    let want = (sent % 64 + 1).min(N - sent);
                    out = batch_of(&mut end.bufs, (sent..sent + want).map(packet));
                    sent += want;
                }
                let got = end.turn(&mut out);
                if got.is_empty() {
                    std::thread::yield_now();
                }
                for bytes in got {
                    assert!(bytes == packet(received), "packet {received}");
                    received += 1;
                }
                assert!(start.elapsed() < 3 * LONG, "{received} of {N}");
            }
            end
        }
    };
    let one = std::thread::spawn(run(server));
    let other = std::thread::spawn(run(client));
    let (server, client) = (one.join().unwrap(), other.join().unwrap());
    for end in [&server, &client] {
        let counters = end.port.counters();
        assert_eq!(
            (counters.rx_packets.get(), counters.tx_packets.get(), counters.invalid.get()),
            (N.into(), N.into(), 0)
        );
    }
    assert_eq!(server.detail("mode"), "memif server, copy");
    assert_eq!(client.detail("mode"), "memif client, zero-copy");
    assert!(server.detail("peer").starts_with("bywash "), "{}", server.detail("peer"));
    assert_eq!(server.detail("ring"), "256");
    client.close();
    server.close();
}

#[test]
fn what_was_sent_before_the_peer_left_is_received() {
    let (path, _folder) = socket();
    let (mut server, mut client) = ends(&path);
    let mut out = batch_of(&mut client.bufs, (0..20).map(packet));
    client.turn(&mut out);
    assert!(out.is_empty());
    client.close();
    let (mut got, start) = (vec![], Instant::now());
    while got.len() < 20 && start.elapsed() < LONG {
        got.extend(server.turn(&mut Batch::new()));
    }
    assert!(got == (0..20).map(packet).collect::<Vec<_>>(), "{}", got.len());
    server.until("port closed");

    // The other direction: the server sends and closes first.
    let mut client = End::open(&config(&path, Role::Client));
    client.until("up");
    server.until("up");
    let mut out = batch_of(&mut server.bufs, (0..20).map(packet));
    while !out.is_empty() {
        server.turn(&mut out);
        client.port.housekeep(&mut client.bufs);
    }
    server.close();
    let mut got = vec![];
    while got.len() < 20 && start.elapsed() < LONG {
        got.extend(client.turn(&mut Batch::new()));
    }
    assert!(got == (0..20).map(packet).collect::<Vec<_>>(), "{}", got.len());
    client.until("no server answers");
    client.close();
}

#[test]
fn they_find_each_other_again() {
    let (path, _folder) = socket();
    let (mut server, mut client) = ends(&path);
    for round in 2..5u64 {
        if round % 2 == 0 {
            server.close();
            client.until("no server answers");
            server = End::open(&config(&path, Role::Server));
        } else {
            client.close();
            server.until("port closed");
            assert_eq!(server.detail("peer"), "", "it has left");
            client = End::open(&config(&path, Role::Client));
        }
        client.until("up");
        server.until("up");
        // Each connection has fresh rings; an index left over from the previous one would lose packets.
        let mut out = batch_of(&mut client.bufs, (0..64).map(packet));
        let (mut got, start) = (vec![], Instant::now());
        while got.len() < 64 && start.elapsed() < LONG {
            client.turn(&mut out);
            got.extend(server.turn(&mut Batch::new()));
        }
        assert_eq!(got.len(), 64, "round {round}");
    }
    assert_eq!(client.detail("reconnects"), "1");
    server.close();
    client.close();
    assert!(!path.exists(), "the socket's name stayed behind");
}

#[test]
fn a_sleeper_is_woken() {
    let (path, _folder) = socket();
    let (mut server, mut client) = ends(&path);
    for _ in 0..3 {
        for swap in [false, true] {
            let (from, to) = if swap { (&mut server, &mut client) } else { (&mut client, &mut server) };
            to.turn(&mut Batch::new());
            let fd = to.port.wait_fd().expect("a descriptor").try_clone_to_owned().unwrap();
            let wakes = |ms: i64| {
                let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                let time = rustix::time::Timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
                rustix::event::poll(&mut fds, Some(&time)).unwrap() == 1
            };
            assert!(!wakes(5), "nothing was sent");
            let mut out = batch_of(&mut from.bufs, [packet(1)]);
            from.turn(&mut out);
            assert!(wakes(20_000));
            // A polling receiver must not be woken: each wakeup costs the sender a system call.
            assert_eq!(to.turn(&mut Batch::new()), [packet(1)]);
            let woken = from.port.counters().tx_wakeups.get();
            let mut out = batch_of(&mut from.bufs, [packet(2)]);
            from.turn(&mut out);
            assert_eq!(from.port.counters().tx_wakeups.get(), woken);
            assert_eq!(to.turn(&mut Batch::new()), [packet(2)]);
            // A packet that is already in the ring must make `wait_fd` readable at once.
            let mut out = batch_of(&mut from.bufs, [packet(3)]);
            from.turn(&mut out);
            let fd = to.port.wait_fd().expect("a descriptor").try_clone_to_owned().unwrap();
            let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
            assert_eq!(rustix::event::poll(&mut fds, Some(&now)).unwrap(), 1);
            assert_eq!(to.turn(&mut Batch::new()), [packet(3)]);
        }
    }
    client.close();
    server.close();
}

#[test]
fn a_full_ring_takes_no_more_and_an_empty_pool_waits() {
    let (path, _folder) = socket();
    let mut server = End::open(&config(&path, Role::Server));
    let mut client = End::open(&Config { ring: 16, ..config(&path, Role::Client) });
    client.until("up");
    server.until("up");
    {
        let (from, to) = (&mut client, &mut server);
        let mut out = batch_of(&mut from.bufs, (0..40).map(packet));
        assert_eq!(from.port.tx_burst(&mut from.bufs, &mut out), 16);
        assert_eq!(from.port.tx_burst(&mut from.bufs, &mut out), 0);
        assert_eq!(from.port.counters().tx_full.get(), 2);
        let mut got = to.turn(&mut Batch::new());
        from.turn(&mut out);
        got.extend(to.turn(&mut Batch::new()));
        from.turn(&mut out);
        got.extend(to.turn(&mut Batch::new()));
        assert!(got == (0..40).map(packet).collect::<Vec<_>>(), "{}", got.len());
    }
    client.close();
    server.close();
}

#[test]
fn what_cannot_be_opened_says_why() {
    let (path, _folder) = socket();
    let pools = pools(64);
    let open = |config: Config| MemifPort::open(&config, pools.arena()).err().map(|e| e.to_string());
    let refused = open(Config { ring: 1000, ..config(&path, Role::Client) });
    assert_eq!(refused.as_deref(), Some("invalid ring size 1000: must be a power of two from 16 to 16384"));
    assert!(open(Config { ring: 32768, ..config(&path, Role::Client) }).is_some());
    let refused = open(Config { secret: "x".repeat(25), ..config(&path, Role::Server) });
    assert_eq!(refused.as_deref(), Some("invalid secret of 25 bytes: must be at most 24 bytes, without a NUL byte"));
    let nowhere = open(config(&path.join("no/such"), Role::Server)).unwrap();
    assert!(nowhere.starts_with("cannot listen at ") && nowhere.contains("os error"), "{nowhere}");

    let first = MemifPort::open(&config(&path, Role::Server), pools.arena()).unwrap();
    let second = MemifPort::open(&config(&path, Role::Server), pools.arena());
    assert!(matches!(second, Err(Error::Socket { ref source, .. }) if source.kind() == std::io::ErrorKind::AddrInUse));
    drop(first);
    // A stale socket path of a killed process is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    assert!(open(config(&path, Role::Server)).is_none());
    // Abstract socket names work, too.
    let name = PathBuf::from(format!("@bywash-test-{}", std::process::id()));
    let (server, client) = ends(&name);
    client.close();
    server.close();
}
