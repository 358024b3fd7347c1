//! Control thread of a port, which connects.
//!
//! Neither the worker nor this thread makes a system call that the peer could block.

use super::handshake::{Client, Server, Step, Terms};
use super::kick::{Kick, Kicker};
use super::link::Connected;
use super::refusal::Refusal;
use super::socket::{Came, Channel, Listener};
use super::{Config, Link, Role};
use bywash_frame::Arena;
use bywash_sync::lock;
use rustix::event::{EventfdFlags, PollFd, PollFlags, poll};
use std::convert::Infallible;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Time limit of a handshake.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum number of concurrent handshakes of a server.
const CROWD: usize = 8;
/// Interval between connection attempts of a client.
const RETRY: Duration = Duration::from_millis(100);
/// Time limit for the thread to disconnect the peer when the port is closed.
const LAST: Duration = Duration::from_secs(1);
/// Time limit for the threads that wake the peers to end, after the port is closed.
const LAST_KICK: Duration = Duration::from_millis(500);

/// State shared between worker and control thread.
pub struct Desk {
    /// Incremented when a connection is made or ends.
    news: AtomicU64,
    stop: AtomicBool,
    /// Eventfd that wakes the control thread.
    wake: OwnedFd,
    state: Mutex<State>,
}

/// New connection.
pub struct Fresh {
    pub link: Link,
    pub kick: Kick,
    /// Value of [`State::connections`], which identifies the connection.
    pub number: u64,
}

/// Connection as known to the control thread.
#[derive(Default)]
pub struct State {
    /// New connection that the worker has not taken yet.
    pub fresh: Option<Fresh>,
    /// Set if the latest link is still connected.
    pub open: bool,
    /// Protocol violation that the worker found, and the number of the connection.
    pub fault: Option<(u64, Refusal)>,
    /// Name of the peer of the latest link.
    pub peer: String,
    /// Reason for which there is no connection.
    pub why: String,
    /// Number of connections so far.
    pub connections: u64,
    /// Number of connections refused or ended for a protocol violation; `refusal` is the latest reason.
    pub refused: u64,
    pub refusal: Option<Refusal>,
}

impl Desk {
    fn new(why: String) -> std::io::Result<Self> {
        Ok(Self {
            news: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            state: Mutex::new(State { why, ..State::default() }),
        })
    }

    /// Returns a counter that changes when a connection is made or ends.
    #[inline]
    pub fn news(&self) -> u64 {
        self.news.load(Ordering::Acquire)
    }

    /// Locks the state. Hold the lock briefly: the worker takes it, too.
    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Requests that the control thread end the connection of this number because of `fault`. Does nothing if it has
    /// ended by itself.
    pub fn complain(&self, number: u64, fault: Refusal) {
        self.state().fault = Some((number, fault));
        self.ring();
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.news.fetch_add(1, Ordering::Release);
    }
}

/// Running control thread. Dropping it ends the connection and waits until the peer is disconnected and the socket
/// released, which no peer can delay, and for at most `LAST`. The thread goes on until those that wake the peers have
/// ended.
pub struct Control {
    pub desk: Arc<Desk>,
    /// Receives nothing: the thread drops the other end once it has released the socket.
    released: Receiver<Infallible>,
}

impl Control {
    /// Starts the thread, which listens as a server or tries to connect as a client.
    pub fn start(config: &Config, arena: &Arc<Arena>) -> std::io::Result<Self> {
        let path = config.socket.clone();
        let (why, side) = match config.role {
            Role::Server => (
                "no client has connected".to_owned(),
                Side::Server { listener: Listener::bind(&path)?, waiting: vec![] },
            ),
            Role::Client => {
                let (peer, arena) = (config.peer, arena.clone());
                let side = Side::Client { path, peer, arena, trying: None, tried: None };
                ("no server has answered".to_owned(), side)
            }
        };
        let desk = Arc::new(Desk::new(why)?);
        let mut keeper = Keeper { desk: desk.clone(), terms: config.terms(), side, current: None, ended: vec![] };
        let (holds, released) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("bywash-memif".into()).spawn(move || {
            keeper.run();
            let ended = keeper.close();
            drop(holds);
            empty(&ended);
        })?;
        Ok(Self { desk, released })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.desk.stop.store(true, Ordering::Release);
        self.desk.ring();
        let _ = self.released.recv_timeout(LAST);
    }
}

/// Waits for the threads that wake the peers. One that a peer keeps blocked even so is left behind, with nothing but
/// the peer's eventfd.
fn empty(ended: &[Kicker]) {
    let until = Instant::now() + LAST_KICK;
    while !ended.iter().all(Kicker::has_ended) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Waiting<H> {
    channel: Channel,
    handshake: H,
    since: Instant,
}

enum Side {
    Server {
        listener: Listener,
        waiting: Vec<Waiting<Server>>,
    },
    Client {
        path: PathBuf,
        peer: Option<u32>,
        arena: Arc<Arena>,
        trying: Option<Box<Waiting<Client>>>,
        tried: Option<Instant>,
    },
}

struct Keeper {
    desk: Arc<Desk>,
    terms: Terms,
    side: Side,
    current: Option<(Channel, Kicker)>,
    /// Threads of former connections that have not ended yet.
    ended: Vec<Kicker>,
}

/// Outcome of a handshake step.
enum Progress<H> {
    Waits(Waiting<H>),
    Done(Channel, Box<Connected>),
    /// Failed: the reason, and the refusal if this side ended it.
    Over(String, Option<Refusal>),
}

impl<H> Waiting<H> {
    /// Processes all messages that have arrived.
    fn go_on(
        mut self,
        handle: impl Fn(&mut H, super::message::Message, Option<OwnedFd>) -> Result<Step, Refusal>,
    ) -> Progress<H> {
        loop {
            let step = match self.channel.receive() {
                Came::Nothing if self.since.elapsed() > PATIENCE => Err(Refusal::Slow),
                Came::Nothing => return Progress::Waits(self),
                Came::End => return Progress::Over("the peer hung up".into(), None),
                Came::Wrong(why) => Err(why),
                Came::Message(message, fd) => handle(&mut self.handshake, message, fd),
            };
            let said = match step {
                Ok(Step::Disconnected(reason)) => return Progress::Over(format!("the peer refused: {reason}"), None),
                Ok(Step::Reply(message, fd)) => self.channel.send(&message, fd.as_ref()),
                Ok(Step::Connected(message, connected)) => {
                    let said = message.map_or(Ok(()), |message| self.channel.send(&message, None));
                    if said.is_ok() {
                        return Progress::Done(self.channel, connected);
                    }
                    said
                }
                Err(why) => {
                    self.channel.end(why);
                    return Progress::Over(format!("refused a peer: {why}"), Some(why));
                }
            };
            if let Err(e) = said {
                return Progress::Over(format!("cannot send to the peer: {e}"), None);
            }
        }
    }
}

impl Keeper {
    fn run(&mut self) {
        while !self.desk.stop.load(Ordering::Acquire) {
            self.wait();
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.desk.wake, &mut count);
            self.ended.retain(|kicker| !kicker.has_ended());
            self.look_after();
            self.look_for();
        }
    }

    /// Disconnects all peers and releases the socket. Returns the threads that have not ended yet.
    fn close(mut self) -> Vec<Kicker> {
        if let Some(channel) = self.end() {
            channel.end(Refusal::Closed);
        }
        if let Side::Server { waiting, .. } = &mut self.side {
            waiting.drain(..).for_each(|one| one.channel.end(Refusal::Closed));
        }
        self.ended
    }

    /// Ends the current connection; returns its channel.
    fn end(&mut self) -> Option<Channel> {
        let (channel, kicker) = self.current.take()?;
        kicker.stop();
        self.ended.push(kicker);
        Some(channel)
    }

    fn wait(&self) {
        let mut fds: Vec<BorrowedFd<'_>> = vec![self.desk.wake.as_fd()];
        fds.extend(self.current.iter().map(|(channel, _)| channel.0.as_fd()));
        let timeout = match &self.side {
            Side::Server { listener, waiting } => {
                fds.push(listener.fd.as_fd());
                fds.extend(waiting.iter().map(|one| one.channel.0.as_fd()));
                (!waiting.is_empty()).then_some(RETRY)
            }
            Side::Client { trying, .. } => {
                fds.extend(trying.iter().map(|one| one.channel.0.as_fd()));
                self.current.is_none().then_some(RETRY)
            }
        };
        let mut fds: Vec<PollFd<'_>> = fds.into_iter().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let timeout = timeout.or((!self.ended.is_empty()).then_some(RETRY));
        let timeout = timeout.map(|time| rustix::time::Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() });
        let _ = poll(&mut fds, timeout.as_ref());
    }

    /// Checks the current connection, and ends it on a fault or a message from the peer.
    fn look_after(&mut self) {
        let Some((channel, _)) = &self.current else { return };
        let fault = {
            let mut state = self.desk.state();
            // The worker may have found it after the connection ended and the next one was made.
            state.fault.take().filter(|(number, _)| *number == state.connections)
        };
        let why = match fault {
            Some((_, fault)) => Err(fault),
            None => match channel.receive() {
                Came::Nothing => return,
                Came::End => Ok("the peer hung up".to_owned()),
                Came::Message(super::message::Message::Disconnect { reason, .. }, _) => {
                    Ok(format!("the peer disconnected: {reason}"))
                }
                Came::Message(..) => Err(Refusal::Unexpected),
                Came::Wrong(why) => Err(why),
            },
        };
        if let (Some(channel), Err(refusal)) = (self.end(), &why) {
            channel.end(*refusal);
        }
        self.desk.change(|state| {
            state.open = false;
            state.fresh = None;
            state.refused += u64::from(why.is_err());
            state.refusal = why.as_ref().err().copied().or(state.refusal);
            state.why = why.unwrap_or_else(|refusal| format!("disconnected the peer: {refusal}"));
        });
    }

    /// Advances pending handshakes: accepts clients as a server, tries to connect as a client.
    fn look_for(&mut self) {
        let mut done = None;
        // Each connection may leave a thread behind that its client does not let end.
        let stuck = self.ended.len() >= CROWD;
        match &mut self.side {
            Side::Server { listener, waiting } => {
                while let Some(channel) = listener.accept() {
                    if stuck {
                        channel.end(Refusal::Crowd);
                        continue;
                    }
                    if waiting.len() == CROWD {
                        waiting.remove(0).channel.end(Refusal::Crowd);
                    }
                    let handshake = Server::new(self.terms.clone());
                    if channel.send(&Server::hello(), None).is_ok() {
                        waiting.push(Waiting { channel, handshake, since: Instant::now() });
                    }
                }
                for one in std::mem::take(waiting) {
                    let taken = self.current.is_some() || done.is_some();
                    let handle = |server: &mut Server, message, fd| match server.handle(message, fd) {
                        Ok(Step::Reply(..) | Step::Connected(..)) if taken => Err(Refusal::Taken),
                        step => step,
                    };
                    match one.go_on(handle) {
                        Progress::Waits(one) => waiting.push(one),
                        Progress::Done(channel, connected) => done = Some((channel, connected)),
                        Progress::Over(why, refusal) => over(&self.desk, why, refusal, taken),
                    }
                }
            }
            Side::Client { path, peer, arena, trying, tried } if self.current.is_none() => {
                if trying.is_none() && tried.is_none_or(|tried| tried.elapsed() >= RETRY) {
                    *tried = Some(Instant::now());
                    match Channel::connect(path, *peer) {
                        Ok(channel) => {
                            let handshake = Client::new(self.terms.clone(), arena.clone());
                            *trying = Some(Box::new(Waiting { channel, handshake, since: Instant::now() }));
                        }
                        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => {
                            over(&self.desk, e.to_string(), None, false);
                        }
                        Err(e) => over(&self.desk, format!("no server answers: {e}"), None, false),
                    }
                }
                match trying.take().map(|one| (*one).go_on(|client, message, _| client.handle(message))) {
                    Some(Progress::Waits(one)) => *trying = Some(Box::new(one)),
                    Some(Progress::Done(channel, connected)) => done = Some((channel, connected)),
                    Some(Progress::Over(why, refusal)) => over(&self.desk, why, refusal, false),
                    None => {}
                }
            }
            Side::Client { .. } => {}
        }
        let Some((channel, connected)) = done else { return };
        let Connected { link, kick, peer } = *connected;
        let Ok(kicker) = Kicker::start(kick) else {
            let why = Refusal::Resources;
            channel.end(why);
            return over(&self.desk, format!("refused a peer: {why}"), Some(why), false);
        };
        let kick = kicker.kick();
        self.current = Some((channel, kicker));
        self.desk.change(|state| {
            state.connections += 1;
            state.fresh = Some(Fresh { link, kick, number: state.connections });
            state.open = true;
            state.peer = peer;
        });
    }
}

/// Records how a connection attempt ended.
fn over(desk: &Desk, why: String, refusal: Option<Refusal>, connected: bool) {
    let mut state = desk.state();
    state.refused += u64::from(refusal.is_some());
    state.refusal = refusal.or(state.refusal);
    if !connected {
        state.why = why;
    }
}
