//! A router namespace with ports r0 and r1 and a host namespace with their peers h0 and h1.

use bywash_fib::{Table4, Table6};
use bywash_frame::{Arena, ArenaConfig, Batch, Buffers, PoolConfig, PoolSet};
use bywash_lab::{End, Namespace, Veth, patience};
use bywash_port::Port;
use bywash_port::af_xdp::{
    AfXdpPort, Family, LinkInfo, Program, Segments, SocketConfig, Transmit, Umem, XdpAttach, XdpConfig, XdpDatapath,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const R0: [u8; 6] = [2, 0, 0, 0, 1, 1];
pub const R1: [u8; 6] = [2, 0, 0, 0, 2, 1];
pub const H0: [u8; 6] = [2, 0, 0, 0, 1, 2];

/// Two veth pairs between two namespaces.
pub struct Net {
    pub router: Namespace,
    pub host: Namespace,
}

impl Net {
    pub fn new() -> Self {
        let (router, host) = (Namespace::new("xr").unwrap(), Namespace::new("xh").unwrap());
        for (n, net) in [(0, 1), (1, 2)] {
            let r = End::new(&router, format!("r{n}"))
                .mac(format!("02:00:00:00:0{net}:01"))
                .address(format!("10.0.{net}.1/24"))
                .address(format!("fd00:{net}::1/64"));
            let h = End::new(&host, format!("h{n}")).mac(format!("02:00:00:00:0{net}:02"));
            Veth::new(r, h).create().unwrap();
        }
        Self { router, host }
    }

    /// Runs a test in the router's namespace, with the UMEM and a worker's buffers of `pools`. Afterwards, all buffers
    /// must be back in their pool.
    pub fn with_buffers(&self, pools: &Arc<PoolSet>, test: impl FnOnce(Arc<Umem>, Buffers) + Send) {
        let run = || {
            let umem = Umem::new(pools.arena());
            test(umem.clone(), Buffers::attach(pools, 0));
            umem.settle(&mut Buffers::attach(pools, 0), patience(Duration::from_secs(60)));
        };
        self.router.enter(run).unwrap();
        assert_eq!(pools.verify(), (vec![], vec![]));
    }
}

/// A pool over a small arena.
pub fn pools(frames: usize) -> Arc<PoolSet> {
    let arena = Arena::new(ArenaConfig { cells: frames, ..Default::default() }).unwrap();
    PoolSet::new(arena, &[PoolConfig::stack("main", frames)]).unwrap()
}

/// Returns the settings of a port that sends through its socket.
pub fn socket() -> SocketConfig {
    SocketConfig { transmit: Transmit::Socket, ..SocketConfig::default() }
}

/// One port on one interface: its program and the socket of queue 0. Must be made and used inside the router's
/// namespace.
pub struct Taken {
    pub datapath: XdpDatapath,
    pub program: Program,
    pub port: AfXdpPort,
}

impl Taken {
    pub fn new(umem: &Arc<Umem>, interface: &str, raw: bool, config: &SocketConfig) -> Self {
        let link = LinkInfo::query(interface).unwrap();
        let datapath = XdpDatapath::load().unwrap();
        let mut program = Program::attach_to(&datapath, 0, &link, XdpAttach::Auto, None).unwrap();
        let port = AfXdpPort::open(umem, &link, 0, config).unwrap();
        program.set_socket(0, port.fd().unwrap()).unwrap();
        program
            .set_config(XdpConfig {
                enabled: true,
                mac: link.mac,
                max_frame: port.max_frame() as u32,
                raw,
                ..XdpConfig::default()
            })
            .unwrap();
        Self { datapath, program, port }
    }
}

/// Memory of a table, as the program reads it.
pub struct Memory(pub Segments);

impl bywash_fib::Shared for Memory {
    fn segment(&mut self, n: usize) -> std::io::Result<std::os::fd::OwnedFd> {
        self.0.make(n)
    }

    fn grace(&mut self) {
        self.0.grace();
    }
}

/// Forwarding tables of a datapath.
pub fn tables(datapath: &XdpDatapath) -> (Table4, Table6) {
    let domain = bywash_sync::Qsbr::new();
    let memory = |family| Box::new(Memory(datapath.segments(family).unwrap()));
    (Table4::shared(&domain, memory(Family::V4)).unwrap(), Table6::shared(&domain, memory(Family::V6)).unwrap())
}

/// Runs two ports as a worker does, moving every frame received on one to the other, until `done` or for a minute.
pub fn forward(
    a: &mut dyn Port,
    b: &mut dyn Port,
    bufs: &mut Buffers,
    mut done: impl FnMut(&mut dyn Port, &mut dyn Port) -> bool,
) -> bool {
    let end = Instant::now() + patience(Duration::from_secs(60));
    let (mut ab, mut ba) = (Batch::new(), Batch::new());
    while Instant::now() < end {
        a.rx_burst(bufs, &mut ab);
        b.tx_burst(bufs, &mut ab);
        b.rx_burst(bufs, &mut ba);
        a.tx_burst(bufs, &mut ba);
        bufs.free(&mut ab);
        bufs.free(&mut ba);
        a.housekeep(bufs);
        b.housekeep(bufs);
        if done(a, b) {
            // A turn without new frames sends those gathered.
            a.housekeep(bufs);
            b.housekeep(bufs);
            return true;
        }
        std::thread::yield_now();
    }
    false
}

/// Packet socket on one interface: receives the frames that a neighbouring station would.
pub struct Wire {
    fd: std::os::fd::OwnedFd,
}

impl Wire {
    /// Opens a socket in the calling thread's network namespace.
    pub fn open(interface: &str) -> Self {
        use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, bind, socket_with};
        const ETH_P_ALL: u16 = 3;
        let all = Protocol::from_raw((u32::from(ETH_P_ALL.to_be())).try_into().unwrap());
        let fd = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, Some(all)).unwrap();
        let index = rustix::net::netdevice::name_to_index(&fd, interface).unwrap();
        bind(&fd, &LinkLayer(index, ETH_P_ALL)).unwrap();
        // A frame takes many times its length of the buffer: on Linux 6.12 the last of 5,000 were lost with 64 MiB.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&fd, 256 << 20).unwrap();
        let timeout = Some(patience(Duration::from_secs(30)));
        rustix::net::sockopt::set_socket_timeout(&fd, rustix::net::sockopt::Timeout::Recv, timeout).unwrap();
        Self { fd }
    }

    pub fn send(&self, frame: &[u8]) {
        rustix::net::send(&self.fd, frame, rustix::net::SendFlags::empty()).unwrap();
    }

    /// Returns the next frame received with this EtherType; `None` if none arrives within half a minute.
    pub fn recv(&self, ethertype: u16) -> Option<Vec<u8>> {
        let end = Instant::now() + patience(Duration::from_secs(30));
        let mut buffer = vec![0; 65536];
        while Instant::now() < end {
            let n = rustix::net::recv(&self.fd, &mut buffer[..], rustix::net::RecvFlags::empty()).ok()?.0;
            if n >= 14 && buffer[12..14] == ethertype.to_be_bytes() {
                buffer.truncate(n);
                return Some(buffer);
            }
        }
        None
    }
}

/// `struct sockaddr_ll`: interface index and protocol.
struct LinkLayer(u32, u16);

// SAFETY: hands out a whole sockaddr_ll that outlives the call.
unsafe impl rustix::net::addr::SocketAddrArg for LinkLayer {
    unsafe fn with_sockaddr<R>(
        &self,
        f: impl FnOnce(*const rustix::net::addr::SocketAddrOpaque, rustix::net::addr::SocketAddrLen) -> R,
    ) -> R {
        // SAFETY: all zeros is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = self.1.to_be();
        address.sll_ifindex = self.0 as i32;
        f((&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32)
    }
}

/// Returns a frame to `dst` with this EtherType and payload.
pub fn frame(dst: [u8; 6], ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut f = [dst, H0].concat();
    f.extend(ethertype.to_be_bytes());
    f.extend(payload);
    f.resize(f.len().max(60), 0);
    f
}

/// Returns an IPv4 packet without options. The checksum is left out: the program does not check it.
pub fn ipv4(src: [u8; 4], dst: [u8; 4], tag: u32) -> Vec<u8> {
    let mut p = vec![0x45, 0, 0, 46, 0, 0, 0, 0, 64, 253, 0, 0];
    p.extend(src);
    p.extend(dst);
    p.extend(tag.to_be_bytes());
    p.resize(46, 0xee);
    p
}

/// Returns an IPv6 packet.
pub fn ipv6(src: &str, dst: &str, next: u8) -> Vec<u8> {
    let mut p = vec![0x60, 0, 0, 0, 0, 8, next, 64];
    for a in [src, dst] {
        p.extend(a.parse::<std::net::Ipv6Addr>().unwrap().octets());
    }
    p.extend([0; 8]);
    p
}
