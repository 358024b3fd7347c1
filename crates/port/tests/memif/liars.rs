//! memif peers that violate the protocol: each must be refused with the right reason, without losing frames.

use super::common::batch_of;
use super::{End, LONG, config, socket};
use bywash_frame::Batch;
use bywash_port::memif::{AddRing, Config, Hello, Init, MESSAGE_SIZE, Message, REGIONS, Refusal, Role};
use bywash_port::{Port, PortState};
use proptest::prelude::*;
use rustix::event::EventfdFlags;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Peer's end of a control socket, driven by the test.
struct Wire(OwnedFd);

fn seqpacket() -> OwnedFd {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

impl Wire {
    fn connect(path: &Path) -> Self {
        let fd = seqpacket();
        connect(&fd, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let wire = Self(fd);
        assert!(matches!(wire.receive(), Some((Message::Hello(_), None))));
        wire
    }

    fn send_bytes(&self, bytes: &[u8], fd: Option<&OwnedFd>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = fd.map(|fd| [fd.as_fd()]);
        if let Some(fds) = &fds {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        // Errors are ignored: the port may have closed the socket, and the reason is in a message received before.
        let _ = sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    fn send(&self, message: &Message, fd: Option<&OwnedFd>) {
        self.send_bytes(&message.bytes(), fd);
    }

    /// Receives the next message, or `None` once the socket is closed.
    fn receive(&self) -> Option<(Message, Option<OwnedFd>)> {
        let mut bytes = [0; MESSAGE_SIZE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC).ok()?;
        let mut fd = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                fds.for_each(|one| fd = Some(one));
            }
        }
        (got.bytes == MESSAGE_SIZE).then(|| (Message::read(&bytes).unwrap(), fd))
    }

    /// Returns the reason of the disconnect message, skipping all messages before it.
    fn refused(&self) -> String {
        while let Some((message, _)) = self.receive() {
            if let Message::Disconnect { reason, .. } = message {
                return reason;
            }
        }
        "nothing".into()
    }
}

const SLOTS_LOG2: u8 = 6;
const RING: usize = 128 + (16 << SLOTS_LOG2);
const MEMORY: usize = 1 << 16;

fn memory(seal: bool) -> OwnedFd {
    let fd = rustix::fs::memfd_create("liar", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, MEMORY as u64).unwrap();
    if seal {
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    }
    for ring in [0, RING] {
        poke(&fd, ring, &0x3E31F20u32.to_le_bytes());
    }
    fd
}

fn poke(fd: &OwnedFd, at: usize, bytes: &[u8]) {
    assert_eq!(rustix::io::pwrite(fd, bytes, at as u64).unwrap(), bytes.len());
}

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}

fn init() -> Init {
    Init { version: 0x200, id: 0, mode: 0, secret: [0; 24], name: "liar".into() }
}

fn ring(from_client: bool) -> AddRing {
    let offset = if from_client { 0 } else { RING as u32 };
    AddRing { from_client, index: 0, region: 0, offset, log2_size: SLOTS_LOG2, private_header: 0 }
}

/// Returns all messages of a valid client, each with its descriptor.
fn speech() -> Vec<(Message, Option<OwnedFd>)> {
    vec![
        (Message::Init(init()), None),
        (Message::AddRegion { index: 0, size: MEMORY as u64 }, Some(memory(true))),
        (Message::AddRing(ring(true)), Some(eventfd())),
        (Message::AddRing(ring(false)), Some(eventfd())),
        (Message::Connect { name: "liar0".into() }, None),
    ]
}

/// Sends the messages one by one, each after the reply to the previous one. Errors with the reason if the server
/// disconnects.
fn try_to_say(path: &Path, speech: &[(Message, Option<OwnedFd>)]) -> Result<Wire, String> {
    let wire = Wire::connect(path);
    for (message, fd) in speech {
        wire.send(message, fd.as_ref());
        match wire.receive() {
            Some((Message::Ack | Message::Connected { .. }, None)) => {}
            Some((Message::Disconnect { reason, .. }, None)) => return Err(reason),
            answer => return Err(format!("no answer: {answer:?}")),
        }
    }
    Ok(wire)
}

fn say(path: &Path, speech: &[(Message, Option<OwnedFd>)]) -> Wire {
    try_to_say(path, speech).unwrap()
}

/// Returns the reason with which the server refused these messages.
fn reason(path: &Path, speech: &[(Message, Option<OwnedFd>)]) -> String {
    try_to_say(path, speech).err().unwrap_or_else(|| "nothing".into())
}

#[test]
fn a_server_refuses_what_is_no_handshake() {
    let (path, _folder) = socket();
    let mut server = End::open(&config(&path, Role::Server));
    type Lie = fn(&mut Vec<(Message, Option<OwnedFd>)>);
    let ring_lie = |lie: fn(&mut AddRing)| {
        let mut bad = ring(true);
        lie(&mut bad);
        Message::AddRing(bad)
    };
    let lies: [(Refusal, Lie); 12] = [
        (Refusal::Version, |s| s[0].0 = Message::Init(Init { version: 0x201, ..init() })),
        (Refusal::Id, |s| s[0].0 = Message::Init(Init { id: 1, ..init() })),
        (Refusal::Mode, |s| s[0].0 = Message::Init(Init { mode: 1, ..init() })),
        (Refusal::Unexpected, |s| drop(s.remove(0))),
        (Refusal::Unexpected, |s| s[1].0 = Message::Ack),
        (Refusal::RegionFd, |s| s[1].1 = None),
        (Refusal::RegionIndex, |s| s[1].0 = Message::AddRegion { index: 1, size: MEMORY as u64 }),
        (Refusal::RegionSize, |s| s[1].0 = Message::AddRegion { index: 0, size: u64::MAX }),
        (Refusal::Unsealed, |s| s[1].1 = Some(memory(false))),
        (Refusal::RingFd, |s| s[2].1 = None),
        (Refusal::NoEventFd, |s| s[2].1 = Some(seqpacket())),
        (Refusal::RingMissing, |s| drop(s.remove(3))),
    ];
    for (refusal, lie) in lies {
        let mut speech = speech();
        lie(&mut speech);
        assert_eq!(reason(&path, &speech), refusal.to_string());
    }
    type RingLie = fn(&mut AddRing);
    let rings: [(Refusal, RingLie); 8] = [
        (Refusal::RingIndex, |ring| ring.index = 1),
        (Refusal::RingSize, |ring| ring.log2_size = 15),
        (Refusal::RingSize, |ring| ring.log2_size = 255),
        (Refusal::RingSize, |ring| ring.log2_size = 0),
        (Refusal::PrivateHeader, |ring| ring.private_header = 64),
        (Refusal::RingPlace, |ring| ring.region = 1),
        (Refusal::RingPlace, |ring| ring.offset = u32::MAX - 15),
        (Refusal::RingPlace, |ring| ring.offset = 8),
    ];
    for (refusal, lie) in rings {
        let mut speech = speech();
        speech[2].0 = ring_lie(lie);
        assert_eq!(reason(&path, &speech), refusal.to_string());
    }
    // The same ring twice, and a ring without the cookie.
    let mut twice = speech();
    twice[3].0 = Message::AddRing(ring(true));
    assert_eq!(reason(&path, &twice), Refusal::RingIndex.to_string());
    let bare = speech();
    poke(bare[1].1.as_ref().unwrap(), RING, &[0; 4]);
    assert_eq!(reason(&path, &bare), Refusal::Cookie.to_string());

    for (bytes, refusal) in [(&[0u8; MESSAGE_SIZE][..], Refusal::MessageType), (&[3; 127], Refusal::MessageSize)] {
        let wire = Wire::connect(&path);
        wire.send_bytes(bytes, None);
        assert_eq!(wire.refused(), refusal.to_string());
    }
    let (longer, wire) = ([3; 129], Wire::connect(&path));
    wire.send_bytes(&longer, None);
    assert_eq!(wire.refused(), Refusal::MessageSize.to_string());
    // A ninth handshake evicts the oldest one.
    let silent: Vec<Wire> = (0..9).map(|_| Wire::connect(&path)).collect();
    assert_eq!(silent[0].refused(), Refusal::Crowd.to_string());

    let good = say(&path, &speech());
    server.until("up");
    assert_eq!(reason(&path, &speech()), Refusal::Taken.to_string());
    // The reason is sent to the peer before it appears in the port's details.
    let told = || server.detail("refused").ends_with("(already connected)");
    let start = Instant::now();
    while !told() {
        assert!(start.elapsed() < LONG, "{}", server.detail("refused"));
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(good);
    server.until("hung up");
    server.close();
}

#[test]
fn a_secret_is_asked_for() {
    let (path, _folder) = socket();
    let with = |role, secret: &str| Config { secret: secret.into(), ..config(&path, role) };
    let mut server = End::open(&with(Role::Server, "open sesame"));
    for wrong in ["", "open sesam", "open sesame!"] {
        let mut client = End::open(&with(Role::Client, wrong));
        client.until("incorrect secret");
        client.close();
    }
    let mut client = End::open(&with(Role::Client, "open sesame"));
    client.until("up");
    server.until("up");
    client.close();
    server.close();
}

/// Connects a client to `server`; returns its socket and its memory, in which the test forges descriptors.
fn connected(path: &Path, server: &mut End) -> (Wire, OwnedFd) {
    let mut speech = speech();
    let wire = say(path, &speech);
    let start = Instant::now();
    while server.port.state() != PortState::Up {
        server.turn(&mut Batch::new());
        assert!(start.elapsed() < LONG);
    }
    server.turn(&mut Batch::new());
    (wire, speech.remove(1).1.unwrap())
}

/// A descriptor's bytes.
type Slot = [u8; 16];
/// Test case: contents of the first slots, the ring index to publish, packets expected, and the refusal expected.
type Case<T> = (T, u16, usize, Option<Refusal>);

fn desc(flags: u16, region: u16, length: u32, offset: u32) -> Slot {
    let first = u64::from(flags) | u64::from(region) << 16 | u64::from(length) << 32;
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..12].copy_from_slice(&offset.to_le_bytes());
    bytes
}

#[test]
fn a_server_is_not_led_astray_by_descriptors() {
    let (path, _folder) = socket();
    let mut server = End::open(&config(&path, Role::Server));
    const DATA: u32 = 8192;
    let good = desc(0, 0, 64, DATA);
    let cases: [Case<&[Slot]>; 12] = [
        (&[good], 65, 0, Some(Refusal::Jump)),
        (&[good], 0x8000, 0, Some(Refusal::Jump)),
        (&[good, desc(0, 1, 64, DATA)], 2, 1, Some(Refusal::Descriptor)),
        (&[good, desc(0, 0xffff, 64, DATA)], 2, 1, Some(Refusal::Descriptor)),
        (&[desc(0, 0, 64, MEMORY as u32 - 63)], 1, 0, Some(Refusal::Descriptor)),
        (&[desc(0, 0, 64, u32::MAX)], 1, 0, Some(Refusal::Descriptor)),
        (&[desc(0, 0, u32::MAX, DATA)], 1, 0, Some(Refusal::Descriptor)),
        (&[desc(1, 0, 64, DATA), desc(1, 0, 64, DATA)], 2, 0, Some(Refusal::Chain)),
        (&[desc(1, 0, 64, DATA), desc(0, 9, 64, DATA)], 2, 0, Some(Refusal::Descriptor)),
        // Invalid but harmless: the packet is dropped and the connection stays.
        (&[good, desc(0, 0, 0, DATA), good], 3, 2, None),
        (&[good, desc(0, 0, 1793, DATA), good], 3, 2, None),
        (&[desc(1, 0, 1000, DATA), desc(0, 0, 1000, DATA), good], 3, 1, None),
    ];
    for (i, (descs, head, want, refusal)) in cases.into_iter().enumerate() {
        let (wire, memory) = connected(&path, &mut server);
        let invalid = server.port.counters().invalid.get();
        descs.iter().enumerate().for_each(|(slot, desc)| poke(&memory, 128 + 16 * slot, desc));
        poke(&memory, DATA as usize, &[0x5a; 64]);
        poke(&memory, 6, &head.to_le_bytes());
        let got: Vec<Vec<u8>> = (0..4).flat_map(|_| server.turn(&mut Batch::new())).collect();
        assert_eq!(got, vec![vec![0x5a; 64]; want], "case {i}");
        let bad = u64::from(refusal != Some(Refusal::Jump));
        assert_eq!(server.port.counters().invalid.get() - invalid, bad, "case {i}");
        match refusal {
            Some(refusal) => assert_eq!(wire.refused(), refusal.to_string(), "case {i}"),
            None => drop(wire),
        }
        server.until("peer");
        assert_eq!(server.port.held(), 0);
    }
    // One packet in several descriptors.
    let (wire, memory) = connected(&path, &mut server);
    let parts = [desc(1, 0, 100, DATA), desc(1, 0, 30, DATA + 500), desc(0, 0, 20, DATA + 1000)];
    parts.iter().enumerate().for_each(|(slot, desc)| poke(&memory, 128 + 16 * slot, desc));
    let whole: Vec<u8> = (0..150).collect();
    for (at, part) in [(0, &whole[..100]), (500, &whole[100..130]), (1000, &whole[130..])] {
        poke(&memory, DATA as usize + at, part);
    }
    poke(&memory, 6, &3u16.to_le_bytes());
    assert_eq!(server.turn(&mut Batch::new()), [whole]);
    drop(wire);
    server.until("hung up");

    // Server to client: invalid buffers, and buffers too small for the packet.
    for (head, buffer, refusal) in [
        (65u16, desc(0, 0, 2048, DATA), Some(Refusal::Jump)),
        (1, desc(0, 0, 2048, MEMORY as u32 - 100), Some(Refusal::Descriptor)),
        (1, desc(0, 3, 2048, DATA), Some(Refusal::Descriptor)),
        (64, desc(0, 0, 0, DATA), Some(Refusal::Descriptor)),
        (64, desc(0, 0, 16, DATA), None),
    ] {
        let (wire, memory) = connected(&path, &mut server);
        (0..64).for_each(|slot| poke(&memory, RING + 128 + 16 * slot, &buffer));
        poke(&memory, RING + 6, &head.to_le_bytes());
        let mut out = batch_of(&mut server.bufs, [[1u8; 40], [2; 40]]);
        server.turn(&mut out);
        server.turn(&mut out);
        match refusal {
            Some(refusal) => assert_eq!(wire.refused(), refusal.to_string()),
            None => {
                // Each packet took three buffers.
                let mut seen = [0; 6 * 16];
                assert_eq!(rustix::io::pread(&memory, &mut seen, (RING + 128) as u64).unwrap(), seen.len());
                let lengths: Vec<_> = seen.chunks(16).map(|desc| (desc[0], desc[4])).collect();
                assert_eq!(lengths, [(1, 16), (1, 16), (0, 8), (1, 16), (1, 16), (0, 8)]);
                assert!(out.is_empty());
            }
        }
        server.bufs.free(&mut out);
        drop(wire);
        server.until("peer");
    }
    server.close();
}

/// Returns the messages of a client that shares its memory and then sparse files of these sizes.
fn sharing(sizes: &[u64]) -> Vec<(Message, Option<OwnedFd>)> {
    let mut speech = speech();
    speech.truncate(2);
    for (i, size) in sizes.iter().enumerate() {
        let fd = memory(false);
        rustix::fs::ftruncate(&fd, *size).unwrap();
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        speech.push((Message::AddRegion { index: i as u16 + 1, size: *size }, Some(fd)));
    }
    speech
}

#[test]
fn a_server_does_not_map_without_bounds() {
    let (path, _folder) = socket();
    let server = End::open(&config(&path, Role::Server));
    const PAGE: u64 = 1 << 16;
    // No more than 4 GiB of a region count, as no more are mapped.
    let most = [5 << 30, (4 << 30) - MEMORY as u64];
    assert_eq!(reason(&path, &sharing(&most)), "nothing");
    for sizes in [&[5 << 30, 4 << 30][..], &[most[0], most[1], 1], &[3 << 30; 3]] {
        assert_eq!(reason(&path, &sharing(sizes)), "regions of more than 8 GiB together");
    }
    assert_eq!(reason(&path, &sharing(&[PAGE; REGIONS - 1])), "nothing");
    assert_eq!(reason(&path, &sharing(&[PAGE; REGIONS])), "more than 16 regions");
    server.close();
}

#[test]
fn holes_in_the_memory_do_no_harm() {
    let (path, _folder) = socket();
    let mut server = End::open(&config(&path, Role::Server));
    let (wire, memory) = connected(&path, &mut server);
    const DATA: usize = 8192;
    let hole = |at: usize| {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&memory, mode, at as u64, 4096).unwrap();
    };
    poke(&memory, 128, &[desc(0, 0, 64, DATA as u32); 2].concat());
    poke(&memory, DATA, &[0x5a; 64]);
    poke(&memory, 6, &1u16.to_le_bytes());
    assert_eq!(server.turn(&mut Batch::new()), [vec![0x5a; 64]]);
    hole(DATA);
    poke(&memory, 6, &2u16.to_le_bytes());
    assert_eq!(server.turn(&mut Batch::new()), [vec![0; 64]]);
    // The rings read as zeros.
    hole(0);
    assert_eq!(server.turn(&mut Batch::new()), [[0; 0]; 0]);
    assert_eq!(wire.refused(), Refusal::Jump.to_string());
    server.close();
}

/// A violation that is found after its client left does not end the next client's connection.
#[test]
fn a_late_complaint_does_not_concern_the_next_client() {
    let (path, _folder) = socket();
    let mut server = End::open(&config(&path, Role::Server));
    let (first, memory) = connected(&path, &mut server);
    poke(&memory, RING + 6, &65u16.to_le_bytes());
    drop(first);
    let _second = say(&path, &speech());
    let start = Instant::now();
    while server.detail("reconnects") != "1" {
        assert!(start.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut out = batch_of(&mut server.bufs, [[1u8; 40]]);
    assert_eq!(server.port.tx_burst(&mut server.bufs, &mut out), 0);
    server.bufs.free(&mut out);
    assert_eq!(reason(&path, &speech()), Refusal::Taken.to_string());
    server.until("up");
    server.close();
}

/// A frame needs more buffers than the server knows of, and the client has provided them since.
#[test]
fn buffers_provided_later_are_found_for_a_frame_in_parts() {
    let (path, _folder) = socket();
    let mut server = End::open(&config(&path, Role::Server));
    let (wire, memory) = connected(&path, &mut server);
    (0..64).for_each(|slot| poke(&memory, RING + 128 + 16 * slot, &desc(0, 0, 16, 8192)));
    poke(&memory, RING + 6, &3u16.to_le_bytes());
    let mut out = batch_of(&mut server.bufs, [[1u8; 16], [2; 16]]);
    server.turn(&mut out);
    assert!(out.is_empty());
    // A single buffer is left, and this frame needs three.
    let mut out = batch_of(&mut server.bufs, [[3u8; 40]]);
    server.turn(&mut out);
    assert_eq!(out.len(), 1);
    poke(&memory, RING + 6, &5u16.to_le_bytes());
    server.turn(&mut out);
    assert!(out.is_empty(), "the frame waits although there is room");
    let mut seen = [0; 3 * 16];
    assert_eq!(rustix::io::pread(&memory, &mut seen, (RING + 128 + 2 * 16) as u64).unwrap(), seen.len());
    let lengths: Vec<_> = seen.chunks(16).map(|desc| (desc[0], desc[4])).collect();
    assert_eq!(lengths, [(1, 16), (1, 16), (0, 8)]);
    // An index that jumps is noticed there, too.
    let mut out = batch_of(&mut server.bufs, [[4u8; 16]]);
    poke(&memory, RING + 6, &6u16.to_le_bytes());
    server.turn(&mut out);
    assert!(out.is_empty());
    let mut out = batch_of(&mut server.bufs, [[5u8; 16]]);
    poke(&memory, RING + 6, &100u16.to_le_bytes());
    server.turn(&mut out);
    assert_eq!(wire.refused(), Refusal::Jump.to_string());
    server.bufs.free(&mut out);
    server.close();
}

/// A client that does not let itself be woken hinders neither the next one nor the end of the port.
#[test]
fn a_full_eventfd_blocks_nobody_else() {
    let (path, _folder) = socket();
    let mut server = End::open(&config(&path, Role::Server));
    let full = || {
        // Blocking, without room for any more.
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fd
    };
    let buffer = desc(0, 0, 2048, 8192);
    let connect_and_fill = |server: &mut End| {
        let mut speech = speech();
        speech[3].1 = Some(full());
        let wire = say(&path, &speech);
        server.until("up");
        let memory = speech[1].1.as_ref().unwrap();
        (0..64).for_each(|slot| poke(memory, RING + 128 + 16 * slot, &buffer));
        poke(memory, RING + 6, &64u16.to_le_bytes());
        let wakeups = server.port.counters().tx_wakeups.get();
        let mut out = batch_of(&mut server.bufs, [[1u8; 40]]);
        server.turn(&mut out);
        assert!(out.is_empty());
        assert_eq!(server.port.counters().tx_wakeups.get(), wakeups + 1);
        (wire, speech.remove(3).1.unwrap())
    };
    let count = |fd: &OwnedFd| {
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap();
        let count = info.lines().find_map(|line| line.strip_prefix("eventfd-count:")).unwrap();
        u64::from_str_radix(count.trim(), 16).unwrap()
    };
    let (wire, first) = connect_and_fill(&mut server);
    drop(wire);
    server.until("hung up");
    let (_wire, second) = connect_and_fill(&mut server);
    server.close();
    End::open(&config(&path, Role::Server)).close();
    // The threads that had to wake these clients have done so.
    let start = Instant::now();
    while [&first, &second].map(count) != [1, 1] {
        assert!(start.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Descriptors change between what is valid and what is not while the server reads them.
#[test]
fn descriptors_may_change_meanwhile() {
    let (path, _folder) = socket();
    let mut server = End::open(&config(&path, Role::Server));
    const DATA: u32 = 8192;
    let (good, longer) = (desc(0, 0, 64, DATA), desc(0, 0, 1500, DATA));
    let (outside, elsewhere) = (desc(0, 0, 64, MEMORY as u32 - 63), desc(0, 7, u32::MAX, DATA));
    let (mut lengths, mut refused, start) = (Vec::new(), 0, Instant::now());
    while lengths.len() < 300 || refused < 3 {
        assert!(start.elapsed() < LONG, "{} received, {refused} refused", lengths.len());
        let (wire, memory) = connected(&path, &mut server);
        let write = |descs: [Slot; 4]| poke(&memory, 128, &descs.as_flattened().repeat(16));
        write([good; 4]);
        let done = AtomicBool::new(false);
        let up = std::thread::scope(|scope| {
            scope.spawn(|| {
                // After a panic nobody sets `done`.
                while !done.load(Ordering::Relaxed) && start.elapsed() < LONG {
                    (0..3).for_each(|_| write([good, longer, longer, good]));
                    write([good, outside, longer, elsewhere]);
                    write([good, longer, longer, good]);
                }
            });
            let (mut head, mut got) = (0u16, 0);
            while head < 1024 && server.port.state() == PortState::Up {
                head += 8;
                poke(&memory, 6, &head.to_le_bytes());
                while got < head && server.port.state() == PortState::Up {
                    let packets = server.turn(&mut Batch::new());
                    lengths.extend(packets.iter().map(Vec::len));
                    got += packets.len() as u16;
                }
            }
            done.store(true, Ordering::Relaxed);
            server.port.state() == PortState::Up
        });
        if !up {
            assert_eq!(wire.refused(), Refusal::Descriptor.to_string());
            refused += 1;
        }
        drop(wire);
        server.until("peer");
    }
    // Lengths are written byte by byte, so that there are mixed ones.
    assert!(lengths.iter().all(|length| (1..1536).contains(length)), "{lengths:?}");
    server.close();
}

/// Serves `client` from the test; returns the socket and the memory of the rings.
fn served(path: &Path, client: &mut End) -> (Wire, OwnedFd) {
    let listener = seqpacket();
    let _ = std::fs::remove_file(path);
    rustix::net::bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let wire = Wire(rustix::net::accept(&listener).unwrap());
    wire.send(&hello(), None);
    let mut rings = None;
    loop {
        let (message, fd) = wire.receive().unwrap();
        match message {
            Message::AddRegion { index: 0, .. } => rings = fd,
            Message::Connect { .. } => break,
            _ => {}
        }
        wire.send(&Message::Ack, None);
    }
    wire.send(&Message::Connected { name: "liar0".into() }, None);
    client.until("up");
    (wire, rings.unwrap())
}

fn hello() -> Message {
    Message::Hello(Hello {
        name: "liar".into(),
        min_version: 0x200,
        max_version: 0x200,
        max_region: 255,
        max_s2c_ring: 0,
        max_c2s_ring: 0,
        max_log2_ring: SLOTS_LOG2,
    })
}

#[test]
fn a_client_is_not_led_astray_by_indices_and_lengths() {
    let (path, _folder) = socket();
    let mut client = End::open(&config(&path, Role::Client));
    // Ring from server to client.
    let cases: [Case<[Slot; 2]>; 5] = [
        ([desc(0, 1, 64, 0); 2], 65, 0, Some(Refusal::Jump)),
        ([desc(0, 1, 64, 0); 2], 0xffff, 0, Some(Refusal::Jump)),
        // Only a descriptor's length is used; its offset and region are ignored.
        ([desc(0, 9, 64, u32::MAX); 2], 2, 2, None),
        ([desc(0, 1, 1601, 0), desc(0, 1, 64, 0)], 2, 1, None),
        ([desc(1, 1, 64, 0), desc(1, 1, 64, 0)], 2, 0, Some(Refusal::Chain)),
    ];
    for (i, (descs, tail, want, refusal)) in cases.into_iter().enumerate() {
        let (wire, rings) = served(&path, &mut client);
        assert_eq!(client.port.held(), 1 << SLOTS_LOG2);
        poke(&rings, RING + 128, &descs.concat());
        poke(&rings, RING + 64, &tail.to_le_bytes());
        let got: usize = (0..3).map(|_| client.turn(&mut Batch::new()).len()).sum();
        assert_eq!(got, want, "case {i}");
        match refusal {
            Some(refusal) => assert_eq!(wire.refused(), refusal.to_string(), "case {i}"),
            None => drop(wire),
        }
        client.until("answer");
        assert_eq!(client.port.held(), 0);
    }
    // Ring from client to server: the index returns more slots than were sent.
    let (wire, rings) = served(&path, &mut client);
    let mut out = batch_of(&mut client.bufs, (0..5).map(|_| [7u8; 64]));
    client.turn(&mut out);
    assert_eq!(client.port.held(), (1 << SLOTS_LOG2) + 5);
    poke(&rings, 64, &6u16.to_le_bytes());
    client.turn(&mut Batch::new());
    assert_eq!(wire.refused(), Refusal::Jump.to_string());
    client.close();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Messages of any kind and content, in any order, with and without descriptors, lead to a refusal or a connection
    /// only, and the next valid client is served.
    #[test]
    fn no_sequence_of_messages_does_harm(
        script in proptest::collection::vec((0u16..10, proptest::collection::vec(any::<u8>(), 0..130), 0u8..4), 1..8),
        honest in 0usize..5,
    ) {
        let (path, _folder) = socket();
        let server = End::open(&config(&path, Role::Server));
        {
            let mut start = speech();
            start.truncate(honest);
            let wire = say(&path, &start);
            // Replies are ignored here, so messages come out of turn.
            for (kind, body, fd) in script {
                let mut bytes = [0; MESSAGE_SIZE];
                bytes[..2].copy_from_slice(&kind.to_le_bytes());
                bytes.iter_mut().skip(2).zip(&body).for_each(|(to, from)| *to = *from);
                let fd = match fd {
                    0 => None,
                    1 => Some(memory(true)),
                    2 => Some(eventfd()),
                    _ => Some(seqpacket()),
                };
                wire.send_bytes(&bytes[..if body.len() > 128 { 100 } else { MESSAGE_SIZE }], fd.as_ref());
            }
        }
        let mut server = server;
        let mut client = End::open(&config(&path, Role::Client));
        client.until("up");
        server.until("up");
        client.close();
        server.close();
    }
}
