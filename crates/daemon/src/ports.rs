//! Opens the configured ports: one end per queue, and the XDP program in front of them.

use crate::below::{Below, TAKES_TAGS_OFF};
use crate::driver::{Driver, Target, Targets};
use crate::relations::Relations;
use crate::succession::{self, Predecessor};
use anyhow::{Context as _, bail};
use bywash_config::{self as config, Checksum, Level, MemifRole, PortConfig, PortKind, Queues, XdpMode};
use bywash_engine::PortId;
use bywash_port::af_xdp::{
    AfXdpPort, Attachment, Features, Injector, Journal, LinkInfo, Polling, Program, Promiscuous, RingSizes,
    SocketConfig, Umem, XdpAttach, XdpConfig, XdpGate, ZeroCopy, max_frame, may_inject, takes_frames,
};
use bywash_port::memif::{self, MemifPort};
use bywash_port::pcap::{LinkType, Pace, PcapPort, PcapRecorder, PcapSource};
use bywash_port::{NullPort, Port, PortCounters, TapConfig, TapPort, TwinPort};
use bywash_router::control::PortSpec;
use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Configured port that has been opened.
pub struct Opened {
    pub config: PortConfig,
    /// Kernel index of its interface; 0 for a port without one.
    pub index: u32,
    /// Set if received frames may have unfinished transport checksums.
    pub partial_checksums: bool,
    /// Set if the port also receives frames to other machines' MAC addresses.
    pub promiscuous: bool,
    pub ends: Vec<End>,
    /// End on which frames arrive that the kernel sends through a twin interface.
    pub from_kernel: Option<Box<dyn Port>>,
    pub xdp: Option<Xdp>,
    /// Injectors for its ends, loaded before their sockets are opened; only when a port is announced.
    injectors: Vec<Injector>,
}

impl Opened {
    /// Returns a port of which nothing is open yet.
    fn none(port: &PortConfig) -> Self {
        Self {
            config: port.clone(),
            index: 0,
            partial_checksums: false,
            promiscuous: false,
            ends: vec![],
            from_kernel: None,
            xdp: None,
            injectors: vec![],
        }
    }

    /// Returns the port as the control half follows it. `id` is its number.
    pub fn spec(&self, id: usize) -> PortSpec {
        PortSpec {
            id: PortId(id as u16),
            index: self.index,
            name: self.config.interface.clone().unwrap_or_else(|| self.config.name.clone()),
            partial_checksums: self.partial_checksums,
            promiscuous: self.promiscuous,
        }
    }
}

/// Opened DPDK device.
pub struct Device {
    pub ends: Vec<End>,
    /// MAC address of the device, if it has one.
    pub mac: Option<[u8; 6]>,
}

/// End of a port: one queue of it.
pub struct End {
    pub queue: u32,
    pub port: Box<dyn Port>,
    pub counters: Arc<PortCounters>,
}

/// An AF_XDP port's program, and the sockets it will hand frames to once workers serve them.
pub struct Xdp {
    pub program: Program,
    pub interface: String,
    /// Longest frame that a buffer holds, in bytes.
    pub room: usize,
    mtu: u32,
    /// Set if VLAN tags are stripped from received frames, so that the program does not see them.
    hides_tags: bool,
    /// Reason for which every frame is left to the kernel, from the interface's relations.
    left: Option<String>,
    /// Reason for which every frame is left to the kernel while a worker hangs.
    halted: Option<String>,
    /// Set once [`Xdp::begin`] has let the program hand over frames.
    begun: bool,
    /// Reason for which the kernel rejected the forwarding program, if it did.
    refused: Option<Arc<str>>,
    /// Set if the kernel forwards both IPv4 and IPv6.
    kernel_forwards: bool,
    /// Level asked for: as configured, or by a later request.
    level: Level,
    /// Redirect targets of the program, shared by all ports.
    targets: Targets,
    id: usize,
    index: u32,
    /// CPUs that send the frames the driver forwards from this port, or the reason why the configured ones cannot.
    spread: Result<Vec<usize>, String>,
    sockets: Vec<(u32, OwnedFd)>,
    /// Longest frames that the sockets send ([`AfXdpPort::frame_limit`]), changed with the MTU.
    limits: Vec<Arc<AtomicUsize>>,
    /// Set if a socket is in zero-copy mode. Received frames then lie in the UMEM already. The kernel copies such a
    /// frame when it is redirected, into one without the headroom that virtio-net needs, which drops it.
    zero_copy: bool,
    /// Keeps the interface in promiscuous mode.
    _promiscuous: Option<Promiscuous>,
}

/// Bytes by which a frame may exceed its device's MTU: Ethernet header and one VLAN tag.
const FRAMING: u32 = 18;

impl Xdp {
    /// Starts handing over frames, unless the interface's relations leave them to the kernel. `level` overrides the
    /// configured level.
    pub fn begin(&mut self, relations: &Relations, level: Option<Level>) -> anyhow::Result<()> {
        self.level = level.unwrap_or(self.level);
        self.relate(relations)?;
        self.begun = true;
        self.enable()
    }

    /// Applies the interface's current relations. A switch takes every frame of a port, unless the interface is a
    /// member of another.
    pub fn relate(&mut self, relations: &Relations) -> anyhow::Result<()> {
        let left = match self.program.config().raw {
            true => relations.member(self.index),
            false => relations.left(self.index, self.hides_tags),
        };
        match &left {
            _ if left == self.left => return Ok(()),
            Some(why) => tracing::warn!("{}: {why}: the kernel forwards for it", self.interface),
            None => tracing::info!("{}: no longer left to the kernel: taken over again", self.interface),
        }
        self.left = left;
        if self.begun { self.enable() } else { Ok(()) }
    }

    /// Leaves every frame to the kernel for the reason `why`, or no longer if `None`.
    pub fn halt(&mut self, why: Option<&str>) -> anyhow::Result<()> {
        if self.halted.as_deref() == why {
            return Ok(());
        }
        self.halted = why.map(str::to_owned);
        if self.begun { self.enable() } else { Ok(()) }
    }

    /// Returns the reason for which every frame is left to the kernel, if it is.
    fn left(&self) -> Option<&str> {
        self.halted.as_deref().or(self.left.as_deref())
    }

    /// Registers the sockets and enables the program, unless level or relations leave every frame to the kernel.
    fn enable(&mut self) -> anyhow::Result<()> {
        for (queue, socket) in self.sockets.drain(..) {
            self.program.set_socket(queue, std::os::fd::AsFd::as_fd(&socket))?;
        }
        let config = XdpConfig {
            enabled: self.left().is_none() && self.level != Level::Kernel,
            driver: matches!(self.level(), Level::Driver),
            ..self.program.config()
        };
        self.program.set_config(config)?;
        Ok(self.program.take_over()?)
    }

    /// Prepares for another process to take over: until then, frames for user space are left to the kernel, and the
    /// program keeps forwarding those it forwards itself.
    pub fn hand_over(&mut self) {
        if self.level() != Level::Driver {
            self.disable();
        }
        self.program.hand_over();
    }

    /// Returns the level at which received frames are forwarded now.
    pub fn level(&self) -> Level {
        self.placed().0
    }

    /// Returns the reason for the current [`Xdp::level`].
    pub fn why(&self) -> String {
        self.placed().1.into()
    }

    fn placed(&self) -> (Level, Cow<'static, str>) {
        if let Some(why) = self.left() {
            return (Level::Kernel, why.to_owned().into());
        }
        let (level, why) = match (self.level, &self.refused) {
            (Level::Auto, _) if self.program.config().raw => (Level::User, "auto: this mode takes every frame"),
            (Level::Driver, _) if self.program.config().raw && !self.program.is_native() => {
                (Level::User, "a switch's frames are forwarded in the driver by native XDP only")
            }
            (Level::Auto | Level::Driver, Some(why)) => {
                return (Level::User, format!("the kernel refuses the program that forwards: {why}").into());
            }
            (Level::Auto, _) if self.zero_copy => (Level::User, "auto: zero-copy, which redirecting would lose"),
            (Level::Driver, _) if self.zero_copy => {
                (Level::User, "zero-copy sockets take the frames: zero_copy = \"off\" leaves them to the driver")
            }
            (level @ (Level::Driver | Level::User | Level::Kernel), _) => (level, "asked for"),
            _ if self.program.is_native() => (Level::Driver, "auto: native XDP, which needs no skb"),
            _ if self.program.has_tc() && self.kernel_forwards => {
                (Level::Driver, "auto: traffic control, which forwards the existing skb")
            }
            _ if self.program.has_tc() => (
                Level::User,
                "auto: the kernel does not forward (see sysctl), and would get what traffic control leaves to it",
            ),
            // With an skb already made and the frame to be copied, forwarding in the driver saves next to nothing.
            _ => (Level::User, "auto: generic XDP, where each frame already has an skb"),
        };
        (level, why.into())
    }

    /// Sets the level at which received frames are forwarded. Frames already in the sockets are still forwarded:
    /// workers serve the sockets at every level. On error the level asked for stays unchanged.
    pub fn set_level(&mut self, level: Level) -> anyhow::Result<()> {
        let before = std::mem::replace(&mut self.level, level);
        if !self.begun {
            return Ok(());
        }
        self.enable().inspect_err(|_| self.level = before)
    }

    /// Returns the CPUs that send the frames the driver forwards from this port, with the number of frames each has
    /// sent; empty if the receiving CPU sends them. Errors with the reason if the configured CPUs do not.
    pub fn spread(&self) -> Result<Vec<(usize, u64)>, Cow<'_, str>> {
        let cpus = self.spread.as_deref().map_err(|why| Cow::from(why.as_str()))?;
        if !cpus.is_empty() && self.level() != Level::Driver {
            return Err(format!("at level {} nothing is forwarded by the driver", self.level().name()).into());
        }
        let sent = self.program.forwarded_by_cpu();
        Ok(cpus.iter().map(|&cpu| (cpu, sent.get(cpu).copied().unwrap_or(0))).collect())
    }

    /// Returns whether native programs send to this port, and why. User space sends the frames that they do not.
    /// Programs of the other modes have an skb, which every device takes.
    pub fn target(&self) -> (bool, &'static str) {
        match self.targets.get(self.id as u16).takes_frames {
            _ if self.left().is_some() => (false, "it is left to the kernel"),
            _ if self.refused.is_some() => (false, "the program does not forward"),
            true => (true, "its device takes redirected frames, native XDP's too"),
            false => (
                false,
                "native XDP cannot send to it: its device takes no redirected frames; a veth does while its peer has a \
                 program or GRO on",
            ),
        }
    }

    /// Returns the longest frame that can be redirected to the port (the kernel checks it in dev_map_enqueue), or 0 if
    /// none can be.
    fn longest(&self, target: Target) -> u32 {
        if target.ifindex != 0 && target.takes_frames { self.mtu + FRAMING } else { 0 }
    }

    /// Queries whether the program can send to this port. Returns `true` if the answer has changed.
    pub fn look(&self) -> bool {
        let ifindex = if self.left.is_some() { 0 } else { self.index };
        let target = Target { ifindex, takes_frames: takes_frames(self.index).unwrap_or(true) };
        self.program.set_target(self.longest(target));
        self.targets.set(self.id, target)
    }

    /// Returns the level asked for: the configured one, or that of a later request.
    pub fn asked(&self) -> Level {
        self.level
    }

    /// Stops the program from sending to this port, which is about to be removed.
    pub fn forget(&self) {
        self.program.set_target(0);
        self.targets.set(self.id, Target::default());
    }

    /// Disables the program: every frame is left to the kernel.
    pub fn disable(&mut self) {
        let config = XdpConfig { enabled: false, ..self.program.config() };
        if let Err(e) = self.program.set_config(config) {
            tracing::warn!("{}: {e}", self.interface);
        }
    }

    /// Applies the kernel's current policies: `obey` enters them in the program's configuration.
    pub fn obey(&mut self, obey: impl FnOnce(&mut XdpConfig)) -> anyhow::Result<()> {
        let mut config = self.program.config();
        obey(&mut config);
        if config == self.program.config() {
            return Ok(());
        }
        Ok(self.program.set_config(config)?)
    }

    /// Updates the program after the interface's MAC address or MTU has changed.
    pub fn update(&mut self, mac: [u8; 6], mtu: u32) -> anyhow::Result<()> {
        let max_frame = max_frame(mtu, self.room);
        self.limits.iter().for_each(|limit| limit.store(max_frame, Ordering::Relaxed));
        let max_frame = max_frame as u32;
        self.mtu = mtu;
        self.program.set_target(self.longest(self.targets.get(self.id as u16)));
        Ok(self.program.set_config(XdpConfig { mac, max_frame, ..self.program.config() })?)
    }
}

/// Returns the queues that a port has to serve. The port need not be open.
pub fn queues(port: &PortConfig) -> anyhow::Result<Vec<u32>> {
    let Some(af_xdp) = &port.af_xdp else {
        return Ok((0..port.dpdk.as_ref().map_or(1, |dpdk| dpdk.device_queues.into())).collect());
    };
    let link = LinkInfo::query(interface(port)?)?;
    match &af_xdp.queues {
        Queues::All => Ok((0..link.queues).collect()),
        Queues::List(list) => Ok(list.iter().map(|q| *q as u32).collect()),
    }
}

fn interface(port: &PortConfig) -> anyhow::Result<&str> {
    port.interface.as_deref().with_context(|| format!("port `{}` has no interface", port.name))
}

/// Resources with which ports are opened.
pub struct Opener {
    pub umem: Arc<Umem>,
    /// The program for AF_XDP ports; `None` if there are no such ports.
    pub driver: Option<Driver>,
    /// DPDK, for ports of that kind.
    pub dpdk: crate::dpdk::Dpdk,
    /// Set if every frame goes to user space and none to the kernel: in every mode but a router's.
    pub raw: bool,
}

impl Opener {
    /// Tells the switch's program which worker serves a queue of a port: the program forwards by that worker's flows.
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
        attach_af_xdp((id, port), &self.umem, (driver, self.raw), journal, from)
    }

    /// Opens what can be opened of a port while another process still has it. Errors if the port cannot be taken over.
    pub fn announce(
        &self,
        (id, port): (usize, &PortConfig),
        journal: &mut Journal,
        from: &mut Predecessor,
    ) -> anyhow::Result<Opened> {
        anyhow::ensure!(succession::can_follow(port), "{}", succession::why_not(port));
        match port.kind {
            PortKind::AfXdp => {
                let mut opened = self.attach((id, port), journal, from.take(interface(port)?))?;
                let transmit = port.af_xdp.clone().unwrap_or_default().transmit.into();
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
    pub fn open_announced(&self, id: usize, opened: &mut Opened, journal: &mut Journal) -> anyhow::Result<()> {
        match opened.config.kind {
            PortKind::AfXdp => open_sockets(&self.umem, opened, journal)?,
            _ => *opened = self.open((id, &opened.config.clone()), journal)?,
        }
        Ok(())
    }

    /// Opens one port.
    pub fn open(&self, (id, port): (usize, &PortConfig), journal: &mut Journal) -> anyhow::Result<Opened> {
        let single = |port: Box<dyn Port>| vec![End { queue: 0, counters: port.counters(), port }];
        let mut opened = Opened::none(port);
        match port.kind {
            PortKind::AfXdp => {
                opened = self.attach((id, port), journal, None)?;
                open_sockets(&self.umem, &mut opened, journal)?;
            }
            PortKind::Dpdk => self.open_dpdk(port, &mut opened)?,
            PortKind::Null => opened.ends = single(Box::new(NullPort::new())),
            PortKind::Memif => {
                let Some(memif) = &port.memif else { bail!("port `{}` has no socket", port.name) };
                let config = memif::Config {
                    socket: memif.socket.clone(),
                    role: match memif.role {
                        MemifRole::Server => memif::Role::Server,
                        MemifRole::Client => memif::Role::Client,
                    },
                    id: memif.id,
                    secret: memif.secret.clone(),
                    ring: memif.ring,
                    sealed: memif.sealed,
                    name: port.name.clone(),
                };
                opened.ends = single(Box::new(MemifPort::open(&config, self.umem.arena())?));
            }
            PortKind::Tap => {
                // Its virtio header says which checksums are partial, and the port completes them.
                let tap =
                    TapPort::create(&TapConfig { name: interface(port)?.into(), up: true, ..TapConfig::default() })?;
                opened.index = LinkInfo::query(tap.name())?.index;
                opened.ends = single(Box::new(tap));
            }
            PortKind::Pcap => {
                let Some(pcap) = &port.pcap else { bail!("port `{}` has no file", port.name) };
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
                let link = match pcap.link {
                    config::Link::Ethernet => LinkType::Ethernet,
                    config::Link::Docsis => LinkType::Docsis,
                };
                let record = |path| PcapRecorder::create_linked(path, link);
                let sink = pcap.record.as_ref().map(record).transpose()?;
                opened.ends = single(Box::new(PcapPort::new(source, sink)));
            }
        }
        if !matches!(port.kind, PortKind::AfXdp | PortKind::Tap | PortKind::Dpdk)
            && let Some(interface) = &port.interface
        {
            add_twin(TapConfig { name: interface.into(), up: true, ..TapConfig::default() }, &mut opened)?;
        }
        Ok(opened)
    }

    /// Opens a DPDK device. Its `interface` is the one the device stands on or creates, or else the name of its twin.
    fn open_dpdk(&self, port: &PortConfig, opened: &mut Opened) -> anyhow::Result<()> {
        let Device { ends, mac } = self.dpdk.open(port)?;
        opened.ends = ends;
        let below = port.dpdk.as_ref().and_then(|dpdk| below(&dpdk.device));
        // A virtual device on an interface hands over frames as the interface received them, with checksums as they
        // are.
        let link = below.and_then(|name| LinkInfo::query(name).ok());
        opened.partial_checksums = link.is_some_and(|link| Below::of(&link).leaves_checksums());
        let Some(interface) = &port.interface else { return Ok(()) };
        opened.promiscuous = true;
        let there = LinkInfo::query(interface).ok();
        match there {
            Some(link) if self.raw || below == Some(interface) || link.kind != "tun" => {
                opened.index = link.index;
                Ok(())
            }
            None if self.raw => bail!("there is no interface `{interface}`; only a router gives a device a twin"),
            // An interface that exists already keeps its own address.
            there => {
                let mtu = port.dpdk.as_ref().and_then(|dpdk| dpdk.mtu.set().map(|mtu| u32::from(*mtu)));
                let mac = mac.filter(|_| there.is_none());
                add_twin(TapConfig { name: interface.into(), mac, mtu, up: true }, opened)
            }
        }
    }
}

/// Returns the interface that a virtual device stands on or creates: the `iface=` argument.
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

/// Attaches the program to an interface, or follows the one attached by `from`, and sets up everything else but the
/// sockets.
fn attach_af_xdp(
    (id, port): (usize, &PortConfig),
    umem: &Arc<Umem>,
    (shared, raw): (&Driver, bool),
    journal: &mut Journal,
    from: Option<Attachment>,
) -> anyhow::Result<Opened> {
    let af_xdp = port.af_xdp.clone().unwrap_or_default();
    let interface = interface(port)?;
    let link = LinkInfo::query(interface)?;
    let below = Below::of(&link);
    let driver = below.driver();
    let how = match af_xdp.mode {
        // A native program on a veth takes segmentation offload from its peer: TCP sent there runs at less than half
        // the rate (docs/decisions/af_xdp.md). It pays off for packet rates, and then has to be configured. Modes other
        // than router cannot leave frames too long for a cell to the kernel: there the peer must segment.
        XdpMode::Auto if driver == "veth" && !raw => XdpAttach::Generic,
        XdpMode::Auto => XdpAttach::Auto,
        XdpMode::Native => XdpAttach::Native,
        XdpMode::Generic => XdpAttach::Generic,
    };
    let mut program = match from {
        Some(from) => {
            let other = how != XdpAttach::Auto && from.native != (how == XdpAttach::Native);
            anyhow::ensure!(
                !other || af_xdp.mode == XdpMode::Auto,
                "{interface} cannot be taken over: its XDP program is {}; restart it",
                if from.native { "native" } else { "not native" }
            );
            Program::succeed(&shared.program, id as u16, &link, from)
        }
        None => {
            let program = Program::attach_to(&shared.program, id as u16, &link, how)?;
            if af_xdp.mode == XdpMode::Auto && how == XdpAttach::Generic {
                tracing::info!(
                    "{interface}: no native XDP, so that its peer keeps TCP segmentation offload (mode = \"native\" \
                     for packet rate)"
                );
            } else if !program.note().is_empty() {
                tracing::warn!("{interface}: not the best mode: {}", program.note());
            }
            program
        }
    };
    shared.program.set_device(id as u16, link.index)?;
    prepare(&below, (program.is_native(), raw), journal);
    let room = umem.arena().max_data();
    let max_frame = max_frame(link.mtu, room) as u32;
    let partial_checksums = match af_xdp.checksum {
        Checksum::Auto => below.leaves_checksums(),
        Checksum::Fix => true,
        Checksum::Trust => false,
    };
    // Frames of a native program lose the skb's mark that their checksum is not finished.
    let partial = partial_checksums && program.is_native();
    // A router's port forwards nothing until the kernel's policies are known.
    let gate = if raw { XdpGate::default() } else { XdpGate::CLOSED };
    program.set_config(XdpConfig { mac: link.mac, max_frame, partial, raw, gate, ..XdpConfig::default() })?;
    let spread = match program.set_spread(&af_xdp.spread) {
        Ok(()) => Ok(af_xdp.spread),
        Err(e) => {
            tracing::warn!("{e}");
            Err(e.to_string())
        }
    };
    let promiscuous = raw.then(|| Promiscuous::new(link.index));
    let xdp = Xdp {
        program,
        interface: interface.into(),
        room,
        mtu: link.mtu,
        hides_tags: below.hides_tags(),
        left: None,
        halted: None,
        begun: false,
        refused: shared.program.refused(),
        kernel_forwards: crate::router::forwarding().iter().all(|(_, _, on)| *on),
        level: af_xdp.level,
        targets: shared.targets.clone(),
        id,
        index: link.index,
        spread,
        sockets: vec![],
        limits: vec![],
        zero_copy: false,
        _promiscuous: promiscuous.transpose().with_context(|| format!("cannot make {interface} promiscuous"))?,
    };
    xdp.look();
    Ok(Opened { index: link.index, partial_checksums, xdp: Some(xdp), ..Opened::none(port) })
}

/// Opens the sockets of a port whose program is attached.
fn open_sockets(umem: &Arc<Umem>, opened: &mut Opened, journal: &mut Journal) -> anyhow::Result<()> {
    let af_xdp = opened.config.af_xdp.clone().unwrap_or_default();
    let interface = interface(&opened.config)?;
    let link = LinkInfo::query(interface)?;
    let r = af_xdp.ring;
    let rings = RingSizes { rx: r.rx as u32, tx: r.tx as u32, fill: r.fill as u32, completion: r.completion as u32 };
    let mut config = SocketConfig {
        rings,
        zero_copy: match (af_xdp.zero_copy, af_xdp.level) {
            (config::ZeroCopy::Auto, Level::Driver) => ZeroCopy::Off,
            (wanted, _) => wanted.into(),
        },
        transmit: af_xdp.transmit.into(),
        burst: af_xdp.rx_burst,
        need_wakeup: af_xdp.need_wakeup,
        in_order: af_xdp.in_order,
        ..SocketConfig::default()
    };
    if af_xdp.busy_poll > 0 {
        (config.polling, config.budget) = (Polling::BusyPoll, af_xdp.busy_poll);
        journal.busy_poll(interface)?;
    }
    let (mut sockets, mut limits, mut zero_copy) = (vec![], vec![], false);
    for queue in queues(&opened.config)? {
        let end = AfXdpPort::open_with(umem, &link, queue, &config, opened.injectors.pop())?;
        if let (0, Some(why)) = (queue, end.transmit_fallback()) {
            tracing::warn!("{interface}: {why}");
        }
        if let Some(fd) = end.fd() {
            sockets.push((queue, fd.try_clone_to_owned().context("a socket's descriptor")?));
        }
        limits.push(end.frame_limit());
        zero_copy |= end.zero_copy();
        opened.ends.push(End { queue, counters: end.counters(), port: Box::new(end) });
    }
    if let Some(xdp) = &mut opened.xdp {
        (xdp.sockets, xdp.limits, xdp.zero_copy) = (sockets, limits, zero_copy);
    }
    Ok(())
}

/// Changes the interface settings that the fast path needs, and records them in the journal so that they can be
/// restored.
fn prepare(below: &Below, (native, raw): (bool, bool), journal: &mut Journal) {
    let interface = below.names().next().unwrap_or_default();
    if below.driver() == "veth" && native && !raw {
        // The peer no longer sends TCP in large segments. GRO merges its frames again, which halves the cost of those
        // left to the kernel.
        set(interface, ("rx-gro", true, "to merge frames for the kernel"), journal);
    }
    // The program sees VLAN tags only in the frame, and NICs strip them, those below a bond, too.
    for device in below.strippers() {
        set(device, (TAKES_TAGS_OFF, false, "to keep VLAN tags in the frame"), journal);
    }
    if raw && !native {
        set(interface, ("rx-gro", false, "frames stay as they came"), journal);
        set(interface, ("rx-lro", false, "frames stay as they came"), journal);
    }
}

/// Sets a feature of an interface that has it, and logs why.
fn set(interface: &str, (feature, on, why): (&str, bool, &str), journal: &mut Journal) {
    let done = Features::of(interface).and_then(|f| match f.get(feature)? {
        Some(now) if now != on => journal.set(&f, feature, on),
        _ => Ok(false),
    });
    match done {
        Ok(true) => tracing::info!("{interface}: {feature} turned {}: {why}", if on { "on" } else { "off" }),
        Ok(false) => {}
        Err(e) => tracing::warn!("{interface}: {e}"),
    }
}
