//! The built-in XDP program on one interface: its attachment and its configuration.

use super::abi::{FLAG_PARTIAL, RawPort, SENDING_CHUNKS, SENDING_MACVLANS, XdpCounters};
use super::attach::{Attached, Hook, TcxProgram, tcx_programs};
use super::config::{XdpBridging, XdpConfig, XdpGate, XdpSending, XdpVlan};
use super::datapath::Inner;
use super::load::chain;
use super::tail_calls::RETRY;
use super::user_program::{First, UserProgram};
use super::{Error, LinkInfo, XdpDatapath};
use aya::programs::{ProgramInfo, Xdp, loaded_programs};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

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
    /// VLANs that could not be set, the reason, and the time of the attempt.
    no_vlans: Option<(Vec<XdpVlan>, String, Instant)>,
    /// Number of CPUs that send for it.
    cpus: u16,
    id: u16,
    index: u32,
    datapath: XdpDatapath,
    /// Set if another process's program is still attached: see [`Program::succeed`].
    waits: bool,
    /// Set if another process will replace the attached program: see [`Program::hand_over`].
    left: bool,
}

/// Attachment of a program, handed from one process to the next.
#[derive(Debug)]
pub struct Attachment {
    /// Set if XDP is attached in native mode.
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
            no_vlans: None,
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
        // Not under the lock, which closing the gates needs.
        let own = datapath.lock().own_links.clone();
        refuse_instance(link, &own)?;
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
    /// [`Error::UserProgram`] and [`Error::Load`] if the user's program cannot be loaded, [`Error::Attach`] if the
    /// attachment is to another interface of the same name.
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
        for attached in program.xdp.iter().chain(&program.tc) {
            let other = attached.ifindex().map_or(true, |ifindex| ifindex != link.index);
            if other {
                let reason = "the program taken over is attached to another interface of this name".to_owned();
                return Err(Error::Attach { interface: link.name.clone(), reason: reason + ": restart bywash" });
            }
        }
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

    /// Returns the kernel's ids of the attachment's links; one that is attached anew has another.
    pub fn links(&self) -> Vec<u32> {
        self.xdp.iter().chain(&self.tc).filter_map(|link| link.id().ok()).collect()
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
            let led_here = self.config.sending != XdpSending::default();
            let (sending, gate) = (XdpSending::default(), XdpGate::CLOSED);
            let bridging = XdpBridging::default();
            self.config =
                XdpConfig { gate, sending, bridging, rules: false, fib_lookup: false, fib_cache: false, ..self.config };
            // Errors are those of the maps, which have been written before.
            let _ = self.datapath.set_port(self.entry(&self.config, self.xdp.is_some()));
            let _ = self.datapath.set_vlans(self.id, &[]);
            // Cached answers of the kernel may lead to this port. (Not after each failure: the caller tries again.)
            if led_here {
                self.datapath.changed();
            }
        })
    }

    fn apply(&mut self, config: XdpConfig) -> Result<(), Error> {
        // If everything goes to the kernel, XDP is not attached: after generic XDP, traffic-control filters no longer
        // find the Ethernet header.
        let kept = |gate: XdpGate| gate.v4 && gate.v6 && !gate.flows4 && !gate.flows6;
        let kept = kept(config.gate) && self.vlans.iter().all(|vlan| kept(vlan.gate));
        let fib_lookup = config.fib_lookup && !self.datapath.refuses_rules();
        let by_user = !config.forward || (config.rules && !fib_lookup);
        let for_user = config.enabled && by_user && !kept;
        if (for_user || (self.tc.is_none() && !self.waits)) && self.xdp.is_none() {
            // Until the flags change, it does the same as the traffic-control program. The interface may have been
            // renamed.
            let link = LinkInfo::of_index(self.index)?;
            refuse_other(&link)?;
            if self.tc.is_some() {
                self.named(self.write(&self.config, true))?;
            }
            let attached = attach_xdp(&self.datapath.lock(), self.first.as_ref(), &link, Hook::XdpSkb);
            let failed = |reason| Error::Attach { interface: self.interface.clone(), reason };
            self.xdp = Some(attached.map_err(failed)?);
        }
        let xdp = self.xdp.is_some();
        let set = self.named(self.datapath.set_port(self.entry(&config, xdp)));
        let led_here = set.is_ok() || self.config.sending != XdpSending::default();
        if led_here && (config.sending != self.config.sending || config.fib_cache != self.config.fib_cache) {
            // Cached next hops may lead to this port.
            self.datapath.changed();
        }
        set?;
        self.config = config;
        self.named(self.datapath.set_vlans(self.id, &self.vlan_entries(xdp)))?;
        if xdp && !for_user && self.tc.is_some() && !self.waits {
            self.xdp = None;
            self.named(self.write(&self.config, false))?;
        }
        Ok(())
    }

    /// Writes the entries of the port and its VLANs for a program that runs in XDP, or only in traffic control.
    fn write(&self, config: &XdpConfig, xdp: bool) -> Result<(), Error> {
        self.datapath.set_port(self.entry(config, xdp))?;
        self.datapath.set_vlans(self.id, &self.vlan_entries(xdp))
    }

    /// Returns the port's entry in the program.
    fn entry(&self, config: &XdpConfig, xdp: bool) -> RawPort {
        let mut entry = config.entry(self.id, self.index, self.native);
        entry.cpus = self.cpus;
        if self.tc.is_some() && !xdp {
            // Traffic control sends the skb, whose mark the kernel heeds.
            entry.flags &= !FLAG_PARTIAL;
        }
        if self.vlans.iter().any(|vlan| vlan.tag == [0; 4]) {
            entry.sending |= SENDING_MACVLANS;
        }
        entry
    }

    /// Returns the VLANs: the tag of each, the number of its entry, and the entry. Level and hash are those of the
    /// port.
    fn vlan_entries(&self, xdp: bool) -> Vec<([u8; 4], u16, RawPort)> {
        let entry = |vlan: &XdpVlan| {
            let XdpVlan { mac, max_frame, gate, source_check, rules, bridging, .. } = *vlan;
            let config = XdpConfig { mac, max_frame, gate, source_check, rules, bridging, ..self.config };
            let entry = self.entry(&config, xdp);
            let entry = RawPort { route_id: vlan.id, sending: entry.sending & SENDING_CHUNKS, ..entry };
            (vlan.tag, vlan.entry, entry)
        };
        self.vlans.iter().map(entry).collect()
    }

    /// Sets the VLANs whose frames are handled; those of others are passed to the kernel.
    ///
    /// # Errors
    /// [`Error::Vlans`] with the kernel's reason; then all frames of VLANs are passed to the kernel, and for a minute
    /// the same VLANs are refused for the same reason. Errors of [`Program::set_config`].
    pub fn set_vlans(&mut self, vlans: Vec<XdpVlan>) -> Result<(), Error> {
        if vlans == self.vlans {
            return Ok(());
        }
        if let Some((same, reason, since)) = &self.no_vlans
            && *same == vlans
            && since.elapsed() < RETRY
        {
            return Err(self.refuses_vlans(reason.clone()));
        }
        let config = self.config;
        self.vlans = vlans;
        match self.set_config(config) {
            Ok(()) => {
                self.no_vlans = None;
                Ok(())
            }
            Err(why) => {
                let vlans = std::mem::take(&mut self.vlans);
                self.no_vlans = Some((vlans, why.reason(), Instant::now()));
                // The port's own frames need no VLAN.
                self.set_config(config)?;
                Err(self.refuses_vlans(why.reason()))
            }
        }
    }

    fn refuses_vlans(&self, reason: String) -> Error {
        Error::Vlans { interface: self.interface.clone(), reason }
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
        if let Some(tc) = self.tc.take() {
            let id = tc.id().ok();
            // Detached first: meanwhile the link is still known as our own.
            drop(tc);
            self.datapath.lock().own_links.retain(|own| Some(*own) != id);
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
pub(super) const OURS: [&str; 2] = ["bywash", "bywash_first"];

/// Name of the program that an instance attaches by traffic control.
const OF_TRAFFIC_CONTROL: &str = "bywash_tc";
/// Time in which an ending instance detaches its programs.
const ENDING: Duration = Duration::from_secs(1);

/// Returns the name of a program that was there when [`learn_programs`] was called; `None` if it is not known.
fn name(id: u32) -> Option<&'static str> {
    NAMES.get(&id).map(String::as_str)
}

/// Returns whether a program is one that an instance attached; `None` if its name is not known, as without
/// `CAP_SYS_ADMIN`.
pub fn is_of_an_instance(id: u32) -> Option<bool> {
    name(id).map(|name| OURS.contains(&name))
}

/// Checks that no other instance forwards the interface's packets by traffic control: the second would take over what
/// the first leaves, before its sockets cannot be bound. Waits for an instance that is just ending.
fn refuse_instance(link: &LinkInfo, own: &[u32]) -> Result<(), Error> {
    let since = Instant::now();
    loop {
        let all = tcx_programs(link.index).unwrap_or_default();
        let is_other = |tcx: &&TcxProgram| !own.contains(&tcx.link) && name(tcx.id) == Some(OF_TRAFFIC_CONTROL);
        let Some(TcxProgram { id, .. }) = all.iter().find(is_other) else { return Ok(()) };
        if since.elapsed() >= ENDING {
            let reason = format!(
                "another instance of Bywash forwards its packets (traffic control, program {id}): end that instance"
            );
            return Err(Error::Attach { interface: link.name.clone(), reason });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
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

#[cfg(test)]
mod tests {
    use super::super::Bare;
    use super::*;
    use bywash_lab::{End, Namespace, Veth, require, require_lab};

    /// Runs a test with a program that traffic control runs on one end of a veth.
    fn with_tc(test: impl FnOnce(Program, &LinkInfo) + Send) {
        let (router, host) = (Namespace::new("tr").unwrap(), Namespace::new("th").unwrap());
        Veth::new(End::new(&router, "r0"), End::new(&host, "h0")).create().unwrap();
        let run = || {
            let link = LinkInfo::query("r0").unwrap();
            let program = Program::attach(&link, XdpAttach::Generic).unwrap();
            assert!(program.has_tc());
            test(program, &link);
        };
        router.enter(run).unwrap();
    }

    #[test]
    fn a_port_that_is_closed_for_an_error_invalidates_cached_answers() {
        require!(require_lab());
        with_tc(|mut program, link| {
            let config = XdpConfig { enabled: true, mac: link.mac, max_frame: 1514, ..XdpConfig::default() };
            let sending = XdpSending { target: true, ..XdpSending::default() };
            let version = |program: &Program| program.datapath.lock().version;
            program.set_config(XdpConfig { forward: true, sending, ..config }).unwrap();
            let before = version(&program);
            // User space can receive only by XDP, whose place is taken.
            let other = Bare::drop("r0").unwrap();
            let error = program.set_config(XdpConfig { sending, ..config }).unwrap_err();
            assert!(matches!(error, Error::AnotherProgram { .. }), "{error}");
            assert_eq!(program.config().sending, XdpSending::default());
            assert_ne!(version(&program), before);
            drop(other);
        });
    }

    #[test]
    fn only_traffic_control_sends_unfinished_checksums() {
        require!(require_lab());
        with_tc(|mut program, _| {
            let config = XdpConfig { partial: true, ..XdpConfig::default() };
            let partial = |program: &Program, xdp| program.entry(&config, xdp).flags & FLAG_PARTIAL != 0;
            assert_eq!([false, true].map(|xdp| partial(&program, xdp)), [false, true]);
            program.tc = None;
            assert!(partial(&program, false) && !program.is_native());
            assert_eq!(program.entry(&XdpConfig::default(), false).flags & FLAG_PARTIAL, 0);
        });
    }
}
