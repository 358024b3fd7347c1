//! Interfaces as ports of the tester.

use crate::error::Usage;
use anyhow::Context as _;
use bywash_frame::{Arena, ArenaConfig, Buffers, PoolConfig, PoolSet};
use bywash_port::Port as _;
use bywash_port::af_xdp::{self, AfXdpPort, LinkInfo, Program, SocketConfig, Umem, XdpAttach, XdpConfig, XdpDatapath};
use bywash_tester::Bench;
use bywash_wire::ethernet::MacAddr;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// Buffers per port: twice the capacity of its rings, plus bursts.
const FRAMES: usize = 10240;
/// Cell sizes in bytes; most frames fit the smaller one.
const CELLS: [usize; 2] = [2048, 4096];
/// Bytes of a cell that are not available for the frame.
const RESERVED: usize = 256;
/// Time that a veth takes to accept frames after a program is attached to its peer.
const SETTLE: Duration = Duration::from_millis(50);
/// Kind of the interfaces that pass each frame to their other end at once, the device's.
const VETH: &str = "veth";
/// Timeout for neighbour resolution.
const ANSWER: Duration = Duration::from_secs(3);

/// Interface to open, and its use.
pub struct Wanted {
    pub name: String,
    /// True to receive frames.
    pub receives: bool,
    /// True to receive all frames: those to other stations, with VLAN tags, and of any protocol.
    pub raw: bool,
}

/// Ports of the tester on interfaces. Dropping them returns the interfaces to the kernel.
pub struct Ports {
    // Dropped first: returns the frames and closes the sockets while the programs still pass packets on.
    pub bench: Bench,
    pub links: Vec<LinkInfo>,
    /// For each port, true if it uses zero-copy.
    pub zero_copy: Vec<bool>,
    pub held: Held,
}

/// XDP programs that are attached to the interfaces while the tester uses them.
#[derive(Default)]
pub struct Held(Vec<Program>);

/// Opens interfaces, in the order of their numbers on the bench. No interface may be listed twice.
pub fn open(wanted: &[Wanted], longest: usize) -> anyhow::Result<Ports> {
    let cell = if longest + RESERVED <= CELLS[0] { CELLS[0] } else { CELLS[1] };
    let cells = (wanted.len() * FRAMES).next_multiple_of(1024);
    let arena = Arena::new(ArenaConfig { cells, cell, ..ArenaConfig::default() })?;
    let pools = PoolSet::new(arena.clone(), &[PoolConfig::stack("tester", cells)])?;
    let umem = Umem::new(&arena);
    let datapath = XdpDatapath::load()?;
    let mut ports = Ports {
        bench: Bench::new(Buffers::attach(&pools, 0)),
        links: vec![],
        zero_copy: vec![],
        held: Held::default(),
    };
    let config = SocketConfig::default();
    for (id, want) in wanted.iter().enumerate() {
        let link = LinkInfo::query(&want.name).map_err(|why| match why {
            af_xdp::Error::NoInterface(_) => Usage(why.to_string()).into(),
            _ => anyhow::Error::new(why),
        })?;
        let port = AfXdpPort::open(&umem, &link, 0, &config).with_context(|| format!("port `{}`", want.name))?;
        if want.receives {
            let mut program = Program::attach_to(&datapath, id as u16, &link, XdpAttach::Auto, None)?;
            if !program.note().is_empty() {
                tracing::warn!("{}: {} XDP: {}", want.name, program.mode(), program.note());
            }
            if link.queues > 1 {
                tracing::warn!(
                    "{}: frames are only received from queue 0 of {}: `ethtool -L {} combined 1` directs all there",
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
        let place = ports.bench.add(&want.name, Box::new(port));
        if link.kind == VETH {
            ports.bench.hands_over(place);
        }
        ports.links.push(link);
    }
    ports.bench.settle(SETTLE);
    Ok(ports)
}

/// Returns the link rate in bit/s as reported by the driver; `None` if unknown.
pub fn speed(interface: &str) -> Option<f64> {
    let text = std::fs::read_to_string(format!("/sys/class/net/{interface}/speed")).ok()?;
    text.trim().parse::<f64>().ok().filter(|mbit| *mbit > 0.0).map(|mbit| mbit * 1e6)
}

/// Returns the MAC address of a neighbour, which the kernel resolves. Errors if it does not answer within [`ANSWER`].
pub fn neighbour(address: IpAddr) -> anyhow::Result<MacAddr> {
    let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0u16; 8].into() };
    let socket = UdpSocket::bind((any, 0))?;
    let until = Instant::now() + ANSWER;
    while Instant::now() < until {
        // An empty datagram to the discard port makes the kernel resolve the neighbour.
        let _ = socket.send_to(&[], SocketAddr::new(address, 9));
        std::thread::sleep(Duration::from_millis(50));
        if let Some(mac) = known(address)? {
            return Ok(mac);
        }
    }
    anyhow::bail!(
        "{address} does not answer: is it a neighbour (`ip route get {address}`)? Else give the address by --dst-mac"
    )
}

/// Returns the MAC address in the kernel's neighbour table (`ip neigh`, which covers both families).
fn known(address: IpAddr) -> anyhow::Result<Option<MacAddr>> {
    let shown = bywash_lab::run_host(&["ip", "neigh", "show", "to", &address.to_string()])?;
    let mut words = shown.stdout.split_whitespace().skip_while(|word| *word != "lladdr").skip(1);
    Ok(words.next().and_then(|mac| mac.parse().ok()))
}
