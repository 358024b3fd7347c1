//! memif port: one link at a time, served as server or client.

use super::control::{Control, Fresh};
use super::copying::Copying;
use super::kick::Kick;
use super::lending::{Lending, SPREAD};
use super::link::Link;
use super::refusal::Refusal;
use super::{Config, Error, RING, Role, SECRET};
use crate::pace::Pace;
use crate::{Port, PortCounters, PortState};
use bywash_frame::{Arena, BATCH, Batch, Buffers};
use rustix::event::EventfdFlags;
use rustix::io::ReadWriteFlags;
use std::cell::Cell;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Maximum size of a client's arena in bytes: descriptor offsets have 32 bits.
const REACH: usize = u32::MAX as usize;

enum Side {
    Server(Copying),
    Client(Lending),
}

/// Connection in use.
struct Using {
    link: Link,
    kick: Kick,
    /// Value of [`Fresh::number`].
    number: u64,
    side: Side,
    /// Receive index last read from the ring.
    known: u16,
    pace: Pace,
    /// Set once the connection has ended: packets up to this index are still received.
    last: Option<u16>,
}

/// One end of a memif connection.
///
/// The port connects and reconnects by itself and is down meanwhile. The peer is not trusted, see [the module](super).
///
/// # Thread-safety
/// Used by one worker. A thread of the port performs the operations that can block.
pub struct MemifPort {
    control: Option<Control>,
    using: Option<Using>,
    role: Role,
    ring: usize,
    /// Value of [`Desk::news`](super::control::Desk::news) when the state was last examined.
    seen: u64,
    /// Set if the peer was asked to wake this port.
    asleep: Cell<bool>,
    /// Set if packets were sent since the last `housekeep`.
    sent: bool,
    /// Always readable eventfd, for a worker that must not sleep.
    ready: OwnedFd,
    max_frame: usize,
    socket: String,
    counters: Arc<PortCounters>,
}

impl MemifPort {
    /// Opens the port: listens as a server, or starts to connect as a client. All frames must belong to `arena`.
    pub fn open(config: &Config, arena: &Arc<Arena>) -> Result<Self, Error> {
        if !config.ring.is_power_of_two() || !RING.contains(&config.ring) {
            return Err(Error::Ring(config.ring));
        }
        if config.secret.len() > SECRET || config.secret.contains('\0') {
            return Err(Error::Secret(config.secret.len()));
        }
        if config.role == Role::Client && arena.mapped() > REACH {
            return Err(Error::Reach(arena.mapped() >> 20));
        }
        let failed = |what| {
            let socket = config.socket.clone();
            move |source| Error::Socket { what, socket, source }
        };
        let ready = rustix::event::eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| failed("create an eventfd for")(e.into()))?;
        Ok(Self {
            control: Some(Control::start(config, arena).map_err(failed("listen at"))?),
            using: None,
            role: config.role,
            ring: config.ring,
            seen: 0,
            asleep: Cell::new(false),
            sent: false,
            ready,
            // Another Bywash cannot receive longer packets.
            max_frame: arena.max_data() - SPREAD,
            socket: config.socket.display().to_string(),
            counters: Arc::default(),
        })
    }

    /// Processes a change of the connection's state.
    #[cold]
    fn follow(&mut self, bufs: &mut Buffers) {
        let Some(control) = &self.control else { return };
        let news = control.desk.news();
        let mut state = control.desk.state();
        let ended = !state.open || state.fresh.is_some();
        if let Some(using) = &mut self.using {
            if ended && using.last.is_none() {
                using.last = Some(using.limit());
            }
            // The next link is taken once this one is finished.
            if state.fresh.is_none() {
                self.seen = news;
            }
            drop(state);
            return self.finish(bufs);
        }
        self.seen = news;
        if let Some(Fresh { link, kick, number }) = state.fresh.take() {
            let side = match self.role {
                Role::Server => Side::Server(Copying::default()),
                Role::Client => Side::Client(Lending::new(&link)),
            };
            let mut using = Using { link, kick, number, side, known: 0, pace: Pace::new(), last: None };
            using.link.rx.poll();
            if let Side::Client(lending) = &mut using.side {
                lending.refill(&using.link, bufs);
            }
            self.using = Some(using);
            self.asleep.set(false);
        }
    }

    /// Drops an ended link once all packets are received.
    #[cold]
    fn finish(&mut self, bufs: &mut Buffers) {
        let done = self
            .using
            .as_ref()
            .is_some_and(|using| using.last.is_some_and(|last| !matches!(using.waiting(last), Ok(1..))));
        if done {
            self.let_go(bufs);
        }
    }

    fn let_go(&mut self, bufs: &mut Buffers) {
        if let Some(Using { side: Side::Client(mut lending), .. }) = self.using.take() {
            lending.end(bufs);
        }
    }

    /// Ends the connection because of a protocol violation.
    #[cold]
    fn refuse(&mut self, why: Refusal, bufs: &mut Buffers) {
        let number = self.using.as_ref().filter(|using| using.last.is_none()).map(|using| using.number);
        self.let_go(bufs);
        if let (Some(control), Some(number)) = (&self.control, number) {
            control.desk.complain(number, why);
        }
    }

    /// Returns to polling after a sleep.
    #[cold]
    fn awake(&mut self) {
        self.asleep.set(false);
        let Some(using) = &self.using else { return };
        using.link.rx.poll();
        // RWF_NOWAIT never blocks, even if the peer made the shared eventfd blocking.
        let mut count = [0; 8];
        let bell = &using.link.bell;
        let _ = rustix::io::preadv2(bell, &mut [IoSliceMut::new(&mut count)], u64::MAX, ReadWriteFlags::NOWAIT);
    }
}

impl Using {
    /// Returns the index up to which to receive. Reads it from the ring only if fewer than a burst are known and a new
    /// poll is due.
    #[inline]
    fn poll(&mut self) -> u16 {
        if matches!(self.waiting(self.known), Ok(BATCH..)) {
            return self.known;
        }
        let Self { link, side, known, pace, .. } = self;
        pace.poll(|| {
            *known = side.limit(link);
            side.waiting(link, *known).unwrap_or(BATCH)
        });
        self.known
    }

    #[inline]
    fn limit(&self) -> u16 {
        self.side.limit(&self.link)
    }

    #[inline]
    fn waiting(&self, limit: u16) -> Result<usize, Refusal> {
        self.side.waiting(&self.link, limit)
    }
}

impl Side {
    #[inline]
    fn limit(&self, link: &Link) -> u16 {
        match self {
            Side::Server(_) => Copying::limit(link),
            Side::Client(_) => Lending::limit(link),
        }
    }

    #[inline]
    fn waiting(&self, link: &Link, limit: u16) -> Result<usize, Refusal> {
        match self {
            Side::Server(copying) => copying.waiting(link, limit),
            Side::Client(lending) => lending.waiting(limit),
        }
    }
}

impl Port for MemifPort {
    #[inline]
    fn rx_burst(&mut self, bufs: &mut Buffers, out: &mut Batch) -> usize {
        if self.control.as_ref().is_none_or(|control| control.desk.news() != self.seen) {
            self.follow(bufs);
        }
        if self.asleep.get() {
            self.awake();
        }
        let Some(using) = &mut self.using else { return 0 };
        let limit = using.last.unwrap_or_else(|| using.poll());
        let from = (&using.link, limit);
        let counters = &*self.counters;
        let got = match &mut using.side {
            Side::Server(copying) => copying.receive(from, bufs, out, counters),
            Side::Client(lending) => {
                let got = lending.receive(from, bufs, out, counters);
                if using.last.is_none() {
                    lending.refill(&using.link, bufs);
                }
                got
            }
        };
        if using.last.is_some() {
            self.finish(bufs);
        }
        got.unwrap_or_else(|why| {
            self.refuse(why, bufs);
            0
        })
    }

    #[inline]
    fn tx_burst(&mut self, bufs: &mut Buffers, frames: &mut Batch) -> usize {
        let Some(using) = self.using.as_mut().filter(|using| using.last.is_none()) else { return 0 };
        let counters = &*self.counters;
        let offered = frames.len();
        let sent = match &mut using.side {
            Side::Server(copying) => copying.send(&using.link, bufs, frames, counters),
            Side::Client(lending) if lending.crowded(offered) => {
                lending.reclaim(&using.link, bufs).map(|()| lending.send(&using.link, frames, counters))
            }
            Side::Client(lending) => Ok(lending.send(&using.link, frames, counters)),
        };
        let sent = match sent {
            Ok(sent) => sent,
            Err(why) => {
                self.refuse(why, bufs);
                return 0;
            }
        };
        if sent < offered {
            counters.tx_full.add(1);
        }
        if sent > 0 {
            self.sent = true;
            // Pairs with the fence in `wait_fd`: either the receiver sees these packets before it sleeps, or this side
            // sees that it must wake the receiver.
            fence(Ordering::SeqCst);
            if using.link.tx.wants_waking() {
                using.kick.ask();
                counters.tx_wakeups.add(1);
            }
        }
        sent
    }

    #[inline]
    fn housekeep(&mut self, bufs: &mut Buffers) {
        if self.control.as_ref().is_some_and(|control| control.desk.news() != self.seen) {
            self.follow(bufs);
        }
        let Some(Using { link, side: Side::Client(lending), last: None, .. }) = &mut self.using else { return };
        // A turn that sends has reclaimed in `tx_burst`.
        let idle = !std::mem::take(&mut self.sent);
        if idle
            && lending.sending() > 0
            && let Err(why) = lending.reclaim(link, bufs)
        {
            self.refuse(why, bufs);
        }
    }

    fn held(&self) -> usize {
        match &self.using {
            Some(Using { side: Side::Client(lending), .. }) => lending.held(),
            _ => 0,
        }
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        let using = self.using.as_ref()?;
        using.link.rx.wake_me();
        self.asleep.set(true);
        // Pairs with the fence in `tx_burst`: either this side sees the packets, or the sender sees that it must wake
        // this side.
        fence(Ordering::SeqCst);
        let idle = using.last.is_none() && matches!(using.waiting(using.limit()), Ok(0));
        Some(if idle { using.link.bell.as_fd() } else { self.ready.as_fd() })
    }

    fn state(&self) -> PortState {
        let Some(control) = &self.control else { return PortState::Down("closed".into()) };
        if self.using.as_ref().is_some_and(|using| using.last.is_none()) {
            return PortState::Up;
        }
        let state = control.desk.state();
        if state.fresh.is_some() { PortState::Up } else { PortState::Down(state.why.clone()) }
    }

    fn max_frame(&self) -> usize {
        self.max_frame
    }

    fn counters(&self) -> Arc<PortCounters> {
        self.counters.clone()
    }

    fn details(&self) -> Vec<(&'static str, String)> {
        let mut details = vec![("queue", "0".into()), ("socket", self.socket.clone())];
        details.push(match self.role {
            Role::Server => ("mode", "memif server, copy".into()),
            Role::Client => ("mode", "memif client, zero-copy".into()),
        });
        let ring = self.using.as_ref().map_or(self.ring, |using| using.link.tx.slots());
        details.push(("ring", ring.to_string()));
        let Some(control) = &self.control else { return details };
        let state = control.desk.state();
        if state.open {
            details.push(("peer", state.peer.clone()));
        }
        details.push(("reconnects", state.connections.saturating_sub(1).to_string()));
        if let Some(refusal) = state.refusal {
            details.push(("refused", format!("{} ({refusal})", state.refused)));
        }
        details
    }

    fn close(&mut self, bufs: &mut Buffers) {
        // Disconnect before the peer's memory is unmapped.
        self.control = None;
        self.let_go(bufs);
    }
}
