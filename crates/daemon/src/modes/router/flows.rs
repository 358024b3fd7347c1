//! Established connections that are forwarded past the kernel's netfilter.
//!
//! One thread, `bywash-flows`, follows the kernel's connections, judges them by the kernel's rules, and keeps the table
//! of flows that workers and XDP programs look up ([`bywash_conntrack::Follower`]). The gates let packets of flows pass
//! only while the flows have been judged by the rules of the newest reading of the kernel's policies; the thread
//! publishes the number of the request to do so ([`Flows::is_ready`]).

use anyhow::{Context as _, bail};
use bywash_conntrack::{
    Considered, Events, Follower, Judge, Kernel, Revocation, Routes, Statistics, Subscription, TCP, Terms, Timeouts,
    UDP,
};
use bywash_engine::PortId;
use bywash_exceptions::nft::{Interface, Reader};
use bywash_exceptions::{PortLink, Verdict};
use bywash_fib::flows;
use bywash_fib::model::{Families, Prefix};
use bywash_nl::wake::Wake;
use bywash_router::tables::Tables;
use bywash_sync::{Published, Qsbr, lock, qsbr};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Pause after a failure before connections are followed again.
const PAUSE: Duration = Duration::from_secs(1);
/// Interval at which removed flows are checked until their memory is free.
const COLLECT: Duration = Duration::from_millis(5);
/// Interval at which the kernel's timeouts are read.
const TIMEOUTS: Duration = Duration::from_secs(1);
/// Minimum interval at which events are read: waking up for each costs more than reading it.
const RECEIVING: Duration = Duration::from_millis(1);
/// Interval at which connections of packets without a flow are looked for, while there are any.
const CONSIDERING: Duration = Duration::from_millis(5);
/// Interval once there have been no such connections for a second.
const IDLE: Duration = Duration::from_millis(50);
/// Number of attempts to read all connections before a pause.
const TRIES: usize = 4;
/// At most one part in so many of the time is spent reading connections because routes change.
const READING: u32 = 5;

/// The thread that keeps the table of flows.
pub struct Flows {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Set once flows have passed a gate.
    needed: bool,
    /// Number of the last request, from 1.
    requested: u64,
    /// Destinations of the last request that policies leave to the kernel, and the number of times that they changed.
    excepted: (Vec<Prefix>, u64),
}

struct Shared {
    stop: AtomicBool,
    /// The newest reading, until the thread takes it.
    request: Mutex<Option<Request>>,
    /// Number of the request by which the valid flows were judged; 0: no flow may be used.
    ready: AtomicU64,
    /// Number of changes of routes.
    routes: AtomicU64,
    wake: Wake,
    statistics: Arc<Statistics>,
}

/// A reading of the kernel's policies.
#[derive(Clone)]
struct Request {
    /// Number of the request. A reading may be applied more than once, in different ways.
    number: u64,
    ports: Vec<PortLink>,
    /// Families whose flows pass the gates, by port number.
    passing: BTreeMap<u16, Families>,
    /// Number of changes of the destinations that policies leave to the kernel. The tables have these, and may have had
    /// others between two requests.
    excepted: u64,
}

impl Flows {
    /// Starts to follow the connections of the calling thread's network namespace. `table` has no flows yet.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(table: flows::Flows, tables: Arc<Published<Tables>>, domain: &Qsbr) -> anyhow::Result<Self> {
        let (stop, request) = (AtomicBool::new(false), Mutex::new(None));
        let (ready, routes) = (AtomicU64::new(0), AtomicU64::new(0));
        let shared = Arc::new(Shared { stop, request, ready, routes, wake: Wake::new()?, statistics: Arc::default() });
        let ports = Ports::new(tables, domain);
        // A new thread is in the network namespace of the one that starts it.
        let subscription = Subscription::default();
        let told = BTreeMap::new();
        let own = Thread { shared: shared.clone(), ports, generation: 0, subscription, routes: 0, told };
        let thread = thread::Builder::new().name("bywash-flows".into()).spawn(move || own.run(table))?;
        Ok(Self { shared, thread: Some(thread), needed: false, requested: 0, excepted: (vec![], 0) })
    }

    /// Returns the statistics of flows.
    pub fn statistics(&self) -> Arc<Statistics> {
        self.shared.statistics.clone()
    }

    /// Requests that flows be judged by the rules of this reading, with these ports and its verdict, if flows pass any
    /// gates, or have passed any before: a kernel without rules is not made to track connections.
    pub fn judge(&mut self, ports: &[PortLink], verdict: &Verdict) {
        self.requested += 1;
        let (known, changes) = &mut self.excepted;
        if *known != verdict.prefixes {
            known.clone_from(&verdict.prefixes);
            *changes += 1;
        }
        let passing: BTreeMap<u16, Families> = verdict.gates.iter().map(|(port, gate)| (*port, gate.flows)).collect();
        self.needed |= passing.values().any(|families| !families.is_empty());
        if !self.needed {
            return;
        }
        let (number, excepted) = (self.requested, self.excepted.1);
        let request = Request { number, ports: ports.to_vec(), passing, excepted };
        *lock(&self.shared.request) = Some(request);
        self.shared.wake.wake();
    }

    /// Requests that flows be judged again, because routes have changed, if the rules look up routes.
    pub fn routes_changed(&self) {
        self.shared.routes.fetch_add(1, Ordering::Release);
        self.shared.wake.wake();
    }

    /// Returns whether all valid flows were judged as was requested last.
    pub fn is_ready(&self) -> bool {
        // A thread that has panicked no longer revokes flows.
        let runs = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        runs && self.requested > 0 && self.shared.ready.load(Ordering::Acquire) == self.requested
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn take(&self) -> Option<Request> {
        lock(&self.request).take()
    }

    /// Waits for a reading; if there is one to go on with, for [`PAUSE`] at most. `None` if the thread must end.
    fn next(&self, otherwise: Option<&Request>) -> anyhow::Result<Option<Request>> {
        let until = Instant::now() + PAUSE;
        while !self.stop.load(Ordering::Acquire) {
            if let Some(request) = self.take() {
                return Ok(Some(request));
            }
            let left = otherwise.map(|_| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(otherwise.cloned());
            }
            self.wake.wait([], left)?;
        }
        Ok(None)
    }
}

/// The router's ports and routes.
pub(super) struct Ports {
    tables: Arc<Published<Tables>>,
    /// Offline except during a lookup, so that no writer waits for this thread.
    reader: RefCell<qsbr::Reader>,
    /// Interfaces by port number.
    interfaces: HashMap<u16, Interface>,
    /// Families whose flows pass the gates, by port number.
    passing: BTreeMap<u16, Families>,
}

impl Routes for Ports {
    fn towards(&self, addr: IpAddr) -> Option<(u16, &Interface)> {
        let PortId(port) = self.ask(|tables| tables.egress(addr))?;
        Some((port, self.interfaces.get(&port)?))
    }

    fn is_source_of(&self, addr: IpAddr, port: u16) -> bool {
        self.ask(|tables| tables.is_source_of(addr, PortId(port)))
    }

    fn is_own(&self, addr: IpAddr) -> bool {
        self.ask(|tables| tables.is_own(addr))
    }

    fn is_excepted(&self, addr: IpAddr) -> bool {
        self.ask(|tables| tables.is_excepted(addr))
    }

    fn is_bridge(&self, port: u16) -> bool {
        self.ask(|tables| tables.is_bridged(PortId(port)))
    }

    fn passing(&self, port: u16) -> Families {
        self.passing.get(&port).copied().unwrap_or_default()
    }
}

impl Ports {
    /// Creates an empty set of ports, whose routes are in these tables of `domain`.
    pub fn new(tables: Arc<Published<Tables>>, domain: &Qsbr) -> Self {
        let mut reader = domain.register();
        reader.offline();
        Self { tables, reader: RefCell::new(reader), interfaces: HashMap::new(), passing: BTreeMap::new() }
    }

    fn ask<T>(&self, question: impl FnOnce(&Tables) -> T) -> T {
        let mut reader = self.reader.borrow_mut();
        reader.online();
        let answer = question(self.tables.load(&reader));
        reader.offline();
        answer
    }

    /// Sets the ports; returns whether they differ from those before.
    pub fn set(&mut self, ports: &[PortLink]) -> bool {
        let interfaces = ports.iter().filter(|port| port.index != 0).map(|port| (port.id, port.interface())).collect();
        std::mem::replace(&mut self.interfaces, interfaces) != self.interfaces
    }

    /// Sets the families whose flows pass each port; returns whether they differ from those before.
    pub fn pass(&mut self, passing: BTreeMap<u16, Families>) -> bool {
        std::mem::replace(&mut self.passing, passing) != self.passing
    }
}

struct Thread {
    shared: Arc<Shared>,
    ports: Ports,
    /// Generation of the valid flows.
    generation: u32,
    /// Events of connections that are received.
    subscription: Subscription,
    /// Number of changes of routes that valid flows have been judged by.
    routes: u64,
    /// Reasons, as logged, why the newest rules leave ordinary connections to the kernel, with the kinds of these.
    told: BTreeMap<String, Vec<&'static str>>,
}

impl Thread {
    fn run(mut self, table: flows::Flows) {
        if let Err(why) = self.follow_all(table) {
            // [`Flows::is_ready`] is false from now on.
            tracing::error!("established connections are left to the kernel until Bywash is started again: {why:#}");
        }
    }

    /// Follows the connections until the thread must end.
    fn follow_all(&mut self, table: flows::Flows) -> anyhow::Result<()> {
        // No socket is opened before a reading asks for it, so that a kernel without rules is not made to track
        // connections.
        let Some(mut request) = self.shared.next(None)? else { return Ok(()) };
        let mut failures = Failures::default();
        let (mut rules, kernel) = loop {
            match (Reader::open(), Kernel::open(Subscription::default())) {
                (Ok(rules), Ok(kernel)) => break (rules, kernel),
                (Err(why), _) => failures.report(&why.into()),
                (_, Err(why)) => failures.report(&why.into()),
            }
            let Some(next) = self.shared.next(Some(&request))? else { return Ok(()) };
            request = next;
        };
        let mut follower = Follower::new(kernel, table, self.shared.statistics.clone());
        loop {
            let next = match self.follow(&mut rules, &mut follower, &request, &mut failures) {
                Ok(next) => next,
                Err(failed) => {
                    self.shared.ready.store(0, Ordering::Release);
                    follower.revoke(0, Revocation::Failed);
                    failures.report(&failed);
                    self.shared.next(Some(&request))?
                }
            };
            let Some(next) = next else { return Ok(()) };
            request = next;
        }
    }

    /// Logs the rules that leave ordinary established connections to the kernel, unless it has done so.
    fn tell(&mut self, judge: &Judge<'_>, passing: &BTreeMap<u16, Families>) {
        let families = passing.values().fold(Families::NONE, |all, families| all | *families);
        if families.is_empty() {
            return;
        }
        let mut reasons: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
        for (passes, v6, protocol, kind) in [
            (families.v4, false, TCP, "IPv4 TCP"),
            (families.v4, false, UDP, "IPv4 UDP"),
            (families.v6, true, TCP, "IPv6 TCP"),
            (families.v6, true, UDP, "IPv6 UDP"),
        ] {
            if let Some(refusal) = judge.usual_refusal(v6, protocol).filter(|_| passes) {
                reasons.entry(refusal.to_string()).or_default().push(kind);
            }
        }
        for (reason, kinds) in reasons.iter().filter(|(reason, kinds)| self.told.get(*reason) != Some(kinds)) {
            let kinds = kinds.join(", ");
            tracing::warn!("established flows ({kinds}) are left to the kernel: {reason}; see `bywash show firewall`");
        }
        if reasons.is_empty() && !self.told.is_empty() {
            tracing::info!("established flows bypass the kernel's rules again");
        }
        self.told = reasons;
    }

    /// Follows the connections as long as the rules stay the same. Returns the first reading with other rules or other
    /// ports; `None` if the thread must end.
    fn follow(
        &mut self,
        rules: &mut Reader,
        follower: &mut Follower,
        request: &Request,
        failures: &mut Failures,
    ) -> anyhow::Result<Option<Request>> {
        // The gates let no packets of flows pass until the reading is ready.
        self.ports.set(&request.ports);
        self.ports.pass(request.passing.clone());
        let ruleset = rules.read_whole()?;
        let judge = Judge::new(&ruleset);
        if judge.subscription() != self.subscription {
            follower.listen(Kernel::open(judge.subscription())?);
            self.subscription = judge.subscription();
        }
        self.routes = self.shared.routes.load(Ordering::Acquire);
        let (mut timeouts, mut timeouts_read) = (timeouts()?, Instant::now());
        self.tell(&judge, &request.passing);
        self.renew_generation(follower, Revocation::Rules);
        self.shared.ready.store(request.number, Ordering::Release);
        let mut reading = Reading::default();
        self.read(follower, &judge, timeouts, &mut reading)?;
        failures.end();
        let (mut renewal, mut considering) = (Instant::now(), Considering::default());
        while !self.shared.stop.load(Ordering::Acquire) {
            if let Some(next) = self.shared.take() {
                let same = rules.generation()?.unwrap_or_default() == ruleset.generation;
                if !same || self.ports.set(&next.ports) || next.excepted != request.excepted {
                    self.shared.ready.store(0, Ordering::Release);
                    return Ok(Some(next));
                }
                // Flows that the gates hold back now, or no longer do, may wait: a reading revokes all for a while.
                if self.ports.pass(next.passing.clone()) {
                    reading.wanted = true;
                    self.tell(&judge, &next.passing);
                }
                self.shared.ready.store(next.number, Ordering::Release);
            }
            if self.routes_changed(&judge) {
                self.renew_generation(follower, Revocation::Rules);
                reading.wanted = true;
            }
            if reading.due().is_some_and(|due| due <= Instant::now()) {
                // The reading discards pending events: flows that have been added since the change may have ended.
                self.renew_generation(follower, Revocation::Rules);
                self.read(follower, &judge, timeouts, &mut reading)?;
            }
            if timeouts_read.elapsed() >= TIMEOUTS {
                let before = std::mem::replace(&mut timeouts, self::timeouts()?);
                timeouts_read = Instant::now();
                if timeouts != before {
                    self.renew_generation(follower, Revocation::Rules);
                    reading.wanted = true;
                }
            }
            let received = Instant::now();
            if follower.receive()? == Events::Lost {
                // The end of any connection may be among the lost events.
                self.renew_generation(follower, Revocation::Lost);
                self.read(follower, &judge, timeouts, &mut reading)?;
            }
            if renewal <= Instant::now() {
                renewal = Instant::now() + follower.renew(&timeouts)?;
            }
            if considering.due <= Instant::now() {
                considering.done(&follower.consider(&self.terms(&judge, timeouts))?);
            }
            let next = reading.due().into_iter().fold(renewal.min(considering.due), Instant::min);
            let mut limit = next.saturating_duration_since(Instant::now());
            if follower.flows().collect() > 0 {
                limit = limit.min(COLLECT);
            }
            let pause = limit.min(RECEIVING.saturating_sub(received.elapsed()));
            if !self.shared.wake.wait([], Some(pause))? {
                self.shared.wake.wait([follower.readable()], Some(limit))?;
            }
        }
        Ok(None)
    }

    fn terms<'a>(&'a self, judge: &'a Judge<'a>, timeouts: Timeouts) -> Terms<'a> {
        Terms { generation: self.generation, judge, routes: &self.ports, timeouts, are_current: &|| true }
    }

    /// Revokes all flows.
    fn renew_generation(&mut self, follower: &mut Follower, why: Revocation) {
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        follower.revoke(self.generation, why);
    }

    /// Returns whether routes have changed since the last call, if the rules look up routes.
    fn routes_changed(&mut self, judge: &Judge<'_>) -> bool {
        let changed = self.shared.routes.load(Ordering::Acquire);
        std::mem::replace(&mut self.routes, changed) != changed && judge.asks_routes()
    }

    /// Reads all connections. If routes change meanwhile, which revokes all flows at once, another reading is wanted.
    fn read(
        &mut self,
        follower: &mut Follower,
        judge: &Judge<'_>,
        timeouts: Timeouts,
        reading: &mut Reading,
    ) -> anyhow::Result<()> {
        let start = Instant::now();
        for _ in 0..TRIES {
            let are_current = || !judge.asks_routes() || self.shared.routes.load(Ordering::Acquire) == self.routes;
            let read = follower.read(&Terms { are_current: &are_current, ..self.terms(judge, timeouts) })?;
            let changed = self.routes_changed(judge);
            if changed {
                self.renew_generation(follower, Revocation::Rules);
            }
            if changed || read == Events::All {
                reading.done(start.elapsed());
                reading.wanted = changed;
                return Ok(());
            }
            self.renew_generation(follower, Revocation::Lost);
        }
        bail!("connections change faster than they can be read")
    }
}

/// Spacing of the readings of all connections that changes of routes require. Each change revokes all flows at once.
/// Until the reading, connections are judged again as their packets propose them.
#[derive(Default)]
struct Reading {
    wanted: bool,
    /// Earliest time of the next one.
    earliest: Option<Instant>,
}

impl Reading {
    /// Returns the time of the reading that is wanted; `None` if none is.
    fn due(&self) -> Option<Instant> {
        self.wanted.then(|| self.earliest.unwrap_or_else(Instant::now))
    }

    /// Notes a reading that has just been done, and took this long.
    fn done(&mut self, took: Duration) {
        self.wanted = false;
        self.earliest = Some(Instant::now() + took * (READING - 1));
    }
}

/// Time at which connections of packets without a flow are looked for again.
struct Considering {
    due: Instant,
    /// Time at which there were any.
    last: Instant,
}

impl Default for Considering {
    fn default() -> Self {
        let now = Instant::now();
        Self { due: now, last: now }
    }
}

impl Considering {
    fn done(&mut self, considered: &Considered) {
        let now = Instant::now();
        if considered.candidates > 0 {
            self.last = now;
        }
        self.due = match considered.more {
            true => now,
            false if now - self.last < Duration::from_secs(1) => now + CONSIDERING,
            false => now + IDLE,
        };
    }
}

/// Returns the kernel's timeouts of established connections.
fn timeouts() -> anyhow::Result<Timeouts> {
    let read = |name| -> anyhow::Result<u32> {
        let path = format!("/proc/sys/net/netfilter/nf_conntrack_{name}");
        let text = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
        text.trim().parse().with_context(|| format!("{path} has no number of seconds"))
    };
    let stalled = read("tcp_timeout_unacknowledged")?.min(read("tcp_timeout_max_retrans")?);
    let (tcp, udp) = (read("tcp_timeout_established")?, read("udp_timeout_stream")?);
    Ok(Timeouts { tcp, tcp_stalled: stalled, udp })
}

/// Failures, each logged once until it changes or ends.
#[derive(Default)]
struct Failures {
    reported: Option<String>,
}

impl Failures {
    fn report(&mut self, why: &anyhow::Error) {
        let why = format!("{why:#}");
        if self.reported.as_ref() != Some(&why) {
            tracing::warn!("established connections are left to the kernel: {why}; tried again every second");
            self.reported = Some(why);
        }
    }

    fn end(&mut self) {
        if self.reported.take().is_some() {
            tracing::info!("established connections are followed again");
        }
    }
}
