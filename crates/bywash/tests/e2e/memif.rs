//! Ports of kind `memif`: a switch between two other processes, whose part the test plays.

use crate::harness::{Bywash, PATIENCE};
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use bywash_lab::{Namespace, require, require_lab, wait_until};
use bywash_port::memif::{Config, MemifPort, Role};
use bywash_port::{Port as _, PortState};
use std::path::Path;
use std::sync::Arc;

/// Secret of the switch's server.
const SECRET: &str = "sesame";

/// The memif port and the buffers of a peer process.
struct Peer {
    port: MemifPort,
    bufs: Buffers,
    pools: Arc<PoolSet>,
}

impl Peer {
    fn new(socket: &Path, role: Role, id: u32) -> Self {
        let arena = Arena::new(ArenaConfig { cells: 2048, ..ArenaConfig::default() }).unwrap();
        let pools = PoolSet::new(arena, &[PoolConfig::stack("peer", 2048)]).unwrap();
        // The switch's server expects the secret; its client has none.
        let secret = if role == Role::Client { SECRET } else { "" }.into();
        let (socket, name) = (socket.into(), "peer".into());
        let config = Config { socket, role, id, ring: 256, name, secret, ..Config::default() };
        let mut port = MemifPort::open(&config, pools.arena()).unwrap();
        let mut bufs = Buffers::attach(&pools, 0);
        wait_until("a connection", PATIENCE, || {
            port.rx_burst(&mut bufs, &mut Batch::new());
            port.state() == PortState::Up
        })
        .unwrap();
        Self { port, bufs, pools }
    }

    fn send(&mut self, bytes: &[u8]) {
        let mut frame = self.bufs.alloc_one().unwrap();
        assert!(self.bufs.arena().write(&mut frame, bytes));
        let mut batch = Batch::new();
        batch.push(frame).unwrap();
        assert_eq!(self.port.tx_burst(&mut self.bufs, &mut batch), 1);
    }

    /// Waits for `wanted` packets and returns those that have arrived.
    fn receive(&mut self, wanted: usize) -> Vec<Vec<u8>> {
        let (mut batch, mut got) = (Batch::new(), vec![]);
        let _ = wait_until("packets", PATIENCE, || {
            self.port.rx_burst(&mut self.bufs, &mut batch);
            self.port.housekeep(&mut self.bufs);
            got.extend(batch.as_slice().iter().map(|frame| self.bufs.arena().data(frame).to_vec()));
            self.bufs.free(&mut batch);
            got.len() >= wanted
        });
        got
    }

    fn close(mut self) {
        self.port.close(&mut self.bufs);
        drop(self.bufs);
        assert_eq!(self.pools.verify(), (vec![], vec![]));
    }
}

fn frame(to: u8, from: u8, body: u8) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 9, to, 2, 0, 0, 0, 9, from, 0x88, 0xb5];
    if to == 0xff {
        bytes[..6].fill(0xff);
    }
    bytes.resize(100, body);
    bytes
}

#[test]
fn a_switch_between_two_processes() {
    require!(require_lab());
    let (namespace, directory) = (Namespace::new("memif").unwrap(), tempfile::tempdir().unwrap());
    let (left, right) = (directory.path().join("left.sock"), directory.path().join("right.sock"));
    let secret = directory.path().join("secret");
    std::fs::write(&secret, format!("{SECRET}\n")).unwrap();
    // The right peer is the server: the switch's buffers are shared, not its own.
    let waiting = {
        let right = right.clone();
        std::thread::spawn(move || Peer::new(&right, Role::Server, 7))
    };
    let text = format!(
        "mode = \"switch\"\n[[port]]\nkind = \"memif\"\nname = \"left\"\nsocket = \"{}\"\n\
         secret = {{ file = \"{}\" }}\n\
         [[port]]\nkind = \"memif\"\nname = \"right\"\nsocket = \"{}\"\nrole = \"client\"\nid = 7\nring = 128\n",
        left.display(),
        secret.display(),
        right.display()
    );
    let file = directory.path().join("bywash.toml");
    std::fs::write(&file, text).unwrap();
    let switch = Bywash::run(&namespace, &["--config", file.to_str().unwrap()]);
    let mut right = waiting.join().unwrap();
    let mut left = Peer::new(&directory.path().join("left.sock"), Role::Client, 0);
    let up = |switch: &Bywash<'_>| ["left", "right"].iter().all(|name| switch.port(name)["state"] == "up");
    switch.wait("both ports to be up", up);
    let config = switch.show(&["config"]).to_string();
    assert!(config.contains("\"secret\":\"(secret)\"") && !config.contains(SECRET), "{config}");

    left.send(&frame(0xff, 1, 1));
    assert_eq!(right.receive(1), [frame(0xff, 1, 1)]);
    for n in 0..100 {
        right.send(&frame(1, 2, n));
        assert_eq!(left.receive(1), [frame(1, 2, n)]);
        left.send(&frame(2, 1, n));
        assert_eq!(right.receive(1), [frame(2, 1, n)]);
    }
    let shown = switch.port("left");
    assert_eq!((&shown["kind"], &shown["queues"][0]["mode"]), (&"memif".into(), &"memif server, copy".into()));
    assert!(shown["queues"][0]["peer"].as_str().unwrap().ends_with(", peer"), "{shown}");
    assert_eq!(switch.port("right")["queues"][0]["mode"], "memif client, zero-copy");
    // A peer has a packet before the switch has counted it.
    switch.wait("the last packets to be counted", |switch| {
        (switch.counter("left", "rx_packets"), switch.counter("right", "tx_packets")) == (101, 101)
    });

    // The left peer disconnects and connects again.
    left.close();
    switch.wait("the port to be down", |switch| switch.port("left")["reason"] == "the peer disconnected: port closed");
    let mut left = Peer::new(&directory.path().join("left.sock"), Role::Client, 0);
    switch.wait("both ports to be up", up);
    assert_eq!(switch.port("left")["queues"][0]["reconnects"], "1");
    left.send(&frame(2, 1, 7));
    assert_eq!(right.receive(1), [frame(2, 1, 7)]);
    switch.stop();
    left.close();
    right.close();
}
