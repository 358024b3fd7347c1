//! The built-in XDP program on one interface: attachment and per-port configuration.

use super::abi::{
    FLAG_DEFRAG, FLAG_ENABLED, FLAG_FLOWS4, FLAG_FLOWS6, FLAG_FORWARD, FLAG_KERNEL4, FLAG_KERNEL6, FLAG_L3_HASH4,
    FLAG_L3_HASH6, FLAG_NATIVE, FLAG_PARTIAL, FLAG_RAW, FLAG_REDIRECTS, FLAG_RPF_LOOSE, FLAG_RPF_STRICT, FLAG_RULES,
    RawPort, SENDING_BRIDGED, SENDING_BY_RULES, SENDING_FILTERS, SENDING_KEEPS, SENDING_KEPT4, SENDING_KEPT6,
    SENDING_MACVLANS, SENDING_TAKES_FRAMES, SENDING_TARGET, XdpCounters,
};
use super::attach::{Attached, Hook};
use super::datapath::Inner;
use super::user_program::{First, UserProgram};
use super::{Error, LinkInfo, XdpDatapath};
use aya::programs::{ProgramError, ProgramFd, ProgramInfo, Xdp, loaded_programs};
use aya::{Ebpf, EbpfLoader};
use bywash_sync::lock;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{LazyLock, Mutex, MutexGuard};

/// Permitted ways to attach the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpAttach {
    /// In the driver if possible, otherwise generic (before the network stack); the reason for the latter is kept.
    #[default]
    Auto,
    /// In the driver only; otherwise an error.
    Native,
    /// Generic (before the network stack), even if the driver supports native mode: for devices whose native mode costs
    /// too much elsewhere, for comparison and for broken drivers.
    Generic,
}

/// Packets received by a router's port that go to the kernel because a kernel policy applies to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpGate {
    /// All of IPv4.
    pub v4: bool,
    /// All of IPv6.
    pub v6: bool,
    /// Fragments of both.
    pub fragments: bool,
    /// Set if `v4` does not apply to packets of known flows ([`XdpDatapath::flow_segments`]).
    pub flows4: bool,
    /// The same for `v6`.
    pub flows6: bool,
}

impl XdpGate {
    /// Gate through which everything goes to the kernel.
    pub const CLOSED: Self = Self { v4: true, v6: true, fragments: true, flows4: false, flows6: false };
}

/// Configuration of the program for a port. Everything is passed to the kernel until `enabled` is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpConfig {
    /// Whether the port is in use; if not, every frame is passed to the kernel.
    pub enabled: bool,
    /// MAC address of the port, or of `master`; frames to other stations are passed to the kernel.
    pub mac: [u8; 6],
    /// Number, from [`super::PORTS`] on, of the bond, the bridge, or the VLAN interface on a bridge to which the port's
    /// frames without a tag belong, together with those of other ports.
    pub master: Option<u16>,
    /// Set if the port is a bridge's member. Frames that it receives from stations that are not known
    /// ([`super::XdpDatapath::set_stations`]) behind it, of the interface to which they belong, are passed to the
    /// kernel.
    pub bridged: bool,
    /// Set if that bridge filters VLANs. Frames with a tag belong to the VLAN with that tag ([`XdpVlan`]), and those
    /// that belong to none are passed to the kernel, as are those without a tag if there is no `master`.
    pub filters: bool,
    /// Longest frame for user space, in bytes with the Ethernet header. Longer frames are passed to the kernel.
    pub max_frame: u32,
    /// Whether every frame that is not too long goes to user space; for ports that are not a router's.
    pub raw: bool,
    /// Whether the program forwards what it can.
    pub forward: bool,
    /// Whether frames may carry unfinished transport checksums, a mark they lose when they are redirected: such frames
    /// go to user space, which completes the checksums.
    pub partial: bool,
    /// Whether packets that would leave on their ingress port go to user space, which sends a redirect.
    pub redirects: bool,
    /// Packets that go to the kernel.
    pub gate: XdpGate,
    /// Source check of IPv4 packets before the program forwards them. Packets whose source it cannot verify go to the
    /// kernel (`pass_source`), which decides.
    pub source_check: SourceCheck,
    /// Whether the hash that selects a group's member uses only addresses for IPv4 (net.ipv4.fib_multipath_hash_policy
    /// 0), instead of ports as well.
    pub l3_hash4: bool,
    /// The same for IPv6 (net.ipv6.fib_multipath_hash_policy 0), with flow label and next header.
    pub l3_hash6: bool,
    /// Set if policy routing rules apply to the packets, which user space looks up unless `asks` is set.
    pub rules: bool,
    /// Set if the program, where it forwards, asks the kernel for the next hop of packets to which rules apply
    /// ([`super::XdpDatapath::refuses_rules`]). The kernel's answer (`bpf_fib_lookup`) ignores the MTUs of routes.
    pub asks: bool,
    /// Set if that next hop depends on a packet's addresses alone, so that the answer can be cached.
    pub keeps: bool,
    /// Conditions for sending packets to which such rules apply on the port.
    pub sending: XdpSending,
    /// Frames between members of the port's bridge that the program forwards, where it forwards.
    pub bridging: XdpBridging,
}

impl XdpConfig {
    /// Returns the entry in the program of the port with this number, interface index, and mode of XDP.
    pub(super) fn entry(&self, id: u16, ifindex: u32, native: bool) -> RawPort {
        let XdpGate { v4, v6, fragments, flows4, flows6 } = self.gate;
        let mut flags = 0;
        for (on, flag) in [
            (self.enabled, FLAG_ENABLED),
            (self.forward && !self.rules, FLAG_FORWARD),
            (self.rules, FLAG_RULES),
            (self.partial, FLAG_PARTIAL),
            (self.raw, FLAG_RAW),
            (self.redirects, FLAG_REDIRECTS),
            (v4, FLAG_KERNEL4),
            (v6, FLAG_KERNEL6),
            (v4 && flows4, FLAG_FLOWS4),
            (v6 && flows6, FLAG_FLOWS6),
            (fragments, FLAG_DEFRAG),
            (self.source_check == SourceCheck::Loose, FLAG_RPF_LOOSE),
            (self.source_check == SourceCheck::Strict, FLAG_RPF_STRICT),
            (self.l3_hash4, FLAG_L3_HASH4),
            (self.l3_hash6, FLAG_L3_HASH6),
            (native, FLAG_NATIVE),
        ] {
            flags |= if on { flag } else { 0 };
        }
        let mut sending = 0;
        for (on, flag) in [
            (self.sending.target, SENDING_TARGET),
            (self.sending.takes_frames, SENDING_TAKES_FRAMES),
            (self.sending.kept4, SENDING_KEPT4),
            (self.sending.kept6, SENDING_KEPT6),
            (self.rules && self.asks && self.forward, SENDING_BY_RULES),
            (self.keeps, SENDING_KEEPS),
            (self.bridged, SENDING_BRIDGED),
            (self.filters, SENDING_FILTERS),
        ] {
            sending |= if on { flag } else { 0 };
        }
        let (mac, max_frame, route_id) = (self.mac, self.max_frame, self.master.unwrap_or(id));
        let XdpBridging { to, longest, through } = self.bridging;
        let others = if self.forward && self.bridged { to & !(1 << id) } else { 0 };
        let members = others | u64::from(self.bridged && through != 0) << id;
        RawPort { mac, flags, max_frame, ifindex, id, cpus: 0, route_id, sending, members, longest, through }
    }

    /// Returns the words of such an entry, for native XDP, as they are in the program's memory.
    #[cfg(fuzzing)]
    #[doc(hidden)]
    pub fn words(&self, id: u16, ifindex: u32) -> [u64; 3] {
        self.entry(id, ifindex, true).words()
    }
}

/// Conditions for packets that are sent on a port by policy routing rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpSending {
    /// Set if the program may send on the port at all.
    pub target: bool,
    /// Set if the port's device takes redirected frames, as native XDP sends them.
    pub takes_frames: bool,
    /// Set if only the kernel may send IPv4 packets on the port.
    pub kept4: bool,
    /// Set if only the kernel may send IPv6 packets on the port.
    pub kept6: bool,
}

/// Frames that the program forwards between members of a bridge, or hands to user space: unicast frames of IPv4, IPv6,
/// PPPoE or MPLS, except neighbour discovery, from a station behind the receiving port to a station behind another
/// port. They are unchanged, but for a tag ([`super::XdpDatapath::set_bridge_tags`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpBridging {
    /// Ports that they leave by: bit n stands for port n. With native XDP their devices take redirected frames.
    pub to: u64,
    /// Longest such frame in bytes, with its Ethernet header and without a tag. Longer ones are passed to the kernel,
    /// except an skb that will be segmented.
    pub longest: u32,
    /// Longest frame, likewise, that user space takes to a station behind a VXLAN; 0: none. For XDP only, with tags in
    /// the frames.
    pub through: u32,
}

/// A VLAN that a port carries, or a macvlan above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpVlan {
    /// Its number, from [`super::PORTS`] on.
    pub id: u16,
    /// Number of its entry in the program, from [`super::PORTS`] on: its own, or another for each member of the bond or
    /// bridge below it, because an entry also has properties of the port.
    pub entry: u16,
    /// Tag of its frames, in network byte order and with priority 0; zeros for a macvlan.
    pub tag: [u8; 4],
    /// Its MAC address; frames to other stations are passed to the kernel.
    pub mac: [u8; 6],
    /// Longest frame for user space, as [`XdpConfig::max_frame`], with the tag.
    pub max_frame: u32,
    /// Packets that go to the kernel; no flows pass it.
    pub gate: XdpGate,
    /// Source check, as [`XdpConfig::source_check`].
    pub source_check: SourceCheck,
    /// Set if policy routing rules apply, as [`XdpConfig::rules`].
    pub rules: bool,
    /// Frames with the tag between members of a bridge, as [`XdpConfig::bridging`].
    pub bridging: XdpBridging,
}

/// Reverse-path source validation of IPv4: `rp_filter` of Linux (ip-sysctl), RFC 3704.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceCheck {
    /// No check.
    #[default]
    Off,
    /// There must be a unicast route to the source (`rp_filter` 2). Only for a port with an IPv4 address: Linux checks
    /// strictly on others.
    Loose,
    /// The route to the source must leave by the ingress port (`rp_filter` 1).
    Strict,
}

/// The program on one interface, as one port of a process. It is detached when dropped, and when the process ends in
/// any way, because it is attached by descriptors (bpf_link).
///
/// Without native XDP a frame already has an skb, which generic XDP copies if it is shared or non-linear, as all skbs
/// sent by TCP are. So a traffic-control program (tcx, Linux 6.6) forwards there, and XDP is attached only while user
/// space receives frames. Without tcx, XDP does both.
///
/// # Thread-safety
/// One owner, the control thread; the kernel sees each change at once and as a whole.
pub struct Program {
    interface: String,
    // Declared before the datapath: detached before its maps are closed.
    xdp: Option<Attached>,
    tc: Option<Attached>,
    /// Program that runs before ours.
    first: Option<First>,
    native: bool,
    note: String,
    config: XdpConfig,
    vlans: Vec<XdpVlan>,
    /// Whether the kernel has refused what VLANs need.
    no_vlans: bool,
    /// Number of CPUs that send for it.
    cpus: u16,
    id: u16,
    index: u32,
    datapath: XdpDatapath,
    /// Whether another process's program is still attached: see [`Program::succeed`].
    waits: bool,
    /// Whether another process will replace the attached program: see [`Program::hand_over`].
    left: bool,
}

/// Attachment of a program, handed from one process to the next.
#[derive(Debug)]
pub struct Attachment {
    /// Whether XDP is attached in native mode.
    pub native: bool,
    /// Link of the XDP program, if attached.
    pub xdp: Option<OwnedFd>,
    /// Link of the traffic-control program, if attached.
    pub tc: Option<OwnedFd>,
}

impl Program {
    /// Returns the program of a port, attached nowhere yet and disabled.
    fn new(datapath: &XdpDatapath, id: u16, link: &LinkInfo, first: Option<First>) -> Self {
        Self {
            interface: link.name.clone(),
            xdp: None,
            tc: None,
            first,
            native: false,
            note: String::new(),
            config: XdpConfig { mac: link.mac, ..XdpConfig::default() },
            vlans: vec![],
            no_vlans: false,
            cpus: 0,
            id,
            index: link.index,
            datapath: datapath.clone(),
            waits: false,
            left: false,
        }
    }

    /// Loads a program and attaches it as port 0: see [`Program::attach_to`].
    ///
    /// # Errors
    /// Errors of [`XdpDatapath::load`] and [`Program::attach_to`].
    pub fn attach(link: &LinkInfo, how: XdpAttach) -> Result<Self, Error> {
        Self::attach_to(&XdpDatapath::load()?, 0, link, how, None)
    }

    /// Attaches the program to an interface of the calling thread's network namespace, as port `id`. It is disabled:
    /// nothing changes for the interface's frames until [`Program::set_config`]. A program of the user's runs before it
    /// from now on; frames that it passes go on to ours.
    ///
    /// # Errors
    /// [`Error::AnotherProgram`] if one is attached where this one would be; [`Error::Attach`] with the kernel's
    /// reasons; [`Error::UserProgram`] and [`Error::Load`] if the user's program cannot be loaded.
    pub fn attach_to(
        datapath: &XdpDatapath,
        id: u16,
        link: &LinkInfo,
        how: XdpAttach,
        user: Option<&UserProgram>,
    ) -> Result<Self, Error> {
        let interface = link.name.clone();
        let first = user.map(|user| datapath.load_first(id, user)).transpose()?;
        let mut inner = datapath.lock();
        let (native, mut note) = match how {
            // A bond runs a native program on its members, and the kernel does not deliver their frames to the bond's
            // sockets.
            XdpAttach::Auto if link.kind == "bond" => (None, "sockets of a bond receive nothing in native mode".into()),
            XdpAttach::Native if link.kind == "bond" => {
                let reason = "sockets of a bond would receive nothing in native mode: use generic mode".into();
                return Err(Error::Attach { interface, reason });
            }
            XdpAttach::Generic => (None, "native mode was not tried: `xdp = \"generic\"`, the default on veth".into()),
            XdpAttach::Auto | XdpAttach::Native => {
                match attach_xdp(&inner, first.as_ref(), link, Hook::XdpDriver) {
                    Ok(fd) => (Some(fd), String::new()),
                    Err(reason) => {
                        // With another program attached, no other mode must be tried.
                        refuse_other(&LinkInfo::query(&interface)?)?;
                        (None, format!("no native mode: {reason}"))
                    }
                }
            }
        };
        if native.is_none() && how == XdpAttach::Native {
            return Err(Error::Attach { interface, reason: note });
        }
        let (mut xdp, mut tc) = (native, None);
        let native = xdp.is_some();
        if !native {
            // A switch's object has no traffic-control program. Behind a program of the user's, which generic XDP runs,
            // it would not find the Ethernet header of frames that generic XDP has copied.
            let there = inner.has_tc() && first.is_none();
            let now = LinkInfo::query(&interface)?;
            if now.program.is_some_and(|(id, _)| name(id).is_some_and(|name| OURS.contains(&name))) {
                // Two instances would forward the same frames.
                refuse_other(&now)?;
            }
            match there.then(|| attach_tc(&mut inner, link)) {
                Some(Ok(fd)) => {
                    inner.own_links.extend(fd.id());
                    tc = Some(fd);
                }
                refused => {
                    if let Some(Err(reason)) = refused {
                        note = format!("{note}; no traffic control program: {reason}");
                    }
                    refuse_other(&LinkInfo::query(&interface)?)?;
                    let attached = attach_xdp(&inner, first.as_ref(), link, Hook::XdpSkb);
                    xdp = Some(attached.map_err(|reason| {
                        let reason = format!("{note}; no generic mode: {reason}");
                        Error::Attach { interface: interface.clone(), reason }
                    })?);
                }
            }
        }

        drop(inner);
        let mut program = Self::new(datapath, id, link, first);
        (program.xdp, program.tc, program.native, program.note) = (xdp, tc, native, note);
        Ok(program)
    }

    /// Takes over another process's attachment, as port `id`, with `user` to run before it: what is attached stays as
    /// it is until [`Program::take_over`].
    ///
    /// # Errors
    /// [`Error::UserProgram`] and [`Error::Load`] if the user's program cannot be loaded.
    pub fn succeed(
        datapath: &XdpDatapath,
        id: u16,
        link: &LinkInfo,
        from: Attachment,
        user: Option<&UserProgram>,
    ) -> Result<Self, Error> {
        let first = user.map(|user| datapath.load_first(id, user)).transpose()?;
        let mut program = Self::new(datapath, id, link, first);
        (program.xdp, program.tc) = (from.xdp.map(Attached::from), from.tc.map(Attached::from));
        (program.native, program.waits) = (from.native, true);
        if !from.native {
            program.note = "taken over from another process".into();
        }
        let ids = program.tc.iter().filter_map(|tc| tc.id().ok());
        datapath.lock().own_links.extend(ids);
        Ok(program)
    }

    /// Replaces the other process's program by this one: each frame is processed by one of the two. Does nothing when
    /// called again.
    ///
    /// # Errors
    /// [`Error::Attach`] with the kernel's reason, for instance if the interface has gone meanwhile.
    pub fn take_over(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.waits) {
            return Ok(());
        }
        let failed = |reason: String| Error::Attach { interface: self.interface.clone(), reason };
        {
            let mut inner = self.datapath.lock();
            if !inner.has_tc() || self.first.is_some() {
                // XDP does everything; it is attached below if it was not.
                self.tc = None;
            }
            let refused = |e: io::Error| failed(format!("cannot replace the program taken over: {e}"));
            if let Some(attached) = &self.xdp {
                attached.replace(xdp_fd(&inner, self.first.as_ref())).map_err(refused)?;
            }
            if let Some(attached) = &self.tc {
                let program = inner.tc().map_err(failed)?;
                attached.replace(program.as_fd()).map_err(refused)?;
            }
        }
        // Detaches XDP if this configuration does not need it.
        self.set_config(self.config)
    }

    /// Returns the attachment, for another process to take over: [`Program::succeed`].
    ///
    /// # Errors
    /// If the process has no file descriptors left.
    pub fn attachment(&self) -> io::Result<Attachment> {
        let clone = |attached: &Option<Attached>| attached.as_ref().map(|a| a.as_fd().try_clone_to_owned()).transpose();
        Ok(Attachment { native: self.native, xdp: clone(&self.xdp)?, tc: clone(&self.tc)? })
    }

    /// Leaves the attachment to another process, which has it and replaces the program: from now on dropping this
    /// changes nothing.
    pub fn hand_over(&mut self) {
        self.left = true;
    }

    /// Checks that XDP, which hands frames to user space, is attached or can be.
    ///
    /// # Errors
    /// [`Error::AnotherProgram`] if another program is in its place.
    pub fn may_receive(&self) -> Result<(), Error> {
        if self.xdp.is_some() { Ok(()) } else { refuse_other(&LinkInfo::of_index(self.index)?) }
    }

    /// Returns where the program is attached: `native` or `generic` for XDP, or `tc` for traffic control.
    pub fn mode(&self) -> &'static str {
        match self.xdp {
            Some(_) if self.native => "native",
            Some(_) => "generic",
            None => "tc",
        }
    }

    /// Returns whether traffic control forwards frames that already have an skb. The kernel then handles packets that
    /// need more than forwarding.
    pub fn has_tc(&self) -> bool {
        self.tc.is_some()
    }

    /// Returns whether another process's program is still attached, until [`Program::take_over`].
    pub fn succeeds(&self) -> bool {
        self.waits
    }

    /// Returns whether XDP runs in the driver, on frames without an skb.
    pub fn is_native(&self) -> bool {
        self.native
    }

    /// Returns the reason why no better mode is used; empty if there is none better.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Returns the configuration last set.
    pub fn config(&self) -> XdpConfig {
        self.config
    }

    /// Sets the configuration, which applies from the next frame on.
    ///
    /// # Errors
    /// [`Error::Map`]; if XDP has to be attached, [`Error::AnotherProgram`] and [`Error::Attach`]; if the gate is the
    /// first that lets flows pass, [`Error::Load`]; with the kernel's reasons. After an error, a router's port has a
    /// closed gate, and no VLANs, until a configuration can be set: the old one may violate the kernel's present
    /// policies.
    pub fn set_config(&mut self, config: XdpConfig) -> Result<(), Error> {
        self.apply(config).inspect_err(|_| {
            if self.config.raw {
                return;
            }
            let (sending, gate) = (XdpSending::default(), XdpGate::CLOSED);
            let bridging = XdpBridging::default();
            self.config = XdpConfig { gate, sending, bridging, rules: false, asks: false, keeps: false, ..self.config };
            // Errors are those of the maps, which have been written before.
            let _ = self.datapath.set_port(self.entry(&self.config));
            let _ = self.datapath.set_vlans(self.id, &[]);
        })
    }

    fn apply(&mut self, config: XdpConfig) -> Result<(), Error> {
        // If everything goes to the kernel, XDP is not attached: after generic XDP, traffic-control filters no longer
        // find the Ethernet header.
        let kept = |gate: XdpGate| gate.v4 && gate.v6 && !gate.flows4 && !gate.flows6;
        let kept = kept(config.gate) && self.vlans.iter().all(|vlan| kept(vlan.gate));
        let asks = config.asks && !self.datapath.refuses_rules();
        let by_user = !config.forward || (config.rules && !asks);
        let for_user = config.enabled && by_user && !kept;
        if (for_user || (self.tc.is_none() && !self.waits)) && self.xdp.is_none() {
            // Until the flags change, it does the same as the traffic-control program. The interface may have been
            // renamed.
            let link = LinkInfo::of_index(self.index)?;
            refuse_other(&link)?;
            let attached = attach_xdp(&self.datapath.lock(), self.first.as_ref(), &link, Hook::XdpSkb);
            let failed = |reason| Error::Attach { interface: self.interface.clone(), reason };
            self.xdp = Some(attached.map_err(failed)?);
        }
        let set = self.named(self.datapath.set_port(self.entry(&config)));
        if config.sending != self.config.sending || config.keeps != self.config.keeps {
            // Cached next hops may lead to this port.
            self.datapath.changed();
        }
        set?;
        self.config = config;
        self.named(self.datapath.set_vlans(self.id, &self.vlan_entries()))?;
        if !for_user && self.tc.is_some() && !self.waits {
            self.xdp = None;
        }
        Ok(())
    }

    /// Returns the port's entry in the program.
    fn entry(&self, config: &XdpConfig) -> RawPort {
        let mut entry = config.entry(self.id, self.index, self.native);
        entry.cpus = self.cpus;
        if self.vlans.iter().any(|vlan| vlan.tag == [0; 4]) {
            entry.sending |= SENDING_MACVLANS;
        }
        entry
    }

    /// Returns the VLANs: the tag of each, the number of its entry, and the entry. Level and hash are those of the
    /// port.
    fn vlan_entries(&self) -> Vec<([u8; 4], u16, RawPort)> {
        let entry = |vlan: &XdpVlan| {
            let XdpVlan { mac, max_frame, gate, source_check, rules, bridging, .. } = *vlan;
            let config = XdpConfig { mac, max_frame, gate, source_check, rules, bridging, ..self.config };
            let entry = RawPort { route_id: vlan.id, sending: 0, ..self.entry(&config) };
            (vlan.tag, vlan.entry, entry)
        };
        self.vlans.iter().map(entry).collect()
    }

    /// Sets the VLANs whose frames are handled; those of others are passed to the kernel.
    ///
    /// # Errors
    /// [`Error::Load`] for the first VLAN of all and [`Error::Map`], with the kernel's reasons; from then on all frames
    /// of VLANs are passed to the kernel. Errors of [`Program::set_config`].
    pub fn set_vlans(&mut self, vlans: Vec<XdpVlan>) -> Result<(), Error> {
        if vlans == self.vlans || self.no_vlans {
            return Ok(());
        }
        self.vlans = vlans;
        self.set_config(self.config).inspect_err(|_| {
            (self.vlans, self.no_vlans) = (vec![], true);
        })
    }

    /// Sets the CPUs that send the frames received on the port and forwarded by the program; each flow stays on one
    /// CPU. If empty, the receiving CPU sends them. Frames that exceed a CPU's queue are dropped and counted as
    /// `drop_cpu_busy`.
    ///
    /// # Errors
    /// [`Error::Spread`] for more than [`super::PORT_CPUS`] CPUs, an unknown CPU, without native XDP, or if the kernel
    /// does not support it; then the setting has not changed.
    pub fn set_cpus(&mut self, cpus: &[usize]) -> Result<(), Error> {
        if cpus.is_empty() && self.cpus == 0 {
            return Ok(());
        }
        if !self.native {
            let reason = "without native XDP each frame has an skb; use receive packet steering (RPS) instead".into();
            return Err(Error::Spread { interface: self.interface.clone(), reason });
        }
        self.named(self.datapath.set_cpus(self.id, cpus))?;
        let before = std::mem::replace(&mut self.cpus, cpus.len() as u16);
        self.set_config(self.config).inspect_err(|_| self.cpus = before)
    }

    /// Returns the frames of this port that each CPU sent, indexed by CPU.
    pub fn forwarded_by_cpu(&self) -> Vec<u64> {
        self.datapath.forwarded_by_cpu(self.id)
    }

    /// Returns whether packets to which policy routing rules apply go to user space whatever the configuration says.
    pub fn refuses_rules(&self) -> bool {
        self.datapath.refuses_rules()
    }

    /// Sets the longest frame in bytes that a switch's program may send on this port; 0: none.
    pub fn set_target(&self, longest: u32) {
        self.datapath.set_target(self.id, longest);
    }

    /// Directs the frames of `queue` to this socket. The kernel removes the entry when the socket is closed.
    ///
    /// # Errors
    /// [`Error::Map`] with the kernel's reason, or for a queue beyond the program's limit of 256.
    pub fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Error> {
        self.named(self.datapath.set_socket(self.id, queue, socket))
    }

    /// Returns the counters of the port since the program was loaded.
    ///
    /// # Errors
    /// [`Error::Map`] with the kernel's reason.
    pub fn counters(&self) -> Result<XdpCounters, Error> {
        self.named(self.datapath.counters(self.id))
    }

    /// Adds the interface's name to an error of the datapath, which does not know it.
    fn named<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        result.map_err(|e| match e {
            Error::Map { map, reason, .. } => Error::Map { interface: self.interface.clone(), map, reason },
            Error::Spread { reason, .. } => Error::Spread { interface: self.interface.clone(), reason },
            e => e,
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        // Frames still queued for a CPU must not leave on the next port with this id.
        self.datapath.clear_device(self.id);
        if self.first.is_some() {
            // An error cannot be handled here: the entry is written again before it is used.
            let _ = self.datapath.lock().next.delete(&u32::from(self.id).to_ne_bytes());
        }
        // Cleared next, before the datapath can be dropped; an error cannot be handled here.
        let _ = self.datapath.set_vlans(self.id, &[]);
        let _ = self.datapath.set_port(RawPort { id: self.id, ..RawPort::default() });
    }
}

/// Names of the kernel's programs by id, as they were when this was first used; empty without `CAP_SYS_ADMIN`.
static NAMES: LazyLock<HashMap<u32, String>> = LazyLock::new(|| {
    let named = |program: ProgramInfo| Some((program.id(), program.name_as_str()?.to_owned()));
    loaded_programs().flatten().filter_map(named).collect()
});

/// Reads the names of the kernel's programs, for errors about other owners' programs. A process calls this before it
/// gives up `CAP_SYS_ADMIN`.
pub fn learn_programs() {
    LazyLock::force(&NAMES);
}

/// Names of the programs that an instance attaches.
const OURS: [&str; 2] = ["bywash", "bywash_first"];

/// Returns the name of a program that was there when [`learn_programs`] was called; `None` if it is not known.
fn name(id: u32) -> Option<&'static str> {
    NAMES.get(&id).map(String::as_str)
}

fn refuse_other(link: &LinkInfo) -> Result<(), Error> {
    match link.program {
        Some((id, mode)) => {
            let name = name(id).unwrap_or_default().to_owned();
            Err(Error::AnotherProgram { interface: link.name.clone(), name, id, mode })
        }
        None => Ok(()),
    }
}

/// Returns the loader of all objects. It is shared because a new one reads the kernel's BTF types (6 MB, some 50 ms),
/// for relocations that these objects do not have; the broker cannot open that file. Its settings persist: call
/// [`EbpfLoader::map_max_entries`] before every load that needs it.
pub(super) fn loader() -> MutexGuard<'static, EbpfLoader<'static>> {
    static LOADER: LazyLock<Mutex<EbpfLoader>> = LazyLock::new(|| {
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        Mutex::new(loader)
    });
    lock(&LOADER)
}

/// Returns a program of the object, as its type.
pub(super) fn named<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, String>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or_else(|| format!("the object has no program `{name}`"))?;
    program.try_into().map_err(|e| chain(&e))
}

/// Returns the descriptor of a loaded program of the object.
pub(super) fn program_fd(ebpf: &mut Ebpf, name: &str) -> Result<ProgramFd, String> {
    let program = ebpf.program_mut(name).ok_or_else(|| format!("the object has no program `{name}`"))?;
    let fd = program.fd().map_err(|e| chain(&e))?;
    fd.try_clone().map_err(|e| e.to_string())
}

/// Returns the descriptor of the program to attach to XDP: ours, or the one that runs before it.
fn xdp_fd<'a>(inner: &'a Inner, first: Option<&'a First>) -> BorrowedFd<'a> {
    first.map_or(&inner.xdp, |first| &first.program).as_fd()
}

fn attach_xdp(inner: &Inner, first: Option<&First>, link: &LinkInfo, hook: Hook) -> Result<Attached, String> {
    Attached::new(xdp_fd(inner, first), link.index, hook).map_err(|e| reason(&e))
}

/// Attaches by bpf_link only: an attachment by netlink would outlive the process.
pub(super) fn attach_link(xdp: &mut Xdp, link: &LinkInfo, hook: Hook) -> Result<Attached, String> {
    let program = xdp.fd().map_err(|e| chain(&e))?;
    Attached::new(program.as_fd(), link.index, hook).map_err(|e| reason(&e))
}

/// Attaches by tcx, after the programs already there; never by a filter of the older kind, which would outlive the
/// process.
fn attach_tc(inner: &mut Inner, link: &LinkInfo) -> Result<Attached, String> {
    let program = inner.tc()?;
    Attached::new(program.as_fd(), link.index, Hook::Tcx).map_err(|e| format!("{e} (tcx needs Linux 6.6)"))
}

/// Returns the kernel's reason with a hint for known errors.
fn reason(e: &io::Error) -> String {
    let hint = match e.raw_os_error() {
        Some(libc::EOPNOTSUPP) => " (the driver has no native XDP)",
        Some(libc::ENOSPC) => " (a veth needs at least as many RX queues as its peer has TX queues)",
        Some(libc::ERANGE) => " (the MTU of the interface or of its veth peer is too large for XDP)",
        Some(libc::EPERM) => " (CAP_NET_ADMIN and CAP_BPF are needed)",
        Some(libc::ENOTCONN) => " (the veth has no peer)",
        Some(libc::EINVAL) => " (bpf_link for XDP needs Linux 5.9)",
        _ => "",
    };
    format!("{e}{hint}")
}

/// Returns an error with its causes on one line, shortened.
pub(super) fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    verdict(text.replace('\n', " "))
}

/// Shortens a verifier's log, which may be megabytes long, to the verdict at its end.
pub(super) fn verdict(text: String) -> String {
    let Some((what, log)) = text.split_once(" Verifier output: ") else { return text };
    let log = log.split(" verification time").next().unwrap_or(log);
    // Each instruction is a line "N: (op) ..", and the error follows the last one.
    let from = log.rfind(": (").unwrap_or(0);
    let last = log[from..].split_once(' ').map_or(log, |(_, rest)| rest);
    let verdict = last.char_indices().rev().nth(159).map_or(last, |(at, _)| &last[at..]);
    format!("{what} The verifier: {verdict}")
}
