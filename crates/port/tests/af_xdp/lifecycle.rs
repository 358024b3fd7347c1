//! Start, end, and failures in between.

use crate::rig::{Net, R0, Taken, Wire, forward, frame, ipv4, pools, socket};
use bywash_frame::{Batch, Buffers};
use bywash_lab::{patience, require, require_lab};
use bywash_port::af_xdp::{
    AfXdpPort, Bare, Error, Features, Journal, LinkInfo, Program, RingSizes, SocketConfig, Transmit, Umem, Value,
    XdpAttach, XdpConfig, ZeroCopy,
};
use bywash_port::{Port, PortState};
use std::time::{Duration, Instant};

const IPV4: u16 = 0x0800;

fn packet(tag: u32) -> Vec<u8> {
    frame(R0, IPV4, &ipv4([10, 0, 1, 2], [10, 0, 2, 2], tag))
}

#[test]
fn an_empty_pool_recovers_by_itself() {
    require!(require_lab());
    let net = Net::new();
    // The host sends nothing by itself.
    net.host.sysctl("net/ipv6/conf/h0/disable_ipv6", "1").unwrap();
    let near = net.host.enter(|| Wire::open("h0")).unwrap();
    let pools = pools(256);
    net.with_buffers(&pools, |umem, mut bufs| {
        let rings = RingSizes::all(128);
        let mut a = Taken::new(&umem, "r0", true, &SocketConfig { rings, ..socket() });
        // All other frames of the pool and all received ones are held back.
        a.port.housekeep(&mut bufs);
        let mut hoard = vec![];
        let mut keep = Batch::new();
        while bufs.alloc(&mut keep, 64) > 0 {
            hoard.push(std::mem::take(&mut keep));
        }
        for i in 0..300 {
            near.send(&packet(i));
            if a.port.rx_burst(&mut bufs, &mut keep) > 0 && keep.room() == 0 {
                hoard.push(std::mem::take(&mut keep));
            }
            a.port.housekeep(&mut bufs);
        }
        let figures = |port: &AfXdpPort| (port.counters().rx_packets.get(), port.counters().rx_no_buffer.get());
        // The kernel's figures are read only now and then.
        let end = Instant::now() + patience(Duration::from_secs(60));
        while (figures(&a.port).0 < 128 || figures(&a.port).1 < 300 - 128) && Instant::now() < end {
            if a.port.rx_burst(&mut bufs, &mut keep) > 0 && keep.room() == 0 {
                hoard.push(std::mem::take(&mut keep));
            }
            a.port.housekeep(&mut bufs);
        }
        let (got, lost) = figures(&a.port);
        assert_eq!(got, 128, "all buffers posted were used: {:?}", a.port.counters());
        // Each frame once; the interface's own first messages may come in addition.
        assert!((300 - 128..200).contains(&lost), "{:?}", a.port.counters());
        assert_eq!(a.port.held(), 0);

        // Once frames are freed, the port receives again by itself.
        hoard.push(keep);
        hoard.iter_mut().for_each(|batch| bufs.free(batch));
        a.port.housekeep(&mut bufs);
        let mut got = Batch::new();
        for i in 0..50 {
            near.send(&packet(i));
        }
        let end = Instant::now() + patience(Duration::from_secs(60));
        while got.len() < 50 && Instant::now() < end {
            a.port.rx_burst(&mut bufs, &mut got);
        }
        assert_eq!(got.len(), 50);
        bufs.free(&mut got);
        a.port.close(&mut bufs);
    });
}

#[test]
fn an_interface_deleted_while_running_is_reported_and_leaks_nothing() {
    require!(require_lab());
    for transmit in [Transmit::Socket, Transmit::Inject] {
        deleted_while_running(&SocketConfig { transmit, ..SocketConfig::default() });
    }
}

fn deleted_while_running(config: &SocketConfig) {
    let net = Net::new();
    let (near, far) = net.host.enter(|| (Wire::open("h0"), Wire::open("h1"))).unwrap();
    let pools = pools(8192);
    net.with_buffers(&pools, |umem, mut bufs| {
        let mut a = Taken::new(&umem, "r0", true, config);
        let mut b = Taken::new(&umem, "r1", true, config);
        forward(&mut a.port, &mut b.port, &mut bufs, |_, _| true);
        (0..200).for_each(|i| near.send(&packet(i)));
        // r0's socket holds the UMEM registration: r1 must work without it.
        net.router.ip(&["link", "del", "r0"]).unwrap();
        let down = forward(&mut a.port, &mut b.port, &mut bufs, |a, _| a.state() != PortState::Up);
        let PortState::Down(reason) = a.port.state() else { panic!("{down} {:?}", a.port.state()) };
        assert!(reason.contains("r0") && reason.contains("deleted"), "{reason}");
        assert_eq!(a.port.held(), 0, "the kernel has let go");
        assert!(a.port.fd().is_none());

        let before = b.port.counters().rx_packets.get();
        far.send(&packet(1));
        assert!(forward(&mut a.port, &mut b.port, &mut bufs, |_, b| b.counters().rx_packets.get() > before));
        assert_eq!(b.port.state(), PortState::Up);

        // A new interface can join the memory.
        net.router.ip(&["link", "add", "r2", "type", "veth", "peer", "name", "h2"]).unwrap();
        net.router.ip_batch("link set r2 up\nlink set h2 up\n").unwrap();
        let mut c = Taken::new(&umem, "r2", true, config);
        c.port.housekeep(&mut bufs);
        assert!(c.port.held() > 0);
        for port in [&mut a.port, &mut b.port, &mut c.port] {
            port.close(&mut bufs);
        }
    });
}

#[test]
fn a_link_that_goes_down_comes_back() {
    require!(require_lab());
    let net = Net::new();
    let near = net.host.enter(|| Wire::open("h0")).unwrap();
    let pools = pools(8192);
    net.with_buffers(&pools, |umem, mut bufs| {
        let mut a = Taken::new(&umem, "r0", true, &socket());
        let mut b = Taken::new(&umem, "r1", true, &socket());
        net.router.ip(&["link", "set", "r0", "down"]).unwrap();
        assert!(forward(&mut a.port, &mut b.port, &mut bufs, |a, _| {
            a.state() == PortState::Down("link is down".into())
        }));
        net.router.ip(&["link", "set", "r0", "up"]).unwrap();
        assert!(forward(&mut a.port, &mut b.port, &mut bufs, |a, _| a.state() == PortState::Up));
        let before = a.port.counters().rx_packets.get();
        assert!(forward(&mut a.port, &mut b.port, &mut bufs, |a, _| {
            near.send(&packet(1));
            a.counters().rx_packets.get() > before
        }));
        a.port.close(&mut bufs);
        b.port.close(&mut bufs);
    });
}

#[test]
fn frames_no_device_takes_are_refused_and_freed() {
    require!(require_lab());
    let net = Net::new();
    let pools = pools(4096);
    net.with_buffers(&pools, |umem, mut bufs| {
        let mut a = Taken::new(&umem, "r0", true, &socket());
        let mut batch = Batch::new();
        for len in [60, 0, 1518, 1519, 100] {
            let mut frame = bufs.alloc_one().unwrap();
            assert!(bufs.arena().write(&mut frame, &vec![0xff; len]));
            batch.push(frame).unwrap();
        }
        assert_eq!(a.port.tx_burst(&mut bufs, &mut batch), 5);
        assert!(batch.is_empty());
        (0..32).for_each(|_| a.port.housekeep(&mut bufs));
        let counters = a.port.counters();
        assert_eq!((counters.tx_packets.get(), counters.invalid.get()), (3, 2), "{counters:?}");
        a.port.close(&mut bufs);
    });
}

#[test]
fn what_cannot_be_opened_says_why() {
    require!(require_lab());
    let net = Net::new();
    let pools = pools(4096);
    net.with_buffers(&pools, |umem, mut bufs| {
        let link = LinkInfo::query("r0").unwrap();
        assert_eq!((link.kind.as_str(), link.mac, link.mtu, link.queues), ("veth", R0, 1500, 1));
        let first = Program::attach(&link, XdpAttach::Auto).unwrap();

        // Another program is refused, whether the snapshot of the link shows it or not.
        let refused = |link: &LinkInfo, how| {
            let error = Program::attach(link, how).err().unwrap();
            assert!(matches!(error, Error::AnotherProgram { id, mode: "native", .. } if id > 0), "{error}");
        };
        for link in [LinkInfo::query("r0").unwrap(), link.clone()] {
            // A program of another instance is refused also where ours would be at traffic control.
            [XdpAttach::Auto, XdpAttach::Native, XdpAttach::Generic].into_iter().for_each(|how| refused(&link, how));
        }
        drop(first);
        let first = Bare::drop("r0").unwrap();
        for link in [LinkInfo::query("r0").unwrap(), link.clone()] {
            [XdpAttach::Auto, XdpAttach::Native].into_iter().for_each(|how| refused(&link, how));
            // Traffic control needs no XDP until user space receives frames.
            let mut behind = Program::attach(&link, XdpAttach::Generic).unwrap();
            assert_eq!(behind.mode(), "tc");
            let receives = XdpConfig { enabled: true, mac: link.mac, ..XdpConfig::default() };
            for error in [behind.may_receive().err().unwrap(), behind.set_config(receives).err().unwrap()] {
                assert!(matches!(error, Error::AnotherProgram { .. }), "{error}");
            }
        }
        drop(first);
        assert_eq!(LinkInfo::query("r0").unwrap().program, None, "dropped, but still attached");

        // A queue in use, one that does not exist, invalid sizes, and a mode that veth does not support.
        let config = SocketConfig { bind_timeout_ms: 100, ..socket() };
        let mut held = AfXdpPort::open(&umem, &link, 0, &config).unwrap();
        let started = Instant::now();
        let error = AfXdpPort::open(&umem, &link, 0, &config).err().unwrap();
        assert!(matches!(error, Error::QueueBusy { queue: 0, .. }), "{error}");
        assert!(started.elapsed() >= Duration::from_millis(100));
        let error = AfXdpPort::open(&umem, &link, 7, &config).err().unwrap();
        assert!(matches!(error, Error::NoQueue { queue: 7, queues: 1, .. }), "{error}");
        for size in [0, 32, 100, 131_072] {
            let rings = RingSizes { tx: size, ..Default::default() };
            let error = AfXdpPort::open(&umem, &link, 0, &SocketConfig { rings, ..config.clone() }).err().unwrap();
            assert!(matches!(error, Error::RingSize { ring: "tx", .. }), "{error}");
        }
        let zero_copy = SocketConfig { zero_copy: ZeroCopy::Require, ..config.clone() };
        let other = LinkInfo::query("r1").unwrap();
        let error = AfXdpPort::open(&umem, &other, 0, &zero_copy).err().unwrap();
        assert!(error.to_string().contains("the driver has no zero-copy, which was required"), "{error}");
        for tx_sockets in [0, 17] {
            let error = AfXdpPort::open(&umem, &other, 0, &SocketConfig { tx_sockets, ..config.clone() });
            assert!(error.err().unwrap().to_string().contains("1 to 16 are possible"));
        }

        // Closed and opened again at once: the kernel needs a moment to release the queue, and the open waits for
        // it.
        held.housekeep(&mut bufs);
        held.close(&mut bufs);
        drop(held);
        let mut again = AfXdpPort::open(&umem, &link, 0, &socket()).unwrap();
        again.close(&mut bufs);
    });
}

#[test]
fn features_change_and_come_back_after_a_kill() {
    require!(require_lab());
    let net = Net::new();
    let path = std::env::temp_dir().join(format!("bywash-test-{}/journal.json", std::process::id()));
    net.router
        .enter(|| {
            let features = Features::of("r0").unwrap();
            let was = features.get("rx-gro").unwrap().unwrap();
            let tx = features.get("tx-vlan-hw-insert").unwrap().unwrap();
            let mut journal = Journal::open(&path).unwrap();
            assert!(journal.set(&features, "rx-gro", !was).unwrap());
            assert!(!journal.set(&features, "rx-gro", !was).unwrap(), "changed twice");
            assert!(journal.set(&features, "tx-vlan-hw-insert", !tx).unwrap());
            // After the driver refused a change there is nothing to restore.
            assert!(journal.set(&features, "rx-lro", true).is_err());
            let error = journal.set(&features, "tx-scatter-gather", false).unwrap_err();
            assert!(error.to_string().contains("Bywash does not change feature"), "{error}");
            assert_eq!(journal.changes().len(), 2);
            // The process ends here; the next one finds the journal.
            drop(journal);
            let mut journal = Journal::open(&path).unwrap();
            assert_eq!(features.get("rx-gro").unwrap(), Some(!was));
            assert!(journal.restore().unwrap().is_empty());
            assert_eq!(features.get("rx-gro").unwrap(), Some(was));
            assert_eq!(features.get("tx-vlan-hw-insert").unwrap(), Some(tx));
            assert!(!path.exists());
        })
        .unwrap();
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn settings_come_back_to_the_interface_that_had_them_whatever_its_name() {
    require!(require_lab());
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal.json");
    let gro = |name: &str| Features::of(name).unwrap().get("rx-gro").unwrap().unwrap();
    net.router
        .enter(|| {
            let was = gro("r0");
            let mut journal = Journal::open(&path).unwrap();
            assert!(journal.set(&Features::of("r0").unwrap(), "rx-gro", !was).unwrap());
            assert!(journal.busy_poll("r0").unwrap());
            for (from, to) in [("r0", "wan0"), ("r1", "r0")] {
                net.router.ip(&["link", "set", from, "down"]).unwrap();
                net.router.ip(&["link", "set", from, "name", to]).unwrap();
            }
            Features::of("r0").unwrap().set("rx-gro", !was).unwrap();
            // The other interface of that name is changed, too, and then removed.
            assert!(journal.set(&Features::of("r0").unwrap(), "rx-gro", was).unwrap());
            assert_eq!(journal.changes().len(), 4);
            assert!(journal.restore().unwrap().is_empty());
            assert_eq!((gro("wan0"), gro("r0")), (was, !was));
            assert!(journal.busy_poll("wan0").unwrap(), "was not put back");
            assert!(journal.restore_of("wan0").unwrap().is_empty());

            assert!(journal.set(&Features::of("r0").unwrap(), "rx-gro", was).unwrap());
            net.router.ip(&["link", "del", "r0"]).unwrap();
            net.router.ip(&["link", "add", "r0", "type", "veth", "peer", "name", "other"]).unwrap();
            let new = gro("r0");
            assert!(journal.set(&Features::of("r0").unwrap(), "rx-gro", !new).unwrap());
            assert_eq!(journal.changes().len(), 1, "{:?}", journal.changes());
            assert!(journal.restore().unwrap().is_empty());
            assert_eq!(gro("r0"), new);
            assert!(!path.exists());
        })
        .unwrap();
}

/// Not a test of its own: the process killed by `kill_9_leaves_nothing_attached`.
#[test]
#[ignore = "started by another test"]
fn hold_r0_until_killed() {
    if std::env::var_os("BYWASH_HOLD").is_none() {
        return;
    }
    let pools = pools(4096);
    let umem = Umem::new(pools.arena());
    let mut bufs = Buffers::attach(&pools, 0);
    let mut a = Taken::new(&umem, "r0", true, &socket());
    a.port.housekeep(&mut bufs);
    println!("held");
    std::thread::sleep(Duration::from_secs(600));
}

#[test]
fn kill_9_leaves_nothing_attached() {
    require!(require_lab());
    let net = Net::new();
    let me = std::env::current_exe().unwrap();
    let arguments = ["lifecycle::hold_r0_until_killed", "--exact", "--ignored", "--nocapture"];
    let mut child = std::process::Command::new("ip")
        .args(["netns", "exec", net.router.name()])
        .arg(me)
        .args(arguments)
        .env("BYWASH_HOLD", "1")
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let attached = || net.router.enter(|| LinkInfo::query("r0").unwrap().program).unwrap();
    let end = Instant::now() + patience(Duration::from_secs(60));
    while attached().is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    let was = attached();
    std::thread::sleep(Duration::from_millis(50));
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    assert!(was.is_some(), "the child never attached");
    while attached().is_some() && killed.elapsed() < patience(Duration::from_secs(60)) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(attached(), None, "still attached a minute after the kill");
    // The queue is free for the next start.
    let pools = pools(4096);
    net.router
        .enter(|| {
            let umem = Umem::new(pools.arena());
            let mut bufs = Buffers::attach(&pools, 0);
            // The kernel frees the queue a while after the process has ended.
            let bind_timeout_ms = patience(Duration::from_secs(60)).as_millis() as u64;
            let mut a = Taken::new(&umem, "r0", true, &SocketConfig { bind_timeout_ms, ..socket() });
            a.port.close(&mut bufs);
        })
        .unwrap();
}

/// The busy polling settings of the interface, in its own network namespace, are restored.
#[test]
fn napi_settings_change_and_come_back() {
    require!(require_lab());
    let net = Net::new();
    let path = std::env::temp_dir().join(format!("bywash-test-napi-{}/journal.json", std::process::id()));
    net.router
        .enter(|| {
            let mut journal = Journal::open(&path).unwrap();
            assert!(journal.busy_poll("r0").unwrap());
            assert!(!journal.busy_poll("r0").unwrap(), "changed twice");
            assert_eq!(journal.changes().len(), 2, "{:?}", journal.changes());
            drop(journal);
            // After a kill.
            let mut journal = Journal::open(&path).unwrap();
            assert_eq!(journal.changes()[0].was, Value::Number(0));
            assert!(journal.restore().unwrap().is_empty());
            assert!(journal.busy_poll("r0").unwrap(), "was not put back");
            assert!(journal.restore().unwrap().is_empty());
            let error = journal.busy_poll("nosuchif0").unwrap_err();
            assert!(error.to_string().contains("cannot read setting `napi_defer_hard_irqs` of `nosuchif0`"), "{error}");
        })
        .unwrap();
    assert!(!path.exists());
    std::fs::remove_dir(path.parent().unwrap()).unwrap();
}
