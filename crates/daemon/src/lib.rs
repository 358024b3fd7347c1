//! The running instance behind `bywash run`: assembles the parts, keeps them in step with the kernel, and takes them
//! apart again.
//!
//! Order matters at both ends. At startup the XDP programs begin to redirect frames only after buffers, the kernel's
//! tables, sockets and workers are ready. At shutdown the programs are disabled first, so that the kernel forwards
//! while everything else is torn down.

#![forbid(unsafe_code)]

/// Adds counters to the fields of the same names. Every counter of `$type` must be named.
macro_rules! add {
    ($from:expr, $type:path => $to:expr; $($name:ident),+ $(,)?) => {{
        let $type { $($name),+ } = $from;
        $($to.$name += $name.get();)+
    }};
}

mod api;
mod capture;
mod choice;
mod control;
mod diff;
#[cfg(debug_assertions)]
mod fault;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod instance;
mod journal;
mod liveness;
mod modes;
mod notify;
mod pools;
mod ports;
pub mod privileges;
mod reattach;
mod relate;
mod relations;
mod reload;
mod runtime;
mod sandbox;
mod shared;
mod slots;
mod start;
mod step;
mod successor;
mod takeover;
mod view;
mod vlans;
mod watch;
mod workers;

use crate::notify::Notifier;
use anyhow::Context as _;
use bywash_api_server::{Addresses, Listener};
use bywash_config::{Config, Mode};
use bywash_port::af_xdp::Journal;
use control::End;
use runtime::Runtime;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use takeover::Predecessor;

pub use journal::journal;
pub use sandbox::broker;
pub use shared::Source;

/// Forwards until a signal stops it or another process takes over, with the configuration that `source` returns now and
/// at every reload. With `take_over`, takes over the ports of the instance that already runs, if there is one. Calls
/// `confined` once this process is in its sandbox, which threads inherit from their creator, and before there is any.
pub fn run(source: Source, take_over: bool, confined: impl FnOnce()) -> anyhow::Result<()> {
    let config = (source.read)(vec![])?;
    crate::privileges::check()?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // A second signal during shutdown ends the process at once; the kernel then detaches the XDP programs.
        signal_hook::flag::register_conditional_shutdown(signal, 1, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let reload = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGHUP, reload.clone())?;
    let upgrade = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR2, upgrade.clone())?;
    let at = crate::api::addresses(&config.api)?;
    let mut predecessor = if take_over { Predecessor::find(&config.api.socket)? } else { None };
    step::reached(if predecessor.is_some() { "takeover-met" } else { "start-alone" });
    // Create the API sockets first: they are how a second instance detects this one, before it changes anything, and
    // creating them takes privileges that the sandbox drops. A process that takes over creates them under temporary
    // names and renames them later.
    let listener = if predecessor.is_none() { Listener::bind(&at)? } else { Listener::make(&at)? };
    step::reached("start-sockets");
    if predecessor.is_none() {
        put_back_left()?;
    }
    journal::directory();
    let path = journal::settings(&config.api.socket);
    // Without the directory no setting is changed, either.
    let lock = journal::Lock::share(&path).map_err(|why| tracing::warn!("{why:#}")).ok();
    let mut journal = Journal::open(&path)?;
    let listening = (listener, at);
    let result =
        forward((config, source), listening, &mut journal, (&stop, &reload, &upgrade), predecessor.as_mut(), confined);
    if matches!(result, Ok(End::TakenOver)) {
        tracing::info!("exiting: another process has taken over");
        return Ok(());
    }
    if predecessor.is_some_and(|predecessor| !predecessor.has_let_go()) {
        // The predecessor keeps running and restores all settings when it ends.
        return result.map(drop);
    }
    // The journal is a file only while there are changes: without its broker, an instance that made none reports
    // nothing.
    let changed = path.try_exists().unwrap_or(true);
    // Open the file again: ports that were added later wrote to it through a `Journal` of their own.
    let mut journal = Journal::open(path)?;
    if changed {
        let done = put_back(&mut journal).context("could not restore changed interface settings: run `bywash restore`");
        match (done, &result) {
            (Err(why), Ok(_)) => return Err(why),
            // The reason why the instance ends is the one to return.
            (Err(why), Err(_)) => tracing::error!("{why:#}"),
            _ => {}
        }
    }
    if let Some(lock) = lock.filter(|_| journal.changes().is_empty()) {
        lock.remove();
    }
    step::reached("stop-put-back");
    result.map(drop)
}

/// Restores the settings that instances changed in this network namespace and did not restore themselves.
fn put_back_left() -> anyhow::Result<()> {
    let journal::Found { left, denied, .. } = journal::found()?;
    for path in denied {
        let path = path.display();
        tracing::warn!(
            "{path} may list settings of a killed instance of another user: `sudo bywash restore` restores them"
        );
    }
    for (path, lock) in left {
        let mut journal = Journal::open(path)?;
        if !journal.changes().is_empty() {
            let settings = bywash_config::count(journal.changes().len(), "setting");
            tracing::warn!("an earlier instance did not end cleanly: restoring {settings}");
            put_back(&mut journal)?;
        }
        if journal.changes().is_empty() {
            lock.remove();
        }
    }
    Ok(())
}

/// Raises the limit of open files as far as the process may: each followed interface has some ten. Shells set a low one
/// for programs that use select(2).
fn raise_file_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Refused only beyond the hard limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

fn forward(
    (config, source): (Config, Source),
    (mut listener, at): (Listener, Addresses),
    journal: &mut Journal,
    (stop, reload, upgrade): (&AtomicBool, &AtomicBool, &AtomicBool),
    mut predecessor: Option<&mut Predecessor>,
    confined: impl FnOnce(),
) -> anyhow::Result<End> {
    // The notifier's socket cannot be made in the sandbox.
    let notifier = Notifier::from_environment();
    bywash_port::af_xdp::learn_programs();
    if config.mode == Mode::Cmts {
        bywash_docsis::seal::load_library();
    }
    raise_file_limit();
    // Enter the sandbox while there is only one thread: capabilities and seccomp filters are per thread, and a new
    // thread inherits them from its creator.
    let sandboxed = crate::sandbox::enter(&config, &journal::settings(&config.api.socket));
    confined();
    if sandboxed && let Err(why) = (source.read)(vec![]) {
        tracing::warn!("in the sandbox the configuration cannot be read again, and `reload` will fail: {why}");
    }
    step::reached("start-sandbox");
    let mut runtime = match Runtime::start(config, source, journal, predecessor.as_deref_mut(), (stop, notifier)) {
        Ok(runtime) => runtime,
        Err(why) if why.is::<start::Stopped>() => {
            tracing::info!("stopped before anything was forwarded");
            return Ok(End::Stopped);
        }
        Err(why) => return Err(crate::sandbox::explain(why, sandboxed)),
    };
    if let Some(predecessor) = predecessor {
        let deadline = Instant::now() + takeover::STEP;
        runtime.follow_until(|| predecessor.has_ended() || Instant::now() > deadline)?;
        if !predecessor.has_ended() {
            let (pid, wait) = (predecessor.pid, takeover::STEP.as_secs());
            tracing::warn!("pid {pid} has not ended within {wait} s");
        }
        step::reached("takeover-end");
        listener.take_names()?;
        // A failure costs only the metrics endpoint; forwarding continues.
        if let Err(why) = listener.listen_for_metrics(&at) {
            tracing::error!("{:#}; continuing without metrics", crate::sandbox::explain(why, sandboxed));
        }
    }
    let api = crate::api::serve(listener, runtime.instance())?;
    step::reached("start-served");
    runtime.name_idle_ports();
    let switches = runtime.kernel_switches();
    if switches.is_empty() {
        tracing::info!("forwarding; `bywash show ports` shows how, Ctrl-C ends it");
        runtime.notifier.ready("forwarding");
    } else {
        tracing::warn!(
            "started, but nothing is forwarded, because IP forwarding is off in the kernel: run `sysctl -w {}`; no \
             restart is needed",
            switches.join(" ")
        );
        // The status does not say why nothing is forwarded: that may change at any time.
        runtime.notifier.ready("running");
    }
    let result = runtime.follow((stop, reload, upgrade));
    if let Ok(End::TakenOver) = result {
        step::reached("handover-asked");
        let successor = runtime.hand_over()?;
        drop(api);
        // The new process waits for this connection to close. By then the API's socket is closed, too.
        drop(successor);
        return result;
    }
    runtime.notifier.stopping();
    step::reached("stop-asked");
    drop(api);
    if stop.load(Ordering::Acquire) {
        tracing::info!("stopping: the kernel gets every frame from now on");
    }
    runtime.stop();
    step::reached("stop-apart");
    result
}

fn put_back(journal: &mut Journal) -> anyhow::Result<()> {
    for (change, error) in journal.restore()? {
        let bywash_port::af_xdp::Change { interface, feature, .. } = change;
        tracing::error!("{interface}: cannot restore {feature}: {error}; run `bywash restore` to try again");
    }
    Ok(())
}

/// Result of [`restore`].
#[derive(Debug, Default)]
pub struct Restored {
    /// The recorded changes.
    pub changes: Vec<serde_json::Value>,
    /// An error for each that could not be restored.
    pub failed: Vec<String>,
    /// Interfaces with changes of instances that run, which are left alone.
    pub running: BTreeSet<String>,
    /// Number of instances that run in this network namespace.
    pub instances: usize,
    /// Number of journals that were removed, because their network namespace is gone.
    pub removed: usize,
}

/// Restores the settings that killed runs changed in this network namespace. Removes the journals of namespaces that
/// are gone.
pub fn restore() -> anyhow::Result<Restored> {
    let journal::Found { left, running, denied } = journal::found()?;
    if let Some(path) = denied.first() {
        anyhow::bail!("cannot lock {}: Permission denied", path.display());
    }
    let mut done = Restored { removed: journal::remove_orphans(), instances: running.len(), ..Restored::default() };
    for (path, lock) in left {
        let mut journal = Journal::open(path)?;
        done.changes.extend(journal.changes().iter().map(|change| serde_json::json!(change)));
        let failed = journal.restore()?;
        let failed = failed.iter().map(|(change, error)| format!("{} {}: {error}", change.interface, change.feature));
        done.failed.extend(failed);
        if journal.changes().is_empty() {
            lock.remove();
        }
    }
    for path in running {
        done.running.extend(Journal::open(path)?.changes().iter().map(|change| change.interface.clone()));
    }
    Ok(done)
}
