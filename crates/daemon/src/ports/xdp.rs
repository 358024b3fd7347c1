//! XDP programs in front of ports: their levels, and the conditions under which they hand over frames.

use crate::relations::Relations;
use bywash_config::{Level, cell_for};
use bywash_port::af_xdp::{Program, Promiscuous, XdpConfig, XdpSending, max_frame, takes_frames};
use bywash_router::xdp::{Target, Targets};
use bywash_wire::ethernet::TAG_LEN;
use std::borrow::Cow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An AF_XDP port's program, and the sockets it will hand frames to once workers serve them.
pub struct Xdp {
    pub program: Program,
    pub interface: String,
    /// Longest frame that a buffer holds, in bytes.
    pub room: usize,
    pub(super) mtu: u32,
    /// Set if VLAN tags are stripped from received frames, so that the program does not see them.
    pub(super) hides_tags: bool,
    /// Reason for which every frame is left to the kernel, from the interface's relations.
    pub(super) left: Option<String>,
    /// Reason for which every frame is left to the kernel where the program does not see tags.
    pub(super) left_without_tags: Option<String>,
    /// Reason for which every frame is left to the kernel while a worker hangs.
    pub(super) halted: Option<String>,
    /// Set once [`Xdp::begin`] has let the program hand over frames.
    pub(super) begun: bool,
    /// Reason for which the program could not be enabled, or disabled, since the last change; tried again every second.
    pub(super) failed: Option<String>,
    /// Reason for which the kernel rejected the forwarding program, if it did.
    pub(super) refused: Option<Arc<str>>,
    /// Set if the kernel forwards both IPv4 and IPv6.
    pub(super) kernel_forwards: bool,
    /// Level asked for: as configured, or by a later request.
    pub(super) level: Level,
    /// Redirect targets of the program, shared by all ports.
    pub(super) targets: Targets,
    /// Set if native programs cannot send to this port, as logged.
    pub(super) refuses_frames: bool,
    pub(super) id: usize,
    pub(super) index: u32,
    /// CPUs that send the frames the driver forwards from this port, or the reason why the configured ones cannot.
    pub(super) spread: Result<Vec<usize>, String>,
    pub(super) sockets: Vec<(u32, OwnedFd)>,
    /// Longest frames that the sockets send ([`AfXdpPort::frame_limit`]), changed with the MTU.
    pub(super) limits: Vec<Arc<AtomicUsize>>,
    /// Set if a socket is in zero-copy mode. Received frames then lie in the UMEM already. The kernel copies such a
    /// frame when it is redirected, into one without the headroom that virtio-net needs, which drops it.
    pub(super) zero_copy: bool,
    /// Keeps the interface in promiscuous mode.
    pub(super) _promiscuous: Option<Promiscuous>,
}

/// Bytes by which a frame may exceed its device's MTU: Ethernet header and one VLAN tag.
const FRAMING: u32 = 18;

impl Xdp {
    /// Returns the kernel's index of the interface.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Returns whether a socket is in zero-copy mode.
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Returns the number of frames that the program has seen, and of those that it handed to sockets; 0 if the
    /// counters cannot be read.
    pub fn seen(&self) -> (u64, u64) {
        let Ok(counters) = self.program.counters() else { return (0, 0) };
        let count = |of: fn(&str) -> bool| counters.iter().filter(|(name, _)| of(name)).map(|(_, n)| n).sum();
        (count(|_| true), count(|name| name == "to_user"))
    }

    /// Starts handing over frames, unless the interface's relations leave them to the kernel, or `halted` is a reason
    /// for that. `level` overrides the configured level.
    pub fn begin(&mut self, relations: &Relations, level: Option<Level>, halted: Option<String>) -> anyhow::Result<()> {
        self.level = level.unwrap_or(self.level);
        self.halted = halted;
        self.relate(relations)?;
        self.begun = true;
        self.enable()
    }

    /// Applies the interface's current relations; returns whether the reason for which they leave it to the kernel has
    /// changed, begun or ended. A switch takes every frame of a port, unless the interface is a member of another.
    pub fn relate(&mut self, relations: &Relations) -> anyhow::Result<bool> {
        let before = self.related();
        (self.left, self.left_without_tags) = match self.program.config().raw {
            true => (relations.member(self.index), None),
            false => {
                let hidden = self.hides_tags.then(|| relations.left_without_tags(self.index)).flatten();
                (relations.left(self.index), hidden)
            }
        };
        let left = self.related();
        match &left {
            _ if left == before => return Ok(false),
            Some(why) => tracing::warn!("{}: left to the kernel: {why}", self.interface),
            None => {
                tracing::info!("{}: no longer left to the kernel: Bywash forwards its packets again", self.interface)
            }
        }
        if self.begun {
            self.enable()?;
        }
        Ok(true)
    }

    /// Returns whether traffic control forwards at level driver, and no native XDP.
    fn by_tc(&self) -> bool {
        self.program.has_tc() && !self.program.is_native()
    }

    /// Returns the reason for which the interface's relations leave every frame to the kernel. Traffic control sees
    /// tags beside the frame.
    fn related(&self) -> Option<String> {
        let sees = match self.wanted().0 {
            Level::Driver => self.by_tc(),
            Level::Kernel => true,
            Level::User | Level::Auto => false,
        };
        self.left.as_ref().or(self.left_without_tags.as_ref().filter(|_| !sees)).cloned()
    }

    /// Returns whether packets of interfaces above this port can be forwarded.
    pub fn forwards_uppers(&self) -> bool {
        self.refused.is_none() && !self.program.config().raw
    }

    /// Returns the longest frame that user space takes from a VLAN (with a tag) or a macvlan (without) with this MTU.
    pub fn longest(&self, mtu: u32, tagged: bool) -> u32 {
        (max_frame(mtu, self.room) + if tagged { TAG_LEN } else { 0 }).min(self.room) as u32
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
    fn left(&self) -> Option<String> {
        self.halted.clone().or_else(|| self.related())
    }

    /// Enables the program if that has failed.
    pub fn retry(&mut self) {
        if self.failed.is_some() && self.enable().is_ok() {
            tracing::info!(
                "{}: level {} in effect, after earlier failures: {}",
                self.interface,
                self.level().name(),
                self.why()
            );
        }
    }

    /// Registers the sockets and enables the program, unless level or relations leave every frame to the kernel. An
    /// error stays visible as the reason for the level until it succeeds.
    fn enable(&mut self) -> anyhow::Result<()> {
        self.failed = None;
        let done = self.try_enable();
        self.failed = done.as_ref().err().map(|why| format!("{why:#}"));
        done
    }

    fn try_enable(&mut self) -> anyhow::Result<()> {
        for (queue, socket) in self.sockets.drain(..) {
            self.program.set_socket(queue, std::os::fd::AsFd::as_fd(&socket))?;
        }
        let config = XdpConfig {
            enabled: self.left().is_none() && self.level != Level::Kernel,
            forward: matches!(self.level(), Level::Driver),
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
        let left = self.left().or_else(|| self.failed.clone());
        left.map_or_else(|| self.wanted(), |why| (Level::Kernel, why.into()))
    }

    /// Returns the level, and the reason for it, at which frames are forwarded unless all are left to the kernel.
    fn wanted(&self) -> (Level, Cow<'static, str>) {
        let rules = self.program.config().rules;
        let (level, why) = match (self.level, &self.refused) {
            (Level::Auto | Level::Driver, _) if rules && self.program.refuses_rules() => {
                (Level::User, "the kernel refuses the program for policy routing rules")
            }
            (Level::Auto | Level::Driver, _) if rules && !self.program.config().fib_lookup => {
                (Level::User, "the driver does not support policy routing for a bond, or with MTUs of routes")
            }
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
            (Level::Kernel, _) if self.program.config().raw => {
                (Level::Kernel, "as requested: the kernel gets its frames, and nothing is forwarded on the port")
            }
            (level @ (Level::Driver | Level::User | Level::Kernel), _) => (level, "as requested"),
            _ if self.program.is_native() => (Level::Driver, "auto: native XDP, which needs no skb"),
            _ if self.program.has_tc() && (self.kernel_forwards || self.program.config().bridged) => {
                (Level::Driver, "auto: traffic control, which forwards the existing skb")
            }
            _ if self.program.has_tc() => (
                Level::User,
                "auto: the kernel does not forward (see sysctl), and would get what traffic control leaves to it",
            ),
            // With an skb already made and the frame to be copied, forwarding in the driver saves next to nothing.
            _ => (Level::User, "auto: generic XDP, where each frame already has an skb"),
        };
        match rules {
            true => (level, format!("{why}; policy routing rules or a VRF apply").into()),
            false => (level, why.into()),
        }
    }

    /// Sets the level at which received frames are forwarded. Frames already in the sockets are still forwarded:
    /// workers serve the sockets at every level. On error the level asked for stays unchanged.
    pub fn set_level(&mut self, level: Level) -> anyhow::Result<()> {
        let before = std::mem::replace(&mut self.level, level);
        if !self.begun {
            return Ok(());
        }
        self.enable().inspect_err(|_| {
            self.level = before;
            // An error of the previous level is retried.
            let _ = self.enable();
        })
    }

    /// Sets whether the kernel forwards, on which level `auto` depends.
    pub fn set_kernel_forwards(&mut self, on: bool) -> anyhow::Result<()> {
        let before = self.level();
        if std::mem::replace(&mut self.kernel_forwards, on) == on || self.level() == before {
            return Ok(());
        }
        tracing::info!("{}: level {} in effect: {}", self.interface, self.level().name(), self.why());
        if self.begun { self.enable() } else { Ok(()) }
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
            true => (true, "its driver accepts redirected frames, also from native XDP"),
            false => (
                false,
                "native XDP cannot redirect frames to it: its driver does not accept them (a veth accepts them only \
                 while its peer has an XDP program or GRO on)",
            ),
        }
    }

    /// Returns the longest frame that can be redirected to the port (the kernel checks it in dev_map_enqueue), or 0 if
    /// none can be.
    fn longest_sent(&self, target: Target) -> u32 {
        if target.ifindex != 0 && target.takes_frames { self.mtu + FRAMING } else { 0 }
    }

    /// Queries whether the program can send to this port. Returns `true` if the answer has changed.
    pub fn query_target(&self) -> bool {
        let ifindex = if self.related().is_some() { 0 } else { self.index };
        let target = Target { ifindex, takes_frames: takes_frames(self.index).unwrap_or(true) };
        self.program.set_target(self.longest_sent(target));
        self.targets.set(self.id, target)
    }

    /// Logs when native programs cannot send to this port, and when they can again. `native`: whether any port forwards
    /// by such a program.
    pub fn log_target(&mut self, native: bool) {
        let takes = self.targets.get(self.id as u16).takes_frames;
        let refuses = native && !takes && self.refused.is_none() && self.left().is_none();
        if std::mem::replace(&mut self.refuses_frames, refuses) == refuses {
            return;
        }
        let interface = &self.interface;
        match refuses {
            true => tracing::warn!(
                "{interface}: user space must send its frames, because its driver does not accept frames redirected by \
                 native XDP; for a veth, run `ethtool -K PEER gro on` for its peer"
            ),
            false if native => tracing::info!("{interface}: native XDP can now redirect frames to it"),
            false => {}
        }
    }

    /// Returns whether programs may send to this port as last queried, and frames without an skb.
    pub fn sending(&self) -> XdpSending {
        let Target { ifindex, takes_frames } = self.targets.get(self.id as u16);
        XdpSending { target: ifindex != 0, takes_frames, ..XdpSending::default() }
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

    /// Applies the kernel's current policies, which `update` enters in the program's configuration.
    pub fn update_config(&mut self, update: impl FnOnce(&mut XdpConfig)) -> anyhow::Result<()> {
        let mut config = self.program.config();
        update(&mut config);
        let before = self.program.config();
        if config == before {
            return Ok(());
        }
        self.program.set_config(config)?;
        // Level `auto` depends on it.
        if self.begun && config.bridged != before.bridged { self.enable() } else { Ok(()) }
    }

    /// Returns whether the program can forward frames between members of the port's bridge as they came: it sees their
    /// tags, and their checksums stay as they are.
    pub fn bridges(&self) -> bool {
        let whole = self.program.is_native() && !self.hides_tags && !self.program.config().partial;
        self.level() == Level::Driver && (self.by_tc() || whole)
    }

    /// Returns whether all packets that come through a tunnel to the port, or are to enter one, are left to the kernel:
    /// traffic control hands none over to workers.
    pub fn leaves_tunnels(&self) -> bool {
        self.level() == Level::Kernel || (self.level() == Level::Driver && self.by_tc())
    }

    /// Returns whether the program can hand over frames to other stations that the port's bridge forwards: it sees
    /// their tags, and not again those that are returned to the kernel.
    pub fn hands_over_bridged(&self) -> bool {
        self.level() != Level::Kernel && self.program.is_native() && !self.hides_tags
    }

    /// Updates the program after the interface's MAC address or MTU has changed.
    pub fn update(&mut self, mac: [u8; 6], mtu: u32) -> anyhow::Result<()> {
        let most = (self.room as u32).saturating_sub(FRAMING);
        if mtu > most && mtu != self.mtu {
            let rest = if self.program.config().raw { "dropped" } else { "left to the kernel" };
            let remedy = match cell_for(mtu as usize) {
                Some(cell) => format!("set `cell = {cell}` in [pool] and restart, or lower the MTU"),
                None => "lower the MTU".into(),
            };
            tracing::warn!(
                "{name}: the MTU is {mtu} now, but a buffer holds packets of {most} bytes: longer ones are {rest}; \
                 {remedy}: `ip link set {name} mtu {most}`",
                name = self.interface
            );
        }
        let max_frame = max_frame(mtu, self.room);
        self.limits.iter().for_each(|limit| limit.store(max_frame, Ordering::Relaxed));
        let max_frame = max_frame as u32;
        self.mtu = mtu;
        self.program.set_target(self.longest_sent(self.targets.get(self.id as u16)));
        Ok(self.program.set_config(XdpConfig { mac, max_frame, ..self.program.config() })?)
    }
}
