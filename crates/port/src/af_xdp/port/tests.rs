use super::super::ZeroCopy;
use super::super::socket::raise_tx_budget;
use super::*;
use bywash_frame::{Arena, ArenaConfig, PoolConfig, PoolSet};
use bywash_lab::{End, Namespace, Veth, require, require_lab};

/// Returns a port that treats its socket as zero-copy, as if the device accessed the frames directly.
fn open(umem: &Arc<Umem>, bufs: &mut Buffers) -> AfXdpPort {
    let link = LinkInfo::query("r0").unwrap();
    let config = SocketConfig { transmit: Transmit::Socket, bind_timeout_ms: 30_000, ..SocketConfig::default() };
    let mut port = AfXdpPort::open(umem, &link, 0, &config).unwrap();
    port.housekeep(bufs);
    assert!(port.held() > 0);
    port.socket.as_mut().unwrap().zero_copy = true;
    port
}

#[test]
fn what_a_device_may_have_is_not_free_before_the_kernel_has_let_go() {
    require!(require_lab());
    let (router, host) = (Namespace::new("lr").unwrap(), Namespace::new("lh").unwrap());
    Veth::new(End::new(&router, "r0"), End::new(&host, "h0")).create().unwrap();
    let arena = Arena::new(ArenaConfig { cells: 8192, ..Default::default() }).unwrap();
    let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 8192)]).unwrap();
    let (long, short) = (Duration::from_secs(30), Duration::from_millis(50));
    router
        .enter(|| {
            let umem = Umem::new(pools.arena());
            let mut bufs = Buffers::attach(&pools, 0);
            // A clone of the descriptor keeps the socket open, so that the kernel does not release the queue.
            let mut port = open(&umem, &mut bufs);
            let (kept, held) = (port.fd().unwrap().try_clone_to_owned().unwrap(), port.held());
            port.close(&mut bufs);
            assert_eq!((port.held(), umem.held(), umem.settle(&mut bufs, short)), (0, held, held));
            assert_eq!(pools.audit(held).missing, 0);
            drop(kept);
            assert_eq!(umem.settle(&mut bufs, long), 0);
            // The next socket bound to the queue is proof, too, although it keeps the probe socket from being
            // bound.
            let mut port = open(&umem, &mut bufs);
            port.close(&mut bufs);
            assert!(umem.held() > 0);
            let mut next = open(&umem, &mut bufs);
            assert_eq!(umem.reclaim(&mut bufs), 0);
            // A removed interface has no rings.
            router.ip(&["link", "del", "r0"]).unwrap();
            next.close(&mut bufs);
            assert_eq!(umem.settle(&mut bufs, long), 0);
        })
        .unwrap();
    assert_eq!(pools.verify(), (vec![], vec![]));
}

#[test]
fn the_fill_ring_has_buffers_when_the_socket_is_bound() {
    require!(require_lab());
    let (router, host) = (Namespace::new("fr").unwrap(), Namespace::new("fh").unwrap());
    Veth::new(End::new(&router, "r0"), End::new(&host, "h0")).create().unwrap();
    let arena = Arena::new(ArenaConfig { cells: 8192, ..Default::default() }).unwrap();
    let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 8192)]).unwrap();
    router
        .enter(|| {
            let umem = Umem::new(pools.arena());
            let mut bufs = Buffers::attach(&pools, 0);
            let link = LinkInfo::query("r0").unwrap();
            let config = SocketConfig { bind_timeout_ms: 30_000, ..SocketConfig::default() };
            let mut port = AfXdpPort::open_with(&umem, (&link, 0), &config, None, Some(&mut bufs)).unwrap();
            let posted = port.socket.as_mut().unwrap().fill.pending();
            assert_eq!((posted, port.held()), (config.rings.fill, config.rings.fill as usize));
            // A socket that is refused gives them back.
            let config = SocketConfig { bind_timeout_ms: 10, ..config };
            let error = AfXdpPort::open_with(&umem, (&link, 0), &config, None, Some(&mut bufs)).err();
            assert!(matches!(error, Some(Error::QueueBusy { .. })), "{error:?}");
            assert_eq!(pools.audit(port.held()).missing, 0);
            // A port that is dropped without being closed leaves them to be reclaimed.
            let held = port.held();
            drop(port);
            assert_eq!(umem.held(), held);
            assert_eq!(umem.settle(&mut bufs, Duration::from_secs(30)), 0);
        })
        .unwrap();
    assert_eq!(pools.verify(), (vec![], vec![]));
}

/// Runs a test in a namespace with an interface `r0`, with buffers of cells of this size, which must all be back then.
fn with_veth(cell: usize, test: impl FnOnce(&Namespace, &Arc<Umem>, &mut Buffers) + Send) {
    let (router, host) = (Namespace::new("pr").unwrap(), Namespace::new("ph").unwrap());
    Veth::new(End::new(&router, "r0"), End::new(&host, "h0")).create().unwrap();
    let arena = Arena::new(ArenaConfig { cells: 8192, cell, ..Default::default() }).unwrap();
    let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 8192)]).unwrap();
    router.enter(|| test(&router, &Umem::new(pools.arena()), &mut Buffers::attach(&pools, 0))).unwrap();
    assert_eq!(pools.verify(), (vec![], vec![]));
}

/// Puts `n` frames into the TX ring, without a system call.
fn send(port: &mut AfXdpPort, bufs: &mut Buffers, n: usize) {
    let mut batch = Batch::new();
    assert_eq!(bufs.alloc(&mut batch, n), n);
    batch.as_mut_slice().iter_mut().for_each(|frame| assert!(bufs.arena().write(frame, &[1; 60])));
    assert_eq!(port.tx_burst(bufs, &mut batch), n);
}

#[test]
fn a_kick_that_fails_is_repeated() {
    require!(require_lab());
    with_veth(2048, |_, umem, bufs| {
        let mut port = open(umem, bufs);
        let socket = port.socket.as_mut().unwrap();
        // The kernel sends 32 frames and fails with EAGAIN, as a zero-copy driver does without sending any.
        raise_tx_budget(&socket.fd, 32);
        send(&mut port, bufs, BATCH);
        let mut left = || {
            port.kick(bufs);
            (port.unkicked, port.socket.as_mut().unwrap().pending())
        };
        assert_eq!([left(), left()], [(32, 32), (0, 0)]);
        port.close(bufs);
        assert_eq!(umem.settle(bufs, Duration::from_secs(30)), 0);
    });
}

#[test]
fn what_a_socket_has_that_another_joins_is_not_free_before_it_is_closed() {
    require!(require_lab());
    with_veth(2048, |_, umem, bufs| {
        let link = LinkInfo::query("r0").unwrap();
        let config = SocketConfig { transmit: Transmit::Socket, zero_copy: ZeroCopy::Off, ..SocketConfig::default() };
        let mut port = AfXdpPort::open(umem, &link, 0, &config).unwrap();
        port.housekeep(bufs);
        let (joined, held) = (umem.members(false, (link.index, 1)), port.held());
        port.close(bufs);
        assert_eq!((joined.len(), port.held(), umem.held()), (1, 0, held));
        assert!(umem.members(false, (link.index, 1)).is_empty());
        assert_eq!(umem.settle(bufs, Duration::from_millis(50)), held);
        drop(joined);
        assert_eq!(umem.settle(bufs, Duration::from_secs(30)), 0);
    });
}

#[test]
fn what_a_copying_socket_has_not_sent_is_not_free_before_the_kernel_has_let_go() {
    require!(require_lab());
    with_veth(2048, |router, umem, bufs| {
        let link = LinkInfo::query("r0").unwrap();
        let config = SocketConfig { transmit: Transmit::Socket, zero_copy: ZeroCopy::Off, ..SocketConfig::default() };
        let mut port = AfXdpPort::open(umem, &link, 0, &config).unwrap();
        port.housekeep(bufs);
        send(&mut port, bufs, 8);
        router.ip(&["link", "set", "r0", "down"]).unwrap();
        let held = port.held();
        port.close(bufs);
        assert_eq!((port.held(), umem.held()), (0, held));
        assert_eq!(umem.settle(bufs, Duration::from_secs(30)), 0);
    });
}

#[test]
fn a_port_that_is_not_closed_leaves_all_its_cells() {
    require!(require_lab());
    for cell in [2048, 16384] {
        with_veth(cell, |_, umem, bufs| {
            let link = LinkInfo::query("r0").unwrap();
            let config = SocketConfig { transmit: Transmit::Socket, in_order: true, ..SocketConfig::default() };
            let mut port = AfXdpPort::open(umem, &link, 0, &config).unwrap();
            port.housekeep(bufs);
            send(&mut port, bufs, 8);
            if let Some(long) = &mut port.long {
                let piece = bufs.alloc_one().unwrap();
                assert!(long.join(bufs, piece, true).is_none());
            }
            assert_eq!((port.order.is_some(), port.long.is_some()), (cell == 2048, cell == 16384));
            let held = port.held();
            drop(port);
            assert_eq!(umem.held(), held);
            assert_eq!(umem.settle(bufs, Duration::from_secs(30)), 0);
        });
    }
}
