//! The built-in XDP program on one interface: loading, attaching, and what it is told.

use super::abi::{FLAG_ENABLED, FLAG_PREFIX4, FLAG_PREFIX6, FLAG_RAW, RawConfig, RawCounters, Verdict, XdpCounters};
use super::{Error, LinkInfo};
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, HashMap, LpmTrie, MapData, MapError, PerCpuArray, XskMap};
use aya::programs::links::FdLink;
use aya::programs::{ProgramError, Xdp, XdpMode};
use aya::{Ebpf, EbpfLoader};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

static OBJECT: &[u8] = aya::include_bytes_aligned!("../../../../xdp/bywash.bpf.o");

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpConfig {
    /// Off: every frame is the kernel's.
    pub enabled: bool,
    /// The port's MAC address: other stations' frames are the kernel's.
    pub mac: [u8; 6],
    /// Longest frame for user space, in bytes with the Ethernet header. A frame longer than this is the kernel's.
    pub max_frame: u32,
    /// Not a router's port: every frame that is not too long goes to user space.
    pub raw: bool,
}

/// The program on one interface, with maps of its own. Dropping it detaches it; so does the end of the process, however
/// it comes, because it is attached by a descriptor (bpf_link).
///
/// # Thread-safety
/// One owner, the control thread; the kernel sees each change at once and whole.
pub struct Program {
    interface: String,
    // Declared before the maps: detached first.
    _link: FdLink,
    mode: &'static str,
    note: String,
    config: XdpConfig,
    /// What `prefix4` holds: to ask the map for an entry would be a longest match.
    prefixes4: HashSet<(Ipv4Addr, u8)>,
    /// What `prefix6` holds: to ask the map for an entry would be a longest match.
    prefixes6: HashSet<(Ipv6Addr, u8)>,
    config_map: Array<MapData, RawConfig>,
    counters: PerCpuArray<MapData, RawCounters>,
    xsks: XskMap<MapData>,
    local4: HashMap<MapData, [u8; 4], u8>,
    local6: HashMap<MapData, [u8; 16], u8>,
    prefix4: LpmTrie<MapData, [u8; 4], u8>,
    prefix6: LpmTrie<MapData, [u8; 16], u8>,
    _ebpf: Ebpf,
}

impl Program {
    /// Loads the program and attaches it to an interface of the calling thread's network namespace, disabled:
    /// nothing changes for the interface's frames until [`Program::set_config`].
    ///
    /// # Errors
    /// [`Error::AnotherProgram`] where one is attached already; [`Error::Load`] and [`Error::Attach`] with the
    /// kernel's reasons.
    pub fn attach(link: &LinkInfo, how: XdpAttach) -> Result<Self, Error> {
        let interface = link.name.clone();
        refuse_other(link)?;
        let load_error = |reason: String| Error::Load { interface: interface.clone(), reason };
        let mut ebpf = EbpfLoader::new().load(OBJECT).map_err(|e| load_error(chain(&e)))?;
        let xdp: &mut Xdp = ebpf
            .program_mut("bywash")
            .ok_or_else(|| load_error("the object has no program `bywash`".into()))?
            .try_into()
            .map_err(|e: ProgramError| load_error(chain(&e)))?;
        xdp.load().map_err(|e| load_error(chain(&e)))?;

        let (modes, mut note): (&[_], _) = match how {
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

        macro_rules! map {
            ($name:literal) => {{
                let wrong = |reason: String| Error::Map { interface: interface.clone(), map: $name, reason };
                let map = ebpf.take_map($name).ok_or_else(|| wrong("not in the object".into()))?;
                map.try_into().map_err(|e: MapError| wrong(chain(&e)))?
            }};
        }
        let config = XdpConfig { enabled: false, mac: link.mac, max_frame: 0, raw: false };
        Ok(Self {
            _link: fd,
            mode,
            note,
            config,
            prefixes4: HashSet::new(),
            prefixes6: HashSet::new(),
            config_map: map!("config"),
            counters: map!("counters"),
            xsks: map!("xsks"),
            local4: map!("local4"),
            local6: map!("local6"),
            prefix4: map!("prefix4"),
            prefix6: map!("prefix6"),
            _ebpf: ebpf,
            interface,
        })
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
    pub fn set_config(&mut self, config: XdpConfig) -> Result<(), Error> {
        self.config = config;
        let mut flags = 0;
        for (on, flag) in [
            (config.enabled, FLAG_ENABLED),
            (!self.prefixes4.is_empty(), FLAG_PREFIX4),
            (!self.prefixes6.is_empty(), FLAG_PREFIX6),
            (config.raw, FLAG_RAW),
        ] {
            flags |= if on { flag } else { 0 };
        }
        let raw = RawConfig { mac: config.mac, flags, max_frame: config.max_frame, reserved: 0 };
        let set = self.config_map.set(0, raw, 0);
        self.checked("config", set)
    }

    /// Frames sent to `queue` go to this socket; when the socket is closed its entry goes by itself.
    pub fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Error> {
        let set = self.xsks.set(queue, socket.as_raw_fd(), 0);
        self.checked("xsks", set)
    }

    /// Frames to `prefix`/`len` are the kernel's, or user space's, as `verdict` says; what was said of that prefix before
    /// is forgotten. The longest prefix decides, but an address of the host ([`Verdict::Local`] at full length) is the
    /// host's whatever else is said. There is room for 65,536 prefixes and 16,384 addresses of the host.
    pub fn set_prefix4(&mut self, prefix: Ipv4Addr, len: u8, verdict: Verdict) -> Result<(), Error> {
        let octets = prefix.octets();
        if len >= 32 && verdict == Verdict::Local {
            let set = self.local4.insert(octets, 1, 0);
            self.checked("local4", set)?;
            return self.forget4(prefix, len);
        }
        let set = self.prefix4.insert(&Key::new(len.into(), octets), verdict as u8, 0);
        self.checked("prefix4", set)?;
        if self.prefixes4.insert((prefix, len)) && self.prefixes4.len() == 1 {
            self.set_config(self.config)?;
        }
        if len >= 32 {
            let set = self.local4.remove(&octets);
            self.removed("local4", set)?;
        }
        Ok(())
    }

    /// Nothing is said of `prefix`/`len` any more: shorter prefixes decide. Removing what is not there is no error.
    pub fn remove_prefix4(&mut self, prefix: Ipv4Addr, len: u8) -> Result<(), Error> {
        let octets = prefix.octets();
        if len >= 32 {
            let set = self.local4.remove(&octets);
            self.removed("local4", set)?;
        }
        self.forget4(prefix, len)
    }

    fn forget4(&mut self, prefix: Ipv4Addr, len: u8) -> Result<(), Error> {
        if !self.prefixes4.contains(&(prefix, len)) {
            return Ok(());
        }
        let set = self.prefix4.remove(&Key::new(len.into(), prefix.octets()));
        self.removed("prefix4", set)?;
        self.prefixes4.remove(&(prefix, len));
        if self.prefixes4.is_empty() { self.set_config(self.config) } else { Ok(()) }
    }

    /// As [`Program::set_prefix4`]. Anycast addresses the host answers to belong here too.
    pub fn set_prefix6(&mut self, prefix: Ipv6Addr, len: u8, verdict: Verdict) -> Result<(), Error> {
        let octets = prefix.octets();
        if len >= 128 && verdict == Verdict::Local {
            let set = self.local6.insert(octets, 1, 0);
            self.checked("local6", set)?;
            return self.forget6(prefix, len);
        }
        let set = self.prefix6.insert(&Key::new(len.into(), octets), verdict as u8, 0);
        self.checked("prefix6", set)?;
        if self.prefixes6.insert((prefix, len)) && self.prefixes6.len() == 1 {
            self.set_config(self.config)?;
        }
        if len >= 128 {
            let set = self.local6.remove(&octets);
            self.removed("local6", set)?;
        }
        Ok(())
    }

    /// As [`Program::remove_prefix4`].
    pub fn remove_prefix6(&mut self, prefix: Ipv6Addr, len: u8) -> Result<(), Error> {
        let octets = prefix.octets();
        if len >= 128 {
            let set = self.local6.remove(&octets);
            self.removed("local6", set)?;
        }
        self.forget6(prefix, len)
    }

    fn forget6(&mut self, prefix: Ipv6Addr, len: u8) -> Result<(), Error> {
        if !self.prefixes6.contains(&(prefix, len)) {
            return Ok(());
        }
        let set = self.prefix6.remove(&Key::new(len.into(), prefix.octets()));
        self.removed("prefix6", set)?;
        self.prefixes6.remove(&(prefix, len));
        if self.prefixes6.is_empty() { self.set_config(self.config) } else { Ok(()) }
    }

    /// Frames by what was done with them, since it was attached.
    pub fn counters(&self) -> Result<XdpCounters, Error> {
        let cpus = self.counters.get(&0, 0).map_err(|e| self.map_error("counters", &e))?;
        Ok(XdpCounters::sum(cpus.iter()))
    }

    fn checked(&self, map: &'static str, result: Result<(), MapError>) -> Result<(), Error> {
        result.map_err(|e| self.map_error(map, &e))
    }

    /// What was not there is gone as well.
    fn removed(&self, map: &'static str, result: Result<(), MapError>) -> Result<(), Error> {
        match result {
            Ok(()) | Err(MapError::KeyNotFound | MapError::ElementNotFound) => Ok(()),
            Err(MapError::SyscallError(e)) if e.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            Err(e) => Err(self.map_error(map, &e)),
        }
    }

    fn map_error(&self, map: &'static str, e: &MapError) -> Error {
        Error::Map { interface: self.interface.clone(), map, reason: chain(e) }
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
