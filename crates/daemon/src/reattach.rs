//! Ports that are opened again: their interface is recreated (a driver that is loaded again, a veth that is deleted and
//! created), or their zero-copy sockets no longer work.
//!
//! Until the port is open, packets routed to its interface are left to the kernel, even if the port cannot be opened.

use crate::liveness::{self, Fault, Life, Remedy, Sample};
use crate::ports::{Xdp, places};
use crate::runtime::{LAST_FRAMES, Runtime};
use crate::slots::PortSlot;
use crate::workers::ANSWER;
use anyhow::{Context as _, bail, ensure};
use bywash_config::{PortConfig, PortKind};
use bywash_engine::{Change, PortId};
use bywash_port::af_xdp::ZeroCopy;
use bywash_port::{NullPort, PortCounters, PortState};
use bywash_router::control::PortBack;
use bywash_sync::Counter;
use std::time::Instant;

/// Returns the frames that an interface has received, or missed for want of buffers; 0 if the kernel does not report
/// them.
fn arrived(interface: &str) -> u64 {
    let read = |of: &str| std::fs::read_to_string(format!("/sys/class/net/{interface}/statistics/{of}"));
    let counts = ["rx_packets", "rx_missed_errors", "rx_fifo_errors", "rx_over_errors"].map(read);
    counts.iter().flatten().filter_map(|text| text.trim().parse::<u64>().ok()).sum()
}

impl Runtime {
    /// Opens a port on the interface of its name, which has appeared.
    pub fn reattach(&mut self, back: &PortBack) {
        let at = usize::from(back.id.0);
        let Some(now) = self.relations.link(back.index).map(|link| (link.index, link.up, link.rx_queues)) else {
            return;
        };
        let (config, queues, before) = match self.shared.ports().get_mut(&at) {
            Some(slot) => (slot.config.clone(), slot.queues.clone(), slot.tried.replace(now)),
            None => return,
        };
        // Do not retry because an interface went down: that precedes its deletion.
        if before.is_some_and(|before| before == now || (!now.1 && before.0 == now.0)) {
            return;
        }
        let name = &config.name;
        match self.try_reattach(back, &config, &queues, None) {
            Ok(()) => {
                let reset = |slot: &mut PortSlot| (slot.tried, slot.life) = (None, Life::default());
                self.shared.ports().get_mut(&at).into_iter().for_each(reset);
                tracing::info!("port `{name}` is back");
            }
            Err(e) => tracing::error!(
                "port `{name}` stays down: {e:#}; the kernel forwards its packets until the interface is set up or \
                 recreated, when Bywash tries again"
            ),
        }
    }

    /// Looks for zero-copy ports that no longer receive or send, and opens them again.
    pub fn check_liveness(&mut self) {
        let elapsed = self.looked.elapsed();
        if elapsed < liveness::EVERY {
            return;
        }
        self.looked = Instant::now();
        let Self { shared, relations, .. } = self;
        let mut faults = vec![];
        for (at, slot) in shared.ports().iter_mut() {
            let Some(xdp) = slot.xdp.as_ref().filter(|xdp| slot.life.watches(xdp.zero_copy())) else { continue };
            let sum = |of: fn(&PortCounters) -> &Counter| slot.counters.iter().map(|counters| of(counters).get()).sum();
            let turns = |(_, worker): &(u32, usize)| shared.workers[*worker].handle.counters().turns.get();
            let (seen, handed) = xdp.seen();
            let sample = Sample {
                arrived: arrived(&xdp.interface),
                seen,
                handed,
                received: sum(|counters| &counters.rx_packets),
                no_buffer: sum(|counters| &counters.rx_no_buffer),
                sent: sum(|counters| &counters.tx_done),
                waiting: sum(|counters| &counters.tx_waiting),
                turns: slot.queues.iter().map(turns).collect(),
                up: relations.link(xdp.index()).is_some_and(|link| link.up && link.carrier),
            };
            faults.extend(slot.life.add(sample, elapsed).map(|fault| (*at, fault)));
        }
        faults.into_iter().for_each(|(at, fault)| self.repair(at, fault));
    }

    /// Opens a port with a fault again, or leaves it to the kernel.
    fn repair(&mut self, at: usize, fault: Fault) {
        let mut ports = self.shared.ports();
        let Some(slot) = ports.get_mut(&at) else { return };
        let Some(mut xdp) = slot.take_xdp() else { return };
        let (name, mut config, queues) = (slot.config.name.clone(), slot.config.clone(), slot.queues.clone());
        let may_copy = config.af_xdp.as_ref().is_none_or(|af_xdp| af_xdp.zero_copy == ZeroCopy::Auto);
        let remedy = slot.life.remedy(fault, may_copy);
        // Counters of ends that are closed with frames to be sent.
        slot.counters.iter().for_each(|counters| counters.tx_waiting.set(0));
        let link = self.relations.link(xdp.index()).map(|link| (link.index, link.up, link.rx_queues));
        slot.tried = link;
        drop(ports);
        let back = PortBack { id: PortId(at as u16), index: xdp.index() };
        let mode = if xdp.zero_copy() { "zero-copy" } else { "copy" };
        let begins = match remedy {
            Remedy::Reopen => "opened again",
            Remedy::Copy => "reopening did not help: now opened in copy mode",
            Remedy::Trust => "so zero-copy is not the cause: opened again as configured, and no longer watched",
            Remedy::Leave => "the kernel forwards its packets until the interface is set up or recreated",
        };
        tracing::error!("port `{name}` in {mode} mode: {fault}; {begins}");
        if remedy == Remedy::Copy {
            config.af_xdp.get_or_insert_default().zero_copy = ZeroCopy::Off;
        }
        // Frames in the rings are still forwarded; from here on new frames go to the kernel.
        xdp.disable();
        std::thread::sleep(LAST_FRAMES);
        self.close_again(back.id);
        if remedy == Remedy::Leave {
            return;
        }
        match self.try_reattach(&back, &config, &queues, Some(xdp)) {
            Ok(()) => self.shared.ports().get_mut(&at).into_iter().for_each(|slot| slot.tried = None),
            Err(e) => tracing::error!("port `{name}` stays down: {e:#}; the kernel forwards its packets"),
        }
    }

    /// `before`: its queues until now, each with its worker. `xdp`: its program, if it stays.
    fn try_reattach(
        &mut self,
        back: &PortBack,
        config: &PortConfig,
        before: &[(u32, usize)],
        xdp: Option<Xdp>,
    ) -> anyhow::Result<()> {
        self.alive();
        let (id, at) = (back.id, usize::from(back.id.0));
        if config.kind != PortKind::AfXdp {
            self.still_works(id)?;
            self.mode.set_open(id, true);
            return Ok(());
        }
        let mut journal = self.shared.journal()?;
        // Each queue goes to the worker that polled it before, a new one as at the start.
        let mut queues = places(config, at, self.shared.workers.len())?;
        for (queue, worker) in &mut queues {
            *worker = before.iter().find(|(q, _)| q == queue).map_or(*worker, |(_, worker)| *worker);
        }
        let of_queue = |queue| self.shared.buffers(&queues, queue);
        let mut opened = match xdp {
            Some(xdp) => self.opener.reopen(config, xdp, &mut journal, &of_queue)?,
            None => self.opener.open((at, config), &mut journal, &of_queue)?,
        };
        let mut xdp = opened.xdp.take().context("it has no program")?;
        ensure!(opened.index == back.index, "its interface has changed again");
        let counters: Vec<_> = opened.counters().collect();
        let given = self.give_to_workers(id, &mut opened, &queues, None);
        let begun = given.and_then(|()| {
            queues.iter().for_each(|(queue, worker)| self.opener.serve(at, *queue, *worker));
            self.mode.set_open(id, true);
            // A worker answers after a turn, in which the port filled its fill ring.
            self.shared.workers.iter().for_each(|worker| drop(worker.handle.report(ANSWER)));
            let mut ports = self.shared.ports();
            let slot = ports.get_mut(&at).context("it is no longer configured")?;
            // Held until the port is back: a level requested meanwhile is either found here or finds the program.
            // The watch does not find the program before either, which may have been halted until then.
            xdp.begin(&self.relations, slot.level, self.shared.halted_for(&queues))?;
            slot.add_counters(counters);
            (slot.queues, slot.xdp) = (queues, Some(xdp));
            Ok(())
        });
        if begun.is_err() {
            self.close_again(id);
        }
        begun
    }

    /// Closes the ends of a port that could not be brought back.
    fn close_again(&mut self, id: PortId) {
        self.mode.set_open(id, false);
        for worker in &self.shared.workers {
            worker.handle.change(vec![Change::Replace(id, Box::new(NullPort::new()))], ANSWER);
        }
    }

    /// Checks that the ends of a port without an AF_XDP socket still work, such as a twin that was in another
    /// namespace. Errors if one is down or a worker does not answer.
    fn still_works(&self, id: PortId) -> anyhow::Result<()> {
        for worker in &self.shared.workers {
            let report =
                worker.handle.report(ANSWER).with_context(|| format!("worker {} is busy", worker.handle.id()))?;
            let down = report.ports.into_iter().filter(|end| end.id == id).find_map(|end| match end.state {
                PortState::Down(why) => Some(why),
                _ => None,
            });
            if let Some(why) = down {
                bail!("{why}, and only an af_xdp port can be opened again: restart bywash");
            }
        }
        Ok(())
    }
}
