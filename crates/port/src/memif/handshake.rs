//! How a connection comes about, message by message. No socket in sight: what comes in is a message and maybe a
//! descriptor, what goes out as well.

use super::link::{Connected, Link};
use super::memory::{Region, Ring};
use super::message::{AddRing, Hello, Init, MAX_LOG2_RING, Message, SECRET, VERSION};
use super::refusal::Refusal;
use bywash_frame::Arena;
use rustix::event::EventfdFlags;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Most regions of a client: DPDK's has one for each of its memory segment lists.
const REGIONS: usize = 64;
/// Smallest ring.
const MIN_LOG2_RING: u8 = 4;

/// What a side goes into the handshake with.
#[derive(Clone)]
pub struct Terms {
    /// The interface's number.
    pub id: u32,
    /// Padded with zeros; all zeros: none.
    pub secret: [u8; SECRET],
    /// Slots of each ring, as a power of two: what a client makes.
    pub log2_ring: u8,
    /// Whether a server insists on memory that cannot be cut.
    pub sealed: bool,
    /// The port's name.
    pub name: String,
}

/// What follows from a message.
pub enum Heard {
    /// This is to be sent, with this descriptor.
    Say(Message, Option<OwnedFd>),
    /// It is done, after this is sent.
    Done(Option<Message>, Box<Connected>),
    /// The peer goes, for this reason.
    Gone(String),
}

fn program() -> String {
    format!("bywash {}", env!("CARGO_PKG_VERSION"))
}

/// The server's side of one connection.
pub struct Server {
    terms: Terms,
    peer: Option<String>,
    regions: Vec<Region>,
    from_client: Option<(Ring, OwnedFd)>,
    to_client: Option<(Ring, OwnedFd)>,
}

impl Server {
    /// Nothing has come yet.
    pub fn new(terms: Terms) -> Self {
        Self { terms, peer: None, regions: vec![], from_client: None, to_client: None }
    }

    /// What is said first.
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

    /// Takes the next message, and the descriptor that came with it.
    pub fn hear(&mut self, message: Message, fd: Option<OwnedFd>) -> Result<Heard, Refusal> {
        match (message, &self.peer) {
            (Message::Disconnect { reason, .. }, _) => return Ok(Heard::Gone(reason)),
            (Message::Init(init), None) => self.init(&init)?,
            (Message::AddRegion { index, size }, Some(_)) => {
                let fd = fd.ok_or(Refusal::RegionFd)?;
                if usize::from(index) != self.regions.len() || self.regions.len() == REGIONS {
                    return Err(Refusal::RegionIndex);
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
                return Ok(Heard::Done(Some(say), Connected { link, kick, peer }.into()));
            }
            _ => return Err(Refusal::Unexpected),
        }
        Ok(Heard::Say(Message::Ack, None))
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
        // SAFETY: rings and regions are both fields of this, and then of one link; no region is taken out before.
        let ring = unsafe { Ring::at(region, ring.offset, ring.log2_size) }.ok_or(Refusal::RingPlace)?;
        *place = Some((ring, fd));
        Ok(())
    }
}

/// Without telling by the time it takes how much of it was right.
fn same(one: &[u8; SECRET], other: &[u8; SECRET]) -> bool {
    one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Reading and polling anything else could block for as long as the peer likes.
fn is_eventfd(fd: &OwnedFd) -> Result<(), Refusal> {
    let what = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(|_| Refusal::Resources)?;
    if what.as_os_str() == "anon_inode:[eventfd]" { Ok(()) } else { Err(Refusal::NoEventFd) }
}

/// The client's side of one connection.
pub struct Client {
    terms: Terms,
    arena: Arc<Arena>,
    /// What is still to be said, once what was said before is acknowledged.
    steps: VecDeque<(Message, Option<OwnedFd>)>,
    made: Option<(Link, OwnedFd)>,
    peer: String,
}

impl Client {
    /// Waits for the server's hello.
    pub fn new(terms: Terms, arena: Arc<Arena>) -> Self {
        Self { terms, arena, steps: VecDeque::new(), made: None, peer: String::new() }
    }

    /// Takes the next message.
    pub fn hear(&mut self, message: Message) -> Result<Heard, Refusal> {
        match message {
            Message::Disconnect { reason, .. } => Ok(Heard::Gone(reason)),
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
                Ok(Heard::Done(None, Connected { link, kick, peer }.into()))
            }
            _ => Err(Refusal::Unexpected),
        }
    }

    fn next(&mut self) -> Result<Heard, Refusal> {
        self.steps.pop_front().map(|(message, fd)| Heard::Say(message, fd)).ok_or(Refusal::Unexpected)
    }

    /// The rings, in memory of their own; the packets lie in the arena.
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
