//! Interfaces as the tester's ports.

use anyhow::Context as _;
use bywash_frame::{Arena, ArenaConfig, Buffers, PoolConfig, PoolSet};
use bywash_port::Port as _;
use bywash_port::af_xdp::{AfXdpPort, Driver, LinkInfo, Program, SocketConfig, Transmit, Umem, XdpAttach, XdpConfig};
use bywash_tester::Bench;
use bywash_wire::ethernet::MacAddr;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Buffers a port: what its rings hold twice over, and bursts.
const FRAMES: usize = 10240;
/// Cells: most frames fit the small one.
const CELLS: [usize; 2] = [2048, 4096];
/// Bytes of a cell that are not the frame's.
const RESERVED: usize = 256;
/// What a veth needs to say that it takes frames, once a program is on its peer.
const SETTLE: Duration = Duration::from_millis(50);
/// How long a neighbour may take to answer.
const ANSWER: Duration = Duration::from_secs(3);

/// An interface the tester uses, and for what.
pub struct Wanted {
    pub name: String,
    /// Frames are to be received.
    pub receives: bool,
    /// Whatever comes is to be received: other stations' frames, VLAN tags, anything not IP.
    pub raw: bool,
}

/// The tester's ports on interfaces. Dropped, they are the kernel's again.
pub struct Ports {
    // First: it gives the frames back and closes the sockets while the programs pass on what comes.
    pub bench: Bench,
    pub links: Vec<LinkInfo>,
    /// Whether their frames are not copied.
    pub zero_copy: Vec<bool>,
    pub held: Held,
}

/// What keeps interfaces the tester's.
#[derive(Default)]
pub struct Held(Vec<Program>);

/// Opens interfaces, in the order of their numbers on the bench. Each may be there once.
pub fn open(wanted: &[Wanted], longest: usize) -> anyhow::Result<Ports> {
    let cell = if longest + RESERVED <= CELLS[0] { CELLS[0] } else { CELLS[1] };
    let cells = (wanted.len() * FRAMES).next_multiple_of(1024);
    let arena = Arena::new(ArenaConfig { cells, cell, ..ArenaConfig::default() })?;
    let pools = PoolSet::new(arena.clone(), &[PoolConfig::stack("tester", cells)])?;
    let umem = Umem::new(&arena);
    let driver = Driver::load()?;
    let mut ports = Ports {
        bench: Bench::new(Buffers::attach(&pools, 0)),
        links: vec![],
        zero_copy: vec![],
        held: Held::default(),
    };
    let config = SocketConfig { transmit: Transmit::Auto, ..SocketConfig::default() };
    for (id, want) in wanted.iter().enumerate() {
        let link = LinkInfo::query(&want.name)?;
        let port = AfXdpPort::open(&umem, &link, 0, &config).with_context(|| format!("port `{}`", want.name))?;
        if want.receives {
            let mut program = Program::attach_to(&driver, id as u16, &link, XdpAttach::Auto)?;
            if !program.note().is_empty() {
                tracing::warn!("{}: {} XDP: {}", want.name, program.mode(), program.note());
            }
            if link.queues > 1 {
                tracing::warn!(
                    "{}: frames are received from queue 0 of {}: `ethtool -L {} combined 1` brings all there",
                    want.name,
                    link.queues,
                    want.name
                );
            }
            program.set_socket(0, port.fd().context("a socket without a descriptor")?)?;
            let max_frame = port.max_frame() as u32;
            let (mac, raw) = (link.mac, want.raw);
            program.set_config(XdpConfig { enabled: true, mac, max_frame, raw, ..XdpConfig::default() })?;
            ports.held.0.push(program);
        }
        ports.zero_copy.push(port.details().contains(&("mode", "zero-copy".into())));
        ports.bench.add(&want.name, Box::new(port));
        ports.links.push(link);
    }
    ports.bench.settle(SETTLE);
    Ok(ports)
}

/// The link's rate in bits a second, as its driver says.
pub fn speed(interface: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    text.trim().parse::<f64>().ok().filter(|mbit| *mbit > 0.0).map(|mbit| mbit * 1e6)
}

/// The MAC address of a neighbour, which the kernel asks for.
pub fn neighbour(address: IpAddr) -> anyhow::Result<MacAddr> {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0))?;
    let until = Instant::now() + ANSWER;
    while Instant::now() < until {
        // To the discard port: what counts is that the kernel must ask for the neighbour's address.
        let _ = socket.send_to(&[], SocketAddr::new(address, 9));
        std::thread::sleep(Duration::from_millis(50));
        if let Some(mac) = known(address)? {
            return Ok(mac);
        }
    }
    anyhow::bail!(
        "{address} does not answer: is it a neighbour (`ip route get {address}`)? --dst-mac says where to send to"
    )
}

/// What the kernel knows of it (`ip neigh`, which has both families).
fn known(address: IpAddr) -> anyhow::Result<Option<MacAddr>> {
    let shown = bywash_lab::run_host(&["ip", "neigh", "show", "to", &address.to_string()])?;
    let mut words = shown.stdout.split_whitespace().skip_while(|word| *word != "lladdr").skip(1);
    Ok(words.next().and_then(|mac| mac.parse().ok()))
}
