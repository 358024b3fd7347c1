//! The built-in XDP program on one interface: attaching it, and what it is told of the port.

use super::abi::{FLAG_DRIVER, FLAG_ENABLED, FLAG_PARTIAL, FLAG_RAW, FLAG_REDIRECTS, RawPort, XdpCounters};
use super::{Driver, Error, LinkInfo};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, Xdp, XdpMode};
use serde::{Deserialize, Serialize};
use std::os::fd::BorrowedFd;

/// How the program may be attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum XdpAttach {
    /// In the driver where it can, else before the network stack; the reason for the latter is kept.
    #[default]
    Auto,
    /// In the driver, or not at all.
    Native,
    /// Before the network stack, even where the driver could: slower, for comparison and broken drivers.
    Generic,
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
}

/// The program on one interface, as one of a process's ports. Dropping it detaches it; so does the end of the process,
/// however it comes, because it is attached by a descriptor (bpf_link).
///
/// # Thread-safety
/// One owner, the control thread; the kernel sees each change at once and whole.
pub struct Program {
    interface: String,
    // Declared before the driver: detached before its maps go.
    _link: FdLink,
    mode: &'static str,
    note: String,
    config: XdpConfig,
    id: u16,
    index: u32,
    driver: Driver,
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
        let load_error = |reason: String| Error::Load { interface: interface.clone(), reason };
        let xdp: &mut Xdp = inner
            .ebpf
            .program_mut("bywash")
            .ok_or_else(|| load_error("the object has no program `bywash`".into()))?
            .try_into()
            .map_err(|e: ProgramError| load_error(chain(&e)))?;
        let (modes, mut note): (&[_], _) = match how {
            // A bond runs a native program on its members, whose frames the kernel keeps from the bond's sockets.
            XdpAttach::Auto if link.kind == "bond" => {
                (&[(XdpMode::Skb, "generic")], "a bond's sockets get nothing in native mode".into())
            }
            XdpAttach::Native if link.kind == "bond" => {
                let reason = "native mode is not for bonds, whose sockets would get nothing: use generic".into();
                return Err(Error::Attach { interface, reason });
            }
            XdpAttach::Auto => (&[(XdpMode::Driver, "native"), (XdpMode::Skb, "generic")], String::new()),
            XdpAttach::Native => (&[(XdpMode::Driver, "native")], String::new()),
            XdpAttach::Generic => (&[(XdpMode::Skb, "generic")], "generic mode was asked for".into()),
        };
        let mut attached = None;
        for (mode, name) in modes {
            match attach_link(xdp, link, *mode) {
                Ok(fd) => {
                    attached = Some((fd, *name));
                    break;
                }
                Err(reason) => {
                    // Someone may have been faster; then a second mode must not be tried.
                    refuse_other(&LinkInfo::query(&interface)?)?;
                    let separator = if note.is_empty() { "" } else { "; " };
                    note = format!("{note}{separator}no {name} mode: {reason}");
                }
            }
        }
        let Some((fd, mode)) = attached else { return Err(Error::Attach { interface, reason: note }) };

        drop(inner);
        let config = XdpConfig { mac: link.mac, ..XdpConfig::default() };
        let (index, driver) = (link.index, driver.clone());
        Ok(Self { interface, _link: fd, mode, note, config, id, index, driver })
    }

    /// `native` or `generic`.
    pub fn mode(&self) -> &'static str {
        self.mode
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
    /// [`Error::Map`] with the kernel's reason.
    pub fn set_config(&mut self, config: XdpConfig) -> Result<(), Error> {
        let mut flags = 0;
        for (on, flag) in [
            (config.enabled, FLAG_ENABLED),
            (config.driver, FLAG_DRIVER),
            (config.partial, FLAG_PARTIAL),
            (config.raw, FLAG_RAW),
            (config.redirects, FLAG_REDIRECTS),
        ] {
            flags |= if on { flag } else { 0 };
        }
        let (mac, max_frame, ifindex, id) = (config.mac, config.max_frame, self.index, self.id);
        self.named(self.driver.set_port(RawPort { mac, flags, max_frame, ifindex, id, reserved: 0 }))?;
        self.config = config;
        Ok(())
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
            e => e,
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
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

/// Attaches by bpf_link only: on EINVAL the loader falls back to a netlink attachment, which would outlive us.
pub(super) fn attach_link(xdp: &mut Xdp, link: &LinkInfo, mode: XdpMode) -> Result<FdLink, String> {
    let id = xdp.attach_to_if_index(link.index, mode).map_err(|e| reason(&e))?;
    let attached = xdp.take_link(id).map_err(|e| chain(&e))?;
    attached.try_into().map_err(|_| "the kernel has no bpf_link for XDP (5.9 or newer is needed)".into())
}

/// The kernel's reason, with what it means where we know.
fn reason(e: &ProgramError) -> String {
    let errno = match e {
        ProgramError::SyscallError(e) => e.io_error.raw_os_error(),
        _ => None,
    };
    let hint = match errno {
        Some(libc::EOPNOTSUPP) => " (the driver has no native XDP)",
        Some(libc::ENOSPC) => " (veth: it needs at least as many receive queues as its peer has transmit queues)",
        Some(libc::ERANGE) => " (the MTU, or the veth peer's, is too large for XDP)",
        Some(libc::EPERM) => " (CAP_NET_ADMIN and CAP_BPF are needed)",
        Some(libc::ENOTCONN) => " (the veth has no peer)",
        _ => "",
    };
    format!("{}{hint}", chain(e))
}

/// An error with its causes, on one line.
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
    text.replace('\n', " ")
}
