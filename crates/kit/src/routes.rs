//! The kernel's routes, followed while the application runs.

use crate::Error;
use crate::shown::{Shown, ShownPort};
use bywash_netlink::{Config, Mirror};
use bywash_router::control::{Control, PortSpec};
use bywash_router::tables::Tables;
use bywash_router::xdp::XdpTableSink;
use bywash_sync::{Published, Qsbr, Reader, lock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit for the kernel to report all its routes.
const FIRST_DUMP: Duration = Duration::from_secs(60);
/// Interval of checks whether the application has ended.
const TICK: Duration = Duration::from_millis(50);
/// Interval between confirmations of the neighbours in use: the kernel sees none of their traffic, and so does not
/// confirm them itself.
const CONFIRM: Duration = Duration::from_secs(15);

/// The kernel's routes and neighbours, in the tables of Bywash's router. Clones share them.
///
/// # Thread-safety
/// Read on the workers without a lock, while a thread of the kit follows the kernel.
#[derive(Clone)]
pub struct Routes(Arc<OnceLock<Arc<Published<Tables>>>>);

impl Routes {
    /// Returns the tables as they are now, for one burst: `reader` is that of the worker's
    /// [`Context`](bywash_engine::Context).
    ///
    /// # Panics
    /// If the application does not run yet.
    #[inline]
    pub fn load<'r>(&'r self, reader: &'r Reader) -> &'r Tables {
        self.0.get().expect("routes of an application that runs").load(reader)
    }
}

/// Connection to the kernel's tables before the ports are known.
pub struct Source {
    mirror: Mirror,
    pub routes: Routes,
}

impl Source {
    /// Starts to follow the calling thread's network namespace.
    pub fn start() -> Result<Self, Error> {
        Ok(Self { mirror: Mirror::start(Config::default())?, routes: Routes(Arc::default()) })
    }

    /// Reads the kernel's tables for these ports. The readers of `domain` must not have been registered yet.
    pub fn read(self, domain: &Qsbr, ports: Vec<PortSpec>, sink: Option<XdpTableSink>) -> Result<Follower, Error> {
        let Self { mirror, routes } = self;
        let mut control = Control::with_sink(domain, ports, sink).map_err(Error::Tables)?;
        let _ = routes.0.set(control.tables());
        let until = Instant::now() + FIRST_DUMP;
        loop {
            match mirror.changes().recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(changes) if control.apply(&changes).synced => {
                    return Ok(Follower { mirror, control: Arc::new(Mutex::new(control)) });
                }
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    return Err(Error::Routes(format!(
                        "not read within {} s: is the kernel busy with them?",
                        FIRST_DUMP.as_secs()
                    )));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(failed(&mirror)),
            }
        }
    }
}

fn failed(mirror: &Mirror) -> Error {
    Error::Routes(mirror.stats().failed.unwrap_or_default())
}

/// Tables that contain the kernel's routes, and what keeps them up to date.
pub struct Follower {
    mirror: Mirror,
    control: Arc<Mutex<Control>>,
}

impl Follower {
    /// Returns the control side of the tables.
    pub fn control(&self) -> Arc<Mutex<Control>> {
        self.control.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        lock(&self.control)
    }

    /// Follows the kernel on a thread of its own. If that fails, the programs of all ports are detached, so that the
    /// kernel forwards: the tables would be wrong from then on.
    pub fn spawn(self, shown: Arc<Shown>) -> Result<Following, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let run = move || {
            let (mut confirmed, mut before) = (Instant::now(), vec![0; shown.ports.len()]);
            while !stopped.load(Ordering::Acquire) {
                match self.mirror.changes().recv_timeout(TICK) {
                    Ok(changes) => drop(self.lock().apply(&changes)),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        let why = failed(&self.mirror);
                        shown.leave(why.to_string());
                        return Err(why);
                    }
                }
                if confirmed.elapsed() >= CONFIRM {
                    confirmed = Instant::now();
                    let of_port = |port: &ShownPort| port.counters.iter().map(|end| end.tx_packets.get()).sum();
                    let sent: Vec<u64> = shown.ports.iter().map(of_port).collect();
                    self.confirm(&before, &sent);
                    before = sent;
                }
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().name("bywash-routes".into()).spawn(run).map_err(Error::Tables)?;
        Ok(Following { stop, thread: Some(thread) })
    }

    /// Makes the kernel probe stale neighbours on ports that have sent packets since `before`.
    fn confirm(&self, before: &[u64], sent: &[u64]) {
        for (index, addr) in
            self.lock().stale_neighbours(|port| before[usize::from(port.0)] != sent[usize::from(port.0)])
        {
            self.mirror.probe(index, addr);
        }
    }
}

/// Thread that follows the kernel. Dropping it ends it.
pub struct Following {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl Following {
    /// Returns whether it has ended by itself.
    pub fn finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it. Errors if it had failed.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn end(&mut self) -> Result<(), Error> {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().map(JoinHandle::join);
        // Joining fails only after a panic, which the panic hook has reported.
        ended
            .unwrap_or(Ok(Ok(())))
            .unwrap_or_else(|_| Err(Error::Routes("the thread that follows them panicked: a bug".into())))
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
