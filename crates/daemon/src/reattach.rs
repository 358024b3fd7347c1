//! Ports whose interface is recreated: a driver that is loaded again, a veth that is deleted and created.
//!
//! Until the port is open on the new interface, packets routed to that interface are left to the kernel; so they stay
//! if the port cannot be opened.

use crate::journal;
use crate::ports::places;
use crate::runtime::Runtime;
use crate::workers::ANSWER;
use anyhow::{Context as _, bail, ensure};
use bywash_config::{PortConfig, PortKind};
use bywash_engine::{Change, PortId};
use bywash_port::af_xdp::Journal;
use bywash_port::{NullPort, PortState};
use bywash_router::control::PortBack;

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
        // An interface that only went down is no reason to retry: that precedes its deletion.
        if before.is_some_and(|before| before == now || (!now.1 && before.0 == now.0)) {
            return;
        }
        let name = &config.name;
        match self.try_reattach(back, &config, &queues) {
            Ok(()) => {
                self.shared.ports().get_mut(&at).into_iter().for_each(|slot| slot.tried = None);
                tracing::info!("port `{name}` is back");
            }
            Err(e) => tracing::error!(
                "port `{name}` stays down: {e:#}; the kernel forwards for it; retried when it is set up or recreated"
            ),
        }
    }

    /// `before`: its queues until now, each with its worker.
    fn try_reattach(&mut self, back: &PortBack, config: &PortConfig, before: &[(u32, usize)]) -> anyhow::Result<()> {
        let (id, at) = (back.id, usize::from(back.id.0));
        if config.kind != PortKind::AfXdp {
            self.still_works(id)?;
            self.mode.set_open(id, true);
            return Ok(());
        }
        let mut journal = Journal::open(journal::settings())?;
        // Each queue goes to the worker that polled it before, a new one as at the start.
        let mut queues = places(config, at, self.shared.workers.len())?;
        for (queue, worker) in &mut queues {
            *worker = before.iter().find(|(q, _)| q == queue).map_or(*worker, |(_, worker)| *worker);
        }
        let of_queue = |queue| self.shared.buffers(&queues, queue);
        let mut opened = self.opener.open((at, config), &mut journal, &of_queue)?;
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
            xdp.begin(&self.relations, slot.level)?;
            slot.counters.extend(counters);
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
