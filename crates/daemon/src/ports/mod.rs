//! Opens the configured ports: one end per queue, and the XDP program in front of them.

mod af_xdp;
mod dpdk;
mod opened;
mod xdp;

pub use dpdk::Dpdk;
pub use opened::Opened;
pub use xdp::Xdp;

use crate::takeover::{self, Predecessor};
use anyhow::{Context as _, bail};
use bywash_config::{PcapConfig, PortConfig, PortKind, Queues, user_id};
use bywash_frame::Buffers;
use bywash_port::af_xdp::{Attachment, Below, Injector, Journal, LinkInfo, Umem, may_inject};
use bywash_port::memif::{self, MemifPort};
use bywash_port::pcap::{Pace, PcapPort, PcapRecorder, PcapSource};
use bywash_port::{NullPort, Port, TapConfig, TapPort, TwinPort, npe};
use bywash_router::tables::Reception;
use bywash_router::xdp::XdpTableSink;
use opened::{Device, End};
use std::sync::Arc;

/// Number of blocks of each channel of a dispatching device.
const NPE_BLOCKS: usize = 4;

/// Returns the queues that a port has to serve. The port need not be open.
pub fn queues(port: &PortConfig) -> anyhow::Result<Vec<u32>> {
    let Some(af_xdp) = &port.af_xdp else {
        return Ok((0..port.own_queues()).collect());
    };
    let link = LinkInfo::query(interface(port)?)?;
    match &af_xdp.queues {
        Queues::All => Ok((0..link.queues).collect()),
        Queues::List(list) => Ok(list.iter().map(|q| *q as u32).collect()),
    }
}

/// Returns the port's interface; errors if it has none.
fn interface(port: &PortConfig) -> anyhow::Result<&str> {
    port.interface.as_deref().with_context(|| format!("port `{}` has no interface", port.name))
}

/// Buffers of the worker that will serve a queue, by the queue.
pub type OfQueue<'a> = &'a dyn Fn(u32) -> Option<Buffers>;

/// Resources with which ports are opened.
pub struct Opener {
    pub umem: Arc<Umem>,
    /// The program for AF_XDP ports; `None` if there are no such ports.
    pub driver: Option<XdpTableSink>,
    /// DPDK, for ports of that kind.
    pub dpdk: Dpdk,
    /// Set if every frame goes to user space and none to the kernel: in every mode but a router's.
    pub raw: bool,
}

impl Opener {
    /// Sets which worker serves a queue of a port in the switch's program, which forwards by that worker's flows.
    pub fn serve(&self, port: usize, queue: u32, worker: usize) {
        if let Some(flows) = self.driver.as_ref().and_then(|driver| driver.program.flows()) {
            flows.serve(port as u16, queue, worker);
        }
    }

    fn attach(
        &self,
        (id, port): (usize, &PortConfig),
        journal: &mut Journal,
        from: Option<Attachment>,
    ) -> anyhow::Result<Opened> {
        let driver = self.driver.as_ref().context("no XDP program")?;
        af_xdp::attach((id, port), &self.umem, (driver, self.raw), journal, from)
    }

    /// Opens what can be opened of a port while another process still has it. Errors if the port cannot be taken over.
    pub fn announce(
        &self,
        (id, port): (usize, &PortConfig),
        journal: &mut Journal,
        from: &mut Predecessor,
    ) -> anyhow::Result<Opened> {
        anyhow::ensure!(takeover::can_follow(port), "{}", takeover::why_not(port));
        match port.kind {
            PortKind::AfXdp => {
                let mut opened = self.attach((id, port), journal, from.take(interface(port)?))?;
                let transmit = port.af_xdp.clone().unwrap_or_default().transmit;
                if may_inject(transmit, interface(port)?) {
                    // Opening the sockets retries an injector that cannot be loaded here, and reports the failure.
                    opened.injectors = queues(port)?.iter().filter_map(|_| Injector::new().ok()).collect();
                }
                Ok(opened)
            }
            _ => Ok(Opened::none(port)),
        }
    }

    /// Opens what [`Opener::announce`] left out, once the other process has let go.
    pub fn open_announced(
        &self,
        id: usize,
        opened: &mut Opened,
        journal: &mut Journal,
        of_queue: OfQueue<'_>,
    ) -> anyhow::Result<()> {
        match opened.config.kind {
            PortKind::AfXdp => af_xdp::open_sockets(&self.umem, opened, journal, of_queue)?,
            _ => *opened = self.open((id, &opened.config.clone()), journal, of_queue)?,
        }
        Ok(())
    }

    /// Opens the sockets of an AF_XDP port whose program stays. Its earlier sockets are closed.
    pub fn reopen(
        &self,
        port: &PortConfig,
        xdp: Xdp,
        journal: &mut Journal,
        of_queue: OfQueue<'_>,
    ) -> anyhow::Result<Opened> {
        let mut opened = Opened { index: xdp.index(), xdp: Some(xdp), ..Opened::none(port) };
        af_xdp::open_sockets(&self.umem, &mut opened, journal, of_queue)?;
        Ok(opened)
    }

    /// Opens one port.
    pub fn open(
        &self,
        (id, port): (usize, &PortConfig),
        journal: &mut Journal,
        of_queue: OfQueue<'_>,
    ) -> anyhow::Result<Opened> {
        let single = |port: Box<dyn Port>| vec![End { queue: 0, counters: port.counters(), port }];
        let mut opened = Opened::none(port);
        match port.kind {
            PortKind::AfXdp => {
                opened = self.attach((id, port), journal, None)?;
                af_xdp::open_sockets(&self.umem, &mut opened, journal, of_queue)?;
            }
            PortKind::Dpdk => self.open_dpdk(port, &mut opened)?,
            PortKind::Null => opened.ends = single(Box::new(NullPort::new())),
            PortKind::Memif => {
                let Some(memif) = &port.memif else { bail!("port `{}` has no socket", port.name) };
                let config = memif::Config {
                    socket: memif.socket.clone(),
                    role: memif.role,
                    id: memif.id,
                    secret: memif.secret.expose().clone(),
                    ring: memif.ring,
                    sealed: memif.sealed,
                    name: port.name.clone(),
                    peer: memif.peer.as_deref().and_then(user_id).map(|user| user.as_raw()),
                };
                opened.ends = single(Box::new(MemifPort::open(&config, self.umem.arena())?));
            }
            PortKind::Tap => {
                let tap = create_tap(port)?;
                opened.index = LinkInfo::query(tap.name())?.index;
                opened.ends = single(Box::new(tap));
            }
            PortKind::Pcap => {
                let Some(pcap) = &port.pcap else { bail!("port `{}` has no file", port.name) };
                opened.ends = single(Box::new(open_pcap(pcap)?));
            }
            PortKind::Npe => self.open_npe(port, &mut opened)?,
        }
        if !matches!(port.kind, PortKind::AfXdp | PortKind::Dpdk)
            && !port.is_tap()
            && let Some(interface) = &port.interface
        {
            add_twin(TapConfig { name: interface.into(), up: true, ..TapConfig::default() }, &mut opened)?;
        }
        Ok(opened)
    }

    /// Opens a dispatching device, and each of its channels as a queue.
    fn open_npe(&self, port: &PortConfig, opened: &mut Opened) -> anyhow::Result<()> {
        let npe = port.npe.as_ref().with_context(|| format!("port `{}` has no channels", port.name))?;
        let below: Box<dyn Port> = match &port.pcap {
            Some(pcap) => Box::new(open_pcap(pcap)?),
            None => {
                let tap = create_tap(port)?;
                opened.index = LinkInfo::query(tap.name())?.index;
                Box::new(tap)
            }
        };
        let config = npe::Config { channels: npe.channels, engine: npe.engine, ..npe::Config::default() };
        let memory = npe::Memory { cell: self.umem.arena().cell_size(), block: npe.block, blocks: NPE_BLOCKS };
        let ends = npe::open(config, vec![below], memory).with_context(|| format!("port `{}`", port.name))?;
        let end =
            |(queue, port): (u32, npe::ChannelPort)| End { queue, counters: port.counters(), port: Box::new(port) };
        opened.ends = (0..).zip(ends).map(end).collect();
        Ok(())
    }

    /// Opens a DPDK device. Its `interface` is the one that the device uses or creates, or else the name of its twin.
    fn open_dpdk(&self, port: &PortConfig, opened: &mut Opened) -> anyhow::Result<()> {
        let Device { ends, mac } = self.dpdk.open(port)?;
        opened.ends = ends;
        let below = port.dpdk.as_ref().and_then(|dpdk| below(&dpdk.device));
        // A virtual device on an interface hands over frames as the interface received them, with checksums as they
        // are.
        let link = below.and_then(|name| LinkInfo::query(name).ok());
        opened.partial_checksums = link.is_some_and(|link| Below::of(&link).leaves_checksums(false));
        let Some(interface) = &port.interface else { return Ok(()) };
        opened.reception = Reception::Promiscuous;
        let there = LinkInfo::query(interface).ok();
        match there {
            Some(link) if self.raw || below == Some(interface) || link.kind != "tun" => {
                opened.index = link.index;
                Ok(())
            }
            None if self.raw => bail!("interface `{interface}` does not exist; only a router gives a device a twin"),
            // An interface that exists already keeps its own address.
            there => {
                let mtu = port.dpdk.as_ref().and_then(|dpdk| dpdk.mtu.set().map(|mtu| u32::from(*mtu)));
                let mac = mac.filter(|_| there.is_none());
                add_twin(TapConfig { name: interface.into(), mac, mtu, up: true }, opened)
            }
        }
    }
}

/// Creates the port's TAP interface.
fn create_tap(port: &PortConfig) -> anyhow::Result<TapPort> {
    // The interface's virtio header says which checksums are partial, and the port completes them.
    Ok(TapPort::create(&TapConfig { name: interface(port)?.into(), up: true, ..TapConfig::default() })?)
}

/// Opens the capture files of a port.
fn open_pcap(pcap: &PcapConfig) -> anyhow::Result<PcapPort> {
    let source = match pcap.file.as_os_str().is_empty() {
        // Without a file to play, the port only records.
        true => None,
        false => Some(PcapSource::load(&pcap.file)?),
    };
    let source = source.map(|source| if pcap.repeat { source.repeated() } else { source });
    let source = source.map(|source| match pcap.rate.set() {
        Some(rate) => source.paced(Pace::PacketsPerSecond(*rate)),
        None => source,
    });
    let record = |path| PcapRecorder::create_linked(path, pcap.link);
    let sink = pcap.record.as_ref().map(record).transpose()?;
    Ok(PcapPort::new(source, sink))
}

/// Returns the interface that a virtual device uses or creates: the `iface=` argument.
fn below(device: &str) -> Option<&str> {
    device.split(',').skip(1).find_map(|argument| argument.split_once("iface=")).map(|(_, name)| name)
}

/// Creates the TAP interface that represents a port without an interface to the kernel, and wraps the port's ends with
/// it.
fn add_twin(config: TapConfig, opened: &mut Opened) -> anyhow::Result<()> {
    let tap = TapPort::create(&config)?;
    opened.index = LinkInfo::query(tap.name())?.index;
    let (rest, queues): (Vec<_>, Vec<_>) =
        opened.ends.drain(..).map(|End { queue, port, counters }| ((queue, counters), port)).unzip();
    let mut twins = TwinPort::of_queues(queues, tap).context("its twin's descriptors")?;
    let first = twins.first_mut().context("it has no queue")?;
    opened.from_kernel = Some(Box::new(first.from_kernel().context("its twin's second descriptor")?));
    let ends = rest.into_iter().zip(twins);
    opened.ends = ends.map(|((queue, counters), twin)| End { queue, port: Box::new(twin), counters }).collect();
    Ok(())
}

/// Returns whether the kernel forwards what an interface receives, in both families. A family that the kernel lacks
/// does not count.
pub fn forwards(interface: &str) -> bool {
    let off = |path: &str| std::fs::read_to_string(path).is_ok_and(|value| value.trim() == "0");
    !off(&format!("/proc/sys/net/ipv4/conf/{interface}/forwarding")) && !off("/proc/sys/net/ipv6/conf/all/forwarding")
}

/// Assigns each queue of the port with number `at` to a worker. Errors if the configuration names a worker that does
/// not exist.
pub fn places(port: &PortConfig, at: usize, workers: usize) -> anyhow::Result<Vec<(u32, usize)>> {
    let queues = queues(port)?;
    let count = queues.len();
    let place = |(order, queue): (usize, u32)| {
        let worker = port.worker_of((order, count), at, workers);
        anyhow::ensure!(
            worker < workers,
            "it names worker {worker}, but bywash has {}: restart bywash to have more",
            bywash_config::count(workers, "worker")
        );
        Ok((queue, worker))
    };
    queues.into_iter().enumerate().map(place).collect()
}
