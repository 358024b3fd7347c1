//! The worker: a pinned thread, its ports and its application.

use crate::app::{SAMPLE, STAGE_RX, STAGE_TX};
use crate::cpus::pin;
use crate::failure::{Failed, Failure, Substitute, max_panics};
use crate::{App, Context, DropReason, Meter, PortId, PortTable, WorkerCounters};
use bywash_frame::{Batch, Buffers, Pool};
use bywash_port::{Port, PortState, Recorder, TxQueue};
use bywash_sync::{Reader, clock, lock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

/// Behaviour of a worker that has no packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Back off, then sleep until a packet arrives.
    #[default]
    Sleep,
    /// Keep polling: lowest latency, but uses a whole CPU.
    Spin,
}

/// Role of an extra receiving end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Another RX queue of this port: its packets go through the application.
    Receive(PortId),
    /// The end of a ring from another worker: its packets are sent by this port.
    Transit(PortId),
}

/// Configuration of a worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// Number of the worker, part of its thread's name.
    pub id: usize,
    /// CPU to run on. If `None`, the kernel chooses.
    pub cpu: Option<usize>,
    /// Behaviour when idle.
    pub idle: Idle,
}

/// Polling time in microseconds without packets before a worker sleeps: about the cost of falling asleep and waking up.
const PATIENCE_US: u64 = 20;
/// Longest sleep: ports need periodic housekeeping.
const NAP: Duration = Duration::from_millis(10);
/// Longest sleep while a port must be polled or a timer is pending.
const SHORT_NAP: Duration = Duration::from_micros(100);

/// Typical wakeup latency of a sleeper: the kernel's timer slack, 50 us, and scheduling.
const WAKEUP_LATENCY: Duration = Duration::from_micros(100);

/// State of a worker, reported on request.
#[derive(Clone, Debug)]
pub struct Report {
    /// Frames held by its ports, its queues and its application.
    pub held: usize,
    /// The worker's port ends: those in ID order, then the extra ones.
    pub ports: Vec<PortReport>,
}

/// State of one port end.
#[derive(Clone, Debug)]
pub struct PortReport {
    /// The port.
    pub id: PortId,
    /// Role of an extra end; `None` for the port's main end on this worker.
    pub role: Option<Role>,
    /// Operational state.
    pub state: PortState,
    /// Frames it holds, including its TX queue.
    pub held: usize,
    /// Names and values to show that only ports of its kind have.
    pub details: Vec<(&'static str, String)>,
}

/// Change to a running worker. Ports that it does not name are not affected.
pub enum Change {
    /// Sets the port with this number, with an empty TX queue. The port that had the number is closed, and the counters
    /// of the number restart at zero.
    Set(PortId, Box<dyn Port>, Box<TxQueue>),
    /// Replaces the port with this number, keeping its TX queue and its counters. All previous ends of the port are
    /// closed.
    Replace(PortId, Box<dyn Port>),
    /// Adds a receiving end.
    Add(Box<dyn Port>, Role),
    /// Sends the frames queued for the port and closes all its ends. The number becomes free.
    Remove(PortId),
    /// Leaves the port out of the recording of this number, if there is one.
    LeaveOut(u64, PortId),
    /// Sets the idle behaviour.
    Idle(Idle),
    /// Moves the worker to this CPU.
    Cpu(usize),
    /// Allocates frames from this pool from now on. Also updates the list of pools ([`Buffers::refresh`]).
    Pool(Arc<Pool>),
}

enum Command {
    Report(mpsc::Sender<Report>),
    Change(Vec<Change>, mpsc::Sender<()>),
    Record(Recorder),
    /// Sends the recorder back to the caller, so that the worker need not free it.
    StopRecording(u64, mpsc::Sender<Recorder>),
    /// Lets the application run again after a panic.
    Restart,
}

#[derive(Default)]
struct Mailbox {
    stop: AtomicBool,
    mail: AtomicBool,
    failed: Failed,
}

/// A worker that is not started yet.
pub struct Worker {
    config: WorkerConfig,
    ports: PortTable,
    extra: Vec<(Box<dyn Port>, Role)>,
    app: Box<dyn App>,
    bufs: Buffers,
    reader: Reader,
    counters: Arc<WorkerCounters>,
    /// Opens `meter` on the worker's thread.
    open_meter: Option<OpenMeter>,
    meter: Option<Box<dyn Meter>>,
    /// Ticks per turn, an upper estimate.
    turn_ticks: u64,
    /// Time of the last turn, kept here so that time does not go back after a panic either.
    now: u64,
    /// Frames received by `from` that the application has not taken yet, and frames to be freed. Empty between turns,
    /// and here instead of on the stack so that a panic does not lose them.
    batch: Batch,
    from: PortId,
    trash: Batch,
    /// Set if the worker continues after a panic of its application.
    outlives: bool,
    /// The application, while a substitute runs in its place after a panic.
    suspended: Option<Box<dyn App>>,
}

/// Function that opens counters of the calling thread, or returns why it cannot.
pub type OpenMeter = fn() -> Result<Box<dyn Meter>, String>;

/// Cause of a worker's end.
#[derive(Debug)]
pub enum WorkerExit {
    /// Stopped on request.
    Stopped,
    /// Panicked with this message, which it could not outlive. Its frames are leaked; its ports are closed by being
    /// dropped.
    Panicked(String),
}

/// Handle to control a running worker. Dropping it stops the worker and waits for it.
pub struct WorkerHandle {
    id: usize,
    counters: Arc<WorkerCounters>,
    mailbox: Arc<Mailbox>,
    commands: mpsc::Sender<Command>,
    thread: Mutex<Option<JoinHandle<WorkerExit>>>,
}

impl Worker {
    /// Creates a worker that receives and sends by `ports`, allocates frames from `bufs` and runs `app`.
    pub fn new(config: WorkerConfig, ports: PortTable, app: Box<dyn App>, bufs: Buffers, reader: Reader) -> Self {
        let counters = Arc::new(WorkerCounters::new(ports.len(), app.stages()));
        Self {
            config,
            ports,
            extra: Vec::new(),
            app,
            bufs,
            reader,
            counters,
            open_meter: None,
            meter: None,
            turn_ticks: 0,
            now: 0,
            batch: Batch::new(),
            from: PortId::default(),
            trash: Batch::new(),
            outlives: false,
            suspended: None,
        }
    }

    /// Adds a receiving end in addition to those in `ports`.
    pub fn add(&mut self, port: Box<dyn Port>, role: Role) {
        self.extra.push((port, role));
    }

    /// Counts core cycles, instructions and retired slots by stage, by counters that `open` opens on the worker's
    /// thread. If it cannot, the worker runs without them, and logs why.
    pub fn count_by(&mut self, open: OpenMeter) {
        self.open_meter = Some(open);
    }

    /// Makes the worker continue after a panic of its application, if the application can recover ([`App::recover`]).
    /// Until [`WorkerHandle::restart`], it drops the frames that it receives as `worker-failed`; what other workers
    /// send by its ports is sent.
    pub fn outlive_panics(&mut self) {
        self.outlives = true;
    }

    /// Returns the worker's counters.
    pub fn counters(&self) -> Arc<WorkerCounters> {
        self.counters.clone()
    }

    /// Starts the worker's thread.
    pub fn spawn(mut self) -> std::io::Result<WorkerHandle> {
        let mailbox = Arc::new(Mailbox::default());
        let (commands, inbox) = mpsc::channel();
        let (id, counters) = (self.config.id, self.counters.clone());
        let shared = mailbox.clone();
        let (opened, ready) = mpsc::channel();
        let thread = std::thread::Builder::new().name(format!("bywash-w{id}")).spawn(move || {
            self.begin(opened);
            self.now = clock::tsc();
            let started = self.now;
            loop {
                // `recover` decides what can still be used after a panic.
                match catch_unwind(AssertUnwindSafe(|| self.run(&shared, &inbox, started))) {
                    Ok(()) => return WorkerExit::Stopped,
                    Err(panic) => {
                        let why = panic_message(&*panic);
                        if !self.recover() {
                            return WorkerExit::Panicked(why);
                        }
                        shared.failed.set(Some(Failure { why, number: self.counters.panics.get() }));
                    }
                }
            }
        })?;
        // The channel is closed once the counters are open.
        let _ = ready.recv();
        Ok(WorkerHandle { id, counters, mailbox, commands, thread: Mutex::new(Some(thread)) })
    }

    /// Runs `turns` turns on the calling thread, then closes. For benchmarks and tests.
    pub fn run_turns(mut self, turns: u64) {
        self.pin();
        self.open_meter();
        for _ in 0..turns {
            self.turn(clock::tsc());
        }
        self.close();
    }

    fn pin(&self) {
        let Some(cpu) = self.config.cpu else { return };
        if let Err(e) = pin(cpu) {
            tracing::warn!("worker {}: cannot run on CPU {cpu} ({e}); it runs on any CPU", self.config.id);
        }
    }

    /// Opens the counters, if any are wanted.
    fn open_meter(&mut self) {
        match self.open_meter.map(|open| open()) {
            Some(Ok(meter)) => self.meter = Some(meter),
            Some(Err(why)) => tracing::warn!("worker {}: no hardware counters for its stages: {why}", self.config.id),
            None => {}
        }
    }

    /// Prepares the worker's thread. Drops `opened` once the counters are open.
    fn begin(&mut self, opened: mpsc::Sender<()>) {
        self.pin();
        self.open_meter();
        drop(opened);
        self.counters.thread.set(rustix::thread::gettid().as_raw_nonzero().get() as u64);
    }

    /// Runs turns until the worker is told to stop, then closes it. `started` is the time at which its thread began.
    fn run(&mut self, mailbox: &Mailbox, inbox: &mpsc::Receiver<Command>, started: u64) {
        let patience = clock::us_to_ticks(PATIENCE_US);
        let mut now = clock::tsc_after(self.now);
        let mut worked = now;
        while !mailbox.stop.load(Ordering::Acquire) {
            let from = now;
            let (work, pending) = self.turn(from);
            // Time never goes back for a worker, so that what it remembers is not in the future.
            now = clock::tsc_after(from);
            // Decaying maximum (over about a hundred turns): bounds how long frames on TX queues can be left waiting.
            self.turn_ticks = (now - from).max(self.turn_ticks - self.turn_ticks / 64);
            self.counters.cycles.set(now - started);
            if work > 0 {
                self.counters.busy_cycles.add(now - from);
                worked = now;
            } else {
                self.counters.idle_turns.add(1);
                let nap = if self.config.idle == Idle::Sleep && now - worked > patience { self.nap(now) } else { None };
                match nap {
                    Some(nap) => {
                        self.sleep(nap.min(if pending { SHORT_NAP } else { NAP }));
                        now = clock::tsc_after(now);
                    }
                    None => std::hint::spin_loop(),
                }
            }
            if mailbox.mail.swap(false, Ordering::Acquire) {
                inbox.try_iter().for_each(|c| self.execute(c, &mailbox.failed));
                now = clock::tsc_after(now);
            }
        }
        self.close();
    }

    /// Runs one turn, started at `now`. Returns the number of packets received, and whether a timer or a queue is
    /// pending. Public for benchmarks that run workers by turns on one thread.
    #[inline]
    pub fn turn(&mut self, now: u64) -> (usize, bool) {
        self.now = now;
        let Self { ports, extra, app, bufs, reader, counters, meter, turn_ticks, batch, from, trash, .. } = self;
        let timed = counters.turns.get().is_multiple_of(SAMPLE);
        let meter = meter.as_deref().filter(|_| timed);
        let counted = meter.and_then(Meter::read).into();
        let mark = now.into();
        let mut cx = Context { bufs, reader, now, ports, counters, trash, timed, mark, meter, counted };
        let mut work = 0;
        for i in 0..cx.ports.len() {
            let id = PortId(i as u16);
            let n = cx.ports.receive(cx.bufs, id, batch);
            *from = id;
            work += Self::handle(&mut cx, app.as_mut(), Role::Receive(id), n, batch);
        }
        for (port, role) in extra.iter_mut() {
            let n = port.rx_burst(cx.bufs, batch);
            if let Role::Receive(id) = *role {
                *from = id;
            }
            work += Self::handle(&mut cx, app.as_mut(), *role, n, batch);
        }
        cx.ports.at_rest = true;
        let mut pending = app.turn(&mut cx);
        cx.ports.at_rest = false;
        if !cx.trash.is_empty() {
            cx.bufs.free(cx.trash);
        }
        // Estimated time at which the next turn reaches this point.
        let next = now.saturating_add(2 * *turn_ticks);
        let sent = cx.ports.flush(cx.bufs, now, next, counters);
        if sent > 0 {
            cx.account(STAGE_TX, sent);
        }
        pending |= cx.ports.waiting();
        for (port, _) in extra.iter_mut() {
            port.housekeep(bufs);
        }
        reader.quiescent();
        counters.turns.add(1);
        (work, pending)
    }

    #[inline]
    fn handle(cx: &mut Context<'_>, app: &mut dyn App, role: Role, n: usize, batch: &mut Batch) -> usize {
        if n == 0 {
            cx.skip();
            return 0;
        }
        cx.counters.rx_bursts[n].add(1);
        cx.account(STAGE_RX, n);
        match role {
            Role::Receive(from) => {
                cx.ports.note_received(cx.bufs, from, batch.as_slice());
                cx.ports.at_rest = true;
                app.process(cx, from, batch);
                cx.ports.at_rest = false;
            }
            Role::Transit(to) => batch.drain().for_each(|f| cx.send(to, to, f)),
        }
        debug_assert!(batch.is_empty(), "the application left frames behind");
        n
    }

    fn execute(&mut self, command: Command, failed: &Failed) {
        match command {
            Command::Report(answer) => {
                let report = self.report();
                self.counters.held.set(report.held as u64);
                let _ = answer.send(report);
            }
            Command::Change(changes, done) => {
                changes.into_iter().for_each(|change| self.change(change));
                let _ = done.send(());
            }
            Command::Record(recorder) => self.ports.add_recorder(recorder),
            Command::StopRecording(id, back) => {
                if let Some(recorder) = self.ports.take_recorder(id) {
                    let _ = back.send(recorder);
                }
            }
            Command::Restart => {
                if let Some(app) = self.suspended.take() {
                    self.app = app;
                    failed.set(None);
                }
            }
        }
    }

    /// Suspends the application after a panic, and frees the frames that it held. Returns false if the worker cannot
    /// continue.
    fn recover(&mut self) -> bool {
        let at_rest = std::mem::take(&mut self.ports.at_rest);
        let pool = self.bufs.pool();
        let too_often = pool.count_panic() >= max_panics(pool.config().frames);
        if !self.outlives || !at_rest || too_often || self.suspended.is_some() {
            return false;
        }
        // If the application panics again, nothing of it is used any more.
        let recovered = catch_unwind(AssertUnwindSafe(|| {
            let from = self.from;
            self.with_app(|app, cx, batch| {
                batch.drain().for_each(|frame| cx.drop(from, DropReason::WorkerFailed, frame));
                app.close(cx);
                app.recover()
            })
        }));
        let recovered = recovered.unwrap_or(false);
        if recovered {
            self.counters.panics.add(1);
            self.suspended = Some(std::mem::replace(&mut self.app, Box::new(Substitute)));
        }
        recovered
    }

    /// Calls `call` with the application, outside of turns, and frees what it discards.
    fn with_app<T>(&mut self, call: impl FnOnce(&mut dyn App, &mut Context<'_>, &mut Batch) -> T) -> T {
        let now = clock::tsc_after(self.now);
        let Self { ports, app, bufs, reader, counters, batch, trash, .. } = self;
        let mut cx = Context {
            bufs,
            reader,
            now,
            ports,
            counters,
            trash,
            timed: false,
            mark: now.into(),
            meter: None,
            counted: None.into(),
        };
        let result = call(app.as_mut(), &mut cx, batch);
        bufs.free(trash);
        result
    }

    fn change(&mut self, change: Change) {
        match change {
            Change::Set(id, port, queue) => {
                self.counters.reset_port(id);
                self.ports.set(&mut self.bufs, id, port, *queue);
            }
            Change::Replace(id, port) => {
                self.close_extra(id);
                self.ports.replace(&mut self.bufs, id, port);
            }
            Change::Add(port, role) => self.extra.push((port, role)),
            Change::Remove(id) => {
                self.close_extra(id);
                self.ports.remove(&mut self.bufs, id);
            }
            Change::LeaveOut(recording, id) => self.ports.leave_out(recording, id),
            Change::Idle(idle) => self.config.idle = idle,
            Change::Cpu(cpu) => {
                self.config.cpu = Some(cpu);
                self.pin();
            }
            Change::Pool(pool) => self.bufs.take_from(&pool),
        }
    }

    /// Closes all ends of a port except the main one, which sends.
    fn close_extra(&mut self, id: PortId) {
        let of_port = |end: &(_, Role)| matches!(end.1, Role::Receive(i) | Role::Transit(i) if i == id);
        while let Some(at) = self.extra.iter().position(of_port) {
            self.extra.remove(at).0.close(&mut self.bufs);
        }
    }

    fn report(&self) -> Report {
        let end = |port: &dyn Port, id, role, queued| PortReport {
            id,
            role,
            state: port.state(),
            held: port.held() + queued,
            details: port.details(),
        };
        let main = self.ports.ends().enumerate().map(|(i, (p, queued))| end(p, PortId(i as u16), None, queued));
        let extra = self.extra.iter().map(|(p, role)| {
            let (Role::Receive(id) | Role::Transit(id)) = *role;
            end(p.as_ref(), id, Some(*role), 0)
        });
        let ports: Vec<PortReport> = main.chain(extra).collect();
        Report { held: self.app.held() + ports.iter().map(|p| p.held).sum::<usize>(), ports }
    }

    /// Returns how long the worker may sleep without missing a TX queue's deadline; `None` if it must not sleep.
    fn nap(&self, now: u64) -> Option<Duration> {
        let Some(left) = self.ports.patience(now) else { return Some(NAP) };
        Duration::from_nanos(clock::ticks_to_ns(left)).checked_sub(WAKEUP_LATENCY).filter(|nap| !nap.is_zero())
    }

    fn sleep(&mut self, nap: Duration) {
        use rustix::event::{PollFd, PollFlags, poll};
        let ports = self.ports.ports().chain(self.extra.iter().map(|(p, _)| p.as_ref()));
        let mut must_poll = false;
        let mut fds = Vec::new();
        for port in ports.filter(|p| p.state() == PortState::Up) {
            match port.wait_fd() {
                Some(fd) => fds.push(fd),
                None => must_poll |= port.receives(),
            }
        }
        let nap = if must_poll { nap.min(SHORT_NAP) } else { nap };
        self.counters.sleeps.add(1);
        self.reader.offline();
        if fds.is_empty() {
            std::thread::sleep(nap);
        } else {
            let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: nap.subsec_nanos().into() };
            let mut fds: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
            let _ = poll(&mut fds, Some(&timeout));
        }
        self.reader.online();
    }

    /// Closes the application and the ports, and frees what they held. Ends a worker that was run by [`Worker::turn`].
    pub fn close(&mut self) {
        self.with_app(|app, cx, _| app.close(cx));
        let Self { ports, extra, bufs, counters, .. } = self;
        ports.close(bufs);
        extra.iter_mut().for_each(|(p, _)| p.close(bufs));
        counters.held.set(0);
    }
}

impl WorkerHandle {
    /// Returns the worker's number.
    pub fn id(&self) -> usize {
        self.id
    }

    /// Returns the worker's counters.
    pub fn counters(&self) -> &Arc<WorkerCounters> {
        &self.counters
    }

    /// Requests a report of the frames held and of the ports. Returns `None` if the worker does not answer within
    /// `wait`.
    pub fn report(&self, wait: Duration) -> Option<Report> {
        let (answer, reply) = mpsc::channel();
        self.send(Command::Report(answer));
        reply.recv_timeout(wait).ok()
    }

    /// Applies `changes` between two turns. Returns false if the worker does not answer within `wait`; it then still
    /// applies them later.
    pub fn change(&self, changes: Vec<Change>, wait: Duration) -> bool {
        let (done, reply) = mpsc::channel();
        self.send(Command::Change(changes, done));
        reply.recv_timeout(wait).is_ok()
    }

    /// Starts recording packets from the next turn on, until [`WorkerHandle::stop_recording`].
    pub fn record(&self, recorder: Recorder) {
        self.send(Command::Record(recorder));
    }

    /// Stops the recording `id`. On true, nothing more is put on its ring. Returns false if the worker has no such
    /// recording, or does not answer within `wait`.
    pub fn stop_recording(&self, id: u64, wait: Duration) -> bool {
        let (back, reply) = mpsc::channel();
        self.send(Command::StopRecording(id, back));
        reply.recv_timeout(wait).is_ok()
    }

    fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.mailbox.mail.store(true, Ordering::Release);
        }
    }

    /// Returns the panic that keeps the application from running; `None` if it runs.
    pub fn failed(&self) -> Option<Failure> {
        self.mailbox.failed.get()
    }

    /// Unparks `thread` whenever [`WorkerHandle::failed`] changes.
    pub fn watch_by(&self, thread: Thread) {
        self.mailbox.failed.watch_by(thread);
    }

    /// Lets the application run again after a panic. Does nothing if it runs.
    pub fn restart(&self) {
        self.send(Command::Restart);
    }

    /// Returns whether the thread has ended, on request or not.
    pub fn finished(&self) -> bool {
        lock(&self.thread).as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the worker and waits: on return its ports are closed and its frames are back in their pools. Further calls
    /// do nothing.
    pub fn stop(&self) -> WorkerExit {
        self.mailbox.stop.store(true, Ordering::Release);
        let thread = lock(&self.thread).take();
        match thread.map(JoinHandle::join) {
            Some(Ok(exit)) => exit,
            Some(Err(panic)) => WorkerExit::Panicked(panic_message(&*panic)),
            None => WorkerExit::Stopped,
        }
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        self.stop();
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::Counts;
    use bywash_frame::{Arena, ArenaConfig, PoolConfig, PoolSet};
    use bywash_port::pair;
    use bywash_sync::Qsbr;
    use std::cell::Cell;

    /// Counts 100 cycles, 200 instructions and 300 slots from one reading to the next.
    #[derive(Default)]
    struct Steady(Cell<u64>);

    impl Meter for Steady {
        fn read(&self) -> Option<Counts> {
            self.0.set(self.0.get() + 1);
            Some([100, 200, 300].map(|each| each * self.0.get()))
        }
    }

    #[test]
    fn stages_have_the_counts_between_their_marks() {
        let counted = |open: Option<OpenMeter>| {
            let arena = Arena::new(ArenaConfig { cells: 64, ..Default::default() }).unwrap();
            let pools = PoolSet::new(arena, &[PoolConfig::stack("main", 64)]).unwrap();
            let (here, mut there) = pair(64);
            let mut bufs = Buffers::attach(&pools, 0);
            let mut batch = Batch::new();
            bufs.alloc(&mut batch, 3);
            there.tx_burst(&mut bufs, &mut batch);
            let mut ports = PortTable::new();
            ports.add(Box::new(here), TxQueue::new(Default::default()));
            let app = |cx: &mut Context<'_>, _: PortId, batch: &mut Batch| batch.drain().for_each(|f| cx.discard(f));
            let config = WorkerConfig { id: 0, cpu: None, idle: Idle::Spin };
            let domain = Qsbr::new();
            let own = Buffers::attach(&pools, 0);
            let mut worker = Worker::new(config, ports, Box::new(app), own, domain.register());
            open.into_iter().for_each(|open| worker.count_by(open));
            let counters = worker.counters();
            worker.run_turns(SAMPLE);
            there.close(&mut bufs);
            counters.stages[STAGE_RX].counted.each_ref().map(|counter| counter.get())
        };
        assert_eq!(counted(Some(|| Ok(Box::<Steady>::default()))), [100, 200, 300].map(|each| each * SAMPLE));
        assert_eq!(counted(Some(|| Err("none here".into()))), [0; 3]);
        assert_eq!(counted(None), [0; 3]);
    }
}
