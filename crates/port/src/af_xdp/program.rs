//! The built-in XDP program on one interface: attaching it, and what it is told of the port.

use super::abi::{
    FLAG_DEFRAG, FLAG_DRIVER, FLAG_ENABLED, FLAG_KERNEL4, FLAG_KERNEL6, FLAG_L3_HASH4, FLAG_L3_HASH6, FLAG_NATIVE,
    FLAG_PARTIAL, FLAG_RAW, FLAG_REDIRECTS, FLAG_RPF_LOOSE, FLAG_RPF_STRICT, RawPort, XdpCounters,
};
use super::attach::{Attached, Hook};
use super::{Driver, Error, LinkInfo};
use aya::programs::{ProgramError, ProgramFd, SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// How the program may be attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpAttach {
    /// In the driver where it can, else before the network stack; the reason for the latter is kept.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// Before the network stack, even where the driver could: for devices whose native mode costs too much elsewhere, for
    /// comparison and broken drivers.
    Generic,
}

/// Packets that a router's port receives and that stay the kernel's, because a policy of the kernel's concerns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpGate {
    /// All of IPv4.
    pub v4: bool,
    /// All of IPv6.
    pub v6: bool,
    /// Fragments of either.
    pub fragments: bool,
}

impl XdpGate {
    /// Everything stays the kernel's.
    pub const CLOSED: Self = Self { v4: true, v6: true, fragments: true };
}

/// What the program is to do with frames. Everything is passed to the kernel until `enabled`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpConfig {
    /// Off: every frame is the kernel's.
    pub enabled: bool,
    /// The port's MAC address: other stations' frames are the kernel's.
    pub mac: [u8; 6],
    /// Longest frame for user space, in bytes with the Ethernet header. A frame longer than this is the kernel's.
    pub max_frame: u32,
    /// Not a router's port: every frame that is not too long goes to user space.
    pub raw: bool,
    /// What can be is forwarded by the program.
    pub driver: bool,
    /// Frames may carry transport checksums that are not finished, and lose that mark when they are redirected: those go
    /// to user space, which finishes them.
    pub partial: bool,
    /// What would leave by the port it came from goes to user space, which tells the sender of the better way.
    pub redirects: bool,
    /// What stays the kernel's.
    pub gate: XdpGate,
    /// How IPv4 sources are checked before a packet is forwarded by the program. What it cannot prove right is the
    /// kernel's (`pass_source`), which has the last word.
    pub source_check: SourceCheck,
    /// A group's member is chosen by addresses only for IPv4 (net.ipv4.fib_multipath_hash_policy 0), else by ports as well.
    pub l3_hash4: bool,
    /// The same for IPv6 (net.ipv6.fib_multipath_hash_policy), with flow label and next header.
    pub l3_hash6: bool,
}

/// Source validation of IPv4 by reverse path: `rp_filter` of Linux (ip-sysctl), RFC 3704.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SourceCheck {
    /// None.
    #[default]
    Off,
    /// There must be a unicast route to the source (`rp_filter` 2). Only for a port that has an IPv4 address: Linux is strict
    /// on others.
    Loose,
    /// The route to the source must lead by the port (`rp_filter` 1).
    Strict,
}

/// The program on one interface, as one of a process's ports. Dropping it detaches it; so does the end of the process,
/// however it comes, because it is attached by descriptors (bpf_link).
///
/// Where it would be before the network stack, an skb is there already, and generic XDP copies it when it is shared or in
/// pieces, as all that TCP sends is. So its twin for traffic control (tcx, Linux 6.6) forwards there, and XDP is attached
/// only while user space is to have frames. Without tcx, XDP does both.
///
/// # Thread-safety
/// One owner, the control thread; the kernel sees each change at once and whole.
pub struct Program {
    interface: String,
    // Declared before the driver: detached before its maps go.
    xdp: Option<Attached>,
    tc: Option<Attached>,
    native: bool,
    note: String,
    config: XdpConfig,
    /// CPUs that send for it.
    spread: u16,
    id: u16,
    index: u32,
    driver: Driver,
    /// What is attached is another process's program still: see [`Program::succeed`].
    waits: bool,
    /// What is attached is for another process to replace: see [`Program::hand_over`].
    left: bool,
}

/// What one process hands to the next: where its program is attached.
#[derive(Debug)]
pub struct Attachment {
    /// Whether XDP runs in the driver.
    pub native: bool,
    /// The XDP program's link, if it is attached.
    pub xdp: Option<OwnedFd>,
    /// That of its twin for traffic control.
    pub tc: Option<OwnedFd>,
}

impl Program {
    /// Loads a program of its own and attaches it, as port 0 of a process: see [`Program::attach_to`].
    ///
    /// # Errors
    /// As [`Driver::load`] and [`Program::attach_to`].
    pub fn attach(link: &LinkInfo, how: XdpAttach) -> Result<Self, Error> {
        Self::attach_to(&Driver::load()?, 0, link, how)
    }

    /// Attaches the program to an interface of the calling thread's network namespace, as port `id`, disabled: nothing
    /// changes for the interface's frames until [`Program::set_config`].
    ///
    /// # Errors
    /// [`Error::AnotherProgram`] where one is attached already; [`Error::Attach`] with the kernel's reasons;
    /// [`Error::Map`] when there are more than [`super::PORTS`] ports.
    pub fn attach_to(driver: &Driver, id: u16, link: &LinkInfo, how: XdpAttach) -> Result<Self, Error> {
        let interface = link.name.clone();
        refuse_other(link)?;
        let mut inner = driver.lock();
        let (native, mut note) = match how {
            // A bond runs a native program on its members, whose frames the kernel keeps from the bond's sockets.
            XdpAttach::Auto if link.kind == "bond" => (None, "a bond's sockets get nothing in native mode".into()),
            XdpAttach::Native if link.kind == "bond" => {
                let reason = "native mode is not for bonds, whose sockets would get nothing: use generic".into();
                return Err(Error::Attach { interface, reason });
            }
            XdpAttach::Generic => (None, "native mode was not to be tried".into()),
            XdpAttach::Auto | XdpAttach::Native => match attach_xdp(&mut inner.ebpf, link, Hook::XdpDriver) {
                Ok(fd) => (Some(fd), String::new()),
                Err(reason) => (None, format!("no native mode: {reason}")),
            },
        };
        if native.is_none() {
            // Someone may have been faster than what is known of the link; then another way must not be tried.
            refuse_other(&LinkInfo::query(&interface)?)?;
        }
        if native.is_none() && how == XdpAttach::Native {
            return Err(Error::Attach { interface, reason: note });
        }
        let (mut xdp, mut tc) = (native, None);
        let native = xdp.is_some();
        if !native {
            // A switch's object has none.
            let there = inner.ebpf.program("bywash_tc").is_some();
            match there.then(|| attach_tc(&mut inner.ebpf, link)) {
                Some(Ok(fd)) => {
                    inner.own_links.extend(fd.id());
                    tc = Some(fd);
                }
                refused => {
                    if let Some(Err(reason)) = refused {
                        note = format!("{note}; no traffic control program: {reason}");
                    }
                    let attached = attach_xdp(&mut inner.ebpf, link, Hook::XdpSkb);
                    xdp = Some(attached.map_err(|reason| {
                        let reason = format!("{note}; no generic mode: {reason}");
                        Error::Attach { interface: interface.clone(), reason }
                    })?);
                }
            }
        }

        drop(inner);
        let config = XdpConfig { mac: link.mac, ..XdpConfig::default() };
        let (index, driver) = (link.index, driver.clone());
        Ok(Self { interface, xdp, tc, native, note, config, spread: 0, id, index, driver, waits: false, left: false })
    }

    /// Follows another process's program, as port `id`: what that has attached stays as it is until
    /// [`Program::take_over`].
    pub fn succeed(driver: &Driver, id: u16, link: &LinkInfo, from: Attachment) -> Self {
        let config = XdpConfig { mac: link.mac, ..XdpConfig::default() };
        let (index, driver, interface) = (link.index, driver.clone(), link.name.clone());
        let (native, note) = (from.native, if from.native { "" } else { "as it was taken over" }.into());
        let (xdp, tc) = (from.xdp.map(Attached::from), from.tc.map(Attached::from));
        let ids = tc.iter().filter_map(|tc| tc.id().ok());
        driver.lock().own_links.extend(ids);
        Self { interface, xdp, tc, native, note, config, spread: 0, id, index, driver, waits: true, left: false }
    }

    /// Puts this program in the place of the one it follows: each frame meets one or the other. Does nothing the second
    /// time.
    ///
    /// # Errors
    /// [`Error::Attach`] with the kernel's reason, as when the interface has gone meanwhile.
    pub fn take_over(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.waits) {
            return Ok(());
        }
        let failed = |reason: String| Error::Attach { interface: self.interface.clone(), reason };
        {
            let mut inner = self.driver.lock();
            if inner.ebpf.program("bywash_tc").is_none() {
                // XDP does it all: attached where it was not.
                self.tc = None;
            }
            for (attached, name) in [(&self.xdp, "bywash"), (&self.tc, "bywash_tc")] {
                let Some(attached) = attached else { continue };
                let program = program_fd(&mut inner.ebpf, name).map_err(failed)?;
                let refused = |e: io::Error| failed(format!("its program cannot be replaced: {e}"));
                attached.replace(program.as_fd()).map_err(refused)?;
            }
        }
        // What is not needed for this goes.
        self.set_config(self.config)
    }

    /// Where it is attached, for another process to follow: [`Program::succeed`].
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn attachment(&self) -> io::Result<Attachment> {
        let clone = |attached: &Option<Attached>| attached.as_ref().map(|a| a.as_fd().try_clone_to_owned()).transpose();
        Ok(Attachment { native: self.native, xdp: clone(&self.xdp)?, tc: clone(&self.tc)? })
    }

    /// Dropped from now on, it does not change what is done with frames: another process has what is attached and
    /// replaces it.
    pub fn hand_over(&mut self) {
        self.left = true;
    }

    /// Where the program is now: `native` or `generic` of XDP, or `tc`, traffic control.
    pub fn mode(&self) -> &'static str {
        match self.xdp {
            Some(_) if self.native => "native",
            Some(_) => "generic",
            None => "tc",
        }
    }

    /// Whether it forwards what has an skb already, by traffic control: the kernel then does what needs more than that.
    pub fn has_tc(&self) -> bool {
        self.tc.is_some()
    }

    /// Whether XDP runs in the driver, on frames without an skb.
    pub fn is_native(&self) -> bool {
        self.native
    }

    /// Why not a better mode; empty when there is none better.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// What it was last told.
    pub fn config(&self) -> XdpConfig {
        self.config
    }

    /// Tells it what to do from the next frame on.
    ///
    /// # Errors
    /// [`Error::Map`] and, where XDP has to be attached for it, [`Error::AnotherProgram`] and [`Error::Attach`] with the
    /// kernel's reasons; then nothing has changed.
    pub fn set_config(&mut self, config: XdpConfig) -> Result<(), Error> {
        // Where everything is the kernel's, it gets the frames as if there were no program: behind generic XDP, filters of
        // traffic control no longer find the Ethernet header.
        let kept = config.gate.v4 && config.gate.v6;
        let for_user = config.enabled && !config.driver && !kept;
        if for_user && self.xdp.is_none() {
            // Until the flags change, it does what its twin does. The interface may have another name by now.
            let link = LinkInfo::of_index(self.index)?;
            refuse_other(&link)?;
            let attached = attach_xdp(&mut self.driver.lock().ebpf, &link, Hook::XdpSkb);
            let failed = |reason| Error::Attach { interface: self.interface.clone(), reason };
            self.xdp = Some(attached.map_err(failed)?);
        }
        let mut flags = 0;
        for (on, flag) in [
            (config.enabled, FLAG_ENABLED),
            (config.driver, FLAG_DRIVER),
            (config.partial, FLAG_PARTIAL),
            (config.raw, FLAG_RAW),
            (config.redirects, FLAG_REDIRECTS),
            (config.gate.v4, FLAG_KERNEL4),
            (config.gate.v6, FLAG_KERNEL6),
            (config.gate.fragments, FLAG_DEFRAG),
            (config.source_check == SourceCheck::Loose, FLAG_RPF_LOOSE),
            (config.source_check == SourceCheck::Strict, FLAG_RPF_STRICT),
            (config.l3_hash4, FLAG_L3_HASH4),
            (config.l3_hash6, FLAG_L3_HASH6),
            (self.native, FLAG_NATIVE),
        ] {
            flags |= if on { flag } else { 0 };
        }
        let (mac, max_frame, ifindex, id, spread) = (config.mac, config.max_frame, self.index, self.id, self.spread);
        self.named(self.driver.set_port(RawPort { mac, flags, max_frame, ifindex, id, spread }))?;
        self.config = config;
        if !for_user && self.tc.is_some() && !self.waits {
            self.xdp = None;
        }
        Ok(())
    }

    /// These CPUs send what it receives and the program forwards, a flow's frames always the same one; none: the one that
    /// received it. What a CPU has too many of is dropped and counted, as `drop_cpu_busy`.
    ///
    /// # Errors
    /// [`Error::Spread`] for more CPUs than [`super::SPREAD`] or one that there is not, without native XDP, or where the kernel
    /// has no such thing; then nothing has changed.
    pub fn set_spread(&mut self, cpus: &[usize]) -> Result<(), Error> {
        if cpus.is_empty() && self.spread == 0 {
            return Ok(());
        }
        if !self.native {
            let reason = "its frames have an skb each; receive packet steering (RPS) spreads those".into();
            return Err(Error::Spread { interface: self.interface.clone(), reason });
        }
        self.named(self.driver.set_spread(self.id, cpus))?;
        let before = std::mem::replace(&mut self.spread, cpus.len() as u16);
        self.set_config(self.config).inspect_err(|_| self.spread = before)
    }

    /// Frames of it that each CPU sent, by the CPU's number.
    pub fn forwarded_by_cpu(&self) -> Vec<u64> {
        self.driver.forwarded_by_cpu(self.id)
    }

    /// The longest frame that a switch's program may send by this port; 0: none.
    pub fn set_target(&self, longest: u32) {
        self.driver.set_target(self.id, longest);
    }

    /// Frames sent to `queue` go to this socket; when the socket is closed its entry goes by itself.
    ///
    /// # Errors
    /// [`Error::Map`] with the kernel's reason, or for a queue beyond the program's 256.
    pub fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Error> {
        self.named(self.driver.set_socket(self.id, queue, socket))
    }

    /// Frames by what was done with them, since the program was loaded.
    ///
    /// # Errors
    /// [`Error::Map`] with the kernel's reason.
    pub fn counters(&self) -> Result<XdpCounters, Error> {
        self.named(self.driver.counters(self.id))
    }

    /// An error of the driver's, which does not know the interface.
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
        // What still waits for a CPU to send it must not leave by the next port of this number.
        self.driver.clear_device(self.id);
        // Detached next, before the driver can be: nothing to be done about an error.
        let _ = self.driver.set_port(RawPort { id: self.id, ..RawPort::default() });
    }
}

fn refuse_other(link: &LinkInfo) -> Result<(), Error> {
    match link.program {
        Some((id, mode)) => Err(Error::AnotherProgram { interface: link.name.clone(), id, mode }),
        None => Ok(()),
    }
}

/// What loads the objects: one for all, since each that is made reads the kernel's types (6 MB, 40 ms), for relocations that our
/// objects do not have. What is set in it stays: [`EbpfLoader::map_max_entries`] is called before every load that needs it.
pub(super) fn loader() -> MutexGuard<'static, EbpfLoader<'static>> {
    static LOADER: LazyLock<Mutex<EbpfLoader>> = LazyLock::new(|| {
        let mut loader = EbpfLoader::new();
        loader.btf(None);
        Mutex::new(loader)
    });
    LOADER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program of the object, of its kind.
pub(super) fn named<'a, P>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut P, String>
where
    &'a mut P: TryFrom<&'a mut aya::programs::Program, Error = ProgramError>,
{
    let program = ebpf.program_mut(name).ok_or_else(|| format!("the object has no program `{name}`"))?;
    program.try_into().map_err(|e| chain(&e))
}

/// The descriptor of a loaded program of the object.
fn program_fd(ebpf: &mut Ebpf, name: &str) -> Result<ProgramFd, String> {
    let program = ebpf.program_mut(name).ok_or_else(|| format!("the object has no program `{name}`"))?;
    let fd = program.fd().map_err(|e| chain(&e))?;
    fd.try_clone().map_err(|e| e.to_string())
}

fn attach_xdp(ebpf: &mut Ebpf, link: &LinkInfo, hook: Hook) -> Result<Attached, String> {
    attach_link(named(ebpf, "bywash")?, link, hook)
}

/// Attaches by bpf_link only: an attachment by netlink would outlive us.
pub(super) fn attach_link(xdp: &mut Xdp, link: &LinkInfo, hook: Hook) -> Result<Attached, String> {
    let program = xdp.fd().map_err(|e| chain(&e))?;
    Attached::new(program.as_fd(), link.index, hook).map_err(|e| reason(&e))
}

/// By tcx, never by a filter of the older kind, which would outlive us. Behind the programs that are there.
fn attach_tc(ebpf: &mut Ebpf, link: &LinkInfo) -> Result<Attached, String> {
    let tc: &mut SchedClassifier = named(ebpf, "bywash_tc")?;
    let program = tc.fd().map_err(|e| chain(&e))?;
    Attached::new(program.as_fd(), link.index, Hook::Tcx).map_err(|e| format!("{e} (tcx is of Linux 6.6)"))
}

/// The kernel's reason, with what it means where we know.
fn reason(e: &io::Error) -> String {
    let hint = match e.raw_os_error() {
        Some(libc::EOPNOTSUPP) => " (the driver has no native XDP)",
        Some(libc::ENOSPC) => " (veth: it needs at least as many receive queues as its peer has transmit queues)",
        Some(libc::ERANGE) => " (the MTU, or the veth peer's, is too large for XDP)",
        Some(libc::EPERM) => " (CAP_NET_ADMIN and CAP_BPF are needed)",
        Some(libc::ENOTCONN) => " (the veth has no peer)",
        Some(libc::EINVAL) => " (bpf_link for XDP is of Linux 5.9)",
        _ => "",
    };
    format!("{e}{hint}")
}

/// An error with its causes, on one line, short.
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

/// Of a verifier's log, which may have megabytes, the verdict: it stands at the end.
fn verdict(text: String) -> String {
    let Some((what, log)) = text.split_once(" Verifier output: ") else { return text };
    let log = log.split(" verification time").next().unwrap_or(log);
    // Each instruction is a line "N: (op) ..", and behind the last one stands what is wrong with it.
    let from = log.rfind(": (").unwrap_or(0);
    let last = log[from..].split_once(' ').map_or(log, |(_, rest)| rest);
    let verdict = last.char_indices().rev().nth(159).map_or(last, |(at, _)| &last[at..]);
    format!("{what} The verifier: {verdict}")
}
