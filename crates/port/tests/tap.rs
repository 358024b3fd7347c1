//! TAP in a network namespace of its own, with the kernel's stack at the other end.

mod common;

use bywash_frame::{Batch, Buffers};
use bywash_lab::Namespace;
use bywash_port::{NullPort, Port, PortCounters, PortState, TapConfig, TapError, TapPort, TwinPort};
use common::{assert_conserved, batch_of, contents, pools};
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const PEER: [u8; 6] = [2, 0, 0, 0, 0, 2];

fn namespace() -> Option<Namespace> {
    match Namespace::new("tap") {
        Ok(ns) => Some(ns),
        Err(e) => {
            println!("SKIP: no network namespace: {e}");
            None
        }
    }
}

fn config(name: &str) -> TapConfig {
    TapConfig { name: name.into(), mac: Some(MAC), mtu: None, up: true }
}

/// Creates a namespace with a TAP interface that has 10.7.0.1/24 and 10.7.0.2 as a permanent neighbour.
fn set_up(ns: &Namespace, config: TapConfig) -> TapPort {
    let port = ns.enter(move || TapPort::create(&config)).unwrap().unwrap();
    ns.ip(&["addr", "add", "10.7.0.1/24", "dev", port.name()]).unwrap();
    ns.ip(&["neigh", "add", "10.7.0.2", "lladdr", "02:00:00:00:00:02", "dev", port.name(), "nud", "permanent"])
        .unwrap();
    port
}

fn receive(port: &mut TapPort, bufs: &mut Buffers, want: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    let start = Instant::now();
    let mut batch = Batch::new();
    while start.elapsed() < Duration::from_secs(60) {
        port.rx_burst(bufs, &mut batch);
        if let Some(p) = contents(bufs, &mut batch).into_iter().find(|p| want(p)) {
            return Some(p);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

fn is_udp(p: &[u8]) -> bool {
    p.len() > 42 && p[12..14] == [8, 0] && p[23] == 17 && p[30..34] == [10, 7, 0, 2]
}

/// Returns the one's complement sum of the pseudo-header and UDP of an Ethernet frame, byte by byte: all ones if
/// correct.
fn udp_sum(p: &[u8]) -> u16 {
    let len = (usize::from(p[38]) << 8 | usize::from(p[39])).min(p.len() - 34);
    let words = |b: &[u8]| b.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0))).sum::<u32>();
    let mut sum = words(&p[26..34]) + 17 + len as u32 + words(&p[34..34 + len]);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Turns a frame into its reply: swaps addresses and ports. Checksums stay valid.
fn turned(mut p: Vec<u8>) -> Vec<u8> {
    let swap = |p: &mut Vec<u8>, a: usize, b: usize, n: usize| (0..n).for_each(|i| p.swap(a + i, b + i));
    swap(&mut p, 0, 6, 6);
    swap(&mut p, 26, 30, 4);
    swap(&mut p, 34, 36, 2);
    p
}

#[test]
fn udp_goes_both_ways_with_right_checksums() {
    let Some(ns) = namespace() else { return };
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut port = set_up(&ns, config("bwt%d"));
    assert!(port.name().starts_with("bwt") && !port.name().contains('%'));
    let socket = ns.enter(|| UdpSocket::bind("10.7.0.1:5000")).unwrap().unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    for len in [1usize, 2, 19, 100, 1471, 1472] {
        let payload: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        socket.send_to(&payload, "10.7.0.2:6000").unwrap();
        let p = receive(&mut port, &mut bufs, is_udp).expect("the kernel's datagram");
        assert_eq!((&p[..6], &p[6..12]), (&PEER[..], &MAC[..]));
        assert_eq!(&p[42..42 + len], payload);
        assert_eq!(udp_sum(&p), 0xffff, "{len} bytes");
        let mut batch = batch_of(&mut bufs, [turned(p)]);
        assert_eq!(port.tx_burst(&mut bufs, &mut batch), 1);
        let mut back = [0; 2000];
        let (n, from) = socket.recv_from(&mut back).expect("the datagram came back");
        assert_eq!((&back[..n], from.to_string().as_str()), (&payload[..], "10.7.0.2:6000"));
    }
    let completed = port.details().iter().find(|(k, _)| *k == "checksums_completed").unwrap().1.clone();
    println!("checksums completed: {completed}");
    assert_eq!(pools.audit(port.held()).missing, 0);
    port.close(&mut bufs);
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn a_ping_is_answered_by_the_kernel() {
    let Some(ns) = namespace() else { return };
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut port = set_up(&ns, config("bwp0"));
    let mut ping = vec![0u8; 14 + 20 + 8 + 56];
    ping[..6].copy_from_slice(&MAC);
    ping[6..12].copy_from_slice(&PEER);
    ping[12..14].copy_from_slice(&[8, 0]);
    ping[14..34].copy_from_slice(&[0x45, 0, 0, 84, 0, 0, 0, 0, 64, 1, 0, 0, 10, 7, 0, 2, 10, 7, 0, 1]);
    ping[34] = 8;
    let ip = bywash_wire::checksum::checksum(&ping[14..34]);
    ping[24..26].copy_from_slice(&ip.to_be_bytes());
    let icmp = bywash_wire::checksum::checksum(&ping[34..]);
    ping[36..38].copy_from_slice(&icmp.to_be_bytes());
    // A runt among them is refused by the kernel and counted, and does not hold up the next frame.
    let mut batch = batch_of(&mut bufs, [vec![1; 5], ping]);
    assert_eq!(port.tx_burst(&mut bufs, &mut batch), 2);
    assert_eq!((port.counters().invalid.get(), port.counters().tx_packets.get()), (1, 1));
    let reply = receive(&mut port, &mut bufs, |p| p.len() == 98 && p[23] == 1 && p[34] == 0);
    assert!(reply.is_some(), "no echo reply");
    port.close(&mut bufs);
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn tcp_of_the_kernel_comes_with_complete_checksums() {
    let Some(ns) = namespace() else { return };
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut port = set_up(&ns, config("bwc0"));
    let client = std::thread::scope(|scope| {
        let dial = scope.spawn(|| {
            ns.enter(|| {
                let to = "10.7.0.2:80".parse().unwrap();
                std::net::TcpStream::connect_timeout(&to, Duration::from_millis(300)).map(drop)
            })
        });
        let syn = receive(&mut port, &mut bufs, |p| p.len() >= 54 && p[12..14] == [8, 0] && p[23] == 6);
        let _ = dial.join().unwrap();
        syn
    });
    let syn = client.expect("a SYN");
    let words = |b: &[u8]| b.chunks(2).map(|c| u32::from(c[0]) << 8 | u32::from(*c.get(1).unwrap_or(&0))).sum::<u32>();
    let mut sum = words(&syn[26..]) + 6 + (syn.len() - 34) as u32;
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    assert_eq!(sum, 0xffff);
    port.close(&mut bufs);
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn what_is_longer_than_a_cell_is_counted_and_the_next_frame_is_whole() {
    let Some(ns) = namespace() else { return };
    let pools = pools(64);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut port = set_up(&ns, TapConfig { mtu: Some(4000), ..config("bwl0") });
    let socket = ns.enter(|| UdpSocket::bind("10.7.0.1:5000")).unwrap().unwrap();
    socket.send_to(&[1; 3000], "10.7.0.2:6000").unwrap();
    socket.send_to(&[2; 500], "10.7.0.2:6000").unwrap();
    let p = receive(&mut port, &mut bufs, is_udp).expect("the short one");
    assert!(p.len() == 542 && p[42..] == [2; 500], "{} bytes", p.len());
    assert_eq!(udp_sum(&p), 0xffff);
    assert_eq!(port.counters().invalid.get(), 1);
    port.close(&mut bufs);
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn down_and_up_again_and_deleted() {
    let Some(ns) = namespace() else { return };
    let pools = pools(256);
    let mut bufs = Buffers::attach(&pools, 0);
    let mut port = set_up(&ns, config("bwd0"));
    let frame = [[PEER.as_slice(), &MAC, &[0x88, 0xb5], &[0; 50]].concat()];
    let mut batch = batch_of(&mut bufs, &frame);
    ns.ip(&["link", "set", "bwd0", "down"]).unwrap();
    assert_eq!(port.tx_burst(&mut bufs, &mut batch), 0);
    assert_eq!((port.state(), batch.len()), (PortState::Down("the interface is down".into()), 1));
    // Frames that the kernel sent while the interface was up may still be read.
    let mut late = Batch::new();
    port.rx_burst(&mut bufs, &mut late);
    bufs.free(&mut late);
    port.housekeep(&mut bufs);
    assert_ne!(port.state(), PortState::Up);
    ns.ip(&["link", "set", "bwd0", "up"]).unwrap();
    // A port that only receives, too, is up again.
    port.housekeep(&mut bufs);
    assert_eq!(port.state(), PortState::Up);
    assert_eq!(port.tx_burst(&mut bufs, &mut batch), 1);
    assert_eq!(port.state(), PortState::Up);
    ns.ip(&["link", "del", "bwd0"]).unwrap();
    let mut batch = batch_of(&mut bufs, &frame);
    assert_eq!(port.rx_burst(&mut bufs, &mut batch), 0);
    assert_eq!(port.state(), PortState::Down("the interface was deleted".into()));
    assert_eq!(port.tx_burst(&mut bufs, &mut batch), 0);
    assert!(port.wait_fd().is_none());
    bufs.free(&mut batch);
    port.close(&mut bufs);
    drop(bufs);
    assert_conserved(&pools);
}

#[test]
fn what_the_kernel_refuses_is_said() {
    let Some(ns) = namespace() else { return };
    let try_in = |config: TapConfig| ns.enter(move || TapPort::create(&config)).unwrap();
    assert!(matches!(try_in(config("a name")), Err(TapError::Name(_))));
    let taken = try_in(config("bwx0")).unwrap();
    let again = try_in(config("bwx0")).map(drop).unwrap_err().to_string();
    assert!(again.contains("bwx0") && again.contains("busy"), "{again}");
    let mtu = try_in(TapConfig { mtu: Some(1 << 30), ..config("bwx1") }).map(drop).unwrap_err().to_string();
    assert!(mtu.contains("MTU"), "{mtu}");
    let mac = try_in(TapConfig { mac: Some([1, 0, 0, 0, 0, 1]), ..config("bwx2") }).map(drop).unwrap_err().to_string();
    assert!(mac.contains("MAC"), "{mac}");
    drop(taken);
}

/// Port whose link goes down and up.
struct Link(NullPort, Arc<AtomicBool>);

impl Port for Link {
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        self.0.rx_burst(bufs, out)
    }

    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        self.0.tx_burst(bufs, frames)
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.0.counters()
    }

    fn close(&mut self, bufs: &mut Buffers) {
        self.0.close(bufs);
    }

    fn state(&self) -> PortState {
        if self.1.load(Ordering::Relaxed) { PortState::Up } else { PortState::Down("the link is down".into()) }
    }
}

/// The twin's carrier follows its port in time, and not in turns: an idle worker makes a hundred a second.
#[test]
fn a_twins_carrier_follows_its_port_within_a_few_turns_of_an_idle_worker() {
    let Some(ns) = namespace() else { return };
    let pools = pools(64);
    let mut bufs = Buffers::attach(&pools, 0);
    let kernel = set_up(&ns, config("twin0"));
    let up = Arc::new(AtomicBool::new(true));
    let mut twin = TwinPort::new(Box::new(Link(NullPort::new(), up.clone())), kernel);
    let has_carrier = || ns.ip(&["link", "show", "dev", "twin0"]).unwrap().stdout.contains("LOWER_UP");
    twin.housekeep(&mut bufs);
    assert!(has_carrier());
    for on in [false, true, false] {
        up.store(on, Ordering::Relaxed);
        let mut turns = 0;
        while has_carrier() != on {
            turns += 1;
            assert!(turns <= 3, "not within three turns");
            std::thread::sleep(Duration::from_millis(10));
            twin.housekeep(&mut bufs);
        }
    }
    twin.close(&mut bufs);
    drop(bufs);
    assert_conserved(&pools);
}
