//! The control loop: applies the kernel's changes, runs the mode's control half, and keeps XDP programs and ports in
//! step.

use crate::instance;
use crate::notify::Notifier;
use crate::ports::Xdp;
use crate::runtime::{LAST_FRAMES, Runtime};
use crate::slots::programs;
use crate::successor::Successor;
use crate::takeover;
use anyhow::bail;
use bywash_config::{Level, Mode};
use bywash_engine::WorkerExit;
use bywash_exceptions::Kind;
use bywash_fib::model::Change;
use bywash_frame::Buffers;
use bywash_router::control::Applied;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

/// Interval between calls of the mode's control half while workers have requests (`TICK`), and longest interval
/// otherwise (`IDLE_TICK`). Each call costs CPU time of whatever runs on that CPU, such as the hosts' TCP.
const TICK: Duration = Duration::from_millis(2);
const IDLE_TICK: Duration = Duration::from_millis(16);
/// Interval between samples of the pools' fill level: their median is over the last 100 s.
const SAMPLE: Duration = Duration::from_millis(100);
/// Interval at which free memory, of withdrawn routes or long answers, is returned to the kernel.
const TEND: Duration = Duration::from_secs(2);
/// Interval between checks whether frames can be redirected to the ports' interfaces.
const ASK: Duration = Duration::from_secs(1);
/// Longest wait at shutdown for the kernel to take the rings of zero-copy sockets from drivers.
const LET_GO: Duration = Duration::from_secs(1);
/// Maximum number of changes applied at once: enough for one publication to serve many, few enough to stay responsive.
const AT_ONCE: usize = 65_536;

/// Reason for the end of [`Runtime::follow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A signal stopped it.
    Stopped,
    /// A new process is ready to take over the ports.
    TakenOver,
}

impl Runtime {
    /// Logs which ports cannot receive, because their interfaces are down or have no carrier.
    pub fn name_idle_ports(&self) {
        for view in self.shared.view.ports() {
            match (self.idle(view.index), self.relations.link(view.index)) {
                (Some(why), Some(link)) if !link.up => tracing::warn!("{why}"),
                (Some(why), _) => tracing::info!("{why}"),
                (None, _) => {}
            }
        }
    }

    /// Returns why an interface cannot receive, if it is down or has no carrier.
    fn idle(&self, index: u32) -> Option<String> {
        let link = self.relations.link(index)?;
        let name = &link.name;
        match (link.up, link.carrier) {
            (false, _) => {
                Some(format!("{name}: the interface is down: nothing is forwarded on it until `ip link set {name} up`"))
            }
            (true, false) => Some(format!("{name}: no carrier: nothing is forwarded on it until there is one")),
            (true, true) => None,
        }
    }

    /// Returns the sysctls to set for a router that forwards nothing because the kernel forwards neither IPv4 nor IPv6;
    /// none if it forwards any.
    pub fn kernel_switches(&self) -> Vec<&'static str> {
        let config = self.shared.config();
        if config.mode != Mode::Router || config.kernel.ignores(Kind::Sysctls) {
            return vec![];
        }
        let read = |path: &str| std::fs::read_to_string(format!("/proc/sys/net/{path}")).ok();
        let off = |path: &str| read(path).is_none_or(|value| value.trim() == "0");
        let (views, above) = (self.shared.view.ports(), self.shared.above());
        // Frames between members of a bridge need no such switch.
        if views.iter().any(|view| view.number != view.id) {
            return vec![];
        }
        let names = views.iter().filter_map(|view| view.dev.as_deref());
        let names: Vec<&str> = names.chain(above.iter().map(|(_, above)| above.name.as_str())).collect();
        // Ports without an interface have no switch of their own.
        let any = names.iter().any(|name| !off(&format!("ipv4/conf/{name}/forwarding")));
        if !off("ipv6/conf/all/forwarding") || any || (names.is_empty() && !off("ipv4/ip_forward")) {
            return vec![];
        }
        let six = read("ipv6/conf/all/forwarding").map(|_| "net.ipv6.conf.all.forwarding=1");
        std::iter::once("net.ipv4.ip_forward=1").chain(six).collect()
    }

    /// Returns the instance that the API serves.
    pub fn instance(&self) -> Arc<instance::Running> {
        Arc::new(instance::Running(self.shared.clone()))
    }

    /// Runs until `stop` is set, a new process takes over, or a worker ends, which is an error. Applies the kernel's
    /// changes and serves requests meanwhile. `reload` and `upgrade` are set by signals.
    pub fn follow(&mut self, (stop, reload, upgrade): (&AtomicBool, &AtomicBool, &AtomicBool)) -> anyhow::Result<End> {
        let mut tick = TICK;
        while !stop.load(Ordering::Acquire) {
            self.alive();
            let mut busy = self.apply_changes(tick)?;
            if let Some(successor) = &self.successor {
                match successor.wants_all(&self.shared) {
                    Ok(true) => return Ok(End::TakenOver),
                    Ok(false) => {}
                    Err(e) => {
                        tracing::warn!("pid {} does not take over: {e:#}; this process continues", successor.pid);
                        self.successor = None;
                    }
                }
            }
            busy |= self.mode.tick(&self.shared, &self.mirror);
            tick = if busy { TICK } else { (2 * tick).min(IDLE_TICK) };
            self.sample();
            self.check_liveness();
            self.trim_heap(busy);
            self.refresh_targets();
            while let Ok(ask) = self.asked_for.try_recv() {
                self.handle(ask);
            }
            if reload.swap(false, Ordering::AcqRel) {
                self.reload_by_signal();
            }
            if upgrade.swap(false, Ordering::AcqRel) {
                takeover::upgrade();
            }
            if let Some(worker) = self.shared.workers.iter().find(|w| w.handle.finished()) {
                let WorkerExit::Panicked(why) = worker.handle.stop() else { bail!("a worker ended unexpectedly") };
                bail!("worker {} failed ({why}): this is a bug; the kernel forwards from now on", worker.handle.id());
            }
        }
        Ok(End::Stopped)
    }

    /// Samples how full the pools are, and reclaims frames of closed zero-copy sockets.
    fn sample(&mut self) {
        if self.sampled.elapsed() >= SAMPLE {
            self.sampled = Instant::now();
            self.shared.pools.sample_occupancy();
            self.collect_pools();
            if self.shared.umem.held() > 0 {
                self.shared.umem.reclaim(&mut Buffers::attach(&self.shared.pools, 0));
            }
        }
    }

    /// Returns free memory to the kernel when there is nothing else to do.
    fn trim_heap(&mut self, busy: bool) {
        if !busy && self.tended.elapsed() >= TEND {
            self.heap.trim();
            self.tended = Instant::now();
        }
    }

    /// Applies the kernel's changes once there are some, for which it waits. Returns whether there were any. Errors if
    /// the kernel can no longer be followed.
    pub fn apply_changes(&mut self, wait: Duration) -> anyhow::Result<bool> {
        let mut changes = match self.mirror.changes().recv_timeout(wait) {
            Ok(changes) => changes,
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => {
                bail!("netlink can no longer be followed, nor routes updated; the kernel forwards from now on")
            }
        };
        while changes.len() < AT_ONCE
            && let Ok(more) = self.mirror.changes().try_recv()
        {
            changes.extend(more);
        }
        let applied = self.mode.apply(&changes);
        self.follow_ports(&changes, &applied);
        Ok(true)
    }

    /// Follows the kernel until `done`.
    pub fn follow_until(&mut self, done: impl Fn() -> bool) -> anyhow::Result<()> {
        while !done() {
            self.apply_changes(TICK)?;
            self.mode.tick(&self.shared, &self.mirror);
        }
        Ok(())
    }

    /// Updates the ports' programs according to the changes.
    pub fn follow_ports(&mut self, changes: &[Change], applied: &Applied) {
        let related = self.relations.note(changes);
        self.carry_out(applied);
        if related {
            self.relate();
        }
    }

    /// Updates the XDP programs after changes of their interfaces, and opens ports whose interface is back.
    fn carry_out(&mut self, applied: &Applied) {
        let views = if applied.ports_changed.is_empty() { vec![] } else { self.shared.view.ports() };
        let mut ports = self.shared.ports();
        for id in &applied.ports_gone {
            if let Some(slot) = ports.get_mut(&id.0.into())
                && let Some(xdp) = slot.take_xdp()
            {
                xdp.forget();
                slot.link_up = None;
                tracing::warn!("port `{}`: its interface is gone; waiting for it", slot.config.name);
            }
        }
        for view in views.iter().filter(|p| applied.ports_changed.contains(&p.id)) {
            if let Some(slot) = ports.get_mut(&view.id.0.into()) {
                let idle = self.idle(view.index);
                match (slot.link_up.replace(idle.is_none()), idle) {
                    (Some(true), Some(why)) => tracing::info!("{why}"),
                    (Some(false), None) => tracing::info!("port `{}`: its link is up", slot.config.name),
                    _ => {}
                }
            }
            if let Some(xdp) = ports.get_mut(&view.id.0.into()).and_then(|slot| slot.xdp.as_mut())
                && let (Some(mac), Some(mtu)) = (view.mac, view.mtu)
                && let Err(e) = xdp.update(mac, mtu)
            {
                tracing::error!("{e}");
            }
        }
        drop(ports);
        applied.ports_back.iter().for_each(|back| self.reattach(back));
    }

    /// Checks whether frames can be redirected to the ports' interfaces: with a veth, that depends on its peer. Enables
    /// programs that could not be enabled.
    fn refresh_targets(&mut self) {
        if self.asked.elapsed() < ASK {
            return;
        }
        self.query_targets();
    }

    pub fn query_targets(&mut self) {
        self.asked = Instant::now();
        let mut ports = self.shared.ports();
        // `count` asks every program; `any` would stop at the first change.
        programs(&mut ports).for_each(Xdp::retry);
        let news = programs(&mut ports).filter(|xdp| xdp.query_target()).count() > 0;
        let native = programs(&mut ports).any(|xdp| xdp.program.is_native() && xdp.level() == Level::Driver);
        programs(&mut ports).for_each(|xdp| xdp.log_target(native));
        drop(ports);
        if news {
            self.mode.targets_changed();
        }
    }

    /// Takes everything apart for the process that takes over, and notifies it ([`crate::takeover`]). The caller
    /// drops the returned connection when this process has nothing left to do. Errors if the process has ended.
    pub fn hand_over(mut self) -> anyhow::Result<Option<Successor>> {
        self.watch = None;
        let successor = self.successor.take();
        // Close the gates: this process no longer follows changes of the kernel's policies.
        self.opener.driver.iter().for_each(|driver| driver.program.close());
        programs(&mut self.shared.ports()).for_each(Xdp::hand_over);
        crate::step::reached("handover-closed");
        // The successor has the queues, so there is nothing to wait for.
        let mut told = Ok(());
        let notifier = self.take_apart(|| told = successor.iter().try_for_each(Successor::gone), Duration::ZERO);
        told?;
        crate::step::reached("handover-gone");
        successor.iter().for_each(|successor| notifier.followed_by(successor.pid));
        Ok(successor)
    }

    /// Takes everything apart, the XDP programs first.
    pub fn stop(mut self) {
        self.watch = None;
        programs(&mut self.shared.ports()).for_each(Xdp::disable);
        crate::step::reached("stop-disabled");
        self.take_apart(|| (), LET_GO);
    }

    /// Ends the workers once the frames they hold are forwarded, then everything else. `closed` is called when the
    /// sockets are closed. `settle` is the longest wait for the kernel to release them. Returns the notifier.
    fn take_apart(self, closed: impl FnOnce(), settle: Duration) -> Notifier {
        std::thread::sleep(LAST_FRAMES);
        for worker in &self.shared.workers {
            if let WorkerExit::Panicked(why) = worker.handle.stop() {
                tracing::error!("worker {} had failed: {why}", worker.handle.id());
            }
        }
        crate::step::reached("stop-workers");
        self.shared.ports().values_mut().for_each(|slot| slot.xdp = None);
        closed();
        let Self { shared, mode, notifier, .. } = self;
        mode.stop();
        let held = shared.umem.settle(&mut Buffers::attach(&shared.pools, 0), settle);
        let (missing, wrong) = shared.pools.verify();
        let cells = shared.pools.arena().cells();
        if missing.len() == held && wrong.is_empty() {
            let devices = if held > 0 { format!(" except {held} last held by devices") } else { String::new() };
            tracing::info!("audit: all {cells} cells are back in their pools{devices}");
        } else {
            tracing::error!("audit: {} of {cells} cells are missing, {} misplaced: a bug", missing.len(), wrong.len());
        }
        notifier
    }
}
