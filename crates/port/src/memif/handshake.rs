//! Connection handshake as a state machine without a socket: input and output are messages, each with an optional file
//! descriptor.

use super::link::{Connected, Link};
use super::memory::{REACH, Region, Ring};
use super::message::{AddRing, Hello, Init, MAX_LOG2_RING, Message, SECRET, VERSION};
use super::refusal::Refusal;
use super::{MAPPED, REGIONS};
use bywash_frame::Arena;
use rustix::event::EventfdFlags;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Log2 of the smallest ring size.
const MIN_LOG2_RING: u8 = 4;

/// Parameters of one side of the handshake.
#[derive(Clone)]
pub struct Terms {
    /// Interface ID.
    pub id: u32,
    /// Secret, padded with zeros; all zeros if there is none.
    pub secret: [u8; SECRET],
    /// Log2 of the slots of each ring that a client creates.
    pub log2_ring: u8,
    /// Set if a server requires memory that the client cannot take away.
    pub sealed: bool,
    /// Name of the port.
    pub name: String,
}

/// Step that follows from a message.
pub enum Step {
    /// This reply is to be sent, with its file descriptor.
    Reply(Message, Option<OwnedFd>),
    /// The handshake is complete once this message, if any, is sent.
    Connected(Option<Message>, Box<Connected>),
    /// The peer has disconnected, for this reason.
    Disconnected(String),
}

fn program() -> String {
    format!("bywash {}", env!("CARGO_PKG_VERSION"))
}

/// Server's side of one handshake.
pub struct Server {
    terms: Terms,
    peer: Option<String>,
    regions: Vec<Region>,
    from_client: Option<(Ring, OwnedFd)>,
    to_client: Option<(Ring, OwnedFd)>,
}

impl Server {
    /// Starts a handshake that has received no message.
    pub fn new(terms: Terms) -> Self {
        Self { terms, peer: None, regions: vec![], from_client: None, to_client: None }
    }

    /// Returns the server's first message.
    pub fn hello() -> Message {
        Message::Hello(Hello {
            name: program(),
            min_version: VERSION,
            max_version: VERSION,
            max_region: REGIONS as u16 - 1,
            max_s2c_ring: 0,
            max_c2s_ring: 0,
            max_log2_ring: MAX_LOG2_RING,
        })
    }

    /// Processes the next message and the file descriptor that came with it.
    pub fn handle(&mut self, message: Message, fd: Option<OwnedFd>) -> Result<Step, Refusal> {
        match (message, &self.peer) {
            (Message::Disconnect { reason, .. }, _) => return Ok(Step::Disconnected(reason)),
            (Message::Init(init), None) => self.init(&init)?,
            (Message::AddRegion { index, size }, Some(_)) => {
                let fd = fd.ok_or(Refusal::RegionFd)?;
                if usize::from(index) != self.regions.len() {
                    return Err(Refusal::RegionIndex);
                }
                if self.regions.len() == REGIONS {
                    return Err(Refusal::RegionCount);
                }
                let mapped: u64 = self.regions.iter().map(|region| region.len() as u64).sum();
                if mapped + size.min(REACH) > MAPPED {
                    return Err(Refusal::RegionTotal);
                }
                self.regions.push(Region::of_peer(&fd, size, self.terms.sealed)?);
            }
            (Message::AddRing(ring), Some(_)) => self.ring(&ring, fd)?,
            (Message::Connect { name }, Some(program)) => {
                let peer = format!("{program}, {name}");
                let (Some((rx, bell)), Some((tx, kick))) = (self.from_client.take(), self.to_client.take()) else {
                    return Err(Refusal::RingMissing);
                };
                if !rx.is_ring() || !tx.is_ring() {
                    return Err(Refusal::Cookie);
                }
                [&rx, &tx].iter().for_each(|ring| {
                    ring.set_head(0);
                    ring.set_tail(0);
                });
                rx.poll();
                let link = Link { rx, tx, bell, regions: std::mem::take(&mut self.regions) };
                let say = Message::Connected { name: self.terms.name.clone() };
                return Ok(Step::Connected(Some(say), Connected { link, kick, peer }.into()));
            }
            _ => return Err(Refusal::Unexpected),
        }
        Ok(Step::Reply(Message::Ack, None))
    }

    fn init(&mut self, init: &Init) -> Result<(), Refusal> {
        match () {
            () if init.version != VERSION => return Err(Refusal::Version),
            () if init.id != self.terms.id => return Err(Refusal::Id),
            () if init.mode != 0 => return Err(Refusal::Mode),
            () if self.terms.secret != [0; SECRET] && !same(&init.secret, &self.terms.secret) => {
                return Err(Refusal::Secret);
            }
            () => self.peer = Some(init.name.clone()),
        }
        Ok(())
    }

    fn ring(&mut self, ring: &AddRing, fd: Option<OwnedFd>) -> Result<(), Refusal> {
        let fd = fd.ok_or(Refusal::RingFd)?;
        let place = if ring.from_client { &mut self.from_client } else { &mut self.to_client };
        if ring.index != 0 || place.is_some() {
            return Err(Refusal::RingIndex);
        }
        if !(MIN_LOG2_RING..=MAX_LOG2_RING).contains(&ring.log2_size) {
            return Err(Refusal::RingSize);
        }
        if ring.private_header != 0 {
            return Err(Refusal::PrivateHeader);
        }
        is_eventfd(&fd)?;
        let region = self.regions.get(usize::from(ring.region)).ok_or(Refusal::RingPlace)?;
        // SAFETY: ring and region are both fields of this handshake and later of one link; no region is removed before.
        let ring = unsafe { Ring::at(region, ring.offset, ring.log2_size) }.ok_or(Refusal::RingPlace)?;
        *place = Some((ring, fd));
        Ok(())
    }
}

/// Compares two secrets in constant time.
fn same(one: &[u8; SECRET], other: &[u8; SECRET]) -> bool {
    one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Errors with [`Refusal::NoEventFd`] unless `fd` is an eventfd. Reading or polling any other file could block for as
/// long as the peer likes.
fn is_eventfd(fd: &OwnedFd) -> Result<(), Refusal> {
    let what = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(|_| Refusal::Resources)?;
    if what.as_os_str() == "anon_inode:[eventfd]" { Ok(()) } else { Err(Refusal::NoEventFd) }
}

/// Client's side of one handshake.
pub struct Client {
    terms: Terms,
    arena: Arc<Arena>,
    /// Messages still to be sent, each after the previous one is acknowledged.
    steps: VecDeque<(Message, Option<OwnedFd>)>,
    made: Option<(Link, OwnedFd)>,
    peer: String,
}

impl Client {
    /// Starts a handshake that waits for the server's hello.
    pub fn new(terms: Terms, arena: Arc<Arena>) -> Self {
        Self { terms, arena, steps: VecDeque::new(), made: None, peer: String::new() }
    }

    /// Processes the next message.
    pub fn handle(&mut self, message: Message) -> Result<Step, Refusal> {
        match message {
            Message::Disconnect { reason, .. } => Ok(Step::Disconnected(reason)),
            Message::Hello(hello) if self.made.is_none() => {
                if !(hello.min_version..=hello.max_version).contains(&VERSION) {
                    return Err(Refusal::Version);
                }
                self.peer = hello.name;
                self.make(self.terms.log2_ring.min(hello.max_log2_ring))?;
                self.next()
            }
            Message::Ack => self.next(),
            Message::Connected { name } if self.steps.is_empty() => {
                let (link, kick) = self.made.take().ok_or(Refusal::Unexpected)?;
                let peer = format!("{}, {name}", self.peer);
                Ok(Step::Connected(None, Connected { link, kick, peer }.into()))
            }
            _ => Err(Refusal::Unexpected),
        }
    }

    fn next(&mut self) -> Result<Step, Refusal> {
        self.steps.pop_front().map(|(message, fd)| Step::Reply(message, fd)).ok_or(Refusal::Unexpected)
    }

    /// Creates both rings in a region of their own and queues the messages. Packet data stays in the arena, which is
    /// the second region.
    fn make(&mut self, log2: u8) -> Result<(), Refusal> {
        if log2 < MIN_LOG2_RING {
            return Err(Refusal::RingSize);
        }
        let out = |_| Refusal::Resources;
        let (region, memory) = Region::create(2 * Ring::bytes(log2)).map_err(out)?;
        let offset = Ring::bytes(log2) as u32;
        // SAFETY: the region and both rings become fields of one link.
        let rings = unsafe { (Ring::at(&region, 0, log2), Ring::at(&region, offset, log2)) };
        let (Some(tx), Some(rx)) = rings else { return Err(Refusal::Resources) };
        tx.reset();
        rx.reset();
        let bell = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let (kick, bell) = (bell().map_err(|_| Refusal::Resources)?, bell().map_err(|_| Refusal::Resources)?);
        let packets = self.arena.fd().try_clone_to_owned().map_err(out)?;
        let ring = |from_client, offset| {
            Message::AddRing(AddRing { from_client, index: 0, region: 0, offset, log2_size: log2, private_header: 0 })
        };
        let sizes = [region.len() as u64, self.arena.mapped() as u64];
        let init = Init { version: VERSION, id: self.terms.id, mode: 0, secret: self.terms.secret, name: program() };
        self.steps = VecDeque::from([
            (Message::Init(init), None),
            (Message::AddRegion { index: 0, size: sizes[0] }, Some(memory)),
            (Message::AddRegion { index: 1, size: sizes[1] }, Some(packets)),
            (ring(true, 0), Some(kick.try_clone().map_err(out)?)),
            (ring(false, offset), Some(bell.try_clone().map_err(out)?)),
            (Message::Connect { name: self.terms.name.clone() }, None),
        ]);
        let regions = vec![region, Region::arena(&self.arena)];
        self.made = Some((Link { rx, tx, bell, regions }, kick));
        Ok(())
    }
}
