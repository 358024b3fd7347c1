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
        let before = self.tried.insert(at, now);
        // An interface that only went down is no reason to retry: that precedes its deletion.
        if before.is_some_and(|before| before == now || (!now.1 && before.0 == now.0)) {
            return;
        }
        let name = self.shared.live().name(at).to_owned();
        match self.try_reattach(back) {
            Ok(()) => {
                self.tried.remove(&at);
                tracing::info!("port `{name}` is back");
            }
            Err(e) => tracing::error!(
                "port `{name}` stays down: {e:#}; the kernel forwards for it; retried when it is set up or recreated"
            ),
        }
    }

    fn try_reattach(&mut self, back: &PortBack) -> anyhow::Result<()> {
        let (id, at) = (back.id, usize::from(back.id.0));
        let live = self.shared.live();
        let config = live.port(at).context("it is no longer configured")?;
        if config.kind != PortKind::AfXdp {
            self.still_works(id)?;
            self.mode.set_open(id, true);
            return Ok(());
        }
        let mut journal = Journal::open(journal::settings())?;
        let mut opened = self.opener.open((at, config), &mut journal)?;
        let mut xdp = opened.xdp.take().context("it has no program")?;
        ensure!(opened.index == back.index, "its interface has changed again");
        let counters = opened.ends.iter().map(|end| (id, end.queue, end.counters.clone()));
        self.shared.counters.lock().expect("counters").extend(counters);
        let places = self.places_again(at, config)?;
        let given = self.give_to_workers(id, &mut opened, &places, true);
        let begun = given.and_then(|()| {
            places.iter().for_each(|(queue, worker)| self.opener.serve(at, *queue, *worker));
            self.mode.set_open(id, true);
            // A worker answers after a turn, in which the port filled its fill ring.
            self.shared.workers.iter().for_each(|worker| drop(worker.handle.report(ANSWER)));
            // Held until the port is back, so that a level requested meanwhile is either found here or finds the port.
            let levels = self.shared.levels.lock().expect("levels");
            xdp.begin(&self.relations, levels[at])?;
            self.shared.xdp.lock().expect("programs")[at] = Some(xdp);
            Ok(())
        });
        if begun.is_err() {
            self.close_again(id);
        }
        begun
    }

    /// Assigns queues to workers: each queue to the worker that polled it before, a new one as at the start.
    fn places_again(&self, at: usize, config: &PortConfig) -> anyhow::Result<Vec<(u32, usize)>> {
        let workers = &self.shared.workers;
        let mut places = places(config, at, workers.len())?;
        for (queue, worker) in &mut places {
            let before = workers.iter().position(|w| w.polls().contains(&(at, *queue as usize)));
            *worker = before.unwrap_or(*worker);
        }
        Ok(places)
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
