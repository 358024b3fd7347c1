//! Reload: applies a changed configuration while packets flow, either all of it or nothing.
//!
//! All steps are checked first. Steps that can fail are done next, new ports before all others, each with a record of
//! how to undo it; steps that cannot fail come last. Ports that do not differ are not touched: their sockets, rings and
//! workers continue.

use crate::diff::{Step, diff};
use crate::pools::Changed;
use crate::ports::places;
use crate::runtime::{LAST_FRAMES, Runtime};
use crate::shared::{Ask, Reading, Shared};
use crate::slots::{self, Opening, PortSlot};
use crate::successor::Successor;
use crate::workers;
use crate::workers::ANSWER;
use anyhow::{Context as _, bail};
use bywash_config::{Config, Host, Level, Mode, PortConfig, PortKind};
use bywash_engine::{Change, PortId};
use bywash_port::af_xdp::{Below, LinkInfo};
use bywash_sync::lock;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

/// Action that undoes a step.
enum Undo {
    /// Remove the port that was added.
    Remove(usize),
    /// Open the port again that was removed.
    Open(usize, Box<PortConfig>, Option<Level>),
    /// Configure the port's previous level, and request the one that was requested.
    Level(usize, Level, Option<Level>),
    /// Let workers allocate from the previous pool.
    Pool(Changed),
}

impl Undo {
    fn pool(self) -> Option<Changed> {
        if let Self::Pool(changed) = self { Some(changed) } else { None }
    }
}

impl Shared {
    /// Reads the configuration, and returns it with the place of this reading among others and the steps from the
    /// running one.
    fn read(&self) -> Result<(Config, Reading, Vec<Step>), String> {
        if !self.source.file {
            return Err(
                "no configuration file to read again: the instance was started without --config; restart bywash with \
                 other arguments, or with --config FILE"
                    .into(),
            );
        }
        let begun = 1 + self.readings.fetch_add(1, Ordering::SeqCst);
        let gone = |slot: &PortSlot| slot.config.interface.clone().filter(|_| slot.is_gone());
        let awaited = self.ports().values().filter_map(gone).collect();
        let new = (self.source.read)(awaited).map_err(|wrong| {
            let text = wrong.to_string();
            // Errors without a place in the file take one line each, the others show the place.
            let text = text.trim_end().trim_start_matches("bywash: ");
            let between = if text.contains('\n') { '\n' } else { ' ' };
            format!("nothing changed:{between}{text}")
        })?;
        let reading = Reading { begun, ended: self.readings.load(Ordering::SeqCst) };
        let steps = self.steps(&new).map_err(|e| format!("nothing changed: {e:#}"))?;
        Ok((new, reading, steps))
    }

    /// Returns the steps from the running configuration to `new`. Logs nothing: they may be for a dry run.
    fn steps(&self, new: &Config) -> anyhow::Result<Vec<Step>> {
        let steps = diff(&self.config(), new).map_err(|all| anyhow::anyhow!("{}", all.join("; ")))?;
        let cpus = self.cpu_steps(new)?;
        let mut all = self.pool_steps(new, &steps, &cpus)?;
        all.extend(steps);
        all.extend(cpus);
        Ok(all)
    }

    /// Returns the steps that move workers to other CPUs. Errors if `workers.cpus` has too few.
    fn cpu_steps(&self, new: &Config) -> anyhow::Result<Vec<Step>> {
        if new.workers.cpus == self.config().workers.cpus {
            return Ok(vec![]);
        }
        let (allowed, workers) = (Host::this().allowed, self.workers.len());
        let cpus = (0..workers).map(|worker| new.cpu_of(worker, &allowed)).collect::<Option<Vec<usize>>>();
        let cpus = cpus.with_context(|| {
            format!(
                "workers.cpus: bywash has {}; restart bywash to have fewer",
                bywash_config::count(workers, "worker")
            )
        })?;
        let step = |(worker, cpu): (&workers::Shown, usize)| {
            let was = worker.cpu();
            (was != Some(cpu)).then(|| Step::Cpu(worker.handle.id(), was, cpu))
        };
        Ok(self.workers.iter().zip(cpus).filter_map(step).collect())
    }

    /// Serves the API: reloads, and returns what changed; with `dry`, only returns what would change.
    pub fn reload(&self, dry: bool) -> Result<Vec<String>, String> {
        let read = self.read();
        if let (Err(why), false) = (&read, dry) {
            tracing::warn!("reload: {why}");
        }
        let (new, reading, steps) = read?;
        if dry {
            let read = self.view.reread(&new, false).map_err(|why| format!("nothing changed: {why:#}"))?;
            return Ok(steps.iter().map(Step::to_string).chain(read).collect());
        }
        let (answer, done) = mpsc::channel();
        let asked = lock(&self.asks).send(Ask::Reload(Box::new(new), reading, answer));
        asked.map_err(|_| "bywash is ending")?;
        done.recv().map_err(|_| "bywash is ending")?
    }

    /// Serves the API: connects to the process that takes over.
    pub fn take_over(&self, socket: &str) -> Result<(), String> {
        let (answer, done) = mpsc::channel();
        let asked = lock(&self.asks).send(Ask::TakeOver(socket.into(), answer));
        asked.map_err(|_| "bywash is ending")?;
        done.recv().map_err(|_| "bywash is ending")?
    }
}

impl Runtime {
    pub fn handle(&mut self, ask: Ask) {
        match ask {
            Ask::Reload(config, reading, answer) => {
                // A reading that began before the one in effect had ended may bring back what the file no longer says.
                let done = match reading.begun <= self.reading {
                    true => self.read_and_reload(),
                    false => self.reload(*config, reading),
                };
                if let Err(why) = &done {
                    tracing::warn!("reload: {why}");
                }
                // The client may have gone.
                let _ = answer.send(done);
            }
            Ask::TakeOver(socket, answer) => {
                let met = Successor::meet(&socket, &self.shared).map(|successor| self.successor = Some(successor));
                let _ = answer.send(met.map_err(|e| format!("{e:#}")));
            }
        }
    }

    /// Reloads after SIGHUP, and logs the result.
    pub fn reload_by_signal(&mut self) {
        match self.read_and_reload() {
            Ok(changes) if changes.is_empty() => tracing::info!("reload: nothing to change"),
            Ok(_) => {}
            Err(why) => tracing::error!("reload: {why}"),
        }
    }

    fn read_and_reload(&mut self) -> Result<Vec<String>, String> {
        self.shared.read().and_then(|(new, reading, _)| self.reload(new, reading))
    }

    /// Applies `new`, and returns what changed. After an error everything is as before, except for what it says could
    /// not be undone.
    fn reload(&mut self, new: Config, reading: Reading) -> Result<Vec<String>, String> {
        let unchanged = |why: anyhow::Error| format!("nothing changed: {why:#}");
        let steps = self.prepare(&new).map_err(unchanged)?;
        let mut undo = vec![];
        let read = match self.carry_out_all(&new, &steps, &mut undo) {
            Ok(read) => read,
            Err(why) => {
                let left: Vec<String> = undo.into_iter().rev().filter_map(|undo| self.undo(undo).err()).collect();
                return Err(match left.is_empty() {
                    true => unchanged(why),
                    false => format!("{why:#}; not all steps could be undone: {}", left.join("; ")),
                });
            }
        };
        *lock(&self.shared.config) = Arc::new(new);
        self.reading = reading.ended;
        crate::step::reached("reload-done");
        let lines: Vec<String> = steps.iter().map(Step::to_string).chain(read).collect();
        lines.iter().for_each(|line| tracing::info!("reload: {line}"));
        Ok(lines)
    }

    /// Returns the steps to `new`. Errors if it cannot be applied.
    fn prepare(&self, new: &Config) -> anyhow::Result<Vec<Step>> {
        if let Some(successor) = &self.successor {
            bail!("pid {} is taking over", successor.pid);
        }
        // Compute the steps again: another reload may have been applied since the configuration was read.
        let steps = self.shared.steps(new)?;
        if steps.iter().any(Step::is_of_ports)
            && let Err(why) = self.mode.ports_can_change()
        {
            bail!("ports cannot be added or removed in mode {}: {why}; restart bywash", new.mode.name());
        }
        self.shared.view.reread(new, false)?;
        Ok(steps)
    }

    /// Carries out the steps, and has the files read again that `new` names. Returns a line for each change of theirs.
    fn carry_out_all(&mut self, new: &Config, steps: &[Step], undo: &mut Vec<Undo>) -> anyhow::Result<Vec<String>> {
        let shared = self.shared.clone();
        let number = |name: &str| slots::number(&shared.ports(), name);
        for step in steps {
            if let Step::Pool(workers, _, config) = step {
                undo.push(Undo::Pool(self.change_pool(workers.clone(), config)?));
            }
        }
        let openings = slots::openings(&shared.ports(), steps);
        let at_once = |new: &Opening<'_>| new.held_by.is_none() && !shared.ports().contains_key(&new.at);
        let (first, others): (Vec<_>, Vec<_>) = openings.into_iter().partition(at_once);
        for new in first {
            self.add_port(&new, undo)?;
        }
        crate::step::reached("reload-added");
        // Ports may exchange their interfaces.
        for before in others.iter().filter_map(|opening| opening.held_by) {
            undo.extend(self.remove_port(before));
            crate::step::reached("reload-removed");
        }
        for opening in others {
            undo.extend(self.remove_port(opening.at));
            crate::step::reached("reload-closed");
            self.add_port(&opening, undo)?;
        }
        for step in steps {
            if let Step::Level(name, was, level) = step {
                let mut ports = self.shared.ports();
                let found = ports.iter_mut().find(|(_, slot)| slot.config.name == *name);
                let (at, slot) = found.context("no such port")?;
                let requested = slot.level;
                slot.configure_level(*level, None)?;
                undo.push(Undo::Level(*at, *was, requested));
            }
        }
        let read = shared.view.reread(new, true)?;
        // No step from here on can fail.
        crate::step::reached("reload-sure");
        let pools: Vec<Changed> =
            undo.extract_if(.., |undo| matches!(undo, Undo::Pool(_))).filter_map(Undo::pool).collect();
        self.pools_changed(&pools);
        for step in steps {
            match step {
                // The port was removed above if another one takes its interface.
                Step::Remove(name) => drop(number(name).and_then(|at| self.remove_port(at))),
                Step::Kernel(config, _) => self.mode.kernel_changed(config, &self.shared),
                Step::Choose(worker, choice) => self.shared.workers[*worker].chosen(choice.clone()),
                Step::Cpu(worker, _, cpu) => self.shared.workers[*worker].move_to(*cpu),
                Step::Idle(_, idle) => {
                    for worker in &self.shared.workers {
                        worker.handle.change(vec![Change::Idle(*idle)], ANSWER);
                    }
                }
                _ => {}
            }
        }
        Ok(read)
    }

    /// Undoes a step. Errors with what is not as it was before, which is logged.
    fn undo(&mut self, undo: Undo) -> Result<(), String> {
        let done = match undo {
            Undo::Remove(at) => {
                self.remove_port(at);
                Ok(())
            }
            Undo::Pool(changed) => {
                self.undo_pool(&changed);
                Ok(())
            }
            Undo::Open(at, port, level) => self.add_port_at(at, &port, level).map_err(|why| {
                let name = &port.name;
                self.forget_port(name);
                let router = lock(&self.shared.config).mode == Mode::Router;
                let meanwhile = match router && port.kind == PortKind::AfXdp {
                    true => "the kernel forwards its packets",
                    false => "its packets are not forwarded",
                };
                format!(
                    "port `{name}` is removed, for it cannot be opened again: {why:#}; {meanwhile} until a reload adds it"
                )
            }),
            Undo::Level(at, level, requested) => match self.shared.ports().get_mut(&at) {
                Some(slot) => slot.configure_level(level, requested).map_err(|why| {
                    format!("port `{}` does not return to level {}: {why:#}", slot.config.name, level.name())
                }),
                None => Ok(()),
            },
        };
        done.inspect_err(|why| tracing::error!("reload: {why}"))
    }

    /// Removes a port from the configuration in effect, so that a later reload adds it.
    fn forget_port(&self, name: &str) {
        let mut config = lock(&self.shared.config);
        Arc::make_mut(&mut config).ports.retain(|port| port.name != name);
    }

    /// Adds a port, with a record of how to remove it.
    fn add_port(&mut self, opening: &Opening<'_>, undo: &mut Vec<Undo>) -> anyhow::Result<()> {
        let Opening { at, port, level, .. } = *opening;
        self.add_port_at(at, port, level).with_context(|| format!("port `{}`", port.name))?;
        undo.push(Undo::Remove(at));
        Ok(())
    }

    /// Adds a port under this number: opens it, gives it to its workers, adds it to the control half, and last enables
    /// its program.
    fn add_port_at(&mut self, at: usize, port: &PortConfig, level: Option<Level>) -> anyhow::Result<()> {
        self.alive();
        let places = places(port, at, self.shared.workers.len())?;
        let mut journal = self.shared.journal()?;
        let of_queue = |queue| self.shared.buffers(&places, queue);
        let mut opened = match self.opener.open((at, port), &mut journal, &of_queue) {
            Ok(opened) => opened,
            Err(e) => {
                self.put_back(port);
                return Err(e);
            }
        };
        crate::step::reached("reload-opened");
        let id = PortId(at as u16);
        let mut slot = PortSlot::new(&mut opened, places);
        slot.level = level;
        self.shared.leave_out_of_captures(at, &port.name);
        self.give_to_workers(id, &mut opened, &slot.queues, Some(&mut slot.tx))?;
        slot.queues.iter().for_each(|(queue, worker)| self.opener.serve(at, *queue, *worker));
        self.shared.ports().insert(at, slot);
        self.mode.add_port(opened.spec(at), port);
        self.mode.targets_changed();
        // A worker answers after a turn, in which the port filled its fill ring.
        self.shared.workers.iter().for_each(|worker| drop(worker.handle.report(ANSWER)));
        let begin = |slot: &mut PortSlot| {
            let halted = self.shared.halted_for(&slot.queues);
            slot.xdp.as_mut().map_or(Ok(()), |xdp| xdp.begin(&self.relations, slot.level, halted))
        };
        let enabled = self.shared.ports().get_mut(&at).map_or(Ok(()), begin);
        if enabled.is_err() {
            self.remove_port(at);
        }
        self.relate();
        enabled
    }

    /// Removes a port: it receives no more frames, then sends no more, and its ends are closed. `None` if the number
    /// is free.
    fn remove_port(&mut self, at: usize) -> Option<Undo> {
        let id = PortId(at as u16);
        if let Some(xdp) = &mut self.shared.ports().get_mut(&at)?.xdp {
            xdp.disable();
            xdp.forget();
        }
        self.mode.remove_port(id);
        self.mode.targets_changed();
        std::thread::sleep(LAST_FRAMES);
        // First the workers that pass frames to others, then those that send.
        let senders: Vec<usize> = self.shared.ports().get(&at)?.queues.iter().map(|(_, worker)| *worker).collect();
        let mut workers: Vec<_> = self.shared.workers.iter().collect();
        workers.sort_by_key(|worker| senders.contains(&worker.handle.id()));
        for worker in workers {
            worker.handle.change(vec![Change::Remove(id)], ANSWER);
        }
        let PortSlot { config, xdp, level, .. } = self.shared.ports().remove(&at)?;
        drop(xdp);
        self.relate();
        self.put_back(&config);
        Some(Undo::Open(at, config.into(), level))
    }

    /// Restores the settings of a port's interface and of the devices below it, as they were before the port was
    /// opened. Skips devices that another port stands on.
    fn put_back(&self, port: &PortConfig) {
        let stands_on = |port: &PortConfig| -> Vec<String> {
            let Some(interface) = &port.interface else { return vec![] };
            match LinkInfo::query(interface) {
                Ok(link) => Below::of(&link).names().map(str::to_owned).collect(),
                Err(_) => vec![interface.clone()],
            }
        };
        let others: Vec<PortConfig> = self.shared.ports().values().map(|slot| slot.config.clone()).collect();
        let used: Vec<String> = others.iter().flat_map(stands_on).collect();
        for interface in stands_on(port).iter().filter(|interface| !used.contains(interface)) {
            let done = self.shared.journal().and_then(|mut journal| journal.restore_of(interface));
            match done {
                Ok(failed) => {
                    for (change, e) in failed {
                        let feature = change.feature;
                        tracing::warn!("{interface}: cannot restore {feature}: {e}; bywash tries again when it ends");
                    }
                }
                Err(e) => {
                    tracing::warn!("{interface}: cannot restore its settings: {e}; bywash tries again when it ends")
                }
            }
        }
    }
}
